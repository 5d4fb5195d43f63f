import contextlib
import importlib
import io
import itertools
import math
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import lottery
from lottery import config, enforcement, files, interrupts, masks, progress, randomness, weights
from lottery.errors import LotteryError
from lottery.pipeline import preparing, running, session
from lottery.pipeline.prepared import Ingredients
from lottery.runs import store, verification
from lottery.runs.stored import StoredRound
from lottery.training import checkpoints, trainer
from lottery.training.checkpoints import CheckpointInterval
from tests.conftest import SMALL, checksum, contents, keep_graphs, quietly, toy_arrays

pytestmark = pytest.mark.usefixtures("traced_once")

ONE = SMALL | {"run": {"num_replicates": 1}, "prune": {"num_rounds": 2}}


def final_bits(run):
    """The checksum of every file that must not depend on what happened on the way."""
    kinds = ("masks.safetensors", "weights.safetensors", "metrics.csv", "initial.safetensors", "experiment.toml")
    return {str(path.relative_to(run)): checksum(path) for path in sorted(Path(run).rglob("*")) if path.name in kinds}


def build_dropout():
    import keras

    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(16, "relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.3),
            layers.Dense(3, "softmax"),
        ]
    )


def test_every_round_is_on_disk_and_in_the_table(small_run):
    rows = small_run.table()
    assert list(zip(rows["replicate"], rows["round"], strict=True)) == [(r, i) for r in (1, 2) for i in range(4)]
    assert tuple(rows.columns) == lottery.statistics.results.COLUMNS
    # 64 x 300, 300 x 100 and 100 x 10 at 20, 20 and 10 per cent, by hand.
    assert list(rows["num_kept"][:4]) == [50200, 15360 + 24000 + 900, 12288 + 19200 + 810, 9830 + 15360 + 729]
    assert rows["density"][1] == 40260 / 50200
    assert (rows["early_stop_test_accuracy"] > 0.8).all()


def test_replicates_differ_and_rounds_start_from_the_initial_weights(small_run):
    initial = [files.read_arrays(small_run.path / f"replicate-{one}" / "initial.safetensors") for one in (1, 2)]
    assert np.any(initial[0]["dense/kernel"] != initial[1]["dense/kernel"])
    zeros = [files.read_masks(store.round_path(small_run.path, one, 1) / "masks.safetensors") for one in (1, 2)]
    assert np.any(zeros[0]["dense/kernel"] != zeros[1]["dense/kernel"])


def test_masks_are_those_of_an_independent_ranking(small_run):
    for index in (1, 2, 3):
        before, after = (store.round_path(small_run.path, 1, one) for one in (index - 1, index))
        trained = files.read_arrays(before / "weights.safetensors")
        kept, now = (files.read_masks(one / "masks.safetensors") for one in (before, after))
        for name, rate in (("dense/kernel", 0.2), ("dense_1/kernel", 0.2), ("dense_2/kernel", 0.1)):
            alive = np.flatnonzero(kept[name])
            ranked = alive[np.argsort(np.abs(trained[name].ravel()[alive]), kind="stable")]
            expected = kept[name].copy()
            expected.flat[ranked[: round(rate * len(alive))]] = False
            np.testing.assert_array_equal(now[name], expected)


def test_what_training_holds_at_its_start_is_the_start_masked(tmp_path, monkeypatch):
    """Read back from the model itself: survivors at their initial weights, to the bit."""
    seen = []
    original = trainer.weights.assign

    def spy(model, values, only=None):
        original(model, values, only)
        seen.append(weights.read_state(model))

    monkeypatch.setattr(trainer.weights, "assign", spy)
    run = lottery.run(ONE, out=tmp_path, on_event=quietly)
    initial = files.read_arrays(run.path / "replicate-1" / "initial.safetensors")
    for index in range(3):
        kept = files.read_masks(store.round_path(run.path, 1, index) / "masks.safetensors")
        expected = {name: np.where(kept[name], value, 0) if name in kept else value for name, value in initial.items()}
        assert any(all(np.array_equal(state[name], expected[name]) for name in expected) for state in seen), index


@pytest.fixture(scope="module")
def again(traced_once, tmp_path_factory):
    """The small run once more, and the loops that it compiled."""
    traced_once.clear()
    loops = []
    original = trainer.compile_loop

    def spy(*arguments):
        loops.append(original(*arguments))
        return loops[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trainer, "compile_loop", spy)
        return lottery.run(SMALL, out=tmp_path_factory.mktemp("again"), on_event=quietly), loops


