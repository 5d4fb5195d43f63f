"""Networks are submitted to an executor as soon as what they need is stored, whatever fails or is lost on the way."""

import contextlib
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

from lottery import interrupts, progress
from lottery.errors import LotteryError, StorageError
from lottery.formatting import counted
from lottery.runs import store
from lottery.runs.store import NetworkId

LOSSES = 3  # in a row, of one network without progress in between, until it counts as failed


class Job(NamedTuple):
    """A network to train, and the folder of its run."""

    run: Path
    network: NetworkId

    def __str__(self) -> str:
        """Name the network in a sentence."""
        return str(self.network)

    @property
    def is_stored(self) -> bool:
        """True if the network is complete."""
        return store.is_stored(self.run, *self.network)


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
            f"An object that was passed cannot be sent to another process ({error}); pass a function that makes the "
            "object there."
        ) from error


def needs(job: Job) -> list[Job]:
    """The network that must be stored before: of the previous round, or of the round that a branch starts from."""
    replicate, number, branch = job.network
    before = number - 1 if branch == store.TICKET else number
    return [Job(job.run, NetworkId(replicate, before))] if before >= 0 else []


def by_priority(jobs: Sequence[Job]) -> list[Job]:
    """Order networks so that all workers train: run by run, as opening one takes long; rounds first, then branches."""
    place = {run: number for number, run in enumerate(dict.fromkeys(job.run for job in jobs))}
    return sorted(jobs, key=lambda job: (place[job.run], job.network.branch != store.TICKET, job.network.round))


def launch(
    jobs: Sequence[Job],
    executor: Executor,
    on_event: progress.OnEvent = progress.silent,
    should_stop: interrupts.ShouldStop = interrupts.never,
    copies: Mapping[Job, Job] | None = None,
    copy: Callable[[Job], None] | None = None,
) -> None:
    """Train networks, in the order of `jobs`, each as soon as those that it needs are stored.

    A network that fails does not stop the others, except those that need it. A network that is lost starts again from
    its last checkpoint; after `LOSSES` times without progress it has failed. Those in `copies` are not trained: `copy`
    copies each from its original.

    Raises:
        Stopped: `should_stop` returned a signal; every network in training has a checkpoint.
        StorageError: Something cannot be written, so everything was stopped.
        LotteryError: Networks failed. All others that do not need them are trained.
    """
    launched = _Launch(jobs, executor, on_event, copies or {})
    # Copies are made in this process, which takes no time beside a training, and needs no model.
    copier = LocalExecutor(copy) if copy else executor
    stopped = False
    signal = 0
    while True:
        # Nothing new begins, but the networks in training still report, each when its checkpoint is written.
        signal = signal or should_stop()
        if not stopped and (signal or launched.disk_fails):
            stopped = True
            executor.cancel()
        while not stopped and (job := launched.next_job()):
            launched.submit(job, copier if job in launched.copies else executor)
        if not launched.running:
            break
        # Not for ever: a request to stop is looked for in between.
        event = executor.next(timeout=0.2)
        if isinstance(event, Future):
            launched.end(event, stopped)
        elif event is not None:
            on_event(event)
    launched.raise_failure(signal or should_stop())


class _Launch:
    """Which networks wait, which are in training, and which have failed."""

    def __init__(self, jobs: Sequence[Job], executor: Executor, on_event: progress.OnEvent, copies: Mapping[Job, Job]):
        self.executor, self.on_event, self.copies = executor, on_event, copies
        self.place = {job: number for number, job in enumerate(jobs)}
        self.graph: dict[Job, list[Job]] = {}
        for job in jobs:
            wanted = [*needs(job), copies[job]] if job in copies else needs(job)
            self.graph[job] = [need for need in wanted if need in self.place]
        self.order = TopologicalSorter(self.graph)
        self.order.prepare()
        self.ready: list[Job] = []
        self.running: dict[Future, Job] = {}
        self.num_trained = 0
        self.failed: dict[Job, BaseException] = {}
        self.losses: dict[Job, tuple[int, Any]] = {}  # how often in a row, and with which checkpoints
        self.disk_fails = False

    def next_job(self) -> Job | None:
        """Take the next network that can be trained now, if there is one and room for it."""
        # A network that was stopped or lost comes back, and keeps its place before later ones.
        self.ready = sorted([*self.ready, *self.order.get_ready()], key=lambda job: self.place[job])
        most = self.executor.max_workers
        if not self.ready or (most is not None and len(self.running) >= most):
            return None
        return self.ready.pop(0)

    def submit(self, job: Job, executor: Executor) -> None:
        future = executor.submit(job)
        self.running[future] = job
        # Called at once if the future is done, as that of a network that was trained in this process.
        future.add_done_callback(self.executor.happened.put)

    def end(self, future: Future, stopped: bool) -> None:
        """Note how a network ended: trained, failed, or to be trained again."""
        job = self.running.pop(future)
        error = future.exception()
        if isinstance(error, Lost) and not stopped:
            error = self._after_loss(job, error)
        if error is None and future.result():
            self.num_trained += 1
            self.order.done(job)
        elif error is None or isinstance(error, Lost):  # it was stopped alone, or lost
            self.ready.append(job)
        else:
            self.failed[job] = error
            self.disk_fails = self.disk_fails or isinstance(error, StorageError)
            # A single failure is raised in the end, and nobody needs to hear it twice.
            if len(self.place) > 1 and not self.disk_fails:
                self.on_event(progress.Note(f"{_sentence(job, error)} The others continue."))

    def raise_failure(self, signal: int) -> None:
        """Raise what kept networks from being trained, if anything did."""
        untrainable = set(self.failed)
        for job in TopologicalSorter(self.graph).static_order():
            if not untrainable.isdisjoint(self.graph[job]):
                untrainable.add(job)
        for error in self.failed.values():
            # An error of the disk is no matter of the one network that met it first.
            if isinstance(error, StorageError):
                raise error
        if signal and self.num_trained + len(untrainable) < len(self.graph):
            raise interrupts.Stopped(signal)
        if not self.failed:
            return
        job, error = next(iter(self.failed.items()))
        if len(untrainable) == 1:
            raise error
        others = counted(len(untrainable) - 1, "other network")
        sentence = f"{_sentence(job, error)} {others} could not be trained either; all others are stored."
        raise LotteryError(sentence) from error

    def _after_loss(self, job: Job, error: Lost) -> Lost | LotteryError:
        """Count a loss; the error is another after too many without progress."""
        checkpoints = []
        with contextlib.suppress(OSError):
            found = store.round_path(job.run, *job.network).glob("checkpoint*")
            checkpoints = sorted((path.name, path.stat().st_mtime_ns) for path in found)
        times, before = self.losses.get(job, (0, checkpoints))
        # A new checkpoint is progress, also if the process dies each time.
        times = times + 1 if before == checkpoints else 1
        self.losses[job] = times, checkpoints
        if times >= LOSSES:
            return LotteryError(f"{job}: {error} {LOSSES} times without any progress, perhaps for lack of memory.")
        note = f"{job}: {error}; it starts again from its last checkpoint."
        if times > 1 and self.executor.reduce():
            note += " From now on one network trains at a time."
        self.on_event(progress.Note(note))
        return error


def _sentence(job: Job, error: BaseException) -> str:
    text = str(error) if isinstance(error, LotteryError) else f"{type(error).__name__}: {error}"
    text = text if text.startswith("Replicate ") else f"{job}: {text}"
    return text if text.endswith(".") else f"{text}."
