"""The commands about tickets: list, show, export and compact."""

import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from lottery.cli import options, output
from lottery.cli.commands import App, listing
from lottery.errors import LotteryError, printable, unknown
from lottery.formatting import counted, listed
from lottery.text_tables import TextTable

app = App(help="The tickets of a run, and ticket files.")

TICKET = "safetensors"
EVERY = "all"  # formats, to one folder


def _names() -> dict[str, str]:
    """Name the file that `--format all` writes for each format."""
    from lottery.tickets.exporting import EXPORTS

    return {TICKET: "ticket.safetensors"} | {name: form.file for name, form in EXPORTS.items()}


WithFormats = listing('Formats, and the file that "all" writes of each', lambda: _names().items())


@app.command("ls", short_help="List a run's tickets.")
def tickets_ls(run: options.RunPath, as_data: output.AsData) -> None:
    """List a run's tickets, and which of them `best` and `smallest_matching` mean."""
    from lottery.statistics.metric import ACCURACY, LOSS
    from lottery.tickets import from_run

    found = from_run.listed(run)
    measure = LOSS if "test_loss" in found else ACCURACY
    if as_data:
        output.rows(found, as_data)
        return
    if found.empty:
        output.say("No pruned round is complete yet.")
        return
    formats = {f"test_{measure.what}": measure.value, "vs_dense": measure.change}
    found = found.assign(**{name: found[name].map(how) for name, how in formats.items()})
    output.rows(found, leave_out=("num_kept", "vs_dense"))
    best = "lowest mean validation loss" if measure is LOSS else "highest mean validation accuracy"
    output.say(
        f"also called: best is the ticket with the {best}; smallest_matching is the sparsest ticket that is shown to "
        "be matching."
    )


@app.command("show", short_help="Show what a ticket file holds.")
def tickets_show(
    file: Annotated[Path, Argument(help="A ticket file.", metavar="FILE")],
    as_json: Annotated[bool, Option("--json", help="Print everything in it as JSON.")] = False,
) -> None:
    """Check a ticket file and show what it holds and where it comes from; nothing in it is run."""
    from lottery import files, masks
    from lottery.tickets.ticket import load

    if files.is_folder(file):
        raise LotteryError(f"{str(file)!r} is a folder, not a ticket file; `lottery tickets ls` lists a run's tickets.")
    ticket = load(file)
    if as_json:
        about = {
            "density": ticket.density,
            "num_kept": ticket.num_kept,
            "kept": masks.num_kept(ticket.masks),
            "has_trained": bool(ticket.trained),
            "architecture": ticket.architecture,
            "metrics": ticket.metrics,
            "provenance": ticket.provenance,
        }
        print(json.dumps(about, indent=1))
        return
    output.table(ticket.layers(), has_rows=False)
    for name, text in ticket.facts().items():
        output.say(f"{name + ':':14} {text}")


@dataclass(frozen=True)
class Choice:
    """A ticket of a run or of a file, and where its data are."""

    source: options.Source
    round: Annotated[str | None, Option(help="Of a run: a number, best or smallest_matching.", metavar="ROUND")] = None
    density: Annotated[float | None, Option(help="Instead of --round: the nearest density.", metavar="FRACTION")] = None
    replicate: Annotated[int, Option(help="Replicate of a run, from 1.")] = 1
    at: Annotated[str, Option(metavar="end|early_stop|budget", help="Which trained weights of a run to take.")] = "end"
    data: Annotated[str, Option(help="A file with the data of the ticket, if they are not found.", metavar="FILE")] = ""

    def load(self) -> Any:
        """Load the ticket, and say which it is."""
        from lottery.tickets.ticket import load

        at: Any = self.at
        ticket = load(self.source, round=self.round, density=self.density, replicate=self.replicate, at=at)
        # --density takes the nearest round, and `best` any, so the round must be named.
        output.say(f"{ticket!r}"[1:-1], file=sys.stderr)  # without its brackets
        return ticket

    def inputs(self, ticket: Any) -> Any:
        """Read real examples, or return None and print why there are none."""
        from lottery.tickets import from_run

        try:
            return from_run.examples(self.source, ticket.provenance, self.data)
        except LotteryError as error:
            if self.data:
                raise
            # A ticket that names no data has no digest to compare a file with, so --data would be refused.
            advice = "; --data FILE takes real inputs" if ticket.provenance.get("data") else ""
            output.say(f"Note: {printable(error)} Outputs are compared on random inputs{advice}.", file=sys.stderr)
            return None


