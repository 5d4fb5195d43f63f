import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lottery import config, criteria, masks, pruning
from lottery.errors import LotteryError

SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=9)


@st.composite
def scored(draw):
    """A few weights with many ties, and masks that already prune some of them."""
    names = [f"w{index}" for index in range(draw(st.integers(1, 4)))]
    few = st.sampled_from([0.0, 0.25, 0.5, 0.5, 1.0, 2.0])
    scores = {name: draw(hnp.arrays(np.float32, draw(SHAPES), elements=few)) for name in names}
    kept = {name: draw(hnp.arrays(bool, value.shape)) for name, value in scores.items()}
    return scores, kept


def by_hand(scores, kept, rate):
    """An independent ranking of one group: sort (score, position) pairs of the survivors, drop the first."""
    entries = [
        (float(scores[name].flat[index]), place, index, name)
        for place, name in enumerate(kept)
        for index in range(kept[name].size)
        if kept[name].flat[index]
    ]
    gone = sorted(entries)[: round(rate * len(entries))]
    result = {name: mask.copy() for name, mask in kept.items()}
    for _, _, index, name in gone:
        result[name].flat[index] = False
    return result


@settings(max_examples=300, deadline=None)
@given(scored(), st.sampled_from([0.0, 0.1, 0.2, 1 / 3, 0.5, 0.95]))
def test_masks_equal_an_independent_ranking_entry_by_entry(case, rate):
    scores, kept = case
    before = {name: mask.copy() for name, mask in kept.items()}
    together = pruning.keep_highest(scores, kept, rate, "global")
    alone = pruning.keep_highest(scores, kept, rate, "layerwise")
    expected_together = by_hand(scores, kept, rate)
    for name in kept:
        expected_alone = by_hand({name: scores[name]}, {name: kept[name]}, rate)
        np.testing.assert_array_equal(together[name], expected_together[name])
        np.testing.assert_array_equal(alone[name], expected_alone[name])
        np.testing.assert_array_equal(kept[name], before[name])  # the input is untouched
    assert masks.is_nested(together, kept) and masks.is_nested(alone, kept)


def test_a_rate_of_its_own_is_exact_in_both_scopes(rng):
    scores = {"a": rng.normal(size=100), "b": rng.normal(size=50), "c": rng.normal(size=30)}
    for scope in pruning.SCOPES:
        kept = masks.num_kept(pruning.keep_highest(scores, masks.ones_like(scores), 0.2, scope, {"c": 0.5}))
        assert kept["c"] == 15 and kept["a"] + kept["b"] == 120


def test_all_ties_still_prune_exactly_as_many():
    kept = pruning.keep_highest({"w": np.ones(100)}, masks.ones_like({"w": np.ones(100)}), 0.2)
    assert kept["w"].tolist() == [False] * 20 + [True] * 80


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"scope": "local"}, "scope: received 'local', allowed is 'layerwise', 'global'"),
        ({"rates": {"dense/kernl": 0.1}}, "did you mean 'dense/kernel'"),
        ({"scores": {"dense/kernel": np.array([1.0, np.nan, 0.0])}}, "NaN"),
        ({"scores": {"dense/kernel": np.ones(4)}}, "shape"),
        ({"scores": {}}, "does not exist"),
    ],
)
def test_bad_input_is_one_sentence(call, message):
    arguments = {"scores": {"dense/kernel": np.arange(3.0)}, "masks": {"dense/kernel": np.ones(3, bool)}, "rate": 0.2}
    with pytest.raises(LotteryError, match=message):
        pruning.keep_highest(**(arguments | call))


def test_a_masked_entry_may_have_any_score():
    kept = {"w": np.array([True, True, False, True])}
    pruned = pruning.keep_highest({"w": np.array([3.0, 1.0, np.nan, 2.0])}, kept, 1 / 3)
    assert pruned["w"].tolist() == [True, False, False, True]


@pytest.mark.parametrize("name", criteria.CRITERIA)
def test_every_criterion_scores_all_weights_and_changes_none(name, rng):
    initial = {"a": rng.normal(size=(4, 3)), "b": rng.normal(size=(2, 2, 3, 4))}
    trained = {key: value + rng.normal(size=value.shape) for key, value in initial.items()}
    copies = {key: value.copy() for key, value in trained.items()}
    first, second = (criteria.CRITERIA[name](initial, trained) for _ in range(2))
    assert first.keys() == trained.keys()
    for key, value in first.items():
        assert value.shape == trained[key].shape and np.isfinite(value).all()
        np.testing.assert_array_equal(value, second[key])
        np.testing.assert_array_equal(trained[key], copies[key])


def test_magnitude_ignores_the_sign():
    scores = criteria.magnitude({}, {"w": np.array([-3.0, 1.0, -2.0, 0.5])})
    assert pruning.keep_highest(scores, {"w": np.ones(4, bool)}, 0.5)["w"].tolist() == [True, False, True, False]


def test_explicit_densities_are_reached_exactly(rng):
    settings_ = config.Prune(schedule="explicit", densities=(0.5, 0.1), num_rounds=2)
    scores = {"w": rng.normal(size=1000)}
    kept = masks.ones_like(scores)
    for index, expected in ((1, 500), (2, 100)):
        kept = pruning.round_masks(settings_, index, scores, kept)
        assert masks.num_kept(kept) == {"w": expected}
