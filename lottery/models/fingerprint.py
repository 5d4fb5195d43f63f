"""Digests of what a caller passes: two models with the same digest are the same network, trained the same way."""

import hashlib
import inspect
import json
import warnings
from typing import Any

from lottery import weights
from lottery.models.library import is_compiled, is_keras


def of_model(model: Any) -> str:
    """Compute a digest of a model: its layers, their arguments and wiring, its weights, and how it was compiled.

    Names that Keras numbers count by position, so that building it twice changes nothing; users' classes by source.
    """
    layers = list(model._flatten_layers())
    positions = {layer.name: f"layer {index}" for index, layer in enumerate(layers)}
    parts = [
        [type(layer).__name__ for layer in layers],
        {name: list(value.shape) for name, value in weights.variables(model).items()},
        _neutral(_config(model), positions),
        [_neutral(_config(layer), positions) for layer in layers],
        [_source(type(layer)) for layer in layers],
        [_attributes(layer) for layer in layers],
        weights.fingerprint(weights.read_state(model)),  # drawn from a seed, or loaded by the caller's function
    ]
    if is_compiled(model):
        optimizer = {key: value for key, value in _config(model.optimizer).items() if key != "name"}  # numbered too
        compiled = _config(model, "get_compile_config") or {}
        compiled = {key: value for key, value in compiled.items() if key != "optimizer"}
        parts += [type(model.optimizer).__name__, optimizer, _loss(model.loss), compiled]
    return _digest(parts, sort_keys=True, default=_plain)


def of_function(function: Any) -> str:
    """Compute a digest of a function's source and of the plain values in its closure: sixteen hexadecimal digits."""
    return _digest([_plain(function), _source(function)])


def _digest(parts: Any, **settings: Any) -> str:
    return hashlib.sha256(json.dumps(parts, **settings).encode()).hexdigest()[:16]


def _config(thing: Any, method: str = "get_config") -> Any:
    """Return the configuration of a layer, model, optimizer or loss; empty if it has none."""
    try:
        with warnings.catch_warnings(action="ignore"):  # that a lambda cannot be loaded again does not matter here
            return getattr(thing, method)()
    except Exception:  # a class of the user's may raise anything
        return {}


def _attributes(layer: Any) -> list[Any]:
    """Return the source of functions that a layer holds, and plain attributes of a layer that is not Keras' own."""
    held = vars(layer).items()
    own = held if _source(type(layer)) else ()
    plain = {key: value for key, value in own if not key.startswith("_") and key != "name" and _is_plain(value)}
    return [plain, [_source(value) for _, value in held if inspect.isroutine(value)]]


def _loss(loss: Any) -> Any:
    if isinstance(loss, dict):
        return {name: _loss(one) for name, one in loss.items()}
    if isinstance(loss, (list, tuple)):
        return [_loss(one) for one in loss]
    return loss if loss is None or isinstance(loss, str) else [_plain(loss), _config(loss), _source(loss)]


def _neutral(value: Any, positions: dict[str, str]) -> Any:
    """Return a configuration with every layer's name replaced by its position."""
    if isinstance(value, dict):
        # The build configuration repeats the shapes of the weights, and holds names of tensors.
        return {key: _neutral(one, positions) for key, one in value.items() if key != "build_config"}
    if isinstance(value, (list, tuple)):
        return [_neutral(one, positions) for one in value]
    return positions.get(value, value) if isinstance(value, str) else value


def _source(thing: Any) -> str:
    """Return the source of a function or class, with the plain values that it closes over; empty for Keras' own."""
    if is_keras(thing):
        return ""
    closed_over = [cell.cell_contents for cell in getattr(thing, "__closure__", None) or ()]
    values = str([value for value in (*closed_over, *(getattr(thing, "__defaults__", None) or ())) if _is_plain(value)])
    try:
        return inspect.getsource(thing if inspect.isroutine(thing) or inspect.isclass(thing) else type(thing)) + values
    except (OSError, TypeError):  # defined at a prompt, or without source
        return values


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))


def _plain(value: Any) -> str:
    """Return the qualified name of an object: its address in memory differs between processes."""
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
