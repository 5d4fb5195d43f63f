"""The command compare: the tickets of several runs side by side, or summed up."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from lottery import formatting
from lottery.cli import options, output
from lottery.cli.options import Csv, Json
from lottery.errors import LotteryError


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
    from lottery.statistics import aggregates

    if within < 0:
        raise LotteryError(f"--within must be 0 or more, not {within}.")
    if aggregate:
        if rounds:
            raise LotteryError("--rounds does not go with --aggregate; --density does.")
        scores = aggregates.scores(runs, options.fractions("--density", density), by, within)
        notes = aggregates.notes(scores)
        if not by:
            notes += aggregates.dependent(runs)
        _aggregate(scores, notes, out, (as_json, as_csv))
        return
    for option, value in (("--density", density), ("--by", by), ("--out", out)):
        if value:
            raise LotteryError(f"{option} goes with --aggregate alone.")
    _compare(runs, options.numbers("--rounds", rounds), within, (as_json, as_csv))


def _compare(runs: list[Path], chosen: list[int], within: float, as_rows: tuple[bool, bool]) -> None:
    """Print the tickets of several runs beside those of the first, of chosen rounds or of all."""
    from lottery.statistics import comparison, tables

    named = comparison.tables(runs)
    found = comparison.compared(named, within=within)
    others = comparison.left_out(named, found, within)
    missing = sorted(set(chosen) - set(found["round"]))
    if missing:
        shared = formatting.ranges(set(found["round"]))
        raise LotteryError(f"The runs do not share round {missing[0]}. --rounds can be {shared}.")
    found = found[found["round"].isin(chosen)] if chosen else found
    if any(as_rows):
        output.rows(found, *as_rows)
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
