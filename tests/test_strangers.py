"""What a stranger's run folder or experiment file may not do on the machine of whoever opens it."""

import sys

import pytest

import lottery
from lottery import config
from lottery.errors import LotteryError
from lottery.models import networks
from tests.conftest import SMALL, quietly
from tests.scripts import forging

CODE = """
from pathlib import Path
Path(__file__).with_name("imported").touch()
def net():
    import keras
    layers = keras.layers
    return keras.Sequential([keras.Input((8, 8)), layers.Flatten(), layers.Dense(10)])
"""
TINY = SMALL | {
    "train": SMALL["train"] | {"num_steps": 4, "eval_every": 2},
    "prune": {"num_rounds": 1},
    "run": {"num_replicates": 1},
    "model": {"name": "stranger_package.deep.own:net"},
}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A file with a function `net` in packages below the current folder, that leaves a trace when it is imported."""
    folder = tmp_path / "stranger_package" / "deep"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text(CODE)
    (folder / "own.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder / "own.py"
    for name in [name for name in sys.modules if name.startswith("stranger_package")]:
        del sys.modules[name]


def traces(own):
    return [*own.parents[1].rglob("imported")]


def test_no_command_imports_code_that_a_file_names(own, small_run, tmp_path, lottery_command):
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(config.dump(config.load(TINY)))
    grid = tmp_path / "grid.toml"
    grid.write_text('experiment = "experiment.toml"\n[sweep]\n"prune.rate" = [0.1, 0.2]\n')
    run = forging.copied(small_run.path, tmp_path / "run", lambda tables: tables.update(model=TINY["model"]))
    for words in (
        ("run", experiment),
        ("run", experiment, "--smoke"),
        ("run", experiment, "train.num_steps=3"),
        ("plan", experiment),
        ("plan", "--from", run, "prune.num_rounds=1"),
        ("sweep", grid),
        ("branch", run, "untrained", "--rounds", "1"),
        ("branch", run, "random_reinit", "--rounds", "1"),
        ("analyze", "connectivity", run, "--rounds", "1"),
        ("verify", run, "--recompute"),
    ):
        done = lottery_command(*words, "--out", tmp_path / "runs") if words[0] in ("run", "sweep") else lottery_command(*words)  # fmt: skip
        if words[:2] == ("plan", "--from"):
            assert done.returncode == 0  # it needs no network
        else:
            told = " ".join(done.stderr.split())
            assert (done.returncode, done.stdout) == (2, ""), words
            assert "'stranger_package.deep.own:net'" in told and f"'{own}'" in told and "--import-code" in told, told
            assert told.count("lottery:") == 1
        assert not traces(own) and "stranger_package" not in sys.modules, words
    assert not (tmp_path / "runs").exists()


def test_python_imports_no_code_that_a_file_names_either(own, small_run, tmp_path):
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(config.dump(config.load(TINY)))
    run = forging.copied(small_run.path, tmp_path / "run", lambda tables: tables.update(model=TINY["model"]))
    for call in (
        lambda: lottery.run(experiment, out=tmp_path / "runs", report=quietly),
        lambda: lottery.run(str(experiment), {"train": {"num_steps": 3}}, out=tmp_path / "runs", report=quietly),
        lambda: lottery.sweep({"experiment": str(experiment), "sweep": {"prune.rate": [0.1]}}, report=quietly),
        lambda: lottery.branch(run, "untrained", report=quietly),
        lambda: lottery.load(run).verify(recompute=True),
    ):
        with pytest.raises(LotteryError, match=r"import_code=True"):
            call()
        assert not traces(own)


def test_code_is_imported_where_the_user_names_or_trusts_it(own, tmp_path, lottery_command):
    experiment, name = tmp_path / "experiment.toml", TINY["model"]["name"]
    experiment.write_text(config.dump(config.load(TINY | {"model": {}})))
    done = lottery_command("plan", experiment, f"model.name={name}")
    assert done.returncode == 0 and len(traces(own)) == 2
    experiment.write_text(config.dump(config.load(TINY)))
    assert lottery_command("plan", experiment, "--import-code").returncode == 0
    events = []
    run = lottery.run(TINY, out=tmp_path / "runs", report=events.append)  # the caller's own tables
    assert f"{name} is imported from {own}." in [getattr(event, "text", "") for event in events]
    with pytest.raises(LotteryError, match="import_code=True"):
        run.branch("untrained", report=quietly)
    run.branch("untrained", report=quietly, import_code=True)
    assert lottery.run(experiment, out=tmp_path / "runs", report=quietly, import_code=True).path == run.path
    assert len(run.table()) == 3 and run.verify(recompute=True, import_code=True) == []


def test_the_file_of_a_module_is_found_without_importing(own):
    assert networks.module_file("stranger_package.deep.own") == own
    assert networks.module_file("lottery.config") and networks.module_file("sys") is None
    for name in ("stranger_package.deep.other", "no.such", "", ".", "a..b", "stranger_package.deep.own.more"):
        assert networks.module_file(name) is None, name
    assert not traces(own)
