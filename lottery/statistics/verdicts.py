"""Is a ticket matching, is it winning? Ticket − dense and ticket − control, paired by replicate, with intervals.

*Matching*, after Frankle et al. 2020, https://arxiv.org/abs/1912.05671: shown to lose no more than a tolerance of
accuracy or, where the model measures none, to have a loss that is higher by no more than a fraction. *Winning*, after
Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635: matching at the early-stop step, and shown to reach that step
no later than dense; only tickets that start from step 0 can be.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from lottery import config
from lottery.errors import unknown
from lottery.formatting import listed, percent, ranges, replicates
from lottery.pruning import branches, mask_actions
from lottery.statistics import intervals
from lottery.statistics.metric import ACCURACY, Metric, metric_of, scored

# A pandas data frame, which is slow to import and which type checkers take apart wrongly.
Table = Any

TOLERANCE = ACCURACY.tolerance
MEASURE = ACCURACY.early_stop
AT_THE_END = ACCURACY.final
DIFFERENCES = ("round", "density", "replicates", "mean", "std", "low", "high")
WINNING, MATCHING, NOT_MATCHING, CANNOT_TELL = "winning", "matching", "not matching", "?"
NO_LATER, LATER = "no later", "later"
GOOD, OPEN, BAD = "good", "open", "bad"  # tones of a verdict, which a terminal or a page shows in a colour

# The simulation of tests/scripts/simulate_verdicts.py gives the figures.
ADDING = (
    "Adding replicates to a run until it tells raises the error of a verdict from 2.5 % to about 10 %: choose their "
    "number before (lottery plan), and train them with another seed (run.seed)."
)

_LAST_PLACE = 1e-9  # a unit in the last place of a mean is nothing that was lost


@dataclass(frozen=True)
class Rule:
    """What a ticket must show; see `rule_for`."""

    word: str = WINNING  # the most that a ticket of the run can be: winning or matching
    tolerance: float = TOLERANCE  # the gain that it may lack; see `measure.Metric`
    margin: float = 0  # steps from one evaluation to the next, so an early stop is no later if by at most these
    last_step: int | None = None  # of training: an early stop there is a lower bound
    confidence: float = 0.95  # of each interval
    mode: str = "weights"  # of rewinding, and its step: they decide what a control may show
    rewind_step: int = 0
    measure: Metric = ACCURACY  # what tickets are compared by
    held_at: str = "zero"  # masked entries, which too decides what a control may show

    def compared(self, branch: str) -> branches.Comparison | None:
        """Return what a branch shows beside the tickets; None for a function of the user's."""
        return branches.comparison(branch, self.mode, self.rewind_step, self.held_at)

    @property
    def allowed(self) -> str:
        """The tolerance as a table shows it."""
        return f"{100 * self.tolerance:g} %" if self.measure.is_loss else f"{self.tolerance:g}"

    @property
    def allowed_in_words(self) -> str:
        """The tolerance in percentage points, or in per cent of the dense loss."""
        return f"{100 * self.tolerance:g}{' %' if self.measure.is_loss else ''}"

    @property
    def level(self) -> float:
        """The probability that an interval wrongly lies above a bound."""
        return (1 - self.confidence) / 2


DEFAULT = Rule()
JUDGED = (
    *DIFFERENCES, "verdict", "needed", "step_mean", "step_low", "step_high", "early_stop", "final_mean", "final_low",
    "final_high", "final_verdict", "special", "as_good", "matching_p", "winning_p", "final_p",
)  # fmt: skip


class Headline(NamedTuple):
    """The verdict on a run: a sentence or two for a newcomer, and `GOOD`, `OPEN` or `BAD`."""

    text: str
    tone: str


def tone(verdict: str) -> str:
    """Return the tone of a verdict in a table: of `judged`, or of `lottery.statistics.published`."""
    if verdict.startswith(("not ", "fail")):
        return BAD
    return OPEN if verdict.startswith((CANNOT_TELL, "cannot tell", "open")) else GOOD


