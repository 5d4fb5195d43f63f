"""What the masks of two networks have in common, beside what random masks would."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lottery import masks
from lottery.analysis import matching
from lottery.errors import LotteryError
from lottery.masks import Masks
from lottery.runs import store
from lottery.runs.results import Table

COLUMNS = (
    "one", "other", "round", "density_one", "density_other", "weight", "overlap", "chance", "matched_overlap",
    "matched_chance",
)  # fmt: skip


ALL = "all"  # the row of all weights together


NUM_DRAWS = 3  # of random masks, for what matching makes of them


def iou(one: Masks | np.ndarray, other: Masks | np.ndarray) -> float:
    """Overlap of two masks: the entries that both keep, out of those that either keeps.

    Args:
        one: A boolean array, or several by name, which are counted together.
        other: The same names and shapes.

    Returns:
        Intersection over union, in [0, 1]; NaN where neither keeps anything.

    Raises:
        LotteryError: Names or shapes differ.
    """
    both, kept_one, kept_other, _ = _counts(one, other)
    return _ratio(sum(both), sum(kept_one) + sum(kept_other))


def chance(one: Masks | np.ndarray, other: Masks | np.ndarray) -> float:
    """The overlap that two random masks would have which keep as many entries of each weight as these.

    With a and b kept of the n entries of a weight, random masks have a b / n in common on average. The value is
    E / (A + B - E), where E is the sum of those over the weights and A and B are all that is kept: the ratio of the
    expected intersection to the expected union, which is next to the expected ratio unless masks are tiny.

    Args:
        one, other: As for `iou`.

    Returns:
        The overlap, in [0, 1]; NaN where neither keeps anything.

    Raises:
        LotteryError: As `iou`.
    """
    _, kept_one, kept_other, sizes = _counts(one, other)
    expected = sum(a * b / n for a, b, n in zip(kept_one, kept_other, sizes, strict=True) if n)
    return _ratio(expected, sum(kept_one) + sum(kept_other))


def matched_chance(one: Masks, other: Masks, num_draws: int = NUM_DRAWS, seed: int = 0) -> dict[str, float]:
    """The overlap of random masks of the same counts in each weight, after the same matching of hidden units.

    Matching raises the overlap of random masks as well, so that `chance` is too low a value to compare with.

    Args:
        one, other: Masks of a chain, as for `lottery.analysis.matching.matched`; only shapes and counts matter.
        num_draws: How many pairs of random masks are drawn.
        seed: What they are drawn from.

    Returns:
        The mean over the draws, for ``"all"`` weights together and for each by its name.

    Raises:
        LotteryError: As `lottery.analysis.matching.matched`.
    """
    random = np.random.default_rng(seed)
    draws = []
    for _ in range(num_draws):
        first, second = (_drawn(kept, random) for kept in (one, other))
        draws.append(_by_weight(first, matching.matched(first, second)[0]))
    return {name: sum(draw[name] for draw in draws) / num_draws for name in draws[0]}


def table(runs: Path | str | Sequence[Path | str], round: int, matched: bool = False) -> Table:
    """Overlap of the tickets of every two replicates at one round.

    An overlap above chance need not come from units that do the same: masks that keep the same inputs, or the same
    number of entries of each input, overlap more than random ones do.

    Args:
        runs: A run's folder, or several of runs of the same network.
        round: The round. A replicate that does not have it yet is left out.
        matched: Whether to match hidden units first, too; see `lottery.analysis.matching.matched` and `matched_chance`.

    Returns:
        A data frame with the columns `COLUMNS`, a row for each pair and weight, and before them one named ``"all"`` for
        the whole network. ``one`` and ``other`` are the replicates, such as ``"1"``; with several runs,
        ``"lenet-mnist-3f9c2a1b:1"``. Densities are those of what the row compares; ``overlap`` is `iou`, ``chance`` is
        `chance`; ``matched_overlap`` and ``matched_chance`` are NaN unless `matched`.

    Raises:
        LotteryError: It is not a run, a run does not have the round, there are fewer than two masks, the networks
            differ, or they cannot be matched.
    """
    import pandas as pd

    listed = [runs] if isinstance(runs, (str, Path)) else runs
    found = _tickets([Path(run) for run in listed], round, matched)
    chances: dict[tuple[tuple[int, ...], ...], dict[str, float]] = {}
    rows = []
    for (one, mine), (other, theirs) in itertools.combinations(found.items(), 2):
        after, expected = {}, {}
        if matched:
            after = _by_weight(mine, matching.matched(mine, theirs)[0])
            # It depends on nothing but the counts, which replicates of one experiment share.
            counts = tuple(tuple(masks.num_kept(kept).values()) for kept in (mine, theirs))
            if counts not in chances:
                chances[counts] = matched_chance(mine, theirs)
            expected = chances[counts]
        for name, part in {ALL: list(mine), **{name: [name] for name in mine}}.items():
            pair = [{weight: kept[weight] for weight in part} for kept in (mine, theirs)]
            densities = [masks.density(kept) for kept in pair]
            raised = (after.get(name, math.nan), expected.get(name, math.nan))
            rows.append((one, other, round, *densities, name, iou(*pair), chance(*pair), *raised))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def pairs(found: Table) -> list[str]:
    """What the two masks of each row of a table of several runs are of, for those of one run overlap otherwise.

    Args:
        found: What `table` returns.

    Returns:
        For each row ``"one run"``; ``"two runs, one replicate"``, which share their initial weights where the runs
        have one seed; or ``"two runs"``.
    """

    def of(one: str, other: str) -> str:
        (run, _, replicate), (other_run, _, other_replicate) = one.rpartition(":"), other.rpartition(":")
        if run == other_run:
            return "one run"
        return "two runs, one replicate" if replicate == other_replicate else "two runs"

    return [of(one, other) for one, other in zip(found["one"], found["other"], strict=True)]


def _tickets(runs: list[Path], round: int, matched: bool) -> dict[str, Masks]:
    """The masks of each replicate at a round, by label."""
    runs = list({run.resolve(): run for run in runs}.values())
    folders = [run.resolve().name for run in runs]
    found: dict[str, Masks] = {}
    for run, name in zip(runs, folders, strict=True):
        prefix = "" if len(runs) == 1 else f"{name if folders.count(name) == 1 else run}:"
        for stored in store.rounds(run, [round], branches=False):
            kept = stored.masks
            first = next(iter(found.values()), kept)
            if _shapes(kept) != _shapes(first):
                raise LotteryError(
                    f"Only masks of the same network can be compared: {str(run)!r} has {_shapes(kept)}, "
                    f"{str(runs[0])!r} has {_shapes(first)}."
                )
            if matched:
                matching.check_run(run, kept)
            found[f"{prefix}{stored.replicate}"] = kept
    if len(found) < 2:
        raise LotteryError(
            f"An overlap is of two masks: received {len(found)}, for round {round} of "
            f"{', '.join(repr(str(run)) for run in runs) or 'no run'}; pass a run with more replicates, or several."
        )
    return found


def _shapes(kept: Masks) -> dict[str, tuple[int, ...]]:
    return {name: mask.shape for name, mask in kept.items()}


def _by_weight(one: Masks, other: Masks) -> dict[str, float]:
    return {ALL: iou(one, other), **{name: iou(one[name], other[name]) for name in one}}


def _counts(one: Masks | np.ndarray, other: Masks | np.ndarray) -> tuple[list[int], list[int], list[int], list[int]]:
    """By weight: what both keep, what the first keeps, what the other keeps, and how many entries there are."""
    mine = one if isinstance(one, Mapping) else {"mask": np.asarray(one)}
    theirs = other if isinstance(other, Mapping) else {"mask": np.asarray(other)}
    if _shapes(mine) != _shapes(theirs):
        raise LotteryError(
            f"Only masks of the same network can be compared, received {_shapes(mine)} and {_shapes(theirs)}."
        )
    masks.check(mine, mine)
    masks.check(theirs, theirs)
    both = [int(np.count_nonzero(mine[name] & theirs[name])) for name in mine]
    kept_one, kept_other = ([*masks.num_kept(each).values()] for each in (mine, {name: theirs[name] for name in mine}))
    return both, kept_one, kept_other, [mask.size for mask in mine.values()]


def _ratio(common: float, kept: float) -> float:
    return common / (kept - common) if kept else math.nan


def _drawn(kept: Masks, random: np.random.Generator) -> Masks:
    """Random masks that keep as many entries of each weight."""
    drawn = {}
    for name, mask in kept.items():
        flat = np.zeros(mask.size, dtype=bool)
        flat[random.permutation(mask.size)[: np.count_nonzero(mask)]] = True
        drawn[name] = flat.reshape(mask.shape)
    return drawn
