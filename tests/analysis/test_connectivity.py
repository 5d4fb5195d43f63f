"""Siblings and the path between them: the line itself, the files, and the sentences about it."""

import contextlib
import csv
import dataclasses
import functools
import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

import lottery
from lottery import config, files, interrupts, masks, progress, weights
from lottery.analysis import connectivity
from lottery.data import Data
from lottery.errors import LotteryError
from lottery.pipeline import (
    building,
    connecting,
    interpolation,
    preparing,
    sibling_paths,
    sibling_training,
)
from lottery.pipeline.prepared import Ingredients
from lottery.pipeline.preparing import prepare
from lottery.pipeline.session import Execution
from lottery.runs import siblings, store, verification
from lottery.runs.siblings import Siblings
from lottery.runs.stored import stored_rounds
from tests.conftest import checksum, quietly, toy_arrays

pytestmark = pytest.mark.usefixtures("traced_once")

K, POINTS = 15, 5
TABLES = {
    "name": "connected",
    "data": {"validation": 40},
    "train": {"num_steps": 40, "eval_every": 10, "batch_size": 16, "jit_compile": False, "learning_rate": 0.01},
    "prune": {"num_rounds": 1, "rate": 0.4},
    "run": {"num_replicates": 2},
}

DIGITS = {
    "data": {"name": "digits", "validation": 137},
    "train": {"num_steps": 300, "eval_every": 100, "jit_compile": False},
}


def build():
    import keras

    layers = keras.layers
    hidden = [layers.Dense(12, "relu"), layers.BatchNormalization(), layers.Dropout(0.2)]
    return keras.Sequential([keras.Input((6,)), *hidden, layers.Dense(3)])


def arrays():
    """With labels of chance among them, so that every network makes errors."""
    rng = np.random.default_rng(3)
    x, y, x_test, y_test = toy_arrays(rng, 200, 40)
    y, y_test = (np.where(rng.random(len(one)) < 0.3, rng.integers(0, 3, len(one)), one) for one in (y, y_test))
    return x, y, x_test, y_test


def go(out, overrides=None):
    return lottery.run(TABLES, overrides, model=build, data=arrays(), out=out, tensorboard=False, on_event=quietly)


def connect(run, *arguments, num_points=POINTS, recompute=False, test_only=False, **options):
    line = interpolation.Line(num_points, recompute, test_only)
    options = {"line": line, "model": build, "data": arrays(), "on_event": quietly} | options
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(preparing, "prepare", prepared_once)
        own = Ingredients(options.pop("model"), options.pop("data"))
        execution = Execution(
            **{key: options.pop(key) for key in ("on_event", "should_stop", "checkpoint_every") if key in options}
        )
        connecting.connect(run.path, *arguments, **options, ingredients=own, execution=execution)
        return run


@functools.cache
def prepared_for(digest, fingerprint):
    return []


def prepared_once(experiment, ingredients=None):
    """Preparing takes most of the time of a call, and calls for one run on the same arrays prepare the same."""
    ingredients = ingredients or Ingredients(build, arrays())
    data = ingredients.data
    if callable(data[0]):
        return prepare(experiment, ingredients)
    there = prepared_for(config.digest(experiment), data[0].tobytes())
    if not there:
        there.append(prepare(experiment, ingredients))
    return there[0]


def stored(path):
    """What lies below a folder, by checksum; but not the time that training took, nor what follows from it."""
    found = {}
    for file in sorted(path.rglob("*.*")):
        if file.suffix == ".json":
            left_out = ("seconds", "record_sha256", "networks")
            kept = {key: value for key, value in json.loads(file.read_bytes()).items() if key not in left_out}
            found[str(file.relative_to(path))] = json.dumps(kept)
        elif file.is_file():
            found[str(file.relative_to(path))] = checksum(file)
    return found


def pair_of(run, replicate, index, step=K):
    return Siblings(run.path, run.experiment, replicate, index, step)


def is_right(run):
    return [sentence for _, wrong in siblings.wrong(run.path) for sentence in wrong]


@pytest.fixture(scope="module")
def connected(traced_once, tmp_path_factory):
    """A run of two replicates and two rounds, connected from two steps, with its table before that."""
    run = go(tmp_path_factory.mktemp("connected"))
    before, events = run.table(), []
    connect(run, steps=[0, K], on_event=events.append)
    done = [(event.done, event.total) for event in events if isinstance(event, progress.Step)]
    total = 2 * (K + 2 * (40 + 2 * (40 - K)))
    assert done == sorted(done) and done[0] == (0, total) and done[-1] == (total, total)
    return run, before


@pytest.fixture
def copied(connected, tmp_path):
    path = tmp_path / connected[0].path.name
    shutil.copytree(connected[0].path, path)
    return lottery.load(path)


floats = stn.arrays(np.float32, 5, elements=st.floats(allow_nan=False, width=32))


