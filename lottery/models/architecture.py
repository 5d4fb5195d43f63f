"""What a Keras configuration that a stranger may have written is allowed to name, before Keras sees it."""

import contextlib
import copy
import importlib
import json
import math
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lottery import weights
from lottery.errors import TicketError, printable
from lottery.models import networks
from lottery.models.library import keras_of, reason

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


_PARTS = ("layer", "layers", "backward_layer", "cell", "cells")  # by a name alone, Keras makes a layer of any class


_DEEPEST, _LONGEST = 100, 1000  # lists and records in each other, characters of a text


def refused(value: Any, library: str, depth: int = 0) -> Iterator[str]:
    """What a configuration names or asks for and may not.

    Args:
        value: The configuration, or a part of it.
        library: ``"keras"`` or ``"tf_keras"``, which is to read it.
        depth: How many records and lists it lies in.

    Yields:
        Each of them, in words; nothing for a configuration of Keras' own layers without code.
    """
    if depth > _DEEPEST:
        yield f"parts nested more than {_DEEPEST} deep"
    elif isinstance(value, Mapping):
        if "class_name" in value:
            yield from _refused_of_part(value, library)
        for key, one in value.items():
            if str(key).endswith("activation") and isinstance(one, str) and one not in _ACTIVATIONS:
                yield f"the activation {one!r}"
            if key in _PARTS and str in map(type, one if isinstance(one, list) else [one]):
                yield f"a layer by its name alone, as {key!r}"
            if key == "compile_config" and one:
                yield "an optimiser or a loss"
            yield from refused(one, library, depth + 1)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from refused(one, library, depth + 1)
    elif isinstance(value, str) and (len(value) > _LONGEST or value == "_COMPOSITE_TYPE"):
        yield f"the text {value!r}"  # of that name, tf_keras makes an object


def _refused_of_part(value: Mapping[str, Any], library: str) -> Iterator[str]:
    module, name, settings = value.get("module"), value.get("class_name"), value.get("config")
    if not isinstance(name, str) or not (module is None or isinstance(module, str)):
        yield f"{name!r} of {module!r}"
    elif name not in _ALLOWED.get(module, ()) or value.get("registered_name") not in (None, name):
        yield f"{name} of {module or 'no module'}"
    elif library == "tf_keras" and name in ("UpSampling1D", "UpSampling3D"):  # they list every step of their input
        yield f"{name} of tf_keras"
    elif name == "Normalization" and isinstance(settings, Mapping) and settings.get("mean") is not None:
        # One number for a billion of them would take the memory of all.
        axes = settings.get("axis", -1)
        num_axes = len(axes) if isinstance(axes, list) else int(axes is not None)
        for key in ("mean", "variance"):
            shape, numbers = [], settings.get(key)
            while isinstance(numbers, list) and numbers:
                shape, numbers = [*shape, len(numbers)], numbers[0]
            if len(shape) != num_axes or 1 in shape:
                yield f"a Normalization whose {key} is not one number for each of its inputs"


# Calls that a trace may take. A layer takes 15,000 to 65,000; an endless loop takes all in some ten seconds.
_CALLS, _CALLS_BY_VARIABLE, _MOST_CALLS = 20_000_000, 100_000, 60_000_000


_SPARE = 100_000  # entries of variables that no layer of the network has, for Keras makes some layers twice


class Stopped(BaseException):
    """Raised in the midst of Keras, where much catches every Exception."""


