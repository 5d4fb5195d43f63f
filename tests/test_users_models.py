"""Whatever model and data people bring: Keras 3 and tf_keras, custom steps, streams."""

import contextlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

import lottery
from lottery import config, data, weights
from lottery.errors import LotteryError
from lottery.models.kerases import reason
from lottery.pipeline import building, preparing
from lottery.pipeline.prepared import Ingredients
from lottery.runs import store
from lottery.runs.stored import StoredRound
from lottery.training.records import loss_and_accuracy
from lottery.training.settings import Train
from tests.conftest import keep_graphs, quietly, subclassed, toy_arrays
from tests.pipeline.test_running import build_dropout, final_bits

pytestmark = pytest.mark.usefixtures("traced_once")

TINY = {
    "data": {"validation": 60},  # as many as there are test examples: one trace evaluates both
    "train": {"num_steps": 30, "eval_every": 15, "batch_size": 20, "jit_compile": False},
}
TINY |= {"prune": {"num_rounds": 2}, "run": {"num_replicates": 1}}
ARRAYS = toy_arrays(np.random.default_rng(3))


def run(model, out, data=ARRAYS, overrides=None):
    return lottery.run(TINY, overrides, model=model, data=data, out=out, on_event=quietly, tensorboard=False)


def sequential(library, *layers):
    return library.Sequential([library.layers.InputLayer((6,)), *layers])


def softmax_tf_keras():
    import tf_keras as library

    return sequential(library, library.layers.Dense(16, "relu"), library.layers.Dense(3, "softmax"))


def compiled_tf_keras():
    model = softmax_tf_keras()
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def subclassed_keras():
    import keras

    return subclassed(keras, 6)


def convolution():
    import keras

    layers = keras.layers
    return sequential(
        keras, layers.Reshape((6, 1)), layers.Conv1D(4, 3, activation="relu"), layers.Flatten(), layers.Dense(3)
    )


def test_the_first_function_that_imports_tf_keras_draws_from_the_seed_too(monkeypatch):
    """Its generator of initial weights can be seeded only once it is there, so the function is called again."""
    import tf_keras

    calls = []

    def counted():
        calls.append("tf_keras" in sys.modules)
        return softmax_tf_keras()

    wanted = weights.read(building.build_model(counted, 5))
    tf_keras.utils.set_random_seed(99)
    monkeypatch.delitem(sys.modules, "tf_keras")
    found = weights.read(building.build_model(counted, 5))
    assert calls == [True, False, True]
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.xla
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(softmax_tf_keras, marks=pytest.mark.long),
        compiled_tf_keras,
        subclassed_keras,
        pytest.param(convolution, marks=pytest.mark.long),
        build_dropout,
    ],
)
def test_models_of_every_make_train_and_resume_with_the_same_bits(build, tmp_path, traced_once):
    with_xla = {"train": {"jit_compile": "auto"}}
    path = run(build, tmp_path, overrides=with_xla).path
    whole = final_bits(path)
    assert all(not wrong for _, wrong in lottery.runs.verification.verify(path))
    np.testing.assert_array_equal(StoredRound(path, 1, 1).predictions["label"], ARRAYS[3])
    shutil.rmtree(store.round_path(path, 1, 1))
    traced_once.clear()
    assert run(build, tmp_path, overrides=with_xla).path == path
    assert final_bits(path) == whole


def own_steps(report):
    """A model whose train_step and test_step do everything themselves, and report what `report` says."""
    import keras
    import tensorflow as tf

    class Own(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(
                    keras.losses.sparse_categorical_crossentropy(y, self(x, training=True), from_logits=True)
                )
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return report(loss, y, self(x))

        def test_step(self, data):
            x, y = data
            logits = self(x)
            return report(
                tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)), y, logits
            )

    model = Own([keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)])
    model.compile(optimizer="adam")
    return model


def test_what_custom_steps_report_is_what_is_recorded(tmp_path):
    import keras
    import tensorflow as tf

    def report(loss, y, logits):
        hits = tf.equal(tf.argmax(logits, 1, output_type=tf.int32), tf.cast(y, tf.int32))
        return {"loss": loss, "accuracy": tf.reduce_mean(tf.cast(hits, tf.float32))}

    done = run(lambda: own_steps(report), tmp_path)
    rows = done.table()
    assert (rows["early_stop_step"] > 0).all()
    stored = lottery.files.read_arrays(store.round_path(done.path, 1, 2) / "weights.safetensors")
    model = sequential(keras, keras.layers.Dense(8, "relu"), keras.layers.Dense(3))
    lottery.weights.assign(model, stored)
    with pytest.raises(LotteryError, match="has no predictions: its model or its data"):
        _ = StoredRound(done.path, 1, 2).predictions
    logits = np.asarray(model(ARRAYS[2]))
    assert rows["final_test_accuracy"].iloc[-1] == pytest.approx(np.mean(logits.argmax(1) == ARRAYS[3]), abs=1e-6)
    exps = np.exp(logits - logits.max(1, keepdims=True))
    losses = -np.log((exps / exps.sum(1, keepdims=True))[np.arange(60), ARRAYS[3]])
    record = store.read_record(store.round_path(done.path, 1, 2))
    assert record["final_test_loss"] == pytest.approx(losses.mean(), rel=1e-4)


