"""Compare the masks of two networks with each other, and with random masks."""

import itertools
import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lottery import masks
from lottery.analysis import matching
from lottery.errors import LotteryError
from lottery.figures import style
from lottery.figures.record import Analysis, NothingToDraw
from lottery.masks import Masks
from lottery.runs import store
from lottery.runs.stored import stored_rounds
from lottery.text_tables import Table, frame

COLUMNS = (
    "one", "other", "round", "density_one", "density_other", "weight", "overlap", "chance", "matched_overlap",
    "matched_chance",
)  # fmt: skip
ALL = "all"  # the row of all weights together
NO_PAIR = "there are no two masks to compare"


def iou(first: Masks | np.ndarray, other: Masks | np.ndarray) -> float:
    """Compute the overlap of two masks, or of several by name together: intersection over union, in [0, 1].

    It is NaN if neither keeps anything. Raises `LotteryError` if names or shapes differ.
    """
    counts = _counts(first, other)
    return _ratio(sum(both for both, *_ in counts), counts)


def chance(first: Masks | np.ndarray, other: Masks | np.ndarray) -> float:
    """Compute the overlap of two random masks that keep as many entries of each weight.

    With a and b kept of the n entries of a weight, random masks have a b / n in common on average. The value is
    E / (A + B - E), where E is the sum of those over the weights and A and B are all that is kept: the ratio of the
    expected intersection to the expected union, next to the expected ratio unless masks are tiny. Otherwise as `iou`.
    """
    counts = _counts(first, other)
    return _ratio(sum(a * b / size for _, a, b, size in counts if size), counts)


def matched_chance(first: Masks, other: Masks) -> dict[str, float]:
    """Compute the overlap of random masks with as many entries in each weight, after matching their hidden units.

    Matching raises the overlap of random masks as well, so that `chance` is too low a value to compare with. Returns
    the mean over three pairs of random masks, for ``"all"`` weights together and for each weight by name.
    """
    # From a fixed seed, so that a table is the same each time.
    random = np.random.default_rng(0)
    draws = [_matched_overlaps(_drawn(first, random), _drawn(other, random)) for _ in range(3)]
    return {name: sum(draw[name] for draw in draws) / len(draws) for name in draws[0]}


def table(runs: store.Folder | Sequence[store.Folder], round: int, matched: bool = False) -> Table:
    """Compare the tickets of every two replicates at one round.

    An overlap above chance need not come from units that do the same: masks that keep the same inputs, or the same
    number of entries of each input, overlap more than random masks do.

    Args:
        runs: A run's folder, or several of runs of the same network.
        round: Replicates that do not have it yet are left out.
        matched: Match hidden units first, too; see `lottery.analysis.matching.matched` and `matched_chance`.

    Returns:
        A data frame with the columns `COLUMNS`, a row for each pair and weight, and before them a row named ``"all"``
        for the whole network. ``one`` and ``other`` are the replicates, such as ``"1"``; with several runs,
        ``"lenet-mnist-3f9c2a1b:1"``. Densities are those of what the row compares; ``overlap`` is `iou`;
        ``matched_overlap`` and ``matched_chance`` are NaN unless `matched`.

    Raises:
        LotteryError: There are fewer than two masks, the networks differ, or they cannot be matched.
    """
    found = _tickets([runs] if isinstance(runs, (str, os.PathLike)) else runs, round, matched)
    # Matching takes seconds; its chance depends on nothing but the counts, which replicates of one experiment share.
    chances: dict[tuple[tuple[int, ...], ...], dict[str, float]] = {}
    rows = []
    for (first, mine), (other, theirs) in itertools.combinations(found.items(), 2):
        after, expected = {}, {}
        if matched:
            after = _matched_overlaps(mine, theirs)
            counts = tuple(tuple(masks.num_kept(kept).values()) for kept in (mine, theirs))
            if counts not in chances:
                chances[counts] = matched_chance(mine, theirs)
            expected = chances[counts]
        for name, (own, others) in _parts(mine, theirs).items():
            densities = masks.density(own), masks.density(others)
            raised = after.get(name, math.nan), expected.get(name, math.nan)
            rows.append((first, other, round, *densities, name, iou(own, others), chance(own, others), *raised))
    return frame(rows, COLUMNS)


