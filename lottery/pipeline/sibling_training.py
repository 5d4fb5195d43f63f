"""Siblings are trained from the dense network of a run at some step, which is trained again if it is not stored."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lottery import masks, progress, weights
from lottery.data import Streams
from lottery.errors import LotteryError
from lottery.pipeline import network_training
from lottery.pipeline.network_training import Training, Watch
from lottery.pipeline.prepared import Prepared
from lottery.pipeline.session import Session
from lottery.runs import siblings, store
from lottery.runs.siblings import ORDERS, Siblings
from lottery.runs.store import NetworkId
from lottery.runs.stored import StoredRound
from lottery.training.records import Span


def store_states(session: Session, prepared: Prepared, wanted: Sequence[Siblings]) -> None:
    """Store the states that siblings start from, where they are missing, by training dense networks again."""
    run = wanted[0].run
    on_event = network_training.while_there(run, session.on_event)
    training = Training(siblings.folder(run), prepared, on_event, session.every, session.should_stop)
    for own in _by_replicate(wanted):
        if _missing_steps(own):
            _store_states(training, own)
            check_networks(own)


def check_orders(prepared: Prepared) -> None:
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


def check_networks(wanted: Sequence[Siblings]) -> None:
    """Refuse stored siblings that are damaged or not of the round as it is now, once their state is stored."""
    for pair in wanted:
        if not pair.state_file.exists():
            continue
        for order in ORDERS:
            network = pair.network(order)
            if network.run != pair.run and order not in pair.missing():
                for why in siblings.wrong_network(pair.run, pair.experiment, network.folder):
                    raise LotteryError(f"{str(network.folder)!r}: {why} Delete it to train it again.")


def _by_replicate(wanted: Sequence[Siblings]) -> list[list[Siblings]]:
    return [list(group) for _, group in itertools.groupby(wanted, lambda pair: pair.replicate)]


def _missing_steps(own: Sequence[Siblings]) -> list[int]:
    return sorted({pair.step for pair in own if not pair.state_file.exists()})


def spans_of(wanted: Sequence[Siblings]) -> dict[progress.Key, tuple[int, int]]:
    """Give the first and last step of each network to train: dense networks up to the last missing step, siblings."""
    spans: dict[progress.Key, tuple[int, int]] = {}
    for own in _by_replicate(wanted):
        if missing := _missing_steps(own):
            spans[siblings.folder(own[0].run), own[0].replicate, 0, f"to_step_{missing[-1]}"] = 0, missing[-1]
    for pair in wanted:
        for order in pair.missing():
            key = (siblings.folder(pair.run), pair.replicate, pair.round, pair.branch(order))
            spans[key] = pair.step, pair.experiment.train.num_steps
    return spans


def _store_states(training: Training, own: Sequence[Siblings]) -> None:
    """Train the dense network of a replicate again, as far as the last step that is not stored."""
    replicate, last = own[0].replicate, _missing_steps(own)[-1]

    def keep(file: Path, state: dict[str, np.ndarray]) -> None:
        if not file.exists():
            store.write_state(file, state)

    initial = network_training.initial_state(dataclasses.replace(training, path=own[0].run), replicate)
    dense = masks.ones_like({name: initial[name] for name in training.prepared.trainer.masks})
    # Of all steps, stored or not, so that a checkpoint is of the same training.
    watch = {pair.step: functools.partial(keep, pair.state_file) for pair in own if 0 < pair.step <= last}
    network = NetworkId(replicate, 0, f"to_step_{last}")
    trained = network_training.train_network(training, network, initial, dense, Span(0, last), Watch(watch))
    store.clear_checkpoints(store.round_path(training.path, *network))
    # A state that was stored before the checkpoint was removed after it.
    if _missing_steps(own):
        _store_states(training, own)
    before = {row[0]: row[2] for row in StoredRound(own[0].run, replicate, 0).metrics if row[1] == "validation"}
    again = {row[0]: row[2] for row in trained.metrics if row[1] == "validation"}
    if other := [step for step, loss in again.items() if before.get(step, loss) != loss]:
        training.note(
            f"Replicate {replicate}: training the dense network again gave different bits (see the validation loss at "
            f"step {other[0]}): the processor or a version differs."
        )


def train_sibling(training: Training, pair: Siblings, order: int) -> None:
    """Train a sibling, whose state is stored, and store it in the folder of siblings."""
    replicate, step = pair.replicate, pair.step
    state = pair.state()
    digest = weights.fingerprint(state)
    for folder in siblings.networks_from(pair.run, replicate, step):
        # A state that was stored anew elsewhere has other bits, and its siblings would not be siblings of these.
        if store.read_record(folder)["step_sha256"] != digest:
            raise LotteryError(
                f"{str(folder)!r} did not start from the weights of step {step} of replicate {replicate}."
            )
    kept = pair.pruned.masks
    network = NetworkId(replicate, pair.round, pair.branch(order))
    start = masks.apply(pair.start(order, state), kept, pair.pruned.held_at)
    words = siblings.seed_words(pair.experiment, replicate, order)
    trained = network_training.train_network(training, network, start, kept, Span(step), words=words)
    last = pair.experiment.train.num_steps
    about = {"order": order, "first_step": step, "last_step": last, "step_sha256": digest}
    network_training.store_network(training, network, trained, {**about, "thresholds": dict.fromkeys(kept)})
