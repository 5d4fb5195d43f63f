import json
import math
import re

import numpy as np
import pytest

from lottery import config
from lottery.errors import LotteryError
from lottery.pipeline import environment, preview, rehearsal
from lottery.runs import store
from lottery.statistics import pilot, power, verdicts
from tests.conftest import SMALL


def rows_of(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_plan_has_the_densities_that_the_run_has(small_run):
    experiment, rows = small_run.experiment, small_run.table()
    expected = rows[rows["replicate"] == 1].set_index("round")
    for found in (preview.rounds(experiment), preview.rounds(experiment, small_run.path)):
        assert found["num_kept"].tolist() == expected["num_kept"].tolist()
        assert found["density"].tolist() == pytest.approx(expected["density"].tolist())
    sizes = preview.sizes(experiment, int(expected["num_kept"][0]))
    assert sizes["networks"] == len(rows) and sizes["steps"] == len(rows) * experiment.train.num_steps
    longer = config.load(None, {"rewind": {"step": 100}, "run": {"controls": ["rigl_long", "untrained"]}})
    steps, last, k = longer.train.num_steps, longer.prune.num_rounds, 100
    tickets = [steps] + [steps - k] * last
    long = [sum(tickets[: number + 1]) for number in longer.run.control_rounds]
    assert preview.sizes(longer, 1)["steps"] == longer.run.num_replicates * (sum(tickets) + sum(long))
    stored = sum(path.stat().st_size for path in small_run.path.glob("replicate-*/round-*/*.safetensors"))
    assert sizes["bytes"] > 0.4 * stored


@pytest.mark.parametrize("labels", [np.linspace(0, 3000, 60), np.arange(60) * 5000, -np.arange(60)])
def test_a_plan_refuses_labels_that_a_run_refuses(labels, tmp_path, rng):
    x = rng.random((60, 8), np.float32)
    np.savez(tmp_path / "values.npz", x_train=x, y_train=labels, x_test=x, y_test=labels)
    tables = {"data": {"name": "npz", "path": str(tmp_path / "values.npz"), "validation": 10}}
    experiment = config.load(tables | {"model": {"name": "lenet_300_100"}})
    with pytest.raises(LotteryError, match="labels must be one class for each example"):
        preview.rounds(experiment)


def test_the_replicates_of_a_plan(lottery_command):
    words = ("plan", "prune.num_rounds=4", "--difference", "0.005", "--std", "0.003", "--json")
    rows = rows_of(lottery_command(*words))
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert {row["replicates"] for row in rows} == {power.num_needed(0.007, 0.003)}
    assert {row["for_all_rounds"] for row in rows} == {power.num_needed(0.007, 0.003, confidence=1 - 0.05 / 4)}
    other = rows_of(lottery_command(*words, "--power", "0.95", "--tolerance", "0"))
    expected = power.num_needed(0.005, 0.003, least_power=0.95)
    assert {row["replicates"] for row in other} == {expected}
    # Nothing shows a difference that is below the tolerance.
    below = rows_of(lottery_command(*words[:2], "--difference", "-0.01", "--std", "0.003", "--json"))
    assert {row["replicates"] for row in below} == {None}


def test_a_plan_from_a_pilot(small_run, lottery_command):
    found = rows_of(lottery_command("plan", "--from", small_run.path, "--tolerance", "0.1", "--json"))
    for row, line in zip(found, verdicts.differences(small_run.table()).to_dict("records"), strict=True):
        assert (row["round"], row["difference"], row["std"]) == pytest.approx(
            (line["round"], line["mean"], line["std"])
        )
        assert row["replicates"] == power.num_needed(line["mean"] + 0.1, line["std"], 2)
    # The same round of a plan with another rate has another density, and is no round of the pilot's.
    words = ("prune.rate=0.36", "prune.rates={}", "prune.num_rounds=2")
    first, second = rows_of(lottery_command("plan", *words, "--from", small_run.path, "--tolerance", "0.1", "--json"))
    assert first["std"] == found[1]["std"] and first["density"] == pytest.approx(found[1]["density"], rel=0.05)
    assert second["std"] is None and second["replicates"] is None
    done = lottery_command("plan", "--from", small_run.path, "--difference", "0.05", "--no-time")
    assert "8 networks, 4 for each of 2 replicates" in done.stdout and "run.seed" in done.stdout
    rows = pilot.needed(
        preview.rounds(small_run.experiment, small_run.path), small_run.experiment, verdicts.Rule(), 0.8, std=0.01,
        difference=math.nan,
    )  # fmt: skip
    assert rows["replicates"].isna().all()


def test_a_plan_without_a_spread_says_what_it_lacks(lottery_command):
    done = lottery_command("plan", "prune.num_rounds=3", "run.num_replicates=4", "run.controls=[]", "--no-time")
    assert "16 networks, 4 for each of 4 replicates" in done.stdout
    assert "--std NUMBER or --from RUN" in done.stdout and "Replicates:" not in done.stdout


def test_a_plan_measures_how_long_it_takes(lottery_command, tmp_path, monkeypatch):
    monkeypatch.setattr(rehearsal, "SECONDS", 0.2)
    experiment = tmp_path / "digits.toml"
    experiment.write_text(config.dump(config.load(SMALL)))
    for settings in ((), ("train.num_steps=4", "train.eval_every=2")):  # the second ends before it is measured
        done = lottery_command("plan", experiment, *settings)
        last = done.stdout.replace("\n", " ")
        found = re.search(r"About (\S+ \S+) of training on this machine.*a step takes (\S+) ms", last)
        assert done.returncode == 0 and found and float(found[2]) > 0, last
    assert not list(tmp_path.glob("*/")) and "of training on" not in lottery_command("plan", "--no-time").stdout


@pytest.mark.parametrize(
    ("prune", "are_estimates"),
    [
        ({"scope": "global"}, False),
        ({"granularity": "unit"}, False),
        ({"granularity": "unit", "scope": "global"}, True),
        ({"granularity": "block", "block": [3, 2]}, True),
        ({"granularity": "n_of_m", "n_of_m": [2, 4], "num_rounds": 2}, False),
    ],
)
def test_a_plan_says_if_its_counts_are_estimates(prune, are_estimates):
    said = preview.sentences(config.load(None, {"prune": prune}), 10)
    assert ("Density and kept are estimates" in said[-1]) == are_estimates


def test_a_plan_has_the_threads_of_the_run_before_it_computes(lottery_command, monkeypatch):
    """TensorFlow keeps the threads that it has computed with, and a model that is built has computed its weights."""
    calls, build = [], preview.model_of

    def building(*arguments):
        calls.append("built")
        return build(*arguments)

    monkeypatch.setattr(preview, "model_of", building)
    monkeypatch.setattr(environment, "begin", lambda planned, *_: calls.append(planned.run.num_threads))
    assert lottery_command("plan", "run.num_threads=61", "--no-time").returncode == 0
    assert calls == [61, "built"]


def test_a_plan_counts_on_no_more_networks_in_parallel_than_there_can_be(monkeypatch):
    monkeypatch.setattr(rehearsal, "SECONDS", 0.0)
    threads = environment.num_threads()
    monkeypatch.setattr(environment, "begin", lambda *_: threads)
    monkeypatch.setattr(rehearsal.loky, "cpu_count", lambda: 8 * threads)
    for num, said in ((1, ""), (2, "with 2 networks in parallel")):  # three rounds each, one after the other
        sentence = rehearsal.sentence(config.load(SMALL, {"run": {"num_replicates": num}}))
        assert said in sentence and ("in parallel" in sentence) == bool(said)


def test_a_plan_of_the_dense_network_alone_says_that_no_verdict_needs_replicates(lottery_command):
    done = lottery_command("plan", "prune.num_rounds=0", "--std", "0.003", "--no-time")
    assert "No round prunes (prune.num_rounds is 0)" in done.stdout
    (row,) = rows_of(lottery_command("plan", "prune.num_rounds=0", "--std", "0.003", "--no-time", "--json"))
    assert row["round"] == 0 and row["density"] == 1


def test_a_plan_without_its_data_says_why_the_time_is_not_known(lottery_command, tmp_path):
    words = ("data.name=npz", f"data.path={tmp_path / 'none.npz'}", "model.name=lenet_300_100", "prune.rates={}")
    with pytest.raises(LotteryError, match="There is no data file"):
        rehearsal.sentence(config.load(None, config.parse_overrides(words)))
    done = lottery_command("plan", *words)
    assert "none.npz" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--power", "1"), "--power must be between 0 and 1, not 1."),
        (("--std", "0.1", "--from", "RUN"), "Use --std or --from, not both."),
        (("--difference", "0.005"), "--difference needs --std NUMBER or --from RUN"),
        (("--difference", "nan", "--std", "0.1"), "--difference must be a finite number, not nan."),
        (("prune.num_rounds=100",), "prune.num_rounds must be at most"),
        (("lenet_mnist", "--from", "RUN"), "has another network or other data than the experiment"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(words, message, small_run, lottery_command):
    done = lottery_command("plan", *(small_run.path if word == "RUN" else word for word in words))
    assert done.returncode == 2 and message in " ".join(done.stderr.split())


def test_a_pilot_without_a_round_is_refused(small_run, tmp_path):
    (tmp_path / "experiment.toml").write_bytes((small_run.path / "experiment.toml").read_bytes())
    with pytest.raises(LotteryError, match="--from: no round of"):
        preview.rounds(store.read_experiment(tmp_path), tmp_path)


def test_shapes_need_no_data_where_the_data_set_is_known(monkeypatch):
    monkeypatch.setattr("lottery.data.load", lambda *_: pytest.fail("the data were read"))
    assert preview.rounds(config.load({"data": {"name": "mnist"}}))["num_kept"][0] == 266_200
