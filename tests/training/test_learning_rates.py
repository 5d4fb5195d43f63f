"""Learning rates step by step against lists made by hand, and what they do to a weight in a compiled loop."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from hypothesis import given
from hypothesis import strategies as st

from lottery import config
from lottery.errors import LotteryError
from lottery.training import schedules

both = pytest.mark.parametrize("library", [keras, tf_keras], ids=["keras", "tf_keras"])

# Arguments, the step retraining begins at, and the rate of each step from there.
BY_HAND = [
    ({"learning_rate": 0.8, "warmup_steps": 4}, 0, [0.2, 0.4, 0.6, 0.8, 0.8, 0.8]),
    ({"learning_rate": 0.8, "warmup_steps": 4}, 2, [0.6, 0.8, 0.8]),
    ({"learning_rate": 0.1, "drop_at": (2, 4)}, 0, [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]),
    ({"learning_rate": 0.1, "drop_at": (2, 4)}, 3, [0.01, 0.001, 0.001]),
    (
        {"learning_rate": 0.8, "warmup_steps": 4, "drop_at": (6, 8), "drop_factor": 0.5},
        0,
        [0.2, 0.4, 0.6, 0.8, 0.8, 0.8, 0.4, 0.4, 0.2, 0.2],
    ),
    ({"learning_rate": 1, "warmup_steps": 3, "drop_at": [1], "drop_factor": 0.25}, 0, [1 / 3, 1 / 6, 0.25, 0.25]),
    ({"learning_rate": ("ExponentialDecay", 0.8, 1, 0.5)}, 0, [0.8, 0.4, 0.2, 0.1]),
    ({"learning_rate": ("ExponentialDecay", 0.8, 1, 0.5)}, 2, [0.2, 0.1, 0.05]),
    ({"learning_rate": ("ExponentialDecay", 0.8, 1, 0.5), "warmup_steps": 2}, 0, [0.4, 0.4, 0.2, 0.1]),
    (
        {"learning_rate": ("PiecewiseConstantDecay", [1, 3], [0.9, 0.6, 0.3]), "warmup_steps": 3, "drop_at": (4,)},
        0,
        [0.3, 0.6, 0.6, 0.6, 0.03, 0.03],
    ),
    ({"learning_rate": ("CosineDecay", 2.0, 4)}, 0, [2.0, 1 + np.sqrt(0.5), 1.0, 1 - np.sqrt(0.5), 0.0, 0.0]),
]


def made(library, first_step=None, **arguments):
    rate = arguments.pop("learning_rate")
    if isinstance(rate, tuple):
        rate = getattr(library.optimizers.schedules, rate[0])(*rate[1:])
    return schedules.schedule(library, rate, **arguments, first_step=first_step)


def one_weight(library, optimizer):
    """A model whose loss is its one weight: the gradient is 1 at every step."""
    model = library.Sequential(
        [library.layers.InputLayer((1,)), library.layers.Dense(1, use_bias=False, kernel_initializer="ones")]
    )
    model.compile(optimizer=optimizer, loss=lambda labels, outputs: outputs)
    return model


def compiled(model):
    """As many of the model's own steps as are asked for, in one loop of the graph; and the list of its traces."""
    traces, batch = [], (tf.ones((4, 1)), tf.zeros((4, 1)))
    model.optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def steps(num):
        traces.append(1)

        def body(index):
            model.train_step(batch)
            return index + 1

        return tf.while_loop(lambda index: index < num, body, (tf.constant(0),), parallel_iterations=1)

    return steps, traces


@both
@pytest.mark.parametrize(("arguments", "first", "expected"), BY_HAND)
def test_rates_are_those_made_by_hand(library, arguments, first, expected):
    rate = made(library, tf.Variable(first, dtype=tf.int64), **arguments)
    assert isinstance(rate, library.optimizers.schedules.LearningRateSchedule)
    for kind in (int, np.int64, tf.constant, lambda step: tf.constant(step, tf.int64)):
        np.testing.assert_allclose([rate(kind(step)) for step in range(len(expected))], expected, rtol=1e-6, atol=1e-7)


@both
@pytest.mark.parametrize(("arguments", "first", "expected"), BY_HAND)
def test_a_weight_moves_by_the_rate_in_a_compiled_step(library, arguments, first, expected):
    rate = made(library, tf.Variable(first, dtype=tf.int64), **arguments)
    model = one_weight(library, library.optimizers.SGD(rate))
    steps, traces = compiled(model)
    seen = [1.0]
    for _ in expected:
        steps(tf.constant(1))
        seen.append(float(model.get_weights()[0][0, 0]))
    np.testing.assert_allclose(-np.diff(seen), expected, rtol=1e-4, atol=1e-6)
    assert len(traces) == 1


