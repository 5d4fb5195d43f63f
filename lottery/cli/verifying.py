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
    from lottery.pipeline.prepared import Ingredients
    from lottery.runs import verification


def verify(
    source: Source,
    recompute: Annotated[
        bool,
        typer.Option("--recompute", help="Also evaluate each network again, and draw initial weights again."),
    ] = False,
    retrain: Annotated[
        int,
        typer.Option(min=0, metavar="NUMBER", help="Also train so many networks again, chosen at random, and compare."),
    ] = 0,
    data: Annotated[
        str,
        typer.Option(
            help="With --recompute or --retrain: a file with the run's data, if they are not found.", metavar="FILE"
        ),
    ] = "",
    import_code: ImportCode = False,
) -> None:
    """Recompute every checksum and invariant of a run or a ticket file; exit status 1 if anything is wrong.

    With --recompute, it computes the losses, accuracies and predictions of the early-stop step and of the end again
    from the stored weights, and draws initial weights again. This needs the data; nothing is trained.

    With --retrain, it trains networks again in a temporary folder. On the machine of the run every byte must be the
    same; on another, accuracies must be about the same.
    """
    from lottery import files
    from lottery.runs import store, verification

    for option, value in (("--data", data), ("--import-code", import_code)):
        if value and not (recompute or retrain):
            raise LotteryError(f"{option} is for --recompute and --retrain only.")
    if not files.is_folder(source):
        if recompute or retrain:
            option = "--recompute" if recompute else "--retrain"
            raise LotteryError(f"{option} needs the folder of a run, not the file {str(source)!r}.")
        _verify_ticket(source)
        return
    stored, wanted = store.progress(source, store.read_experiment(source))
    if stored < wanted:
        output.say(f"The run is incomplete: {stored} of {wanted} networks are stored.")
    num = num_wrong = 0
    with _recomputing(source, data, import_code) if recompute else contextlib.nullcontext() as again:
        for name, wrong in verification.verify(source, again):
            num += 1
            num_wrong += bool(wrong)
            for sentence in wrong:
                output.say(f"{name}: {sentence}")
    trained_again = ""
    if retrain and not num_wrong:  # what is damaged cannot be trained from
        trained_again, wrong_again = _retrain(source, retrain, data, import_code)
        num, num_wrong = num + len(wrong_again), num_wrong + sum(wrong_again)
    if num_wrong:
        output.say(f"{num_wrong} of {num} are wrong.", *(again.notes if again else []))
        if retrain and not trained_again:
            output.say("No network was trained again, because networks are trained from what is stored.")
        raise typer.Exit(1)
    more = f" and {num - stored} more" if num > stored else ""
    output.say(f"{stored} of {wanted} networks{more} are stored; every checksum and every invariant holds.")
    output.say(*verification.not_repeated(source, again), *verification.not_proved(again))
    if trained_again:
        output.say(trained_again)


def _retrain(run: Path, num: int, data: str, import_code: bool) -> tuple[str, list[bool]]:
    """Train networks again; return how they were compared, and for each if it is wrong."""
    from lottery import progress
    from lottery.pipeline import retraining

    networks, wrong = retraining.chosen(run, num), []
    with progress.shown() as on_event:
        for name, sentences in retraining.retrained(run, networks, _ingredients(data, import_code), on_event):
            wrong.append(bool(sentences))
            for sentence in sentences:
                output.say(f"{name}: {sentence}")
    return retraining.rule(run, len(networks)), wrong


def _ingredients(data: str, import_code: bool) -> "Ingredients":
    from lottery.data import read_npz
    from lottery.pipeline.prepared import Ingredients

    arrays = tuple(read_npz(Path(data)).values()) if data else None
    return Ingredients(data=arrays, import_code=import_code)


@contextlib.contextmanager
def _recomputing(run: Path, data: str, import_code: bool) -> Iterator["verification.Recomputation"]:
    """Prepare what networks are evaluated again with, and show how far that is."""
    from lottery.pipeline import recomputing

    with output.counting() as report, recomputing.opened(run, _ingredients(data, import_code), report) as again:
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
        architecture.build(ticket.architecture, shapes(ticket.weights))
    except TicketError as error:
        output.say(printable(error))
        if {"name", "keras"} & ticket.architecture.keys():
            raise typer.Exit(1) from None
    else:
        output.say("Its network can be built, of Keras' own layers; nothing in the file is run.")
