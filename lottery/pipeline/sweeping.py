"""A grid of experiments: networks that several of them share are trained once."""

import dataclasses
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lottery import config, interrupts
from lottery.errors import LotteryError
from lottery.pipeline import dispatch, environment, onednn, opening, presets, shared_prefix, worker
from lottery.pipeline.prepared import Ingredients
from lottery.pipeline.session import Execution, Session
from lottery.runs import store

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
            raise LotteryError(f"A sweep must be over keys of a section other than {FIXED[1]!r}, not {key!r}.")
        if not isinstance(values, list) or not values:
            raise LotteryError(f"sweep.{key} must be a list of values, not {values!r}.")
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
    for point, other in itertools.combinations(found, 2):
        if point.settings == other.settings:
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
    found, ingredients = points(source, overrides), Ingredients(import_code=import_code)
    with execution.started() as session:
        experiments = {}
        for point in found:
            path, experiment, compared = _completed(out, point.settings, ingredients)
            experiments[path] = experiment
            session.note(*compared)
        _open(experiments, ingredients, session, tolerance)
        networks = [job for path, experiment in experiments.items() for job in dispatch.wanted(path, experiment)]
        missing = [job for job in networks if not store.is_stored(job.run, *job.network)]
        copies = shared_prefix.same(networks, experiments)
        states = shared_prefix.states(copies, experiments)
        session.note(_size(len(experiments), len(missing), len(copies)))
        recipes = {
            path: worker.recipe(path, experiment, ingredients, execution.checkpoint_every, states.get(path, ()))
            for path, experiment in experiments.items()
        }
        dispatch.carry_out(recipes, missing, session.writing(experiments), copies=copies)
        session.writing({job.run: experiments[job.run] for job in copies})  # copied networks had no events
    return list(experiments)


def _open(
    experiments: Mapping[Path, config.Experiment],
    ingredients: Ingredients,
    session: Session,
    tolerance: float | None,
) -> None:
    """Open or begin every run of a sweep, so that whatever does not fit is said before anything is trained."""
    recorded = next(filter(None, map(store.read_environment, experiments)), {})  # all as one that began before
    num_threads = recorded.get("num_threads", 0)
    if not all(store.is_complete(path, experiment) for path, experiment in experiments.items()):
        onednn.begin(recorded, [experiment.model.name for experiment in experiments.values()])
        environment.num_threads()  # imports TensorFlow, which has one setting for all
    warned: set[str] = set()
    for number, (path, experiment) in enumerate(experiments.items(), start=1):
        if not (path / "environment.json").exists():
            session.note(f"{path}: experiment {number} of {len(experiments)} is prepared.")
        if store.is_complete(path, experiment):
            session.stack.enter_context(store.opened(path, experiment))
            opening.check_complete(path, experiment)
        else:
            prepared = opening.open_run(session.stack, path, experiment, ingredients, num_threads)
            session.note(*(f"{path}: {note}" for note in prepared.notes))
            warnings = {*opening.too_fine(prepared, tolerance)} - warned  # once for all that share the data
            session.note(*warnings)
            warned |= warnings
        if signal := session.should_stop():
            raise interrupts.Stopped(signal)


def _size(num_experiments: int, num_missing: int, num_copies: int) -> str:
    """Say how many networks a sweep trains, and how many it copies."""
    if not num_missing:
        return f"All {num_experiments} experiments are complete."
    shared = f"; {num_copies} more are the same as one of these" if num_copies else ""
    return f"{num_experiments} experiments: {num_missing - num_copies} networks are to be trained{shared}."


def _completed(
    out: str | Path, experiment: config.Experiment, ingredients: Ingredients
) -> tuple[Path, config.Experiment, list[str]]:
    """Complete an experiment with what a model of the user's decides; return its folder, and sentences to read."""
    if not ingredients.have_own_model(experiment):
        return store.run_path(out, experiment), experiment, []
    environment.begin_threads(experiment)
    path, prepared, notes = opening.located(out, experiment, ingredients)
    return path, prepared.experiment, notes


def _name(name: str, chosen: Mapping[str, Any]) -> str:
    """Name an experiment by what is different, as far as a folder's name can."""
    words = [name, *(f"{key.rpartition('.')[2]}-{value}" for key, value in chosen.items())]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(words))[:100].rstrip(".-_")
