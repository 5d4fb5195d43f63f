"""Groups of weights: truth by plain loops over NumPy arrays, for drawn shapes, scores and rounds."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lottery import config, masks, pruning, weights
from lottery.errors import LotteryError
from lottery.pruning import branches, criteria, plan, schedules
from lottery.pruning.granularity import GRANULARITIES, NORMS, Granularity, check
from lottery.pruning.settings import Prune
from tests.pruning.test_plan import check_rounds, planned

POOLED = [name for name, kind in GRANULARITIES.items() if kind.pools]


@st.composite
def networks(draw, kind):
    """Shapes of a chain of kernels, and its units: a convolution, one behind a Flatten of 4 places, and Dense ones."""
    a, b, c, out = (draw(st.integers(2, 9)) for _ in range(4))
    shapes = {"conv/kernel": (3, 3, 2, a), "conv_1/kernel": (2, 2, a, b), "dense/kernel": (4 * b, c)}
    shapes["dense_1/kernel"] = (c, out)
    names, sizes = list(shapes), (a, b, c)
    units = [
        {"size": size, "made_by": [names[place]], "read_by": [names[place + 1]]} for place, size in enumerate(sizes)
    ]
    return shapes, {"channel": units[:2], "unit": units[2:]}.get(kind, [])


def drawn(shapes, data, high=4):
    """Few different scores, so that many are equal, and their sums are exact."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**20)))
    return {name: rng.integers(0, high, shape).astype(np.float32) for name, shape in shapes.items()}


def members(how, shapes, units):
    """The entries of each group as positions, by the weight that groups are ranked under: one loop after the other."""
    found = {}
    if how.name == "block":
        (height, width) = how.block
        for name, shape in shapes.items():
            rows, columns = math.prod(shape[:-1]), shape[-1]
            matrix = np.arange(rows * columns).reshape(rows, columns)
            found[name] = [
                {name: matrix[top : top + height, left : left + width].ravel().tolist()}
                for top in range(0, rows, height)
                for left in range(0, columns, width)
            ]
        return found
    for one in units:
        found[one["made_by"][0]] = [
            {
                name: [at for at in range(math.prod(shapes[name])) if at % shapes[name][-1] == unit]
                for name in one["made_by"]
            }
            for unit in range(one["size"])
        ]
    return found


def by_loops(how, shapes, units, scores, kept, counts):
    """The masks that keep so many groups of each weight, of several sizes by their means: of equals the later."""
    after, norm = {name: mask.copy() for name, mask in kept.items()}, how.norm
    for name, groups in members(how, shapes, units).items():
        pooled = []
        are_uneven = len({sum(map(len, group.values())) for group in groups}) > 1
        for place, group in enumerate(groups):
            entries = [
                float(scores[kernel].flat[at])
                for kernel, every in group.items()
                for at in every
                if kept[kernel].flat[at]
            ]
            if entries:
                size = len(entries) if are_uneven else 1
                squares = sum(one * one for one in entries)
                total = {"l1": sum(entries) / size, "l2": math.sqrt(squares / size), "max": max(entries)}
                pooled.append((total[norm], place))
        for _, place in sorted(pooled)[: len(pooled) - counts[name]]:
            for kernel, every in groups[place].items():
                after[kernel].flat[every] = False
            for one in units:
                if one["made_by"][0] == name:
                    for reader in one["read_by"]:
                        *_, inputs, _ = shapes[reader]
                        for row in range(inputs):
                            if row % one["size"] == place:
                                after[reader][..., row, :] = False
    return after