def rule_for(experiment: config.Experiment, tolerance: float | None = None, measure: Metric = ACCURACY) -> Rule:
    """Return the rule for the tickets of an experiment, which can be winning only if they start from step 0.

    By default a matching ticket may lose the tolerance of the measure, which is that of `measure.metric_of` a table.
    """
    rewind, train = experiment.rewind, experiment.train
    word = WINNING if rewind.step == 0 and rewind.mode == "weights" else MATCHING
    tolerance = measure.tolerance if tolerance is None else tolerance
    return Rule(
        word, tolerance, train.eval_every, train.num_steps, mode=rewind.mode, rewind_step=rewind.step, measure=measure,
        held_at=experiment.prune.held_at,
    )  # fmt: skip


def paired(rows: Table, measure: str = "", against: str = "dense") -> Table:
    """Compute ticket − dense (round 0), or ticket − branch (the same round), from the table of a run in any order.

    Returns a data frame of a column, by default that of `measure.metric_of` at the early-stop step, with a row for
    each replicate and a column for each round; NaN where one of the two is missing.
    Raises `LotteryError` if the table has no such measure or branch.
    """
    measure = measure or metric_of(rows).early_stop
    if measure not in rows:
        raise unknown("The measure to compare", measure, rows.columns)

    def chain(branch: str) -> Table:
        return rows[rows["branch"] == branch].pivot(index="replicate", columns="round", values=measure)

    tickets, others = chain("ticket"), sorted(set(rows["branch"]) - {"ticket"})
    if against == "dense":
        pruned = tickets[[index for index in tickets if index != 0]]
        return pruned.sub(tickets[0], axis=0) if 0 in tickets else pruned * math.nan
    if against not in others:
        raise unknown("The branch to compare with", against, ["dense", *others])
    other = chain(against)
    return (tickets - other)[tickets.columns.intersection(other.columns)]


def differences(
    rows: Table,
    measure: str = "",
    against: str = "dense",
    confidence: float = 0.95,
    spacing: float = 0,
) -> Table:
    """Summarise `paired` over replicates, a row for each round in which at least one pair is complete.

    Of the columns `DIFFERENCES`, ``replicates`` counts the pairs, ``std`` is the sample standard deviation (NaN for
    one pair), ``low`` and ``high`` are from `intervals.mean_interval` (infinite for one pair), or from
    `on_a_grid` of a measure that has a spacing.
    """
    import pandas as pd

    density = rows[rows["branch"] == "ticket"].groupby("round")["density"].mean()
    measure, lines = measure or metric_of(rows).early_stop, []
    unit = float(rows[measure].abs().mean()) if measure.endswith("loss") else 1.0
    for index, column in paired(rows, measure, against).items():
        if len(pairs := column.dropna()):
            values = pairs.tolist()
            of_grid = intervals.on_a_grid(values, spacing, confidence) if spacing else None
            mean, low, high = of_grid or intervals.mean_interval(values, confidence, unit)
            lines.append((index, density[index], len(pairs), mean, pairs.std(), low, high))
    return pd.DataFrame(lines, columns=list(DIFFERENCES))


def judged(rows: Table, rule: Rule = DEFAULT) -> Table:
    """Judge each pruned round by itself: accuracy at the early-stop step and at the end, early-stop step, controls.

    Where the rule is on the loss, read "loss" for "accuracy", and all differences are gains: dense − ticket, as a
    fraction of the mean loss of the dense networks, so that above 0 the ticket is better; see `measure.Metric`.

    Returns the rows of `differences` against dense, and beside them:

    - ``verdict``: `WINNING`, `MATCHING`, `NOT_MATCHING`, or `CANNOT_TELL`, as always from one replicate
    - ``needed``: how many replicates of a new run would tell with a power of 80 % if the true difference is the mean
      here, NaN where the verdict tells, or if that is not known
    - ``step_mean``, ``step_low``, ``step_high``, of the early-stop step, and ``early_stop``: `NO_LATER`, `LATER` or
      `CANNOT_TELL`
    - ``final_mean``, ``final_low``, ``final_high``, ``final_verdict``: of the accuracy at the end of training
    - ``special``: "no" if a control is shown to do as well within the tolerance, "yes" if the ticket is shown to be
      better than each, else `CANNOT_TELL`, empty without controls; ``as_good``: the controls that do as well
    - ``matching_p``, ``winning_p``, ``final_p``: one-sided p values, for `smallest_shown`
    """
    return _judged(scored(rows, rule.measure), rule)


