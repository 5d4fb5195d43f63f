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
from lottery.formatting import ranges
from lottery.pruning import rewinding
from lottery.runs import store
from lottery.runs.stored import stored_rounds
from lottery.settings import GIVEN
from lottery.statistics import intervals, results, verdicts
from lottery.statistics.metric import metric_of, of_tickets
from lottery.statistics.verdicts import Judgement, Rule
from lottery.text_tables import Table
from lottery.tickets.ticket_file import Contents

# What a round may be called, and why a run may have none.
_WITHOUT = {
    "best": "The run has no pruned round with a validation accuracy, so none is the best.",
    "smallest_matching": "No ticket of the run is shown to be matching; `lottery show` tells how near they come.",
}
CHOICES = tuple(_WITHOUT)
STEPS = {"end": "weights", "early_stop": "early_stop", "budget": "budget"}  # attributes with trained weights
NUM_EXAMPLES = 1000

# What was measured of the network alone travels with the ticket.
_MEASURES = [
    column
    for column in results.COLUMNS[results.COLUMNS.index("early_stop_step") :]
    if column not in results.BESIDE_DENSE
]


def contents(
    run: Path, round: int | str | None = None, density: float | None = None, replicate: int = 1, at: str = "end"
) -> Contents:
    """Read the ticket that `pick` finds, with the weights trained to a step of `STEPS`.

    Of the paths and functions that the experiment names, file names are kept.
    """
    if at not in STEPS:
        raise TicketError(str(unknown("at", at, STEPS)))
    networks = list(stored_rounds(run, branches=False))
    rows = results.rows_of(run, networks)
    number = pick(rows, round, density, replicate)
    by_place = {(stored.replicate, stored.round): stored for stored in networks}
    stored, dense = by_place[replicate, number], by_place[replicate, 0]
    row = rows[(rows["replicate"] == replicate) & (rows["round"] == number)].iloc[0]
    experiment = store.read_experiment(run)
    steps = {
        "end": experiment.train.num_steps,
        "early_stop": row["early_stop_step"],
        "budget": row["budget_step"],
    }
    if math.isnan(steps[at]):
        why = "its first evaluation comes later, or an earlier version stored it"
        if not rewinding.REWINDS[experiment.rewind.mode].trains_again:
            why = f'with rewind.mode = "{experiment.rewind.mode}" it starts from trained weights, and no budget is kept'
        raise TicketError(
            f"Round {number} of replicate {replicate} has no weights within the budget of the dense network: {why}."
        )
    environment = store.read_environment(run)
    about = {
        "architecture": environment["architecture"],
        "metrics": _metrics(rows, stored.record, dense.record),
        "provenance": _provenance(run, environment, stored.record, at, int(steps[at])),
    }
    # In the order of the masks, which files of arrays do not keep. Another process draws its own random states.
    names = [*stored.masks, *sorted(set(stored.weights) - set(stored.masks))]
    names = [name for name in names if not weights.is_random_state(name)]
    before = stored.masked_start
    after = getattr(stored, STEPS[at])
    lacking = [name for name in sorted(names) if name not in before or name not in after]
    if lacking:
        raise TicketError(f"{str(stored.folder)!r} is damaged: its start or its trained weights lack {lacking[0]}.")
    start = {name: before[name] for name in names}
    trained = {name: after[name] for name in names}
    return Contents(stored.masks, start, trained, about)


def pick(rows: Table, round: int | str | None = None, density: float | None = None, replicate: int = 1) -> int:
    """Find the round that the arguments of `lottery.tickets.load` mean, from the table of the run.

    The density is the nearest in ratio. ``"best"`` is by the validation accuracy at the early-stop step, the sparsest
    of equals; it and ``"smallest_matching"`` are among the rounds that all replicates have.
    """
    tickets = of_tickets(rows)
    stored = tickets[tickets["replicate"] == replicate].set_index("round")["density"].to_dict()
    if not stored:
        there = ranges({int(number) for number in tickets["replicate"]}, "replicate") if len(tickets) else "nothing yet"
        raise TicketError(f"replicate {replicate!r} is not stored. The run has {there}.")
    span = f"{min(stored)} to {max(stored)}" if len(stored) > 1 else str(min(stored))
    if round is not None and density is not None:
        raise TicketError(f"Pass round or density, not both. They are {round!r} and {density!r}.")
    if density is not None:
        if isinstance(density, bool) or not isinstance(density, Real) or not 0 < float(density) <= 1:
            raise TicketError(f"density must be a fraction in (0, 1], not {density!r}.")
        return min(stored, key=lambda number: (abs(math.log(stored[number] / density)), number))
    if round is None:
        rounds = f"{span}, {' or '.join(map(repr, CHOICES))}"
        raise TicketError(f"A run has many tickets: pass a round ({rounds}) or a density.")
    if round in CHOICES:
        chosen = _chosen(rows)[str(round)]
        if chosen is None:
            raise TicketError(_WITHOUT[str(round)])
        return chosen
    if isinstance(round, str) and round.isdecimal():
        round = int(round)
    if isinstance(round, str):
        raise TicketError(str(unknown("round", round, [*CHOICES, *map(str, stored)])))
    # NumPy's whole numbers too, as columns of the table hold them.
    if isinstance(round, bool) or not isinstance(round, Integral) or round not in stored:
        raise TicketError(f"round {round!r} is not stored for replicate {replicate}. It has {span}.")
    return int(round)


