"""A grid of experiments: networks that several of them share are trained once."""

import dataclasses
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lottery import config, files, interrupts, weights
from lottery.errors import LotteryError
from lottery.executors.scheduler import Job
from lottery.pipeline import dispatch, environment, opening
from lottery.pipeline.prepared import Ingredients
from lottery.pipeline.session import Execution, Session
from lottery.pipeline.worker import Recipe
from lottery.pruning import plan
from lottery.runs import store
from lottery.runs.store import NetworkId
from lottery.runs.stored import StoredRound

# Keys that a grid may not change: each value would be another sweep.
FIXED = ("sweep", "run.num_threads")
OF_THE_WHOLE = ("num_replicates", "controls", "control_rounds")  # keys that do not decide how a network is trained
# Keys of the environment that bits depend on.
COMPUTED_WITH = ("data_sha256", "num_threads", "num_devices", "onednn", "python", "versions", "processor")

Experiments = Mapping[Path, config.Experiment]  # by the folder of the run


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
            raise LotteryError(
                f"A sweep can vary any key of a section, such as prune.rate, except {FIXED[1]}. It cannot vary {key!r}."
            )
        if not isinstance(values, list) or not values:
            raise LotteryError(f"sweep.{key} must be a list of values, not {values!r}.")
    if base is not None:
        tables = config.merged(config.read(Path(base)), tables)
    if both := grid.keys() & config.flat(overrides or {}).keys():
        raise LotteryError(f"{min(both)} has values in [sweep], so it cannot be set for every experiment.")
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
    # Both would be one folder, and the grid a run short.
    for point, other in itertools.combinations(found, 2):
        if point.settings == other.settings:
            twice = ", ".join(f"{key} = {value!r}" for key, value in other.values.items())
            raise LotteryError(f"sweep: {twice} appears twice.")
    return found


def sweep(
    found: Sequence[Point],
    out: str | Path,
    execution: Execution,
    tolerance: float | None = None,
    import_code: bool = False,
) -> list[Path]:
    """Run the experiments of `points`, resume them, or find them complete, and return the folders of their runs.

    A test set that cannot resolve `tolerance` is reported before training. For `import_code`, see
    `lottery.models.networks.builder`.
    """
    ingredients = Ingredients(import_code=import_code)
    with execution.started() as session:
        experiments = {}
        # Before a model is built, by which TensorFlow begins to compute.
        like = _recorded(out, found, ingredients)
        for point in found:
            path, experiment = store.run_path(out, point.settings), point.settings
            if ingredients.have_own_model(experiment):  # its settings alone do not tell its run
                environment.begin(experiment, like)
                path, prepared, compared = opening.located(out, experiment, ingredients)
                experiment = prepared.experiment
                session.note(*compared)
            experiments[path] = experiment
        _open(experiments, ingredients, session, tolerance)
        networks = dispatch.wanted(experiments)
        missing = [job for job in networks if not job.is_stored]
        copies = _same(networks, experiments)
        wanted = _states(copies, experiments)
        session.note(_size(len(experiments), len(missing), len(copies)))
        recipes = {
            path: Recipe(path, experiment, ingredients, states=wanted.get(path, ()))
            for path, experiment in experiments.items()
        }

        def copy(job: Job) -> None:
            _copy_network(job, copies[job], experiments[job.run])
            session.note(f"{job} of {job.run} is copied from {copies[job].run}.")

        dispatch.carry_out(recipes, missing, session.writing(experiments), copies=copies, copy=copy)
        # Copied networks had no events.
        session.writing({job.run: experiments[job.run] for job in copies})
    return list(experiments)


def _recorded(out: str | Path, found: Sequence[Point], ingredients: Ingredients) -> Mapping[str, Any]:
    """Return what a run of the grid with a model of the user's own has recorded; nothing if none was begun."""
    own = [point.settings for point in found if ingredients.have_own_model(point.settings)]
    recorded = (environment.of_like_run(out, experiment) for experiment in own)
    return next(filter(None, recorded), {})


def _open(
    experiments: Mapping[Path, config.Experiment], ingredients: Ingredients, session: Session, tolerance: float | None
) -> None:
    """Open or begin every run of a sweep, so that whatever does not fit is said before anything is trained."""
    # All as one that began before, because networks of other environments are not shared.
    recorded = next(filter(None, map(store.read_environment, experiments)), {})
    num_threads = recorded.get("num_threads", 0)
    if not all(store.is_complete(path, experiment) for path, experiment in experiments.items()):
        # TensorFlow has one setting for all.
        environment.import_tensorflow(recorded, [experiment.model.name for experiment in experiments.values()])
    said: set[str] = set()  # once for all that share the model or the data
    for number, (path, experiment) in enumerate(experiments.items(), start=1):
        if not (path / "environment.json").exists():
            session.note(f"{path}: experiment {number} of {len(experiments)} is prepared.")
        if store.is_complete(path, experiment):
            session.stack.enter_context(store.opened(path, experiment))
            opening.check_complete(path, experiment)
        else:
            prepared = opening.open_run(session.stack, path, experiment, ingredients, num_threads)
            notes = [note for note in prepared.notes if note not in said]
            warnings = [warning for warning in opening.too_fine(prepared, tolerance) if warning not in said]
            session.note(*(f"{path}: {note}" for note in notes), *warnings)
            said.update(notes, warnings)
        if signal := session.should_stop():
            raise interrupts.Stopped(signal)


