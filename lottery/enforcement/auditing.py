"""Check if masked entries are held, by our enforcement or in any other loop."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from lottery.enforcement.callbacks import FitCallback
from lottery.enforcement.entries import PRESENT, Held, HeldAt, adapted, held, refuse_adapted, words
from lottery.enforcement.patching import Method, replaced
from lottery.errors import LotteryError
from lottery.models import optimizers
from lottery.models.kerases import evaluating, undisturbed


@dataclass(frozen=True)
class Audit:
    """The state of the masked entries of one weight."""

    num_masked: int
    deviation: float  # largest distance of a masked entry from its held value; infinite if it is not a finite number
    index: tuple[int, ...] | None  # the place of that entry; this and the next two are None if nothing deviates
    held_at: float | None
    found: float | None
    num_nonzero_slots: int  # numbers in the optimizer's slots that belong to a masked entry and are not zero
    gradient: float | None  # largest absolute gradient of the loss for a masked entry; None without a batch


def audit(model: Any, masks: Mapping[str, Any], held_at: HeldAt = None, batch: Any = None) -> dict[str, Audit]:
    """Examine every masked entry of a model, its optimizer's slots and its gradients; return a record by weight.

    A deviation means that the masks are not held. Nonzero slots and gradients only show how an entry would move if
    nothing reset it after each update. Of a weight that LoRA adapts, the values are those that its layer computes with.

    Args:
        model: A built Keras 3 or tf_keras model.
        masks: Boolean arrays by weight, True where the entry is kept.
        held_at: The values that masked entries should have, by weight; zero if missing.
        batch: Inputs and labels, and the weights of the examples or None, each an array or a structure of arrays as
            ``fit`` takes them; for the gradients of the compiled model's loss.

    Raises:
        LotteryError: A mask or value does not fit, or `batch` is passed for a model that is not compiled.
    """
    if PRESENT in words(held_at):
        raise LotteryError('audit cannot check held_at="present", which always agrees. Pass the values by weight.')
    entries = held(model, masks, held_at)
    gradients = {} if batch is None else _gradients(model, batch)
    with_lora, optimizer = adapted(model, entries), getattr(model, "optimizer", None)
    found = {}
    for entry in entries:
        value = np.asarray(with_lora.get(entry.name, entry.variable).numpy())
        found[entry.name] = _audited(entry, value, optimizer, gradients)
    return found


class AuditMasks(FitCallback):
    """Raise a `LotteryError` at the step at which a masked entry moves, with any method of holding it.

    Checks at the start of each training step, also between the steps of ``steps_per_execution``, and at the end of
    each batch. Put it after the callback that enforces the masks.

    Args:
        masks, held_at: As for `audit`; or ``held_at="present"`` for the values at the beginning of training.
    """

    def install(self, stack: contextlib.ExitStack, logs: Any) -> None:
        """Watch from the first step on."""
        self._entries = held(self.model, self._masks, self._held_at)
        refuse_adapted(self.model, self._entries)
        # In variables, because the training step is traced once, and runs in the graph.
        self._step = tf.Variable(tf.zeros((), tf.int64), trainable=False)
        # By weight: the first step after which an entry had moved, -1 for none; its place, and its value. All three in
        # double precision, which holds them exactly.
        self._moved = tf.Variable(tf.fill([len(self._entries), 3], np.float64(-1)), trainable=False)
        # Op by op it would take longer than a step.
        self._looking = tf.function(self._look, autograph=False)
        stack.enter_context(replaced(self.model, "train_step", self._watching))

    def on_train_batch_end(self, batch: Any, logs: Any = None) -> None:
        """Raise if anything has moved."""
        # After the last step of a batch no other step begins, which would look.
        self._looking()
        rows = self._moved.numpy()
        moved = [index for index, (step, _, _) in enumerate(rows) if step >= 0]
        if not moved:
            return
        # Keras tells callbacks nothing of an error, so nothing else would remove this.
        self.close()
        first = min(moved, key=lambda index: rows[index, 0])
        entry, (step, flat, found) = self._entries[first], rows[first]
        place = _place(flat, entry)
        value = np.broadcast_to(np.asarray(entry.value), tuple(entry.variable.shape))[place]
        when = f"after step {step:.0f}" if step else "before the first step"
        raise LotteryError(
            f"{entry.name}{list(place)} is masked and must be {value:.9g}, but is {found:.9g} {when}: this training "
            "does not hold the masks."
        )

    def _watching(self, train_step: Method) -> Method:
        def watched(*arguments: Any, **named: Any) -> Any:
            self._look()
            logs = train_step(*arguments, **named)
            self._step.assign_add(1)
            return logs

        return watched

    def _look(self) -> None:
        for index, entry in enumerate(self._entries):
            value = tf.convert_to_tensor(entry.variable)
            # NaN is unequal to itself, so it counts as moved.
            off = tf.reshape(tf.logical_not(tf.equal(value, entry.projected(value))), [-1])
            is_first = tf.reduce_any(off) & (self._moved[index, 0] < 0)
            at = tf.argmax(tf.cast(off, tf.int32))
            row = [tf.cast(part, tf.float64) for part in (self._step, at, tf.reshape(value, [-1])[at])]
            is_chosen = is_first & (tf.range(len(self._entries)) == index)
            self._moved.assign(tf.where(is_chosen[:, None], tf.stack(row), self._moved))


def _place(flat: Any, entry: Held) -> tuple[int, ...]:
    return tuple(int(axis) for axis in np.unravel_index(int(flat), tuple(entry.variable.shape)))


def _audited(entry: Held, value: np.ndarray, optimizer: Any, gradients: Mapping[int, np.ndarray]) -> Audit:
    mask = entry.mask.numpy() if hasattr(entry.mask, "numpy") else entry.mask
    masked = ~np.asarray(mask)
    # A held value is rounded to the type of the weight: that is what the weight can be.
    should = np.broadcast_to(np.asarray(entry.value), masked.shape)
    off = np.where(masked, np.abs(value.astype(np.float64) - should.astype(value.dtype)), 0.0)
    off = np.where(np.isfinite(off), off, np.inf)
    place = held_at = found = gradient = None
    if off.any():
        place = _place(np.argmax(off), entry)
        held_at, found = float(should[place]), float(value[place])
    if id(entry.variable) in gradients:
        gradient = float(np.abs(gradients[id(entry.variable)][masked]).max(initial=0.0))
    slots = [np.asarray(slot)[masked] for slot in optimizers.slots(optimizer, entry.variable)]
    num_nonzero_slots = sum(map(np.count_nonzero, slots))
    return Audit(int(masked.sum()), float(off.max(initial=0.0)), place, held_at, found, num_nonzero_slots, gradient)


def _gradients(model: Any, batch: Any) -> dict[int, np.ndarray]:
    """Compute the loss's gradients by variable as a training step of the model would, dropout included."""
    if getattr(model, "optimizer", None) is None:
        raise LotteryError("audit: gradients of a batch need the model's loss; compile it, or leave out `batch`.")
    if not isinstance(batch, (tuple, list)) or len(batch) not in (2, 3):
        raise LotteryError("audit: `batch` must be (inputs, labels) or (inputs, labels, weights of examples).")
    refused = f"audit: the loss of the model {model.name!r} cannot be computed on the batch"
    # Normalisation, dropout and metrics change their variables in training.
    with undisturbed(model), evaluating(refused), tf.GradientTape() as tape:
        # Labels may be None too, of a loss that takes none; they must not be left out before the weights of examples.
        x, y, *rest = (None if part is None else _tensors(part) for part in batch)
        loss = model.compute_loss(x, y, model(x, training=True), *rest)
    variables = model.trainable_variables
    return {
        # A weight that the loss does not depend on has the gradient None.
        id(variable): np.zeros(variable.shape) if value is None else np.asarray(tf.convert_to_tensor(value))
        for variable, value in zip(variables, tape.gradient(loss, variables), strict=True)
    }


def _tensors(part: Any) -> Any:
    """Turn an array, or a dict or list of arrays, into tensors; a list of numbers is an array."""
    if all(hasattr(array, "shape") for array in tf.nest.flatten(part)):
        return tf.nest.map_structure(tf.convert_to_tensor, part)
    return tf.convert_to_tensor(part)
