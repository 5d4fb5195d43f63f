"""The verdict on a run in English: a first line for a newcomer, and a line for each thing that limits it."""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from lottery.formatting import counted, listed, percent
from lottery.pruning import mask_actions
from lottery.statistics import verdicts
from lottery.statistics.metric import Metric, of_dense
from lottery.statistics.verdicts import CANNOT_TELL, MATCHING, NOT_MATCHING, WINNING, Judgement, Rule
from lottery.text_tables import BAD, GOOD, OPEN, Table

# The simulation of tests/scripts/simulate_verdicts.py gives the figures.
ADDING = (
    "Choose the number of replicates in advance (lottery plan), and train them with another seed (run.seed). Adding "
    "replicates until a verdict appears raises its error rate from 2.5 % to about 10 %."
)

_HARDLY = 0.02  # of the way from the share of the most frequent class to all examples


class Headline(NamedTuple):
    """The verdict on a run: a sentence or two for a newcomer, and a tone of `lottery.text_tables`."""

    text: str
    tone: str


def of(judgement: Judgement) -> list[str]:
    """Say what a run shows: the headline, and what limits it."""
    return [headline(judgement).text, *limits(judgement)]


def headline(judgement: Judgement) -> Headline:
    """Sum up in words for a newcomer if a run found a winning ticket.

    It names the sparsest ticket that is shown for the run as a whole, or else the one that comes nearest, with the
    controls at the same round, and says so if the end of training tells otherwise. Mistakes that were found in the
    model or the data come first.
    """
    text, tone = _found(judgement)
    stored, wanted = judgement.trained or (0, 0)
    if stored < wanted:
        text = f"With {stored:,} of {wanted:,} networks trained so far, {text[0].lower()}{text[1:]}"
    return Headline(" ".join([*judgement.cautions, text]), BAD if judgement.cautions else tone)


def _found(judgement: Judgement) -> Headline:
    rows, rounds, rule = judgement.rows, judgement.rounds, judgement.rule
    metric = rule.metric
    if len(rows) and rows[metric.early_stop].isna().all():
        return Headline("The model measures no accuracy, so no ticket can be compared with dense.", OPEN)
    dense = of_dense(rows)
    if metric.is_loss and dense[metric.early_stop].mean() == 0:
        text = "No verdict: the mean test loss of the dense networks is 0, so no loss can be told in per cent of it."
        return Headline(text, OPEN)
    if rounds.empty:
        return Headline("No verdict yet: no pruned round can be compared with dense.", OPEN)
    most_frequent = judgement.most_frequent
    if most_frequent == 1:
        text = "No verdict: all test examples have the same class, so their accuracy says nothing. Check the labels."
        return Headline(text, BAD)
    best = max(dense[metric.early_stop].mean(), dense[metric.final].mean())
    # The dense network is hardly better than naming the most frequent class each time.
    if best - most_frequent < _HARDLY * (1 - most_frequent):
        text = (
            "No verdict: the dense network has learnt hardly anything, so no ticket can match it in a way that matters."
            f" It is right in {percent(best)} of the test examples, and the most frequent class makes up "
            f"{percent(most_frequent)} of them. Check the loss, the learning rate and the labels."
        )
        return Headline(text, BAD)
    if judgement.is_winning or judgement.shown[MATCHING]:
        return _shown(judgement)
    if rounds["replicates"].max() == 1:
        return Headline(_of_one_replicate(rounds, rule), OPEN)
    text, tone = _nearest(rounds, rule)
    at_the_end = judgement.shown[verdicts.AT_LAST]
    if at_the_end is None:
        return Headline(text, tone)
    there = f"the ticket with {percent(at_the_end['density'])} of the weights matches dense"
    return Headline(f"{text} At the end of training {there}: {_end_in_words(at_the_end, rule)}.", OPEN)


def limits(judgement: Judgement) -> list[str]:
    """Write a sentence for each thing that limits a verdict: what density means, how often it errs, unfair controls."""
    rounds, rule = judgement.rounds, judgement.rule
    if rounds.empty:
        return []
    held = mask_actions.sentence(rule.held_at)
    found = [held] if held else []
    has_several = rounds["replicates"].max() > 1
    if has_several and len(rounds) > 1 and any(judgement.shown.values()):
        shown = {word: percent(line["density"]) if line else "none" for word, line in judgement.shown.items()}
        found.append(
            f"The table judges each round by itself. In a test of all {len(rounds)} rounds at once (error "
            f"{100 * rule.level:.2g} % for each verdict), the smallest densities shown are: "
            f"{', '.join(f'{word} {density}' for word, density in shown.items())}."
        )
    if has_several and (rounds["verdict"] == CANNOT_TELL).any():
        found.append(ADDING)
    for branch in judgement.controls:
        why = rule.refused(branch)
        if why and not judgement.against(branch).empty:
            found.append(f"{branch} is not a fair comparison, and shows nothing about the ticket: {why}.")
    return found


