"""Is a ticket matching, is it winning? Ticket − dense and ticket − control, paired by replicate, with intervals.

*Matching*, after Frankle et al. 2020, https://arxiv.org/abs/1912.05671: shown to lose no more than a tolerance of
accuracy or, where the model measures none, to have a loss that is higher by no more than a fraction. *Winning*, after
Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635, who ask for the accuracy of the dense network "after training
for at most the same number of iterations": matching within the *budget*, the early-stop step of the dense network of
the same replicate. There a ticket is taken at its lowest validation loss of all evaluated steps up to the budget. Only
tickets that start from step 0 can be winning. *Better* than dense: shown to have a gain above zero.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lottery import config
from lottery.errors import LotteryError, unknown
from lottery.pruning import branches, fairness
from lottery.runs import store, stored
from lottery.statistics import intervals, power, significance
from lottery.statistics.metric import ACCURACY, Metric, controls, metric_of, of_dense, of_tickets, scored, transferred
from lottery.text_tables import BAD, GOOD, OPEN, Table, frame

DIFFERENCES = ("round", "density", "replicates", "mean", "std", "low", "high")
WINNING, MATCHING, NOT_MATCHING, CANNOT_TELL = "winning", "matching", "not matching", "?"
BETTER_THAN_DENSE, AT_LAST = "better than dense", "matching at the end"
TONES = {WINNING: GOOD, MATCHING: GOOD, NOT_MATCHING: BAD, CANNOT_TELL: OPEN}
NO_LATER, LATER = "no later", "later"
# What a ticket is beside a control.
BETTER, AS_GOOD, WORSE, NOT_FAIR = "better", "as good", "worse", "not fair"

# Accuracies are stored with single precision, and its rounding is nothing that was lost.
LAST_PLACE = 1e-7


@dataclass(frozen=True)
class Rule:
    """What a ticket must show; see `rule_for`."""

    word: str = WINNING  # the most that a ticket of the run can be: winning or matching
    tolerance: float = ACCURACY.tolerance  # the gain that it may lack; see `metric.Metric`
    margin: float = 0  # steps from one evaluation to the next, so an early stop is no later if by at most these
    last_step: int | None = None  # of training: an early stop there is a lower bound
    confidence: float = 0.95  # of each interval
    mode: str = "weights"  # of rewinding, and its step: they decide what a control may show
    rewind_step: int = 0
    metric: Metric = ACCURACY  # what tickets are compared by
    held_at: str = "zero"  # masked entries, which too decides what a control may show

    def __post_init__(self) -> None:
        """Refuse a tolerance in per cent, by which every ticket would be matching."""
        if not 0 <= self.tolerance <= 1:
            raise LotteryError(f"tolerance must be a fraction in [0, 1], not {self.tolerance:g}.")

    def compared(self, branch: str) -> fairness.Comparison | None:
        """Return what a branch shows beside the tickets; None for a function of the user's."""
        return fairness.comparison(branch, self.mode, self.rewind_step, self.held_at)

    def refused(self, branch: str) -> str:
        """Say why a branch cannot be compared fairly with the tickets; empty if it can."""
        compared = self.compared(branch)
        return compared.refused if compared else ""

    @property
    def level(self) -> float:
        """The probability that an interval wrongly lies above a bound."""
        return (1 - self.confidence) / 2

    @property
    def bound(self) -> float:
        """The gain over dense that a matching ticket has at least."""
        return -self.tolerance - LAST_PLACE

    def verdict(self, low: float, high: float) -> str:
        """Judge an interval of gains over dense."""
        if low >= self.bound:
            return MATCHING
        return NOT_MATCHING if high < self.bound else CANNOT_TELL

    def p_value(self, line: Mapping[str, Any], bound: float) -> float:
        """Compute the p value of the test that the true mean of a line of `differences` is above a bound."""
        return significance.p_value(line["mean"], line["low"], line["replicates"], bound, self.confidence)


DEFAULT = Rule()
JUDGED = (
    *DIFFERENCES, "verdict", "needed", "budget_mean", "budget_low", "budget_high", "speed", "step_mean", "step_low",
    "step_high", "early_stop", "final_mean", "final_low", "final_high", "final_verdict", "special", "as_good",
    "matching_p", "winning_p", "better_p", "final_p",
)  # fmt: skip
_NOT_KNOWN: dict[str, Any] = {"early_stop": "", "final_verdict": "", "special": "", "as_good": ""}  # numbers are NaN


