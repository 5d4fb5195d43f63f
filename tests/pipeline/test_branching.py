"""Runs with late rewinding, controls and branches, from the files that they leave."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import lottery
from lottery import cli, config, files, masks, plots, randomness, weights
from lottery.analysis import costs
from lottery.data import Streams
from lottery.errors import LotteryError
from lottery.pipeline import branching, preparing
from lottery.pipeline.prepared import Ingredients, with_other_data
from lottery.pipeline.session import Execution
from lottery.pruning import branches, dynamic
from lottery.runs import store, verification
from lottery.settings import GIVEN
from lottery.statistics import tables, verdicts
from lottery.training.records import Span
from tests.conftest import checksum, quietly, toy_arrays

pytestmark = pytest.mark.usefixtures("traced_once")

K = 15
TABLES = {
    "name": "branched",
    "data": {"validation": 40},
    "train": {
        "num_steps": 40,
        "eval_every": 10,
        "batch_size": 16,
        "jit_compile": False,
        "optimizer": "sgd",
        "learning_rate": 0.1,
    },
    "prune": {"num_rounds": 2, "rate": 0.4},
    "run": {"num_replicates": 2},
}
CONTROLS = [name for name in branches.controls() if branches.BRANCHES[name].kind == "control"]


def build():
    import keras

    layers = keras.layers
    return keras.Sequential([keras.Input((6,)), layers.Dense(24, "relu"), layers.BatchNormalization(), layers.Dense(3)])


def arrays(seed=3):
    return toy_arrays(np.random.default_rng(seed), 200, 40)


def go(out, overrides=None, **options):
    given = {"model": build, "data": arrays(), "on_event": quietly, "tensorboard": False} | options
    return lottery.run(TABLES, overrides, out=out, **given)


def folder_of(run, replicate=1, index=2, branch="ticket"):
    return store.round_path(run.path, replicate, index, branch)


def state(folder, name="weights"):
    return files.read_arrays(folder / f"{name}.safetensors")


def record(folder):
    return store.read_record(folder)


def is_right(run):
    return [sentence for _, wrong in verification.verify(run.path) for sentence in wrong]


@pytest.fixture(scope="module")
def controlled(traced_once, tmp_path_factory):
    """A run with late rewinding and every control."""
    return go(tmp_path_factory.mktemp("controlled"), {"rewind": {"step": K}, "run": {"controls": CONTROLS}})


@pytest.fixture(scope="module")
def made(traced_once, tmp_path_factory):
    """A run of one replicate; see `single`."""
    return go(tmp_path_factory.mktemp("single"), {"run": {"num_replicates": 1}})


@pytest.fixture
def single(made, tmp_path):
    """A copy of a run of one replicate, to branch from and to damage."""
    return lottery.load(shutil.copytree(made.path, tmp_path / made.path.name))


def test_a_run_with_controls_is_complete_and_right(controlled):
    rows = controlled.table()
    counted = rows.groupby("branch").size()
    assert counted["ticket"] == 2 * 3
    assert all(counted[name] == 2 * 2 for name in CONTROLS) and len(counted) == 1 + len(CONTROLS)
    assert is_right(controlled) == []
    untrained = rows[rows["branch"] == "untrained"]
    assert (untrained["early_stop_step"] == K).all() and untrained["final_train_loss"].isna().all()


def test_late_rewinding_starts_at_step_k_of_the_dense_network(controlled):
    """With plain SGD, going on from step k without pruning gives the dense network again, bit for bit."""
    start = state(controlled.path / "replicate-1", "start")
    dense = state(folder_of(controlled, index=0))
    initial = state(controlled.path / "replicate-1", "initial")
    assert any(np.any(start[name] != initial[name]) for name in start)
    assert np.any(start["batch_normalization/moving_mean"] != 0), "statistics are rewound with the weights"

    prepared = lottery.pipeline.preparing.prepare(controlled.experiment, Ingredients(build, arrays()))
    ones = masks.ones_like({name: start[name] for name in prepared.trainer.masks})
    words = (controlled.experiment.run.seed, 1, randomness.BATCHES)
    again = prepared.trainer.train(start, ones, words, Span(K))
    assert all(np.array_equal(again.weights[name], dense[name]) for name in dense)
    assert again.metrics[0][0] == K
    wrong = prepared.trainer.train(start, ones, words)
    assert any(np.any(wrong.weights[name] != dense[name]) for name in dense)


def test_rounds_after_the_first_begin_at_step_k(controlled):
    for index, first in ((0, 0), (1, K), (2, K)):
        rows = (folder_of(controlled, index=index) / "metrics.csv").read_text().splitlines()[1:]
        steps = [int(row.split(",")[0]) for row in rows]
        assert min(steps) == first and max(steps) == 40
    start, kept = (
        state(controlled.path / "replicate-1", "start"),
        files.read_masks(folder_of(controlled) / "masks.safetensors"),
    )
    begun = lottery.weights.fingerprint(masks.apply(start, kept))
    assert record(folder_of(controlled))["start_sha256"] == begun


def test_controls_differ_from_the_ticket_and_from_each_other(controlled):
    trained = {name: state(folder_of(controlled, branch=name))["dense/kernel"] for name in ["ticket", *CONTROLS]}
    names = list(trained)
    for position, one in enumerate(names):
        for other in names[:position]:
            assert np.any(trained[one] != trained[other]), (one, other)


def test_an_interrupted_run_ends_with_the_same_bits(controlled, traced_once, tmp_path):
    """Branches and rounds are removed as a kill would have left them; what comes of it is the same."""
    copy = tmp_path / controlled.path.name
    shutil.copytree(controlled.path, copy)
    (folder_of(controlled, 1, 1, "random_mask") / "round.json").exists()
    for folder in (copy / "replicate-1/round-01/branch-random_mask", copy / "replicate-2/round-02"):
        shutil.rmtree(folder)
    traced_once.clear()
    go(tmp_path, {"rewind": {"step": K}, "run": {"controls": CONTROLS}})
    for path in controlled.path.rglob("*.safetensors"):
        assert checksum(path) == checksum(copy / path.relative_to(controlled.path)), path


def changed(run, tmp_path, folder, change):
    """A copy of a run in which one record is changed and sealed again."""
    copy = tmp_path / run.path.name
    shutil.copytree(run.path, copy)
    where = copy / folder.relative_to(run.path)
    stored = change(where, store.read_record(where))
    stored["sha256"] = {name: checksum(where / name) for name in stored["sha256"]}
    stored["record_sha256"] = store._digest_of(stored)
    files.write_json(where / "round.json", stored)
    return [sentence for _, wrong in verification.verify(copy) for sentence in wrong]


@pytest.mark.parametrize("name", ["random_mask", "random_mask_global", "shuffled_mask"])
def test_verify_finds_a_control_with_the_tickets_own_masks(controlled, tmp_path, name):
    """The shuffle that rebinds a local name and shuffles nothing."""

    def own(where, stored):
        kept = files.read_masks(where.parent / "masks.safetensors")
        files.write(where / "masks.safetensors", files.pack_masks(kept))
        trained = masks.apply(state(where), kept)
        files.write(where / "weights.safetensors", files.pack_arrays(trained))
        counts = masks.num_kept(kept)
        return stored | {"kept": counts, "start_sha256": stored["start_sha256"]}

    wrong = changed(controlled, tmp_path, folder_of(controlled, branch=name), own)
    assert any(f"masks differ from the masks of {name}" in sentence for sentence in wrong), wrong


@pytest.mark.parametrize("name", ["reshuffled_init", "signed_constant", "untrained", "random_mask"])
def test_verify_finds_a_control_that_started_elsewhere(controlled, tmp_path, name):
    wrong = changed(
        controlled,
        tmp_path,
        folder_of(controlled, branch=name),
        lambda where, stored: stored | {"start_sha256": "0" * 64},
    )
    assert wrong == [f"Training did not start from the weights of {name}."]


def test_verify_finds_other_start_weights(controlled, tmp_path):
    copy = tmp_path / controlled.path.name
    shutil.copytree(controlled.path, copy)
    start = state(copy / "replicate-1", "start")
    files.write(
        copy / "replicate-1" / "start.safetensors", files.pack_arrays(start | {"dense/bias": start["dense/bias"] + 1})
    )
    wrong = [sentence for _, found in verification.verify(copy) for sentence in found]
    assert "start.safetensors was changed." in wrong
    with pytest.raises(LotteryError, match=r"start\.safetensors' is damaged"):
        shutil.rmtree(copy / "replicate-2/round-02")
        go(tmp_path, {"rewind": {"step": K}, "run": {"controls": CONTROLS}})


@pytest.fixture(scope="module")
def rewound(traced_once, tmp_path_factory):
    """A run of one replicate whose learning rate drops. Tests only read it."""
    return go(tmp_path_factory.mktemp("rewound"), {"run": {"num_replicates": 1}, "train": {"drop_at": [20]}})


@pytest.mark.parametrize("mode", ["learning_rate", "fine_tune", "sign", "reshuffled"])
def test_other_ways_to_go_on(rewound, tmp_path, mode):
    run = go(tmp_path, {"rewind": {"mode": mode}, "run": {"num_replicates": 1}, "train": {"drop_at": [20]}})
    assert is_right(run) == []
    kept = files.read_masks(folder_of(run) / "masks.safetensors")
    before, initial = state(folder_of(run, index=1)), state(run.path / "replicate-1", "initial")
    index = int(folder_of(run).name.removeprefix("round-"))
    rng = lottery.pruning.rewinding.rng_for(run.experiment.run.seed, 1, index)
    begun = lottery.pruning.rewinding.rewound(mode, initial, before, kept, rng)
    assert record(folder_of(run))["start_sha256"] == lottery.weights.fingerprint(begun)
    assert np.any(state(folder_of(run))["dense/kernel"] != state(folder_of(rewound))["dense/kernel"])


def test_fine_tuning_trains_with_the_last_learning_rate_and_learning_rate_rewinding_with_all_of_them(tmp_path):
    """A last learning rate of next to nothing: fine-tuning moves no weight, learning-rate rewinding does."""
    train = {"drop_at": [20, 21, 22, 23, 24, 25], "drop_factor": 0.01}
    moved = {}
    for mode in ("fine_tune", "learning_rate"):
        run = go(
            tmp_path,
            {"rewind": {"mode": mode}, "run": {"num_replicates": 1}, "prune": {"num_rounds": 1}, "train": train},
        )
        before, after = state(folder_of(run, index=0)), state(folder_of(run, index=1))
        kept = files.read_masks(folder_of(run, index=1) / "masks.safetensors")["dense/kernel"]
        moved[mode] = np.abs(before["dense/kernel"] - after["dense/kernel"])[kept].max()
    assert moved["fine_tune"] < 1e-6 and moved["learning_rate"] > 1e-2


@pytest.mark.parametrize(
    ("branch", "mode"), [("learning_rate_rewinding", "learning_rate"), ("fine_tuning", "fine_tune")]
)
def test_a_branch_that_trains_on_is_the_first_round_of_the_rewinding_mode(tmp_path, branch, mode):
    """The same bits, by two ways: its masks are those of the ticket, which in round 1 are those of the mode."""
    overrides = {"train": {"drop_at": [20, 30]}, "rewind": {"step": K}, "run": {"num_replicates": 1}}
    run = go(tmp_path, overrides).branch(branch, model=build, data=arrays(), on_event=quietly)
    other = go(tmp_path, overrides | {"rewind": {"step": K, "mode": mode}})
    trained, expected = folder_of(run, index=1, branch=branch), folder_of(other, index=1)
    for name in ("weights", "early_stop", "masks"):
        assert checksum(trained / f"{name}.safetensors") == checksum(expected / f"{name}.safetensors"), name
    assert not is_right(run)
    # In round 2 the masks are the ticket's, and survivors continue from the ticket of round 1.
    later = record(folder_of(run, branch=branch))
    kept = files.read_masks(folder_of(run) / "masks.safetensors")
    start = masks.apply(state(folder_of(run, index=1)), kept)
    assert later["start_sha256"] == weights.fingerprint(start)
    assert spent_steps(run, branch) == 40 + 2 * (40 - K)
    # It begins with what dense has learnt, so that nothing can be said of how fast it learns.
    assert run.table().query("branch == @branch")["dense_loss_step"].isna().all()
    assert other.table()["dense_loss_step"].isna().all()
    with pytest.raises(LotteryError, match="no pruned round can be compared with the steps of dense"):
        plots.drawn(other.table(), "speed")


@pytest.mark.parametrize("branch", ["learning_rate_rewinding", "fine_tuning"])
def test_round_0_has_pruned_nothing_to_train_on(small_run, branch):
    with pytest.raises(
        LotteryError, match=f"{branch} continues the training of a pruned network, and round 0 prunes nothing"
    ):
        lottery.branch(small_run, branch, rounds=[0, 1], on_event=quietly)
    with pytest.raises(LotteryError, match="leave out round 0"):
        config.load({"run": {"controls": [branch], "control_rounds": [0, 2]}})


def spent_steps(run, branch, index=2):
    return costs.table(run.path).set_index(["branch", "round"])["spent_steps"][branch, index]


def test_without_iterations_what_is_trained_on_is_the_dense_network_which_each_round_prunes(tmp_path):
    overrides = {"prune": {"iterative": False}, "run": {"num_replicates": 1}}
    run = go(tmp_path, overrides).branch("fine_tuning", model=build, data=arrays(), on_event=quietly)
    other = go(tmp_path, overrides | {"rewind": {"mode": "fine_tune"}})
    for made, branch in ((run, "fine_tuning"), (other, "ticket")):
        folder = folder_of(made, branch=branch)
        start = masks.apply(state(folder_of(made, index=0)), files.read_masks(folder / "masks.safetensors"))
        assert record(folder)["start_sha256"] == weights.fingerprint(start)
        assert spent_steps(made, branch) == 40 + 40 and not is_right(made)


def test_masks_from_before_training_leave_nothing_to_train_on():
    for branch in ("fine_tuning", "learning_rate_rewinding"):
        with pytest.raises(LotteryError, match=r'prune\.criterion = "snip": its masks are made before any training'):
            config.load({"prune": {"criterion": "snip"}, "run": {"controls": [branch]}})
        with pytest.raises(LotteryError, match="the ticket itself is trained on"):
            config.load({"rewind": {"mode": "fine_tune"}, "run": {"controls": [branch]}})


def test_one_shot_rounds_are_all_pruned_from_the_dense_network(tmp_path):
    run = go(tmp_path, {"prune": {"iterative": False, "num_rounds": 3}, "run": {"num_replicates": 1}})
    assert is_right(run) == []
    dense = np.abs(state(folder_of(run, index=0))["dense/kernel"])
    for index in (1, 2, 3):
        kept = files.read_masks(folder_of(run, index=index) / "masks.safetensors")["dense/kernel"]
        lowest = np.sort(dense.reshape(-1))[: kept.size - np.count_nonzero(kept)]
        assert dense[kept].min() > lowest.max()
    iterative = go(tmp_path, {"prune": {"num_rounds": 3}, "run": {"num_replicates": 1}})
    other = files.read_masks(folder_of(iterative, index=3) / "masks.safetensors")["dense/kernel"]
    assert np.any(other != kept)


def test_branches_of_a_run_that_is_stored(tmp_path, traced_once):
    """The command's function: the same as a control of the run, for chosen rounds; again, nothing is trained."""
    run = go(tmp_path)
    events = []
    done = lottery.branch(run.path, "random_mask", [2], model=build, data=arrays(), on_event=events.append)
    assert done.table().query("branch == 'random_mask'")["round"].tolist() == [2, 2]
    traced_once.clear()
    whole = go(tmp_path, {"run": {"controls": ["random_mask"]}})
    for replicate in (1, 2):
        one, other = (folder_of(each, replicate, 2, "random_mask") / "weights.safetensors" for each in (run, whole))
        assert checksum(one) == checksum(other)
    before = (folder_of(run, 1, 2, "random_mask") / "round.json").stat().st_mtime_ns
    lottery.branch(run.path, "random_mask", [2], model=build, data=arrays(), on_event=events.append)
    assert (folder_of(run, 1, 2, "random_mask") / "round.json").stat().st_mtime_ns == before
    assert "complete" in events[-1].text and is_right(done) == []


