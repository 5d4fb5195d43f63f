"""Networks in several processes: the bits of one, whatever dies or fails, from any script."""

import contextlib
import errno
import functools
import multiprocessing
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import lottery
from lottery import enforcement, progress, randomness, weights
from lottery.errors import LotteryError, StorageError
from lottery.executors import scheduler
from lottery.executors.processes import ProcessExecutor
from lottery.executors.scheduler import Job
from lottery.pipeline import building
from lottery.runs import store
from lottery.runs.store import NetworkId
from tests.conftest import contents, toy_arrays

TABLES = {
    "name": "many",
    "data": {"validation": 60},
    "train": {
        "num_steps": 60,
        "batch_size": 16,
        "eval_every": 20,
        "jit_compile": False,
        "optimizer": {"name": "sgd", "momentum": 0.9},  # each process traces it, and Adam takes longer
        "learning_rate": 0.01,
    },
    "prune": {"num_rounds": 2},
    "rewind": {"step": 10},
    "run": {"num_replicates": 3, "controls": ["random_reinit"], "control_rounds": [2]},
}


def build():
    import keras

    layers = keras.layers
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(9, "relu"), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(3)]
    )


def arrays():
    return toy_arrays(np.random.default_rng(3), num_train=300, num_test=50)


@pytest.mark.rewritten  # as in the processes of the workers
def test_two_workers_give_the_bits_of_one_and_a_failure_stops_nothing_else(tmp_path):
    """Functions of the caller's own go with the work; of three replicates the second cannot be pruned."""

    @contextlib.contextmanager
    def own(model, masks):
        with enforcement.gradient(model, masks) as callbacks:
            yield callbacks

    second = weights.read(building.build_model(build, randomness.seed_for(0, 2, randomness.INITIALISATION)))

    def choosy(evidence):
        later = not evidence.kept["dense/kernel"].all()
        if later and np.array_equal(evidence.initial["dense/kernel"], second["dense/kernel"]):
            raise LotteryError("This one is not scored.")
        return {name: np.abs(value) for name, value in evidence.trained.items()}

    said = {}
    for workers in (1, 2):
        said[workers] = []
        with pytest.raises(LotteryError, match=r"This one is not scored\. 1 other network could not be trained"):
            lottery.run(
                TABLES, model=build, data=arrays(), criterion=choosy, schedule=lambda index: 0.8**index,
                enforcement=own, out=tmp_path / str(workers), workers=workers, on_event=said[workers].append,
            )  # fmt: skip
    one, two = (contents(tmp_path / str(workers)) for workers in (1, 2))
    assert len(one) == 10 * 6 + 3 * 2 + 2 and [name for name in one if one[name] != two.get(name)] == []
    assert not [name for name in one if "replicate-2/round-02" in name or "checkpoint" in name]
    for events in said.values():
        done = [event for event in events if isinstance(event, progress.Done)]
        assert len(done) == 3 + 2 + 3 + 2
        assert [event.where.done for event in done] == sorted(event.where.done for event in done)
        told = {}
        for event in events:
            if isinstance(event, progress.Evaluated):
                told.setdefault((event.replicate, event.round, event.branch), []).append(event.row)
            elif isinstance(event, progress.Done):  # everything about a network is told before it is done
                key = event.where.replicate, event.where.round, event.where.branch
                stored = store.read_metrics(store.round_path(event.where.run, *key))
                assert sorted(told[key]) == sorted(stored)
    texts = [event.text for event in said[2] if isinstance(event, progress.Note)]
    assert any("Training 2 networks in parallel" in text for text in texts)
    assert sum("The others continue." in text for text in texts) == 1


