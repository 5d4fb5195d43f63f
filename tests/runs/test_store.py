import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lottery import config, files
from lottery.errors import LotteryError, StorageError
from lottery.runs import store
from lottery.runs.stored import StoredRound, stored_rounds

MASKS = st.dictionaries(
    st.text("abc/_0", min_size=1), hnp.arrays(bool, hnp.array_shapes(max_dims=4, max_side=7)), min_size=1, max_size=4
)


@given(MASKS)
def test_masks_are_one_bit_an_entry_and_read_without_this_package(tmp_path_factory, kept):
    from safetensors import safe_open

    path = tmp_path_factory.mktemp("masks") / "masks.safetensors"
    files.write(path, files.pack_masks(kept))
    again = files.read_masks(path)
    assert again.keys() == kept.keys()
    with safe_open(path, "numpy") as file:
        shapes = json.loads(file.metadata()["shapes"])
        assert list(shapes) == list(kept)
        stored = 0
        for name, mask in kept.items():
            packed = file.get_tensor(name)
            stored += packed.nbytes
            bits = [(packed[index // 8] >> (7 - index % 8)) & 1 for index in range(mask.size)]
            np.testing.assert_array_equal(np.array(bits, bool).reshape(shapes[name]), mask)
            np.testing.assert_array_equal(again[name], mask)
    assert stored == sum(-(-mask.size // 8) for mask in kept.values())


def test_a_stored_round_reads_back(tmp_path, rng):
    folder = store.round_path(tmp_path, 1, 0)
    kept = {"a": rng.random((5, 3)) < 0.5}
    trained = {"a": rng.normal(size=(5, 3)).astype(np.float32), "a/bias": np.arange(3, dtype=np.float32)}
    rows = [(0, "validation", 2.5, 0.125), (10, "train", 0.1, 1.0)]
    record = store.write_round(folder, kept, trained, rows, {"replicate": 1, "round": 0})
    assert store.read_record(folder) == record
    store.check_files(folder)
    for name, value in files.read_arrays(folder / "weights.safetensors").items():
        assert value.tobytes() == trained[name].tobytes() and value.dtype == trained[name].dtype
    text = (folder / "metrics.csv").read_text()
    assert text == "step,split,loss,accuracy\n0,validation,2.5,0.125\n10,train,0.1,1.0\n"
    assert sorted(path.name for path in (folder).iterdir()) == [
        "masks.safetensors", "metrics.csv", "round.json", "weights.safetensors",
    ]  # fmt: skip


def test_early_stop_and_predictions_are_read_or_missed_in_a_sentence(small_run, tmp_path):
    stored = StoredRound(small_run.path, 1, 2)
    record, early, predicted = stored.record, stored.early_stop, stored.predictions
    assert {name: value.shape for name, value in early.items()} == {
        name: value.shape for name, value in stored.weights.items()
    }
    assert predicted.keys() == {"label", "early_stop", "final"} and len(predicted["label"]) == 360
    for name in ("early_stop", "final"):
        right = np.mean(predicted[name] == predicted["label"])
        assert right == pytest.approx(record[f"{name}_test_accuracy"], abs=1e-6)
    folder = store.round_path(tmp_path, 1, 0)
    parts = {"a": np.ones((2, 2), bool)}, {"a": np.ones((2, 2), np.float32)}, []
    place = {"replicate": 1, "round": 0}
    store.write_round(folder, *parts, place)
    with pytest.raises(LotteryError, match=r"round-00' has no weights at the early-stop step: an earlier version"):
        _ = StoredRound(tmp_path, 1, 0).early_stop
    with pytest.raises(LotteryError, match=r"round-00' has no predictions: an earlier version stored it\.$"):
        _ = StoredRound(tmp_path, 1, 0).predictions
    store.write_round(folder, *parts, place, {store.EARLY_STOP: parts[1]})
    with pytest.raises(LotteryError, match=r"no predictions: its model or its data do not give one class"):
        _ = StoredRound(tmp_path, 1, 0).predictions


def test_a_round_is_read_lazily_and_against_its_checksums(small_run, tmp_path):
    stored = StoredRound(small_run.path, 1, 2)
    assert set(vars(stored)) == {"run", "replicate", "round", "branch"}
    assert stored.masks is stored.masks and stored.labels[:3] == (1, "ticket", 2)
    initial = files.read_arrays(store.start_path(small_run.path, 1))
    for name, value in initial.items():
        kept = stored.masks.get(name, np.ones(value.shape, bool))
        np.testing.assert_array_equal(stored.masked_start[name], np.where(kept, value, 0))
        np.testing.assert_array_equal(stored.start[name], value)
    assert stored.began_with(initial) and not stored.began_with(stored.weights)
    copy = tmp_path / small_run.path.name
    shutil.copytree(small_run.path, copy)
    for name in ("masks", "weights", "early_stop", "predictions", "metrics"):
        (path,) = store.round_path(copy, 1, 2).glob(f"{name}.*")
        content = path.read_bytes()
        path.write_bytes(content[:-2] + b"7" + content[-1:])
        with pytest.raises(LotteryError, match=rf"{path.name}' is damaged: its checksum"):
            getattr(StoredRound(copy, 1, 2), name)
    with pytest.raises(LotteryError, match="is a branch; the weights that it started from are not stored"):
        _ = StoredRound(copy, 1, 2, "random_mask").start


def test_rounds_are_listed_with_their_branches(small_run, tmp_path):
    copy = tmp_path / small_run.path.name
    shutil.copytree(small_run.path, copy)
    for index, branch in ((3, "a"), (1, "b"), (1, "a")):
        folder = store.round_path(copy, 1, index, branch)
        folder.mkdir()
        (folder / "round.json").touch()
    store.round_path(copy, 2, 1, "incomplete").mkdir()
    first = [(index, "ticket") for index in range(4)]
    expected = [(1, *place) for place in [*first, (1, "a"), (3, "a"), (1, "b")]] + [(2, *place) for place in first]
    places = [(stored.replicate, stored.round, stored.branch) for stored in stored_rounds(copy)]
    assert places == expected
    chain = [(stored.round, stored.branch) for stored in stored_rounds(copy, [0, 3], branches=False)]
    assert chain == [(0, "ticket"), (3, "ticket")] * 2


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch, call, code):
    path = tmp_path / "file"
    files.write(path, b"before")

    def refuse(*_, **__):
        raise OSError(code, os.strerror(code))

    if call == "write":
        monkeypatch.setattr(Path, "open", refuse)
    elif call == "fsync":
        monkeypatch.setattr(os, "fsync", refuse)
    else:
        monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(LotteryError, match="cannot be written: .*intact") as caught:
        files.write(path, b"after")
    monkeypatch.undo()
    assert ("disk is full" in str(caught.value)) == (code == errno.ENOSPC)
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]


def test_a_saved_model_that_cannot_be_replaced_is_put_back(tmp_path, monkeypatch):
    path, rename = tmp_path / "model", Path.replace
    path.mkdir()
    (path / "saved_model.pb").write_text("old")

    def fails(source, target):
        if source.parent != tmp_path and target == path and source.name == "model":
            raise OSError(errno.EIO, "Input/output error")
        return rename(source, target)

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(StorageError, match="everything stored before is intact"), files.replacing(path) as new:
        new.mkdir()
    assert (path / "saved_model.pb").read_text() == "old" and [found.name for found in tmp_path.iterdir()] == ["model"]


def test_rounds_count_only_without_a_gap(tmp_path):
    for index in (0, 1, 3):
        store.write_round(store.round_path(tmp_path, 1, index), {}, {}, [], {})
    (tmp_path / "replicate-1" / "round-02").mkdir()
    assert store.complete_rounds(tmp_path, 1) == [0, 1] and store.complete_rounds(tmp_path, 2) == []


HOLD = """
import sys, time
from pathlib import Path
from lottery import config, files
from lottery.runs import store
with store.opened(Path(sys.argv[1]), config.load({})):
    print("open", flush=True)
    time.sleep(600)
"""


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path):
    path = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout and first.stdout.readline() == "open\n"
        with pytest.raises(LotteryError, match="Another process"), store.opened(path, config.load({})):
            pass
        first.kill()
    deadline = time.monotonic() + 300
    while True:  # the kernel drops the lock with the process
        try:
            with store.opened(path, config.load({})):
                break
        except LotteryError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_what_killed_processes_left_is_removed_when_a_run_is_opened_and_when_it_is_closed(tmp_path):
    """A worker that is killed while it writes is replaced, and nobody opens the run again."""
    stored, half = tmp_path / "replicate-1" / "round-00", ".masks.safetensors-8312"
    stored.mkdir(parents=True)
    (tmp_path / ".ticket.tflite-8312").mkdir()  # of an export that was killed

    def left():
        return sorted(path.name for path in stored.iterdir())

    for name in ("round.json", "checkpoint.safetensors", half):
        (stored / name).touch()
    with store.opened(tmp_path, config.load()):
        assert left() == ["round.json"]
        (stored / half).touch()
    assert left() == ["round.json"]


def test_an_edited_configuration_is_refused_with_the_difference(tmp_path):
    experiment = config.load({})
    with store.opened(tmp_path / "run", experiment):
        pass
    file = tmp_path / "run" / "experiment.toml"
    file.write_text(file.read_text().replace("num_steps = 50000", "num_steps = 500"))
    with (
        pytest.raises(LotteryError, match="train.num_steps is 500 and was 50000"),
        store.opened(tmp_path / "run", experiment),
    ):
        pass


@pytest.mark.parametrize("content", [b"", b"12345678", b"\xff" * 100, b"\x02\0\0\0\0\0\0\0{}"])
def test_a_damaged_file_is_named(tmp_path, content):
    (tmp_path / "masks.safetensors").write_bytes(content)
    with pytest.raises(LotteryError, match=r"masks\.safetensors"):
        files.read_masks(tmp_path / "masks.safetensors")
    if len(content) != 10:
        with pytest.raises(LotteryError, match=r"masks\.safetensors"):
            files.read_arrays(tmp_path / "masks.safetensors")
    (tmp_path / "round.json").write_bytes(content)
    with pytest.raises(LotteryError, match=r"round\.json"):
        store.read_record(tmp_path)


@pytest.mark.parametrize("call", ["unlink", "rmdir"])
def test_a_checkpoint_that_cannot_be_removed_is_one_sentence(tmp_path, monkeypatch, call):
    def fails(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    if call == "unlink":
        (tmp_path / "checkpoint.safetensors").write_bytes(b"")
    monkeypatch.setattr(os, call, fails)
    with pytest.raises(StorageError, match="cannot be written: Input/output error; everything stored before is intact"):
        store.clear_checkpoints(tmp_path)


def test_names_that_do_not_print_are_refused_before_they_are_written():
    with pytest.raises(LotteryError, match=r"printable characters only, not 'dense\\n1/kernel'"):
        files.pack_arrays({"dense\n1/kernel": np.zeros(2)})
    assert files.parse_arrays(Path("x"), files.pack_arrays({"重み é": np.zeros(2)}))
