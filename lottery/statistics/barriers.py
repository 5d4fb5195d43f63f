"""The error barrier between two networks: how high the error rises on the straight line between them."""

from collections.abc import Sequence
from typing import Any

STABLE = 0.02  # of Frankle et al. 2020, https://arxiv.org/abs/1912.05671, section 3


def error_barrier(alphas: Sequence[float], errors: Sequence[float]) -> dict[str, Any]:
    """Compute the error barrier of one path: the highest error on the straight line minus the mean of its ends.

    It is the "linear interpolation instability" of Frankle et al. 2020, https://arxiv.org/abs/1912.05671, section 2.

    Args:
        alphas: The places of the points, from 0 to 1, in any order.
        errors: The errors at these points, in [0, 1].

    Returns:
        ``ends``, the mean error of the two networks; ``highest``, the highest error, found first at
        ``alpha_highest``; ``barrier``; and ``stable``, True if the barrier is below `STABLE`.
    """
    points = sorted(zip(map(float, alphas), map(float, errors), strict=True))
    ends = (points[0][1] + points[-1][1]) / 2
    alpha, highest = max(points, key=lambda point: point[1])
    barrier = highest - ends
    return {
        "ends": ends, "highest": highest, "alpha_highest": alpha, "barrier": barrier, "stable": barrier < STABLE,
    }  # fmt: skip
