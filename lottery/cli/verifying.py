"""The command verify: the checksums and invariants of a run, or of a ticket file."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lottery.cli import output
from lottery.cli.options import ImportCode, Source
from lottery.errors import LotteryError, TicketError, printable

if TYPE_CHECKING:
    from lottery.runs import verification


def verify(
    source: Source,
    recompute: Annotated[
        bool,
        typer.Option("--recompute", help="Also evaluate each network again, and draw initial weights again."),
    ] = False,
    data: Annotated[
        str, typer.Option(help="With --recompute: a file with the run's data, if they are not found.", metavar="FILE")
    ] = "",
    import_code: ImportCode = False,
) -> None:
    """Recompute every checksum and invariant of a run or a ticket file; exit status 1 if anything is wrong.

    With --recompute, it computes the losses, accuracies and predictions of the early-stop step and of the end again
    from the stored weights, and draws initial weights again. This needs the data; nothing is trained.
    """
    from lottery import files
    from lottery.runs import store, verification

    for option, value in (("--data", data), ("--import-code", import_code)):
        if value and not recompute:
            raise LotteryError(f"{option} is for --recompute only.")
    if not files.is_folder(source):
        if recompute:
            raise LotteryError(f"--recompute needs the folder of a run, not the file {str(source)!r}.")
        _verify_ticket(source)
        return
    num = num_wrong = 0
    with _recomputing(source, data, import_code) if recompute else contextlib.nullcontext() as again:
        for name, wrong in verification.verify(source, again):
            num += 1
            num_wrong += bool(wrong)
            for sentence in wrong:
                output.say(f"{name}: {sentence}")
    if num_wrong:
        output.say(f"{num_wrong} of {num} are wrong.", *(again.notes if again else []))
        raise typer.Exit(1)
    stored, wanted = store.progress(source, store.read_experiment(source))
    more = f" and {num - stored} more" if num > stored else ""
    output.say(f"{stored} of {wanted} networks{more} are stored; every checksum and every invariant holds.")
    output.say(*verification.not_repeated(source, again))


@contextlib.contextmanager
def _recomputing(run: Path, data: str, import_code: bool) -> Iterator["verification.Recomputation"]:
    """Prepare what networks are evaluated again with, and show how far that is."""
    from lottery.data import read_npz
    from lottery.pipeline import recomputing
    from lottery.pipeline.prepared import Ingredients

    arrays = tuple(read_npz(Path(data)).values()) if data else None
    ingredients = Ingredients(data=arrays, import_code=import_code)
    with output.counting() as report, recomputing.opened(run, ingredients, report) as again:
        yield again


def _verify_ticket(file: Path) -> None:
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
