"""Branches from the rounds of a run that is stored: more controls, another data set, a function of the caller's own."""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lottery import config, files, progress, stopping
from lottery import weights as weights_module
from lottery.errors import LotteryError, unknown
from lottery.executors import cluster, scheduler
from lottery.pipeline import dispatch, environment
from lottery.pipeline.preparing import Prepared, prepare
from lottery.pruning import branches, criteria
from lottery.runs import results, store, verification
from lottery.runs.tensorboard import writer as tensorboard_writer
from lottery.training import checkpoints


def branch(
    run: str | Path,
    kind: str | branches.BranchFunction,
    rounds: Sequence[int] = (),
    overrides: Mapping[str, Any] | None = None,
    *,
    replicate: int | None = None,
    model: Callable[[], Any] | None = None,
    data: Any = None,
    criterion: criteria.Criterion | None = None,
    report: progress.Report | None = None,
    tensorboard: bool = True,
    workers: int | cluster.Ray | None = 1,
    checkpoint_every: checkpoints.Every | None = None,
    asked: stopping.Asked | None = None,
) -> results.Run:
    """Train branches from stored rounds, or find them complete. What is stored already is not trained again.

    Args:
        run: The run's folder.
        kind: A key of `branches.BRANCHES`, or a function from `branches.StoredTicket` to
            `branches.BranchStart`, which is stored under its name.
        rounds: From which rounds; every pruned one that is complete where it is empty.
        overrides: For ``"transfer"``, and for nothing else: the ``[data]`` of the other data set, and values of
            ``[train]`` that differ, such as ``{"data": {"name": "fashion_mnist"}}``.
        replicate: Of which replicate; of all where it is None.
        model, data, criterion: What was passed to `lottery.run`, if anything was; for ``"transfer"``, `data` may be
            the other data.
        report: Told what happens; by default it is shown on standard error.
        tensorboard: Whether to write for TensorBoard too, in the run's folder; see `lottery.runs.tensorboard`.
        workers, checkpoint_every, asked: As for `lottery.run`.

    Returns:
        The run, whose table has the branches beside the rounds.

    Raises:
        LotteryError: There is no such run, round, replicate or branch; or the ticket does not fit the other data.
        Stopped: Somebody has asked to stop; the same call goes on.
    """
    dispatch.check_workers(workers)
    path, overrides = Path(run), dict(overrides or {})
    settings = store.read_experiment(path)
    if isinstance(kind, str) and kind not in branches.BRANCHES:
        raise unknown("branch", kind, branches.BRANCHES)
    function = branches.BRANCHES[kind].function if isinstance(kind, str) else kind
    name = _name(function)
    transfers = name in branches.BRANCHES and branches.BRANCHES[name].other_data
    _check_overrides(overrides, transfers, data is not None)
    with contextlib.ExitStack() as stack:
        if report is None:
            report = stack.enter_context(progress.shown())
        if asked is None:
            asked = stack.enter_context(stopping.asked())
        num_threads = use_threads(path)
        prepared = prepare(_with(settings, overrides) if overrides else settings, model, data, criterion)
        label = _label(name, overrides, prepared if transfers else None)
        if transfers:
            _check_fit(path, prepared)
        else:
            check_same(path, settings, prepared)
        places = stored_rounds(path, settings, rounds, replicate, first=1)
        networks = [(number, index, label) for number, index in places]
        stack.enter_context(opened(path, settings))
        missing = [network for network in networks if not store.is_stored(path, *network)]
        for network in set(networks) - set(missing):
            record = store.read_record(store.round_path(path, *network))
            if transfers and record["data_sha256"] != prepared.data.fingerprint:
                raise LotteryError(f"What is stored as {label} was trained on other data of this name.")
        if not missing:
            report(progress.Note(f"All {len(networks)} branches {label} of {path} are complete."))
        if tensorboard:
            report = tensorboard_writer(path, settings, report)
        details = {"data_sha256": prepared.data.fingerprint, "overrides": overrides}
        work = dispatch.Work(
            path, prepared.experiment, num_threads, prepared.data.fingerprint, model, data, criterion, function,
            details if transfers else None, checkpoint_every or checkpoints.Every(),
        )  # fmt: skip
        tasks = [scheduler.Task(path, network) for network in missing]
        workers = dispatch.num_workers(workers, {path: work}, tasks, report, prepared)
        dispatch.carry_out({path: work}, tasks, workers, {path: prepared}, report, asked)
    return results.Run(path)


