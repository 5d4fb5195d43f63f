import importlib

import numpy as np
import pytest
import tensorflow as tf

from lottery import data, randomness, weights
from lottery.errors import LotteryError
from lottery.models import networks
from lottery.pipeline import building
from lottery.training import compiling, examples, loop
from lottery.training.records import Span, loss_and_accuracy
from lottery.training.settings import Train
from lottery.training.trainer import Trainer
from tests.conftest import toy_arrays

SETTINGS = Train(num_steps=70, batch_size=16, eval_every=30, learning_rate=0.01)


def prepared(build=None, settings=SETTINGS, num_test=617):
    import keras

    arrays = toy_arrays(np.random.default_rng(3), num_train=300, num_test=num_test)
    splits = data.split(dict(zip(data.KEYS, arrays, strict=True)), data.Data(validation=77))
    keras.utils.set_random_seed(5)
    model = build(keras) if build else networks.lenet_300_100((6,), 3)
    compiling.compile_model(model, settings, splits.train.x[:4])
    examples.check_data(model, splits, settings.batch_size, splits.train.x[:4])
    return Trainer(model, splits, settings), splits


def random_network(keras):
    layers = keras.layers
    return keras.Sequential(
        [
            layers.InputLayer((6,)),
            layers.Dense(8, "relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(3),
        ]
    )


def test_each_replicate_has_dropout_of_its_own():
    """Layers of tf_keras draw from generators that are none of the model's variables, which a round sets back."""
    import tf_keras

    compiled, _ = prepared(lambda keras: building.build_model(lambda: random_network(tf_keras), 5))

    def drawn(replicate):
        # Nothing is trained, so that the generators are as training begins with them.
        compiled.train(weights.read_state(compiled.model), {}, (0, replicate, randomness.BATCHES), Span(0, 0))
        return [np.array(variable) for variable, _ in compiled.touched() if weights.is_generator(variable.name)]

    (first,), (second,), (again,) = drawn(1), drawn(2), drawn(1)
    assert np.any(first != second) and np.array_equal(first, again)


@pytest.mark.parametrize("examples,size,steps", [(10, 3, 20), (64, 16, 9), (7, 7, 5)])
def test_batches_cover_every_example_once_an_epoch(examples, size, steps):
    stream = randomness.batches(examples, size, (1, 2))(steps).ravel()
    for epoch in range(len(stream) // examples):
        assert sorted(stream[epoch * examples : (epoch + 1) * examples]) == list(range(examples))
    assert stream.dtype == np.int32


def test_batches_do_not_depend_on_where_they_are_cut():
    whole = randomness.batches(50, 7, (1, 2))(40)
    pieces = randomness.batches(50, 7, (1, 2))
    np.testing.assert_array_equal(np.concatenate([pieces(num) for num in (1, 13, 26)]), whole)
    np.testing.assert_array_equal(randomness.batches(50, 7, (1, 2), first_step=29)(11), whole[29:])
    assert (randomness.batches(50, 7, (1, 3))(40) != whole).any()


@pytest.mark.parametrize("build", [None, random_network])
def test_the_loop_takes_keras_own_steps(build):
    """The same batches through `train_on_batch`, one at a time, lead to the same weights."""
    compiled, splits = prepared(build, SETTINGS.model_copy(update={"jit_compile": False}))
    start = weights.read_state(compiled.model)
    result = compiled.train(start, {}, seed=(9,))
    weights.assign(compiled.model, start)
    compiled.reset()
    for batch in randomness.batches(len(splits.train), 16, (9,))(70):
        compiled.model.train_on_batch(splits.train.x[batch], splits.train.y[batch])
    for name, value in weights.read_state(compiled.model).items():
        np.testing.assert_allclose(result.weights[name], value, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("num_test", [1, 3, 999, 1000, 1001, 2203])
def test_evaluation_counts_every_example(num_test):
    compiled, splits = prepared(num_test=num_test)
    state = weights.read_state(compiled.model)
    hidden = splits.test.x
    for index in ("", "_1", "_2"):
        hidden = hidden @ state[f"dense{index}/kernel"] + state[f"dense{index}/bias"]
        hidden = np.maximum(hidden, 0) if index != "_2" else hidden
    logs = compiled.loop.evaluations["test"]()
    assert float(logs["accuracy"]) == pytest.approx(np.mean(hidden.argmax(1) == splits.test.y), abs=1e-6)
    exps = np.exp(hidden - hidden.max(1, keepdims=True))
    losses = -np.log((exps / exps.sum(1, keepdims=True))[np.arange(num_test), splits.test.y])
    assert float(logs["loss"]) == pytest.approx(losses.mean(), rel=1e-4)


@pytest.mark.parametrize("build", [None, random_network])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_training_twice_gives_the_same_bits_and_one_trace(build, jit_compile):
    settings = SETTINGS.model_copy(update={"jit_compile": jit_compile})
    compiled, _ = prepared(build, settings)
    start = weights.read_state(compiled.model)
    first = compiled.train(start, {}, seed=(9,))
    compiled.train(start, {}, seed=(10,))
    second = compiled.train(start, {}, seed=(9,))
    assert first.metrics == second.metrics and first.summary == second.summary
    for name, value in first.weights.items():
        assert value.tobytes() == second.weights[name].tobytes(), name
    assert compiled.loop.steps.experimental_get_tracing_count() == 1
    assert {one.func.experimental_get_tracing_count() for one in compiled.loop.evaluations.values()} == {2}


def test_splits_of_one_size_share_a_trace():
    compiled, splits = prepared(num_test=77)
    found = [one() for one in compiled.loop.evaluations.values()]
    assert {one.func.experimental_get_tracing_count() for one in compiled.loop.evaluations.values()} == {1}
    for logs, split in zip(found, (splits.validation, splits.test), strict=True):
        expected = compiled.model.evaluate(split.x, split.y, verbose=0, return_dict=True)
        assert float(logs["loss"]) == pytest.approx(expected["loss"], rel=1e-5)
        assert float(logs["accuracy"]) == pytest.approx(expected["accuracy"])


def test_reset_brings_every_slot_back():
    compiled, _ = prepared()
    optimizer = compiled.model.optimizer
    before = [np.array(value) for value in optimizer.variables]
    compiled.train(weights.read_state(compiled.model), {}, seed=(9,))
    assert any(np.any(np.array(value) != old) for value, old in zip(optimizer.variables, before, strict=True))
    compiled.reset()
    for value, old in zip(optimizer.variables, before, strict=True):
        np.testing.assert_array_equal(np.array(value), old)


def test_early_stop_is_the_first_minimum_and_test_is_evaluated_there():
    settings = SETTINGS.model_copy(
        update={"learning_rate": 0.05, "num_steps": 300, "eval_every": 10, "test_curve": True}
    )
    compiled, splits = prepared(settings=settings)
    start = weights.read_state(compiled.model)
    result = compiled.train(start, {}, seed=(1,))
    curve = [(loss, step, accuracy) for step, split, loss, accuracy in result.metrics if split == "validation"]
    assert [step for _, step, _ in curve] == list(range(0, 301, 10))
    loss, step, accuracy = min(curve)
    found = result.summary
    assert (found["early_stop_val_loss"], found["early_stop_step"], found["early_stop_val_accuracy"]) == (
        loss,
        step,
        accuracy,
    )
    tests = {step: (loss, accuracy) for step, split, loss, accuracy in result.metrics if split == "test"}
    assert (found["early_stop_test_loss"], found["early_stop_test_accuracy"]) == tests[step]
    assert (found["final_test_loss"], found["final_test_accuracy"]) == tests[300]
    # Without the whole curve the same test numbers come from the weights that were kept beside.
    assert step < 300, "a case in which the last step is best would show nothing"
    compiled.settings = settings.model_copy(update={"test_curve": False})
    without = compiled.train(start, {}, seed=(1,))
    for key, value in found.items():
        assert without.summary[key] == value, key
    assert sorted(one for one, split, *_ in without.metrics if split == "test") == [step, 300]
    for name, value in result.weights.items():
        np.testing.assert_array_equal(value, without.weights[name])


@pytest.mark.parametrize("num_test", [3, 1000, 1001, 2203])
def test_predictions_are_the_highest_outputs_at_both_ends(num_test):
    settings = SETTINGS.model_copy(update={"learning_rate": 0.05, "num_steps": 300, "eval_every": 10})
    compiled, splits = prepared(settings=settings, num_test=num_test)
    start = weights.read_state(compiled.model)
    result = compiled.train(start, {}, seed=(1,))
    assert result.summary["early_stop_step"] < 300, "a case in which the last step is best would show nothing"
    assert result.predictions is not None and list(result.predictions) == ["label", "early_stop", "final"]
    assert {value.dtype for value in result.predictions.values()} == {np.dtype(np.uint8)}
    np.testing.assert_array_equal(result.predictions["label"], splits.test.y)
    for name, state in (("early_stop", result.early_stop), ("final", result.weights)):
        hidden = splits.test.x
        for index in ("", "_1", "_2"):
            hidden = hidden @ state[f"dense{index}/kernel"] + state[f"dense{index}/bias"]
            hidden = np.maximum(hidden, 0) if index != "_2" else hidden
        np.testing.assert_array_equal(result.predictions[name], hidden.argmax(1))
        right = np.mean(result.predictions[name] == splits.test.y)
        assert right == pytest.approx(result.summary[f"{name}_test_accuracy"], abs=1e-6)
    again = compiled.train(start, {}, seed=(1,))
    assert again.metrics == result.metrics
    assert compiled.loop.steps.experimental_get_tracing_count() == 1


def binary(keras):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, "sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
    return model


def several_outputs(keras):
    inputs = keras.Input((6,))
    outputs = keras.layers.Dense(3)(inputs)
    model = keras.Model(inputs, [outputs, keras.layers.Softmax()(outputs)])
    one = lambda labels, outputs: keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)  # noqa: E731
    model.compile("sgd", [one, None], metrics=[["accuracy"], []])
    return model


def not_of_the_highest_output(keras):
    def accuracy(labels, outputs):
        return keras.ops.cast(keras.ops.argmin(outputs, axis=-1) == keras.ops.cast(labels, "int32"), "float32")

    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=[accuracy])
    return model


def test_numbers_of_each_class_are_no_accuracy():
    import keras

    class ClassAccuracy(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="class_accuracy")
            self.total = self.add_weight(shape=(3,), initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.total.assign_add(keras.ops.ones(3))

        def result(self):
            return self.total.value

    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[ClassAccuracy()])
    arrays = dict(zip(data.KEYS, toy_arrays(np.random.default_rng(3)), strict=True))
    compiled = loop.compile_loop(model, data.split(arrays, data.Data(validation=20)), SETTINGS)
    assert compiled.examined.test_logs.names == compiled.examined.train_logs.names == ("loss",)
    loss, accuracy = loss_and_accuracy(compiled.evaluate("test"), "loss")
    assert loss > 0 and np.isnan(accuracy)


@pytest.mark.parametrize("build", [binary, several_outputs, not_of_the_highest_output])
def test_no_predictions_are_better_than_wrong_ones(build):
    settings = SETTINGS.model_copy(update={"optimizer": "compiled", "jit_compile": False})
    arrays = toy_arrays(np.random.default_rng(3), num_classes=2 if build is binary else 3)
    splits = data.split(dict(zip(data.KEYS, arrays, strict=True)), data.Data(validation=77))
    import keras

    trainer = Trainer(build(keras), splits, settings)
    result = trainer.train(weights.read_state(trainer.model), {}, seed=(1,))
    assert result.predictions is None and result.early_stop.keys() == result.weights.keys()
    assert result.summary["final_test_accuracy"] > 0


def test_train_rows_are_the_means_of_the_steps_between():
    compiled, splits = prepared()
    start = weights.read_state(compiled.model)
    result = compiled.train(start, {}, seed=(9,))
    weights.assign(compiled.model, start)
    compiled.reset()
    losses = []
    for batch in randomness.batches(len(splits.train), 16, (9,))(70):
        compiled.model.reset_metrics()
        losses.append(compiled.model.train_on_batch(splits.train.x[batch], splits.train.y[batch])[0])
    rows = {step: loss for step, split, loss, _ in result.metrics if split == "train"}
    expected = {30: np.mean(losses[:30]), 60: np.mean(losses[30:60]), 70: np.mean(losses[60:])}
    assert rows == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_nan_stops_and_says_where():
    settings = SETTINGS.model_copy(update={"learning_rate": 1e30, "optimizer": "sgd"})
    compiled, _ = prepared(settings=settings)
    with pytest.raises(LotteryError, match=r"loss .*(nan|inf).*lower learning rate"):
        compiled.train(weights.read_state(compiled.model), {}, seed=(1,))


@pytest.mark.xla
def test_xla_only_where_it_gains():
    import keras

    layers = keras.layers
    assert loop.gains_on_cpu(networks.lenet_300_100())
    assert not loop.gains_on_cpu(
        keras.Sequential([keras.Input((8, 8, 1)), layers.Conv2D(2, 3), layers.Flatten(), layers.Dense(2)])
    )
    assert not loop.gains_on_cpu(keras.Sequential([keras.Input((8, 2)), layers.LSTM(2)]))
    assert not loop.gains_on_cpu(random_network(keras))  # has dropout


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(LotteryError, match="must be at most the 223 examples .* not 400"):
        prepared(settings=SETTINGS.model_copy(update={"batch_size": 400}))


@pytest.mark.parametrize("ignored", [-1, 255])
def test_labels_of_a_class_that_the_loss_ignores_are_taken(ignored):
    import keras
    import tf_keras

    x, y = toy_arrays(np.random.default_rng(3))[:2]
    y[:9] = ignored
    splits = data.split(dict(zip(data.KEYS, (x, y, x, y), strict=True)), data.Data(validation=20))
    for library in (keras, tf_keras):
        loss = library.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=ignored)
        for compiled_with in (loss, [loss]):
            model = library.Sequential([library.layers.InputLayer((6,)), library.layers.Dense(3)])
            model.compile("sgd", compiled_with)
            examples.check_data(model, splits, 20, x[:4])
            other = data.split(dict(zip(data.KEYS, (x, y + 1, x, y), strict=True)), data.Data(validation=20))
            with pytest.raises(LotteryError, match="labels must be 0 to 2"):
                examples.check_data(model, other, 20, x[:4])


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_labels_are_checked_for_a_loss_without_a_configuration(library):
    library = importlib.import_module(library)

    class SparseCategoricalCrossentropy(library.losses.Loss):
        def get_config(self):
            raise NotImplementedError

    x, y = toy_arrays(np.random.default_rng(3))[:2]
    splits = data.split(dict(zip(data.KEYS, (x, y + 1, x, y), strict=True)), data.Data(validation=20))
    for loss in (library.losses.SparseCategoricalCrossentropy, SparseCategoricalCrossentropy()):
        model = library.Sequential([library.layers.InputLayer((6,)), library.layers.Dense(3)])
        model.compile("sgd", loss)
        with pytest.raises(LotteryError, match="labels must be 0 to 2"):
            examples.check_data(model, splits, 20, x[:4])


