"""`lottery analyze`, `lottery plot` and `lottery report`: thin commands over the records of the analyses."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from lottery.cli import options, output
from lottery.cli.options import All, Csv, Json, Replicate, Round, RunPath
from lottery.errors import LotteryError

if TYPE_CHECKING:
    from lottery.figures.record import Analysis


class _Analyses(TyperGroup):
    """A command for each analysis, made when it is needed: their files would slow down ``lottery --help``."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _commands().get(cmd_name)


def _kinds() -> list[tuple[str, str]]:
    from lottery import plots

    return [(name, one.help) for name, one in plots.kinds().items()]


WithKinds = options.listing("Kinds", _kinds)

analyze = options.App(cls=_Analyses, help="Analyze masks, weights, training and costs.")


def _commands() -> dict[str, Any]:
    from lottery.analysis import ANALYSES

    made = options.App()
    for name, one in ANALYSES.items():
        if one.columns:
            made.command(name, short_help=one.help)(OWN.get(name) or _printing(name, one))
    return dict(typer.main.get_group(made).commands)


def _printing(name: str, one: "Analysis") -> Callable[..., None]:
    """Make the command of an analysis: every row as JSON or CSV, or the means over replicates as a table."""

    def printing(
        run: RunPath,
        replicate: Replicate = None,
        round: Round = None,
        as_json: Json = False,
        as_csv: Csv = False,
        every: All = False,
    ) -> None:
        rows = options.selected(one.table(run), replicate, round)
        if rows.empty:
            raise LotteryError(f"No round of {str(run)!r} is complete yet.")
        if as_json or as_csv or every:
            output.rows(rows, as_json, as_csv)
            return
        rows = one.printed(rows) if one.printed else rows
        keys = [key for key in ("branch", "round", "density", "weight", *one.keys) if key in rows]
        output.means(rows, keys, one.columns, count="replicates")

    def without_all(
        run: RunPath, replicate: Replicate = None, round: Round = None, as_json: Json = False, as_csv: Csv = False
    ) -> None:
        printing(run, replicate, round, as_json, as_csv)

    command = printing if one.printed else without_all
    command.__name__, command.__doc__ = name, one.help
    return command


