"""A zoo of architectures of both Kerases, each through a whole life: run, resume, branch, ticket, export, compact, verify.

What a run says of a network is computed again with NumPy: how many entries are kept, that all others are zero, and the
accuracy of a model built anew that gets the stored weights. `ARCHITECTURES` is the list: a new kind is one more entry.
"""

import importlib
import shutil
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest

import lottery
from lottery import files, weights
from lottery.errors import LotteryError, TicketError
from lottery.models import outputs
from lottery.runs import store
from lottery.tickets import compaction, exporting
from tests.conftest import quietly, subclassed
from tests.pipeline.test_running import final_bits

BOTH, KERAS = ("keras", "tf_keras"), ("keras",)
NUM_TRAIN, NUM_VALIDATION, NUM_TEST, VOCABULARY = 50, 10, 30, 12
RATE = 0.4
TABLES = {
    "name": "zoo",
    "data": {"validation": NUM_VALIDATION},
    "train": {"num_steps": 12, "eval_every": 6, "batch_size": 10, "jit_compile": False},
    "prune": {"num_rounds": 2, "rate": RATE},
    "run": {"num_replicates": 1, "controls": []},
}


class Kind(NamedTuple):
    """A kind of network: how it is built, and what it is for.

    Attributes:
        build: Makes it from a Keras library.
        inputs: The shape of an example, of whole numbers below `VOCABULARY` if it begins with ``IDS``; or several by
            name.
        targets: ``"classes"``, ``"binary"``, ``"numbers"`` (three for each example), ``"positions"`` (a class for each
            of the first dimension) or ``"two"`` (classes by name of the output).
        libraries: In which it is tried.
        rebuilt: True if its ticket builds it without its code.
        chain: True if `compact` makes it smaller; otherwise it says in a sentence why not.
    """

    build: Callable[[Any], Any]
    inputs: Any = (6,)
    targets: str = "classes"
    libraries: tuple[str, ...] = BOTH
    rebuilt: bool = True
    chain: bool = False


IDS = "ids"


def stack(layers, shape=(6,), dtype="float32", head=True):
    """Build a Sequential of `layers`, a function of ``keras.layers``, and a Dense for the classes."""

    def build(keras):
        last = [keras.layers.Dense(3)] if head else []
        return keras.Sequential([keras.layers.InputLayer(shape, dtype=dtype), *layers(keras.layers), *last])

    return build


def graph(compute, shape=(6,), dtype="float32", units=3):
    """Build a functional model of `compute`, a function of Keras and its input, and a Dense for the classes."""

    def build(keras):
        inputs = keras.Input(shape, dtype=dtype)
        return keras.Model(inputs, keras.layers.Dense(units)(compute(keras, inputs)))

    return build


def compiled(build, loss, metrics=("accuracy",)):
    """Compile what `build` makes."""

    def built(keras):
        model = build(keras)
        found = loss(keras.losses) if callable(loss) else loss
        model.compile(keras.optimizers.Adam(0.01), found, metrics=metrics and list(metrics))
        return model

    return built


def logits(losses):
    return losses.SparseCategoricalCrossentropy(from_logits=True)


def residual(keras, x):
    dense = keras.layers.Dense
    x = dense(6, "relu")(x) + x
    return dense(6, "relu")(x) * 0.5 + x


def residual_layers(keras, x):
    layers = keras.layers
    return layers.Add()([layers.Dense(6)(layers.ReLU()(layers.Dense(5)(x))), x])


def densely_connected(keras, x):
    layers = keras.layers
    for _ in range(2):
        x = layers.Concatenate()([x, layers.Dense(4, "relu")(x)])
    return x


def gated(keras, x):
    layers = keras.layers
    return layers.Multiply()([layers.Dense(5, "tanh")(x), layers.Dense(5, "sigmoid")(x)])


def maxout(keras, x):
    return keras.layers.Maximum()([keras.layers.Dense(5)(x) for _ in range(3)])


def sliced(keras, x):
    dense = keras.layers.Dense
    return dense(4, "relu")(x[:, :3]) - 0.5 * dense(4, "relu")(x[:, 3:])


