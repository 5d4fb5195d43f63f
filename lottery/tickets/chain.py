"""A Keras network as one chain of layers: taken apart, and put together again of new layers with fewer units."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lottery import weights
from lottery.errors import LotteryError
from lottery.models import graph
from lottery.models.graph import ENTRYWISE, FLAT, IDLE, WEIGHTED
from lottery.models.kerases import evaluating, keras_of, tf

_CHAIN = (
    "a chain has one input and one output, each layer is used once on the output of the one before, and the layers are "
    "Dense, Conv1D to Conv3D, BatchNormalization, activations, pooling, padding, Flatten and Dropout of Keras itself"
)


Piece = tuple[Any, list[np.ndarray]]  # a new layer, and the values of its weights


class Link(NamedTuple):
    """A layer of a chain."""

    layer: Any
    effect: str  # on units: see `lottery.models.graph`
    before: tuple[int, ...]  # the shape of one example; so is `after`
    after: tuple[int, ...]
    mixes: bool  # an output of the layer, or of the activation within it, may depend on other units at its place


@dataclass
class Segment:
    """A layer with a kernel, which ends with zeros wherever nothing is needed, and those before the next such layer."""

    link: Link
    following: list[Link]
    kernel: np.ndarray  # a working copy, of the full shape
    bias: np.ndarray  # in double precision; zeros if the layer has none
    kept: np.ndarray  # by unit, True if it stays

    @property
    def mixes(self) -> bool:
        """True if units may depend on each other before they reach the next segment."""
        return any(link.mixes for link in (self.link, *self.following))

    def by_entry(self) -> np.ndarray:
        """View the kernel as (positions in the window, entries at a position, units)."""
        return self.kernel.reshape(-1, *self.kernel.shape[-2:])


def segments(links: Sequence[Link]) -> tuple[list[Link], list[Segment]]:
    """Divide a chain into the layers in front of its first weights, and a segment for each layer with weights."""
    first: list[Link] = []
    found: list[Segment] = []
    for link in links:
        if link.effect == WEIGHTED:
            # In C order, since `by_entry` must be a view, through which entries are cleared.
            kernel, *biases = (np.array(value, order="C") for value in link.layer.get_weights())
            num_units = kernel.shape[-1]
            bias = biases[0].astype(np.float64) if biases else np.zeros(num_units)
            found.append(Segment(link, [], kernel, bias, np.ones(num_units, dtype=bool)))
        elif found:
            found[-1].following.append(link)
        else:
            first.append(link)
    return first, found


def take_apart(model: Any) -> list[Link]:
    """List the layers of a built model that is one chain, some of them `WEIGHTED`, in order, without its input."""
    keras = keras_of(model)
    weights.variables(model)  # refuses a model that is not built
    if not graph.is_plain(model):
        raise _no_chain(model, f"is of a class of its own, {type(model).__name__}, whose methods may do anything")
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        raise _no_chain(model, f"has {len(model.inputs)} inputs and {len(model.outputs)} outputs")
    shape = tuple(model.inputs[0].shape)[1:]
    if None in shape:
        raise LotteryError(
            f"The input {shape} of {model.name!r} has an open dimension; build the model for the shape of your data."
        )
    links: list[Link] = []
    has_units = False
    for layer in _layers(model):
        effect = _effect(model, layer, len(shape), has_units)
        after = tuple(int(size) for size in tuple(layer.compute_output_shape((None, *shape)))[1:])
        links.append(Link(layer, effect, shape, after, graph.mixes(layer, keras)))
        has_units = has_units or effect == WEIGHTED
        shape = after
    if not has_units:
        raise _no_chain(model, "has no Dense and no convolution")
    return links


def _layers(model: Any) -> list[Any]:
    """List the layers on the way from the input to the output."""
    found: list[Any] = []
    for call in graph.calls(model):
        layer = call.layer
        if type(layer).__name__ == "InputLayer":
            continue
        if len(call.inputs) != 1:
            raise _no_chain(model, f"branches: the layer {layer.name!r} takes {len(call.inputs)} inputs")
        _, *others = call.arguments.items()  # the first is the input
        # training=False and mask=None change nothing at inference.
        arguments = sorted(name for name, value in others if value is not None and value is not False)
        if arguments:
            raise _no_chain(model, f"calls the layer {layer.name!r} with the argument {arguments[0]!r}")
        if any(layer is other for other in found):
            raise _no_chain(model, f"uses the layer {layer.name!r} more than once")
        found.append(layer)
    return found


def _effect(model: Any, layer: Any, rank: int, has_units: bool) -> str:
    """Return the effect of a layer, or raise if the layer, or one of its settings, is not known here."""
    if weights.inside(layer) is not layer:
        raise LotteryError(
            f"The layer {layer.name!r} is in a wrapper of tfmot; lottery.enforcement.tfmot.strip takes it off."
        )
    name = graph.effect_name(layer)
    why = graph.obstacle(name, graph.settings(layer), has_units) or _own_obstacle(layer, name, rank, has_units)
    if why:
        raise _no_chain(model, f"has the layer {layer.name!r} ({type(layer).__name__}){why}")
    return graph.LAYERS[name].effect


def _own_obstacle(layer: Any, name: str, rank: int, has_units: bool) -> str:
    """Say why compaction cannot take a layer that is known; empty if it can."""
    if name == "Rescaling" and has_units and np.ndim(layer.scale) + np.ndim(layer.offset) > 0:
        return " after the first weights"
    if graph.LAYERS[name].effect == WEIGHTED and len(layer.get_weights()) != 1 + layer.use_bias:
        return " with other weights than a kernel and a bias"
    if name == "BatchNormalization" and list(np.ravel(layer.axis)) not in ([-1], [rank]):
        return f" over the axis {layer.axis}, where only the last axis can be read"
    return ""


def _no_chain(model: Any, why: str) -> LotteryError:
    return LotteryError(f"The model {model.name!r} {why}; {_CHAIN}.")


def pieces(first: Sequence[Link], segments: Sequence[Segment]) -> list[Piece]:
    """Make the layers in front of the segments anew, and smaller ones for the segments."""
    found = [(copy(link.layer), link.layer.get_weights()) for link in first]
    return found + _smaller(segments, np.ones(1, dtype=bool))


def _smaller(segments: Sequence[Segment], kept: np.ndarray) -> list[Piece]:
    """Make smaller layers for segments; `kept` repeats over the entries that the first segment reads."""
    found: list[Piece] = []
    for segment in segments:
        link = segment.link
        # Behind a Flatten the units follow each other at each place, so the pattern repeats.
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
            # A vector of fewer entries, whatever size the layer was told.
            is_reshape = type(later.layer).__name__ == "Reshape"
            changes = {"target_shape": (-1,)} if is_reshape else {}
            found.append((copy(later.layer, **changes), values))
    return found


def flat_pieces(first: Sequence[Link], segments: Sequence[Segment], inputs: np.ndarray) -> list[Piece]:
    """Make new layers for a model that takes a flat choice of the entries, or raise if single entries do not do."""
    start = segments[0].link
    if graph.class_name(start.layer) != "Dense" or len(start.before) != 1:
        raise LotteryError(
            f"drop_inputs must be False: the first layer with weights, {start.layer.name!r}, takes examples of shape "
            f"{start.before}, of which single entries cannot be left out."
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
        raise LotteryError(f"drop_inputs must be False: the layer {layer.name!r} needs more than one entry at a time.")
    # Each entry has a value of its own now, also where a channel or an axis shared one.
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
            x = inputs
            for layer in layers:
                x = layer(x)
            new = keras.Model(inputs, x, name=model.name)
        for layer, values in pieces:
            set_values(layer, values)
    return new


def copy(layer: Any, kind: Any = None, **changes: Any) -> Any:
    """Make a new layer, of the same class or of `kind`, with another's settings and activation, not its weights."""
    with warnings.catch_warnings():
        # The activation is taken over as it is, and never loaded from its configuration.
        warnings.filterwarnings("ignore", "The object being serialized includes a `lambda`", UserWarning)
        config = dict(layer.get_config())
    # The first layer of a tf_keras model may have the shape of the input, which is another here.
    config.pop("batch_input_shape", None)
    if "activation" in config:
        config["activation"] = "linear"
    with evaluating(f"Keras cannot make the layer {layer.name!r} anew from its settings"):
        new = (kind or type(layer)).from_config(config | changes)
    if "activation" in config and "activation" not in changes:
        new.activation = layer.activation
    return new


def at_inference(link: Link, x: Any) -> Any:
    """Compute a layer without a kernel on double-precision values, in double precision where Keras can."""
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
    return tf.as_dtype(model.inputs[0].dtype).name
