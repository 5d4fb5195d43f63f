"""Which network it is, as plain data that a stranger may have written: described, checked, and built again."""

import copy
import importlib
import json
import re
import warnings
from typing import Any

from lottery import allowlist, compiling, models, tracing, weights
from lottery.errors import TicketError, printable

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
    library = compiling.keras_of(model)
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
        return own | {"why": f"Keras has no configuration of it: {compiling.reason(error)}"}
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
        if not models.is_built_in(str(name)) or (depth and int(depth[1]) > len(expected)):
            raise TicketError(f"The architecture names the network {_short(repr(name))}, which is not built in.")
        if not all(type(size) is int and size > 0 for size in sizes):
            raise TicketError(f"The architecture's sizes are {_short(sizes)}, allowed are whole numbers from 1.")
        library = "keras"  # traced as it is in Keras 3, which names and shapes do not depend on
    elif "keras" in architecture:
        for named in allowlist.refused(architecture["keras"], library):
            raise TicketError(f"The architecture needs {_short(named)}, which a ticket may not name.")
    else:
        raise TicketError(
            f"The ticket is of a {_short(architecture.get('class', 'model'))} that only its own code can build "
            f"({_short(architecture.get('why', 'nothing more is known of it'))}); build it and use ticket.apply(model)."
        )
    try:
        found = tracing.traced(library, lambda: _built(architecture, library), expected)
    except (Exception, tracing.Stopped) as error:  # Keras may raise anything of a stranger's configuration
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
        return models.builder(name, tuple(shape), num_classes, library)()
    saving = importlib.import_module(library).saving
    # A copy, for Keras takes it apart.
    return saving.deserialize_keras_object(copy.deepcopy(architecture["keras"]), safe_mode=True)


def _unbuilt(error: Any) -> TicketError:
    return TicketError(f"The ticket's architecture cannot be built: {_short(compiling.reason(error))}")


def _short(text: object, most: int = _LONGEST) -> str:
    """In one line of bounded length, whoever wrote it."""
    line = printable(" ".join(str(text).split()))
    return line if len(line) <= most else f"{line[:most]}..."
