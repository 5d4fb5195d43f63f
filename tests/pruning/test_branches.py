"""What each branch keeps of the ticket and what it changes; contract tests over all of BRANCHES."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lottery import masks
from lottery.pruning import branches, rewinding

SHAPES = {"dense/kernel": (30, 20), "conv2d/kernel": (3, 3, 4, 8), "dense/bias": (20,)}
PRUNABLE = ("dense/kernel", "conv2d/kernel")
STEP, NUM_STEPS = 7, 50


def origin(seed=0, densities=(0.3, 0.6)):
    rng = np.random.default_rng(seed)
    start = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    kept = {name: rng.random(SHAPES[name]) < density for name, density in zip(PRUNABLE, densities, strict=True)}
    other = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    drawn = branches.BranchStart(other, {name: ~mask for name, mask in kept.items()}, 20, NUM_STEPS)
    initial = {name: value + 1 for name, value in start.items()}
    dense = {name: rng.normal(size=SHAPES[name]) for name in PRUNABLE}
    return branches.StoredTicket(
        kept, start, STEP, NUM_STEPS, np.random.default_rng(seed), lambda: dict(other), initial,
        3 * NUM_STEPS, lambda step, state: dense, lambda: replace(drawn, start=initial, first_step=NUM_STEPS),
        trained=lambda: {name: value - 1 for name, value in start.items()},
    )  # fmt: skip


def equal(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def test_names_are_those_of_the_functions():
    assert all(branch.function.__name__ == name for name, branch in branches.BRANCHES.items())


@pytest.mark.parametrize("name", branches.BRANCHES)
def test_a_branch_has_the_tickets_shapes_is_finite_and_the_same_each_time_and_changes_nothing(name):
    one, other = origin(), origin()
    first, second = branches.BRANCHES[name].function(one), branches.BRANCHES[name].function(other)
    assert equal(first.kept, second.kept) and equal(first.start, second.start)
    assert equal(one.kept, other.kept) and equal(one.start, other.start), "what it was given was changed"
    assert equal(one.start, origin().start) and equal(one.kept, origin().kept)
    assert {key: value.shape for key, value in first.start.items()} == SHAPES
    assert all(np.isfinite(value).all() and value.dtype == np.float32 for value in first.start.values())
    masks.check(first.kept, first.start)
    assert list(first.kept) == list(one.kept)
    most = 3 * NUM_STEPS if branches.BRANCHES[name].is_long else NUM_STEPS
    assert 0 <= first.first_step <= first.last_step <= most
    for step, change in first.changes.items():
        changed = change.function(first.kept, first.start)
        assert masks.num_kept(changed) == change.num_kept and equal(
            changed, second.changes[step].function(first.kept, first.start)
        )


# By branch: whether it keeps the masks, the start weights that survive, and the first and last step of the ticket.
KEEPS = {
    "random_reinit": (True, False, (0, NUM_STEPS)),
    "random_mask": (False, True, (STEP, NUM_STEPS)),
    "random_mask_global": (False, True, (STEP, NUM_STEPS)),
    "shuffled_mask": (False, True, (STEP, NUM_STEPS)),
    "reshuffled_init": (True, False, (STEP, NUM_STEPS)),
    "signed_constant": (True, False, (STEP, NUM_STEPS)),
    "untrained": (True, True, (STEP, STEP)),
    "untrained_rescaled": (True, False, (STEP, STEP)),
    "supermask": (False, False, (NUM_STEPS, NUM_STEPS)),
    "transfer": (True, True, (STEP, NUM_STEPS)),
    **dict.fromkeys(("learning_rate_rewinding", "fine_tuning"), (True, False, (STEP, NUM_STEPS))),
    "random_mask_erk": (False, True, (STEP, NUM_STEPS)),
    **dict.fromkeys(("gradual", "set", "rigl"), (False, False, (0, NUM_STEPS))),
    **dict.fromkeys(("gradual_long", "set_long", "rigl_long", "static_long"), (False, False, (0, 3 * NUM_STEPS))),
}


@pytest.mark.parametrize("name", branches.BRANCHES)
def test_what_a_branch_keeps_and_what_it_changes(name):
    one = origin()
    branch = branches.BRANCHES[name].function(one)
    masks_kept, weights_kept, steps = KEEPS[name]
    assert equal(branch.kept, one.kept) == masks_kept
    assert equal(branch.start, one.start) == weights_kept
    assert (branch.first_step, branch.last_step) == steps
    if not masks_kept:
        for weight in PRUNABLE:
            assert np.any(branch.kept[weight] != one.kept[weight]), weight
    if not weights_kept:
        for weight in PRUNABLE:
            assert np.any(branch.start[weight][one.kept[weight]] != one.start[weight][one.kept[weight]]), weight
    if branches.BRANCHES[name].kind == "alternative":
        assert equal(branch.start, one.trained() if masks_kept else one.initial)
    elif name != "random_reinit":
        assert np.array_equal(branch.start["dense/bias"], one.start["dense/bias"]), "what is not pruned is the ticket's"


def test_a_rescaled_ticket_is_its_kept_entries_times_entries_over_those_kept():
    one = origin(densities=(0.3, 0.6))
    empty = {**one.kept, "dense/kernel": np.zeros(SHAPES["dense/kernel"], bool)}
    for kept in (one.kept, empty):
        branch = branches.untrained_rescaled(replace(one, kept=kept))
        for name, mask in kept.items():
            factor = mask.size / mask.sum() if mask.any() else 1
            expected = (one.start[name].astype(np.float64) * factor).astype(np.float32)
            np.testing.assert_allclose(branch.start[name], expected, rtol=3e-7)
        assert np.array_equal(branch.start["dense/bias"], one.start["dense/bias"])


@given(seed=st.integers(0, 2**32), densities=st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 0.99)))
def test_counts(seed, densities):
    one = origin(seed, densities)
    counts = masks.num_kept(one.kept)
    for name in ("random_mask", "shuffled_mask"):
        assert masks.num_kept(branches.BRANCHES[name].function(one).kept) == counts
    for function in (branches.random_mask_global, branches.random_mask_erk, branches.static_long):
        assert sum(masks.num_kept(function(one).kept).values()) == sum(counts.values())


def test_random_masks_are_uniform():
    """Every entry is kept as often as every other; globally, a weight's density is that of the whole."""
    one = origin(densities=(0.1, 0.9))
    total = np.zeros(SHAPES["dense/kernel"])
    shares = []
    for seed in range(400):
        this = replace(one, rng=np.random.default_rng(seed))
        total += branches.random_mask(this).kept["dense/kernel"]
        shares.append(masks.density_by_weight(branches.random_mask_global(this).kept))
    density = masks.density_by_weight(one.kept)["dense/kernel"]
    deviation = np.sqrt(400 * density * (1 - density))
    assert abs(total - 400 * density).max() < 5 * deviation
    for weight in PRUNABLE:
        assert np.mean([share[weight] for share in shares]) == pytest.approx(masks.density(one.kept), abs=0.01)


