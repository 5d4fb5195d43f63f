"""What is held, and at which values: the plain functions that every enforcement is made of."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery import masks as masks_module
from lottery import weights
from lottery.errors import LotteryError, unknown
from lottery.models.library import keras_of

# By weight, or the word for the values that the weights have when they begin to be held.
HeldAt = Mapping[str, Any] | str | None


PRESENT = "present"


@dataclass(frozen=True)
class Held:
    """A weight of which entries are held.

    Attributes:
        name: Its stable name.
        variable: The model's variable.
        mask: Which entries are kept: a boolean array, or a boolean ``tf.Variable`` that can be assigned.
        value: What the others are held at: an array of the weight's shape, or a number.
    """

    name: str
    variable: Any
    mask: Any
    value: Any

    @property
    def frozen(self) -> bool:
        """Whether no entry is kept, and that for good."""
        return not hasattr(self.mask, "assign") and not np.any(self.mask)

    def projected(self, value: Any) -> Any:
        """A tensor of the weight's shape with every masked entry at its held value."""
        import tensorflow as tf

        value = tf.convert_to_tensor(value)
        # A choice and not a product: the held value is exact, and zero is never negative zero or NaN.
        return tf.where(self.mask, value, tf.cast(self.value, value.dtype))

    def masked_gradient(self, gradient: Any) -> Any:
        """A gradient of the weight, dense or of single rows, with zero for every masked entry."""
        import tensorflow as tf

        if gradient is None:
            return None
        if isinstance(gradient, tf.IndexedSlices):
            kept = tf.gather(self.mask, gradient.indices)
            values = tf.where(kept, gradient.values, tf.zeros((), gradient.values.dtype))
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return tf.where(self.mask, gradient, tf.zeros((), gradient.dtype))


def held(model: Any, masks: Mapping[str, Any], held_at: HeldAt = None) -> list[Held]:
    """What masks and held values mean for a model, checked.

    Args:
        model: A built Keras 3 or tf_keras model.
        masks: By weight, boolean arrays or boolean ``tf.Variable``, True where the entry is kept.
        held_at: By weight, an array of its shape or a number that masked entries are held at, or ``"present"`` for
            the values that it has now; zero where it says nothing. ``"present"`` alone is for all of them.

    Returns:
        A record for each mask.

    Raises:
        LotteryError: A mask or a held value does not fit the model, or is not finite.
    """
    if not isinstance(masks, Mapping):
        raise LotteryError(f"masks: received {type(masks).__name__}, allowed is a dict from weights' names to masks.")
    keras_of(model)
    targets = weights.variables(model)
    # A variable may come to mask any entry, and in a graph nobody knows what it holds.
    arrays = {
        name: np.zeros(mask.shape, bool) if hasattr(mask, "assign") and mask.dtype == "bool" else mask
        for name, mask in masks.items()
    }
    masks_module.check(arrays, targets)
    for name in masks:
        if not weights.is_trained(model, targets[name]):
            raise LotteryError(f"A mask names {name!r}, which is a state and no weight: no optimiser trains it.")
    values = _values(targets, arrays, held_at)
    return [Held(name, targets[name], mask, values.get(name, 0.0)) for name, mask in masks.items()]


def project(model: Any, masks: Mapping[str, Any], held_at: HeldAt = None) -> None:
    """Set every masked entry of a model to its held value, now; for loops written by hand, after each update.

    Works in a ``tf.function`` too. Under ``held_at="present"`` nothing would change, so it is refused.

    Args:
        model: A built Keras 3 or tf_keras model.
        masks: By weight, boolean arrays or boolean ``tf.Variable``, True where the entry is kept.
        held_at: By weight, the values that masked entries get; zero where it says nothing.

    Raises:
        LotteryError: A mask or a held value does not fit. Nothing has been changed then.
    """
    if PRESENT in words(held_at):
        raise LotteryError('project: received held_at="present", which changes nothing; pass the values by weight.')
    put(held(model, masks, held_at))


def mask_gradients(
    model: Any, masks: Mapping[str, Any], gradients: Sequence[Any], variables: Sequence[Any] | None = None
) -> list[Any]:
    """Gradients with zero for every masked entry; for loops written by hand, before the optimiser sees them.

    An optimiser with decoupled weight decay, or with momentum from before, moves entries whose gradient is zero; so
    `project` afterwards.

    Args:
        model: A built Keras 3 or tf_keras model.
        masks: By weight, boolean arrays or boolean ``tf.Variable``, True where the entry is kept.
        gradients: One for each of `variables`: tensors, ``tf.IndexedSlices`` or None.
        variables: What they are gradients of; the model's ``trainable_variables`` unless given.

    Returns:
        As many gradients, in the same order.

    Raises:
        LotteryError: A mask does not fit, or there are not as many gradients as variables.
    """
    variables = list(model.trainable_variables if variables is None else variables)
    if len(gradients) != len(variables):
        raise LotteryError(
            f"mask_gradients: received {len(gradients)} gradients for {len(variables)} variables; pass `variables` if "
            "they are not the model's trainable_variables."
        )
    return masked(held(model, masks), gradients, variables)


