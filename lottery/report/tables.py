"""The tables of a page about runs, and the runs' data that they are made from."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

from lottery import config, plots
from lottery.analysis import costs
from lottery.errors import LotteryError
from lottery.figures.style import MOST
from lottery.formatting import duration, number, plain, short
from lottery.runs import store
from lottery.statistics import comparison, published, results, tables, verdicts
from lottery.statistics.barriers import STABLE
from lottery.statistics.metric import Metric, metric_of, scored
from lottery.statistics.tables import Grid
from lottery.statistics.verdicts import Table

# What a reader calls the entries of environment.json.
_NAMES = {"uses": "multiply-adds per entry", "num_threads": "threads", "num_devices": "devices"}


@dataclass(frozen=True)
class ReportedRun:
    """A run, and its tables, each made when it is first needed."""

    label: str  # its name beside other runs
    path: Path
    experiment: config.Experiment
    environment: dict[str, Any]  # the content of environment.json
    rows: Table  # of `lottery.statistics.results.table`
    tolerance: float | None  # the gain that a matching ticket may lack; None for that of the measure
    _read: dict[tuple[Any, ...], Table] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def summary(self) -> Table:
        """The table of `lottery.statistics.results.summary`."""
        return results.summary(self.rows, self.experiment.train.num_steps)

    @cached_property
    def rule(self) -> verdicts.Rule:
        """What a ticket of the run must show; see `lottery.statistics.verdicts.rule_for`."""
        return verdicts.rule_for(self.experiment, self.tolerance, self.measure)

    @cached_property
    def measure(self) -> Metric:
        """What its tickets are compared by."""
        return metric_of(self.rows)

    @cached_property
    def scores(self) -> Table:
        """Its rows with scores in place of losses; see `lottery.statistics.metric.scored`."""
        return scored(self.rows, self.measure)

    @cached_property
    def judged(self) -> Table:
        """The table of `lottery.statistics.verdicts.judged`."""
        return verdicts.judged(self.rows, self.rule)

    @cached_property
    def costs(self) -> Table:
        """The table of `lottery.analysis.costs.table`."""
        return costs.table(self.path)

    def table(self, kind: str, **options: Any) -> Table:
        """Return the table of a kind of figure, read once; see `lottery.plots.read`."""
        key = (kind, *options.items())
        if key not in self._read:
            self._read[key] = plots.read(self.path, kind, **options)
        return self._read[key]

    @property
    def controls(self) -> list[str]:
        """The branches that are compared with the ticket, in the order of the table."""
        return verdicts.controls(self.rows)

    @cached_property
    def own(self) -> Table:
        """The rows with accuracies on the run's own data: all but those of transfers."""
        return self.rows[~verdicts.transferred(self.rows)]


def gathered(runs: list[Path], tolerance: float | None = None) -> list[ReportedRun]:
    """Read each run once, in order; raise `LotteryError` if a folder is no run, or has no complete round."""
    facts = []
    for label, path in comparison.labelled(runs).items():
        rows = results.table(path)
        if rows.empty:
            raise LotteryError(f"There is nothing to report: no round of {str(path)!r} is complete yet.")
        experiment, environment = store.read_experiment(path), store.read_environment(path)
        facts.append(ReportedRun(label, path, experiment, environment, rows, tolerance))
    return facts


def byline(one: ReportedRun, author: str = "") -> list[str]:
    """Say by whom, when and with which version a run was made, as far as that is known."""
    days = sorted({day(path.stat().st_mtime) for path in one.path.glob("replicate-*/round-*/round.json")})
    release, commit = one.environment.get("versions", {}).get("lottery"), one.environment.get("commit")
    return [
        *([f"by {author}"] if author else []),
        *([f"files dated {' to '.join(dict.fromkeys((days[0], days[-1])))}"] if days else []),
        *([f"trained with lottery {release}{f' ({commit[:9]})' if commit else ''}"] if release else []),
    ]


def day(seconds: float) -> str:
    """Format a time, in seconds since 1970, as the day where the reader of this clock is, such as 2026-11-22."""
    return date.fromtimestamp(seconds).isoformat()