def _judged(rows: Table, rule: Rule) -> Table:
    """Judge each round by scores of which higher is better; see `judged`."""
    import pandas as pd

    found = differences(rows, rule.measure.early_stop, confidence=rule.confidence)
    steps, at_the_end, beside = _steps(rows, rule), _at_the_end(rows, rule), _beside(rows, rule)
    lines = []
    for line in found.to_dict("records"):
        step, final = steps.get(line["round"], {}), at_the_end.get(line["round"], {})
        line |= {"verdict": _verdict(line["low"], line["high"], rule), "needed": math.nan}
        if line["verdict"] == CANNOT_TELL and math.isfinite(line["low"]):
            distance, num = line["mean"] + rule.tolerance, int(line["replicates"])
            line["needed"] = intervals.num_needed(distance, line["std"], num, rule.confidence) or math.nan
        if line["verdict"] == MATCHING and rule.word == WINNING and step.get("early_stop") == NO_LATER:
            line["verdict"] = WINNING
        p = intervals.p_value(line["mean"], line["low"], line["replicates"], _bound(rule), rule.confidence)
        line |= {key: step.get(key, math.nan) for key in ("step_mean", "step_low", "step_high")}
        line["early_stop"] = step.get("early_stop", "")
        line |= {key: final.get(key, math.nan) for key in ("final_mean", "final_low", "final_high")}
        line["final_verdict"] = final.get("final_verdict", "")
        line["special"], line["as_good"] = beside.get(line["round"], ("", ""))
        line["matching_p"] = p
        line["winning_p"] = max(p, step["step_p"]) if step and rule.word == WINNING else math.nan
        line["final_p"] = final.get("final_p", math.nan)
        lines.append(line)
    return pd.DataFrame(lines, columns=list(JUDGED))


def smallest_shown(lines: Table, rule: Rule = DEFAULT, p: str = "winning_p") -> dict[str, Any] | None:
    """Find the line of `judged` with the smallest density that is shown for all rounds at once; None if there is none.

    From the densest round to the sparsest it tests that no round from there on is winning (or matching, by
    ``matching_p``, or matching at the end, by ``final_p``), and stops where it cannot reject that; see
    `lottery.statistics.intervals.step_down`. That some round of at most this density is winning is then wrong with a
    probability of at most `Rule.level` for the run as a whole. The round itself is winning by its own interval too.
    """
    ordered = lines.sort_values("density", ascending=False, kind="stable")
    count = intervals.step_down(ordered[p].fillna(1.0).tolist(), rule.level)
    return ordered.iloc[count - 1].to_dict() if count else None


def smallest_matching(rows: Table, tolerance: float | None = None) -> dict[str, Any] | None:
    """Find the smallest density at which tickets match dense by the mean alone; None if no pruned round does.

    Returns ``round``, ``density``, ``difference`` (mean of ticket − dense), ``gain`` (the same, above 0 if the ticket
    is better; see `measure.Metric`), ``dense`` (mean accuracy or loss), ``replicates``.
    """
    measure = metric_of(rows)
    tolerance = measure.tolerance if tolerance is None else tolerance
    found = differences(scored(rows, measure), measure.early_stop)
    best = _sparsest(found[found["mean"] >= -tolerance - _LAST_PLACE])
    if best is None:
        return None
    dense = rows[(rows["branch"] == "ticket") & (rows["round"] == 0)][measure.early_stop].mean()
    whole = {key: int(best[key]) for key in ("round", "replicates")}
    gain = float(best["mean"])
    difference = -gain * abs(float(dense)) if measure.is_loss else gain
    return {**whole, "density": float(best["density"]), "difference": difference, "gain": gain, "dense": float(dense)}


