"""Multiply-adds of a model: how many times each entry of a prunable weight is multiplied for one example."""

import inspect
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lottery import weights
from lottery.models.kerases import is_keras

Shape = tuple[int | None, ...]


def per_entry(model: Any) -> dict[str, int | None]:
    """Count the multiply-adds of one entry of each prunable weight for one example, in the order of `weights.prunable`.

    A Dense layer multiplies an entry once for a vector, and once per step for a sequence, and an EinsumDense once for
    each place along the axes that its kernel does not have; a convolution once per output position, windows that reach
    over padding included, as is usual; a transposed convolution once per input position; LSTM, GRU and SimpleRNN once
    per step; an Embedding, which looks its entries up, never. Attention counts its projections, and not the products
    of queries, keys and values, which have no weights. A layer that is called several times counts each call. None
    where the layer or the model has a ``call`` of its own, or a dimension is open.
    """
    prunable = weights.prunable(model)
    found: dict[str, list[int | None]] = {name: [] for name in prunable}
    names = {id(value): name for name, value in prunable.items()}
    try:
        for call in _calls(model):
            for value in call.layer.variables:
                if name := names.get(id(value)):
                    found[name].append(_in_one_call(call, name))
    except Exception:  # Keras may keep its graphs in another way, and no run should stop for a number
        return dict.fromkeys(prunable)
    return {
        name: sum(count for count in counts if count is not None) if counts and None not in counts else None
        for name, counts in found.items()
    }


def of_kept(kept: Mapping[str, int], per_entry: Mapping[str, int | None]) -> int | None:
    """Count the multiply-adds for one example, without biases and normalisation; None if those of a weight are unknown.

    The arguments are from `lottery.masks.num_kept` and `per_entry`.
    """
    known = {name: per_entry.get(name) for name in kept}
    return None if None in known.values() else sum(kept[name] * (known[name] or 0) for name in kept)


class Call(NamedTuple):
    """A call of a layer in a network."""

    layer: Any
    taken: Shape  # of its first input; so is `returned` of its first output
    returned: Shape
    times: int | None = 1  # how often it is made for one example
    arguments: Mapping[str, Any] = {}  # tensors, by the names of the layer's ``call``


def _calls(model: Any) -> Iterator[Call]:
    """Yield each call of a layer on the way to a model's outputs; in place of a wrapper's, those within."""
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
        if hasattr(weights.inside(layer), "variables"):  # else an operation, which has none
            shapes = _shapes(tensors), _shapes(node.outputs)
            yield from _within(Call(layer, shapes[0][0], shapes[1][0], arguments=_arguments(layer, node)), shapes[0])


def _within(call: Call, taken: Sequence[Shape]) -> Iterator[Call]:
    """Yield a call, or in its place those that it makes of the layers within it."""
    layer = weights.inside(call.layer)
    # A model within the model counts layer by layer, if it is called with the shapes that its own graph has.
    if _graph_decides(layer) and list(taken) == _shapes(layer.inputs):
        inner = _calls(layer)
    elif (name := _keras_class(layer, _WRAPPERS)) and (made := _WRAPPERS[name](call._replace(layer=layer))):
        inner = itertools.chain.from_iterable(_within(one, [one.taken]) for one in made)
    else:
        yield call._replace(layer=layer)
        return
    for one in inner:
        times = None if one.times is None or call.times is None else one.times * call.times
        yield one._replace(times=times)


def _arguments(layer: Any, node: Any) -> dict[str, Any]:
    """Return what a layer is called with, by the names of the arguments of its ``call``."""
    if hasattr(node, "call_args"):
        args, kwargs = node.call_args, node.call_kwargs
    else:
        args, kwargs = node.arguments.args, node.arguments.kwargs
    try:
        return dict(inspect.signature(layer.call).bind_partial(*args, **kwargs).arguments)
    except TypeError:  # Keras passes arguments that a layer of the user's does not name
        return {}


# By the class of a layer with layers within: the calls of these in a call of it, or nothing where they are unknown.


def _at_each_step(call: Call) -> list[Call]:
    return [Call(call.layer.layer, _without_steps(call.taken), _without_steps(call.returned), call.taken[1])]


def _in_both_directions(call: Call) -> list[Call]:
    return [Call(one, call.taken, call.returned) for one in (call.layer.forward_layer, call.layer.backward_layer)]


def _by_cells(call: Call) -> list[Call]:
    cells = getattr(call.layer.cell, "cells", [call.layer.cell])
    return [Call(cell, _without_steps(call.taken), _without_steps(call.returned), call.taken[1]) for cell in cells]


def _projections(call: Call) -> list[Call]:
    layer, (query, value) = call.layer, (call.arguments.get(name) for name in ("query", "value"))
    key = call.arguments.get("key")
    if query is None or value is None:
        return []
    of_query, of_value = tuple(query.shape), tuple(value.shape)
    projected = (*of_query[:-1], None, None)  # heads and their sizes, which the kernel has too
    made = [
        (layer._query_dense, of_query),
        (layer._key_dense, of_value if key is None else tuple(key.shape)),
        (layer._value_dense, of_value),
        (layer._output_dense, projected),
        (getattr(layer, "_gate_dense", None), of_query),
    ]
    return [Call(one, shape, ()) for one, shape in made if one is not None]


def _without_steps(shape: Shape) -> Shape:
    return (*shape[:1], *shape[2:])


_WRAPPERS: dict[str, Callable[[Call], list[Call]]] = {
    "TimeDistributed": _at_each_step,
    "Bidirectional": _in_both_directions,
    "RNN": _by_cells,
    "SpectralNormalization": lambda call: [call._replace(layer=call.layer.layer, times=1)],
    "MultiHeadAttention": _projections,
    "GroupedQueryAttention": _projections,
}


def _in_one_call(call: Call, name: str) -> int | None:
    """Multiply-adds of one entry of the weight `name` in one call of a layer; None if they are unknown."""
    layer, taken, returned = call[:3]
    sizes, own_names = _LAYERS.get(_keras_class(layer, _LAYERS), (None, ()))
    own = name.rsplit("/", 1)[-1].rstrip("0123456789").rstrip("_")
    if sizes is None or own not in own_names:
        return None
    found = (call.times, *sizes(layer, taken, returned))
    return None if None in found else math.prod(size for size in found if size is not None)


def _spatial(layer: Any, shape: Shape) -> Shape:
    return shape[2:] if layer.data_format == "channels_first" else shape[1:-1]


def _steps_and_spatial(layer: Any, taken: Shape, returned: Shape) -> Shape:
    return (taken[1], *_spatial(layer, _without_steps(returned) if layer.return_sequences else returned))


def _outside_kernel(layer: Any, taken: Shape, returned: Shape) -> Shape:
    """Return the sizes of the input's axes that the kernel of an EinsumDense does not have, without the examples."""
    named, kernel = layer.equation.partition("->")[0].split(",")
    left, dots, right = named.partition("...")
    axes = [*left, *("." * (len(taken) - len(left) - len(right)) if dots else ""), *right]
    if len(axes) != len(taken) or axes[0] in kernel.replace(".", ""):
        return (None,)
    return tuple(size for axis, size in zip(axes[1:], taken[1:], strict=True) if axis not in kernel.replace(".", ""))


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
    **dict.fromkeys(("LSTMCell", "GRUCell", "SimpleRNNCell"), ((lambda *_: ()), _RECURRENT[1])),
    **dict.fromkeys(("ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"), (_steps_and_spatial, _RECURRENT[1])),
    "EinsumDense": (_outside_kernel, ("kernel",)),
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
