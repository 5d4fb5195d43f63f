"""A training run that is stopped anywhere, and gone on with by another process, gives the same bits."""

import dataclasses
import functools
import itertools
import json

import numpy as np
import pytest

from lottery import data, files, interrupts, masks, weights
from lottery.errors import LotteryError
from lottery.training import checkpoints, compiling, schedules
from lottery.training.records import Span
from lottery.training.settings import Train
from lottery.training.trainer import Trainer
from tests.conftest import shared_trainer

NUM_STEPS = 60
SETTINGS = Train(num_steps=NUM_STEPS, batch_size=16, eval_every=25, learning_rate=0.02, drop_at=(30,), warmup_steps=5)


def restless(keras, own_step=False):
    """A network that draws random numbers, keeps statistics, and is trained by an optimiser with slots."""
    layers = keras.layers

    class Own(keras.Sequential):
        def train_step(self, batch):
            logs = super().train_step(batch)
            return {"loss": logs["loss"], "norm": keras.ops.norm(self.layers[-1].kernel)}

    # By default tf_keras draws dropout where nothing can restore it.
    random = [layers.Dropout(0.3)] if keras.__name__ == "keras" else []
    return (Own if own_step else keras.Sequential)(
        [
            keras.Input((8, 8, 1)), layers.Conv2D(4, 3, activation="relu"), layers.BatchNormalization(),
            *random, layers.Flatten(), layers.Dense(12, activation="relu"), layers.Dense(3),
        ]
    )  # fmt: skip


def compiled(settings=SETTINGS, library="keras", own_step=False):
    import keras
    import tf_keras

    module = {"keras": keras, "tf_keras": tf_keras}[library]
    rng = np.random.default_rng(4)
    x = rng.integers(0, 256, (260, 8, 8, 1)).astype(np.uint8)
    y = rng.integers(0, 3, 260)
    splits = data.split(
        {"x_train": x[:200], "y_train": y[:200], "x_test": x[200:], "y_test": y[200:]}, data.Data(validation=40)
    )
    module.utils.set_random_seed(5)
    model = restless(module, own_step)
    schedule_step = schedules.step_variable()
    compiling.compile_model(model, settings, splits.train.x[:4].astype("float32"), schedule_step)
    augment = ("crop", "flip") if library == "keras" else ()
    return Trainer(model, splits, settings, None, schedule_step, augment)


def result(one):
    return (
        {name: value.tobytes() for name, value in one.weights.items()},
        repr((one.metrics, one.summary)),
        one.start_sha256,
    )


def stop_after(*pieces):
    """Asks to stop after so many pieces, each time anew."""
    left = list(pieces)

    def should_stop():
        left[0] -= 1
        return 0 if left[0] >= 0 else 15

    return should_stop


def trained_in_pieces(make, file, stops, start, kept=None, span=Span(), **options):
    """Train, stopping after each of `stops` pieces; each part on another trainer, as in another process."""
    for num in itertools.chain(stops, [None]):
        one = make()
        should_stop = interrupts.never if num is None else stop_after(num + 1)
        checkpointer = checkpoints.Checkpointer(file, should_stop=should_stop, note=pytest.fail, **options)
        try:
            return one.train(start, kept or {}, (9,), span, checkpointer=checkpointer), one
        except interrupts.Stopped as error:
            assert error.signal == 15
    raise AssertionError


@pytest.mark.parametrize(
    "library,own_step", [("keras", False), ("keras", True), pytest.param("tf_keras", False, marks=pytest.mark.long)]
)
def test_stopped_anywhere_and_gone_on_with_elsewhere(tmp_path, library, own_step):
    make = functools.partial(compiled, library=library, own_step=own_step)
    first, second = shared_trainer(compiled) if library == "keras" and not own_step else make(), make()
    start = weights.read_state(second.model)
    whole = first.train(start, {}, (9,))
    make = itertools.cycle([second, first]).__next__  # one is new, the other at the state of something else
    for number, stops in enumerate([(0, 1, 2, 1), (3, 4)]):
        again, _ = trained_in_pieces(make, tmp_path / f"{number}.safetensors", stops, start)
        assert result(again) == result(whole)


def test_bits_do_not_depend_on_the_pieces(monkeypatch):
    one = shared_trainer(compiled)
    start = weights.read_state(one.model)
    whole = result(one.train(start, {}, (9,)))
    for pace in (1e-9, 0.5, 0.1, 0.07):  # all at once, then step by step, five and seven at a time
        fixed = property(lambda self, pace=pace: pace, lambda self, value: None)
        monkeypatch.setattr(one, "__class__", type("Paced", (Trainer,), {"seconds_per_step": fixed}))
        assert result(one.train(start, {}, (9,))) == whole


