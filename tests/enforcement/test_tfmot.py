"""The bridge to tfmot: its own functions are the witness, and what it gets wrong is shown to be so."""

import numpy as np
import pytest

from lottery import masks, weights
from lottery.enforcement import tfmot
from lottery.errors import LotteryError
from lottery.models import outputs

keras = pytest.importorskip("tf_keras")
layers = keras.layers
OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
}


def sparsity():
    import tensorflow_model_optimization

    return tensorflow_model_optimization.sparsity.keras


def dense():
    return keras.Sequential([layers.InputLayer((6,)), layers.Dense(12, "relu"), layers.Dropout(0.1), layers.Dense(3)])


def conv():
    image = layers.Input((6, 6, 2))
    x = layers.BatchNormalization()(layers.Conv2D(4, 3, activation="relu")(image))
    return keras.Model(image, layers.Dense(3)(layers.Flatten()(x)))


def text():
    words = layers.Input((5,), dtype="int32")
    return keras.Model(words, layers.Dense(3)(layers.LSTM(4)(layers.Embedding(9, 6)(words))))


def attention():
    x = layers.Input((4, 6))
    y = layers.MultiHeadAttention(2, 3)(x, x)
    return keras.Model(x, layers.Dense(3)(layers.Flatten()(layers.Add()([x, y]))))


def nested():
    """Branches; a model inside that is used twice, a model inside that and outside too, as is a layer of its own."""
    twice = layers.Dense(6, "relu")
    x = layers.Input((6,))
    core = keras.Sequential([layers.InputLayer((6,)), twice, layers.Dense(5, name="head")])
    inner = keras.Model(x, layers.Concatenate()([core(x), layers.Dense(4)(x)]))
    one, two = layers.Input((6,), name="one"), layers.Input((6,), name="two")
    joined = layers.Add()([inner(layers.Dense(6)(one)), inner(twice(two))])
    return keras.Model([one, two], {"out": layers.Dense(3)(joined * 2.0), "side": layers.Dense(2)(core(two))})


def tree():
    """tf_keras itself cannot load what `nested` shares."""
    x = layers.Input((6,))
    return keras.Model(
        x, layers.Dense(2)(keras.Sequential([layers.InputLayer((4,)), layers.Dense(3)])(layers.Dense(4)(x)))
    )


NETWORKS = {"dense": dense, "conv": conv, "text": text, "attention": attention, "nested": nested}


def example(model, num_examples=8, seed=0):
    """Inputs, and outputs to learn, by an rng of their own."""
    import tensorflow as tf

    rng = np.random.default_rng(seed)

    def make(spec):
        shape = (num_examples, *spec.shape[1:])
        return rng.integers(0, 9, shape) if "int" in str(spec.dtype) else rng.normal(size=shape).astype("float32")

    x = tf.nest.map_structure(make, model.input)
    y = tf.nest.map_structure(lambda spec: rng.normal(size=(num_examples, *spec.shape[1:])), model.output)
    return x, y


def ticket(model, density=0.3, seed=0):
    """Masks far sparser than tfmot's default target, put on the model."""
    rng = np.random.default_rng(seed)
    kept = {name: rng.random(value.shape) < density for name, value in weights.read(model).items()}
    weights.assign(model, masks.apply(weights.read(model), kept))
    return kept


def train(model, num_steps, optimizer="adam", callbacks=()):
    import tensorflow as tf

    x, y = example(model, 8 * num_steps)
    if getattr(model, "optimizer", None) is None:
        model.compile(OPTIMIZERS[optimizer](), "mse")
        model.optimizer.build(model.trainable_variables)  # later, the train function would be traced twice
    # Of arrays, Keras takes longer to make a data set than to train on it.
    inputs = tuple(x) if isinstance(x, list) else x
    batches = tf.data.Dataset.from_tensor_slices((inputs, y)).batch(8)
    history = model.fit(batches, verbose=0, callbacks=list(callbacks))
    assert np.isfinite(history.history["loss"]).all()
    return x


def assert_same(one, other):
    assert list(one) == list(other)
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def assert_zero(model, kept):
    for name, mask in kept.items():
        value = weights.variables(model)[name].numpy()
        assert value[~mask].tobytes() == bytes(value[~mask].nbytes), name  # negative zero is another one