@dataclass(frozen=True)
class Judgement:
    """A run, what its tickets must show, and the verdict on each round."""

    rows: Table  # of `lottery.statistics.results.table`
    rule: Rule = DEFAULT
    trained: tuple[int, int] | None = None  # how many networks are stored, and all of them; None for a complete run
    cautions: tuple[str, ...] = ()  # mistakes of the model or the data that were found before training
    most_frequent: float = math.nan  # the share of the most frequent class in the test labels, where they are stored

    @cached_property
    def rounds(self) -> Table:
        """The table of `judged`."""
        return judged(self.rows, self.rule)

    @cached_property
    def scores(self) -> Table:
        """The rows with scores in place of losses; see `lottery.statistics.metric.scored`."""
        return scored(self.rows, self.rule.metric)

    @property
    def metric(self) -> Metric:
        """What tickets are compared by."""
        return self.rule.metric

    @cached_property
    def shown(self) -> dict[str, dict[str, Any] | None]:
        """Find for each word the line with the smallest density that is shown for all rounds; see `smallest_shown`."""
        p_values = {WINNING: "winning_p", MATCHING: "matching_p", BETTER_THAN_DENSE: "better_p", AT_LAST: "final_p"}
        if self.rule.word != WINNING:
            del p_values[WINNING]
        return {word: smallest_shown(self.rounds, self.rule, p) for word, p in p_values.items()}

    @property
    def is_winning(self) -> bool:
        """True if winning tickets are shown, so that the run is summed up by what tickets reach within the budget."""
        return bool(self.shown.get(WINNING))

    @property
    def controls(self) -> list[str]:
        """The branches that are compared with the ticket, in the order of the table."""
        return controls(self.rows)

    def against(self, branch: str) -> Table:
        """Return the table of `differences` of ticket − branch, of losses as gains."""
        return differences(self.scores, self.metric.early_stop, branch, self.rule.confidence)


def of_run(run: store.Folder, rows: Table, tolerance: float | None = None) -> Judgement:
    """Judge the stored run with these rows; for the tolerance, see `rule_for`."""
    run = Path(run)
    experiment = store.read_experiment(run)
    rule = rule_for(experiment, tolerance, metric_of(rows))
    cautions = tuple(store.read_environment(run).get("cautions", ()))
    _, counts = np.unique(stored.test_labels(run), return_counts=True)
    most_frequent = float(counts.max() / counts.sum()) if len(counts) else math.nan
    return Judgement(rows, rule, store.progress(run, experiment), cautions, most_frequent)


def rule_for(experiment: config.Experiment, tolerance: float | None = None, metric: Metric = ACCURACY) -> Rule:
    """Return the rule for the tickets of an experiment, which can be winning only if they start from step 0.

    By default a matching ticket may lose the tolerance of the metric, which is that of `metric.metric_of` a table.
    """
    rewind = experiment.rewind
    return Rule(
        word=WINNING if rewind.step == 0 and rewind.mode == "weights" else MATCHING,
        tolerance=metric.tolerance if tolerance is None else tolerance,
        margin=experiment.train.eval_every,
        last_step=experiment.train.num_steps,
        mode=rewind.mode,
        rewind_step=rewind.step,
        metric=metric,
        held_at=experiment.prune.held_at,
    )


def paired(rows: Table, measure: str = "", against: str = "dense") -> Table:
    """Compute ticket − dense (round 0), or ticket − branch (the same round), from the table of a run in any order.

    Returns a data frame of a column, by default that of `metric.metric_of` at the early-stop step, with a row for
    each replicate and a column for each round; NaN where one of the two is missing.
    Raises `LotteryError` if the table has no such measure or branch.
    """
    measure = measure or metric_of(rows).early_stop
    if measure not in rows:
        raise unknown("The measure to compare", measure, rows.columns)

    def chain(branch: str) -> Table:
        return rows[rows["branch"] == branch].pivot(index="replicate", columns="round", values=measure)

    tickets = chain(store.TICKET)
    if against == "dense":
        pruned = tickets.drop(columns=0, errors="ignore")
        # A part of a table, such as chosen rounds, may lack the dense networks.
        return pruned.sub(tickets[0], axis=0) if 0 in tickets else pruned * math.nan
    others = sorted(set(rows["branch"]) - {store.TICKET})
    if against not in others:
        raise unknown("The branch to compare with", against, ["dense", *others])
    other = chain(against)
    return (tickets - other)[tickets.columns.intersection(other.columns)]


