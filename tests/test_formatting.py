"""Numbers as texts."""

import pytest

from lottery import formatting


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (999.4, "999"), (999_600, "1M"), (2_081_894_400, "2.08G")])
def test_a_large_number_has_three_digits_and_the_right_power(value, text):
    assert formatting.short(value) == text


def test_an_interval_across_zero_shows_both_signs():
    assert formatting.points(0.0352, -0.0002, 0.0705) == ["+3.52", "−0.02", "+7.05"]
    assert formatting.points(0.0352, -0.0052, 0.0) == ["+3.5", "−0.5", "+0.0"]


def test_a_small_negative_number_has_a_minus_sign_too():
    texts = formatting.column([-0.00003, 0.5])
    assert texts == ["−3.0e-05", "0.5000"] and formatting.are_numbers(texts)
