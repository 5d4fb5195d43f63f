"""Test accuracy and early-stop step of every network against density."""

from pathlib import Path
from typing import Any

from lottery.analysis import style
from lottery.analysis.record import Analysis
from lottery.errors import LotteryError
from lottery.runs import results, store
from lottery.runs.results import Table
from lottery.runs.verdicts import MEASURE


def table(run: Path) -> Table:
    """Return the table of `lottery.runs.results.table`, with the experiment's ``num_steps`` in its ``attrs``."""
    rows = results.table(run)
    rows.attrs["num_steps"] = store.read_experiment(run).train.num_steps
    return rows


def figure(rows: Table, ax: Any = None, interval: str = "range", full: bool = False, reference: bool = True) -> Any:
    """Draw test accuracy at the early-stop step against density as the papers do: dense on the left, log axis.

    The ticket and the dense network, with their bars, take at least two fifths of the height. A branch that falls
    deeper leaves the axes at the bottom, with a mark for each of its rounds below and the lowest accuracy in the
    legend. Branches are shifted a little to the side, so that equal points show.

    Args:
        rows: The table of `lottery.runs.results.table`, with at most as many branches as there are `style.STYLES`.
        interval: The bars, a key of `style.INTERVALS`; by default from the lowest to the highest replicate.
        full: Show every point.
        reference: Draw the dense network, round 0 of the first branch, as a line with its bar as a band. If False, as
            for a figure whose branches are the tickets of several runs, every point is shown.
    """
    chains, points = _branches(rows, MEASURE, interval)
    ax = style.new_or(ax)
    for dense in points[points["round"] == 0].to_dict("records")[: int(reference)]:
        ax.axhline(dense["mean"], color="0.35", linewidth=1, linestyle="--", label="dense", zorder=1)
        if dense["replicates"] > 1:
            ax.axhspan(dense["low"], dense["high"], color="0.5", alpha=0.15, linewidth=0, zorder=0)
    bottom, num_below = style.view(ax, points, full or not reference), 0
    for place, (branch, look) in enumerate(chains.items()):
        part = points[points["branch"] == branch]
        below = part[part["mean"] < bottom]
        falls = f"\n(falls to {below['mean'].min():.3g})" if len(below) else ""
        aside, label = style.aside(ax, place, len(chains), points["round"].nunique()), branch + falls
        style.bars(ax, part["density"], part, look, label, first=place == 0, transform=ax.transData + aside)
        if len(below):
            # On the edge, in axes coordinates, with a row for each branch. A line without points, unclipped, would be
            # a speck in the corner of the figure that layouts make room for, so it is not drawn.
            ax.plot(
                below["density"], [0.03 * num_below] * len(below), transform=ax.get_xaxis_transform() + aside,
                color=look[0], marker="v", markersize=5, markerfacecolor="white", linestyle="none", clip_on=False,
                zorder=5, label="_below",
            )  # fmt: skip
            num_below += 1
    style.density_axis(ax, points["density"])
    ax.set_ylabel("test accuracy at the early-stop step")
    if points["mean"].isna().all():
        ax.text(0.5, 0.5, "no accuracy is measured", transform=ax.transAxes, ha="center")
    return style.finish(ax, style.over_replicates(points, "bars", interval))


def early_stop(rows: Table, ax: Any = None, interval: str = "range", num_steps: int | None = None) -> Any:
    """Draw the early-stop step of each trained branch against density, with bars as `figure`.

    A marker is open if the lowest validation loss of a replicate is that of step `num_steps`, by default the
    experiment's ``train.num_steps`` in the table's ``attrs``: longer training might have found a lower one, so the mean
    is a lower bound.
    """
    style.check(rows)
    num_steps = num_steps or rows.attrs.get("num_steps")
    trained = rows[rows["final_train_loss"].notna()]
    chains, points = _branches(trained, "early_stop_step", interval)
    last = trained[trained["early_stop_step"] == num_steps].groupby(["branch", "round"]).size()
    ax = style.new_or(ax)
    for place, (branch, look) in enumerate(chains.items()):
        part = points[points["branch"] == branch]
        style.bars(ax, part["density"], part, look, branch, first=place == 0)
        bound = part[[(branch, index) in last.index for index in part["round"]]]
        if len(bound):
            ax.plot(
                bound["density"], bound["mean"], color=look[0], marker=look[1], markersize=5, linestyle="none",
                markerfacecolor="white", zorder=4, label="_open",
            )  # fmt: skip
    if len(last):
        ax.errorbar([], [], color="black", marker="o", markerfacecolor="white", linestyle="none", label="≥ (last step)")
    style.density_axis(ax, points["density"])
    ax.set(ylim=(0, points["high"].max() * 1.06 + 1e-9), ylabel="early-stop step (lowest validation loss)")
    return style.finish(ax, style.over_replicates(points, "bars", interval))


def _branches(rows: Table, measure: str, interval: str) -> tuple[dict[str, style.Look], Table]:
    """Return a style for each branch, the ticket first, and the means of a measure by branch and round."""
    style.check(rows)
    points = style.spread(rows, ("branch", "round"), measure, interval)
    branches = list(dict.fromkeys(rows["branch"]))
    if len(branches) > (most := len(style.STYLES)):
        raise LotteryError(f"A plot shows at most {most} branches, received {len(branches)}: select some rows.")
    return style.by_name(branches), points


ACCURACY = Analysis(table, figure, "Test accuracy at the early-stop step against density.", chapter="Accuracy")

EARLY_STOP = Analysis(
    table,
    early_stop,
    "Early-stop step, with the lowest validation loss, against density.",
    chapter="Accuracy",
    caption="How soon the validation loss reaches its minimum.",
)
