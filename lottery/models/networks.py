"""The networks of the field, built layer by layer, with Keras 3 or with tf_keras.

A network is a function of `input_shape`, the shape of one example; `num_classes`, the units of its output layer; and
`keras`, the module to build it with: ``keras`` (the default) or ``tf_keras``. It returns a model that is built, not
compiled, and ends in logits. Images are (height, width) or (height, width, channels).
"""

import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from lottery import weights
from lottery.errors import LotteryError, unknown

# Frankle & Carbin 2019 initialise all their networks with Glorot's Gaussian. Keras truncates the Gaussian at two
# standard deviations and widens it, so that its standard deviation is Glorot's.
GLOROT = "glorot_normal"
VGG_WIDTHS = (64, 128, 256, 512, 512)
VGG_CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}  # of each of these widths


def lenet_300_100(input_shape: tuple[int, ...] = (28, 28), num_classes: int = 10, keras: Any = None) -> Any:
    """Build LeNet-300-100, fully connected, Glorot normal, of Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635.

    Examples of any shape are flattened. 266,200 prunable weights on MNIST.
    """
    keras = keras or importlib.import_module("keras")
    layers = keras.layers
    stack = [layers.InputLayer(input_shape), layers.Flatten()]
    stack += [layers.Dense(units, activation="relu", kernel_initializer=GLOROT) for units in (300, 100)]
    return keras.Sequential([*stack, _output(keras, num_classes)])


def lenet_5(input_shape: tuple[int, ...] = (28, 28), num_classes: int = 10, keras: Any = None) -> Any:
    """Build LeNet-5 in Caffe's version, which papers on pruning have used since Han et al. 2015.

    Convolutions of 20 and 50 channels, 5 x 5, without padding, each followed by 2 x 2 max pooling and by no other
    nonlinearity; then 500 units with ReLU, then the classes. https://arxiv.org/abs/1506.02626 prunes it. It is not in
    Frankle & Carbin 2019, whose "LeNet" is `lenet_300_100`; it starts like their networks, Glorot normal. 430,500
    prunable weights on MNIST. Images have at least 16 x 16 pixels.
    """
    keras = keras or importlib.import_module("keras")
    layers = keras.layers
    stack = _image(layers, "lenet_5", input_shape, 16)
    for channels in (20, 50):
        stack += [layers.Conv2D(channels, 5, kernel_initializer=GLOROT), layers.MaxPooling2D()]
    stack += [layers.Flatten(), layers.Dense(500, activation="relu", kernel_initializer=GLOROT)]
    return keras.Sequential([*stack, _output(keras, num_classes)])


def conv(
    num_convolutions: int, input_shape: tuple[int, ...] = (32, 32, 3), num_classes: int = 10, keras: Any = None
) -> Any:
    """Build Conv-2, Conv-4 or Conv-6 of Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635, Figure 2.

    Pairs of 3 x 3 convolutions with ReLU, of 64, 128 and 256 channels, each pair followed by 2 x 2 max pooling; then
    256, 256 units with ReLU, then the classes. Glorot normal. 4,300,992, 2,425,024 or 2,261,184 prunable weights on
    CIFAR-10; the paper's table has 1.7M for the last, which its own layers do not add up to.
    """
    if num_convolutions not in (2, 4, 6):
        raise unknown("conv_N", num_convolutions, ("2", "4", "6"))
    keras = keras or importlib.import_module("keras")
    layers, num_pairs = keras.layers, num_convolutions // 2
    stack = _image(layers, f"conv_{num_convolutions}", input_shape, 2**num_pairs)
    for channels in (64, 128, 256)[:num_pairs]:
        for _ in range(2):
            stack.append(layers.Conv2D(channels, 3, padding="same", activation="relu", kernel_initializer=GLOROT))
        stack.append(layers.MaxPooling2D())
    stack.append(layers.Flatten())
    stack += [layers.Dense(256, activation="relu", kernel_initializer=GLOROT) for _ in range(2)]
    return keras.Sequential([*stack, _output(keras, num_classes)])


