"""A process that trains networks of runs: made from plain data and the caller's functions, it may run elsewhere."""

import dataclasses
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lottery import config, interrupts, progress
from lottery.errors import LotteryError
from lottery.executors.scheduler import Job
from lottery.pipeline import agreement, branch_training, environment, network_training, onednn, preparing, rounds
from lottery.pipeline.network_training import Training
from lottery.pipeline.prepared import Ingredients, Prepared
from lottery.pruning import branches
from lottery.runs import store
from lottery.runs.store import NetworkId
from lottery.training.checkpoints import CheckpointInterval

MOST_OPEN = 3  # runs, each with its model and its data in memory

TrainNetwork = Callable[[NetworkId], None]


@dataclass(frozen=True)
class Recipe:
    """Everything it takes to train networks of a run; no live object, so that another process can receive it."""

    path: Path
    experiment: config.Experiment  # for a transfer, the one with the other data
    ingredients: Ingredients = field(default_factory=Ingredients)
    data_sha256: str = ""  # of other data than those that the run began with
    branch: branches.BranchFunction | None = None  # if it is not one of `branches.BRANCHES`
    # Makes the function that trains networks which are neither rounds nor branches, with the run that is open.
    begin: Callable[[Training], TrainNetwork] | None = None
    details: Mapping[str, Any] | None = None  # entries to add to the records of branches
    states: tuple[int, ...] = ()  # steps of the dense network at which other runs of a sweep need its state
    away: bool = False  # versions and the processor may differ where it is trained


# A run that is open for training, and the function that trains networks which are neither rounds nor branches.
Open = tuple[Training, TrainNetwork | None]


@dataclass
class Worker:
    """Trains networks in this process, and holds the models and data of the runs that it trained last."""

    recipes: Mapping[Path, Recipe]  # by the folder of a run, as `prepared`
    on_event: progress.OnEvent
    should_stop: interrupts.ShouldStop
    every: CheckpointInterval = field(default_factory=CheckpointInterval)
    prepared: dict[Path, Prepared] = field(default_factory=dict)
    _open: dict[Path, Open] = field(default_factory=dict)

    def __call__(self, job: Job) -> None:
        """Train one network of a run, unless it is stored; see `network_training.train_network` for errors."""
        recipe, network = self.recipes[job.run], job.network
        store.check_there(recipe.path)
        # A process that died after it stored a network could not say so any more.
        if store.is_stored(recipe.path, *network):
            return
        training, train = self.opened(recipe, network.replicate)
        if train is not None:
            train(network)
        elif network.branch == store.TICKET:
            rounds.train_chain(training, network.replicate, network.round)
        else:
            branch = recipe.branch or branches.BRANCHES[network.branch].function
            branch_training.train_branch(training, network, branch, recipe.details)

    def close(self) -> None:
        """Stop enforcing masks."""
        while self._open:
            self._close_first()

    def opened(self, recipe: Recipe, replicate: int) -> Open:
        """Return a run that is open for training; of several, the one that was used longest ago is closed."""
        opened = self._open.pop(recipe.path, None)
        if opened is None:
            while len(self._open) >= MOST_OPEN:
                self._close_first()
            opened = self._begun(recipe, replicate)
        self._open[recipe.path] = opened  # the last that would be closed
        return opened

    def _begun(self, recipe: Recipe, replicate: int) -> Open:
        """Open a run for training, its `replicate` first."""
        # With what the run began, whatever this process would choose.
        recorded = store.read_environment(recipe.path)
        environment.begin_as(recorded)
        for sentence in onednn.notes(recorded):
            self.on_event(progress.Note(sentence))
        # What this process has prepared already serves once; whatever is closed is prepared anew.
        prepared = self.prepared.pop(recipe.path, None) or _prepared(recipe, replicate)
        environment.check_num_devices(recipe.path, prepared.trainer.model)
        if recipe.away:
            for difference in environment.differences(recorded):
                self.on_event(progress.Note(f"{platform.node()} computes with {difference}, so bits may differ."))
        on_event = network_training.while_there(recipe.path, self.on_event)
        elsewhere = environment.elsewhere(recorded)
        training = Training(
            recipe.path, prepared, on_event, self.every, self.should_stop, recipe.states, elsewhere=elsewhere
        )
        return training, recipe.begin and recipe.begin(training)

    def _close_first(self) -> None:
        training, _ = self._open.pop(next(iter(self._open)))
        training.prepared.trainer.close()


def _prepared(recipe: Recipe, replicate: int) -> Prepared:
    """Prepare a run again, and check that everything is what it was when the run began."""
    prepared = preparing.prepare(recipe.experiment, recipe.ingredients, replicate)
    try:
        environment.check_data(recipe.path, prepared.data.fingerprint, recipe.data_sha256)
        agreement.agreed(recipe.path, recipe.experiment, prepared)
    except LotteryError as error:
        if not recipe.away:
            raise
        raise LotteryError(f"On {platform.node()}: {error}") from None
    # With other versions its digests may differ, though the numbers agree.
    return dataclasses.replace(prepared, experiment=recipe.experiment)
