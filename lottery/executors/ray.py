"""Networks trained as tasks of a Ray cluster whose nodes all see the run's folder."""

import contextlib
import dataclasses
import itertools
import json
import logging
import numbers
import os
import platform
import queue
import secrets
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from lottery import interrupts, progress
from lottery.errors import LotteryError, StorageError
from lottery.executors.scheduler import Executor, Initializer, Job, Lost, complete, needs, pickled

# Environment variables that decide what is computed, or where data are found: nodes get them from here.
SETTINGS = ("TF_", "XLA_", "KERAS_", "LOTTERY_")
PAUSE = 0.5  # seconds between two deliveries of a process, which also sees then whether it should stop
QUIET = {"logging_level": logging.ERROR, "log_to_driver": False}
PATIENCE = 90.0  # seconds until every node of a shared file system shows what another has stored


@dataclass(frozen=True)
class Ray:
    """A Ray cluster, and the resources that each network takes there.

    An empty address means, in this order: the cluster in ``RAY_ADDRESS``, the cluster that ``ray start`` started on
    this machine, or a new private cluster on this machine that ends with the run.
    """

    address: str = ""  # host:6379
    num_cpus: int = 0  # never fewer than the threads that the network trains with
    num_gpus: float = 0.0  # a whole number, or a fraction of one
    memory: int = 0  # bytes

    def check(self) -> None:
        """Raise `LotteryError` if an amount is impossible or Ray is not installed."""
        for name in ("num_cpus", "num_gpus", "memory"):
            amount = getattr(self, name)
            if not (isinstance(amount, numbers.Real) and float(amount) >= 0):
                raise LotteryError(f"{name} must be 0 or more, not {amount!r}.")
        if self.num_gpus > 1 and self.num_gpus % 1:
            raise LotteryError(f"num_gpus must be a whole number, or a fraction below 1, not {self.num_gpus}.")
        if find_spec("ray") is None:
            raise LotteryError('Training on a cluster needs Ray: pip install "lottery[ray]".')


@contextlib.contextmanager
def joined(
    asks: Ray, initializer: Initializer, num_threads: Mapping[Path, int], on_event: progress.OnEvent
) -> Iterator[Executor]:
    """Give the executor of a cluster, on which a network is only `Lost`, whatever ends its process or its node."""
    pickle = pickled(initializer)
    with _connected(asks, on_event) as ray:
        # Once for all runs of a sweep that have the same threads.
        resources = {threads: _resources(asks, threads) for threads in num_threads.values()}
        for wanted in resources.values():
            _check_room(ray, wanted, on_event)
        executor = _RayExecutor(ray, {run: resources[threads] for run, threads in num_threads.items()}, pickle)
        try:
            yield executor
        finally:
            executor.shutdown()


# In the process that started the run.


class Attempt(NamedTuple):
    """A network to train in one of Ray's processes."""

    number: int
    job: Job
    folder: Path  # of the run: the absolute path
    stamp: tuple[int, int]  # see `_stamp`


