"""What the sparse engine reads from a compiled Keras model, or why it cannot train it."""

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lottery import files, weights
from lottery.errors import LotteryError
from lottery.models import graph, optimizers
from lottery.models.kerases import is_keras, keras_of

ACTIVATION_LAYERS = ("Activation", "ReLU")
# Settings of optimizers and of losses that the engine knows with these values only.
OF_OPTIMIZERS = {
    "clipnorm": None, "clipvalue": None, "global_clipnorm": None, "use_ema": False, "amsgrad": False,
    "gradient_accumulation_steps": None, "loss_scale_factor": None,
}  # fmt: skip
OF_LOSSES = {
    "label_smoothing": (0,), "ignore_class": (None,), "axis": (-1,),
    "reduction": ("sum_over_batch_size", "mean_with_sample_weight", "auto"),
}  # fmt: skip


class Obstacle(Exception):
    """Why a model cannot be trained by the sparse engine, as the end of a sentence."""


@dataclass(frozen=True)
class Layer:
    """A dense layer, with the names of its variables."""

    kernel: str
    size: int  # of the kernel
    bias: str | None
    activation: str
    l1: float
    l2: float


@dataclass(frozen=True)
class Chain:
    """A chain of dense layers, with its loss and its optimizer, by the names of `lottery.sparse.kernels`."""

    layers: tuple[Layer, ...]
    loss: str
    threshold: float  # of an output that means the second class of two
    has_accuracy: bool
    optimizer: str


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


def read(model: Any) -> Chain:
    """Read a compiled model, without enforcement.

    Raises:
        Obstacle: The engine cannot train the model.
    """
    for step in ("train_step", "test_step", "call", "compute_loss"):
        if not is_keras(getattr(type(model), step)):
            raise Obstacle(f"the model has its own {step}")
    in_order = layers(model)
    refuse_shared_cache()
    from lottery.sparse import kernels  # imports numba, which takes half a second

    names = {id(variable): name for name, variable in weights.variables(model).items()}
    found: list[Layer] = []
    for layer in in_order:
        name = graph.class_name(layer)
        if name == "Dense":
            found.append(_dense(layer, names, kernels))
        elif name in ACTIVATION_LAYERS:
            if not found or found[-1].activation != "linear":
                raise Obstacle(f"{weights.plain_name(layer)} follows no dense layer without an activation")
            if any(layer.get_config().get(key) for key in ("max_value", "negative_slope", "threshold")):
                raise Obstacle(f"{weights.plain_name(layer)} has a slope, a threshold or a limit")
            activation = "relu" if name == "ReLU" else _activation(layer, kernels)
            found[-1] = replace(found[-1], activation=activation)
    loss, last, threshold = _loss(model, found[-1].activation, kernels)
    found[-1] = replace(found[-1], activation=last)
    return Chain(tuple(found), loss, threshold, _has_accuracy(model, loss), _optimizer(model.optimizer, kernels))


def layers(model: Any) -> list[Any]:
    """List the layers of a chain of dense layers; raise `Obstacle` if it branches, or has a layer of another kind."""
    if not graph.is_plain(model) or len(model.inputs) != 1 or len(model.outputs) != 1:
        raise Obstacle("the model is no chain of layers")
    found: list[Any] = []
    for call in graph.calls(model):
        layer, name = call.layer, graph.class_name(call.layer)
        reshapes = name in graph.LAYERS and graph.LAYERS[name].keeps_order
        if name not in ("Dense", *ACTIVATION_LAYERS) and not reshapes:
            raise Obstacle(f"{weights.plain_name(layer)} is a layer of type {type(layer).__name__}")
        if len(call.inputs) > 1 or layer in found:
            raise Obstacle(f"{weights.plain_name(layer)} does not only follow the layer before it")
        found.append(layer)
    if not any(type(layer).__name__ == "Dense" for layer in found):
        raise Obstacle("the model has no dense layer")
    return found


