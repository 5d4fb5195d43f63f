"""The tables of runs as texts, one number to a cell: one producer each, for terminal, notebook and page."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from lottery import formatting, text_tables
from lottery.formatting import number, short
from lottery.statistics import verdicts
from lottery.statistics.metric import ACCURACY, LOSS, TICKET, Metric, metric_of, of_tickets, transferred
from lottery.statistics.published import numbered
from lottery.statistics.verdicts import CANNOT_TELL, Judgement
from lottery.text_tables import BAD, GOOD, OPEN, Table, TextTable

Columns = dict[str, tuple[str, Callable[[Any], str]]]  # see `lottery.text_tables.of_rows`

_whole = partial(number, form=",.0f")
_step = partial(number, form="+,.0f")
_times = partial(number, form=",.1f")

_COST_COLUMNS: Columns = {
    "stop vs dense": ("step_mean", _step),
    "stop from": ("step_low", _step),
    "stop to": ("step_high", _step),
    "compression": ("compression", _times),
    "with all parameters": ("parameter_compression", _times),
    "multiply-adds": ("multiply_adds", _whole),
    "theoretical speed-up": ("speedup", _times),
}
_KEY_OF_COSTS = {
    "stop vs dense": "ticket − dense of the early-stop steps, with its interval",
    "compression": "1 / density, of the prunable weights; with all parameters: biases and normalisation count too",
    "multiply-adds": "for one example, with prunable weights",
    "theoretical speed-up": "multiply-adds, dense / ticket; real speed-ups are smaller",
}
# The columns of the rounds that say what was found, and the order in which a narrow terminal leaves out any.
_FOUND = {
    "round", "density", "n", ACCURACY.name, LOSS.name, "vs dense", "95 % from", "95 % to", "verdict", "beats controls",
}  # fmt: skip
_LEAVE_OUT = (
    "end from", "end to", "kept", "early stop", "stops later", "end", "end vs dense", "end verdict", "±", "n",
    "budget from", "budget to", "within budget", "speed", "needed", "beats controls", ACCURACY.name, LOSS.name, "round",
)  # fmt: skip
_BESIDE = {verdicts.BETTER: GOOD, verdicts.AS_GOOD: OPEN, verdicts.WORSE: BAD, CANNOT_TELL: OPEN}
_PUBLISHED = {"pass": GOOD, "fail": BAD, "cannot tell": OPEN, "open": OPEN}


def rounds(judgement: Judgement, points: Table, costs: Table | None = None, short: bool = False) -> TextTable:
    """List the tickets, a row for each round.

    Args:
        judgement: Of the run.
        points: The table of `lottery.statistics.results.summary`.
        costs: The table of `lottery.analysis.costs.table`, to list costs and early-stop steps beside dense, too.
        short: Leave out all but what was found.
    """
    metric = judgement.metric
    points = of_tickets(points)
    rows = points.merge(judgement.rounds.drop(columns=["density", "replicates"]), on="round", how="left")
    # Nothing is judged of round 0, and the merge leaves NaN there.
    rows = rows.fillna({"early_stop": "", "verdict": "", "special": "", "final_verdict": ""})
    steps = rows["early_stop_step_mean"].map("{:,.0f}".format)
    rows["stop"] = steps.where(rows["censored"] == 0, "≥ " + steps)
    columns: Columns = {
        "round": ("round", str),
        "density": ("density", formatting.percent),
        metric.name: (f"{metric.what}_mean", metric.value),
        "verdict": ("verdict", str),
        "vs dense": ("mean", metric.difference),
        **_gain_ends(metric, "low", "high", "95 %"),
        "beats controls": ("special", str),
        "needed": ("needed", _whole),
        "within budget": ("budget_mean", metric.difference),
        **_gain_ends(metric, "budget_low", "budget_high", "budget"),
        "speed": ("speed", partial(number, form=".2f")),
        "±": (f"{metric.what}_std", metric.deviation),
        "n": ("replicates", str),
        "kept": ("num_kept", _whole),
        "early stop": ("stop", str),
        "stops later": ("early_stop", str),
        "end": (f"final_{metric.what}_mean", metric.value),
        "end vs dense": ("final_mean", metric.difference),
        **_gain_ends(metric, "final_low", "final_high", "end"),
        "end verdict": ("final_verdict", str),
    }
    if rows["replicates"].nunique() == 1:
        del columns["n"]
    if short:
        columns = {head: column for head, column in columns.items() if head in _FOUND}
    key = _key_of_rounds(judgement, points)
    if costs is not None:
        means = of_tickets(costs).groupby("round").mean(numeric_only=True)
        rows = rows.merge(means.drop(columns=["density", "num_kept"]), on="round")
        columns |= _COST_COLUMNS
        key |= _KEY_OF_COSTS
    return text_tables.of_rows(rows.to_dict("records"), columns, key=key, leave_out=_LEAVE_OUT, tones=verdicts.TONES)


def _key_of_rounds(judgement: Judgement, points: Table) -> dict[str, str]:
    """Explain the heads and the verdicts; `text_tables.of_rows` leaves out what a table does not have."""
    metric, rule = judgement.metric, judgement.rule
    num = int(points["replicates"].max())
    over = "n" if points["replicates"].nunique() > 1 else num
    mean = f"mean and standard deviation (±) over {over} replicates" if num > 1 else "of one replicate"
    side, other = ("below", "above") if metric.is_loss else ("above", "below")
    bound = metric.bound(rule.tolerance)
    most = int(max(judgement.rounds["replicates"], default=0))  # of any verdict; dense may have more
    too_few = f"{formatting.counted(most, 'replicate')} {'is' if most == 1 else 'are'} too few to decide"
    key = {
        verdicts.WINNING: f"the 95 % interval within the dense network's budget is {side} {bound}; the budget is the "
        "early-stop step of the dense network",
        verdicts.MATCHING: f"the whole 95 % interval of vs dense is {side} {bound}, see --tolerance",
        verdicts.NOT_MATCHING: f"the whole interval is {other} {bound}",
        CANNOT_TELL: f"{too_few}: the interval lies on both sides of {bound}, or is not known",
        "needed": "how many replicates of a new run would decide, with a power of 80 %",
        "beats controls": "yes if the ticket beats every control, no if some control is shown to do as well: the "
        "error of that is divided by the number of controls",
        metric.name: f"at the early-stop step, {mean}; end: after the last step{_lower(metric)}",
        "within budget": "as vs dense, with the ticket at its lowest validation loss up to the early stop of dense",
        "speed": "steps to the lowest validation loss of dense, divided by the steps of dense; empty if never reached",
        "stops later": "later or no later than dense, by the early-stop steps; no part of the verdict",
        "vs dense": f"ticket − dense, {_unit(metric)}, paired by replicate, and its interval for this round by itself",
    }
    # The column of controls has question marks too, which mean another interval.
    if CANNOT_TELL not in {*judgement.rounds["verdict"], *judgement.rounds["final_verdict"]}:
        del key[CANNOT_TELL]
    if points["censored"].any():
        last = f"{rule.last_step:,}"
        key["early stop"] = f"≥ where the validation loss of a replicate was lowest at the last step, {last}"
    return key


def controls(judgement: Judgement, costs: Table | None = None, only: int | None = None) -> TextTable | None:
    """Compare each control with the ticket, over the replicates that have both; None if there are none.

    Args:
        judgement: Of the run.
        costs: The table of `lottery.analysis.costs.table`, to list what each network takes, too.
        only: The only round to list.
    """
    metric, rule = judgement.metric, judgement.rule
    # From losses as they are; the lines of differences have them as gains.
    values = judgement.rows.pivot(index="replicate", columns=["branch", "round"], values=metric.early_stop)
    rows, tests = [], []
    for branch in judgement.controls:
        compared, refused = rule.compared(branch), rule.refused(branch)
        if compared and compared.takes_away:  # empty where the comparison is refused
            tests.append(f"{branch} tests {compared.takes_away}")
        for line in judgement.against(branch).to_dict("records"):
            if only not in (None, line["round"]):
                continue
            own, ticket = values[[(branch, line["round"]), (TICKET, line["round"])]].dropna().mean()
            beside = verdicts.NOT_FAIR if refused else verdicts.beside(line, rule)
            row = line | {"branch": branch, "own": own, "ticket": ticket, "beside": beside}
            if costs is not None:
                row |= _spent(costs, row)
            rows.append(row)
    if not rows:
        return None
    columns: Columns = {
        "branch": ("branch", str),
        "round": ("round", _whole),
        "density": ("density", formatting.percent),
        "n": ("replicates", _whole),
        f"its {metric.name}": ("own", metric.value),
        f"ticket's {metric.name}": ("ticket", metric.value),
        "ticket − branch": ("mean", metric.difference),
        **_gain_ends(metric, "low", "high", "95 %"),
        "ticket is": ("beside", str),
    }
    key = {
        "ticket − branch": f"mean over the n replicates that have both, {_unit(metric)}, and its 95 % interval",
        "ticket is": f"as its interval shows; {verdicts.AS_GOOD}: better by no more than the tolerance, ?: not shown",
        "its steps": "of all trainings that it takes, rounds before it included; its multiply-adds likewise",
        "share of the ticket's": "its multiply-adds / those of the ticket",
    }
    if costs is not None:
        columns |= {
            "its steps": ("steps", _whole),
            "its multiply-adds": ("multiply_adds", short),
            "share of the ticket's": ("share", number),
        }
    notes = [f"{'; '.join(tests)}."] if tests else []
    leave_out = ("n", "share of the ticket's", f"ticket's {metric.name}", "density")
    return text_tables.of_rows(rows, columns, key=key, notes=notes, leave_out=leave_out, tones=_BESIDE)


def _spent(costs: Table, row: Mapping[str, Any]) -> dict[str, float]:
    here = costs[costs["round"] == row["round"]]
    means = here.groupby("branch")[["spent_steps", "spent_multiply_adds"]].mean()
    (steps, count), (_, whole) = means.reindex([row["branch"], TICKET]).to_numpy()
    return {"steps": steps, "multiply_adds": count, "share": count / whole}


def transfers(rows: Table, points: Table) -> TextTable | None:
    """List the tickets that were trained on other data, from the rows of a run and `results.summary`; None if none."""
    import pandas as pd

    points = points[transferred(points)]
    if points.empty:
        return None
    metric, compared = metric_of(rows), verdicts.transfers(rows)
    against = pd.concat([found.assign(branch=label) for label, found in compared.items()])
    pairs = points.merge(against[["branch", "round", "mean", "low", "high"]], on=["branch", "round"], how="left")
    columns: Columns = {
        "branch": ("branch", str),
        "round": ("round", str),
        "density": ("density", formatting.percent),
        "n": ("replicates", str),
        metric.name: (f"{metric.what}_mean", metric.value),
        "±": (f"{metric.what}_std", metric.deviation),
        "vs dense there": ("mean", metric.difference),
        **_gain_ends(metric, "low", "high", "95 %"),
    }
    key = {
        metric.name: "on the other data, mean and standard deviation (±) over n replicates",
        "vs dense there": f"ticket − dense, {_unit(metric)}, both trained on the other data, and its 95 % interval",
    }
    how = "run the same `lottery branch` command again to train it"
    notes = [f"{label} has no dense network on its data; {how}." for label, found in compared.items() if found.empty]
    return text_tables.of_rows(pairs.to_dict("records"), columns, key=key, notes=notes, leave_out=("±", "n"))


def compared(found: Table, first: str) -> TextTable:
    """List several runs at the same densities, compared with the first, from `comparison.compared`."""
    metric = LOSS if LOSS.what in found else ACCURACY
    columns: Columns = {
        "round": ("own_round", str),
        "density": ("density", formatting.percent),
        "run": ("run", str),
        "n": ("replicates", str),
        metric.name: (metric.what, metric.value),
        "95 % from": ("low", metric.value),
        "95 % to": ("high", metric.value),
        "difference": ("difference", metric.change),
        "difference from": ("difference_low", metric.change),
        "difference to": ("difference_high", metric.change),
        "pairs": ("pairs", str),
    }
    others = found[found["run"] != first]
    if (others["pairs"] == others["replicates"]).all():
        del columns["pairs"]
    over = f"mean and 95 % t interval over n replicates, so over seeds, for this test set{_lower(metric)}"
    unit = "" if metric.is_loss else f", {_unit(metric)}"
    order = f"At each density {first} comes first, and then the best"
    key = {
        metric.name: f"at the early-stop step: {over}",
        "difference": f"run − {first}{unit}, paired by replicate, and its t interval. {order}",
        "pairs": "replicates that both runs have, of which the difference is the mean",
    }
    leave_out = ("n", "95 % from", "95 % to", "difference from", "difference to")
    return text_tables.of_rows(found.to_dict("records"), columns, key=key, leave_out=leave_out)


def two_way(found: Table, measure: str, tolerance: float) -> TextTable:
    """List ticket − dense with both intervals, a row for each round, from `lottery.statistics.two_way.table`."""
    found = found[(found["measure"] == measure) & (found["against"] == "dense")]
    rows = found.to_dict("records")
    for row in rows:
        row["seeds"] = formatting.ends(100 * row["low"], 100 * row["high"], "+.2f")
        row["both"] = formatting.ends(100 * row["two_way_low"], 100 * row["two_way_high"], "+.2f")
    columns: Columns = {
        "round": ("round", str),
        "density": ("density", formatting.percent),
        "vs dense": ("mean", ACCURACY.difference),
        "over seeds": ("seeds", str),
        "over seeds and test examples": ("both", str),
        "verdict": ("two_way_verdict", str),
    }
    examples = found["examples"].iloc[0]
    over = formatting.counted(found["replicates"].min(), "replicate", found["replicates"].max())
    key = {
        "over seeds": f"95 % t interval over {over}, for this test set of {examples:,} examples",
        "over seeds and test examples": "95 % interval for other seeds and other test examples of the same kind",
        verdicts.MATCHING: f"this interval is above {ACCURACY.bound(tolerance)}, see --tolerance; the early-stop step "
        "is not tested here. Each verdict is on its round alone",
    }
    return text_tables.of_rows(rows, columns, key=key, leave_out=("density", "over seeds"), tones=verdicts.TONES)


def aggregated(found: Table, tasks: Sequence[str]) -> TextTable:
    """List methods over several tasks at each density, from `lottery.statistics.aggregates.summary`."""
    first = found["method"].iloc[0]
    num = formatting.counted(found["replicates"].min(), "replicate", found["replicates"].max())
    rows = found.to_dict("records")
    for row in rows:
        for name, form, unit in (("iqm", "+.2f", 100), ("over_dense", ".2f", 1), ("first_over", ".2f", 1)):
            between = formatting.ends(unit * row[f"{name}_low"], unit * row[f"{name}_high"], form)
            value = number(unit * row[name], form)
            row[name] = f"{value} ({between})" if value else ""
    beaten = f"P({first} > method)"
    columns: Columns = {
        "density": ("at", formatting.percent),
        "method": ("method", str),
        "IQM vs dense": ("iqm", str),
        "P(method > dense)": ("over_dense", str),
        beaten: ("first_over", str),
    }
    key = {
        "IQM vs dense": "interquartile mean of method − dense, in percentage points, over all replicates of all "
        "tasks; in brackets the 95 % interval of the stratified bootstrap, which is too narrow for few replicates",
        "P(method > dense)": "probability that a network of the method is more accurate than a dense network",
        beaten: f"probability that a network of {first} is more accurate than a network of the method",
    }
    over = f"{formatting.counted(len(tasks), 'task')} ({', '.join(tasks)}), {num} of each"
    notes = [f"Over {over}. Test accuracy at the early-stop step."]
    return text_tables.of_rows(rows, columns, key=key, notes=notes, leave_out=[beaten])


def published(lines: Sequence[Mapping[str, str]], notes: Iterable[str]) -> TextTable:
    """List a run beside numbers with their sources, from the results of `lottery.statistics.published.compare`."""
    numbers = numbered(lines)
    rows = []
    for line in lines:
        place = numbers[line["source"], line["reference"], line["link"]]
        stated = f"{line['stated']} ({line['bound']})"
        rows.append([line["claim"], f"{line['source']} [{place}]", stated, line["measured"], line["verdict"]])
    heads = ["claim", "source", "stated (bound)", "measured", "verdict"]
    return TextTable(heads, rows, notes=list(notes), leave_out=["stated (bound)"], tones=_PUBLISHED)


def _gain_ends(metric: Metric, low: str, high: str, of: str) -> Columns:
    # The ends of gains in a loss change places: it is shown as ticket − other.
    low, high = metric.interval(low, high)
    return {f"{of} from": (low, metric.difference), f"{of} to": (high, metric.difference)}


def _unit(metric: Metric) -> str:
    return "in per cent of the dense loss" if metric.is_loss else "in percentage points"


def _lower(metric: Metric) -> str:
    return "; lower is better" if metric.is_loss else ""