@given(floats, floats, st.floats(0, 1))
def test_between_is_the_line_and_its_ends_are_the_networks(one, other, alpha):
    ends = [{"kernel": value, "count": np.array(value.size + at)} for at, value in enumerate((one, other))]
    for at, end in enumerate(ends):
        found = interpolation.between(*ends, at)
        assert found["kernel"].tobytes() == end["kernel"].tobytes() and found["count"] == end["count"]
        same = interpolation.between(end, end, alpha)
        assert np.array_equal(same["kernel"], end["kernel"])
    found = interpolation.between(*ends, alpha)
    assert found["kernel"].dtype == np.float32 and (alpha == 1 or found["count"] == 5)
    for value, first, second in zip(found["kernel"], one, other, strict=True):
        if np.isinf([first, second]).all() and first != second:
            assert np.isnan(value) == (0 < alpha < 1)
            continue
        assert min(first, second) <= value <= max(first, second)
        if np.isfinite([first, second]).all():
            exact = float(first) + alpha * (float(second) - float(first))
            assert value == pytest.approx(exact, rel=1e-6, abs=2e-7 * max(abs(float(first)), abs(float(second)), 1e-37))


def test_between_refuses_two_networks_that_are_not_of_one_kind():
    one = {"kernel": np.zeros((2, 3), np.float32)}
    for other in ({"bias": one["kernel"]}, {"kernel": np.zeros((3, 2), np.float32)}):
        with pytest.raises(LotteryError, match="same variables and shapes"):
            interpolation.between(one, other, 0.5)
    with pytest.raises(LotteryError, match=r"alpha must be 0 to 1, not 1.5"):
        interpolation.between(one, one, 1.5)


def test_a_barrier_is_seen_where_there_is_one():
    """Two networks from other initial weights lie in other basins; two from the same ones, here, in one."""
    prepared = prepare(config.load(DIGITS))
    model, (x, y) = prepared.trainer.model, (prepared.data.test.x, prepared.data.test.y)
    x = lottery.training.examples.scaler(prepared.data)(x).numpy()
    states = [building.initial_state(prepared, replicate) for replicate in (1, 2)]
    kept = masks.ones_like({name: states[0][name] for name in prepared.trainer.masks})

    def trained(start, number):
        words = siblings.seed_words(prepared.experiment, 1, number)
        return prepared.trainer.train(start, kept, words).weights

    one, same, other = trained(states[0], 1), trained(states[0], 2), trained(states[1], 2)
    near = interpolation.barrier(model, one, same, (x, y), num_points=5)
    far = interpolation.barrier(model, one, model, (x, y), num_points=5)
    assert near["barrier"] < 0.04 < 0.1 < far["barrier"], (near["barrier"], far["barrier"])
    assert not far["stable"] and 0 < far["alpha_highest"] < 1
    after = weights.read_state(model)
    assert all(np.array_equal(after[name], other[name]) for name in other)

    # By hand, without Keras: the error half way.
    half, values = {name: (one[name] + other[name]) / 2 for name in one}, x.reshape(len(x), -1)
    for layer in ("dense", "dense_1", "dense_2"):
        values = values @ half[f"{layer}/kernel"] + half[f"{layer}/bias"]
        values = values if layer == "dense_2" else np.maximum(values, 0)
    wrong = np.mean(values.argmax(1) != y)
    assert far["points"][2][0] == 0.5 and far["points"][2][2] == pytest.approx(wrong, abs=2.5 / len(values))
    twice = interpolation.barrier(model, one, other, (x, y, np.full(len(y), 2.0)), num_points=3)
    assert twice["points"][1][1] == pytest.approx(2 * far["points"][2][1], rel=1e-5)


def test_data_of_a_barrier_with_other_parts_are_refused(rng):
    """The fourth was left out without a word, and the third taken for weights of the examples."""
    model = build()
    model.compile(loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    x, y = rng.normal(size=(6, *model.input_shape[1:])), np.zeros(6, int)
    with pytest.raises(LotteryError, match="not 4 parts"):
        interpolation.barrier(model, model, model, (x, y, np.ones(6), y), num_points=3)


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_statistics_are_those_of_the_weights(library, rng):
    """Against NumPy: means and variances by batch, then their mean; nothing else of the model is changed."""
    import importlib

    keras = importlib.import_module(library)
    layers = keras.layers
    frozen = layers.BatchNormalization(trainable=False)
    inputs = keras.Input((6,))
    norm = layers.BatchNormalization(momentum=0.9)
    hidden = layers.Dense(4)(inputs)
    model = keras.Model(inputs, layers.Dense(3)(frozen(norm(hidden))))
    state = weights.read_state(model)
    state |= {name: rng.normal(size=value.shape).astype(np.float32) ** 2 for name, value in state.items()}
    weights.assign(model, state)
    batches = [rng.normal(at, 1 + at, size=(50, 6)).astype(np.float32) for at in range(2)]
    interpolation.recomputed(model, lambda: batches)()
    found = weights.read_state(model)
    hidden = [batch.astype(float) @ state["dense/kernel"] + state["dense/bias"] for batch in batches]
    expected = {
        "batch_normalization/moving_mean": np.mean([one.mean(0) for one in hidden], 0),
        "batch_normalization/moving_variance": np.mean([one.var(0) for one in hidden], 0),
    }
    names = ["batch_normalization", "batch_normalization_1"]
    if np.array_equal(found["batch_normalization_1/moving_mean"], state["batch_normalization_1/moving_mean"]) is False:
        names.reverse()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name.replace("batch_normalization", names[0])], value, rtol=1e-4)
    changed = {name for name in state if np.any(found[name] != state[name])}
    assert changed == {name.replace("batch_normalization", names[0]) for name in expected}
    assert norm.momentum == 0.9
    plain = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
    assert interpolation.recomputed(plain, lambda: batches) is None


