"""Networks trained on a cluster, each as a task of Ray's."""

import contextlib
import json
import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lottery import environment, files, nodes, progress, sending
from lottery.errors import LotteryError
from lottery.launching import Engine, packed


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
def joined(
    asks: Ray, trainer: nodes.Trainer, num_threads: Mapping[Path, int], report: progress.Report
) -> Iterator[Engine]:
    """Train on a cluster.

    Args:
        asks: Which, and with what for each network.
        trainer: Makes, in each process there, what trains one network.
        num_threads: With how many threads networks are trained, by the folder of their run.
        report: Told which cluster it is.

    Yields:
        What `launching.launch` needs. Whatever ends a process or its node, the network is only `Lost`.

    Raises:
        LotteryError: There is no such cluster, or none of its nodes has what is asked for.
    """
    blob = packed(trainer)
    with _connected(asks, report) as ray:
        needs = {run: _resources(asks, threads) for run, threads in num_threads.items()}
        for wanted in needs.values():
            _check_room(ray, wanted, report)
        cluster = sending.Cluster(ray, needs, ray.put(blob), asks.shared is False)
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
            cores = environment.num_cores()
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
