"""Activations, losses and optimizers of the sparse engine, by Keras' names, each a loop over a whole array.

All functions of a kind have one signature, so that the steps call each by its address and are compiled once for all
networks. Rows are (units, lanes) with an example in each lane; an elementwise function sees them as one long row.
"""

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import float32, float64, int64, njit, types, void
from numba.core.errors import NumbaExperimentalFeatureWarning
from numba.extending import intrinsic

# Functions as arguments work; numba warns that their interface may change.
warnings.filterwarnings("ignore", category=NumbaExperimentalFeatureWarning)

# Division by zero gives infinity, as in TensorFlow; a check would keep a loop from being compiled to vectors.
OPTIONS: dict[str, Any] = {"error_model": "numpy", "cache": True}
NUMBERS, ROWS = float32[::1], float32[:, ::1]

OF_VALUE = void(NUMBERS, NUMBERS)  # pre-activations z; their outputs a, written
OF_SLOPE = void(NUMBERS, NUMBERS, NUMBERS)  # z; a; gradients by a, which become those by z
# Outputs; targets; the number of examples; the threshold of an output that means the second class of two; gradients of
# the mean loss by the outputs, written. Returns the sum of the losses, and of the examples that are right.
OF_LOSS = types.UniTuple(float64, 2)(ROWS, ROWS, int64, float32, ROWS)
# Weights, changed; gradients; two slots, changed; the numbers of this step and of the optimizer.
OF_UPDATE = void(NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)


@functools.cache
def compiled(function: Callable[..., Any], signature: Any) -> Any:
    """Compile a function from the tables of this module."""
    return njit(signature, **OPTIONS)(function)


_0, _HALF, _1, _2 = (np.float32(number) for number in (0, 0.5, 1, 2))
_LOG2_E, _LN2_HIGH, _LN2_LOW = np.float32(math.log2(math.e)), np.float32(0.693359375), np.float32(-2.12194440e-4)
_TERMS = tuple(np.float32(1 / math.factorial(power)) for power in range(8))


