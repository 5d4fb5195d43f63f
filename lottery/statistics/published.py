"""Numbers from papers and elsewhere, each with its source, and how well a run reproduces them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from lottery import config
from lottery.errors import unknown
from lottery.formatting import ends, listed, ranges, replicates, signed
from lottery.pruning import plan
from lottery.pruning.schedules import geometric
from lottery.runs import store
from lottery.statistics import intervals, results, verdicts
from lottery.statistics.verdicts import MEASURE, TOLERANCE, Table

MISSING = "not in this run"
AT_THE_END = "final_test_accuracy"
STEP = "early_stop_step"

PASS, FAIL, CANNOT_TELL, OPEN = "pass", "fail", "cannot tell", "open"

READING = (
    f"{PASS}: the whole 95 % interval over replicates meets the bound in brackets, which is ours; {FAIL}: none of it; "
    f"{CANNOT_TELL}: a part; {OPEN}: {MISSING}."
)

_CONFIDENCE = 0.95
_LAST_PLACE = 1e-9
_PRINTED = 0.995  # densities are printed with three digits
_FIFTH = 0.79  # a round that prunes a fifth leaves more than this
_SOME = 1e-6  # "above" is by any amount


class Source(NamedTuple):
    """Where a number comes from: one of `KINDS`, a text, and a link to it."""

    kind: str
    text: str
    link: str


PAPER, CODE, THIRD_PARTY, OURS = KINDS = ("paper", "authors' code", "third party", "our own bound")

_FRANKLE = "https://arxiv.org/abs/1803.03635"
_FRANKLE_CODE = "https://github.com/google-research/lottery-ticket-hypothesis/blob/master"
_RENDA_CODE = "https://github.com/lottery-ticket/rewinding-iclr20-public/blob/master"

# By the name in `Claim.source` and `Protocol.sources`.
SOURCES: dict[str, Source] = {
    "fully connected": Source(PAPER, "Frankle & Carbin 2019, section 2", _FRANKLE),
    "convolutional": Source(PAPER, "Frankle & Carbin 2019, section 3", _FRANKLE),
    "deep": Source(PAPER, "Frankle & Carbin 2019, section 4", _FRANKLE),
    "rewinding": Source(PAPER, "Renda, Frankle & Carbin 2020", "https://arxiv.org/abs/2003.02389"),
    "pixels": Source(
        CODE, "datasets/dataset_mnist.py of Frankle & Carbin", f"{_FRANKLE_CODE}/datasets/dataset_mnist.py"
    ),
    "schedule": Source(
        CODE, "cifar10_main.py of Renda et al.", f"{_RENDA_CODE}/vision/gpu-src/official/resnet/cifar10_main.py"
    ),
    "replication": Source(
        THIRD_PARTY,
        "an unpublished replication by others, of 20,000 steps a round evaluated every 1,000, with standardised pixels "
        "and 5 seeds",
        "docs/experiments.md#where-the-numbers-come-from",
    ),
    "figure 4": Source(
        OURS, "the rounds are chosen here, from the curve in figure 4 of Frankle & Carbin 2019", _FRANKLE
    ),
    "ladder": Source(
        OURS,
        "counted here from the paper's rates, rounded half to even; the authors' code prunes one entry more of each "
        "layer in each round",
        f"{_FRANKLE_CODE}/foundations/pruning.py",
    ),
    "global ladder": Source(
        OURS, "counted here from the rate in appendix I of Frankle & Carbin 2019, rounded half to even", _FRANKLE
    ),
    "rewinding ladder": Source(
        OURS, "counted here from the paper's rate, rounded half to even", "https://arxiv.org/abs/2003.02389"
    ),
}


class Measured(NamedTuple):
    """What a run shows of a claim, in words, and the verdict."""

    text: str
    verdict: str


@dataclass(frozen=True)
class Claim:
    """A number and where it comes from, and how to look for it in a run."""

    text: str
    source: str  # in `SOURCES`
    stated: str  # there
    bound: str  # what `check` asks for, which is ours
    check: Callable[..., Measured]  # called with the rows of `results.table` and the arguments
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Protocol:
    """The protocol of a paper: settings by key of the experiment, claims, and what the paper does not specify."""

    source: str  # of the settings, in `SOURCES`
    settings: Mapping[str, Any]
    claims: Sequence[Claim]
    leaves_open: Sequence[str] = ()
    code: str = ""  # of the settings below, in `SOURCES`
    of_code: Mapping[str, Any] = field(default_factory=dict)  # settings that only the authors' code states


def compare(run: Path) -> tuple[list[dict[str, str]], list[str]]:
    """Compare a run, finished or not, with the protocol in `PROTOCOLS` that has the name of its experiment.

    Returns the lines of `checked`, and sentences: the sources, where the run differs, what the paper leaves open.
    """
    experiment = store.read_experiment(run)
    if experiment.name not in PROTOCOLS:
        raise unknown("The experiment's name, by which published numbers are found", experiment.name, PROTOCOLS)
    protocol = PROTOCOLS[experiment.name]
    lines = checked(results.table(run), protocol, experiment.train.num_steps)
    notes = [*references(lines), *differing(experiment, protocol)]
    return lines, notes + [f"The paper leaves open: {it}." for it in protocol.leaves_open]


def checked(rows: Table, protocol: Protocol, num_steps: float = math.inf) -> list[dict[str, str]]:
    """Check each claim against the rows of `lottery.statistics.results.table`, of networks trained for so many steps.

    A line has ``claim, source`` (one of `KINDS`)``, stated, bound, measured, verdict, reference, link``. The verdict is
    "pass" where the whole 95 % interval over replicates meets the bound, "fail" where none of it does, "cannot tell"
    where a part does, and "open" where the run lacks rows. Of several rounds each must pass; a line fails if a round
    fails at 95 % for all of its rounds together. A mean early-stop step is only a lower bound where one of them is the
    last step; a verdict that this could turn is "cannot tell".
    """
    rows, lines = rows.assign(censored=rows[STEP] >= num_steps), []
    for claim in protocol.claims:
        source, found = SOURCES[claim.source], claim.check(rows, *claim.arguments)
        lines.append({
            "claim": claim.text, "source": source.kind, "stated": claim.stated, "bound": claim.bound,
            "measured": found.text, "verdict": found.verdict, "reference": source.text, "link": source.link,
        })  # fmt: skip
    return lines


def numbered(lines: Iterable[Mapping[str, str]]) -> dict[tuple[str, str, str], int]:
    """Number the sources of lines from 1, in order: each a kind, a reference and a link."""
    found = dict.fromkeys((line["source"], line["reference"], line["link"]) for line in lines)
    return {source: number for number, source in enumerate(found, 1)}


def references(lines: Iterable[Mapping[str, str]]) -> list[str]:
    """List the sources of lines by their numbers, each with its link."""
    return [f"[{number}] {kind}: {text}, {link}" for (kind, text, link), number in numbered(lines).items()]


def differing(experiment: config.Experiment, protocol: Protocol) -> list[str]:
    """Name each setting that is not that of the paper, or of the authors' code, in a sentence."""
    sections, found = experiment.model_dump(), []
    for name, settings in ((protocol.source, protocol.settings), (protocol.code, protocol.of_code)):
        for key, value in settings.items():
            section, _, rest = key.partition(".")
            if (used := sections[section][rest]) != value:
                found.append(f"Differs: {key} is {used!r}, {SOURCES[name].kind} {value!r}.")
    # A file may hold another split, or other images.
    return found + ([f"The data were read from {experiment.data.path!r}."] if experiment.data.path else [])


