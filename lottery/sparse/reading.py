"""What the sparse engine reads from a compiled Keras model, or why it cannot train it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lottery import weights
from lottery.models.library import is_keras, keras_of
from lottery.sparse import functions
from lottery.sparse.kernels import MOST_LAYERS

IDLE = ("InputLayer", "Flatten", "Reshape")  # layers that leave the order of an example's numbers as it is
# Classes of layers that apply an activation, and with which settings.
ACTIVATION_LAYERS = {
    "ReLU": ("relu", {"max_value": None, "negative_slope": 0.0, "threshold": 0.0}),
    "LeakyReLU": ("leaky_relu", {"negative_slope": 0.2}),
    "ELU": ("elu", {"alpha": 1.0}),
}
# Settings of optimizers that the engine does not know, with the values that they have where they are not used.
UNUSED = {
    "clipnorm": None, "clipvalue": None, "global_clipnorm": None, "use_ema": False, "amsgrad": False,
    "gradient_accumulation_steps": None, "loss_scale_factor": None,
}  # fmt: skip


# Settings of losses, with the values that the engine knows; a name of its own is none.
USUAL = {
    "label_smoothing": (0, 0.0), "ignore_class": (None,), "axis": (-1,),
    "reduction": ("sum_over_batch_size", "mean_with_sample_weight", "auto"),
}  # fmt: skip


class Obstacle(Exception):
    """Why a model cannot be trained by the sparse engine, as the end of a sentence."""


@dataclass(frozen=True)
class Layer:
    """A dense layer."""

    kernel: str  # names of its variables
    bias: str | None
    activation: str
    l1: float
    l2: float


@dataclass(frozen=True)
class Chain:
    """A chain of dense layers, with its loss and its optimizer, by the names of `lottery.sparse.functions`."""

    layers: tuple[Layer, ...]
    loss: str
    threshold: float  # of an output that means the second class of two
    has_accuracy: bool
    optimizer: str


def read(model: Any) -> Chain:
    """Read a compiled model.

    Raises:
        Obstacle: The engine cannot train the model.
    """
    library = keras_of(model)
    for step in ("train_step", "test_step", "call", "compute_loss"):
        if not is_keras(getattr(type(model), step)):
            raise Obstacle(f"the model has its own {step}")
    layers = _layers(model)
    loss, activation, threshold = _loss(model, layers[-1].activation)
    layers[-1] = Layer(**vars(layers[-1]) | {"activation": activation})
    return Chain(tuple(layers), loss, threshold, _has_accuracy(model, loss), _optimizer(model, library))


def _layers(model: Any) -> list[Layer]:
    names = {id(value): name for name, value in weights.variables(model).items()}
    found: list[Layer] = []
    for layer in _in_order(model):
        kind = type(layer).__name__
        if not is_keras(type(layer)):
            raise Obstacle(f"{layer.name} is a layer of your own")
        if kind == "Dense":
            found.append(_dense(layer, names))
        elif kind in ("Activation", *ACTIVATION_LAYERS):
            if not found or found[-1].activation != "linear":
                raise Obstacle(f"{layer.name} follows no dense layer without an activation")
            found[-1] = Layer(**vars(found[-1]) | {"activation": _activation_layer(layer)})
        elif kind not in IDLE:
            raise Obstacle(f"{layer.name} is a layer of type {kind}")
    if not found:
        raise Obstacle("the model has no dense layer")
    if len(found) > MOST_LAYERS:
        raise Obstacle(f"the model has {len(found)} dense layers, and {MOST_LAYERS} are allowed")
    return found


def _in_order(model: Any) -> Iterator[Any]:
    """Go through the layers of a chain; raise `Obstacle` where it branches."""
    for layer in model.layers:
        if hasattr(layer, "layers"):
            yield from _in_order(layer)
            continue
        if type(layer).__name__ != "InputLayer" and len(getattr(layer, "_inbound_nodes", [None])) != 1:
            raise Obstacle(f"{layer.name} is used more than once")
        yield layer
    if type(model).__name__ == "Sequential":
        return
    if type(model).__name__ not in ("Functional", "Model") or len(model.inputs) != 1 or len(model.outputs) != 1:
        raise Obstacle("the model is no chain of layers")
    for before, after in zip(model.layers, model.layers[1:], strict=False):
        if after.input is not before.output:
            raise Obstacle("the model is no chain of layers")


def _dense(layer: Any, names: dict[int, str]) -> Layer:
    if not (layer.trainable and len(layer.variables) == 1 + layer.use_bias):
        raise Obstacle(f"{layer.name} is frozen, or holds more than a kernel and a bias")
    if len(layer.input.shape) != 2:
        raise Obstacle(f"{layer.name} takes inputs of {len(layer.input.shape) - 1} dimensions")
    if "float32" not in str(layer.compute_dtype) or "float32" not in str(layer.kernel.dtype):
        raise Obstacle(f"{layer.name} computes in {layer.compute_dtype}")
    others = layer.kernel_constraint, layer.bias_constraint, layer.bias_regularizer, layer.activity_regularizer
    if any(each is not None for each in others):
        raise Obstacle(f"{layer.name} has a constraint, or a regulariser of its bias or its outputs")
    bias = names[id(layer.bias)] if layer.use_bias else None
    return Layer(names[id(layer.kernel)], bias, _activation(layer), *_penalty(layer))


def _activation(layer: Any) -> str:
    name = getattr(layer.activation, "__name__", "")
    name = {"swish": "silu"}.get(name, name)
    if name not in (*functions.ACTIVATIONS, "softmax") or not is_keras(layer.activation):
        raise Obstacle(f"{layer.name} has the activation {name or layer.activation!r}")
    return name


def _activation_layer(layer: Any) -> str:
    kind = type(layer).__name__
    if kind == "Activation":
        return _activation(layer)
    name, expected = ACTIVATION_LAYERS[kind]
    config = layer.get_config()
    for key, value in expected.items():
        received = config.get(key, config.get({"negative_slope": "alpha"}.get(key, key), value))
        if received != value and not (received is not None and value is not None and abs(received - value) < 1e-6):
            raise Obstacle(f"{layer.name} has {key} {received}")
    return name


def _penalty(layer: Any) -> tuple[float, float]:
    own = layer.kernel_regularizer
    if own is None:
        return 0.0, 0.0
    if not is_keras(type(own)) or type(own).__name__ not in ("L1", "L2", "L1L2"):
        raise Obstacle(f"{layer.name} has the regulariser {type(own).__name__}")
    return float(getattr(own, "l1", 0.0)), float(getattr(own, "l2", 0.0))


def _loss(model: Any, activation: str) -> tuple[str, str, float]:
    """Name the loss, the last activation that is left to compute, and the threshold between two classes."""
    own = model.loss[0] if isinstance(model.loss, (list, tuple)) and len(model.loss) == 1 else model.loss
    settings = own.get_config() if hasattr(own, "get_config") else {}
    known = isinstance(own, str) or is_keras(type(own) if hasattr(own, "get_config") else own)
    name = own if isinstance(own, str) else getattr(own, "name", None) or getattr(own, "__name__", type(own).__name__)
    name = {"mse": "mean_squared_error"}.get(str(name), str(name))
    if not known or name not in functions.LOSSES:
        raise Obstacle(f"the loss is {name}")
    for key, usual in USUAL.items():
        if settings.get(key, usual[0]) not in usual:
            raise Obstacle(f"the loss has {key} {settings[key]}")
    if getattr(getattr(model, "_compile_loss", None), "_user_loss_weights", None) is not None:
        raise Obstacle("the loss has weights")
    logits = bool(settings.get("from_logits", False))
    if name == "mean_squared_error":
        if activation == "softmax":
            raise Obstacle("the loss of a softmax is mean_squared_error")
        return name, activation, 0.5
    last = "sigmoid" if name == "binary_crossentropy" else "softmax"
    if logits and activation not in functions.ACTIVATIONS:
        raise Obstacle("the loss takes the outputs of a softmax for logits")
    if logits:
        return name, activation, 0.5
    if activation == last:  # Keras, too, then computes the loss from what goes into it
        return name, "linear", 0.0
    if name == "binary_crossentropy" and activation != "softmax":
        library = "" if keras_of(model).__name__ == "keras" else ", tf_keras"
        return f"{name} of probabilities{library}", activation, 0.5
    raise Obstacle(f"the loss takes the outputs of a layer with {activation} for probabilities")


def _has_accuracy(model: Any, loss: str) -> bool:
    """Return True if the model measures accuracy; raise `Obstacle` if it measures something else."""
    names = [name for name in model.metrics_names if name not in ("loss", "compile_metrics")]
    names = [*names, *(getattr(one, "name", "") for one in _compiled_metrics(model))]
    of_several = loss.startswith("binary") and model.output_shape[-1] > 1
    if set(names) - {"accuracy", "acc"} or (names and (loss == "mean_squared_error" or of_several)):
        raise Obstacle(f"the model measures {', '.join(dict.fromkeys(names))}")
    return bool(names)


def _compiled_metrics(model: Any) -> Sequence[Any]:
    holder = getattr(model, "_compile_metrics", None) or getattr(model, "compiled_metrics", None)
    return [one for one in getattr(holder, "metrics", None) or [] if one is not None]


def _optimizer(model: Any, library: Any) -> str:
    own = model.optimizer
    name = type(own).__name__
    if name not in functions.OPTIMIZERS or type(own) is not getattr(library.optimizers, name):
        raise Obstacle(f"the optimizer is {name}")
    for key, value in UNUSED.items():
        if getattr(own, key, value) != value:
            raise Obstacle(f"the optimizer has {key}")
    if any(getattr(own, f"_exclude_from_weight_decay{suffix}", None) for suffix in ("", "_pattern")):
        raise Obstacle("the optimizer leaves weights out of its decay")
    return name
