"""The commands that train: run, sweep and branch."""

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from lottery.cli import commands, options, output, showing
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


WithNames = commands.listing("Names for KEY=VALUE", _names)


def run(
    changed: options.Changed,
    out: options.Out = Path("runs"),
    smoke: Annotated[
        bool, Option("--smoke", help="Smoke test: the whole experiment in seconds, on a few steps and random data.")
    ] = False,
    tolerance: options.Tolerance = None,
    *,
    training: options.Training,
) -> None:
    """Run an experiment, or continue it where it was stopped, and show its table and figure.

    Examples: lottery run; lottery run train.num_steps=300; lottery run experiments/lenet_mnist.toml
    run.num_replicates=1
    """
    from lottery import config, plots
    from lottery.errors import StorageError
    from lottery.pipeline import presets, running
    from lottery.pipeline.prepared import Ingredients
    from lottery.runs import store
    from lottery.statistics import results, verdicts

    source: Any
    source, overriding = changed.read()
    # Who types the name of a network trusts its code; a file that names it may come from a stranger.
    import_code = training.import_code or config.names_network(overriding)
    data = None
    with training.execution() as execution:
        if smoke:
            source, data = presets.smoke_test(config.load(source, overriding))
            # They are in the experiment that the smoke test was made of.
            overriding = {}
        ingredients = Ingredients(data=data, import_code=import_code)
        path = running.run(source, overriding, ingredients, out, execution, tolerance)
    rows = results.table(path)
    showing.show_run(path, rows, tolerance)
    try:
        print(f"Figure: {plots.save(rows, path / 'accuracy.png', title=store.read_experiment(path).name)}")
    except StorageError as error:  # of a complete run in a folder that may only be read
        output.say(f"The figure was not drawn: {error}")
    # Again, where the eye is: the tables may be longer than the screen.
    showing.headline(verdicts.of_run(path, rows, tolerance))


def sweep(
    file: Annotated[Path, Argument(help="A TOML experiment with a table [sweep] of lists of values.", metavar="FILE")],
    overrides: Annotated[
        list[str] | None, Argument(help="Single values, the same for every experiment.", metavar="[KEY=VALUE]...")
    ] = None,
    out: options.Out = Path("runs"),
    tolerance: options.Tolerance = None,
    *,
    as_data: output.AsData,
    training: options.Training,
) -> None:
    """Run a grid of experiments, or continue it, and show a row for each; what they share is trained once.

    Example: a file with the lines experiment = "lenet_mnist", [sweep], "prune.rate" = [0.2, 0.5].

    A narrow terminal leaves out the runs' folders first; `lottery ls` lists them.
    """
    from lottery import config, formatting
    from lottery.pipeline import sweeping
    from lottery.statistics import comparison
    from lottery.statistics.metric import ACCURACY, LOSS

    words = config.parse_overrides(overrides or [])
    import_code = training.import_code or config.names_network(words)
    found = sweeping.points(file, words)
    with training.execution() as execution:
        runs = sweeping.sweep(found, out, execution, tolerance, import_code)
    rows = comparison.of_sweep(zip(runs, (point.values for point in found), strict=True), tolerance)
    # A person reads per cent and points, a program the numbers.
    if not as_data:
        shown = {key: rows[key].map(str) for key in found[0].values}
        metric = LOSS if "dense_loss" in rows else ACCURACY
        forms = {
            f"dense_{metric.what}": metric.value,
            "smallest_density_by_mean": formatting.percent,
            "difference_by_mean": metric.change,
        }
        for key, form in forms.items():
            shown[key] = rows[key].astype(float).map(form, na_action="ignore").astype(object).fillna("")
        rows = rows.assign(**shown)
    # The swept values name a row as well, and paths are long.
    output.rows(rows, as_data, leave_out=("run",))


def _branches() -> list[tuple[str, str]]:
    """List the names of branches by their kind: control, alternative or other."""
    from lottery.pruning.branches import BRANCHES

    names: dict[str, list[str]] = {}
    for name, branch in BRANCHES.items():
        names.setdefault(branch.kind, []).append(name)
    return [(kind, ", ".join(found)) for kind, found in names.items()]


WithBranches = commands.listing(
    "Refused as unfair comparisons, in runs with",
    lambda: import_module("lottery.pruning.fairness").refusals(),
    commands.listing("Branches", _branches),
)


def branch(
    run: options.RunPath,
    kind: Annotated[str, Argument(help="What to train, of the branches below.", metavar="BRANCH")],
    overrides: Annotated[
        list[str] | None,
        Argument(help="For transfer: the other data set, such as data.name=digits.", metavar="[KEY=VALUE]..."),
    ] = None,
    rounds: Annotated[str, Option(help="Such as 7,15; by default every pruned round.", metavar="NUMBERS")] = "",
    replicate: options.Replicate = None,
    tolerance: options.Tolerance = None,
    *,
    training: options.Training,
) -> None:
    """Train controls and other branches from stored rounds; the same command continues where it was stopped."""
    from lottery import config
    from lottery.pipeline import branching
    from lottery.pipeline.prepared import Ingredients
    from lottery.statistics import results

    others = [word for word in overrides or [] if "=" not in word]
    if others:
        raise LotteryError(f"`lottery branch` trains one kind of branch at a time; start it again for {others[0]!r}.")
    words = config.parse_overrides(overrides or [])
    chosen = options.numbers("--rounds", rounds)
    trusted = Ingredients(import_code=training.import_code)
    with training.execution() as execution:
        branching.branch(run, kind, chosen, words, replicate, trusted, execution)
    showing.show_run(run, results.table(run), tolerance)
