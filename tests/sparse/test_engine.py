"""The sparse engine against TensorFlow: gradients, steps, evaluations, and what it refuses."""

import importlib
import os

import numpy as np
import pytest

from lottery import data, masks, weights
from lottery.enforcement import modes
from lottery.errors import LotteryError
from lottery.sparse import engine, reading
from lottery.training.loop import compile_loop
from lottery.training.settings import Train
from tests.conftest import each_in_both

pytestmark = pytest.mark.usefixtures("compiled_kernels")

UNITS, NUM_INPUTS, NUM_CLASSES = (20, 16), 12, 4


def network(library, hidden="relu", last=None, loss=None, optimizer=None, regularizer=None):
    """A chain of dense layers, compiled."""
    keras = importlib.import_module(library)
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    name = loss if isinstance(loss, str) else loss.name
    outputs = {"mean_squared_error": 3, "binary_crossentropy": 1}.get(name, NUM_CLASSES)
    keras.utils.set_random_seed(3)
    dense = keras.layers.Dense
    stack = [keras.layers.InputLayer((4, 3)), keras.layers.Flatten()]
    stack += [
        dense(units, hidden, kernel_regularizer=regularizer and getattr(keras.regularizers, regularizer)(1e-3, 1e-2))
        for units in UNITS
    ]
    model = keras.Sequential([*stack, dense(outputs, last, use_bias=library == "keras")])
    metrics = [] if name == "mean_squared_error" else ["accuracy"]
    model.compile(optimizer or keras.optimizers.Adam(0.01), loss, metrics=metrics)
    return model


def examples(loss, rng, num=400):
    x = rng.normal(size=(num, 4, 3)).astype(np.float32)
    if loss == "sparse_categorical_crossentropy":
        y = rng.integers(0, NUM_CLASSES, num)
    elif loss == "categorical_crossentropy":
        y = np.eye(NUM_CLASSES, dtype=np.float32)[rng.integers(0, NUM_CLASSES, num)]
    elif loss == "binary_crossentropy":
        y = rng.integers(0, 2, (num, 1)).astype(np.float32)
    else:
        y = rng.normal(size=(num, 3)).astype(np.float32)
    return data.given((x[:300], y[:300], x[300:], y[300:]), data.Data(name="given", validation=60))


