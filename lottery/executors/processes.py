"""Networks trained in several processes of this machine.

Each process has a connection of its own to the one that started it. A queue of a ``multiprocessing`` manager would be
less code, but its server is one more process, which goes on for ever when the process that started it is killed, and
without which no worker can report. A connection ends with either of its processes, and the other one knows.
"""

import contextlib
import functools
import logging
import os
import secrets
import signal
import threading
import time
from concurrent.futures import Future
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from lottery import files, interrupts, progress
from lottery.errors import LotteryError
from lottery.executors.scheduler import Executor, Initializer, Job, Lost, Train, complete, pickled


class ProcessExecutor(Executor):
    """Trains in several processes, which end with this one; if one dies, all do, until the next job."""

    def __init__(self, initializer: Initializer, max_workers: int):
        super().__init__()
        self.max_workers = max_workers
        self._initializer = pickled(initializer)
        self._pool: Any = None  # of loky; another after a process has died
        self._futures: dict[Job, Future] = {}
        self._connections: list[Connection] = []
        self._cancelled = self._closed = False
        # What comes by a connection is unpickled, which can run code, so only processes with this key can connect.
        self._key = secrets.token_bytes(32)
        # The socket is there, and its path may be too long for the system.
        with files.readable_errors(files.temporary_folder()):
            self._listener = Listener(authkey=self._key)
        threading.Thread(target=self._accept, daemon=True).start()

    def submit(self, job: Job) -> Future:
        """Train a network in the next process that is free."""
        from loky.process_executor import BrokenProcessPool

        pool = self._pool = self._pool or self._started()
        # Not the pool's own, which is done before the last events have come by the connection.
        future = self._futures[job] = Future()

        def end(inner: Future) -> None:
            error = inner.exception()
            if isinstance(error, BrokenProcessPool):
                # Each network of a broken pool comes here, and the first may have another pool begun by now.
                if self._pool is pool:
                    self._pool = None
                killed = " (killed, perhaps for lack of memory)" if "SIGKILL" in str(error) else ""
                error = Lost(f"the process that trained it died{killed}")
            # That it is trained comes by the connection, behind all its events; see `_read`.
            if error is not None or not inner.result():
                self._complete(job, False, error)

        try:
            pool.submit(_train, job).add_done_callback(end)
        except BrokenProcessPool:  # since the last network was submitted
            self._pool = None
            return self.submit(job)
        return future

    def cancel(self) -> None:
        """Ask every process to stop, those that connect later, too."""
        self._cancelled = True
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.send("stop")

    def reduce(self) -> bool:
        """Train one network at a time: processes must not take each other down again."""
        if self.max_workers == 1:
            return False
        self.max_workers = 1
        return True

    def shutdown(self) -> None:
        """End all processes."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=True, kill_workers=True)
        with contextlib.suppress(Exception):
            # The thread that accepts would wait for a connection for ever.
            Client(self._listener.address, authkey=self._key).close()
        self._listener.close()
        for connection in self._connections:
            connection.close()

    def _started(self) -> Any:
        import loky

        env = {
            # Without this a process takes all memory of a GPU.
            "TF_FORCE_GPU_ALLOW_GROWTH": os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "true"),
            # Opening the model and data of another run is not a memory leak.
            "LOKY_MAX_MEMORY_LEAK_SIZE": "1e15",
        }
        begin = (self._listener.address, self._key, self._initializer)
        # loky's tracker, which is started here, would warn where it cleans up after killed processes.
        before = os.environ.get("PYTHONWARNINGS", "")
        os.environ["PYTHONWARNINGS"] = f"{before},ignore::UserWarning:loky.backend.resource_tracker".lstrip(",")
        try:
            return loky.ProcessPoolExecutor(self.max_workers, initializer=_begin, initargs=begin, env=env)
        except OSError as error:  # where nothing can be shared, as in a container without /dev/shm
            raise LotteryError(f"Several processes cannot be started: {error.strerror}; use one worker.") from None
        finally:
            os.environ["PYTHONWARNINGS"] = before

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except Exception:  # a process that was killed while it connected
                time.sleep(0.01)
                continue
            self._connections.append(connection)
            # It may have begun after all others were asked to stop.
            if self._cancelled:
                self.cancel()
            threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: Connection) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                received = connection.recv()
                if isinstance(received, Job):  # trained; all its events came before
                    self._complete(received, True)
                else:
                    self.happened.put(received)

    def _complete(self, job: Job, trained: bool, error: BaseException | None = None) -> None:
        future = self._futures.pop(job, None)
        if future is not None:
            complete(future, trained, error)


# In the processes.


class _Worker:
    """A process that trains: its connection to the one that started it, and whether it should stop."""

    def __init__(self, connection: Connection, initializer: bytes):
        self.connection, self.initializer = connection, initializer
        self.cancelled = False  # by that process, for good
        self.signal = 0  # stops the network in training alone

    @functools.cached_property
    def train(self) -> Train:
        # Not when the process begins: what cannot be loaded here would end it, as if it had been killed.
        import cloudpickle

        return cloudpickle.loads(self.initializer)(progress.throttled(self.connection.send), self.should_stop)

    def should_stop(self) -> int:
        return signal.SIGTERM if self.cancelled else self.signal

    def listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while self.connection.recv():  # there is one message only: to stop
                self.cancelled = True
        # The process that started it is gone; an exception would end this thread alone.
        os._exit(1)


_WORKER: list[_Worker] = []


def _begin(address: Any, key: bytes, initializer: bytes) -> None:
    # It warns of retracing, where every run only has functions of its own model.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    # Ctrl-C in a terminal goes to every process; the process that started this one decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        worker = _Worker(Client(address, authkey=key), initializer)
    except (OSError, EOFError):  # the process that started this one is gone
        os._exit(1)
    _WORKER.append(worker)
    threading.Thread(target=worker.listen, daemon=True).start()

    def handle(number: int, frame: Any) -> None:
        worker.signal = number

    signal.signal(signal.SIGTERM, handle)


def _train(job: Job) -> bool:
    """Train one network in this process; return False if it was stopped."""
    (worker,) = _WORKER
    try:
        worker.train(job)
    except interrupts.Stopped:
        worker.signal = 0  # a signal stops one network
        return False
    except LotteryError:
        raise
    except Exception as error:  # its class may not be picklable
        raise LotteryError(f"{type(error).__name__}: {error}") from None
    # By the way of its events, or the network could be complete before its last event is heard.
    worker.connection.send(job)
    return True
