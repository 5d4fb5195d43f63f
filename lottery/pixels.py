"""How pixels of a byte become the inputs of a network."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Scaling(NamedTuple):
    """(x - mean) / standard_deviation, then, if `unit_norm`, over the Euclidean length of each example."""

    mean: np.ndarray  # a number, or one for each channel, as the standard deviation
    standard_deviation: np.ndarray
    unit_norm: bool  # each example then has the length 1, if it is not zero everywhere


NONE = Scaling(np.zeros((), np.float32), np.ones((), np.float32), unit_norm=False)


def _standardize(x: np.ndarray) -> Scaling:
    """Give each channel mean 0 and variance 1 over `x`."""
    channels = x.shape[-1] if x.ndim == 4 and x.shape[-1] <= 4 else 1
    counts = np.zeros((channels, 256), np.int64)
    for some in np.array_split(x, 1 + x.size // 2**20):  # float64 would take eight times the memory
        for channel, values in enumerate(some.reshape(-1, channels).T):
            counts[channel] += np.bincount(values, minlength=256)
    fractions, levels = counts / counts.sum(axis=1, keepdims=True), np.arange(256)
    mean = fractions @ levels
    deviation = np.sqrt(np.sum(fractions * (levels - mean[:, None]) ** 2, axis=1))
    return Scaling(mean.astype(np.float32), np.where(deviation > 0, deviation, 1).astype(np.float32), unit_norm=False)


def _unit(x: np.ndarray) -> Scaling:
    """Scale pixels to numbers from 0 to 1."""
    return Scaling(np.zeros((), np.float32), np.full((), 255, np.float32), unit_norm=False)


def _unit_norm(x: np.ndarray) -> Scaling:
    """Scale each image to Euclidean length 1, as the code of Frankle & Carbin 2019 does with MNIST.

    See ``datasets/dataset_mnist.py`` in https://github.com/google-research/lottery-ticket-hypothesis.
    """
    return NONE._replace(unit_norm=True)


# By the name in ``data.pixels``, the usual first: functions from the images of the training split to a `Scaling`.
PIXELS: dict[str, Callable[[np.ndarray], Scaling]] = {
    "standardize": _standardize,
    "unit": _unit,
    "unit_norm": _unit_norm,
}
