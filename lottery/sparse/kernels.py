"""Steps and evaluations of a network of dense layers at the cost of the weights that survive.

All units of the network are numbered through: those inputs that any weight reads, then layer after layer. A row of
weights belongs to each unit but the inputs, and each weight knows the unit that it multiplies, as in a compressed
sparse matrix by rows. The outputs of a unit for a batch lie in a row, an example to a lane.

Everything that numba compiles is in this file: its cache on disk notices changes of the file of a function alone.
"""
# ruff: noqa: SIM113 (numba unrolls no `enumerate`)

import math
import warnings
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import float32, literal_unroll, njit, types
from numba.core import cgutils
from numba.core.errors import NumbaExperimentalFeatureWarning
from numba.extending import intrinsic

WIDTH = 16  # lanes of a vector; rows have a multiple of them
LANES = 64  # examples that are evaluated together, and that stay in registers over a whole row of weights

# Functions in a tuple work; numba says that their interface may change.
warnings.filterwarnings("ignore", category=NumbaExperimentalFeatureWarning)

# Division by zero gives infinity, as in TensorFlow; a check would keep a loop from being compiled to vectors.
_compiled = njit(error_model="numpy", cache=True)


# --- Operations on vectors. A plain loop over the lanes would be right, but its compiled form checks at each weight if
# --- the rows overlap. These know that they do not.

_VECTOR, _LONG, _INT = ir.VectorType(ir.FloatType(), WIDTH), ir.IntType(64), ir.IntType(32)


class _Generator:
    """Writes the instructions of an operation on rows of arrays, which it knows by the numbers of their arguments."""

    def __init__(self, context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        self.builder = builder
        self._arrays: list[Any] = [
            context.make_array(kind)(context, builder, argument) if isinstance(kind, types.Array) else None
            for kind, argument in zip(signature.args, arguments, strict=True)
        ]

    def at(self, array: int, place: Any) -> Any:
        """Point to an entry of an array."""
        return self.builder.gep(self._arrays[array].data, [place])

    def row(self, array: int, unit: Any, lane: Any, num: int) -> list[Any]:
        """Point to vectors that follow each other in the row of a unit."""
        lanes = self.builder.extract_value(self._arrays[array].shape, 1)
        first = self.at(array, self.builder.add(self.builder.mul(unit, lanes), lane))
        first = self.builder.bitcast(first, _VECTOR.as_pointer())
        return [self.builder.gep(first, [_LONG(index)]) for index in range(num)]

    def load(self, pointer: Any) -> Any:
        return self.builder.load(pointer, align=4)

    def store(self, vector: Any, pointer: Any) -> None:
        self.builder.store(vector, pointer, align=4)

    def unit_read(self, sources: int, place: Any) -> Any:
        """Load the number of the unit that a weight multiplies."""
        return self.builder.sext(self.builder.load(self.at(sources, place)), _LONG)

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
            picks = [ir.Constant(ir.VectorType(_INT, width), [*range(start, start + width)]) for start in (0, width)]
            halves = [self.builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), one) for one in picks]
            vector = self.builder.fadd(*halves)
        return self.builder.extract_element(vector, _INT(0))

    def weights(self, begin: Any, end: Any) -> Any:
        """Loop over the places of weights."""
        return cgutils.for_range(self.builder, self.builder.sub(end, begin))


