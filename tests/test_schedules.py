import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lottery import config, pruning, schedules
from lottery.errors import LotteryError

LENET = {"dense/kernel": 784 * 300, "dense_1/kernel": 300 * 100, "dense_2/kernel": 100 * 10}
# Round: first, second, output layer, as in Frankle & Carbin's protocol.
LADDER = {
    0: (235200, 30000, 1000), 1: (188160, 24000, 900), 2: (150528, 19200, 810), 3: (120422, 15360, 729),
    5: (77070, 9830, 590), 7: (49325, 6291, 478), 9: (31568, 4026, 387), 12: (16162, 2062, 282),
    15: (8275, 1056, 206), 16: (6620, 845, 185), 18: (4237, 541, 150), 20: (2712, 346, 121),
}  # fmt: skip


@pytest.mark.parametrize("name", schedules.SCHEDULES)
@pytest.mark.parametrize("rate", [0.01, 0.2, 0.5, 0.93])
def test_every_schedule_starts_at_one_and_never_rises(name, rate):
    schedule = schedules.SCHEDULES[name](rate, 12)
    densities = [schedule(index) for index in range(13)]
    assert densities[0] == 1
    assert all(0 < after <= before <= 1 for before, after in itertools.pairwise(densities))
    assert math.isclose(densities[-1], (1 - rate) ** 12, abs_tol=1e-12)  # all three end at the same density


def test_linear_prunes_the_same_number_each_round():
    schedule = schedules.linear(0.5, 4)
    steps = [schedule(index) - schedule(index + 1) for index in range(4)]
    assert steps == pytest.approx([(1 - 0.5**4) / 4] * 4)


def test_lenet_ladder_is_that_of_the_paper():
    counts = pruning.ladder(
        LENET, schedules.geometric(0.2), 20, exceptions={"dense_2/kernel": schedules.geometric(0.1)}
    )
    for index, expected in LADDER.items():
        assert tuple(counts[(name,)][index] for name in LENET) == expected


@given(st.integers(1, 99), st.integers(0, 10**6), st.integers(1, 40))
@example(57, 619_750, 1)
def test_a_geometric_schedule_prunes_the_rate_that_was_written(percent, survivors, index):
    """Independent recomputation in exact fractions, where 1 - 0.9^2 / 0.9 is 1/10 and half goes to even."""
    rate = schedules.rate_at(schedules.geometric(percent / 100), index)
    exact = Fraction(percent, 100) * survivors
    distance = abs(schedules.num_pruned(rate, survivors) - exact)
    assert distance <= Fraction(1, 2)
    if distance == Fraction(1, 2):
        assert schedules.num_pruned(rate, survivors) % 2 == 0


def test_densities_that_are_written_are_met_whatever_rounding_did_before():
    densities = tuple(round(0.99 - 0.03 * index, 2) for index in range(20))
    counts = pruning.planned(config.Prune(schedule="explicit", densities=densities, num_rounds=20), {"w": 48}, 20)
    assert counts[("w",)] == [48, *(round(48 * density) for density in densities)]
    linear = pruning.planned(config.Prune(schedule="linear", rate=0.2, num_rounds=10), {"w": 1000}, 10)[("w",)]
    assert linear == [1000, *(round(1000 * (1 - (1 - 0.8**10) * index / 10)) for index in range(1, 11))]


@pytest.mark.parametrize("densities", [[0.5, 0.5], [0.5, 0.6], [1.0], [0.0], [0.5, -0.1]])
def test_explicit_densities_must_fall(densities):
    with pytest.raises(LotteryError, match="must fall"):
        schedules.explicit(densities)


def test_more_rounds_than_weights_allow_are_refused():
    with pytest.raises(LotteryError, match=r"received 60, allowed is at most 2\d.*round \d+ would prune nothing"):
        pruning.check_rounds(config.Prune(num_rounds=60), {"w": 1000})
    with pytest.raises(LotteryError, match="allowed is at most 1 .*would leave nothing of w"):
        pruning.check_rounds(config.Prune(num_rounds=3, rate=0.9), {"w": 10})
    for num_rounds, rate in ((5000, 0.2), (400, 0.99)):
        with pytest.raises(LotteryError, match="allowed is at most"):
            pruning.check_rounds(config.Prune(num_rounds=num_rounds, rate=rate), {"w": 1000})
    with pytest.raises(LotteryError, match="no weight that can be pruned"):
        pruning.check_rounds(config.Prune(), {})
    allowed = pruning.check_rounds(config.Prune(num_rounds=20), {"w": 1000})
    assert allowed[("w",)][-1] > 0
