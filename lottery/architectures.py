"""Which network it is, as plain data that a stranger may have written: described, checked, and built again."""

import copy
import json
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lottery import compiling, models, weights
from lottery.errors import TicketError

# The library; then a built-in network's name and arguments, or Keras' own configuration, or, where that would need
# code, the class and why.
Architecture = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]

LIBRARIES = ("keras", "tf_keras")
# What a configuration may name. Everything else is refused, whatever Keras thinks of it: layers that hold code or read
# files (Lambda, TFSMLayer, StringLookup, ...), functions, and the classes of whoever wrote it.
_LAYERS = frozenset({
    "Activation", "ActivityRegularization", "Add", "AdditiveAttention", "AlphaDropout", "Attention", "Average",
    "AveragePooling1D", "AveragePooling2D", "AveragePooling3D", "BatchNormalization", "Bidirectional", "CenterCrop",
    "Concatenate", "Conv1D", "Conv1DTranspose", "Conv2D", "Conv2DTranspose", "Conv3D", "Conv3DTranspose",
    "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D", "Cropping1D", "Cropping2D", "Cropping3D", "Dense", "DepthwiseConv1D",
    "DepthwiseConv2D", "Dot", "Dropout", "ELU", "EinsumDense", "Embedding", "Flatten", "GRU", "GRUCell",
    "GaussianDropout", "GaussianNoise", "GlobalAveragePooling1D", "GlobalAveragePooling2D",
    "GlobalAveragePooling3D", "GlobalMaxPooling1D", "GlobalMaxPooling2D", "GlobalMaxPooling3D",
    "GroupNormalization", "GroupQueryAttention", "Identity", "InputLayer", "LSTM", "LSTMCell", "LayerNormalization",
    "LeakyReLU", "Masking", "MaxPooling1D", "MaxPooling2D", "MaxPooling3D", "Maximum", "Minimum",
    "MultiHeadAttention", "Multiply", "Normalization", "PReLU", "Permute", "RMSNormalization", "RNN",
    "RandomContrast", "RandomCrop", "RandomFlip", "RandomRotation", "RandomTranslation", "RandomZoom", "ReLU",
    "RepeatVector", "Rescaling", "Reshape", "Resizing", "SeparableConv1D", "SeparableConv2D", "SimpleRNN",
    "SimpleRNNCell", "Softmax", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "SpectralNormalization",
    "StackedRNNCells", "Subtract", "ThresholdedReLU", "TimeDistributed", "UnitNormalization", "UpSampling1D",
    "UpSampling2D", "UpSampling3D", "ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D",
})  # fmt: skip
_INITIALIZERS = frozenset({
    "Constant", "GlorotNormal", "GlorotUniform", "HeNormal", "HeUniform", "Identity", "LecunNormal", "LecunUniform",
    "Ones", "Orthogonal", "OrthogonalInitializer", "RandomNormal", "RandomUniform", "TruncatedNormal",
    "VarianceScaling", "Zeros",
})  # fmt: skip
_ALLOWED: Mapping[str | None, frozenset[str]] = {
    "keras": frozenset({"Sequential", "DTypePolicy"}),
    "keras.layers": _LAYERS,
    "keras.initializers": _INITIALIZERS,
    "keras.regularizers": frozenset({"L1", "L2", "L1L2", "OrthogonalRegularizer"}),
    "keras.constraints": frozenset({"MaxNorm", "MinMaxNorm", "NonNeg", "UnitNorm"}),
    "keras.src.models.functional": frozenset({"Functional"}),
    "tf_keras.src.engine.functional": frozenset({"Functional"}),
    None: frozenset({"__keras_tensor__"}),
}
_ACTIVATIONS = frozenset({
    "celu", "elu", "exponential", "gelu", "glu", "hard_shrink", "hard_sigmoid", "hard_silu", "hard_swish",
    "hard_tanh", "leaky_relu", "linear", "log_sigmoid", "log_softmax", "mish", "relu", "relu6", "selu", "sigmoid",
    "silu", "soft_shrink", "softmax", "softplus", "softsign", "sparse_plus", "sparse_sigmoid", "sparsemax",
    "squareplus", "swish", "tanh", "tanh_shrink", "threshold",
})  # fmt: skip


def described(model: Any, name: str | None = None) -> Architecture:
    """What it takes to build a model again, as values that JSON holds.

    Args:
        model: A built Keras 3 or tf_keras model.
        name: The built-in network that it is, if it is one.

    Returns:
        ``library``; and ``name``, ``input_shape``, ``num_classes`` of a built-in network; or ``keras``, the
        configuration of a model of Keras' own layers; or, of any other model, ``class`` and ``why``: that one can be
        built by its own code only.
    """
    library = compiling.keras_of(model)
    if name is not None:
        input_shape, num_classes = list(model.input_shape[1:]), int(model.output_shape[-1])
        return {"library": library.__name__, "name": name, "input_shape": input_shape, "num_classes": num_classes}
    own = {"library": library.__name__, "class": type(model).__name__}
    try:
        with warnings.catch_warnings(action="ignore"):  # of what cannot be loaded again, which is said below
            whole = json.loads(json.dumps(library.saving.serialize_keras_object(model), allow_nan=False))
        kept = ("module", "class_name", "config", "registered_name")
        architecture = {"library": library.__name__, "keras": {key: whole.get(key) for key in kept}}
        expected = {key: tuple(value.shape) for key, value in weights.portable(model).items()}
        check(architecture, expected)
    except TicketError as error:
        return own | {"why": str(error)}
    except Exception as error:  # a user's layers may raise anything
        return own | {"why": f"Keras has no configuration of it: {compiling.reason(error)}"}
    return architecture


