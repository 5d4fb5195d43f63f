"""Networks trained as tasks of a Ray cluster whose nodes all see the run's folder."""

import contextlib
import dataclasses
import itertools
import json
import logging
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
from lottery.executors import scheduler
from lottery.executors.scheduler import Executor, Lost, MakeTrain, Task, packed, settle
from lottery.runs import store

# Environment variables that decide what is computed, or where data are found: nodes get them from here.
SETTINGS = ("TF_", "XLA_", "KERAS_", "LOTTERY_")
PAUSE = 0.5  # seconds between two deliveries of a process, which also sees then whether it should stop
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
            if not getattr(self, name) >= 0:
                raise LotteryError(f"{name}: received {getattr(self, name)}, allowed is 0 or more.")
        if self.num_gpus > 1 and self.num_gpus % 1:
            raise LotteryError(f"num_gpus: received {self.num_gpus}, allowed are whole numbers, or a fraction below 1.")
        if find_spec("ray") is None:
            raise LotteryError('Training on a cluster needs Ray: pip install "lottery[ray]".')


@contextlib.contextmanager
def joined(
    asks: Ray, trainer: MakeTrain, num_threads: Mapping[Path, int], on_event: progress.OnEvent
) -> Iterator[Executor]:
    """Give the engine of a cluster, on which a network is only `Lost`, whatever ends its process or its node."""
    blob = packed(trainer)
    with _connected(asks, on_event) as ray:
        resources = {run: _resources(asks, threads) for run, threads in num_threads.items()}
        for wanted in resources.values():
            _check_room(ray, wanted, on_event)
        tasks = _Tasks(ray, resources, ray.put(blob), _new_queue(ray), _new_queue(ray))
        try:
            yield Executor(tasks.submit, tasks.stop, slots=lambda: None, happened=tasks)
        finally:
            tasks.close()


# In the process that started the run.


class Job(NamedTuple):
    """A network to train in one of Ray's processes."""

    number: int  # of the attempt
    task: Task
    folder: Path  # of the run: the absolute path
    stamp: tuple[int, int]  # see `_stamp`


@dataclass
class _Tasks:
    """Ray's tasks, and a queue that looks after them whenever the scheduler waits for something to happen."""

    ray: Any
    resources: Mapping[Path, Mapping[str, float]]  # that a network takes, by the folder of its run
    trainer: Any  # in Ray's object store
    events: Any  # Ray's queue of attempts' numbers and what happened in them
    orders: Any  # Ray's queue that holds something as soon as all training should stop
    key: str = field(default_factory=lambda: secrets.token_hex(8))
    numbers: Iterator[int] = field(default_factory=itertools.count)
    attempts: dict[int, tuple[Any, Future]] = field(default_factory=dict)  # Ray's reference of each, and our future
    begun: set[int] = field(default_factory=set)
    happened: deque = field(default_factory=deque)
    stopping: bool = False
    gone: str = ""

    def submit(self, task: Task) -> Future:
        future: Future = Future()
        wanted, folder, number = self.resources[task.run], task.run.absolute(), next(self.numbers)
        try:
            if self.gone:
                raise LotteryError(self.gone)
            options = {"num_cpus": wanted["CPU"], "num_gpus": wanted.get("GPU", 0), "max_retries": 0}
            options |= {"memory": int(wanted["memory"])} if "memory" in wanted else {}
            job = Job(number, task, folder, _stamp(folder))
            # A process takes all memory of a GPU unless it is prevented.
            settings = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
            settings |= {name: value for name, value in os.environ.items() if name.startswith(SETTINGS)}
            remote = self.ray.remote(**options)(train)
            ref = remote.remote(self.key, self.trainer, settings, self.events, self.orders, job)
            self.attempts[number] = ref, future
        except Exception as error:
            settle(future, False, error)
        return future

    def put(self, event: Any) -> None:
        self.happened.append(event)

    def get(self, timeout: float) -> Any:
        if not self.happened:
            try:
                self._look(timeout)
            except Exception as error:
                self.gone = f"The Ray cluster is gone ({_last_line(error)}); everything that was trained is stored."
                for _, future in self.attempts.values():
                    settle(future, False, LotteryError(self.gone))
                self.attempts.clear()
        if not self.happened:
            raise queue.Empty
        return self.happened.popleft()

    def _look(self, timeout: float) -> None:
        if self.stopping and self.orders.empty():  # it is again if Ray had to start the queue again
            self.orders.put(True)
        numbers = {ref: number for number, (ref, _) in self.attempts.items()}
        ended = self.ray.wait(list(numbers), timeout=timeout)[0] if numbers else []
        # A task puts everything that happens before it ends, so events come first.
        with contextlib.suppress(queue.Empty):
            for number, events in self.events.get_nowait_batch(self.events.qsize()):
                if number in self.attempts:  # else Ray gave it up, and another attempt took its place
                    self.begun.add(number)
                    self.happened.extend(events)
        for ref in ended:
            future = self.attempts.pop(numbers[ref])[1]
            try:
                settle(future, self.ray.get(ref))
            except Exception as error:
                settle(future, False, _meaning(error))

    def stop(self) -> None:
        self.stopping = True
        for number, (ref, _) in self.attempts.items():
            if number not in self.begun:  # there may never be room for it
                self.ray.cancel(ref)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            for ref, _ in self.attempts.values():
                self.ray.cancel(ref, force=True)
        with contextlib.suppress(Exception):
            self.events.shutdown(force=True)
            self.orders.shutdown(force=True)  # now all processes end