def headline(
    rows: Table, rule: Rule = DEFAULT, trained: tuple[int, int] | None = None, lines: Table = None
) -> Headline:
    """Sum up in words for a newcomer if a run found a winning ticket.

    It names the sparsest ticket that is shown for the run as a whole, or else the one that comes nearest, with the
    controls at the same round, and says so if the end of training tells otherwise. `trained` is how many networks of an
    experiment are stored, and all of them: see `lottery.runs.store.progress`. `lines` are those of `judged` where the
    caller has them.
    """
    lines = judged(rows, rule) if lines is None else lines
    scores = scored(rows, rule.measure)
    if len(rows) and rows[rule.measure.early_stop].isna().all():
        found = Headline("The model measures no accuracy, so no ticket can be compared with dense.", OPEN)
    elif lines.empty:
        found = Headline("No verdict yet: no pruned round can be compared with dense.", OPEN)
    elif _best_shown(lines, rule):
        found = _shown(scores, lines, rule)
    elif lines["replicates"].max() == 1:
        found = Headline(_of_one_replicate(lines, rule), OPEN)
    else:
        found = _none_shown(lines, rule)
    if trained is not None and trained[0] < trained[1]:
        text = found.text[0].lower() + found.text[1:]
        return found._replace(text=f"So far, with {trained[0]:,} of {trained[1]:,} networks trained: {text}")
    return found


def sentences(
    rows: Table, rule: Rule = DEFAULT, trained: tuple[int, int] | None = None, lines: Table = None
) -> list[str]:
    """Say what a run shows, from the arguments of `headline`, which is the first sentence.

    The others name the smallest densities that are shown for the run as a whole, give the verdicts of single rounds, at
    the early-stop step and at the end, and compare the ticket with each branch.
    """
    lines = judged(rows, rule) if lines is None else lines
    found = [headline(rows, rule, trained, lines).text]
    if lines.empty:
        return found
    if text := mask_actions.sentence(rule.held_at):
        found.append(text)
    several = bool(lines["replicates"].max() > 1)
    by_mean = smallest_matching(rows, rule.tolerance)
    shown = _best_shown(lines, rule)
    if several:
        found += [_of_all_rounds(lines, rule), *_of_single_rounds(lines)]
    if by_mean is None:
        found.append(f"No pruned round matches dense within {rule.allowed}, not even by the mean.")
    else:
        line = lines[lines["round"] == by_mean["round"]].to_dict("records")[0]
        unsure = f"; {cannot_tell(line)}" if line["verdict"] == CANNOT_TELL else ""
        found.append(
            f"Smallest density that matches dense within {rule.allowed} by the mean alone: "
            f"{by_mean['density']:.4f} (round {by_mean['round']}, {rule.measure.difference(by_mean['gain'])} against "
            f"{rule.measure.value(by_mean['dense'])}){unsure}."
        )
    if several and (lines["verdict"] == CANNOT_TELL).any():
        found.append(ADDING)
    at = shown["round"] if shown else by_mean["round"] if by_mean else int(lines["round"].max())
    scores = scored(rows, rule.measure)
    for branch in controls(rows):
        pairs = differences(scores, rule.measure.early_stop, branch, rule.confidence)
        if not pairs.empty:
            found.append(_against(branch, pairs, at, rule))
    return found


def transferred(rows: Table) -> Any:
    """Mark the rows of transfers, whose accuracies are on other data and whose training may have another length."""
    others = [label for label in set(rows["branch"]) if (known := branches.find(label)) and known.other_data]
    return rows["branch"].isin(others)


