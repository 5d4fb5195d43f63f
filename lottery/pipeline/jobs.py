"""What a replicate's networks share: the job they are part of, what they start from, training one, storing it."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lottery import config, files, masks, progress, randomness, stopping, weights
from lottery.errors import LotteryError, StorageError
from lottery.masks import Masks
from lottery.models.library import reason
from lottery.pipeline.preparing import Prepared, build_model, scoring_network
from lottery.pruning import branches, plan
from lottery.runs import store
from lottery.training import checkpoints, trainer

State = Mapping[str, np.ndarray]


Network = tuple[int, int, str]  # replicate, round, branch


@dataclass(frozen=True)
class Job:
    """What the networks of a run are trained with, in one process.

    Attributes:
        path: The run's folder.
        prepared: What they are trained with.
        report: Told what happens.
        spans: From which step to which a network is trained, where its branch does not say so.
        every: How often a network in training is checkpointed.
        asked: Whether somebody has asked to stop.
        states: Steps of the dense network at which other runs of a sweep need its state.
        initial: By replicate, every variable at step 0, once it was seen that the model is built with them.
    """

    path: Path
    prepared: Prepared
    report: progress.Report
    spans: Mapping[Network, tuple[int, int]] = field(default_factory=dict)
    every: checkpoints.Every = field(default_factory=checkpoints.Every)
    asked: stopping.Asked = stopping.never
    states: tuple[int, ...] = ()
    initial: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)


def while_there(run: Path, report: progress.Report) -> progress.Report:
    """A report that raises `StorageError` once the folder of a run is gone: nothing must be stored in a new one."""

    def told(event: progress.Event) -> None:
        store.check_there(run)
        report(event)

    return told


def initial_state(job: Job, replicate: int) -> dict[str, np.ndarray]:
    """Every variable at step 0, stored before the first round."""
    if replicate in job.initial:
        return job.initial[replicate]
    seed = randomness.seed_for(job.prepared.experiment.run.seed, replicate, randomness.INITIALISATION)
    start, file = built_state(job, seed), store.start_path(job.path, replicate)
    if not file.exists():
        files.write(file, files.pack_arrays(start))
    stored = files.read_arrays(file)
    if weights.fingerprint(stored) != weights.fingerprint(start):
        raise LotteryError(
            f"The model is built with other initial weights than those in {str(file)!r}, so this run cannot go on: "
            "the file was changed, or the model, or a version of what it is built with."
        )
    job.initial[replicate] = start
    return start


def start_state(job: Job, replicate: int) -> dict[str, np.ndarray]:
    """Every variable at the rewind step."""
    return files.read_arrays(store.start_path(job.path, replicate, job.prepared.experiment.rewind.step))


def built_state(job: Job, seed: int) -> dict[str, np.ndarray]:
    """Every variable of a model that is built from a seed."""
    return weights.read_state(build_model(job.prepared.build, seed))


def scores_of(job: Job, replicate: int, index: int, trained: State, kept: Masks) -> dict[str, np.ndarray]:
    """What the experiment's criterion says of the weights that round `index` is about to prune."""
    experiment = job.prepared.experiment
    initial = files.read_arrays(store.start_path(job.path, replicate))
    network = None
    if not plan.is_repeatable(experiment.prune):
        network = scoring_network(job.prepared, replicate)
        weights.assign(network.model, start_state(job, replicate))
    seed = experiment.run.seed
    inputs = plan.criterion_inputs(experiment.prune, seed, replicate, index, initial, trained, kept, network)
    return job.prepared.criterion(inputs)