def both(model, splits, rng, num_steps, batch_size=32, density=0.3):
    """Weights, report and evaluations after steps of the compiled loop, and of the engine, from the same start."""
    settings = Train(num_steps=1000, batch_size=batch_size, eval_every=1000, jit_compile=False, optimizer="compiled")
    kept = {name: rng.random(value.shape) < density for name, value in weights.read(model).items()}
    start = masks.apply(weights.read_state(model), kept)
    loop, found = compile_loop(model, splits, settings), []  # makes the optimizer's slots
    variables = model.optimizer.variables
    variables = variables() if callable(variables) else variables
    first = [np.array(one.numpy()) for one in variables]
    chain = reading.read(model)
    with modes.constraint(model, kept):
        for train in loop, engine.Engine(model, chain, splits, batch_size, 1000):
            weights.assign(model, start)
            for one, value in zip(variables, first, strict=True):
                one.assign(value)
            train.begin(kept, (1, 2, 3))
            pieces = [num_steps // 2, num_steps - num_steps // 2] if num_steps > 1 else [1]
            logs = [train.advance(num, num_steps - num if place else 0) for place, num in enumerate(pieces)][-1]
            tests = {name: float(value) for name, value in train.evaluate("test").items()}
            train.finish()
            found.append((weights.read_state(model), {name: float(value) for name, value in logs.items()}, tests))
    assert not masks.leaks(found[1][0], kept)
    return found


def agree(found, tolerance):
    (expected, logs, tests), (received, own_logs, own_tests) = found
    for name in expected:
        np.testing.assert_allclose(received[name], expected[name], atol=tolerance, err_msg=name)
    assert own_logs == pytest.approx(logs, abs=10 * tolerance) and own_tests == pytest.approx(tests, abs=10 * tolerance)


@pytest.mark.parametrize(("num_steps", "library"), each_in_both([10, 1, 100]))
def test_steps_are_those_of_the_compiled_loop(library, num_steps, rng):
    model = network(library)
    agree(both(model, examples("sparse_categorical_crossentropy", rng), rng, num_steps), 1e-6 * num_steps)


LOSSES = [
    ("softmax", "sparse_categorical_crossentropy"),
    ("softmax", "categorical_crossentropy"),
    ("sigmoid", "binary_crossentropy"),
    ("tanh", "binary_crossentropy"),
    ("linear", "mean_squared_error"),
    ("tanh", "mean_squared_error"),
]


@pytest.mark.parametrize(("taken", "library"), each_in_both(LOSSES))
def test_each_loss_with_the_outputs_that_it_takes(taken, library, rng):
    last, loss = taken
    model = network(library, "softsign", last, loss, regularizer="L1L2" if last == "softmax" else None)
    # Where tanh is nearly 1, what rounding leaves of the difference decides the gradient.
    agree(both(model, examples(loss, rng), rng, 10), 1e-3 if last == "tanh" else 2e-5)


@pytest.mark.parametrize(
    "batch_size", [1, 120, *(pytest.param(size, marks=pytest.mark.long) for size in (16, 60, 64, 70))]
)  # 120 has a block of every size
def test_batches_of_any_size(batch_size, rng):
    agree(both(network("keras"), examples("sparse_categorical_crossentropy", rng), rng, 10, batch_size), 2e-5)


@pytest.mark.parametrize("pixels", data.PIXELS)
def test_images_are_scaled_as_for_the_compiled_loop(pixels, rng):
    x = rng.integers(0, 256, (400, 4, 3), dtype=np.uint8)
    x[:30] = x[0]  # some inputs are the same everywhere, and an image may be
    y = rng.integers(0, NUM_CLASSES, 400)
    splits = data.given((x[:300], y[:300], x[300:], y[300:]), data.Data(name="given", validation=60, pixels=pixels))
    agree(both(network("keras"), splits, rng, 10), 2e-5)


@pytest.mark.parametrize("density", [0.0, 0.02, pytest.param(1.0, marks=pytest.mark.long)])
def test_masks_of_any_density(density, rng):
    found = both(network("keras"), examples("sparse_categorical_crossentropy", rng), rng, 10, density=density)
    agree(found, 2e-5)


def test_a_reason_does_not_count_the_layers_of_a_process():
    """It is part of records, which a run that goes on elsewhere writes alike."""
    import keras

    def why():
        layers = [keras.layers.Dense(4), keras.layers.LayerNormalization(), keras.layers.Dense(3)]
        with pytest.raises(reading.Obstacle) as raised:
            reading.calls(keras.Sequential([keras.Input((6,)), *layers]))
        return str(raised.value)

    assert why() == why() == "layer_normalization is a layer of type LayerNormalization"


def test_reports_are_the_same_bits_however_steps_are_cut_into_calls(rng):
    """The clock decides how many steps a call takes, and the sums over calls must not round in another way."""
    model, found = network("keras"), []
    splits, kept = examples("sparse_categorical_crossentropy", rng), {}
    kept |= {name: rng.random(value.shape) < 0.4 for name, value in weights.read(model).items()}
    compile_loop(model, splits, Train(num_steps=100, batch_size=7, jit_compile=False, optimizer="compiled"))
    start = masks.apply(weights.read_state(model), kept)
    for pieces in ([60], [1] * 60, [7, 20, 33]):
        weights.assign(model, start)
        model.optimizer.iterations.assign(0)
        for variable in model.optimizer.variables[2:]:
            variable.assign(np.zeros(variable.shape))
        train = engine.Engine(model, reading.read(model), splits, 7, 100)
        train.begin(kept, (1, 2, 3))
        done = 0
        for num in pieces:
            logs, done = train.advance(num, done), done + num
        found.append({name: float(value).hex() for name, value in logs.items()})
    assert found[0] == found[1] == found[2]


@pytest.mark.skipif(os.name != "posix", reason="other systems have other rights")
@pytest.mark.parametrize("where", ["the folder", "a folder in it"])
def test_a_cache_that_others_can_write_to_is_refused(tmp_path, monkeypatch, where):
    """Numba unpickles what it finds there, which runs any code."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    reading.refuse_shared_cache()
    assert folder.stat().st_mode & 0o777 == 0o700  # made before anybody else can make it
    open_to_others = folder if where == "the folder" else folder / "sparse_0123"
    open_to_others.mkdir(exist_ok=True)
    open_to_others.chmod(0o777)
    with pytest.raises(LotteryError, match=f"Others can write to '{open_to_others}'"):
        reading.read(network("keras"))
    open_to_others.chmod(0o755)
    reading.refuse_shared_cache()