def pairs(found: Table) -> list[str]:
    """Say of each row of the `table` of several runs which networks it compares, because they overlap differently.

    Those of ``"two runs, one replicate"`` share their initial weights if the runs have one seed.
    """
    # What stands before the colon, the colon, and the replicate.
    first = found["one"].str.rpartition(":")
    other = found["other"].str.rpartition(":")
    two = np.where(first[2] == other[2], "two runs, one replicate", "two runs")
    return np.where(first[0] == other[0], "one run", two).tolist()


def overlap(overlaps: Table, ax: Any = None, weight: str = ALL, matched: bool = False) -> Any:
    """Draw a matrix of the overlaps of every two masks, below each that of random masks, on its diagonal the densities.

    The colour is overlap − chance, from minus to plus the largest difference there is, and at least 0.01. If
    `matched`, both are the overlaps after the hidden units have been matched.
    """
    part, value, random = _compared(overlaps, weight, matched)
    names = list(dict.fromkeys([*part["one"], *part["other"]]))
    place = {name: index for index, name in enumerate(names)}
    cells = np.full((len(names), len(names)), np.nan)
    texts = {}
    for row in part.to_dict("records"):
        for network in ("one", "other"):
            on_diagonal = place[row[network]]
            texts[on_diagonal, on_diagonal] = f"density\n{row[f'density_{network}']:.3g}"
        first, other = place[row["one"]], place[row["other"]]
        for pair in ((first, other), (other, first)):
            cells[pair] = row[value] - row[random]
            texts[pair] = f"{row[value]:.3f}\n({row[random]:.3f})"
    ax = style.new_or(ax)
    # At least a hundredth, so that differences of a few entries stay pale.
    largest = np.abs(cells[np.isfinite(cells)]).max(initial=0.01)
    shown = ax.imshow(
        np.ma.masked_invalid(cells), cmap="RdBu", vmin=-largest, vmax=largest, interpolation="none", aspect="auto"
    )
    ax.set_facecolor("white")
    # About 14 letters fit into the width of a cell.
    across = ax.get_window_extent().size.min() / ax.figure.dpi
    size = min(style.letters() * 72 / 1.5, 72 * across / len(names) / 4)
    for (row, column), text in texts.items():
        color = "black" if np.isnan(cells[row, column]) else style.contrasting(shown.to_rgba(cells[row, column]))
        ax.text(column, row, text, color=color, ha="center", va="center", fontsize=size)
    # Long names of runs would leave the cells no room.
    labels = [textwrap.fill(name, 24) for name in names]
    ax.set_xticks(range(len(names)), labels, rotation=90 if max(map(len, names)) > 4 else 0, fontsize=size)
    ax.set_yticks(range(len(names)), labels, fontsize=size)
    label = "run and replicate" if any(":" in name for name in names) else "replicate"
    ax.set(xlabel=label, ylabel=label)
    units = ", units matched" if matched else ""
    ax.figure.colorbar(shown, ax=ax, panchor=False, label=f"overlap − chance (in brackets){units}")
    ax.spines[:].set_visible(True)
    return ax


def _caption(overlaps: Table, weight: str = ALL, matched: bool = False) -> str:
    part, _, _ = _compared(overlaps, weight, matched)
    num = len({*part["one"], *part["other"]})
    of = "networks" if ":" in part["one"].iloc[0] else "replicates"
    which = "all weights" if weight == ALL else weight
    after = ", after matching hidden units" if matched else ""
    return (
        f"Overlap (intersection over union) of the masks of n = {num} {of} at round {part['round'].iloc[0]},"
        f" {which}{after}. The number in brackets is chance: the overlap of random masks that keep as many entries."
        " The colour shows overlap − chance; the diagonal shows densities."
    )


