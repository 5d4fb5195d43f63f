"""Aggregates over tasks, beside the numbers of rliable and computations by hand, and the command on real runs."""

import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest

import lottery
from lottery.errors import LotteryError
from lottery.statistics import aggregates, comparison, tables
from tests.conftest import SMALL, quietly
from tests.statistics.test_comparison import made_up

# Four replicates of three tasks.
X = np.array([[0.02, 0.05, -0.01], [0.01, 0.07, 0.0], [0.03, 0.04, -0.03], [0.015, 0.06, 0.01]])
Y = np.array([[-0.02, 0.03, -0.01], [0.015, 0.06, -0.05], [-0.01, 0.01, -0.02], [0.0, 0.05, 0.0]])


def of(**methods):
    """The table of scores of some methods, beside dense networks with an accuracy of a half."""
    rows = [
        (0.1, method, f"task {task}", replicate + 1, 5, 0.1, 0.5 + score, 0.5, score)
        for method, scores in methods.items()
        for (replicate, task), score in np.ndenumerate(scores)
    ]
    return pd.DataFrame(rows, columns=list(aggregates.SCORES))


def test_the_numbers_are_those_of_rliable():
    """From rliable 1.2.0 with arch 7.2.0 and pandas 2.3, which draws otherwise, so that ends agree to about a step."""
    one, other = aggregates.summary(of(x=X, y=Y)).to_dict("records")
    assert (one["iqm"], other["iqm"]) == pytest.approx((0.02083333, 0.00083333), abs=1e-8)
    assert (one["iqm_low"], one["iqm_high"]) == pytest.approx((0.01583333, 0.02666667), abs=0.0015)
    assert (other["iqm_low"], other["iqm_high"]) == pytest.approx((-0.00833333, 0.01), abs=0.0015)
    assert other["first_over"] == 0.78125 and math.isnan(one["first_over"])
    assert (other["first_over_low"], other["first_over_high"]) == pytest.approx((0.583, 0.9375), abs=0.03)
    found = aggregates.profile(of(x=X, y=Y))
    found = found[found["threshold"].isin([-0.02, 0, 0.01, 0.05])]
    fractions = [11 / 12, 9 / 12, 7 / 12, 2 / 12, 9 / 12, 5 / 12, 4 / 12, 1 / 12]
    assert found["fraction"].tolist() == pytest.approx(fractions)
    assert found["low"].tolist() == pytest.approx([0.75, 2 / 3, 5 / 12, 0, 0.5, 1 / 3, 1 / 6, 0])
    assert found["high"].tolist() == pytest.approx([1, 11 / 12, 2 / 3, 1 / 3, 11 / 12, 7 / 12, 0.5, 0.25])


def test_the_interquartile_mean_leaves_out_the_lowest_and_highest_quarter():
    assert aggregates.interquartile_mean(np.array([[9.0, 1.0, 100.0, 2.0, 3.0, 4.0, -50.0, 8.0]])) == pytest.approx(
        4.25
    )
    # Of five values, a quarter is one.
    assert aggregates.interquartile_mean(np.array([[5.0, 1.0, 2.0, 3.0, 90.0]])) == pytest.approx(10 / 3)


def test_ties_are_half_an_improvement():
    one, other = np.array([[0.5], [0.7]]), np.array([[0.5], [0.6]])
    assert aggregates.wins(one, other).mean() == (0.5 + 0 + 1 + 1) / 4
    assert aggregates.wins(one, one).mean() == 0.5
    # The mean over tasks, whatever the differences are.
    both = np.hstack([one, one * 0]), np.hstack([other, other + 5])
    assert aggregates.wins(*both).mean() == 0.625 / 2


def test_the_bootstrap_draws_within_tasks_and_keeps_a_replicate_together():
    # Two replicates: each of the sixteen draws of two tasks is as likely.
    scores, lower = np.array([[0.0, 0.1], [0.02, 0.3]]), np.array([[-0.01, 0.2], [0.03, 0.25]])
    _, line = aggregates.summary(of(x=scores, y=lower)).to_dict("records")
    middles, improved = [], []
    for draw in itertools.product((0, 1), repeat=4):
        taken = [np.stack([values[list(draw[:2]), 0], values[list(draw[2:]), 1]], axis=1) for values in (scores, lower)]
        middles.append(aggregates.interquartile_mean(taken[1][None])[0])
        improved.append(aggregates.wins(*taken).mean())
    ends = np.quantile(np.tile(middles, 1000), [0.025, 0.975])
    assert (line["iqm_low"], line["iqm_high"]) == pytest.approx(tuple(ends))
    ends = np.quantile(np.tile(improved, 1000), [0.025, 0.975])
    assert (line["first_over_low"], line["first_over_high"]) == pytest.approx(tuple(ends))


