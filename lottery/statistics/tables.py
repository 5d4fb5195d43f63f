"""Tables of a run as texts, printed in the terminal and shown in the report."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from lottery import formatting
from lottery.errors import printable
from lottery.runs import store
from lottery.statistics import verdicts
from lottery.statistics.metric import ACCURACY, LOSS, Metric
from lottery.statistics.published import numbered
from lottery.statistics.verdicts import Table


class Grid(NamedTuple):
    """A table of texts."""

    heads: list[str]
    rows: list[list[str]]  # the first column names the row
    notes: Sequence[str] = ()  # sentences to show below it
    leave_out: Sequence[str] = ()  # heads of the columns to leave out where there is no room, the least important first


# Of the tones of verdicts, to be read on white and on black.
COLOURS = {verdicts.GOOD: "#2e9e4f", verdicts.OPEN: "#b8860b", verdicts.BAD: "#d9534f"}

# The order in which a narrow terminal leaves out columns of the rounds.
LEAVE_OUT = ("end interval", "interval", "kept", "end", "early stop", "end vs dense", "special", "density")


def by_round(points: Table, judged: Table, rule: verdicts.Rule) -> Grid:
    """List the tickets, a row for each round, from `results.summary` and `verdicts.judged` of `lottery.runs`."""
    judgements, measure = {line["round"]: line for line in judged.to_dict("records")}, rule.measure
    mean = f"{measure.what}_mean"
    points = points[points["branch"] == store.TICKET]
    most, lines = int(points["replicates"].max()), []
    for line in points.to_dict("records"):
        verdict, measured = judgements.get(line["round"]), line[mean] == line[mean]
        spread = f" ± {measure.deviation(line[f'{measure.what}_std'])}" if measured and line["replicates"] > 1 else ""
        own = {"vs dense": "", "interval": "", "verdict": "", "special": ""}
        at_the_end, later = {"end vs dense": "", "end interval": "", "end verdict": ""}, ""
        if verdict:
            own = {
                "vs dense": measure.difference(verdict["mean"]),
                "interval": measure.ends(verdict["low"], verdict["high"]),
                "verdict": _verdict(verdict),
                "special": verdict["special"],
            }
            at_the_end = {
                "end vs dense": measure.difference(verdict["final_mean"]),
                "end interval": measure.ends(verdict["final_low"], verdict["final_high"]),
                "end verdict": verdict["final_verdict"],
            }
            later = verdict["early_stop"]
        lines.append({
            "round": str(line["round"]),
            "density": f"{line['density']:.4f}",
            "kept": f"{line['num_kept']:,.0f}",
            measure.name: f"{measure.value(line[mean])}{spread}",
            "vs dense": own["vs dense"],
            "interval": own["interval"],
            "early stop": f"{'≥ ' if line['censored'] else ''}{line['early_stop_step_mean']:,.0f}",
            "later?": later,
            "verdict": own["verdict"],
            "special": own["special"],
            "end": measure.value(line[f"final_{mean}"]),
            **at_the_end,
        })  # fmt: skip
    unit = ", in per cent of the dense loss" if measure.is_loss else ""
    notes = [
        f"vs dense: ticket − dense{unit}, the mean over replicates; interval: its 95 % interval, for this round by "
        "itself."
    ]
    if points[mean].notna().any():
        over = f"mean ± standard deviation over {most} replicates"
        of = over if most > 1 else "of one replicate"
        lower = " Lower is better." if measure.is_loss else ""
        name = measure.name.capitalize()
        notes.insert(0, f"{name}: at the early-stop step, {of}; and at the end of training.{lower}")
    if points["censored"].any():
        last = f"≥: in some replicate the validation loss was lowest at the last step, {rule.last_step:,}"
        notes.append(f"{last}; longer training may stop later.")
    if (judged["verdict"] == verdicts.CANNOT_TELL).any():
        needed = "; the number beside it: how many a new run needs" if judged["needed"].notna().any() else ""
        notes.append(f"{verdicts.CANNOT_TELL}: {formatting.replicates(most)} cannot tell{needed}.")
    bound = measure.bound(rule.tolerance)
    notes.append(f"Matching: the whole interval of vs dense is {bound}, see --tolerance.")
    if rule.word == verdicts.WINNING:
        notes.append(
            "Winning: matching, and the early-stop step is shown to be no later than that of dense: by at most "
            f"{rule.margin:g} steps, the time between two evaluations."
        )
    if judged["special"].any():
        notes.append("Special: no where a control does as well, yes where the ticket is better than each control.")
    empty = [head for head in lines[0] if not any(line[head] for line in lines) and head not in ("vs dense", "verdict")]
    lines = [{head: cell for head, cell in line.items() if head not in empty} for line in lines]
    return Grid(list(lines[0]), [list(line.values()) for line in lines], notes, LEAVE_OUT)


def html(shown: Grid) -> str:
    """Write a table and its notes as HTML for a notebook, verdicts in colour."""
    numbers = [formatting.are_numbers(row[place] for row in shown.rows) for place in range(len(shown.heads))]

    def cell(kind: str, place: int, text: str) -> str:
        style = f"text-align: {'right' if numbers[place] else 'left'}; padding: 2px 8px"
        if kind == "td" and text and shown.heads[place].endswith("verdict"):
            style += f"; color: {COLOURS[verdicts.tone(text)]}"
        return f'<{kind} style="{style}">{escape(printable(text))}</{kind}>'

    lines = [("th", shown.heads), *(("td", row) for row in shown.rows)]
    rows = ("".join(cell(kind, place, text) for place, text in enumerate(texts)) for kind, texts in lines)
    notes = "<br>".join(map(escape, shown.notes))
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>{f'<small>{notes}</small>' if notes else ''}"


def measured(found: Table) -> Metric:
    """Return the measure of a table of `lottery.statistics.comparison.compared`."""
    return LOSS if LOSS.what in found else ACCURACY


def compared(found: Table, first: str) -> Grid:
    """List several runs at the same densities, compared with the first, from `comparison.compared`."""
    rows, measure = [], measured(found)
    for _, part in found.groupby("round", sort=True):
        for line in part.to_dict("records"):
            own = [measure.value(line[measure.what]), _between(line["low"], line["high"], measure.value)]
            difference = ["", ""]
            if line["difference"] == line["difference"]:
                ends = _between(line["difference_low"], line["difference_high"], measure.change)
                difference = [measure.change(line["difference"]), ends]
            where = [str(line["own_round"]), f"{line['density']:.4f}", line["run"], str(line["replicates"])]
            rows.append([*where, *own, *difference])
    heads = ["round", "density", "run", "replicates", measure.name, "95 % interval", "vs first", "its interval"]
    name, lower = measure.name.capitalize(), "; lower is better" if measure.is_loss else ""
    notes = [
        f"{name} at the early-stop step: mean and t interval over replicates, so over seeds, for this test set{lower}.",
        f"vs first: run − {first}, paired by replicate, and its t interval. At each density {first} comes first, and "
        "then the best.",
    ]
    return Grid(heads, rows, notes, ["replicates", "95 % interval", "its interval"])


def two_way(found: Table, measure: str, tolerance: float) -> Grid:
    """List ticket − dense with both intervals, a row for each round, from `lottery.statistics.two_way.table`."""
    lines = found[(found["measure"] == measure) & (found["against"] == "dense")].to_dict("records")
    heads = ["round", "density", "vs dense", "over seeds", "over seeds and test examples", "verdict"]
    rows = [
        [
            str(line["round"]), f"{line['density']:.4f}", formatting.signed(line["mean"]),
            formatting.ends(line["low"], line["high"]), formatting.ends(line["two_way_low"], line["two_way_high"]),
            line["two_way_verdict"],
        ]
        for line in lines
    ]  # fmt: skip
    num, examples = max(line["replicates"] for line in lines), lines[0]["examples"]
    notes = [
        f"Over seeds: 95 % t interval over {formatting.replicates(num)}, for this test set of {examples:,} examples.",
        "Over seeds and test examples: 95 % interval for other seeds and other test examples of the same kind.",
        f"Matching: this interval is above {f'-{tolerance:g}' if tolerance else '0'}, see --tolerance; the early-stop "
        "step is not tested here. Each verdict is on its round alone.",
    ]
    return Grid(heads, rows, notes, ["density", "over seeds"])


def aggregated(found: Table, tasks: Sequence[str]) -> Grid:
    """List methods over several tasks at each density, from `lottery.statistics.aggregates.summary`."""
    first, num = found["method"].iloc[0], int(found["replicates"].min())
    several = found["method"].nunique() > 1
    rows = []
    for line in found.to_dict("records"):
        ends = formatting.ends(line["iqm_low"], line["iqm_high"])
        row = [f"{line['at']:.4f}", line["method"], f"{formatting.signed(line['iqm'])} ({ends})"]
        rows.append([*row, _probability(line, "over_dense"), *([_probability(line, "first_over")] if several else [])])
    beaten = f"P({first} > it)"
    heads = ["density", "method", "IQM vs dense", "P(it > dense)", *([beaten] if several else [])]
    than = f", or that of {first} more than that of the method" if several else ""
    notes = [
        f"Over {len(tasks)} task{'s' * (len(tasks) > 1)} ({', '.join(tasks)}), {formatting.replicates(num)} of each. "
        "Test accuracy at the early-stop step.",
        "IQM vs dense: interquartile mean of method − dense, over all replicates of all tasks; in brackets the 95 % "
        "interval of the stratified bootstrap, which is too narrow for few replicates.",
        f"P: probability that a network of the method is more accurate than a dense network{than}.",
    ]
    return Grid(heads, rows, notes, [beaten])


def published(lines: Sequence[Mapping[str, str]], notes: Iterable[str]) -> Grid:
    """List a run beside numbers with their sources, from the results of `lottery.statistics.published.compare`."""
    numbers, rows = numbered(lines), []
    for line in lines:
        number = numbers[line["source"], line["reference"], line["link"]]
        stated = f"{line['stated']} ({line['bound']})"
        rows.append([line["claim"], f"{line['source']} [{number}]", stated, line["measured"], line["verdict"]])
    heads = ["claim", "source", "stated (bound)", "measured", "verdict"]
    return Grid(heads, rows, list(notes), ["stated (bound)"])


def _probability(line: Mapping[str, Any], name: str) -> str:
    """Return a probability and its interval; nothing for NaN."""
    if line[name] != line[name]:
        return ""
    return f"{line[name]:.2f} ({formatting.ends(line[f'{name}_low'], line[f'{name}_high'], '.2f')})"


def _between(low: float, high: float, text: Callable[[float], str]) -> str:
    """Return the ends of an interval as texts, if they are known."""
    return "not known" if abs(low) == float("inf") else f"{text(low)} to {text(high)}"


def _verdict(line: Mapping[str, Any]) -> str:
    """Return a verdict, if it is open with the number of replicates that would tell."""
    return line["verdict"] + ("" if line["needed"] != line["needed"] else f" {line['needed']:.0f}")
