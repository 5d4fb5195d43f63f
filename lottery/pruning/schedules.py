"""Round to density. A schedule is a function from a round to the density meant after it: 1 at round 0, never rising."""

import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction

from lottery.errors import LotteryError

Schedule = Callable[[int], float]


def geometric(rate: float, num_rounds: int = 0, final_density: float | None = None) -> Schedule:
    """Prune the same fraction of the survivors in every round: density (1 - rate)^round.

    The schedule of Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635, section 1.

    Args:
        rate: Fraction of the survivors pruned in a round, in [0, 1).
        num_rounds: Used with a final density only; every schedule takes it.
        final_density: Density of round `num_rounds`, instead of a rate; then that of round i is
            final_density^(i / num_rounds).

    Returns:
        Round to density.
    """
    if final_density is not None:
        return lambda index: final_density ** (index / num_rounds)
    return lambda index: (1 - rate) ** index


def linear(rate: float, num_rounds: int, final_density: float | None = None) -> Schedule:
    """Prune the same number of weights in every round, ending where `geometric` would.

    Args:
        rate: As in `geometric`; the last density is (1 - rate)^num_rounds.
        num_rounds: Rounds after the dense one.
        final_density: The last density itself, instead of a rate.

    Returns:
        Round to density.
    """
    last = _last(rate, num_rounds, final_density)

    def density(index: int) -> float:
        done = min(index, num_rounds) / num_rounds
        return (1 - done) + last * done  # so the last is exactly the density that was given

    return density


def one_shot(rate: float, num_rounds: int = 1, final_density: float | None = None) -> Schedule:
    """Prune everything in round 1, to the density (1 - rate)^num_rounds, and nothing after it.

    Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635, section 2, "one-shot pruning". With one round, `rate` is
    the fraction pruned.

    Args:
        rate: As in `geometric`.
        num_rounds: Rounds after the dense one.
        final_density: The last density itself, instead of a rate.

    Returns:
        Round to density.
    """
    last = _last(rate, num_rounds, final_density)
    return lambda index: last if index else 1.0


def explicit(densities: Sequence[float]) -> Schedule:
    """The densities themselves, for rounds 1, 2, ...

    Args:
        densities: Fractions in (0, 1), falling from round to round.

    Returns:
        Round to density.

    Raises:
        LotteryError: The densities do not fall, or leave (0, 1).
    """
    values = [1.0, *densities]
    if not all(0 < after < before for before, after in itertools.pairwise(values)):
        raise LotteryError(f"Densities must fall from round to round within (0, 1), received {list(densities)}.")
    return lambda index: values[index]


# From a rate, a number of rounds and, instead of the rate, a final density.
SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "geometric": geometric,
    "linear": linear,
    "one_shot": one_shot,
}


def rate_at(schedule: Schedule, index: int) -> float:
    """Fraction of the survivors of round `index - 1` that round `index` prunes.

    Rounded to twelve digits, so that 1 - 0.9^2 / 0.9 is 0.1 and not the float below it: one entry hangs on that
    wherever rate times survivors ends in one half.
    """
    before = schedule(index - 1)
    return round(1 - schedule(index) / before, 12) if before else 0.0  # so many rounds that the density is no float


def num_kept(schedule: Schedule, index: int, size: int, survivors: int, of_survivors: bool) -> int:
    """How many of `size` entries are kept after round `index`, when `survivors` were kept before it.

    Args:
        schedule: Round to density.
        index: The round, from 1.
        size: Entries that are ranked together.
        survivors: Those that the round before kept.
        of_survivors: Whether a rate of the survivors is pruned, as in the paper; or else the density itself is met.
            The two differ by what rounding adds up to over the rounds.

    Returns:
        The number of entries.
    """
    if of_survivors:
        return survivors - num_pruned(rate_at(schedule, index), survivors)
    return min(survivors, round(schedule(index) * size))


def num_pruned(rate: float, survivors: int) -> int:
    """How many of `survivors` a rate prunes: rate times survivors, rounded half to even.

    The rate is the decimal number that was written: as a float 0.57 is a little less, and 0.57 of 619,750 would not be
    a half.
    """
    return round(Fraction(repr(float(rate))) * survivors)


def _last(rate: float, num_rounds: int, final_density: float | None) -> float:
    return (1 - rate) ** num_rounds if final_density is None else final_density
