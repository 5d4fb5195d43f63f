"""What masked entries are held at, through whole runs: in every file, under every enforcement, checked by `verify`."""

import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save

import lottery
from lottery import config, files, masks, weights
from lottery.analysis import costs
from lottery.errors import LotteryError
from lottery.pruning import branches, fairness
from lottery.runs import store, verification
from lottery.runs.stored import StoredRound
from lottery.training.checkpoints import CheckpointInterval
from tests.conftest import quietly, toy_arrays
from tests.pipeline.test_running import Killed, final_bits
from tests.runs.test_verification import reseal
from tests.scripts import forging

pytestmark = pytest.mark.usefixtures("traced_once")

STEP, NUM_STEPS, LAST = 4, 24, 3
CONTROLS = ["random_reinit", "random_mask", "shuffled_mask", "reshuffled_init", "signed_constant", "untrained"]
PRUNED = ("dense/kernel", "dense_1/kernel")
MODES = ("constraint", "gradient", "reparameterization", "callback")


def build():
    import keras

    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(3)])


def arrays():
    return toy_arrays(np.random.default_rng(3), 120, 40)


def tables(held_at, enforcement="constraint", controls=(), **rewind):
    return {
        "name": f"{held_at}-{enforcement}",
        "data": {"validation": 40},
        # Weight decay moves entries without a gradient.
        "train": {
            "num_steps": NUM_STEPS, "eval_every": 8, "batch_size": 20, "jit_compile": False,
            "optimizer": {"name": "adamw", "weight_decay": 0.1},
        },
        "prune": {"num_rounds": LAST, "rate": 0.4, "held_at": held_at},
        "rewind": {"step": STEP, **rewind},
        "run": {
            "num_replicates": 1, "enforcement": enforcement, "controls": list(controls),
            "control_rounds": [2] if controls else [],
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def runs(traced_once, tmp_path_factory):
    out, made = tmp_path_factory.mktemp("held"), {}

    def of(held_at, mode="constraint"):
        if (held_at, mode) not in made:
            controls = CONTROLS if mode == "constraint" else ()
            settings = tables(held_at, mode, controls)
            made[held_at, mode] = lottery.run(settings, model=build, data=arrays(), out=out, on_event=quietly)
        return made[held_at, mode]

    return of


def of_round(run, index, branch="ticket"):
    """Weights at the end and at the early-stop step, and masks, from the files alone."""
    folder = store.round_path(run.path, 1, index, branch)
    kept = files.read_masks(folder / "masks.safetensors")
    return load_file(folder / "weights.safetensors"), load_file(folder / "early_stop.safetensors"), kept


def expected_values(run, held_at, last):
    """The held value of every masked entry of a round, entry by entry."""
    initial = load_file(run.path / "replicate-1" / "start.safetensors")
    values = {name: np.zeros(initial[name].shape, np.float32) for name in PRUNED}
    before, _, masked_before = of_round(run, 0)
    for index in range(1, last + 1):
        trained, _, kept = of_round(run, index)
        for name in PRUNED:
            for place in np.argwhere(masked_before[name] & ~kept[name]):
                at = tuple(place)
                shrunk = abs(before[name][at]) < abs(initial[name][at])
                values[name][at] = initial[name][at] if held_at == "initial" or not shrunk else 0
        before, masked_before = trained, kept
    return values


@pytest.mark.parametrize("held_at", ["initial", "toward_zero"])
def test_masked_entries_are_at_the_values_of_the_rule_in_every_file(runs, held_at):
    run = runs(held_at)
    assert run.verify() == []
    for index in range(1, LAST + 1):
        expected = expected_values(run, held_at, index)
        *states, kept = of_round(run, index)
        stored = StoredRound(run.path, 1, index)
        ticket = lottery.tickets.load(run.path, round=index)
        states += [stored.masked_start, ticket.weights, ticket.trained]
        for name, mask in kept.items():
            assert mask.any() and not mask.all()
            for state in states:
                assert state[name][~mask].tobytes() == expected[name][~mask].tobytes(), (index, name)
            assert np.array_equal(stored.masked_start[name][mask], stored.start[name][mask])
    at_zero = np.mean([np.mean(expected[name][~kept[name]] == 0) for name in kept])
    assert at_zero == 0 if held_at == "initial" else 0.1 < at_zero < 0.9
    assert stored.engine == "compiled" and stored.record["engine_reason"] == f'prune.held_at is "{held_at}"'


@pytest.mark.parametrize("mode", MODES[1:])
def test_every_enforcement_holds_the_values_and_trains_the_same_survivors(runs, mode):
    one, other = runs("toward_zero"), runs("toward_zero", mode)
    assert other.verify() == []
    for index in range(LAST + 1):
        (first, _, kept), (second, _, also_kept) = of_round(one, index), of_round(other, index)
        for name, mask in kept.items():
            assert np.array_equal(mask, also_kept[name])
            assert np.array_equal(first[name][~mask], second[name][~mask])
            np.testing.assert_allclose(first[name][mask], second[name][mask], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("held_at", ["initial", "toward_zero"])
def test_controls_hold_their_masked_entries_by_the_rule_of_the_run(runs, held_at):
    run = runs(held_at)
    initial = load_file(run.path / "replicate-1" / "start.safetensors")
    before, _, kept_before = of_round(run, 1)
    ticket, _, kept = of_round(run, 2)
    values = expected_values(run, held_at, 1)
    # An entry that the round prunes, or would prune, is held by the rule; those pruned before stay as they were.
    for name in PRUNED:
        shrunk = np.abs(before[name]) < np.abs(initial[name])
        ruled = np.where(shrunk & (held_at == "toward_zero"), np.float32(0), initial[name])
        values[name] = np.where(kept_before[name], ruled, values[name])
    for branch in CONTROLS:
        for state in of_round(run, 2, branch)[:2]:
            mask = of_round(run, 2, branch)[2]
            for name in PRUNED:
                held = state[name][~mask[name]]
                if branch == "random_reinit":  # drawn anew, and at zero where the ticket is
                    at_zero = values[name][~mask[name]] == 0
                    assert not held[at_zero].any() and (held[~at_zero] != 0).all()
                    assert (held[~at_zero] != initial[name][~mask[name]][~at_zero]).all()
                elif branch == "signed_constant":
                    constant = initial[name].std(dtype=np.float64).astype(np.float32)
                    wanted = np.where(values[name] == 0, 0, np.sign(initial[name]) * constant)
                    np.testing.assert_allclose(held, wanted[~mask[name]], rtol=1e-6)
                else:
                    assert np.array_equal(held, values[name][~mask[name]]), (branch, name)


def test_the_verdict_says_what_density_is_not(runs, tmp_path):
    for held_at, said in (
        ("initial", "at their initial values"),
        ("toward_zero", "at zero or at their initial values"),
    ):
        sentences = " ".join(runs(held_at).verdict())
        assert f'Masked weights are held {said} (prune.held_at = "{held_at}"): density is the share' in sentences


def test_zero_is_the_default_and_writes_the_same_bits(tmp_path):
    settings = tables("zero")
    del settings["prune"]["held_at"]
    assert config.digest(config.load(settings)) == config.digest(config.load(tables("zero")))
    assert config.digest(config.load(tables("initial"))) != config.digest(config.load(tables("zero")))
    assert "held_at" not in str(config.load(settings).model_dump(exclude_defaults=True))


def wrong_after(run, tmp_path, damage, change=lambda tables: None):
    """Copy a run, damage round 2, and list what `verify` finds, by network."""
    copy = forging.copied(run.path, tmp_path / run.path.name, change)
    damage(copy)
    return {name: wrong for name, wrong in verification.verify(copy) if wrong}


def planted(file, change, branch="ticket"):
    """Change a masked entry of the first kernel in a file of round 2, and make every checksum right again."""

    def damage(run):
        folder = store.round_path(run, 1, 2, branch)
        kept = files.read_masks(folder / "masks.safetensors")["dense/kernel"]
        found = load_file(folder / f"{file}.safetensors")
        initial = load_file(run / "replicate-1" / "start.safetensors")["dense/kernel"]
        change(found["dense/kernel"], initial, ~kept)
        reseal(folder, **{f"{file}_safetensors": save(found)})

    return damage


def a_little(value, initial, masked):
    value.flat[np.flatnonzero(masked)[3]] += np.float32(1e-6)


def to_zero(value, initial, masked):
    value.flat[np.flatnonzero(masked & (value != 0))[0]] = 0


def to_initial(value, initial, masked):
    place = np.flatnonzero(masked & (value == 0))[0]
    value.flat[place] = initial.flat[place]


@pytest.mark.parametrize("branch", ["ticket", "random_mask", "untrained"])
@pytest.mark.parametrize("file", ["weights", "early_stop"])
@pytest.mark.parametrize("change", [a_little, to_zero, to_initial])
def test_verify_finds_one_entry_that_is_not_at_its_held_value(runs, tmp_path, change, file, branch):
    """Also one that another rule, or another decision of the same rule, would hold there."""
    wrong = wrong_after(runs("toward_zero"), tmp_path, planted(file, change, branch))
    name = "replicate 1, round 2" + ("" if branch == "ticket" else f", branch {branch}")
    said = "dense/kernel has 1 masked entries that are not at their held values"
    assert f"{said}{'' if file == 'weights' else ' at the early-stop step'}." in wrong[name]


@pytest.mark.parametrize(
    ("held_at", "claimed"), [("initial", "toward_zero"), ("toward_zero", "initial"), ("initial", "zero")]
)
def test_verify_finds_that_a_run_was_held_by_another_rule(runs, tmp_path, held_at, claimed):
    wrong = wrong_after(
        runs(held_at), tmp_path, lambda run: None, lambda tables: tables["prune"].update(held_at=claimed)
    )
    what = "zero" if claimed == "zero" else "at their held values"
    assert any(f"masked entries that are not {what}." in said for said in wrong["replicate 1, round 1"])
    assert "Training did not start from the start weights under the masks." in wrong["replicate 1, round 1"]


def test_verify_without_the_round_before_still_sees_values_of_no_rule(runs, tmp_path):
    def damage(run):
        planted("weights", a_little)(run)
        (store.round_path(run, 1, 1) / "weights.safetensors").write_bytes(b"")

    wrong = wrong_after(runs("toward_zero"), tmp_path, damage)
    assert "dense/kernel has 1 masked entries that are not at their held values." in wrong["replicate 1, round 2"]


def test_killed_in_the_middle_of_a_round_and_run_again_it_has_the_same_bits(runs, tmp_path, traced_once):
    whole, settings = runs("toward_zero"), tables("toward_zero", controls=CONTROLS)
    seen = []

    def killing(event):
        place = getattr(event, "round", None), getattr(event, "branch", None), getattr(event, "step", 0)
        if place[0] == 2 and place[2] >= 12 and place[1] not in seen:
            seen.append(place[1])
            raise Killed

    for _ in range(2):  # in the round, and in a control
        with pytest.raises(Killed):
            lottery.run(
                settings,
                model=build,
                data=arrays(),
                out=tmp_path,
                on_event=killing,
                checkpoint_every=CheckpointInterval(steps=2),
            )
        assert list((tmp_path / whole.path.name).rglob("checkpoint.safetensors"))
        traced_once.clear()
    again = lottery.run(settings, model=build, data=arrays(), out=tmp_path, on_event=quietly)
    assert final_bits(again.path) == final_bits(whole.path)


def test_branches_that_prune_to_zero_are_refused(runs, tmp_path):
    run = runs("initial")
    for name in ("untrained_rescaled", "rigl", "supermask"):
        why = f'{name} cannot be compared fairly under prune.held_at = "initial": '
        with pytest.raises(LotteryError, match=why):
            run.branch(name, [2], model=build, data=arrays(), on_event=quietly)
        assert name not in fairness.fair("weights", held_at="initial") and name in fairness.fair("weights")
    with pytest.raises(
        LotteryError, match="run.controls: leave out untrained_rescaled, which cannot be compared fairly"
    ):
        lottery.run(tables("initial", controls=["untrained_rescaled"]), model=build, data=arrays(), out=tmp_path)


def test_a_branch_of_the_users_own_may_hold_other_values(runs, tmp_path):
    copy = shutil.copytree(runs("initial").path, tmp_path / "run")

    def halved(ticket):
        held_at = {name: value / 2 for name, value in ticket.held_at.items()}
        return branches.BranchStart(ticket.start, ticket.kept, ticket.step, ticket.num_steps, held_at=held_at)

    def misshapen(ticket):
        held_at = {"dense/kernel": np.zeros(3)}
        return branches.BranchStart(ticket.start, ticket.kept, ticket.step, ticket.num_steps, held_at=held_at)

    branched = lottery.branch(copy, halved, [2], model=build, data=arrays(), on_event=quietly)
    initial = load_file(copy / "replicate-1" / "start.safetensors")
    for state in of_round(branched, 2, "halved")[:2]:
        for name, mask in of_round(branched, 2)[2].items():
            assert np.array_equal(state[name][~mask], initial[name][~mask] / 2)
    assert branched.verify() == []
    with pytest.raises(LotteryError, match="misshapen: held_at of 'dense/kernel' has shape"):
        lottery.branch(copy, misshapen, [2], model=build, data=arrays(), on_event=quietly)


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ({"run": {"enforcement": "tfmot"}}, '"zero" with this run.enforcement'),
        ({"rewind": {"mode": "sign"}}, '"zero" with rewind.mode = "sign"'),
        ({"rewind": {"mode": "reshuffled"}}, '"zero" with rewind.mode = "reshuffled"'),
        ({"prune": {"criterion": "snip"}}, '"zero" or "initial" with this prune.criterion'),
    ],
)
def test_what_cannot_be_held_is_refused(section, why):
    overrides = {"prune": {"held_at": "toward_zero"}} | section
    overrides["prune"] = {"held_at": "toward_zero"} | overrides["prune"]
    with pytest.raises(LotteryError, match=f'prune.held_at must be {why}, not "toward_zero"'):
        config.load({}, overrides)
    with pytest.raises(LotteryError, match="prune.held_at must be 'zero', 'initial' or .*not 'initail'"):
        config.load({}, {"prune": {"held_at": "initail"}})
    assert config.load({}, {"prune": {"held_at": "initial", "criterion": "snip"}}).prune.held_at == "initial"


def test_an_enforcement_of_the_users_own_must_take_held_values(tmp_path):
    def two_arguments(model, masks):
        return lottery.enforcement.constraint(model, masks)

    settings = tables("initial")
    del settings["run"]["enforcement"]
    with pytest.raises(LotteryError, match="run.enforcement: the function takes no held values"):
        lottery.run(settings, model=build, data=arrays(), out=tmp_path, enforcement=two_arguments, on_event=quietly)


def test_entries_that_are_held_at_other_values_are_not_saved(runs):
    for held_at in ("initial", "toward_zero"):
        run = runs(held_at)
        rows = costs.table(run.path)
        for index, row in rows[rows["branch"] == "ticket"].set_index("round").iterrows():
            trained, _, kept = of_round(run, index)
            used = {name: np.count_nonzero(mask | (trained[name] != 0)) for name, mask in kept.items()}
            assert row["multiply_adds"] == sum(used.values())
            assert row["compression"] == sum(mask.size for mask in kept.values()) / sum(used.values())
            assert held_at == "toward_zero" or row["compression"] == 1


@pytest.mark.long
@pytest.mark.parametrize("mode", ["learning_rate", "fine_tune"])
def test_with_other_ways_to_retrain_masked_entries_are_still_at_their_values_at_the_rewind_step(tmp_path, mode):
    settings = tables("toward_zero", controls=["untrained"], mode=mode)
    run = lottery.run(settings, model=build, data=arrays(), out=tmp_path, on_event=quietly)
    assert run.verify() == []
    for index in range(1, LAST + 1):
        expected = expected_values(run, "toward_zero", index)
        for branch in ["ticket"] + ["untrained"] * (index == 2):
            *states, kept = of_round(run, index, branch)
            for name, mask in kept.items():
                assert all(np.array_equal(state[name][~mask], expected[name][~mask]) for state in states)


@pytest.mark.long
@pytest.mark.parametrize("iterative", [True, False])
def test_siblings_hold_by_the_rule(tmp_path, iterative):
    settings = tables("toward_zero")
    settings["prune"]["iterative"] = iterative
    run = lottery.run(settings, model=build, data=arrays(), out=tmp_path, on_event=quietly)
    from lottery.pipeline import connecting
    from lottery.pipeline.prepared import Ingredients

    connecting.connect(run.path, [2], [STEP, 10], ingredients=Ingredients(build, arrays()))
    assert run.verify() == []
    assert run.verify(recompute=True, model=build, data=arrays()) == []
    ticket, _, kept = of_round(run, 2)
    for label in (f"step_{STEP}_order_2", "step_10_order_1"):
        sibling = StoredRound(run.path / "connectivity", 1, 2, label).weights
        assert masks.leaks(sibling, kept, ticket) == {} and weights.fingerprint(sibling) != weights.fingerprint(ticket)


@pytest.mark.long
def test_with_moving_averages_the_values_are_held_to_the_bit(tmp_path):
    settings = tables("initial")
    settings["train"]["optimizer"] = {"name": "adam", "use_ema": True, "ema_momentum": 0.9}
    run = lottery.run(settings, model=build, data=arrays(), out=tmp_path, on_event=quietly)
    assert run.verify() == []
    held_at = load_file(run.path / "replicate-1" / "start.safetensors")
    for state in of_round(run, LAST)[:2]:
        assert masks.leaks(state, of_round(run, LAST)[2], held_at) == {}