def export(
    out: Annotated[Path, Option(help="The file to write; for SavedModel or `all`, a folder.", metavar="FILE")],
    form: Annotated[
        str, Option("--format", help="A format below, or all; by default the file's ending decides.", metavar="FORMAT")
    ] = "",
    start: Annotated[bool, Option("--start", help="Export the start weights, without the trained weights.")] = False,
    *,
    choice: Choice,
) -> None:
    """Write a ticket as one file, or its network in other formats; each is loaded again and compared on real inputs.

    Examples: lottery export runs/NAME --round 7 --out ticket.safetensors; lottery export ticket.safetensors --out
    model.tflite --format tflite_sparse
    """
    paths = _paths(out, form)
    ticket = choice.load()
    saved = paths.pop(TICKET, None)
    if saved:
        ticket.save(saved, trained=not start)
    done, failed = _exported(ticket, choice, paths, start) if paths else ([], {})
    if failed and form != EVERY:
        raise next(iter(failed.values()))
    if done:
        _show_exported(ticket, saved, done)
    elif saved:
        print(f"Written: {saved} ({saved.stat().st_size:,} bytes)")
    for form, error in failed.items():
        output.say(f"Not written: {form}. {printable(error)}")


def _show_exported(ticket: Any, saved: Path | None, done: list[Any]) -> None:
    """Print the sizes of what was exported, and how it compares with the network."""
    from lottery import files

    # A network that predicts numbers has no classes, and its ticket no accuracy.
    has_classes = not ticket.metrics or ticket.metrics.get("early_stop_test_accuracy") is not None
    compared_by = ["difference", "same class"] if has_classes else ["difference"]
    lines = []
    if saved:
        num_bytes, num_gzipped = files.sizes(saved)
        lines.append([TICKET, str(saved), f"{num_bytes:,}", f"{num_gzipped:,}", *[""] * len(compared_by)])
    for exported in done:
        sizes = [f"{exported.num_bytes:,}", f"{exported.num_gzipped:,}"]
        compared = [f"{exported.difference:.1g}"]
        if has_classes:
            compared.append(f"{exported.agreement:.4f}")
        lines.append([exported.form, str(exported.path), *sizes, *compared])
    output.table(TextTable(["format", "file", "bytes", "gzipped", *compared_by], lines), has_rows=False)
    same_class = "Same class: the share of inputs with the same class. " if has_classes else ""
    held = "zero" if ticket.held_at is None else "at their held values"
    unseen = [exported.form for exported in done if not exported.zeros_checked]
    but = f", but for {listed(unseen)}, where they could not be checked" if unseen else ""
    output.say(
        "Each file was loaded again, and its outputs were compared with the outputs of the model. Difference: the "
        f"largest difference of two outputs, as a fraction of the largest output. {same_class}Masked entries are "
        f"{held} in each file{but}."
    )


def _exported(
    ticket: Any, choice: Choice, paths: dict[str, Path], start: bool
) -> tuple[list[Any], dict[str, LotteryError]]:
    """Export to each path; return the exports, and by format the errors of those that failed."""
    from lottery.pipeline import environment
    from lottery.tickets import exporting

    environment.import_tensorflow()
    inputs = choice.inputs(ticket)
    trained = ticket.trained is not None and not start
    done, failed, built = [], {}, {}
    for form, path in paths.items():
        library = exporting.EXPORTS[form].library
        print(f"Writing {path}", file=sys.stderr)
        try:
            # Most formats take the same model, and building it takes seconds.
            if library not in built:
                built[library] = ticket.model(trained, library)
            done.append(exporting.export(built[library], ticket.masks, path, form, inputs, ticket.held_at))
        # With `all`, a format that cannot hold this network must not keep back the others.
        except LotteryError as error:
            failed[form] = error
    return done, failed


