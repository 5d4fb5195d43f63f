"""Every activation, loss and optimizer of the sparse engine against TensorFlow's, gradients in double precision."""

import collections
import functools
import importlib
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from numba import njit

from lottery.sparse import kernels

LIBRARIES = ["keras", "tf_keras"]


@functools.cache
def door(function):
    """Make a function for Python of a compiled one that has no door of its own, because doors take long to compile."""

    @njit
    def call(arguments):
        return function(*arguments)

    return lambda *arguments: call(arguments)


Z = np.concatenate([np.linspace(-30, 30, 241), np.linspace(-1, 1, 200), 10.0 ** np.arange(-8, 0), np.zeros(15)])


def activated(activation, z):
    """The outputs of an activation, and its slopes: a row of an image, behind a row of its inputs."""
    values, slopes = np.concatenate([z, z]), np.ones(2 * len(z), np.float32)
    place = (len(z), 0, 1, len(z) // kernels.WIDTH)  # where a row begins, how far it is to the next, and its size
    source = (values, 0 if activation.needs_input else len(z), *place[1:])  # else both lie in one place
    for is_forward in (True, False):
        door(activation.function)(source, (values, *place), (slopes, *place), is_forward)
    return values[len(z) :], slopes[len(z) :]


@pytest.mark.parametrize("name", kernels.ACTIVATIONS)
def test_activations_and_their_slopes(name):
    import keras
    import tensorflow as tf

    z = Z.astype(np.float32)
    a, slopes = activated(kernels.ACTIVATIONS[name], z)
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
    outputs, _ = activated(kernels.ACTIVATIONS[name], np.full(64, np.nan, np.float32))
    assert np.isnan(outputs).all()


def test_an_exponential_that_is_too_large_is_infinite():
    """And the training that diverged is noticed."""
    outputs, _ = activated(
        kernels.ACTIVATIONS["exponential"], np.repeat([87, 90, np.inf, -np.inf], 16).astype(np.float32)
    )
    assert np.isfinite(outputs[:16]).all() and np.isinf(outputs[16:48]).all() and (outputs[48:] < 1e-37).all()


@pytest.mark.parametrize("num", [1, 7, 64])
@pytest.mark.parametrize("name", kernels.LOSSES)
def test_losses_their_gradients_and_accuracies(name, num, rng):
    import tensorflow as tf

    keras = importlib.import_module("tf_keras" if name.endswith("tf_keras") else "keras")
    units, lanes = 5, 64
    share = np.float32(1 / num)
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
    loss, right = door(kernels.LOSSES[name])(outputs, targets, num, threshold, d, share)

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
        door(update)(mine, gradient, *slots, row)
    np.testing.assert_allclose(mine, variable.numpy(), rtol=2e-5, atol=2e-6)


def functions_of(function):
    """A compiled function, and those that its closure calls."""
    yield function.py_func
    for cell in function.py_func.__closure__ or ():
        if hasattr(cell.cell_contents, "py_func"):
            yield from functions_of(cell.cell_contents)


def test_each_closure_has_a_name_of_its_own():
    """Or two kernels of numba's cache, compiled by two processes, would call each other's."""
    by_name = collections.defaultdict(set)
    of_activations = [activation.function for activation in kernels.ACTIVATIONS.values()]
    for function in [*of_activations, *kernels.LOSSES.values()]:
        for inner in functions_of(function):
            by_name[inner.__qualname__].add(inner.__code__)
    assert len(by_name) > 30 and all(len(codes) == 1 for codes in by_name.values()), by_name


USING = """
import sys
import numpy as np
from numba import literal_unroll, njit
from lottery.sparse import kernels
FUNCTIONS = tuple(kernels.ACTIVATIONS[name].function for name in ("softsign", "softplus", "tanh", "sigmoid"))
WIDTH = kernels.WIDTH
@njit(error_model="numpy", cache=True)
def outputs(x, found):
    row = np.empty(WIDTH, np.float32)
    image = row, 0, WIDTH, 1, 1
    place = 0
    for function in literal_unroll(FUNCTIONS):
        row[:] = x[0]
        function(image, image, image, True)
        found[place] = row[0]
        place += 1
for _ in range(int(sys.argv[1])):  # takes numbers of numba's, as another program would
    njit(lambda x: x)(1)
for kind in sys.argv[2:]:
    found = np.zeros(len(FUNCTIONS), np.float32)
    outputs(np.ones(1, kind), found)
    print(*found)
"""


def test_kernels_that_two_processes_have_compiled_go_together(tmp_path):
    """The first compiles one kernel, the second compiles the other, the third loads both, in the other order.

    The kernel calls activations as `kernels.compute` does, and is compiled in a fraction of the time.
    """
    script = tmp_path / "using.py"
    script.write_text(USING)

    def used(*kinds, shift=0):
        words = [sys.executable, script, str(shift), *kinds]
        variables = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        printed = subprocess.run(words, env=variables, capture_output=True, text=True, check=True).stdout
        return [[float(value) for value in line.split()] for line in printed.splitlines()]

    (floats,) = used("float32")
    (pixels,) = used("uint8", shift=3)  # the numbers of numba's for one activation are those of the next
    assert floats == pixels and len({*floats}) == 4
    assert used("uint8", "float32") == [floats, floats]
