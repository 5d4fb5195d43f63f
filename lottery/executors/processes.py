"""Networks trained in several processes of this machine."""

import contextlib
import logging
import os
import queue
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from lottery import files, interrupts, progress
from lottery.errors import LotteryError
from lottery.executors.scheduler import Executor, Lost, MakeTrain, Task, packed, settle


@contextlib.contextmanager
def several(trainer: MakeTrain, num: int) -> Iterator[Executor]:
    """Give an engine of several processes; if one dies, all do, until the next network. They end with this process."""
    key = secrets.token_bytes(32)
    files.temporary_folder()  # where the sockets are
    with Listener(authkey=key) as listener:
        pool = _Pool(listener, key, packed(trainer), num)
        threading.Thread(target=pool.accept, daemon=True).start()
        try:
            yield Executor(pool.submit, pool.stop, lambda: pool.num, pool.fewer, pool.happened)
        finally:
            pool.close()


@dataclass
class _Pool:
    """Processes, and a connection to each: events arrive over it, and when it ends, both processes know."""

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
        while not self.closed:
            try:
                connection = self.listener.accept()
            except Exception:  # a process that was killed while it connected
                time.sleep(0.01)
                continue
            self.connections.append(connection)
            if self.stopping:
                self.stop()
            threading.Thread(target=self.read, args=(connection,), daemon=True).start()

    def read(self, connection: Connection) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                received = connection.recv()
                if isinstance(received, Task):  # trained; all its events came before
                    settle(self.futures.pop(received, None), True)
                else:
                    self.happened.put(received)

    def submit(self, task: Task) -> Future:
        import loky

        executor = self.executor or self.start()
        future: Future = Future()
        self.futures[task] = future

        def ended(inner: Future) -> None:
            error = inner.exception()
            if isinstance(error, loky.process_executor.BrokenProcessPool):
                if self.executor is executor:
                    self.executor = None
                killed = " (killed, perhaps for lack of memory)" if "SIGKILL" in str(error) else ""
                error = Lost(f"the process that trained it died{killed}")
            if error is not None or not inner.result():
                settle(self.futures.pop(task, None), False, error)

        try:
            executor.submit(_train, task).add_done_callback(ended)
        except loky.process_executor.BrokenProcessPool:
            self.executor = None
            return self.submit(task)
        return future

    def start(self) -> Any:
        import loky

        # Without this a process takes all memory of a GPU.
        growth = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        # Opening the model and data of another run is no memory leak.
        env = {"TF_FORCE_GPU_ALLOW_GROWTH": growth, "LOKY_MAX_MEMORY_LEAK_SIZE": "1e15"}
        begin = (self.listener.address, self.key, self.trainer)
        # loky's tracker, which is started here, would warn where it cleans up after killed processes.
        before = os.environ.get("PYTHONWARNINGS", "")
        os.environ["PYTHONWARNINGS"] = f"{before},ignore::UserWarning:loky.backend.resource_tracker".lstrip(",")
        try:
            self.executor = loky.ProcessPoolExecutor(self.num, initializer=_begin, initargs=begin, env=env)
        finally:
            os.environ["PYTHONWARNINGS"] = before
        return self.executor

    def stop(self) -> None:
        self.stopping = True
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.send("stop")

    def fewer(self) -> bool:
        self.num, before = 1, self.num  # processes must not take each other down again
        return before > 1

    def close(self) -> None:
        self.closed = True
        if self.executor is not None:
            self.executor.shutdown(wait=True, kill_workers=True)
        with contextlib.suppress(Exception):
            Client(self.listener.address, authkey=self.key).close()  # releases the thread that accepts
        for connection in self.connections:
            connection.close()


@dataclass
class _Worker:
    """The state of one of the processes."""

    connection: Connection  # to the process that started it
    train: Any = None
    stopped: bool = False  # by that process, for good
    signal: int = 0  # stops the network in training alone

    def should_stop(self) -> int:
        return signal.SIGTERM if self.stopped else self.signal

    def listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while self.connection.recv():
                self.stopped = True
        os._exit(1)  # the process that started it is gone


_WORKER: list[_Worker] = []


def _begin(address: Any, key: bytes, trainer: bytes) -> None:
    import cloudpickle

    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # it warns of retracing, for each run's model
    # Ctrl-C in a terminal goes to every process; the process that started this one decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        worker = _Worker(Client(address, authkey=key))
    except (OSError, EOFError):  # the process that started this one is gone
        os._exit(1)
    _WORKER.append(worker)
    threading.Thread(target=worker.listen, daemon=True).start()

    def handle(number: int, frame: Any) -> None:
        worker.signal = number

    signal.signal(signal.SIGTERM, handle)
    worker.train = cloudpickle.loads(trainer)(progress.throttled(worker.connection.send), worker.should_stop)


def _train(task: Task) -> bool:
    """Train one network in this process; return False if it was stopped."""
    worker = _WORKER[0]
    try:
        worker.train(task)
    except interrupts.Stopped:
        worker.signal = 0  # a signal stops one network
        return False
    except LotteryError:
        raise
    except Exception as error:  # its class may not be picklable
        raise LotteryError(f"{type(error).__name__}: {error}") from None
    worker.connection.send(task)
    return True