def key_facts(one: ReportedRun) -> dict[str, str]:
    """Collect the most important numbers of a run, by name."""
    dense = one.summary[(one.summary["branch"] == store.TICKET) & (one.summary["round"] == 0)]
    kinds = {verdicts.WINNING: "winning_p"} if one.rule.word == verdicts.WINNING else {}
    kinds |= {verdicts.MATCHING: "matching_p", "matching at the end": "final_p"}
    shown = {kind: verdicts.smallest_shown(one.judged, one.rule, p) for kind, p in kinds.items()}
    by_mean = verdicts.smallest_matching(one.rows, one.rule.tolerance)
    tried = one.rows[one.rows["branch"] == store.TICKET]["density"].min()
    value = dense[f"{one.measure.what}_mean"].iloc[0] if len(dense) else math.nan
    return {
        f"dense {one.measure.name}": one.measure.value(value) or "not measured",
        **{
            f"smallest density shown to be {kind}": f"{it['density']:.4f}" if it else "none"
            for kind, it in shown.items()
        },
        "smallest density matching by the mean": f"{by_mean['density']:.4f}" if by_mean else "none",
        "smallest density tried": f"{tried:.4f}",
        "replicates": str(one.rows["replicate"].nunique()),
        "networks trained": f"{(one.costs['steps'] > 0).sum():,}",
        "steps trained": f"{one.costs['steps'].sum():,}",
        "time of training": duration(one.costs["seconds"].sum()),
    }


def of_run(one: ReportedRun) -> dict[str, Grid | None]:
    """Make the tables of a run by name; None for a table without rows."""
    return {
        "rounds": rounds(one),
        "controls": controls(one),
        "transfers": transfers(one),
        "weights": by_weight(one),
        "barriers": barriers(one),
        "published": published_results(one),
        "costs": costs_by_branch(one),
        "environment": environment(one),
    }


def rounds(one: ReportedRun) -> Grid:
    """List the tickets, a row for each round and a number to the cell: accuracy and verdict first, then the rest."""
    judgements = {line["round"]: line for line in one.judged.to_dict("records")}
    costs_of = one.costs[one.costs["branch"] == store.TICKET].groupby("round")
    costs_of = costs_of[["compression", "parameter_compression", "multiply_adds", "speedup"]].mean()
    lines, measure, what = [], one.measure, one.measure.what
    for line in one.summary[one.summary["branch"] == store.TICKET].to_dict("records"):
        verdict, cost = judgements.get(line["round"]), costs_of.loc[line["round"]]
        lines.append({
            "round": str(line["round"]),
            "density": f"{line['density']:.4f}",
            measure.name: measure.value(line[f"{what}_mean"]),
            "verdict": verdict["verdict"] if verdict else "",
            "ticket − dense": measure.difference(verdict["mean"]) if verdict else "",
            **dict(zip(("95 % from", "95 % to"), _interval(verdict, measure), strict=True)),
            "special": verdict["special"] if verdict else "",
            "n": str(line["replicates"]),
            "n needed": number(verdict["needed"], ",.0f") if verdict else "",
            "standard deviation": measure.deviation(line[f"{what}_std"]),
            "early stop (step)": f"{'≥ ' if line['censored'] else ''}{line['early_stop_step_mean']:,.0f}",
            "later than dense?": verdict["early_stop"] if verdict else "",
            "early stop − dense": number(verdict["step_mean"], "+,.0f") if verdict else "",
            "steps from": end(verdict["step_low"], "+,.0f") if verdict else "",
            "steps to": end(verdict["step_high"], "+,.0f") if verdict else "",
            f"{what} at the end": measure.value(line[f"final_{what}_mean"]),
            "verdict at the end": verdict["final_verdict"] if verdict else "",
            "ticket − dense at the end": measure.difference(verdict["final_mean"]) if verdict else "",
            **dict(zip(("end from", "end to"), _interval(verdict, measure, "final_"), strict=True)),
            "weights kept": f"{line['num_kept']:,.0f}",
            "compression (times)": f"{cost['compression']:,.1f}",
            "with all parameters": f"{cost['parameter_compression']:,.1f}",
            "multiply-adds": number(cost["multiply_adds"], ",.0f"),
            "speed-up (times)": number(cost["speedup"], ",.1f"),
        })  # fmt: skip
    found = _filled(lines)
    unit = ", in per cent of the dense loss" if measure.is_loss else ""
    notes = [
        f"{measure.name.capitalize()}: at the early-stop step, the mean over n replicates, with their standard "
        f"deviation. Ticket − dense{unit}: paired by replicate, the mean and the ends of its t interval, for this "
        "round by itself. Early stop − dense: the same of the early-stop steps."
    ]
    if one.summary["censored"].any():
        notes.append(
            "≥: in some replicate the validation loss was lowest at the last step, "
            f"{one.experiment.train.num_steps:,}; longer training may stop later."
        )
    notes.append(
        "Compression: 1 / density, of the prunable weights; with all parameters: biases and normalisation count too. "
        "Multiply-adds: for one example, with prunable weights. Speed-up: multiply-adds of "
        "the dense network over those of the ticket, which no hardware fully reaches."
    )
    return found._replace(notes=notes)


