"""Steps and evaluations of a network at the cost of the weights that survive.

`lottery.sparse.packing` says how values and weights lie in memory, and what passes and tiles are. This file has the
arithmetic. A step goes through the operations of the network phase by phase, forward and then backward; each operation
has a function for either way, which works on some blocks of examples.

Everything that numba compiles is in this file: its cache on disk notices changes of the file of a function alone.
"""
# ruff: noqa: SIM113 (numba unrolls no `enumerate`)

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import binding, ir
from numba import float32, literal_unroll, njit, types
from numba.core import cgutils, config
from numba.core.errors import NumbaExperimentalFeatureWarning
from numba.extending import intrinsic


def _width() -> int:
    """Return how many numbers a register of the processor holds, 8 or 16; numba may compile for another processor."""
    chosen = config.CPU_FEATURES  # type: ignore[attr-defined]
    features = binding.get_host_cpu_features().flatten() if chosen is None else chosen
    return 16 if "+avx512f" in features else 8


WIDTH = _width()  # lanes of a vector, an example to a lane
LINE = 64  # bytes of a line of the cache
TILE = 8  # vectors that are computed together: as many additions as a processor has in flight
# The numbers of neighbours in a tile, and the steps between them; where steps are others, each neighbour is a tile.
STEPS = {8: (1, 2), 4: (1, 2), 2: (1,), 1: (1,)}
# Tiles by the number of neighbours, how many groups of them, and the step between neighbours.
FORMS = [
    (size, groups, step) for size, steps in STEPS.items() for groups in STEPS if size * groups <= TILE for step in steps
]

# What a tile of outputs makes zero: nothing, what is below zero, or what is where a relu's results are not above zero.
CLIPS = UNCLIPPED, BELOW_ZERO, BY_RESULTS = range(3)

# Functions in a tuple work; numba says that their interface may change.
warnings.filterwarnings("ignore", category=NumbaExperimentalFeatureWarning)

# Division by zero gives infinity, as in TensorFlow; a check would keep a loop from being compiled to vectors.
_inner: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # Python calls none of them, and they take long
_compiled: Any = njit(error_model="numpy", **_inner)
_inlined: Any = njit(error_model="numpy", inline="always", **_inner)  # the compiler goes anew through all it calls
_compiled_once = njit(error_model="numpy", cache=True)  # on a machine; with everything that it calls


# --- Tiles. These are written in LLVM's language: a plain loop would check at each weight if what it reads and writes
# --- overlap, and would not keep a tile in registers.

_VECTOR, _LONG, _INT = ir.VectorType(ir.FloatType(), WIDTH), ir.IntType(64), ir.IntType(32)


