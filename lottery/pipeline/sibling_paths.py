"""The path between two siblings: both are trained where they are missing, and the networks between them evaluated."""

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lottery.data import Splits
from lottery.pipeline import interpolation, sibling_training
from lottery.pipeline.interpolation import Line
from lottery.pipeline.network_training import Training
from lottery.pipeline.prepared import Prepared
from lottery.runs import siblings
from lottery.runs.siblings import ORDERS, PathPoint, Siblings
from lottery.runs.store import NetworkId
from lottery.statistics.barriers import error_barrier
from lottery.training.loop import evaluations_of
from lottery.training.records import Logs


def measuring(line: Line, pairs: Mapping[NetworkId, Siblings], training: Training) -> Callable[[NetworkId], None]:
    """Make the function that trains two siblings of a run, and measures the path between them."""
    prepared, own = training.prepared, replace(training, path=siblings.folder(training.path))
    prepared.trainer.hold()
    recompute = None
    if line.recompute:
        batches = interpolation.training_batches(prepared.data)
        recompute = interpolation.recomputed(prepared.trainer.loop.model, batches)
    # Functions that are made again would be traced again.
    evaluations = functools.cache(functools.partial(evaluations_on, prepared))

    def say(pair: Siblings, text: str) -> None:
        place = f"Replicate {pair.replicate}, round {pair.round}, step {pair.step}"
        training.note(f"{place}: {text}.")

    def train(network: NetworkId) -> None:
        pair = replace(pairs[network], run=training.path)
        for order in pair.missing():
            sibling_training.train_sibling(own, pair, order)
        whole = _with_stored(line, pair)
        say(pair, f"measuring the error at {whole.num_points} points of the line")
        chosen, trainer = evaluations(whole.test_only), prepared.trainer
        first, second = (pair.network(order) for order in ORDERS)
        trainer.set_masks(first.masks, first.weights)
        points = interpolation.path(
            trainer.model, first.weights, second.weights, chosen, whole.alphas, recompute, training.should_stop
        )
        siblings.write_path(pair.path_file(line.recompute), points, pair.digests())
        say(pair, _barrier(points))

    return train


def evaluations_on(prepared: Prepared, test_only: bool) -> dict[str, Callable[[], Logs]]:
    """Make the functions that evaluate a network, by split: train and test, or test alone if training data do not end.

    A data set of unknown length counts as endless if it has more batches than a training has steps; to tell, it is
    read, unless only the test split is asked for.
    """
    loop, data = prepared.trainer.loop, prepared.data
    found = {"test": loop.evaluations["test"]}
    if test_only:
        return found
    if isinstance(data, Splits) or _is_finite(data.train(), prepared.experiment.train.num_steps):
        found = {**evaluations_of(loop.model, data, ("train",), loop.examined.test_logs), **found}
    return found


def is_measured(pair: Siblings, line: Line, splits: Collection[str]) -> bool:
    """Check if both siblings are stored, and the path between them has the splits and as many points or more."""
    record = _stored(pair, line)
    if record is None or not set(splits) <= set(record["splits"]):
        return False
    return record["num_points"] >= line.num_points


def _stored(pair: Siblings, line: Line) -> dict[str, Any] | None:
    """Read the record of the path that is stored between two siblings, if it is complete and between these."""
    file = pair.path_file(line.recompute)
    if pair.missing() or not file.exists() or not siblings.record_file(file).exists():
        return None
    record, _ = siblings.read_path(file)
    return None if pair.misfit(record["networks"]) else record


def _with_stored(line: Line, pair: Siblings) -> Line:
    """Add what the stored path has to a line, so that nothing is lost where it is measured again."""
    record = _stored(pair, line)
    if record is None:
        return line
    test_only = line.test_only and "train" not in record["splits"]
    return replace(line, num_points=max(line.num_points, record["num_points"]), test_only=test_only)


def _barrier(points: list[PathPoint]) -> str:
    tested = [(alpha, error) for alpha, split, _, error in points if split == "test"]
    found = error_barrier([alpha for alpha, _ in tested], [error for _, error in tested])
    stable = "stable" if found["stable"] else "not stable"
    return f"the test-error barrier is {100 * found['barrier']:.2f} % ({stable})"


def _is_finite(dataset: Any, most: int) -> bool:
    import tensorflow as tf

    known = int(dataset.cardinality())
    if known != tf.data.UNKNOWN_CARDINALITY:
        return known != tf.data.INFINITE_CARDINALITY
    # One batch more than a training takes tells that it does not end with it.
    return int(dataset.take(most + 1).reduce(np.int64(0), lambda num, _: num + 1)) <= most
