"""Networks as tasks of Ray's: given to it, and begun again where it has lost them."""

import contextlib
import itertools
import queue
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lottery import nodes, parcels
from lottery.errors import LotteryError
from lottery.launching import Lost, Task, settle

PAUSE = 0.1  # seconds between two looks at what has happened
PATIENCE = 60.0  # seconds until a new mailbox must answer


@dataclass
class _Attempt:
    task: Task
    future: Future
    ref: Any = None
    begun: bool = False
    error: LotteryError | None = None


@dataclass
class Cluster:
    """The tasks that Ray has been given, and a mailbox for what happens in them.

    Attributes:
        needs: What a network of a run takes.
        trainer: It, in the object store.
        sends: Whether files are sent with a network; as soon as one node has asked for them.
        tokens: Name and content of a file in each run's folder.
    """

    ray: Any
    needs: Mapping[Path, Mapping[str, float]]
    trainer: Any
    sends: bool
    tokens: dict[Path, tuple[str, str]] = field(default_factory=dict)
    happened: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)
    attempts: dict[int, _Attempt] = field(default_factory=dict)
    key: str = field(default_factory=lambda: secrets.token_hex(8))
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    lock: threading.RLock = field(default_factory=threading.RLock)
    stopping: bool = False
    closed: bool = False
    gone: str = ""
    mailbox: Any = None
    listening: threading.Thread | None = None

    def begin(self) -> None:
        """Begin to listen to what happens."""
        self.open_mailbox()
        self.listening = threading.Thread(target=self.listen, daemon=True)
        self.listening.start()

    def open_mailbox(self) -> None:
        """Have what happens left in a new mailbox, beside this process."""
        here = self.ray.get_runtime_context().get_node_id()
        beside = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
        mailbox = self.ray.remote(num_cpus=0)(nodes.Mailbox)
        self.mailbox = mailbox.options(scheduling_strategy=beside).remote()
        if self.stopping:
            self.mailbox.stop.remote()

    def submit(self, task: Task) -> Future:
        """As `launching.Engine.submit`."""
        future: Future = Future()
        self.send(_Attempt(task, future))
        return future

    def send(self, attempt: _Attempt) -> None:
        """Give Ray a network, with what it is trained from if its node may need that."""
        (run, network), number = attempt.task, next(self.numbers)
        try:
            if self.gone:
                raise LotteryError(self.gone)
            names = parcels.needed(run, network)
            sent = [self.ray.put(parcels.pack(run, names))] if self.sends else []
            errand = nodes.Errand(number, attempt.task, Path.cwd(), names, self.tokens.get(run, ("", "")))
            wanted = dict(self.needs[run])
            options = {"num_cpus": wanted["CPU"], "num_gpus": wanted.get("GPU", 0)}
            options |= {"memory": int(wanted["memory"])} if "memory" in wanted else {}
            remote = self.ray.remote(max_retries=0, **options)(nodes.train)
            with self.lock:  # or what it says may come before it is known
                attempt.ref = remote.remote(self.key, self.trainer, nodes.settings(), self.mailbox, errand, sent)
                self.attempts[number] = attempt
        except Exception as error:
            settle(attempt.future, False, error)

    def listen(self) -> None:
        """Hear what happens, and let the futures be done of what has ended, until nothing more is to come."""
        ray = self.ray
        try:
            while not self.closed:
                with self.lock:
                    attempts = {attempt.ref: number for number, attempt in self.attempts.items()}
                ready = ray.wait(list(attempts), timeout=PAUSE)[0] if attempts else time.sleep(PAUSE) or []
                # What is done now has said everything before, so that is taken first.
                try:
                    taken = ray.get(self.mailbox.take.remote())
                except ray.exceptions.RayActorError:
                    self.lose()
                    continue
                for number, letters in taken:
                    self.receive(number, letters)
                for ref in ready:
                    self.end(attempts[ref])
        except Exception as error:
            if self.closed:
                return
            with self.lock:
                self.gone = f"The Ray cluster has gone ({_line(error)}); what was trained is stored."
                left, self.attempts = list(self.attempts.values()), {}
            for attempt in left:
                settle(attempt.future, False, LotteryError(self.gone))

    def lose(self) -> None:
        """Begin again what is trained, for the process that had the mailbox has died, and with it what was said."""
        self.open_mailbox()
        self.ray.get(self.mailbox.take.remote(), timeout=PATIENCE)  # or all of the cluster has gone
        with self.lock:
            left, self.attempts = list(self.attempts.values()), {}
        for attempt in left:
            with contextlib.suppress(Exception):  # those that train end by themselves, for nobody listens
                self.ray.cancel(attempt.ref, force=True)
            settle(attempt.future, False, Lost("the process that hears of it has died"))

    def receive(self, number: int, letters: list[nodes.Letter]) -> None:
        """Pass on what happens in an attempt, and write the files that it has made."""
        with self.lock:
            attempt = self.attempts.get(number)
        if attempt is None:  # it was given up; another one has taken its place
            return
        attempt.begun = True
        for letter in letters:
            if not isinstance(letter, dict):
                self.happened.put(letter)
                continue
            try:
                parcels.unpack(attempt.task.run, letter)
            except LotteryError as error:
                attempt.error = error

    def end(self, number: int) -> None:
        """Let the future be done of an attempt that has ended, or give Ray its network again, with its files."""
        with self.lock:
            attempt = self.attempts.pop(number)
        try:
            trained, error = self.ray.get(attempt.ref), attempt.error
        except Exception as raised:
            trained, error = False, attempt.error or _meaning(self.ray.exceptions, raised)
        if trained is None and error is None:
            self.sends = True
            self.send(attempt)
        else:
            settle(attempt.future, bool(trained), error)

    def stop(self) -> None:
        """As `launching.Engine.stop`; what has not begun yet never will."""
        self.stopping = True
        self.mailbox.stop.remote()
        with self.lock:
            waiting = [attempt.ref for attempt in self.attempts.values() if not attempt.begun]
        for ref in waiting:  # nobody knows whether there will ever be room for them
            self.ray.cancel(ref)

    def close(self) -> None:
        """Leave nothing behind on the cluster."""
        self.closed = True
        with contextlib.suppress(Exception):
            for attempt in list(self.attempts.values()):
                self.ray.cancel(attempt.ref, force=True)
        with contextlib.suppress(Exception):
            if self.listening:
                self.listening.join(timeout=10)
            if self.mailbox:
                self.ray.kill(self.mailbox)


def _meaning(exceptions: Any, error: BaseException) -> BaseException | None:
    """What it means for a network that its task has ended with an error; None if somebody has stopped it."""
    if isinstance(error, exceptions.RayTaskError):
        cause: Any = getattr(error, "cause", None)
        if isinstance(cause, KeyboardInterrupt):
            return None
        if not isinstance(cause, exceptions.RayError):
            return cause if isinstance(cause, LotteryError) else LotteryError(_line(error))
        error = cause
    if isinstance(error, exceptions.TaskCancelledError):
        return None
    reasons: dict[type, str] = {
        exceptions.OutOfMemoryError: "Ray has ended the process that trained it, for lack of memory on its node",
        exceptions.WorkerCrashedError: "the process that trained it has died",
        exceptions.NodeDiedError: "the node that trained it has gone",
    }
    known = [reason for kind, reason in reasons.items() if isinstance(error, kind)]
    return Lost(known[0] if known else f"Ray has lost it ({_line(error)})")


def _line(error: BaseException) -> str:
    """The last line of an error, which says what it is."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")
