"""What the sparse engine reads from a compiled Keras model, or why it cannot train it."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from lottery import files, weights
from lottery.errors import LotteryError
from lottery.models import graph, optimizers
from lottery.models.kerases import is_keras, keras_of, loss_of, tf

# Settings of optimizers and of losses that the engine knows with these values only.
OF_OPTIMIZERS = {
    "clipnorm": None, "clipvalue": None, "global_clipnorm": None, "use_ema": False, "amsgrad": False,
    "gradient_accumulation_steps": None, "loss_scale_factor": None,
}  # fmt: skip
OF_LOSSES = {
    "label_smoothing": (0,), "ignore_class": (None,), "axis": (-1,),
    "reduction": ("sum_over_batch_size", "mean_with_sample_weight", "auto"), "dtype": ("float32", "float64"),
}  # fmt: skip
# The variance's least addend in TensorFlow's fused normalisation, which tf_keras uses for images.
LEAST_EPSILON = 1.001e-5

Pair = tuple[int, int]  # of rows and columns


class Obstacle(Exception):
    """Why a model cannot be trained by the sparse engine, as the end of a sentence."""


class Tensor(NamedTuple):
    """The values that an operation reads or writes, for one example; a vector is an image of one pixel."""

    height: int
    width: int
    channels: int


@dataclass(frozen=True)
class Operation:
    """One of the operations below, from one tensor to another, by their numbers."""

    source: int
    target: int


@dataclass(frozen=True)
class Linear(Operation):
    """A dense layer or a convolution, without its activation."""

    kind: str  # "dense", "convolution" or "depthwise"
    kernel: str  # the name of the variable
    shape: tuple[int, ...]  # of the kernel
    bias: str | None
    l1: float
    l2: float
    strides: Pair = (1, 1)
    before: Pair = (0, 0)  # rows and columns of zeros, above and to the left of the image
    positions: int = 1  # at which an entry of the kernel is multiplied
    clips: bool = False  # a relu follows, which is part of it
    source_clips: bool = False  # it reads the results of a relu, and clips their gradients as it writes them


@dataclass(frozen=True)
class Activation(Operation):
    """A function of each value."""

    name: str


@dataclass(frozen=True)
class Moments(Operation):
    """The first half of batch normalisation: mean and variance over the batch."""

    gamma: str | None  # names of variables
    beta: str | None
    mean: str
    variance: str
    momentum: float
    epsilon: float
    is_unbiased: bool  # the moving variance divides by the number of values minus 1
    clips: bool = False  # a relu follows, which is part of it


class Normalisation(Moments):
    """The second half, which needs the moments of all examples."""


@dataclass(frozen=True)
class Pooling(Operation):
    """The highest value of each window, or the mean."""

    name: str  # "max" or "mean"
    window: Pair
    strides: Pair
    before: Pair
    clips: bool = False  # a relu before it is part of it: the highest value of all is the highest of those above zero


@dataclass(frozen=True)
class Term(Operation):
    """A term of a sum: the first is copied, and the others are added to it. A relu of no sum is a single term."""

    adds: bool
    clips: bool = False  # a relu follows, which is part of it


@dataclass(frozen=True)
class Padding(Operation):
    """An image among zeros."""

    before: Pair


@dataclass
class Network:
    """A network, with its loss and its optimizer, by the names of `lottery.sparse.kernels`.

    The first tensor is the example, and the last operation writes the outputs.
    """

    tensors: list[Tensor] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    loss: str = ""
    threshold: float = 0.0  # of an output that means the second class of two
    has_accuracy: bool = False
    optimizer: str = ""

    @property
    def linear(self) -> list[Linear]:
        """The operations with prunable weights."""
        return [operation for operation in self.operations if isinstance(operation, Linear)]

    @property
    def biases_without_effect(self) -> list[str]:
        """The biases of outputs that are only normalised, which takes them off: their gradients are rounding."""
        return [layer.bias for layer in self.linear if layer.bias and self._is_only_normalised(layer.target)]

    def _is_only_normalised(self, tensor: int) -> bool:
        return bool(self.readers(tensor)) and all(
            isinstance(reader, Moments)
            or (isinstance(reader, Term) and not reader.clips and self._is_only_normalised(reader.target))
            for reader in self.readers(tensor)
        )

    def readers(self, tensor: int) -> list[Operation]:
        """The operations that read a tensor."""
        return [operation for operation in self.operations if operation.source == tensor]

    @property
    def of_images(self) -> bool:
        """True if it has convolutions."""
        return any(operation.kind != "dense" for operation in self.linear)

    @property
    def num_normalised(self) -> int:
        """The number of values of an example that batch normalisation writes."""
        return sum(math.prod(self.tensors[each.target]) for each in self.operations if isinstance(each, Normalisation))

    def clip(self) -> None:
        """Make each relu part of an operation before it, if nothing else reads what that writes, or else a term.

        A normalisation or a sum clips gradients, too. After a layer with weights, what reads the results of the relu
        does: the next layer with weights, or max pooling, of which the whole relu then is a part.
        """
        for relu in [each for each in self.operations if isinstance(each, Activation) and each.name == "relu"]:
            numbers = [number for number, each in enumerate(self.operations) if each.target == relu.source]
            last = self.operations[numbers[-1]] if numbers else None
            is_only = self.readers(relu.source) == [relu]
            follows_layer = is_only and isinstance(last, Linear)
            readers = self.readers(relu.target)
            reader: Any = readers[0] if len(readers) == 1 else None
            if follows_layer and isinstance(reader, Pooling) and reader.name == "max":
                self._replace(reader, source=relu.source, clips=True)
                self.operations.remove(relu)
            elif follows_layer and isinstance(reader, Linear):
                self._replace(last, target=relu.target, clips=True)
                self._replace(reader, source_clips=True)
                self.operations.remove(relu)
            elif is_only and isinstance(last, (Moments, Term)):
                clipping = numbers if isinstance(last, Moments) else numbers[-1:]  # both halves, or the last term
                for number in numbers:
                    before: Any = self.operations[number]
                    self.operations[number] = replace(before, target=relu.target, clips=number in clipping)
                self.operations.remove(relu)
            else:
                place = self.operations.index(relu)
                self.operations[place] = Term(relu.source, relu.target, adds=False, clips=True)

    def _replace(self, operation: Any, **settings: Any) -> None:
        self.operations[self.operations.index(operation)] = replace(operation, **settings)

    def new(self, shape: tuple[int, ...]) -> int:
        """Add a tensor of a shape, and return its number."""
        self.tensors.append(Tensor(*_as_image(shape)))
        return len(self.tensors) - 1


def _as_image(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1,) * (3 - len(shape)) + shape


def refuse_shared_cache() -> None:
    """Raise `LotteryError` if others may write to the folder of ``NUMBA_CACHE_DIR``, of which numba runs the files."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if not chosen:
        return
    folder = Path(chosen)
    with files.readable_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # before anybody else makes it
        folders = [folder, *(path for path in folder.iterdir() if path.is_dir())]
        shared = [path for path in folders if files.others_may_write(path)]
    if shared:
        raise LotteryError(
            f"NUMBA_CACHE_DIR must be a folder that only you can write to, because numba runs the code in it. Others "
            f"can write to {str(shared[0])!r}. Choose another folder, or run: chmod go-w {shared[0]}"
        )