@pytest.mark.parametrize("kind", POOLED)
@given(data=st.data())
def test_groups_go_whole_in_order_and_in_exact_numbers(kind, data):
    shapes, units = data.draw(networks(kind))
    block = data.draw(st.tuples(st.integers(1, 5), st.integers(1, 5))) if kind == "block" else ()
    settings = Prune(
        granularity=kind, block=block, norm=data.draw(st.sampled_from(list(NORMS))), num_rounds=3, rate=0.3
    )
    kept = masks.ones_like(drawn(shapes, data))
    counts = {name: [len(groups)] for name, groups in members(settings.grouping, shapes, units).items()}
    for index in (1, 2, 3):
        scores, before = drawn(shapes, data), kept
        for of in counts.values():
            of.append(of[-1] - schedules.share(0.3, of[-1]))
        kept = plan.of_weights(settings, before, units).masks(index, scores, before)
        wanted = {name: of[-1] for name, of in counts.items()}
        expected = by_loops(settings.grouping, shapes, units, scores, before, wanted)
        assert list(kept) == list(shapes) and all(np.array_equal(kept[name], expected[name]) for name in shapes)
        assert masks.is_nested(kept, before)
        groups = plan.Plan(settings, shapes, units).groups
        assert not groups.broken(kept) and masks.num_kept(groups.alive(kept)) == wanted
    assert planned(settings, shapes, 3, units) == {(name,): of for name, of in counts.items()}


@given(data=st.data())
def test_n_of_every_m_inputs_stay_for_each_output(data):
    shapes, _ = data.draw(networks("n_of_m"))
    m = data.draw(st.integers(2, 5))
    n = data.draw(st.integers(1, m - 1))
    num_rounds = data.draw(st.integers(1, m - n))
    whole = data.draw(st.booleans())
    rates = {"dense/kernel": 0.0} if whole else {}
    settings = Prune(granularity="n_of_m", n_of_m=(n, m), num_rounds=num_rounds, rates=rates)
    kept = masks.ones_like(drawn(shapes, data))
    for index in range(1, num_rounds + 1):
        scores, before = drawn(shapes, data), kept
        kept = plan.of_weights(settings, before).masks(index, scores, before)
        num = m - (m - n) * index // num_rounds
        for name in shapes:
            for *place, output in itertools.product(*map(range, (*shapes[name][:-2], shapes[name][-1]))):
                column = (*place, slice(None), output)
                for first in range(0, shapes[name][-2], m):
                    num_here = m if whole and name == "dense/kernel" else num
                    part = slice(first, first + m)
                    there = np.flatnonzero(before[name][column][part]).tolist()
                    best = sorted(there, key=lambda at: (scores[name][column][part][at], at))[-num_here:]
                    assert np.flatnonzero(kept[name][column][part]).tolist() == sorted(best)
        ladder = planned(settings, shapes, index)
        assert {names: of[-1] for names, of in ladder.items()} == {
            (key,): of for key, of in masks.num_kept(kept).items()
        }
        assert not plan.Plan(settings, shapes).groups.broken(kept)


def test_the_last_round_of_n_of_m_keeps_n_of_every_m_whatever_the_number_of_rounds():
    for num_rounds in (1, 2, 3):
        settings = Prune(granularity="n_of_m", n_of_m=(1, 4), num_rounds=num_rounds)
        assert planned(settings, {"w": (8, 3)}, num_rounds)[("w",)][-1] == 6
    falling = Prune(granularity="n_of_m", n_of_m=(1, 4))
    assert falling.num_rounds == 3 and check_rounds(falling, {"w": (8, 3)})[("w",)] == [24, 18, 12, 6]
    with pytest.raises(LotteryError, match="^Round 1 of 4 would prune nothing: set a lower prune.num_rounds"):
        check_rounds(Prune(granularity="n_of_m", n_of_m=(1, 4), num_rounds=4), {"w": (8, 3)})


def test_groups_of_several_sizes_are_ranked_by_means_in_global_scope():
    """Two layers whose units have 2 and 8 weights; sums would keep those of the second for their number alone."""
    shapes = {"dense/kernel": (2, 4), "dense_1/kernel": (8, 4), "dense_2/kernel": (4, 2)}
    units = [{"size": 4, "made_by": [name], "read_by": []} for name in ("dense/kernel", "dense_1/kernel")]
    scores = {name: np.ones(shape) for name, shape in shapes.items()}
    scores["dense/kernel"] *= np.array([4, 5, 6, 7])
    scores["dense_1/kernel"] *= np.array([1, 2, 3, 8])
    settings = Prune(granularity="unit", scope="global", rate=0.5, num_rounds=1)
    kept = plan.of_weights(settings, masks.ones_like(scores), units).masks(1, scores, masks.ones_like(scores))
    assert [kept[name].all(axis=0).tolist() for name in list(shapes)[:2]] == [
        [False, True, True, True],
        [False] * 3 + [True],
    ]
    assert planned(settings, shapes, 1, units) == {("dense/kernel", "dense_1/kernel"): [8, 4]}


