import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from lottery import config, files, masks, weights
from lottery.errors import LotteryError
from lottery.runs import store, verification
from tests.conftest import checksum
from tests.scripts import forging

CORPUS = Path(__file__).parents[1] / "scripts" / "corpus" / "run"


def wrong_after(run, tmp_path, damage):
    """Copy a run, damage round 2 of replicate 1, and list what is found, by round."""
    copy = tmp_path / run.path.name
    shutil.copytree(run.path, copy)
    damage(store.round_path(copy, 1, 2))
    return {name: wrong for name, wrong in verification.verify(copy) if wrong}


def reseal(folder, changes=None, **contents):
    """Change a round and make its checksums right again, as somebody who means it would."""
    record = store.read_record(folder) | (changes or {})
    for name, content in contents.items():
        stem, _, ending = name.rpartition("_")
        files.write(folder / f"{stem}.{ending}", content)
    record["sha256"] = {name: checksum(folder / name) for name in record["sha256"]}
    record["record_sha256"] = store._digest_of(record)
    files.write_json(folder / "round.json", record)


def change_masks(change):
    def damage(folder):
        kept = files.read_masks(folder / "masks.safetensors")
        change(kept["dense/kernel"])
        reseal(folder, masks_safetensors=files.pack_masks(kept))

    return damage


def one_more(mask):
    mask.flat[np.flatnonzero(~mask)[0]] = True


def swap(mask):
    mask.flat[np.flatnonzero(~mask)[0]], mask.flat[np.flatnonzero(mask)[-1]] = True, False


def one_weight(folder):
    kept = files.read_masks(folder / "masks.safetensors")["dense/kernel"]
    trained = files.read_arrays(folder / "weights.safetensors")
    trained["dense/kernel"].flat[np.flatnonzero(~kept)[7]] = 1e-30
    reseal(folder, weights_safetensors=save(trained))


def one_weight_at_the_early_stop(folder):
    kept = files.read_masks(folder / "masks.safetensors")["dense/kernel"]
    there = files.read_arrays(folder / "early_stop.safetensors")
    there["dense/kernel"].flat[np.flatnonzero(~kept)[7]] = 1e-30
    reseal(folder, early_stop_safetensors=save(there))


def one_prediction(when):
    def damage(folder):
        predicted = files.read_arrays(folder / "predictions.safetensors")
        (wrong,) = np.nonzero(predicted[when] != predicted["label"])
        predicted[when][wrong[0]] = predicted["label"][wrong[0]]
        reseal(folder, predictions_safetensors=save(predicted))

    return damage


def another_start(folder):
    start = files.read_arrays(folder.parent / "initial.safetensors")
    start["dense/bias"][3] += 1
    kept = files.read_masks(folder / "masks.safetensors")
    reseal(folder, {"start_sha256": weights.fingerprint(masks.apply(start, kept))})


def flip(name):
    def damage(folder):
        content = bytearray((folder / name).read_bytes())
        content[-5] ^= 1
        (folder / name).write_bytes(content)

    return damage


def truncate(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-9])


def without_test_rows(folder):
    rows = [row for row in store.read_metrics(folder) if row[1] != "test"]
    reseal(folder, metrics_csv=store.pack_rows([store.METRICS, *rows]))


def edited(folder):
    text = (folder / "round.json").read_text()
    (folder / "round.json").write_text(
        text.replace('"early_stop_test_accuracy": 0.9', '"early_stop_test_accuracy": 0.8')
    )