def traced(
    library: str, make: Callable[[], Any], expected: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """The shapes of the variables of a model, in a bounded number of calls and without memory for other variables.

    Args:
        library: ``"keras"`` or ``"tf_keras"``, which makes it.
        make: Makes the model.
        expected: The variables that it should have, by name.

    Returns:
        The shape of each variable of `weights.portable`, by name.

    Raises:
        Exception, Stopped: Whatever Keras raises; or it takes too long, or makes more than it should.
    """
    found: list[dict[str, tuple[int, ...]]] = []
    errors: list[BaseException] = []
    left = min(_CALLS + _CALLS_BY_VARIABLE * len(expected), _MOST_CALLS)
    num_entries = sum(map(math.prod, expected.values()))

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal left
        left -= 1
        # Where Keras begins something, and not in the midst of TensorFlow, which may hold a lock.
        if left < 0 and event == "call" and "keras" in frame.f_code.co_filename:
            raise Stopped("it takes too long, for its graph has a loop, or one of its numbers is too large.")

    def trace() -> None:
        scope = _without_values if library == "keras" else _with_few_values
        try:
            with warnings.catch_warnings(action="ignore"), scope(2 * num_entries + _SPARE):
                sys.setprofile(count)  # of this thread
                model = make()
                found.append({name: tuple(value.shape) for name, value in weights.portable(model).items()})
                sys.setprofile(None)
        except (Exception, Stopped) as error:
            errors.append(error)
        finally:
            sys.setprofile(None)

    # Keras remembers by thread which variables have no value yet, and would give them one the next time.
    thread = threading.Thread(target=trace)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


@contextlib.contextmanager
def _without_values(most: int) -> Any:
    """Within, variables of Keras 3 get no values, and nothing is computed; at the end they must be few enough."""
    import keras
    import tensorflow as tf
    from keras.src.backend.common import global_state

    with tf.Graph().as_default(), keras.StatelessScope(initialize_variables=False):
        yield
        made = global_state.get_global_attribute("uninitialized_variables") or ()
        # A layer may lie beside the network, where the model does not know of its variables.
        if sum(math.prod(value.shape) for value in made) > most:
            raise Stopped("it makes more variables than its network has.")


@contextlib.contextmanager
def _with_few_values(most: int) -> Any:
    """Within, the variables of tf_keras that this thread makes must be few enough, each before it takes memory.

    In a graph they would take none at all. But there tf_keras exchanges the bases of its classes, and every model that
    the process has could no longer be called or trained.
    """
    import tensorflow as tf

    def create(creator: Callable[..., Any], **arguments: Any) -> Any:
        nonlocal most
        shape = arguments.get("shape")
        most -= math.prod(shape) if shape is not None else 0
        if most < 0:
            raise Stopped("it makes more variables than its network has.")
        return creator(**arguments)

    with tf.variable_creator_scope(create):
        yield


# The library; then a built-in network's name and arguments, or Keras' own configuration, or, where that would need
# code, the class and why.
Architecture = dict[str, Any]


Shapes = dict[str, tuple[int, ...]]


LIBRARIES = ("keras", "tf_keras")


_LONGEST = 1000  # characters, of what an error quotes


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
    library = keras_of(model)
    if name is not None:
        input_shape, num_classes = list(model.input_shape[1:]), int(model.output_shape[-1])
        return {"library": library.__name__, "name": name, "input_shape": input_shape, "num_classes": num_classes}
    own = {"library": library.__name__, "class": type(model).__name__}
    try:
        with warnings.catch_warnings(action="ignore"):  # of what cannot be loaded again, which is said below
            text = json.dumps(library.saving.serialize_keras_object(model), allow_nan=False)
        # How a part was compiled does not matter, and brings optimisers and losses with it.
        whole = json.loads(text, object_hook=lambda found: {k: v for k, v in found.items() if k != "compile_config"})
        kept = ("module", "class_name", "config", "registered_name")
        architecture = {"library": library.__name__, "keras": {key: whole.get(key) for key in kept}}
        expected = {key: tuple(value.shape) for key, value in weights.portable(model).items()}
        check(architecture, expected)
    except TicketError as error:
        return own | {"why": str(error)}
    except Exception as error:  # a user's layers may raise anything
        return own | {"why": f"Keras has no configuration of it: {reason(error)}"}
    return architecture


def check(architecture: Architecture, expected: Shapes) -> None:
    """See that an architecture is harmless and that its network has the variables that it should, without building it.

    It is traced without values, in a bounded number of calls: a layer of a billion units takes no memory, a loop ends.

    Args:
        architecture: What `described` returned, or what a file says.
        expected: The shape of each variable of `weights.portable`, by name.

    Raises:
        TicketError: It names code, or another network.
    """
    library = architecture.get("library")
    if library not in LIBRARIES:
        raise TicketError(
            f"The architecture's library is {_short(repr(library))}, allowed is one of {', '.join(LIBRARIES)}."
        )
    if "name" in architecture:
        # A network of that many layers has that many kernels.
        name, shape = architecture["name"], architecture.get("input_shape")
        sizes = [*(shape if isinstance(shape, (list, tuple)) else [shape]), architecture.get("num_classes")]
        depth = re.fullmatch(r"resnet_(\d+)", str(name))
        if not networks.is_built_in(str(name)) or (depth and int(depth[1]) > len(expected)):
            raise TicketError(f"The architecture names the network {_short(repr(name))}, which is not built in.")
        if not all(type(size) is int and size > 0 for size in sizes):
            raise TicketError(f"The architecture's sizes are {_short(sizes)}, allowed are whole numbers from 1.")
        library = "keras"  # traced as it is in Keras 3, which names and shapes do not depend on
    elif "keras" in architecture:
        for named in refused(architecture["keras"], library):
            raise TicketError(f"The architecture needs {_short(named)}, which a ticket may not name.")
    else:
        raise TicketError(
            f"The ticket is of a {_short(architecture.get('class', 'model'))} that only its own code can build "
            f"({_short(architecture.get('why', 'nothing more is known of it'))}); build it and use ticket.apply(model)."
        )
    try:
        found = traced(library, lambda: _built(architecture, library), expected)
    except (Exception, Stopped) as error:  # Keras may raise anything of a stranger's configuration
        raise _unbuilt(error) from error
    if found != expected:
        said = _short(differing(expected, found), 4 * _LONGEST)
        raise TicketError(f"The ticket's architecture is not that of its weights. {said}")


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
        raise TicketError(f"library: received {_short(repr(library))}, allowed is one of {', '.join(LIBRARIES)}.")
    if library != architecture.get("library") and "name" not in architecture:
        raise TicketError(
            f"The ticket holds a configuration of {_short(architecture.get('library'))}, which {library} does not "
            f"read; build the same layers with {library} and use ticket.apply(model)."
        )
    check(architecture, expected)
    try:
        return _built(architecture, library)
    except Exception as error:  # initializers get values only here
        raise _unbuilt(error) from error


def differing(ticket: Shapes, model: Shapes) -> str:
    """In what two sets of variables differ, both sides listed."""
    both = [name for name in ticket if name in model and tuple(ticket[name]) != tuple(model[name])]
    parts = {
        "only the ticket has": [f"{name} {tuple(ticket[name])}" for name in ticket if name not in model],
        "only the model has": [f"{name} {tuple(model[name])}" for name in model if name not in ticket],
        "shapes differ": [f"{name}: ticket {tuple(ticket[name])}, model {tuple(model[name])}" for name in both],
    }
    more = {what: f" and {len(names) - 12} more" if len(names) > 12 else "" for what, names in parts.items()}
    said = "; ".join(f"{what}: {', '.join(names[:12])}{more[what]}" for what, names in parts.items() if names)
    return f"{said[:1].upper()}{said[1:]}."


def _built(architecture: Architecture, library: str) -> Any:
    if "name" in architecture:
        name, shape, num_classes = (architecture[key] for key in ("name", "input_shape", "num_classes"))
        return networks.builder(name, tuple(shape), num_classes, library)()
    saving = importlib.import_module(library).saving
    # A copy, for Keras takes it apart.
    return saving.deserialize_keras_object(copy.deepcopy(architecture["keras"]), safe_mode=True)


def _unbuilt(error: Any) -> TicketError:
    return TicketError(f"The ticket's architecture cannot be built: {_short(reason(error))}")


def _short(text: object, most: int = _LONGEST) -> str:
    """In one line of bounded length, whoever wrote it."""
    line = printable(" ".join(str(text).split()))
    return line if len(line) <= most else f"{line[:most]}..."
