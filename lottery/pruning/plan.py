"""What an experiment's ``[prune]`` comes to: how many entries each round keeps, before anything is trained."""

import math
from collections.abc import Iterable, Mapping

import numpy as np

from lottery import randomness
from lottery.errors import LotteryError
from lottery.masks import Masks
from lottery.pruning import allocation, criteria, ranking
from lottery.pruning.allocation import Allocation, Shapes
from lottery.pruning.schedules import SCHEDULES, Schedule, explicit, num_kept
from lottery.pruning.settings import Prune
from lottery.settings import GIVEN

# For each group of weights that are ranked together, the survivors of rounds 0, 1, ...
Ladder = dict[tuple[str, ...], list[int]]


def ladder(
    shapes: Shapes,
    schedule: Schedule,
    num_rounds: int,
    scope: str = "layerwise",
    exceptions: Mapping[str, Schedule] | None = None,
    of_survivors: bool = True,
) -> Ladder:
    """How many entries are kept in rounds 0 to `num_rounds`, from shapes alone.

    Args:
        shapes: Shapes by weight.
        schedule: Round to density.
        num_rounds: Rounds after the dense one.
        scope: ``"layerwise"`` or ``"global"``.
        exceptions: Schedules by weight where they differ.
        of_survivors: See `schedules.num_kept`.

    Returns:
        For each group of weights that are ranked together, the survivors in each round.
    """
    counts: Ladder = {}
    for names, own in ranking.groups(shapes, scope, exceptions):
        size = sum(math.prod(shapes[name]) for name in names)
        kept = counts[names] = [size]
        for index in range(1, num_rounds + 1):
            kept.append(num_kept(own or schedule, index, size, kept[-1], of_survivors))
    return counts


def allocated(shapes: Shapes, schedule: Schedule, num_rounds: int, allocate: Allocation) -> Ladder:
    """How many entries are kept in rounds 0 to `num_rounds`, where an allocation divides them among the weights.

    A round keeps exactly its density times the size of all weights, rounded half to even. A weight, which is ranked by
    itself, never keeps more than in the round before.

    Args:
        shapes: Shapes by weight.
        schedule: Round to density, of all weights together.
        num_rounds: Rounds after the dense one.
        allocate: Shapes and a density to densities by weight, as those in `allocation.ALLOCATIONS`.

    Returns:
        For each weight, as a group of one, the survivors in each round.
    """
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    rounds = [sizes]
    for index in range(1, num_rounds + 1):
        density = schedule(index)
        total = round(density * sum(sizes.values()))
        rounds.append(allocation.counts(allocate(shapes, density), sizes, total, most=rounds[-1]))
    return {(name,): [kept[name] for kept in rounds] for name in shapes}


def planned(settings: Prune, shapes: Shapes, num_rounds: int) -> Ladder:
    """How many entries an experiment keeps in rounds 0 to `num_rounds`.

    Args:
        settings: The ``[prune]`` section of an experiment.
        shapes: Shapes by prunable weight.
        num_rounds: The last round that is of interest, at most that of the settings.

    Returns:
        For each group of weights that are ranked together, the survivors in each round.

    Raises:
        LotteryError: A rate is given for a name or pattern that fits no weight.
    """
    schedule, exceptions = schedules_of(settings, shapes)
    if settings.allocation != "rates":
        return allocated(shapes, schedule, num_rounds, allocation.ALLOCATIONS[settings.allocation])
    # What rounding adds up to over the rounds would miss a final density that was written.
    of_survivors = settings.schedule == "geometric" and not settings.final_density
    return ladder(shapes, schedule, num_rounds, settings.scope, exceptions, of_survivors)


