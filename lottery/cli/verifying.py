"""The command verify: the checksums and invariants of a run, or of a ticket file."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from lottery.cli import options, output
from lottery.errors import LotteryError, TicketError, printable

if TYPE_CHECKING:
    from lottery.pipeline.prepared import Ingredients
    from lottery.runs import verification


@dataclass(frozen=True)
class Again:
    """What is computed and trained again, and from what."""

    recompute: Annotated[
        bool, Option("--recompute", help="Also evaluate each network again, and draw initial weights again.")
    ] = False
    retrain: Annotated[
        int, Option(min=0, help="Also train this many networks again, chosen at random, and compare them.")
    ] = 0
    data: Annotated[
        str, Option(help="With --recompute or --retrain: the run's data, if they are not found.", metavar="FILE")
    ] = ""
    import_code: options.ImportCode = False

    def ingredients(self) -> "Ingredients":
        """Read the data, if there is a file."""
        from lottery.data import read_npz
        from lottery.pipeline.prepared import Ingredients

        # In the order in which `lottery.run` takes them.
        arrays = tuple(read_npz(Path(self.data)).values()) if self.data else None
        return Ingredients(data=arrays, import_code=self.import_code)


def verify(source: options.Source, again: Again) -> None:
    """Recompute every checksum and invariant of a run or a ticket file; exit status 1 if anything is wrong.

    With --recompute, it computes the losses, accuracies and predictions of the early-stop step and of the end again
    from the stored weights, and draws initial weights again. This needs the data; nothing is trained.

    With --retrain, it trains networks again in a temporary folder. On the machine of the run every byte must be the
    same; on another, accuracies must be about the same.
    """
    from lottery import files

    for option, value in (("--data", again.data), ("--import-code", again.import_code)):
        if value and not (again.recompute or again.retrain):
            raise LotteryError(f"{option} is for --recompute and --retrain only.")
    if files.is_folder(source):
        _verify_run(source, again)
        return
    if again.recompute or again.retrain:
        raise LotteryError(f"--recompute and --retrain need the folder of a run, not the file {str(source)!r}.")
    _verify_ticket(source)


def _verify_run(run: Path, again: Again) -> None:
    from lottery.runs import store, verification

    stored, wanted = store.progress(run, store.read_experiment(run))
    if stored < wanted:
        output.say(f"The run is incomplete: {stored} of {wanted} networks are stored.")
    with _recomputing(run, again) as recomputed:
        # Printed as soon as it is found.
        checked = [(name, _told(name, wrong)) for name, wrong in verification.verify(run, recomputed)]
    results = [is_wrong for _, is_wrong in checked]
    # Branches that the experiment does not name, and siblings.
    num_more = sum(verification.is_network(name) for name, _ in checked) - stored
    trained_again = ""
    if again.retrain and not any(results):  # what is damaged cannot be trained from
        trained_again, of_trained = _retrain(run, again)
        results += of_trained
    if any(results):
        verb = "is" if sum(results) == 1 else "are"
        output.say(f"{sum(results)} of {len(results)} {verb} wrong.", *(recomputed.notes if recomputed else []))
        if again.retrain and not trained_again:
            output.say("No network was trained again, because training starts from stored files, and some are wrong.")
        raise typer.Exit(1)
    more = f" and {num_more} more" if num_more > 0 else ""
    output.say(f"{stored} of {wanted} networks{more} are stored; every checksum and every invariant holds.")
    output.say(*verification.not_repeated(run, recomputed), *verification.not_proved(recomputed))
    if trained_again:
        output.say(trained_again)


def _told(name: str, sentences: list[str]) -> bool:
    """Print what is wrong with a network, and return True if anything is."""
    # A stranger may have named the folders.
    output.say(*(printable(f"{name}: {sentence}") for sentence in sentences))
    return bool(sentences)


def _retrain(run: Path, again: Again) -> tuple[str, list[bool]]:
    """Train networks again; return how they were compared, and for each if it is wrong."""
    from lottery import progress
    from lottery.pipeline import retraining

    networks = retraining.chosen(run, again.retrain)
    with progress.shown() as on_event:
        trained = retraining.retrained(run, networks, again.ingredients(), on_event)
        results = [_told(*network) for network in trained]
    return retraining.rule(run, networks), results


@contextlib.contextmanager
def _recomputing(run: Path, again: Again) -> Iterator["verification.Recomputation | None"]:
    """Prepare what networks are evaluated again with, if that is wanted.

    A terminal shows how much is done in a bar, and a pipe has a line on how much there is.
    """
    if not again.recompute:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    from lottery.pipeline import recomputing

    console = Console(stderr=True)
    text = TextColumn("{task.description}", table_column=Column(no_wrap=True))
    parts = (text, BarColumn(bar_width=18), MofNCompleteColumn(), TimeRemainingColumn())
    # What is printed meanwhile must not end up on standard error, unless both are the same terminal.
    look = {"transient": True, "disable": not console.is_interactive, "redirect_stdout": sys.stdout.isatty()}
    with Progress(*parts, console=console, **look) as display:
        bar = display.add_task("starting TensorFlow", total=None)

        def show(done: int, total: int, name: str) -> None:
            display.update(bar, completed=done, total=total, description=name)
            if display.disable and not done:
                output.say(f"Computing {total:,} networks again.", file=sys.stderr)

        with recomputing.opened(run, again.ingredients(), show) as recomputed:
            yield recomputed


def _verify_ticket(file: Path) -> None:
    """Check a ticket file, and that its network can be built from it."""
    from lottery import masks
    from lottery.models import architecture
    from lottery.pipeline import environment
    from lottery.tickets.ticket import load

    try:
        ticket = load(file)
    except TicketError as error:
        output.say(printable(error))
        raise typer.Exit(1) from None
    output.say(f"{ticket!r}"[1:-1] + ": every checksum, size and count holds.")  # without its brackets
    environment.import_tensorflow()
    try:
        architecture.build(ticket.architecture, masks.shapes(ticket.weights))
    except TicketError as error:
        output.say(printable(error))
        # The network of a class of the user's is not in the file, so the file is not wrong.
        if {"name", "keras"} & ticket.architecture.keys():
            raise typer.Exit(1) from None
    else:
        output.say("The network can be built from Keras' own layers. No code from the file is run.")
