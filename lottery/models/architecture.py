"""A network as plain data: describe a model, check a description that a stranger may have written, build from it.

Nothing in a description runs code: it names a built-in network, or Keras' own layers, initializers, operations and the
like from the lists below, which are checked before Keras reads them. What is built must have exactly the variables that
are expected. How long that takes, and how much memory, is not limited.
"""

import copy
import importlib
import json
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lottery import masks, weights
from lottery.errors import TicketError, printable
from lottery.masks import Shapes
from lottery.models import graph, networks
from lottery.models.kerases import LIBRARIES, in_policy, keras_of, reason, tf

# ``library``; and ``name``, ``input_shape``, ``num_classes`` of a built-in network; or ``keras``, the configuration of
# a model of Keras' own layers; or, of a model that only its own code can build, ``class`` and ``why``.
Architecture = dict[str, Any]

_LONGEST = 1000  # characters of a text, in a configuration or of one in an error
_LARGEST = 2_000_000  # bytes of a configuration: well below those of a record, which holds it with more spaces


def describe(model: Any, name: str | None = None) -> Architecture:
    """Describe a built model, as values that JSON holds; `name` is that of the built-in network, if it is one."""
    library = keras_of(model).__name__
    # By its name, a network is built in float32, which would round the weights of a process with another policy.
    is_single = all("float32" in str(variable.dtype) for variable in model.trainable_variables)
    if name is not None and is_single:
        sizes = {"input_shape": list(model.input_shape[1:]), "num_classes": int(model.output_shape[-1])}
        return {"library": library, "name": name, **sizes}
    undescribed = {"library": library, "class": type(model).__name__}
    try:
        # Keras warns of layers that cannot be loaded again: see `why` below.
        with warnings.catch_warnings(action="ignore"):
            # JSON has no NaN, but Python would write one; that is an error here, and becomes the reason below.
            text = json.dumps(keras_of(model).saving.serialize_keras_object(model), allow_nan=False)
        if len(text) > _LARGEST:  # arrays that operations take are part of it
            raise TicketError(f"Its configuration has {len(text):,} bytes, more than the limit of {_LARGEST:,}.")
        # How a part was compiled does not matter, and brings optimizers and losses with it.
        whole = json.loads(text, object_hook=lambda found: {k: v for k, v in found.items() if k != "compile_config"})
        kept = ("module", "class_name", "config", "registered_name")
        architecture = {"library": library, "keras": {key: whole.get(key) for key in kept}}
        # What a reader will do, with all that it refuses, is done once here.
        rebuilt = build(architecture, masks.shapes(weights.portable(model)))
        _check_activations(model, rebuilt)
        _check_frozen(model, rebuilt)
    except TicketError as error:
        return undescribed | {"why": str(error)}
    except Exception as error:  # a user's layers may raise anything
        return undescribed | {"why": f"Keras has no configuration of it: {reason(error)}"}
    return architecture


def build(architecture: Architecture, expected: Shapes, library: str | None = None) -> Any:
    """Build a network, not compiled, by default with its own library.

    Raises `TicketError` if the architecture is not harmless, or has other variables (`weights.portable`) than expected.
    """
    own = architecture.get("library")
    reader: Any = library or own
    for name in (reader, own):
        if name not in LIBRARIES:
            raise TicketError(f"library must be one of {', '.join(LIBRARIES)}, not {_short(repr(name))}.")
    if reader != own and "name" not in architecture:
        raise TicketError(
            f"The ticket holds a configuration of {own}, which {reader} does not read; build the same layers with "
            f"{reader} and use ticket.apply(model)."
        )
    _check_names(architecture)
    try:
        with warnings.catch_warnings(action="ignore"):
            model = _built(architecture, reader)
        _freeze_within(model)
        found = masks.shapes(weights.portable(model))
    except Exception as error:  # Keras may raise anything because of a stranger's configuration
        raise TicketError(f"The ticket's architecture cannot be built: {_short(reason(error))}") from error
    if found != expected:
        differences = _short(differing(expected, found), 4 * _LONGEST)
        raise TicketError(f"The ticket's architecture does not fit its weights. {differences}")
    return model