def test_convolutions_that_share_their_channels_are_pooled_and_lose_them_together(rng):
    shapes = {"conv/kernel": (3, 3, 1, 6), "shortcut/kernel": (1, 1, 1, 6), "dense/kernel": (12, 2)}
    units = [{"size": 6, "made_by": ["conv/kernel", "shortcut/kernel"], "read_by": ["dense/kernel"]}]
    scores = {name: np.abs(rng.normal(size=shape)) for name, shape in shapes.items()}
    settings = Prune(granularity="channel", rate=0.5, num_rounds=1)
    kept = plan.of_weights(settings, masks.ones_like(scores), units).masks(1, scores, masks.ones_like(scores))
    pooled = scores["conv/kernel"].sum(axis=(0, 1, 2)) + scores["shortcut/kernel"].sum(axis=(0, 1, 2))
    best = np.sort(np.argsort(pooled)[3:])
    for name in ("conv/kernel", "shortcut/kernel"):
        assert np.flatnonzero(kept[name].any(axis=(0, 1, 2))).tolist() == best.tolist()
        assert np.array_equal(kept[name].all(axis=(0, 1, 2)), kept[name].any(axis=(0, 1, 2)))
    assert np.flatnonzero(kept["dense/kernel"].all(axis=1)).tolist() == [*best, *(best + 6)]


def test_scores_with_signs_are_added_up_and_never_squared():
    scores, whole = {"w": np.array([[-3.0, 1.0], [1.0, 0.5]])}, {"w": np.ones((2, 2), bool)}
    kept = plan.of_weights(Prune(granularity="block", block=(2, 1), rate=0.5, num_rounds=1), whole).masks(
        1, scores, whole
    )
    assert kept["w"].tolist() == [[False, True]] * 2
    with pytest.raises(LotteryError, match='prune.norm = "l2" squares the scores, and some are negative'):
        plan.of_weights(Prune(granularity="block", block=(2, 1), rate=0.5, num_rounds=1, norm="l2"), whole).masks(
            1, scores, whole
        )
    for granular in ({"granularity": "block", "block": (2, 1)}, {"granularity": "n_of_m", "n_of_m": (1, 2)}):
        with pytest.raises(LotteryError, match="not numbers"):
            plan.of_weights(Prune(**granular, num_rounds=1), whole).masks(1, {"w": np.full((2, 2), np.nan)}, whole)


@pytest.mark.parametrize("norm", NORMS)
def test_blocks_at_the_border_are_not_pruned_for_their_size(norm):
    """Of 4 x 4 blocks, the last has two of its columns; its entries score a little more than the others."""
    scores, whole = {"w": np.ones((4, 10))}, {"w": np.ones((4, 10), bool)}
    scores["w"][:, 8:] = 1.1
    settings = Prune(granularity="block", block=(4, 4), norm=norm, rate=0.67, num_rounds=1)
    kept = plan.of_weights(settings, whole).masks(1, scores, whole)["w"]
    assert kept[:, 8:].all() and not kept[:, :8].any()


