"""Tickets: what comes out of a run or a model is what goes into another, bit by bit, in both Kerases."""

import builtins
import contextlib
import importlib
import io
import itertools
import math
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save
from scipy import stats

import lottery
from lottery import enforcement, files, masks, randomness, tickets, weights
from lottery.enforcement import tfmot
from lottery.errors import LotteryError, TicketError
from lottery.models import networks, outputs
from lottery.statistics import results
from lottery.tickets import from_run
from lottery.training.records import Span
from tests.conftest import quietly, subclassed, toy_arrays
from tests.runs.test_verification import reseal
from tests.tickets.test_readers import read_ticket

pytestmark = pytest.mark.usefixtures("traced_once")

LIBRARIES = ("keras", "tf_keras")
BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}
# The smallest images that each network takes.
SMALLEST = {"lenet_300_100": (1,), "lenet_5": (16, 16, 1), "conv_2": (2, 2, 1), "conv_4": (4, 4, 1),
            "conv_6": (8, 8, 1), "resnet_20": (1, 1, 1), "vgg_11": (16, 16, 1), "vgg_16": (16, 16, 1),
            "vgg_19": (16, 16, 1)}  # fmt: skip
LARGE = ("vgg_11", "vgg_16", "vgg_19")  # only from Keras 3 to tf_keras, and only the first by `model`, to save time
TABLES = {
    "name": "ticketed",
    "data": {"validation": 40},
    "train": {"num_steps": 24, "eval_every": 8, "batch_size": 16, "jit_compile": False, "optimizer": "sgd"},
    "prune": {"num_rounds": 2, "rate": 0.4},
    "run": {"num_replicates": 1},
}


def library_of(name):
    return importlib.import_module(name)


def nested(keras):
    layers = keras.layers
    inner = keras.Sequential([layers.InputLayer((5,)), layers.Dense(4, "relu"), layers.BatchNormalization()])
    x = keras.Input((5,))
    return keras.Model(x, layers.Dense(3)(layers.Dropout(0.5)(inner(x))))


def shared(keras):
    layers, (one, other) = keras.layers, (keras.Input((5,)), keras.Input((5,)))
    twice = layers.Dense(4, "tanh", name="twice")
    return keras.Model([one, other], layers.Dense(2)(layers.Concatenate()([twice(one), twice(other)])))


def dense(keras, width=8):
    layers = keras.layers
    return keras.Sequential([layers.InputLayer((6,)), layers.Dense(width, "relu"), layers.Dense(3)])


MAKE = {name: lambda keras, name=name: networks.named(name)(SMALLEST[name], 2, keras) for name in networks.MODELS}
MAKE |= {"nested": nested, "shared": shared, "subclassed": lambda keras: subclassed(keras, 5)}


def bits(values):
    """Arrays as whole numbers, which are equal only if every bit is: NaN equals NaN, and -0.0 is not 0.0."""
    return {name: np.asarray(one).view(BITS[np.asarray(one).itemsize]) for name, one in values.items()}


def assert_same_bits(found, expected):
    assert list(found) == list(expected)
    first, second = bits(found), bits(expected)
    assert [name for name in second if not np.array_equal(first[name], second[name])] == []
    assert all(found[name].dtype == expected[name].dtype and found[name].flags.owndata for name in expected)


def any_bits(rng, values):
    """Other values of the same shapes and types: any bits at all, NaN, infinities and subnormals among them."""
    arrays = {name: np.asarray(one) for name, one in values.items()}
    return {name: np.frombuffer(rng.bytes(one.nbytes), one.dtype).reshape(one.shape) for name, one in arrays.items()}


def any_masks(rng, prunable):
    """Masks at several densities: of the first weight nothing is kept, of the second everything."""
    densities = [0.0, 1.0, 0.02, 0.1, 0.03, 0.5 if len(prunable) < 10 else 0.01]
    return {
        name: rng.random(value.shape, np.float32) < densities[min(at, 2 + at % 4)]
        for at, (name, value) in enumerate(prunable.items())
    }


def masked_bits(values, kept):
    """What `masks.apply` should give, computed on the bits."""
    expected = bits({name: value.copy() for name, value in values.items()})
    for name, mask in kept.items():
        expected[name][~mask] = 0
    return {name: expected[name].view(value.dtype) for name, value in values.items()}


def portable_state(model):
    state = weights.read_state(model)
    return {name: state[name] for name in weights.portable(model)}