DAMAGES = {
    "one mask entry too many": (change_masks(one_more), "keeps 12289 entries, the schedule says 12288"),
    "another entry pruned": (change_masks(swap), "differ from those that pruning the round before gives"),
    "a pruned weight came back": (change_masks(swap), "pruned entry has come back|differ from those that pruning"),
    "a masked weight that is not zero": (one_weight, "1 masked entries that are not zero"),
    "another start": (another_start, "did not start from the start weights"),
    "a bit of the masks": (flip("masks.safetensors"), r"masks\.safetensors.*checksum"),
    "a bit of the weights": (flip("weights.safetensors"), r"weights\.safetensors.*checksum"),
    "a bit of the weights at the early stop": (flip("early_stop.safetensors"), r"early_stop\.safetensors.*checksum"),
    "a bit of the predictions": (flip("predictions.safetensors"), r"predictions\.safetensors.*checksum"),
    "a masked weight that is not zero at the early stop": (
        one_weight_at_the_early_stop,
        "1 masked entries that are not zero at the early-stop step",
    ),
    "a prediction at the early stop": (
        one_prediction("early_stop"),
        "early_stop predictions give .* the record has 0.9",
    ),
    "a prediction at the end": (
        one_prediction("final"),
        "final predictions give a test accuracy of .* the record has 0.9",
    ),
    "a bit of the metrics": (flip("metrics.csv"), r"metrics\.csv.*checksum"),
    "weights cut short": (truncate("weights.safetensors"), r"weights\.safetensors"),
    "a better accuracy": (
        lambda folder: reseal(folder, {"early_stop_test_accuracy": 1.0}),
        "accuracy differ from the curve",
    ),
    "another early stop": (lambda folder: reseal(folder, {"early_stop_step": 0}), "the curve has its minimum at"),
    "no loss of the dense network": (
        lambda folder: reseal(folder.with_name("round-00"), {"early_stop_val_loss": None}),
        "It reaches the lowest loss of dense at step",
    ),
    "no step that reaches the loss of the dense network": (
        lambda folder: reseal(folder, {"dense_loss_step": None}),
        "It reaches the lowest loss of dense at step None in the record",
    ),
    "no test rows in the curve": (without_test_rows, "The record's early_stop test loss and accuracy differ"),
    "a layer that is said to be gone": (
        lambda folder: reseal(folder, {"collapsed": ["dense/kernel"]}),
        "counts differ from the masks' counts",
    ),
    "another number of weights": (
        lambda folder: reseal(folder, {"num_weights": 999_999}),
        "counts differ from the masks' counts",
    ),
    "an edited record": (edited, r"round\.json.*checksum"),
    "a round that is missing": (lambda folder: (folder / "round.json").unlink(), None),
    "a record cut short": (truncate("round.json"), r"round\.json.*damaged"),
    "masks removed": (lambda folder: (folder / "masks.safetensors").unlink(), r"masks\.safetensors.*cannot be read"),
}


def test_a_whole_run_verifies(small_run):
    found = list(verification.verify(small_run.path))
    assert len(found) == 8 and all(wrong == [] for _, wrong in found)


@pytest.mark.parametrize("name", DAMAGES)
def test_every_planted_damage_is_found(small_run, tmp_path, name):
    import re

    damage, message = DAMAGES[name]
    found = wrong_after(small_run, tmp_path, damage)
    if message is None:
        assert found == {"replicate 1, round-03": ["A round before it is missing or incomplete."]}
        return
    assert any(re.search(message, sentence) for sentence in found["replicate 1, round 2"]), found
    assert not any(one.startswith("replicate 2") for one in found)


@pytest.mark.parametrize("name", ["round-1", "round-", "round-copy", "round-01 (copy)"])
def test_a_folder_that_no_round_has_is_found(small_run, tmp_path, name):
    def damage(folder):
        shutil.copytree(folder, folder.with_name(name))

    sentence = "No round has a folder of this name; remove it, or give it its name back."
    assert wrong_after(small_run, tmp_path, damage) == {f"replicate 1, {name}": [sentence]}


@pytest.mark.parametrize("name", ["replicate-7", "replicate-01", "replicate-1 (copy)"])
def test_a_folder_that_no_replicate_has_is_found(tmp_path, name):
    shutil.copytree(CORPUS, tmp_path / "run")
    shutil.copytree(CORPUS / "replicate-1", tmp_path / "run" / name)
    wrong = {name: sentences for name, sentences in verification.verify(tmp_path / "run") if sentences}
    assert wrong == {name: ["The experiment has no such replicate; remove its folder."]}


def copied(folder):
    shutil.copytree(folder, folder.with_name("round-02 (copy)"))


def of_a_later_version(folder):
    record = files.read_json(folder / "round.json") | {"format": 2}
    files.write_json(folder / "round.json", record)


def cut_off(folder):
    (folder / "weights.safetensors").write_bytes(b"cut off")