def _compared(overlaps: Table, weight: str, matched: bool) -> tuple[Table, str, str]:
    """Return the rows of a weight, and the columns of the overlap and of that of random masks."""
    style.check(overlaps, NO_PAIR)
    part = style.only(overlaps, "weight", weight)
    value, random = ("matched_overlap", "matched_chance") if matched else ("overlap", "chance")
    if matched and part[value].isna().all():
        raise LotteryError("These masks have not been matched: make the table with matched=True.")
    return part, value, random


def _tickets(runs: Sequence[store.Folder], round: int, matched: bool) -> dict[str, Masks]:
    """Read the masks of each replicate at a round, by label."""
    each = {Path(run).resolve(): Path(run) for run in runs}
    folders = [path.name for path in each]
    found: dict[str, Masks] = {}
    for path, run in each.items():
        prefix = ""
        if len(each) > 1:
            prefix = f"{path.name}:" if folders.count(path.name) == 1 else f"{run}:"
        for stored in stored_rounds(run, [round], branches=False):
            kept = stored.masks
            has = masks.shapes(kept)
            had = masks.shapes(next(iter(found.values()), kept))
            if has != had:
                why = f"{str(run)!r} has {has}, {str(next(iter(each.values())))!r} has {had}"
                raise LotteryError(f"Only masks of the same network can be compared: {why}.")
            if matched:
                matching.check_run(run, kept)
            found[f"{prefix}{stored.replicate}"] = kept
    if len(found) < 2:
        where = ", ".join(repr(str(run)) for run in each.values()) or "no run"
        raise NothingToDraw(
            f"An overlap compares two masks or more, and round {round} of {where} has {len(found)}. Pass a run with "
            "more replicates, or several runs."
        )
    return found


def _parts(first: Masks, other: Masks) -> dict[str, tuple[Masks, Masks]]:
    """Pair the masks of all weights together, and then those of each weight."""
    by_name = {name: ({name: first[name]}, {name: other[name]}) for name in first}
    return {ALL: (first, other), **by_name}


def _matched_overlaps(first: Masks, other: Masks) -> dict[str, float]:
    """Match hidden units, and compute the overlap of all weights together and of each weight."""
    reordered, _ = matching.matched(first, other)
    return {name: iou(*pair) for name, pair in _parts(first, reordered).items()}


def _counts(first: Masks | np.ndarray, other: Masks | np.ndarray) -> list[tuple[int, int, int, int]]:
    """Count, in each weight, the entries that both keep, that the first and the other keep, and that there are."""
    mine = first if isinstance(first, Mapping) else {"mask": np.asarray(first)}
    theirs = other if isinstance(other, Mapping) else {"mask": np.asarray(other)}
    own, others = masks.shapes(mine), masks.shapes(theirs)
    if own != others:
        raise LotteryError(f"Only masks of the same network can be compared, not {own} and {others}.")
    for kept in (mine, theirs):
        masks.check(kept, kept)
    both = masks.num_kept(masks.intersection(mine, theirs))
    return [(both[name], int(mask.sum()), int(theirs[name].sum()), mask.size) for name, mask in mine.items()]


def _ratio(common: float, counts: list[tuple[int, int, int, int]]) -> float:
    kept = sum(a + b for _, a, b, _ in counts)
    return common / (kept - common) if kept else math.nan


def _drawn(kept: Masks, random: np.random.Generator) -> Masks:
    """Draw masks that keep as many entries of each weight."""
    return {
        name: np.isin(np.arange(mask.size), random.permutation(mask.size)[: mask.sum()]).reshape(mask.shape)
        for name, mask in kept.items()
    }


def _views(table: Table) -> list[dict[str, int]]:
    """List a figure for each of at most three rounds, up to that of the table."""
    last = int(table["round"].iloc[0])
    return [{"round": number} for number in style.chosen(range(1, last + 1), 3)]


OVERLAP = Analysis(
    table,
    overlap,
    "Masks of replicates, or of several runs, compared with each other and with chance.",
    columns=("overlap", "chance"),
    height=lambda table, width, **options: 0.85 * width - style.letters(4),  # square cells beside the colour bar
    chapter="Masks",
    caption=_caption,
    views=_views,
    missing="There are no masks of two replicates at a pruned round to compare.",
    title="Overlap of masks",
)