def test_a_checkpoint_of_another_training_is_not_used(tmp_path, monkeypatch):
    one = shared_trainer(compiled)
    start = weights.read_state(one.model)
    file, said = tmp_path / "checkpoint.safetensors", []
    with pytest.raises(interrupts.Stopped):
        one.train(start, {}, (9,), checkpointer=checkpoints.Checkpointer(file, should_stop=stop_after(2)))
    kept = {"dense/kernel": np.arange(36 * 4 * 12).reshape(36 * 4, 12) % 2 == 0}
    for other, seed, masked in ((start, (10,), {}), (masks.apply(start, kept), (9,), {})):
        whole = one.train(other, masked, seed)
        checkpointer = checkpoints.Checkpointer(file, note=said.append)
        assert result(one.train(other, masked, seed, checkpointer=checkpointer)) == result(whole)
    monkeypatch.setattr(one, "data", dataclasses.replace(one.data, fingerprint="of other examples"))
    one.train(start, {}, (9,), checkpointer=checkpoints.Checkpointer(file, note=said.append))
    assert len(said) == 3 and all("belongs to another training" in one for one in said)


@pytest.mark.parametrize(
    "damage",
    ["flipped", "metadata", *(pytest.param(one, marks=pytest.mark.long) for one in ("truncated", "empty", "text"))],
)
def test_a_damaged_checkpoint_is_said_and_not_used(tmp_path, damage):
    one = shared_trainer(compiled)
    start = weights.read_state(one.model)
    whole = result(one.train(start, {}, (9,)))
    file, said = tmp_path / "checkpoint.safetensors", []
    with pytest.raises(interrupts.Stopped):
        one.train(start, {}, (9,), checkpointer=checkpoints.Checkpointer(file, should_stop=stop_after(2)))
    content = bytearray(file.read_bytes())
    if damage == "flipped":
        content[len(content) // 2] ^= 1
    elif damage == "metadata":
        place = content.index(b'"sha256":"') + 12
        content[place] = ord("0") if content[place] != ord("0") else ord("1")
    file.write_bytes({"truncated": content[:-5], "empty": b"", "text": b"hello" * 10}.get(damage, bytes(content)))
    checkpointer = checkpoints.Checkpointer(file, note=said.append)
    assert result(one.train(start, {}, (9,), checkpointer=checkpointer)) == whole
    assert len(said) == 1 and "trains from its beginning" in said[0] and str(file) in said[0]


def test_what_watches_goes_on_too(tmp_path):
    one = shared_trainer(compiled)
    start = weights.read_state(one.model)
    expected: dict = {}
    one.train(start, {}, (9,), watch={10: expected.update})
    saved: dict = {}
    file = tmp_path / "checkpoint.safetensors"
    with pytest.raises(interrupts.Stopped):
        checkpointer = checkpoints.Checkpointer(file, should_stop=stop_after(2), memory=saved)
        one.train(start, {}, (9,), watch={10: saved.update}, checkpointer=checkpointer)
    assert saved
    again: dict = {}
    checkpointer = checkpoints.Checkpointer(file, memory=again)
    one.train(start, {}, (9,), watch={10: lambda state: pytest.fail("was taken")}, checkpointer=checkpointer)
    assert {name: value.tobytes() for name, value in again.items()} == {
        name: value.tobytes() for name, value in expected.items()
    }


@pytest.mark.parametrize(
    "every,few", [(checkpoints.CheckpointInterval(0, 20), True), (checkpoints.CheckpointInterval(0, 0), False)]
)
def test_how_often(tmp_path, every, few, monkeypatch):
    one = shared_trainer(compiled)
    one.seconds_per_step = 0.1
    steps = []
    real = files.write

    def write(path, content):
        real(path, content)
        record = json.loads(files.read_arrays(path)["record"].tobytes())
        steps.append(record["standing"]["step"])

    monkeypatch.setattr(files, "write", write)
    checkpointer = checkpoints.Checkpointer(tmp_path / "checkpoint.safetensors", every)
    one.train(weights.read_state(one.model), {}, (9,), checkpointer=checkpointer)
    assert bool(steps) == few
    if few:
        assert all(after - before == 20 for before, after in itertools.pairwise([0, *steps]))


def test_seconds_count_what_the_next_piece_takes(tmp_path, monkeypatch):
    """Work at risk stays within the limit where pieces are long."""
    now = [0.0]
    monkeypatch.setattr(checkpoints.time, "monotonic", lambda: now[0])
    checkpointer, written = checkpoints.Checkpointer(tmp_path / "file", checkpoints.CheckpointInterval(60)), []
    monkeypatch.setattr(checkpointer, "_write", lambda state: written.append(now[0]))
    monkeypatch.setattr(checkpointer, "_read", lambda: None)
    checkpointer.begin(None, {}, "", checkpoints.TrainingState(0, 0))
    for now[0] in np.arange(25, 500, 25):
        checkpointer.keep(checkpoints.TrainingState(int(now[0]), 0))
    assert max(after - before for before, after in itertools.pairwise([0, *written])) <= 60 and written[0] == 50


def test_a_disk_that_is_full_stops_with_a_sentence(tmp_path, monkeypatch):
    one = shared_trainer(compiled)
    folder = tmp_path / "file"
    folder.write_text("")  # a file where the folder should be
    checkpointer = checkpoints.Checkpointer(folder / "checkpoint.safetensors", checkpoints.CheckpointInterval(0, 1))
    with pytest.raises(LotteryError, match="cannot be written"):
        one.train(weights.read_state(one.model), {}, (9,), checkpointer=checkpointer)
