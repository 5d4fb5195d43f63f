"""The figure of overlaps between masks."""

from typing import Any

import numpy as np

from lottery.analysis import style
from lottery.errors import LotteryError
from lottery.runs import results
from lottery.runs.results import Table

NO_PAIR = "there are no two masks to compare"


def overlap(overlaps: Table, ax: Any = None, weight: str = "all", matched: bool = False) -> Any:
    """How much of two masks is the same, for each pair: intersection over union, and below it that of random masks.

    Args:
        overlaps: What `lottery.analysis.overlaps.table` returns.
        ax: Matplotlib axes to draw on; new ones if None.
        weight: A weight, or ``"all"``.
        matched: The overlap after the hidden units have been matched, and that of matched random masks.

    Returns:
        The axes: a matrix of masks, on its diagonal the density of each.

    Raises:
        LotteryError: The table is empty, has no such weight, or its masks have not been matched.
    """
    style.check(overlaps, NO_PAIR)
    part = style.only(overlaps, "weight", weight)
    value, chance = ("matched_overlap", "matched_chance") if matched else ("overlap", "chance")
    if matched and part[value].isna().all():
        raise LotteryError("These masks have not been matched: make the table with matched=True.")
    names = list(dict.fromkeys([*part["one"], *part["other"]]))
    place = {name: index for index, name in enumerate(names)}
    cells, said = np.full((len(names), len(names)), np.nan), {}
    for row in part.to_dict("records"):
        one, other = place[row["one"]], place[row["other"]]
        said[one, one], said[other, other] = (f"density\n{row[f'density_{it}']:.3g}" for it in ("one", "other"))
        for pair in ((one, other), (other, one)) if one != other else ():
            cells[pair], said[pair] = row[value], f"{row[value]:.3f}\n({row[chance]:.3f})"
    ax = style.new_or(ax)
    highest = max(part[value].max(), part[chance].max())
    top = next((one for one in (0.05, 0.1, 0.2, 0.5) if highest <= one), 1)
    shown = ax.imshow(np.ma.masked_invalid(cells), cmap="cividis", vmin=0, vmax=top)
    ax.set_facecolor("white")
    for (row, column), text in said.items():
        color = "black" if np.isnan(cells[row, column]) else style.contrasting(shown.to_rgba(cells[row, column]))
        ax.text(column, row, text, color=color, ha="center", va="center", fontsize=9 if len(names) < 8 else 6)
    ax.set_xticks(range(len(names)), names, rotation=90 if max(map(len, names)) > 4 else 0)
    ax.set_yticks(range(len(names)), names)
    word = "run and replicate" if any(":" in name for name in names) else "replicate"
    ax.set_xlabel(word)
    ax.set_ylabel(word)
    units = " (hidden units matched)" if matched else ""
    ax.figure.colorbar(shown, ax=ax, panchor=False, label=f"overlap: intersection over union{units}")
    of = "all weights" if weight == "all" else weight
    ax.set_title(f"{len(names)} masks of round {part['round'].iloc[0]}, {of}; in brackets: random masks", fontsize=9)
    return ax


def size(table: Table) -> tuple[float, float]:
    """Width and height that leave room for each pair."""
    side = max(4.2, 1.6 + 0.62 * len({*table["one"], *table["other"]}))
    return side + 1, side


def views(table: Table) -> list[tuple[dict[str, int], str]]:
    """A figure for each of at most three rounds up to the table's."""
    said = "intersection over union of the masks of two replicates, and what chance would give."
    rounds = results.chosen(range(1, int(table["round"].iloc[0]) + 1), 3)
    return [({"round": index}, f"Round {index}: {said}") for index in rounds]
