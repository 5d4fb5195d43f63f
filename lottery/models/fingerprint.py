"""Digests of what a caller passes: two models with the same digest are the same network, trained the same way."""

import hashlib
import inspect
import json
import warnings
from typing import Any

from lottery import weights
from lottery.models.library import is_compiled, is_keras


def of_model(model: Any) -> str:
    """Digest of a model: layers and their arguments, how they are wired, and what it was compiled with.

    The names that Keras counts up are replaced by positions, so that building a model twice gives the same digest. For
    classes that are not Keras' own, the source of the class counts.

    Args:
        model: A built Keras 3 or tf_keras model.

    Returns:
        Sixteen hexadecimal digits.
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
        optimizer = {key: value for key, value in _config(model.optimizer).items() if key != "name"}  # counted up too
        parts += [type(model.optimizer).__name__, optimizer, _loss(model.loss), _compiled(model)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=_plain).encode()).hexdigest()[:16]


def of_function(function: Any) -> str:
    """Digest of a function's source and of the plain values that it closes over; sixteen hexadecimal digits."""
    source = [_plain(function), _source(function)]
    return hashlib.sha256(json.dumps(source).encode()).hexdigest()[:16]


def _config(thing: Any) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):
            return thing.get_config()
    except (NotImplementedError, TypeError, ValueError, AttributeError):
        return {}


def _compiled(model: Any) -> Any:
    """Loss weights and metrics, as Keras would save them."""
    try:
        with warnings.catch_warnings(action="ignore"):  # that a lambda cannot be loaded again is no matter here
            return {key: value for key, value in model.get_compile_config().items() if key != "optimizer"}
    except Exception:  # what cannot be saved has no configuration
        return {}


def _attributes(layer: Any) -> list[Any]:
    """Functions that a layer holds, and plain values of a layer that is not Keras' own."""
    held = vars(layer).items()
    own = bool(_source(type(layer)))
    plain = {
        key: value for key, value in held if own and not key.startswith("_") and key != "name" and _is_plain(value)
    }
    return [plain, [_source(value) for _, value in held if inspect.isroutine(value)]]


def _loss(loss: Any) -> Any:
    if isinstance(loss, dict):
        return {name: _loss(one) for name, one in loss.items()}
    if isinstance(loss, (list, tuple)):
        return [_loss(one) for one in loss]
    return loss if loss is None or isinstance(loss, str) else [_plain(loss), _config(loss), _source(loss)]


def _neutral(value: Any, positions: dict[str, str]) -> Any:
    """A configuration in which every layer's name is its position."""
    if isinstance(value, dict):
        # What a layer was built for says in other words what its weights' shapes say, and holds names of tensors.
        return {key: _neutral(one, positions) for key, one in value.items() if key != "build_config"}
    if isinstance(value, (list, tuple)):
        return [_neutral(one, positions) for one in value]
    return positions.get(value, value) if isinstance(value, str) else value


def _source(thing: Any) -> str:
    if is_keras(thing):
        return ""
    closed_over = [cell.cell_contents for cell in getattr(thing, "__closure__", None) or ()]
    values = [value for value in (*closed_over, *(getattr(thing, "__defaults__", None) or ())) if _is_plain(value)]
    try:
        return inspect.getsource(thing if inspect.isroutine(thing) or inspect.isclass(thing) else type(thing)) + str(
            values
        )
    except (OSError, TypeError):  # made in a prompt, or of something that has no source
        return str(values)


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))


def _plain(value: Any) -> str:
    """A name instead of an address in memory, which is another one in each process."""
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