def _shown(judgement: Judgement) -> Headline:
    rule = judgement.rule
    winning = judgement.shown.get(WINNING)
    sparsest = winning or judgement.shown[MATCHING]
    assert sparsest is not None
    clearest = _clearest(judgement, sparsest)
    where = ": there "
    if clearest["round"] != sparsest["round"]:
        where = f". At {percent(clearest['density'])}: "
    found = ", ".join([_gain(judgement, clearest), *_speed(clearest), *_over_controls(judgement, clearest)])
    word = "Winning" if winning else "Matching"
    parts = [f"{word} tickets down to {percent(sparsest['density'])} of the weights{where}{found}"]
    if rule.word != WINNING:
        parts.append("They are not called winning because they do not start from the weights of step 0")
    elif not winning:
        parts.append("They are not called winning: that they match dense within its steps is not shown")
    if sparsest["final_verdict"] in (CANNOT_TELL, NOT_MATCHING):
        which = "the ticket" if clearest["round"] == sparsest["round"] else "the sparsest of them"
        matches = f"{which} does not match dense"
        if sparsest["final_verdict"] == CANNOT_TELL:
            matches = f"it is not decided whether {which} matches dense"
        parts.append(f"At the end of training {matches}: {_end_in_words(sparsest, rule)}")
    return Headline(" ".join(f"{part}." for part in parts), OPEN if clearest["special"] == "no" else GOOD)


def _clearest(judgement: Judgement, shown: dict[str, Any]) -> dict[str, Any]:
    """Choose the ticket that the numbers are about: the sparsest that beats dense for certain, or the one shown."""
    rounds = judgement.rounds
    words = (WINNING,) if judgement.is_winning else (WINNING, MATCHING)
    rounds = rounds[(rounds["round"] <= shown["round"]) & rounds["verdict"].isin(words)]
    is_better = [verdicts.lower_bound(judgement, line) > 0 for line in rounds.to_dict("records")]
    return verdicts.sparsest(rounds[is_better]) or shown


def _gain(judgement: Judgement, line: Mapping[str, Any]) -> str:
    """Say how far a ticket is from dense, and at least, as `verdicts.lower_bound` finds it."""
    metric, rule = judgement.metric, judgement.rule
    gain = line["budget_mean"] if judgement.is_winning else line["mean"]
    mean, bound = metric.in_words(gain, verdicts.lower_bound(judgement, line))
    is_same = _is_zero(mean)
    unit = metric.unit if is_same else ""  # otherwise the mean has it
    text = f"{_beside_dense(mean, metric)} (at {'most' if metric.is_loss else 'least'} {bound}{unit})"
    return text if gain >= 0 or is_same else f"{text}, within the tolerance of {_tolerance(rule)}"


def _beside_dense(mean: str, metric: Metric) -> str:
    """Say how far a ticket is from dense, by the mean of ticket − dense in words."""
    if _is_zero(mean):
        return "the same test loss as dense" if metric.is_loss else "as accurate as dense"
    if metric.is_loss:
        return f"a test loss {mean.lstrip('+−')} {'below' if mean.startswith('−') else 'above'} the loss of dense"
    return f"{mean} points {'over' if mean.startswith('+') else 'compared with'} dense"


def _is_zero(mean: str) -> bool:
    return not re.search("[1-9]", mean)


def _speed(line: Mapping[str, Any]) -> list[str]:
    """Say in how many of the dense network's steps a ticket has its lowest validation loss, if it always has it."""
    share = line["speed"]
    if math.isnan(share):
        return []
    # By the text: 0.996 reads as 1, too. An exponent is not a number for a newcomer.
    text = f"{share:.2g}" if share < 10 else f"{share:,.0f}"
    if text == "1":
        return ["in as many steps as dense"]
    return [f"in {text} {'of' if share < 1 else 'times'} the steps of dense"]


def _over_controls(judgement: Judgement, ticket: Mapping[str, Any]) -> list[str]:
    """Compare a ticket with the controls of its own round."""
    lines = verdicts.beside_controls(judgement.scores, judgement.rule).get(ticket["round"], {})
    better = {name: line for name, line in lines.items() if line["ticket"] == verdicts.BETTER}
    said = []
    if better:
        # Of a loss the share may be over 100 %, which is no share of the control's loss.
        unit = " of the dense loss" if judgement.metric.is_loss else judgement.metric.unit
        over = "below" if judgement.metric.is_loss else "over"
        texts = []
        for name, line in better.items():
            (gain,) = judgement.metric.in_words(line["mean"])
            texts.append(f"{gain.lstrip('+−')}{unit} {over} {name}")
            unit = ""  # once is enough
        said.append(f"and {', '.join(texts)}")
    unsure = [name for name, line in lines.items() if line["ticket"] == CANNOT_TELL]
    if unsure:
        said.append(f"but not shown to be better than {listed(unsure)}")
    as_good = [name for name, line in lines.items() if line["ticket"] in (verdicts.AS_GOOD, verdicts.WORSE)]
    if as_good:
        said.append(f"but not special: {listed(as_good)} {'does' if len(as_good) == 1 else 'do'} as well")
    return said


