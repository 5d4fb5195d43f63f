"""The files of a run that a network needs or makes, on their way between the run's folder and a node far from it."""

import contextlib
import dataclasses
import itertools
import json
import logging
import os
import queue
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from lottery import files, progress, stopping
from lottery.errors import LotteryError
from lottery.executors import scheduler
from lottery.executors.scheduler import Engine, Lost, Task, packed, settle
from lottery.runs import store

Contents = dict[str, bytes | None]  # by the path below the run's folder; None where a file is no more


CHECKPOINTS = "checkpoint*.safetensors"


def needed(run: Path, network: tuple[int, int, str]) -> list[str]:
    """Which files of a run a network is trained from, of those that are there, by their paths below its folder.

    Args:
        run: The run's folder.
        network: Replicate, round and branch.

    Raises:
        LotteryError: It is not a run, or was edited.
    """
    replicate, index, branch = network
    experiment = store.read_experiment(run)
    rounds = [store.round_path(run, replicate, before) for before in range(index + 1)]
    parts = [index - 1] if branch == store.TICKET else [index, index - 1]
    if not experiment.prune.iterative:
        parts.append(0)
    wanted = [run / "experiment.toml", run / "environment.json"]
    wanted += [store.start_path(run, replicate, step) for step in (0, experiment.rewind.step)]
    # A round counts as stored if its record is there, and one is gone on with after the last that is.
    wanted += [folder / "round.json" for folder in rounds[: index + (branch != store.TICKET)]]
    wanted += [
        rounds[part] / name
        for part in parts
        if part >= 0 and (part < index or branch != store.TICKET)
        for name in ("masks.safetensors", "weights.safetensors")
    ]
    wanted += sorted(store.round_path(run, *network).glob(CHECKPOINTS))
    return list(dict.fromkeys(path.relative_to(run).as_posix() for path in wanted if path.exists()))


def pack(folder: Path, names: Iterable[str]) -> Contents:
    """Files of a folder, as `unpack` takes them."""
    return {name: files.read(folder / name) for name in names}


def unpack(folder: Path, contents: Mapping[str, bytes | None]) -> None:
    """Write files below a folder, and remove those that are no more; what says that a round is complete comes last.

    Raises:
        StorageError: They cannot be written.
    """
    for name, content in sorted(contents.items(), key=lambda one: _comes_last(one[0])):
        if content is not None:
            files.write(folder / name, content)
            continue
        with files.readable_errors(folder / name):
            (folder / name).unlink(missing_ok=True)


@dataclass
class Mirror:
    """What has changed in a folder since it was looked at last."""

    folder: Path
    known: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def changes(self, pattern: str = "*") -> Contents:
        """Files that are new, or others than before, or no more.

        Args:
            pattern: Only those that are called so.
        """
        now: dict[str, tuple[int, ...]] = {}
        contents: Contents = {}
        for path in sorted(self.folder.rglob(pattern)):
            if path.name.startswith(".") or not path.is_file():
                continue
            name = path.relative_to(self.folder).as_posix()
            with contextlib.suppress(FileNotFoundError):  # it was removed at this very moment
                about = path.stat()
                now[name] = (about.st_mtime_ns, about.st_size, about.st_ino)
                if self.known.get(name) != now[name]:
                    contents[name] = path.read_bytes()
        gone = [name for name in self.known if name not in now and Path(name).match(pattern)]
        self.known = {name: stamp for name, stamp in self.known.items() if name not in gone} | now
        contents |= dict.fromkeys(gone)
        return dict(sorted(contents.items(), key=lambda one: _comes_last(one[0])))


def _comes_last(name: str) -> bool:
    return name.endswith("round.json")


PAUSE = 0.5  # seconds between two times that a process says what has happened, and hears whether it is to stop


# Variables of the environment that decide what is computed, or where data are found.
SETTINGS = ("TF_", "XLA_", "KERAS_", "LOTTERY_")


# As `scheduler.Trainer`, and told where the folder of a run is.
Trainer = Callable[[progress.Report, stopping.Asked, Callable[[Path], Path]], Callable[[Task], None]]


Letter = progress.Event | Contents


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
    _mirror: Mirror | None = None
    _errand: Errand | None = None
    _trains: dict[bool, Callable[[Task], None]] = field(default_factory=dict)
    # All that is sent goes through one thread, so that it arrives in order; and a task's own thread must not wait for
    # Ray, which would give its processor to another in the meantime.
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._report = progress.throttled(self._collect)

    def carry_out(self, errand: Errand, fetch: Callable[[], Contents] | None) -> bool | None:
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
        unpack(folder, self._thread.submit(fetch).result())
        self._mirror = Mirror(folder)
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
            changed = self._mirror.changes(CHECKPOINTS) if self._mirror else {}
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


