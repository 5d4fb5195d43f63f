import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lottery.errors import LotteryError
from lottery.pruning import allocation, plan, schedules
from lottery.pruning.settings import Prune
from tests.pruning.test_plan import planned

LENET = {"dense/kernel": (784, 300), "dense_1/kernel": (300, 100), "dense_2/kernel": (100, 10)}
SHAPES = st.lists(
    st.lists(st.integers(1, 12), min_size=1, max_size=4).map(tuple) | st.tuples(*[st.integers(1, 300)] * 2),
    min_size=1,
    max_size=6,
).map(lambda shapes: {f"w{index}": shape for index, shape in enumerate(shapes)})


def sizes_of(shapes):
    return {name: math.prod(shape) for name, shape in shapes.items()}


def erk_by_bisection(shapes, density):
    """The one factor that meets the total, found without any reasoning on which layers fill up."""
    sizes = np.array([math.prod(shape) for shape in shapes.values()], float)
    sums = np.array([sum(shape) for shape in shapes.values()], float)
    low, high = 0.0, float(max(sizes / sums))
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.minimum(sizes, middle * sums).sum() < density * sizes.sum() else (low, middle)
    return dict(zip(shapes, np.minimum(sizes, high * sums) / sizes, strict=True))


def uniform_by_hand(shapes, density):
    return {name: density for name in shapes}  # noqa: C420


ALLOCATED = {name: allocate for name, allocate in allocation.ALLOCATIONS.items() if allocate}
BY_HAND = {"uniform": uniform_by_hand, "erk": erk_by_bisection}


def test_every_allocation_is_computed_by_hand():
    assert set(BY_HAND) == set(ALLOCATED) and set(allocation.ALLOCATIONS) == {"rates", *ALLOCATED}


@pytest.mark.parametrize("name", ALLOCATED)
@given(SHAPES, st.floats(0.001, 1))
def test_every_allocation_meets_the_density_and_equals_an_independent_one(name, shapes, density):
    found = ALLOCATED[name](shapes, density)
    sizes = sizes_of(shapes)
    assert list(found) == list(shapes) and all(0 < one <= 1 for one in found.values())
    assert sum(found[one] * sizes[one] for one in shapes) == pytest.approx(density * sum(sizes.values()), rel=1e-9)
    assert found == pytest.approx(BY_HAND[name](shapes, density), rel=1e-9)


@pytest.mark.parametrize("name", ALLOCATED)
@given(SHAPES, st.floats(0.001, 1), st.floats(0.001, 1))
def test_of_a_lower_density_no_weight_has_more(name, shapes, one, other):
    low, high = (ALLOCATED[name](shapes, density) for density in sorted([one, other]))
    assert all(low[key] <= high[key] * (1 + 1e-12) for key in shapes)


def test_erk_of_lenet_computed_by_hand():
    # 10 % of 266200 are 26620. The sums of the dimensions are 1084, 400 and 110, together 1594, so the output layer
    # would have 110 * 26620 / 1594 = 1837 of its 1000: it stays dense, and 25620 go by 1084 to 400.
    found = allocation.erk(LENET, 0.1)
    assert found["dense_2/kernel"] == 1
    assert found["dense/kernel"] == pytest.approx(25620 * 1084 / 1484 / 235200)
    assert found["dense_1/kernel"] == pytest.approx(25620 * 400 / 1484 / 30000)
    # 18714.3 and 6905.7 and 1000: the one entry that rounding down leaves goes to the second.
    kept = allocation.counts(found, sizes_of(LENET), 26620)
    assert kept == {"dense/kernel": 18714, "dense_1/kernel": 6906, "dense_2/kernel": 1000}
    # At 2 % nothing is dense: 5324 by 1084 to 400 to 110 are 3620.6, 1336.0 (.01) and 367.4.
    kept = allocation.counts(allocation.erk(LENET, 0.02), sizes_of(LENET), 5324)
    assert kept == {"dense/kernel": 3621, "dense_1/kernel": 1336, "dense_2/kernel": 367}


def test_erk_counts_the_sides_of_a_kernel_and_gives_square_layers_entries_as_they_are_wide():
    # 3 + 3 + 16 + 32 to 64 + 10 is 54 to 74, of what is kept.
    kernels = {"conv": (3, 3, 16, 32), "dense": (64, 10)}
    found = allocation.erk(kernels, 0.05)
    assert found["conv"] * 4608 / (found["dense"] * 640) == pytest.approx(54 / 74)
    square = allocation.erk({"small": (50, 50), "large": (200, 200)}, 0.1)
    assert square["large"] * 200**2 / (square["small"] * 50**2) == pytest.approx(4)


