"""Figures of paths between networks and of their error barriers."""

from collections.abc import Iterable
from typing import Any

from lottery.analysis import connectivity, connectivity_files, style
from lottery.errors import unknown
from lottery.runs import results
from lottery.runs.results import Table

NO_PATH = "no path between two networks is stored yet; `lottery analyze connectivity` measures them"


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
        ax: Matplotlib axes to draw on; new ones if None.
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
    part = style.of_rounds(style.of_rounds(part, rounds, 3), steps, 3, "step")
    lines = style.spread(_together(part), ("round", "step", "split", "alpha"), "error")
    heights = connectivity.barriers(part).groupby(["round", "step", "split"])["barrier"].mean()
    splits = _splits(part)
    pairs = sorted(set(zip(lines["round"], lines["step"], strict=True)))
    ax = style.new_or(ax)
    for (index, step), look in zip(pairs, style.in_order(len(pairs)), strict=True):
        for name in splits:
            line = lines[(lines["round"] == index) & (lines["step"] == step) & (lines["split"] == name)]
            style.band(ax, line["alpha"], line, look, "_path", linestyle="-" if name == "test" else "--")
        measured = ", ".join(f"{name} {heights[index, step, name]:.4f}" for name in splits)
        color, marker, _ = look
        ax.plot([], [], color=color, marker=marker, label=f"round {index}, step {step}\nbarrier: {measured}")
    ax.set_ylim(0, None)
    ax.set_xlabel("place on the line between the two networks (alpha)")
    ax.set_ylabel("error (fraction of examples)")
    return style.finish(ax, style.said(lines, "band") + _dashed(part) + _recomputed(part))


def instability(barriers: Table, ax: Any = None, over: str = "density", batch_norm: str | None = None) -> Any:
    """The error barrier against density or against the rewind step: where networks become stable.

    Args:
        barriers: What `lottery.analysis.connectivity.barriers` returns.
        ax: As for `barrier`.
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
    part = style.of_rounds(part, None, column=line)
    points = style.spread(part, (line, "split", x), "barrier")
    ax = style.new_or(ax)
    there = sorted(set(points[line]))
    for index, (color, marker, _) in zip(there, style.in_order(len(there)), strict=True):
        for name in _splits(part):
            of = points[(points[line] == index) & (points["split"] == name)]
            look = (color, marker, "-" if name == "test" else "--")
            style.bars(ax, of[over], of, look, f"{line} {index}, {name}", first=name == "test")
    ax.axhline(connectivity.STABLE, color="0.35", linewidth=1, linestyle=":", label="stable under 2 %", zorder=1)
    if over == "density":
        style.density_axis(ax, points["density"])
    else:
        later = points[points["step"] > 0]["step"]
        ax.set_xscale("symlog", linthresh=later.min() if len(later) else 1)
        style.plain(ax.xaxis)
        ax.set_xlabel("step that both networks share")
    ax.set_ylim(min(0, points["low"].min() * 1.1), max(points["high"].max(), connectivity.STABLE) * 1.1)
    ax.set_ylabel("error barrier (fraction of examples)")
    return style.finish(ax, style.said(points, "bars") + _dashed(part) + _recomputed(part))


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
    style.check(table, NO_PATH)
    there = set(table["batch_norm"])
    usual = connectivity_files.STORED if connectivity_files.STORED in there else connectivity_files.RECOMPUTED
    part = style.only(table, "batch_norm", usual if batch_norm is None else batch_norm)
    return part if split is None else style.only(part, "split", split)


def _splits(table: Table) -> list[str]:
    return sorted(set(table["split"]))


def barrier_views(points: Table) -> list[tuple[dict[str, Any], str]]:
    """A figure for each kind of BatchNorm statistics."""
    caption = "Error on the straight line between two networks of the same start and two orders of the data."
    rounds = results.chosen(points["round"], style.MOST) if len(points) else []
    kinds = sorted(set(points["batch_norm"]))
    return [({"batch_norm": kind, "rounds": rounds}, caption + _anew(kind)) for kind in kinds]


def instability_views(barriers: Table) -> list[tuple[dict[str, Any], str]]:
    """A figure over density and one over steps, where there is more than one of them."""
    return [
        ({"batch_norm": kind, "over": over}, f"Error barriers by {over}.{_anew(kind)}")
        for kind, part in barriers.groupby("batch_norm")
        for over in ("density", "step")
        if part[over].nunique() > 1
    ]


def _anew(kind: str) -> str:
    return "" if kind == connectivity_files.STORED else " BatchNorm statistics were computed anew at each point."
