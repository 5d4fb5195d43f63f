"""Tidy tables to figures: accuracy and early stop here, and every kind by name. Nothing here needs TensorFlow."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lottery import files
from lottery.analysis import ANALYSES, connectivity, pictures, styles
from lottery.analysis.connectivity import barrier, instability
from lottery.analysis.landscapes import distance, learning_curves
from lottery.analysis.overlaps import overlap
from lottery.analysis.pictures import degrees, initial_weights, inputs, layers
from lottery.analysis.styles import STYLES
from lottery.errors import LotteryError, unknown
from lottery.runs import results, store
from lottery.runs.results import Table
from lottery.runs.verdicts import MEASURE

BARS = styles.INTERVALS


WIDE = (7.2, 4.2)  # inches, with the legend beside the axes


def accuracy(rows: Table, ax: Any = None, interval: str = "range", full: bool = False, reference: bool = True) -> Any:
    """Test accuracy at the early-stop step against density, as the papers draw it: dense on the left, log axis.

    The ticket and the dense network have two fifths of the height or more, with their bars. A branch that falls deeper
    leaves at the bottom: a mark stands there for each of its rounds below, and the legend says how far it falls.
    Branches stand a little to the side of the first, so that equal points show.

    Args:
        rows: What `lottery.runs.results.table` returns.
        ax: Matplotlib axes to draw on; new ones if None.
        interval: What the bars are, a key of `BARS`: by default from the lowest to the highest replicate.
        full: Show every point instead.
        reference: Draw the dense network, round 0 of the first branch. Without it, as where each branch is the ticket
            of another run, every point is shown.

    Returns:
        The axes: for each branch the mean over replicates with its bars, and the dense network's mean as a line with
        its bar as a band.

    Raises:
        LotteryError: The table is empty, the interval unknown, or there are more branches than `STYLES`.
    """
    chains, points = _branches(rows, MEASURE, interval)
    ax = styles.new_or(ax)
    for dense in points[points["round"] == 0].to_dict("records")[: int(reference)]:
        ax.axhline(dense["mean"], color="0.35", linewidth=1, linestyle="--", label="dense", zorder=1)
        if dense["replicates"] > 1:
            ax.axhspan(dense["low"], dense["high"], color="0.5", alpha=0.15, linewidth=0, zorder=0)
    bottom, num_below = styles.view(ax, points, full or not reference), 0
    for place, (branch, style) in enumerate(chains.items()):
        part = points[points["branch"] == branch]
        below = part[part["mean"] < bottom]
        falls = f"\n(falls to {below['mean'].min():.3g})" if len(below) else ""
        aside, label = styles.aside(ax, place, len(chains), points["round"].nunique()), branch + falls
        styles.bars(ax, part["density"], part, style, label, first=place == 0, transform=ax.transData + aside)
        if len(below):
            # On the edge, in axes coordinates: a row for each branch that falls, lest one hides another. A line of no
            # points would do harm: unclipped, it is a speck in the figure's corner that layouts make room for.
            ax.plot(
                below["density"], [0.03 * num_below] * len(below), transform=ax.get_xaxis_transform() + aside,
                color=style[0], marker="v", markersize=5, markerfacecolor="white", linestyle="none", clip_on=False,
                zorder=5, label="_below",
            )  # fmt: skip
            num_below += 1
    styles.density_axis(ax, points["density"])
    ax.set_ylabel("test accuracy at the early-stop step")
    if points["mean"].isna().all():
        ax.text(0.5, 0.5, "no accuracy is measured", transform=ax.transAxes, ha="center")
    return styles.finish(ax, styles.said(points, "bars", interval))


def early_stop(rows: Table, ax: Any = None, interval: str = "range", num_steps: int | None = None) -> Any:
    """The early-stop step against density: how fast each network learns.

    Args:
        rows: What `lottery.runs.results.table` returns.
        ax, interval: As for `accuracy`.
        num_steps: The experiment's ``train.num_steps``; by default what the table's ``attrs`` say, if anything. A
            marker is open where the lowest validation loss of a replicate is that of the very last step, so that a
            longer training might have found a later one: such a mean is a lower bound.

    Returns:
        The axes: for each branch that was trained, the mean over replicates with its bars.

    Raises:
        LotteryError: As `accuracy`.
    """
    styles.check(rows)
    num_steps = num_steps or rows.attrs.get("num_steps")
    trained = rows[rows["final_train_loss"].notna()]
    chains, points = _branches(trained, "early_stop_step", interval)
    last = trained[trained["early_stop_step"] == num_steps].groupby(["branch", "round"]).size()
    ax = styles.new_or(ax)
    for place, (branch, style) in enumerate(chains.items()):
        part = points[points["branch"] == branch]
        styles.bars(ax, part["density"], part, style, branch, first=place == 0)
        bound = part[[(branch, index) in last.index for index in part["round"]]]
        if len(bound):
            ax.plot(
                bound["density"], bound["mean"], color=style[0], marker=style[1], markersize=5, linestyle="none",
                markerfacecolor="white", zorder=4, label="_open",
            )  # fmt: skip
    if len(last):
        ax.errorbar([], [], color="black", marker="o", markerfacecolor="white", linestyle="none", label="≥ (last step)")
    styles.density_axis(ax, points["density"])
    ax.set_ylim(0, points["high"].max() * 1.06 + 1e-9)
    ax.set_ylabel("early-stop step (lowest validation loss)")
    return styles.finish(ax, styles.said(points, "bars", interval))


@dataclass(frozen=True)
class Plot:
    """A kind of plot.

    Attributes:
        read: Makes its table from a run's folder; options that it does not know are for `draw`.
        draw: ``draw(table, ax, **options)`` draws it on axes, and returns them.
        size: Width and height of its figure in inches, from the table.
    """

    read: Callable[..., Table]
    draw: Callable[..., Any]
    size: Callable[[Table], tuple[float, float]] = lambda table: WIDE


def _square(table: Table) -> tuple[float, float]:
    side = max(4.2, 1.6 + 0.62 * len({*table["one"], *table["other"]}))
    return side + 1, side


def _size_of_inputs(table: Table) -> tuple[float, float]:
    rows, columns, channels = (int(table[axis].max()) + 1 for axis in ("row", "column", "channel"))
    columns *= channels if table["what"].iloc[0] == "kernel" else 1
    across, down, tall, line = pictures.arranged(min(table["round"].nunique(), styles.MOST), rows, columns)
    ratio = (down * (tall + line + 0.08 * columns) - 0.08 * columns) / ((1.08 * across - 0.08) * columns)
    width = min(6.0, 5.0 / ratio)
    return max(width, 4.0) + 0.4, width * ratio + (1.9 if (table["kept"] == 0).any() else 1.65)


def last_common_round(run: Path) -> int:
    """The last round that every replicate has, of those that have begun.

    Raises:
        LotteryError: It is not a run, or no round is complete.
    """
    return min(_last_rounds(run))


def _read_rows(run: Path, **_: Any) -> Table:
    rows = results.table(run)
    rows.attrs["num_steps"] = store.read_experiment(run).train.num_steps
    return rows


def _of_few_rounds(table: Callable[..., Table]) -> Callable[..., Table]:
    """Read the rounds that are asked for, or so many as a figure has room for."""

    def read(run: Path, rounds: Iterable[int] | None = None, **_: Any) -> Table:
        return table(run, rounds=_few(run) if rounds is None else list(rounds))

    return read


def _read_overlaps(run: Path, round: int | None = None, matched: bool = False, **_: Any) -> Table:
    return ANALYSES["overlap"](run, last_common_round(run) if round is None else round, matched=matched)


PLOTS: dict[str, Plot] = {
    "accuracy": Plot(_read_rows, accuracy),
    "early_stop": Plot(_read_rows, early_stop),
    "learning_curves": Plot(_of_few_rounds(ANALYSES["curves"]), learning_curves),
    "layers": Plot(lambda run, **_: ANALYSES["layers"](run), layers),
    "initial_weights": Plot(_of_few_rounds(ANALYSES["survivors"]), initial_weights),
    "degrees": Plot(_of_few_rounds(ANALYSES["degrees"]), degrees),
    "inputs": Plot(_of_few_rounds(ANALYSES["inputs"]), inputs, _size_of_inputs),
    "overlap": Plot(_read_overlaps, overlap, _square),
    "distance": Plot(lambda run, **_: ANALYSES["distance"](run), distance),
    "barrier": Plot(lambda run, **_: connectivity.points(run), barrier),
    "instability": Plot(lambda run, **_: ANALYSES["connectivity"](run), instability),
}


def read(run: Path, kind: str, **options: Any) -> Table:
    """The table of a kind of plot, from a run's folder.

    Args:
        run: The run's folder.
        kind: A key of `PLOTS`.
        options: What the kind reads by: ``rounds``, or for an overlap ``round`` and ``matched``. Others are ignored.

    Returns:
        What `drawn`, `save` and `svg` take.

    Raises:
        LotteryError: An unknown kind, or it is not a run, or it has not what the kind needs.
    """
    return _kind(kind).read(run, **options)


def drawn(source: Table, kind: str = "accuracy", title: str = "", **options: Any) -> Any:
    """A figure of its own, outside pyplot: no window, no state, and no backend to choose.

    Args:
        source: The table of the kind; see `read`.
        kind: A key of `PLOTS`.
        title: What stands above it.
        options: Those of the kind's function, by name.

    Returns:
        A Matplotlib figure.

    Raises:
        LotteryError: An unknown kind or option, an empty table, or what the kind's function raises.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    plot = _kind(kind)
    allowed = list(inspect.signature(plot.draw).parameters)[2:]
    for option in options:
        if option not in allowed:
            raise unknown(f"An option of {kind}", option, allowed)
    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    plot.draw(source, figure.subplots(), **options)
    figure.set_size_inches(plot.size(source))
    figure.suptitle(title, fontsize=11)
    return figure