def test_a_path_ends_at_the_networks_and_is_what_a_model_says(connected):
    run, _ = connected
    names = [name for name, wrong in siblings.wrong(run.path) if not wrong]
    assert sum(", network step " in name for name in names) == 2 * 2 * (1 + 2)
    assert sum(", path step " in name for name in names) == 2 * 2 * 2 and len(names) == 2 * (1 + 2 * (1 + 2 + 2))
    points = connectivity.points(run.path)
    assert len(points) == 2 * 2 * 2 * POINTS * 2 and set(points["split"]) == {"train", "test"}
    assert points.groupby("round")["density"].first().tolist() == [1.0, run.table()["density"].min()]
    assert points["error"].min() > 0
    data = prepared_once(run.experiment).data
    model = build()
    one, other = (pair_of(run, 2, 1).network(n).weights for n in (1, 2))
    weights.assign(model, {name: (one[name] + other[name]) / 2 for name in one})
    for split in ("train", "test"):
        part = getattr(data, split)
        logits = np.asarray(model(part.x))
        row = points.query(f"replicate == 2 and round == 1 and step == {K} and alpha == 0.5 and split == '{split}'")
        assert row["error"].item() == pytest.approx(np.mean(logits.argmax(1) != part.y), abs=1.01 / len(part))
        loss = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(logits)), part.y]
        assert row["loss"].item() == pytest.approx(loss.mean(), rel=1e-3)


def test_the_table_of_the_run_is_as_it_was(connected):
    run, before = connected
    assert run.table().equals(before) and len(before) == 4
    assert (
        all(stored.branch == store.TICKET for stored in stored_rounds(run.path))
        and [s for _, wrong in lottery.runs.verification.verify(run.path) for s in wrong] == []
    )


def test_order_one_is_the_runs_own_and_two_is_another(connected):
    """Trained with order 1 from step 0, a sibling has the bits of the run's network, so it need not be trained."""
    run, _ = connected
    prepared = prepared_once(run.experiment)
    words = [siblings.seed_words(run.experiment, 1, number) for number in (1, 2)]
    for place in range(2):
        one, other = (prepared.trainer.loop.batches(each)(3)[(0, 3)[place]].numpy() for each in words)
        assert np.any(one != other), ("positions", "augmentation")[place]
    for index in (0, 1):
        folder = store.round_path(run.path, 1, index)
        kept = files.read_masks(folder / "masks.safetensors")
        start = files.read_arrays(run.path / "replicate-1" / "initial.safetensors")
        with contextlib.closing(prepared.trainer):
            again = prepared.trainer.train(start, kept, words[0]).weights
        trained = files.read_arrays(folder / "weights.safetensors")
        assert all(np.array_equal(again[name], trained[name]) for name in trained)
        assert not (run.path / "connectivity/replicate-1" / f"round-0{index}" / "branch-step_0_order_1").exists()
        other = pair_of(run, 1, index, 0).network(2).weights
        assert any(np.any(other[name] != trained[name]) for name in kept)


def test_siblings_start_where_a_run_that_rewinds_would(connected, tmp_path):
    """W_k has the bits of another run's, and that run's round is its first sibling."""
    run, _ = connected
    late = go(tmp_path, {"rewind": {"step": K}, "run": {"num_replicates": 1}})
    made, there = (pair_of(each, 1, 0) for each in (run, late))
    assert made.state_file != there.state_file
    assert weights.fingerprint(made.state()) == weights.fingerprint(there.state())
    connect(late)
    assert is_right(late) == [] and sorted(connectivity.points(late.path)["step"].unique()) == [K]
    there = sorted(path.name for path in (late.path / "connectivity").rglob("branch-*"))
    assert there == [f"branch-step_{K}_order_1", f"branch-step_{K}_order_2", f"branch-step_{K}_order_2"]
    names = (f"replicate-1/round-00/branch-step_{K}_order_{n}/weights.safetensors" for n in (1, 2))
    for name in names:  # the dense siblings are the same in both runs
        assert checksum(late.path / "connectivity" / name) == checksum(run.path / "connectivity" / name)