def _size(num_experiments: int, num_missing: int, num_copies: int) -> str:
    if not num_missing:
        return "Every experiment of the sweep is complete."
    shared = f"; {num_copies} more are the same as one of these" if num_copies else ""
    return f"{num_experiments} experiments. Networks to train: {num_missing - num_copies}{shared}."


def _name(name: str, chosen: Mapping[str, Any]) -> str:
    """Name an experiment by what is different, as far as a folder's name can."""
    words = [name, *(f"{key.rpartition('.')[2]}-{value}" for key, value in chosen.items())]
    # Names that are cut may be alike; the digest behind them tells their folders apart.
    return re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(words))[:100].rstrip(".-_")


# Networks that several experiments share: trained for the first, copied for the others.


def _prefix(experiment: config.Experiment, recorded: Mapping[str, Any], number: int, branch: str = store.TICKET) -> str:
    """Write down everything that decides the bits of a round, or of a branch from it, as a text to compare."""
    tables = experiment.model_dump(mode="json")
    decides: dict[str, Any] = {key: tables[key] for key in ("data", "model", "train")}
    decides["run"] = {key: value for key, value in tables["run"].items() if key not in OF_THE_WHOLE}
    decides["environment"] = {key: recorded.get(key) for key in COMPUTED_WITH}
    # Rewinding does not decide round 0, but what is drawn anew for a branch from it is set back by its mode, too.
    if number or branch != store.TICKET:
        decides["rewind"] = tables["rewind"]
    if number:
        prune = tables["prune"]
        if plan.is_open_ended(experiment.prune):  # later rounds do not decide this one
            prune |= {"densities": prune["densities"][:number], "num_rounds": number}
        decides["prune"] = prune
    return json.dumps(decides, sort_keys=True)


def _same(networks: Sequence[Job], experiments: Experiments) -> dict[Job, Job]:
    """Find the networks that need not be trained, each with its original, among all networks, stored or not."""
    environments = {run: store.read_environment(run) for run in experiments}
    originals: dict[tuple[str, NetworkId], list[Job]] = {}
    copies = {}
    # Those that are stored come first, so that they are the originals.
    for job in sorted(networks, key=lambda job: not job.is_stored):
        text = _prefix(experiments[job.run], environments[job.run], job.network.round, job.network.branch)
        alike = originals.setdefault((text, job.network), [])
        useful = next((other for other in alike if _has_state(job, other, experiments)), None)
        if useful and not job.is_stored:
            copies[job] = useful
        else:
            alike.append(job)
    return copies


def _other_step(job: Job, original: Job, experiments: Experiments) -> int:
    """Return the step that a dense network's run rewinds to, if the original's run rewinds to another; else 0."""
    step = experiments[job.run].rewind.step
    if job.network.round or step == experiments[original.run].rewind.step:
        return 0
    return step


def _has_state(job: Job, original: Job, experiments: Experiments) -> bool:
    """Return True if the weights that a network's run rewinds to are, or will be, stored with the original."""
    step = _other_step(job, original, experiments)
    if not step or not original.is_stored:
        return True
    return store.state_path(original.run, original.network.replicate, step).exists()


def _states(copies: Mapping[Job, Job], experiments: Experiments) -> dict[Path, tuple[int, ...]]:
    """List by run the steps of its dense networks that other runs rewind to."""
    wanted: dict[Path, set[int]] = {}
    for job, original in copies.items():
        if step := _other_step(job, original, experiments):
            wanted.setdefault(original.run, set()).add(step)
    return {run: tuple(sorted(steps)) for run, steps in wanted.items()}


def _copy_network(job: Job, original: Job, experiment: config.Experiment) -> None:
    """Copy a complete network into the run of another `experiment`, with the start weights of its replicate."""
    store.check_there(job.run)
    network = StoredRound(original.run, *original.network)
    # The checksums come last in a record, so that a copy has the bytes of a network that is trained in its place.
    record = {key: value for key, value in network.record.items() if key not in ("sha256", "record_sha256")}
    sums = network.record["sha256"]
    # Every file that the original has is read, whole, before anything is stored.
    contents = {name: store.read_checked(network.folder / name, sums[name]) for name in sums}
    if not network.round and network.branch == store.TICKET:
        # The other run may rewind to another step: the state of that step has its own checksum.
        record.pop("rewind_sha256", None)
        record |= _copy_starts(job, network, experiment.rewind.step)
    folder = store.round_path(job.run, *job.network)
    for name, content in contents.items():
        files.write(folder / name, content)
    # Last of all: with its record the network is complete.
    store.write_record(folder / "round.json", {**record, "sha256": sums})
    store.clear_checkpoints(folder)


def _copy_starts(job: Job, network: StoredRound, step: int) -> dict[str, str]:
    """Copy the initial weights of a replicate, and its state at the rewind step; return what the record says of it."""
    run, replicate = network.run, network.replicate
    files.write(store.start_path(job.run, replicate), files.read(store.start_path(run, replicate)))
    if not step:
        return {}
    if store.read_experiment(run).rewind.step == step:
        state = store.read_start(run, replicate, step)
        if weights.fingerprint(state) != network.record.get("rewind_sha256"):
            source = store.start_path(run, replicate, step)
            raise LotteryError(f"{str(source)!r} is damaged: its checksum differs from the record.")
    else:
        state = store.read_state(store.state_path(run, replicate, step))
    files.write(store.start_path(job.run, replicate, step), files.pack_arrays(state))
    return {"rewind_sha256": weights.fingerprint(state)}
