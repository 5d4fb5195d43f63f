"""Published results, and how well a run reproduces them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lottery import config
from lottery.errors import unknown
from lottery.formatting import listed
from lottery.pruning import plan
from lottery.pruning.schedules import geometric
from lottery.runs import results, store, verdicts
from lottery.runs.verdicts import Table

MISSING = "not in this run"

_LAST_PLACE = 1e-9
_FIFTH = 0.79  # a round that prunes a fifth leaves more than this


@dataclass(frozen=True)
class Claim:
    """One published result, and how to look for it in a run."""

    text: str
    published: str
    tolerance: str  # how far from it a run may be, and still pass
    # Called with the rows of `results.table` and the arguments. Returns what was measured, and True if it is as
    # claimed, None where the run lacks the rows to tell.
    check: Callable[..., tuple[str, bool | None]]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Protocol:
    """The protocol of a paper: source, settings by key of the experiment, results, and what it does not specify."""

    source: str
    settings: Mapping[str, Any]
    claims: Sequence[Claim]
    leaves_open: Sequence[str]


def compare(run: Path) -> tuple[list[dict[str, str]], list[str]]:
    """Compare a run, finished or not, with the protocol in `PROTOCOLS` that has the name of its experiment.

    Returns the lines of `checked`, and sentences: the source, where the run differs, what the paper leaves open.
    """
    experiment = store.read_experiment(run)
    if experiment.name not in PROTOCOLS:
        raise unknown("The experiment's name, by which published numbers are found", experiment.name, PROTOCOLS)
    protocol = PROTOCOLS[experiment.name]
    notes = [f"Published: {protocol.source}.", *differing(experiment, protocol)]
    notes += [f"The paper leaves open: {it}." for it in protocol.leaves_open]
    return checked(results.table(run), protocol), notes


def checked(rows: Table, protocol: Protocol) -> list[dict[str, str]]:
    """Check each claim against the rows of `lottery.runs.results.table`; a verdict is open where rows are missing."""
    lines = []
    for claim in protocol.claims:
        measured, passed = claim.check(rows, *claim.arguments)
        verdict = {None: "open", True: "pass", False: "fail"}[passed]
        published = f"{claim.published} ({claim.tolerance})"
        lines.append({"claim": claim.text, "published": published, "measured": measured, "verdict": verdict})
    return lines


def differing(experiment: config.Experiment, protocol: Protocol) -> list[str]:
    """Name each setting that is not that of the paper, in a sentence."""
    sections, found = experiment.model_dump(), []
    for key, value in protocol.settings.items():
        section, _, name = key.partition(".")
        if (used := sections[section][name]) != value:
            found.append(f"Differs: {key} is {used!r}, published {value!r}.")
    # A file may hold another split, or other images.
    return found + ([f"The data were read from {experiment.data.path!r}."] if experiment.data.path else [])


def survivors(groups: Sequence[tuple[int, float]], num_rounds: int, held: int = 0) -> list[int]:
    """Count the weights left after each round, from size and rate of each group ranked together; `held` always stay."""
    shapes = {str(place): (size,) for place, (size, _) in enumerate(groups)}
    own = {str(place): geometric(rate) for place, (_, rate) in enumerate(groups)}
    counts = plan.ladder(shapes, geometric(0), num_rounds, exceptions=own).values()
    return [sum(kept) + held for kept in zip(*counts, strict=True)]


def counts(rows: Table, num_rounds: int, *allowed: Sequence[int]) -> tuple[str, bool | None]:
    """Check the survivors of all rounds, at least 0 to `num_rounds`, against a list for each reading of the paper."""
    kept = rows[rows["branch"] == store.TICKET].groupby("round")["num_kept"].unique()
    seen = {index: sorted(map(int, values)) for index, values in kept.items() if index < len(allowed[0])}
    fit = [ladder for ladder in allowed if all(values == [ladder[index]] for index, values in seen.items())]
    if not fit:
        wrong = next(index for index, values in seen.items() if values != [allowed[0][index]])
        return f"round {wrong}: {listed(f'{num:,}' for num in seen[wrong])}, not {allowed[0][wrong]:,}", False
    absent = [index for index in range(num_rounds + 1) if index not in seen]
    if absent:
        return _missing(store.TICKET, absent), None
    return f"{fit[0][0]:,} to {fit[0][max(seen)]:,}, all equal", True


def accuracy(rows: Table, index: int, value: float, tolerance: float) -> tuple[str, bool | None]:
    """Check that the mean test accuracy of tickets in a round is near a number."""
    mean = rows[(rows["branch"] == store.TICKET) & (rows["round"] == index)][verdicts.MEASURE].mean()
    if mean != mean:
        return _missing(store.TICKET, [index]), None
    return f"{mean:.4f}", bool(abs(mean - value) <= tolerance + _LAST_PLACE)


def better(rows: Table, least: float, rounds: Sequence[int], than: str = "dense") -> tuple[str, bool | None]:
    """Check that the mean of ticket − dense, or ticket − control, is at least so much in each of the rounds."""
    if than not in {"dense", *rows["branch"]}:
        return _missing(than, rounds), None
    found = verdicts.differences(rows, against=than).set_index("round")["mean"]
    return _at_least(found[found.index.isin(rounds)], least, [index for index in rounds if index not in found], than)


def better_between(rows: Table, low: float, high: float, least: float) -> tuple[str, bool | None]:
    """Check that the mean of ticket − dense is at least so much at all densities between two.

    It passes only once the run has come so far that one more round, of a fifth, would be below the lower one.
    """
    found = verdicts.differences(rows).set_index("round")
    inside = found[found["density"].between(low, high)]["mean"]
    ended = len(inside) and (found["density"] < low / _FIFTH).any()
    return _at_least(inside, least, [] if ended else [f"at density {low:g}"], "dense")


def sooner(rows: Table, index: int, least: float, than: str = "dense") -> tuple[str, bool | None]:
    """Check that the mean early-stop step of dense, or of a control, is at least a multiple of that of the ticket."""
    both = _steps(rows, index, than)
    if both.empty:
        return _missing(store.TICKET if than == "dense" else than, [index]), None
    other, ticket = both.mean()
    times = other / max(ticket, 1)
    return f"{times:.2f} times ({ticket:,.0f} and {other:,.0f})", bool(times >= least)


def sooner_in_each(rows: Table, index: int) -> tuple[str, bool | None]:
    """Check that the early-stop step of every ticket is before that of the dense network of its replicate."""
    both = _steps(rows, index, "dense")
    if both.empty:
        return _missing(store.TICKET, [index]), None
    num = int((both["ticket"] < both["other"]).sum())
    return f"in {num} of {len(both)}", num == len(both)


def sooner_between(rows: Table, low: float, high: float) -> tuple[str, bool | None]:
    """Check the same of the mean early-stop step of tickets, which is to be before that of dense."""
    tickets = rows[rows["branch"] == store.TICKET].groupby("round")[["density", "early_stop_step"]].mean()
    inside = tickets[tickets["density"].between(low, high) & (tickets.index > 0)]["early_stop_step"]
    dense = float(tickets["early_stop_step"].get(0, math.nan))
    failed = bool(inside.max() >= dense)  # not where one of the two is missing
    if not failed and (inside.empty or dense != dense or not (tickets["density"] < low / _FIFTH).any()):
        return _missing(store.TICKET, [f"at density {low:g}"]), None
    return f"{inside.max():,.0f} at the latest, and {dense:,.0f}", not failed


def _at_least(found: Any, least: float, absent: Sequence[Any], than: str) -> tuple[str, bool | None]:
    failed = bool((found < least - _LAST_PLACE).any())
    if absent and not failed:
        return _missing(than if than != "dense" else store.TICKET, absent), None
    where = f" at the least (round {found.idxmin()})" if len(found) > 1 else ""
    return f"{found.min():+.4f}{where}", not failed


def _steps(rows: Table, index: int, than: str) -> Table:
    """Early-stop steps by replicate, in the columns ``other`` and ``ticket``, where both are there."""
    import pandas as pd

    def of(branch: str, at: int) -> Any:
        return rows[(rows["branch"] == branch) & (rows["round"] == at)].set_index("replicate")["early_stop_step"]

    other = of(store.TICKET, 0) if than == "dense" else of(than, index)
    return pd.DataFrame({"other": other, "ticket": of(store.TICKET, index)}).dropna()


def _missing(branch: str, rounds: Sequence[Any]) -> str:
    through = len(rounds) > 2 and list(rounds) == list(range(rounds[0], rounds[-1] + 1))
    listed = f"{rounds[0]} to {rounds[-1]}" if through else ", ".join(map(str, rounds))
    return f"{MISSING}: {branch}, {listed if isinstance(rounds[0], str) else f'round {listed}'}"


_FRANKLE = "Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635"
_PIXELS = "how pixels are scaled (data.pixels); replications on MNIST fit best with standardised ones"
_SOME = 1e-6  # "above" is by any amount

# Survivors as printed; the other rounds follow from the rates.
_LENET_PRINTED = {
    0: 266_200, 1: 213_060, 2: 170_538, 3: 136_511, 5: 87_490, 7: 56_094, 9: 35_981, 12: 18_506, 15: 9_537, 16: 7_650,
    18: 4_928, 20: 3_179,
}  # fmt: skip

_LENET_LADDER = [
    _LENET_PRINTED.get(index, total)
    for index, total in enumerate(survivors([(235_200, 0.2), (30_000, 0.2), (1_000, 0.1)], 30))
]

_LENET_SETTINGS = {
    "data.name": "mnist", "data.validation": 5000, "model.name": "lenet_300_100", "train.num_steps": 50_000,
    "train.batch_size": 60, "train.optimizer": "adam", "train.learning_rate": 1.2e-3, "train.eval_every": 100,
    "prune.criterion": "magnitude", "prune.scope": "layerwise", "prune.iterative": True, "rewind.step": 0,
    "rewind.mode": "weights", "run.num_replicates": 5,
}  # fmt: skip

_LENET = Protocol(
    f"{_FRANKLE}; where accuracies are given, an independent replication of 20,000 steps and 5 seeds",
    _LENET_SETTINGS,
    (
        Claim("survivors, rounds 0 to 20", "266,200 to 3,179", "exactly", counts, (20, _LENET_LADDER)),
        Claim("test accuracy, dense", "0.9752", "± 0.005", accuracy, (0, 0.9752, 0.005)),
        Claim("ticket − dense, rounds 5 to 12", "above", "the mean", better, (_SOME, range(5, 13))),
        Claim("ticket − dense, round 9 (13.5 %)", "above +0.003", "≥ +0.002", better, (0.002, [9])),
        Claim("ticket − dense, round 15 (3.6 %)", "back at dense", "≥ -0.003", better, (-0.003, [15])),
        Claim("ticket − random_reinit, round 7", "+0.005", "≥ +0.002", better, (0.002, [7], "random_reinit")),
        Claim("ticket − random_reinit, round 15", "+0.0067", "≥ +0.004", better, (0.004, [15], "random_reinit")),
        Claim("ticket − random_mask, round 15", "+0.0209", "≥ +0.015", better, (0.015, [15], "random_mask")),
        Claim("early stop before dense, round 7", "sooner", "each replicate", sooner_in_each, (7,)),
        Claim("early stop, dense to ticket, round 7", "1.61 times", "≥ 1.2", sooner, (7, 1.2)),
        Claim("the same, random_reinit to ticket", "2.51 times", "≥ 1.5", sooner, (7, 1.5, "random_reinit")),
    ),
    (_PIXELS,),
)

_ONE_SHOT = Protocol(
    f"{_FRANKLE}, figure 4",
    _LENET_SETTINGS | {"prune.iterative": False},
    (
        Claim("ticket − dense, density 0.95 to 0.0517", "above", "the mean", better_between, (0.0517, 0.95, _SOME)),
        Claim("early stop, density 0.675 to 0.176", "before dense", "the mean", sooner_between, (0.176, 0.675)),
    ),
    (_PIXELS, "how one-shot tickets compare with iterative ones in numbers; its figure shows them below"),
)


def _conv(
    number: int, num_steps: int, rate: float, conv: float, channels: Sequence[int], best: tuple[int, str, float],
    soonest: tuple[int, str, float], *leaves_open: str,
) -> Protocol:  # fmt: skip
    """Conv-2, Conv-4, Conv-6: where accuracy is best and early stop soonest, each as round, P_m and number."""
    sizes = [9 * before * after for before, after in zip((3, *channels), channels, strict=False)]
    flat = (32 >> number // 2) ** 2 * channels[-1]
    groups = [*((size, conv) for size in sizes), (flat * 256, 0.2), (256 * 256, 0.2), (2560, 0.1)]
    totals = survivors(groups, 40)
    settings = _LENET_SETTINGS | {
        "data.name": "cifar10", "model.name": f"conv_{number}", "train.num_steps": num_steps,
        "train.learning_rate": rate,
    }  # fmt: skip
    index, left, gain = best
    at, remaining, times = soonest
    return Protocol(
        _FRANKLE,
        settings,
        (
            Claim("survivors of every round", f"{totals[0]:,} and on", "exactly", counts, (max(index, at), totals)),
            Claim(f"ticket − dense, round {index} ({left} %)", f"{gain:+.3f}", "≥ +0.02", better, (0.02, [index])),
            Claim("ticket − dense, density over 0.02", "above", "the mean", better_between, (0.02, 1, _SOME)),
            Claim(
                f"early stop, dense to ticket, round {at} ({remaining} %)", f"{times:g} times", f"≥ {times / 2:g}",
                sooner, (at, times / 2),
            ),
        ),
        (_PIXELS, *leaves_open),
    )  # fmt: skip


_CONV_6 = (
    "what it counts for Conv-6: its 26.4 and 15.1 % are nearest to rounds 7 (26.6) and 10 (15.3), and its table's 1.7M "
    "weights are not the sum of its layers"
)

_DEEP_SETTINGS = {
    "data.name": "cifar10", "data.validation": 5000,
    # The papers' 1e-4 goes through the momentum, which makes it ten times as strong.
    "train.optimizer": {"name": "sgd", "momentum": 0.9, "weight_decay": 1e-3}, "train.eval_every": 100,
    "prune.criterion": "magnitude", "prune.scope": "global", "prune.rate": 0.2, "prune.iterative": True,
    "rewind.step": 0, "rewind.mode": "weights", "run.num_replicates": 5,
}  # fmt: skip

_RESNET = Protocol(
    f"{_FRANKLE}, which calls it ResNet-18",
    _DEEP_SETTINGS | {
        "model.name": "resnet_20", "train.num_steps": 30_000, "train.batch_size": 128, "train.learning_rate": 0.03,
        "train.warmup_steps": 20_000, "train.drop_at": (20_000, 25_000),
    },
    (
        Claim(
            "survivors of every round", "270,896 and on", "exactly",
            counts, (6, survivors([(270_256, 0.2)], 40, 640), survivors([(267_696, 0.2)], 40, 3200)),
        ),
        Claim("test accuracy, round 6 (27.1 %)", "0.905", "± 0.01", accuracy, (6, 0.905, 0.01)),
        Claim("ticket − dense, round 6 (27.1 %)", "matching", "≥ -0.005", better, (-0.005, [6])),
    ),
    (
        "whether the two 1 x 1 shortcuts are pruned (round 6 has 27.1 % only if not; both ways pass here)",
        "how images are scaled and augmented (data.pixels, data.augment)",
    ),
)  # fmt: skip

_VGG = Protocol(
    _FRANKLE,
    _DEEP_SETTINGS | {
        "model.name": "vgg_19", "train.num_steps": 112_000, "train.batch_size": 64, "train.learning_rate": 0.1,
        "train.warmup_steps": 10_000,
    },
    (
        Claim(
            "survivors of every round", "20024000 and on", "exactly",
            counts, (6, survivors([(20_018_880, 0.2)], 40, 5120)),
        ),
        Claim("ticket − dense, density above 0.015", "matching", "≥ -0.002", better_between, (0.015, 1, -0.002)),
    ),
    ("the step of each drop (epochs 80 and 120 of 160)", "how images are scaled and augmented"),
)  # fmt: skip

# By the name of the experiment.
PROTOCOLS: dict[str, Protocol] = {
    "lenet-mnist": _LENET,
    "lenet-mnist-one-shot": _ONE_SHOT,
    "conv-2-cifar10": _conv(2, 20_000, 2e-4, 0.1, (64, 64), (14, "4.6", 0.034), (11, "8.8", 3.5)),
    "conv-4-cifar10": _conv(4, 25_000, 3e-4, 0.1, (64, 64, 128, 128), (11, "11.1", 0.035), (12, "9.2", 3.5)),
    "conv-6-cifar10": _conv(
        6, 30_000, 3e-4, 0.15, (64, 64, 128, 128, 256, 256), (7, "26.4", 0.033), (10, "15.1", 2.5), _CONV_6
    ),
    "resnet-20-cifar10": _RESNET,
    "vgg-19-cifar10": _VGG,
}
