"""Is a ticket winning? Ticket − dense and ticket − control, paired by replicate, with intervals."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from lottery import config
from lottery.errors import unknown
from lottery.formatting import listed, percent, points, ranges, replicates, signed
from lottery.pruning import branches
from lottery.runs import intervals

# A pandas data frame, which is slow to import and which type checkers take apart wrongly.
Table = Any

TOLERANCE = 0.002  # what "matching" allows for, as in Frankle et al. 2020, https://arxiv.org/abs/1912.05671
MEASURE = "early_stop_test_accuracy"
DIFFERENCES = ("round", "density", "replicates", "mean", "std", "low", "high")
CANNOT_TELL = "?"
GOOD, OPEN, BAD = "good", "open", "bad"  # tones of a verdict, which a terminal or a page shows in a colour

_LAST_PLACE = 1e-9  # a unit in the last place of a mean is not an accuracy that was lost


class Headline(NamedTuple):
    """The verdict on a run: a sentence or two for a newcomer, and `GOOD`, `OPEN` or `BAD`."""

    text: str
    tone: str


def tone(verdict: str) -> str:
    """Return the tone of a verdict in a table: of `judged`, or of `lottery.runs.published`."""
    if verdict.startswith(("not ", "fail")):
        return BAD
    return OPEN if verdict.startswith((CANNOT_TELL, "cannot tell", "open")) else GOOD


def goal(experiment: config.Experiment) -> str:
    """Return "winning" if tickets of an experiment start from step 0, otherwise "matching"."""
    from_the_start = experiment.rewind.step == 0 and experiment.rewind.mode == "weights"
    return "winning" if from_the_start else "matching"


def paired(rows: Table, measure: str = MEASURE, against: str = "dense") -> Table:
    """Compute ticket − dense (round 0), or ticket − branch (the same round), from the table of a run in any order.

    Returns a data frame of a measure with a row for each replicate and a column for each round; NaN where one of the
    two is missing. Raises `LotteryError` if the table has no such measure or branch.
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
    """Summarise `paired` over replicates, a row for each round in which at least one pair is complete.

    Of the columns `DIFFERENCES`, ``replicates`` counts the pairs, ``std`` is the sample standard deviation (NaN for
    one pair), ``low`` and ``high`` are from `lottery.runs.intervals.mean_interval` (infinite for one pair).
    """
    import pandas as pd

    density = rows[rows["branch"] == "ticket"].groupby("round")["density"].mean()
    lines = []
    for index, column in paired(rows, measure, against).items():
        if len(pairs := column.dropna()):
            mean, low, high = intervals.mean_interval(pairs.tolist(), confidence, method)
            lines.append((index, density[index], len(pairs), mean, pairs.std(), low, high))
    return pd.DataFrame(lines, columns=list(DIFFERENCES))