class _Writer:
    """Writes instructions on vectors of arrays, each of which is a pointer to its first entry."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def cases(self, chosen: Any, cases: Sequence[Any]) -> Iterator[Any]:
        """Yield each case, in a place of its own that is reached if its number is the chosen one."""
        after = self.builder.append_basic_block("after")
        switch = self.builder.switch(chosen, after)
        for number, case in enumerate(cases):
            block = self.builder.append_basic_block(f"case{number}")
            switch.add_case(_LONG(number), block)
            self.builder.position_at_end(block)
            yield case
            self.builder.branch(after)
        self.builder.position_at_end(after)

    def places(self, form: tuple[int, int, int], array: Any, start: Any, group: Any, step: Any) -> list[Any]:
        """Point to the vectors of a tile; `step` is a number of vectors, or lanes that are known when it runs."""
        size, groups, _ = form
        found = []
        for number in range(groups):
            first = self.builder.add(start, self.builder.mul(group, _LONG(number)))
            for place in range(size):
                lanes = _LONG(place * step * WIDTH) if isinstance(step, int) else self.builder.mul(step, _LONG(place))
                found.append(self.vector(self.at(array, first), lanes))
        return found

    def weights(self, begin: Any, end: Any, offsets: Any) -> Iterator[tuple[Any, Any]]:
        """Go through weights; yield the place of each, and the offset of what it reads."""
        with cgutils.for_range(self.builder, self.builder.sub(end, begin)) as loop:
            place = self.builder.add(begin, loop.index)
            yield place, self.builder.sext(self.builder.load(self.at(offsets, place)), _LONG)

    def vectors(self, *images: Any) -> Iterator[list[Any]]:
        """Go through images of one size, as `_values` makes them; yield pointers to the vectors at each place."""
        height, width = images[0][3:]
        with cgutils.for_range(self.builder, height) as row:
            starts = [
                self.at(array, self.builder.add(start, self.builder.mul(row.index, step)))
                for array, start, step, *_ in images
            ]
            with cgutils.for_range(self.builder, width) as column:
                lanes = self.builder.mul(column.index, _LONG(WIDTH))
                yield [self.vector(start, lanes) for start in starts]

    def write(self, adds: Any, made: Callable[..., Any], *images: Any) -> None:
        """Write to the last of some images what is made of the others, and with `adds` of what is there."""
        with self.builder.if_else(adds) as (adding, anew):
            for branch in adding, anew:
                with branch:
                    for *read, written in self.vectors(*images):
                        # To add -0.0 changes no number.
                        before = self.load(written) if branch is adding else self.constant(-0.0)
                        self.store(made(before, *map(self.load, read)), written)

    def above_zero(self, condition: Any, value: Any) -> Any:
        """Make zero of a vector where another is zero or below; NaN is neither."""
        zeros = self.constant(0.0)
        return self.builder.select(self.builder.fcmp_ordered("<=", condition, zeros), zeros, value)

    def affine(self, value: Any, factor: Any, added: Any) -> Any:
        """Compute ``value * factor + added``, rounded twice."""
        return self.builder.fadd(self.builder.fmul(value, factor), added)

    def constant(self, number: float) -> Any:
        """Make a vector of a number that is known when this is compiled."""
        return ir.Constant(_VECTOR, [number] * WIDTH)

    def at(self, array: Any, place: Any) -> Any:
        """Point to an entry of an array."""
        return self.builder.gep(array, [place])

    def vector(self, array: Any, place: Any) -> Any:
        """Point to a vector of an array."""
        return self.builder.bitcast(self.at(array, place), _VECTOR.as_pointer())

    def load(self, pointer: Any) -> Any:
        """Read a vector."""
        return self.builder.load(pointer, align=4)

    def store(self, value: Any, pointer: Any) -> None:
        """Write a vector."""
        self.builder.store(value, pointer, align=4)

    def splat(self, number: Any) -> Any:
        """Make a vector of one number."""
        first = self.builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), number, _INT(0))
        zeros = ir.Constant(ir.VectorType(_INT, WIDTH), [0] * WIDTH)
        return self.builder.shuffle_vector(first, ir.Constant(_VECTOR, ir.Undefined), zeros)

    def multiply_add(self, left: Any, right: Any, added: Any) -> Any:
        """Compute ``left * right + added``, rounded once on every machine."""
        kind = ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, _VECTOR])
        fma = cgutils.get_or_insert_function(self.builder.module, kind, f"llvm.fma.v{WIDTH}f32")
        return self.builder.call(fma, [left, right, added])

    def sum(self, vector: Any) -> Any:
        """Add up a vector by halves, always in the same order."""
        width = WIDTH
        while width > 1:
            width //= 2
            picks = [ir.Constant(ir.VectorType(_INT, width), [*range(at, at + width)]) for at in (0, width)]
            undefined = ir.Constant(vector.type, ir.Undefined)
            halves = [self.builder.shuffle_vector(vector, undefined, pick) for pick in picks]
            vector = self.builder.fadd(*halves)
        return self.builder.extract_element(vector, _INT(0))


def _operation(write: Callable[..., Any]) -> Any:
    """Make an operation for numba of a function that writes its instructions, and returns a number or nothing."""
    returned = types.void if inspect.signature(write).return_annotation is None else float32

    @functools.wraps(write)
    def typed(typing: Any, *kinds: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def taken(kind: Any, value: Any) -> Any:
                if isinstance(kind, types.Array):
                    return context.make_array(kind)(context, builder, value).data
                if isinstance(kind, types.Tuple):
                    return [taken(part, builder.extract_value(value, place)) for place, part in enumerate(kind.types)]
                return value

            number = write(_Writer(builder), *map(taken, signature.args, arguments))
            return context.get_dummy_value() if number is None else number

        return returned(*kinds), generate

    return intrinsic(typed)


@_operation
def _tile_of_outputs(
    writer: _Writer, values: Any, offsets: Any, begin: Any, end: Any, form: Any, source: Any, read_at: Any,
    read_group: Any, target: Any, write_at: Any, write_group: Any, write_step: Any, start: Any, adds: Any, clips: Any,
    results: Any, results_at: Any,
) -> None:  # fmt: skip
    """Write a tile of outputs: to a number, or with `adds` to what is there, add the products of a list of weights.

    Eight sums stay in registers. Each weight is read once, and multiplies eight vectors in turn. `clips` is one of
    `CLIPS`; the results of a relu, where its gradients are clipped, lie as the outputs do.
    """
    builder = writer.builder
    for own in writer.cases(form, FORMS):
        sums = [cgutils.alloca_once(builder, _VECTOR) for _ in range(own[0] * own[1])]
        outputs = writer.places(own, target, write_at, write_group, write_step)
        with builder.if_else(adds) as (adding, anew):
            with adding:
                for total, output in zip(sums, outputs, strict=True):
                    builder.store(writer.load(output), total)
            with anew:
                first = writer.splat(start)
                for total in sums:
                    builder.store(first, total)
        for place, offset in writer.weights(begin, end, offsets):
            weight = writer.splat(builder.load(writer.at(values, place)))
            inputs = writer.places(own, source, builder.add(read_at, offset), read_group, own[2])
            for total, read in zip(sums, inputs, strict=True):
                product = writer.multiply_add(weight, writer.load(read), builder.load(total))
                builder.store(product, total)
        for clipped in writer.cases(clips, CLIPS):
            relus = writer.places(own, results, results_at, write_group, write_step)
            for total, output, relu in zip(sums, outputs, relus, strict=True):
                made = builder.load(total)
                if clipped == BELOW_ZERO:
                    made = writer.above_zero(made, made)
                elif clipped == BY_RESULTS:
                    made = writer.above_zero(writer.load(relu), made)
                writer.store(made, output)


@_operation
def _tile_of_gradients(
    writer: _Writer, cells: Any, offsets: Any, begin: Any, end: Any, form: Any, source: Any, read_at: Any,
    read_group: Any, slopes: Any, slope_at: Any, slope_group: Any, first_cell: Any, bias_cell: Any, is_single: Any,
) -> None:  # fmt: skip
    """Add a tile's part of the gradients of a list of weights, and of their bias if it has a cell, each to its cell.

    The gradients of the tile's outputs stay in registers. A cell is a vector, whose lanes are added up at the end of
    the batch; where an image has a single pixel there are few tiles, and a cell is a number (`is_single`).
    """
    builder = writer.builder

    def add_number(vector: Any, number: Any) -> None:
        cell = writer.at(cells, number)
        builder.store(builder.fadd(builder.load(cell), writer.sum(vector)), cell)

    def add_vector(vector: Any, number: Any) -> None:
        cell = writer.vector(cells, builder.mul(number, _LONG(WIDTH)))
        writer.store(builder.fadd(writer.load(cell), vector), cell)

    for own in writer.cases(form, FORMS):
        factors = [writer.load(place) for place in writer.places(own, slopes, slope_at, slope_group, 1)]

        def products(offset: Any, own: Any = own, factors: Any = factors) -> Any:
            inputs = writer.places(own, source, builder.add(read_at, offset), read_group, own[2])
            totals: list[Any] = [None, None]  # one after the other, so that fewer additions wait for each other
            for number, (factor, read) in enumerate(zip(factors, inputs, strict=True)):
                value, total = writer.load(read), totals[number % 2]
                product = writer.multiply_add(factor, value, total) if total else builder.fmul(factor, value)
                totals[number % 2] = product
            return totals[0] if totals[1] is None else builder.fadd(*totals)

        # Only tiles of one neighbour are of images of a single pixel.
        with builder.if_else(is_single if own[0] == 1 else ir.Constant(ir.IntType(1), 0)) as (single, several):
            for branch, add in (single, add_number), (several, add_vector):
                with branch:
                    with builder.if_then(builder.icmp_signed(">=", bias_cell, _LONG(0))):
                        add(functools.reduce(builder.fadd, factors), bias_cell)
                    for place, offset in writer.weights(begin, end, offsets):
                        add(products(offset), builder.add(first_cell, place))


@_operation
def _add_products(writer: _Writer, x: Any, less: Any, y: Any, origin: Any, scale: Any, shift: Any, sums: Any) -> None:
    """Add up an image x, less a number, and its products with an image y, less a number; write a vector of each.

    Leave out the entries of x where y, scaled and shifted, is not above zero.
    """
    builder, totals = writer.builder, [cgutils.alloca_once(writer.builder, _VECTOR) for _ in range(2)]
    less, origin, scale, shift = (writer.splat(number) for number in (less, origin, scale, shift))
    for total in totals:
        builder.store(writer.constant(0.0), total)
    for own, other in writer.vectors(x, y):
        factor = writer.load(other)
        left = builder.fsub(writer.above_zero(writer.affine(factor, scale, shift), writer.load(own)), less)
        builder.store(builder.fadd(builder.load(totals[0]), left), totals[0])
        product = writer.multiply_add(left, builder.fsub(factor, origin), builder.load(totals[1]))
        builder.store(product, totals[1])
    for number, total in enumerate(totals):
        writer.store(builder.load(total), writer.vector(sums, _LONG(number * WIDTH)))


@_operation
def _scale(writer: _Writer, x: Any, z: Any, factor: Any, added: Any, least: Any, adds: Any) -> None:
    """Write an image, times a number plus a number, to another, or with `adds` add it there; at least a number."""
    factor, added, least = (writer.splat(number) for number in (factor, added, least))

    def made(before: Any, value: Any) -> Any:
        total = writer.builder.fadd(before, writer.affine(value, factor, added))
        return writer.builder.select(writer.builder.fcmp_ordered("<=", total, least), least, total)

    writer.write(adds, made, x, z)


@_operation
def _clip(writer: _Writer, a: Any, d: Any) -> None:
    """Make the gradients of an image zero where its values are not above zero."""
    for value, slope in writer.vectors(a, d):
        writer.store(writer.above_zero(writer.load(value), writer.load(slope)), slope)


@_operation
def _slopes_of_normalised(
    writer: _Writer, of_z: Any, x: Any, of_x: Any, scale: Any, shift: Any, factor: Any, mean: Any, slope: Any,
    added: Any, adds: Any,
) -> None:  # fmt: skip
    """Write, or with `adds` add, the gradients of an image x from those of z, which is x normalised.

    Leave out those where x, scaled and shifted, is not above zero.
    """
    builder = writer.builder
    scale, shift, factor = (writer.splat(number) for number in (scale, shift, factor))
    mean, slope, added = (writer.splat(number) for number in (mean, slope, added))

    def made(before: Any, slopes: Any, values: Any) -> Any:
        own = builder.fmul(writer.above_zero(writer.affine(values, scale, shift), slopes), factor)
        return builder.fadd(before, builder.fadd(own, writer.affine(builder.fsub(values, mean), slope, added)))

    writer.write(adds, made, of_z, x, of_x)


def _of_windows(write: Callable[[_Writer, list[Any], list[Any]], None]) -> Any:
    """Make an operation on one entry of each window of a row of windows.

    It takes a row of values of an image and one of their gradients, where the first entry is and how far it is to the
    next; then the same two rows of the windows, where the first window is, and how many there are.
    """

    def _through(
        writer: _Writer, a: Any, d: Any, at: Any, step: Any, of_a: Any, of_d: Any, first: Any, num: Any
    ) -> None:
        with cgutils.for_range(writer.builder, num) as loop:
            place = writer.builder.add(at, writer.builder.mul(loop.index, step))
            window = writer.builder.add(first, writer.builder.mul(loop.index, _LONG(WIDTH)))
            entry = [writer.vector(array, place) for array in (a, d)]
            write(writer, entry, [writer.vector(array, window) for array in (of_a, of_d)])

    return _operation(_through)


@_of_windows
def _add_to_windows(writer: _Writer, entry: list[Any], window: list[Any]) -> None:
    writer.store(writer.builder.fadd(writer.load(window[0]), writer.load(entry[0])), window[0])


@_of_windows
def _add_to_image(writer: _Writer, entry: list[Any], window: list[Any]) -> None:
    writer.store(writer.builder.fadd(writer.load(entry[1]), writer.load(window[1])), entry[1])


@_of_windows
def _keep_highest(writer: _Writer, entry: list[Any], window: list[Any]) -> None:
    value, highest = writer.load(entry[0]), writer.load(window[0])
    is_higher = writer.builder.fcmp_ordered(">", value, highest)
    is_nan = writer.builder.fcmp_unordered("!=", value, value)  # and stays
    writer.store(writer.builder.select(writer.builder.or_(is_higher, is_nan), value, highest), window[0])


@_of_windows
def _give_to_highest(writer: _Writer, entry: list[Any], window: list[Any]) -> None:
    value, highest, left = writer.load(entry[0]), writer.load(window[0]), writer.load(window[1])
    is_highest = writer.builder.fcmp_ordered("==", value, highest)
    given = writer.builder.select(is_highest, left, writer.constant(0.0))
    writer.store(writer.builder.fadd(writer.load(entry[1]), given), entry[1])
    writer.store(writer.builder.fsub(left, given), window[1])


@_operation
def _prefetch(writer: _Writer, array: Any, start: Any) -> None:
    """Ask for the lines of the cache that a tile in a row will touch."""
    builder, byte = writer.builder, ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, _INT, _INT, _INT])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    for line in range(TILE * WIDTH * 4 // LINE + 1):
        place = builder.add(start, _LONG(line * LINE // 4))
        builder.call(prefetch, [builder.bitcast(writer.at(array, place), byte), _INT(0), _INT(3), _INT(1)])


@_operation
def _sum_of(writer: _Writer, array: Any, start: Any) -> Any:
    """Return the sum of a vector."""
    return writer.sum(writer.load(writer.vector(array, start)))


def _without_counts(typing: Any, kind: Any) -> Any:
    """Return a tuple with its arrays, whose references numba no longer counts.

    It would count them at each call: for a small image, that takes longer than the arithmetic.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (value,) = arguments
        for number, member in enumerate(kind.types):
            if isinstance(member, types.Array):
                array = context.make_array(member)(context, builder, builder.extract_value(value, number))
                array.meminfo = array.meminfo.type(None)
                value = builder.insert_value(value, array._getvalue(), number)
        return value

    return kind(kind), generate