def differences(
    rows: Table, measure: str = "", against: str = "dense", confidence: float = 0.95, spacing: float = 0
) -> Table:
    """Summarise `paired` over replicates, a row for each round in which at least one pair is complete.

    Of the columns `DIFFERENCES`, ``density`` is the mean of the tickets in the pairs, ``replicates`` counts the pairs,
    ``std`` is the sample standard deviation (NaN for one pair), ``low`` and ``high`` are from
    `intervals.mean_interval` with the spacing (infinite for one pair).
    """
    density = of_tickets(rows).pivot(index="replicate", columns="round", values="density")
    measure = measure or metric_of(rows).early_stop
    found = paired(rows, measure, against)
    # How small a difference of losses counts as none depends on the size of the losses.
    size = intervals.unit_of(rows.loc[rows["branch"].isin((store.TICKET, against)), measure])
    lines = []
    for number, column in found.items():
        pairs = column.dropna()
        if len(pairs):
            mean, low, high = intervals.mean_interval(pairs.tolist(), confidence, size, spacing)
            # Where whole units are pruned, each replicate has a density of its own.
            own = density.loc[pairs.index, number].mean()
            lines.append((number, own, len(pairs), mean, pairs.std(), low, high))
    return frame(lines, DIFFERENCES)


def transfers(rows: Table) -> dict[str, Table]:
    """Compare each transfer with the dense network that was trained on the same other data, by its label.

    Returns the rows of `differences`, of losses as gains (see `metric.Metric`); none where
    the transfer of round 0 is not stored.
    """
    metric = metric_of(rows)
    parts = rows[transferred(rows)].groupby("branch", sort=False)
    scores = {label: scored(part.assign(branch=store.TICKET), metric) for label, part in parts}
    return {label: differences(part, metric.early_stop) for label, part in scores.items()}


