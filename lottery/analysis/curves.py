"""Loss and accuracy while training, at every evaluation of every network of a run."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, TypedDict, Unpack

from lottery.errors import unknown
from lottery.figures import layout, style
from lottery.figures.record import Analysis
from lottery.runs import store
from lottery.runs.stored import stored_rounds
from lottery.text_tables import Table, frame

COLUMNS = ("replicate", "branch", "round", "density", *store.METRICS)


def table(run: store.Folder, rounds: Iterable[int] | None = None) -> Table:
    """Read every evaluation of each trained network of a run, branches included.

    Returns:
        A data frame with the columns `COLUMNS`, in the order of `stored_rounds`, and within a network
        as they were measured. ``split`` is ``"train"``, ``"validation"`` or ``"test"``; a row of the training split is
        the mean over the steps since the one before it. Losses are as the model reports them (a cross-entropy is in
        nats), densities and accuracies in [0, 1]; an accuracy that the model does not measure is NaN.
    """
    rows = [(*stored.labels, *row) for stored in stored_rounds(run, rounds) for row in stored.metrics]
    return frame(rows, COLUMNS)


_SETTLED = 0.05  # of the steps; the losses before it are far from all later ones


class Shown(TypedDict, total=False):
    """What `figure` shows of the curves."""

    measure: str  # "accuracy" by default; "loss", which also replaces accuracies that were not measured
    split: str  # "validation" by default, "train" or "test"
    rounds: Iterable[int] | None  # by default at most six, evenly apart
    branch: str  # the ticket by default
    full: bool  # show everything; by default the first twentieth of the steps may leave the axes
    most: int  # points of a line after step 0, by default 40; of more evaluations, neighbours are averaged


class _Lines(NamedTuple):
    measure: str  # that is drawn
    split: str
    branch: str
    points: Table  # means by round and step
    together: int  # evaluations that are averaged to a point
    limits: tuple[float, float] | None  # of the axis: the lowest and the highest end of a band after the first steps


def figure(curves: Table, ax: Any = None, **shown: Unpack[Shown]) -> Any:
    """Draw a measure against the step of training: the mean over replicates, in a band from the lowest to the highest.

    `shown` are the options of `Shown`. Where evaluations are averaged, the caption says how many; the one at step 0,
    before training, never is.
    """
    lines = _lines(curves, **shown)
    ax = style.new_or(ax)
    for label, line, look in style.by_round(lines.points):
        style.band(ax, line["step"], line, look, label)
    if lines.limits and lines.limits[0] < lines.limits[1]:
        low, high = lines.limits
        ax.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    style.whole_ticks(ax.xaxis)
    ax.set(xlabel="step", ylabel=f"{lines.split} {lines.measure}")
    return layout.finish(ax, lines.points, "band")


def _caption(curves: Table, **shown: Unpack[Shown]) -> str:
    lines = _lines(curves, **shown)
    of = "the ticket" if lines.branch == store.TICKET else lines.branch
    sentences = [f"{lines.split.capitalize()} {lines.measure} while training, of {of}."]
    if lines.measure != shown.get("measure", "accuracy"):
        sentences.append("No accuracy is measured.")
    sentences.append(style.replicates(lines.points, "band"))
    if lines.together > 1:
        sentences.append(f"Each point after step 0 is the mean of up to {lines.together} evaluations.")
    lowest, highest = lines.points["low"].min(), lines.points["high"].max()
    if lines.limits and (lowest < lines.limits[0] or highest > lines.limits[1]):
        sentences.append(f"The first {100 * _SETTLED:g} % of the steps may lie outside.")
    return " ".join(sentences)


def _lines(
    curves: Table,
    measure: str = "accuracy",
    split: str = "validation",
    rounds: Iterable[int] | None = None,
    branch: str = store.TICKET,
    *,
    full: bool = False,
    most: int = 40,
) -> _Lines:
    if measure not in ("accuracy", "loss"):
        raise unknown("The measure to plot", measure, ("accuracy", "loss"))
    part = style.of_rounds(style.only(style.only(curves, "branch", branch), "split", split), rounds)
    if measure == "accuracy" and part["accuracy"].isna().all():
        measure = "loss"
    part, together = _averaged(part, measure, most)
    points = style.spread(part, ("round", "step"), measure)
    settled = points[points["step"] >= _SETTLED * points["step"].max()]
    limits = None if full else (settled["low"].min(), settled["high"].max())
    return _Lines(measure, split, branch, points, together, limits)


def _averaged(curves: Table, measure: str, most: int) -> tuple[Table, int]:
    """Average neighbouring evaluations, so that each network has at most `most`; return also how many go together."""
    steps = curves.groupby(["replicate", "round"])["step"]
    # An evaluation at step 0 has the place 0, alone.
    place = steps.rank(method="first").astype(int) - (steps.transform("min") == 0)
    # Where the only evaluation is at step 0, all places are 0.
    together = max(1, math.ceil(place.max() / max(most, 1)))
    # Rounded up, so that step 0 stays alone.
    place = (place + together - 1) // together
    groups = curves.assign(place=place).groupby(["replicate", "round", "place"], as_index=False)
    return groups.agg(step=("step", "mean"), density=("density", "first"), **{measure: (measure, "mean")}), together


def _views(curves: Table) -> list[dict[str, str]]:
    """List a figure for each measure that the model has."""
    return [{"measure": measure} for measure in ("accuracy", "loss") if curves[measure].notna().any()]


def summed(curves: Table) -> Table:
    """Summarise the table of `table`, in a row for each split of each network.

    ``lowest_loss`` is the lowest after the network's first step, ``at_step`` the first step that has it.
    """
    keys = ["replicate", "branch", "round", "density", "split"]
    first = curves.groupby(keys[:-1])["step"].transform("min")
    rows = []
    for values, part in curves.groupby(keys, sort=False):
        # Before its first step a network is not trained; one that never is has no other evaluation.
        later = part[part["step"] > first[part.index]] if part["step"].nunique() > 1 else part
        lowest = later["loss"].min()
        at = later[later["loss"] == lowest]["step"].min()
        last = part.loc[part["step"].idxmax()]
        rows.append((*values, lowest, at, later["accuracy"].max(), last["loss"], last["accuracy"]))
    return frame(rows, [*keys, *_SUMMED])


_SUMMED = ("lowest_loss", "at_step", "highest_accuracy", "last_loss", "last_accuracy")

CURVES = Analysis(
    table,
    None,
    "Lowest loss, highest accuracy and last values of each split; --all, --json and --csv list every evaluation.",
    columns=_SUMMED,
    keys=("split",),
    printed=summed,
)

LEARNING_CURVES = Analysis(
    table,
    figure,
    "Validation accuracy or loss while training, for some rounds.",
    chapter="Training",
    caption=_caption,
    views=_views,
    title="Learning curves",
)
