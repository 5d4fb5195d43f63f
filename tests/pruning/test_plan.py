import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lottery import masks
from lottery.errors import LotteryError
from lottery.pruning import allocation, plan, ranking, schedules
from lottery.pruning.criteria import CRITERIA
from lottery.pruning.settings import Prune
from tests.pruning.test_schedules import LADDER, LENET

SHAPES = st.dictionaries(
    st.sampled_from(["conv/kernel", "dense/kernel", "dense_1/kernel", "out/kernel"]),
    st.tuples(st.integers(2, 40), st.integers(2, 40)),
    min_size=1,
)
ALLOCATED = [name for name, allocate in allocation.ALLOCATIONS.items() if allocate]
FROM_A_RATE = [name for name in schedules.SCHEDULES if name != "explicit"]
HOW = [
    *itertools.product(["rates"], ranking.SCOPES),
    *itertools.product(ALLOCATED, ["layerwise"]),
]


def planned(settings_, shapes, num_rounds, units=()):
    """The survivors of rounds 0 to `num_rounds`."""
    return {names: kept[: num_rounds + 1] for names, kept in plan.Plan(settings_, shapes, units).survivors.items()}


def check_rounds(settings_, shapes):
    """The survivors of all rounds, once they are checked."""
    found = plan.Plan(settings_, shapes)
    found.check()
    return found.survivors


def test_explicit_densities_are_reached_exactly(rng):
    settings_ = Prune(schedule="explicit", densities=(0.5, 0.1), num_rounds=2)
    scores = {"w": rng.normal(size=1000)}
    kept = masks.ones_like(scores)
    for index, expected in ((1, 500), (2, 100)):
        kept = plan.of_weights(settings_, kept).masks(index, scores, kept)
        assert masks.num_kept(kept) == {"w": expected}


def test_densities_that_are_written_are_met_whatever_rounding_did_before():
    densities = tuple(round(0.99 - 0.03 * index, 2) for index in range(20))
    settings_ = Prune(schedule="explicit", densities=densities, num_rounds=20)
    counts = planned(settings_, {"w": (6, 8)}, 20)
    assert counts[("w",)] == [48, *(round(48 * density) for density in densities)]
    linear = planned(Prune(schedule="linear", rate=0.2, num_rounds=10), {"w": (1000,)}, 10)[("w",)]
    assert linear == [1000, *(round(1000 * (1 - (1 - 0.8**10) * index / 10)) for index in range(1, 11))]


def test_more_rounds_than_weights_allow_are_refused():
    shapes = {"w": (10, 100)}
    with pytest.raises(LotteryError, match=r"must be at most 2\d .*not 60: round \d+ would prune nothing"):
        check_rounds(Prune(num_rounds=60), shapes)
    with pytest.raises(LotteryError, match="must be at most 1 .*would leave nothing of w"):
        check_rounds(Prune(num_rounds=3, rate=0.9), {"w": (10,)})
    for num_rounds, rate in ((5000, 0.2), (400, 0.99)):
        for allocate in allocation.ALLOCATIONS:
            with pytest.raises(LotteryError, match="must be at most"):
                check_rounds(Prune(num_rounds=num_rounds, rate=rate, allocation=allocate), shapes)
    with pytest.raises(LotteryError, match="no weight that can be pruned"):
        check_rounds(Prune(), {})
    allowed = check_rounds(Prune(num_rounds=20), shapes)
    assert allowed == planned(Prune(num_rounds=20), shapes, 20) and allowed[("w",)][-1] > 0


@pytest.mark.parametrize(
    ("schedule", "amount", "why"),
    [
        ("linear", {"rate": 0.2}, "would prune nothing"),
        ("geometric", {"final_density": 0.1}, "would prune nothing"),
        ("one_shot", {"rate": 0.2}, "would leave nothing of w"),
    ],
)
def test_no_highest_number_of_rounds_is_named_where_fewer_rounds_prune_otherwise(schedule, amount, why):
    with pytest.raises(LotteryError, match=rf"^Round \d+ of 40 {why}: (set a lower prune.num_rounds, or )?prune"):
        check_rounds(Prune(schedule=schedule, num_rounds=40, **amount), {"w": (10,)})
    assert check_rounds(Prune(schedule=schedule, num_rounds=4, **amount), {"w": (10,)})


