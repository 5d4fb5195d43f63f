"""Examples that rounding may decide: those whose two highest outputs are nearly equal."""

from typing import Any

import numpy as np

from lottery.data import Splits, Streams
from lottery.training.examples import fixed_batch, scaler
from lottery.training.loop import EVALUATION_BATCH

# How far apart outputs may be, as a share of the largest, for another processor to order them otherwise.
ROUNDING, ROUNDING_IN_HALF = 3e-5, 0.02


def tied(model: Any, data: Splits | Streams, split: str, rounding: float) -> np.ndarray | None:
    """Find the examples of a split that rounding may decide, in the state that a model is in.

    Returns:
        A boolean array, True where the two highest outputs are at most `rounding` of the largest absolute output apart.
        None for examples that are not an array, or outputs other than a row of two or more for each example.
    """
    import tensorflow as tf

    if isinstance(data, Streams):
        return None
    x, scaled = getattr(data, split).x, scaler(data)
    # As they are evaluated: sums over other batches may round otherwise.
    size = fixed_batch(model) or min(EVALUATION_BATCH, len(x))
    found = np.zeros(len(x), bool)
    for begin in range(0, len(x), size):
        first = min(begin, len(x) - size)  # the last batch may overlap the batch before
        outputs = model(scaled(tf.constant(x[first : first + size])), training=False)
        if not tf.is_tensor(outputs) or outputs.ndim != 2 or outputs.shape[1] < 2:
            return None
        values = np.sort(np.asarray(outputs, np.float64), axis=1)
        apart, largest = values[:, -1] - values[:, -2], np.abs(values).max(axis=1)
        found[first : first + size] = apart <= rounding * largest
    return found
