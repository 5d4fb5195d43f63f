"""Mistakes that train without an error: they are told before training, and again before the verdict."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tf_keras

import lottery
from lottery import config, data
from lottery.config import Data
from lottery.errors import LotteryError
from lottery.pipeline import checks, environment, preparing
from lottery.pipeline.prepared import Ingredients
from lottery.runs import store
from tests.conftest import keep_graphs, quietly

LOGITS, PROBABILITIES, PIXELS = "returns logits", "returns probabilities", "as pixels do"
SETTINGS = {
    "name": "doubtful",
    "train": {"num_steps": 60, "eval_every": 20, "batch_size": 50, "jit_compile": False},
    "prune": {"num_rounds": 1},
    "run": {"num_replicates": 2},
}


def arrays(seed=0, scale=1.0, classes=3):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, 600)
    x = rng.normal(size=(600, 8)).astype("float32") * 0.1
    x[np.arange(600), y] += 1
    x = (np.clip(x + 0.5, 0, 2) * scale).astype("float32")
    return x[:500], y[:500], x[500:], y[500:]


def network(library, activation=None, units=3, first=()):
    layers = library.layers
    own = [layers.Dense(12, activation="relu"), layers.Dense(units, activation=activation)]
    return library.Sequential([layers.Input((8,)), *first, *own])


def found(model, loss, passed):
    model.compile("sgd", loss)
    loaded = data.given(passed, Data())
    return " ".join(checks.cautions(model, loaded, loaded.train.x[:16]))


@pytest.mark.parametrize("library", [keras, tf_keras])
@pytest.mark.parametrize(
    ("kind", "activation", "units"),
    [("SparseCategoricalCrossentropy", "softmax", 3), ("CategoricalCrossentropy", "softmax", 3),
     ("BinaryCrossentropy", "sigmoid", 1)],
)  # fmt: skip
def test_a_head_and_a_loss_that_do_not_fit(library, kind, activation, units):
    def said(head, from_logits):
        library.utils.set_random_seed(3)
        passed = arrays(scale=20.0)
        return found(network(library, head, units), getattr(library.losses, kind)(from_logits=from_logits), passed)

    assert not said(None, True) and not said(activation, False)
    assert LOGITS in said(None, False)
    assert (PROBABILITIES in said(activation, True)) == (units > 1)  # small logits may look like a sigmoid


@pytest.mark.parametrize("library", [keras, tf_keras])
def test_names_of_losses_and_losses_without_logits(library):
    passed = arrays(scale=20.0)
    assert LOGITS in found(network(library), "sparse_categorical_crossentropy", passed)
    assert LOGITS in found(network(library), ["sparse_categorical_crossentropy"], passed)
    assert not found(network(library, "softmax"), "sparse_categorical_crossentropy", passed)
    for loss in ("mse", library.losses.MeanSquaredError(), lambda y, outputs: library.losses.mse(y, outputs)):
        assert not found(network(library), loss, passed)


@pytest.mark.parametrize("library", [keras, tf_keras])
def test_pixels_that_nothing_scales(library):
    loss, bright, usual = "mse", arrays(scale=127.0), arrays()
    assert PIXELS in found(network(library), loss, bright) and not found(network(library), loss, usual)
    for layer in (library.layers.Rescaling(1 / 255), library.layers.BatchNormalization()):
        assert not found(network(library, first=[layer]), loss, bright)
    as_bytes = tuple(part.astype(np.uint8) if part.ndim == 2 else part for part in bright)
    assert not found(network(library), loss, as_bytes)  # which the toolkit scales
    shifted = tuple(part - 128 if part.ndim == 2 else part for part in bright)
    assert not found(network(library), loss, shifted)


def test_what_is_wrong_comes_before_the_verdict_and_is_stored(tmp_path):
    keep_graphs()

    def build():
        model = network(keras)
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    settings = SETTINGS | {"train": SETTINGS["train"] | {"optimizer": "compiled"}}
    run = lottery.run(settings, data=arrays(scale=127.0), model=build, out=tmp_path, on_event=quietly)
    assert LOGITS in str(run) and PIXELS in str(run)
    assert str(run).index(LOGITS) < str(run).index(PIXELS)
    assert LOGITS in lottery.load(run.path).verdict()[0]


def test_another_metric_that_is_called_accuracy_is_named(tmp_path):
    def build():
        model = network(keras)
        metric = keras.metrics.SparseTopKCategoricalAccuracy(2, name="top_2_accuracy")
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=[metric])
        return model

    settings = SETTINGS | {"train": SETTINGS["train"] | {"optimizer": "compiled"}}
    found = preparing.prepare(config.load(settings), Ingredients(build, arrays()))
    assert any(note.startswith("The model's 'top_2_accuracy' is taken for its accuracy") for note in found.notes)
    environment.record(tmp_path, found.experiment, found, 1)
    assert store.read_environment(tmp_path)["accuracy"] == "top_2_accuracy"
    written = store.read_environment(tmp_path)
    store.write_record(tmp_path / "environment.json", {key: written[key] for key in written if key != "accuracy"})
    environment.record(tmp_path, found.experiment, found, 1)  # as where an earlier version began the run
    assert store.read_environment(tmp_path) == written


@pytest.mark.parametrize("library", [keras, tf_keras])
def test_the_loss_of_a_model_without_an_accuracy_is_recorded_whatever_it_is_called_by(library):
    def recorded(loss, accuracy=None):
        model = network(library)
        model.compile("sgd", loss)
        return environment._measured(SimpleNamespace(accuracy=accuracy, trainer=SimpleNamespace(model=model)))

    squared = library.losses.MeanSquaredError()
    for loss in ("mse", "mean_squared_error", library.losses.mean_squared_error, squared, ["mse"]):
        assert recorded(loss) == {"loss": "mean_squared_error"}
    assert recorded(library.losses.Huber()) == {"loss": "huber"}
    assert recorded("mse", "accuracy") == {} and recorded("mse", "top") == {"accuracy": "top"}
    assert recorded(None) == {"loss": ""}  # a model that adds its own


def test_a_network_that_learnt_nothing_gets_no_verdict(tmp_path):
    keep_graphs()
    x, y, x_test, y_test = arrays()
    rng = np.random.default_rng(1)
    drawn = (x, rng.permutation(y), x_test, rng.permutation(y_test))
    run = lottery.run(SETTINGS, data=drawn, model=lambda: network(keras), out=tmp_path, on_event=quietly)
    share = np.bincount(drawn[3]).max() / len(y_test)
    assert str(run).startswith("No verdict: the dense network has learnt hardly anything")
    assert f"the most frequent class makes up {100 * share:.3g} %" in str(run) and "would be needed" not in str(run)
    learnt = lottery.run(
        SETTINGS, data=arrays(), model=lambda: network(keras), out=tmp_path / "learnt", on_event=quietly
    )
    assert "learnt hardly anything" not in str(learnt)


@pytest.mark.parametrize(
    ("change", "cure"),
    [(lambda y: np.eye(3)[y], r"not one-hot vectors. Pass y.argmax\(axis=-1\)"),
     (lambda y: y.astype("float32"), r"not float32. Pass y.astype\(int\)"),
     (lambda y: np.stack([y, y], 1), r"a class for each example, not an array of shape \(2,\)")],
)  # fmt: skip
def test_labels_that_are_no_classes_are_refused_with_the_cure(tmp_path, change, cure):
    x, y, x_test, y_test = arrays()
    passed = (x, change(y), x_test, change(y_test))
    with pytest.raises(LotteryError, match=f"labels must be .*{cure}"):
        lottery.run(SETTINGS, data=passed, model=lambda: network(keras), out=tmp_path, on_event=quietly)
    assert not list(tmp_path.iterdir())
