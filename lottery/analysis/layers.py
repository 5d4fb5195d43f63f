"""The effect of masks on each weight: its density, dead units and inputs, and the entries that each unit keeps."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from lottery.analysis import kernels
from lottery.figures import layout, style
from lottery.figures.record import Analysis
from lottery.runs import store
from lottery.runs.stored import stored_rounds
from lottery.text_tables import Table, frame

COLUMNS = (
    "replicate", "branch", "round", "density", "weight", "size", "kept", "weight_density", "inputs", "units",
    "dead_inputs", "dead_units", "collapsed",
)  # fmt: skip
DEGREE_COLUMNS = ("replicate", "branch", "round", "density", "weight", "side", "degree", "count")


def degrees_of(mask: np.ndarray, groups: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Count the kept entries of each unit and of each input of a weight.

    The last axis of a weight is its units, the axis before it its inputs, as in the kernels of Keras' Dense and
    convolutions; `kernels.arranged` arranges all others so. The axes before those, the places of a convolution's
    kernel, are summed. A weight with one axis has units only. Of several groups, each has as many inputs and units.
    """
    if mask.ndim < 2:
        return mask.reshape(-1).astype(int), np.zeros(0, int)
    inputs, units = mask.shape[-2:]
    by_pair = mask.reshape(-1, inputs, groups, units // groups).sum(axis=0)
    return by_pair.sum(axis=0).ravel(), by_pair.sum(axis=2).T.ravel()


def table(run: store.Folder) -> Table:
    """Describe each weight of each trained network of a run, branches included.

    Returns:
        A data frame with the columns `COLUMNS`, in the order of `lottery.runs.stored.stored_rounds` and of the layers:
        ``density`` is that of the network and ``weight_density`` that of the weight, both in [0, 1]; ``inputs`` and
        ``units`` are their numbers by the rule of `degrees_of`, and dead ones have the degree 0: the output of a dead
        unit is the same for all examples, and no unit reads a dead input. Nothing is kept of a ``collapsed`` weight.
    """
    known = kernels.of_run(run)
    rows = []
    for stored in stored_rounds(run):
        for name, mask in stored.masks.items():
            coming, leaving = degrees_of(*kernels.arranged(name, mask, known))
            kept = int(coming.sum())
            dead = int((leaving == 0).sum()), int((coming == 0).sum())
            sizes = mask.size, kept, kept / mask.size, leaving.size, coming.size
            rows.append((*stored.labels, name, *sizes, *dead, kept == 0))
    return frame(rows, COLUMNS)


def degrees(run: store.Folder, rounds: Iterable[int] | None = None) -> Table:
    """Count the units and inputs of each weight by the number of entries they keep, branches included.

    Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635, show them in their appendix for LeNet's winning tickets.

    Returns:
        A data frame with the columns `DEGREE_COLUMNS`: ``count`` units (``side`` is ``"in"``) or inputs (``"out"``)
        have ``degree`` kept entries; the degrees that occur, in ascending order.
    """
    known = kernels.of_run(run)
    rows = []
    for stored in stored_rounds(run, rounds):
        for name, mask in stored.masks.items():
            by_side = degrees_of(*kernels.arranged(name, mask, known))
            for side, found in zip(("in", "out"), by_side, strict=True):
                counts = enumerate(np.bincount(found).tolist())
                rows += [(*stored.labels, name, side, degree, count) for degree, count in counts if count]
    return frame(rows, DEGREE_COLUMNS)


def summed(degrees: Table) -> Table:
    """Summarise the table of `degrees`: units or inputs, those without an entry, and the entries that each has."""
    keys = ["replicate", "branch", "round", "density", "weight", "side"]
    dead = degrees["count"].where(degrees["degree"] == 0, 0)
    rows = degrees.assign(dead=dead, entries=degrees["degree"] * degrees["count"])
    columns = {"num": ("count", "sum"), "dead": ("dead", "sum"), "least": ("degree", "min")}
    columns |= {"mean": ("entries", "sum"), "most": ("degree", "max")}
    found = rows.groupby(keys, sort=False, as_index=False).agg(**columns)
    return found.assign(mean=found["mean"] / found["num"])


def figure(table: Table, ax: Any = None, branch: str = store.TICKET) -> Any:
    """Draw the density of each weight and of the network against the round, on a logarithmic axis.

    For each weight the mean over replicates with bars from the lowest to the highest, and a cross at the bottom for
    rounds in which a replicate has nothing left of it.
    """
    part = style.only(table, "branch", branch)
    points, network = _points(part)
    ax = style.new_or(ax)
    ax.plot(
        network.index, network, label="the network", color="0.35", linewidth=style.thick(1), linestyle="--", zorder=1
    )
    ax.set_yscale("log", nonpositive="clip")
    # Each line is thinner than the one before and beside it, so that equal densities do not hide each other.
    looks = style.by_name(part["weight"])
    thickest, thinnest = (3, 0.8) if len(looks) <= len(style.STYLES) else (1, 1)
    widths = np.linspace(thickest, thinnest, len(looks))
    # The bar of a weight of which a replicate has nothing left has no end on a logarithmic axis.
    ends = points[["low", "mean"]]
    floor = min(ends[ends > 0].min().min(), network.min())
    ax.set_ylim(floor / (2 if part["collapsed"].any() else 1.15), 1.15)
    for place, (weight, look) in enumerate(looks.items()):
        line = points[points["weight"] == weight]
        left = line[line["mean"] > 0]
        drawn = style.bars(ax, left["round"], left, look, weight).lines[0]
        # Later lines are drawn above earlier ones, so their markers are smaller.
        drawn.set(linewidth=style.thick(widths[place]), markersize=style.thick(3 + widths[place]))
        nothing = sorted(set(part[(part["weight"] == weight) & part["collapsed"]]["round"]))
        # Those of several weights stand above each other.
        height = floor / 1.8 * 1.1 ** (place % 5)
        ax.plot(
            nothing, [height] * len(nothing), color=look[0], marker="x", markersize=style.thick(6),
            markeredgewidth=style.thick(1.8), linestyle="none", label="_collapsed",
        )  # fmt: skip
    if part["collapsed"].any():
        ax.errorbar([], [], color="black", marker="x", markeredgewidth=2, linestyle="none", label="nothing is left")
    style.log_ticks(ax.yaxis)
    ax.margins(x=0.08)
    style.whole_ticks(ax.xaxis)
    ax.set(xlabel="round", ylabel="density (fraction of each weight kept)")
    return layout.finish(ax, points)


def _caption(table: Table, branch: str = store.TICKET) -> str:
    part = style.only(table, "branch", branch)
    points, _ = _points(part)
    of = "the ticket" if branch == store.TICKET else branch
    sentences = [
        f"Density of each weight of {of} by round; dashed: of the whole network.",
        style.replicates(points, "bars"),
    ]
    if part["collapsed"].any():
        sentences.append("Crosses mark rounds in which a replicate keeps nothing of a weight.")
    return " ".join(sentences)


def _points(part: Table) -> tuple[Table, Any]:
    """Return the mean density of each weight and round, and that of the network by round."""
    # Beside the mean of the weight's density, `spread` adds that of the network's.
    points = style.spread(part, ("weight", "round"), "weight_density")
    return points, points.groupby("round")["density"].mean()


def degrees_figure(
    table: Table, ax: Any = None, weight: str | None = None, side: str = "in", rounds: Iterable[int] | None = None
) -> Any:
    """Draw the distribution of entries per unit (side ``"in"``) or input (``"out"``): how many keep at most so many.

    By default of the first weight, for at most six rounds, evenly apart: for each a step line, the mean over
    replicates, in a band from the lowest to the highest. Its value at 0 is the fraction of dead units. The x axis
    starts near the fewest entries, and is logarithmic if the most are at least ten times the fewest above 0.
    """
    from matplotlib.ticker import SymmetricalLogLocator

    lines, weight = _degrees_of(table, weight, side, rounds)
    points = _cumulative(lines)
    most = int(lines["degree"].max())
    ax = style.new_or(ax)
    for label, line, look in style.by_round(points):
        # The steps of the line and its end are enough, and make a far smaller SVG.
        steps = line[["mean", "low", "high"]].diff().ne(0).any(axis=1)
        line = line[steps | (line["degree"] == most)]
        style.band(ax, line["degree"], line, look, label, drawstyle="steps-post")
    fewest = lines["degree"].min()
    least = lines[lines["degree"] > 0]["degree"].min()  # NaN if nothing is left
    if most >= 10 * least:
        # A quarter of a tenfold for the part from 0 to the fewest entries, where nothing happens.
        ax.set_xscale("symlog", linthresh=least, linscale=0.25)
        ax.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=least, subs=style.log_places(least, most)))
        style.plain(ax.xaxis)
    else:
        style.whole_ticks(ax.xaxis)
    ax.set_xlim(0.9 * fewest, max(most, 1) * 1.1)
    entries, of = _SIDES[side]
    ax.set(xlabel=f"kept entries that {entries} ({weight})", ylabel=f"fraction of {of} with at most that many")
    return layout.finish(ax, points, "band")