def judged(rows: Table, rule: Rule = DEFAULT) -> Table:
    """Judge each pruned round by itself: accuracy at the early-stop step and at the end, early-stop step, controls.

    Where the rule is on the loss, read "loss" for "accuracy". All differences are gains: see `metric.Metric`.

    Returns the rows of `differences` against dense, and beside them:

    - ``verdict``: `WINNING`, `MATCHING`, `NOT_MATCHING`, or `CANNOT_TELL`, as always from one replicate
    - ``budget_mean``, ``budget_low``, ``budget_high``: of the accuracy within the budget, which decides what is winning
    - ``speed``: the steps to the lowest validation loss of the dense network over those of the dense network, a mean
      over replicates; NaN if a replicate never reaches it
    - ``needed``: how many replicates of a new run would tell with a power of 80 % if the true difference is the mean
      here, NaN where the verdict tells, or if that is not known
    - ``step_mean``, ``step_low``, ``step_high``, of the early-stop step, and ``early_stop``: `NO_LATER`, `LATER` or
      `CANNOT_TELL`; it is not part of the verdict
    - ``final_mean``, ``final_low``, ``final_high``, ``final_verdict``: of the accuracy at the end of training
    - ``special``: "no" if a control is shown to do as well within the tolerance, "yes" if the ticket is shown to be
      better than each, else `CANNOT_TELL`, empty without controls; ``as_good``: the controls that do as well
    - ``matching_p``, ``winning_p``, ``better_p``, ``final_p``: one-sided p values, for `smallest_shown`; better is what
      is above zero within the budget, or at the early-stop step of tickets that cannot be winning
    """
    rows = scored(rows, rule.metric)
    # Tickets that cannot be winning have no budget, and their early stop is not compared.
    can_win = rule.word == WINNING
    budgets = _by_round(rows, rule, rule.metric.budget) if can_win else {}
    steps = _by_round(rows, rule, "early_stop_step", spacing=rule.margin) if can_win else {}
    finals = _by_round(rows, rule, rule.metric.final)
    special = _special(rows, rule)
    speeds = _speeds(rows)
    tickets = of_tickets(rows)
    censored = set(tickets[tickets["early_stop_step"] == rule.last_step]["round"])
    lines = []
    for number, line in _by_round(rows, rule, rule.metric.early_stop).items():
        line = _NOT_KNOWN | line | special.get(number, {})
        line["verdict"] = rule.verdict(line["low"], line["high"])
        line["speed"] = speeds.get(number, math.nan)
        line["matching_p"] = rule.p_value(line, rule.bound)
        line["better_p"] = rule.p_value(line, 0)
        budget = budgets.get(number)
        if budget:
            line |= _ends(budget, "budget")
            line["winning_p"] = rule.p_value(budget, rule.bound)
            line["better_p"] = rule.p_value(budget, 0)
            # Within the budget is the harder test, so it goes over the verdict at the early-stop step.
            if budget["low"] >= rule.bound:
                line["verdict"] = WINNING
        if line["verdict"] == CANNOT_TELL and math.isfinite(line["low"]):
            distance = line["mean"] + rule.tolerance
            line["needed"] = power.num_needed(distance, line["std"], line["replicates"], rule.confidence)
        step = steps.get(number)
        if step:
            line |= _ends(step, "step")
            line["early_stop"] = _early_stop(step, rule, number in censored, 0 in censored)
        final = finals.get(number)
        if final:
            line |= _ends(final, "final")
            line["final_verdict"] = rule.verdict(final["low"], final["high"])
            line["final_p"] = rule.p_value(final, rule.bound)
        lines.append(line)
    return frame(lines, JUDGED).astype({"needed": float})


def smallest_shown(lines: Table, rule: Rule = DEFAULT, p: str = "winning_p") -> dict[str, Any] | None:
    """Find the line of `judged` with the smallest density that is shown for all rounds at once; None if there is none.

    From the densest round to the sparsest it tests that no round from there on is winning (or matching, by
    ``matching_p``, or matching at the end, by ``final_p``), and stops where it cannot reject that; see
    `lottery.statistics.significance.step_down`. That some round of at most this density is winning is then wrong with a
    probability of at most `Rule.level` for the run as a whole. The round itself is winning by its own interval too.
    """
    # The order is fixed before anything is tested: otherwise the error for all rounds at once would be larger.
    ordered = lines.sort_values("density", ascending=False, kind="stable")
    # What cannot be tested is not shown.
    count = significance.step_down(ordered[p].fillna(1.0).tolist(), rule.level)
    return ordered.iloc[count - 1].to_dict() if count else None


def smallest_by_mean(rows: Table, tolerance: float | None = None) -> dict[str, Any] | None:
    """Find the smallest density at which tickets match dense by the mean alone; None if no pruned round does.

    Returns ``round``, ``density`` and ``difference``, the mean of ticket − dense of accuracies or losses as they are.
    """
    metric = metric_of(rows)
    tolerance = metric.tolerance if tolerance is None else tolerance
    found = differences(scored(rows, metric), metric.early_stop)
    best = sparsest(found[found["mean"] >= -tolerance - LAST_PLACE])
    if best is None:
        return None
    difference = float(best["mean"])
    if metric.is_loss:
        # A gain is a fraction of the dense loss.
        difference *= -abs(float(of_dense(rows)[metric.early_stop].mean()))
    return {"round": int(best["round"]), "density": float(best["density"]), "difference": difference}


def sparsest(lines: Table) -> dict[str, Any] | None:
    """Return the line with the smallest density; None if there is no line."""
    return None if lines.empty else lines.loc[lines["density"].idxmin()].to_dict()


def beside(line: Mapping[str, Any], rule: Rule) -> str:
    """Judge ticket − branch in a line of `differences`: what is the ticket, within the tolerance?

    Returns `BETTER`, `AS_GOOD` (the branch does as well), `WORSE` or `CANNOT_TELL`.
    """
    if line["high"] < 0:
        return WORSE
    if line["high"] <= -rule.bound:
        return AS_GOOD
    return BETTER if line["low"] > 0 else CANNOT_TELL


