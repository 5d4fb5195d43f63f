"""The tidy table to axes. Nothing here needs TensorFlow."""

import io
from pathlib import Path
from typing import Any

from lottery import files, results
from lottery.errors import LotteryError, unknown
from lottery.results import Table

# The ticket, then the other branches: Okabe and Ito's colours, which the colour-blind can tell apart, and two greys; a
# marker and a line style each, so that they can be told apart in print as well.
STYLES = (
    ("#0072B2", "o", "-"),
    ("#D55E00", "s", "--"),
    ("#009E73", "^", "-."),
    ("#CC79A7", "D", ":"),
    ("#E69F00", "v", (0, (5, 1))),
    ("#56B4E9", "P", (0, (3, 1, 1, 1))),
    ("#000000", "X", (0, (1, 1))),
    ("#B8A800", "<", (0, (7, 2, 1, 2))),
    ("#7F7F7F", ">", (0, (3, 3))),
    ("#8C510A", "*", (0, (5, 1, 1, 1, 1, 1))),
    ("#542788", "p", (0, (10, 3))),
    ("#A6611A", "h", (0, (1, 3))),
)
# What bars can be: the two columns of a summary that they end at, and how the title calls them.
BARS = {
    "range": ("accuracy_min", "accuracy_max", "lowest to highest"),
    "t": ("accuracy_low", "accuracy_high", "95 % t interval for the mean"),
}


def accuracy(rows: Table, ax: Any = None, interval: str = "range") -> Any:
    """Test accuracy at the early-stop step against density, as the papers draw it: dense on the left, log axis.

    Args:
        rows: What `lottery.results.table` returns.
        ax: Matplotlib axes to draw on; new ones if None.
        interval: What the bars are, a key of `BARS`: by default from the lowest to the highest replicate.

    Returns:
        The axes: for each branch the mean over replicates with its bars, and the dense network's mean as a line with
        its bar as a band.

    Raises:
        LotteryError: The table is empty, the interval unknown, or there are more branches than `STYLES`.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if rows.empty:
        raise LotteryError("There is nothing to plot: no round is complete yet.")
    if interval not in BARS:
        raise unknown("The interval of a plot", interval, BARS)
    ax = _axes(ax)
    low, high, called = BARS[interval]
    points = results.summary(rows)
    branches = list(dict.fromkeys(points["branch"]))
    if len(branches) > len(STYLES):
        raise LotteryError(f"A plot shows at most {len(STYLES)} branches, received {len(branches)}: select some rows.")
    # One replicate has no bars: its interval is infinite.
    ends = points[[low, high]].where(points["replicates"] > 1, points["accuracy_mean"], axis=0)
    points = points.assign(below=points["accuracy_mean"] - ends[low], above=ends[high] - points["accuracy_mean"])
    for first in points[points["round"] == 0].to_dict("records")[:1]:
        ax.axhline(first["accuracy_mean"], color="0.35", linewidth=1, linestyle="--", label="dense", zorder=1)
        if first["replicates"] > 1:
            ax.axhspan(first[low], first[high], color="0.5", alpha=0.15, linewidth=0, zorder=0)
    for branch, (color, marker, line) in zip(branches, STYLES, strict=False):
        part, first = points[points["branch"] == branch], branch == branches[0]
        ax.errorbar(
            part["density"], part["accuracy_mean"],
            yerr=[part["below"], part["above"]] if part["replicates"].max() > 1 else None,
            color=color, marker=marker, markersize=4 if first else 3.5, linestyle=line, linewidth=1.6 if first else 0.9,
            elinewidth=0.9 if first else 0.6, capsize=2, label=branch, zorder=3 if first else 2,
        )  # fmt: skip
    ax.set_xscale("log")
    ax.set_xlim(points["density"].max() * 1.15, points["density"].min() / 1.15)
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    num = int(points["replicates"].max())
    ax.set_xlabel("density (fraction of prunable weights kept)")
    ax.set_ylabel("test accuracy at the early-stop step")
    ax.set_title(f"mean of {num} replicates, bars: {called}" if num > 1 else "one replicate", fontsize=9)
    ax.grid(alpha=0.25, linewidth=0.6)
    if len(branches) > 3:
        # Beside the axes: so many entries would lie on the curves.
        ax.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    else:
        ax.legend(frameon=False)
    return ax


PLOTS = {"accuracy": accuracy}


def save(rows: Table, path: str | Path, kind: str = "accuracy", title: str = "") -> Path:
    """Draw a plot to a file.

    Args:
        rows: What `lottery.results.table` returns.
        path: Where to; the ending says how (png, svg, pdf).
        kind: A key of `PLOTS`.
        title: What stands above it.

    Returns:
        The path.

    Raises:
        LotteryError: An unknown kind or ending, an empty table, or a file that cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = Path(path)
    if kind not in PLOTS:
        raise unknown("--kind", kind, PLOTS)
    endings = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix.lstrip(".") not in endings:
        raise unknown("The ending of --out", path.suffix.lstrip("."), ("png", "svg", "pdf"))
    # A figure of its own, outside pyplot: no window, no state, and no backend to choose.
    figure = Figure(figsize=(6.4 if rows["branch"].nunique() <= 3 else 8.4, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    PLOTS[kind](rows, figure.subplots())
    figure.suptitle(title, fontsize=11)
    picture = io.BytesIO()
    figure.savefig(picture, format=path.suffix.lstrip("."), dpi=150)
    files.write(path, picture.getvalue())
    return path


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.gca()
