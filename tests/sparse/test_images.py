"""The sparse engine on networks of convolutions, against TensorFlow and against the compiled loop."""

import importlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lottery import data, interrupts, masks, weights
from lottery.enforcement.modes import ENFORCEMENTS
from lottery.models import networks
from lottery.sparse import engine, packing, reading
from lottery.training import checkpoints, compiling, schedules
from lottery.training.settings import Train
from lottery.training.trainer import Trainer
from tests.conftest import each_in_both
from tests.sparse.test_engine import agree, both
from tests.training.test_checkpoints import result
from tests.training.test_engine_choice import trained_by_both

pytestmark = pytest.mark.usefixtures("compiled_kernels")

NUM_CLASSES = 4


def images(rng, shape, num=400, kind=np.uint8):
    x = rng.integers(0, 256, (num, *shape)).astype(kind)
    y = rng.integers(0, NUM_CLASSES, num)
    return data.given((x[:300], y[:300], x[300:], y[300:]), data.Data(name="given", validation=60))


def compiled(keras, inputs, outputs, optimizer=None):
    model = keras.Model(inputs, keras.layers.Dense(NUM_CLASSES)(outputs))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    return model


def with_everything(library, activation="gelu"):
    """A graph with every operation: odd sizes, strides, borders, a sum of three, and a normalised vector."""
    keras = importlib.import_module(library)
    keras.utils.set_random_seed(2)
    layers, inputs = keras.layers, keras.Input((13, 10, 3))
    x = layers.ZeroPadding2D(((1, 2), (0, 3)))(inputs)
    x = layers.Conv2D(7, 3, strides=(2, 1), activation=activation, kernel_regularizer="l2")(x)
    x = layers.Conv2D(9, (1, 5), strides=3, padding="same", use_bias=False)(x)
    shortcut = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.Conv2D(9, 3, padding="same", activation="softsign")(shortcut)
    x = layers.Add()([x, shortcut, shortcut])
    x = layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2)(x)
    x = layers.Activation("tanh")(layers.BatchNormalization(scale=False, momentum=0.8)(x))
    x = layers.AveragePooling2D(2, padding="same")(x)
    x = layers.MaxPooling2D(2, strides=1, padding="same")(x)
    pooled, dense = layers.GlobalAveragePooling2D()(x), layers.Dense(18, "tanh")(layers.Flatten()(x))
    return compiled(keras, inputs, layers.BatchNormalization(center=False)(layers.Add()([pooled, dense])))


@pytest.mark.parametrize(
    ("batch_size", "library"), [(33, "keras"), (33, "tf_keras"), *((size, "keras") for size in (2, 16, 130))]
)
def test_steps_are_those_of_the_compiled_loop(library, batch_size, rng):
    agree(both(with_everything(library), images(rng, (13, 10, 3)), rng, 6, batch_size, density=0.4), 1e-4)


@pytest.mark.parametrize("follows", ["activation", "sum"])
def test_the_zeros_of_padding_are_there_in_each_step(follows, rng):
    """What follows must not write where they lie: a step writes none of them anew."""
    import keras

    inputs = keras.Input((9, 9, 3))
    padded = keras.layers.ZeroPadding2D(1)(keras.layers.Conv2D(4, 3, padding="same")(inputs))
    if follows == "activation":
        x = keras.layers.Activation("sigmoid")(padded)
    else:
        # A 1 x 1 window is beyond TensorFlow 2.21 here: with oneDNN, it ends the process.
        added = keras.layers.Conv2D(4, 3, padding="same")(keras.layers.ZeroPadding2D(1)(inputs))
        x = keras.layers.Add()([padded, added])
    model = compiled(keras, inputs, keras.layers.Flatten()(keras.layers.Conv2D(3, 3, activation="tanh")(x)))
    agree(both(model, images(rng, (9, 9, 3)), rng, 6, density=0.5), 1e-4)