def test_an_interrupted_call_goes_on_and_a_second_one_trains_nothing(connected, copied, monkeypatch):
    whole = stored(connected[0].path / "connectivity")
    shutil.rmtree(copied.path / "connectivity")
    calls = []

    def dies(path, rows, networks, write=siblings.write_path):
        calls.append(path)
        if len(calls) == 3:
            raise KeyboardInterrupt
        write(path, rows, networks)

    monkeypatch.setattr(siblings, "write_path", dies)
    with pytest.raises(KeyboardInterrupt):
        connect(copied, steps=[K, 0])
    begun = stored(copied.path / "connectivity")
    assert 0 < len(begun) < len(whole) and begun.items() <= whole.items()
    connect(copied, steps=[K, 0])
    assert len(calls) == 3 + 8 - 2 and stored(copied.path / "connectivity") == whole
    events = []
    connect(copied, steps=[0, K], on_event=events.append)
    assert len(calls) == 9 and [event.text for event in events] == [f"Every path of {copied.path} is complete."]

    assert stored(copied.path / "connectivity") == whole

    connect(copied, [1], replicate=1, num_points=3, recompute=True, on_event=events.append)
    assert len(calls) == 10 and calls[-1].name == "path-step_0-recomputed.csv"
    assert "round 1, step 0: the test-error barrier is" in events[-1].text
    connect(copied, [1], replicate=1, num_points=3)
    assert len(calls) == 10  # what is stored is finer
    connect(copied, [1], replicate=1, num_points=POINTS + 2)
    points = connectivity.points(copied.path)
    assert len(calls) == 11 and len(points) == 2 * (7 * POINTS + POINTS + 2 + 3)
    points = points.query("replicate == 1 and round == 1 and step == 0")
    at = {kind: part["loss"].tolist() for kind, part in points.groupby("batch_norm")}
    assert at["stored"] != at["recomputed"] and is_right(copied) == []


def test_the_training_split_can_be_left_out_and_is_not_lost_where_it_is_there(copied):
    pair = pair_of(copied, 1, 1)
    _, both = siblings.read_path(pair.path_file())

    def again(num_points, test_only):
        connect(copied, [1], [K], replicate=1, num_points=num_points, test_only=test_only)
        return siblings.read_path(pair.path_file())[1]

    siblings.record_file(pair.path_file()).unlink()
    assert again(POINTS, test_only=True) == [row for row in both if row[1] == "test"] and is_right(copied) == []
    barriers = connectivity.barriers(connectivity.points(copied.path))
    assert set(barriers.query(f"replicate == 1 and round == 1 and step == {K}")["split"]) == {"test"}
    # Both splits, at the points that are stored of one.
    assert again(3, test_only=False) == both
    assert again(3, test_only=True) == both
    finer = again(2 * POINTS - 1, test_only=True)
    assert finer[:2] == both[:2] and len(finer) == 2 * (2 * POINTS - 1) and set(both) <= set(finer)


def test_a_path_that_is_measured_can_be_stopped(copied):
    asked = []

    def should_stop():
        asked.append(1)
        return signal.SIGTERM if len(asked) > 2 else 0

    shutil.rmtree(copied.path / "connectivity" / "replicate-1" / "round-01")
    whole = stored(copied.path / "connectivity")
    file = pair_of(copied, 2, 1).path_file()
    siblings.record_file(file).unlink()
    with pytest.raises(interrupts.Stopped):
        connect(copied, [1], [K], replicate=2, should_stop=should_stop)
    assert len(asked) == 3 and not siblings.record_file(file).exists()
    connect(copied, [1], [K], replicate=2)
    assert stored(copied.path / "connectivity") == whole


def test_two_workers_store_what_one_stores(tmp_path):
    """Processes train siblings of the digits, a built-in network and data set that they make anew."""
    tables = {**TABLES, "data": {"name": "digits", "validation": 137}, "run": {"num_replicates": 1}}
    run = lottery.run(tables, out=tmp_path / "one", tensorboard=False, on_event=quietly)
    other = lottery.load(shutil.copytree(run.path, tmp_path / "two" / run.path.name))
    line = interpolation.Line(POINTS)
    connecting.connect(run.path, steps=[0, K], line=line, execution=Execution(on_event=quietly))
    said = []
    connecting.connect(other.path, steps=[0, K], line=line, execution=Execution(workers=2, on_event=said.append))
    assert stored(run.path / "connectivity") == stored(other.path / "connectivity") and is_right(other) == []
    done = [(event.done, event.total) for event in said if isinstance(event, progress.Step)]
    assert done == sorted(done) and done[-1][0] <= done[-1][1] == K + 2 * (40 + 2 * (40 - K))
    assert sum("the test-error barrier is" in event.text for event in said if isinstance(event, progress.Note)) == 4


