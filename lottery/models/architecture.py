"""A network as plain data: describe a model, check a description that a stranger may have written, build from it.

Nothing in a description runs code: it names a built-in network, or Keras' own layers from the lists below, which are
checked before Keras reads them. So are the calls of layers: some for each variable, and no loops. Memory is bounded
before anything is built: the network is traced first, without values, and must have exactly the variables that are
expected, and layers whose outputs are no larger than such variables explain. It is built without running its
initializers, which may take hours.
"""

import contextlib
import copy
import importlib
import json
import math
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

from lottery import weights
from lottery.errors import TicketError, printable
from lottery.models import graph, networks, operations
from lottery.models.kerases import LIBRARIES, keras_of, reason

# ``library``; and ``name``, ``input_shape``, ``num_classes`` of a built-in network; or ``keras``, the configuration of
# a model of Keras' own layers; or, of a model that only its own code can build, ``class`` and ``why``.
Architecture = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]


def describe(model: Any, name: str | None = None) -> Architecture:
    """Describe a built model, as values that JSON holds; `name` is that of the built-in network, if it is one."""
    library = keras_of(model).__name__
    if name is not None:
        input_shape, num_classes = list(model.input_shape[1:]), int(model.output_shape[-1])
        return {"library": library, "name": name, "input_shape": input_shape, "num_classes": num_classes}
    undescribed = {"library": library, "class": type(model).__name__}
    try:
        with warnings.catch_warnings(action="ignore"):  # about layers that cannot be loaded again: see `why` below
            text = json.dumps(keras_of(model).saving.serialize_keras_object(model), allow_nan=False)
        if len(text) > _LARGEST:  # arrays that operations take are part of it
            raise TicketError(f"Its configuration has {len(text):,} bytes, allowed are {_LARGEST:,}.")
        # How a part was compiled does not matter, and brings optimizers and losses with it.
        whole = json.loads(text, object_hook=lambda found: {k: v for k, v in found.items() if k != "compile_config"})
        kept = ("module", "class_name", "config", "registered_name")
        architecture = {"library": library, "keras": {key: whole.get(key) for key in kept}}
        check(architecture, _shapes(model))
    except TicketError as error:
        return undescribed | {"why": str(error)}
    except Exception as error:  # a user's layers may raise anything
        return undescribed | {"why": f"Keras has no configuration of it: {reason(error)}"}
    return architecture


def check(architecture: Architecture, expected: Shapes) -> None:
    """Raise a `TicketError` unless an architecture is harmless and has the variables of `weights.portable` expected."""
    # Nothing is built: a layer of a billion units takes no memory, and a loop ends.
    library = architecture.get("library")
    if library not in LIBRARIES:
        raise TicketError(
            f"The architecture's library is {_short(repr(library))}, allowed is one of {', '.join(LIBRARIES)}."
        )
    if "name" in architecture:
        _check_built_in(architecture, len(expected))
        library = "keras"  # names and shapes are the same in tf_keras
    elif "keras" in architecture:
        for named in refused(architecture["keras"], library):
            raise TicketError(f"The architecture needs {_short(named)}, which a ticket may not name.")
    else:
        raise TicketError(
            f"The ticket is of a {_short(architecture.get('class', 'model'))} that only its own code can build "
            f"({_short(architecture.get('why', 'nothing more is known of it'))}); build it and use ticket.apply(model)."
        )
    try:
        if "keras" in architecture:
            _check_calls(architecture["keras"], len(expected))
        found = traced(library, lambda: _built(_rolled(architecture), library), expected, _num_unrolled(architecture))
    except (Exception, Stopped) as error:  # Keras may raise anything because of a stranger's configuration
        raise _unbuilt(error) from error
    if found != expected:
        differences = _short(differing(expected, found), 4 * _LONGEST)
        raise TicketError(f"The ticket's architecture is not that of its weights. {differences}")


