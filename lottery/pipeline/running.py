"""An experiment from its file to its last round: new, resumed, or found complete."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lottery import config, formatting
from lottery.executors.executor import Job
from lottery.pipeline import dispatch, environment, opening
from lottery.pipeline.prepared import NOTHING_PASSED, Ingredients, Prepared, with_functions
from lottery.pipeline.session import Execution, Session
from lottery.pipeline.worker import Recipe
from lottery.runs import store
from lottery.runs.store import NetworkId
from lottery.statistics import metric
from lottery.training.records import accuracy_among


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
            # Threads come first: TensorFlow begins to compute when the model is built.
            environment.begin_threads(experiment, environment.threads_of_like_runs(out, experiment))
            path, prepared, compared = opening.located(out, experiment, ingredients)
            session.note(*compared)
            experiment = prepared.experiment
        if store.is_complete(path, experiment):
            opening.check_complete(path, experiment)
            session = session.writing({path: experiment})  # it was killed after its last round, or run without
            session.note(f"{path} is complete.")
            return path
        prepared = opening.open_run(session.stack, path, experiment, ingredients, prepared=prepared)
        jobs = [job for job in wanted(path, experiment) if not store.is_stored(path, *job.network)]
        session.note(*prepared.notes, *too_fine(prepared, tolerance), _size(path, experiment))
        session = session.writing({path: experiment})
        recipes = {path: recipe(path, experiment, ingredients, session)}
        dispatch.carry_out(recipes, jobs, session, {path: prepared})
    return path


def wanted(path: Path, experiment: config.Experiment) -> list[Job]:
    """List every network of a run, stored or not, in the order of training."""
    replicates = range(1, experiment.run.num_replicates + 1)
    return [Job(path, NetworkId(number, *place)) for number in replicates for place in store.wanted(experiment)]


def recipe(
    path: Path,
    experiment: config.Experiment,
    ingredients: Ingredients,
    session: Session,
    states: tuple[int, ...] = (),
) -> Recipe:
    """Collect what it takes to train networks of a run that is open."""
    # What the run began with, whatever this process would choose.
    recorded = store.read_environment(path)
    return Recipe(
        path=path,
        experiment=experiment,
        num_threads=recorded["num_threads"],
        data_sha256=recorded["data_sha256"],
        ingredients=ingredients,
        every=session.execution.checkpoint_every,
        states=states,
    )


def too_fine(prepared: Prepared, tolerance: float | None) -> list[str]:
    """Warn if a tolerance of accuracy is finer than one test example. Of a stream the number of examples is unknown."""
    model, test_logs = prepared.trainer.model, prepared.trainer.loop.examined.test_logs
    measured = accuracy_among(test_logs or tuple(model.get_metrics_result()))
    return metric.too_fine(tolerance, prepared.data.num_examples("test") if measured else 0)


def _size(path: Path, experiment: config.Experiment) -> str:
    """Say how many networks a run has, and how many of them are stored."""
    stored, num = store.progress(path, experiment)
    size = f"{path}: {num:,} networks of {formatting.replicates(experiment.run.num_replicates)}"
    if not stored:
        return f"{size}."
    return f"{size}, of which {stored:,} {'are' if stored > 1 else 'is'} stored."