def test_a_branch_of_the_callers_own(single):
    def halved(origin):
        start = {name: value / 2 if name in origin.kept else value for name, value in origin.start.items()}
        return branches.BranchStart(start, origin.kept, 0, origin.num_steps)

    done = lottery.branch(single.path, halved, model=build, data=arrays(), on_event=quietly)
    assert sorted(done.table()["branch"].unique()) == ["halved", "ticket"] and is_right(done) == []
    events, same = [], lambda origin: halved(origin)
    same.__name__ = "halved"
    lottery.branch(single.path, same, model=build, data=arrays(), on_event=events.append)
    assert "complete" in events[-1].text

    def third(origin):
        start = {name: value / 3 if name in origin.kept else value for name, value in origin.start.items()}
        return branches.BranchStart(start, origin.kept, 0, origin.num_steps)

    third.__name__ = "halved"
    with pytest.raises(LotteryError, match="another function called 'halved' made the branch of round 1"):
        lottery.branch(single.path, third, model=build, data=arrays(), on_event=quietly)


def test_a_branch_of_the_callers_own_whose_masks_change_is_found_complete(single):
    """What is stored has the last masks, so the first are told by the weights that they masked."""

    def train(factor):
        def replacing(origin):
            kept = branches.random_mask(origin).kept
            changes = dynamic.set_(masks.num_kept(kept), origin.num_steps, 5)
            start = {name: value * np.float32(factor) for name, value in origin.initial.items()}
            return branches.BranchStart(start, kept, 0, origin.num_steps, 0, changes, {"needs_ticket": False})

        events = []
        lottery.branch(single.path, replacing, [1], model=build, data=arrays(), on_event=events.append)
        return events

    train(1.0)
    assert "complete" in train(1.0)[-1].text
    with pytest.raises(LotteryError, match="another function called 'replacing'"):
        train(0.5)


