"""One tidy table of a run, a row for each trained network, and its summary over replicates."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lottery.runs import intervals, store, verdicts
from lottery.runs.store import StoredRound
from lottery.runs.verdicts import Table

COLUMNS = (
    "replicate", "branch", "round", "density", "num_kept", "early_stop_step", "early_stop_val_loss",
    "early_stop_val_accuracy", "early_stop_test_accuracy", "final_train_loss", "final_val_loss", "final_val_accuracy",
    "final_test_accuracy", "seconds",
)  # fmt: skip


def table(run: Path) -> Table:
    """Gather one row for each trained network of a run, branches included.

    Returns:
        A data frame with the columns `COLUMNS`, sorted by replicate, branch (the ticket first) and round. Densities and
        accuracies are in [0, 1], losses as the model reports them (cross-entropies in nats), and an accuracy that the
        model does not measure is NaN. ``seconds`` is the time that a round took; ``final_train_loss`` is the mean over
        the last steps before the end, as trained, and NaN for a network that was not trained.

    Raises:
        LotteryError: It is not a run, or a record is damaged.
    """
    return rows_of(store.rounds(run))


def rows_of(networks: Iterable[StoredRound]) -> Table:
    """Gather the rows of `table` for some networks of a run, in their order."""
    import pandas as pd

    rows = [{column: stored.record[column] for column in COLUMNS} for stored in networks]
    measured = [column for column in COLUMNS if column.endswith(("loss", "accuracy"))]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(dict.fromkeys(measured, float))


def collapsed(run: Path) -> list[str]:
    """Name each network in which a whole weight was pruned, in a sentence: it trains on, at chance or near it."""
    found = []
    for stored in store.rounds(run):
        branch = "" if stored.branch == store.TICKET else f", {stored.branch}"
        if names := stored.record["collapsed"]:
            place = f"Replicate {stored.replicate}, round {stored.index}{branch}"
            found.append(f"{place}: nothing is left of {', '.join(names)}.")
    return found


def summary(rows: Table, num_steps: int | None = None) -> Table:
    """Compute mean and spread over replicates, by branch and round.

    Args:
        rows: The table of a run.
        num_steps: ``train.num_steps`` of the experiment, for ``censored``.

    Returns:
        A data frame with ``branch, round, density, num_kept, replicates`` and, for the test accuracy at the early-stop
        step, ``accuracy_mean``, ``accuracy_std`` (sample standard deviation, NaN for one replicate), ``accuracy_min``,
        ``accuracy_max``, ``accuracy_low`` and ``accuracy_high`` (95 % t interval for the mean, see `intervals`;
        NaN where an accuracy is); then ``final_accuracy_mean``, ``early_stop_step_mean``, and ``censored``: in how many
        replicates the lowest validation loss is that of the very last evaluation, so that a longer training might have
        found a lower one (NaN without `num_steps`; transfers, which may have another length, do not count). Branches
        are in their order in the table.
    """
    import numpy as np

    order = {branch: place for place, branch in enumerate(dict.fromkeys(rows["branch"]))}
    # What was not trained cannot be trained longer, and a transfer may end at another step.
    trained = rows["final_train_loss"].notna() & ~verdicts.transferred(rows)
    last = (rows["early_stop_step"] == num_steps) & trained if num_steps else np.nan
    return (
        rows.assign(censored=last)
        .groupby(["branch", "round"], as_index=False)
        .agg(
            density=("density", "mean"),
            num_kept=("num_kept", "mean"),
            replicates=("replicate", "count"),
            accuracy_mean=("early_stop_test_accuracy", "mean"),
            accuracy_std=("early_stop_test_accuracy", "std"),
            accuracy_min=("early_stop_test_accuracy", "min"),
            accuracy_max=("early_stop_test_accuracy", "max"),
            accuracy_low=("early_stop_test_accuracy", lambda values: _end(values, 1)),
            accuracy_high=("early_stop_test_accuracy", lambda values: _end(values, 2)),
            final_accuracy_mean=("final_test_accuracy", "mean"),
            early_stop_step_mean=("early_stop_step", "mean"),
            censored=("censored", lambda values: values.sum(skipna=False)),
        )
        .sort_values(
            ["branch", "round"],
            ignore_index=True,
            key=lambda column: column.map(order) if column.name == "branch" else column,
        )
    )


def chosen(rounds: Iterable[int], most: int) -> list[int]:
    """Choose rounds for a figure: at most so many, evenly apart, the first and the last among them."""
    import numpy as np

    there = sorted(set(rounds))
    places = np.linspace(0, len(there) - 1, min(most, len(there))).round().astype(int)
    return [int(there[place]) for place in dict.fromkeys(places.tolist())]


def _end(values: Any, which: int) -> float:
    return intervals.mean_interval(values.tolist())[which] if values.notna().all() else float("nan")
