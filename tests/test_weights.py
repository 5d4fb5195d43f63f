import numpy as np
import pytest

from lottery import weights
from lottery.errors import LotteryError
from lottery.models.networks import lenet_300_100

BIAS, SCALE, SLOPE, STATE = "a bias", "a scale or a shift", "a slope", "not trainable"
VECTOR, NOT_NAMED = "fewer than two dimensions", "not named by the layer's get_prunable_weights()"


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
            lambda: lenet_300_100(keras=library),
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


def others(library, make=lambda: None):
    """Make other models and layers, which Keras numbers when they are made; one model has variables too."""
    library.Sequential([library.layers.InputLayer((2,)), library.layers.Dense(3)])
    for _ in range(10):
        make(), library.layers.InputLayer((2,)), library.layers.Dense(3), library.Sequential()


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize("name", ["lenet", "nested", "functional", "subclassed", "shared"])
def test_names_depend_on_position_alone(library, name):
    library = pytest.importorskip(library)
    build, expected = networks(library)[name]
    assert list(weights.prunable(build())) == expected
    others(library)
    again = build()
    assert list(weights.prunable(again)) == expected
    named = weights.variables(again)
    assert len({id(value) for value in named.values()}) == len(named) >= len(again.weights)
    assert not set(weights.unprunable(again)) & set(expected)
    assert set(weights.unprunable(again)) | set(expected) == set(named)


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_weights_without_names_are_named_alike_in_each_model(library):
    library = pytest.importorskip(library)

    class Nameless(library.layers.Layer):
        def build(self, shape):
            self.both = [self.add_weight(shape=(shape[-1], 2)) for _ in range(2)]

        def call(self, x):
            return x @ (self.both[0] + self.both[1])

    for _ in range(2):
        model = library.Sequential([library.layers.InputLayer((3,)), Nameless(), Nameless()])
        own = "Variable" if library.__name__ == "tf_keras" else "variable"  # what earlier runs are stored with
        first, second = f"nameless/{own}", f"nameless_1/{own}"
        assert list(weights.prunable(model)) == [first, f"{first}_1", second, f"{second}_1"]


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_the_numbers_of_a_metric_in_a_model_are_no_variables_of_the_network(library):
    library = pytest.importorskip(library)

    class Counting(library.Model):
        def __init__(self):
            super().__init__()
            self.inner, self.means = library.layers.Dense(2), [library.metrics.Mean()]

        def call(self, x):
            return self.inner(x)

    model = Counting()
    model(np.zeros((1, 3), np.float32))
    assert list(weights.variables(model)) == ["dense/kernel", "dense/bias"]


def custom(library):
    """A layer of a user, with a matrix, a vector and integers, and others that name what is prunable."""
    Layer = library.layers.Layer

    class Matrix(Layer):
        def build(self, shape):
            self.matrix = self.add_weight(name="matrix", shape=(3, 2))
            self.vector = self.add_weight(name="vector", shape=(3,))
            self.counts = self.add_weight(name="counts", shape=(3, 2), dtype="int32", initializer="zeros")
            self.state = self.add_weight(name="state", shape=(3, 2), trainable=False)

        def call(self, x):
            return x

    class Naming(Matrix):
        def get_prunable_weights(self):
            return [self.vector, self.counts, self.state]

    class _Private(Matrix):
        pass

    class Block(Layer):
        def __init__(self, chosen=None):
            super().__init__()
            self.one, self.two, self.chosen = library.layers.Dense(2), library.layers.Dense(2), chosen

        def build(self, shape):
            self.gain = self.add_weight(name="gain", shape=(2,))
            for layer in (self.one, self.two):
                layer.build((None, 2))

        def call(self, x):
            return self.two(self.one(x * self.gain))

    class NamingBlock(Block):
        def get_prunable_weights(self):
            return self.chosen() if self.chosen else [self.gain, self.two.kernel, self.two.bias]

    return {kind.__name__: kind for kind in (Matrix, Naming, _Private, Block, NamingBlock)}