def test_a_control_is_added_in_one_place(tmp_path, monkeypatch):
    """An entry of BRANCHES is known to the configuration, the command line, the run, the verdict and `verify`."""

    def negated(origin):
        start = {name: -value if name in origin.kept else value for name, value in origin.start.items()}
        return branches.BranchStart(start, origin.kept, 0, origin.num_steps)

    with pytest.raises(LotteryError, match="run.controls must be .*not 'negated'"):
        config.load(TABLES, {"run": {"controls": ["negated"]}})
    monkeypatch.setitem(branches.BRANCHES, "negated", branches.Branch(negated, "the sign of the weights"))
    with pytest.raises(LotteryError, match="run.controls must be .*'negated', not 'negate'. Did you mean 'negated'"):
        config.load(TABLES, {"run": {"controls": ["negate"]}})
    help_text = CliRunner().invoke(cli.app, ["branch", "--help"]).stdout
    assert set(branches.BRANCHES) <= set(re.findall(r"\w+", help_text))
    run = go(tmp_path, {"run": {"controls": ["negated"]}})
    assert run.table()["branch"].value_counts()["negated"] == 2 * 2 and is_right(run) == []
    better = run.table().assign(early_stop_test_accuracy=lambda rows: 0.9 - 0.1 * (rows["branch"] == "negated"))
    better["early_stop_test_accuracy"] += 0.001 * better["replicate"] * (better["branch"] == "negated")
    grid = tables.controls(verdicts.Judgement(better))
    assert grid.notes == ["negated tests the sign of the weights."] and {row[-1] for row in grid.rows} == {"better"}
    equal = better.assign(early_stop_test_accuracy=0.9 + 0.01 * better["replicate"] * (better["branch"] == "negated"))
    equal.loc[(equal["branch"] == "negated") & (equal["replicate"] == 1), "early_stop_test_accuracy"] = 0.89
    assert {row[-1] for row in tables.controls(verdicts.Judgement(equal)).rows} == {"?"}
    assert verification.not_repeated(run.path) == []
    shutil.copy(folder_of(run, index=0) / "weights.safetensors", folder_of(run, branch="negated"))
    assert is_right(run) != []


