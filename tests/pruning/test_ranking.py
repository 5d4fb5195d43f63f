import functools
import importlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lottery import masks, weights
from lottery.errors import LotteryError
from lottery.pruning import criteria, one_shot, ranking

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


@settings(deadline=None)
@given(scored(), st.sampled_from([0.0, 0.1, 0.2, 1 / 3, 0.5, 0.95]))
def test_masks_equal_an_independent_ranking_entry_by_entry(case, rate):
    scores, kept = case
    before = {name: mask.copy() for name, mask in kept.items()}
    together = ranking.keep_highest(scores, kept, rate, "global")
    alone = ranking.keep_highest(scores, kept, rate, "layerwise")
    expected_together = by_hand(scores, kept, rate)
    for name in kept:
        expected_alone = by_hand({name: scores[name]}, {name: kept[name]}, rate)
        np.testing.assert_array_equal(together[name], expected_together[name])
        np.testing.assert_array_equal(alone[name], expected_alone[name])
        np.testing.assert_array_equal(kept[name], before[name])  # the input is untouched
    assert masks.is_nested(together, kept) and masks.is_nested(alone, kept)


def test_a_rate_of_its_own_is_exact_in_both_scopes(rng):
    scores = {"a": rng.normal(size=100), "b": rng.normal(size=50), "c": rng.normal(size=30)}
    for scope in ranking.SCOPES:
        kept = masks.num_kept(ranking.keep_highest(scores, masks.ones_like(scores), 0.2, scope, {"c": 0.5}))
        assert kept["c"] == 15 and kept["a"] + kept["b"] == 120


def test_all_ties_still_prune_exactly_as_many():
    kept = ranking.keep_highest({"w": np.ones(100)}, masks.ones_like({"w": np.ones(100)}), 0.2)
    assert kept["w"].tolist() == [False] * 20 + [True] * 80


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"scope": "local"}, "scope must be 'layerwise' or 'global', not 'local'"),
        ({"rates": {"dense/kernl": 0.1}}, "Did you mean 'dense/kernel'"),
        ({"scores": {"dense/kernel": np.array([1.0, np.nan, 0.0])}}, "NaN"),
        ({"scores": {"dense/kernel": np.ones(4)}}, "shape"),
        ({"scores": {}}, "does not exist"),
        ({"rate": 1.0}, r"rate must be a fraction in \[0, 1\), not 1.0"),
        ({"rate": -0.1}, "rate must be .* not -0.1"),
        ({"rates": {"dense/kernel": float("nan")}}, "rate must be .* not nan"),
    ],
)
def test_bad_input_is_one_sentence(call, message):
    arguments = {"scores": {"dense/kernel": np.arange(3.0)}, "masks": {"dense/kernel": np.ones(3, bool)}, "rate": 0.2}
    with pytest.raises(LotteryError, match=message):
        ranking.keep_highest(**(arguments | call))


def test_a_masked_entry_may_have_any_score():
    kept = {"w": np.array([True, True, False, True])}
    pruned = ranking.keep_highest({"w": np.array([3.0, 1.0, np.nan, 2.0])}, kept, 1 / 3)
    assert pruned["w"].tolist() == [True, False, False, True]


def test_magnitude_ignores_the_sign():
    trained, dense = {"w": np.array([-3.0, 1.0, -2.0, 0.5])}, {"w": np.ones(4, bool)}
    evidence = criteria.CriterionInputs(trained, trained, dense, np.random.default_rng(0), 0.5, "layerwise")
    kept = ranking.keep_highest(criteria.magnitude(evidence), dense, 0.5)
    assert kept["w"].tolist() == [True, False, True, False]


def few_values(rng, shape, dtype):
    """Weights of which many are the same but for the sign, zeros of both signs among them."""
    distinct = np.concatenate([[0.0, -0.0], rng.choice([0.125, -0.25, 0.5, -0.5, 1.5, 7.0, -7.0], rng.integers(1, 6))])
    return rng.choice(distinct, shape).astype(dtype)