def vgg(depth: int, input_shape: tuple[int, ...] = (32, 32, 3), num_classes: int = 10, keras: Any = None) -> Any:
    """Build VGG-11, VGG-16 or VGG-19 for 32 x 32 images, as in Frankle & Carbin 2019.

    The convolutions of Simonyan & Zisserman 2015, https://arxiv.org/abs/1409.1556: 3 x 3, without biases, each with
    BatchNorm and ReLU, 2 x 2 max pooling after each width but the last; then the mean over all positions and **one**
    dense layer in place of the original's three. Glorot normal, as the table of https://arxiv.org/abs/1803.03635 says;
    open_lth, the later code of its author, draws He normal instead, gives its convolutions biases, which the BatchNorm
    after them takes off again, and starts the scales of BatchNorm at random between 0 and 1 where these start at 1.
    9,222,848, 14,715,584 or 20,024,000 prunable weights on CIFAR-10, of which the dense layer has 5,120. Images have at
    least 16 x 16 pixels.
    """
    if depth not in VGG_CONVOLUTIONS:
        raise unknown("vgg_N", depth, list(map(str, VGG_CONVOLUTIONS)))
    keras = keras or importlib.import_module("keras")
    layers = keras.layers
    stack = _image(layers, f"vgg_{depth}", input_shape, 16)
    for index, (channels, num) in enumerate(zip(VGG_WIDTHS, VGG_CONVOLUTIONS[depth], strict=True)):
        if index > 0:
            stack.append(layers.MaxPooling2D())
        for _ in range(num):
            stack.append(layers.Conv2D(channels, 3, padding="same", use_bias=False, kernel_initializer=GLOROT))
            stack += [_normalisation(layers), layers.ReLU()]
    return keras.Sequential([*stack, layers.GlobalAveragePooling2D(), _output(keras, num_classes)])