def train_network(
    job: Job,
    network: Network,
    start: State,
    kept: Masks,
    first_step: int,
    last_step: int | None = None,
    words: tuple[int, ...] | None = None,
    stage: str = "",
    memory: dict[str, np.ndarray] | None = None,
    **options: Any,
) -> trainer.Trained:
    """Train one network, or go on from its checkpoint; `trainer.train` says what the other options are.

    It ends at `last_step` if one is given, and sees the batches in the run's own order unless `words` decide another.
    What is trained for a network before the network itself is a stage of it, with a checkpoint of its own. `memory`
    are arrays that belong to the options' ``watch``; see `checkpoints.Checkpointer`.
    """
    experiment, replicate = job.prepared.experiment, network[0]
    settings = experiment.train
    if last_step is not None:
        settings = settings.model_copy(update={"num_steps": last_step})

    def report(step: int, accuracy: float) -> None:
        job.report(_where(job, network, kept, step, accuracy))

    begun = False

    def measured(row: trainer.Row) -> None:
        nonlocal begun
        job.report(progress.Measured(job.path, *network, row, not begun))
        begun = True

    keeper = checkpoints.Checkpointer(
        store.checkpoint_path(store.round_path(job.path, *network), stage), job.every, job.asked,
        lambda text: job.report(progress.Note(text)), {} if memory is None else memory,
    )  # fmt: skip
    with _told(job, network):
        seed = words or (experiment.run.seed, replicate, randomness.BATCHES)
        return trainer.train(
            job.prepared.loop, start, kept, settings, seed, report, first_step, measured=measured, keeper=keeper,
            **options,
        )  # fmt: skip


@contextlib.contextmanager
def _told(job: Job, network: Network) -> Iterator[None]:
    """Say which network it was that could not be trained."""
    import tensorflow as tf

    try:
        yield
    except StorageError:  # it is of the disk, and says so
        raise
    except (LotteryError, MemoryError, tf.errors.OpError) as error:
        what = f"There is not enough memory: {error}." if isinstance(error, MemoryError) else error
        what = f"TensorFlow stopped: {reason(error)}." if isinstance(error, tf.errors.OpError) else what
        replicate, index, branch = network
        name = "" if branch == store.TICKET else f", branch {branch}"
        raise LotteryError(
            f"Replicate {replicate}, round {index}{name}: {what} What was trained before is kept in {str(job.path)!r}."
        ) from error


def store_network(
    job: Job, network: Network, kept: Masks, trained: trainer.Trained, details: Mapping[str, Any]
) -> trainer.Trained:
    """Store what was trained, with what is known of it, and say so; what was trained is given back."""
    (replicate, index, branch), counts = network, masks.num_kept(kept)
    record = {
        "replicate": replicate, "branch": branch, "round": index,
        "density": masks.density(kept), "num_kept": sum(counts.values()),
        "num_weights": sum(mask.size for mask in kept.values()), "kept": counts,
        "collapsed": [name for name, count in counts.items() if not count],
        **trained.summary,
        "start_sha256": trained.start_sha256, "jit_compile": job.prepared.loop.jit_compile,
        "seconds": round(trained.seconds, 3), **details,
    }  # fmt: skip
    folder = store.round_path(job.path, *network)
    record = store.write_round(folder, kept, trained.weights, trained.metrics, record)
    store.clear_checkpoints(folder)
    last = job.prepared.experiment.train.num_steps
    job.report(progress.Done(_where(job, network, kept, last, record["final_val_accuracy"]), record))
    return trained


def _where(job: Job, network: Network, kept: Masks, step: int, accuracy: float) -> progress.Step:
    experiment, (replicate, index, branch) = job.prepared.experiment, network
    first, last = job.spans.get(network) or span(experiment, index, branch)
    return progress.Step(
        job.path, replicate, experiment.run.num_replicates, index, experiment.prune.num_rounds, branch,
        masks.density(kept), step, first, last, accuracy,
    )  # fmt: skip


def span(experiment: config.Experiment, index: int, branch: str) -> tuple[int, int]:
    """From which step to which a network is trained, about; what rewinds late takes fewer."""
    last = experiment.train.num_steps
    known = branches.find(branch)
    starts = known.starts if known else "rewind"
    if starts == "end":
        return last, last
    return experiment.rewind.step if index and starts == "rewind" else 0, last
