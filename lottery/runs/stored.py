"""A stored network: the files of a round, or of a branch from it, each read once, on first use."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lottery import config, files
from lottery import masks as lottery_masks
from lottery import weights as lottery_weights
from lottery.errors import LotteryError
from lottery.masks import Masks
from lottery.pruning import mask_actions, plan, rewinding
from lottery.runs import records, store


@dataclass(frozen=True)
class StoredRound:
    """A complete round of a run, or a branch from it.

    Each file is read once, on first use; `LotteryError` says that it is missing, damaged, or was changed.
    """

    run: Path  # its folder
    replicate: int  # from 1
    round: int
    branch: str = store.TICKET

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return store.round_path(self.run, self.replicate, self.round, self.branch)

    @property
    def name(self) -> str:
        """What messages call it."""
        branch = "" if self.branch == store.TICKET else f", branch {self.branch}"
        return f"replicate {self.replicate}, round {self.round}{branch}"

    @property
    def labels(self) -> tuple[int, str, int, float]:
        """Replicate, branch, round and density: the first columns of most tables."""
        return self.replicate, self.branch, self.round, self.record["density"]

    @cached_property
    def experiment(self) -> config.Experiment:
        """The experiment of the run."""
        return store.read_experiment(self.run)

    @cached_property
    def record(self) -> dict[str, Any]:
        """The content of ``round.json``."""
        return store.read_record(store.inside(self.run, self.folder / "round.json").parent)

    @cached_property
    def masks(self) -> Masks:
        """The masks of training, by weight."""
        entries, kept = self.record.get("num_weights"), self.record.get("kept")
        # The record says how large the masks may be, before a file that a stranger wrote is unpacked.
        most = files.most_of_masks(entries, len(kept)) if entries and kept else None
        masks = files.parse_masks(*self._read("masks.safetensors", most))
        if kept is not None and masks.keys() != kept.keys():
            raise LotteryError(f"{str(self.folder)!r} is damaged: its masks are not of the weights in its record.")
        return records.Record(masks, self.folder / "masks.safetensors")

    @cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """Every variable after training, by name."""
        return self._variables("weights.safetensors")

    @cached_property
    def early_stop(self) -> dict[str, np.ndarray]:
        """Every variable at the early-stop step, by name."""
        if not self.has(store.EARLY_STOP):
            why = "an earlier version stored it"
            raise LotteryError(f"{str(self.folder)!r} has no weights at the early-stop step: {why}.")
        return self._variables(store.EARLY_STOP)

    @cached_property
    def budget(self) -> dict[str, np.ndarray]:
        """Every variable at the lowest validation loss within the dense network's budget, by name."""
        return self._variables(store.BUDGET) if self.has(store.BUDGET) else self.early_stop

    @cached_property
    def predictions(self) -> dict[str, np.ndarray]:
        """For each test example its ``label``, and the class predicted at the ``early_stop`` and the ``final`` step.

        Where the early-stop step comes after the dense network's budget, also within the ``budget``.
        """
        if not self.has(store.PREDICTIONS):
            why = "an earlier version stored it"
            if self.has(store.EARLY_STOP):
                why = "its model or its data do not give one class for each example of an array"
            raise LotteryError(f"{str(self.folder)!r} has no predictions: {why}.")
        predictions = files.parse_arrays(*self._read(store.PREDICTIONS))
        # They are compared example by example, so all must be of the same ones.
        shapes = {array.shape for array in predictions.values()}
        expected = {"label", "early_stop", "final"} | ({"budget"} if self.has(store.BUDGET) else set())
        if set(predictions) != expected or len(shapes) > 1:
            raise LotteryError(f"{str(self.folder / store.PREDICTIONS)!r} is damaged: it holds no predictions.")
        return predictions

    @cached_property
    def metrics(self) -> list[tuple[int, str, float, float]]:
        """Step, split, loss and accuracy of every evaluation."""
        return store.read_metrics(self.folder, self._read("metrics.csv", store.MOST_METRICS)[1])

    @cached_property
    def start(self) -> dict[str, np.ndarray]:
        """Every variable that training started from, by name, not masked. The start of a branch is not stored."""
        if self.branch != store.TICKET:
            raise LotteryError(f"{str(self.folder)!r} is a branch; the weights that it started from are not stored.")
        if not self.round:
            return store.read_start(self.run, self.replicate)
        set_back = rewinding.REWINDS[self.experiment.rewind.mode].set_back
        rng = rewinding.rng_for(self.experiment.run.seed, self.replicate, self.round)
        # What was pruned is read from disk only where its weights decide the start.
        trained = self.pruned.weights if set_back is rewinding.to_trained else {}
        return set_back(self._initial, trained, self.masks, rng)

    @cached_property
    def pruned(self) -> "StoredRound":
        """The round whose trained weights it has pruned: that before; without iterations the dense one."""
        return StoredRound(self.run, self.replicate, self.round - 1 if self.experiment.prune.iterative else 0)

    @cached_property
    def before(self) -> "StoredRound":
        """The round before it in the main chain."""
        return StoredRound(self.run, self.replicate, self.round - 1)

    @cached_property
    def at_initial(self) -> Masks:
        """Where entries are held at their initial values, if masked; empty for zero. See `mask_actions.at_initial`."""
        if self.branch != store.TICKET:
            raise LotteryError(f"{str(self.folder)!r} is a branch; what its masked entries are held at is not stored.")
        settings = self.experiment.prune
        if mask_actions.is_zero(settings.held_at) or not self.round:
            return {}
        dense = self.before if self.round == 1 else StoredRound(self.run, self.replicate, 0)
        source = plan.source(settings, self.before, dense)
        return mask_actions.at_initial(settings.held_at, self._initial, source.scored, source.masks, source.before)

    @cached_property
    def held_at(self) -> dict[str, np.ndarray]:
        """The values to hold entries at, if masked, by weight; empty for zero."""
        return mask_actions.values(self.at_initial, self._initial) if self.at_initial else {}

    @cached_property
    def _initial(self) -> dict[str, np.ndarray]:
        return store.read_start(self.run, self.replicate, self.experiment.rewind.step)

    @cached_property
    def masked_start(self) -> dict[str, np.ndarray]:
        """The start under the masks, compared with the fingerprint taken when training began."""
        if not self.began_with(self.start, self.held_at):
            why = f"round {self.round} of replicate {self.replicate} did not start from the start weights stored there."
            raise LotteryError(f"{str(self.run)!r} is damaged: {why}")
        return lottery_masks.apply(self.start, self.masks, self.held_at)

    def began_with(self, start: Mapping[str, np.ndarray], held_at: Mapping[str, np.ndarray] | None = None) -> bool:
        """Return True if training began with these variables under the masks of this round, and these held values."""
        masked = lottery_masks.apply(start, self.masks, held_at)
        return lottery_weights.fingerprint(masked) == self.record["start_sha256"]

    def states(self) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Yield the trained variables that are stored: ``final``, ``early_stop`` or ``budget``, and the variables."""
        yield "final", self.weights
        if self.has(store.EARLY_STOP):
            yield "early_stop", self.early_stop
        if self.has(store.BUDGET):
            yield "budget", self.budget

    def measured(self, when: str, split: str) -> np.ndarray:
        """Return the recorded loss and accuracy of one of the `states` on a split; NaN for what was not measured."""
        short = "val" if split == "validation" else split
        # A record has None for NaN, which JSON does not have; other numbers are written exactly.
        return np.array([self.record[f"{when}_{short}_{what}"] for what in ("loss", "accuracy")], float)

    def wrong_held(self, held_at: Mapping[str, np.ndarray]) -> Iterator[str]:
        """Yield a sentence for each weight with masked entries that are not at these values, or at zero without any."""
        what = "at their held values" if held_at else "zero"
        places = {"final": "", "early_stop": " at the early-stop step", "budget": " within the budget"}
        for when, variables in self.states():
            for name, count in lottery_masks.leaks(variables, self.masks, held_at).items():
                yield f"{name} has {count} masked entries that are not {what}{places[when]}."

    @property
    def engine(self) -> str:
        """The engine that trained it; before there was a second, all records lack it."""
        return self.record.get("engine", "compiled")

    @property
    def elsewhere(self) -> list[str]:
        """What may have rounded otherwise where it was trained than where the run began; empty if nothing."""
        return self.record.get("elsewhere", [])

    def has(self, name: str) -> bool:
        """Return True if the record names a file."""
        return name in self.record["sha256"]

    def _variables(self, name: str) -> dict[str, np.ndarray]:
        first = store.start_path(self.run, self.replicate)
        # Siblings have their own folder, without initial weights.
        start = files.layout(store.inside(self.run, first)).arrays if first.exists() else {}

        def check(found: files.Layout) -> None:
            if start and (why := _difference(found.arrays, start)):
                raise LotteryError(f"{str(self.folder / name)!r} is damaged: {why}.")

        found = files.parse_arrays(*self._read(name, check=check))
        lottery_masks.check(self.masks, found)
        return records.Record(found, self.folder / name)

    def _read(self, name: str, most: int | None = None, **check: Any) -> tuple[Path, bytes]:
        path = store.inside(self.run, self.folder / name)
        return path, store.read_checked(path, self.record["sha256"][name], most, **check)


def _difference(trained: Mapping[str, Any], start: Mapping[str, Any]) -> str:
    """Say in which variable trained weights differ from the initial weights, in type or shape; empty for none."""
    for name in (*start, *trained):
        if name not in trained:
            return f"it has no {name}, which the initial weights have"
        if name not in start:
            return f"it has {name[:80]!r}, which the initial weights do not have"
        if trained[name] != start[name]:
            (own, own_shape), (wanted, shape) = trained[name], start[name]
            at_first = f"type {wanted} and shape {list(shape)}"
            return f"{name} has type {own} and shape {list(own_shape)}, but the initial weights have {at_first}"
    return ""


def stored_rounds(
    run: store.Folder, indices: Iterable[int] | None = None, branches: bool = True
) -> Iterator[StoredRound]:
    """List the complete networks of a run, or of some rounds: by replicate, the main chain, then each branch by round.

    A round that no replicate has is refused.
    """
    run = Path(run)
    experiment = store.read_experiment(run)
    found: list[StoredRound] = []
    for replicate in store.replicates(run, experiment):
        complete = store.complete_rounds(run, replicate)[: experiment.prune.num_rounds + 1]
        found += [StoredRound(run, replicate, index) for index in complete]
        folders = {index: store.round_path(run, replicate, index) for index in complete if branches}
        places = [(label, index) for index, folder in folders.items() for label in store.branch_labels(folder)]
        found += [StoredRound(run, replicate, index, label) for label, index in sorted(places)]
    if indices is not None:
        chosen = set(indices)
        there = {stored.round for stored in found}
        if missing := chosen - there:
            known = f"It has the rounds 0 to {max(there)}" if found else "It has no round yet"
            raise LotteryError(f"Round {min(missing)} is not stored in {str(run)!r}. {known}.")
        found = [stored for stored in found if stored.round in chosen]
    return _one_by_one(found)


def test_labels(run: store.Folder) -> np.ndarray:
    """Read the labels of a run's test examples; none where no predictions of the dense network can be read."""
    try:
        dense = next(stored_rounds(run, branches=False), None)
        return dense.predictions["label"] if dense else np.zeros(0, int)
    except LotteryError:  # an earlier version stored none, and `verify` tells of damage
        return np.zeros(0, int)


def _one_by_one(found: list[StoredRound]) -> Iterator[StoredRound]:
    # Each round knows the one before it, so that its files are read once; all others are let go of.
    before = None
    while found:
        # The list must not keep it, or no array would ever be freed.
        stored = found.pop(0)
        if before == StoredRound(stored.run, stored.replicate, stored.round - 1):
            # As `cached_property` does it, past the frozen dataclass.
            vars(stored)["before"] = before
        yield stored
        vars(stored).pop("before", None)
        before = stored
