"""A run's identity is what it computes: changes that make another run, and rebuilds that find the same run again."""

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

import lottery
from lottery import config, enforcement, progress
from lottery.errors import LotteryError
from lottery.models import fingerprint
from lottery.pipeline import preparing
from lottery.pipeline.prepared import Ingredients, with_functions
from lottery.runs import store
from tests.conftest import quietly

TABLES = {"name": "own", "data": {"validation": 20}, "train": {"num_steps": 8, "batch_size": 16, "eval_every": 4}}
TABLES |= {"prune": {"num_rounds": 2}, "run": {"num_replicates": 1}}

CrossEntropy = keras.losses.SparseCategoricalCrossentropy
L, ops, T = keras.layers, keras.ops, tf_keras.layers
long = pytest.mark.long


def arrays():
    x = np.random.default_rng(0).normal(size=(100, 8)).astype("float32")
    return x, np.argmax(x[:, :3], 1), x[:40], np.argmax(x[:40, :3], 1)


def tokens():
    x, y, x_test, y_test = arrays()
    return np.abs(x * 4).astype("int32"), y, np.abs(x_test * 4).astype("int32"), y_test


def one_hot():
    x, y, x_test, y_test = arrays()
    return x, np.eye(3, dtype="float32")[y], x_test, np.eye(3, dtype="float32")[y_test]


def identity(ingredients, tables=TABLES):
    """The digest that decides the name of a run's folder."""
    experiment = with_functions(config.load(tables), ingredients)
    return config.digest(preparing.prepare(experiment, ingredients).experiment)


# Ways to build a model. Each returns the ingredients of a run.


def built(*layers, wrap=keras.Sequential, data=arrays, **compiled):
    """A Sequential of what `layers` make anew each time, and compiled with what `compiled` make."""

    def build():
        model = wrap([keras.Input((8,)), *(make() for make in layers)])
        if compiled:
            arguments = {key: value() for key, value in compiled.items()}
            model.compile(**{"optimizer": "adam", "loss": CrossEntropy(from_logits=True)} | arguments)
        return model

    return Ingredients(build, data())


def ends(**arguments):
    return lambda: L.Dense(3, **arguments)


def functional(make, data=arrays):
    """A functional model of Keras 3: `make` is called with the input."""

    def build():
        x = keras.Input((8,))
        return keras.Model(x, make(x))

    return Ingredients(build, data())


def lossy(make):
    """A model compiled with the loss that `make` makes."""
    return built(ends(), loss=make)


def squares(y, p, factor):
    return factor * ops.mean(ops.square(ops.cast(y, "float32")[:, None] - p), -1)


def closing_over(factor):
    return lambda y, p: squares(y, p, factor)


def weighting(classes):
    """A loss that weighs the classes by an array, which it closes over."""

    def loss(y, p):
        each = ops.take(ops.convert_to_tensor(classes), ops.cast(y, "int32"))
        return each * keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)

    return loss


class Focal(keras.losses.Loss):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def call(self, y, p):
        return squares(y, p, self.factor)


class Silent(keras.regularizers.Regularizer):  # without get_config
    def __init__(self, strength):
        self.strength = strength

    def __call__(self, x):
        return self.strength * ops.sum(x * x)


class Scale(L.Layer):
    def __init__(self, by):
        super().__init__()
        self._by = by

    def call(self, x):
        return x * self._by


class OnlyInference(Scale):
    def call(self, x, training=None):
        return x if training else x * self._by


def inheriting(factor):
    class Base(L.Layer):
        def call(self, x):
            return x * factor

    class Child(Base):
        pass

    return Child


CONSTANT = 1.0


def helper(x):
    return CONSTANT * x


class UsesConstant(L.Layer):
    def call(self, x):
        return helper(x)


def with_constant(value):
    def make():
        global CONSTANT
        CONSTANT = value
        return UsesConstant()

    return built(make, ends())


