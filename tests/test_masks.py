import numpy as np
import pandas as pd
import pytest
import scipy.sparse

from lottery import masks
from lottery.errors import LotteryError


def test_density_counts_entries_not_weights():
    kept = {"a": np.array([True, False, False, False]), "b": np.ones((2, 6), bool)}
    assert masks.density(kept) == 13 / 16
    assert masks.density_by_weight(kept) == {"a": 0.25, "b": 1.0}


def test_apply_gives_the_held_value_whatever_was_there():
    weights = {"w": np.array([-1.0, np.nan, np.inf, 4.0], np.float32), "bias": np.array([5.0], np.float32)}
    kept = {"w": np.array([False, False, False, True])}
    applied = masks.apply(weights, kept)
    assert applied["w"].tobytes() == np.array([0, 0, 0, 4], np.float32).tobytes()  # positive zero, to the bit
    assert applied["bias"] is weights["bias"]
    held = masks.apply(weights, kept, {"w": np.array([7, 8, 9, 10], np.float32)})
    assert held["w"].tolist() == [7, 8, 9, 4] and held["w"].dtype == np.float32
    assert np.isnan(weights["w"][1])  # the input is untouched


def test_nested_and_intersection():
    outer, inner = {"w": np.array([1, 1, 0, 1], bool)}, {"w": np.array([1, 0, 0, 1], bool)}
    assert masks.is_nested(inner, outer) and not masks.is_nested(outer, inner)
    assert masks.intersection(outer, inner)["w"].tolist() == [True, False, False, True]
    with pytest.raises(LotteryError, match="different weights"):
        masks.intersection(outer, {"v": outer["w"]})


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ({"dense/kernal": np.ones(3, bool)}, "Did you mean 'dense/kernel'"),
        ({"dense/kernel": np.ones(3)}, r"boolean array of NumPy, not float64\. Use mask.astype"),
        ({"dense/kernel": np.ones((1, 3), bool)}, r"shape \(1, 3\), the weight has \(3,\)"),
        ({"dense/kernel": [True, True, True]}, r"boolean array of NumPy, not list\.$"),
        ({"dense/kernel": np.ma.array(np.ones(3, bool), mask=[0, 0, 1])}, "not MaskedArray"),
        ({"dense/kernel": scipy.sparse.coo_array(np.ones(3, bool))}, "not coo_array"),
        ({"dense/kernel": pd.DataFrame(np.ones(3, bool))}, "not DataFrame"),
    ],
)
def test_check_says_what_is_wrong(mask, message):
    with pytest.raises(LotteryError, match=message):
        masks.check(mask, {"dense/kernel": np.zeros(3)})


def test_leaks_counts_masked_entries_that_are_not_zero():
    weights = {"a": np.array([1.0, np.nan, 0.0, -0.0]), "b": np.array([[5.0, 0.0]]), "c": np.ones(2)}
    kept = {"a": np.array([True, False, False, False]), "b": np.array([[True, False]])}
    assert masks.leaks(weights, kept) == {"a": 1}
    assert masks.leaks(weights, {name: ~mask for name, mask in kept.items()}) == {"a": 1, "b": 1}


def test_held_values_count_as_the_weight_can_hold_them():
    weights, kept = {"a": np.ones(3, np.float32)}, {"a": np.array([True, False, False])}
    for held_at in ({"a": 0.1}, {"a": np.full(3, 0.1)}):
        assert masks.leaks(masks.apply(weights, kept, held_at), kept, held_at) == {}
        assert masks.leaks(weights, kept, held_at) == {"a": 2}


@pytest.mark.parametrize("kept", [{}, {"w": np.ones((0, 3), bool)}])
def test_masks_without_an_entry_have_no_density(kept):
    for fraction in (masks.density, lambda kept: masks.distance(kept, kept)):
        with pytest.raises(LotteryError, match="have no entry"):
            fraction(kept)
