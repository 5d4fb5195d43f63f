"""Train networks of runs: in this process, in several, or on a cluster, from plain data and the caller's functions."""

import contextlib
import dataclasses
import functools
import math
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import loky

from lottery import config, interrupts, progress, randomness, weights
from lottery.errors import LotteryError
from lottery.executors import processes, ray, scheduler
from lottery.executors.executor import Executor, Job, LocalExecutor
from lottery.models import multiply_adds
from lottery.pipeline import (
    branch_training,
    environment,
    network_training,
    opening,
    rounds,
    shared_prefix,
    tensorboard,
)
from lottery.pipeline.network_training import Training
from lottery.pipeline.prepared import Ingredients, Prepared
from lottery.pipeline.preparing import prepare
from lottery.pruning import branches
from lottery.runs import store
from lottery.training.checkpoints import CheckpointInterval

MOST_OPEN = 3

# Roughly, the seconds of a step on one core, those of each multiplication in it, forward and backward, and the training
# that makes processes worth it, which start in some ten seconds.
SECONDS_OF_STEP, SECONDS_OF_MAC, WORTH = 1e-4, 3e-11, 20.0


@dataclass(frozen=True)
class Execution:
    """How networks are trained; see `lottery.api.ExecutionOptions`. None of it changes bits."""

    workers: int | ray.Ray | None = 1
    checkpoint_every: CheckpointInterval | None = None
    on_event: progress.OnEvent | None = None
    tensorboard: bool = True
    should_stop: interrupts.ShouldStop | None = None

    @contextlib.contextmanager
    def started(self) -> Iterator["Session"]:
        """Check the workers, show progress and heed signals where the caller does not, and put global seeds back."""
        if isinstance(self.workers, ray.Ray):
            self.workers.check()
        elif self.workers is not None and self.workers < 1:
            raise LotteryError(f"workers: received {self.workers}, allowed is 1 or more.")
        with contextlib.ExitStack() as stack:
            stack.enter_context(randomness.put_back())
            on_event = self.on_event or stack.enter_context(progress.shown())
            should_stop = self.should_stop or stack.enter_context(interrupts.listening())
            yield Session(self, on_event, should_stop, stack)


@dataclass(frozen=True)
class Session:
    """An execution that has begun."""

    execution: Execution
    on_event: progress.OnEvent
    should_stop: interrupts.ShouldStop
    stack: contextlib.ExitStack  # closed when the execution ends

    def note(self, *sentences: str) -> None:
        """Report sentences for the person who watches."""
        for sentence in sentences:
            self.on_event(progress.Note(sentence))

    def writing(self, experiments: Mapping[Path, config.Experiment]) -> "Session":
        """Also write for TensorBoard, each event into its run, if that is wanted."""
        if not self.execution.tensorboard:
            return self
        observers = {
            run: self.stack.enter_context(tensorboard.observing(run, experiment, self.on_event))
            for run, experiment in experiments.items()
        }

        def observe(event: progress.Event) -> None:
            place = event.where if isinstance(event, progress.Done) else event
            observe_run = self.on_event
            if not isinstance(place, progress.Note):
                observe_run = observers.get(place.run, self.on_event)
            observe_run(event)

        return dataclasses.replace(self, on_event=observe)


@dataclass(frozen=True)
class Recipe:
    """Everything it takes to train networks of a run; no live object, so that another process can receive it."""

    path: Path
    experiment: config.Experiment  # for a transfer, the one with the other data
    num_threads: int
    data_sha256: str
    ingredients: Ingredients = field(default_factory=Ingredients)
    branch: branches.BranchFunction | None = None  # if it is not one of `branches.BRANCHES`
    details: Mapping[str, Any] | None = None  # entries to add to the records of branches
    every: CheckpointInterval | None = None
    states: tuple[int, ...] = ()  # steps of the dense network at which other runs of a sweep need its state
    away: bool = False  # versions and the processor may differ where it is trained


