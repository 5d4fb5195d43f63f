"""The tables of a page that no other place shows; `lottery.statistics.tables` has the others."""

from collections.abc import Sequence
from datetime import date
from typing import Any

from lottery import config
from lottery.analysis import costs
from lottery.errors import LotteryError
from lottery.figures import style
from lottery.formatting import duration, percent, plain
from lottery.report.reported import ReportedRun
from lottery.settings import GIVEN
from lottery.statistics import comparison, published, tables, verdicts
from lottery.statistics.barriers import STABLE
from lottery.statistics.metric import of_dense, of_tickets
from lottery.text_tables import BAD, GOOD, TextTable

# What a reader calls the entries of environment.json.
_NAMES = {"uses": "multiply-adds per entry", "num_threads": "threads", "num_devices": "devices", "onednn": "oneDNN"}


def of_run(run: ReportedRun) -> dict[str, TextTable | None]:
    """Make the tables of a run by name; None for a table without rows."""
    return {
        "rounds": tables.rounds(run.judgement, run.summary, run.costs),
        "controls": tables.controls(run.judgement, run.costs),
        "transfers": tables.transfers(run.rows, run.summary),
        "weights": by_weight(run),
        "barriers": barriers(run),
        "published": published_results(run),
        "costs": costs_by_branch(run),
        "environment": environment(run),
    }


def about(run: ReportedRun) -> str:
    """Name the network, the data and the criterion of a run, or say that they were passed."""
    experiment = run.experiment
    criterion = experiment.prune.criterion
    network = "a network passed in Python" if experiment.model.name == GIVEN else experiment.model.name
    data = "data passed in Python" if experiment.data.name == GIVEN else experiment.data.name
    pruning = "pruning by a criterion passed in Python" if criterion == GIVEN else f"{criterion} pruning"
    return f"{network} on {data} · {pruning}"


def byline(run: ReportedRun, author: str = "") -> list[str]:
    """Say by whom, when and with which version a run was made, as far as that is known."""
    words = [f"by {author}"] if author else []
    # Records hold no date, and the files of a copy may have others: the page says that it dates files.
    days = sorted({day(path.stat().st_mtime) for path in run.path.glob("replicate-*/round-*/round.json")})
    if days:
        words.append(f"files dated {' to '.join(dict.fromkeys((days[0], days[-1])))}")
    release, commit = run.environment.get("versions", {}).get("lottery"), run.environment.get("commit")
    if release:
        words.append(f"trained with lottery {release}" + (f" ({commit[:9]})" if commit else ""))
    return words


def day(seconds: float) -> str:
    """Format a time, in seconds since 1970, as the day where the reader of this clock is, such as 2026-11-22."""
    return date.fromtimestamp(seconds).isoformat()


def key_facts(run: ReportedRun) -> dict[str, str]:
    """Collect the most important numbers of a run, by name."""
    metric = run.judgement.metric
    (value,) = of_dense(run.summary)[f"{metric.what}_mean"]
    facts = {f"dense {metric.name}": metric.value(value) or "not measured"}
    for word, line in run.judgement.shown.items():
        facts[f"smallest density shown to be {word}"] = _density(line)
    by_mean = verdicts.smallest_by_mean(run.rows, run.judgement.rule.tolerance)
    facts["smallest density matching by the mean"] = _density(by_mean)
    facts["smallest density tried"] = percent(of_tickets(run.rows)["density"].min())
    return facts | size(run)


def size(run: ReportedRun) -> dict[str, str]:
    """Say how much was trained, by name."""
    return {
        "replicates": str(run.rows["replicate"].nunique()),
        "networks trained": f"{(run.costs['steps'] > 0).sum():,}",
        "steps trained": f"{run.costs['steps'].sum():,}",
        "time of training": duration(run.costs["seconds"].sum()),
    }


def _density(line: dict[str, Any] | None) -> str:
    return percent(line["density"]) if line else "none"


def by_weight(run: ReportedRun) -> TextTable:
    """Describe the layers: a row for each weight in each of some rounds."""
    table = style.of_rounds(of_tickets(run.table("layers")), None)
    columns = ["density", "weight_density", "kept", "size", "dead_inputs", "inputs", "dead_units", "units"]
    rows = []
    for name, part in table.groupby("weight", sort=False):
        for round, line in part.groupby("round")[columns].mean().iterrows():
            counts = [f"{line[column]:,.1f}".removesuffix(".0") for column in columns[2:]]
            rows.append([str(name), str(round), percent(line["density"]), percent(line["weight_density"]), *counts])
    heads = ["weight", "round", "network's density", "weight's density", "kept", "entries"]
    heads += ["dead inputs", "inputs", "dead units", "units"]
    note = "Means over replicates. No unit reads a dead input, and a dead unit reads no input."
    return TextTable(heads, rows, notes=[note])