def _paths(out: Path, form: str) -> dict[str, Path]:
    """The file of each format, checked before anything is loaded."""
    from lottery import files

    with files.readable_errors(out):  # its name may be too long
        is_there, is_folder = out.exists(), out.is_dir()
    names = _names()
    if form and form not in (*names, EVERY):
        raise unknown("--format", form, (*names, EVERY))
    # Of formats with the same ending, the first is meant.
    endings = {Path(file).suffix: name for name, file in reversed(names.items())}
    if form == EVERY:
        if is_there and not is_folder:
            raise LotteryError(f"--out must be a folder when all formats are written, not the file {str(out)!r}.")
        return {name: out / file for name, file in names.items()}
    if not form and out.suffix not in endings:
        allowed = ", ".join(sorted(filter(None, endings)))
        raise LotteryError(f"--out must be a folder, or a file that ends in {allowed}, not {str(out)!r}.")
    form = form or endings[out.suffix]
    wanted = Path(names[form]).suffix
    if wanted and out.suffix != wanted:
        raise LotteryError(f"--out must be a file that ends in {wanted} for {form}, not {str(out)!r}.")
    if wanted and is_folder:
        raise LotteryError(f"--out must be a file, not the folder {str(out)!r}.")
    return {form: out}


def compact(
    out: Annotated[Path | None, Option(help="The .keras file for the smaller model.", metavar="FILE")] = None,
    drop_inputs: Annotated[
        bool, Option("--drop-inputs", help="Take only the inputs that some weight reads, as a flat vector.")
    ] = False,
    *,
    choice: Choice,
) -> None:
    """Make a ticket's trained network smaller: remove the units that do nothing, and measure the gain.

    Example: lottery compact runs/NAME --density 0.02 --out small.keras
    """
    import numpy as np

    from lottery import files
    from lottery.pipeline import environment
    from lottery.tickets import timing

    paths = [] if out is None else [out]
    if out is not None and out.suffix != ".keras":
        raise LotteryError(f"--out must be a file that ends in .keras, not {str(out)!r}.")
    if out is not None and drop_inputs:
        paths.append(out.with_suffix(".inputs.npy"))
    for path in paths:
        with files.readable_errors(path):
            if path.is_dir():
                raise LotteryError(f"--out must be a file, not the folder {str(path)!r}.")
    ticket = choice.load()
    with contextlib.ExitStack() as stack:
        # Opened first, so that a path that cannot be written is refused at once.
        places = [stack.enter_context(files.replacing(path)) for path in paths]
        environment.import_tensorflow()
        environment.use_threads(1)  # times are measured on one thread
        model = ticket.model(trained=ticket.trained is not None)
        found = timing.benchmark(model, choice.inputs(ticket), drop_inputs)
        _show_compacted(found)
        if out is not None:
            with files.readable_errors(out):
                found.compacted.model.save(places[0])
                if drop_inputs:
                    np.save(places[1], found.compacted.inputs)
    for what, path in zip(("Model", "Inputs that it takes, as positions in a flat example"), paths, strict=False):
        print(f"{what}: {path}")


def _show_compacted(found: Any) -> None:
    """Print the sizes and times of a network before and after compaction."""
    small = found.compacted
    pairs = {f"units of {name}": pair for name, pair in small.units.items()}
    pairs |= {"parameters": small.num_parameters, "multiply-adds": small.multiply_adds}
    lines = [[name, f"{before:,}", f"{after:,}", f"{after / before:.4f}"] for name, (before, after) in pairs.items()]
    for num, (before, after) in found.seconds.items():
        times = [f"{1e3 * before:.3f}", f"{1e3 * after:.3f}", f"{after / before:.4f}"]
        lines.append([f"ms for {counted(num, 'example')}", *times])
    output.table(TextTable(["what", "before", "after", "ratio"], lines), has_rows=False)
    unread, taken = int(small.unread.sum()), small.inputs.size
    dropped = "; the smaller model does not take them" if taken < small.unread.size else "; --drop-inputs removes them"
    output.say(
        f"Inputs that no weight reads: {unread:,} of {small.unread.size:,}{dropped if unread else ''}.",
        f"Largest difference of two outputs: {found.difference:.1g} of the largest. Times are medians on one thread.",
    )
