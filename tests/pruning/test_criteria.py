import importlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lottery import masks, weights
from lottery.errors import LotteryError
from lottery.pruning import ranking
from lottery.pruning.criteria import CRITERIA, CriterionInputs, ScoredModel

LIBRARIES = ("keras", "tf_keras")
NEEDS_NETWORK = {name for name, criterion in CRITERIA.items() if criterion.needs_network}
WEIGHTS_ONLY = [name for name in CRITERIA if name not in NEEDS_NETWORK]


def evidence(initial, trained, kept=None, seed=3, density=0.3, scope="global", network=None):
    kept = masks.ones_like(trained) if kept is None else kept
    return CriterionInputs(initial, trained, kept, np.random.default_rng(seed), density, scope, network)


def copied(arrays):
    return {name: np.array(value) for name, value in arrays.items()}


def assert_same(first, second):
    assert list(first) == list(second)
    for name in first:
        np.testing.assert_array_equal(first[name], second[name])


def pruned_to(scores, kept, counts, scope):
    """Masks by an independent ranking: the highest (score, position) of each group, so many as `counts` says."""
    groups = [list(kept)] if scope == "global" else [[name] for name in kept]
    result = {name: np.zeros_like(mask) for name, mask in kept.items()}
    for names, count in zip(groups, counts, strict=True):
        entries = [
            (float(scores[name].flat[index]), place, int(index), name)
            for place, name in enumerate(names)
            for index in np.flatnonzero(kept[name])
        ]
        for *_, index, name in sorted(entries)[len(entries) - count :]:
            result[name].flat[index] = True
    return result


def sequential(library, input_shape, make_layers):
    """A function that builds the same Sequential afresh each time."""
    keras = importlib.import_module(library)
    return lambda: keras.Sequential([keras.layers.InputLayer(input_shape), *make_layers(keras.layers)])


def dense_chain(library, sizes, use_bias=False):
    return sequential(library, sizes[:1], lambda layers: [layers.Dense(size, use_bias=use_bias) for size in sizes[1:]])


def mixed(layers):
    return [
        layers.Conv2D(3, 3),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dropout(0.3),
        layers.Dense(5, activation="relu", kernel_regularizer="l2"),
        layers.Dropout(0.3, seed=4),
        layers.Dense(3),
    ]


def network(build, x, y, loss="mse", values=None):
    model = build()
    model.compile("sgd", loss)
    if values:
        weights.assign(model, values)
    return ScoredModel(model, x, y, build)


@pytest.fixture(scope="module", params=LIBRARIES)
def trained(request):
    """A network of every kind of layer that was trained a little: statistics, slots and metrics are not trivial."""
    keras, rng = importlib.import_module(request.param), np.random.default_rng(5)
    build = sequential(request.param, (6, 6, 1), mixed)
    model = build()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], jit_compile=False)
    x, y = rng.normal(size=(16, 6, 6, 1)).astype(np.float32), rng.integers(0, 3, 16)
    initial = weights.read(model)
    model.fit(x, y, batch_size=8, epochs=2, verbose=0)
    return keras, initial, ScoredModel(model, x, y, build)


def everything_of(keras, model):
    """All that a criterion might disturb, as numbers."""
    optimizer = model.optimizer.variables
    kept = {f"variable {name}": value for name, value in weights.read_state(model).items()}
    kept |= {
        f"optimiser {index}": np.array(one.numpy())
        for index, one in enumerate(optimizer() if callable(optimizer) else optimizer)
    }
    counters = [one.numpy() for metric in model.metrics for one in metric.variables]
    kept |= {f"metric {index}": np.array(value) for index, value in enumerate(counters)}
    seeds = [layer._random_generator._seed for layer in model.layers if hasattr(layer, "_random_generator")]
    kept["seeds"] = np.array([-1 if one is None else one for one in seeds])
    kept["policy"] = np.array([keras.mixed_precision.global_policy().name, keras.backend.floatx()])
    kept["flags"] = np.array([layer.trainable for layer in model.layers])
    return kept


@pytest.mark.parametrize("name", CRITERIA)
def test_every_criterion_keeps_the_contract(trained, name):
    import tensorflow as tf

    keras, initial, net = trained
    values = weights.read(net.model)
    kept = {key: np.random.default_rng(8).random(value.shape) < 0.8 for key, value in values.items()}
    values = masks.apply(values, kept)
    before = [copied(one) for one in (initial, values, kept)]
    x, found = net.x.copy(), everything_of(keras, net.model)
    scores = CRITERIA[name].score(evidence(initial, values, kept, network=net))
    assert list(scores) == list(values)
    for key, value in values.items():
        assert scores[key].shape == value.shape and scores[key].dtype.kind == "f"
        assert np.isfinite(scores[key]).all()
    for left, right in zip(before, (initial, values, kept), strict=True):
        assert_same(left, right)
    np.testing.assert_array_equal(net.x, x)
    assert_same(everything_of(keras, net.model), found)
    # Nothing that the process draws in between may matter.
    keras.utils.set_random_seed(99)
    tf.random.normal((3,))
    assert_same(CRITERIA[name].score(evidence(initial, values, kept, network=net)), scores)
    ranking.keep_highest(scores, kept, 0.2, "global")  # it can be ranked