def test_the_same_seed_gives_the_same_bits_and_another_does_not(tmp_path, small_run, again):
    again, _ = again
    assert final_bits(again.path) == final_bits(small_run.path)
    other = lottery.run(ONE, {"run": {"seed": 1}}, out=tmp_path, on_event=quietly)
    assert other.path != again.path and np.any(
        files.read_arrays(other.path / "replicate-1" / "initial.safetensors")["dense/kernel"]
        != files.read_arrays(again.path / "replicate-1" / "initial.safetensors")["dense/kernel"]
    )


def test_one_trace_serves_the_whole_run(again):
    _, (only,) = again
    assert only.steps.experimental_get_tracing_count() == 1
    assert {one.func.experimental_get_tracing_count() for one in only.evaluations.values()} == {2}  # sizes of a split


class Killed(BaseException):
    """Stands for SIGKILL: nothing may catch it."""


@pytest.mark.long
@pytest.mark.parametrize("num_rounds", [1, 2])
def test_stopped_at_every_single_write_it_ends_with_the_same_bits(tmp_path, monkeypatch, num_rounds):
    arrays = toy_arrays(np.random.default_rng(3), 150, 40)
    experiment = {
        "name": "k",
        "data": {"validation": 30},
        "train": {"num_steps": 20, "eval_every": 10, "batch_size": 16, "jit_compile": False},
    }
    experiment |= {"prune": {"num_rounds": num_rounds}, "run": {"num_replicates": 2}}

    def go(out):
        return lottery.run(experiment, model=build_dropout, data=arrays, out=out, on_event=quietly).path

    expected = final_bits(go(tmp_path / "whole"))
    original = Path.replace
    writes = 0

    def count(self, target):
        nonlocal writes
        writes += 1
        if writes == stop_at:
            raise Killed
        return original(self, target)

    monkeypatch.setattr(Path, "replace", count)
    stop_at, stops = 1, 0
    out = tmp_path / "stopped"
    while True:
        writes = 0
        try:
            path = go(out)
            break
        except Killed:
            stops += 1
            # Let each next attempt get one write further than the last, so that every write is hit once.
            stop_at = 1 if stop_at > 5 else stop_at + 1
    assert stops > 5
    assert final_bits(path) == expected