def svg(source: Table, kind: str = "accuracy", title: str = "", **options: Any) -> str:
    """A plot as one ``<svg>`` element for an HTML page; see `styles.as_svg`, and `drawn` for the rest."""
    figure = drawn(source, kind, title, **options)
    (ax, *_) = figure.axes
    return styles.as_svg(figure, ": ".join(filter(None, (title, kind.replace("_", " "), ax.get_title()))))


def save(source: Table, path: str | Path, kind: str = "accuracy", title: str = "", **options: Any) -> Path:
    """Draw a plot to a file.

    Args:
        source, kind, title, options: As for `drawn`.
        path: Where to; the ending says how (png, svg, pdf).

    Returns:
        The path.

    Raises:
        LotteryError: As `drawn`; an unknown ending, or a file that cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    path = Path(path)
    ending = path.suffix.lstrip(".")
    _kind(kind)
    if ending not in FigureCanvasAgg.get_supported_filetypes():
        raise unknown("The ending of --out", ending, ("png", "svg", "pdf"))
    files.write(path, styles.saved(drawn(source, kind, title, **options), ending))
    return path


def _kind(kind: str) -> Plot:
    if kind not in PLOTS:
        raise unknown("--kind", kind, PLOTS)
    return PLOTS[kind]


def _branches(rows: Table, measure: str, interval: str) -> tuple[dict[str, styles.Style], Table]:
    """A style for each branch, the ticket first, and the spread of a measure by branch and round."""
    styles.check(rows)
    points = styles.spread(rows, ("branch", "round"), measure, interval)
    branches = list(dict.fromkeys(rows["branch"]))
    if len(branches) > len(STYLES):
        raise LotteryError(f"A plot shows at most {len(STYLES)} branches, received {len(branches)}: select some rows.")
    return styles.by_name(branches), points


def _last_rounds(run: Path) -> list[int]:
    """The last complete round of each replicate that has one."""
    num = store.read_experiment(run).run.num_replicates
    lengths = [len(store.complete_rounds(run, replicate)) for replicate in range(1, num + 1)]
    if not any(lengths):
        raise LotteryError(f"There is nothing to plot: {styles.NO_ROUND}.")
    return [length - 1 for length in lengths if length]


def _few(run: Path) -> list[int]:
    return results.chosen(range(max(_last_rounds(run)) + 1), styles.MOST)