def round_masks(settings: Prune, index: int, scores: ranking.Scores, masks: Masks) -> Masks:
    """The masks of round `index`, as an experiment's ``[prune]`` says.

    Args:
        settings: The ``[prune]`` section of an experiment.
        index: The round, from 1.
        scores: Arrays by weight, of the masks' shapes; higher is kept.
        masks: The masks of the round before, by weight. They are not changed.

    Returns:
        New masks with the keys of `masks`.

    Raises:
        LotteryError: A score is missing, misshapen or not a number; or as `planned`.
    """
    plan = planned(settings, {name: mask.shape for name, mask in masks.items()}, index)
    survivors = {names: sum(int(np.count_nonzero(masks[name])) for name in names) for names in plan}
    return ranking.prune_counts(scores, masks, {names: survivors[names] - kept[index] for names, kept in plan.items()})


def schedules_of(settings: Prune, names: Iterable[str]) -> tuple[Schedule, dict[str, Schedule]]:
    """An experiment's schedule, and those of the weights that have a rate of their own.

    Args:
        settings: The ``[prune]`` section of an experiment.
        names: The prunable weights, in order.

    Returns:
        The schedule, and schedules by weight. A final density is that of the first; an own rate stays what it is.

    Raises:
        LotteryError: A rate is given for a name or pattern that fits no weight.
    """
    if settings.schedule in ("explicit", GIVEN):
        return explicit(settings.densities), {}
    make = SCHEDULES[settings.schedule]
    own = ranking.by_weight(names, settings.rates, "prune.rates")
    schedule = make(settings.rate, settings.num_rounds, settings.final_density or None)
    return schedule, {name: make(rate, settings.num_rounds) for name, rate in own.items()}


def check_rounds(settings: Prune, shapes: Shapes) -> Ladder:
    """What an experiment keeps, refused where a round would prune nothing or leave a group of weights empty.

    Args:
        settings: The ``[prune]`` section of an experiment.
        shapes: Shapes by prunable weight.

    Returns:
        What `planned` returns.

    Raises:
        LotteryError: There are more rounds than the weights allow; or as `planned`.
    """
    if not shapes:
        raise LotteryError("The model has no weight that can be pruned.")
    counts = planned(settings, shapes, settings.num_rounds)
    for index in range(1, settings.num_rounds + 1):
        emptied = next((" + ".join(names) for names, kept in counts.items() if kept[index] == 0), None)
        stalled = all(kept[index] == kept[index - 1] for kept in counts.values())
        if emptied or (stalled and (settings.schedule != "one_shot" or index == 1)):
            why = f"round {index} would leave nothing of {emptied}" if emptied else f"round {index} would prune nothing"
            raise LotteryError(
                f"prune.num_rounds: received {settings.num_rounds}, allowed is at most {index - 1} for these weights "
                f"and rates: {why}."
            )
    return counts


def criterion_inputs(
    settings: Prune,
    seed: int,
    replicate: int,
    index: int,
    initial: criteria.Weights,
    trained: criteria.Weights,
    kept: Masks,
    network: criteria.Network | None = None,
) -> criteria.CriterionInputs:
    """Put together what a criterion sees before round `index`.

    Args:
        settings: The ``[prune]`` section of an experiment.
        seed: The experiment's seed.
        replicate: Which replicate, from 1.
        index: The round about to begin.
        initial: Every variable at step 0, by name.
        trained: Every variable at the end of the round before, by name.
        kept: The masks of the round before.
        network: For criteria that look at gradients.

    Returns:
        The evidence, of the prunable weights alone.
    """
    ladder = planned(settings, {name: mask.shape for name, mask in kept.items()}, index)
    return criteria.CriterionInputs(
        initial={name: initial[name] for name in kept},
        trained={name: trained[name] for name in kept},
        kept=kept,
        rng=randomness.generator(seed, replicate, randomness.SCORES, index),
        density=sum(counts[index] for counts in ladder.values()) / sum(mask.size for mask in kept.values()),
        scope=settings.scope,
        network=network,
        targets={names: counts[index] for names, counts in ladder.items()},
    )


def is_repeatable(settings: Prune) -> bool:
    """Whether scores can be computed again from stored weights alone, without a model and data."""
    return settings.criterion not in (*criteria.NEEDS_NETWORK, GIVEN)
