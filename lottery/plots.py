"""The tidy table to axes. Nothing here needs TensorFlow."""

import io
from pathlib import Path
from typing import Any

from lottery import files, results
from lottery.errors import LotteryError, unknown
from lottery.results import Table

# Okabe and Ito's colours with a marker each: told apart by the colour-blind, and in print.
STYLES = (("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"))


def accuracy(rows: Table, ax: Any = None) -> Any:
    """Test accuracy at the early-stop step against density, as the papers draw it: dense on the left, log axis.

    Args:
        rows: What `lottery.results.table` returns.
        ax: Matplotlib axes to draw on; new ones if None.

    Returns:
        The axes: for each branch the mean over replicates, with bars from the lowest to the highest replicate, and
        the dense network's mean as a line with its range as a band.

    Raises:
        LotteryError: The table is empty.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if rows.empty:
        raise LotteryError("There is nothing to plot: no round is complete yet.")
    ax = _axes(ax)
    points = results.summary(rows)
    for first in points[points["round"] == 0].to_dict("records")[:1]:
        ax.axhline(first["accuracy_mean"], color="0.35", linewidth=1, linestyle="--", label="dense", zorder=1)
        if first["replicates"] > 1:
            ax.axhspan(first["accuracy_min"], first["accuracy_max"], color="0.5", alpha=0.15, linewidth=0, zorder=0)
    for (branch, part), (color, marker) in zip(points.groupby("branch"), STYLES, strict=False):
        bars = [part["accuracy_mean"] - part["accuracy_min"], part["accuracy_max"] - part["accuracy_mean"]]
        ax.errorbar(
            part["density"], part["accuracy_mean"], yerr=bars if part["replicates"].max() > 1 else None,
            color=color, marker=marker, markersize=4, linewidth=1.3, elinewidth=0.9, capsize=2, label=branch,
        )  # fmt: skip
    ax.set_xscale("log")
    ax.set_xlim(points["density"].max() * 1.15, points["density"].min() / 1.15)
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    num = int(points["replicates"].max())
    ax.set_xlabel("density (fraction of prunable weights kept)")
    ax.set_ylabel("test accuracy at the early-stop step")
    ax.set_title(f"mean of {num} replicates, bars: lowest to highest" if num > 1 else "one replicate", fontsize=9)
    ax.grid(alpha=0.25, linewidth=0.6)
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
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
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