def test_a_copy_goes_on_by_its_folder_where_the_data_lie_elsewhere(tmp_path, monkeypatch):
    x_train, y_train, x_test, y_test = toy_arrays(np.random.default_rng(3))
    (tmp_path / "here").mkdir()
    np.savez(tmp_path / "here/toy.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    file = {"name": "npz", "path": str(tmp_path / "here/toy.npz"), "validation": 40}
    train = {"num_steps": 60, "eval_every": 20, "batch_size": 16}
    experiment = {"name": "c", "data": file, "train": train, "run": {"num_replicates": 1}}
    whole = lottery.run(experiment, {"prune": {"num_rounds": 2}}, out=tmp_path / "whole", on_event=quietly).path

    stored = []

    def after_one():
        return signal.SIGTERM if stored else 0

    def watch(event):
        stored.extend([event] if isinstance(event, progress.Done) else [])

    with pytest.raises(interrupts.Stopped):
        lottery.run(
            experiment, {"prune": {"num_rounds": 2}}, out=tmp_path / "first", on_event=watch, should_stop=after_one
        )
    copy = shutil.copytree(tmp_path / "first" / whole.name, tmp_path / "copy")
    (tmp_path / "here").rename(tmp_path / "there")
    with pytest.raises(LotteryError, match=r"There is no data file .*LOTTERY_DATA"):
        lottery.run(copy, on_event=quietly)
    with pytest.raises(LotteryError, match=r"has its experiment already.*LOTTERY_DATA"):
        lottery.run(copy, {"data": {"path": str(tmp_path / "there/toy.npz")}}, on_event=quietly)
    with pytest.raises(LotteryError, match="is not a run: it has no experiment.toml"):
        lottery.run(tmp_path, on_event=quietly)
    monkeypatch.setenv("LOTTERY_DATA", str(tmp_path / "there"))
    events = []
    assert lottery.run(copy, on_event=events.append).path == copy
    assert final_bits(copy) == final_bits(whole)
    assert [event.where.round for event in events if isinstance(event, progress.Done)] == [1, 2]
    np.savez(tmp_path / "there/toy.npz", x_train=x_train + 1, y_train=y_train, x_test=x_test, y_test=y_test)
    shutil.rmtree(copy / "replicate-1/round-02")
    with pytest.raises(LotteryError, match="The data differ"):
        lottery.run(copy, on_event=quietly)


def test_time_runs_out_and_the_same_call_goes_on(tmp_path):
    with pytest.raises(interrupts.Stopped, match="when its time was up") as stopped:
        lottery.run(ONE, out=tmp_path, on_event=quietly, max_hours=1e-9)
    assert stopped.value.signal == interrupts.TIME_IS_UP and not list(tmp_path.rglob("round.json"))
    assert len(lottery.run(ONE, out=tmp_path, on_event=quietly, max_hours=24).table()) == 3
    for wrong in (0, -1, math.nan, "8"):
        with pytest.raises(LotteryError, match="max_hours must be a number above 0, not"):
            lottery.run(ONE, out=tmp_path, on_event=quietly, max_hours=wrong)


def test_an_interval_of_checkpoints_that_is_none_is_refused_before_training(tmp_path):
    with pytest.raises(LotteryError, match="checkpoint_every must be a .*CheckpointInterval, .*not 30"):
        lottery.run(ONE, out=tmp_path, on_event=quietly, checkpoint_every=30)
    assert not list(tmp_path.iterdir())


def test_a_complete_run_is_not_trained_again(small_run, monkeypatch):
    monkeypatch.setattr(preparing, "prepare", lambda *_: pytest.fail("trained again"))
    events = []
    again = lottery.run(SMALL, out=small_run.path.parent, on_event=events.append)
    assert again.path == small_run.path and "complete" in events[-1].text
    assert lottery.run(small_run, on_event=quietly) == small_run  # as any path to it


def test_what_is_passed_with_the_folder_of_a_complete_run_is_compared(tmp_path):
    arrays = toy_arrays(np.random.default_rng(3))
    train = {"num_steps": 20, "eval_every": 10, "batch_size": 20, "jit_compile": False}
    tables = {"name": "m", "data": {"validation": 40}, "train": train, "prune": {"num_rounds": 1}}
    tables["run"] = {"num_replicates": 1}
    run = lottery.run(tables, model=build_dropout, data=arrays, out=tmp_path, on_event=quietly)
    assert lottery.run(run.path, model=build_dropout, data=arrays, on_event=quietly).path == run.path
    with pytest.raises(LotteryError, match="The data differ"):
        lottery.run(run.path, model=build_dropout, data=(arrays[0] + 1, *arrays[1:]), on_event=quietly)
    other = small_network
    with pytest.raises(LotteryError, match="began with another model or function"):
        lottery.run(run.path, model=other, data=arrays, on_event=quietly)


def small_network():
    import keras

    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3, "softmax")])


def test_a_users_model_and_data(tmp_path):
    arrays = toy_arrays(np.random.default_rng(3))
    experiment = {
        "name": "mine",
        "data": {"validation": 40},
        "train": {"num_steps": 300, "eval_every": 30, "batch_size": 20, "jit_compile": False},
    }
    experiment |= {"prune": {"num_rounds": 2}, "run": {"num_replicates": 1}}
    events = []
    run = lottery.run(experiment, model=build_dropout, data=arrays, out=tmp_path, on_event=events.append)
    assert list(run.table()["num_kept"]) == [144, 115, 92]
    assert (run.table()["final_test_accuracy"] > 0.9).all()
    steps = [event for event in events if isinstance(event, progress.Step)]
    assert {(event.round, event.step) for event in steps} >= {(0, 30), (1, 300), (2, 0)}
    # The same again resumes; other data or another network is another run.
    assert lottery.run(experiment, model=build_dropout, data=arrays, out=tmp_path, on_event=quietly).path == run.path
    for data, same in ((arrays, True), ((arrays[0] + 1, *arrays[1:]), False)):
        prepared = preparing.prepare(config.load(experiment), Ingredients(build_dropout, data))
        assert (store.run_path(tmp_path, prepared.experiment) == run.path) == same


