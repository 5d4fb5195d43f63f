"""What a source states of an experiment, a ``[[claim]]`` table of its file, and how a run is judged by it."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from lottery.formatting import counted, ends, formatted, listed, ranges
from lottery.pruning.schedules import geometric
from lottery.settings import Section
from lottery.statistics import intervals, verdicts
from lottery.statistics.metric import ACCURACY, TICKET, of_tickets
from lottery.statistics.verdicts import LAST_PLACE
from lottery.text_tables import Table

PASS, FAIL, CANNOT_TELL, OPEN = "pass", "fail", "cannot tell", "open"
MISSING = "not in this run"
STEP = "early_stop_step"
# More than the rounding of an accuracy in single precision, and no more than one of a million examples.
SOME = 1e-6

_CONFIDENCE = 0.95
_PRINTED = 0.995  # densities are printed with three digits
_FIFTH = 0.79  # a round that prunes a fifth leaves more than this


class Claim(Section, strict=False):
    """What a source states of an experiment: its settings, or a number to look for in a run."""

    what: Literal["settings", "survivors", "accuracy", "difference", "best difference", "early stop"]
    source: Literal["paper", "authors' code", "third party", "our own bound"]
    reference: str
    link: str
    # Of settings: keys whose values are those of the file, values that are others, and what the source does not say.
    settings: tuple[str, ...] = ()
    others: dict[str, Any] = Field(default_factory=dict)
    leaves_open: tuple[str, ...] = ()
    # Of a number: its name, what is stated there, and where in a run it is looked for.
    text: str = ""
    stated: str = ""
    round: int | None = None
    rounds: tuple[int, int] = (0, 0)  # the first and the last, if it is about several
    densities: tuple[float, float] | None = None  # the smallest and the largest, in place of rounds
    at: Literal["early_stop", "end"] = "early_stop"
    of: str = TICKET  # of − than: a branch, or "dense"
    than: str = "dense"
    # What it must be. Of an early stop, that of `than` over that of the ticket.
    at_least: float = 0.0  # 0 asks for more than 0, by any amount
    value: float = 0.0
    within: float = 0.0
    layers: tuple[tuple[int, float], ...] = ()  # entries of each group that is ranked together, and its rate
    held: int = 0  # entries that are never pruned

    @property
    def bound(self) -> str:
        """What the run is asked for, which is ours."""
        if self.what == "survivors":
            return "exactly"
        if self.what == "accuracy":
            return f"± {self.within:g}"
        if not self.at_least:
            return "> 0"
        return f"≥ {self.at_least:.3g} times" if self.what == "early stop" else f"≥ {formatted(self.at_least, '+g')}"

    @property
    def numbers(self) -> list[int]:
        """The rounds that it is about."""
        first, last = self.rounds if self.round is None else (self.round, self.round)
        return list(range(first, last + 1))

    @property
    def column(self) -> str:
        """The accuracies that it is about."""
        return ACCURACY.final if self.at == "end" else ACCURACY.early_stop

    @property
    def least(self) -> float:
        """The mean difference that is asked for; "above" is by any amount."""
        return self.at_least or SOME

    def has(self, density: Any) -> Any:
        """Mark the densities that it is about, in a column of them."""
        low, high = self.densities or (0.0, 1.0)
        return density.between(low * _PRINTED, high / _PRINTED)


class Reading(NamedTuple):
    """What a run shows of a claim, in words, and the verdict."""

    text: str
    verdict: str


class Mean(NamedTuple):
    """A mean over replicates with its interval."""

    num: int  # of replicates
    mean: float
    low: float
    high: float

    def text(self, form: str = "+.4f", unit: str = "") -> str:
        """Write the mean with its interval, or with the number of replicates where that is infinite."""
        between = ends(self.low, self.high, form) if math.isfinite(self.low) else counted(self.num, "replicate")
        return f"{formatted(self.mean, form)}{unit} ({between})"


def ladder(layers: Sequence[tuple[int, float]], held: int, num_rounds: int) -> list[int]:
    """Count the weights left after each round, from size and rate of each group ranked together; `held` always stay."""
    counts = [geometric(rate).survivors(size, num_rounds) for size, rate in layers]
    return [sum(kept) + held for kept in zip(*counts, strict=True)]


def survivors(rows: Table, claim: Claim) -> Reading:
    """Check the survivors of all rounds, at least those of the claim; see `ladder`."""
    kept = of_tickets(rows).groupby("round")["num_kept"].unique()
    expected = ladder(claim.layers, claim.held, max([*claim.numbers, *kept.index]))
    for number, values in kept.items():
        if sorted(values) != [expected[number]]:
            found = listed(f"{int(num):,}" for num in sorted(values))
            return Reading(f"round {number}: {found}, not {expected[number]:,}", FAIL)
    absent = [number for number in claim.numbers if number not in kept]
    if absent:
        return _missing(TICKET, absent)
    return Reading(f"{expected[0]:,} to {expected[max(kept.index)]:,}, all equal", PASS)


def accuracy(rows: Table, claim: Claim) -> Reading:
    """Check that the mean accuracy of tickets in a round is near a number."""
    values = _of(rows, TICKET, claim.numbers[0])[claim.column].dropna().tolist()
    if not values:
        return _missing(TICKET, claim.numbers)
    found = _mean(values)
    low, high = intervals.of_accuracy(found.low, found.high)
    verdict = _judged(low, high, claim.value - claim.within, claim.value + claim.within)
    return Reading(found._replace(low=low, high=high).text(".4f"), verdict)


def difference(rows: Table, claim: Claim) -> Reading:
    """Check that the mean of ticket − dense, ticket − control or dense − control is at least so much in each round."""
    for branch in (claim.of, claim.than):
        if branch not in {"dense", *rows["branch"]}:
            return _missing(branch, claim.numbers)
    pairs = verdicts.paired(rows, claim.column, claim.than)
    if claim.of == "dense":
        pairs = pairs - verdicts.paired(rows, claim.column)
    if claim.densities:
        return _between(pairs, rows, claim)
    return in_each(pairs, claim.numbers, claim.least, TICKET if claim.than == "dense" else claim.than)


def best_difference(rows: Table, claim: Claim) -> Reading:
    """Check that the mean of ticket − dense is at least so much in some round, of all of them together."""
    pairs = verdicts.paired(rows, claim.column)
    least = claim.at_least - LAST_PLACE
    found, together = _summarised(pairs, list(pairs))
    # The best of many rounds may be good by chance, so that a round passes takes the wider intervals.
    passed = any(mean.low >= least for mean in together.values())
    absent = [number for number in claim.numbers if number not in found]
    if not passed and (absent or not found):
        return _missing(TICKET, absent)
    number = max(found, key=lambda number: found[number].mean)
    verdict = FAIL if all(mean.high < least for mean in found.values()) else CANNOT_TELL
    return Reading(f"{found[number].text()} in round {number}, the highest", PASS if passed else verdict)


def early_stop(rows: Table, claim: Claim) -> Reading:
    """Check that the mean early-stop step of dense, or of a control, is at least a multiple of that of the ticket.

    Of densities, check that the ticket's is before that of dense.
    """
    if claim.densities:
        tickets = of_tickets(rows)
        found = _between(-verdicts.paired(rows, STEP), rows, claim, of_steps=True)
        return _unless_censored(found, tickets[tickets["round"] == 0], tickets[claim.has(tickets["density"])])
    (number,) = claim.numbers
    branch, round = (TICKET, 0) if claim.than == "dense" else (claim.than, number)
    others, tickets = _of(rows, branch, round), _of(rows, TICKET, number)
    both = others.merge(tickets, on="replicate", suffixes=("_other", "_ticket"))
    if both.empty:
        return _missing(branch, [number])
    other, ticket = both[f"{STEP}_other"].to_numpy(float), both[f"{STEP}_ticket"].to_numpy(float)
    # A ratio of means is at least `at_least` where other − it x ticket is at least 0: the interval of Fieller 1954.
    _, low, high = intervals.mean_interval((other - claim.at_least * ticket).tolist(), _CONFIDENCE)
    # A ticket whose loss is lowest before training has step 0.
    ratio = other.mean() / max(ticket.mean(), 1)
    known = ends(*fieller(other, ticket), ".2f") if math.isfinite(low) else counted(len(both), "replicate")
    text = f"{ratio:.2f} times ({known}; {ticket.mean():,.0f} and {other.mean():,.0f} steps)"
    return _unless_censored(Reading(text, _judged(low, high, 0)), others, tickets)


# By what a claim is about.
READINGS: dict[str, Callable[[Table, Claim], Reading]] = {
    "survivors": survivors,
    "accuracy": accuracy,
    "difference": difference,
    "best difference": best_difference,
    "early stop": early_stop,
}


def fieller(other: Any, ticket: Any) -> tuple[float, float]:
    """Compute the interval of the ratio of two means, paired by replicate; infinite where it has no ends."""
    from scipy import special

    num = len(other)
    share = float(special.stdtrit(num - 1, (1 + _CONFIDENCE) / 2)) ** 2 / num
    spread = np.cov(other, ticket)
    # All b for which the mean of other − b x ticket is within the t interval of 0: a quadratic in b.
    a = ticket.mean() ** 2 - share * spread[1, 1]
    b = other.mean() * ticket.mean() - share * spread[0, 1]
    c = other.mean() ** 2 - share * spread[0, 0]
    # The mean of the ticket is not told from 0, so its interval rules out no ratio.
    if a <= 0:
        return -math.inf, math.inf
    root = math.sqrt(max(b * b - a * c, 0.0))
    return (b - root) / a, (b + root) / a


def in_each(
    pairs: Table, rounds: Sequence[int], least: float, branch: str, absent: Sequence[Any] = (), of_steps: bool = False
) -> Reading:
    """Check that the mean of the differences of `verdicts.paired` is at least so much in each round.

    Where a round of the branch is missing, or anything else that `absent` names in words, it is open unless it fails.
    With `of_steps` the differences are of steps, and otherwise of accuracies.
    """
    # All rounds must pass, so each is tested at 95 %. That any of them fails is a claim about all of them together.
    found, together = _summarised(pairs, rounds)
    absent = [*absent, *(number for number in rounds if number not in found)]
    failed = [number for number, mean in together.items() if mean.high < least - LAST_PLACE]
    if not failed and (absent or not found):
        return _missing(branch, absent or rounds)
    lowest = min(failed or found, key=lambda number: (found[number].low, found[number].mean))
    text = found[lowest].text("+,.0f", " steps") if of_steps else found[lowest].text()
    if len(found) > 1:
        text += f" in round {lowest}, the lowest"
    passed = all(mean.low >= least - LAST_PLACE for mean in found.values())
    verdict = PASS if passed else CANNOT_TELL
    return Reading(text, FAIL if failed else verdict)


def _between(pairs: Table, rows: Table, claim: Claim, of_steps: bool = False) -> Reading:
    """Check paired differences at all densities between two.

    It is open until the run has rounds within a fifth of both, and where one more round would be between them.
    """
    assert claim.densities is not None
    low, high = claim.densities
    tickets = of_tickets(rows)
    density = tickets[tickets["round"] > 0].groupby("round")["density"].mean()
    inside = density[claim.has(density)]
    absent = []
    if inside.empty or inside.max() < high * _FIFTH:
        absent = [f"a ticket near density {high:g}"]
    elif not (density < low / _FIFTH).any():
        absent = [f"a ticket near density {low:g}"]
    found = in_each(pairs, list(inside.index), claim.least, TICKET, absent, of_steps)
    if found.verdict == OPEN:
        return found
    return found._replace(text=f"{found.text}, at densities {inside.max():.3g} to {inside.min():.3g}")


def _summarised(pairs: Table, rounds: Iterable[int]) -> tuple[dict[int, Mean], dict[int, Mean]]:
    """Average the pairs of each round that has any, with its own interval; and by Bonferroni, with one for all."""
    values = {number: pairs[number].dropna().tolist() for number in rounds if number in pairs}
    values = {number: known for number, known in values.items() if known}
    error = (1 - _CONFIDENCE) / max(len(values), 1)
    found = {number: _mean(known) for number, known in values.items()}
    return found, {number: _mean(known, 1 - error) for number, known in values.items()}


def _mean(values: Sequence[float], confidence: float = _CONFIDENCE) -> Mean:
    return Mean(len(values), *intervals.mean_interval(values, confidence))


def _judged(low: float, high: float, least: float, most: float = math.inf) -> str:
    if low >= least - LAST_PLACE and high <= most + LAST_PLACE:
        return PASS
    return FAIL if high < least - LAST_PLACE or low > most + LAST_PLACE else CANNOT_TELL


def _unless_censored(found: Reading, other: Table, ticket: Table) -> Reading:
    # Longer training could turn a verdict on early-stop steps, of which `other` is to be later.
    turned = {PASS: ticket, FAIL: other}.get(found.verdict)
    if turned is None or not turned["censored"].any():
        return found
    return Reading(f"{found.text}; censored: longer training could change it", CANNOT_TELL)


def _of(rows: Table, branch: str, round: int) -> Table:
    return rows[(rows["branch"] == branch) & (rows["round"] == round)]


def _missing(branch: str, absent: Sequence[Any]) -> Reading:
    # Rounds are numbers, and anything else is in words.
    words = [part for part in absent if isinstance(part, str)]
    what = ", ".join(words) or f"{ranges(absent, 'round')} of {branch}"
    return Reading(f"{MISSING}: {what}", OPEN)
