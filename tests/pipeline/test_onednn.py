"""oneDNN is chosen before TensorFlow is imported, recorded, and kept; what the user has set is never touched."""

import json
import os
import shutil
import subprocess
import sys

import pytest

import lottery
from lottery import config
from lottery.models import networks
from lottery.pipeline import onednn
from lottery.runs import store
from lottery.runs.stored import StoredRound
from tests.conftest import SMALL, quietly
from tests.scripts import forging

CONV = {
    "name": "conv",
    "data": {"name": "digits", "validation": 137},
    "model": {"name": "conv_2"},  # is traced in half the time of the smallest ResNet
    "train": {
        "num_steps": 6,
        "eval_every": 3,
        "batch_size": 32,
        "optimizer": "sgd",
        "learning_rate": 1e-2,
        "engine": "compiled",
    },
    "prune": {"num_rounds": 1},
    "run": {"num_replicates": 1},
}


@pytest.fixture
def before_the_import(monkeypatch):
    """A process of a machine that was measured, which has not imported TensorFlow, and whose user has decided nothing."""
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    for name in (onednn.VARIABLE, onednn.OURS):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)


def chosen():
    return os.environ.get(onednn.VARIABLE)


@pytest.mark.parametrize("name", ["lenet_300_100", "resnet_20", "package.module:function", "given"])
def test_a_new_run_turns_it_on_where_it_was_measured_to_gain(name, before_the_import):
    onednn.begin({}, [name])
    assert chosen() == ("1" if name == "resnet_20" else None)


def test_a_fact_of_a_network_stands_in_its_record():
    assert networks.built_in("resnet_56").gains_by_onednn == networks.MODELS["resnet_20"].gains_by_onednn
    assert networks.built_in("lenet_300_100").most_threads == 2
    assert networks.built_in("resnet_9") is None


def test_a_sweep_turns_it_on_if_any_of_its_networks_gains(before_the_import):
    onednn.begin({}, ["lenet_300_100", "resnet_20"])
    assert chosen() == "1"


def test_another_kind_of_processor_is_left_alone(before_the_import, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    onednn.begin({}, ["resnet_20"])
    assert chosen() is None


@pytest.mark.parametrize("recorded, wanted", [(True, "1"), (False, "0"), (None, None)])
def test_a_stored_run_keeps_what_it_began_with(recorded, wanted, before_the_import):
    stored = {"num_threads": 1} | ({} if recorded is None else {"onednn": recorded})
    onednn.begin({}, ["resnet_20"])  # as another run would choose
    onednn.begin(stored, ["resnet_20"])
    assert chosen() == wanted


@pytest.mark.parametrize("value", ["0", "1", "true"])
def test_what_the_user_has_set_is_not_touched(value, before_the_import, monkeypatch):
    monkeypatch.setenv(onednn.VARIABLE, value)
    for recorded in {}, {"onednn": True}, {"onednn": False}, {"num_threads": 1}:
        onednn.begin(recorded, ["resnet_20"])
        assert chosen() == value and onednn.OURS not in os.environ


def test_what_lottery_has_set_is_no_decision_of_the_users_for_a_worker_process(before_the_import):
    onednn.begin({}, ["resnet_20"])
    onednn.begin({"onednn": False})  # a process that inherits the variables, for another run
    assert chosen() == "0"


def test_after_the_import_nothing_changes(before_the_import, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", os)
    onednn.begin({}, ["resnet_20"])
    assert chosen() is None


def test_it_is_recorded(small_run):
    assert store.read_environment(small_run.path)["onednn"] is onednn.is_on()


def half_done(small_run, tmp_path, **changes):
    """Copy a run without its last network, with other entries in its environment."""
    path = forging.copied(small_run.path, tmp_path / small_run.path.name, **changes)
    shutil.rmtree(path / "replicate-2" / "round-03")
    return path


def notes_of(tmp_path):
    notes = []
    lottery.run(SMALL, out=tmp_path, on_event=lambda event: notes.append(getattr(event, "text", "")))
    return [note for note in notes if "oneDNN" in note]


def test_a_resumed_run_says_that_it_cannot_keep_it(small_run, tmp_path, monkeypatch):
    monkeypatch.delenv(onednn.VARIABLE, raising=False)
    path = half_done(small_run, tmp_path, onednn=not onednn.is_on())
    before, now = (onednn.WORDS[value] for value in (not onednn.is_on(), onednn.is_on()))
    assert notes_of(tmp_path) == [
        f"The run started with oneDNN {before} and goes on with it {now}, so bits may differ: TensorFlow was "
        "already imported with this setting; use a new process to keep the setting of the run."
    ]
    assert store.read_environment(path)["onednn"] is not onednn.is_on()  # of how it began


def test_a_run_of_an_earlier_version_resumes_without_a_word(small_run, tmp_path, monkeypatch):
    monkeypatch.delenv(onednn.OURS, raising=False)
    half_done(small_run, tmp_path, onednn=...)
    assert notes_of(tmp_path) == []


def test_the_sentence_names_the_users_own_variable(monkeypatch):
    monkeypatch.setenv(onednn.VARIABLE, "0")
    monkeypatch.setattr(onednn, "is_on", lambda: False)
    (note,) = onednn.notes({"onednn": True})
    assert note.endswith(
        "bits may differ: TF_ENABLE_ONEDNN_OPTS is set to 0; unset this variable to keep the setting of the run."
    )
    assert onednn.notes({"onednn": False}) == [] == onednn.notes({})


def test_what_lottery_chose_for_another_run_is_not_what_tensorflow_chooses(before_the_import, monkeypatch):
    onednn.begin({}, ["resnet_20"])
    monkeypatch.setattr(onednn, "is_on", lambda: True)
    (note,) = onednn.notes({"num_threads": 1})
    assert note.startswith("The run started with oneDNN as TensorFlow chooses and goes on with it on")


def conv_model(units=64):
    import keras

    return keras.Sequential([keras.Input((8, 8, 1)), keras.layers.Conv2D(units, 3), keras.layers.Flatten()])


def dense_model():
    import keras

    return keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])


