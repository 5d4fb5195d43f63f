"""A Keras network as one chain of layers, in order, with the effect of each layer on the units that pass through it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lottery import weights
from lottery.errors import LotteryError
from lottery.models import graph
from lottery.models.graph import WEIGHTED
from lottery.models.kerases import keras_of

_CHAIN = (
    "a chain has one input and one output, each layer is used once on the output of the one before, and the layers are "
    "Dense, Conv1D to Conv3D, BatchNormalization, activations, pooling, padding, Flatten and Dropout of Keras itself"
)


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
            f"The model {model.name!r} takes examples of shape {shape}, which has an open dimension. Build the model "
            "with the shape of your examples."
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
            f"The layer {layer.name!r} of the model {model.name!r} is under a pruning wrapper of tfmot; take the "
            "wrappers out with lottery.enforcement.tfmot.strip first."
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
