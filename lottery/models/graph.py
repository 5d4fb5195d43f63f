"""The graph of a Keras model, call by call, and what is known of the layers and activations in it.

Everything that must understand a network asks here: the pruning of units, multiply-adds, compaction, the sparse engine,
the choice of XLA, and the check of a stranger's architecture. A new class of layers is a line in `_KNOWN`.
"""

import graphlib
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from lottery.models.kerases import is_keras, tf

Shape = tuple[int | None, ...]

# The effect of a layer on the units that pass through it. WEIGHTED layers make units, ENTRYWISE ones act on each entry
# by itself, IDLE ones do nothing at inference, SPATIAL ones act on each channel by itself, FLAT ones flatten an
# example, MIXING ones compute units from other units. START marks layers that are known in front of the first weights
# only, where there are no units yet, and MERGING those that compute entry i from entry i of each of their inputs.
WEIGHTED, ENTRYWISE, IDLE, SPATIAL = "weighted", "entrywise", "idle", "spatial"
FLAT, MIXING, START, MERGING = "flat", "mixing", "start", "merging"


class LayerFacts(NamedTuple):
    """What is known of the layers of a class of Keras' own, whatever their settings."""

    effect: str = ""  # on units; empty if it is not known
    multiplied: str = ""  # a rule of `lottery.models.multiply_adds`, or empty: how often an entry of a weight is
    gains_from_xla: bool = False  # on a CPU, where a convolution takes 150 times as long and dropout ten times
    keeps_order: bool = False  # changes nothing but the shape of an example


# All of them hold no code, read no files, and make no more than their sizes say: a file may name them.
_KNOWN: tuple[tuple[LayerFacts, str], ...] = (
    (LayerFacts(WEIGHTED, "vectors", gains_from_xla=True), "Dense"),
    (LayerFacts(WEIGHTED, "output places"), "Conv1D Conv2D Conv3D"),
    (LayerFacts(ENTRYWISE, gains_from_xla=True), "Activation ReLU BatchNormalization"),
    (LayerFacts(ENTRYWISE), "LeakyReLU ELU PReLU ThresholdedReLU Rescaling"),
    (
        LayerFacts(IDLE),
        "Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D GaussianNoise GaussianDropout AlphaDropout "
        "ActivityRegularization Identity",
    ),
    (
        LayerFacts(SPATIAL),
        "MaxPooling1D MaxPooling2D MaxPooling3D AveragePooling1D AveragePooling2D AveragePooling3D GlobalMaxPooling1D "
        "GlobalMaxPooling2D GlobalMaxPooling3D GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D "
        "ZeroPadding1D ZeroPadding2D ZeroPadding3D Cropping1D Cropping2D Cropping3D",
    ),
    (LayerFacts(FLAT, gains_from_xla=True, keeps_order=True), "Flatten"),
    (LayerFacts(MIXING, gains_from_xla=True), "Softmax"),
    (LayerFacts(START, gains_from_xla=True, keeps_order=True), "InputLayer Reshape"),
    (LayerFacts(START), "Normalization"),
    (LayerFacts(MERGING), "Add Subtract Multiply Average Maximum Minimum"),
    (LayerFacts("", "output places"), "DepthwiseConv1D DepthwiseConv2D SeparableConv1D SeparableConv2D"),
    (LayerFacts("", "input places"), "Conv1DTranspose Conv2DTranspose Conv3DTranspose"),
    (LayerFacts("", "steps"), "LSTM GRU SimpleRNN"),
    (LayerFacts("", "once"), "LSTMCell GRUCell SimpleRNNCell"),
    (LayerFacts("", "steps and places"), "ConvLSTM1D ConvLSTM2D ConvLSTM3D"),
    (LayerFacts("", "equation"), "EinsumDense"),
    (LayerFacts("", "never"), "Embedding"),
    (LayerFacts("", "at each step"), "TimeDistributed"),
    (LayerFacts("", "in both directions"), "Bidirectional"),
    (LayerFacts("", "by cells"), "RNN"),
    (LayerFacts("", "inside"), "SpectralNormalization"),
    # The second has another name in files than in Keras' code.
    (LayerFacts("", "projections"), "MultiHeadAttention GroupQueryAttention GroupedQueryAttention"),
    (
        LayerFacts(),
        "AdditiveAttention Attention CenterCrop Concatenate Dot GroupNormalization LayerNormalization Masking Permute "
        "RMSNormalization RandomContrast RandomCrop RandomFlip RandomRotation RandomTranslation RandomZoom "
        "RepeatVector Resizing StackedRNNCells UnitNormalization UpSampling1D UpSampling2D UpSampling3D",
    ),
)
LAYERS = {name: facts for facts, names in _KNOWN for name in names.split()}


def facts_of(name: str) -> LayerFacts:
    """Return what is known of a class of layers, by its name."""
    return LAYERS.get(name, LayerFacts())