def trained_of(ticket):
    assert ticket.trained is not None
    return ticket.trained


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name.startswith("vgg") else name for name in MAKE]
)
def test_every_bit_comes_through_a_file_into_any_reader(tmp_path, rng, name):
    built = {library: MAKE[name](library_of(library)) for library in LIBRARIES}
    pairs = [LIBRARIES] if name in LARGE else [LIBRARIES, LIBRARIES[::-1]]
    for library, other in pairs:
        model = built[library]
        before = any_bits(rng, portable_state(model))
        after = any_bits(rng, before)
        weights.assign(model, before)
        kept = any_masks(rng, weights.prunable(model))
        path = tickets.of(model, kept, trained=after).save(tmp_path / f"{library}.safetensors")
        start, end = masked_bits(before, kept), masked_bits(after, kept)

        ticket = tickets.load(path)
        assert list(ticket.masks) == list(kept)
        assert all(one.dtype == bool and np.array_equal(one, kept[key]) for key, one in ticket.masks.items())
        assert_same_bits(ticket.weights, start)
        assert_same_bits(ticket.trained, end)
        assert ticket.num_kept == sum(int(one.sum()) for one in kept.values())
        assert ticket.density == ticket.num_kept / sum(one.size for one in kept.values())

        for part, values in (("start", start), ("trained", end)):  # by the reader of NumPy in the documentation
            plain_masks, plain, record = read_ticket(path, part)
            assert all(np.array_equal(plain_masks[key], one) for key, one in kept.items())
            assert_same_bits({key: one.copy() for key, one in plain.items()}, values)
        assert record["density"] == ticket.density

        ticket.apply(built[other])
        assert_same_bits(portable_state(built[other]), start)
        ticket.apply(model, trained=True)
        assert_same_bits(portable_state(model), end)
        if name == "subclassed":
            with pytest.raises(TicketError, match=r"Own that only its own code can build .* use ticket\.apply"):
                ticket.model()
        elif name not in LARGE[1:]:
            trained = library == "tf_keras"
            assert_same_bits(portable_state(ticket.model(trained)), end if trained else start)


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_an_activation_of_the_users_own_is_not_taken_for_that_of_keras(library, rng):
    """Both libraries describe a function by its name alone, and read the name as that of their own."""
    import tensorflow as tf

    library = library_of(library)

    def gelu(x):
        return tf.minimum(tf.nn.relu(x), 0.5)

    def made(*layers):
        model = library.Sequential([library.layers.InputLayer((5, 6)), *layers, library.layers.Dense(3)])
        return tickets.of(model, any_masks(rng, weights.prunable(model)))

    layers = library.layers
    for layer in (layers.Dense(4, gelu), layers.Activation(gelu), layers.GRU(4, recurrent_activation=gelu)):
        with pytest.raises(TicketError, match=r"activation 'gelu' of the layer .* is not Keras' own"):
            made(layer).model()
    for layer in (layers.Dense(4, tf.nn.gelu), layers.Dense(4, "softmax"), layers.Activation(layers.LeakyReLU(0.3))):
        assert made(layer).model().count_params() > 0


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_frozen_weight_does_not_train_in_the_model_of_a_ticket(library, rng):
    """Neither Keras describes that a layer within a layer was frozen alone."""
    keras = library_of(library)
    layers, x = keras.layers, keras.Input((4, 3))

    def built(layer, frozen):
        outputs = layer(x, x) if isinstance(layer, layers.MultiHeadAttention) else layer(x)
        for inner in frozen:
            inner.trainable = False
        model = keras.Model(x, layers.Dense(2)(outputs))
        return model, tickets.of(model, any_masks(rng, weights.prunable(model)))

    attention = layers.MultiHeadAttention(1, 2)
    attention(x, x)
    _, ticket = built(attention, [attention._query_dense])
    with pytest.raises(TicketError, match=r"if 'multi_head_attention/query/bias' is frozen.*ticket\.apply"):
        ticket.model()
    for layer in (layers.Dense(3), layers.MultiHeadAttention(1, 2)):
        model, ticket = built(layer, [layer])
        assert weights.unprunable(ticket.model()) == weights.unprunable(model)


def test_a_built_in_network_is_built_in_either_library(tmp_path, rng):
    model = MAKE["conv_2"](library_of("keras"))
    own = tickets.of(model, any_masks(rng, weights.prunable(model)))
    named = lottery.models.architecture.describe(model, "conv_2")
    ticket = tickets.Ticket(own.masks, own.weights, None, named, {}, {})
    again = tickets.load(ticket.save(tmp_path / "a.safetensors"))
    assert again.architecture == {"library": "keras", "name": "conv_2", "input_shape": [2, 2, 1], "num_classes": 2}
    for library in LIBRARIES:
        built = again.model(library=library)
        assert type(built).__module__.split(".")[0] == library
        assert_same_bits(portable_state(built), own.weights)


def test_a_built_in_network_is_in_float32_whatever_a_process_builds_in(rng):
    import keras

    model = MAKE["conv_2"](library_of("keras"))
    own = tickets.of(model, any_masks(rng, weights.prunable(model)))
    named = lottery.models.architecture.describe(model, "conv_2")
    ticket = tickets.Ticket(own.masks, own.weights, None, named, {}, {})
    keras.config.set_dtype_policy("float16")
    try:
        built = ticket.model()
        assert keras.config.dtype_policy().name == "float16"
    finally:
        keras.config.set_dtype_policy("float32")
    assert_same_bits(portable_state(built), own.weights)


def test_a_built_in_network_of_double_precision_is_not_rounded(rng):
    keras = library_of("keras")
    keras.config.set_dtype_policy("float64")
    try:
        model = MAKE["lenet_300_100"](keras)
    finally:
        keras.config.set_dtype_policy("float32")
    own = tickets.of(model, any_masks(rng, weights.prunable(model)))
    described = lottery.models.architecture.describe(model, "lenet_300_100")
    ticket = tickets.Ticket(own.masks, own.weights, None, described, {}, {})
    assert_same_bits(portable_state(ticket.model()), own.weights)
    assert next(iter(own.weights.values())).dtype == np.float64


@pytest.fixture(scope="module")
def layers_of_all_kinds():
    """The same network in both Kerases, of layers that the two write otherwise."""

    def recurrent(keras):
        layers, x = keras.layers, keras.Input((6, 4))
        h = layers.Bidirectional(layers.LSTM(3, return_sequences=True))(x)
        h = layers.MultiHeadAttention(2, 3)(h, h)
        h = layers.GRU(5, return_sequences=True)(layers.LayerNormalization()(h))
        h = layers.RNN([layers.LSTMCell(3), layers.GRUCell(4)], return_sequences=True)(h)
        h = layers.TimeDistributed(layers.Dense(5, "tanh"))(layers.DepthwiseConv1D(2)(h))
        h = layers.Bidirectional(layers.GRU(3, name="mine"), name="both")(layers.SeparableConv1D(4, 2)(h))
        return keras.Model(x, layers.Dense(2)(h))

    def spatial(keras):
        layers, x = keras.layers, keras.Input((8, 8, 2))
        h = layers.PReLU(shared_axes=[1, 2])(layers.DepthwiseConv2D(3, depth_multiplier=2)(x))
        h = layers.BatchNormalization()(layers.SeparableConv2D(4, 3)(h))
        h = layers.GroupNormalization(2)(layers.Conv2DTranspose(4, 2)(h))
        h = layers.Reshape((1, 5, 5, 4))(h)
        h = layers.ConvLSTM2D(2, 3, recurrent_activation="sigmoid")(h)
        return keras.Model(x, layers.Dense(2)(layers.Flatten()(h)))

    return {make.__name__: {name: make(library_of(name)) for name in LIBRARIES} for make in (recurrent, spatial)}