def build(architecture: Architecture, expected: Shapes, library: str | None = None) -> Any:
    """Build the network after a `check`, not compiled, by default with its own library; its weights are not drawn."""
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
        with warnings.catch_warnings(action="ignore"), _not_drawn():
            return _built(architecture, library)
    except Exception as error:  # Keras may raise anything because of a stranger's configuration
        raise _unbuilt(error) from error


def differing(ticket: Shapes, model: Shapes) -> str:
    """Describe in a sentence how two sets of variables differ, both sides listed."""
    both = [name for name in ticket if name in model and tuple(ticket[name]) != tuple(model[name])]
    parts = {
        "only the ticket has": [f"{name} {tuple(ticket[name])}" for name in ticket if name not in model],
        "only the model has": [f"{name} {tuple(model[name])}" for name in model if name not in ticket],
        "shapes differ": [f"{name}: ticket {tuple(ticket[name])}, model {tuple(model[name])}" for name in both],
    }
    more = {what: f" and {len(names) - 12} more" if len(names) > 12 else "" for what, names in parts.items()}
    text = "; ".join(f"{what}: {', '.join(names[:12])}{more[what]}" for what, names in parts.items() if names)
    return f"{text[:1].upper()}{text[1:]}."


def _built(architecture: Architecture, library: str) -> Any:
    if "name" in architecture:
        name, shape, num_classes = (architecture[key] for key in ("name", "input_shape", "num_classes"))
        return networks.builder(name, tuple(shape), num_classes, library)()
    saving = importlib.import_module(library).saving
    # A copy, because Keras changes what it reads.
    return saving.deserialize_keras_object(copy.deepcopy(architecture["keras"]), safe_mode=True)


def _check_built_in(architecture: Architecture, num_variables: int) -> None:
    name, shape = architecture["name"], architecture.get("input_shape")
    sizes = [*(shape if isinstance(shape, (list, tuple)) else [shape]), architecture.get("num_classes")]
    depth = re.fullmatch(r"resnet_(\d+)", str(name))
    # A ResNet of depth N has more than N variables.
    if not networks.is_built_in(str(name)) or (depth and int(depth[1]) > num_variables):
        raise TicketError(f"The architecture names the network {_short(repr(name))}, which is not built in.")
    if not all(type(size) is int and size > 0 for size in sizes):
        raise TicketError(f"The architecture's sizes are {_short(sizes)}, allowed are whole numbers from 1.")


@contextlib.contextmanager
def _not_drawn() -> Iterator[None]:
    """Within, the initializers that a configuration may name return zeros in this thread, whatever they would draw."""
    own = threading.get_ident()

    def in_place_of(draw: Callable[..., Any]) -> Callable[..., Any]:
        def zeros(initializer: Any, shape: Any, dtype: Any = None, **options: Any) -> Any:
            if threading.get_ident() != own:
                return draw(initializer, shape, dtype, **options)
            import tensorflow as tf

            return tf.zeros(shape, dtype or tf.float32)

        return zeros

    with contextlib.ExitStack() as stack:
        for library in LIBRARIES:
            known = vars(importlib.import_module(library).initializers)
            for drawing in {base for name in _INITIALIZERS if name in known for base in known[name].__mro__}:
                if "__call__" in vars(drawing):
                    stack.enter_context(mock.patch.object(drawing, "__call__", in_place_of(drawing.__call__)))
        yield


def _shapes(model: Any) -> Shapes:
    return {name: tuple(value.shape) for name, value in weights.portable(model).items()}


def _unbuilt(error: Any) -> TicketError:
    return TicketError(f"The ticket's architecture cannot be built: {_short(reason(error))}")


_DEEPEST, _LONGEST = 100, 1000  # lists and records inside each other; characters of a text
_LARGEST = 2_000_000  # bytes of a configuration: well below those of a record, which holds it with more spaces