def _new_queue(ray: Any) -> Any:
    """A queue of Ray's beside this process; if its own process dies, Ray starts it again, empty."""
    from ray.util.queue import Queue

    here = ray.get_runtime_context().get_node_id()
    beside = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": beside}
    return Queue(actor_options=options)


def _meaning(error: BaseException) -> BaseException | None:
    """What the error of a task means for its network; None if the network was stopped."""
    from ray import exceptions

    if isinstance(error, exceptions.RayTaskError):
        cause: Any = getattr(error, "cause", None)
        if not isinstance(cause, KeyboardInterrupt | exceptions.RayError):
            return cause if isinstance(cause, LotteryError) else LotteryError(_last_line(error))
        error = cause
    if isinstance(error, KeyboardInterrupt | exceptions.TaskCancelledError):
        return None
    if isinstance(error, exceptions.OutOfMemoryError):
        return Lost("Ray ended the process that trained it, because its node ran out of memory")
    if isinstance(error, exceptions.WorkerCrashedError):
        return Lost("the process that trained it died")
    if isinstance(error, exceptions.NodeDiedError):
        return Lost("the node that trained it is gone")
    return Lost(f"Ray lost it ({_last_line(error)})")


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")


# In Ray's processes.


@dataclass
class _Worker:
    """A process that trains networks, one after the other; `events` and `orders` are those of `_Tasks`."""

    events: Any
    orders: Any
    train: Any = None
    job: Any = None
    stopped: bool = False
    _waiting: deque = field(default_factory=deque)
    # One thread talks to Ray: so events stay in order, and the thread that trains never waits for Ray, which would give
    # its processor to another task in the meantime.
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def carry_out(self, job: Job) -> bool:
        """Train a network; return False if it was stopped, with a checkpoint."""
        self.job = job
        self.deliver(first=True)
        if self.stopped:
            return False
        _check_shared(job)
        try:
            self.train(job.task)
        except interrupts.Stopped:
            return False
        finally:
            self.deliver()
        return True

    def should_stop(self) -> int:
        return signal.SIGTERM if self.stopped else 0

    def collect(self, event: progress.Event) -> None:
        run = self.job.task.run  # as the process names it that started the run
        if isinstance(event, progress.Done):
            event = dataclasses.replace(event, where=dataclasses.replace(event.where, run=run))
        elif not isinstance(event, progress.Note):
            event = dataclasses.replace(event, run=run)
        self._waiting.append(event)

    def deliver(self, first: bool = False) -> None:
        self._thread.submit(self._deliver, first).result()

    def _deliver(self, first: bool) -> None:
        events = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if events or first:
            self.events.put((self.job.number, events))
        self.stopped = self.stopped or not self.orders.empty()

    def keep_delivering(self) -> None:
        """Deliver until nobody takes it; then nobody needs this process."""
        with contextlib.suppress(Exception):
            while True:
                time.sleep(PAUSE)
                self.deliver()
        os._exit(1)