def survivors(groups: Sequence[tuple[int, float]], num_rounds: int, held: int = 0) -> list[int]:
    """Count the weights left after each round, from size and rate of each group ranked together; `held` always stay."""
    shapes = {str(place): (size,) for place, (size, _) in enumerate(groups)}
    own = {str(place): geometric(rate) for place, (_, rate) in enumerate(groups)}
    counts = plan.by_schedule(shapes, geometric(0), num_rounds, exceptions=own).values()
    return [sum(kept) + held for kept in zip(*counts, strict=True)]


def counts(rows: Table, num_rounds: int, ladder: Sequence[int]) -> Measured:
    """Check the survivors of all rounds, at least 0 to `num_rounds`."""
    kept = rows[rows["branch"] == store.TICKET].groupby("round")["num_kept"].unique()
    seen = {index: sorted(map(int, values)) for index, values in kept.items() if index < len(ladder)}
    if wrong := [index for index, values in seen.items() if values != [ladder[index]]]:
        counted = listed(f"{num:,}" for num in seen[wrong[0]])
        return Measured(f"round {wrong[0]}: {counted}, not {ladder[wrong[0]]:,}", FAIL)
    if absent := [index for index in range(num_rounds + 1) if index not in seen]:
        return _missing(store.TICKET, absent)
    return Measured(f"{ladder[0]:,} to {ladder[max(seen)]:,}, all equal", PASS)