@pytest.mark.parametrize("kind", ["recurrent", "spatial"])
def test_names_are_the_same_in_both_kerases_and_so_are_outputs(layers_of_all_kinds, tmp_path, rng, kind):
    three, two = (layers_of_all_kinds[kind][library] for library in LIBRARIES)
    assert list(weights.portable(three)) == list(weights.portable(two))
    assert list(weights.prunable(three)) == list(weights.prunable(two))
    expected = {"recurrent": "depthwise_conv1d/kernel", "spatial": "depthwise_conv2d/kernel"}[kind]
    assert expected in weights.prunable(two)

    example = rng.normal(size=(5, *three.input_shape[1:])).astype(np.float32)
    for model, other in ((three, two), (two, three)):
        weights.assign(model, {name: rng.normal(size=one.shape) ** 2 for name, one in portable_state(model).items()})
        kept = {name: rng.random(one.shape) < 0.6 for name, one in weights.read(model).items()}
        ticket = tickets.load(tickets.of(model, kept).save(tmp_path / "a.safetensors"))
        dense_outputs = np.asarray(model(example, training=False))
        ticket.apply(other)
        assert np.abs(np.asarray(other(example, training=False)) - dense_outputs).max() > 0.01
        ticket.apply(model)
        assert outputs.largest_difference(model, other, example) < 1e-6


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_adapted_normalisation_computes_with_what_the_ticket_brings(tmp_path, rng, library):
    """Keras makes constants of its variables, which assigning those does not change."""
    keras, x = library_of(library), rng.normal(3, 2, size=(40, 4)).astype(np.float32)

    def build():
        layers = keras.layers
        return keras.Sequential([layers.InputLayer((4,)), layers.Normalization(), layers.Dense(2)])

    model, fresh = build(), build()
    model.layers[0].adapt(x)
    ticket = tickets.load(tickets.of(model, masks.ones_like(weights.read(model))).save(tmp_path / "a.safetensors"))
    fresh.predict(x, verbose=0)
    ticket.apply(fresh)
    assert np.allclose(fresh.predict(x, verbose=0), model.predict(x, verbose=0), atol=1e-6)
    assert outputs.largest_difference(model, ticket.model(), x) == 0


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_weight_that_is_one_number_keeps_its_shape(tmp_path, library):
    keras = library_of(library)
    x = keras.Input((3, 4))
    model = keras.Model(x, keras.layers.Dense(2)(keras.layers.Attention(use_scale=True)([x, x])))
    weights.assign(model, {"attention/scale": np.array(0.3, np.float32)})
    ticket = tickets.of(model, masks.ones_like(weights.read(model)), trained=weights.read_state(model))
    again = tickets.load(ticket.save(tmp_path / "a.safetensors"))
    assert_same_bits(again.weights, weights.read_state(model))
    assert again.weights["attention/scale"].shape == trained_of(again)["attention/scale"].shape == ()


def test_a_run_keeps_the_shape_of_one_number(tmp_path):
    """Round 1 starts from what a file holds, and so does a ticket."""
    files.write(tmp_path / "a.safetensors", files.pack_arrays({"attention/scale": np.array(0.3, np.float32)}))
    assert files.read_arrays(tmp_path / "a.safetensors")["attention/scale"].shape == ()


@pytest.mark.parametrize("library", LIBRARIES)
def test_other_models_are_as_good_as_before(rng, library):
    """A graph in which tf_keras makes a model changes the classes of every other one."""
    keras = library_of(library)
    mine, other = nested(keras), dense(keras)
    x = rng.normal(size=(8, 5)).astype(np.float32)
    before = np.asarray(mine(x, training=False))
    ticket = tickets.of(other, masks.ones_like(weights.read(other)))
    assert np.array_equal(mine(x, training=False), before) and other(np.zeros((1, 6), np.float32)).shape == (1, 3)
    ticket.apply(ticket.model())
    assert np.array_equal(mine(x, training=False), before)
    mine.compile("sgd", "mse")
    assert np.isfinite(mine.fit(x, x[:, :3], verbose=0).history["loss"]).all()


def pruning_api():
    import tensorflow_model_optimization

    return tensorflow_model_optimization.sparsity.keras


def wrapped_by_tfmot(model):
    """As its tutorials do: it computes masks of its own at every step."""
    return pruning_api().prune_low_magnitude(model, pruning_api().ConstantSparsity(0.5, 0, frequency=1))


def train_some(model, rng):
    model.compile("sgd", "mse")
    x = rng.normal(size=(48, 6)).astype(np.float32)
    callbacks = [pruning_api().UpdatePruningStep()] if tfmot.find(model) else []
    model.fit(x, x[:, :3], batch_size=8, verbose=0, callbacks=callbacks)


@pytest.mark.parametrize("wrap", ["tfmot", "lottery"])
def test_wrappers_of_tfmot_get_the_masks_and_keep_them(tmp_path, rng, wrap):
    import keras
    import tf_keras

    source = dense(keras)
    kept = {name: rng.random(value.shape) < 0.5 for name, value in weights.read(source).items()}
    path = tickets.of(source, kept).save(tmp_path / "a.safetensors")

    def wrapped():
        model = dense(tf_keras)
        return wrapped_by_tfmot(model) if wrap == "tfmot" else tfmot.wrap(model, masks.ones_like(kept))

    model = wrapped()
    tickets.load(path).apply(model)
    assert_same_bits(portable_state(model), masked_bits(portable_state(source), kept))
    train_some(model, rng)
    assert all(np.array_equal(one, kept[name]) for name, one in tfmot.read_masks(model).items())
    trained = weights.read(tfmot.strip(model))
    assert all(not trained[name][~mask].any() and trained[name][mask].all() for name, mask in kept.items())
    if wrap == "tfmot":  # it would have been otherwise
        other = wrapped()
        weights.assign(other, tickets.load(path).weights)
        train_some(other, rng)
        assert any(np.any(one != kept[name]) for name, one in tfmot.read_masks(other).items())


def test_wrappers_of_weights_that_the_ticket_does_not_mask_keep_everything(rng):
    import tf_keras

    plain = dense(tf_keras)
    for kept in ({"dense/kernel": rng.random((6, 8)) < 0.5}, {"dense/bias": rng.random(8) < 0.5}):
        ticket = tickets.of(plain, kept)
        model = wrapped_by_tfmot(dense(tf_keras))
        for one in tfmot.find(model).values():
            one.mask.assign(rng.random(one.mask.shape) < 0.3)
        ticket.apply(model)
        example = rng.normal(size=(9, 6)).astype(np.float32)
        assert outputs.largest_difference(ticket.model(), model, example) < 1e-6
        train_some(model, rng)
        found = tfmot.read_masks(model)
        assert all(np.array_equal(one, kept.get(name, np.ones_like(one))) for name, one in found.items())