def read(model: Any) -> Network:
    """Read a compiled model, without enforcement, or raise `Obstacle` if the engine cannot train it."""
    for step in ("train_step", "test_step", "call", "compute_loss"):
        if not is_keras(getattr(type(model), step)) or step in vars(model):
            raise Obstacle(f"the model has its own {step}")
    in_order = calls(model)
    refuse_shared_cache()
    from lottery.sparse import kernels  # imports numba, which takes half a second

    reader = _Reader(model, kernels)
    for call in in_order:
        reader.read(call)
    network = reader.network
    last = network.operations[-1]
    if len(model.output_shape) != 2 or network.tensors[last.target][:2] != (1, 1):
        raise Obstacle("the outputs are not vectors")
    activation = last.name if isinstance(last, Activation) else "linear"
    network.loss, left, network.threshold = _loss(model, activation, kernels)
    if left != activation:  # the loss is of what goes into it
        network.operations.pop()
    if any(isinstance(made, Activation) and made.name == "softmax" for made in network.operations):
        raise Obstacle("a softmax is not the last layer")
    network.has_accuracy = _has_accuracy(model, network.loss)
    network.optimizer = _optimizer(model.optimizer, kernels)
    network.clip()
    return network


def calls(model: Any) -> list[graph.LayerCall]:
    """List the calls of a model's layers; raise `Obstacle` if a layer is not known, or is called twice."""
    if not graph.is_plain(model) or len(model.inputs) != 1 or len(model.outputs) != 1:
        raise Obstacle("the model is not a graph of layers from one input to one output")
    found, layers = graph.calls(model), []
    for call in found:
        layer, name = call.layer, graph.class_name(call.layer)
        is_known = name in _READ or graph.facts_of(name).keeps_order
        _refuse(layer, {f"is a layer of type {type(layer).__name__}": not is_known})
        _refuse(layer, {"is called more than once": any(layer is other for other in layers)})
        _check_call(call)
        layers.append(layer)
    for layer in model.layers:
        # In tf_keras (2.21), a loss or a metric that was added to the model is a layer that leads to no output.
        _refuse(layer, {f"is a layer of type {type(layer).__name__}": not any(layer is other for other in layers)})
    if getattr(model, "_callable_losses", None):  # of tf_keras, too
        raise Obstacle("the model has a loss of its own")
    if not any(type(layer).__name__ == "Dense" or hasattr(layer, "kernel_size") for layer in layers):
        raise Obstacle("the model has no dense layer and no convolution")
    return found