POLL_SECONDS = 0.1  # seconds between two looks at what has happened


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
        mailbox = self.ray.remote(num_cpus=0)(Mailbox)
        self.mailbox = mailbox.options(scheduling_strategy=beside).remote()
        if self.stopping:
            self.mailbox.stop.remote()

    def submit(self, task: Task) -> Future:
        """As `scheduler.Engine.submit`."""
        future: Future = Future()
        self.send(_Attempt(task, future))
        return future

    def send(self, attempt: _Attempt) -> None:
        """Give Ray a network, with what it is trained from if its node may need that."""
        (run, network), number = attempt.task, next(self.numbers)
        try:
            if self.gone:
                raise LotteryError(self.gone)
            names = needed(run, network)
            sent = [self.ray.put(pack(run, names))] if self.sends else []
            errand = Errand(number, attempt.task, Path.cwd(), names, self.tokens.get(run, ("", "")))
            wanted = dict(self.needs[run])
            options = {"num_cpus": wanted["CPU"], "num_gpus": wanted.get("GPU", 0)}
            options |= {"memory": int(wanted["memory"])} if "memory" in wanted else {}
            remote = self.ray.remote(max_retries=0, **options)(train)
            with self.lock:  # or what it says may come before it is known
                attempt.ref = remote.remote(self.key, self.trainer, settings(), self.mailbox, errand, sent)
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
                ready = (
                    ray.wait(list(attempts), timeout=POLL_SECONDS)[0] if attempts else time.sleep(POLL_SECONDS) or []
                )
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

    def receive(self, number: int, letters: list[Letter]) -> None:
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
                unpack(attempt.task.run, letter)
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
        """As `scheduler.Engine.stop`; what has not begun yet never will."""
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


@dataclass(frozen=True)
class Ray:
    """What is asked for of a Ray cluster.

    Attributes:
        address: Where it is, as ``host:6379``; if empty, ``RAY_ADDRESS``, a cluster that ``ray start`` has started on
            this machine, or one of its own, which ends with the run.
        num_cpus: Processors for each network; never fewer than the threads that it is trained with.
        num_gpus: GPUs for each network, or a part of one.
        memory: Bytes of memory for each network, which Ray takes into account; 0 if it need not.
        shared: Whether the nodes share the run's folder, at the same path; None to look. Where they do not, files are
            sent.
    """

    address: str = ""
    num_cpus: int = 0
    num_gpus: float = 0.0
    memory: int = 0
    shared: bool | None = None

    def check(self) -> None:
        """Raise `LotteryError` unless it can be asked for."""
        for name in ("num_cpus", "num_gpus", "memory"):
            if not getattr(self, name) >= 0:
                raise LotteryError(f"{name}: received {getattr(self, name)}, allowed is 0 or more.")
        if self.num_gpus > 1 and self.num_gpus % 1:
            raise LotteryError(f"num_gpus: received {self.num_gpus}, allowed are whole numbers, or a part of one.")
        if find_spec("ray") is None:
            raise LotteryError('Training on a cluster needs Ray: pip install "lottery[ray]".')


@contextlib.contextmanager
def joined(asks: Ray, trainer: Trainer, num_threads: Mapping[Path, int], report: progress.Report) -> Iterator[Engine]:
    """Train on a cluster.

    Args:
        asks: Which, and with what for each network.
        trainer: Makes, in each process there, what trains one network.
        num_threads: With how many threads networks are trained, by the folder of their run.
        report: Told which cluster it is.

    Yields:
        What `scheduler.launch` needs. Whatever ends a process or its node, the network is only `Lost`.

    Raises:
        LotteryError: There is no such cluster, or none of its nodes has what is asked for.
    """
    blob = packed(trainer)
    with _connected(asks, report) as ray:
        needs = {run: _resources(asks, threads) for run, threads in num_threads.items()}
        for wanted in needs.values():
            _check_room(ray, wanted, report)
        cluster = Cluster(ray, needs, ray.put(blob), asks.shared is False)
        try:
            if asks.shared is not False:
                cluster.tokens = {run: _leave_token(run) for run in needs}
            cluster.begin()
            yield Engine(cluster.submit, cluster.stop, lambda: None, happened=cluster.happened)
        finally:
            cluster.close()
            for run, (name, _) in cluster.tokens.items():
                with contextlib.suppress(OSError):
                    (run / name).unlink(missing_ok=True)