def _speeds(rows: Table) -> dict[int, float]:
    """Divide the steps to the dense network's lowest validation loss by the steps that the dense network takes.

    Gives the mean by round over the replicates that have it; NaN if the ticket of one of these never has that loss, or
    the dense network has it before it is trained.
    """
    tickets = of_tickets(rows)
    dense = of_dense(rows).set_index("replicate")["dense_loss_step"].astype(float)
    shares = tickets["dense_loss_step"].astype(float) / tickets["replicate"].map(dense[dense > 0])
    # The mean of only those that get there would be too fast.
    return shares.groupby(tickets["round"]).agg(lambda values: values.mean(skipna=False)).to_dict()


def lower_bound(judgement: Judgement, line: Mapping[str, Any]) -> float:
    """Bound from below the gain of a round that was chosen, so that the bounds of all rounds hold at once.

    The interval within the budget where winning tickets are shown, or else at the early-stop step, by Bonferroni: its
    error is divided by the number of rounds. A round that `smallest_shown` has found loses at most the tolerance.
    """
    rule, num = judgement.rule, len(judgement.rounds)
    measure = rule.metric.budget if judgement.is_winning else rule.metric.early_stop
    # The round was chosen by these very differences, so that its own interval would be too narrow.
    found = differences(judgement.scores, measure, confidence=1 - (1 - rule.confidence) / num)
    low = float(found.set_index("round").loc[line["round"], "low"])
    return max(low, -rule.tolerance)


def _by_round(
    rows: Table, rule: Rule, measure: str, against: str = "dense", spacing: float = 0
) -> dict[Any, dict[str, Any]]:
    """Give the lines of `differences` by round, with the confidence of a rule."""
    lines = differences(rows, measure, against, rule.confidence, spacing).to_dict("records")
    return {line["round"]: line for line in lines}


def _ends(line: Mapping[str, Any], of: str) -> dict[str, float]:
    return {f"{of}_{end}": line[end] for end in ("mean", "low", "high")}


def _early_stop(line: Mapping[str, Any], rule: Rule, is_bound: bool, is_dense_bound: bool) -> str:
    # At the last step of training an early stop is a lower bound: such a ticket is never shown to be no later than
    # dense, and no ticket to be later than such a dense network.
    if line["high"] <= rule.margin:
        return CANNOT_TELL if is_bound else NO_LATER
    return LATER if line["low"] > 0 and not is_dense_bound else CANNOT_TELL


def beside_controls(rows: Table, rule: Rule) -> dict[Any, dict[str, dict[str, Any]]]:
    """Judge ticket − control of every fair control, by round and control: a line of `differences` with ``ticket``.

    That some control does as well is said of the ticket if it is shown of any of them, so the error of that is divided
    by their number. That the ticket is better than every control needs no correction: all must be shown.
    """
    found: dict[Any, dict[str, dict[str, Any]]] = {}
    for branch in controls(rows):
        known = branches.find(branch)
        if known is None or known.kind != "control" or rule.refused(branch):
            continue
        for number, line in _by_round(rows, rule, rule.metric.early_stop, branch).items():
            found.setdefault(number, {})[branch] = line
    for lines in found.values():
        for line in lines.values():
            line["ticket"] = beside(line, rule)
            # That a control does as well is a statement about what lies below a bound, so all signs change.
            p = significance.p_value(-line["mean"], -line["high"], line["replicates"], rule.bound, rule.confidence)
            if line["ticket"] in (AS_GOOD, WORSE) and p > rule.level / len(lines):
                line["ticket"] = CANNOT_TELL
    return found


def _special(rows: Table, rule: Rule) -> dict[Any, dict[str, Any]]:
    found = {}
    for number, lines in beside_controls(rows, rule).items():
        as_good = [branch for branch, line in lines.items() if line["ticket"] in (AS_GOOD, WORSE)]
        special = CANNOT_TELL
        if as_good:
            special = "no"
        elif all(line["ticket"] == BETTER for line in lines.values()):
            special = "yes"
        found[number] = {"special": special, "as_good": ", ".join(as_good)}
    return found
