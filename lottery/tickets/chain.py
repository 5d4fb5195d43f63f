"""A Keras network as one chain of layers, in order, with the effect of each layer on the units that pass through it."""

from typing import Any, NamedTuple

import numpy as np

from lottery import weights
from lottery.errors import LotteryError
from lottery.models.kerases import EFFECTS, MIXING, WEIGHTED, is_entrywise, is_keras, keras_of, obstacle

_CHAIN = (
    "a chain has one input and one output, each layer is used once on the output of the one before, and the layers are "
    "Dense, Conv1D to Conv3D, BatchNormalization, activations, pooling, padding, Flatten and Dropout of Keras itself"
)


class Link(NamedTuple):
    """A layer of a chain."""

    layer: Any
    effect: str  # on units: see `lottery.models.kerases.EFFECTS`
    before: tuple[int, ...]  # the shape of one example; so is `after`
    after: tuple[int, ...]
    mixes: bool  # an output of the layer, or of the activation within it, may depend on other units at its place


def take_apart(model: Any) -> list[Link]:
    """List the layers of a built model that is one chain, some of them `WEIGHTED`, in order, without its input."""
    keras, received = keras_of(model), type(model)
    weights.variables(model)  # refuses a model that is not built
    if received.__name__ not in ("Sequential", "Functional") or not is_keras(received):
        raise _no_chain(model, f"is of a class of its own, {received.__name__}, whose methods may do anything")
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        raise _no_chain(model, f"has {len(model.inputs)} inputs and {len(model.outputs)} outputs")
    shape = tuple(model.inputs[0].shape)[1:]
    if None in shape:
        raise LotteryError(
            f"The model {model.name!r} takes examples of shape {shape}, allowed is one without open dimensions; build "
            "it with the shape of your examples."
        )
    links: list[Link] = []
    for layer in _layers(model):
        has_units = any(link.effect == WEIGHTED for link in links)
        effect = _effect(model, keras, layer, len(shape), has_units)
        after = tuple(int(size) for size in tuple(layer.compute_output_shape((None, *shape)))[1:])
        mixes = effect == MIXING or not is_entrywise(keras, getattr(layer, "activation", None))
        links.append(Link(layer, effect, shape, after, mixes))
        shape = after
    if not any(link.effect == WEIGHTED for link in links):
        raise _no_chain(model, "has no Dense and no convolution")
    return links


def _layers(model: Any) -> list[Any]:
    """List the layers on the way from the input to the output."""
    import tensorflow as tf

    found: list[Any] = []
    tensor = model.outputs[0]
    while True:
        layer, index = tensor._keras_history[:2]
        node = layer._inbound_nodes[index]
        if type(layer).__name__ == "InputLayer":
            return found[::-1]
        arguments = node.call_kwargs if hasattr(node, "call_kwargs") else node.arguments.kwargs
        arguments = sorted(key for key, value in arguments.items() if value is not None and value is not False)
        tensors = tf.nest.flatten(node.input_tensors)
        if len(tensors) != 1:
            raise _no_chain(model, f"branches: the layer {layer.name!r} takes {len(tensors)} inputs")
        if arguments:
            raise _no_chain(model, f"calls the layer {layer.name!r} with the argument {arguments[0]!r}")
        if any(layer is other for other in found):
            raise _no_chain(model, f"uses the layer {layer.name!r} more than once")
        found.append(layer)
        tensor = tensors[0]


def _effect(model: Any, keras: Any, layer: Any, rank: int, has_units: bool) -> str:
    """Return the effect of a layer, or raise if the layer, or one of its settings, is not known here."""
    if weights.inside(layer) is not layer:
        raise LotteryError(
            f"The layer {layer.name!r} of the model {model.name!r} is under a pruning wrapper of tfmot; take the "
            "wrappers out with lottery.enforcement.tfmot.strip first."
        )
    name = type(layer).__name__
    known = name if type(layer) is getattr(keras.layers, name, None) else ""
    if known == "Reshape" and len(layer.target_shape) == 1:
        known = "Flatten"
    settings = {key: getattr(layer, key) for key in ("groups", "data_format") if hasattr(layer, key)}
    why = obstacle(known, settings, has_units)
    if known == "Rescaling" and has_units and np.ndim(layer.scale) + np.ndim(layer.offset) > 0:
        why = " after the first weights"
    if EFFECTS.get(known) == WEIGHTED and len(layer.get_weights()) != 1 + layer.use_bias:
        why = " with other weights than a kernel and a bias"
    if known == "BatchNormalization" and list(np.ravel(layer.axis)) not in ([-1], [rank]):
        why = f" over the axis {layer.axis}, allowed is the last one"
    if why:
        raise _no_chain(model, f"has the layer {layer.name!r} ({name}){why}")
    return EFFECTS[known]


def _no_chain(model: Any, why: str) -> LotteryError:
    return LotteryError(f"The model {model.name!r} {why}; {_CHAIN}.")