def differing(ticket: Shapes, model: Shapes) -> str:
    """Describe in a sentence how two sets of variables differ, both sides listed."""
    both = [name for name in ticket if name in model and tuple(ticket[name]) != tuple(model[name])]
    parts = {
        "only the ticket has": [f"{name} {tuple(ticket[name])}" for name in ticket if name not in model],
        "only the model has": [f"{name} {tuple(model[name])}" for name in model if name not in ticket],
        "shapes differ": [f"{name}: ticket {tuple(ticket[name])}, model {tuple(model[name])}" for name in both],
    }
    texts = []
    for what, names in parts.items():
        more = f" and {len(names) - 12} more" if len(names) > 12 else ""
        if names:
            texts.append(f"{what}: {', '.join(names[:12])}{more}")
    text = "; ".join(texts)
    return f"{text[:1].upper()}{text[1:]}."


def _check_activations(model: Any, rebuilt: Any) -> None:
    """Raise `TicketError` if an activation computes something else in the model that was built from a description."""
    # Both libraries describe a function by its name alone, and read the name as that of their own: a function of the
    # user's called "gelu" becomes Keras' gelu, and so does keras.ops.gelu, whose default is another (Keras 3.15).
    x = tf.reshape(tf.linspace(-4.0, 4.0, 24), (2, 12))
    for own, other in zip(weights.all_layers(model), weights.all_layers(rebuilt), strict=True):
        for key in ("activation", "recurrent_activation"):
            first: Any = getattr(own, key, None)
            second: Any = getattr(other, key, None)
            # A layer in the place of a function is described with its settings.
            if first is second or not hasattr(first, "__name__"):
                continue
            if not np.allclose(first(x), second(x), rtol=1e-5, atol=1e-6):
                raise TicketError(f"The {key} {first.__name__!r} of the layer {own.name!r} is not Keras' own.")


def _check_frozen(model: Any, rebuilt: Any) -> None:
    """Raise `TicketError` if a variable is frozen in only one of a model and the one built from its description."""
    # Neither Keras describes that a layer was frozen alone within another layer, and tf_keras 2.21 not that a model
    # within a model was.
    for name in sorted(_frozen(model) ^ _frozen(rebuilt)):
        raise TicketError(f"Its configuration does not say if {name!r} is frozen.")


def _frozen(model: Any) -> set[str]:
    trained = {id(variable) for variable in model.trainable_variables}
    return {name for name, variable in weights.portable(model).items() if id(variable) not in trained}


def _freeze_within(model: Any) -> None:
    """Freeze what lies within frozen layers: Keras 3.15 builds a frozen layer of attention of layers that train."""
    for layer in weights.all_layers(model):
        # A model's layers are described one by one.
        if not layer.trainable and not hasattr(layer, "layers"):
            for inner in weights.children(layer):
                inner.trainable = False


def _check_names(architecture: Architecture) -> None:
    """Raise unless an architecture names nothing but what is built in, and parts of Keras that hold no code."""
    if "name" in architecture:
        name, shape = architecture["name"], architecture.get("input_shape")
        if not networks.is_built_in(str(name)):
            raise TicketError(f"The architecture names the network {_short(repr(name))}, which is not built in.")
        sizes = [*(shape if isinstance(shape, (list, tuple)) else [shape]), architecture.get("num_classes")]
        # Not by isinstance, for which True is a number.
        if not all(type(size) is int and size > 0 for size in sizes):
            raise TicketError(f"The sizes of the architecture must be whole numbers from 1, not {_short(sizes)}.")
    elif "keras" in architecture:
        for named in _refused(architecture["keras"], architecture["library"]):
            raise TicketError(f"The architecture needs {_short(named)}, which a ticket may not name.")
    else:
        kind, why = architecture.get("class", "model"), architecture.get("why", "nothing more is known of it")
        raise TicketError(
            f"The ticket is of a {_short(kind)} that only its own code can build ({_short(why)}); build it and use "
            "ticket.apply(model)."
        )


def _built(architecture: Architecture, library: str) -> Any:
    keras = importlib.import_module(library)
    if "name" in architecture:
        name, shape, num_classes = (architecture[key] for key in ("name", "input_shape", "num_classes"))
        # So are its weights, whatever this process builds its own models in.
        with in_policy(keras, "float32"):
            return networks.builder(name, tuple(shape), num_classes, library)()
    # A copy, because Keras changes what it reads.
    return keras.saving.deserialize_keras_object(copy.deepcopy(architecture["keras"]), safe_mode=True)


def _short(text: object, most: int = _LONGEST) -> str:
    """Text of a stranger, in one line of bounded length."""
    line = printable(" ".join(str(text).split()))
    return line if len(line) <= most else f"{line[:most]}..."


