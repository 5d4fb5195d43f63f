"""Schedules: functions from a round to its density, which is 1 in round 0 and never rises."""

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction

from lottery.errors import LotteryError

# A function from a round to the density after it has pruned.
Schedule = Callable[[int], float]


def geometric(rate: float, num_rounds: int = 0, final_density: float | None = None) -> Schedule:
    """Prune the same fraction of the survivors in every round: density (1 - rate)^round.

    The schedule of Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635, section 1. `final_density` takes the place
    of the rate: round i of `num_rounds` then has the density final_density^(i / num_rounds).
    """
    if final_density is not None:
        return lambda index: final_density ** (index / num_rounds)
    return lambda index: (1 - rate) ** index


def linear(rate: float, num_rounds: int, final_density: float | None = None) -> Schedule:
    """Prune the same number of weights in every round, down to (1 - rate)^num_rounds or to `final_density`."""
    last = (1 - rate) ** num_rounds if final_density is None else final_density

    def density(index: int) -> float:
        done = min(index, num_rounds) / num_rounds
        return (1 - done) + last * done  # so that the last is exactly `last`

    return density


def one_shot(rate: float, num_rounds: int = 1, final_density: float | None = None) -> Schedule:
    """Prune everything in round 1, down to (1 - rate)^num_rounds or to `final_density`.

    "One-shot pruning" of Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635, section 2.
    """
    last = (1 - rate) ** num_rounds if final_density is None else final_density
    return lambda index: last if index else 1.0


def explicit(densities: Sequence[float]) -> Schedule:
    """Take the densities of rounds 1, 2, ... from a list; they must fall, within (0, 1)."""
    values = [1.0, *densities]
    if not all(0 < after < before for before, after in itertools.pairwise(values)):
        raise LotteryError(f"Densities must fall from round to round within (0, 1), received {list(densities)}.")
    return lambda index: values[index]


# `explicit` takes densities; each of the others takes a rate, a number of rounds and a final density.
SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "geometric": geometric,
    "linear": linear,
    "one_shot": one_shot,
    "explicit": explicit,
}


def counts(schedule: Schedule, size: int, num_rounds: int, of_survivors: bool = True) -> list[int]:
    """Count the survivors of `size` entries that are ranked together, in rounds 0 to `num_rounds`.

    `of_survivors` prunes a rate of the survivors, as the paper does; without it, the density itself is met. The two
    differ by the sum of the roundings.
    """
    kept = [size]
    for index in range(1, num_rounds + 1):
        if of_survivors:
            kept.append(kept[-1] - num_pruned(rate_at(schedule, index), kept[-1]))
        else:
            kept.append(min(kept[-1], round(schedule(index) * size)))
    return kept


def rate_at(schedule: Schedule, index: int) -> float:
    """Return the fraction of the survivors of round `index - 1` that round `index` prunes.

    Rounded to twelve digits, so that 1 - 0.9^2 / 0.9 is 0.1 and not the float below it, which would change a count
    wherever rate times survivors ends in one half.
    """
    before = schedule(index - 1)
    return round(1 - schedule(index) / before, 12) if before else 0.0  # a density may be too small for a float


def num_pruned(rate: float, survivors: int) -> int:
    """Return rate times survivors, rounded half to even.

    The rate counts as the decimal number that was written: the float 0.57 is a little lower, and 0.57 of 619,750
    would not end in a half.
    """
    return round(Fraction(repr(float(rate))) * survivors)
