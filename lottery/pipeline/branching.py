"""Branches from the rounds of a run that is stored: more controls, another data set, a function of the caller's own."""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lottery import config, progress, weights
from lottery.errors import LotteryError, unknown
from lottery.executors.executor import Job
from lottery.models import networks
from lottery.pipeline import branch_training, checks, dispatch, identity, preparing, tensorboard
from lottery.pipeline.dispatch import Execution, Recipe
from lottery.pipeline.network_training import Training
from lottery.pipeline.prepared import NOTHING_PASSED, Ingredients, Prepared
from lottery.pruning import branches, fairness
from lottery.runs import store
from lottery.runs.store import NetworkId
from lottery.runs.stored import StoredRound


def branch(
    run: str | Path,
    kind: str | branches.BranchFunction,
    rounds: Sequence[int] = (),
    overrides: Mapping[str, Any] | None = None,
    replicate: int | None = None,
    ingredients: Ingredients = NOTHING_PASSED,
    execution: Execution = Execution(),  # noqa: B008 (frozen)
) -> None:
    """Train branches from stored rounds, or find them complete; see `lottery.branch`."""
    path, overrides = Path(run), dict(overrides or {})
    experiment = store.read_experiment(path)
    if isinstance(kind, str) and kind not in branches.BRANCHES:
        raise unknown("branch", kind, branches.BRANCHES)
    if isinstance(kind, str):
        rewind, prune = experiment.rewind, experiment.prune
        fairness.check_fair(kind, rewind.mode, rewind.step, held_at=prune.held_at, granularity=prune.granularity)
    function = branches.BRANCHES[kind].function if isinstance(kind, str) else kind
    name = _name(function)
    transfers = name in branches.BRANCHES and branches.BRANCHES[name].other_data
    _check_overrides(overrides, transfers, ingredients.data is not None)
    with execution.started() as (on_event, should_stop), contextlib.ExitStack() as stack:
        if transfers and rounds:
            rounds = [0, *rounds]  # the dense network on the other data, without which no accuracy there says much
        places = chosen_rounds(path, experiment, rounds, replicate, first=0 if transfers else 1)
        other = None
        if transfers:
            tables = experiment.model_dump(mode="json")
            tables["data"] |= {"path": "", "fingerprint": ""} if "data" in overrides else {}
            other = config.validated(config.merged(tables, overrides))
        prepared, num_threads, _ = preparing.open_run(stack, path, experiment, ingredients, transfer=other)
        checks.check_learns(prepared, name)
        if transfers and places:
            _check_fit(StoredRound(path, places[0][0], 0), prepared)
            for note in _compared(path, experiment, prepared, ingredients):
                on_event(progress.Note(note))
        label = _label(name, overrides, prepared if transfers else None)
        networks = [NetworkId(*place, label) for place in places]
        missing = [network for network in networks if not store.is_stored(path, *network)]
        for network in set(networks) - set(missing):
            record = store.read_record(store.round_path(path, *network))
            if transfers and record["data_sha256"] != prepared.data.fingerprint:
                raise LotteryError(f"The stored branch {label} was trained on other data with the same name.")
        if name not in branches.BRANCHES:
            training = Training(path, prepared, on_event)
            for network in (one for one in networks if one not in missing):
                if not branch_training.matches_stored(training, network, function):
                    raise LotteryError(
                        f"branch: another function called {name!r} made the branch of round {network[1]} of replicate "
                        f"{network[0]}; rename the function."
                    )
        if not missing:
            on_event(progress.Note(f"All {len(networks)} branches {label} of {path} are complete."))
        if execution.tensorboard:
            on_event = stack.enter_context(tensorboard.observing(path, experiment, on_event))
        digest, every = prepared.data.fingerprint, execution.checkpoint_every
        details = {"data_sha256": digest, "overrides": overrides} if transfers else None
        recipe = Recipe(path, prepared.experiment, num_threads, digest, ingredients, function, details, every)
        jobs = [Job(path, network) for network in missing]
        dispatch.carry_out({path: recipe}, jobs, execution, on_event, should_stop, {path: prepared})


def chosen_rounds(
    path: Path, settings: config.Experiment, rounds: Sequence[int], replicate: int | None, first: int = 0
) -> list[tuple[int, int]]:
    """List replicate and round of chosen rounds of a run, by default of every complete round from `first` on."""
    if not store.read_environment(path):
        raise LotteryError(f"No round of {str(path)!r} is complete yet.")
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
    """Return a branch's name, which becomes a folder's and a row's; the names of `branches.BRANCHES` are taken."""
    name = getattr(function, "__name__", type(function).__name__)
    taken = name == store.TICKET or (name in branches.BRANCHES and branches.BRANCHES[name].function is not function)
    if taken or not name.isidentifier():
        raise LotteryError(f"branch: received a function called {name!r}, but that name is taken; rename the function.")
    return name


def _check_overrides(overrides: Mapping[str, Any], transfers: bool, has_data: bool) -> None:
    if overrides and not transfers:
        raise LotteryError("Only the branch 'transfer' takes other values; another experiment is another run.")
    if transfers and not has_data and "data" not in overrides:
        raise LotteryError("The branch 'transfer' needs another data set, such as data.name=fashion_mnist.")
    wrong = [key for key in overrides if key not in ("data", "train")]
    if wrong:
        raise unknown("A section that 'transfer' may change", wrong[0], ("data", "train"))


def _label(name: str, overrides: Mapping[str, Any], prepared: Prepared | None) -> str:
    """Return the name that a branch is stored under; that of a transfer says which data it uses."""
    if prepared is None:
        return name
    label = f"{name}-{prepared.experiment.data.name}"
    if set(overrides) == {"data"} and set(overrides["data"]) == {"name"}:
        return label
    what = json.dumps([overrides, prepared.data.fingerprint], sort_keys=True)
    return f"{label}-{hashlib.sha256(what.encode()).hexdigest()[:6]}"


def _compared(path: Path, experiment: config.Experiment, prepared: Prepared, ingredients: Ingredients) -> Iterator[str]:
    """Raise `LotteryError` if a transfer has another model than its run; yield why they cannot be compared, if so."""
    now, wanted = prepared.experiment, experiment.model
    if ingredients.model is None and networks.is_built_in(now.model.name) and now.model == wanted:
        return
    if now.train != experiment.train:  # the optimiser is a part of a training step
        now = preparing.prepare(now.model_copy(update={"train": experiment.train}), ingredients).experiment
    if now.model == wanted:
        return
    why = identity.incomparable(path, prepared.observe)
    if not why:
        raise LotteryError(f"The model or a function differs from that of {str(path)!r}.")
    yield f"The model was not compared with that of {path}: {why}."


def _check_fit(dense: StoredRound, prepared: Prepared) -> None:
    """Raise `LotteryError` unless the network for the other data has the shapes of a stored one."""
    ticket = {name: value.shape for name, value in dense.weights.items()}
    other = {name: value.shape for name, value in weights.read_state(prepared.trainer.model).items()}
    wrong = [name for name in (*ticket, *other) if ticket.get(name) != other.get(name)]
    for name in wrong:
        raise LotteryError(
            f"The ticket does not fit the other data: {name} has shape {ticket.get(name)} in the ticket and "
            f"{other.get(name)} in a network for them."
        )
