"""Operations in a functional model that a stranger's file may name: ``a + b``, slices, ``keras.ops``, TensorFlow's own.

They hold no code and read no files. What a call of an operation makes is as large as its sizes say, and those are
checked while the network is traced; here are the checks that come before.
"""

from collections.abc import Iterator, Mapping
from typing import Any

# By module, operations of Keras 3. Those that take functions (Map, Scan, Cond, ...), that make tensors out of nothing
# (Arange, Full, ...), or that loop over a number (Diff, Unstack, Vander, ...) are not among them.
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
_LARGEST = 2**24  # whole number, such as a size or a place
_MOST_PARTS = 1000  # each part of a split is a tensor


def is_operation(part: Any) -> bool:
    """Check if a part of a configuration is an operation, of either library, that may or may not be allowed."""
    module = part.get("module") if isinstance(part, Mapping) else None
    return isinstance(module, str) and any(module in modules for modules in _MODULES.values())


def refused(operation: Mapping[str, Any], library: str) -> Iterator[str]:
    """Yield, in words, what the configuration of an operation names or holds and may not."""
    module, name, config = (operation.get(key) for key in ("module", "class_name", "config"))
    named = str(config.get("function")) if library == "tf_keras" and isinstance(config, Mapping) else name
    calls = operation.get("inbound_nodes")
    if name not in _MODULES[library].get(str(module), ()) or (library == "tf_keras" and named not in TENSORFLOW):
        yield f"{named} of {module}"
    elif not isinstance(calls, list) or not all(map(_takes_tensor, calls)):
        yield f"{named} called on constants alone"  # it would be computed at once, however large it is
    elif any(abs(number) > _LARGEST for number in _whole_numbers([config, calls])):
        yield f"{named} with a whole number beyond {_LARGEST:,}"
    elif any(number > _MOST_PARTS for number in _parts([config, calls])):
        yield f"{named} into more than {_MOST_PARTS:,} parts"


def _takes_tensor(call: Any) -> bool:
    """Check if a call takes a tensor of the network, as either library writes it."""
    if isinstance(call, Mapping):
        return _has_tensor([call.get("args"), call.get("kwargs")])
    return isinstance(call, list) and any(
        _is_place(one) or (isinstance(one, list) and len(one) > 3 and _has_place(one[3])) for one in _entries(call)
    )


def _entries(call: list[Any]) -> list[Any]:
    """List the inputs of a call in the older form, ``[layer, node, tensor, arguments]``, a single one or several."""
    return [call] if call and isinstance(call[0], str) else call


def _has_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        named = value.get("class_name")
        return named == "__keras_tensor__" or (named is None and any(map(_has_tensor, value.values())))
    return isinstance(value, list) and any(map(_has_tensor, value))


def _has_place(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_place, value.values()))
    return isinstance(value, list) and (_is_place(value) or any(map(_has_place, value)))


def _is_place(value: Any) -> bool:
    """Check for ``[layer, node, tensor]``, a tensor of the network; of a constant, the name is a special one."""
    if not isinstance(value, list) or len(value) < 3 or value[0] == "_CONSTANT_VALUE":
        return False
    return isinstance(value[0], str) and type(value[1]) is type(value[2]) is int


def _whole_numbers(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _whole_numbers(part)


def _parts(value: Any) -> Iterator[int]:
    if isinstance(value, Mapping):
        yield from (
            value[key] for key in ("indices_or_sections", "num_or_size_splits") if isinstance(value.get(key), int)
        )
    if isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _parts(part)
