"""Ten forgeries with right checksums, and what finds each: numbers computed again, or networks trained again."""

import errno
import os
import re
import shutil
import stat
import subprocess
import sys
import types

import numpy as np
import pytest
from sklearn.datasets import load_digits

import lottery
from lottery import config, progress
from lottery.data import read_npz
from lottery.errors import LotteryError, StorageError
from lottery.pipeline import environment, recomputing, retraining
from lottery.pipeline.network_training import Training
from lottery.pipeline.prepared import Ingredients
from lottery.runs import store, verification
from lottery.runs.stored import StoredRound, stored_rounds
from tests.conftest import SMALL, contents, quietly
from tests.scripts import forge, forging

pytestmark = pytest.mark.usefixtures("traced_once")

BY = {found_by: [made for made in forge.FORGERIES if forge.FORGERIES[made] == found_by] for found_by in
      ("--recompute", "--retrain", "first line")}  # fmt: skip


@pytest.fixture(scope="module")
def run(traced_once, tmp_path_factory):
    return lottery.run(forge.TABLES, out=tmp_path_factory.mktemp("runs"), on_event=quietly)


@pytest.fixture
def forged(run, tmp_path):
    """Copies the run, and forges the copy."""

    def make(change):
        path = shutil.copytree(run.path, tmp_path / run.path.name)
        change(path)
        return path

    return make


def found_plainly(path):
    return [sentence for _, wrong in verification.verify(path) for sentence in wrong]


def found_by_retraining(path, networks=None):
    """What is wrong by the name of a network, of all networks unless some are named."""
    networks = networks or list(stored_rounds(path))
    again = retraining.retrained(path, networks, Ingredients(), progress.silent)
    return {name: wrong for name, wrong in again if wrong}


def test_there_are_ten_forgeries_and_each_is_found_by_something():
    assert len(forge.FORGERIES) == 10 == sum(map(len, BY.values()))


@pytest.mark.parametrize("change", BY["--recompute"], ids=lambda change: change.__name__)
def test_what_computing_again_finds(forged, change):
    path = forged(change)
    assert not found_plainly(path)
    with recomputing.opened(path) as again:
        assert [sentence for _, wrong in verification.verify(path, again) for sentence in wrong]


@pytest.mark.parametrize("change", BY["--retrain"], ids=lambda change: change.__name__)
def test_what_only_training_again_finds_and_the_output_says_that_it_is_not_proved(forged, change):
    path = forged(change)
    with recomputing.opened(path) as again:
        assert not [sentence for _, wrong in verification.verify(path, again) for sentence in wrong]
        assert verification.not_proved(again) == [verification.NOT_PROVED]
    assert found_by_retraining(path)


def test_a_replicate_that_is_gone_makes_a_run_incomplete(forged, lottery_command):
    path = forged(forge.without_a_replicate)
    done = lottery_command("verify", path)
    assert done.stdout.splitlines()[0] == "The run is incomplete: 4 of 8 networks are stored."


def test_networks_trained_again_have_the_same_bytes_and_nothing_is_written(run, lottery_command, monkeypatch):
    before = contents(run.path)
    assert found_by_retraining(run.path) == {}
    assert run.verify(retrain=3) == []
    for wrong in (-1, 1.5):
        with pytest.raises(LotteryError, match=f"retrain must be a whole number from 0, not {wrong}"):
            run.verify(retrain=wrong)
    assert contents(run.path) == before
    monkeypatch.chdir(run.path)
    done = lottery_command("verify", ".", "--retrain", 2)
    assert done.returncode == 0
    assert "2 networks were trained again: all their files have the same bytes." in " ".join(done.stdout.split())


def test_a_copy_of_a_run_can_be_written_to_and_has_what_links_lead_to(tmp_path):
    folder = tmp_path / "run" / "round-00"
    folder.mkdir(parents=True)
    for name in ("round.json", "checkpoint.safetensors", ".round.json-1"):
        (folder / name).write_text(name)
    (folder / "weights.safetensors").symlink_to(folder / "round.json")
    folder.chmod(0o555)  # as of an archive
    retraining._copy(tmp_path / "run", tmp_path / "copy")
    folder.chmod(0o755)
    copied = tmp_path / "copy" / "round-00"
    assert copied.stat().st_mode & stat.S_IWUSR
    assert {path.name for path in copied.iterdir()} == {"round.json", "weights.safetensors"}
    assert not (copied / "weights.safetensors").is_symlink()


