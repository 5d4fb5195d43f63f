"""The field's networks by name, in Keras 3 and in tf_keras; and a user's own by import path."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lottery import weights
from lottery.errors import LotteryError


def lenet_300_100(input_shape: tuple[int, ...] = (28, 28), num_classes: int = 10, keras: Any = None) -> Any:
    """LeNet-300-100, fully connected, Glorot normal, as in Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635.

    Args:
        input_shape: Shape of one example; it is flattened.
        num_classes: Units of the output layer.
        keras: The module to build it with: ``keras`` (the default) or ``tf_keras``.

    Returns:
        A model that is built, not compiled, and ends in logits. 266,200 prunable weights on MNIST.
    """
    if keras is None:
        import keras
    dense = keras.layers.Dense
    return keras.Sequential(
        [
            keras.layers.InputLayer(input_shape),
            keras.layers.Flatten(),
            dense(300, activation="relu", kernel_initializer="glorot_normal"),
            dense(100, activation="relu", kernel_initializer="glorot_normal"),
            dense(num_classes, kernel_initializer="glorot_normal"),
        ]
    )


MODELS: dict[str, Callable[..., Any]] = {"lenet_300_100": lenet_300_100}


def builder(name: str, input_shape: tuple[int, ...], num_classes: int, library: str = "keras") -> Callable[[], Any]:
    """A function without arguments that builds the model an experiment names.

    Args:
        name: A key of `MODELS`, or ``"package.module:function"``. The function takes no arguments and returns a
            Keras model; the current folder is searched for its module first.
        input_shape, num_classes: What a built-in network is built for.
        library: What a built-in network is built with, ``"keras"`` or ``"tf_keras"``; its initial weights are those
            that Keras 3 draws, with both.

    Returns:
        The function.

    Raises:
        LotteryError: The module or the function does not exist.
    """
    if name in MODELS:
        return lambda: _built(MODELS[name], input_shape, num_classes, library)
    module_name, _, function_name = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except AttributeError:
        raise LotteryError(f"model.name: module {module_name!r} has no function {function_name!r}.") from None
    except Exception as error:  # importing runs the module, which may raise anything
        raise LotteryError(f"model.name: the module of {name!r} cannot be imported: {error}.") from error
    return function


def _built(function: Callable[..., Any], input_shape: tuple[int, ...], num_classes: int, library: str) -> Any:
    model = function(input_shape, num_classes)
    if library == "keras":
        return model
    # The two draw other numbers from the same seed; the same network shall start from the same weights.
    other = function(input_shape, num_classes, importlib.import_module(library))
    weights.assign(other, weights.read_state(model))
    return other