@pytest.mark.parametrize("kind", [*POOLED, "n_of_m"])
@given(data=st.data())
def test_random_masks_have_the_structure_and_the_numbers_of_the_ticket(kind, data):
    shapes, units = data.draw(networks(kind))
    how = {"block": {"block": (2, 3)}, "n_of_m": {"n_of_m": (2, 4), "num_rounds": 2}}.get(kind, {"num_rounds": 2})
    settings = Prune(granularity=kind, **how)
    kept = plan.of_weights(settings, masks.ones_like(drawn(shapes, data)), units).masks(
        1, drawn(shapes, data), masks.ones_like(drawn(shapes, data))
    )
    seed = data.draw(st.integers(0, 99))
    groups = plan.Plan(settings, shapes, units).groups
    for name in ("random_mask", "shuffled_mask"):
        ticket = branches.StoredTicket(
            kept, {}, 0, 1, np.random.default_rng(seed), dict, lambda: None,
            shuffled=plan.of_weights(settings, kept, units).shuffled(kept),
        )  # fmt: skip
        made = branches.BRANCHES[name].function(ticket).kept
        assert not groups.broken(made) and masks.num_kept(made) == masks.num_kept(kept)
        assert masks.num_kept(groups.alive(made)) == masks.num_kept(groups.alive(kept))


def test_random_units_differ_from_the_tickets():
    scores, units = {"a": np.ones((9, 40)), "b": np.ones((40, 3))}, [{"size": 40, "made_by": ["a"], "read_by": ["b"]}]
    settings = Prune(granularity="unit", rate=0.5, num_rounds=1)
    kept = plan.of_weights(settings, masks.ones_like(scores), units).masks(1, scores, masks.ones_like(scores))
    seen = {
        plan.of_weights(settings, kept, units).shuffled(kept)(np.random.default_rng(seed))["a"].tobytes()
        for seed in range(9)
    }
    assert len(seen | {kept["a"].tobytes()}) == 10
    assert plan.of_weights(Prune(), kept).shuffled(kept) is None


@pytest.mark.parametrize("criterion", ["large_init_large_final", "small_init_small_final"])
@pytest.mark.parametrize("granularity", ["block", "unit"])
def test_percentiles_are_those_of_the_entries_that_are_ranked_together(criterion, granularity, rng):
    """A weight with a rate of its own is ranked by itself, and layers that share units by the entries of all of them."""
    shapes = {"a": (6, 4), "a_too": (5, 4), "b": (4, 8), "c": (8, 3)}
    units = [{"size": 4, "made_by": ["a", "a_too"], "read_by": ["b"]}, {"size": 8, "made_by": ["b"], "read_by": ["c"]}]
    settings = Prune(
        criterion=criterion,
        granularity=granularity,
        block=(1, 2) if granularity == "block" else (),
        scope="global",
        rates={"b": 0.25},
        rate=0.5,
        num_rounds=1,
    )
    # Of other sizes, so that ranks among all weights are others.
    initial = {name: rng.normal(size=shape) * (9 if name == "b" else 1) for name, shape in shapes.items()}
    trained = {name: rng.normal(size=shape) * (3 if name == "b" else 1) for name, shape in shapes.items()}
    planned = plan.of_weights(settings, initial, units)
    inputs = planned.criterion_inputs(1, initial, trained, planned.dense, rng)
    found = criteria.CRITERIA[criterion].score(inputs)
    sign = 1 if criterion == "large_init_large_final" else -1
    for together in (["b"], ["a", "a_too"] if granularity == "unit" else ["a", "a_too", "c"]):
        ranks = [
            np.argsort(np.argsort(sign * np.abs(np.concatenate([values[name].ravel() for name in together]))))
            for values in (initial, trained)
        ]
        scores = np.concatenate([found[name].ravel() for name in together])
        assert np.array_equal(scores, np.minimum(*ranks) + 1)


@pytest.mark.parametrize("norm", NORMS)
def test_chance_takes_units_of_every_size_alike(norm):
    """The mean of many draws lies near a half, and their maximum near one."""
    ones = {"a": np.ones((200, 20)), "b": np.ones((20, 20)), "c": np.ones((20, 3))}
    units = [{"size": 20, "made_by": ["a"], "read_by": ["b"]}, {"size": 20, "made_by": ["b"], "read_by": ["c"]}]
    settings = Prune(criterion="random", granularity="unit", scope="global", norm=norm, rate=0.2, num_rounds=1)
    planned = plan.of_weights(settings, ones, units)

    def kept(seed):
        inputs = planned.criterion_inputs(1, ones, ones, planned.dense, np.random.default_rng(seed))
        return planned.groups.alive(planned.masks(1, criteria.random(inputs), planned.dense))

    # Of 8 that go, 4 are expected to be of each layer.
    assert np.mean([np.sum(kept(seed)["a"]) for seed in range(100)]) == pytest.approx(16, abs=0.5)


