"""A grid of experiments, trained as one: what several of them have in common is trained once."""

import contextlib
import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lottery import config, data, progress, stopping
from lottery.errors import LotteryError
from lottery.executors import cluster
from lottery.executors.scheduler import Task
from lottery.models import networks
from lottery.pipeline import dispatch, environment, presets, running, shared_prefix
from lottery.pipeline.preparing import prepare
from lottery.runs import results, store, tensorboard, verdicts, verification
from lottery.training import checkpoints

# What a grid may not change: it would be another sweep for each value.
FIXED = ("sweep", "run.num_threads")


@dataclasses.dataclass(frozen=True)
class Point:
    """One experiment of a sweep.

    Attributes:
        values: What the grid sets, by key such as ``prune.rate``.
        settings: The experiment.
    """

    values: dict[str, Any]
    settings: config.Experiment


def points(source: str | Path | Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> list[Point]:
    """The experiments of a sweep, in the order of its grid, the last key changing fastest.

    Args:
        source: A TOML file, or its tables: those of an experiment and ``[sweep]``, in which each key of the experiment
            that varies, such as ``"prune.rate"``, has a list of values. ``experiment``, at the top, is a file or a name
            that ships with the package, to start from.
        overrides: Tables that replace single values in all of them.

    Raises:
        LotteryError: The file cannot be read, or a key or a value is wrong.
    """
    tables = dict(source) if isinstance(source, Mapping) else config.read(Path(source))
    grid, base = tables.pop("sweep", None), tables.pop("experiment", None)
    if not isinstance(grid, Mapping) or not grid:
        raise LotteryError(
            'A sweep has a table [sweep] with lists of values by key, such as "prune.rate" = [0.2, 0.5].'
        )
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
        settings = config.load(tables, _as_overrides(chosen))
        found.append(Point(chosen, settings.model_copy(update={"name": _name(settings.name, chosen)})))
    for one, other in itertools.combinations(found, 2):
        if one.settings == other.settings:
            raise LotteryError(f"sweep: {_said(other.values)} is there twice.")
    return found


def sweep(
    source: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    out: str | Path = "runs",
    report: progress.Report | None = None,
    tensorboard: bool = True,
    workers: int | cluster.Ray | None = 1,
    checkpoint_every: checkpoints.Every | None = None,
    asked: stopping.Asked | None = None,
) -> list[results.Run]:
    """Run a grid of experiments, or go on with it, or find it complete. Each is a run of its own.

    What two of them have in common is trained once and copied: the same dense network where they differ in pruning or
    rewinding alone, the same rounds where they differ in what comes after these.

    Args:
        source, overrides: As for `points`.
        out, report, tensorboard, workers, checkpoint_every, asked: As for `lottery.run`.

    Returns:
        The runs, complete, in the order of `points`.

    Raises:
        LotteryError: As for `lottery.run`; before anything is trained where an experiment is wrong.
        Stopped: Somebody has asked to stop; the same call goes on.
    """
    found = points(source, overrides)
    dispatch.check_workers(workers)
    with contextlib.ExitStack() as stack:
        if report is None:
            report = stack.enter_context(progress.shown())
        if asked is None:
            asked = stack.enter_context(stopping.asked())
        every = checkpoint_every or checkpoints.Every()
        settings = {store.run_path(out, one): one for one in map(_filled, (point.settings for point in found))}
        begun = [number for path in settings if (number := store.read_environment(path).get("num_threads"))]
        works = {}
        for number, (path, experiment) in enumerate(settings.items(), start=1):
            if not (path / "environment.json").exists():
                report(progress.Note(f"{path}: experiment {number} of {len(settings)} is prepared."))
            works[path] = stack.enter_context(_begun(path, experiment, begun[0] if begun else 0, every, report))
            if signal := asked():
                raise stopping.Stopped(signal)
        networks = [task for path, experiment in settings.items() for task in running.wanted(path, experiment)]
        tasks = [task for task in networks if not store.is_stored(task.run, *task.network)]
        copies = shared_prefix.same(networks, settings)
        states = shared_prefix.states(copies, settings)
        works = {path: dataclasses.replace(work, states=states.get(path, ())) for path, work in works.items()}
        report(progress.Note(_size(settings, tasks, copies)))
        if tensorboard:
            report = _written(settings, report)
        if tasks:
            trained = [task for task in tasks if task not in copies]
            where = dispatch.num_workers(workers, works, trained or tasks, report)
            dispatch.carry_out(works, tasks, where, report=report, asked=asked, copies=copies)
        if tensorboard:  # of what was copied there were no events
            _written({path: settings[path] for path in {task.run for task in copies}}, report)
    return [results.Run(path) for path in settings]


def table(runs: Sequence[results.Run], found: Sequence[Point], tolerance: float = verdicts.TOLERANCE) -> Any:
    """What came of a sweep: a data frame with a row for each experiment.

    Args:
        runs: What `sweep` returns.
        found: What `points` returns for it.
        tolerance: Accuracy that a matching ticket may lose, in [0, 1].

    Returns:
        Columns: the keys of the grid; ``dense_accuracy``, the mean test accuracy of the dense networks at their
        early-stop step; ``smallest_matching_density`` and ``smallest_matching_difference``, of the sparsest round whose
        tickets match it, its density and its accuracy less the dense, None where none does; ``run``, the folder.
    """
    import pandas as pd

    rows = []
    for run, point in zip(runs, found, strict=True):
        stored = run.table()
        tickets = stored[stored["branch"] == store.TICKET]
        best = verdicts.smallest_matching(stored, tolerance) or {}
        rows.append(
            {
                **{
                    key: value if isinstance(value, str | int | float) else str(value)
                    for key, value in point.values.items()
                },
                "dense_accuracy": tickets[tickets["round"] == 0][verdicts.MEASURE].mean(),
                "smallest_matching_density": best.get("density"),
                "smallest_matching_difference": best.get("difference"),
                "run": str(run.path),
            }
        )
    return pd.DataFrame(rows)


def _filled(settings: config.Experiment) -> config.Experiment:
    """An experiment with what a model of the caller's own decides, which is part of it."""
    if networks.is_built_in(settings.model.name):
        return settings
    environment.begin_threads(settings)
    return prepare(settings).experiment


@contextlib.contextmanager
def _begun(
    path: Path, experiment: config.Experiment, num_threads: int, every: checkpoints.Every, report: progress.Report
) -> Any:
    """A run opened for this process alone, begun if it was not, with as many threads as others of its sweep; what is to
    be done for it."""
    existed = path.exists()
    with contextlib.ExitStack() as stack:
        if existed:
            stack.enter_context(store.opened(path, experiment))
            verification.refuse_damaged(path, experiment)
        num_threads = store.read_environment(path).get("num_threads", num_threads)
        if store.is_complete(path, experiment):
            if experiment.data.path and Path(experiment.data.path).exists():
                environment.check_data(path, data.load(experiment.data).fingerprint)
        else:
            num_threads = environment.begin_threads(experiment, num_threads)
            prepared = prepare(experiment)
            if not existed:
                stack.enter_context(store.opened(path, experiment))
            for note in environment.record(path, experiment, prepared.loop.model, prepared.data, num_threads):
                report(progress.Note(f"{path}: {note}"))
        digest = store.read_environment(path)["data_sha256"]
        yield dispatch.Work(path, experiment, num_threads, digest, every=every)


def _written(settings: Mapping[Path, config.Experiment], report: progress.Report) -> progress.Report:
    """Write what TensorBoard shows, each event with its run."""
    writers = {path: tensorboard.writer(path, experiment, report) for path, experiment in settings.items()}

    def told(event: progress.Event) -> None:
        where = event.where if isinstance(event, progress.Done) else event
        writers.get(getattr(where, "run", Path()), report)(event)

    return told


def _size(settings: Mapping[Path, Any], tasks: Sequence[Task], copies: Mapping[Task, Task]) -> str:
    if not tasks:
        return f"All {len(settings)} experiments are complete."
    shared = f"; {len(copies)} more are the same as one of these" if copies else ""
    return f"{len(settings)} experiments: {len(tasks) - len(copies)} networks are to be trained{shared}."


def _as_overrides(chosen: Mapping[str, Any]) -> dict[str, Any]:
    tables: dict[str, Any] = {}
    for key, value in chosen.items():
        section, _, rest = key.partition(".")
        tables.setdefault(section, {})[rest] = value
    return tables


def _name(name: str, chosen: Mapping[str, Any]) -> str:
    """A name that says what is different, as far as a folder's name can."""
    words = [name, *(f"{key.rpartition('.')[2]}-{value}" for key, value in chosen.items())]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(words))[:100].rstrip(".-_")


def _said(chosen: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value!r}" for key, value in chosen.items())