def operations(keras, x):
    ops, dense = keras.ops, keras.layers.Dense
    x = ops.relu(dense(8)(x))
    first, second = ops.split(x, 2, axis=1)
    x = ops.concatenate([ops.softmax(first), ops.tanh(second)], axis=-1)
    x = x - ops.mean(x, axis=-1, keepdims=True)
    return ops.reshape(ops.transpose(ops.reshape(x, (-1, 2, 4)), (0, 2, 1)), (-1, 8))


def operations_of_tensorflow(keras, x):
    import tensorflow as tf

    x = tf.nn.relu(keras.layers.Dense(8)(x))
    first, second = tf.split(x, 2, axis=1)
    x = tf.concat([tf.nn.softmax(first), tf.tanh(second)], axis=-1)
    x = 1.0 - x - tf.reduce_mean(x, axis=-1, keepdims=True)
    return tf.reshape(tf.transpose(tf.reshape(x, (-1, 2, 4)), (0, 2, 1)), (-1, 8))


def constant_array(keras, x):
    scale = np.linspace(0.5, 1.5, 6, dtype=np.float32)
    return keras.layers.Dense(5, "relu")(keras.ops.multiply(x, scale) + scale)


def squeeze_and_excite(keras, x):
    layers = keras.layers
    x = layers.Conv2D(4, 3, activation="relu")(x)
    gate = layers.Dense(4, "sigmoid")(layers.Dense(2, "relu")(layers.GlobalAveragePooling2D()(x)))
    return layers.GlobalMaxPooling2D()(x * layers.Reshape((1, 1, 4))(gate))


def inception(keras, x):
    layers = keras.layers
    branches = [layers.Conv2D(2, size, padding="same", activation="relu")(x) for size in (1, 3)]
    branches.append(layers.Conv2D(2, 1)(layers.MaxPooling2D(3, 1, padding="same")(x)))
    return layers.Flatten()(layers.Concatenate()(branches))


def residual_convolutions(keras, x):
    layers = keras.layers
    x = layers.Conv2D(3, 3, padding="same", use_bias=False)(x)
    inner = layers.ReLU()(layers.BatchNormalization(momentum=0.5)(x))
    x = x + layers.Conv2D(3, 3, padding="same")(inner)
    return layers.GlobalAveragePooling2D()(x)


def unet(keras, x):
    layers = keras.layers
    down = layers.Conv2D(3, 3, padding="same", activation="relu")(x)
    low = layers.Conv2D(4, 3, padding="same", activation="relu")(layers.MaxPooling2D()(down))
    up = layers.Conv2DTranspose(3, 2, 2)(low)
    return layers.GlobalAveragePooling2D()(layers.Concatenate()([up, down]))


def transformer(keras, tokens):
    layers = keras.layers
    x = layers.Embedding(VOCABULARY, 4)(tokens)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 2)(x, x))
    x = layers.LayerNormalization()(x + layers.Dense(4)(layers.Dense(6, "gelu")(x)))
    return layers.GlobalAveragePooling1D()(x)


def masked_transformer(keras, tokens):
    layers = keras.layers
    x = layers.Embedding(VOCABULARY, 4, mask_zero=True)(tokens)
    x = layers.Add()([x, layers.MultiHeadAttention(2, 2)(x, x, use_causal_mask=True)])
    return layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))


def grouped_queries(keras, tokens):
    layers = keras.layers
    x = layers.Embedding(VOCABULARY, 4)(tokens)
    x = layers.RMSNormalization()(x + layers.GroupQueryAttention(2, 4, 2)(x, x))
    return layers.GlobalMaxPooling1D()(x + layers.Dense(4, "silu")(x))


def vision_transformer(keras, images):
    layers = keras.layers
    x = layers.Reshape((4, 4))(layers.Conv2D(4, 2, 2)(images))
    x = x + layers.MultiHeadAttention(2, 2)(x, x)
    return layers.Flatten()(x)


def mixer(keras, x):
    layers = keras.layers
    x = x + layers.Permute((2, 1))(layers.Dense(5, "gelu")(layers.Permute((2, 1))(x)))
    return layers.GlobalAveragePooling1D()(x + layers.Dense(2, "gelu")(x))


