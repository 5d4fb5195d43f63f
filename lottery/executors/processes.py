"""Networks trained in several processes of this machine."""

import contextlib
import logging
import os
import queue
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from lottery import files, progress, stopping
from lottery.errors import LotteryError
from lottery.executors.scheduler import Engine, Lost, Task, Trainer, packed, settle


@contextlib.contextmanager
def several(trainer: Trainer, num: int) -> Iterator[Engine]:
    """Train in processes of their own, which end with this one, however it ends.

    One that dies takes the others with it, and with the next network all are started anew.

    Args:
        trainer: Makes, in each process, what trains one network there.
        num: How many processes.

    Yields:
        What `scheduler.launch` needs.
    """
    key = secrets.token_bytes(32)
    files.temporary_folder()  # processes find one another there
    with Listener(authkey=key) as listener:
        pool = _Pool(listener, key, packed(trainer), num)
        threading.Thread(target=pool.accept, daemon=True).start()
        try:
            yield Engine(pool.submit, pool.stop, lambda: pool.num, pool.fewer, pool.happened)
        finally:
            pool.close()


@dataclass
class _Pool:
    """Processes, and a connection to each: what happens comes over it, and its end is the end of the process."""

    listener: Listener
    key: bytes
    trainer: bytes
    num: int
    happened: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)
    futures: dict[Task, Future] = field(default_factory=dict)
    connections: list[Connection] = field(default_factory=list)
    executor: Any = None
    stopping: bool = False
    closed: bool = False

    def accept(self) -> None:
        while True:
            try:
                connection = self.listener.accept()
            except Exception:  # a process that was killed before it had said who it is
                if self.closed:
                    return
                time.sleep(0.01)
                continue
            if self.closed:
                return
            self.connections.append(connection)
            if self.stopping:
                _tell(connection)
            threading.Thread(target=self.read, args=(connection,), daemon=True).start()

    def read(self, connection: Connection) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                received = connection.recv()
                if isinstance(received, Task):  # everything about this network was said
                    settle(self.futures.pop(received, None), True)
                else:
                    self.happened.put(received)

    def submit(self, task: Task) -> Future:
        import loky

        executor = self.executor
        if executor is None:
            # A process takes all memory of a GPU unless it is told not to.
            growth = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "true")
            with _quiet_tracker():
                self.executor = executor = loky.ProcessPoolExecutor(
                    self.num,
                    initializer=_begin,
                    initargs=(self.listener.address, self.key, self.trainer),
                    # Nor does it leak memory where it opens the model and data of another run.
                    env={"TF_FORCE_GPU_ALLOW_GROWTH": growth, "LOKY_MAX_MEMORY_LEAK_SIZE": "1e15"},
                )
        future: Future = Future()
        self.futures[task] = future

        def ended(inner: Future) -> None:
            error = inner.exception()
            if isinstance(error, loky.process_executor.BrokenProcessPool):
                if self.executor is executor:
                    self.executor = None
                killed = " (killed, perhaps for lack of memory)" if "SIGKILL" in str(error) else ""
                error = Lost(f"the process that trained it has died{killed}")
            if error is not None or not inner.result():
                settle(self.futures.pop(task, None), False, error)

        try:
            executor.submit(_train, task).add_done_callback(ended)
        except loky.process_executor.BrokenProcessPool:
            self.executor = None
            return self.submit(task)
        return future

    def stop(self) -> None:
        self.stopping = True
        for connection in self.connections:
            _tell(connection)

    def fewer(self) -> bool:
        self.num, before = 1, self.num  # whichever it was, the others must not die with it again
        return before > 1

    def close(self) -> None:
        self.closed = True
        if self.executor is not None:
            self.executor.shutdown(wait=True, kill_workers=True)
        with contextlib.suppress(Exception):
            Client(self.listener.address, authkey=self.key).close()  # lets go the thread that waits for one
        for connection in self.connections:
            connection.close()


@contextlib.contextmanager
def _quiet_tracker() -> Iterator[None]:
    """Start what clears away behind processes that were killed so that it does it without a warning."""
    before = os.environ.get("PYTHONWARNINGS")
    ours = "ignore::UserWarning:loky.backend.resource_tracker"
    os.environ["PYTHONWARNINGS"] = f"{before},{ours}" if before else ours
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = before


def _tell(connection: Connection) -> None:
    with contextlib.suppress(OSError):
        connection.send("stop")


@dataclass
class _Worker:
    """What one of the processes is to itself."""

    connection: Connection
    train: Callable[[Task], None] | None = None
    told: bool = False  # by who has started it, and for good
    signal: int = 0

    def asked(self) -> int:
        return signal.SIGTERM if self.told else self.signal

    def listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while self.connection.recv():
                self.told = True
        os._exit(1)  # who has started this process is no more


_WORKER: list[_Worker] = []


def _begin(address: Any, key: bytes, trainer: bytes) -> None:
    """The first thing that happens in a process."""
    import cloudpickle

    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # a process trains networks of several runs, each traced
    # Ctrl-C in a terminal goes to every process; who has started this one says when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        worker = _Worker(Client(address, authkey=key))
    except (OSError, EOFError):  # who has started this process is no more
        os._exit(1)
    _WORKER.append(worker)
    threading.Thread(target=worker.listen, daemon=True).start()

    def note(number: int, frame: Any) -> None:
        worker.signal = number

    signal.signal(signal.SIGTERM, note)
    worker.train = cloudpickle.loads(trainer)(progress.throttled(worker.connection.send), worker.asked)


def _train(task: Task) -> bool:
    """Train one network in this process; False if it was stopped."""
    worker = _WORKER[0]
    assert worker.train
    try:
        worker.train(task)
    except stopping.Stopped:
        worker.signal = 0  # whoever has sent one has what they wanted
        return False
    except LotteryError:
        raise
    except Exception as error:  # it may be of a kind that cannot be sent
        raise LotteryError(f"{type(error).__name__}: {error}") from None
    worker.connection.send(task)
    return True