def raw_masks(model):
    """What the wrappers' variables say, past our own names."""
    return {
        id(weight): mask.numpy()
        for layer in model._flatten_layers()
        if type(layer).__name__ == "PruneLowMagnitude"
        for weight, mask, _ in layer.pruning_vars
    }


def assert_holds(model, kept):
    """The variables of tfmot's wrappers are these masks, by the identity of the weight, and no others prune."""
    found, named = raw_masks(model), weights.variables(model)
    for name, mask in kept.items():
        np.testing.assert_array_equal(found[id(named[name])], mask.astype("float32"), err_msg=name)
    assert all((found[id(named[name])] == 1).all() for name in named if id(named[name]) in found and name not in kept)


@pytest.mark.parametrize(
    ("network", "optimizer"),
    [("dense", "momentum"), ("conv", "adam"), ("text", "momentum"), ("nested", "adam")],
)
def test_a_wrapped_ticket_is_never_revived(network, optimizer):
    plain = NETWORKS[network]()
    kept = ticket(plain)
    model = tfmot.wrap(plain, kept)
    assert_holds(model, kept)
    start = weights.read(plain)
    x = train(model, 50, optimizer)
    assert_holds(model, kept)
    model(x)  # as tfmot does it: only a forward pass makes them zero
    for name, value in weights.read(model).items():
        assert not value[~kept[name]].any(), name
        assert np.mean(value[kept[name]] != start[name][kept[name]]) > 0.4, name


def test_plain_tfmot_revives_it():
    """Pitfall 9, for real: were this to be mended there, the test above would prove less."""
    plain = dense()
    kept = ticket(plain)
    model = sparsity().prune_low_magnitude(plain, sparsity().ConstantSparsity(0.5, 0, frequency=1))
    train(model, 3, callbacks=[sparsity().UpdatePruningStep()])
    revived = tfmot.read_masks(model)
    assert all(revived[name].mean() > 0.49 > mask.mean() for name, mask in kept.items())
    assert all(revived[name][~mask].any() for name, mask in kept.items())


@pytest.mark.parametrize("network", NETWORKS)
def test_weights_are_zero_at_once_and_shared_and_what_has_no_mask_is_not_wrapped(network):
    plain = NETWORKS[network]()
    before = weights.read_state(plain)
    rng = np.random.default_rng(1)
    names = list(weights.read(plain))
    kept = {name: rng.random(before[name].shape) < 0.5 for name in names[1:]}
    model = tfmot.wrap(plain, kept)
    assert_zero(plain, kept)
    assert_zero(model, kept)
    after = weights.read_state(plain)
    for name, value in before.items():
        mask = kept.get(name, True)
        np.testing.assert_array_equal(after[name], np.where(mask, value, 0), err_msg=name)
    wrapped, expected = set(raw_masks(model)), {id(weights.variables(plain)[name]) for name in kept}
    # The weights of an attention are in one wrapper, so that its first one is there without being masked.
    assert wrapped == expected | ({id(weights.variables(plain)[names[0]])} if network == "attention" else set())
    inputs, _ = example(plain)
    import tensorflow as tf

    for one, other in zip(tf.nest.flatten(plain(inputs)), tf.nest.flatten(model(inputs)), strict=True):
        np.testing.assert_array_equal(one, other)


# Not a layer that is used inside and outside, which tfmot wraps twice.
@pytest.mark.parametrize(
    ("network", "by_tfmot"),
    [*((name, False) for name in NETWORKS), *((name, True) for name in NETWORKS if name != "nested")],
)
def test_names_are_those_of_the_plain_model(network, by_tfmot):
    plain = NETWORKS[network]()
    named, prunable = weights.variables(plain), list(weights.prunable(plain))
    # One layer is wrapped, so that siblings of one class are and are not; or everything is, Dropout included.
    last = {prunable[-1]: np.ones(named[prunable[-1]].shape, bool)}
    wrapped = sparsity().prune_low_magnitude(plain) if by_tfmot else tfmot.wrap(plain, last)
    again = weights.variables(wrapped)
    assert [name for name in again if name in named] == list(named)
    assert all(again[name] is variable for name, variable in named.items())
    own = [name for name in again if name not in named]
    assert len(own) >= 3
    for name in own:
        assert name.rsplit("/", 1)[-1].rstrip("_0123456789") in ("mask", "threshold", "pruning_step")
        assert weights.unprunable(wrapped)[name] == "not trainable"
    assert list(weights.prunable(wrapped)) == prunable


