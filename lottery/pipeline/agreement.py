"""Objects that a caller passes again are compared with those that a run began with."""

from pathlib import Path
from typing import Any

import numpy as np

from lottery import config
from lottery.errors import LotteryError
from lottery.pipeline import environment, onednn
from lottery.pipeline.prepared import Prepared
from lottery.runs import store

# Relative, of what the first steps report on another machine or with other versions; and in half precision.
REPORTED_ROUNDING, REPORTED_ROUNDING_IN_HALF = 1e-5, 1e-2

_DIGESTS = {"model": {"fingerprint"}, "prune": {"fingerprint"}, "run": {"fingerprint"}}


def agreed(run: Path, experiment: config.Experiment, prepared: Prepared) -> list[str]:
    """Compare the objects that a caller passes again, as they are `prepared`, with those of a stored run.

    Returns sentences that a person should read, or raises `LotteryError` if the model or a function is another. Data
    are compared by their digest, wherever they were read: see `environment.check_data`.
    """
    # Where the data lie, and how they were passed, may be another way to the same digest.
    now = prepared.experiment.model_copy(update={"data": experiment.data})
    if config.digest(now) == config.digest(experiment):
        return []
    elsewhere = ""
    # Where only digests differ, other versions may have made other operations of the same model.
    if are_alike(now, experiment):
        if not is_observed(store.read_environment(run)):
            return [
                "An earlier version of lottery stored this run, and did not observe what its model and functions "
                "compute, so they cannot be compared."
            ]
        elsewhere, said = compared(run, prepared)
        if said:
            return [said]
    why = f" (or it looks different here, because the run started with {elsewhere})" if elsewhere else ""
    raise LotteryError(
        f"{str(run)!r} began with another model or function{why}. Pass the model and the functions that the run began "
        "with."
    )


def compared(run: Path, prepared: Prepared) -> tuple[str, str]:
    """Compare what was observed of a run's objects, up to rounding, if it was observed elsewhere.

    Returns what may make other operations or bits here, empty if nothing does; and a sentence, empty if the numbers
    differ by more than rounding.
    """
    recorded, now = store.read_environment(run), prepared.observe()
    elsewhere = other_environment(recorded, now)
    if not elsewhere:
        return "", ""
    before, after = recorded["observed"]["reported"], now["reported"]
    in_full = prepared.experiment.train.in_full_precision
    rounding = REPORTED_ROUNDING if in_full else REPORTED_ROUNDING_IN_HALF
    # Absolute, too: a loss near zero has no digits left to compare.
    if len(before) != len(after) or not np.allclose(before, after, rtol=rounding, atol=1e-7):
        return elsewhere, ""
    said = (
        f"{run} started with {elsewhere}, so what its model and functions compute was compared by the numbers of the "
        f"first steps, to {100 * rounding:g} %."
    )
    return elsewhere, said


def incomparable(run: Path, prepared: Prepared) -> str:
    """Say why a model cannot be compared with that of a run on other data; empty if it can."""
    recorded = store.read_environment(run)
    if not is_observed(recorded):
        return "an earlier version of lottery stored the run, and did not observe what its model computes"
    if recorded["observed"]["example"] != prepared.observe()["example"]:
        return "the other data have examples of another type or shape"
    # In the same environment digests would be equal, so the model is another.
    elsewhere = other_environment(recorded, prepared.observe())
    return elsewhere and f"it started with {elsewhere}"


def are_alike(experiment: config.Experiment, other: config.Experiment) -> bool:
    """Check if two experiments differ in nothing but digests of their models and functions."""
    return experiment.model_dump(exclude=_DIGESTS) == other.model_dump(exclude=_DIGESTS)


def is_observed(recorded: dict[str, Any]) -> bool:
    """Check if a record, which a stranger may have written, has what `fingerprinting.observed` returns."""
    found = recorded.get("observed")
    if not isinstance(found, dict) or not {"reported", "example", "opaque", "num_gpus"} <= set(found):
        return False
    # To `isinstance`, JSON's true is an int.
    numbers = found["reported"]
    return isinstance(numbers, list) and all(type(value) in (int, float) for value in numbers)


def other_environment(recorded: dict[str, Any], now: dict[str, Any]) -> str:
    """Name what may make other operations or bits of the same model here; empty if nothing does."""
    words = environment.differences(recorded)
    if recorded["observed"]["num_gpus"] != now["num_gpus"]:
        words.append("another number of GPUs")
    if recorded["observed"]["opaque"] and recorded["num_threads"] != environment.num_threads():
        words.append("another number of threads")
    if onednn.differs(recorded):
        words.append("another setting of oneDNN")
    return " and ".join(words)
