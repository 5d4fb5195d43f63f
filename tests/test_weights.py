import numpy as np
import pytest

from lottery import models, weights
from lottery.errors import LotteryError


def networks(library):
    layers = library.layers

    def nested():
        inner = library.Sequential([layers.InputLayer((4,)), layers.Dense(5), layers.Dense(3, name="head")])
        return library.Sequential([layers.InputLayer((4,)), layers.Dense(4), inner, layers.Dense(2)])

    def functional():
        image = layers.Input((8, 8, 3))
        x = layers.Conv2D(4, 3)(image)
        x = layers.BatchNormalization()(x)
        x = layers.SeparableConv2D(4, 3)(x)
        x = layers.Reshape((-1, 4))(x)
        x = layers.Bidirectional(layers.LSTM(3))(x)
        return library.Model(image, layers.Dense(2)(x))

    class Own(library.Model):
        def __init__(self):
            super().__init__()
            self.first = layers.Dense(3)
            self.second = layers.Dense(2)

        def call(self, x):
            return self.second(self.first(x))

    def subclassed():
        model = Own()
        model(np.zeros((1, 4), np.float32))
        return model

    def shared():
        dense = layers.Dense(4)
        x = layers.Input((4,))
        return library.Model(x, dense(dense(x)))

    return {
        "lenet": (
            lambda: models.lenet_300_100(keras=library),
            ["dense/kernel", "dense_1/kernel", "dense_2/kernel"],
        ),
        "nested": (
            nested,
            ["dense/kernel", "sequential/dense/kernel", "sequential/head/kernel", "dense_1/kernel"],
        ),
        "functional": (
            functional,
            ["conv2d/kernel", "separable_conv2d/depthwise_kernel", "separable_conv2d/pointwise_kernel"]
            + [f"bidirectional/{way}_lstm/lstm_cell/{part}" for way in ("forward", "backward") for part in ("kernel", "recurrent_kernel")]
            + ["dense/kernel"],
        ),
        "subclassed": (subclassed, ["dense/kernel", "dense_1/kernel"]),
        "shared": (shared, ["dense/kernel"]),
    }  # fmt: skip


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize("name", ["lenet", "nested", "functional", "subclassed", "shared"])
def test_names_depend_on_position_alone(library, name):
    library = pytest.importorskip(library)
    build, expected = networks(library)[name]
    assert list(weights.prunable(build())) == expected
    for _ in range(10):
        library.layers.Dense(3)(np.zeros((1, 2), np.float32))
        library.Sequential([library.layers.InputLayer((2,)), library.layers.Dense(3)])
    again = build()
    assert list(weights.prunable(again)) == expected
    named = weights.variables(again)
    assert len({id(value) for value in named.values()}) == len(named) >= len(again.weights)
    assert not set(weights.unprunable(again)) & set(expected)
    assert set(weights.unprunable(again)) | set(expected) == set(named)


def test_every_weight_that_is_not_pruned_has_its_reason():
    import keras

    layers = keras.layers
    frozen = layers.Dense(3, trainable=False)
    model = keras.Sequential(
        [keras.Input((4,)), frozen, layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(2)]
    )
    reasons = weights.unprunable(model)
    assert reasons["dense/kernel"] == "not trainable"
    assert "one" in reasons.get("dense_1/bias", "") or "fewer than two" in reasons.get("dense_1/bias", "")
    assert reasons["dropout/seed_generator_state"] == "not trainable"
    attention = layers.MultiHeadAttention(2, 3)
    attention(np.zeros((1, 4, 5)), np.zeros((1, 4, 5)))
    x = layers.Input((4, 5))
    model = keras.Model(x, attention(x, x))
    assert weights.unprunable(model)["multi_head_attention/query/bias"] == "a bias"
    assert len(weights.prunable(model)) == 4


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_assign_whole_or_only_where_a_mask_says(library, rng):
    library = pytest.importorskip(library)
    model = models.lenet_300_100((4,), 3, library)
    before = weights.read_state(model)
    new = {name: rng.normal(size=value.shape).astype(np.float32) for name, value in before.items()}
    only = {"dense/kernel": rng.random(before["dense/kernel"].shape) < 0.5}
    weights.assign(model, {"dense/kernel": new["dense/kernel"]}, only)
    now = weights.read_state(model)
    np.testing.assert_array_equal(
        now["dense/kernel"], np.where(only["dense/kernel"], new["dense/kernel"], before["dense/kernel"])
    )
    np.testing.assert_array_equal(now["dense_1/kernel"], before["dense_1/kernel"])
    weights.assign(model, new)
    for name, value in weights.read_state(model).items():
        np.testing.assert_array_equal(value, new[name])


def test_what_is_read_stays_when_the_model_changes():
    model = models.lenet_300_100((4,), 3)
    read = weights.read(model)
    copy = {name: value.copy() for name, value in read.items()}
    for variable in model.trainable_variables:
        variable.assign_add(variable * 0 + 1)
    for name in read:
        np.testing.assert_array_equal(read[name], copy[name])


def test_bad_assignments_change_nothing():
    model = models.lenet_300_100((4,), 3)
    before = weights.read_state(model)
    good = {"dense/kernel": before["dense/kernel"] + 1}
    with pytest.raises(LotteryError, match="did you mean 'dense/kernel'"):
        weights.assign(model, good | {"dense/kernl": np.zeros(3)})
    with pytest.raises(LotteryError, match=r"shape \(2, 2\), the model's has \(300, 100\)"):
        weights.assign(model, good | {"dense_1/kernel": np.zeros((2, 2))})
    np.testing.assert_array_equal(weights.read(model)["dense/kernel"], before["dense/kernel"])


def test_no_variable_is_lost_whatever_it_is_called():
    import keras

    class Own(keras.layers.Layer):
        def build(self, shape):
            self.one = [self.add_weight(shape=(2, 2), name=name) for name in ("w_1", "w", "w")]

        def call(self, x):
            return x

    model = keras.Sequential([keras.Input((2,)), Own()])
    assert list(weights.prunable(model)) == ["own/w_1", "own/w", "own/w_2"]


def test_a_model_that_is_not_built_is_refused():
    import keras

    with pytest.raises(LotteryError, match="not built"):
        weights.read(keras.Sequential([keras.layers.Dense(3)]))
