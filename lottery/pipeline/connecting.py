"""Linear mode connectivity: train siblings from a run's networks, and measure the error on the path between them."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lottery import config, progress
from lottery.errors import LotteryError, unknown
from lottery.executors.scheduler import Job
from lottery.pipeline import branching, dispatch, interpolation, opening, sibling_paths, sibling_training
from lottery.pipeline.prepared import Ingredients
from lottery.pipeline.session import Execution
from lottery.pipeline.worker import Recipe
from lottery.pruning import rewinding
from lottery.runs import store
from lottery.runs.siblings import Siblings
from lottery.runs.store import NetworkId


def connect(
    run: store.Folder,
    rounds: Sequence[int] = (),
    steps: Sequence[int] = (),
    replicate: int | None = None,
    line: interpolation.Line = interpolation.Line(),
    ingredients: Ingredients = Ingredients(),
    execution: Execution = Execution(),
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
        line: What to evaluate; a stored path keeps its points and splits, if it has more of them.
        ingredients: The objects that were passed to the run.
        execution: How to train: a worker trains two siblings, and measures the path between them. Its TensorBoard plays
            no part.

    Raises:
        LotteryError: No such network is stored; rounds do not start from rewound weights; the two orders of the data
            are the same; or a stored sibling is damaged or no longer has the round's masks.
    """
    path = Path(run)
    experiment = store.read_experiment(path)
    wanted = _wanted(path, experiment, rounds, steps, replicate)
    with execution.started() as session:
        prepared = opening.open_run(session.stack, path, experiment, ingredients)
        session.stack.callback(prepared.trainer.close)
        # Before anything is evaluated, which traces the model with what holds its masks.
        prepared.trainer.hold()
        recomputes = line.recompute and bool(interpolation.with_statistics(prepared.trainer.loop.model))
        if line.recompute and not recomputes:
            session.note("The network has no BatchNormalization, so there are no statistics to recompute.")
        sibling_training.check_networks(wanted)
        line = replace(line, recompute=recomputes)
        evaluations = sibling_paths.evaluations_on(prepared, line.test_only)
        unmeasured = [pair for pair in wanted if not sibling_paths.is_measured(pair, line, evaluations)]
        # A state that was deleted is made again, also where all that starts from it is there.
        spans = sibling_training.spans_of(wanted)
        if not unmeasured and not spans:
            session.note(f"Every path of {path} is complete.")
            return
        if spans:
            sibling_training.check_orders(prepared)
        if "train" not in evaluations and not line.test_only:
            session.note("The training data do not end within one training, so only the test error is measured.")
        session = replace(session, on_event=progress.tallied(session.on_event, spans))
        sibling_training.store_states(session, prepared, wanted)
        pairs = {NetworkId(pair.replicate, pair.round, f"step_{pair.step}"): pair for pair in unmeasured}
        begin = functools.partial(sibling_paths.measuring, line, pairs)
        recipe = Recipe(path, experiment, ingredients, begin=begin)
        dispatch.carry_out({path: recipe}, [Job(path, pair) for pair in pairs], session, {path: prepared}, spans=spans)


def _wanted(
    run: Path, experiment: config.Experiment, rounds: Sequence[int], steps: Sequence[int], replicate: int | None
) -> list[Siblings]:
    """List the siblings to connect, or refuse rounds and steps that a run does not have."""
    mode = experiment.rewind.mode
    allowed = [name for name, known in rewinding.REWINDS.items() if known.start is None]
    if mode not in allowed:
        raise unknown("rewind.mode of a run whose networks are to be connected", mode, allowed)
    rounds = branching.whole_numbers("rounds", rounds)
    steps = sorted(set(branching.whole_numbers("steps", steps)))
    for step in steps:
        if not 0 <= step < experiment.train.num_steps:
            raise LotteryError(f"steps must be 0 to {experiment.train.num_steps - 1}, not {step}.")
    chosen = branching.chosen_rounds(run, experiment, rounds, replicate)
    # The run's own tickets start there, so their round is the first of two siblings.
    steps = steps or [experiment.rewind.step]
    wanted = [Siblings(run, experiment, *place, step) for place in chosen for step in steps]
    if any(pair.pruned.record["final_test_accuracy"] is None for pair in wanted):
        raise LotteryError("The model of this run measures no accuracy, so no error barrier can be measured.")
    return wanted
