"""What trains networks of a run, whichever process it is in: from plain data, and the caller's own functions."""

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lottery import (
    branches,
    checkpoints,
    config,
    costs,
    criteria,
    enforcement,
    environment,
    jobs,
    launching,
    positions,
    processes,
    progress,
    replicates,
    stopping,
    store,
    weights,
)
from lottery.errors import LotteryError
from lottery.preparing import Prepared, prepare

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
    """

    path: Path
    settings: config.Experiment
    num_threads: int
    data_sha256: str
    model: Callable[[], Any] | None = None
    data: Any = None
    criterion: criteria.Criterion | None = None
    branch: branches.Branch | None = None
    details: Mapping[str, Any] | None = None
    every: checkpoints.Every = field(default_factory=checkpoints.Every)


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

    def train(self, task: launching.Task) -> None:
        """Train one network of a run, unless it is stored.

        Raises:
            Stopped: Somebody has asked to stop; there is a checkpoint.
            LotteryError: It cannot be trained.
        """
        work, (replicate, index, label) = self.works[task.run], task.network
        store.check_there(task.run)
        if store.is_stored(task.run, *task.network):
            return
        if label == store.TICKET:
            replicates.train_chain(self._job(work), replicate, index)
        else:
            branch = work.branch or branches.BRANCHES[label]
            replicates.train_branch(self._job(work), task.network, branch, work.details)

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
            loop, stack = ready.loop, contextlib.ExitStack()
            mode = enforcement.ENFORCEMENTS[work.settings.run.enforcement]
            loop.callbacks.extend(stack.enter_context(mode(loop.model, loop.masks)))
            report = jobs.while_there(work.path, self.report)
            self._open[work.path] = jobs.Job(work.path, ready, report, every=work.every, asked=self.asked), stack
        self._open[work.path] = self._open.pop(work.path)  # the one that was used last is the last to go
        return self._open[work.path][0]


def _prepared(work: Work) -> Prepared:
    """What a run needs, loaded and built again, once it is seen that it still is what the run was begun with."""
    ready = prepare(work.settings, work.model, work.data, work.criterion)
    if ready.data.fingerprint != work.data_sha256 or ready.experiment != work.settings:
        raise LotteryError(
            f"The data, the model or the criterion of {str(work.path)!r} were changed while it is trained; restore "
            "them, or start a new run."
        )
    return ready


def trainer(
    works: Mapping[Path, Work], report: progress.Report, asked: stopping.Asked
) -> Callable[[launching.Task], None]:
    """What trains one network in the process that it is called in; see `launching.Trainer`."""
    return Bench(works, report, asked).train


def check_workers(workers: int | None) -> None:
    """Raise `LotteryError` unless it is a number of processes, or None."""
    if workers is not None and workers < 1:
        raise LotteryError(f"workers: received {workers}, allowed is 1 or more.")


def num_workers(
    workers: int | None, work: Work, tasks: Sequence[launching.Task], prepared: Prepared, report: progress.Report
) -> int:
    """In how many processes the networks of a run are trained, which is said where it is more than this one.

    Args:
        workers: What the caller asks for, if anything.
        work: What is to be done.
        tasks: The networks.
        prepared: The run's model and data.
        report: Told it.
    """
    cores, threads = environment.num_cores(), work.num_threads
    chosen = ""
    if workers is None:
        model = prepared.loop.model
        sizes = {name: math.prod(value.shape) for name, value in weights.prunable(model).items()}
        macs = costs.multiply_adds(sizes, positions.uses(model))
        spans = [jobs.span(work.settings, *task.network[1:]) for task in tasks]
        workers = environment.workers_for(threads, spans, macs, work.settings.train.batch_size)
        chosen = "; --workers says otherwise"
    workers = max(1, min(workers, len(tasks)))
    if workers > 1:
        each = f"{workers} networks are trained at the same time, on {threads} thread{'s' if threads > 1 else ''} each"
        report(progress.Note(f"{each}, of {cores} cores{chosen}."))
    return workers


def carry_out(
    works: Mapping[Path, Work],
    tasks: Sequence[launching.Task],
    workers: int = 1,
    prepared: Mapping[Path, Prepared] | None = None,
    report: progress.Report = progress.silent,
    asked: stopping.Asked = stopping.never,
) -> None:
    """Train networks.

    Args:
        works: What is to be done, by the folder of a run.
        tasks: The networks, by priority.
        workers: In how many processes; 1 is this one.
        prepared: What is prepared in this process already, by the folder of a run.
        report: Told what happens.
        asked: Whether somebody has asked to stop.

    Raises:
        Stopped: Somebody has asked to stop; everything that was in training has a checkpoint.
        LotteryError: Something could not be trained; `launching.launch` says when.
    """
    spans = {(run, *network): jobs.span(works[run].settings, *network[1:]) for run, network in tasks}
    report = progress.tallied(report, spans)
    with contextlib.ExitStack() as stack:
        if workers > 1:
            engine, tasks = (
                stack.enter_context(processes.several(functools.partial(trainer, works), workers)),
                launching.by_priority(tasks),
            )
        else:
            bench = Bench(works, report, asked, dict(prepared or {}))
            stack.callback(bench.close)
            engine = launching.here(bench.train)
        launching.launch(tasks, engine, report, asked)