def _short(text: object, most: int = _LONGEST) -> str:
    """Text of a stranger, in one line of bounded length."""
    line = printable(" ".join(str(text).split()))
    return line if len(line) <= most else f"{line[:most]}..."


# The classes that a configuration may name, because they hold no code, read no files and make no more than their sizes
# say. All others are refused, whatever Keras thinks of them: layers that hold code or read files (Lambda, TFSMLayer,
# StringLookup, ...), functions, and classes of the file's author.
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
    "keras.src.models.functional": frozenset({"Functional"}),
    "tf_keras.src.engine.functional": frozenset({"Functional"}),
    None: frozenset({"__keras_tensor__", "__slice__", "__ellipsis__", "__numpy__", "__tensor__"}),
}
_NUMBERS = frozenset({
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
    "float64",
})  # fmt: skip
_PARTS = ("layer", "layers", "backward_layer", "cell", "cells")  # by a name alone, Keras makes a layer of any class


def refused(value: Any, library: str, depth: int = 0) -> Iterator[str]:
    """Yield, in words, everything that a configuration, which `library` will read, names or needs and may not."""
    if depth > _DEEPEST:
        yield f"parts nested more than {_DEEPEST} deep"
    elif isinstance(value, Mapping):
        if "class_name" in value:
            yield from _refused_class(value, library)
        for key, part in value.items():
            if key == "power_iterations" and not (type(part) is int and 0 < part <= _MOST_ITERATIONS):
                yield f"{part!r} power iterations"
            if str(key).endswith("activation") and isinstance(part, str) and part not in graph.ACTIVATIONS:
                yield f"the activation {part!r}"
            if key in _PARTS and str in map(type, part if isinstance(part, list) else [part]):
                yield f"a layer by its name alone, as {key!r}"
            if key == "compile_config" and part:
                yield "an optimizer or a loss"
            if operations.is_operation(part):  # rather than in a list of layers
                yield f"an operation as {key!r}"
            yield from refused(part, library, depth + 1)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from refused(part, library, depth + 1)
    elif isinstance(value, str) and (len(value) > _LONGEST or value == "_COMPOSITE_TYPE"):
        yield f"the text {value!r}"  # tf_keras makes an object of a record with this name


def _refused_class(value: Mapping[str, Any], library: str) -> Iterator[str]:
    module, name, settings = value.get("module"), value.get("class_name"), value.get("config")
    if not isinstance(name, str) or not (module is None or isinstance(module, str)):
        yield f"{name!r} of {module!r}"
    elif operations.is_operation(value) and value.get("registered_name") in (None, name):
        yield from operations.refused(value, library)
    elif name in ("__numpy__", "__tensor__") and not _is_of_numbers(settings):
        yield "an array of another type than numbers"
    elif name not in _ALLOWED.get(module, ()) or value.get("registered_name") not in (None, name):
        yield f"{name} of {module or 'no module'}"
    elif library == "tf_keras" and name in ("UpSampling1D", "UpSampling3D"):  # they list every step of their input
        yield f"{name} of tf_keras"
    elif name == "Normalization" and isinstance(settings, Mapping) and settings.get("mean") is not None:
        # Keras would repeat a single number for each of a billion inputs, in memory.
        axes = settings.get("axis", -1)
        num_axes = len(axes) if isinstance(axes, list) else int(axes is not None)
        for key in ("mean", "variance"):
            shape, numbers = [], settings.get(key)
            while isinstance(numbers, list) and numbers:
                shape, numbers = [*shape, len(numbers)], numbers[0]
            if len(shape) != num_axes or 1 in shape:
                yield f"a Normalization whose {key} is not one number for each of its inputs"


def _is_of_numbers(settings: Any) -> bool:
    return isinstance(settings, Mapping) and str(settings.get("dtype")) in _NUMBERS