def use_threads(path: Path) -> int:
    """Compute with as many threads as a run was begun with, or raise `LotteryError` if nothing of it is stored."""
    begun = store.read_environment(path)
    if not begun:
        raise LotteryError(f"No round of {str(path)!r} is complete yet.")
    return environment.use_threads(begun["num_threads"])


def check_same(path: Path, settings: config.Experiment, prepared: Prepared) -> None:
    """Raise `LotteryError` unless the data, the model, its devices and the criterion are those of a run."""
    environment.check_data(path, prepared.data.fingerprint)
    environment.check_devices(path, prepared.loop.model)
    if config.digest(prepared.experiment) != config.digest(settings):
        raise LotteryError(f"The model or criterion passed is not the one that {str(path)!r} was run with.")


@contextlib.contextmanager
def opened(path: Path, settings: config.Experiment) -> Iterator[None]:
    """A stored run, for this process alone, seen to be whole."""
    with store.opened(path, settings):
        verification.refuse_damaged(path, settings)
        yield


def stored_rounds(
    path: Path, settings: config.Experiment, rounds: Sequence[int], replicate: int | None, first: int = 0
) -> list[tuple[int, int]]:
    """Replicate and round of what is asked for of a run.

    Args:
        path: The run's folder.
        settings: Its experiment.
        rounds: The rounds; every complete one from `first` on where it is empty.
        replicate: The replicate; all of them where it is None.
        first: See `rounds`.

    Raises:
        LotteryError: There is no such replicate, or one of the rounds is not complete.
    """
    numbers = range(1, settings.run.num_replicates + 1)
    if replicate is not None and replicate not in numbers:
        raise LotteryError(f"replicate: received {replicate}, allowed is 1 to {len(numbers)}.")
    places = []
    for number in numbers if replicate is None else [replicate]:
        complete = store.complete_rounds(path, number)
        missing = [index for index in rounds if index not in complete]
        if missing:
            stored = f"0 to {complete[-1]}" if complete else "none yet"
            raise LotteryError(f"rounds: received {missing[0]}, stored of replicate {number} are {stored}.")
        places += [(number, index) for index in dict.fromkeys(rounds or complete[first:])]
    return places


def _name(function: branches.BranchFunction) -> str:
    """What a branch is called: it is a folder's name and a row's, and those of our own are taken."""
    name = getattr(function, "__name__", type(function).__name__)
    taken = name == store.TICKET or (name in branches.BRANCHES and branches.BRANCHES[name].function is not function)
    if taken or not name.isidentifier():
        raise LotteryError(f"branch: received a function called {name!r}, allowed is a name that is not taken.")
    return name


def _check_overrides(overrides: Mapping[str, Any], transfers: bool, has_data: bool) -> None:
    if overrides and not transfers:
        raise LotteryError("Only the branch 'transfer' takes other values; another experiment is another run.")
    if transfers and not has_data and "data" not in overrides:
        raise LotteryError("The branch 'transfer' needs another data set, such as data.name=fashion_mnist.")
    wrong = [key for key in overrides if key not in ("data", "train")]
    if wrong:
        raise unknown("A section that 'transfer' may change", wrong[0], ("data", "train"))


def _with(settings: config.Experiment, overrides: Mapping[str, Any]) -> config.Experiment:
    tables = settings.model_dump(mode="json")
    if "data" in overrides:
        tables["data"] |= {"path": "", "fingerprint": ""}
    return config.load(tables, overrides)


def _label(name: str, overrides: Mapping[str, Any], prepared: Prepared | None) -> str:
    """What a branch is stored under: its name, and for a transfer which data it is to."""
    if prepared is None:
        return name
    label = f"{name}-{prepared.experiment.data.name}"
    only_named = set(overrides) == {"data"} and set(overrides["data"]) == {"name"}
    if only_named:
        return label
    what = json.dumps([overrides, prepared.data.fingerprint], sort_keys=True)
    return f"{label}-{hashlib.sha256(what.encode()).hexdigest()[:6]}"


def _check_fit(path: Path, prepared: Prepared) -> None:
    folder = next(iter(sorted(path.glob("replicate-*/round-00"))), None)
    if folder is None:
        raise LotteryError(f"No round of {str(path)!r} is complete yet.")
    here = {name: value.shape for name, value in files.read_arrays(folder / "weights.safetensors").items()}
    there = {name: value.shape for name, value in weights_module.read_state(prepared.loop.model).items()}
    wrong = [name for name in (*here, *there) if here.get(name) != there.get(name)]
    if wrong:
        raise LotteryError(
            f"The ticket does not fit the other data: {wrong[0]} has shape {here.get(wrong[0])} in the ticket and "
            f"{there.get(wrong[0])} in a network for them."
        )