def encoder_and_decoder(keras, x):
    layers = keras.layers
    _, *state = layers.LSTM(4, return_state=True)(x)
    x = layers.LSTM(4, return_sequences=True)(x, initial_state=state)
    return layers.Flatten()(layers.Attention()([x, x]))


def masked_lstm(keras, tokens):
    layers = keras.layers
    return layers.LSTM(4)(layers.Embedding(VOCABULARY, 3, mask_zero=True)(tokens))


def text_convolution(keras, tokens):
    layers = keras.layers
    x = layers.Embedding(VOCABULARY, 3)(tokens)
    kinds = [layers.GlobalMaxPooling1D()(layers.Conv1D(3, size, activation="relu")(x)) for size in (2, 3)]
    return layers.Concatenate()(kinds)


def nested(keras, x):
    layers = keras.layers
    inner = keras.Sequential([layers.InputLayer((6,)), layers.Dense(5, "relu"), layers.BatchNormalization()])
    return layers.Dense(4, "relu")(inner(x))


def nested_twice(keras, x):
    layers, inputs = keras.layers, keras.Input((6,))
    inner = keras.Model(inputs, layers.Dense(6, "tanh")(inputs) + inputs)
    return inner(inner(x))


def recursion(keras, x):
    dense = keras.layers.Dense(6, "tanh")
    return dense(dense(dense(x)))


def siamese(keras):
    layers, (one, other) = keras.layers, (keras.Input((6,), name="one"), keras.Input((6,), name="other"))
    twice = layers.Dense(5, "relu")
    apart = layers.Subtract()([twice(one), twice(other)])
    return keras.Model({"one": one, "other": other}, layers.Dense(3)(apart))


def wide_and_deep(keras):
    layers, (wide, deep) = keras.layers, (keras.Input((4,), name="wide"), keras.Input((6,), name="deep"))
    x = layers.Concatenate()([wide, layers.Dense(5, "relu")(layers.Dense(6, "relu")(deep))])
    return keras.Model({"wide": wide, "deep": deep}, layers.Dense(3)(x))


def two_outputs(keras):
    layers, inputs = keras.layers, keras.Input((6,))
    trunk = layers.Dense(6, "relu")(inputs)
    model = keras.Model(inputs, {"a": layers.Dense(3, name="a")(trunk), "b": layers.Dense(2, name="b")(trunk)})
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), {"a": loss, "b": loss}, metrics={"a": ["accuracy"]})
    return model


def own_layer(keras):
    class Low(keras.layers.Layer):
        def build(self, shape):
            self.first = self.add_weight(name="first", shape=(shape[-1], 2), initializer="glorot_uniform")
            self.second = self.add_weight(name="second", shape=(2, 5), initializer="glorot_uniform")

        def call(self, x):
            return x @ self.first @ self.second

    layers = keras.layers
    return keras.Sequential([layers.InputLayer((6,)), Low(), layers.ReLU(), layers.Dense(3)])


def with_a_frozen_layer(keras):
    layers = keras.layers
    frozen = layers.Dense(6, "relu", trainable=False)
    return keras.Sequential([layers.InputLayer((6,)), frozen, layers.Dense(5, "relu"), layers.Dense(3)])


def in_half_precision(dtype):
    def build(keras):
        layers = keras.layers
        half = [layers.Dense(8, "relu", dtype=dtype), layers.Dense(6, "relu", dtype=dtype)]
        return keras.Sequential([layers.InputLayer((6,)), *half, layers.Dense(3, dtype="float32")])

    return build


def probabilities(layers):
    return [layers.Dense(6, "relu"), layers.Dense(1, "sigmoid")]


def autoencoder(layers):
    return [layers.Dense(4, "relu"), layers.Dense(2), layers.Dense(4, "relu"), layers.Dense(3)]


SQUARES, IMAGE, STEPS = (4, 4, 2), (4, 4, 1), (5, 2)
TOKENS = (IDS, 5)
ids = {"shape": (5,), "dtype": "int32"}