class _RayExecutor(Executor):
    """Submits Ray's tasks, and looks after them whenever the scheduler waits for something to happen."""

    max_workers = None

    def __init__(self, ray: Any, resources: Mapping[Path, Mapping[str, float]], initializer: bytes):
        super().__init__()
        self._ray = ray
        self._resources = resources  # that a network takes, by the folder of its run
        self._initializer = ray.put(initializer)
        self._events = _new_queue(ray)  # numbers of attempts, and what happened in them
        self._orders = _new_queue(ray)  # holds something as soon as all training should stop
        self._key = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._attempts: dict[int, tuple[Any, Future]] = {}  # Ray's reference of each, and our future
        self._begun: set[int] = set()
        self._cancelled = False
        self._gone = ""

    def submit(self, job: Job) -> Future:
        """Train a network as soon as the cluster has room for it."""
        future: Future = Future()
        try:
            if self._gone:
                raise LotteryError(self._gone)
            wanted = self._resources[job.run]
            # A process of Ray's has a working directory of its own.
            folder = job.run.absolute()
            # Ray must not retry: the scheduler counts losses, and begins a network again from its checkpoint.
            options = {"num_cpus": wanted["CPU"], "num_gpus": wanted.get("GPU", 0), "max_retries": 0}
            if "memory" in wanted:
                options["memory"] = int(wanted["memory"])
            # A process takes all memory of a GPU unless it is prevented.
            settings = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
            settings |= {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)}
            attempt = Attempt(next(self._numbers), job, folder, _stamp(folder))
            remote = self._ray.remote(**options)(train)
            ref = remote.remote(self._key, self._initializer, settings, self._events, self._orders, attempt)
            self._attempts[attempt.number] = ref, future
        except Exception as error:
            complete(future, False, error)
        return future

    def next(self, timeout: float) -> progress.Event | Future | None:
        """Return what happened next on the cluster."""
        if self.happened.empty():
            try:
                self._look(timeout)
            except Exception as error:
                self._gone = f"The Ray cluster is gone ({_sentence(error)}); everything that was trained is stored."
                for _, future in self._attempts.values():
                    complete(future, False, LotteryError(self._gone))
                self._attempts.clear()
        return super().next(timeout=0)

    def cancel(self) -> None:
        """Ask every network in training to stop, and begin no other."""
        self._cancelled = True
        for number, (ref, _) in self._attempts.items():
            if number not in self._begun:  # there may never be room for it
                self._ray.cancel(ref)

    def shutdown(self) -> None:
        """End all processes."""
        with contextlib.suppress(Exception):
            for ref, _ in self._attempts.values():
                self._ray.cancel(ref, force=True)
        with contextlib.suppress(Exception):
            self._events.shutdown(force=True)
            self._orders.shutdown(force=True)  # now all processes end

    def _look(self, timeout: float) -> None:
        # It is empty again if Ray had to start the queue again.
        if self._cancelled and self._orders.empty():
            self._orders.put(True)
        numbers = {ref: number for number, (ref, _) in self._attempts.items()}
        ended = self._ray.wait(list(numbers), timeout=timeout)[0] if numbers else []
        # A task puts everything that happens before it ends, so events come first.
        with contextlib.suppress(queue.Empty):
            for number, events in self._events.get_nowait_batch(self._events.qsize()):
                # An attempt that Ray gave up may report, too, when another has taken its place.
                if number in self._attempts:
                    self._begun.add(number)
                    for event in events:
                        self.happened.put(event)
        for ref in ended:
            _, future = self._attempts.pop(numbers[ref])
            try:
                complete(future, self._ray.get(ref))
            except Exception as error:
                complete(future, False, _meaning(error))


def _new_queue(ray: Any) -> Any:
    """A queue of Ray's beside this process; if its own process dies, Ray starts it again, empty."""
    from ray.util.queue import Queue

    node = ray.get_runtime_context().get_node_id()
    beside = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": beside}
    return Queue(actor_options=options)


def _meaning(error: BaseException) -> BaseException | None:
    """What the error of a task means for its network; None if the network was stopped."""
    from ray import exceptions

    # Ray wraps what a task raised, which may be Ray's own error about another process or node.
    if isinstance(error, exceptions.RayTaskError):
        cause: Any = getattr(error, "cause", None)
        if isinstance(cause, LotteryError):
            return cause
        if not isinstance(cause, KeyboardInterrupt | exceptions.RayError):
            # Its text is a traceback, of which the last line is the message.
            return LotteryError(str(error).strip().splitlines()[-1])
        error = cause
    if isinstance(error, KeyboardInterrupt | exceptions.TaskCancelledError):
        return None
    return Lost(_sentence(error))


def _sentence(error: BaseException) -> str:
    """Return the first sentence of what Ray says."""
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return line.partition(". ")[0].rstrip(".")


# In Ray's processes.


