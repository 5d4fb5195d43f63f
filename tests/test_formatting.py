"""Numbers as texts."""

import numpy as np
import pytest

from lottery import formatting


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (999.4, "999"), (999_600, "1M"), (2_081_894_400, "2.08G")])
def test_a_large_number_has_three_digits_and_the_right_power(value, text):
    assert formatting.short(value) == text


def test_an_interval_across_zero_shows_both_signs():
    assert formatting.points(0.0352, -0.0002, 0.0705) == ["+3.52", "−0.02", "+7.05"]
    assert formatting.points(0.0352, -0.0052, 0.0) == ["+3.5", "−0.5", "+0.0"]


def test_what_rounding_leaves_of_nothing_is_zero():
    assert formatting.column([float(np.mean([0.1, 0.2, -0.3])), 0.5]) == ["0.0000", "0.5000"]
    assert formatting.number(1e-14) == "1.0e-14"
    assert formatting.formatted(-float("inf"), "+.2f") == "−inf"


def test_a_small_negative_number_has_a_minus_sign_too():
    texts = formatting.column([-0.00003, 0.5])
    assert texts == ["−3.0e-05", "0.5000"] and formatting.are_numbers(texts)


def test_means_of_counts_have_one_place():
    for name in ("dead", "least", "mean", "most", "dead_units"):
        assert formatting.column([0.0, 1 / 3], name) == ["0.0", "0.3"]


def test_a_column_of_accuracies_is_in_per_cent_and_its_differences_are_points():
    assert formatting.column([0.9041, float("nan"), 1.0], "accuracy") == ["90.41 %", "", "100.00 %"]
    assert formatting.column([-0.0658, float("nan"), 0.0], "vs_dense") == ["−6.58", "", "+0.00"]
    assert formatting.column(["+0.14"], "vs_dense") == ["+0.14"]  # it has its form already