@pytest.mark.parametrize("pixels", data.PIXELS)
def test_pixels_stay_bytes_in_memory_and_are_scaled_in_the_graph(pixels, rng):
    x = rng.integers(0, 256, (120, 5, 5)).astype(np.uint8)
    x[2] = x[110] = 0
    y = rng.integers(0, 3, 120)
    splits = data.split(
        dict(zip(data.KEYS, (x[:100], y[:100], x[100:], y[100:]), strict=True)),
        data.Data(validation=20, pixels=pixels),
    )
    model = networks.lenet_300_100((5, 5), 3)
    scaled = examples.scaler(splits)
    compiling.compile_model(model, SETTINGS, examples.example_batch(splits)[0])
    compiled = loop.compile_loop(model, splits, SETTINGS)
    np.testing.assert_allclose(scaled(x[:9]), splits.scaled(x[:9]), rtol=1e-6)
    expected = model.evaluate(splits.scaled(splits.test.x), splits.test.y, verbose=0)
    assert float(compiled.evaluations["test"]()["loss"]) == pytest.approx(expected[0], rel=1e-5)
    assert np.isfinite(float(compiled.steps(*compiled.batches((1,))(1))["loss"]))
    captured = compiled.steps.get_concrete_function(*compiled.batches((1,))(1)).captured_inputs
    assert {tensor.dtype for tensor in captured if tensor.shape == splits.train.x.shape} == {tf.uint8}


