"""What a run records of the checkout that it is computed with."""

import subprocess

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
