"""The bridge to built Keras 3 and tf_keras models: stable names of variables, prunable weights, reading, assigning."""

import hashlib
import itertools
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from lottery import formatting
from lottery import masks as masks_module
from lottery.errors import LotteryError, missing

_BIAS, _SCALE = "a bias", "a scale or a shift"

# What layers of Keras' own multiply activations with, by the layer's class and the variable's attribute.
_FACTORS = {"PReLU": ("alpha", "a slope"), "RMSNormalization": ("scale", _SCALE)}


def variables(model: Any) -> dict[str, Any]:
    """Return every variable by its stable name, in layer order: weights, statistics, and states of random layers.

    A name is the path of layers below the model and the variable's own name, such as ``dense_1/kernel``. Layers that
    Keras named are numbered by their position among their siblings, so that a name does not depend on how many models
    the process has built. Layers that you named keep their names, unless Keras could have chosen the name too
    (``dense_3`` for a Dense).

    Raises:
        LotteryError: It is no model, or the model is not built.
    """
    # Of the class, since tf_keras raises an error where a model that is not built has no variables yet.
    if not hasattr(type(model), "variables"):
        raise LotteryError(f"The model must be a Keras model, not {type(model).__name__}.")
    # In this order: tf_keras raises an error of its own if variables of a model that is not built are asked for.
    if not getattr(model, "built", True) or not model.variables:
        raise LotteryError(f"The model {model.name!r} is not built; give it an Input layer, or call it once.")
    named: dict[str, Any] = {}
    _collect(model, "", named, _of_metrics(model))
    return named


def is_random_state(name: str) -> bool:
    """Return True for the name of a random layer's state, which has no meaning in another process."""
    return name.rsplit("/", 1)[-1].startswith("seed_generator_state")


def is_generator(name: str) -> bool:
    """Return True for the name of the state of a random layer or of a ``tf.random.Generator``."""
    return is_random_state(name) or name.rsplit("/", 1)[-1].startswith("StateVar")


def portable(model: Any) -> dict[str, Any]:
    """Return the `variables` that mean the same in another process and in the other Keras.

    States of random layers are left out, and all variables of tfmot's wrappers but the weights that they wrap.
    """
    wrappers = [layer for layer in all_layers(model) if inside(layer) is not layer]
    wrapped = {id(variable) for layer in wrappers for variable in inside(layer).variables}
    left_out = {id(variable) for layer in wrappers for variable in layer.variables} - wrapped
    named = variables(model).items()
    return {name: variable for name, variable in named if not is_random_state(name) and id(variable) not in left_out}


def prunable(model: Any, biases: bool = False) -> dict[str, Any]:
    """Return the variables that can be pruned, by name, in the order of `variables`.

    A prunable variable is trainable and floating, and has two or more dimensions: kernels, tables of embeddings and of
    learned positions. Biases, scales and shifts of normalisation (``gamma``, ``beta``, ``scale`` of RMSNormalization)
    and slopes of PReLU never count, whatever their dimensions. A layer can name its prunable weights itself, with a
    method ``get_prunable_weights`` as in tfmot's ``PrunableLayer``; then nothing else in the layer is prunable, and
    nothing in layers inside it.

    Args:
        biases: Include biases, of any dimensions: trainable, floating variables whose own name is ``bias``, except
            where their layer names its weights and leaves them out.

    Raises:
        LotteryError: The model is not built, or a layer names something other than its own variables.
    """
    without = unprunable(model, biases)
    return {name: variable for name, variable in variables(model).items() if name not in without}


def unprunable(model: Any, biases: bool = False) -> dict[str, str]:
    """Return the variables that cannot be pruned, by name, each with the reason; the others are `prunable`."""
    named = variables(model)  # first, because it refuses a model that is not built
    by_layers = _factors(model) | _named_by_layers(model)
    # A variable of tf_keras calls itself trainable even where its layer is frozen.
    trained = {id(variable) for variable in model.trainable_variables}
    reasons: dict[str, str] = {}
    for name, variable in named.items():
        if id(variable) not in trained:
            reasons[name] = "not trainable"
        elif "float" not in str(variable.dtype):
            reasons[name] = "not floating point"
        elif id(variable) in by_layers:
            reasons[name] = by_layers[id(variable)]
        else:
            reasons[name] = _reason(name, variable)
    allowed = ("", _BIAS) if biases else ("",)
    return {name: reason for name, reason in reasons.items() if reason not in allowed}