def test_own_reports_are_weighted_by_examples_over_the_last_batch_too():
    import tensorflow as tf

    from lottery.training import loop

    model = own_steps(lambda loss, y, logits: {"loss": tf.reduce_mean(tf.cast(y, tf.float32)), "other": loss})
    labels = np.where(np.arange(2203) < 2000, 0, 2)  # the last 203 are a smaller batch
    arrays = (np.zeros((300, 6), np.float32), np.zeros(300, int), np.zeros((2203, 6), np.float32), labels)
    splits = data.split(dict(zip(data.KEYS, arrays, strict=True)), data.Data(validation=9))
    compiled = loop.compile_loop(model, splits, Train(batch_size=20, num_steps=5))
    assert float(compiled.evaluations["test"]()["loss"]) == pytest.approx(labels.mean(), rel=1e-5)


def guide(model, loss, y, outputs):
    """As in Keras' guide to customizing fit."""
    for metric in model.metrics:
        metric.update_state(*((loss,) if metric.name == "loss" else (y, outputs)))
    return {metric.name: metric.result() for metric in model.metrics}


def untracked(model, loss, y, outputs):
    """The metrics "loss" and "accuracy" exist, and stay at 0."""
    import keras

    hits = keras.metrics.sparse_categorical_accuracy(y, outputs)
    return {"loss": loss, "accuracy": keras.ops.mean(hits), "outputs": keras.ops.mean(outputs, axis=0)}


def renamed(model, loss, y, outputs):
    """A metric that adds up over batches is reported under another name."""
    import keras

    model.total.update_state(loss, sample_weight=keras.ops.shape(y)[0])
    return {"loss": model.total.result(), "accuracy": keras.ops.mean(keras.ops.zeros(3))}