def judged(
    rows: Table, tolerance: float = TOLERANCE, word: str = "winning", confidence: float = 0.95, method: str = "t"
) -> Table:
    """Judge each pruned round: is the accuracy that it loses within a tolerance, in [0, 1]?

    Returns the rows of `differences` against dense, with ``verdict``: the word (see `goal`) where the whole interval is
    above minus the tolerance, "not" and the word where it is below, otherwise `CANNOT_TELL`, as always from one
    replicate; and ``needed``: about how many replicates would tell then, NaN where that is unknown.
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
    """Find the smallest density at which tickets match dense by the mean alone; None if no pruned round does.

    Returns ``round``, ``density``, ``difference`` (mean of ticket − dense), ``dense`` (mean accuracy), ``replicates``.
    """
    found = differences(rows)
    best = _sparsest(found[found["mean"] >= -tolerance - _LAST_PLACE])
    if best is None:
        return None
    dense = rows[(rows["branch"] == "ticket") & (rows["round"] == 0)][MEASURE].mean()
    whole = {key: int(best[key]) for key in ("round", "replicates")}
    return {**whole, "density": float(best["density"]), "difference": float(best["mean"]), "dense": float(dense)}


def smallest_shown(lines: Table, word: str = "winning") -> dict[str, Any] | None:
    """Find the line of `judged` with the smallest density whose verdict is the word; None if there is none."""
    return _sparsest(lines[lines["verdict"] == word])


def headline(
    rows: Table,
    tolerance: float = TOLERANCE,
    word: str = "winning",
    confidence: float = 0.95,
    method: str = "t",
    trained: tuple[int, int] | None = None,
) -> Headline:
    """Sum up in words for a newcomer if a run found a winning ticket, from the arguments of `judged`.

    It names the sparsest ticket that is shown to be winning, or else the one that comes nearest, and the controls at
    the same round. `trained` is how many networks of an experiment are stored, and all of them: see
    `lottery.runs.store.progress`.
    """
    lines = judged(rows, tolerance, word, confidence, method)
    shown = smallest_shown(lines, word)
    if len(rows) and rows[MEASURE].isna().all():
        found = Headline("The model measures no accuracy, so no ticket can be compared with dense.", OPEN)
    elif lines.empty:
        found = Headline("No verdict yet: no pruned round can be compared with dense.", OPEN)
    elif shown:
        text = f"A {word} ticket: {_in_points(shown, _kind(confidence, method))}"
        if shown["mean"] < 0:
            text += f", which is within the tolerance of {100 * tolerance:g}"
        text += _beside_controls(rows, shown["round"], confidence, method)
        if word != "winning":
            text += ". It is not called winning because it does not start from the weights of step 0"
        found = Headline(f"{text}.", GOOD)
    elif lines["replicates"].max() == 1:
        found = Headline(_of_one_replicate(rows, tolerance, word), OPEN)
    else:
        found = _none_shown(lines, tolerance, word, _kind(confidence, method))
    if trained is not None and trained[0] < trained[1]:
        text = found.text[0].lower() + found.text[1:]
        return found._replace(text=f"So far, with {trained[0]:,} of {trained[1]:,} networks trained: {text}")
    return found


def sentences(
    rows: Table,
    tolerance: float = TOLERANCE,
    word: str = "winning",
    confidence: float = 0.95,
    method: str = "t",
    trained: tuple[int, int] | None = None,
) -> list[str]:
    """Say what a run shows, from the arguments of `headline`, which is the first sentence.

    The others give the verdicts of the rounds, name the smallest density that matches dense by the mean alone, and
    compare the ticket with each branch.
    """
    lines = judged(rows, tolerance, word, confidence, method)
    found = [headline(rows, tolerance, word, confidence, method, trained).text]
    if lines.empty:
        return found
    shown, by_mean = smallest_shown(lines, word), smallest_matching(rows, tolerance)
    kind = _kind(confidence, method)
    if shown:
        smaller = "; no smaller density is shown to be" if lines["density"].min() < shown["density"] else ""
        found.append(f"{word.capitalize()}: {_rounds(lines[lines['verdict'] == word]['round'])}{smaller}.")
    refuted = lines[lines["verdict"] == f"not {word}"]["round"]
    if len(refuted):
        found.append(f"Not {word}: {_rounds(refuted)}.")
    if by_mean is None:
        found.append(f"No pruned round matches dense within {tolerance:g}, not even by the mean.")
    else:
        line = lines[lines["round"] == by_mean["round"]].to_dict("records")[0]
        unsure = f"; {cannot_tell(line)}" if line["verdict"] == CANNOT_TELL else ""
        found.append(
            f"Smallest density that matches dense within {tolerance:g} by the mean alone: {by_mean['density']:.4f} "
            f"(round {by_mean['round']}, {signed(by_mean['difference'])} against {by_mean['dense']:.4f}){unsure}."
        )
    at = shown["round"] if shown else by_mean["round"] if by_mean else int(lines["round"].max())
    for branch in controls(rows):
        pairs = differences(rows, against=branch, confidence=confidence, method=method)
        if not pairs.empty:
            found.append(_against(branch, pairs, at, kind))
    return found


def transferred(rows: Table) -> Any:
    """Mark the rows of transfers, whose accuracies are on other data and whose training may have another length."""
    others = [label for label in set(rows["branch"]) if (known := branches.find(label)) and known.other_data]
    return rows["branch"].isin(others)


def controls(rows: Table) -> list[str]:
    """List the branches that can be compared with the ticket, in order: all but transfers."""
    return [branch for branch in dict.fromkeys(rows[~transferred(rows)]["branch"]) if branch != "ticket"]


def cannot_tell(line: dict[str, Any]) -> str:
    """Say of a line of `judged` without a verdict how many replicates would give one."""
    num, needed = int(line["replicates"]), line["needed"]
    more = f", about {needed:.0f} would be needed" if needed == needed else f", nor from {intervals.MOST}"
    return f"cannot tell from {replicates(num)}{more if num > 1 else ''}"


def _none_shown(lines: Table, tolerance: float, word: str, kind: str) -> Headline:
    """Say that no round is shown to be winning, and which comes nearest."""
    undecided = lines[lines["verdict"] == CANNOT_TELL]
    if undecided.empty:
        best = lines.loc[lines["mean"].idxmax()].to_dict()
        lost = f"every round loses more than {100 * tolerance:g} points to dense"
        return Headline(f"No {word} ticket: {lost}. The best: {_in_points(best, kind)}.", BAD)
    best = _sparsest(undecided[undecided["mean"] >= -tolerance - _LAST_PLACE])
    nearest = "The sparsest that may be" if best else "The nearest"
    best = best or undecided.loc[undecided["mean"].idxmax()].to_dict()
    needed = f"; about {best['needed']:.0f} would tell" if best["needed"] == best["needed"] else ""
    unsure = f"{replicates(int(best['replicates']))} cannot tell{needed}"
    return Headline(f"No {word} ticket is shown: {unsure}. {nearest}: {_in_points(best, kind)}.", OPEN)


def _of_one_replicate(rows: Table, tolerance: float, word: str) -> str:
    """Say what a single replicate shows, and that it is not enough."""
    head, by_mean = f"1 replicate cannot show that a ticket is {word}", smallest_matching(rows, tolerance)
    if by_mean:
        line = {"density": by_mean["density"], "mean": by_mean["difference"], "replicates": 1}
        keeps = "" if line["mean"] >= 0 else f" (dense − {100 * tolerance:g} or better)"
        return f"{head}; in this one, the sparsest that keeps up with dense{keeps} has {_in_points(line, '')}."
    found = differences(rows)
    best = found.loc[found["mean"].idxmax()].to_dict()
    return f"{head}, and in this one none keeps up with dense. The best: {_in_points(best, '')}."


def _in_points(line: Mapping[str, Any], kind: str) -> str:
    """Give a line of `differences` in per cent of the weights and percentage points."""
    num = int(line["replicates"])
    bounded = num > 1 and abs(line["low"]) < math.inf
    mean, *interval = points(line["mean"], *((line["low"], line["high"]) if bounded else ()))
    against = f"{mean} points {'over' if line['mean'] > 0 else 'against'} dense"
    if not float(mean):
        against = "as accurate as dense"
    about = f"{kind} {interval[0]} to {interval[1]}, {replicates(num)}" if bounded else f"in each of {replicates(num)}"
    return f"{percent(line['density'])} of the weights, {against}{f' ({about})' if num > 1 else ''}"


def _beside_controls(rows: Table, at: float, confidence: float, method: str) -> str:
    """Say how the controls do beside the ticket of a round, each at the nearest round that it has."""
    worse, others, better = [], [], []
    for branch in controls(rows):
        found = differences(rows, against=branch, confidence=confidence, method=method)
        if found.empty:
            continue
        line = found.loc[(found["round"] - at).abs().idxmin()].to_dict()
        named = branch if line["round"] == at else f"{branch} (at {percent(line['density'])})"
        if line["replicates"] > 1:
            (worse if line["low"] > 0 else better if line["high"] < 0 else others).append(named)
    text = f", better than the control{'s' * (len(worse) > 1)} {listed(worse)}" if worse else ""
    if others:
        text += f"; {listed(others)} {'are' if len(others) > 1 else 'is'} not shown to do worse"
    return text + (f"; {listed(better)} {'do' if len(better) > 1 else 'does'} better" if better else "")


def _kind(confidence: float, method: str) -> str:
    return f"{100 * confidence:g} % {'' if method == 't' else f'{method} '}interval"


def _against(branch: str, found: Table, at: float, kind: str) -> str:
    """Compare the ticket with a branch at the nearest round, and list the other rounds where the ticket is better."""
    line = found.loc[(found["round"] - at).abs().idxmin()].to_dict()
    head = f"Ticket − {branch} {_where(line)}: {_measured(line, kind)}"
    known = branches.find(branch)
    matters = known.takes_away if known else ""
    if line["replicates"] == 1:
        shows = ", which cannot tell."
    elif line["low"] > 0:
        shows = f": the ticket is better{f', so {matters} matters there' if matters else ''}."
    elif line["high"] < 0:
        shows = f": {branch} is better than the ticket."
    else:
        why = f", so {matters} is not shown to matter there" if matters else ""
        shows = f": that does not tell {branch} from the ticket{why}."
    better = found[(found["low"] > 0) & (found["round"] != line["round"])]["round"]
    too = " too" if line["low"] > 0 else ""
    return head + shows + (f" Where the ticket is better{too}: {_rounds(better)}." if len(better) else "")


def _rounds(indices: Any) -> str:
    return f"{'round' if len(indices) == 1 else 'rounds'} {ranges(indices)}"


def _where(line: dict[str, Any]) -> str:
    return f"at density {line['density']:.4f} (round {line['round']:.0f})"


def _measured(line: dict[str, Any], kind: str) -> str:
    num, mean = int(line["replicates"]), signed(line["mean"])
    if num == 1:
        return f"{mean} from 1 replicate"
    if abs(line["low"]) == math.inf:
        return f"{mean} in each of {replicates(num)}"
    return f"{mean}, {kind} {signed(line['low'])} to {signed(line['high'])}, {replicates(num)}"


def _sparsest(lines: Table) -> dict[str, Any] | None:
    return None if lines.empty else lines.loc[lines["density"].idxmin()].to_dict()
