"""Weights with held entries, and the plain functions that every mode of enforcement is made of."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery import masks as masks_module
from lottery import weights
from lottery.errors import LotteryError, missing, unknown
from lottery.models.kerases import keras_of, tf

# Values by weight, or the word for the values that the weights have when holding begins.
HeldAt = Mapping[str, Any] | str | None
PRESENT = "present"


@dataclass(frozen=True)
class Held:
    """A weight of which entries are held."""

    name: str
    variable: Any
    mask: Any  # True for kept entries: a boolean array, or a boolean tf.Variable that can be assigned
    value: Any  # the held values of the others: an array or a tf.Variable of the weight's shape, or a number

    @property
    def frozen(self) -> bool:
        """True if no entry is kept, and none can be later."""
        return not hasattr(self.mask, "assign") and not np.any(self.mask)

    def projected(self, value: Any) -> Any:
        """Return a tensor of the weight's shape with every masked entry at its held value."""
        value = tf.convert_to_tensor(value)
        # A choice, not a product: held values are exact, and zero is never negative zero or NaN.
        return tf.where(self.mask, value, tf.cast(self.value, value.dtype))

    def hold(self) -> None:
        """Set every masked entry of the weight to its held value."""
        self.variable.assign(self.projected(self.variable))

    def masked_gradient(self, gradient: Any) -> Any:
        """Return a gradient of the weight, dense or of single rows, with zero for every masked entry."""
        if gradient is None:
            return None
        # Of an Embedding: the rows that were looked up. Optimizers leave the others alone, so they stay missing.
        if isinstance(gradient, tf.IndexedSlices):
            kept = tf.gather(self.mask, gradient.indices)
            values = tf.where(kept, gradient.values, tf.zeros((), gradient.values.dtype))
            return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
        return tf.where(self.mask, gradient, tf.zeros((), gradient.dtype))


def held(model: Any, masks: Mapping[str, Any], held_at: HeldAt = None) -> list[Held]:
    """Check masks and held values, as `constraint` takes them, against a model; return a record for each mask."""
    check_kind(masks)
    # Refuses what is no Keras model.
    keras_of(model)
    targets = weights.variables(model)
    # A variable can be assigned any mask, so all of its entries count as masked.
    arrays = {
        name: np.zeros(mask.shape, bool) if hasattr(mask, "assign") and mask.dtype == "bool" else mask
        for name, mask in masks.items()
    }
    masks_module.check(arrays, targets)
    for name in masks:
        if not weights.is_trained(model, targets[name]):
            raise LotteryError(f"A mask names {name!r}, which is a state, not a weight: no optimizer trains it.")
    values = _values(targets, arrays, held_at)
    return [Held(name, targets[name], mask, values.get(name, 0.0)) for name, mask in masks.items()]


def check_kind(masks: Any, what: str = "masks") -> None:
    """Raise `LotteryError` unless masks come as a dict."""
    if isinstance(masks, Mapping):
        return
    hint = ""
    if hasattr(masks, "trainable_variables"):
        hint = "; the model is the first argument" if what == "masks" else f"; fit passes its model: {what}(masks)"
    elif isinstance(getattr(masks, "masks", None), Mapping):
        hint = "; pass its attribute masks"
    raise LotteryError(f"{what} must be a dict from weights' names to masks, not {type(masks).__name__}{hint}.")


def adapted(model: Any, entries: Sequence[Held]) -> dict[str, Any]:
    """Return by weight what layers of Keras 3 with LoRA compute with in its place: the weight plus a product."""
    layers = [layer for layer in weights.all_layers(model) if getattr(layer, "lora_enabled", False)]
    found = {}
    for layer, attribute in itertools.product(layers, ("kernel", "embeddings")):
        # The public attributes have the product; the weight itself is private (Keras 3.15).
        own = getattr(layer, f"_{attribute}", None)
        found |= {entry.name: getattr(layer, attribute) for entry in entries if entry.variable is own}
    return found


def refuse_adapted(model: Any, entries: Sequence[Held]) -> None:
    """Raise `LotteryError` if LoRA makes a layer compute with other values than those of its masked weight."""
    masked = [entry for entry in entries if hasattr(entry.mask, "assign") or not np.all(entry.mask)]
    for name in adapted(model, masked):
        raise LotteryError(
            f"{name!r} is adapted by LoRA: its layer computes with the weight plus a product of two others, which "
            "has no mask; leave the weight out, or train it without enable_lora."
        )


