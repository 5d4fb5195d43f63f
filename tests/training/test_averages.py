"""With moving averages of weights, training ends as Keras' `fit` does."""

import functools
import importlib
import itertools

import numpy as np
import pytest
import tensorflow as tf

from lottery import data, enforcement, interrupts, masks, randomness, weights
from lottery.models import optimizers
from lottery.training import checkpoints, compiling
from lottery.training.records import Span, loss_and_accuracy
from lottery.training.settings import Train
from lottery.training.trainer import Trainer
from tests.conftest import toy_arrays

SETTINGS = Train(num_steps=50, batch_size=16, eval_every=20, jit_compile=False)
# The first begins its averages at zero and discards them at its first step, the other begins them at the weights.
LIBRARIES = ["keras", "tf_keras"]


def made(library, optimizer):
    library = importlib.import_module(library)
    library.utils.set_random_seed(3)
    layers = library.layers
    model = library.Sequential([layers.InputLayer((6,)), layers.Dense(8, "relu"), layers.Dense(3)])
    loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(library.optimizers), loss, metrics=["accuracy"], jit_compile=False)
    return model


def prepared(library, optimizer, mode="constraint"):
    arrays = toy_arrays(np.random.default_rng(3), num_train=300)
    splits = data.split(dict(zip(data.KEYS, arrays, strict=True)), data.Data(validation=44))
    model = made(library, optimizer)
    compiling.compile_model(model, SETTINGS, splits.train.x[:4])
    return Trainer(model, splits, SETTINGS, enforcement.ENFORCEMENTS[mode].hold), splits


@functools.cache
def prepared_once(library, optimizer):
    return prepared(library, OPTIMIZERS[optimizer])


def fitted(library, optimizer, splits, start, kept, all_num_steps):
    """The states after `fit` on so many of the same batches, under the same masks."""
    model, states = made(library, optimizer), []
    weights.assign(model, masks.apply(start, kept))
    model.optimizer.build(model.trainable_variables)  # later, the train function would be traced twice
    first = [(one, np.array(one)) for one in model.optimizer.variables]
    with enforcement.constraint(model, kept):
        for num_steps in all_num_steps:
            weights.assign(model, masks.apply(start, kept))
            for variable, value in first:
                variable.assign(value)
            batches = randomness.batches(len(splits.train), 16, (9,))(num_steps)
            stream = tf.data.Dataset.from_tensor_slices((splits.train.x[batches], splits.train.y[batches]))
            if num_steps:
                model.fit(stream, verbose=0, shuffle=False)
            states.append(weights.read_state(model))
    return states


OPTIMIZERS = {
    "averages": lambda module: module.SGD(0.1, use_ema=True, ema_momentum=0.9),
    "overwritten": lambda module: module.Adam(0.01, use_ema=True, ema_overwrite_frequency=7),
}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_training_ends_with_the_averages_as_fit_does(library, optimizer, rng):
    """At its end, and at the early-stop step, where a training that stopped would end; masks are held in them."""
    make = OPTIMIZERS[optimizer]
    trainer, splits = prepared_once(library, optimizer)
    built_with = weights.read_state(trainer.model)
    start = {name: value + rng.normal(0, 0.1, value.shape).astype(value.dtype) for name, value in built_with.items()}
    kept = {name: rng.random(value.shape) < 0.5 for name, value in weights.read(trainer.model).items()}
    found = trainer.train(start, kept, (9,))
    states = found.weights, found.early_stop
    for state, expected in zip(
        states, fitted(library, make, splits, start, kept, (50, found.summary["early_stop_step"])), strict=True
    ):
        for name, value in expected.items():
            np.testing.assert_allclose(state[name], value, rtol=2e-4, atol=2e-5, err_msg=name)
        assert not masks.leaks(state, kept)
    # What was measured is of the weights that are stored.
    for state, when in ((found.weights, "final"), (found.early_stop, "early_stop")):
        for split, short in (("validation", "val"), ("test", "test")):
            measured = loss_and_accuracy(trainer.at(state, kept).evaluate(split), "loss")
            assert measured == (found.summary[f"{when}_{short}_loss"], found.summary[f"{when}_{short}_accuracy"])
    trainer.close()


def test_a_schedule_free_optimizer_begins_at_the_start_weights(rng):
    """Its first update puts the slot that begins at the weights in their place, so the slot must be the network's."""
    trainer, _ = prepared("keras", lambda module: module.ScheduleFreeAdamW(1e-4))
    start = {name: value + np.float32(1) for name, value in weights.read_state(trainer.model).items()}
    kept = {name: rng.random(value.shape) < 0.5 for name, value in weights.read(trainer.model).items()}
    found = trainer.train(start, kept, (9,), Span(last_step=3))
    for name, value in masks.apply(start, kept).items():
        np.testing.assert_allclose(found.weights[name], value, atol=1e-3, err_msg=name)
    trainer.close()


