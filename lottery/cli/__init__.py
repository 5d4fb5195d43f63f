"""The command line: thin commands, each of which imports the modules that it calls."""

import itertools
import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from lottery.cli import analyze, output, tickets, train
from lottery.cli.options import (
    App,
    Csv,
    Json,
    Looks,
    Out,
    Replicate,
    Round,
    RunPath,
    Source,
    Tolerance,
    numbers,
    selected,
)
from lottery.errors import LotteryError, printable

app = App(
    name="lottery",
    help="Find winning lottery tickets: train, prune the smallest weights, rewind, repeat.",
    epilog="Tables fit the terminal: where it is too narrow, they leave out replicates and density, and then columns "
    "from the right, but no names; `show` has an order of its own. A line below the table names what is left out, and "
    "--json and --csv have every column.",
)
app.add_typer(train.experiments, name="experiments")
app.add_typer(tickets.tickets, name="tickets")
app.add_typer(analyze.analyze, name="analyze")


def main() -> None:
    """Run the command `lottery`."""
    # Hide TensorFlow's start-up messages, unless the user has set their level.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, who wants to see nothing
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (open to the end)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # a write may fail only here
    except LotteryError as error:
        output.say(f"lottery: {printable(error)}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        enough = isinstance(error, BrokenPipeError)  # the reader of the pipe, such as head, has seen enough
        if not enough:
            if error.filename is not None:
                raise
            sentence = f"lottery: the output cannot be written: {error.strerror}; what is stored is intact."
            output.say(sentence, file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python would try again
        sys.exit(0 if enough else 2)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        import lottery

        print(lottery.__version__)
        raise typer.Exit


app.command(short_help="Run an experiment, or continue it.", cls=train.WithNames)(train.run)
app.command(short_help="Show what would be trained.")(train.plan)
app.command(short_help="Run a grid of experiments.")(train.sweep)


@app.command(short_help="List the runs of a folder.")
def ls(out: Out = Path("runs"), as_json: Json = False, as_csv: Csv = False) -> None:
    """List the runs of a folder."""
    from lottery.runs import store

    rows = []
    for path in store.runs(out):
        try:
            experiment = store.read_experiment(path)
        except LotteryError as error:
            output.say(f"lottery: {error}", file=sys.stderr)
            continue
        stored, wanted = store.progress(path, experiment)
        row = {"run": str(path), "data": experiment.data.name, "model": experiment.model.name}
        row |= {"replicates": experiment.run.num_replicates, "rounds": experiment.prune.num_rounds + 1}
        rows.append(row | {"networks_stored": stored, "networks_wanted": wanted})
    if not rows and not (as_json or as_csv):
        output.say(f"There are no runs in {str(out)!r}; `lottery run` makes one.", file=sys.stderr)
        return
    output.rows(rows, as_json, as_csv)


@app.command(short_help="Show a run's table.")
def show(
    run: RunPath,
    as_json: Json = False,
    as_csv: Csv = False,
    replicate: Replicate = None,
    round: Round = None,
    tolerance: Tolerance = 0.002,
    looks: Looks = 1,
) -> None:
    """Show a run's verdict and table; --json and --csv print a row for each trained network.

    A narrow terminal leaves out, in this order: end interval, interval, kept, at the end, early stop, end vs dense,
    special, density.
    """
    from lottery.runs import results

    rows = selected(results.table(run), replicate, None)
    chosen = selected(rows, None, round)
    if as_json or as_csv:
        output.rows(chosen, as_json, as_csv)
    else:
        output.summary(run, rows, tolerance, round, looks)


app.command(short_help="Draw a figure of a run.", cls=analyze.WithKinds)(analyze.plot)
app.command(short_help="Write an HTML page about runs.")(analyze.report)


@app.command(short_help="Recompute checksums and invariants.")
def verify(source: Source) -> None:
    """Recompute every checksum and invariant of a run or a ticket file; exit status 1 if anything is wrong."""
    from lottery import files
    from lottery.analysis import connectivity
    from lottery.runs import store, verification

    if not files.is_folder(source):
        tickets.verify(source)
        return
    num = num_wrong = 0
    for name, wrong in itertools.chain(verification.verify(source), connectivity.wrong(source)):
        num += 1
        num_wrong += bool(wrong)
        for sentence in wrong:
            output.say(f"{name}: {sentence}")
    if num_wrong:
        output.say(f"{num_wrong} of {num} are wrong.")
        raise typer.Exit(1)
    stored, wanted = store.progress(source, store.read_experiment(source))
    more = f" and {num - stored} more" if num > stored else ""
    output.say(f"{stored} of {wanted} networks{more} are stored; every checksum and every invariant holds.")
    output.say(*verification.not_repeated(source))


app.command(short_help="Train controls from stored rounds.", cls=train.NamingBranches)(train.branch)


@app.command(short_help="Compare the tickets of several runs.")
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Two or more runs.", metavar="RUN RUN...")],
    as_json: Json = False,
    as_csv: Csv = False,
    rounds: Annotated[str, typer.Option(help="Which rounds of the first run, such as 7,15.", metavar="ROUNDS")] = "",
    within: Annotated[
        float, typer.Option(help="How far apart two densities may be, as a fraction of one.", metavar="FRACTION")
    ] = 0.05,
) -> None:
    """Compare the tickets of several runs with those of the first, at the nearest densities, paired by replicate."""
    from lottery.runs import comparison, tables

    if within < 0:
        raise LotteryError(f"--within: received {within}, allowed is 0 or more.")
    named = comparison.tables(runs)
    found = comparison.compared(named, within=within)
    others = comparison.left_out(named, found, within)
    chosen = numbers("--rounds", rounds)
    missing = sorted(set(chosen) - set(found["round"]))
    if missing:
        raise LotteryError(f"--rounds: received {missing[0]}, the runs have {sorted(set(found['round']))} in common.")
    found = found[found["round"].isin(chosen)] if chosen else found
    if as_json or as_csv:
        output.rows(found, as_json, as_csv)
        output.say(*others, file=sys.stderr)
    else:
        output.grid(tables.compared(found, next(iter(named))), has_rows=True)
        output.say(*others)


@app.command(short_help="Compare a run with the numbers of its paper.")
def check(run: RunPath, as_json: Json = False, as_csv: Csv = False) -> None:
    """Compare a run of a published experiment with the numbers of its paper; exit status 1 if a line fails.

    Each number has its source: the paper, the authors' code, a third party, or a bound of our own.
    """
    from lottery.runs import published, tables

    lines, notes = published.compare(run)
    if as_json or as_csv:
        output.rows(lines, as_json, as_csv)
    else:
        output.say(published.READING)
        print()
        output.grid(tables.published(lines, notes), has_rows=True)
    if any(line["verdict"] == "fail" for line in lines):
        raise typer.Exit(1)


app.command(short_help="Export a ticket, in many formats.", cls=tickets.NamingFormats)(tickets.export)
app.command(short_help="Remove the units that do nothing.")(tickets.compact)