# Calls of layers that a network may take, of some 10 ms each: one layer, or model, may be called many times.
_CALLS, _CALLS_BY_VARIABLE = 500, 10
_MOST_STEPS = 1000  # of recurrent layers that are unrolled, together
_MOST_ITERATIONS = 100
_SPARE = 100_000  # entries of variables that no layer of the network has, because Keras makes some layers twice
# Numbers that a layer may return for an example: so many, or so many times the number of the weights.
_OUTPUTS, _OUTPUTS_BY_ENTRY = 2**24, 100


class Stopped(BaseException):
    """Raised inside Keras, much of which catches every Exception."""


def _check_calls(config: Any, num_variables: int) -> None:
    """Raise `Stopped` if building a network would take too many calls of layers, or would never end."""
    if _num_calls(config) > _CALLS + _CALLS_BY_VARIABLE * num_variables:
        raise Stopped("it takes too long, for it calls far more layers than it has variables.")
    for layers in _graphs_of_tf_keras(config):
        if waiting := _waiting(layers):
            raise Stopped(f"it takes too long, for the graph of {waiting[0]!r} has a loop.")


def _num_calls(part: Any) -> int:
    """Count the layers that are called where a part of a configuration is; what lies in it is called wherever it is."""
    if isinstance(part, (list, tuple)):
        return sum(map(_num_calls, part))
    if not isinstance(part, Mapping):
        return 0
    inside = sum(_num_calls(value) for key, value in part.items() if key != "inbound_nodes")
    if "inbound_nodes" not in part and part.get("class_name") not in graph.LAYERS.keys() | {"Sequential", "Functional"}:
        return inside
    nodes = part.get("inbound_nodes")
    return (1 + inside) * max(1, len(nodes) if isinstance(nodes, list) else 1)


def _graphs_of_tf_keras(part: Any) -> Iterator[list[Any]]:
    """Yield the layers of every functional model of tf_keras, whose reader waits for ever if a call is missing."""
    if isinstance(part, (list, tuple)):
        for one in part:
            yield from _graphs_of_tf_keras(one)
    elif isinstance(part, Mapping):
        if part.get("class_name") == "Functional" and str(part.get("module")).startswith("tf_keras"):
            yield part["config"]["layers"]
        for one in part.values():
            yield from _graphs_of_tf_keras(one)


def _waiting(layers: list[Any]) -> list[str]:
    """List the layers of such a model whose calls are never made, by the rules of its reader."""
    nodes: dict[str, list[Any]] = {}
    made: set[tuple[str, Any]] = set()
    inputs = {layer["name"] for layer in layers if layer["class_name"] == "InputLayer"}
    for layer in layers:
        nodes.setdefault(layer["name"], []).extend(layer["inbound_nodes"])
    # The first call of a model with inputs is its own, and the description does not list it.
    calls = {layer["name"]: int(_begins_with_input(layer)) for layer in layers}
    going = True
    while going:
        going = False
        for name, left in nodes.items():
            while left and all(place[0] in inputs or place in made for place in _sources(left[0])):
                del left[0]
                made.add((name, calls[name]))
                calls[name] += 1
                going = True
    return [name for name, left in nodes.items() if left]


def _begins_with_input(layer: Mapping[str, Any]) -> bool:
    if layer["class_name"] == "Sequential":
        return layer["config"]["layers"][0]["class_name"] == "InputLayer"
    return layer["class_name"] == "Functional"