@pytest.mark.parametrize("how", ["wrap", "enforcement"])
def test_a_ticket_trains_to_the_same_curve_in_either_keras(tmp_path, rng, how):
    """Losses of each of 30 steps to 1e-5 of their size, weights to 1e-5: the two sum in other orders."""
    import keras
    import tf_keras

    def network(library):
        layers = library.layers
        stack = [layers.Conv2D(6, 3, activation="relu"), layers.Flatten(), layers.Dense(16, "relu"), layers.Dense(3)]
        return library.Sequential([layers.InputLayer((6, 6, 1)), *stack])

    x, y, *_ = toy_arrays(rng, 480, 1, (6, 6, 1))
    first = network(keras)
    kept = {name: rng.random(value.shape) < 0.4 for name, value in weights.read(first).items()}
    path = tickets.of(first, kept).save(tmp_path / "a.safetensors")

    def curve(model):
        library = lottery.models.kerases.keras_of(model)
        loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(library.optimizers.SGD(0.05, momentum=0.9), loss, jit_compile=False)
        losses = []
        for at in range(0, 480, 16):
            model.reset_metrics()  # Keras 3 gives the mean since then, tf_keras that of the batch
            losses.append(float(np.ravel(model.train_on_batch(x[at : at + 16], y[at : at + 16]))[0]))
        return losses

    three, two = tickets.load(path).model(), network(tf_keras)
    with enforcement.constraint(three, tickets.load(path).masks):
        first_losses = curve(three)
    ticket = tickets.load(path)
    ticket.apply(two)
    if how == "wrap":
        wrapped = tfmot.wrap(two, ticket.masks)
        second_losses = curve(wrapped)
        two = tfmot.strip(wrapped)
    else:
        with enforcement.pruning_wrappers(two, ticket.masks):
            second_losses = curve(two)
    assert len(first_losses) == 30 and first_losses[-1] < 0.5 * first_losses[0]
    np.testing.assert_allclose(second_losses, first_losses, rtol=1e-5)
    ends = portable_state(three), portable_state(two)
    for name, start in ticket.weights.items():
        np.testing.assert_allclose(ends[1][name], ends[0][name], rtol=1e-4, atol=1e-5)
        assert np.abs(ends[0][name] - start).max() > 1e-3
        for end in ends:
            assert not name.endswith("kernel") or not bits({name: end[name]})[name][~kept[name]].any()


def test_tickets_of_a_run_are_what_is_stored(small_run):
    rows = small_run.table().query("branch == 'ticket'")
    for replicate, index in ((1, 0), (1, 3), (2, 2)):
        ticket = tickets.load(small_run.path, round=index, replicate=replicate)
        folder = small_run.path / f"replicate-{replicate}"
        initial = load_file(folder / "initial.safetensors")
        stored = load_file(folder / f"round-{index:02d}" / "weights.safetensors")
        kept = files.read_masks(folder / f"round-{index:02d}" / "masks.safetensors")
        assert list(ticket.masks) == list(kept) == ["dense/kernel", "dense_1/kernel", "dense_2/kernel"]
        assert all(np.array_equal(ticket.masks[name], one) for name, one in kept.items())
        assert ticket.weights.keys() == trained_of(ticket).keys() == initial.keys() == stored.keys()
        for found, expected in ((ticket.weights, masked_bits(initial, kept)), (ticket.trained, stored)):
            assert all(np.array_equal(one, bits(expected)[name]) for name, one in bits(found).items())

        row = rows[(rows["replicate"] == replicate) & (rows["round"] == index)].to_dict("records")[0]
        dense_row = rows[(rows["replicate"] == replicate) & (rows["round"] == 0)].to_dict("records")[0]
        assert ticket.density == row["density"] and ticket.num_kept == row["num_kept"]
        measured = {key: value for key, value in ticket.metrics.items() if key not in ("dense", "replicates")}
        assert len(measured) == 11 and measured == {key: row[key] for key in measured}
        assert ticket.metrics["dense"] == {key: dense_row[key] for key in measured}
        of = ticket.provenance
        assert (of["run"], of["round"], of["replicate"]) == (small_run.path.name, index, replicate)
        assert of["rewind_step"] == 0 and of["protocol"]["train"]["num_steps"] == 110
        assert of["data"]["name"] == "digits" and f"round {index} of {small_run.path.name}" in repr(ticket)


def test_trained_weights_are_of_the_last_step_or_of_the_early_stop(small_run, tmp_path):
    copy = tmp_path / small_run.path.name
    shutil.copytree(small_run.path, copy)
    folder = lottery.runs.store.round_path(copy, 1, 2)
    early = {name: value / 2 for name, value in load_file(folder / "early_stop.safetensors").items()}
    reseal(folder, {"early_stop_step": 40}, early_stop_safetensors=save(early))
    run = lottery.load(copy)
    end, there = run.ticket(round=2), run.ticket(round=2, at="early_stop")
    for ticket, stored in ((end, load_file(folder / "weights.safetensors")), (there, early)):
        assert {name: value.tobytes() for name, value in trained_of(ticket).items()} == {
            name: stored[name].tobytes() for name in ticket.weights
        }
    assert all(np.array_equal(value, end.weights[name]) for name, value in there.weights.items())
    again = tickets.load(there.save(tmp_path / "ticket.safetensors"))
    for ticket, at, step in ((end, "end", 110), (there, "early_stop", 40), (again, "early_stop", 40)):
        assert (ticket.provenance["trained_at"], ticket.provenance["trained_step"]) == (at, step)
    assert again.facts()["weights"] == "at the start, and trained to step 40, the early-stop step"
    assert end.facts()["weights"] == "at the start, and trained to step 110, the end"
    with pytest.raises(TicketError, match="at must be 'end', 'early_stop' or 'budget', not 'best'"):
        tickets.load(copy, round=2, at="best")  # type: ignore[arg-type]
    with pytest.raises(TicketError, match="no rounds, replicates or steps to choose from"):
        tickets.load(tmp_path / "ticket.safetensors", at="early_stop")
    record = lottery.runs.store.read_record(folder)
    del record["sha256"]["early_stop.safetensors"]
    lottery.runs.store.write_record(folder / "round.json", {k: v for k, v in record.items() if k != "record_sha256"})
    with pytest.raises(LotteryError, match="has no weights at the early-stop step: an earlier version stored it"):
        tickets.load(copy, round=2, at="early_stop")
    assert tickets.load(copy, round=2).trained


