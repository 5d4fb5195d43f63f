"""Linear mode connectivity: train siblings from a run's networks, and measure the error on the path between them."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from lottery import config, files, masks, progress, weights
from lottery.data import Streams
from lottery.errors import LotteryError, unknown
from lottery.pipeline import branching, interpolation, network_training, opening
from lottery.pipeline.interpolation import Line
from lottery.pipeline.network_training import Training, Watch
from lottery.pipeline.prepared import Ingredients, Prepared
from lottery.pipeline.session import Execution
from lottery.pruning import rewinding
from lottery.runs import sibling_checks, siblings, store
from lottery.runs.siblings import ORDERS, PathPoint, Siblings
from lottery.runs.store import NetworkId
from lottery.runs.stored import StoredRound
from lottery.statistics.barriers import error_barrier
from lottery.training.checkpoints import CheckpointInterval
from lottery.training.records import Span


def connect(
    run: str | Path,
    rounds: Sequence[int] = (),
    steps: Sequence[int] = (),
    replicate: int | None = None,
    line: Line = Line(),  # noqa: B008 (frozen)
    ingredients: Ingredients = Ingredients(),  # noqa: B008 (frozen)
    execution: Execution = Execution(),  # noqa: B008 (frozen)
) -> None:
    """Measure how stable a run's networks are to the noise of training. A second call resumes.

    Linear mode connectivity of Frankle et al. 2020, https://arxiv.org/abs/1912.05671: from W_k, the weights of the
    dense network at step k, two siblings are trained to the end under a round's masks, with two orders of the data and
    a fresh optimizer each, and the networks on the straight line between them are evaluated. The first order is the
    run's own, so a round that starts from step k is the first sibling. The second sibling differs in all other noise
    too: augmentation and random layers, such as dropout. The masks are those of the run, found with its own rewind
    step, for every k. (The paper finds masks for each k separately, which takes one run per k.) If the training data
    do not end within one training, because they repeat, only the test error is measured.
    `lottery.analysis.connectivity` reads the results.

    Args:
        run: The run's folder. Results are stored in it as soon as they exist.
        rounds: By default every complete round, the dense network included.
        steps: The steps k; by default the run's rewind step.
        replicate: All by default.
        line: The points to evaluate; a stored path with more points is kept.
        ingredients: The objects that were passed to the run.
        execution: How to train; its workers and TensorBoard play no part.

    Raises:
        LotteryError: No such network is stored; rounds do not start from rewound weights; the two orders of the data
            are the same; or a stored sibling is damaged or no longer has the round's masks.
    """
    path = Path(run)
    experiment = store.read_experiment(path)
    alphas = line.alphas  # too few points are refused before anything is prepared
    wanted = _wanted(path, experiment, rounds, steps, replicate)
    with execution.started() as session:
        on_event, stack = session.on_event, session.stack
        prepared = opening.open_run(stack, path, experiment, ingredients).prepared
        stack.callback(prepared.trainer.close)
        prepared.trainer.hold()
        recompute = _recompute(prepared, line, on_event)
        _check_networks(wanted)
        spans = _spans(wanted)
        unmeasured = [pair for pair in wanted if not _is_measured(pair, recompute is not None, line.num_points)]
        if not spans and not unmeasured:
            on_event(progress.Note(f"All {len(wanted)} paths of {path} are complete."))
            return
        if spans:
            _check_orders(prepared)
        evaluations = interpolation.evaluations(prepared.trainer.loop, prepared.data, experiment.train.num_steps)
        if "train" not in evaluations:
            why = "The training data do not end within one training, so only the test error is measured."
            on_event(progress.Note(why))
        folder = siblings.folder(path)
        on_event = progress.tallied(
            on_event, {(folder, key.replicate, key.round, key.branch): span for key, span in spans.items()}
        )
        on_event = network_training.while_there(path, on_event)
        every = execution.checkpoint_every or CheckpointInterval()
        training = Training(folder, prepared, on_event, every, session.should_stop)
        walk = functools.partial(interpolation.path, evaluations=evaluations, alphas=alphas, recompute=recompute)
        for own in _by_replicate(wanted):
            if _missing_steps(own):
                _store_states(training, own)
                _check_networks(own)
            for pair in own:
                for order in pair.missing():
                    _train(training, pair, order)
                if pair in unmeasured:
                    _measure(training, pair, walk, recompute is not None)


def _wanted(
    run: Path, experiment: config.Experiment, rounds: Sequence[int], steps: Sequence[int], replicate: int | None
) -> list[Siblings]:
    """List the siblings to connect, or refuse rounds and steps that a run does not have."""
    mode = experiment.rewind.mode
    allowed = [name for name, known in rewinding.REWINDS.items() if known.start is None]
    if mode not in allowed:
        raise unknown("rewind.mode of a run whose networks are to be connected", mode, allowed)
    for step in steps:
        if not 0 <= step < experiment.train.num_steps:
            raise LotteryError(f"steps: received {step}, allowed are 0 to {experiment.train.num_steps - 1}.")
    chosen = branching.chosen_rounds(run, experiment, rounds, replicate)
    steps = sorted(set(steps)) or [experiment.rewind.step]
    wanted = [Siblings(run, experiment, *place, step) for place in chosen for step in steps]
    if any(pair.pruned.record["final_test_accuracy"] is None for pair in wanted):
        raise LotteryError("The model of this run measures no accuracy, so no error barrier can be measured.")
    return wanted


def _recompute(prepared: Prepared, line: Line, on_event: progress.OnEvent) -> Callable[[], None] | None:
    """Return what measures the statistics of BatchNormalization again at each point, if that is wanted and possible."""
    if not line.recompute:
        return None
    batches = interpolation.training_batches(prepared.data)
    recompute = interpolation.recomputed(prepared.trainer.loop.model, batches)
    if recompute is None:
        why = "The network has no BatchNormalization, so there are no statistics to recompute."
        on_event(progress.Note(why))
    return recompute


def _check_orders(prepared: Prepared) -> None:
    """Refuse a data set whose order does not depend on the seed: its two siblings would be the same network."""
    import tensorflow as tf

    if not isinstance(prepared.data, Streams):
        return
    words = (siblings.seed_words(prepared.experiment, 1, order) for order in ORDERS)
    first, second = (tf.nest.flatten(next(prepared.trainer.loop.batches(each)(1)[0])) for each in words)
    if all(np.array_equal(np.array(mine), np.array(theirs)) for mine, theirs in zip(first, second, strict=True)):
        raise LotteryError(
            "The training data come in the same order whatever the seed, so two siblings would be the same network; "
            "pass a function that builds and shuffles them."
        )


def _check_networks(wanted: Sequence[Siblings]) -> None:
    """Refuse stored siblings that are damaged or not of the round as it is now, once their state is stored."""
    for pair in wanted:
        for order in ORDERS if pair.state_file.exists() else ():
            network = pair.network(order)
            if network.run != pair.run and order not in pair.missing():
                for why in sibling_checks.wrong_network(pair.run, pair.experiment, network.folder):
                    raise LotteryError(f"{str(network.folder)!r}: {why} Delete it to train it again.")


def _by_replicate(wanted: Sequence[Siblings]) -> list[list[Siblings]]:
    return [list(group) for _, group in itertools.groupby(wanted, lambda pair: pair.replicate)]


def _missing_steps(own: Sequence[Siblings]) -> list[int]:
    """List the steps of a replicate's dense network that are not stored."""
    return sorted({pair.step for pair in own if not pair.state_file.exists()})