def tamper(run, what):
    folder = pair_of(run, 1, 1).network(2).folder
    path = pair_of(run, 1, 1).path_file()
    record, points = siblings.read_path(path)
    if what == "weight":
        kept, state = files.read_masks(folder / "masks.safetensors"), files.read_arrays(folder / "weights.safetensors")
        state["dense/kernel"][~kept["dense/kernel"]] += 1
        rewrite(folder, state=state)
    elif what == "masks":
        rewrite(folder, kept=masks.ones_like(files.read_masks(folder / "masks.safetensors")))
    elif what == "bytes":
        (folder / "metrics.csv").write_text("step,split,loss,accuracy\n")
    elif what == "byte":
        content = bytearray((folder / "weights.safetensors").read_bytes())
        content[-1] ^= 1
        (folder / "weights.safetensors").write_bytes(content)
    elif what == "chance":
        rewrite(folder, start_sha256=masks_of_the_run_applied(run))
    elif what == "state":
        file = pair_of(run, 1, 1).state_file
        state = files.read_arrays(file)
        state["dense/bias"] = state["dense/bias"] + 1
        store.write_state(file, state)
    elif what == "again":
        rewrite(folder, seconds=1e6)
    elif what == "retrained":
        round_ = store.round_path(run.path, 1, 1)
        rewrite(round_, kept={name: ~mask for name, mask in files.read_masks(round_ / "masks.safetensors").items()})
    elif what == "end":
        changed = [(*row[:3], 0.5) if row[0] == 1 else row for row in points]
        siblings.write_path(path, changed, record["networks"])
    elif what == "unmeasured":
        rewrite(folder, final_test_accuracy=None)
        siblings.write_path(path, points, pair_of(run, 1, 1).digests())
    elif what == "short":
        siblings.write_path(path, points[:-2], record["networks"])
    elif what in ("middle", "recomputed"):
        if what == "recomputed":
            path = pair_of(run, 1, 1).path_file(recomputed=True)
            siblings.write_path(path, points, record["networks"])
            assert is_right(run) == []
        lines = path.read_text().splitlines()
        lines[5] = ",".join([*lines[5].split(",")[:3], "0.9"])
        path.write_text("\n".join(lines) + "\n")
    elif what == "record":
        files.write_json(siblings.record_file(path), {**record, "num_points": POINTS + 1})
    elif what == "text":
        path.write_text("alpha,split,loss,error\n0.0,test,low,0.1\n")
    elif what == "gone":
        shutil.rmtree(folder)


def masks_of_the_run_applied(run):
    """Fingerprint of the second sibling's start if its random layers started as those of the first sibling."""
    start = files.read_arrays(pair_of(run, 1, 1).state_file)
    kept = files.read_masks(store.round_path(run.path, 1, 1) / "masks.safetensors")
    return weights.fingerprint(masks.apply(start, kept))


def rewrite(folder, text=None, kept=None, state=None, **changed):
    """Store a network again, so that its checksums are those of what was changed."""
    kept = files.read_masks(folder / "masks.safetensors") if kept is None else kept
    state = files.read_arrays(folder / "weights.safetensors") if state is None else state
    rows = list(csv.reader((text or (folder / "metrics.csv").read_text()).splitlines()))[1:]
    store.write_round(folder, kept, state, rows, {**store.read_record(folder), **changed})


@pytest.mark.parametrize(
    ("what", "where", "found"),
    [
        ("weight", "network", "masked entries that are not zero"),
        ("masks", "network", "Its masks differ from the round's masks"),
        ("bytes", "network", "is damaged"),
        ("byte", "network", "is damaged"),
        ("chance", "network", "Training did not start from the weights of step 15 under the masks"),
        ("state", "network", "are not those that it started from"),
        ("masks", "path", "step 15 with order 2 has other masks than the round"),
        ("retrained", "path", "step 15 with order 1 has other masks than the round"),
        ("again", "path", "step 15 with order 2 is another than when the path was measured"),
        ("end", "path", "At alpha 1 the test error is 0.5"),
        ("unmeasured", "path", "and the error of the network is nan"),
        ("short", "path", "do not go evenly from 0 to 1"),
        ("middle", "path", "does not have the checksum"),
        ("recomputed", "path", "does not have the checksum"),
        ("record", "path", "its record has another num_points"),
        ("text", "path", "is damaged"),
        ("gone", "path", "step 15 with order 2 is not stored"),
    ],
)  # fmt: skip
def test_damage_is_seen(copied, what, where, found):
    tamper(copied, what)
    wrong = {name: sentences for name, sentences in siblings.wrong(copied.path) if sentences}
    assert wrong and all(name.startswith("connectivity, replicate 1, round ") for name in wrong)
    own = {"network": "network step 15 order 2", "path": "path step 15" + ", recomputed" * (what == "recomputed")}
    said = wrong[f"connectivity, replicate 1, round 1, {own[where]}"]
    assert any(found in sentence for sentence in said), wrong


