"""Several runs beside each other: the accuracy of each at the same rounds, and its difference from the first."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lottery.errors import LotteryError
from lottery.runs import intervals, results, store, verdicts

# A pandas data frame, which is slow to import and which type checkers take apart wrongly.
Table = Any


COLUMNS = (
    "round", "density", "run", "replicates", "accuracy", "low", "high", "difference", "difference_low",
    "difference_high",
)  # fmt: skip


SAME_DENSITY = 0.01  # by how much of itself a density may differ


def tables(runs: list[Path]) -> dict[str, Table]:
    """The table of each run, by the name of its experiment, or by its folder where two have the same name.

    Raises:
        LotteryError: One is no run.
    """
    labels = labelled(runs)
    _check_pairs(list(labels.values()))
    return {label: results.table(run) for label, run in labels.items()}


def labelled(runs: list[Path]) -> dict[str, Path]:
    """Runs by what tells them apart: the experiment's name, else the folder's, else its path; each run once.

    Raises:
        LotteryError: One is no run.
    """
    runs = list({run.resolve(): run for run in runs}.values())  # the first may be among the others again
    names, folders = [store.read_experiment(run).name for run in runs], [run.name for run in runs]
    labels = [
        name if names.count(name) == 1 else run.name if folders.count(run.name) == 1 else str(run)
        for name, run in zip(names, runs, strict=True)
    ]
    return dict(zip(labels, runs, strict=True))


def contested(tables: Mapping[str, Table], measure: str = verdicts.MEASURE, confidence: float = 0.95) -> Table:
    """Compare the tickets of several runs, round by round.

    Args:
        tables: What `lottery.runs.results.table` returns, by the name of each run.
        measure: A column of it.
        confidence: The probability with which an interval holds the true mean.

    Returns:
        A data frame with the columns `COLUMNS`, by round, and within a round the best first: mean and t interval of
        each run, and of its difference from the first run, paired by replicate. A round of a run whose density is
        not that of the first run's round is left out.

    Raises:
        LotteryError: There are not two runs, or they have no round in common.
    """
    import pandas as pd

    if len(tables) < 2:
        raise LotteryError(f"compare: received {len(tables)} run, allowed are two or more.")
    (first, reference), *_ = tables.items()
    densities = _tickets(reference).groupby("round")["density"].mean()
    lines = []
    for name, rows in tables.items():
        tickets = _tickets(rows)
        both = pd.concat([tickets, _tickets(reference).assign(branch="first")])
        less = verdicts.paired(both, measure, "first")
        for index, part in tickets.groupby("round"):
            density = part["density"].mean()
            if index not in densities or abs(density / densities[index] - 1) > SAME_DENSITY:
                continue
            values, pairs = part[measure].dropna(), less[index].dropna()
            if values.empty:
                continue
            none = (float("nan"),) * 3
            difference = none if name == first or pairs.empty else intervals.mean_interval(pairs.tolist(), confidence)
            mean = intervals.mean_interval(values.tolist(), confidence)
            lines.append((index, density, name, len(values), *mean, *difference))
    found = pd.DataFrame(lines, columns=list(COLUMNS))
    if len(set(found["run"])) < 2:
        raise LotteryError(f"The runs have no round of the same density in common with {first}.")
    return found.sort_values(["round", "accuracy"], ascending=[True, False], ignore_index=True)


def _check_pairs(runs: list[Path]) -> None:
    """Replicates are pairs where the same seed drew their batches from the same data."""
    for what, values in (
        ("data", [store.read_environment(run).get("data_sha256") for run in runs]),
        ("run.seed", [store.read_experiment(run).run.seed for run in runs]),
    ):
        other = next((run for run, value in zip(runs, values, strict=True) if value != values[0]), None)
        if other is not None:
            raise LotteryError(
                f"compare: {str(other)!r} has another {what} than {str(runs[0])!r}: no pairs to compare."
            )


def _tickets(rows: Table) -> Table:
    return rows[rows["branch"] == store.TICKET]