@pytest.mark.parametrize("report", [guide, untracked, renamed])
def test_a_loss_is_the_mean_of_all_examples_however_a_step_reports_it(report):
    import keras
    import tensorflow as tf

    from lottery.training import loop

    class Own(keras.Sequential):
        total = keras.metrics.Mean(name="total")

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                outputs = self(x, training=True)
                loss = keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True))
            variables = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            return report(self, loss, y, outputs)

        def test_step(self, data):
            x, y = data
            outputs = self(x)
            loss = keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True))
            return report(self, loss, y, outputs)

        @property
        def metrics(self):
            return [self.total] if report is renamed else super().metrics

    model = Own([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    arrays = toy_arrays(np.random.default_rng(3), num_test=2000)  # in two batches
    splits = data.split(dict(zip(data.KEYS, arrays, strict=True)), data.Data(validation=60))
    compiled = loop.compile_loop(model, splits, Train(batch_size=20, num_steps=5, jit_compile=False))
    logs = compiled.evaluations["test"]()
    outputs = np.asarray(model(arrays[2]), np.float64)
    losses = np.log(np.exp(outputs).sum(1)) - outputs[np.arange(2000), arrays[3]]
    assert float(logs["loss"]) == pytest.approx(losses.mean(), rel=1e-4)
    if report is not renamed:
        assert float(logs["accuracy"]) == pytest.approx(np.mean(outputs.argmax(1) == arrays[3]), abs=1e-6)
    compiled.begin({}, (1,))
    assert 0.1 < float(compiled.advance(5)["loss"]) < 5


@pytest.mark.parametrize("num_hits", [0, 3])
def test_numbers_of_a_first_batch_that_are_alike_by_chance_are_not_taken_for_each_other(num_hits):
    import keras

    from lottery.training import examples, loop

    first = examples.NUM_EXAMPLES

    class Own(keras.Sequential):
        def test_step(self, data):
            super().test_step(data)  # its metrics are of clean examples
            num = keras.ops.shape(data[0])[0]
            self.found.update_state(keras.ops.where(num == first, 0.0, 1.0))
            robust = keras.ops.where(num == first, num_hits / first, 0.25)
            loss = keras.ops.cast(num, "float32")
            return {"robust_accuracy": robust, "found_accuracy": self.found.result(), "loss": loss}

    model = Own([keras.Input((6,)), keras.layers.Dense(3, kernel_initializer="zeros")])
    model.found = keras.metrics.Sum(name="sum")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    arrays = toy_arrays(np.random.default_rng(3), num_test=2000)  # in two batches
    splits = data.split(dict(zip(data.KEYS, arrays, strict=True)), data.Data(validation=60))
    # The network answers 0 for all, so as many of the first batch as there are labels 0 are hits.
    splits.train.y[:first] = np.arange(first) >= num_hits
    compiled = loop.compile_loop(model, splits, Train(batch_size=20, num_steps=5, jit_compile=False))
    logs = compiled.evaluations["test"]()
    assert float(logs["robust_accuracy"]) == pytest.approx(0.25)
    assert float(logs["found_accuracy"]) == 2
    assert loss_and_accuracy(logs, "loss")[1] == pytest.approx(0.25)  # the first counts, whatever it is made of


@pytest.mark.parametrize("accuracy", [87.5, -0.25])
def test_an_accuracy_in_per_cent_is_refused_and_not_shown_as_8750(accuracy):
    with pytest.raises(LotteryError, match=f"'top_accuracy' is {accuracy:g}, but an accuracy is a fraction"):
        loss_and_accuracy({"loss": 0.5, "top_accuracy": accuracy}, "loss")
    assert loss_and_accuracy({"loss": 0.5, "top_accuracy": 1 + 1e-7}, "loss")[1] == 1 + 1e-7


def test_steps_that_change_weights_behind_the_optimiser_are_found_out(tmp_path):
    import keras
    import tensorflow as tf

    class Own(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            for variable, gradient in zip(
                self.trainable_variables, tape.gradient(loss, self.trainable_variables), strict=True
            ):
                variable.assign_sub(0.1 * gradient)
            return self.compute_metrics(x, y, self(x))

    def build():
        model = Own([keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        return model

    with pytest.raises(LotteryError, match="round 1: dense/kernel has masked entries that are not zero.*train_step"):
        run(build, tmp_path)


def test_a_weight_that_one_step_changes_is_found_out_at_the_next_evaluation(tmp_path):
    """Even if the next update holds it again: neither the last state nor the best would show it."""
    import keras

    class Own(keras.Sequential):
        def train_step(self, data):
            logs = super().train_step(data)
            kernel = self.layers[0].kernel
            kernel.assign_add(keras.ops.ones_like(kernel) * keras.ops.cast(self.optimizer.iterations == 10, "float32"))
            return logs

    def build():
        model = Own([keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        return model

    with pytest.raises(LotteryError, match="round 1: dense/kernel has masked entries that are not zero after step 10:"):
        run(build, tmp_path, overrides={"train": {"num_steps": 20, "eval_every": 5}})


def test_a_second_optimiser_and_seeds_outside_the_model_are_reset_with_each_round(tmp_path):
    import keras
    import tensorflow as tf

    class Own(keras.Sequential):
        def train_step(self, data):
            x, y = data
            x = x + 0.1 * keras.random.normal(tf.shape(x))  # Keras' global generator
            with tf.GradientTape() as tape:
                loss = self.compute_loss(x, y, self(x, training=True))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients[:2], self.trainable_variables[:2])
            self.second.apply(gradients[2:], self.trainable_variables[2:])
            return self.compute_metrics(x, y, self(x))

    def build():
        model = Own([keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dense(3)])
        model.second = keras.optimizers.Adam(0.01)
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        model.optimizer.build(model.trainable_variables[:2])
        model.second.build(model.trainable_variables[2:])
        return model

    whole = run(build, tmp_path / "whole").path
    part = shutil.copytree(whole, tmp_path / "part" / whole.name)
    (store.round_path(part, 1, 1) / "round.json").unlink()
    run(build, tmp_path / "part")
    assert final_bits(part) == final_bits(whole)


def test_randomness_that_nothing_can_restore_is_said(tmp_path):
    import keras
    import tensorflow as tf

    class Noise(keras.layers.Layer):
        def call(self, x, training=False):
            return x + tf.random.normal(tf.shape(x)) if training else x

    events = []
    lottery.run(
        TINY,
        model=lambda: sequential(keras, Noise(), keras.layers.Dense(3)),
        data=ARRAYS,
        out=tmp_path,
        on_event=events.append,
    )
    notes = [event.text for event in events if isinstance(event, lottery.progress.Note)]
    assert any("RandomStandardNormal" in note and "not give the same bits" in note for note in notes)


def test_plain_accuracy_is_meant_whatever_stands_before_it(tmp_path):
    import keras

    def build(metrics):
        model = build_dropout()
        model.compile(keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy", metrics=metrics)
        return model

    top = keras.metrics.SparseTopKCategoricalAccuracy
    dense = {"prune": {"num_rounds": 1}}
    plain = run(lambda: build(["accuracy"]), tmp_path / "a", overrides=dense).table()["final_test_accuracy"]
    both = run(lambda: build([top(2, name="top_2_accuracy"), "accuracy"]), tmp_path / "b", overrides=dense).table()[
        "final_test_accuracy"
    ]
    assert list(plain) == list(both)


def streams(transform=lambda x: x, shuffle=False, validation=160):
    import tensorflow as tf

    x_train, y_train, x_test, y_test = ARRAYS

    def train():
        whole = tf.data.Dataset.from_tensor_slices((transform(x_train[:160]), y_train[:160]))
        return (whole.shuffle(160) if shuffle else whole).batch(16)

    parts = ((x_train[validation:], y_train[validation:]), (x_test, y_test))
    return (train, *(tf.data.Dataset.from_tensor_slices(part).batch(17) for part in parts))


def test_other_streams_are_another_run(tmp_path):
    dense = {"prune": {"num_rounds": 0}}
    first = run(build_dropout, tmp_path, streams(), dense).path
    assert run(build_dropout, tmp_path, streams(), dense).path == first
    other = prepared(build_dropout, streams(lambda x: -x), dense).experiment
    assert store.run_path(tmp_path, other) != first


def test_a_batch_size_beside_a_stream_of_other_batches_is_said_to_have_no_effect():
    def said(size):
        notes = prepared(build_dropout, streams(), {"train": {"batch_size": size}}).notes
        return [note for note in notes if "batch_size" in note]

    assert said(5) == ["train.batch_size = 5 has no effect: the tf.data.Dataset has batches of 16 examples."]
    assert said(16) == said(60) == []  # the size of the batches, and the default


def test_a_shuffle_without_a_seed_is_repeated_by_a_resume(tmp_path):
    path = run(build_dropout, tmp_path, streams(shuffle=True)).path
    whole = final_bits(path)
    shutil.rmtree(store.round_path(path, 1, 1))
    run(build_dropout, tmp_path, streams(shuffle=True))
    assert final_bits(path) == whole


def test_streams_that_cannot_be_used_are_refused(tmp_path):
    with pytest.raises(LotteryError, match="The validation data set is empty"):
        run(build_dropout, tmp_path, streams(validation=200))
    endless = streams()
    with pytest.raises(LotteryError, match="The test data set never ends"):
        run(build_dropout, tmp_path, (*endless[:2], endless[2].repeat()))
    import tensorflow as tf

    shared = tf.data.Dataset.from_tensor_slices(ARRAYS[:2]).shuffle(200, seed=1)
    with pytest.raises(LotteryError, match="other batches each time"):
        run(build_dropout, tmp_path, (lambda: shared.batch(16), *endless[1:]))
    shuffled = tf.data.Dataset.from_tensor_slices(ARRAYS[2:])
    with pytest.raises(LotteryError, match="The validation data set gives other batches in each evaluation"):
        run(build_dropout, tmp_path, (endless[0], lambda: shuffled.shuffle(40).batch(7), endless[2]))
    with pytest.raises(LotteryError, match="pass model="):
        lottery.run(TINY, data=streams(), out=tmp_path, on_event=quietly)
    assert not list(tmp_path.iterdir())


def with_a_cosine():
    import keras

    model = sequential(keras, keras.layers.Dense(8), keras.layers.Dense(3))
    rate = keras.optimizers.schedules.CosineDecay(0.1, 30)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(rate), loss, metrics=["accuracy"])
    return model


SCRIPT = """
import sys
from tests.test_users_models import run, with_a_cosine
print(run(with_a_cosine, sys.argv[1]).path)
"""


def test_another_process_finds_the_same_run(tmp_path):
    path = run(with_a_cosine, tmp_path).path
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == str(path)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_compiled_model_runs_without_an_experiment(tmp_path):
    x = np.concatenate([ARRAYS[0]] * 10)
    y = np.concatenate([ARRAYS[1]] * 10)
    small = {"train": {"num_steps": 20}, "prune": {"num_rounds": 1}, "run": {"num_replicates": 1}}
    done = lottery.run(None, small, model=compiled_tf_keras, data=(x, y, *ARRAYS[2:]), out=tmp_path, on_event=quietly)
    assert done.experiment.data.validation == 200  # a tenth, where nobody asked for 5,000
    assert done.experiment.train.optimizer == "compiled"


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (lambda layers: [layers.Dense(3, "sigmoid")], "neither logits nor probabilities"),
        (lambda layers: [layers.Dense(1)], "compile the model"),
        (lambda layers: [layers.Dense(2)], "labels must be 0 to 1.* go up to 2"),
        (lambda layers: [layers.Dense(3, dtype="bfloat16")], "bfloat16"),
        (lambda layers: [layers.Reshape((2, 3)), layers.Dense(3)], "compile the model"),
    ],
)
def test_models_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, layers, message):
    import keras

    with pytest.raises(LotteryError, match=message) as caught:
        run(lambda: sequential(keras, *layers(keras.layers)), tmp_path)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def wrapped_by_tfmot():
    import tensorflow_model_optimization as tfmot

    return tfmot.sparsity.keras.prune_low_magnitude(softmax_tf_keras())


def spectral():
    import keras

    return sequential(keras, keras.layers.SpectralNormalization(keras.layers.Dense(3)))


def looking_up():
    import keras

    layers = keras.layers
    return sequential(keras, layers.Embedding(9, 4), layers.GlobalAveragePooling1D(), layers.Dense(3))


@pytest.mark.parametrize(
    ("build", "overrides", "message"),
    [
        *((wrapped_by_tfmot, {"run": {"enforcement": mode}}, "strip_pruning") for mode in ("constraint", "tfmot")),
        (spectral, {"run": {"enforcement": "reparameterization"}}, "a SpectralNormalization, which assigns its weight"),
        (softmax_tf_keras, {"run": {"enforcement": "reparameterization"}}, "needs a Keras 3 model"),
        (looking_up, {"prune": {"criterion": "synflow"}}, "looks its input up by whole numbers"),
    ],
)
def test_what_an_experiment_cannot_do_with_a_model_is_refused_before_anything_is_written(
    tmp_path, build, overrides, message
):
    with pytest.raises(LotteryError, match=message) as caught:
        run(build, tmp_path, overrides=overrides)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_a_ticket_fits_a_wrapped_model_and_its_stripped_version(tmp_path):
    import tensorflow_model_optimization as tfmot

    ticket = run(softmax_tf_keras, tmp_path).ticket(round=2)
    stripped = tfmot.sparsity.keras.strip_pruning(wrapped_by_tfmot())
    done = run(lambda: tfmot.sparsity.keras.strip_pruning(wrapped_by_tfmot()), tmp_path / "stripped")
    for model in (wrapped_by_tfmot(), stripped):
        for one in (ticket, done.ticket(round=2)):
            one.apply(model)
            found = weights.read(model)
            assert found.keys() == one.masks.keys()
            for name, mask in one.masks.items():
                np.testing.assert_array_equal(found[name], np.where(mask, one.weights[name], 0))


def averaged_and_shared_out():
    """Kernels by one optimizer, with moving averages and a schedule, biases by another."""
    import keras

    schedule = keras.optimizers.schedules.CosineDecay(0.05, 30)
    one = keras.optimizers.SGD(schedule, momentum=0.9, use_ema=True, ema_momentum=0.9)
    other = keras.optimizers.Adam(0.01)
    model = sequential(keras, keras.layers.Dense(8, "relu"), keras.layers.Dense(3))
    several = keras.optimizers.MultiOptimizer(lambda variable: one if "kernel" in variable.path else other)
    model.compile(several, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """A run of that model with late rewinding, under constraints. Tests only read it."""
    keep_graphs()
    return run(averaged_and_shared_out, tmp_path_factory.mktemp("averaged"), overrides={"rewind": {"step": 5}})


@pytest.mark.parametrize("mode", ["constraint", "gradient", "reparameterization", "callback"])
def test_a_run_with_several_optimisers_and_averages(averaged, tmp_path, mode):
    """Recorded, resumed, rewound late with the schedule's own steps; every mode finds the same ticket."""
    overrides = {"run": {"enforcement": mode}, "rewind": {"step": 5}}
    if mode == "constraint":
        path = shutil.copytree(averaged.path, tmp_path / averaged.path.name)
    else:
        path = run(averaged_and_shared_out, tmp_path, overrides=overrides).path
    whole = final_bits(path)
    assert all(not wrong for _, wrong in lottery.runs.verification.verify(path))
    shutil.rmtree(store.round_path(path, 1, 2))
    done = run(averaged_and_shared_out, tmp_path, overrides=overrides)
    assert done.path == path and final_bits(path) == whole
    rates = done.experiment.train.learning_rate
    assert rates == {"name": "MultiOptimizer", "SGD": pytest.approx(0.05), "Adam": pytest.approx(0.01)}
    ticket = done.ticket(round=2)
    final = StoredRound(path, 1, 2).weights
    assert not lottery.masks.leaks(final, ticket.masks) and lottery.masks.num_kept(ticket.masks)
    if mode != "constraint":
        for name, mask in averaged.ticket(round=2).masks.items():
            np.testing.assert_array_equal(mask, ticket.masks[name])


def test_wrong_inputs_name_the_reason(tmp_path):
    import keras

    with pytest.raises(LotteryError, match="expected .*shape.*|incompatible") as caught:
        run(lambda: keras.Sequential([keras.Input((7,)), keras.layers.Dense(3)]), tmp_path)
    assert "\n" not in str(caught.value)


def test_an_optimisers_arguments_are_tried_before_anything_is_written(tmp_path):
    for train in (
        {"optimizer": {"name": "adam", "beta_1": "x"}},
        {"learning_rate": {"name": "CosineDecay", "initial_learning_rate": "a", "decay_steps": 9}},
    ):
        with pytest.raises(LotteryError):
            run(build_dropout, tmp_path, overrides={"train": train})
    assert not list(tmp_path.iterdir())


def test_threads_of_a_run_with_an_own_model_are_found_before_it_is_built(tmp_path):
    done = run(build_dropout, tmp_path)
    like = config.load(TINY)
    environment = lottery.pipeline.environment
    assert environment.of_like_run(tmp_path, like) == {}  # it is complete, so nobody goes on with it
    (store.round_path(done.path, 1, 2) / "round.json").unlink()
    assert environment.of_like_run(tmp_path, like) == store.read_environment(done.path)
    assert environment.of_like_run(tmp_path, config.load(TINY, {"run": {"seed": 5}})) == {}


def test_what_keras_says_is_shortened_to_its_reason():
    error = ValueError("Exception encountered when calling Sequential.call().\n\n\x1b[1mInput 0 is wrong\x1b[0m\nmore")
    assert reason(error) == "Input 0 is wrong"
    error = ValueError("{{function_node __wrapped__Sub_device_/device:CPU:0}} Incompatible shapes [Op:Sub] name: sub")
    assert reason(error) == "Incompatible shapes"


def test_a_model_that_measures_no_accuracy_is_pruned_all_the_same(tmp_path):
    import keras

    def build():
        model = sequential(keras, keras.layers.Dense(8, "relu"), keras.layers.Dense(1))
        model.compile("adam", "mse")
        return model

    x, y, x_test, y_test = ARRAYS
    done = run(build, tmp_path, (x, y.astype(np.float32), x_test, y_test.astype(np.float32)))
    rows = done.table()
    assert rows["final_test_accuracy"].isna().all() and rows["final_test_accuracy"].dtype == float
    assert rows["final_val_loss"].notna().all()
    assert "NaN" not in (store.round_path(done.path, 1, 0) / "round.json").read_text()
    assert all(not wrong for _, wrong in lottery.runs.verification.verify(done.path))


def test_a_column_of_labels_is_one_class_for_each_example():
    """As keras.datasets.cifar10 gives them."""
    x, y, x_test, y_test = ARRAYS
    experiment = config.Experiment(**TINY, model={"name": "lenet_300_100"})
    ready = preparing.prepare(experiment, Ingredients(data=((x, y[:, None]), (x_test, y_test[:, None]))))
    with contextlib.closing(ready.trainer):
        assert ready.trainer.model.output_shape == (None, 3)


def test_a_column_of_targets_is_not_broadcast(tmp_path):
    import keras

    def build():
        model = sequential(keras, keras.layers.Dense(16, "relu"), keras.layers.Dense(1))
        model.compile(keras.optimizers.Adam(0.02), lambda y, q: keras.ops.mean(keras.ops.square(y - q), -1))
        return model

    x, x_test = ARRAYS[0], ARRAYS[2]
    data = (x, x[:, :1] + x[:, 1:2], x_test, x_test[:, :1] + x_test[:, 1:2])
    rows = run(build, tmp_path, data, {"train": {"num_steps": 400}}).table()
    assert rows["final_val_loss"].iloc[0] < 0.2 * np.var(data[3])


@pytest.mark.xla
def test_python_in_a_step_keeps_xla_away(tmp_path):
    import keras
    import tensorflow as tf

    def metric(y, logits):
        return tf.ensure_shape(tf.numpy_function(lambda a: np.float32(a.mean()), [logits], tf.float32), ())

    def build():
        model = sequential(keras, keras.layers.Dense(8), keras.layers.Dense(3))
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy", metric])
        return model

    done = run(build, tmp_path, overrides={"train": {"jit_compile": "auto"}})
    assert store.read_record(store.round_path(done.path, 1, 0))["jit_compile"] is False
    with pytest.raises(LotteryError, match="which XLA cannot compile"):
        run(build, tmp_path, overrides={"train": {"jit_compile": True}})


def test_what_tensorflow_says_in_the_middle_is_one_sentence(tmp_path):
    import tensorflow as tf

    train, validation, test = streams()
    wrong = tf.data.Dataset.from_tensor_slices((ARRAYS[0], np.r_[ARRAYS[1][:150], np.full(50, 7)])).batch(10)
    with pytest.raises(LotteryError, match="Replicate 1, round 0: TensorFlow stopped: .*7") as caught:
        run(build_dropout, tmp_path, (wrong, validation, test))
    assert "\n" not in str(caught.value)


def test_labels_for_each_position_and_several_outputs(tmp_path):
    import keras

    layers = keras.layers

    def per_position():
        model = keras.Sequential([keras.Input((6,)), layers.Reshape((3, 2)), layers.Dense(8, "relu"), layers.Dense(3)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
        return model

    x, y, x_test, y_test = ARRAYS
    run(per_position, tmp_path, (x, np.stack([y] * 3, 1), x_test, np.stack([y_test] * 3, 1)))
    with pytest.raises(LotteryError, match="for each of the outputs"):
        run(per_position, tmp_path, (x, y, x_test, y_test))

    def several():
        inputs = layers.Input((6,))
        return keras.Model(inputs, {"a": layers.Dense(3)(inputs), "b": layers.Dense(2)(inputs)})

    with pytest.raises(LotteryError, match="several outputs"):
        run(several, tmp_path)


@pytest.mark.parametrize("declared", ["int32", "float32"])
@pytest.mark.parametrize("library", ["keras", pytest.param("tf_keras", marks=pytest.mark.long)])
def test_uint8_that_an_embedding_takes_are_no_pixels(tmp_path, library, declared):
    import keras
    import tf_keras

    module = {"keras": keras, "tf_keras": tf_keras}[library]

    def build():
        layers = module.layers
        inputs = module.Input((7,), dtype=declared)
        return module.Model(inputs, layers.Dense(3)(layers.Flatten()(layers.Embedding(256, 4)(inputs))))

    ids = np.random.default_rng(0).integers(0, 200, (240, 7))
    found, notes = [], []
    for kind in ("uint8", "int32"):
        x, y = ids.astype(kind), ids[:, 0] % 3
        report = lambda event: notes.append(getattr(event, "text", ""))  # noqa: E731
        arrays = (x[:200], y[:200], x[200:], y[200:])
        done = lottery.run(TINY, model=build, data=arrays, out=tmp_path / kind, on_event=report)
        found.append(final_bits(done.path))
        assert store.read_environment(done.path)["scaling"] is None and done.verify() == []
    weights_of = [{key: bits for key, bits in one.items() if key.endswith("safetensors")} for one in found]
    assert weights_of[0] == weights_of[1] and weights_of[0]
    assert sum("takes whole numbers" in note for note in notes) == 1


def test_uint8_are_pixels_where_data_pixels_says_how(tmp_path):
    import keras

    x = np.random.default_rng(0).integers(0, 200, (240, 6)).astype("uint8")
    build = lambda: sequential(keras, keras.layers.Rescaling(1 / 255), keras.layers.Dense(3))  # noqa: E731
    arrays = x[:200], x[:200, 0] % 3, x[200:], x[200:, 0] % 3
    for overrides, is_scaled in (({}, False), ({"data": {"pixels": "unit"}}, True)):
        done = run(build, tmp_path, arrays, overrides)
        assert (store.read_environment(done.path)["scaling"] is not None) == is_scaled


def prepared(model, data=ARRAYS, overrides=None, **ingredients):
    """What a run prepares before it trains; nothing is written."""
    passed = Ingredients(model, data, **ingredients)
    return preparing.prepare(config.load(TINY, overrides), passed)


def test_strings_train_and_resume_with_the_same_bits(tmp_path):
    import keras
    import tensorflow as tf

    def build():
        layers = keras.layers
        words = layers.TextVectorization(output_sequence_length=4, vocabulary=["a", "b", "c"])
        inputs = keras.Input((1,), dtype="string")
        return keras.Model(inputs, layers.Dense(3)(layers.Flatten()(layers.Embedding(6, 4)(words(inputs)))))

    sentences, labels = np.array([["a b c a"], ["b b c c"], ["c a a a"]] * 20), np.arange(60) % 3

    def data_set():
        return tf.data.Dataset.from_tensor_slices((sentences, labels)).batch(10)

    data = (data_set, data_set, data_set)
    done = run(build, tmp_path, data)
    whole = final_bits(done.path)
    assert done.table()["final_test_accuracy"].iloc[0] > 0.3
    shutil.rmtree(store.round_path(done.path, 1, 2))
    assert run(build, tmp_path, data).path == done.path and final_bits(done.path) == whole


def test_weights_of_examples_count_in_the_loss():
    import tensorflow as tf

    x, y = ARRAYS[:2]
    nothing, ones = (
        tf.data.Dataset.from_tensor_slices((x, y, np.full(len(y), weight, np.float32))).batch(20) for weight in (0, 1)
    )

    def trained(train):
        ready = prepared(build_dropout, (train, ones, ones))
        start = building.initial_state(ready, 1)
        with contextlib.closing(ready.trainer):
            found = ready.trainer.train(start, {}, (1, 2, 3)).weights
        return [name for name in weights.read(ready.trainer.model) if not np.array_equal(found[name], start[name])]

    assert trained(ones) and not trained(nothing)


def of_fixed_batch(size=20):
    import keras

    inputs = keras.Input(batch_shape=(size, 6))
    return keras.Model(inputs, keras.layers.Dense(3)(keras.ops.reshape(inputs, (size, 6))))


def stateful():
    import keras

    layers = keras.layers
    inputs = keras.Input(batch_shape=(20, 6))
    return keras.Model(inputs, layers.Dense(3)(layers.SimpleRNN(4, stateful=True)(layers.Reshape((6, 1))(inputs))))


def of_any_batch():
    import keras

    return keras.Sequential([keras.Input(batch_shape=(32, 6)), keras.layers.Dense(3)])


def test_a_model_that_fixes_its_batch_is_probed_and_evaluated_by_that(tmp_path):
    done = run(of_fixed_batch, tmp_path)
    model, rows, (x, y) = of_fixed_batch(), done.table(), ARRAYS[2:]
    for row in rows.to_dict("records"):
        weights.assign(model, StoredRound(done.path, 1, row["round"]).weights)
        right = [np.argmax(model(x[at : at + 20]), 1) == y[at : at + 20] for at in range(0, 60, 20)]
        assert row["final_test_accuracy"] == pytest.approx(np.mean(right))
    assert done.verify(recompute=True, model=of_fixed_batch, data=ARRAYS) == []
    assert prepared(of_any_batch).experiment.train.batch_size == 20  # its layers take any number of examples


@pytest.mark.parametrize(
    ("build", "num_test", "overrides", "message"),
    [
        (
            lambda: of_fixed_batch(32),
            60,
            None,
            "must be 32, not 20, because the model is built for batches of 32 examples",
        ),
        (of_fixed_batch, 50, None, "but there are 50 test examples. Pass a multiple of 20"),
        (of_fixed_batch, 60, {"data": {"validation": 30}}, "but there are 30 validation examples"),
        (
            of_fixed_batch,
            60,
            {"prune": {"criterion": "snip"}},
            "prune.num_examples must be .* not 100, because the model",
        ),
        (stateful, 60, None, "The layer 'simple_rnn[_0-9]*' is stateful"),
    ],
)
def test_batches_that_a_model_cannot_take_are_refused(build, num_test, overrides, message):
    x, y, x_test, y_test = ARRAYS
    with pytest.raises(LotteryError, match=message):
        prepared(build, (x, y, x_test[:num_test], y_test[:num_test]), overrides)


def test_a_dict_of_one_output_is_refused_in_a_sentence():
    import keras

    def build():
        inputs = keras.Input((6,))
        return keras.Model(inputs, {"out": keras.layers.Dense(3)(inputs)})

    with pytest.raises(LotteryError, match="returns a dict, .* or have it return the output itself"):
        prepared(build)


def scores_of(change):
    return lambda inputs: change({name: np.abs(value) for name, value in inputs.trained.items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda scores: None, "must return a dict of scores by weight, not NoneType"),
        (lambda scores: list(scores.values()), "must return a dict .* not list"),
        (
            lambda scores: {"dense/kernel": scores["dense/kernel"]},
            "no scores of 'dense_1/kernel', but of: dense/kernel",
        ),
        (
            lambda scores: {name: value.T for name, value in scores.items()},
            r"shape \(\d+, 6\), where the weight has shape \(6, \d+\)",
        ),
        (lambda scores: dict.fromkeys(scores, 1.0), r"with shape \(\), where the weight"),
        (lambda scores: {name: value * np.nan for name, value in scores.items()}, "are not numbers"),
        (
            lambda scores: {name: value.astype(str) for name, value in scores.items()},
            "of type <U.*, not numbers",
        ),
        (lambda scores: {name: value * 1j for name, value in scores.items()}, "of type complex64, not numbers"),
        (lambda scores: 1 / 0, "the function cannot score the weights: division by zero"),
    ],
)
def test_scores_that_cannot_be_ranked_are_refused_before_anything_is_trained(change, message):
    with pytest.raises(LotteryError, match=message) as caught:
        prepared(build_dropout, criterion=scores_of(change))
    assert str(caught.value).startswith("prune.criterion") and "\n" not in str(caught.value)


def test_a_schedule_that_fails_is_named():
    with pytest.raises(LotteryError, match="schedule: the function cannot give the densities: division by zero"):
        prepared(build_dropout, schedule=lambda index: 1 / 0)


PRETRAINED = [np.random.default_rng(8).normal(size=shape).astype(np.float32) for shape in ((6, 8), (8,), (8, 3), (3,))]


def pretrained(num=4):
    """Build a model of which the first `num` variables are loaded."""
    import keras

    model = sequential(keras, keras.layers.Dense(8, "relu"), keras.layers.Dense(3))
    model.set_weights([*PRETRAINED[:num], *model.get_weights()[num:]])
    return model


def test_a_run_starts_from_pretrained_weights_and_tickets_rewind_to_them(tmp_path):
    notes, two = [], {"run": {"num_replicates": 2}}
    report = lambda event: notes.append(getattr(event, "text", ""))  # noqa: E731
    done = lottery.run(TINY, two, model=pretrained, data=ARRAYS, out=tmp_path, on_event=report)
    assert sum("the replicates differ only in the order of the batches" in note for note in notes) == 1
    for replicate in (1, 2):
        ticket = done.ticket(round=2, replicate=replicate)
        for name, loaded in zip(("dense/kernel", "dense/bias"), PRETRAINED, strict=False):
            kept = ticket.masks.get(name, np.ones_like(loaded, bool))
            np.testing.assert_array_equal(ticket.weights[name], loaded * kept)
    first, second = (StoredRound(done.path, replicate, 0).weights["dense/kernel"] for replicate in (1, 2))
    assert (first != second).any() and done.verify() == []
    with pytest.raises(LotteryError, match="random_reinit would be the ticket itself"):
        done.branch("random_reinit", model=pretrained, data=ARRAYS, on_event=quietly)
    with pytest.raises(LotteryError, match="random_reinit would be the ticket itself"):
        prepared(pretrained, overrides={"run": {"controls": ["random_reinit"]}})


def test_what_random_reinit_leaves_as_it_is_is_named():
    found = prepared(lambda: pretrained(2), overrides={"run": {"controls": ["random_reinit"]}})
    (note,) = (note for note in found.notes if "random_reinit" in note)
    assert "the same initial values of dense/kernel each time; random_reinit leaves them as they are" in note
    assert not [note for note in prepared(build_dropout).notes if "initial" in note]


def counts_only():
    """The usual training step of one's own: its `metrics` are those that it updates, and there is no `test_step`."""
    import keras
    import tensorflow as tf

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense, self.mean = keras.layers.Dense(3), keras.metrics.Mean(name="loss")

        @property
        def metrics(self):
            return [self.mean]

        def call(self, inputs):
            return self.dense(inputs)

        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(self.compute_loss(x, y, self(x, training=True)))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            self.mean.update_state(loss)
            return {"loss": self.mean.result()}

    model = Own()
    model(np.zeros((1, 6), np.float32))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def with_optimizer(library, optimizer):
    def build():
        model = sequential(library, library.layers.Dense(16, "relu"), library.layers.Dense(3, "softmax"))
        model.compile(optimizer(), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    return build


def falling_rate():
    import keras

    optimizer = keras.optimizers.SGD(lambda: 0.1 / (1 + keras.ops.cast(optimizer.iterations, "float32")))
    return optimizer


def test_what_would_be_wrong_without_a_word_is_refused(tmp_path):
    import keras
    import tf_keras

    own_rate = with_optimizer(keras, falling_rate)
    for model, overrides, message in (
        (counts_only, {}, "an evaluation reports 0 for each; give the model a test_step of its own"),
        (own_rate, {"rewind": {"step": 5}}, "which cannot begin at a later step"),
        (own_rate, {"rewind": {"mode": "fine_tune"}}, "which cannot begin at a later step"),
        (own_rate, {"run": {"controls": ["fine_tuning"]}}, "which cannot begin at a later step"),
        (with_optimizer(tf_keras, tf_keras.optimizers.Nadam), {}, "tf_keras' Nadam counts its steps"),
        (
            with_optimizer(tf_keras, tf_keras.optimizers.legacy.SGD),
            {},
            r"tf_keras\.optimizers\.legacy are not supported",
        ),
    ):
        with pytest.raises(LotteryError, match=message):
            run(model, tmp_path, overrides=overrides)
    done = run(own_rate, tmp_path).branch("random_mask", model=own_rate, data=ARRAYS, on_event=quietly)
    with pytest.raises(LotteryError, match="which cannot begin at a later step"):
        done.branch("fine_tuning", model=own_rate, data=ARRAYS, on_event=quietly)


@pytest.mark.parametrize("scales", [True, False])
def test_bytes_are_scaled_once(tmp_path, rng, scales):
    """What a record states is what Keras measures of the stored weights, on the arrays as the note says."""
    import keras

    x = rng.integers(0, 256, (260, 6)).astype(np.uint8)
    y = (x[:, 0] > 127).astype(np.int64)

    def build():
        first = [keras.layers.Rescaling(1 / 255)] if scales else []
        model = sequential(keras, *first, keras.layers.Dense(16, "relu"), keras.layers.Dense(2))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.02), loss, metrics=["accuracy"])
        return model

    said = []
    parts = (x[:200], y[:200], x[200:], y[200:])
    note = lambda event: said.append(getattr(event, "text", ""))  # noqa: E731
    done = lottery.run(TINY, model=build, data=parts, out=tmp_path, on_event=note, tensorboard=False)
    stored = StoredRound(done.path, 1, 0)
    model = build()
    weights.assign(model, stored.weights)
    inputs = x[200:].astype(np.float32)
    if not scales:
        train = data.given(parts, config.Experiment(**TINY).data)
        inputs = train.scaled(x[200:])
    measured = model.evaluate(inputs, y[200:], verbose=0, return_dict=True)
    assert measured["loss"] == pytest.approx(stored.record["final_test_loss"], rel=1e-5)
    expected = "the model scales them itself, by the layer 'rescaling" if scales else "so they are scaled as pixels"
    assert any(expected in text for text in said)


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_averages_are_held_where_the_model_is_compiled_inside(library, rng):
    import importlib

    keras = importlib.import_module(library)
    x, y = ARRAYS[:2]
    model = sequential(keras, keras.layers.Dense(16, "relu"), keras.layers.Dense(3, "softmax"))
    kept = lottery.prune(model, 0.7)
    with lottery.enforcement.constraint(model, kept):
        model.compile(keras.optimizers.Adam(0.01, use_ema=True), "sparse_categorical_crossentropy")
        model.fit(x, y, epochs=2, verbose=0)
        assert all(not np.any(value[~kept[name]]) for name, value in weights.read(model).items() if name in kept)
    assert "compile" not in vars(model)


def test_a_callback_holds_a_model_of_tf_keras_that_is_compiled_later():
    import tf_keras

    model = softmax_tf_keras()
    kept = lottery.prune(model, 0.7)
    with lottery.enforcement.callback(model, kept) as callbacks:
        model.compile("sgd", "sparse_categorical_crossentropy")
        model.fit(*ARRAYS[:2], epochs=1, verbose=0, callbacks=callbacks)
    assert isinstance(model, tf_keras.Model)
    assert all(not np.any(value[~kept[name]]) for name, value in weights.read(model).items() if name in kept)