@pytest.mark.parametrize(
    ("what", "found"),
    [
        ("byte", "step_15_order_2/weights.safetensors' is damaged"),
        ("masks", "step_15_order_2': Its masks differ from the round's masks. Delete it to train it again."),
        ("retrained", "step_15_order_1': Its masks differ from the round's masks"),
        ("middle", "path-step_15.csv' is damaged .* delete it to have it computed again"),
    ],
)  # fmt: skip
def test_damage_and_other_masks_are_refused(copied, what, found):
    tamper(copied, what)
    before = stored(copied.path / "connectivity")
    with pytest.raises(LotteryError, match=found):
        connect(copied, [1], [K], num_points=POINTS if what == "middle" else 3)
    assert stored(copied.path / "connectivity") == before


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"final_test_accuracy": 0.9}, "The record's final test loss and accuracy differ from the curve."),
        ({"last_step": 30}, "It was trained up to step 30, not 40."),
    ],
)
def test_a_forged_record_of_a_sibling_is_found(copied, changed, found):
    rewrite(pair_of(copied, 1, 1).network(2).folder, **changed)
    name = "connectivity, replicate 1, round 1, network step 15 order 2"
    assert found in dict(verification.verify(copied.path))[name]


def test_no_sibling_starts_from_a_damaged_state(copied):
    file = pair_of(copied, 1, 1).state_file
    for folder in file.parent.glob("round-*"):
        shutil.rmtree(folder)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    found = "it does not have its checksum; delete it to have it made again."
    (said,) = dict(siblings.wrong(copied.path))["connectivity, replicate 1, step 00015"]
    assert said.endswith(found)
    with pytest.raises(LotteryError, match=found):
        connect(copied, [1], [K], replicate=1)


def test_a_state_that_was_deleted_is_made_again(copied):
    before, file = stored(copied.path / "connectivity"), pair_of(copied, 1, 1).state_file
    file.unlink()
    connect(copied, [1], [K], replicate=1)
    assert stored(copied.path / "connectivity") == before


def test_outdated_paths_are_left_out_and_measured_again(copied):
    """A network was trained again, a record is missing as after a kill, a round was deleted as `store` advises."""
    tamper(copied, "again")
    siblings.record_file(pair_of(copied, 2, 1).path_file()).unlink()
    whole, said = connectivity.points(copied.path), []
    assert len(whole) == (8 - 2) * POINTS * 2
    connect(copied, [1], [K], on_event=said.append)
    assert sum("the test-error barrier is" in event.text for event in said) == 2 == len(said) - 2
    assert is_right(copied) == [] and len(connectivity.points(copied.path)) == 8 * POINTS * 2
    shutil.rmtree(store.round_path(copied.path, 1, 1))
    left = connectivity.points(copied.path)
    assert set(zip(left["replicate"], left["round"], strict=True)) == {(1, 0), (2, 0), (2, 1)}
    assert len(connectivity.sentences(connectivity.barriers(left))) == 4
    wrong = [sentence for name, said in siblings.wrong(copied.path) for sentence in said if "path step" in name]
    assert wrong == ["Its round is not stored, or one before it is not."] * 2


def test_the_second_sibling_has_other_dropout(connected):
    """In the states of random layers; nothing else is another."""
    run, _ = connected
    states = [files.read_arrays(pair_of(run, 1, 0, step).state_file) for step in (0, K)]
    model, x = build(), np.ones((50, 6), np.float32)
    for state in states:
        one, other = (pair_of(run, 1, 0).start(number, state) for number in (1, 2))
        changed = [name for name in state if np.any(one[name] != other[name])]
        assert changed == ["dropout/seed_generator_state"] and other[changed[0]].dtype == state[changed[0]].dtype
        seen = []
        for each in (one, other):
            weights.assign(model, each)
            seen.append(np.asarray(model(x, training=True)))
        assert np.any(seen[0] != seen[1])
        again = pair_of(run, 1, 0).start(2, state)
        assert all(np.array_equal(again[name], other[name]) for name in state)
        assert np.any(pair_of(run, 2, 0).start(2, state)[changed[0]] != other[changed[0]])


