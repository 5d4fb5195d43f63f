"""Operations in a functional model that a stranger's file may name: ``a + b``, slices, ``keras.ops``, TensorFlow's own.

They hold no code and read no files.
"""

from collections.abc import Iterator, Mapping
from typing import Any

# By module, operations of Keras 3. Those that take functions (Map, Scan, Cond, ...) are not among them, and neither are
# those that make tensors out of nothing (Arange, Full, ...) or loop over a number (Diff, Unstack, Vander, ...).
_OF_KERAS = {
    "numpy": "Abs Absolute Add All Amax Amin Any Append Arccos Arccosh Arcsin Arcsinh Arctan Arctan2 Arctanh Argmax "
    "Argmin Argsort Average BroadcastTo Cbrt Ceil Clip Concatenate Copy Cos Cosh CountNonzero Cumprod Cumsum Deg2rad "
    "Diagonal Divide DivideNoNan Dot Einsum Equal Exp Exp2 ExpandDims Expm1 Flip Floor FloorDivide FullLike GetItem "
    "Greater GreaterEqual Hypot Inner Isclose Isfinite Isinf Isnan Less LessEqual Log Log10 Log1p Log2 Logaddexp "
    "LogicalAnd LogicalNot LogicalOr LogicalXor Matmul Max Maximum Mean Median Min Minimum Mod Moveaxis Multiply "
    "NanToNum Negative NotEqual OnesLike Outer Pad Power Prod Ravel Reciprocal Repeat Reshape Roll Round Sign Sin Sinc "
    "Sinh Sort Split Sqrt Square Squeeze Stack Std Subtract Sum Swapaxes Take TakeAlongAxis Tan Tanh Tensordot Tile "
    "Trace Transpose Tril Triu TrueDivide Trunc Var Vdot Where ZerosLike",
    "nn": "AdaptiveAveragePool AdaptiveMaxPool AveragePool Celu DepthToSpace DotProductAttention Elu Gelu Glu "
    "HardShrink HardSigmoid HardSilu HardTanh LayerNorm LeakyRelu LogSigmoid LogSoftmax MaxPool Moments MultiHot "
    "Normalize OneHot RMSNorm Relu Relu6 Selu Sigmoid Silu SoftShrink Softmax Softplus Softsign SpaceToDepth "
    "SparsePlus SparseSigmoid Sparsemax Squareplus TanhShrink Threshold",
    "math": "Erf Erfc Erfinv InTopK Logsumexp Rsqrt TopK",
    "core": "Cast ConvertToTensor SaturateCast Slice StopGradient",
    "linalg": "Norm",
    "einops": "Rearrange",
}
KERAS = {f"keras.src.ops.{module}": frozenset(names.split()) for module, names in _OF_KERAS.items()}

# Functions of TensorFlow that tf_keras turns into layers, by TensorFlow's names.
_OF_TENSORFLOW = {
    "__operators__.": "add eq getitem ne",  # the other operators are functions of ``math`` and ``linalg``
    "": "broadcast_to cast clip_by_value concat einsum expand_dims gather identity one_hot ones_like pad repeat "
    "reshape reverse roll shape split squeeze stack stop_gradient tensordot tile transpose where zeros_like",
    "compat.v1.": "concat expand_dims gather ones_like pad shape squeeze transpose where zeros_like",
    "math.": "abs acos acosh add add_n argmax argmin asin asinh atan atan2 atanh ceil cos cosh cumprod cumsum divide "
    "divide_no_nan equal erf erfc exp expm1 floor floordiv floormod greater greater_equal is_finite is_inf is_nan "
    "l2_normalize less less_equal log log1p log_sigmoid log_softmax logical_and logical_not logical_or logical_xor "
    "maximum minimum mod multiply multiply_no_nan negative not_equal pow reciprocal reduce_all reduce_any "
    "reduce_euclidean_norm reduce_logsumexp reduce_max reduce_mean reduce_min reduce_prod reduce_std reduce_sum "
    "reduce_variance round rsqrt sigmoid sign sin sinh softmax softplus softsign sqrt square squared_difference "
    "subtract tan tanh top_k truediv xdivy xlogy",
    "nn.": "avg_pool crelu depth_to_space elu gelu l2_normalize leaky_relu log_softmax max_pool moments relu relu6 "
    "selu sigmoid silu softmax softplus softsign space_to_depth tanh",
    "linalg.": "band_part l2_normalize matmul matrix_transpose norm tensordot",
}
TENSORFLOW = frozenset(prefix + name for prefix, names in _OF_TENSORFLOW.items() for name in names.split())
_WRAPPERS = {"tf_keras.src.layers.core.tf_op_layer": frozenset({"TFOpLambda", "SlicingOpLambda"})}

_MODULES = {"keras": KERAS, "tf_keras": _WRAPPERS}


def is_operation(part: Any) -> bool:
    """Check if a part of a configuration is an operation, of either library, that may or may not be allowed."""
    module = part.get("module") if isinstance(part, Mapping) else None
    return isinstance(module, str) and any(module in modules for modules in _MODULES.values())


def refused(operation: Mapping[str, Any], library: str) -> Iterator[str]:
    """Yield, in words, the operation that a configuration names, if it may not."""
    module, name, config = (operation.get(key) for key in ("module", "class_name", "config"))
    is_known = name in _MODULES[library].get(str(module), ())
    if library == "tf_keras" and isinstance(config, Mapping):
        name = str(config.get("function"))
    if not is_known or (library == "tf_keras" and name not in TENSORFLOW):
        yield f"{name} of {module}"
