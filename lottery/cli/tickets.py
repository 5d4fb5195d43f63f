"""The commands about tickets: list, show, export, compact and verify."""

import contextlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lottery.cli import output
from lottery.cli.options import App, At, Csv, DataPath, Density, Json, OneReplicate, OneRound, RunPath, Source, naming
from lottery.errors import LotteryError, TicketError, printable, unknown

tickets = App(help="The tickets of a run, and ticket files.")

TICKET = "safetensors"


def _names() -> dict[str, str]:
    """The file that `--format all` writes for each format."""
    from lottery.tickets.exporting import EXPORTS

    return {TICKET: "ticket.safetensors"} | {form: one.file for form, one in EXPORTS.items()}


NamingFormats = naming(_names)


@tickets.command("ls", short_help="List a run's tickets.")
def tickets_ls(run: RunPath, as_json: Json = False, as_csv: Csv = False) -> None:
    """List a run's tickets, and which of them `best` and `smallest_matching` mean."""
    from lottery.formatting import number
    from lottery.statistics.metric import ACCURACY, LOSS
    from lottery.tickets import from_run

    found = from_run.listed(run)
    if not (as_json or as_csv):
        if found.empty:
            output.say("No pruned round is complete yet.")
            return
        measure = LOSS if "test_loss" in found else ACCURACY
        formats = {"density": number, f"test_{measure.what}": measure.value, "vs_dense": measure.change}
        found = found.assign(**{name: found[name].map(how) for name, how in formats.items()})
    output.rows(found, as_json, as_csv)


@tickets.command("show", short_help="Show what a ticket file holds.")
def tickets_show(
    file: Annotated[Path, typer.Argument(help="A ticket file.", metavar="FILE")],
    as_json: Annotated[bool, typer.Option("--json", help="Print everything in it as JSON.")] = False,
) -> None:
    """Check a ticket file and show what it holds and where it comes from; nothing in it is run."""
    from lottery import files, masks
    from lottery.tickets.ticket import load

    if files.is_folder(file):
        raise LotteryError(f"{str(file)!r} is a folder, allowed is a ticket file; `lottery tickets ls` lists a run's.")
    ticket = load(file)
    if as_json:
        counts, of = masks.num_kept(ticket.masks), ticket.provenance
        about = {"density": ticket.density, "num_kept": ticket.num_kept, "kept": counts}
        about |= {"has_trained": bool(ticket.trained), "architecture": ticket.architecture}
        about |= {"metrics": ticket.metrics, "provenance": of}
        print(json.dumps(about, indent=1))
        return
    output.grid(ticket.layers())
    for name, text in ticket.facts().items():
        output.say(f"{name + ':':14} {text}")


def export(
    source: Source,
    out: Annotated[Path, typer.Option(help="The file to write; for SavedModel or `all`, a folder.", metavar="FILE")],
    form: Annotated[
        str,
        typer.Option(
            "--format",
            help="The format: {names}, or all; by default the one that the file's ending means.",
            metavar="FORMAT",
        ),
    ] = "",
    round: OneRound = None,
    density: Density = None,
    replicate: OneReplicate = 1,
    at: At = "end",
    start: Annotated[
        bool, typer.Option("--start", help="Export the start weights, without the trained weights.")
    ] = False,
    data: DataPath = "",
) -> None:
    """Write a ticket as one file, or its network in other formats; each is loaded again and compared on real inputs.

    Examples: lottery export runs/NAME --round 7 --out ticket.safetensors; lottery export ticket.safetensors --out
    model.tflite --format tflite_sparse
    """
    from lottery import files

    paths = _paths(out, form)
    ticket = _ticket(source, round, density, replicate, at)
    if saved := paths.get(TICKET):
        ticket.save(saved, trained=not start)
    others = {one: path for one, path in paths.items() if one != TICKET}
    done, failed = _exported(ticket, source, others, start, data) if others else ([], {})
    if failed and form != "all":
        raise next(iter(failed.values()))
    if saved and not done:
        print(f"Written: {saved} ({saved.stat().st_size:,} bytes)")
        return
    lines = [["safetensors", str(saved), *(f"{size:,}" for size in files.sizes(saved)), "", ""]] if saved else []
    for one in done:
        sizes, close = [f"{one.num_bytes:,}", f"{one.num_gzipped:,}"], [f"{one.difference:.1g}", f"{one.agreement:.4f}"]
        lines.append([one.form, str(one.path), *sizes, *close])
    output.table(["format", "file", "bytes", "gzipped", "difference", "same class"], lines)
    output.say(
        "Each file was loaded again and compared. Difference: the largest of an output, relative to the largest "
        "output. Same class: the share of inputs with the same class. Masked entries are "
        f"{'zero' if ticket.held_at is None else 'at their held values'} in each file."
    )
    if unseen := [one.form for one in done if not one.zeros_checked]:
        what = "zeros" if ticket.held_at is None else "held values"
        output.say(f"But the {what} could not be checked in: {', '.join(unseen)}.")
    for form, error in failed.items():
        output.say(f"Not written: {form}. {printable(error)}")