def barriers(run: ReportedRun) -> TextTable | None:
    """List the error barriers of linear mode connectivity."""
    rows = []
    # Not by density: where whole units are pruned, each replicate has its own.
    for key, part in run.table("instability").groupby(["round", "step", "batch_norm", "split"], sort=True):
        round, step, batch_norm, split = key
        means = part[["ends", "highest", "barrier"]].mean()
        stable = "stable" if means["barrier"] < STABLE else "not stable"
        where = [str(round), percent(part["density"].mean()), f"{step:,}", split, batch_norm, str(len(part))]
        rows.append([*where, *(f"{100 * mean:.2f}" for mean in means), stable])
    if not rows:
        return None
    heads = ["round", "density", "step", "split", "BatchNorm", "n"]
    heads += ["error at the ends (%)", "highest error (%)", "barrier (%)", f"under {100 * STABLE:g} %"]
    note = (
        "Two networks trained from the same weights with two orders of the data. Barrier: the highest error on the "
        "straight line between them − the mean of its ends."
    )
    return TextTable(heads, rows, notes=[note], tones={"stable": GOOD, "not stable": BAD})


def published_results(run: ReportedRun) -> TextTable | None:
    """Compare the run with the published numbers of its experiment; None if there are none."""
    try:
        lines, notes = published.compare(run.path)
    except LotteryError:
        return None
    return tables.published(lines, [published.READING, *notes])


def costs_by_branch(run: ReportedRun) -> TextTable:
    """Sum up steps and time, a row for each branch."""
    rows = []
    for branch, part in [*run.costs.groupby("branch", sort=False), ("all", run.costs)]:
        steps, seconds = part["steps"].sum(), part["seconds"].sum()
        # A network that is left untrained takes no steps.
        each = f"{1000 * seconds / steps:.2f}" if steps else ""
        rows.append([str(branch), f"{len(part):,}", f"{steps:,.0f}", f"{seconds:,.1f}", each])
    notes = ["Time: of training, with the evaluations along the way."]
    num_seen = costs.total(run.path, run.costs)["examples"]
    if num_seen:
        notes.append(f"In all, {num_seen:,} examples were seen, the same examples again in each epoch.")
    return TextTable(["branch", "networks", "steps", "time (s)", "time per step (ms)"], rows, notes=notes)


def environment(run: ReportedRun) -> TextTable:
    """List the data, the machine and the versions that the run was made with."""
    architecture = run.environment.get("architecture") or {}
    rows = [["network", plain({key: value for key, value in architecture.items() if key != "keras"})]]
    for key, value in run.environment.items():
        if key not in ("versions", "architecture", "record_sha256") and value not in (None, {}, ""):
            rows.append([_NAMES.get(key, key).replace("_", " "), plain(value)])
    rows += [[name, version] for name, version in run.environment.get("versions", {}).items()]
    return TextTable(["what", "value"], rows)


def side_by_side(runs: Sequence[ReportedRun]) -> TextTable:
    """List the key facts of several runs and the settings in which they differ, a column for each run."""
    facts = [key_facts(run) for run in runs]
    # One run may measure accuracy, and another a loss.
    names = dict.fromkeys(name for of in facts for name in of)
    rows = [[name, *(of.get(name, "") for of in facts)] for name in names]
    settings = [config.flat(run.experiment.model_dump(mode="json")) for run in runs]
    for key in dict.fromkeys(key for of in settings for key in of):
        values = [plain(of.get(key)) for of in settings]
        if len(set(values)) > 1 and key != "name":
            rows.append([key, *values])
    note = "Below the key facts: every setting in which they differ."
    return TextTable(["what", *(run.label for run in runs)], rows, notes=[note])


def same_rounds(runs: Sequence[ReportedRun]) -> list[TextTable | str]:
    """Compare the tickets of runs at the same densities, among those that have pairs; or say why not."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for run in runs:
        # Replicates are pairs only where they see the same data in the same order, and are measured alike.
        key = run.environment.get("data_sha256"), run.experiment.run.seed, comparison.measured(run.environment)
        groups.setdefault(key, {})[run.label] = run.rows
    found: list[TextTable | str] = []
    for group in groups.values():
        if len(group) < 2:
            continue
        try:
            rows = comparison.compared(group)
            found += [tables.compared(rows, next(iter(group))), *comparison.left_out(group, rows)]
        except LotteryError as error:
            found.append(str(error))
    if len(groups) > 1:
        found.append("Runs with other data, another seed or another metric have no pairs to compare.")
    return found
