"""Branches from the rounds of a run: another start, other masks or other data beside a ticket."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lottery import masks, randomness, weights
from lottery.errors import LotteryError
from lottery.masks import Masks
from lottery.pipeline import building, mask_training, network_training
from lottery.pipeline.network_training import Training
from lottery.pipeline.prepared import Prepared
from lottery.pruning import branches, plan, rewinding, supermasks
from lottery.pruning.branches import BranchFunction, BranchStart, StoredTicket
from lottery.runs import store
from lottery.runs.store import NetworkId
from lottery.runs.stored import StoredRound
from lottery.training import compiling
from lottery.training.records import Span


def train_branch(
    training: Training, network: NetworkId, branch: BranchFunction, details: Mapping[str, Any] | None = None
) -> None:
    """Train a branch from a stored round, and add `details` to its record."""
    ticket = _stored_ticket(training, network)
    chosen = branch(ticket)
    _check_start(training, ticket, network.branch, chosen)
    rewind = training.experiment.rewind
    first, last, schedule_step = chosen.first_step, chosen.last_step, chosen.schedule_step
    if schedule_step is None:
        schedule_step = first
        if first == rewind.step:  # it goes through the same part of the schedule as the ticket
            schedule_step = rewinding.schedule_step(rewind.mode, first, ticket.num_steps, network.round)
    # Its batches come in the order of the ticket's, so that what the function has chosen is all that differs.
    start = masks.apply(chosen.start, chosen.kept, chosen.held_in(ticket))
    span = Span(first, last, schedule_step, chosen.changes)
    trained = network_training.train_network(training, network, start, chosen.kept, span)
    reached = network_training.dense_loss_step(training, network, trained)
    about = {"control": branch.__name__, "first_step": first, "last_step": last, "dense_loss_step": reached}
    if trained.changes:
        changes = [dict(zip(store.CHANGES, change, strict=True)) for change in trained.changes]
        about |= {"mask_changes": changes, "kept_steps": branches.kept_steps(chosen)}
    details = {**about, **chosen.details, "thresholds": dict.fromkeys(chosen.kept), **(details or {})}
    network_training.store_network(training, network, trained, details)


class _LearnsMasks(Exception):
    """A branch wants masks to be learned, which takes a training."""


def matches_stored(training: Training, network: NetworkId, branch: BranchFunction) -> bool:
    """Return True if a stored branch has the masks, the start and the steps that a function gives now."""

    def learn() -> BranchStart:
        raise _LearnsMasks

    ticket = replace(_stored_ticket(training, network), learned=learn)
    try:
        chosen = branch(ticket)
    except _LearnsMasks:  # nobody can tell without training again
        return True
    _check_start(training, ticket, network.branch, chosen)
    stored = StoredRound(training.path, *network)
    if (stored.record["first_step"], stored.record["last_step"]) != (chosen.first_step, chosen.last_step):
        return False
    changes = stored.record.get("mask_changes", ())
    if [change["step"] for change in changes] != sorted(chosen.changes):
        return False
    if changes:  # the masks at the start are those that its weights were masked with
        start = masks.apply(chosen.start, chosen.kept)
        return weights.fingerprint(start) == stored.record["start_sha256"]
    # No bits of training are compared: the masks, the start and the steps decide them.
    same_masks = all(np.array_equal(mask, stored.masks[name]) for name, mask in chosen.kept.items())
    return same_masks and stored.began_with(chosen.start, chosen.held_in(ticket))


def drawn_anew(prepared: Prepared, replicate: int, number: int) -> dict[str, np.ndarray]:
    """Draw every variable at step 0 anew, for the branches of a round, and rewind to it; nothing is masked."""
    experiment = prepared.experiment
    # Not of the branch: all branches of a round start from the same new values.
    words = (experiment.run.seed, replicate, randomness.BRANCH, number, randomness.INITIALISATION)
    drawn = weights.read_state(building.build_model(prepared.build, randomness.seed_for(*words)))
    rng = rewinding.rng_for(experiment.run.seed, replicate, number)
    return rewinding.REWINDS[experiment.rewind.mode].set_back(drawn, drawn, prepared.plan.dense, rng)


def _stored_ticket(training: Training, network: NetworkId) -> StoredTicket:
    experiment, (replicate, number, branch) = training.experiment, network
    stored = StoredRound(training.path, replicate, number)
    # Refuses a model that is built with other weights than the run's.
    initial = network_training.initial_state(training, replicate)

    # Functions, not values: few branches draw weights anew, compute gradients or learn masks, which takes long.
    def fresh() -> dict[str, np.ndarray]:
        drawn = drawn_anew(training.prepared, replicate, number)
        building.check_drawn_anew(drawn, {name: initial[name] for name in training.prepared.plan.dense}, branch)
        return drawn

    return StoredTicket(
        kept=stored.masks,
        start=stored.start,
        step=experiment.rewind.step if number else 0,
        num_steps=experiment.train.num_steps,
        rng=branches.rng_for(experiment.run.seed, replicate, number, branch),
        fresh=fresh,
        initial=initial,
        spent=plan.steps_to(experiment.prune, number, experiment.rewind.step, experiment.train.num_steps),
        gradients=lambda step, state: training.dense_gradients(replicate, step, state),
        learned=lambda: _learned(training, network, stored.masks),
        at_initial=stored.at_initial,
        held_at=stored.held_at,
        shuffled=training.prepared.plan.shuffled(stored.masks),
        trained=lambda: stored.pruned.weights,
    )


def _learned(training: Training, network: NetworkId, ticket: Masks) -> BranchStart:
    """Learn masks with as many entries of each weight as a ticket's, for `branches.supermask`; weights stay fixed."""
    experiment, prepared = training.experiment, training.prepared
    prepared.check_learns(network.branch)
    counts = masks.num_kept(ticket)
    fixed = supermasks.fixed_weights(network_training.initial_state(training, network.replicate), counts)
    words = branches.words_for(experiment.run.seed, *network)
    trainer = mask_training.learner(prepared)
    start = mask_training.begin(trainer, fixed, counts, randomness.generator(*words))
    # Its checkpoint is not the branch's own, whose training would take it for another's and begin again.
    learning = replace(training, prepared=replace(prepared, trainer=trainer), stage="scores")
    trained = network_training.train_network(learning, network, start, masks.ones_like(ticket))
    # Statistics, of BatchNormalization, are those of the masks that were learned.
    state = {**trained.weights, **{name: fixed[name] for name in counts}}
    last = experiment.train.num_steps
    # What is left to do after it takes hardly any time.
    details = {"mask_steps": last, "seconds": round(trained.seconds, 3)}
    return BranchStart(state, supermasks.kept_by(trained.weights, counts), last, last, details=details)


