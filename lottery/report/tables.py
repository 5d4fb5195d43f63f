"""What a page about a run is made of, read from its files once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from lottery import config
from lottery.analysis import connectivity, costs, layers
from lottery.errors import LotteryError
from lottery.runs import comparison, results, store, verdicts
from lottery.runs.published import compare as compare_published
from lottery.runs.verdicts import Table


@dataclass(frozen=True)
class Facts:
    """A run, and its tables as far as they are asked for.

    Attributes:
        label: What it is called beside other runs.
        path: Its folder.
        experiment: Its experiment.
        environment: What it was begun with; see `lottery.pipeline.environment.record`.
        rows: What `lottery.runs.results.table` returns.
        tolerance: Accuracy that a matching ticket may lose, in [0, 1].
    """

    label: str
    path: Path
    experiment: config.Experiment
    environment: dict[str, Any]
    rows: Table
    tolerance: float

    @cached_property
    def summary(self) -> Table:
        """What `lottery.runs.results.summary` returns."""
        return results.summary(self.rows, self.experiment.train.num_steps)

    @cached_property
    def judged(self) -> Table:
        """What `lottery.runs.verdicts.judged` returns."""
        return verdicts.judged(self.rows, self.tolerance, self.word)

    @cached_property
    def costs(self) -> Table:
        """What `lottery.analysis.costs.table` returns."""
        return costs.table(self.path)

    @cached_property
    def layers(self) -> Table:
        """What `lottery.analysis.layers.table` returns."""
        return layers.table(self.path)

    @cached_property
    def paths(self) -> Table:
        """What `lottery.analysis.connectivity.points` returns; empty where connectivity was not measured."""
        return connectivity.points(self.path)

    @property
    def word(self) -> str:
        """What a ticket of the run can be, as `lottery.runs.verdicts.goal` says."""
        return verdicts.goal(self.experiment)

    @property
    def controls(self) -> list[str]:
        """The branches that are compared with the ticket, in the order of the table."""
        return verdicts.controls(self.rows)

    @cached_property
    def own(self) -> Table:
        """The rows whose accuracies are on the run's own data: all but those of transfers."""
        return self.rows[~verdicts.transferred(self.rows)]


def gathered(runs: list[Path], tolerance: float = verdicts.TOLERANCE) -> list[Facts]:
    """Read runs.

    Args:
        runs: Their folders.
        tolerance: Accuracy that a matching ticket may lose, in [0, 1].

    Returns:
        The facts of each, in order, one that is named twice only once.

    Raises:
        LotteryError: One is no run, or has no complete round.
    """
    facts = []
    for label, path in comparison.labelled(runs).items():
        rows = results.table(path)
        if rows.empty:
            raise LotteryError(f"There is nothing to report: no round of {str(path)!r} is complete yet.")
        experiment, environment = store.read_experiment(path), store.read_environment(path)
        facts.append(Facts(label, path, experiment, environment, rows, tolerance))
    return facts


class Grid(NamedTuple):
    """A table.

    Attributes:
        heads: The columns' names.
        rows: A text for each column, row by row; the first column names the row.
        note: What is said below it.
    """

    heads: list[str]
    rows: list[list[str]]
    note: str = ""


def key_facts(one: Facts) -> dict[str, str]:
    """What stands out of a run: a few words by name."""
    dense = one.summary[(one.summary["branch"] == store.TICKET) & (one.summary["round"] == 0)]
    shown = verdicts.smallest_shown(one.judged, one.word)
    by_mean = verdicts.smallest_matching(one.rows, one.tolerance)
    tickets = one.rows[one.rows["branch"] == store.TICKET]
    steps, seconds = one.costs["steps"].sum(), one.costs["seconds"].sum()
    accuracy = dense["accuracy_mean"].iloc[0] if len(dense) else float("nan")
    return {
        "dense test accuracy": number(accuracy) or "not measured",
        "smallest density shown": f"{one.word}, {shown['density']:.4f} (round {shown['round']})" if shown else "none",
        "smallest by the mean": f"{by_mean['density']:.4f} (round {by_mean['round']})" if by_mean else "none",
        "smallest density tried": f"{tickets['density'].min():.4f} (1 / {1 / tickets['density'].min():.0f})",
        "replicates": str(one.rows["replicate"].nunique()),
        "trained": f"{(one.costs['steps'] > 0).sum()} networks, {steps:,} steps",
        "time": duration(seconds),
    }


