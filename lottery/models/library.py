""""""

import contextlib
import re
from collections.abc import Iterator
from typing import Any

from lottery.errors import LotteryError


def keras_of(model: Any) -> Any:
    """The module that a model was made with: ``keras`` or ``tf_keras``.

    Raises:
        LotteryError: It is no Keras model, or Keras computes with something other than TensorFlow.
    """
    if any(cls.__module__.split(".")[0] == "tf_keras" for cls in type(model).__mro__):
        import tf_keras

        return tf_keras
    import keras

    if not isinstance(model, keras.Model):
        raise LotteryError(f"The model is a {type(model).__name__}, allowed is a Keras model.")
    if keras.backend.backend() != "tensorflow":
        raise LotteryError(f"Keras uses the backend {keras.backend.backend()!r}; set KERAS_BACKEND=tensorflow.")
    return keras


def is_compiled(model: Any) -> bool:
    """Whether a model came with an optimiser and a loss of its own."""
    return getattr(model, "optimizer", None) is not None


@contextlib.contextmanager
def evaluating(what: str) -> Iterator[None]:
    """What a model raises, as one sentence that begins with `what`."""
    try:
        yield
    except LotteryError:
        raise
    except Exception as error:  # a user's layers, loss and metrics may raise anything
        raise LotteryError(f"{what}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """What an exception says, in one line: Keras puts the place first and the reason after it."""
    lines = [re.sub(r"\x1b\[\d+m", "", line).strip() for line in str(error).splitlines()]
    around = ("Exception encountered", "in user code", "File ", "Graph execution error", "Detected at node", "[[")
    lines = [line for line in lines if line and not line.startswith(around)]
    if not lines:
        return type(error).__name__
    return lines[-1] if "Graph execution error" in str(error) else lines[0]  # the graph's trace comes first, too
