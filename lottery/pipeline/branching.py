"""Branches from the rounds of a run that is stored: more controls, another data set, a function of the caller's own."""

import hashlib
import json
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lottery import config
from lottery.errors import LotteryError, unknown
from lottery.executors.scheduler import Job
from lottery.pipeline import agreement, branch_training, dispatch, opening, preparing
from lottery.pipeline.network_training import Training
from lottery.pipeline.prepared import Ingredients, Prepared, with_other_data
from lottery.pipeline.session import Execution
from lottery.pipeline.worker import Recipe
from lottery.pruning import branches, fairness
from lottery.runs import store
from lottery.runs.store import NetworkId
from lottery.runs.stored import StoredRound


def branch(
    run: store.Folder,
    kind: str | branches.BranchFunction,
    rounds: Sequence[int] = (),
    overrides: Mapping[str, Any] | None = None,
    replicate: int | None = None,
    ingredients: Ingredients = Ingredients(),
    execution: Execution = Execution(),
) -> None:
    """Train branches from stored rounds, or find them complete; see `lottery.branch`."""
    path = Path(run)
    rounds, overrides = whole_numbers("rounds", rounds), dict(config.plain(overrides or {}))
    experiment = store.read_experiment(path)
    function = _function(kind, experiment)
    name = _name(function)
    known = branches.BRANCHES.get(name)
    if known is not None:
        fairness.check_rounds(name, rounds)
    transfers = known is not None and known.other_data
    _check_overrides(overrides, transfers, ingredients.data is not None)
    with execution.started() as session:
        if transfers and rounds:
            # The dense network on the other data, without which no accuracy there says much.
            rounds = [0, *rounds]
        places = chosen_rounds(path, experiment, rounds, replicate, first=0 if transfers else 1)
        other = with_other_data(experiment, overrides, ingredients.data) if transfers else None
        prepared = opening.open_run(session.stack, path, experiment, ingredients, transfer=other)
        # Before any training: a refusal after hours would be late.
        prepared.check_learns(name)
        if transfers and places:
            _check_fit(StoredRound(path, places[0][0], 0), prepared)
            session.note(*_compared(path, experiment, prepared, ingredients))
        label = _label(name, overrides, prepared) if transfers else name
        jobs = [Job(path, NetworkId(*place, label)) for place in places]
        missing = [job for job in jobs if not job.is_stored]
        stored = [job.network for job in jobs if job.is_stored]
        if transfers:
            _check_same_data(path, stored, prepared)
        elif known is None:
            _check_same_function(Training(path, prepared, session.on_event), stored, function)
        if not missing:
            session.note(f"Every branch {label} of {path} is complete.")
        data_sha256 = prepared.data.fingerprint
        details = {"data_sha256": data_sha256, "overrides": overrides} if transfers else None
        recipe = Recipe(
            path, prepared.experiment, ingredients, data_sha256=data_sha256, branch=function, details=details
        )
        dispatch.carry_out({path: recipe}, missing, session.writing({path: experiment}), {path: prepared})


def whole_numbers(what: str, values: Iterable[int]) -> list[int]:
    """Return whole numbers as Python's own, which a record can hold; raise `LotteryError` if they are none."""
    try:
        return [operator.index(value) for value in values]
    except TypeError:
        raise LotteryError(f"{what} must be a list of whole numbers, such as [1, 2], not {values!r}.") from None


def chosen_rounds(
    path: Path, experiment: config.Experiment, rounds: Sequence[int], replicate: int | None, first: int = 0
) -> list[tuple[int, int]]:
    """List replicate and round of chosen rounds of a run, by default of every complete round from `first` on."""
    num = experiment.run.num_replicates
    replicates = [number for number in range(1, num + 1) if replicate in (None, number)]
    if not replicates:
        raise LotteryError(f"replicate must be 1 to {num}, not {replicate!r}.")
    places = []
    for number in replicates:
        complete = store.complete_rounds(path, number)
        for wrong in [chosen for chosen in rounds if chosen not in complete]:
            stored = f"0 to {complete[-1]}" if complete else "none yet"
            raise LotteryError(f"rounds: replicate {number} has no round {wrong}. It has {stored}.")
        places += [(number, chosen) for chosen in dict.fromkeys(rounds or complete[first:])]
    if not places:
        raise LotteryError(f"No {'pruned ' if first else ''}round of {str(path)!r} is complete yet.")
    return places


