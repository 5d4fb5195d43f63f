"""Networks trained as soon as what they need is stored: in this process, in several, or on a cluster."""

import contextlib
import os
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lottery import progress, stopping
from lottery.errors import LotteryError, StorageError
from lottery.runs import store

Network = tuple[int, int, str]  # replicate, round, branch


_IN_VAIN = LotteryError("What it needs could not be trained.")


LOSSES = 3  # in a row, of one network that came no further in between


class Task(NamedTuple):
    """A network to train: the folder of its run, and which it is."""

    run: Path
    network: Network


# Makes what trains one network: from what is told of all that happens, and whether somebody has asked to stop.
Trainer = Callable[[progress.Report, stopping.Asked], Callable[[Task], None]]


class Lost(Exception):
    """What trained a network has died, however; the network can be gone on with."""


@dataclass(frozen=True)
class Engine:
    """What trains networks.

    Attributes:
        submit: Begins to train one and returns a future at once, or when it is trained. The future's result says
            whether it was trained; if not, it was stopped, with a checkpoint. `Lost` may be its exception.
        stop: Asks everything that is in training to stop; its futures still come to an end.
        slots: How many networks may be in training at once; None where the engine has a queue of its own.
        fewer: Told that something was lost, so that there may be too little memory for so many at once; returns
            whether there will be fewer.
        happened: What happens in training, as events; and futures that are done.
    """

    submit: Callable[[Task], Future]
    stop: Callable[[], None] = lambda: None
    slots: Callable[[], int | None] = lambda: 1
    fewer: Callable[[], bool] = lambda: False
    happened: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)


def needs(task: Task) -> list[Task]:
    """What must be stored before a network can be trained: the round before, or the round that it is a branch of."""
    replicate, index, branch = task.network
    before = (replicate, index, store.TICKET) if branch != store.TICKET else (replicate, index - 1, store.TICKET)
    return [Task(task.run, before)] if before[1] >= 0 else []


def by_priority(tasks: Sequence[Task]) -> list[Task]:
    """The order in which networks fill the most slots: of each run first the rounds, which wait for one another, all
    replicates alike; then what can be trained at any time. Run by run, for it takes seconds to begin with another."""
    place = {run: number for number, run in enumerate(dict.fromkeys(task.run for task in tasks))}
    return sorted(tasks, key=lambda one: (place[one.run], one.network[2] != store.TICKET, one.network[1]))


def launch(
    tasks: Sequence[Task],
    engine: Engine,
    report: progress.Report = progress.silent,
    asked: stopping.Asked = stopping.never,
    more_needs: Mapping[Task, Sequence[Task]] | None = None,
) -> None:
    """Train networks, each as soon as what it needs is there.

    One that fails does not stop the others, except those that need it. One that is lost, with whatever trained it, is
    begun again, and goes on from its checkpoint; if that happens `LOSSES` times without any progress, it has failed.

    Args:
        tasks: What is to be trained, by priority.
        engine: What trains.
        report: Told what happens.
        asked: Whether somebody has asked to stop.
        more_needs: What some of them need besides `needs`.

    Raises:
        Stopped: Somebody has asked to stop; everything that was in training has a checkpoint.
        StorageError: Something cannot be written, so everything was stopped.
        LotteryError: One or more have failed. Everything else is trained.
    """
    waiting, running = dict.fromkeys(tasks), {}
    failed: dict[Task, BaseException] = {}
    lost: dict[Task, tuple[int, Any]] = {}
    stopped, num_trained = False, 0
    required = {task: [*needs(task), *(more_needs or {}).get(task, ())] for task in tasks}
    while waiting or running:
        if (asked() or _is_hopeless(failed)) and not stopped:
            stopped = True
            waiting.clear()
            engine.stop()
        while vain := [task for task in waiting if any(one in failed for one in required[task])]:
            for task in vain:
                del waiting[task]
                failed[task] = _IN_VAIN
        for task in list(waiting):
            slots = engine.slots()
            if slots is not None and len(running) >= slots:
                break
            if not any(one in waiting or one in running.values() for one in required[task]):
                del waiting[task]
                future = engine.submit(task)
                running[future] = task
                future.add_done_callback(engine.happened.put)
        if not running:
            continue
        try:
            event = engine.happened.get(timeout=0.2)
        except queue.Empty:
            continue
        if not isinstance(event, Future):
            report(event)
            continue
        task = running.pop(event)
        error = event.exception()
        if isinstance(error, Lost) and not stopped:
            error = _again(task, error, lost, engine, report)
            if error is None:
                waiting = dict.fromkeys([task, *waiting])
        elif error is None and event.result():
            num_trained += 1
        elif error is None and not stopped:  # somebody has stopped just this one
            waiting = dict.fromkeys([task, *waiting])
        if error is not None and not isinstance(error, Lost):
            failed[task] = error
            if len(tasks) > 1 and not _is_hopeless(failed):
                report(progress.Note(f"{_reason(task, error)} The others go on."))
    _raise(failed, asked() if num_trained + len(failed) < len(tasks) else 0)


