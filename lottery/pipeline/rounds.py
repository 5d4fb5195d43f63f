"""The algorithm, train, prune, rewind and again; and the branches from its rounds."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lottery import config, files, interrupts, masks, progress, randomness, weights
from lottery.errors import LotteryError, StorageError
from lottery.executors.scheduler import Task, named
from lottery.masks import Masks
from lottery.models.kerases import reason
from lottery.pipeline import mask_training, preparing
from lottery.pipeline.preparing import Prepared
from lottery.pruning import branches, criteria, mask_actions, plan, rewinding, supermasks
from lottery.runs import store
from lottery.runs.stored import StoredRound
from lottery.training.checkpoints import Checkpointer, CheckpointInterval
from lottery.training.course import Arrays, MetricsRow, Span, Trained
from lottery.training.trainer import Trainer

NetworkId = tuple[int, int, str]  # replicate, round, branch


@dataclass(frozen=True)
class Training:
    """The training of a run's networks in this process."""

    path: Path  # the run's folder
    prepared: Prepared
    on_event: progress.OnEvent
    every: CheckpointInterval = field(default_factory=CheckpointInterval)
    should_stop: interrupts.ShouldStop = interrupts.never
    states: tuple[int, ...] = ()  # steps of the dense network at which other runs of a sweep need its state
    # By replicate, every variable at step 0, once it is compared with the stored file.
    initial: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)

    @functools.cached_property
    def dense_gradients(self) -> Callable[[int, int, Arrays], dict[str, np.ndarray]]:
        """Of the dense network, traced once; see `preparing.dense_gradients`."""
        return preparing.dense_gradients(self.prepared)


@dataclass(frozen=True)
class Watch:
    """Functions that see a network while it trains."""

    at: Mapping[int, Callable[[dict[str, np.ndarray]], None]]  # by step, called with every variable after it
    memory: dict[str, np.ndarray] = field(default_factory=dict)  # arrays that they write, a part of every checkpoint
    stage: str = ""  # the name of a training that comes before the network's own, for a checkpoint of its own
    trainer: Trainer | None = None  # of that training, if it is not the network's own


def train_chain(training: Training, replicate: int, last: int) -> None:
    """Train the rounds of a replicate that are not stored yet, up to round `last`.

    Iterative magnitude pruning with rewinding, strategy 1 of Frankle & Carbin 2019, appendix B.
    """
    experiment, trainer = training.prepared.experiment, training.prepared.trainer
    initial, k = initial_state(training, replicate), experiment.rewind.step
    _check_definition(training)
    dense = masks.ones_like({name: initial[name] for name in trainer.masks})
    index, kept, before = _last(training.path, replicate) or (-1, dense, {})
    while index < last:
        index += 1
        network = (replicate, index, store.TICKET)
        if index:
            # Without iterations, each round is pruned in one shot, from the dense network.
            scored = before if experiment.prune.iterative else StoredRound(training.path, replicate, 0).weights
            kept = dense if plan.is_from_dense(experiment.prune) else kept
            scores = _scores(training, replicate, index, scored, kept)
            pruned = training.prepared.plan.masks(index, scores, kept)
            initial_values = _start_state(training, replicate)
            at_initial = mask_actions.at_initial(experiment.prune.held_at, initial_values, scored, kept, before)
            held_at = mask_actions.values(at_initial, initial_values)
            thresholds, kept = training.prepared.plan.thresholds(scores, kept, pruned), pruned
            definition = criteria.facts(experiment.prune.criterion).definition
            details = {"definition": definition} if definition > 1 else {}
            rng = rewinding.rng_for(experiment.run.seed, replicate, index)
            start = rewinding.rewound(experiment.rewind.mode, initial_values, before, kept, rng, held_at)
            trained = train_network(training, network, start, kept, Span(k, None, schedule_step(experiment, index)))
        else:
            thresholds, watch = dict.fromkeys(kept), _states_on_the_way(training)
            trained = train_network(training, network, initial, kept, watch=watch)
            sha256 = _store_states(training, replicate, watch, initial)
            details = {"rewind_sha256": sha256} if k else {}
        store_network(training, network, trained, {"thresholds": thresholds, **details})
        before = trained.weights


