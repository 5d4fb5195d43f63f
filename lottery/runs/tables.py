"""Tables of a run as texts, printed in the terminal and shown in the report."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from lottery import formatting
from lottery.runs import store, verdicts
from lottery.runs.verdicts import Table


class Grid(NamedTuple):
    """A table of texts."""

    heads: list[str]
    rows: list[list[str]]  # the first column names the row
    notes: Sequence[str] = ()  # sentences to show below it


def by_round(points: Table, judged: Table, num_steps: int, costs: Table | None = None) -> Grid:
    """List the tickets, a row for each round, from `lottery.runs.results.summary` and `lottery.runs.verdicts.judged`.

    The table of `lottery.analysis.costs` adds columns that a terminal has no room for.
    """
    judgements = {line["round"]: line for line in judged.to_dict("records")}
    points = points[points["branch"] == store.TICKET]
    most, lines = int(points["replicates"].max()), []
    for line in points.to_dict("records"):
        verdict, measured = judgements.get(line["round"]), line["accuracy_mean"] == line["accuracy_mean"]
        spread = f" ± {line['accuracy_std']:.4f}" if measured and line["replicates"] > 1 else ""
        cells = {
            "round": str(line["round"]),
            "density": f"{line['density']:.4f}",
            "kept": f"{line['num_kept']:,.0f}",
            "test accuracy": f"{line['accuracy_mean']:.4f}{spread}" if measured else "",
            "early stop": f"{'≥ ' if line['censored'] else ''}{line['early_stop_step_mean']:,.0f}",
            "at the end": formatting.number(line["final_accuracy_mean"]),
            "− dense": formatting.signed(verdict["mean"]) if verdict else "",
            "verdict": _verdict(verdict) if verdict else "",
        }
        if costs is not None:
            own = costs[(costs["branch"] == store.TICKET) & (costs["round"] == line["round"])]
            cells |= {
                "95 % interval": formatting.ends(verdict["low"], verdict["high"]) if verdict else "",
                "n": str(line["replicates"]),
                "compression": f"{own['compression'].mean():.1f}",
                "multiply-adds": formatting.number(own["multiply_adds"].mean(), ",.0f"),
                "speed-up": formatting.number(own["speedup"].mean(), ".1f"),
            }
        lines.append(cells)
    notes = ["− dense: ticket − the dense network of the same replicate, the mean."]
    if points["accuracy_mean"].notna().any():
        over = f"mean ± standard deviation over {'n' if costs is not None else most} replicates"
        of = over if most > 1 else "of one replicate"
        notes.insert(0, f"Test accuracy: at the early-stop step, {of}; and at the end of training.")
    if points["censored"].any():
        last = f"≥: in some replicate the validation loss was lowest at the last step, {num_steps}"
        notes.append(f"{last}; longer training may stop later.")
    if len(undecided := judged[judged["verdict"] == verdicts.CANNOT_TELL]):
        needed = "; the number beside it: about how many would tell" if undecided["needed"].notna().any() else ""
        notes.append(f"{verdicts.CANNOT_TELL}: cannot tell from {formatting.replicates(most)}{needed}.")
    if costs is not None:
        notes.append(
            "n: replicates; the interval is the t interval of ticket − dense. Compression: 1 / density. Multiply-adds: "
            "for one example, with prunable weights; speed-up: of the dense network by these, in theory."
        )
    return Grid(list(lines[0]), [list(line.values()) for line in lines], notes)


def compared(found: Table, first: str) -> Grid:
    """List several runs at the same rounds, compared with the first, from `lottery.runs.comparison.compared`."""
    rows = []
    for _, part in found.groupby("round", sort=True):
        for place, line in enumerate(part.to_dict("records")):
            where = ["", ""] if place else [str(line["round"]), f"{line['density']:.4f}"]
            own = [formatting.number(line["accuracy"]), formatting.ends(line["low"], line["high"], ".4f")]
            difference = ["", ""]
            if line["difference"] == line["difference"]:
                ends = formatting.ends(line["difference_low"], line["difference_high"])
                difference = [formatting.signed(line["difference"]), ends]
            rows.append([*where, line["run"], str(line["replicates"]), *own, *difference])
    heads = ["round", "density", "run", "replicates", "test accuracy", "95 % interval", f"− {first}"]
    note = f"Test accuracy at the early-stop step: mean and t interval, then run − {first}, paired by replicate."
    return Grid([*heads, "its 95 % interval"], rows, [note, "Within a round the best comes first."])


def published(lines: Iterable[Mapping[str, str]], notes: Iterable[str]) -> Grid:
    """List a run beside published numbers, from the lines and sentences of `lottery.runs.published.compare`."""
    heads = ["claim", "published", "measured", "verdict"]
    return Grid(heads, [[line[head] for head in heads] for line in lines], list(notes))


def _verdict(line: Mapping[str, Any]) -> str:
    """Return a verdict, if it is open with the number of replicates that would tell."""
    return line["verdict"] + ("" if line["needed"] != line["needed"] else f" {line['needed']:.0f}")