def _refuse(layer: Any, reasons: Mapping[str, Any]) -> None:
    """Raise `Obstacle` with the first of the reasons that holds of a layer."""
    for why, holds in reasons.items():
        if holds:
            raise Obstacle(f"{weights.plain_name(type(layer).__name__, layer.name)} {why}")


def _check_call(call: graph.LayerCall) -> None:
    """Raise `Obstacle` if a layer of any class has what the engine does not compute."""
    layer = call.layer
    if not call.inputs:  # an InputLayer, to whose type Keras casts the examples
        kind = getattr(call.outputs[0].dtype, "name", call.outputs[0].dtype)  # of tf_keras, or its name in Keras 3
        _refuse(layer, {f"takes examples of type {kind}": kind not in ("float32", "float64")})
        return
    _, *others = call.arguments.items()  # the first is the input
    given = [name for name, value in others if value is not None]
    # Of tf_keras: the losses of regularisers, which are made with the variables, and of `add_loss`.
    of_regularisers = [name for name, value in vars(layer).items() if name.endswith("_regularizer") and value]
    reasons = {
        f"computes in {layer.compute_dtype}": str(layer.compute_dtype) != "float32",
        f"is called with the argument {''.join(given[:1])}": given,
        "has channels first": getattr(layer, "data_format", None) not in (None, "channels_last"),
        "has a regulariser of its outputs": getattr(layer, "activity_regularizer", None) is not None,
        # Keras 3 (3.15) and tf_keras (2.21) ask the variable, whatever the layer says.
        "has a constraint": any(getattr(variable, "constraint", None) is not None for variable in layer.variables),
        "has a loss of its own, or a regulariser that came after its variables": (
            len(getattr(layer, "_callable_losses", of_regularisers)) != len(of_regularisers)
        ),
    }
    _refuse(layer, reasons)


class _Reader:
    """Reads a model call by call."""

    def __init__(self, model: Any, kernels: Any) -> None:
        self.network, self.kernels = Network(), kernels
        self.names = {id(variable): name for name, variable in weights.variables(model).items()}
        # The tensors that those of Keras are, which may be of another shape, but have their entries in the same order.
        # The example is None, until the first layer that computes says how it is read.
        self._tensors: dict[int, int | None] = {}

    def read(self, call: graph.LayerCall) -> None:
        name, shape = graph.class_name(call.layer), tuple(call.outputs[0].shape[1:])
        _refuse(call.layer, {"has outputs of no fixed size": None in shape})
        tensor = None
        if name in _READ:
            tensor = _READ[name](self, call, shape)
        elif call.inputs:
            tensor = self._tensors[id(call.inputs[0])]
        self._tensors[id(call.outputs[0])] = tensor

    def image(self, call: graph.LayerCall, place: int = 0) -> int:
        """Return the tensor that a call reads in its own shape."""
        number = self.vector(call, place)
        is_reshaped = _as_image(tuple(call.inputs[place].shape[1:])) != self.network.tensors[number]
        _refuse(call.layer, {"takes the entries of another layer in another shape": is_reshaped})
        return number

    def activated(self, layer: Any, source: int) -> int:
        """Add the activation of a layer to its outputs, if it has one."""
        name = getattr(layer.activation, "__name__", type(layer.activation).__name__)
        # One function with two names: tf_keras gives the first (2.21), Keras the second (3.15).
        name = {"swish": "silu"}.get(name, name)
        is_known = name in (*self.kernels.ACTIVATIONS, "relu", "softmax") and is_keras(layer.activation)
        _refuse(layer, {f"has the activation {name}": not is_known})
        return self.activation(name, source)

    def activation(self, name: str, source: int) -> int:
        """Add an activation, if it is any."""
        if name == "linear":
            return source
        return self.add(Activation, source, self.network.tensors[source], name=name)

    def add(self, operation: type[Operation], source: int, made: tuple[int, ...], **settings: Any) -> int:
        """Add an operation, and return the tensor that it makes, of a shape."""
        target = self.network.new(made)
        self.network.operations.append(operation(source, target, **settings))
        return target

    def vector(self, call: graph.LayerCall, place: int = 0) -> int:
        """Return the tensor that a call reads, whatever shape the call takes its entries in."""
        tensor, shape = self._tensors[id(call.inputs[place])], tuple(call.inputs[place].shape[1:])
        if tensor is not None:
            return tensor
        if self.network.tensors:  # others read the example in the shape that they found
            return 0
        _refuse(call.layer, {f"takes inputs of {len(shape)} dimensions": len(shape) not in (1, 3)})
        return self.network.new(shape)


