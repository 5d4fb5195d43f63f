"""What takes the model and the data to find: forged numbers whose checksums are right."""

import csv
import io
import shutil

import numpy as np
import pytest
from safetensors.numpy import save

import lottery
from lottery import files
from lottery.errors import LotteryError
from lottery.pipeline import building, connecting, recomputing
from lottery.pipeline.prepared import Ingredients
from lottery.pipeline.session import Execution
from lottery.runs import store, verification
from lottery.runs.stored import stored_rounds
from tests.conftest import quietly, toy_arrays
from tests.runs.test_verification import reseal

pytestmark = pytest.mark.usefixtures("traced_once")

TABLES = {
    "name": "again",
    "data": {"name": "digits", "validation": 137},
    # With so large a rate the loss is lowest before the end.
    "train": {"num_steps": 90, "eval_every": 10, "batch_size": 32, "learning_rate": 0.02, "jit_compile": False},
    "prune": {"num_rounds": 2},
    "run": {"num_replicates": 1, "controls": ["random_reinit", "random_mask"], "control_rounds": [2]},
}
TINY = {
    "train": {"num_steps": 30, "eval_every": 15, "batch_size": 20, "jit_compile": False},
    "prune": {"num_rounds": 1},
    "run": {"num_replicates": 1, "controls": ["random_reinit"], "control_rounds": [1]},
}
SIZES = {"validation": 137, "test": 360}
TRANSFER = "transfer-digits-"


@pytest.fixture(scope="module")
def run(traced_once, tmp_path_factory):
    done = lottery.run(TABLES, out=tmp_path_factory.mktemp("runs"), on_event=quietly)
    lottery.branch(done.path, "transfer", [2], {"data": {"name": "digits", "validation": 200}}, on_event=quietly)
    return done


@pytest.fixture
def copy(run, tmp_path):
    path = tmp_path / run.path.name
    shutil.copytree(run.path, path)
    return lottery.load(path)


def folder(run, index, branch=""):
    round_ = store.round_path(run.path, 1, index)
    return next(round_.glob(f"branch-{branch}*")) if branch else round_


def forge(where, when, split, by=4):
    """Report `by` more examples as right, in the record, the curve and the predictions, with checksums that fit."""
    record = store.read_record(where)
    rows = store.read_metrics(where)
    last = max(step for step, *_ in rows)
    step = record["early_stop_step"] if when == "early_stop" else last
    assert record["early_stop_step"] < last, "one evaluation, two names"
    size, key = SIZES[split], f"{when}_{'val' if split == 'validation' else split}_accuracy"
    right = round(record[key] * size) + by
    better = float(np.float32(right / size))
    changed = [(*row[:3], better if row[:2] == (step, split) else row[3]) for row in rows]
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([store.METRICS, *changed])
    contents = {"metrics_csv": table.getvalue().encode()}
    if split == "test" and (where / store.PREDICTIONS).exists():
        predicted = files.read_arrays(where / store.PREDICTIONS)
        (wrong,) = np.nonzero(predicted[when] != predicted["label"])
        predicted[when][wrong[:by]] = predicted["label"][wrong[:by]]
        contents["predictions_safetensors"] = save(predicted)
    reseal(where, {key: better}, **contents)


def sealed_anew(record):
    return {key: value for key, value in record.items() if key != "record_sha256"}


def found(run, **passed):
    """What is wrong, by network, without and with another computation."""
    plain = [sentence for _, wrong in verification.verify(run.path) for sentence in wrong]
    assert plain == [], "checksums and invariants were to hold"
    with recomputing.opened(run.path, Ingredients(**passed)) as again:
        wrong = {name.partition(", ")[2]: each for name, each in verification.verify(run.path, again) if each}
    return wrong, again.notes


def test_a_whole_run_is_computed_again(run, traced_once, lottery_command):
    traced_once.clear()
    assert run.verify(recompute=True) == []
    done = lottery_command("verify", run.path, "--recompute")
    assert done.returncode == 0 and "Computing 7 networks again." in done.stderr
    assert "5 of 5 networks and 2 more are stored; every checksum and every invariant holds." in done.stdout
    text = " ".join(done.stdout.split())
    assert "from the stored weights; every prediction had to be the same. Not proved: " in text
    text = " ".join(lottery_command("verify", run.path).stdout.split())
    assert "The start weights of random_reinit were not made again, which needs the model." in text