def cases(library):
    """By name: the shape of the input, how to make the layer, what is prunable, what is not and why."""
    layers, own = library.layers, custom(library)
    keras3 = library.__name__ == "keras"

    class Leaky(layers.PReLU):
        pass

    def attention():
        layer = layers.MultiHeadAttention(2, 3)
        return lambda x: layer(x, x)

    def nested():
        inner = library.Sequential([layers.InputLayer((4,)), layers.Dense(5), layers.Dense(4, name="head")])
        return lambda x: inner(layers.Dense(4)(x))

    def cell(path):
        """What is not prunable in the cell of a recurrent layer."""
        return {f"{path}/bias": BIAS} | ({f"{path}/seed_generator_state": STATE} if keras3 else {})

    ways = [f"bidirectional/{way}_lstm/lstm_cell" for way in ("forward", "backward")]
    parts = [f"multi_head_attention/{part}" for part in ("query", "key", "value", "attention_output")]
    statistics = {"batch_normalization/moving_mean": STATE, "batch_normalization/moving_variance": STATE}
    return {
        "Dense": ((4,), lambda: layers.Dense(3), ["dense/kernel"], {"dense/bias": BIAS}),
        "EinsumDense": (
            (4, 5),
            lambda: layers.EinsumDense("abc,cd->abd", output_shape=(None, 3), bias_axes="d"),
            ["einsum_dense/kernel"],
            {"einsum_dense/bias": BIAS},
        ),
        "Conv1D": ((8, 2), lambda: layers.Conv1D(3, 2), ["conv1d/kernel"], {"conv1d/bias": BIAS}),
        "Conv2D": ((8, 8, 2), lambda: layers.Conv2D(3, 2), ["conv2d/kernel"], {"conv2d/bias": BIAS}),
        "Conv3D": ((5, 5, 5, 2), lambda: layers.Conv3D(3, 2), ["conv3d/kernel"], {"conv3d/bias": BIAS}),
        "Conv1DTranspose": (
            (8, 2),
            lambda: layers.Conv1DTranspose(3, 2),
            ["conv1d_transpose/kernel"],
            {"conv1d_transpose/bias": BIAS},
        ),
        "Conv2DTranspose": (
            (8, 8, 2),
            lambda: layers.Conv2DTranspose(3, 2),
            ["conv2d_transpose/kernel"],
            {"conv2d_transpose/bias": BIAS},
        ),
        "Conv3DTranspose": (
            (5, 5, 5, 2),
            lambda: layers.Conv3DTranspose(3, 2),
            ["conv3d_transpose/kernel"],
            {"conv3d_transpose/bias": BIAS},
        ),
        "DepthwiseConv1D": (
            (8, 2),
            lambda: layers.DepthwiseConv1D(2),
            ["depthwise_conv1d/kernel"],
            {"depthwise_conv1d/bias": BIAS},
        ),
        "DepthwiseConv2D": (
            (8, 8, 2),
            lambda: layers.DepthwiseConv2D(2),
            ["depthwise_conv2d/kernel"],
            {"depthwise_conv2d/bias": BIAS},
        ),
        "SeparableConv1D": (
            (8, 2),
            lambda: layers.SeparableConv1D(3, 2),
            ["separable_conv1d/depthwise_kernel", "separable_conv1d/pointwise_kernel"],
            {"separable_conv1d/bias": BIAS},
        ),
        "SeparableConv2D": (
            (8, 8, 2),
            lambda: layers.SeparableConv2D(3, 2),
            ["separable_conv2d/depthwise_kernel", "separable_conv2d/pointwise_kernel"],
            {"separable_conv2d/bias": BIAS},
        ),
        "Embedding": ((4,), lambda: layers.Embedding(7, 3), ["embedding/embeddings"], {}),
        "LSTM": (
            (4, 2),
            lambda: layers.LSTM(3),
            ["lstm/lstm_cell/kernel", "lstm/lstm_cell/recurrent_kernel"],
            cell("lstm/lstm_cell"),
        ),
        "GRU": (
            (4, 2),
            lambda: layers.GRU(3),
            ["gru/gru_cell/kernel", "gru/gru_cell/recurrent_kernel"],
            cell("gru/gru_cell"),
        ),
        "SimpleRNN": (
            (4, 2),
            lambda: layers.SimpleRNN(3),
            ["simple_rnn/simple_rnn_cell/kernel", "simple_rnn/simple_rnn_cell/recurrent_kernel"],
            cell("simple_rnn/simple_rnn_cell"),
        ),
        "Bidirectional": (
            (4, 2),
            lambda: layers.Bidirectional(layers.LSTM(3)),
            [f"{way}/{kernel}" for way in ways for kernel in ("kernel", "recurrent_kernel")],
            cell(ways[0]) | cell(ways[1]),
        ),
        "TimeDistributed": (
            (4, 2),
            lambda: layers.TimeDistributed(layers.Dense(3)),
            ["time_distributed/dense/kernel"],
            {"time_distributed/dense/bias": BIAS},
        ),
        "MultiHeadAttention": (
            (4, 5),
            attention,
            [f"{part}/kernel" for part in parts],
            {f"{part}/bias": BIAS for part in parts},
        ),
        "Normalization": (
            (4, 3),
            # Over two axes, scale and shift are matrices.
            lambda: library.Sequential([layers.LayerNormalization(axis=(1, 2)), layers.BatchNormalization()]),
            [],
            {
                f"sequential/{name}": reason
                for name, reason in (
                    {f"{way}_normalization/{part}": SCALE for way in ("layer", "batch") for part in ("gamma", "beta")}
                    | statistics
                ).items()
            },
        ),
        "PReLU": (
            (4, 3),
            # A slope for each entry of its input, whatever the class derived from it is called.
            lambda: library.Sequential([layers.PReLU(), Leaky(), layers.PReLU(shared_axes=[1])]),
            [],
            {f"sequential/{name}/alpha": SLOPE for name in ("p_re_lu", "leaky", "p_re_lu_1")},
        ),
        "Matrix": (
            (2,),
            own["Matrix"],
            ["matrix/matrix"],
            {"matrix/vector": VECTOR, "matrix/counts": "not floating point", "matrix/state": STATE},
        ),
        "Naming": (
            (2,),
            own["Naming"],
            ["naming/vector"],
            {"naming/matrix": NOT_NAMED, "naming/counts": "not floating point", "naming/state": STATE},
        ),
        "_Private": (
            (2,),
            own["_Private"],
            ["__private/matrix"],
            {"__private/vector": VECTOR, "__private/counts": "not floating point", "__private/state": STATE},
        ),
        "Block": (
            (2,),
            own["Block"],
            ["block/dense/kernel", "block/dense_1/kernel"],
            {"block/gain": VECTOR, "block/dense/bias": BIAS, "block/dense_1/bias": BIAS},
        ),
        "NamingBlock": (
            (2,),
            own["NamingBlock"],
            ["naming_block/gain", "naming_block/dense_1/kernel", "naming_block/dense_1/bias"],
            {"naming_block/dense/kernel": NOT_NAMED, "naming_block/dense/bias": NOT_NAMED},
        ),
        "nested": (
            (4,),
            nested,
            ["dense/kernel", "sequential/dense/kernel", "sequential/head/kernel"],
            {"dense/bias": BIAS, "sequential/dense/bias": BIAS, "sequential/head/bias": BIAS},
        ),
    }  # fmt: skip