def _dense(reader: _Reader, call: graph.LayerCall, shape: tuple[int, ...]) -> int:
    layer = call.layer
    num_axes = len(layer.input.shape) - 1
    _refuse(layer, {f"takes inputs of {num_axes} dimensions": num_axes != 1})
    own = _weights(layer, reader, layer.kernel, "kernel")
    return reader.activated(layer, reader.add(Linear, reader.vector(call), shape, kind="dense", **own))


def _convolution(reader: _Reader, call: graph.LayerCall, shape: tuple[int, ...]) -> int:
    layer, source = call.layer, reader.image(call)
    is_depthwise = graph.class_name(layer) == "DepthwiseConv2D"
    kernel = getattr(layer, "kernel", None)
    if is_depthwise and kernel is None:
        kernel = layer.depthwise_kernel  # of tf_keras
    has_groups = getattr(layer, "groups", 1) != 1
    _refuse(layer, {"has dilation or groups": tuple(layer.dilation_rate) != (1, 1) or has_groups})
    own = _weights(layer, reader, kernel, "depthwise" if is_depthwise else "kernel")
    strides = (layer.strides[0], layer.strides[1])
    before = _before(layer.padding, reader.network.tensors[source], layer.kernel_size, strides, shape)
    target = reader.add(
        Linear, source, shape, kind="depthwise" if is_depthwise else "convolution", strides=strides, before=before,
        positions=shape[0] * shape[1], **own,
    )  # fmt: skip
    return reader.activated(layer, target)


def _weights(layer: Any, reader: _Reader, kernel: Any, word: str) -> dict[str, Any]:
    own = _regulariser(layer, kernel, word)
    is_known = own is None or (is_keras(type(own)) and type(own).__name__ in ("L1", "L2", "L1L2"))
    all_trained = len(layer.variables) == len(layer.trainable_variables) == 1 + layer.use_bias
    reasons = {
        "is frozen, or has other variables": not all_trained,
        "has a regulariser of its bias": _regulariser(layer, layer.bias, "bias") is not None,
        f"has the regulariser {type(own).__name__}": not is_known,
    }
    _refuse(layer, reasons)
    return {
        "kernel": reader.names[id(kernel)],
        "shape": tuple(kernel.shape),
        "bias": reader.names[id(layer.bias)] if layer.use_bias else None,
        "l1": float(getattr(own, "l1", 0.0)),
        "l2": float(getattr(own, "l2", 0.0)),
    }


def _regulariser(layer: Any, variable: Any, word: str) -> Any:
    """Return the regulariser of a variable: Keras 3 (3.15) asks the variable, tf_keras (2.21) the layer."""
    return getattr(variable, "regularizer", getattr(layer, f"{word}_regularizer", None))


def _before(padding: str, tensor: Tensor, window: Any, strides: Pair, shape: tuple[int, ...]) -> Pair:
    """Return the rows and columns of zeros before an image."""
    if padding == "valid":
        return 0, 0
    top, left = (
        max((out - 1) * step + size - length, 0) // 2
        for out, step, size, length in zip(shape, strides, window, tensor, strict=False)
    )
    return top, left


def _activation(reader: _Reader, call: graph.LayerCall, shape: tuple[int, ...]) -> int:
    layer, source = call.layer, reader.vector(call)
    if graph.class_name(layer) == "Activation":
        return reader.activated(layer, source)
    settings = layer.get_config()
    is_plain = (
        settings.get("max_value") is None and not settings.get("negative_slope") and not settings.get("threshold")
    )
    _refuse(layer, {"has a slope, a threshold or a limit": not is_plain})
    return reader.activation("relu", source)