_uncounted: Any = intrinsic(_without_counts)
_YES, _NO = np.bool_(True), np.bool_(False)  # for each of Python's own two, numba would compile a function again


# --- Rows of numbers. What is left and right of a row are zeros around an image, which stay.


@_compiled
def _values(memory: Any, tensor: Any, block: int, channel: int) -> Any:
    """Return an image of a tensor: where it begins, how far it is from a row to the next, and its size in vectors."""
    corner = tensor.start + block * tensor.block + channel * tensor.plane
    return memory.a, corner, tensor.row, tensor.height, tensor.width


@_compiled
def _slopes(memory: Any, tensor: Any, block: int, channel: int) -> Any:
    """Return the gradients of an image, as `_values` does."""
    corner = tensor.start + block * tensor.slopes_block + channel * tensor.plane
    return memory.d, corner, tensor.row, tensor.height, tensor.width


@_compiled
def _row(image: Any, row: int) -> Any:
    """Return a row of an image."""
    array, corner, length, _, width = image
    at = corner + row * length
    return array[at : at + width * WIDTH]


@_compiled
def _set(values: Any, number: Any) -> None:
    for i in range(values.size):
        values[i] = number


@_compiled
def _give(values: Any, target: Any) -> None:
    """Copy a row to another."""
    for i in range(values.size):
        target[i] = values[i]


# --- Activations, by Keras' names. Forward, each turns the inputs of a channel into the outputs, in their place.
# --- Backward, it takes inputs and outputs, and turns the gradients of outputs into those of inputs. A loop that
# --- may write what it reads from another row is not compiled to vectors; and from a loop that chooses between a number
# --- and what stands in its place, the compiler makes stores of some lanes, which are slow. NaN stays NaN in all.

_0, _LEAK, _HALF, _1, _2, _6, _15 = (np.float32(number) for number in (0, 0.2, 0.5, 1, 2, 6, 15))
_INFINITE, _LARGEST = np.float32(np.inf), np.float32(88)  # the last, nearly, whose exponential is finite
_LOG2_E, _LN2_HIGH, _LN2_LOW = np.float32(math.log2(math.e)), np.float32(0.693359375), np.float32(-2.12194440e-4)
_TERMS = tuple(np.float32(1 / math.factorial(power)) for power in range(8))
_SELU, _SELU_ALPHA = np.float32(1.0507009873554805), np.float32(1.0507009873554805 * 1.6732632423543772)
_ROOT_HALF, _ROOT_TWO_PI = np.float32(math.sqrt(0.5)), np.float32(math.sqrt(2 * math.pi))


@_compiled
def _between(x: Any, low: Any, high: Any) -> Any:
    x = low if x < low else x
    return high if x > high else x


@_compiled
def _reduced(x: Any) -> Any:
    """Return 2**n and e**r - 1, with e**x = 2**n e**r and r near 0: without a call, so that loops become vectors."""
    x = _between(x, np.float32(-87), _LARGEST)
    n = math.floor(x * _LOG2_E + _HALF)
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    rest = _TERMS[7]
    for power in (6, 5, 4, 3, 2):
        rest = rest * r + _TERMS[power]
    return np.int32((np.int32(n) + 127) << 23).view(np.float32), r + r * r * rest  # the first by the bits of a float


@_compiled
def _exp(x: Any) -> Any:
    scale, rest = _reduced(x)
    return scale + scale * rest


@_compiled
def _expm1(x: Any) -> Any:
    scale, rest = _reduced(x)
    return scale * rest + (scale - _1)


@_compiled
def _logistic(x: Any) -> Any:
    return _1 / (_1 + _exp(-x))


@_compiled
def _tanh(x: Any) -> Any:
    grown = _expm1(_2 * _between(x, -_15, _15))
    return grown / (grown + _2)


@_compiled
def _normal_below(x: Any) -> Any:
    return _HALF * (_1 + np.float32(math.erf(x * _ROOT_HALF)))


class Activation(NamedTuple):
    """An activation."""

    function: Any
    needs_input: bool  # backward; else inputs and outputs may lie in one place, and outputs are taken for inputs


