"""The distance by which training moves the survivors from their start."""

from typing import Any

import numpy as np

from lottery.errors import unknown
from lottery.figures import layout, style
from lottery.figures.record import Analysis
from lottery.runs import store
from lottery.runs.stored import stored_rounds
from lottery.text_tables import Table, frame

COLUMNS = (
    "replicate", "branch", "round", "density", "weight", "start_norm", "distance", "relative_distance", "cosine",
    "sign_changes",
)  # fmt: skip
ALL = "all"  # the row of all weights together


def moved(start: np.ndarray, trained: np.ndarray) -> tuple[float, float, float, float, float]:
    """Measure how far training has moved values of any shape, as vectors.

    Returns:
        The Euclidean norm of `start`; the Euclidean distance of the two; that distance divided by the norm; the cosine
        of the angle between them; and, of the values that do not start at zero, the fraction that end with another
        sign (zero counts as a sign). The last three are NaN if they are not defined.
    """
    # In float32, a sum of many squares loses digits.
    start = start.astype(np.float64).ravel()
    trained = trained.astype(np.float64).ravel()
    norm = float(np.linalg.norm(start))
    end = float(np.linalg.norm(trained))
    distance = float(np.linalg.norm(trained - start))
    signed = start != 0
    changed = np.sign(start[signed]) != np.sign(trained[signed])
    relative = distance / norm if norm else np.nan
    cosine = float(start @ trained) / (norm * end) if norm and end else np.nan
    sign_changes = float(changed.mean()) if changed.size else np.nan
    return norm, distance, relative, cosine, sign_changes


def table(run: store.Folder) -> Table:
    """Measure how far the survivors of each weight, and all together, move in each round.

    Returns:
        A data frame with the columns `COLUMNS`, a row for each weight and before them a row named ``"all"``, with the
        measures of `moved` over the entries that are kept. The start is that of the round: the initial or rewound
        values or, with learning-rate rewinding and fine-tuning, the end of the network that was pruned. Only the main
        chain is included, so ``branch`` is ``"ticket"``; the start of a branch is not stored.
    """
    rows = []
    for stored in stored_rounds(run, branches=False):
        start, trained = stored.masked_start, stored.weights
        pairs = {name: (start[name][mask], trained[name][mask]) for name, mask in stored.masks.items()}
        together = [np.concatenate(parts) for parts in zip(*pairs.values(), strict=True)]
        rows += [(*stored.labels, name, *moved(*pair)) for name, pair in {ALL: together, **pairs}.items()]
    return frame(rows, COLUMNS)


# The columns that the figure can draw, with the labels of the axis.
DISTANCES = {
    "relative_distance": "distance from the start / size of the start (L2)",
    "cosine": "cosine of the angle between start and trained",
    "sign_changes": "fraction of kept weights that changed their sign",
}


def figure(table: Table, ax: Any = None, measure: str = "relative_distance") -> Any:
    """Draw a measure of `DISTANCES` for the survivors of each weight against density, means over replicates with bars.

    The bars go from the lowest to the highest replicate.
    """
    points = _points(table, measure)
    ax = style.new_or(ax)
    for weight, look in style.by_name(table["weight"]).items():
        part = points[points["weight"] == weight]
        label = "all weights" if weight == ALL else weight
        style.bars(ax, part["density"], part, look, label, first=weight == ALL)
    style.density_axis(ax, points["density"])
    ax.set_ylabel(DISTANCES[measure])
    return layout.finish(ax, points)


def _caption(table: Table, measure: str = "relative_distance") -> str:
    points = _points(table, measure)  # refuses an unknown measure
    what = f"How far training moves the surviving weights: {DISTANCES[measure]}, against density."
    return f"{what} {style.replicates(points, 'bars')}"


def _points(table: Table, measure: str) -> Table:
    if measure not in DISTANCES:
        raise unknown("The measure to plot", measure, DISTANCES)
    return style.spread(style.only(table, "branch", "ticket"), ("weight", "round"), measure)


DISTANCE = Analysis(
    table,
    figure,
    "How far training moves the surviving weights from their start.",
    columns=COLUMNS[5:],
    chapter="Layers",
    caption=_caption,
    title="How far weights move",
)