def resnet(depth: int, input_shape: tuple[int, ...] = (32, 32, 3), num_classes: int = 10, keras: Any = None) -> Any:
    """Build ResNet-N for 32 x 32 images, N = 6 n + 2, of He et al. 2016, https://arxiv.org/abs/1512.03385, section 4.2.

    A 3 x 3 convolution, then n blocks of two each at 16, 32 and 64 channels, all with BatchNorm and without biases,
    then the mean over all positions and one dense layer. Frankle & Carbin 2019 call N = 20 "ResNet-18". Where the
    shape changes, the shortcut is a 1 x 1 convolution of stride 2 with BatchNorm, as in open_lth, the code of Frankle
    et al. 2020 (https://arxiv.org/abs/1912.05671), and as the 270K convolutional weights of the paper of 2019 need
    (He et al. pad with zeros, without weights). Glorot normal, as its table says; open_lth draws He normal, and starts
    the scales of BatchNorm at random between 0 and 1 where these start at 1. ResNet-20 has 270,896 prunable weights on
    CIFAR-10: 270,256 in convolutions and 640 in the dense layer.
    """
    if depth < 8 or depth % 6 != 2:
        raise LotteryError(f"resnet_N must have 6 n + 2 layers, that is 8, 14, 20, 26 and so on, not {depth}.")
    keras = keras or importlib.import_module("keras")
    layers = keras.layers

    def convolution(x: Any, channels: int, size: int, stride: int = 1, name: str | None = None) -> Any:
        if stride > 1 and size > 1:
            # Padded on both sides, the kernel is centred on the pixels that the shortcut takes. What Keras calls
            # "same" pads an even image on its far side only, and is one pixel off.
            x = layers.ZeroPadding2D(size // 2)(x)
        settings: dict[str, Any] = {"strides": stride, "use_bias": False, "kernel_initializer": GLOROT, "name": name}
        x = layers.Conv2D(channels, size, padding="same" if stride == 1 else "valid", **settings)(x)
        return _normalisation(layers, name and f"{name}_normalization")(x)

    inputs, *reshape = _image(layers, f"resnet_{depth}", input_shape, 1, functional=keras.Input)
    x = reshape[0](inputs) if reshape else inputs
    x = layers.ReLU()(convolution(x, 16, 3))
    for stage, channels in enumerate((16, 32, 64)):
        for block in range((depth - 2) // 6):
            shrinks = stage > 0 and block == 0
            # Names of their own, because Keras decides which of two parallel layers comes first.
            shortcut = convolution(x, channels, 1, 2, f"shortcut_{stage}") if shrinks else x
            x = layers.ReLU()(convolution(x, channels, 3, 2 if shrinks else 1))
            x = layers.ReLU()(layers.Add()([convolution(x, channels, 3), shortcut]))
    return keras.Model(inputs, _output(keras, num_classes)(layers.GlobalAveragePooling2D()(x)))


def _output(keras: Any, num_classes: int) -> Any:
    """The output layer. The loss takes exponentials of its logits, which half precision would round."""
    mixed = keras.mixed_precision.global_policy().name.startswith("mixed_")
    return keras.layers.Dense(num_classes, kernel_initializer=GLOROT, dtype="float32" if mixed else None)


def _image(layers: Any, name: str, input_shape: tuple[int, ...], least: int, functional: Any = None) -> list[Any]:
    """The input, and a layer that gives a channel to an image without one."""
    shape = tuple(input_shape)
    if len(shape) not in (2, 3) or min(shape[:2]) < least:
        size = f" of at least {least} x {least} pixels" if least > 1 else ""
        raise LotteryError(
            f"{name} takes images{size}, (height, width) or (height, width, channels), not examples of shape {shape}."
        )
    first = functional(shape) if functional else layers.InputLayer(shape)
    return [first, layers.Reshape((*shape, 1))] if len(shape) == 2 else [first]


def _normalisation(layers: Any, name: str | None = None) -> Any:
    # PyTorch's settings, with which open_lth trains. Keras' own momentum, 0.99, still shows the first statistics after
    # hundreds of steps, so that an early evaluation would measure those. (tf_keras' moving variance, like PyTorch's,
    # divides by n - 1, Keras 3's by n. Trained weights do not depend on it.)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=name)


@dataclass(frozen=True)
class BuiltIn:
    """A network that comes with the package, and what has been measured of it; see ``docs/speed.md``.

    Attributes:
        build: A function of (input_shape, num_classes, keras), as described at the top.
        most_threads: The threads from which on more gain nothing; None if that is not known.
        gains_by_onednn: True if a step is faster with oneDNN where TensorFlow leaves it off.
    """

    build: Callable[..., Any]
    most_threads: int | None = None
    gains_by_onednn: bool = False


MODELS = {
    "lenet_300_100": BuiltIn(lenet_300_100, most_threads=2),
    "lenet_5": BuiltIn(lenet_5),
    **{f"conv_{num}": BuiltIn(partial(conv, num), gains_by_onednn=True) for num in (2, 4, 6)},
    "resnet_20": BuiltIn(partial(resnet, 20), gains_by_onednn=True),
    **{f"vgg_{depth}": BuiltIn(partial(vgg, depth), gains_by_onednn=True) for depth in VGG_CONVOLUTIONS},
}


def built_in(name: str) -> BuiltIn | None:
    """Look up a key of `MODELS`, or ``resnet_N`` of another depth, N = 6 n + 2; None if there is no such network."""
    if name in MODELS:
        return MODELS[name]
    matched = re.fullmatch(r"resnet_(\d{1,4})", name)
    depth = int(matched[1]) if matched else 0
    if depth < 8 or depth % 6 != 2:
        return None
    return replace(MODELS["resnet_20"], build=partial(resnet, depth))


def is_built_in(name: str) -> bool:
    """Check if a name is that of a `built_in` network."""
    return built_in(name) is not None


def named(name: str) -> Callable[..., Any]:
    """Look up the function that builds a network, ``(input_shape, num_classes, keras) -> model``.

    Raises:
        LotteryError: The name is not `is_built_in`.
    """
    known = built_in(name)
    if known is None:
        raise unknown("The network", name, MODELS)
    return known.build


def builder(
    name: str,
    input_shape: tuple[int, ...] = (),
    num_classes: int = 0,
    library: str = "keras",
    import_code: bool = False,
) -> Callable[[], Any]:
    """Return a function without arguments that builds the model of an experiment.

    Args:
        name: A built-in network, or ``"package.module:function"``, a function without arguments that returns a Keras
            model. The current folder is searched for its module first.
        input_shape, num_classes, library: Of a built-in network; it starts alike with ``"keras"`` and ``"tf_keras"``.
        import_code: Import the module, which runs its code: the user named it, or trusts the file that does.

    Raises:
        LotteryError: The module may not or cannot be imported, or has no such function.
    """
    if is_built_in(name):
        return lambda: _built(named(name), input_shape, num_classes, library)
    module_name, _, function_name = name.partition(":")
    if not import_code:
        place = module_file(module_name)
        found = repr(str(place)) if place else "not found as a file"
        raise LotteryError(
            f"model.name: a file names the network {name!r}. Importing the module {module_name!r} ({found}) would run "
            "its code. If you trust the code, add --import-code (in Python import_code=True), or type the name "
            "yourself."
        )
    # A command that is installed, unlike `python`, does not search the current folder.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # importing runs the module, which may raise anything
        raise LotteryError(f"model.name: the module of {name!r} cannot be imported: {error}.") from error
    if not hasattr(module, function_name):
        raise LotteryError(f"model.name: module {module_name!r} has no function {function_name!r}.")
    return getattr(module, function_name)


def module_file(module: str) -> Path | None:
    """Find the file that a module is imported from, without importing anything; None if it has none."""
    if module in sys.modules:
        file = getattr(sys.modules[module], "__file__", None)
        return Path(file) if file else None
    spec, places = None, [str(Path.cwd()), *sys.path]
    for part in module.split("."):
        # One part after the other, because to ask for the whole name imports the packages above.
        spec = PathFinder.find_spec(part, places) if part else None
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    return Path(spec.origin) if spec and spec.origin else None


def _built(function: Callable[..., Any], input_shape: tuple[int, ...], num_classes: int, library: str) -> Any:
    model = function(input_shape, num_classes)
    if library == "keras":
        return model
    # The libraries draw other numbers from the same seed; the same network should start from the same weights.
    other = function(input_shape, num_classes, importlib.import_module(library))
    weights.assign(other, weights.read_state(model))
    return other