class Subclassed(keras.Model):
    def __init__(self, rate):
        super().__init__()
        self.first, self.last, self.rate = L.Dense(6, "relu"), L.Dense(3), rate

    def call(self, x):
        return self.last(self.first(x) * self.rate)


def subclassed(rate):
    def build():
        model = Subclassed(rate)
        model(np.zeros((1, 8), "float32"))
        return model

    return Ingredients(build, arrays())


class OwnAdam(keras.optimizers.Adam):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient * self.factor, variable, learning_rate)


class OwnRate(keras.optimizers.schedules.LearningRateSchedule):  # without get_config
    def __init__(self, start):
        self.start = start

    def __call__(self, step):
        return self.start / (1.0 + tf.cast(step, tf.float32))


def optimised(make):
    return built(lambda: L.Dense(6), ends(), optimizer=make)


def without_decay(*names):
    optimizer = keras.optimizers.AdamW(weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=list(names))
    return optimizer


def scaled(rate):
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(rate))


class EndingWith(keras.optimizers.SGD):
    """It multiplies all weights at the end of training alone."""

    def __init__(self, factor):
        super().__init__(0.1)
        self.factor = factor

    def finalize_variable_values(self, var_list):
        for variable in var_list:
            variable.assign(variable * self.factor)


def shared_out(rate, momentum):
    """Kernels by an optimizer with moving averages, biases by another."""
    one = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=momentum)
    other = keras.optimizers.Adam(rate)
    return keras.optimizers.MultiOptimizer(lambda variable: one if "kernel" in variable.path else other)


def own_steps(in_training=1.0, in_test=1.0):
    class Own(keras.Sequential):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = in_training * tf.reduce_mean(squares(y, self(x, training=True), 1.0))
            self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

        def test_step(self, data):
            x, y = data
            return {"loss": in_test * tf.reduce_mean(squares(y, self(x), 1.0))}

    return built(ends(), wrap=Own, optimizer=lambda: "sgd")


def frozen(which):
    def build():
        model = keras.Sequential([keras.Input((8,)), L.Dense(6), L.Dense(6), L.Dense(3)])
        model.layers[which].trainable = False
        return model

    return Ingredients(build, arrays())


def loaded(value):
    def build():
        model = keras.Sequential([keras.Input((8,)), L.Dense(6), L.Dense(3)])
        model.layers[0].set_weights([np.full((8, 6), value, "float32"), np.zeros(6, "float32")])
        return model

    return Ingredients(build, arrays())


def in_python(factor):
    """A loss that calls Python, which a graph does not show."""

    def loss(y, p):
        return squares(y, p, tf.ensure_shape(tf.numpy_function(lambda: np.float32(factor), [], tf.float32), ()))

    return lossy(lambda: loss)


def looked_up(value):
    """A table of values, which a graph does not show either."""

    class Lookup(L.Layer):
        def __init__(self):
            super().__init__()
            content = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1], tf.int64), tf.constant([value, value]))
            self.table = tf.lookup.StaticHashTable(content, value)

        def call(self, x):
            return x * self.table.lookup(tf.cast(x, tf.int64))

    return built(Lookup, ends())


def naming(*chosen):
    class Named(L.Dense):
        def get_prunable_weights(self):
            return [getattr(self, name) for name in chosen]

    return built(lambda: Named(6), ends())


def swapped(swap):
    def make(x):
        one, other = L.Dense(6, "relu")(x), L.Dense(6, "tanh")(x)
        return L.Dense(3)(other - one if swap else one - other)

    return functional(make)


def of_tf_keras(*layers, data=arrays, **compiled):
    def build():
        model = tf_keras.Sequential([T.InputLayer((8,)), *(make() for make in layers)])
        if compiled:
            model.compile(**{key: value() for key, value in compiled.items()})
        return model

    return Ingredients(build, data())


PLAIN = functools.partial(built, lambda: L.Dense(6, "relu"), ends())


def with_criterion(criterion):
    return Ingredients(PLAIN().model, arrays(), criterion)


def power(inputs, p):
    return {name: np.abs(value) ** p for name, value in inputs.trained.items()}


