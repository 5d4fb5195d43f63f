"""The functions that a user calls, `run`, `load`, `sweep` and `branch`, and the `Run` that they return."""

# Annotations are not evaluated: most of their types are imported for type checkers alone.
from __future__ import annotations

import html
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from lottery import config, plots, text_tables
from lottery.errors import LotteryError, missing
from lottery.pipeline import branching, retraining, running, sweeping
from lottery.pipeline.prepared import Ingredients
from lottery.pipeline.session import Execution
from lottery.runs import store
from lottery.statistics import results, sentences, tables, verdicts

if TYPE_CHECKING:
    from lottery import interrupts, progress
    from lottery.enforcement import Enforcement
    from lottery.executors import ray
    from lottery.pruning.branches import BranchFunction
    from lottery.pruning.criteria import ScoreFunction
    from lottery.pruning.schedules import Density
    from lottery.text_tables import Table
    from lottery.tickets import Ticket
    from lottery.training.checkpoints import CheckpointInterval

__all__ = ["BranchOptions", "ExecutionOptions", "Options", "Run", "branch", "load", "run", "sweep"]


class ExecutionOptions(TypedDict, total=False):
    """How networks are trained. None of it changes bits.

    Attributes:
        workers: The number of processes, 1 by default; None for as many as this machine has room for; or a
            `lottery.executors.ray.Ray`.
        checkpoint_every: How often a network in training is checkpointed; by default at most 60 seconds are at risk.
        on_event: Receives events of `lottery.progress`; by default they are shown on standard error.
        tensorboard: Also write for TensorBoard, into the run's folder; True by default.
        should_stop: Returns the signal that requested a stop, or 0; by default SIGINT and SIGTERM are heeded.
        max_hours: Training stops after this time, as by Ctrl-C; by default it has no limit.
    """

    workers: int | ray.Ray | None
    checkpoint_every: CheckpointInterval | None
    on_event: progress.OnEvent | None
    tensorboard: bool
    should_stop: interrupts.ShouldStop | None
    max_hours: float | None


class Options(ExecutionOptions, total=False):
    """Functions in place of names in an experiment, besides `ExecutionOptions`. Pass them again to resume a run.

    Attributes:
        criterion: A function from `lottery.pruning.criteria.CriterionInputs` to scores by weight, the same for the same
            inputs. It is tried before anything is trained.
        schedule: A function from a round to a density, which replaces every rate and density of ``[prune]``; see
            `lottery.pruning.schedules`. Its densities are stored, so resuming does not need it.
        enforcement: A context manager function, such as `lottery.enforcement.constraint`.
        import_code: Import the network that a file, or a stored run, names as ``package.module:function``, which runs
            code; False by default. A name in tables that you pass is imported in any case.
    """

    criterion: ScoreFunction | None
    schedule: Density | None
    enforcement: Enforcement | None
    import_code: bool


class BranchOptions(Options, total=False):
    """Options of `branch`: those of `Options`, and the only replicate to branch from; all by default."""

    replicate: int | None


