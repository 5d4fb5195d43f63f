"""Tickets of a run: list them, find a round, and collect everything that belongs to its ticket."""

import math
import os
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from lottery import config, data, weights
from lottery.errors import LotteryError, TicketError, unknown
from lottery.runs import store
from lottery.runs.stored import stored_rounds
from lottery.settings import GIVEN
from lottery.statistics import intervals, results, verdicts
from lottery.statistics.metric import metric_of
from lottery.tickets.ticket_file import Contents

CHOICES = ("best", "smallest_matching")
STEPS = ("end", "early_stop")  # of trained weights
NUM_EXAMPLES = 1000

_MEASURES = results.COLUMNS[results.COLUMNS.index("early_stop_step") :]  # these travel with the ticket


def contents(
    run: Path, round: int | str | None = None, density: float | None = None, replicate: int = 1, at: str = "end"
) -> Contents:
    """Read the ticket that `pick` finds, with the weights trained to a step of `STEPS`.

    Of the paths and functions that the experiment names, file names are kept.
    """
    if at not in STEPS:
        raise TicketError(str(unknown("at", at, STEPS)))
    networks = list(stored_rounds(run, branches=False))
    rows = results.rows_of(networks)
    index = pick(rows, round, density, replicate)
    by_place = {(stored.replicate, stored.round): stored for stored in networks}
    stored, dense = by_place[replicate, index], by_place[replicate, 0]
    environment = store.read_environment(run)
    about = {
        "architecture": environment["architecture"],
        "metrics": _metrics(rows, stored.record, dense.record),
        "provenance": _provenance(run, environment, stored.record, at),
    }
    # In the order of the masks, which files of arrays do not keep. Another process draws its own random states.
    names = [*stored.masks, *sorted(set(stored.weights) - set(stored.masks))]
    names = [name for name in names if not weights.is_random_state(name)]
    after = stored.weights if at == "end" else stored.early_stop
    states = stored.masked_start, after
    if lacking := set(names) - set(states[0]).intersection(*states):
        raise TicketError(
            f"{str(stored.folder)!r} is damaged: {sorted(lacking)[0]} is not a variable of its start and of all its "
            "trained weights."
        )
    start, trained = ({name: state[name] for name in names} for state in states)
    return Contents(stored.masks, start, trained, about)


def pick(rows: verdicts.Table, round: int | str | None = None, density: float | None = None, replicate: int = 1) -> int:
    """Find the round that the arguments of `lottery.tickets.load` mean, from the table of the run.

    The density is the nearest in ratio. ``"best"`` is by the validation accuracy at the early-stop step, the sparsest
    of equals; it and ``"smallest_matching"`` are among the rounds that all replicates have.
    """
    tickets = rows[rows["branch"] == store.TICKET]
    stored = dict(tickets[tickets["replicate"] == replicate][["round", "density"]].itertuples(index=False, name=None))
    if not stored:
        there = sorted({int(number) for number in tickets["replicate"]})
        raise TicketError(f"replicate: received {replicate!r}, the run has {there or 'nothing stored yet'}.")
    span = f"{min(stored)} to {max(stored)}" if len(stored) > 1 else str(min(stored))
    if round is not None and density is not None:
        raise TicketError(f"Received round {round!r} and density {density!r}, allowed is one of the two.")
    if density is not None:
        if isinstance(density, bool) or not isinstance(density, Real) or not 0 < float(density) <= 1:
            raise TicketError(f"density: received {density!r}, allowed is a fraction in (0, 1].")
        return min(stored, key=lambda index: (abs(math.log(stored[index] / density)), index))
    if round is None:
        allowed = f"a round ({span}, {' or '.join(map(repr, CHOICES))}) or a density"
        raise TicketError(f"A run has many tickets: pass {allowed}.")
    if round in CHOICES:
        if (index := _chosen(rows)[str(round)]) is not None:
            return index
        if round == "best":
            raise TicketError("The run has no pruned round with a validation accuracy, so none is the best.")
        raise TicketError(f"No pruned round of the run matches dense within {verdicts.TOLERANCE:g}.")
    if isinstance(round, str):
        raise TicketError(str(unknown("round", round, [*CHOICES, *map(str, stored)])))
    # NumPy's whole numbers too, as columns of the table hold them.
    if isinstance(round, bool) or not isinstance(round, Integral) or round not in stored:
        raise TicketError(f"round: received {round!r}, stored for replicate {replicate} are {span}.")
    return int(round)


def listed(run: Path) -> verdicts.Table:
    """List the tickets of a run in a data frame, a row for each replicate and pruned round.

    Its columns are ``replicate, round, density, num_kept``, ``test_accuracy`` at the early-stop step, or ``test_loss``
    if the model measures no accuracy, ``vs_dense`` (ticket − dense), and ``choice``: which of `CHOICES` mean the round.
    """
    rows = results.rows_of(stored_rounds(run, branches=False))
    measure = metric_of(rows)
    dense = rows[rows["round"] == 0].set_index("replicate")[measure.early_stop]
    pruned, chosen, head = rows[rows["round"] > 0], _chosen(rows), f"test_{measure.what}"
    return pruned.assign(
        **{head: pruned[measure.early_stop]},
        vs_dense=pruned[measure.early_stop] - pruned["replicate"].map(dense),
        choice=[", ".join(word for word in CHOICES if chosen[word] == index) for index in pruned["round"]],
    )[["replicate", "round", "density", "num_kept", head, "vs_dense", "choice"]]