def accuracy(rows: Table, index: int, value: float, tolerance: float, measure: str = MEASURE) -> Measured:
    """Check that the mean test accuracy of tickets in a round is near a number."""
    values = rows[(rows["branch"] == store.TICKET) & (rows["round"] == index)][measure].dropna().tolist()
    if not values:
        return _missing(store.TICKET, [index])
    mean, low, high = intervals.mean_interval(values, _CONFIDENCE)
    low, high = intervals.of_accuracy(low, high)
    return Measured(
        _with_interval(f"{mean:.4f}", low, high, len(values), ".4f"),
        _judged(low, high, value - tolerance, value + tolerance),
    )


def better(rows: Table, least: float, rounds: Sequence[int], of: str = store.TICKET, than: str = "dense") -> Measured:
    """Check that the mean of ticket − dense, ticket − control or dense − control is at least so much in each round."""
    for branch in (of, than):
        if branch not in {"dense", *rows["branch"]}:
            return _missing(branch, rounds)
    pairs = verdicts.paired(rows, against=of if of != store.TICKET else than)
    if of == "dense":
        pairs = verdicts.paired(rows, against=than) - verdicts.paired(rows)
    return _in_each(pairs, rounds, least, than if than != "dense" else store.TICKET)


def better_between(rows: Table, low: float, high: float, least: float, measure: str = MEASURE) -> Measured:
    """Check that the mean of ticket − dense is at least so much at all densities between two.

    It is open until the run has rounds within a fifth of both, and where one more round would be between them.
    """
    return _between(verdicts.paired(rows, measure), rows, low, high, least)


def sooner_between(rows: Table, low: float, high: float) -> Measured:
    """Check the same of the mean early-stop step: that of tickets is to be before that of dense."""
    found = _between(-verdicts.paired(rows, STEP), rows, low, high, _SOME, "{:+,.0f} steps")
    tickets = rows[rows["branch"] == store.TICKET]
    inside = tickets["density"].between(low * _PRINTED, high / _PRINTED)
    return _bounded(found, tickets[tickets["round"] == 0], tickets[inside])


def best(rows: Table, least: float, measure: str = AT_THE_END, num_rounds: int = 20) -> Measured:
    """Check that the mean of ticket − dense is at least so much in some round, of all of them together."""
    pairs = verdicts.paired(rows, measure)
    found = _summarised(pairs, list(pairs))
    absent = [index for index in range(1, num_rounds + 1) if index not in found]
    together = _summarised(pairs, list(pairs), 1 - (1 - _CONFIDENCE) / max(len(found), 1))
    passed = any(low >= least - _LAST_PLACE for _, _, low, _ in together.values())
    if not passed and (absent or not found):
        return _missing(store.TICKET, absent)
    index = max(found, key=lambda index: found[index][1])
    failed = all(high < least - _LAST_PLACE for _, _, _, high in found.values())
    verdict = PASS if passed else FAIL if failed else CANNOT_TELL
    num, mean, low, high = found[index]
    return Measured(f"{_with_interval(signed(mean), low, high, num)} at the most (round {index})", verdict)