def _degrees_caption(
    table: Table, weight: str | None = None, side: str = "in", rounds: Iterable[int] | None = None
) -> str:
    lines, weight = _degrees_of(table, weight, side, rounds)
    _, of = _SIDES[side]
    what = f"Fraction of the {of} of {weight} that keep at most the number of entries on the x axis."
    return f"{what} {style.replicates(_cumulative(lines), 'band')}"


# The entries of each side of a weight, and whose they are.
_SIDES = {"in": ("come into a unit", "units"), "out": ("leave an input", "inputs")}


def _degrees_of(table: Table, weight: str | None, side: str, rounds: Iterable[int] | None) -> tuple[Table, str]:
    """Return the counts of a weight's degrees in some rounds, and its name."""
    part, weight = style.of_weight(table, weight)
    part = style.of_rounds(style.only(style.only(part, "branch", store.TICKET), "side", side), rounds)
    return part.groupby(["replicate", "round", "density", "degree"], as_index=False)["count"].sum(), weight


def _cumulative(lines: Table) -> Table:
    """Return the mean fraction of units with at most so many entries, by round and degree."""
    networks = ["replicate", "round", "density"]
    counts = lines.pivot_table("count", "degree", networks, fill_value=0)
    # A line goes on where only another round has a degree.
    at_most = counts.reindex(range(counts.index.max() + 1), fill_value=0).cumsum()
    fractions = (at_most / at_most.iloc[-1]).melt(ignore_index=False, value_name="fraction").reset_index()
    return style.spread(fractions, ("round", "degree"), "fraction")


LAYERS = Analysis(
    table,
    figure,
    "Density, dead units and dead inputs of each weight, by round.",
    columns=("weight_density", "kept", "dead_inputs", "dead_units"),
    leave_out=("density", "kept"),
    chapter="Layers",
    caption=_caption,
    title="Density of each layer",
)

DEGREES = Analysis(
    degrees,
    degrees_figure,
    "How many entries each unit (in) and each input (out) of a weight keeps; --csv counts them by degree.",
    columns=("num", "dead", "least", "mean", "most"),
    keys=("side",),
    printed=summed,
    chapter="Layers",
    caption=_degrees_caption,
    views=style.each_weight,
    title="Connections of units",
)