def test_the_metrics_of_the_fixture_are_not_trivial(trained):
    _, _, net = trained
    assert any(np.any(one.numpy()) for metric in net.model.metrics for one in metric.variables)


def test_what_needs_a_network_is_a_criterion():
    assert {"snip", "grasp", "synflow"} == NEEDS_NETWORK and CRITERIA["magnitude"] is CRITERIA["large_final"]


BY_HAND = {
    #        w_i   0     2    -3     1    -4
    #        w_f  -1     0     2     1     4
    "magnitude": [1, 0, 2, 1, 4],
    "small_final": [-1, 0, -2, -1, -4],
    "large_init": [0, 2, 3, 1, 4],
    "small_init": [0, -2, -3, -1, -4],
    # Ranks of |w_i|: 1 3 4 2 5, of |w_f|: 2 1 4 3 5; of equal ones the earlier is lower. Of the opposites: 5 3 2 4 1
    # and 3 5 2 4 1.
    "large_init_large_final": [1, 1, 4, 2, 5],
    "small_init_small_final": [3, 3, 2, 4, 1],
    "magnitude_increase": [1, -2, -1, 0, 0],
    "movement": [1, 2, 5, 0, 8],
}


@pytest.mark.parametrize("name", BY_HAND)
def test_weights_only_criteria_by_hand(name):
    initial, final = np.array([[0, 2, -3, 1, -4]], np.float32), np.array([[-1, 0, 2, 1, 4]], np.float32)
    scores = CRITERIA[name].score(evidence({"w": initial, "b": final}, {"w": final}))  # more initial weights do no harm
    assert list(scores) == ["w"] and scores["w"].tolist() == [BY_HAND[name]]


def test_every_criterion_of_weights_is_computed_by_hand():
    assert {*BY_HAND, "large_final", "random"} == set(WEIGHTS_ONLY)


@pytest.mark.parametrize("name", WEIGHTS_ONLY)
def test_half_precision_does_not_overflow(name):
    largest = np.full((2, 2), 65504, np.float16)
    assert np.isfinite(CRITERIA[name].score(evidence({"w": -largest}, {"w": largest}))["w"]).all()


def test_random_is_the_seeds_and_no_order_of_names():
    arrays = {"b": np.zeros((30, 40)), "a": np.zeros((50,))}
    one, same = (CRITERIA["random"].score(evidence(arrays, arrays, seed=7)) for _ in range(2))
    turned = CRITERIA["random"].score(evidence(arrays, {name: arrays[name] for name in ("a", "b")}, seed=7))
    other = CRITERIA["random"].score(evidence(arrays, arrays, seed=8))
    assert_same(one, same)
    assert_same(one, {name: turned[name] for name in one})
    assert not np.any(one["b"] == other["b"])
    assert np.unique(one["b"]).size == 1200 and one["b"].min() >= 0 and one["b"].max() < 1
    assert abs(one["b"].mean() - 0.5) < 0.05


# A linear network of two layers, W1 and W2, squared error, one example.
FIRST, SECOND = np.array([[1, -1], [0.5, 2]], np.float32), np.array([[2], [-1]], np.float32)
LINEAR = {"dense/kernel": FIRST, "dense_1/kernel": SECOND}
ONE_X, ONE_Y = np.array([[1, 2]], np.float32), np.array([[0]], np.float32)
LITERAL = {
    # h = (2, 3), p = 1, dL/dp = 2; g1 = x' 2 W2' = (4 -2; 8 -4), g2 = (4, 6).
    "snip": ([[4, 2], [4, 8]], [[8], [6]]),
    # Along g: dh = (20, -10), dp = 76; H g = (312 -140; 624 -280) and (344, 436). Here p is divided by 200, so the loss
    # by 200^2 and H g by 200^4.
    "grasp": (np.array([[312, 140], [312, -560]]) / 200**4, np.array([[688], [-436]]) / 200**4),
    # |W1| |W2|: (2 1; 1 2), and h |W2| = (3, 3) for x = (1, 1): the ranks of these, of equals the earlier first.
    "synflow": ([[3, 1], [2, 4]], [[5], [6]]),
}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", LITERAL)
def test_literal_numbers_of_a_linear_network(library, name):
    net = network(dense_chain(library, (2, 2, 1)), ONE_X, ONE_Y, values=LINEAR)
    scores = CRITERIA[name].score(evidence(LINEAR, LINEAR, density=1.0, network=net))
    for key, expected in zip(LINEAR, LITERAL[name], strict=True):
        np.testing.assert_allclose(scores[key], expected, rtol=1e-6)


def gradient_by_hand(w1, w2, x, y, temperature=1):
    hidden = x @ w1
    error = 2 * (hidden @ w2 / temperature - y) / (y.size * temperature)
    return x.T @ error @ w2.T, hidden.T @ error