ARCHITECTURES: dict[str, Kind] = {
    # Chains of dense layers.
    "linear": Kind(stack(lambda of: []), chain=True),
    "dense": Kind(stack(lambda of: [of.Dense(8, "relu"), of.Dense(6, "tanh")]), chain=True),
    "batch normalised": Kind(
        stack(lambda of: [of.Dense(8, use_bias=False), of.BatchNormalization(momentum=0.5), of.ReLU()]), chain=True
    ),
    "layer normalised": Kind(stack(lambda of: [of.Dense(8), of.LayerNormalization(), of.Activation("gelu")])),
    "unit normalised": Kind(stack(lambda of: [of.Dense(8), of.UnitNormalization()])),
    "spectrally normalised": Kind(stack(lambda of: [of.SpectralNormalization(of.Dense(8, "relu"))]), libraries=KERAS),
    "prelu": Kind(stack(lambda of: [of.Dense(8), of.PReLU(), of.Dense(6), of.LeakyReLU()]), chain=True),
    "noise": Kind(
        stack(lambda of: [of.GaussianNoise(0.1), of.Dense(8, "elu"), of.Dropout(0.3), of.AlphaDropout(0.1)]), chain=True
    ),
    "regularised": Kind(
        stack(lambda of: [of.Dense(8, "selu", kernel_regularizer="l2", kernel_constraint="unit_norm")]), chain=True
    ),
    "einsum dense": Kind(stack(lambda of: [of.EinsumDense("ab,bc->ac", 8, bias_axes="c"), of.ReLU()])),
    "frozen layer": Kind(with_a_frozen_layer, chain=True),
    # Convolutions.
    "convolutions": Kind(
        stack(
            lambda of: [of.Conv2D(4, 3, activation="relu"), of.MaxPooling2D(), of.Conv2D(4, 1), of.Flatten()],
            IMAGE,
        ),
        IMAGE,
        chain=True,
    ),
    "strided": Kind(
        stack(lambda of: [of.ZeroPadding2D(1), of.Conv2D(4, 3, 2), of.GlobalAveragePooling2D()], IMAGE),
        IMAGE,
        chain=True,
    ),
    "dilated": Kind(
        stack(lambda of: [of.Conv2D(4, 2, dilation_rate=2, activation="relu"), of.GlobalMaxPooling2D()], IMAGE),
        IMAGE,
        chain=True,
    ),
    "grouped": Kind(stack(lambda of: [of.Conv2D(4, 3, groups=2), of.ReLU(), of.Flatten()], SQUARES), SQUARES),
    "depthwise": Kind(
        stack(lambda of: [of.DepthwiseConv2D(3, depth_multiplier=2), of.ReLU(), of.Flatten()], SQUARES), SQUARES
    ),
    "separable": Kind(stack(lambda of: [of.SeparableConv2D(4, 3, padding="same"), of.Flatten()], SQUARES), SQUARES),
    "transposed": Kind(
        stack(lambda of: [of.Dense(8), of.Reshape((2, 2, 2)), of.Conv2DTranspose(3, 2, 2), of.GlobalAveragePooling2D()])
    ),
    "group normalised": Kind(
        stack(lambda of: [of.Conv2D(4, 3), of.GroupNormalization(2), of.ReLU(), of.Flatten()], IMAGE), IMAGE
    ),
    "1D": Kind(
        stack(lambda of: [of.Conv1D(4, 3, activation="relu"), of.GlobalMaxPooling1D()], STEPS), STEPS, chain=True
    ),
    "causal": Kind(
        stack(lambda of: [of.Conv1D(4, 2, padding="causal", dilation_rate=2), of.Flatten()], STEPS), STEPS, chain=True
    ),
    "separable 1D": Kind(stack(lambda of: [of.SeparableConv1D(4, 2), of.Flatten()], STEPS), STEPS),
    "transposed 1D": Kind(stack(lambda of: [of.Conv1DTranspose(3, 2, 2), of.Flatten()], STEPS), STEPS),
    "3D": Kind(
        stack(lambda of: [of.Conv3D(3, 2, activation="relu"), of.GlobalAveragePooling3D()], (3, 3, 3, 1)),
        (3, 3, 3, 1),
        chain=True,
    ),
    # Sequences.
    "embedding": Kind(stack(lambda of: [of.Embedding(VOCABULARY, 4), of.GlobalAveragePooling1D()], **ids), TOKENS),
    "simple rnn": Kind(stack(lambda of: [of.SimpleRNN(4)], STEPS), STEPS),
    "lstm": Kind(stack(lambda of: [of.LSTM(4, return_sequences=True), of.LSTM(3)], STEPS), STEPS),
    "gru": Kind(stack(lambda of: [of.GRU(4, return_sequences=True), of.GRU(3, go_backwards=True)], STEPS), STEPS),
    "bidirectional": Kind(stack(lambda of: [of.Bidirectional(of.LSTM(3)), of.Dense(4, "relu")], STEPS), STEPS),
    "time distributed": Kind(stack(lambda of: [of.TimeDistributed(of.Dense(4, "relu")), of.Flatten()], STEPS), STEPS),
    "cells": Kind(stack(lambda of: [of.RNN([of.LSTMCell(3), of.GRUCell(4)])], STEPS), STEPS),
    "convolutional lstm": Kind(stack(lambda of: [of.ConvLSTM2D(2, 2), of.Flatten()], (3, 3, 3, 1)), (3, 3, 3, 1)),
    "masked steps": Kind(stack(lambda of: [of.Masking(), of.GRU(4)], STEPS), STEPS),
    "masked lstm": Kind(graph(masked_lstm, **ids), TOKENS),
    "text convolution": Kind(graph(text_convolution, **ids), TOKENS),
    "encoder and decoder": Kind(graph(encoder_and_decoder, STEPS), STEPS),
    "classes of steps": Kind(
        compiled(stack(lambda of: [of.LSTM(4, return_sequences=True)], STEPS), logits), STEPS, "positions"
    ),
    "transformer": Kind(graph(transformer, **ids), TOKENS),
    "masked transformer": Kind(graph(masked_transformer, **ids), TOKENS),
    "grouped queries": Kind(graph(grouped_queries, **ids), TOKENS, libraries=KERAS),
    "vision transformer": Kind(graph(vision_transformer, IMAGE), IMAGE),
    "mixer": Kind(graph(mixer, STEPS), STEPS),
    # Graphs.
    "residual": Kind(graph(residual)),
    "residual layers": Kind(graph(residual_layers)),
    "residual convolutions": Kind(graph(residual_convolutions, IMAGE), IMAGE),
    "densely connected": Kind(graph(densely_connected)),
    "gated": Kind(graph(gated)),
    "maxout": Kind(graph(maxout)),
    "sliced": Kind(graph(sliced)),
    "operations": Kind(graph(operations), libraries=KERAS),
    "operations of TensorFlow": Kind(graph(operations_of_tensorflow), libraries=("tf_keras",)),
    "constant array": Kind(graph(constant_array), libraries=KERAS),
    "squeeze and excite": Kind(graph(squeeze_and_excite, IMAGE), IMAGE),
    "inception": Kind(graph(inception, IMAGE), IMAGE),
    "u-net": Kind(graph(unet, IMAGE), IMAGE),
    "nested": Kind(graph(nested)),
    "nested twice": Kind(graph(nested_twice)),
    "recursion": Kind(graph(recursion)),
    "siamese": Kind(siamese, {"one": (6,), "other": (6,)}),
    "wide and deep": Kind(wide_and_deep, {"wide": (4,), "deep": (6,)}),
    # Other heads and precisions, and code of one's own.
    "binary": Kind(compiled(stack(probabilities, head=False), "binary_crossentropy"), targets="binary", chain=True),
    "regression": Kind(compiled(stack(autoencoder, head=False), "mse", ()), targets="numbers", chain=True),
    "two outputs": Kind(two_outputs, targets="two"),
    "mixed float16": Kind(in_half_precision("mixed_float16"), chain=True),
    "mixed bfloat16": Kind(in_half_precision("mixed_bfloat16"), libraries=KERAS, chain=True),
    "subclassed": Kind(lambda keras: subclassed(keras, 6), rebuilt=False),
    "own layer": Kind(own_layer, rebuilt=False),
}