def controls(rows: Table) -> list[str]:
    """List the branches that can be compared with the ticket, in order: all but transfers."""
    return [branch for branch in dict.fromkeys(rows[~transferred(rows)]["branch"]) if branch != "ticket"]


def cannot_tell(line: dict[str, Any]) -> str:
    """Say of a line of `judged` without a verdict how many replicates of a new run would give one."""
    num, needed = int(line["replicates"]), line["needed"]
    if not math.isfinite(line["low"]):  # 1 replicate, or 2 that are equal, of which nobody knows the spread
        return f"cannot tell from {replicates(num)}"
    more = f"a new run with {needed:.0f} would" if needed == needed else f"nor would a new run with {intervals.MOST:,}"
    return f"cannot tell from {replicates(num)}; {more}"


def _bound(rule: Rule) -> float:
    return -rule.tolerance - _LAST_PLACE


def _verdict(low: float, high: float, rule: Rule) -> str:
    """Judge an interval of gains over dense."""
    return MATCHING if low >= _bound(rule) else NOT_MATCHING if high < _bound(rule) else CANNOT_TELL


def _steps(rows: Table, rule: Rule) -> dict[Any, dict[str, Any]]:
    """Judge the early-stop step of each round, if tickets can be winning: is it no later than that of dense?

    At the last step of training it is a lower bound: such a ticket is never shown to be no later, and no ticket to be
    later than such a dense network.
    """
    if rule.word != WINNING or not len(rows):
        return {}
    tickets = rows[rows["branch"] == "ticket"]
    bounds = set(tickets[tickets["early_stop_step"] == rule.last_step]["round"])
    found = {}
    for line in differences(rows, "early_stop_step", confidence=rule.confidence, spacing=rule.margin).to_dict(
        "records"
    ):
        mean, low, high, index = line["mean"], line["low"], line["high"], line["round"]
        p = intervals.p_value(-mean, -high, line["replicates"], -rule.margin, rule.confidence)
        early_stop = NO_LATER if high <= rule.margin else LATER if low > 0 else CANNOT_TELL
        if index in bounds:
            p, early_stop = 1.0, CANNOT_TELL if early_stop == NO_LATER else early_stop
        if 0 in bounds and early_stop == LATER:
            early_stop = CANNOT_TELL
        found[index] = {"step_mean": mean, "step_low": low, "step_high": high, "early_stop": early_stop, "step_p": p}
    return found


def _at_the_end(rows: Table, rule: Rule) -> dict[Any, dict[str, Any]]:
    """Judge the accuracy or loss of each round at the end of training."""
    found = {}
    for line in differences(rows, rule.measure.final, confidence=rule.confidence).to_dict("records"):
        mean, low, high = line["mean"], line["low"], line["high"]
        p = intervals.p_value(mean, low, line["replicates"], _bound(rule), rule.confidence)
        verdict = _verdict(low, high, rule)
        found[line["round"]] = {"final_mean": mean, "final_low": low, "final_high": high, "final_p": p}
        found[line["round"]]["final_verdict"] = verdict
    return found


def _beside(rows: Table, rule: Rule) -> dict[Any, tuple[str, str]]:
    """Judge by round if the ticket is special, and list the controls that do as well."""
    found: dict[Any, dict[str, str]] = {}
    for branch in controls(rows):
        known, compared = branches.find(branch), rule.compared(branch)
        if known is None or known.kind != "control" or (compared and compared.refused):
            continue
        for line in differences(rows, rule.measure.early_stop, branch, rule.confidence).to_dict("records"):
            found.setdefault(line["round"], {})[branch] = _beside_one(line, rule)
    special = {}
    for index, verdicts in found.items():
        as_good = [branch for branch, verdict in verdicts.items() if verdict == "no"]
        every = set(verdicts.values())
        special[index] = ("no" if as_good else "yes" if every == {"yes"} else CANNOT_TELL, ", ".join(as_good))
    return special