def product_by_hand(w1, w2, x, y, v1, v2, temperature=1):
    """How the gradient changes along (v1, v2)."""
    hidden, moved = x @ w1, x @ v1
    error = 2 * (hidden @ w2 / temperature - y) / (y.size * temperature)
    moved_error = 2 * (moved @ w2 + hidden @ v2) / (y.size * temperature**2)
    return x.T @ (moved_error @ w2.T + error @ v2.T), moved.T @ error + hidden.T @ moved_error


@pytest.mark.parametrize("library", LIBRARIES)
def test_snip_and_grasp_are_their_formulas_in_numpy(library, rng):
    x, y = rng.normal(size=(7, 5)), 0.01 * rng.normal(size=(7, 3))
    w1, w2 = rng.normal(size=(5, 4)), rng.normal(size=(4, 3))
    given = {"dense/kernel": w1.astype(np.float32), "dense_1/kernel": w2.astype(np.float32)}
    net = network(dense_chain(library, (5, 4, 3)), x.astype(np.float32), y.astype(np.float32), values=given)
    g1, g2 = gradient_by_hand(w1, w2, x, y, 200)
    h1, h2 = product_by_hand(w1, w2, x, y, g1, g2, 200)
    step = 1e-2  # the product by hand is checked, too
    ahead, behind = (gradient_by_hand(w1 + s * g1, w2 + s * g2, x, y, 200) for s in (step, -step))
    np.testing.assert_allclose(h1, (ahead[0] - behind[0]) / (2 * step), rtol=1e-5)
    np.testing.assert_allclose(h2, (ahead[1] - behind[1]) / (2 * step), rtol=1e-5)
    snip = CRITERIA["snip"].score(evidence(given, given, network=net))
    grasp = CRITERIA["grasp"].score(evidence(given, given, network=net))
    for key, w, g, hg in zip(given, (w1, w2), gradient_by_hand(w1, w2, x, y), (h1, h2), strict=True):
        np.testing.assert_allclose(snip[key], np.abs(g * w), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(grasp[key], w * hg, rtol=1e-4, atol=1e-5 * abs(w * hg).max())


def test_what_grasp_prunes_is_what_the_gradients_norm_can_spare(rng):
    """Of the weights, scaled down one at a time, the highest kept score is the one whose loss lowers g'g most."""
    x, y = rng.normal(size=(9, 4)), 0.01 * rng.normal(size=(9, 2))
    w1, w2 = rng.normal(size=(4, 3)), rng.normal(size=(3, 2))
    given = {"dense/kernel": w1.astype(np.float32), "dense_1/kernel": w2.astype(np.float32)}
    net = network(dense_chain("keras", (4, 3, 2)), x.astype(np.float32), y.astype(np.float32), values=given)
    scores = CRITERIA["grasp"].score(evidence(given, given, network=net))["dense/kernel"]

    def norm(w):
        return sum(float(np.sum(one**2)) for one in gradient_by_hand(w, w2, x, y, 200))

    changes = np.zeros_like(w1)
    for index in np.ndindex(*w1.shape):
        smaller = w1.copy()
        smaller[index] *= 1 - 1e-6
        changes[index] = (norm(smaller) - norm(w1)) / 1e-6
    np.testing.assert_allclose(scores, -changes / 2, rtol=1e-3, atol=1e-3 * abs(scores).max())


@pytest.mark.parametrize("library", LIBRARIES)
def test_grasp_divides_the_logits_before_a_softmax_and_leaves_out_regularisation(library, rng):
    """However a model ends, the scores are those of its logits; one whose logits are not known is refused."""
    keras = importlib.import_module(library)
    x, y = rng.normal(size=(8, 4)).astype(np.float32), rng.integers(0, 3, 8)
    of_logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def build(*end, regularizer=None):
        return sequential(
            library,
            (4,),
            lambda layers: [layers.Dense(6, "relu", kernel_regularizer=regularizer), *(one(layers) for one in end)],
        )

    ends = [
        (build(lambda layers: layers.Dense(3)), of_logits),
        (build(lambda layers: layers.Dense(3), regularizer="l2"), of_logits),
        (build(lambda layers: layers.Dense(3, "softmax")), "sparse_categorical_crossentropy"),
        (build(lambda layers: layers.Dense(3), lambda layers: layers.Activation("softmax")), "sparse_categorical_crossentropy"),
    ]  # fmt: skip
    start = weights.read(ends[0][0]())
    found = []
    for make, loss in ends:
        net = network(make, x, y, loss, start)
        outputs = np.asarray(net.model(x))
        found.append(CRITERIA["grasp"].score(evidence(start, start, network=net)))
        np.testing.assert_array_equal(np.asarray(net.model(x)), outputs)  # its last layer is as before
    for other in found[1:]:
        for name, scores in found[0].items():
            np.testing.assert_allclose(other[name], scores, rtol=1e-3, atol=1e-4 * abs(scores).max())
    hidden = build(lambda layers: layers.Dense(3), lambda layers: layers.Softmax())
    with pytest.raises(LotteryError, match="are probabilities, and a temperature divides logits"):
        CRITERIA["grasp"].score(
            evidence(start, start, network=network(hidden, x, y, "sparse_categorical_crossentropy"))
        )


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", ["grasp", "synflow"])
def test_a_sigmoid_that_is_no_activation_of_the_last_layer_is_refused(rng, library, name):
    """What goes into it is not known, and its outputs are no logits, which scores were computed with."""
    keras = importlib.import_module(library)
    layers = keras.layers
    sigmoid = keras.ops.sigmoid if library == "keras" else importlib.import_module("tensorflow").sigmoid

    def ending(*end):
        def build():
            x = inputs = keras.Input((3, 2))
            for layer in (layers.Dense(4), *(one() for one in end)):
                x = layer(x)
            return keras.Model(inputs, x)

        return build

    x = rng.normal(size=(8, 3, 2)).astype(np.float32)
    refused = {
        "it ends in a sigmoid or softmax": [
            ending(lambda: sigmoid),
            ending(lambda: layers.Activation("sigmoid"), lambda: layers.Reshape((2, 6))),
        ],
        "'last', is recurrent": [ending(lambda: layers.SimpleRNN(1, activation="sigmoid", name="last"))],
    }
    for why, builders in refused.items():
        for build in builders:
            net = network(build, x, np.zeros_like(build()(x)), "binary_crossentropy")
            start = weights.read(net.model)
            with pytest.raises(LotteryError, match=f"The logits of the model .* are not known: .*{why}"):
                CRITERIA[name].score(evidence(start, start, network=net))
            with pytest.raises(LotteryError, match=why):
                CRITERIA[name].check_model(net.model, x)
    for build in (ending(), ending(lambda: layers.Activation("sigmoid"))):
        CRITERIA[name].check_model(build(), x)


def test_grasp_divides_every_output(rng):
    """Of two outputs with one loss each, the squared errors are those of both over 200."""
    import keras

    def build():
        inputs = keras.Input((4,))
        return keras.Model(inputs, [keras.layers.Dense(2, use_bias=False)(inputs) for _ in range(2)])

    x, ys = rng.normal(size=(8, 4)), [0.01 * rng.normal(size=(8, 2)) for _ in range(2)]
    model = build()
    model.compile("sgd", ["mse", "mse"])
    start = weights.read(model)
    net = ScoredModel(model, x.astype(np.float32), [y.astype(np.float32) for y in ys], build)
    scores = CRITERIA["grasp"].score(evidence(start, start, network=net))
    for (name, w), y in zip(start.items(), ys, strict=True):
        gradient = x.T @ (2 * (x @ w / 200 - y) / (y.size * 200))
        product = x.T @ (2 * (x @ gradient) / (y.size * 200**2))
        np.testing.assert_allclose(scores[name], w * product, rtol=1e-3, atol=1e-4 * abs(w * product).max())


@pytest.mark.parametrize("name", ["snip", "grasp"])
def test_examples_count_in_the_loss_as_in_training(rng, name):
    """With weights of zero and two, the loss of eight examples is that of the four which are left."""
    build = sequential("keras", (5,), lambda layers: [layers.Dense(4, activation="relu"), layers.Dense(3)])
    x, y = rng.normal(size=(8, 5)).astype(np.float32), rng.normal(size=(8, 3)).astype(np.float32)
    whole = network(build, x, y)
    start = weights.read(whole.model)
    weighted = replace(whole, sample_weight=np.repeat([2.0, 0.0], 4).astype(np.float32))
    scores = CRITERIA[name].score(evidence(start, start, network=weighted))
    expected = CRITERIA[name].score(evidence(start, start, network=replace(whole, x=x[:4], y=y[:4])))
    for key, value in expected.items():
        np.testing.assert_allclose(scores[key], value, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["snip", "grasp"])
def test_masks_of_earlier_rounds_change_no_score_so_that_all_masks_are_nested(trained, name):
    _, initial, net = trained
    dense = masks.ones_like(initial)
    scores = CRITERIA[name].score(evidence(initial, initial, network=net))
    kept = dense
    for rate in (0.3, 0.5):
        zeroed = masks.apply(initial, kept)
        again = CRITERIA[name].score(evidence(initial, zeroed, kept, seed=int(10 * rate), density=0.1, network=net))
        assert_same(again, scores)
        kept = ranking.keep_highest(again, kept, rate, "global")
    total = sum(masks.num_kept(kept).values())
    assert_same(kept, pruned_to(scores, dense, [total], "global"))


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_loss_is_that_of_training_with_its_regularisation_and_the_batchs_statistics(library, rng):
    import tensorflow as tf

    build = sequential(
        library,
        (5,),
        lambda layers: [
            layers.Dense(4, kernel_regularizer="l2"),
            layers.BatchNormalization(),
            layers.Dense(2, activation="tanh"),
        ],
    )
    x, y = 3 + rng.normal(size=(6, 5)).astype(np.float32), rng.normal(size=(6, 2)).astype(np.float32)
    net = network(build, x, y)
    start = weights.read(net.model)
    scores = CRITERIA["snip"].score(evidence(start, start, network=net))
    w1, b1, gamma, beta, w2, b2 = (tf.Variable(one.numpy().astype(np.float64)) for one in net.model.trainable_variables)
    with tf.GradientTape() as tape:
        before = x @ w1 + b1
        mean, variance = tf.reduce_mean(before, 0), tf.math.reduce_variance(before, 0)
        outputs = tf.tanh((gamma * (before - mean) / tf.sqrt(variance + 1e-3) + beta) @ w2 + b2)
        loss = tf.reduce_mean((outputs - y) ** 2) + 0.01 * tf.reduce_sum(w1**2)
    for value, gradient, score in zip((w1, w2), tape.gradient(loss, [w1, w2]), scores.values(), strict=True):
        np.testing.assert_allclose(score, np.abs(gradient.numpy() * value.numpy()), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("library", LIBRARIES)
def test_dropout_takes_part_and_drops_the_same_each_time(library):
    import tensorflow as tf

    build = sequential(
        library, (200,), lambda layers: [layers.Dropout(0.5), layers.Dense(1, use_bias=False, name="out")]
    )
    net = network(build, np.ones((1, 200), np.float32), np.zeros((1, 1), np.float32))
    weights.assign(net.model, {"out/kernel": np.ones((200, 1), np.float32)})
    start = weights.read(net.model)
    found = []
    for seed in (1, 2):  # what the process is seeded with may not matter
        tf.random.set_seed(seed)
        found.append(CRITERIA["snip"].score(evidence(start, start, network=net))["out/kernel"])
    np.testing.assert_array_equal(*found)
    assert 60 < np.count_nonzero(found[0]) < 140
    # The model was never called before, so its metrics are made on the way, and are as if it had not been.
    assert not any(np.any(one.numpy()) for metric in net.model.metrics for one in metric.variables)


@pytest.mark.parametrize("library", LIBRARIES)
def test_embeddings_have_gradients_too(library):
    build = sequential(
        library, (3,), lambda layers: [layers.Embedding(5, 2), layers.Flatten(), layers.Dense(1, name="out")]
    )
    net = network(build, np.array([[1, 1, 4]], np.int32), np.array([[1.0]], np.float32))
    start = weights.read(net.model)
    for name in ("snip", "grasp"):
        scores = CRITERIA[name].score(evidence(start, start, network=net))
        rows = np.any(scores["embedding/embeddings"] != 0, axis=1)
        assert rows.tolist() == [False, True, False, False, True]


def looking_up(layers):
    """Layers that look their input up, whatever its type, also behind operations that only move it."""
    once = [layers.Embedding(5, 2), layers.Flatten(), layers.Dense(1)]
    return {
        "embedding": once,
        "moved": [layers.Reshape((3, 1)), layers.Flatten(), *once],
        "one-hot": [layers.CategoryEncoding(5, output_mode="multi_hot"), layers.Dense(1)],
    }


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", ["embedding", "moved", "one-hot"])
def test_synflow_refuses_inputs_that_are_looked_up(library, kind):
    """Of the table, only the row of token 1 would have a score."""
    library = importlib.import_module(library)
    for declared, dtype in (("int32", np.int64), (None, np.int32), (None, np.float32)):

        def build(declared=declared):
            layers = looking_up(library.layers)[kind]
            return library.Sequential([library.layers.Input((3,), dtype=declared), *layers])

        net = network(build, np.array([[1, 2, 4]], dtype), np.array([[1.0]], np.float32))
        start = weights.read(net.model)
        with pytest.raises(LotteryError, match="^SynFlow: the model .* looks its input up by whole numbers"):
            CRITERIA["synflow"].score(evidence(start, start, network=net))


@pytest.mark.parametrize("library", LIBRARIES)
def test_synflow_takes_whole_numbers_that_are_calculated_with(library):
    """Counts, or pixels, are numbers like others: the ranks are those for floating-point inputs."""
    library = importlib.import_module(library)
    layers, found = library.layers, []
    for dtype in ("int32", "float32"):

        def build(dtype=dtype):
            library.utils.set_random_seed(1)
            own = [layers.Rescaling(0.5), layers.Reshape((2, 2)), layers.Flatten(), layers.Dense(3), layers.Dense(1)]
            return library.Sequential([layers.Input((4,), dtype=dtype), *own])

        net = network(build, np.ones((1, 4), dtype), np.array([[1.0]], np.float32))
        start = weights.read(net.model)
        found.append(CRITERIA["synflow"].score(evidence(start, start, network=net)))
    for name, ranks in found[0].items():
        np.testing.assert_array_equal(ranks, found[1][name])


def flow_by_hand(kernels, biases):
    """SynFlow's scores of a chain of dense layers, in NumPy."""
    kernels, biases = [np.abs(one.astype(np.float64)) for one in kernels], [np.abs(one) for one in biases]
    ahead = [np.ones((1, kernels[0].shape[0]))]
    for kernel, bias in zip(kernels, biases, strict=True):
        ahead.append(ahead[-1] @ kernel + bias)
    back, scores = np.ones_like(ahead[-1]), []
    for kernel, values in zip(reversed(kernels), reversed(ahead[:-1]), strict=True):
        scores.insert(0, kernel * (values.T @ back))
        back = back @ kernel.T
    return scores


def steps_by_hand(kernels, biases, kept, density, scope):
    """The masks after each of the 100 steps, from sorted lists."""
    total, alive = sum(one.size for one in kept.values()), sum(masks.num_kept(kept).values())
    ends = [alive] if scope == "global" else list(masks.num_kept(kept).values())
    masked, seen = kept, []
    for step in range(1, 101):
        flows = flow_by_hand([kernels[name] * masked[name] for name in kept], biases)
        counts = [round(count * (density * total / alive) ** (step / 100)) for count in ends]
        masked = pruned_to(dict(zip(kept, flows, strict=True)), masked, counts, scope)
        seen.append((counts, masked))
    return seen


def chain(rng, library, sizes, use_bias=True):
    build = dense_chain(library, sizes, use_bias)
    net = network(build, np.zeros((4, sizes[0]), np.float32), np.zeros((4, sizes[-1]), np.float32))
    state = {
        name: rng.normal(size=value.shape).astype(np.float32) for name, value in weights.read_state(net.model).items()
    }
    weights.assign(net.model, state)
    kernels = weights.read(net.model)
    biases = (
        [state[name] for name in state if name not in kernels] if use_bias else [np.zeros(size) for size in sizes[1:]]
    )
    return net, kernels, biases


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("scope", ranking.SCOPES)
@pytest.mark.parametrize("started", [False, True])
def test_synflow_prunes_what_its_100_steps_prune(rng, library, scope, started):
    net, kernels, biases = chain(rng, library, (6, 7, 5, 3))
    kept = {name: rng.random(one.shape) < (0.7 if started else 2) for name, one in kernels.items()}
    density = 0.2
    ranks = CRITERIA["synflow"].score(
        evidence(kernels, masks.apply(kernels, kept), kept, density=density, scope=scope, network=net)
    )
    for name, mask in kept.items():
        assert np.all(ranks[name][~mask] == 0) and np.all(ranks[name][mask] >= 1)
    seen = steps_by_hand(kernels, biases, kept, density, scope)
    for counts, expected in seen:
        assert_same(pruned_to(ranks, kept, counts, scope), expected)
    if scope == "global":  # and by the toolkit's own ranking, to the density itself
        alive, (count,) = sum(masks.num_kept(kept).values()), seen[-1][0]
        assert count == round(density * 92)
        assert_same(ranking.keep_highest(ranks, kept, 1 - count / alive, "global"), seen[-1][1])
    one_shot = pruned_to(
        dict(zip(kept, flow_by_hand([kernels[k] * kept[k] for k in kept], biases), strict=True)),
        kept,
        seen[-1][0],
        scope,
    )
    assert any(np.any(one_shot[name] != seen[-1][1][name]) for name in kept)  # the steps make a difference here


def test_synflow_breaks_ties_by_position():
    build = dense_chain("keras", (3, 3, 3))
    net = network(build, np.zeros((1, 3), np.float32), np.zeros((1, 3), np.float32))
    weights.assign(net.model, {name: np.ones_like(value) for name, value in weights.read(net.model).items()})
    start = weights.read(net.model)
    for scope in ranking.SCOPES:
        ranks = CRITERIA["synflow"].score(evidence(start, start, density=4 / 18, scope=scope, network=net))
        kernels = {name: np.ones((3, 3)) for name in start}
        counts, expected = steps_by_hand(kernels, [np.zeros(3)] * 2, masks.ones_like(start), 4 / 18, scope)[-1]
        assert_same(pruned_to(ranks, masks.ones_like(start), counts, scope), expected)


@pytest.mark.parametrize("library", LIBRARIES)
def test_synaptic_flow_is_conserved(rng, library):
    from lottery.pruning import gradients

    net, kernels, biases = chain(rng, library, (5, 8, 6, 4), use_bias=False)
    flow = gradients.flow_through(net.model, net.build, net.x, list(kernels))
    for share in (1.1, 0.8, 0.5):
        kept = {name: rng.random(one.shape) < share for name, one in kernels.items()}
        scores = flow(kept)
        by_hand = flow_by_hand([kernels[name] * kept[name] for name in kept], biases)
        for expected, score in zip(by_hand, scores.values(), strict=True):
            np.testing.assert_allclose(score, expected, rtol=1e-12)
        sums = [score.sum() for score in scores.values()]
        assert sums[0] > 0
        np.testing.assert_allclose(sums, sums[0], rtol=1e-12)


@pytest.mark.parametrize("library", LIBRARIES)
def test_synflow_normalises_by_moving_statistics_with_absolute_scales(rng, library):
    from lottery.pruning import gradients

    build = sequential(
        library,
        (4,),
        lambda layers: [layers.Dense(5), layers.BatchNormalization(name="norm"), layers.Dropout(0.5), layers.Dense(2)],
    )
    net = network(build, np.zeros((2, 4), np.float32), np.zeros((2, 2), np.float32))
    state = {
        name: rng.normal(size=one.shape).astype(np.float32)
        for name, one in weights.read_state(net.model).items()
        if "seed" not in name
    }
    state["norm/moving_variance"] = rng.uniform(0.5, 2, 5).astype(np.float32)
    weights.assign(net.model, state)
    w1, b1, gamma, beta, mean, variance, w2 = (
        state[name].astype(np.float64)
        for name in (
            "dense/kernel",
            "dense/bias",
            "norm/gamma",
            "norm/beta",
            "norm/moving_mean",
            "norm/moving_variance",
            "dense_1/kernel",
        )
    )
    scale = np.abs(gamma) / np.sqrt(variance + 1e-3)
    hidden = np.ones(4) @ np.abs(w1) + np.abs(b1)
    scores = gradients.flow_through(net.model, net.build, net.x, ["dense/kernel", "dense_1/kernel"])(
        masks.ones_like({"dense/kernel": w1, "dense_1/kernel": w2})
    )
    np.testing.assert_allclose(scores["dense/kernel"], np.abs(w1) * scale * np.abs(w2).sum(1), rtol=1e-9)
    into = (hidden - mean) * scale + np.abs(beta)
    np.testing.assert_allclose(scores["dense_1/kernel"], np.abs(np.abs(w2) * into[:, None]), rtol=1e-9)


@settings(deadline=None, max_examples=200)
@given(hnp.arrays(np.float64, st.integers(1, 40), elements=st.sampled_from([0.0, 0.5, 1.0, 1e-300, 3.0])), st.data())
def test_the_lowest_are_those_of_a_stable_sort(values, data):
    from lottery.pruning import gradients

    count = data.draw(st.integers(0, values.size))
    expected = np.argsort(values, kind="stable")[:count]
    np.testing.assert_array_equal(np.flatnonzero(ranking.lowest(values, count)), np.sort(expected))
    np.testing.assert_array_equal(gradients._lowest_first(values, count), expected)


def test_synflow_keeps_a_path_where_magnitude_empties_a_layer(rng):
    sizes = (20, 30, 10, 3, 10, 4)
    net, kernels, _ = chain(rng, "keras", sizes, use_bias=False)
    # As initialisers have it: the wider the layer, the smaller its weights.
    kernels = {
        name: one / np.float32(np.sqrt(one.shape[0]) * (20 if index == 0 else 1))
        for index, (name, one) in enumerate(kernels.items())
    }
    weights.assign(net.model, kernels)
    dense = masks.ones_like(kernels)
    total = sum(one.size for one in kernels.values())
    for count in (len(kernels), 3 * len(kernels), total // 20):
        by_magnitude = pruned_to(CRITERIA["magnitude"].score(evidence(kernels, kernels)), dense, [count], "global")
        assert min(masks.num_kept(by_magnitude).values()) == 0
        ranks = CRITERIA["synflow"].score(evidence(kernels, kernels, density=count / total, network=net))
        kept = pruned_to(ranks, dense, [count], "global")
        assert min(masks.num_kept(kept).values()) > 0
        signal = np.ones(sizes[0])
        for name, one in kernels.items():
            signal = signal @ np.abs(one * kept[name])
        assert signal.sum() > 0


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_deep_network_that_overflows_single_precision(rng, library):
    from lottery.pruning import gradients

    width, depth = 20, 12
    net, kernels, biases = chain(rng, library, (width,) * (depth + 1), use_bias=False)
    kernels = {name: 1000 * one for name, one in kernels.items()}
    weights.assign(net.model, kernels)
    absolute = np.ones((1, width), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for one in kernels.values():
            absolute = absolute @ np.abs(one)
    assert not np.isfinite(absolute).any()
    kept = masks.ones_like(kernels)
    scores = gradients.flow_through(net.model, net.build, net.x, list(kernels))(kept)
    for expected, score in zip(flow_by_hand(list(kernels.values()), biases), scores.values(), strict=True):
        np.testing.assert_allclose(score, expected, rtol=1e-10)
    ranks = CRITERIA["synflow"].score(evidence(kernels, kernels, density=0.1, network=net))
    size = depth * width**2
    assert np.array_equal(np.sort(np.concatenate([one.ravel() for one in ranks.values()])), np.arange(1, size + 1))


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_softmax_at_the_end_is_left_out_of_the_flow(rng, library):
    keras = importlib.import_module(library)
    x, y = np.zeros((2, 4), np.float32), np.zeros((2, 3), np.float32)

    def with_end(*end):
        return sequential(
            library,
            (4,),
            lambda layers: (
                [layers.Dense(6, activation="relu"), *end(layers)]
                if callable(end)
                else [layers.Dense(6, activation="relu"), *(one(layers) for one in end)]
            ),
        )

    ends = [
        with_end(lambda layers: layers.Dense(3)),
        with_end(lambda layers: layers.Dense(3, activation="softmax")),
        with_end(lambda layers: layers.Dense(3), lambda layers: layers.Activation("softmax")),
    ]
    nets = [network(build, x, y) for build in ends]
    start = weights.read(nets[0].model)
    first, *others = (
        CRITERIA["synflow"].score(evidence(start, start, network=net))
        for net in nets
        if not weights.assign(net.model, start)
    )
    for other in others:
        assert_same(first, other)
    hidden = network(with_end(lambda layers: layers.Dense(3), lambda layers: layers.Softmax()), x, y)
    with pytest.raises(LotteryError, match="The logits of the model .* are not known"):
        CRITERIA["synflow"].score(evidence(start, start, network=hidden))
    assert keras.backend.floatx() == "float32"


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_policy_is_as_before_also_if_the_copy_cannot_be_built(library):
    keras = importlib.import_module(library)
    net = network(dense_chain(library, (2, 2, 1)), ONE_X, ONE_Y)
    start, seen = weights.read(net.model), []

    def fail():
        seen.append(keras.mixed_precision.global_policy().name)
        raise RuntimeError("no more layers")

    for builder, message in ((fail, "no more layers"), (dense_chain(library, (2, 3, 1)), "another architecture")):
        with pytest.raises(LotteryError, match=message):
            CRITERIA["synflow"].score(evidence(start, start, network=replace(net, build=builder)))
        assert keras.mixed_precision.global_policy().name == "float32" and keras.backend.floatx() == "float32"
        assert keras.layers.Dense(1).dtype == "float32"
    assert seen == ["float64"]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", ["snip", "grasp"])
def test_a_loss_that_cannot_be_evaluated_is_one_sentence(library, name):
    build = dense_chain(library, (2, 2, 1))
    model = build()
    start = weights.read(model)
    with pytest.raises(LotteryError, match="loss"):  # not compiled
        CRITERIA[name].score(evidence(start, start, network=ScoredModel(model, ONE_X, ONE_Y, build)))
    model.compile("sgd")
    with pytest.raises(LotteryError, match="loss"):
        CRITERIA[name].score(evidence(start, start, network=ScoredModel(model, ONE_X, ONE_Y, build)))
    model.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(LotteryError, match="no loss that can be evaluated"):
        CRITERIA[name].score(evidence(start, start, network=ScoredModel(model, ONE_X, np.zeros((3, 4, 5)), build)))
    wrong = {name: np.full_like(value, np.inf) for name, value in start.items()}
    with pytest.raises(LotteryError, match="not a finite number"):
        CRITERIA[name].score(evidence(start, start, network=network(build, ONE_X, ONE_Y, values=wrong)))
    with pytest.raises(LotteryError, match="Did you mean 'dense/kernel'"):
        CRITERIA[name].score(evidence(start, {"dense/kernl": FIRST}, network=network(build, ONE_X, ONE_Y)))


@pytest.mark.parametrize("name", sorted(NEEDS_NETWORK))
def test_a_missing_network_is_refused(name):
    with pytest.raises(LotteryError, match=f"{name!r} needs the network. Pass a ScoredModel"):
        CRITERIA[name].score(evidence(LINEAR, LINEAR))


def test_what_synflow_refuses(rng):
    large, kernels, _ = chain(rng, "keras", (4,) * 11, use_bias=False)
    weights.assign(large.model, {name: one * np.float32(1e35) for name, one in kernels.items()})
    with pytest.raises(LotteryError, match="cannot score the model .*sum of its outputs is inf"):
        CRITERIA["synflow"].score(evidence(kernels, kernels, network=large))
    net = network(dense_chain("keras", (2, 2, 1)), ONE_X, ONE_Y, values=LINEAR)
    for density in (0, 1.5, float("nan")):
        with pytest.raises(LotteryError, match=r"density must be a fraction in \(0, 1\], not"):
            CRITERIA["synflow"].score(evidence(LINEAR, LINEAR, density=density, network=net))
    with pytest.raises(LotteryError, match="scope must be .*not 'local'"):
        CRITERIA["synflow"].score(evidence(LINEAR, LINEAR, scope="local", network=net))
    weights.assign(net.model, {"dense_1/kernel": np.zeros((2, 1), np.float32)})
    with pytest.raises(LotteryError, match="nothing flows"):
        CRITERIA["synflow"].score(evidence(LINEAR, LINEAR, network=net))
    # A network that collapsed in an earlier round goes on, by position.
    kept = {"dense/kernel": np.ones((2, 2), bool), "dense_1/kernel": np.zeros((2, 1), bool)}
    ranks = CRITERIA["synflow"].score(evidence(LINEAR, LINEAR, kept, network=net))
    assert ranks["dense/kernel"].tolist() == [[1, 2], [3, 4]] and not ranks["dense_1/kernel"].any()


def test_criteria_do_not_load_tensorflow():
    code = (
        "import sys, numpy as np; from lottery.pruning import criteria\n"
        "w, m = {'w': np.ones(3)}, {'w': np.ones(3, bool)}\n"
        "e = criteria.CriterionInputs(w, w, m, np.random.default_rng(0), 0.5, 'global')\n"
        "[criteria.CRITERIA[n].score(e) for n, c in criteria.CRITERIA.items() if not c.needs_network]\n"
        "assert not {'tensorflow', 'keras', 'tf_keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
