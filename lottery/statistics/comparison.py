"""Compare several runs: the accuracy of each at the same rounds, or the loss, and its difference from the first."""

import itertools
import math
from collections.abc import Mapping
from pathlib import Path

from lottery.errors import LotteryError
from lottery.formatting import ranges
from lottery.runs import store
from lottery.statistics import intervals, results, verdicts
from lottery.statistics.metric import ACCURACY, Metric, metric_of
from lottery.statistics.verdicts import Table

COLUMNS = (
    "round", "density", "run", "replicates", "accuracy", "low", "high", "difference", "difference_low",
    "difference_high", "own_round",
)  # fmt: skip

WITHIN = 0.05  # densities are compared if they differ by at most this fraction of the first run's


def tables(runs: list[Path]) -> dict[str, Table]:
    """Read the table of each run, by the keys of `labelled`.

    Raises `LotteryError` if replicates are not pairs: another seed drew the batches, or from other data.
    """
    labels = labelled(runs)
    first, *others = labels.values()
    readers = {
        "data set": lambda run: store.read_environment(run).get("data_sha256"),
        "run.seed": lambda run: store.read_experiment(run).run.seed,
    }
    for run, (what, read) in itertools.product(others, readers.items()):
        if read(run) != read(first):
            raise LotteryError(
                f"compare: {str(run)!r} has another {what} than {str(first)!r}: no pairs to compare; --aggregate sums "
                "up runs of several data sets."
            )
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


def common_measure(tables: Mapping[str, Table]) -> Metric:
    """Choose what to compare: the test accuracy, or the test loss if no run measures accuracy."""
    measures = {name: metric_of(rows) for name, rows in tables.items()}
    if len(set(measures.values())) > 1:
        without, other = (next(name for name in tables if measures[name].is_loss is loss) for loss in (True, False))
        raise LotteryError(f"compare: {without} measures no accuracy and {other} does, so nothing can be compared.")
    return next(iter(measures.values()), ACCURACY)


def compared(tables: Mapping[str, Table], measure: str = "", confidence: float = 0.95, within: float = WITHIN) -> Table:
    """Compare the tickets of several runs by a column, that of `common_measure` by default, from tables by name.

    Each round of a run is compared with the round of the first run that has the nearest density, if the two differ by
    at most the fraction `within` of it; `left_out` names the other rounds.

    Returns the `COLUMNS` by round of the first run, which comes first in it, and then the best: mean and t interval of
    each run, and of run − first run, paired by replicate. ``density`` and ``own_round`` are the run's own. If a loss is
    compared, the column ``accuracy`` is called ``loss``, and lower is better.
    """
    import pandas as pd

    measure = measure or common_measure(tables).early_stop
    if len(tables) < 2:
        raise LotteryError(f"compare: received {len(tables)} run, allowed are two or more.")
    chains = {name: rows[rows["branch"] == store.TICKET] for name, rows in tables.items()}
    (first, reference), *_ = chains.items()
    lines = []
    for name, tickets in chains.items():
        partners = {one: one for one in set(reference["round"])}
        partners = partners if name == first else _partners(tickets, reference, within)
        aligned = tickets.assign(own=tickets["round"], round=tickets["round"].map(partners)).dropna(subset="round")
        both = pd.concat([aligned, reference.assign(branch="first")])
        pairs = verdicts.differences(both, measure, "first", confidence).set_index("round")[["mean", "low", "high"]]
        for index, part in aligned.groupby("round"):
            if (values := part[measure].dropna()).empty:
                continue
            unit = float(values.abs().mean()) if measure.endswith("loss") else 1.0
            mean, low, high = intervals.mean_interval(values.tolist(), confidence, unit=unit)
            if measure.endswith("accuracy"):
                low, high = intervals.of_accuracy(low, high)
            difference = pairs.loc[index] if name != first and index in pairs.index else (math.nan,) * 3
            own = int(part["own"].iloc[0])
            lines.append((int(index), part["density"].mean(), name, len(values), mean, low, high, *difference, own))
    what = "loss" if measure.endswith("loss") else "accuracy"
    found = pd.DataFrame(lines, columns=[what if name == "accuracy" else name for name in COLUMNS])
    shared = sorted(set(found[found["run"] != first]["round"]))
    if not shared:
        raise LotteryError(
            f"No run has a round whose density is within {100 * within:g} % of one of {first}, so there is nothing to "
            "compare; --within allows more."
        )
    found = found[found["round"].isin(shared)].assign(behind=found["run"] != first)
    found = found.sort_values(["round", "behind", what], ascending=[True, True, what == "loss"], ignore_index=True)
    return found.drop(columns="behind")


def left_out(tables: Mapping[str, Table], found: Table, within: float = WITHIN) -> list[str]:
    """Name the rounds of each run that `compared` leaves out, in a sentence for each run that has any."""
    first = next(iter(tables))
    sentences = []
    for name, rows in tables.items():
        there = sorted(set(rows[rows["branch"] == store.TICKET]["round"]))
        own = set(found[found["run"] == name]["own_round"])
        absent = [index for index in there if index not in own]
        if not absent:
            continue
        of = "any other run" if name == first else first
        what = f"round{'s' * (len(absent) > 1)} {ranges(absent)} of {name}"
        sentences.append(f"Not compared: {what}, without a density within {100 * within:g} % in {of}.")
        if not own - {0} and name != first:
            sentences.append(f"Only the dense networks of {name} are compared.")
    return sentences


def _partners(tickets: Table, reference: Table, within: float) -> dict[int, int]:
    """Pair rounds of a run with those of the first: each with the nearest in density, and each at most once."""
    own, others = (rows.groupby("round")["density"].mean().to_dict() for rows in (tickets, reference))
    candidates = sorted(
        # Of equal densities, those of the same round.
        (round(abs(math.log(density / other)), 9), abs(index - place), index, place)
        for index, density in own.items()
        for place, other in others.items()
        if abs(density / other - 1) <= within + 1e-9
    )
    found: dict[int, int] = {}
    for *_, index, place in candidates:
        if index not in found and place not in found.values():
            found[index] = place
    return found