def _elementwise(
    value: Callable[[Any], Any], slope: Callable[[Any, Any], Any], needs_input: bool = False
) -> Activation:
    """Make an activation of a function, and of its derivative by the input and the output."""
    value, slope = _compiled(value), _compiled(slope)

    @_compiled
    def function(source: Any, target: Any, slopes: Any, is_forward: Any) -> None:
        _, _, _, height, width = target
        before = np.empty(width * WIDTH, np.float32)
        for row in range(height):
            z, a, d = _row(source, row), _row(target, row), _row(slopes, row)
            if is_forward:
                _give(a, before)
                for i in range(a.size):
                    a[i] = value(before[i])
            else:
                for i in range(d.size):
                    d[i] *= slope(z[i], a[i])

    return Activation(function, needs_input)


ACTIVATIONS: dict[str, Activation] = {
    "linear": _elementwise(lambda z: z, lambda z, a: _1),
    "relu6": _elementwise(lambda z: _between(z, _0, _6), lambda z, a: _1 if _0 < a < _6 else _0),
    "leaky_relu": _elementwise(lambda z: z if z > _0 else z * _LEAK, lambda z, a: _1 if a > _0 else _LEAK),
    "elu": _elementwise(lambda z: z if z > _0 else _expm1(z), lambda z, a: _1 if a > _0 else a + _1),
    "selu": _elementwise(
        lambda z: _SELU * z if z > _0 else _SELU_ALPHA * _expm1(z), lambda z, a: _SELU if a > _0 else a + _SELU_ALPHA
    ),
    "softsign": _elementwise(lambda z: z / (_1 + abs(z)), lambda z, a: (_1 - abs(a)) * (_1 - abs(a))),
    "softplus": _elementwise(lambda z: (_0 if z <= _0 else z) + math.log1p(_exp(-abs(z))), lambda z, a: -_expm1(-a)),
    "tanh": _elementwise(_tanh.py_func, lambda z, a: _1 - a * a),
    "sigmoid": _elementwise(_logistic.py_func, lambda z, a: a * (_1 - a)),
    "exponential": _elementwise(lambda z: _INFINITE if z > _LARGEST else _exp(z), lambda z, a: a),
    "silu": _elementwise(lambda z: z * _logistic(z), lambda z, a: _logistic(z) * (_1 + z - a), needs_input=True),
    "gelu": _elementwise(
        lambda z: z * _normal_below(z),
        lambda z, a: _normal_below(z) + z * _exp(-_HALF * z * z) / _ROOT_TWO_PI,
        needs_input=True,
    ),
}


# --- Losses. Each takes outputs and targets of a block, both of (units, lanes), the number of lanes that hold an
# --- example, and the threshold of an output that means the second class of two. It writes the gradients of the losses
# --- by the outputs, times a share, and returns the sum of the losses, and of the examples that are right.


@_compiled
def _highest(a: Any, best: Any, most: Any) -> None:
    """Write the unit of the highest output of each example, and that output."""
    for lane in range(a.shape[1]):
        best[lane], most[lane] = 0, a[0, lane]
    for unit in range(1, a.shape[0]):
        for lane in range(a.shape[1]):
            best[lane] = unit if a[unit, lane] > most[lane] else best[lane]
            most[lane] = most[lane] if a[unit, lane] <= most[lane] else a[unit, lane]


@_compiled
def _mean_over(d: Any, num: int, share: Any) -> None:
    """Take a share of gradients, and make them zero in lanes without an example."""
    for unit in range(d.shape[0]):
        for lane in range(d.shape[1]):
            d[unit, lane] = d[unit, lane] * share if lane < num else _0


@_compiled
def _categorical(a: Any, targets: Any, num: int, threshold: Any, d: Any, share: Any) -> Any:
    """Compute the loss of a softmax."""
    (units, lanes), loss, right = a.shape, 0.0, 0.0
    wanted, best = np.empty(lanes, np.int64), np.empty(lanes, np.int64)
    most, total = np.empty(lanes, np.float32), np.zeros(lanes, np.float32)
    _highest(targets, wanted, most)
    _highest(a, best, most)
    for unit in range(units):
        for lane in range(lanes):
            d[unit, lane] = _exp(a[unit, lane] - most[lane])
            total[lane] += d[unit, lane]
    for unit in range(units):
        for lane in range(lanes):
            d[unit, lane] = d[unit, lane] / total[lane] - targets[unit, lane]
    for lane in range(num):
        right += best[lane] == wanted[lane]
        most[lane] += np.float32(math.log(total[lane]))
        for unit in range(units):
            loss += targets[unit, lane] * (most[lane] - a[unit, lane])
    _mean_over(d, num, share)
    return loss, right


def _elementwise_loss(of_output: Callable[[Any, Any], Any]) -> Any:
    """Make a loss that is a mean over units, of a function of output and target: its value and its derivative."""
    of_output = _compiled(of_output)

    @_compiled
    def loss(a: Any, targets: Any, num: int, threshold: Any, d: Any, share: Any) -> Any:
        total, right = 0.0, 0.0
        for unit in range(a.shape[0]):
            for lane in range(num):
                value, d[unit, lane] = of_output(a[unit, lane], targets[unit, lane])
                total += value
                right += (_1 if a[unit, lane] > threshold else _0) == targets[unit, lane]
        _mean_over(d, num, share / np.float32(a.shape[0]))
        return total / a.shape[0], right / a.shape[0]

    return loss


def _binary_of_probabilities(added: Any) -> Any:
    """Make a loss that adds a number to everything that it takes a logarithm of."""
    # Keras cuts probabilities at this distance from 0 and 1, and nothing is learned from a probability that was cut.
    least = np.float32(1e-7)

    def of_output(a: Any, target: Any) -> Any:
        output = _between(a, least, _1 - least)
        yes, no = output + added, _1 - output + added
        slope = (_1 - target) / no - target / yes if output == a else _0
        return -target * math.log(yes) - (_1 - target) * math.log(no), slope

    return _elementwise_loss(of_output)


LOSSES: dict[str, Any] = {
    "sparse_categorical_crossentropy": _categorical,  # its targets are made categorical
    "categorical_crossentropy": _categorical,
    "binary_crossentropy": _elementwise_loss(
        # In this form no exponential overflows, whatever the sign of z.
        lambda z, target: ((z if z > _0 else _0) - z * target + math.log1p(_exp(-abs(z))), _logistic(z) - target)
    ),
    "binary_crossentropy of probabilities": _binary_of_probabilities(_0),
    "binary_crossentropy of probabilities, tf_keras": _binary_of_probabilities(np.float32(1e-7)),
    "mean_squared_error": _elementwise_loss(lambda a, target: ((a - target) * (a - target), _2 * (a - target))),
}


# --- Optimizers. Each changes weights and two slots of them by gradients and the numbers of a step.


@_compiled
def _sgd(p: Any, g: Any, m: Any, s: Any, numbers: Any) -> None:
    decay, rate, momentum, nesterov = numbers[0], numbers[1], numbers[2], numbers[3]
    # Decay takes its share of the weight from before the step, as in Keras.
    for i in range(p.size):
        m[i] = m[i] * momentum - g[i] * rate
        p[i] = p[i] - p[i] * decay + (m[i] * momentum - g[i] * rate if nesterov > _0 else m[i])


@_compiled
def _adam(p: Any, g: Any, m: Any, s: Any, numbers: Any) -> None:
    decay, alpha, first, second, epsilon = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    for i in range(p.size):
        m[i] += (g[i] - m[i]) * first
        s[i] += (g[i] * g[i] - s[i]) * second
        p[i] = p[i] - p[i] * decay - m[i] * alpha / (math.sqrt(s[i]) + epsilon)


def _sgd_numbers(optimizer: Any, rates: np.ndarray, counts: np.ndarray) -> list[Any]:
    momentum = np.float32(optimizer.momentum)
    return [rates, momentum, np.float32(optimizer.nesterov and momentum != 0)]


