"""A grid of experiments: what several of them have in common is trained once, and each is what it is alone."""

import itertools
import shutil

import pytest

import lottery
from lottery import config, files, progress
from lottery.errors import LotteryError
from lottery.pipeline import presets, sweeping
from lottery.runs import store, verification
from lottery.runs.stored import StoredRound
from lottery.statistics import comparison
from tests.conftest import SMALL, contents, quietly

pytestmark = pytest.mark.usefixtures("traced_once")

TABLES = {
    **SMALL,
    "name": "grid",
    "train": SMALL["train"] | {"num_steps": 40, "eval_every": 20},
    "prune": {"num_rounds": 2},
    "run": {"num_replicates": 2, "controls": ["random_mask"], "control_rounds": [1]},
}
GRID = {"rewind.step": [10, 15], "prune.num_rounds": [2, 1]}


def trained(events):
    return [event for event in events if isinstance(event, progress.Done)]


def test_each_experiment_is_what_it_is_alone(tmp_path, traced_once):
    said = []
    runs = lottery.sweep({**TABLES, "sweep": GRID}, out=tmp_path / "grid", on_event=said.append)
    found = sweeping.points({**TABLES, "sweep": GRID})
    assert [point.values for point in found] == [
        dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())
    ]
    notes = [getattr(event, "text", "") for event in said]
    assert sum("finer than one test example (1 of 360):" in note for note in notes) == 1  # not for each run
    # One dense network for all; for each step the pruned rounds and branches of the larger number of rounds.
    assert len(trained(said)) == 2 * (1 + 2 * (2 + 1))
    assert any(
        "4 experiments. Networks to train: 14; 14 more are the same" in event.text
        for event in said
        if isinstance(event, progress.Note)
    )
    states = list((tmp_path / "grid").rglob("step-*.safetensors"))
    assert len(states) == 2 and all(path.name == "step-00015.safetensors" for path in states)
    for run, point in zip(runs, found, strict=True):
        assert [wrong for _, wrong in verification.verify(run.path) if wrong] == []
        assert run.experiment == point.settings and str(point.values["rewind.step"]) in run.path.name
    shutil.rmtree(runs[3].path)
    for path in states:
        content = bytearray(path.read_bytes())
        content[-9] ^= 1
        path.write_bytes(content)
    with pytest.raises(LotteryError, match="step-00015.safetensors' is damaged"):
        lottery.sweep({**TABLES, "sweep": GRID}, out=tmp_path / "grid", on_event=quietly)
    for path in states:
        path.unlink()
    lottery.sweep({**TABLES, "sweep": GRID}, out=tmp_path / "grid", on_event=quietly)
    traced_once.clear()
    for point in (found[0], found[3]):
        alone = lottery.run(point.settings.model_dump(), out=tmp_path / "alone", on_event=quietly)
        assert contents(alone.path) == contents(tmp_path / "grid" / alone.path.name)
    # The same again trains nothing; an experiment that was deleted is made of the others, or trained, to the same bits.
    before = contents(tmp_path / "grid")
    shutil.rmtree(runs[1].path)
    said.clear()
    lottery.sweep({**TABLES, "sweep": GRID}, out=tmp_path / "grid", on_event=said.append)
    assert contents(tmp_path / "grid") == before
    assert not [one for one in trained(said) if one.where.run == runs[1].path]
    table = comparison.of_sweep([(run.path, point.values) for run, point in zip(runs, found, strict=True)])
    assert table["run"].tolist() == [str(run.path) for run in runs] and table["dense_accuracy"].nunique() == 1
    assert table["rewind.step"].tolist() == [10, 10, 15, 15]


