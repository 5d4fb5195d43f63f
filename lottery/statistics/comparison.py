"""Compare several runs: the accuracy of each at the same rounds, or the loss, and its difference from the first."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lottery.errors import LotteryError
from lottery.formatting import ranges
from lottery.runs import store
from lottery.statistics import intervals, results, verdicts
from lottery.statistics.metric import ACCURACY, LOSS, Metric, metric_of, of_dense, of_tickets
from lottery.text_tables import Table, frame

COLUMNS = (
    "round", "density", "run", "replicates", "accuracy", "low", "high", "difference", "difference_low",
    "difference_high", "pairs", "own_round",
)  # fmt: skip

WITHIN = 0.05  # densities are compared if they differ by at most this fraction of the first run's


def tables(runs: Sequence[store.Folder]) -> dict[str, Table]:
    """Read the table of each run, by the keys of `labelled`.

    Raises `LotteryError` if a run has no round, or replicates are not pairs: by another seed, or of other data.
    """
    labels = labelled(runs)
    # First of all: a run that was killed as it began does not say what its data are.
    found = {label: results.table(run) for label, run in labels.items()}
    for label, rows in found.items():
        if rows.empty:
            raise LotteryError(f"No round of {label} is complete yet.")
    check_metrics(labels.values())
    first, *others = labels.values()
    for run in others:
        for what, own, its in zip(("data set", "run.seed"), drawn_from(run), drawn_from(first), strict=True):
            if own != its:
                raise LotteryError(
                    f"{str(run)!r} has another {what} than {str(first)!r}, so their replicates cannot be compared in "
                    "pairs. Use --aggregate for runs of several data sets."
                )
    return found


def labelled(runs: Sequence[store.Folder]) -> dict[str, Path]:
    """Name each run by its experiment, or by its folder where that is ambiguous, or by its path; list it once."""
    paths = list({Path(run).resolve(): Path(run) for run in runs}.values())
    # Of one experiment several runs may exist, such as with other seeds.
    names = [store.read_experiment(path).name for path in paths]
    folders = [path.name for path in paths]
    labels = {}
    for name, run in zip(names, paths, strict=True):
        label = name
        if names.count(name) > 1:
            label = run.name if folders.count(run.name) == 1 else str(run)
            # A folder may have the name of another run's experiment, and would take its place.
            if names.count(label) == 1:
                label = str(run.resolve())
        labels[label] = run
    return labels


def check_metrics(runs: Iterable[Path]) -> None:
    """Raise `LotteryError` if runs measure other metrics for their accuracy, or without any other losses."""
    for place in range(2):
        named = {measured(store.read_environment(run))[place]: run for run in runs}
        # A loss is not known of a model with an accuracy, nor in runs of earlier versions.
        named.pop("", None)
        if len(named) > 1:
            (one, run), (two, other), *_ = named.items()
            raise LotteryError(f"{str(run)!r} measures {one!r}, and {str(other)!r} {two!r}: they cannot be compared.")


def measured(environment: Mapping[str, Any]) -> tuple[str, str]:
    """Name what a run measures by its environment: its accuracy, and its loss where that counts in its place."""
    return environment.get("accuracy", "accuracy"), environment.get("loss", "")


def drawn_from(run: store.Folder) -> tuple[str | None, int]:
    """Give the digest of the data and the seed of a run: what makes replicates of two runs pairs."""
    return store.read_environment(run).get("data_sha256"), store.read_experiment(run).run.seed


def is_near(density: float, other: float, within: float) -> bool:
    """Return True if two densities differ by at most a fraction of the second."""
    return abs(density / other - 1) <= within + 1e-9  # an error of rounding is not a difference


def _common_metric(tables: Mapping[str, Table]) -> Metric:
    """Choose what to compare: the test accuracy, or the test loss if no run measures accuracy."""
    runs: dict[Metric, str] = {}  # the first run of each
    for name, rows in tables.items():
        runs.setdefault(metric_of(rows), name)
    if len(runs) > 1:
        raise LotteryError(f"{runs[LOSS]} measures no accuracy and {runs[ACCURACY]} does, so they cannot be compared.")
    return next(iter(runs))


def compared(tables: Mapping[str, Table], within: float = WITHIN) -> Table:
    """Compare the tickets of several runs by test accuracy, or by test loss if none measures it, from tables by name.

    Each round of a run is compared with the round of the first run that has the nearest density, if the two differ by
    at most the fraction `within` of it; `left_out` names the other rounds.

    Returns the `COLUMNS` by round of the first run, which comes first in it, and then the best: mean and 95 % t
    interval of each run, and of run − first run, of ``pairs`` of replicates. ``density`` and ``own_round`` are the
    run's own. If a loss is compared, the column ``accuracy`` is called ``loss``, and lower is better.
    """
    import pandas as pd

    if len(tables) < 2:
        raise LotteryError("compare needs two different runs or more.")
    metric = _common_metric(tables)
    chains = {name: of_tickets(rows) for name, rows in tables.items()}
    first = next(iter(chains))
    reference = chains.pop(first)
    lines = _lines(first, reference.assign(own=reference["round"]), metric)
    for name, tickets in chains.items():
        partners = tickets["round"].map(_partners(tickets, reference, within))
        aligned = tickets.assign(own=tickets["round"], round=partners).dropna(subset="round")
        # The first run stands in as a branch of the other, so that pairs are those of ticket and branch.
        both = pd.concat([aligned, reference.assign(branch="first")])
        pairs = verdicts.differences(both, metric.early_stop, "first")
        lines += _lines(name, aligned, metric, pairs)
    found = frame(lines, COLUMNS).rename(columns={"accuracy": metric.what})
    shared = sorted(set(found[found["run"] != first]["round"]))
    if not shared:
        raise LotteryError(
            f"No run has a round whose density is within {100 * within:g} % of a round of {first}, so there is nothing "
            "to compare. Choose a larger --within."
        )
    found = found[found["round"].isin(shared)].assign(behind=found["run"] != first)
    order = ["round", "behind", metric.what]
    found = found.sort_values(order, ascending=[True, True, metric.is_loss], ignore_index=True)
    return found.drop(columns="behind")


def _lines(name: str, aligned: Table, metric: Metric, pairs: Table | None = None) -> list[tuple[Any, ...]]:
    against = {} if pairs is None else pairs.set_index("round").to_dict("index")
    lines = []
    for number, part in aligned.groupby("round"):
        values = part[metric.early_stop].dropna()
        if values.empty:
            continue
        mean, low, high = intervals.mean_interval(values.tolist(), unit=intervals.unit_of(values))
        if not metric.is_loss:
            low, high = intervals.of_accuracy(low, high)
        pair = against.get(number, {})
        difference = [*(pair.get(key, math.nan) for key in ("mean", "low", "high")), pair.get("replicates", 0)]
        place = int(number), part["density"].mean(), name, len(values)
        lines.append((*place, mean, low, high, *difference, int(part["own"].iloc[0])))
    return lines


def left_out(tables: Mapping[str, Table], found: Table, within: float = WITHIN) -> list[str]:
    """Name the rounds of each run that `compared` leaves out, in a sentence for each run that has any."""
    first = next(iter(tables))
    sentences = []
    for name, rows in tables.items():
        own = set(found[found["run"] == name]["own_round"])
        absent = set(of_tickets(rows)["round"]) - own
        if not absent:
            continue
        other = "any other run" if name == first else first
        what = f"{ranges(absent, 'round')} of {name}"
        why = f"no unpaired round of {other} has a density within {100 * within:g} %"
        sentences.append(f"Not compared: {what}, because {why}.")
        if not own - {0} and name != first:
            sentences.append(f"Only the dense networks of {name} are compared.")
    return sentences


def _partners(tickets: Table, reference: Table, within: float) -> dict[int, int]:
    """Pair rounds of a run with those of the first: each with the nearest in density, and each at most once."""
    own, others = (rows.groupby("round")["density"].mean().to_dict() for rows in (tickets, reference))
    candidates = []
    for (number, density), (partner, other) in itertools.product(own.items(), others.items()):
        if is_near(density, other, within):
            # Rounded, so that densities that differ by an error of rounding are as far apart as equal ones.
            apart = round(abs(math.log(density / other)), 9)
            # Of equal densities, those of the same round.
            candidates.append((apart, abs(number - partner), number, partner))
    found: dict[int, int] = {}
    for _, _, number, partner in sorted(candidates):
        if number not in found and partner not in found.values():
            found[number] = partner
    return found


def of_sweep(runs: Iterable[tuple[Path, Mapping[str, Any]]], tolerance: float | None = None) -> Table:
    """Make a data frame with a row for each run of a sweep.

    Args:
        runs: Each run's folder, with the values that the grid sets in it, by key such as ``prune.rate``.
        tolerance: What a matching ticket may lose; see `lottery.api.Run.verdict`.

    Returns:
        Columns: the keys of the grid; ``dense_accuracy``, the mean test accuracy of the dense networks at their
        early-stop step, or ``dense_loss`` where no model measures accuracy; ``smallest_density_by_mean`` and
        ``difference_by_mean``, density and difference from dense of the sparsest round that keeps up with dense by the
        mean alone, which shows nothing yet; None if none does; ``run``, the folder.
    """
    import pandas as pd

    rows = []
    for run, values in runs:
        stored = results.table(run)
        metric = metric_of(stored)
        best = verdicts.smallest_by_mean(stored, tolerance) or {}
        texts = {key: value if isinstance(value, str | int | float) else str(value) for key, value in values.items()}
        rows.append({
            **texts,
            f"dense_{metric.what}": of_dense(stored)[metric.early_stop].mean(),
            "smallest_density_by_mean": best.get("density"),
            "difference_by_mean": best.get("difference"),
            "run": str(run),
        })  # fmt: skip
    return pd.DataFrame(rows)