QUICK = ("residual",)  # in the default run
CASES = [(name, library) for name, kind in ARCHITECTURES.items() for library in kind.libraries]
EXPORTED = ("keras", "saved_model", "npz")


def test_there_are_enough():
    assert len(ARCHITECTURES) >= 40 and sum(len(kind.libraries) > 1 for kind in ARCHITECTURES.values()) >= 40


@pytest.mark.parametrize(
    ("name", "library"),
    [
        pytest.param(
            *case, marks=() if case[0] in QUICK and case[1] == "keras" else pytest.mark.long, id="-".join(case)
        )
        for case in CASES
    ],
)
def test_a_life(name, library, tmp_path):
    kind, keras = ARCHITECTURES[name], importlib.import_module(library)
    build = lambda: kind.build(keras)  # noqa: E731
    examples, targets = made_up(kind)
    passed = {"model": build, "data": as_data(examples, targets)}

    events = []
    run = lottery.run(TABLES, out=tmp_path, on_event=events.append, **passed)
    counted(run)
    measured(run, build, examples, targets)
    assert not any("not give the same bits" in getattr(event, "text", "") for event in events)
    resumed(run, tmp_path, passed)
    assert {"random_reinit"} < set(run.branch("random_reinit", [2], on_event=quietly, **passed).table()["branch"])
    assert run.verify() == []
    assert run.verify(recompute=True, **passed) == []
    ticket = travelled(run, kind, build, tmp_path)
    exported(ticket, kind, build, tmp_path, examples)
    compacted(ticket, kind, build, examples)


