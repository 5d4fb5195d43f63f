"""One network of a run: trained under its masks from its start weights, and stored with its record."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lottery import config, files, interrupts, masks, progress, weights
from lottery.errors import LotteryError, StorageError
from lottery.masks import Masks, Weights
from lottery.models.kerases import reason, tf
from lottery.pipeline import building
from lottery.pipeline.prepared import Prepared
from lottery.pruning import branches, plan
from lottery.runs import store
from lottery.runs.store import NetworkId
from lottery.training.checkpoints import Checkpointer, CheckpointInterval
from lottery.training.records import MetricsRow, Span, Trained


@dataclass(frozen=True)
class Training:
    """The training of a run's networks in this process."""

    path: Path  # the run's folder
    prepared: Prepared
    on_event: progress.OnEvent
    every: CheckpointInterval = field(default_factory=CheckpointInterval)
    should_stop: interrupts.ShouldStop = interrupts.never
    states: tuple[int, ...] = ()  # steps of the dense network at which other runs of a sweep need its state
    stage: str = ""  # the name of a training that comes before a network's own, for a checkpoint of its own
    elsewhere: Sequence[str] = ()  # what this process may round otherwise by than the one that began the run

    @property
    def experiment(self) -> config.Experiment:
        """The experiment of the run."""
        return self.prepared.experiment

    def note(self, sentence: str) -> None:
        """Report a sentence for the person who watches."""
        self.on_event(progress.Note(sentence))

    @functools.cached_property
    def dense_gradients(self) -> Callable[[int, int, Weights], dict[str, np.ndarray]]:
        """Of the dense network, traced once; see `building.dense_gradients`."""
        return building.dense_gradients(self.prepared)


@dataclass(frozen=True)
class Watch:
    """Functions that see a network while it trains."""

    at: Mapping[int, Callable[[dict[str, np.ndarray]], None]]  # by step, called with every variable after it
    memory: dict[str, np.ndarray] = field(default_factory=dict)  # arrays that they write, a part of every checkpoint


def train_network(
    training: Training,
    network: NetworkId,
    start: Weights,
    kept: Masks,
    span: Span = Span(),
    watch: Watch | None = None,
    words: tuple[int, ...] | None = None,
) -> Trained:
    """Train one network from `start`, or resume; seed `words` of the batches' order are by default the replicate's.

    Raises `StorageError` if a checkpoint cannot be written, and `LotteryError` if the network cannot be trained.
    """
    watch = watch or Watch({})
    # The same for all rounds and branches of a replicate, so that the order of the data is none of their differences.
    words = words or building.words_of_batches(training.experiment, network.replicate)
    last_step = training.experiment.train.num_steps if span.last_step is None else span.last_step
    # The next row: a training that resumes reports earlier rows again, and the first says so.
    is_first = True

    def on_step(step: int, accuracy: float, row: MetricsRow | None) -> None:
        nonlocal is_first
        if row is None:
            training.on_event(_step(training, network, kept, step, accuracy, (span.first_step, last_step)))
        else:
            training.on_event(progress.Evaluated(training.path, *network, row, first=is_first))
            is_first = False

    file = store.checkpoint_path(store.round_path(training.path, *network), training.stage)
    checkpointer = Checkpointer(file, training.every, training.should_stop, training.note, watch.memory)
    with _errors_that_name(network, training.path):
        return training.prepared.trainer.train(start, kept, words, span, watch.at, on_step, checkpointer)


def store_network(training: Training, network: NetworkId, trained: Trained, details: Mapping[str, Any]) -> None:
    """Store a trained network with its record, and report it."""
    kept, counts = trained.kept, masks.num_kept(trained.kept)
    record = {
        "replicate": network.replicate,
        "branch": network.branch,
        "round": network.round,
        "density": masks.density(kept),
        "num_kept": sum(counts.values()),
        "num_weights": sum(mask.size for mask in kept.values()),
        "kept": counts,
        "collapsed": [name for name, count in counts.items() if not count],
        **trained.summary,
        "start_sha256": trained.start_sha256,
        "jit_compile": training.prepared.trainer.loop.jit_compile,
        **trained.engine,
        "seconds": round(trained.seconds, 3),
        **details,
    }
    if training.elsewhere:
        record["elsewhere"] = list(training.elsewhere)
    folder = store.round_path(training.path, *network)
    others = {
        store.EARLY_STOP: trained.early_stop,
        store.BUDGET: trained.budget,
        store.PREDICTIONS: trained.predictions,
    }
    record = store.write_round(folder, kept, trained.weights, trained.metrics, record, others)
    # After the record: until that is whole, a checkpoint is all there is.
    store.clear_checkpoints(folder)
    first, last = steps_of(training.experiment, network)
    where = _step(training, network, kept, last, record["final_val_accuracy"], (first, last))
    training.on_event(progress.Done(where, record))