def _beside_one(line: Mapping[str, Any], rule: Rule) -> str:
    """Judge ticket − control: "no" if the control does as well within the tolerance, "yes" if the ticket is better."""
    return "no" if line["high"] <= -_bound(rule) else "yes" if line["low"] > 0 else CANNOT_TELL


def _winning_shown(lines: Table, rule: Rule) -> dict[str, Any] | None:
    return smallest_shown(lines, rule) if rule.word == WINNING else None


def _best_shown(lines: Table, rule: Rule) -> dict[str, Any] | None:
    """Find the ticket to name: the sparsest that is winning, or else matching, for the run as a whole."""
    return _winning_shown(lines, rule) or smallest_shown(lines, rule, "matching_p")


def _shown(rows: Table, lines: Table, rule: Rule) -> Headline:
    """Name the ticket that is shown to be winning, or at least matching, and what is not shown of it."""
    winning, matching = _winning_shown(lines, rule), smallest_shown(lines, rule, "matching_p")
    line = winning or matching
    assert line is not None
    text = f"A {WINNING if winning else MATCHING} ticket: {_in_words(line, rule)}"
    if line["mean"] < 0:
        text += f", which is within the tolerance of {rule.allowed_in_words}"
    parts = [text + _beside_controls(rows, line, rule)]
    if rule.word != WINNING:
        parts.append("It is not called winning because it does not start from the weights of step 0")
    elif not winning:
        parts.append(f"It is not called winning: {_why_not(line, lines)}")
    elif matching and matching["density"] < line["density"]:
        parts.append(f"Whenever the early stop comes, {percent(matching['density'])} is shown to match too")
    if line["final_verdict"] in (CANNOT_TELL, NOT_MATCHING):
        undecided = line["final_verdict"] == CANNOT_TELL
        tells = f"{replicates(int(line['replicates']))} cannot tell" if undecided else "it loses"
        parts.append(f"At the end of training {tells}: {_end_in_words(line, rule)}")
    return Headline(" ".join(f"{part}." for part in parts), OPEN if line["special"] == "no" else GOOD)


def _why_not(line: dict[str, Any], lines: Table) -> str:
    """Say what a matching ticket lacks to be winning."""
    if line["early_stop"] == LATER:
        return "its early stop comes later than that of dense"
    if line["early_stop"] == NO_LATER:
        return f"that its early stop comes no later is shown for this round, not for all {len(lines)} at once"
    return "that its early stop comes no later than that of dense is not shown"


def _none_shown(lines: Table, rule: Rule) -> Headline:
    """Say that no round is shown to be winning, and which comes nearest."""
    word = rule.word
    undecided, single = lines[lines["verdict"] == CANNOT_TELL], lines[lines["verdict"].isin((WINNING, MATCHING))]
    most = replicates(int(lines["replicates"].max()))
    if len(single):
        best = single.loc[single["density"].idxmin()].to_dict()
        found = Headline(
            f"No {word} ticket is shown: {most} cannot tell for all {len(lines)} rounds at once. The sparsest that is "
            f"{MATCHING} by itself: {_in_words(best, rule)}.",
            OPEN,
        )
    elif undecided.empty:
        best = lines.loc[lines["mean"].idxmax()].to_dict()
        lost = f"every round loses more than {rule.allowed_in_words} points to dense"
        if rule.measure.is_loss:
            lost = f"the loss of every round is more than {rule.allowed_in_words} above that of dense"
        found = Headline(f"No {word} ticket: {lost}. The best: {_in_words(best, rule)}.", BAD)
    else:
        best = _sparsest(undecided[undecided["mean"] >= _bound(rule)])
        nearest = "The sparsest that may be" if best else "The nearest"
        best = best or undecided.loc[undecided["mean"].idxmax()].to_dict()
        needed = f"; a new run with {best['needed']:.0f} would" if best["needed"] == best["needed"] else ""
        unsure = f"{replicates(int(best['replicates']))} cannot tell{needed}"
        found = Headline(f"No {word} ticket is shown: {unsure}. {nearest}: {_in_words(best, rule)}.", OPEN)
    if at_the_end := smallest_shown(lines, rule, "final_p"):
        there = f"{percent(at_the_end['density'])} of the weights match dense: {_end_in_words(at_the_end, rule)}"
        return found._replace(text=f"{found.text} At the end of training {there}.", tone=OPEN)
    return found


