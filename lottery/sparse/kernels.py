"""Steps and evaluations of a network of dense layers at the cost of the weights that survive.

All units of the network are numbered through: those inputs that any weight reads, then layer after layer. A row of
weights belongs to each unit but the inputs, and each weight knows the unit that it multiplies, as in a compressed
sparse matrix by rows. The outputs of a unit for a batch lie in a row, an example to a lane.

Everything that numba compiles is in this file: its cache on disk notices changes of the file of a function alone.
"""
# ruff: noqa: SIM113 (numba unrolls no `enumerate`)

import functools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import float32, literal_unroll, njit, types
from numba.core import cgutils
from numba.core.errors import NumbaExperimentalFeatureWarning
from numba.extending import intrinsic

WIDTH = 16  # lanes of a vector; rows have a multiple of them
LANES = 64  # of the largest block; so many examples are evaluated together

# Functions in a tuple work; numba says that their interface may change.
warnings.filterwarnings("ignore", category=NumbaExperimentalFeatureWarning)

# Division by zero gives infinity, as in TensorFlow; a check would keep a loop from being compiled to vectors.
_compiled = njit(error_model="numpy")
_compiled_once = njit(error_model="numpy", cache=True)  # on a machine; with everything that it calls


# --- Operations on rows. A plain loop over the lanes would be right, but its compiled form checks at each weight if the
# --- rows overlap. These know that they do not.

_operation: Any = intrinsic
_VECTOR, _LONG, _INT = ir.VectorType(ir.FloatType(), WIDTH), ir.IntType(64), ir.IntType(32)


class _Rows:
    """Writes instructions for the rows of arrays, which it knows by the numbers of their arguments."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self.builder = builder
        self._arrays: list[Any] = [
            context.make_array(kind)(context, builder, argument) if isinstance(kind, types.Array) else None
            for kind, argument in zip(signature.args, arguments, strict=True)
        ]
        self._lanes = builder.extract_value(self._arrays[2].shape, 1)

    def blocks(self) -> Iterator[tuple[Any, int]]:
        """Yield the first lane and the number of vectors of blocks: of 4, which registers hold for a row, 2, 1."""
        for num in (LANES // WIDTH, 2, 1):
            size = num * WIDTH
            begin = _LONG(0) if size == LANES else self.builder.and_(self._lanes, _LONG(-2 * size))
            count = self.builder.udiv(self.builder.sub(self._lanes, begin), _LONG(size))
            with cgutils.for_range(self.builder, count) as loop:
                yield self.builder.add(begin, self.builder.mul(loop.index, _LONG(size))), num

    def weights(self, begin: Any, end: Any) -> Iterator[tuple[Any, Any]]:
        """Go through weights, arrays 0 and 1; yield the place of each, and the unit that it multiplies."""
        with cgutils.for_range(self.builder, self.builder.sub(end, begin)) as loop:
            place = self.builder.add(begin, loop.index)
            yield place, self.builder.sext(self.builder.load(self.at(1, place)), _LONG)

    def at(self, array: int, place: Any) -> Any:
        """Point to an entry of an array."""
        return self.builder.gep(self._arrays[array].data, [place])

    def vectors(self, array: int, unit: Any, lane: Any, num: int) -> list[Any]:
        """Point to vectors that follow each other in the row of a unit."""
        first = self.at(array, self.builder.add(self.builder.mul(unit, self._lanes), lane))
        first = self.builder.bitcast(first, _VECTOR.as_pointer())
        return [self.builder.gep(first, [_LONG(index)]) for index in range(num)]

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


@_operation
def _forward_row(
    typing: Any, weights: Any, sources: Any, a: Any, z: Any, begin: Any, end: Any, bias: Any, unit: Any
) -> Any:
    """Write the inputs of a unit to its row of `z`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, (begin, end, bias, unit) = _Rows(context, builder, signature, arguments), arguments[4:]
        for lane, num in rows.blocks():
            sums = [cgutils.alloca_once(builder, _VECTOR) for _ in range(num)]
            for total in sums:
                builder.store(rows.splat(bias), total)
            for place, source in rows.weights(begin, end):
                weight = rows.splat(builder.load(rows.at(0, place)))
                for part, total in zip(rows.vectors(2, source, lane, num), sums, strict=True):
                    part = builder.load(part, align=4)
                    builder.store(rows.multiply_add(weight, part, builder.load(total)), total)
            for total, target in zip(sums, rows.vectors(3, unit, lane, num), strict=True):
                builder.store(builder.load(total), target, align=4)
        return context.get_dummy_value()

    return types.void(weights, sources, a, z, begin, end, bias, unit), generate


