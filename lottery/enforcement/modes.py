"""The modes of enforcement: each is a context manager that holds masked entries of a model while it trains."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from lottery.enforcement import patching, refusals, tfmot
from lottery.enforcement.entries import Held, HeldAt, held, masked, refuse_adapted
from lottery.errors import LotteryError
from lottery.models import optimizers
from lottery.models.kerases import keras_of, tf

# A context manager function, as `constraint`: of a model, masks and held values. It yields callbacks for ``fit``.
Enforcement = Callable[..., AbstractContextManager[list[Any]]]

# The mode that holds entries of a variable now, by the variable's identity, because a tf.Variable cannot be a key.
_HOLDING: dict[int, str] = {}


@contextlib.contextmanager
def constraint(model: Any, masks: Mapping[str, Any], held_at: HeldAt = None) -> Iterator[list[Any]]:
    """Hold masked entries by the constraints of their variables.

    The optimizer applies a variable's constraint after each update, inside the compiled step, so a masked entry is
    exactly at its held value after every single step, with any ``steps_per_execution``. An existing constraint of the
    variable is applied to the masked weight, in every mode, so a norm counts kept entries and held values alone. If it
    would change a held value, the held value stays.

    The optimizer still sees the gradients of masked entries: with ``global_clipnorm`` they count in the norm, so
    survivors are clipped a little more than with masked gradients.

    In every mode, a mask array that is False everywhere freezes the whole weight: its gradient is not computed.

    Args:
        model: A built Keras 3 or tf_keras model.
        masks: Boolean arrays by weight, True where the entry is kept. With boolean ``tf.Variable`` (`mask_variables`)
            you can assign other masks later, without another trace.
        held_at: The values of masked entries by weight: an array of the weight's shape, a number, or ``"present"`` for
            its present values; zero if missing. ``"present"`` alone applies to all weights. To a ``tf.Variable`` that
            is not trainable you can assign other values later, without another trace.

    Yields:
        The callbacks that ``fit`` needs: an empty list, except in the mode `callback`.

    Raises:
        LotteryError: A mask does not fit the model, or the weight is already held. The model is unchanged.
    """
    with _holding(model, masks, held_at, "constraint") as entries, patching.constrained(entries):
        yield []


@contextlib.contextmanager
def gradient(model: Any, masks: Mapping[str, Any], held_at: HeldAt = None) -> Iterator[list[Any]]:
    """Hold masked entries by masking their gradients before the model's optimizer sees them.

    The optimizer's slots of masked entries are set to zero at the start and stay zero. A change without a gradient,
    such as decoupled weight decay of a nonzero held value, is undone in the same step. Arguments, yields and errors
    are those of `constraint`; the model must be compiled, and trained by its own optimizer.
    """
    keras_of(model)  # refuses what is no Keras model
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        raise LotteryError(
            f"The model {model.name!r} has no optimizer, so its gradients cannot be masked; compile the "
            "model, or use lottery.enforcement.mask_gradients in your own loop."
        )
    with (
        _holding(model, masks, held_at, "gradient") as entries,
        patching.constrained(entries),
        patching.applying(optimizer, lambda gradients, variables: (masked(entries, gradients, variables), variables)),
    ):
        # Momentum of the time before would move masked entries that have no gradient any more.
        patching.clear_slots(optimizer, entries)
        yield []


@contextlib.contextmanager
def reparameterization(model: Any, masks: Mapping[str, Any], held_at: HeldAt = None) -> Iterator[list[Any]]:
    """Hold masked entries by computing the network from m * w + stop_gradient((1 - m) * held) in place of w.

    A masked entry has no gradient, with any optimizer. Decoupled weight decay and old momentum would move its hidden
    copy; the copy is reset after each update, so the weight that you read or save is the weight that the network uses.
    Arguments, yields and errors are those of `constraint`; for Keras 3 only.
    """
    if keras_of(model).__name__ == "tf_keras":
        raise LotteryError(
            f"The model {model.name!r} is a tf_keras model, and reparameterization needs a Keras 3 model; "
            'build it with keras, or use another mode, such as "constraint".'
        )
    refusals.spectral(model, masks)
    refusals.traced(model)
    with (
        _holding(model, masks, held_at, "reparameterization") as entries,
        patching.constrained(entries),
        patching.replaced(model, "call", patching.computing_with(entries)),
        # Keras computes the losses of regularizers there.
        patching.replaced(model, "compute_loss", patching.computing_with(entries)),
    ):
        yield []


@contextlib.contextmanager
def callback(model: Any, masks: Mapping[str, Any], held_at: HeldAt = None) -> Iterator[list[Any]]:
    """Hold masked entries by a Keras callback that sets them at the end of each batch.

    Entries are not held between an update and the end of its batch. ``steps_per_execution > 1`` is refused, because
    Keras then ends a batch only after several updates. In your own loop, call the callback's
    ``on_train_batch_end(step)`` after each update. Arguments and errors are those of `constraint`.

    Yields:
        The callback, in a list, for ``fit(..., callbacks=...)``; put it before callbacks that read the weights.
    """
    refusals.several_steps(model)
    with _holding(model, masks, held_at, "callback") as entries:
        both = [(entry.variable, patching.obeying(entry)) for entry in entries]

        def obey() -> None:
            for variable, obeyed in both:
                variable.assign(obeyed(variable))

        made: Any = keras_of(model).callbacks.LambdaCallback(
            # Asked again, because the model may have been compiled anew since.
            on_train_begin=lambda logs: refusals.several_steps(made.model),
            on_train_batch_end=lambda batch, logs=None: obey(),
        )
        # Without this, tf_keras 2.21 copies logs from the device for it.
        made._supports_tf_logs = True
        # A norm would count masked entries, which the update has moved.
        with patching.unconstrained(entries):
            yield [made]


@contextlib.contextmanager
def pruning_wrappers(model: Any, masks: Mapping[str, Any], held_at: HeldAt = None) -> Iterator[list[Any]]:
    """Hold masked entries by the pruning wrappers of tensorflow_model_optimization, with your masks.

    The wrappers multiply by their masks before each forward pass, which leaves entries one update away from zero after
    the last step, so entries are also set to zero after each update. Masks are never recomputed, and tfmot's
    ``UpdatePruningStep`` is not needed. Arguments, yields and errors are those of `constraint`, for a built tf_keras
    model, plain or wrapped by tfmot or `tfmot.wrap`, and masks that tfmot can hold; `held_at` must be None.
    """
    if held_at is not None:
        raise LotteryError('held_at: tfmot holds masked entries at zero only; use another mode, such as "constraint".')
    with (
        # First: it may refuse a layer, and then the model must be unchanged.
        tfmot.wrapped_in_place(model, masks),
        _holding(model, masks, held_at, "tfmot") as entries,
        patching.constrained(entries),
    ):
        yield []


@dataclass(frozen=True)
class Mode:
    """A mode of enforcement: what holds the entries, and where it can be used."""

    hold: Enforcement
    tf_keras_only: bool = False
    zero_only: bool = False  # no other held values
    on_several_devices: bool = True
    refuses_layers: bool = False  # which ones shows at the beginning of its context
    on_sparse_engine: bool = True  # the sparse engine trains the same network as the compiled loop in this mode


# By the name in ``run.enforcement``.
ENFORCEMENTS: dict[str, Mode] = {
    "constraint": Mode(constraint),
    "gradient": Mode(gradient),
    # It has tensors in place of variables while the network computes, which fails where devices take turns.
    "reparameterization": Mode(reparameterization, on_several_devices=False, refuses_layers=True),
    "callback": Mode(callback),
    # The variables of its wrappers are made for one device, when training begins.
    "tfmot": Mode(
        pruning_wrappers, tf_keras_only=True, zero_only=True, on_several_devices=False, refuses_layers=True,
        on_sparse_engine=False,
    ),
}  # fmt: skip


def given(function: Enforcement) -> Mode:
    """Make the mode of a caller's own function, which may do more to a training than hold masked entries."""
    return Mode(function, on_sparse_engine=False)


