"""Aggregate runs of several data sets or models: interquartile mean, probability of improvement, performance profile.

They are defined as in Agarwal et al. 2021, https://arxiv.org/abs/2108.13264, and in the authors' library rliable: a
*task* is a data set with a model, a *run* is a replicate, and a *method* is what is compared on every task. The library
itself cannot be used here: rliable 1.2 needs arch < 8, and no such version can be imported beside pandas 3.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lottery import config
from lottery.errors import LotteryError, missing
from lottery.formatting import listed, percent, ranges
from lottery.runs import store
from lottery.statistics import comparison, intervals, results
from lottery.statistics.comparison import WITHIN
from lottery.statistics.metric import ACCURACY, of_dense, of_tickets, transferred
from lottery.text_tables import Table, frame

SCORES = ("at", "method", "task", "replicate", "round", "density", "accuracy", "dense", "score")
SUMMARY = (
    "at", "method", "tasks", "replicates", "iqm", "iqm_low", "iqm_high", "over_dense", "over_dense_low",
    "over_dense_high", "first_over", "first_over_low", "first_over_high",
)  # fmt: skip
RESAMPLES = 9999  # of the bootstrap
_CONFIDENCE = 0.95  # of its intervals
# Keys that change no network: names, and what is trained beside it.
_OF_NO_NETWORK = ("name", "run.controls", "run.control_rounds", "run.num_replicates")
PROFILE = ("at", "method", "threshold", "fraction", "low", "high")


def scores(
    runs: Sequence[store.Folder], densities: Iterable[float] = (), by: str = "", within: float = WITHIN
) -> Table:
    """Gather the score of every network of a method: its accuracy − the accuracy of the same replicate's dense network.

    Args:
        runs: The runs' folders, or `lottery.Run` objects. Each run is a task, and the methods are the ticket and the
            controls; `summary` and `profile` take those that every run has.
        densities: Where to compare, in (0, 1]; by default at the densities of the first run that every run has.
        by: A key of the experiment, such as ``"prune.criterion"``. The methods are then the tickets at each of its
            values, and runs of the same data and model are one task.
        within: A run is compared at the round of the nearest density, if the two differ by at most this fraction.

    Returns:
        A data frame with the columns `SCORES`, a row for each network. ``at`` is where methods are compared;
        ``accuracy`` and ``dense`` are test accuracies at the early-stop step.

    Raises:
        LotteryError: There are fewer than two runs, a run lacks a density or measures no accuracy, or `by` is no key or
            does not divide the runs into the same methods on every task.
    """
    labels = comparison.labelled(runs)
    if len(labels) < 2:
        raise LotteryError("compare needs two different runs or more.")
    comparison.check_metrics(labels.values())
    return gathered({cell: results.table(run) for cell, run in _cells(labels, by).items()}, densities, within)


def gathered(tables: Mapping[tuple[str, str], Table], densities: Iterable[float] = (), within: float = WITHIN) -> Table:
    """Gather `scores` from the table of each run by method and task; where the method is empty, each branch is one."""
    import pandas as pd

    where = list(dict.fromkeys(densities)) or _common(tables, within)
    parts = []
    for at in where:
        if not 0 < at <= 1:
            raise LotteryError(f"density must be above 0, and at most 1, not {at:g}.")
        for (method, task), rows in tables.items():
            number = _nearest(rows, at, within, task)
            dense = of_dense(rows).set_index("replicate")[ACCURACY.early_stop]
            networks = of_tickets(rows) if method else rows[~transferred(rows)]
            there = networks[networks["round"] == number]
            values = {"accuracy": there[ACCURACY.early_stop], "dense": there["replicate"].map(dense)}
            parts.append(there.assign(at=at, method=method or there["branch"], task=task, **values))
    found = pd.concat(parts, ignore_index=True)
    found = found.assign(score=found["accuracy"] - found["dense"])
    found = found.loc[found["score"].notna(), list(SCORES)]
    if found.empty:
        raise LotteryError("The models of these runs measure no accuracy, so there is nothing to aggregate.")
    if without := {task for _, task in tables} - set(found["task"]):
        raise LotteryError(f"{listed(sorted(without))} cannot be aggregated with the others: no accuracy is measured.")
    return found.reset_index(drop=True)


def summary(found: Table) -> Table:
    """Compute the interquartile mean and the probabilities of improvement of each method, from `scores`.

    Returns:
        A data frame with the columns `SUMMARY`, a row for each method at each density, the first method first. ``iqm``
        is the mean of the middle half of all scores, of all tasks together. ``over_dense`` is the probability that the
        method is more accurate than dense, in two networks drawn at random, the mean over tasks; ``first_over`` is the
        same of the first method against this one. The ends of 95 % intervals are from a percentile bootstrap that draws
        replicates within each task, and keeps the networks of a replicate together; infinite for one replicate.
    """
    lines = []
    for at, methods in _matrices(found):
        first, *_ = methods.values()
        num, tasks = first.score.shape
        drawn = _resampled(num, tasks)
        # How often each replicate is drawn.
        counts = np.stack([(drawn == place).sum(axis=1) for place in range(num)], axis=1).astype(float)
        for method, own in methods.items():
            middle = interquartile_mean(own.score[None])[0]
            ends = _ends(interquartile_mean(np.take_along_axis(own.score[None], drawn, axis=1)), num)
            over_dense = _improvement(own.accuracy, own.dense, counts)
            first_over = math.nan, math.nan, math.nan
            if own is not first:
                first_over = _improvement(first.accuracy, own.accuracy, counts)
            lines.append((at, method, tasks, num, middle, *ends, *over_dense, *first_over))
    return frame(lines, SUMMARY)


def profile(found: Table) -> Table:
    """Compute the performance profile of each method: the fraction of all networks whose score is above a threshold.

    The thresholds are one below all scores, and every score in the table of `scores`, so that the profile is exact
    between them. The 95 % bands hold at each threshold, not at all of them together.

    Returns a data frame with the columns `PROFILE`, by density, method and threshold.
    """
    lines = []
    for at, methods in _matrices(found):
        every = np.unique([own.score for own in methods.values()])
        # A point to the left of all scores, from which every line begins at 1.
        below = every[0] - np.ptp(every) / 50
        for method, own in methods.items():
            drawn = _resampled(*own.score.shape)
            flat = np.take_along_axis(own.score[None], drawn, axis=1).reshape(len(drawn), -1)
            for threshold in (below, *every):
                ends = _ends((flat > threshold).mean(axis=1), len(own.score))
                lines.append((at, method, float(threshold), float((own.score > threshold).mean()), *ends))
    return frame(lines, PROFILE)


def notes(found: Table) -> list[str]:
    """Name the methods and replicates that `summary` and `profile` leave out, and where, in a sentence for each."""
    places: dict[str, list[str]] = {}  # the densities at which something is left out
    for at, every in found.groupby("at", sort=False):
        part = _on_every_task(every)
        for method, rows in every[~every["method"].isin(part["method"])].groupby("method", sort=False):
            without = sorted(set(every["task"]) - set(rows["task"]))
            verb = "lacks" if len(without) == 1 else "lack"
            places.setdefault(f"{method}, which {listed(without)} {verb}", []).append(percent(at))
        complete = _complete(part)
        num = min(map(len, complete.values()))
        for task, replicates in complete.items():
            incomplete = set(part.loc[part["task"] == task, "replicate"]) - set(replicates)
            reasons = {"which a method lacks": incomplete, f"because another task has only {num}": replicates[num:]}
            for why, left_out in reasons.items():
                if left_out:
                    what = f"{ranges(left_out, 'replicate')} of {task}, {why}"
                    places.setdefault(what, []).append(percent(at))
    sentences = []
    for what, densities in places.items():
        everywhere = len(densities) == found["at"].nunique()
        where = "" if everywhere else f" at density {listed(densities)}"
        sentences.append(f"Left out{where}: {what}.")
    return sentences


def confounded(runs: Sequence[store.Folder], by: str) -> list[str]:
    """Name the other settings in which runs differ that are compared `by` a key, in a sentence if there are any."""
    settings: dict[tuple[str, str], set[Any]] = {}  # by task and key
    for (_, task), run in _cells(comparison.labelled(runs), by).items():
        for key, value in config.flat(store.read_experiment(run).model_dump(mode="json")).items():
            settings.setdefault((task, key), set()).add(str(value))
    others = {key for (_, key), values in settings.items() if len(values) > 1} - {by, *_OF_NO_NETWORK}
    if not others:
        return []
    return [f"These runs differ not only in {by}, but also in {listed(sorted(others))}."]


def dependent(runs: Sequence[store.Folder], by: str = "") -> list[str]:
    """Name tasks that share data and seed, in a sentence for each group: the bootstrap takes them as independent."""
    groups: dict[Any, dict[str, None]] = {}  # a task has a run for each value of the key
    for (_, task), run in _cells(comparison.labelled(runs), by).items():
        groups.setdefault(comparison.drawn_from(run), {})[task] = None
    return [
        f"{listed(tasks)} have the same data and seed, so their replicates are not independent, but the intervals "
        "assume independence."
        for tasks in groups.values()
        if len(tasks) > 1
    ]


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Compute the mean of the middle half of all values along the axes after the first.

    Of n values, the lowest and the highest n // 4 are left out.
    """
    flat = np.sort(values.reshape(len(values), -1), axis=1)
    cut = flat.shape[1] // 4
    return flat[:, cut : flat.shape[1] - cut].mean(axis=1)


