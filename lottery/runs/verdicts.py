"""Whether a ticket is winning: ticket less dense, and ticket less control, paired by replicate, with intervals."""

import math
from typing import Any

from lottery import config
from lottery.errors import unknown
from lottery.pruning import branches
from lottery.runs import intervals

# A pandas data frame, which is slow to import and which type checkers take apart wrongly.
Table = Any


TOLERANCE = 0.002  # what "matching" allows for, as in Frankle et al. 2020, https://arxiv.org/abs/1912.05671


MEASURE = "early_stop_test_accuracy"


DIFFERENCES = ("round", "density", "replicates", "mean", "std", "low", "high")


CANNOT_TELL = "?"


_LAST_PLACE = 1e-9  # a unit in the last place of a mean is not an accuracy that was lost


def goal(experiment: config.Experiment) -> str:
    """What a ticket of an experiment can be: "winning" if it starts from step 0, otherwise "matching"."""
    from_the_start = experiment.rewind.step == 0 and experiment.rewind.mode == "weights"
    return "winning" if from_the_start else "matching"


def paired(rows: Table, measure: str = MEASURE, against: str = "dense") -> Table:
    """Ticket less dense, or ticket less a branch, for each replicate and round.

    Args:
        rows: What `lottery.runs.results.table` returns, in any order.
        measure: A column of it.
        against: ``"dense"``, round 0 of the same replicate; or a branch, at the same round of the same replicate.

    Returns:
        A data frame with a row for each replicate and a column for each round; NaN where one of the two is missing.

    Raises:
        LotteryError: The table has no such measure or branch.
    """
    if measure not in rows:
        raise unknown("The measure to compare", measure, rows.columns)
    chains = {
        branch: part.pivot(index="replicate", columns="round", values=measure)
        for branch, part in rows.groupby("branch")
    }
    tickets = chains.pop("ticket", rows[:0].pivot(index="replicate", columns="round", values=measure))
    if against == "dense":
        pruned = tickets[[index for index in tickets if index != 0]]
        return pruned.sub(tickets[0], axis=0) if 0 in tickets else pruned * math.nan
    if against not in chains:
        raise unknown("The branch to compare with", against, ["dense", *chains])
    other = chains[against]
    return (tickets - other)[tickets.columns.intersection(other.columns)]


def differences(
    rows: Table, measure: str = MEASURE, against: str = "dense", confidence: float = 0.95, method: str = "t"
) -> Table:
    """What `paired` gives, summed up over replicates.

    Args:
        rows, measure, against: As for `paired`.
        confidence, method: As for `lottery.runs.intervals.mean_interval`. Each interval is for its own round alone.

    Returns:
        A data frame with the columns `DIFFERENCES`, a row for each round in which at least one pair is complete:
        ``replicates`` counts the pairs, ``std`` is the sample standard deviation (NaN for one pair), ``low`` and
        ``high`` are the ends of the interval (infinite for one pair).

    Raises:
        LotteryError: As `paired` and `lottery.runs.intervals.mean_interval`.
    """
    import pandas as pd

    density = rows[rows["branch"] == "ticket"].groupby("round")["density"].mean()
    lines = []
    for index, column in paired(rows, measure, against).items():
        pairs = column.dropna()
        if not pairs.empty:
            mean, low, high = intervals.mean_interval(pairs.tolist(), confidence, method)
            lines.append((index, density[index], len(pairs), mean, pairs.std(), low, high))
    return pd.DataFrame(lines, columns=list(DIFFERENCES))


