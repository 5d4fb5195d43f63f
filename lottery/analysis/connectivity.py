"""Linear mode connectivity of the networks of a run: error barriers from what `connecting.connect` has stored."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lottery import config, files, masks, weights
from lottery.analysis import connectivity_files
from lottery.errors import LotteryError
from lottery.runs import intervals, store

# A pandas data frame, which is slow to import and which type checkers take apart wrongly.
Table = Any


STABLE = 0.02  # of Frankle et al. 2020, https://arxiv.org/abs/1912.05671, section 3


PLACE = ("replicate", "round", "step", "density", "batch_norm")


POINTS = (*PLACE, *connectivity_files.PATH)


BARRIERS = (*PLACE, "split", "ends", "highest", "alpha_highest", "barrier", "stable")


def points(run: Path) -> Table:
    """The networks between two solutions, for every path that is stored of a run.

    Left out are paths of rounds or networks that are not complete, or are others by now; `wrong` names them.

    Args:
        run: The run's folder.

    Returns:
        A data frame with the columns `POINTS`, sorted by them: ``step`` is k, ``density`` the round's, ``batch_norm``
        "stored" where statistics were interpolated like weights, "recomputed" where they were measured anew at each
        point; ``alpha`` in [0, 1] goes from the network of order 1 to that of order 2, ``split`` is "train" or "test",
        ``loss`` in nats and ``error`` in [0, 1]. It has no rows where nothing is stored.

    Raises:
        LotteryError: It is not a run, or a file is damaged.
    """
    import pandas as pd

    experiment, found = store.read_experiment(run), []
    for (replicate, index, step), recomputed, path in connectivity_files.stored_paths(run):
        record, rows = connectivity_files.read_path(path)
        if connectivity_files.misfit(run, experiment, (replicate, index, step), record["networks"]):
            continue
        density = store.read_record(store.round_path(run, replicate, index))["density"]
        place = (
            replicate,
            index,
            step,
            density,
            connectivity_files.RECOMPUTED if recomputed else connectivity_files.STORED,
        )
        found += [(*place, *row) for row in rows]
    table = pd.DataFrame(found, columns=list(POINTS))
    return table.sort_values(["replicate", "round", "step", "batch_norm", "split", "alpha"], ignore_index=True)


def barriers(points: Table) -> Table:
    """The error barrier of every path.

    Highest error on the straight line between two networks, less the mean of its ends: "linear interpolation
    instability" of Frankle et al. 2020, https://arxiv.org/abs/1912.05671, section 2.

    Args:
        points: What `points` returns.

    Returns:
        A data frame with the columns `BARRIERS`, a row for each path and split: ``ends`` is the mean error of the two
        networks, ``highest`` the highest error, found first at ``alpha_highest``; ``stable`` is whether the barrier is
        below `STABLE`. Errors are in [0, 1].
    """
    import pandas as pd

    rows = []
    for place, part in points.groupby([*PLACE, "split"]):
        rows.append({**dict(zip([*PLACE, "split"], place, strict=True)), **measured(part["alpha"], part["error"])})
    return pd.DataFrame(rows, columns=list(BARRIERS))


def measured(alphas: Sequence[float], errors: Sequence[float]) -> dict[str, Any]:
    """What `barriers` says of one path, from its points in any order."""
    at, values = np.asarray(alphas, float), np.asarray(errors, float)
    rank = np.argsort(at)
    at, values = at[rank], values[rank]
    ends, top = float(values[0] + values[-1]) / 2, int(np.argmax(values))
    barrier = float(values[top]) - ends
    return {
        "ends": ends, "highest": float(values[top]), "alpha_highest": float(at[top]), "barrier": barrier,
        "stable": barrier < STABLE,
    }  # fmt: skip


def sentences(barriers: Table, confidence: float = 0.95) -> list[str]:
    """What the barriers of the test error say, in sentences.

    Args:
        barriers: What `barriers` returns.
        confidence: As for `lottery.runs.intervals.mean_interval`.

    Returns:
        For the dense network, and each round that several steps were tried of, the earliest step from which it is
        stable; for each step, the smallest density down to which pruned networks are. The mean over replicates
        decides, and its interval is told; steps and rounds that break the pattern are named.
    """
    tested = barriers[barriers["split"] == "test"]
    said = []
    for kind in (connectivity_files.STORED, connectivity_files.RECOMPUTED):
        lines, found = _means(tested[tested["batch_norm"] == kind], confidence), []
        for index in sorted({line["round"] for line in lines}):
            tried = [line for line in lines if line["round"] == index]
            if index == 0 or len(tried) > 1:
                found.append(_by_step(tried, index, confidence))
        for step in sorted({line["step"] for line in lines if line["round"]}):
            pruned = [line for line in lines if line["round"] and line["step"] == step]
            found.append(_by_round(pruned, step, confidence))
        if kind == connectivity_files.RECOMPUTED:
            found = [f"With the statistics of batches recomputed, {one[0].lower()}{one[1:]}" for one in found]
        said += [f"{one}." for one in found]
    return said


def wrong(run: Path) -> Iterator[tuple[str, list[str]]]:
    """Check what is stored of a run's connectivity.

    For each network what `wrong_network` says. For each path: its checksum; that its networks are those that it was
    measured of; that its ends have the test errors that their records tell, where statistics are as they were stored.

    Args:
        run: The run's folder.

    Yields:
        For each network and path, its name and what is wrong with it, each a sentence. In a name ", network " comes
        before a network's step, and ", path " before a path's.

    Raises:
        LotteryError: It is not a run, or its configuration was edited.
    """
    experiment = store.read_experiment(run)
    for path in sorted(connectivity_files.folder(run).glob("replicate-*/round-*/branch-*/round.json")):
        found: list[str] = []
        try:
            found += wrong_network(run, experiment, path.parent)
        except (LotteryError, KeyError) as error:
            found.append(str(error))
        yield _name(path.parent, "network"), found
    for place, recomputed, path in connectivity_files.stored_paths(run):
        found = []
        try:
            record, rows = connectivity_files.read_path(path)
            if said := connectivity_files.misfit(run, experiment, place, record["networks"]):
                found.append(said)
            elif "test" not in record["splits"]:
                found.append("It has no points of the split 'test'.")
            # Other statistics give the networks at the ends other errors.
            elif not recomputed:
                found += _wrong_ends(run, experiment, place, rows)
        except (LotteryError, KeyError) as error:
            found.append(str(error))
        yield _name(path, "path"), found


def wrong_network(run: Path, experiment: config.Experiment, place: Path) -> Iterator[str]:
    """Check one of the copies.

    Args:
        run: The run's folder.
        experiment: Its experiment.
        place: The copy's folder.

    Yields:
        A sentence for everything that is wrong: masks that are not the round's, masked weights that are not zero,
        training that did not begin from the weights of its step under the masks.

    Raises:
        LotteryError: A file is missing, or has not its checksum.
    """
    store.check_files(place)
    record = store.read_record(place)
    replicate, index, step, number = (record[key] for key in ("replicate", "round", "first_step", "order"))
    if record["branch"] != connectivity_files.label(step, number) or number not in connectivity_files.ORDERS:
        yield f"It was trained from step {step} with order {number} of the data."
    stored = store.StoredRound(connectivity_files.folder(run), replicate, index, record["branch"])
    kept, ticket = stored.masks, store.StoredRound(run, replicate, index).masks
    if kept.keys() != ticket.keys() or any(not np.array_equal(kept[name], ticket[name]) for name in ticket):
        yield "Its masks are not those of the round."
    for name, count in masks.leaks(stored.weights, kept).items():
        yield f"{name} has {count} masked entries that are not zero."
    start = files.read_arrays(connectivity_files.state_path(run, experiment, replicate, step))
    if weights.fingerprint(start) != record["step_sha256"]:
        yield f"The weights that are stored of step {step} are not those that it began with."
    begun = connectivity_files.begun(experiment, replicate, number, start)
    if not stored.began_with(begun):
        yield f"Training did not begin from the weights of step {step} under the masks."


def _wrong_ends(
    run: Path, experiment: config.Experiment, place: connectivity_files.Place, rows: Sequence[connectivity_files.Row]
) -> Iterator[str]:
    tested = {row[0]: row[3] for row in rows if row[1] == "test"}
    for alpha, number in zip((0.0, 1.0), connectivity_files.ORDERS, strict=True):
        record = store.read_record(connectivity_files.network_path(run, experiment, *place, number))
        error = 1 - record["final_test_accuracy"]
        if not abs(tested[alpha] - error) <= 1e-6:
            yield f"At alpha {alpha:g} the test error is {tested[alpha]}, and that of the network {error}."


def _name(path: Path, what: str) -> str:
    replicate, index = (part.replace("-", " ") for part in path.parts[-3:-1])
    own = path.stem.removeprefix("branch-").removeprefix("path-").replace("_", " ").replace("-", ", ")
    return f"connectivity, {replicate}, {index.replace(' 0', ' ')}, {what} {own}"


def _means(part: Table, confidence: float) -> list[dict[str, Any]]:
    """Mean barrier over replicates, with its interval, for each round and step."""
    lines = []
    for (index, step), group in part.groupby(["round", "step"]):
        values = group["barrier"].tolist()
        mean, low, high = intervals.mean_interval(values, confidence)
        line = {"round": int(index), "step": int(step), "density": group["density"].mean(), "num": len(values)}
        lines.append({**line, "mean": mean, "low": low, "high": high, "stable": mean < STABLE})
    return lines


def _by_step(tried: list[dict[str, Any]], index: int, confidence: float) -> str:
    who = "The dense network" if index == 0 else _where(tried[0]).capitalize()
    first = next((line for line in tried if line["stable"]), None)
    if first is None:
        lowest = min(tried, key=lambda line: line["mean"])
        steps = ", ".join(str(line["step"]) for line in tried)
        at = "" if len(tried) == 1 else f", at the lowest, from step {lowest['step']},"
        told = f"its test-error barrier{at} is {_barrier(lowest, confidence)}"
        return f"{who} is not stable at any step tried ({steps}): {told}"
    not_later = [str(line["step"]) for line in tried if line["step"] > first["step"] and not line["stable"]]
    but = f"; but it is not from {', '.join(not_later)}" if not_later else ""
    return f"{who} is stable from step {first['step']} on: its test-error barrier is {_barrier(first, confidence)}{but}"


def _by_round(pruned: list[dict[str, Any]], step: int, confidence: float) -> str:
    best = min((line for line in pruned if line["stable"]), key=lambda line: line["density"], default=None)
    if best is None:
        lowest = min(pruned, key=lambda line: line["mean"])
        told = f"{_where(lowest)} has the lowest test-error barrier, {_barrier(lowest, confidence)}"
        return f"Rewound to step {step}, no pruned network tried is stable: {told}"
    unstable = ", ".join(str(line["round"]) for line in pruned if not line["stable"])
    but = f"; not stable: round{'s' if ',' in unstable else ''} {unstable}" if unstable else ""
    told = f"at {_where(best)} the test-error barrier is {_barrier(best, confidence)}"
    return f"Rewound to step {step}, networks are stable down to density {best['density']:.4f}: {told}{but}"


def _where(line: Mapping[str, Any]) -> str:
    return f"round {line['round']} (density {line['density']:.4f})"


def _barrier(line: Mapping[str, Any], confidence: float) -> str:
    num, (low, high) = line["num"], (line["low"], line["high"])
    told = f"{num} replicate{'s' if num > 1 else ''}"
    if math.isfinite(low):
        told += f", {100 * confidence:g} % interval {100 * low:.2f} to {100 * high:.2f} %"
        if low < STABLE <= high:
            told += f", which goes {'above' if line['stable'] else 'below'} {100 * STABLE:g} %"
    return f"{100 * line['mean']:.2f} % ({told})"
