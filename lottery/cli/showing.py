"""The commands that show runs: ls, show and check."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from lottery.cli import output, summaries
from lottery.cli.options import Csv, Json, Out, Replicate, Round, RunPath, Tolerance, selected
from lottery.errors import LotteryError, unknown

INTERVALS = SEEDS, TWO_WAY = "seeds", "two_way"


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
    output.rows(rows, as_json, as_csv, leave_out=("model", "data", "rounds"))


def show(
    run: RunPath,
    as_json: Json = False,
    as_csv: Csv = False,
    replicate: Replicate = None,
    round: Round = None,
    tolerance: Tolerance = None,
    long: Annotated[
        bool, typer.Option("--long", help="All columns, what they mean, and what limits the verdict.")
    ] = False,
    interval: Annotated[
        str,
        typer.Option(
            help="Over seeds, for this test set; or two_way, for other test examples too.",
            metavar="|".join(INTERVALS),
        ),
    ] = SEEDS,
) -> None:
    """Show a run's verdict and table; --json and --csv print a row for each trained network.

    With --interval two_way, show and print ticket − dense over seeds and test examples instead.

    A narrow terminal leaves out, in this order: end from, end to, kept, early stop, stops later, end, end vs dense, end
    verdict, ±, n, budget from, budget to, within budget, speed, needed, beats controls, test accuracy, round.
    """
    from lottery.statistics import metric, results, two_way

    if interval not in INTERVALS:
        raise unknown("--interval", interval, INTERVALS)
    if interval == TWO_WAY:
        if replicate is not None:
            raise LotteryError("--replicate does not go with --interval two_way, which is over replicates.")
        _show_two_way(run, round, tolerance, as_json, as_csv)
        return
    rows = selected(results.table(run), replicate, None)
    chosen = selected(rows, None, round)
    if as_json or as_csv:
        output.rows(chosen, as_json, as_csv)
    else:
        summaries.show(run, rows, tolerance, round, long)
        if not metric.metric_of(rows).is_loss:
            output.say(*metric.too_fine(tolerance, two_way.num_examples(run)))


def _show_two_way(run: Path, round: int | None, tolerance: float | None, as_json: bool, as_csv: bool) -> None:
    """Print ticket − dense with intervals over seeds and test examples."""
    from lottery.statistics import metric, two_way

    tolerance = metric.ACCURACY.tolerance if tolerance is None else tolerance
    every = two_way.table(run, tolerance)
    if every.empty and not (as_json or as_csv):
        output.say(f"No pruned round of {run} can be compared with dense yet.")
        return
    found = selected(every, None, round)
    if as_json or as_csv:
        output.rows(found, as_json, as_csv)
    else:
        summaries.show_two_way(found, tolerance, two_way.sentences(every))
        output.say(*metric.too_fine(tolerance, two_way.num_examples(run)))


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