def _adam_numbers(optimizer: Any, rates: np.ndarray, counts: np.ndarray) -> list[Any]:
    first, second = np.float32(optimizer.beta_1), np.float32(optimizer.beta_2)
    # Kingma & Ba 2015, end of section 2: both corrections are in the rate, so epsilon is not corrected, as in Keras.
    alpha = rates * np.sqrt(_1 - second**counts) / (_1 - first**counts)
    return [alpha, _1 - first, _1 - second, np.float32(optimizer.epsilon)]


class Optimizer(NamedTuple):
    """How weights are updated."""

    update: Any
    numbers: Any  # of a step, besides the decay of weights: from Keras' optimizer, the rates, and the counts of steps
    slots: tuple[str, str]  # Keras' names of them


OPTIMIZERS: dict[str, Optimizer] = {
    "SGD": Optimizer(_sgd, _sgd_numbers, ("momentums", "")),
    "Adam": Optimizer(_adam, _adam_numbers, ("_momentums", "_velocities")),
    "AdamW": Optimizer(_adam, _adam_numbers, ("_momentums", "_velocities")),
}


def _name_apart(name: str, function: Any) -> None:
    """Give a closure, and the functions that it calls, names of their own.

    Numba tells compiled functions apart by name, types and a number, which begins anew in each process. A process that
    loads two kernels which two others have compiled would take one closure of a name for another.
    """
    closure = function.py_func.__closure__
    if closure is None:
        return
    function.py_func.__qualname__ = name
    for place, cell in zip(function.py_func.__code__.co_freevars, closure, strict=True):
        if hasattr(cell.cell_contents, "py_func"):
            cell.cell_contents.py_func.__qualname__ = f"{name}.{place}"


for _name, _activation in ACTIVATIONS.items():
    _name_apart(_name, _activation.function)
for _name, _function in LOSSES.items():
    _name_apart(_name, _function)


# --- Networks.

LINEAR, ACTIVATION, MOMENTS, NORMALISATION, POOLING = range(5)  # kinds of operations


def _columns(integers: str, singles: str = "", doubles: str = "") -> np.dtype:
    kinds = ((integers, np.int64), (singles, np.float32), (doubles, np.float64))
    return np.dtype([(name, kind) for names, kind in kinds for name in names.split()])


# Numbers of tensors, functions, passes and parameters are places in their tables; what is missing is -1. Other numbers
# are lengths, in lanes. `adds` says if outputs are added to what is there, `clips` if a relu is part of the operation,
# `source_needed` if the source has gradients, `source_adds` if some are there, and `source_clips` if a relu wrote the
# source, so that the operation clips their gradients. From a block of a tensor's values to the next it is `block`, of
# its gradients `slopes_block`; 0 where all blocks take turns in one place. `writer` is the normalisation that writes
# such values anew before the gradients of weights read them.
OPERATION = _columns(
    "kind source target adds source_needed source_adds source_clips first_weight last_weight bias first_pass last_pass "
    "cells is_single writer function gamma beta channel is_unbiased clips height width down right top left",
    singles="epsilon stays moves",  # of moving statistics, the shares that stay and that come from the batch
    doubles="l1 l2",
)
PASS = _columns(
    "rows channels plane lowest chunks step source_group target_group is_wide first_begin first_targets "
    "first_offsets first_places first_tiles last_tile"
)
TENSOR = _columns("start height width channels row plane block slopes_block")

_ACTIVATIONS = tuple(activation.function for activation in ACTIVATIONS.values())
_LOSSES = tuple(LOSSES.values())
_UPDATES = tuple(optimizer.update for optimizer in OPTIMIZERS.values())


class Layout(NamedTuple):
    """The structure of a network under masks; see `lottery.sparse.packing`."""

    operations: np.ndarray  # of `OPERATION`
    passes: np.ndarray  # of `PASS`
    tensors: np.ndarray  # of `TENSOR`; then for operations on each value, where a vector is a row of one channel; then
    # the images inside padded ones
    phases: np.ndarray  # int64, of each: the first and the last run, and how many blocks are taken at once
    runs: np.ndarray  # int64, of each: the first and the last operation, the channels, and how many are taken at once
    begin: np.ndarray  # int64, for each chunk and row of each pass, the place of its first weight; and the last
    targets: np.ndarray  # int64, of each row of each pass, where it writes
    offsets: np.ndarray  # int32, of each weight in each list, where it reads
    places: np.ndarray  # int32, of each weight in each list, its place among the parameters
    tiles: np.ndarray  # int64, of each tile of each pass: its form, where it reads, and where it writes
    features: np.ndarray  # int64, the entries of an example that are read, and
    inputs: np.ndarray  # int64, where they are written
    output: int  # the tensor of the outputs
    num_cells: int
    num_channels: int  # of all normalisations
    loss: int  # the place in `LOSSES`
    threshold: float  # float32, of outputs of one class or the other
    update: int  # the place in `OPTIMIZERS`


class Memory(NamedTuple):
    """What a network computes with; it holds nothing from one step to the next."""

    a: np.ndarray  # float32, the values of all tensors
    d: np.ndarray  # float32, their gradients, which have the same places
    values: np.ndarray  # float32, of each weight in each list
    cells: np.ndarray  # float32, see `_tile_of_gradients`
    channels: np.ndarray  # float64, sums of each normalised channel, see `_FROM`
    lanes: np.ndarray  # float32, two vectors of sums
    targets: np.ndarray  # float32, (blocks, targets, lanes)
    gradients: np.ndarray  # float32, of the parameters


class Examples(NamedTuple):
    """A split of the data."""

    x: np.ndarray  # (examples, features), uint8 or float32
    mean: np.ndarray  # float32, what is taken off each feature, and
    factor: np.ndarray  # float32, by what the rest is multiplied
    scale: np.ndarray  # float32, by what each example is multiplied
    targets: np.ndarray  # float32, (examples, targets)
    margin: int  # rows and columns of zeros around an image that is cropped
    height: int  # of an image, and
    width: int
    channels: int


class Batches(NamedTuple):
    """What some steps take, or the parts of an evaluation."""

    positions: np.ndarray  # int32, (steps, examples), of the examples in their split; -1 where there is none
    crops: np.ndarray  # int32, (steps, examples, 3): row, column and flip of each example; or (steps, 0, 3)
    numbers: np.ndarray  # float32, (steps, ...), the optimizer's; (0, ...) in an evaluation


class State(NamedTuple):
    """What training changes, all float32."""

    parameters: np.ndarray
    means: np.ndarray  # the moving ones, of each normalised channel
    variances: np.ndarray
    first_slot: np.ndarray  # the optimizer's, of each parameter
    second_slot: np.ndarray


# --- Layers with weights.


@_compiled
def _prefetch_channels(pass_: Any, row: int, array: Any, start: int) -> None:
    """Ask for what the next tile reads besides what this one does, in a share of the channels."""
    for channel in range(row, pass_.channels, pass_.rows):
        _prefetch(array, start + channel * pass_.plane + pass_.lowest)