@pytest.mark.parametrize(
    "name, build, steps, words",
    [
        ("resnet_20", conv_model, 10**9, "resnet_20 trains faster with oneDNN, but TensorFlow was imported without it"),
        ("given", conv_model, 10**9, "The model has convolutions, which may be faster with oneDNN."),
        ("given", conv_model, 10, ""),
        ("given", dense_model, 10**9, ""),
        ("lenet_300_100", dense_model, 10**9, ""),
    ],
)
def test_a_note_says_how_where_it_would_have_paid(name, build, steps, words, monkeypatch):
    monkeypatch.delenv(onednn.VARIABLE, raising=False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(onednn, "is_on", lambda: False)
    experiment = config.load({"train": {"num_steps": steps}})
    experiment = config.with_values(experiment, "model", {"name": name})
    notes = onednn.advice(experiment, build())
    assert len(notes) == bool(words)
    if notes:
        assert notes[0].startswith(words) and "set TF_ENABLE_ONEDNN_OPTS=1 before Python starts" in notes[0]
    monkeypatch.setenv(onednn.VARIABLE, "0")  # the user knows
    assert onednn.advice(experiment, build()) == []


def test_another_setting_is_another_environment(small_run, monkeypatch):
    from lottery.pipeline import agreement, environment, sweeping

    recorded = store.read_environment(small_run.path)
    other = {**recorded, "onednn": not recorded["onednn"]}
    assert "another setting of oneDNN" in environment.elsewhere(other)
    assert "another setting of oneDNN" not in environment.elsewhere(recorded)
    observed = {"observed": {"num_gpus": 0, "opaque": False}}
    assert agreement.other_environment(other | observed, observed["observed"]) == "another setting of oneDNN"
    experiment = small_run.experiment
    assert sweeping._prefix(experiment, other, 0) != sweeping._prefix(experiment, recorded, 0)


# --- In processes of their own, whose user has decided nothing.

TRAIN = """
import json, sys
import lottery
if __name__ == "__main__":
    assert "tensorflow" not in sys.modules
    tables, out, workers = json.loads(sys.argv[1])
    lottery.run(tables, out=out, workers=workers, on_event=lambda event: print(getattr(event, "text", "")))
"""


def train(tmp_path, tables=CONV, workers=1, **variables):
    """Run an experiment in a new process; return its folder, and what it said."""
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    free = {name: value for name, value in os.environ.items() if name not in (onednn.VARIABLE, onednn.OURS)}
    words = [sys.executable, script, json.dumps([tables, str(tmp_path / "out"), workers])]
    done = subprocess.run(words, env=free | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(path.parent for path in (tmp_path / "out").glob("*/environment.json")), done.stdout


def digests(run):
    return [StoredRound(run, 1, number).record["sha256"] for number in (0, 1)]


def test_with_it_the_same_run_has_the_same_bits(tmp_path):
    """In worker processes, and in another process that goes on with the run."""
    tables = CONV | {"run": {"num_replicates": 2, "num_threads": 2}}
    run, _ = train(tmp_path, tables, workers=2)
    assert store.read_environment(run)["onednn"] is True
    before = digests(run)
    shutil.rmtree(run / "replicate-1" / "round-01")
    _, said = train(tmp_path, tables)
    assert digests(run) == before and "oneDNN" not in said


@pytest.mark.rewritten  # as in the process that goes on with the run
def test_a_run_that_began_with_it_off_stays_off(tmp_path):
    """It begins in this process, unless TensorFlow has turned oneDNN on here."""
    if onednn.is_on():
        run, _ = train(tmp_path, **{onednn.VARIABLE: "0"})
    else:
        run = lottery.run(CONV, out=tmp_path / "out", on_event=quietly).path
    before = digests(run)
    assert store.read_environment(run)["onednn"] is False
    shutil.rmtree(run / "replicate-1" / "round-01")
    _, said = train(tmp_path)
    assert digests(run) == before and "oneDNN" not in said
