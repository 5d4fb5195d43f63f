"""Every branch beside every kind of ticket: what it starts from, how long that was trained, what it may show."""

from pathlib import Path
from typing import get_args

import numpy as np
import pandas as pd
import pytest

import lottery
from lottery import config, files, masks, weights
from lottery.errors import LotteryError
from lottery.pruning import branches, fairness, rewinding
from lottery.pruning.branches import BRANCHES
from lottery.runs import verification
from lottery.runs.stored import stored_rounds
from lottery.statistics import sentences, verdicts
from lottery.statistics import tables as statistics_tables
from lottery.statistics.metric import ACCURACY
from tests.conftest import quietly, toy_arrays

pytestmark = pytest.mark.usefixtures("traced_once")

NUM_STEPS, K = 24, 8
# By what the ticket starts from: mode and rewind step.
KINDS = {
    "initial": [("weights", 0)],
    "late": [("weights", K)],
    "signs": [("sign", 0)],
    "shuffled": [("reshuffled", 0)],
    "trained": [("learning_rate", K), ("fine_tune", 0)],
}
# Alternatives take nothing away from any ticket, and start from step 0 whatever it starts from; see test_dynamic.
BESIDE = [name for name, branch in BRANCHES.items() if branch.kind != "alternative"]
EVERY = [(name, mode, step) for name in BESIDE for kinds in KINDS.values() for mode, step in kinds]
REFUSED = {
    ("random_reinit", "trained"),
    ("random_mask", "trained"),
    ("random_mask_global", "trained"),
    ("random_mask_erk", "trained"),
    ("shuffled_mask", "trained"),
    ("reshuffled_init", "trained"),
    ("signed_constant", "signs"),
    ("signed_constant", "trained"),
}
# What follows "so" if the ticket is better.
SHOWS = {
    ("random_reinit", "initial"): "the initialisation",
    ("random_reinit", "late"): "the initialisation with its first 8 steps",
    ("random_reinit", "signs"): "which weight starts with which sign",
    ("random_mask", "initial"): "which weights are kept",
    ("random_mask", "late"): "which weights are kept",
    ("random_reinit", "shuffled"): "the initialisation",
    ("random_mask", "signs"): "which weights are kept",
    ("random_mask", "shuffled"): "which weights are kept",
    ("random_mask_global", "initial"): "which weights are kept",
    ("random_mask_erk", "initial"): "which weights are kept",
    ("random_mask_global", "late"): "which weights are kept",
    ("random_mask_erk", "late"): "which weights are kept",
    ("random_mask_global", "signs"): "which weights are kept",
    ("random_mask_erk", "signs"): "which weights are kept",
    ("random_mask_global", "shuffled"): "which weights are kept",
    ("random_mask_erk", "shuffled"): "which weights are kept",
    ("shuffled_mask", "initial"): "which weights are kept in each layer",
    ("shuffled_mask", "late"): "which weights are kept in each layer",
    ("shuffled_mask", "signs"): "which weights are kept in each layer",
    ("shuffled_mask", "shuffled"): "which weights are kept in each layer",
    ("reshuffled_init", "initial"): "which weight has which initial value",
    ("reshuffled_init", "late"): "which weight has which value at step 8",
    ("reshuffled_init", "signs"): "which weight starts with which sign",
    ("reshuffled_init", "shuffled"): "which weight starts with which value",
    ("signed_constant", "initial"): "the size of the initial weights",
    ("signed_constant", "late"): "the size of the weights at step 8",
    ("signed_constant", "shuffled"): "the size of the start weights",
    ("untrained", "initial"): "training",
    ("untrained", "late"): "training after step 8",
    ("untrained", "signs"): "training",
    ("untrained", "shuffled"): "training",
    ("untrained", "trained"): "training after pruning",
    ("untrained_rescaled", "initial"): "training",
    ("untrained_rescaled", "late"): "training after step 8",
    ("untrained_rescaled", "signs"): "training",
    ("untrained_rescaled", "shuffled"): "training",
    ("untrained_rescaled", "trained"): "training after pruning",
}
NO_CLAIM = ("transfer",)


def build():
    import keras

    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3)])


def arrays(seed=3):
    return toy_arrays(np.random.default_rng(seed), 120, 40)


