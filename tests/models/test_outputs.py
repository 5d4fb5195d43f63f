"""How far outputs are apart: by hand, with NaN and infinities, in batches, and from models of both libraries."""

import numpy as np
import pytest

from lottery.errors import LotteryError
from lottery.models import outputs
from lottery.models.outputs import between

NAN, INF = np.nan, np.inf


def test_all_examples_are_evaluated_in_batches_and_in_order():
    import tensorflow as tf

    one, two = np.arange(600.0), np.arange(1200).reshape(600, 2)
    lengths = []

    def function(inputs, factor):
        lengths.append(len(inputs["one"]))
        assert len(inputs["two"]) == lengths[-1]
        return {"sum": tf.constant(inputs["two"]) @ [[factor], [factor]], "copy": [tf.constant(inputs["one"])]}

    copy, summed = outputs.evaluate(function, {"two": two, "one": one}, factor=3)
    np.testing.assert_array_equal(copy, one)
    np.testing.assert_array_equal(summed, 3 * two.sum(1, keepdims=True))
    assert sum(lengths) == 600 and len(lengths) > 1 and max(lengths) < 600
    (empty,) = outputs.evaluate(lambda inputs: 2 * inputs, np.zeros((0, 3)))
    assert empty.shape == (0, 3)


@pytest.mark.parametrize(
    ("outputs", "others", "expected"),
    [
        ([1, -4], [1, -4], 0),
        ([1, -4], [1.5, -4], 0.5 / 4),
        ([1, -4], [1, -40], 36 / 4),
        ([1, NAN], [1, NAN], 0),
        ([2, NAN], [3, NAN], 1 / 2),
        ([2, INF, -INF], [3, INF, -INF], 1 / 2),
        ([1, NAN], [1, 2], INF),
        ([1, 2], [1, NAN], INF),
        ([1, 2], [NAN, NAN], INF),
        ([1, INF], [1, 2], INF),
        ([1, INF], [1, -INF], INF),
        ([1, INF], [1, NAN], INF),
        ([1, 1e30], [1, INF], INF),
        ([1, 2], [1, 2, 3], INF),
        ([1, 2], [[1, 2]], INF),
        ([0, 0], [0, 0], 0),
        ([7, -3], [7, -2], 1 / 7),
    ],
)
def test_differences_match_those_computed_by_hand(outputs, others, expected):
    assert between(np.array(outputs), np.array(others)) == pytest.approx(expected, rel=1e-12)


def test_the_worst_of_several_outputs_counts_relative_to_its_own_size():
    small, large = np.array([0.01, 0.02]), np.array([1000.0, 500.0])
    assert outputs.between([small, large], [small + 0.001, large + 1]) == pytest.approx(0.05)
    assert outputs.between({"b": large, "a": small}, {"a": small, "b": large}) == 0
    assert outputs.between([small, large], [small]) == INF
    assert outputs.between(np.array([0.0, 0.0]), np.array([0.0, 1e-3])) > 1
    words = np.array(["a", "b"])
    assert outputs.between(words, words) == 0 and outputs.between(words, words[::-1]) == INF


@pytest.mark.parametrize("outputs", [[NAN, NAN], [INF, -INF], [NAN, INF]])
def test_outputs_without_finite_values_cannot_be_compared(outputs):
    outputs = np.array(outputs)
    with pytest.raises(LotteryError, match="outputs of it are NaN or infinite, so there is nothing to compare"):
        between(outputs, outputs, of="it")
    with pytest.raises(LotteryError, match="NaN or infinite"):  # one finite output does not vouch for another
        between([np.ones(2), outputs], [np.ones(2), outputs])


def test_empty_outputs_cannot_be_compared():
    with pytest.raises(LotteryError, match="outputs of it are empty, so there is nothing to compare"):
        outputs.between(np.zeros((0, 3)), np.zeros((0, 3)), of="it")


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_models_are_compared_on_every_example(library):
    keras = pytest.importorskip(library)

    def made(*diagonal):
        model = keras.Sequential([keras.layers.InputLayer((2,)), keras.layers.Dense(2, use_bias=False)])
        model.set_weights([np.diag(diagonal)])
        return model

    x = np.zeros((700, 2), "float32")
    x[:, 0], x[690, 1] = 1, 1  # only one example, far behind, shows the difference
    assert outputs.largest_difference(made(4, 1), made(4, 2), x) == pytest.approx(1 / 4)
    assert outputs.largest_difference(made(4, 1), made(4, 2), x[:690]) == 0
    broken = made(NAN, NAN)
    with pytest.raises(LotteryError, match="outputs of the model 'sequential.* are NaN or infinite"):
        outputs.largest_difference(broken, broken, x)
    assert outputs.largest_difference(made(4, 1), broken, x) == INF
    with pytest.raises(LotteryError, match="fails on the example, pass inputs that it takes"):
        outputs.largest_difference(made(4, 1), made(4, 1), np.ones((3, 5)))


@pytest.mark.parametrize("num", [1, 4, 6, 9])
def test_a_function_of_a_fixed_batch_gets_no_other(num):
    sizes = []

    def function(x, by):
        sizes.append(len(x["a"]))
        return [x["a"] * by, x["b"].sum(axis=1)]

    x = {"a": np.arange(float(num)), "b": np.arange(2.0 * num).reshape(num, 2)}
    twice, summed = outputs.evaluate(function, x, 4, by=2)
    assert set(sizes) == {4} and len(sizes) == -(-num // 4)
    np.testing.assert_array_equal(twice, 2 * x["a"])
    np.testing.assert_array_equal(summed, x["b"].sum(axis=1))


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_the_batch_that_a_model_is_built_for(library):
    library = pytest.importorskip(library)
    fixed, free = library.Input(batch_shape=(5, 3)), library.Input((3,))
    assert outputs.batch_size(library.Model(fixed, library.layers.Dense(2)(fixed))) == 5
    assert outputs.batch_size(library.Model(free, library.layers.Dense(2)(free))) is None
    assert outputs.batch_size(library.Sequential([library.layers.Dense(2)])) is None
