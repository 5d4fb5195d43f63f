"""What trains networks on a node of a cluster: a process that is sent one after the other, and tells what happens."""

import contextlib
import dataclasses
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lottery import parcels, progress, stopping
from lottery.errors import LotteryError
from lottery.launching import Task

PAUSE = 0.5  # seconds between two times that a process says what has happened, and hears whether it is to stop
# Variables of the environment that decide what is computed, or where data are found.
SETTINGS = ("TF_", "XLA_", "KERAS_", "LOTTERY_")

# As `launching.Trainer`, and told where the folder of a run is.
Trainer = Callable[[progress.Report, stopping.Asked, Callable[[Path], Path]], Callable[[Task], None]]
Letter = progress.Event | parcels.Contents


class Errand(NamedTuple):
    """A network that a process is to train.

    Attributes:
        number: Which attempt of all it is.
        task: The network.
        base: Where relative paths begin.
        names: The files that it is trained from, below the run's folder.
        token: Name and content of a file there, by which one knows the folder; empty where nobody is to share it.
    """

    number: int
    task: Task
    base: Path
    names: list[str]
    token: tuple[str, str]


class Mailbox:
    """Where processes leave what happens, until it is taken."""

    def __init__(self) -> None:
        self.letters: list[tuple[int, list[Letter]]] = []
        self.stopping = False

    def put(self, number: int, letters: list[Letter], first: bool) -> bool:
        """Leave what has happened in an attempt; whether it is to stop."""
        if letters or first:
            self.letters.append((number, letters))
        return self.stopping

    def take(self) -> list[tuple[int, list[Letter]]]:
        """Everything since the last time, by attempt."""
        letters, self.letters = self.letters, []
        return letters

    def stop(self) -> None:
        """Whoever asks from now on is to stop."""
        self.stopping = True


@dataclass
class Worker:
    """What a process is to itself.

    Attributes:
        make: Makes what trains one network here.
        send: As `Mailbox.put`.
        place: Where the folders are of runs that this node does not share.
    """

    make: Trainer
    send: Callable[[int, list[Letter], bool], bool]
    place: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="lottery-")))
    signal: int = 0
    number: int = 0
    _letters: list[Letter] = field(default_factory=list)
    _mirror: parcels.Mirror | None = None
    _errand: Errand | None = None
    _trains: dict[bool, Callable[[Task], None]] = field(default_factory=dict)
    # All that is sent goes through one thread, so that it arrives in order; and a task's own thread must not wait for
    # Ray, which would give its processor to another in the meantime.
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._report = progress.throttled(self._collect)

    def carry_out(self, errand: Errand, fetch: Callable[[], parcels.Contents] | None) -> bool | None:
        """Train a network, in the run's folder if this node shares it, or in one of its own.

        Args:
            errand: Which.
            fetch: Gives the files that it is trained from, if somebody has sent them along.

        Returns:
            Whether it was trained; if not, it was stopped, with a checkpoint. None if its files are needed.
        """
        self.number, self._errand, self._mirror = errand.number, errand, None
        self.deliver(first=True)
        if self.signal:
            return False
        run = errand.base / errand.task.run
        if shares(run, errand):
            return self._train(errand, True)
        if fetch is None:
            return None
        folder = below(self.place, run)
        shutil.rmtree(folder, ignore_errors=True)  # of an attempt that has failed
        parcels.unpack(folder, self._thread.submit(fetch).result())
        self._mirror = parcels.Mirror(folder)
        self._mirror.changes()
        try:
            return self._train(errand, False)
        finally:
            with self._lock:
                self._letters.append(self._mirror.changes())
                self._mirror = None
            self.deliver()
            shutil.rmtree(folder, ignore_errors=True)

    def deliver(self, first: bool = False) -> None:
        """Say what has happened, and return once it has arrived."""
        self._thread.submit(self._send, first).result()

    def beat(self) -> None:
        """Say from time to time what has happened, until nobody listens; then this process is of no more use."""
        with contextlib.suppress(Exception):
            while True:
                time.sleep(PAUSE)
                self.deliver()
        shutil.rmtree(self.place, ignore_errors=True)
        os._exit(1)

    def _train(self, errand: Errand, shared: bool) -> bool:
        def moved(run: Path) -> Path:
            return errand.base / run if shared else below(self.place, errand.base / run)

        if shared not in self._trains:
            self._trains[shared] = self.make(self._report, lambda: self.signal, moved)
        try:
            self._trains[shared](errand.task)
        except stopping.Stopped:
            return False
        except LotteryError as error:
            run = errand.task.run
            # Where the folder is this node's own, its disk is no reason to stop the others.
            kind = type(error) if shared else LotteryError
            raise kind(str(error).replace(str(moved(run)), str(run))) from error
        finally:
            self.deliver()
        return True

    def _collect(self, event: progress.Event) -> None:
        """Take what happens, as if it happened where the run is."""
        errand = self._errand
        assert errand
        run = errand.task.run
        if not isinstance(event, progress.Done | progress.Note) and hasattr(event, "run"):
            event = dataclasses.replace(event, run=run)
        elif isinstance(event, progress.Note):
            event = progress.Note(event.text.replace(str(below(self.place, errand.base / run)), str(run)))
        with self._lock:
            if isinstance(event, progress.Done):
                event = dataclasses.replace(event, where=dataclasses.replace(event.where, run=run))
                if self._mirror:  # what is said to be stored is stored there too
                    self._letters.append(self._mirror.changes())
            self._letters.append(event)

    def _send(self, first: bool) -> None:
        with self._lock:
            letters, self._letters = self._letters, []
            changed = self._mirror.changes(parcels.CHECKPOINTS) if self._mirror else {}
            letters += [changed] if changed else []
        if self.send(self.number, letters, first):
            self.signal = signal.SIGTERM


def shares(run: Path, errand: Errand) -> bool:
    """Whether a run's folder is the one that is meant, with everything that a network is trained from."""
    name, content = errand.token
    try:
        same = bool(name) and (run / name).read_text(encoding="utf-8") == content
    except OSError:
        return False
    return same and all((run / one).exists() for one in errand.names)


def below(place: Path, run: Path) -> Path:
    """A folder for a run below another one, for no other run."""
    return place.joinpath(*run.parts[1:])


_WORKERS: dict[str, Worker] = {}


def train(
    key: str, trainer: bytes, settings: Mapping[str, str], mailbox: Any, errand: Errand, sent: list[Any]
) -> bool | None:
    """Train a network in this process, which is a worker of Ray's, and keeps its model and data for the next one.

    Args:
        key: Whose network it is; a process works for one.
        trainer: Makes what trains networks here.
        settings: Variables of the environment.
        mailbox: The actor that is a `Mailbox`.
        errand: The network.
        sent: The files that it is trained from, in the object store, or nothing.
    """
    import cloudpickle
    import ray

    if key not in _WORKERS:
        if _WORKERS:  # TensorFlow may have begun with other threads
            os._exit(1)
        for name, value in settings.items():
            os.environ.setdefault(name, value)
        worker = Worker(cloudpickle.loads(trainer), lambda *letters: ray.get(mailbox.put.remote(*letters)))
        _WORKERS[key] = worker
        threading.Thread(target=worker.beat, daemon=True).start()
    return _WORKERS[key].carry_out(errand, (lambda: ray.get(sent[0])) if sent else None)


def settings() -> dict[str, str]:
    """The variables of the environment that are the same wherever a run's networks are trained."""
    # A process takes all memory of a GPU unless it is told not to.
    own = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    return own | {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)}
