"""P values of means over replicates, and their combination over rounds, which are several tests at once."""

import math
from collections.abc import Sequence

import numpy as np


def p_value(mean: float, low: float, num: int, bound: float, confidence: float = 0.95) -> float:
    """Compute the p value of a one-sided t test that a true mean is above a bound.

    Args:
        mean: The mean of the values.
        low: The lower end of their t interval; it may be infinite, and equal to the mean if all values are.
        num: How many values there are.
        bound: What the true mean is to be above. To test that it is below, give all three with the other sign.
        confidence: That of the interval. The p value is at most (1 - confidence) / 2 if `low` is at least the bound.
    """
    from scipy import special  # not stats, which takes a second to import

    if num < 2 or math.isinf(low):
        return 1.0
    # Without spread there is no t value.
    if low == mean:
        return float(mean <= bound)
    # The standard error is that of the interval, in which a spacing may count.
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
