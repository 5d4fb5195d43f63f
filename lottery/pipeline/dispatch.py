"""What trains networks of a run, whichever process it is in: from plain data, and the caller's own functions."""

import contextlib
import dataclasses
import functools
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lottery import config, enforcement, progress, stopping, weights
from lottery.analysis import costs
from lottery.errors import LotteryError
from lottery.executors import cluster, processes, scheduler
from lottery.models import multiply_adds
from lottery.pipeline import environment, jobs, rounds, shared_prefix
from lottery.pipeline.preparing import Prepared, prepare
from lottery.pruning import branches, criteria
from lottery.runs import store
from lottery.training import checkpoints

MOST_OPEN = 3


@dataclass(frozen=True)
class Work:
    """What it takes to train networks of a run: never a live object, so that it can be sent to another process.

    Attributes:
        path: The run's folder.
        settings: The experiment; for a transfer, the one with the other data.
        num_threads: Threads that it is computed with.
        data_sha256: The digest of its data.
        model, data, criterion: What the caller passed, if anything.
        branch: What the branches are, if it is not one of `branches.BRANCHES`.
        details: What is recorded of branches besides.
        every: How often a network in training is checkpointed.
        states: Steps of the dense network at which other runs of a sweep need its state.
        away: Whether it is done in another place, where versions and the processor may differ.
    """

    path: Path
    settings: config.Experiment
    num_threads: int
    data_sha256: str
    model: Callable[[], Any] | None = None
    data: Any = None
    criterion: criteria.Criterion | None = None
    branch: branches.BranchFunction | None = None
    details: Mapping[str, Any] | None = None
    every: checkpoints.Every = field(default_factory=checkpoints.Every)
    states: tuple[int, ...] = ()
    away: bool = False


@dataclass
class Bench:
    """The runs whose model and data this process holds, ready to be trained.

    Attributes:
        works: What is to be done, by the folder of a run.
        report: Told what happens.
        asked: Whether somebody has asked to stop.
        prepared: What was prepared already, by the folder of a run.
    """

    works: Mapping[Path, Work]
    report: progress.Report
    asked: stopping.Asked
    prepared: dict[Path, Prepared] = field(default_factory=dict)
    _open: dict[Path, tuple[jobs.Job, contextlib.ExitStack]] = field(default_factory=dict)

    def train(self, task: scheduler.Task) -> None:
        """Train one network of a run, unless it is stored.

        Raises:
            Stopped: Somebody has asked to stop; there is a checkpoint.
            LotteryError: It cannot be trained.
        """
        work, (replicate, index, label) = self.works[task.run], task.network
        store.check_there(work.path)
        if store.is_stored(work.path, *task.network):
            return
        if label == store.TICKET:
            rounds.train_chain(self._job(work), replicate, index)
        else:
            branch = work.branch or branches.BRANCHES[label].function
            rounds.train_branch(self._job(work), task.network, branch, work.details)

    def close(self) -> None:
        """Hold no masks any more."""
        while self._open:
            self._open.popitem()[1][1].close()

    def _job(self, work: Work) -> jobs.Job:
        if work.path not in self._open:
            while len(self._open) >= MOST_OPEN:
                self._open.pop(next(iter(self._open)))[1].close()
            environment.use_threads(work.num_threads)
            ready = self.prepared.pop(work.path, None) or _prepared(work)
            environment.check_devices(work.path, ready.loop.model)
            for what in environment.differences(store.read_environment(work.path)) if work.away else ():
                self.report(progress.Note(f"{platform.node()} computes with {what}, so bits may differ."))
            loop, stack = ready.loop, contextlib.ExitStack()
            mode = enforcement.ENFORCEMENTS[work.settings.run.enforcement]
            loop.callbacks.extend(stack.enter_context(mode(loop.model, loop.masks)))
            report = jobs.while_there(work.path, self.report)
            job = jobs.Job(work.path, ready, report, every=work.every, asked=self.asked, states=work.states)
            self._open[work.path] = job, stack
        self._open[work.path] = self._open.pop(work.path)  # the one that was used last is the last to go
        return self._open[work.path][0]


def _prepared(work: Work) -> Prepared:
    """What a run needs, loaded and built again, once it is seen that it still is what the run was begun with."""
    ready = prepare(work.settings, work.model, work.data, work.criterion)
    if ready.data.fingerprint != work.data_sha256 or ready.experiment != work.settings:
        where = f" on {platform.node()}" if work.away else ""
        raise LotteryError(
            f"The data, the model or the criterion{where} are not those that {str(work.path)!r} was begun with; "
            "restore them, or start a new run."
        )
    return ready


def trainer(
    works: Mapping[Path, Work],
    report: progress.Report,
    asked: stopping.Asked,
    moved: Callable[[Path], Path] | None = None,
) -> Callable[[scheduler.Task], None]:
    """What trains one network in the process that it is called in; see `scheduler.Trainer` and `cluster.Trainer`."""
    if moved:
        works = {run: dataclasses.replace(work, path=moved(work.path)) for run, work in works.items()}
    return Bench(works, report, asked).train


