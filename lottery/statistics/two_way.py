"""Intervals for ticket − dense over seeds *and* test examples, from the predictions that a run stores.

An interval over replicates alone is for the test set at hand: with other test examples, the mean may lie elsewhere. The
interval here allows for both.
"""

import itertools
import math
import statistics

import numpy as np

from lottery.errors import LotteryError
from lottery.formatting import ranges
from lottery.pruning import branches
from lottery.runs import store
from lottery.runs.stored import StoredRound, stored_rounds
from lottery.statistics import intervals
from lottery.statistics.metric import ACCURACY
from lottery.statistics.verdicts import MATCHING, Rule
from lottery.text_tables import Table, frame

COLUMNS = (
    "measure", "round", "density", "against", "replicates", "examples", "mean", "low", "high", "verdict", "two_way_low",
    "two_way_high", "two_way_verdict",
)  # fmt: skip

# By measure, the array of `StoredRound.predictions` that it is the accuracy of.
PREDICTIONS = {ACCURACY.early_stop: "early_stop", ACCURACY.final: "final"}
WHEN = {ACCURACY.early_stop: "At the early-stop step", ACCURACY.final: "At the end of training"}


def error_of_examples(differences: np.ndarray) -> float:
    """Compute the part of a mean's standard error that is due to its test examples: a two-way analysis of variance.

    The model of an entry is mean + seed + example + rest. The part of the seeds, s² / R, has the rest in it, so the
    part of the examples is without: (mean square of examples − mean square of the rest) / (R E), or 0 if it is below.

    Args:
        differences: A row for each replicate, two or more, and a column for each test example, two or more: 1 if the
            ticket alone is right, -1 if the other network alone is, else 0.
    """
    num, examples = differences.shape
    mean = differences.mean()
    seeds = examples * np.sum((differences.mean(axis=1) - mean) ** 2)
    every = num * np.sum((differences.mean(axis=0) - mean) ** 2)
    rest = np.sum((differences - mean) ** 2) - seeds - every
    of_rest = rest / ((num - 1) * (examples - 1))
    return math.sqrt(max(0.0, every / (examples - 1) - of_rest) / (num * examples))


def interval(differences: np.ndarray, confidence: float = 0.95) -> tuple[float, float, float]:
    """Compute the mean, and the ends of an interval that holds the mean over all seeds and test examples.

    Half its width is √((t a)² + (z b)²), of the standard error over seeds a and `error_of_examples` b: the t interval
    over seeds and the normal interval over test examples, as errors that are independent add up. In the simulation of
    ``tests/scripts/simulate_two_way.py`` it holds the true mean as often as it says. A paired bootstrap of both does
    not: that is too wide where seeds hardly matter, and too narrow where they matter most.

    Args:
        differences: As for `error_of_examples`; one row gives infinite ends.
        confidence: In (0, 1).
    """
    from scipy import special

    differences = np.asarray(differences, float)
    # Infinite for two equal means, too, which two replicates on few examples often have.
    mean, low, high = intervals.mean_interval(differences.mean(axis=1).tolist(), confidence)
    if math.isinf(low) or differences.shape[1] < 2:
        return mean, -math.inf, math.inf
    half = math.hypot((high - low) / 2, error_of_examples(differences) * float(special.ndtri((1 + confidence) / 2)))
    return mean, mean - half, mean + half


def table(run: store.Folder, tolerance: float = ACCURACY.tolerance, confidence: float = 0.95) -> Table:
    """Compare the tickets of a run with dense and with each control, with intervals over seeds and test examples.

    Args:
        run: Its folder.
        tolerance: Accuracy that a matching ticket may lose, in [0, 1].
        confidence: Of the intervals, in (0, 1).

    Returns:
        A data frame with the columns `COLUMNS`. For each measure of `PREDICTIONS` it has a row for each pruned round
        against dense, and then against each control. ``low`` and ``high`` are over seeds, for this test set;
        ``two_way_low`` and ``two_way_high`` over seeds and test examples. The verdicts are by the one and the other:
        ``matching`` where the whole interval is above minus the tolerance, ``not matching`` where it is below, else
        ``?``, and empty against a control. They are of accuracy alone, and do not test the early-stop step.

    Raises:
        LotteryError: A network has no predictions, or was tested on other examples.
    """
    networks = _networks(run)
    rule = Rule(tolerance=tolerance)
    rounds = sorted(round for branch, round in networks if branch == store.TICKET and round)
    others = dict.fromkeys(branch for branch, _ in networks if branch != store.TICKET)
    lines = []
    for (measure, when), against, round in itertools.product(PREDICTIONS.items(), ["dense", *others], rounds):
        tickets = networks[store.TICKET, round]
        rivals = networks.get((store.TICKET, 0) if against == "dense" else (against, round), {})
        replicates = [number for number in tickets if number in rivals]
        if not replicates:
            continue
        differences = np.stack([_right(tickets[number], when) - _right(rivals[number], when) for number in replicates])
        mean, *seeds = intervals.mean_interval(differences.mean(axis=1).tolist(), confidence)
        _, *both = interval(differences, confidence)
        verdict = two_way_verdict = ""
        if against == "dense":
            verdict, two_way_verdict = rule.verdict(*seeds), rule.verdict(*both)
        # Where whole units are pruned, each replicate has a density of its own.
        density = statistics.fmean(tickets[number].record["density"] for number in replicates)
        place = measure, round, density, against
        lines.append((*place, *differences.shape, mean, *seeds, verdict, *both, two_way_verdict))
    return frame(lines, COLUMNS)


def sentences(found: Table) -> list[str]:
    """Say for each measure of `table` which rounds are matching for other test examples too."""
    lines = []
    for measure, part in found[found["against"] == "dense"].groupby("measure", sort=False):
        here = set(part[part["verdict"] == MATCHING]["round"])
        everywhere = set(part[part["two_way_verdict"] == MATCHING]["round"])
        shown = f"{MATCHING} in {ranges(everywhere, 'round')}" if everywhere else f"no round is shown to be {MATCHING}"
        alone = f"; for this test set alone also {ranges(here - everywhere, 'round')}" if here - everywhere else ""
        lines.append(f"{WHEN[measure]}, for other seeds and other test examples: {shown}{alone}.")
    return lines


def _networks(run: store.Folder) -> dict[tuple[str, int], dict[int, StoredRound]]:
    """Gather the networks by branch and round, and then by replicate; not transfers, which have other test data."""
    found: dict[tuple[str, int], dict[int, StoredRound]] = {}
    labels = None
    for stored in stored_rounds(run):
        known = branches.find(stored.branch)
        if known and known.other_data:
            continue
        own = stored.predictions["label"]
        # Right and wrong can only be paired if all networks were tested on the same examples.
        if labels is not None and not np.array_equal(labels, own):
            raise LotteryError(
                f"{str(stored.folder)!r} was tested on other examples than the networks before it, so they cannot be "
                "compared example by example."
            )
        labels = own
        found.setdefault((stored.branch, stored.round), {})[stored.replicate] = stored
    return found


def _right(stored: StoredRound, when: str) -> np.ndarray:
    return (stored.predictions[when] == stored.predictions["label"]).astype(float)
