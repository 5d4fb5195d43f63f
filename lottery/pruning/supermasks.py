"""Learned masks: scores that are trained while the weights stay fixed, and the masks that are made of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery import masks
from lottery.errors import LotteryError
from lottery.masks import Masks, Weights
from lottery.pruning import ranking

# In a graph, from the scores of a weight and the number of entries to keep: the factor that each entry is multiplied
# with. The gradient goes straight through it.
Factor = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Rule:
    """A way to learn masks."""

    name: str
    factor: Factor
    # Draws the scores that training starts from, for a weight of some shape of which a number of entries is kept.
    first_scores: Callable[[tuple[int, ...], int, np.random.Generator], np.ndarray]
    optimizer: str | dict[str, Any]  # as ``train.optimizer``
    learning_rate: float  # at first; it falls to zero along a cosine


def no_learning(rule: Rule) -> Any:
    """Raise `LotteryError`: a run's files alone cannot train scores."""
    raise LotteryError("Scores need the model and the data.")


def fixed_weights(start: Weights, counts: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Make the weights that masks are learned for: the signs of initial weights, times a constant for each weight.

    The constant is the standard deviation of the weight's initial values, over all of its entries, divided by the
    square root of the density: "signed constant" of Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 5.2,
    scaled as in Ramanujan et al. 2020, https://arxiv.org/abs/1911.13299, section 3.4, so that the outputs of a layer
    vary as much as with all entries. Variables without a count stay as they are.
    """
    fixed = dict(start)
    for name, count in counts.items():
        value = start[name]
        scale = value.std(dtype=np.float64) * np.sqrt(value.size / max(count, 1))
        fixed[name] = (np.sign(value) * scale).astype(value.dtype)
    return fixed


def kept_by(scores: Weights, counts: Mapping[str, int]) -> Masks:
    """Keep the entries of the highest scores, a number of each weight; the later of equal ones, as everywhere."""
    scores = {name: np.asarray(scores[name], np.float32) for name in counts}  # as `highest` ranks them
    dense = masks.ones_like(scores)
    pruned = {(name,): dense[name].size - count for name, count in counts.items()}
    return ranking.prune_counts(scores, dense, pruned)


def highest(scores: Any, count: Any) -> Any:
    """Mark the entries that `kept_by` keeps, in a graph: a boolean tensor."""
    import tensorflow as tf

    # The bits of a float order it among others, so the lowest score that is kept is found bit by bit, by counting: on a
    # CPU that takes a tenth of the time of a sort.
    flat = tf.reshape(tf.cast(scores, tf.float32), [-1])
    bits = tf.bitcast(flat, tf.int32)
    keys = tf.where(bits < 0, tf.bitwise.bitwise_xor(bits, np.int32(2**31 - 1)), bits)
    keys = tf.where(tf.equal(bits, np.int32(-(2**31))), 0, keys)  # negative zero is no less than zero

    def number(marked: Any) -> Any:
        return tf.reduce_sum(tf.cast(marked, tf.int32))

    def add_bit(bit: Any, lowest: Any) -> Any:
        candidate = tf.bitwise.bitwise_xor(lowest, tf.bitwise.left_shift(1, bit))
        return bit - 1, tf.where(number(keys >= candidate) >= count, candidate, lowest)

    first = tf.constant(31), tf.constant(-(2**31))
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


def _of_highest(scores: Any, count: Any) -> Any:
    import tensorflow as tf

    return tf.cast(highest(scores, count), scores.dtype)


def _uniform(shape: tuple[int, ...], count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw scores as Ramanujan et al. do: uniform, within one over the square root of a unit's number of inputs."""
    bound = 1 / np.sqrt(max(np.prod(shape[:-1]), 1))
    return rng.uniform(-bound, bound, shape).astype(np.float32)


EDGE_POPUP = Rule("edge-popup", _of_highest, _uniform, "adam", 1.2e-3)
