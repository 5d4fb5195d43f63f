"""The path between two siblings: both are trained where they are missing, and the networks between them evaluated."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

from lottery import progress
from lottery.pipeline import interpolation, sibling_training
from lottery.pipeline.interpolation import Line
from lottery.pipeline.network_training import Training
from lottery.runs import siblings
from lottery.runs.siblings import ORDERS, PathPoint, Siblings
from lottery.runs.store import NetworkId
from lottery.statistics.barriers import error_barrier


def measuring(line: Line, pairs: Mapping[NetworkId, Siblings], training: Training) -> Callable[[NetworkId], None]:
    """Make the function that trains two siblings of a run, and measures the path between them."""
    prepared, own = training.prepared, replace(training, path=siblings.folder(training.path))
    prepared.trainer.hold()
    recompute = None
    if line.recompute:
        batches = interpolation.training_batches(prepared.data)
        recompute = interpolation.recomputed(prepared.trainer.loop.model, batches)
    evaluations = interpolation.evaluations(prepared)
    walk = functools.partial(
        interpolation.path,
        evaluations=evaluations,
        alphas=line.alphas,
        recompute=recompute,
        should_stop=training.should_stop,
    )

    def train(network: NetworkId) -> None:
        pair = replace(pairs[network], run=training.path)
        sibling_training.train_pair(own, pair)
        training.on_event(progress.Note(f"{_name(pair)}: measuring the error at {line.num_points} points of the line."))
        _measure(own, pair, walk, line.recompute)

    return train


def is_measured(pair: Siblings, recomputed: bool, num_points: int) -> bool:
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
    barrier = f"the test-error barrier is {100 * found['barrier']:.2f} % ({stable})"
    training.on_event(progress.Note(f"{_name(pair)}: {barrier}."))


def _name(pair: Siblings) -> str:
    return f"Replicate {pair.replicate}, round {pair.round}, step {pair.step}"
