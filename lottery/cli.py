"""The command line: a thin shell over the modules, which are imported inside the commands."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lottery.errors import LotteryError

app = typer.Typer(
    name="lottery",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Find winning lottery tickets: train, prune the smallest weights, rewind, and again.",
)
RunPath = Annotated[Path, typer.Argument(help="The run's folder.", metavar="RUN", show_default=False)]
Out = Annotated[Path, typer.Option("--out", help="The folder that holds runs.")]
Json = Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print the rows as CSV.")]
Replicate = Annotated[int | None, typer.Option("--replicate", help="Only this replicate, from 1.")]
Round = Annotated[int | None, typer.Option("--round", help="Only this round; 0 is dense.")]
Tolerance = Annotated[float, typer.Option(min=0, max=1, help="Accuracy that a matching ticket may lose, in [0, 1].")]


def main() -> None:
    """The command `lottery`."""
    # TensorFlow's start-up messages are of no use to the reader of a table; what is set already is left alone.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        app()
    except LotteryError as error:
        print(f"lottery: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of a pipe, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        import lottery

        print(lottery.__version__)
        raise typer.Exit


@app.command()
def run(
    experiment: Annotated[
        str | None,
        typer.Argument(help="A TOML file; without one, the digits that ship with the package.", show_default=False),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Single values, such as train.num_steps=300.", metavar="[SECTION.KEY=VALUE]..."),
    ] = None,
    out: Out = Path("runs"),
    tolerance: Tolerance = 0.002,
) -> None:
    """Run an experiment, or go on with it where it was stopped, and show its table and figure.

    Examples: lottery run; lottery run train.num_steps=300; lottery run experiments/lenet_mnist.toml
    run.num_replicates=1
    """
    from lottery import config, plots, running

    words = list(overrides or [])
    if experiment is not None and "=" in experiment and not Path(experiment).exists():
        words, experiment = [experiment, *words], None
    try:
        done = running.run(experiment, config.parse_overrides(words), out=out)
    except KeyboardInterrupt:
        print("lottery: stopped; complete rounds are kept, and the same command goes on.", file=sys.stderr)
        raise typer.Exit(130) from None
    rows = done.table()
    _print_summary(done.path, rows, tolerance)
    figure = plots.save(rows, done.path / "accuracy.png", title=done.experiment.name)
    print(f"Figure: {figure}")


@app.command()
def ls(out: Out = Path("runs"), as_json: Json = False, as_csv: Csv = False) -> None:
    """List the runs of a folder."""
    import pandas as pd

    from lottery import store

    rows = []
    for path in store.runs(out):
        try:
            experiment = store.read_experiment(path)
        except LotteryError as error:
            print(f"lottery: {error}", file=sys.stderr)
            continue
        replicates = range(1, experiment.run.num_replicates + 1)
        stored = sum(len(store.complete_rounds(path, replicate)) for replicate in replicates)
        wanted = len(replicates) * (experiment.prune.num_rounds + 1)
        row = {"run": str(path), "data": experiment.data.name, "model": experiment.model.name}
        rows.append(row | {"replicates": len(replicates), "rounds_stored": stored, "rounds_wanted": wanted})
    if not rows and not (as_json or as_csv):
        print(f"There are no runs in {str(out)!r}; `lottery run` makes one.", file=sys.stderr)
        return
    _print_rows(pd.DataFrame(rows), as_json, as_csv)


@app.command()
def show(
    run: RunPath,
    as_json: Json = False,
    as_csv: Csv = False,
    replicate: Replicate = None,
    round: Round = None,
    tolerance: Tolerance = 0.002,
) -> None:
    """Show a run's table; --json and --csv give a row for each trained network."""
    rows = _rows(run, replicate, round)
    if as_json or as_csv:
        _print_rows(rows, as_json, as_csv)
    else:
        _print_summary(run, rows, tolerance)


