"""Linear mode connectivity of a run's networks: the error barriers that `connecting.connect` measured, and figures."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np

from lottery.errors import unknown
from lottery.figures import layout, style
from lottery.figures.record import Analysis
from lottery.formatting import counted, ends, percent, ranges
from lottery.runs import siblings, store
from lottery.runs.siblings import RECOMPUTED, STORED
from lottery.statistics import intervals
from lottery.statistics.barriers import STABLE, error_barrier
from lottery.text_tables import Table, frame

PLACE = ("replicate", "round", "step", "density", "batch_norm")
POINTS = (*PLACE, *siblings.PATH)
BARRIERS = (*PLACE, "split", "ends", "highest", "alpha_highest", "barrier", "stable")
NO_PATH = "no path between two networks is stored yet; `lottery analyze connectivity` measures them"


def points(run: store.Folder) -> Table:
    """Read the networks between two siblings, for every path that is stored of a run.

    Returns:
        A data frame with the columns `POINTS`, sorted by them: ``step`` is k, ``density`` the round's, ``batch_norm``
        "stored" for statistics interpolated like weights, "recomputed" for statistics measured at each point;
        ``alpha`` in [0, 1] goes from the network of order 1 to that of order 2, ``split`` is "train" or "test",
        ``loss`` in nats and ``error`` in [0, 1]. It is empty if nothing is stored. Paths of rounds or networks that are
        incomplete, or were trained again since, are left out; `lottery.runs.verification.verify` names them.
    """
    found = []
    for pair, recomputed in siblings.stored_paths(Path(run), store.read_experiment(run)):
        record, rows = siblings.read_path(pair.path_file(recomputed))
        if not pair.misfit(record["networks"]):
            density = pair.pruned.record["density"]
            place = (pair.replicate, pair.round, pair.step, density, record["batch_norm"])
            found += [(*place, *row) for row in rows]
    table = frame(found, POINTS)
    return table.sort_values(["replicate", "round", "step", "batch_norm", "split", "alpha"], ignore_index=True)


def barriers(points: Table) -> Table:
    """Compute the error barrier of every path in the table of `points`.

    Returns a data frame with the columns `BARRIERS`: for each path and split, what
    `lottery.statistics.barriers.error_barrier` finds.
    """
    by = [*PLACE, "split"]
    rows = [
        dict(zip(by, place, strict=True)) | error_barrier(part["alpha"], part["error"])
        for place, part in points.groupby(by)
    ]
    return frame(rows, BARRIERS)


def sentences(barriers: Table) -> list[str]:
    """Put the barriers of the test error into sentences, by the mean over replicates, with its 95 % interval.

    Returns:
        For the dense network, and each round that several steps were tried of, the earliest step from which it is
        stable; for each step, the smallest density down to which pruned networks are; and what breaks the pattern.
    """
    tested = barriers[barriers["split"] == "test"]
    found = []
    for kind, prefix in ((STORED, ""), (RECOMPUTED, "With the statistics of batches recomputed, ")):
        lines = _means(tested[tested["batch_norm"] == kind])
        for index in sorted({line["round"] for line in lines}):
            tried = [line for line in lines if line["round"] == index]
            if index == 0 or len(tried) > 1:
                found.append(prefix + _by_step(tried, index))
        pruned = [line for line in lines if line["round"]]
        for step in sorted({line["step"] for line in pruned}):
            found.append(prefix + _by_round([line for line in pruned if line["step"] == step], step))
    return [f"{text[0].upper()}{text[1:]}." for text in found]


class Paths(TypedDict, total=False):
    """Which paths `barrier` draws: by default of at most three rounds and steps, evenly apart, or six of one split."""

    split: str | None  # "test" or "train"; both by default
    rounds: Iterable[int] | None  # all of these
    steps: Iterable[int] | None  # all of these
    batch_norm: str | None  # "stored", by default if the table has it, or "recomputed"


def barrier(points: Table, ax: Any = None, **which: Unpack[Paths]) -> Any:
    """Draw the error along the straight line between two siblings, in a panel for each round and split.

    For each step the mean over replicates, in a band from the lowest to the highest. Replicates measured at different
    points are all interpolated linearly at each of these. `which` paths are drawn is told by `Paths`.
    """
    lines = _lines(_chosen(points, **which))
    steps = _sorted(lines, "step")
    looks = dict(zip(steps, style.in_order(len(steps)), strict=True))
    places = _panels(lines)
    ax = style.new_or(ax)
    panels = layout.panels(ax, len(places))
    for panel, (name, index) in zip(panels, places, strict=True):
        own = lines[(lines["round"] == index) & (lines["split"] == name)]
        for step, line in own.groupby("step", sort=True):
            style.band(panel, line["alpha"], line, looks[step], f"step {step}")
        panel.set_title(f"{name}, round {index}, density {own['density'].mean():.3g}", fontsize="small", pad=3)
        panel.grid(alpha=0.25, linewidth=style.thick(0.6))
    # The legend is that of the axes around the panels, which have no lines of their own.
    for step, (color, marker, line) in looks.items():
        ax.plot([], [], color=color, marker=marker, linestyle=line, label=f"step {step}")
    # All panels share the axes of the first.
    style.from_zero(panels[0], lines["high"].max() or 1)
    panels[0].set(xlim=(-0.03, 1.03), xticks=(0, 0.5, 1), xticklabels=("0", "0.5", "1"))
    layout.label_panels(
        ax, panels, "place on the line between the two networks (alpha)", "error (fraction of examples)"
    )
    return layout.finish(ax, lines, "band", above=style.letters(1.3))


def _barrier_caption(points: Table, **which: Unpack[Paths]) -> str:
    part = _chosen(points, **which)
    what = "Error on the straight line between two networks"
    how = "that were trained from the weights of the same step on two orders of the data"
    return f"{what} {how}. {style.replicates(_lines(part), 'band')}{_remark(part)}"


def instability(barriers: Table, ax: Any = None, over: str = "density", batch_norm: str | None = None) -> Any:
    """Draw the error barrier against density, a line for each rewind step, or over ``"step"``, for each of some rounds.

    Means over replicates with bars from the lowest to the highest, train dashed, and a line at `STABLE` show where
    networks become stable. `batch_norm` is as for `barrier`.
    """
    line, spread = _barriers_over(barriers, over, batch_norm)
    ax = style.new_or(ax)
    drawn = _sorted(spread, line)
    for index, (color, marker, _) in zip(drawn, style.in_order(len(drawn)), strict=True):
        own = spread[spread[line] == index]
        for name in _sorted(own, "split"):
            part = own[own["split"] == name]
            look = (color, marker, _DASHES[name])
            style.bars(ax, part[over], part, look, f"{line} {index}, {name}", first=name == "test")
    style.reference(ax, STABLE, f"stable under {100 * STABLE:g} %", ":")
    if over == "density":
        style.density_axis(ax, spread["density"])
    else:
        steps = _sorted(spread, "step")
        least = next((step for step in steps if step), 1)
        # Step 0 has a place on it, as on no logarithmic axis.
        ax.set_xscale("symlog", linthresh=least)
        ax.set_xticks(steps)
        # Matplotlib's own margins are those of a linear axis, and would give a third of this one to negative steps.
        ax.set_xlim(steps[0] / 1.3 or -least / 3, max(1.3 * steps[-1], least / 3))
        style.plain(ax.xaxis)
        ax.set_xlabel("step that both networks share")
    style.from_zero(ax, max(spread["high"].max(), STABLE), spread["low"].min())
    ax.set_ylabel("error barrier (fraction of examples)")
    return layout.finish(ax, spread)


def _instability_caption(barriers: Table, over: str = "density", batch_norm: str | None = None) -> str:
    _, spread = _barriers_over(barriers, over, batch_norm)
    what = f"Error barrier between two networks that were trained from the same step, against {over}"
    means = style.replicates(spread, "bars") + _remark(_selected(barriers, batch_norm))
    return f"{what}; below the dotted line a pair is called stable. {means}"


_DASHES = {"test": "-", "train": "--"}


def _sorted(table: Table, column: str) -> list[Any]:
    return sorted(set(table[column]))


def _panels(table: Table) -> list[tuple[str, int]]:
    """List split and round of each panel; the training split may be measured of some rounds only."""
    return sorted(set(zip(table["split"], table["round"], strict=True)))


def _chosen(
    points: Table,
    split: str | None = None,
    rounds: Iterable[int] | None = None,
    steps: Iterable[int] | None = None,
    batch_norm: str | None = None,
) -> Table:
    """Return the points of the paths that `barrier` draws."""
    part = _selected(points, batch_norm)
    if split is not None:
        part = style.only(part, "split", split)
    part = style.of_rounds(part, rounds, style.MOST // part["split"].nunique())
    return style.of_rounds(part, steps, 3, "step")


def _barriers_over(barriers: Table, over: str, batch_norm: str | None) -> tuple[str, Table]:
    """Return the column that tells the lines of `instability` apart, and their means."""
    if over not in ("density", "step"):
        raise unknown("The x axis of an instability", over, ("density", "step"))
    line, x = ("step", "round") if over == "density" else ("round", "step")
    part = style.of_rounds(_selected(barriers, batch_norm), None, column=line)
    return line, style.spread(part, (line, "split", x), "barrier")


def _selected(table: Table, batch_norm: str | None) -> Table:
    style.check(table, NO_PATH)
    usual = STORED if STORED in set(table["batch_norm"]) else RECOMPUTED
    return style.only(table, "batch_norm", usual if batch_norm is None else batch_norm)


def _remark(part: Table) -> str:
    recomputed = RECOMPUTED in set(part["batch_norm"])
    return " BatchNorm statistics were recomputed at each point." if recomputed else ""


def _lines(points: Table) -> Table:
    """Average the errors over replicates, each interpolated at the points of any of them."""
    import pandas as pd

    columns = ["replicate", "round", "step", "density", "split"]
    found = []
    for _, part in points.groupby(["round", "step", "split"]):
        # A replicate may have been measured at more points than another.
        alphas = np.unique(part["alpha"])
        for _, line in part.sort_values("alpha").groupby("replicate"):
            errors = np.interp(alphas, line["alpha"], line["error"])
            found.append(pd.DataFrame({**line[columns].iloc[0].to_dict(), "alpha": alphas, "error": errors}))
    return style.spread(pd.concat(found, ignore_index=True), ("round", "step", "split", "alpha"), "error")


def _means(part: Table) -> list[dict[str, Any]]:
    """Average the barrier over replicates, for each round and step; ``text`` has its interval."""
    lines = []
    for (index, step), group in part.groupby(["round", "step"]):
        density = group["density"].mean()
        mean, low, high = intervals.mean_interval(group["barrier"].tolist())
        text = counted(len(group), "replicate")
        if math.isfinite(low):
            text += f", 95 % interval {ends(100 * low, 100 * high, '.2f')} %"
            if low < STABLE <= high:
                text += f", which goes {'above' if mean < STABLE else 'below'} {100 * STABLE:g} %"
        lines.append({
            "round": int(index), "step": int(step), "density": density, "mean": mean, "stable": mean < STABLE,
            "where": f"round {index} (density {percent(density)})", "text": f"{100 * mean:.2f} % ({text})",
        })  # fmt: skip
    return lines


def _by_step(tried: list[dict[str, Any]], index: int) -> str:
    who = "the dense network" if index == 0 else tried[0]["where"]
    first = next((line for line in tried if line["stable"]), None)
    if first is None:
        lowest = min(tried, key=lambda line: line["mean"])
        steps = ", ".join(str(line["step"]) for line in tried)
        at = f" from step {lowest['step']}, the lowest," if len(tried) > 1 else ""
        return f"{who} is not stable at any step tried ({steps}): its test-error barrier{at} is {lowest['text']}"
    not_later = [line["step"] for line in tried if line["step"] > first["step"] and not line["stable"]]
    but = f", but from {ranges(not_later, 'step')} it is not" if not_later else ""
    return f"{who} is stable from step {first['step']} on: its test-error barrier is {first['text']}{but}"


def _by_round(pruned: list[dict[str, Any]], step: int) -> str:
    best = min((line for line in pruned if line["stable"]), key=lambda line: line["density"], default=None)
    if best is None:
        lowest = min(pruned, key=lambda line: line["mean"])
        shown = f"{lowest['where']} has the lowest test-error barrier, {lowest['text']}"
        return f"rewound to step {step}, no pruned network tried is stable: {shown}"
    unstable = [line["round"] for line in pruned if not line["stable"]]
    but = f"; not stable: {ranges(unstable, 'round')}" if unstable else ""
    shown = f"at {best['where']} the test-error barrier is {best['text']}"
    return f"rewound to step {step}, networks are stable down to density {percent(best['density'])}: {shown}{but}"


def _stored_barriers(run: store.Folder) -> Table:
    return barriers(points(run))


def _barrier_height(points: Table, width: float, **which: Unpack[Paths]) -> float:
    across, down = layout.grid(len(_panels(_chosen(points, **which))), width)
    return min(max(0.85 * width / across, 0.32 * width), 0.5 * width) * down + style.letters(2)


def _instability_views(barriers: Table) -> list[dict[str, Any]]:
    """List figures over density and over steps, of which there is more than one."""
    found = []
    for kind, part in barriers.groupby("batch_norm"):
        several = [over for over in ("density", "step") if part[over].nunique() > 1]
        found += [{"batch_norm": kind, "over": over} for over in several]
    return found


CONNECTIVITY = Analysis(
    _stored_barriers,
    None,
    "Error barriers between two networks trained from the same weights on two orders of the data.",
    columns=("ends", "highest", "barrier"),
    keys=("batch_norm", "step", "split"),
)

BARRIER = Analysis(
    points,
    barrier,
    "Error on the straight line between two networks, for some rounds and steps.",
    height=_barrier_height,
    chapter="Connectivity",
    caption=_barrier_caption,
    views=lambda points: [{"batch_norm": kind} for kind in _sorted(points, "batch_norm")],
    missing="Linear mode connectivity was not measured; `lottery analyze connectivity` measures it.",
    title="Error between two networks",
)

INSTABILITY = Analysis(
    _stored_barriers,
    instability,
    "Error barriers against density.",
    chapter="Connectivity",
    caption=_instability_caption,
    views=_instability_views,
    title="Error barriers",
)