# The classes that a configuration may name, because they hold no code and read no files. All others are refused,
# whatever Keras thinks of them: layers that hold code or read files (Lambda, TFSMLayer, StringLookup, ...), functions,
# and classes of the file's author.
_INITIALIZERS = frozenset({
    "Constant", "GlorotNormal", "GlorotUniform", "HeNormal", "HeUniform", "Identity", "LecunNormal", "LecunUniform",
    "Ones", "Orthogonal", "OrthogonalInitializer", "RandomNormal", "RandomUniform", "TruncatedNormal",
    "VarianceScaling", "Zeros",
})  # fmt: skip
_ALLOWED: Mapping[str | None, frozenset[str]] = {
    "keras": frozenset({"Sequential", "DTypePolicy"}),
    "keras.mixed_precision": frozenset({"Policy"}),
    "keras.layers": frozenset(graph.LAYERS),
    "keras.initializers": _INITIALIZERS,
    "keras.regularizers": frozenset({"L1", "L2", "L1L2", "OrthogonalRegularizer"}),
    "keras.constraints": frozenset({"MaxNorm", "MinMaxNorm", "NonNeg", "UnitNorm"}),
    # Keras 3.15 and tf_keras 2.21 write the private modules of functional models, which have no public ones.
    "keras.src.models.functional": frozenset({"Functional"}),
    "tf_keras.src.engine.functional": frozenset({"Functional"}),
    None: frozenset({"__keras_tensor__", "__slice__", "__ellipsis__", "__numpy__", "__tensor__"}),
}
_NUMBERS = frozenset({
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64",
})  # fmt: skip

# By module, operations of Keras 3. Those that take functions (Map, Scan, Cond, ...) are not among them, and neither are
# those that make tensors out of nothing (Arange, Full, ...) or loop over a number (Diff, Unstack, Vander, ...).
_OF_KERAS = {
    "numpy": "Abs Absolute Add All Amax Amin Any Append Arccos Arccosh Arcsin Arcsinh Arctan Arctan2 Arctanh Argmax "
    "Argmin Argsort Average BroadcastTo Cbrt Ceil Clip Concatenate Copy Cos Cosh CountNonzero Cumprod Cumsum Deg2rad "
    "Diagonal Divide DivideNoNan Dot Einsum Equal Exp Exp2 ExpandDims Expm1 Flip Floor FloorDivide FullLike GetItem "
    "Greater GreaterEqual Hypot Inner Isclose Isfinite Isinf Isnan Less LessEqual Log Log10 Log1p Log2 Logaddexp "
    "LogicalAnd LogicalNot LogicalOr LogicalXor Matmul Max Maximum Mean Median Min Minimum Mod Moveaxis Multiply "
    "NanToNum Negative NotEqual OnesLike Outer Pad Power Prod Ravel Reciprocal Repeat Reshape Roll Round Sign Sin Sinc "
    "Sinh Sort Split Sqrt Square Squeeze Stack Std Subtract Sum Swapaxes Take TakeAlongAxis Tan Tanh Tensordot Tile "
    "Trace Transpose Tril Triu TrueDivide Trunc Var Vdot Where ZerosLike",
    "nn": "AdaptiveAveragePool AdaptiveMaxPool AveragePool Celu DepthToSpace DotProductAttention Elu Gelu Glu "
    "HardShrink HardSigmoid HardSilu HardTanh LayerNorm LeakyRelu LogSigmoid LogSoftmax MaxPool Moments MultiHot "
    "Normalize OneHot RMSNorm Relu Relu6 Selu Sigmoid Silu SoftShrink Softmax Softplus Softsign SpaceToDepth "
    "SparsePlus SparseSigmoid Sparsemax Squareplus TanhShrink Threshold",
    "math": "Erf Erfc Erfinv InTopK Logsumexp Rsqrt TopK",
    "core": "Cast ConvertToTensor SaturateCast Slice StopGradient",
    "linalg": "Norm",
    "einops": "Rearrange",
}
KERAS_OPERATIONS = {f"keras.src.ops.{module}": frozenset(names.split()) for module, names in _OF_KERAS.items()}