def by_round(one: Facts) -> Grid:
    """The tickets, a row for each round."""
    judged = {line["round"]: line for line in one.judged.to_dict("records")}
    tickets = one.costs[one.costs["branch"] == store.TICKET]
    cost = tickets.groupby("round")[["compression", "multiply_adds", "speedup"]].mean().to_dict("index")
    rows = []
    for line in one.summary[one.summary["branch"] == store.TICKET].to_dict("records"):
        verdict, spent = judged.get(line["round"]), cost[line["round"]]
        censored = "≥ " if line["censored"] else ""
        rows.append(
            [
                str(line["round"]),
                f"{line['density']:.4f}",
                f"{line['num_kept']:,.0f}",
                f"{spent['compression']:.1f}",
                number(spent["multiply_adds"], ",.0f"),
                number(spent["speedup"], ".1f"),
                str(line["replicates"]),
                number(line["accuracy_mean"]),
                number(line["accuracy_std"]),
                number(line["final_accuracy_mean"]),
                f"{censored}{line['early_stop_step_mean']:,.0f}",
                *(["", "", ""] if verdict is None else [*difference(verdict), _verdict(verdict)]),
            ]
        )
    heads = [
        "round", "density", "kept", "compression", "multiply-adds", "speed-up", "n", "test accuracy", "sd",
        "at the end", "early stop", "less dense", "95 % interval", "verdict",
    ]  # fmt: skip
    return Grid(
        heads,
        rows,
        "Test accuracy at the early-stop step, the mean over n replicates; sd: sample standard deviation. Less dense: "
        "ticket less its own replicate's dense network, the mean and its t interval. Verdict: for a tolerance of "
        f"{one.tolerance:g}; “?”: cannot tell, and beside it about how many replicates would. Compression: 1 / density."
        " Multiply-adds: for one example, in prunable weights; speed-up: the dense network's by these, in theory."
        + (" “≥”: in some replicate the minimum is at the last step." if one.summary["censored"].any() else ""),
    )


def controls(one: Facts) -> Grid | None:
    """Each control beside the ticket, over the replicates that have both; None without any."""
    rows = []
    tickets = _by_replicate(one.rows, store.TICKET)
    for branch in one.controls:
        others = _by_replicate(one.rows, branch)
        for line in verdicts.differences(one.rows, against=branch).to_dict("records"):
            index = int(line["round"])
            pairs = (others[index] - tickets[index]).dropna().index
            means = [number(table[index][pairs].mean()) for table in (others, tickets)]
            where = [branch, str(index), f"{line['density']:.4f}", str(int(line["replicates"]))]
            rows.append([*where, *means, *difference(line)])
    heads = ["control", "round", "density", "n", "its test accuracy", "the ticket's", "ticket less it", "95 % interval"]
    said = "Over the n replicates that have both: means, and of the differences within each replicate the t interval."
    return Grid(heads, rows, said) if rows else None


def transfers(one: Facts) -> Grid | None:
    """Tickets that were trained on other data; None without any."""
    found = one.summary[verdicts.transferred(one.summary)]
    rows = [
        [
            line["branch"],
            str(line["round"]),
            f"{line['density']:.4f}",
            str(line["replicates"]),
            number(line["accuracy_mean"]),
            number(line["accuracy_std"]),
        ]
        for line in found.to_dict("records")
    ]
    heads = ["branch", "round", "density", "n", "test accuracy", "sd"]
    said = "Test accuracy on the other data, which nothing above is to be compared with; the mean over n replicates."
    return Grid(heads, rows, said) if rows else None