def _check_start(training: Training, ticket: StoredTicket, branch: str, chosen: Any) -> None:
    """Raise `LotteryError` if what a function returns is not a network that the branch can train."""
    if not isinstance(chosen, BranchStart):
        raise LotteryError(f"{branch} must return a branches.BranchStart, not {type(chosen).__name__}.")
    trainer = training.prepared.trainer
    # A variable that is left out would stay as the network trained before has left it.
    parts = ("start", chosen.start, weights.variables(trainer.model)), ("kept", chosen.kept, trainer.masks)
    for part, received, wanted in parts:
        if wrong := sorted(set(received) ^ set(wanted)):
            raise LotteryError(f"{branch}: {part} must have exactly the weights of the ticket; see {wrong[0]!r}.")
    masks.check(dict(chosen.kept), chosen.start)
    if chosen.held_at and not trainer.held:
        raise LotteryError(f'{branch} must leave held_at out in a run with prune.held_at = "zero".')
    if chosen.changes and trainer.held:
        raise LotteryError(
            f'{branch} cannot change masks in a run with prune.held_at = "{training.experiment.prune.held_at}": '
            "entries that grow start at zero."
        )
    for name, value in (chosen.held_at or {}).items():
        if name in chosen.kept and np.shape(value) != chosen.kept[name].shape:
            shapes = f"has shape {np.shape(value)}, the weight has {chosen.kept[name].shape}"
            raise LotteryError(f"{branch}: held_at of {name!r} {shapes}.")
    first, last = chosen.first_step, chosen.last_step
    begins = first if chosen.schedule_step is None else chosen.schedule_step
    # Where nothing is trained, as of masks that were learned, the learning rate does not matter.
    if first < last and (begins or last > ticket.num_steps):
        compiling.check_schedule(trainer.model)
    if not 0 <= first <= last <= ticket.spent:
        raise LotteryError(f"{branch} must train within the steps 0 to {ticket.spent}, not {first} to {last}.")
    if wrong := [step for step in chosen.changes if not first <= step <= last]:
        raise LotteryError(f"{branch} can change masks after the steps {first} to {last}, not after step {wrong[0]}.")