def without_masks(folder):
    (folder / "masks.safetensors").unlink()


@pytest.mark.parametrize(
    ("damage", "advice"),
    [
        (copied, "belongs to replicate 1, round 2, branch .*; remove its folder, or move it back\\.$"),
        (of_a_later_version, "reads 1; install the version that wrote it\\.$"),
        (cut_off, "; delete '.*round-02' and the rounds after it to train them again\\.$"),
        (without_masks, "; delete '.*round-02' and the rounds after it to train them again\\.$"),
    ],
)
def test_only_what_is_damaged_is_to_be_deleted(small_run, tmp_path, damage, advice):
    copy = tmp_path / "copy; of a run"
    shutil.copytree(small_run.path, copy)
    damage(store.round_path(copy, 1, 2))
    with pytest.raises(LotteryError, match=advice):
        verification.refuse_damaged(copy, store.read_experiment(copy))


def test_a_round_that_is_stored_meanwhile_is_not_wrong(small_run, tmp_path, monkeypatch):
    copy = tmp_path / "copy"
    shutil.copytree(small_run.path, copy)
    last = store.round_path(copy, 1, 3)
    last.rename(tmp_path / "in training")

    complete_rounds = store.complete_rounds

    def listed_just_before(run, replicate):
        found = complete_rounds(run, replicate)
        if not last.exists():
            (tmp_path / "in training").rename(last)
        return found

    monkeypatch.setattr(store, "complete_rounds", listed_just_before)
    assert not [wrong for _, wrong in verification.verify(copy) if wrong]


@pytest.mark.parametrize("damage", [cut_off, without_masks])
def test_of_a_damaged_branch_no_round_is_to_be_deleted(small_run, tmp_path, damage):
    shutil.copytree(small_run.path, tmp_path / "copy")
    folder = store.round_path(tmp_path / "copy", 1, 2, "own")
    shutil.copytree(store.round_path(small_run.path, 1, 2), folder)
    store.write_record(folder / "round.json", files.read_json(folder / "round.json") | {"branch": "own"})
    damage(folder)
    with pytest.raises(LotteryError, match=r"(damaged|cannot be read): .*; delete '.*branch-own' to train it again\.$"):
        verification.refuse_damaged(tmp_path / "copy", store.read_experiment(tmp_path / "copy"))


@pytest.mark.parametrize("changes", [{"first_step": 0}, {"last_step": 50}])
def test_a_branch_of_fewer_steps_is_found(tmp_path, changes):
    shutil.copytree(CORPUS, tmp_path / "copy")
    forging.sign(store.round_path(tmp_path / "copy", 1, 2, "random_mask") / "round.json", **changes)
    found = dict(verification.verify(tmp_path / "copy"))
    assert "Its steps are not the steps of random_mask." in found["replicate 1, round 2, branch random_mask"]


def test_replicates_that_start_alike_need_not_follow_each_other(tmp_path):
    for replicate, content in enumerate((b"one", b"another", b"one"), start=1):
        files.write(store.start_path(tmp_path, replicate), content)
    experiment = config.load({"run": {"num_replicates": 4}})
    assert verification.same_starts(tmp_path, experiment) == [3]