@_operation
def _backward_row(
    typing: Any, weights: Any, sources: Any, a: Any, d: Any, gradients: Any, begin: Any, end: Any, unit: Any, on: Any
) -> Any:
    """Add to the gradients of a unit's weights, and with `on` to those of what it reads; return that of its bias."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, (begin, end, unit, on) = _Rows(context, builder, signature, arguments), arguments[5:]
        of_bias = cgutils.alloca_once_value(builder, ir.Constant(ir.FloatType(), 0.0))
        for lane, num in rows.blocks():
            slopes = [builder.load(pointer, align=4) for pointer in rows.vectors(3, unit, lane, num)]
            total = functools.reduce(builder.fadd, slopes)
            builder.store(builder.fadd(builder.load(of_bias), rows.sum(total)), of_bias)
            for place, source in rows.weights(begin, end):
                inputs = [builder.load(pointer, align=4) for pointer in rows.vectors(2, source, lane, num)]
                total = builder.fmul(slopes[0], inputs[0])
                for slope, part in zip(slopes[1:], inputs[1:], strict=True):
                    total = rows.multiply_add(slope, part, total)
                cell = rows.at(4, place)
                builder.store(builder.fadd(builder.load(cell), rows.sum(total)), cell)
                with builder.if_then(on):
                    weight = rows.splat(builder.load(rows.at(0, place)))
                    for slope, target in zip(slopes, rows.vectors(3, source, lane, num), strict=True):
                        added = rows.multiply_add(weight, slope, builder.load(target, align=4))
                        builder.store(added, target, align=4)
        return builder.load(of_bias)

    return float32(weights, sources, a, d, gradients, begin, end, unit, on), generate


# --- Activations, by Keras' names. Each takes the inputs of many units and lanes as one row, writes the outputs, and
# --- puts the slopes there in the place of the inputs. NaN stays NaN in all.

_0, _LEAK, _HALF, _1, _2, _6, _15 = (np.float32(number) for number in (0, 0.2, 0.5, 1, 2, 6, 15))
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
    x = _between(x, np.float32(-87), np.float32(88))
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


def _elementwise(value: Callable[[Any], Any], slope: Callable[[Any, Any], Any]) -> Any:
    """Make an activation of a function, and of its derivative by the input and the output."""
    value, slope = _compiled(value), _compiled(slope)

    @_compiled
    def activation(z: Any, a: Any) -> None:
        for i in range(z.size):
            a[i] = value(z[i])
            z[i] = slope(z[i], a[i])

    return activation


ACTIVATIONS: dict[str, Any] = {
    "linear": _elementwise(lambda z: z, lambda z, a: _1),
    "relu": _elementwise(lambda z: _0 if z <= _0 else z, lambda z, a: _0 if z <= _0 else _1),
    "relu6": _elementwise(lambda z: _between(z, _0, _6), lambda z, a: _1 if _0 < z < _6 else _0),
    "leaky_relu": _elementwise(lambda z: z if z > _0 else z * _LEAK, lambda z, a: _1 if z > _0 else _LEAK),
    "elu": _elementwise(lambda z: z if z > _0 else _expm1(z), lambda z, a: _1 if z > _0 else a + _1),
    "selu": _elementwise(
        lambda z: _SELU * z if z > _0 else _SELU_ALPHA * _expm1(z), lambda z, a: _SELU if z > _0 else a + _SELU_ALPHA
    ),
    "softsign": _elementwise(lambda z: z / (_1 + abs(z)), lambda z, a: _1 / ((_1 + abs(z)) * (_1 + abs(z)))),
    "softplus": _elementwise(lambda z: (_0 if z <= _0 else z) + math.log1p(_exp(-abs(z))), lambda z, a: _logistic(z)),
    "tanh": _elementwise(_tanh.py_func, lambda z, a: _1 - a * a),
    "sigmoid": _elementwise(_logistic.py_func, lambda z, a: a * (_1 - a)),
    "exponential": _elementwise(_exp.py_func, lambda z, a: a),
    "silu": _elementwise(lambda z: z * _logistic(z), lambda z, a: _logistic(z) * (_1 + z - a)),
    "gelu": _elementwise(
        lambda z: z * _normal_below(z), lambda z, a: _normal_below(z) + z * _exp(-_HALF * z * z) / _ROOT_TWO_PI
    ),
}


# --- Losses. Each takes outputs and targets, both of (units, lanes), the number of lanes that hold an example, and the
# --- threshold of an output that means the second class of two; it writes the gradients of the mean loss by the outputs
# --- and returns the sum of the losses, and of the examples that are right.


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
    """Make gradients of the sum over examples those of the mean, and zero in lanes without an example."""
    for unit in range(d.shape[0]):
        for lane in range(d.shape[1]):
            d[unit, lane] = d[unit, lane] * share if lane < num else _0


@_compiled
def _categorical(a: Any, targets: Any, num: int, threshold: Any, d: Any) -> Any:
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
    _mean_over(d, num, _1 / np.float32(num))
    return loss, right


def _elementwise_loss(of_output: Callable[[Any, Any], Any]) -> Any:
    """Make a loss that is a mean over units, of a function of output and target: its value and its derivative."""
    of_output = _compiled(of_output)

    @_compiled
    def loss(a: Any, targets: Any, num: int, threshold: Any, d: Any) -> Any:
        total, right = 0.0, 0.0
        for unit in range(a.shape[0]):
            for lane in range(num):
                value, d[unit, lane] = of_output(a[unit, lane], targets[unit, lane])
                total += value
                right += (_1 if a[unit, lane] > threshold else _0) == targets[unit, lane]
        _mean_over(d, num, _1 / np.float32(num * a.shape[0]))
        return total / a.shape[0], right / a.shape[0]

    return loss


def _binary_of_probabilities(added: Any) -> Any:
    """Make a loss that adds a number to everything that it takes a logarithm of."""
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


for _name, _function in {**ACTIVATIONS, **LOSSES}.items():
    _name_apart(_name, _function)


# --- Networks, steps and evaluations.

_ACTIVATIONS, _LOSSES = tuple(ACTIVATIONS.values()), tuple(LOSSES.values())
_UPDATES = tuple(optimizer.update for optimizer in OPTIMIZERS.values())


class Layout(NamedTuple):
    """The structure of a network and what it computes at each unit."""

    first: np.ndarray  # int64, the first unit of each layer, of the inputs too; and the number of units
    begin: np.ndarray  # int64, the place of the first weight of each unit behind the inputs; and the number of weights
    sources: np.ndarray  # int32, the unit that each weight multiplies
    reads: np.ndarray  # int64, the feature of an example that each input is
    mean: np.ndarray  # float32, of each input, and
    scale: np.ndarray  # float32, what the rest is multiplied by
    penalties: np.ndarray  # float32, of each layer: l1, l2, and 1 or 0 for biases that are trained
    activations: np.ndarray  # int64, of each layer, the place in `ACTIVATIONS`
    loss: int  # the place in `LOSSES`
    threshold: float  # float32, of outputs of one class or the other
    update: int  # the place in `OPTIMIZERS`


class Examples(NamedTuple):
    """A split of the data."""

    x: np.ndarray  # (examples, features), uint8 or float32
    scale: np.ndarray  # float32, by what each example is multiplied
    targets: np.ndarray  # float32, (examples, targets)


@_compiled
def _fill(network: Any, examples: Any, positions: Any, a: Any, targets: Any) -> None:
    """Write the inputs and the targets of a batch; lanes without an example repeat its first."""
    lanes, x, num_features = a.shape[1], examples.x.reshape(-1), examples.x.shape[1]
    rows, scale = np.empty(lanes, np.int64), np.empty(lanes, np.float32)
    for lane in range(lanes):
        position = positions[lane if lane < positions.size else 0]
        rows[lane], scale[lane] = position * num_features, examples.scale[position]
        for target in range(targets.shape[0]):
            targets[target, lane] = examples.targets[position, target]
    for i in range(network.reads.size):
        feature, mean, of_feature = network.reads[i], network.mean[i], network.scale[i]
        for lane in range(lanes):  # a loop of its own: reads from here and there are no vectors
            a[i, lane] = x[rows[lane] + feature]
        for lane in range(lanes):
            a[i, lane] = (a[i, lane] - mean) * of_feature * scale[lane]


@_compiled
def _forward(network: Any, parameters: Any, z: Any, a: Any) -> float:
    """Compute the outputs of all units, and their slopes in `z`; return what the regularisers add to the loss."""
    first, begin, sources = network.first, network.begin, network.sources
    num_inputs, num_weights, penalty = first[1], begin[-1], 0.0
    for layer in range(first.size - 2):
        start, stop = first[layer + 1], first[layer + 2]
        l1, l2 = network.penalties[layer, 0], network.penalties[layer, 1]
        for unit in range(start, stop):
            row = unit - num_inputs
            _forward_row(parameters, sources, a, z, begin[row], begin[row + 1], parameters[num_weights + row], unit)
            if l1 or l2:
                for weight in parameters[begin[row] : begin[row + 1]]:
                    penalty += l1 * abs(weight) + l2 * weight * weight
        index = 0
        for activation in literal_unroll(_ACTIVATIONS):
            if network.activations[layer] == index:
                activation(z[start:stop].reshape(-1), a[start:stop].reshape(-1))
            index += 1
    return penalty


@_compiled
def _loss(network: Any, a: Any, targets: Any, num: int, d: Any) -> tuple[float, float]:
    index, found = 0, (0.0, 0.0)
    for loss in literal_unroll(_LOSSES):
        if network.loss == index:
            found = loss(a[network.first[-2] :], targets, num, network.threshold, d)
        index += 1
    return found


@_compiled
def _backward(network: Any, parameters: Any, slopes: Any, a: Any, d: Any, gradients: Any) -> None:
    """Compute the gradients of all parameters from those of the outputs, which are in the last rows of `d`."""
    first, begin, sources = network.first, network.begin, network.sources
    num_inputs, num_weights, lanes = first[1], begin[-1], a.shape[1]
    for place in range(gradients.size):
        gradients[place] = _0
    for unit in range(num_inputs, first[-2]):
        for lane in range(lanes):
            d[unit, lane] = _0
    for layer in range(first.size - 3, -1, -1):
        start, stop, goes_on = first[layer + 1], first[layer + 2], layer > 0  # nobody needs those of the inputs
        l1, l2, is_biased = network.penalties[layer]
        for unit in range(start, stop):
            row = unit - num_inputs
            for lane in range(lanes):
                d[unit, lane] *= slopes[unit, lane]
            of_bias = _backward_row(parameters, sources, a, d, gradients, begin[row], begin[row + 1], unit, goes_on)
            gradients[num_weights + row] = of_bias * is_biased
            if l1 or l2:
                for place in range(begin[row], begin[row + 1]):
                    weight = parameters[place]
                    sign = _1 if weight > _0 else -_1 if weight < _0 else _0
                    gradients[place] += l1 * sign + _2 * l2 * weight


@_compiled_once
def train(network: Any, examples: Any, positions: Any, numbers: Any, sums: Any, state: Any) -> None:
    """Take a step for each row of positions of examples, int32, and of the optimizer's numbers, float32.

    This changes the state: the parameters, weights and then biases, and the optimizer's two slots of them. The mean
    loss and the accuracy of each step are added to the two `sums`, float64, one after the other: the sums of two calls
    would round in another way than those of one.
    """
    parameters, first_slot, second_slot = state
    batch_size, num_units, outputs = positions.shape[1], network.first[-1], network.first[-2]
    lanes = (batch_size + WIDTH - 1) // WIDTH * WIDTH
    a, z = np.zeros((num_units, lanes), np.float32), np.zeros((num_units, lanes), np.float32)
    d = np.zeros((num_units, lanes), np.float32)
    targets = np.zeros((examples.targets.shape[1], lanes), np.float32)
    gradients = np.empty_like(parameters)
    for step in range(len(positions)):
        _fill(network, examples, positions[step], a, targets)
        penalty = _forward(network, parameters, z, a)
        found = _loss(network, a, targets, batch_size, d[outputs:])
        sums[0] += found[0] / batch_size + penalty
        sums[1] += found[1] / batch_size
        _backward(network, parameters, z, a, d, gradients)
        index = 0
        for update in literal_unroll(_UPDATES):
            if network.update == index:
                update(parameters, gradients, first_slot, second_slot, numbers[step])
            index += 1


@_compiled_once
def evaluate(network: Any, examples: Any, parameters: Any, classes: Any) -> tuple[float, float]:
    """Return the mean loss and the accuracy over all examples, and write the highest output of each to `classes`."""
    num_units, outputs, num = network.first[-1], network.first[-2], len(examples.x)
    a, z = np.zeros((num_units, LANES), np.float32), np.zeros((num_units, LANES), np.float32)
    d = np.zeros((num_units - outputs, LANES), np.float32)
    targets = np.zeros((examples.targets.shape[1], LANES), np.float32)
    best, most, positions = np.empty(LANES, np.int64), np.empty(LANES, np.float32), np.empty(LANES, np.int32)
    loss, right, penalty = 0.0, 0.0, 0.0
    for start in range(0, num, LANES):
        size = min(LANES, num - start)
        for lane in range(size):
            positions[lane] = start + lane
        _fill(network, examples, positions[:size], a, targets)
        penalty = _forward(network, parameters, z, a)
        found = _loss(network, a, targets, size, d)
        loss += found[0]
        right += found[1]
        _highest(a[outputs:], best, most)
        for lane in range(size):
            classes[start + lane] = best[lane]
    return loss / num + penalty, right / num