def test_a_profile_is_exact_at_every_score_and_falls_from_1_to_0():
    found = aggregates.profile(of(x=X))
    assert found["fraction"].iloc[0] == 1 and found["fraction"].iloc[-1] == 0
    for line in found.to_dict("records"):
        assert line["fraction"] == np.mean(line["threshold"] < X)
        assert line["low"] <= line["fraction"] <= line["high"]


def test_one_replicate_has_no_interval():
    line = aggregates.summary(of(x=X[:1])).to_dict("records")[0]
    assert (line["iqm_low"], line["iqm_high"], line["over_dense_high"]) == (-math.inf, math.inf, math.inf)
    assert line["iqm"] == pytest.approx(0.02) and line["replicates"] == 1


def test_tasks_count_alike_and_what_is_left_out_is_named():
    scores = of(x=X, y=Y)
    short = scores[~((scores["task"] == "task 1") & (scores["replicate"] > 2) & (scores["method"] == "y"))]
    line = aggregates.summary(short).iloc[0]
    assert line["replicates"] == 2 and line["iqm"] == pytest.approx(aggregates.interquartile_mean(X[None, :2])[0])
    assert aggregates.notes(short) == [
        "Left out: replicates 3, 4 of task 0, because another task has only 2.",
        "Left out: replicates 3, 4 of task 1, which a method lacks.",
        "Left out: replicates 3, 4 of task 2, because another task has only 2.",
    ]
    assert aggregates.notes(scores) == []
    # Of several densities, those are named at which they are left out.
    denser = scores.assign(at=0.5, density=0.5)
    assert aggregates.notes(pd.concat([denser, short]))[1] == (
        "Left out at density 10 %: replicates 3, 4 of task 1, which a method lacks."
    )


TICKETS = [[0.9, 0.8], [0.8, 0.7], [0.7, 0.65]]


def test_densities_of_different_numbers_of_replicates_are_told():
    rows = made_up([[0.9, 0.8, 0.7], [0.8, 0.7]], densities=(1.0, 0.5, 0.25))
    found = aggregates.summary(aggregates.gathered({("", "a"): rows, ("", "b"): rows}))
    assert tables.aggregated(found, ["a", "b"]).notes[0].startswith("Over 2 tasks (a, b), 1 to 2 replicates of each.")


def test_methods_are_the_branches_that_every_run_has():
    digits = pd.concat([made_up(TICKETS), made_up(TICKETS, branch="random_mask").query("round > 0")])
    mnist = pd.concat([made_up(TICKETS, (1, 0.49)), made_up(TICKETS, (1, 0.49), "random_reinit").query("round > 0")])
    both = pd.concat([mnist, made_up(TICKETS, (1, 0.49), "random_mask").query("round > 0")])
    transferred = pd.concat([both, made_up(TICKETS, (1, 0.49), "transfer-digits").query("round > 0")])
    for runs, methods in (((digits, mnist), ["ticket"]), ((digits, transferred), ["ticket", "random_mask"])):
        scores = aggregates.gathered({("", name): rows for name, rows in zip("ab", runs, strict=True)})
        assert aggregates.summary(scores)["method"].tolist() == methods
        assert set(aggregates.profile(scores)["method"]) == set(methods)
        assert set(scores["at"]) == {0.5} and set(scores["density"]) == {0.5, 0.49}
        assert scores["score"].tolist()[:3] == pytest.approx([-0.1, -0.1, -0.05])
    assert aggregates.notes(scores) == ["Left out: random_reinit, which a lacks."]
    lone = aggregates.gathered({("", "a"): digits, ("", "b"): digits, ("", "c"): transferred})
    assert aggregates.notes(lone)[0].startswith("Left out: random_reinit, which a and b lack")


def test_what_cannot_be_aggregated_is_refused():
    rows = made_up(TICKETS)
    runs = {("", "a"): rows, ("", "b"): made_up(TICKETS, (1, 0.3))}
    with pytest.raises(LotteryError, match="no density in common within 5 %"):
        aggregates.gathered(runs)
    assert set(aggregates.gathered(runs, within=0.5)["at"]) == {0.5}
    with pytest.raises(LotteryError, match=r"b has no density within 5 % of 0\.5; the nearest is 0\.3000"):
        aggregates.gathered(runs, [0.5])
    with pytest.raises(LotteryError, match="density must be above 0, and at most 1, not 2"):
        aggregates.gathered(runs, [2])
    with pytest.raises(LotteryError, match=r"^No round of b is complete yet\."):
        aggregates.gathered({("", "a"): rows, ("", "b"): rows[:0]})
    none = made_up(TICKETS, (1, 0.49)).assign(early_stop_test_accuracy=math.nan)
    measured = made_up(TICKETS, (1, 0.49))
    with pytest.raises(LotteryError, match=r"^c cannot be aggregated with the others: no accuracy is measured"):
        aggregates.gathered({("", "a"): measured, ("", "b"): measured, ("", "c"): none})
    with pytest.raises(LotteryError, match="measure no accuracy"):
        aggregates.gathered({key: made_up(TICKETS).assign(early_stop_test_accuracy=math.nan) for key in runs})