def _by_replicate(rows: Table, branch: str) -> Table:
    return rows[rows["branch"] == branch].pivot(index="replicate", columns="round", values=verdicts.MEASURE)


def by_weight(one: Facts) -> Grid:
    """Every layer: a row for each weight, columns for some rounds."""
    table = one.layers[one.layers["branch"] == store.TICKET]
    rounds = results.chosen(table["round"], FEW_ROUNDS)
    means = table.groupby(["weight", "round"], sort=False)[["weight_density", "dead_units", "dead_inputs"]].mean()
    rows = []
    for name, part in table[table["round"] == 0].groupby("weight", sort=False):
        first = part.iloc[0]
        row = [str(name), f"{first['inputs']:,.0f} x {first['units']:,.0f}", f"{first['size']:,}"]
        for index in rounds:
            at = means.loc[(name, index)]
            row.append(f"{number(at['weight_density'])} ({_short(at['dead_inputs'])}, {_short(at['dead_units'])})")
        rows.append(row)
    return Grid(
        ["weight", "inputs x units", "entries", *(f"round {index}" for index in rounds)],
        rows,
        "Density of the weight, and how many of its inputs nothing reads and how many of its units nothing reaches, "
        "means over replicates.",
    )


def barriers(one: Facts) -> Grid | None:
    """Error barriers; None where connectivity was not measured."""
    if one.paths.empty:
        return None
    table = connectivity.barriers(one.paths)
    keys = ["round", "step", "density", "batch_norm", "split"]
    rows = []
    for key, part in table.groupby(keys, sort=True):
        words = dict(zip(keys, key, strict=True))
        rows.append(
            [
                str(words["round"]),
                f"{words['density']:.4f}",
                str(words["step"]),
                str(words["split"]),
                str(words["batch_norm"]),
                str(len(part)),
                f"{100 * part['ends'].mean():.2f} %",
                f"{100 * part['highest'].mean():.2f} %",
                f"{100 * part['barrier'].mean():.2f} %",
                "stable" if part["barrier"].mean() < connectivity.STABLE else "not stable",
            ]
        )
    heads = [
        "round", "density", "step", "split", "BatchNorm", "replicates", "error at the ends", "highest", "barrier",
        "under 2 %",
    ]  # fmt: skip
    return Grid(
        heads,
        rows,
        "Two networks trained from the same weights with two orders of the data. Barrier: the highest error on the "
        "straight line between them, less the mean of its ends.",
    )


def published(one: Facts) -> Grid | None:
    """The run against the published numbers of its protocol; None if there are none."""
    try:
        lines, notes = compare_published(one.path)
    except LotteryError:
        return None
    heads = ["claim", "published", "measured", "verdict"]
    return Grid(heads, [[line[head] for head in heads] for line in lines], " ".join(notes))


def costs_by_branch(one: Facts) -> Grid:
    """What was spent, a row for each branch."""
    rows = []
    for branch, part in [*one.costs.groupby("branch", sort=False), ("all", one.costs)]:
        steps, seconds = part["steps"].sum(), part["seconds"].sum()
        rows.append([str(branch), str(len(part)), f"{steps:,.0f}", duration(seconds), _each(seconds, steps)])
    seen = costs.total(one.path)["examples"]
    said = f" In all, {seen:,} examples were seen, the same ones again in each epoch." if seen else ""
    heads = ["branch", "networks", "steps", "time", "ms a step"]
    return Grid(heads, rows, f"Time in training, evaluations along the way included.{said}")


def environment(one: Facts) -> Grid:
    """What the run was made with."""
    shown = {key: value for key, value in one.environment.items() if key not in ("versions", "architecture")}
    versions = one.environment.get("versions", {})
    architecture = one.environment.get("architecture") or {}
    rows = [["network", plain({key: value for key, value in architecture.items() if key != "keras"})]]
    rows += [[key.replace("_", " "), plain(value)] for key, value in shown.items() if value not in (None, {}, "")]
    rows += [[name, version] for name, version in versions.items()]
    return Grid(["what", "value"], rows)