def test_transfer_trains_the_ticket_on_other_data(single):
    done = lottery.branch(single.path, "transfer", [2], model=build, data=arrays(seed=8), on_event=quietly)
    (label,) = set(done.table()["branch"]) - {"ticket"}
    rows = done.table()
    there = rows[rows["branch"] == label].set_index("round")["early_stop_test_accuracy"]
    assert sorted(there.index) == [0, 2]  # the dense network comes with it
    (line,) = lottery.statistics.verdicts.transfers(rows)[label].to_dict("records")
    assert (line["round"], line["mean"]) == (2, pytest.approx(there[2] - there[0]))
    dense, own = record(folder_of(single, index=0, branch=label)), record(folder_of(single, index=0))
    assert dense["num_kept"] == own["num_kept"] and dense["start_sha256"] == own["start_sha256"]
    assert label.startswith("transfer-given-") and is_right(done) == []
    stored = record(folder_of(single, branch=label))
    ticket = record(folder_of(single))
    assert (
        stored["start_sha256"] == ticket["start_sha256"]
        and stored["data_sha256"] != store.read_environment(single.path)["data_sha256"]
    )
    assert stored["early_stop_test_loss"] != ticket["early_stop_test_loss"]
    shorter = {"train": {"num_steps": np.int64(4)}}  # as a run takes it
    lottery.branch(single.path, "transfer", [2], shorter, model=build, data=arrays(seed=8), on_event=quietly)
    others = [line["last_step"] for line in done.table().to_dict("records") if line["branch"] not in (label, "ticket")]
    assert others == [4, 4]