CASES = [
    "Dense", "EinsumDense", "Conv1D", "Conv2D", "Conv3D", "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose",
    "DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D", "Embedding", "LSTM", "GRU", "SimpleRNN",
    "Bidirectional", "TimeDistributed", "MultiHeadAttention", "Normalization", "PReLU", "Matrix", "Naming", "_Private",
    "Block", "NamingBlock", "nested",
]  # fmt: skip


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize("name", CASES)
def test_each_layer_has_its_names_and_reasons(library, name, rng):
    library = pytest.importorskip(library)
    assert list(cases(library)) == CASES
    shape, make, prunable, unprunable = cases(library)[name]

    def build():
        x = library.layers.Input(shape)
        return library.Model(x, make()(x))

    model = build()
    assert list(weights.prunable(model)) == prunable
    assert weights.unprunable(model) == unprunable
    others(library, make)  # of the same types too
    again = build()
    assert list(weights.prunable(again)) == prunable
    assert weights.unprunable(again) == unprunable
    assert list(weights.variables(again)) == list(weights.variables(model))
    assert set(weights.variables(again)) == set(prunable) | set(unprunable)

    with_biases = weights.prunable(model, biases=True)
    assert set(with_biases) == set(prunable) | {name for name, reason in unprunable.items() if reason == BIAS}
    assert weights.unprunable(model, biases=True) == {
        name: reason for name, reason in unprunable.items() if reason != BIAS
    }

    for values in (weights.read_state(model), weights.read(model, biases=True)):
        values = {key: rng.integers(-9, 9, value.shape).astype(value.dtype) for key, value in values.items()}
        weights.assign(again, values)
        now = weights.read_state(again)
        for key, value in values.items():
            assert now[key].dtype == value.dtype
            np.testing.assert_array_equal(now[key], value)