def test_names_of_folders_are_printed_without_commands_for_the_terminal(lottery_command, small_run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(small_run.path, copy)
    for name in ("round-\x1b[2J", "round-x/branch-\x1b[2J", "round-09/branch-\x1b[2J"):
        shutil.copytree(store.round_path(copy, 1, 2), copy / "replicate-1" / name)
    done = lottery_command("verify", copy)
    assert done.returncode == 1 and "replicate 1, round-?[2J: No round has" in done.stdout
    assert done.stdout.count("branch ?[2J: Its round is missing") == 2 and "\x1b" not in done.stdout


def test_an_edited_configuration_is_found(small_run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(small_run.path, copy)
    assert len(list(verification.verify(copy))) == 8  # a run may be moved
    file = copy / "experiment.toml"
    file.write_text(file.read_text().replace("rate = 0.2", "rate = 0.3"))
    with pytest.raises(LotteryError, match="edited after the run started"):
        list(verification.verify(copy))


@pytest.mark.parametrize(
    "name", ["masks.safetensors", "weights.safetensors", "metrics.csv", "round.json", "initial.safetensors"]
)
def test_a_damaged_complete_run_is_not_shown_as_whole(small_run, tmp_path, name):
    import lottery
    from tests.conftest import SMALL, quietly

    copy = tmp_path / small_run.path.name
    shutil.copytree(small_run.path, copy)
    folder = copy / "replicate-2" if name == "initial.safetensors" else store.round_path(copy, 2, 1)
    flip(name)(folder)
    with pytest.raises(LotteryError, match=f"{name}.*damaged"):
        lottery.run(SMALL, out=tmp_path, on_event=quietly)


def test_a_damaged_environment_is_one_sentence(small_run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(small_run.path, copy)
    for content in ("[]", "{", '{"digest": "x"}', None):
        if content is None:
            (copy / "environment.json").unlink()
        else:
            (copy / "environment.json").write_text(content)
        with pytest.raises(LotteryError, match=r"environment\.json"):
            store.read_experiment(copy)


def test_a_damaged_round_stops_the_resume_and_loses_nothing(small_run, tmp_path):
    import lottery
    from tests.conftest import SMALL, quietly

    copy = tmp_path / small_run.path.name
    shutil.copytree(small_run.path, copy)
    (store.round_path(copy, 2, 3) / "round.json").unlink()
    flip("weights.safetensors")(store.round_path(copy, 2, 2))
    before = {path: checksum(path) for path in copy.rglob("*") if path.is_file()}
    with pytest.raises(LotteryError, match=r"round-02/weights\.safetensors.*checksum.*delete"):
        lottery.run(SMALL, out=tmp_path, on_event=quietly)
    assert {path: checksum(path) for path in copy.rglob("*") if path.is_file()} == before
    shutil.rmtree(store.round_path(copy, 2, 2))  # as the sentence says
    again = lottery.run(SMALL, out=tmp_path, on_event=quietly)
    name = "replicate-2/round-03/weights.safetensors"
    assert checksum(again.path / name) == checksum(small_run.path / name)
    json.loads((again.path / "replicate-2" / "round-02" / "round.json").read_text())


def test_replicates_in_mixed_precision_start_from_weights_of_their_own(tmp_path):
    """tf_keras wraps variables there, and what the loop puts back after each network must not be among them."""
    import tf_keras

    import lottery
    from tests.conftest import quietly, toy_arrays

    def mixed():
        inputs = tf_keras.Input((6,))
        hidden = tf_keras.layers.Dense(8, "relu", dtype="mixed_float16")(inputs)
        return tf_keras.Model(inputs, tf_keras.layers.Dense(3, dtype="float32")(hidden))

    tables = {
        "name": "mixed",
        "train": {"num_steps": 3, "learning_rate": 1e-9, "eval_every": 3},
        "data": {"validation": 40},
        "prune": {"num_rounds": 1},
        "run": {"num_replicates": 2, "controls": []},
    }
    run = lottery.run(
        tables, model=mixed, data=toy_arrays(np.random.default_rng(0)), out=tmp_path / "runs", on_event=quietly
    )
    assert {name: wrong for name, wrong in verification.verify(run.path) if wrong} == {}
    for replicate in (1, 2):
        initial = files.read_arrays(store.start_path(run.path, replicate))
        dense = files.read_arrays(store.round_path(run.path, replicate, 0) / "weights.safetensors")
        assert all(np.allclose(initial[name], dense[name], atol=1e-3) for name in initial)


def test_a_state_of_a_sweep_is_checked(small_run, tmp_path):
    run = tmp_path / small_run.path.name
    shutil.copytree(small_run.path, run)
    state = store.read_start(run, 1)
    path = store.state_path(run, 1, 7)
    store.write_state(path, state)
    assert dict(verification.verify(run))["replicate 1, step 00007"] == []
    next(iter(state.values())).flat[0] += 1
    files.write(path, files.pack_arrays(state, files.layout(path).metadata))
    (sentence,) = dict(verification.verify(run))["replicate 1, step 00007"]
    assert sentence.startswith(f"{str(path)!r} is damaged") and "delete it to have it made again" in sentence
