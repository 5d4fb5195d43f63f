"""An experiment from its file to its last round: new, resumed, or found complete."""

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lottery import config, formatting, progress
from lottery.executors.executor import Job
from lottery.pipeline import completion, dispatch, environment, identity, preparing, tensorboard
from lottery.pipeline.dispatch import Execution, Recipe
from lottery.pipeline.notes import too_fine
from lottery.pipeline.prepared import NOTHING_PASSED, Ingredients
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
    own = ingredients.model is not None or ingredients.data is not None
    experiment = config.load({} if source is None and own else source, overrides)
    experiment = completion.with_functions(experiment, ingredients)
    with execution.started() as (on_event, should_stop), contextlib.ExitStack() as stack:
        prepared, path = None, store.run_path(out, experiment)
        if own or ingredients.are_observed(experiment):
            # The objects passed are part of the experiment, so they decide the name of the run's folder.
            environment.begin_threads(experiment, environment.threads_of_like_runs(out, experiment))
            prepared = preparing.prepare(experiment, ingredients)
            path, experiment, compared = identity.located(out, prepared.experiment, prepared.observe)
            prepared = dataclasses.replace(prepared, experiment=experiment)
            for note in compared:
                on_event(progress.Note(note))
        if store.is_complete(path, experiment):
            preparing.check_complete(path, experiment)
            if execution.tensorboard:  # it was killed after its last round, or run without
                stack.enter_context(tensorboard.observing(path, experiment, on_event))
            on_event(progress.Note(f"{path} is complete."))
            return path
        prepared, num_threads, notes = preparing.open_run(stack, path, experiment, ingredients, prepared=prepared)
        jobs = [job for job in wanted(path, experiment) if not store.is_stored(path, *job.network)]
        stored, num = store.progress(path, experiment)
        size = f"{num:,} networks of {formatting.replicates(experiment.run.num_replicates)}"
        size += f", of which {stored:,} {'are' if stored > 1 else 'is'} stored" if stored else ""
        for note in (*notes, *too_fine(prepared, tolerance), f"{path}: {size}."):
            on_event(progress.Note(note))
        if execution.tensorboard:
            on_event = stack.enter_context(tensorboard.observing(path, experiment, on_event))
        digest, every = prepared.data.fingerprint, execution.checkpoint_every
        recipe = Recipe(path, experiment, num_threads, digest, ingredients, every=every)
        dispatch.carry_out({path: recipe}, jobs, execution, on_event, should_stop, {path: prepared})
    return path


def wanted(path: Path, experiment: config.Experiment) -> list[Job]:
    """List every network of a run, stored or not, in the order of training."""
    replicates = range(1, experiment.run.num_replicates + 1)
    return [Job(path, store.NetworkId(number, *one)) for number in replicates for one in store.wanted(experiment)]
