"""The distribution of the start weights that survive, round by round."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from lottery.errors import LotteryError
from lottery.figures import layout, style
from lottery.figures.record import Analysis
from lottery.runs import store
from lottery.runs.stored import stored_rounds
from lottery.text_tables import Table, frame

COLUMNS = ("replicate", "round", "density", "weight", "low", "high", "count")


def table(run: store.Folder, rounds: Iterable[int] | None = None, num_bins: int = 80) -> Table:
    """Make histograms of the start weights of the entries that survive.

    Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635, show them in their appendix: the start weights of a winning
    ticket are not distributed as they were drawn.

    Returns:
        A data frame with the columns `COLUMNS`, a row for each bin, of the main chain: ``count`` survivors of
        ``weight`` started from ``low`` to ``high``; only the last bin includes its high end. The `num_bins` bins of a
        weight, at least 1, have the same width, from the lowest to the highest start of any survivor in all those
        rounds and replicates. The start of a survivor is its value before training in this round: the initial or the
        rewound value. No bin counts values that are not finite.
    """
    if num_bins < 1:
        raise LotteryError(f"num_bins must be a whole number from 1, not {num_bins!r}.")
    starts = []
    ends: dict[str, tuple[float, float]] = {}
    for stored in stored_rounds(run, rounds, branches=False):
        for name, mask in stored.masks.items():
            values = stored.masked_start[name][mask]
            values = values[np.isfinite(values)]
            starts.append((stored.labels, name, values))
            low, high = ends.get(name, (np.inf, -np.inf))
            ends[name] = (float(values.min(initial=low)), float(values.max(initial=high)))
    # Only now are the ends of all rounds known, between which the bins lie.
    rows = []
    for (replicate, _, index, density), name, values in starts:
        low, high = ends[name]
        if low > high:  # no entry of it survives anywhere
            low, high = 0.0, 0.0
        counts, edges = np.histogram(values.astype(np.float64), num_bins, (low, high))
        bins = zip(edges[:-1], edges[1:], counts, strict=True)
        rows += [(replicate, index, density, name, low, high, count) for low, high, count in bins]
    return frame(rows, COLUMNS)


_ENOUGH, _FEWEST_BINS = 100, 20


def figure(survivors: Table, ax: Any = None, weight: str | None = None, rounds: Iterable[int] | None = None) -> Any:
    """Draw the probability density of the start weights that each round keeps.

    By default of the first weight, for at most three rounds, evenly apart: for each a step line, the mean over
    replicates, in a band from the lowest to the highest.
    """
    points, weight, end = _points(survivors, weight, rounds)
    ax = style.new_or(ax)
    for label, line, look in style.by_round(points):
        # Steps are drawn from the left edge of each bin, and the last has a right edge, too.
        closed = line.iloc[[*range(len(line)), -1]].reset_index(drop=True)
        closed.loc[len(line), "edge"] = end
        style.band(ax, closed["edge"], closed, look, label, drawstyle="steps-post")
    ax.set(ylim=(0, None), xlabel=f"start weight of {weight}", ylabel="probability density of those kept")
    return layout.finish(ax, points, "band")


def _caption(survivors: Table, weight: str | None = None, rounds: Iterable[int] | None = None) -> str:
    points, weight, _ = _points(survivors, weight, rounds)
    text = f"Distribution of the start weights of {weight} that survive. {style.replicates(points, 'band')}"
    is_empty = points["mean"].isna().any()
    return f"{text} A round without a line keeps none of them." if is_empty else text


def _points(survivors: Table, weight: str | None, rounds: Iterable[int] | None) -> tuple[Table, str, float]:
    """Return the mean probability density of each round and bin of a weight, its name, and the end of the last bin."""
    part, weight = style.of_weight(survivors, weight)
    # More rounds, on top of each other, cannot be read.
    part = _merged(style.of_rounds(part, rounds, most=3))
    kept = part.groupby(["replicate", "round"])["count"].transform("sum")
    # A round that keeps nothing has no density.
    probability = part["count"] / kept.where(kept > 0) / (part["high"] - part["low"])
    points = style.spread(part.assign(probability=probability, edge=part["low"]), ("round", "edge"), "probability")
    return points, weight, part["high"].max()


def _merged(table: Table) -> Table:
    """Merge neighbouring bins, the same for all, until those of the smallest network are filled or few are left."""
    edges = sorted(set(table["low"]))
    smallest = table.groupby(["replicate", "round"])["count"].sum().min()
    factors = [num for num in range(1, len(edges) + 1) if len(edges) % num == 0 and len(edges) // num >= _FEWEST_BINS]
    together = next((num for num in factors if smallest * num >= _ENOUGH * len(edges)), max(factors, default=1))
    place = table["low"].map({edge: index // together for index, edge in enumerate(edges)})
    groups = table.assign(place=place).groupby(["replicate", "round", "density", "place"], as_index=False)
    return groups.agg(low=("low", "min"), high=("high", "max"), count=("count", "sum"))


INITIAL_WEIGHTS = Analysis(
    table,
    figure,
    "Distribution of the start weights that survive, for some rounds.",
    chapter="Layers",
    caption=_caption,
    views=style.each_weight,
    title="Start weights that survive",
)
