"""The commands that draw: a thin shell, as `lottery.cli`, which adds them to its own."""

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

from lottery.errors import LotteryError, unknown
from lottery.options import Replicate, Round, RunPath, Tolerance, numbers, selected

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
    from lottery import plots, store

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
    from lottery import report as page

    print(page.write(runs, out or runs[0] / "report.html", tolerance))