def sooner(rows: Table, index: int, times: float, than: str = "dense") -> Measured:
    """Check that the mean early-stop step of dense, or of a control, is at least a multiple of that of the ticket."""
    both = _steps(rows, index, than)
    if both.empty:
        return _missing(store.TICKET if than == "dense" else than, [index])
    other, ticket = both["other"].to_numpy(float), both["ticket"].to_numpy(float)
    means = f"{ticket.mean():,.0f} and {other.mean():,.0f} steps"
    # A ratio of means is at least `times` where other − times x ticket is at least 0: the interval of Fieller 1954.
    _, low, high = intervals.mean_interval((other - times * ticket).tolist(), _CONFIDENCE)
    ratio = other.mean() / max(ticket.mean(), 1)
    known = ends(*fieller(other, ticket), ".2f") if math.isfinite(low) else replicates(len(both))
    found = Measured(f"{ratio:.2f} times ({known}; {means})", _judged(low, high, 0))
    return _bounded(found, _of(rows, *_place(index, than)), _of(rows, store.TICKET, index))


def fieller(other: Any, ticket: Any) -> tuple[float, float]:
    """Compute the interval of the ratio of two means, paired by replicate; infinite where it has no ends."""
    import numpy as np
    from scipy import special

    num = len(other)
    share = float(special.stdtrit(num - 1, (1 + _CONFIDENCE) / 2)) ** 2 / num
    spread = np.cov(other, ticket)
    # All b for which the mean of other − b x ticket is within the t interval of 0: a quadratic in b.
    a = ticket.mean() ** 2 - share * spread[1, 1]
    b = other.mean() * ticket.mean() - share * spread[0, 1]
    c = other.mean() ** 2 - share * spread[0, 0]
    root = math.sqrt(max(b * b - a * c, 0.0))
    return ((b - root) / a, (b + root) / a) if a > 0 else (-math.inf, math.inf)


def _between(pairs: Table, rows: Table, low: float, high: float, least: float, form: str = "") -> Measured:
    """Check paired differences at all densities between two, which the run must reach."""
    tickets = rows[rows["branch"] == store.TICKET]
    density = tickets.groupby("round")["density"].mean()
    density = density[density.index > 0]
    inside = density[density.between(low * _PRINTED, high / _PRINTED)]
    absent: list[Any] = []
    if inside.empty or inside.max() < high * _FIFTH:
        absent = [f"density {high:g}"]
    elif not (density < low / _FIFTH).any():
        absent = [f"density {low:g}"]
    found = _in_each(pairs, list(inside.index), least, store.TICKET, form, absent)
    if found.verdict == OPEN:
        return found
    tested = f"{inside.max():.3g} to {inside.min():.3g}"
    return found._replace(text=f"{found.text}, at densities {tested}")


def _in_each(
    pairs: Table, rounds: Sequence[int], least: float, branch: str, form: str = "", absent: Sequence[Any] = ()
) -> Measured:
    """Check that the mean of paired differences is at least so much in each round."""
    found = _summarised(pairs, rounds)
    absent = [*absent, *(index for index in rounds if index not in found)]
    together = _summarised(pairs, rounds, 1 - (1 - _CONFIDENCE) / max(len(found), 1))
    failed = [index for index, (*_, high) in together.items() if high < least - _LAST_PLACE]
    if not failed and (absent or not found):
        return _missing(branch, absent or rounds)
    lowest = min(failed or found, key=lambda index: (found[index][2], found[index][1]))
    num, mean, low, high = found[lowest]
    passed = all(low >= least - _LAST_PLACE for _, _, low, _ in found.values())
    verdict = FAIL if failed else PASS if passed else CANNOT_TELL
    text = _with_interval(form.format(mean) if form else signed(mean), low, high, num, "+,.0f" if form else "+.4f")
    return Measured(f"{text} at the least (round {lowest})" if len(found) > 1 else text, verdict)


def _summarised(
    pairs: Table, rounds: Iterable[int], confidence: float = _CONFIDENCE
) -> dict[int, tuple[int, float, float, float]]:
    """Count the pairs of each round that has any, and compute their mean and its interval."""
    found = {}
    for index in rounds:
        if index in pairs and len(values := pairs[index].dropna()):
            found[index] = (len(values), *intervals.mean_interval(values.tolist(), confidence))
    return found


