"""The bridge to Keras: stable names for variables, which of them are prunable, reading and assigning them."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from lottery import masks as masks_module
from lottery.errors import LotteryError, unknown


def variables(model: Any) -> dict[str, Any]:
    """Every variable of a model by its stable name: weights, statistics, and the states of its random layers.

    A name is the path of layers below the model and the variable's own name, such as ``dense_1/kernel``. Layers
    that Keras named are numbered by their position among their siblings, so that a name does not depend on how
    many models the process has built; layers that were given a name keep it.

    Args:
        model: A built Keras 3 or tf_keras model.

    Returns:
        Variables by name, in the order of the layers.

    Raises:
        LotteryError: The model is not built, so it has no variables yet.
    """
    if not getattr(model, "built", True) or not model.variables:
        raise LotteryError(
            f"The model {model.name!r} is not built, so it has no weights yet; give it an Input layer, or call it once."
        )
    named: dict[str, Any] = {}
    _collect(model, "", named, set())
    return named


def prunable(model: Any) -> dict[str, Any]:
    """The variables that pruning applies to, by name: trainable, floating, of two or more dimensions, not a bias."""
    return {name: value for name, value in variables(model).items() if _reason(name, value) is None}


def unprunable(model: Any) -> dict[str, str]:
    """The variables that are never pruned, by name, each with the reason."""
    reasons = {name: _reason(name, value) for name, value in variables(model).items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def read(model: Any) -> dict[str, np.ndarray]:
    """The prunable weights, by name, as arrays of their own."""
    return {name: _array(value) for name, value in prunable(model).items()}


def read_state(model: Any) -> dict[str, np.ndarray]:
    """Every variable of the model, by name, as arrays of their own: what `assign` needs to bring it back."""
    return {name: _array(value) for name, value in variables(model).items()}


def assign(model: Any, values: Mapping[str, np.ndarray], only: Mapping[str, np.ndarray] | None = None) -> None:
    """Set variables of a model.

    Args:
        model: A built Keras 3 or tf_keras model.
        values: Arrays by stable name; variables that are not named keep their values.
        only: Boolean arrays by name: where a weight has one, only the entries that are True are set.

    Raises:
        LotteryError: A name does not exist or a shape differs. Nothing has been assigned then.
    """
    targets = variables(model)
    for name, value in values.items():
        if name not in targets:
            raise unknown("The model has no weight of this name", name, targets)
        if tuple(np.shape(value)) != tuple(targets[name].shape):
            raise LotteryError(
                f"The value for {name!r} has shape {tuple(np.shape(value))}, "
                f"the model's has {tuple(targets[name].shape)}."
            )
    masks_module.check(dict(only or {}), values)
    for name, value in values.items():
        if only and name in only:
            value = np.where(only[name], value, _array(targets[name]))
        targets[name].assign(value)


def _collect(layer: Any, prefix: str, named: dict[str, Any], seen: set[int]) -> None:
    children = list(layer._flatten_layers(include_self=False, recursive=False))
    below = {id(value) for child in children for value in child.variables}
    for value in layer.variables:
        if id(value) not in below and id(value) not in seen:
            seen.add(id(value))
            own = value.name.split(":")[0].rsplit("/", 1)[-1]
            named[_unique(prefix + own, named)] = value
    taken: Counter[str] = Counter()
    for child in children:
        stem = _stem(child)
        name = f"{stem}_{taken[stem]}" if taken[stem] else stem
        taken[stem] += 1
        if id(child) not in seen:  # a shared layer is named where it comes first
            seen.add(id(child))
            _collect(child, f"{prefix}{name}/", named, seen)


def _stem(layer: Any) -> str:
    """The layer's name without the number that Keras gave it."""
    snake = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", type(layer).__name__))
    snake = re.sub(r"([a-z])([A-Z])", r"\1_\2", snake).lower()
    # tf_keras calls functional models "model"; Bidirectional prefixes the names of its two layers.
    automatic = "functional|model" if snake == "functional" else re.escape(snake)
    match = re.fullmatch(rf"(forward_|backward_)?({automatic})(_\d+)?", layer.name)
    return (match[1] or "") + snake if match else layer.name


def _unique(name: str, taken: Mapping[str, Any]) -> str:
    count, unique = 0, name
    while unique in taken:
        count += 1
        unique = f"{name}_{count}"
    return unique


def _reason(name: str, variable: Any) -> str | None:
    if not variable.trainable:
        return "not trainable"
    if "float" not in str(variable.dtype):
        return "not floating point"
    if len(variable.shape) < 2:
        return "fewer than two dimensions (a bias, a scale or a state)"
    if re.fullmatch(r"bias(_\d+)?", name.rsplit("/", 1)[-1]):
        return "a bias"
    return None


def _array(variable: Any) -> np.ndarray:
    # A copy: what a variable's numpy() returns may be the memory that the next step writes to.
    return np.array(variable.numpy())