def test_it_is_said_why_there_are_no_weights_within_the_budget(small_run, monkeypatch):
    rows, experiment = results.rows_of, small_run.experiment
    monkeypatch.setattr(results, "rows_of", lambda *arguments: rows(*arguments).assign(budget_step=np.nan))
    with pytest.raises(TicketError, match="within the budget .*: its first evaluation comes later, or"):
        tickets.load(small_run.path, round=1, at="budget")
    rewind = experiment.rewind.model_copy(update={"mode": "fine_tune"})
    monkeypatch.setattr(from_run.store, "read_experiment", lambda run: experiment.model_copy(update={"rewind": rewind}))
    with pytest.raises(TicketError, match='with rewind.mode = "fine_tune" it starts from trained weights'):
        tickets.load(small_run.path, round=1, at="budget")


def test_the_mean_and_intervals_of_a_runs_ticket(small_run):
    rows = small_run.table().query("branch == 'ticket'")
    wide = rows.pivot(index="replicate", columns="round", values="early_stop_test_accuracy")
    for index in wide.columns:
        found = tickets.load(small_run.path, round=int(index)).metrics["replicates"]
        assert found["count"] == 2 and ("vs_dense" in found) == (index > 0)
        expected = {"early_stop_test_accuracy": wide[index], "vs_dense": wide[index] - wide[0]}
        for name in set(found) - {"count"}:
            values = expected[name]
            same = np.ptp(values) == 0  # two equal values say nothing of their spread
            ends = (None, None) if same else stats.t.interval(0.95, 1, values.mean(), stats.sem(values))
            for end, value in zip(("mean", "low", "high"), (values.mean(), *ends), strict=True):
                assert found[name][end] == (None if value is None else pytest.approx(value, abs=1e-12))


def test_a_round_is_chosen_by_density_and_by_word(small_run):
    rows = small_run.table().query("branch == 'ticket'")
    own = rows[rows["replicate"] == 2].set_index("round")["density"]
    for wanted in (1, 0.9, 0.71, 0.6, 0.1, 1e-9, *own, *(own * 1.05).clip(upper=1)):
        nearest = int((np.log(own) - math.log(wanted)).abs().idxmin())
        assert from_run.pick(small_run.table(), density=wanted, replicate=2) == nearest
        found = tickets.load(small_run.path, density=wanted, replicate=2)
        assert (found.provenance["round"], found.provenance["replicate"]) == (nearest, 2)

    means = rows[rows["round"] > 0].groupby("round")["early_stop_val_accuracy"].mean()
    best = max(means.index, key=lambda index: (means[index], index))
    assert tickets.load(small_run.path, round="best").provenance["round"] == best
    of_numpy: tuple[dict[str, Any], ...] = {"round": np.int64(2)}, {"density": np.float32(0.64)}  # as tables hold
    assert [from_run.pick(small_run.table(), **one) for one in of_numpy] == [2, 2]
    with pytest.raises(TicketError, match="No ticket of the run is shown to be matching"):
        tickets.load(small_run.path, round="smallest_matching")


