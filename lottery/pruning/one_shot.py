"""Pruning a model by magnitude in a single call, without an experiment."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lottery import weights
from lottery.errors import LotteryError
from lottery.masks import Masks, ones_like, shapes
from lottery.pruning import ranking
from lottery.pruning.granularity import Granularity, check, grouped, units_of


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
        sparsity: Fraction to prune, in [0, 1): exactly round(sparsity * n) of n entries, as in `ranking.keep_highest`.
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
    check(how)
    what, highest = ("sparsity", 1.0) if below is None else ("below", math.inf)
    magnitudes, rates = _magnitudes(model, biases), rates or {}
    by_weight = ranking.by_weight(magnitudes, rates)
    by_weight = {name: ranking.number(f"rates[{name!r}]", rate, highest) for name, rate in by_weight.items()}
    if how.n_of_m:
        if sparsity is not None or below is not None or scope == ranking.GLOBAL or any(by_weight.values()):
            raise LotteryError(
                "n_of_m says what each weight keeps: leave out sparsity, below, scope and rates. (A rate of 0.0 keeps "
                "a weight whole.)"
            )
        # For the checks below alone: what is kept follows from the groups.
        sparsity = 1 - how.n_of_m[0] / how.n_of_m[1]
    elif how.name != Granularity.name and below is not None:
        raise LotteryError(
            f'below cannot prune with granularity "{how.name}". Use sparsity, the fraction of groups to remove.'
        )
    if (sparsity is None) == (below is None):
        given = "neither is given" if sparsity is None else f"both are given, {sparsity!r} and {below!r}"
        raise LotteryError(f"prune needs either sparsity or below; {given}.")
    general = ranking.number(what, below if sparsity is None else sparsity, highest)
    # Groups are made from what stays whole, so these rates are resolved before there are any.
    whole = [name for name, rate in by_weight.items() if not rate]
    groups = grouped(how, shapes(magnitudes), units_of(how, model, whole))
    own = ranking.by_weight(groups.shapes, rates, f"rates of {how.kind.noun}")
    # For its errors: a threshold and n of m rank nothing in a scope, and would not miss an unknown one.
    ranking.groups(magnitudes, scope)
    if below is None:
        dense = ones_like(magnitudes)
        alive = groups.alive(dense)
        pooled = groups.pool(magnitudes, dense, scope == ranking.GLOBAL)
        if fixed := groups.counts(1):
            counts = {name: of[0] - of[1] for name, of in fixed.items() if name not in own}
            return ranking.prune_counts(pooled, alive, {(name,): counts.get(name, 0) for name in alive})
        return groups.expand(ranking.keep_highest(pooled, alive, general, scope, own))
    # A threshold beyond the range of the weight's type becomes infinite.
    with np.errstate(over="ignore"):
        return {name: ~(value < value.dtype.type(own.get(name, general))) for name, value in magnitudes.items()}


def _magnitudes(model: Any, biases: bool) -> dict[str, np.ndarray]:
    """Read the absolute values of all prunable weights, or raise if there are none, or NaN among them."""
    magnitudes = {name: np.abs(value) for name, value in weights.read(model, biases).items()}
    if not magnitudes:
        raise LotteryError(
            f"The model {model.name!r} has no weight that can be pruned; weights.unprunable(model) says why."
        )
    for name, magnitude in magnitudes.items():
        if np.isnan(magnitude).any():
            raise LotteryError(f"The weight {name!r} holds values that are not numbers (NaN), so it cannot be pruned.")
    return magnitudes