def resnet_50():
    """The kernels of ResNet-50 for images of 224 x 224, and to how many positions each is applied."""
    kernels, positions = {"stem": (7, 7, 3, 64)}, {"stem": 112**2}
    channels, side = 64, 56
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            before, side = side, side // 2 if width > 64 and not block else side
            parts = {
                "reduce": ((1, 1, channels, width), before),
                "middle": ((3, 3, width, width), side),
                "expand": ((1, 1, width, 4 * width), side),
                "shortcut": ((1, 1, channels, 4 * width), side),
            }
            for part, (shape, wide) in parts.items():
                if part != "shortcut" or not block:
                    kernels[f"{width}/{block}/{part}"], positions[f"{width}/{block}/{part}"] = shape, wide**2
            channels = 4 * width
    return kernels | {"dense": (2048, 1000)}, positions | {"dense": 1}


@pytest.mark.parametrize(("density", "published"), [(0.2, 0.42), (0.1, 0.24), (0.05, 0.12), (0.035, 0.09)])
def test_erk_of_resnet_50_costs_what_its_authors_publish(density, published):
    """Inference FLOPs relative to dense of the ERK models of Evci et al. 2020, https://github.com/google-research/rigl.

    They count normalisation and additions too, so the second digit may differ by one.
    """
    shapes, positions = resnet_50()
    sizes = sizes_of(shapes)
    assert sum(sizes.values()) == 25_502_912
    found = allocation.erk(shapes, density)
    cost = sum(found[name] * sizes[name] * positions[name] for name in shapes)
    assert cost / sum(sizes[name] * positions[name] for name in shapes) == pytest.approx(published, abs=0.0075)


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(1, 500)), min_size=1, max_size=8), st.booleans())
def test_counts_are_those_of_the_largest_remainder(pairs, up):
    sizes = {f"w{place}": size for place, (_, size) in enumerate(pairs)}
    densities = {f"w{place}": percent / 100 for place, (percent, _) in enumerate(pairs)}
    # Hundredths, so that everything here is whole numbers and ties are ties.
    quotas = [percent * size for percent, size in pairs]
    total = -(-sum(quotas) // 100) if up else sum(quotas) // 100
    found = allocation.counts(densities, sizes, total)
    expected = [quota // 100 for quota in quotas]
    places = sorted(range(len(quotas)), key=lambda place: (-(quotas[place] % 100), place))
    for place in places[: total - sum(expected)]:
        expected[place] += 1
    assert list(found) == list(sizes) and list(found.values()) == expected
    assert sum(found.values()) == total


def test_remainders_that_are_equal_as_they_are_written_are_ties():
    # 10.5 and 3.5. As a float 0.7 is a little less, which the larger weight would feel more.
    assert allocation.counts({"a": 0.7, "b": 0.7}, {"a": 15, "b": 5}, 14) == {"a": 11, "b": 3}


def test_what_a_weight_may_not_keep_goes_to_the_next():
    densities, sizes = dict.fromkeys("abc", 0.5), {"a": 5, "b": 5, "c": 5}  # 2.5 each; 7 or 8 in all
    assert allocation.counts(densities, sizes, 8) == {"a": 3, "b": 3, "c": 2}
    assert allocation.counts(densities, sizes, 8, most={"a": 2, "b": 5, "c": 5}) == {"a": 2, "b": 3, "c": 3}
    assert allocation.counts(densities, sizes, 7, most={"a": 2, "b": 2, "c": 5}) == {"a": 2, "b": 2, "c": 3}
    assert allocation.counts(densities, sizes, 8, most={"a": 2, "b": 1, "c": 5}) == {"a": 2, "b": 1, "c": 5}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: allocation.uniform({"w": (3,)}, 1.5), r"density must be a number in \[0, 1\], not 1.5"),
        (lambda: allocation.erk({"w": (3,)}, -0.1), r"density must be .* not -0.1"),
        (lambda: allocation.erk({"w": (3,)}, math.nan), r"density must be .* not nan"),
        (lambda: allocation.counts({"w": 0.5}, {"w": 10}, 6), "total must be 5, rounded .* not 6"),
        (lambda: allocation.counts({"w": 0.5}, {"w": 10}, 5, most={"w": 4}), "no more than may be kept"),
    ],
)
def test_a_bad_call_is_one_sentence(call, message):
    with pytest.raises(LotteryError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_the_largest_remainder_alone_would_bring_pruned_entries_back():
    """The paradox of Alabama, without which nothing would have to be held to the round before."""
    sizes = {f"w{place}": size for place, size in enumerate((500, 500, 300, 11))}
    totals = {total: allocation.counts(dict.fromkeys(sizes, total / 1311), sizes, total) for total in range(1, 1312)}
    risen = [
        (total, name)
        for total, name in itertools.product(range(2, 1312), sizes)
        if totals[total - 1][name] > totals[total][name]
    ]
    assert risen
    total, name = risen[0]
    held = allocation.counts(dict.fromkeys(sizes, (total - 1) / 1311), sizes, total - 1, most=totals[total])
    assert held[name] == totals[total][name] and sum(held.values()) == total - 1


def check_ladder(settings_, shapes, schedule, num_rounds):
    """Every total exact, no weight ever more than before, and each within one of its share while nothing is held."""
    ladder = planned(settings_, shapes, num_rounds)
    sizes = sizes_of(shapes)
    assert list(ladder) == [(name,) for name in shapes]
    rounds = list(zip(*ladder.values(), strict=True))
    assert list(rounds[0]) == list(sizes.values())
    for index, (before, after) in enumerate(itertools.pairwise(rounds), 1):
        assert sum(after) == round(schedule(index) * sum(sizes.values()))
        assert all(0 <= new <= old for new, old in zip(after, before, strict=True))
    return rounds


@pytest.mark.parametrize("allocate", ALLOCATED)
@settings(deadline=None)
@given(SHAPES, st.floats(0.01, 0.9), st.integers(1, 30), st.sampled_from(["geometric", "linear", "one_shot"]))
def test_a_round_meets_its_total_and_no_weight_ever_grows(allocate, shapes, rate, num_rounds, schedule):
    settings_ = Prune(allocation=allocate, schedule=schedule, rate=rate, num_rounds=num_rounds)
    last = (1 - rate) ** num_rounds
    densities = {
        "geometric": lambda index: (1 - rate) ** index,
        "linear": lambda index: (1 - index / num_rounds) + last * (index / num_rounds),
        "one_shot": lambda index: last,
    }
    rounds = check_ladder(settings_, shapes, densities[schedule], num_rounds)
    # What is planned for a round does not depend on how far ahead is planned.
    assert list(zip(*planned(settings_, shapes, 1).values(), strict=True)) == rounds[:2]


@pytest.mark.parametrize("allocate", ALLOCATED)
@settings(deadline=None)
@given(SHAPES, st.lists(st.floats(0.001, 0.999), min_size=1, max_size=30, unique=True))
def test_densities_in_small_and_large_steps(allocate, shapes, drawn):
    densities = tuple(sorted(drawn, reverse=True))
    settings_ = Prune(allocation=allocate, schedule="explicit", densities=densities, num_rounds=len(densities))
    rounds = check_ladder(settings_, shapes, lambda index: densities[index - 1], len(densities))
    sizes = sizes_of(shapes)
    for index, kept in enumerate(rounds[1:], 1):
        share = BY_HAND[allocate](shapes, densities[index - 1])
        # Being held to the round before moves a weight by no more than another entry or two.
        assert all(abs(one - share[name] * sizes[name]) < 3 for one, name in zip(kept, shapes, strict=True))


@pytest.mark.parametrize("allocate", ALLOCATED)
@settings(deadline=None)
@given(SHAPES, st.floats(0.05, 0.95), st.integers(1, 3))
def test_entry_by_entry_down_to_the_last(allocate, shapes, high, step):
    """Rounds that prune one to three entries each, where a remainder changes hands most often."""
    size = sum(sizes_of(shapes).values())
    assume(size >= 40)
    totals = list(range(round(high * size), 0, -step))[:60]
    ladder = plan.by_allocation(
        shapes, schedules.Schedule(lambda index: totals[index - 1] / size), len(totals), ALLOCATED[allocate]
    )
    rounds = list(zip(*ladder.values(), strict=True))
    assert [sum(kept) for kept in rounds[1:]] == totals
    assert all(
        new <= old for before, after in itertools.pairwise(rounds) for new, old in zip(after, before, strict=True)
    )


@pytest.mark.parametrize("allocate", ALLOCATED)
def test_blocks_are_divided_by_the_dimensions_of_kernels_as_their_entries_are(allocate):
    shapes = {"conv2d/kernel": (3, 3, 2, 4), "dense/kernel": (20, 10)}
    entries = Prune(allocation=allocate, rate=0.5, num_rounds=3)
    blocks = entries.model_copy(update={"granularity": "block", "block": (1, 1)})
    assert planned(blocks, shapes, 3) == planned(entries, shapes, 3)
    # 36 and 100 blocks of two entries each: of 34, ERK keeps 34 * 12 / 42 and 34 * 30 / 42.
    pairs = blocks.model_copy(update={"block": (2, 1), "rate": 0.75, "num_rounds": 1})
    assert planned(pairs, shapes, 1)[("conv2d/kernel",)] == [36, {"uniform": 9, "erk": 10}[allocate]]


def test_uniform_keeps_the_same_part_of_every_layer():
    rounds = planned(Prune(allocation="uniform", rate=0.2, num_rounds=20), LENET, 20)
    for (name,), kept in rounds.items():
        size = math.prod(LENET[name])
        for index, count in enumerate(kept):
            assert abs(count - Fraction(4, 5) ** index * size) < 2


def test_masks_of_a_run_are_allocated(rng):
    scores = {name: rng.normal(size=shape) for name, shape in LENET.items()}
    settings_ = Prune(allocation="erk", schedule="explicit", densities=(0.1, 0.02), num_rounds=2)
    kept = {name: np.ones(shape, bool) for name, shape in LENET.items()}
    for index, expected in ((1, [18714, 6906, 1000]), (2, [3621, 1336, 367])):
        kept = plan.of_weights(settings_, kept).masks(index, scores, kept)
        assert [int(mask.sum()) for mask in kept.values()] == expected
        for name, mask in kept.items():
            assert scores[name][mask].min() > scores[name][~mask].max(initial=-np.inf)
