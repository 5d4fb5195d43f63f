"""Which kernels make and read the units of a network, so that a unit can be taken out of all of them."""

import graphlib
from dataclasses import dataclass, field
from typing import Any, TypedDict

from lottery import weights
from lottery.errors import LotteryError
from lottery.models.kerases import EFFECTS, MIXING, WEIGHTED, is_entrywise, is_keras, keras_of, obstacle

# Layers that compute entry i from entry i of each input, so that their inputs share their units.
_MERGING = ("Add", "Subtract", "Multiply", "Average", "Maximum", "Minimum")


class Units(TypedDict):
    """Units that stay or go together: as many as `size`, made and read by kernels of these names, in their order.

    Unit i is index i of the last axis of each kernel that makes it. A kernel that reads it does so at each index j of
    its last axis but one with j % size == i: after a Flatten, a channel has an entry at every position.
    """

    size: int
    made_by: list[str]
    read_by: list[str]


def kernels(model: Any) -> list[str]:
    """List the prunable kernels of Dense and convolutions, whose last axes are inputs and outputs."""
    layers, names = keras_of(model).layers, {id(value): name for name, value in weights.prunable(model).items()}
    kinds = tuple(getattr(layers, name) for name, effect in EFFECTS.items() if effect == WEIGHTED)
    found = [layer for layer in model._flatten_layers() if isinstance(layer, kinds)]
    return [names[id(value)] for layer in found for value in layer.weights[:1] if id(value) in names]


@dataclass
class _Set:
    """Units that some tensors have in common, while a network is read."""

    size: int
    convolution: bool = False  # a convolution makes them
    made_by: list[str] = field(default_factory=list)
    read_by: list[str] = field(default_factory=list)
    mixed_by: str = ""  # a layer in which they depend on each other
    stays: bool = False  # part of the input or the output, or a frozen kernel makes or reads it


def removable(model: Any, convolutions: bool) -> list[Units]:
    """List the units of a built model that can be removed, in the order of their first kernels.

    Units of layers that are added up, as at the end of a residual block, are one set: their channels share an index, so
    they stay or go together (Li et al. 2017, https://arxiv.org/abs/1608.08710, section 3.3). Units of the output layer
    stay, and so do those that are added to the input of the network.

    Args:
        model: A Keras 3 or tf_keras model of Dense, convolutions and the layers that `lottery.models.kerases.EFFECTS`
            lists, in a chain or with additions.
        convolutions: List channels of convolutions, or else units of Dense layers.

    Raises:
        LotteryError: A layer is not known, or mixes the units of a hidden layer; the sentence names it.
    """
    found, names = [], list(weights.variables(model))
    for one in _sets(model):
        if one.stays or not one.made_by or one.convolution != convolutions:
            continue
        made_by, read_by = (sorted(kernels, key=names.index) for kernels in (one.made_by, one.read_by))
        if one.mixed_by:
            raise _unknown(model, f"the layer {one.mixed_by!r} mixes the units that {made_by[0]!r} makes")
        found.append(Units(size=one.size, made_by=made_by, read_by=read_by))
    return sorted(found, key=lambda units: names.index(units["made_by"][0]))