class Scores:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, inputs):
        return {name: self.factor * np.abs(value) for name, value in inputs.trained.items()}


def times(array):
    return lambda inputs: {name: np.abs(value) * array[: value.shape[1]] for name, value in inputs.trained.items()}


def below(density):
    def criterion(inputs):
        sign = -1 if inputs.density < density else 1
        return {name: sign * np.abs(value) for name, value in inputs.trained.items()}

    return criterion


def by_default(value):
    def criterion(inputs, *, factor=value):
        return {name: factor * np.abs(value) for name, value in inputs.trained.items()}

    return criterion


def with_enforcement(enforce):
    return Ingredients(PLAIN().model, arrays(), enforcement=enforce)


@contextlib.contextmanager
def one_of_two(model, masks, which):
    with enforcement.ENFORCEMENTS[which].hold(model, masks) as callbacks:
        yield callbacks


def embedded(masked):
    def make(x):
        return L.Dense(3)(L.LSTM(3)(L.Embedding(40, 4, mask_zero=masked)(x)))

    return functional(make, tokens)


CosineDecay = keras.optimizers.schedules.CosineDecay

# What differs: the ingredients of two runs.
CHANGES = {
    "optimiser: the weights it ends with": (
        lambda: optimised(lambda: EndingWith(0.5)),
        lambda: optimised(lambda: EndingWith(0.9)),
    ),
    "optimiser: averages": (
        lambda: optimised(lambda: shared_out(0.1, 0.9)),
        lambda: optimised(lambda: shared_out(0.1, 0.5)),
    ),
    "optimiser: the second of two": (
        lambda: optimised(lambda: shared_out(0.1, 0.9)),
        lambda: optimised(lambda: shared_out(0.2, 0.9)),
    ),
    "loss: an array it closes over": (
        lambda: lossy(lambda: weighting(np.array([1, 1, 1], "float32"))),
        lambda: lossy(lambda: weighting(np.array([9, 1, 1], "float32"))),
    ),
    "loss: a NumPy number it closes over": (
        lambda: lossy(lambda: closing_over(np.float32(0.1))),
        lambda: lossy(lambda: closing_over(np.float32(0.9))),
    ),
    "loss: an argument of a partial": (
        lambda: lossy(lambda: functools.partial(squares, factor=0.1)),
        lambda: lossy(lambda: functools.partial(squares, factor=0.9)),
    ),
    "loss: an attribute": (lambda: lossy(lambda: Focal(0.1)), lambda: lossy(lambda: Focal(0.9))),
    "loss: inside Python": (lambda: in_python(1.0), lambda: in_python(2.0)),
    "loss: label smoothing": (
        lambda: built(ends(), loss=lambda: keras.losses.CategoricalCrossentropy(label_smoothing=0.1), data=one_hot),
        lambda: built(ends(), loss=lambda: keras.losses.CategoricalCrossentropy(label_smoothing=0.2), data=one_hot),
    ),
    "loss: its weight": (
        lambda: built(ends(), loss_weights=lambda: [0.1]),
        lambda: built(ends(), loss_weights=lambda: [0.9]),
    ),
    "regulariser: strength, without get_config": (
        lambda: built(ends(kernel_regularizer=Silent(0.1))),
        lambda: built(ends(kernel_regularizer=Silent(9.0))),
    ),
    "activation beside a regulariser without get_config": (
        lambda: built(lambda: L.Dense(6, "relu", kernel_regularizer=Silent(0.1)), ends()),
        lambda: built(lambda: L.Dense(6, "tanh", kernel_regularizer=Silent(0.1)), ends()),
    ),
    "layer: a private number": (lambda: built(lambda: Scale(0.1), ends()), lambda: built(lambda: Scale(0.9), ends())),
    "layer: an array": (
        lambda: built(lambda: Scale(np.full(8, 0.1, "float32")), ends()),
        lambda: built(lambda: Scale(np.full(8, 0.9, "float32")), ends()),
    ),
    "layer: a tensor": (
        lambda: built(lambda: Scale(tf.fill([8], 0.1)), ends()),
        lambda: built(lambda: Scale(tf.fill([8], 0.9)), ends()),
    ),
    "layer: an inherited call": (lambda: built(inheriting(2.0), ends()), lambda: built(inheriting(-3.0), ends())),
    "layer: a constant of its module": (lambda: with_constant(1.0), lambda: with_constant(-5.0)),
    "layer: a lambda": (
        lambda: built(lambda: L.Lambda(lambda x: x * 2.0), ends()),
        lambda: built(lambda: L.Lambda(lambda x: x * 3.0), ends()),
    ),
    "layer: only at inference": (
        lambda: built(lambda: OnlyInference(0.1), ends()),
        lambda: built(lambda: OnlyInference(0.9), ends()),
    ),
    "layer: values of a table": (lambda: looked_up(1.0), lambda: looked_up(2.0)),
    "layer: weights that may be pruned": (lambda: naming("kernel"), lambda: naming()),
    "layer: frozen": (lambda: frozen(0), lambda: frozen(1)),
    "layer: a constraint of the second": (
        lambda: built(lambda: L.Dense(6), ends(kernel_constraint=keras.constraints.MaxNorm(1.0))),
        lambda: built(lambda: L.Dense(6), ends(kernel_constraint=keras.constraints.MaxNorm(2.0))),
    ),
    "dropout: seed, in tf_keras": (
        lambda: of_tf_keras(lambda: T.Dropout(0.5, seed=1), lambda: T.Dense(3)),
        lambda: of_tf_keras(lambda: T.Dropout(0.5, seed=2), lambda: T.Dense(3)),
    ),
    "model: an attribute": (lambda: subclassed(1.0), lambda: subclassed(2.0)),
    "model: order of a subtraction": (lambda: swapped(False), lambda: swapped(True)),
    "model: weights that it loads": (lambda: loaded(0.1), lambda: loaded(0.2)),
    "embedding: a mask": (lambda: embedded(False), lambda: embedded(True)),
    "train_step: a constant": (lambda: own_steps(1.0), lambda: own_steps(2.0)),
    "test_step: a constant": (lambda: own_steps(), lambda: own_steps(in_test=2.0)),
    "optimiser: an attribute": (lambda: optimised(lambda: OwnAdam(1.0)), lambda: optimised(lambda: OwnAdam(2.0))),
    "optimiser: beta": (
        lambda: optimised(lambda: keras.optimizers.Adam(beta_2=0.99)),
        lambda: optimised(lambda: keras.optimizers.Adam(beta_2=0.999)),
    ),
    "optimiser: norm of all gradients": (
        lambda: optimised(lambda: keras.optimizers.SGD(global_clipnorm=1.0)),
        lambda: optimised(lambda: keras.optimizers.SGD(global_clipnorm=2.0)),
    ),
    "optimiser: a weight without decay": (
        lambda: optimised(lambda: without_decay("kernel")),
        lambda: optimised(lambda: without_decay("bias")),
    ),
    "optimiser: inside a LossScaleOptimizer": (
        lambda: optimised(lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(beta_1=0.8))),
        lambda: optimised(lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(beta_1=0.7))),
    ),
    "learning rate: late in a schedule without get_config": (
        lambda: optimised(lambda: keras.optimizers.SGD(OwnRate(0.1))),
        lambda: optimised(lambda: keras.optimizers.SGD(OwnRate(0.1000001))),
    ),
    "metric: an argument": (
        lambda: built(ends(), metrics=lambda: [keras.metrics.SparseTopKCategoricalAccuracy(k=1)]),
        lambda: built(ends(), metrics=lambda: [keras.metrics.SparseTopKCategoricalAccuracy(k=2)]),
    ),
    "criterion: an argument of a partial": (
        lambda: with_criterion(functools.partial(power, p=1)),
        lambda: with_criterion(functools.partial(power, p=2)),
    ),
    "criterion: an attribute": (lambda: with_criterion(Scores(1)), lambda: with_criterion(Scores(-1))),
    "criterion: an array it closes over": (
        lambda: with_criterion(times(np.ones(6))),
        lambda: with_criterion(times(np.arange(6.0))),
    ),
    "criterion: a default": (lambda: with_criterion(by_default(1)), lambda: with_criterion(by_default(2))),
    "criterion: in the last round": (lambda: with_criterion(below(0.1)), lambda: with_criterion(below(0.7))),
    "enforcement: an argument of a partial": (
        lambda: with_enforcement(functools.partial(one_of_two, which="gradient")),
        lambda: with_enforcement(functools.partial(one_of_two, which="constraint")),
    ),
}