@pytest.mark.parametrize(
    "tables,said",
    [
        ({}, "has a table"),
        ({"sweep": {"prune.rate": 0.2}}, "sweep.prune.rate must be a list of values, not 0.2"),
        ({"sweep": {"prune.rate": []}}, "must be a list of values"),
        ({"sweep": {"prune.rat": [0.2]}}, "Did you mean 'rate'"),
        ({"sweep": {"prune.rate": [0.2, 2.0]}}, "prune.rate must be .*not 2.0"),
        ({"sweep": {"run.num_threads": [1, 2]}}, "cannot vary 'run.num_threads'"),
        ({"sweep": {"name": ["a", "b"]}}, "cannot vary 'name'"),
        ({"sweep": {"prune.rate": [0.2, 0.3, 0.2]}}, "prune.rate = 0.2 appears twice"),
        ({"sweep": {"prune.rate": [0.2]}, "experiment": "nowhere"}, "There is no experiment file 'nowhere'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(tmp_path, tables, said):
    with pytest.raises(LotteryError, match=said):
        lottery.sweep({**TABLES, **tables}, out=tmp_path / "runs", on_event=quietly)
    assert not list(tmp_path.iterdir())


def test_a_sweep_starts_from_an_experiment_that_ships_and_takes_overrides(tmp_path):
    file = tmp_path / "rates.toml"
    file.write_text(
        'experiment = "lenet_mnist"\nname = "rates"\n[sweep]\n"prune.rate" = [0.1, 0.3]\n[sweep.train]\nnum_steps = [70, 90]\n'
    )
    found = sweeping.points(file, {"run": {"num_replicates": 1}})
    with pytest.raises(LotteryError, match=r"prune.rate has values in \[sweep\], so it cannot be set for every"):
        sweeping.points(file, {"prune": {"rate": 0.2}})
    base = config.load(presets.named("lenet_mnist"))
    assert [(one.settings.prune.rate, one.settings.train.num_steps) for one in found] == [
        (0.1, 70),
        (0.1, 90),
        (0.3, 70),
        (0.3, 90),
    ]
    assert all(one.settings.data == base.data and one.settings.run.num_replicates == 1 for one in found)
    assert len({one.settings.name for one in found}) == 4 and found[0].settings.name == "rates-rate-0.1-num_steps-70"


def test_what_decides_a_network():
    """Each key of an experiment, changed alone, is another round 0, another pruned round, or neither."""
    base, here = config.load(TABLES), {"data_sha256": "abc", "num_threads": 1}
    others = {
        "nothing": [("name", "other"), ("run.num_replicates", 7), ("run.controls", []), ("run.control_rounds", [2]), ("prune.num_rounds", 3)],
        "pruned": [("prune.rate", 0.3), ("prune.criterion", "random"), ("prune.scope", "global"), ("rewind.step", 5), ("rewind.mode", "sign"),
                   ("prune.final_density", 0.1), ("prune.schedule", "linear"), ("prune.iterative", False), ("prune.rates", {"dense/kernel": 0.1}), ("prune.num_examples", 3), ("prune.granularity", "unit")],
        "dense": [("train.num_steps", 41), ("train.learning_rate", 0.1), ("train.batch_size", 8), ("train.eval_every", 10), ("train.test_curve", True), ("data.validation", 100),
                  ("data.pixels", "unit"), ("model.name", "lenet_5"), ("run.seed", 3), ("run.enforcement", "gradient"), ("train.jit_compile", True), ("train.optimizer", "sgd")],
    }  # fmt: skip
    for kind, changes in others.items():
        for key, value in changes:
            section, _, name = key.rpartition(".")
            other = config.load(TABLES, {section: {name: value}} if section else {name: value})
            same = [sweeping._prefix(base, here, index) == sweeping._prefix(other, here, index) for index in (0, 1, 2)]
            assert same == {"nothing": [True] * 3, "pruned": [True, False, False], "dense": [False] * 3}[kind], key
    short, long = (
        config.load({**TABLES, "prune": {"granularity": "n_of_m", "n_of_m": [1, 4], "num_rounds": num}})
        for num in (1, 3)
    )  # of one round, or of three that each prune an entry of four
    assert sweeping._prefix(short, here, 0) == sweeping._prefix(long, here, 0)
    assert sweeping._prefix(short, here, 1) != sweeping._prefix(long, here, 1)
    for key in sweeping.COMPUTED_WITH:
        assert sweeping._prefix(base, here, 0) != sweeping._prefix(base, here | {key: "another"}, 0), key
    one, other = (
        {**TABLES, "prune": {"schedule": "explicit", "densities": each}} for each in ([0.5, 0.2], [0.5, 0.3, 0.1])
    )
    assert [
        sweeping._prefix(config.load(one), here, k) == sweeping._prefix(config.load(other), here, k) for k in (0, 1, 2)
    ] == [
        True,
        True,
        False,
    ]


def test_a_branch_from_round_0_is_what_it_is_alone(tmp_path):
    """What is drawn anew for it is set back by the rewinding mode, though round 0 itself is the same in all modes."""
    run = {"num_replicates": 1, "controls": ["random_reinit"], "control_rounds": [0]}
    tables = {**TABLES, "prune": {"num_rounds": 1}, "run": run, "train": TABLES["train"] | {"num_steps": 2}}
    said = []
    runs = lottery.sweep({**tables, "sweep": {"rewind.mode": ["weights", "sign"]}}, out=tmp_path, on_event=said.append)
    assert len(trained(said)) == 1 + 2 * 2
    starts = [StoredRound(done.path, 1, 0, "random_reinit").record["start_sha256"] for done in runs]
    assert len(set(starts)) == 2
    assert [wrong for done in runs for wrong in done.verify(recompute=True)] == []


def test_a_branch_from_round_0_is_copied_beside_the_weights_that_its_run_rewinds_to(tmp_path):
    run = {"num_replicates": 1, "controls": ["random_mask"], "control_rounds": [0]}
    tables = {**TABLES, "prune": {"num_rounds": 1}, "run": run, "rewind": {"step": 1}}
    tables["train"] = {**TABLES["train"], "num_steps": 2}
    said = []
    runs = lottery.sweep({**tables, "sweep": {"prune.rate": [0.2, 0.5]}}, out=tmp_path, on_event=said.append)
    assert len(trained(said)) == 2 + 2 * 1
    copied = [StoredRound(done.path, 1, 0, "random_mask").record for done in runs]
    assert copied[0] == copied[1] and "rewind_sha256" not in copied[1]


def test_a_model_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_sweep.py").write_text(
        "def build():\n    import keras\n    layers = keras.layers\n"
        "    return keras.Sequential([keras.Input((8, 8)), layers.Flatten(), layers.Dense(10)])\n"
    )
    tables = {**TABLES, "model": {"name": "own_sweep:build"}, "prune": {"num_rounds": 1}, "run": {"num_replicates": 1}}
    tables = {**tables, "sweep": {"prune.rate": [0.2, 0.3]}}
    tables["train"] = {**TABLES["train"], "num_steps": 20}
    said = []
    runs = lottery.sweep(tables, out=tmp_path / "runs", on_event=said.append)
    assert len(trained(said)) == 1 + 2 and [len(run.table()) for run in runs] == [2, 2]


def test_a_damaged_original_is_not_copied(small_run, tmp_path):
    copy = tmp_path / small_run.path.name
    shutil.copytree(small_run.path, copy)
    path = copy / "replicate-1/round-00/weights.safetensors"
    files.write(path, path.read_bytes()[:-1])
    job, original = (lottery.executors.scheduler.Job(run, store.NetworkId(1, 0)) for run in (tmp_path / "other", copy))
    files.write(job.run / "experiment.toml", config.dump(small_run.experiment).encode())
    with pytest.raises(LotteryError, match="is damaged"):
        sweeping._copy_network(job, original, small_run.experiment)
    assert not store.is_stored(*job[:1], *job.network)