def _function(kind: str | branches.BranchFunction, experiment: config.Experiment) -> branches.BranchFunction:
    """Return the function of a branch; raise `LotteryError` if its name is not known, or not fair in this run."""
    if not isinstance(kind, str):
        return kind
    if kind not in branches.BRANCHES:
        raise unknown("branch", kind, branches.BRANCHES)
    fairness.check_fair(kind, experiment.prune, experiment.rewind)
    return branches.BRANCHES[kind].function


def _check_same_data(path: Path, stored: Sequence[NetworkId], prepared: Prepared) -> None:
    for network in stored:
        record = store.read_record(store.round_path(path, *network))
        if record["data_sha256"] != prepared.data.fingerprint:
            raise LotteryError(f"The stored branch {network.branch} was trained on other data with the same name.")


def _check_same_function(training: Training, stored: Sequence[NetworkId], function: branches.BranchFunction) -> None:
    for network in stored:
        if not branch_training.matches_stored(training, network, function):
            raise LotteryError(
                f"branch: another function called {network.branch!r} made the branch of round {network.round} of "
                f"replicate {network.replicate}; rename the function."
            )


def _name(function: branches.BranchFunction) -> str:
    """Return a branch's name, which becomes a folder's and a row's; the names of `branches.BRANCHES` are taken."""
    name = getattr(function, "__name__", type(function).__name__)
    taken = name == store.TICKET or (name in branches.BRANCHES and branches.BRANCHES[name].function is not function)
    if taken or not name.isidentifier():
        raise LotteryError(
            f"branch: {name!r} is the name of a branch of lottery, or not an identifier. Rename the function."
        )
    return name


def _check_overrides(overrides: Mapping[str, Any], transfers: bool, has_data: bool) -> None:
    if overrides and not transfers:
        raise LotteryError("Only the branch 'transfer' takes other values; another experiment is another run.")
    if transfers and not has_data and "data" not in overrides:
        raise LotteryError("The branch 'transfer' needs another data set, such as data.name=fashion_mnist.")
    if has_data and {"name", "path"} & set(overrides.get("data", ())):
        raise LotteryError("The branch 'transfer' takes the other data as data= or as data.name, not both.")
    wrong = [key for key in overrides if key not in ("data", "train")]
    if wrong:
        raise unknown("A section that 'transfer' may change", wrong[0], ("data", "train"))


def _label(name: str, overrides: Mapping[str, Any], prepared: Prepared) -> str:
    """Return the name that a transfer is stored under, which says what data it uses."""
    label = f"{name}-{prepared.experiment.data.name}"
    # A name alone says what the data are; anything else is told apart by a digest.
    if set(overrides) == {"data"} and set(overrides["data"]) == {"name"}:
        return label
    what = json.dumps([overrides, prepared.data.fingerprint], sort_keys=True)
    return f"{label}-{hashlib.sha256(what.encode()).hexdigest()[:6]}"


def _compared(path: Path, experiment: config.Experiment, prepared: Prepared, ingredients: Ingredients) -> Iterator[str]:
    """Raise `LotteryError` if a transfer has another model than its run; yield why they cannot be compared, if so."""
    now, wanted = prepared.experiment, experiment.model
    if not ingredients.have_own_model(now) and now.model == wanted:
        return
    if now.train != experiment.train:  # the optimiser is a part of a training step
        now = preparing.prepare(now.model_copy(update={"train": experiment.train}), ingredients).experiment
    if now.model == wanted:
        return
    why = agreement.incomparable(path, prepared)
    if not why:
        raise LotteryError(f"{str(path)!r} began with another model. Pass the model that it began with.")
    yield f"The model was not compared with the model of {path}: {why}."


def _check_fit(dense: StoredRound, prepared: Prepared) -> None:
    """Raise `LotteryError` unless the network for the other data has the shapes of a stored one."""
    ticket = {name: value.shape for name, value in dense.weights.items()}
    other = {name: value.shape for name, value in prepared.trainer.loop.state().items()}
    for name in (*ticket, *other):
        if ticket.get(name) != other.get(name):
            raise LotteryError(
                f"The ticket does not fit the other data: {name} has shape {ticket.get(name)} in the ticket and "
                f"{other.get(name)} in a network for them."
            )
