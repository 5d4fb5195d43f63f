"""Accuracy by class, counted again by a loop over the predictions, and with a class that a ticket forgets."""

import shutil

import numpy as np
import pytest

from lottery import files, plots
from lottery.analysis import classes
from lottery.runs import store
from lottery.runs.stored import StoredRound, stored_rounds
from tests.runs.test_verification import reseal


def test_each_accuracy_is_that_of_a_loop(small_run):
    found = classes.table(small_run.path)
    rows = {(row["replicate"], row["round"], row["class"]): row for row in found.to_dict("records")}
    assert len(rows) == len(found) == 2 * 4 * 10
    for stored in stored_rounds(small_run.path):
        dense = StoredRound(small_run.path, stored.replicate, 0).predictions
        for label in range(10):
            right, right_of_dense = [], []
            pairs = zip(stored.predictions["early_stop"], dense["early_stop"], dense["label"], strict=True)
            for one, other, expected in pairs:
                if expected == label:
                    right.append(one == label)
                    right_of_dense.append(other == label)
            row = rows[stored.replicate, stored.round, label]
            assert row["num"] == len(right) and row["accuracy"] == pytest.approx(sum(right) / len(right))
            assert row["vs_dense"] == pytest.approx((sum(right) - sum(right_of_dense)) / len(right))
    whole = found.assign(hits=found["num"] * found["accuracy"]).groupby(["replicate", "round"])[["hits", "num"]].sum()
    accuracies = small_run.table().set_index(["replicate", "round"])["early_stop_test_accuracy"]
    np.testing.assert_allclose(whole["hits"] / whole["num"], accuracies.loc[whole.index], atol=1e-6)


def test_some_rounds_are_still_compared_with_dense(small_run):
    some, every = classes.table(small_run.path, [3]), classes.table(small_run.path)
    expected = every[every["round"] == 3].reset_index(drop=True)
    assert set(some["round"]) == {3} and some.equals(expected)


def test_a_class_that_is_forgotten_is_seen(small_run, tmp_path):
    copy = tmp_path / small_run.path.name
    shutil.copytree(small_run.path, copy)
    for replicate in (1, 2):
        stored = StoredRound(copy, replicate, 2)
        predictions = dict(stored.predictions)
        predictions["early_stop"] = np.where(predictions["label"] == 4, 5, predictions["early_stop"]).astype(np.uint8)
        reseal(stored.folder, predictions_safetensors=files.pack_arrays(predictions))
    found = classes.table(copy).query("round == 2").groupby("class")["accuracy"].mean()
    assert found[4] == 0 and found.drop(4).min() > 0.5
    ax = plots.drawn(classes.table(copy), "classes").axes[0]
    lowest = min(line.get_ydata().min() for container in ax.containers for line in container.lines[:1])
    assert lowest < -0.7


def test_networks_without_predictions_have_no_rows_and_the_figure_says_so(small_run, tmp_path, lottery_command):
    copy = tmp_path / small_run.path.name
    shutil.copytree(small_run.path, copy)
    for stored in list(stored_rounds(copy)):
        record = dict(stored.record)
        record["sha256"] = {name: value for name, value in record["sha256"].items() if name != store.PREDICTIONS}
        record["record_sha256"] = store._digest_of(record)
        files.write_json(stored.folder / "round.json", record)
    found = classes.table(copy)
    assert found.empty and list(found.columns) == list(classes.COLUMNS)
    with pytest.raises(classes.NothingToDraw, match="no pruned round has predictions"):
        plots.drawn(found, "classes")
    for words, reason in (
        (("analyze", "classes"), "has predictions of classes"),
        (("plot", "--kind", "classes"), "no pruned round has predictions"),
    ):
        assert reason in lottery_command(*words, copy, "--round", 1).stderr  # and not that round 1 is not stored