_WORKERS: dict[str, _Worker] = {}


def train(key: str, trainer: bytes, settings: Mapping[str, str], events: Any, orders: Any, job: Job) -> bool:
    """Train a network in this process of Ray's, which keeps its model and data for the next network of the same key."""
    import cloudpickle

    if key not in _WORKERS:
        if _WORKERS:  # TensorFlow may have started with another number of threads
            os._exit(1)
        for name, value in settings.items():
            os.environ.setdefault(name, value)
        worker = _Worker(events, orders)
        worker.train = cloudpickle.loads(trainer)(progress.throttled(worker.collect), worker.should_stop)
        threading.Thread(target=worker.keep_delivering, daemon=True).start()
        _WORKERS[key] = worker
    return _WORKERS[key].carry_out(job)


def _stamp(run: Path) -> tuple[int, int]:
    """Seconds and size of a run's environment.json: the same on all nodes that share the folder, and on no others."""
    with contextlib.suppress(OSError):
        found = (run / "environment.json").stat()
        return int(found.st_mtime), found.st_size
    return 0, 0


def _check_shared(job: Job) -> None:
    """Raise `StorageError` unless this node sees the run's folder, and in it all that the network is trained from."""
    until = time.monotonic() + PATIENCE
    while _stamp(job.folder) == job.stamp:
        if all(store.is_stored(job.folder, *need.network) for need in scheduler.needs(job.task)):
            return
        if time.monotonic() > until:
            break
        time.sleep(PAUSE)
    raise StorageError(
        f"Node {platform.node()!r} does not see the run's folder {str(job.folder)!r}, which must be on storage that "
        "all nodes of the cluster share, at the same path."
    )


# The cluster itself.


@contextlib.contextmanager
def _connected(asks: Ray, on_event: progress.OnEvent) -> Iterator[Any]:
    import loky
    import ray

    if ray.is_initialized():
        on_event(progress.Note("Networks are trained on the Ray cluster that this process is already connected to."))
        yield ray
        return
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
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
            try:
                # A cluster that Ray finds by itself may ask for a token that Ray finds, too.
                ray.init(address=named or None, **quiet)
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                why = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
                raise LotteryError(
                    f"The Ray cluster at {address!r} cannot be joined: {why}; if it requires a token, set "
                    "RAY_AUTH_MODE=token here."
                ) from error
            cpus = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
            size = f"{len(cpus)} node{'' if len(cpus) == 1 else 's'}, {sum(cpus):g} CPUs"
            on_event(progress.Note(f"Joined the Ray cluster at {address}: {size}."))
        else:
            cores = loky.cpu_count()
            os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")  # a machine may be busy
            try:
                # Bound to this machine alone.
                ray.init("local", num_cpus=cores, include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
            except Exception as error:
                raise LotteryError(f"Ray could not be started on this machine: {str(error).strip()}") from error
            where = f"There is no Ray cluster to join, so one was started on this machine, with {cores} CPUs"
            on_event(progress.Note(f"{where}; it ends with this command."))
    finally:  # Ray takes the signal for itself
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


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
    except OSError as error:
        return f"{error.strerror or error}"
    return ""


def _resources(asks: Ray, num_threads: int) -> dict[str, float]:
    wanted = {"CPU": max(asks.num_cpus, num_threads), "GPU": asks.num_gpus, "memory": asks.memory}
    return {name: amount for name, amount in wanted.items() if amount}


def _check_room(ray: Any, wanted: Mapping[str, float], on_event: progress.OnEvent) -> None:
    """Raise `LotteryError` unless a node has the resources of a network, or the cluster may add such a node."""
    found = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(all(node.get(name, 0) >= amount for name, amount in wanted.items()) for node in found):
        return
    words = {"CPU": "CPUs", "GPU": "GPUs", "memory": "bytes of memory"}
    needed = " and ".join(f"{amount:g} {words[name]}" for name, amount in wanted.items())
    most = ", ".join(f"{max((node.get(name, 0) for node in found), default=0):g} {words[name]}" for name in wanted)
    if not _grows():
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