def test_siblings_of_other_weights_are_refused(copied):
    tamper(copied, "state")
    for number in (1, 2):
        shutil.rmtree(pair_of(copied, 1, 1).network(number).folder)
    with pytest.raises(LotteryError, match="did not start from the weights of step 15 of replicate 1"):
        connect(copied, [1], [K])


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([7],), {}, "replicate 1 has no round 7. It has 0 to 1"),
        (([0], [40]), {}, "steps must be 0 to 39, not 40"),
        (([0], [-1]), {}, "steps must be .* not -1"),
        ((), {"num_points": 2}, "num_points must be .* not 2"),
        ((), {"num_points": 4.5}, "num_points must be a whole number of 3 or more, .* not 4.5"),
        ((), {"replicate": 3}, "replicate must be .* not 3"),
        ((), {"data": toy_arrays(np.random.default_rng(4), 200, 40)}, "data differ from the data"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_refused(connected, arguments, options, message):
    with pytest.raises(LotteryError, match=message):
        connect(connected[0], *arguments, **options)


def test_other_modes_of_rewinding_are_refused(tmp_path):
    experiment = config.load(TABLES, {"rewind": {"mode": "learning_rate"}, "data": {"name": "digits"}})
    path = store.run_path(tmp_path, experiment)
    with store.opened(path, experiment):
        pass
    with pytest.raises(LotteryError, match="must be 'weights', not 'learning_rate'"):
        connecting.connect(path, execution=Execution(on_event=quietly))


def test_data_sets_in_one_order_are_refused_and_endless_ones_tested(tmp_path, monkeypatch):
    import keras
    import tensorflow as tf

    def linear():
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])

    x, y, x_test, y_test = arrays()
    train, test = (tf.data.Dataset.from_tensor_slices(part).batch(20) for part in ((x, y), (x_test, y_test)))
    prepared = prepare(config.load(TABLES), Ingredients(linear, (train, test, test)))
    with pytest.raises(LotteryError, match="come in the same order whatever the seed"):
        sibling_training.check_orders(prepared)
    data = (lambda: train.unbatch().shuffle(200).batch(20), test, test)
    run = lottery.run({**TABLES, "run": {"num_replicates": 1}}, model=linear, data=data, out=tmp_path, on_event=quietly)
    said = []
    connect(run, [0], model=linear, data=data, recompute=True, on_event=said.append)
    assert "no BatchNormalization, so" in said[0].text
    assert is_right(run) == [] and len(connectivity.points(run.path)) == 2 * POINTS
    one, two = (pair_of(run, 1, 0, 0).network(n).weights for n in (1, 2))
    assert np.any(one["dense/kernel"] != two["dense/kernel"])

    prepared = prepare(run.experiment, Ingredients(linear, data))
    endless = dataclasses.replace(prepared.data, train=lambda once=prepared.data.train: once().repeat())
    prepared = dataclasses.replace(prepared, data=endless)
    monkeypatch.setitem(globals(), "prepare", lambda *_: prepared)
    connect(run, [0], model=linear, data=data, num_points=POINTS + 1, on_event=said.append)
    assert "do not end within one training, so only the test error is measured" in said[-3].text
    points = connectivity.points(run.path)
    assert points["split"].tolist() == ["test"] * (POINTS + 1) and is_right(run) == []
    assert len(connectivity.sentences(connectivity.barriers(points))) == 1
    for dataset, finite in ((train, True), (train.repeat(), False), (train.unbatch().batch(20), True)):
        assert sibling_paths._is_finite(dataset, 10) == finite
    assert not sibling_paths._is_finite(train.unbatch().batch(20), 9)
    assert not sibling_paths._is_finite(train.repeat().unbatch().batch(20), 10)
    monkeypatch.setattr(sibling_paths, "_is_finite", None)  # reads training data
    connect(run, [0], model=linear, data=data, num_points=POINTS + 2, test_only=True)
    assert connectivity.points(run.path)["split"].tolist() == ["test"] * (POINTS + 2)

    model = keras.Sequential([keras.Input((6,)), keras.layers.BatchNormalization()])
    interpolation.recomputed(model, interpolation.training_batches(lottery.data.given(data, run.experiment.data)))()
    np.testing.assert_allclose(weights.read_state(model)["batch_normalization/moving_variance"], x.var(0), rtol=1e-4)


def test_batches_for_statistics_are_whole_and_few():
    made = np.arange(12_385, dtype=np.float32)[:, None]
    for size, sizes in ((12_345, [1000] * 10), (2100, [1000] * 2), (60, [60])):
        x, y = made[: size + 40], np.arange(size + 40) % 3
        data = lottery.data.given((x, y, x[:9], y[:9]), Data(validation=40))
        batches = [np.asarray(batch) for batch in interpolation.training_batches(data)()]
        assert [len(batch) for batch in batches] == [min(one, len(data.train)) for one in sizes]
        values = np.concatenate(batches)[:, 0]
        assert len(set(values)) == len(values) and set(values) <= set(data.train.x[:, 0])
        assert abs(np.mean(values) - np.mean(data.train.x)) < 0.05 * size, "labels may come sorted"


def test_batches_for_statistics_of_several_inputs_are_whole_and_few():
    x, y = np.arange(2345, dtype=np.float32)[:, None], np.arange(2345) % 3
    made = tf.data.Dataset.from_tensor_slices(({"left": x, "right": x}, y)).batch(60)
    data = lottery.data.given((made, made, made), Data(name="given"))
    sizes = [(len(batch["left"]), len(batch["right"])) for batch in interpolation.training_batches(data)()]
    assert sizes == [(1000, 1000)] * 2


def test_a_dense_network_of_other_bits_is_reported(copied):
    shutil.rmtree(copied.path / "connectivity")
    folder = store.round_path(copied.path, 1, 0)
    text, said = (folder / "metrics.csv").read_text(), []
    line = next(line for line in text.splitlines() if line.startswith("10,validation"))
    rewrite(folder, text.replace(line, "10,validation,0.5,0.5"))
    connect(copied, [1], [K], replicate=1, on_event=said.append)
    notes = [event.text for event in said if hasattr(event, "text")]
    assert any("again gave different bits (see the validation loss at step 10)" in one for one in notes)


