"""Learned masks: scores that are trained while the weights stay fixed, and the masks that are made of them.

The edge-popup of Ramanujan et al. 2020, https://arxiv.org/abs/1911.13299: see `lottery.pruning.branches.supermask`.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lottery import masks
from lottery.errors import LotteryError
from lottery.masks import Masks, Weights
from lottery.models.kerases import tf
from lottery.pruning import ranking

OPTIMIZER = "adam"  # of the scores, as ``train.optimizer``
LEARNING_RATE = 1.2e-3  # at first; it falls to zero along a cosine


def no_learning() -> Any:
    """Raise `LotteryError`: a run's files alone cannot train scores."""
    raise LotteryError("Scores need the model and the data.")


def fixed_weights(start: Weights, counts: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Make the weights that masks are learned for: the signs of initial weights, times a constant for each weight.

    The constant is sqrt(2 / (n d)), where n is the number of inputs of a unit of a Dense or Conv layer, the product
    of a kernel's axes but the last, and d the density: "signed Kaiming constant", scaled by the density, of
    Ramanujan et al. 2020, https://arxiv.org/abs/1911.13299, sections 3.4 and 4. So the outputs of a ReLU layer vary
    as much as its inputs. Variables without a count stay as they are.
    """
    fixed = dict(start)
    for name, count in counts.items():
        value = start[name]
        # Where nothing is kept, the scale does not matter, but must be finite.
        density = max(count, 1) / value.size
        scale = np.sqrt(2 / (_num_inputs(value.shape) * density))
        fixed[name] = (np.sign(value) * scale).astype(value.dtype)
    return fixed


def kept_by(scores: Weights, counts: Mapping[str, int]) -> Masks:
    """Keep the entries of the largest absolute scores, a number of each weight; the later of equal ones."""
    # In single precision, as `highest` ranks them by their bits: other types could have other ties.
    scores = {name: np.abs(np.asarray(scores[name], np.float32)) for name in counts}
    dense = masks.ones_like(scores)
    pruned = {(name,): dense[name].size - count for name, count in counts.items()}
    return ranking.prune_counts(scores, dense, pruned)


def highest(scores: Any, count: Any) -> Any:
    """Mark the entries that `kept_by` keeps, in a graph: a boolean tensor."""
    # The bits of a float that is not negative order it among others, so the lowest that is kept is found bit by bit, by
    # counting: on a CPU that takes a tenth of the time of a sort.
    keys = tf.bitcast(tf.abs(tf.reshape(tf.cast(scores, tf.float32), [-1])), tf.int32)

    def number(marked: Any) -> Any:
        return tf.reduce_sum(tf.cast(marked, tf.int32))

    def add_bit(bit: Any, lowest: Any) -> Any:
        candidate = tf.bitwise.bitwise_or(lowest, tf.bitwise.left_shift(1, bit))
        return bit - 1, tf.where(number(keys >= candidate) >= count, candidate, lowest)

    # Bit 31 is the sign, which is 0.
    first = tf.constant(30), tf.constant(0)
    lowest = tf.while_loop(lambda bit, _: bit >= 0, add_bit, first)[1]
    # Of the entries at the lowest score, the earlier go: find the position before which as many lie as are too many.
    equal, place = tf.equal(keys, lowest), tf.range(tf.size(keys))
    too_many = number(keys >= lowest) - count

    def halve(low: Any, high: Any) -> Any:
        middle = (low + high) // 2
        enough = number(equal & (place < middle)) >= too_many
        return tf.where(enough, low, middle + 1), tf.where(enough, middle, high)

    ends = tf.constant(0), tf.where(too_many > 0, tf.size(keys), 0)
    begin = tf.while_loop(lambda low, high: low < high, halve, ends)[0]
    return tf.reshape((keys > lowest) | (equal & (place >= begin)), scores.shape)


def factor(scores: Any, count: Any) -> Any:
    """Compute, in a graph, what each entry of a weight is multiplied with: 1 if `kept_by` keeps it, or else 0."""
    sizes = tf.abs(scores)
    kept = tf.cast(highest(scores, count), scores.dtype)
    # The difference is zero, and lets the gradient go straight through the ranking, but not through the absolute value.
    return tf.stop_gradient(kept) + (sizes - tf.stop_gradient(sizes))


def first_scores(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Draw scores as Ramanujan et al. do: uniform, within one over the square root of a unit's number of inputs."""
    bound = 1 / np.sqrt(_num_inputs(shape))
    return rng.uniform(-bound, bound, shape).astype(np.float32)


def _num_inputs(shape: tuple[int, ...]) -> int:
    return max(math.prod(shape[:-1]), 1)
