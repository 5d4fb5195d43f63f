"""Means over replicates: confidence intervals, tests, and how many replicates give a test its power."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lottery.errors import LotteryError

MOST = 1000  # replicates; `num_needed` looks no further
POWER = 0.8  # what `num_needed` asks for, as is the custom since Cohen 1988
# Accuracies have single precision, so one example more can be worth slightly more or less from replicate to replicate.
SAME = 1e-6


def students_t(values: np.ndarray, confidence: float) -> tuple[float, float]:
    """Compute the ends of mean ± t s / sqrt(n), of Student 1908, with n - 1 degrees of freedom, for normal values."""
    return _around(float(values.mean()), float(values.std(ddof=1)), len(values), confidence)


def mean_interval(values: Sequence[float], confidence: float = 0.95, unit: float = 1.0) -> tuple[float, float, float]:
    """Compute the mean, and the ends of a t interval that holds the true mean with a probability, in (0, 1).

    The ends are infinite for one value, and for two equal ones, which accuracies over few examples often are; for three
    or more equal values they are the mean. Values are equal if they differ by at most a millionth of `unit`, which is 1
    for accuracies and their differences, or of the largest.

    Raises:
        LotteryError: No value, one that is not finite, or a confidence outside (0, 1).
    """
    taken = _checked(values, confidence)
    mean, same = float(taken.mean()), _are_same(taken, unit)
    if len(taken) == 1 or (len(taken) == 2 and same):
        return mean, -math.inf, math.inf
    return (mean, mean, mean) if same else (mean, *students_t(taken, confidence))


def of_accuracy(low: float, high: float) -> tuple[float, float]:
    """Cut an interval of an accuracy to [0, 1], outside which no accuracy lies; infinite ends stay."""
    return (low, high) if math.isinf(low) else (max(low, 0.0), min(high, 1.0))


def on_a_grid(values: Sequence[float], spacing: float, confidence: float = 0.95) -> tuple[float, float, float]:
    """Compute the mean and the ends of a t interval of differences of whole multiples of a spacing, such as steps.

    Rounding hides how far equal values are from each other, so the standard deviation counts as that of the rounding
    at least: spacing / sqrt(6), of the difference of two numbers that are each rounded to a multiple.
    """
    taken = _checked(values, confidence)
    mean = float(taken.mean())
    if len(taken) == 1 or not spacing:
        return mean_interval(values, confidence)
    std = max(float(taken.std(ddof=1)), spacing / math.sqrt(6))
    return (mean, *_around(mean, std, len(taken), confidence))


def p_value(mean: float, low: float, num: int, bound: float, confidence: float = 0.95) -> float:
    """Compute the p value of a one-sided t test that a true mean is above a bound.

    Args:
        mean: The mean of the values.
        low: The lower end of their t interval; it may be infinite, and equal to the mean if all values are.
        num: How many values there are.
        bound: What the true mean is to be above. To test that it is below, give all three with the other sign.
        confidence: That of the interval. The p value is at most (1 - confidence) / 2 if `low` is at least the bound.
    """
    from scipy import special

    if num < 2 or math.isinf(low):
        return 1.0
    if low == mean:
        return float(mean < bound)
    error = (mean - low) / float(special.stdtrit(num - 1, (1 + confidence) / 2))
    return float(special.stdtr(num - 1, (bound - mean) / error))


def simes(p_values: Sequence[float]) -> float:
    """Combine p values to that of the hypothesis that all their hypotheses are true: Simes 1986.

    It is the smallest of k p_(i) / i, for the i-th smallest of k. It holds for independent tests and, as Sarkar 1998
    showed, for tests that depend on each other positively, as those of tickets do that share their dense network.
    """
    ordered = np.sort(np.asarray(p_values, float))
    return float((ordered * len(ordered) / np.arange(1, len(ordered) + 1)).min())


def step_down(p_values: Sequence[float], level: float) -> int:
    """Count from the front how far along an order something is true from there on to the end, at least once.

    For each place it tests the hypothesis that all hypotheses from there on are true, by `simes`, and stops at the
    first that is not rejected. Each of these follows from the one before, so all statements together are false with
    at most the probability `level`, without adjustment: Marcus, Peritz & Gabriel 1976, Maurer, Hothorn & Lehmacher
    1995. Where the count is not 0, the p value of the last place counted is at most `level`.
    """
    for place in range(len(p_values)):
        if simes(p_values[place:]) > level:
            return place
    return len(p_values)


def power(num: int, distance: float, std: Any, confidence: float = 0.95) -> Any:
    """Compute the probability that a t interval of `num` new values lies above a bound.

    Args:
        num: How many values, at least 2.
        distance: How far the true mean is above the bound.
        std: Their true standard deviation; an array gives an array.
        confidence: Of the interval.
    """
    from scipy import special

    # The noncentral t distribution as a mean over the standard deviations that may come out. SciPy's own has NaNs.
    ratios = _ratios(num - 1, 200)
    critical = float(special.stdtrit(num - 1, (1 + confidence) / 2))
    shift = abs(distance) * math.sqrt(num) / np.asarray(std, float)
    return special.ndtr(shift[..., None] - critical * ratios).mean(-1)


def num_needed(
    distance: float, std: float, pilot: int | None = None, confidence: float = 0.95, least_power: float = POWER
) -> int | None:
    """Compute how many new replicates show with a probability that a true mean is above, or below, a bound.

    Args:
        distance: How far the true mean is from the bound.
        std: The standard deviation of the values.
        pilot: The number of values that `std` was estimated from; None if it is the true one. The power is then that
            on average over the standard deviations that are as likely after such an estimate: Julious & Owen 2006.
        confidence: Of the interval that is to lie on one side of the bound.
        least_power: The probability, in (0, 1).

    Returns:
        The smallest number, at least 2, of replicates that are judged by themselves, without those of the pilot; None
        from a pilot of one, or if it takes more than `MOST`.
    """
    if pilot is not None and pilot < 2:
        return None
    stds = max(std, SAME * abs(distance)) / (_ratios(pilot - 1, 200) if pilot else np.ones(1))
    low, high = 1, MOST
    if not distance or power(high, distance, stds, confidence).mean() < least_power:
        return None
    while high - low > 1:  # more replicates never have less power
        middle = (low + high) // 2
        enough = power(middle, distance, stds, confidence).mean() >= least_power
        low, high = (low, middle) if enough else (middle, high)
    return high


def _around(mean: float, std: float, num: int, confidence: float) -> tuple[float, float]:
    from scipy import special  # not stats, which takes a second to import

    half = float(special.stdtrit(num - 1, (1 + confidence) / 2)) * std / math.sqrt(num)
    return mean - half, mean + half


@functools.cache
def _ratios(degrees: int, num: int) -> np.ndarray:
    """Return `num` quantiles, evenly apart, of the standard deviation of a sample over the true one."""
    from scipy import special

    return np.sqrt(2 * special.gammaincinv(degrees / 2, (np.arange(num) + 0.5) / num) / degrees)


def _are_same(taken: np.ndarray, unit: float = 1.0) -> bool:
    return bool(np.ptp(taken) <= SAME * max(unit, float(np.abs(taken).max())))


def _checked(values: Sequence[float], confidence: float) -> np.ndarray:
    taken = np.asarray(values, float)
    if taken.ndim != 1 or not taken.size or not np.isfinite(taken).all():
        raise LotteryError(f"An interval needs one finite number or more, received {taken.tolist()}.")
    if not 0 < confidence < 1:
        raise LotteryError(f"The confidence of an interval: received {confidence}, allowed is between 0 and 1.")
    return taken
