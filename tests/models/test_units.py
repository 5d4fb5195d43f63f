"""Which kernels make and read the units of a network."""

import numpy as np
import pytest

from lottery.errors import LotteryError
from lottery.models import kerases, networks, units


def of(made_by, read_by, size):
    return {"size": size, "made_by": made_by.split(), "read_by": read_by.split()}


@pytest.mark.parametrize("name", kerases.LIBRARIES)
def test_units_of_chains_through_everything_that_leaves_them_as_they_are(name):
    model = networks.builder("conv_2", (32, 32, 3), 10, name)()
    assert units.removable(model, True) == [
        of("conv2d/kernel", "conv2d_1/kernel", 64), of("conv2d_1/kernel", "dense/kernel", 64),
    ]  # fmt: skip
    assert units.removable(model, False) == [
        of("dense/kernel", "dense_1/kernel", 256), of("dense_1/kernel", "dense_2/kernel", 256),
    ]  # fmt: skip
    vgg = units.removable(networks.builder("vgg_11", (16, 16, 3), 10, name)(), True)
    assert [one["size"] for one in vgg] == [64, 128, 256, 256, 512, 512, 512, 512]
    assert vgg[-1] == of("conv2d_7/kernel", "dense/kernel", 512)


def test_channels_of_a_residual_network_that_are_added_up_are_one():
    found = units.removable(networks.builder("resnet_8", (16, 16, 3), 10)(), True)
    assert found == [
        of("conv2d/kernel conv2d_2/kernel", "conv2d_1/kernel conv2d_3/kernel shortcut_1/kernel", 16),
        of("conv2d_1/kernel", "conv2d_2/kernel", 16),
        of("conv2d_3/kernel", "conv2d_4/kernel", 32),
        of("conv2d_4/kernel shortcut_1/kernel", "conv2d_5/kernel shortcut_2/kernel", 32),
        of("conv2d_5/kernel", "conv2d_6/kernel", 64),
        of("conv2d_6/kernel shortcut_2/kernel", "dense/kernel", 64),
    ]


def functional(body, shape=(4,), name="keras"):
    import importlib

    keras = importlib.import_module(name)
    start = keras.Input(shape)
    return keras.Model(start, body(keras.layers, start))


def test_units_that_are_added_to_the_input_or_to_the_output_stay():
    def body(layers, x):
        x = layers.Add()([x, layers.Dense(4, activation="relu")(layers.Dense(7)(x))])
        return layers.Dense(3)(layers.Dense(5)(x))

    assert units.removable(functional(body), False) == [
        of("dense/kernel", "dense_1/kernel", 7),
        of("dense_2/kernel", "dense_3/kernel", 5),
    ]

    def two_outputs(layers, x):
        first = layers.Dense(6, name="first")(x)
        return [first, layers.Dense(2, name="second")(first)]

    assert units.removable(functional(two_outputs), False) == []


def test_frozen_kernels_keep_their_units():
    def body(layers, x):
        return layers.Dense(3)(layers.Dense(6, trainable=False)(layers.Dense(5)(layers.Dense(4)(x))))

    assert units.removable(functional(body), False) == [of("dense/kernel", "dense_1/kernel", 4)]


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (lambda layers, x: layers.Dense(2)(layers.Concatenate(name="both")([layers.Dense(3)(x), x])), "layer 'both' "),
        (lambda layers, x: layers.Dense(2)(layers.Softmax(name="soft")(layers.Dense(3)(x))), "layer 'soft' mixes"),
        (lambda layers, x: layers.Dense(2)(layers.Dense(3, "softmax", name="own")(x)), "layer 'own' mixes the units"),
        (
            lambda layers, x: layers.Dense(2)(layers.LayerNormalization(name="norm")(layers.Dense(3)(x))),
            "'norm'.*known",
        ),
        (lambda layers, x: layers.Add(name="sum")([layers.Dense(1)(x), layers.Dense(4)(x)]), "'sum' adds up 1 and 4"),
    ],
)
def test_layers_that_are_not_known_are_named(body, sentence):
    with pytest.raises(LotteryError, match=sentence):
        units.removable(functional(body), False)


def test_a_layer_that_is_used_twice_and_a_class_of_its_own_are_refused():
    def twice(layers, x):
        shared = layers.Dense(4, name="shared")
        return layers.Dense(2)(shared(shared(x)))

    with pytest.raises(LotteryError, match="layer 'shared' is used more than once"):
        units.removable(functional(twice), False)
    import keras

    from tests.conftest import subclassed

    with pytest.raises(LotteryError, match="class of its own, Own"):
        units.removable(subclassed(keras, 4), False)


@pytest.mark.parametrize("name", kerases.LIBRARIES)
def test_a_unit_without_its_entries_does_nothing(name):
    """What leaves its kernels and enters its readers is all there is: anything may come out of it, and no output moves."""
    from lottery import weights

    def body(layers, x):
        a = layers.Conv2D(5, 3, padding="same")(x)
        b = layers.BatchNormalization()(layers.Conv2D(5, 1)(layers.ReLU()(a)))
        x = layers.MaxPooling2D()(layers.ReLU()(layers.Add()([a, b])))
        return layers.Dense(2)(layers.Dense(6, activation="relu")(layers.Flatten()(x)))

    model, rng = functional(body, (4, 4, 2), name), np.random.default_rng(3)
    state = {
        key: rng.uniform(0.5, 1.5, value.shape).astype(np.float32) for key, value in weights.read_state(model).items()
    }
    found = units.removable(model, True)
    assert [one["size"] for one in found] == [5]
    for one in found:
        for kernel in one["read_by"]:
            rows = np.arange(state[kernel].shape[-2])
            state[kernel][..., rows % 5 == 3, :] = 0
    x, outputs = rng.normal(size=(3, 4, 4, 2)).astype(np.float32), []
    for scale in (1, -40):
        for kernel in found[0]["made_by"]:
            state[kernel][..., 3] *= scale
        weights.assign(model, state)
        outputs.append(np.asarray(model(x)))
    assert np.array_equal(*outputs)