def test_forged_numbers_are_found_at_both_steps(copy, lottery_command):
    forge(folder(copy, 1), "early_stop", "test")
    forge(folder(copy, 2), "final", "test", by=1)
    reseal(folder(copy, 2), {"data_sha256": "0" * 64})  # as if it were of other data
    forge(folder(copy, 2, "random_mask"), "early_stop", "validation", by=-2)
    forge(folder(copy, 2, TRANSFER), "final", "test", by=3)
    reseal(folder(copy, 2, "random_reinit"), {"start_sha256": "0" * 64})
    predicted = files.read_arrays(folder(copy, 0) / store.PREDICTIONS)
    (wrong,) = np.nonzero(predicted["final"] != predicted["label"])
    taken = {int(predicted[key][wrong[0]]) for key in ("final", "label")}
    predicted["final"][wrong[0]] = min({*range(10)} - taken)
    reseal(folder(copy, 0), predictions_safetensors=save(predicted))
    wrong, notes = found(copy)
    expected = {
        "round 0": ["1 of 360 final predictions differ when computed again."],
        "round 1": ["The early-stop test accuracy is 0.", "4 of 360 early-stop predictions differ"],
        "round 2": ["The final test accuracy is 0.", "1 of 360 final predictions differ"],
        "round 2, branch random_mask": ["The early-stop validation accuracy is 0."],
        "round 2, branch random_reinit": ["Training did not start from the weights of random_reinit."],
        f"round 2, branch {folder(copy, 2, TRANSFER).name.removeprefix('branch-')}": [
            "The final test accuracy is 0.", "3 of 360 final predictions differ",
        ],
    }  # fmt: skip
    assert wrong.keys() == expected.keys()
    for name, beginnings in expected.items():
        assert len(wrong[name]) == len(beginnings), wrong[name]
        assert all(one.startswith(other) for one, other in zip(wrong[name], beginnings, strict=True)), wrong[name]
    record = store.read_record(folder(copy, 1))
    true = record["early_stop_test_accuracy"] - 4 / 360
    recorded = f"is {true:.6f} when computed again, but {record['early_stop_test_accuracy']:.6f} in the record."
    assert wrong["round 1"][0] == f"The early-stop test accuracy {recorded}"
    assert len(notes) == 1
    done = lottery_command("verify", copy.path, "--recompute")
    assert done.returncode == 1 and "6 of 7 are wrong." in done.stdout
    assert "replicate 1, round 1: The early-stop test accuracy is" in done.stdout


def test_a_run_of_an_earlier_version_on_another_machine(copy, monkeypatch):
    """Files that it lacks are named, and rounding may decide an example only where two outputs are nearly equal."""
    monkeypatch.setattr(building, "initial_state", lambda prepared, replicate: {})
    for stored in stored_rounds(copy.path):
        record = stored.record
        for name in (store.EARLY_STOP, store.PREDICTIONS):
            (stored.folder / name).unlink()
            del record["sha256"][name]
        store.write_record(stored.folder / "round.json", sealed_anew(record))
    forge(folder(copy, 0), "early_stop", "test")
    forge(folder(copy, 1), "final", "test", by=1)
    forge(folder(copy, 2), "final", "test", by=5)
    about = store.read_environment(copy.path)
    store.write_record(copy.path / "environment.json", sealed_anew({**about, "processor": "another"}))
    wrong, notes = found(copy)
    assert list(wrong) == ["round 1", "round 2"]
    assert all(each[0].startswith("The final test accuracy is 0.") for each in wrong.values())
    rule = "where the two highest outputs agree to 0.003 %, because this machine has another processor."
    assert rule in notes[0]
    assert notes[1] == "This machine draws other initial weights than the run's, so none were compared."
    assert "no early_stop.safetensors, because an earlier version stored them" in notes[2] and len(notes) == 3


