"""The commands that train: run, sweep and branch."""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from lottery.cli import options, output
from lottery.errors import LotteryError


def _names() -> list[tuple[str, str]]:
    """List the names that an experiment may use, by key, as the dicts of functions have them now."""
    from lottery.data import DATASETS, PIXELS
    from lottery.enforcement import ENFORCEMENTS
    from lottery.models.networks import MODELS
    from lottery.pruning import allocation, branches, criteria, granularity, ranking, rewinding, schedules

    found = {
        "data.name": DATASETS,
        "data.pixels": PIXELS,
        "model.name": MODELS,
        "prune.criterion": criteria.CRITERIA,
        "prune.scope": ranking.SCOPES,
        "prune.schedule": schedules.SCHEDULES,
        "prune.allocation": allocation.ALLOCATIONS,
        "prune.granularity": granularity.GRANULARITIES,
        "prune.norm": granularity.NORMS,
        "rewind.mode": rewinding.REWINDS,
        "run.controls": branches.controls(),
        "run.enforcement": ENFORCEMENTS,
    }
    return [(key, ", ".join(names)) for key, names in found.items()]


WithNames = options.listing("Names for KEY=VALUE", _names)


def run(
    experiment: options.ExperimentSource = None,
    overrides: options.Overrides = None,
    out: options.Out = Path("runs"),
    smoke: Annotated[
        bool,
        typer.Option("--smoke", help="Smoke test: the whole experiment in seconds, on a few steps and random data."),
    ] = False,
    workers: options.Workers = None,
    on: options.On = None,
    address: options.Address = None,
    task_cpus: options.TaskCpus = None,
    task_gpus: options.TaskGpus = None,
    task_memory: options.TaskMemory = None,
    checkpoint_every: options.CheckpointEvery = "60s",
    tensorboard: options.Tensorboard = True,
    import_code: options.ImportCode = False,
    tolerance: options.Tolerance = None,
) -> None:
    """Run an experiment, or continue it where it was stopped, and show its table and figure.

    Examples: lottery run; lottery run train.num_steps=300; lottery run experiments/lenet_mnist.toml
    run.num_replicates=1
    """
    from lottery import config, plots
    from lottery.pipeline import dispatch, presets, running
    from lottery.pipeline.prepared import Ingredients
    from lottery.runs import store
    from lottery.statistics import results

    words = list(overrides or [])
    if experiment is not None and "=" in experiment and not Path(experiment).exists():
        words, experiment = [experiment, *words], None
    overriding, data, often = config.parse_overrides(words), None, options.every(checkpoint_every)
    import_code = import_code or config.names_network(overriding)
    working_on = options.workers_on(on, workers, address, task_cpus, task_gpus, task_memory)
    with options.stoppable() as should_stop:
        source: Any = presets.find(experiment) if experiment else None
        if smoke:
            source, data = presets.smoke_test(config.load(source, overriding))
            overriding = {}
        execution = dispatch.Execution(working_on, often, tensorboard=tensorboard, should_stop=should_stop)
        ingredients = Ingredients(data=data, import_code=import_code)
        path = running.run(source, overriding, ingredients, out, execution, tolerance)
    rows = results.table(path)
    output.summary(path, rows, tolerance)
    figure = plots.save(rows, path / "accuracy.png", title=store.read_experiment(path).name)
    print(f"Figure: {figure}")