def is_trained(model: Any, variable: Any) -> bool:
    """Return True if an optimizer updates the variable, or would if its layer were not frozen."""
    if "float" not in str(variable.dtype):
        return False
    # The public lists also have the weights of frozen layers. Of tf_keras 2.21, or of Keras 3.15.
    states = "_non_trainable_weights" if hasattr(model, "_non_trainable_weights") else "_non_trainable_variables"
    never_trained = [state for layer in all_layers(model) for state in getattr(layer, states, None) or ()]
    return not any(state is variable for state in never_trained)


def read(model: Any, biases: bool = False) -> dict[str, np.ndarray]:
    """Copy the `prunable` weights to arrays, by name."""
    return arrays(prunable(model, biases))


def read_state(model: Any) -> dict[str, np.ndarray]:
    """Copy every variable of the model to arrays, by name; `assign` restores them."""
    return arrays(variables(model))


def arrays(named: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Copy variables to arrays, by name."""
    # Copies, since numpy() may return the memory that the next step writes to.
    return {name: np.array(variable.numpy()) for name, variable in named.items()}


def assign(model: Any, values: Mapping[str, np.ndarray], only: Mapping[str, np.ndarray] | None = None) -> None:
    """Set variables of a model.

    Args:
        values: Arrays by stable name; other variables keep their values.
        only: Masks by name. Only the entries that a mask keeps are set; weights without a mask are set completely.

    Raises:
        LotteryError: A name does not exist or a shape differs. The model is unchanged.
    """
    targets = variables(model)
    for name, value in values.items():
        if name not in targets:
            raise missing("The model has no weight", name, targets)
        received, expected = tuple(np.shape(value)), tuple(targets[name].shape)
        if received != expected:
            raise LotteryError(f"The value for {name!r} has shape {received}, the model's has {expected}.")
    masks_module.check(dict(only or {}), targets)
    for name, value in values.items():
        if only and name in only:
            value = np.where(only[name], value, targets[name].numpy())
        targets[name].assign(value)


def all_layers(model: Any) -> list[Any]:
    """List a model and the layers in it, those within other layers too, in the order in which Keras tracks them."""
    # `model.layers` stops at the first depth, and both libraries offer nothing else (Keras 3.15, tf_keras 2.21).
    return list(model._flatten_layers())


def children(layer: Any) -> list[Any]:
    """List the layers that lie directly within a layer."""
    # `layers` exists in models alone, but any layer may hold others (Keras 3.15, tf_keras 2.21).
    return list(layer._flatten_layers(include_self=False, recursive=False))


def inside(layer: Any) -> Any:
    """Return the layer inside a pruning wrapper of tfmot; any other layer is returned itself."""
    return layer.layer if type(layer).__name__ == "PruneLowMagnitude" and hasattr(layer, "layer") else layer


def _of_metrics(model: Any) -> set[int]:
    """Return the identities of the variables of metrics that a model, or a model in it, has as attributes."""
    # tf_keras 2.21 lists them among the model's, Keras 3.15 does not. The property `metrics` may be the user's own.
    metrics = [metric for layer in all_layers(model) for metric in getattr(layer, "_metrics", None) or ()]
    return {id(variable) for metric in metrics for variable in metric.variables}


def _collect(layer: Any, prefix: str, named: dict[str, Any], seen: set[int]) -> None:
    """Add the variables of a layer and of those within it to `named`, and the identity of all of these to `seen`."""
    within = children(layer)
    if inside(layer) is not layer:
        # First and under the same prefix, so that its weights are named as without the wrapper.
        seen.add(id(inside(layer)))
        _collect(inside(layer), prefix, named, seen)
    # The variables of a layer have those of the layers within it among them.
    below = {id(variable) for child in within for variable in child.variables}
    for variable in layer.variables:
        if id(variable) not in below and id(variable) not in seen:
            seen.add(id(variable))
            named[_unique(prefix + _own_name(variable, layer), named)] = variable
    stems = [plain_name(type(inside(child)).__name__, inside(child).name) for child in within]
    for child, name in zip(within, formatting.numbered(stems), strict=True):
        if id(child) not in seen:  # a shared layer is named at its first place
            seen.add(id(child))
            _collect(child, f"{prefix}{name}/", named, seen)


def _own_name(variable: Any, layer: Any) -> str:
    """Return a variable's name within its layer, in tf_keras as in Keras 3."""
    own = variable.name.split(":")[0].rsplit("/", 1)[-1]
    # Keras 3.15 numbers the variables of a process that are given no name. tf_keras calls them all "Variable", and runs
    # of earlier versions are stored with that name.
    own = re.sub(r"^variable_\d+$", "variable", own)
    is_depthwise = type(layer).__name__ in ("DepthwiseConv1D", "DepthwiseConv2D")
    return "kernel" if is_depthwise and own == "depthwise_kernel" else own


def plain_name(kind: str, name: str) -> str:
    """Return the name of a layer of a class without the number that Keras added."""
    # As both libraries make a name of a class.
    snake = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", kind))
    snake = re.sub(r"([a-z])([A-Z])", r"\1_\2", snake).lower()
    # tf_keras calls functional models "model", and puts "private" before the name of a class that begins with "_";
    # Bidirectional prefixes the names of its two layers.
    automatic = "functional|model" if snake == "functional" else f"(?:private)?{re.escape(snake)}"
    match = re.fullmatch(rf"(forward_|backward_)?({automatic})(_\d+)?", name)
    return (match[1] or "") + snake if match else name


def _unique(name: str, taken: Mapping[str, Any]) -> str:
    names = itertools.chain([name], (f"{name}_{count}" for count in itertools.count(1)))
    return next(name for name in names if name not in taken)


def _reason(name: str, variable: Any) -> str:
    """Say why a trainable, floating variable is not pruned, if its layer does not name its weights; empty if it is."""
    # Without the number of the second that a layer calls so, as in `bias_1`; see `_unique`.
    own = re.sub(r"_\d+$", "", name.rsplit("/", 1)[-1])
    if own == "bias":
        return _BIAS
    if own in ("gamma", "beta"):
        return _SCALE
    return "fewer than two dimensions" if len(variable.shape) < 2 else ""


def _factors(model: Any) -> dict[int, str]:
    """Map variables that `_FACTORS` lists, by identity, to what they are; also those of classes derived from them."""
    found = {}
    for layer in all_layers(model):
        for cls in type(layer).__mro__:
            if cls.__name__ in _FACTORS and cls.__module__.partition(".")[0] in ("keras", "tf_keras"):
                attribute, what = _FACTORS[cls.__name__]
                found[id(getattr(layer, attribute, None))] = what
    return found


def _named_by_layers(model: Any) -> dict[int, str]:
    """Map the variables of layers that name their prunable weights, by identity, to a reason, empty if it is named."""
    found: dict[int, str] = {}
    waiting, seen = [model], set()
    while waiting:
        layer = waiting.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        # Only a method of the class is the user's: tfmot adds one to each built-in layer object that it wraps.
        if not hasattr(type(layer), "get_prunable_weights"):
            waiting += children(layer)
            continue
        for variable in layer.variables:
            found.setdefault(id(variable), "not named by the layer's get_prunable_weights()")
        found |= {id(variable): "" for variable in _chosen(layer)}
    return found


def _chosen(layer: Any) -> list[Any]:
    """Return the weights that a layer names; raise if they are not a list of its own variables."""
    returned, own = layer.get_prunable_weights(), {id(variable) for variable in layer.variables}
    wrong = [returned]
    if isinstance(returned, list | tuple):
        wrong = [variable for variable in returned if id(variable) not in own]
    if wrong:
        received = getattr(wrong[0], "name", wrong[0])
        raise LotteryError(
            f"get_prunable_weights() of the layer {layer.name!r} must return a list of the layer's own variables, not "
            f"{received!r}."
        )
    return list(returned)


def unwrapped(variable: Any) -> Any:
    """Return the variable of TensorFlow inside a variable of Keras; any other variable is returned itself."""
    # Keras 3 (3.15: `_value`) wraps a tf.Variable, and so does tf_keras (2.21: `_variable`) in mixed precision.
    return getattr(variable, "_variable", getattr(variable, "_value", variable))


def components(variable: Any) -> list[Any]:
    """Return the plain TensorFlow variables inside a variable of Keras, one for each device of a strategy."""
    import tensorflow as tf

    if not isinstance(variable, tf.distribute.DistributedValues):
        variable = unwrapped(variable)
    return list(variable.values) if isinstance(variable, tf.distribute.DistributedValues) else [variable]


def fingerprint(state: Mapping[str, np.ndarray]) -> str:
    """Return the SHA-256 of names, shapes and bits."""
    digest = hashlib.sha256()
    # The order of a dict does not count.
    for name in sorted(state):
        value = np.ascontiguousarray(state[name])
        digest.update(f"{name} {value.dtype.str} {value.shape}\n".encode())
        digest.update(value.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
