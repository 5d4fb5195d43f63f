"""What masks leave of each weight: density, units and inputs that are dead, and how many entries each has kept."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from lottery.analysis import style
from lottery.analysis.record import Analysis
from lottery.runs import store
from lottery.runs.results import Table

COLUMNS = (
    "replicate", "branch", "round", "density", "weight", "size", "kept", "weight_density", "inputs", "units",
    "dead_inputs", "dead_units", "collapsed",
)  # fmt: skip


DEGREE_COLUMNS = ("replicate", "branch", "round", "density", "weight", "side", "degree", "count")


def degrees_of(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many entries are kept into each unit of a weight, and out of each of its inputs.

    The last axis of a weight are its units, the one before it its inputs, as in the kernels of Keras' Dense and
    convolutions; the axes before those, the places of a convolution's kernel, are summed over. A weight of one axis has
    units only. (In a depthwise kernel the last axis is the multiplier, in a transposed convolution it is the input:
    there units and inputs mean those axes.)

    Args:
        mask: Boolean, of the weight's shape.

    Returns:
        Two arrays of whole numbers: a degree for each unit, and one for each input.
    """
    if mask.ndim < 2:
        return mask.reshape(-1).astype(int), np.zeros(0, int)
    by_pair = mask.reshape(-1, *mask.shape[-2:]).sum(axis=0)
    return by_pair.sum(axis=0), by_pair.sum(axis=1)


def table(run: Path) -> Table:
    """One row for each weight of each trained network of a run, branches included.

    Args:
        run: The run's folder.

    Returns:
        A data frame with the columns `COLUMNS`, in the order of `lottery.runs.store.rounds` and of the layers:
        ``density`` is that of the network and ``weight_density`` that of the weight, both in [0, 1]; ``inputs`` and
        ``units`` are how many there are by the rule of `degrees_of`, the dead ones those of degree 0 (a dead unit
        gives the same, by its bias alone, whatever the example; a dead input is not read); ``collapsed`` is whether
        nothing at all is kept of the weight.

    Raises:
        LotteryError: It is not a run, or a file is damaged.
    """
    import pandas as pd

    rows = []
    for stored in store.rounds(run):
        for name, mask in stored.masks.items():
            coming, leaving = degrees_of(mask)
            kept = int(coming.sum())
            sides = (leaving.size, coming.size, int((leaving == 0).sum()), int((coming == 0).sum()))
            rows.append((*stored.labels, name, mask.size, kept, kept / mask.size, *sides, kept == 0))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def degrees(run: Path, rounds: Iterable[int] | None = None) -> Table:
    """How many units and inputs have how many kept entries, in each weight, branches included.

    Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635, show them in their appendix for LeNet's winning tickets.

    Args:
        run: The run's folder.
        rounds: Which rounds; all if None.

    Returns:
        A data frame with the columns `DEGREE_COLUMNS`: ``count`` units (``side`` is ``"in"``) or inputs (``"out"``)
        have ``degree`` kept entries; the degrees that occur, in ascending order.

    Raises:
        LotteryError: As `lottery.runs.store.rounds`, or a file is damaged.
    """
    import pandas as pd

    rows = []
    for stored in store.rounds(run, rounds):
        for name, mask in stored.masks.items():
            for side, found in zip(("in", "out"), degrees_of(mask), strict=True):
                values, counts = np.unique(found, return_counts=True)
                pairs = zip(values.tolist(), counts.tolist(), strict=True)
                rows += [(*stored.labels, name, side, degree, count) for degree, count in pairs]
    return pd.DataFrame(rows, columns=list(DEGREE_COLUMNS))


def summed(degrees: Table) -> Table:
    """The degrees of each weight and side of each network in one row.

    Args:
        degrees: What `degrees` returns, or some of its rows.

    Returns:
        A data frame with ``replicate, branch, round, density, weight, side``; ``num`` units or inputs, ``dead`` of them
        without an entry; and the ``least``, ``mean`` and ``most`` entries that one has.
    """
    keys = ["replicate", "branch", "round", "density", "weight", "side"]
    rows = degrees.assign(
        entries=degrees["degree"] * degrees["count"], dead=degrees["count"].where(degrees["degree"] == 0, 0)
    )
    found = rows.groupby(keys, sort=False, as_index=False).agg(
        num=("count", "sum"), dead=("dead", "sum"), entries=("entries", "sum"), least=("degree", "min"),
        most=("degree", "max"),
    )  # fmt: skip
    return found.assign(mean=found["entries"] / found["num"])[[*keys, "num", "dead", "least", "mean", "most"]]


_SIDES = {"in": "come into a unit", "out": "leave an input"}


