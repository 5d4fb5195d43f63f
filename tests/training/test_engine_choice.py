"""The two engines behind a trainer: which trains a network, and that nothing else notices."""

import importlib

import numpy as np
import pytest

import lottery
from lottery import config, data, interrupts, masks, weights
from lottery.analysis import costs
from lottery.enforcement import ENFORCEMENTS
from lottery.errors import LotteryError
from lottery.runs.stored import stored_rounds
from lottery.sparse import kernels, reading
from lottery.training import checkpoints, compiling, engine_choice, schedules
from lottery.training.records import Span
from lottery.training.settings import Train
from lottery.training.trainer import Trainer
from tests.conftest import each_in_both, quietly, shared_trainer, toy_arrays
from tests.training.test_checkpoints import result, stop_after

pytestmark = pytest.mark.usefixtures("compiled_kernels")

SETTINGS = {"num_steps": 60, "batch_size": 32, "eval_every": 20, "learning_rate": 0.01, "jit_compile": False}


def network(library="keras", settings=None, **compiled):
    keras = importlib.import_module(library)
    keras.utils.set_random_seed(3)
    dense = keras.layers.Dense
    model = keras.Sequential([keras.layers.InputLayer((6,)), dense(20, "relu"), dense(16, "tanh"), dense(3, "softmax")])
    if compiled:
        model.compile(**{"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]} | compiled)
    return model


def trainer(library="keras", enforce="constraint", splits=None, **settings):
    settings = Train(**SETTINGS | {"engine": "sparse"} | settings)
    splits = splits or data.given(toy_arrays(np.random.default_rng(1)), data.Data(name="given", validation=50))
    model, step = network(library), schedules.step_variable()
    compiling.compile_model(model, settings, splits.train.x[:8], step)
    return Trainer(model, splits, settings, ENFORCEMENTS[enforce].hold, step)


def masked(model, density=0.4, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.random(value.shape) < density for name, value in weights.read(model).items()}


def trained_by_both(one, start, kept):
    """What the sparse engine and the compiled loop of a trainer make of a network."""
    received = one.train(start, kept, (9,))
    # The compiled loop is there for the comparison of the first steps.
    one.settings = one.settings.model_copy(update={"engine": "compiled"})
    one.network = reading.Obstacle('train.engine is "compiled"')
    expected = one.train(start, kept, (9,))
    one.close()
    assert received.engine["engine"] == "sparse" and expected.engine["engine"] == "compiled"
    return received, expected


@pytest.mark.parametrize(
    ("enforce", "library"),
    [
        ("constraint", "keras"),
        ("constraint", "tf_keras"),
        ("gradient", "keras"),
        ("callback", "tf_keras"),
        ("reparameterization", "keras"),
    ],
)
def test_both_engines_train_the_same_network_in_every_mode(library, enforce):
    one = trainer(library, enforce, drop_at=(30,), warmup_steps=10)
    start, kept = weights.read_state(one.model), masked(one.model)
    received, expected = trained_by_both(one, start, kept)
    assert 0 < received.engine["engine_difference"] < 1e-5 and "engine_difference" not in expected.engine
    assert received.start_sha256 == expected.start_sha256
    for name, value in expected.weights.items():
        np.testing.assert_allclose(received.weights[name], value, atol=1e-4)
    assert not masks.leaks(received.weights, kept) and not masks.leaks(received.early_stop, kept)
    assert [row[:2] for row in received.metrics] == [row[:2] for row in expected.metrics]
    np.testing.assert_allclose([row[2:] for row in received.metrics], [row[2:] for row in expected.metrics], atol=1e-4)
    assert received.summary == pytest.approx(expected.summary, abs=1e-4)
    for name, value in expected.predictions.items():
        assert np.mean(received.predictions[name] == value) > 0.97 and received.predictions[name].dtype == value.dtype


def test_the_sparse_engine_gives_the_same_bits_wherever_it_is_stopped(tmp_path):
    first, second = shared_trainer(trainer), trainer()
    start, kept = weights.read_state(first.model), masked(first.model)
    whole = first.train(start, kept, (9,))
    second.train(start, masked(first.model, 0.6, 1), (8,))  # something else before
    assert result(second.train(start, kept, (9,))) == result(whole)
    for number, stops in enumerate([(0, 1), (2,), (0, 0, 1)]):
        file = tmp_path / f"{number}.safetensors"
        for turn, num in enumerate([*stops, None]):
            one = (first, second)[turn % 2]
            one.seconds_per_step = 0.1  # five steps a piece
            should_stop = interrupts.never if num is None else stop_after(num + 1)
            checkpointer = checkpoints.Checkpointer(file, should_stop=should_stop, note=pytest.fail)
            try:
                again = one.train(start, kept, (9,), checkpointer=checkpointer)
            except interrupts.Stopped:
                assert num is not None
        assert result(again) == result(whole) and again.engine == whole.engine


def test_a_checkpoint_of_the_other_engine_is_not_used(tmp_path):
    one, other, said = shared_trainer(trainer), trainer(engine="compiled"), []
    start, kept, file = weights.read_state(one.model), masked(one.model), tmp_path / "checkpoint.safetensors"
    with pytest.raises(interrupts.Stopped):
        one.train(start, kept, (9,), checkpointer=checkpoints.Checkpointer(file, should_stop=stop_after(1)))
    again = other.train(start, kept, (9,), checkpointer=checkpoints.Checkpointer(file, note=said.append))
    assert result(again) == result(other.train(start, kept, (9,))) and "another training" in said[0]


def test_a_part_of_a_training_and_what_watches_it():
    one = shared_trainer(trainer)
    start, kept, seen = weights.read_state(one.model), masked(one.model), {}
    whole = one.train(start, kept, (9,), watch={25: seen.update})
    rest = one.train(start, kept, (9,), Span(20, 40))
    assert {row[0] for row in rest.metrics} == {20, 40}
    assert not masks.leaks(seen, kept) and any((seen[name] != whole.weights[name]).any() for name in seen)


def test_a_loss_that_is_not_finite_is_noticed():
    one = trainer(learning_rate=1e38, optimizer="sgd")
    with pytest.raises(LotteryError, match=r"training loss .* is (nan|inf)|not finite"):
        one.train(weights.read_state(one.model), masked(one.model), (9,))


@pytest.mark.parametrize("planted", ["weights", "biases"])
def test_an_engine_that_does_not_agree_is_refused(planted, monkeypatch):
    right = kernels.compute

    def wrong(layout, memory, state, *batches):
        parameters, before = state.parameters, state.parameters.copy()
        right(layout, memory, state, *batches)
        if planted == "biases":  # are not trained
            num_weights = layout.places.max() + 1
            parameters[num_weights:] = before[num_weights:]
        else:  # are trained a twentieth too far
            parameters += 0.05 * (parameters - before)

    monkeypatch.setattr(kernels, "compute", wrong)
    one = shared_trainer(trainer)
    with pytest.raises(LotteryError, match="does not agree with the compiled loop"):
        one.train(weights.read_state(one.model), masked(one.model), (9,))


def test_a_corner_that_rounding_decides_is_no_disagreement(rng):
    start = {name: rng.normal(size=shape) for name, shape in {"kernel": (20, 10), "bias": (10,)}.items()}
    expected = {name: value + rng.normal(size=value.shape) for name, value in start.items()}
    received = {name: value + 1e-7 for name, value in expected.items()}
    received["kernel"][:, 3] += 1.0  # a unit went another way
    received["bias"][3] += 0.5
    assert engine_choice.difference(start, expected, received, 10, 0.01) == pytest.approx(1.0, abs=1e-6)
    received["bias"] += 0.5
    with pytest.raises(LotteryError, match="the weights of bias have moved by"):
        engine_choice.difference(start, expected, received, 10, 0.01)
    expected["bias"], received["bias"] = start["bias"], start["bias"] + 1e-3  # and must not have been trained
    with pytest.raises(LotteryError, match="the weights of bias have moved by 0 and differ by 0.001"):
        engine_choice.difference(start, expected, received, 10, 0.01)


def test_auto_counts(monkeypatch):
    one = trainer(engine="auto")
    assert "too short to gain" in str(one.network)
    monkeypatch.setattr(engine_choice, "LEAST_WORK", 1)
    one = trainer(engine="auto")
    sizes = {name: value.size for name, value in weights.read(one.model).items()}
    for num, chosen in (0, "sparse"), (int(0.3 * sum(sizes.values())), "sparse"), (150, "compiled"):
        flat = np.arange(sum(sizes.values())) < num
        parts = np.split(flat, np.cumsum([*sizes.values()])[:-1])
        kept = {
            name: part.reshape(weights.read(one.model)[name].shape) for name, part in zip(sizes, parts, strict=True)
        }
        engine, name, reason = one.engine(kept)
        assert (name, engine is one.loop) == (chosen, chosen == "compiled")
        assert f"{num:,} of 488 multiply-adds are left" in reason
    assert one.engine({})[1] == "compiled"  # nothing is pruned


@pytest.mark.parametrize(("num_threads", "share"), [(1, 0.6 + 80 * 36 * 64 / 670_464), (2, 0.6)])
def test_on_one_thread_normalised_values_leave_more_to_the_sparse_engine(monkeypatch, num_threads, share):
    keras, size = importlib.import_module("keras"), (6, 6, 32)
    convolution, normalisation = keras.layers.Conv2D(64, 3, padding="same"), keras.layers.BatchNormalization()
    last = [keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input(size), convolution, normalisation, *last])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    network, kernel = reading.read(model), weights.read(model)["conv2d/kernel"]
    monkeypatch.setattr(engine_choice, "num_threads", lambda: num_threads)
    most = int((share * 670_464 - 6_912) / 36)
    for num, chosen in (most, "sparse"), (most + 1, "compiled"):
        kept = {"conv2d/kernel": (np.arange(kernel.size) < num).reshape(kernel.shape)}
        assert engine_choice.choose(network, Train(engine="auto"), kept)[0] == chosen


def compiled_network(settings=None, **keys):
    return lambda library: network(library, **{"optimizer": "adam"} | keys)


def built(*layers_of):
    def build(library):
        keras = importlib.import_module(library)
        model = keras.Sequential([keras.layers.InputLayer((6,)), *(make(keras) for make in layers_of)])
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    return build


def last(keras):
    return keras.layers.Dense(3, "softmax")


def branched(library):
    keras = importlib.import_module(library)
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(6, "relu")(inputs)
    model = keras.Model(inputs, last(keras)(keras.layers.Concatenate()([inputs, hidden])))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def used_twice(library):
    keras = importlib.import_module(library)
    inputs, layer = keras.Input((6,)), keras.layers.Dense(6, "relu")
    model = keras.Model(inputs, last(keras)(layer(layer(inputs))))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def with_optimizer(name, **keys):
    def build(library):
        return network(library, optimizer=getattr(importlib.import_module(library).optimizers, name)(**keys))

    return build


def with_loss(make, units=3, activation="softmax"):
    def build(library):
        keras = importlib.import_module(library)
        model = keras.Sequential([keras.layers.InputLayer((6,)), keras.layers.Dense(units, activation)])
        model.compile("adam", make(keras))
        return model

    return build


def focal(keras):
    class Focal(keras.losses.SparseCategoricalCrossentropy):
        def call(self, y_true, y_pred):
            return 2 * super().call(y_true, y_pred)

    return Focal()


def measuring(make):
    return lambda library: network(library, optimizer="adam", metrics=[make(importlib.import_module(library).metrics)])


def normalised_at_inference(library):
    keras = importlib.import_module(library)
    inputs = keras.Input((6,))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(4)(inputs), training=False)
    model = keras.Model(inputs, last(keras)(hidden))
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def with_own_loss(library):
    model = network(library, optimizer="adam")
    original = model.compute_loss
    model.compute_loss = lambda *args, **keys: 2 * original(*args, **keys)
    return model