def test_scales_of_several_axes_and_slopes_stay_beside_what_is_pruned_around_them():
    """Slopes begin at zero, so ranked with kernels they would go first."""
    import keras

    from lottery import pruning

    layers = keras.layers
    stack = [layers.Conv2D(4, 3), layers.PReLU(), layers.RMSNormalization(axis=(1, 2, 3)), layers.Flatten()]
    model = keras.Sequential([keras.Input((8, 8, 1)), *stack, layers.Dense(3)])
    kept = pruning.prune(model, sparsity=0.25, scope="global")
    assert {name: mask.size for name, mask in kept.items()} == {"conv2d/kernel": 36, "dense/kernel": 432}
    assert sum(np.count_nonzero(mask) for mask in kept.values()) == 351
    reasons = weights.unprunable(model)
    assert (reasons["p_re_lu/alpha"], reasons["rms_normalization/scale"]) == (SLOPE, SCALE)

    class Own(layers.Layer):  # whatever a layer of yours calls its weight, it counts
        def build(self, shape):
            self.scale, self.alpha = (self.add_weight(name=name, shape=(2, 3)) for name in ("scale", "alpha"))

        def call(self, x):
            return x

    assert list(weights.prunable(keras.Sequential([keras.Input((2,)), Own()]))) == ["own/scale", "own/alpha"]


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_the_variables_of_a_frozen_layer_are_not_trainable(library):
    library = pytest.importorskip(library)
    frozen = library.layers.Dense(3, trainable=False)
    model = library.Sequential([library.layers.InputLayer((4,)), frozen, library.layers.Dense(2)])
    assert list(weights.prunable(model, biases=True)) == ["dense_1/kernel", "dense_1/bias"]
    assert weights.unprunable(model) == {"dense/kernel": STATE, "dense/bias": STATE, "dense_1/bias": BIAS}
    model.trainable = False
    assert weights.read(model) == {}


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_what_a_layer_names_is_checked(library):
    library = pytest.importorskip(library)

    def model(chosen):
        layer = custom(library)["NamingBlock"](lambda: chosen)
        return library.Sequential([library.layers.InputLayer((2,)), layer])

    elsewhere = library.layers.Dense(2)
    elsewhere.build((None, 2))
    for chosen in ([elsewhere.kernel], elsewhere.kernel, 3):
        with pytest.raises(
            LotteryError, match="get_prunable_weights.* must return a list of the layer's own variables"
        ):
            weights.prunable(model(chosen))
    assert list(weights.prunable(model(()))) == []