def verdict_key(one: ReportedRun) -> list[tuple[str, str]]:
    """Explain each verdict that the table of rounds has, in the order of its first appearance."""
    known = {*one.judged["verdict"], *one.judged["final_verdict"]}
    interval = f"{100 * one.rule.confidence:.4g} % interval of ticket − dense"
    side, bound = one.measure.bound(one.rule.tolerance).replace("-", "−").split(" ", 1)
    other = "below" if side == "above" else "above"
    needed = one.judged["needed"].notna().any()
    texts = {
        verdicts.WINNING: "matching, and the early-stop step is shown to be no later than that of dense: by at most "
        f"{one.rule.margin:g} steps, the time between two evaluations",
        verdicts.MATCHING: f"the whole {interval} is {side} {bound}",
        verdicts.NOT_MATCHING: f"the whole interval is {other} {bound}",
        verdicts.CANNOT_TELL: f"cannot tell: the interval lies on both sides of {bound}, or is not known"
        + ("; n needed: the replicates of a new run that would tell with a power of 80 %" if needed else ""),
    }
    key = [(name, text) for name, text in texts.items() if name in known]
    if one.judged["special"].any():
        key.append(("special", "no where a control does as well; yes where the ticket is better than each control"))
    return key


_UNKNOWN = (math.nan, math.nan)


def controls(one: ReportedRun) -> Grid | None:
    """Compare each control with the ticket, over the replicates that have both."""
    rows, measure = [], one.measure
    values = one.rows.pivot(index="replicate", columns=["branch", "round"], values=measure.early_stop)
    costs_of = one.costs.groupby(["branch", "round"])[["spent_steps", "spent_multiply_adds"]].mean()
    spent = dict(zip(costs_of.index, costs_of.to_numpy(), strict=True))
    for branch in one.controls:
        for line in verdicts.differences(one.scores, measure.early_stop, branch).to_dict("records"):
            index = int(line["round"])
            means = map(measure.value, values[[(branch, index), (store.TICKET, index)]].dropna().mean())
            where = [branch, str(index), f"{line['density']:.4f}", str(int(line["replicates"]))]
            (steps, count), (_, whole) = (spent.get((each, index), _UNKNOWN) for each in (branch, store.TICKET))
            cost = [number(steps, ",.0f"), short(count), number(count / whole)]
            rows.append([*where, *means, measure.difference(line["mean"]), *_interval(line, measure), *cost])
    heads = ["branch", "round", "density", "n", f"its {measure.name}", f"ticket's {measure.name}"]
    heads += ["ticket − branch", "95 % from", "95 % to", "its steps", "its multiply-adds", "of the ticket's"]
    unit = "Ticket − branch is in per cent of the dense loss. " if measure.is_loss else ""
    note = f"{unit}Means over the n replicates that have both, and the t interval of the differences within replicates."
    budget = "Its steps and multiply-adds: of all trainings that it takes, rounds before it included."
    return Grid(heads, rows, [note, budget]) if rows else None


