"""One replicate of a run: its rounds, then its controls, each network stored as soon as it is trained."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lottery import (
    branches,
    compiling,
    files,
    masks,
    order,
    planning,
    progress,
    pruning,
    rewinding,
    rounds,
    scoring,
    store,
    training,
    weights,
)  # fmt: skip
from lottery.errors import LotteryError
from lottery.masks import Masks
from lottery.preparing import Prepared, build_model, ends_of_epochs, scoring_network

State = Mapping[str, np.ndarray]
Network = tuple[int, int, str]  # replicate, round, branch
EARLY_MASKS, EARLY_DISTANCE = 5, 0.1  # You et al. 2020, https://arxiv.org/abs/1909.11957, section 3.2


@dataclass(frozen=True)
class Job:
    """Networks to train in one go.

    Attributes:
        path: The run's folder.
        prepared: What they are trained with.
        networks: All of them, in order.
        report: Told what happens.
    """

    path: Path
    prepared: Prepared
    networks: list[Network]
    report: progress.Report


def train_chain(job: Job, replicate: int) -> None:
    """Train the rounds of a replicate that are not stored yet: the algorithm itself."""
    experiment, loop = job.prepared.experiment, job.prepared.loop
    initial = initial_state(job, replicate)
    prunable = {name: initial[name] for name in loop.masks}
    thresholds: dict[str, float | None] = dict.fromkeys(prunable)
    k = experiment.rewind.step

    def prune(index: int, trained: State, kept: Masks) -> Masks:
        nonlocal thresholds
        if not experiment.prune.iterative:  # each round is pruned in one shot, from the dense network
            trained = files.read_arrays(store.round_path(job.path, replicate, 0) / "weights.safetensors")
        scores = _scores(job, replicate, index, trained, kept)
        pruned = planning.round_masks(experiment.prune, index, scores, kept)
        thresholds = pruning.thresholds(scores, kept, pruned)
        return pruned

    def train(index: int, kept: Masks, before: State) -> training.Trained:
        network = (replicate, index, store.TICKET)
        if not index:
            saved: dict[str, np.ndarray] = {}
            trained = _trained(job, network, initial, kept, 0, watch={k: saved.update} if k else None)
            if k:
                files.write(_start_file(job.path, replicate), files.pack_arrays(saved))
            details = {"rewind_sha256": rewinding.fingerprint(saved)} if k else {}
        else:
            start = rewinding.rewound(experiment.rewind.mode, start_state(job, replicate), before, kept)
            at = rewinding.schedule_step(experiment, index)
            trained, details = _trained(job, network, start, kept, k, schedule_step=at), {}
        return _store(job, network, kept, trained, {"thresholds": thresholds, **details})

    for _ in rounds.find_ticket(prunable, train, prune, experiment.prune.num_rounds, _last(job.path, replicate)):
        pass


def train_branch(job: Job, network: Network, branch: branches.Branch, details: Mapping[str, Any] | None = None) -> None:
    """Train a branch from a stored round.

    Args:
        job: What it is part of.
        network: Replicate, round, and the branch's label.
        branch: What it keeps and changes.
        details: What its record says besides.
    """
    departure = branch(_origin(job, network))
    start, first, last = masks.apply(departure.start, departure.kept), departure.first_step, departure.last_step
    trained = _trained(job, network, start, departure.kept, first, last)
    none = dict.fromkeys(departure.kept)
    details = {
        "control": branch.__name__,
        "first_step": first,
        "last_step": last,
        "thresholds": none,
        **(details or {}),
    }
    _store(job, network, departure.kept, trained, details)


def initial_state(job: Job, replicate: int) -> dict[str, np.ndarray]:
    """Every variable at step 0, stored before the first round."""
    seed = order.seed_for(job.prepared.experiment.run.seed, replicate, order.INITIALISATION)
    start, file = _built_state(job, seed), job.path / f"replicate-{replicate}" / "initial.safetensors"
    if not file.exists():
        files.write(file, files.pack_arrays(start))
    stored = files.read_arrays(file)
    if rewinding.fingerprint(stored) != rewinding.fingerprint(start):
        raise LotteryError(
            f"The model is built with other initial weights than those in {str(file)!r}, so this run cannot go on: "
            "the file was changed, or the model, or a version of what it is built with."
        )
    return start


def start_state(job: Job, replicate: int) -> dict[str, np.ndarray]:
    """Every variable at the rewind step."""
    if not job.prepared.experiment.rewind.step:
        return files.read_arrays(job.path / f"replicate-{replicate}" / "initial.safetensors")
    return files.read_arrays(_start_file(job.path, replicate))


def _start_file(path: Path, replicate: int) -> Path:
    return path / f"replicate-{replicate}" / "start.safetensors"


def _built_state(job: Job, seed: int) -> dict[str, np.ndarray]:
    return weights.read_state(build_model(job.prepared.build, seed))


def _scores(job: Job, replicate: int, index: int, trained: State, kept: Masks) -> dict[str, np.ndarray]:
    """What the experiment's criterion says of the weights that round `index` is about to prune."""
    experiment = job.prepared.experiment
    initial = files.read_arrays(job.path / f"replicate-{replicate}" / "initial.safetensors")
    network = None
    if not scoring.is_repeatable(experiment):
        network = scoring_network(job.prepared, replicate)
        weights.assign(network.model, start_state(job, replicate))
    return job.prepared.criterion(scoring.evidence(experiment, replicate, index, initial, trained, kept, network))


