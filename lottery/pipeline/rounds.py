"""The algorithm: train, prune, rewind, and again."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lottery import config, files, masks, randomness, weights
from lottery.errors import LotteryError
from lottery.masks import Masks
from lottery.pipeline import jobs
from lottery.pipeline.preparing import check_drawn_anew, ends_of_epochs
from lottery.pruning import branches, plan, ranking, rewinding
from lottery.runs import store
from lottery.training import trainer
from lottery.training.trainer import Trained


def schedule_step(experiment: config.Experiment, index: int) -> int:
    """Where in its schedule the learning rate begins in a round.

    At the rewind step; in fine-tuning at the schedule's end, so that it keeps its last value.
    """
    if not index:
        return 0
    return experiment.train.num_steps if experiment.rewind.mode == "none" else experiment.rewind.step


Weights = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Round:
    """A round that was trained: its number, what was kept while it trained, and what came out."""

    index: int
    kept: Masks
    trained: Trained


def find_ticket(
    prunable: Weights,
    train: Callable[[int, Masks, Weights], Trained],
    prune: Callable[[int, Weights, Masks], Masks],
    num_rounds: int,
    last: tuple[int, Masks, Weights] | None = None,
) -> Iterator[Round]:
    """Iterative magnitude pruning with rewinding, strategy 1 of Frankle & Carbin 2019, appendix B.

    Args:
        prunable: The weights that masks are for; only names and shapes matter.
        train: Trains round `index` under masks; the third argument are the trained weights of the round before.
        prune: From the round about to begin, trained weights and masks to the masks of that round.
        num_rounds: Rounds after the dense one.
        last: Number, masks and trained weights of a round to go on from.

    Yields:
        Each round once it is trained, from round 0 or the one after `last`.
    """
    index, kept, weights = last or (-1, masks.ones_like(prunable), {})
    while index < num_rounds:
        index += 1
        if index:
            kept = prune(index, weights, kept)
        trained = train(index, kept, weights)
        weights = trained.weights
        yield Round(index, kept, trained)


EARLY_MASKS, EARLY_DISTANCE = 5, 0.1  # You et al. 2020, https://arxiv.org/abs/1909.11957, section 3.2


def train_chain(job: jobs.Job, replicate: int, last: int) -> None:
    """Train the rounds of a replicate that are not stored yet, up to round `last`: the algorithm itself."""
    experiment, loop = job.prepared.experiment, job.prepared.loop
    initial = jobs.initial_state(job, replicate)
    prunable = {name: initial[name] for name in loop.masks}
    thresholds: dict[str, float | None] = dict.fromkeys(prunable)
    k = experiment.rewind.step

    def prune(index: int, trained: jobs.State, kept: Masks) -> Masks:
        nonlocal thresholds
        if not experiment.prune.iterative:  # each round is pruned in one shot, from the dense network
            trained = files.read_arrays(store.round_path(job.path, replicate, 0) / "weights.safetensors")
        scores = jobs.scores_of(job, replicate, index, trained, kept)
        pruned = plan.round_masks(experiment.prune, index, scores, kept)
        thresholds = ranking.thresholds(scores, kept, pruned)
        return pruned

    def train(index: int, kept: Masks, before: jobs.State) -> trainer.Trained:
        network = (replicate, index, store.TICKET)
        if not index:
            trained, saved = _train_dense(job, network, initial, kept)
            details = {"rewind_sha256": weights.fingerprint(saved[k])} if k else {}
        else:
            start = rewinding.rewound(experiment.rewind.mode, jobs.start_state(job, replicate), before, kept)
            at = schedule_step(experiment, index)
            trained, details = jobs.train_network(job, network, start, kept, k, schedule_step=at), {}
        return jobs.store_network(job, network, kept, trained, {"thresholds": thresholds, **details})

    for _ in find_ticket(prunable, train, prune, last, _last(job.path, replicate)):
        pass


def _train_dense(
    job: jobs.Job, network: jobs.Network, initial: jobs.State, dense: Masks
) -> tuple[trainer.Trained, Mapping[int, jobs.State]]:
    """Train round 0, and store the states on its way that this run, or others of a sweep, rewind to."""
    seen: dict[str, np.ndarray] = {}  # by step and weight: part of every checkpoint
    steps = sorted({job.prepared.experiment.rewind.step, *job.states} - {0})

    def look(step: int) -> Callable[[dict[str, np.ndarray]], None]:
        return lambda state: seen.update({f"{step}/{name}": value for name, value in state.items()})

    watch = {step: look(step) for step in steps}
    trained = jobs.train_network(job, network, initial, dense, 0, watch=watch, memory=seen)
    saved = {step: {name: seen[f"{step}/{name}"] for name in initial} for step in steps}
    for step, state in saved.items():
        if step == job.prepared.experiment.rewind.step:
            files.write(store.start_path(job.path, network[0], step), files.pack_arrays(state))
        else:  # no record has its checksum
            known = {"sha256": weights.fingerprint(state)}
            files.write(store.state_path(job.path, network[0], step), files.pack_arrays(state, known))
    return trained, saved


def train_branch(
    job: jobs.Job, network: jobs.Network, branch: branches.BranchFunction, details: Mapping[str, Any] | None = None
) -> None:
    """Train a branch from a stored round.

    Args:
        job: What it is part of.
        network: Replicate, round, and the branch's label.
        branch: What it keeps and changes.
        details: What its record says besides.
    """
    departure = branch(_origin(job, network))
    _check_departure(job, network[2], departure)
    start, first, last = masks.apply(departure.start, departure.kept), departure.first_step, departure.last_step
    at = departure.schedule_step
    if at is None:  # what begins where the ticket begins goes through the same part of the schedule
        same = first == job.prepared.experiment.rewind.step
        at = schedule_step(job.prepared.experiment, network[1]) if same else first
    trained = jobs.train_network(job, network, start, departure.kept, first, last, schedule_step=at)
    about = {"control": branch.__name__, "first_step": first, "last_step": last}
    details = {**about, "thresholds": dict.fromkeys(departure.kept), **(details or {})}
    jobs.store_network(job, network, departure.kept, trained, details)


def _check_departure(job: jobs.Job, branch: str, departure: Any) -> None:
    """What is not named would stay as the network trained before has left it."""
    if not isinstance(departure, branches.BranchStart):
        raise LotteryError(f"{branch}: received {type(departure).__name__}, allowed is a branches.BranchStart.")
    parts = (departure.start, weights.variables(job.prepared.loop.model)), (departure.kept, job.prepared.loop.masks)
    for what, (given, wanted) in zip(("start", "kept"), parts, strict=True):
        if set(given) != set(wanted):
            wrong = sorted(set(given) ^ set(wanted))[0]
            raise LotteryError(f"{branch}: {what} must have each weight of the ticket's, and no other; see {wrong!r}.")
    masks.check(dict(departure.kept), departure.start)
    last = job.prepared.experiment.train.num_steps
    if not 0 <= departure.first_step <= departure.last_step <= last:
        steps = f"{departure.first_step} to {departure.last_step}"
        raise LotteryError(f"{branch}: received the steps {steps}, allowed are some from 0 to {last}.")


def _last(path: Path, replicate: int) -> tuple[int, Masks, dict[str, np.ndarray]] | None:
    """The last complete round, to go on from."""
    indices = store.complete_rounds(path, replicate)
    if not indices:
        return None
    folder = store.round_path(path, replicate, indices[-1])
    return (
        indices[-1],
        files.read_masks(folder / "masks.safetensors"),
        files.read_arrays(folder / "weights.safetensors"),
    )


def _origin(job: jobs.Job, network: jobs.Network) -> branches.StoredTicket:
    experiment, (replicate, index, branch) = job.prepared.experiment, network
    seed = randomness.seed_for(experiment.run.seed, replicate, randomness.BRANCH, index, randomness.INITIALISATION)
    kept = files.read_masks(store.round_path(job.path, replicate, index) / "masks.safetensors")
    jobs.initial_state(job, replicate)  # refuses a model that is built with other weights than the run's
    return branches.StoredTicket(
        kept=kept,
        start=store.StoredRound(job.path, replicate, index).start,
        step=experiment.rewind.step if index else 0,
        num_steps=experiment.train.num_steps,
        rng=branches.rng_for(experiment.run.seed, replicate, index, branch),
        fresh=lambda: _drawn_anew(job, replicate, branch, seed),
        drawn_early=lambda: _drawn_early(job, network),
    )


def _drawn_anew(job: jobs.Job, replicate: int, branch: str, seed: int) -> dict[str, np.ndarray]:
    drawn, initial = jobs.built_state(job, seed), jobs.initial_state(job, replicate)
    check_drawn_anew(drawn, {name: initial[name] for name in job.prepared.loop.masks}, branch)
    return drawn


class NotDrawn(LotteryError):
    """No mask settled early enough."""


class _Enough(Exception):
    """Ends a training run of which nothing more is needed."""


def _drawn_early(job: jobs.Job, network: jobs.Network) -> branches.BranchStart:
    """The masks of a round, drawn from the dense network as soon as they settle; see `branches.early_bird`."""
    experiment, (replicate, index, _) = job.prepared.experiment, network
    initial = jobs.initial_state(job, replicate)
    dense = masks.ones_like({name: initial[name] for name in job.prepared.loop.masks})
    seen: dict[str, np.ndarray] = {}  # the masks of the last epochs, by step and weight: part of every checkpoint
    departures = []

    def drawn() -> dict[int, Masks]:
        steps = sorted({int(key.partition("/")[0]) for key in seen})
        return {step: {name: seen[f"{step}/{name}"] for name in dense} for step in steps}

    def farthest() -> float:
        return max(masks.distance(one, other) for one in drawn().values() for other in drawn().values())

    def look(step: int, state: dict[str, np.ndarray]) -> None:
        scores = jobs.scores_of(job, replicate, index, state, dense)
        kept = plan.round_masks(experiment.prune, index, scores, dense)
        seen.update({f"{step}/{name}": mask for name, mask in kept.items()})
        for old in list(drawn())[:-EARLY_MASKS]:
            for name in dense:
                del seen[f"{old}/{name}"]
        if len(drawn()) == EARLY_MASKS and farthest() <= EARLY_DISTANCE:
            departures.append(branches.BranchStart(state, kept, step, experiment.train.num_steps, step))
            raise _Enough

    epochs = ends_of_epochs(job.prepared)
    if len(epochs) < EARLY_MASKS:
        raise LotteryError(f"early_bird: received {len(epochs)} epochs of training, allowed are {EARLY_MASKS} or more.")
    watch = {step: (lambda state, at=step: look(at, state)) for step in epochs}
    with contextlib.suppress(_Enough):
        jobs.train_network(job, network, initial, dense, 0, watch=watch, stage="dense", memory=seen)
    if not departures:
        store.clear_checkpoints(store.round_path(job.path, *network))
        raise NotDrawn(
            f"No early-bird ticket for round {index} of replicate {replicate}: in {len(epochs)} epochs the last "
            f"{EARLY_MASKS} masks still differ by up to {farthest():.3f}, allowed is {EARLY_DISTANCE}."
        )
    return departures[0]
