"""What a run records of the checkout that it is computed with, and on how many threads it trains."""

import subprocess

import pytest

from lottery import config
from lottery.pipeline import environment


def test_git_only_reads_the_checkout(monkeypatch):
    """Without --no-optional-locks, `git describe --dirty` may write the index of a checkout that others work with."""
    called = []

    def run(command, **options):
        called.append(command)
        return subprocess.CompletedProcess(command, 0, stdout="1a2b3c4d\n")

    monkeypatch.setattr(subprocess, "run", run)
    assert environment._commit() == "1a2b3c4d"
    assert called and all(command[:2] == ["git", "--no-optional-locks"] for command in called)


@pytest.mark.parametrize(
    ("cores", "run", "recorded", "threads"),
    [
        (2, {"num_replicates": 1, "controls": []}, {}, 2),
        (2, {"num_replicates": 2, "controls": []}, {}, 1),
        (2, {"num_replicates": 2}, {}, 1),
        (8, {"num_replicates": 2}, {}, 2),
        (64, {"num_replicates": 2}, {}, 2),  # a small network gains by no more
        (64, {"num_threads": 5}, {}, 5),
        (64, {"num_threads": 5}, {"num_threads": 3}, 3),
    ],
)
def test_a_run_takes_its_part_of_the_cores_and_keeps_it(cores, run, recorded, threads, monkeypatch):
    monkeypatch.setattr(environment, "use_threads", lambda wanted: wanted)
    monkeypatch.setattr("loky.cpu_count", lambda: cores)
    assert (
        environment.begin(config.load({"data": {"name": "digits", "validation": 137}, "run": run}), recorded) == threads
    )
