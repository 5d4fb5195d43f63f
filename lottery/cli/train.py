"""The commands that train: run, sweep and branch."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lottery.cli import output
from lottery.cli.options import (
    Address,
    CheckpointEvery,
    Csv,
    ExperimentName,
    Json,
    On,
    Out,
    Replicate,
    Rounds,
    RunPath,
    TaskCpus,
    TaskGpus,
    TaskMemory,
    Tensorboard,
    Tolerance,
    Workers,
    every,
    numbers,
    stoppable,
    workers_on,
)


def run(
    experiment: Annotated[
        str | None,
        typer.Argument(
            help="A TOML file, or a name that `lottery experiments ls` lists; without one, the digits.",
            show_default=False,
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Single values, such as train.num_steps=300.", metavar="[SECTION.KEY=VALUE]..."),
    ] = None,
    out: Out = Path("runs"),
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Run all of it in seconds, on a few steps and data made for it.")
    ] = False,
    workers: Workers = None,
    on: On = None,
    address: Address = None,
    task_cpus: TaskCpus = None,
    task_gpus: TaskGpus = None,
    task_memory: TaskMemory = None,
    checkpoint_every: CheckpointEvery = "60s",
    tensorboard: Tensorboard = True,
    tolerance: Tolerance = 0.002,
) -> None:
    """Run an experiment, or go on with it where it was stopped, and show its table and figure.

    Examples: lottery run; lottery run train.num_steps=300; lottery run experiments/lenet_mnist.toml
    run.num_replicates=1
    """
    from lottery import config, plots
    from lottery.pipeline import dispatch, preparing, presets, running
    from lottery.runs import results, store

    words = list(overrides or [])
    if experiment is not None and "=" in experiment and not Path(experiment).exists():
        words, experiment = [experiment, *words], None
    overriding, data, often = config.parse_overrides(words), None, every(checkpoint_every)
    working_on = workers_on(on, workers, address, task_cpus, task_gpus, task_memory)
    with stoppable() as asked:
        source: Any = presets.find(experiment) if experiment else None
        if smoke:
            source, data = presets.smoke_test(config.load(source, overriding))
            overriding = {}
        execution = dispatch.Execution(working_on, often, tensorboard=tensorboard, asked=asked)
        path = running.run(source, overriding, preparing.Ingredients(data=data), out, execution)
    rows = results.table(path)
    output.summary(path, rows, tolerance)
    figure = plots.save(rows, path / "accuracy.png", title=store.read_experiment(path).name)
    print(f"Figure: {figure}")


def sweep(
    file: Annotated[
        Path,
        typer.Argument(
            help="A TOML file: an experiment, and a table [sweep] with lists of values by key.", show_default=False
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Single values, the same for all of them.", metavar="[SECTION.KEY=VALUE]..."),
    ] = None,
    out: Out = Path("runs"),
    workers: Workers = None,
    on: On = None,
    address: Address = None,
    task_cpus: TaskCpus = None,
    task_gpus: TaskGpus = None,
    task_memory: TaskMemory = None,
    checkpoint_every: CheckpointEvery = "60s",
    tensorboard: Tensorboard = True,
    tolerance: Tolerance = 0.002,
    as_json: Json = False,
    as_csv: Csv = False,
) -> None:
    """Run a grid of experiments, or go on with it, and show a row for each; what they have in common is trained once.

    Example: a file with the lines experiment = "lenet_mnist", [sweep], "prune.rate" = [0.2, 0.5].
    """
    from lottery import config
    from lottery.pipeline import dispatch, sweeping

    words, often = config.parse_overrides(overrides or []), every(checkpoint_every)
    working_on = workers_on(on, workers, address, task_cpus, task_gpus, task_memory)
    found = sweeping.points(file, words)
    with stoppable() as asked:
        execution = dispatch.Execution(working_on, often, tensorboard=tensorboard, asked=asked)
        runs = sweeping.sweep(file, words, out, execution)
    rows = sweeping.table(runs, found, tolerance)
    output.rows(rows if as_json or as_csv else rows.round(4).astype(object).fillna(""), as_json, as_csv)


def _show_branches(context: typer.Context, wanted: bool) -> None:
    """Print the help of `branch`, which reads the names of branches only here: `lottery --help` imports no NumPy."""
    if wanted:
        from lottery.pruning.branches import BRANCHES

        kind: Any = next(parameter for parameter in context.command.params if parameter.name == "kind")
        kind.help = f"What to train: {', '.join(BRANCHES)}."
        print(context.get_help())
        raise typer.Exit


def branch(
    run: RunPath,
    kind: Annotated[str, typer.Argument(help="What to train.", metavar="BRANCH")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="For transfer: the other data, such as data.name=digits.", metavar="[SECTION.KEY=VALUE]..."
        ),
    ] = None,
    rounds: Rounds = "",
    replicate: Replicate = None,
    workers: Workers = None,
    on: On = None,
    address: Address = None,
    task_cpus: TaskCpus = None,
    task_gpus: TaskGpus = None,
    task_memory: TaskMemory = None,
    checkpoint_every: CheckpointEvery = "60s",
    tensorboard: Tensorboard = True,
    tolerance: Tolerance = 0.002,
    show_help: Annotated[
        bool, typer.Option("--help", is_eager=True, callback=_show_branches, help="Show this message and exit.")
    ] = False,
) -> None:
    """Train controls and other branches from stored rounds: the same command goes on where it was stopped."""
    from lottery import config
    from lottery.pipeline import branching, dispatch
    from lottery.runs import results

    words, often = config.parse_overrides(overrides or []), every(checkpoint_every)
    working_on = workers_on(on, workers, address, task_cpus, task_gpus, task_memory)
    with stoppable() as asked:
        execution = dispatch.Execution(working_on, often, tensorboard=tensorboard, asked=asked)
        branching.branch(run, kind, numbers("--rounds", rounds), words, replicate, execution=execution)
    output.summary(run, results.table(run), tolerance)


experiments = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Experiments that ship with the package.")


@experiments.command("ls", short_help="List them.")
def ls(as_json: Json = False, as_csv: Csv = False) -> None:
    """List them: name, data, network, and what each reproduces."""
    import pandas as pd

    from lottery.pipeline import presets

    output.rows(pd.DataFrame(presets.listed()), as_json, as_csv)


@experiments.command("show", short_help="Print one.")
def show(name: ExperimentName) -> None:
    """Print one, with what it reproduces, its time and the numbers to expect."""
    from lottery.pipeline import presets

    print(presets.named(name).read_text(encoding="utf-8"), end="")


@experiments.command("cp", short_help="Copy one, to be changed.")
def cp(
    name: ExperimentName,
    to: Annotated[Path | None, typer.Argument(help="The file or folder; by default here.", show_default=False)] = None,
) -> None:
    """Copy one, to be changed."""
    from lottery.pipeline import presets

    print(presets.copied(name, to or Path()))