def without_decay_of_biases(library):
    model = network(library, optimizer=importlib.import_module(library).optimizers.AdamW())
    model.optimizer.exclude_from_weight_decay(var_names=["bias"])
    return model


def of_examples(kind):
    def build(library):
        keras = importlib.import_module(library)
        model = keras.Sequential([keras.layers.InputLayer((6,), dtype=kind), last(keras)])
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    return build


OBSTACLES = {
    "is frozen: without variables to train": built(
        lambda keras: keras.layers.BatchNormalization(scale=False, center=False, trainable=False), last
    ),
    "activation computes in float16": built(lambda keras: keras.layers.Activation("tanh", dtype="float16"), last),
    "takes examples of type int32": of_examples("int32"),
    "a layer changes the shape of what comes out of the softmax": built(last, lambda keras: keras.layers.Reshape((3,))),
    "the model measures accuracy: of one output": built(lambda keras: keras.layers.Dense(1, "softmax")),
    "has a regulariser of its outputs": built(lambda keras: keras.layers.ReLU(activity_regularizer="l2"), last),
    "is called with the argument training": normalised_at_inference,
    "flatten has channels first": built(
        lambda keras: keras.layers.Reshape((2, 3, 1)),
        lambda keras: keras.layers.Flatten(data_format="channels_first"),
        last,
    ),
    "has a slope, a threshold or a limit: 0 is a limit": built(
        lambda keras: keras.layers.Dense(4), lambda keras: keras.layers.ReLU(max_value=0), last
    ),
    "the loss is": with_loss(focal),
    "take the outputs of a sigmoid": with_loss(
        lambda keras: keras.losses.BinaryCrossentropy(from_logits=True), 1, "sigmoid"
    ),
    "the model measures accuracy by SparseTopKCategoricalAccuracy": measuring(
        lambda metrics: metrics.SparseTopKCategoricalAccuracy(2, name="accuracy")
    ),
    "the model measures acc by BinaryAccuracy": measuring(lambda metrics: metrics.BinaryAccuracy("acc")),
    "the model has its own compute_loss": with_own_loss,
    "the optimizer leaves weights out of its decay": without_decay_of_biases,
    "of type Dropout": built(lambda keras: keras.layers.Dropout(0.5), last),
    "a softmax is not the last layer": built(lambda keras: keras.layers.Dense(4, "softmax"), last),
    "of type LayerNormalization": built(lambda keras: keras.layers.LayerNormalization(), last),
    "of type Concatenate": branched,
    "is called more than once": used_twice,
    "normalises along another axis": built(
        lambda keras: keras.layers.Reshape((2, 3, 1)),
        lambda keras: keras.layers.BatchNormalization(axis=1),
        lambda keras: keras.layers.Flatten(),
        last,
    ),
    "has dilation or groups": built(
        lambda keras: keras.layers.Reshape((2, 3, 1)),
        lambda keras: keras.layers.Conv2D(2, 2, padding="same", dilation_rate=2),
        lambda keras: keras.layers.Flatten(),
        last,
    ),
    "takes the entries of another layer in another shape": built(
        lambda keras: keras.layers.Dense(6),
        lambda keras: keras.layers.Reshape((2, 3, 1)),
        lambda keras: keras.layers.Conv2D(2, 2),
        lambda keras: keras.layers.Flatten(),
        last,
    ),
    "has the activation <lambda>": built(lambda keras: keras.layers.Dense(4, lambda x: x * x), last),
    "has a constraint": built(lambda keras: keras.layers.Dense(4, kernel_constraint="non_neg"), last),
    "has a regulariser of its bias": built(lambda keras: keras.layers.Dense(4, bias_regularizer="l2"), last),
    "is frozen": built(lambda keras: keras.layers.Dense(4, trainable=False), last),
    "takes inputs of 2 dimensions": built(
        lambda keras: keras.layers.Reshape((2, 3)),
        lambda keras: keras.layers.Dense(4),
        lambda keras: keras.layers.Flatten(),
        last,
    ),
    "has a slope, a threshold or a limit": built(
        lambda keras: keras.layers.Dense(4), lambda keras: keras.layers.ReLU(max_value=1.0), last
    ),
    "the optimizer is RMSprop": with_optimizer("RMSprop"),
    "the optimizer has clipnorm": with_optimizer("SGD", clipnorm=1.0),
    "the optimizer has amsgrad": with_optimizer("Adam", amsgrad=True),
    "the optimizer has use_ema": with_optimizer("Adam", use_ema=True),
    "the loss is categorical_hinge": compiled_network(loss="categorical_hinge"),
    "the loss is <lambda>": compiled_network(loss=lambda y, p: (y - p) ** 2),
    "the model measures": compiled_network(metrics=["accuracy", "mse"]),
    "the loss has weights": compiled_network(loss_weights=[2.0]),
}