def _operations(num: int) -> tuple[Any, Any]:
    """Make the two operations on a row for blocks of `num` vectors."""

    @intrinsic
    def _forward(
        typing: Any, weights: Any, sources: Any, a: Any, z: Any, begin: Any, end: Any, bias: Any, unit: Any, lane: Any
    ) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            rows, (begin, end, bias, unit, lane) = _Generator(context, builder, signature, arguments), arguments[4:]
            sums = [cgutils.alloca_once_value(builder, rows.splat(bias)) for _ in range(num)]
            with rows.weights(begin, end) as loop:
                place = builder.add(begin, loop.index)
                weight = rows.splat(builder.load(rows.at(0, place)))
                for part, total in zip(rows.row(2, rows.unit_read(1, place), lane, num), sums, strict=True):
                    builder.store(rows.multiply_add(weight, rows.load(part), builder.load(total)), total)
            for total, target in zip(sums, rows.row(3, unit, lane, num), strict=True):
                rows.store(builder.load(total), target)
            return context.get_dummy_value()

        return types.void(weights, sources, a, z, begin, end, bias, unit, lane), generate

    @intrinsic
    def _backward(
        typing: Any, weights: Any, sources: Any, a: Any, d: Any, gradients: Any,
        begin: Any, end: Any, unit: Any, lane: Any, goes_on: Any,
    ) -> Any:  # fmt: skip
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            rows, (begin, end, unit, lane, goes_on) = _Generator(context, builder, signature, arguments), arguments[5:]
            slopes = [rows.load(one) for one in rows.row(3, unit, lane, num)]
            with rows.weights(begin, end) as loop:
                place, total = builder.add(begin, loop.index), None
                source = rows.unit_read(1, place)
                for slope, part in zip(slopes, rows.row(2, source, lane, num), strict=True):
                    part = rows.load(part)
                    total = rows.multiply_add(slope, part, total) if total else builder.fmul(slope, part)
                cell = rows.at(4, place)
                builder.store(builder.fadd(builder.load(cell), rows.sum(total)), cell)
                with builder.if_then(goes_on):
                    weight = rows.splat(builder.load(rows.at(0, place)))
                    for slope, target in zip(slopes, rows.row(3, source, lane, num), strict=True):
                        rows.store(rows.multiply_add(weight, slope, rows.load(target)), target)
            total = slopes[0]
            for slope in slopes[1:]:
                total = builder.fadd(total, slope)
            return rows.sum(total)

        return float32(weights, sources, a, d, gradients, begin, end, unit, lane, goes_on), generate

    return _forward, _backward


