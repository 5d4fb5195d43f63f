"""The auditor, pointed at our enforcement and at loops that leak."""

import importlib

import numpy as np
import pytest

from lottery import enforcement, weights
from lottery.errors import LotteryError
from tests.conftest import fit, toy_arrays
from tests.enforcement.test_modes import LIBRARIES, network, random_masks


def multiplication(library, kept):
    """What people write: after each batch, every weight times its mask."""

    class Multiply(library.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            for name, variable in weights.prunable(self.model).items():
                variable.assign(variable * kept[name].astype("float32"))

    return Multiply()


def first_deviation(model, kept, x, y, batch_size):
    """By hand: the entry that is off after the first update of a model whose masked entries are zero."""
    model.train_on_batch(x[:batch_size], y[:batch_size])
    for name, value in weights.read(model).items():
        off = (value != 0) & ~kept[name]
        if off.any():
            place = [int(axis) for axis in np.unravel_index(np.argmax(off), off.shape)]
            return f"{name}{place} is masked and must be 0, but is {value[tuple(place)]:.9g} after step 1"
    return None


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("arguments", [{}, {"steps_per_execution": 4}, {"run_eagerly": True}], ids=str)
def test_it_raises_at_the_step_at_which_an_entry_moved(library, arguments, rng):
    library = importlib.import_module(library)
    x, y, *_ = toy_arrays(rng)
    texts = []
    for by_hand in (True, False):
        model = network(library, **({} if by_hand else arguments))
        kept = random_masks(model)
        enforcement.project(model, kept)
        if by_hand:
            texts.append(first_deviation(model, kept, x, y, 32))
            continue
        with pytest.raises(LotteryError) as caught:
            fit(model, x, y, callbacks=[enforcement.AuditMasks(kept)])
        # In eager steps the last bits are others.
        cut = texts[0].split(" found at")[0]
        assert str(caught.value).startswith(cut if arguments.get("run_eagerly") else texts[0])
        assert "after step 1:" in str(caught.value)
    assert "train_step" not in vars(model)


def test_what_leaks_between_the_steps_is_found(rng):
    """Pitfall 7: between the steps of one execution training runs on unmasked weights, and at its end all is well."""
    import keras

    x, y, *_ = toy_arrays(rng)
    for several, found in ((1, False), (4, True)):
        model = network(keras, steps_per_execution=several)
        kept = random_masks(model)
        enforcement.project(model, kept)
        callbacks = [multiplication(keras, kept), enforcement.AuditMasks(kept)]
        if found:
            with pytest.raises(LotteryError, match="after step 1: this training does not hold the masks"):
                fit(model, x, y, callbacks=callbacks)
        else:
            fit(model, x, y, callbacks=callbacks)


def test_masks_that_nobody_has_applied_are_found_before_the_first_step(rng):
    import keras

    x, y, *_ = toy_arrays(rng)
    model = network(keras)
    kept = random_masks(model)
    with pytest.raises(LotteryError, match="before the first step"):
        fit(model, x, y, callbacks=[enforcement.AuditMasks(kept)])


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_entry_that_moves_later_and_by_others_is_found_where_it_is(library, rng):
    library = importlib.import_module(library)
    x, y, *_ = toy_arrays(rng)
    model = network(library)
    kept = random_masks(model)
    row, column = (int(axis[0]) for axis in np.nonzero(~kept["dense_1/kernel"]))

    class Meddle(library.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                value = weights.read(self.model)["dense_1/kernel"]
                value[row, column] = np.nan
                weights.assign(self.model, {"dense_1/kernel": value})

    enforce, audit = enforcement.EnforceMasks(kept), enforcement.AuditMasks(kept)
    with pytest.raises(LotteryError) as caught:
        fit(model, x, y, batch_size=16, callbacks=[enforce, Meddle(), audit])
    assert f"dense_1/kernel[{row}, {column}]" in str(caught.value)
    assert "but is nan after step 3" in str(caught.value)
    weights.assign(model, {"dense_1/kernel": np.nan_to_num(weights.read(model)["dense_1/kernel"])})
    fit(model, x, y, batch_size=16, callbacks=[enforce, audit])  # neither has left anything behind


@pytest.mark.parametrize("library", LIBRARIES)
def test_audit_finds_what_is_there_and_no_more(library, rng):
    library = importlib.import_module(library)
    import tensorflow as tf

    model = network(library, "momentum")
    kept = random_masks(model)
    x, y, *_ = toy_arrays(rng)
    enforcement.project(model, kept)
    clean = enforcement.audit(model, kept)
    assert set(clean) == set(kept)
    for name, one in clean.items():
        assert (one.deviation, one.index, one.found, one.held_at, one.gradient) == (0.0, None, None, None, None)
        assert one.num_masked == np.count_nonzero(~kept[name]) and one.num_nonzero_slots == 0

    with tf.GradientTape() as tape:
        loss = library.losses.SparseCategoricalCrossentropy(from_logits=True)(y, model(x, training=True))
    expected = tape.gradient(loss, model.trainable_variables)[0]
    with_gradients = enforcement.audit(model, kept, batch=(x, y))
    largest = np.abs(np.asarray(expected))[~kept["dense/kernel"]].max()
    assert with_gradients["dense/kernel"].gradient == pytest.approx(largest, rel=1e-5) and largest > 0

    model.train_on_batch(x, y)
    value = weights.read(model)["dense/kernel"]
    found = enforcement.audit(model, kept, held_at={"dense/kernel": 0.5})["dense/kernel"]
    off = np.where(kept["dense/kernel"], 0, np.abs(value.astype("float64") - 0.5))
    assert found.deviation == off.max() and found.index == np.unravel_index(off.argmax(), off.shape)
    assert found.held_at == 0.5 and found.found == value[found.index]
    # Momentum is the gradient by now: as many slots as gradients that are not zero.
    assert found.num_nonzero_slots == np.count_nonzero(np.asarray(expected)[~kept["dense/kernel"]])

    value[found.index] = np.inf
    weights.assign(model, {"dense/kernel": value})
    assert enforcement.audit(model, kept)["dense/kernel"].deviation == np.inf


def test_gradients_need_a_compiled_model(rng):
    import keras

    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    x, y, *_ = toy_arrays(rng)
    with pytest.raises(LotteryError, match="compile it"):
        enforcement.audit(model, {}, batch=(x, y))


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_audit_changes_nothing(library, rng):
    library = importlib.import_module(library)
    layers = library.layers
    dropout = layers.Dropout(0.5, seed=1)
    normalised = [layers.Dense(5), layers.BatchNormalization(), dropout, layers.Dense(3)]
    model = library.Sequential([layers.InputLayer((6,)), *normalised])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    x, y = toy_arrays(rng)[:2]
    model.evaluate(x, y, verbose=0)
    before = weights.read_state(model)
    counter = getattr(getattr(dropout, "_random_generator", None), "_seed", None)  # of tf_keras
    enforcement.audit(model, {"dense/kernel": rng.random((6, 5)) < 0.5}, batch=(x, y))
    assert getattr(getattr(dropout, "_random_generator", None), "_seed", None) == counter
    assert weights.fingerprint(weights.read_state(model)) == weights.fingerprint(before)


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_batch_of_an_audit_does_not_count_in_metrics_that_it_builds(library, rng):
    library = importlib.import_module(library)
    inputs = library.layers.Input((6,))
    model = library.Model(inputs, [library.layers.Dense(2)(inputs) for _ in range(2)])
    model.compile("sgd", ["mse", "mse"])
    x, y = np.ones((8, 6)), [np.ones((8, 2)), np.ones((8, 2))]
    enforcement.audit(model, {}, batch=(x, y))
    counters = [variable.numpy() for metric in model.metrics for variable in metric.variables]
    assert counters and not np.any(counters)


@pytest.mark.parametrize("library", LIBRARIES)
def test_gradients_of_a_batch_as_the_model_takes_it(library, rng):
    """Inputs by name or in a list, and weights of the examples, which count in the loss."""
    library = importlib.import_module(library)
    layers = library.layers
    a, b = layers.Input((6,), name="a"), layers.Input((4,), name="b")
    output = layers.Dense(1, use_bias=False)(layers.Concatenate()([a, b]))
    x, y = {"a": rng.normal(size=(8, 6)), "b": rng.normal(size=(8, 4))}, rng.normal(size=(8, 1))
    x = {name: value.astype("float32") for name, value in x.items()}
    for inputs, batch in (({"a": a, "b": b}, x), ([a, b], list(x.values()))):
        model = library.Model(inputs, output)
        model.compile("adam", "mse")
        kept = {"dense/kernel": rng.random((10, 1)) < 0.5}
        joined = np.concatenate(list(x.values()), 1)
        residual = joined @ weights.read(model)["dense/kernel"] - y
        for weight, more in ((None, []), (None, [None]), (rng.random(8), None)):
            more = [weight] if more is None else more
            each = 2 * joined * residual * (1 if weight is None else weight[:, None])
            expected = np.abs(each.mean(0)[:, None][~kept["dense/kernel"]]).max()
            found = enforcement.audit(model, kept, batch=(batch, y, *more))["dense/kernel"].gradient
            assert found == pytest.approx(expected, rel=1e-4)
    # A loss without labels: weights of examples do not take their place.
    unlabelled = library.Sequential([layers.InputLayer((6,)), layers.Dense(3, activity_regularizer="l2")])
    unlabelled.compile("adam")
    kept_there = {"dense/kernel": np.zeros((6, 3), bool)}
    gradients = [
        enforcement.audit(unlabelled, kept_there, batch=(x["a"], None, *more))["dense/kernel"].gradient
        for more in ([], [None], [rng.random(8)])
    ]
    assert 0 < gradients[0] == gradients[1] == gradients[2]
    with pytest.raises(LotteryError, match=r"must be \(inputs, labels\)"):
        enforcement.audit(model, kept, batch=x)
    with pytest.raises(LotteryError, match="^audit: the loss of the model .* cannot be computed on the batch: "):
        enforcement.audit(model, kept, batch=(np.ones((8, 3)), y))