def transfers(one: ReportedRun) -> Grid | None:
    """List the tickets that were trained on other data."""
    rows, compared, measure = [], results.transfers(one.rows), one.measure
    for line in one.summary[verdicts.transferred(one.summary)].to_dict("records"):
        where = [line["branch"], str(line["round"]), f"{line['density']:.4f}", str(line["replicates"])]
        found = compared[line["branch"]]
        against = found[found["round"] == line["round"]].to_dict("records")
        beside = [measure.difference(against[0]["mean"]), *_interval(against[0], measure)] if against else [""] * 3
        own = [measure.value(line[f"{measure.what}_mean"]), measure.deviation(line[f"{measure.what}_std"])]
        rows.append([*where, *own, *beside])
    heads = ["branch", "round", "density", "n", measure.name, "standard deviation"]
    notes = [
        f"{measure.name.capitalize()} on the other data, not to be compared with the tables above; the mean over n "
        "replicates. Ticket − dense there: the dense network (round 0) trained on the same data, paired by replicate."
    ]
    notes += [f"{label} has no dense network on its data." for label, found in compared.items() if found.empty]
    return Grid([*heads, "ticket − dense there", "95 % from", "95 % to"], rows, notes) if rows else None


def by_weight(one: ReportedRun) -> Grid:
    """Describe the layers: a row for each weight in each of some rounds."""
    table = one.table("layers")
    table = table[table["branch"] == store.TICKET]
    table = table[table["round"].isin(results.chosen(table["round"], MOST))]
    columns = ["density", "weight_density", "kept", "size", "dead_inputs", "inputs", "dead_units", "units"]
    rows = []
    for name, part in table.groupby("weight", sort=False):
        for index, line in part.groupby("round")[columns].mean().iterrows():
            counts = [f"{line[column]:,.1f}".removesuffix(".0") for column in columns[2:]]
            rows.append([str(name), str(index), f"{line['density']:.4f}", number(line["weight_density"]), *counts])
    heads = ["weight", "round", "network's density", "weight's density", "kept", "entries", "dead inputs", "inputs"]
    note = "Means over replicates. No unit reads a dead input, and a dead unit reads no input."
    return Grid([*heads, "dead units", "units"], rows, [note])


def barriers(one: ReportedRun) -> Grid | None:
    """List the error barriers of linear mode connectivity."""
    rows = []
    for key, part in one.table("instability").groupby(["round", "step", "density", "batch_norm", "split"], sort=True):
        index, step, density, batch_norm, split = key
        means = part[["ends", "highest", "barrier"]].mean()
        stable = "stable" if means["barrier"] < STABLE else "not stable"
        where = [str(index), f"{density:.4f}", f"{step:,}", split, batch_norm, str(len(part))]
        rows.append([*where, *(f"{100 * mean:.2f}" for mean in means), stable])
    heads = ["round", "density", "step", "split", "BatchNorm", "n"]
    heads += ["error at the ends (%)", "highest error (%)", "barrier (%)"]
    note = (
        "Two networks trained from the same weights with two orders of the data. Barrier: the highest error on the "
        "straight line between them − the mean of its ends."
    )
    return Grid([*heads, f"under {100 * STABLE:g} %"], rows, [note]) if rows else None


def published_results(one: ReportedRun) -> Grid | None:
    """Compare the run with the published numbers of its protocol, if it has any."""
    try:
        lines, notes = published.compare(one.path)
        return tables.published(lines, [published.READING, *notes])
    except LotteryError:
        return None


def costs_by_branch(one: ReportedRun) -> Grid:
    """Sum up steps and time, a row for each branch."""
    rows = []
    for branch, part in [*one.costs.groupby("branch", sort=False), ("all", one.costs)]:
        steps, seconds = part["steps"].sum(), part["seconds"].sum()
        each = f"{1000 * seconds / steps:.2f}" if steps else ""
        rows.append([str(branch), f"{len(part):,}", f"{steps:,.0f}", f"{seconds:,.1f}", each])
    notes, seen = ["Time: of training, with the evaluations along the way."], costs.total(one.path)["examples"]
    if seen:
        notes.append(f"In all, {seen:,} examples were seen, the same examples again in each epoch.")
    return Grid(["branch", "networks", "steps", "time (s)", "time per step (ms)"], rows, notes)


def environment(one: ReportedRun) -> Grid:
    """List the data, the machine and the versions that the run was made with."""
    apart = ("versions", "architecture", "record_sha256")
    values = {_NAMES.get(key, key): value for key, value in one.environment.items() if key not in apart}
    architecture = one.environment.get("architecture") or {}
    rows = [["network", plain({key: value for key, value in architecture.items() if key != "keras"})]]
    rows += [[key.replace("_", " "), plain(value)] for key, value in values.items() if value not in (None, {}, "")]
    rows += [[name, version] for name, version in one.environment.get("versions", {}).items()]
    return Grid(["what", "value"], rows)


