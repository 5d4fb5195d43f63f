"""The plan of a run: how many entries each round keeps, from ``[prune]`` and the shapes of the weights alone."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lottery import weights
from lottery.errors import LotteryError
from lottery.masks import Masks, num_kept
from lottery.models.units import Units
from lottery.pruning import allocation, criteria, granularity, ranking, schedules
from lottery.pruning.allocation import Allocation, Shapes
from lottery.pruning.granularity import Groups
from lottery.pruning.ranking import Scores
from lottery.pruning.schedules import SCHEDULES, Schedule
from lottery.pruning.settings import Prune
from lottery.settings import GIVEN

# The survivors in rounds 0, 1, ... for each group of weights that are ranked together.
Ladder = dict[tuple[str, ...], list[int]]
# Draws masks at random.
Draw = Callable[[np.random.Generator], Masks]


def ladder(
    shapes: Shapes,
    schedule: Schedule,
    num_rounds: int,
    scope: str = "layerwise",
    exceptions: Mapping[str, Schedule] | None = None,
    of_survivors: bool = True,
) -> Ladder:
    """Plan rounds in which each group of weights follows a schedule, or its own in `exceptions`, by itself."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    return {
        names: schedules.counts(own or schedule, sum(sizes[name] for name in names), num_rounds, of_survivors)
        for names, own in ranking.groups(shapes, scope, exceptions)
    }


def allocated(shapes: Shapes, schedule: Schedule, num_rounds: int, allocate: Allocation) -> Ladder:
    """Plan rounds in which an allocation divides the survivors among the weights, each ranked by itself.

    A round keeps exactly its density times the size of all weights, rounded half to even, and of no weight more than
    the round before.
    """
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    rounds = [sizes]
    for index in range(1, num_rounds + 1):
        density = schedule(index)
        total = round(density * sum(sizes.values()))
        rounds.append(allocation.counts(allocate(shapes, density), sizes, total, most=rounds[-1]))
    return {(name,): [kept[name] for kept in rounds] for name in shapes}


def grouped(settings: Prune, shapes: Shapes, units: Sequence[Units] = ()) -> Groups:
    """Group the entries that an experiment keeps or prunes together.

    Args:
        settings: ``[prune]``.
        shapes: Of all prunable weights, by name.
        units: What `lottery.models.units.removable` lists of the model, if units or channels are pruned.
    """
    return granularity.grouped(settings.grouping, shapes, units)


def units_of(settings: Prune, model: Any) -> list[Units]:
    """List the units that an experiment removes from a model; empty unless ``prune.granularity`` is of units."""
    rates = ranking.by_weight(weights.prunable(model), settings.rates, "prune.rates") if settings.rates else {}
    return granularity.units_of(settings.grouping, model, [name for name, rate in rates.items() if not rate])


def planned(settings: Prune, shapes: Shapes, num_rounds: int, units: Sequence[Units] = ()) -> Ladder:
    """Count the entries that an experiment keeps in rounds 0 to `num_rounds`, at most ``prune.num_rounds``.

    Where entries are pruned in groups, groups are counted; for the arguments see `grouped`.
    """
    groups = grouped(settings, shapes, units)
    shapes = groups.shapes
    what = "prune.rates" if shapes is groups.weights else f"prune.rates of {settings.grouping.kind.noun}"
    rates = ranking.by_weight(shapes, settings.rates, what) if not settings.densities else {}
    if fixed := groups.counts(settings.num_rounds):
        whole = {name: counts[:1] * len(counts) for name, counts in fixed.items() if name in rates}
        return {(name,): counts[: num_rounds + 1] for name, counts in (fixed | whole).items()}
    make = SCHEDULES.get(settings.schedule, schedules.explicit)  # densities stand for a function of the caller's
    if settings.densities:
        schedule, exceptions = schedules.explicit(settings.densities), {}
    else:
        schedule = make(settings.rate, settings.num_rounds, settings.final_density or None)
        exceptions = {name: make(rate, settings.num_rounds) for name, rate in rates.items()}
    if allocate := allocation.ALLOCATIONS[settings.allocation]:
        return allocated(shapes, schedule, num_rounds, allocate)
    # Rates of survivors, rounded in each round, would miss a final density.
    of_survivors = make is schedules.geometric and not settings.final_density
    return ladder(shapes, schedule, num_rounds, settings.scope, exceptions, of_survivors)


def check_rounds(settings: Prune, shapes: Shapes, units: Sequence[Units] = ()) -> Ladder:
    """Plan an experiment, and refuse rounds that would prune nothing or leave a group of weights empty."""
    if not shapes:
        raise LotteryError("The model has no weight that can be pruned.")
    counts = planned(settings, shapes, settings.num_rounds, units)
    in_one_round = SCHEDULES.get(settings.schedule) is schedules.one_shot
    for index in range(1, settings.num_rounds + 1):
        emptied = next((" + ".join(names) for names, kept in counts.items() if kept[index] == 0), None)
        stalled = all(kept[index] == kept[index - 1] for kept in counts.values())
        if emptied or (stalled and (not in_one_round or index == 1)):
            why = f"round {index} would leave nothing of {emptied}" if emptied else f"round {index} would prune nothing"
            raise LotteryError(
                f"prune.num_rounds: received {settings.num_rounds}, allowed is at most {index - 1} for these weights "
                f"and rates: {why}."
            )
    return counts