@both
def test_steps_in_one_loop_of_the_graph_and_a_later_start_without_another_trace(library):
    first_step = tf.Variable(0, dtype=tf.int64)
    arguments = {"learning_rate": 0.8, "warmup_steps": 4, "drop_at": (6, 8), "drop_factor": 0.5}
    expected = [0.2, 0.4, 0.6, 0.8, 0.8, 0.8, 0.4, 0.4, 0.2, 0.2, 0.2, 0.2]
    model = one_weight(library, library.optimizers.SGD(made(library, first_step, **arguments)))
    steps, traces = compiled(model)
    for first in (0, 5, 2, 9):
        first_step.assign(first)
        model.set_weights([np.ones((1, 1))])
        model.optimizer.iterations.assign(0)
        steps(tf.constant(3))
        np.testing.assert_allclose(1 - model.get_weights()[0][0, 0], sum(expected[first : first + 3]), rtol=1e-5)
        assert int(model.optimizer.iterations) == 3  # the optimiser counts its own steps only
    assert len(traces) == 1


@both
def test_a_later_start_leaves_adam_fresh(library):
    # A fresh Adam's first step is the rate in the direction of the sign, whatever the gradient: its two corrections
    # cancel. Counting from 50 they would make it larger by nearly a factor of three.
    rate = made(library, tf.Variable(50, dtype=tf.int64), learning_rate=0.3, drop_at=(50,))
    model = one_weight(library, library.optimizers.Adam(rate))
    compiled(model)[0](tf.constant(1))
    assert float(model.get_weights()[0][0, 0]) == pytest.approx(1 - 0.03, abs=1e-5)


@both
def test_keras_own_fit_takes_it(library):
    model = one_weight(library, library.optimizers.SGD(made(library, learning_rate=0.8, warmup_steps=4)))
    model.fit(np.ones((12, 1)), np.zeros((12, 1)), batch_size=4, epochs=2, verbose=0)
    assert float(model.get_weights()[0][0, 0]) == pytest.approx(1 - (0.2 + 0.4 + 0.6 + 3 * 0.8), abs=1e-5)


@both
def test_a_number_that_never_changes_stays_a_number(library):
    for rate in (0.1, 1, 0.0):
        for quiet in ({}, {"warmup_steps": 1}, {"first_step": tf.Variable(7, dtype=tf.int64)}, {"drop_factor": 0.5}):
            assert schedules.schedule(library, rate, **quiet) is rate


@pytest.mark.parametrize("wrong", ["fast", None, True, [0.1]])
def test_what_is_no_learning_rate_is_refused(wrong):
    with pytest.raises(LotteryError, match=r"train\.learning_rate"):
        config.load({"train": {"learning_rate": wrong}})


@both
@pytest.mark.parametrize("arguments", [arguments for arguments, *_ in BY_HAND])
def test_it_is_made_again_from_what_it_says_of_itself(library, arguments):
    first_step = tf.Variable(1, dtype=tf.int64)
    rate = made(library, first_step, **arguments)
    schedules = library.optimizers.schedules
    again = schedules.deserialize(schedules.serialize(rate))
    assert type(again) is type(rate) and again is not rate
    np.testing.assert_array_equal([again(step) for step in range(9)], [rate(step) for step in range(9)])


@both
def test_a_model_is_saved_and_loaded_with_it(library, tmp_path):
    def loss(labels, outputs):
        return outputs

    rate = made(library, learning_rate=("ExponentialDecay", 0.8, 1, 0.5), warmup_steps=4, drop_at=(2,))
    model = one_weight(library, library.optimizers.SGD(rate))
    model.compile(optimizer=model.optimizer, loss=loss)
    compiled(model)[0](tf.constant(2))
    model.save(tmp_path / "model.keras")
    loaded = library.models.load_model(tmp_path / "model.keras", custom_objects={"loss": loss})
    for one in (model, loaded):
        compiled(one)[0](tf.constant(2))
    assert int(loaded.optimizer.iterations) == 4
    assert loaded.get_weights()[0].tobytes() == model.get_weights()[0].tobytes() and loaded.get_weights()[0][0, 0] != 1


@given(
    base=st.floats(1e-4, 10),
    warmup=st.integers(0, 30),
    drops=st.sets(st.integers(1, 60), max_size=4).map(sorted),
    factor=st.floats(0.01, 0.99),
    first=st.integers(0, 40),
    step=st.integers(0, 60),
)
def test_any_rate_is_the_product_of_its_factors(base, warmup, drops, factor, first, step):
    at, expected = first + step, base
    if at < warmup:
        expected *= (at + 1) / warmup
    for drop in drops:
        expected *= factor if at >= drop else 1
    rate = schedules.schedule(keras, base, warmup, drops, factor, tf.Variable(first, dtype=tf.int64))
    assert float(rate(step) if callable(rate) else rate) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("library", [keras, tf_keras])
def test_after_the_last_step_the_rate_stays(library):
    cosine = library.optimizers.schedules.CosineDecay(1.0, 10)
    for rate in (
        schedules.schedule(library, 0.5, 0, (3, 12), 0.1, None, 9),
        schedules.schedule(library, cosine, last_step=9),
    ):
        values = [float(rate(step)) for step in range(20)]
        assert values[9:] == [values[9]] * 11 and values[9] > 0 and values[0] > values[9]