def test_a_full_disk_of_temporary_files_is_named(tmp_path, monkeypatch):
    def full(source, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "experiment.toml").write_text("")
    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(StorageError, match="/copy' cannot be written: the disk is full"):
        retraining._copy(tmp_path / "run", tmp_path / "copy")


def test_bytes_are_compared_whatever_number_of_threads_tensorflow_would_take(tmp_path):
    """Both in a process of its own, where no other test has set the number before."""
    file = tmp_path / "forged.toml"
    file.write_text(config.dump(config.load(forge.TABLES)))
    command = [sys.executable, "-m", "lottery"]
    made = subprocess.run([*command, "run", file, "--out", tmp_path], capture_output=True, text=True)
    assert made.returncode == 0, made
    (path,) = tmp_path.glob("forged-*")
    assert store.read_environment(path)["num_threads"] == 1
    forge.predictions(path)
    done = subprocess.run([*command, "verify", path, "--retrain", "8"], capture_output=True, text=True)
    assert done.returncode == 1 and "trained again" in done.stdout, done
    assert "port.cc" not in done.stderr  # TensorFlow's greetings


def test_records_are_compared_with_the_curve_and_with_those_of_networks_trained_again(forged):
    path = forged(lambda path: None)
    stored = StoredRound(path, 1, 2)
    changed = {"final_train_loss": 9.0, "thresholds": dict.fromkeys(stored.record["thresholds"], 123.0)}
    sha256 = {name: value for name, value in stored.record["sha256"].items() if name != "predictions.safetensors"}
    store.write_record(stored.folder / "round.json", {**stored.record, **changed, "sha256": sha256})
    assert found_plainly(path) == ["The record's final train loss and accuracy differ from the curve."]
    (wrong,) = found_by_retraining(path, [StoredRound(path, 1, 2)]).values()
    assert wrong == [
        "Other bytes are in predictions.safetensors.",
        "Its record differs in final_train_loss and thresholds.",
    ]


def test_where_no_accuracy_is_measured_losses_are_compared(monkeypatch):
    monkeypatch.setattr(retraining, "_deviation", lambda stored, key: 0.0)

    def network(loss, accuracy=None):
        measured = {"test_loss": loss, "test_accuracy": accuracy}
        record = {f"{when}_{key}": value for when in ("early_stop", "final") for key, value in measured.items()}
        found = types.SimpleNamespace(record=record)
        found.measured = types.MethodType(StoredRound.measured, found)
        return found

    assert retraining._apart(network(2.0), network(2.19)) == []
    assert len(retraining._apart(network(2.0), network(2.21))) == 2
    assert len(retraining._apart(network(2.0, 0.9), network(2.0))) == 2  # an accuracy that is gone
    assert len(retraining._apart(network(2.0), network(2.0, 0.9))) == 2
    assert len(retraining._apart(network(None), network(2.0))) == 2  # a record that was forged
    assert retraining._apart(network(2.0, 0.9), network(5.0, 0.91)) == []


def test_a_branch_of_a_round_that_is_gone_is_no_stored_network(forged, lottery_command):
    def without_its_round(path):
        branch = next(stored for stored in stored_rounds(path) if stored.branch != store.TICKET)
        (branch.folder.parent / "round.json").unlink()

    done = lottery_command("verify", forged(without_its_round))
    assert done.returncode == 1 and "Its round is missing or incomplete." in done.stdout


def test_an_error_names_the_run_and_not_its_copy(run):
    x, y = load_digits(return_X_y=True)
    data = (x[:1000], y[:1000], x[1000:], y[1000:])
    with pytest.raises(LotteryError, match=re.escape(f"the data of {str(run.path)!r}")):
        list(retraining.retrained(run.path, retraining.chosen(run.path, 1), Ingredients(data=data), quietly))


def test_of_random_numbers_that_nothing_restores_no_network_is_called_wrong(run, monkeypatch):
    loop = types.SimpleNamespace(examined=types.SimpleNamespace(unrepeatable=("RandomUniform",)))
    prepared = types.SimpleNamespace(trainer=types.SimpleNamespace(loop=loop))
    training = Training(run.path, prepared, quietly)
    monkeypatch.setattr(retraining.Worker, "opened", lambda *_: (training, None))
    with pytest.raises(LotteryError, match="cannot be trained again .* random numbers by RandomUniform"):
        list(retraining.retrained(run.path, retraining.chosen(run.path, 1), Ingredients(), quietly))