def test_a_wrapper_of_tfmot_is_not_the_users_word():
    library = pytest.importorskip("tf_keras")
    sparsity = pytest.importorskip("tensorflow_model_optimization").sparsity.keras
    layers = library.layers

    def own_names(chosen):
        return [name.rsplit("/", 1)[-1] for name in chosen]

    built_in = [sparsity.prune_low_magnitude(layer) for layer in (layers.Dense(2), layers.LSTM(3))]
    assert hasattr(built_in[0].layer, "get_prunable_weights")  # the kernel alone
    model = library.Sequential([layers.InputLayer((2,)), built_in[0], layers.Reshape((1, 2)), built_in[1]])
    assert own_names(weights.prunable(model)) == ["kernel", "kernel", "recurrent_kernel"]
    biases = weights.prunable(model, biases=True)
    assert own_names(biases) == ["kernel", "bias", "kernel", "recurrent_kernel", "bias"]

    # What a layer's class says is heard under the wrapper too.
    wrapped = sparsity.prune_low_magnitude(custom(library)["NamingBlock"]())
    model = library.Sequential([layers.InputLayer((2,)), wrapped])
    assert own_names(weights.prunable(model)) == ["gain", "kernel", "bias"]


def test_every_weight_that_is_not_pruned_has_its_reason():
    import keras

    layers = keras.layers
    frozen = layers.Dense(3, trainable=False)
    model = keras.Sequential(
        [keras.Input((4,)), frozen, layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(2)]
    )
    reasons = weights.unprunable(model)
    assert reasons["dense/kernel"] == "not trainable"
    assert reasons.get("dense_1/bias") == "a bias"
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
    model = lenet_300_100((4,), 3, library)
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


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_only_the_free_or_only_the_locked_entries_of_a_tensor_are_assigned(library, rng):
    library = pytest.importorskip(library)
    model = lenet_300_100((4,), 3, library)
    free = {name: rng.random(value.shape) < 0.3 for name, value in weights.read(model).items()}
    locked = {name: ~mask for name, mask in free.items()}
    before = weights.read_state(model)
    new = {name: rng.normal(size=value.shape).astype(np.float32) for name, value in before.items()}

    # One weight out of three that have a mask, one that has none.
    some = {name: new[name] for name in ("dense_1/kernel", "dense/bias")}
    weights.assign(model, some, only=free)
    now = weights.read_state(model)
    for name, value in before.items():
        expected = value.copy()
        if name in some:
            for index in np.ndindex(value.shape):
                if name not in free or free[name][index]:
                    expected[index] = new[name][index]
        assert now[name].tobytes() == expected.tobytes(), name

    weights.assign(model, before)
    weights.assign(model, {name: new[name].astype(np.float64) for name in locked}, only=locked)
    for name, value in weights.read(model).items():
        np.testing.assert_array_equal(value[free[name]], before[name][free[name]])
        np.testing.assert_array_equal(value[locked[name]], new[name][locked[name]])
    weights.assign(model, {name: new[name] for name in free}, only=free)  # both together are everything
    for name, value in weights.read(model).items():
        assert value.tobytes() == new[name].tobytes()

    with pytest.raises(LotteryError, match="Did you mean 'dense/kernel'"):
        weights.assign(model, before, only={"dense/kernl": free["dense/kernel"]})
    with pytest.raises(LotteryError, match="must be a boolean array"):
        weights.assign(model, before, only={"dense/kernel": free["dense/kernel"].astype(float)})
    assert weights.read(model)["dense/kernel"].tobytes() == new["dense/kernel"].tobytes()


def test_what_is_read_stays_when_the_model_changes():
    model = lenet_300_100((4,), 3)
    read = weights.read(model)
    copy = {name: value.copy() for name, value in read.items()}
    for variable in model.trainable_variables:
        variable.assign_add(variable * 0 + 1)
    for name in read:
        np.testing.assert_array_equal(read[name], copy[name])


def test_bad_assignments_change_nothing():
    model = lenet_300_100((4,), 3)
    before = weights.read_state(model)
    good = {"dense/kernel": before["dense/kernel"] + 1}
    with pytest.raises(LotteryError, match="Did you mean 'dense/kernel'"):
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
    with pytest.raises(LotteryError, match="must be a Keras model, not function"):
        weights.read(lenet_300_100)