def test_a_relu_is_part_of_what_it_alone_reads(rng):
    import keras

    layers, inputs = keras.layers, keras.Input((7, 6, 3))
    shared = layers.BatchNormalization()(layers.Conv2D(5, 3, use_bias=False)(inputs))
    x = layers.ReLU()(layers.Add()([shared, layers.ReLU()(shared), shared]))
    x = layers.Conv2D(8, 3, use_bias=False)(x)
    alone = layers.ReLU()(layers.BatchNormalization(center=False, scale=False)(x))
    model = compiled(keras, inputs, layers.Flatten()(alone))
    found = clipping(model)
    normalised = [("Moments", False), ("Normalisation", False), ("Term", True)]
    added = [("Term", False), ("Term", False), ("Term", True)]
    alone = [("Linear", False), ("Moments", True), ("Normalisation", True)]
    assert found == [("Linear", False), *normalised, *added, *alone, ("Linear", False)]
    agree(both(model, images(rng, (7, 6, 3)), rng, 6, density=0.5), 1e-4)


@pytest.mark.parametrize("padding", ["valid", "same"])
def test_a_relu_is_part_of_the_layers_on_both_sides(rng, padding):
    import keras

    layers, inputs = keras.layers, keras.Input((11, 10, 3))
    x = layers.Conv2D(40, 3, activation="relu", strides=(2, 1), padding=padding)(inputs)
    x = layers.DepthwiseConv2D(3, padding="same", activation="relu")(x)
    x = layers.Conv2D(7, 3, activation="relu", padding=padding)(x)
    x = layers.MaxPooling2D(3, strides=2, padding=padding)(x)
    # What two layers read, and what is pooled to a mean, is clipped by itself.
    shared = layers.Conv2D(6, 1, activation="relu")(x)
    x = layers.Add()([layers.Conv2D(4, 1, activation="relu")(shared), layers.Conv2D(4, 1)(shared)])
    x = layers.AveragePooling2D((1, 2))(layers.Conv2D(6, 1, activation="relu")(x))
    x = layers.Dense(20, activation="relu")(layers.Flatten()(x))
    model = compiled(keras, inputs, x)
    within = [("Linear", True), ("Linear", True), ("Linear", False), ("Pooling", True)]
    by_itself = [("Linear", False), ("Term", True)]
    added = [*by_itself, ("Linear", False), *by_itself, ("Term", False), ("Term", False)]
    assert clipping(model) == [*within, *added, *by_itself, ("Pooling", False), ("Linear", True), ("Linear", False)]
    agree(both(model, images(rng, (11, 10, 3)), rng, 21, density=0.5), 1e-4)


def clipping(model):
    """List the operations of a model that can be followed by a relu, and whether it is part of each."""
    return [(type(each).__name__, each.clips) for each in reading.read(model).operations if hasattr(each, "clips")]


def test_blocks_take_turns_where_one_phase_has_all_that_reads_them(rng):
    import keras

    layers, inputs = keras.layers, keras.Input((11, 10, 3))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same", use_bias=False)(inputs)))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(6, 3, padding="same", use_bias=False)(x)))
    x = layers.Add()([layers.Conv2D(5, 3, padding="same")(x), layers.Conv2D(5, 1)(x)])
    model = compiled(keras, inputs, layers.Flatten()(x))
    network = reading.read(model)
    places = packing.Packer(network, 40).places
    written = [each for each in network.operations if type(each) is not reading.Moments]
    normalised = [each for each in written if type(each) is reading.Normalisation]
    assert [each for each in written if not places[each.target].block] == normalised
    # Gradients of what is normalised cross phases. Of the two that are added, the sum takes the place of the first.
    first, second, added, *_ = network.linear
    assert [each for each in written if not places[each.target].slopes_block] == [first, second, added]
    agree(both(model, images(rng, (11, 10, 3)), rng, 6, 40, density=0.5), 1e-4)


