"""Means over replicates and their confidence intervals."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from lottery.errors import LotteryError

# Accuracies have single precision, so one example more can be worth slightly more or less from replicate to replicate.
SAME = 1e-6


def mean_interval(
    values: Sequence[float], confidence: float = 0.95, unit: float = 1.0, spacing: float = 0.0
) -> tuple[float, float, float]:
    """Compute the mean, and the ends of an interval that holds the true mean with a probability, in (0, 1).

    It is mean ± t s / sqrt(n), of Student 1908, with n - 1 degrees of freedom, for normal values. The ends are infinite
    for one value, and for two equal ones, which accuracies over few examples often are; for three or more equal values
    they are the mean.

    Args:
        values: One or more.
        confidence: The probability.
        unit: Values are equal if they differ by at most a millionth of it, or of the largest; see `unit_of`.
        spacing: Of differences of numbers that were each rounded to a multiple of it, such as steps. Rounding hides
            how far equal values are from each other, so s counts as that of the rounding at least: spacing / sqrt(6).

    Raises:
        LotteryError: No value, one that is not finite, or a confidence outside (0, 1).
    """
    from scipy import special  # not stats, which takes a second to import

    numbers = np.asarray(values, float)
    if numbers.ndim != 1 or not numbers.size or not np.isfinite(numbers).all():
        raise LotteryError(f"An interval needs one finite number or more, not {numbers.tolist()}.")
    if not 0 < confidence < 1:
        raise LotteryError(f"The confidence of an interval must be between 0 and 1, not {confidence}.")
    mean = float(numbers.mean())
    num = len(numbers)
    are_same = not spacing and bool(np.ptp(numbers) <= SAME * max(unit, float(np.abs(numbers).max())))
    if num == 1 or (num == 2 and are_same):
        return mean, -math.inf, math.inf
    if are_same:
        return mean, mean, mean
    # An error of rounding is uniform, with the variance spacing² / 12, and a difference has two of them.
    std = max(float(numbers.std(ddof=1)), spacing / math.sqrt(6))
    half = float(special.stdtrit(num - 1, (1 + confidence) / 2)) * std / math.sqrt(num)
    return mean, mean - half, mean + half


def unit_of(values: Any) -> float:
    """Return the unit of a column for `mean_interval`: the mean of losses, which have none, and 1 of all others."""
    return float(values.abs().mean()) if values.name.endswith("loss") else 1.0


def of_accuracy(low: float, high: float) -> tuple[float, float]:
    """Cut an interval of an accuracy to [0, 1], outside which no accuracy lies; infinite ends stay."""
    return (low, high) if math.isinf(low) else (max(low, 0.0), min(high, 1.0))