def _spans(wanted: Sequence[Siblings]) -> dict[NetworkId, tuple[int, int]]:
    """Give the first and last step of each network to train: dense networks up to the last missing step, siblings."""
    spans: dict[NetworkId, tuple[int, int]] = {}
    for own in _by_replicate(wanted):
        for step in _missing_steps(own)[-1:]:
            spans[NetworkId(own[0].replicate, 0, f"to_step_{step}")] = 0, step
    for pair in wanted:
        for order in pair.missing():
            spans[NetworkId(pair.replicate, pair.round, pair.branch(order))] = (
                pair.step,
                pair.experiment.train.num_steps,
            )
    return spans


def _store_states(training: Training, own: Sequence[Siblings]) -> None:
    """Train the dense network of a replicate again, as far as the last step that is not stored."""
    replicate, last = own[0].replicate, _missing_steps(own)[-1]

    def keep(file: Path) -> Callable[[dict[str, np.ndarray]], None]:
        def write(state: dict[str, np.ndarray]) -> None:
            if not file.exists():
                files.write(file, files.pack_arrays(state))

        return write

    initial = network_training.initial_state(dataclasses.replace(training, path=own[0].run), replicate)
    dense = masks.ones_like({name: initial[name] for name in training.prepared.trainer.masks})
    # Of all steps, stored or not, so that a checkpoint is of the same training.
    watch = {pair.step: keep(pair.state_file) for pair in own if 0 < pair.step <= last}
    network = NetworkId(replicate, 0, f"to_step_{last}")
    trained = network_training.train_network(training, network, initial, dense, Span(0, last), Watch(watch))
    store.clear_checkpoints(store.round_path(training.path, *network))
    if _missing_steps(own):  # a state was removed that was stored before the checkpoint
        _store_states(training, own)
    before = {row[0]: row[2] for row in StoredRound(own[0].run, replicate, 0).metrics if row[1] == "validation"}
    again = {row[0]: row[2] for row in trained.metrics if row[1] == "validation"}
    if other := [step for step, loss in again.items() if before.get(step, loss) != loss]:
        training.on_event(
            progress.Note(
                f"Replicate {replicate}: training the dense network again gave different bits (see the "
                f"validation loss at step {other[0]}): the processor or a version differs."
            )
        )