def plan(
    experiment: options.ExperimentSource = None,
    overrides: options.Overrides = None,
    difference: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="The true ticket − dense to be found; by default 0, or the means of the run of --from.",
        ),
    ] = None,
    std: Annotated[
        float | None,
        typer.Option(min=0, metavar="NUMBER", help="Standard deviation of ticket − dense between replicates."),
    ] = None,
    pilot: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="Instead of --std: a run that estimates it, and is not used again."),
    ] = None,
    power: Annotated[
        float, typer.Option(metavar="FRACTION", help="The probability with which the difference is to be shown.")
    ] = 0.8,
    tolerance: options.Tolerance = None,
    import_code: options.ImportCode = False,
    as_json: options.Json = False,
    as_csv: options.Csv = False,
) -> None:
    """Show what an experiment would train, and how many replicates its verdicts need. Nothing is trained.

    Examples: lottery plan run.num_replicates=10; lottery plan lenet_mnist --difference 0.005 --std 0.003;
    lottery plan --from runs/NAME
    """
    from lottery import config
    from lottery.formatting import number
    from lottery.pipeline import environment, presets, preview
    from lottery.runs import store
    from lottery.statistics import results, verdicts
    from lottery.statistics.metric import ACCURACY, metric_of

    if std is not None and pilot is not None:
        raise LotteryError("--std and --from: received both, allowed is one of them.")
    if not 0 < power < 1:
        raise LotteryError(f"--power: received {power:g}, allowed is between 0 and 1.")
    words = list(overrides or [])
    if experiment is not None and "=" in experiment and not Path(experiment).exists():
        words, experiment = [experiment, *words], None
    if experiment is None and pilot is not None:
        source: Any = store.read_experiment(pilot).model_dump(mode="json")
    else:
        source = presets.find(experiment) if experiment else None
    overriding = config.parse_overrides(words)
    planned = config.load(source, overriding)
    environment.num_threads()  # imports TensorFlow without its start-up messages
    compared_by = ACCURACY if pilot is None else metric_of(results.table(pilot))
    rule = verdicts.rule_for(planned, tolerance, compared_by)
    rows = preview.rounds(planned, pilot, import_code or config.names_network(overriding))
    num_entries, asked = int(rows["num_kept"].iloc[0]), std is not None or pilot is not None
    if asked:
        if difference is None and pilot is None:
            difference = 0.0
        rows = preview.needed(rows, planned, rule, power, difference=difference, std=std, pilot=pilot)
    if as_json or as_csv:
        output.rows(rows, as_json, as_csv)
        return
    shown = {"density": rows["density"].map("{:.4f}".format)}
    for key in ("replicates", "for_all_rounds") if asked else ():
        shown[key] = rows[key].map("{:,.0f}".format, na_action="ignore").astype(object).fillna("")
    for key in ("difference", "std") if asked else ():
        shown[key] = rows[key].map(lambda value, signs="+.4f" if key == "difference" else ".4f": number(value, signs))
    output.rows(rows.astype(object).assign(**shown))
    output.say(*preview.sentences(planned, num_entries))
    if asked:
        true = "the run's difference" if difference is None else "the difference"
        output.say(
            f"Replicates: of a new run, to show with a power of {100 * power:g} % that a round is matching if {true} "
            "is true; empty where more than 1,000 would not. For all rounds: to show it for all "
            f"{planned.prune.num_rounds} rounds at once, whatever the others show.",
            "Fix the number before, in run.num_replicates, and take a seed that no earlier run has (run.seed).",
        )
        if compared_by.is_loss:
            output.say("Difference and std: of the test loss, as fractions of the loss of dense.")
    else:
        output.say("--std NUMBER or --from RUN also says how many replicates the verdicts need.")


def sweep(
    file: Annotated[
        Path, typer.Argument(help="A TOML file: an experiment with a table [sweep] of lists of values.", metavar="FILE")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Single values, the same for every experiment.", metavar="[KEY=VALUE]..."),
    ] = None,
    out: options.Out = Path("runs"),
    workers: options.Workers = None,
    on: options.On = None,
    address: options.Address = None,
    task_cpus: options.TaskCpus = None,
    task_gpus: options.TaskGpus = None,
    task_memory: options.TaskMemory = None,
    checkpoint_every: options.CheckpointEvery = "60s",
    tensorboard: options.Tensorboard = True,
    import_code: options.ImportCode = False,
    tolerance: options.Tolerance = None,
    as_json: options.Json = False,
    as_csv: options.Csv = False,
) -> None:
    """Run a grid of experiments, or continue it, and show a row for each; what they share is trained once.

    Example: a file with the lines experiment = "lenet_mnist", [sweep], "prune.rate" = [0.2, 0.5].
    """
    from lottery import config
    from lottery.pipeline import dispatch, sweeping
    from lottery.statistics.metric import ACCURACY, LOSS

    words, often = config.parse_overrides(overrides or []), options.every(checkpoint_every)
    working_on = options.workers_on(on, workers, address, task_cpus, task_gpus, task_memory)
    found = sweeping.points(file, words)
    with options.stoppable() as should_stop:
        execution = dispatch.Execution(working_on, often, tensorboard=tensorboard, should_stop=should_stop)
        runs = sweeping.sweep(file, words, out, execution, tolerance, import_code or config.names_network(words))
    rows = sweeping.table(runs, found, tolerance)
    if not (as_json or as_csv):
        shown = {key: rows[key].map(str) for key in found[0].values}
        differences = rows["smallest_matching_difference"].astype(float)
        change = (LOSS if "dense_loss" in rows else ACCURACY).change
        shown["smallest_matching_difference"] = differences.map(change, na_action="ignore").astype(object).fillna("")
        rows = rows.astype(object).assign(**shown)
    output.rows(rows, as_json, as_csv)