def _of_all_rounds(lines: Table, rule: Rule) -> str:
    """Give the smallest densities that are shown for the run as a whole."""
    kinds = {f"to be {WINNING}": "winning_p"} if rule.word == WINNING else {}
    kinds |= {f"to be {MATCHING}": "matching_p", "to match at the end of training": "final_p"}
    parts = []
    for kind, p in kinds.items():
        line = smallest_shown(lines, rule, p)
        where = f"{line['density']:.4f} (round {line['round']:.0f})" if line else "none"
        parts.append(f"{kind}: {where}")
    rounds = f"For all {len(lines)} rounds at once" if len(lines) > 1 else "For the one round"
    return f"{rounds} (error {100 * rule.level:.2g} % each), the smallest density shown {'; '.join(parts)}."


def _of_single_rounds(lines: Table) -> list[str]:
    """List the rounds by what each of them shows by itself."""
    found = [
        _rounds_with(lines, "Each round by itself", "verdict", (WINNING, MATCHING, NOT_MATCHING)),
        _rounds_with(lines, "At the end of training", "final_verdict", (MATCHING, NOT_MATCHING)),
        _rounds_with(lines, "Early stop beside that of dense", "early_stop", (NO_LATER, LATER)),
    ]
    for names, part in lines[lines["as_good"] != ""].groupby("as_good", sort=False):
        do = "do" if ", " in str(names) else "does"
        found.append(f"Not special: {_rounds(part['round'])}, where {listed(str(names).split(', '))} {do} as well.")
    return [sentence for sentence in found if sentence]


def _rounds_with(lines: Table, head: str, column: str, values: tuple[str, ...]) -> str:
    """List the rounds with each value of a column, in a sentence; empty if there are none."""
    of = {value: lines[lines[column] == value]["round"] for value in values}
    parts = [f"{value} {_rounds(indices)}" for value, indices in of.items() if len(indices)]
    return f"{head}: {'; '.join(parts)}." if parts else ""


def _of_one_replicate(lines: Table, rule: Rule) -> str:
    """Say what a single replicate shows, and that it is not enough."""
    head, by_mean = (
        f"1 replicate cannot show that a ticket is {rule.word}",
        _sparsest(lines[lines["mean"] >= _bound(rule)]),
    )
    if by_mean:
        worse = f"dense {'+' if rule.measure.is_loss else '−'} {rule.allowed_in_words} or better"
        keeps = "" if by_mean["mean"] >= 0 else f" ({worse})"
        return f"{head}; in this one, the sparsest that keeps up with dense{keeps} has {_in_words(by_mean, rule)}."
    best = lines.loc[lines["mean"].idxmax()].to_dict()
    return f"{head}, and in this one none keeps up with dense. The best: {_in_words(best, rule)}."


def _in_words(line: Mapping[str, Any], rule: Rule) -> str:
    """Give a line of `judged` in per cent of the weights, and in percentage points or per cent of the loss."""
    num, measure = int(line["replicates"]), rule.measure
    bounded = num > 1 and abs(line["low"]) < math.inf
    interval = measure.interval(line["low"], line["high"]) if bounded else ()
    mean, *ends = measure.in_words(line["mean"], *interval)
    better = line["mean"] > 0
    if measure.is_loss:
        against = f"with a test loss {mean.lstrip('+-')} {'below' if better else 'above'} that of dense"
        same = "with the same test loss as dense"
    else:
        against, same = f"{mean} points {'over' if better else 'against'} dense", "as accurate as dense"
    if not float(mean.split()[0].replace(",", "")):
        against = same
    about = f"{_kind(rule)} {ends[0]} to {ends[1]}, {replicates(num)}" if bounded else f"in each of {replicates(num)}"
    return f"{percent(line['density'])} of the weights, {against}{f' ({about})' if num > 1 else ''}"