def wins(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Compare the values of every two replicates on each task: 1 for a win, a half for a tie, 0 for a loss.

    Both arrays have a row for each replicate and a column for each task. The mean is the probability of improvement.
    """
    difference = values[:, None, :] - others[None, :, :]
    # Equal accuracies may differ by the rounding of single precision, and are a tie all the same.
    return np.where(abs(difference) <= intervals.SAME, 0.5, difference > 0)


def _improvement(values: np.ndarray, others: np.ndarray, counts: np.ndarray) -> tuple[float, float, float]:
    won = wins(values, others)
    # Over draws b, replicates i and j, tasks t: a pair counts as often as both are drawn.
    drawn = np.einsum("bit,ijt,bjt->b", counts, won, counts, optimize=True) / won.size
    return float(won.mean()), *_ends(drawn, len(values))


def _resampled(num: int, tasks: int) -> np.ndarray:
    # From a fixed seed, so that a table is the same each time. Tasks are strata: the data sets are chosen, and only
    # replicates are drawn at random.
    return np.random.default_rng(0).integers(num, size=(RESAMPLES, num, tasks))


def _ends(drawn: np.ndarray, num_replicates: int) -> tuple[float, float]:
    if num_replicates == 1:  # a single replicate cannot vary
        return -math.inf, math.inf
    low, high = np.quantile(drawn, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return float(low), float(high)


class _Matrices(NamedTuple):
    # A row for each replicate and a column for each task.
    score: np.ndarray
    accuracy: np.ndarray
    dense: np.ndarray


def _matrices(found: Table) -> Iterator[tuple[float, dict[str, _Matrices]]]:
    """Yield the matrices of every method at each density: of each task as many replicates as all tasks have."""
    for at, every in found.groupby("at", sort=False):
        part = _on_every_task(every)
        complete = _complete(part)
        num = min(map(len, complete.values()))
        if not num:
            empty = listed(task for task, replicates in complete.items() if not replicates)
            raise LotteryError(f"At density {at:g}, no replicate of {empty} has every method.")
        keys = [(task, replicate) for task, replicates in complete.items() for replicate in replicates[:num]]
        methods = {}
        for method, rows in part.groupby("method", sort=False):
            columns = rows.set_index(["task", "replicate"]).loc[keys]
            parts = (columns[name].to_numpy().reshape(-1, num).T for name in _Matrices._fields)
            methods[str(method)] = _Matrices(*parts)
        yield float(at), methods


def _on_every_task(part: Table) -> Table:
    """Take the methods that are there on every task: a mean over other tasks could not be compared with theirs."""
    num = part.groupby("method")["task"].transform("nunique")
    return part[num == part["task"].nunique()]


def _complete(part: Table) -> dict[str, list[int]]:
    # By task, the replicates that have every method.
    there = part.pivot_table(index="replicate", columns="task", values="score", aggfunc="count")
    is_complete = there == part["method"].nunique()
    return {task: there.index[is_complete[task]].tolist() for task in dict.fromkeys(part["task"])}


def _common(tables: Mapping[tuple[str, str], Table], within: float) -> list[float]:
    first, *others = (_densities(rows, task) for (_, task), rows in tables.items())
    # At density 1 the ticket is the dense network itself.
    found = [at for at in first.values() if at < 1]
    for own in others:
        found = [at for at in found if any(comparison.is_near(density, at, within) for density in own.values())]
    if not found:
        raise LotteryError(
            f"The runs have no density in common within {100 * within:g} %. Choose a density with --density, or a "
            "larger --within."
        )
    return found


def _densities(rows: Table, task: str) -> dict[int, float]:
    tickets = of_tickets(rows)
    if tickets.empty:
        raise LotteryError(f"No round of {task} is complete yet.")
    return tickets.groupby("round")["density"].mean().to_dict()


def _nearest(rows: Table, at: float, within: float, task: str) -> int:
    densities = _densities(rows, task)
    # By ratio: rounds lie evenly apart on a logarithmic axis.
    number = min(densities, key=lambda number: abs(math.log(densities[number] / at)))
    if not comparison.is_near(densities[number], at, within):
        raise LotteryError(
            f"{task} has no density within {100 * within:g} % of {at:g}; the nearest is {densities[number]:.4f}. "
            "Choose another --density, or a larger --within."
        )
    return number


def _cells(labels: Mapping[str, Path], by: str) -> dict[tuple[str, str], Path]:
    """Name each run by method and task: the value of a key, and data and model; without a key, each run is a task."""
    if not by:
        return {("", task): run for task, run in labels.items()}
    tasks: dict[Any, str] = {}
    found: dict[tuple[str, str], Path] = {}
    for run in labels.values():
        experiment = store.read_experiment(run)
        settings = config.flat(experiment.model_dump(mode="json"))
        if by not in settings:
            raise missing("--by names a key of an experiment, not", by, settings)
        name = f"{experiment.data.name} {experiment.model.name}"
        key = (name, store.read_environment(run).get("data_sha256"), str(experiment.model))
        if key not in tasks:
            # Other data or another model may have the same name.
            alike = sum(other == name for other, *_ in tasks)
            tasks[key] = f"{name} ({alike + 1})" if alike else name
        cell = f"{by} = {settings[by]}", tasks[key]
        if cell in found:
            both = f"{str(found[cell])!r} and {str(run)!r}"
            raise LotteryError(f"{both} have the same data, model and {by}; leave out one of them.")
        found[cell] = run
    methods = dict.fromkeys(method for method, _ in found)
    cells = list(itertools.product(methods, tasks.values()))
    for method, task in cells:
        if (method, task) not in found:
            raise LotteryError(
                f"--by {by} needs a run of each data set and model for every value, and no run of {task} has {method}."
            )
    return {cell: found[cell] for cell in cells}
