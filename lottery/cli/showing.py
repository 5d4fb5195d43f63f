"""The commands that show what runs have found: ls, show, compare and check."""

import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from lottery import formatting
from lottery.cli import options, output
from lottery.cli.options import Out, Replicate, Round, RunPath, Tolerance
from lottery.errors import LotteryError, unknown
from lottery.text_tables import frame

LISTED = ("run", "data", "model", "replicates", "rounds", "networks_stored", "networks_wanted")
SEEDS, TWO_WAY = "seeds", "two_way"
INTERVALS = (SEEDS, TWO_WAY)


def ls(out: Out = Path("runs"), *, as_data: output.AsData) -> None:
    """List the runs of a folder."""
    from lottery.runs import store

    rows, found = [], store.runs(out)
    for path in found:
        try:
            experiment = store.read_experiment(path)
        except LotteryError as error:
            # A damaged run must not hide the others.
            output.say(f"lottery: {error}", file=sys.stderr)
            continue
        stored, wanted = store.progress(path, experiment)
        rows.append((
            str(path), experiment.data.name, experiment.model.name, experiment.run.num_replicates,
            experiment.prune.num_rounds + 1, stored, wanted,
        ))  # fmt: skip
    if not found and not as_data:
        output.say(f"There are no runs in {str(out)!r}; `lottery run` makes a run.", file=sys.stderr)
    if rows or as_data:
        output.rows(frame(rows, LISTED), as_data, leave_out=("model", "data", "rounds"))


def show(
    run: RunPath,
    as_data: output.AsData,
    replicate: Replicate = None,
    round: Round = None,
    tolerance: Tolerance = None,
    long: Annotated[bool, Option("--long", help="All columns, what they mean, and what limits the verdict.")] = False,
    interval: Annotated[
        str,
        Option(
            metavar="|".join(INTERVALS),
            help="What the intervals allow for: other seeds (seeds), or other seeds and test examples (two_way).",
        ),
    ] = SEEDS,
) -> None:
    """Show a run's verdict and table; --json and --csv print a row for each trained network.

    With --interval two_way, show ticket − dense instead, with intervals over seeds and test examples.

    A narrow terminal leaves out, in this order: end from, end to, kept, early stop, stops later, end, end vs dense, end
    verdict, ±, n, budget from, budget to, within budget, speed, needed, beats controls, test accuracy, round.
    """
    from lottery.runs import stored
    from lottery.statistics import metric, results

    if interval not in INTERVALS:
        raise unknown("--interval", interval, INTERVALS)
    if interval == TWO_WAY:
        if replicate is not None:
            raise LotteryError(
                "--replicate cannot be used with --interval two_way, which needs all replicates. Leave out --replicate."
            )
        _show_two_way(run, round, metric.ACCURACY.tolerance if tolerance is None else tolerance, as_data)
        return
    rows = options.selected(results.table(run), replicate, None)
    # The verdict is of all rounds, so all rows are kept beside those of the chosen round.
    chosen = options.selected(rows, None, round)
    if as_data:
        output.rows(chosen, as_data)
        return
    show_run(run, rows, tolerance, round, long)
    if not metric.metric_of(rows).is_loss:
        output.say(*metric.too_fine(tolerance, len(stored.test_labels(run))))


def show_run(run: Path, rows: Any, tolerance: float | None, round: int | None = None, long: bool = False) -> None:
    """Print a run's verdict in a line, and its tables, with a verdict for each round.

    The tables may be of one round alone; the verdict is of all. At length, they have all columns, each explained, and
    sentences on what limits the verdict.
    """
    from lottery.analysis import costs
    from lottery.statistics import metric, results, sentences, tables, verdicts

    if rows.empty:
        output.say(f"No round of {str(run)!r} is complete yet.")
        return
    judgement = verdicts.of_run(run, rows, tolerance)
    # The verdict is of all rounds, so it comes before the rows of one round are chosen.
    headline(judgement)
    points = results.summary(rows)
    if round is not None:
        points = points[points["round"] == round]
    # Only alternatives are compared by what they cost.
    spent = costs.table(run) if metric.has_alternative(points) else None
    shown = [
        tables.rounds(judgement, points, short=not long),
        tables.controls(judgement, spent, round),
        tables.transfers(rows, points),
    ]
    for part in shown:
        if part:
            print()
            output.table(part, explained=long, has_rows=False)
    print()
    output.say(*results.collapsed(run))
    if long:
        output.say(*sentences.limits(judgement))
    else:
        output.say(f"lottery show {shlex.quote(str(run))} --long explains the columns, and has more of them.")


def headline(judgement: Any) -> None:
    """Print the verdict on a run in a line, in its colour."""
    from lottery.statistics import sentences

    found = sentences.headline(judgement)
    text = formatting.wrapped(found.text, formatting.columns(sys.stdout))
    output.console().print(text, style=f"bold {output.COLOURS[found.tone]}")


