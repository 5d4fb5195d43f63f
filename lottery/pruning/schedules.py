"""Schedules: how many of the entries that are ranked together survive each round."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from lottery.errors import LotteryError

# From a round to the density after it has pruned, which is 1 in round 0 and never rises.
Density = Callable[[int], float]


@dataclass(frozen=True)
class Schedule:
    """The density of each round, and how it becomes a number of survivors."""

    density: Density
    # The fraction of the survivors that each round prunes, where that is what somebody has written. Without it, rounds
    # meet their densities. The two differ by the sum of the roundings.
    rate: float | None = None
    in_one_round: bool = False  # round 1 prunes everything, so later rounds may prune nothing

    def survivors(self, entries: int, num_rounds: int) -> list[int]:
        """Count the survivors of rounds 0 to `num_rounds`, of entries that are ranked together."""
        kept = [entries]
        for number in range(1, num_rounds + 1):
            if self.rate is not None:
                kept.append(kept[-1] - share(self.rate, kept[-1]))
            else:
                # Entries never come back, even if a schedule of a caller's own rises.
                kept.append(min(kept[-1], share(self.density(number), entries)))
        return kept


def geometric(rate: float, num_rounds: int = 0, final_density: float | None = None) -> Schedule:
    """Prune the same fraction of the survivors in every round: density (1 - rate)^round.

    The schedule of Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635, section 1. `final_density` takes the place
    of the rate: round i of `num_rounds` then has the density final_density^(i / num_rounds).
    """
    if final_density is not None:
        # Not by a rate worked out from it, which would miss it by the roundings of all rounds.
        return Schedule(lambda number: final_density ** (number / num_rounds))
    return Schedule(lambda number: (1 - rate) ** number, rate)


def linear(rate: float, num_rounds: int, final_density: float | None = None) -> Schedule:
    """Prune the same number of weights in every round, down to (1 - rate)^num_rounds or to `final_density`."""
    last = (1 - rate) ** num_rounds if final_density is None else final_density

    def density(number: int) -> float:
        done = min(number, num_rounds) / num_rounds
        return (1 - done) + last * done  # so that the last is exactly `last`

    return Schedule(density)


def one_shot(rate: float, num_rounds: int = 1, final_density: float | None = None) -> Schedule:
    """Prune everything in round 1, down to (1 - rate)^num_rounds or to `final_density`.

    "One-shot pruning" of Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635, section 2.
    """
    last = (1 - rate) ** num_rounds if final_density is None else final_density
    return Schedule(lambda number: last if number else 1.0, in_one_round=True)


def explicit(densities: Sequence[float]) -> Schedule:
    """Take the densities of rounds 1, 2, ... from a list; they must fall, within (0, 1)."""
    values = [1.0, *densities]
    if not all(0 < after < before for before, after in itertools.pairwise(values)):
        raise LotteryError(f"Densities must fall from round to round within (0, 1), not {list(densities)}.")
    return Schedule(lambda number: values[number])


# `explicit` takes densities; each of the others takes a rate, a number of rounds and a final density.
SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "geometric": geometric,
    "linear": linear,
    "one_shot": one_shot,
    "explicit": explicit,
}


def share(fraction: float, number: int) -> int:
    """Return a fraction of a number, rounded half to even; the fraction counts as the decimal number that is written.

    Such are the entries that a rate prunes of survivors, and those that a density keeps of all.
    """
    # The float 0.57 is a little lower than 0.57, and of 619,750 it would not end in a half.
    return round(Fraction(repr(float(fraction))) * number)
