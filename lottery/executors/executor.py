"""Where networks are trained: an executor, to which jobs are submitted."""

import queue
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple

from lottery import interrupts, progress
from lottery.errors import LotteryError
from lottery.runs.store import NetworkId


class Job(NamedTuple):
    """A network to train, and the folder of its run."""

    run: Path
    network: NetworkId

    def __str__(self) -> str:
        """Name the network in a sentence."""
        return str(self.network)


Train = Callable[[Job], None]
# Begins a worker: from where it reports events and where it sees whether to stop, makes the function that trains a job.
Initializer = Callable[[progress.OnEvent, interrupts.ShouldStop], Train]


class Lost(Exception):
    """The process that trained a network died; the network can start again from its last checkpoint."""


class Executor:
    """A place where networks are trained, as the executors of ``concurrent.futures``."""

    max_workers: int | None = 1  # jobs in training at the same time; None if the executor queues jobs itself

    def __init__(self) -> None:
        self.happened: queue.SimpleQueue = queue.SimpleQueue()  # events, and futures that are done

    def submit(self, job: Job) -> Future:
        """Train a network: the result is False if it was stopped, with a checkpoint; the error may be `Lost`."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Ask every network in training to stop; its future still completes."""

    def reduce(self) -> bool:
        """Train fewer networks at the same time, perhaps for lack of memory; return False if that cannot be."""
        return False

    def next(self, timeout: float) -> progress.Event | Future | None:
        """Return what happened next: an event, or a future that is done; None if nothing does in so many seconds."""
        try:
            return self.happened.get(timeout=timeout)
        except queue.Empty:
            return None


class LocalExecutor(Executor):
    """Trains in this process, one network after the other; `train` may raise `interrupts.Stopped`."""

    def __init__(self, train: Train):
        super().__init__()
        self._train = train

    def submit(self, job: Job) -> Future:
        """Train a network, and return when it is trained."""
        future: Future = Future()
        try:
            self._train(job)
            future.set_result(True)
        except LotteryError as error:
            future.set_exception(error)
        return future


def complete(future: Future, trained: bool, error: BaseException | None = None) -> None:
    """Give a future its result or error, unless it has one: a process may die just after it reported."""
    if future.done():
        return
    if error is None:
        future.set_result(trained)
    else:
        future.set_exception(error)


def pickled(initializer: Initializer) -> bytes:
    """Pickle an initializer for other processes, or raise `LotteryError`."""
    import cloudpickle

    try:
        return cloudpickle.dumps(initializer)
    except Exception as error:  # whatever a user's own object raises
        raise LotteryError(
            f"What was passed cannot be sent to another process ({error}); pass functions that make it there."
        ) from error
