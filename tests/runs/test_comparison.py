"""Runs beside each other, from made-up tables, and the command on real ones."""

import json
import math

import pandas as pd
import pytest
from scipy import stats
from typer.testing import CliRunner

import lottery
from lottery import cli
from lottery.errors import LotteryError
from lottery.runs import comparison, results
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


def test_differences_are_paired_and_the_best_comes_first():
    found = comparison.compared({"a": made_up(FIRST), "b": made_up(SECOND)})
    assert found["run"].tolist() == ["a", "b", "b", "a"]
    better = found.iloc[2]
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
    assert other[other["run"] == "b"]["round"].tolist() == [0]


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(LotteryError, match="received 1 run, allowed are two or more"):
        comparison.compared({"a": made_up(FIRST)})
    with pytest.raises(LotteryError, match="no round of the same density in common with a"):
        comparison.compared({"a": made_up(FIRST), "b": made_up([[0.9]], densities=(0.3,))})


def test_the_command(small_run, tmp_path):
    other = lottery.run(SMALL | {"name": "other"}, {"prune": {"criterion": "random"}}, out=tmp_path, report=quietly)
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
        (["compare", str(small_run.path), str(small_run.path)], "received 1 run, allowed are two or more"),
        ([*words, "--rounds", "99"], "received 99, the runs have"),
    ):
        assert message in str(CliRunner().invoke(cli.app, wrong).exception)
    seeded = lottery.run(SMALL | {"run": {"seed": 5, "num_replicates": 1}}, out=tmp_path, report=quietly)
    with pytest.raises(LotteryError, match=r"has another run\.seed than"):
        comparison.tables([small_run.path, seeded.path])
