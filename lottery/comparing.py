"""Whether two models compute the same: outputs on an example, or on random inputs where they can be made."""

from typing import Any

import numpy as np

from lottery import compiling
from lottery.errors import LotteryError

_NUM_EXAMPLES = 4
_LENGTH = 16  # of dimensions that a model leaves open


def largest_difference(one: Any, other: Any, example: Any = None) -> float:
    """How far the outputs of two models are apart at inference, relative to the largest output.

    Args:
        one, other: Models of one library that take the same inputs.
        example: Inputs as they take them. By default random ones of the first model's shapes and types: normal
            numbers, or indices that all of its Embeddings know, a third of them 0.

    Returns:
        The largest absolute difference over the largest absolute value, over all outputs; 0 if they are the same, and
        infinity where only one of them is not finite.

    Raises:
        LotteryError: There is nothing to compare, and an example is needed.
    """
    made = example is None
    try:
        example = random_inputs(one) if made else example
        outputs = one(example, training=False), other(example, training=False)
    except LotteryError:
        raise
    except Exception as error:  # a user's layers may raise anything
        what = "random inputs, pass some that it takes as example" if made else "the example, pass inputs that it takes"
        raise LotteryError(f"The model {one.name!r} fails on {what}: {compiling.reason(error)}") from error
    return between(*outputs, of=f"the model {one.name!r}")


def between(outputs: Any, others: Any, of: str = "the model") -> float:
    """How far outputs are apart, relative to the largest.

    Args:
        outputs: An array, or arrays in any nesting.
        others: The same of another model.
        of: What gave them, for the error.

    Returns:
        As `largest_difference`.

    Raises:
        LotteryError: They are empty.
    """
    import tensorflow as tf

    first, second = ([np.asarray(value) for value in tf.nest.flatten(values)] for values in (outputs, others))
    if not all(value.size for value in first):
        raise LotteryError(f"The outputs of {of} are empty, so there is nothing to compare; pass a larger example.")
    return max(_difference(*pair) for pair in zip(first, second, strict=True))


def _difference(first: np.ndarray, second: np.ndarray) -> float:
    if first.shape != second.shape or first.dtype.kind in "OSU":
        return 0.0 if np.array_equal(first, second) else np.inf
    first, second = first.astype(np.float64), second.astype(np.float64)
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    if same.all():
        return 0.0
    apart = np.abs(first[~same] - second[~same])
    if not np.isfinite(apart).all():
        return np.inf
    return float(apart.max() / np.abs(first[np.isfinite(first)]).max(initial=np.finfo(np.float32).tiny))


def random_inputs(model: Any, num: int = _NUM_EXAMPLES) -> Any:
    """Random inputs of a model's shapes and types, the same each time, as `largest_difference` takes them.

    Raises:
        LotteryError: They cannot be made, for only the caller knows what is valid.
    """
    import tensorflow as tf

    keras = compiling.keras_of(model)
    rng = np.random.default_rng(0)
    sizes = [layer.input_dim for layer in model._flatten_layers() if isinstance(layer, keras.layers.Embedding)]

    def make(spec: Any) -> Any:
        first, *rest = spec.shape
        shape = [first or num, *(size or _LENGTH for size in rest)]
        dtype = tf.as_dtype(spec.dtype)
        if sizes:  # any of the inputs may be indices, whatever their type
            indices = rng.integers(0, min(sizes), shape)
            indices.flat[::3] = 0  # which is padding, where there is any
            return tf.cast(indices, dtype)
        if not dtype.is_floating:
            raise LotteryError(
                f"The model {model.name!r} takes inputs of type {dtype.name}, of which only you know the valid ones; "
                "pass some as example."
            )
        return tf.cast(rng.normal(size=shape), dtype)

    # A Sequential of Keras 3 has no `input` before it is called as a layer.
    return make(model.inputs[0]) if len(model.inputs) == 1 else tf.nest.map_structure(make, model.input)