def _normalisation(reader: _Reader, call: graph.LayerCall, shape: tuple[int, ...]) -> int:
    layer = call.layer
    axis = layer.axis[0] if isinstance(layer.axis, (list, tuple)) else layer.axis
    regularisers = [_regulariser(layer, getattr(layer, word), word) for word in ("gamma", "beta")]
    reasons = {
        "normalises along another axis than the last": axis not in (-1, len(shape)),
        # One that is frozen normalises by its moving statistics, also if it has no variables to train.
        "is frozen": not layer.trainable or len(layer.trainable_variables) != layer.scale + layer.center,
        "renormalises, or divides the batch": (
            getattr(layer, "renorm", False) or getattr(layer, "virtual_batch_size", None)
        ),
        "has a regulariser": any(own is not None for own in regularisers),
    }
    _refuse(layer, reasons)
    names, is_fused = reader.names, bool(getattr(layer, "fused", False))
    own = {
        "gamma": names[id(layer.gamma)] if layer.scale else None,
        "beta": names[id(layer.beta)] if layer.center else None,
        "mean": names[id(layer.moving_mean)],
        "variance": names[id(layer.moving_variance)],
        "momentum": float(layer.momentum),
        "epsilon": max(float(layer.epsilon), LEAST_EPSILON) if is_fused else float(layer.epsilon),
        "is_unbiased": is_fused,
    }
    source = reader.image(call)
    target = reader.add(Moments, source, shape, **own)
    reader.network.operations.append(Normalisation(source, target, **own))
    return target


def _pooling(reader: _Reader, call: graph.LayerCall, shape: tuple[int, ...]) -> int:
    layer, source, name = call.layer, reader.image(call), graph.class_name(call.layer)
    tensor = reader.network.tensors[source]
    if name.startswith("Global"):
        window = strides = (tensor.height, tensor.width)
        before, shape = (0, 0), (1, 1, tensor.channels)
    else:
        window, strides = (layer.pool_size[0], layer.pool_size[1]), (layer.strides[0], layer.strides[1])
        before = _before(layer.padding, tensor, window, strides, shape)
    kind = "max" if "Max" in name else "mean"
    return reader.add(Pooling, source, shape, name=kind, window=window, strides=strides, before=before)


def _sum(reader: _Reader, call: graph.LayerCall, shape: tuple[int, ...]) -> int:
    first, *others = (reader.image(call, place) for place in range(len(call.inputs)))
    target, tensors = reader.add(Term, first, shape, adds=False), reader.network.tensors
    for other in others:
        shown = tuple(tensors[other])
        _refuse(call.layer, {f"adds tensors of different shapes, {shown}": tensors[other] != tensors[first]})
        reader.network.operations.append(Term(other, target, adds=True))
    return target


def _padding(reader: _Reader, call: graph.LayerCall, shape: tuple[int, ...]) -> int:
    layer = call.layer
    (top, _), (left, _) = layer.padding
    return reader.add(Padding, reader.image(call), shape, before=(top, left))


# By the class of a layer, a function that adds its operations and returns the tensor of its outputs.
_READ: dict[str, Callable[[_Reader, graph.LayerCall, tuple[int, ...]], int]] = {
    "Dense": _dense,
    **dict.fromkeys(("Conv2D", "DepthwiseConv2D"), _convolution),
    **dict.fromkeys(("Activation", "ReLU"), _activation),
    "BatchNormalization": _normalisation,
    **dict.fromkeys(("MaxPooling2D", "AveragePooling2D", "GlobalMaxPooling2D", "GlobalAveragePooling2D"), _pooling),
    "Add": _sum,
    "ZeroPadding2D": _padding,
}


def _loss(model: Any, activation: str, kernels: Any) -> tuple[str, str, float]:
    """Name the loss, the last activation that is left to compute, and the threshold between two classes."""
    name, of_logits = _compiled_loss(model, kernels)
    is_binary = name == "binary_crossentropy"
    if name == "mean_squared_error" or of_logits:
        if activation == "softmax" or (is_binary and activation == "sigmoid"):
            raise Obstacle(f"the loss {name} does not take the outputs of a {activation} as probabilities")
        return name, activation, 0.5
    if activation == ("sigmoid" if is_binary else "softmax"):
        # Keras, too, then computes the loss from what goes into the activation, if the loss gets what comes out of it.
        if graph.facts_of(graph.class_name(graph.calls(model)[-1].layer)).keeps_order:
            raise Obstacle(f"a layer changes the shape of what comes out of the {activation}")
        return name, "linear", 0.0
    if is_binary and activation != "softmax":
        library = "" if keras_of(model).__name__ == "keras" else ", tf_keras"
        return f"{name} of probabilities{library}", activation, 0.5
    raise Obstacle(f"the loss takes the outputs of a layer with {activation} as probabilities")