class ActivationFacts(NamedTuple):
    """What is known of an activation."""

    is_entrywise: bool = True  # acts on each entry by itself
    is_squashing: bool = False  # its outputs saturate or add up to one, and what goes into it are the logits


# By name in Keras, tf_keras or tf.nn; a file may name them. Any other function may do anything. (What the sparse engine
# can compute is what it has functions for: `lottery.sparse.kernels.ACTIVATIONS`.)
_KNOWN_ACTIVATIONS: tuple[tuple[ActivationFacts, str], ...] = (
    (
        ActivationFacts(),
        "celu elu exponential gelu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu linear "
        "log_sigmoid mish relu relu6 selu silu soft_shrink softplus softsign sparse_plus sparse_sigmoid squareplus "
        "swish tanh tanh_shrink",
    ),
    (ActivationFacts(is_squashing=True), "sigmoid"),
    (ActivationFacts(is_entrywise=False, is_squashing=True), "softmax log_softmax"),
    (ActivationFacts(is_entrywise=False), "glu sparsemax threshold"),
)
ACTIVATIONS = {name: facts for facts, names in _KNOWN_ACTIVATIONS for name in names.split()}


def class_name(layer: Any) -> str:
    """Name the class of a layer of Keras' own; empty for any other, also for one that derives from Keras'."""
    cls = type(layer)
    if not is_keras(cls):
        return ""
    # A class of Keras' own may be no layer, and have the name of one, as the operation `Add` of Keras 3 has.
    library: Any = sys.modules[cls.__module__.partition(".")[0]]
    return cls.__name__ if cls is getattr(library.layers, cls.__name__, None) else ""


def inherited_name(layer: Any) -> str:
    """Name the class in `LAYERS` whose ``call`` a layer has, its own or one it derives from; empty if there is none."""
    for cls in type(layer).__mro__:
        if cls.__name__ in LAYERS and is_keras(cls):
            # A class of the user's that derives from it may compute something else.
            return cls.__name__ if type(layer).call is cls.call else ""
    return ""


def effect_name(layer: Any) -> str:
    """Name the class that says what a layer does to units: a Reshape to a vector does what Flatten does."""
    name = class_name(layer)
    return "Flatten" if name == "Reshape" and len(layer.target_shape) == 1 else name


def settings(layer: Any) -> dict[str, Any]:
    """Return the settings of a layer that `obstacle` asks for."""
    return {key: getattr(layer, key) for key in ("groups", "data_format") if hasattr(layer, key)}


def obstacle(name: str, settings: Mapping[str, Any], has_units: bool) -> str:
    """Say why a layer of this class and settings cannot be in a chain that treats its units alike; empty if it can."""
    effect = facts_of(name).effect
    if effect in ("", MERGING):
        return ", which is not known here"
    if effect == START and has_units:
        return " after the first weights"
    groups = settings.get("groups", 1)
    if groups != 1:
        return f" with {groups} groups, where only 1 can be read"
    if settings.get("data_format") == "channels_first":
        return " with channels first, where only channels_last can be read"
    return ""


def is_entrywise(activation: Any, keras: Any) -> bool:
    """Check if an activation, or None, is known to act on each entry by itself; `keras` is the library of its model."""
    # Layers that take the place of an activation; a class of the user's with such a name may do anything.
    if activation is None or class_name(activation) in ("ReLU", "LeakyReLU", "ELU"):
        return True
    names = [name for name, facts in ACTIVATIONS.items() if facts.is_entrywise]
    return any(activation is getattr(module, name, None) for module in (keras.activations, tf.nn) for name in names)


def mixes(layer: Any, keras: Any) -> bool:
    """Check if an output of a layer, or of the activation in it, may depend on several units at its place."""
    by_itself = facts_of(class_name(layer)).effect == MIXING
    return by_itself or not is_entrywise(getattr(layer, "activation", None), keras)


def is_squashing(layer: Any) -> bool:
    """Check if a layer ends in a softmax or sigmoid."""
    name = getattr(getattr(layer, "activation", None), "__name__", "")
    return name in ACTIVATIONS and ACTIVATIONS[name].is_squashing


def ends_linear(layer: Any) -> bool:
    """Check if all outputs of a model are known to come from layers with weights and without an activation."""
    if is_graph(layer):
        return all(inner is not layer and ends_linear(inner) for inner, _ in _makers(layer.outputs))
    return facts_of(class_name(layer)).effect == WEIGHTED and getattr(layer.activation, "__name__", "") == "linear"


