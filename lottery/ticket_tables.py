"""Tickets, exports and compacted networks, printed to the terminal or to a pipe."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lottery import showing
from lottery.errors import printable


def tickets(frame: Any, as_json: bool = False, as_csv: bool = False) -> None:
    """Print what `lottery.picking.listed` returns; see `showing.rows`."""
    if not (as_json or as_csv):
        if frame.empty:
            print("No pruned round is complete yet.")
            return
        formats = {"density": "{:.4f}", "test_accuracy": "{:.4f}", "less_dense": "{:+.4f}"}
        frame = frame.assign(**{name: frame[name].map(how.format) for name, how in formats.items()})
    showing.rows(frame, as_json, as_csv)


def ticket(one: Any, as_json: bool = False) -> None:
    """Print what a ticket holds and where it is from.

    Args:
        one: A `lottery.tickets.Ticket`.
        as_json: Everything that it says, as one object.
    """
    from lottery import masks

    counts, of = masks.num_kept(one.masks), one.provenance
    if as_json:
        about = {"density": one.density, "num_kept": one.num_kept, "kept": counts, "has_trained": bool(one.trained)}
        print(
            json.dumps(about | {key: getattr(one, key) for key in ("architecture", "metrics", "provenance")}, indent=1)
        )
        return
    showing.table(
        ["weight", "shape", "kept", "of", "density"],
        [
            [name, " x ".join(map(str, mask.shape)), str(counts[name]), str(mask.size), f"{mask.mean():.4f}"]
            for name, mask in one.masks.items()
        ],
    )
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
    for name, said in facts.items():
        if said:
            print(printable(f"{name + ':':14} {said}"))


def exports(saved: Path | None, done: Iterable[Any], failed: Mapping[str, Exception]) -> None:
    """Print what a ticket was written to.

    Args:
        saved: The ticket file, if there is one.
        done: What `lottery.exporting.export` returned.
        failed: Why others were not written, by form.
    """
    from lottery import placing

    done = list(done)
    if saved and not done:
        print(f"{saved}: {saved.stat().st_size} bytes")
        return
    lines = [["safetensors", str(saved), *map(str, placing.sizes(saved)), "", ""]] if saved else []
    for one in done:
        lines.append(
            [
                one.form,
                str(one.path),
                str(one.num_bytes),
                str(one.num_gzipped),
                f"{one.difference:.1g}",
                f"{one.agreement:.4f}",
            ]
        )
    showing.table(["format", "file", "bytes", "gzipped", "difference", "same class"], lines)
    print("Loaded again and compared: the largest difference of outputs, of the largest output; share of inputs that")
    print("are put into the same class. Masked entries are zero in each file.")
    if unseen := [one.form for one in done if not one.zeros_checked]:
        print(f"But whether they are could not be seen in: {', '.join(unseen)}.")
    for form, error in failed.items():
        print(f"Not written: {form}. {printable(error)}")


def compacted(found: Any) -> None:
    """Print what has become smaller.

    Args:
        found: A `lottery.compaction.Measured`.
    """
    small = found.compacted
    pairs = {f"units of {name}": pair for name, pair in small.units.items()}
    pairs |= {"parameters": small.num_parameters, "multiply-adds": small.multiply_adds}
    lines = [[what, str(before), str(after), f"{after / before:.4f}"] for what, (before, after) in pairs.items()]
    for num, (before, after) in found.seconds.items():
        lines.append(
            [
                f"ms for {num} example{'s' * (num > 1)}",
                f"{1e3 * before:.3f}",
                f"{1e3 * after:.3f}",
                f"{after / before:.4f}",
            ]
        )
    showing.table(["what", "before", "after", "ratio"], lines)
    unread, taken = int(small.unread.sum()), small.inputs.size
    dropped = ", not taken any more" if taken < small.unread.size else "; --drop-inputs leaves them out"
    print(f"Inputs that no weight reads: {unread} of {small.unread.size}{dropped if unread else ''}.")
    print(f"Largest difference of outputs: {found.difference:.1g} of the largest. Times are medians on one thread.")