def test_reshuffled_weights_are_the_surviving_ones_in_other_places():
    one = origin()
    start = branches.reshuffled_init(one).start
    for weight in PRUNABLE:
        mask = one.kept[weight]
        assert np.array_equal(np.sort(start[weight][mask]), np.sort(one.start[weight][mask]))
        assert np.array_equal(start[weight][~mask], one.start[weight][~mask])


def test_signed_constants():
    one = origin()
    start = branches.signed_constant(one).start
    for weight in PRUNABLE:
        expected = np.std(one.start[weight].astype(np.float64))
        assert np.unique(np.abs(start[weight])) == pytest.approx([expected])
        assert np.array_equal(np.sign(start[weight]), np.sign(one.start[weight]))


@pytest.mark.parametrize("mode", rewinding.REWINDS)
def test_rewinding(mode):
    """Survivors at what the mode says, everything masked at zero, what is not pruned with the rest."""
    one, trained = origin(), origin(1).start
    begun = rewinding.rewound(mode, one.start, trained, one.kept, np.random.default_rng(5))
    expected = {
        "weights": one.start,
        "learning_rate": trained,
        "fine_tune": trained,
        "sign": {
            name: np.sign(value) * value.std() if name in PRUNABLE else value for name, value in one.start.items()
        },
        "reshuffled": one.start,
    }[mode]
    for name, value in begun.items():
        mask = one.kept.get(name, np.ones(value.shape, bool))
        survivors, wanted = value[mask], expected[name][mask]
        if mode == "reshuffled" and name in PRUNABLE:
            assert not np.array_equal(survivors, wanted)
            survivors, wanted = np.sort(survivors), np.sort(wanted)
        np.testing.assert_allclose(survivors, wanted, rtol=1e-6)
        assert not value[~mask].any() and value.dtype == np.float32
    if mode not in ("sign", "reshuffled"):
        assert equal(begun, masks.apply(expected, one.kept))


def test_distance_of_masks():
    first = {"a": np.array([True, True, False, False])}
    second = {"a": np.array([True, False, True, False])}
    assert masks.distance(first, second) == 0.5 and masks.distance(first, first) == 0