@pytest.mark.filterwarnings("ignore:.*from_logits=True", r"ignore:[\s\S]*softmax over axis")
@pytest.mark.parametrize(("why", "library"), each_in_both(OBSTACLES))
def test_what_the_engine_does_not_take_is_a_sentence(why, library):
    model = OBSTACLES[why](library)
    x, y = np.zeros((4, 6), np.float32), np.zeros((4, 1), np.float32)
    model.test_on_batch(x, np.zeros((4, 3)) if "hinge" in why else y)  # tf_keras makes metrics late
    with pytest.raises(reading.Obstacle) as caught:
        reading.read(model)
    assert why.partition(":")[0] in str(caught.value)


def test_what_variables_have_counts_and_not_what_layers_say():
    """Keras 3 applies the constraint and the regulariser of a variable, and asks it if it is trained."""
    import keras

    def model():
        return network("keras", optimizer="adam")

    kept = model()
    assert reading.read(kept).linear[0].l2 == 0
    kept.layers[0].kernel_regularizer = keras.regularizers.L2(0.1)  # too late
    assert reading.read(kept).linear[0].l2 == 0
    kept.layers[0].kernel.regularizer = keras.regularizers.L2(0.2)
    assert reading.read(kept).linear[0].l2 == pytest.approx(0.2)
    for changed, why in (
        (lambda layer: setattr(layer.kernel, "constraint", keras.constraints.MaxNorm(1)), "has a constraint"),
        (lambda layer: setattr(layer.bias, "regularizer", keras.regularizers.L2(1)), "has a regulariser of its bias"),
        (lambda layer: setattr(layer.bias, "trainable", False), "is frozen"),
    ):
        other = model()
        changed(other.layers[0])
        with pytest.raises(reading.Obstacle, match=why):
            reading.read(other)
    with pytest.raises(reading.Obstacle, match="learning rate is a function"):
        reading.read(network("keras", optimizer=keras.optimizers.Adam(lambda: 1e-3)))
    for plain in (keras.metrics.SparseCategoricalAccuracy("acc"), "accuracy"):
        reading.read(network("keras", optimizer="adam", metrics=[plain]))


