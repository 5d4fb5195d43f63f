"""The commands below `lottery analyze`: a thin shell, as `lottery.cli`, which adds them to its own."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lottery.cli import output
from lottery.cli.options import (
    CheckpointEvery,
    Csv,
    Json,
    Replicate,
    Round,
    RunPath,
    Tolerance,
    every,
    numbers,
    selected,
    stoppable,
)
from lottery.errors import LotteryError, unknown

analyze = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look into masks, weights and solutions.",
)


Runs = Annotated[
    list[Path],
    typer.Argument(help="A run's folder, or several of the same network.", metavar="RUN...", show_default=False),
]


@analyze.command(short_help="Error barriers between two solutions.")
def connectivity(
    run: RunPath,
    rounds: Annotated[
        str, typer.Option(help="Which rounds, such as 0,7; 0 is dense. Every complete one if not given.")
    ] = "",
    steps: Annotated[
        str,
        typer.Option(
            help="From which steps two copies are trained, such as 0,500; the run's rewind step if not given."
        ),
    ] = "",
    replicate: Replicate = None,
    points: Annotated[
        int, typer.Option(min=3, help="Points on the line, ends included; a finer one that is stored stays.")
    ] = 30,
    recompute: Annotated[
        bool, typer.Option("--recompute-batch-norm", help="Compute BatchNorm statistics anew at each point.")
    ] = False,
    checkpoint_every: CheckpointEvery = "60s",
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Train copies of a round with another order of the data, and measure the error on the line between the two.

    What was trained and measured is kept below RUN/connectivity: the same command goes on where it was stopped.
    Example: lottery analyze connectivity runs/NAME --rounds 0,7 --steps 0,100,500
    """
    from lottery import analysis
    from lottery.analysis import connectivity as stored
    from lottery.pipeline import connecting, dispatch

    often = every(checkpoint_every)
    with stoppable() as asked:
        connecting.connect(
            run, numbers("--rounds", rounds), numbers("--steps", steps), replicate, points, recompute,
            execution=dispatch.Execution(checkpoint_every=often, asked=asked),
        )  # fmt: skip
    barriers = analysis.barriers(run)
    if as_json or as_csv:
        output.rows(barriers, as_json, as_csv)
        return
    keys = ("batch_norm", "round", "density", "step", "split")
    output.means(barriers, keys, ("ends", "highest", "barrier"))
    print(
        "Error in [0, 1]: the mean of the two ends, the highest on the line between them, and the one less the other."
    )
    for sentence in stored.sentences(barriers):
        print(sentence)


