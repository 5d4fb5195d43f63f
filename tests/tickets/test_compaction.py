"""Compaction against the masked network itself, against NumPy, and against a search of the graph of its weights."""

import itertools
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lottery import data, masks, pruning, tickets, weights
from lottery.cli import tickets as ticket_commands
from lottery.errors import LotteryError
from lottery.models import networks, outputs
from lottery.models.graph import ACTIVATIONS
from lottery.pruning import one_shot
from lottery.tickets import compaction, timing

LIBRARIES = ("keras", "tf_keras")
TOLERANCE = 1e-5


@pytest.fixture(params=LIBRARIES)
def keras(request):
    return pytest.importorskip(request.param)


def sequential(keras, shape, *layers):
    return keras.Sequential([keras.layers.InputLayer(shape), *layers])


def randomise(model, density, seed=0):
    """Masks by chance, and biases and statistics as training leaves them: not zero, some of gamma's entries zero."""
    rng = np.random.default_rng(seed)
    values = {}
    for name, value in weights.read_state(model).items():
        own = name.rsplit("/", 1)[-1]
        if own == "kernel":
            values[name] = rng.normal(size=value.shape) * (rng.random(value.shape) < density)
        elif own in ("moving_variance", "gamma"):
            values[name] = rng.uniform(0.5, 1.5, value.shape) * (own != "gamma" or rng.random(value.shape) < 0.8)
        elif own in ("bias", "beta", "moving_mean", "alpha"):
            values[name] = rng.normal(size=value.shape)
    weights.assign(model, {name: value.astype(weights.read_state(model)[name].dtype) for name, value in values.items()})
    return model


def example(model, num_examples=16, seed=1):
    return np.random.default_rng(seed).normal(size=(num_examples, *model.input_shape[1:])).astype("float32")


def difference(model, compacted, x=None):
    """The largest difference of the outputs, to the largest output."""
    x = example(model) if x is None else x
    before, after = model(x, training=False), compacted.model(compacted.select(x), training=False)
    return float(np.max(np.abs(before - after)) / np.max(np.abs(before)))


def after(compacted):
    return [now for _, now in compacted.units.values()]


def assign(model, **values):
    """Weights by their stable names, `__` for the slash."""
    weights.assign(model, {name.replace("__", "/"): np.asarray(value, "float32") for name, value in values.items()})
    return model


CONV = st.fixed_dictionaries(
    {
        "padding": st.sampled_from(["valid", "same"]),
        "size": st.sampled_from([1, 2, 3]),
        "strides": st.sampled_from([1, 1, 2]),
        "use_bias": st.booleans(),
        "norm": st.sampled_from(["", "", "BatchNormalization", "plain"]),
        "activation": st.sampled_from(["relu", "sigmoid", "PReLU", "LeakyReLU", "softmax"]),
        "then": st.sampled_from(["", "", "MaxPooling2D", "AveragePooling2D", "ZeroPadding2D", "Dropout"]),
    }
)
DENSE = st.fixed_dictionaries(
    {"activation": st.sampled_from(["relu", "tanh", "gelu", "softmax"]), "use_bias": st.booleans()}
)


def chain(keras, convolutions, flat, denses):
    layers = keras.layers
    stack = [layers.Reshape((7, 6, 2))]
    for one in convolutions:
        stack.append(layers.Conv2D(4, one["size"], one["strides"], padding=one["padding"], use_bias=one["use_bias"]))
        if one["norm"]:
            stack.append(
                layers.BatchNormalization(**({"scale": False, "center": False} if one["norm"] == "plain" else {}))
            )
        name = one["activation"]
        stack.append(getattr(layers, name)() if name[0].isupper() else layers.Activation(name))
        if one["then"] == "ZeroPadding2D":
            stack.append(layers.ZeroPadding2D(1))
        elif one["then"]:
            stack.append(
                layers.Dropout(0.5) if one["then"] == "Dropout" else getattr(layers, one["then"])(2, padding="same")
            )
    stack.append(getattr(layers, flat)())
    stack += [layers.Dense(5, **one) for one in denses]
    return sequential(keras, (7, 12), *stack, layers.Dense(3))


