"""Train networks of runs: in this process, in several, or on a cluster."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import loky

from lottery import config, progress, weights
from lottery.executors import processes, ray, scheduler
from lottery.executors.executor import Executor, Job, LocalExecutor
from lottery.models import multiply_adds
from lottery.pipeline import network_training, shared_prefix, worker
from lottery.pipeline.prepared import Prepared
from lottery.pipeline.session import Session
from lottery.pipeline.worker import Recipe, Worker
from lottery.runs import store
from lottery.runs.store import NetworkId

# Roughly, the seconds of a step on one core, those of each multiplication in it, forward and backward, and the training
# that makes processes worth it, which start in some ten seconds.
SECONDS_OF_STEP, SECONDS_OF_MAC, WORTH = 1e-4, 3e-11, 20.0


def wanted(path: Path, experiment: config.Experiment) -> list[Job]:
    """List every network of a run, stored or not, in the order of training."""
    replicates = range(1, experiment.run.num_replicates + 1)
    return [Job(path, NetworkId(number, *place)) for number in replicates for place in store.wanted(experiment)]


def carry_out(
    recipes: Mapping[Path, Recipe],
    jobs: Sequence[Job],
    session: Session,
    prepared: Mapping[Path, Prepared] | None = None,
    copies: Mapping[Job, Job] | None = None,
) -> None:
    """Train networks, by priority; copy those in `copies` from their originals. See `scheduler.launch` for errors."""
    if not jobs:
        return
    copies = copies or {}
    to_train = [job for job in jobs if job not in copies]
    on_event = progress.tallied(session.on_event, _steps(recipes, to_train))
    session = dataclasses.replace(session, on_event=on_event)

    def copy(job: Job) -> None:
        original = copies[job]
        shared_prefix.copy_network(job, original, recipes[job.run].experiment)
        session.note(f"{job} of {job.run} is copied from {original.run}.")

    with contextlib.ExitStack() as stack:
        executor = _executor(stack, recipes, to_train or list(jobs), session, dict(prepared or {}))
        if executor.max_workers != 1:  # one after the other they are trained in the order in which they are listed
            jobs = scheduler.by_priority(jobs)
        scheduler.launch(jobs, executor, on_event, session.should_stop, copies, copy)


def _executor(
    stack: contextlib.ExitStack,
    recipes: Mapping[Path, Recipe],
    jobs: Sequence[Job],
    session: Session,
    prepared: dict[Path, Prepared],
) -> Executor:
    """Choose where networks are trained: on a cluster, in several processes, or in this one."""
    workers = session.execution.workers
    if isinstance(workers, ray.Ray):
        threads = {run: recipe.num_threads for run, recipe in recipes.items()}
        begin = functools.partial(worker.trainer, {run: _away(recipe) for run, recipe in recipes.items()})
        return stack.enter_context(ray.joined(workers, begin, threads, session.on_event))
    num = _num_workers(workers, recipes, jobs, session, prepared)
    if num > 1:
        return stack.enter_context(processes.ProcessExecutor(functools.partial(worker.trainer, recipes), num))
    own = Worker(recipes, session.on_event, session.should_stop, prepared)
    stack.callback(own.close)
    return LocalExecutor(own.train)


def _steps(recipes: Mapping[Path, Recipe], jobs: Sequence[Job]) -> dict[progress.Key, tuple[int, int]]:
    """Estimate the first and the last step of networks."""
    steps = {}
    for run, network in jobs:
        key = (run, network.replicate, network.round, network.branch)
        steps[key] = network_training.steps_of(recipes[run].experiment, network)
    return steps


def _num_workers(
    workers: int | None,
    recipes: Mapping[Path, Recipe],
    jobs: Sequence[Job],
    session: Session,
    prepared: Mapping[Path, Prepared],
) -> int:
    """Decide in how many processes to train on this machine, and report it if there are several."""
    threads, cores = max(recipe.num_threads for recipe in recipes.values()), loky.cpu_count()
    hint = ""
    if workers is None:
        workers = 1 if _trains_best_alone(recipes, jobs, prepared) else cores // threads
        hint = " (change with --workers)"
    workers = max(1, min(workers, len(jobs)))
    if workers > 1:
        each = "one thread" if threads == 1 else f"{threads} threads"
        session.note(f"Training {workers} networks in parallel, {each} each{hint}.")
    return workers


def _trains_best_alone(recipes: Mapping[Path, Recipe], jobs: Sequence[Job], prepared: Mapping[Path, Prepared]) -> bool:
    """Return True if one process has all devices, or would be done before others had started."""
    import tensorflow as tf

    # Processes would have to share a GPU; under a strategy, each network has all devices.
    if any(recipe.experiment.train.on_several_devices for recipe in recipes.values()):
        return True
    if tf.config.list_physical_devices("GPU"):
        return True
    if not prepared:
        return False
    model = next(iter(prepared.values())).trainer.model
    sizes = {name: math.prod(value.shape) for name, value in weights.prunable(model).items()}
    macs = multiply_adds.of_kept(sizes, multiply_adds.per_entry(model))
    if macs is None:
        return False
    batch_size = next(iter(recipes.values())).experiment.train.batch_size
    seconds_of_step = SECONDS_OF_STEP + macs * batch_size * SECONDS_OF_MAC
    num_steps = sum(last - first for first, last in _steps(recipes, jobs).values())
    return seconds_of_step * num_steps < WORTH


def _away(recipe: Recipe) -> Recipe:
    """Make a recipe for another machine, where relative paths begin elsewhere."""
    experiment = recipe.experiment
    if experiment.data.path:
        path = str(Path(experiment.data.path).absolute())
        experiment = config.with_values(experiment, "data", {"path": path})
    return dataclasses.replace(recipe, away=True, path=recipe.path.absolute(), experiment=experiment)
