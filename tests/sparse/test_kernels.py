"""Every activation, loss and optimizer of the sparse engine against TensorFlow's, gradients in double precision."""

import importlib
import re

import numpy as np
import pytest

from lottery.sparse import kernels

LIBRARIES = ["keras", "tf_keras"]
Z = np.concatenate([np.linspace(-30, 30, 241), np.linspace(-1, 1, 200), 10.0 ** np.arange(-8, 0), [0.0]])


@pytest.mark.parametrize("name", kernels.ACTIVATIONS)
def test_activations_and_their_slopes(name):
    import keras
    import tensorflow as tf

    z = Z.astype(np.float32)
    slopes, a = z.copy(), np.empty_like(z)
    kernels.ACTIVATIONS[name](slopes, a)
    exact = tf.constant(z, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(exact)
        expected = keras.activations.get(name)(exact)
    gradients = tape.gradient(expected, exact).numpy()
    away = np.abs(z) > 1e-6 if name in ("relu", "relu6", "leaky_relu", "elu", "selu") else z == z  # of a corner
    np.testing.assert_allclose(a, expected.numpy(), rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(slopes[away], gradients[away], rtol=5e-6, atol=1e-6)


@pytest.mark.parametrize("name", kernels.ACTIVATIONS)
def test_nan_stays_nan(name):
    z, a = np.full(40, np.nan, np.float32), np.zeros(40, np.float32)
    kernels.ACTIVATIONS[name](z, a)
    assert np.isnan(a).all()


@pytest.mark.parametrize("num", [1, 7, 64])
@pytest.mark.parametrize("name", kernels.LOSSES)
def test_losses_their_gradients_and_accuracies(name, num, rng):
    import tensorflow as tf

    keras = importlib.import_module("tf_keras" if name.endswith("tf_keras") else "keras")
    units, lanes = 5, 64
    outputs = (3 * rng.normal(size=(units, lanes))).astype(np.float32)
    outputs = 1 / (1 + np.exp(-outputs)) if "probabilities" in name else outputs
    kind, _, of_probabilities = name.partition(" of ")
    settings = {} if kind == "mean_squared_error" else {"from_logits": not of_probabilities}
    classes = {"_".join(re.findall("[A-Z][a-z]+", one)).lower(): one for one in dir(keras.losses) if one[0].isupper()}
    if kind == "sparse_categorical_crossentropy":
        labels = rng.integers(0, units, lanes)
        targets = np.eye(units, dtype=np.float32)[:, labels]
        expected = labels[:num]
    else:
        targets = rng.random((units, lanes)).astype(np.float32)
        targets = np.round(targets) if kind == "binary_crossentropy" else targets / targets.sum(0)
        expected = targets[:, :num].T
    d = np.full((units, lanes), 7, np.float32)
    threshold = np.float32(0.5)
    loss, right = kernels.LOSSES[name](outputs, targets, num, threshold, d)

    exact = tf.constant(outputs[:, :num].T.astype(np.float64))
    with tf.GradientTape() as tape:
        tape.watch(exact)
        mean = getattr(keras.losses, classes[kind])(**settings)(expected, exact)
    np.testing.assert_allclose(loss / num, mean.numpy(), rtol=2e-6)
    np.testing.assert_allclose(d[:, :num].T, tape.gradient(mean, exact).numpy(), rtol=1e-4, atol=1e-7)
    assert (d[:, num:] == 0).all()
    if kind != "mean_squared_error":
        metric = getattr(keras.metrics, kind.replace("_crossentropy", "_accuracy").title().replace("_", ""))()
        metric.update_state(expected, exact)
        assert right / num == pytest.approx(float(metric.result()), abs=1e-6)


SETTINGS = {
    "SGD": [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"weight_decay": 0.1}],
    "Adam": [{}, {"beta_1": 0.8, "beta_2": 0.95, "epsilon": 1e-3}, {"weight_decay": 0.1}],
    "AdamW": [{}, {"weight_decay": 0.1}],
}


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("name", "settings"), [(name, each) for name in kernels.OPTIMIZERS for each in SETTINGS[name]])
def test_optimizers_update_as_those_of_keras(name, settings, library, rng):
    import tensorflow as tf

    keras, optimizer = importlib.import_module(library), kernels.OPTIMIZERS[name]
    theirs = getattr(keras.optimizers, name)(learning_rate=0.05, **settings)
    variable = tf.Variable(rng.normal(size=50).astype(np.float32)) if library == "tf_keras" else None
    variable = variable if variable is not None else keras.Variable(rng.normal(size=50).astype(np.float32))
    theirs.build([variable])
    mine = np.array(variable.numpy())
    slots = np.zeros_like(mine), np.zeros_like(mine)
    update = optimizer.update
    counts = np.arange(1, 31).astype(np.float32)
    rates = np.full(30, 0.05, np.float32)
    columns = [rates * (theirs.weight_decay or 0), *optimizer.numbers(theirs, rates, counts)]
    numbers = np.column_stack([np.broadcast_to(np.float32(column), 30) for column in columns])
    for row in numbers:
        gradient = (rng.normal(size=50) * 10 ** rng.uniform(-6, 1, 50)).astype(np.float32)
        theirs.apply_gradients([(tf.constant(gradient), variable)])
        update(mine, gradient, *slots, row)
    np.testing.assert_allclose(mine, variable.numpy(), rtol=2e-5, atol=2e-6)