def _judged(low: float, high: float, least: float, most: float = math.inf) -> str:
    """Compare an interval with bounds."""
    if low >= least - _LAST_PLACE and high <= most + _LAST_PLACE:
        return PASS
    return FAIL if high < least - _LAST_PLACE or low > most + _LAST_PLACE else CANNOT_TELL


def _with_interval(text: str, low: float, high: float, num: int, form: str = "+.4f") -> str:
    return f"{text} ({ends(low, high, form) if math.isfinite(low) else replicates(num)})"


def _steps(rows: Table, index: int, than: str) -> Table:
    """Early-stop steps by replicate, in the columns ``other`` and ``ticket``, where both are there."""
    import pandas as pd

    both = {"other": _of(rows, *_place(index, than)), "ticket": _of(rows, store.TICKET, index)}
    return pd.DataFrame({name: part.set_index("replicate")[STEP] for name, part in both.items()}).dropna()


def _place(index: int, than: str) -> tuple[str, int]:
    """Return branch and round of what a ticket is compared with."""
    return (store.TICKET, 0) if than == "dense" else (than, index)


def _of(rows: Table, branch: str, index: int) -> Table:
    return rows[(rows["branch"] == branch) & (rows["round"] == index)]


def _bounded(found: Measured, other: Table, ticket: Table) -> Measured:
    """Withdraw a verdict on early-stop steps that longer training could turn; `other` is to stop later."""
    turned = {PASS: ticket, FAIL: other}.get(found.verdict)
    if turned is None or not turned["censored"].any():
        return found
    return Measured(f"{found.text}; censored: longer training could change it", CANNOT_TELL)


def _missing(branch: str, absent: Sequence[Any]) -> Measured:
    indices = [one for one in absent if not isinstance(one, str)]
    where = [one for one in absent if isinstance(one, str)] or [f"round {ranges(indices)}"]
    return Measured(f"{MISSING}: {', '.join(where)} of {branch}", OPEN)


def _half(times: float) -> float:
    """Return a ratio half of the way from 1."""
    return 1 + (times - 1) / 2


def _survivors(groups: Sequence[tuple[int, float]], source: str, num_rounds: int, held: int = 0) -> Claim:
    """Make the claim that all rounds up to one keep as many weights as the rates say."""
    totals = survivors(groups, 40, held)
    stated = f"{totals[0]:,} to {totals[num_rounds]:,}"
    return Claim(f"survivors, rounds 0 to {num_rounds}", source, stated, "exactly", counts, (num_rounds, totals))


def _gain(index: int, left: float, source: str, stated: float, than: str = "dense", by_at_least: str = "") -> Claim:
    """Make the claim that the ticket is better in a round; half of what the source states is asked for."""
    text = f"round {index} ({left:g} %): ticket − {than}"
    words = f"{by_at_least}{stated:+g}"
    return Claim(text, source, words, f"≥ {stated / 2:+g}", better, (stated / 2, [index], store.TICKET, than))


def _earlier(index: int, left: float, source: str, stated: str, least: float, than: str = "dense") -> Claim:
    """Make the claim that the ticket stops earlier than a network that takes at least so many times its steps."""
    text = f"round {index} ({left:g} %): early stop, {than} over ticket"
    return Claim(text, source, stated, f"≥ {least:.3g} times", sooner, (index, least, than))


_PIXELS = "how pixels are scaled (data.pixels)"
_IMAGES = "how images are scaled (data.pixels)"

_LENET_GROUPS = [(235_200, 0.2), (30_000, 0.2), (1_000, 0.1)]

_SMALL_SETTINGS = {
    "data.validation": 5000, "train.batch_size": 60, "train.optimizer": "adam", "train.eval_every": 100,
    "prune.criterion": "magnitude", "prune.scope": "layerwise", "prune.iterative": True, "prune.granularity": "weight",
    "rewind.step": 0, "rewind.mode": "weights", "run.num_replicates": 5,
}  # fmt: skip

_LENET_SETTINGS = _SMALL_SETTINGS | {
    "data.name": "mnist", "model.name": "lenet_300_100", "train.num_steps": 50_000, "train.learning_rate": 1.2e-3,
}  # fmt: skip