def judged(
    rows: Table, tolerance: float = TOLERANCE, word: str = "winning", confidence: float = 0.95, method: str = "t"
) -> Table:
    """A verdict for each pruned round.

    Args:
        rows: What `lottery.runs.results.table` returns.
        tolerance: Accuracy that may be lost, in [0, 1].
        word: What `goal` says.
        confidence, method: As for `differences`.

    Returns:
        What `differences` gives against dense, and ``verdict``: the word where the whole interval is above minus the
        tolerance, "not" and the word where it is below, otherwise `CANNOT_TELL`, and then ``needed``: about how many
        replicates would tell, NaN where nobody can say. From one replicate nobody can tell.
    """
    found, pairs = differences(rows, confidence=confidence, method=method), paired(rows)
    verdicts, needed = [], []
    for line in found.to_dict("records"):
        enough: float = math.nan
        if line["low"] >= -tolerance - _LAST_PLACE:
            verdicts.append(word)
        elif line["high"] < -tolerance - _LAST_PLACE:
            verdicts.append(f"not {word}")
        else:
            verdicts.append(CANNOT_TELL)
            values = pairs[line["round"]].dropna().tolist()
            enough = intervals.num_needed(values, line["mean"] + tolerance, confidence) or math.nan
        needed.append(max(enough, line["replicates"] + 1) if enough == enough else enough)
    return found.assign(verdict=verdicts, needed=needed)


def smallest_matching(rows: Table, tolerance: float = TOLERANCE) -> dict[str, Any] | None:
    """The smallest density at which tickets still match the dense network by the mean.

    A round matches if the mean over replicates of its test accuracy at the early-stop step, less that of the same
    replicates' dense networks, is at least minus the tolerance. A mean alone: no more than that is claimed, and
    `smallest_shown` is the one with a bound.

    Args:
        rows: What `lottery.runs.results.table` returns.
        tolerance: Accuracy that may be lost, in [0, 1].

    Returns:
        ``round``, ``density``, ``difference`` (mean, ticket less dense), ``dense`` (mean accuracy) and ``replicates``;
        None if no pruned round matches.
    """
    found = differences(rows)
    best = _sparsest(found[found["mean"] >= -tolerance - _LAST_PLACE])
    if best is None:
        return None
    dense = rows[(rows["branch"] == "ticket") & (rows["round"] == 0)][MEASURE].mean()
    return {
        "round": int(best["round"]),
        "density": float(best["density"]),
        "difference": float(best["mean"]),
        "dense": float(dense),
        "replicates": int(best["replicates"]),
    }


def smallest_shown(lines: Table, word: str = "winning") -> dict[str, Any] | None:
    """The line of the smallest density at which the interval's lower end holds; None if there is none.

    Args:
        lines: What `judged` returns.
        word: What it was judged by.
    """
    return _sparsest(lines[lines["verdict"] == word])


def sentences(
    rows: Table, tolerance: float = TOLERANCE, word: str = "winning", confidence: float = 0.95, method: str = "t"
) -> list[str]:
    """What a run shows, and what it does not.

    Args:
        rows, tolerance, word, confidence, method: As for `judged`.

    Returns:
        Sentences: the smallest density that is shown to be winning, the smallest by the mean alone, the rounds shown
        not to be, and each branch against the ticket.
    """
    lines = judged(rows, tolerance, word, confidence, method)
    if len(rows) and rows[MEASURE].isna().all():
        return ["The model measures no accuracy, so no ticket can be compared with dense."]
    if lines.empty:
        return ["No pruned round can be compared with dense: one of the two is not there."]
    shown, by_mean = smallest_shown(lines, word), smallest_matching(rows, tolerance)
    said = []
    if shown:
        where, measured = _where(shown), _measured(shown, confidence, method)
        said.append(
            f"{word.capitalize()} {where}, within {tolerance:g} of dense: {measured}; no smaller one is shown to be."
        )
    elif lines["replicates"].max() == 1:
        said.append(f"Whether a ticket is {word} cannot be told from 1 replicate.")
    else:
        said.append(f"No density is shown to be {word} within {tolerance:g} of dense.")
    if by_mean is None:
        said.append(f"No pruned round matches dense within {tolerance:g}, not even by the mean.")
    else:
        line = lines[lines["round"] == by_mean["round"]].to_dict("records")[0]
        open_ = f"; {cannot_tell(line)}" if line["verdict"] == CANNOT_TELL else ""
        said.append(
            f"Smallest density that matches dense within {tolerance:g} by the mean alone: {by_mean['density']:.4f} "
            f"(round {by_mean['round']}, {_signed(by_mean['difference'])} against {by_mean['dense']:.4f}){open_}."
        )
    refuted = lines[lines["verdict"] == f"not {word}"]["round"]
    if len(refuted):
        said.append(f"Not {word}: {_rounds(refuted)}.")
    at = shown["round"] if shown else by_mean["round"] if by_mean else int(lines["round"].max())
    return said + [
        _against(branch, found, at, confidence, method)
        for branch in controls(rows)
        if not (found := differences(rows, against=branch, confidence=confidence, method=method)).empty
    ]


