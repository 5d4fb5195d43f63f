import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lottery.statistics import intervals, significance


@pytest.mark.parametrize("bound", [-1.0, 0.0, 0.3, 2.0])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_p_values_are_those_of_the_t_test(bound, confidence):
    values = [0.2, 0.5, 0.3, 0.9]
    mean, low, high = intervals.mean_interval(values, confidence)
    found = significance.p_value(mean, low, 4, bound, confidence)
    assert found == pytest.approx(stats.ttest_1samp(values, bound, alternative="greater").pvalue)
    below = significance.p_value(-mean, -high, 4, -bound, confidence)
    assert below == pytest.approx(stats.ttest_1samp(values, bound, alternative="less").pvalue)


def test_p_values_without_a_spread():
    assert significance.p_value(0.1, -math.inf, 1, 0.0) == 1 and significance.p_value(0.1, -math.inf, 2, 0.0) == 1
    assert significance.p_value(0.1, 0.1, 3, 0.05) == 0 and significance.p_value(0.1, 0.1, 3, 0.2) == 1
    assert significance.p_value(0.1, 0.1, 3, 0.1) == 1  # is not above it


def test_simes_and_step_down_by_hand():
    assert significance.simes([0.04, 0.5, 0.02]) == pytest.approx(0.06)  # 3 x 0.02 / 1, 3 x 0.04 / 2, 3 x 0.5 / 3
    assert significance.simes([0.03]) == 0.03
    # All: 3 x 0.008; the last two: 2 x 0.008; the last alone 0.5.
    assert significance.step_down([0.3, 0.008, 0.5], 0.025) == 2
    assert significance.step_down([0.001, 0.02, 0.5], 0.025) == 1  # 2 x 0.02 is too much
    assert significance.step_down([0.3, 0.009, 0.5], 0.025) == 0  # 3 x 0.009 too, and that comes first
    assert significance.step_down([0.02, 0.02], 0.025) == 2 and significance.step_down([], 0.025) == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.001, 0.2))
def test_the_last_that_is_counted_is_shown_by_itself(p_values, level):
    count = significance.step_down(p_values, level)
    assert count == 0 or p_values[count - 1] <= level
