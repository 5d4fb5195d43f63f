"""Runs beside each other, from made-up tables, and the command on real ones."""

import json
import math
import shutil
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats
from typer.testing import CliRunner

import lottery
from lottery import cli
from lottery.errors import LotteryError
from lottery.runs import store
from lottery.statistics import aggregates, comparison, results, tables
from tests.conftest import SMALL, quietly


def made_up(chains, densities=(1.0, 0.5), branch="ticket"):
    """Rows of a run: an accuracy for each replicate and round."""
    rows = [
        dict.fromkeys(results.COLUMNS, 0)
        | {"replicate": replicate, "branch": branch, "round": index, "density": densities[index]}
        | {"early_stop_test_accuracy": accuracy}
        for replicate, chain in enumerate(chains, 1)
        for index, accuracy in enumerate(chain)
    ]
    return pd.DataFrame(rows)


FIRST = [[0.9, 0.8], [0.8, 0.7], [0.7, 0.65]]
SECOND = [[0.9, 0.85], [0.8, 0.74], [0.7, 0.68]]


def test_differences_are_paired_and_after_the_first_run_the_best_comes_first():
    found = comparison.compared({"a": made_up(FIRST), "b": made_up(SECOND)})
    assert found["run"].tolist() == ["a", "b", "a", "b"]
    worst = made_up([[0.9, 0.1], [0.8, 0.1], [0.7, 0.1]])
    three = comparison.compared({"a": made_up(FIRST), "c": worst, "b": made_up(SECOND)})
    assert three["run"].tolist() == ["a", "c", "b", "a", "b", "c"]
    better = found.iloc[3]
    one = [0.05, 0.04, 0.03]
    half = stats.t.ppf(0.975, 2) * stats.tstd(one) / math.sqrt(3)
    expected = (0.04, 0.04 - half, 0.04 + half)
    assert tuple(better[["difference", "difference_low", "difference_high"]]) == pytest.approx(expected)
    assert better["accuracy"] == pytest.approx((0.85 + 0.74 + 0.68) / 3) and better["replicates"] == 3
    assert found[found["run"] == "a"]["difference"].isna().all()
    # Shuffled replicates of one run would not be the same pairs.
    shuffled = made_up(SECOND).sample(frac=1, random_state=0)
    again = comparison.compared({"a": made_up(FIRST), "b": shuffled})
    pd.testing.assert_frame_equal(again, found)


def test_controls_are_left_out_and_so_are_other_densities():
    rows = pd.concat([made_up(SECOND), made_up(FIRST, branch="random_mask")])
    found = comparison.compared({"a": made_up(FIRST), "b": rows})
    assert found[found["run"] == "b"]["replicates"].tolist() == [3, 3]
    other = comparison.compared({"a": made_up(FIRST), "b": made_up(SECOND, densities=(1.0, 0.6))})
    assert other["round"].tolist() == [0, 0]
    runs = {"a": made_up(FIRST), "b": made_up(SECOND, densities=(1.0, 0.6))}
    assert comparison.left_out(runs, other) == [
        "Not compared: round 1 of a, because no unpaired round of any other run has a density within 5 %.",
        "Not compared: round 1 of b, because no unpaired round of a has a density within 5 %.",
        "Only the dense networks of b are compared.",
    ]


def ladder(rate, num_rounds, accuracy):
    """Rows of a run of two replicates, of which the accuracies differ."""
    densities = [(1 - rate) ** index for index in range(num_rounds + 1)]
    chains = [[accuracy - 0.01 * index + shift for index in range(num_rounds + 1)] for shift in (0.0, 0.02)]
    return made_up(chains, densities)


def test_other_rates_are_paired_by_the_nearest_density():
    runs = {"fifths": ladder(0.2, 6, 0.9), "halves": ladder(0.5, 3, 0.8)}
    found = comparison.compared(runs)
    halves = found[found["run"] == "halves"]
    # 0.5 goes with 0.512 and 0.25 with 0.262; nothing is near 0.125.
    assert halves[["round", "own_round"]].to_numpy().tolist() == [[0, 0], [3, 1], [6, 2]]
    assert halves["density"].tolist() == [1.0, 0.5, 0.25]
    assert halves["difference"].tolist() == pytest.approx([-0.1, 0.79 - 0.87, 0.78 - 0.84])
    assert found[found["run"] == "fifths"]["round"].tolist() == [0, 3, 6]
    assert comparison.left_out(runs, found) == [
        "Not compared: rounds 1, 2, 4, 5 of fifths, because no unpaired round of any other run has a density "
        "within 5 %.",
        "Not compared: round 3 of halves, because no unpaired round of fifths has a density within 5 %.",
    ]
    near = comparison.compared(runs, within=0.01)
    assert near["round"].tolist() == [0, 0] and len(comparison.left_out(runs, near, 0.01)) == 3
    same = {"a": ladder(0.2, 3, 0.9), "b": ladder(0.2, 3, 0.8)}
    assert comparison.left_out(same, comparison.compared(same)) == []


def test_a_round_has_one_partner_the_nearest():
    runs = {"a": made_up(FIRST, densities=(1.0, 0.5)), "b": made_up(FIRST, densities=(1.0, 0.49))}
    chain = [[*values, 0.6] for values in SECOND]
    runs["c"] = made_up(chain, densities=(1.0, 0.51, 0.495))
    found = comparison.compared(runs)
    assert found[found["run"] == "c"]["own_round"].tolist() == [0, 2]