_UNIT_NORM = {"data.pixels": "unit_norm"}

_LENET = Protocol(
    "fully connected",
    _LENET_SETTINGS,
    (
        _survivors(_LENET_GROUPS, "ladder", 20),
        Claim("test accuracy, dense", "replication", "0.9752", "± 0.005", accuracy, (0, 0.9752, 0.005)),
        Claim("rounds 5 to 12: ticket − dense", "figure 4", "above", "> 0", better, (_SOME, range(5, 13))),
        _gain(9, 13.5, "fully connected", 0.003, by_at_least="over "),
        Claim(
            "round 15 (3.6 %): ticket − dense", "fully connected", "as dense", f"≥ {-TOLERANCE:+g}", better,
            (-TOLERANCE, [15]),
        ),
        Claim(
            "ticket − dense at the end, best round", "fully connected", "up to +0.0035", "≥ +0.00175", best, (0.00175,)
        ),
        _gain(7, 21.1, "fully connected", 0.005, "random_reinit"),
        _gain(15, 3.6, "replication", 0.0067, "random_reinit"),
        _gain(15, 3.6, "replication", 0.0209, "random_mask"),
        Claim(
            "rounds 8 to 20: dense − random_reinit", "fully connected", "above, from 21.1 % on", "> 0", better,
            (_SOME, range(8, 21), "dense", "random_reinit"),
        ),
        _earlier(7, 21.1, "fully connected", "38 % earlier (1.61 times)", 1 / (1 - 0.38 / 2)),
        _earlier(7, 21.1, "fully connected", "2.51 times", _half(2.51), "random_reinit"),
    ),
    code="pixels",
    of_code=_UNIT_NORM,
)  # fmt: skip

_ONE_SHOT = Protocol(
    "fully connected",
    _LENET_SETTINGS | {"prune.iterative": False},
    (
        Claim(
            "ticket − dense, density 0.95 to 0.0517", "fully connected", "above", "> 0", better_between,
            (0.0517, 0.95, _SOME),
        ),
        Claim(
            "early stop, density 0.675 to 0.176", "fully connected", "before dense", "> 0", sooner_between,
            (0.176, 0.675),
        ),
    ),
    ("how one-shot tickets compare with iterative ones in numbers; its figure shows them below",),
    code="pixels",
    of_code=_UNIT_NORM,
)  # fmt: skip


