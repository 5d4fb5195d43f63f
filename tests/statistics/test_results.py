import csv
import math
import re
import shutil
import statistics

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lottery import files
from lottery.analysis import costs
from lottery.cli import showing
from lottery.runs import store
from lottery.runs.verification import verify
from lottery.statistics import results, sentences, two_way, verdicts
from lottery.tickets import from_run


def made_up(accuracies, branch="ticket"):
    """A tidy table from accuracies by replicate and round."""
    rows = []
    for replicate, row in enumerate(accuracies, 1):
        for index, value in enumerate(row):
            record = dict.fromkeys(results.COLUMNS, 0.0) | {
                "replicate": replicate, "branch": branch, "round": index, "density": 0.8**index,
                "num_kept": round(1000 * 0.8**index), "early_stop_step": 100 * replicate, "last_step": 1000,
                "early_stop_test_accuracy": value, "final_test_accuracy": value - 0.01,
                "budget_test_accuracy": value, "dense_loss_step": 20 if index else 40,
            }  # fmt: skip
            rows.append(record)
    return pd.DataFrame(rows, columns=list(results.COLUMNS))


def test_the_table_is_what_the_files_say(small_run):
    rows = small_run.table()
    for _, row in rows.iterrows():
        folder = store.round_path(small_run.path, row["replicate"], row["round"])
        kept = files.read_masks(folder / "masks.safetensors")
        assert row["num_kept"] == sum(int(mask.sum()) for mask in kept.values())
        curve = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
        validation = {int(one["step"]): float(one["loss"]) for one in curve if one["split"] == "validation"}
        assert list(validation) == [0, 40, 80, 110]
        assert row["early_stop_step"] == min(validation, key=lambda step: (validation[step], step))
        assert row["final_val_loss"] == validation[110]
        tests = {int(one["step"]): float(one["accuracy"]) for one in curve if one["split"] == "test"}
        assert row["final_test_accuracy"] == tests[110]
        assert row["early_stop_test_accuracy"] == tests[row["early_stop_step"]]
        assert row["seconds"] > 0


def test_summary_equals_pythons_statistics():
    accuracies = [[0.9, 0.95, 0.91], [0.92, 0.91, 0.93], [0.97, 0.9, 0.99]]
    for index, row in results.summary(made_up(accuracies)).iterrows():
        column = [one[index] for one in accuracies]
        assert row["accuracy_mean"] == pytest.approx(statistics.mean(column))
        assert row["accuracy_std"] == pytest.approx(statistics.stdev(column))
        assert (row["accuracy_min"], row["accuracy_max"]) == (min(column), max(column))
        half = stats.t.ppf(0.975, 2) * statistics.stdev(column) / math.sqrt(3)
        assert row["accuracy_high"] - row["accuracy_mean"] == pytest.approx(half)
        assert row["accuracy_mean"] - row["accuracy_low"] == pytest.approx(half)
        assert row["replicates"] == 3 and row["early_stop_step_mean"] == 200
        assert row["final_accuracy_mean"] == pytest.approx(statistics.mean(column) - 0.01)


@pytest.mark.parametrize(
    ("accuracies", "tolerance", "expected"),
    [
        ([[0.9, 0.9, 0.8]], 0.0, 1),
        ([[0.9, 0.91, 0.895, 0.8]], 0.01, 2),
        ([[0.9, 0.8, 0.9, 0.7]], 0.002, 2),  # what lies between need not match
        ([[0.9, 0.88], [0.8, 0.82]], 0.0, 1),  # paired by replicate, on the mean
        ([[0.9, 0.8]], 0.05, None),
        ([[0.9]], 1.0, None),
    ],
)
def test_smallest_matching(accuracies, tolerance, expected):
    found = verdicts.smallest_by_mean(made_up(accuracies), tolerance)
    assert (found and found["round"]) == expected
    if found:
        differences = [row[expected] - row[0] for row in accuracies]
        assert found["difference"] == pytest.approx(np.mean(differences))
        assert found["density"] == pytest.approx(0.8**expected)


