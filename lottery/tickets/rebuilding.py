"""Build the smaller network of a compaction: new Keras layers of fewer units, with the values that are left."""

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from lottery.errors import LotteryError
from lottery.models import graph
from lottery.models.graph import ENTRYWISE, FLAT, IDLE
from lottery.models.kerases import evaluating, keras_of
from lottery.tickets.chain import Link, Segment

Piece = tuple[Any, list[np.ndarray]]  # a new layer, and the values of its weights


def pieces(first: Sequence[Link], segments: Sequence[Segment]) -> list[Piece]:
    """Make the layers in front of the segments anew, and smaller ones for the segments."""
    found = [(copy(link.layer), link.layer.get_weights()) for link in first]
    return found + _smaller(segments, np.ones(1, dtype=bool))


def _smaller(segments: Sequence[Segment], kept: np.ndarray) -> list[Piece]:
    """Make smaller layers for segments; `kept` repeats over the entries that the first segment reads."""
    found: list[Piece] = []
    for segment in segments:
        link = segment.link
        kernel = segment.kernel[..., np.resize(kept, link.before[-1]), :][..., segment.kept]
        values = [kernel]
        if link.layer.use_bias or np.any(segment.bias):
            values.append(segment.bias[segment.kept].astype(kernel.dtype))
        size = "units" if graph.class_name(link.layer) == "Dense" else "filters"
        found.append((copy(link.layer, **{size: kernel.shape[-1], "use_bias": len(values) > 1}), values))
        kept = segment.kept
        for later in segment.following:
            entries = np.resize(kept, later.before[-1])
            values = later.layer.get_weights()
            values = [value[..., entries] if value.shape[-1] == entries.size else value for value in values]
            found.append((copy(later.layer), values))
    return found


def flat_pieces(first: Sequence[Link], segments: Sequence[Segment], inputs: np.ndarray) -> list[Piece]:
    """Make new layers for a model that takes a flat choice of the entries, or raise if single entries do not do."""
    start = segments[0].link
    if graph.class_name(start.layer) != "Dense" or len(start.before) != 1:
        raise LotteryError(
            f"drop_inputs must be False for this model. Its first layer with weights, {start.layer.name!r}, takes "
            f"examples of shape {start.before}, of which single entries cannot be left out; they are reported as "
            "unread."
        )
    found = []
    for link in first:
        if link.effect != FLAT and graph.class_name(link.layer) != "Reshape":
            found.append(_flat(link, inputs))
    chosen = np.zeros(start.before, dtype=bool)
    chosen[inputs] = True
    return found + _smaller(segments, chosen)


def _flat(link: Link, inputs: np.ndarray) -> Piece:
    """Make a layer in front of the first weights act on a flat choice of entries."""
    layer, name = link.layer, type(link.layer).__name__

    def chosen(value: Any) -> np.ndarray:
        return np.broadcast_to(np.asarray(value), (1, *link.before)).reshape(-1)[inputs]

    if name == "Normalization":
        return copy(layer, axis=-1, mean=chosen(layer.mean).tolist(), variance=chosen(layer.variance).tolist()), []
    if link.effect not in (ENTRYWISE, IDLE) or link.mixes or name.startswith("SpatialDropout"):
        raise LotteryError(
            f"drop_inputs must be False for this model. The layer {layer.name!r} before the first weights needs more "
            "of an example than one entry at a time; unread entries are reported."
        )
    changes: dict[str, Any] = {"BatchNormalization": {"axis": -1}, "PReLU": {"shared_axes": None}}.get(name, {})
    if name == "Rescaling":
        ends = {"scale": layer.scale, "offset": layer.offset}
        changes = {key: chosen(value).tolist() for key, value in ends.items() if np.ndim(value)}
    return copy(layer, **changes), [chosen(value) for value in layer.get_weights()]


def assembled(model: Any, shape: tuple[int, ...], pieces: Sequence[Piece]) -> Any:
    """Build a new model of the same library, kind and name as another, out of new layers."""
    keras = keras_of(model)
    with evaluating(f"Keras cannot build the model {model.name!r} anew from its layers"):
        inputs = keras.Input(shape, dtype=input_type(model), name=graph.calls(model)[0].layer.name)
        layers = [layer for layer, _ in pieces]
        if isinstance(model, keras.Sequential):
            new = keras.Sequential([inputs, *layers], name=model.name)
        else:
            new = keras.Model(inputs, functools.reduce(lambda x, layer: layer(x), layers, inputs), name=model.name)
        for layer, values in pieces:
            set_values(layer, values)
    return new


def copy(layer: Any, kind: Any = None, **changes: Any) -> Any:
    """Make a new layer, of the same class or of `kind`, with another's settings and activation, not its weights."""
    with warnings.catch_warnings():
        # The activation is taken over as it is, and never loaded from its configuration.
        warnings.filterwarnings("ignore", "The object being serialized includes a `lambda`", UserWarning)
        config = dict(layer.get_config())
    config.pop("batch_input_shape", None)  # tf_keras' first layer may have the shape of the input
    if "activation" in config:
        config["activation"] = "linear"
    with evaluating(f"Keras cannot make the layer {layer.name!r} anew from its settings"):
        new = (kind or type(layer)).from_config(config | changes)
    if "activation" in config and "activation" not in changes:
        new.activation = layer.activation
    return new


def at_inference(link: Link, x: Any) -> Any:
    """Compute a layer without a kernel on double-precision values, in double precision where Keras can."""
    import tensorflow as tf

    if link.effect == IDLE:
        return x
    # TensorFlow has these for a CPU in single precision only.
    dtype = "float32" if graph.class_name(link.layer).endswith("Pooling3D") else "float64"
    layer = copy(link.layer, dtype=dtype)
    layer.build((1, *link.before))
    set_values(layer, link.layer.get_weights())
    return tf.cast(layer(tf.cast(x, dtype), training=False), "float64")


def set_values(layer: Any, values: Sequence[np.ndarray]) -> None:
    """Set the weights of a layer, and what it computes from them beforehand."""
    if values:
        layer.set_weights(list(values))
    if hasattr(layer, "finalize_state"):  # of Normalization
        layer.finalize_state()


def input_type(model: Any) -> str:
    """Name the type of the numbers that a model of one input takes."""
    return str(getattr(model.inputs[0].dtype, "name", model.inputs[0].dtype))
