"""Compare what models compute: their outputs on an example, or on random inputs where these can be made."""

from collections.abc import Callable
from typing import Any

import numpy as np

from lottery import weights
from lottery.errors import LotteryError
from lottery.models.kerases import evaluating, keras_of, tf

_NUM_EXAMPLES = 4
_BATCH = 256
_LENGTH = 16  # of dimensions that a model leaves open


def largest_difference(model: Any, other: Any, example: Any = None) -> float:
    """Compute how far two models are apart at inference, as `between`, on an example or on `random_inputs`."""
    what = "the example, pass inputs that it takes"
    if example is None:
        what = "random inputs, pass some that it takes as example"
    with evaluating(f"The model {model.name!r} fails on {what}"):
        if example is None:
            example = random_inputs(model)
        own = evaluate(model, example, batch_size(model), training=False)
        others = evaluate(other, example, batch_size(other), training=False)
    return between(own, others, of=f"the model {model.name!r}")


def evaluate(function: Callable[..., Any], inputs: Any, size: int | None = None, **settings: Any) -> list[np.ndarray]:
    """Compute the outputs of a model or a function in batches: a flat list of arrays, in any nesting before.

    `size` is the number of examples in every batch, if the function takes no other; see `batch_size`.
    """
    batches = []
    total, step = len(tf.nest.flatten(inputs)[0]), size or _BATCH
    # No examples are a batch, too: what it returns says how many outputs there are.
    for first in range(0, max(1, total), step):
        batch = tf.nest.map_structure(lambda array, at=first: filled(array[at : at + step], size), inputs)
        found = _arrays(function(batch, **settings))
        if size:  # the last may be filled up
            found = [array[: total - first] for array in found]
        batches.append(found)
    return [np.concatenate(parts) for parts in zip(*batches, strict=True)]


def batch_size(model: Any) -> int | None:
    """Return the number of examples that a model is built for, or None if it takes any number."""
    inputs = getattr(model, "inputs", None)
    return inputs[0].shape[0] if inputs else None


def as_taken(array: Any, spec: Any) -> np.ndarray:
    """Give examples the type of a model's input, and its rank: Keras itself adds or drops a last dimension of 1."""
    array = np.asarray(array, tf.as_dtype(spec.dtype).as_numpy_dtype)
    rank = len(spec.shape)
    if array.ndim == rank - 1 and spec.shape[-1] == 1:
        return array[..., np.newaxis]
    if array.ndim == rank + 1 and array.shape[-1] == 1:
        return array[..., 0]
    return array


def filled(batch: Any, size: int | None) -> Any:
    """Repeat the last example of a batch until there are `size`, if that is a number."""
    if size is None or not 0 < len(batch) < size:
        return batch
    array = np.asarray(batch)
    return np.concatenate([array, np.repeat(array[-1:], size - len(array), axis=0)])


def comparable(outputs: Any, of: str = "the model") -> list[np.ndarray]:
    """Return outputs, in any nesting, as a list of arrays; raise if one is empty or only NaN and infinities."""
    arrays = _arrays(outputs)
    for array in arrays:
        if not array.size:
            raise LotteryError(f"The outputs of {of} are empty, so there is nothing to compare; pass a larger example.")
        if not (_is_text(array) or np.isfinite(array.astype(np.float64)).any()):
            raise LotteryError(
                f"The outputs of {of} are NaN or infinite, so there is nothing to compare; pass other inputs, or "
                "look for weights that are not finite."
            )
    return arrays


def between(outputs: Any, others: Any, of: str = "the model") -> float:
    """Return the largest absolute difference in an output over the output's largest finite absolute value.

    Infinite where shapes differ, or only one has NaN or an infinity. `outputs`, in any nesting, must be `comparable`.
    """
    first, second = comparable(outputs, of), _arrays(others)
    if len(first) != len(second):
        return np.inf
    return max(_difference(*pair) for pair in zip(first, second, strict=True))


def _difference(first: np.ndarray, second: np.ndarray) -> float:
    if first.shape != second.shape or _is_text(first):
        return 0.0 if np.array_equal(first, second) else np.inf
    first, second = first.astype(np.float64), second.astype(np.float64)
    # Equal infinities are among them: their difference would be NaN.
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    if same.all():
        return 0.0
    apart = np.abs(first[~same] - second[~same])
    if not np.isfinite(apart).all():
        return np.inf
    # The largest output may be zero, by which nothing can be divided.
    return float(apart.max()) / float(np.abs(first[np.isfinite(first)]).max(initial=np.finfo(np.float32).tiny))


def _arrays(outputs: Any) -> list[np.ndarray]:
    return [np.asarray(value) for value in tf.nest.flatten(outputs)]


def _is_text(array: np.ndarray) -> bool:
    return array.dtype.kind in "OSU"


def random_inputs(model: Any) -> Any:
    """Make a model's inputs, always the same: normal numbers, or indices for its Embeddings, a third of them 0."""
    keras, rng = keras_of(model), np.random.default_rng(0)
    sizes = [layer.input_dim for layer in weights.all_layers(model) if isinstance(layer, keras.layers.Embedding)]

    def make(spec: Any) -> Any:
        first, *rest = spec.shape
        shape = [first or _NUM_EXAMPLES, *(size or _LENGTH for size in rest)]
        dtype = tf.as_dtype(spec.dtype)
        if sizes:  # any of the inputs may be indices, whatever their type
            indices = rng.integers(0, min(sizes), shape)
            indices.flat[::3] = 0  # the index of padding
            return tf.cast(indices, dtype)
        if not dtype.is_floating:
            raise LotteryError(
                f"The model {model.name!r} takes inputs of type {dtype.name}, whose valid values only you know; "
                "pass an example."
            )
        return tf.cast(rng.normal(size=shape), dtype)

    # A Sequential of Keras 3 has no `input` before it is called as a layer.
    return make(model.inputs[0]) if len(model.inputs) == 1 else tf.nest.map_structure(make, model.input)