def test_data_passed_to_a_transfer_are_used_whole(tmp_path):
    """How much the run takes of its own data says nothing of the others."""
    import tensorflow as tf

    run = go(tmp_path, {"data": {"num_examples": 150}, "run": {"num_replicates": 1}, "prune": {"num_rounds": 1}})
    x, y, *test = arrays(seed=8)
    parts = (x, y), (x[:30], y[:30]), tuple(test)
    streams = tuple(tf.data.Dataset.from_tensor_slices(part).batch(16) for part in parts)
    streams = streams[0].repeat(), *streams[1:]
    for other, num_trained in (((x, y, *test), 160), ((x[:120], y[:120], *test), 80), (parts, 200), (streams, None)):
        given = Ingredients(build, other)
        prepared = preparing.prepare(with_other_data(run.experiment, {}, other), given)
        assert isinstance(prepared.data, Streams) or len(prepared.data.train) == num_trained
    branching.branch(run.path, "transfer", [1], ingredients=given, execution=Execution(on_event=quietly))
    assert sum("transfer" in name for name in run.table()["branch"]) == 2 and is_right(run) == []
    with pytest.raises(LotteryError, match="as data= or as data.name, not both"):
        lottery.branch(run.path, "transfer", [1], {"data": {"name": "digits"}}, model=build, data=other)