@analyze.command(short_help="Masks against each other, and chance.")
def overlap(
    runs: Runs,
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
    from lottery.analysis import overlaps

    index = plots.last_common_round(runs[0]) if round is None else round
    found = overlaps.table(runs, index, matched=matched)
    if as_json or as_csv:
        output.rows(found, as_json, as_csv)
        return
    columns = ("overlap", "chance", *(("matched_overlap", "matched_chance") if matched else ()))
    keys = ("of", "round", "weight") if len(runs) > 1 else ("round", "weight")
    output.means(found.assign(of=overlaps.pairs(found)), keys, columns, count="pairs")
    print("Overlap: intersection over union of two masks, the mean over pairs; chance: of random masks as dense.")
    if matched:
        print(
            "Matched: after the hidden units of one were permuted to overlap the other most, and the same for chance."
        )


# By the name of an analysis: in short and at length what it prints, the columns whose means it prints, and those that
# tell its rows apart beside branch, round, density and weight.
TABLES = {
    "layers": (
        "Density and dead units by weight.", "Density, dead units and inputs of each weight, by round.",
        ("weight_density", "kept", "dead_inputs", "dead_units"), (),
    ),
    "degrees": (
        "How many entries units keep.",
        "How many entries come into the units of each weight (in) and leave its inputs (out), and how many have none "
        "(dead); --csv gives how many have how many.",
        ("num", "dead", "least", "mean", "most"), ("side",),
    ),
    "distance": (
        "How far training moves the weights.",
        "How far training moves the surviving weights from their start: L2, relative, cosine, changes of sign.",
        ("start_norm", "distance", "relative_distance", "cosine", "sign_changes"), (),
    ),
    "costs": (
        "Compression, multiply-adds, time.",
        "Compression, multiply-adds, theoretical speed-up, steps and seconds of each network.",
        ("num_kept", "compression", "multiply_adds", "speedup", "steps", "seconds"), (),
    ),
    "curves": (
        "Losses and accuracies along the way.", "Every loss and accuracy that was measured along the way.",
        ("loss", "accuracy"), ("step", "split"),
    ),
}  # fmt: skip


def _printing(name: str, columns: Sequence[str], more: Sequence[str]) -> Callable[..., None]:
    """The command of an analysis: every row as JSON or CSV; or the means over replicates, as a table."""

    def command(
        run: RunPath, replicate: Replicate = None, round: Round = None, as_json: Json = False, as_csv: Csv = False
    ) -> None:
        from lottery import analysis
        from lottery.analysis.layers import summed

        rows = selected(analysis.ANALYSES[name](run), replicate, round)
        if rows.empty:
            raise LotteryError(f"No round of {str(run)!r} is complete yet.")
        if as_json or as_csv:
            output.rows(rows, as_json, as_csv)
            return
        rows = summed(rows) if name == "degrees" else rows
        keys = [key for key in ("branch", "round", "density", "weight", *more) if key in rows]
        output.means(rows, keys, columns, count="replicates")

    command.__name__ = name
    return command


for _name, (_short, _help, *_columns) in TABLES.items():
    analyze.command(_name, short_help=_short, help=_help)(_printing(_name, *_columns))


# A test compares: reading the names from where they are would import too much for --help.
KINDS = (
    "accuracy, early_stop, learning_curves, layers, initial_weights, inputs, overlap, barrier, instability, degrees, "
    "distance"
)


def plot(
    run: RunPath,
    kind: Annotated[str, typer.Option(help=f"What to draw: {KINDS}.")] = "accuracy",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="The file; png, svg or pdf. By default KIND.png in the run's folder.", show_default=False
        ),
    ] = None,
    replicate: Replicate = None,
    round: Round = None,
    rounds: Annotated[
        str, typer.Option(help="Of kinds that draw some rounds: which, such as 0,7,15.", show_default=False)
    ] = "",
    weight: Annotated[
        str, typer.Option(help="Of initial_weights, degrees and overlap: which weight.", show_default=False)
    ] = "",
    full: Annotated[bool, typer.Option("--full", help="Of accuracy and learning_curves: the whole range.")] = False,
) -> None:
    """Draw a run to a file.

    Examples: lottery plot runs/NAME --out accuracy.pdf; lottery plot runs/NAME --kind inputs --rounds 0,7,15
    """
    from lottery import plots
    from lottery.runs import store

    if kind not in plots.PLOTS:
        raise unknown("--kind", kind, plots.PLOTS)
    asked = {"rounds": numbers("--rounds", rounds), "weight": weight, "full": full}
    options: dict[str, Any] = {name: value for name, value in asked.items() if value}
    read, draw = plots.PLOTS[kind].read, plots.PLOTS[kind].draw
    known = inspect.signature(draw).parameters
    for name in options:
        if name not in known:
            fitting = [
                one for one, plotted in plots.PLOTS.items() if name in inspect.signature(plotted.draw).parameters
            ]
            raise LotteryError(f"--{name} does not go with the kind {kind!r}, but with {', '.join(fitting)}.")
    if "round" in inspect.signature(read).parameters:
        table = selected(read(run, round=round), replicate, None)
    else:
        wanted = options.get("rounds") or ([round] if round is not None else None)
        table = selected(read(run, **({"rounds": wanted} if wanted else {})), replicate, round)
    if "replicate" in known and replicate is not None:
        options["replicate"] = replicate
    print(plots.save(table, out or run / f"{kind}.png", kind, title=store.read_experiment(run).name, **options))


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="A run's folder, or several.", metavar="RUN...", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", help="The page; .html. By default report.html in the first run's folder.", show_default=False
        ),
    ] = None,
    tolerance: Tolerance = 0.002,
) -> None:
    """Write one HTML page about a run, or several side by side, that can be mailed: nothing on it is fetched.

    Example: lottery report runs/NAME --out page.html
    """
    from lottery.report import page

    print(page.write(runs, out or runs[0] / "report.html", tolerance))
