"""What a paper on pruning should report, held against runs.

After the checklist of Blalock, Gonzalez Ortiz, Frankle & Guttag 2020, "What is the state of neural network pruning?",
https://arxiv.org/abs/2003.03033, appendix B, in our words. What only a paper's text can do is left out.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from lottery.report.tables import Facts
from lottery.runs import store, verification

LEAVES_OUT = (
    "What only the text of a paper can do is not in the list: comparing with other published methods, restricting "
    "claims to what was tried, citing architectures, linking code."
)


MANY_POINTS = 5  # densities, of the paper's section 6


DECLINE = 0.01  # of accuracy, that counts as a substantial loss


# How a run whose weights are pruned by size is told from others.
MAGNITUDES = ("magnitude", "large_final")


# Whether runs have it, and the words for how, or for what would give it.
Finding = tuple[bool, str]


class Item(NamedTuple):
    """One line of the list.

    Attributes:
        text: What a paper should have.
        done: Whether the runs have it.
        how: Where it is; or, if it is missing, what would give it.
    """

    text: str
    done: bool
    how: str


def checked(runs: Sequence[Facts]) -> list[Item]:
    """Hold the list against the runs of a page.

    Args:
        runs: What `lottery.report.tables.gathered` returns.

    Returns:
        An item for each line; a line about results is done only if each of the runs has it, one about baselines if
        any of them is the baseline.
    """
    items = []
    for text, find, each in ITEMS:
        if each:
            found = [(one.label, *find([one])) for one in runs]
            done = all(one for _, one, _ in found)
            ways: dict[str, list[str]] = {}
            for label, one, way in found:
                if one == done:
                    ways.setdefault(way, []).append(label)
            alike = len(next(iter(ways.values()))) == len(runs)
            how = next(iter(ways)) if alike else "; ".join(f"{', '.join(of)}: {way}" for way, of in ways.items())
        else:
            done, how = find(runs)
        items.append(Item(text, done, how))
    return items


def _protocol(runs: Sequence[Facts]) -> Finding:
    return True, "experiment.toml, under Protocol: every value that was used, defaults written out"


def _architecture(runs: Sequence[Facts]) -> Finding:
    known = runs[0].environment.get("architecture") or {}
    if "name" in known or "keras" in known:
        return True, "under Environment; the weights and their shapes under Layers"
    why = "; only code of your own builds it, so describe it" if "class" in known else ", for the run is an older one"
    return False, f"the run does not hold the architecture{why}"


def _data(runs: Sequence[Facts]) -> Finding:
    settings = runs[0].experiment.data
    if settings.name == "given":
        return False, "the data were passed by the caller: describe them, with what was done to them before"
    return True, f"{settings.name}, its digest and split, under Protocol and Environment"


def _machine(runs: Sequence[Facts]) -> Finding:
    there = {"versions", "processor", "num_threads"} <= runs[0].environment.keys()
    return there, "versions, processor and threads, under Environment"


def _points(runs: Sequence[Facts]) -> Finding:
    pruned = runs[0].rows[(runs[0].rows["branch"] == store.TICKET) & (runs[0].rows["round"] > 0)]
    num = pruned["round"].nunique()
    return num >= MANY_POINTS, f"{num} densities below 1; {MANY_POINTS} or more are asked for"


def _extreme(runs: Sequence[Facts]) -> Finding:
    judged = runs[0].judged
    if judged.empty:
        return False, "there is no accuracy of a pruned network beside the dense one's"
    lowest = judged.loc[judged["density"].idxmin(), "mean"]
    if lowest <= -DECLINE:
        return True, f"{lowest:+.4f} at the smallest density"
    return (
        False,
        f"the smallest density loses less than {DECLINE:g} of accuracy: more rounds (prune.num_rounds) would lose more",
    )


def _accuracy(runs: Sequence[Facts]) -> Finding:
    known = bool(runs[0].summary["accuracy_mean"].notna().all())
    return known, "under Rounds, itself and not only its change" if known else "the model measures no accuracy"


def _seeds(runs: Sequence[Facts]) -> Finding:
    num = _replicates(runs[0])
    if num < 2:
        return False, "not two replicates of every round: run.num_replicates = 3 or more"
    if any(verification.same_start(runs[0].path, number) for number in sorted(set(runs[0].rows["replicate"]))[1:]):
        return False, "the replicates start from the same weights, and differ in the order of batches alone"
    return True, f"{num} replicates, each with its own initialisation and order of batches"


def _spread(runs: Sequence[Facts]) -> Finding:
    if _replicates(runs[0]) < 2:
        return False, "one replicate of a round has no spread"
    known = bool(runs[0].own["early_stop_test_accuracy"].notna().all())
    how = "mean, sample standard deviation and 95 % t interval, each said where it is shown"
    return known, how if known else "the model measures no accuracy"


def _replicates(one: Facts) -> int:
    """How many replicates there are of every round."""
    tickets = one.rows[one.rows["branch"] == store.TICKET]
    return int(tickets.groupby("round")["replicate"].nunique().min())


def _compression(runs: Sequence[Facts]) -> Finding:
    return True, "density and compression (its inverse), over the prunable weights, under Rounds"


def _speedup(runs: Sequence[Facts]) -> Finding:
    known = bool(runs[0].costs["multiply_adds"].notna().all())
    return known, "multiply-adds, under Rounds" if known else "the run does not say how often each weight is used"


def _random_layerwise(runs: Sequence[Facts]) -> Finding:
    return _branch(runs, "random_mask", "shuffled_mask")


def _random_global(runs: Sequence[Facts]) -> Finding:
    return _branch(runs, "random_mask_global")


def _branch(runs: Sequence[Facts], *names: str) -> Finding:
    for one in runs:
        for name in names:
            if name in one.controls:
                found = one.rows[one.rows["branch"] == name]
                pruned = one.rows[(one.rows["branch"] == store.TICKET) & (one.rows["round"] > 0)]
                of = f" of {one.label}" if len(runs) > 1 else ""
                return True, f"{name}{of}, of {len(found)} of {len(pruned)} tickets, under Controls"
    return False, f"lottery branch {runs[0].path.name} {names[0]}"


def _magnitude(scope: str) -> Callable[[Sequence[Facts]], Finding]:
    def find(runs: Sequence[Facts]) -> Finding:
        for one in runs:
            settings = one.experiment.prune
            if settings.criterion in MAGNITUDES and settings.scope == scope:
                return True, f"{one.label if len(runs) > 1 else 'this run itself'}: {settings.criterion}, {scope}"
        return False, f'a run with prune.criterion = "magnitude" and prune.scope = "{scope}", named beside this one'

    return find


# What a paper should have, how to find it, and whether each run must have it.
ITEMS: tuple[tuple[str, Callable[[Sequence[Facts]], Finding], bool], ...] = (
    ("The method and every hyper-parameter, enough to repeat it", _protocol, True),
    ("The architecture, enough to build it again", _architecture, True),
    ("The data, their split and what was done to them", _data, True),
    ("Libraries and hardware", _machine, True),
    ("Five operating points or more", _points, True),
    ("Densities so low that accuracy clearly falls", _extreme, True),
    ("The accuracy at each point, the unpruned network's beside it", _accuracy, True),
    ("Several runs from separate initialisations and seeds", _seeds, True),
    ("A mean, and error bars of which it is said what they are", _spread, True),
    ("Compression", _compression, True),
    ("Theoretical speed-up, from multiply-adds", _speedup, True),
    ("Random pruning with the same densities in each layer", _random_layerwise, False),
    ("Random pruning over the whole network", _random_global, False),
    ("Magnitude pruning, layerwise", _magnitude("layerwise"), False),
    ("Magnitude pruning, global", _magnitude("global"), False),
)