def _dense(layer: Any, names: dict[int, str], kernels: Any) -> Layer:
    own = layer.kernel_regularizer
    others = layer.kernel_constraint, layer.bias_constraint, layer.bias_regularizer, layer.activity_regularizer
    why = ""
    if not layer.trainable or len(layer.variables) != 1 + layer.use_bias:
        why = "is frozen, or has other variables"
    elif len(layer.input.shape) != 2:
        why = f"takes inputs of {len(layer.input.shape) - 1} dimensions"
    elif str(layer.compute_dtype) != "float32":
        why = f"computes in {layer.compute_dtype}"
    elif any(part is not None for part in others):
        why = "has a constraint, or a regulariser of its bias or its outputs"
    elif own is not None and not (is_keras(type(own)) and type(own).__name__ in ("L1", "L2", "L1L2")):
        why = f"has the regulariser {type(own).__name__}"
    if why:
        raise Obstacle(f"{weights.plain_name(layer)} {why}")
    return Layer(
        kernel=names[id(layer.kernel)],
        size=math.prod(layer.kernel.shape),
        bias=names[id(layer.bias)] if layer.use_bias else None,
        activation=_activation(layer, kernels),
        l1=float(getattr(own, "l1", 0.0)),
        l2=float(getattr(own, "l2", 0.0)),
    )


def _activation(layer: Any, kernels: Any) -> str:
    name = getattr(layer.activation, "__name__", type(layer.activation).__name__)
    name = {"swish": "silu"}.get(name, name)
    if name not in (*kernels.ACTIVATIONS, "softmax") or not is_keras(layer.activation):
        raise Obstacle(f"{weights.plain_name(layer)} has the activation {name}")
    return name


def _loss(model: Any, activation: str, kernels: Any) -> tuple[str, str, float]:
    """Name the loss, the last activation that is left to compute, and the threshold between two classes."""
    compiled: Any = model.loss
    own: Any = compiled[0] if isinstance(compiled, (list, tuple)) and len(compiled) == 1 else compiled
    if isinstance(own, str):
        own = keras_of(model).losses.get(own)
    settings = own.get_config() if hasattr(own, "get_config") else {}
    function = getattr(own, "fn", own)
    name = getattr(function, "__name__", type(own).__name__)
    if not is_keras(function) or name not in kernels.LOSSES:
        raise Obstacle(f"the loss is {name}")
    for key, known in OF_LOSSES.items():
        if settings.get(key, known[0]) not in known:
            raise Obstacle(f"the loss has {key} {settings[key]}")
    # What a model was compiled with is held by private parts: `_compile_loss` in Keras 3.15, with `_user_loss_weights`
    # in both libraries, and `_compile_metrics` below.
    holder = getattr(model, "_compile_loss", None) or getattr(model, "compiled_loss", None)
    if getattr(holder, "_user_loss_weights", None) is not None:
        raise Obstacle("the loss has weights")
    if name == "mean_squared_error" or settings.get("from_logits"):
        if activation == "softmax":
            raise Obstacle(f"the loss {name} takes the outputs of a softmax for other than probabilities")
        return name, activation, 0.5
    if activation == ("sigmoid" if name == "binary_crossentropy" else "softmax"):
        return name, "linear", 0.0  # Keras, too, then computes the loss from what goes into the activation
    if name == "binary_crossentropy" and activation != "softmax":
        library = "" if keras_of(model).__name__ == "keras" else ", tf_keras"
        return f"{name} of probabilities{library}", activation, 0.5
    raise Obstacle(f"the loss takes the outputs of a layer with {activation} for probabilities")


def _has_accuracy(model: Any, loss: str) -> bool:
    """Return True if the model measures accuracy; raise `Obstacle` if it measures something else."""
    holder = getattr(model, "_compile_metrics", None) or getattr(model, "compiled_metrics", None)
    names = [metric.name for metric in getattr(holder, "metrics", None) or [] if metric is not None]
    names += [name for name in model.metrics_names if name not in ("loss", "compile_metrics")]
    of_several = loss.startswith("binary") and model.output_shape[-1] > 1
    if set(names) - {"accuracy", "acc"} or (names and (loss == "mean_squared_error" or of_several)):
        raise Obstacle(f"the model measures {', '.join(dict.fromkeys(names))}")
    return bool(names)


def _optimizer(own: Any, kernels: Any) -> str:
    name = type(own).__name__
    if name not in kernels.OPTIMIZERS or not is_keras(type(own)) or optimizers.plain(own) != [own]:
        raise Obstacle(f"the optimizer is {name}")
    for key, value in OF_OPTIMIZERS.items():
        if getattr(own, key, value) != value:
            raise Obstacle(f"the optimizer has {key} {getattr(own, key)}")
    if optimizers.leaves_out_of_decay(own):
        raise Obstacle("the optimizer leaves weights out of its decay")
    return name
