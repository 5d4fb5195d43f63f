"""How often a weight is used: at how many positions of one example each of its entries is multiplied."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from lottery import weights
from lottery.models.library import is_keras

Shape = tuple[int | None, ...]


def uses(model: Any) -> dict[str, int | None]:
    """How many times each entry of a prunable weight is multiplied for one example.

    Once in a Dense on a vector, and as often as the sequence is long in a Dense on a sequence; in a convolution once
    for each output position, those whose window reaches over padding included, as is the custom; in a transposed
    convolution once for each input position; in LSTM, GRU and SimpleRNN once a step; in an Embedding, which looks its
    entries up, never. A layer that is called several times counts each time.

    Args:
        model: A built Keras 3 or tf_keras model; layers may be under pruning wrappers of tfmot.

    Returns:
        By stable name, in the order of `weights.prunable`, a number; or None where nobody can say: the weight is used
        by a layer with a ``call`` of its own, in a model whose ``call`` is its own, or at as many positions as an open
        dimension (None in a shape) has.
    """
    prunable = weights.prunable(model)
    counted: dict[int, list[int | None]] = {id(value): [] for value in prunable.values()}
    names = {id(value): name for name, value in prunable.items()}
    try:
        for layer, taken, given in _calls(model):
            for value in layer.variables:
                if id(value) in counted:
                    counted[id(value)].append(_positions(layer, names[id(value)], taken, given))
    except Exception:  # what Keras keeps of its graphs is its own affair, and no run shall stop for a number
        return dict.fromkeys(prunable)
    every = {name: counted[id(value)] for name, value in prunable.items()}
    return {
        name: sum(one for one in found if one is not None) if found and None not in found else None
        for name, found in every.items()
    }


def _calls(model: Any) -> Iterator[tuple[Any, list[Shape], list[Shape]]]:
    """Each call of a layer on the way to a model's outputs: the layer, shapes of its inputs and of its outputs."""
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
        taken, given = ([_shape(one) for one in tf.nest.flatten(some)] for some in (tensors, node.outputs))
        inner = weights.inside(layer)
        # A model within the model is looked into, as long as it is used with the shapes that its own graph has.
        if _graph_decides(inner) and taken == [_shape(one) for one in tf.nest.flatten(inner.inputs)]:
            yield from _calls(inner)
        elif hasattr(inner, "variables"):  # else an operation without any
            yield inner, taken, given


def _positions(layer: Any, name: str, taken: list[Shape], given: list[Shape]) -> int | None:
    """How many times one call of a layer multiplies an entry of its weight of this name."""
    known = _known(layer)
    own = name.rsplit("/", 1)[-1].rstrip("0123456789").rstrip("_")
    if known is None or own not in known[1]:
        return None
    sizes = known[0](layer, taken[0], given[0])
    return None if None in sizes else math.prod(size for size in sizes if size is not None)


def _spatial(layer: Any, shape: Shape) -> Shape:
    return shape[2:] if layer.data_format == "channels_first" else shape[1:-1]


# Sizes whose product is the number of positions, and the weights that are used there.
_DENSE = (lambda layer, taken, given: given[1:-1]), ("kernel",)


_KERNELS = ("kernel", "depthwise_kernel", "pointwise_kernel")


_CONVOLUTION = (lambda layer, taken, given: _spatial(layer, given)), _KERNELS


_TRANSPOSED = (lambda layer, taken, given: _spatial(layer, taken)), ("kernel",)


_RECURRENT = (lambda layer, taken, given: taken[1:2]), ("kernel", "recurrent_kernel")


_LOOKED_UP = (lambda layer, taken, given: (0,)), ("embeddings",)


# By the name of Keras' class.
_LAYERS: dict[str, tuple[Callable[[Any, Shape, Shape], Shape], tuple[str, ...]]] = {
    "Dense": _DENSE,
    **dict.fromkeys(("Conv1D", "Conv2D", "Conv3D"), _CONVOLUTION),
    **dict.fromkeys(("DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D"), _CONVOLUTION),
    **dict.fromkeys(("Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose"), _TRANSPOSED),
    **dict.fromkeys(("LSTM", "GRU", "SimpleRNN"), _RECURRENT),
    "Embedding": _LOOKED_UP,
}


def _known(layer: Any) -> Any:
    """What is known of a layer's class, or of the one that it inherits its ``call`` from."""
    for cls in type(layer).__mro__:
        if cls.__name__ in _LAYERS and is_keras(cls):
            return _LAYERS[cls.__name__] if type(layer).call is cls.call else None
    return None


def _graph_decides(model: Any) -> bool:
    """Whether a layer is a Sequential or functional model that computes what its graph says, and nothing else."""
    for cls in type(model).__mro__:
        if cls.__name__ in ("Sequential", "Functional") and is_keras(cls):
            return type(model).call is cls.call and bool(model.outputs)
    return False


def _shape(tensor: Any) -> Shape:
    return tuple(tensor.shape)
