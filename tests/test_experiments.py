"""Every preset: its header, its smoke test, and the commands that list and copy it."""

import json
import re
import subprocess
import sys
from concurrent import futures
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import typer
from scipy import stats
from typer.testing import CliRunner

import lottery
from lottery import cli, config, data, masks
from lottery.errors import LotteryError
from lottery.pipeline import environment, presets
from lottery.runs import verification
from lottery.training.settings import OF_COMPILING
from tests.conftest import quietly

NAMES = list(config.shipped())
# Those whose networks are too large for the default run, which has one Conv and one ResNet; `-m long` walks them too.
LARGE = (
    "conv_2_cifar10", "conv_4_cifar10", "conv_6_cifar10", "lenet_mnist_criteria", "lenet_mnist_held_at",
    "resnet_20_cifar10", "resnet_20_cifar10_at_init", "resnet_20_cifar10_late", "vgg_19_cifar10",
)  # fmt: skip


EXPERIMENTS = Path(__file__).parents[1] / "experiments"


@pytest.fixture
def command(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def call(*words):
        result = CliRunner().invoke(cli.app, list(words))
        if isinstance(result.exception, LotteryError):
            raise result.exception
        return result

    return call


def test_each_published_experiment_has_a_preset():
    assert len(NAMES) == 14
    assert {path.stem for path in EXPERIMENTS.glob("*.toml")} | {"mnist1d"} == set(NAMES)


def test_the_figure_and_the_table_of_conv_4_have_the_same_numbers():
    page = (EXPERIMENTS.parent / "docs" / "reproductions.md").read_text().replace("−", "-")
    rows = pd.read_csv(EXPERIMENTS / "conv_4_cifar10.csv")
    tickets = rows[rows["branch"] == "ticket"]
    values = 100 * tickets.pivot(index="replicate", columns="round", values="early_stop_test_accuracy")
    steps = tickets.pivot(index="replicate", columns="round", values="early_stop_step")
    for number, line in values.iterrows():
        cells = [f"{value:.2f} %, {steps.loc[number, index]:,}" for index, value in line.items()]
        gains = [f"{value:+.2f}" for value in (line - line[0])[1:]]
        pairs = [cell for pair in zip(cells[1:], gains, strict=True) for cell in pair]
        assert " | ".join([f"| {number}", cells[0], *pairs]) in page
    gains = values.sub(values[0], axis=0).drop(columns=0)
    half = stats.t.ppf(0.975, 2) * gains.sem()
    ends = [f"{low:+.2f} to {high:+.2f}" for low, high in zip(gains.mean() - half, gains.mean() + half, strict=True)]
    assert f"| 95 % interval | | | {' | | '.join(ends)} |" in page


@pytest.mark.parametrize("name", NAMES)
def test_headers_are_complete(name):
    text = presets.named(name).read_text(encoding="utf-8")
    header = text[: text.index("\n\n")]
    assert all(line.startswith("#") for line in header.splitlines())
    for what in ("Command:", "Time:", "Look at:" if name != "lenet_mnist" else "Check:"):
        assert f"# {what}" in header, what
    assert "Reproduces:" in header or "What it shows:" in header
    assert "@" not in header and ("arxiv.org" in header or name == "digits")
    row = next(row for row in presets.listed() if row["name"] == name)
    assert len(row["reproduces"]) > 20
    command = re.search(r"lottery run(?: experiments/(\w+)\.toml)?", header)
    assert command and (command[1] or "mnist1d") == name


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LARGE else name for name in NAMES]
)
def test_smoke(name, tmp_path):
    """All of it runs, in its own shapes, and `verify` finds nothing wrong."""
    experiment = config.load(presets.named(name))
    tables, arrays = presets.smoke_test(experiment)
    assert tables["run"]["num_replicates"] == presets.NUM_REPLICATES
    tables["run"]["num_replicates"] = 1  # the second takes as long, and does nothing else
    run = lottery.run(tables, data=arrays, out=tmp_path, on_event=quietly)
    rows = run.table()
    used = run.experiment
    assert set(rows["branch"]) == {"ticket", *experiment.run.controls}
    assert len(rows) == used.run.num_replicates * (1 + used.prune.num_rounds * (1 + len(used.run.controls)))
    check_shrunk(used, experiment)
    assert [sentence for _, wrong in verification.verify(run.path) for sentence in wrong] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_smoke_test_shrinks_sizes_and_nothing_else(name):
    """Also of those that only `-m long` trains."""
    experiment = config.load(presets.named(name))
    check_shrunk(config.load(presets.smoke_test(experiment)[0]), experiment)