NamingBranches = options.listing(
    "Refused, because it would be no fair comparison, in runs of",
    lambda: import_module("lottery.pruning.fairness").refusals(),
    options.naming(lambda: import_module("lottery.pruning.branches").BRANCHES),
)


def branch(
    run: options.RunPath,
    kind: Annotated[str, typer.Argument(help="What to train: {names}.", metavar="BRANCH")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="For transfer: the other data set, such as data.name=digits.", metavar="[KEY=VALUE]..."),
    ] = None,
    rounds: options.Rounds = "",
    replicate: options.Replicate = None,
    workers: options.Workers = None,
    on: options.On = None,
    address: options.Address = None,
    task_cpus: options.TaskCpus = None,
    task_gpus: options.TaskGpus = None,
    task_memory: options.TaskMemory = None,
    checkpoint_every: options.CheckpointEvery = "60s",
    tensorboard: options.Tensorboard = True,
    import_code: options.ImportCode = False,
    tolerance: options.Tolerance = None,
) -> None:
    """Train controls and other branches from stored rounds; the same command continues where it was stopped."""
    from lottery import config
    from lottery.pipeline import branching, dispatch
    from lottery.pipeline.prepared import Ingredients
    from lottery.statistics import results

    words, often = config.parse_overrides(overrides or []), options.every(checkpoint_every)
    working_on = options.workers_on(on, workers, address, task_cpus, task_gpus, task_memory)
    with options.stoppable() as should_stop:
        execution = dispatch.Execution(working_on, often, tensorboard=tensorboard, should_stop=should_stop)
        indices, trusted = options.numbers("--rounds", rounds), Ingredients(import_code=import_code)
        branching.branch(run, kind, indices, words, replicate, trusted, execution)
    output.summary(run, results.table(run), tolerance)


experiments = options.App(help="Experiments that come with the package.")


@experiments.command("ls", short_help="List the experiments.")
def ls(as_json: options.Json = False, as_csv: options.Csv = False) -> None:
    """List the experiments, the default first: paper and figure that each reproduces, data, and network."""
    from lottery.pipeline import presets

    rows = presets.listed()
    if as_json or as_csv:
        output.rows(rows, as_json, as_csv)
        return
    columns = ("name", "paper", "figure", "data", "model")
    output.rows([{column: row[column] for column in columns} for row in rows])
    output.say(
        f"`lottery run` trains {rows[0]['name']}, `lottery run NAME` another. `lottery experiments show NAME` prints "
        "what it reproduces, how long it takes and the numbers to expect."
    )


@experiments.command("show", short_help="Print an experiment.")
def show(name: options.ExperimentName) -> None:
    """Print an experiment, with what it reproduces, how long it takes and the numbers to expect."""
    from lottery.pipeline import presets

    print(presets.named(name).read_text(encoding="utf-8"), end="")


@experiments.command("cp", short_help="Copy an experiment, to change it.")
def cp(
    name: options.ExperimentName,
    to: Annotated[Path | None, typer.Argument(help="File or folder; by default here.", metavar="[TO]")] = None,
) -> None:
    """Copy an experiment, to change it."""
    from lottery.pipeline import presets

    print(presets.copied(name, to or Path()))