def _sources(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield layer and number of every call whose output goes into a call of a layer."""
    if isinstance(node, list) and len(node) in (3, 4) and isinstance(node[0], str):
        if node[0] != "_CONSTANT_VALUE":
            yield node[0], node[1]
        node = node[3:]
    for part in node.values() if isinstance(node, Mapping) else node if isinstance(node, (list, tuple)) else ():
        yield from _sources(part)


def _num_unrolled(part: Any) -> int:
    """Count the recurrent layers that are unrolled, which takes a call for every step."""
    if isinstance(part, Mapping):
        return bool(part.get("unroll")) + sum(map(_num_unrolled, part.values()))
    return sum(map(_num_unrolled, part)) if isinstance(part, (list, tuple)) else 0


def _rolled(part: Any) -> Any:
    """Copy a configuration in which no layer is unrolled."""
    if isinstance(part, Mapping):
        return {key: False if key == "unroll" else _rolled(value) for key, value in part.items()}
    return [_rolled(value) for value in part] if isinstance(part, (list, tuple)) else part


def traced(library: str, make: Callable[[], Any], expected: Shapes, num_unrolled: int = 0) -> Shapes:
    """Return the shapes of a model's variables, with bounded memory; Keras may raise any error."""
    entries = sum(map(math.prod, expected.values()))
    most, most_outputs = 2 * entries + _SPARE, max(_OUTPUTS, _OUTPUTS_BY_ENTRY * entries)

    def trace() -> Shapes:
        scope = _without_values if library == "keras" else _with_few_values
        with warnings.catch_warnings(action="ignore"), scope(most), _not_drawn():
            model = make()
            if (largest := _largest_output(model)) > most_outputs:
                raise Stopped(f"a layer returns {largest:,} numbers for an example, far more than it has weights.")
            if num_unrolled and (steps := _longest_sequence(model)) * num_unrolled > _MOST_STEPS:
                raise Stopped(f"it takes too long, for a recurrent layer may be unrolled for {steps:,} steps.")
            return _shapes(model)

    for name in LIBRARIES:
        # Here, because the thread that imports tf_keras is the only one whose models it saves as .keras a second time.
        importlib.import_module(name)
    # A thread, because Keras remembers by thread which variables have no value yet, and would give them one next time.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(trace).result()


def _largest_output(model: Any) -> int:
    """Count the numbers in a layer's or operation's largest output for an example, or a batch of the size it states."""
    import tensorflow as tf

    largest, layers = 0, list(model._flatten_layers())
    for layer in [*layers, *(one for inner in layers for one in getattr(inner, "operations", ()))]:
        for node in getattr(layer, "_inbound_nodes", ()):
            for shape in (tuple(one.shape) for one in tf.nest.flatten(node.output_tensors)):
                steps = (shape[1] or 1) ** 2 if "Attention" in type(layer).__name__ and len(shape) > 2 else 0
                largest = max(largest, steps, math.prod(size or 1 for size in shape))
    return largest


def _longest_sequence(model: Any) -> int:
    """Count the steps of the longest sequence that a layer takes, as far as they are known."""
    import tensorflow as tf

    nodes = (node for layer in model._flatten_layers() for node in getattr(layer, "_inbound_nodes", ()))
    shapes = (tuple(one.shape) for node in nodes for one in tf.nest.flatten(node.output_tensors))
    inputs = (tuple(one.shape) for one in tf.nest.flatten(model.inputs))
    return max((shape[1] or 0 for shape in (*inputs, *shapes) if len(shape) > 2), default=0)


@contextlib.contextmanager
def _without_values(most: int) -> Any:
    """Within, variables of Keras 3 get no values, and nothing is computed; at the end their entries are counted."""
    import keras
    import tensorflow as tf
    from keras.src.backend.common import global_state

    with tf.Graph().as_default(), keras.StatelessScope(initialize_variables=False):
        yield
        made = global_state.get_global_attribute("uninitialized_variables") or ()
        # The model does not know the variables of a layer that lies beside the network.
        if sum(math.prod(value.shape) for value in made) > most:
            raise Stopped("it makes more variables than its network has.")


@contextlib.contextmanager
def _with_few_values(most: int) -> Any:
    """Within, the variables of tf_keras that this thread makes are counted, each before it takes memory."""
    # In a graph they would take none at all. But there tf_keras exchanges the bases of its classes, and no other model
    # of the process could be called or trained any more.
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
