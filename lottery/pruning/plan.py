"""The plan of a run: how many entries each round keeps, from ``[prune]`` and the shapes of the weights alone."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from lottery import weights
from lottery.errors import LotteryError
from lottery.masks import Masks, Scores, Shapes, Weights, num_kept, total_kept
from lottery.models.units import Units
from lottery.pruning import allocation, criteria, granularity, ranking, schedules
from lottery.pruning.allocation import Allocation
from lottery.pruning.granularity import Granularity, Groups
from lottery.pruning.schedules import SCHEDULES, Schedule
from lottery.pruning.settings import Prune

# The survivors in rounds 0, 1, ... of each group of weights that are ranked together.
Survivors = dict[tuple[str, ...], list[int]]


@dataclass(frozen=True)
class Source:
    """What a round is made from."""

    scored: Weights  # every variable of the network whose weights are scored
    masks: Masks  # those that the round prunes further
    before: Weights  # every variable at the end of the round before


class Plan:
    """What an experiment keeps in each of its rounds.

    Args:
        settings: ``[prune]``.
        shapes: Of all prunable weights, by name.
        units: What `units_of` lists of the model, if units or channels are pruned.

    Raises:
        LotteryError: There is no weight, ``prune.rates`` names another, or the units do not fit the shapes.
    """

    def __init__(self, settings: Prune, shapes: Shapes, units: Sequence[Units] = ()) -> None:
        if not shapes:
            raise LotteryError(
                "The model has no weight that can be pruned; lottery.weights.unprunable(model) says why."
            )
        self.settings = settings
        self.units = list(units)
        self.groups: Groups = granularity.grouped(settings.grouping, shapes, units)
        # Of rounds 0 to ``prune.num_rounds``; where entries are pruned in groups, groups are counted.
        self.survivors: Survivors = _survivors(settings, self.groups)
        self._is_global = settings.scope == ranking.GLOBAL
        # Under a criterion of chance a group takes one draw, so that groups of every size are as likely to go.
        self._norm = granularity.first_kept if criteria.facts(settings.criterion).is_chance else None

    @property
    def dense(self) -> Masks:
        """The masks of round 0, which keep everything."""
        return {name: np.ones(shape, bool) for name, shape in self.groups.weights.items()}

    def check(self) -> None:
        """Raise `LotteryError` if a round would prune nothing, or leave nothing of a group of weights."""
        may_rest = schedule_of(self.settings).in_one_round
        for number in range(1, self.settings.num_rounds + 1):
            emptied = [names for names, kept in self.survivors.items() if kept[number] == 0]
            stalled = all(kept[number] == kept[number - 1] for kept in self.survivors.values())
            if emptied:
                why, advice = f"would leave nothing of {' + '.join(emptied[0])}", "prune less"
            elif stalled and not (may_rest and number > 1):
                why, advice = "would prune nothing", "set a lower prune.num_rounds, or prune more"
            else:
                continue
            num_rounds = self.settings.num_rounds
            if is_open_ended(self.settings):
                raise LotteryError(
                    f"prune.num_rounds must be at most {number - 1} for these weights and rates, not {num_rounds}: "
                    f"round {number} {why}."
                )
            # Another number of rounds prunes otherwise in each of them, so there is no highest that is known here.
            raise LotteryError(f"Round {number} of {num_rounds} {why}: {advice}.")

    def num_entries(self) -> list[int]:
        """Count the entries that each round keeps; an estimate if groups of several sizes are ranked together.

        The estimate takes the last groups of each weight, the same fraction of each.
        """
        rounds = range(self.settings.num_rounds + 1)
        # They are the same dict where groups are single entries.
        if self.groups.shapes is self.groups.weights:
            return [sum(kept[number] for kept in self.survivors.values()) for number in rounds]
        return [self._estimate(number) for number in rounds]

    def _estimate(self, number: int) -> int:
        alive = {name: np.zeros(shape, dtype=bool) for name, shape in self.groups.shapes.items()}
        for names, kept in self.survivors.items():
            for name in names:
                whole = alive[name].reshape(-1)
                whole[whole.size - round(kept[number] / kept[0] * whole.size) :] = True
        return total_kept(self.groups.expand(alive))

    def miscounted(self, number: int, masks: Masks) -> Iterator[tuple[tuple[str, ...], int, int]]:
        """Yield what is ranked together where a round's masks keep another number, with this and the planned number."""
        kept = num_kept(self.groups.alive(masks))
        # Of a layer that reads and feeds only layers of which nothing is left, no mask shows which units are kept.
        gone = [name for name, count in kept.items() if not count]
        unknown = gone if self.units and len(gone) > 1 else []
        for names, planned in self.survivors.items():
            found = sum(kept[name] for name in names)
            hidden = sum(math.prod(self.groups.shapes[name]) for name in unknown if name in names)
            if not found <= planned[number] <= found + hidden:
                yield names, found, planned[number]

    def masks(self, number: int, scores: Scores, before: Masks) -> Masks:
        """Make the masks of a round from scores and the masks that it prunes further."""
        alive = self.groups.alive(before)
        left = num_kept(alive)
        # By what is left: a round that is made from the dense network prunes more than one that is not.
        pruned = {names: sum(left[name] for name in names) - kept[number] for names, kept in self.survivors.items()}
        pooled = self.groups.pool(scores, before, self._is_global, self._norm)
        return self.groups.expand(ranking.prune_counts(pooled, alive, pruned))

    def thresholds(self, scores: Scores, before: Masks, after: Masks) -> dict[str, float | None]:
        """Return the highest score pruned from each weight, as `ranking.thresholds`; of groups, their pooled scores."""
        if self.settings.grouping.kind.pools:
            scores = self.groups.pool(scores, before, self._is_global, self._norm)
        highest = ranking.thresholds(scores, self.groups.alive(before), self.groups.alive(after))
        return dict.fromkeys(before) | highest

    def shuffled(self, masks: Masks) -> Callable[[np.random.Generator], Masks] | None:
        """Return what draws random masks of the structure that some masks have; None if they have none."""
        return partial(self.groups.shuffled, masks) if self.settings.granularity != Granularity.name else None

    def criterion_inputs(
        self,
        number: int,
        initial: Weights,
        trained: Weights,
        kept: Masks,
        rng: np.random.Generator,
        network: criteria.ScoredModel | None = None,
    ) -> criteria.CriterionInputs:
        """Collect the inputs of a criterion before a round; of `initial` and `trained`, the prunable weights.

        A criterion cannot write into the arrays, which the round goes on with.
        """
        targets = {
            tuple(weight for name in names for weight in self.groups.scored(name)): counts[number]
            for names, counts in self.survivors.items()
        }
        total = sum(counts[0] for counts in self.survivors.values())
        # Without iterations the dense network is scored, or ranks among survivors would depend on earlier rounds.
        scored = kept if self.settings.iterative else self.dense
        return criteria.CriterionInputs(
            initial=_read_only(initial, kept),
            trained=_read_only(trained, kept),
            kept=_read_only(scored, kept),
            rng=rng,
            density=sum(targets.values()) / total,
            scope=self.settings.scope,
            network=network,
            targets=targets,
        )


