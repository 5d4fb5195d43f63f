"""Masks that change while a network trains: when, how many entries they keep, and which."""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial

import numpy as np

from lottery.errors import LotteryError
from lottery.masks import Change, Masks, Scores, Weights, num_kept
from lottery.pruning import ranking
from lottery.pruning.schedules import share

# Masks change in the first three quarters of a training: T_end of Evci et al. 2020, https://arxiv.org/abs/1911.11134,
# section 3. The last quarter trains the last masks.
SHARE = Fraction(3, 4)
# The steps between two changes are a share of the training, so that a short and a long training have as many changes.
# Of 10 to 320 intervals, fewer gave `rigl` up to two points more validation accuracy over 3,000 steps of MNIST-1D, and
# 80 or more gave it two points more over 42,000 (three replicates).
NUM_INTERVALS = 80
FRACTION = 0.3  # of the kept entries that the first change replaces: zeta of SET, alpha of RigL

# From a step, and every variable there, to the gradient of the loss on a training batch with respect to each prunable
# weight, masked entries included.
Gradients = Callable[[int, Weights], Weights]


def no_gradients(step: int, state: Weights) -> Weights:
    """Raise `LotteryError`: a run's files alone give no gradients."""
    raise LotteryError("Gradients need the model and the data.")


def interval(num_steps: int) -> int:
    """Return the number of steps between two changes of masks."""
    return max(1, num_steps // NUM_INTERVALS)


def last_step(num_steps: int) -> int:
    """Return the step up to which masks may change."""
    return max(1, int(SHARE * num_steps))


def gradual(sizes: Mapping[str, int], targets: Mapping[str, int], num_steps: int) -> dict[int, Change]:
    """Prune each weight along a cubic ramp from all of its entries to a number of them.

    Change i of n leaves k + (N - k) (1 - i / n)^3 of N entries, rounded half to even: equation 1 of Zhu & Gupta 2017,
    https://arxiv.org/abs/1710.01878, from density 1 to k / N. The survivors of lowest magnitude go.
    """

    def prune(counts: Mapping[str, int], kept: Masks, state: Weights) -> Masks:
        survivors = num_kept(kept)
        magnitudes = {name: np.abs(state[name]) for name in kept}
        return ranking.prune_counts(magnitudes, kept, {(name,): survivors[name] - counts[name] for name in kept})

    every = interval(num_steps)
    steps = range(every, last_step(num_steps) + 1, every)
    changes = {}
    for place, step in enumerate(steps, 1):
        # In fractions, so that the last change leaves exactly the target, and a half is a half.
        left = (1 - Fraction(place, len(steps))) ** 3
        counts = {name: targets[name] + round((size - targets[name]) * left) for name, size in sizes.items()}
        changes[step] = Change(partial(prune, counts), counts)
    return changes


def set_(counts: Mapping[str, int], num_steps: int, seed: int) -> dict[int, Change]:
    """Replace kept entries of the lowest magnitude by others, at random.

    Sparse evolutionary training, Mocanu et al. 2018, https://arxiv.org/abs/1707.04780, algorithm 1, as Evci et al. 2020
    compare it: at the steps and with the fractions of `fractions`, and new entries at zero.
    """

    def scores(step: int, kept: Masks, state: Weights) -> Scores:
        # A generator for each step, so that a training that is resumed draws what it would have drawn.
        rng = np.random.default_rng([seed, step])
        # By name, so that the order in which a model lists its weights changes no draw.
        return {name: rng.random(kept[name].shape) for name in sorted(kept)}

    return _replacing(counts, num_steps, scores)


def rigl(counts: Mapping[str, int], num_steps: int, gradients: Gradients) -> dict[int, Change]:
    """Replace kept entries of the lowest magnitude by those whose gradients are the largest.

    RigL, Evci et al. 2020, https://arxiv.org/abs/1911.11134, algorithm 1, at the steps and with the fractions of
    `fractions`.
    """

    def scores(step: int, kept: Masks, state: Weights) -> Scores:
        return {name: np.abs(value) for name, value in gradients(step, state).items()}

    return _replacing(counts, num_steps, scores)


def fractions(num_steps: int) -> dict[int, float]:
    """List by step the fraction of each weight's kept entries that `set_` and `rigl` replace after it.

    It is alpha / 2 (1 + cos(pi t / T_end)) after step t, with alpha = 0.3: equation 1 of Evci et al. 2020,
    https://arxiv.org/abs/1911.11134, and the schedule of the authors' script for both methods. The first change comes
    before the first step, as there, and none at T_end, where the fraction is zero.
    """
    end = last_step(num_steps)
    return {step: FRACTION / 2 * (1 + math.cos(math.pi * step / end)) for step in range(0, end, interval(num_steps))}


def _replacing(
    counts: Mapping[str, int], num_steps: int, scores: Callable[[int, Masks, Weights], Scores]
) -> dict[int, Change]:
    """Replace entries at each step of `fractions`: those of the highest scores grow."""

    def replace(step: int, fraction: float, kept: Masks, state: Weights) -> Masks:
        return dropped_and_grown(kept, state, scores(step, kept, state), fraction)

    return {step: Change(partial(replace, step, part), counts) for step, part in fractions(num_steps).items()}


def dropped_and_grown(kept: Masks, state: Weights, scores: Scores, fraction: float) -> Masks:
    """Drop a fraction of each weight's kept entries, and grow as many.

    Of n kept entries, the round(fraction * n) of lowest magnitude are dropped, half to even. Of all entries that are
    not kept then, those of the highest scores grow: an entry may be dropped and grow again, and keeps its value. Ties
    go to the earlier position.
    """
    changed = {}
    for name, mask in kept.items():
        count = share(fraction, int(np.count_nonzero(mask)))
        left = ranking.prune_counts({name: np.abs(state[name])}, {name: mask}, {(name,): count})[name]
        left[~left] = ranking.lowest(-np.asarray(scores[name], np.float64)[~left], count)
        changed[name] = left
    return changed