def made_up(val, test, density=(1, 0.5, 0.25, 0.125)):
    """The table of a run of which only these are known, by round and replicate."""
    rows = [
        dict.fromkeys(results.COLUMNS, 0.0) | {"replicate": replicate + 1, "branch": branch, "round": index, "density": density[index],
         "early_stop_val_accuracy": one - (branch != "ticket"), "early_stop_test_accuracy": test[index][replicate]}
        for branch in ("ticket", "random_mask")
        for index, each in enumerate(val)
        for replicate, one in enumerate(each)
        if index or branch == "ticket"
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_choices_among_equals_and_of_nothing():
    def chosen(**how):
        return from_run.pick(rows, **how)

    same = [(0.9, 0.9)] * 4
    # Rounds 1 and 2 have equal means, round 0 is higher and no pruned one, round 3 is the best of replicate 1 alone.
    rows = made_up([(0.99, 0.99), (0.75, 0.875), (0.875, 0.75), (0.95, 0.5)], same)
    assert chosen(round="best") == chosen(round="best", replicate=2) == 2
    with pytest.raises(TicketError, match="No ticket of the run is shown to be matching"):
        chosen(round="smallest_matching")  # differences of zero have no interval
    shown = [(0.9, 0.91, 0.92), (0.95, 0.961, 0.972), (0.94, 0.951, 0.962), (0.9, 0.7, 1.0)]
    rows = made_up([(0.9, 0.9, 0.9)] * 4, shown)
    assert chosen(round="best") == 3 and chosen(round="smallest_matching") == 2  # round 3 may lose much
    rows = made_up([(0.9, 0.9)] * 2 + [(math.nan, math.nan), (0.8, 0.8)], [(0.9, 0.9), *[(0.8, 0.8)] * 3])
    assert chosen(round="best") == 1
    rows = made_up([(math.nan, math.nan)] * 4, same, density=(1, 0.5, 0.5, 0.125))
    assert chosen(density=0.5) == chosen(density=0.49) == 1 and chosen(density=0.25) == 1  # in ratio: as near as 0.125
    assert chosen(density=0.24) == 3
    with pytest.raises(TicketError, match="no pruned round with a validation accuracy"):
        chosen(round="best")


@pytest.mark.parametrize(
    "how", [{"round": 2}, {"density": 0.5, "replicate": 2}, {"round": "best"}, {"round": "smallest_matching"}], ids=str
)
def test_each_file_of_a_round_is_opened_once(small_run, monkeypatch, how):
    monkeypatch.setattr(
        lottery.statistics.verdicts.Judgement, "shown", {"matching": {"round": 2}}
    )  # some round matches
    opened = Counter()

    def counting(function):
        def count(path, *arguments, **named):
            if isinstance(path, (str, Path)) and Path(path).is_relative_to(small_run.path):
                opened[Path(path).relative_to(small_run.path).as_posix()] += 1
            return function(path, *arguments, **named)

        return count

    for module, name in ((io, "open"), (builtins, "open")):
        monkeypatch.setattr(module, name, counting(getattr(module, name)))
    ticket = tickets.load(small_run.path, **how)
    monkeypatch.undo()
    replicate, index = (ticket.provenance[key] for key in ("replicate", "round"))
    ours = f"replicate-{replicate}/round-{index:02d}"
    read = {name: count for name, count in opened.items() if name.startswith("replicate-")}
    # Of the initial weights the header is read first, for it says what trained weights may be.
    assert {name for name, count in read.items() if count != 1} <= {f"replicate-{replicate}/initial.safetensors"}
    assert {name for name in read if not name.endswith("round.json")} == {
        f"{ours}/masks.safetensors", f"{ours}/weights.safetensors", f"replicate-{replicate}/initial.safetensors"
    }  # fmt: skip
    assert sum(name.endswith("round.json") for name in read) == 8


@pytest.fixture(scope="module")
def rewound(traced_once, tmp_path_factory):
    """A run with late rewinding on data from a file, in a folder that is nobody's business."""
    folder = tmp_path_factory.mktemp("rewound")
    secret = folder / "secret-place"
    secret.mkdir()
    names = ("x_train", "y_train", "x_test", "y_test")
    np.savez(secret / "mine.npz", **dict(zip(names, toy_arrays(np.random.default_rng(3)), strict=True)))
    data = {"data": {"name": "npz", "path": str(secret / "mine.npz")}, "rewind": {"step": 10}}
    return lottery.run(TABLES, data, model=build, out=folder / "runs", on_event=quietly)


STATE = "dropout/seed_generator_state"


def build():
    import keras

    layers = keras.layers
    # The dropout has a state and drops nothing.
    first = [keras.Input((6,)), layers.Dense(12, "relu", name="wide"), layers.Dropout(1e-9)]
    return keras.Sequential([*first, layers.BatchNormalization(), layers.Dense(3)])


@pytest.fixture(scope="module")
def prepared(rewound, traced_once):
    """What the rounds were trained with, for training them again; in a trace of its own."""
    others = dict(traced_once)
    traced_once.clear()
    made = lottery.pipeline.preparing.prepare(rewound.experiment, lottery.pipeline.prepared.Ingredients(build))
    traced_once.clear()
    traced_once.update(others)
    with contextlib.closing(made.trainer):
        yield made


def retrained(prepared, ticket, states):
    seed = prepared.experiment.run.seed
    words, first = (seed, ticket.provenance["replicate"], randomness.BATCHES), ticket.provenance["rewind_step"]
    return prepared.trainer.train(states | ticket.weights, ticket.masks, words, Span(first))


def test_training_from_a_late_ticket_gives_what_was_trained(rewound, prepared):
    for index in (0, 1, 2):
        ticket = tickets.load(rewound.path, round=index)
        assert ticket.provenance["rewind_step"] == (10 if index else 0)
        start = load_file(rewound.path / "replicate-1" / f"{'start' if index else 'initial'}.safetensors")
        assert set(start) - set(ticket.weights) == set(start) - set(trained_of(ticket)) == {STATE}
        again = retrained(prepared, ticket, {STATE: start[STATE]})
        assert again.start_sha256 == ticket.provenance["start_sha256"]
        assert all(np.array_equal(again.weights[name], one) for name, one in trained_of(ticket).items())
    start.pop(STATE)
    assert all(
        np.array_equal(one, bits(masked_bits(start, ticket.masks))[name]) for name, one in bits(ticket.weights).items()
    )
    assert np.any(ticket.weights["batch_normalization/moving_mean"] != 0)


@pytest.mark.parametrize("mode", ["learning_rate", "fine_tune", "sign"])
def test_training_from_a_ticket_gives_what_was_trained_in_each_mode(rewound, prepared, tmp_path, mode):
    overrides = {"data": dict(rewound.experiment.data), "rewind": {"mode": mode}}
    run = lottery.run(TABLES, overrides, model=build, out=tmp_path, on_event=quietly)
    ticket, before = tickets.load(run.path, round=2), tickets.load(run.path, round=1)
    again = retrained(prepared, ticket, {})
    assert all(np.array_equal(again.weights[name], one) for name, one in trained_of(ticket).items())
    initial = load_file(run.path / "replicate-1" / "initial.safetensors")["wide/kernel"]
    signs = (np.sign(initial) * initial.std(dtype=np.float64)).astype(np.float32)
    expected = signs if mode == "sign" else trained_of(before)["wide/kernel"]
    assert np.array_equal(ticket.weights["wide/kernel"], np.where(ticket.masks["wide/kernel"], expected, 0))


def test_paths_do_not_travel_with_a_ticket(rewound, tmp_path, monkeypatch):
    ticket = tickets.load(rewound.path, round=2)
    assert ticket.provenance["protocol"]["data"]["path"] == "mine.npz"
    content = ticket.save(tmp_path / "a.safetensors").read_bytes()
    assert list(ticket.masks) == list(tickets.load(tmp_path / "a.safetensors").masks) == ["wide/kernel", "dense/kernel"]
    for part in rewound.path.parts[1:-1]:
        assert part.encode() not in content, part
    assert b"secret-place" not in content and b"mine.npz" in content
    monkeypatch.chdir(rewound.path)
    assert tickets.load(".", round=2).save(tmp_path / "b.safetensors").read_bytes() == content


DAMAGES = {
    "replicate-1/start.safetensors": "round 2 of replicate 1 did not start from the start weights stored there",
    "replicate-1/round-02/masks.safetensors": r"masks\.safetensors' is damaged",
    "replicate-1/round-02/weights.safetensors": r"weights\.safetensors' is damaged",
    "replicate-1/round-02/round.json": r"round\.json' is damaged",
    "environment.json": r"environment\.json' is damaged",
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_run_gives_no_ticket(rewound, tmp_path, name):
    copy = tmp_path / rewound.path.name
    shutil.copytree(rewound.path, copy)
    tickets.load(copy, round=2)
    path = copy / name
    if name.endswith("start.safetensors"):
        values = load_file(path)
        kept = tickets.load(copy, round=2).masks["wide/kernel"]
        values["wide/kernel"][tuple(np.argwhere(kept)[0])] *= -1
        files.write(path, files.pack_arrays(values))
    elif name.endswith("masks.safetensors"):
        found = files.read_masks(path)
        files.write(path, files.pack_masks({key: ~mask for key, mask in found.items()}))
    elif name.endswith("weights.safetensors"):
        files.write(path, files.pack_arrays({key: value + 1 for key, value in load_file(path).items()}))
    else:
        path.write_text(path.read_text().replace('"num_kept"', '"n"').replace('"processor"', '"p"'))
    with pytest.raises(LotteryError, match=DAMAGES[name]) as caught:
        tickets.load(copy, round=2)
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def small():
    """A ticket of a Keras 3 model without trained weights, and its model."""
    import keras

    rng, model = np.random.default_rng(5), dense(keras)
    return tickets.of(model, {name: rng.random(one.shape) < 0.5 for name, one in weights.read(model).items()}), model


def refused(match, function, *arguments, error: type[LotteryError] = TicketError, **named):
    with pytest.raises(error, match=match) as caught:
        function(*arguments, **named)
    assert "\n" not in str(caught.value) and isinstance(caught.value, LotteryError)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_model_of_other_names_or_shapes_is_left_alone(small, library):
    ticket, keras = small[0], library_of(library)
    layers = keras.layers
    narrow = dense(keras, 7)
    other = keras.Sequential([layers.InputLayer((6,)), layers.Dense(8, name="first"), layers.Dense(3)])
    for model, match in (
        (
            narrow,
            r"Shapes differ: dense/kernel: ticket \(6, 8\), model \(6, 7\), dense/bias: ticket \(8,\), .*\(7, 3\)\.$",
        ),
        (
            other,
            r"Only the ticket has: .*dense_1/kernel \(8, 3\).*; only the model has: first/kernel \(6, 8\), first/b",
        ),
    ):
        before = weights.read_state(model)
        refused(match, ticket.apply, model)
        assert_same_bits(weights.read_state(model), before)
    if library == "tf_keras":
        model = wrapped_by_tfmot(narrow)
        before = weights.read_state(model)
        refused("Shapes differ", ticket.apply, model)
        assert_same_bits(weights.read_state(model), before)


def test_what_cannot_be_loaded_built_or_saved_says_why(small, small_run, tmp_path):
    (ticket, model), run, load = small, small_run.path, tickets.load
    path = ticket.save(tmp_path / "a.safetensors")
    refused(r"pass a round \(0 to 3, 'best' or 'smallest_matching'\) or a density", load, run)
    refused("Pass round or density, not both. They are 1 and 0.5", load, run, round=1, density=0.5)
    refused("round True is not stored", load, run, round=True)
    refused("density must be .* not True", load, run, density=True)
    refused("round 4 is not stored for replicate 1. It has 0 to 3", load, run, round=4)
    refused("round -1 is not stored", load, run, round=-1)
    refused("round must be .*not 'bets'. Did you mean 'best'", load, run, round="bets")
    refused("round 4 is not stored", load, run, round="4")
    assert load(run, round="1").density == load(run, round=1).density
    refused(r"replicate 3 is not stored. The run has replicates 1, 2", load, run, round=1, replicate=3)
    for wrong in (0, -0.5, 1.5, math.nan, math.inf, "0.2"):
        refused(r"density must be a fraction in \(0, 1\], not", load, run, density=wrong)
    refused("is not a run's folder", load, path, round=1)
    refused("is not a run's folder", load, path, density=0.5)
    refused("is not a run's folder", load, path, replicate=2)
    refused("is neither a run nor a ticket file: nothing is there", load, tmp_path / "b.safetensors")
    refused("is not a run: it has no experiment", load, tmp_path, round=1, error=LotteryError)
    for file in ("initial.safetensors", "round-01/masks.safetensors", "round-01/round.json"):
        refused("is not a ticket file that can be trusted", load, run / "replicate-1" / file)
    refused("holds no trained weights", load(path).model, trained=True)
    refused("holds no trained weights", load(path).apply, model, trained=True)
    refused(r"is a \.safetensors file, not '.*a\.npz'", ticket.save, tmp_path / "a.npz")
    refused("holds a configuration of keras, which tf_keras does not read; .*apply", ticket.model, library="tf_keras")
    refused("library must be one of keras, tf_keras, not 'torch'", ticket.model, library="torch")
    refused("must be a Keras model, not dict", ticket.apply, {}, error=LotteryError)
    assert issubclass(TicketError, LotteryError) and sorted(tmp_path.iterdir()) == [path]


def test_trained_weights_may_stay_behind(small_run, tmp_path):
    whole = tickets.load(small_run.path, round=2)
    start = tickets.load(whole.save(tmp_path / "a.safetensors", trained=False))
    assert whole.trained is not None and start.trained is None
    assert_same_bits(start.weights, whole.weights)
    assert start.metrics == whole.metrics and start.provenance == whole.provenance
    assert repr(start).endswith(" % at the early-stop step, start weights>")
    assert repr(whole).endswith(" % at the early-stop step, start and trained weights>")  # although these are the last


SCRIPT = """
import sys
import lottery
ticket = lottery.tickets.load(sys.argv[1], round="best")
again = lottery.tickets.load(ticket.save(sys.argv[2]))
assert again.density == ticket.density and again.trained and repr(again) == repr(ticket)
print([name for name in ("tensorflow", "keras", "tf_keras", "matplotlib") if name in sys.modules])
"""


def test_loading_and_saving_do_not_import_tensorflow(small_run, tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(small_run.path), str(tmp_path / "a.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_ticket_of_ones_own_is_a_copy(rng, library):
    keras = library_of(library)
    model = nested(keras)
    weights.assign(model, {name: rng.normal(size=one.shape) for name, one in portable_state(model).items()})
    before = weights.read_state(model)
    inner, last = weights.prunable(model)
    kept = {last: rng.random((4, 3)) < 0.5, inner: rng.random((5, 4)) < 0.5}
    given_masks = {name: one.copy() for name, one in kept.items()}
    trained = {name: one + 1 for name, one in before.items()}
    ticket = tickets.of(model, kept, trained=trained, metrics={"a": 1.5}, provenance={"by": "me"})
    assert_same_bits(weights.read_state(model), before)
    assert list(ticket.masks) == [inner, last] and (ticket.metrics, ticket.provenance) == ({"a": 1.5}, {"by": "me"})
    states = {name for name in before if "seed_generator_state" in name}
    assert len(states) == (library == "keras")
    assert list(ticket.weights) == list(trained_of(ticket)) == [name for name in before if name not in states]

    expected = [masked_bits({name: one[name] for name in ticket.weights}, given_masks) for one in (before, trained)]
    weights.assign(model, {name: np.full(one.shape, 7.0) for name, one in ticket.weights.items()})
    for one in (*kept.values(), *trained.values()):
        one[...] = 0
    assert_same_bits(ticket.weights, expected[0])
    assert_same_bits(ticket.trained, expected[1])
    assert all(np.array_equal(ticket.masks[name], one) for name, one in given_masks.items())


def test_masks_that_do_not_say_what_a_layer_computes_with_are_refused(rng):
    keras = library_of("keras")
    model = keras.Sequential([keras.layers.InputLayer((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(2)])
    state = {"batch_normalization/moving_mean": np.ones(4, bool)}
    refused("moving_mean', which is a state", tickets.of, model, state, error=LotteryError)
    kept = any_masks(rng, weights.prunable(model))
    model.layers[1].enable_lora(2)
    refused("'dense/kernel' is adapted by LoRA", tickets.of, model, kept, error=LotteryError)


def test_masks_and_trained_weights_that_do_not_fit_are_refused(small):
    ticket, model = small
    ones, state = masks.ones_like(weights.read(model)), weights.read_state(model)
    refused("does not exist: 'dense_2/kernel'.*Did you mean", tickets.of, model,
            ones | {"dense_2/kernel": np.ones((8, 3), bool)}, error=LotteryError)  # fmt: skip
    refused("must be a boolean array", tickets.of, model, {"dense/kernel": np.ones((6, 8))}, error=LotteryError)
    refused(r"shape \(8, 6\)", tickets.of, model, {"dense/kernel": np.ones((8, 6), bool)}, error=LotteryError)
    refused("kept must have a mask", tickets.of, model, {})
    refused("must be a Keras model, not NoneType", tickets.of, None, ones, error=LotteryError)
    refused(r"Only the model has: dense/bias \(8,\)", tickets.of, model, ones,
            trained={name: one for name, one in state.items() if name != "dense/bias"})  # fmt: skip
    wide = {name: one.astype(np.float64) for name, one in state.items()}
    refused("trained 'dense/kernel' is float64, the model's is float32", tickets.of, model, ones, trained=wide)


SPECIAL = (0x80000000, 1, 0x807FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x7F7FFFFF)


@pytest.fixture(scope="module")
def where(tmp_path_factory):
    return tmp_path_factory.mktemp("made") / "a.safetensors"


@hypothesis_settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_whatever_is_saved_is_what_is_loaded(where, data):
    """Dense stacks of any widths, masks and bits; a masked entry is +0.0, whatever was there."""
    widths = data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=5))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    density = data.draw(st.sampled_from([0.0, 0.3, 0.9, 1.0]))
    start, kept = {}, {}
    for at, (inputs, units) in enumerate(itertools.pairwise(widths)):
        for own, shape in (("kernel", (inputs, units)), ("bias", (units,))):
            special = rng.choice(np.array(SPECIAL, np.uint32), shape)
            value = np.where(rng.random(shape) < 0.4, special, rng.integers(0, 2**32, shape, np.uint32))
            start[f"dense_{at}/{own}"] = value.view(np.float32)
        if at == 0 or data.draw(st.booleans()):
            kept[f"dense_{at}/kernel"] = rng.random((inputs, units)) < density
    after = any_bits(rng, start) if data.draw(st.booleans()) else None
    plain = st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
                         | st.text(st.characters(codec="utf-8")), lambda one: st.lists(one, max_size=3), max_leaves=4)  # fmt: skip
    metrics = data.draw(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), plain, max_size=3))
    expected = masked_bits(start, kept), after and masked_bits(after, kept)
    with warnings.catch_warnings(action="error"):  # of casts that NaN does not survive
        applied = masks.apply(start, kept), after and masks.apply(after, kept)
        ticket = tickets.Ticket(kept, *applied, {"library": "keras", "class": "Stack"}, metrics, {"of": widths})
        first = ticket.save(where).read_bytes()
        again = tickets.load(where)
    assert list(again.masks) == list(kept) and all(np.array_equal(again.masks[name], one) for name, one in kept.items())
    assert_same_bits(again.weights, expected[0])
    assert (again.trained is None) == (after is None)
    if again.trained is not None:
        assert_same_bits(again.trained, expected[1])
    assert (again.metrics, again.provenance, again.architecture) == (metrics, {"of": widths}, ticket.architecture)
    assert again.save(where).read_bytes() == first
    for name, one in kept.items():
        assert not again.weights[name].view(np.uint32)[~one].any()


def test_choices_are_among_the_rounds_that_all_replicates_have(small_run, tmp_path):
    run = tmp_path / small_run.path.name
    shutil.copytree(small_run.path, run)
    for index in (2, 3):
        shutil.rmtree(run / "replicate-2" / f"round-{index:02d}")
    rows = lottery.statistics.results.table(run)
    chosen = {word: from_run.pick(rows, word, replicate=2) for word in from_run.CHOICES[:1]}
    for replicate in (1, 2):
        assert {word: from_run.pick(rows, word, replicate=replicate) for word in chosen} == chosen
    rows = from_run.listed(run)
    assert set(rows[rows["choice"].str.contains("best")]["round"]) == {chosen["best"]} == {1}


def test_masks_and_weights_of_a_ticket_stay_together(small):
    ticket, _ = small
    for values in (ticket.masks, ticket.weights):
        with pytest.raises(ValueError, match="read-only"):
            values["dense/kernel"][:] = 1
    about = {"by": ["me"]}
    own = tickets.of(small[1], ticket.masks, provenance=about)
    about["by"].append("you")
    assert own.provenance == {"by": ["me"]}


def test_a_notebook_shows_a_ticket(small_run):
    ticket = tickets.load(small_run.path, round=3, replicate=2)
    text = ticket._repr_html_()
    assert f"{ticket.num_kept:,} weights kept" in text and "replicate 2, round 3" in text
    for name, mask in ticket.masks.items():
        assert f">{name}</td>" in text and f">{mask.sum():,}</td>" in text
    strange = tickets.of(ticket.model(), ticket.masks, provenance={"run": "<script>alert()</script>\x1b[2J"})
    assert "<script" not in strange._repr_html_() and "\x1b" not in strange._repr_html_()


def test_a_ticket_exports_itself(small_run, tmp_path):
    ticket = small_run.ticket(round=2)
    done = ticket.export(tmp_path / "a.keras")
    assert (done.form, done.path, done.difference) == ("keras", tmp_path / "a.keras", 0) and done.zeros_checked
    import keras

    loaded = keras.models.load_model(tmp_path / "a.keras")
    assert all(np.array_equal(value, trained_of(ticket)[name]) for name, value in lottery.weights.read(loaded).items())
    start = ticket.export(tmp_path / "start.npz", trained=False)
    assert start.form == "npz"
    with pytest.raises(LotteryError, match="suffix"):
        ticket.export(tmp_path / "a.bin")
    alone = tickets.Ticket(ticket.masks, ticket.weights, None, ticket.architecture, {}, {})
    assert files.read(alone.export(tmp_path / "alone.npz").path) == files.read(start.path)
