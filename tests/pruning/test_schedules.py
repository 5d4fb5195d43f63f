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
    densities = [schedule.density(index) for index in range(num_rounds + 1)]
    assert densities[0] == 1
    assert all(0 < after <= before <= 1 for before, after in itertools.pairwise(densities))
    assert densities[-1] < 1
    # Any order, any number of times: a round's density depends on nothing but its number.
    assert [schedule.density(index) for index in reversed(range(num_rounds + 1))] == densities[::-1]


@pytest.mark.parametrize("name", FROM_A_RATE)
@pytest.mark.parametrize("rate", [0.01, 0.2, 0.5, 0.93])
def test_every_schedule_ends_where_the_rate_leads(name, rate):
    assert math.isclose(FROM_A_RATE[name](rate, 12).density(12), (1 - rate) ** 12, rel_tol=1e-12)


@pytest.mark.parametrize("name", FROM_A_RATE)
@given(FINALS, st.integers(1, 40))
@example(0.05, 1)
@example(1e-6, 7)
def test_every_schedule_ends_at_the_very_density_that_was_written(name, final, num_rounds):
    assert FROM_A_RATE[name](0.5, num_rounds, final).density(num_rounds) == final


def test_the_way_to_a_final_density():
    geometric, linear, one_shot = (
        [make(0.5, 3, 0.001).density(index) for index in range(4)] for make in FROM_A_RATE.values()
    )
    assert geometric == pytest.approx([1, 0.1, 0.01, 0.001])
    assert linear == pytest.approx([1, 0.667, 0.334, 0.001])
    assert one_shot == [1, 0.001, 0.001, 0.001]


def test_a_rate_of_zero_prunes_nothing():
    for make in FROM_A_RATE.values():
        assert [make(0.0, 5).density(index) for index in range(6)] == [1.0] * 6


def test_linear_prunes_the_same_number_each_round():
    schedule = schedules.linear(0.5, 4)
    steps = [schedule.density(index) - schedule.density(index + 1) for index in range(4)]
    assert steps == pytest.approx([(1 - 0.5**4) / 4] * 4)


def test_lenet_ladder_is_that_of_the_paper():
    counts = plan.by_schedule(
        LENET, schedules.geometric(0.2), 20, exceptions={"dense_2/kernel": schedules.geometric(0.1)}
    )
    for index, expected in LADDER.items():
        assert tuple(counts[(name,)][index] for name in LENET) == expected


@given(st.integers(1, 99), st.integers(0, 10**6), st.integers(1, 12))
@example(57, 619_750, 1)
def test_a_geometric_schedule_prunes_the_rate_that_was_written(percent, entries, num_rounds):
    """Independent recomputation in exact fractions, where half goes to even."""
    survivors = schedules.geometric(percent / 100).survivors(entries, num_rounds)
    assert survivors[0] == entries and len(survivors) == num_rounds + 1
    for before, after in itertools.pairwise(survivors):
        distance = abs(before - after - Fraction(percent, 100) * before)
        assert distance <= Fraction(1, 2)
        if distance == Fraction(1, 2):
            assert (before - after) % 2 == 0


@given(RATES.map(lambda rate: round(rate, 6)), st.integers(0, 10**6), st.integers(1, 12))
def test_a_rate_gives_the_survivors_that_its_densities_gave(rate, entries, num_rounds):
    """Earlier versions went from the rate to densities, and back to a rate of twelve digits."""
    kept = [entries]
    for index in range(1, num_rounds + 1):
        again = round(1 - (1 - rate) ** index / (1 - rate) ** (index - 1), 12)
        kept.append(kept[-1] - round(Fraction(repr(again)) * kept[-1]))
    assert schedules.geometric(rate).survivors(entries, num_rounds) == kept


@pytest.mark.parametrize("name", [name for name in EVERY if name != "geometric"])
@given(st.data(), st.integers(1, 12), st.integers(0, 10**6))
def test_without_a_rate_rounds_meet_their_densities(name, data, num_rounds, entries):
    schedule = EVERY[name](data, num_rounds)
    densities = [Fraction(repr(float(schedule.density(index)))) for index in range(num_rounds + 1)]
    meant = [round(density * entries) for density in densities]
    assert schedule.survivors(entries, num_rounds) == [min(meant[: index + 1]) for index in range(num_rounds + 1)]


def test_a_density_counts_as_the_decimal_that_was_written():
    """Both are halves, which round to even; the floats are a little lower."""
    assert schedules.explicit([0.575]).survivors(100, 1)[1] == 58
    assert schedules.explicit([0.57]).survivors(150, 1)[1] == 86


@pytest.mark.parametrize("densities", [[0.5, 0.5], [0.5, 0.6], [1.0], [0.0], [0.5, -0.1]])
def test_explicit_densities_must_fall(densities):
    with pytest.raises(LotteryError, match="must fall"):
        schedules.explicit(densities)
