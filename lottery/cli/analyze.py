"""`lottery analyze`: a command for each record of `lottery.analysis.ANALYSES`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from lottery.cli import options, output
from lottery.cli.commands import App
from lottery.cli.options import Replicate, Round, RunPath
from lottery.errors import LotteryError

if TYPE_CHECKING:
    from lottery.figures.record import Analysis


class _Analyses(TyperGroup):
    """A command for each analysis, made when it is needed: their files would slow down ``lottery --help``."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _commands().get(cmd_name)


app = App(cls=_Analyses, help="Analyze masks, weights, training and costs.")


def _commands() -> dict[str, Any]:
    from lottery.analysis import ANALYSES

    made = App()
    for name, analysis in ANALYSES.items():
        # Without columns, it is drawn and not printed.
        if analysis.columns:
            made.command(name, short_help=analysis.help)(OWN.get(name) or _printing(name, analysis))
    return dict(typer.main.get_group(made).commands)


def _printing(name: str, analysis: "Analysis") -> Callable[..., None]:
    """Make the command of an analysis: every row as JSON or CSV, or the means over replicates as a table."""

    def printing(
        run: RunPath,
        replicate: Replicate = None,
        round: Round = None,
        every: Annotated[bool, Option("--all", help="Print every row, not a summary.")] = False,
        *,
        as_data: output.AsData,
    ) -> None:
        rows = analysis.table(run)
        # Before a round is selected: where there are no rows, it would be said not to be stored.
        if rows.empty:
            from lottery.runs.stored import stored_rounds

            has_rounds = next(stored_rounds(run), None) is not None
            none_yet = f"No round of {str(run)!r} is complete yet."
            raise LotteryError(analysis.missing if has_rounds and analysis.missing else none_yet)
        rows = options.selected(rows, replicate, round)
        if as_data or every:
            output.rows(rows, as_data)
            return
        rows = analysis.printed(rows) if analysis.printed else rows
        keys = [key for key in ("branch", "round", "density", "weight", *analysis.keys) if key in rows]
        output.means(rows, keys, analysis.columns, count="replicates", leave_out=analysis.leave_out)

    printing.__name__, printing.__doc__ = name, analysis.help
    return printing


def connectivity(
    run: RunPath,
    rounds: Annotated[str, Option(help="Rounds, such as 0,7 (0 is dense); by default all.", metavar="NUMBERS")] = "",
    steps: Annotated[
        str, Option(help="Steps to train siblings from, such as 0,500; by default the rewind step.", metavar="NUMBERS")
    ] = "",
    replicate: Replicate = None,
    points: Annotated[int, Option(min=3, help="Points on the line, ends included; a finer stored line stays.")] = 30,
    recompute: Annotated[
        bool, Option("--recompute-batch-norm", help="Recompute BatchNorm statistics at each point.")
    ] = False,
    test_only: Annotated[bool, Option("--test-only", help="Leave out the training split, often the larger.")] = False,
    workers: options.Workers = None,
    checkpoint_every: options.CheckpointEvery = "60s",
    max_hours: options.MaxHours = None,
    import_code: options.ImportCode = False,
    *,
    as_data: output.AsData,
) -> None:
    """Train siblings of a round with another order of the data, and measure the error on the line between them.

    Everything that was trained and measured is kept below RUN/connectivity: the same command resumes.

    Example: lottery analyze connectivity runs/NAME --rounds 0,7 --steps 0,100,500
    """
    from lottery.analysis import ANALYSES
    from lottery.analysis import connectivity as stored
    from lottery.pipeline import connecting, session
    from lottery.pipeline.interpolation import Line
    from lottery.pipeline.prepared import Ingredients
    from lottery.runs.siblings import STORED

    often = options.every(checkpoint_every)
    line = Line(points, recompute, test_only)
    chosen, starts = options.numbers("--rounds", rounds), options.numbers("--steps", steps)
    with options.stoppable() as should_stop:
        execution = session.Execution(workers, often, should_stop=should_stop, max_hours=max_hours)
        trusted = Ingredients(import_code=import_code)
        connecting.connect(run, chosen, starts, replicate, line, trusted, execution)
    analysis = ANALYSES["connectivity"]
    barriers = analysis.table(run)
    if as_data:
        output.rows(barriers, as_data)
        return
    keys = ["batch_norm", "round", "density", "step", "split"]
    if set(barriers["batch_norm"]) == {STORED}:  # as of every model without BatchNorm
        keys.remove("batch_norm")
    output.means(barriers, keys, analysis.columns)
    output.say(
        "Errors from 0 to 1. ends: mean of both networks; highest: on the line between them; barrier: highest − ends."
    )
    output.say(*stored.sentences(barriers))


def overlap(
    runs: options.RunPaths,
    round: Annotated[int | None, Option(help="The round; by default the last that all replicates have.")] = None,
    matched: Annotated[
        bool, Option("--matched", help="Also after matching hidden units by permutation; for chains of layers.")
    ] = False,
    *,
    as_data: output.AsData,
) -> None:
    """Compare the masks of replicates, or of several runs, with each other and with chance.

    Example: lottery analyze overlap runs/NAME --round 7 --matched
    """
    from lottery import plots
    from lottery.analysis import ANALYSES, overlaps

    analysis = ANALYSES["overlap"]
    chosen = min(plots.last_common_round(run) for run in runs) if round is None else round
    found = analysis.table(runs, chosen, matched=matched)
    if as_data:
        output.rows(found, as_data)
        return
    # Of several runs, pairs with one replicate may share their initial weights, and are averaged apart.
    keys = ("of", "round", "weight") if len(runs) > 1 else ("round", "weight")
    # Columns without any value are not printed.
    columns = (*analysis.columns, "matched_overlap", "matched_chance")
    output.means(found.assign(of=overlaps.pairs(found)), keys, columns, count="pairs")
    output.say(
        "overlap: intersection over union of two masks, the mean over pairs.",
        "chance: the overlap expected of random masks with as many entries of each weight.",
    )
    if matched:
        output.say("matched: overlap and chance after hidden units are permuted so that the masks overlap most.")


# Commands with options of their own.
OWN: dict[str, Callable[..., None]] = {"connectivity": connectivity, "overlap": overlap}