def test_fine_tuning_keeps_the_last_rate_of_any_schedule(tmp_path):
    """A cosine that ends at nothing leaves the rate of its last step, which is not nothing."""
    cosine = {"name": "CosineDecay", "initial_learning_rate": 1.0, "decay_steps": 40}
    run = go(
        tmp_path,
        {
            "rewind": {"mode": "fine_tune"},
            "run": {"num_replicates": 1},
            "prune": {"num_rounds": 1},
            "train": {"learning_rate": cosine},
        },
    )
    before, after = state(folder_of(run, index=0)), state(folder_of(run, index=1))
    kept = files.read_masks(folder_of(run, index=1) / "masks.safetensors")["dense/kernel"]
    assert np.any(before["dense/kernel"][kept] != after["dense/kernel"][kept])


def test_a_builder_that_draws_the_same_weights_has_no_reinitialised_control(tmp_path):
    """Its control would be the ticket itself, and say that the initialisation does not matter."""
    import keras

    def fixed():
        start = keras.initializers.GlorotNormal(seed=1)
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(8, "relu", kernel_initializer=start),
                layers.Dense(3, kernel_initializer=start),
            ]
        )

    with pytest.raises(LotteryError, match="same initial weights each time, so random_reinit would be the ticket"):
        go(tmp_path, {"run": {"controls": ["random_reinit"]}}, model=fixed)
    assert list(tmp_path.iterdir()) == []
    run = go(tmp_path, {"run": {"num_replicates": 2}}, model=fixed)
    assert is_right(run) == [] and "same weights" in verification.not_repeated(run.path)[0]
    with pytest.raises(LotteryError, match="same initial weights each time, so random_reinit would be the ticket"):
        lottery.branch(run.path, "random_reinit", model=fixed, data=arrays(), on_event=quietly)


def partial(origin):
    return branches.BranchStart({name: origin.start[name] for name in origin.kept}, origin.kept, 0, origin.num_steps)


def maskless(origin):
    return branches.BranchStart(origin.start, {}, 0, origin.num_steps)


def too_long(origin):
    return branches.BranchStart(origin.start, origin.kept, 0, origin.spent + 1)


def nothing(origin):
    return None


def ticket(origin):
    return branches.transfer(origin)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (partial, "start must have exactly the weights of the ticket"),
        (maskless, "kept must have exactly the weights"),
        (too_long, "must train within the steps 0 to 65, not 0 to 66"),
        (nothing, "must return a branches.BranchStart, not NoneType"),
        (ticket, "'ticket' is the name of a branch"),
        (lambda origin: None, "'<lambda>' is the name of a branch"),
    ],
)  # fmt: skip
def test_a_branch_of_the_callers_own_that_is_not_one_is_refused(controlled, own, message):
    with pytest.raises(LotteryError, match=message):
        lottery.branch(controlled.path, own, [1], model=build, data=arrays(), on_event=quietly)
    assert not list(controlled.path.rglob(f"branch-{own.__name__}/round.json"))


