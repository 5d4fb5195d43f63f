"""The modes of enforcement: each is a context manager that holds masked entries of a model while it trains."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from lottery.enforcement import wrappers
from lottery.enforcement.holding import Held, HeldAt, clear_slots, held, masked, put
from lottery.enforcement.patching import computing_with, constrained, frozen, replaced, retrace, sweep, undone
from lottery.errors import LotteryError
from lottery.models.library import keras_of

Enforcement = Callable[..., AbstractContextManager[list[Any]]]


# Variables of which entries are held at this moment, by identity, with the mode that holds them.
_HOLDING: dict[int, str] = {}


@contextlib.contextmanager
def constraint(model: Any, masks: Mapping[str, Any], held_at: HeldAt = None) -> Iterator[list[Any]]:
    """Hold masked entries through the constraints of their variables.

    The optimiser applies a variable's constraint after each update, inside the compiled step, so a masked entry is
    exactly its held value after every single step, under any ``steps_per_execution``. A constraint that the
    variable has already is applied first.

    What the optimiser computes from whole gradients still sees those of masked entries: with ``global_clipnorm`` they
    count in the norm, so survivors are clipped a little more than if only they had gradients.

    A weight whose mask is an array of nothing but False is frozen whole, and its gradient is not computed; this and
    what follows goes for every mode.

    Args:
        model: A built Keras 3 or tf_keras model.
        masks: By weight, boolean arrays, True where the entry is kept; or boolean ``tf.Variable``, which may be
            assigned other masks while they are held without anything being traced again (`mask_variables`).
        held_at: By weight, the values that masked entries are held at: an array of the weight's shape, a number, or
            ``"present"`` for the values that it has now; zero where it says nothing. ``"present"`` alone is for all.

    Yields:
        The callbacks that ``fit`` needs: none, but for the mode `callback`.

    Raises:
        LotteryError: A mask does not fit the model, or the weight is held already. Nothing has been changed then.
    """
    with _holding(model, masks, held_at, "constraint") as entries, constrained(entries):
        yield []


@contextlib.contextmanager
def gradient(model: Any, masks: Mapping[str, Any], held_at: HeldAt = None) -> Iterator[list[Any]]:
    """Hold masked entries by masking their gradients before the model's optimiser sees them.

    The optimiser's slots of masked entries are set to zero when this begins and stay zero. What moves an entry that
    has no gradient (decoupled weight decay of a held value that is not zero, for one) is undone within the same step.

    Args:
        model: A built Keras 3 or tf_keras model that is compiled; its own optimiser must be the one that trains it.
        masks, held_at: As for `constraint`.

    Yields:
        No callbacks.

    Raises:
        LotteryError: As for `constraint`, or the model has no optimiser.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise LotteryError(
            f"The model {model.name!r} has no optimiser whose gradients could be masked; compile it, or use "
            "enforcement.mask_gradients in a loop of your own."
        )

    def wrapped(apply: Callable[..., Any]) -> Callable[..., Any]:
        def apply_masked(grads: Any, trainable_variables: Any = None, **arguments: Any) -> Any:
            variables = optimizer._trainable_variables if trainable_variables is None else list(trainable_variables)
            return apply(masked(entries, list(grads), variables), trainable_variables, **arguments)

        return apply_masked

    def wrapped_pairs(apply_gradients: Callable[..., Any]) -> Callable[..., Any]:  # of tf_keras
        def apply_masked(grads_and_vars: Any, *arguments: Any, **named: Any) -> Any:
            gradients, variables = zip(*grads_and_vars, strict=True)
            pairs = zip(masked(entries, gradients, variables), variables, strict=True)
            return apply_gradients(list(pairs), *arguments, **named)

        return apply_masked

    which = ("apply", wrapped) if hasattr(optimizer, "apply") else ("apply_gradients", wrapped_pairs)
    with (
        _holding(model, masks, held_at, "gradient") as entries,
        constrained(entries),
        replaced(optimizer, *which),
    ):
        clear_slots(optimizer, entries)
        yield []


@contextlib.contextmanager
def reparameterization(model: Any, masks: Mapping[str, Any], held_at: HeldAt = None) -> Iterator[list[Any]]:
    """Hold masked entries by computing the network from m * w + stop_gradient((1 - m) * held) in place of w.

    So a masked entry has no gradient, whatever the optimiser. Its hidden copy, which decoupled weight decay and old
    momentum would move, is put back after each update, so that what is read or saved is what the network computes.

    Args:
        model: A built Keras 3 model.
        masks, held_at: As for `constraint`.

    Yields:
        No callbacks.

    Raises:
        LotteryError: As for `constraint`, or the model is a tf_keras model.
    """
    if keras_of(model).__name__ == "tf_keras":
        raise LotteryError(
            f"The model {model.name!r} is a tf_keras model, and reparameterization needs one of Keras 3; build it "
            'with keras, or use another mode, such as "constraint".'
        )

    def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
        def call_masked(*arguments: Any, **named: Any) -> Any:
            with computing_with(entries):
                return call(*arguments, **named)

        return call_masked

    with (
        _holding(model, masks, held_at, "reparameterization") as entries,
        constrained(entries),
        replaced(model, "call", wrapped),
    ):
        yield []