@app.command()
def plot(
    run: RunPath,
    kind: Annotated[str, typer.Option(help="What to draw: accuracy.")] = "accuracy",
    out: Annotated[Path | None, typer.Option("--out", help="The file; png, svg or pdf.", show_default=False)] = None,
    replicate: Replicate = None,
    round: Round = None,
) -> None:
    """Draw a run to a file, by default KIND.png in the run's folder."""
    from lottery import plots, store

    rows = _rows(run, replicate, round)
    print(plots.save(rows, out or run / f"{kind}.png", kind, title=store.read_experiment(run).name))


@app.command()
def verify(run: RunPath) -> None:
    """Recompute every checksum and invariant of a run; exit status 1 if anything is wrong."""
    from lottery import checking, store

    num_rounds = num_wrong = 0
    for name, wrong in checking.verify(run):
        num_rounds += 1
        num_wrong += bool(wrong)
        for sentence in wrong:
            print(f"{name}: {sentence}")
    if num_wrong:
        print(f"{num_wrong} of {num_rounds} rounds are wrong.")
        raise typer.Exit(1)
    experiment = store.read_experiment(run)
    wanted = experiment.run.num_replicates * (experiment.prune.num_rounds + 1)
    print(f"{num_rounds} of {wanted} rounds are stored; every checksum and every invariant holds.")


def _rows(run: Path, replicate: int | None, round: int | None) -> Any:
    from lottery import results

    rows = results.table(run)
    for column, wanted in (("replicate", replicate), ("round", round)):
        if wanted is not None:
            if wanted not in set(rows[column]):
                stored = sorted(set(rows[column])) or "none yet"
                raise LotteryError(f"--{column}: received {wanted}, stored are {stored}.")
            rows = rows[rows[column] == wanted]
    return rows


def _print_rows(rows: Any, as_json: bool, as_csv: bool) -> None:
    if as_json:
        print(rows.to_json(orient="records", indent=1, double_precision=15))
    elif as_csv:
        print(rows.to_csv(index=False), end="")
    else:
        _print_table(list(rows.columns), [[str(value) for value in row] for row in rows.itertuples(index=False)])


def _print_summary(run: Path, rows: Any, tolerance: float) -> None:
    from lottery import results

    if rows.empty:
        print(f"No round of {run} is complete yet.")
        return
    num, branches = rows["replicate"].nunique(), rows["branch"].nunique() > 1
    lines = []
    for one in results.summary(rows).to_dict("records"):
        spread = f" ± {one['accuracy_std']:.4f}" if one["replicates"] > 1 else ""
        line = [
            str(one["round"]),
            f"{one['density']:.4f}",
            f"{one['num_kept']:.0f}",
            f"{one['accuracy_mean']:.4f}{spread}",
            *([f"{one['accuracy_min']:.4f} to {one['accuracy_max']:.4f}"] if num > 1 else []),
            f"{one['early_stop_step_mean']:.0f}",
            f"{one['final_accuracy_mean']:.4f}",
        ]
        lines.append([one["branch"], *line] if branches else line)
    spread_heads = ["lowest to highest"] if num > 1 else []
    heads = ["round", "density", "kept", "test accuracy", *spread_heads, "early stop", "at the end"]
    _print_table(["branch", *heads] if branches else heads, lines)
    spread = f"mean ± standard deviation over {num} replicates" if num > 1 else "of one replicate"
    print(f"Test accuracy is taken at the early-stop step, {spread}; beside it, the one at the end.")
    for sentence in results.collapsed(run):
        print(sentence)
    matching = results.smallest_matching(rows, tolerance)
    if matching:
        print(
            f"Smallest density that matches dense within {tolerance:g}: {matching['density']:.4f} (round "
            f"{matching['round']}, {matching['difference']:+.4f} against {matching['dense']:.4f})."
        )
    else:
        print(f"No pruned round matches dense within {tolerance:g}.")


def _print_table(heads: list[str], lines: list[list[str]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in heads:
        table.add_column(
            head, justify="left" if head in ("run", "data", "model", "branch") else "right", overflow="fold"
        )
    for line in lines:
        table.add_row(*line)
    # On a pipe nothing is wrapped: the reader is a program, or a file.
    console = Console(soft_wrap=True) if sys.stdout.isatty() else Console(width=200)
    console.print(table, markup=False, highlight=False)