@contextlib.contextmanager
def _connected(asks: Ray, report: progress.Report) -> Iterator[Any]:
    import ray

    if ray.is_initialized():
        report(progress.Note("Networks are trained on the Ray cluster that this process is connected to already."))
        yield ray
        return
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    given = asks.address or os.environ.get("RAY_ADDRESS", "")
    address = given or _started_here()
    unreachable = _unreachable(address) if address else ""
    if unreachable and given:
        raise LotteryError(f"There is no Ray cluster at {address!r} that can be joined: {unreachable}.")
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address and not unreachable:
            try:
                # One that it finds by itself may ask for a token that it finds, too.
                ray.init(address=given or None, **quiet)
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                why = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
                raise LotteryError(
                    f"The Ray cluster at {address!r} cannot be joined: {why}; if it asks for a token, "
                    "RAY_AUTH_MODE=token must be set here."
                ) from error
            alive = [node for node in ray.nodes() if node["Alive"]]
            cpus = sum(node["Resources"].get("CPU", 0) for node in alive)
            size = f"{len(alive)} node{'' if len(alive) == 1 else 's'}, {cpus:g} CPUs"
            report(progress.Note(f"Joined the Ray cluster at {address}: {size}."))
        else:
            cores = scheduler.num_cores()
            # Nobody but this machine is to reach it.
            os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # a machine may be busy
            try:
                ray.init("local", num_cpus=cores, include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
            except Exception as error:
                raise LotteryError(f"Ray could not be started on this machine: {str(error).strip()}") from error
            where = f"There is no Ray cluster to join, so one was started on this machine, with {cores} CPUs"
            report(progress.Note(f"{where}; it ends with this command."))
    finally:  # Ray takes the signal for itself
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


def _started_here() -> str:
    """The cluster that ``ray start`` has started on this machine; not the one that another run has for itself."""
    noted = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    return noted.read_text(encoding="utf-8").strip() if noted.is_file() else ""


def _unreachable(address: str) -> str:
    """Why nobody can be reached there, which Ray would try for minutes; empty if somebody can."""
    import ray

    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return ""
    if not host or not port.isdigit():
        return "an address is a host and a port, such as 10.0.0.1:6379"
    if host in ("localhost", "127.0.0.1"):  # Ray takes them for this machine, as others see it
        host = ray.util.get_node_ip_address()
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        return f"{error.strerror or error}"
    return ""


def _resources(asks: Ray, num_threads: int) -> dict[str, float]:
    """What a network takes, in Ray's words."""
    wanted = {"CPU": max(asks.num_cpus, num_threads), "GPU": asks.num_gpus, "memory": asks.memory}
    return {name: amount for name, amount in wanted.items() if amount}


def _check_room(ray: Any, wanted: Mapping[str, float], report: progress.Report) -> None:
    """Raise `LotteryError` unless a node has what a network takes, or one may come that has."""
    found = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in found):
        return
    words = {"CPU": "CPUs", "GPU": "GPUs", "memory": "bytes of memory"}
    what = " and ".join(f"{amount:g} {words[name]}" for name, amount in wanted.items())
    most = ", ".join(f"{max((node.get(name, 0) for node in found), default=0):g} {words[name]}" for name in wanted)
    if not _grows():
        raise LotteryError(f"Each network takes {what}, and no node of the Ray cluster has that; the most is {most}.")
    report(progress.Note(f"Each network takes {what}, which no node has yet; the cluster may grow, so this waits."))


def _grows() -> bool:
    """Whether something adds nodes to the cluster where they are lacking."""
    from ray.autoscaler.v2.utils import is_autoscaler_v2
    from ray.experimental import internal_kv

    with contextlib.suppress(Exception):  # Ray promises nothing about how this is to be asked
        return is_autoscaler_v2() or _has_kinds(internal_kv._internal_kv_get("__autoscaling_status"))
    return False


def _has_kinds(status: bytes) -> bool:
    """Whether nodes are of kinds that more can be had of; those that were started by hand are each of its own."""
    kinds = json.loads(status)["autoscaler_report"]["node_type_mapping"]
    return any(kind != f"node_{node}" for node, kind in kinds.items())


def _leave_token(run: Path) -> tuple[str, str]:
    """A file in a run's folder, by which its nodes know it."""
    # Of a name that is removed when the run is opened again, if this process is killed.
    name, content = f".shared.token-{secrets.token_hex(8)}", secrets.token_hex(16)
    files.write(run / name, content.encode())
    return name, content