def transferred(rows: Table) -> Any:
    """For each row of a table, whether it is of a transfer: its accuracy is on other data, and its length its own."""
    others = [label for label in set(rows["branch"]) if (known := branches.find(label)) and known.other_data]
    return rows["branch"].isin(others)


def controls(rows: Table) -> list[str]:
    """The branches that can be compared with the ticket, in order: all but transfers."""
    return [branch for branch in dict.fromkeys(rows[~transferred(rows)]["branch"]) if branch != "ticket"]


def cannot_tell(line: dict[str, Any]) -> str:
    """Why there is no verdict in a line of `judged`, and how many replicates would give one."""
    num, needed = int(line["replicates"]), line["needed"]
    told = f"cannot tell from {_replicates(num)}"
    if num == 1:
        return told
    return told + (f", about {needed:.0f} would be needed" if needed == needed else f", nor from {intervals.MOST}")


def _against(branch: str, found: Table, at: float, confidence: float, method: str) -> str:
    """Ticket less branch at the round nearest to one, and where else the ticket is shown to be better."""
    line = found.loc[(found["round"] - at).abs().idxmin()].to_dict()
    head = f"Ticket less {branch} {_where(line)}: {_measured(line, confidence, method)}"
    known = branches.find(branch)
    matters = known.takes_away if known else ""
    better = found[(found["low"] > 0) & (found["round"] != line["round"])]["round"]
    elsewhere = (
        f" Where the ticket is better{' too' if line['low'] > 0 else ''}: {_rounds(better)}." if len(better) else ""
    )
    if line["replicates"] == 1:
        return f"{head}, which cannot tell.{elsewhere}"
    if line["low"] > 0:
        return f"{head}: the ticket is better{f', so {matters} matters there' if matters else ''}.{elsewhere}"
    if line["high"] < 0:
        return f"{head}: {branch} is better than the ticket.{elsewhere}"
    why = f", so {matters} is not shown to matter there" if matters else ""
    return f"{head}: that does not tell {branch} from the ticket{why}.{elsewhere}"


def _rounds(indices: Any) -> str:
    listed = ", ".join(str(index) for index in indices)
    return f"{'round' if len(indices) == 1 else 'rounds'} {listed}"


def _where(line: dict[str, Any]) -> str:
    return f"at density {line['density']:.4f} (round {line['round']:.0f})"


def _measured(line: dict[str, Any], confidence: float, method: str) -> str:
    num = int(line["replicates"])
    if num == 1:
        return f"{_signed(line['mean'])} from 1 replicate"
    if abs(line["low"]) == math.inf:
        return f"{_signed(line['mean'])} in each of {_replicates(num)}"
    kind = "interval" if method == "t" else f"{method} interval"
    ends = f"{100 * confidence:g} % {kind} {_signed(line['low'])} to {_signed(line['high'])}"
    return f"{_signed(line['mean'])}, {ends}, {_replicates(num)}"


def _replicates(num: int) -> str:
    return f"{num} replicate{'s' if num > 1 else ''}"


def _signed(value: float) -> str:
    return f"{round(value, 4) + 0.0:+.4f}"  # no minus before a zero


def _sparsest(lines: Table) -> dict[str, Any] | None:
    return None if lines.empty else lines.loc[lines["density"].idxmin()].to_dict()
