"""Print tables and sentences to a terminal or a pipe."""

import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lottery.errors import printable
from lottery.formatting import number

if TYPE_CHECKING:
    from lottery.runs import tables


def rows(frame: Any, as_json: bool = False, as_csv: bool = False) -> None:
    """Print a data frame as JSON, as CSV, or as a table."""
    if as_json:
        print(frame.to_json(orient="records", indent=1, double_precision=15))
    elif as_csv:
        print(frame.to_csv(index=False), end="")
    else:
        table(list(frame.columns), [[str(value) for value in row] for row in frame.itertuples(index=False)])


def means(frame: Any, keys: Sequence[str], columns: Sequence[str], count: str = "") -> None:
    """Print the means of columns over rows with the same keys; `count` is the head of a column that counts them."""
    lines = []
    for values, part in frame.groupby(list(keys), sort=False, dropna=False):
        known = [f"{value:.4f}" if isinstance(value, float) else str(value) for value in values]
        known += [str(len(part))] if count else []
        taken = [float(part[column].mean()) for column in columns]
        lines.append(known + [number(mean, ".0f" if mean.is_integer() else ".4f") for mean in taken])
    table([*keys, *([count] if count else []), *columns], lines)


def grid(shown: "tables.Grid") -> None:
    """Print a table and its notes."""
    # Heads are folded to the width of their column, so that more columns fit a terminal.
    heads = []
    for place, head in enumerate(shown.heads):
        width = max([6, *(len(row[place]) for row in shown.rows)])
        heads.append("\n".join(textwrap.wrap(head, width, break_long_words=False)))
    table(heads, shown.rows)
    for note in shown.notes:
        print(note)


def summary(run: Path, rows: Any, tolerance: float) -> None:
    """Print a run's table with a verdict for each round, and its verdict in sentences."""
    from lottery.runs import results, store, tables, verdicts

    if rows.empty:
        print(f"No round of {run} is complete yet.")
        return
    experiment = store.read_experiment(run)
    word, num_steps = verdicts.goal(experiment), experiment.train.num_steps
    points = results.summary(rows, num_steps)
    if (points["branch"] == store.TICKET).any():
        grid(tables.by_round(points, verdicts.judged(rows, tolerance, word), num_steps))
    _branches(points)
    for sentence in [*results.collapsed(run), *verdicts.sentences(rows, tolerance, word)]:
        print(sentence)