_forward_64, _backward_64 = _operations(LANES // WIDTH)
_forward_32, _backward_32 = _operations(2)
_forward_16, _backward_16 = _operations(1)


# --- Activations, by Keras' names. Each takes the inputs of many units and lanes as one row, writes the outputs, and
# --- puts the slopes there in the place of the inputs. NaN stays NaN in all.

_0, _HALF, _1, _2 = (np.float32(number) for number in (0, 0.5, 1, 2))
_LOG2_E, _LN2_HIGH, _LN2_LOW = np.float32(math.log2(math.e)), np.float32(0.693359375), np.float32(-2.12194440e-4)
_TERMS = tuple(np.float32(1 / math.factorial(power)) for power in range(8))


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
    return np.int32((np.int32(n) + 127) << 23).view(np.float32), r + r * r * rest  # its bits are those of 2**n


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
def _linear(z: Any, a: Any) -> None:
    for i in range(z.size):
        a[i] = z[i]
        z[i] = _1


@_compiled
def _relu(z: Any, a: Any) -> None:
    for i in range(z.size):
        a[i] = _0 if z[i] <= _0 else z[i]
        z[i] = _0 if z[i] <= _0 else _1


@_compiled
def _relu6(z: Any, a: Any) -> None:
    for i in range(z.size):
        a[i] = _between(z[i], _0, np.float32(6))
        z[i] = _1 if _0 < z[i] < np.float32(6) else _0


@_compiled
def _leaky_relu(z: Any, a: Any) -> None:
    for i in range(z.size):
        slope = _1 if z[i] > _0 else np.float32(0.2)
        a[i] = z[i] * slope
        z[i] = slope


@_compiled
def _elu(z: Any, a: Any) -> None:
    for i in range(z.size):
        a[i] = z[i] if z[i] > _0 else _expm1(z[i])
        z[i] = _1 if z[i] > _0 else a[i] + _1


_SELU, _SELU_ALPHA = np.float32(1.0507009873554805), np.float32(1.0507009873554805 * 1.6732632423543772)


@_compiled
def _selu(z: Any, a: Any) -> None:
    for i in range(z.size):
        a[i] = _SELU * z[i] if z[i] > _0 else _SELU_ALPHA * _expm1(z[i])
        z[i] = _SELU if z[i] > _0 else a[i] + _SELU_ALPHA


@_compiled
def _softsign(z: Any, a: Any) -> None:
    for i in range(z.size):
        below = _1 + abs(z[i])
        a[i] = z[i] / below
        z[i] = _1 / (below * below)


@_compiled
def _softplus(z: Any, a: Any) -> None:
    for i in range(z.size):
        a[i] = (z[i] if z[i] > _0 else _0) + math.log1p(_exp(-abs(z[i])))
        z[i] = _logistic(z[i])


@_compiled
def _tanh(z: Any, a: Any) -> None:
    for i in range(z.size):
        grown = _expm1(_2 * _between(z[i], np.float32(-15), np.float32(15)))
        a[i] = grown / (grown + _2)
        z[i] = _1 - a[i] * a[i]


@_compiled
def _sigmoid(z: Any, a: Any) -> None:
    for i in range(z.size):
        a[i] = _logistic(z[i])
        z[i] = a[i] * (_1 - a[i])


@_compiled
def _exponential(z: Any, a: Any) -> None:
    for i in range(z.size):
        a[i] = _exp(z[i])
        z[i] = a[i]


@_compiled
def _silu(z: Any, a: Any) -> None:
    for i in range(z.size):
        part = _logistic(z[i])
        a[i] = z[i] * part
        z[i] = part + a[i] * (_1 - part)


_ROOT_HALF, _ROOT_TWO_PI = np.float32(math.sqrt(0.5)), np.float32(math.sqrt(2 * math.pi))


@_compiled
def _gelu(z: Any, a: Any) -> None:
    for i in range(z.size):
        below = _HALF * (_1 + np.float32(math.erf(z[i] * _ROOT_HALF)))
        a[i] = z[i] * below
        z[i] = below + z[i] * _exp(-_HALF * z[i] * z[i]) / _ROOT_TWO_PI


ACTIVATIONS: dict[str, Any] = {
    "linear": _linear, "relu": _relu, "relu6": _relu6, "leaky_relu": _leaky_relu, "elu": _elu, "selu": _selu,
    "softsign": _softsign, "softplus": _softplus, "tanh": _tanh, "sigmoid": _sigmoid, "exponential": _exponential,
    "silu": _silu, "gelu": _gelu,
}  # fmt: skip


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
def _softmax(a: Any, d: Any, best: Any, logarithms: Any) -> None:
    """Write the softmax of each example, its unit of the highest output, and the logarithm of the sum below it."""
    most, total = np.empty(a.shape[1], np.float32), np.zeros(a.shape[1], np.float32)
    _highest(a, best, most)
    for unit in range(a.shape[0]):
        for lane in range(a.shape[1]):
            d[unit, lane] = _exp(a[unit, lane] - most[lane])
            total[lane] += d[unit, lane]
    for lane in range(a.shape[1]):
        logarithms[lane] = most[lane] + np.float32(math.log(total[lane]))
        total[lane] = _1 / total[lane]
    for unit in range(a.shape[0]):
        for lane in range(a.shape[1]):
            d[unit, lane] *= total[lane]


@_compiled
def _mean_over(d: Any, num: int, share: Any) -> None:
    """Make gradients of the sum over examples those of the mean, and zero in lanes without an example."""
    for unit in range(d.shape[0]):
        for lane in range(d.shape[1]):
            d[unit, lane] = d[unit, lane] * share if lane < num else _0


@_compiled
def _sparse_categorical(a: Any, targets: Any, num: int, threshold: Any, d: Any) -> Any:
    loss, right = 0.0, 0.0
    best, logarithms = np.empty(a.shape[1], np.int64), np.empty(a.shape[1], np.float32)
    _softmax(a, d, best, logarithms)
    for lane in range(num):
        label = int(targets[0, lane])
        loss += logarithms[lane] - a[label, lane]
        right += best[lane] == label
        d[label, lane] -= _1
    _mean_over(d, num, _1 / np.float32(num))
    return loss, right


@_compiled
def _categorical(a: Any, targets: Any, num: int, threshold: Any, d: Any) -> Any:
    loss, right = 0.0, 0.0
    best, logarithms = np.empty(a.shape[1], np.int64), np.empty(a.shape[1], np.float32)
    _softmax(a, d, best, logarithms)
    wanted, most = np.empty_like(best), np.empty_like(logarithms)
    _highest(targets, wanted, most)
    for lane in range(num):
        for unit in range(a.shape[0]):
            loss += targets[unit, lane] * (logarithms[lane] - a[unit, lane])
            d[unit, lane] -= targets[unit, lane]
        right += best[lane] == wanted[lane]
    _mean_over(d, num, _1 / np.float32(num))
    return loss, right


@_compiled
def _binary(a: Any, targets: Any, num: int, threshold: Any, d: Any) -> Any:
    loss, right = 0.0, 0.0
    for unit in range(a.shape[0]):
        for lane in range(num):
            z, target = a[unit, lane], targets[unit, lane]
            loss += (z if z > _0 else _0) - z * target + np.float32(math.log1p(_exp(-abs(z))))
            right += (_1 if z > threshold else _0) == target
            d[unit, lane] = _logistic(z) - target
    _mean_over(d, num, _1 / np.float32(num * a.shape[0]))
    return loss / a.shape[0], right / a.shape[0]


@_compiled
def _binary_beside(a: Any, targets: Any, num: int, threshold: Any, d: Any, added: Any) -> Any:
    loss, right, least = 0.0, 0.0, np.float32(1e-7)
    for unit in range(a.shape[0]):
        for lane in range(num):
            output, target = _between(a[unit, lane], least, _1 - least), targets[unit, lane]
            yes, no = output + added, _1 - output + added
            loss -= target * math.log(yes) + (_1 - target) * math.log(no)
            right += (_1 if a[unit, lane] > threshold else _0) == target
            d[unit, lane] = (_1 - target) / no - target / yes if output == a[unit, lane] else _0
    _mean_over(d, num, _1 / np.float32(num * a.shape[0]))
    return loss / a.shape[0], right / a.shape[0]


@_compiled
def _binary_of_probabilities(a: Any, targets: Any, num: int, threshold: Any, d: Any) -> Any:
    return _binary_beside(a, targets, num, threshold, d, _0)


@_compiled
def _binary_of_tf_keras(a: Any, targets: Any, num: int, threshold: Any, d: Any) -> Any:
    return _binary_beside(a, targets, num, threshold, d, np.float32(1e-7))  # which it adds to what it takes a log of


@_compiled
def _mean_squared(a: Any, targets: Any, num: int, threshold: Any, d: Any) -> Any:
    loss = 0.0
    for unit in range(a.shape[0]):
        for lane in range(num):
            d[unit, lane] = a[unit, lane] - targets[unit, lane]
            loss += d[unit, lane] * d[unit, lane]
    _mean_over(d, num, _2 / np.float32(num * a.shape[0]))
    return loss / a.shape[0], math.nan


LOSSES: dict[str, Any] = {
    "sparse_categorical_crossentropy": _sparse_categorical,
    "categorical_crossentropy": _categorical,
    "binary_crossentropy": _binary,
    "binary_crossentropy of probabilities": _binary_of_probabilities,
    "binary_crossentropy of probabilities, tf_keras": _binary_of_tf_keras,
    "mean_squared_error": _mean_squared,
}


# --- Optimizers. Each changes weights and two slots of them by gradients and the numbers of a step.


@_compiled
def _sgd(p: Any, g: Any, m: Any, s: Any, numbers: Any) -> None:
    rate, momentum, nesterov, decay = numbers[0], numbers[1], numbers[2], numbers[3]
    for i in range(p.size):
        m[i] = m[i] * momentum - g[i] * rate
        p[i] = p[i] - p[i] * decay + (m[i] * momentum - g[i] * rate if nesterov > _0 else m[i])


@_compiled
def _adam(p: Any, g: Any, m: Any, s: Any, numbers: Any) -> None:
    alpha, first, second, epsilon, decay = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    for i in range(p.size):
        m[i] += (g[i] - m[i]) * first
        s[i] += (g[i] * g[i] - s[i]) * second
        p[i] = p[i] - p[i] * decay - m[i] * alpha / (math.sqrt(s[i]) + epsilon)


def _sgd_numbers(optimizer: Any, rates: np.ndarray, counts: np.ndarray) -> list[Any]:
    momentum = np.float32(optimizer.momentum)
    return [rates, momentum, np.float32(optimizer.nesterov and momentum != 0), _decay(optimizer, rates), _0]


def _adam_numbers(optimizer: Any, rates: np.ndarray, counts: np.ndarray) -> list[Any]:
    first, second = np.float32(optimizer.beta_1), np.float32(optimizer.beta_2)
    alpha = rates * np.sqrt(_1 - second**counts) / (_1 - first**counts)
    return [alpha, _1 - first, _1 - second, np.float32(optimizer.epsilon), _decay(optimizer, rates)]


def _decay(optimizer: Any, rates: np.ndarray) -> np.ndarray:
    return rates * np.float32(optimizer.weight_decay or 0)


class Optimizer(NamedTuple):
    """An update; the numbers that it takes at each step; and the attributes where Keras keeps its two slots."""

    update: Any
    numbers: Any  # of the Keras optimizer, the rates, and the counts of steps from 1
    slots: tuple[str, str]


OPTIMIZERS: dict[str, Optimizer] = {
    "SGD": Optimizer(_sgd, _sgd_numbers, ("momentums", "")),
    "Adam": Optimizer(_adam, _adam_numbers, ("_momentums", "_velocities")),
    "AdamW": Optimizer(_adam, _adam_numbers, ("_momentums", "_velocities")),
}


# --- Networks, steps and evaluations.

_ACTIVATIONS, _LOSSES = tuple(ACTIVATIONS.values()), tuple(LOSSES.values())
_UPDATES = tuple(one.update for one in OPTIMIZERS.values())


class Network(NamedTuple):
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
def _forward(network: Any, parameters: Any, z: Any, a: Any) -> None:
    first, begin, sources = network.first, network.begin, network.sources
    num_inputs, num_weights, lanes = first[1], begin[-1], a.shape[1]
    for layer in range(first.size - 2):
        start, stop = first[layer + 1], first[layer + 2]
        for unit in range(start, stop):
            row = unit - num_inputs
            bias, lane = parameters[num_weights + row], 0
            while lane + LANES <= lanes:
                _forward_64(parameters, sources, a, z, begin[row], begin[row + 1], bias, unit, lane)
                lane += LANES
            if lane + 2 * WIDTH <= lanes:
                _forward_32(parameters, sources, a, z, begin[row], begin[row + 1], bias, unit, lane)
                lane += 2 * WIDTH
            if lane < lanes:
                _forward_16(parameters, sources, a, z, begin[row], begin[row + 1], bias, unit, lane)
        index = 0
        for activation in literal_unroll(_ACTIVATIONS):
            if network.activations[layer] == index:
                activation(z[start:stop].reshape(-1), a[start:stop].reshape(-1))
            index += 1


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
            row, lane, total = unit - num_inputs, 0, _0
            for each in range(lanes):
                d[unit, each] *= slopes[unit, each]
            while lane + LANES <= lanes:
                total += _backward_64(
                    parameters, sources, a, d, gradients, begin[row], begin[row + 1], unit, lane, goes_on
                )
                lane += LANES
            if lane + 2 * WIDTH <= lanes:
                total += _backward_32(
                    parameters, sources, a, d, gradients, begin[row], begin[row + 1], unit, lane, goes_on
                )
                lane += 2 * WIDTH
            if lane < lanes:
                total += _backward_16(
                    parameters, sources, a, d, gradients, begin[row], begin[row + 1], unit, lane, goes_on
                )
            gradients[num_weights + row] = total * is_biased
            if l1 or l2:
                for place in range(begin[row], begin[row + 1]):
                    weight = parameters[place]
                    sign = _1 if weight > _0 else -_1 if weight < _0 else _0
                    gradients[place] += l1 * sign + _2 * l2 * weight


@_compiled
def _penalty(network: Any, parameters: Any) -> float:
    total = 0.0
    for layer in range(network.first.size - 2):
        l1, l2 = network.penalties[layer, 0], network.penalties[layer, 1]
        if l1 or l2:
            start, stop = network.first[layer + 1] - network.first[1], network.first[layer + 2] - network.first[1]
            for weight in parameters[network.begin[start] : network.begin[stop]]:
                total += l1 * abs(weight) + l2 * weight * weight
    return total


@_compiled
def train(
    network: Any, examples: Any, positions: Any, numbers: Any, parameters: Any, first_slot: Any, second_slot: Any
) -> tuple[float, float]:
    """Take steps.

    Args:
        positions: int32, (steps, batch size), of the examples.
        numbers: float32, (steps, ...), the optimizer's.
        parameters: Weights, then biases; changed, as are the optimizer's two slots of them.

    Returns:
        The sums, over the steps, of the mean loss and of the accuracy.
    """
    batch_size, num_units, outputs = positions.shape[1], network.first[-1], network.first[-2]
    lanes = (batch_size + WIDTH - 1) // WIDTH * WIDTH
    a, z = np.zeros((num_units, lanes), np.float32), np.zeros((num_units, lanes), np.float32)
    d = np.zeros((num_units, lanes), np.float32)
    targets = np.zeros((examples.targets.shape[1], lanes), np.float32)
    gradients, losses, right = np.empty_like(parameters), 0.0, 0.0
    for step in range(len(positions)):
        _fill(network, examples, positions[step], a, targets)
        _forward(network, parameters, z, a)
        found = _loss(network, a, targets, batch_size, d[outputs:])
        losses += found[0] / batch_size + _penalty(network, parameters)
        right += found[1] / batch_size
        _backward(network, parameters, z, a, d, gradients)
        index = 0
        for update in literal_unroll(_UPDATES):
            if network.update == index:
                update(parameters, gradients, first_slot, second_slot, numbers[step])
            index += 1
    return losses, right


@_compiled
def evaluate(network: Any, examples: Any, parameters: Any, classes: Any) -> tuple[float, float]:
    """Return the mean loss and the accuracy over all examples, and write the highest output of each to `classes`."""
    num_units, outputs, num = network.first[-1], network.first[-2], len(examples.x)
    a, z = np.zeros((num_units, LANES), np.float32), np.zeros((num_units, LANES), np.float32)
    d = np.zeros((num_units - outputs, LANES), np.float32)
    targets = np.zeros((examples.targets.shape[1], LANES), np.float32)
    best, most, loss, right = np.empty(LANES, np.int64), np.empty(LANES, np.float32), 0.0, 0.0
    positions = np.empty(LANES, np.int32)
    for start in range(0, num, LANES):
        size = min(LANES, num - start)
        for lane in range(size):
            positions[lane] = start + lane
        _fill(network, examples, positions[:size], a, targets)
        _forward(network, parameters, z, a)
        found = _loss(network, a, targets, size, d)
        loss += found[0]
        right += found[1]
        _highest(a[outputs:], best, most)
        for lane in range(size):
            classes[start + lane] = best[lane]
    return loss / num + _penalty(network, parameters), right / num
