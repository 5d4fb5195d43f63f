"""The performance profiles of methods over several runs: how many networks are better than a threshold."""

import functools
from pathlib import Path
from typing import Any

import numpy as np

from lottery.errors import LotteryError
from lottery.figures import layout, sheets, style
from lottery.text_tables import Table


def figure(found: Table, ax: Any = None) -> Any:
    """Draw the fraction of networks whose difference from dense is above a threshold, against the threshold.

    A method is better where its line is higher. Bands are the intervals of the stratified bootstrap. The table is that
    of `lottery.statistics.aggregates.profile`, at one density; `LotteryError` refuses several, and an empty table.
    """
    style.check(found)
    densities = sorted(set(found["at"]))
    if len(densities) > 1:
        there = ", ".join(f"{density:.4g}" for density in densities)
        raise LotteryError(f"A performance profile shows one density, not {there}. Choose one with --density.")
    ax = style.new_or(ax)
    for method, (color, _, line) in style.by_name(found["method"]).items():
        part = found[found["method"] == method]
        # The fraction above a threshold stays until the next score, and so the step comes after it.
        ax.step(
            part["threshold"], part["fraction"], where="post", label=style.legible(method), color=color,
            linestyle=line, linewidth=style.thick(1.6),
        )  # fmt: skip
        if np.isfinite(part["low"]).all():
            ax.fill_between(
                part["threshold"], part["low"], part["high"], step="post", color=color, alpha=0.15, linewidth=0
            )
    ax.axvline(0, color="0.35", linewidth=style.thick(1), linestyle="--", zorder=0, label="dense")
    ax.grid(alpha=0.25, linewidth=style.thick(0.6))
    ax.set(
        ylim=(-0.02, 1.02), xlabel="difference from dense (test accuracy)",
        ylabel=f"fraction of networks above it, at density {densities[0]:.3g}",
    )  # fmt: skip
    handles, labels = ax.get_legend_handles_labels()
    if np.isfinite(found["low"]).all():
        handles.append(layout.glyph("band"))
        labels.append("95 % bootstrap interval")
    layout.place_legend(ax, handles, labels)
    return ax


def save(found: Table, path: str | Path) -> Path:
    """Draw `figure` to a file, whose ending decides the format (png, svg, pdf), and return its path."""
    sheet = sheets.SHEETS["screen"]
    return sheets.write(path, lambda: layout.drawn(sheet, sheet.width, functools.partial(figure, found)))