def test_losses_that_are_added_to_a_layer_of_tf_keras_are_seen():
    import tf_keras

    own, late = network("tf_keras", optimizer="adam"), network("tf_keras", optimizer="adam")
    own.layers[0].add_loss(lambda: 1.0)
    late.layers[0].kernel_regularizer = tf_keras.regularizers.L2(0.1)
    for model in own, late:
        with pytest.raises(reading.Obstacle, match="a loss of its own, or a regulariser that came after its variables"):
            reading.read(model)


def test_losses_that_are_added_to_a_model_of_tf_keras_are_seen():
    import tf_keras

    own, of_outputs = network("tf_keras", optimizer="adam"), network("tf_keras")
    own.add_loss(lambda: 1.0)
    of_outputs.add_loss(tf_keras.backend.sum(of_outputs.layers[0].output))
    of_outputs.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    for model, why in (own, "the model has a loss of its own"), (of_outputs, "is a layer of type TFOpLambda"):
        with pytest.raises(reading.Obstacle, match=why):
            reading.read(model)


def test_losses_that_keras_3_chooses_by_the_shapes_or_computes_in_another_type():
    import keras

    half = keras.losses.SparseCategoricalCrossentropy(dtype="float16")
    for loss, why in (
        ("crossentropy", "the loss is crossentropy"),
        ("CE", "the loss is CE"),
        (half, "has dtype float16"),
    ):
        with pytest.raises(reading.Obstacle, match=why):
            reading.read(network("keras", optimizer="adam", loss=loss))