@dataclass
class _Worker:
    """A process that trains networks, one after the other; `events` and `orders` are those of `_RayExecutor`."""

    events: Any
    orders: Any
    train: Any = None
    attempt: Any = None
    cancelled: bool = False
    _waiting: deque = field(default_factory=deque)
    # One thread talks to Ray: so events stay in order, and the thread that trains never waits for Ray, which would give
    # its processor to another task in the meantime.
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def carry_out(self, attempt: Attempt) -> bool:
        """Train a network; return False if it was stopped, with a checkpoint."""
        self.attempt = attempt
        self.deliver(first=True)
        if self.cancelled:
            return False
        _check_shared(attempt)
        try:
            self.train(attempt.job)
        except interrupts.Stopped:
            return False
        finally:
            self.deliver()
        return True

    def should_stop(self) -> int:
        return signal.SIGTERM if self.cancelled else 0

    def collect(self, event: progress.Event) -> None:
        if isinstance(event, progress.Done):
            event = dataclasses.replace(event, where=self._named(event.where))
        elif not isinstance(event, progress.Note):
            event = self._named(event)
        self._waiting.append(event)

    def _named(self, event: Any) -> Any:
        # As the process names the run that started it; siblings are trained in a folder below that of the run.
        below = event.run.relative_to(self.attempt.folder)
        return dataclasses.replace(event, run=self.attempt.job.run / below)

    def deliver(self, first: bool = False) -> None:
        self._thread.submit(self._deliver, first).result()

    def _deliver(self, first: bool) -> None:
        events = [self._waiting.popleft() for _ in range(len(self._waiting))]
        # The first delivery may be empty: it says that the network has begun, which is then no longer cancelled by Ray.
        if events or first:
            self.events.put((self.attempt.number, events))
        self.cancelled = self.cancelled or not self.orders.empty()

    def keep_delivering(self) -> None:
        """Deliver until nobody takes it; then nobody needs this process."""
        with contextlib.suppress(Exception):
            while True:
                time.sleep(PAUSE)
                self.deliver()
        # An exception would end this thread alone.
        os._exit(1)


_WORKERS: dict[str, _Worker] = {}


def train(
    key: str, initializer: bytes, settings: Mapping[str, str], events: Any, orders: Any, attempt: Attempt
) -> bool:
    """Train a network in this process of Ray's, which keeps its model and data for the next network of the same key."""
    import cloudpickle

    if key not in _WORKERS:
        if _WORKERS:  # TensorFlow may have started with another number of threads
            os._exit(1)
        for name, value in settings.items():
            # Not over what a node has set for itself, such as the place of its data.
            os.environ.setdefault(name, value)
        worker = _Worker(events, orders)
        worker.train = cloudpickle.loads(initializer)(progress.throttled(worker.collect), worker.should_stop)
        threading.Thread(target=worker.keep_delivering, daemon=True).start()
        _WORKERS[key] = worker
    return _WORKERS[key].carry_out(attempt)


def _stamp(run: Path) -> tuple[int, int]:
    """Seconds and size of a run's environment.json: the same on all nodes that share the folder, and on no others."""
    with contextlib.suppress(OSError):
        found = (run / "environment.json").stat()
        # Whole seconds: some shared file systems round times.
        return int(found.st_mtime), found.st_size
    return 0, 0


def _check_shared(attempt: Attempt) -> None:
    """Raise `StorageError` unless this node sees the run's folder, and in it all that the network is trained from."""
    until = time.monotonic() + PATIENCE
    while _stamp(attempt.folder) == attempt.stamp:
        if all(need.is_stored for need in needs(attempt.job._replace(run=attempt.folder))):
            return
        if time.monotonic() > until:
            break
        time.sleep(PAUSE)
    raise StorageError(
        f"Node {platform.node()!r} does not see the run's folder {str(attempt.folder)!r}, which must be on storage "
        "that all nodes of the cluster share, at the same path."
    )


# The cluster itself.


@contextlib.contextmanager
def _connected(asks: Ray, on_event: progress.OnEvent) -> Iterator[Any]:
    import ray

    if ray.is_initialized():
        on_event(progress.Note("Networks are trained on the Ray cluster that this process is already connected to."))
        yield ray
        return
    named = asks.address or os.environ.get("RAY_ADDRESS", "")
    # The cluster that `ray start` started on this machine; not the private cluster of another run.
    noted = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
    address = named or (noted.read_text(encoding="utf-8").strip() if noted.is_file() else "")
    unreachable = _unreachable(address) if address else ""
    if unreachable and named:
        raise LotteryError(f"The Ray cluster at {address!r} cannot be joined: {unreachable}.")
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address and not unreachable:
            _join(ray, named, address, on_event)
        else:
            _start(ray, on_event)
    finally:  # Ray takes the signal for itself
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