@pytest.mark.parametrize("norm", ["l1", "max"])
def test_units_behind_a_layer_of_which_nothing_is_left_are_still_counted(norm):
    low, high, out = np.full((3, 4), 1.0), np.full((4, 6), 9.0), np.ones((6, 2))
    scores = {"a": low, "b": high, "c": out}
    units = [{"size": 4, "made_by": ["a"], "read_by": ["b"]}, {"size": 6, "made_by": ["b"], "read_by": ["c"]}]
    settings = Prune(granularity="unit", scope="global", norm=norm, rate=0.5, num_rounds=2)
    planned = plan.of_weights(settings, scores, units)
    first = planned.masks(1, scores, planned.dense)
    second = planned.masks(2, scores, first)
    # All 4 units of a go before any of b, which then reads nothing: of all 10, 5 and 3 stay.
    assert masks.num_kept(first) == {"a": 0, "b": 0, "c": 10} and masks.num_kept(second) == {"a": 0, "b": 0, "c": 6}
    assert planned.groups.broken(second) == []
    assert masks.num_kept(planned.shuffled(second)(np.random.default_rng(0))) == masks.num_kept(second)
    assert planned.thresholds(scores, first, second) == {"a": None, "b": 0, "c": None}


@pytest.mark.parametrize(
    ("units", "rate"),
    [
        ([("a", "b"), ("b", "c"), ("c", "d")], 0.7),
        ([("ac", "bd"), ("b", "c")], 0.5),  # a residual block: what c makes of b is added to what a makes
    ],
)
def test_units_that_no_mask_shows_between_layers_that_are_gone_are_not_missed(units, rate):
    scores = {name: np.full((2, 2), value) for name, value in {"a": 1.0, "b": 9.0, "c": 1.0, "d": 9.0}.items()}
    units = [{"size": 2, "made_by": list(made_by), "read_by": list(read_by)} for made_by, read_by in units]
    planned = plan.of_weights(Prune(granularity="unit", scope="global", rate=rate, num_rounds=1), scores, units)
    kept = planned.masks(1, scores, planned.dense)
    # Both units of b are kept, and read and feed nothing.
    assert masks.num_kept(planned.groups.alive(kept))["b"] == 0
    assert list(planned.miscounted(1, kept)) == []
    ((_, found, wanted),) = planned.miscounted(1, planned.dense)
    assert (found, wanted) == (2 * len(units), 2)


def test_a_block_that_is_no_pair_is_refused_in_one_sentence():
    with pytest.raises(LotteryError, match="prune.block must be two whole numbers from 1, not 4"):
        check(Granularity("block", block=4))  # type: ignore


