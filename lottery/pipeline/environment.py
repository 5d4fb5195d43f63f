"""What a run is computed with: versions, processor, threads, commit. Bits depend on them, so they are written down."""

import contextlib
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import loky
import numpy as np

from lottery import config, files, weights
from lottery.data import Splits, Streams
from lottery.errors import LotteryError
from lottery.models import architecture, multiply_adds, networks
from lottery.runs import store
from lottery.training import mirrored

# What is known to gain nothing from more.
MOST_THREADS = {"lenet_300_100": 2}


# About what a step takes on one core, whatever is multiplied, and each multiplication in it, forward and backward; and
# how much training it takes until processes, which start in some ten seconds, are worth it.
SECONDS_OF_STEP, SECONDS_OF_MAC, WORTH = 1e-4, 3e-11, 20.0


PACKAGES = ("lottery", "tensorflow", "keras", "tf-keras", "tensorflow-model-optimization", "numpy", "safetensors")


def threads_for(experiment: config.Experiment) -> int:
    """With how many threads a network is trained where the experiment leaves it open.

    It does not depend on how many are trained at the same time, for bits depend on it: each network has its part of the
    cores, as if all replicates, and their controls beside them, were trained side by side.
    """
    width = experiment.run.num_replicates * (2 if experiment.run.controls else 1)
    most = MOST_THREADS.get(experiment.model.name, loky.cpu_count())
    return experiment.run.num_threads or min(most, max(1, loky.cpu_count() // width))


def begin_threads(experiment: config.Experiment, recorded: int = 0) -> int:
    """Let TensorFlow compute with as many threads as a run was begun with, or a new one is best begun with.

    Where TensorFlow has begun already, a new run takes what there is, unless the experiment says how many.

    Args:
        experiment: The experiment.
        recorded: With how many the run was begun; 0 for a new one.

    Returns:
        How many it uses now.

    Raises:
        LotteryError: TensorFlow has begun with another number in this process.
    """
    if recorded:
        return use_threads(recorded)
    try:
        return use_threads(threads_for(experiment))
    except LotteryError:
        if experiment.run.num_threads:
            raise
        return num_threads()


def use_threads(wanted: int) -> int:
    """Let TensorFlow compute with a number of threads, which cannot be changed once it has begun.

    Args:
        wanted: How many.

    Returns:
        How many it uses now.

    Raises:
        LotteryError: TensorFlow has begun with another number in this process.
    """
    current = num_threads()
    if current != wanted:
        import tensorflow as tf

        try:
            tf.config.threading.set_intra_op_parallelism_threads(wanted)
            tf.config.threading.set_inter_op_parallelism_threads(wanted)
        except RuntimeError:
            raise LotteryError(
                f"This run trains with {wanted} threads, and TensorFlow has begun with {current} in this process; "
                "start it in a new one."
            ) from None
    return wanted


def workers_for(num_threads: int, spans: Sequence[tuple[int, int]], macs: float | None, batch_size: int) -> int:
    """In how many processes networks are best trained on this machine.

    Args:
        num_threads: Threads of each.
        spans: From which step to which each network is trained.
        macs: Multiplications that one example takes, if that is known.
        batch_size: Examples of a step.
    """
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        return 1  # processes would have to share it
    steps = sum(last - first for first, last in spans)
    seconds = math.inf if macs is None else steps * (SECONDS_OF_STEP + macs * batch_size * SECONDS_OF_MAC)
    return 1 if seconds < WORTH else max(1, min(loky.cpu_count() // num_threads, len(spans)))


def threads_of_like_runs(out: str | Path, experiment: config.Experiment) -> int:
    """How many threads a run below `out` was begun with that may be this very experiment; 0 if there is none.

    Which run an experiment with a caller's own model goes on with is known only once the model is built, and then
    TensorFlow has begun to compute. So runs count that are equal but for what the model and data decide.
    """

    def decided(one: config.Experiment) -> str:
        tables = one.model_dump(mode="json")
        for section, key in (
            ("model", "fingerprint"),
            ("model", "name"),
            ("train", "optimizer"),
            ("train", "learning_rate"),
        ):
            del tables[section][key]
        return json.dumps(tables | {"data": None}, sort_keys=True)

    for path in store.runs(out):
        try:
            like = store.read_experiment(path)
            if decided(like) == decided(experiment) and not store.is_complete(path, like):
                return int(store.read_environment(path).get("num_threads", 0))
        except LotteryError:  # a damaged run is another matter
            continue
    return 0


def check_data(run: Path, fingerprint: str) -> None:
    """Raise `LotteryError` unless a run was begun with the data that have this digest."""
    if store.read_environment(run)["data_sha256"] != fingerprint:
        raise LotteryError(
            f"The data are not those that {str(run)!r} was begun with; restore them, or start a new run."
        )


def check_devices(run: Path, model: Any) -> None:
    """Raise `LotteryError` unless a run was begun with as many devices as a model is mirrored on."""
    begun, now = store.read_environment(run).get("num_devices", 1), mirrored.num_devices(model)
    if begun != now:
        raise LotteryError(
            f"This run trains on {begun} devices, on which its bits depend, and TensorFlow has {now} now; give it as "
            "many, or start a new run."
        )


def record(run: Path, experiment: config.Experiment, model: Any, data: Splits | Streams, num_threads: int) -> list[str]:
    """Write `environment.json` when a run begins; compare with it when the run goes on.

    Args:
        run: The run's folder.
        experiment: The experiment.
        model: The model, for what it takes to build it again, the weights that are never pruned and how often the
            others are used.
        data: What it is trained on.
        num_threads: Threads that training uses.

    Returns:
        What a person should know, in sentences.

    Raises:
        LotteryError: The data or the number of devices are not those that the run was begun with.
    """
    stored, name = store.read_environment(run), experiment.model.name
    now = {
        "digest": config.digest(experiment),
        "data_sha256": data.fingerprint,
        "scaling": _scaling(data),
        "num_threads": num_threads,
        "num_devices": mirrored.num_devices(model),
        **_versions(),
        "platform": platform.platform(),
        "commit": _commit(),
        "architecture": architecture.describe(model, name if networks.is_built_in(name) else None),
        "not_pruned": weights.unprunable(model),
        "uses": multiply_adds.per_entry(model),
    }
    if not stored:
        store.write_record(run / "environment.json", now)
        return []
    check_data(run, data.fingerprint)
    check_devices(run, model)
    notes = ["This run was begun before; it goes on where it stopped."]
    return notes + [f"The run was begun with {what}, so bits may differ." for what in differences(stored)]


def differences(stored: Mapping[str, Any]) -> list[str]:
    """What this process computes with otherwise than the one that a run was begun in, as it was recorded."""
    now = _versions()
    return [f"another {key} ({stored[key]}; now {now[key]})" for key in now if stored[key] != now[key]]


def _versions() -> dict[str, Any]:
    return {
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "processor": _processor(),
    }


def num_threads() -> int:
    """How many threads TensorFlow computes with, which is imported without its greetings for it."""
    with _quiet():
        import tensorflow as tf

    # By itself TensorFlow takes all cores that the process may run on, whatever a container's limit.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return tf.config.threading.get_intra_op_parallelism_threads() or cores


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what is written to standard error below Python to ourselves, unless something goes wrong.

    TensorFlow greets with lines about CUDA before any of its log levels can be set.
    """
    if "tensorflow" in sys.modules or os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") < "3":
        yield
        return
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile(dir=files.temporary_folder()) as aside:
        os.dup2(aside.fileno(), 2)
        try:
            yield
        except BaseException:
            aside.seek(0)
            os.write(saved, aside.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _scaling(data: Splits | Streams) -> dict[str, Any] | None:
    """What the network's inputs are made of pixels with, (x - mean) / deviation; None where they are taken as is."""
    if isinstance(data, Streams) or data.train.x.dtype != np.uint8:
        return None
    return {"mean": data.mean.tolist(), "deviation": data.deviation.tolist()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _commit() -> str | None:
    """The commit of this package where it runs from a checkout."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"],
            capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
