"""Intervals over seeds and test examples, from made-up predictions, a simulation, and the command on a real run."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from lottery.errors import LotteryError
from lottery.runs import store, stored
from lottery.statistics import metric, tables, two_way, verdicts
from lottery.statistics.metric import ACCURACY
from tests.scripts import simulate_two_way

DIFFERENCES = np.array([[1, 0, 0, 1, -1], [1, 0, 1, 0, 0], [0, 0, 1, 1, 0.0]])


def test_the_parts_are_those_of_an_analysis_of_variance():
    of_examples = two_way.error_of_examples(DIFFERENCES)
    rows, columns, mean = DIFFERENCES.mean(axis=1, keepdims=True), DIFFERENCES.mean(axis=0), DIFFERENCES.mean()
    of_rest = np.sum((DIFFERENCES - rows - columns + mean) ** 2) / 8
    assert of_examples**2 == pytest.approx((3 * np.var(columns, ddof=1) - of_rest) / 15)
    # Examples that do not differ beyond the noise have no part.
    assert two_way.error_of_examples(np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])) == 0


def test_an_interval_is_that_over_seeds_and_wider_by_the_examples():
    mean, low, high = two_way.interval(DIFFERENCES, confidence=0.9)
    of_seeds, of_examples = stats.sem(DIFFERENCES.mean(axis=1)), two_way.error_of_examples(DIFFERENCES)
    half = math.hypot(stats.t.ppf(0.95, 2) * of_seeds, stats.norm.ppf(0.95) * of_examples)
    assert (mean, low, high) == pytest.approx((1 / 3, 1 / 3 - half, 1 / 3 + half))
    # Replicates that agree on every example have no spread of their own.
    same = np.tile([1.0, 0, 0, 0, -1, 1], (3, 1))
    half = stats.norm.ppf(0.975) * stats.sem(same[0])
    assert two_way.interval(same) == pytest.approx((1 / 6, 1 / 6 - half, 1 / 6 + half))
    assert two_way.interval(DIFFERENCES[:1])[1:] == (-math.inf, math.inf)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    """Where seeds are everything and a bootstrap of both is too narrow, and where examples are most of it."""
    held = simulate_two_way.simulated((3, 1000, (0.62, 0.645), 0.3, 0.0), 200)
    assert held["two-way"][0] >= 0.92 and held["bootstrap of both"][0] < 0.9
    held = simulate_two_way.simulated((3, 360, (0.62, 0.645), 0.0, 2.0), 200)
    assert held["two-way"][0] >= 0.92 and held["over seeds"][0] < 0.85


LABELS = np.arange(100) % 10


def network(branch, index, replicate, num_right, density=1.0, labels=LABELS):
    """A stored network that is right on the first examples."""
    classes = np.where(np.arange(100) < num_right, labels, (labels + 1) % 10).astype(np.uint8)
    predictions = {"label": labels, "early_stop": classes, "final": np.roll(classes, 10)}
    return SimpleNamespace(
        branch=branch, round=index, replicate=replicate, folder=f"{branch}-{index}", record={"density": density},
        predictions=predictions,
    )  # fmt: skip


NETWORKS = [
    *(network("ticket", 0, replicate, num) for replicate, num in ((1, 50), (2, 52), (3, 51))),
    *(network("ticket", 1, replicate, num, 0.8) for replicate, num in ((1, 60), (2, 62), (3, 61))),
    *(network("ticket", 2, replicate, num, 0.6) for replicate, num in ((1, 56), (2, 59))),
    *(network("random_mask", 1, replicate, num, 0.8) for replicate, num in ((1, 50), (3, 40))),
    network("transfer-digits", 1, 1, 50, 0.8, labels=LABELS[::-1]),
]


def test_the_table_has_every_pair(monkeypatch, small_run):
    monkeypatch.setattr(two_way, "stored_rounds", lambda run: iter(NETWORKS))
    found = two_way.table(small_run.path)
    assert list(found.columns) == list(two_way.COLUMNS)
    first = found[found["measure"] == ACCURACY.early_stop]
    assert first[["against", "round", "replicates", "examples"]].to_numpy().tolist() == [
        ["dense", 1, 3, 100],
        ["dense", 2, 2, 100],
        ["random_mask", 1, 2, 100],
    ]
    assert first["mean"].tolist() == pytest.approx([0.1, 0.065, 0.155])
    units = [network("ticket", 0, 1, 50), network("ticket", 0, 2, 50), network("ticket", 1, 1, 50, 0.75)]
    monkeypatch.setattr(two_way, "stored_rounds", lambda run: iter([*units, network("ticket", 1, 2, 50, 0.25)]))
    assert set(two_way.table(small_run.path)["density"]) == {0.5}
    monkeypatch.setattr(two_way, "stored_rounds", lambda run: iter(NETWORKS))
    # All replicates gain the same ten examples of a hundred: over seeds that is certain, over examples it is not.
    line = first.iloc[0]
    assert line["low"] == line["high"] == pytest.approx(0.1)
    assert line["two_way_low"] < 0.06 and line["two_way_verdict"] == line["verdict"] == "matching"
    assert first["verdict"].iloc[2] == first["two_way_verdict"].iloc[2] == ""
    half = (line["two_way_high"] - line["two_way_low"]) / 2
    assert found[found["measure"] != ACCURACY.early_stop]["mean"].tolist() == pytest.approx([0.1, 0.065, 0.155])
    strict = two_way.table(small_run.path, tolerance=0)
    assert two_way.sentences(strict.assign(two_way_verdict="?")) == [
        f"{when}, for other seeds and other test examples: no round is shown to be matching; for this test set alone "
        "also rounds 1, 2."
        for when in two_way.WHEN.values()
    ]
    assert half > 0 and two_way.sentences(strict)[0].endswith(
        "matching in round 1; for this test set alone also round 2."
    )


def test_other_test_examples_are_refused(monkeypatch, small_run):
    other = network("ticket", 1, 1, 50, labels=(LABELS + 1) % 10)
    monkeypatch.setattr(two_way, "stored_rounds", lambda run: iter([*NETWORKS[:3], other]))
    with pytest.raises(LotteryError, match="was tested on other examples"):
        two_way.table(small_run.path)


def test_means_and_intervals_over_seeds_are_those_of_the_verdicts(small_run):
    found = two_way.table(small_run.path)
    for measure, part in found.groupby("measure"):
        expected = verdicts.differences(small_run.table(), measure)
        for column in ("round", "density", "replicates", "mean", "low", "high"):
            assert part[column].tolist() == pytest.approx(expected[column].tolist(), abs=1e-6), column
        assert (part["two_way_low"] <= part["low"]).all() and (part["two_way_high"] >= part["high"]).all()
    assert set(found["examples"]) == {360}


def test_rounds_of_different_numbers_of_replicates_are_told(small_run):
    found = two_way.table(small_run.path)
    measure = found["measure"].iloc[0]
    for last, text in ((2, "over 2 replicates,"), (5, "over 2 to 5 replicates,")):
        shown = tables.two_way(
            found.assign(replicates=found["replicates"].where(found["round"] < 3, last)), measure, 0.1
        )
        assert text in shown.key["over seeds"]


def test_the_command(small_run, lottery_command):
    words = ["show", small_run.path, "--interval", "two_way"]
    shown = " ".join(lottery_command(*words).stdout.split())
    assert "for this test set of 360 examples" in shown and "over seeds and test examples: 95 %" in shown
    rows = json.loads(lottery_command(*words, "--json", "--round", "3").stdout)
    assert {row["round"] for row in rows} == {3} and {row["measure"] for row in rows} == set(two_way.PREDICTIONS)
    assert lottery_command(*words, "--csv").stdout.count("\n") == 1 + 2 * 3
    for wrong, message in (
        ([*words, "--replicate", "1"], "--replicate cannot be used with --interval two_way"),
        ([*words[:3], "both"], "--interval must be 'seeds' or 'two_way', not 'both'"),
        ([*words, "--round", "9"], "--round 9 is not stored. The run has rounds 1 to 3."),
    ):
        done = lottery_command(*wrong)
        assert done.returncode == 2 and message in " ".join(done.stderr.split())


def test_a_tolerance_finer_than_one_test_example_is_warned_of(small_run, lottery_command):
    warning = "is finer than one test example (1 of 360):"
    for words in (["show", small_run.path], ["show", small_run.path, "--interval", "two_way"]):
        assert warning in " ".join(lottery_command(*words).stdout.split())
        assert warning not in " ".join(lottery_command(*words, "--tolerance", "0.003").stdout.split())
    assert len(stored.test_labels(small_run.path)) == 360
    assert metric.too_fine(0, 360) == metric.too_fine(0.001, 0) == []


def test_a_run_without_predictions_says_so(small_run, tmp_path, lottery_command):
    import shutil

    run = shutil.copytree(small_run.path, tmp_path / "earlier")
    folder = run / "replicate-1" / "round-00"
    record = json.loads((folder / "round.json").read_text())
    del record["sha256"]["predictions.safetensors"], record["sha256"]["early_stop.safetensors"], record["record_sha256"]
    store.write_record(folder / "round.json", record)
    done = lottery_command("show", run, "--interval", "two_way")
    assert done.returncode == 2 and "has no predictions: an earlier version stored it" in " ".join(done.stderr.split())
    assert len(stored.test_labels(run)) == 0
    (folder / "round.json").write_bytes((small_run.path / "replicate-1/round-00/round.json").read_bytes())
    assert len(stored.test_labels(run)) == 360
    (folder / "predictions.safetensors").unlink()  # what is only a warning's must not stop the command
    assert len(stored.test_labels(run)) == 0 and lottery_command("show", run).returncode == 0