def test_the_loss_follows_from_what_the_outputs_are():
    import keras

    example = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    for activation, from_logits in (("softmax", False), (None, True)):
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, activation)])
        compiling.compile_model(model, SETTINGS, example)
        assert model.loss.get_config()["from_logits"] is from_logits
    small = keras.layers.Dense(2, kernel_initializer="zeros", bias_initializer=keras.initializers.Constant(0.4))
    model = keras.Sequential([keras.Input((6,)), keras.Sequential([small])])
    compiling.compile_model(model, SETTINGS, example)
    assert model.loss.get_config()["from_logits"]

    class Squashed(keras.Sequential):
        def call(self, inputs, training=None, mask=None):
            return keras.ops.softmax(super().call(inputs, training=training))

    squashed = Squashed([keras.Input((6,)), keras.layers.Dense(3)])
    for model in (keras.Sequential([keras.Input((6,)), squashed]), squashed):
        compiling.compile_model(model, SETTINGS, example)
        assert not model.loss.get_config()["from_logits"]
    several = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, "sigmoid")])
    with pytest.raises(LotteryError, match="neither logits nor probabilities"):
        compiling.compile_model(several, SETTINGS, example)
    one = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    with pytest.raises(LotteryError, match="compile the model with the loss"):
        compiling.compile_model(one, SETTINGS, example)