def test_initial_weights_are_drawn_again(copy, monkeypatch):
    drawn = building.initial_state

    def others(prepared, replicate):
        return {name: value + 1 for name, value in drawn(prepared, replicate).items()}

    monkeypatch.setattr(building, "initial_state", others)
    wrong, _ = found(copy)
    assert wrong == {"round 0": ["The initial weights differ from those that the seed gives."]}


def test_siblings_are_computed_again(copy):
    connecting.connect(copy.path, [2], execution=Execution(on_event=quietly))
    (sibling,) = (copy.path / "connectivity").glob("replicate-1/round-02/branch-*")
    forge(sibling, "final", "test")
    sentences = [one for one in copy.verify(recompute=True) if ", network step 0 order 2: " in one]
    assert [one.partition(": ")[2][:27] for one in sentences] == [
        "The final test accuracy is ",
        "4 of 360 final predictions ",
    ]


def network(library, **last):
    layers = library.layers
    return library.Sequential([library.Input((6,)), layers.Dense(8, "relu"), layers.Dense(3, **last)])


LONG = [pytest.param(mode, marks=pytest.mark.long) for mode in ("tfmot", "mixed_bfloat16")]


@pytest.mark.parametrize("mode", ["reparameterization", "given", *LONG])
def test_models_of_ones_own_are_passed_again(mode, traced_once, tmp_path):
    import keras
    import tf_keras

    from lottery.enforcement import constraint

    arrays, changed, options = toy_arrays(np.random.default_rng(3)), {"data": {"validation": 40}}, {}
    if mode == "mixed_bfloat16":
        changed["train"] = {"precision": mode}
    elif mode == "given":
        options["enforcement"] = lambda model, kept: constraint(model, kept)
    else:
        changed["run"] = {"enforcement": mode}
    library = tf_keras if mode == "tfmot" else keras
    build = lambda: network(library, dtype="float32") if mode == "mixed_bfloat16" else network(library)  # noqa: E731
    done = lottery.run(TINY, changed, model=build, data=arrays, out=tmp_path, on_event=quietly, **options)
    traced_once.clear()
    assert done.verify(recompute=True, model=build, data=arrays) == []
    if mode != "given":
        return
    with pytest.raises(LotteryError, match="pass them again, in Python"):
        done.verify(recompute=True)
    with pytest.raises(LotteryError, match="pass it again, in Python"):
        done.verify(recompute=True, data=arrays)
    with pytest.raises(LotteryError, match="The data differ from the data of"):
        done.verify(recompute=True, model=build, data=toy_arrays(np.random.default_rng(4)))
    with pytest.raises(LotteryError, match="began with another model or function"):
        done.verify(recompute=True, model=lambda: network(keras, activation="softmax"), data=arrays)


def test_data_that_are_not_found_are_one_sentence(tmp_path, lottery_command):
    keys = ("x_train", "y_train", "x_test", "y_test")
    paths = [tmp_path / name for name in ("mine.npz", "moved.npz", "other.npz")]
    for path, seed in zip(paths, (3, 3, 4), strict=True):
        np.savez(path, **dict(zip(keys, toy_arrays(np.random.default_rng(seed)), strict=True)))
    source = {"data": {"name": "npz", "path": str(paths[0]), "validation": 40}}
    done = lottery.run(TINY, source, out=tmp_path / "runs", on_event=quietly)
    paths[0].unlink()
    refused = lottery_command("verify", done.path, "--recompute")
    assert refused.returncode == 2 and "There is no data file" in refused.stderr
    assert lottery_command("verify", done.path, "--recompute", "--data", paths[1]).returncode == 0
    refused = lottery_command("verify", done.path, "--recompute", "--data", paths[2])
    assert refused.returncode == 2 and "The data differ from the data of" in refused.stderr
    assert (
        "--data is for --recompute and --retrain only"
        in lottery_command("verify", done.path, "--data", paths[1]).stderr
    )
    ticket = done.ticket(round=1).save(tmp_path / "ticket.safetensors")
    refused = lottery_command("verify", ticket, "--recompute")
    assert refused.returncode == 2 and "need the folder of a run" in refused.stderr
