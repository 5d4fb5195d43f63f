"""The field's networks by name, in Keras 3 and in tf_keras; and a user's own by import path."""

import importlib
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lottery import weights
from lottery.errors import LotteryError, unknown
from lottery.networks import conv, lenet_5, lenet_300_100, resnet, vgg

# A network is a function from the shape of one example, the number of classes and the module to build it with (Keras 3,
# unless another is given) to a model that is built, not compiled, and ends in logits.
Network = Callable[..., Any]

MODELS: dict[str, Network] = {
    "lenet_300_100": lenet_300_100,
    "lenet_5": lenet_5,
    "conv_2": partial(conv, 2),
    "conv_4": partial(conv, 4),
    "conv_6": partial(conv, 6),
    "resnet_20": partial(resnet, 20),
    "vgg_11": partial(vgg, 11),
    "vgg_16": partial(vgg, 16),
    "vgg_19": partial(vgg, 19),
}


def is_built_in(name: str) -> bool:
    """Whether a name is a key of `MODELS`, or ``resnet_N`` of another depth: N = 6 n + 2."""
    return name in MODELS or bool(_resnet_depth(name))


def named(name: str) -> Network:
    """The network of a name that `is_built_in`.

    Args:
        name: A key of `MODELS`, or ``resnet_N``, N = 6 n + 2.

    Returns:
        The function that builds it, ``(input_shape, num_classes, keras) -> model``.

    Raises:
        LotteryError: There is no such network.
    """
    if name in MODELS:
        return MODELS[name]
    depth = _resnet_depth(name)
    if not depth:
        raise unknown("The network", name, MODELS)
    return partial(resnet, depth)


def builder(name: str, input_shape: tuple[int, ...], num_classes: int, library: str = "keras") -> Callable[[], Any]:
    """A function without arguments that builds the model an experiment names.

    Args:
        name: A built-in network's, or ``"package.module:function"``. The function takes no arguments and returns a
            Keras model; the current folder is searched for its module first.
        input_shape, num_classes: What a built-in network is built for.
        library: What a built-in network is built with, ``"keras"`` or ``"tf_keras"``; its initial weights are those
            that Keras 3 draws, with both.

    Returns:
        The function.

    Raises:
        LotteryError: The module or the function does not exist.
    """
    if is_built_in(name):
        return lambda: _built(named(name), input_shape, num_classes, library)
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


def _built(function: Network, input_shape: tuple[int, ...], num_classes: int, library: str) -> Any:
    model = function(input_shape, num_classes)
    if library == "keras":
        return model
    # The two draw other numbers from the same seed; the same network shall start from the same weights.
    other = function(input_shape, num_classes, importlib.import_module(library))
    weights.assign(other, weights.read_state(model))
    return other


def _resnet_depth(name: str) -> int | None:
    depth = re.fullmatch(r"resnet_(\d{1,4})", name)
    return int(depth[1]) if depth and int(depth[1]) > 2 and int(depth[1]) % 6 == 2 else None