def _train(training: Training, pair: Siblings, order: int) -> None:
    """Train and store a sibling."""
    settings, replicate, step = pair.experiment, pair.replicate, pair.step
    state = files.read_arrays(pair.state_file)
    digest = weights.fingerprint(state)
    for folder in siblings.networks_from(pair.run, replicate, step):
        if store.read_record(folder)["step_sha256"] != digest:
            raise LotteryError(
                f"{str(folder)!r} started from other weights than those of step {step} of replicate {replicate}."
            )
    kept, network = pair.pruned.masks, NetworkId(replicate, pair.round, pair.branch(order))
    start = masks.apply(pair.start(order, state), kept, pair.pruned.held_at)
    words = siblings.seed_words(settings, replicate, order)
    own = _with_noise(training, pair, order)
    trained = network_training.train_network(own, network, start, kept, Span(step), words=words)
    about = {"order": order, "first_step": step, "last_step": settings.train.num_steps, "step_sha256": digest}
    network_training.store_network(training, network, trained, {**about, "thresholds": dict.fromkeys(kept)})


def _with_noise(training: Training, pair: Siblings, order: int) -> Training:
    """Draw the first states of generators that the model does not hold anew for the second order of the data."""
    if order == 1:
        return training
    # Names count the models that a process has built, so they must not decide what is drawn.
    trainer = training.prepared.trainer.redrawn(
        lambda name, value: pair.redrawn(order, "", value) if siblings.is_generator(name) else value
    )
    return dataclasses.replace(training, prepared=dataclasses.replace(training.prepared, trainer=trainer))


def _is_measured(pair: Siblings, recomputed: bool, num_points: int) -> bool:
    """Check if both siblings are stored, and the path between them, with as many points or more."""
    file = pair.path_file(recomputed)
    if pair.missing() or not file.exists() or not siblings.record_file(file).exists():
        return False
    record, _ = siblings.read_path(file)
    return record["num_points"] >= num_points and not pair.misfit(record["networks"])


def _measure(training: Training, pair: Siblings, walk: Callable[..., list[PathPoint]], recomputed: bool) -> None:
    """Evaluate and store the path between two siblings."""
    trainer = training.prepared.trainer
    first, second = (pair.network(order) for order in ORDERS)
    trainer.set_masks(first.masks, first.weights)
    points = walk(trainer.model, first.weights, second.weights)
    siblings.write_path(pair.path_file(recomputed), points, pair.digests())
    tested = [(alpha, error) for alpha, split, _, error in points if split == "test"]
    found = error_barrier([alpha for alpha, _ in tested], [error for _, error in tested])
    stable = "stable" if found["stable"] else "not stable"
    where = f"Replicate {pair.replicate}, round {pair.round}, step {pair.step}"
    barrier = f"the test-error barrier is {100 * found['barrier']:.2f} % ({stable})"
    training.on_event(progress.Note(f"{where}: {barrier}."))