def test_a_collapsed_weight_is_said(small_run, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(small_run.path, copy)
    assert results.collapsed(copy) == []
    folder = store.round_path(copy, 2, 3)
    record = store.read_record(folder) | {"collapsed": ["dense/kernel"]}
    files.write_json(folder / "round.json", record | {"record_sha256": store._digest_of(record)})
    assert results.collapsed(copy) == ["Nothing is left of dense/kernel in 1 network, from round 3 on."]


def test_a_collapsed_branch_is_said(small_run, tmp_path):
    copy = with_branches(small_run.path, tmp_path, {(1, 2): ["random_mask"]}, collapsed=["dense/kernel"])
    assert results.collapsed(copy) == ["Nothing is left of dense/kernel in 1 network of random_mask, from round 2 on."]


def with_branches(run, tmp_path, labels, **changes):
    """A copy of a run with branches that are stored as rounds are; labels by replicate and round."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    for (replicate, index), branches in labels.items():
        origin = store.round_path(copy, replicate, index)
        for branch in branches:
            folder = origin / f"branch-{branch}"
            shutil.copytree(origin, folder, ignore=shutil.ignore_patterns("branch-*"))
            record = store.read_record(origin) | {"branch": branch, "early_stop_test_accuracy": 0.5} | changes
            files.write_json(folder / "round.json", record | {"record_sha256": store._digest_of(record)})
    return copy


def test_branches_are_rows_after_the_ticket(small_run, tmp_path):
    copy = with_branches(
        small_run.path, tmp_path, {(2, 3): ["random_reinit", "random_mask"], (2, 1): ["random_reinit"]}
    )
    rows = results.table(copy)
    tickets = rows[rows["branch"] == "ticket"].reset_index(drop=True)
    pd.testing.assert_frame_equal(tickets.drop(columns="run"), small_run.table().drop(columns="run"))
    place = rows[["replicate", "branch", "round"]].to_numpy().tolist()
    assert place[-4:] == [[2, "ticket", 3], [2, "random_mask", 3], [2, "random_reinit", 1], [2, "random_reinit", 3]]
    assert len(rows) == 11 and rows["early_stop_test_accuracy"][8:].tolist() == [0.5] * 3
    # One of which the last file is not written yet is not there.
    (store.round_path(copy, 2, 1) / "branch-random_reinit" / "round.json").unlink()
    assert len(results.table(copy)) == 10


def test_what_was_not_trained_has_no_training_loss(small_run, tmp_path):
    unknown = {"final_train_loss": None, "early_stop_step": 110}
    rows = results.table(with_branches(small_run.path, tmp_path, {(1, 1): ["untrained"]}, **unknown))
    assert math.isnan(rows[rows["branch"] == "untrained"]["final_train_loss"].iloc[0])
    points = results.summary(rows).set_index(["branch", "round"])
    assert points["censored"]["untrained", 1] == 0
    assert points["censored"]["ticket"].sum() == (small_run.table()["early_stop_step"] == 110).sum()


def test_early_stop_steps_at_the_very_end_are_counted():
    rows = made_up([[0.9, 0.8], [0.9, 0.8], [0.9, 0.8]])
    rows["early_stop_step"] = [100, 2000, 100, 2000, 100, 1900]
    assert results.summary(rows.assign(last_step=2000))["censored"].tolist() == [0, 2]
    assert results.summary(rows.assign(last_step=[2500, 1900] * 3))["censored"].tolist() == [0, 1]


def test_the_ticket_comes_first_in_a_summary_and_nan_is_not_an_error():
    rows = pd.concat([made_up([[0.9, 0.8]]), made_up([[0.7, 0.6]], branch="untrained")], ignore_index=True)
    points = results.summary(rows)
    assert points[["branch", "round"]].to_numpy().tolist() == [
        ["ticket", 0], ["ticket", 1], ["untrained", 0], ["untrained", 1],
    ]  # fmt: skip
    assert (points["accuracy_low"] == -math.inf).all()
    unknown = rows.assign(early_stop_test_accuracy=math.nan, early_stop_test_loss=math.nan)
    points = results.summary(unknown)
    assert points[["accuracy_mean", "accuracy_low", "accuracy_high"]].isna().all(axis=None)


@pytest.mark.parametrize("unit", [1e-7, 1.0, 1e5])
def test_without_an_accuracy_the_summary_is_of_losses_of_any_size(unit):
    losses = [[0.9, 0.8], [0.7, 0.6], [0.5, 0.7]]
    rows = made_up(losses)
    rows["early_stop_test_loss"], rows["final_test_loss"] = unit * rows["early_stop_test_accuracy"], 2 * unit
    rows["early_stop_test_accuracy"] = math.nan
    points = results.summary(rows)
    assert not [column for column in points if "accuracy" in column]
    assert points["loss_mean"].tolist() == pytest.approx(
        [unit * statistics.mean(each) for each in zip(*losses, strict=True)]
    )
    assert points["final_loss_mean"].tolist() == [2 * unit] * 2
    half = stats.t.ppf(0.975, 2) * unit * 0.2 / math.sqrt(3)
    assert points["loss_high"][0] - points["loss_mean"][0] == pytest.approx(half)


def test_a_run_says_its_verdict(small_run):
    rule = verdicts.rule_for(small_run.experiment)
    assert small_run.verdict() == sentences.of(verdicts.Judgement(small_run.table(), rule))
    assert small_run.verdict(0.9)[0].startswith("Winning tickets down to 51.6 % of the weights: ")
    assert small_run.verdict(0.0)[0].startswith("No winning ticket")


def shown(small_run, capsys, rows, tolerance=0.002):
    showing.show_run(small_run.path, rows, tolerance, long=True)
    return capsys.readouterr().out


STARTS = (["1", "80 %"], ["2", "64 %"], ["3", "51.2 %"])


def test_what_is_shown_has_a_verdict_a_bound_and_a_column_for_each_branch(small_run, capsys):
    tickets = made_up([[0.90, 0.93, 0.91, 0.80], [0.91, 0.93, 0.92, 0.82], [0.92, 0.96, 0.93, 0.81]])
    tickets["early_stop_step"], tickets["last_step"] = [40, 20, 110, 30] * 3, 110
    control = made_up([[0, 0.5, 0.61]] * 3, branch="random_reinit")[lambda rows: rows["round"] > 0]
    out = shown(small_run, capsys, pd.concat([tickets, control], ignore_index=True))
    lines = [re.split(r"  +", line.strip()) for line in out.splitlines()]
    first, second, third = (next(line for line in lines if line[:2] == start) for start in STARTS)
    within = ["+3.00", "+0.52", "+5.48", "0.50"]
    assert first[2:8] == ["94.00 %", "winning", "+3.00", "+0.52", "+5.48", "yes"]
    assert first[8:14] == [*within, "1.73", "800"]
    # The table has the end of training beside it: its accuracy, difference, interval and verdict.
    at_the_end = ["93.00 %", "+3.00", "+0.52", "+5.48", "matching"]
    assert first[14:] == ["20", "no later", *at_the_end]
    at_the_end = ["91.00 %", "+1.00", "+1.00", "+1.00", "matching"]
    assert second[3] == "winning" and second[-7:] == ["≥ 110", "later", *at_the_end]
    assert third[3] == "not matching" and third[-1] == "not matching" and "no later" in third
    beside = {line[1]: line for line in lines if line[0] == "random_reinit"}
    assert beside["1"][2:7] == ["80 %", "3", "50.00 %", "94.00 %", "+44.00"] and beside["1"][-1] == "better"
    assert beside["2"][2:7] == ["64 %", "3", "61.00 %", "92.00 %", "+31.00"]
    assert "lowest at the last step, 110" in out
    judgement = verdicts.Judgement(pd.concat([tickets, control]), verdicts.rule_for(small_run.experiment))
    assert all(sentence in out for sentence in sentences.of(judgement))


def test_what_is_shown_of_one_replicate_tells_nothing(small_run, capsys):
    out = shown(small_run, capsys, made_up([[0.90, 0.93]]))
    assert re.search(r"1 +80 % .* \? *$", out, re.M) and "?: 1 replicate is too few to decide: " in out
    assert "≥" not in out and "1 replicate cannot show" in out
    assert "No round of" in shown(small_run, capsys, made_up([]))
    assert "can be compared with dense" in shown(small_run, capsys, made_up([[0.9, 0.8]]).query("round == 1"))


@pytest.mark.parametrize(
    "read",
    [results.table, two_way.table, from_run.listed, costs.total, lambda run: [*verify(run)]],
    ids=["results", "two_way", "listed", "costs", "verify"],
)
def test_a_run_and_the_text_of_its_folder_are_read_as_its_path_is(read, small_run):
    found, *others = (repr(read(place)) for place in (small_run.path, small_run, str(small_run.path)))
    assert others == [found, found]