def _sets(model: Any) -> list[_Set]:
    """Read a network from its input to its output."""
    import tensorflow as tf

    keras = keras_of(model)
    names = {id(value): name for name, value in weights.variables(model).items()}
    prunable = weights.prunable(model)
    if type(model).__name__ not in ("Sequential", "Functional") or not is_keras(type(model)):
        raise _unknown(model, f"it is of a class of its own, {type(model).__name__}")
    sets: dict[int, _Set] = {}  # by the identity of a tensor
    used: set[int] = set()
    for layer, inputs, outputs in _calls(model):
        name = getattr(layer, "name", type(layer).__name__)
        if id(layer) in used:
            raise _unknown(model, f"the layer {name!r} is used more than once")
        used.add(id(layer))
        kind, parts = type(layer).__name__, [sets[id(one)] for one in inputs]
        if kind == "InputLayer":
            sets |= {id(one): _Set(tuple(one.shape)[-1] or 0, stays=True) for one in outputs}
        elif kind in _MERGING and is_keras(type(layer)) and len(parts) > 1:
            sets[id(outputs[0])] = _tied(model, name, sets, parts)
        elif len(parts) != 1 or len(outputs) != 1:
            raise _unknown(model, f"the layer {name!r} ({kind}) has {len(parts)} inputs and {len(outputs)} outputs")
        else:
            before, effect = parts[0], _effect(model, keras, layer, bool(parts[0].made_by))
            after = before
            if effect == WEIGHTED:
                kernel = names[id(layer.weights[0])]
                before.read_by.append(kernel)
                after = _Set(int(layer.weights[0].shape[-1]), kind != "Dense", [kernel])
                if kernel not in prunable:
                    before.stays = after.stays = True
            if effect == MIXING or not is_entrywise(keras, getattr(layer, "activation", None)):
                after.mixed_by = after.mixed_by or name
            sets[id(outputs[0])] = after
    for tensor in tf.nest.flatten(model.outputs):
        sets[id(tensor)].stays = True
    distinct = {id(one): one for one in sets.values()}
    return list(distinct.values())


def _calls(model: Any) -> list[tuple[Any, list[Any], list[Any]]]:
    """List the calls of layers that lead to the outputs, each after those it needs: layer, inputs, outputs."""
    import tensorflow as tf

    nodes: dict[int, Any] = {}
    needs: dict[int, list[int]] = {}
    waiting = [_node(one) for one in tf.nest.flatten(model.outputs)]
    while waiting:
        layer, node = waiting.pop()
        if id(node) not in nodes:
            inputs = [] if type(layer).__name__ == "InputLayer" else tf.nest.flatten(node.input_tensors)
            before = [_node(one) for one in inputs]
            nodes[id(node)], needs[id(node)] = (layer, node), [id(other) for _, other in before]
            waiting += before
    calls = []
    for key in graphlib.TopologicalSorter(needs).static_order():
        layer, node = nodes[key]
        inputs = tf.nest.flatten(node.input_tensors) if needs[key] else []
        outputs = node.output_tensors if hasattr(node, "output_tensors") else node.outputs
        calls.append((layer, inputs, tf.nest.flatten(outputs)))
    return calls


def _node(tensor: Any) -> tuple[Any, Any]:
    layer, index = tensor._keras_history[:2]
    return layer, layer._inbound_nodes[index]


def _effect(model: Any, keras: Any, layer: Any, has_units: bool) -> str:
    """Return the effect of a layer on its units, or raise if it is not known."""
    name = type(layer).__name__
    known = name if type(layer) is getattr(keras.layers, name, None) else ""
    if known == "Reshape" and len(layer.target_shape) == 1:
        known = "Flatten"
    settings = {key: getattr(layer, key) for key in ("groups", "data_format") if hasattr(layer, key)}
    if why := obstacle(known, settings, has_units):
        raise _unknown(model, f"it has the layer {layer.name!r} ({name}){why}")
    return EFFECTS[known]


def _tied(model: Any, name: str, sets: dict[int, _Set], parts: list[_Set]) -> _Set:
    """Make one set of several, wherever they occur."""
    first, *others = parts
    for other in others:
        if other is first:
            continue
        if other.size != first.size:
            raise _unknown(model, f"the layer {name!r} adds up {first.size} and {other.size} units")
        first.convolution |= other.convolution
        first.made_by += other.made_by
        first.read_by += other.read_by
        first.mixed_by = first.mixed_by or other.mixed_by
        first.stays |= other.stays
        for tensor, one in sets.items():
            if one is other:
                sets[tensor] = first
    return first


def _unknown(model: Any, why: str) -> LotteryError:
    return LotteryError(f"The units of the model {model.name!r} are not known: {why}.")
