"""The command `lottery`: its commands by name, its messages of errors and its exit statuses."""

import codecs
import io
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from lottery.cli import analyze, drawing, experiments, output, running, showing, tickets, verifying
from lottery.cli.commands import App
from lottery.errors import LotteryError, printable

app = App(
    name="lottery",
    help="Find winning lottery tickets: train, prune the smallest weights, rewind, repeat.",
    epilog="Tables fit the width of the terminal. In a narrow terminal they first leave out the columns replicates and "
    "density, and then columns from the right, but never columns with names; `lottery show --help` lists the order of "
    "`show`. A line below the table names the columns that are left out, and says how to see them.",
)
# `--help` lists them in this order.
app.command(short_help="Run an experiment, or continue it.", cls=running.WithNames)(running.run)
app.command(short_help="Show what would be trained.")(experiments.plan)
app.command(short_help="Run a grid of experiments.")(running.sweep)
app.command(short_help="List the runs of a folder.")(showing.ls)
app.command(short_help="Show a run's table.")(showing.show)
app.command(short_help="Draw a figure of a run.", cls=drawing.WithKinds)(drawing.plot)
app.command(short_help="Write an HTML page about runs.")(drawing.report)
app.command(short_help="Recompute checksums and invariants.")(verifying.verify)
app.command(short_help="Train controls from stored rounds.", cls=running.WithBranches)(running.branch)
app.command(short_help="Compare the tickets of several runs.")(showing.compare)
app.command(short_help="Compare a run with the numbers of its paper.")(showing.check)
app.command(short_help="Export a ticket, in many formats.", cls=tickets.WithFormats)(tickets.export)
app.command(short_help="Remove the units that do nothing.")(tickets.compact)
app.add_typer(experiments.app, name="experiments")
app.add_typer(tickets.app, name="tickets")
app.add_typer(analyze.app, name="analyze")


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    # A callback, for Typer has no option of its own for the version.
    if version:
        import lottery

        print(lottery.__version__)
        raise typer.Exit


# Signs in our output that encodings of eight bits lack. Of a number, no minus sign may be lost.
_ASCII = {"−": "-", "±": "+-", "≥": ">=", "─": "-"}


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """Return what to write for characters that the encoding of the output lacks, and where to go on."""
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(_ASCII.get(char, "?") for char in lacking), error.end


def main() -> None:
    """Run the command `lottery`."""
    codecs.register_error("in_ascii", _in_ascii)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="in_ascii")
    # Whatever backend the user's other programs choose: here, and in the processes that this one starts, networks are
    # those of TensorFlow.
    os.environ["KERAS_BACKEND"] = "tensorflow"
    # TF_CPP_MIN_LOG_LEVEL silences the C++ of TensorFlow, and not its Python.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, who wants to see nothing
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (open to the end)
    try:
        try:
            app()
        except SystemExit as end:
            # Typer ends with status 1 where the reader of a pipe is gone; of verify and check that means a bad run.
            if isinstance(end.__context__, BrokenPipeError):
                raise end.__context__ from None
            raise
        finally:
            sys.stdout.flush()  # a write may fail only here
    except LotteryError as error:
        output.say(f"lottery: {printable(error)}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of the pipe, such as head, has seen enough
        _give_up_output()
        # As a shell reports SIGPIPE; 0 would call a run good that was not checked to its end.
        sys.exit(141)
    except OSError as error:
        # What fails while the output is written names no file.
        if error.filename is not None:  # a folder that may not be entered, a name that is too long
            why = f"{str(error.filename)[:200]!r} cannot be read or written: {error.strerror}"
            output.say(f"lottery: {printable(why)}.", file=sys.stderr)
            sys.exit(2)
        sentence = f"lottery: the output cannot be written: {error.strerror}; what is stored is intact."
        output.say(sentence, file=sys.stderr)
        _give_up_output()
        sys.exit(2)


def _give_up_output() -> None:
    """Send what is left of the output nowhere: Python would try to write it again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
