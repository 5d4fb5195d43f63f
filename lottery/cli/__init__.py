"""The command line: thin commands, each of which imports the modules that it calls."""

import contextlib
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lottery.cli import analyze, options, output, tickets, train
from lottery.cli.options import (
    App,
    Csv,
    Json,
    Out,
    Replicate,
    Round,
    RunPath,
    Source,
    Tolerance,
    numbers,
    selected,
)
from lottery.errors import LotteryError, printable, unknown

if TYPE_CHECKING:
    from lottery.runs import verification

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
        if error.filename is not None:  # a folder that may not be entered, a name that is too long
            why = f"{str(error.filename)[:200]!r} cannot be read or written: {error.strerror}"
            output.say(f"lottery: {printable(why)}.", file=sys.stderr)
            sys.exit(2)
        enough = isinstance(error, BrokenPipeError)  # the reader of the pipe, such as head, has seen enough
        if not enough:
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
    tolerance: Tolerance = None,
    interval: Annotated[
        str,
        typer.Option(
            help="Over seeds, for this test set; or two_way, for other test examples too.",
            metavar="seeds|two_way",
        ),
    ] = "seeds",
) -> None:
    """Show a run's verdict and table; --json and --csv print a row for each trained network.

    With --interval two_way, show and print ticket − dense over seeds and test examples instead.

    A narrow terminal leaves out, in this order: end from, end to, kept, early stop, end, end vs dense, ±, 95 % from,
    95 % to, needed, special, density.
    """
    from lottery.statistics import results, two_way
    from lottery.statistics.metric import metric_of

    if interval == "two_way":
        if replicate is not None:
            raise LotteryError("--replicate does not go with --interval two_way, which is over replicates.")
        _show_two_way(run, round, tolerance, as_json, as_csv)
        return
    if interval != "seeds":
        raise unknown("--interval", interval, ("seeds", "two_way"))
    rows = selected(results.table(run), replicate, None)
    chosen = selected(rows, None, round)
    if as_json or as_csv:
        output.rows(chosen, as_json, as_csv)
    else:
        output.summary(run, rows, tolerance, round)
        if not metric_of(rows).is_loss:
            output.say(*two_way.too_fine(tolerance, two_way.num_examples(run)))


def _show_two_way(run: Path, round: int | None, tolerance: float | None, as_json: bool, as_csv: bool) -> None:
    """Print ticket − dense with intervals over seeds and test examples."""
    from lottery.statistics import two_way
    from lottery.statistics.metric import ACCURACY

    tolerance = ACCURACY.tolerance if tolerance is None else tolerance
    every = two_way.table(run, tolerance)
    if every.empty and not (as_json or as_csv):
        output.say(f"No pruned round of {run} can be compared with dense yet.")
        return
    found = selected(every, None, round)
    if as_json or as_csv:
        output.rows(found, as_json, as_csv)
    else:
        output.two_way(found, tolerance, two_way.sentences(every))
        output.say(*two_way.too_fine(tolerance, two_way.num_examples(run)))


app.command(short_help="Draw a figure of a run.", cls=analyze.WithKinds)(analyze.plot)
app.command(short_help="Write an HTML page about runs.")(analyze.report)


@app.command(short_help="Recompute checksums and invariants.")
def verify(
    source: Source,
    recompute: Annotated[
        bool,
        typer.Option("--recompute", help="Also evaluate each network again, and draw initial weights again."),
    ] = False,
    data: Annotated[
        str, typer.Option(help="With --recompute: a file with the run's data, if they are not found.", metavar="FILE")
    ] = "",
    import_code: options.ImportCode = False,
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
            raise LotteryError(f"--recompute: received the file {str(source)!r}, allowed is the folder of a run.")
        tickets.verify(source)
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
    aggregate: Annotated[
        bool,
        typer.Option("--aggregate", help="Sum up runs of several data sets or models: method − dense over all."),
    ] = False,
    density: Annotated[
        str,
        typer.Option(
            help="With --aggregate: at these densities, such as 0.2,0.05; by default at all they share.",
            metavar="FRACTIONS",
        ),
    ] = "",
    by: Annotated[
        str,
        typer.Option(
            help="With --aggregate: compare tickets at each value of a key, such as prune.criterion, not controls.",
            metavar="KEY",
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(help="With --aggregate, at one --density: draw performance profiles; png, svg or pdf."),
    ] = None,
) -> None:
    """Compare the tickets of several runs with those of the first, at the nearest densities, paired by replicate.

    With --aggregate, runs may be of several data sets and models: it prints the interquartile mean of ticket − dense
    and of control − dense over all of them, and probabilities of improvement, with intervals.
    Example: lottery compare runs/mnist-* runs/cifar10-* --aggregate --density 0.2,0.05
    """
    from lottery.statistics import aggregates, comparison, tables

    if within < 0:
        raise LotteryError(f"--within: received {within}, allowed is 0 or more.")
    if aggregate:
        if rounds:
            raise LotteryError("--rounds does not go with --aggregate; --density does.")
        scores = aggregates.scores(runs, options.fractions("--density", density), by, within)
        notes = [*aggregates.notes(scores), *([] if by else aggregates.dependent(runs))]
        _aggregate(scores, notes, out, (as_json, as_csv))
        return
    for option, value in (("--density", density), ("--by", by), ("--out", out)):
        if value:
            raise LotteryError(f"{option} goes with --aggregate alone.")
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


def _aggregate(scores: Any, notes: Iterable[str], out: Path | None, as_rows: tuple[bool, bool]) -> None:
    """Print what several runs show together, and draw it to a file."""
    from lottery.analysis import profiles
    from lottery.statistics import aggregates, tables

    if out is not None:
        profiles.save(aggregates.profile(scores), out)
    found = aggregates.summary(scores)
    if any(as_rows):
        output.rows(found, *as_rows)
        output.say(*notes, file=sys.stderr)
    else:
        output.grid(tables.aggregated(found, list(dict.fromkeys(scores["task"]))), has_rows=True)
        output.say(*notes)
    if out is not None:
        print(out, file=sys.stderr if any(as_rows) else sys.stdout)


@app.command(short_help="Compare a run with the numbers of its paper.")
def check(run: RunPath, as_json: Json = False, as_csv: Csv = False) -> None:
    """Compare a run of a published experiment with the numbers of its paper; exit status 1 if a line fails.

    Each number has its source: the paper, the authors' code, a third party, or a bound of our own.
    """
    from lottery.statistics import published, tables

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
