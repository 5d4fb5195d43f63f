"""Multiply-adds of a model: how many times each entry of a prunable weight is multiplied for one example."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lottery import weights
from lottery.models import graph
from lottery.models.graph import Shape


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
                name = names.get(id(value))
                if name is not None:
                    found[name].append(_in_one_call(call, name))
    except Exception:  # Keras may keep its graphs in another way, and no run should stop for a number
        return dict.fromkeys(prunable)
    return {name: _sum(counts) for name, counts in found.items()}


def of_kept(kept: Mapping[str, int], per_entry: Mapping[str, int | None]) -> int | None:
    """Count the multiply-adds for one example, without biases and normalisation; None if those of a weight are unknown.

    The arguments are from `lottery.masks.num_kept` and `per_entry`.
    """
    total = 0
    for name, num in kept.items():
        times = per_entry.get(name)
        if times is None:
            return None
        total += num * times
    return total


def _sum(counts: Sequence[int | None]) -> int | None:
    """Add up the counts of a weight's calls; None if there is no call, or one is not known."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def of_dense(model: Any) -> int | None:
    """Count the multiply-adds of a model without masks, as `of_kept` does."""
    sizes = {name: math.prod(value.shape) for name, value in weights.prunable(model).items()}
    return of_kept(sizes, per_entry(model))


class Call(NamedTuple):
    """A call of a layer in a network, in as far as multiply-adds depend on it."""

    layer: Any
    taken: Shape  # of its first input; so is `returned` of its first output
    returned: Shape
    times: int | None = 1  # how often it is made for one example
    arguments: Mapping[str, Any] = {}  # tensors, by the names of the layer's ``call``


def _calls(model: Any) -> Iterator[Call]:
    """Yield each call of a layer on the way to a model's outputs; in place of a wrapper's, those within."""
    if not graph.is_graph(model):
        return
    for call in graph.calls(model):
        # An operation has no variables, and an InputLayer takes nothing.
        if call.inputs and hasattr(weights.inside(call.layer), "variables"):
            taken, returned = graph.shapes(call.inputs), graph.shapes(call.outputs)
            yield from _within(Call(call.layer, taken[0], returned[0], arguments=call.arguments), taken)


def _within(call: Call, taken: Sequence[Shape]) -> Iterator[Call]:
    """Yield a call, or in its place those that it makes of the layers within it."""
    layer = weights.inside(call.layer)
    call = call._replace(layer=layer)
    made = _MADE_BY_WRAPPERS.get(_rule(layer), lambda call: [])(call)
    # A model within the model counts layer by layer, if it is called with the shapes that its own graph has.
    if graph.is_graph(layer) and list(taken) == graph.shapes(layer.inputs):
        inner = _calls(layer)
    elif made:
        inner = itertools.chain.from_iterable(_within(other, [other.taken]) for other in made)
    else:
        yield call
        return
    for other in inner:
        times = None if other.times is None or call.times is None else other.times * call.times
        yield other._replace(times=times)


def _in_one_call(call: Call, name: str) -> int | None:
    """Multiply-adds of one entry of the weight `name` in one call of a layer; None if they are unknown."""
    rule = _RULES.get(_rule(call.layer))
    # Without the number of the second weight that a layer calls so, as in `kernel_1`.
    own = name.rsplit("/", 1)[-1].rstrip("0123456789").rstrip("_")
    if rule is None or own not in _MULTIPLIED:
        return None
    sizes = (call.times, *rule(call.layer, call.taken, call.returned))
    known = [size for size in sizes if size is not None]
    return math.prod(known) if len(known) == len(sizes) else None


def _rule(layer: Any) -> str:
    """Name the rule for a layer's class, or an empty one."""
    name = graph.inherited_name(layer)
    return graph.LAYERS[name].multiplied if name else ""


# The weights that the rules hold for; others of the same layers, such as slopes, are multiplied in other ways.
_MULTIPLIED = ("kernel", "recurrent_kernel", "depthwise_kernel", "pointwise_kernel", "embeddings")


def _spatial(layer: Any, shape: Shape) -> Shape:
    return shape[2:] if layer.data_format == "channels_first" else shape[1:-1]


def _steps_and_spatial(layer: Any, taken: Shape, returned: Shape) -> Shape:
    places = _spatial(layer, _without_steps(returned) if layer.return_sequences else returned)
    return (taken[1], *places)


def _outside_kernel(layer: Any, taken: Shape, returned: Shape) -> Shape:
    """Return the sizes of the input's axes that the kernel of an EinsumDense does not have, without the examples."""
    named, kernel = layer.equation.partition("->")[0].split(",")
    kernel = kernel.replace(".", "")
    left, dots, right = named.partition("...")
    unnamed = len(taken) - len(left) - len(right)
    axes = [*left, *("." * unnamed if dots else ""), *right]
    if len(axes) != len(taken) or axes[0] in kernel:
        return (None,)
    return tuple(size for axis, size in zip(axes[1:], taken[1:], strict=True) if axis not in kernel)


# By the rule in `lottery.models.graph`: the sizes whose product is the number of multiply-adds of an entry in one call,
# from the layer and the shapes of its input and output.
_RULES: dict[str, Callable[[Any, Shape, Shape], Shape]] = {
    "vectors": lambda layer, taken, returned: returned[1:-1],
    "output places": lambda layer, taken, returned: _spatial(layer, returned),
    "input places": lambda layer, taken, returned: _spatial(layer, taken),
    "steps": lambda layer, taken, returned: taken[1:2],
    "once": lambda layer, taken, returned: (),
    "steps and places": _steps_and_spatial,
    "equation": _outside_kernel,
    "never": lambda layer, taken, returned: (0,),
}


def _at_each_step(call: Call) -> list[Call]:
    return [Call(call.layer.layer, _without_steps(call.taken), _without_steps(call.returned), call.taken[1])]


def _in_both_directions(call: Call) -> list[Call]:
    return [Call(layer, call.taken, call.returned) for layer in (call.layer.forward_layer, call.layer.backward_layer)]


def _by_cells(call: Call) -> list[Call]:
    cells = getattr(call.layer.cell, "cells", [call.layer.cell])
    return [Call(cell, _without_steps(call.taken), _without_steps(call.returned), call.taken[1]) for cell in cells]


def _projections(call: Call) -> list[Call]:
    query, value, key = (call.arguments.get(name) for name in ("query", "value", "key"))
    if query is None or value is None:
        return []
    of_query, of_value = tuple(query.shape), tuple(value.shape)
    of_key = of_value if key is None else tuple(key.shape)
    projected = (*of_query[:-1], None, None)  # heads and their sizes, which the kernel has too
    taken = {"query": of_query, "key": of_key, "value": of_value, "output": projected, "gate": of_query}
    made = graph.projections(call.layer)
    return [Call(layer, taken[what], ()) for what, layer in made.items() if layer is not None]


def _without_steps(shape: Shape) -> Shape:
    return (*shape[:1], *shape[2:])


# By the rule of a layer with layers within: the calls of these in a call of it, or nothing where they are unknown.
_MADE_BY_WRAPPERS: dict[str, Callable[[Call], list[Call]]] = {
    "at each step": _at_each_step,
    "in both directions": _in_both_directions,
    "by cells": _by_cells,
    "inside": lambda call: [call._replace(layer=call.layer.layer, times=1)],
    "projections": _projections,
}