def collapsed(one: Facts) -> list[str]:
    """A sentence for each weight of which nothing is left in some network."""
    empty = one.layers[one.layers["collapsed"]]
    return [
        f"Nothing is left of {name} in {len(part)} network{'s' * (len(part) > 1)}, from round {part['round'].min()} on."
        for name, part in empty.groupby("weight", sort=False)
    ]


def number(value: float, form: str = ".4f") -> str:
    """A number, or nothing where there is none; one that is too small for its form in another."""
    if value is None or value != value:
        return ""
    return f"{value:.1e}" if form == ".4f" and 0 < abs(value) < 5e-5 else f"{value:{form}}"


def duration(seconds: float) -> str:
    """A time in hours, minutes or seconds, whichever says it."""
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.1f} s"


def _short(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0")


def _each(seconds: float, steps: float) -> str:
    return f"{1000 * seconds / steps:.2f}" if steps else ""


def difference(line: Mapping[str, Any]) -> list[str]:
    """A mean difference and its interval."""
    known = abs(line["low"]) != float("inf")
    ends = f"{line['low']:+.4f} to {line['high']:+.4f}" if known else "not known"
    return [f"{round(line['mean'], 4) + 0.0:+.4f}", ends]


def _verdict(line: dict[str, Any]) -> str:
    needed = line["needed"]
    return line["verdict"] if needed != needed else f"{line['verdict']} {needed:.0f}"


def plain(value: Any) -> str:
    """Any value of a record in words."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return "; ".join(f"{key}: {plain(one)}" for key, one in value.items())
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ", ".join(map(plain, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def side_by_side(runs: Sequence[Facts]) -> Grid:
    """The key facts of several runs, and in what their experiments differ, a column for each."""
    facts = [key_facts(one) for one in runs]
    names = list(dict.fromkeys(name for one in facts for name in one))
    rows = [[name, *(one.get(name, "") for one in facts)] for name in names]
    settings = [config.flat(one.experiment.model_dump(mode="json")) for one in runs]
    for key in dict.fromkeys(key for one in settings for key in one):
        values = [plain(one.get(key)) for one in settings]
        if len(set(values)) > 1 and key != "name":
            rows.append([key, *values])
    return Grid(["", *(one.label for one in runs)], rows, "Below the key facts: every setting in which they differ.")


def same_rounds(runs: Sequence[Facts]) -> list[Grid | str]:
    """The tickets of several runs round by round, those together that have pairs; or why they cannot be compared."""
    groups: dict[tuple[Any, ...], list[Facts]] = {}
    for one in runs:
        groups.setdefault((one.environment.get("data_sha256"), one.experiment.run.seed), []).append(one)
    found: list[Grid | str] = [_contest(group) for group in groups.values() if len(group) > 1]
    if len(groups) > 1:
        found.append("Runs on other data, or from another seed, have no pairs to be compared by.")
    return found


def _contest(runs: Sequence[Facts]) -> Grid | str:
    try:
        found = comparison.compared({one.label: one.rows for one in runs})
    except LotteryError as error:
        return str(error)
    rows = []
    for line in found.to_dict("records"):
        less = {"mean": line["difference"], "low": line["difference_low"], "high": line["difference_high"]}
        empty = line["difference"] != line["difference"]
        where = [line["run"], str(line["round"]), f"{line['density']:.4f}", number(line["accuracy"])]
        rows.append([*where, *(["", ""] if empty else difference(less))])
    heads = ["run", "round", "density", "test accuracy", f"less {runs[0].label}", "95 % interval"]
    return Grid(heads, rows, "Paired by replicate; within a round the best first.")


FEW_ROUNDS = 6  # columns of a table by round