@pytest.mark.parametrize("library", LIBRARIES)
def test_averages_change_what_is_stored_and_evaluated_alone(library):
    """The training itself goes on from its own weights: each batch is trained on as without averages."""
    rows = []
    for use_ema in (False, True):
        trainer, _ = prepared(library, lambda module, on=use_ema: module.SGD(0.1, use_ema=on, ema_momentum=0.95))
        start = weights.read_state(trainer.model)
        watched = {}
        found = trainer.train(start, {}, (9,), watch={30: watched.update})
        again = trainer.train(start, {}, (9,))  # another training of the same trainer begins its averages anew
        assert weights.fingerprint(again.weights) == weights.fingerprint(found.weights)
        none = trainer.train(start, {}, (9,), Span(5, 5))
        assert weights.fingerprint(none.weights) == weights.fingerprint(start)
        rows.append((found, watched, [row for row in found.metrics if row[1] == "train"]))
        trainer.close()
    (plain, on_the_way, trained), (averaged, as_averaged, trained_too) = rows
    assert trained == trained_too and weights.fingerprint(on_the_way) == weights.fingerprint(as_averaged)
    assert any(np.any(plain.weights[name] != averaged.weights[name]) for name in plain.weights)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_training_with_averages_resumes_bit_for_bit(library, tmp_path, rng):
    one, another = prepared_once(library, "averages")[0], prepared(library, OPTIMIZERS["averages"])[0]
    start = weights.read_state(one.model)
    kept = {name: rng.random(value.shape) < 0.5 for name, value in weights.read(one.model).items()}
    whole = one.train(start, kept, (9,))
    turns, left = itertools.cycle([another, one]), [2, 1]
    while True:
        pieces = [left.pop()] if left else None

        def should_stop(pieces=pieces):
            if pieces is None:
                return 0
            pieces[0] -= 1
            return 0 if pieces[0] >= -1 else 15

        trainer = next(turns)
        trainer.seconds_per_step = 0.1  # five steps a piece
        checkpointer = checkpoints.Checkpointer(
            tmp_path / "checkpoint.safetensors", should_stop=should_stop, note=pytest.fail
        )
        try:
            found = trainer.train(start, kept, (9,), checkpointer=checkpointer)
            break
        except interrupts.Stopped:
            assert pieces is not None
    assert not left
    assert weights.fingerprint(found.weights) == weights.fingerprint(whole.weights)
    assert weights.fingerprint(found.early_stop) == weights.fingerprint(whole.early_stop)
    assert repr((found.metrics, found.summary)) == repr((whole.metrics, whole.summary))


def test_an_optimiser_of_ones_own_that_ends_with_other_weights():
    import keras

    class Halving(keras.optimizers.SGD):
        def finalize_variable_values(self, var_list):
            for variable in var_list:
                variable.assign(variable * 0.5)

    start = weights.read_state(made("keras", lambda module: Halving(0.1)))
    ends = [
        prepared("keras", make)[0].train(start, {}, (9,)) for make in (lambda _: Halving(0.1), lambda m: m.SGD(0.1))
    ]
    for name, value in ends[1].weights.items():
        np.testing.assert_array_equal(ends[0].weights[name], value * 0.5, err_msg=name)
    assert ends[0].metrics[0][2] != ends[1].metrics[0][2]  # evaluations too


def test_optimizers_in_others_are_found():
    import keras
    import tf_keras

    sgd, adam = (
        keras.optimizers.SGD(0.1, use_ema=True),
        keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.2, 9)),
    )
    several = keras.optimizers.MultiOptimizer(lambda variable: sgd if "kernel" in variable.path else adam)
    scaled = keras.optimizers.LossScaleOptimizer(several)
    model = made("keras", lambda module: scaled)
    rates = optimizers.learning_rate(model)
    assert {key: round(value, 6) for key, value in rates.items() if key != "name"} == {"SGD": 0.1, "Adam": 0.2}
    assert optimizers.plain(scaled) == [sgd, adam] and optimizers.delegates(scaled) and optimizers.finalizes(model)
    assert [variable.path.rpartition("/")[2] for variable, _ in optimizers.averages(model)] == ["kernel", "kernel"]
    for library in (keras, tf_keras):
        model = made(library.__name__, lambda module: module.Adam(0.25))
        assert optimizers.learning_rate(model) == 0.25 and not optimizers.finalizes(model)
        assert optimizers.plain(model.optimizer) == [model.optimizer] and not list(optimizers.averages(model))
