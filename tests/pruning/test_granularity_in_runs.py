"""Small runs of each granularity, their verification, and what it finds where somebody changed them."""

import shutil

import numpy as np
import pytest
from safetensors.numpy import save

import lottery
from lottery import files, masks
from lottery.pruning import plan
from lottery.runs import store, verification
from lottery.runs.stored import StoredRound, stored_rounds
from tests.conftest import SMALL, quietly
from tests.runs.test_verification import reseal
from tests.scripts.forging import sign

HOW = {
    "unit": {"num_rounds": 2, "rate": 0.3},
    "channel": {"num_rounds": 2, "rate": 0.3, "norm": "l2", "scope": "global"},
    "block": {"num_rounds": 2, "rate": 0.3, "block": [4, 2]},
    "n_of_m": {"n_of_m": [2, 4]},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, traced_once):
    """A run of each granularity, with random masks."""
    found, out = {}, tmp_path_factory.mktemp("granular")
    for kind, prune in HOW.items():
        model = {"name": "conv_2" if kind == "channel" else "lenet_300_100"}
        run = {"num_replicates": 1, "controls": ["random_mask"], "control_rounds": [2]}
        tables = {**SMALL, "name": kind, "model": model, "prune": {"granularity": kind, **prune}, "run": run}
        tables["train"] = {**SMALL["train"], "num_steps": 6, "eval_every": 6}
        found[kind] = lottery.run(tables, out=out, on_event=quietly)
    return found


@pytest.mark.parametrize("kind", HOW)
def test_masks_of_a_run_are_whole_and_everything_holds(runs, kind):
    run, settings = runs[kind].path, runs[kind].experiment.prune
    assert not [wrong for _, wrong in verification.verify(run) if wrong]
    units = store.read_environment(run).get("units", ())
    assert bool(units) == (kind in ("unit", "channel"))
    for stored in stored_rounds(run):
        groups = plan.Plan(settings, {name: mask.shape for name, mask in stored.masks.items()}, units).groups
        assert not groups.broken(stored.masks)
        assert (masks.density(stored.masks) < 1) == bool(stored.round)
    ticket, control = (StoredRound(run, 1, 2, branch).masks for branch in (store.TICKET, "random_mask"))
    assert masks.num_kept(ticket) == masks.num_kept(control)
    assert any(np.any(ticket[name] != control[name]) for name in ticket)
    recorded = StoredRound(run, 1, 2).record["thresholds"]
    assert any(recorded.values()) and recorded.keys() == ticket.keys()


def test_a_pruned_unit_is_gone_from_what_makes_and_what_reads_it(runs):
    kept = StoredRound(runs["channel"].path, 1, 2).masks
    first, second = (kept[name].any(axis=(0, 1, 2)) for name in ("conv2d/kernel", "conv2d_1/kernel"))
    # Of 128 channels of two layers, ranked together, round(0.3 * 128) go, and then round(0.3 * 90).
    assert first.sum() + second.sum() == 128 - 38 - 27
    assert np.array_equal(kept["conv2d_1/kernel"], np.broadcast_to(first[:, None] & second, (3, 3, 64, 64)))
    assert np.array_equal(kept["dense/kernel"], np.broadcast_to(np.tile(second, 16)[:, None], (1024, 256)))
    assert kept["dense_1/kernel"].all()


@pytest.mark.parametrize("kind", HOW)
def test_verification_finds_a_part_of_a_group(runs, kind, tmp_path):
    """One entry of the last round's mask moves: the counts stay, and so does every checksum of who signs it again."""
    copy = tmp_path / runs[kind].path.name
    shutil.copytree(runs[kind].path, copy)
    folder, name = store.round_path(copy, 1, 2), "dense/kernel"
    kept = files.read_masks(folder / "masks.safetensors")
    matrix = kept[name].reshape(-1, kept[name].shape[-1])
    before = files.read_masks(store.round_path(copy, 1, 1) / "masks.safetensors")[name].reshape(matrix.shape)
    gone, there = np.argwhere(before & ~matrix)[0], np.argwhere(matrix)[-1]
    matrix[tuple(gone)], matrix[tuple(there)] = True, False
    trained = masks.apply(files.read_arrays(folder / "weights.safetensors"), kept)
    reseal(folder, masks_safetensors=files.pack_masks(kept), weights_safetensors=save(trained))
    wrong = dict(verification.verify(copy))["replicate 1, round 2"]
    assert f'The mask of {name} is not as prune.granularity = "{kind}" makes masks.' in wrong


def test_verification_finds_other_whole_groups_and_other_counts(runs, tmp_path):
    """Two units change places: whole groups, in the right number, but not those of the lowest scores."""
    copy = tmp_path / runs["unit"].path.name
    shutil.copytree(runs["unit"].path, copy)
    folder = store.round_path(copy, 1, 1)
    kept = files.read_masks(folder / "masks.safetensors")
    alive = kept["dense/kernel"].any(axis=0)
    gone, there = np.flatnonzero(~alive)[0], np.flatnonzero(alive)[0]
    order = np.arange(alive.size)
    order[[gone, there]] = there, gone
    other = {**kept, "dense/kernel": kept["dense/kernel"][:, order], "dense_1/kernel": kept["dense_1/kernel"][order]}
    reseal(folder, masks_safetensors=files.pack_masks(other))
    wrong = dict(verification.verify(copy))["replicate 1, round 1"]
    assert "The masks differ from those that pruning the round before gives." in wrong
    assert not any("keeps" in one or "is not as" in one for one in wrong)
    other["dense/kernel"][:, gone], other["dense_1/kernel"][gone] = True, True
    other["dense/kernel"][:, there], other["dense_1/kernel"][there] = True, True
    reseal(folder, masks_safetensors=files.pack_masks(other))
    wrong = dict(verification.verify(copy))["replicate 1, round 1"]
    assert "dense/kernel keeps 211 units, the schedule says 210." in wrong


def test_units_that_do_not_fit_are_one_sentence(runs, tmp_path):
    for units in (
        [{"size": 5, "made_by": ["dense/kernel"], "read_by": []}],
        [{"size": 300, "made_by": ["x"], "read_by": []}],
    ):
        copy = tmp_path / str(units[0]["size"])
        shutil.copytree(runs["unit"].path, copy)
        sign(copy / "environment.json", units=units)
        wrong = dict(verification.verify(copy))["replicate 1, round 1"]
        assert any("do not fit the shapes of the weights" in one for one in wrong)
    shutil.copytree(runs["unit"].path, tmp_path / "none")
    sign(tmp_path / "none" / "environment.json", units=...)
    wrong = dict(verification.verify(tmp_path / "none"))["replicate 1, round 1"]
    assert any("the model has no unit that can be removed" in one for one in wrong)