@intrinsic
def _power_of_two(typing: Any, exponent: Any) -> Any:
    """Make the float 2**n of a whole number, int32, between -126 and 127, from its bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.shl(builder.add(arguments[0], ir.IntType(32)(127)), ir.IntType(32)(23))
        return builder.bitcast(bits, ir.FloatType())

    return float32(types.int32), generate


@njit(**OPTIONS)
def _reduced(x: Any) -> Any:
    """Return 2**n and e**r - 1, with e**x = 2**n e**r and r near 0: without a call, so that loops become vectors."""
    x = min(max(x, np.float32(-87)), np.float32(88))
    n = math.floor(x * _LOG2_E + _HALF)
    r = (x - n * _LN2_HIGH) - n * _LN2_LOW
    rest = _TERMS[7]
    for power in (6, 5, 4, 3, 2):
        rest = rest * r + _TERMS[power]
    return _power_of_two(np.int32(n)), r + r * r * rest


@njit(**OPTIONS)
def _exp(x: Any) -> Any:
    scale, rest = _reduced(x)
    return scale + scale * rest


@njit(**OPTIONS)
def _expm1(x: Any) -> Any:
    scale, rest = _reduced(x)
    return scale * rest + (scale - _1)


@njit(**OPTIONS)
def _tanh(x: Any) -> Any:
    grown = _expm1(_2 * min(max(x, np.float32(-15)), np.float32(15)))
    return grown / (grown + _2)


@njit(**OPTIONS)
def _sigmoid(x: Any) -> Any:
    return _1 / (_1 + _exp(-x))


class Activation(NamedTuple):
    """An elementwise function and its derivative."""

    value: Any
    slope: Any


def _linear(z: Any, a: Any) -> None:
    a[:] = z


def _linear_slope(z: Any, a: Any, d: Any) -> None:
    pass


def _relu(z: Any, a: Any) -> None:
    for i in range(z.size):
        a[i] = _0 if z[i] <= _0 else z[i]  # NaN stays


def _relu_slope(z: Any, a: Any, d: Any) -> None:
    for i in range(z.size):
        d[i] = d[i] if z[i] > _0 else _0


def _relu6(z: Any, a: Any) -> None:
    for i in range(z.size):
        a[i] = min(max(z[i], _0), np.float32(6))


def _relu6_slope(z: Any, a: Any, d: Any) -> None:
    for i in range(z.size):
        d[i] = d[i] if _0 < z[i] < np.float32(6) else _0


def _leaky_relu(z: Any, a: Any) -> None:
    for i in range(z.size):
        a[i] = z[i] if z[i] > _0 else z[i] * np.float32(0.2)


def _leaky_relu_slope(z: Any, a: Any, d: Any) -> None:
    for i in range(z.size):
        d[i] = d[i] if z[i] > _0 else d[i] * np.float32(0.2)


def _elu(z: Any, a: Any) -> None:
    for i in range(z.size):
        a[i] = z[i] if z[i] > _0 else _expm1(z[i])


def _elu_slope(z: Any, a: Any, d: Any) -> None:
    for i in range(z.size):
        d[i] = d[i] if z[i] > _0 else d[i] * (a[i] + _1)


_SELU_SCALE, _SELU_ALPHA = np.float32(1.0507009873554805), np.float32(1.6732632423543772)


def _selu(z: Any, a: Any) -> None:
    for i in range(z.size):
        a[i] = _SELU_SCALE * (z[i] if z[i] > _0 else _SELU_ALPHA * _expm1(z[i]))


def _selu_slope(z: Any, a: Any, d: Any) -> None:
    for i in range(z.size):
        d[i] *= _SELU_SCALE if z[i] > _0 else a[i] + _SELU_SCALE * _SELU_ALPHA


def _softsign(z: Any, a: Any) -> None:
    for i in range(z.size):
        a[i] = z[i] / (_1 + abs(z[i]))


def _softsign_slope(z: Any, a: Any, d: Any) -> None:
    for i in range(z.size):
        below = _1 + abs(z[i])
        d[i] /= below * below


def _softplus(z: Any, a: Any) -> None:
    for i in range(z.size):
        a[i] = max(z[i], _0) + math.log1p(_exp(-abs(z[i])))


def _softplus_slope(z: Any, a: Any, d: Any) -> None:
    for i in range(z.size):
        d[i] *= _sigmoid(z[i])


def _tanh_value(z: Any, a: Any) -> None:
    for i in range(z.size):
        a[i] = _tanh(z[i])


def _tanh_slope(z: Any, a: Any, d: Any) -> None:
    for i in range(z.size):
        d[i] *= _1 - a[i] * a[i]


def _sigmoid_value(z: Any, a: Any) -> None:
    for i in range(z.size):
        a[i] = _sigmoid(z[i])


def _sigmoid_slope(z: Any, a: Any, d: Any) -> None:
    for i in range(z.size):
        d[i] *= a[i] * (_1 - a[i])


def _exponential(z: Any, a: Any) -> None:
    for i in range(z.size):
        a[i] = _exp(z[i])


def _exponential_slope(z: Any, a: Any, d: Any) -> None:
    for i in range(z.size):
        d[i] *= a[i]


def _silu(z: Any, a: Any) -> None:
    for i in range(z.size):
        a[i] = z[i] * _sigmoid(z[i])


def _silu_slope(z: Any, a: Any, d: Any) -> None:
    for i in range(z.size):
        part = _sigmoid(z[i])
        d[i] *= part + a[i] * (_1 - part)


_ROOT_HALF, _ROOT_TWO_PI = np.float32(math.sqrt(0.5)), np.float32(math.sqrt(2 * math.pi))


def _gelu(z: Any, a: Any) -> None:
    for i in range(z.size):
        a[i] = _HALF * z[i] * (_1 + np.float32(math.erf(z[i] * _ROOT_HALF)))


def _gelu_slope(z: Any, a: Any, d: Any) -> None:
    for i in range(z.size):
        below = _HALF * (_1 + np.float32(math.erf(z[i] * _ROOT_HALF)))
        d[i] *= below + z[i] * _exp(-_HALF * z[i] * z[i]) / _ROOT_TWO_PI


ACTIVATIONS: dict[str, Activation] = {
    "linear": Activation(_linear, _linear_slope),
    "relu": Activation(_relu, _relu_slope),
    "relu6": Activation(_relu6, _relu6_slope),
    "leaky_relu": Activation(_leaky_relu, _leaky_relu_slope),
    "elu": Activation(_elu, _elu_slope),
    "selu": Activation(_selu, _selu_slope),
    "softsign": Activation(_softsign, _softsign_slope),
    "softplus": Activation(_softplus, _softplus_slope),
    "tanh": Activation(_tanh_value, _tanh_slope),
    "sigmoid": Activation(_sigmoid_value, _sigmoid_slope),
    "exponential": Activation(_exponential, _exponential_slope),
    "silu": Activation(_silu, _silu_slope),
    "gelu": Activation(_gelu, _gelu_slope),
}


@njit(**OPTIONS)
def _highest(a: Any, lane: int) -> int:
    best = 0
    for unit in range(1, a.shape[0]):
        if a[unit, lane] > a[best, lane]:
            best = unit
    return best


@njit(**OPTIONS)
def _softmax_into(a: Any, num: int, d: Any) -> Any:
    """Write the softmax of each example into `d`, and return the logarithms of the sums below it."""
    logarithms = np.empty(num, np.float32)
    for lane in range(num):
        most = a[_highest(a, lane), lane]
        total = _0
        for unit in range(a.shape[0]):
            d[unit, lane] = _exp(a[unit, lane] - most)
            total += d[unit, lane]
        for unit in range(a.shape[0]):
            d[unit, lane] /= total
        logarithms[lane] = most + np.float32(math.log(total))
    return logarithms


def _sparse_categorical(a: Any, targets: Any, num: int, threshold: Any, d: Any) -> Any:
    loss, right = 0.0, 0.0
    logarithms = _softmax_into(a, num, d)
    for lane in range(num):
        label = int(targets[0, lane])
        loss += logarithms[lane] - a[label, lane]
        right += _highest(a, lane) == label
        d[label, lane] -= _1
    for unit in range(a.shape[0]):
        for lane in range(a.shape[1]):
            d[unit, lane] = d[unit, lane] / np.float32(num) if lane < num else _0
    return loss, right


def _categorical(a: Any, targets: Any, num: int, threshold: Any, d: Any) -> Any:
    loss, right = 0.0, 0.0
    logarithms = _softmax_into(a, num, d)
    for lane in range(num):
        for unit in range(a.shape[0]):
            loss += targets[unit, lane] * (logarithms[lane] - a[unit, lane])
            d[unit, lane] -= targets[unit, lane]
        right += _highest(a, lane) == _highest(targets, lane)
    for unit in range(a.shape[0]):
        for lane in range(a.shape[1]):
            d[unit, lane] = d[unit, lane] / np.float32(num) if lane < num else _0
    return loss, right


def _binary(a: Any, targets: Any, num: int, threshold: Any, d: Any) -> Any:
    loss, right, units = 0.0, 0.0, a.shape[0]
    for unit in range(units):
        for lane in range(a.shape[1]):
            if lane >= num:
                d[unit, lane] = _0
                continue
            z, target = a[unit, lane], targets[unit, lane]
            loss += (max(z, _0) - z * target + np.float32(math.log1p(_exp(-abs(z))))) / units
            right += ((_1 if z > threshold else _0) == target) / units
            d[unit, lane] = (_sigmoid(z) - target) / np.float32(num * units)
    return loss, right


@njit(**OPTIONS)
def _binary_beside(a: Any, targets: Any, num: int, threshold: Any, d: Any, added: Any) -> Any:
    loss, right, units, least = 0.0, 0.0, a.shape[0], np.float32(1e-7)
    for unit in range(units):
        for lane in range(a.shape[1]):
            if lane >= num:
                d[unit, lane] = _0
                continue
            output, target = min(max(a[unit, lane], least), _1 - least), targets[unit, lane]
            yes, no = output + added, _1 - output + added
            loss -= (target * math.log(yes) + (_1 - target) * math.log(no)) / units
            right += ((_1 if a[unit, lane] > threshold else _0) == target) / units
            is_inside = least <= a[unit, lane] <= _1 - least
            d[unit, lane] = ((_1 - target) / no - target / yes) / np.float32(num * units) if is_inside else _0
    return loss, right


def _binary_of_probabilities(a: Any, targets: Any, num: int, threshold: Any, d: Any) -> Any:
    return _binary_beside(a, targets, num, threshold, d, _0)


def _binary_of_tf_keras(a: Any, targets: Any, num: int, threshold: Any, d: Any) -> Any:
    return _binary_beside(a, targets, num, threshold, d, np.float32(1e-7))  # which it adds to what it takes a log of


def _mean_squared(a: Any, targets: Any, num: int, threshold: Any, d: Any) -> Any:
    loss, units = 0.0, a.shape[0]
    for unit in range(units):
        for lane in range(a.shape[1]):
            error = a[unit, lane] - targets[unit, lane] if lane < num else _0
            loss += error * error / units
            d[unit, lane] = _2 * error / np.float32(num * units)
    return loss, math.nan


LOSSES: dict[str, Any] = {
    "sparse_categorical_crossentropy": _sparse_categorical,
    "categorical_crossentropy": _categorical,
    "binary_crossentropy": _binary,
    "binary_crossentropy of probabilities": _binary_of_probabilities,
    "binary_crossentropy of probabilities, tf_keras": _binary_of_tf_keras,
    "mean_squared_error": _mean_squared,
}


def _sgd(p: Any, g: Any, m: Any, s: Any, numbers: Any) -> None:
    rate, momentum, nesterov, decay = numbers[0], numbers[1], numbers[2], numbers[3]
    for i in range(p.size):
        m[i] = m[i] * momentum - g[i] * rate
        p[i] = p[i] - p[i] * decay + (m[i] * momentum - g[i] * rate if nesterov > _0 else m[i])


def _adam(p: Any, g: Any, m: Any, s: Any, numbers: Any) -> None:
    alpha, first, second, epsilon, decay = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    for i in range(p.size):
        m[i] += (g[i] - m[i]) * first
        s[i] += (g[i] * g[i] - s[i]) * second
        p[i] = p[i] - p[i] * decay - m[i] * alpha / (math.sqrt(s[i]) + epsilon)


def _sgd_numbers(optimizer: Any, rates: np.ndarray, steps: np.ndarray) -> list[Any]:
    momentum = np.float32(optimizer.momentum)
    return [rates, momentum, np.float32(optimizer.nesterov and momentum != 0), _decay(optimizer, rates)]


def _adam_numbers(optimizer: Any, rates: np.ndarray, steps: np.ndarray) -> list[Any]:
    first, second = np.float32(optimizer.beta_1), np.float32(optimizer.beta_2)
    alpha = rates * np.sqrt(_1 - second**steps) / (_1 - first**steps)
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