SCRIPT = """
import os, sys, threading, time
import lottery
from lottery import progress
from lottery.training import checkpoints
from tests.executors.test_processes import TABLES, arrays

def build():  # of the script itself, which has no guard against being imported again
    import keras
    layers = keras.layers
    return keras.Sequential([keras.Input((6,)), layers.Dense(9, "relu"), layers.Dropout(0.3), layers.Dense(3)])

print("begun", flush=True)
tables = TABLES | {"train": TABLES["train"] | {"num_steps": 20000, "eval_every": 1000}, "rewind": {"step": 0}}
def report(event):
    print(type(event).__name__, getattr(event, "text", ""), getattr(event, "step", ""), flush=True)
lottery.run(tables, model=build, data=arrays(), out=sys.argv[1], workers=2, on_event=report,
            checkpoint_every=checkpoints.CheckpointInterval(0, 500))
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    with subprocess.Popen(
        [sys.executable, "script.py", "runs"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
    ) as process:  # fmt: skip
        yield process
        process.kill()


def workers_of(process):
    import psutil

    found = []
    for one in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended in the meantime
            if "loky.backend.popen_loky_posix" in " ".join(one.cmdline()):
                found.append(one)
    return found


def until(process, word):
    for line in process.stdout:
        if word in line:
            return line
    raise AssertionError(process.stderr.read())


def test_a_worker_that_is_killed_is_replaced_and_workers_end_with_who_has_started_them(script):
    until(script, "begun")
    while len(workers := workers_of(script)) < 2:  # in mid-round it is killed by `test_kills`
        assert script.poll() is None
        time.sleep(0.05)
    workers[0].kill()
    assert "it starts again from its last checkpoint" in until(script, "died")
    until(script, "Step")
    while len(left := workers_of(script)) < 2 or {one.pid for one in left} & {one.pid for one in workers}:
        assert script.poll() is None
        time.sleep(0.05)
    script.kill()
    script.wait()
    while any(one.is_running() and one.status() != "zombie" for one in left):
        time.sleep(0.1)
    assert script.stdout.read().count("begun\n") == 0, "the script was run again in a worker"


def test_numbers_of_workers(tmp_path):
    for wrong in (0, "2", 1.5, True):
        with pytest.raises(LotteryError, match=f"workers must be a whole number from 1, None or a Ray, not {wrong!r}"):
            lottery.run(TABLES, model=build, data=arrays(), out=tmp_path, workers=wrong, on_event=progress.silent)
    assert not list(tmp_path.iterdir())


def test_rounds_of_a_single_replicate_train_in_one_process(tmp_path):
    """Each waits for the one before, so a second process would have nothing to do."""
    tables = TABLES | {"run": {"num_replicates": 1, "controls": [], "control_rounds": []}}
    said = []
    lottery.run(tables, model=build, data=arrays(), out=tmp_path, workers=2, on_event=said.append)
    notes = [event.text for event in said if isinstance(event, progress.Note)]
    assert notes and not [note for note in notes if "in parallel" in note]


def test_a_folder_for_temporary_files_that_takes_no_socket_is_named(tmp_path, monkeypatch):
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setitem(multiprocessing.current_process()._config, "tempdir", str(folder))
    with pytest.raises(StorageError, match="long' cannot be written: AF_UNIX path too long"):
        ProcessExecutor(arrays, 2)


def test_without_shared_memory_one_sentence_says_what_to_do(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("loky.ProcessPoolExecutor", fails)
    executor = ProcessExecutor(print, 2)
    with pytest.raises(LotteryError, match="Several processes cannot be started: Read-only file system; use one"):
        executor.submit(Job(tmp_path, NetworkId(1, 0)))
    executor.shutdown()


class Unloadable:
    """Stands for an object of the caller's that another process cannot load."""

    def __reduce__(self):
        return int, ("its file is not here",)


def test_what_a_process_cannot_load_is_said_once_for_each_network(tmp_path):
    said = []
    executor = ProcessExecutor(functools.partial(print, Unloadable()), 1)
    with pytest.raises(LotteryError, match=r"round 0: ValueError: invalid literal .* not here'\."):
        scheduler.launch([Job(tmp_path, NetworkId(number, 0)) for number in (1, 2)], executor, said.append)
    executor.shutdown()
    assert len(said) == 2