def masked(entries: Sequence[Held], gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Gradients of variables, with zero for every masked entry."""
    of = {id(one.variable): one for one in entries}
    return [
        of[id(variable)].masked_gradient(gradient) if id(variable) in of else gradient
        for gradient, variable in zip(gradients, variables, strict=True)
    ]


def put(entries: Sequence[Held]) -> None:
    """Set every masked entry to its held value."""
    for one in entries:
        one.variable.assign(one.projected(one.variable))


def clear_slots(optimizer: Any, entries: Sequence[Held]) -> None:
    """Let an optimiser forget masked entries: slots become zero there, moving averages of weights the held value."""
    import tensorflow as tf

    averages = {id(one) for one in getattr(optimizer, "_model_variables_moving_average", None) or []}
    for one in entries:
        for slot in slots(optimizer, one.variable):
            value = tf.convert_to_tensor(slot)
            slot.assign(one.projected(value) if id(slot) in averages else one.masked_gradient(value))


def slots(optimizer: Any, variable: Any) -> Iterator[Any]:
    """What an optimiser remembers of each single entry of a variable: its slots of the variable's shape.

    Statistics of rows and columns, as Adafactor's, are of another shape and not among them.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:  # of a LossScaleOptimizer
        yield from slots(inner, variable)
        return
    for name in getattr(optimizer, "get_slot_names", list)():  # a legacy optimiser of tf_keras
        with contextlib.suppress(KeyError):  # not made yet
            yield optimizer.get_slot(variable, name)
    index = _index(optimizer, variable)
    if index is None:
        return
    known = getattr(optimizer, "_trainable_variables", None) or []
    for value in list(vars(optimizer).values()):
        # Keras keeps slots in lists by position, one for each variable that it was built with.
        if isinstance(value, list) and value is not known and index < len(value):
            slot = value[index]
            if hasattr(slot, "assign") and slot is not variable and tuple(slot.shape) == tuple(variable.shape):
                yield slot


def _index(optimizer: Any, variable: Any) -> int | None:
    """The position of a variable among those that an optimiser was built with; None where it does not know it."""
    positions = getattr(optimizer, "_trainable_variables_indices", None)  # Keras 3
    if positions is None:
        positions = getattr(optimizer, "_index_dict", None)  # tf_keras
    key = getattr(optimizer, "_var_key", None)
    return None if not positions or key is None else positions.get(key(variable))


def _values(targets: Mapping[str, Any], masks: Mapping[str, np.ndarray], held_at: HeldAt) -> dict[str, Any]:
    if held_at is None:
        return {}
    if isinstance(held_at, str):
        held_at = dict.fromkeys(masks, held_at)
    if not isinstance(held_at, Mapping):
        raise LotteryError(
            f'held_at: received {type(held_at).__name__}, allowed is a dict of values by weight, or "present".'
        )
    values = {}
    for name, value in held_at.items():
        if name not in targets:
            raise unknown("held_at names a weight that does not exist", name, targets)
        if name not in masks:  # a whole state may be passed
            continue
        if isinstance(value, str):
            if value != PRESENT:
                raise unknown("held_at", value, [PRESENT])
            value = np.array(targets[name].numpy())
        shape, value = tuple(targets[name].shape), np.asarray(value)
        if value.shape not in ((), shape):
            raise LotteryError(f"held_at for {name!r} has shape {value.shape}, the weight has {shape}.")
        if not _are_finite(np.broadcast_to(value, shape)[~masks[name]], targets[name]):
            raise LotteryError(f"held_at for {name!r} must be finite numbers of its type wherever the mask is False.")
        values[name] = value
    return values


def _are_finite(values: np.ndarray, variable: Any) -> bool:
    import tensorflow as tf

    dtype = variable.dtype if isinstance(variable.dtype, str) else variable.dtype.name
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(values.astype(tf.as_dtype(dtype).as_numpy_dtype).astype(np.float64)).all())
    except (TypeError, ValueError):
        return False


def words(held_at: HeldAt) -> list[str]:
    """The words among held values."""
    given = held_at.values() if isinstance(held_at, Mapping) else [held_at]
    return [one for one in given if isinstance(one, str)]