def check(architecture: Architecture, expected: Shapes) -> None:
    """See that an architecture is harmless and that its network has the variables that it should, without building it.

    The network is traced without values first, so that a layer of a billion units, which no variable stands behind,
    takes no memory.

    Args:
        architecture: What `described` returned, or what a file says.
        expected: The shape of each variable of `weights.portable`, by name.

    Raises:
        TicketError: It names code, or another network.
    """
    library = architecture.get("library")
    if library not in LIBRARIES:
        raise TicketError(f"The architecture's library is {library!r}, allowed is one of {', '.join(LIBRARIES)}.")
    if "name" in architecture:
        # A network of that many layers has that many kernels.
        name, sizes = architecture["name"], [*architecture["input_shape"], architecture["num_classes"]]
        depth = re.fullmatch(r"resnet_(\d+)", str(name))
        if not models.is_built_in(str(name)) or (depth and int(depth[1]) > len(expected)):
            raise TicketError(f"The architecture names the network {name!r}, which is not built in.")
        if not sizes or not all(type(size) is int and size > 0 for size in sizes):
            raise TicketError(f"The architecture's input shape and number of classes are {sizes}, allowed are sizes.")
        library = "keras"  # traced as it is in Keras 3, which names and shapes do not depend on
    elif "keras" in architecture:
        for named in _named(architecture["keras"]):
            raise TicketError(f"The architecture needs {named}, which a ticket may not name.")
    else:
        raise TicketError(
            f"The ticket is of a {architecture.get('class', 'model')} that only its own code can build "
            f"({architecture.get('why', 'nothing more is known of it')}); build it and use ticket.apply(model)."
        )
    found = _traced(library, lambda: _built(architecture, library))
    if found != expected:
        raise TicketError(f"The ticket's architecture is not that of its weights. {differing(expected, found)}")


def build(architecture: Architecture, expected: Shapes, library: str | None = None) -> Any:
    """Build the network, with initial weights by chance.

    Args:
        architecture: What `described` returned, or what a file says.
        expected: The shape of each variable of `weights.portable`, by name.
        library: ``"keras"`` or ``"tf_keras"``; by default the one that it was described in.

    Returns:
        The model, built, not compiled.

    Raises:
        TicketError: As `check`; or the other library has no such configuration.
    """
    library = library or architecture.get("library")
    if library not in LIBRARIES:
        raise TicketError(f"library: received {library!r}, allowed is one of {', '.join(LIBRARIES)}.")
    if library != architecture.get("library") and "name" not in architecture:
        raise TicketError(
            f"The ticket holds a configuration of {architecture.get('library')}, which {library} does not read; build "
            f"the same layers with {library} and use ticket.apply(model)."
        )
    check(architecture, expected)
    return _built(architecture, library)


def differing(ticket: Shapes, model: Shapes) -> str:
    """In what two sets of variables differ, both sides listed."""
    both = [name for name in ticket if name in model and tuple(ticket[name]) != tuple(model[name])]
    parts = [
        ("only the ticket has", [f"{name} {tuple(ticket[name])}" for name in ticket if name not in model]),
        ("only the model has", [f"{name} {tuple(model[name])}" for name in model if name not in ticket]),
        ("shapes differ", [f"{name}: ticket {tuple(ticket[name])}, model {tuple(model[name])}" for name in both]),
    ]
    said = "; ".join(f"{what}: {_listed(names)}" for what, names in parts if names)
    return f"{said[:1].upper()}{said[1:]}."


def _listed(names: list[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _named(value: Any) -> Iterator[str]:
    """What a configuration names and may not."""
    if isinstance(value, Mapping):
        if "class_name" in value:
            module, name = value.get("module"), value["class_name"]
            if not isinstance(name, str) or not (module is None or isinstance(module, str)):
                yield f"{name!r} of {module!r}"
            elif name not in _ALLOWED.get(module, ()) or value.get("registered_name") not in (None, name):
                yield f"{name} of {module or 'no module'}"
        for key, one in value.items():
            if str(key).endswith("activation") and isinstance(one, str) and one not in _ACTIVATIONS:
                yield f"the activation {one!r}"
            yield from _named(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _named(one)


def _built(architecture: Architecture, library: Any) -> Any:
    if "name" in architecture:
        make: Callable[[], Any] = models.builder(
            architecture["name"], tuple(architecture["input_shape"]), architecture["num_classes"], library
        )
        return make()
    if library == "keras":
        import keras
    else:
        import tf_keras as keras
    # A copy, for Keras takes it apart.
    return keras.saving.deserialize_keras_object(copy.deepcopy(architecture["keras"]), safe_mode=True)


def _traced(library: str, make: Callable[[], Any]) -> Shapes:
    """The shapes of the variables of a model that is made without memory for any of them."""
    import keras
    import tensorflow as tf

    scope = keras.StatelessScope(initialize_variables=False) if library == "keras" else tf.Graph().as_default()
    found: list[Shapes] = []
    errors: list[Exception] = []

    def trace() -> None:
        level = tf.get_logger().level
        tf.get_logger().setLevel("ERROR")  # tf_keras lets a graph say what is deprecated in graphs
        try:
            with scope, warnings.catch_warnings(action="ignore"):
                found.append({name: tuple(value.shape) for name, value in weights.portable(make()).items()})
        except Exception as error:  # Keras may raise anything of a stranger's configuration
            errors.append(error)
        finally:
            tf.get_logger().setLevel(level)

    # Keras remembers by thread which variables have no value yet, and would give them one the next time.
    thread = threading.Thread(target=trace)
    thread.start()
    thread.join()
    if errors:
        raise TicketError(f"The ticket's architecture cannot be built: {compiling.reason(errors[0])}") from errors[0]
    return found[0]
