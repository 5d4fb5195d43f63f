"""Train networks of runs: in this process, in several, or on a cluster."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import loky

from lottery import config, progress
from lottery.executors import processes, ray, scheduler
from lottery.executors.scheduler import Executor, Job, LocalExecutor
from lottery.models import multiply_adds
from lottery.pipeline import network_training
from lottery.pipeline.prepared import Prepared
from lottery.pipeline.session import Session
from lottery.pipeline.worker import Recipe, Worker
from lottery.runs import store
from lottery.runs.store import NetworkId

Spans = dict[progress.Key, tuple[int, int]]  # the first and the last step of networks to train

# Roughly, the seconds of a step on one core, those of each multiplication in it, forward and backward, and the training
# that makes processes worth it, which start in some ten seconds.
SECONDS_OF_STEP, SECONDS_OF_MAC, WORTH = 1e-4, 3e-11, 20.0


def wanted(experiments: Mapping[Path, config.Experiment]) -> list[Job]:
    """List every network of runs, stored or not, in the order of training."""
    return [
        Job(path, NetworkId(replicate, *place))
        for path, experiment in experiments.items()
        for replicate in range(1, experiment.run.num_replicates + 1)
        for place in store.wanted(experiment)
    ]


def carry_out(
    recipes: Mapping[Path, Recipe],
    jobs: Sequence[Job],
    session: Session,
    prepared: Mapping[Path, Prepared] | None = None,
    copies: Mapping[Job, Job] | None = None,
    copy: Callable[[Job], None] | None = None,
    spans: Spans | None = None,
) -> None:
    """Train networks, by priority; `copy` those in `copies` from their originals.

    `spans` are those of all networks that jobs train, where a job is not one round or branch; the session then counts
    their steps already. See `scheduler.launch` for errors.
    """
    if not jobs:
        return
    trained = [job for job in jobs if job not in (copies or {})]
    if spans is None:
        spans = {}
        for run, network in trained:
            spans[run, *network] = network_training.steps_of(recipes[run].experiment, network)
        session = dataclasses.replace(session, on_event=progress.tallied(session.on_event, spans))
    with contextlib.ExitStack() as stack:
        executor = _executor(stack, recipes, spans, most_at_once(trained), session, dict(prepared or {}))
        # A single worker trains them in the order in which they are listed.
        if executor.max_workers != 1:
            jobs = scheduler.by_priority(jobs)
        scheduler.launch(jobs, executor, session.on_event, session.should_stop, copies, copy)


def most_at_once(jobs: Sequence[Job]) -> int:
    """Count how many of the networks could train at the same time: the rounds of a replicate follow each other."""
    rounds = [job for job in jobs if job.network.branch == store.TICKET]
    chains = {(job.run, job.network.replicate) for job in rounds}
    return len(chains) + len(jobs) - len(rounds)


def _executor(
    stack: contextlib.ExitStack,
    recipes: Mapping[Path, Recipe],
    spans: Spans,
    most_at_once: int,
    session: Session,
    prepared: dict[Path, Prepared],
) -> Executor:
    """Choose where networks are trained: on a cluster, in several processes, or in this one."""
    workers = session.execution.workers
    threads = {run: store.read_environment(run)["num_threads"] for run in recipes}
    if isinstance(workers, ray.Ray):
        away = {run: _away(recipe) for run, recipe in recipes.items()}
        begin = functools.partial(Worker, away, every=session.every)
        return stack.enter_context(ray.joined(workers, begin, threads, session.on_event))
    most = max(threads.values())
    hint = ""
    if workers is None:
        workers = 1 if _trains_best_alone(recipes, spans, prepared) else loky.cpu_count() // most
        hint = " (change with --workers)"
    # A process more would open the model and the data for nothing.
    workers = min(workers, most_at_once)
    if workers > 1:
        each = "one thread" if most == 1 else f"{most} threads"
        session.note(f"Training {workers} networks in parallel, {each} each{hint}.")
        # Only recipes are sent: a process makes its own model, and loads its own data.
        executor = processes.ProcessExecutor(functools.partial(Worker, recipes, every=session.every), workers)
        stack.callback(executor.shutdown)
        return executor
    own = Worker(recipes, session.on_event, session.should_stop, session.every, prepared)
    stack.callback(own.close)
    return LocalExecutor(own)


def _trains_best_alone(recipes: Mapping[Path, Recipe], spans: Spans, prepared: Mapping[Path, Prepared]) -> bool:
    """Return True if one process has all devices, or would be done before others had started."""
    import tensorflow as tf

    # Processes would have to share a GPU; under a strategy, each network has all devices.
    has_all = any(recipe.experiment.train.on_several_devices for recipe in recipes.values())
    if has_all or tf.config.list_physical_devices("GPU"):
        return True
    for run, ready in prepared.items():  # the only run, unless it is a sweep, which prepares none
        macs = multiply_adds.of_dense(ready.trainer.model)
        if macs is not None:
            seconds_of_step = SECONDS_OF_STEP + macs * recipes[run].experiment.train.batch_size * SECONDS_OF_MAC
            num_steps = sum(last - first for first, last in spans.values())
            return seconds_of_step * num_steps < WORTH
    return False


def _away(recipe: Recipe) -> Recipe:
    """Make a recipe for another machine, where relative paths begin elsewhere."""
    experiment = recipe.experiment
    if experiment.data.path:
        path = str(Path(experiment.data.path).absolute())
        experiment = config.with_values(experiment, "data", {"path": path})
    return dataclasses.replace(recipe, away=True, path=recipe.path.absolute(), experiment=experiment)
