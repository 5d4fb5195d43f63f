"""The checklist of a paper on pruning, held against runs.

After Blalock, Gonzalez Ortiz, Frankle & Guttag 2020, "What is the state of neural network pruning?",
https://arxiv.org/abs/2003.03033, appendix B, in our words. The list leaves out everything that only a text can do.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from lottery.report.tables import ReportedRun
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


class Item(NamedTuple):
    """A line of the list."""

    text: str  # about something that a paper should have
    done: bool
    how: str  # its place on the page or, if it is missing, how to get it


def checked(runs: Sequence[ReportedRun]) -> list[Item]:
    """Hold the list against runs: a line about results is done if all have it, one about baselines if any has it."""
    items = []
    for text, find in EACH:
        found = [(one.label, *find(one)) for one in runs]
        done = all(one_done for _, one_done, _ in found)
        labels: dict[str, list[str]] = {}
        for label, one_done, how in found:
            if one_done == done:
                labels.setdefault(how, []).append(label)
        alike = len(next(iter(labels.values()))) == len(runs)
        how = next(iter(labels)) if alike else "; ".join(f"{', '.join(of)}: {how}" for how, of in labels.items())
        items.append(Item(text, done, how))
    return items + [Item(text, *find(runs, *names)) for text, find, *names in ANY]


def _architecture(one: ReportedRun) -> tuple[bool, str]:
    known = one.environment.get("architecture") or {}
    if "name" in known or "keras" in known:
        return True, "under Environment; the weights and their shapes under Layers"
    return False, "the run does not hold the architecture; only code of your own builds it, so describe it"


def _data(one: ReportedRun) -> tuple[bool, str]:
    name = one.experiment.data.name
    if name == GIVEN:
        return False, "the data were passed in Python: describe them and their preprocessing"
    return True, f"{name}, its digest and split, under Protocol and Environment"


def _points(one: ReportedRun) -> tuple[bool, str]:
    pruned = one.rows[(one.rows["branch"] == store.TICKET) & (one.rows["round"] > 0)]
    num = pruned["round"].nunique()
    return num >= MANY_POINTS, f"{num} densities below 1; the paper asks for {MANY_POINTS} or more"


def _extreme(one: ReportedRun) -> tuple[bool, str]:
    if one.judged.empty:
        return False, "no pruned network can be compared with the dense network"
    lowest = one.judged.loc[one.judged["density"].idxmin(), "mean"]
    if one.measure.is_loss:
        least, cost = LOSS_RISE, f"raises the loss by less than {100 * LOSS_RISE:g} %"
    else:
        least, cost = DECLINE, f"costs less than {DECLINE:g} of accuracy"
    if lowest <= -least:
        return True, f"{one.measure.difference(lowest)} at the smallest density"
    return False, f"the smallest density {cost}: prune more rounds (prune.num_rounds)"


def _accuracy(one: ReportedRun) -> tuple[bool, str]:
    known = bool(one.summary[f"{one.measure.what}_mean"].notna().all())
    how = (
        f"the {one.measure.name}, under Rounds, with its change"
        if one.measure.is_loss
        else "under Rounds, with its change"
    )
    return known, how if known else "the model measures no accuracy"


def _seeds(one: ReportedRun) -> tuple[bool, str]:
    num = _replicates(one)
    if num < 2:
        return False, "not two replicates of every round: run.num_replicates = 3 or more"
    if any(verification.same_start(one.path, number) for number in sorted(set(one.rows["replicate"]))[1:]):
        return False, "the replicates start from the same weights, and differ only in the order of batches"
    return True, f"{num} replicates, each with its own initialisation and order of batches"


def _spread(one: ReportedRun) -> tuple[bool, str]:
    if _replicates(one) < 2:
        return False, "one replicate of a round has no spread"
    known = bool(one.own[one.measure.early_stop].notna().all())
    how = "mean, sample standard deviation and 95 % t interval, named wherever they are shown"
    return known, how if known else "the model measures no accuracy"


def _replicates(one: ReportedRun) -> int:
    """Count the replicates of the round that has the fewest."""
    tickets = one.rows[one.rows["branch"] == store.TICKET]
    return int(tickets.groupby("round")["replicate"].nunique().min())


def _speedup(one: ReportedRun) -> tuple[bool, str]:
    known = bool(one.costs["multiply_adds"].notna().all())
    return known, "multiply-adds, under Rounds" if known else "the multiply-adds of some weight are unknown"


def _branch(runs: Sequence[ReportedRun], *names: str) -> tuple[bool, str]:
    """Look for a control with one of the names."""
    for one, name in itertools.product(runs, names):
        if name in one.controls:
            num = (one.rows["branch"] == name).sum()
            of = ((one.rows["branch"] == store.TICKET) & (one.rows["round"] > 0)).sum()
            run = f" in {one.label}" if len(runs) > 1 else ""
            return True, f"{name}{run}, of {num} of {of} tickets, under Controls"
    return False, f"lottery branch {runs[0].path.name} {names[0]}"


def _magnitude(runs: Sequence[ReportedRun], scope: str) -> tuple[bool, str]:
    """Look for a run with magnitude pruning in a scope."""
    for one in runs:
        settings = one.experiment.prune
        if settings.criterion in MAGNITUDES and settings.scope == scope and settings.granularity == "weight":
            return True, f"{one.label if len(runs) > 1 else 'this run itself'}: {settings.criterion}, {scope}"
    return False, f'report it beside a run with prune.criterion = "magnitude" and prune.scope = "{scope}"'


# Lines that each run must fulfil.
EACH: tuple[tuple[str, Callable[[ReportedRun], tuple[bool, str]]], ...] = (
    (
        "The method and every hyper-parameter, enough to repeat it",
        lambda one: (True, "experiment.toml, under Protocol, with every value and default"),
    ),
    ("The architecture, enough to build it again", _architecture),
    ("The data, their split and preprocessing", _data),
    (
        "Libraries and hardware",
        lambda one: (
            {"versions", "processor", "num_threads"} <= one.environment.keys(),
            "versions, processor and threads, under Environment",
        ),
    ),
    ("Five operating points or more", _points),
    ("Densities so low that accuracy clearly falls", _extreme),
    ("The accuracy at each point, with that of the unpruned network", _accuracy),
    ("Several runs from separate initialisations and seeds", _seeds),
    ("A mean, and error bars with their meaning", _spread),
    (
        "Compression",
        lambda _: (True, "density and compression, of prunable weights and of all parameters, under Rounds"),
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