def test_labels_that_are_no_whole_numbers_are_left_to_the_compiled_loop(monkeypatch):
    """Keras takes 1.4 for 1."""
    monkeypatch.setattr(engine_choice, "LEAST_WORK", 1)
    x, y, *test = toy_arrays(np.random.default_rng(1))
    splits = data.given((x, y + 0.4, *test), data.Data(name="given", validation=50))
    assert "some labels are not whole numbers" in str(trainer(engine="auto", splits=splits).network)


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_biases_that_normalisation_takes_off_may_go_any_way(library):
    """Their gradients are rounding, in which no two engines agree; the biases of other layers must agree."""
    keras = importlib.import_module(library)
    layers, inputs = keras.layers, keras.Input((8, 8, 1))
    one, other = (layers.Conv2D(4, 3, padding="same", name=name)(inputs) for name in ("one", "other"))
    x = layers.BatchNormalization()(layers.Add()([one, other]))
    x = layers.Conv2D(4, 3, name="read_twice")(layers.ReLU()(x))
    x = layers.Add()([layers.BatchNormalization()(x), x])
    model = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(layers.ReLU()(x))))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    assert sorted(reading.read(model).biases_without_effect) == ["one/bias", "other/bias"]
    start, end = {"one/bias": np.zeros(4)}, {"one/bias": np.full(4, 1e-4)}
    away = {"one/bias": np.full(4, -1e-4)}
    assert engine_choice.difference(start, end, away, 1, 0.05, ["one/bias"]) == 0
    with pytest.raises(LotteryError, match="does not agree"):
        engine_choice.difference(start, end, away, 1, 0.05)