def dense_loss_step(training: Training, network: NetworkId, trained: Trained) -> int | None:
    """Find the first evaluated step with at most the lowest validation loss of the dense network; None without one.

    Steps before the last change of the masks do not count: the network was another then.
    """
    branch = branches.find(network.branch)
    if branch is not None and branch.other_data:  # its losses are of other examples
        return None
    lowest = trained.summary["early_stop_val_loss"]
    # The dense network itself is not stored yet.
    if network.round or network.branch != store.TICKET:
        dense = store.read_record(store.round_path(training.path, network.replicate, 0))
        lowest = dense["early_stop_val_loss"]
    settled = max((step for step, *_ in trained.changes), default=0)
    losses = {step: loss for step, split, loss, _ in trained.metrics if split == "validation" and step >= settled}
    return min((step for step, loss in losses.items() if loss <= lowest), default=None)


def initial_state(training: Training, replicate: int) -> dict[str, np.ndarray]:
    """Return every variable at step 0, which is stored before the first round, and compared with the file after."""
    start = building.initial_state(training.prepared, replicate)
    file = store.start_path(training.path, replicate)
    if not file.exists():
        files.write(file, files.pack_arrays(start))
    # Also what was written just now is read back, so that no round starts from a file that nobody can read.
    if weights.fingerprint(files.read_arrays(file)) != weights.fingerprint(start):
        raise LotteryError(
            f"The model's initial weights differ from those in {str(file)!r}, so this run cannot continue: the "
            "file, the model, or the version of a library has changed."
        )
    return start


def while_there(run: Path, on_event: progress.OnEvent) -> progress.OnEvent:
    """Report events; raise `StorageError` once the run's folder is gone."""

    def checked(event: progress.Event) -> None:
        # To store a network would make the folder anew, with a part of a run in it.
        store.check_there(run)
        on_event(event)

    return checked


def steps_of(experiment: config.Experiment, network: NetworkId) -> tuple[int, int]:
    """Estimate the first and the last step of a network's training before its branch says them."""
    branch = branches.find(network.branch)
    rewind_step, num_steps = experiment.rewind.step, experiment.train.num_steps
    first = {"initial": 0, "rewind": rewind_step if network.round else 0, "end": num_steps}
    if branch is None:
        return first["rewind"], num_steps
    last = plan.steps_to(experiment.prune, network.round, rewind_step, num_steps) if branch.is_long else num_steps
    return first[branch.starts], last


@contextlib.contextmanager
def _errors_that_name(network: NetworkId, run: Path) -> Iterator[None]:
    """Name a network in the error that ends its training."""
    try:
        yield
    except StorageError:  # it says itself that the disk is at fault
        raise
    except (LotteryError, MemoryError, tf.errors.OpError) as error:
        why = str(error)
        if isinstance(error, MemoryError):
            why = f"There is not enough memory: {error}."
        elif isinstance(error, tf.errors.OpError):
            why = f"TensorFlow stopped: {reason(error)}."
        raise LotteryError(f"{network}: {why} What was trained before is kept in {str(run)!r}.") from error


def _step(
    training: Training, network: NetworkId, kept: Masks, step: int, accuracy: float, steps: tuple[int, int]
) -> progress.Step:
    experiment = training.experiment
    return progress.Step(
        run=training.path,
        replicate=network.replicate,
        num_replicates=experiment.run.num_replicates,
        round=network.round,
        num_rounds=experiment.prune.num_rounds,
        branch=network.branch,
        density=masks.density(kept),
        step=step,
        first_step=steps[0],
        num_steps=steps[1],
        val_accuracy=accuracy,
    )