def random_case(seed):
    """Weights of random shapes with many ties, masks that may prune some of them already, and a rate."""
    rng = np.random.default_rng(seed)
    dtype = rng.choice([np.float16, np.float32, np.float64])
    shapes = [tuple(rng.integers(1, 8, rng.integers(1, 5))) for _ in range(rng.integers(1, 6))]
    values = {f"w{place}": few_values(rng, shape, dtype) for place, shape in enumerate(shapes)}
    density = rng.choice([1.0, rng.random()])
    kept = {name: rng.random(value.shape) < density for name, value in values.items()}
    return values, kept, float(rng.choice([0.0, 0.2, 0.1, 0.5, 0.15, rng.random(), 0.99]))


@pytest.mark.parametrize("scope", ranking.SCOPES)
def test_magnitude_masks_of_four_hundred_networks_with_ties_equal_a_plain_computation(scope):
    num_split_ties = num_pruned = 0
    for seed in range(400):
        values, kept, rate = random_case(seed)
        found = ranking.keep_highest({name: np.abs(value) for name, value in values.items()}, kept, rate, scope)
        for group in [list(values)] if scope == "global" else [[name] for name in values]:
            entries = [abs(float(value)) for name in group for value in values[name].ravel()]
            before = [bool(one) for name in group for one in kept[name].ravel()]
            alive = sorted((entries[place], place) for place in range(len(entries)) if before[place])
            count = round(Fraction(str(rate)) * len(alive))
            expected = [False] * len(entries)
            for _, place in alive[count:]:
                expected[place] = True
            mine = [bool(one) for name in group for one in found[name].ravel()]
            assert mine == expected, (seed, scope, group)
            num_pruned += count
            num_split_ties += 0 < count < len(alive) and alive[count - 1][0] == alive[count][0]
    assert num_split_ties > 200 and num_pruned > 5000


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "bool", "bfloat16"])
def test_what_is_lowest_is_what_a_stable_sort_puts_first(dtype, rng):
    import ml_dtypes

    dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    coarse, fine = rng.integers(0, 4, 60_000), rng.normal(size=60_000)
    fine[rng.random(60_000) < 0.3] = np.inf
    for values in (coarse, np.abs(fine), -coarse) if np.dtype(dtype).kind not in "iub" else (coarse, coarse // 2):
        values = values.astype(dtype)
        order = np.argsort(values, kind="stable")
        for count in (0, 1, 2, 12_000, 30_000, 59_999, 60_000):
            expected = np.zeros(values.size, bool)
            expected[order[:count]] = True
            kept = ranking.prune_counts({"w": values}, {"w": np.ones(values.size, bool)}, {("w",): count})["w"]
            np.testing.assert_array_equal(kept, ~expected)


def test_counts_by_group_in_any_order_and_never_less_than_none():
    scores = {"a": np.arange(4.0), "b": np.zeros(4), "c": np.arange(4.0) + 2}
    kept = ranking.prune_counts(scores, masks.ones_like(scores), {("b",): -3, ("c", "a"): 3})
    assert list(kept) == ["a", "b", "c"]
    # Of c and a: 2 3 4 5 and 0 1 2 3; the lowest are 0, 1 and of the two 2s that of c, which was named first.
    assert {name: mask.tolist() for name, mask in kept.items()} == {
        "a": [False, False, True, True], "b": [True] * 4, "c": [False, True, True, True],
    }  # fmt: skip


@functools.cache
def network(library):
    """A small network of every kind of name: kernels, an embedding, biases, scales. Tests assign what they need."""
    library = importlib.import_module(library)
    layers = library.layers
    return library.Sequential(
        [
            layers.InputLayer((4,)),
            layers.Embedding(3, 5),
            layers.Conv1D(2, 2),
            layers.BatchNormalization(),
            layers.Conv1D(3, 2),
            layers.Flatten(),
            layers.Dense(4),
            layers.Dense(3, name="head"),
        ]
    )


NAMES = ["embedding/embeddings", "conv1d/kernel", "conv1d_1/kernel", "dense/kernel", "head/kernel"]
BIASES = ["conv1d/bias", "conv1d_1/bias", "dense/bias", "head/bias"]
FEW = st.sampled_from([0.0, -0.0, 0.25, -0.5, 0.5, -1.0, 2.0, 0.7, -3.5])
THRESHOLDS = st.sampled_from([0.0, 0.25, 0.5, 0.7, 1.0, 3.6]) | st.floats(0, 4)


def filled(library, draw=None, rng=None, biases=False):
    """The network with other values, and those values."""
    model = network(library)
    values = {name: value.copy() for name, value in weights.read(model, biases).items()}
    for name, value in values.items():
        if draw is None:
            values[name] = rng.normal(size=value.shape).astype(np.float32)
        else:
            values[name] = draw(
                hnp.arrays(np.float32, value.shape, elements=FEW.map(np.float32) | st.floats(-4, 4, width=32))
            )
    weights.assign(model, values)
    return model, values


def one_shot_by_hand(values, fraction, scope, own):
    """What `prune` should keep, with nothing but lists: groups, then sorted magnitudes and positions."""
    shared = [name for name in values if name not in own]
    together = ([shared] if scope == "global" else [[name] for name in shared]) + [[name] for name in own]
    gone = set()
    for group in together:
        entries = []
        for place, name in enumerate(group):
            for index, value in enumerate(values[name].ravel().tolist()):
                entries.append((abs(value), place, index, name))
        count = round(own.get(group[0], fraction) * len(entries)) if group else 0
        gone |= {(name, index) for _, _, index, name in sorted(entries)[:count]}
    return {
        name: np.reshape([(name, index) not in gone for index in range(value.size)], value.shape)
        for name, value in values.items()
    }


def assert_same(found, expected):
    assert list(found) == list(expected)
    for name, mask in found.items():
        assert mask.dtype == bool
        np.testing.assert_array_equal(mask, expected[name], err_msg=name)


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize("scope", ranking.SCOPES)
@pytest.mark.parametrize("own", [{}, {"dense/kernel": 0.3, "embedding/embeddings": 0.0}])
def test_one_shot_masks_equal_an_independent_ranking(library, scope, own, rng):
    model, values = filled(library, rng=rng)
    assert list(values) == NAMES
    before = weights.read_state(model)
    for sparsity in (0, 0.1, 0.5, 0.8, 0.99):
        kept = one_shot.prune(model, sparsity, scope=scope, rates=own)
        assert_same(kept, one_shot_by_hand(values, sparsity, scope, own))
    assert all(mask.all() for mask in one_shot.prune(model, 0.0, scope=scope).values())
    for name, value in weights.read_state(model).items():  # the model is not changed
        assert value.tobytes() == before[name].tobytes()


@settings(deadline=None)
@given(st.data(), st.sampled_from(["keras", "tf_keras"]), st.floats(0, 1, exclude_max=True), st.booleans())
def test_exactly_as_many_go_and_none_of_them_is_larger_than_one_that_stays(data, library, sparsity, biases):
    model, values = filled(library, data.draw, biases=biases)
    for scope in ranking.SCOPES:
        kept = one_shot.prune(model, sparsity, scope=scope, biases=biases)
        assert list(kept) == list(values)
        for group in [list(values)] if scope == "global" else [[name] for name in values]:
            mask = np.concatenate([kept[name].ravel() for name in group])
            magnitude = np.concatenate([np.abs(values[name]).ravel() for name in group])
            assert np.count_nonzero(~mask) == round(sparsity * mask.size)
            assert max(magnitude[~mask], default=0) <= min(magnitude[mask], default=np.inf)
        assert_same(kept, one_shot_by_hand(values, sparsity, scope, {}))


@settings(deadline=None)
@given(st.data(), st.sampled_from(["keras", "tf_keras"]), THRESHOLDS, THRESHOLDS, st.booleans())
def test_below_is_the_comparison_of_absolute_values(data, library, below, own, biases):
    model, values = filled(library, data.draw, biases=biases)
    rates = {"conv1d*/kernel": own}
    expected = {}
    for name, value in values.items():
        threshold = np.float32(own if name in ("conv1d/kernel", "conv1d_1/kernel") else below).item()
        expected[name] = np.reshape([not abs(entry) < threshold for entry in value.ravel().tolist()], value.shape)
    for scope in ranking.SCOPES:
        assert_same(one_shot.prune(model, below=below, scope=scope, rates=rates, biases=biases), expected)


def test_below_masks_the_small_and_never_the_negative():
    model = network("keras")
    entries = np.array([[0.7, -0.7, 0.1], [-0.1, -5.0, 5.0], [np.inf, -np.inf, 0.0], [-0.0, 0.69, -0.71]], np.float32)
    filled("keras", rng=np.random.default_rng(0))
    weights.assign(model, {"head/kernel": entries})

    def head(below):
        return one_shot.prune(model, below=below)["head/kernel"].tolist()

    smaller = [[False, False, True], [True, False, False], [False, False, True], [True, True, False]]
    # 0.7 is no float32, but an entry that was set to 0.7 is not below it.
    assert head(0.7) == np.logical_not(smaller).tolist()
    assert head(0) == np.ones((4, 3), bool).tolist()
    assert head(1e300) == np.isinf(entries).tolist()


def test_weights_of_other_precisions(rng):
    import keras

    layers = [keras.layers.Dense(30, dtype=dtype) for dtype in ("bfloat16", "float32", "float64")]
    model = keras.Sequential([keras.Input((20,)), *layers])
    for kept in (one_shot.prune(model, 0.3), one_shot.prune(model, 0.3, scope="global")):
        assert sum(masks.num_kept(kept).values()) == round(0.7 * sum(mask.size for mask in kept.values()))
    for name, mask in one_shot.prune(model, below=0.1).items():
        value = weights.read(model)[name]
        np.testing.assert_array_equal(mask, np.abs(value.astype(float)) >= float(value.dtype.type(0.1)))


@pytest.mark.parametrize(
    ("rates", "own"),
    [
        ({"head/kernel": 0.0}, {"head/kernel": 0.0}),
        ({"conv1d*": 0.25}, {"conv1d/kernel": 0.25, "conv1d_1/kernel": 0.25}),
        ({"*/kernel": 0.0}, dict.fromkeys(NAMES[1:], 0.0)),
        ({"*": 0.75}, dict.fromkeys(NAMES, 0.75)),
        ({"conv1d_?/kernel": 0.0}, {"conv1d_1/kernel": 0.0}),
        ({"[de]*": 0.0}, {"embedding/embeddings": 0.0, "dense/kernel": 0.0}),
        # The first pattern that fits, and before it the exact name, wherever they are in the mapping.
        ({"conv1d/*": 0.0, "conv1d*": 0.25}, {"conv1d/kernel": 0.0, "conv1d_1/kernel": 0.25}),
        ({"conv1d*": 0.25, "conv1d/*": 0.0}, {"conv1d/kernel": 0.25, "conv1d_1/kernel": 0.25}),
        ({"*d*/kernel": 0.25, "head/kernel": 0.0}, dict.fromkeys(NAMES[1:4], 0.25) | {"head/kernel": 0.0}),
        ({"head/kernel": 0.75, "*": 0.0}, dict.fromkeys(NAMES[:-1], 0.0) | {"head/kernel": 0.75}),
    ],
)
@pytest.mark.parametrize("scope", ranking.SCOPES)
def test_exceptions_by_name_and_pattern(rates, own, scope, rng):
    model, values = filled("keras", rng=rng)
    kept = one_shot.prune(model, 0.5, scope=scope, rates=rates)
    assert_same(kept, one_shot_by_hand(values, 0.5, scope, own))
    assert all(kept[name].all() == (rate == 0) for name, rate in own.items())
    # With a threshold, the exceptions are thresholds.
    above = {name: ~(np.abs(value) < own.get(name, 0.5)) for name, value in values.items()}
    assert_same(one_shot.prune(model, below=0.5, scope=scope, rates=rates), above)


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_biases_are_pruned_only_on_request(library, rng):
    model, values = filled(library, rng=rng, biases=True)
    assert list(one_shot.prune(model, 0.5)) == NAMES
    kept = one_shot.prune(model, 0.5, biases=True)
    assert set(kept) == {*NAMES, *BIASES}
    assert_same(kept, one_shot_by_hand(values, 0.5, "layerwise", {}))
    together = one_shot.prune(model, 0.5, scope="global", biases=True)
    assert_same(together, one_shot_by_hand(values, 0.5, "global", {}))
    without = one_shot.prune(model, below=100, rates={"*/bias": 0.0}, biases=True)
    assert [name for name, mask in without.items() if mask.any()] == [name for name in values if name in BIASES]
    with pytest.raises(LotteryError, match=r"the pattern, '\*/bias'"):
        one_shot.prune(model, 0.5, rates={"*/bias": 0.0})


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_a_bias_of_two_dimensions_and_a_vector_that_is_none(library):
    layers = importlib.import_module(library).layers
    x = layers.Input((4, 2))
    model = importlib.import_module(library).Model(x, layers.BatchNormalization()(layers.GRU(3)(x)))
    kernels = ["gru/gru_cell/kernel", "gru/gru_cell/recurrent_kernel"]
    assert list(one_shot.prune(model, 0.5)) == kernels
    assert list(one_shot.prune(model, 0.5, biases=True)) == [*kernels, "gru/gru_cell/bias"]


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({}, "needs either sparsity or below; neither is given"),
        ({"sparsity": 0.5, "below": 0.1}, "needs either sparsity or below; both are given, 0.5 and 0.1"),
        ({"sparsity": 1}, r"sparsity must be a fraction in \[0, 1\), not 1"),
        ({"sparsity": -0.1}, "sparsity must be .* not -0.1"),
        ({"sparsity": float("nan")}, "sparsity must be .* not nan"),
        ({"sparsity": "0.5"}, "sparsity must be .* not '0.5'"),
        ({"sparsity": True}, "sparsity must be .* not True"),
        ({"below": -0.1}, "below must be a finite number that is not negative, not -0.1"),
        ({"below": float("inf")}, "below must be .* not inf"),
        ({"below": float("nan")}, "below must be .* not nan"),
        ({"sparsity": 0.5, "scope": "local"}, "scope must be 'layerwise' or 'global', not 'local'"),
        ({"below": 0.5, "scope": "globl"}, "Did you mean 'global'"),
        ({"sparsity": 0.5, "rates": {"dense/kernl": 0.1}}, "the pattern, 'dense/kernl'.*Did you mean 'dense/kernel'"),
        ({"below": 0.5, "rates": {"denze/*": 0.1}}, "the pattern, 'denze/\\*'.*Did you mean 'dense/kernel'"),
        ({"sparsity": 0.5, "rates": {"DENSE/*": 0.1}}, "the pattern, 'DENSE/\\*'"),  # case-sensitive
        ({"sparsity": 0.5, "rates": {"dense/*": 1.0}}, r"rates\['dense/kernel'\] must be a fraction .* not 1.0"),
        ({"below": 0.5, "rates": {"dense/*": -1.0}}, r"rates\['dense/kernel'\] must be a finite .* not -1.0"),
    ],
)
def test_a_bad_call_of_prune_is_one_sentence(library, call, message):
    with pytest.raises(LotteryError, match=message) as caught:
        one_shot.prune(network(library), **call)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_models_that_cannot_be_pruned(library, rng):
    model, values = filled(library, rng=rng)
    library = importlib.import_module(library)
    weights.assign(model, {"dense/kernel": np.full_like(values["dense/kernel"], np.nan)})
    for call in ({"sparsity": 0.0}, {"below": 0.1}):
        with pytest.raises(LotteryError, match=r"'dense/kernel' holds values that are not numbers \(NaN\)"):
            one_shot.prune(model, **call)
    weights.assign(model, values)
    with pytest.raises(LotteryError, match="not built"):
        one_shot.prune(library.Sequential([library.layers.Dense(3)]), 0.5)
    empty = library.Sequential([library.layers.InputLayer((3,)), library.layers.BatchNormalization()])
    with pytest.raises(LotteryError, match="no weight that can be pruned; weights.unprunable"):
        one_shot.prune(empty, 0.5)


def test_a_custom_layer_that_names_a_vector_is_pruned_there_alone():
    import keras

    class Naming(keras.layers.Layer):
        def build(self, shape):
            self.gain = self.add_weight(name="gain", shape=(10,))
            self.matrix = self.add_weight(name="matrix", shape=(10, 10))

        def call(self, x):
            return x

        def get_prunable_weights(self):
            return [self.gain]

    model = keras.Sequential([keras.Input((10,)), Naming(), keras.layers.Dense(2)])
    assert masks.num_kept(one_shot.prune(model, 0.3)) == {"naming/gain": 7, "dense/kernel": 14}
