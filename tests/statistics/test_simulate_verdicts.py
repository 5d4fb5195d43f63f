"""A short run of tests/scripts/simulate_verdicts.py: verdicts err no more often, and plans fail no more, than they say."""

import numpy as np
import pytest

from tests.scripts import simulate_verdicts as simulation

RUNS = 600


def test_the_twin_is_what_the_package_computes():
    simulation.check_the_twin(np.random.default_rng(1), num_runs=1, num_rounds=8)


@pytest.fixture(scope="module")
def errors():
    return simulation.errors(np.random.default_rng(0), RUNS)


def test_false_verdicts_are_as_rare_as_promised(errors):
    assert {one.replicates for one in errors} == {"3", "5", "10"} and all(one.runs == RUNS for one in errors)
    assert [one for one in errors if not one.holds()] == []
    # The simulation can tell: at their bounds, errors come close to it.
    at_bounds = [one.value for one in errors if one.what == "false matching, a round"]
    assert all(0.012 < value < 0.038 for value in at_bounds)


def test_single_rounds_would_break_the_promise_for_a_run():
    p = simulation.p_values(
        simulation.differences(np.random.default_rng(0), simulation.TRUE["no round is"], RUNS, 3), -0.002
    )
    false = {name: (simulation.smallest(p, name) > 0).mean() for name in simulation.PROCEDURES}
    assert false.pop("single rounds") > 0.15 and max(false.values()) < 0.05


def test_a_single_undecided_round_does_not_block_the_sparser_ones():
    found = simulation.differences(np.random.default_rng(0), simulation.TRUE["as on MNIST"], RUNS, 5, 0.0015)
    p = simulation.p_values(found, -0.002)
    counts = {name: np.median(simulation.smallest(p, name)) for name in simulation.PROCEDURES}
    p[:, 0] = 0.4
    assert np.median(simulation.smallest(p, "step-down")) == counts["step-down"] >= 17
    assert np.median(simulation.smallest(p, "fixed sequence")) == 0


def test_the_replicates_that_are_asked_for_have_the_power():
    found = simulation.planned(np.random.default_rng(0), RUNS, distances=(1.0,), num=50)
    assert len(found) == 4 and [one for one in found if not one.holds()] == []


def test_adding_until_it_tells_errs_more_often_and_a_new_run_does_not():
    few, many, new = simulation.adding(np.random.default_rng(0), 4000)
    assert 0.07 < few.value < 0.1 < many.value < 0.13
    assert new.holds() and new.value > 0.015