def test_nan_stays_in_the_highest_value(rng):
    import keras

    inputs = keras.Input((4, 4, 1))
    model = keras.Model(
        inputs, keras.layers.Dense(NUM_CLASSES)(keras.layers.Flatten()(keras.layers.MaxPooling2D()(inputs)))
    )
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.optimizer.build(model.trainable_variables)
    splits = images(rng, (4, 4, 1), kind=np.float32)
    splits.test.x[:, 0, 0] = np.nan
    one = engine.Engine(model, reading.read(model), splits, 8, 1)
    one.begin({})
    assert np.isnan(one.evaluate("test")["loss"])


@pytest.mark.parametrize("density", [0.0, 0.05, 1.0])
def test_masks_of_any_density(density, rng):
    agree(both(with_everything("keras"), images(rng, (13, 10, 3)), rng, 6, density=density), 1e-4)


@pytest.mark.parametrize(("name", "library"), each_in_both(["resnet_8", "lenet_5", "conv_2"]))
def test_networks_of_the_field(name, library, rng):
    keras = importlib.import_module(library)
    shape = (28, 28) if name == "lenet_5" else (16, 16, 3)
    keras.utils.set_random_seed(1)
    model = networks.named(name)(shape, NUM_CLASSES, keras)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss, metrics=["accuracy"])
    # Which side of a relu's corner an input falls on, rounding may decide.
    agree(both(model, images(rng, shape), rng, 3, 20, density=0.2), 2e-3)


SIZES = st.tuples(st.integers(1, 21), st.integers(1, 21))


@settings(max_examples=25, deadline=None)
@given(
    size=SIZES, window=st.tuples(st.integers(1, 5), st.integers(1, 5)), steps=st.sampled_from([1, 2, 3]),
    padding=st.sampled_from(["same", "valid"]), batch_size=st.integers(1, 40), density=st.sampled_from([0.1, 0.5, 1.0]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_convolutions_in_double_precision(size, window, steps, padding, batch_size, density, seed):
    """Outputs, and gradients of weights, biases and inputs, of two convolutions after each other."""
    import keras
    import tensorflow as tf

    rng = np.random.default_rng(seed)
    if padding == "valid":
        size = tuple(max(one, 2 * other + 3) for one, other in zip(size, window, strict=True))
    inputs = keras.Input((*size, 2))
    x = keras.layers.Conv2D(5, window, strides=(steps, 1), padding=padding, activation="tanh")(inputs)
    x = keras.layers.Conv2D(3, 2, strides=2, padding="same")(x)
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(x)))
    model.compile(keras.optimizers.SGD(1.0), "mean_squared_error")
    model.optimizer.build(model.trainable_variables)
    kept = {name: rng.random(value.shape) < density for name, value in weights.read(model).items()}
    start = {name: rng.normal(size=value.shape) / 3 for name, value in weights.read_state(model).items()}
    start = masks.apply(start, kept)
    weights.assign(model, start)
    x, y = rng.normal(size=(3 * batch_size, *size, 2)).astype(np.float32), rng.normal(size=(3 * batch_size, 3))
    splits = data.given((x, y.astype(np.float32), x, y.astype(np.float32)), data.Data(name="given", validation=1))
    one = engine.Engine(model, reading.read(model), splits, batch_size, 1)
    one.begin(kept, (1, 2))
    positions = one._following(1)[0]
    one._following = lambda num: positions[None]
    one.advance(1)
    received = {name: start[name] - value for name, value in one.state().items()}  # a step of rate 1: the gradient

    exact = [tf.constant(start[name], tf.float64) for name in weights.variables(model)]
    x, y = splits.train.x[positions].astype(np.float64), splits.train.y[positions].astype(np.float64)
    with tf.GradientTape() as tape:
        tape.watch(exact)
        kernel, bias, second, second_bias, dense, last = exact
        a = tf.tanh(tf.nn.conv2d(x, kernel, (steps, 1), padding.upper()) + bias)
        a = tf.nn.conv2d(a, second, 2, "SAME") + second_bias
        outputs = tf.reshape(a, (batch_size, -1)) @ dense + last
        loss = tf.reduce_mean((outputs - y) ** 2)
    for name, gradient in zip(weights.variables(model), tape.gradient(loss, exact), strict=True):
        expected = gradient.numpy() * kept.get(name, True)
        np.testing.assert_allclose(received[name], expected, atol=3e-5 * (1 + np.abs(expected).max()), err_msg=name)