def _compiled_loss(model: Any, kernels: Any) -> tuple[str, bool]:
    """Name the loss that a model was compiled with, and check if it takes logits."""
    own, _ = loss_of(model)
    if isinstance(own, str):
        if own.lower() in ("crossentropy", "ce"):  # Keras 3.15 chooses one of three by the shapes of a batch
            raise Obstacle(f"the loss is {own}")
        own = keras_of(model).losses.get(own)
    function = getattr(own, "fn", own)
    name = getattr(function, "__name__", type(own).__name__)
    is_own = hasattr(own, "fn") and not is_keras(type(own))  # a class that derives from Keras', and may do anything
    if is_own or not is_keras(function) or name not in kernels.LOSSES:
        raise Obstacle(f"the loss is {name}")
    settings = own.get_config() if hasattr(own, "get_config") else {}
    settings["dtype"] = getattr(own, "dtype", "float32")  # of Keras 3, which leaves it out of the configuration
    for key, known in OF_LOSSES.items():
        if settings.get(key, known[0]) not in known:
            raise Obstacle(f"the loss has {key} {settings[key]}")
    # What a model was compiled with is held by private parts: `_compile_loss` in Keras 3.15, with `_user_loss_weights`
    # in both libraries, and `_compile_metrics` below.
    holder = getattr(model, "_compile_loss", None) or getattr(model, "compiled_loss", None)
    if getattr(holder, "_user_loss_weights", None) is not None:
        raise Obstacle("the loss has weights")
    return name, bool(settings.get("from_logits"))


def _has_accuracy(model: Any, loss: str) -> bool:
    """Return True if the model measures accuracy; raise `Obstacle` if it measures something else."""
    holder = getattr(model, "_compile_metrics", None) or getattr(model, "compiled_metrics", None)
    names = [metric.name for metric in getattr(holder, "metrics", None) or [] if metric is not None]
    names += [name for name in model.metrics_names if name not in ("loss", "compile_metrics")]
    # Keras compares classes where there are several outputs, and one output with a threshold, whatever the loss.
    fits = loss != "mean_squared_error" and loss.startswith("binary") == (model.output_shape[-1] == 1)
    if set(names) - {"accuracy", "acc"} or (names and not fits):
        raise Obstacle(f"the model measures {', '.join(dict.fromkeys(names))}")
    chosen = [getattr(holder, name, None) for name in ("_user_metrics", "_user_weighted_metrics")]
    for metric in tf.nest.flatten(chosen):
        if metric not in (None, "accuracy", "acc") and not _is_plain(metric, loss):
            raise Obstacle(f"the model measures {getattr(metric, 'name', metric)} by {type(metric).__name__}")
    return bool(names)


def _is_plain(metric: Any, loss: str) -> bool:
    """Check if a metric is the accuracy that Keras takes for the word beside a loss, with its usual settings."""
    # Named after the loss: categorical_crossentropy goes with CategoricalAccuracy.
    kind = loss.partition(" ")[0].removesuffix("_crossentropy").title().replace("_", "")
    if not is_keras(type(metric)) or type(metric).__name__ != f"{kind}Accuracy":
        return False
    return metric.get_config().get("threshold", 0.5) == 0.5


def _optimizer(own: Any, kernels: Any) -> str:
    name = type(own).__name__
    if name not in kernels.OPTIMIZERS or not is_keras(type(own)) or optimizers.plain(own) != [own]:
        raise Obstacle(f"the optimizer is {name}")
    if callable(rate := optimizers.rate(own)) and not hasattr(rate, "get_config"):
        raise Obstacle("the learning rate is a function without a step")
    for key, value in OF_OPTIMIZERS.items():
        if getattr(own, key, value) != value:
            raise Obstacle(f"the optimizer has {key} {getattr(own, key)}")
    if optimizers.leaves_out_of_decay(own):
        raise Obstacle("the optimizer leaves weights out of its decay")
    return name
