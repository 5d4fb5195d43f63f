"""Runs to one tidy table, a row for each trained network, and what it says about tickets."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lottery import config, store

# A pandas data frame, which is slow to import and which type checkers take apart wrongly.
Table = Any

COLUMNS = (
    "replicate", "branch", "round", "density", "num_kept", "early_stop_step", "early_stop_val_loss",
    "early_stop_val_accuracy", "early_stop_test_accuracy", "final_train_loss", "final_val_loss", "final_val_accuracy",
    "final_test_accuracy", "seconds",
)  # fmt: skip
TOLERANCE = 0.002  # what "matching" allows for, as in Frankle et al. 2020, https://arxiv.org/abs/1912.05671


@dataclass(frozen=True)
class Run:
    """A run on disk."""

    path: Path

    @property
    def experiment(self) -> config.Experiment:
        """The experiment, with every value that was used."""
        return store.read_experiment(self.path)

    def table(self) -> Table:
        """The tidy table of every round that is complete so far; see `table`."""
        return table(self.path)

    def _repr_html_(self) -> str:
        return f"<p><code>{self.path}</code></p>" + summary(self.table()).to_html()


def table(run: Path) -> Table:
    """One row for each trained network of a run.

    Args:
        run: The run's folder.

    Returns:
        A data frame with the columns `COLUMNS`. Densities and accuracies are in [0, 1], losses in nats, and an accuracy
        that the model does not measure is NaN. ``seconds`` is the time that a round took; ``final_train_loss`` is the
        mean over the last steps before the end, as trained.

    Raises:
        LotteryError: It is not a run, or a record is damaged.
    """
    import pandas as pd

    experiment = store.read_experiment(run)
    rows = []
    for replicate in range(1, experiment.run.num_replicates + 1):
        for index in store.complete_rounds(run, replicate)[: experiment.prune.num_rounds + 1]:
            record = store.read_record(store.round_path(run, replicate, index))
            rows.append({column: record[column] for column in COLUMNS})
    measured = [column for column in COLUMNS if column.endswith(("loss", "accuracy"))]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(dict.fromkeys(measured, float))


def collapsed(run: Path) -> list[str]:
    """A sentence for each network of which a whole weight was pruned: it trains on, at chance or near it."""
    experiment = store.read_experiment(run)
    return [
        f"Replicate {replicate}, round {index}: nothing is left of {', '.join(names)}."
        for replicate in range(1, experiment.run.num_replicates + 1)
        for index in store.complete_rounds(run, replicate)
        if (names := store.read_record(store.round_path(run, replicate, index))["collapsed"])
    ]


def summary(rows: Table) -> Table:
    """Mean and spread over replicates, by branch and round.

    Args:
        rows: What `table` returns.

    Returns:
        A data frame with ``branch, round, density, num_kept, replicates`` and, for the test accuracy at the early-stop
        step, ``accuracy_mean``, ``accuracy_std`` (sample standard deviation, NaN for one replicate), ``accuracy_min``,
        ``accuracy_max``; then ``final_accuracy_mean`` and ``early_stop_step_mean``.
    """
    return (
        rows.groupby(["branch", "round"], as_index=False)
        .agg(
            density=("density", "mean"),
            num_kept=("num_kept", "mean"),
            replicates=("replicate", "count"),
            accuracy_mean=("early_stop_test_accuracy", "mean"),
            accuracy_std=("early_stop_test_accuracy", "std"),
            accuracy_min=("early_stop_test_accuracy", "min"),
            accuracy_max=("early_stop_test_accuracy", "max"),
            final_accuracy_mean=("final_test_accuracy", "mean"),
            early_stop_step_mean=("early_stop_step", "mean"),
        )
        .sort_values(["branch", "round"], ignore_index=True)
    )


def smallest_matching(rows: Table, tolerance: float = TOLERANCE) -> dict[str, Any] | None:
    """The smallest density at which tickets still match the dense network.

    A round matches if the mean over replicates of its test accuracy at the early-stop step, less that of the same
    replicates' dense networks, is at least minus the tolerance. A mean alone: no more than that is claimed.

    Args:
        rows: What `table` returns.
        tolerance: Accuracy that may be lost, in [0, 1].

    Returns:
        ``round``, ``density``, ``difference`` (mean, ticket less dense), ``dense`` (mean accuracy) and ``replicates``;
        None if no pruned round matches.
    """
    tickets = rows[rows["branch"] == "ticket"]
    accuracy = tickets.pivot(index="replicate", columns="round", values="early_stop_test_accuracy")
    if 0 not in accuracy:
        return None
    differences = accuracy.sub(accuracy[0], axis=0).drop(columns=0)
    # One unit in the last place of a mean is not an accuracy that was lost.
    matching = differences.mean()[lambda mean: mean >= -tolerance - 1e-9]
    if matching.empty:
        return None
    best = int(tickets[tickets["round"].isin(matching.index)].groupby("round")["density"].mean().idxmin())
    return {
        "round": best,
        "density": float(tickets[tickets["round"] == best]["density"].mean()),
        "difference": float(matching[best]),
        "dense": float(accuracy[0].mean()),
        "replicates": int(differences[best].count()),
    }
