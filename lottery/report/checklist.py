"""The checklist of a paper on pruning, held against runs.

After Blalock, Gonzalez Ortiz, Frankle & Guttag 2020, "What is the state of neural network pruning?",
https://arxiv.org/abs/2003.03033, appendix B, in our words. The list leaves out everything that only a text can do.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lottery.formatting import listed
from lottery.pruning import branches
from lottery.report.reported import ReportedRun
from lottery.runs import verification
from lottery.settings import COMPILED, GIVEN
from lottery.statistics.metric import of_tickets, transferred

MANY_POINTS = 5  # densities, of the paper's section 6
DECLINE = 0.01  # of accuracy, which counts as a substantial loss
LOSS_RISE = 0.1  # of the dense loss, likewise
MAGNITUDES = ("magnitude", "large_final")  # criteria that prune weights by their size


class Item(NamedTuple):
    """A line of the list: something that a paper should have, and whether runs have it."""

    text: str
    done: bool
    how: str  # its place on the page or, if it is missing, how to get it


def checked(runs: Sequence[ReportedRun]) -> list[Item]:
    """Hold the list against runs: a line about results is done if all have it, one about baselines if any has it."""
    labels = [run.label for run in runs]
    of_each = zip(*([*_described(run), *_measured(run)] for run in runs), strict=True)
    return [*(_of_all(labels, items) for items in of_each), *_baselines(runs)]


def _of_all(labels: Sequence[str], items: Sequence[Item]) -> Item:
    """Make the line of several runs: where it stands on the page, or what the runs lack that do not have it."""
    done = all(item.done for item in items)
    alike: dict[str, list[str]] = {}
    for label, item in zip(labels, items, strict=True):
        if item.done == done:
            alike.setdefault(item.how, []).append(label)
    how, first = next(iter(alike.items()))
    if len(first) < len(labels):
        how = "; ".join(f"{', '.join(those)}: {how}" for how, those in alike.items())
    return Item(items[0].text, done, how)


def _described(run: ReportedRun) -> Iterator[Item]:
    """Check what it takes to repeat a run."""
    text = "The method and every hyper-parameter, enough to repeat it"
    passed = _passed(run)
    how = "experiment.toml, under Protocol, with every value and default"
    if passed:
        how = f"no file holds {listed(passed)}: describe it beside experiment.toml, under Protocol"
    yield Item(text, not passed, how)
    known = run.environment.get("architecture") or {}
    how = "the run does not hold the architecture; only code of your own builds it, so describe it"
    is_known = "name" in known or "keras" in known
    if is_known:
        how = "under Environment; the weights and their shapes under Layers"
    yield Item("The architecture, enough to build it again", is_known, how)
    name = run.experiment.data.name
    how = "the data were passed in Python: describe them and their preprocessing"
    if name != GIVEN:
        how = f"{name}, its digest and split, under Protocol and Environment"
    yield Item("The data, their split and preprocessing", name != GIVEN, how)
    are_known = {"versions", "processor", "num_threads"} <= run.environment.keys()
    yield Item("Libraries and hardware", are_known, "versions, processor and threads, under Environment")


def _passed(run: ReportedRun) -> list[str]:
    """List the parts of the method that only Python code holds."""
    experiment = run.experiment
    parts = {
        "what the model was compiled with (optimizer, loss, metrics)": experiment.train.optimizer == COMPILED,
        "the criterion": experiment.prune.criterion == GIVEN,
        "the enforcement": experiment.run.enforcement == GIVEN,
    }
    found = [part for part, is_passed in parts.items() if is_passed]
    return found + [f"the branch {name}" for name in run.judgement.controls if branches.find(name) is None]


def _measured(run: ReportedRun) -> Iterator[Item]:
    """Check which results a run has, and how well they are measured."""
    metric = run.judgement.metric
    num_points = run.pruned["round"].nunique()
    how = f"{num_points} densities below 1; the paper asks for {MANY_POINTS} or more"
    yield Item("Five operating points or more", num_points >= MANY_POINTS, how)
    yield Item("Densities so low that accuracy clearly falls", *_extreme(run))
    has_value = bool(run.summary[f"{metric.what}_mean"].notna().all())
    how = "under Rounds, with its change" if has_value else "the model measures no accuracy"
    if has_value and metric.is_loss:
        how = f"the {metric.name}, {how}"
    yield Item("The accuracy at each point, and the accuracy of the unpruned network", has_value, how)
    # Of the round that has the fewest.
    num = int(of_tickets(run.rows).groupby("round")["replicate"].nunique().min())
    start_alike = bool(verification.same_starts(run.path, run.experiment))
    how = f"{num} replicates, each with its own initialisation and order of batches"
    if num < 2:
        is_planned = run.experiment.run.num_replicates > 1
        advice = "run it again to train the others" if is_planned else "set run.num_replicates to 3 or more"
        how = f"a round has fewer than two replicates: {advice}"
    elif start_alike:
        how = "the replicates start from the same weights, and differ only in the order of batches"
    yield Item("Several runs from separate initialisations and seeds", num >= 2 and not start_alike, how)
    all_known = bool(run.rows.loc[~transferred(run.rows), metric.early_stop].notna().all())
    how = "mean, sample standard deviation and 95 % t interval, named wherever they are shown"
    if num < 2:
        how = "one replicate of a round has no spread"
    elif not all_known:
        how = "the model measures no accuracy"
    yield Item("A mean, and error bars with their meaning", num >= 2 and all_known, how)
    how = "density and compression, of prunable weights and of all parameters, under Rounds"
    yield Item("Compression", True, how)
    is_known = bool(run.costs["multiply_adds"].notna().all())
    how = "multiply-adds, under Rounds" if is_known else "the multiply-adds of some weight are unknown"
    yield Item("Theoretical speed-up, from multiply-adds", is_known, how)


def _extreme(run: ReportedRun) -> tuple[bool, str]:
    """Check if the smallest density costs a substantial part of the accuracy."""
    rounds, metric = run.judgement.rounds, run.judgement.metric
    if rounds.empty:
        return False, "no pruned network can be compared with the dense network"
    lowest = rounds.loc[rounds["density"].idxmin(), "mean"]
    least, cost = DECLINE, f"costs less than {100 * DECLINE:g} points of accuracy"
    if metric.is_loss:
        least, cost = LOSS_RISE, f"raises the loss by less than {100 * LOSS_RISE:g} %"
    if lowest <= -least:
        return True, f"{metric.difference(lowest)}{metric.unit} at the smallest density"
    return False, f"the smallest density {cost}: prune more rounds (prune.num_rounds)"


def _baselines(runs: Sequence[ReportedRun]) -> Iterator[Item]:
    """Check which baselines some run is or has."""
    # Both keep as many entries of each weight as the ticket.
    layerwise = _control(runs, "random_mask", "shuffled_mask")
    yield Item("Random pruning with the same densities in each layer", *layerwise)
    yield Item("Random pruning over the whole network", *_control(runs, "random_mask_global"))
    yield Item("Magnitude pruning, layerwise", *_magnitude(runs, "layerwise"))
    yield Item("Magnitude pruning, global", *_magnitude(runs, "global"))


def _control(runs: Sequence[ReportedRun], *names: str) -> tuple[bool, str]:
    """Look for a control with one of the names."""
    for run, name in itertools.product(runs, names):
        if name in run.judgement.controls:
            num = (run.rows["branch"] == name).sum()
            label = f" in {run.label}" if len(runs) > 1 else ""
            return True, f"{name}{label}, of {num} of {len(run.pruned)} tickets, under Controls"
    return False, f"lottery branch {runs[0].path.name} {names[0]}"


def _magnitude(runs: Sequence[ReportedRun], scope: str) -> tuple[bool, str]:
    """Look for a run with magnitude pruning in a scope."""
    for run in runs:
        prune = run.experiment.prune
        if prune.criterion in MAGNITUDES and prune.scope == scope and prune.granularity == "weight":
            label = run.label if len(runs) > 1 else "this run itself"
            return True, f"{label}: {prune.criterion}, {scope}"
    return False, f'report it beside a run with prune.criterion = "magnitude" and prune.scope = "{scope}"'
