"""Objects that a caller passes again are compared with those that a run began with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lottery import config
from lottery.errors import LotteryError
from lottery.pipeline import environment, onednn
from lottery.runs import store

# Relative, of what the first steps report on another machine or with other versions; and in half precision.
REPORTED_ROUNDING, REPORTED_ROUNDING_IN_HALF = 1e-5, 1e-2

_DIGESTS = {"model": {"fingerprint"}, "prune": {"fingerprint"}, "run": {"fingerprint"}}

Observe = Callable[[], dict[str, Any]]  # see `Prepared`


def agreed(run: Path, experiment: config.Experiment, now: config.Experiment, observe: Observe) -> list[str]:
    """Compare the objects that a caller passes again, as `now` and `observe` have them, with those of a stored run.

    Returns sentences that a person should read, or raises `LotteryError` if the model or a function is another. Data
    are compared by their digest, wherever they were read: see `environment.check_data`.
    """
    # Where the data lie, and how they were passed, may be another way to the same digest.
    now = now.model_copy(update={"data": experiment.data})
    if config.digest(now) == config.digest(experiment):
        return []
    why, recorded = "", store.read_environment(run)
    # Where only digests differ, other versions may have made other operations of the same model.
    if are_alike(now, experiment):
        if not is_observed(recorded):
            return [
                "An earlier version of lottery stored this run, and did not observe what its model and functions "
                "compute, so they cannot be compared."
            ]
        if elsewhere := other_environment(recorded, observe()):
            if said := same_but_for_rounding(run, experiment, recorded, observe(), elsewhere):
                return [said]
            why = f", or {elsewhere} makes it so"
    raise LotteryError(f"The model or a function differs from that of {str(run)!r}{why}.")


def incomparable(run: Path, observe: Observe) -> str:
    """Say why a model cannot be compared with that of a run on other data; empty if it can."""
    recorded = store.read_environment(run)
    if not is_observed(recorded):
        return "an earlier version of lottery stored the run, and did not observe what its model computes"
    if recorded["observed"]["example"] != observe()["example"]:
        return "the other data have examples of another type or shape"
    # In the same environment digests would be equal, so the model is another.
    elsewhere = other_environment(recorded, observe())
    return elsewhere and f"it started with {elsewhere}"


def are_alike(experiment: config.Experiment, other: config.Experiment) -> bool:
    """Check if two experiments differ in nothing but digests of their models and functions."""
    return experiment.model_dump(exclude=_DIGESTS) == other.model_dump(exclude=_DIGESTS)


def is_observed(recorded: dict[str, Any]) -> bool:
    """Check if a record, which a stranger may have written, has what `identity.observed` returns."""
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


def same_but_for_rounding(
    run: Path, experiment: config.Experiment, recorded: dict[str, Any], now: dict[str, Any], elsewhere: str
) -> str:
    """Say that what was observed is the same but for rounding; empty if it is not."""
    before, after = recorded["observed"]["reported"], now["reported"]
    rounding = REPORTED_ROUNDING if experiment.train.in_full_precision else REPORTED_ROUNDING_IN_HALF
    # Absolute, too: a loss near zero has no digits left to compare.
    if len(before) != len(after) or not np.allclose(before, after, rtol=rounding, atol=1e-7):
        return ""
    return (
        f"{run} started with {elsewhere}, so what its model and functions compute was compared by the numbers of the "
        f"first steps, to {100 * rounding:g} %."
    )
