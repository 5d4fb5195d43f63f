"""The tables of runs as texts, one number to a cell: one producer each, for terminal, notebook and page."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lottery import formatting, grids
from lottery.formatting import number, short
from lottery.grids import Grid
from lottery.runs import store
from lottery.statistics import results, verdicts
from lottery.statistics.metric import ACCURACY, LOSS, Metric, metric_of
from lottery.statistics.published import numbered
from lottery.statistics.verdicts import Judgement, Table

# The order in which a narrow terminal leaves out columns of the rounds.
_LEAVE_OUT = (
    "end from", "end to", "kept", "early stop", "end", "end vs dense", "±", "95 % from", "95 % to", "needed", "special",
    "density",
)  # fmt: skip
# Of a round that is not judged, such as the dense network.
_UNJUDGED: dict[str, Any] = dict.fromkeys(verdicts.JUDGED, math.nan) | {
    "verdict": "",
    "final_verdict": "",
    "early_stop": "",
    "special": "",
}


def rounds(judgement: Judgement, points: Table, costs: Table | None = None) -> Grid:
    """List the tickets, a row for each round.

    Args:
        judgement: Of the run.
        points: The table of `lottery.statistics.results.summary`, with at least one ticket.
        costs: The table of `lottery.analysis.costs.table`, to list costs and early-stop steps beside dense, too.
    """
    judged = {line["round"]: line for line in judgement.rounds.to_dict("records")}
    metric, lines = judgement.metric, []
    points = points[points["branch"] == store.TICKET]
    is_mixed = points["replicates"].nunique() > 1
    for point in points.to_dict("records"):
        verdict = judged.get(point["round"], _UNJUDGED)
        low, high = metric.ends(verdict["low"], verdict["high"])
        final_low, final_high = metric.ends(verdict["final_low"], verdict["final_high"])
        line = {
            "round": str(point["round"]),
            "density": f"{point['density']:.4f}",
            "kept": f"{point['num_kept']:,.0f}",
            metric.name: metric.value(point[f"{metric.what}_mean"]),
            "±": metric.deviation(point[f"{metric.what}_std"]),
            "n": str(point["replicates"]) if is_mixed else "",
            "vs dense": metric.difference(verdict["mean"]),
            "95 % from": low,
            "95 % to": high,
            "early stop": _bound(point),
            "later?": verdict["early_stop"],
            "verdict": verdict["verdict"],
            "needed": number(verdict["needed"], ",.0f"),
            "special": verdict["special"],
            "end": metric.value(point[f"final_{metric.what}_mean"]),
            "end vs dense": metric.difference(verdict["final_mean"]),
            "end from": final_low,
            "end to": final_high,
            "end verdict": verdict["final_verdict"],
        }
        if costs is not None:
            line |= _step_cells(verdict) | _cost_cells(costs, point["round"])
        lines.append(line)
    key = _key_of_rounds(judgement, points) | (_KEY_OF_COSTS if costs is not None else {})
    return grids.of_lines(lines, key=key, leave_out=_LEAVE_OUT, tones=verdicts.TONES)


def _bound(point: Mapping[str, Any]) -> str:
    """Format the mean early-stop step, and whether it is a lower bound."""
    return f"{'≥ ' if point['censored'] else ''}{point['early_stop_step_mean']:,.0f}"


def _step_cells(verdict: Mapping[str, Any]) -> dict[str, str]:
    low, high = verdict["step_low"], verdict["step_high"]
    return {
        "early stop vs dense": number(verdict["step_mean"], "+,.0f"),
        "stop from": number(low, "+,.0f") if math.isfinite(low) else "",
        "stop to": number(high, "+,.0f") if math.isfinite(high) else "",
    }


def _cost_cells(costs: Table, round: int) -> dict[str, str]:
    cost = costs[(costs["branch"] == store.TICKET) & (costs["round"] == round)]
    return {
        "compression": f"{cost['compression'].mean():,.1f}",
        "with all parameters": f"{cost['parameter_compression'].mean():,.1f}",
        "multiply-adds": number(cost["multiply_adds"].mean(), ",.0f"),
        "speed-up": number(cost["speedup"].mean(), ",.1f"),
    }


_KEY_OF_COSTS = {
    "early stop vs dense": "ticket − dense of the early-stop steps, with its interval",
    "compression": "1 / density, of the prunable weights; with all parameters: biases and normalisation count too",
    "multiply-adds": "for one example, with prunable weights",
    "speed-up": "multiply-adds of the dense network over those of the ticket, which no hardware fully reaches",
}


def _key_of_rounds(judgement: Judgement, points: Table) -> dict[str, str]:
    """Explain the verdicts and the columns that `rounds` has."""
    metric, rule, judged = judgement.metric, judgement.rule, judgement.rounds
    num = int(points["replicates"].max())
    side, bound = metric.bound(rule.tolerance).replace("-", "−").split(" ", 1)
    other = "below" if side == "above" else "above"
    lower = "; lower is better" if metric.is_loss else ""
    over = "n" if points["replicates"].nunique() > 1 else num
    mean = f"mean and standard deviation (±) over {over} replicates" if num > 1 else "of one replicate"
    key = {
        verdicts.WINNING: "matching, and the early-stop step is shown to be no later than that of dense: by at most "
        f"{rule.margin:g} steps, the time between two evaluations",
        verdicts.MATCHING: f"the whole 95 % interval of vs dense is {side} {bound}, see --tolerance",
        verdicts.NOT_MATCHING: f"the whole interval is {other} {bound}",
        verdicts.CANNOT_TELL: f"{formatting.replicates(num)} cannot tell: the interval lies on both sides of {bound}, "
        "or is not known",
    }
    key = {word: text for word, text in key.items() if word in {*judged["verdict"], *judged["final_verdict"]}}
    if judged["needed"].notna().any():
        key["needed"] = "how many replicates of a new run would tell with a power of 80 %"
    if judged["special"].any():
        key["special"] = "no where a control does as well, yes where the ticket is better than each control"
    if points[f"{metric.what}_mean"].notna().any():
        key[metric.name] = f"at the early-stop step, {mean}; end: after the last step{lower}"
    key["vs dense"] = f"ticket − dense{_unit(metric)}, paired by replicate, and its interval for this round by itself"
    if points["censored"].any():
        last = f"{rule.last_step:,}"
        key["early stop"] = f"≥ where the validation loss of a replicate was lowest at the last step, {last}"
    return key


def controls(judgement: Judgement, costs: Table | None = None, only: int | None = None) -> Grid | None:
    """Compare each control with the ticket, over the replicates that have both; None if there are none.

    Args:
        judgement: Of the run.
        costs: The table of `lottery.analysis.costs.table`, to list what each network takes, too.
        only: The only round to list.
    """
    metric, lines, tests = judgement.metric, [], []
    values = judgement.rows.pivot(index="replicate", columns=["branch", "round"], values=metric.early_stop)
    for branch in verdicts.controls(judgement.rows):
        compared = judgement.rule.compared(branch)
        if compared and compared.takes_away and not compared.refused:
            tests.append(f"{branch} tests {compared.takes_away}")
        for line in judgement.against(branch).to_dict("records"):
            round = int(line["round"])
            if only not in (None, round):
                continue
            own, ticket = values[[(branch, round), (store.TICKET, round)]].dropna().mean()
            low, high = metric.ends(line["low"], line["high"])
            cells = {
                "branch": branch,
                "round": str(round),
                "density": f"{line['density']:.4f}",
                "n": str(int(line["replicates"])),
                f"its {metric.name}": metric.value(own),
                f"ticket's {metric.name}": metric.value(ticket),
                "ticket − branch": metric.difference(line["mean"]),
                "95 % from": low,
                "95 % to": high,
                "ticket is": _beside(branch, line, judgement),
            }
            lines.append(cells | (_spent_cells(costs, branch, round) if costs is not None else {}))
    if not lines:
        return None
    key = {"ticket − branch": f"{_means(metric)} over the n replicates that have both, and its 95 % interval"}
    key["ticket is"] = f"as its interval shows; {verdicts.AS_GOOD}: within the tolerance, ?: not shown"
    if costs is not None:
        key["its steps"] = "of all trainings that it takes, rounds before it included; its multiply-adds likewise"
    notes = [f"{'; '.join(tests)}."] if tests else []
    leave_out = ("n", "of the ticket's", f"ticket's {metric.name}", "density")
    return grids.of_lines(lines, key=key, notes=notes, leave_out=leave_out, tones=_BESIDE)


_BESIDE = {
    verdicts.BETTER: grids.GOOD,
    verdicts.AS_GOOD: grids.OPEN,
    verdicts.WORSE: grids.BAD,
    verdicts.CANNOT_TELL: grids.OPEN,
}


def _beside(branch: str, line: Mapping[str, Any], judgement: Judgement) -> str:
    return verdicts.NOT_FAIR if verdicts.refused(branch, judgement.rule) else verdicts.beside(line, judgement.rule)


def _spent_cells(costs: Table, branch: str, round: int) -> dict[str, str]:
    """Give what a network of a branch takes, and its multiply-adds as a share of those of the ticket."""
    columns = ["spent_steps", "spent_multiply_adds"]
    here = costs[costs["round"] == round]
    steps, count = here[here["branch"] == branch][columns].mean()
    whole = here[here["branch"] == store.TICKET]["spent_multiply_adds"].mean()
    return {
        "its steps": number(steps, ",.0f"),
        "its multiply-adds": short(count),
        "of the ticket's": number(count / whole),
    }


def transfers(rows: Table, points: Table) -> Grid | None:
    """List the tickets that were trained on other data, from the rows of a run and `results.summary`; None if none."""
    compared, metric = results.transfers(rows), metric_of(rows)
    lines = []
    for point in points[verdicts.transferred(points)].to_dict("records"):
        found = compared[point["branch"]]
        against = next(iter(found[found["round"] == point["round"]].to_dict("records")), _UNJUDGED)
        low, high = metric.ends(against["low"], against["high"])
        lines.append({
            "branch": point["branch"],
            "round": str(point["round"]),
            "density": f"{point['density']:.4f}",
            "n": str(point["replicates"]),
            metric.name: metric.value(point[f"{metric.what}_mean"]),
            "±": metric.deviation(point[f"{metric.what}_std"]),
            "vs dense there": metric.difference(against["mean"]),
            "95 % from": low,
            "95 % to": high,
        })  # fmt: skip
    if not lines:
        return None
    key = {
        metric.name: "on the other data, mean and standard deviation (±) over n replicates",
        "vs dense there": f"ticket − dense{_unit(metric)}, both trained on the other data, and its 95 % interval",
    }
    notes = [
        f"{label} has no dense network on its data; the same lottery branch as before trains it."
        for label, found in compared.items()
        if found.empty
    ]
    return grids.of_lines(lines, key=key, notes=notes, leave_out=("±", "n"))


def compared(found: Table, first: str) -> Grid:
    """List several runs at the same densities, compared with the first, from `comparison.compared`."""
    metric = LOSS if LOSS.what in found else ACCURACY
    lines = [
        {
            "round": str(line["own_round"]),
            "density": f"{line['density']:.4f}",
            "run": line["run"],
            "n": str(line["replicates"]),
            metric.name: metric.value(line[metric.what]),
            "95 % from": _known(line["low"], metric.value),
            "95 % to": _known(line["high"], metric.value),
            "vs first": metric.change(line["difference"]),
            "its from": _known(line["difference_low"], metric.change),
            "its to": _known(line["difference_high"], metric.change),
        }
        for line in found.sort_values("round", kind="stable").to_dict("records")
    ]
    lower = "; lower is better" if metric.is_loss else ""
    key = {
        metric.name: "at the early-stop step: mean and 95 % t interval over n replicates, so over seeds, for this test "
        f"set{lower}",
        "vs first": f"run − {first}, paired by replicate, and its t interval. At each density {first} comes first, and "
        "then the best",
    }
    return grids.of_lines(lines, key=key, leave_out=("n", "95 % from", "95 % to", "its from", "its to"))


def two_way(found: Table, measure: str, tolerance: float) -> Grid:
    """List ticket − dense with both intervals, a row for each round, from `lottery.statistics.two_way.table`."""
    rows = found[(found["measure"] == measure) & (found["against"] == "dense")].to_dict("records")
    lines = [
        {
            "round": str(line["round"]),
            "density": f"{line['density']:.4f}",
            "vs dense": formatting.signed(line["mean"]),
            "over seeds": formatting.ends(line["low"], line["high"]),
            "over seeds and test examples": formatting.ends(line["two_way_low"], line["two_way_high"]),
            "verdict": line["two_way_verdict"],
        }
        for line in rows
    ]
    num, examples = max(line["replicates"] for line in rows), rows[0]["examples"]
    key = {
        "over seeds": f"95 % t interval over {formatting.replicates(num)}, for this test set of {examples:,} examples",
        "over seeds and test examples": "95 % interval for other seeds and other test examples of the same kind",
        verdicts.MATCHING: f"this interval is {ACCURACY.bound(tolerance)}, see --tolerance; the early-stop step "
        "is not tested here. Each verdict is on its round alone",
    }
    return grids.of_lines(lines, key=key, leave_out=("density", "over seeds"), tones=verdicts.TONES)


def aggregated(found: Table, tasks: Sequence[str]) -> Grid:
    """List methods over several tasks at each density, from `lottery.statistics.aggregates.summary`."""
    first, num = found["method"].iloc[0], int(found["replicates"].min())
    beaten = f"P({first} > it)"
    lines = [
        {
            "density": f"{line['at']:.4f}",
            "method": line["method"],
            "IQM vs dense": f"{formatting.signed(line['iqm'])} ({formatting.ends(line['iqm_low'], line['iqm_high'])})",
            "P(it > dense)": _probability(line, "over_dense"),
            beaten: _probability(line, "first_over"),
        }
        for line in found.to_dict("records")
    ]
    key = {
        "IQM vs dense": "interquartile mean of method − dense, over all replicates of all tasks; in brackets the 95 % "
        "interval of the stratified bootstrap, which is too narrow for few replicates",
        "P(it > dense)": "probability that a network of the method is more accurate than a dense network",
    }
    if found["method"].nunique() > 1:
        key[beaten] = f"probability that a network of {first} is more accurate than one of the method"
    over = f"{len(tasks)} task{'s' * (len(tasks) > 1)} ({', '.join(tasks)}), {formatting.replicates(num)} of each"
    notes = [f"Over {over}. Test accuracy at the early-stop step."]
    return grids.of_lines(lines, key=key, notes=notes, leave_out=[beaten])


def published(lines: Sequence[Mapping[str, str]], notes: Iterable[str]) -> Grid:
    """List a run beside numbers with their sources, from the results of `lottery.statistics.published.compare`."""
    numbers = numbered(lines)
    rows = [
        {
            "claim": line["claim"],
            "source": f"{line['source']} [{numbers[line['source'], line['reference'], line['link']]}]",
            "stated (bound)": f"{line['stated']} ({line['bound']})",
            "measured": line["measured"],
            "verdict": line["verdict"],
        }
        for line in lines
    ]
    tones = {"pass": grids.GOOD, "fail": grids.BAD, "cannot tell": grids.OPEN, "open": grids.OPEN}
    heads = ["claim", "source", "stated (bound)", "measured", "verdict"]
    cells = [[row[head] for head in heads] for row in rows]
    return Grid(heads, cells, notes=list(notes), leave_out=["stated (bound)"], tones=tones)


def _unit(metric: Metric) -> str:
    return ", in per cent of the dense loss" if metric.is_loss else ""


def _means(metric: Metric) -> str:
    return "in per cent of the dense loss, the mean" if metric.is_loss else "the mean"


def _known(end: float, text: Callable[[float], str]) -> str:
    """Format an end of an interval; empty if it is not known."""
    return "" if math.isinf(end) else text(end)


def _probability(line: Mapping[str, Any], name: str) -> str:
    """Return a probability and its interval; nothing for NaN."""
    if math.isnan(line[name]):
        return ""
    return f"{line[name]:.2f} ({formatting.ends(line[f'{name}_low'], line[f'{name}_high'], '.2f')})"
