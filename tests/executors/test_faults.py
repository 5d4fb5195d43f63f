import subprocess
import sys

import pytest

from tests.scripts import faults


@pytest.fixture(scope="module")
def world(tmp_path_factory, traced_once):
    """Runs that go on after a fault share a trainer, but not with the run that was left alone."""
    made = faults.World(tmp_path_factory.mktemp("faults"), num_replicates=1)
    traced_once.clear()
    return made


def test_a_full_disk_is_one_sentence_and_costs_nothing(world):
    (row,) = faults.full_for_good(world)
    assert "the disk is full" in row.read


def test_a_damaged_file_is_named_with_what_to_do(world):
    for row in faults.damaged(world, ("weights", "environment"), seeds=1):
        assert "is damaged" in row.read and ("delete" in row.read or "restore" in row.read)


def test_a_folder_that_is_deleted_stays_so(world):
    (row,) = faults.folder_deleted(world)
    assert row.read == "'RUN' was removed or moved during the run, so nothing more is stored there."


def test_data_that_change_while_a_run_is_trained_are_refused(world, monkeypatch):
    """As in a process that is started anew: what this one has prepared is not what a new one would load."""
    from lottery.pipeline import worker

    run, number = world.copy(world.partial), []
    honest = worker.Worker.__init__

    def unprepared(self, recipes, on_event, should_stop, every, prepared):
        number.append(world.data.read_bytes())
        arrays = dict(faults.np.load(world.data))
        arrays["x_train"][0] += 1
        faults.np.savez(world.data, **arrays)
        honest(self, recipes, on_event, should_stop, every, {})

    with monkeypatch.context() as patched:
        patched.setattr(worker.Worker, "__init__", unprepared)
        assert "differ from the data of" in world.refused(run)
    world.data.write_bytes(number[0])
    world.check_end(run)


@pytest.mark.long
def test_every_fault():
    done = subprocess.run(
        [sys.executable, "-m", "tests.scripts.faults"], capture_output=True, text=True, cwd=faults.ROOT
    )
    assert done.returncode == 0 and done.stdout.count("\n") > 30, done.stderr
