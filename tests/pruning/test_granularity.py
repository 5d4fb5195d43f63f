"""Groups of weights: truth by plain loops over NumPy arrays, for drawn shapes, scores and rounds."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lottery import masks
from lottery.errors import LotteryError
from lottery.pruning import plan, schedules
from lottery.pruning.granularity import GRANULARITIES, NORMS
from lottery.pruning.settings import Prune

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
    """The masks that keep so many groups of each weight: of equals the later."""
    after, norm = {name: mask.copy() for name, mask in kept.items()}, how.norm
    for name, groups in members(how, shapes, units).items():
        pooled = []
        for place, group in enumerate(groups):
            entries = [
                float(scores[kernel].flat[at])
                for kernel, every in group.items()
                for at in every
                if kept[kernel].flat[at]
            ]
            if entries:
                total = {"l1": sum(entries), "l2": math.sqrt(sum(one * one for one in entries)), "max": max(entries)}
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
            of.append(of[-1] - schedules.num_pruned(0.3, of[-1]))
        kept = plan.round_masks(settings, index, scores, before, units)
        wanted = {name: of[-1] for name, of in counts.items()}
        expected = by_loops(settings.grouping, shapes, units, scores, before, wanted)
        assert list(kept) == list(shapes) and all(np.array_equal(kept[name], expected[name]) for name in shapes)
        assert masks.is_nested(kept, before)
        groups = plan.grouped(settings, shapes, units)
        assert not groups.broken(kept) and masks.num_kept(groups.alive(kept)) == wanted
    assert plan.planned(settings, shapes, 3, units) == {(name,): of for name, of in counts.items()}


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
        kept = plan.round_masks(settings, index, scores, before)
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
        ladder = plan.planned(settings, shapes, index)
        assert {names: of[-1] for names, of in ladder.items()} == {
            (key,): of for key, of in masks.num_kept(kept).items()
        }
        assert not plan.grouped(settings, shapes).broken(kept)


def test_the_last_round_of_n_of_m_keeps_n_of_every_m_whatever_the_number_of_rounds():
    for num_rounds in (1, 2, 3):
        settings = Prune(granularity="n_of_m", n_of_m=(1, 4), num_rounds=num_rounds)
        assert plan.planned(settings, {"w": (8, 3)}, num_rounds)[("w",)][-1] == 6
    falling = Prune(granularity="n_of_m", n_of_m=(1, 4))
    assert falling.num_rounds == 3 and plan.check_rounds(falling, {"w": (8, 3)})[("w",)] == [24, 18, 12, 6]
    with pytest.raises(LotteryError, match="received 4, allowed is at most 0 .*round 1 would prune nothing"):
        plan.check_rounds(Prune(granularity="n_of_m", n_of_m=(1, 4), num_rounds=4), {"w": (8, 3)})