@_compiled
def _outputs(layout: Any, memory: Any, parameters: Any, operation: Any, number: int, first: int, last: int) -> None:
    """Write what a pass of a layer makes of some blocks: the first its outputs, others the gradients of its inputs."""
    pass_, is_forward = layout.passes[number], number == operation.first_pass
    values = memory.a if is_forward else memory.d
    read = layout.tensors[operation.source if is_forward else operation.target]
    written = layout.tensors[operation.target if is_forward else operation.source]
    has_bias, adds = is_forward and operation.bias >= 0, not is_forward and operation.source_adds != 0
    clips = UNCLIPPED
    if is_forward and operation.clips:
        clips = BELOW_ZERO
    elif not is_forward and operation.source_clips:
        clips = BY_RESULTS
    for block in range(first, first + 1 if pass_.is_wide else last):  # the tiles of a wide pass are of all blocks
        read_block = read.start + block * (read.block if is_forward else read.slopes_block)
        results_block = written.start + block * written.block
        write_block = results_block if is_forward else written.start + block * written.slopes_block
        for tile in range(pass_.first_tiles, pass_.last_tile):
            form, read_at, write_at = layout.tiles[tile]
            following = layout.tiles[min(tile + 1, pass_.last_tile - 1)]
            for chunk in range(pass_.chunks):
                list_of_row = pass_.first_begin + chunk * pass_.rows
                for row in range(pass_.rows):
                    begin, end = layout.begin[list_of_row + row], layout.begin[list_of_row + row + 1]
                    target = layout.targets[pass_.first_targets + row]
                    if chunk == 0 and not pass_.is_wide:
                        _prefetch(values, write_block + target + following[2])
                        _prefetch_channels(pass_, row, values, read_block + following[1])
                        if clips == BY_RESULTS:
                            _prefetch(memory.a, results_block + target + following[2])
                    is_added = adds or chunk > 0
                    clipped = clips if chunk == pass_.chunks - 1 else UNCLIPPED  # only whole sums
                    if begin == end and is_added and clipped == UNCLIPPED:
                        continue
                    _tile_of_outputs(
                        memory.values, layout.offsets, begin, end, form, values, read_block + read_at,
                        pass_.source_group, values, write_block + target + write_at, pass_.target_group, pass_.step,
                        parameters[operation.bias + row] if has_bias else _0, is_added, clipped, memory.a,
                        results_block + target + write_at,
                    )  # fmt: skip


@_compiled
def _gradients(layout: Any, memory: Any, operation: Any, first: int, last: int) -> None:
    """Add the gradients of a layer's weights and biases over some blocks."""
    pass_ = layout.passes[operation.first_pass]
    read, made = layout.tensors[operation.source], layout.tensors[operation.target]
    num_weights = layout.begin[pass_.first_begin + pass_.chunks * pass_.rows] - layout.begin[pass_.first_begin]
    num_cells = num_weights + (pass_.rows if operation.bias >= 0 else 0)
    size = 1 if operation.is_single else WIDTH
    cells = memory.cells[operation.cells : operation.cells + num_cells * size]
    if first == 0:
        _set(cells, _0)
    for chunk in range(pass_.chunks):  # outermost, so that its cells stay in a cache
        list_of_row = pass_.first_begin + chunk * pass_.rows
        for block in range(first, first + 1 if pass_.is_wide else last):
            read_block, made_block = read.start + block * read.block, made.start + block * made.slopes_block
            for tile in range(pass_.first_tiles, pass_.last_tile):
                form, read_at, made_at = layout.tiles[tile]
                following = layout.tiles[min(tile + 1, pass_.last_tile - 1)]
                for row in range(pass_.rows):
                    begin, end = layout.begin[list_of_row + row], layout.begin[list_of_row + row + 1]
                    has_bias = operation.bias >= 0 and chunk == 0
                    if begin == end and not has_bias:
                        continue
                    if not pass_.is_wide:
                        _prefetch(memory.d, made_block + following[2] + layout.targets[pass_.first_targets + row])
                        if chunk == 0:
                            _prefetch_channels(pass_, row, memory.a, read_block + following[1])
                    _tile_of_gradients(
                        cells, layout.offsets, begin, end, form, memory.a, read_block + read_at, pass_.source_group,
                        memory.d, made_block + made_at + layout.targets[pass_.first_targets + row], pass_.target_group,
                        -layout.begin[pass_.first_begin], num_weights + row if has_bias else -1,
                        operation.is_single != 0,
                    )  # fmt: skip
    if last == len(memory.targets):
        first_weight = layout.begin[pass_.first_begin]
        for number in range(num_cells):
            is_weight = number < num_weights
            place = layout.places[first_weight + number] if is_weight else operation.bias + number - num_weights
            memory.gradients[place] += cells[number] if operation.is_single else _sum_of(cells, number * WIDTH)


@_inlined
def _linear(layout: Any, memory: Any, parameters: Any, operation: Any, first: int, last: int, is_forward: Any) -> None:
    """Compute the outputs of a layer over some blocks; or backward the gradients of its weights and its inputs."""
    if is_forward:
        _outputs(layout, memory, parameters, operation, operation.first_pass, first, last)
        return
    if operation.writer >= 0:
        writer = layout.operations[operation.writer]
        for channel in range(layout.tensors[operation.source].channels):
            _write_normalised(layout, memory, writer, first, channel)
    _gradients(layout, memory, operation, first, last)
    if operation.source_needed:
        for number in range(operation.first_pass + 1, operation.last_pass):
            _outputs(layout, memory, parameters, operation, number, first, last)


# --- Operations on a channel of a block, forward or backward. They go row by row: the zeros around an image stay.


@_compiled
def _activation(layout: Any, memory: Any, operation: Any, block: int, channel: int, is_forward: Any) -> None:
    """Go through an activation; without a function, a tensor is copied to a sum, or to an image among zeros.

    One that `clips` is a relu, or a sum and a relu in one.
    """
    z, a = layout.tensors[operation.source], layout.tensors[operation.target]
    read, written = _values(memory, z, block, channel), _values(memory, a, block, channel)
    of_read, of_written = _slopes(memory, z, block, channel), _slopes(memory, a, block, channel)
    is_apart = a.start != z.start
    if is_forward and (is_apart or operation.clips):
        _scale(read, written, _1, _0, _least(operation), operation.adds != 0)
    index = 0
    for function in literal_unroll(_ACTIVATIONS):
        if operation.function == index:
            function(read, written, of_written, is_forward)
        index += 1
    if not is_forward and operation.clips:
        _clip(written, of_written)
    if is_apart and not is_forward and operation.source_needed:
        _scale(of_written, of_read, _1, _0, -_INFINITE, operation.source_adds != 0)


@_compiled
def _least(operation: Any) -> Any:
    """Return the lowest output of an operation."""
    return _0 if operation.clips else -_INFINITE


# --- Pooling.


