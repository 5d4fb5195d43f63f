"""One tidy table of a run, a row for each trained network, and its summary over replicates."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from lottery.formatting import counted
from lottery.pruning import branches
from lottery.runs import store
from lottery.runs.stored import StoredRound, stored_rounds
from lottery.statistics import intervals
from lottery.statistics.metric import metric_of
from lottery.text_tables import Table, frame

COLUMNS = (
    "run", "replicate", "branch", "round", "density", "num_kept", "last_step", "early_stop_step",
    "early_stop_val_loss", "early_stop_val_accuracy", "early_stop_test_loss", "early_stop_test_accuracy", "budget_step",
    "budget_test_loss", "budget_test_accuracy", "dense_loss_step", "final_train_loss", "final_val_loss",
    "final_val_accuracy", "final_test_loss", "final_test_accuracy", "seconds",
)  # fmt: skip
_OF_BUDGET = ("budget_step", "budget_test_loss", "budget_test_accuracy")
BESIDE_DENSE = (*_OF_BUDGET, "dense_loss_step")  # of a network and the dense network of its replicate
_OF_RECORD = [column for column in COLUMNS if column not in ("run", "last_step", *BESIDE_DENSE)]


def table(run: store.Folder) -> Table:
    """Gather the `COLUMNS` of each trained network of a run, by replicate, branch (the ticket first) and round.

    Densities and accuracies are in [0, 1], losses as the model reports them (cross-entropies in nats); an accuracy that
    the model does not measure is NaN. ``run`` is the name of the folder, so that tables of several runs can be put
    together. ``last_step`` is the step at which training ends; an early stop there is a lower bound.
    ``final_train_loss`` is the mean over the last steps, NaN if not trained.

    The budget of a replicate is the early-stop step of its dense network. ``budget_step`` is the step of a ticket's
    lowest validation loss up to the budget, ``budget_test_loss`` and ``_accuracy`` are measured there; all NaN for
    branches, and for tickets that an earlier version stored. ``dense_loss_step`` is the first evaluated step at which
    the validation loss is not above the lowest of the dense network; NaN if it is never reached, for transfers, for
    networks that begin with trained weights (and for dense, where all rounds do), and in runs of earlier versions.
    """
    return rows_of(run, stored_rounds(run))


def rows_of(run: store.Folder, networks: Iterable[StoredRound]) -> Table:
    """Gather the rows of `table` for some networks of a run, in their order."""
    experiment = store.read_experiment(run)
    rows = []
    dense: dict[int, Mapping[str, Any]] = {}  # its record, by replicate
    for stored in networks:
        record = stored.record
        # The main chain comes first, and so dense before everything that is compared with it.
        if stored.branch == store.TICKET and not stored.round:
            dense[stored.replicate] = record
        row = {"run": stored.run.resolve().name, "last_step": record.get("last_step", experiment.train.num_steps)}
        row |= {column: record[column] for column in _OF_RECORD}
        row |= _beside_dense(stored, dense[stored.replicate])
        # A network that trains on begins with what dense, and rounds before, have learnt. Where all rounds do, there is
        # nothing to compare with the steps of dense.
        if branches.trains_on(stored.branch, experiment.rewind.mode):
            row["dense_loss_step"] = None
        rows.append(row)
    # A column without any number holds None, which pandas would keep as objects.
    measured = [column for column in COLUMNS if column.endswith(("loss", "accuracy")) or column in BESIDE_DENSE]
    return frame(rows, COLUMNS).astype(dict.fromkeys(measured, float))


def _beside_dense(stored: StoredRound, dense: Mapping[str, Any]) -> dict[str, Any]:
    """Find what a network has reached within the steps, and by the loss, of the dense network of its replicate."""
    record = stored.record
    found = {"dense_loss_step": record.get("dense_loss_step")}
    if stored.branch != store.TICKET:
        return found
    if record["early_stop_step"] <= dense["early_stop_step"]:
        return found | {column: record[column.replace("budget", "early_stop")] for column in _OF_BUDGET}
    return found | {column: record.get(column) for column in _OF_BUDGET}


def collapsed(run: store.Folder) -> list[str]:
    """Write a sentence for each weight of which nothing is left in some networks: they train on, at chance or near."""
    rounds: dict[tuple[str, str], list[int]] = {}
    for stored in stored_rounds(run):
        for name in stored.record["collapsed"]:
            rounds.setdefault((stored.branch, name), []).append(stored.round)
    sentences = []
    for (branch, name), found in rounds.items():
        of = "" if branch == store.TICKET else f" of {branch}"
        networks = counted(len(found), "network")
        sentences.append(f"Nothing is left of {name} in {networks}{of}, from round {min(found)} on.")
    return sentences


def summary(rows: Table) -> Table:
    """Compute mean and spread over replicates from the table of a run, by branch (in their order there) and round.

    ``accuracy_mean``, ``_std`` (sample standard deviation), ``_min``, ``_max``, ``_low`` and ``_high`` (95 % t interval
    for the mean) are of the test accuracy at the early-stop step; where no network has an accuracy, they are of the
    test loss, and are called ``loss_mean`` and so on. ``censored`` counts the trained replicates whose validation loss
    is lowest at their last step, so that longer training might find a lower one.
    """
    order = list(dict.fromkeys(rows["branch"]))
    # What was not trained cannot be trained longer.
    last = (rows["early_stop_step"] == rows["last_step"]) & rows["final_train_loss"].notna()
    metric = metric_of(rows)
    parts = {name: name for name in ("mean", "std", "min", "max")}
    parts |= {"low": lambda values: _ends(values)[0], "high": lambda values: _ends(values)[1]}
    columns: Any = {
        "density": ("density", "mean"),
        "num_kept": ("num_kept", "mean"),
        "replicates": ("replicate", "count"),
        **{f"{metric.what}_{name}": (metric.early_stop, part) for name, part in parts.items()},
        f"final_{metric.what}_mean": (metric.final, "mean"),
        "early_stop_step_mean": ("early_stop_step", "mean"),
        "censored": ("censored", "sum"),
    }
    found = rows.assign(censored=last).groupby(["branch", "round"], as_index=False).agg(**columns)
    # Stable, so that rounds stay in order within a branch.
    return found.sort_values("branch", ignore_index=True, kind="stable", key=lambda column: column.map(order.index))


def _ends(values: Any) -> tuple[float, float]:
    # pandas leaves NaN out, and an interval of the others would pass for one of all.
    if not values.notna().all():
        return np.nan, np.nan
    _, low, high = intervals.mean_interval(values.tolist(), unit=intervals.unit_of(values))
    return low, high
