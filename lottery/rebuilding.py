"""Make layers of a chain anew: smaller, in double precision, or as nothing but the paths that their weights are."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from lottery import compiling
from lottery.chains import ENTRYWISE, FLAT, SPATIAL, START, WEIGHTED, Link, library

# Layers that do nothing at inference, by part of the name of their class.
_NOTHING = ("Dropout", "GaussianNoise", "ActivityRegularization", "Identity")


def assemble(model: Any, shape: tuple[int, ...], layers: Sequence[tuple[Any, Sequence[np.ndarray]]]) -> Any:
    """A new model of the same library, kind and name, out of new layers.

    Args:
        model: The model that it is made from.
        shape: Shape of one example.
        layers: New layers, in order, with the values of their weights.

    Returns:
        The model, not compiled.

    Raises:
        LotteryError: Keras cannot build it.
    """
    keras = compiling.keras_of(model)
    given = model.inputs[0]
    with compiling.evaluating(f"Keras cannot build the model {model.name!r} anew from its layers"):
        inputs = keras.Input(shape, dtype=getattr(given.dtype, "name", given.dtype), name=given._keras_history[0].name)
        if isinstance(model, keras.Sequential):
            new = keras.Sequential([inputs, *(layer for layer, _ in layers)], name=model.name)
        else:
            x = inputs
            for layer, _ in layers:
                x = layer(x)
            new = keras.Model(inputs, x, name=model.name)
        for layer, values in layers:
            _set(layer, values)
    return new


def copy_of(layer: Any, **changes: Any) -> Any:
    """A new layer like another, with some of its settings changed; without its weights, and with its activation."""
    with warnings.catch_warnings():
        # The activation is handed on as it is, and never loaded from what Keras writes down of it.
        warnings.filterwarnings("ignore", "The object being serialized includes a `lambda`", UserWarning)
        config = dict(layer.get_config())
    config.pop("batch_input_shape", None)  # tf_keras' first layer may bring the shape of the input
    if "activation" in config:
        config["activation"] = "linear"
    with compiling.evaluating(f"Keras cannot make the layer {layer.name!r} anew from its settings"):
        new = type(layer).from_config(config | changes)
    if "activation" in config and "activation" not in changes:
        new.activation = layer.activation
    return new


def at_inference(link: Link, x: Any) -> Any:
    """What a layer without a kernel makes of double-precision values, in double precision where Keras can."""
    import tensorflow as tf

    if any(name in type(link.layer).__name__ for name in _NOTHING):
        return x
    # TensorFlow has these for a CPU in single precision only.
    dtype = "float32" if type(link.layer).__name__.endswith("Pooling3D") else "float64"
    copy = copy_of(link.layer, dtype=dtype)
    copy.build((1, *link.before))
    _set(copy, link.layer.get_weights())
    return tf.cast(copy(tf.cast(x, dtype), training=False), "float64")


def activated(link: Link, x: Any) -> Any:
    """What the activation within a layer makes of values; `x` itself where there is none."""
    import tensorflow as tf

    activation = getattr(link.layer, "activation", None)
    return x if activation is None else tf.cast(activation(tf.constant(x, "float64")), "float64")


def unreached(links: Sequence[Link]) -> np.ndarray:
    """The entries of an example from which no path of weights leads to an output.

    It is a derivative: that of the sum of all outputs of a network of the same layers, in which every weight that is
    not zero is one, every pooling is a mean, and nothing else is left. All terms are positive, so nothing cancels.

    Args:
        links: A chain.

    Returns:
        A boolean array of the shape of one example, True where no weight reads the entry.
    """
    import tensorflow as tf

    start = tf.ones((1, *links[0].before), "float64")
    with tf.GradientTape() as tape:
        tape.watch(start)
        x = start
        for link in links:
            x = _structure(link, x)
        total = tf.reduce_sum(x)
    reached = tape.gradient(total, start)
    return np.asarray(reached)[0] == 0


def flat_settings(link: Link, inputs: np.ndarray) -> tuple[dict[str, Any], list[np.ndarray]] | None:
    """What a layer that acts on each entry needs in order to act on a flat choice of entries.

    Args:
        link: A link before the first weights.
        inputs: Flat positions of the entries in the shape that the layer takes now.

    Returns:
        The settings that change and the weights, or None if the layer needs more than the entry itself.
    """
    layer, name = link.layer, type(link.layer).__name__

    def chosen(value: Any) -> np.ndarray:
        return np.broadcast_to(np.asarray(value), (1, *link.before)).reshape(-1)[inputs]

    if name == "Normalization":
        return {"axis": -1, "mean": chosen(layer.mean).tolist(), "variance": chosen(layer.variance).tolist()}, []
    if link.kind != ENTRYWISE or link.mixes or name.startswith("SpatialDropout"):
        return None
    changes: dict[str, Any] = {}
    if name == "Rescaling":
        ends = {"scale": layer.scale, "offset": layer.offset}
        changes = {key: chosen(value).tolist() for key, value in ends.items() if np.ndim(value)}
    if name == "BatchNormalization":
        changes = {"axis": -1}
    if name == "PReLU":
        changes = {"shared_axes": None}
    return changes, [chosen(value) for value in layer.get_weights()]


def _structure(link: Link, x: Any) -> Any:
    import tensorflow as tf

    layer, name = link.layer, type(link.layer).__name__
    if link.kind == WEIGHTED:
        copy = copy_of(layer, dtype="float64", activation="linear", use_bias=False)
        copy.build((1, *link.before))
        copy.set_weights([(layer.get_weights()[0] != 0).astype(np.float64)])
        x = copy(x)
    elif link.kind == SPATIAL and "Max" in name:
        mean = getattr(library(layer).layers, name.replace("Max", "Average"))
        settings = {key: value for key, value in layer.get_config().items() if key != "batch_input_shape"}
        dtype = "float32" if name.endswith("3D") else "float64"
        x = tf.cast(mean.from_config(settings | {"dtype": dtype})(tf.cast(x, dtype)), "float64")
    elif link.kind in (SPATIAL, FLAT):
        x = at_inference(link, x)
    elif link.kind == START and name == "Reshape":
        x = tf.reshape(x, (1, *link.after))
    return tf.ones_like(x) * tf.reduce_sum(x) if link.mixes else x


def _set(layer: Any, values: Sequence[np.ndarray]) -> None:
    if values:
        layer.set_weights(list(values))
    if hasattr(layer, "finalize_state"):  # what Normalization computes from them
        layer.finalize_state()