def test_a_compiled_model_keeps_its_optimiser_and_loss(tmp_path):
    import keras

    def build():
        model = build_dropout()
        model.compile(keras.optimizers.SGD(0.25), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    arrays = toy_arrays(np.random.default_rng(3))
    train = {"num_steps": 30, "batch_size": 20, "jit_compile": False}
    experiment = {"data": {"validation": 40}, "train": train, "prune": {"num_rounds": 1}}
    run = lottery.run(
        experiment, {"run": {"num_replicates": 1}}, model=build, data=arrays, out=tmp_path, on_event=quietly
    )
    assert run.experiment.train.optimizer == "compiled" and run.experiment.train.learning_rate == 0.25
    with pytest.raises(LotteryError, match=r"is compiled already: leave out train\.optimizer"):
        lottery.run(
            experiment, {"train": {"optimizer": "adam"}}, model=build, data=arrays, out=tmp_path, on_event=quietly
        )


@pytest.mark.parametrize("kind", [pytest.param("dataset", marks=pytest.mark.long), "function"])
def test_data_sets_that_do_not_fit_in_memory(tmp_path, kind):
    import tensorflow as tf

    x_train, y_train, x_test, y_test = toy_arrays(np.random.default_rng(3))

    def train():
        whole = tf.data.Dataset.from_tensor_slices((x_train[:160], y_train[:160]))
        return whole.shuffle(160, seed=3, reshuffle_each_iteration=kind == "function").batch(16)

    validation = tf.data.Dataset.from_tensor_slices((x_train[160:], y_train[160:])).batch(17)
    test = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(13)
    given = (train if kind == "function" else train(), validation, test)
    experiment = {
        "train": {"num_steps": 40, "eval_every": 15, "jit_compile": False},
        "prune": {"num_rounds": 1},
        "run": {"num_replicates": 1},
    }
    paths = [
        lottery.run(experiment, model=build_dropout, data=given, out=tmp_path / name, on_event=quietly).path
        for name in "ab"
    ]
    assert final_bits(paths[0]) == final_bits(paths[1])
    rows = lottery.statistics.results.table(paths[0])
    assert (rows["final_test_accuracy"] * 60 % 1).round(4).isin([0, 1]).all()  # of all 60 examples


def test_a_data_set_whose_order_cannot_be_repeated_is_refused(tmp_path):
    import tensorflow as tf

    whole = tf.data.Dataset.from_tensor_slices((np.zeros((9, 6), np.float32), np.zeros(9, int)))
    given = (whole.shuffle(9).map(lambda x, y: (x, y)).batch(3), whole.batch(3), whole.batch(3))
    with pytest.raises(LotteryError, match="reshuffle_each_iteration=False"):
        lottery.run({}, model=build_dropout, data=given, out=tmp_path, on_event=quietly)


@pytest.mark.parametrize(
    ("overrides", "arguments", "message"),
    [
        ({"train": {"batch_size": 2000}}, {}, "train.batch_size must be at most the 1300 .* not 2000"),
        ({"prune": {"rates": {"dense_3/kernel": 0.1}}}, {}, "Did you mean 'dense_2/kernel'"),
        ({"prune": {"num_rounds": 90}}, {}, "prune.num_rounds must be at most"),
        ({"data": {"validation": 5000}}, {}, "data.validation must be less than the 1437 .* not 5000"),
        ({"data": {"path": "/nowhere.npz"}}, {}, "There is no data file"),
        ({"model": {"name": "nowhere.at:all"}}, {}, "cannot be imported"),
        ({"model": {"name": "json:nothing"}}, {}, "has no function 'nothing'"),
        ({"model": {"name": "json:dumps"}}, {}, r"dumps\(\) could not build the model"),
        ({"data": {"name": "given"}}, {}, "pass them again"),
        ({}, {"model": lambda: 3}, "model must be a Keras model, not int"),
        ({}, {"data": (1, 2)}, "data must be .*, not 2 parts"),
    ],
)
def test_bad_input_writes_nothing(tmp_path, overrides, arguments, message):
    with pytest.raises(LotteryError, match=message) as caught:
        lottery.run(ONE, overrides, out=tmp_path / "runs", on_event=quietly, **arguments)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_a_missing_data_file_is_named_before_tensorflow_is_imported(tmp_path):
    code = """import sys, lottery
try:
    lottery.run({"data": {"name": "npz", "path": "none.npz"}})
except lottery.errors.LotteryError as error:
    assert "There is no data file 'none.npz'" in str(error) and "tensorflow" not in sys.modules
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "refused\n", done.stderr


def test_a_class_of_models_builds_models(tmp_path):
    import keras

    with pytest.raises(LotteryError, match="is not built; give it an Input layer"):
        lottery.run(ONE, model=keras.Sequential, out=tmp_path, on_event=quietly)


def test_labels_that_are_no_class_are_refused(tmp_path):
    x_train, y_train, x_test, y_test = toy_arrays(np.random.default_rng(3))
    y_test = y_test.copy()
    y_test[5] = 3
    with pytest.raises(LotteryError, match="test labels must be 0 to 2.* go up to 3"):
        lottery.run(
            {"data": {"validation": 9}}, model=build_dropout, data=(x_train, y_train, x_test, y_test), out=tmp_path
        )
    assert not list(tmp_path.iterdir())


def test_negative_labels_are_refused(tmp_path):
    x_train, y_train, x_test, y_test = toy_arrays(np.random.default_rng(3), shape=(5, 5))
    np.savez(tmp_path / "d.npz", x_train=x_train, y_train=y_train - 1, x_test=x_test, y_test=y_test)
    experiment = {"data": {"name": "npz", "path": str(tmp_path / "d.npz"), "validation": 40}}
    with pytest.raises(LotteryError, match="labels go from -1 to 1"):
        lottery.run(experiment, out=tmp_path / "runs", on_event=quietly)
    with pytest.raises(LotteryError, match="labels must be .* go down to -1"):
        lottery.run(experiment, model=build_flat, out=tmp_path / "runs", on_event=quietly)
    assert not (tmp_path / "runs").exists()


def build_flat():
    import keras

    return keras.Sequential([keras.Input((5, 5)), keras.layers.Flatten(), keras.layers.Dense(4), keras.layers.Dense(3)])


def test_the_default_experiment_takes_another_model(tmp_path, monkeypatch):
    """Its rates are for weights of LeNet, and its rounds for a schedule that densities replace."""
    from lottery import config as configuration

    words = ["model.name=somewhere:else", "prune.densities=[0.5,0.2]", "prune.schedule=explicit"]
    experiment = configuration.load(None, configuration.parse_overrides(words))
    assert experiment.prune.rates == {} and experiment.prune.num_rounds == 2 and experiment.train.num_steps == 3000


def test_a_model_passed_for_a_function_or_built_once_is_refused(tmp_path):
    arrays = toy_arrays(np.random.default_rng(3))
    model = build_dropout()
    import keras

    layers = [keras.layers.Dense(8), keras.layers.Dense(3)]
    shared = lambda: keras.Sequential([keras.Input((6,)), *layers])  # noqa: E731
    sizes = itertools.count(8)
    grows = lambda: keras.Sequential(  # noqa: E731
        [keras.Input((6,)), keras.layers.Dense(next(sizes)), keras.layers.Dense(3)]
    )
    for wrong, message in (
        (shared, "layers twice"),
        (model, "a function that builds"),
        (lambda: model, "same model or layers twice"),
        (grows, "same weights each time"),
    ):
        with pytest.raises(LotteryError, match=message):
            lottery.run(
                {"data": {"validation": 9}, "prune": {"num_rounds": 1}},
                model=wrong,
                data=arrays,
                out=tmp_path,
                on_event=quietly,
            )


def test_nan_keeps_the_rounds_before(tmp_path, monkeypatch):
    """The loss of round 1 becomes NaN: round 0 stays, and running again goes on from it."""
    original = trainer.Trainer.train

    def poisoned(self, start, kept, *arguments, **options):
        if not kept["dense/kernel"].all():
            start = start | {"dense_2/bias": np.full_like(start["dense_2/bias"], np.nan)}
        return original(self, start, kept, *arguments, **options)

    monkeypatch.setattr(trainer.Trainer, "train", poisoned)
    with pytest.raises(LotteryError, match=r"Replicate 1, round 1: The .* loss .* is nan.*trained before is kept"):
        lottery.run(ONE, out=tmp_path, on_event=quietly)
    monkeypatch.undo()
    path = store.run_path(tmp_path, config.load(ONE))
    assert store.complete_rounds(path, 1) == [0]
    run = lottery.run(ONE, out=tmp_path, on_event=quietly)
    assert len(run.table()) == 3


def test_nan_that_a_layer_hides_from_the_loss_is_found_in_the_weights(tmp_path):
    """The relu of some processors makes a zero of NaN, as this layer does on all of them."""
    import keras

    def build():
        hiding = lambda x: keras.ops.where(keras.ops.isnan(x), 0.0, x)  # noqa: E731
        layers = [keras.layers.Dense(8, hiding, bias_initializer=lambda shape, dtype: np.full(shape, np.nan, dtype))]
        return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(3, "softmax")])

    short = {"data": {"validation": 9}, "train": {"num_steps": 3}, "prune": {"num_rounds": 1}}
    with pytest.raises(LotteryError, match="dense/bias has values that are not finite after training"):
        lottery.run(short, model=build, data=toy_arrays(np.random.default_rng(3)), out=tmp_path, on_event=quietly)


def test_going_on_begins_after_the_last_complete_round(tmp_path, small_run, traced_once):
    import shutil

    traced_once.clear()

    copy = tmp_path / small_run.path.name
    shutil.copytree(small_run.path, copy)
    for index in (2, 3):
        (store.round_path(copy, 2, index) / "round.json").unlink()
    events = []
    lottery.run(SMALL, out=tmp_path, on_event=events.append)
    trained = {(event.where.replicate, event.where.round) for event in events if isinstance(event, progress.Done)}
    assert trained == {(2, 2), (2, 3)}
    assert final_bits(copy) == final_bits(small_run.path)


def test_what_is_stored_is_what_was_trained_and_measured(small_run):
    """A fresh model with the stored weights has the recorded accuracy on the test images."""
    from lottery import data
    from lottery.models import networks

    splits = data.load(small_run.experiment.data)
    pixels = (splits.test.x - splits.mean) / splits.standard_deviation
    for index in (0, 3):
        folder = store.round_path(small_run.path, 1, index)
        model = networks.lenet_300_100((8, 8), 10)
        weights.assign(model, files.read_arrays(folder / "weights.safetensors"))
        correct = np.asarray(model(pixels)).argmax(1) == splits.test.y
        assert store.read_record(folder)["final_test_accuracy"] == pytest.approx(correct.mean(), abs=1e-6)


@pytest.mark.parametrize("complete", [True, False])
def test_other_data_in_the_same_place_are_refused(tmp_path, complete):
    x_train, y_train, x_test, y_test = toy_arrays(np.random.default_rng(3), shape=(5, 5), num_classes=3)
    np.savez(tmp_path / "d.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    experiment = {"data": {"name": "npz", "path": str(tmp_path / "d.npz"), "validation": 40}}
    experiment |= {
        "train": {"num_steps": 10, "batch_size": 20, "jit_compile": False},
        "prune": {"num_rounds": 1},
        "run": {"num_replicates": 1},
    }
    run = lottery.run(experiment, out=tmp_path, on_event=quietly)
    if not complete:
        (store.round_path(run.path, 1, 1) / "round.json").unlink()
    np.savez(tmp_path / "d.npz", x_train=x_train + 1, y_train=y_train, x_test=x_test, y_test=y_test)
    with pytest.raises(LotteryError, match="data differ from the data of"):
        lottery.run(experiment, out=tmp_path, on_event=quietly)


def test_going_on_keeps_the_threads_it_was_begun_with(tmp_path):
    run = lottery.run(ONE, out=tmp_path, on_event=quietly)
    environment = store.read_environment(run.path)
    store.write_record(run.path / "environment.json", environment | {"num_threads": 61})
    (store.round_path(run.path, 1, 2) / "round.json").unlink()
    with pytest.raises(LotteryError, match="trains with run.num_threads = 61, but TensorFlow has started with"):
        lottery.run(ONE, out=tmp_path, on_event=quietly)


def test_seeds_of_different_purposes_never_meet():
    purposes = (randomness.INITIALISATION, randomness.BATCHES)
    seeds = [
        randomness.seed_for(seed, replicate, purpose)
        for seed in range(20)
        for replicate in range(20)
        for purpose in purposes
    ]
    assert len(set(seeds)) == len(seeds)


def test_global_scope_counts_over_all_weights(tmp_path):
    run = lottery.run(ONE, {"prune": {"scope": "global"}}, out=tmp_path, on_event=quietly)
    assert list(run.table()["num_kept"]) == [50200, 40160, 32128]
    kept = files.read_masks(store.round_path(run.path, 1, 2) / "masks.safetensors")
    assert len(set(masks.density_by_weight(kept).values())) == 3


def test_a_tensor_that_is_not_pruned_is_named(tmp_path):
    import keras

    def build():
        frozen = keras.layers.Dense(8, trainable=False)
        return keras.Sequential(
            [
                keras.Input((6,)),
                frozen,
                keras.layers.BatchNormalization(),
                keras.layers.Dropout(0.1),
                keras.layers.Dense(3),
            ]
        )

    events = []
    experiment = {"train": {"num_steps": 5, "batch_size": 20}, "prune": {"num_rounds": 0}, "run": {"num_replicates": 1}}
    lottery.run(
        experiment, model=build, data=toy_arrays(np.random.default_rng(3)), out=tmp_path, on_event=events.append
    )
    notes = [event.text for event in events if isinstance(event, progress.Note)]
    assert [note for note in notes if "not pruned" in note] == ["dense/kernel is not pruned: not trainable."]


def build_three(metrics):
    import keras

    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=metrics)
    return model


@pytest.mark.parametrize(
    ("num_test", "metrics", "warned"), [(499, ["accuracy"], True), (500, ["accuracy"], False), (499, [], False)]
)
def test_a_tolerance_that_cannot_be_measured_is_reported_before_training(num_test, metrics, warned, tmp_path):
    arrays = toy_arrays(np.random.default_rng(3), num_test=num_test)
    ingredients = Ingredients(model=lambda: build_three(metrics), data=arrays)
    tables = {"train": {"num_steps": 5, "batch_size": 20, "jit_compile": False}, "prune": {"num_rounds": 0}}
    events = []
    execution = session.Execution(on_event=events.append)
    running.run(tables | {"run": {"num_replicates": 1}}, {}, ingredients, tmp_path, execution, tolerance=0.002)
    first = next(index for index, event in enumerate(events) if not isinstance(event, progress.Note))
    notes = [event.text for event in events[:first] if "finer" in event.text]
    assert len(notes) == warned
    assert not notes or "tolerance of 0.002 is finer than one test example (1 of 499):" in notes[0]


@pytest.mark.parametrize("mode", [mode for mode in enforcement.ENFORCEMENTS if mode != "constraint"])
def test_every_mode_of_enforcement_finds_the_same_tickets(mode, small_run, tmp_path):
    run = lottery.run(SMALL | {"run": {"num_replicates": 1, "enforcement": mode}}, out=tmp_path, on_event=quietly)
    assert not [sentence for _, sentences in verification.verify(run.path) for sentence in sentences]
    for index in range(SMALL["prune"]["num_rounds"] + 1):
        one, other = (store.round_path(path, 1, index) for path in (small_run.path, run.path))
        assert store.read_record(one)["kept"] == store.read_record(other)["kept"]
        assert StoredRound(run.path, 1, index).predictions.keys() == {"label", "early_stop", "final"}
        for name in ("masks.safetensors", "weights.safetensors"):
            bits = [files.read_arrays(folder / name) for folder in (one, other)]
            if mode == "tfmot" and name == "weights.safetensors":
                # Of another Keras, whose arithmetic may differ in the last places.
                for key, value in bits[0].items():
                    np.testing.assert_allclose(bits[1][key], value, rtol=1e-3, atol=1e-5)
            else:
                assert bits[0].keys() == bits[1].keys()
                assert all(bits[0][key].tobytes() == bits[1][key].tobytes() for key in bits[0])


@pytest.mark.parametrize("accuracy", [0.9, None])
def test_a_line_is_printed_for_a_model_that_measures_no_accuracy(accuracy):
    printed = io.StringIO()
    where = progress.Step(Path(), 1, 2, 3, 4, "ticket", 0.5, 60, 0, 60, float("nan"), 1, 2)
    record = {"collapsed": [], "early_stop_step": 40, "early_stop_test_accuracy": accuracy, "seconds": 1.5}
    record["early_stop_test_loss"] = 0.25
    with progress.shown(Console(file=printed, width=200)) as report:
        report(progress.Done(where, record))
    line = printed.getvalue()
    assert ("test 90.00 %" in line) == (accuracy is not None) and "early stop 40" in line and "1.5 s" in line


def test_a_run_leaves_the_generators_of_its_caller_as_they_were(tmp_path):
    import random

    import keras
    import tensorflow as tf
    import tf_keras

    def draw():
        own = tf_keras.layers.Dense(1)
        own.build((None, 1))
        drawn = random.random(), np.random.random(), tf.random.uniform(()), keras.random.uniform(()), own.kernel[0, 0]
        return [float(value) for value in drawn]

    keras.utils.set_random_seed(3)
    tf_keras.utils.set_random_seed(3)
    expected = [draw() for _ in range(3)]
    keras.utils.set_random_seed(3)
    tf_keras.utils.set_random_seed(3)
    found = [draw()]
    tables = {"train": {"num_steps": 2}, "data": {"validation": 20}, "prune": {"num_rounds": 0}}
    arguments = {"model": build_dropout, "data": toy_arrays(np.random.default_rng(3)), "on_event": quietly}
    for _ in range(2):  # anew, and complete
        lottery.run(tables, {"run": {"num_replicates": 1}}, out=tmp_path, **arguments)
        found.append(draw())
    assert found == expected


class Crash(BaseException):
    """The end of a process, at any event."""


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_random_layers_go_on_where_a_crash_left_them(library, tmp_path):
    """Of both libraries: their state is in the checkpoint, and begins the same in every process."""
    keep_graphs()
    kerases = importlib.import_module(library)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 8)).astype("float32")
    y = np.argmax(x @ rng.normal(size=(8, 4)), 1)
    settings = {
        "train": {"num_steps": 17, "batch_size": 16, "eval_every": 7, "jit_compile": False},
        "prune": {"num_rounds": 1},
        "run": {"num_replicates": 1},
        "data": {"validation": 15},
    }

    def build():
        layers = kerases.layers
        own = [layers.Dense(9, activation="relu"), layers.Dropout(0.2), layers.GaussianNoise(0.1), layers.Dense(4)]
        return kerases.Sequential([layers.InputLayer((8,)), *own])

    def bits(folder, crash_at=0):
        num_events = 0

        def count(event):
            nonlocal num_events
            num_events += 1
            if num_events == crash_at:
                raise Crash

        passed = {"model": build, "data": (x[:84], y[:84], x[84:], y[84:]), "tensorboard": False}
        often = checkpoints.CheckpointInterval(seconds=0, steps=3)
        with contextlib.suppress(Crash):
            lottery.run(settings, out=tmp_path / folder, on_event=count, checkpoint_every=often, **passed)
        run = lottery.run(settings, out=tmp_path / folder, on_event=quietly, checkpoint_every=often, **passed)
        return [checksum(path) for path in sorted(run.path.glob("replicate-1/round-*/weights.safetensors"))]

    whole = bits("whole")
    assert bits("crash in round 0", 9) == bits("crash in round 1", 22) == whole and len(whole) == 2


def test_a_mode_for_another_library_is_refused_before_anything_is_written(tmp_path):
    import keras

    def build():
        return keras.Sequential([keras.Input((8, 8)), keras.layers.Flatten(), keras.layers.Dense(10)])

    settings = SMALL | {"prune": {"num_rounds": 1}, "run": {"num_replicates": 1, "enforcement": "tfmot"}}
    with pytest.raises(LotteryError, match="is a Keras 3 Sequential, and tfmot wraps tf_keras models only"):
        lottery.run(settings, model=build, out=tmp_path, on_event=quietly)
    assert list(tmp_path.iterdir()) == []


class Died(BaseException):
    """Ends a run at an event, as a kill would: what was not stored by then is lost."""


@pytest.mark.usefixtures("compiled_kernels", "traced_once")
def test_deaths_between_checkpoints_change_no_byte_of_networks_on_the_sparse_engine(tmp_path, monkeypatch):
    """Every file is compared; runs die at other steps than those of a checkpoint, and calls are cut anywhere."""
    monkeypatch.setattr("lottery.training.course.CALL_SECONDS", 0.001)
    train = {"num_steps": 70, "batch_size": 7, "eval_every": 30, "engine": "sparse", "jit_compile": False}
    run = {"num_replicates": 1, "controls": ["random_mask"]}
    settings = SMALL | {"train": train, "prune": {"num_rounds": 2, "rate": 0.5}, "run": run}

    def carried_out(out, steps, gaps):
        deaths = 0
        while True:
            left = gaps[deaths] if deaths < len(gaps) else math.inf

            def on_event(event):
                nonlocal left
                left -= isinstance(event, progress.Step)
                if left < 0:
                    raise Died

            every = CheckpointInterval(seconds=0, steps=steps)
            try:
                done = lottery.run(settings, out=out, on_event=on_event, checkpoint_every=every, tensorboard=False)
                break
            except Died:
                deaths += 1
        assert deaths == len(gaps)
        return contents(done.path)

    whole = carried_out(tmp_path / "whole", 1000, [])
    assert sum(name.endswith("metrics.csv") for name in whole) == 5
    for number, (steps, gaps) in enumerate([(13, [5, 9, 21]), (29, [11, 2, 30]), (1, [17, 3])]):
        assert carried_out(tmp_path / str(number), steps, gaps) == whole


def test_an_optimizer_that_a_library_lacks_is_named(tmp_path):
    import tf_keras

    def build():
        return tf_keras.Sequential(
            [tf_keras.layers.InputLayer((8, 8)), tf_keras.layers.Flatten(), tf_keras.layers.Dense(10)]
        )

    for name in ("lamb", "muon"):
        settings = SMALL | {"train": SMALL["train"] | {"optimizer": name}, "prune": {"num_rounds": 1}}
        with pytest.raises(LotteryError, match=f"^train.optimizer: tf_keras has no optimizer '{name}'.$"):
            lottery.run(settings, model=build, out=tmp_path, on_event=quietly)
    assert list(tmp_path.iterdir()) == []
