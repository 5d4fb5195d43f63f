"""Every mode of enforcement as a callback of ``fit``, for Keras 3 and tf_keras alike."""

import contextlib
from collections.abc import Mapping
from typing import Any

import keras

from lottery.enforcement.entries import PRESENT, HeldAt, check_kind, held, words
from lottery.enforcement.modes import ENFORCEMENTS
from lottery.enforcement.patching import Method, replaced
from lottery.errors import LotteryError, unknown


# Keras 3's class serves both: tf_keras 2.21 calls the methods of a callback, and does not ask for its class.
class FitCallback(keras.callbacks.Callback):
    """A callback of ``fit`` of both libraries that installs something in the model and removes it again."""

    # tf_keras 2.21 reads this, and the methods `_implements_...` below, and then copies no logs from the device, and
    # calls no hooks that do nothing. Keras 3.15 reads none of them.
    _supports_tf_logs = True

    def __init__(self, masks: Mapping[str, Any], held_at: HeldAt = None) -> None:
        super().__init__()
        check_kind(masks, type(self).__name__)
        self._masks, self._held_at = masks, held_at
        self._installed: contextlib.ExitStack | None = None
        self._is_waiting = False

    def install(self, stack: contextlib.ExitStack, logs: Any) -> None:
        """Install what training needs; `stack` removes it. Subclasses define this."""

    def on_train_begin(self, logs: Any = None) -> None:
        """Install, also in a model whose training step was traced before."""
        # A fit that raised has left it installed.
        self.close()
        # Callbacks after this one, such as BackupAndRestore, may set weights before the first epoch begins.
        self._is_waiting = PRESENT in words(self._held_at)
        if self._is_waiting:
            held(self.model, self._masks, self._held_at)  # refuses what is wrong
        else:
            self._begin(logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Install now if the present values of weights are those to hold."""
        if self._is_waiting:
            self._is_waiting = False
            self._begin(logs)

    def _begin(self, logs: Any) -> None:
        model: Any = self.model
        # If anything is refused on the way, the stack removes what was installed before it.
        with contextlib.ExitStack() as stack:
            self.install(stack, logs)
            # The next fit traces a function without what is installed.
            stack.callback(setattr, model, "train_function", None)
            # One that was traced before would train without it. Keras 3 sets the new one, tf_keras returns it.
            model.train_function = None
            model.train_function = model.make_train_function() or model.train_function
            # If `fit` raises, Keras calls no hook at all; then the next `fit` removes what is installed.
            stack.enter_context(replaced(model, "fit", self._closed_before))
            self._installed = stack.pop_all()

    def on_train_batch_begin(self, batch: Any, logs: Any = None) -> None:
        """Refuse to train on once a ``fit`` inside this one has removed the callback."""
        if self._installed is None:
            raise LotteryError(
                f"A fit that has not ended uses this {type(self).__name__}, but the callback was closed or used again "
                "in the meantime. Use another callback for a fit inside this fit, or a context manager of "
                "lottery.enforcement around both fits."
            )

    def on_train_end(self, logs: Any = None) -> None:
        """Remove everything: the model is as before, except for its values."""
        self.close()

    def close(self) -> None:
        """Remove everything from the model; does nothing if that is done already."""
        self._is_waiting = False
        installed, self._installed = self._installed, None
        if installed is not None:
            installed.close()

    def _closed_before(self, fit: Method) -> Method:
        def starting(*arguments: Any, **named: Any) -> Any:
            self.close()
            return fit(*arguments, **named)

        return starting

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    _implements_predict_batch_hooks = _implements_test_batch_hooks


class EnforceMasks(FitCallback):
    """Hold masked entries of a model while ``fit`` trains it.

    ``model.fit(x, y, callbacks=[EnforceMasks(masks)])`` is enough, also for a model that was fitted before.
    When training ends, only the values in the model have changed. If ``fit`` raises, Keras does not notify its
    callbacks, so entries stay held until the next ``fit`` of the model starts or you call `close`. (Context managers
    release them at once.) You can use a callback again. Put callbacks that read the weights after it.

    Args:
        masks: Boolean arrays by weight, True where the entry is kept.
        mode: A key of ``lottery.enforcement.ENFORCEMENTS``, or a context manager function like `constraint`.
        held_at: As for `constraint`; ``"present"`` means the values when the first epoch begins, so those that
            ``BackupAndRestore`` restores, if there are any.
    """

    def __init__(self, masks: Mapping[str, Any], mode: Any = "constraint", held_at: HeldAt = None) -> None:
        super().__init__(masks, held_at)
        if not callable(mode) and not (isinstance(mode, str) and mode in ENFORCEMENTS):
            raise unknown("mode", mode, ENFORCEMENTS)
        self._enforce: Any = mode if callable(mode) else ENFORCEMENTS[mode].hold
        self._inner: list[Any] = []

    def install(self, stack: contextlib.ExitStack, logs: Any) -> None:
        """Hold masked entries at their values from here on."""
        self._inner = stack.enter_context(self._enforce(self.model, self._masks, self._held_at))
        for callback in self._inner:
            callback.set_model(self.model)
            callback.on_train_begin(logs)

    def on_train_batch_end(self, batch: Any, logs: Any = None) -> None:
        """Pass the end of a batch on to the callbacks of the mode, if it has any."""
        for callback in self._inner:
            callback.on_train_batch_end(batch, logs)