@dataclass(frozen=True)
class Run:
    """A run on disk, in the folder `path`."""

    path: Path

    def __fspath__(self) -> str:
        """Return its folder, so that whatever takes a path takes a run."""
        return str(self.path)

    @property
    def experiment(self) -> config.Experiment:
        """The experiment, with every value that was used."""
        return store.read_experiment(self.path)

    def table(self) -> Table:
        """Return the tidy table: a row for each trained network; see `lottery.statistics.results.table`."""
        return results.table(self.path)

    def __str__(self) -> str:
        """Say the verdict in a line, or that there is none yet."""
        rows = self.table()
        if rows.empty:
            return f"{self.path}: no round is complete yet."
        return sentences.headline(verdicts.of_run(self.path, rows)).text

    def verdict(self, tolerance: float | None = None) -> list[str]:
        """Say in a sentence if a ticket is winning, and in one each what limits that.

        A matching ticket may lose `tolerance` of its accuracy, both in [0, 1]; 0.002 by default. If the model measures
        no accuracy, the test loss of a matching ticket may be higher than that of the dense network by the fraction
        `tolerance`; 0.02 by default.
        """
        return sentences.of(verdicts.of_run(self.path, self.table(), tolerance))

    def plot(self, kind: str = "accuracy", **options: Any) -> Any:
        """Draw a Matplotlib figure, which a notebook shows; ``savefig`` writes it to a file.

        Args:
            kind: A key of `lottery.plots.kinds`.
            options: ``style``, ``width`` and ``title`` of `lottery.plots.drawn`, options of that kind, and what it
                reads by: ``rounds``, or ``round`` and ``matched`` of an overlap.

        Raises:
            LotteryError: There is no such kind, or it has no such option, or the run lacks what it shows.
        """
        # It takes the options of the table, and ignores those of the figure.
        table = plots.read(self.path, kind, **options)
        of_table = inspect.signature(plots.kinds()[kind].table).parameters.keys() - set(plots.options_of(kind))
        return plots.drawn(table, kind, **{key: value for key, value in options.items() if key not in of_table})

    def report(self, out: str | Path, tolerance: float | None = None, author: str = "") -> Path:
        """Write the HTML page about this run, and return its path; see `lottery.report.write`."""
        from lottery.report import page

        return page.write([self.path], out, tolerance, author)

    def ticket(
        self,
        *,
        round: int | str | None = None,
        density: float | None = None,
        replicate: int = 1,
        at: Literal["end", "early_stop", "budget"] = "end",
    ) -> Ticket:
        """Load a ticket of this run; see `lottery.tickets.load`."""
        from lottery import tickets

        return tickets.load(self.path, round=round, density=density, replicate=replicate, at=at)

    def tickets(self) -> Table:
        """List the tickets: a row for each replicate and pruned round; see `lottery.tickets.from_run.listed`."""
        from lottery.tickets import from_run

        return from_run.listed(self.path)

    def verify(
        self,
        recompute: bool = False,
        *,
        retrain: int = 0,
        model: Callable[[], Any] | None = None,
        data: Any = None,
        import_code: bool = False,
    ) -> list[str]:
        """Recompute every checksum and invariant, and return a sentence for each that is wrong.

        Args:
            recompute: Also compute losses, accuracies and predictions again, from the stored weights at the early-stop
                step and at the end, and draw initial weights again; see `lottery.pipeline.recomputing.opened`.
            retrain: Also train so many networks, chosen at random, again, if nothing else is wrong; see
                `lottery.pipeline.retraining.retrained`.
            model, data: For `recompute` and `retrain`, the objects passed to `lottery.run`.
            import_code: For `recompute` and `retrain`: see `Options`.

        Raises:
            LotteryError: The run cannot be read; or for `recompute` or `retrain`, its data are not found or differ.
        """
        ingredients = Ingredients(model, data, import_code=import_code)
        found = retraining.verified(self.path, ingredients, recompute, retrain)
        return [f"{name}: {sentence}" for name, wrong in found for sentence in wrong]

    def branch(self, kind: str | BranchFunction, rounds: Sequence[int] = (), **options: Any) -> Run:
        """Train branches from stored rounds; see `lottery.branch`."""
        return branch(self.path, kind, rounds, **options)

    def _repr_html_(self) -> str:
        """Show the verdict, the tables of rounds and controls, and the figure in a notebook."""
        rows = self.table()
        path = f"<p><code>{html.escape(str(self.path))}</code></p>"
        if rows.empty:
            return f"{path}<p>No round is complete yet.</p>"
        judgement = verdicts.of_run(self.path, rows)
        head = sentences.headline(judgement)
        points = results.summary(rows)
        parts = [f"<p><b style='color: {text_tables.COLOURS[head.tone]}'>{html.escape(head.text)}</b></p>", path]
        for table in (tables.rounds(judgement, points, short=True), tables.controls(judgement)):
            if table:
                parts.append(text_tables.html(table))
        parts.append(plots.svg(rows))
        return "".join(parts + [f"<p>{html.escape(limit)}</p>" for limit in sentences.limits(judgement)])


def run(
    experiment: str | Path | Run | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    model: Callable[[], Any] | None = None,
    data: Any = None,
    out: str | Path = "runs",
    **options: Unpack[Options],
) -> Run:
    """Run an experiment, resume it where it stopped, or find it complete.

    Args:
        experiment: A TOML file, its tables, the name of an experiment that ships with the package, or None:
            ``mnist1d``, or every default if a model or data are passed. Or a run, or its folder, which is resumed.
        overrides: Tables that replace single values, such as ``{"prune": {"num_rounds": 12}}``; none for a run.
        model: A function without arguments that builds a Keras model. A compiled model keeps its optimiser, loss and
            metrics; any other gets the experiment's optimiser and a cross-entropy loss.
        data: ``(x_train, y_train, x_test, y_test)``, or ``(train, validation, test)`` as batched
            ``tf.data.Dataset`` or functions without arguments that return one.
        out: The folder that holds runs.
        options: See `Options`.

    Raises:
        LotteryError: Something is wrong, or a network cannot be trained, which does not stop the others.
        Stopped: A stop was requested, as by Ctrl-C, or the time is up; the same call resumes from checkpoints. A
            ``KeyboardInterrupt``.
    """
    if isinstance(experiment, Run):
        experiment = experiment.path
    _check_overrides(overrides)
    _check_places(experiment=experiment, overrides=overrides)
    _check_options(run, options, Options)
    ingredients, execution = _divided(model, data, options, config.names_network(experiment, overrides))
    return Run(running.run(experiment, overrides, ingredients, out, execution))


def load(path: store.Folder) -> Run:
    """Open the run that is stored in a folder.

    Raises:
        LotteryError: The folder is not a run, or its experiment was changed.
    """
    # For its errors alone.
    store.read_experiment(Path(path))
    return Run(Path(path))


