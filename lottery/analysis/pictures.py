"""Figures of masks: densities by weight, surviving start weights, inputs, overlaps, degrees. No TensorFlow."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from lottery.analysis import styles
from lottery.runs import store
from lottery.runs.results import Table

_UNREAD = "#FFE3F1"  # not of the scale, and paler than all of it, in grey too


_ENOUGH, _FEWEST_BINS = 100, 20


_SIDES = {"in": "come into a unit", "out": "leave an input"}


def layers(table: Table, ax: Any = None, branch: str = store.TICKET) -> Any:
    """Density of each weight against the round, and the network's for comparison.

    Args:
        table: What `lottery.analysis.layers.table` returns.
        ax: Matplotlib axes to draw on; new ones if None.
        branch: Which.

    Returns:
        The axes, their y axis logarithmic: for each weight the mean over replicates with bars from the lowest to the
        highest; a cross at the bottom where nothing is left of it in a replicate.

    Raises:
        LotteryError: The table is empty or has no such branch.
    """
    styles.check(table)
    part = styles.only(table, "branch", branch)
    # The spread adds the network's mean density beside that of the weight.
    points = styles.spread(part, ("weight", "round"), "weight_density")
    ax = styles.new_or(ax)
    network = points.groupby("round")["density"].mean()
    ax.plot(network.index, network, color="0.35", linewidth=1, linestyle="--", label="the network", zorder=1)
    ax.set_yscale("log", nonpositive="clip")
    # Each thinner than the one before and beside it, so that equal densities do not hide one another.
    weights = list(dict.fromkeys(part["weight"]))
    widths = np.linspace(3, 0.8, len(weights)) if len(weights) <= len(styles.STYLES) else np.ones(len(weights))
    floor = min(points[points["mean"] > 0]["mean"].min(), network.min())
    ax.set_ylim(floor / (2 if part["collapsed"].any() else 1.15), 1.15)
    for place, (weight, style) in enumerate(styles.by_name(weights).items()):
        line = points[points["weight"] == weight]
        left = line[line["mean"] > 0]
        aside = ax.transData + styles.aside(ax, place, len(weights), len(network))
        drawn = styles.bars(ax, left["round"], left, style, weight, transform=aside).lines[0]
        drawn.set(linewidth=widths[place], markersize=3 + widths[place])
        nothing = sorted(set(part[(part["weight"] == weight) & part["collapsed"]]["round"]))
        ax.plot(
            nothing, [floor / 1.8] * len(nothing), color=style[0], marker="x", markersize=7, markeredgewidth=2,
            linestyle="none", label="_collapsed", transform=aside,
        )  # fmt: skip
    if part["collapsed"].any():
        ax.errorbar([], [], color="black", marker="x", markeredgewidth=2, linestyle="none", label="nothing is left")
    styles.log_ticks(ax.yaxis)
    ax.margins(x=0.08)
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlabel("round")
    ax.set_ylabel("density (fraction of each weight kept)")
    return styles.finish(ax, styles.said(points, "bars"))


def initial_weights(
    survivors: Table, ax: Any = None, weight: str | None = None, rounds: Iterable[int] | None = None
) -> Any:
    """Which start weights survive: the probability density of those that each round keeps.

    Args:
        survivors: What `lottery.analysis.survivors.table` returns.
        ax: As for `layers`.
        weight: Which; by default the first.
        rounds: Which; by default at most six, evenly.

    Returns:
        The axes: for each round a step line, the mean over replicates, in a band from the lowest to the highest.

    Raises:
        LotteryError: The table is empty or has no such weight or round.
    """
    part, weight = _of_weight(survivors, weight)
    part = _merged(styles.of_rounds(part, rounds))
    kept = part.groupby(["replicate", "round"])["count"].transform("sum")
    width, end = part["high"] - part["low"], part["high"].max()
    # Where nothing is left there is nothing to be dense.
    part = part.assign(probability=part["count"] / kept.where(kept > 0) / width, edge=part["low"])
    points = styles.spread(part.drop(columns=["low", "high"]), ("round", "edge"), "probability")
    ax = styles.new_or(ax)
    for index, line, style in styles.by_round(points):
        closed = line.iloc[[*range(len(line)), -1]].reset_index(drop=True)  # the last bin has a right edge
        closed.loc[len(line), "edge"] = end
        label = f"round {index}, density {line['density'].mean():.3g}"
        styles.band(ax, closed["edge"], closed, style, label, drawstyle="steps-post", markevery=max(1, len(line) // 8))
    ax.set_ylim(0, None)
    ax.set_xlabel(f"start weight of {weight}")
    ax.set_ylabel("probability density of those kept")
    return styles.finish(ax, styles.said(points, "band"))


def inputs(table: Table, ax: Any = None, replicate: int = 1, rounds: Iterable[int] | None = None) -> Any:
    """What a ticket looks at: how many entries of the first weight are kept at each input, or place of the kernel.

    Args:
        table: What `lottery.analysis.inputs.table` returns.
        ax, rounds: As for `initial_weights`.
        replicate: Which.

    Returns:
        The axes: an image for each round, all on one scale from the fewest to the most, logarithmic if that is over
        five times; inputs that nothing reads in a colour apart. Channels of an image are summed, those of a kernel
        stand beside one another.

    Raises:
        LotteryError: The table is empty or has no such replicate or round.
    """
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, LogNorm, Normalize
    from matplotlib.patches import Rectangle
    from matplotlib.transforms import ScaledTranslation, blended_transform_factory

    styles.check(table)
    part = styles.of_rounds(styles.only(table, "replicate", replicate), rounds)
    kernel, channels = part["what"].iloc[0] == "kernel", int(part["channel"].max()) + 1
    images = {index: _image(one, kernel) for index, one in part.groupby("round")}
    num_rows, num_columns = next(iter(images.values())).shape
    ax = styles.new_or(ax)
    across, down, tall, line = arranged(len(images), num_rows, num_columns)
    counts = np.concatenate([image[image > 0] for image in images.values()])
    low, high = (counts.min(), counts.max()) if counts.size else (1, 1)
    scale = LogNorm(low, high) if high > 5 * low else Normalize(min(low, high - 1), high)
    # Without its last tenth, which in grey is as pale as what nothing reads.
    colors = ListedColormap(colormaps["viridis"](np.linspace(0, 0.9, 256))).with_extremes(bad=_UNREAD)
    gap, shown = 0.08 * num_columns, None
    for place, (index, image) in enumerate(images.items()):
        left, top = place % across * (num_columns + gap), place // across * (tall + line + gap)
        shown = ax.imshow(
            np.ma.masked_equal(image, 0), cmap=colors, norm=scale, interpolation="none",
            extent=(left, left + num_columns, top + tall, top),
        )  # fmt: skip
        ax.add_patch(Rectangle((left, top), num_columns, tall, fill=False, edgecolor="0.4", linewidth=0.6))
        for cut in range(num_columns // channels, num_columns, num_columns // channels) if kernel else ():
            ax.plot([left + cut] * 2, [top, top + tall], color="white", linewidth=1.5)
        density = part[part["round"] == index]["density"].iloc[0]
        ax.text(left, top - 0.25 * line, f"round {index}, density {density:.3g}", fontsize=7, va="bottom")
    ax.set_xlim(0, across * (num_columns + gap) - gap)
    ax.set_ylim(down * (tall + line + gap) - line - gap, -line)
    ax.set_axis_off()
    what = "place of the kernel" if kernel else "input"
    # As wide as the images are, and places below them in inches, whatever height that leaves.
    inches = ax.figure.dpi_scale_trans + ScaledTranslation(0, 0, ax.transAxes)
    below = blended_transform_factory(ax.transAxes, inches)
    bar = ax.figure.colorbar(shown, cax=ax.inset_axes((0, -0.25, 1, 0.12), transform=below), orientation="horizontal")
    bar.set_label(f"kept entries of each {what}" + (" (log)" if high > 5 * low else ""), fontsize=8)
    if high > 5 * low:
        styles.log_ticks(bar.ax.xaxis)
    else:
        bar.ax.xaxis.get_major_locator().set_params(integer=True)
    summed = ", channels summed" if channels > 1 and not kernel else ""
    beside = f", {channels} channels side by side" if channels > 1 and kernel else ""
    ax.set_title(f"{part['weight'].iloc[0]}, replicate {replicate}{summed}{beside}", fontsize=9)
    if any((image == 0).any() for image in images.values()):
        ax.add_patch(Rectangle((0, 0), 0, 0, facecolor=_UNREAD, edgecolor="0.4", label="nothing is kept: not read"))
        ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.6), bbox_transform=below)
    return ax


def degrees(
    table: Table, ax: Any = None, weight: str | None = None, side: str = "in", rounds: Iterable[int] | None = None
) -> Any:
    """How many entries each unit keeps: the fraction of units that have at most so many.

    Args:
        table: What `lottery.analysis.layers.degrees` returns.
        ax, weight, rounds: As for `initial_weights`.
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

    part, weight = _of_weight(table, weight)
    part = styles.of_rounds(styles.only(styles.only(part, "branch", "ticket"), "side", side), rounds)
    lines = part.groupby(["replicate", "round", "density", "degree"], as_index=False)["count"].sum()
    most = int(lines["degree"].max())
    chains = [
        one.set_index("degree")["count"].reindex(range(most + 1), fill_value=0).cumsum().div(one["count"].sum())
        .rename("fraction").reset_index().assign(replicate=replicate, round=index, density=density)
        for (replicate, index, density), one in lines.groupby(["replicate", "round", "density"])
    ]  # fmt: skip
    points = styles.spread(pd.concat(chains), ("round", "degree"), "fraction")
    ax = styles.new_or(ax)
    for index, line, style in styles.by_round(points):
        # Only where the line steps, of which an SVG is far smaller, and its end.
        steps = line[["mean", "low", "high"]].diff().ne(0).any(axis=1)
        line = line[steps | (line["degree"] == most)]
        label = f"round {index}, density {line['density'].mean():.3g}"
        styles.band(ax, line["degree"], line, style, label, drawstyle="steps-post")
    fewest = lines["degree"].min()
    least = lines[lines["degree"] > 0]["degree"].min()  # NaN where nothing is left
    if most >= 10 * least:
        ax.set_xscale("symlog", linthresh=least)
        ax.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=least, subs=(1, 2, 5)))
        styles.plain(ax.xaxis)
    else:
        ax.xaxis.get_major_locator().set_params(integer=True)
    ax.set_xlim(0.9 * fewest, max(most, 1) * 1.1)
    ax.set_xlabel(f"kept entries that {_SIDES[side]} ({weight})")
    ax.set_ylabel(f"fraction of {'units' if side == 'in' else 'inputs'} with at most so many")
    return styles.finish(ax, styles.said(points, "band"))