class Counted(keras.metrics.Metric):  # Keras numbers its name
    def __init__(self):
        super().__init__()
        self.count = self.add_weight(shape=(), initializer="zeros")

    def update_state(self, y, p, sample_weight=None):
        self.count.assign_add(1.0)

    def result(self):
        return self.count


class WithMemory(Scale):
    made = 0

    def __init__(self):
        super().__init__(2.0)
        WithMemory.made += 1
        self.number, self.address = WithMemory.made, str(id(self))  # of this object alone


def looping(x):
    return tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, h * 1.1), [tf.constant(0), x])[1]


def nested(x):
    inner = keras.Sequential([keras.Input((8,)), L.Dense(8, "relu")])
    return L.Dense(3)(inner(inner(x)) + x)


def in_order(x):
    hidden = L.Dense(6, "relu")(x)  # made first, so that it draws its weights first
    return L.Dense(3)(hidden)


def attention(x):
    h = L.Embedding(40, 4)(x)
    return L.Dense(3)(L.GlobalAveragePooling1D()(L.LayerNormalization()(h + L.MultiHeadAttention(2, 2)(h, h))))


def convolved(x):
    h = L.Conv1D(4, 3)(L.Reshape((8, 1))(x))
    return L.Dense(3)(L.Flatten()(L.Dropout(0.2)(L.BatchNormalization()(h))))