@_compiled
def _columns_inside(operation: Any, image: Any, pooled: Any, place: int) -> tuple[int, int]:
    """Return the first and last of the columns of windows whose entry at a place of their width is in the image."""
    first = max(0, -((place - operation.left) // operation.right))
    last = min(pooled.width, (image.width - 1 - place + operation.left) // operation.right + 1)
    return first, max(first, last)


@_compiled
def _rows_inside(operation: Any, image: Any, row: int) -> tuple[int, int]:
    """Return the first and last row of the image in a row of windows."""
    top = row * operation.down - operation.top
    return max(top, 0), min(top + operation.height, image.height)


@_compiled
def _mean(operation: Any, image: Any, row: int, values: Any) -> None:
    """Divide each value of a row of windows by the number of entries in the window."""
    top, bottom = _rows_inside(operation, image, row)
    for column in range(values.size // WIDTH):
        left = column * operation.right - operation.left
        share = _1 / np.float32((bottom - top) * (min(left + operation.width, image.width) - max(left, 0)))
        for lane in range(column * WIDTH, (column + 1) * WIDTH):
            values[lane] *= share


@_compiled
def _pooling(layout: Any, memory: Any, operation: Any, block: int, channel: int, is_forward: Any) -> None:
    """Backward, give the gradient of a mean to all values in equal shares, and of a maximum to the first of it."""
    image, pooled = layout.tensors[operation.source], layout.tensors[operation.target]
    read, written = _values(memory, image, block, channel), _values(memory, pooled, block, channel)
    of_read, of_written = _slopes(memory, image, block, channel), _slopes(memory, pooled, block, channel)
    is_mean, step = operation.function == 1, operation.right * WIDTH
    left_over = np.empty(pooled.width * WIDTH, np.float32)
    if not is_forward and not operation.source_needed:
        return
    if not is_forward and operation.clips:
        _clip(written, of_written)
    if not is_forward and not operation.source_adds:
        for row in range(image.height):
            _set(_row(of_read, row), _0)
    for row in range(pooled.height):
        windows = _row(written, row)
        if is_forward:
            _set(windows, _0 if is_mean else _least(operation))
        else:
            _give(_row(of_written, row), left_over)
            if is_mean:
                _mean(operation, image, row, left_over)
        top, bottom = _rows_inside(operation, image, row)
        for y in range(top, bottom):
            values, slopes = _row(read, y), _row(of_read, y)
            for place in range(operation.width):
                first, last = _columns_inside(operation, image, pooled, place)
                at, num = first * step + (place - operation.left) * WIDTH, last - first
                if is_forward and is_mean:
                    _add_to_windows(values, slopes, at, step, windows, left_over, first * WIDTH, num)
                elif is_forward:
                    _keep_highest(values, slopes, at, step, windows, left_over, first * WIDTH, num)
                elif is_mean:
                    _add_to_image(values, slopes, at, step, windows, left_over, first * WIDTH, num)
                else:
                    _give_to_highest(values, slopes, at, step, windows, left_over, first * WIDTH, num)
        if is_forward and is_mean:
            _mean(operation, image, row, windows)


# --- Batch normalisation, forward and backward in two halves: sums over all blocks, and what takes them. Of each
# --- channel, `Memory.channels` has what is taken off its values, so that no digits are lost where the mean is far from
# --- zero; two sums, forward of values and their squares, backward of gradients and gradient times normalised value;
# --- mean and 1 / deviation; and the float32 numbers that scale and shift values. A relu after it is part of it, where
# --- nothing else reads what is normalised: one that `clips` writes no number below zero. Backward, values are scaled
# --- and shifted again, to see which those were: that takes less time than to read the outputs.

_FROM, _TOTAL, _PRODUCT, _MEAN, _INVERSE, _SCALE, _SHIFT = range(7)
NUM_SUMS = 7


@_compiled
def _clips_by(operation: Any, sums: Any) -> Any:
    """Return scale and shift of values, whose gradients count where the result is above zero."""
    return (np.float32(sums[_SCALE]), np.float32(sums[_SHIFT])) if operation.clips else (_0, _1)


@_compiled
def _moments(layout: Any, memory: Any, operation: Any, num: int, block: int, channel: int, is_forward: Any) -> None:
    """Add a block's part to the two sums of a channel."""
    x, z = layout.tensors[operation.source], layout.tensors[operation.target]
    sums, lanes = memory.channels[operation.channel + channel], memory.lanes
    values, slopes = _values(memory, x, block, channel), _slopes(memory, z, block, channel)
    if block == 0:
        sums[_TOTAL], sums[_PRODUCT] = 0.0, 0.0
        if is_forward:
            sums[_FROM] = _row(values, 0)[0]
    origin = np.float32(sums[_FROM] if is_forward else sums[_MEAN])
    inverse = 1.0 if is_forward else sums[_INVERSE]
    if is_forward:
        _add_products(values, origin, values, origin, _0, _1, lanes)
    else:
        scale, shift = _clips_by(operation, sums)
        _add_products(slopes, _0, values, origin, scale, shift, lanes)
    for lane in range(WIDTH):
        if block * WIDTH + lane < num:
            sums[_TOTAL] += lanes[lane]
            sums[_PRODUCT] += lanes[WIDTH + lane] * inverse


@_compiled
def _end_moments(sums: Any, state: Any, operation: Any, channel: int, count: int, is_training: Any) -> None:
    """Compute mean and deviation of a channel, and move its moving statistics, before the first block."""
    place = operation.channel + channel
    if is_training:
        shift = sums[_TOTAL] / count
        variance = max(sums[_PRODUCT] / count - shift * shift, 0.0)
        sums[_MEAN] = sums[_FROM] + shift
        of_all = variance * (count / max(count - 1, 1)) if operation.is_unbiased else variance
        state.means[place] = state.means[place] * operation.stays + np.float32(sums[_MEAN]) * operation.moves
        state.variances[place] = state.variances[place] * operation.stays + np.float32(of_all) * operation.moves
    else:
        sums[_MEAN], variance = state.means[place], state.variances[place]
    sums[_INVERSE] = 1 / math.sqrt(variance + operation.epsilon)
    scale = np.float32(sums[_INVERSE])
    scale = scale * state.parameters[operation.gamma + channel] if operation.gamma >= 0 else scale
    shift = state.parameters[operation.beta + channel] if operation.beta >= 0 else _0
    sums[_SCALE], sums[_SHIFT] = scale, shift - np.float32(sums[_MEAN]) * scale


@_compiled
def _write_normalised(layout: Any, memory: Any, operation: Any, block: int, channel: int) -> None:
    """Write the normalised values of a channel of a block, by the numbers of the channel."""
    x, z = layout.tensors[operation.source], layout.tensors[operation.target]
    values, target = _values(memory, x, block, channel), _values(memory, z, block, channel)
    sums = memory.channels[operation.channel + channel]
    _scale(values, target, np.float32(sums[_SCALE]), np.float32(sums[_SHIFT]), _least(operation), _NO)


@_compiled
def _normalise(
    layout: Any, memory: Any, state: Any, operation: Any, num: int, block: int, channel: int, is_training: Any
) -> None:
    """Write the normalised values of a channel of a block, and before the first block what scales and shifts them."""
    if block == 0:
        x, sums = layout.tensors[operation.source], memory.channels[operation.channel + channel]
        _end_moments(sums, state, operation, channel, num * x.height * x.width, is_training)
    _write_normalised(layout, memory, operation, block, channel)


@_compiled
def _normalise_backward(
    layout: Any, memory: Any, parameters: Any, operation: Any, num: int, block: int, channel: int
) -> None:
    """Write the gradients of a channel's scale and shift, and, of a block, of what was normalised."""
    x, z = layout.tensors[operation.source], layout.tensors[operation.target]
    count, sums = num * x.height * x.width, memory.channels[operation.channel + channel]
    scale = parameters[operation.gamma + channel] if operation.gamma >= 0 else _1
    if block == 0 and operation.gamma >= 0:
        memory.gradients[operation.gamma + channel] = np.float32(sums[_PRODUCT])
    if block == 0 and operation.beta >= 0:
        memory.gradients[operation.beta + channel] = np.float32(sums[_TOTAL])
    if not operation.source_needed:
        return
    # factor * (d - of_all - (x - mean) * slope), with all numbers of the channel put together
    factor = scale * np.float32(sums[_INVERSE])
    slope = -factor * np.float32(sums[_PRODUCT] / count * sums[_INVERSE])
    shift = -factor * np.float32(sums[_TOTAL] / count)
    clip_scale, clip_shift = _clips_by(operation, sums)
    of_values = _slopes(memory, x, block, channel)
    _slopes_of_normalised(
        _slopes(memory, z, block, channel), _values(memory, x, block, channel), of_values, clip_scale, clip_shift,
        factor, np.float32(sums[_MEAN]), slope, shift, operation.source_adds != 0,
    )  # fmt: skip
    if block == len(memory.targets) - 1 and num % WIDTH:
        for row in range(x.height):
            slopes = _row(of_values, row)
            for lane in range(num % WIDTH, WIDTH):  # without an example
                for place in range(lane, slopes.size, WIDTH):
                    slopes[place] = _0


# --- Steps and evaluations.


@_compiled
def _fill(layout: Any, memory: Any, examples: Any, positions: Any, num: int, crops: Any) -> None:
    """Write the inputs and the targets of a batch; lanes without an example repeat its first."""
    image, x = layout.tensors[0], examples.x.reshape(-1)
    scale, first = np.empty(WIDTH, np.float32), np.empty(WIDTH, np.int64)
    moved = np.zeros((WIDTH, 3), np.int64)  # down, right, and the direction of columns
    for block in range(memory.targets.shape[0]):
        for lane in range(WIDTH):
            number = block * WIDTH + lane
            number = number if number < num else 0
            position = positions[number]
            if crops.size:
                down, right, flips = crops[number]
                moved[lane, 0], moved[lane, 2] = down - examples.margin, -1 if flips else 1
                moved[lane, 1] = right - examples.margin + (examples.width - 1 if flips else 0)
            scale[lane], first[lane] = examples.scale[position], position * examples.x.shape[1]
            for target in range(memory.targets.shape[1]):
                memory.targets[block, target, lane] = examples.targets[position, target]
        start = image.start + block * image.block
        for i in range(layout.features.size):
            feature = layout.features[i]
            mean, factor = examples.mean[feature], examples.factor[feature]
            pixels = memory.a[start + layout.inputs[i] : start + layout.inputs[i] + WIDTH]
            if crops.size:
                pixel, channel = divmod(feature, examples.channels)
                row, column = divmod(pixel, examples.width)
                for lane in range(WIDTH):
                    y, across = row + moved[lane, 0], column * moved[lane, 2] + moved[lane, 1]
                    is_inside = 0 <= y < examples.height and 0 <= across < examples.width
                    place = (y * examples.width + across) * examples.channels + channel
                    pixels[lane] = x[first[lane] + place] if is_inside else _0
            else:
                for lane in range(WIDTH):  # a loop of its own: reads from here and there are no vectors
                    pixels[lane] = x[first[lane] + feature]
            for lane in range(WIDTH):
                pixels[lane] = (pixels[lane] - mean) * factor * scale[lane]


@_inlined
def _operate(
    layout: Any, memory: Any, state: Any, operation: Any, block: int, channel: int, num: int, is_training: Any,
    is_forward: Any,
) -> None:  # fmt: skip
    """Do an operation on a channel of a block, forward or backward."""
    if operation.kind == ACTIVATION:
        _activation(layout, memory, operation, block, channel, is_forward)
    elif operation.kind == POOLING:
        _pooling(layout, memory, operation, block, channel, is_forward)
    elif (operation.kind == MOMENTS) == is_forward:  # backward, the second half of a normalisation comes first
        if is_training:
            _moments(layout, memory, operation, num, block, channel, is_forward)
    elif is_forward:
        _normalise(layout, memory, state, operation, num, block, channel, is_training)
    else:
        _normalise_backward(layout, memory, state.parameters, operation, num, block, channel)


@_compiled
def _in_turn(first: int, last: int, is_forward: Any) -> Any:
    return range(first, last, 1) if is_forward else range(last - 1, first - 1, -1)


@_compiled
def _propagate(layout: Any, memory: Any, state: Any, num: int, is_training: Any, is_forward: Any) -> None:
    """Compute the values of all tensors for a batch; or backward, from those of the outputs, all gradients."""
    num_blocks = memory.targets.shape[0]
    for phase in _in_turn(0, len(layout.phases), is_forward):
        begin, end, size = layout.phases[phase]
        for first in range(0, num_blocks, size):
            last = min(first + size, num_blocks)
            for run in _in_turn(begin, end, is_forward):
                first_operation, last_operation, num_channels, at_once = layout.runs[run]
                for first_channel in range(0, num_channels, at_once):
                    for number in _in_turn(first_operation, last_operation, is_forward):
                        operation = layout.operations[number]
                        if operation.kind == LINEAR:  # whose channels are never divided
                            _linear(layout, memory, state.parameters, operation, first, last, is_forward)
                            continue
                        for block in range(first, last):
                            for channel in range(first_channel, first_channel + at_once):
                                _operate(layout, memory, state, operation, block, channel, num, is_training, is_forward)


@_compiled
def _penalty(layout: Any, parameters: Any, gradients: Any) -> float:
    """Return what the regularisers add to the loss, and add their gradients."""
    penalty = 0.0
    for number in range(len(layout.operations)):
        operation = layout.operations[number]
        l1, l2 = operation.l1, operation.l2
        if l1 == 0 and l2 == 0:
            continue
        for place in range(operation.first_weight, operation.last_weight):
            weight = parameters[place]
            sign = _1 if weight > _0 else -_1 if weight < _0 else _0
            penalty += l1 * abs(weight) + l2 * weight * weight
            gradients[place] += np.float32(l1) * sign + _2 * np.float32(l2) * weight
    return penalty


@_compiled
def _loss(layout: Any, memory: Any, num: int, positions: Any, classes: Any) -> tuple[float, float]:
    """Add up the losses of a batch and the examples that are right, and write the gradients of the mean loss.

    If there are `classes`, write the highest output of each example there.
    """
    outputs = layout.tensors[layout.output]
    size, best, most = outputs.channels * WIDTH, np.empty(WIDTH, np.int64), np.empty(WIDTH, np.float32)
    loss, right = 0.0, 0.0
    for block in range(memory.targets.shape[0]):
        left = min(num - block * WIDTH, WIDTH)
        at = outputs.start + block * outputs.block
        a = memory.a[at : at + size].reshape(outputs.channels, WIDTH)
        d = memory.d[at : at + size].reshape(outputs.channels, WIDTH)
        index = 0
        for function in literal_unroll(_LOSSES):
            if layout.loss == index:
                found = function(a, memory.targets[block], left, layout.threshold, d, _1 / np.float32(num))
                loss += found[0]
                right += found[1]
            index += 1
        if classes.size:
            _highest(a, best, most)
            for lane in range(left):
                classes[positions[block * WIDTH + lane]] = best[lane]
    return loss, right


@_compiled
def _update(layout: Any, memory: Any, state: Any, numbers: Any) -> None:
    index = 0
    for update in literal_unroll(_UPDATES):
        if layout.update == index:
            update(state.parameters, memory.gradients, state.first_slot, state.second_slot, numbers)
        index += 1


@_compiled_once
def compute(layout: Any, memory: Any, state: Any, examples: Any, batches: Any, sums: Any, classes: Any) -> float:
    """Take steps, which change the state, or evaluate; for two functions, numba would compile all that they call twice.

    The mean loss and the accuracy of each step are added to the two `sums`, float64, one after the other: the sums of
    two calls would round in another way than those of one. An evaluation adds the sums over its examples, and writes
    the highest output of each to `classes`; it returns what the regularisers add to the loss.
    """
    layout, memory, state = _uncounted(layout), _uncounted(memory), _uncounted(state)
    is_training, penalty = len(batches.numbers) > 0, 0.0
    for step in range(len(batches.positions)):
        positions = batches.positions[step]
        num = np.sum(positions >= 0)
        _fill(layout, memory, examples, positions, num, batches.crops[step])
        for place in range(memory.values.size):
            memory.values[place] = state.parameters[layout.places[place]]
        _propagate(layout, memory, state, num, is_training, _YES)
        loss, right = _loss(layout, memory, num, positions, classes)
        _set(memory.gradients, _0)
        if is_training:
            _propagate(layout, memory, state, num, is_training, _NO)
        penalty = _penalty(layout, state.parameters, memory.gradients)
        if is_training:
            sums[0] += loss / num + penalty
            sums[1] += right / num
            _update(layout, memory, state, batches.numbers[step])
        else:
            sums[0] += loss
            sums[1] += right
    return penalty