def rows(barriers):
    """Made-up paths of three points: (replicate, round, step, density, barrier), all of them highest in the middle."""
    import pandas as pd

    made = [
        (*place, "stored", alpha, split, 0.0, 0.1 + (barrier if alpha == 0.5 else 0))
        for *place, barrier in barriers
        for split in ("test", "train")
        for alpha in (1.0, 0.5, 0.0)
    ]
    return pd.DataFrame(made, columns=list(connectivity.POINTS))


def test_barriers_against_another_way(connected):
    points = connectivity.points(connected[0].path)
    found = connectivity.barriers(points)
    assert len(found) == 16
    for row in found.to_dict("records"):
        place = ("replicate", "round", "step", "density", "batch_norm", "split")
        part = {
            one["alpha"]: one["error"]
            for one in points.to_dict("records")
            if all(one[key] == row[key] for key in place)
        }
        assert len(part) == POINTS and row["ends"] == pytest.approx((part[0] + part[1]) / 2)
        assert row["highest"] == max(part.values()) == part[row["alpha_highest"]]
        assert row["barrier"] == pytest.approx(max(part.values()) - (part[0] + part[1]) / 2) and row["barrier"] >= 0
        assert row["stable"] == (row["barrier"] < 0.02)


def test_sentences_about_barriers():
    def said(*barriers):
        return connectivity.sentences(connectivity.barriers(rows(barriers)))

    dense = [(one, 0, 0, 1.0, value) for one, value in ((1, 0.01), (2, 0.014), (3, 0.012))]
    half = 4.302653 * 0.2 / np.sqrt(3)  # Student's t, two degrees of freedom, a deviation of 0.2 %
    told = f"1.20 % (3 replicates, 95 % interval {1.2 - half:.2f} to {1.2 + half:.2f} %)."
    assert said(*dense) == [f"The dense network is stable from step 0 on: its test-error barrier is {told}"]
    assert said((1, 0, 0, 1.0, 0.3), (1, 0, 50, 1.0, 0.2)) == [
        "The dense network is not stable at any step tried (0, 50): its test-error barrier from step "
        "50, the lowest, is 20.00 % (1 replicate)."
    ]
    steps = [(1, 7, 0, 0.2, 0.3), (1, 7, 50, 0.2, 0.001), (1, 7, 90, 0.2, 0.05), (1, 9, 50, 0.1, 0.4)]
    assert said(*steps) == [
        "Round 7 (density 20 %) is stable from step 50 on: its test-error barrier is 0.10 % (1 replicate), but from "
        "step 90 it is not.",
        "Rewound to step 0, no pruned network tried is stable: round 7 (density 20 %) has the lowest test-error "
        "barrier, 30.00 % (1 replicate).",
        "Rewound to step 50, networks are stable down to density 20 %: at round 7 (density 20 %) the test-error "
        "barrier is 0.10 % (1 replicate); not stable: round 9.",
        "Rewound to step 90, no pruned network tried is stable: round 7 (density 20 %) has the lowest test-error "
        "barrier, 5.00 % (1 replicate).",
    ]
    wide = said((1, 0, 0, 1.0, 0.001), (2, 0, 0, 1.0, 0.03))
    assert "1.55 % (2 replicates, " in wide[0] and "which goes above 2 %" in wide[0]
    assert said() == []
    both = rows(dense).assign(batch_norm="recomputed")
    assert connectivity.sentences(connectivity.barriers(both)) == [
        f"With the statistics of batches recomputed, the dense network is stable from step 0 on: its test-error barrier is {told}"
    ]


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_a_path_is_not_read_through_a_link_out_of_the_run(copied, tmp_path, ending):
    path = pair_of(copied, 1, 1).path_file().with_suffix(f".{ending}")
    path.rename(tmp_path / "outside")
    path.symlink_to(tmp_path / "outside")
    with pytest.raises(LotteryError, match="out of the run's folder by a symbolic link"):
        connectivity.points(copied.path)


def test_the_figure_of_late_rewinding(connected, tmp_path, monkeypatch):
    """The script beside the experiments, which the page of reproductions names."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "experiments")
    import late_rewinding

    run, _ = connected
    late_rewinding.main([run.path], tmp_path / "late.png")
    assert (tmp_path / "late.png").read_bytes().startswith(b"\x89PNG")
    once, twice = late_rewinding.barriers_of([run.path]), late_rewinding.barriers_of([run.path, run.path])
    assert len(once) == 2 * 2 * 2 * 2 and (twice["round"] == 0).sum() == (once["round"] == 0).sum()
    with pytest.raises(LotteryError, match="rewinds to step 0, as a run before it does"):
        late_rewinding.tickets_of([run.path, run.path])