def _trained(
    job: Job, network: Network, start: State, kept: Masks, first_step: int, last_step: int | None = None, **options: Any
) -> training.Trained:
    experiment, replicate = job.prepared.experiment, network[0]
    settings = experiment.train
    if last_step is not None:
        settings = settings.model_copy(update={"num_steps": last_step})

    def report(step: int, accuracy: float) -> None:
        job.report(_where(job, network, kept, step, accuracy))

    with _told(job, network):
        words = (experiment.run.seed, replicate, order.BATCHES)
        return training.train(job.prepared.loop, start, kept, settings, words, report, first_step=first_step, **options)


@contextlib.contextmanager
def _told(job: Job, network: Network) -> Iterator[None]:
    """Say which network it was that could not be trained."""
    import tensorflow as tf

    try:
        yield
    except (LotteryError, tf.errors.OpError) as error:
        what = error if isinstance(error, LotteryError) else f"TensorFlow stopped: {compiling.reason(error)}."
        replicate, index, branch = network
        name = "" if branch == store.TICKET else f", branch {branch}"
        raise LotteryError(
            f"Replicate {replicate}, round {index}{name}: {what} What was trained before is kept in {str(job.path)!r}."
        ) from error


def _store(
    job: Job, network: Network, kept: Masks, trained: training.Trained, details: Mapping[str, Any]
) -> training.Trained:
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
    last = job.prepared.experiment.train.num_steps
    job.report(progress.Done(_where(job, network, kept, last, record["final_val_accuracy"]), record))
    return trained


def _where(job: Job, network: Network, kept: Masks, step: int, accuracy: float) -> progress.Step:
    experiment, (replicate, index, branch) = job.prepared.experiment, network
    lengths = [_num_steps(job, one) for one in job.networks]
    place = job.networks.index(network)
    first = experiment.train.num_steps - lengths[place]
    done = sum(lengths[:place]) + max(0, min(step - first, lengths[place]))
    return progress.Step(
        replicate, experiment.run.num_replicates, index, experiment.prune.num_rounds, branch, masks.density(kept), step,
        experiment.train.num_steps, accuracy, done, sum(lengths),
    )  # fmt: skip


def _num_steps(job: Job, network: Network) -> int:
    """About how many steps a network takes; what rewinds late takes fewer."""
    experiment, (_, index, branch) = job.prepared.experiment, network
    if branch == "untrained":
        return 0
    late = index and branch not in ("random_reinit", "early_bird")
    return experiment.train.num_steps - (experiment.rewind.step if late else 0)


def _last(path: Path, replicate: int) -> tuple[int, Masks, dict[str, np.ndarray]] | None:
    """The last complete round, to go on from."""
    indices = store.complete_rounds(path, replicate)
    if not indices:
        return None
    folder = store.round_path(path, replicate, indices[-1])
    return (
        indices[-1],
        files.read_masks(folder / "masks.safetensors"),
        files.read_arrays(folder / "weights.safetensors"),
    )


def _origin(job: Job, network: Network) -> branches.Origin:
    experiment, (replicate, index, branch) = job.prepared.experiment, network
    seed = order.seed_for(experiment.run.seed, replicate, order.BRANCH, index, order.INITIALISATION)
    return branches.Origin(
        kept=files.read_masks(store.round_path(job.path, replicate, index) / "masks.safetensors"),
        start=start_state(job, replicate) if index else initial_state(job, replicate),
        step=experiment.rewind.step if index else 0,
        num_steps=experiment.train.num_steps,
        rng=branches.rng_for(experiment, replicate, index, branch),
        fresh=lambda: _built_state(job, seed),
        drawn_early=lambda: _drawn_early(job, network),
    )


class _Enough(Exception):
    """Ends a training run of which nothing more is needed."""


def _drawn_early(job: Job, network: Network) -> branches.Departure:
    """The masks of a round, drawn from the dense network as soon as they settle; see `branches.early_bird`."""
    experiment, (replicate, index, _) = job.prepared.experiment, network
    initial = initial_state(job, replicate)
    dense = masks.ones_like({name: initial[name] for name in job.prepared.loop.masks})
    drawn: list[Masks] = []
    farthest, departures = 1.0, []

    def look(step: int, state: dict[str, np.ndarray]) -> None:
        nonlocal farthest
        scores = _scores(job, replicate, index, state, dense)
        drawn.append(planning.round_masks(experiment.prune, index, scores, dense))
        del drawn[:-EARLY_MASKS]
        farthest = max(masks.distance(one, other) for one in drawn for other in drawn)
        if len(drawn) == EARLY_MASKS and farthest <= EARLY_DISTANCE:
            departures.append(branches.Departure(state, drawn[-1], step, experiment.train.num_steps))
            raise _Enough

    epochs = ends_of_epochs(job.prepared)
    watch = {step: (lambda state, at=step: look(at, state)) for step in epochs}
    with contextlib.suppress(_Enough):
        _trained(job, network, initial, dense, 0, watch=watch)
    if not departures:
        raise LotteryError(
            f"No early-bird ticket for round {index} of replicate {replicate}: in {len(epochs)} epochs the last "
            f"{EARLY_MASKS} masks still differ by up to {farthest:.3f}, allowed is {EARLY_DISTANCE}."
        )
    return departures[0]
