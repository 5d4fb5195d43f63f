"""Networks trained as soon as what they need is stored: in this process, in several, or on a cluster."""

import contextlib
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

from lottery import interrupts, progress
from lottery.errors import LotteryError, StorageError
from lottery.runs import store
from lottery.runs.store import NetworkId

LOSSES = 3  # in a row, of one network without progress in between, until it counts as failed


class Task(NamedTuple):
    """A network to train, and the folder of its run."""

    run: Path
    network: NetworkId


# Makes the function that trains one network, from where to report events and where to see if it should stop.
MakeTrain = Callable[[progress.OnEvent, interrupts.ShouldStop], Callable[[Task], None]]


class Lost(Exception):
    """The process that trained a network died; the network can start again from its last checkpoint."""


@dataclass(frozen=True)
class Executor:
    """A place where networks are trained."""

    submit: Callable[[Task], Future]  # True if trained, False if stopped, with a checkpoint; its error may be `Lost`
    stop: Callable[[], None] = lambda: None  # asks every network in training to stop; its future still completes
    slots: Callable[[], int | None] = lambda: 1  # to train at the same time; None if the engine queues networks itself
    fewer: Callable[[], bool] = lambda: False  # reduces the slots, perhaps for lack of memory; True if it could
    happened: Any = field(default_factory=queue.SimpleQueue)  # events, and futures that are done


def needs(task: Task) -> list[Task]:
    """The network that must be stored before: of the previous round, or of the round that a branch starts from."""
    replicate, number, branch = task.network
    before = number - 1 if branch == store.TICKET else number
    return [Task(task.run, NetworkId(replicate, before))] if before >= 0 else []


def by_priority(tasks: Sequence[Task]) -> list[Task]:
    """Order networks so that slots fill: run by run, for opening another takes seconds; rounds first, then branches."""
    place = {run: number for number, run in enumerate(dict.fromkeys(task.run for task in tasks))}
    return sorted(tasks, key=lambda task: (place[task.run], task.network[2] != store.TICKET, task.network[1]))


def launch(
    tasks: Sequence[Task],
    executor: Executor,
    on_event: progress.OnEvent = progress.silent,
    should_stop: interrupts.ShouldStop = interrupts.never,
    more_needs: Mapping[Task, Sequence[Task]] | None = None,
) -> None:
    """Train networks, in the order of `tasks`, each as soon as those in `needs` and `more_needs` are stored.

    A network that fails does not stop the others, except those that need it. A network that is lost starts again from
    its last checkpoint; after `LOSSES` times without progress it has failed.

    Raises:
        Stopped: `should_stop` returned a signal; every network in training has a checkpoint.
        StorageError: Something cannot be written, so everything was stopped.
        LotteryError: Networks failed. All others that do not need them are trained.
    """
    place, more = {task: number for number, task in enumerate(tasks)}, more_needs or {}
    graph = {task: [need for need in (*needs(task), *more.get(task, ())) if need in place] for task in tasks}
    order = TopologicalSorter(graph)
    order.prepare()
    ready: list[Task] = []
    running: dict[Future, Task] = {}
    trained: set[Task] = set()
    failed: dict[Task, BaseException] = {}
    losses: dict[Task, tuple[int, Any]] = {}
    stopped = disk_fails = False
    while True:
        if not stopped and (should_stop() or disk_fails):
            stopped = True
            executor.stop()
        ready = sorted([*ready, *order.get_ready()], key=lambda task: place[task])
        while ready and not stopped and ((slots := executor.slots()) is None or len(running) < slots):
            task = ready.pop(0)
            future = executor.submit(task)
            running[future] = task
            future.add_done_callback(executor.happened.put)
        if not running:
            break
        try:
            event = executor.happened.get(timeout=0.2)
        except queue.Empty:
            continue
        if not isinstance(event, Future):
            on_event(event)
            continue
        task, error = running.pop(event), event.exception()
        if isinstance(error, Lost) and not stopped:
            error = _after_loss(task, error, losses, executor, on_event)
        if error is None and event.result():
            trained.add(task)
            order.done(task)
        elif error is None or isinstance(error, Lost):  # it was stopped alone, or lost
            ready.append(task)
        else:
            failed[task] = error
            disk_fails = disk_fails or isinstance(error, StorageError)
            if len(tasks) > 1 and not disk_fails:
                on_event(progress.Note(f"{_sentence(task, error)} The others continue."))
    _raise(graph, trained, failed, should_stop())


def _after_loss(
    task: Task, error: Lost, losses: dict[Task, tuple[int, Any]], executor: Executor, on_event: progress.OnEvent
) -> Lost | LotteryError:
    """Count a loss; the error is another after too many without progress."""
    checkpoints = []
    with contextlib.suppress(OSError):
        found = store.round_path(task.run, *task.network).glob("checkpoint*")
        checkpoints = sorted((path.name, path.stat().st_mtime_ns) for path in found)
    times, before = losses.get(task, (0, checkpoints))
    times = times + 1 if before == checkpoints else 1
    losses[task] = times, checkpoints
    if times >= LOSSES:
        why = f"{error} {LOSSES} times without any progress; there may be too little memory for it."
        return LotteryError(f"{named(task)}: {why}")
    fewer = " From now on one network trains at a time." if times > 1 and executor.fewer() else ""
    on_event(progress.Note(f"{named(task)}: {error}; it starts again from its last checkpoint.{fewer}"))
    return error


def _raise(
    graph: Mapping[Task, Sequence[Task]], trained: set[Task], failed: Mapping[Task, BaseException], signal: int
) -> None:
    untrainable = set(failed)
    for task in TopologicalSorter(graph).static_order():
        if any(need in untrainable for need in graph[task]):
            untrainable.add(task)
    for error in failed.values():
        if isinstance(error, StorageError) or len(untrainable) == 1:
            raise error
    if signal and len(trained) + len(untrainable) < len(graph):
        raise interrupts.Stopped(signal)
    others = len(untrainable) - 1
    for task, error in failed.items():
        more = f"{others} other network{'s' if others > 1 else ''} could not be trained either; all others are stored."
        raise LotteryError(f"{_sentence(task, error)} {more}") from error


def _sentence(task: Task, error: BaseException) -> str:
    text = str(error) if isinstance(error, LotteryError) else f"{type(error).__name__}: {error}"
    text = text if text.startswith("Replicate ") else f"{named(task)}: {text}"
    return text if text.endswith(".") else f"{text}."


def named(task: Task) -> str:
    """Name a network in a sentence."""
    replicate, index, branch = task.network
    return f"Replicate {replicate}, round {index}" + ("" if branch == store.TICKET else f", branch {branch}")


def here(train: Callable[[Task], None]) -> Executor:
    """Train in this process, one network after the other; `train` may raise `interrupts.Stopped`."""

    def submit(task: Task) -> Future:
        future: Future = Future()
        try:
            train(task)
            future.set_result(True)
        except LotteryError as error:
            future.set_exception(error)
        return future

    return Executor(submit)


def settle(future: Future | None, result: bool, error: BaseException | None = None) -> None:
    """Complete a future, unless it is complete."""
    if future is not None and not future.done():
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


def packed(trainer: MakeTrain) -> bytes:
    """Pickle a trainer for another process, or raise `LotteryError`."""
    import cloudpickle

    try:
        return cloudpickle.dumps(trainer)
    except Exception as error:  # whatever a user's own object raises
        why = f"What was passed cannot be sent to another process ({error})"
        raise LotteryError(f"{why}; pass functions that make it there.") from error