def table(heads: list[str], lines: list[list[str]]) -> None:
    """Print a table with words to the left and numbers to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    words = (
        "name", "run", "data", "model", "reproduces", "branch", "claim", "published", "measured", "verdict", "weight",
        "shape", "format", "file", "what", "choice", "batch_norm", "split", "side", "of",
    )  # fmt: skip
    printed = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for head in heads:
        printed.add_column(head, justify="left" if head in words else "right", overflow="fold")
    for line in lines:
        printed.add_row(*map(printable, line))
    # A pipe, read by a program or into a file, wraps nothing.
    console = Console(soft_wrap=True) if sys.stdout.isatty() else Console(width=10_000)
    console.print(printed, markup=False, highlight=False)


def _branches(points: Any) -> None:
    """Print the mean accuracies of the branches, if any, beside those of the ticket."""
    means = points.pivot(index=["round"], columns="branch", values="accuracy_mean")[points["branch"].unique()]
    if len(means.columns) < 2 or means.isna().all(axis=None):
        return
    means = means[means.iloc[:, 1:].notna().any(axis=1)]
    density = points.groupby("round")["density"].first()
    lines = [
        [str(index), f"{density[index]:.4f}", *("" if value != value else f"{value:.4f}" for value in line)]
        for index, line in zip(means.index, means.to_numpy(), strict=True)
    ]
    print()
    table(["round", "density", *(branch.replace("_", "_\n") for branch in means.columns)], lines)
    print("The ticket and the branches from its rounds: mean test accuracy at the early-stop step.")


def tickets(frame: Any, as_json: bool = False, as_csv: bool = False) -> None:
    """Print the table of `lottery.tickets.from_run.listed`; see `rows`."""
    if not (as_json or as_csv):
        if frame.empty:
            print("No pruned round is complete yet.")
            return
        formats = {"density": "{:.4f}", "test_accuracy": "{:.4f}", "less_dense": "{:+.4f}"}
        frame = frame.assign(**{name: frame[name].map(how.format) for name, how in formats.items()})
    rows(frame, as_json, as_csv)


def ticket(one: Any, as_json: bool = False) -> None:
    """Print the content and the origin of a `lottery.tickets.Ticket`."""
    from lottery import masks

    counts, of = masks.num_kept(one.masks), one.provenance
    if as_json:
        about = {"density": one.density, "num_kept": one.num_kept, "kept": counts, "has_trained": bool(one.trained)}
        about |= {key: getattr(one, key) for key in ("architecture", "metrics", "provenance")}
        print(json.dumps(about, indent=1))
        return
    lines = [
        [name, " x ".join(map(str, mask.shape)), str(counts[name]), str(mask.size), f"{mask.mean():.4f}"]
        for name, mask in one.masks.items()
    ]
    table(["weight", "shape", "kept", "of", "density"], lines)
    architecture, data = one.architecture, of.get("data")
    data = data if isinstance(data, dict) else {}
    network = architecture.get("name") or architecture.get("class") or "layers of Keras' own"
    accuracy = one.metrics.get("early_stop_test_accuracy")
    facts = {
        "density": f"{one.density:.4f}, {one.num_kept} weights kept",
        "network": f"{network}, of {architecture.get('library')}",
        "weights": "at the start, and trained" if one.trained else "at the start",
        "from": of.get("run") and f"{of['run']}, replicate {of.get('replicate')}, round {of.get('round')}",
        "rewound to": "rewind_step" in of and f"step {of['rewind_step']} ({of.get('rewind_mode')})",
        "data": data.get("name") and f"{data['name']}, digest {data.get('digest')}",
        "test accuracy": isinstance(accuracy, float) and f"{accuracy:.4f} at the early-stop step",
    }
    for name, text in facts.items():
        if text:
            print(printable(f"{name + ':':14} {text}"))


def exports(saved: Path | None, done: Sequence[Any], failed: Mapping[str, Exception]) -> None:
    """Print the files that a ticket was written to: the ticket file, if any, and others; and why some `failed`."""
    from lottery import files

    if saved and not done:
        print(f"{saved}: {saved.stat().st_size} bytes")
        return
    lines = [["safetensors", str(saved), *map(str, files.sizes(saved)), "", ""]] if saved else []
    for one in done:
        sizes, close = [str(one.num_bytes), str(one.num_gzipped)], [f"{one.difference:.1g}", f"{one.agreement:.4f}"]
        lines.append([one.form, str(one.path), *sizes, *close])
    table(["format", "file", "bytes", "gzipped", "difference", "same class"], lines)
    print("Each file was loaded again and compared. Difference: the largest of an output, relative to the largest")
    print("output. Same class: the share of inputs with the same class. Masked entries are zero in each file.")
    if unseen := [one.form for one in done if not one.zeros_checked]:
        print(f"But the zeros could not be checked in: {', '.join(unseen)}.")
    for form, error in failed.items():
        print(f"Not written: {form}. {printable(error)}")


def compacted(found: Any) -> None:
    """Print the sizes and times of a network before and after compaction."""
    small = found.compacted
    pairs = {f"units of {name}": pair for name, pair in small.units.items()}
    pairs |= {"parameters": small.num_parameters, "multiply-adds": small.multiply_adds}
    lines = [[name, str(before), str(after), f"{after / before:.4f}"] for name, (before, after) in pairs.items()]
    for num, (before, after) in found.seconds.items():
        times = [f"{1e3 * before:.3f}", f"{1e3 * after:.3f}", f"{after / before:.4f}"]
        lines.append([f"ms for {num} example{'s' * (num > 1)}", *times])
    table(["what", "before", "after", "ratio"], lines)
    unread, taken = int(small.unread.sum()), small.inputs.size
    dropped = ", not taken any more" if taken < small.unread.size else "; --drop-inputs leaves them out"
    print(f"Inputs that no weight reads: {unread} of {small.unread.size}{dropped if unread else ''}.")
    print(f"Largest difference of outputs: {found.difference:.1g} of the largest. Times are medians on one thread.")
