import math

import numpy as np
import pytest
from scipy import stats

from lottery.statistics import power


def power_of(num, distance, std, confidence=0.95):
    """By SciPy's noncentral t, which has NaNs elsewhere."""
    return stats.nct.sf(stats.t.isf((1 - confidence) / 2, num - 1), num - 1, distance * math.sqrt(num) / std)


@pytest.mark.parametrize("num", [2, 3, 5, 10, 40])
@pytest.mark.parametrize("distance", [0.1, 0.5, 1.0, 2.0])
def test_power_is_that_of_the_noncentral_t(num, distance):
    expected = power_of(num, distance, 1.0)
    assert power.of_interval(num, distance, 1.0) == pytest.approx(expected, abs=1e-3)
    assert power.of_interval(num, -3 * distance, np.array([3.0]))[0] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("distance", "confidence", "least"), [(1.0, 0.95, 0.8), (0.45, 0.95, 0.8), (0.7, 0.975, 0.9)])
def test_num_needed_is_the_smallest_with_the_power(distance, confidence, least):
    found = power.num_needed(distance, 1.0, confidence=confidence, least_power=least)
    assert power_of(found, distance, 1.0, confidence) >= least - 1e-3 > power_of(found - 1, distance, 1.0, confidence)


def test_num_needed_by_hand_and_at_its_ends():
    # Cohen 1988: 34 pairs for half a standard deviation, two-sided 5 %, power 80 %.
    assert power.num_needed(0.5, 1.0) == 34 == power.num_needed(-0.005, 0.01)
    assert power.num_needed(0.5, 1.0, pilot=3) > power.num_needed(0.5, 1.0, pilot=10) > 34
    assert power.num_needed(0.5, 1.0, pilot=10_000) in (34, 35)
    assert power.num_needed(0.0, 1.0) is None and power.num_needed(1e-3, 1.0) is None
    assert power.num_needed(0.5, 1.0, pilot=1) is None
    assert power.num_needed(0.5, 0.0) == 2


@pytest.mark.parametrize("pilot", [3, 5])
def test_what_a_pilot_asks_for_has_the_power_that_it_promises(pilot):
    quantiles = stats.chi2.ppf((np.arange(100) + 0.5) / 100, pilot - 1)
    stds = np.sqrt(quantiles / (pilot - 1))  # as pilots estimate a true one of 1, each as probable as the next
    powers = [power.of_interval(power.num_needed(0.8, std, pilot) or power.MOST, 0.8, 1.0) for std in stds]
    assert 0.77 < np.mean(powers) < 0.9