def _show_two_way(run: Path, round: int | None, tolerance: float, as_data: output.AsData) -> None:
    """Print ticket − dense with intervals over seeds and test examples, at both times, and what they show."""
    from lottery.runs import stored
    from lottery.statistics import metric, tables, two_way

    every = two_way.table(run, tolerance)
    if every.empty and not as_data:
        output.say(f"No pruned round of {str(run)!r} can be compared with dense yet.")
        return
    found = options.selected(every, None, round)
    if as_data:
        output.rows(found, as_data)
        return
    key: Mapping[str, str] = {}
    for measure, when in two_way.WHEN.items():
        shown = tables.two_way(found, measure, tolerance)
        print(f"{when}:")
        output.table(shown, explained=False)
        print()
        key = shown.key
    output.say(*(f"{name}: {text}." for name, text in key.items()), *two_way.sentences(every))
    output.say(*metric.too_fine(tolerance, len(stored.test_labels(run))))


@dataclass(frozen=True)
class Summed:
    """What several runs show together."""

    aggregate: Annotated[bool, Option("--aggregate", help="Sum up runs of several data sets or models.")] = False
    density: Annotated[
        str, Option(help="With --aggregate: densities, such as 0.2,0.05; by default all shared.", metavar="FRACTIONS")
    ] = ""
    by: Annotated[
        str,
        Option(help="With --aggregate: compare values of a key such as prune.criterion, not controls.", metavar="KEY"),
    ] = ""
    out: Annotated[
        Path | None, Option(help="With --aggregate, at one --density: draw performance profiles; png, svg or pdf.")
    ] = None


def compare(
    runs: Annotated[list[Path], Argument(help="Two or more runs.", metavar="RUN RUN...")],
    as_data: output.AsData,
    rounds: Annotated[str, Option(help="Which rounds of the first run, such as 7,15.", metavar="ROUNDS")] = "",
    within: Annotated[
        float,
        Option(
            min=0, help="How far apart two densities may be, as a fraction, such as 0.05 for 5 %.", metavar="FRACTION"
        ),
    ] = 0.05,
    *,
    summed: Summed,
) -> None:
    """Compare the tickets of several runs with those of the first, at the nearest densities, paired by replicate.

    With --aggregate, runs may be of several data sets and models: it prints the interquartile mean of ticket − dense
    and of control − dense over all of them, and probabilities of improvement, with intervals.

    Example: lottery compare runs/mnist-* runs/cifar10-* --aggregate --density 0.2,0.05
    """
    if summed.aggregate:
        if rounds:
            raise LotteryError("--rounds cannot be used with --aggregate. Choose densities with --density instead.")
        _sum_up(runs, summed, within, as_data)
        return
    for option, value in (("--density", summed.density), ("--by", summed.by), ("--out", summed.out)):
        if value:
            raise LotteryError(f"{option} needs --aggregate. Add --aggregate, or leave out {option}.")
    _compare(runs, options.numbers("--rounds", rounds), within, as_data)


def _sum_up(runs: list[Path], summed: Summed, within: float, as_data: output.AsData) -> None:
    """Print what several runs show together, and draw it to a file."""
    from lottery.analysis import profiles
    from lottery.statistics import aggregates, tables

    densities = options.numbers("--density", summed.density, float, "fractions, such as 0.2,0.05")
    scores = aggregates.scores(runs, densities, summed.by, within)
    notes = aggregates.notes(scores)
    notes += aggregates.confounded(runs, summed.by) if summed.by else []
    notes += aggregates.dependent(runs, summed.by)
    if summed.out is not None:
        profiles.save(aggregates.profile(scores), summed.out)
    found = aggregates.summary(scores)
    _print_or_show(found, tables.aggregated(found, list(dict.fromkeys(scores["task"]))), notes, as_data)
    if summed.out is not None:
        # Standard output has nothing but the rows then, for a program to read.
        print(summed.out, file=sys.stderr if as_data else sys.stdout)


def _compare(runs: list[Path], chosen: list[int], within: float, as_data: output.AsData) -> None:
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
    _print_or_show(found, tables.compared(found, next(iter(named))), others, as_data)


def _print_or_show(rows: Any, shown: Any, notes: list[str], as_data: output.AsData) -> None:
    """Print rows for a program and remarks beside them, or a table of them and remarks below it."""
    if as_data:
        output.rows(rows, as_data)
    else:
        output.table(shown)
    output.say(*notes, file=sys.stderr if as_data else sys.stdout)


def check(
    run: RunPath,
    against: Annotated[
        str,
        Option(
            metavar="NAME",
            help="The experiment whose numbers are taken, such as conv_2_cifar10; by default the run's name.",
            show_default=False,
        ),
    ] = "",
    *,
    as_data: output.AsData,
) -> None:
    """Compare a run of a published experiment with the numbers of its paper; exit status 1 if a line fails.

    Each number has its source: the paper, the authors' code, a third party, or a bound of our own.
    """
    from lottery.statistics import published, tables

    lines, notes = published.compare(run, against)
    if as_data:
        output.rows(lines, as_data)
    else:
        output.say(published.READING)
        print()
        output.table(tables.published(lines, notes))
    if any(line["verdict"] == "fail" for line in lines):
        raise typer.Exit(1)