def test_rounds_are_whole_numbers_of_any_type(single):
    """A record cannot hold those of NumPy, which would be known after the training."""
    options = {"model": build, "data": arrays(), "on_event": quietly}
    lottery.branch(single.path, "random_mask", np.array([2]), replicate=np.int64(1), **options)
    assert is_right(single) == [] and len(single.table()) == 4
    for wrong in (1, [1.0], "1"):
        with pytest.raises(LotteryError, match="rounds must be a list of whole numbers, such as .*, not "):
            lottery.branch(single.path, "random_mask", wrong, **options)


def test_an_own_branch_may_keep_other_counts(single):
    def sparser(origin):
        kept = {name: mask & (origin.rng.random(mask.shape) < 0.5) for name, mask in origin.kept.items()}
        return branches.BranchStart(origin.start, kept, 0, origin.num_steps)

    lottery.branch(single.path, sparser, [2], model=build, data=arrays(), on_event=quietly)
    assert is_right(single) == []


def test_no_branch_grows_from_a_damaged_round(single):
    one, other = (folder_of(single, index=index) / "masks.safetensors" for index in (1, 2))
    shutil.copy(other, one)
    with pytest.raises(LotteryError, match="is damaged"):
        lottery.branch(single.path, "random_mask", [1], model=build, data=arrays(), on_event=quietly)


def test_synflow_keeps_what_is_never_pruned_and_collapses_nothing(tmp_path):
    """Its hundred steps go down by the plan of each group; by the density of the whole they would empty a layer."""
    prune = {"criterion": "synflow", "scope": "global", "num_rounds": 1, "rate": 0.9, "rates": {"dense/kernel": 0.0}}
    run = go(tmp_path, {"prune": prune, "run": {"num_replicates": 1}})
    kept = masks.num_kept(files.read_masks(folder_of(run, index=1) / "masks.safetensors"))
    assert kept == {"dense/kernel": 144, "dense_1/kernel": 7}


def build_deep():
    import keras

    layers = [keras.layers.Dense(60, "relu") for _ in range(8)]
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(3)])


def test_each_round_of_synflow_is_pruned_from_the_dense_network(tmp_path):
    """Whatever the round before has kept, a round's masks are those of a run that has only this round."""
    prune = {"criterion": "synflow", "scope": "global", "schedule": "explicit"}
    chain, alone = (
        go(tmp_path, {"prune": prune | {"densities": densities}, "run": {"num_replicates": 1}}, model=build_deep)
        for densities in ([0.1, 0.02], [0.02])
    )
    first, second = (files.read_masks(folder_of(chain, index=index) / "masks.safetensors") for index in (1, 2))
    expected = files.read_masks(folder_of(alone, index=1) / "masks.safetensors")
    assert all(np.array_equal(second[name], expected[name]) for name in expected)
    assert not masks.is_nested(second, first), "in this network the masks of two rounds are not nested"
    assert is_right(chain) == [] and is_right(alone) == []