# Functions of TensorFlow that tf_keras turns into layers, by TensorFlow's names.
_OF_TENSORFLOW = {
    "__operators__.": "add eq getitem ne",  # the other operators are functions of ``math`` and ``linalg``
    "": "broadcast_to cast clip_by_value concat einsum expand_dims gather identity one_hot ones_like pad repeat "
    "reshape reverse roll shape split squeeze stack stop_gradient tensordot tile transpose where zeros_like",
    "compat.v1.": "concat expand_dims gather ones_like pad shape squeeze transpose where zeros_like",
    "math.": "abs acos acosh add add_n argmax argmin asin asinh atan atan2 atanh ceil cos cosh cumprod cumsum divide "
    "divide_no_nan equal erf erfc exp expm1 floor floordiv floormod greater greater_equal is_finite is_inf is_nan "
    "l2_normalize less less_equal log log1p log_sigmoid log_softmax logical_and logical_not logical_or logical_xor "
    "maximum minimum mod multiply multiply_no_nan negative not_equal pow reciprocal reduce_all reduce_any "
    "reduce_euclidean_norm reduce_logsumexp reduce_max reduce_mean reduce_min reduce_prod reduce_std reduce_sum "
    "reduce_variance round rsqrt sigmoid sign sin sinh softmax softplus softsign sqrt square squared_difference "
    "subtract tan tanh top_k truediv xdivy xlogy",
    "nn.": "avg_pool crelu depth_to_space elu gelu l2_normalize leaky_relu log_softmax max_pool moments relu relu6 "
    "selu sigmoid silu softmax softplus softsign space_to_depth tanh",
    "linalg.": "band_part l2_normalize matmul matrix_transpose norm tensordot",
}
TENSORFLOW_OPERATIONS = frozenset(prefix + name for prefix, names in _OF_TENSORFLOW.items() for name in names.split())
# By the library that has them: the modules of operations, and the classes in each.
_OPERATIONS: Mapping[str, Mapping[str, frozenset[str]]] = {
    "keras": KERAS_OPERATIONS,
    "tf_keras": {"tf_keras.src.layers.core.tf_op_layer": frozenset({"TFOpLambda", "SlicingOpLambda"})},
}
# By a name alone, Keras makes a layer of any class.
_PARTS = ("layer", "layers", "backward_layer", "cell", "cells")


def _refused(value: Any, library: str) -> Iterator[str]:
    """Yield, in words, everything that a configuration, which `library` will read, names or needs and may not."""
    if isinstance(value, Mapping):
        if "class_name" in value:
            yield from _refused_class(value, library)
        for key, part in value.items():
            yield from _refused_entry(str(key), part)
            yield from _refused(part, library)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _refused(part, library)
    elif isinstance(value, str) and (len(value) > _LONGEST or value == "_COMPOSITE_TYPE"):
        yield f"the text {value!r}"  # tf_keras makes an object of a record with this name


def _refused_entry(key: str, part: Any) -> Iterator[str]:
    """Yield what a key of a configuration may not have as its value."""
    if key.endswith("activation") and isinstance(part, str) and part not in graph.ACTIVATIONS:
        yield f"the activation {part!r}"
    if key in _PARTS and str in map(type, part if isinstance(part, list) else [part]):
        yield f"a layer by its name alone, as {key!r}"
    if key == "compile_config" and part:
        yield "an optimizer or a loss"
    if _is_operation(part):  # rather than in a list of layers
        yield f"an operation as {key!r}"


def _refused_class(value: Mapping[str, Any], library: str) -> Iterator[str]:
    module, name, settings = value.get("module"), value.get("class_name"), value.get("config")
    if not isinstance(name, str) or not (module is None or isinstance(module, str)):
        yield f"{name!r} of {module!r}"
    elif _is_operation(value) and value.get("registered_name") in (None, name):
        is_known = name in _OPERATIONS[library].get(str(module), ())
        if library == "tf_keras" and isinstance(settings, Mapping):
            name = str(settings.get("function"))
        if not is_known or (library == "tf_keras" and name not in TENSORFLOW_OPERATIONS):
            yield f"{name} of {module}"
    elif name in ("__numpy__", "__tensor__") and not _is_of_numbers(settings):
        yield "an array of another type than numbers"
    # By a registered name, Keras takes whatever class a process has registered, before it looks at the module.
    elif name not in _ALLOWED.get(module, ()) or value.get("registered_name") not in (None, name):
        yield f"{name} of {module or 'no module'}"


def _is_of_numbers(settings: Any) -> bool:
    return isinstance(settings, Mapping) and str(settings.get("dtype")) in _NUMBERS


def _is_operation(part: Any) -> bool:
    """Check if a part of a configuration is an operation, of either library, that may or may not be allowed."""
    module = part.get("module") if isinstance(part, Mapping) else None
    return isinstance(module, str) and any(module in modules for modules in _OPERATIONS.values())
