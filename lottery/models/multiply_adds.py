"""Multiply-adds of a model: how many times each entry of a prunable weight is multiplied for one example."""

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

from lottery import weights
from lottery.models.library import is_keras

Shape = tuple[int | None, ...]


def per_entry(model: Any) -> dict[str, int | None]:
    """Count the multiply-adds of one entry of each prunable weight for one example, in the order of `weights.prunable`.

    A Dense layer multiplies an entry once for a vector, and once per step for a sequence; a convolution once per output
    position, windows that reach over padding included, as is usual; a transposed convolution once per input position;
    LSTM, GRU and SimpleRNN once per step; an Embedding, which looks its entries up, never. A layer that is called
    several times counts each call. None where the layer or the model has a ``call`` of its own, or a dimension is open.
    """
    prunable = weights.prunable(model)
    found: dict[str, list[int | None]] = {name: [] for name in prunable}
    names = {id(value): name for name, value in prunable.items()}
    try:
        for layer, taken, returned in _calls(model):
            for value in layer.variables:
                if name := names.get(id(value)):
                    found[name].append(_in_one_call(layer, name, taken[0], returned[0]))
    except Exception:  # Keras may keep its graphs in another way, and no run should stop for a number
        return dict.fromkeys(prunable)
    return {
        name: sum(count for count in counts if count is not None) if counts and None not in counts else None
        for name, counts in found.items()
    }


def _calls(model: Any) -> Iterator[tuple[Any, list[Shape], list[Shape]]]:
    """Yield each call of a layer on the way to a model's outputs: the layer, shapes of its inputs and outputs."""
    import tensorflow as tf

    if not _graph_decides(model):
        return
    waiting, seen = list(tf.nest.flatten(model.outputs)), set()
    while waiting:
        layer, index = waiting.pop()._keras_history[:2]
        if layer is None or (id(layer), index) in seen:
            continue
        seen.add((id(layer), index))
        node = layer._inbound_nodes[index]
        tensors = node.keras_inputs if hasattr(node, "keras_inputs") else node.input_tensors
        if node.is_input:
            continue
        waiting.extend(tensors)
        taken, returned = _shapes(tensors), _shapes(node.outputs)
        inner = weights.inside(layer)
        # A model within the model counts layer by layer, if it is called with the shapes that its own graph has.
        if _graph_decides(inner) and taken == _shapes(inner.inputs):
            yield from _calls(inner)
        elif hasattr(inner, "variables"):  # else an operation, which has none
            yield inner, taken, returned


def _in_one_call(layer: Any, name: str, taken: Shape, returned: Shape) -> int | None:
    """Multiply-adds of one entry of the weight `name` in one call of a layer; None if they are unknown."""
    sizes, own_names = _LAYERS.get(_keras_class(layer, _LAYERS), (None, ()))
    own = name.rsplit("/", 1)[-1].rstrip("0123456789").rstrip("_")
    if sizes is None or own not in own_names:
        return None
    found = sizes(layer, taken, returned)
    return None if None in found else math.prod(size for size in found if size is not None)


def _spatial(layer: Any, shape: Shape) -> Shape:
    return shape[2:] if layer.data_format == "channels_first" else shape[1:-1]


# By Keras class: the sizes whose product is the number of multiply-adds of an entry in one call, from the layer and
# the shapes of its input and output; and the weights that this holds for.
_KERNELS = ("kernel", "depthwise_kernel", "pointwise_kernel")
_CONVOLUTION = (lambda layer, taken, returned: _spatial(layer, returned)), _KERNELS
_TRANSPOSED = (lambda layer, taken, returned: _spatial(layer, taken)), ("kernel",)
_RECURRENT = (lambda layer, taken, returned: taken[1:2]), ("kernel", "recurrent_kernel")
_LAYERS: dict[str | None, tuple[Callable[[Any, Shape, Shape], Shape], tuple[str, ...]]] = {
    "Dense": (lambda layer, taken, returned: returned[1:-1], ("kernel",)),
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D"), _CONVOLUTION),
    **dict.fromkeys(("DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D"), _CONVOLUTION),
    **dict.fromkeys(("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"), _TRANSPOSED),
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN"), _RECURRENT),
    "Embedding": (lambda layer, taken, returned: (0,), ("embeddings",)),
}


def _keras_class(layer: Any, names: Collection[str | None]) -> str | None:
    """Name of the Keras class, one of `names`, whose ``call`` a layer has; None if it has another ``call``."""
    for cls in type(layer).__mro__:
        if cls.__name__ in names and is_keras(cls):
            return cls.__name__ if type(layer).call is cls.call else None
    return None


def _graph_decides(model: Any) -> bool:
    """Check if a layer is a Sequential or functional model that computes its graph, and nothing else."""
    return bool(_keras_class(model, ("Sequential", "Functional")) and model.outputs)


def _shapes(tensors: Any) -> list[Shape]:
    import tensorflow as tf

    return [tuple(tensor.shape) for tensor in tf.nest.flatten(tensors)]