def check_workers(workers: int | cluster.Ray | None) -> None:
    """Raise `LotteryError` unless it is a number of processes, a cluster, or None."""
    if isinstance(workers, cluster.Ray):
        workers.check()
    elif workers is not None and workers < 1:
        raise LotteryError(f"workers: received {workers}, allowed is 1 or more.")


def num_workers(
    workers: int | cluster.Ray | None,
    works: Mapping[Path, Work],
    tasks: Sequence[scheduler.Task],
    report: progress.Report,
    prepared: Prepared | None = None,
) -> int | cluster.Ray:
    """In how many processes networks are trained, which is said where it is more than this one.

    A cluster knows that better.

    Args:
        workers: What the caller asks for, if anything.
        works: What is to be done, by the folder of a run.
        tasks: The networks.
        report: Told it.
        prepared: Their model and data, if they have one; it tells whether processes pay.
    """
    if isinstance(workers, cluster.Ray):
        return workers
    cores, threads = scheduler.num_cores(), max(work.num_threads for work in works.values())
    chosen = ""
    if workers is None:
        macs, spans = None, [jobs.span(works[task.run].settings, *task.network[1:]) for task in tasks]
        if prepared:
            model = prepared.loop.model
            sizes = {name: math.prod(value.shape) for name, value in weights.prunable(model).items()}
            macs = costs.multiply_adds(sizes, multiply_adds.uses(model))
        settings = next(iter(works.values())).settings
        workers = environment.workers_for(threads, spans, macs, settings.train.batch_size)
        if any(work.settings.run.strategy != "none" for work in works.values()):
            workers = 1  # each network has all devices
        chosen = "; --workers says otherwise"
    workers = max(1, min(workers, len(tasks)))
    if workers > 1:
        each = f"{workers} networks are trained at the same time, on {threads} thread{'s' if threads > 1 else ''} each"
        report(progress.Note(f"{each}, of {cores} cores{chosen}."))
    return workers


def carry_out(
    works: Mapping[Path, Work],
    tasks: Sequence[scheduler.Task],
    workers: int | cluster.Ray = 1,
    prepared: Mapping[Path, Prepared] | None = None,
    report: progress.Report = progress.silent,
    asked: stopping.Asked = stopping.never,
    copies: Mapping[scheduler.Task, scheduler.Task] | None = None,
) -> None:
    """Train networks.

    Args:
        works: What is to be done, by the folder of a run.
        tasks: The networks, by priority.
        workers: In how many processes; 1 is this one. Or on which cluster.
        prepared: What is prepared in this process already, by the folder of a run.
        report: Told what happens.
        asked: Whether somebody has asked to stop.
        copies: Networks that are not trained but copied, each with the one that it is a copy of.

    Raises:
        Stopped: Somebody has asked to stop; everything that was in training has a checkpoint.
        LotteryError: Something could not be trained; `scheduler.launch` says when.
    """
    copies = copies or {}
    spans = {
        (run, *network): jobs.span(works[run].settings, *network[1:])
        for run, network in tasks
        if (run, network) not in copies
    }
    report = progress.tallied(report, spans)
    with contextlib.ExitStack() as stack:
        if not tasks:
            return
        if isinstance(workers, cluster.Ray):
            away = {run: _away(work) for run, work in works.items()}
            threads = {run: work.num_threads for run, work in works.items()}
            engine = stack.enter_context(cluster.joined(workers, functools.partial(trainer, away), threads, report))
            tasks = scheduler.by_priority(tasks)
        elif workers > 1:
            engine = stack.enter_context(processes.several(functools.partial(trainer, works), workers))
            tasks = scheduler.by_priority(tasks)
        else:
            bench = Bench(works, report, asked, dict(prepared or {}))
            stack.callback(bench.close)
            engine = scheduler.here(bench.train)
        if copies:
            engine = _copying(engine, works, copies)
        scheduler.launch(tasks, engine, report, asked, {task: [original] for task, original in copies.items()})


def _copying(
    engine: scheduler.Engine, works: Mapping[Path, Work], copies: Mapping[scheduler.Task, scheduler.Task]
) -> scheduler.Engine:
    """An engine that trains what is no copy."""

    def copy(task: scheduler.Task) -> None:
        shared_prefix.copy_network(task, copies[task], works[task.run].settings)
        engine.happened.put(progress.Note(f"{scheduler.named(task)} of {task.run} is that of {copies[task].run}."))

    copier = scheduler.here(copy)
    return dataclasses.replace(engine, submit=lambda one: (copier if one in copies else engine).submit(one))


def _away(work: Work) -> Work:
    """What is to be done in another place, which may have other data, and where other paths begin."""
    work = dataclasses.replace(work, away=True)
    if not work.settings.data.path:
        return work
    data = work.settings.data.model_copy(update={"path": str(Path(work.settings.data.path).absolute())})
    return dataclasses.replace(work, settings=work.settings.model_copy(update={"data": data}))
