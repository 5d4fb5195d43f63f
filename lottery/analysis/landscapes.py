"""Figures of where training goes: learning curves, distances from the start, paths between networks. No TensorFlow."""

from collections.abc import Iterable
from typing import Any

from lottery.analysis import connectivity, connectivity_files, styles
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


NO_PATH = "no path between two networks is stored yet; `lottery analyze connectivity` measures them"


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


def barrier(
    points: Table,
    ax: Any = None,
    split: str | None = None,
    rounds: Iterable[int] | None = None,
    steps: Iterable[int] | None = None,
    batch_norm: str | None = None,
) -> Any:
    """The error along the straight line between two networks that were trained from the same start in two orders.

    Args:
        points: What `lottery.analysis.connectivity.points` returns.
        ax: As for `learning_curves`.
        split: ``"test"`` or ``"train"``; both by default, the train error dashed.
        rounds, steps: Which, all of them drawn; by default at most three rounds and three rewind steps, evenly.
        batch_norm: ``"stored"`` or ``"recomputed"``; by default the first where the table has it. The title names the
            second.

    Returns:
        The axes: for each round and step the mean over replicates, in a band from the lowest to the highest, and in the
        legend its error barrier: the highest error less the mean of the ends, by the mean over replicates. Where
        replicates were measured at other points, each one's line, straight between its own, counts at all of them.

    Raises:
        LotteryError: The table is empty or has not what was asked for.
    """
    part = _networks(points, split, batch_norm)
    part = styles.of_rounds(styles.of_rounds(part, rounds, 3), steps, 3, "step")
    lines = styles.spread(_together(part), ("round", "step", "split", "alpha"), "error")
    heights = connectivity.barriers(part).groupby(["round", "step", "split"])["barrier"].mean()
    splits = _splits(part)
    pairs = sorted(set(zip(lines["round"], lines["step"], strict=True)))
    ax = styles.new_or(ax)
    for (index, step), style in zip(pairs, styles.in_order(len(pairs)), strict=True):
        for name in splits:
            line = lines[(lines["round"] == index) & (lines["step"] == step) & (lines["split"] == name)]
            styles.band(ax, line["alpha"], line, style, "_path", linestyle="-" if name == "test" else "--")
        measured = ", ".join(f"{name} {heights[index, step, name]:.4f}" for name in splits)
        color, marker, _ = style
        ax.plot([], [], color=color, marker=marker, label=f"round {index}, step {step}\nbarrier: {measured}")
    ax.set_ylim(0, None)
    ax.set_xlabel("place on the line between the two networks (alpha)")
    ax.set_ylabel("error (fraction of examples)")
    return styles.finish(ax, styles.said(lines, "band") + _dashed(part) + _recomputed(part))


def instability(barriers: Table, ax: Any = None, over: str = "density", batch_norm: str | None = None) -> Any:
    """The error barrier against density or against the rewind step: where networks become stable.

    Args:
        barriers: What `lottery.analysis.connectivity.barriers` returns.
        ax: As for `learning_curves`.
        over: ``"density"``, a line for each rewind step, or ``"step"``, a line for each of at most six rounds.
        batch_norm: As for `barrier`.

    Returns:
        The axes: the mean over replicates with bars from the lowest to the highest, train dashed, and a line at 2 %,
        under which Frankle et al. 2020, https://arxiv.org/abs/1912.05671, call networks stable.

    Raises:
        LotteryError: The table is empty, or has not what was asked for.
    """
    if over not in ("density", "step"):
        raise unknown("What an instability is plotted over", over, ("density", "step"))
    part = _networks(barriers, None, batch_norm)
    line, x = ("step", "round") if over == "density" else ("round", "step")
    part = styles.of_rounds(part, None, column=line)
    points = styles.spread(part, (line, "split", x), "barrier")
    ax = styles.new_or(ax)
    there = sorted(set(points[line]))
    for index, (color, marker, _) in zip(there, styles.in_order(len(there)), strict=True):
        for name in _splits(part):
            of = points[(points[line] == index) & (points["split"] == name)]
            style = (color, marker, "-" if name == "test" else "--")
            styles.bars(ax, of[over], of, style, f"{line} {index}, {name}", first=name == "test")
    ax.axhline(connectivity.STABLE, color="0.35", linewidth=1, linestyle=":", label="stable under 2 %", zorder=1)
    if over == "density":
        styles.density_axis(ax, points["density"])
    else:
        later = points[points["step"] > 0]["step"]
        ax.set_xscale("symlog", linthresh=later.min() if len(later) else 1)
        styles.plain(ax.xaxis)
        ax.set_xlabel("step that both networks share")
    ax.set_ylim(min(0, points["low"].min() * 1.1), max(points["high"].max(), connectivity.STABLE) * 1.1)
    ax.set_ylabel("error barrier (fraction of examples)")
    return styles.finish(ax, styles.said(points, "bars") + _dashed(part) + _recomputed(part))


def _averaged(curves: Table, measure: str, most: int) -> tuple[Table, int]:
    """Means over so many evaluations that at most so many are left of each network, and how many that is."""
    steps = curves.groupby(["replicate", "round"])["step"]
    # The evaluation at step 0, if there is one, is place 0, and alone.
    place = steps.rank(method="first").astype(int) - (steps.transform("min") == 0)
    together = -(-int(place.max()) // max(most, 1)) or 1
    groups = curves.assign(place=-(-place // together)).groupby(["replicate", "round", "place"], as_index=False)
    return groups.agg(step=("step", "mean"), density=("density", "first"), **{measure: (measure, "mean")}), together


def _dashed(table: Table) -> str:
    return "; dashed: train" if "train" in set(table["split"]) else ""


def _recomputed(table: Table) -> str:
    return "\nstatistics of BatchNorm recomputed" if connectivity_files.RECOMPUTED in set(table["batch_norm"]) else ""


def _together(points: Table) -> Table:
    """The errors of all replicates at the points of any of them."""
    import numpy as np
    import pandas as pd

    found, columns = [], ["replicate", "round", "step", "density", "split"]
    for _, part in points.groupby(["round", "step", "split"]):
        alphas = np.unique(part["alpha"])
        for _, line in part.sort_values("alpha").groupby("replicate"):
            errors = np.interp(alphas, line["alpha"], line["error"])
            found.append(pd.DataFrame({**line[columns].iloc[0].to_dict(), "alpha": alphas, "error": errors}))
    return pd.concat(found, ignore_index=True)


def _networks(table: Table, split: str | None, batch_norm: str | None) -> Table:
    styles.check(table, NO_PATH)
    there = set(table["batch_norm"])
    usual = connectivity_files.STORED if connectivity_files.STORED in there else connectivity_files.RECOMPUTED
    part = styles.only(table, "batch_norm", usual if batch_norm is None else batch_norm)
    return part if split is None else styles.only(part, "split", split)


def _splits(table: Table) -> list[str]:
    return sorted(set(table["split"]))