def test_names_of_the_wrappers_own_variables():
    plain = text()
    model = tfmot.wrap(plain, masks.ones_like(weights.read(plain)))
    assert [name for name in weights.variables(model) if name.startswith("lstm/")] == [
        "lstm/lstm_cell/kernel", "lstm/lstm_cell/recurrent_kernel", "lstm/lstm_cell/bias", "lstm/mask",
        "lstm/threshold", "lstm/mask_1", "lstm/threshold_1", "lstm/pruning_step",
    ]  # fmt: skip
    found = tfmot.find(model)
    assert list(found) == list(weights.read(plain))
    for name, one in found.items():
        assert one.variable is weights.variables(plain)[name]
        assert any(weight is one.variable and mask is one.mask for weight, mask, _ in one.wrapper.pruning_vars)
    assert tfmot.find(plain) == {}


@pytest.mark.parametrize("network", ["conv"])
def test_masks_are_read_from_what_tfmot_pruned_by_itself(network):
    schedule = sparsity().PolynomialDecay(0.2, 0.7, begin_step=0, end_step=8, frequency=2)
    model = sparsity().prune_low_magnitude(NETWORKS[network](), schedule)
    train(model, 12, callbacks=[sparsity().UpdatePruningStep()])
    found = tfmot.read_masks(model)
    assert list(found) == list(weights.read(model))
    assert_same(found, {name: value != 0 for name, value in weights.read(model).items()})
    for mask in found.values():
        assert mask.dtype == np.bool_ and np.count_nonzero(mask) == max(round(mask.size * 0.3), 1)
    plain = tfmot.strip(model)
    assert_same(weights.read(plain), weights.read(model))


@pytest.mark.parametrize("arguments", [{}, {"sparsity_m_by_n": (2, 4)}])
def test_silenced_wrappers_compute_nothing_until_they_are_restored(arguments):
    plain = keras.Sequential([layers.InputLayer((6,)), layers.Dense(8, "relu"), layers.Dense(4)])
    schedule = sparsity().ConstantSparsity(0.25, 0, frequency=1)
    model = sparsity().prune_low_magnitude(plain, schedule, **arguments)
    model.compile("sgd", "mse")
    first = {one.wrapper: int(one.wrapper.pruning_step.numpy()) for one in tfmot.find(model).values()}
    for _ in range(2):  # traced with tfmot's schedule the second time
        before = tfmot.silence(model)
        start = tfmot.read_masks(model)
        assert {id(wrapper) for wrapper, _, _ in before} == {id(wrapper) for wrapper in first}
        train(model, 5)
        assert_same(tfmot.read_masks(model), start)
        tfmot.restore(model, before)
        for wrapper, step in first.items():
            assert wrapper.pruning_schedule is schedule
            assert int(wrapper.pruning_step.numpy()) == step
        train(model, 3, callbacks=[sparsity().UpdatePruningStep()])
        assert not all(mask.all() for mask in tfmot.read_masks(model).values())
        first = {wrapper: 3 if step < 0 else step + 3 for wrapper, step in first.items()}


def test_a_model_that_is_wrapped_already_keeps_its_wrappers():
    plain = dense()
    model = sparsity().prune_low_magnitude(plain, sparsity().ConstantSparsity(0.25, 0, frequency=1))
    train(model, 4, callbacks=[sparsity().UpdatePruningStep()])
    theirs = tfmot.read_masks(model)
    kept = {"dense/kernel": np.random.default_rng(2).random((6, 12)) < 0.2}
    assert tfmot.wrap(model, kept) is model
    assert_same(tfmot.read_masks(model), theirs | kept)
    assert_zero(model, theirs | kept)
    train(model, 10)  # without the callback, by a train function that was traced before
    assert_same(tfmot.read_masks(model), theirs | kept)


def test_what_is_not_wrapped_yet_is_added():
    plain = dense()
    kept = ticket(plain)
    half = tfmot.wrap(plain, {"dense/kernel": kept["dense/kernel"]})
    assert list(tfmot.read_masks(half)) == ["dense/kernel"]
    whole = tfmot.wrap(half, {"dense_1/kernel": kept["dense_1/kernel"]})
    assert_same(tfmot.read_masks(whole), kept)
    assert whole.layers[0] is half.layers[0] and tfmot.find(half)["dense/kernel"].wrapper is half.layers[0]
    train(whole, 3)
    assert_holds(whole, kept)


