"""An experiment from its file to its last round: new, resumed, or found complete."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lottery import config, formatting
from lottery.pipeline import dispatch, environment, onednn, opening, worker
from lottery.pipeline.prepared import NOTHING_PASSED, Ingredients, with_functions
from lottery.pipeline.session import Execution
from lottery.runs import store


def run(
    source: str | Path | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    ingredients: Ingredients = NOTHING_PASSED,
    out: str | Path = "runs",
    execution: Execution = Execution(),  # noqa: B008 (frozen)
    tolerance: float | None = None,
) -> Path:
    """Run an experiment, resume it, or find it complete, and return its folder; see `lottery.run`.

    A person will judge the run by `tolerance`, so a test set that cannot resolve it is reported before training.
    """
    has_objects = ingredients.model is not None or ingredients.data is not None
    experiment = config.load({} if source is None and has_objects else source, overrides)
    experiment = with_functions(experiment, ingredients)
    with execution.started() as session:
        prepared, path = None, store.run_path(out, experiment)
        if has_objects or ingredients.are_observed(experiment):
            # These come first: TensorFlow is imported, and begins to compute, when the model is built.
            like = environment.of_like_run(out, experiment)
            onednn.begin(like, () if ingredients.model else [experiment.model.name])
            environment.begin_threads(experiment, like.get("num_threads", 0))
            path, prepared, compared = opening.located(out, experiment, ingredients)
            session.note(*compared)
            experiment = prepared.experiment
        if store.is_complete(path, experiment):
            opening.check_complete(path, experiment)
            session = session.writing({path: experiment})  # it was killed after its last round, or run without
            session.note(f"{path} is complete.")
            return path
        prepared = opening.open_run(session.stack, path, experiment, ingredients, prepared=prepared)
        jobs = [job for job in dispatch.wanted(path, experiment) if not store.is_stored(path, *job.network)]
        session.note(*prepared.notes, *opening.too_fine(prepared, tolerance), _size(path, experiment))
        session = session.writing({path: experiment})
        recipes = {path: worker.recipe(path, experiment, ingredients, execution.checkpoint_every)}
        dispatch.carry_out(recipes, jobs, session, {path: prepared})
    return path


def _size(path: Path, experiment: config.Experiment) -> str:
    """Say how many networks a run has, and how many of them are stored."""
    stored, num = store.progress(path, experiment)
    size = f"{path}: {num:,} networks of {formatting.replicates(experiment.run.num_replicates)}"
    if not stored:
        return f"{size}."
    return f"{size}, of which {stored:,} {'are' if stored > 1 else 'is'} stored."