def _nearest(rounds: Table, rule: Rule) -> Headline:
    single = verdicts.sparsest(rounds[rounds["verdict"].isin((WINNING, MATCHING))])
    if single is not None:
        unsure = f"{_too_few(rounds['replicates'].max())} for all {len(rounds)} rounds at once"
        nearest = f"The sparsest ticket that is {single['verdict']} in the test of its own round"
        if single["verdict"] == WINNING:
            # By the interval within the budget, which this verdict is of.
            single |= {end: single[f"budget_{end}"] for end in ("mean", "low", "high")}
        best = _in_words(single, rule)
        return Headline(f"No {rule.word} ticket is shown: {unsure}. {nearest} has {best}.", OPEN)
    undecided = rounds[rounds["verdict"] == CANNOT_TELL]
    if undecided.empty:
        lost = f"every round loses more than {_tolerance(rule)} points to dense"
        if rule.metric.is_loss:
            lost = f"the loss of every round is more than {_tolerance(rule)} above the loss of dense"
        return Headline(f"No {rule.word} ticket: {lost}. The best has {_in_words(_best(rounds), rule)}.", BAD)
    # A sparser ticket with a lower mean may be undecided too.
    nearest = "The sparsest ticket whose mean keeps up with dense"
    line = verdicts.sparsest(undecided[undecided["mean"] >= rule.bound])
    if line is None:
        line, nearest = _best(undecided), "The nearest ticket"
    text = f"No {rule.word} ticket is shown: {_too_few(line['replicates'])}. {nearest} has {_in_words(line, rule)}."
    if not math.isnan(line["needed"]):
        # They decide at the early-stop step, not within the budget; and against a ticket whose mean is below the bound.
        what = MATCHING if line["mean"] >= rule.bound else NOT_MATCHING
        text += f" About {line['needed']:.0f} replicates would show that it is {what}, in the test of its own round."
    return Headline(text, OPEN)


def _too_few(num: float) -> str:
    return f"{counted(int(num), 'replicate')} {'are' if num > 1 else 'is'} too few to decide"


def _best(rounds: Table) -> dict[str, Any]:
    return rounds.loc[rounds["mean"].idxmax()].to_dict()


def _of_one_replicate(rounds: Table, rule: Rule) -> str:
    head = f"1 replicate cannot show that a ticket is {rule.word}"
    by_mean = verdicts.sparsest(rounds[rounds["mean"] >= rule.bound])
    if by_mean is None:
        return f"{head}, and here no ticket keeps up with dense. The best has {_in_words(_best(rounds), rule)}."
    within = ""
    if by_mean["mean"] < 0:
        within = f" (within the tolerance of {_tolerance(rule)})"
    return f"{head}. Here, the sparsest ticket that keeps up with dense{within} has {_in_words(by_mean, rule)}."


def _tolerance(rule: Rule) -> str:
    # In percentage points, or in per cent of the dense loss.
    return f"{100 * rule.tolerance:g}{' %' if rule.metric.is_loss else ''}"


def _in_words(line: Mapping[str, Any], rule: Rule) -> str:
    """Give a line of `verdicts.judged` in per cent of the weights, and in percentage points or per cent of the loss."""
    metric = rule.metric
    num = int(line["replicates"])
    has_ends = num > 1 and math.isfinite(line["low"])
    interval = metric.interval(line["low"], line["high"]) if has_ends else ()
    mean, *ends = metric.in_words(line["mean"], *interval)
    text = (
        f"{percent(line['density'])} of the weights, {'with ' if metric.is_loss else ''}{_beside_dense(mean, metric)}"
    )
    if has_ends:
        unit = metric.unit if _is_zero(mean) else ""  # otherwise the mean has it
        ends_text = f"{ends[0]} to {ends[1]}{unit}"
        return f"{text} ({100 * rule.confidence:.4g} % interval {ends_text}, {counted(num, 'replicate')})"
    return f"{text} (in each of {counted(num, 'replicate')})" if num > 1 else text


def _end_in_words(line: Mapping[str, Any], rule: Rule) -> str:
    metric = rule.metric
    word = " loss" if metric.is_loss else " points"
    if math.isinf(line["final_low"]):
        (mean,) = metric.in_words(line["final_mean"])
        return f"{mean}{word}"
    ends = metric.interval(line["final_low"], line["final_high"])
    mean, low, high = metric.in_words(line["final_mean"], *ends)
    return f"{mean}{word} ({low} to {high})"
