"""Real examples for a ticket's network, as it takes them, from the data that the ticket was found on."""

import math
import os
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from lottery import config, data, masks, weights
from lottery.errors import LotteryError, TicketError, unknown
from lottery.runs import intervals, results, store, verdicts
from lottery.settings import GIVEN
from lottery.tickets.ticket_file import Contents

NUM_EXAMPLES = 1000


def found(source: Path, provenance: dict[str, Any], path: str = "", num: int = NUM_EXAMPLES) -> np.ndarray:
    """Examples of the validation part, scaled as they were in training.

    The data of a run are looked for as the run did. Those of a ticket file, which a stranger may have written, are
    never downloaded: they are the digits, or lie in the folder that ``LOTTERY_DATA`` names.

    Args:
        source: The run or the file that the ticket came from.
        provenance: The ticket's.
        path: A file with the four arrays of the data, instead of looking them up.
        num: How many, at most.

    Returns:
        An array, the first axis the example; of the training part where none were split off.

    Raises:
        LotteryError: The data are not there, or not those that the ticket was found on.
    """
    about = provenance.get("data")
    if not isinstance(about, dict):
        raise LotteryError("The ticket does not say which data it was found on.")
    settings = store.read_experiment(source).data if source.is_dir() else _settings(provenance, path)
    if path and settings.name in (GIVEN, "npz"):
        loaded = data.split(data.read_npz(Path(path)), settings, where=path)
    else:
        loaded = data.load(settings.model_copy(update={"path": path}) if path else settings)
    if loaded.fingerprint != about.get("digest"):
        raise LotteryError(f"The data {settings.name!r} that are here are not those that the ticket was found on.")
    x = (loaded.validation if len(loaded.validation) else loaded.train).x[:num]
    return (x.astype(np.float32) - loaded.mean) / loaded.deviation if x.dtype == np.uint8 else x


def _settings(provenance: dict[str, Any], path: str) -> data.Data:
    """How the data of a ticket file are to be split and scaled, if that needs no download."""
    try:
        # A path that the file names is one of somebody else's machine; and npz needs some.
        settings = data.Data.model_validate({**provenance["protocol"]["data"], "path": path or "unknown"})
    except (KeyError, TypeError, ValidationError):
        raise LotteryError("The ticket does not say how its data were split.") from None
    local = Path(os.environ.get("LOTTERY_DATA", "")) / f"{settings.name}.npz"
    if not path and settings.name != "digits" and not local.is_file():
        raise LotteryError(f"The data {settings.name!r} are not in the folder that LOTTERY_DATA names.")
    return settings.model_copy(update={"path": path})


CHOICES = ("best", "smallest_matching")


# What a round's record says of its network, as far as it travels with the ticket.
_MEASURES = (
    "early_stop_step", "early_stop_val_loss", "early_stop_val_accuracy", "early_stop_test_accuracy", "final_train_loss",
    "final_val_loss", "final_val_accuracy", "final_test_accuracy", "seconds",
)  # fmt: skip


def pick(run: Path, round: int | str | None = None, density: float | None = None, replicate: int = 1) -> int:
    """Which round of a run is meant.

    Args:
        run: The run's folder.
        round: Its number; ``"best"``, the pruned round with the highest validation accuracy at the early-stop step, by
            the mean over replicates, the sparsest of equals; or ``"smallest_matching"``, the sparsest that matches
            dense, as `verdicts.smallest_matching` finds it. Both are among the rounds that all replicates have.
        density: A density in (0, 1]; the round whose density is nearest in ratio is meant.
        replicate: The replicate, from 1.

    Returns:
        The round.

    Raises:
        TicketError: Neither or both were given, or there is no such round.
    """
    rows = results.table(run)
    tickets = rows[rows["branch"] == store.TICKET]
    stored = dict(tickets[tickets["replicate"] == replicate][["round", "density"]].itertuples(index=False, name=None))
    if not stored:
        there = sorted({int(one) for one in tickets["replicate"]})
        raise TicketError(f"replicate: received {replicate!r}, {str(run)!r} has {there or 'nothing stored yet'}.")
    if round is not None and density is not None:
        raise TicketError(f"Received round {round!r} and density {density!r}, allowed is one of the two.")
    if density is not None:
        if isinstance(density, bool) or not isinstance(density, Real) or not 0 < float(density) <= 1:
            raise TicketError(f"density: received {density!r}, allowed is a fraction in (0, 1].")
        return min(stored, key=lambda one: (abs(math.log(stored[one] / density)), one))
    if round is None:
        raise TicketError(
            f"A run has many tickets: pass a round ({_span(stored)}, {' or '.join(map(repr, CHOICES))}) or a density."
        )
    if round in CHOICES:
        index = _chosen(rows)[str(round)]
        if index is None:
            raise TicketError(
                f"No pruned round of {str(run)!r} matches dense within {verdicts.TOLERANCE:g}."
                if round == "smallest_matching"
                else f"{str(run)!r} has no pruned round with a validation accuracy, so none is the best."
            )
        return index
    if isinstance(round, str):
        raise TicketError(str(unknown("round", round, [*CHOICES, *map(str, stored)])))
    # NumPy's whole numbers, too: a column of the table holds those.
    if isinstance(round, bool) or not isinstance(round, Integral) or round not in stored:
        raise TicketError(f"round: received {round!r}, stored for replicate {replicate} are {_span(stored)}.")
    return int(round)