RUN = {
    "name": "engines",
    "data": {"name": "digits", "validation": 200},
    "train": {**SETTINGS, "num_steps": 40},
    "prune": {"num_rounds": 2, "rate": 0.6, "rates": {}},
    "run": {"num_replicates": 1, "controls": ["random_reinit"], "control_rounds": [2]},
}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"data": {"augment": ["flip"], "pixels": "unit_norm"}}, "each augmented image is scaled by its own length"),
        ({"run": {"enforcement": "tfmot"}}, 'run.enforcement is "tfmot"'),
        ({"train": {"precision": "mixed_bfloat16"}}, "computes in bfloat16"),
        ({"train": {"optimizer": "rmsprop"}}, "RMSprop"),
    ],
)
def test_sparse_where_it_cannot_be_is_refused_before_anything_is_written(changed, why, tmp_path):
    tables = config.merged(RUN, changed)
    with pytest.raises(LotteryError, match='^train.engine must be "auto" or "compiled", not "sparse"') as one:
        lottery.run(config.merged(tables, {"train": {"engine": "sparse"}}), out=tmp_path, on_event=quietly)
    assert why in str(one.value) and not list(tmp_path.iterdir())


def test_a_run_whose_engine_changes_between_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_choice, "LEAST_WORK", 1)
    done = lottery.run(RUN, out=tmp_path, tensorboard=False, on_event=quietly)
    records = [stored.record for stored in stored_rounds(done.path)]
    assert [(one["round"], one["branch"], one["engine"]) for one in records] == [
        (0, "ticket", "compiled"), (1, "ticket", "compiled"), (2, "ticket", "sparse"), (2, "random_reinit", "sparse"),
    ]  # fmt: skip
    assert [0 < one.get("engine_difference", 1) < 1e-5 for one in records] == [False, False, True, True]
    assert list(costs.table(done.path)["engine"]) == [one["engine"] for one in records]
    assert not done.verify(recompute=True)
    again = lottery.run(RUN, out=tmp_path / "again", tensorboard=False, on_event=quietly)
    for one, other in zip(stored_rounds(done.path), stored_rounds(again.path), strict=True):
        assert one.record["sha256"] == other.record["sha256"]
        assert one.record.get("engine_difference") == other.record.get("engine_difference")