@pytest.mark.parametrize(
    ("prune", "sentence"),
    [
        ({"granularity": "chanel"}, "prune.granularity must be .*not 'chanel'.*Did you mean 'channel'"),
        ({"granularity": "block"}, r'prune.block and prune.granularity = "block" go together.*prune.block = \[4, 4\]'),
        ({"granularity": "n_of_m"}, r"prune.n_of_m and .*go together.*prune.n_of_m = \[2, 4\]"),
        ({"block": [2, 2]}, 'prune.block and prune.granularity = "block" go together'),
        ({"granularity": "unit", "n_of_m": [2, 4]}, 'prune.n_of_m and prune.granularity = "n_of_m" go together'),
        ({"granularity": "block", "block": [2]}, r"prune.block must be two whole numbers from 1, not \[2\]"),
        ({"granularity": "block", "block": [2, 0]}, "prune.block.1 must be greater than .*not 0"),
        ({"granularity": "n_of_m", "n_of_m": [4, 4]}, r"prune.n_of_m must be \[n, m\] with n below m, not \[4, 4\]"),
        ({"norm": "l2"}, r'prune.norm pools .*must be "unit" or "channel" or "block", not "weight"'),
        ({"granularity": "unit", "norm": "l3"}, "prune.norm must be 'l1', 'l2' or 'max', not 'l3'"),
        ({"granularity": "unit", "norm": "l2", "criterion": "small_final"}, "scores of small_final have signs"),
        ({"granularity": "channel", "criterion": "synflow"}, "synflow ranks single entries"),
        ({"granularity": "channel", "allocation": "erk"}, 'prune.allocation = "erk" divides entries'),
        *(
            ({"granularity": "n_of_m", "n_of_m": [2, 4], key: value}, f"leave out prune.{key}")
            for key, value in {
                "rates": {"dense/kernel": 0.5}, "scope": "global", "allocation": "erk", "rate": 0.5,
                "schedule": "linear", "final_density": 0.3,
            }.items()
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused_in_one_sentence(prune, sentence):
    with pytest.raises(LotteryError, match=sentence):
        config.load({"prune": prune})


def test_controls_that_prune_entry_by_entry_are_refused():
    for name in ("random_mask_global", "random_mask_erk"):
        with pytest.raises(LotteryError, match=f'leave out {name}, which.*prune.granularity = "unit".*use random_mask'):
            config.load({"prune": {"granularity": "unit"}, "run": {"controls": [name]}})
        # n of m keeps no whole groups, but has a structure, too.
        with pytest.raises(LotteryError, match="without the structure of the ticket's masks"):
            config.load({"prune": {"granularity": "n_of_m", "n_of_m": [2, 4]}, "run": {"controls": [name]}})
    config.load({"prune": {"granularity": "unit"}, "run": {"controls": ["random_mask", "shuffled_mask"]}})


def test_the_default_experiment_takes_each_granularity_by_an_override():
    for prune in ({"granularity": "unit"}, {"granularity": "block", "block": [2, 2]}):
        assert config.load(None, {"prune": prune}).prune.num_rounds == 9
    two = config.load(None, {"prune": {"granularity": "n_of_m", "n_of_m": [2, 4]}})
    assert two.prune.num_rounds == 2 and not two.prune.rates and two.run.control_rounds == (2,)


def by_tfmot(value, **settings):
    """The mask that tfmot's own code makes of a weight."""
    import tensorflow as tf
    from tensorflow_model_optimization.python.core.sparsity.keras import pruning_impl
    from tensorflow_model_optimization.python.core.sparsity.keras.pruning_schedule import ConstantSparsity

    schedule = ConstantSparsity(settings.pop("sparsity", 0.5), 0)
    settings = {"block_size": (1, 1), "block_pooling_type": "AVG", **settings}
    made = pruning_impl.Pruning(lambda: tf.constant(1), [], schedule, **settings)
    return made._maybe_update_block_mask(tf.constant(value))[1].numpy().astype(bool)


@pytest.mark.parametrize("block", [(4, 4), (2, 8), (1, 8), (16, 2)], ids=str)
@pytest.mark.parametrize(("pooling", "norm"), [("AVG", "l1"), ("MAX", "max")])
def test_blocks_are_those_of_tfmot(block, pooling, norm):
    import keras

    model = keras.Sequential([keras.Input((48,)), keras.layers.Dense(32), keras.layers.Dense(16)])
    for sparsity in (0.1, 0.5, 0.75, 0.9):
        ours = pruning.prune(model, sparsity, granularity=Granularity("block", norm, block))
        for name, value in weights.read(model).items():
            theirs = by_tfmot(value, block_size=block, block_pooling_type=pooling, sparsity=sparsity)
            assert np.array_equal(ours[name], theirs), (name, sparsity)


def test_where_blocks_do_not_divide_a_matrix_tfmot_pools_other_entries_than_it_masks():
    """It pads both ends, so that its windows are [-1, 2) and [2, 5), and its masks are of [0, 3) and [3, 4)."""
    value = np.array([[0, 0, 5, 1]] * 6, np.float32)
    assert by_tfmot(value, block_size=(2, 3)).tolist() == [[False, False, False, True]] * 6
    settings = Prune(granularity="block", block=(2, 3), rate=0.5, num_rounds=1)
    ours = plan.of_weights(settings, {"w": np.ones((6, 4), bool)}).masks(1, {"w": value}, {"w": np.ones((6, 4), bool)})[
        "w"
    ]
    assert ours.tolist() == [[True, True, True, False]] * 6


@pytest.mark.parametrize("shape", [(48, 40), (30, 7), (3, 3, 16, 8), (5, 5, 6, 4)], ids=str)
@pytest.mark.parametrize("n_of_m", [(2, 4), (1, 4), (3, 4), (1, 2), (4, 8)], ids=str)
def test_n_of_m_are_those_of_tfmot(shape, n_of_m, rng):
    """Of (m - n) by m in tfmot's words, for Dense and 2D convolutions, also where m does not divide the inputs."""
    n, m = n_of_m
    value = rng.normal(size=shape).astype(np.float32)
    settings = Prune(granularity="n_of_m", n_of_m=n_of_m, num_rounds=1)
    ours = plan.Plan(settings, {"w": shape}).masks(1, {"w": np.abs(value)}, {"w": np.ones(shape, bool)})["w"]
    assert np.array_equal(ours, by_tfmot(value, sparsity_m_by_n=(m - n, m)))


def test_masks_of_a_model_without_a_run():
    import keras

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(10), keras.layers.Dense(6), keras.layers.Dense(2)])
    values = weights.read(model)
    kept = pruning.prune(model, 0.5, granularity="unit", rates={"dense_1/kernel": 0.0})
    sums = np.abs(values["dense/kernel"]).sum(axis=0)
    best = sums >= np.sort(sums)[5]
    assert np.array_equal(kept["dense/kernel"], np.broadcast_to(best, (8, 10)))
    assert (
        np.array_equal(kept["dense_1/kernel"], np.broadcast_to(best[:, None], (10, 6))) and kept["dense_2/kernel"].all()
    )
    two = pruning.prune(model, granularity=pruning.Granularity("n_of_m", n_of_m=(2, 4)), rates={"dense_2/kernel": 0.0})
    assert (two["dense/kernel"].reshape(2, 4, 10).sum(axis=1) == 2).all() and two["dense_2/kernel"].all()
    for arguments, sentence in (
        ({"below": 0.1, "granularity": "unit"}, "below cannot prune with granularity \"unit\". Use sparsity"),
        ({"sparsity": 0.1, "granularity": pruning.Granularity("n_of_m", n_of_m=(2, 4))}, "leave out sparsity, below"),
        ({"rates": {"dense*": 0.5}, "granularity": pruning.Granularity("n_of_m", n_of_m=(2, 4))}, "scope and rates"),
        ({"rates": [0.5], "granularity": pruning.Granularity("n_of_m", n_of_m=(2, 4))}, "must be a dictionary"),
        ({"sparsity": 0.5, "rates": {"dense/kernel": np.zeros(2)}}, r"rates\['dense/kernel'\] must be a fraction"),
        ({"scope": "globl", "granularity": pruning.Granularity("n_of_m", n_of_m=(2, 4))}, "Did you mean 'global'"),
        ({"sparsity": 0.1, "granularity": "channel"}, "the model has no channel that can be removed"),
        ({"sparsity": 0.1, "granularity": "block"}, "go together: set both or neither"),
        ({"sparsity": 0.1, "granularity": "unit", "rates": {"dense_2/kernel": 0.5}}, "^rates of units: .*dense_2/k"),
    ):  # fmt: skip
        with pytest.raises(LotteryError, match=sentence):
            pruning.prune(model, **arguments)
    table = keras.Sequential(
        [keras.Input((3,)), keras.layers.Embedding(9, 4), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    four = pruning.Granularity("block", block=(2, 2))
    with pytest.raises(LotteryError, match="not for 'embedding/embeddings'; keep it whole with prune.rates"):
        pruning.prune(table, 0.5, granularity=four)
    assert pruning.prune(table, 0.5, granularity=four, rates={"embed*": 0.0})["embedding/embeddings"].all()