def listed(run: store.Folder) -> Table:
    """List the tickets of a run in a data frame, a row for each replicate and pruned round.

    Its columns are ``replicate, round, density, num_kept``, ``test_accuracy`` at the early-stop step, or ``test_loss``
    if the model measures no accuracy, ``vs_dense`` (ticket − dense), and ``choice``: which of `CHOICES` mean the round.
    """
    rows = results.rows_of(run, stored_rounds(run, branches=False))
    metric = metric_of(rows)
    chosen = _chosen(rows)
    dense = rows[rows["round"] == 0].set_index("replicate")[metric.early_stop]
    pruned = rows[rows["round"] > 0]
    head = f"test_{metric.what}"
    table = pruned.assign(
        **{head: pruned[metric.early_stop]},
        vs_dense=pruned[metric.early_stop] - pruned["replicate"].map(dense),
        choice=[", ".join(word for word in CHOICES if chosen[word] == number) for number in pruned["round"]],
    )
    return table[["replicate", "round", "density", "num_kept", head, "vs_dense", "choice"]]


def examples(source: Path, provenance: Mapping[str, Any], path: str = "") -> np.ndarray:
    """Load up to `NUM_EXAMPLES` examples of the validation split (if there is none, the training split), as scaled.

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
        loaded = data.load(settings.model_copy(update={"path": path or settings.path}))
    if loaded.fingerprint != about.get("digest"):
        raise LotteryError(f"The data {settings.name!r} on this machine are not those that the ticket was found on.")
    found = (loaded.validation if len(loaded.validation) else loaded.train).x[:NUM_EXAMPLES]
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
    # Without LOTTERY_DATA, a file in the working directory would not be read, but pass for data that need no download.
    folder = os.environ.get("LOTTERY_DATA", "")
    is_stored = bool(folder) and Path(folder, f"{settings.name}.npz").is_file()
    dataset = data.DATASETS.get(settings.name)
    if not path and not is_stored and not (dataset and dataset.is_local):
        why = "are not in the folder that LOTTERY_DATA names, and a ticket file downloads none"
        raise LotteryError(f"The data {settings.name!r} {why}.")
    return settings.model_copy(update={"path": path})


def _chosen(rows: Table) -> dict[str, int | None]:
    """Find the round that each of `CHOICES` means, among those that all replicates have."""
    tickets = of_tickets(rows)
    counts = tickets.groupby("round")["replicate"].nunique()
    # A round that some replicate lacks would win or lose by that replicate.
    tickets = tickets[tickets["round"].isin(counts[counts == tickets["replicate"].nunique()].index)]
    metric = metric_of(tickets)
    means = tickets[tickets["round"] > 0].groupby("round")[f"early_stop_val_{metric.what}"].mean().dropna()
    if means.empty:
        return dict.fromkeys(CHOICES)
    matching = Judgement(tickets, Rule(metric=metric, tolerance=metric.tolerance)).shown[verdicts.MATCHING]
    best = means.min() if metric.is_loss else means.max()
    return {
        "best": int(means[means == best].index.max()),  # the sparsest of equals
        "smallest_matching": int(matching["round"]) if matching else None,
    }


def _metrics(rows: Table, record: dict[str, Any], dense: dict[str, Any]) -> dict[str, Any]:
    """Gather what was measured of the network, of the dense network of its replicate, and over all replicates."""
    metric = metric_of(rows)
    values = rows[rows["round"] == record["round"]][metric.early_stop].dropna()
    over: dict[str, Any] = {"count": len(values)}
    if len(values):
        over[metric.early_stop] = _interval(*intervals.mean_interval(values.tolist(), unit=intervals.unit_of(values)))
    if record["round"] > 0:
        differences = verdicts.differences(rows).set_index("round")
        if record["round"] in differences.index:
            over["vs_dense"] = _interval(*differences.loc[record["round"], ["mean", "low", "high"]])
    own = {name: record[name] for name in _MEASURES}
    of_dense = {name: dense[name] for name in _MEASURES}
    return {**own, "dense": of_dense, "replicates": over}


def _interval(*ends: float) -> dict[str, float | None]:
    values = (float(end) if math.isfinite(end) else None for end in ends)
    return dict(zip(("mean", "low", "high"), values, strict=True))


def _provenance(run: Path, environment: dict[str, Any], record: dict[str, Any], at: str, step: int) -> dict[str, Any]:
    experiment = store.read_experiment(run)
    protocol = experiment.model_dump(mode="json")
    protocol["data"]["path"] = Path(protocol["data"]["path"]).name  # its folders are nobody's business
    rewind_mode, rewind_step = "weights", 0
    if record["round"]:
        rewind_mode, rewind_step = experiment.rewind.mode, experiment.rewind.step
    kept = ("versions", "python", "processor", "num_threads", "commit")
    return {
        "run": run.resolve().name,
        "digest": config.digest(experiment),
        "replicate": record["replicate"],
        "round": record["round"],
        "rewind_mode": rewind_mode,
        "rewind_step": rewind_step,
        "trained_at": at,
        "trained_step": step,
        "data": {
            "name": experiment.data.name, "digest": environment["data_sha256"], "scaling": environment["scaling"],
        },
        "protocol": protocol,
        "start_sha256": record["start_sha256"],
        **{key: environment[key] for key in kept},
    }  # fmt: skip