def _end_in_words(line: Mapping[str, Any], rule: Rule) -> str:
    """Give what a line of `judged` has of the end of training in percentage points, or per cent of the loss."""
    mean, low, high = line["final_mean"], line["final_low"], line["final_high"]
    word = " loss" if rule.measure.is_loss else " points"
    if abs(low) == math.inf:
        return f"{rule.measure.in_words(mean)[0]}{word}"
    mean, low, high = rule.measure.in_words(mean, *rule.measure.interval(low, high))
    return f"{mean}{word} ({low} to {high})"


def _beside_controls(rows: Table, ticket: Mapping[str, Any], rule: Rule) -> str:
    """Say how the controls do beside the ticket of a line, each at the nearest round that it has."""
    worse, others, as_good, better = [], [], [], []
    for branch in controls(rows):
        found = differences(rows, rule.measure.early_stop, branch, rule.confidence)
        known, compared = branches.find(branch), rule.compared(branch)
        # That an alternative does as well makes no ticket less special.
        if found.empty or (known and known.kind == "alternative") or (compared and compared.refused):
            continue
        line = found.loc[(found["round"] - ticket["round"]).abs().idxmin()].to_dict()
        named = branch if line["round"] == ticket["round"] else f"{branch} (at {percent(line['density'])})"
        if line["replicates"] > 1:
            special = _beside_one(line, rule)
            into = better if line["high"] < 0 else as_good if special == "no" else worse if special == "yes" else others
            into.append(named)
    text = f", better than the control{'s' * (len(worse) > 1)} {listed(worse)}" if worse else ""
    if others:
        text += f"; {listed(others)} {'are' if len(others) > 1 else 'is'} not shown to do worse"
    text += f"; not special, as {listed(as_good)} {'do' if len(as_good) > 1 else 'does'} as well" if as_good else ""
    return text + (f"; {listed(better)} {'do' if len(better) > 1 else 'does'} better" if better else "")


def _kind(rule: Rule) -> str:
    return f"{100 * rule.confidence:.4g} % interval"


def _against(branch: str, found: Table, at: float, rule: Rule) -> str:
    """Compare the ticket with a branch at the nearest round, and list the other rounds where the ticket is better."""
    line = found.loc[(found["round"] - at).abs().idxmin()].to_dict()
    head = f"Ticket − {branch} {_where(line)}: {_measured(line, rule)}"
    compared = rule.compared(branch)
    matters = compared.takes_away if compared else ""
    if compared and compared.refused:
        return f"{head}. This is no fair comparison, and shows nothing about the ticket: {compared.refused}."
    if line["replicates"] == 1:
        shows = ", which cannot tell."
    elif line["high"] < 0:
        shows = f": {branch} is better than the ticket."
    elif _beside_one(line, rule) == "no":
        shows = f": {branch} does as well there, within {rule.allowed}."
    elif line["low"] > 0:
        shows = f": the ticket is better{f', so {matters} matters there' if matters else ''}."
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


def _measured(line: dict[str, Any], rule: Rule) -> str:
    num, mean = int(line["replicates"]), rule.measure.difference(line["mean"])
    mean += " of the dense loss" if rule.measure.is_loss else ""
    if num == 1:
        return f"{mean} from 1 replicate"
    if abs(line["low"]) == math.inf:
        return f"{mean} in each of {replicates(num)}"
    return f"{mean}, {_kind(rule)} {rule.measure.ends(line['low'], line['high'])}, {replicates(num)}"


def _sparsest(lines: Table) -> dict[str, Any] | None:
    return None if lines.empty else lines.loc[lines["density"].idxmin()].to_dict()