def test_the_command(small_run, tmp_path, lottery_command, traced_once, monkeypatch):
    def run(name, **settings):
        short = SMALL["train"] | {"num_steps": 20}
        return lottery.run(SMALL | {"name": name, "train": short}, settings, out=tmp_path, on_event=quietly)

    fewer = {"data": {"validation": 400}}
    other, random = run("other", **fewer), run("random", prune={"criterion": "random"})
    both = run("both", prune={"criterion": "random"}, **fewer)
    words = ["compare", small_run.path, other.path, "--aggregate"]
    assert "has another data set" in lottery_command(*words[:3]).stderr
    shown = lottery_command(*words).stdout
    assert "Over 2 tasks (small, other), 2 replicates of each" in shown and "IQM vs dense" in shown
    rows = json.loads(lottery_command(*words, "--json", "--density", "0.5,0.5").stdout)
    assert [row["at"] for row in rows] == [0.5] and rows[0]["tasks"] == 2
    tables = [one.table().query("branch == 'ticket'") for one in (small_run, other)]
    accuracies = [rows.pivot(index="replicate", columns="round", values="early_stop_test_accuracy") for rows in tables]
    expected = aggregates.interquartile_mean(np.array([[rows[3] - rows[0] for rows in accuracies]]))[0]
    assert rows[0]["iqm"] == pytest.approx(expected)
    every = [one.path for one in (small_run, other, random, both)]
    rows = json.loads(lottery_command("compare", *every, "--aggregate", "--by", "prune.criterion", "--json").stdout)
    methods = ["prune.criterion = magnitude", "prune.criterion = random"]
    assert [row["method"] for row in rows[:2]] == methods and rows[1]["first_over"] is not None
    assert aggregates.confounded([other.path, both.path], "prune.criterion") == []
    confounded = lottery_command("compare", *every, "--aggregate", "--by", "prune.criterion").stdout
    assert "These runs differ not only in prune.criterion, but also in train.num_steps." in confounded
    pd.testing.assert_frame_equal(
        aggregates.scores([small_run.path, other.path]), aggregates.scores([small_run, other])
    )
    assert "not independent" not in shown
    assert "small and random have the same data and seed" in lottery_command(*words, random.path).stdout
    # Runs that differ in the key alone are methods; their tasks are named once.
    assert aggregates.dependent(every, "prune.criterion") == []
    monkeypatch.setattr(comparison, "drawn_from", lambda run: "the same data and seed")
    (said,) = aggregates.dependent(every, "prune.criterion")
    assert "have the same data and seed" in said and said.count(" and ") == 2
    drawn = lottery_command(*words, "--density", "0.5", "--out", tmp_path / "profile.svg")
    assert drawn.stdout.strip().endswith("profile.svg")
    assert "fraction of networks above it, at density 0.5" in (tmp_path / "profile.svg").read_text()
    for wrong, message in (
        ([*words, "--out", tmp_path / "profile.png"], "shows one density, not 0.5"),
        ([*words, "--density", "0.5", "--out", tmp_path / "profile.doc"], "The ending of a figure's file"),
        ([*words, "--rounds", "1"], "--rounds cannot be used with --aggregate"),
        ([*words, "--density", "much"], "--density must be fractions, such as 0.2,0.05, not 'much'"),
        ([*words[:3], "--by", "prune.rate"], "--by needs --aggregate"),
        ([*words, "--by", "prune.criteria"], "Did you mean 'prune.criterion'?"),
        ([*words[:2], "--aggregate"], "compare needs two different runs or more"),
        (
            ["compare", small_run.path, random.path, "--aggregate", "--by", "prune.rate"],
            "have the same data, model and prune.rate; leave out one of them.",
        ),
        (["compare", *every[:3], "--aggregate", "--by", "prune.criterion"], "no run of digits lenet_300_100 (2) has"),
    ):
        done = lottery_command(*wrong)
        assert done.returncode == 2 and message in " ".join(done.stderr.split()), done.stderr