def trainer(library="keras", augment=(), is_flat=False, **keys):
    keras = importlib.import_module(library)
    rng = np.random.default_rng(1)
    splits = images(rng, (12, 12, 3))
    keras.utils.set_random_seed(1)
    inputs = keras.Input((12, 12, 3))
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(8, 3, padding="same", use_bias=False)(inputs))
    x = keras.layers.MaxPooling2D()(keras.layers.Activation("tanh")(x))
    x = keras.layers.Conv2D(8, 3, strides=2, padding="same", activation="softsign")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    if is_flat:
        x = keras.layers.Dense(8, "tanh")(keras.layers.Flatten()(inputs))
    model = compiled(keras, inputs, x)
    settings_of = Train(**{"num_steps": 24, "batch_size": 20, "eval_every": 8, "engine": "sparse", "optimizer": "sgd",
                           "learning_rate": 0.01, "jit_compile": False} | keys)  # fmt: skip
    step = schedules.step_variable()
    compiling.compile_model(model, settings_of, splits.train.x[:8], step)
    return Trainer(model, splits, settings_of, ENFORCEMENTS["constraint"].hold, step, augment)


def masked(model, density=0.3):
    rng = np.random.default_rng(0)
    return {name: rng.random(value.shape) < density for name, value in weights.read(model).items()}


@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("augment", [(), ("crop", "flip"), ("flip",), ("crop",)])
def test_images_are_augmented_as_by_the_compiled_loop(augment, is_flat):
    one = trainer(augment=augment, is_flat=is_flat)
    start, kept = weights.read_state(one.model), masked(one.model)
    received, expected = trained_by_both(one, start, kept)
    for name, value in expected.weights.items():
        np.testing.assert_allclose(received.weights[name], value, atol=1e-4, err_msg=name)
    np.testing.assert_allclose([row[2:] for row in received.metrics], [row[2:] for row in expected.metrics], atol=1e-3)


def test_the_same_bits_wherever_a_training_is_stopped(tmp_path):
    one, other = trainer(augment=("crop",)), trainer(augment=("crop",))
    start, kept = weights.read_state(one.model), masked(one.model)
    whole = one.train(start, kept, (9,))
    assert result(other.train(start, kept, (9,))) == result(whole)
    file = tmp_path / "checkpoint.safetensors"
    for trained in one, other:
        trained.seconds_per_step = 0.2  # two steps a piece
        calls = []
        checkpointer = checkpoints.Checkpointer(
            file, should_stop=lambda calls=calls: calls.append(1) or len(calls) > 2, note=pytest.fail
        )
        with pytest.raises(interrupts.Stopped):
            trained.train(start, kept, (9,), checkpointer=checkpointer)
    assert result(one.train(start, kept, (9,), checkpointer=checkpoints.Checkpointer(file))) == result(whole)


def test_long_lists_are_divided_into_chunks(rng, monkeypatch):
    """VGG's layers read more channels than the first cache holds; sums go on from one chunk to the next."""
    import keras

    inputs = keras.Input((9, 9, 11))
    x = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(inputs)
    model = compiled(keras, inputs, keras.layers.Flatten()(keras.layers.Conv2D(6, 3)(x)))
    monkeypatch.setattr(packing, "WINDOW_BYTES", 4 * 3 * 10 * packing.WIDTH * 4)
    agree(both(model, images(rng, (9, 9, 11)), rng, 6, density=0.5), 1e-4)
    passes = packing.Packer(reading.read(model), 32)
    entries = {one.kernel: np.arange(np.prod(one.shape)) for one in passes.network.linear}
    entries |= {one.bias: np.arange(one.shape[-1]) for one in passes.network.linear}
    assert packing.Packing(passes, entries).layout().passes["chunks"].max() > 1