def test_what_a_model_is_compiled_with_is_left_to_it():
    """In a smoke test and a rehearsal too, only what the experiment says is set."""
    own, said = config.load({"train": {"num_steps": 40}}), config.load({"train": {"drop_at": [20], "warmup_steps": 9}})
    for tables in config.as_tables(own), presets.smoke_test(own)[0]:
        assert not OF_COMPILING & tables["train"].keys() and config.load(tables).train.optimizer == "adam"
    assert config.load(config.as_tables(said)) == said
    assert {"drop_at", "warmup_steps"} <= presets.smoke_test(said)[0]["train"].keys()


def check_shrunk(used, experiment):
    assert used.name == f"{experiment.name}-smoke" and used.prune.num_rounds == presets.NUM_ROUNDS
    for key in ("criterion", "scope", "allocation", "schedule", "iterative", "rates"):
        assert getattr(used.prune, key) == getattr(experiment.prune, key), key
    assert used.model.name == experiment.model.name and used.rewind.mode == experiment.rewind.mode
    assert bool(used.rewind.step) == bool(experiment.rewind.step)
    assert len(used.train.drop_at) == len(experiment.train.drop_at) and used.data.augment == experiment.data.augment
    assert bool(used.train.warmup_steps) == bool(experiment.train.warmup_steps)


def test_made_data_can_be_learned_and_have_the_shape_of_the_real(mnist_path):
    real = np.load(mnist_path)
    made = presets.smoke_test(config.load(presets.named("lenet_mnist")))[1]
    for array, key in zip(made, ("x_train", "y_train", "x_test", "y_test"), strict=True):
        assert array.shape[1:] == real[key].shape[1:] and array.max() <= 255
        assert array.dtype == np.uint8 or key.startswith("y")
    assert set(made[1]) == set(range(10))
    for name in [name for name, dataset in data.DATASETS.items() if dataset.is_local]:
        made, real = presets.smoke_test(config.load(presets.named(name)))[1], data.DATASETS[name].load()
        for array, key in zip(made[::2], ("x_train", "x_test"), strict=True):
            assert (array.shape[1:], array.dtype) == (real[key].shape[1:], real[key].dtype)
    with pytest.raises(LotteryError, match=r"--smoke makes data for mnist1d, digits.*not for data.name = 'npz'"):
        presets.smoke_test(config.load({"data": {"name": "npz", "path": "x.npz"}}))


def test_list_show_and_copy(command, tmp_path):
    listed = json.loads(command("experiments", "ls", "--json").stdout)
    assert {row["name"] for row in listed} == set(NAMES)
    assert config.shipped()[listed[0]["name"]].parent == Path(lottery.__file__).parent  # the default
    by_name = {row["name"]: (row["paper"], row["figure"]) for row in listed}
    assert by_name["conv_4_cifar10"] == ("Frankle & Carbin 2019", "figure 5")
    assert by_name["lenet_mnist"] == ("Frankle & Carbin 2019", "figures 1 and 3")
    assert by_name["lenet_mnist_criteria"] == ("Zhou et al. 2019", "figure 3")
    assert by_name["resnet_20_cifar10_lr_rewinding"] == ("Renda, Frankle & Carbin 2020", "section 4")
    assert all(paper for name, (paper, _) in by_name.items() if "digits" not in name)
    assert "conv_4_cifar10" in command("experiments", "ls").stdout
    assert command("experiments", "show", "conv_4_cifar10").stdout == presets.named("conv_4_cifar10").read_text()
    assert command("experiments", "cp", "conv_4_cifar10").stdout.strip() == "conv_4_cifar10.toml"
    assert config.load(tmp_path / "conv_4_cifar10.toml") == config.load(presets.named("conv_4_cifar10"))
    with pytest.raises(LotteryError, match="exists; remove it"):
        command("experiments", "cp", "conv_4_cifar10")
    with pytest.raises(LotteryError, match="There is no experiment 'conv4'. Did you mean 'conv_4_cifar10'"):
        command("experiments", "show", "conv4")


def test_run_takes_a_name_and_a_file_wins(command, tmp_path):
    assert config.read(Path("lenet_mnist")) == config.read(presets.named("lenet_mnist"))
    (tmp_path / "conv_2_cifar10").mkdir()  # holds no experiment, so the name still means the preset
    assert config.read(Path("conv_2_cifar10")) == config.read(presets.named("conv_2_cifar10"))
    (tmp_path / "lenet_mnist").write_text("name = 'mine'")
    assert config.read(Path("lenet_mnist")) == {"name": "mine"}
    result = command("run", "--smoke", "run.num_replicates=1", "prune.num_rounds=1")
    assert result.exit_code == 0, result.output
    assert "mnist1d-smoke-" in result.stdout


