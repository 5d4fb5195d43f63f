"""Linear mode connectivity: train siblings from a run's networks, and measure the error on the path between them."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from lottery import config, progress
from lottery.errors import LotteryError, unknown
from lottery.pipeline import branching, interpolation, network_training, onednn, running, sibling_training
from lottery.pipeline.interpolation import Line
from lottery.pipeline.network_training import Training
from lottery.pipeline.prepared import Ingredients
from lottery.pipeline.session import Execution
from lottery.pruning import rewinding
from lottery.runs import siblings, store
from lottery.runs.siblings import ORDERS, PathPoint, Siblings
from lottery.statistics.barriers import error_barrier
from lottery.training.checkpoints import CheckpointInterval


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
        prepared = running.open_run(session.stack, path, experiment, ingredients)
        session.note(*onednn.notes(store.read_environment(path)))
        session.stack.callback(prepared.trainer.close)
        prepared.trainer.hold()
        recompute = None
        if line.recompute:
            batches = interpolation.training_batches(prepared.data)
            recompute = interpolation.recomputed(prepared.trainer.loop.model, batches)
            if recompute is None:
                session.note("The network has no BatchNormalization, so there are no statistics to recompute.")
        sibling_training.check_networks(wanted)
        spans = sibling_training.spans_of(wanted)
        unmeasured = [pair for pair in wanted if not _is_measured(pair, recompute is not None, line.num_points)]
        if not spans and not unmeasured:
            session.note(f"All {len(wanted)} paths of {path} are complete.")
            return
        if spans:
            sibling_training.check_orders(prepared)
        evaluations = interpolation.evaluations(prepared.trainer.loop, prepared.data, experiment.train.num_steps)
        if "train" not in evaluations:
            session.note("The training data do not end within one training, so only the test error is measured.")
        on_event = network_training.while_there(path, progress.tallied(session.on_event, spans))
        every = execution.checkpoint_every or CheckpointInterval()
        training = Training(siblings.folder(path), prepared, on_event, every, session.should_stop)
        walk = functools.partial(interpolation.path, evaluations=evaluations, alphas=alphas, recompute=recompute)
        for pair in sibling_training.trained(training, wanted):
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
            raise LotteryError(f"steps must be 0 to {experiment.train.num_steps - 1}, not {step}.")
    chosen = branching.chosen_rounds(run, experiment, rounds, replicate)
    steps = sorted(set(steps)) or [experiment.rewind.step]
    wanted = [Siblings(run, experiment, *place, step) for place in chosen for step in steps]
    if any(pair.pruned.record["final_test_accuracy"] is None for pair in wanted):
        raise LotteryError("The model of this run measures no accuracy, so no error barrier can be measured.")
    return wanted


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
