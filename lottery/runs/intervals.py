"""Confidence intervals for a mean over replicates, and how many replicates would be enough."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from lottery.errors import LotteryError, unknown

MOST = 1000  # replicates; `num_needed` looks no further
RESAMPLES = 9999
# Accuracies have single precision, so one example more can be worth slightly more or less from replicate to replicate.
SAME = 1e-6


def students_t(values: np.ndarray, confidence: float) -> tuple[float, float]:
    """Compute the ends of mean ± t s / sqrt(n), of Student 1908, with n - 1 degrees of freedom, for normal values."""
    from scipy import special  # not stats, which takes a second to import

    num = len(values)
    half = float(special.stdtrit(num - 1, (1 + confidence) / 2)) * float(values.std(ddof=1)) / math.sqrt(num)
    return float(values.mean()) - half, float(values.mean()) + half


def bootstrap(values: np.ndarray, confidence: float) -> tuple[float, float]:
    """Compute the ends of the bias-corrected and accelerated bootstrap of Efron 1987, from a fixed seed.

    It assumes no distribution, but for a handful of values it is too narrow: it never leaves their range.
    """
    from scipy import stats

    # The order of the replicates must not move the ends.
    found = stats.bootstrap(
        (np.sort(values),), np.mean, confidence_level=confidence, n_resamples=RESAMPLES, method="BCa", rng=0
    ).confidence_interval
    return float(found.low), float(found.high)


METHODS: dict[str, Callable[[np.ndarray, float], tuple[float, float]]] = {"t": students_t, "bootstrap": bootstrap}


def mean_interval(values: Sequence[float], confidence: float = 0.95, method: str = "t") -> tuple[float, float, float]:
    """Compute the mean, and the ends of an interval that holds the true mean with a probability, in (0, 1).

    The ends are infinite for one value, and for two equal ones, which accuracies over few examples often are; for three
    or more equal values they are the mean.

    Raises:
        LotteryError: No value, one that is not finite, an unknown method, or a confidence outside (0, 1).
    """
    taken = _checked(values, confidence)
    if method not in METHODS:
        raise unknown("The method of an interval", method, METHODS)
    mean, same = float(taken.mean()), _are_same(taken)
    if len(taken) == 1 or (len(taken) == 2 and same):
        return mean, -math.inf, math.inf
    return (mean, mean, mean) if same else (mean, *METHODS[method](taken, confidence))


def of_accuracy(low: float, high: float) -> tuple[float, float]:
    """Cut an interval of an accuracy to [0, 1], outside which no accuracy lies; infinite ends stay."""
    return (low, high) if math.isinf(low) else (max(low, 0.0), min(high, 1.0))


def num_needed(values: Sequence[float], distance: float, confidence: float = 0.95) -> int | None:
    """Estimate how many replicates make half a t interval no wider than a distance: that of the mean from a value.

    It is the smallest m >= 2 with t_{m-1} s / sqrt(m) <= distance, where s is the sample standard deviation at hand;
    None from one value, or if it takes more than `MOST`.
    """
    from scipy import special

    taken = _checked(values, confidence)
    if len(taken) == 1:
        return None
    if _are_same(taken):
        return 2
    nums = np.arange(2, MOST + 1)
    halves = special.stdtrit(nums - 1, (1 + confidence) / 2) * taken.std(ddof=1) / np.sqrt(nums)
    return next((int(num) for num, half in zip(nums, halves, strict=True) if half <= abs(distance)), None)


def _are_same(taken: np.ndarray) -> bool:
    return bool(np.ptp(taken) <= SAME * max(1.0, float(np.abs(taken).max())))


def _checked(values: Sequence[float], confidence: float) -> np.ndarray:
    taken = np.asarray(values, float)
    if taken.ndim != 1 or not taken.size or not np.isfinite(taken).all():
        raise LotteryError(f"An interval needs one finite number or more, received {taken.tolist()}.")
    if not 0 < confidence < 1:
        raise LotteryError(f"The confidence of an interval: received {confidence}, allowed is between 0 and 1.")
    return taken