def test_engines_are_measured(monkeypatch, lottery_command, tmp_path, compiled_kernels):
    """The smallest measurement, in this process: the program's own processes would import TensorFlow again."""
    monkeypatch.syspath_prepend(EXPERIMENTS)
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")  # the program sets another
    import benchmark_engines
    import benchmark_training

    def command(words, out):
        done = lottery_command("run", *words, f"--out={out}")
        assert done.returncode == 0, done.stderr
        return 1.0, next(path.parent for path in out.glob("*/experiment.toml"))

    images = benchmark_training.random_images(5100, 20)
    monkeypatch.setattr(benchmark_engines, "timed_command", command)
    monkeypatch.setattr(benchmark_engines, "in_fresh_process", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(benchmark_engines, "random_images", lambda *_: images)
    monkeypatch.setattr(benchmark_engines, "load", lambda _: (data.split(images, data.Data()), ""))
    app, file = typer.Typer(), tmp_path / "engines.json"
    app.command()(benchmark_engines.main)
    words = f"--densities 0.7 --repetitions 1 --steps 2 --network-steps 1 --threads {environment.num_threads()}"
    result = CliRunner().invoke(app, [*words.split(), f"--json={file}"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert all(title in result.stdout for title in ("A step", "An evaluation: 5,000 images", "Seconds to start"))
    measured = json.loads(file.read_text())
    found = measured["steps"]
    assert found["round"] == {"0.7": 2} and found["density"] == {"0.7": pytest.approx(0.64, abs=0.001)}
    for what, num in ("steps", 1), ("evaluations", 4):
        assert {name: len(times) for name, times in found[what].items()} == {"0.7": num, "compiled": num}
        assert all(time > 0 for times in found[what].values() for time in times)
    assert len(measured["start"]) == 2


@pytest.fixture
def peers(monkeypatch):
    """The program that measures PyTorch beside `lottery`, with its contestants in this process."""
    monkeypatch.syspath_prepend(EXPERIMENTS)
    import benchmark_peers

    class Here:
        """Stands for a process of its own, which would import TensorFlow again."""

        def __init__(self, *settings):
            self.submit = futures.ThreadPoolExecutor(1).submit

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

    for name in ("TF_ENABLE_ONEDNN_OPTS", benchmark_peers.THREADS):
        monkeypatch.setenv(name, "")  # the program sets others
    monkeypatch.setattr(benchmark_peers, "ProcessPoolExecutor", Here)
    yield benchmark_peers
    benchmark_peers._OPEN.close()


def test_peers_need_pytorch(peers, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    app = typer.Typer()
    app.command()(peers.main)
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 2 and "pip install torch==" in result.stderr and not result.stdout


def test_onednn_is_measured_without_pytorch(peers, tmp_path):
    """The smallest measurement, of the columns and the file; in one process both contestants have one setting."""
    app, file = typer.Typer(), tmp_path / "onednn.json"
    app.command()(peers.main)
    words = f"--onednn --network lenet_mnist --repetitions 2 --steps 1 --threads {environment.num_threads()}"
    result = CliRunner().invoke(app, [*words.split(), f"--json={file}"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (measured,) = json.loads(file.read_text())["networks"]["lenet_mnist"].values()
    for times in measured["seconds"], measured["processor"]:
        assert {name: len(each) for name, each in times.items()} == {peers.OFF: 2, peers.ON: 2}
    assert all(f"compiled, oneDNN {word}" in result.stdout for word in ("off", "on"))


def test_masks_of_a_benchmark_are_those_of_the_nearest_round(peers, rng):
    experiment = config.load(presets.named("lenet_mnist"))
    arrays = {name: rng.normal(size=(60, 50)) for name in ("dense/kernel", "dense_1/kernel", "dense_2/kernel")}
    assert masks.density(peers.masks_at(experiment, arrays, 1)) == 1
    found = peers.masks_at(experiment, arrays, 0.4)
    assert [round(mask.mean(), 3) for mask in found.values()] == [0.328, 0.328, 0.59]  # round 5 of rates 0.2 and 0.1


@pytest.mark.long
def test_all_of_engines_is_measured(tmp_path):
    """Its other parts, as a user types them."""
    parts = {"--whole": "whole", "--original": "original", "--agreement": "agreement"}
    words = [*parts, "--turns=1", "--network-steps=2", "--json=engines.json"]
    line = [sys.executable, EXPERIMENTS / "benchmark_engines.py", *words]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    measured = json.loads((tmp_path / "engines.json").read_text())
    for part, num in ("whole", 61), ("original", 21):
        (turn,) = measured[part]
        assert {engine: len(found["networks"]) for engine, found in turn.items()} == {"compiled": num, "auto": num}
    agreement = measured["agreement"]
    assert [len(agreement[engine]) for engine in ("compiled", "sparse")] == [25, 25]
    assert 0 <= agreement["engine_difference"] < 0.01