def figure(table: Table, ax: Any = None, branch: str = store.TICKET) -> Any:
    """Density of each weight against the round, and the network's for comparison.

    Args:
        table: What `table` returns.
        ax: Matplotlib axes to draw on; new ones if None.
        branch: Which.

    Returns:
        The axes, their y axis logarithmic: for each weight the mean over replicates with bars from the lowest to the
        highest; a cross at the bottom where nothing is left of it in a replicate.

    Raises:
        LotteryError: The table is empty or has no such branch.
    """
    style.check(table)
    part = style.only(table, "branch", branch)
    # The spread adds the network's mean density beside that of the weight.
    points = style.spread(part, ("weight", "round"), "weight_density")
    ax = style.new_or(ax)
    network = points.groupby("round")["density"].mean()
    ax.plot(network.index, network, color="0.35", linewidth=1, linestyle="--", label="the network", zorder=1)
    ax.set_yscale("log", nonpositive="clip")
    # Each thinner than the one before and beside it, so that equal densities do not hide one another.
    weights = list(dict.fromkeys(part["weight"]))
    widths = np.linspace(3, 0.8, len(weights)) if len(weights) <= len(style.STYLES) else np.ones(len(weights))
    floor = min(points[points["mean"] > 0]["mean"].min(), network.min())
    ax.set_ylim(floor / (2 if part["collapsed"].any() else 1.15), 1.15)
    for place, (weight, look) in enumerate(style.by_name(weights).items()):
        line = points[points["weight"] == weight]
        left = line[line["mean"] > 0]
        aside = ax.transData + style.aside(ax, place, len(weights), len(network))
        drawn = style.bars(ax, left["round"], left, look, weight, transform=aside).lines[0]
        drawn.set(linewidth=widths[place], markersize=3 + widths[place])
        nothing = sorted(set(part[(part["weight"] == weight) & part["collapsed"]]["round"]))
        ax.plot(
            nothing, [floor / 1.8] * len(nothing), color=look[0], marker="x", markersize=7, markeredgewidth=2,
            linestyle="none", label="_collapsed", transform=aside,
        )  # fmt: skip
    if part["collapsed"].any():
        ax.errorbar([], [], color="black", marker="x", markeredgewidth=2, linestyle="none", label="nothing is left")
    style.log_ticks(ax.yaxis)
    ax.margins(x=0.08)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel("round")
    ax.set_ylabel("density (fraction of each weight kept)")
    return style.finish(ax, style.said(points, "bars"))


def degrees_figure(
    table: Table, ax: Any = None, weight: str | None = None, side: str = "in", rounds: Iterable[int] | None = None
) -> Any:
    """How many entries each unit keeps: the fraction of units that have at most so many.

    Args:
        table: What `degrees` returns.
        ax: As for `figure`.
        weight: Which; by default the first.
        rounds: Which; by default at most six, evenly.
        side: ``"in"``, what comes into each unit, or ``"out"``, what leaves each input.

    Returns:
        The axes: for each round a step line, the mean over replicates, in a band from the lowest to the highest. At 0
        it is the fraction of units that are dead. The x axis starts near the fewest, and is logarithmic where the most
        is ten times the fewest above 0 or more.

    Raises:
        LotteryError: The table is empty or has no such weight, side or round.
    """
    import pandas as pd
    from matplotlib.ticker import SymmetricalLogLocator

    part, weight = style.of_weight(table, weight)
    part = style.of_rounds(style.only(style.only(part, "branch", "ticket"), "side", side), rounds)
    lines = part.groupby(["replicate", "round", "density", "degree"], as_index=False)["count"].sum()
    most = int(lines["degree"].max())
    chains = [
        one.set_index("degree")["count"].reindex(range(most + 1), fill_value=0).cumsum().div(one["count"].sum())
        .rename("fraction").reset_index().assign(replicate=replicate, round=index, density=density)
        for (replicate, index, density), one in lines.groupby(["replicate", "round", "density"])
    ]  # fmt: skip
    points = style.spread(pd.concat(chains), ("round", "degree"), "fraction")
    ax = style.new_or(ax)
    for index, line, look in style.by_round(points):
        # Only where the line steps, of which an SVG is far smaller, and its end.
        steps = line[["mean", "low", "high"]].diff().ne(0).any(axis=1)
        line = line[steps | (line["degree"] == most)]
        label = f"round {index}, density {line['density'].mean():.3g}"
        style.band(ax, line["degree"], line, look, label, drawstyle="steps-post")
    fewest = lines["degree"].min()
    least = lines[lines["degree"] > 0]["degree"].min()  # NaN where nothing is left
    if most >= 10 * least:
        ax.set_xscale("symlog", linthresh=least)
        ax.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=least, subs=(1, 2, 5)))
        style.plain(ax.xaxis)
    else:
        ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlim(0.9 * fewest, max(most, 1) * 1.1)
    ax.set_xlabel(f"kept entries that {_SIDES[side]} ({weight})")
    ax.set_ylabel(f"fraction of {'units' if side == 'in' else 'inputs'} with at most so many")
    return style.finish(ax, style.said(points, "band"))


def _views(degrees: Table) -> list[tuple[dict[str, str], str]]:
    names = style.some_weights(degrees)
    return [({"weight": name}, f"{name}: how many entries its units keep.") for name in names]


LAYERS = Analysis(
    table,
    figure,
    "Density, dead units and dead inputs of each weight, by round.",
    columns=("weight_density", "kept", "dead_inputs", "dead_units"),
    chapter="Layers",
    caption="Which weights the pruning takes from.",
)

DEGREES = Analysis(
    degrees,
    degrees_figure,
    "How many entries each unit (in) and each input (out) of a weight keeps; --csv counts them by degree.",
    columns=("num", "dead", "least", "mean", "most"),
    keys=("side",),
    printed=summed,
    chapter="Layers",
    views=_views,
)
