"""The folder of a run is found, opened for writing, and compared with what the caller passes again."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lottery import config, data
from lottery.errors import LotteryError
from lottery.pipeline import environment, preparing
from lottery.pipeline.prepared import Ingredients, Prepared
from lottery.runs import store, verification

# Relative, of what the first steps report on another machine or with other versions; and in half precision.
REPORTED_ROUNDING, REPORTED_ROUNDING_IN_HALF = 1e-5, 1e-2

_DIGESTS = {"model": {"fingerprint"}, "prune": {"fingerprint"}, "run": {"fingerprint"}}

Observe = Callable[[], dict[str, Any]]  # see `Prepared`


def open_run(
    stack: contextlib.ExitStack,
    path: Path,
    experiment: config.Experiment,
    ingredients: Ingredients,
    num_threads: int = 0,
    prepared: Prepared | None = None,
    transfer: config.Experiment | None = None,
) -> Prepared:
    """Open a run until `stack` closes, or begin it; nothing is written before everything is seen to fit.

    A new run has `num_threads`, or a number that is chosen for 0. With `transfer`, this experiment on other data is
    prepared in place of the run's, and has no notes.
    """
    existed = path.exists()
    if existed:  # it is locked before it is read, so that no other process writes what is compared
        stack.enter_context(store.opened(path, experiment))
        verification.refuse_damaged(path, experiment)
    recorded = store.read_environment(path).get("num_threads", num_threads)
    # Before anything is computed: TensorFlow cannot change its number of threads after.
    num_threads = environment.begin_threads(experiment, recorded)
    prepared = prepared or preparing.prepare(transfer or experiment, ingredients)
    if transfer:
        return replace(prepared, notes=())
    # What does not fit has been refused by now, and leaves no folder behind.
    if not existed:
        stack.enter_context(store.opened(path, experiment))
    said = environment.record(path, experiment, prepared, num_threads)
    said += agreed(path, experiment, prepared.experiment, prepared.observe)
    return replace(prepared, experiment=experiment, notes=(*prepared.notes, *said))


def check_complete(path: Path, experiment: config.Experiment) -> None:
    """Raise `LotteryError` if a complete run is damaged, or the file of its data has changed."""
    verification.refuse_damaged(path, experiment)
    if experiment.data.path and Path(experiment.data.path).exists():
        environment.check_data(path, data.load(experiment.data).fingerprint)


def located(
    out: str | Path, experiment: config.Experiment, ingredients: Ingredients
) -> tuple[Path, Prepared, list[str]]:
    """Prepare a run with objects of the caller's, which are a part of its experiment, and so decide its folder.

    Returns the folder, which may not exist yet, and with other versions may have another digest; the run, prepared; and
    sentences that a person should read.
    """
    prepared = preparing.prepare(experiment, ingredients)
    experiment, observe = prepared.experiment, prepared.observe
    path, notes = store.run_path(out, experiment), []
    if path.exists():
        return path, prepared, []
    # Other versions may make other operations of the same model, and so another digest: the settings tell a run.
    for other in store.runs(out):
        try:
            like, recorded = store.read_experiment(other), store.read_environment(other)
        except LotteryError:  # a damaged run is another matter
            continue
        if not recorded or not _are_alike(like, experiment):
            continue
        if not _is_observed(recorded):
            notes.append(
                f"{other} has the same settings, but an earlier version of lottery stored it, which did not observe "
                "what models compute; this is a new run."
            )
        elif elsewhere := _elsewhere(recorded, observe()):
            if said := _agreement(other, experiment, recorded, observe(), elsewhere):
                return other, replace(prepared, experiment=like), [said]
            notes.append(
                f"{other} has the same settings, but started with {elsewhere}, and what its model and functions "
                "compute differs here; this is a new run."
            )
    return path, prepared, notes


def agreed(run: Path, experiment: config.Experiment, now: config.Experiment, observe: Observe) -> list[str]:
    """Compare the objects that a caller passes again, as `now` and `observe` have them, with those of a stored run.

    Returns sentences that a person should read, or raises `LotteryError` if the model or a function is another.
    """
    if config.digest(now) == config.digest(experiment):
        return []
    why, recorded = "", store.read_environment(run)
    # Where only digests differ, other versions may have made other operations of the same model.
    if _are_alike(now, experiment):
        if not _is_observed(recorded):
            return [
                "An earlier version of lottery stored this run, and did not observe what its model and functions "
                "compute, so they cannot be compared."
            ]
        if elsewhere := _elsewhere(recorded, observe()):
            if said := _agreement(run, experiment, recorded, observe(), elsewhere):
                return [said]
            why = f", or {elsewhere} makes it so"
    raise LotteryError(f"The model or a function differs from that of {str(run)!r}{why}.")


def incomparable(run: Path, observe: Observe) -> str:
    """Say why a model cannot be compared with that of a run on other data; empty if it can."""
    recorded = store.read_environment(run)
    if not _is_observed(recorded):
        return "an earlier version of lottery stored the run, and did not observe what its model computes"
    if recorded["observed"]["example"] != observe()["example"]:
        return "the other data have examples of another type or shape"
    # In the same environment digests would be equal, so the model is another.
    elsewhere = _elsewhere(recorded, observe())
    return elsewhere and f"it started with {elsewhere}"


def _are_alike(experiment: config.Experiment, other: config.Experiment) -> bool:
    return experiment.model_dump(exclude=_DIGESTS) == other.model_dump(exclude=_DIGESTS)


def _is_observed(recorded: dict[str, Any]) -> bool:
    """Check if a record, which a stranger may have written, has what `identity.observed` returns."""
    found = recorded.get("observed")
    if not isinstance(found, dict) or not {"reported", "example", "opaque", "num_gpus"} <= set(found):
        return False
    # To `isinstance`, JSON's true is an int.
    numbers = found["reported"]
    return isinstance(numbers, list) and all(type(value) in (int, float) for value in numbers)


def _elsewhere(recorded: dict[str, Any], now: dict[str, Any]) -> str:
    """Name what may make other operations or bits of the same model here; empty if nothing does."""
    words = environment.differences(recorded)
    if recorded["observed"]["num_gpus"] != now["num_gpus"]:
        words.append("another number of GPUs")
    if recorded["observed"]["opaque"] and recorded["num_threads"] != environment.num_threads():
        words.append("another number of threads")
    return " and ".join(words)


def _agreement(
    run: Path, experiment: config.Experiment, recorded: dict[str, Any], now: dict[str, Any], elsewhere: str
) -> str:
    """Say that what was observed is the same but for rounding; empty if it is not."""
    before, after = recorded["observed"]["reported"], now["reported"]
    rounding = REPORTED_ROUNDING if experiment.train.in_full_precision else REPORTED_ROUNDING_IN_HALF
    if len(before) != len(after) or not np.allclose(before, after, rtol=rounding, atol=1e-7):
        return ""
    return (
        f"{run} started with {elsewhere}, so what its model and functions compute was compared by the numbers of the "
        f"first steps, to {100 * rounding:g} %."
    )
