"""A run that is opened, to be begun, resumed or read: found by the caller's objects, locked, and seen to fit."""

import contextlib
from dataclasses import replace
from pathlib import Path

from lottery import config, data
from lottery.errors import LotteryError
from lottery.pipeline import agreement, environment, preparing
from lottery.pipeline.prepared import Ingredients, Prepared
from lottery.runs import store, verification
from lottery.statistics import metric


def located(
    out: str | Path, experiment: config.Experiment, ingredients: Ingredients
) -> tuple[Path, Prepared, list[str]]:
    """Prepare a run with objects of the caller's, which are a part of its experiment, and so decide its folder.

    Returns the folder, which may not exist yet, and with other versions may have another digest; the run, prepared; and
    sentences that a person should read.
    """
    prepared = preparing.prepare(experiment, ingredients)
    experiment = prepared.experiment
    path = store.run_path(out, experiment)
    notes: list[str] = []
    if path.exists():
        return path, prepared, []
    # Other versions may make other operations of the same model, and so another digest: the settings tell a run.
    for other in store.runs(out):
        try:
            like, recorded = store.read_experiment(other), store.read_environment(other)
        except LotteryError:  # a damaged run is another matter
            continue
        if not recorded or not agreement.are_alike(like, experiment):
            continue
        if not agreement.is_observed(recorded):
            notes.append(
                f"{other} has the same settings, but an earlier version of lottery stored it, and did not observe what "
                "its model computes. A new run begins."
            )
            continue
        elsewhere, said = agreement.compared(other, prepared)
        if said:
            return other, replace(prepared, experiment=like), [said]
        if elsewhere:
            notes.append(
                f"{other} has the same settings, but started with {elsewhere}, and its model and functions compute "
                "other values here. A new run begins."
            )
    return path, prepared, notes


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
    # A run that exists is locked before it is read, so that no other process writes what is compared.
    if existed:
        stack.enter_context(store.opened(path, experiment))
        verification.refuse_damaged(path, experiment)
    if prepared is None and ingredients.data is None:
        # For its errors, before TensorFlow is imported, which takes seconds.
        data.file_of((transfer or experiment).data)
    recorded = store.read_environment(path)
    # Before anything is computed: TensorFlow cannot change its number of threads after.
    num_threads = environment.begin(experiment, recorded, [experiment.model.name], num_threads)
    prepared = prepared or preparing.prepare(transfer or experiment, ingredients)
    if transfer:
        return replace(prepared, notes=())
    # What does not fit has been refused by now, and leaves no folder behind.
    if not existed:
        stack.enter_context(store.opened(path, experiment))
    said = environment.record(path, experiment, prepared, num_threads)
    said += agreement.agreed(path, experiment, prepared)
    return replace(prepared, experiment=experiment, notes=(*prepared.notes, *said))


def check_complete(path: Path, experiment: config.Experiment) -> None:
    """Raise `LotteryError` if a complete run is damaged, or the file of its data has changed."""
    verification.refuse_damaged(path, experiment)
    if experiment.data.path and Path(experiment.data.path).exists():
        environment.check_data(path, data.load(experiment.data).fingerprint)


def too_fine(prepared: Prepared, tolerance: float | None) -> list[str]:
    """Warn if a tolerance of accuracy is finer than one test example. Of a stream the number of examples is unknown."""
    return metric.too_fine(tolerance, prepared.data.num_examples("test") if prepared.accuracy else 0)
