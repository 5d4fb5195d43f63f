"""Steps and evaluations of a network of dense layers at the cost of the weights that survive.

All units of the network are numbered through: those inputs that any weight reads, then layer after layer. A row of
weights belongs to each unit but the inputs, and each weight knows the unit that it multiplies, as in a compressed
sparse matrix by rows. So one pass over the rows goes through the whole network.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from lottery.sparse import vectors
from lottery.sparse.functions import OPTIONS

LANES = 64  # examples that are evaluated together
MOST_LAYERS = 16  # one type, so one compilation, for networks of any depth


class Network(NamedTuple):
    """The structure of a network and what it computes at each unit; arrays only, for the compiled functions."""

    first: np.ndarray  # int64, the first unit of each layer, of the inputs too; and the number of units
    begin: np.ndarray  # int64, the place of the first weight of each unit behind the inputs; and the number of weights
    sources: np.ndarray  # int32, the unit that each weight multiplies
    reads: np.ndarray  # int64, the feature of an example that each input is
    mean: np.ndarray  # of each input, and
    deviation: np.ndarray  # by what it is divided
    penalties: np.ndarray  # of each layer: l1, l2, and 1 or 0 for biases that are trained
    threshold: float  # float32, of outputs of one class or the other


class Functions(NamedTuple):
    """What a network computes at its units, and how it learns; see `lottery.sparse.functions`."""

    values: tuple[Any, ...]  # of each layer, filled up to `MOST_LAYERS`
    slopes: tuple[Any, ...]
    loss: Any


class Examples(NamedTuple):
    """A split of the data."""

    x: np.ndarray  # (examples, features), uint8 or float32
    norms: np.ndarray  # float32, by which each example is divided
    targets: np.ndarray  # float32, (examples, targets)


@njit(**OPTIONS)
def _fill(network: Any, examples: Any, positions: Any, a: Any, targets: Any) -> None:
    """Write the inputs and the targets of a batch, an example to a lane."""
    num, norms = positions.size, np.empty(positions.size, np.float32)
    for lane in range(num):
        norms[lane] = examples.norms[positions[lane]]
        example = examples.x[positions[lane]]
        for i in range(network.reads.size):
            a[i, lane] = example[network.reads[i]]
    for i in range(network.reads.size):
        mean, deviation = network.mean[i], network.deviation[i]
        for lane in range(num):
            a[i, lane] = (a[i, lane] - mean) / deviation / norms[lane]
    for lane in range(positions.size):
        for target in range(targets.shape[0]):
            targets[target, lane] = examples.targets[positions[lane], target]


@njit(**OPTIONS)
def _forward(network: Any, values: Any, parameters: Any, z: Any, a: Any) -> None:
    first, begin, sources = network.first, network.begin, network.sources
    num_inputs, num_weights, lanes = first[1], begin[-1], a.shape[1]
    for layer in range(first.size - 2):
        start, stop = first[layer + 1], first[layer + 2]
        for unit in range(start, stop):
            row = unit - num_inputs
            bias, lane = parameters[num_weights + row], 0
            while lane + LANES <= lanes:
                vectors.forward_64(parameters, sources, begin[row], begin[row + 1], bias, a, z, unit, lane)
                lane += LANES
            while lane < lanes:
                vectors.forward_16(parameters, sources, begin[row], begin[row + 1], bias, a, z, unit, lane)
                lane += vectors.WIDTH
        value = values[layer]
        value(z[start:stop].reshape(-1), a[start:stop].reshape(-1))


@njit(**OPTIONS)
def _backward(network: Any, slopes: Any, parameters: Any, z: Any, a: Any, d: Any, gradients: Any) -> None:
    """Compute the gradients of all parameters from those of the outputs, which are in the last rows of `d`."""
    first, begin, sources = network.first, network.begin, network.sources
    num_inputs, num_weights, lanes = first[1], begin[-1], a.shape[1]
    gradients[:] = 0
    d[num_inputs : first[-2]] = 0
    for layer in range(first.size - 3, -1, -1):
        start, stop = first[layer + 1], first[layer + 2]
        slope = slopes[layer]
        slope(z[start:stop].reshape(-1), a[start:stop].reshape(-1), d[start:stop].reshape(-1))
        l1, l2, is_biased = network.penalties[layer]
        for unit in range(start, stop):
            row, lane, total = unit - num_inputs, 0, np.float32(0)
            while lane + LANES <= lanes:
                vectors.backward_64(
                    parameters, sources, begin[row], begin[row + 1], gradients, a, d, unit, lane, num_inputs
                )
                lane += LANES
            while lane < lanes:
                vectors.backward_16(
                    parameters, sources, begin[row], begin[row + 1], gradients, a, d, unit, lane, num_inputs
                )
                lane += vectors.WIDTH
            for lane in range(lanes):
                total += d[unit, lane]
            gradients[num_weights + row] = total * is_biased
            if l1 or l2:
                for place in range(begin[row], begin[row + 1]):
                    weight = parameters[place]
                    gradients[place] += l1 * np.sign(weight) + 2 * l2 * weight


@njit(**OPTIONS)
def _penalty(network: Any, parameters: Any) -> float:
    total = 0.0
    for layer in range(network.first.size - 2):
        l1, l2 = network.penalties[layer, 0], network.penalties[layer, 1]
        if l1 or l2:
            start, stop = network.first[layer + 1] - network.first[1], network.first[layer + 2] - network.first[1]
            for weight in parameters[network.begin[start] : network.begin[stop]]:
                total += l1 * abs(weight) + l2 * weight * weight
    return total


@njit(**OPTIONS)
def train(
    network: Any, functions: Any, update: Any, examples: Any, positions: Any, numbers: Any, state: Any
) -> tuple[float, float]:
    """Take steps.

    Args:
        positions: int32, (steps, batch size), of the examples.
        numbers: float32, (steps, ...), the optimizer's.
        state: Weights, then biases; and the optimizer's two slots of them. All are changed.

    Returns:
        The sums, over the steps, of the mean loss and of the accuracy.
    """
    parameters, first_slot, second_slot = state
    num_steps, batch_size = positions.shape
    lanes = (batch_size + vectors.WIDTH - 1) // vectors.WIDTH * vectors.WIDTH
    num_units, outputs = network.first[-1], network.first[-2]
    a, z = np.zeros((num_units, lanes), np.float32), np.zeros((num_units, lanes), np.float32)
    d = np.zeros((num_units, lanes), np.float32)
    targets = np.zeros((examples.targets.shape[1], lanes), np.float32)
    gradients, losses, right = np.empty_like(parameters), 0.0, 0.0
    for step in range(num_steps):
        _fill(network, examples, positions[step], a, targets)
        _forward(network, functions.values, parameters, z, a)
        found = functions.loss(a[outputs:], targets, batch_size, network.threshold, d[outputs:])
        losses += found[0] / batch_size + _penalty(network, parameters)
        right += found[1] / batch_size
        _backward(network, functions.slopes, parameters, z, a, d, gradients)
        update(parameters, gradients, first_slot, second_slot, numbers[step])
    return losses, right


@njit(**OPTIONS)
def evaluate(network: Any, functions: Any, examples: Any, parameters: Any, classes: Any) -> tuple[float, float]:
    """Return the mean loss and the accuracy over all examples, and write the highest output of each to `classes`."""
    num_units, outputs, num = network.first[-1], network.first[-2], examples.x.shape[0]
    a, z = np.zeros((num_units, LANES), np.float32), np.zeros((num_units, LANES), np.float32)
    d = np.zeros((num_units - outputs, LANES), np.float32)
    targets = np.zeros((examples.targets.shape[1], LANES), np.float32)
    loss, right = 0.0, 0.0
    for start in range(0, num, LANES):
        positions = np.arange(start, min(start + LANES, num))
        _fill(network, examples, positions, a, targets)
        _forward(network, functions.values, parameters, z, a)
        found = functions.loss(a[outputs:], targets, positions.size, network.threshold, d)
        loss += found[0]
        right += found[1]
        for lane in range(positions.size):
            classes[start + lane] = np.argmax(a[outputs:, lane])
    return loss / num + _penalty(network, parameters), right / num