def examples(source: Path, provenance: Mapping[str, Any], path: str = "", num: int = NUM_EXAMPLES) -> np.ndarray:
    """Load up to `num` examples of the validation split (of the training split if there is none), scaled as in the run.

    A file at `path` with the four arrays of the data goes first. Otherwise the data of a run are looked up as the run
    did; those of a ticket file, which may come from a stranger, are never downloaded: they come with the packages
    installed, or lie in the folder that ``LOTTERY_DATA`` names. Data that the ticket was not found on are refused.
    """
    about = provenance.get("data")
    if not isinstance(about, dict):
        raise LotteryError("The ticket does not say which data it was found on.")
    settings = store.read_experiment(source).data if source.is_dir() else _local_settings(provenance, path)
    if path and (settings.name == GIVEN or data.DATASETS[settings.name].needs_path):
        loaded = data.split(data.read_npz(Path(path)), settings, where=path)
    else:
        loaded = data.load(settings.model_copy(update={"path": path}) if path else settings)
    if loaded.fingerprint != about.get("digest"):
        raise LotteryError(f"The data {settings.name!r} on this machine are not those that the ticket was found on.")
    found = (loaded.validation if len(loaded.validation) else loaded.train).x[:num]
    if about.get("scaling") is None and found.dtype == np.uint8:  # the model takes whole numbers
        return found.astype(np.int32)
    return loaded.scaled(found)


def _local_settings(provenance: Mapping[str, Any], path: str) -> data.Data:
    """Read from a ticket file how to split and scale its data, if that needs no download."""
    try:
        # The path that the file names is of another machine, and npz needs some path.
        settings = data.Data.model_validate({**provenance["protocol"]["data"], "path": path or "unknown"})
    except (KeyError, TypeError, ValidationError):
        raise LotteryError("The ticket does not say how its data were split.") from None
    local = Path(os.environ.get("LOTTERY_DATA", "")) / f"{settings.name}.npz"
    dataset = data.DATASETS.get(settings.name)
    if not path and not local.is_file() and not (dataset and dataset.is_local):
        raise LotteryError(f"The data {settings.name!r} are not in the folder that LOTTERY_DATA names.")
    return settings.model_copy(update={"path": path})


def _chosen(rows: verdicts.Table) -> dict[str, int | None]:
    """Find the round that each of `CHOICES` means, among those that all replicates have."""
    tickets = rows[rows["branch"] == store.TICKET]
    counts = tickets.groupby("round")["replicate"].nunique()
    tickets = tickets[tickets["round"].isin(counts[counts == tickets["replicate"].nunique()].index)]
    measure = metric_of(tickets)
    means = tickets[tickets["round"] > 0].groupby("round")[f"early_stop_val_{measure.what}"].mean().dropna()
    matching = verdicts.smallest_matching(tickets) if len(means) else None
    best = means.min() if measure.is_loss else means.max()
    return {
        "best": None if means.empty else int(means[means == best].index.max()),  # the sparsest of equals
        "smallest_matching": matching["round"] if matching else None,
    }


def _metrics(rows: verdicts.Table, record: dict[str, Any], dense: dict[str, Any]) -> dict[str, Any]:
    """Gather what was measured of the network, of the dense network of its replicate, and over all replicates."""
    measure = metric_of(rows)
    values = rows[rows["round"] == record["round"]][measure.early_stop].dropna()
    measured, unit = values.tolist(), measure.unit(values)
    over: dict[str, Any] = {"count": len(measured)}
    if measured:
        over[measure.early_stop] = _interval(*intervals.mean_interval(measured, unit=unit))
    pruned = verdicts.differences(rows) if record["round"] else rows[:0]
    for line in pruned[pruned["round"] == record["round"]].to_dict("records"):
        over["vs_dense"] = _interval(line["mean"], line["low"], line["high"])
    own, whole = ({name: known[name] for name in _MEASURES} for known in (record, dense))
    return {**own, "dense": whole, "replicates": over}


def _interval(*ends: float) -> dict[str, float | None]:
    values = (float(end) if math.isfinite(end) else None for end in ends)
    return dict(zip(("mean", "low", "high"), values, strict=True))


def _provenance(run: Path, environment: dict[str, Any], record: dict[str, Any], at: str) -> dict[str, Any]:
    experiment = store.read_experiment(run)
    protocol = experiment.model_dump(mode="json")
    protocol["data"]["path"] = Path(protocol["data"]["path"]).name if protocol["data"]["path"] else ""
    kept = ("versions", "python", "processor", "num_threads", "commit")
    return {
        "run": run.resolve().name,
        "digest": config.digest(experiment),
        "replicate": record["replicate"],
        "round": record["round"],
        "rewind_mode": experiment.rewind.mode if record["round"] else "weights",
        "rewind_step": experiment.rewind.step if record["round"] else 0,
        "trained_at": at,
        "trained_step": experiment.train.num_steps if at == "end" else record["early_stop_step"],
        "data": {
            "name": experiment.data.name, "digest": environment["data_sha256"], "scaling": environment["scaling"],
        },
        "protocol": protocol,
        "start_sha256": record["start_sha256"],
        **{key: environment[key] for key in kept},
    }  # fmt: skip
