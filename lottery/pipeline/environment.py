"""Versions, processor, threads and commit that a run is computed with; bits depend on them, so they are recorded."""

import contextlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import loky
import numpy as np

from lottery import config, files, weights
from lottery.data import Splits, Streams
from lottery.errors import LotteryError
from lottery.models import architecture, multiply_adds, networks
from lottery.models.kerases import keras_of, num_threads, tf
from lottery.pipeline import onednn
from lottery.pipeline.prepared import Prepared
from lottery.runs import store
from lottery.training import mirrored
from lottery.training.records import ACCURACIES

PACKAGES = (
    "lottery", "tensorflow", "keras", "tf-keras", "tensorflow-model-optimization", "numpy", "safetensors", "numba",
)  # fmt: skip


def begin(
    experiment: config.Experiment, recorded: Mapping[str, Any], names: Iterable[str] = (), chosen: int = 0
) -> int:
    """Import TensorFlow as `import_tensorflow` does, set its number of threads, and return it.

    A run that resumes uses the number in `recorded`. A new run uses `chosen`; else what the experiment says; else its
    part of the cores, as if all replicates and their controls trained side by side; else what TensorFlow already has.
    """
    import_tensorflow(recorded, names)
    if wanted := recorded.get("num_threads", chosen) or experiment.run.num_threads:
        return use_threads(wanted)
    # Bits depend on the number, so it must not depend on how many networks happen to train side by side.
    width = experiment.run.num_replicates * (2 if experiment.run.controls else 1)
    known = networks.built_in(experiment.model.name)
    # Some networks are too small to gain by more. Of cores, `loky` counts those that a container's limit leaves, and
    # `os.cpu_count` would count all.
    most = known.most_threads if known and known.most_threads else loky.cpu_count()
    # Nobody asked for a number, so what TensorFlow has started with will do.
    try:
        return use_threads(min(most, max(1, loky.cpu_count() // width)))
    except LotteryError:
        return num_threads()


def use_threads(wanted: int) -> int:
    """Set and return TensorFlow's number of threads; raise `LotteryError` if it began with another."""
    current = num_threads()
    if current != wanted:
        # TensorFlow refuses once it has computed, because its threads exist from then on.
        try:
            tf.config.threading.set_intra_op_parallelism_threads(wanted)
            # Operations side by side count, too: several networks share the cores.
            tf.config.threading.set_inter_op_parallelism_threads(wanted)
        except RuntimeError:
            raise LotteryError(
                f"This run trains with run.num_threads = {wanted}, but TensorFlow has started with {current} in this "
                "process; use a new process."
            ) from None
    return wanted


def begin_as(recorded: Mapping[str, Any]) -> None:
    """Begin with the setting of oneDNN and the number of threads that a stored run has recorded."""
    import_tensorflow(recorded)
    use_threads(recorded["num_threads"])


def import_tensorflow(recorded: Mapping[str, Any] | None = None, names: Iterable[str] = ()) -> None:
    """Import TensorFlow without its start-up messages, with oneDNN as `onednn.begin` chooses."""
    onednn.begin(recorded or {}, names)
    with _quiet():
        import tensorflow  # noqa: F401


def of_like_run(out: str | Path, experiment: config.Experiment) -> Mapping[str, Any]:
    """Return what an incomplete run that may be this experiment's has recorded; nothing if there is none."""
    # The run of an experiment with a user's model is known only when the model is built, and by then TensorFlow has
    # begun to compute. So runs are compared without the values that the model and data decide.
    by_model_and_data = {"data": True, "model": {"fingerprint", "name"}, "train": {"optimizer", "learning_rate"}}
    by_model_and_data |= {"prune": {"fingerprint"}, "run": {"fingerprint"}}
    wanted = experiment.model_dump(exclude=by_model_and_data)
    for path in store.runs(out):
        try:
            like = store.read_experiment(path)
            if like.model_dump(exclude=by_model_and_data) == wanted and not store.is_complete(path, like):
                return store.read_environment(path)
        except LotteryError:  # a damaged run is another matter
            continue
    return {}


def check_data(run: Path, fingerprint: str, wanted: str = "") -> None:
    """Raise `LotteryError` unless data have the `wanted` digest, by default that of the data that a run began with."""
    if fingerprint != (wanted or store.read_environment(run)["data_sha256"]):
        raise LotteryError(f"The data differ from the data of {str(run)!r}; restore the data, or start a new run.")


def check_num_devices(run: Path, model: Any) -> None:
    """Raise `LotteryError` unless a run began on as many devices as a model is mirrored on."""
    before, now = store.read_environment(run).get("num_devices", 1), mirrored.num_devices(model)
    if before != now:
        raise LotteryError(
            f"This run trains on {before} devices, and its bits depend on that number, but TensorFlow has {now} now; "
            f"use {before} devices, or start a new run."
        )


def record(run: Path, experiment: config.Experiment, prepared: Prepared, num_threads: int) -> list[str]:
    """Write ``environment.json``, or compare with it, and return sentences that a person should read."""
    model, data = prepared.trainer.model, prepared.data
    if stored := store.read_environment(run):
        return _resumed(run, stored, prepared)
    name = experiment.model.name if networks.is_built_in(experiment.model.name) else None
    now = {
        "digest": config.digest(experiment),
        "data_sha256": data.fingerprint,
        "scaling": _scaling(data),
        "num_threads": num_threads,
        "num_devices": mirrored.num_devices(model),
        "onednn": onednn.is_on(),
        **_versions(),
        "platform": platform.platform(),
        "commit": _commit(),
        "architecture": architecture.describe(model, name),
        "not_pruned": weights.unprunable(model),
        "uses": multiply_adds.per_entry(model),
        **_measured(prepared),
    }
    # Who reads masks of units later may not have the model.
    if units := prepared.plan.units:
        now["units"] = units
    if observed := prepared.observe():
        now["observed"] = observed
    if prepared.cautions:
        now["cautions"] = list(prepared.cautions)
    store.write_record(run / "environment.json", now)
    return onednn.advice(experiment, model)


def _resumed(run: Path, stored: dict[str, Any], prepared: Prepared) -> list[str]:
    """Compare a run with what it began with, and return sentences that a person should read."""
    check_data(run, prepared.data.fingerprint)
    if (stored.get("scaling") is None) != (_scaling(prepared.data) is None):
        raise LotteryError(
            "An earlier version of lottery scaled the inputs of this run as pixels, which its model takes as whole "
            "numbers; start a new run."
        )
    check_num_devices(run, prepared.trainer.model)
    measured = _measured(prepared)
    if measured.keys() - stored.keys():  # an earlier version began the run
        store.write_record(run / "environment.json", stored | measured)
    notes = [f"The run started with {other}, so bits may differ." for other in differences(stored)]
    return ["This run was started before; it resumes where it stopped.", *notes]


def _scaling(data: Splits | Streams) -> dict[str, Any] | None:
    """Write down how pixels are scaled; None for inputs that are used as they are."""
    if not isinstance(data, Splits) or data.train.x.dtype != np.uint8:
        return None
    return {"mean": data.mean.tolist(), "deviation": data.standard_deviation.tolist(), "unit_norm": data.unit_norm}


def _measured(prepared: Prepared) -> dict[str, str]:
    """Write down what is taken for the accuracy, if its name does not say it, or the loss of a model without any."""
    if prepared.accuracy is None:
        return {"loss": _loss(prepared.trainer.model)}
    return {} if prepared.accuracy in ACCURACIES else {"accuracy": prepared.accuracy}


def _loss(model: Any) -> str:
    """Name the losses that a model is compiled with: a short name and a class as Keras' function; empty without any."""
    names = []
    for loss in tf.nest.flatten(model.loss):
        with contextlib.suppress(ValueError):  # Keras 3.15 chooses that of "crossentropy" by the shapes of a batch
            loss = keras_of(model).losses.get(loss)
        loss = getattr(loss, "fn", loss)
        names.append(loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__))
    return ", ".join(names) if model.loss else ""


def differences(stored: Mapping[str, Any]) -> list[str]:
    """Describe what this process has that a recorded environment has not: versions and the processor."""
    before, now = (
        {"python": recorded["python"], **recorded["versions"], "processor": recorded["processor"]}
        for recorded in (stored, _versions())
    )
    return [
        f"another {name} ({before.get(name, 'none')}; now {now.get(name, 'none')})"
        for name in before | now
        if before.get(name) != now.get(name)
    ]


def elsewhere(recorded: Mapping[str, Any]) -> list[str]:
    """List what may round differently from when the run was trained."""
    words = {"python": "another Python", "versions": "other versions of packages", "processor": "another processor"}
    now = _versions()
    found = [text for key, text in words.items() if recorded[key] != now[key]]
    if num_threads() != recorded["num_threads"]:
        found.append("another number of threads")
    if onednn.differs(recorded):
        found.append("another setting of oneDNN")
    if recorded.get("num_devices", 1) > 1:
        found.append("another number of devices")
    if tf.config.list_physical_devices("GPU"):
        found.append("a GPU, which adds up in any order")
    return found


def _versions() -> dict[str, Any]:
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):  # an extra
            versions[package] = metadata.version(package)
    return {"python": platform.python_version(), "versions": versions, "processor": _processor()}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence standard error below Python, unless something goes wrong."""
    # TensorFlow writes lines about CUDA before any of its log levels can be set.
    if "tensorflow" in sys.modules or os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") < "3":
        yield
        return
    # What waits in its buffer was written before, and must not go aside.
    sys.stderr.flush()
    with tempfile.TemporaryFile(dir=files.temporary_folder()) as aside:
        try:
            with files.redirected(2, aside.fileno()):
                yield
        except BaseException:
            aside.seek(0)
            os.write(2, aside.read())
            raise


def _processor() -> str:
    try:
        # On Linux, `platform.processor` knows the architecture at most.
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _commit() -> str | None:
    """Return the commit of this package if it runs from a checkout."""
    try:
        done = subprocess.run(
            # Without its optional locks, git only reads a checkout that others may work with.
            ["git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40"],
            cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
