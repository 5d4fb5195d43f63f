"""Compare several runs: the accuracy of each at the same rounds, and its difference from the first."""

import itertools
from collections.abc import Mapping
from pathlib import Path

from lottery.errors import LotteryError
from lottery.runs import intervals, results, store, verdicts
from lottery.runs.verdicts import Table

COLUMNS = (
    "round", "density", "run", "replicates", "accuracy", "low", "high", "difference", "difference_low",
    "difference_high",
)  # fmt: skip

SAME_DENSITY = 0.01  # densities are the same if their ratio is this near to 1


def tables(runs: list[Path]) -> dict[str, Table]:
    """Read the table of each run, by the keys of `labelled`.

    Raises `LotteryError` if replicates are not pairs: another seed drew the batches, or from other data.
    """
    labels = labelled(runs)
    first, *others = labels.values()
    readers = {
        "data": lambda run: store.read_environment(run).get("data_sha256"),
        "run.seed": lambda run: store.read_experiment(run).run.seed,
    }
    for run, (what, read) in itertools.product(others, readers.items()):
        if read(run) != read(first):
            raise LotteryError(f"compare: {str(run)!r} has another {what} than {str(first)!r}: no pairs to compare.")
    return {label: results.table(run) for label, run in labels.items()}


def labelled(runs: list[Path]) -> dict[str, Path]:
    """Name each run by its experiment, or by its folder where that is ambiguous, or by its path; list it once."""
    runs = list({run.resolve(): run for run in runs}.values())
    names, folders = [store.read_experiment(run).name for run in runs], [run.name for run in runs]
    labels = [
        name if names.count(name) == 1 else run.name if folders.count(run.name) == 1 else str(run)
        for name, run in zip(names, runs, strict=True)
    ]
    return dict(zip(labels, runs, strict=True))


def compared(tables: Mapping[str, Table], measure: str = verdicts.MEASURE, confidence: float = 0.95) -> Table:
    """Compare the tickets of several runs by a measure, from the table of each run by its name.

    Returns the `COLUMNS` by round, and within a round the best first: mean and t interval of each run, and of run −
    first run, paired by replicate. Rounds whose density is not that of the same round of the first run are left out.
    """
    import pandas as pd

    if len(tables) < 2:
        raise LotteryError(f"compare: received {len(tables)} run, allowed are two or more.")
    chains = {name: rows[rows["branch"] == store.TICKET] for name, rows in tables.items()}
    (first, reference), *_ = chains.items()
    densities = reference.groupby("round")["density"].mean()
    lines = []
    for name, tickets in chains.items():
        both = pd.concat([tickets, reference.assign(branch="first")])
        pairs = verdicts.differences(both, measure, "first", confidence).set_index("round")[["mean", "low", "high"]]
        for index, part in tickets.groupby("round"):
            density, values = part["density"].mean(), part[measure].dropna()
            if index not in densities or abs(density / densities[index] - 1) > SAME_DENSITY or values.empty:
                continue
            mean = intervals.mean_interval(values.tolist(), confidence)
            difference = pairs.loc[index] if name != first and index in pairs.index else (float("nan"),) * 3
            lines.append((index, density, name, len(values), *mean, *difference))
    found = pd.DataFrame(lines, columns=list(COLUMNS))
    if len(set(found["run"])) < 2:
        raise LotteryError(f"The runs have no round of the same density in common with {first}.")
    return found.sort_values(["round", "accuracy"], ascending=[True, False], ignore_index=True)