@pytest.mark.parametrize("library", LIBRARIES)
@given(
    convolutions=st.lists(CONV, min_size=1, max_size=2),
    flat=st.sampled_from(["Flatten", "Flatten", "GlobalAveragePooling2D", "GlobalMaxPooling2D"]),
    denses=st.lists(DENSE, max_size=2),
    density=st.sampled_from([0.03, 0.08, 0.2, 0.5]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=15, deadline=None)
def test_any_chain_computes_the_same_and_cannot_be_made_smaller_again(
    library, convolutions, flat, denses, density, seed
):
    keras = pytest.importorskip(library)
    try:
        model = chain(keras, convolutions, flat, denses)
    except ValueError:  # the image is too small for the windows
        return
    compacted = compaction.compact(randomise(model, density, seed))
    assert difference(model, compacted) < TOLERANCE
    assert compacted.multiply_adds[1] <= compacted.multiply_adds[0]
    again = compaction.compact(compacted.model)
    assert again.units == {name: (now, now) for name, (_, now) in compacted.units.items()}
    np.testing.assert_array_equal(again.unread, compacted.unread)


def paths(kernels):
    """The nodes of a Dense chain on a path from an input to an output, by a search from node to node."""
    ahead, back = {}, {}
    for layer, kernel in enumerate(kernels):
        for source, target in zip(*np.nonzero(kernel), strict=True):
            ahead.setdefault((layer, source), []).append((layer + 1, target))
            back.setdefault((layer + 1, target), []).append((layer, source))

    def search(starts, edges):
        seen, waiting = set(starts), list(starts)
        while waiting:
            for node in edges.get(waiting.pop(), []):
                if node not in seen:
                    seen.add(node)
                    waiting.append(node)
        return seen

    inputs = [(0, unit) for unit in range(kernels[0].shape[0])]
    outputs = [(len(kernels), unit) for unit in range(kernels[-1].shape[1])]
    return search(inputs, ahead) & search(outputs, back)


@pytest.mark.parametrize(("density", "seed"), [*itertools.product((0.005, 0.02, 0.1), (0, 1))])
def test_a_compacted_dense_chain_keeps_the_units_on_a_path(keras, density, seed):
    sizes = (30, 20, 16, 12, 4)
    model = sequential(keras, (5, 6), keras.layers.Flatten(), *(keras.layers.Dense(n, "relu") for n in sizes[1:]))
    randomise(model, density, seed)
    kernels = [value for name, value in weights.read(model).items()]
    weights.assign(model, {n: np.zeros_like(v) for n, v in weights.read_state(model).items() if n.endswith("bias")})
    compacted = compaction.compact(model, drop_inputs=True)
    found = paths(kernels)
    counts = [sum(node[0] == layer for node in found) for layer in range(len(sizes))]
    assert after(compacted) == [*(max(1, count) for count in counts[1:-1]), 4]
    read = {unit for layer, unit in found if layer == 0}
    np.testing.assert_array_equal(compacted.unread.ravel(), [unit not in read for unit in range(30)])
    np.testing.assert_array_equal(compacted.inputs, sorted(read) or [0])
    left = [max(1, counts[0]), *after(compacted)]
    assert compacted.multiply_adds[1] == sum(a * b for a, b in itertools.pairwise(left))
    assert compacted.num_parameters[1] == sum((a + 1) * b for a, b in itertools.pairwise(left))
    assert compacted.num_parameters[0] == sum((a + 1) * b for a, b in itertools.pairwise(sizes))
    x = example(model)
    assert np.abs(model(x) - compacted.model(compacted.select(x))).max() < 1e-5


def test_a_constant_goes_into_the_next_bias_and_an_unread_unit_goes(keras):
    dense = keras.layers.Dense
    model = sequential(keras, (3,), dense(4, "tanh"), dense(2, name="head"))
    first = [[1, 0, 0, 2], [0, 0, -0.0, 0], [3, 0, 1, 0]]  # the second unit reads nothing
    second = [[1, 2], [3, 4], [0, -0.0], [5, 6]]  # nothing reads the third
    assign(model, dense__kernel=first, dense__bias=[0.1, 0.7, 0.3, 0.4], head__kernel=second, head__bias=[10, 20])
    state, written = weights.read_state(model), model.get_config()
    model.compile("sgd", "mse")
    compacted = compaction.compact(model)
    assert compacted.units == {"dense": (4, 2), "head": (2, 2)}
    values = weights.read_state(compacted.model)
    np.testing.assert_array_equal(values["dense/kernel"], np.array([[1, 2], [0, 0], [3, 0]], "float32"))
    np.testing.assert_array_equal(values["dense/bias"], np.array([0.1, 0.4], "float32"))
    np.testing.assert_array_equal(values["head/kernel"], np.array([[1, 2], [5, 6]], "float32"))
    constant = np.tanh(np.float64(np.float32(0.7)))
    np.testing.assert_array_equal(values["head/bias"], np.array([10 + 3 * constant, 20 + 4 * constant], "float32"))
    np.testing.assert_array_equal(compacted.unread, [False, True, False])
    assert "array" not in repr(compacted)
    assert compacted.multiply_adds == (20, 10)
    assert difference(model, compacted) < TOLERANCE
    # The model is as it was, and what was made is another of the same library.
    assert type(compacted.model) is type(model) and getattr(compacted.model, "optimizer", None) is None
    assert [layer.name for layer in compacted.model.layers] == [layer.name for layer in model.layers]
    assert model.get_config() == written
    for name, value in weights.read_state(model).items():
        if name in state:
            assert value.tobytes() == state[name].tobytes()


def test_a_bias_is_switched_on_only_for_what_is_not_zero(keras):
    dense = keras.layers.Dense
    for bias, has_bias in ((0.5, True), (-0.5, False)):
        model = sequential(keras, (2,), dense(3, "relu"), dense(2, use_bias=False))
        assign(model, dense__kernel=[[1, 0, 2], [1, 0, 3]], dense__bias=[1, bias, 1])
        compacted = compaction.compact(model)
        assert after(compacted) == [2, 2]
        assert compacted.model.layers[-1].use_bias is has_bias
        assert difference(model, compacted) < TOLERANCE


@pytest.mark.parametrize("bias", [200, 1000])
def test_a_constant_beyond_all_numbers_stays(keras, bias):
    model = sequential(keras, (2,), keras.layers.Dense(3, "exponential"), keras.layers.Dense(2, "sigmoid"))
    assign(
        model, dense__kernel=[[1, 0, 2], [1, 0, 3]], dense__bias=[1, bias, 1], dense_1__kernel=[[1, 1], [1, 0], [1, 1]]
    )
    compacted = compaction.compact(model)
    assert after(compacted) == [3, 2]
    outputs = np.asarray(model(example(model)))
    np.testing.assert_array_equal(compacted.model(example(model)), outputs)
    assert (outputs[:, 0] == 1).all() and np.isnan(outputs[:, 1]).all()


def test_models_without_finite_outputs_are_refused(keras, monkeypatch):
    model = randomise(sequential(keras, (3,), keras.layers.Dense(4, "relu"), keras.layers.Dense(2)), 1)
    for broken in (np.nan, np.inf):
        assign(model, dense_1__bias=[broken, broken])
        with pytest.raises(LotteryError, match="outputs of the model .* are NaN or infinite, so there is nothing to"):
            compaction.compact(model)
    assign(model, dense_1__bias=[1, np.nan])
    assert after(compaction.compact(model)) == [4, 2]
    monkeypatch.setattr(
        compaction.chain, "set_values", lambda layer, values: layer.set_weights([*map(np.nan_to_num, values)])
    )
    with pytest.raises(LotteryError, match="compacted model does not compute what .* by inf of the largest"):
        compaction.compact(model)


@pytest.mark.parametrize(
    ("constant", "padding", "size", "zeros", "left"),
    [
        (0.5, "same", 3, 0, 3),
        (0.5, "valid", 3, 1, 3),
        (0.5, "valid", 3, 0, 2),
        (0.5, "same", 1, 0, 2),
        (-0.5, "same", 3, 1, 2),
    ],
)
def test_a_constant_that_meets_padding_stays_unless_it_is_zero(keras, constant, padding, size, zeros, left):
    layers = keras.layers
    stack = [layers.Conv2D(3, 2, activation="relu"), layers.AveragePooling2D(2, 1), layers.ZeroPadding2D(zeros)]
    model = sequential(keras, (6, 6, 2), *stack, layers.Conv2D(2, size, padding=padding))
    randomise(model, 1)
    kernel = weights.read(model)["conv2d/kernel"]
    kernel[..., 1] = 0
    assign(model, conv2d__kernel=kernel, conv2d__bias=[0.1, constant, 0.2])
    compacted = compaction.compact(model)
    assert after(compacted) == [left, 2]
    assert difference(model, compacted) < TOLERANCE


def test_inputs_of_a_constant_channel_are_dropped_even_if_it_stays(keras):
    layers = keras.layers
    stack = [layers.Conv2D(3, 1), layers.Conv2D(2, 1), layers.BatchNormalization(), layers.Conv2D(1, 3, padding="same")]
    model = randomise(sequential(keras, (5, 5, 2), *stack), 1)
    kernel = weights.read(model)["conv2d_1/kernel"]
    kernel[0, 0, 0, 0] = 0  # so that only the constant channel reads the first one
    assign(model, conv2d_1__kernel=kernel, batch_normalization__gamma=[1, 0], batch_normalization__beta=[0, 5])
    compacted = compaction.compact(model)
    assert after(compacted) == [2, 2, 1]
    assert difference(model, compacted) < TOLERANCE


@pytest.mark.parametrize("center", [True, False])
def test_a_channel_without_scale_is_a_constant(keras, center):
    layers = keras.layers
    stack = [layers.Conv2D(4, 3, use_bias=False), layers.BatchNormalization(center=center), layers.ReLU()]
    stack += [layers.MaxPooling2D(), layers.Flatten(), layers.Dense(5, "relu", use_bias=False), layers.Dense(2)]
    model = randomise(sequential(keras, (8, 8, 1), *stack), 1)
    assign(model, batch_normalization__gamma=[0, 1, 0, 1])
    compacted = compaction.compact(model)
    assert after(compacted) == [2, 5, 2]
    assert compacted.model.layers[-2].use_bias is bool(
        center and np.any(weights.read_state(model)["batch_normalization/beta"][::2] > 0)
    )
    assert difference(model, compacted) < TOLERANCE


@pytest.mark.parametrize("shape", [(-1,), (144,)])
def test_a_reshape_to_a_vector_has_the_entries_that_are_left(keras, shape):
    layers = keras.layers
    stack = [layers.Conv2D(4, 3, use_bias=False), layers.Reshape(shape), layers.Dense(2)]
    model = randomise(sequential(keras, (8, 8, 1), *stack), 1)
    kernel = weights.read(model)["conv2d/kernel"]
    kernel[..., [0, 2]] = 0
    assign(model, conv2d__kernel=kernel)
    compacted = compaction.compact(model)
    assert after(compacted) == [2, 2]
    assert difference(model, compacted) < TOLERANCE


def test_constants_are_folded_through_entrywise_activations_only(keras):
    import tensorflow as tf

    def own(x):
        return x / 2

    named = [name for name, facts in ACTIVATIONS.items() if facts.is_entrywise and hasattr(keras.activations, name)]
    assert len(named) > 10
    layers = keras.layers
    folded = [*named, None, tf.nn.relu, tf.nn.leaky_relu, layers.LeakyReLU()]
    for activation, left in [*((one, 2) for one in folded), *((one, 3) for one in ("softmax", own, lambda x: x + 1))]:
        dense = layers.Dense(3, activation)
        model = randomise(sequential(keras, (3,), dense, layers.Dense(2)), 1)
        kernel = weights.read(model)["dense/kernel"]
        kernel[:, 1] = 0
        assign(model, dense__kernel=kernel)
        compacted = compaction.compact(model)
        assert after(compacted) == [left, 2], activation
        assert difference(model, compacted) < TOLERANCE, activation
        assert compacted.model.layers[0].activation is dense.activation


def test_layers_with_weights_by_unit_and_by_position(keras):
    """PReLU after Flatten and before it, BatchNorm after Flatten; a constant that differs by position."""
    layers = keras.layers
    stack = [
        layers.Conv2D(5, 2),
        layers.PReLU(),
        layers.Conv2D(4, 2),
        layers.PReLU(shared_axes=(1, 2)),
        layers.Flatten(),
    ]
    stack += [layers.BatchNormalization(), layers.PReLU(), layers.Dense(6, use_bias=False), layers.Dense(2)]
    model = randomise(sequential(keras, (5, 5, 1), *stack), 1)
    kernels = weights.read(model)
    kernels["conv2d/kernel"][..., :2] = 0
    kernels["conv2d_1/kernel"][..., 2] = 0
    weights.assign(model, kernels)
    assign(model, conv2d__bias=[1, -1, 1, 1, 1])  # the slopes of the second differ by position
    compacted = compaction.compact(model)
    assert after(compacted) == [4, 3, 6, 2]
    assert difference(model, compacted) < TOLERANCE


def test_other_shapes_than_images(keras):
    layers = keras.layers
    stack = [
        layers.Conv1D(6, 3, padding="causal", activation="relu"),
        layers.SpatialDropout1D(0.5),
        layers.Dense(5, "elu"),
    ]
    stack += [
        layers.Conv1D(4, 2, dilation_rate=2),
        layers.MaxPooling1D(2),
        layers.GlobalAveragePooling1D(),
        layers.Dense(2),
    ]
    volume = [
        layers.Conv3D(4, 2, activation="sigmoid"),
        layers.AveragePooling3D(2),
        layers.Conv3D(3, 1),
        layers.Flatten(),
    ]
    for model in (
        sequential(keras, (12, 3), *stack),
        sequential(keras, (5, 5, 5, 1), *volume, layers.Dense(2)),
    ):
        compacted = compaction.compact(randomise(model, 0.15, 3))
        assert sum(after(compacted)) < sum(before for before, _ in compacted.units.values())
        assert difference(model, compacted) < TOLERANCE


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_a_collapsed_layer_keeps_one_unit(keras, empty):
    dense = keras.layers.Dense
    model = randomise(sequential(keras, (6,), dense(5, "relu"), dense(4, "sigmoid"), dense(3)), 1, 4)
    name = list(weights.read(model))[empty]
    assign(model, **{name.replace("/", "__"): 0 * weights.read(model)[name]})
    for drop in (False, True):
        compacted = compaction.compact(model, drop_inputs=drop)
        assert after(compacted) == [1, 1, 3]
        assert compacted.unread.all() and compacted.input_shape == ((1,) if drop else (6,))
        assert difference(model, compacted) < TOLERANCE


def prefixes(keras):
    layers = keras.layers
    rescaling = [layers.Rescaling(1 / 3, -0.5), layers.Rescaling([1.0, 2.0], [[0.5, -0.5]])]
    normalised = layers.Normalization(axis=(1, 2), mean=[[1.0, 2], [3, 4], [5, 6]], variance=[[1.0, 4], [9, 1], [4, 9]])
    adapted = layers.Normalization(axis=-1)
    adapted.adapt(np.random.default_rng(5).normal(3, 2, (40, 3, 2)))
    return {
        "plain": [layers.Flatten()],
        "rescaled": [*rescaling, layers.Reshape((6,))],
        "normalised": [normalised, layers.Reshape((2, 3)), layers.Flatten(), layers.Dropout(0.3)],
        "adapted": [adapted, layers.Flatten()],
        "trained": [layers.BatchNormalization(), layers.PReLU(shared_axes=(1,)), layers.Flatten(), layers.ReLU(5.0)],
    }


@pytest.mark.parametrize("name", ["plain", "rescaled", "normalised", "adapted", "trained"])
def test_inputs_that_nothing_reads_are_dropped(keras, name):
    dense = keras.layers.Dense
    model = randomise(sequential(keras, (3, 2), *prefixes(keras)[name], dense(4, "tanh"), dense(2)), 1, 7)
    kernel = weights.read(model)["dense/kernel"]
    kernel[[0, 3, 4]] = 0
    assign(model, dense__kernel=kernel)
    whole = compaction.compact(model)
    assert whole.input_shape == (3, 2) and whole.inputs.size == 6 and difference(model, whole) < TOLERANCE
    x = example(model)
    assert whole.select(x) is x
    compacted = compaction.compact(model, drop_inputs=True)
    np.testing.assert_array_equal(compacted.unread, [[True, False], [False, True], [True, False]])
    np.testing.assert_array_equal(compacted.select(x), x.reshape(16, 6)[:, [1, 2, 5]])
    assert compacted.input_shape == (3,) and difference(model, compacted) < TOLERANCE
    with pytest.raises(LotteryError, match=r"shape \(3, 2\), as before compaction, not \(6,\)"):
        compacted.select(x.reshape(16, 6))


def test_units_before_a_softmax_count_as_read(keras):
    dense = keras.layers.Dense
    for activation in ("softmax", keras.layers.Softmax()):
        stack = [dense(3, activation)] if isinstance(activation, str) else [dense(3), activation]
        model = sequential(keras, (3,), *stack, dense(2))
        assign(model, dense__kernel=np.eye(3), dense_1__kernel=[[1, 2], [0, 0], [3, 4]])
        compacted = compaction.compact(model, drop_inputs=True)
        assert not compacted.unread.any() and after(compacted) == [3, 2]
        assert difference(model, compacted) < TOLERANCE


def test_unread_pixels_of_a_convolution_are_reported(keras):
    layers = keras.layers
    model = sequential(
        keras, (6, 6, 1), layers.ZeroPadding2D(1), layers.Conv2D(1, 1, 2), layers.Flatten(), layers.Dense(1)
    )
    rows = np.ones((16, 1))
    rows[5] = 0  # the pixel that only this place of the map looks at
    assign(model, conv2d__kernel=[[[[2]]]], dense__kernel=rows)
    unread = np.ones((6, 6, 1), dtype=bool)
    unread[1::2, 1::2] = False
    unread[1, 1] = True
    np.testing.assert_array_equal(compaction.compact(model).unread, unread)
    with pytest.raises(LotteryError, match="drop_inputs must be False.*'conv2d.*single entries cannot be left out"):
        compaction.compact(model, drop_inputs=True)
    padded = sequential(keras, (6, 1), layers.ZeroPadding1D(1), layers.Flatten(), layers.Dense(1))
    with pytest.raises(LotteryError, match="drop_inputs must be False.*zero_padding1d.*one entry at a time"):
        compaction.compact(padded, drop_inputs=True)


def refused(keras):
    layers = keras.layers
    x = keras.Input((4, 4, 2))
    small = keras.Input((4,))
    shared = layers.Dense(4, name="twice")
    inner = sequential(keras, (4,), layers.Dense(4))

    class Own(keras.Model):
        pass

    def flat(*stack):
        return sequential(keras, (4, 4, 2), *stack)

    return {
        "branches: the layer 'add.* takes 2 inputs": keras.Model(small, layers.Add()([small, layers.Dense(4)(small)])),
        "uses the layer 'twice' more than once": keras.Model(small, shared(shared(small))),
        r"\((Sequential|Functional)\), which is not known here": sequential(keras, (4,), inner, layers.Dense(2)),
        r"\(DepthwiseConv2D\), which is not known here": flat(layers.DepthwiseConv2D(2)),
        r"\(SeparableConv2D\), which": flat(layers.SeparableConv2D(2, 2)),
        "with 2 groups, where only 1": flat(layers.Conv2D(4, 2, groups=2)),
        "channels first, where only channels_last": flat(layers.Flatten(data_format="channels_first"), layers.Dense(2)),
        "over the axis .*1.*, where only the last": flat(layers.Conv2D(3, 2), layers.BatchNormalization(axis=1)),
        r"\(Reshape\) after the first weights": flat(layers.Conv2D(3, 2), layers.Reshape((9, 3)), layers.Dense(2)),
        "with the argument 'training'": keras.Model(small, layers.Dropout(0.5)(layers.Dense(4)(small), training=True)),
        "has 1 inputs and 2 outputs": keras.Model(x, [layers.Conv2D(2, 1)(x), layers.Conv2D(2, 1)(x)]),
        "is of a class of its own, Own, ": Own(small, layers.Dense(2)(small)),
        "has no Dense and no convolution": flat(layers.BatchNormalization()),
        "has an open dimension": sequential(keras, (None, 3), layers.Conv1D(2, 1)),
        "is not built": keras.Sequential([layers.Dense(2)]),
    }


def test_networks_that_are_no_chain_are_refused_with_the_layer(keras):
    for sentence, model in refused(keras).items():
        with pytest.raises(LotteryError, match=sentence):
            compaction.compact(model)


def test_wrappers_of_tfmot_are_refused_until_they_are_stripped():
    keras = pytest.importorskip("tf_keras")
    from lottery import masks
    from lottery.enforcement import tfmot

    model = sequential(keras, (4,), keras.layers.Dense(3), keras.layers.Dense(2))
    wrapped = tfmot.wrap(model, masks.ones_like(weights.read(model)))
    with pytest.raises(LotteryError, match=r"'dense|'prune_low_magnitude.*lottery\.enforcement\.tfmot\.strip"):
        compaction.compact(wrapped)
    assert difference(model, compaction.compact(tfmot.strip(wrapped))) < TOLERANCE


def test_a_functional_chain_keeps_its_kind_types_and_functions(keras):
    layers = keras.layers
    first = keras.Input((4, 4), dtype="uint8", name="image")
    x = layers.Dense(6, lambda x: x * 2, name="mine", kernel_regularizer="l2")(
        layers.Flatten()(layers.Rescaling(0.01)(first))
    )
    x = layers.Dense(5, "relu", kernel_initializer="he_normal")(x)
    model = randomise(keras.Model(first, layers.Dense(3)(x), name="given"), 0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compacted = compaction.compact(model, drop_inputs=True)
    small = compacted.model
    assert type(small) is type(model) and small.name == "given"
    assert small.input_shape == (None, *compacted.input_shape) and "uint8" in str(small.inputs[0].dtype)
    assert [layer.name for layer in small.layers if layer.get_weights()] == [
        layer.name for layer in model.layers if layer.get_weights()
    ]
    assert small.get_layer("mine").kernel_regularizer is not None
    x = np.random.default_rng(0).integers(0, 256, (16, 4, 4)).astype("uint8")
    assert compacted.select(x).dtype == np.uint8
    assert difference(model, compacted, x) < TOLERANCE


def test_a_compacted_model_can_be_saved_and_loaded(keras, tmp_path):
    layers = keras.layers
    norm = layers.Normalization(axis=-1, mean=[1.0] * 4, variance=[4.0] * 4)
    model = randomise(sequential(keras, (4,), norm, layers.Dense(6, "relu"), layers.Dense(3)), 0.4)
    compacted = compaction.compact(model, drop_inputs=True)
    compacted.model.save(tmp_path / "small.keras")
    loaded = keras.models.load_model(tmp_path / "small.keras")
    assert outputs.largest_difference(compacted.model, loaded, compacted.select(example(model))) == 0


@pytest.mark.parametrize(("dtype", "least"), [("float64", 1e-13), ("mixed_float16", 5e-3)])
def test_other_precisions(keras, dtype, least):
    """In double precision it shows that constants are computed in it."""
    layers = keras.layers
    stack = [
        layers.Conv2D(6, 3, dtype=dtype),
        layers.BatchNormalization(dtype=dtype),
        layers.Activation("gelu", dtype=dtype),
    ]
    stack += [layers.Flatten(dtype=dtype), layers.Dense(4, "tanh", dtype=dtype), layers.Dense(2, dtype=dtype)]
    model = randomise(sequential(keras, (4, 4, 1), *stack), 0.1, 2)
    compacted = compaction.compact(model)
    assert sum(after(compacted)) < 10
    x = example(model)
    before, now = (np.asarray(one(x, training=False), "float64") for one in (model, compacted.model))
    assert np.abs(before - now).max() <= least * np.abs(before).max()


@pytest.mark.parametrize("name", ["lenet_300_100", "conv_2"])
def test_the_digits(keras, name):
    splits = data.load(data.Data(name="digits", validation=137))
    x = splits.test.x.astype("float32") / 16
    model = randomise(networks.builder(name, x.shape[1:], 10, keras.__name__)(), 1)
    dense = weights.read(model)
    kept = one_shot.prune(model, sparsity=0.99)
    weights.assign(model, {key: np.where(kept[key], value, 0) for key, value in dense.items()})
    compacted = compaction.compact(model)
    assert compacted.num_parameters[1] < 0.5 * compacted.num_parameters[0]
    assert outputs.largest_difference(model, compacted.model, x) < TOLERANCE


def broken_network(keras):
    layers = keras.layers
    stack = [layers.Conv2D(4, 3, activation="sigmoid"), layers.Conv2D(3, 3, padding="same", activation="sigmoid")]
    stack += [layers.Flatten(), layers.Dense(4, "relu"), layers.Dense(2)]
    model = randomise(sequential(keras, (6, 6, 1), *stack), 1, 5)
    kernels = weights.read(model)
    kernels["conv2d/kernel"][..., 0] = 0
    kernels["conv2d_1/kernel"][..., 2] = 0
    kernels["conv2d_1/kernel"][:, :, 1] = 0
    return assign(model, **{name.replace("/", "__"): value for name, value in kernels.items()})


def forget_constants(one, following, original=compaction.fold_constants):
    before = following.bias.copy()
    original(one, following)
    following.bias[:] = before


BUGS = {
    "a constant is not folded": (compaction, "fold_constants", forget_constants),
    "zero padding is overlooked": (compaction, "_sees_padding", lambda layer: False),
    "flattened by channel, not by position": (np, "resize", lambda kept, size: np.repeat(kept, size // kept.size)),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_seen_by_the_comparison_and_by_compact_itself(keras, bug, monkeypatch):
    model = broken_network(keras)
    sound = compaction.compact(model)
    assert difference(model, sound) < TOLERANCE
    assert after(sound) == [3, 2, 4, 2]
    monkeypatch.setattr(*BUGS[bug])
    with pytest.raises(LotteryError, match="compacted model does not compute what"):
        compaction.compact(model)
    monkeypatch.setattr(compaction, "_check", lambda *given: None)
    assert difference(model, compaction.compact(model)) > 1e-3


@pytest.fixture
def counted(monkeypatch):
    """A clock that only calls advance, by 0.1 ms for each parameter and example; and the models that were called."""
    now, called = [0.0], []

    def traced(model, _):
        def call(inputs):
            called.append(model.name)
            now[0] += 1e-4 * model.count_params() * len(inputs)
            return inputs

        return call

    monkeypatch.setattr(timing, "traced_call", traced)
    return lambda: now[0], called


def test_latency_is_that_of_a_call_and_models_take_turns(counted):
    clock, called = counted
    keras = pytest.importorskip("keras")
    calls = {"long": (5000, 1), "short": (10, 5), "other": (25, 2)}  # inputs, and calls that take 5 ms
    models = {
        name: keras.Sequential([keras.Input((size,)), keras.layers.Dense(1, use_bias=False)], name=name)
        for name, (size, _) in calls.items()
    }
    inputs = {name: np.ones((1, size)) for name, (size, _) in calls.items()}
    seconds = timing.latency(models, inputs, 4, clock)
    assert seconds == pytest.approx({"long": 0.5, "short": 0.001, "other": 0.0025})
    # Each is tried out first. Then they take turns, of which one call is not measured.
    turns = ("long short other", "short other long", "other long short", "long short other")
    trials = [name for name in models for _ in range(4)]
    assert called == trials + [name for turn in turns for name in turn.split() for _ in range(1 + calls[name][1])]


def test_latency_calls_what_was_traced_once(keras):
    from collections import Counter

    ran = Counter()

    class Counting(keras.layers.Layer):
        def call(self, x):
            ran[self.name] += 1
            return 2 * x

    pair = {name: sequential(keras, (size,), Counting(name=name)) for name, size in (("large", 30), ("small", 2))}
    for model in pair.values():
        model.add(keras.layers.Dense(1))
    before = dict(ran)
    inputs = {"large": np.ones((64, 30), "float32"), "small": np.ones((64, 2))}
    seconds = timing.latency(pair, inputs, 2)
    assert seconds.keys() == pair.keys() and min(seconds.values()) > 0
    assert {name: ran[name] - before[name] for name in pair} == {"large": 1, "small": 1}
    assert timing.latency({"one": pair["small"]}, inputs["small"], 1)["one"] > 0
    for arguments, sentence in [
        ((pair, {"large": inputs["large"]}), "no inputs for 'small' among those by name: large"),
        ((pair, inputs, 0), "num_turns must be 1 or more, not 0"),
        (({"small": pair["small"]}, inputs["large"]), "'small' cannot be timed on the example"),
        (({}, inputs["large"]), "models must be a dict of one model or more, by name"),
        (({}, {}), "models must be a dict of one model or more"),
        (([pair["small"]], inputs["small"]), "models must be a dict of one model or more"),
    ]:
        with pytest.raises(LotteryError, match=sentence):
            timing.latency(*arguments)


def test_a_benchmark_compacts_compares_and_times(keras, counted, monkeypatch):
    clock, _ = counted
    model = randomise(sequential(keras, (5, 6), keras.layers.Flatten(), *map(keras.layers.Dense, (8, 3))), 0.1)
    x = example(model, 1200)
    found = timing.benchmark(model, x, True, 3, clock)
    assert found.compacted.inputs.size < 30 and found.compacted.units == compaction.compact(model).units
    assert found.difference < TOLERANCE
    assert found.seconds.keys() == {1, 1000}
    for num, pair in found.seconds.items():
        assert pair == pytest.approx([1e-4 * num * one for one in found.compacted.num_parameters])
    few = timing.benchmark(model, x[:7], num_turns=1, clock=clock)
    assert few.seconds.keys() == {1, 7} and few.compacted.inputs.size == 30
    unknown = timing.benchmark(model, num_turns=1, clock=clock)
    assert unknown.seconds.keys() == {1, 1000} and unknown.difference < TOLERANCE
    with pytest.raises(LotteryError, match=r"shape \(5, 6\), as before compaction, not \(6,\)"):
        timing.benchmark(model, x[:, 0])
    with pytest.raises(LotteryError, match="are empty, so there is nothing to compare"):
        timing.benchmark(model, x[:0])
    grey = randomise(sequential(keras, (4, 4, 1), keras.layers.Conv2D(2, 3), keras.layers.Flatten()), 0.5)
    without_channel = timing.benchmark(grey, example(grey)[..., 0], num_turns=1, clock=clock)
    assert without_channel.difference < TOLERANCE  # Keras takes such examples, too
    small = found.compacted.model
    small.set_weights([*small.get_weights()[:-1], small.get_weights()[-1] + [0, 1, 0]])
    monkeypatch.setattr(compaction, "compact", lambda *given: found.compacted)
    apart = timing.benchmark(model, x, True, 1, clock).difference
    assert apart == pytest.approx(difference(model, found.compacted, x)) and apart > 0.01


# The command


def test_a_ticket_of_two_inputs_is_refused_with_a_sentence(keras, tmp_path, monkeypatch):
    one, two = keras.Input((2,)), keras.Input((3,))
    model = keras.Model([one, two], keras.layers.Dense(2)(keras.layers.Concatenate()([one, two])))
    path = tickets.of(model, {"dense/kernel": np.ones((5, 2), bool)}).save(tmp_path / "t.safetensors")
    monkeypatch.setattr("lottery.pipeline.environment.use_threads", lambda wanted: wanted)
    with pytest.raises(LotteryError, match="has 2 inputs and 1 outputs"):
        ticket_commands.compact(tmp_path / "small.keras", choice=ticket_commands.Choice(path))
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize(
    ("out", "drop", "sentence"),
    [
        ("small.h5", False, "must be a file that ends in .keras"),
        ("", False, "must be a file that ends in .keras"),
        ("folder.keras", False, "--out must be a file, not the folder .*folder.keras'"),
        ("taken.keras", True, "--out must be a file, not the folder .*taken.inputs.npy'"),
        (f"{'a' * 300}.keras", False, "cannot be written: File name too long"),
        ("file/small.keras", False, "cannot be written"),
    ],
)
def test_paths_that_cannot_be_written_are_refused_at_once(tmp_path, monkeypatch, out, drop, sentence):
    for name in ("folder.keras", "taken.inputs.npy"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    monkeypatch.setattr(ticket_commands.Choice, "load", lambda choice: None)  # so that building its network would fail
    with pytest.raises(LotteryError, match=sentence) as caught:
        chosen = ticket_commands.Choice(Path("ticket"))
        ticket_commands.compact(tmp_path / out if out else Path(), drop_inputs=drop, choice=chosen)
    assert "\n" not in str(caught.value)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "folder.keras", "taken.inputs.npy"]


@pytest.mark.parametrize(
    ("name", "shape", "granularity", "units"),
    [
        ("lenet_300_100", (28, 28), "unit", [75, 25, 10]),
        ("conv_2", (8, 8, 3), "channel", [16, 16, 256, 256, 10]),
        pytest.param(
            "vgg_11", (32, 32, 3), "channel", [16, 32, 64, 64, 128, 128, 128, 128, 10], marks=pytest.mark.long
        ),
    ],
)
def test_tickets_of_whole_units_and_channels_become_networks_of_those_that_stay(name, shape, granularity, units):
    model = randomise(networks.builder(name, shape, 10)(), density=1)
    scales = {key: np.ones_like(value) for key, value in weights.read_state(model).items() if key.endswith("gamma")}
    weights.assign(model, scales)
    kept = pruning.prune(model, 0.75, granularity=granularity)
    weights.assign(model, masks.apply(weights.read_state(model), kept))
    compacted = compaction.compact(model)
    assert after(compacted) == units
    assert difference(model, compacted) < TOLERANCE
    assert compacted.multiply_adds[1] < compacted.multiply_adds[0] / 3
