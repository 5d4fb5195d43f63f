"""Mistakes in a caller's model or data that train without an error: found before training, told before the verdict."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lottery.data import Splits
from lottery.streams import Streams

_BRIGHTEST = 255  # the largest value of a pixel of one byte
_DIM = 100  # no pixel of an unscaled data set is brighter than this only if all images are dark
# Layers that bring their inputs to a common scale.
_SCALING = ("Rescaling", "Normalization", "BatchNormalization", "LayerNormalization", "Embedding")


def found(model: Any, loaded: Splits | Streams, inputs: Any) -> Iterator[str]:
    """Yield a sentence for each mistake; `inputs` are a few examples, as the model takes them."""
    yield from _of_the_head(model, inputs)
    if isinstance(loaded, Splits):
        yield from _of_the_pixels(model, loaded.train.x)


def _of_the_head(model: Any, inputs: Any) -> Iterator[str]:
    name, takes_logits = _loss(model.loss)
    if "crossentropy" not in name:
        return
    outputs = model(inputs, training=False)
    if not hasattr(outputs, "shape"):  # a dict or a list is taken apart by the loss
        return
    values = np.asarray(outputs, np.float64)
    are_shares = bool(((values >= 0) & (values <= 1)).all())
    if not takes_logits and not are_shares:
        yield (
            "The model returns logits, but its loss takes probabilities, so it does not learn what it should. Compile "
            "the model with a loss that has from_logits=True."
        )
    # A sigmoid tells nothing: small logits may lie between 0 and 1 as well.
    if takes_logits and are_shares and "categorical" in name and np.allclose(values.sum(-1), 1, atol=1e-3):
        yield (
            "The model returns probabilities, but its loss takes logits. Compile the model with a loss that has "
            "from_logits=False, or leave the softmax out."
        )


def _loss(compiled: Any) -> tuple[str, bool]:
    """Return the name of a compiled loss in small letters without underscores, and if it takes logits."""
    is_alone_in_a_list = isinstance(compiled, (list, tuple)) and len(compiled) == 1
    loss: Any = compiled[0] if is_alone_in_a_list else compiled
    if isinstance(loss, str):
        return loss.replace("_", "").lower(), False
    name = getattr(loss, "__name__", type(loss).__name__)
    takes_logits = bool(loss.get_config().get("from_logits")) if hasattr(loss, "get_config") else False
    return name.replace("_", "").lower(), takes_logits


def _of_the_pixels(model: Any, x: np.ndarray) -> Iterator[str]:
    if x.dtype == np.uint8 or not x.size or any(type(layer).__name__ in _SCALING for layer in model.layers[:3]):
        return  # bytes are scaled by the toolkit
    if x.min() >= 0 and _DIM < x.max() <= _BRIGHTEST:
        yield (
            f"The inputs go from {x.min():g} to {x.max():g}, as pixels do, and nothing scales them. Divide them by "
            "255, or begin the model with keras.layers.Rescaling(1 / 255)."
        )
