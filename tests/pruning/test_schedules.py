import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lottery.errors import LotteryError
from lottery.pruning import plan, schedules

LENET = {"dense/kernel": (784, 300), "dense_1/kernel": (300, 100), "dense_2/kernel": (100, 10)}
# Round: first, second, output layer, as in Frankle & Carbin's protocol.
LADDER = {
    0: (235200, 30000, 1000), 1: (188160, 24000, 900), 2: (150528, 19200, 810), 3: (120422, 15360, 729),
    5: (77070, 9830, 590), 7: (49325, 6291, 478), 9: (31568, 4026, 387), 12: (16162, 2062, 282),
    15: (8275, 1056, 206), 16: (6620, 845, 185), 18: (4237, 541, 150), 20: (2712, 346, 121),
}  # fmt: skip
FROM_A_RATE = {name: make for name, make in schedules.SCHEDULES.items() if name != "explicit"}
RATES = st.floats(0.001, 0.95)
FINALS = st.floats(1e-6, 0.999)


def from_a_rate(make):
    return lambda data, num_rounds: make(data.draw(RATES), num_rounds)


def from_a_final_density(make):
    return lambda data, num_rounds: make(0.2, num_rounds, data.draw(FINALS))


def from_densities(data, num_rounds):
    drawn = data.draw(st.lists(FINALS, min_size=num_rounds, max_size=num_rounds, unique=True))
    return schedules.explicit(sorted(drawn, reverse=True))


EVERY = {
    **{name: from_a_rate(make) for name, make in FROM_A_RATE.items()},
    **{f"{name} to a final density": from_a_final_density(make) for name, make in FROM_A_RATE.items()},
    "explicit": from_densities,
}


@pytest.mark.parametrize("name", EVERY)
@given(st.data(), st.integers(1, 25))
def test_every_schedule_starts_at_one_never_rises_and_says_the_same_again(name, data, num_rounds):
    schedule = EVERY[name](data, num_rounds)
    densities = [schedule(index) for index in range(num_rounds + 1)]
    assert densities[0] == 1
    assert all(0 < after <= before <= 1 for before, after in itertools.pairwise(densities))
    assert densities[-1] < 1
    # Any order, any number of times: a round's density depends on nothing but its number.
    assert [schedule(index) for index in reversed(range(num_rounds + 1))] == densities[::-1]


@pytest.mark.parametrize("name", FROM_A_RATE)
@pytest.mark.parametrize("rate", [0.01, 0.2, 0.5, 0.93])
def test_every_schedule_ends_where_the_rate_leads(name, rate):
    assert math.isclose(FROM_A_RATE[name](rate, 12)(12), (1 - rate) ** 12, rel_tol=1e-12)


@pytest.mark.parametrize("name", FROM_A_RATE)
@given(FINALS, st.integers(1, 40))
@example(0.05, 1)
@example(1e-6, 7)
def test_every_schedule_ends_at_the_very_density_that_was_written(name, final, num_rounds):
    assert FROM_A_RATE[name](0.5, num_rounds, final)(num_rounds) == final


def test_the_way_to_a_final_density():
    geometric, linear, one_shot = ([make(0.5, 3, 0.001)(index) for index in range(4)] for make in FROM_A_RATE.values())
    assert geometric == pytest.approx([1, 0.1, 0.01, 0.001])
    assert linear == pytest.approx([1, 0.667, 0.334, 0.001])
    assert one_shot == [1, 0.001, 0.001, 0.001]


def test_a_rate_of_zero_prunes_nothing():
    for make in FROM_A_RATE.values():
        assert [make(0.0, 5)(index) for index in range(6)] == [1.0] * 6


def test_linear_prunes_the_same_number_each_round():
    schedule = schedules.linear(0.5, 4)
    steps = [schedule(index) - schedule(index + 1) for index in range(4)]
    assert steps == pytest.approx([(1 - 0.5**4) / 4] * 4)


def test_lenet_ladder_is_that_of_the_paper():
    counts = plan.ladder(LENET, schedules.geometric(0.2), 20, exceptions={"dense_2/kernel": schedules.geometric(0.1)})
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


@pytest.mark.parametrize("densities", [[0.5, 0.5], [0.5, 0.6], [1.0], [0.0], [0.5, -0.1]])
def test_explicit_densities_must_fall(densities):
    with pytest.raises(LotteryError, match="must fall"):
        schedules.explicit(densities)