def collapsed(one: ReportedRun) -> list[str]:
    """Write a sentence for each weight that lost all of its entries in some network."""
    layers = one.table("layers")
    return [
        f"Nothing is left of {name} in {len(part)} network{'s' * (len(part) > 1)}, from round {part['round'].min()} on."
        for name, part in layers[layers["collapsed"]].groupby("weight", sort=False)
    ]


def side_by_side(runs: Sequence[ReportedRun]) -> Grid:
    """List the key facts of several runs and the settings in which they differ, a column for each run."""
    facts = [key_facts(one) for one in runs]
    rows = [[name, *(one[name] for one in facts)] for name in facts[0]]
    settings = [config.flat(one.experiment.model_dump(mode="json")) for one in runs]
    for key in dict.fromkeys(key for one in settings for key in one):
        values = [plain(one.get(key)) for one in settings]
        if len(set(values)) > 1 and key != "name":
            rows.append([key, *values])
    return Grid(
        ["what", *(one.label for one in runs)], rows, ["Below the key facts: every setting in which they differ."]
    )


def same_rounds(runs: Sequence[ReportedRun]) -> list[Grid | str]:
    """Compare the tickets of runs at the same densities, among those with the same data and seed; or say why not."""
    groups: dict[tuple[Any, ...], list[ReportedRun]] = {}
    for one in runs:
        groups.setdefault((one.environment.get("data_sha256"), one.experiment.run.seed), []).append(one)
    found: list[Grid | str] = []
    for group in groups.values():
        try:
            if len(group) > 1:
                own = {one.label: one.rows for one in group}
                rows = comparison.compared(own)
                found += [_compared(rows, group[0].label), *comparison.left_out(own, rows)]
        except LotteryError as error:
            found.append(str(error))
    if len(groups) > 1:
        found.append("Runs with other data or another seed have no pairs to compare.")
    return found


def end(value: float, form: str = "+.4f") -> str:
    """Format a difference or an end of an interval; empty if it is not known, as an end from one replicate."""
    return number(value, form) if abs(value) != float("inf") else ""


def _known(value: float, text: Callable[[float], str]) -> str:
    """Format an end of an interval; empty if it is not known."""
    return text(value) if abs(value) != math.inf else ""


def _interval(line: Mapping[str, Any] | None, measure: Metric, prefix: str = "") -> list[str]:
    """Format the ends of an interval of gains, of a line with ``low`` and ``high``; empty if they are not known."""
    if line is None:
        return ["", ""]
    return [_known(end, measure.difference) for end in measure.interval(line[f"{prefix}low"], line[f"{prefix}high"])]


def _compared(found: Table, first: str) -> Grid:
    """List several runs at the same rounds, from `lottery.statistics.comparison.compared`, a number to the cell."""
    measure = tables.measured(found)
    lines = [
        {
            "round": str(line["own_round"]),
            "density": f"{line['density']:.4f}",
            "run": line["run"],
            measure.name: measure.value(line[measure.what]),
            "95 % from": _known(line["low"], measure.value),
            "95 % to": _known(line["high"], measure.value),
            f"run − {first}": measure.change(line["difference"]),
            "difference from": _known(line["difference_low"], measure.change),
            "difference to": _known(line["difference_high"], measure.change),
            "n": str(line["replicates"]),
        }
        for line in found.to_dict("records")
    ]
    notes = [
        f"{measure.name.capitalize()} at the early-stop step: mean over n replicates, and the ends of its 95 % t "
        "interval.",
        f"Run − {first}: the same of the differences, paired by replicate. At each density {first} comes first, and "
        "then the best.",
    ]
    return _filled(lines)._replace(notes=notes)


def _filled(lines: list[dict[str, str]]) -> Grid:
    """Make a table of lines with the same keys, without columns that are empty in all of them."""
    heads = [head for head in lines[0] if any(line[head] for line in lines)]
    return Grid(heads, [[line[head] for head in heads] for line in lines])