def _again(
    task: Task, error: Lost, lost: dict[Task, tuple[int, Any]], engine: Engine, report: progress.Report
) -> LotteryError | None:
    """What follows from a loss: nothing but another attempt, or that there is no point in it."""
    stands = _stands(task)
    times = lost[task][0] + 1 if task in lost and lost[task][1] == stands else 1
    lost[task] = times, stands
    if times >= LOSSES:
        return LotteryError(
            f"{named(task)}: {error} {LOSSES} times without any progress; there may be too little memory for it."
        )
    less = " From now on there is one network at a time." if times > 1 and engine.fewer() else ""
    report(progress.Note(f"{named(task)}: {error}; it is begun again where it stood.{less}"))
    return None


def _stands(task: Task) -> Any:
    """How far a network has come on the disk; another value as soon as it is farther."""
    folder = store.round_path(task.run, *task.network)
    with contextlib.suppress(OSError):
        return sorted((path.name, path.stat().st_mtime_ns) for path in folder.glob("checkpoint*"))
    return []


def _is_hopeless(failed: Mapping[Task, BaseException]) -> bool:
    """Whether what failed one will fail all."""
    return any(isinstance(error, StorageError) for error in failed.values())


def _raise(failed: Mapping[Task, BaseException], signal: int) -> None:
    errors = {task: error for task, error in failed.items() if error is not _IN_VAIN}
    for error in errors.values():
        if isinstance(error, StorageError) or len(failed) == 1:
            raise error
    if signal:
        raise stopping.Stopped(signal)
    if errors:
        task, error = next(iter(errors.items()))
        others = len(failed) - 1
        raise LotteryError(
            f"{_reason(task, error)} {others} other network{'s' if others > 1 else ''} could not be trained either; "
            "all others are stored."
        ) from error


def _reason(task: Task, error: BaseException) -> str:
    """What a failure says, and of which network."""
    said = str(error) if isinstance(error, LotteryError) else f"{type(error).__name__}: {error}"
    said = said if said.startswith("Replicate ") else f"{named(task)}: {said}"
    return said if said.endswith(".") else f"{said}."


def named(task: Task) -> str:
    """What a network is called in a sentence."""
    replicate, index, branch = task.network
    return f"Replicate {replicate}, round {index}" + ("" if branch == store.TICKET else f", branch {branch}")


def here(train: Callable[[Task], None]) -> Engine:
    """Train in this process, one network after the other.

    Args:
        train: Trains one, and may raise `stopping.Stopped`.

    Returns:
        What `launch` needs.
    """

    def submit(task: Task) -> Future:
        future: Future = Future()
        try:
            train(task)
            future.set_result(True)
        except LotteryError as error:
            future.set_exception(error)
        return future

    return Engine(submit)


def settle(future: Future | None, result: bool, error: BaseException | None = None) -> None:
    """Let a future be done, unless it is."""
    if future is None or future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def packed(trainer: Callable[..., Any]) -> bytes:
    """A trainer as bytes, for another process.

    Raises:
        LotteryError: Something in it cannot be sent.
    """
    import cloudpickle

    try:
        return cloudpickle.dumps(trainer)
    except Exception as error:  # whatever an object of the caller's own raises
        raise LotteryError(
            f"What was passed cannot be sent to another process ({error}); pass functions that make it there."
        ) from error


def num_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