def num_entries(settings: Prune, shapes: Shapes, ladder: Ladder, units: Sequence[Units] = ()) -> list[int]:
    """Count the entries that each round of a ladder keeps; an estimate if groups of several sizes are ranked together.

    The estimate takes the last groups of each weight, the same fraction of each.
    """
    groups = grouped(settings, shapes, units)
    sizes, found = {name: math.prod(shape) for name, shape in groups.shapes.items()}, []
    for index in range(len(next(iter(ladder.values())))):
        alive = {name: np.zeros(shape, dtype=bool) for name, shape in groups.shapes.items()}
        if groups.shapes is groups.weights:
            found.append(sum(counts[index] for counts in ladder.values()))
            continue
        for names, counts in ladder.items():
            for name in names:
                num = round(counts[index] / counts[0] * sizes[name])
                alive[name].reshape(-1)[sizes[name] - num :] = True
        found.append(sum(num_kept(groups.expand(alive)).values()))
    return found


def round_masks(settings: Prune, index: int, scores: Scores, masks: Masks, units: Sequence[Units] = ()) -> Masks:
    """Make the masks of round `index` of an experiment from scores and the masks of the round before."""
    shapes = _shapes(masks)
    groups = grouped(settings, shapes, units)
    alive = groups.alive(masks)
    survivors, plan = num_kept(alive), planned(settings, shapes, index, units).items()
    counts = {names: sum(survivors[name] for name in names) - kept[index] for names, kept in plan}
    pooled = groups.pool(scores, masks, settings.scope == ranking.GLOBAL)
    return groups.expand(ranking.prune_counts(pooled, alive, counts))


def thresholds(
    settings: Prune, scores: Scores, before: Masks, after: Masks, units: Sequence[Units] = ()
) -> dict[str, float | None]:
    """Return the highest score pruned from each weight, as `ranking.thresholds`; of groups, their pooled scores."""
    groups = grouped(settings, _shapes(before), units)
    if settings.grouping.kind.pools:
        scores = groups.pool(scores, before, settings.scope == ranking.GLOBAL)
    return dict.fromkeys(before) | ranking.thresholds(scores, groups.alive(before), groups.alive(after))


def shuffled(settings: Prune, masks: Masks, units: Sequence[Units] = ()) -> Draw | None:
    """Return what draws random masks of the structure that some masks have; None if they have none."""
    groups = grouped(settings, _shapes(masks), units)
    draw = groups.shuffled
    return None if draw is None else lambda rng: draw(masks, rng)


def criterion_inputs(
    settings: Prune,
    planned: Ladder,
    initial: criteria.Weights,
    trained: criteria.Weights,
    kept: Masks,
    rng: np.random.Generator,
    network: criteria.ScoredModel | None = None,
) -> criteria.CriterionInputs:
    """Collect the inputs of a criterion before the last round that is `planned`.

    Of `initial` and `trained` only the prunable weights are taken.
    """
    targets = {names: counts[-1] for names, counts in planned.items()}
    return criteria.CriterionInputs(
        initial={name: initial[name] for name in kept},
        trained={name: trained[name] for name in kept},
        kept=kept,
        rng=rng,
        density=sum(targets.values()) / sum(counts[0] for counts in planned.values()),
        scope=settings.scope,
        network=network,
        targets=None if settings.grouping.kind.pools else targets,
    )


def is_from_dense(settings: Prune) -> bool:
    """Return True if each round's masks are made from the dense network; those of two rounds need not be nested.

    Criteria that look at the network before training prune it once, to the density that is wanted.
    """
    return settings.criterion in criteria.NEEDS_NETWORK


def rounds_to(settings: Prune, index: int) -> list[int]:
    """List the rounds that have to be trained for round `index`, which is the last of them."""
    if index and is_from_dense(settings):
        return [index]
    return [*range(index + 1)] if settings.iterative else sorted({0, index})


def steps_to(settings: Prune, index: int, rewind_step: int, num_steps: int) -> int:
    """Count the steps of all trainings that lead to round `index`, with its own."""
    rounds = rounds_to(settings, index)
    # Without the dense network, the steps to the one that training is rewound to.
    return sum(num_steps - (rewind_step if each else 0) for each in rounds) + (rewind_step if 0 not in rounds else 0)


def is_repeatable(settings: Prune) -> bool:
    """Return True if scores can be computed again from stored weights, without a model and data."""
    return settings.criterion not in (*criteria.NEEDS_NETWORK, GIVEN)


def _shapes(masks: Masks) -> Shapes:
    return {name: mask.shape for name, mask in masks.items()}