def test_intervals_of_accuracies_stay_inside_0_and_1():
    runs = {"a": made_up([[0.99, 0.02], [0.9, 0.0]]), "b": made_up([[0.99, 0.02], [0.9, 0.0]])}
    found = comparison.compared(runs)
    assert found["low"].min() == 0.0 and found["high"].max() == 1.0
    alone = comparison.compared({"a": made_up(FIRST[:1]), "b": made_up(SECOND[:1])})
    assert (alone["low"] == -math.inf).all()  # one replicate has no interval


def test_every_run_has_a_label_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def stored(folder, name):
        run = Path(folder)
        run.mkdir(parents=True)
        (run / "experiment.toml").write_text(f'name = "{name}"\n')
        return run

    # Two runs of one experiment are told apart by their folders, of which one has the name of a third experiment.
    first, second, third = stored("sgd", "adam"), stored("adam-2", "adam"), stored("other", "sgd")
    named = comparison.labelled([first, second, third])
    assert named == {str(tmp_path / "sgd"): first, "adam-2": second, "sgd": third}
    # Folders of one name are told apart by their paths.
    again = stored("x/adam-2", "adam")
    assert comparison.labelled([second, again]) == {"adam-2": second, "x/adam-2": again}


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(LotteryError, match="compare needs two different runs or more"):
        comparison.compared({"a": made_up(FIRST)})
    with pytest.raises(LotteryError, match="No run has a round whose density is within 5 % of a round of a"):
        comparison.compared({"a": made_up(FIRST), "b": made_up([[0.9]], densities=(0.3,))})


def test_a_run_without_a_round_is_named_wherever_it_stands(small_run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(small_run.path, other, ignore=shutil.ignore_patterns("replicate-*"))
    for runs in ([small_run.path, other], [other, small_run.path]):
        with pytest.raises(LotteryError, match="No round of other is complete yet"):
            comparison.tables(runs)
    (other / "environment.json").unlink()  # as of a run that was killed before it was written
    with pytest.raises(LotteryError, match="No round of other is complete yet"):
        comparison.tables([small_run.path, other])


def test_runs_of_different_metrics_are_refused(small_run, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(small_run.path, other)
    path, written = other / "environment.json", store.read_environment(other)
    store.write_record(path, written | {"accuracy": "top_2_accuracy"})
    for compare in (comparison.tables, aggregates.scores):
        with pytest.raises(LotteryError, match="measures 'accuracy', and .*other' 'top_2_accuracy': they cannot"):
            compare([small_run.path, other])
    third = tmp_path / "third"
    shutil.copytree(small_run.path, third)
    store.write_record(third / "environment.json", written | {"loss": "mean_squared_error"})
    assert len(comparison.tables([small_run.path, third])) == 2  # an earlier version recorded no loss
    store.write_record(path, written | {"loss": "mean_absolute_error"})
    with pytest.raises(LotteryError, match="measures 'mean_squared_error', and .*'mean_absolute_error': they cannot"):
        comparison.tables([small_run.path, third, other])


def test_runs_without_accuracy_are_compared_by_their_test_loss():
    def losses(chains):
        rows = made_up(chains)
        return rows.assign(early_stop_test_loss=rows["early_stop_test_accuracy"], early_stop_test_accuracy=math.nan)

    runs = {"a": losses(FIRST), "b": losses(SECOND), "c": losses([[0.1, 0.1]] * 3)}
    found = comparison.compared(runs)
    assert found["run"].tolist() == ["a", "c", "b", "a", "c", "b"]  # the lowest loss is the best
    assert "accuracy" not in found and found["loss"].iloc[5] == pytest.approx((0.85 + 0.74 + 0.68) / 3)
    assert found["difference"].iloc[4] == pytest.approx(0.1 - (0.8 + 0.7 + 0.65) / 3)
    shown = tables.compared(found, "a")
    assert "test loss" in shown.heads and "lower is better" in shown.key["test loss"]
    with pytest.raises(LotteryError, match="a measures no accuracy and d does"):
        comparison.compared(runs | {"d": made_up(FIRST)})


def test_the_command(small_run, tmp_path, traced_once):
    other = lottery.run(SMALL | {"name": "other"}, {"prune": {"criterion": "random"}}, out=tmp_path, on_event=quietly)
    words = ["compare", str(small_run.path), str(other.path)]
    shown = CliRunner().invoke(cli.app, words)
    assert shown.exit_code == 0 and "small" in shown.stdout and "other" in shown.stdout
    rows = json.loads(CliRunner().invoke(cli.app, [*words, "--json", "--rounds", "1,3"]).stdout)
    assert {row["round"] for row in rows} == {1, 3} and len(rows) == 4
    accuracy = other.table().query("round == 3")["early_stop_test_accuracy"].mean()
    assert next(row for row in rows if row["round"] == 3 and row["run"] == "other")["accuracy"] == pytest.approx(
        accuracy
    )
    for wrong, message in (
        (["compare", str(small_run.path), str(small_run.path)], "compare needs two different runs or more"),
        ([*words, "--rounds", "99"], "do not share round 99. --rounds can be"),
    ):
        assert message in str(CliRunner().invoke(cli.app, wrong).exception)
    seeded = lottery.run(SMALL | {"run": {"seed": 5, "num_replicates": 1}}, out=tmp_path, on_event=quietly)
    with pytest.raises(LotteryError, match=r"has another run\.seed than"):
        comparison.tables([small_run.path, seeded.path])
