"""The checklist of a paper on pruning, held against runs.

After Blalock, Gonzalez Ortiz, Frankle & Guttag 2020, "What is the state of neural network pruning?",
https://arxiv.org/abs/2003.03033, appendix B, in our words. The list leaves out everything that only a text can do.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lottery.report.reported import ReportedRun
from lottery.runs import store, verification
from lottery.settings import GIVEN

LEAVES_OUT = (
    "The list leaves out everything that only the text of a paper can do: comparing with other published methods, "
    "restricting claims to the experiments, citing architectures, linking code."
)

MANY_POINTS = 5  # densities, of the paper's section 6
DECLINE = 0.01  # of accuracy, which counts as a substantial loss
LOSS_RISE = 0.1  # of the dense loss, likewise
MAGNITUDES = ("magnitude", "large_final")  # criteria that prune weights by their size


class State(NamedTuple):
    """Whether runs have something that a paper should have."""

    done: bool
    how: str  # its place on the page or, if it is missing, how to get it


class Item(NamedTuple):
    """A line of the list: something that a paper should have, and its `State`."""

    text: str
    done: bool
    how: str


def checked(runs: Sequence[ReportedRun]) -> list[Item]:
    """Hold the list against runs: a line about results is done if all have it, one about baselines if any has it."""
    items = [_of_all(text, runs, find) for text, find in EACH]
    return items + [Item(text, *find(runs, *names)) for text, find, *names in ANY]


def _of_all(text: str, runs: Sequence[ReportedRun], find: Callable[[ReportedRun], State]) -> Item:
    """Make the line of several runs: where it stands on the page, or what the runs lack that do not have it."""
    states = {run.label: find(run) for run in runs}
    done = all(state.done for state in states.values())
    labels: dict[str, list[str]] = {}
    for label, state in states.items():
        if state.done == done:
            labels.setdefault(state.how, []).append(label)
    (how, alike), *_ = labels.items()
    if len(alike) == len(runs):
        return Item(text, done, how)
    return Item(text, done, "; ".join(f"{', '.join(those)}: {how}" for how, those in labels.items()))


def _architecture(run: ReportedRun) -> State:
    known = run.environment.get("architecture") or {}
    if "name" in known or "keras" in known:
        return State(True, "under Environment; the weights and their shapes under Layers")
    return State(False, "the run does not hold the architecture; only code of your own builds it, so describe it")


def _data(run: ReportedRun) -> State:
    name = run.experiment.data.name
    if name == GIVEN:
        return State(False, "the data were passed in Python: describe them and their preprocessing")
    return State(True, f"{name}, its digest and split, under Protocol and Environment")


def _libraries(run: ReportedRun) -> State:
    known = {"versions", "processor", "num_threads"} <= run.environment.keys()
    return State(known, "versions, processor and threads, under Environment")


def _points(run: ReportedRun) -> State:
    num = run.pruned["round"].nunique()
    return State(num >= MANY_POINTS, f"{num} densities below 1; the paper asks for {MANY_POINTS} or more")


def _extreme(run: ReportedRun) -> State:
    rounds = run.judgement.rounds
    if rounds.empty:
        return State(False, "no pruned network can be compared with the dense network")
    lowest = rounds.loc[rounds["density"].idxmin(), "mean"]
    least, cost = DECLINE, f"costs less than {DECLINE:g} of accuracy"
    if run.metric.is_loss:
        least, cost = LOSS_RISE, f"raises the loss by less than {100 * LOSS_RISE:g} %"
    if lowest <= -least:
        return State(True, f"{run.metric.difference(lowest)} at the smallest density")
    return State(False, f"the smallest density {cost}: prune more rounds (prune.num_rounds)")


def _accuracy(run: ReportedRun) -> State:
    if not run.summary[f"{run.metric.what}_mean"].notna().all():
        return State(False, "the model measures no accuracy")
    if run.metric.is_loss:
        return State(True, f"the {run.metric.name}, under Rounds, with its change")
    return State(True, "under Rounds, with its change")


def _seeds(run: ReportedRun) -> State:
    num = _replicates(run)
    if num < 2:
        return State(False, "not two replicates of every round: run.num_replicates = 3 or more")
    if any(verification.same_start(run.path, number) for number in sorted(set(run.rows["replicate"]))[1:]):
        return State(False, "the replicates start from the same weights, and differ only in the order of batches")
    return State(True, f"{num} replicates, each with its own initialisation and order of batches")


def _spread(run: ReportedRun) -> State:
    if _replicates(run) < 2:
        return State(False, "one replicate of a round has no spread")
    if not run.own[run.metric.early_stop].notna().all():
        return State(False, "the model measures no accuracy")
    return State(True, "mean, sample standard deviation and 95 % t interval, named wherever they are shown")


def _replicates(run: ReportedRun) -> int:
    """Count the replicates of the round that has the fewest."""
    tickets = run.rows[run.rows["branch"] == store.TICKET]
    return int(tickets.groupby("round")["replicate"].nunique().min())


def _speedup(run: ReportedRun) -> State:
    known = bool(run.costs["multiply_adds"].notna().all())
    return State(known, "multiply-adds, under Rounds" if known else "the multiply-adds of some weight are unknown")


def _branch(runs: Sequence[ReportedRun], *names: str) -> State:
    """Look for a control with one of the names."""
    for run, name in itertools.product(runs, names):
        if name in run.controls:
            num = (run.rows["branch"] == name).sum()
            label = f" in {run.label}" if len(runs) > 1 else ""
            return State(True, f"{name}{label}, of {num} of {len(run.pruned)} tickets, under Controls")
    return State(False, f"lottery branch {runs[0].path.name} {names[0]}")


def _magnitude(runs: Sequence[ReportedRun], scope: str) -> State:
    """Look for a run with magnitude pruning in a scope."""
    for run in runs:
        prune = run.experiment.prune
        if prune.criterion in MAGNITUDES and prune.scope == scope and prune.granularity == "weight":
            label = run.label if len(runs) > 1 else "this run itself"
            return State(True, f"{label}: {prune.criterion}, {scope}")
    return State(False, f'report it beside a run with prune.criterion = "magnitude" and prune.scope = "{scope}"')


# Lines that each run must fulfil.
EACH: tuple[tuple[str, Callable[[ReportedRun], State]], ...] = (
    (
        "The method and every hyper-parameter, enough to repeat it",
        lambda run: State(True, "experiment.toml, under Protocol, with every value and default"),
    ),
    ("The architecture, enough to build it again", _architecture),
    ("The data, their split and preprocessing", _data),
    ("Libraries and hardware", _libraries),
    ("Five operating points or more", _points),
    ("Densities so low that accuracy clearly falls", _extreme),
    ("The accuracy at each point, with that of the unpruned network", _accuracy),
    ("Several runs from separate initialisations and seeds", _seeds),
    ("A mean, and error bars with their meaning", _spread),
    (
        "Compression",
        lambda run: State(True, "density and compression, of prunable weights and of all parameters, under Rounds"),
    ),
    ("Theoretical speed-up, from multiply-adds", _speedup),
)

# Baselines: a line for each that some run must be or have, and the names to look for.
ANY: tuple[tuple[Any, ...], ...] = (
    ("Random pruning with the same densities in each layer", _branch, "random_mask", "shuffled_mask"),
    ("Random pruning over the whole network", _branch, "random_mask_global"),
    ("Magnitude pruning, layerwise", _magnitude, "layerwise"),
    ("Magnitude pruning, global", _magnitude, "global"),
)
