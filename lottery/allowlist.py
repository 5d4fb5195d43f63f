"""What a Keras configuration that a stranger may have written is allowed to name, before Keras sees it."""

from collections.abc import Iterator, Mapping
from typing import Any

# What a configuration may name. Everything else is refused, whatever Keras thinks of it: layers that hold code or read
# files (Lambda, TFSMLayer, StringLookup, ...), functions, and the classes of whoever wrote it.
_LAYERS = frozenset({
    "Activation", "ActivityRegularization", "Add", "AdditiveAttention", "AlphaDropout", "Attention", "Average",
    "AveragePooling1D", "AveragePooling2D", "AveragePooling3D", "BatchNormalization", "Bidirectional", "CenterCrop",
    "Concatenate", "Conv1D", "Conv1DTranspose", "Conv2D", "Conv2DTranspose", "Conv3D", "Conv3DTranspose",
    "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D", "Cropping1D", "Cropping2D", "Cropping3D", "Dense", "DepthwiseConv1D",
    "DepthwiseConv2D", "Dot", "Dropout", "ELU", "EinsumDense", "Embedding", "Flatten", "GRU", "GRUCell",
    "GaussianDropout", "GaussianNoise", "GlobalAveragePooling1D", "GlobalAveragePooling2D",
    "GlobalAveragePooling3D", "GlobalMaxPooling1D", "GlobalMaxPooling2D", "GlobalMaxPooling3D",
    "GroupNormalization", "GroupQueryAttention", "Identity", "InputLayer", "LSTM", "LSTMCell", "LayerNormalization",
    "LeakyReLU", "Masking", "MaxPooling1D", "MaxPooling2D", "MaxPooling3D", "Maximum", "Minimum",
    "MultiHeadAttention", "Multiply", "Normalization", "PReLU", "Permute", "RMSNormalization", "RNN",
    "RandomContrast", "RandomCrop", "RandomFlip", "RandomRotation", "RandomTranslation", "RandomZoom", "ReLU",
    "RepeatVector", "Rescaling", "Reshape", "Resizing", "SeparableConv1D", "SeparableConv2D", "SimpleRNN",
    "SimpleRNNCell", "Softmax", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "SpectralNormalization",
    "StackedRNNCells", "Subtract", "ThresholdedReLU", "TimeDistributed", "UnitNormalization", "UpSampling1D",
    "UpSampling2D", "UpSampling3D", "ZeroPadding1D", "ZeroPadding2D", "ZeroPadding3D",
})  # fmt: skip
_INITIALIZERS = frozenset({
    "Constant", "GlorotNormal", "GlorotUniform", "HeNormal", "HeUniform", "Identity", "LecunNormal", "LecunUniform",
    "Ones", "Orthogonal", "OrthogonalInitializer", "RandomNormal", "RandomUniform", "TruncatedNormal",
    "VarianceScaling", "Zeros",
})  # fmt: skip
_ALLOWED: Mapping[str | None, frozenset[str]] = {
    "keras": frozenset({"Sequential", "DTypePolicy"}),
    "keras.layers": _LAYERS,
    "keras.initializers": _INITIALIZERS,
    "keras.regularizers": frozenset({"L1", "L2", "L1L2", "OrthogonalRegularizer"}),
    "keras.constraints": frozenset({"MaxNorm", "MinMaxNorm", "NonNeg", "UnitNorm"}),
    "keras.src.models.functional": frozenset({"Functional"}),
    "tf_keras.src.engine.functional": frozenset({"Functional"}),
    None: frozenset({"__keras_tensor__"}),
}
_ACTIVATIONS = frozenset({
    "celu", "elu", "exponential", "gelu", "glu", "hard_shrink", "hard_sigmoid", "hard_silu", "hard_swish",
    "hard_tanh", "leaky_relu", "linear", "log_sigmoid", "log_softmax", "mish", "relu", "relu6", "selu", "sigmoid",
    "silu", "soft_shrink", "softmax", "softplus", "softsign", "sparse_plus", "sparse_sigmoid", "sparsemax",
    "squareplus", "swish", "tanh", "tanh_shrink", "threshold",
})  # fmt: skip
_PARTS = ("layer", "layers", "backward_layer", "cell", "cells")  # by a name alone, Keras makes a layer of any class
_DEEPEST, _LONGEST = 100, 1000  # lists and records in each other, characters of a text


def refused(value: Any, library: str, depth: int = 0) -> Iterator[str]:
    """What a configuration names or asks for and may not.

    Args:
        value: The configuration, or a part of it.
        library: ``"keras"`` or ``"tf_keras"``, which is to read it.
        depth: How many records and lists it lies in.

    Yields:
        Each of them, in words; nothing for a configuration of Keras' own layers without code.
    """
    if depth > _DEEPEST:
        yield f"parts nested more than {_DEEPEST} deep"
    elif isinstance(value, Mapping):
        if "class_name" in value:
            yield from _refused_of_part(value, library)
        for key, one in value.items():
            if str(key).endswith("activation") and isinstance(one, str) and one not in _ACTIVATIONS:
                yield f"the activation {one!r}"
            if key in _PARTS and str in map(type, one if isinstance(one, list) else [one]):
                yield f"a layer by its name alone, as {key!r}"
            if key == "compile_config" and one:
                yield "an optimiser or a loss"
            yield from refused(one, library, depth + 1)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from refused(one, library, depth + 1)
    elif isinstance(value, str) and (len(value) > _LONGEST or value == "_COMPOSITE_TYPE"):
        yield f"the text {value!r}"  # of that name, tf_keras makes an object


def _refused_of_part(value: Mapping[str, Any], library: str) -> Iterator[str]:
    module, name, settings = value.get("module"), value.get("class_name"), value.get("config")
    if not isinstance(name, str) or not (module is None or isinstance(module, str)):
        yield f"{name!r} of {module!r}"
    elif name not in _ALLOWED.get(module, ()) or value.get("registered_name") not in (None, name):
        yield f"{name} of {module or 'no module'}"
    elif library == "tf_keras" and name in ("UpSampling1D", "UpSampling3D"):  # they list every step of their input
        yield f"{name} of tf_keras"
    elif name == "Normalization" and isinstance(settings, Mapping) and settings.get("mean") is not None:
        # One number for a billion of them would take the memory of all.
        axes = settings.get("axis", -1)
        num_axes = len(axes) if isinstance(axes, list) else int(axes is not None)
        for key in ("mean", "variance"):
            shape, numbers = [], settings.get(key)
            while isinstance(numbers, list) and numbers:
                shape, numbers = [*shape, len(numbers)], numbers[0]
            if len(shape) != num_axes or 1 in shape:
                yield f"a Normalization whose {key} is not one number for each of its inputs"