def tables(mode, step, controls=()):
    return {
        "name": "fair",
        "data": {"validation": 40},
        # Four steps an epoch: masks of early training are drawn at the fifth epoch.
        "train": {"num_steps": NUM_STEPS, "eval_every": 8, "batch_size": 20, "jit_compile": False},
        "prune": {"num_rounds": 2, "rate": 0.5},
        "rewind": {"mode": mode, "step": step},
        "run": {"num_replicates": 1, "controls": list(controls), "control_rounds": [2] if controls else []},
    }


@pytest.fixture(scope="module")
def runs(traced_once, tmp_path_factory):
    """By mode and step, a run with every branch that can be compared with its tickets, from round 2."""
    made = {}
    for mode, step in (kind for kinds in KINDS.values() for kind in kinds):
        controls = [name for name in fairness.fair(mode, step) if BRANCHES[name].kind == "control"]
        out = tmp_path_factory.mktemp("fair")
        run = lottery.run(
            tables(mode, step, controls), model=build, data=arrays(), out=out, tensorboard=False, on_event=quietly
        )
        for name in fairness.fair(mode, step):
            if BRANCHES[name].kind == "other":
                data = arrays(9) if BRANCHES[name].other_data else arrays()
                lottery.branch(run.path, name, [2], model=build, data=data, tensorboard=False, on_event=quietly)
        made[mode, step] = run
    return made


def stored(run, branch="ticket", index=2):
    return next(one for one in stored_rounds(run.path) if one.round == index and one.branch.partition("-")[0] == branch)


def start_of(mode, step):
    return next(start for start, kinds in KINDS.items() if (mode, step) in kinds)


def signs(values):
    """Zhou et al.: the sign of each weight times the standard deviation of all of them."""
    return {
        name: (np.sign(value) * value.std(dtype=np.float64)).astype(np.float32) if value.ndim == 2 else value
        for name, value in values.items()
    }


def shuffled(values, kept, index):
    """Zhou et al.: what survives, shuffled within each weight; seed 0, replicate 1."""
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence((0, 1, 7, index))))
    found = {name: value.copy() for name, value in values.items()}
    for name, mask in kept.items():
        flat, places = found[name].reshape(-1), np.flatnonzero(mask)
        flat[places] = rng.permutation(flat[places])
    return found


@pytest.mark.parametrize(("mode", "step"), [kind for kinds in KINDS.values() for kind in kinds])
def test_what_a_ticket_starts_from_and_how_long_that_was_trained(runs, mode, step):
    run = runs[mode, step]
    ticket, folder = stored(run), run.path / "replicate-1"
    late = (
        files.read_arrays(folder / "start.safetensors") if step else files.read_arrays(folder / "initial.safetensors")
    )
    trained = stored(run, index=1).weights
    expected = {
        "initial": late,
        "late": late,
        "signs": signs(late),
        "shuffled": shuffled(late, ticket.masks, 2),
        "trained": trained,
    }[start_of(mode, step)]
    assert ticket.record["start_sha256"] == weights.fingerprint(masks.apply(expected, ticket.masks))
    rows = [metric[0] for metric in ticket.metrics]
    assert (min(rows), max(rows)) == (step, NUM_STEPS)
    assert rewinding.start_of(mode, step) == start_of(mode, step)


