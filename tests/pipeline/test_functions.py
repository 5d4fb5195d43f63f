"""A schedule and an enforcement as functions: part of the experiment, and everywhere a name would go."""

import contextlib

import numpy as np
import pytest

import lottery
from lottery import config, enforcement, progress
from lottery.errors import LotteryError
from lottery.runs import store
from tests.conftest import quietly, toy_arrays
from tests.pipeline.test_running import build_dropout, final_bits

pytestmark = pytest.mark.usefixtures("traced_once")

TABLES = {"data": {"validation": 60}, "train": {"num_steps": 20, "eval_every": 10, "batch_size": 20}}
TABLES |= {"prune": {"num_rounds": 2}, "run": {"num_replicates": 1}}
ARRAYS = toy_arrays(np.random.default_rng(3))


def halving(index):
    return 0.5**index


@contextlib.contextmanager
def own(model, masks):
    with enforcement.gradient(model, masks) as callbacks:
        yield callbacks


def go(out, overrides=None, **options):
    return lottery.run(
        TABLES, overrides, out=out, **{"model": build_dropout, "data": ARRAYS, "on_event": quietly} | options
    )


def arrays_of(path):
    return {key: value for key, value in final_bits(path).items() if not key.endswith(".toml")}


def is_right(run):
    return run.verify() == []


class FirstStep(BaseException):
    """Ends a run before it trains."""


@pytest.mark.parametrize(("passed", "num"), [({"enforcement": own}, 1), ({"schedule": halving}, 2)])
def test_an_experiment_is_validated_once(tmp_path, monkeypatch, passed, num):
    validated, tables = config.validated, []

    def stop(event):
        if isinstance(event, progress.Step):
            raise FirstStep

    monkeypatch.setattr(config, "validated", lambda table: tables.append(table) or validated(table))
    with pytest.raises(FirstStep):
        go(tmp_path, **passed, on_event=stop)
    assert len(tables) == num  # the densities of a function are validated, too


def test_both_give_the_bits_of_the_names_and_work_everywhere(tmp_path):
    named = {"prune": {"schedule": "explicit", "densities": [0.5, 0.25]}, "run": {"enforcement": "gradient"}}
    expected = arrays_of(go(tmp_path / "named", named).path)
    run = go(tmp_path, schedule=halving, enforcement=own)  # in workers too: see `tests/executors/test_processes.py`
    assert run.experiment.prune.schedule == "given" and run.experiment.prune.densities == (0.5, 0.25)
    assert run.experiment.run.enforcement == "given" and len(run.experiment.run.fingerprint) == 16
    assert arrays_of(run.path) == expected and is_right(run)
    (store.round_path(run.path, 1, 2) / "round.json").unlink()
    assert go(tmp_path, schedule=halving, enforcement=own).path == run.path
    assert arrays_of(run.path) == expected
    done = run.branch("random_mask", [2], model=build_dropout, data=ARRAYS, enforcement=own, on_event=quietly)
    assert done == run and "random_mask" in set(run.table()["branch"]) and is_right(run)
    with pytest.raises(LotteryError, match=r"run.enforcement = \"given\" stands for a function"):
        lottery.branch(run.path, "random_mask", [1], model=build_dropout, data=ARRAYS, on_event=quietly)
    with pytest.raises(LotteryError, match="began with another model or function"):
        other = {"enforcement": enforcement.constraint, "on_event": quietly}
        lottery.branch(run.path, "random_mask", [1], model=build_dropout, data=ARRAYS, **other)


def test_a_schedule_replaces_the_rates_of_an_experiment_and_is_needed_no_more(tmp_path):
    run = go(tmp_path, {"prune": {"rate": 0.3, "rates": {"dense/kernel": 0.1}}}, schedule=halving)
    assert run.experiment.prune.rates == {}
    assert list(run.table()["num_kept"]) == [144, 72, 36]
    events = []
    again = go(
        tmp_path,
        lottery.config.load(run.path / "experiment.toml").model_dump(exclude_unset=True),
        on_event=events.append,
    )
    assert again.path == run.path and isinstance(events[-1], progress.Note) and "complete" in events[-1].text


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (lambda index: 0.5, "prune.densities must fall from round to round"),
        (lambda index: 2.0, r"must be a number between 0 and 1.*not 2.0"),
        (lambda index: 0.0, r"must be a number between 0 and 1.*not 0.0"),
    ],
)
def test_a_schedule_that_does_not_fall_is_refused(tmp_path, schedule, message):
    with pytest.raises(LotteryError, match=message):
        go(tmp_path, schedule=schedule)
    assert not list(tmp_path.iterdir())


def test_names_that_stand_for_functions_are_refused_without_them(tmp_path):
    with pytest.raises(LotteryError, match="stands for a function passed to lottery.run.*schedule="):
        go(tmp_path, {"prune": {"schedule": "given"}})
    with pytest.raises(LotteryError, match="stands for a function passed to lottery.run.*enforcement="):
        go(tmp_path, {"run": {"enforcement": "given"}})


def test_digests_of_other_experiments_do_not_know_of_functions():
    assert lottery.config.digest(lottery.config.load({})) == lottery.config.digest(
        lottery.config.load({"run": {"fingerprint": ""}, "prune": {"schedule": "geometric"}})
    )