def _check_definition(training: Training) -> None:
    """Refuse to add rounds to those that were pruned by an earlier definition of the criterion."""
    settings = training.prepared.experiment
    for replicate in range(1, settings.run.num_replicates + 1):
        if store.is_stored(training.path, replicate, 1):
            record = store.read_record(store.round_path(training.path, replicate, 1))
            if not criteria.is_current(settings.prune.criterion, record):
                raise LotteryError(
                    f"The rounds of {str(training.path)!r} were pruned by an earlier definition of "
                    f"{settings.prune.criterion}, so more would not belong to them; start a run of another name."
                )


def train_branch(
    training: Training,
    network: NetworkId,
    branch: branches.BranchFunction,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Train a branch from a stored round, and add `details` to its record."""
    experiment = training.prepared.experiment
    ticket = _stored_ticket(training, network)
    chosen = branch(ticket)
    _check_start(training, network, chosen)
    first, last, schedule = chosen.first_step, chosen.last_step, chosen.schedule_step
    if schedule is None:  # a branch that starts where the ticket starts goes through the same part of the schedule
        schedule = schedule_step(experiment, network[1]) if first == experiment.rewind.step else first
    start = masks.apply(chosen.start, chosen.kept, chosen.held_in(ticket))
    trained = train_network(training, network, start, chosen.kept, Span(first, last, schedule, chosen.changes))
    about = {"control": branch.__name__, "first_step": first, "last_step": last}
    if trained.changes:
        changes = [dict(zip(store.CHANGES, change, strict=True)) for change in trained.changes]
        about |= {"mask_changes": changes, "kept_steps": branches.kept_steps(chosen)}
    details = {**about, **chosen.details, "thresholds": dict.fromkeys(chosen.kept), **(details or {})}
    store_network(training, network, trained, details)


def matches_stored(training: Training, network: NetworkId, branch: branches.BranchFunction) -> bool:
    """Check if a stored branch has the masks, the start and the steps that a function gives now."""

    known = branches.find(network[2])
    if known and known.learns:  # nobody can tell without training again
        return True
    ticket = _stored_ticket(training, network)
    chosen = branch(ticket)
    _check_start(training, network, chosen)
    stored = StoredRound(training.path, *network)
    same_start = stored.began_with(chosen.start, chosen.held_in(ticket))
    same_masks = all(np.array_equal(mask, stored.masks[name]) for name, mask in chosen.kept.items())
    steps = (stored.record["first_step"], stored.record["last_step"])
    return same_masks and same_start and steps == (chosen.first_step, chosen.last_step)


def train_network(
    training: Training,
    network: NetworkId,
    start: Arrays,
    kept: Masks,
    span: Span = Span(),  # noqa: B008 (frozen)
    watch: Watch | None = None,
    words: tuple[int, ...] | None = None,
) -> Trained:
    """Train one network from `start`, or resume; seed `words` of the batches' order are by default the replicate's."""
    import tensorflow as tf

    experiment = training.prepared.experiment
    last = experiment.train.num_steps if span.last_step is None else span.last_step
    words = words or (experiment.run.seed, network[0], randomness.BATCHES)
    watch, reported = watch or Watch({}), 0

    def on_event(step: int, accuracy: float, row: MetricsRow | None) -> None:
        nonlocal reported
        if row is None:
            training.on_event(_where(training, network, kept, step, accuracy, (span.first_step, last)))
        else:
            training.on_event(progress.Evaluated(training.path, *network, row, not reported))
            reported += 1

    file = store.checkpoint_path(store.round_path(training.path, *network), watch.stage)
    note: Callable[[str], None] = lambda text: training.on_event(progress.Note(text))  # noqa: E731
    checkpointer = Checkpointer(file, training.every, training.should_stop, note, watch.memory)
    try:
        trainer = watch.trainer or training.prepared.trainer
        return trainer.train(start, kept, words, span, watch.at, on_event, checkpointer)
    except StorageError:  # says itself that the disk is at fault
        raise
    except (LotteryError, MemoryError, tf.errors.OpError) as error:
        why = f"There is not enough memory: {error}." if isinstance(error, MemoryError) else error
        why = f"TensorFlow stopped: {reason(error)}." if isinstance(error, tf.errors.OpError) else why
        which = named(Task(training.path, network))
        raise LotteryError(f"{which}: {why} What was trained before is kept in {str(training.path)!r}.") from error


def store_network(training: Training, network: NetworkId, trained: Trained, details: Mapping[str, Any]) -> None:
    """Store a trained network with its record, and report it."""
    (replicate, index, branch), kept, prepared = network, trained.kept, training.prepared
    counts = masks.num_kept(kept)
    record = {
        "replicate": replicate, "branch": branch, "round": index,
        "density": masks.density(kept), "num_kept": sum(counts.values()),
        "num_weights": sum(mask.size for mask in kept.values()), "kept": counts,
        "collapsed": [name for name, count in counts.items() if not count],
        **trained.summary,
        "start_sha256": trained.start_sha256, "jit_compile": prepared.trainer.loop.jit_compile, **trained.engine,
        "seconds": round(trained.seconds, 3), **details,
    }  # fmt: skip
    folder, steps = store.round_path(training.path, *network), span(prepared.experiment, network)
    parts = trained.early_stop, trained.predictions
    record = store.write_round(folder, kept, trained.weights, trained.metrics, record, *parts)
    store.clear_checkpoints(folder)
    where = _where(training, network, kept, steps[1], record["final_val_accuracy"], steps)
    training.on_event(progress.Done(where, record))


def initial_state(training: Training, replicate: int) -> dict[str, np.ndarray]:
    """Return every variable at step 0, which is stored before the first round, and compared with the file after."""
    if replicate not in training.initial:
        start, file = preparing.initial_state(training.prepared, replicate), store.start_path(training.path, replicate)
        if not file.exists():
            files.write(file, files.pack_arrays(start))
        if weights.fingerprint(files.read_arrays(file)) != weights.fingerprint(start):
            raise LotteryError(
                f"The model's initial weights differ from those in {str(file)!r}, so this run cannot continue: the "
                "file, the model, or the version of a library has changed."
            )
        training.initial[replicate] = start
    return training.initial[replicate]


def while_there(run: Path, on_event: progress.OnEvent) -> progress.OnEvent:
    """Report events; raise `StorageError` once the run's folder is gone, for nothing must be stored in a new one."""

    def checked(event: progress.Event) -> None:
        store.check_there(run)
        on_event(event)

    return checked


def schedule_step(experiment: config.Experiment, index: int) -> int:
    """Return the step of its schedule at which the learning rate begins in a round."""
    if not index:
        return 0
    # Fine-tuning keeps the last value of the rate.
    return experiment.train.num_steps if experiment.rewind.mode == "fine_tune" else experiment.rewind.step


def span(experiment: config.Experiment, network: NetworkId) -> tuple[int, int]:
    """Estimate the first and the last step of a network's training before its branch says them."""
    (_, index, branch), last = network, experiment.train.num_steps
    known = branches.find(branch)
    first = {"initial": 0, "rewind": experiment.rewind.step if index else 0, "end": last}
    if known and known.is_long:
        last = plan.steps_to(experiment.prune, index, experiment.rewind.step, last)
    return first[known.starts if known else "rewind"], last


def _where(
    training: Training, network: NetworkId, kept: Masks, step: int, accuracy: float, steps: tuple[int, int]
) -> progress.Step:
    experiment, (replicate, index, branch) = training.prepared.experiment, network
    return progress.Step(
        training.path, replicate, experiment.run.num_replicates, index, experiment.prune.num_rounds, branch,
        masks.density(kept), step, *steps, accuracy,
    )  # fmt: skip


def _last(path: Path, replicate: int) -> tuple[int, Masks, Arrays] | None:
    """Read the last complete round, if there is one."""
    if not (indices := store.complete_rounds(path, replicate)):
        return None
    stored = StoredRound(path, replicate, indices[-1])
    return stored.round, stored.masks, stored.weights


def _start_state(training: Training, replicate: int) -> dict[str, np.ndarray]:
    """Read every variable at the rewind step."""
    return files.read_arrays(store.start_path(training.path, replicate, training.prepared.experiment.rewind.step))


def _scores(training: Training, replicate: int, index: int, trained: Arrays, kept: Masks) -> dict[str, np.ndarray]:
    """Score the weights that round `index` is about to prune."""
    experiment = training.prepared.experiment
    initial, network = files.read_arrays(store.start_path(training.path, replicate)), None
    if not plan.is_repeatable(experiment.prune):
        network = preparing.scoring_network(training.prepared, replicate)
        weights.assign(network.model, _start_state(training, replicate))
    rng = randomness.generator(experiment.run.seed, replicate, randomness.SCORES, index)
    inputs = training.prepared.plan.criterion_inputs(index, initial, trained, kept, rng, network)
    return training.prepared.criterion(inputs)


def _states_on_the_way(training: Training) -> Watch:
    """Watch the dense network at the steps that this run, or others of a sweep, rewind to."""
    seen: dict[str, np.ndarray] = {}

    def keep(step: int, state: dict[str, np.ndarray]) -> None:
        seen.update({f"{step}/{name}": value for name, value in state.items()})

    steps = sorted({training.prepared.experiment.rewind.step, *training.states} - {0})
    return Watch({step: functools.partial(keep, step) for step in steps}, seen)


def _store_states(training: Training, replicate: int, watch: Watch, initial: Arrays) -> str:
    """Store the states that were watched, and return the fingerprint of the one to rewind to."""
    rewind_sha256 = ""
    for step in watch.at:
        state = {name: watch.memory[f"{step}/{name}"] for name in initial}
        sha256 = weights.fingerprint(state)
        if step == training.prepared.experiment.rewind.step:
            rewind_sha256 = sha256
            files.write(store.start_path(training.path, replicate, step), files.pack_arrays(state))
        else:  # its checksum is in no record
            files.write(store.state_path(training.path, replicate, step), files.pack_arrays(state, {"sha256": sha256}))
    return rewind_sha256


def drawn_anew(prepared: Prepared, replicate: int, index: int) -> dict[str, np.ndarray]:
    """Draw every variable at step 0 anew, for the branches of a round, and rewind to it; nothing is masked."""
    experiment = prepared.experiment
    words = (experiment.run.seed, replicate, randomness.BRANCH, index, randomness.INITIALISATION)
    drawn = weights.read_state(preparing.build_model(prepared.build, randomness.seed_for(*words)))
    dense = masks.ones_like({name: drawn[name] for name in prepared.trainer.masks})
    rng = rewinding.rng_for(experiment.run.seed, replicate, index)
    return rewinding.REWINDS[experiment.rewind.mode](drawn, drawn, dense, rng)


def _stored_ticket(training: Training, network: NetworkId) -> branches.StoredTicket:
    experiment, (replicate, index, branch) = training.prepared.experiment, network
    stored = StoredRound(training.path, replicate, index)
    initial = initial_state(training, replicate)  # refuses a model that is built with other weights than the run's

    def fresh() -> dict[str, np.ndarray]:
        drawn = drawn_anew(training.prepared, replicate, index)
        preparing.check_drawn_anew(drawn, {name: initial[name] for name in training.prepared.trainer.masks}, branch)
        return drawn

    return branches.StoredTicket(
        kept=stored.masks,
        start=stored.start,
        step=experiment.rewind.step if index else 0,
        num_steps=experiment.train.num_steps,
        rng=branches.rng_for(experiment.run.seed, replicate, index, branch),
        fresh=fresh,
        initial=initial,
        spent=plan.steps_to(experiment.prune, index, experiment.rewind.step, experiment.train.num_steps),
        gradients=lambda step, state: training.dense_gradients(replicate, step, state),
        learned=lambda rule: _learned(training, network, stored.masks, rule),
        at_initial=stored.at_initial,
        held_at=stored.held_at,
        shuffled=training.prepared.plan.shuffled(stored.masks),
    )


def _check_start(training: Training, network: NetworkId, chosen: Any) -> None:
    """Refuse a start that leaves a variable out: it would stay as the network trained before has left it."""
    experiment, (_, index, branch) = training.prepared.experiment, network
    if not isinstance(chosen, branches.BranchStart):
        raise LotteryError(f"{branch}: received {type(chosen).__name__}, allowed is a branches.BranchStart.")
    trainer = training.prepared.trainer
    parts = ("start", chosen.start, weights.variables(trainer.model)), ("kept", chosen.kept, trainer.masks)
    for part, received, wanted in parts:
        if wrong := sorted(set(received) ^ set(wanted)):
            what = "must have exactly the weights of the ticket"
            raise LotteryError(f"{branch}: {part} {what}; see {wrong[0]!r}.")
    masks.check(dict(chosen.kept), chosen.start)
    held_at = chosen.held_at or {}
    if not trainer.held and held_at:
        raise LotteryError(f'{branch}: received held_at in a run of prune.held_at = "zero"; leave it out.')
    if trainer.held and chosen.changes:
        allowed = f'allowed in a run of prune.held_at = "{experiment.prune.held_at}" are none'
        raise LotteryError(f"{branch}: received changes of masks, {allowed}: entries that grow start at zero.")
    for name, value in held_at.items():
        if name in chosen.kept and np.shape(value) != chosen.kept[name].shape:
            shapes = f"has shape {np.shape(value)}, the weight has {chosen.kept[name].shape}"
            raise LotteryError(f"{branch}: held_at of {name!r} {shapes}.")
    first, last = chosen.first_step, chosen.last_step
    most = plan.steps_to(experiment.prune, index, experiment.rewind.step, experiment.train.num_steps)
    if not 0 <= first <= last <= most:
        raise LotteryError(f"{branch}: received the steps {first} to {last}, allowed are steps from 0 to {most}.")
    if wrong := [step for step in chosen.changes if not first < step <= last]:
        raise LotteryError(
            f"{branch}: received a change of masks after step {wrong[0]}, allowed are {first + 1} to {last}."
        )


def _learned(training: Training, network: NetworkId, ticket: Masks, rule: supermasks.Rule) -> branches.BranchStart:
    """Learn masks with as many entries of each weight as a ticket's, while the weights stay fixed.

    See `branches.supermask`.
    """
    experiment, (replicate, index, branch) = training.prepared.experiment, network
    preparing.check_learns(training.prepared, branch)
    last, counts = experiment.train.num_steps, masks.num_kept(ticket)
    learner = mask_training.learner(training.prepared, rule)
    fixed = supermasks.fixed_weights(initial_state(training, replicate), counts)
    words = branches.words_for(experiment.run.seed, replicate, index, branch)
    start = learner.begin(fixed, counts, randomness.generator(*words))
    watch = Watch({}, stage="scores", trainer=learner.trainer)
    trained = train_network(training, network, start, masks.ones_like(ticket), Span(), watch)
    # Statistics, of BatchNormalization, are those of the masks that were learned.
    state = {**trained.weights, **{name: fixed[name] for name in counts}}
    details = {"mask_steps": last, "seconds": round(trained.seconds, 3)}  # what is left to do takes hardly any
    return branches.BranchStart(state, supermasks.kept_by(trained.weights, counts), last, last, details=details)
