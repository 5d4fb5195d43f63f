"""An experiment from its file to its last round: its run is begun, resumed, or found complete."""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lottery import config, data
from lottery.errors import LotteryError
from lottery.formatting import counted
from lottery.pipeline import agreement, dispatch, environment, preparing
from lottery.pipeline.prepared import Ingredients, Prepared, with_functions
from lottery.pipeline.session import Execution, Session
from lottery.pipeline.worker import Recipe
from lottery.runs import store, verification
from lottery.statistics import metric


def run(
    source: str | Path | Mapping[str, Any] | None,
    overrides: Mapping[str, Any] | None,
    ingredients: Ingredients,
    out: str | Path,
    execution: Execution,
    tolerance: float | None = None,
) -> Path:
    """Run an experiment, resume it, or find it complete, and return its folder; see `lottery.run`.

    A person will judge the run by `tolerance`, so a test set that cannot resolve it is reported before training.
    """
    stored = Path(source) if isinstance(source, str | Path) and Path(source).is_dir() else None
    if stored:
        experiment = _stored_experiment(stored, overrides)
    else:
        has_objects = ingredients.model is not None or ingredients.data is not None
        # The default experiment is tuned to its own data and network.
        experiment = config.load({} if source is None and has_objects else source, overrides)
        experiment = with_functions(experiment, ingredients)
    with execution.started() as session:
        path, prepared = stored, None
        if path is None:
            path, experiment, prepared = _found(session, out, experiment, ingredients)
        experiments = {path: experiment}
        if store.is_complete(path, experiment):
            if stored and ingredients.are_passed:  # which are compared with those of the run
                open_run(session.stack, path, experiment, ingredients)
            check_complete(path, experiment)
            # It may have been killed after its last round, or have run without TensorBoard.
            session = session.writing(experiments)
            session.note(f"{path} is complete.")
            return path
        prepared = open_run(session.stack, path, experiment, ingredients, prepared=prepared)
        session.note(*prepared.notes, *too_fine(prepared, tolerance), _size(path, experiment))
        recipe = Recipe(path, experiment, ingredients, every=execution.checkpoint_every)
        jobs = [job for job in dispatch.wanted(experiments) if not job.is_stored]
        dispatch.carry_out({path: recipe}, jobs, session.writing(experiments), {path: prepared})
    return path


def _stored_experiment(run: Path, overrides: Mapping[str, Any] | None) -> config.Experiment:
    """Return the experiment of a run, which may have come from another machine."""
    experiment = store.read_experiment(run)
    if overrides:
        hint = " To read its data elsewhere, set LOTTERY_DATA to their folder." if "data" in overrides else ""
        raise LotteryError(f"{str(run)!r} has its experiment already, and takes no other values.{hint}")
    return experiment


def _found(
    session: Session, out: str | Path, experiment: config.Experiment, ingredients: Ingredients
) -> tuple[Path, config.Experiment, Prepared | None]:
    """Return the folder of an experiment's run, the experiment as the run has it, and the run if it was prepared."""
    if ingredients.data is None and not ingredients.are_observed(experiment):
        return store.run_path(out, experiment), experiment, None
    # These come first: TensorFlow is imported, and begins to compute, when the model is built.
    like = environment.of_like_run(out, experiment)
    environment.begin(experiment, like, () if ingredients.model else [experiment.model.name])
    path, prepared, compared = located(out, experiment, ingredients)
    session.note(*compared)
    return path, prepared.experiment, prepared


def _size(path: Path, experiment: config.Experiment) -> str:
    """Say how many networks a run has, and how many of them are stored."""
    stored, num = store.progress(path, experiment)
    replicates = counted(experiment.run.num_replicates, "replicate")
    size = f"{path}: {counted(num, 'network')} of {replicates}"
    if not stored:
        return f"{size}."
    return f"{size}, of which {stored:,} {'are' if stored > 1 else 'is'} stored."


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
                f"{other} has the same settings, but an earlier version of lottery stored it, which did not observe "
                "what models compute; this is a new run."
            )
            continue
        elsewhere, said = agreement.compared(other, prepared)
        if said:
            return other, replace(prepared, experiment=like), [said]
        if elsewhere:
            notes.append(
                f"{other} has the same settings, but started with {elsewhere}, and what its model and functions "
                "compute differs here; this is a new run."
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