def compact(
    source: Source,
    out: Annotated[Path | None, typer.Option(help="The .keras file for the smaller model.", metavar="FILE")] = None,
    round: OneRound = None,
    density: Density = None,
    replicate: OneReplicate = 1,
    at: At = "end",
    drop_inputs: Annotated[
        bool, typer.Option("--drop-inputs", help="Take only the inputs that some weight reads, as a flat vector.")
    ] = False,
    data: DataPath = "",
) -> None:
    """Make a ticket's trained network smaller: remove the units that do nothing, and measure the gain.

    Example: lottery compact runs/NAME --density 0.02 --out small.keras
    """
    import numpy as np

    from lottery import files
    from lottery.pipeline import environment
    from lottery.tickets import compaction

    if out is not None and out.suffix != ".keras":
        raise LotteryError(f"--out: received {str(out)!r}, allowed is a file that ends in .keras.")
    paths = [] if out is None else [out, out.with_suffix(".inputs.npy")][: 1 + drop_inputs]
    for path in paths:
        with files.readable_errors(path):
            if path.is_dir():
                raise LotteryError(f"--out: received the folder {str(path)!r}, allowed is a file.")
    ticket = _ticket(source, round, density, replicate, at)
    with contextlib.ExitStack() as stack:
        # Opened first, so that a path that cannot be written is refused at once.
        places = [stack.enter_context(files.replacing(path)) for path in paths]
        environment.use_threads(1)  # times are measured on one thread
        inputs = _inputs(ticket, source, data)
        found = compaction.benchmark(ticket.model(trained=ticket.trained is not None), inputs, drop_inputs)
        output.compacted(found)
        if out is not None:
            with files.readable_errors(out):
                found.compacted.model.save(places[0])
                if drop_inputs:
                    np.save(places[1], found.compacted.inputs)
    for what, path in zip(("Model", "Inputs that it takes, as positions in a flat example"), paths, strict=False):
        print(f"{what}: {path}")


def verify(file: Path) -> None:
    """Check a ticket file, and that its network can be built from it: `lottery verify FILE`."""
    from lottery.models import architecture
    from lottery.pipeline import environment
    from lottery.tickets.ticket import load, shapes

    try:
        ticket = load(file)
    except TicketError as error:
        output.say(printable(error))
        raise typer.Exit(1) from None
    output.say(f"{ticket!r}: every checksum, size and count holds.")
    environment.num_threads()  # imports TensorFlow without its start-up messages
    try:
        architecture.check(ticket.architecture, shapes(ticket.weights))
    except TicketError as error:
        output.say(printable(error))
        if {"name", "keras"} & ticket.architecture.keys():
            raise typer.Exit(1) from None
    else:
        output.say("Its network can be built, of Keras' own layers; nothing in the file is run.")


def _ticket(source: Path, round: str | None, density: float | None, replicate: int, at: Any) -> Any:
    from lottery.tickets.ticket import load

    chosen = int(round) if round and round.lstrip("-").isdecimal() else round
    ticket = load(source, round=chosen, density=density, replicate=replicate, at=at)
    output.say(f"{ticket!r}"[1:-1], file=sys.stderr)  # without its brackets
    return ticket


def _inputs(ticket: Any, source: Path, data: str) -> Any:
    """Read real examples, or return None and print why there are none."""
    from lottery.tickets import from_run

    try:
        return from_run.examples(source, ticket.provenance, data)
    except LotteryError as error:
        if data:
            raise
        note = f"{printable(error)} Outputs are compared on random inputs; --data FILE takes real ones."
        output.say(f"Note: {note}", file=sys.stderr)
        return None


def _exported(
    ticket: Any, source: Path, paths: dict[str, Path], start: bool, data: str
) -> tuple[list[Any], dict[str, LotteryError]]:
    """Export to each path; return the exports, and by format the errors of those that failed."""
    from lottery.pipeline import environment
    from lottery.tickets import exporting

    environment.num_threads()  # imports TensorFlow without its start-up messages
    inputs, done, failed, built = _inputs(ticket, source, data), [], {}, {}
    trained = ticket.trained is not None and not start
    for form, path in paths.items():
        library = exporting.EXPORTS[form].library
        print(f"Writing {path}", file=sys.stderr)
        try:
            if library not in built:
                built[library] = ticket.model(trained, library)
            done.append(exporting.export(built[library], ticket.masks, path, form, inputs, ticket.held_at))
        except LotteryError as error:
            failed[form] = error
    return done, failed


def _paths(out: Path, form: str) -> dict[str, Path]:
    """The file of each format, checked before anything is loaded."""
    names = _names()
    if form and form not in (*names, "all"):
        raise unknown("--format", form, (*names, "all"))
    endings = {Path(name).suffix: one for one, name in reversed(names.items())}
    if form == "all":
        if out.exists() and not out.is_dir():
            raise LotteryError(f"--out: received the file {str(out)!r}, allowed is a folder for all formats.")
        return {one: out / name for one, name in names.items()}
    if not form and out.suffix not in endings:
        allowed = ", ".join(sorted(filter(None, endings)))
        raise LotteryError(f"--out: received {str(out)!r}, allowed is a file that ends in {allowed}, or a folder.")
    form = form or endings[out.suffix]
    wanted = Path(names[form]).suffix
    if wanted and out.suffix != wanted:
        raise LotteryError(f"--out: received {str(out)!r}, allowed for {form} is a file that ends in {wanted}.")
    if wanted and out.is_dir():
        raise LotteryError(f"--out: received the folder {str(out)!r}, allowed is a file.")
    return {form: out}