def recurrent(x):
    return L.Dense(3)(L.RNN([L.LSTMCell(3), L.GRUCell(3)])(L.Reshape((4, 2))(x)))


def lambda_of(criterion):
    return lambda inputs: criterion(inputs)


def bidirectional():
    return T.Bidirectional(T.LSTM(2))


def residual(x):
    return L.Dense(3)(L.Dense(8, "relu")(x) + x)


def again(make):
    return make, make


# What is written or made anew: the ingredients of one run, twice.
REBUILDS = {
    "two optimizers and averages": again(lambda: optimised(lambda: shared_out(0.1, 0.9))),
    "a residual connection by +": again(lambda: functional(residual)),
    "a slice": again(lambda: functional(lambda x: L.Dense(3)(x[:, :4]))),
    "an operation of keras.ops": again(lambda: functional(lambda x: L.Dense(3)(ops.relu(L.Dense(4)(x))))),
    "an embedding with a mask": again(lambda: embedded(True)),
    "attention": again(lambda: functional(attention, tokens)),
    "a model inside, used twice": again(lambda: functional(nested)),
    "convolution, normalisation, dropout": again(lambda: functional(convolved)),
    "stacked recurrent cells": again(lambda: functional(recurrent)),
    "a loop in a lambda": again(lambda: built(lambda: L.Lambda(looping), ends())),
    "metric objects": again(
        lambda: built(
            ends(activation="sigmoid"),
            data=one_hot,
            loss=lambda: "mse",
            metrics=lambda: [keras.metrics.AUC(), keras.metrics.Precision()],
        )
    ),
    "a metric that Keras numbers": again(lambda: built(ends(), metrics=lambda: [Counted()])),
    "a LossScaleOptimizer": again(lambda: optimised(lambda: scaled(0.1))),
    "a schedule": again(lambda: optimised(lambda: keras.optimizers.SGD(CosineDecay(0.1, 9)))),
    "Bidirectional of tf_keras": again(
        lambda: of_tf_keras(lambda: T.Embedding(40, 4), bidirectional, lambda: T.Dense(3), data=tokens)
    ),
    "tf_keras, compiled, with dropout": again(
        lambda: of_tf_keras(
            lambda: T.Dropout(0.5),
            lambda: T.Dense(3),
            loss=lambda: "mse",
            metrics=lambda: [tf_keras.metrics.MeanSquaredError()],
        )
    ),
    "spectral normalisation": again(lambda: built(lambda: L.SpectralNormalization(L.Dense(4)), ends())),
    "a class that is defined anew": again(lambda: built(inheriting(2.0), ends())),
    "attributes that nothing uses": again(lambda: built(WithMemory, ends())),
    "another object with an equal array": (
        lambda: lossy(lambda: weighting(np.ones(3, "float32"))),
        lambda: lossy(lambda: weighting(np.ones(3, "float32").copy())),
    ),
    "a partial for a closure": (
        lambda: lossy(lambda: closing_over(0.5)),
        lambda: lossy(lambda: functools.partial(squares, factor=0.5)),
    ),
    "a functional model for a Sequential": (PLAIN, lambda: functional(in_order)),
    "a loss inside Python": again(lambda: in_python(1.0)),
    "a table of values": again(lambda: looked_up(1.0)),
    "steps of the model's own": again(lambda: own_steps()),
    "a subclassed model": again(lambda: subclassed(1.0)),
    "optimiser of one's own": again(lambda: optimised(lambda: OwnAdam(2.0))),
    "a criterion in a lambda": (
        lambda: with_criterion(Scores(2)),
        lambda: with_criterion(lambda_of(Scores(2))),
    ),
    "a criterion written otherwise": (
        lambda: with_criterion(by_default(2)),
        lambda: with_criterion(Scores(2)),
    ),
    "an enforcement in a partial": (
        lambda: with_enforcement(functools.partial(one_of_two, which="gradient")),
        lambda: with_enforcement(enforcement.gradient),
    ),
}

