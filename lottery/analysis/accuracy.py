"""Test accuracy, or loss, and early-stop step of every network against density."""

from collections.abc import Mapping
from typing import Any

from lottery.analysis import costs
from lottery.errors import LotteryError, unknown
from lottery.figures import layout, style
from lottery.figures.record import Analysis
from lottery.runs import store
from lottery.runs.stored import stored_rounds
from lottery.statistics import results
from lottery.statistics.metric import Metric, has_alternative, metric_of, transferred
from lottery.text_tables import Table


def table(run: store.Folder) -> Table:
    """Return the table of `lottery.statistics.results.table`, with the costs of `costs.spent` as columns."""
    networks = list(stored_rounds(run))
    rows = results.rows_of(run, networks)
    spent = costs.spent(run, networks)
    for place, column in enumerate(("spent_steps", "spent_multiply_adds")):
        rows[column] = [spent[stored.labels][place] for stored in networks]
    return rows


BY = ("density", "cost")  # what a figure is drawn against
_LABELS = {
    "density": "density, the fraction of prunable weights that is kept",
    "spent_multiply_adds": "multiply-adds of all trainings that a network takes",
    "spent_steps": "steps of all trainings that a network takes",
}  # of the columns that are on the x axis; of the costs, the first that is known of each network


def figure(
    rows: Table,
    ax: Any = None,
    interval: str = "range",
    full: bool = False,
    reference: bool = True,
    by: str = "density",
    labels: Mapping[str, str] | None = None,
) -> Any:
    """Draw test accuracy at the early-stop step against density as the papers do: dense on the left, log axis.

    The ticket and the dense network, with their bars, take at least two fifths of the height. A branch that falls
    deeper leaves the axes at the bottom, with a mark for each of its rounds below and the lowest accuracy in the
    legend. Branches are shifted a little to the side, so that equal points show. Where the model measures no accuracy,
    the test loss is drawn; then a branch leaves the axes at the top.

    Args:
        rows: The table of `lottery.statistics.results.table`, with at most as many branches as `style.STYLES`.
        interval: The bars, a key of `style.INTERVALS`; by default from the lowest to the highest replicate.
        full: Show every point.
        reference: Draw the dense network, round 0 of the first branch, as a line with its bar as a band. If False, as
            for a figure whose branches are the tickets of several runs, every point is shown.
        by: ``"density"``; or ``"cost"``, the multiply-adds, or else the steps, of all trainings a network takes.
        labels: What the legend calls a branch in place of its name.
    """
    metric = metric_of(rows)
    looks, points = _branches(rows, metric.early_stop, interval)
    points, label_of_x = _placed(rows, points, by)
    called = style.renamed(looks, labels)
    ax = style.new_or(ax)
    named, shape = _draw_dense(ax, points) if reference else ({}, "bars")
    bottom, top = style.view(points, full or not reference, metric.is_loss)
    # Matplotlib would label accuracies near each other by what they have beyond a common number.
    ax.ticklabel_format(axis="y", useOffset=False)
    ax.set_ylim(bottom, top)
    num_outside = 0
    for place, (branch, look) in enumerate(looks.items()):
        part = points[points["branch"] == branch]
        outside = _outside(part, metric, (bottom, top))
        aside = style.aside(ax, place, len(looks), points["round"].nunique())
        label = called[branch]
        # A line without points, unclipped, would be a speck in the corner of the figure that layouts make room for.
        if len(outside):
            worst = outside["mean"].max() if metric.is_loss else outside["mean"].min()
            label += f"\n({'rises' if metric.is_loss else 'falls'} to {worst:.3g})"
            _mark_outside(ax, outside, look[0], 0.03 * num_outside, metric.is_loss, aside)
            num_outside += 1
        style.bars(ax, part["x"], part, look, label, first=place == 0, transform=ax.transData + aside)
    if by == "density":
        style.density_axis(ax, points["x"])
    else:
        style.cost_axis(ax, points["x"], label_of_x)
    ax.set_ylabel(f"{metric.name} at the early-stop step")
    if points["mean"].isna().all():
        ax.text(0.5, 0.5, "no accuracy is measured", transform=ax.transAxes, ha="center")
    return layout.finish(ax, points, shape, interval, named)


def _draw_dense(ax: Any, points: Table) -> tuple[dict[str, Any], str]:
    """Draw the dense network, round 0, as a line and its bar as a band; return what `layout.finish` says of both."""
    rounds = points[points["round"] == 0]
    if rounds.empty:
        return {}, "bars"
    dense = rounds.iloc[0]
    line = style.reference(ax, dense["mean"])
    if dense["replicates"] <= 1 or not dense["finite"]:
        return {}, "bars"
    ax.axhspan(dense["low"], dense["high"], color="0.5", alpha=0.15, linewidth=0, zorder=0)
    return {"dense": (layout.glyph("band"), line)}, _BOTH


def _mark_outside(ax: Any, outside: Table, color: Any, height: float, above: bool, aside: Any) -> None:
    """Mark points that are too bad for the axes at an edge of them, in axes coordinates, a row for each branch."""
    # A label that begins with an underscore is in no legend.
    up, marker, label = (1 - height, "^", "_above") if above else (height, "v", "_below")
    ax.plot(
        outside["x"], [up] * len(outside), transform=ax.get_xaxis_transform() + aside, color=color, marker=marker,
        markersize=style.thick(5), markerfacecolor="white", linestyle="none", clip_on=False, zorder=5, label=label,
    )  # fmt: skip