def listed(run: Path) -> verdicts.Table:
    """The tickets of a run.

    Args:
        run: The run's folder.

    Returns:
        A data frame with a row for each replicate and pruned round: ``replicate, round, density, num_kept,
        test_accuracy`` at the early-stop step, ``less_dense``, and ``choice``, which of `CHOICES` mean the round.

    Raises:
        LotteryError: It is not a run, or a record is damaged.
    """
    rows = results.table(run)
    tickets = rows[rows["branch"] == store.TICKET]
    dense = tickets[tickets["round"] == 0].set_index("replicate")[verdicts.MEASURE]
    pruned, chosen = tickets[tickets["round"] > 0], _chosen(rows)
    return pruned.assign(
        test_accuracy=pruned[verdicts.MEASURE],
        less_dense=pruned[verdicts.MEASURE] - pruned["replicate"].map(dense),
        choice=[", ".join(word for word in CHOICES if chosen[word] == index) for index in pruned["round"]],
    )[["replicate", "round", "density", "num_kept", "test_accuracy", "less_dense", "choice"]]


def contents(run: Path, index: int, replicate: int = 1) -> Contents:
    """The ticket of a round.

    Its files are checked first, and its start is compared with what training began from. States of random layers are
    left out: another process draws its own.

    Args:
        run: The run's folder.
        index: The round.
        replicate: The replicate, from 1.

    Returns:
        The ticket's parts. Of the experiment's paths and functions only file names are kept.

    Raises:
        LotteryError: A file is missing or damaged.
    """
    experiment, environment = store.read_experiment(run), store.read_environment(run)
    stored = store.StoredRound(run, replicate, index)
    record, kept, start, trained = stored.record, stored.masks, stored.masked_start, stored.weights
    about = {
        "architecture": environment.get("architecture") or _unknown(experiment),
        "metrics": _metrics(run, index, record),
        "provenance": _provenance(run, experiment, environment, record),
    }
    return Contents(kept, _lasting(start, kept), _lasting(trained, kept), about)


def _chosen(rows: verdicts.Table) -> dict[str, int | None]:
    """The round that each of `CHOICES` means, among those that all replicates have."""
    tickets = rows[rows["branch"] == store.TICKET]
    counts = tickets.groupby("round")["replicate"].nunique()
    tickets = tickets[tickets["round"].isin(counts[counts == tickets["replicate"].nunique()].index)]
    means = tickets[tickets["round"] > 0].groupby("round")["early_stop_val_accuracy"].mean().dropna()
    matching = verdicts.smallest_matching(tickets) if len(means) else None
    return {
        "best": None if means.empty else int(means[means == means.max()].index.max()),  # the sparsest of equals
        "smallest_matching": matching["round"] if matching else None,
    }


def _lasting(state: dict[str, Any], kept: masks.Masks) -> dict[str, Any]:
    """The variables that travel; those that masks are for in the masks' order, which files of arrays do not keep."""
    return {name: state[name] for name in [*kept, *sorted(set(state) - set(kept))] if not weights.is_random_state(name)}


def _unknown(experiment: config.Experiment) -> dict[str, Any]:
    why = "its run was begun by a version that did not write it down"
    return {"library": "keras", "class": experiment.model.name, "why": why}


def _metrics(run: Path, index: int, record: dict[str, Any]) -> dict[str, Any]:
    """What was measured of the network itself, of its replicate's dense one, and over all replicates."""
    rows = results.table(run)
    tickets = rows[rows["branch"] == store.TICKET]
    measured = tickets[tickets["round"] == index]["early_stop_test_accuracy"].dropna().tolist()
    own = {name: record[name] for name in _MEASURES}
    dense = tickets[(tickets["replicate"] == record["replicate"]) & (tickets["round"] == 0)].to_dict("records")[0]
    dense = {name: None if (value := dense[name]) != value else value for name in _MEASURES}
    over: dict[str, Any] = {"count": len(measured)}
    if measured:
        over["early_stop_test_accuracy"] = dict(
            zip(("mean", "low", "high"), _finite(intervals.mean_interval(measured)), strict=True)
        )
    lines = verdicts.differences(rows) if index else rows[:0]
    for line in lines[lines["round"] == index].to_dict("records"):
        over["less_dense"] = dict(
            zip(("mean", "low", "high"), _finite([line[end] for end in ("mean", "low", "high")]), strict=True)
        )
    return {**own, "dense": dense, "replicates": over}


def _finite(values: Any) -> list[float | None]:
    """The ends of an interval; None where one replicate gives none."""
    return [float(value) if math.isfinite(value) else None for value in values]


def _provenance(
    run: Path, experiment: config.Experiment, environment: dict[str, Any], record: dict[str, Any]
) -> dict[str, Any]:
    protocol = experiment.model_dump(mode="json")
    protocol["data"]["path"] = Path(protocol["data"]["path"]).name if protocol["data"]["path"] else ""
    return {
        "run": run.resolve().name,
        "digest": config.digest(experiment),
        "replicate": record["replicate"],
        "round": record["round"],
        "rewind_mode": experiment.rewind.mode if record["round"] else "weights",
        "rewind_step": experiment.rewind.step if record["round"] else 0,
        "data": {
            "name": experiment.data.name,
            "digest": environment["data_sha256"],
            "scaling": environment.get("scaling"),
        },
        "protocol": protocol,
        "start_sha256": record["start_sha256"],
        **{key: environment.get(key) for key in ("versions", "python", "processor", "num_threads", "commit")},
    }


def _span(stored: dict[int, float]) -> str:
    return f"{min(stored)} to {max(stored)}" if len(stored) > 1 else str(min(stored))
