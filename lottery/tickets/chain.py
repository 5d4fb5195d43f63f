"""A Keras network as one chain of layers: whether it is one, and what each layer does to the units that pass it."""

import importlib
from typing import Any, NamedTuple

import numpy as np

from lottery import weights
from lottery.errors import LotteryError
from lottery.models.library import EFFECTS, FLAT, MIXING, START, WEIGHTED, is_keras, keras_of, library_name

# Activations of each entry by itself, in Keras, tf_keras or tf.nn. Of any other function, nobody can say.
_EACH_ENTRY = (
    "celu", "elu", "exponential", "gelu", "hard_shrink", "hard_sigmoid", "hard_silu", "hard_tanh", "leaky_relu",
    "linear", "log_sigmoid", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "soft_shrink", "softplus", "softsign",
    "sparse_plus", "sparse_sigmoid", "squareplus", "swish", "tanh", "tanh_shrink",
)  # fmt: skip


_CHAIN = (
    "a chain has one input and one output, each layer is used once on the output of the one before, and the layers are "
    "Dense, Conv1D to Conv3D, BatchNormalization, activations, pooling, padding, Flatten and Dropout of Keras itself"
)


class Link(NamedTuple):
    """A layer of a chain.

    Attributes:
        layer: The Keras layer.
        kind: What it does to units: `WEIGHTED` makes them, `ENTRYWISE` acts on each entry by itself, `SPATIAL` on each
            channel, `FLAT` makes one dimension of all, `MIXING` computes units from others, `START` is any that is
            only known before the first weights.
        before, after: Shapes of one example.
    """

    layer: Any
    kind: str
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def mixes(self) -> bool:
        """Whether an output of the layer, or of the activation within it, may depend on other units at its place."""
        return self.kind == MIXING or not _is_entrywise(self.layer)


def take_apart(model: Any) -> list[Link]:
    """The layers of a model that is one chain, in order, without its input.

    Args:
        model: A built Keras 3 or tf_keras model, Sequential or functional.

    Returns:
        The chain; at least one of its layers is `WEIGHTED`.

    Raises:
        LotteryError: It is no chain, or holds a layer that is not known here.
    """
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
            "it with the shape that it is to be used with."
        )
    links: list[Link] = []
    for layer in _layers(model):
        kind = _kind(model, keras, layer)
        begun = any(link.kind == WEIGHTED for link in links)
        after = tuple(int(size) for size in tuple(layer.compute_output_shape((None, *shape)))[1:])
        if kind == START and type(layer).__name__ == "Reshape" and len(after) == 1:
            kind = FLAT
        array = type(layer).__name__ == "Rescaling" and np.ndim(layer.scale) + np.ndim(layer.offset) > 0
        if begun and (kind == START or array):
            raise _no_chain(model, f"has the layer {layer.name!r} ({type(layer).__name__}) after the first weights")
        _check(model, layer, len(shape))
        links.append(Link(layer, kind, shape, after))
        shape = after
    if not any(link.kind == WEIGHTED for link in links):
        raise _no_chain(model, "has no Dense and no convolution")
    return links


def library(layer: Any) -> Any:
    """The module that a layer was made with: ``keras`` or ``tf_keras``."""
    return importlib.import_module(library_name(type(layer)))


def _layers(model: Any) -> list[Any]:
    """The layers on the way from the input to the output."""
    import tensorflow as tf

    found: list[Any] = []
    tensor = model.outputs[0]
    while True:
        layer, index = tensor._keras_history[:2]
        node = layer._inbound_nodes[index]
        if type(layer).__name__ == "InputLayer":
            return found[::-1]
        given = node.call_kwargs if hasattr(node, "call_kwargs") else node.arguments.kwargs
        given = sorted(key for key, value in given.items() if value is not None and value is not False)
        tensors = tf.nest.flatten(node.input_tensors)
        if len(tensors) != 1:
            raise _no_chain(model, f"branches: the layer {layer.name!r} takes {len(tensors)} inputs")
        if given:
            raise _no_chain(model, f"calls the layer {layer.name!r} with the argument {given[0]!r}")
        if any(layer is one for one in found):
            raise _no_chain(model, f"uses the layer {layer.name!r} more than once")
        found.append(layer)
        tensor = tensors[0]


def _kind(model: Any, keras: Any, layer: Any) -> str:
    name = type(layer).__name__
    if weights.inside(layer) is not layer:
        raise LotteryError(
            f"The layer {layer.name!r} of the model {model.name!r} is under a pruning wrapper of tfmot; take the "
            "wrappers out with lottery.wrappers.strip first."
        )
    if name not in EFFECTS or type(layer) is not getattr(keras.layers, name, None):
        raise _no_chain(model, f"has the layer {layer.name!r} ({name}), which is not known here")
    return EFFECTS[name]


def _check(model: Any, layer: Any, rank: int) -> None:
    """Refuse settings of a known layer that would need another treatment."""
    name, held = type(layer).__name__, len(layer.get_weights())
    if getattr(layer, "data_format", None) == "channels_first":
        raise _no_chain(model, f"has the layer {layer.name!r} with channels first, allowed is channels_last")
    if getattr(layer, "groups", 1) != 1:
        raise _no_chain(model, f"has the layer {layer.name!r} with {layer.groups} groups, allowed is 1")
    if EFFECTS[name] == WEIGHTED and held != 1 + layer.use_bias:
        raise _no_chain(model, f"has the layer {layer.name!r} with other weights than a kernel and a bias")
    if name == "BatchNormalization" and list(np.ravel(layer.axis)) not in ([-1], [rank]):
        raise _no_chain(model, f"has the layer {layer.name!r} over the axis {layer.axis}, allowed is the last one")


def _is_entrywise(layer: Any) -> bool:
    import tensorflow as tf

    activation: Any = getattr(layer, "activation", None)
    known = [library(layer).activations, tf.nn]
    functions = [getattr(module, name, None) for module in known for name in _EACH_ENTRY]
    plain = type(activation).__name__ in ("ReLU", "LeakyReLU", "ELU") and not activation.variables
    return activation is None or plain or any(activation is function for function in functions)


def _no_chain(model: Any, why: str) -> LotteryError:
    return LotteryError(f"The model {model.name!r} {why}; {_CHAIN}.")