def sweep(
    source: str | Path | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    out: str | Path = "runs",
    import_code: bool = False,
    **options: Unpack[ExecutionOptions],
) -> list[Run]:
    """Run a grid of experiments, each a run, resume it, or find it complete; networks that they share train once.

    Args:
        source, overrides: As for `lottery.pipeline.sweeping.points`.
        out: The folder that holds runs.
        import_code: See `Options`.
        options: See `ExecutionOptions`.

    Returns:
        The complete runs, in the order of the grid.

    Raises:
        LotteryError, Stopped: As for `run`; before any training if an experiment is wrong.
    """
    _check_overrides(overrides)
    _check_options(sweep, options, ExecutionOptions)
    points = sweeping.points(source, overrides)
    import_code = import_code or config.names_network(source, overrides)
    return [Run(path) for path in sweeping.sweep(points, out, Execution(**options), import_code=import_code)]


def branch(
    run: store.Folder,
    kind: str | BranchFunction,
    rounds: Sequence[int] = (),
    overrides: Mapping[str, Any] | None = None,
    *,
    model: Callable[[], Any] | None = None,
    data: Any = None,
    **options: Unpack[BranchOptions],
) -> Run:
    """Train branches from stored rounds, or find them complete.

    Args:
        run: The run's folder.
        kind: A key of `lottery.pruning.branches.BRANCHES`, or a function from `StoredTicket` to `BranchStart`.
        rounds: The rounds to branch from; every complete pruned round by default. ``"transfer"`` adds round 0, the
            dense network.
        overrides: For ``"transfer"`` only: the ``[data]`` of the other data set, and values of ``[train]`` that
            differ, such as ``{"data": {"name": "fashion_mnist"}}``.
        model, data: The objects passed to `lottery.run`; for ``"transfer"``, `data` may be the other data.
        options: See `BranchOptions`.

    Returns:
        The run, whose table has the branches beside the rounds.

    Raises:
        LotteryError, Stopped: As for `run`; or there is no such run, round, replicate or branch.
    """
    _check_overrides(overrides)
    _check_options(branch, options, BranchOptions)
    replicate = options.pop("replicate", None)
    branching.branch(run, kind, rounds, overrides, replicate, *_divided(model, data, options))
    return Run(Path(run))


def _check_overrides(overrides: Any) -> None:
    """Raise `LotteryError` if overrides are words, as the command line takes them."""
    words = [overrides] if isinstance(overrides, str) else overrides
    if isinstance(words, list) and all(isinstance(word, str) for word in words):
        raise LotteryError(f'overrides must be tables, such as {{"train": {{"num_steps": 300}}}}, not {overrides!r}.')


def _check_places(**arguments: Any) -> None:
    """Raise `LotteryError` if a model or data stand in the place of an experiment."""
    for place, value in arguments.items():
        if value is None or isinstance(value, str | Path | Mapping):
            continue
        what, wanted = type(value).__name__, "data"
        if hasattr(value, "trainable_variables") or callable(value):
            what, wanted = "a model", "a function that builds the model"
            if hasattr(value, "__name__"):
                what = f"the function {value.__name__}"
        raise LotteryError(
            f"{place} must be tables, not {what}. Pass {wanted} by name: lottery.run(model=build_model, data=...)."
        )


_BELONG = {
    "class_weight": "class weights belong in the data, as weights of examples: pass (train, validation, test), each a "
    "batched tf.data.Dataset, with .map(lambda x, y: (x, y, tf.gather(class_weights, y)))",
    "sample_weight": "weights of examples belong in the data: pass (train, validation, test), each a batched data set "
    "such as tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(60)",
    "validation_data": "validation examples belong in the data: pass (x_train, y_train, x_validation, y_validation, "
    "x_test, y_test)",
    "epochs": 'the length of training belongs in the experiment: {"train": {"num_steps": ...}}',
}


def _check_options(called: Callable[..., Any], options: Mapping[str, Any], known: type) -> None:
    """Raise `LotteryError` for an argument that is no option, and say where it belongs or what it may mean."""
    # The annotations of a TypedDict, unlike those of other classes, include what it inherits.
    for name in options.keys() - known.__annotations__.keys():
        if name in _BELONG:
            raise LotteryError(f"{name}: {_BELONG[name]}.")
        if name in config.Experiment.model_fields:
            raise LotteryError(f'{name} belongs in the experiment: {{"{name}": ...}}.')
        for section, field in config.Experiment.model_fields.items():
            if name in getattr(field.annotation, "model_fields", {}):
                raise LotteryError(f'{name} belongs in the experiment: {{"{section}": {{"{name}": ...}}}}.')
        *arguments, _ = inspect.signature(called).parameters  # the last stands for the options
        raise missing("Unknown argument", name, [*arguments, *known.__annotations__])


def _divided(
    model: Any, data: Any, options: Mapping[str, Any], names_network: bool = False
) -> tuple[Ingredients, Execution]:
    """Divide the options of a call by what they are about; a caller whose tables name a network trusts its module."""
    # A TypedDict has no isinstance, so options are told apart by their names.
    own = options.keys() - ExecutionOptions.__annotations__.keys()
    passed = {key: options[key] for key in own}
    if names_network:
        # Who types the name of a module has chosen to run it; a file may be a stranger's.
        passed["import_code"] = True
    return Ingredients(model, data, **passed), Execution(**{key: options[key] for key in options.keys() - own})