def connectivity(
    run: RunPath,
    rounds: Annotated[
        str,
        typer.Option(help="Rounds, such as 0,7; 0 is dense. By default every complete round.", metavar="NUMBERS"),
    ] = "",
    steps: Annotated[
        str,
        typer.Option(
            help="Steps to train siblings from, such as 0,500; by default the run's rewind step.", metavar="NUMBERS"
        ),
    ] = "",
    replicate: Replicate = None,
    points: Annotated[
        int,
        typer.Option(min=3, help="Points on the line, ends included; a finer stored line stays.", metavar="NUMBER"),
    ] = 30,
    recompute: Annotated[
        bool, typer.Option("--recompute-batch-norm", help="Recompute BatchNorm statistics at each point.")
    ] = False,
    import_code: options.ImportCode = False,
    checkpoint_every: options.CheckpointEvery = "60s",
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Train siblings of a round with another order of the data, and measure the error on the line between them.

    Everything that was trained and measured is kept below RUN/connectivity: the same command resumes.
    Example: lottery analyze connectivity runs/NAME --rounds 0,7 --steps 0,100,500
    """
    from lottery.analysis import ANALYSES
    from lottery.analysis import connectivity as stored
    from lottery.pipeline import connecting, dispatch
    from lottery.pipeline.interpolation import Line
    from lottery.pipeline.prepared import Ingredients

    often, line = options.every(checkpoint_every), Line(points, recompute)
    indices, starts = options.numbers("--rounds", rounds), options.numbers("--steps", steps)
    with options.stoppable() as should_stop:
        execution = dispatch.Execution(checkpoint_every=often, should_stop=should_stop)
        trusted = Ingredients(import_code=import_code)
        connecting.connect(run, indices, starts, replicate, line, trusted, execution)
    one = ANALYSES["connectivity"]
    barriers = one.table(run)
    if as_json or as_csv:
        output.rows(barriers, as_json, as_csv)
        return
    output.means(barriers, ("batch_norm", "round", "density", "step", "split"), one.columns)
    output.say("Error in [0, 1]: the mean of the two ends, the highest on the line between them, and highest − ends.")
    output.say(*stored.sentences(barriers))


def overlap(
    runs: options.RunPaths,
    round: Round = None,
    matched: Annotated[
        bool, typer.Option("--matched", help="Also after matching hidden units by permutation; for chains of layers.")
    ] = False,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Compare the masks of replicates, or of several runs, with each other and with chance.

    Example: lottery analyze overlap runs/NAME --round 7 --matched
    """
    from lottery import plots
    from lottery.analysis import ANALYSES, overlaps

    one = ANALYSES["overlap"]
    index = plots.last_common_round(runs[0]) if round is None else round
    found = one.table(runs, index, matched=matched)
    if as_json or as_csv:
        output.rows(found, as_json, as_csv)
        return
    keys = ("of", "round", "weight") if len(runs) > 1 else ("round", "weight")
    columns = (*one.columns, *(("matched_overlap", "matched_chance") if matched else ()))
    output.means(found.assign(of=overlaps.pairs(found)), keys, columns, count="pairs")
    output.say("Overlap: intersection over union of two masks, the mean over pairs; chance: of random masks as dense.")
    if matched:
        output.say("Matched: after permuting hidden units so that the masks overlap most, and the same for chance.")


# Commands with options of their own.
OWN: dict[str, Callable[..., None]] = {"connectivity": connectivity, "overlap": overlap}


def plot(
    run: RunPath,
    kind: Annotated[str, typer.Option(help="The figure to draw, of the kinds below.")] = "accuracy",
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file; png, svg or pdf. By default KIND.png in the run's folder, in paper style KIND.pdf."
        ),
    ] = None,
    style: Annotated[
        str, typer.Option(metavar="STYLE", help="The size of letters, lines and figure: screen, paper or slides.")
    ] = "screen",
    width: Annotated[
        float | None,
        typer.Option(metavar="INCHES", help="The width; by default 7.2 on the screen, 5.5 in a paper, 10 on slides."),
    ] = None,
    title: Annotated[
        str | None, typer.Option(help="Above the figure. By default the run's name, in paper style nothing.")
    ] = None,
    caption: Annotated[
        bool, typer.Option("--caption", help="Print a LaTeX caption: what is shown, n, and what the bars are.")
    ] = False,
    replicate: Replicate = None,
    round: Round = None,
    rounds: Annotated[str, typer.Option(help="For kinds that draw some rounds: these rounds, such as 0,7,15.")] = "",
    weight: Annotated[str, typer.Option(help="For initial_weights, degrees and overlap: this weight.")] = "",
    full: Annotated[bool, typer.Option("--full", help="For accuracy and learning_curves: the whole range.")] = False,
    by: Annotated[
        str,
        typer.Option(
            help="For accuracy: against density, or against cost: the computation of all trainings a network takes."
        ),
    ] = "",
) -> None:
    """Draw a figure of a run to a file, and print its path.

    With --caption, the output is the LaTeX caption alone, and the path goes to the error stream.
    Examples: lottery plot runs/NAME --kind inputs --rounds 0,7,15;
    lottery plot runs/NAME --style paper --out accuracy.pdf --caption > caption.tex
    """
    import inspect

    from lottery import plots
    from lottery.runs import store

    known = plots.options_of(kind)
    wanted = {"rounds": options.numbers("--rounds", rounds), "weight": weight, "full": full, "by": by}
    chosen: dict[str, Any] = {name: value for name, value in wanted.items() if value}
    for name in chosen:
        if name not in known:
            fitting = ", ".join(other for other in plots.kinds() if name in plots.options_of(other))
            raise LotteryError(f"--{name} does not go with the kind {kind!r}, but with {fitting}.")
    readable = inspect.signature(plots.kinds()[kind].table).parameters
    table = plots.read(run, kind, round=round, rounds=chosen.get("rounds") or (None if round is None else [round]))
    table = options.selected(table, replicate, None if "round" in readable else round)
    if "replicate" in known and replicate is not None:
        chosen["replicate"] = replicate
    text = plots.latex_caption(table, kind, **chosen) if caption else ""
    if title is None:
        title = "" if style == "paper" else store.read_experiment(run).name
    out = out or run / f"{kind}.{'pdf' if style == 'paper' else 'png'}"
    path = plots.save(table, out, kind, style, width=width, title=title, **chosen)
    typer.echo(path, err=caption)
    if caption:
        print(text)


def report(
    runs: options.RunPaths,
    out: Annotated[
        Path | None,
        typer.Option(help="The page; .html. By default report.html in the first run's folder.", metavar="FILE"),
    ] = None,
    tolerance: options.Tolerance = None,
    author: Annotated[str, typer.Option(help="Who made the runs, to be named on the page.")] = "",
) -> None:
    """Write one HTML page about a run, or about several side by side, that fetches nothing and can be mailed.

    Example: lottery report runs/NAME --out page.html
    """
    from lottery.report import page

    print(page.write(runs, out or runs[0] / "report.html", tolerance, author))
