"""oneDNN, Intel's library for convolutions: switched on where it gains and the user has not decided.

TensorFlow decides when it is imported. It asks the variable ``TF_ENABLE_ONEDNN_OPTS``, and without it looks at the
processor: it turns oneDNN on by itself where there is AVX-512. With AVX2 it leaves it off, although some networks gain
there; `lottery.models.networks.BuiltIn` says which. The setting decides bits, so a run records it and keeps it.
"""

import os
import platform
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from lottery import config, weights
from lottery.models import multiply_adds, networks

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"
# The value of `VARIABLE` that lottery has set. Worker processes inherit both, and so know that no user decided.
OURS = "LOTTERY_ONEDNN"

WORDS = {True: "on", False: "off", None: "as TensorFlow chooses"}
# What was measured: other processors have other libraries behind the same variable.
MACHINES = ("x86_64", "AMD64")
# Multiply-adds of a training that takes a minute or so, below which a faster step is not worth a sentence.
LEAST_WORK = 10**12


def begin(recorded: Mapping[str, Any], names: Iterable[str] = ()) -> None:
    """Choose the setting before TensorFlow is imported, unless it is by now, or the user has decided.

    Args:
        recorded: The environment of a stored run, whose setting is kept; runs of earlier versions had what TensorFlow
            chooses. Empty for new runs.
        names: The ``model.name`` of new runs, which gain or not.
    """
    if "tensorflow" in sys.modules or _is_users():
        return
    wanted = recorded.get("onednn")
    if not recorded and any(map(gains, names)):
        wanted = True
    # Both go first, because an earlier call may have chosen for another run.
    for name in (VARIABLE, OURS):
        os.environ.pop(name, None)
        if wanted is not None:
            os.environ[name] = str(int(wanted))


def gains(name: str) -> bool:
    """Check if a network is one that comes with the package and trains faster with oneDNN on such a machine."""
    known = networks.built_in(name)
    return known is not None and known.gains_by_onednn and platform.machine() in MACHINES


def is_on() -> bool | None:
    """Return whether TensorFlow computes with oneDNN in this process, which imports it; None if that is not known."""
    try:
        # TensorFlow 2.21 has no public function for this.
        from tensorflow.python.util import _pywrap_util_port as port
    except ImportError:
        return None
    return bool(port.IsMklEnabled())


def differs(recorded: Mapping[str, Any]) -> bool:
    """Check if a stored run began with another setting than this process has."""
    return recorded.get("onednn") not in (None, is_on())


def notes(recorded: Mapping[str, Any]) -> list[str]:
    """Say that a run cannot keep the setting that it began with, and why, if that is so."""
    before, now = recorded.get("onednn"), is_on()
    # What TensorFlow chooses by itself is not known any more where lottery has chosen.
    if before == now or (before is None and OURS not in os.environ):
        return []
    if _is_users():
        why = f"{VARIABLE} is set to {os.environ[VARIABLE]}; unset this variable to keep the setting of the run"
    else:
        why = "TensorFlow was already imported with this setting; use a new process to keep the setting of the run"
    return [f"The run started with oneDNN {WORDS[before]} and goes on with it {WORDS[now]}, so bits may differ: {why}."]


def advice(experiment: config.Experiment, model: Any) -> list[str]:
    """Say how to switch oneDNN on, if a new run would gain, or may gain, and it could not be done or was not known."""
    if is_on() is not False or _is_users() or platform.machine() not in MACHINES:
        return []
    how = f"set {VARIABLE}=1 before Python starts, for a new run"
    name = experiment.model.name
    may_gain = gains(name)
    sentence = f"{name} trains faster with oneDNN, but TensorFlow was imported without it: {how}."
    if not networks.is_built_in(name):
        # Kernels of two-dimensional convolutions have four axes: a window, input and output channels.
        may_gain = any(len(value.shape) == 4 for value in weights.prunable(model).values())
        sentence = f"The model has convolutions, which may be faster with oneDNN. It is off; to try it, {how}."
    return [sentence] if may_gain and _is_worth_it(experiment, model) else []


def _is_users() -> bool:
    """Check if the variable is set, and not by lottery."""
    return VARIABLE in os.environ and os.environ[VARIABLE] != os.environ.get(OURS)


def _is_worth_it(experiment: config.Experiment, model: Any) -> bool:
    """Check if a training takes long enough, on a processor, for a faster step to be noticed."""
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        return False
    of_example = multiply_adds.of_dense(model)
    train = experiment.train
    return of_example is None or of_example * train.batch_size * train.num_steps >= LEAST_WORK