def mask_variables(masks: Mapping[str, Any]) -> dict[str, Any]:
    """Make boolean ``tf.Variable`` of masks, so that a trace stays valid when other masks are assigned to them."""
    return {name: tf.Variable(mask, trainable=False, dtype=tf.bool) for name, mask in masks.items()}


@contextlib.contextmanager
def _holding(model: Any, masks: Mapping[str, Any], held_at: HeldAt, mode: str) -> Iterator[list[Held]]:
    """Do what all modes have in common: check, set held values, freeze whole weights, have functions traced again."""
    entries = held(model, masks, held_at)
    refuse_adapted(model, entries)
    if mode != "callback":
        refusals.embeddings(model, entries)
    for entry in entries:
        if id(entry.variable) in _HOLDING:
            raise LotteryError(
                f"{entry.name!r} is already held by {_HOLDING[id(entry.variable)]!r}; leave that context, or call "
                f"close() on that callback, before {mode!r} starts."
            )
    own = {id(entry.variable): mode for entry in entries}
    _HOLDING.update(own)
    # `fit` keeps the functions that it has traced, so they are made again at both ends.
    try:
        with patching.frozen(model, [entry for entry in entries if entry.frozen]), _holding_averages(model, entries):
            patching.hold(entries)
            patching.retrace(model)
            # A loop that breaks off, or that calls no callback, may leave entries moved.
            with patching.undone(partial(patching.hold, entries)):
                yield entries
                if mode != "callback":  # whose loop may have called no callback
                    refusals.moved(model, entries)
    finally:
        patching.retrace(model)
        for key in own:
            del _HOLDING[key]


@contextlib.contextmanager
def _holding_averages(model: Any, entries: list[Held]) -> Iterator[None]:
    """Hold entries of moving averages, and where `fit` ends by putting them in place, also once it is compiled anew."""
    hold = partial(patching.hold, entries)
    with contextlib.ExitStack() as stack:

        def hold_in_optimizer() -> None:
            optimizer = getattr(model, "optimizer", None)
            stack.enter_context(patching.following(optimizer, "finalize_variable_values", hold))
            # Keras' SwapEMAWeights puts averages in the place of weights, to evaluate and to save them.
            for inner in optimizers.plain(optimizer):
                if getattr(inner, "use_ema", False):
                    stack.enter_context(patching.holding_averages(inner, entries))

        hold_in_optimizer()
        stack.enter_context(patching.following(model, "compile", hold_in_optimizer))
        yield