# The others carry the marker `long`.
QUICK_CHANGES = (
    "optimiser: the weights it ends with",
    "loss: an array it closes over", "loss: inside Python", "regulariser: strength, without get_config",
    "layer: an inherited call", "layer: only at inference", "layer: a constraint of the second",
    "optimiser: an attribute", "criterion: in the last round", "enforcement: an argument of a partial",
)  # fmt: skip
QUICK_REBUILDS = (
    "two optimizers and averages",
    "a residual connection by +", "a slice", "a metric that Keras numbers", "a LossScaleOptimizer",
    "attributes that nothing uses", "a partial for a closure",
)  # fmt: skip


def table(pairs, quick):
    return [pytest.param(name, marks=() if name in quick else long) for name in pairs]


@pytest.mark.parametrize("what", table(CHANGES, QUICK_CHANGES))
def test_whatever_computes_something_else_is_another_run(what):
    one, other = CHANGES[what]
    assert identity(one()) != identity(other())


@pytest.mark.parametrize("what", table(REBUILDS, QUICK_REBUILDS))
def test_whatever_computes_the_same_is_the_same_run(what):
    one, other = REBUILDS[what]
    first = identity(one())
    functional(residual).model()  # so that Keras counts on
    assert identity(other()) == first


# Whole runs.


def go(ingredients, out, overrides=None, **options):
    named = {"model": ingredients.model, "data": ingredients.data, "criterion": ingredients.criterion}
    named["enforcement"] = ingredients.enforcement
    return lottery.run(TABLES, overrides, out=out, **{"on_event": quietly} | named | options)


def notes_of(events):
    return [event.text for event in events if isinstance(event, progress.Note)]