@pytest.mark.parametrize(("name", "mode", "step"), EVERY)
def test_each_branch_beside_each_ticket(runs, tmp_path, name, mode, step):
    """Refused before anything is trained; or it starts from what it says, for the steps that it says."""
    start, run = start_of(mode, step), runs[mode, step]
    beside = fairness.comparison(name, mode, step)
    if (name, start) in REFUSED:
        assert beside.refused and not beside.takes_away and name not in fairness.fair(mode, step)
        why = rf'cannot be compared fairly under rewind\.mode = "{mode}": .*\.$'
        if BRANCHES[name].kind == "control":
            with pytest.raises(LotteryError, match=f"run.controls: leave out {name}, which {why}"):
                lottery.run(tables(mode, step, [name]), model=build, data=arrays(), out=tmp_path, on_event=quietly)
            assert not list(tmp_path.iterdir())
        with pytest.raises(LotteryError, match=f"^{name} {why}"):
            lottery.branch(run.path, name, [2], model=build, data=arrays(), on_event=quietly)
        assert name not in {one.branch for one in stored_rounds(run.path)}
        return
    ticket, branch = stored(run), stored(run, name)
    assert not beside.refused and name in fairness.fair(mode, step)
    expected = SHOWS.get((name, start), "")
    assert beside.takes_away == (expected.replace("8", str(step)) if start != "initial" else expected)
    assert bool(expected) != (name in NO_CLAIM)
    steps = branch.record["first_step"], branch.record["last_step"]
    mask_kept = all(np.array_equal(branch.masks[key], ticket.masks[key]) for key in ticket.masks)
    begun = branch.record["start_sha256"]
    same_start = begun == weights.fingerprint(masks.apply(ticket.start, branch.masks))
    if name == "random_reinit":
        assert beside.past == "not at all" and steps == (0, NUM_STEPS)
        assert mask_kept and not same_start
    elif name in ("random_mask", "random_mask_global", "random_mask_erk", "shuffled_mask"):
        assert beside.past == "as the ticket's" and steps == (step, NUM_STEPS)
        assert same_start and not mask_kept
        # None of its survivors is dead: what a mask keeps of the start was never pruned.
        for key, mask in branch.masks.items():
            assert np.count_nonzero(ticket.start[key][mask]) == np.count_nonzero(mask)
    elif name in ("reshuffled_init", "signed_constant"):
        assert "as the ticket's, " in beside.past and steps == (step, NUM_STEPS)
        assert mask_kept and not same_start
    elif name == "untrained":
        assert beside.past == "as the ticket's" and steps == (step, step)
        assert mask_kept and same_start
    elif name == "untrained_rescaled":
        assert beside.past == "as the ticket's" and steps == (step, step)
        assert mask_kept and not same_start
    elif name == "transfer":
        assert beside.past == "as the ticket's" and steps == (step, NUM_STEPS)
        assert mask_kept and same_start
    assert verification_of(run, branch.branch) == []


def verification_of(run, label):
    return [wrong for name, said in verification.verify(run.path) for wrong in said if name.endswith(f"branch {label}")]


def test_where_tickets_start_from_signs_a_new_initialisation_gives_its_signs(runs):
    """So that the signs are all that it changes: the sizes are one constant for each weight, in both."""
    run, seen = runs["sign", 0], []

    def watched(ticket):
        seen.append((ticket.fresh(), ticket.start))
        return branches.untrained(ticket)

    lottery.branch(run.path, watched, [2], model=build, data=arrays(), on_event=quietly)
    ((fresh, start),) = seen
    for name in ("dense/kernel", "dense_1/kernel"):
        assert np.unique(np.abs(fresh[name])).size == np.unique(np.abs(start[name])).size == 1
        assert 0.3 < np.mean(np.sign(fresh[name]) == np.sign(start[name])) < 0.7


def test_what_the_refused_controls_would_have_been():
    """The reason for their refusal: of a random mask's survivors, most are zero in trained and pruned weights."""
    rng = np.random.default_rng(1)
    kept = {"w": rng.random((50, 40)) < 0.1}
    trained = masks.apply({"w": rng.normal(size=(50, 40)).astype(np.float32)}, kept)
    ticket = branches.StoredTicket(kept, trained, 0, 10, rng, dict, lambda: None)
    survivors = trained["w"][branches.random_mask(ticket).kept["w"]]
    assert np.mean(survivors == 0) > 0.8


def test_a_run_stored_with_a_control_that_is_refused_now_is_read_and_branches(tmp_path, monkeypatch):
    """It loads, its table and its checks are as before; only more of the same is refused."""
    with monkeypatch.context() as before:
        before.setattr(config, "_check_fair", lambda experiment: None)
        run = lottery.run(
            tables("learning_rate", 0, ["random_mask"]), model=build, data=arrays(), out=tmp_path, on_event=quietly
        )
    assert lottery.load(run.path).experiment.run.controls == ("random_mask",)
    assert set(run.table()["branch"]) == {"ticket", "random_mask"} and run.verify() == []
    assert any("is not a fair comparison" in said for said in run.verdict())
    lottery.branch(run.path, "untrained", [2], model=build, data=arrays(), on_event=quietly)
    lottery.branch(run.path, "transfer", [2], model=build, data=arrays(9), on_event=quietly)
    with pytest.raises(LotteryError, match="run.controls: leave out random_mask, which cannot be compared fairly"):
        lottery.run(
            tables("learning_rate", 0, ["random_mask"]), model=build, data=arrays(), out=tmp_path, on_event=quietly
        )