@dataclass
class Worker:
    """A process that trains networks; it holds the models and data of the runs that it trained last."""

    recipes: Mapping[Path, Recipe]  # by the folder of a run, as `prepared`
    on_event: progress.OnEvent
    should_stop: interrupts.ShouldStop
    prepared: dict[Path, Prepared] = field(default_factory=dict)
    _open: dict[Path, Training] = field(default_factory=dict)

    def train(self, job: Job) -> None:
        """Train one network of a run, unless it is stored; see `network_training.train_network` for errors."""
        recipe, network = self.recipes[job.run], job.network
        store.check_there(recipe.path)
        if store.is_stored(recipe.path, *network):
            return
        training = self._training(recipe, network.replicate)
        if network.branch == store.TICKET:
            rounds.train_chain(training, network.replicate, network.round)
        else:
            branch = recipe.branch or branches.BRANCHES[network.branch].function
            branch_training.train_branch(training, network, branch, recipe.details)

    def close(self) -> None:
        """Stop enforcing masks."""
        while self._open:
            self._open.popitem()[1].prepared.trainer.close()

    def _training(self, recipe: Recipe, replicate: int) -> Training:
        """Return a run that is open for training; it becomes the last that the worker would close."""
        training = self._open.pop(recipe.path, None) or self._opened(recipe, replicate)
        self._open[recipe.path] = training
        return training

    def _opened(self, recipe: Recipe, replicate: int) -> Training:
        """Open a run for training; of several, the one that was used longest ago is closed."""
        while len(self._open) >= MOST_OPEN:
            self._open.pop(next(iter(self._open))).prepared.trainer.close()
        environment.use_threads(recipe.num_threads)
        prepared = self.prepared.pop(recipe.path, None) or _prepared(recipe, replicate)
        environment.check_devices(recipe.path, prepared.trainer.model)
        if recipe.away:
            for difference in environment.differences(store.read_environment(recipe.path)):
                self.on_event(progress.Note(f"{platform.node()} computes with {difference}, so bits may differ."))
        on_event = network_training.while_there(recipe.path, self.on_event)
        every = recipe.every or CheckpointInterval()
        return Training(recipe.path, prepared, on_event, every, self.should_stop, recipe.states)


def carry_out(
    recipes: Mapping[Path, Recipe],
    jobs: Sequence[Job],
    session: Session,
    prepared: Mapping[Path, Prepared] | None = None,
    copies: Mapping[Job, Job] | None = None,
) -> None:
    """Train networks, by priority; copy those in `copies` from their originals. See `scheduler.launch` for errors."""
    if not jobs:
        return
    copies = copies or {}
    to_train = [job for job in jobs if job not in copies]
    on_event = progress.tallied(session.on_event, _steps(recipes, to_train))
    session = dataclasses.replace(session, on_event=on_event)

    def copy(job: Job) -> None:
        original = copies[job]
        shared_prefix.copy_network(job, original, recipes[job.run].experiment)
        session.note(f"{job} of {job.run} is copied from {original.run}.")

    with contextlib.ExitStack() as stack:
        executor = _executor(stack, recipes, to_train or list(jobs), session, dict(prepared or {}))
        if executor.max_workers != 1:  # one after the other they are trained in the order in which they are listed
            jobs = scheduler.by_priority(jobs)
        scheduler.launch(jobs, executor, on_event, session.should_stop, copies, copy)


def _executor(
    stack: contextlib.ExitStack,
    recipes: Mapping[Path, Recipe],
    jobs: Sequence[Job],
    session: Session,
    prepared: dict[Path, Prepared],
) -> Executor:
    """Choose where networks are trained: on a cluster, in several processes, or in this one."""
    workers = session.execution.workers
    if isinstance(workers, ray.Ray):
        threads = {run: recipe.num_threads for run, recipe in recipes.items()}
        begin = functools.partial(trainer, {run: _away(recipe) for run, recipe in recipes.items()})
        return stack.enter_context(ray.joined(workers, begin, threads, session.on_event))
    num = _num_workers(workers, recipes, jobs, session, prepared)
    if num > 1:
        return stack.enter_context(processes.ProcessExecutor(functools.partial(trainer, recipes), num))
    worker = Worker(recipes, session.on_event, session.should_stop, prepared)
    stack.callback(worker.close)
    return LocalExecutor(worker.train)