def _read_only(arrays: Weights, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Return views of some arrays, by name, that cannot be written to."""
    views = {name: arrays[name].view() for name in names}
    for view in views.values():
        view.flags.writeable = False
    return views


def of_weights(settings: Prune, arrays: Mapping[str, Any], units: Sequence[Units] = ()) -> Plan:
    """Plan the rounds of weights, or of their masks."""
    return Plan(settings, {name: array.shape for name, array in arrays.items()}, units)


def units_of(settings: Prune, model: Any) -> list[Units]:
    """List the units that an experiment removes from a model; empty unless ``prune.granularity`` is of units."""
    # What stays whole may be of any layer, one without units, too.
    rates = ranking.by_weight(weights.prunable(model), settings.rates, "prune.rates") if settings.rates else {}
    return granularity.units_of(settings.grouping, model, [name for name, rate in rates.items() if not rate])


def by_schedule(
    shapes: Shapes,
    schedule: Schedule,
    num_rounds: int,
    scope: str = "layerwise",
    exceptions: Mapping[str, Schedule] | None = None,
) -> Survivors:
    """Plan rounds in which each group of weights follows a schedule, or its own in `exceptions`, by itself."""
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    return {
        names: (own or schedule).survivors(sum(sizes[name] for name in names), num_rounds)
        for names, own in ranking.groups(shapes, scope, exceptions)
    }


def by_allocation(
    shapes: Shapes, schedule: Schedule, num_rounds: int, allocate: Allocation, sizes: allocation.Sizes = None
) -> Survivors:
    """Plan rounds in which an allocation divides the survivors among the weights, each ranked by itself.

    A round keeps exactly its density times the size of all weights, rounded half to even, and of no weight more than
    the round before.
    """
    sizes = sizes or {name: math.prod(shape) for name, shape in shapes.items()}
    rounds = [sizes]
    for number in range(1, num_rounds + 1):
        density = schedule.density(number)
        total = schedules.share(density, sum(sizes.values()))
        rounds.append(allocation.counts(allocate(shapes, density, sizes), sizes, total, most=rounds[-1]))
    return {(name,): [kept[name] for kept in rounds] for name in sizes}


def _survivors(settings: Prune, groups: Groups) -> Survivors:
    what = "prune.rates"
    if groups.shapes is not groups.weights:
        what += f" of {settings.grouping.kind.noun}"
    # Before any return, for its errors: a rate for no weight is wrong in every granularity.
    rates = ranking.by_weight(groups.shapes, settings.rates, what)
    fixed = groups.counts(settings.num_rounds)
    if fixed:
        for name in fixed.keys() & rates.keys():  # a rate of zero, which keeps a weight whole
            fixed[name] = [fixed[name][0]] * len(fixed[name])
        return {(name,): counts for name, counts in fixed.items()}
    schedule = schedule_of(settings)
    if allocate := allocation.ALLOCATIONS[settings.allocation]:
        # By the dimensions of the kernels, which the arrays of their groups do not have.
        shapes = {name: groups.weights[name] for name in groups.shapes}
        sizes = {name: math.prod(shape) for name, shape in groups.shapes.items()}
        return by_allocation(shapes, schedule, settings.num_rounds, allocate, sizes)
    exceptions = {name: SCHEDULES[settings.schedule](rate, settings.num_rounds) for name, rate in rates.items()}
    # Beside a final density every weight meets densities, and not rates.
    if settings.final_density:
        exceptions = {name: replace(own, rate=None) for name, own in exceptions.items()}
    return by_schedule(groups.shapes, schedule, settings.num_rounds, settings.scope, exceptions)


def schedule_of(settings: Prune) -> Schedule:
    """Make the schedule of an experiment; densities stand for a function of the caller's, too."""
    if settings.densities:
        return schedules.explicit(settings.densities)
    return SCHEDULES[settings.schedule](settings.rate, settings.num_rounds, settings.final_density or None)


def source(settings: Prune, before: Any, dense: Any) -> Source:
    """Choose what a round is made from: the round before, or the dense network, each with its `masks` and `weights`.

    Without iterations each round scores the dense network, and so prunes in one shot.
    """
    scored = before if settings.iterative else dense
    pruned = dense if is_from_dense(settings) else before
    return Source(scored.weights, pruned.masks, before.weights)


def is_open_ended(settings: Prune) -> bool:
    """Return True if a round is the same however many rounds follow: their densities, or a rate, say what it prunes."""
    # All other schedules spread what is pruned over the number of rounds.
    by_rate = schedule_of(settings).rate is not None and not settings.n_of_m
    return by_rate or bool(settings.densities)


def is_from_dense(settings: Prune) -> bool:
    """Return True if each round's masks are made from the dense network; those of two rounds need not be nested.

    Criteria that look at the network before training prune it once, to the density that is wanted.
    """
    return criteria.facts(settings.criterion).needs_network


def rounds_to(settings: Prune, number: int) -> list[int]:
    """List the rounds that have to be trained for a round, which is the last of them."""
    # Its masks took no training, so only its own steps count.
    if number and is_from_dense(settings):
        return [number]
    return [*range(number + 1)] if settings.iterative else sorted({0, number})


def steps_to(settings: Prune, number: int, rewind_step: int, num_steps: int) -> int:
    """Count the steps of all trainings that lead to a round, with its own."""
    rounds = rounds_to(settings, number)
    steps = sum(num_steps - (rewind_step if each else 0) for each in rounds)
    # Without the dense network, the steps to the one that training is rewound to.
    return steps if 0 in rounds else steps + rewind_step


def definition(settings: Prune) -> int:
    """Return the number of the present definition of an experiment's criterion."""
    known = criteria.facts(settings.criterion)
    at_once = 1 if settings.iterative else known.definition_at_once
    of_groups = known.definition_of_groups if settings.grouping.kind.pools else 1
    return max(known.definition, at_once, of_groups)


def is_current(settings: Prune, record: Mapping[str, Any]) -> bool:
    """Return True if the masks of a pruned round, from its record, were made by its criterion's present definition."""
    return record.get("definition", 1) == definition(settings)


def is_repeatable(settings: Prune) -> bool:
    """Return True if scores can be computed again from stored weights, without a model and data."""
    known = criteria.CRITERIA.get(settings.criterion)  # none of a function that the caller passed
    return known is not None and not known.needs_network
