"""What TensorBoard is given: read back with its own reader, and compared with what is stored."""

import csv
import errno
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing import event_multiplexer, plugin_event_multiplexer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams import metadata
from tensorboard.util import tensor_util

import lottery
from lottery import progress
from lottery.pipeline import tensorboard
from lottery.runs import store
from lottery.statistics import results
from tests.conftest import checksum

pytestmark = pytest.mark.usefixtures("traced_once")

TINY = {
    "name": "tiny",
    "data": {"name": "digits", "validation": 137},
    "train": {"num_steps": 30, "eval_every": 10, "learning_rate": 0.01, "test_curve": True, "jit_compile": False},
    "prune": {"num_rounds": 2},
    "run": {"num_replicates": 1, "controls": ["random_mask"]},
}
OF_NETWORK = ["early_stop_test_accuracy", "final_test_accuracy", "early_stop_step", "seconds"]


class Killed(BaseException):
    """As Ctrl-C."""


def loaded(folder):
    found = EventAccumulator(str(folder))
    found.Reload()
    return found


def scalars(folder):
    """Steps and values by tag, in the order in which they were written."""
    found = loaded(folder)
    return {tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def kept_open(folder):
    """Two readers of TensorBoard's that are open and stay so: each a function like `scalars`, that reads what is new."""

    def reader(multiplexer, tags, read):
        def scalars(place):
            multiplexer.AddRunsFromDirectory(str(folder))
            multiplexer.Reload()
            run = place.relative_to(folder).as_posix()
            return {tag: [(one.step, read(one)) for one in found] for tag, found in tags(multiplexer, run)}

        multiplexer.AddRunsFromDirectory(str(folder))
        multiplexer.Reload()
        return scalars

    def old(multiplexer, run):
        return [(tag, multiplexer.Scalars(run, tag)) for tag in multiplexer.Runs()[run]["scalars"]]

    def new(multiplexer, run):
        tags = multiplexer.PluginRunToTagToContent("scalars")[run]
        return [(tag, multiplexer.Tensors(run, tag)) for tag in tags]

    return [
        reader(event_multiplexer.EventMultiplexer(), old, lambda one: one.value),
        reader(
            plugin_event_multiplexer.EventMultiplexer(tensor_size_guidance={"scalars": 1000}),
            new,
            lambda one: float(tensor_util.make_ndarray(one.tensor_proto)),
        ),
    ]


def as_the_fast_reader(folder):
    """As TensorBoard's data server reads: each value drops all of its tag that do not precede it, and no event else."""
    found = {}
    for path in sorted(folder.glob("*tfevents*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    before = [one for one in found.get(value.tag, []) if one[0] < event.step]
                    found[value.tag] = [*before, (event.step, float(tensor_util.make_ndarray(value.tensor)))]
    return found


def expected_curves(folder, split):
    rows = pd.read_csv(folder / "metrics.csv").query("split == @split")
    return {
        f"steps/{name}": list(zip(rows["step"], np.float32(rows[name]), strict=True)) for name in ("loss", "accuracy")
    }


def write(run):
    """Write all that is stored and not shown yet, as a run that is complete does."""
    with tensorboard.observing(run, store.read_experiment(run)):
        pass


def is_right(run, splits=("train", "validation"), read=scalars):
    """Every network and every round of a run, and no other, is in the events as it is stored."""
    table, begin = results.table(run), run / tensorboard.FOLDER
    written = {path.parent.relative_to(begin).as_posix() for path in begin.rglob("*tfevents*")}
    wanted = set()
    for (replicate, branch), rows in table.groupby(["replicate", "branch"]):
        wanted.add(f"replicate-{replicate}/rounds/{branch}")
        found = read(begin / f"replicate-{replicate}" / "rounds" / branch)
        assert set(found) == {f"rounds/{name}" for name in ["density", *OF_NETWORK]}
        for name in ["density", *OF_NETWORK]:
            assert found[f"rounds/{name}"] == list(zip(rows["round"], np.float32(rows[name]), strict=True))
    for row in table.itertuples():
        name = f"replicate-{row.replicate}/round-{row.round:02d}/{row.branch}"
        stored = store.round_path(run, row.replicate, row.round, row.branch)
        measured = set(pd.read_csv(stored / "metrics.csv")["split"]) & set(splits)
        assert measured
        wanted |= {name, *(f"{name}/{split}" for split in measured)}
        for split in measured:
            assert read(begin / name / split) == expected_curves(stored, split)
        assert read(begin / name) == {
            f"trained/{key}": [(row.round, np.float32(getattr(row, key)))] for key in OF_NETWORK
        }
    assert written == wanted


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A run that was stopped in its second round and went on: the run, and what was there in between."""
    out, events = tmp_path_factory.mktemp("runs"), []

    def stop(event):
        events.append(event)
        if isinstance(event, progress.Evaluated) and event.round == 1 and event.row[:2] == (20, "validation"):
            raise Killed

    with pytest.raises(Killed):
        lottery.run(TINY, out=out, on_event=stop)
    (path,) = out.iterdir()
    between = {one.relative_to(path).as_posix(): checksum(one) for one in path.rglob("*tfevents*")}
    readers = kept_open(path / tensorboard.FOLDER)
    half = [read(path / tensorboard.FOLDER / "replicate-1" / "round-01" / "ticket" / "validation") for read in readers]
    run = lottery.run(TINY, out=out, on_event=events.append)
    return run, between, half, readers, events


def test_a_run_that_was_interrupted_has_every_step_once(interrupted):
    run, between, _, _, _ = interrupted
    is_right(run.path, ("train", "validation", "test"))
    is_right(run.path, ("train", "validation", "test"), as_the_fast_reader)
    # Somebody may be reading what was written.
    assert len(between) == 1 + 4 + 3 and between == {name: checksum(run.path / name) for name in between}
    # It is added to only where something was missing.
    added = {path.relative_to(run.path).as_posix() for path in run.path.rglob("*tfevents*")} - between.keys()
    assert not [name for name in added if "round-00" in name or name.count("/") == 1]


def test_a_tensorboard_that_is_open_over_the_restart_shows_every_step_once(interrupted):
    run, _, half, readers, _ = interrupted
    for one, read in zip(half, readers, strict=True):
        assert [step for step, _ in one["steps/loss"]] == [0, 10, 20]
        is_right(run.path, ("train", "validation", "test"), read)


def test_each_row_is_told_as_it_is_stored(interrupted):
    run, *_, events = interrupted
    rows = [event for event in events if isinstance(event, progress.Evaluated)]
    for row in run.table().itertuples():
        told = [one for one in rows if (one.replicate, one.round, one.branch) == (row.replicate, row.round, row.branch)]
        last = max(place for place, one in enumerate(told) if one.first)
        file = store.round_path(run.path, row.replicate, row.round, row.branch) / "metrics.csv"
        _, *lines = csv.reader(file.read_text().splitlines())
        stored = [(int(step), split, float(loss), float(accuracy)) for step, split, loss, accuracy in lines]
        assert sorted(one.row for one in told[last:]) == sorted(stored)
        assert sum(one.first for one in told) == (2 if (row.round, row.branch) == (1, "ticket") else 1)


def test_the_hyper_parameters_tell_networks_apart(interrupted):
    run = interrupted[0]
    begin = run.path / tensorboard.FOLDER
    for row in run.table().itertuples():
        found = loaded(begin / f"replicate-{row.replicate}" / f"round-{row.round:02d}" / row.branch)
        content = found.SummaryMetadata(metadata.SESSION_START_INFO_TAG).plugin_data.content
        begun = metadata.parse_session_start_info_plugin_data(content)
        values = begun.hparams
        assert values["density"].number_value == row.density and values["round"].number_value == row.round
        assert values["branch"].string_value == row.branch and values["replicate"].number_value == row.replicate
        assert values["train.num_steps"].number_value == 30 and values["data.name"].string_value == "digits"
        assert values["train.learning_rate"].string_value == "0.01"
        assert metadata.SESSION_END_INFO_TAG in found.PluginTagToContent("hparams")
        content = found.SummaryMetadata(metadata.EXPERIMENT_TAG).plugin_data.content
        experiment = metadata.parse_experiment_plugin_data(content)
        assert {one.name for one in experiment.hparam_infos} == set(values)
        assert {one.name.tag for one in experiment.metric_infos} == {f"trained/{name}" for name in OF_NETWORK}


def test_a_finished_run_is_written_afterwards_and_once(small_run, tmp_path, monkeypatch):
    # A name that no checksum spells by chance: two letters, as of a machine called "vm", are soon among random bytes.
    host = "the-name-of-this-machine"
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    copy = tmp_path / small_run.path.name
    shutil.copytree(small_run.path, copy, ignore=shutil.ignore_patterns(tensorboard.FOLDER))
    write(copy)
    is_right(copy)
    before = {path: checksum(path) for path in copy.rglob("*tfevents*")}
    write(copy)
    assert len(before) == 8 * 3 + 2 and before == {path: checksum(path) for path in copy.rglob("*tfevents*")}
    # Nothing but what is said says where it was made.
    assert all(re.fullmatch(r"events\.out\.tfevents\.\d+", path.name) for path in before)
    assert not [path for path in before if host.encode() in path.read_bytes()]


def test_what_a_killed_writer_left_is_mended(small_run, tmp_path):
    """The end of a file is cut within a record, as by a kill; an open TensorBoard waits there for the rest of it."""
    copy = tmp_path / small_run.path.name
    shutil.copytree(small_run.path, copy)
    place = copy / tensorboard.FOLDER / "replicate-2"
    (whole,) = (place / "round-03" / "ticket").glob("*tfevents*")
    whole.unlink()
    for name in ("rounds/ticket", "round-03/ticket/validation"):
        path = max((place / name).glob("*tfevents*"))
        path.write_bytes(path.read_bytes()[:-5])
    readers = kept_open(copy / tensorboard.FOLDER)
    assert [[step for step, _ in read(place / "rounds/ticket")["rounds/seconds"]] for read in readers] == [
        [0, 1, 2]
    ] * 2
    write(copy)
    for read in (scalars, as_the_fast_reader, *readers):
        is_right(copy, read=read)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.dictionaries(st.integers(0, 5), st.sampled_from([0.25, 0.5]), min_size=1), min_size=1, max_size=6))
@example([{1: 0.5, 3: 0.5}, {2: 0.25}, {0: 0.5, 1: 0.5}])
def test_all_readers_drop_what_is_written_again(tmp_path_factory, small_run, written):
    """Rounds that come, change, or come late before others."""
    place = tmp_path_factory.mktemp("events") / "of"
    board = tensorboard._Board(small_run.path, small_run.experiment)
    readers, shown = kept_open(place.parent), {}
    for values in written:
        first = min(values)
        with board._writer(place, first) as writer:
            for step in sorted(values):
                writer.add_scalar("x", values[step], step)
        shown = {step: value for step, value in shown.items() if step < first} | values
        for read in (scalars, as_the_fast_reader, *readers):
            assert read(place) == {"x": sorted(shown.items())}


def test_a_network_may_begin_anew_in_the_same_session(small_run, tmp_path):
    place = tmp_path / tensorboard.FOLDER / "replicate-1" / "round-00" / "ticket"
    (tmp_path / "experiment.toml").write_bytes((small_run.path / "experiment.toml").read_bytes())
    readers = []

    def shows(validation, train, reading):
        """Events are in their files a moment later; see `tensorboard.FLUSH`."""
        for read in reading:
            until = time.monotonic() + 20
            while True:
                found = [read(place / split).get("steps/loss", []) for split in ("validation", "train")]
                found = [[step for step, _ in points] for points in found]
                if found == [validation, train] or time.monotonic() > until:
                    break
                time.sleep(0.05)
            assert found == [validation, train]

    with tensorboard.observing(tmp_path, small_run.experiment) as report:
        for steps in ([0, 10, 20], [0, 10]):
            report(progress.Evaluated(Path(), 1, 0, "ticket", (0, "validation", 1.0, 0.5), True))
            shows([0], [], readers)  # nothing of before is left
            for step in steps[1:]:
                for split in ("train", "validation"):
                    report(progress.Evaluated(Path(), 1, 0, "ticket", (step, split, 1.0, 0.5), False))
            readers = readers or kept_open(tmp_path / tensorboard.FOLDER)
            shows(steps, steps[1:], (scalars, as_the_fast_reader, *readers))


def test_a_branch_of_an_earlier_round_may_come_after_that_of_a_later_one(small_run, tmp_path):
    copy = tmp_path / small_run.path.name
    shutil.copytree(small_run.path, copy)
    place = copy / tensorboard.FOLDER / "replicate-1" / "rounds" / "shuffled_mask"
    readers, steps = kept_open(copy / tensorboard.FOLDER), set()
    for session in ((3,), (1, 2), (0,)):
        with tensorboard.observing(copy, small_run.experiment) as report:
            for index in session:
                ticket, folder = (store.round_path(copy, 1, index, one) for one in (store.TICKET, "shuffled_mask"))
                shutil.copytree(ticket, folder, ignore=shutil.ignore_patterns("branch-*"))
                record = store.read_record(ticket) | {"branch": "shuffled_mask"}
                record["record_sha256"] = store._digest_of(record)
                lottery.files.write_json(folder / "round.json", record)
                report(progress.Done(None, record))
                steps.add(index)
                for read in (scalars, as_the_fast_reader, *readers):
                    assert [step for step, _ in read(place)["rounds/density"]] == sorted(steps)


def test_a_run_that_is_complete_is_completed_for_tensorboard(interrupted, tmp_path):
    """It was run without, or was killed after its last round was stored and before that was written."""
    copy, told = tmp_path / interrupted[0].path.name, []
    shutil.copytree(interrupted[0].path, copy, ignore=shutil.ignore_patterns(tensorboard.FOLDER))
    lottery.run(TINY, out=tmp_path, on_event=told.append, tensorboard=False)
    assert not (copy / tensorboard.FOLDER).exists()
    lottery.run(TINY, out=tmp_path, on_event=told.append)
    is_right(copy, ("train", "validation", "test"))
    for path in (copy / tensorboard.FOLDER / "replicate-1" / "round-02" / "random_mask").glob("*tfevents*"):
        path.unlink()
    shutil.rmtree(copy / tensorboard.FOLDER / "replicate-1" / "rounds" / "random_mask")
    lottery.run(TINY, out=tmp_path, on_event=told.append)
    is_right(copy, ("train", "validation", "test"))
    assert [one.text for one in told] == [f"{copy} is complete."] * 3
    shutil.rmtree(copy / tensorboard.FOLDER)
    (copy / tensorboard.FOLDER).write_text("in the way")
    lottery.run(TINY, out=tmp_path, on_event=told.append)
    assert len(told) == 5 and "TensorBoard" in told[3].text and told[4] == told[0]


def test_the_test_set_is_a_curve_only_where_it_is_measured_each_time(small_run, interrupted, tmp_path):
    is_right(small_run.path)
    shutil.copytree(interrupted[0].path, tmp_path / "run", ignore=shutil.ignore_patterns(tensorboard.FOLDER))
    write(tmp_path / "run")
    is_right(tmp_path / "run", ("train", "validation", "test"))
    found = scalars(tmp_path / "run" / tensorboard.FOLDER / "replicate-1" / "round-00" / "ticket" / "test")
    assert [step for step, _ in found["steps/loss"]] == [0, 10, 20, 30]


def test_an_accuracy_that_is_not_measured_is_left_out(small_run, tmp_path):
    shutil.copytree(small_run.path, tmp_path / "run", ignore=shutil.ignore_patterns("replicate-2", tensorboard.FOLDER))
    folder = store.round_path(tmp_path / "run", 1, 0)
    record = store.read_record(folder)
    for key in ("early_stop_test_accuracy", "final_test_accuracy"):
        record[key] = None
    rows = [
        (0, "validation", 1.5, float("nan")),
        (5, "train", 1.25, float("nan")),
        (5, "validation", 0.5, float("nan")),
    ]
    arrays = lottery.files.read_arrays(folder / "weights.safetensors")
    kept = lottery.files.read_masks(folder / "masks.safetensors")
    store.write_round(folder, kept, arrays, rows, {key: value for key, value in record.items() if "sha256" not in key})
    write(tmp_path / "run")
    place = tmp_path / "run" / tensorboard.FOLDER / "replicate-1"
    assert scalars(place / "round-00" / "ticket" / "validation") == {"steps/loss": [(0, 1.5), (5, 0.5)]}
    assert [step for step, _ in scalars(place / "rounds" / "ticket")["rounds/final_test_accuracy"]] == [1, 2, 3]


def test_what_goes_wrong_is_one_note_and_the_run_goes_on(small_run, tmp_path):
    """A file where the folder should be stands for a disk that takes nothing more."""
    copy = tmp_path / small_run.path.name
    shutil.copytree(small_run.path, copy, ignore=shutil.ignore_patterns(tensorboard.FOLDER))
    (copy / tensorboard.FOLDER).write_text("in the way")
    told = []
    record = store.read_record(store.round_path(copy, 1, 0))
    rest = [progress.Evaluated(Path(), 1, 0, "ticket", (0, "validation", 1.0, 0.5), True), progress.Done(None, record)]
    with tensorboard.observing(copy, small_run.experiment, told.append) as report:
        for event in rest:
            report(event)
    assert [type(event) for event in told] == [progress.Note, progress.Evaluated, progress.Done] and told[1:] == rest
    assert "TensorBoard" in told[0].text and "cannot be written" in told[0].text and "\n" not in told[0].text
    assert (copy / tensorboard.FOLDER).read_text() == "in the way"


def test_a_disk_that_fills_up_while_points_are_written_is_one_note(small_run, tmp_path, monkeypatch):
    """tensorboardX writes in a thread, and training must not wait for one that has ended."""
    (tmp_path / "experiment.toml").write_bytes((small_run.path / "experiment.toml").read_bytes())
    told, full = [], errno.ENOSPC

    def fail(content):
        raise OSError(full, os.strerror(full))

    monkeypatch.setattr(tensorboard._File, "write", lambda self, content: self._attempt(fail, content))
    with tensorboard.observing(tmp_path, small_run.experiment, told.append) as report:
        for step in range(3000):
            report(progress.Evaluated(Path(), 1, 0, "ticket", (step, "validation", 1.0, 0.5), step == 0))
    (note,) = [event for event in told if isinstance(event, progress.Note)]
    assert "Nothing more is written for TensorBoard" in note.text and "the disk is full" in note.text


def test_it_may_be_left_out(tmp_path):
    def stop(event):
        if isinstance(event, progress.Evaluated):
            raise Killed

    with pytest.raises(Killed):
        lottery.run(TINY, out=tmp_path, on_event=stop, tensorboard=False)
    (path,) = tmp_path.iterdir()
    assert not (path / tensorboard.FOLDER).exists()


def test_writing_needs_no_tensorflow(small_run, tmp_path):
    shutil.copytree(small_run.path, tmp_path / "run", ignore=shutil.ignore_patterns("replicate-2", tensorboard.FOLDER))
    code = (
        "import sys, pathlib; from tests.pipeline.test_tensorboard import write; write(pathlib.Path(sys.argv[1]));"
        "assert not {'tensorflow', 'keras', 'tf_keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=True)
    is_right(tmp_path / "run")
