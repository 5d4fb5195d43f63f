"""From scores to masks by rank, never by a threshold on scores, so that exact numbers of entries are pruned."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np

from lottery import masks as masks_module
from lottery.errors import LotteryError, missing, unknown
from lottery.masks import Masks, Scores
from lottery.pruning.schedules import share

T = TypeVar("T")
GLOBAL = "global"
SCOPES = ("layerwise", GLOBAL)


def keep_highest(
    scores: Scores, masks: Masks, rate: float, scope: str = "layerwise", rates: Mapping[str, float] | None = None
) -> Masks:
    """Make new masks that prune the lowest-scored fraction of the survivors.

    Of n survivors that are ranked together exactly round(rate * n) are pruned, half to even. Among equal scores the
    entry at the earlier position goes first (weights in the order of `masks`, entries in row-major order). Entries
    that are masked already stay masked.

    Args:
        scores: Arrays by weight, of the masks' shapes; the highest are kept.
        masks: The masks before, by weight. They are not changed.
        rate: Fraction of the survivors to prune, in [0, 1).
        scope: ``"layerwise"`` ranks each weight by itself, ``"global"`` ranks all weights together.
        rates: Exceptions by weight, which is then ranked by itself in either scope.

    Raises:
        LotteryError: An unknown scope or weight, a rate out of range, a score missing, misshapen or not a number.
    """
    survivors = masks_module.num_kept(masks)
    counts = {}
    for names, own in groups(masks, scope, rates):
        fraction = number("rate", rate if own is None else own, 1.0)
        counts[names] = share(fraction, sum(survivors[name] for name in names))
    return prune_counts(scores, masks, counts)


def prune_counts(scores: Scores, masks: Masks, counts: Mapping[tuple[str, ...], int]) -> Masks:
    """Prune numbers of the lowest-scored survivors, as `keep_highest` prunes a fraction.

    `counts` has the number for each group of weights that are ranked together; if negative, nothing is pruned.
    """
    kept: Masks = {}
    for names, count in counts.items():
        survivors = []
        for name in names:
            masks_module.check({name: masks[name]}, scores)
            # Scores of masked entries do not count: they may be anything, also NaN.
            survivors.append(np.asarray(scores[name])[masks[name]])
            check_numbers(name, survivors[-1])
        pruned = lowest(np.concatenate(survivors), count)
        ends = np.cumsum([part.size for part in survivors])[:-1]
        for name, part in zip(names, np.split(pruned, ends), strict=True):
            kept[name] = masks[name].copy()
            kept[name][masks[name]] = ~part
    return {name: kept[name] for name in masks}


def lowest(values: np.ndarray, count: int) -> np.ndarray:
    """Mark the `count` lowest of some values, the earlier first if equal: a boolean array."""
    if count <= 0:
        return np.zeros(values.size, dtype=bool)
    # Some thirty times as fast as a stable sort of all values, which gives the same.
    highest = np.partition(values, count - 1)[count - 1]
    marked = values < highest
    marked[np.flatnonzero(values == highest)[: count - np.count_nonzero(marked)]] = True
    return marked


def groups(
    names: Iterable[str], scope: str, exceptions: Mapping[str, T] | None = None
) -> list[tuple[tuple[str, ...], T | None]]:
    """Group the weights that are ranked together, each group with its exception or None.

    A weight with an exception is a group by itself. An unknown scope or weight is refused.
    """
    names = list(names)
    exceptions = exceptions or {}
    for name in exceptions:
        if name not in names:
            raise missing("A rate is set for a weight that does not exist:", name, names)
    if scope not in SCOPES:
        raise unknown("scope", scope, SCOPES)
    usual = tuple(name for name in names if name not in exceptions)
    together = [usual] if scope == GLOBAL and usual else [(name,) for name in usual]
    found: list[tuple[tuple[str, ...], T | None]] = [(group, None) for group in together]
    # A rate of its own sets a weight apart in the global scope, too, or its count would not be exact.
    return found + [((name,), own) for name, own in exceptions.items()]


def by_weight(names: Iterable[str], exceptions: Mapping[str, T], what: str = "rates") -> dict[str, T]:
    """Resolve exceptions by name or pattern, as for `prune`, to exceptions by weight; each must fit a weight."""
    names = list(names)
    if not isinstance(exceptions, Mapping):
        raise LotteryError(f"{what} must be a dictionary by weight, not {exceptions!r}.")
    found: dict[str, T] = {}
    for key, value in exceptions.items():
        matched = [key] if key in names else [name for name in names if fnmatchcase(name, key)]
        if not matched:
            raise missing(f"{what}: no weight has the name, or fits the pattern,", key, names)
        for name in matched:
            # An exact name counts wherever it stands, and of patterns the first.
            if name == key or name not in exceptions:
                found.setdefault(name, value)
    return found


def thresholds(scores: Scores, before: Masks, after: Masks) -> dict[str, float | None]:
    """Return the highest score pruned from each weight, None if nothing was; to be shown, never to prune by."""
    highest = {}
    for name in before:
        pruned = np.asarray(scores[name])[before[name] & ~after[name]]
        highest[name] = float(pruned.max()) if pruned.size else None
    return highest


def check_numbers(name: str, values: np.ndarray) -> None:
    """Raise `LotteryError` if a score of a weight is NaN."""
    if np.isnan(values).any():
        raise LotteryError(f"The scores of {name!r} are not numbers (NaN), so they cannot be ranked.")


def number(what: str, value: Any, highest: float) -> float:
    """Return a number in [0, highest) as a float, or raise `LotteryError`."""
    # To Python False is a whole number, and would be a rate of 0.
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not is_number or not 0 <= value < highest:
        allowed = "a fraction in [0, 1)" if highest == 1 else "a finite number that is not negative"
        raise LotteryError(f"{what} must be {allowed}, not {value!r}.")
    return float(value)