def test_the_data_may_lie_in_another_file(tmp_path):
    x, y = load_digits(return_X_y=True)
    arrays = {"x_train": x[:500], "y_train": y[:500], "x_test": x[500:800], "y_test": y[500:800]}
    np.savez(tmp_path / "digits.npz", **arrays)
    file = {"name": "npz", "path": str(tmp_path / "digits.npz"), "validation": 100}
    path = lottery.run({**SMALL, "data": file, "run": {"num_replicates": 1}}, out=tmp_path, on_event=quietly).path
    (tmp_path / "digits.npz").rename(tmp_path / "moved.npz")
    with pytest.raises(LotteryError, match="There is no data file"):
        found_by_retraining(path)
    data = tuple(read_npz(tmp_path / "moved.npz").values())
    (found,) = retraining.retrained(path, retraining.chosen(path, 1), Ingredients(data=data), quietly)
    assert found[1] == []
    other = Ingredients(data=(data[0] + 1, *data[1:]))
    with pytest.raises(LotteryError, match="The data differ from the data of"):
        list(retraining.retrained(path, retraining.chosen(path, 1), other, quietly))


def test_on_another_processor_accuracies_are_compared(forged, monkeypatch):
    path = forged(forge.predictions)
    monkeypatch.setattr(environment, "elsewhere", lambda recorded: ["another processor"])
    ticket = [StoredRound(path, 1, 1)]
    assert found_by_retraining(path, ticket) == {}  # four of 360 are less than two points
    forge.more_right(StoredRound(path, 1, 1), -40, "final")
    (wrong,) = found_by_retraining(path, [StoredRound(path, 1, 1)]).values()
    assert len(wrong) == 1 and wrong[0].startswith("The final test accuracy is 0.9")
    assert "because this machine has another processor" in retraining.rule(path, ticket)


def test_networks_that_were_trained_on_another_processor_are_compared_as_on_another(forged, monkeypatch):
    monkeypatch.setattr(recomputing.ties, "ROUNDING", 2.0)  # as if every example were a tie
    path = forged(forge.predictions)
    tickets = [StoredRound(path, replicate, 1) for replicate in (1, 2)]
    for ticket in tickets:
        forging.sign(ticket.folder / "round.json", elsewhere=["another processor"])
    with recomputing.opened(path) as again:
        assert not [sentence for _, wrong in verification.verify(path, again) for sentence in wrong]
    assert any("trained with another processor" in note for note in again.notes)
    assert found_by_retraining(path, [StoredRound(path, 1, 1)]) == {}
    said = retraining.rule(path, tickets)
    assert said.endswith("Bits were not compared of networks that were first trained with another processor.")


def test_as_many_as_there_are_are_chosen_each_once(run):
    networks = retraining.chosen(run.path, 100)
    assert len({stored.labels for stored in networks}) == len(networks) == 8
    assert len(retraining.chosen(run.path, 3)) == 3


def test_one_sided_differences_are_found_though_each_could_be_rounding(run, monkeypatch):
    """As if every example were a tie: a few forged predictions in each network still favour the record."""
    monkeypatch.setattr(environment, "elsewhere", lambda recorded: ["another processor"])
    monkeypatch.setattr(recomputing.ties, "ROUNDING", 2.0)
    with recomputing.opened(run.path) as again:
        assert not [sentence for _, wrong in verification.verify(run.path, again) for sentence in wrong]


def test_one_sided_differences_count_over_the_run(forged, monkeypatch):
    def six_in_each(path):
        for replicate in (1, 2):
            for index in (1, 2):
                forge.more_right(StoredRound(path, replicate, index), 3)
                forge.more_right(StoredRound(path, replicate, index), 3, "final")

    monkeypatch.setattr(environment, "elsewhere", lambda recorded: ["another processor"])
    monkeypatch.setattr(recomputing.ties, "ROUNDING", 2.0)
    path = forged(six_in_each)
    with recomputing.opened(path) as again:
        wrong = {name: each for name, each in verification.verify(path, again) if each}
    assert list(wrong) == ["all networks"]
    assert (
        "of ticket networks that changed between right and wrong, 24 are right only in the record"
        in wrong["all networks"][0]
    )
