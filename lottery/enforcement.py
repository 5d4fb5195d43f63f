"""Hold masked entries while training: each mode is a context manager over a model and masks."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from lottery import masks as masks_module
from lottery import weights

Enforcement = Callable[..., AbstractContextManager[list[Any]]]


@contextlib.contextmanager
def constraint(
    model: Any, masks: Mapping[str, Any], held_at: Mapping[str, np.ndarray] | None = None
) -> Iterator[list[Any]]:
    """Hold masked entries through the constraints of their variables.

    The optimiser applies a variable's constraint after each update, inside the compiled step, so a masked entry is
    exactly its held value after every single step, under any ``steps_per_execution``. A constraint that the
    variable has already is applied first.

    What the optimiser computes from whole gradients still sees those of masked entries: with ``global_clipnorm`` they
    count in the norm, so survivors are clipped a little more than if only they had gradients.

    Args:
        model: A built Keras 3 or tf_keras model.
        masks: By weight, boolean arrays, True where the entry is kept; or boolean ``tf.Variable``, which may be
            assigned other masks while they are held without anything being traced again (`mask_variables`).
        held_at: By weight, the values that masked entries are held at; zero where it says nothing.

    Yields:
        The callbacks that ``fit`` needs: none.

    Raises:
        LotteryError: A mask does not fit the model. Nothing has been changed then.
    """
    import tensorflow as tf

    targets = weights.variables(model)
    arrays = {name: mask.numpy() if hasattr(mask, "numpy") else mask for name, mask in masks.items()}
    masks_module.check(arrays, targets)
    current = {name: np.asarray(targets[name].numpy()) for name in arrays}
    projected = masks_module.apply(current, arrays, held_at)
    held = {name: tf.constant((held_at or {}).get(name, 0.0), targets[name].dtype) for name in masks}
    before = {name: targets[name].constraint for name in masks}

    weights.assign(model, projected)
    for name, mask in masks.items():
        _set_constraint(targets[name], _hold(mask, held[name], before[name]))
    _retrace(model)
    try:
        yield []
    finally:
        for name, previous in before.items():
            _set_constraint(targets[name], previous)
        _retrace(model)


ENFORCEMENTS: dict[str, Enforcement] = {"constraint": constraint}


def mask_variables(masks: Mapping[str, Any]) -> dict[str, Any]:
    """Masks as boolean ``tf.Variable``, so that one trace serves every mask that is assigned to them."""
    import tensorflow as tf

    return {name: tf.Variable(mask, trainable=False, dtype=tf.bool) for name, mask in masks.items()}


def _hold(mask: Any, held: Any, before: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    import tensorflow as tf

    def hold(variable: Any) -> Any:
        value = tf.convert_to_tensor(variable if before is None else before(variable))
        # A choice and not a product: the held value is exact, and zero is never negative zero or NaN.
        return tf.where(mask, value, held)

    return hold


def _set_constraint(variable: Any, value: Callable[[Any], Any] | None) -> None:
    import keras

    if not isinstance(variable, keras.Variable):
        # A tf.Variable, as in tf_keras: it is meant to be given a constraint only when it is made.
        variable._constraint = value
    elif value is None or isinstance(value, keras.constraints.Constraint):
        variable.constraint = value
    else:
        variable.constraint = _as_constraint(value)


def _as_constraint(function: Callable[[Any], Any]) -> Any:
    import keras

    class Constraint(keras.constraints.Constraint):
        """Keras asked for an instance of this class up to version 3.14; a function alone would do since."""

        def __call__(self, weight: Any) -> Any:
            return function(weight)

    return Constraint()


def _retrace(model: Any) -> None:
    """Let `fit` make its train function again: one that was traced earlier does not know of the constraints."""
    if getattr(model, "train_function", None) is not None:
        model.train_function = None