@pytest.mark.parametrize("network", NETWORKS)
def test_strip_gives_the_plain_model_with_exact_zeros(network):
    import tensorflow as tf

    plain = NETWORKS[network]()
    kept = ticket(plain)
    model = tfmot.wrap(plain, kept)
    x, _ = example(model)
    if network == "dense":
        train(model, 5, "momentum")
    else:  # what an update does, without the seconds that tracing takes
        weights.assign(model, {name: value - 0.01 for name, value in weights.read(model).items()})
    trained = weights.read_state(plain)
    assert any(np.any(trained[name][~mask]) for name, mask in kept.items())  # pitfall 10: a step away from zero
    stripped = tfmot.strip(model)
    assert raw_masks(stripped) == {} and type(stripped) is type(plain)
    count = len({id(layer) for layer in plain._flatten_layers()})
    assert {len({id(layer) for layer in one._flatten_layers()}) for one in (model, stripped)} == {
        count + len({id(one.wrapper) for one in tfmot.find(model).values()}),
        count,
    }
    assert_zero(stripped, kept)
    expected = masks.apply(trained, kept)
    assert_same(weights.read_state(stripped), expected)
    fresh = NETWORKS[network]()
    weights.assign(fresh, expected)
    for one, other in zip(tf.nest.flatten(fresh(x)), tf.nest.flatten(stripped(x)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert_holds(tfmot.wrap(stripped, kept), kept)  # and round again


# HDF5 refuses two variables of one name, so tfmot's two masks of an LSTM.
@pytest.mark.parametrize(("network", "suffix"), [(dense, "h5"), (text, "keras"), (tree, "keras")])
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_a_saved_model_needs_nothing_of_ours_and_never_updates(network, suffix, tmp_path):
    plain = network()
    kept = ticket(plain)
    model = tfmot.wrap(plain, kept)
    if network is dense:
        train(model, 2)
    model.save(tmp_path / f"model.{suffix}")
    with sparsity().prune_scope():
        loaded = keras.models.load_model(tmp_path / f"model.{suffix}")
    assert_same(weights.read_state(loaded), weights.read_state(model))
    train(loaded, 30)
    assert_holds(loaded, kept)
    assert_same(tfmot.read_masks(loaded), kept)


# What tfmot cannot hold: layers, the weight that is masked, and what is said of it.
class Own(layers.Dense):
    pass


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.one = layers.Dense(3)

    def call(self, x):
        return self.one(x)


def built_subclassed(shape=(1, 4)):
    model = Subclassed()
    model(np.zeros(shape, "float32"))
    return model


def sequence(*members, shape=(4, 4), **arguments):
    return keras.Sequential([layers.InputLayer(shape, **arguments), *members])


def padded_inside():
    words = layers.Input((5,))
    inside = sequence(layers.LSTM(3), shape=(5, 4))
    return keras.Model(words, inside(layers.Embedding(9, 4, mask_zero=True)(words)))


def stateful():
    return sequence(layers.LSTM(3, stateful=True), shape=(4, 4), batch_size=2)


REFUSED = {
    "depthwise": (lambda: sequence(layers.DepthwiseConv2D(2), shape=(4, 4, 2)), "depthwise_conv2d/kernel",
                  "in a layer of type DepthwiseConv2D it prunes nothing"),
    "separable": (lambda: sequence(layers.SeparableConv1D(3, 2)), "separable_conv1d/depthwise_kernel",
                  "in a layer of type SeparableConv1D it prunes only pointwise_kernel"),
    "bias": (lambda: sequence(layers.LSTM(3)), "lstm/lstm_cell/bias",
             "in a layer of type LSTM it prunes only kernel and recurrent_kernel"),
    "bidirectional": (lambda: sequence(layers.Bidirectional(layers.GRU(3))),
                      "bidirectional/forward_gru/gru_cell/kernel", "does not know the layer Bidirectional"),
    "distributed": (lambda: sequence(layers.TimeDistributed(layers.Dense(3))), "time_distributed/dense/kernel",
                    "does not know the layer TimeDistributed"),
    "einsum": (lambda: sequence(layers.EinsumDense("abc,cd->abd", (None, 3))), "einsum_dense/kernel",
               "does not know the layer EinsumDense"),
    "own": (lambda: sequence(Own(3)), "own/kernel", "does not know the layer Own"),
    "subclassed": (built_subclassed, "dense/kernel", "cannot take apart a subclassed model"),
    "inside": (lambda: sequence(built_subclassed((1, 4, 4))), "subclassed/dense/kernel",
               "cannot take apart a subclassed model"),
    "half": (lambda: sequence(layers.Dense(3, dtype="mixed_float16")), "dense/kernel", "round the weights to float16"),
    "activity": (lambda: sequence(layers.Dense(3, activity_regularizer="l2")), "dense/kernel", "activity regulariser"),
    "stateful": (stateful, "lstm/lstm_cell/kernel", "hide its states from reset_states"),
    "padded": (lambda: sequence(layers.Embedding(9, 4, mask_zero=True), layers.LSTM(3), shape=(5,)),
               "embedding/embeddings", "drop the masks that Keras passes on"),
    "padded inside": (padded_inside, "sequential/lstm/lstm_cell/kernel", "drop the masks that Keras passes on"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*mixed_float16")
@pytest.mark.parametrize("kind", REFUSED)
def test_what_tfmot_cannot_hold_is_refused_before_anything_changes(kind):
    build, name, message = REFUSED[kind]
    model = build()
    before, attributes = weights.read_state(model), [set(vars(layer)) for layer in model._flatten_layers()]
    mask = np.ones(before[name].shape, bool)
    mask.flat[1] = False
    with pytest.raises(LotteryError, match=message) as caught:
        tfmot.wrap(model, {name: mask})
    assert repr(name) in str(caught.value) and "constraint" in str(caught.value)
    assert_same(weights.read_state(model), before)
    assert [set(vars(layer)) for layer in model._flatten_layers()] == attributes
    # A mask that keeps everything has nothing to hold.
    assert tfmot.wrap(model, {name: np.ones_like(mask)}) is model


def test_every_weight_that_cannot_be_held_is_named():
    model = sequence(layers.SeparableConv1D(3, 2), Own(3), layers.Dense(2))
    kept = {name: np.zeros(value.shape, bool) for name, value in weights.read(model).items()}
    with pytest.raises(LotteryError) as caught:
        tfmot.wrap(model, kept)
    named = [name for name in kept if repr(name) in str(caught.value)]
    assert named == ["separable_conv1d/depthwise_kernel", "own/kernel"]


def test_a_class_that_keras_would_lose_is_refused():
    class Mine(keras.Sequential):
        pass

    model = Mine([layers.InputLayer((4,)), layers.Dense(2)])
    before = weights.read_state(model)
    with pytest.raises(LotteryError, match="plain Sequential and drops the methods of Mine"):
        tfmot.wrap(model, {"dense/kernel": np.zeros((4, 2), bool)})
    assert_same(weights.read_state(model), before)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dense/kernal": np.ones((6, 12), bool)}, "Did you mean 'dense/kernel'"),
        ({"dense/kernel": np.ones((6, 30), bool)}, "shape"),
        ({"dense/kernel": np.ones((6, 12))}, "boolean"),
        ([np.ones((6, 12), bool)], "masks must be a dict .*not list"),
    ],
)
def test_wrong_masks_are_refused(wrong, message):
    model = dense()
    before = weights.read_state(model)
    with pytest.raises(LotteryError, match=message):
        tfmot.wrap(model, wrong)
    with pytest.raises(LotteryError, match=message), tfmot.wrapped_in_place(model, wrong):
        pass
    assert_same(weights.read_state(model), before)


def test_keras_3_is_named():
    import keras as keras3

    model = keras3.Sequential([keras3.Input((4,)), keras3.layers.Dense(2)])
    kept = {"dense/kernel": np.zeros((4, 2), bool)}
    with pytest.raises(LotteryError, match="is a Keras 3 Sequential, and tfmot wraps tf_keras models only; build it"):
        tfmot.wrap(model, kept)
    assert tfmot.find(model) == {}
    for function in (tfmot.read_masks, tfmot.strip):
        for plain in (model, dense()):
            with pytest.raises(LotteryError, match="no weights under pruning wrappers"):
                function(plain)


def test_two_wrappers_of_one_weight_are_refused():
    twice = layers.Dense(4)
    x = layers.Input((4,))
    model = keras.Model(x, keras.Sequential([layers.InputLayer((4,)), twice])(twice(x)))
    double = sparsity().prune_low_magnitude(model)  # tfmot wraps it inside, and once more outside
    with pytest.raises(LotteryError, match="two wrappers of tfmot for the same weight"):
        tfmot.find(double)
    assert list(tfmot.read_masks(tfmot.wrap(model, masks.ones_like(weights.read(model))))) == ["dense/kernel"]


def test_strip_notices_that_tfmot_changed_the_network():
    x = np.array([[1, 2, 0, 0, 0], [3, 4, 5, 6, 7]])
    words = layers.Embedding(5000, 4, mask_zero=True)
    plain = sequence(words, layers.LSTM(3), layers.Dense(2), shape=(5,), dtype="int32")
    model = sparsity().prune_low_magnitude(plain)  # loses the masks of padding without a word
    assert np.abs(model(x).numpy() - plain(x).numpy()).max() > 1e-4
    for given in (None, x):
        with pytest.raises(LotteryError, match="tfmot changes what the model .* the outputs differ by"):
            tfmot.strip(model, given)
    tfmot.strip(model, x[1:])  # nothing is padded here


def test_strip_asks_for_an_example_where_none_can_be_made():
    whole = layers.Input((4,), dtype="int32")
    plain = keras.Model(whole, layers.Dense(2)(keras.backend.cast(whole, "float32")))
    model = tfmot.wrap(plain, {"dense/kernel": np.eye(4, 2) > 0})
    with pytest.raises(LotteryError, match="inputs of type int32.*pass an example"):
        tfmot.strip(model)
    with pytest.raises(LotteryError, match="outputs of the model.*are empty"):
        tfmot.strip(model, np.zeros((0, 4), "int32"))
    with pytest.raises(LotteryError, match="fails on the example, pass inputs that it takes"):
        tfmot.strip(model, np.zeros((3, 5), "int32"))
    assert_zero(tfmot.strip(model, np.ones((3, 4), "int32")), {"dense/kernel": np.eye(4, 2) > 0})
    image = layers.Input((None, 2))
    plain = keras.Model(image, layers.GlobalMaxPooling1D()(layers.Conv1D(2, 40)(image)))
    model = tfmot.wrap(plain, {"conv1d/kernel": np.zeros((40, 2, 2), bool)})
    with pytest.raises(LotteryError, match="fails on random inputs, pass some that it takes as example"):
        tfmot.strip(model)


def test_wrappers_inside_a_subclassed_model_are_found_and_stay_there():
    model = Subclassed()
    model.one = sparsity().prune_low_magnitude(model.one, input_shape=(4,))
    model(np.zeros((1, 4), "float32"))
    kept = {"dense/kernel": np.eye(4, 3) > 0}
    assert tfmot.wrap(model, kept) is model
    assert_same(tfmot.read_masks(model), kept)
    assert_zero(model, kept)
    with pytest.raises(LotteryError, match="anew from its layers|take apart"):
        tfmot.strip(model)


def test_how_far_two_models_are_apart():
    def made(kernel):
        model = sequence(layers.Dense(2, use_bias=False), shape=(2,))
        model.layers[0].kernel.assign(kernel)
        return model

    x, one = np.ones((1, 2), "float32"), np.array([[1.0, 2.0], [-4.0, 3.0]])  # the outputs are -3 and 5
    for moved, expected in [(0.0, 0), (1e-3, 1e-3 / 5), (np.nan, np.inf), (np.inf, np.inf)]:
        other = one + np.array([[moved, 0], [0, 0]])
        assert outputs.largest_difference(made(one), made(other), x) == pytest.approx(expected, rel=1e-3)
        assert outputs.largest_difference(made(other), made(other), x) == 0
    assert outputs.largest_difference(made(one), made(one + 1e-3)) > 1e-5
    assert outputs.largest_difference(made(one * 0), made(one)) > 1


@pytest.mark.parametrize("kind", ["bidirectional", "distributed", "inside", "activity", "stateful"])
def test_in_place_holds_wherever_a_layer_is_called(kind):
    """Before a forward pass the weights are what they were, after it masked; and the model is left as it was."""
    build, name, _ = REFUSED[kind]
    model = build()
    layer_attributes = [(layer, set(vars(layer))) for layer in model._flatten_layers()]
    before = weights.read_state(model)
    mask = np.random.default_rng(0).random(before[name].shape) < 0.5
    x = np.ones((2, *(model.input_shape[1:] if kind != "subclassed" else (4,))), "float32")
    other = build()
    weights.assign(other, masks.apply(before, {name: mask}))
    with tfmot.wrapped_in_place(model, {name: mask}):
        assert_same(weights.read_state(model), before)
        outputs = model(x, training=True)
        assert_same(weights.read(model), weights.read(other))
    np.testing.assert_array_equal(outputs, other(x, training=True))
    for layer, attributes in layer_attributes:
        assert set(vars(layer)) - attributes <= {"_keras_api_names"}, layer.name
    weights.assign(model, before)
    model(x)
    assert_same(weights.read(model), {key: before[key] for key in weights.read(model)})


@pytest.mark.filterwarnings("ignore:.*mixed_float16")
def test_in_place_does_not_round_weights_of_mixed_precision():
    """Nor does tfmot itself need to: it reads what Keras has cast, and puts that back."""
    x = np.ones((2, 4), "float32")
    mask = np.eye(4, 3) > 0
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        plain = sequence(layers.Dense(3), shape=(4,))
        before = weights.read(plain)["dense/kernel"]
        with tfmot.wrapped_in_place(plain, {"dense/kernel": mask}):
            plain(x)
        np.testing.assert_array_equal(weights.read(plain)["dense/kernel"], np.where(mask, before, 0))
        sparsity().prune_low_magnitude(plain)(x)
        assert np.any(weights.read(plain)["dense/kernel"] != np.where(mask, before, 0))
    finally:
        keras.mixed_precision.set_global_policy("float32")


def test_in_place_follows_masks_that_are_assigned_and_gives_wrappers_back():
    import tensorflow as tf

    first, second = (np.random.default_rng(seed).random((6, 12)) < 0.5 for seed in (0, 1))
    x = np.ones((2, 6), "float32")
    for wrapped in (False, True):
        model = dense()
        if wrapped:
            model = sparsity().prune_low_magnitude(model, sparsity().ConstantSparsity(0.25, 0, frequency=1))
            train(model, 4, callbacks=[sparsity().UpdatePruningStep()])
            theirs = tfmot.read_masks(model)
            steps = [int(one.wrapper.pruning_step.numpy()) for one in tfmot.find(model).values()]
        held = tf.Variable(first)
        with tfmot.wrapped_in_place(model, {"dense/kernel": held}):
            call = tf.function(lambda model=model: model(x, training=True))
            for mask in (first, second):
                held.assign(mask)
                variable = weights.variables(model)["dense/kernel"]
                variable.assign(tf.ones_like(variable))
                call()
                np.testing.assert_array_equal(variable.numpy(), mask)
            assert call.experimental_get_tracing_count() == 1
            if wrapped:
                train(model, 5)
        if wrapped:
            assert_same(tfmot.read_masks(model), theirs)
            assert steps == [int(one.wrapper.pruning_step.numpy()) for one in tfmot.find(model).values()]


def test_in_place_a_layer_still_gets_what_it_asks_for():
    """TimeDistributed passes on the masks of padded inputs, to a layer whose ``call`` names them."""
    words = layers.Embedding(9, 4, mask_zero=True)
    model = sequence(words, layers.TimeDistributed(layers.SimpleRNN(3)), shape=(2, 5), dtype="int32")
    x = np.array([[[1, 2, 0, 0, 0], [3, 4, 5, 6, 7]]])
    before = model(x).numpy()
    with tfmot.wrapped_in_place(model, masks.ones_like(weights.read(model))):
        np.testing.assert_array_equal(model(x), before)


def test_in_place_refuses_what_tfmot_does_not_prune_also_if_it_may_come_to_it():
    import tensorflow as tf

    build, name, message = REFUSED["depthwise"]
    model = build()
    shape = weights.variables(model)[name].shape
    for mask in (np.zeros(shape, bool), tf.Variable(np.ones(shape, bool))):
        with pytest.raises(LotteryError, match=message), tfmot.wrapped_in_place(model, {name: mask}):
            pass
    with tfmot.wrapped_in_place(model, {name: np.ones(shape, bool)}):
        pass
    assert not any("get_prunable_weights" in vars(layer) for layer in model._flatten_layers())