def _steps(recipes: Mapping[Path, Recipe], jobs: Sequence[Job]) -> dict[progress.Key, tuple[int, int]]:
    """Estimate the first and the last step of networks."""
    steps = {}
    for run, network in jobs:
        key = (run, network.replicate, network.round, network.branch)
        steps[key] = network_training.steps_of(recipes[run].experiment, network)
    return steps


def trainer(
    recipes: Mapping[Path, Recipe], on_event: progress.OnEvent, should_stop: interrupts.ShouldStop
) -> Callable[[Job], None]:
    """Make a function that trains one network in this process; see `lottery.executors.executor.Initializer`."""
    return Worker(recipes, on_event, should_stop).train


def _prepared(recipe: Recipe, replicate: int) -> Prepared:
    """Prepare a run again, and check that everything is what it was when the run began."""
    prepared = prepare(recipe.experiment, recipe.ingredients, replicate)
    try:
        if prepared.data.fingerprint != recipe.data_sha256:
            raise LotteryError("The data differ.")
        opening.agreed(recipe.path, recipe.experiment, prepared.experiment, prepared.observe)
    except LotteryError:
        where = f" on {platform.node()}" if recipe.away else ""
        raise LotteryError(
            f"The data, the model or the criterion{where} differ from those of {str(recipe.path)!r}; restore "
            "them, or start a new run."
        ) from None
    return dataclasses.replace(prepared, experiment=recipe.experiment)


def _num_workers(
    workers: int | None,
    recipes: Mapping[Path, Recipe],
    jobs: Sequence[Job],
    session: Session,
    prepared: Mapping[Path, Prepared],
) -> int:
    """Decide in how many processes to train on this machine, and report it if there are several."""
    threads, cores = max(recipe.num_threads for recipe in recipes.values()), loky.cpu_count()
    chosen = ""
    if workers is None:
        workers = 1 if _trains_best_alone(recipes, jobs, prepared) else cores // threads
        chosen = "; --workers says otherwise"
    workers = max(1, min(workers, len(jobs)))
    if workers > 1:
        each = f"{workers} networks are trained at the same time, on {threads} thread{'s' if threads > 1 else ''} each"
        session.note(f"{each}, of {cores} cores{chosen}.")
    return workers


def _trains_best_alone(recipes: Mapping[Path, Recipe], jobs: Sequence[Job], prepared: Mapping[Path, Prepared]) -> bool:
    """Return True if one process has all devices, or would be done before others had started."""
    import tensorflow as tf

    # Processes would have to share a GPU; under a strategy, each network has all devices.
    if any(recipe.experiment.train.on_several_devices for recipe in recipes.values()):
        return True
    if tf.config.list_physical_devices("GPU"):
        return True
    if not prepared:
        return False
    model = next(iter(prepared.values())).trainer.model
    sizes = {name: math.prod(value.shape) for name, value in weights.prunable(model).items()}
    macs = multiply_adds.of_kept(sizes, multiply_adds.per_entry(model))
    if macs is None:
        return False
    batch_size = next(iter(recipes.values())).experiment.train.batch_size
    seconds_of_step = SECONDS_OF_STEP + macs * batch_size * SECONDS_OF_MAC
    num_steps = sum(last - first for first, last in _steps(recipes, jobs).values())
    return seconds_of_step * num_steps < WORTH


def _away(recipe: Recipe) -> Recipe:
    """Make a recipe for another machine, where relative paths begin elsewhere."""
    experiment = recipe.experiment
    if experiment.data.path:
        path = str(Path(experiment.data.path).absolute())
        experiment = config.with_values(experiment, "data", {"path": path})
    return dataclasses.replace(recipe, away=True, path=recipe.path.absolute(), experiment=experiment)