def _conv(
    number: int, num_steps: int, learning_rate: float, conv: float, channels: Sequence[int],
    highest: tuple[int, float, float], soonest: tuple[int, float, float], *leaves_open: str,
) -> Protocol:  # fmt: skip
    """Conv-2, Conv-4, Conv-6: where accuracy is highest and early stop soonest, each as round, P_m and number."""
    sizes = [9 * before * after for before, after in zip((3, *channels), channels, strict=False)]
    flat = (32 >> number // 2) ** 2 * channels[-1]
    groups = [*((size, conv) for size in sizes), (flat * 256, 0.2), (256 * 256, 0.2), (2560, 0.1)]
    settings = _SMALL_SETTINGS | {
        "data.name": "cifar10", "model.name": f"conv_{number}", "train.num_steps": num_steps,
        "train.learning_rate": learning_rate,
    }  # fmt: skip
    above = Claim(
        "ticket − dense, density over 0.02", "convolutional", "above", "> 0", better_between, (0.02, 1, _SOME)
    )
    return Protocol(
        "convolutional",
        settings,
        (
            _survivors(groups, "ladder", max(highest[0], soonest[0])),
            _gain(*highest[:2], "convolutional", highest[2]),
            above,
            _earlier(*soonest[:2], "convolutional", f"{soonest[2]:g} times", _half(soonest[2])),
        ),
        (_PIXELS, *leaves_open),
    )


_CONV_6 = (
    "what it counts for Conv-6: its 26.4 and 15.1 % are nearest to rounds 7 (26.6) and 10 (15.3), and its table's 1.7M "
    "weights are not the sum of its layers"
)

_DEEP_SETTINGS = {
    "data.name": "cifar10", "data.validation": 5000, "data.augment": ("crop", "flip"),
    # The paper's 1e-4 goes through the momentum, which makes it ten times as strong.
    "train.optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 1e-3}, "train.eval_every": 100,
    "prune.criterion": "magnitude", "prune.scope": "global", "prune.rate": 0.2, "prune.iterative": True,
    "prune.granularity": "weight", "rewind.step": 0, "rewind.mode": "weights", "run.num_replicates": 5,
}  # fmt: skip

_RESNET_20 = [(267_696, 0.2)]  # all 3 x 3 convolutions
_RESNET_20_HELD = 3200  # 2,560 of the shortcuts and 640 of the output layer

_RESNET = Protocol(
    "deep",
    _DEEP_SETTINGS | {
        "model.name": "resnet_20", "train.num_steps": 30_000, "train.batch_size": 128, "train.learning_rate": 0.03,
        "train.warmup_steps": 20_000, "train.drop_at": (20_000, 25_000),
    },
    (
        _survivors(_RESNET_20, "global ladder", 10, _RESNET_20_HELD),
        Claim(
            "round 6 (27.1 %): test accuracy at the end", "deep", "0.905", "± 0.01", accuracy,
            (6, 0.905, 0.01, AT_THE_END),
        ),
        Claim(
            "ticket − dense at the end, density from 0.118", "deep", "winning tickets", f"≥ {-TOLERANCE:+g}",
            better_between, (0.118, 1, -TOLERANCE, AT_THE_END),
        ),
    ),
    (_IMAGES,),
)  # fmt: skip

_VGG = Protocol(
    "deep",
    _DEEP_SETTINGS | {
        "model.name": "vgg_19", "train.num_steps": 112_480, "train.batch_size": 64, "train.learning_rate": 0.1,
        "train.warmup_steps": 10_000, "train.drop_at": (56_240, 84_360),
    },
    (
        _survivors([(20_018_880, 0.2)], "global ladder", 18, 5120),
        Claim(
            "ticket − dense at the end, density from 0.015", "deep", "above", "> 0", better_between,
            (0.015, 1, _SOME, AT_THE_END),
        ),
    ),
    (_IMAGES,),
)  # fmt: skip

_LR_REWINDING = Protocol(
    "rewinding",
    {
        "data.name": "cifar10", "prune.rate": 0.2, "prune.scope": "global", "prune.granularity": "weight",
        "rewind.mode": "learning_rate",
    },
    (_survivors(_RESNET_20, "rewinding ladder", 12, _RESNET_20_HELD),),
    (
        "what a single run can be compared with: its result, that both kinds of rewinding are above fine-tuning, takes "
        "a run of each (lottery compare)",
    ),
    code="schedule",
    of_code={
        "model.name": "resnet_56", "data.augment": ("crop", "flip"), "train.batch_size": 128,
        # Its L2 loss of 2e-4 goes through the momentum, which makes it ten times as strong.
        "train.optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 2e-3}, "train.learning_rate": 0.1,
        # 182 epochs of 45,000 images, with drops at 91 and 136.
        "train.num_steps": 63_984, "train.drop_at": (31_992, 47_813),
    },
)  # fmt: skip

# By the name of the experiment.
PROTOCOLS: dict[str, Protocol] = {
    "lenet-mnist": _LENET,
    "lenet-mnist-one-shot": _ONE_SHOT,
    "conv-2-cifar10": _conv(2, 20_000, 2e-4, 0.1, (64, 64), (14, 4.6, 0.034), (11, 8.8, 3.5)),
    "conv-4-cifar10": _conv(4, 25_000, 3e-4, 0.1, (64, 64, 128, 128), (11, 11.1, 0.035), (12, 9.2, 3.5)),
    "conv-6-cifar10": _conv(
        6, 30_000, 3e-4, 0.15, (64, 64, 128, 128, 256, 256), (7, 26.4, 0.033), (10, 15.1, 2.5), _CONV_6
    ),
    "resnet-20-cifar10": _RESNET,
    "vgg-19-cifar10": _VGG,
    "resnet-20-cifar10-lr-rewinding": _LR_REWINDING,
}