def test_a_model_that_keras_names_anew_resumes_branches_and_is_complete(tmp_path):
    own = functional(residual)
    run = go(own, tmp_path)
    stored = (store.round_path(run.path, 1, 2) / "weights.safetensors").read_bytes()
    shutil.rmtree(run.path / "replicate-1")
    (run.path / "environment.json").unlink()  # as if it was killed before that was written
    assert go(own, tmp_path).path == run.path
    (store.round_path(run.path, 1, 2) / "round.json").unlink()
    assert go(own, tmp_path).path == run.path
    assert set(store.read_environment(run.path)["observed"]) == {"reported", "example", "opaque", "num_gpus"}
    assert (store.round_path(run.path, 1, 2) / "weights.safetensors").read_bytes() == stored
    run.branch("random_mask", [1], model=own.model, data=own.data, on_event=quietly)
    assert set(run.table()["branch"]) == {"ticket", "random_mask"}
    events = []
    assert go(own, tmp_path, on_event=events.append).path == run.path and "is complete" in notes_of(events)[-1]
    assert len(list(tmp_path.iterdir())) == 1 and run.verify() == []


def test_another_loss_is_another_run_with_results_of_its_own(tmp_path):
    one, other = (lossy(lambda factor=factor: closing_over(np.float32(factor))) for factor in (1, 10))
    first, second = go(one, tmp_path), go(other, tmp_path)
    assert first.path != second.path
    np.testing.assert_array_less(9 * first.table()["final_val_loss"], second.table()["final_val_loss"])
    with pytest.raises(LotteryError, match="began with another model or function"):
        first.branch("random_mask", [1], model=other.model, data=other.data, on_event=quietly)


SCRIPT = """
import json, sys
from tests.pipeline import test_fingerprinting as table
names = json.loads(sys.argv[1])
pairs = table.CHANGES | table.REBUILDS
print(json.dumps({name: table.identity(pairs[name][0]()) for name in names}))
"""


@pytest.mark.long
def test_another_process_computes_the_same_identities():
    """With another seed for the hashes of Python, and another number of threads."""
    pairs = CHANGES | REBUILDS
    names = list(pairs)[::-1]
    settings = {"PYTHONHASHSEED": "7", "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", SCRIPT, json.dumps(names)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | settings)
    there = json.loads(done.stdout.splitlines()[-1])
    assert there == {name: identity(pairs[name][0]()) for name in pairs}


@pytest.mark.long
def test_workers_and_sweeps_find_the_same_identity(tmp_path):
    """As a user has it, who has looked at the model first, so that Keras has counted on."""
    own = functional(residual)
    own.model().count_params()
    run = go(own, tmp_path / "workers", {"run": {"num_replicates": 2}}, workers=2)
    assert len(run.table()) == 6 and run.verify() == []
    x, y, x_test, y_test = arrays()
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    tables = TABLES | {"data": {"name": "npz", "path": str(tmp_path / "d.npz"), "validation": 20}}
    tables |= {"model": {"name": "tests.pipeline.test_fingerprinting:named"}, "sweep": {"prune.rate": [0.2, 0.5]}}
    for _ in range(2):
        assert len(lottery.sweep(tables, out=tmp_path / "sweep", on_event=quietly)) == 2
    assert len(list((tmp_path / "sweep").iterdir())) == 2


def named():
    return functional(residual).model()


def of_another_machine(run, monkeypatch, versions=True):
    """Make a run look as if other versions had stored it, for which a model is made of other operations."""
    recorded = store.read_environment(run.path)
    if versions:
        recorded["versions"] |= {"keras": "3.0.0"}
    store.write_record(run.path / "environment.json", {k: v for k, v in recorded.items() if k != "record_sha256"})
    original = fingerprint.of_step
    monkeypatch.setattr(fingerprint, "of_step", lambda *arguments: "other " + original(*arguments))