@pytest.mark.parametrize(("name", "mode", "step"), [cell for cell in EVERY if cell[0] != "transfer"])
def test_what_the_verdict_says_of_each_branch(name, mode, step):
    """From made-up accuracies in which the ticket is better: what matters, or that the comparison is not fair."""
    start, experiment = start_of(mode, step), config.validated(tables(mode, step))
    accuracies = {"ticket": [0.9, 0.95], name: [0.8, 0.8]}
    rows = pd.DataFrame(
        [
            (replicate, branch, index, 0.5**index, accuracy + 0.001 * replicate, 8, accuracy)
            for branch, values in accuracies.items()
            for index, accuracy in enumerate(values)
            for replicate in (1, 2, 3)
            if index or branch == "ticket"
        ],
        columns=["replicate", "branch", "round", "density", ACCURACY.early_stop, "early_stop_step", ACCURACY.final],
    )
    rows = rows.assign(budget_test_accuracy=rows[ACCURACY.early_stop], dense_loss_step=4)
    rows.loc[(rows["branch"] == "ticket") & (rows["replicate"] == 1), ACCURACY.early_stop] -= 0.0001
    rule = verdicts.rule_for(experiment)
    judgement = verdicts.Judgement(rows, rule)
    head, *limits = sentences.of(judgement)
    grid = statistics_tables.controls(judgement)
    assert {row[0] for row in grid.rows} == {name}
    beside = {row[grid.heads.index("ticket is")] for row in grid.rows}
    special = verdicts.judged(rows, rule)["special"].tolist()
    if (name, start) in REFUSED:
        why = fairness.comparison(name, mode, step).refused
        assert f"{name} is not a fair comparison, and shows nothing about the ticket: {why}." in limits
        assert beside == {"not fair"} and grid.notes == [] and name not in head and special == [""]
    elif name in NO_CLAIM:
        assert beside == {"better"} and grid.notes == [] and special == [""]
    else:
        assert grid.notes == [f"{name} tests {SHOWS[name, start]}."] and beside == {"better"} and special == ["yes"]
        assert f"points over {name}" in head


@pytest.mark.parametrize("criterion", ["snip", "grasp", "synflow"])
@pytest.mark.parametrize("mode", ["learning_rate", "fine_tune", "sign", "reshuffled"])
def test_criteria_that_prune_before_training_start_from_weights(criterion, mode):
    with pytest.raises(
        LotteryError, match=f'rewind.mode must be "weights" with prune.criterion = "{criterion}", not "{mode}"'
    ):
        config.load({"prune": {"criterion": criterion}, "rewind": {"mode": mode}})


def test_the_command_lists_what_is_refused(lottery_command):
    said = " ".join(lottery_command("branch", "--help").stdout.split())
    for mode, kinds in (("learning_rate", "trained"), ("fine_tune", "trained"), ("sign", "signs")):
        names = ", ".join(name for name in BRANCHES if (name, kinds) in REFUSED)
        assert f"rewind.mode={mode} {names}" in said, said
    assert "rewind.mode=weights" not in said


def docs_rows():
    """The table of docs/settings.md, from the records."""
    cells = {
        name: [fairness.beside(branch, start) for start in get_args(rewinding.Start)]
        for name, branch in BRANCHES.items()
    }
    cells = {name: row for name, row in cells.items() if name in BESIDE}
    for name, row in cells.items():
        said = ["*refused*" if one.refused else one.takes_away or "nothing" for one in row]
        yield f"| `{name}` | {' | '.join(said)} |"


def test_the_documentation_has_each_cell():
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    missing = [row for row in docs_rows() if row not in page]
    assert not missing, "\n".join(missing)
    one_line = " ".join(page.split())
    for branch in BRANCHES.values():
        for start in get_args(rewinding.Start):
            if why := fairness.beside(branch, start).refused:
                assert why.partition(";")[0].replace('"', "") in one_line.replace("`", ""), why