def _join(ray: Any, named: str, address: str, on_event: progress.OnEvent) -> None:
    try:
        # A cluster that Ray finds by itself may ask for a token that Ray finds, too.
        ray.init(address=named or None, **QUIET)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise LotteryError(f"The Ray cluster at {address!r} cannot be joined: {_sentence(error)}.") from error
    cpus = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
    nodes = "1 node" if len(cpus) == 1 else f"{len(cpus)} nodes"
    on_event(progress.Note(f"Joined the Ray cluster at {address}: {nodes}, {sum(cpus):g} CPUs."))
    if not _asks_for_token():
        warning = "This Ray cluster asks for no token: whoever can reach its ports can run code on it."
        on_event(progress.Note(f"{warning} To protect it, start it with RAY_AUTH_MODE=token."))


def _asks_for_token() -> bool:
    """Return True if the cluster that this process has joined asks for a token."""
    with contextlib.suppress(Exception):  # Ray documents no way to find out
        from ray._private.authentication.authentication_utils import is_token_auth_enabled

        return is_token_auth_enabled()
    return os.environ.get("RAY_AUTH_MODE") == "token"


def _start(ray: Any, on_event: progress.OnEvent) -> None:
    import loky

    cores = loky.cpu_count()
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # a machine may be busy
    # Ray's own is 15, which beside one other program leaves a network a few per cent of a core.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        # Bound to this machine alone.
        ray.init("local", num_cpus=cores, include_dashboard=False, _node_ip_address="127.0.0.1", **QUIET)
    except Exception as error:
        raise LotteryError(f"Ray could not be started on this machine: {str(error).strip()}") from error
    where = f"There is no Ray cluster to join, so a cluster was started on this machine, with {cores} CPUs"
    on_event(progress.Note(f"{where}; it ends with this command."))


def _unreachable(address: str) -> str:
    """Why nothing answers at an address, which Ray would try for minutes; empty if something does."""
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
    except (OSError, ValueError) as error:  # no host has a name with an empty part
        return getattr(error, "strerror", None) or str(error)
    return ""


def _resources(asks: Ray, num_threads: int) -> dict[str, float]:
    wanted = {"CPU": max(asks.num_cpus, num_threads), "GPU": asks.num_gpus, "memory": asks.memory}
    return {name: amount for name, amount in wanted.items() if amount}


def _check_room(ray: Any, wanted: Mapping[str, float], on_event: progress.OnEvent) -> None:
    """Raise `LotteryError` unless a node has the resources of a network, or the cluster may add such a node."""
    found = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for node in found:
        if all(node.get(name, 0) >= amount for name, amount in wanted.items()):
            return
    words = {"CPU": "CPUs", "GPU": "GPUs", "memory": "bytes of memory"}
    needed = " and ".join(f"{amount:,.12g} {words[name]}" for name, amount in wanted.items())
    if not _grows():
        highest = {name: max((node.get(name, 0) for node in found), default=0) for name in wanted}
        most = ", ".join(f"{amount:,.12g} {words[name]}" for name, amount in highest.items())
        raise LotteryError(f"Each network needs {needed}, but no node of the Ray cluster has that; the most is {most}.")
    on_event(progress.Note(f"Each network needs {needed}, which no node has yet; waiting for the cluster to grow."))


def _grows() -> bool:
    """Return True if the cluster adds nodes when it lacks them."""
    from ray.autoscaler.v2.utils import is_autoscaler_v2
    from ray.experimental import internal_kv

    with contextlib.suppress(Exception):  # Ray documents no way to find out
        return is_autoscaler_v2() or _has_kinds(internal_kv._internal_kv_get("__autoscaling_status"))
    return False


def _has_kinds(status: bytes) -> bool:
    """Return True if nodes have kinds, of which there can be more; a node started by hand is its own kind."""
    kinds = json.loads(status)["autoscaler_report"]["node_type_mapping"]
    return any(kind != f"node_{node}" for node, kind in kinds.items())