@pytest.mark.long
def test_with_other_versions_a_run_goes_on_and_says_how_it_was_compared(tmp_path, monkeypatch):
    own, other = lossy(lambda: closing_over(1.0)), lossy(lambda: closing_over(1.0001))
    run = go(own, tmp_path)
    (store.round_path(run.path, 1, 2) / "round.json").unlink()
    of_another_machine(run, monkeypatch)
    events = []
    assert go(own, tmp_path, on_event=events.append).path == run.path
    assert any("compared by the numbers of the first steps, to 0.001 %" in note for note in notes_of(events))
    assert any("started with another keras (3.0.0; now" in note for note in notes_of(events))
    events = []
    assert go(other, tmp_path, on_event=events.append).path != run.path
    assert any("its model and functions compute other values here. A new run begins" in n for n in notes_of(events))
    assert run.verify(recompute=True, model=own.model, data=own.data) == []
    run.branch("random_mask", [1], model=own.model, data=own.data, on_event=quietly)
    with pytest.raises(LotteryError, match="began with another model or function"):
        run.branch("shuffled_mask", [1], model=other.model, data=other.data, on_event=quietly)


@pytest.mark.long
def test_with_the_same_versions_only_the_digest_counts(tmp_path, monkeypatch):
    own = lossy(lambda: closing_over(1.0))
    run = go(own, tmp_path)
    of_another_machine(run, monkeypatch, versions=False)
    assert go(own, tmp_path).path != run.path


@pytest.mark.long
def test_a_run_of_an_earlier_version_can_still_be_branched_and_is_not_taken_for_another(tmp_path, monkeypatch):
    own = functional(residual)
    run = go(own, tmp_path)
    recorded = store.read_environment(run.path)
    before = {key: value for key, value in recorded.items() if key not in ("record_sha256", "observed")}
    store.write_record(run.path / "environment.json", before)
    of_another_machine(run, monkeypatch, versions=False)
    events = []
    run.branch("random_mask", [1], model=own.model, data=own.data, on_event=events.append)
    assert "random_mask" in set(run.table()["branch"])
    events = []
    assert go(own, tmp_path, on_event=events.append).path != run.path
    assert any("an earlier version of lottery stored it" in note for note in notes_of(events))


STREAM = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("criterion", "message"),
    [
        (lambda inputs: {}, "dense/kernel"),
        (lambda inputs: {name: value[:1] for name, value in inputs.trained.items()}, "shape"),
        (lambda inputs: {name: value * np.nan for name, value in inputs.trained.items()}, "NaN|nan|finite"),
        (lambda inputs: 1 / 0, "the function cannot score the weights: division by zero"),
        (lambda inputs: {k: STREAM.random(v.shape) for k, v in inputs.trained.items()}, "other scores each time"),
    ],
)
def test_a_criterion_is_tried_before_anything_is_trained(tmp_path, criterion, message):
    with pytest.raises(LotteryError, match=message) as caught:
        go(with_criterion(criterion), tmp_path)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_a_criterion_may_draw_from_the_generator_of_its_inputs_or_from_numpys_own(tmp_path):
    def drawn(inputs):
        return {k: inputs.rng.random(v.shape) + np.random.random(v.shape) for k, v in inputs.trained.items()}

    assert identity(with_criterion(drawn)) == identity(with_criterion(drawn))


def test_transfer_refuses_another_model_and_takes_the_same(tmp_path):
    x, y, x_test, y_test = arrays()
    other_data = (2 * x, y, 2 * x_test, y_test)
    own, wrong = functional(residual), functional(lambda x: L.Dense(3)(L.Dense(8, "sigmoid")(x) + x))
    run = go(own, tmp_path)
    with pytest.raises(LotteryError, match="began with another model"):
        run.branch("transfer", [1], model=wrong.model, data=other_data, on_event=quietly)
    assert set(run.table()["branch"]) == {"ticket"}
    events, rate = [], {"train": {"learning_rate": 0.01}}
    lottery.branch(run.path, "transfer", [1], rate, model=own.model, data=other_data, on_event=events.append)
    assert len(set(run.table()["branch"])) == 2 and not any("compared" in note for note in notes_of(events))
    wider = tuple(np.repeat(one, 2, 0)[:, None] if one.ndim > 1 else np.repeat(one, 2) for one in other_data)
    with pytest.raises(LotteryError):
        run.branch("transfer", [1], model=own.model, data=wider, on_event=quietly)