def made_up(kind):
    """Random examples and targets: an array each, or several by name."""
    rng = np.random.default_rng(5)
    total = NUM_TRAIN + NUM_VALIDATION + NUM_TEST

    def examples(shape):
        if shape[0] == IDS:
            return rng.integers(0, VOCABULARY, (total, *shape[1:])).astype(np.int32)
        return rng.normal(size=(total, *shape)).astype(np.float32)

    inputs = kind.inputs
    x = {name: examples(shape) for name, shape in inputs.items()} if isinstance(inputs, dict) else examples(inputs)
    y = {
        "classes": rng.integers(0, 3, total),
        "binary": rng.integers(0, 2, total),
        "numbers": rng.normal(size=(total, 3)).astype(np.float32),
        "positions": rng.integers(0, 3, (total, 5)),
        "two": {"a": rng.integers(0, 3, total), "b": rng.integers(0, 2, total)},
    }[kind.targets]
    return x, y


def parts_of(values, first, last):
    """Examples from `first` to `last`, of an array or of each array by name."""
    return {name: one[first:last] for name, one in values.items()} if isinstance(values, dict) else values[first:last]


def as_data(x, y):
    """The data as `lottery.run` takes them: four arrays, or three data sets where there are several by name."""
    rest = NUM_TRAIN + NUM_VALIDATION
    if not isinstance(x, dict) and not isinstance(y, dict):
        return x[:rest], y[:rest], x[rest:], y[rest:]
    import tensorflow as tf

    places = ((0, NUM_TRAIN), (NUM_TRAIN, rest), (rest, None))
    pairs = [(parts_of(x, *place), parts_of(y, *place)) for place in places]
    return tuple(tf.data.Dataset.from_tensor_slices(pair).batch(10) for pair in pairs)


def counted(run):
    """Counts from the rate alone, and exact zeros in every stored array."""
    masks = [files.read_masks(store.round_path(run.path, 1, index) / "masks.safetensors") for index in range(3)]
    stored = [files.read_arrays(store.round_path(run.path, 1, index) / "weights.safetensors") for index in range(3)]
    assert masks[0] and all(mask.all() for mask in masks[0].values())
    kernels = {name for name, value in stored[0].items() if value.ndim > 1 and name.endswith(("kernel", "embeddings"))}
    frozen = store.read_environment(run.path)["not_pruned"]
    assert kernels - set(frozen) <= set(masks[0])
    for name, mask in masks[0].items():
        left = mask.size
        for index in (1, 2):
            left -= round(Fraction(str(RATE)) * left)
            assert np.count_nonzero(masks[index][name]) == left, (name, index)
            assert not (masks[index][name] & ~masks[index - 1][name]).any()
            assert not stored[index][name][~masks[index][name]].any()
    rows = run.table()
    assert list(rows["num_kept"]) == [sum(int(mask.sum()) for mask in one.values()) for one in masks]