def arranged(num: int, rows: int, columns: int) -> tuple[int, int, float, float]:
    """Images of `inputs` in a row and in a column; of each the height, and that of the line above it, in places."""
    if rows * 8 < columns:  # a strip, such as a row of inputs that are no image: drawn taller than it is
        return 1, num, columns / 25, columns / 25
    across = num if num <= 3 else -(-num // 2)
    return across, -(-num // across), rows, 0.04 * across * columns


def _image(table: Table, kernel: bool) -> np.ndarray:
    """Kept entries at each place, shape (rows, columns): channels beside one another for a kernel, otherwise summed."""
    shape = tuple(int(table[axis].max()) + 1 for axis in ("row", "column", "channel"))
    kept = np.zeros(shape)
    kept[table["row"], table["column"], table["channel"]] = table["kept"]
    return np.concatenate(np.moveaxis(kept, 2, 0), axis=1) if kernel else kept.sum(axis=2)


def _merged(table: Table) -> Table:
    """Bins run together, the same for all, until the smallest network has enough entries in each, or few are left."""
    edges = sorted(set(table["low"]))
    smallest = table.groupby(["replicate", "round"])["count"].sum().min()
    factors = [one for one in range(1, len(edges) + 1) if len(edges) % one == 0 and len(edges) // one >= _FEWEST_BINS]
    together = next((one for one in factors if smallest * one >= _ENOUGH * len(edges)), max(factors, default=1))
    place = table["low"].map({edge: index // together for index, edge in enumerate(edges)})
    groups = table.assign(place=place).groupby(["replicate", "round", "density", "place"], as_index=False)
    return groups.agg(low=("low", "min"), high=("high", "max"), count=("count", "sum"))


def _of_weight(table: Table, weight: str | None) -> tuple[Table, str]:
    styles.check(table)
    weight = table["weight"].iloc[0] if weight is None else weight
    return styles.only(table, "weight", weight), str(weight)
