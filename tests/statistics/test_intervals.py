import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lottery.errors import LotteryError
from lottery.statistics import intervals

# Quantiles of Student's t at 97.5 %, as printed in tables.
T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 29: 2.045}
several = st.lists(st.integers(-10_000, 10_000).map(lambda value: value / 10_000), min_size=2, max_size=12)


@pytest.mark.parametrize("freedom", T_975)
def test_the_t_interval_is_that_of_printed_tables(freedom):
    values = np.random.default_rng(freedom).normal(size=freedom + 1)
    mean, low, high = intervals.mean_interval(values.tolist())
    half = T_975[freedom] * statistics.stdev(values) / math.sqrt(freedom + 1)
    assert mean == pytest.approx(statistics.mean(values))
    assert (high - mean, mean - low) == pytest.approx((half, half), rel=3e-4)


def test_by_hand():
    # mean 3, deviation sqrt(10 / 4), standard error sqrt(1 / 2); t is 2.776445 for 4 degrees of freedom.
    assert intervals.mean_interval([1, 2, 3, 4, 5]) == pytest.approx((3, 3 - 1.963243, 3 + 1.963243), abs=1e-6)
    assert intervals.mean_interval([1, 2, 3, 4, 5], confidence=0.5) == pytest.approx((3, 2.476244, 3.523756), abs=1e-5)


@given(several, st.sampled_from([0.5, 0.9, 0.99]))
def test_the_t_interval_is_scipys(values, confidence):
    mean, low, high = intervals.mean_interval(values, confidence)
    error = stats.sem(values)
    if np.ptp(values) == 0:
        assert (low, high) == ((-math.inf, math.inf) if len(values) == 2 else (mean, mean))
    else:
        expected = stats.t.interval(confidence, len(values) - 1, np.mean(values), error)
        assert (low, high) == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_a_wider_confidence_is_a_wider_interval_and_holds_the_mean():
    values = [0.97, 0.975, 0.981, 0.972]
    ends = [intervals.mean_interval(values, confidence) for confidence in (0.5, 0.8, 0.95)]
    assert all(one[1] <= one[0] <= one[2] for one in ends)
    assert ends[2][1] < ends[1][1] < ends[0][1] and ends[0][2] < ends[1][2] < ends[2][2]


def test_few_or_equal_values():
    assert intervals.mean_interval([0.25]) == (0.25, -math.inf, math.inf)
    assert intervals.mean_interval([0.25] * 2) == (0.25, -math.inf, math.inf)
    assert intervals.mean_interval([0.25] * 3) == (0.25, 0.25, 0.25)
    low, high = intervals.mean_interval([0, 1])[1:]
    assert low < 0.5 < high


def test_the_t_interval_holds_the_mean_as_often_as_it_says():
    drawn = np.random.default_rng(5).normal(2, 3, size=(1000, 5))
    ends = [intervals.mean_interval(row.tolist(), 0.8)[1:] for row in drawn]
    # 0.8 of 1000 has a deviation of 13.
    assert 750 < sum(low <= 2 <= high for low, high in ends) < 850


def test_on_a_grid_equal_steps_have_a_spread():
    mean, low, high = intervals.mean_interval([-100, -100, -100], spacing=50)
    half = stats.t.isf(0.025, 2) * 50 / math.sqrt(6) / math.sqrt(3)
    assert (mean, low, high) == pytest.approx((-100, -100 - half, -100 + half))
    assert intervals.mean_interval([-100, -100], spacing=50)[1] > -math.inf
    wide = [0, 500, 1000]
    assert intervals.mean_interval(wide, spacing=50) == intervals.mean_interval(wide)
    assert intervals.mean_interval([50], spacing=50) == (50, -math.inf, math.inf)


@pytest.mark.parametrize(
    ("values", "settings", "message"),
    [
        ([], {}, "one finite number or more, not \\[\\]"),
        ([0.1, math.nan], {}, "one finite number or more"),
        ([0.1, math.inf], {}, "one finite number or more"),
        ([0.1, 0.2], {"confidence": 1.0}, "must be between 0 and 1, not 1.0"),
    ],
)
def test_what_has_no_interval_is_refused(values, settings, message):
    with pytest.raises(LotteryError, match=message):
        intervals.mean_interval(values, **settings)


def test_one_example_more_in_each_replicate_is_no_spread():
    """Accuracies are of single precision: 300 of 360 less 299 is not 359 less 358."""
    gains = [float(np.float32(one / 360)) - float(np.float32((one - 1) / 360)) for one in (300, 359)]
    assert 0 < abs(gains[0] - gains[1]) < 1e-6
    assert intervals.mean_interval(gains)[1:] == (-math.inf, math.inf)


def test_an_interval_of_an_accuracy_is_cut_to_what_accuracies_can_be():
    assert intervals.of_accuracy(-0.1, 1.2) == (0.0, 1.0)
    assert intervals.of_accuracy(0.2, 0.3) == (0.2, 0.3)
    assert intervals.of_accuracy(-math.inf, math.inf) == (-math.inf, math.inf)
