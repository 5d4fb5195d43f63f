"""Operations on rows of 16 floats that a compiler does not find by itself, for numba.

A unit's outputs for a batch lie in a row, an example to a lane. A loop over the lanes in plain Python would be right,
but its compiled form checks at each weight if the rows overlap. These functions know that they do not.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

WIDTH = 16  # lanes of a vector; rows have a multiple of them

_VECTOR = ir.VectorType(ir.FloatType(), WIDTH)


def _pointer(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Point to the vector that begins at a flat index of an array of floats."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), _VECTOR.as_pointer())


def _splat(builder: Any, number: Any) -> Any:
    """Make a vector of one number."""
    first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), number, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
    return builder.shuffle_vector(first, ir.Constant(_VECTOR, ir.Undefined), zeros)


def _multiply_add(builder: Any, left: Any, right: Any, added: Any) -> Any:
    """Compute ``left * right + added``, rounded once on every machine."""
    name = f"llvm.fma.v{WIDTH}f32"
    fma = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, _VECTOR]), name)
    return builder.call(fma, [left, right, added])


def _sum(builder: Any, vector: Any) -> Any:
    """Add up a vector by halves, always in the same order."""
    width = WIDTH
    while width > 1:
        width //= 2
        halves = [
            builder.shuffle_vector(
                vector,
                ir.Constant(vector.type, ir.Undefined),
                ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(start, start + width))),
            )
            for start in (0, width)
        ]
        vector = builder.fadd(*halves)
    return builder.extract_element(vector, ir.IntType(32)(0))


def _loop(builder: Any, start: Any, stop: Any) -> Any:
    return cgutils.for_range(builder, builder.sub(stop, start))


def _load(builder: Any, pointer: Any) -> Any:
    return builder.load(pointer, align=4)


def _row(context: Any, builder: Any, kind: Any, array: Any, unit: Any, lanes: Any, lane: Any) -> Any:
    return _pointer(context, builder, kind, array, builder.add(builder.mul(unit, lanes), lane))


def _number(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [index])


def _of_block(num: int) -> tuple[Any, Any]:
    """Make the two operations for blocks of `num` vectors, which stay in registers over a whole row of weights."""

    @intrinsic
    def forward(
        typing: Any, weights: Any, inputs: Any, begin: Any, end: Any, bias: Any, a: Any, z: Any, unit: Any, lane: Any
    ) -> Any:
        signature = types.void(weights, inputs, begin, end, bias, a, z, unit, lane)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kinds = signature.args
            weights, inputs, begin, end, bias, a, z, unit, lane = arguments
            lanes = builder.extract_value(context.make_array(kinds[5])(context, builder, a).shape, 1)
            sums = [cgutils.alloca_once_value(builder, _splat(builder, bias)) for _ in range(num)]
            with _loop(builder, begin, end) as loop:
                place = builder.add(begin, loop.index)
                weight = _splat(builder, builder.load(_number(context, builder, kinds[0], weights, place)))
                source = builder.load(_number(context, builder, kinds[1], inputs, place))
                source = builder.sext(source, ir.IntType(64))
                first = _row(context, builder, kinds[5], a, source, lanes, lane)
                for index, total in enumerate(sums):
                    part = _load(builder, builder.gep(first, [ir.IntType(64)(index)]))
                    builder.store(_multiply_add(builder, weight, part, builder.load(total)), total)
            first = _row(context, builder, kinds[6], z, unit, lanes, lane)
            for index, total in enumerate(sums):
                builder.store(builder.load(total), builder.gep(first, [ir.IntType(64)(index)]), align=4)
            return context.get_dummy_value()

        return signature, generate

    @intrinsic
    def backward(
        typing: Any,
        weights: Any,
        inputs: Any,
        begin: Any,
        end: Any,
        gradient: Any,
        a: Any,
        d: Any,
        unit: Any,
        lane: Any,
        first_unit: Any,
    ) -> Any:
        signature = types.void(weights, inputs, begin, end, gradient, a, d, unit, lane, first_unit)

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kinds = signature.args
            weights, inputs, begin, end, gradient, a, d, unit, lane, first_unit = arguments
            lanes = builder.extract_value(context.make_array(kinds[5])(context, builder, a).shape, 1)
            own = _row(context, builder, kinds[6], d, unit, lanes, lane)
            slopes = [_load(builder, builder.gep(own, [ir.IntType(64)(index)])) for index in range(num)]
            with _loop(builder, begin, end) as loop:
                place = builder.add(begin, loop.index)
                source = builder.load(_number(context, builder, kinds[1], inputs, place))
                source = builder.sext(source, ir.IntType(64))
                first = _row(context, builder, kinds[5], a, source, lanes, lane)
                total = None
                for index, slope in enumerate(slopes):
                    part = _load(builder, builder.gep(first, [ir.IntType(64)(index)]))
                    total = builder.fmul(slope, part) if total is None else _multiply_add(builder, slope, part, total)
                cell = _number(context, builder, kinds[4], gradient, place)
                builder.store(builder.fadd(builder.load(cell), _sum(builder, total)), cell)
                # The gradient of the network's own inputs is not needed.
                with builder.if_then(builder.icmp_signed(">=", source, first_unit)):
                    weight = _splat(builder, builder.load(_number(context, builder, kinds[0], weights, place)))
                    first = _row(context, builder, kinds[6], d, source, lanes, lane)
                    for index, slope in enumerate(slopes):
                        target = builder.gep(first, [ir.IntType(64)(index)])
                        added = _multiply_add(builder, weight, slope, _load(builder, target))
                        builder.store(added, target, align=4)
            return context.get_dummy_value()

        return signature, generate

    return forward, backward


forward_64, backward_64 = _of_block(4)
forward_16, backward_16 = _of_block(1)