@contextlib.contextmanager
def callback(model: Any, masks: Mapping[str, Any], held_at: HeldAt = None) -> Iterator[list[Any]]:
    """Hold masked entries by a Keras callback that sets them at the end of each batch.

    For people who want just that. Between an update and the end of its batch the entries are off; so it refuses
    ``steps_per_execution > 1``, where a batch's end comes only after several updates (Keras calls it once for all of
    them). In a loop of your own, call the callback's ``on_train_batch_end(step)`` after each update.

    Args:
        model: A built Keras 3 or tf_keras model.
        masks, held_at: As for `constraint`.

    Yields:
        The callback, in a list, for ``fit(..., callbacks=...)``; put it before callbacks that read the weights.

    Raises:
        LotteryError: As for `constraint`, or ``steps_per_execution`` is more than one.
    """
    _refuse_several_steps(model)
    with _holding(model, masks, held_at, "callback") as entries:
        yield [_projection(entries)]


@contextlib.contextmanager
def tfmot(model: Any, masks: Mapping[str, Any], held_at: HeldAt = None) -> Iterator[list[Any]]:
    """Hold masked entries by the pruning wrappers of tensorflow_model_optimization, with our masks in them.

    The wrappers multiply by their masks before each forward pass, and by themselves would leave entries one step away
    from zero after the last; so entries are also set to zero after each update. Masks are never recomputed.

    Args:
        model: A built tf_keras model: as it is, or wrapped by tfmot or by `wrappers.wrap`.
        masks: As for `constraint`.
        held_at: None: tfmot holds zeros only.

    Yields:
        No callbacks; tfmot's ``UpdatePruningStep`` is not needed.

    Raises:
        LotteryError: As for `constraint`, or tfmot cannot hold this mask, or the model is one of Keras 3.
    """
    if held_at is not None:
        raise LotteryError('held_at: tfmot holds masked entries at zero only; use another mode, such as "constraint".')
    with (
        wrappers.wrapped_in_place(model, masks),
        _holding(model, masks, held_at, "tfmot") as entries,
        constrained(entries),
    ):
        yield []


ENFORCEMENTS: dict[str, Enforcement] = {
    "constraint": constraint,
    "gradient": gradient,
    "reparameterization": reparameterization,
    "callback": callback,
    "tfmot": tfmot,
}


def mask_variables(masks: Mapping[str, Any]) -> dict[str, Any]:
    """Masks as boolean ``tf.Variable``, so that one trace serves every mask that is assigned to them."""
    import tensorflow as tf

    return {name: tf.Variable(mask, trainable=False, dtype=tf.bool) for name, mask in masks.items()}


@contextlib.contextmanager
def _holding(model: Any, masks: Mapping[str, Any], held_at: HeldAt, mode: str) -> Iterator[list[Held]]:
    """What all modes have in common: checks, held values put in place, frozen weights, functions traced anew."""
    sweep()
    entries = held(model, masks, held_at)
    for one in entries:
        if id(one.variable) in _HOLDING:
            raise LotteryError(
                f"{one.name!r} is held by {_HOLDING[id(one.variable)]!r} already; leave that before {mode!r} begins."
            )
    own = {id(one.variable): mode for one in entries}
    _HOLDING.update(own)
    try:
        with frozen(model, [one for one in entries if one.frozen]), _held_at_the_end(model, entries):
            put(entries)
            retrace(model)
            # What `fit` does after its last step, such as weights from moving averages, may move them.
            with undone(lambda: put(entries)):
                yield entries
    finally:
        retrace(model)
        for key in own:
            del _HOLDING[key]


@contextlib.contextmanager
def _held_at_the_end(model: Any, entries: Sequence[Held]) -> Iterator[None]:
    """Hold entries where `fit` ends by putting moving averages in the place of all weights."""
    optimizer = getattr(model, "optimizer", None)

    def wrapped(finalize: Callable[..., Any]) -> Callable[..., Any]:
        def finalize_held(*arguments: Any, **named: Any) -> None:
            finalize(*arguments, **named)
            put(entries)

        return finalize_held

    if not hasattr(optimizer, "finalize_variable_values"):
        yield
        return
    with replaced(optimizer, "finalize_variable_values", wrapped):
        yield


def _projection(entries: Sequence[Held]) -> Any:
    from lottery.enforcement.fit_callback import FitCallback  # derives from a class of Keras, so it imports TensorFlow

    class ProjectAfterBatch(FitCallback):
        """Sets masked entries to their held values at the end of each batch."""

        def on_train_begin(self, logs: Any = None) -> None:
            _refuse_several_steps(self.model)

        def on_train_batch_end(self, batch: Any, logs: Any = None) -> None:
            put(entries)

    return ProjectAfterBatch()


def _refuse_several_steps(model: Any) -> None:
    several: Any = getattr(model, "_steps_per_execution", None)  # of tf_keras, a variable
    several = getattr(model, "steps_per_execution", 1) if several is None else several.numpy()
    if several > 1:
        raise LotteryError(
            f"The model is compiled with steps_per_execution={several}, between which a callback cannot hold anything; "
            'compile it with 1, or use another mode, such as "constraint".'
        )