@dataclass(frozen=True)
class LayerCall:
    """A call of a layer, or of an operation such as ``a + b``, in a graph."""

    layer: Any
    inputs: list[Any]  # symbolic tensors, in any argument; so are `outputs`
    outputs: list[Any]
    _node: Any

    @property
    def arguments(self) -> dict[str, Any]:
        """What the layer is called with, by the names of the arguments of its ``call``."""
        node = self._node
        if hasattr(node, "call_args"):  # of tf_keras
            args, kwargs = node.call_args, node.call_kwargs
        else:
            args, kwargs = node.arguments.args, node.arguments.kwargs
        try:
            return dict(inspect.signature(self.layer.call).bind_partial(*args, **kwargs).arguments)
        except TypeError:  # Keras passes arguments that a layer of the user's does not name
            return dict(kwargs)


def is_graph(model: Any) -> bool:
    """Check if a layer is a Sequential or functional model that computes its graph, and nothing else."""
    for cls in type(model).__mro__:
        if cls.__name__ in ("Sequential", "Functional") and is_keras(cls):
            # A user's class may compute something else; a Sequential that is not built has no outputs.
            return type(model).call is cls.call and bool(model.outputs)
    return False


def is_plain(model: Any) -> bool:
    """Check if a model is of Keras' own class Sequential or Functional, not of one derived from it."""
    return type(model).__name__ in ("Sequential", "Functional") and is_keras(type(model))


def calls(model: Any) -> list[LayerCall]:
    """List the calls that lead to the outputs of a Sequential or functional model, each after those that it needs.

    A model within the model is one call, as Keras keeps it.
    """
    found: dict[int, LayerCall] = {}
    needs: dict[int, list[int]] = {}
    waiting = _makers(tf.nest.flatten(model.outputs))
    while waiting:
        layer, node = waiting.pop()
        if id(node) in found:
            continue
        # Constants among the arguments are not inputs; tf_keras keeps them in `input_tensors` too.
        inputs = list(node.keras_inputs if hasattr(node, "keras_inputs") else node.input_tensors)
        found[id(node)] = LayerCall(layer, inputs, tf.nest.flatten(node.outputs), node)
        makers = _makers(inputs)
        needs[id(node)] = [id(other) for _, other in makers]
        waiting += makers
    return [found[key] for key in graphlib.TopologicalSorter(needs).static_order()]


def last_layers(model: Any) -> Iterator[Any]:
    """Find the layers that a model's outputs come from, in their order, as far as Keras knows them."""
    for layer, _ in _makers(getattr(model, "outputs", None) or ()):
        if getattr(layer, "outputs", None) and layer is not model:
            yield from last_layers(layer)
        else:
            yield layer


def shapes(tensors: Any) -> list[Shape]:
    """Return the shape of each tensor, in any nesting."""
    return [tuple(tensor.shape) for tensor in tf.nest.flatten(tensors)]


class DescribedLayer(NamedTuple):
    """A layer in a stored architecture."""

    name: str  # of its class
    settings: Mapping[str, Any]


def described_layers(architecture: Mapping[str, Any]) -> list[DescribedLayer]:
    """List the layers of an architecture, as `lottery.models.architecture` describes it, in order."""
    return layers_within(_record(_record(architecture.get("keras")).get("config")))


def layers_within(config: Mapping[str, Any]) -> list[DescribedLayer]:
    """List the layers that the configuration of a layer names, or of a wrapper. What is none is left out."""
    # A stranger may have written it, and layers of a user's own may use the same keys for anything.
    named = config.get("layers") or [config.get("layer")]
    layers = [layer for layer in named if isinstance(layer, dict)] if isinstance(named, list) else []
    return [DescribedLayer(str(layer.get("class_name", "")), _record(layer.get("config"))) for layer in layers]


def _record(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _makers(tensors: Iterable[Any]) -> list[tuple[Any, Any]]:
    """List the layers that make symbolic tensors, each with the node of its call; nothing where no layer makes one."""
    # No public attribute leads from a tensor to its layer and its call (Keras 3.15, tf_keras 2.21).
    histories = [getattr(tensor, "_keras_history", (None, 0, 0)) for tensor in tensors]
    return [(layer, layer._inbound_nodes[index]) for layer, index, _ in histories if layer is not None]


def projections(attention: Any) -> dict[str, Any]:
    """Return the layers within a layer of attention, by what they make; only grouped attention may have a gate."""
    # They have no public names (Keras 3.15, tf_keras 2.21).
    return {
        "query": attention._query_dense,
        "key": attention._key_dense,
        "value": attention._value_dense,
        "output": attention._output_dense,
        "gate": getattr(attention, "_gate_dense", None),
    }


def passes_masks(layer: Any, which: str) -> bool:
    """Check if tf_keras passes masks with the ``"input_tensors"`` or ``"output_tensors"`` of a layer's calls."""
    # It lists the calls of a layer here, and puts a mask on the tensor that it belongs to (tf_keras 2.21).
    tensors = tf.nest.flatten([getattr(node, which) for node in layer._inbound_nodes])
    return any(getattr(tensor, "_keras_mask", None) is not None for tensor in tensors)