def project(model: Any, masks: Mapping[str, Any], held_at: HeldAt = None) -> None:
    """Set every masked entry of a model to its held value, once. In your own loop, call it after each update.

    Works in a ``tf.function`` too. Arguments are those of `constraint`, except ``held_at="present"``, which would
    change nothing.

    Raises:
        LotteryError: A mask or a held value does not fit. Nothing has been changed then.
    """
    if PRESENT in words(held_at):
        raise LotteryError('project does nothing with held_at="present". Pass the values by weight.')
    entries = held(model, masks, held_at)
    refuse_adapted(model, entries)
    for entry in entries:
        entry.hold()


def mask_gradients(
    model: Any, masks: Mapping[str, Any], gradients: Sequence[Any], variables: Sequence[Any] | None = None
) -> list[Any]:
    """Set the gradients of masked entries to zero. In your own loop, call it before the optimizer sees the gradients.

    Also call `project` after the update: decoupled weight decay and old momentum move entries without a gradient.

    Args:
        model, masks: As for `constraint`.
        gradients: A gradient for each of `variables`: a tensor, ``tf.IndexedSlices`` or None. The result is a list of
            the same length.
        variables: The variables that were differentiated; the model's ``trainable_variables`` by default.
    """
    variables = list(model.trainable_variables if variables is None else variables)
    if len(gradients) != len(variables):
        raise LotteryError(
            f"mask_gradients got {len(gradients)} gradients for {len(variables)} variables. Pass `variables` if they "
            "are not the model's trainable_variables."
        )
    return masked(held(model, masks), gradients, variables)


def masked(entries: Sequence[Held], gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Set the gradients of masked entries to zero; variables may be Keras' own, or what a gradient tape has watched."""
    by_variable = {id(weights.unwrapped(entry.variable)): entry for entry in entries}
    changed = list(gradients)
    for place, variable in enumerate(variables):
        if entry := by_variable.get(id(weights.unwrapped(variable))):
            changed[place] = entry.masked_gradient(gradients[place])
    return changed


def _values(targets: Mapping[str, Any], masks: Mapping[str, np.ndarray], held_at: HeldAt) -> dict[str, Any]:
    """Return the held values by weight, checked: each is a number, an array, or a variable that can be assigned."""
    if held_at is None:
        return {}
    if isinstance(held_at, str):
        held_at = dict.fromkeys(masks, held_at)
    if not isinstance(held_at, Mapping):
        raise LotteryError(f'held_at must be a dict of values by weight, or "present", not {type(held_at).__name__}.')
    values = {}
    for name, value in held_at.items():
        if name not in targets:
            raise missing("held_at names a weight that does not exist:", name, targets)
        if name not in masks:  # a whole state is allowed
            continue
        if isinstance(value, str):
            if value != PRESENT:
                raise unknown("held_at", value, [PRESENT])
            # A copy, since numpy() may return the memory that training writes to.
            value = np.array(targets[name].numpy())
        shape = tuple(targets[name].shape)
        # A variable of its own can be assigned other values later; of a weight, its present value counts.
        is_assignable = isinstance(value, tf.Variable) and not value.trainable
        if not is_assignable:
            value = np.asarray(value)
        if tuple(value.shape) not in ((), shape):
            raise LotteryError(f"held_at for {name!r} has shape {tuple(value.shape)}, the weight has {shape}.")
        if not is_assignable and not _are_finite(np.broadcast_to(value, shape)[~masks[name]], targets[name]):
            raise LotteryError(f"held_at for {name!r} must be finite numbers of its type wherever the mask is False.")
        values[name] = value
    return values


def _are_finite(values: np.ndarray, variable: Any) -> bool:
    dtype = tf.as_dtype(variable.dtype).as_numpy_dtype
    try:
        with np.errstate(over="ignore"):
            # In the type of the weight, where a large number may become infinite.
            return bool(np.isfinite(values.astype(dtype).astype(np.float64)).all())
    except (TypeError, ValueError):
        return False


def words(held_at: HeldAt) -> list[str]:
    """Return the words among held values."""
    values = held_at.values() if isinstance(held_at, Mapping) else [held_at]
    return [value for value in values if isinstance(value, str)]