def measured(run, build, x, y):
    """Loss or accuracy on the test set, of a model that is built anew and gets the stored weights."""
    rest = NUM_TRAIN + NUM_VALIDATION
    x, y = parts_of(x, rest, None), parts_of(y, rest, None)
    for index, row in enumerate(run.table().to_dict("records")):
        fresh = build()
        weights.assign(fresh, files.read_arrays(store.round_path(run.path, 1, index) / "weights.safetensors"))
        predicted = fresh.predict(x, verbose=0, batch_size=7)
        if isinstance(y, dict):
            predicted, labels = predicted["a"], y["a"]
        else:
            labels = y
        predicted = np.asarray(predicted, np.float64)
        if labels.dtype.kind == "f":
            record = store.read_record(store.round_path(run.path, 1, index))
            assert record["final_test_loss"] == pytest.approx(np.mean((predicted - labels) ** 2), rel=1e-4)
            assert np.isnan(row["final_test_accuracy"])
            continue
        classes = predicted[:, 0] > 0.5 if predicted.shape[-1] == 1 else predicted.argmax(-1)
        assert row["final_test_accuracy"] == pytest.approx(np.mean(classes == labels), abs=1e-6)


def resumed(run, out, passed):
    """Stop after a round and go on: the same run, and the same bits."""
    whole = final_bits(run.path)
    shutil.rmtree(store.round_path(run.path, 1, 2))
    again = lottery.run(TABLES, out=out, on_event=quietly, **passed)
    assert again.path == run.path and final_bits(run.path) == whole


def travelled(run, kind, build, folder):
    """The ticket of the last round through a file into a model: every bit of the stored weights."""
    path = run.ticket(round=2).save(folder / "ticket.safetensors")
    ticket = lottery.tickets.load(path)
    stored = files.read_arrays(store.round_path(run.path, 1, 2) / "weights.safetensors")
    if kind.rebuilt:
        models = [ticket.model(trained=True)]
    else:
        with pytest.raises(TicketError, match="only its own code can build") as caught:
            ticket.model()
        assert "\n" not in str(caught.value)
        models = []
    fresh = build()
    ticket.apply(fresh, trained=True)
    for model in [*models, fresh]:
        found = weights.read_state(model)
        names = [name for name in found if not weights.is_random_state(name)]
        assert sorted(names) == sorted(name for name in stored if not weights.is_random_state(name))
        assert all(np.array_equal(found[name], stored[name]) for name in names)
    return ticket


def with_weights(ticket, kind, build):
    if kind.rebuilt:
        return ticket.model(trained=True)
    model = build()
    ticket.apply(model, trained=True)
    return model


def exported(ticket, kind, build, folder, x):
    """Each format, and what TensorFlow Lite takes; each is opened again and compared by `export` itself."""
    few, model = parts_of(x, 0, 8), with_weights(ticket, kind, build)
    rounding = 0.05 if any("16" in layer.compute_dtype for layer in model.layers) else 1e-5
    for form in EXPORTED:
        if form == "keras" and not kind.rebuilt:
            continue  # Keras needs the code to load it
        done = exporting.export(model, ticket.masks, folder / exporting.EXPORTS[form].file, form, few)
        assert done.difference <= rounding and (done.zeros_checked or form == "saved_model")
    single = kind.rebuilt and not isinstance(few, dict) and kind.targets != "two"
    if single:
        try:
            done = exporting.export(model, ticket.masks, folder / "model.tflite", "tflite", few)
        except LotteryError as error:
            assert "\n" not in str(error) and "tflite" in str(error).lower()
        else:
            assert done.difference <= rounding


def compacted(ticket, kind, build, x):
    model = with_weights(ticket, kind, build)
    if not kind.chain:
        with pytest.raises(LotteryError, match="a chain has one input|pass|strip") as caught:
            compaction.compact(model)
        assert "\n" not in str(caught.value)
        return
    small, few = compaction.compact(model), parts_of(x, 0, 8)
    assert all(after <= before for before, after in small.units.values())
    assert outputs.largest_difference(model, small.model, few) < 1e-3
