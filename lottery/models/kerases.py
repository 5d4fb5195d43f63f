"""The library of a model, ``keras`` or ``tf_keras``, and facts about its own layers that more than one room needs."""

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from lottery.errors import LotteryError

LIBRARIES = ("keras", "tf_keras")

# The effect of each layer on the units that pass through it, by the name of its class. Compaction and the matching of
# units know these layers and refuse all others. (Other tables state other facts: what a stranger's file may name, how
# often a weight is multiplied, what XLA has been measured to make faster.)
#
# WEIGHTED layers make units, ENTRYWISE ones act on each entry by itself, IDLE ones do nothing at inference, SPATIAL
# ones act on each channel by itself, FLAT ones flatten an example, MIXING ones compute units from other units;
# START marks layers that are known in front of the first weights only, where there are no units yet.
WEIGHTED, ENTRYWISE, IDLE, SPATIAL = "weighted", "entrywise", "idle", "spatial"
FLAT, MIXING, START = "flat", "mixing", "start"
_NAMES = {
    WEIGHTED: "Dense Conv1D Conv2D Conv3D",
    ENTRYWISE: "Activation ReLU LeakyReLU ELU PReLU ThresholdedReLU BatchNormalization Rescaling",
    IDLE: "Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D GaussianNoise GaussianDropout AlphaDropout "
    "ActivityRegularization Identity",
    SPATIAL: "MaxPooling1D MaxPooling2D MaxPooling3D AveragePooling1D AveragePooling2D AveragePooling3D "
    "GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GlobalAveragePooling1D GlobalAveragePooling2D "
    "GlobalAveragePooling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D Cropping1D Cropping2D Cropping3D",
    FLAT: "Flatten",
    MIXING: "Softmax",
    START: "InputLayer Reshape Normalization",
}
EFFECTS = {name: effect for effect, names in _NAMES.items() for name in names.split()}


def obstacle(layer: str, settings: Mapping[str, Any], has_units: bool) -> str:
    """Say why a layer of this class and settings cannot be in a chain that treats its units alike; empty if it can."""
    if layer not in EFFECTS:
        return ", which is not known here"
    if EFFECTS[layer] == START and has_units:
        return " after the first weights"
    if (groups := settings.get("groups", 1)) != 1:
        return f" with {groups} groups, allowed is 1"
    return " with channels first, allowed is channels_last" if settings.get("data_format") == "channels_first" else ""


# Activations that act on each entry by itself, in Keras, tf_keras or tf.nn. Any other function may do anything.
ENTRYWISE_ACTIVATIONS = (
    "celu", "elu", "exponential", "gelu", "hard_shrink", "hard_sigmoid", "hard_silu", "hard_tanh", "leaky_relu",
    "linear", "log_sigmoid", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "soft_shrink", "softplus", "softsign",
    "sparse_plus", "sparse_sigmoid", "squareplus", "swish", "tanh", "tanh_shrink",
)  # fmt: skip


def is_entrywise(keras: Any, activation: Any) -> bool:
    """Check if an activation, or None, is known to act on each entry by itself."""
    import tensorflow as tf

    functions = [getattr(module, name, None) for module in (keras.activations, tf.nn) for name in ENTRYWISE_ACTIVATIONS]
    plain = type(activation).__name__ in ("ReLU", "LeakyReLU", "ELU") and not activation.variables
    return activation is None or plain or any(activation is function for function in functions)


def is_keras(thing: Any, libraries: Collection[str] = LIBRARIES) -> bool:
    """Check if a class or a function is part of Keras 3 or tf_keras itself."""
    return (getattr(thing, "__module__", None) or "").partition(".")[0] in libraries


def keras_of(model: Any) -> Any:
    """Return the module that a model was made with, ``keras`` or ``tf_keras``, or raise if it is no Keras model."""
    if any(is_keras(cls, ["tf_keras"]) for cls in type(model).__mro__):
        import tf_keras

        return tf_keras
    import keras

    if not isinstance(model, keras.Model):
        raise LotteryError(f"The model is a {type(model).__name__}, allowed is a Keras model.")
    if keras.backend.backend() != "tensorflow":
        raise LotteryError(f"Keras uses the backend {keras.backend.backend()!r}; set KERAS_BACKEND=tensorflow.")
    return keras


def is_compiled(model: Any) -> bool:
    """Check if a model has an optimizer and a loss of its own."""
    return getattr(model, "optimizer", None) is not None


@contextlib.contextmanager
def evaluating(what: str) -> Iterator[None]:
    """Raise any error of the code within as a `LotteryError` of one sentence that begins with `what`."""
    try:
        yield
    except LotteryError:
        raise
    except Exception as error:  # a user's layers, loss and metrics may raise anything
        raise LotteryError(f"{what}: {reason(error)}") from error


def traced_call(model: Any, inputs: Any) -> Any:
    """Trace the call of a model at inference, on inputs or their ``tf.TensorSpec``; return the ``ConcreteFunction``."""
    import tensorflow as tf

    return tf.function(lambda x: model(x, training=False), autograph=False).get_concrete_function(inputs)


def reason(error: Exception) -> str:
    """Return the message of an exception in one line: Keras puts the place first and the reason after it."""
    lines = [re.sub(r"\x1b\[\d+m", "", line).strip() for line in str(error).splitlines()]
    around = ("Exception encountered", "in user code", "File ", "Graph execution error", "Detected at node", "[[")
    lines = [line for line in lines if line and not line.startswith(around)]
    if not lines:
        return type(error).__name__
    return lines[-1] if "Graph execution error" in str(error) else lines[0]  # the graph's trace comes first, too
