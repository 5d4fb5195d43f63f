"""The plan of a run: how many entries each round keeps, from ``[prune]`` and the shapes of the weights alone."""

import math
from collections.abc import Mapping

import numpy as np

from lottery.errors import LotteryError
from lottery.masks import Masks, num_kept
from lottery.pruning import allocation, criteria, ranking, schedules
from lottery.pruning.allocation import Allocation, Shapes
from lottery.pruning.ranking import Scores
from lottery.pruning.schedules import SCHEDULES, Schedule
from lottery.pruning.settings import Prune
from lottery.settings import GIVEN

# The survivors in rounds 0, 1, ... for each group of weights that are ranked together.
Ladder = dict[tuple[str, ...], list[int]]


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


def planned(settings: Prune, shapes: Shapes, num_rounds: int) -> Ladder:
    """Count the entries that an experiment keeps in rounds 0 to `num_rounds`, at most ``prune.num_rounds``."""
    make = SCHEDULES.get(settings.schedule, schedules.explicit)  # densities stand for a function of the caller's
    if settings.densities:
        schedule, exceptions = schedules.explicit(settings.densities), {}
    else:
        rates = ranking.by_weight(shapes, settings.rates, "prune.rates")
        schedule = make(settings.rate, settings.num_rounds, settings.final_density or None)
        exceptions = {name: make(rate, settings.num_rounds) for name, rate in rates.items()}
    if allocate := allocation.ALLOCATIONS[settings.allocation]:
        return allocated(shapes, schedule, num_rounds, allocate)
    # Rates of survivors, rounded in each round, would miss a final density.
    of_survivors = make is schedules.geometric and not settings.final_density
    return ladder(shapes, schedule, num_rounds, settings.scope, exceptions, of_survivors)


def check_rounds(settings: Prune, shapes: Shapes) -> Ladder:
    """Plan an experiment, and refuse rounds that would prune nothing or leave a group of weights empty."""
    if not shapes:
        raise LotteryError("The model has no weight that can be pruned.")
    counts = planned(settings, shapes, settings.num_rounds)
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


def round_masks(settings: Prune, index: int, scores: Scores, masks: Masks) -> Masks:
    """Make the masks of round `index` of an experiment from scores and the masks of the round before."""
    survivors = num_kept(masks)
    plan = planned(settings, _shapes(masks), index).items()
    counts = {names: sum(survivors[name] for name in names) - kept[index] for names, kept in plan}
    return ranking.prune_counts(scores, masks, counts)


def criterion_inputs(
    settings: Prune,
    index: int,
    initial: criteria.Weights,
    trained: criteria.Weights,
    kept: Masks,
    rng: np.random.Generator,
    network: criteria.Network | None = None,
) -> criteria.CriterionInputs:
    """Collect the inputs of a criterion before round `index`; of `initial` and `trained` the prunable weights alone."""
    targets = {names: counts[index] for names, counts in planned(settings, _shapes(kept), index).items()}
    return criteria.CriterionInputs(
        initial={name: initial[name] for name in kept},
        trained={name: trained[name] for name in kept},
        kept=kept,
        rng=rng,
        density=sum(targets.values()) / sum(mask.size for mask in kept.values()),
        scope=settings.scope,
        network=network,
        targets=targets,
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
