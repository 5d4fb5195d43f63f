"""How many replicates show a difference: the power of a t interval, and the replicates that a run needs."""

import bisect
import functools
import math
from typing import Any

import numpy as np

from lottery.statistics import intervals

MOST = 1000  # replicates; `num_needed` looks no further
LEAST = 0.8  # the power that `num_needed` asks for, as is the custom since Cohen 1988
_QUANTILES = 200  # of the standard deviations that may come out


def of_interval(num: int, distance: float, std: Any, confidence: float = 0.95) -> Any:
    """Compute the probability that a t interval of `num` new values lies above a bound.

    Args:
        num: How many values, at least 2.
        distance: How far the true mean is above the bound.
        std: Their true standard deviation; an array gives an array.
        confidence: Of the interval.
    """
    from scipy import special

    # The noncentral t distribution as a mean over the standard deviations that may come out. SciPy's own has NaNs.
    ratios = _ratios(num - 1)
    critical = float(special.stdtrit(num - 1, (1 + confidence) / 2))
    # A bound above is as hard to reach as one below.
    shift = abs(distance) * math.sqrt(num) / np.asarray(std, float)
    return special.ndtr(shift[..., None] - critical * ratios).mean(-1)


def num_needed(
    distance: float, std: float, pilot: int | None = None, confidence: float = 0.95, least_power: float = LEAST
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
    if not distance or (pilot is not None and pilot < 2):
        return None
    # Equal values of a pilot would leave nothing to divide by.
    stds = max(std, intervals.SAME * abs(distance)) / (_ratios(pilot - 1) if pilot else np.ones(1))

    def enough(num: int) -> bool:
        return of_interval(num, distance, stds, confidence).mean() >= least_power

    if not enough(MOST):
        return None
    # More replicates never have less power, so the first number that is enough can be searched for by halves.
    return 2 + bisect.bisect_left(range(2, MOST), True, key=enough)


@functools.cache
def _ratios(degrees: int) -> np.ndarray:
    """Return quantiles, evenly apart, of the standard deviation of a sample over the true one."""
    from scipy import special

    places = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    return np.sqrt(2 * special.gammaincinv(degrees / 2, places) / degrees)