@pytest.mark.parametrize("allocate", ALLOCATED)
def test_a_layer_of_which_an_allocation_leaves_nothing_is_refused(allocate):
    shapes = {"large": (500, 500), "small": (2, 3)}
    # Uniform: 6 / 8 is rounded up, 6 / 16 is not. ERK shares by 1000 to 5: 122 entries are 121.4 and 0.6, 61 are 60.7
    # and 0.3.
    enough = {"uniform": 3, "erk": 11}[allocate]
    with pytest.raises(LotteryError, match=f"must be at most {enough} .*not 30: .*would leave nothing of small"):
        check_rounds(Prune(allocation=allocate, rate=0.5, num_rounds=30), shapes)
    ladder = check_rounds(Prune(allocation=allocate, rate=0.5, num_rounds=enough), shapes)
    assert ladder[("small",)][-1] > 0


@pytest.mark.parametrize("rates", [{"dense_2/kernel": 0.1}, {"dense_2/*": 0.1}, {"*_[2-9]/k*": 0.1}])
def test_the_ladder_of_lenet_with_the_output_layer_by_name_or_pattern(rates):
    counts = planned(Prune(rate=0.2, rates=rates), LENET, 20)
    for index, expected in LADDER.items():
        assert tuple(counts[(name,)][index] for name in LENET) == expected


