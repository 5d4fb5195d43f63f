"""Figures of where training goes: learning curves, distances from the start, paths between networks. No TensorFlow."""

from collections.abc import Iterable
from typing import Any

from lottery.analysis import styles
from lottery.errors import unknown
from lottery.runs import store
from lottery.runs.results import Table

# What `distance` can draw: a column of its table, and the label of the axis.
DISTANCES = {
    "relative_distance": "distance from the start / size of the start (L2)",
    "cosine": "cosine of the angle between start and trained",
    "sign_changes": "fraction of kept weights that changed their sign",
}


_SETTLED = 0.05  # of the steps: what comes before lies far from everything that a learning curve is looked at for


def learning_curves(
    curves: Table,
    ax: Any = None,
    measure: str = "accuracy",
    split: str = "validation",
    rounds: Iterable[int] | None = None,
    branch: str = store.TICKET,
    full: bool = False,
    most: int = 40,
) -> Any:
    """A measure against the step of training, for some rounds.

    Args:
        curves: What `lottery.analysis.curves.table` returns.
        ax: Matplotlib axes to draw on; new ones if None.
        measure: ``"accuracy"``, of which the loss takes the place where no accuracy is measured, or ``"loss"``.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        rounds: Which; by default at most six, evenly.
        branch: Which.
        full: Show the first twentieth of the steps whole too, instead of letting it leave the axes.
        most: Points of a line after step 0: where there are more evaluations, so many that follow one another are
            averaged as it takes, and the title says how many. That at step 0, from which training starts, stands alone.

    Returns:
        The axes: for each round the mean over replicates, in a band from the lowest to the highest.

    Raises:
        LotteryError: The table is empty, or has no such measure, split, branch or round.
    """
    styles.check(curves)
    if measure not in ("accuracy", "loss"):
        raise unknown("The measure to plot", measure, ("accuracy", "loss"))
    part = styles.of_rounds(styles.only(styles.only(curves, "branch", branch), "split", split), rounds)
    notes = []
    if measure == "accuracy" and part["accuracy"].isna().all():
        measure, notes = "loss", ["no accuracy is measured: the loss"]
    part, together = _averaged(part, measure, most)
    points = styles.spread(part, ("round", "step"), measure)
    ax = styles.new_or(ax)
    for index, line, style in styles.by_round(points):
        label = f"round {index}, density {line['density'].mean():.3g}"
        styles.band(ax, line["step"], line, style, label, markevery=max(1, len(line) // 8))
    settled = points[points["step"] >= _SETTLED * points["step"].max()]
    low, high = settled["low"].min(), settled["high"].max()
    outside = points[(points["low"] < low) | (points["high"] > high)]
    if low < high and not full:
        ax.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    ax.set_xlim(0, None)
    ax.set_xlabel("step")
    ax.set_ylabel(f"{split} {measure}")
    if together > 1:
        notes.append(f"each point after step 0 the mean of up to {together} evaluations")
    if not full and not outside.empty:
        notes.append(f"the first {100 * _SETTLED:g} % of the steps may lie outside")
    return styles.finish(ax, "\n".join([f"{branch}: {styles.said(points, 'band')}", *notes]))


def distance(table: Table, ax: Any = None, measure: str = "relative_distance") -> Any:
    """How far training moves the weights that are kept, against density, for each weight.

    Args:
        table: What `lottery.analysis.distances.table` returns.
        ax: As for `learning_curves`.
        measure: A key of `DISTANCES`.

    Returns:
        The axes: the mean over replicates, with bars from the lowest to the highest.

    Raises:
        LotteryError: The table is empty or the measure unknown.
    """
    styles.check(table)
    if measure not in DISTANCES:
        raise unknown("The measure to plot", measure, DISTANCES)
    points = styles.spread(styles.only(table, "branch", "ticket"), ("weight", "round"), measure)
    ax = styles.new_or(ax)
    for weight, style in styles.by_name(list(dict.fromkeys(table["weight"]))).items():
        part = points[points["weight"] == weight]
        label = "all weights" if weight == "all" else weight
        styles.bars(ax, part["density"], part, style, label, first=weight == "all")
    styles.density_axis(ax, points["density"])
    ax.set_ylabel(DISTANCES[measure])
    return styles.finish(ax, styles.said(points, "bars"))


def _averaged(curves: Table, measure: str, most: int) -> tuple[Table, int]:
    """Means over so many evaluations that at most so many are left of each network, and how many that is."""
    steps = curves.groupby(["replicate", "round"])["step"]
    # The evaluation at step 0, if there is one, is place 0, and alone.
    place = steps.rank(method="first").astype(int) - (steps.transform("min") == 0)
    together = -(-int(place.max()) // max(most, 1)) or 1
    groups = curves.assign(place=-(-place // together)).groupby(["replicate", "round", "place"], as_index=False)
    return groups.agg(step=("step", "mean"), density=("density", "first"), **{measure: (measure, "mean")}), together
