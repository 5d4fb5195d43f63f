"""A grid of experiments: networks that several of them share are trained once."""

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lottery import config, interrupts, progress
from lottery.errors import LotteryError
from lottery.models import networks
from lottery.pipeline import dispatch, environment, identity, preparing, presets, running, shared_prefix, tensorboard
from lottery.pipeline.dispatch import Execution, Recipe
from lottery.pipeline.notes import too_fine
from lottery.pipeline.prepared import Ingredients
from lottery.runs import store
from lottery.statistics import results, verdicts
from lottery.statistics.metric import metric_of

# Keys that a grid may not change: each value would be another sweep.
FIXED = ("sweep", "run.num_threads")


@dataclasses.dataclass(frozen=True)
class Point:
    """One experiment of a sweep, with the values that the grid sets in it, by key such as ``prune.rate``."""

    values: dict[str, Any]
    settings: config.Experiment


def points(source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> list[Point]:
    """List the experiments of a sweep in the order of its grid, the last key changing fastest.

    Args:
        source: A TOML file or its tables: an experiment's, and ``[sweep]`` with a list of values for each key that
            varies, such as ``"prune.rate"``. ``experiment``, at the top, is a file or a preset to start from.
        overrides: Tables that replace single values in all experiments.
    """
    tables = dict(source) if isinstance(source, Mapping) else config.read(Path(source))
    grid, base = tables.pop("sweep", None), tables.pop("experiment", None)
    if not isinstance(grid, Mapping) or not grid:
        raise LotteryError('A sweep has a table [sweep] of lists of values, such as "prune.rate" = [0.2, 0.5].')
    grid = config.flat(grid)
    for key, values in grid.items():
        if key in FIXED or "." not in key:
            raise LotteryError(f"sweep: received {key!r}, allowed are keys of a section other than {FIXED[1]!r}.")
        if not isinstance(values, list) or not values:
            raise LotteryError(f"sweep.{key}: received {values!r}, allowed is a list of values.")
    if base is not None:
        tables = config.merged(config.read(presets.find(str(base))), tables)
    tables = config.merged(tables, overrides or {})
    found = []
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        sections: dict[str, dict[str, Any]] = {}
        for key, value in chosen.items():
            section, _, rest = key.partition(".")
            sections.setdefault(section, {})[rest] = value
        settings = config.load(tables, sections)
        found.append(Point(chosen, settings.model_copy(update={"name": _name(settings.name, chosen)})))
    for one, other in itertools.combinations(found, 2):
        if one.settings == other.settings:
            twice = ", ".join(f"{key} = {value!r}" for key, value in other.values.items())
            raise LotteryError(f"sweep: {twice} appears twice.")
    return found


def sweep(
    source: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    out: str | Path = "runs",
    execution: Execution = Execution(),  # noqa: B008 (frozen)
    tolerance: float | None = None,
    import_code: bool = False,
) -> list[Path]:
    """Run a grid of experiments, resume it, or find it complete, and return its runs' folders; see `lottery.sweep`.

    A test set that cannot resolve `tolerance` is reported before training. For `import_code`, see
    `lottery.models.networks.builder`.
    """
    found, warned, ingredients = points(source, overrides), set(), Ingredients(import_code=import_code)
    with execution.started() as (on_event, should_stop), contextlib.ExitStack() as stack:
        experiments: dict[Path, config.Experiment] = {}
        for point in found:
            path, experiment, compared = _completed(out, point.settings, ingredients)
            experiments[path] = experiment
            for note in compared:
                on_event(progress.Note(note))
        recorded = (store.read_environment(path).get("num_threads", 0) for path in experiments)
        num_threads = next(filter(None, recorded), 0)  # all with as many as one that began before
        for number, (path, experiment) in enumerate(experiments.items(), start=1):
            if not (path / "environment.json").exists():
                on_event(progress.Note(f"{path}: experiment {number} of {len(experiments)} is prepared."))
            if store.is_complete(path, experiment):
                stack.enter_context(store.opened(path, experiment))
                preparing.check_complete(path, experiment)
            else:
                prepared, _, notes = preparing.open_run(stack, path, experiment, ingredients, num_threads)
                for note in notes:
                    on_event(progress.Note(f"{path}: {note}"))
                for note in {*too_fine(prepared, tolerance)} - warned:  # once for all that share the data
                    on_event(progress.Note(note))
                    warned.add(note)
            if signal := should_stop():
                raise interrupts.Stopped(signal)
        every = [task for path, experiment in experiments.items() for task in running.wanted(path, experiment)]
        tasks = [task for task in every if not store.is_stored(task.run, *task.network)]
        copies = shared_prefix.same(every, experiments)
        states, recipes = shared_prefix.states(copies, experiments), {}
        for path, experiment in experiments.items():
            threads, digest = (store.read_environment(path)[key] for key in ("num_threads", "data_sha256"))
            options = {"every": execution.checkpoint_every, "states": states.get(path, ())}
            recipes[path] = Recipe(path, experiment, threads, digest, ingredients, **options)
        shared = f"; {len(copies)} more are the same as one of these" if copies else ""
        size = f"{len(tasks) - len(copies)} networks are to be trained{shared}"
        size = (
            f"{len(experiments)} experiments: {size}." if tasks else f"All {len(experiments)} experiments are complete."
        )
        on_event(progress.Note(size))
        written = _written(experiments, on_event) if execution.tensorboard else contextlib.nullcontext(on_event)
        with written as on_event_of_run:
            dispatch.carry_out(recipes, tasks, execution, on_event_of_run, should_stop, copies=copies)
        if execution.tensorboard:  # copied networks had no events
            with _written({path: experiments[path] for path in {task.run for task in copies}}, on_event):
                pass
    return list(experiments)


def table(runs: Sequence[Path], found: Sequence[Point], tolerance: float | None = None) -> Any:
    """Make a data frame with a row for each experiment of a sweep.

    Args:
        runs, found: The results of `sweep` and of `points`.
        tolerance: What a matching ticket may lose; see `lottery.api.Run.verdict`.

    Returns:
        Columns: the keys of the grid; ``dense_accuracy``, the mean test accuracy of the dense networks at their
        early-stop step, or ``dense_loss`` where no model measures accuracy; ``smallest_matching_density`` and
        ``smallest_matching_difference``, density and difference from dense of the sparsest round whose tickets match
        it, None if none does; ``run``, the folder.
    """
    import pandas as pd

    rows = []
    for run, point in zip(runs, found, strict=True):
        stored = results.table(run)
        tickets = stored[stored["branch"] == store.TICKET]
        best = verdicts.smallest_matching(stored, tolerance) or {}
        values = {
            key: value if isinstance(value, str | int | float) else str(value) for key, value in point.values.items()
        }
        measure = metric_of(stored)
        measured = {
            f"dense_{measure.what}": tickets[tickets["round"] == 0][measure.early_stop].mean(),
            "smallest_matching_density": best.get("density"),
            "smallest_matching_difference": best.get("difference"),
        }
        rows.append({**values, **measured, "run": str(run)})
    return pd.DataFrame(rows)


def _completed(
    out: str | Path, experiment: config.Experiment, ingredients: Ingredients
) -> tuple[Path, config.Experiment, list[str]]:
    """Complete an experiment with what a model of the user's decides; return its folder, and sentences to read."""
    if networks.is_built_in(experiment.model.name):
        return store.run_path(out, experiment), experiment, []
    environment.begin_threads(experiment)
    prepared = preparing.prepare(experiment, ingredients)
    return identity.located(out, prepared.experiment, prepared.observe)


@contextlib.contextmanager
def _written(settings: Mapping[Path, config.Experiment], on_event: progress.OnEvent) -> Iterator[progress.OnEvent]:
    """Write for TensorBoard, each event into its run."""
    with contextlib.ExitStack() as stack:
        writers = {
            path: stack.enter_context(tensorboard.observing(path, experiment, on_event))
            for path, experiment in settings.items()
        }

        def write(event: progress.Event) -> None:
            where = event.where if isinstance(event, progress.Done) else event
            writers.get(getattr(where, "run", Path()), on_event)(event)

        yield write


def _name(name: str, chosen: Mapping[str, Any]) -> str:
    """Name an experiment by what is different, as far as a folder's name can."""
    words = [name, *(f"{key.rpartition('.')[2]}-{value}" for key, value in chosen.items())]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(words))[:100].rstrip(".-_")
