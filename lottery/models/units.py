"""Which kernels make and read the units of a network, so that a unit can be taken out of all of them."""

from dataclasses import dataclass, field
from typing import Any, TypedDict

from lottery import weights
from lottery.errors import LotteryError
from lottery.models import graph
from lottery.models.kerases import is_keras, keras_of, tf


class Units(TypedDict):
    """Units that stay or go together: as many as `size`, made and read by kernels of these names, in their order.

    Unit i is index i of the last axis of each kernel that makes it. A kernel that reads it does so at each index j of
    its last axis but one with j % size == i: after a Flatten, a channel has an entry at every position.
    """

    size: int
    made_by: list[str]
    read_by: list[str]


def kernels(model: Any) -> list[str]:
    """List the prunable kernels of Dense and convolutions, whose last axes are inputs and outputs."""
    layers = keras_of(model).layers
    kinds = tuple(getattr(layers, name) for name, facts in graph.LAYERS.items() if facts.effect == graph.WEIGHTED)
    names = {id(variable): name for name, variable in weights.prunable(model).items()}
    # Keras lists the kernel of such a layer first, whether it is trained or not.
    found = [layer.weights[0] for layer in weights.all_layers(model) if isinstance(layer, kinds) and layer.weights]
    return [names[id(kernel)] for kernel in found if id(kernel) in names]


@dataclass
class _Set:
    """Units that some tensors have in common, while a network is read."""

    size: int
    convolution: bool = False  # a convolution makes them
    made_by: list[str] = field(default_factory=list)
    read_by: list[str] = field(default_factory=list)
    mixed_by: str = ""  # a layer in which they depend on each other
    stays: bool = False  # part of the input or the output, or a frozen kernel makes or reads it


def removable(model: Any, convolutions: bool) -> list[Units]:
    """List the units of a built model that can be removed, in the order of their first kernels.

    Units of layers that are added up, as at the end of a residual block, are one set: their channels share an index, so
    they stay or go together (Li et al. 2017, https://arxiv.org/abs/1608.08710, section 3.3). Units of the output layer
    stay, and so do those that are added to the input of the network.

    Args:
        model: A Keras 3 or tf_keras model of Dense, convolutions and the layers that `lottery.models.graph.LAYERS`
            knows, in a chain or with additions.
        convolutions: List channels of convolutions, or else units of Dense layers.

    Raises:
        LotteryError: A layer is not known, or mixes the units of a hidden layer; the sentence names it.
    """
    order = list(weights.variables(model)).index
    found = []
    for units in _Reading(model).sets():
        if units.stays or not units.made_by or units.convolution != convolutions:
            continue
        made_by, read_by = sorted(units.made_by, key=order), sorted(units.read_by, key=order)
        if units.mixed_by:
            raise _unknown(model, f"the layer {units.mixed_by!r} mixes the units that {made_by[0]!r} makes")
        found.append(Units(size=units.size, made_by=made_by, read_by=read_by))
    return sorted(found, key=lambda units: order(units["made_by"][0]))


class _Reading:
    """A network that is read from its input to its output, and the units of its tensors so far."""

    def __init__(self, model: Any) -> None:
        if not graph.is_plain(model):
            raise _unknown(model, f"it is of a class of its own, {type(model).__name__}")
        self._model, self._keras = model, keras_of(model)
        self._names = {id(variable): name for name, variable in weights.variables(model).items()}
        self._prunable = weights.prunable(model)
        self._sets: dict[int, _Set] = {}  # by the identity of a tensor

    def sets(self) -> list[_Set]:
        """Read all calls, and return the sets of units that the tensors have."""
        used: set[int] = set()
        for call in graph.calls(self._model):
            if id(call.layer) in used:
                raise _unknown(self._model, f"the layer {call.layer.name!r} is used more than once")
            used.add(id(call.layer))
            self._read(call)
        for tensor in tf.nest.flatten(self._model.outputs):
            self._sets[id(tensor)].stays = True
        distinct = {id(units): units for units in self._sets.values()}
        return list(distinct.values())

    def _read(self, call: graph.LayerCall) -> None:
        layer, kind = call.layer, type(call.layer).__name__
        before = [self._sets[id(tensor)] for tensor in call.inputs]
        if kind == "InputLayer":
            for tensor in call.outputs:
                self._sets[id(tensor)] = _Set(tuple(tensor.shape)[-1] or 0, stays=True)
        elif len(before) > 1 and graph.facts_of(kind).effect == graph.MERGING and is_keras(type(layer)):
            # Also an operation of the same name as a layer, such as ``a + b``.
            self._sets[id(call.outputs[0])] = self._tied(layer, before)
        elif len(before) == 1 and len(call.outputs) == 1:
            self._sets[id(call.outputs[0])] = self._after(layer, before[0])
        else:
            numbers = f"{len(before)} inputs and {len(call.outputs)} outputs"
            raise _unknown(self._model, f"the layer {layer.name!r} ({kind}) has {numbers}")

    def _after(self, layer: Any, before: _Set) -> _Set:
        """Return the units behind a layer with one input: those in front of it, or those that it makes."""
        name = graph.effect_name(layer)
        why = graph.obstacle(name, graph.settings(layer), has_units=bool(before.made_by))
        if why:
            raise _unknown(self._model, f"it has the layer {layer.name!r} ({type(layer).__name__}){why}")
        after = before
        if graph.LAYERS[name].effect == graph.WEIGHTED:
            kernel = self._names[id(layer.weights[0])]
            before.read_by.append(kernel)
            after = _Set(int(layer.weights[0].shape[-1]), convolution=name != "Dense", made_by=[kernel])
            if kernel not in self._prunable:
                before.stays = after.stays = True
        if graph.mixes(layer, self._keras):
            after.mixed_by = after.mixed_by or layer.name
        return after

    def _tied(self, layer: Any, parts: list[_Set]) -> _Set:
        """Make one set of several, wherever they occur."""
        first, *others = parts
        for other in others:
            if other is first:
                continue
            if other.size != first.size:
                raise _unknown(self._model, f"the layer {layer.name!r} adds up {first.size} and {other.size} units")
            first.convolution |= other.convolution
            first.made_by += other.made_by
            first.read_by += other.read_by
            first.mixed_by = first.mixed_by or other.mixed_by
            first.stays |= other.stays
            # All tensors that share the set must follow, also those of earlier layers.
            for tensor, units in self._sets.items():
                if units is other:
                    self._sets[tensor] = first
        return first


def _unknown(model: Any, why: str) -> LotteryError:
    return LotteryError(f"The units of the model {model.name!r} are not known: {why}.")
