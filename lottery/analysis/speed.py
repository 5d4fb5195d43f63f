"""How fast tickets learn: the steps to the dense network's lowest validation loss, over its own steps."""

from collections.abc import Mapping
from typing import Any

from lottery.figures import layout, style
from lottery.figures.record import Analysis, NothingToDraw
from lottery.pruning import branches
from lottery.statistics import results
from lottery.statistics.metric import of_dense, transferred
from lottery.text_tables import Table


def figure(rows: Table, ax: Any = None, interval: str = "range", labels: Mapping[str, str] | None = None) -> Any:
    """Draw the share of the dense network's steps that each branch takes to the dense network's lowest validation loss.

    Below the line at 1 a branch is faster than dense. A marker is open if a replicate never has that loss: it counts
    with its last step, so the mean is a lower bound.
    """
    points = _points(rows, interval)
    # Without transfers, as in the figures of accuracy and of the early stop, so that a branch looks alike in all.
    looks = style.by_name(rows[~transferred(rows)]["branch"])
    drawn = {branch: look for branch, look in looks.items() if (points["branch"] == branch).any()}
    ax = style.new_or(ax)
    style.reference(ax, 1)
    style.bounds(ax, points, drawn, labels)
    style.from_zero(ax, max(1, points["high"].max()))
    ax.set_ylabel("share of the steps of dense")
    return layout.finish(ax, points, "bars", interval)


def _caption(rows: Table, interval: str = "range", **_: Any) -> str:
    what = (
        "Steps to the lowest validation loss of the dense network, divided by the steps of the dense network, against "
        "density, the fraction of prunable weights that is kept."
    )
    why = "at least one replicate never reaches this loss"
    return style.caption_of_bounds(_points(rows, interval), what, why, "bars", interval)


def _points(rows: Table, interval: str) -> Table:
    """Average the shares by branch and round; ``bound`` is True where a replicate never has the loss of dense."""
    style.check(rows)
    dense = of_dense(rows).set_index("replicate")["dense_loss_step"]
    if dense.empty:
        raise NothingToDraw("There is nothing to plot: speed is beside the dense network, round 0, which is left out.")
    # What begins with trained weights has no speed of its own.
    trains_on = [branch for branch in set(rows["branch"]) if branches.trains_on(branch, "weights")]
    has_speed = ~transferred(rows) & ~rows["branch"].isin(trains_on)
    trained = rows[(rows["round"] > 0) & rows["final_train_loss"].notna() & has_speed]
    # A dense network that is best before it is trained takes no steps, of which there is no share.
    trained = trained.assign(steps=trained["replicate"].map(dense[dense > 0])).dropna(subset="steps")
    if trained.empty:
        raise NothingToDraw("There is nothing to plot: no pruned round can be compared with the steps of dense.")
    reached = trained["dense_loss_step"]
    shares = reached.fillna(trained["last_step"]) / trained["steps"]
    return style.spread(trained.assign(share=shares, bound=reached.isna()), ("branch", "round"), "share", interval)


SPEED = Analysis(
    results.table,
    figure,
    "Steps to the lowest validation loss of dense, divided by the steps of dense, against density.",
    chapter="Accuracy",
    caption=_caption,
    title="How fast tickets learn",
)