@pytest.mark.parametrize(("iterative", "before"), [(True, {}), (False, {"definition": 2})])
def test_rounds_of_another_definition_are_shown_and_get_no_more(iterative, before, tmp_path):
    """A run from before a criterion was defined anew loads, is not called damaged, and is not continued."""
    prune = {"criterion": "large_init_large_final", "num_rounds": 2, "rate": 0.5, "iterative": iterative}
    settings = {"prune": prune, "run": {"num_replicates": 1}}
    run = go(tmp_path, settings)
    assert is_right(run) == [] and verification.not_repeated(run.path) == []
    for index in (1, 2):
        folder = folder_of(run, index=index)
        stored = {key: value for key, value in record(folder).items() if key != "definition"} | before
        if index == 2:  # other masks, as another definition makes them
            kept = files.read_masks(folder / "masks.safetensors")
            first = files.read_masks(folder_of(run, index=1) / "masks.safetensors")["dense/kernel"]
            mask = kept["dense/kernel"]
            mask[tuple(np.argwhere(mask)[0])] = False
            mask[tuple(np.argwhere(first & ~mask)[-1])] = True
            files.write(folder / "masks.safetensors", files.pack_masks(kept))
            for name in ("weights", "early_stop"):
                files.write(folder / f"{name}.safetensors", files.pack_arrays(masks.apply(state(folder, name), kept)))
            begun = masks.apply(state(run.path / "replicate-1", "initial"), kept)
            stored["start_sha256"] = lottery.weights.fingerprint(begun)
        stored["sha256"] = {name: checksum(folder / name) for name in stored["sha256"]}
        stored["record_sha256"] = store._digest_of(stored)
        files.write_json(folder / "round.json", stored)
    assert is_right(run) == [] and len(run.table()) == 3
    assert verification.not_repeated(run.path) == [
        "The masks of large_init_large_final were not computed again: they were made by an earlier definition of it."
    ]
    shutil.rmtree(folder_of(run, index=2))
    with pytest.raises(LotteryError, match="pruned by an earlier definition of large_init_large_final"):
        go(tmp_path, settings)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("random_masks",), r"branch must be .*not 'random_masks'. Did you mean 'random_mask'"),
        (("random_mask", [7]), r"replicate 1 has no round 7. It has 0 to 2"),
        (("random_mask", [1], {"data": {"name": "digits"}}), "Only the branch 'transfer' takes other values"),
        (("transfer", [1], {"prune": {"rate": 0.5}}), "needs another data set"),
        (("transfer", [1], {"data": {"name": "digits"}, "prune": {"rate": 0.5}}), "must be 'data' or 'train', not 'prune'"),
        (("transfer", [1], {"data": {"name": "digits", "validation": 300}}), "ticket does not fit|cannot be trained on the data"),
    ],
)  # fmt: skip
def test_what_cannot_be_branched_is_refused(controlled, arguments, message):
    passed = {} if len(arguments) > 2 and arguments[0] == "transfer" else {"data": arrays()}
    with pytest.raises(LotteryError, match=message):
        lottery.branch(controlled.path, *arguments, model=build, on_event=quietly, **passed)


def test_a_branch_needs_the_same_data_and_the_same_model(controlled):
    with pytest.raises(LotteryError, match="data differ from the data of"):
        lottery.branch(controlled.path, "random_mask", [1], model=build, data=arrays(seed=9), on_event=quietly)
    for wrong in (5, 1.5, "1"):
        passed = {"replicate": wrong, "model": build, "data": arrays()}
        with pytest.raises(LotteryError, match=f"replicate must be 1 to 2, not {wrong!r}"):
            lottery.branch(controlled.path, "random_mask", [1], **passed, on_event=quietly)
    assert branching.chosen_rounds(controlled.path, controlled.experiment, [1], 2.0) == [(2, 1)]


def test_a_criterion_of_the_callers_own(made, tmp_path):
    """The function decides the masks, is part of the experiment, and has to be passed again."""

    def by_place(evidence):
        return {
            name: np.arange(value.size, dtype=float).reshape(value.shape) for name, value in evidence.trained.items()
        }

    run = go(tmp_path, {"run": {"num_replicates": 1}}, criterion=by_place)
    kept = files.read_masks(folder_of(run) / "masks.safetensors")["dense/kernel"].reshape(-1)
    assert not kept[: kept.size - np.count_nonzero(kept)].any() and is_right(run) == []
    assert run.experiment.prune.criterion == GIVEN
    assert run.path.name != made.path.name
    with pytest.raises(LotteryError, match=r"stands for a function passed to lottery.run"):
        lottery.run(run.path / "experiment.toml", model=build, data=arrays(), out=tmp_path, on_event=quietly)


@pytest.mark.parametrize(
    "criterion",
    ["snip", *(pytest.param(name, marks=pytest.mark.long) for name in ("grasp", "synflow", "movement")), "random"],
)
def test_a_run_with_each_kind_of_criterion(tmp_path, traced_once, criterion):
    run = go(tmp_path, {"prune": {"criterion": criterion, "scope": "global"}, "run": {"num_replicates": 1}})
    traced_once.clear()
    again = go(tmp_path / "again", {"prune": {"criterion": criterion, "scope": "global"}, "run": {"num_replicates": 1}})
    assert is_right(run) == []
    for index in (1, 2):
        one, other = (folder_of(each, index=index) / "masks.safetensors" for each in (run, again))
        assert checksum(one) == checksum(other)
        assert Path(one).exists()
