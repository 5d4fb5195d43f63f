import pytest

from lottery import cli
from lottery.pipeline import environment
from tests.conftest import keep_graphs
from tests.scripts.kill_and_resume import command, has_ray, kill_and_resume, left_alone

SMALLER = ("prune.num_rounds=1", "train.num_steps=240", "train.jit_compile=false")
rewritten = pytest.mark.rewritten  # as in the processes that are killed


def in_this_process(out, *options):
    """Run to the end: what is killed before, or not at all, needs no process of its own for that."""
    keep_graphs(False)
    cli.app(command(out, *options), standalone_mode=False)
    return 0, ""


@pytest.fixture(scope="module")
def smaller():
    return *SMALLER, f"run.num_threads={environment.num_threads()}"  # bits depend on it


@pytest.fixture(scope="module")
def whole(tmp_path_factory, smaller):
    return left_alone(tmp_path_factory.mktemp("alone"), smaller, to_the_end=in_this_process)


@rewritten
def test_a_run_that_is_left_alone_leaves_no_checkpoint(whole):
    """It is a test by itself so that the next one does not take its time too."""
    names = set(whole)
    assert len([name for name in names if name.endswith("round.json")]) == 6
    assert not [name for name in names if "checkpoint" in name]


@rewritten
def test_two_kills_change_no_bit(whole, smaller, tmp_path):
    kinds = ("worker", "trees")
    done = kill_and_resume(2, 33, tmp_path, kinds, words=smaller, whole=whole, to_the_end=in_this_process)
    assert not done.wrong and done.in_mid_round >= 1


@pytest.mark.long
def test_twenty_kills_change_no_bit(tmp_path):
    done = kill_and_resume(21, seed=11, folder=tmp_path)
    assert not done.wrong and done.in_mid_round >= 12


@pytest.mark.long
def test_kills_of_ray_workers_change_no_bit(tmp_path):
    if not has_ray():
        pytest.skip("needs `lottery run --on ray`")
    assert not kill_and_resume(5, seed=17, folder=tmp_path, kinds=("ray",)).wrong