def _caption(
    rows: Table, interval: str = "range", full: bool = False, reference: bool = True, by: str = "density", **_: Any
) -> str:
    metric = metric_of(rows)
    _, points = _branches(rows, metric.early_stop, interval)
    _, label_of_x = _placed(rows, points, by)
    has_dense = reference and (points["round"] == 0).any()
    sentences = [
        f"{metric.name.capitalize()} at the early-stop step against {label_of_x}.",
        style.replicates(points, _BOTH if has_dense else "bars", interval),
    ]
    known = points[points["mean"].notna()]
    limits = style.view(points, full or not reference, metric.is_loss)
    outside = _outside(known, metric, limits)
    if len(outside):
        edge, beyond = ("top", "above") if metric.is_loss else ("bottom", "below")
        sentences.append(f"Triangles at the {edge} edge stand for points {beyond} it.")
    inside = known.drop(outside.index)
    if (inside["low"] < limits[0]).any() or (inside["high"] > limits[1]).any():
        sentences.append(style.CUT)
    return " ".join(sentences)


_BOTH = "bars and grey band"


def _placed(rows: Table, points: Table, by: str) -> tuple[Table, str]:
    """Add the means of what a figure is drawn against as column ``x``, and say in words what it is."""
    if by not in BY:
        raise unknown("by", by, BY)
    candidates = ["density"] if by == "density" else ["spent_multiply_adds", "spent_steps"]
    # Of a cost that some networks lack, a figure would leave these out without a word.
    known = [column for column in candidates if column in rows and rows[column].notna().all()]
    if not known:
        raise LotteryError("The table has no cost. Read it with lottery.plots.read.")
    means = rows.groupby(["branch", "round"])[known[0]].mean().rename("x")
    return points.join(means, on=["branch", "round"]), _LABELS[known[0]]


def _outside(points: Table, metric: Metric, limits: tuple[float, float]) -> Table:
    """Return the points that are too bad for the axes."""
    return points[points["mean"] > limits[1]] if metric.is_loss else points[points["mean"] < limits[0]]


def _views(rows: Table) -> list[dict[str, str]]:
    """List the figures of the report: one against cost too, where a branch is an alternative with a cost of its own."""
    return [{}, {"by": "cost"}] if has_alternative(rows) else [{}]


def early_stop(rows: Table, ax: Any = None, interval: str = "range", labels: Mapping[str, str] | None = None) -> Any:
    """Draw the early-stop step of each trained branch against density, with bars and shifts as `figure`.

    A marker is open if the lowest validation loss of a replicate is that of its last step: longer training might have
    found a lower one, so the mean is a lower bound.
    """
    looks, points = _steps(rows, interval)
    ax = style.new_or(ax)
    named, shape = _draw_dense(ax, points)
    style.bounds(ax, points, looks, labels)
    # Equal limits are none, where all stop at step 0.
    style.from_zero(ax, points["high"].max() or 1)
    ax.set_ylabel("early-stop step (lowest validation loss)")
    return layout.finish(ax, points, shape, interval, named)


def _early_stop_caption(rows: Table, interval: str = "range", **_: Any) -> str:
    _, points = _steps(rows, interval)
    what = f"Early-stop step, at which the validation loss is lowest, against {_LABELS['density']}."
    why = "in at least one replicate the loss is lowest at the last step"
    shape = _BOTH if (points["round"] == 0).any() else "bars"
    return style.caption_of_bounds(points, what, why, shape, interval)


def _steps(rows: Table, interval: str) -> tuple[dict[str, style.BranchStyle], Table]:
    """Return `_branches` of the early-stop steps; ``bound`` is True where that of a replicate is the last step."""
    style.check(rows)
    trained = rows[rows["final_train_loss"].notna()]
    bounds = trained["early_stop_step"] == trained["last_step"]
    return _branches(trained.assign(bound=bounds), "early_stop_step", interval)


def _branches(rows: Table, measure: str, interval: str) -> tuple[dict[str, style.BranchStyle], Table]:
    """Return a style for each branch, the ticket first, and the means of a measure by branch and round."""
    rows = rows[~transferred(rows)]  # measured on other data
    style.check(rows)
    points = style.spread(rows, ("branch", "round"), measure, interval)
    looks = style.by_name(rows["branch"])
    most = len(style.STYLES)
    if len(looks) > most:
        raise LotteryError(f"A plot shows at most {most} branches, not {len(looks)}. Select some rows.")
    return looks, points


ACCURACY = Analysis(
    table,
    figure,
    "Test accuracy at the early-stop step against density.",
    chapter="Accuracy",
    caption=_caption,
    views=_views,
    title="How good tickets are",
)

EARLY_STOP = Analysis(
    table,
    early_stop,
    "Early-stop step, with the lowest validation loss, against density.",
    chapter="Accuracy",
    caption=_early_stop_caption,
    title="When training stops early",
)
