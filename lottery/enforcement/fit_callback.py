"""What our callbacks share: to begin inside a running ``fit``, and to notice when it breaks off."""

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import keras

from lottery.enforcement.patching import Method, during, is_running, replaced
from lottery.errors import LotteryError


class FitCallback(keras.callbacks.Callback):
    """A callback for `fit` of Keras 3 and of tf_keras that installs something in the model and takes it off again."""

    _supports_tf_logs = True  # tf_keras asks for this and for the methods `_implements_...`, Keras 3 for none

    def __init__(self) -> None:
        super().__init__()
        self._installed = contextlib.ExitStack()
        self._container: Any = None
        self._fit: Any = None

    def set_model(self, model: Any) -> None:
        """Called by Keras, also for `evaluate` and `predict`, where there is nothing to do."""
        super().set_model(model)
        # The list of callbacks that this is in, which Keras shows to none of them.
        frame: Any = sys._getframe(1)
        while frame is not None and self not in (getattr(frame.f_locals.get("self"), "callbacks", None) or []):
            frame = frame.f_back
        self._container = None if frame is None else frame.f_locals["self"]

    def on_train_begin(self, logs: Any = None) -> None:
        """Remember which `fit` this is in."""
        if self._fit is not None and is_running(self._fit):
            raise LotteryError(
                f"This {type(self).__name__} is in a fit that has not ended; use another for the one inside it."
            )
        self._take_off()
        frame: Any = sys._getframe(1)
        while frame is not None and not (frame.f_code.co_name == "fit" and frame.f_locals.get("self") is self.model):
            frame = frame.f_back
        self._fit = frame

    def on_train_end(self, logs: Any = None) -> None:
        """Take off: the model is as it was before, but for the values."""
        self._take_off()

    def _take_off(self) -> None:
        self._fit = None
        self._installed.close()

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False


def guard(stack: contextlib.ExitStack, model: Any, container: Any, fit: Any, take_off: Callable[[], None]) -> None:
    """Call `take_off` should the running `fit` break off, and let it train with a function that is traced anew.

    Keras tells its callbacks of a training that has ended, not of one that broke off. What breaks off comes out of a
    step, of an evaluation or of some callback, so these are watched.

    Args:
        stack: What undoes this, at `take_off` or before.
        model: The model that is being fitted.
        container: Its list of callbacks, if it is known.
        fit: The frame of `fit`, if it is known. What comes out of it unseen is noticed when the model is trained next.
        take_off: Called before the exception goes on its way.
    """

    def guarded(method: Method) -> Method:
        def call(*arguments: Any, **named: Any) -> Any:
            try:
                return method(*arguments, **named)
            except BaseException:
                take_off()
                raise

        return call

    def making(make: Method) -> Method:
        def made(*arguments: Any, **named: Any) -> Any:
            if fit is not None and not is_running(fit):
                take_off()
                return model.make_train_function(*arguments, **named)
            before = model.train_function
            returned = make(*arguments, **named)  # tf_keras returns the function, Keras 3 does not
            function = model.train_function if returned is None else returned
            if function is not before:
                model.train_function = guarded(function)
            return None if returned is None else model.train_function

        return made

    if fit is not None:
        during(stack, fit, take_off)
    stack.callback(setattr, model, "train_function", None)
    stack.enter_context(replaced(model, "make_train_function", making))
    for name in ("evaluate", "reset_metrics", "get_metrics_result"):
        if hasattr(model, name):
            stack.enter_context(replaced(model, name, guarded))
    for one in getattr(container, "callbacks", None) or []:  # those that begin after this one
        stack.enter_context(replaced(one, "on_train_begin", guarded))
    for name in dir(container):
        if name.startswith("on_"):
            stack.enter_context(replaced(container, name, guarded))
    model.train_function = None
    model.train_function = model.make_train_function() or model.train_function
