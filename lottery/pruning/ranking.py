"""From scores to masks by rank, never by a threshold on scores, so that exact numbers of entries are pruned."""

import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np

from lottery import masks as masks_module
from lottery import weights
from lottery.errors import LotteryError, unknown
from lottery.masks import Masks, Scores
from lottery.pruning import granularity as granularities
from lottery.pruning.granularity import Granularity, check_numbers
from lottery.pruning.schedules import num_pruned

T = TypeVar("T")
LAYERWISE, GLOBAL = SCOPES = ("layerwise", "global")


def prune(
    model: Any,
    sparsity: float | None = None,
    *,
    below: float | None = None,
    scope: str = "layerwise",
    rates: Mapping[str, float] | None = None,
    biases: bool = False,
    granularity: str | Granularity = "weight",
) -> Masks:
    """Make one-shot magnitude masks of every prunable weight of a model. The model is not changed.

    Pass `sparsity` to mask a fraction of the entries, those with the smallest absolute values, or `below` to mask all
    entries below a threshold. Weights that are not prunable get no mask; `lottery.weights.unprunable` lists them with
    the reasons. A high sparsity or threshold may leave nothing of a weight; `lottery.masks.num_kept` shows it.

    Args:
        model: A built Keras 3 or tf_keras model.
        sparsity: Fraction to prune, in [0, 1): exactly round(sparsity * n) of n entries, as in `keep_highest`.
        below: A finite, nonnegative threshold: w is masked if ``abs(w) < below``, in the precision of the weight.
        scope: ``"layerwise"`` ranks each weight by itself, ``"global"`` all together; a threshold ignores it.
        rates: Exceptions by weight, which replace `sparsity` or `below`, whichever is used: the fraction to prune of
            that weight, ranked by itself, or its threshold. 0.0 leaves it whole. A key is the name of a weight, or a
            shell-style pattern such as ``"conv2d*/kernel"`` (case-sensitive; ``*`` matches ``/`` too). The exact name
            of a weight wins over patterns, and the first pattern over later ones.
        biases: Prune biases too, as in `weights.prunable`.
        granularity: What is kept or pruned as one: a name in `granularity.GRANULARITIES`, or a `Granularity` with its
            settings, such as ``Granularity("block", block=(4, 4))``. `sparsity` is then the fraction of groups; for n
            of m leave it out.

    Raises:
        LotteryError: The model is not built, has no prunable weight, or has NaN in a weight; both or neither of
            `sparsity` and `below`; a value out of range, an unknown scope, a name or pattern that fits no weight; a
            granularity that does not fit the model or the other arguments.
    """
    how = granularity if isinstance(granularity, Granularity) else Granularity(granularity)
    granularities.check(how)
    if how.n_of_m:
        if sparsity is not None or below is not None or scope == GLOBAL or any((rates or {}).values()):
            raise LotteryError(
                "n_of_m says what each weight keeps: leave out sparsity, below and scope. (A rate of 0.0 keeps a "
                "weight whole.)"
            )
        sparsity = 1 - how.n_of_m[0] / how.n_of_m[1]
    elif how.name != Granularity.name and below is not None:
        raise LotteryError(f'below: received {below!r}, allowed with granularity "{how.name}" is sparsity, of groups.')
    if (sparsity is None) == (below is None):
        received = "neither" if sparsity is None else f"sparsity={sparsity!r} and below={below!r}"
        raise LotteryError(f"prune: received {received}, allowed is exactly one of sparsity and below.")
    what, highest = ("below", math.inf) if sparsity is None else ("sparsity", 1.0)
    general = _number(what, below if sparsity is None else sparsity, highest)
    magnitudes = {name: np.abs(value) for name, value in weights.read(model, biases).items()}
    if not magnitudes:
        raise LotteryError(
            f"The model {model.name!r} has no weight that can be pruned; weights.unprunable(model) says why."
        )
    for name, magnitude in magnitudes.items():
        if np.isnan(magnitude).any():
            raise LotteryError(f"The weight {name!r} holds values that are not numbers (NaN), so it cannot be pruned.")
    whole = [name for name, rate in by_weight(magnitudes, rates or {}).items() if not rate]
    shapes = {name: value.shape for name, value in magnitudes.items()}
    grouped = granularities.grouped(how, shapes, granularities.units_of(how, model, whole))
    own = by_weight(grouped.shapes, rates or {})
    own = {name: _number(f"rates[{name!r}]", value, highest) for name, value in own.items()}
    if below is None:
        ones = masks_module.ones_like(magnitudes)
        pooled, alive = grouped.pool(magnitudes, ones, scope == GLOBAL), grouped.alive(ones)
        if fixed := grouped.counts(1):
            counts = {name: of[0] - of[1] for name, of in fixed.items() if name not in own}
            return prune_counts(pooled, alive, {(name,): counts.get(name, 0) for name in alive})
        return grouped.expand(keep_highest(pooled, alive, general, scope, own))
    groups(magnitudes, scope, own)  # for its errors
    with np.errstate(over="ignore"):  # a threshold beyond the weight's range is infinite
        return {name: ~(value < value.dtype.type(own.get(name, general))) for name, value in magnitudes.items()}


def keep_highest(
    scores: Scores,
    masks: Masks,
    rate: float,
    scope: str = "layerwise",
    rates: Mapping[str, float] | None = None,
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
    counts = {
        names: num_pruned(_number("rate", rate if own is None else own, 1.0), sum(survivors[name] for name in names))
        for names, own in groups(masks, scope, rates)
    }
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
            survivors.append(np.asarray(scores[name])[masks[name]])  # scores of masked entries do not count
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
    names, exceptions = list(names), exceptions or {}
    for name in exceptions:
        if name not in names:
            raise unknown("A rate is set for a weight that does not exist", name, names)
    if scope not in SCOPES:
        raise unknown("scope", scope, SCOPES)
    pooled = tuple(name for name in names if name not in exceptions)
    together: list[tuple[str, ...]] = [pooled] if scope == GLOBAL and pooled else [(name,) for name in pooled]
    return [*((group, None) for group in together), *(((name,), exceptions[name]) for name in exceptions)]


def by_weight(names: Iterable[str], exceptions: Mapping[str, T], what: str = "rates") -> dict[str, T]:
    """Resolve exceptions by name or pattern, as for `prune`, to exceptions by weight; each must fit a weight."""
    names = list(names)
    found: dict[str, T] = {}
    for key, value in exceptions.items():
        matched = [key] if key in names else [name for name in names if fnmatchcase(name, key)]
        if not matched:
            raise unknown(f"{what}, by the name of a weight or a pattern that fits one", key, names)
        found |= {name: found.get(name, value) for name in matched if name == key or name not in exceptions}
    return found


def thresholds(scores: Scores, before: Masks, after: Masks) -> dict[str, float | None]:
    """Return the highest score pruned from each weight, None if nothing was; to be shown, never to prune by."""
    highest = {}
    for name in before:
        pruned = np.asarray(scores[name])[before[name] & ~after[name]]
        highest[name] = float(pruned.max()) if pruned.size else None
    return highest


def _number(what: str, value: Any, highest: float) -> float:
    number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not number or not 0 <= value < highest:
        allowed = "a fraction in [0, 1)" if highest == 1 else "a finite number that is not negative"
        raise LotteryError(f"{what}: received {value!r}, allowed is {allowed}.")
    return float(value)
