"""The verdict on a run in English: a first line for a newcomer, and a line for each thing that limits it."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from lottery.formatting import listed, percent, replicates
from lottery.grids import BAD, GOOD, OPEN, Table
from lottery.pruning import branches, mask_actions
from lottery.statistics import verdicts
from lottery.statistics.verdicts import CANNOT_TELL, MATCHING, NOT_MATCHING, WINNING, Judgement, Rule

# The simulation of tests/scripts/simulate_verdicts.py gives the figures.
ADDING = (
    "Adding replicates to a run until it tells raises the error of a verdict from 2.5 % to about 10 %: choose their "
    "number before (lottery plan), and train them with another seed (run.seed)."
)


class Headline(NamedTuple):
    """The verdict on a run: a sentence or two for a newcomer, and a tone of `lottery.grids`."""

    text: str
    tone: str


def of(judgement: Judgement) -> list[str]:
    """Say what a run shows: the headline, and what limits it."""
    return [headline(judgement).text, *limits(judgement)]


def headline(judgement: Judgement) -> Headline:
    """Sum up in words for a newcomer if a run found a winning ticket.

    It names the sparsest ticket that is shown for the run as a whole, or else the one that comes nearest, with the
    controls at the same round, and says so if the end of training tells otherwise.
    """
    rows, rounds, rule = judgement.rows, judgement.rounds, judgement.rule
    if len(rows) and rows[rule.metric.early_stop].isna().all():
        found = Headline("The model measures no accuracy, so no ticket can be compared with dense.", OPEN)
    elif rounds.empty:
        found = Headline("No verdict yet: no pruned round can be compared with dense.", OPEN)
    elif any(line for word, line in judgement.shown.items() if word in (WINNING, MATCHING)):
        found = _shown(judgement)
    elif rounds["replicates"].max() == 1:
        found = Headline(_of_one_replicate(rounds, rule), OPEN)
    else:
        found = _none_shown(judgement)
    stored, wanted = judgement.trained or (0, 0)
    if stored < wanted:
        text = found.text[0].lower() + found.text[1:]
        return found._replace(text=f"So far, with {stored:,} of {wanted:,} networks trained: {text}")
    return found


def limits(judgement: Judgement) -> list[str]:
    """Write a sentence for each thing that limits a verdict: what density means, how often it errs, unfair controls."""
    rounds, rule = judgement.rounds, judgement.rule
    if rounds.empty:
        return []
    held = mask_actions.sentence(rule.held_at)
    found = [held] if held else []
    if rounds["replicates"].max() > 1:
        if len(rounds) > 1 and any(judgement.shown.values()):
            found.append(_of_all_rounds(judgement))
        if (rounds["verdict"] == CANNOT_TELL).any():
            found.append(ADDING)
    for branch in verdicts.controls(judgement.rows):
        why = verdicts.refused(branch, rule)
        if why and not judgement.against(branch).empty:
            found.append(f"{branch} is no fair comparison, and shows nothing about the ticket: {why}.")
    return found


def _of_all_rounds(judgement: Judgement) -> str:
    parts = [f"{word} {line['density']:.4f}" if line else f"{word} none" for word, line in judgement.shown.items()]
    error = 100 * judgement.rule.level
    return (
        "The table judges each round by itself. The smallest density shown for all "
        f"{len(judgement.rounds)} rounds at once (error {error:.2g} % each): {', '.join(parts)}."
    )


def _shown(judgement: Judgement) -> Headline:
    rule = judgement.rule
    winning, matching = judgement.shown.get(WINNING), judgement.shown[MATCHING]
    line = winning or matching
    assert line is not None
    text = f"A {WINNING if winning else MATCHING} ticket: {_in_words(line, rule)}"
    if line["mean"] < 0:
        text += f", which is within the tolerance of {_tolerance(rule)}"
    parts = [text + _beside_controls(judgement, line)]
    if rule.word != WINNING:
        parts.append("It is not called winning because it does not start from the weights of step 0")
    elif not winning:
        parts.append(f"It is not called winning: {_why_not(line, judgement.rounds)}")
    elif matching and matching["density"] < line["density"]:
        parts.append(f"Whenever the early stop comes, {percent(matching['density'])} is shown to match too")
    if line["final_verdict"] == CANNOT_TELL:
        tells = f"{replicates(int(line['replicates']))} cannot tell"
        parts.append(f"At the end of training {tells}: {_end_in_words(line, rule)}")
    elif line["final_verdict"] == NOT_MATCHING:
        parts.append(f"At the end of training it loses: {_end_in_words(line, rule)}")
    return Headline(" ".join(f"{part}." for part in parts), OPEN if line["special"] == "no" else GOOD)


def _why_not(line: Mapping[str, Any], rounds: Table) -> str:
    if line["early_stop"] == verdicts.LATER:
        return "its early stop comes later than that of dense"
    if line["early_stop"] == verdicts.NO_LATER:
        return f"that its early stop comes no later is shown for this round, not for all {len(rounds)} at once"
    return "that its early stop comes no later than that of dense is not shown"


def _none_shown(judgement: Judgement) -> Headline:
    rule = judgement.rule
    text, tone = _nearest(judgement.rounds, rule)
    at_the_end = judgement.shown["matching at the end"]
    if at_the_end is None:
        return Headline(text, tone)
    there = f"{percent(at_the_end['density'])} of the weights match dense: {_end_in_words(at_the_end, rule)}"
    return Headline(f"{text} At the end of training {there}.", OPEN)


def _nearest(rounds: Table, rule: Rule) -> Headline:
    undecided, single = rounds[rounds["verdict"] == CANNOT_TELL], rounds[rounds["verdict"].isin((WINNING, MATCHING))]
    if len(single):
        best = _in_words(verdicts.sparsest(single) or {}, rule)
        unsure = f"{replicates(int(rounds['replicates'].max()))} cannot tell for all {len(rounds)} rounds at once"
        text = f"No {rule.word} ticket is shown: {unsure}. The sparsest that is {MATCHING} by itself: {best}."
        return Headline(text, OPEN)
    if undecided.empty:
        lost = f"every round loses more than {_tolerance(rule)} points to dense"
        if rule.metric.is_loss:
            lost = f"the loss of every round is more than {_tolerance(rule)} above that of dense"
        return Headline(f"No {rule.word} ticket: {lost}. The best: {_in_words(_best(rounds), rule)}.", BAD)
    line, nearest = verdicts.sparsest(undecided[undecided["mean"] >= rule.bound]), "The sparsest that may be"
    if line is None:
        line, nearest = _best(undecided), "The nearest"
    unsure = f"{replicates(int(line['replicates']))} cannot tell"
    if not math.isnan(line["needed"]):
        unsure += f"; a new run with {line['needed']:.0f} would"
    return Headline(f"No {rule.word} ticket is shown: {unsure}. {nearest}: {_in_words(line, rule)}.", OPEN)


def _best(rounds: Table) -> dict[str, Any]:
    return rounds.loc[rounds["mean"].idxmax()].to_dict()


def _of_one_replicate(rounds: Table, rule: Rule) -> str:
    head = f"1 replicate cannot show that a ticket is {rule.word}"
    by_mean = verdicts.sparsest(rounds[rounds["mean"] >= rule.bound])
    if by_mean is None:
        return f"{head}, and in this one none keeps up with dense. The best: {_in_words(_best(rounds), rule)}."
    within = ""
    if by_mean["mean"] < 0:
        within = f" (dense {'+' if rule.metric.is_loss else '−'} {_tolerance(rule)} or better)"
    return f"{head}; in this one, the sparsest that keeps up with dense{within} has {_in_words(by_mean, rule)}."


def _tolerance(rule: Rule) -> str:
    # In percentage points, or in per cent of the dense loss.
    return f"{100 * rule.tolerance:g}{' %' if rule.metric.is_loss else ''}"


def _in_words(line: Mapping[str, Any], rule: Rule) -> str:
    """Give a line of `verdicts.judged` in per cent of the weights, and in percentage points or per cent of the loss."""
    num, metric = int(line["replicates"]), rule.metric
    has_ends = num > 1 and math.isfinite(line["low"])
    interval = metric.interval(line["low"], line["high"]) if has_ends else ()
    mean, *ends = metric.in_words(line["mean"], *interval)
    is_better, is_same = line["mean"] > 0, not float(mean.split()[0].replace(",", ""))
    if metric.is_loss and is_same:
        against = "with the same test loss as dense"
    elif metric.is_loss:
        against = f"with a test loss {mean.lstrip('+-')} {'below' if is_better else 'above'} that of dense"
    elif is_same:
        against = "as accurate as dense"
    else:
        against = f"{mean} points {'over' if is_better else 'against'} dense"
    text = f"{percent(line['density'])} of the weights, {against}"
    if has_ends:
        return f"{text} ({100 * rule.confidence:.4g} % interval {ends[0]} to {ends[1]}, {replicates(num)})"
    return f"{text} (in each of {replicates(num)})" if num > 1 else text


def _end_in_words(line: Mapping[str, Any], rule: Rule) -> str:
    metric, low, high = rule.metric, line["final_low"], line["final_high"]
    word = " loss" if metric.is_loss else " points"
    if math.isinf(low):
        return f"{metric.in_words(line['final_mean'])[0]}{word}"
    mean, low, high = metric.in_words(line["final_mean"], *metric.interval(low, high))
    return f"{mean}{word} ({low} to {high})"


def _beside_controls(judgement: Judgement, ticket: Mapping[str, Any]) -> str:
    # Each control at the nearest round that it has, as it may be trained in fewer rounds than the ticket.
    named: dict[str, list[str]] = {}
    for branch in verdicts.controls(judgement.rows):
        found, known = judgement.against(branch), branches.find(branch)
        # That an alternative does as well makes no ticket less special.
        is_alternative = known is not None and known.kind == "alternative"
        if found.empty or is_alternative or verdicts.refused(branch, judgement.rule):
            continue
        line = found.loc[(found["round"] - ticket["round"]).abs().idxmin()].to_dict()
        name = branch if line["round"] == ticket["round"] else f"{branch} (at {percent(line['density'])})"
        if line["replicates"] > 1:
            named.setdefault(verdicts.beside(line, judgement.rule), []).append(name)
    text = ""
    if worse := named.get(verdicts.BETTER):
        text += f", better than the control{'s' * (len(worse) > 1)} {listed(worse)}"
    if unsure := named.get(CANNOT_TELL):
        text += f"; {listed(unsure)} {'are' if len(unsure) > 1 else 'is'} not shown to do worse"
    if as_good := named.get(verdicts.AS_GOOD):
        text += f"; not special, as {listed(as_good)} {_do(as_good)} as well"
    if better := named.get(verdicts.WORSE):
        text += f"; {listed(better)} {_do(better)} better"
    return text


def _do(names: list[str]) -> str:
    return "do" if len(names) > 1 else "does"