def test_an_exact_name_wins_over_patterns_and_of_these_the_first():
    shapes = dict.fromkeys(("a/kernel", "b/kernel", "c/kernel", "d/bias"), (100,))
    rates = {"?/kernel": 0.3, "[bc]/*": 0.4, "c/kernel": 0.5}
    counts = planned(Prune(rate=0.1, rates=rates), shapes, 1)
    assert counts == {
        ("d/bias",): [100, 90],
        ("a/kernel",): [100, 70],
        ("b/kernel",): [100, 70],
        ("c/kernel",): [100, 50],
    }
    together = planned(Prune(scope="global", rate=0.1, rates={"[ab]/*": 0.0}), shapes, 1)
    assert together == {("c/kernel", "d/bias"): [200, 180], ("a/kernel",): [100, 100], ("b/kernel",): [100, 100]}


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("dense_1/kernal", "prune.rates: no weight .*'dense_1/kernal'. Did you mean 'dense_1/kernel'"),
        ("conv*/kernel", r"prune.rates: no weight has the name, or fits the pattern, 'conv\*/kernel'"),
        ("Dense/*", "the pattern, 'Dense/"),
    ],
)
@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_rates_for_no_weight_are_refused_in_a_sentence(key, message, rate, rng):
    settings_ = Prune(rates={"dense/kernel": 0.1, key: rate})
    scores = {name: np.ones(shape) for name, shape in LENET.items()}
    for call in (
        lambda: planned(settings_, LENET, 1),
        lambda: check_rounds(settings_, LENET),
        lambda: plan.of_weights(settings_, masks.ones_like(scores)).masks(1, scores, masks.ones_like(scores)),
    ):
        with pytest.raises(LotteryError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("schedule", FROM_A_RATE)
@pytest.mark.parametrize("scope", ranking.SCOPES)
def test_a_rate_of_zero_leaves_a_weight_whole_and_stalls_nothing(schedule, scope, rng):
    settings_ = Prune(schedule=schedule, scope=scope, rate=0.2, num_rounds=4, rates={"dense_2/*": 0.0})
    ladder = check_rounds(settings_, LENET)
    assert ladder[("dense_2/kernel",)] == [1000] * 5
    assert all(kept[-1] < kept[0] for names, kept in ladder.items() if names != ("dense_2/kernel",))
    # The lowest scores of all are those of the weight that stays.
    scores = {name: rng.uniform(1, 2, shape) for name, shape in LENET.items()}
    scores["dense_2/kernel"] *= 0
    kept = plan.of_weights(settings_, masks.ones_like(scores)).masks(1, scores, masks.ones_like(scores))
    assert kept["dense_2/kernel"].all() and not kept["dense/kernel"].all()


@pytest.mark.parametrize("schedule", FROM_A_RATE)
def test_an_experiment_that_would_prune_nothing_is_refused(schedule):
    settings_ = Prune(schedule=schedule, num_rounds=3, rates={"*": 0.0})
    with pytest.raises(LotteryError, match="[Rr]ound 1 (of 3 )?would prune nothing"):
        check_rounds(settings_, LENET)
    with pytest.raises(LotteryError, match="[Rr]ound 1 (of 1 )?would prune nothing"):
        check_rounds(Prune(schedule=schedule, num_rounds=1, rate=0.01), {"w": (4, 4)})
    dense_alone = Prune(schedule=schedule, num_rounds=0, rates={"*": 0.0})
    assert check_rounds(dense_alone, LENET) == {(name,): [math.prod(LENET[name])] for name in LENET}
    # Rounds after the first are there to train what one shot has left.
    if schedule == "one_shot":
        assert check_rounds(Prune(schedule=schedule, num_rounds=3, rate=0.5), {"w": (80,)}) == {
            ("w",): [80, 10, 10, 10]
        }


@pytest.mark.parametrize("schedule", FROM_A_RATE)
@pytest.mark.parametrize(("allocate", "scope"), HOW)
@given(SHAPES, st.floats(0.001, 0.999) | st.integers(1, 99).map(lambda percent: percent / 100), st.integers(1, 30))
def test_rounds_end_at_exactly_the_final_density_that_was_written(schedule, allocate, scope, shapes, final, num_rounds):
    settings_ = Prune(schedule=schedule, scope=scope, allocation=allocate, final_density=final, num_rounds=num_rounds)
    ladder = planned(settings_, shapes, num_rounds)
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    for group in ladder if allocate == "rates" else [tuple(sizes)]:
        size = sum(sizes[name] for name in group)
        rounds = [
            sum(counts) for counts in zip(*(ladder[one] for one in ladder if set(one) <= set(group)), strict=True)
        ]
        assert rounds[0] == size and rounds[-1] == round(Fraction(str(final)) * size)  # as it was written
        assert all(after <= before for before, after in itertools.pairwise(rounds))
        for index in range(1, num_rounds):
            meant = {
                "geometric": final ** (index / num_rounds),
                "linear": 1 - (1 - final) * index / num_rounds,
                "one_shot": final,
            }
            assert abs(rounds[index] - meant[schedule] * size) < 0.5 + 1e-6


def test_a_rate_that_is_worked_out_from_the_final_density_would_miss_it():
    """What rounding adds up to in twenty rounds of a rate; so with a final density, densities are met and not rates."""
    missed = 0
    for size in range(2000, 2200):
        final = Prune(final_density=0.0115, num_rounds=20)
        rate = Prune(rate=final.rate, num_rounds=20)
        assert planned(final, {"w": (size,)}, 20)[("w",)][-1] == round(0.0115 * size)
        missed += planned(rate, {"w": (size,)}, 20)[("w",)][-1] != round(0.0115 * size)
    assert missed > 20


def test_a_rate_of_its_own_stays_beside_a_final_density():
    settings_ = Prune(final_density=0.05, num_rounds=4, rates={"b": 0.5, "c": 0.0})
    ladder = planned(settings_, {"a": (1000,), "b": (160,), "c": (10,)}, 4)
    assert ladder[("a",)][-1] == 50 and ladder[("b",)] == [160, 80, 40, 20, 10] and ladder[("c",)] == [10] * 5


@pytest.mark.parametrize("schedule", schedules.SCHEDULES)
@pytest.mark.parametrize(("allocate", "scope"), HOW)
def test_masks_of_all_rounds_are_nested_and_keep_what_was_planned(schedule, allocate, scope, rng):
    shapes = {"conv/kernel": (3, 3, 2, 8), "dense/kernel": (30, 20), "out/kernel": (20, 3)}
    densities = {"densities": (0.6, 0.31, 0.2, 0.07)} if schedule == "explicit" else {"rate": 0.4}
    rates = {"out/*": 0.0} if allocate == "rates" and schedule != "explicit" else {}
    settings_ = Prune(schedule=schedule, scope=scope, allocation=allocate, num_rounds=4, rates=rates, **densities)
    ladder = check_rounds(settings_, shapes)
    assert sorted(name for names in ladder for name in names) == sorted(shapes)
    kept = {name: np.ones(shape, bool) for name, shape in shapes.items()}
    for index in range(1, 5):
        scores = {name: rng.integers(0, 9, shape) for name, shape in shapes.items()}
        before, kept = kept, plan.of_weights(settings_, kept).masks(index, scores, kept)
        assert list(kept) == list(shapes) and masks.is_nested(kept, before)
        for names, counts in ladder.items():
            assert sum(masks.num_kept(kept)[name] for name in names) == counts[index]
            gone = np.concatenate([scores[name][before[name] & ~kept[name]] for name in names])
            left = np.concatenate([scores[name][kept[name]] for name in names])
            assert gone.max(initial=0) <= left.min()


@settings(deadline=None)
@given(SHAPES, st.floats(0.01, 0.9), st.integers(0, 10), st.sampled_from(ranking.SCOPES))
def test_a_round_of_a_rate_prunes_what_keep_highest_does(shapes, rate, seed, scope):
    rng = np.random.default_rng(seed)
    scores = {name: rng.integers(0, 5, shape).astype(np.float32) for name, shape in shapes.items()}
    dense = masks.ones_like(scores)
    # Eleven digits: a rate that is written, of which the schedule's twelve make the same number again.
    rate = round(rate, 11)
    found = plan.of_weights(Prune(scope=scope, rate=rate), dense).masks(1, scores, dense)
    expected = ranking.keep_highest(scores, dense, rate, scope)
    for name in shapes:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize("name", [name for name, known in CRITERIA.items() if not known.needs_network])
@pytest.mark.parametrize("scope", ranking.SCOPES)
def test_without_iterations_each_round_is_what_one_shot_gives(name, scope, rng):
    """Whatever rounds come before, also where scores are ranks; but chance is drawn anew in each round."""
    initial = {"a": rng.normal(size=(30, 20)), "b": rng.normal(size=(20, 10))}
    trained = {key: value + rng.normal(size=value.shape) for key, value in initial.items()}
    found = plan.of_weights(Prune(criterion=name, scope=scope, iterative=False, num_rounds=4, rate=0.4), initial)
    kept = found.dense
    for number in (1, 2, 3, 4):
        inputs = found.criterion_inputs(number, initial, trained, kept, np.random.default_rng(0))
        scores = CRITERIA[name].score(inputs)
        kept, once = found.masks(number, scores, kept), found.masks(number, scores, found.dense)
        alone = found.criterion_inputs(number, initial, trained, found.dense, np.random.default_rng(0))
        expected = found.masks(number, CRITERIA[name].score(alone), found.dense)
        for key in initial:
            assert np.array_equal(kept[key], expected[key]) and np.array_equal(once[key], expected[key])


@pytest.mark.parametrize("part", ["initial", "trained", "kept"])
def test_a_criterion_cannot_write_into_what_the_round_goes_on_with(part):
    arrays = {"w": np.arange(-6.0, 6.0)}
    found = plan.of_weights(Prune(num_rounds=1), arrays)
    for kept in (found.dense, found.masks(1, arrays, found.dense)):
        inputs = found.criterion_inputs(1, arrays, arrays, kept, np.random.default_rng(0))
        with pytest.raises(ValueError, match="read-only"):
            getattr(inputs, part)["w"][:] = 0
    assert np.array_equal(arrays["w"], np.arange(-6.0, 6.0))
