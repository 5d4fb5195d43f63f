"""Evaluate the stored networks of a run again, and draw initial weights again, to compare with what is recorded."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lottery import randomness, weights
from lottery.errors import LotteryError
from lottery.pipeline import agreement, branch_training, building, environment, preparing, ties
from lottery.pipeline.prepared import Ingredients, Prepared, with_other_data, without_functions
from lottery.pruning import branches
from lottery.runs import siblings, store
from lottery.runs.stored import StoredRound, stored_rounds
from lottery.runs.verification import Recomputation
from lottery.training.records import ACCURACY_ROUNDING, Classes, loss_and_accuracy

LOSS = 1e-5  # relative; Keras computes a loss in float32
# The relative difference of a loss that rounding may make on another machine; and the share of examples that it may
# decide, where the outputs of the examples cannot be looked at.
ELSEWHERE, ELSEWHERE_IN_HALF = 0.001, 0.01
# Rounding favours neither the record nor what is computed again: the p value at which differences count as forged.
TOO_ONE_SIDED = 0.001

FindTied = Callable[[], np.ndarray | None]  # see `ties.tied`
# Called before each network with the number of networks that are done, of all, and its name.
OnNetwork = Callable[[int, int, str], None]


@contextlib.contextmanager
def opened(
    run: Path, ingredients: Ingredients = Ingredients(), on_network: OnNetwork = lambda *_: None
) -> Iterator[Recomputation]:
    """Prepare the model and the data of a run, for `runs.verification.verify` to compute its numbers again.

    Losses and accuracies on validation and test set, at the early-stop step and after the last step, are computed from
    the stored weights, and so are the stored predictions. Initial weights are drawn from the seed. On the machine, with
    the versions and the number of threads of the run, the same examples must be right. Elsewhere rounding may decide an
    example whose two highest outputs are nearly equal, and no other; see `ties`. Over the run such differences must
    favour the record about as often as not. Nothing is written into the run's folder.

    Raises:
        LotteryError: Nothing is stored; the data are not on this machine or differ from those of the run; or the model
            is another.
    """
    experiment, recorded = store.read_experiment(run), store.read_environment(run)
    if not recorded:
        raise LotteryError(f"No round of {str(run)!r} is complete yet.")
    with contextlib.suppress(LotteryError):  # TensorFlow has started with another number of threads
        environment.begin_as(recorded)
    with contextlib.ExitStack() as stack:
        stack.enter_context(randomness.put_back())
        prepared = preparing.prepare(without_functions(experiment), ingredients)
        stack.callback(prepared.trainer.close)
        environment.check_data(run, prepared.data.fingerprint)
        if prepared.plan.units != list(recorded.get("units", ())):
            raise LotteryError(f"The units in environment.json of {str(run)!r} are not the units of its model.")
        wanted = prepared.experiment.model_copy(update={"model": experiment.model})
        notes = agreement.agreed(run, wanted, prepared)
        again = _Recomputing(run, ingredients, on_network, prepared, environment.elsewhere(recorded), notes, stack)
        rule = "every prediction had to be the same"
        if again.elsewhere:
            rule = (
                "a prediction was allowed to differ where the two highest outputs agree to "
                f"{100 * again.rounding:g} %, because this machine has {' and '.join(again.elsewhere)}"
            )
        notes.append(f"Losses, accuracies and stored predictions were computed again from the stored weights; {rule}.")
        yield Recomputation(again.evaluated, again.fresh, notes, again.one_sided)


@dataclass
class _Recomputing:
    run: Path
    ingredients: Ingredients
    on_network: OnNetwork
    prepared: Prepared
    elsewhere: list[str]  # what this machine has that the run's had not
    notes: list[str]
    stack: contextlib.ExitStack  # closes what is prepared for transfers
    share: float = field(init=False)  # of examples, and the relative difference of a loss, that rounding may decide
    rounding: float = field(init=False)  # how far apart two outputs may be that rounding orders; see `ties`
    _done: int = 0
    _same_initial: dict[int, bool] = field(default_factory=dict)
    # On another machine, by kind of network: how often the stored prediction alone is right, and the new one alone.
    _decided: dict[str, list[int]] = field(default_factory=dict)
    _num_predictions: int = 0
    _others: dict[str, Prepared | None] = field(default_factory=dict)  # by the overrides of a transfer

    def __post_init__(self) -> None:
        networks = siblings.folder(self.run).glob("replicate-*/round-*/branch-*/round.json")
        self._total = len([*stored_rounds(self.run), *networks])
        in_full = self.prepared.experiment.train.in_full_precision
        self.rounding = ties.ROUNDING if in_full else ties.ROUNDING_IN_HALF
        self.share = ELSEWHERE if in_full else ELSEWHERE_IN_HALF

    def evaluated(self, stored: StoredRound) -> Iterator[str]:
        """Evaluate a network again, and yield a sentence for everything that differs from its record."""
        self.on_network(self._done, self._total, stored.name)
        self._done += 1
        # On the machine of the run nothing rounds otherwise, but for a network that was trained on another.
        elsewhere = self.elsewhere or stored.elsewhere
        if stored.elsewhere and not self.elsewhere:
            self._note(
                f"Networks that were trained with {' and '.join(stored.elsewhere)}, and not as the run began, were "
                "compared as on another machine."
            )
        if not stored.round and stored.branch == store.TICKET and not self._draws_the_same(stored.replicate):
            if not elsewhere:
                yield "The initial weights differ from those that the seed gives."
            else:
                self._note("This machine draws other initial weights than the run's, so none were compared.")
        prepared, record = self._of(stored), stored.record
        if prepared is None:
            return
        states = dict(stored.states())
        if "early_stop" not in states:  # as in runs of earlier versions
            if record["early_stop_step"] == max(step for step, *_ in stored.metrics):
                states["early_stop"] = stored.weights
            else:
                self._note(
                    "Some networks have no early_stop.safetensors, because an earlier version stored them; what was "
                    "measured of them at the early-stop step was not computed again."
                )
        for when, state in states.items():
            name = when.replace("_", "-")
            engine = prepared.trainer.at(state, stored.masks, stored.engine)
            find_tied = partial(ties.tied, prepared.trainer.model, prepared.data, rounding=self.rounding)
            tied = {split: partial(find_tied, split) if elsewhere else None for split in ("validation", "test")}
            for split in tied:
                found = loss_and_accuracy(engine.evaluate(split), f"{split} loss")
                num = prepared.data.num_examples(split)
                recorded = stored.measured(when, split)
                yield from self._compared(f"{name} {split}", found, recorded, num, tied[split])
            if stored.has(store.PREDICTIONS):
                yield from self._predicted(engine.classes(), stored, when, tied["test"])

    def _compared(
        self, what: str, found: tuple[float, float], recorded: np.ndarray, num: int, tied: FindTied | None
    ) -> Iterator[str]:
        # `tied` is None where nothing rounds otherwise.
        loss, accuracy = found
        if not np.isclose(loss, recorded[0], rtol=self.share if tied else LOSS, atol=LOSS):
            yield f"The {what} loss is {loss:.6f} when computed again, but {recorded[0]:.6f} in the record."
        is_close = partial(np.isclose, accuracy, recorded[1], rtol=0, equal_nan=True)
        if is_close(atol=ACCURACY_ROUNDING):
            return
        allowed = ACCURACY_ROUNDING
        if tied:
            examples = tied()
            share = max(1 / num, self.share) if num else self.share
            allowed += share if examples is None else float(np.mean(examples))
        if not is_close(atol=allowed):
            yield f"The {what} accuracy is {accuracy:.6f} when computed again, but {recorded[1]:.6f} in the record."

    def _predicted(
        self, classes: Classes | None, stored: StoredRound, when: str, tied: FindTied | None
    ) -> Iterator[str]:
        """Compare stored predictions with those computed again."""
        if classes is None:
            yield "It has predictions, but its model does not predict one class for each example."
            return
        labels, predicted = stored.predictions["label"], stored.predictions[when]
        if not np.array_equal(labels, classes[0]):
            yield "The labels beside its predictions are not the labels of the test set."
            return
        self._num_predictions += len(labels)
        differ = predicted != classes[1]
        if not differ.any():
            return
        examples = tied() if tied else None
        certain = differ if examples is None else differ & ~examples
        if num := int(np.count_nonzero(certain)):
            why = ", where rounding cannot decide" if tied else ""
            yield f"{num:,} of {len(labels):,} {when.replace('_', '-')} predictions differ when computed again{why}."
        if tied:
            kind = stored.branch if stored.round or stored.branch != store.TICKET else "dense"
            decided = self._decided.setdefault(kind, [0, 0])
            decided[0] += int(np.count_nonzero(differ & (predicted == labels)))
            decided[1] += int(np.count_nonzero(differ & (classes[1] == labels)))

    def one_sided(self) -> list[str]:
        """Say where differences favour the record more, or less, than rounding would; note how many there are."""
        from scipy.stats import binomtest

        wrong = []
        for kind, (for_record, against) in self._decided.items():
            num = for_record + against
            self._note(
                f"Of {self._num_predictions:,} predictions that were computed again, {num} of {kind} networks changed "
                f"between right and wrong: {for_record} are right only in the record, {against} only when computed "
                "again."
            )
            if num and binomtest(for_record, num).pvalue < TOO_ONE_SIDED:
                wrong.append(
                    f"Of {num} predictions of {kind} networks that changed between right and wrong, {for_record} are "
                    "right only in the record. Rounding would change about as many in each direction."
                )
        return wrong

    def fresh(self, stored: StoredRound) -> dict[str, np.ndarray] | None:
        """Draw the variables of a branch anew, if this machine draws the initial weights of the run."""
        if not self._draws_the_same(stored.replicate):
            return None
        return branch_training.drawn_anew(self.prepared, stored.replicate, stored.round)

    def _draws_the_same(self, replicate: int) -> bool:
        if replicate not in self._same_initial:
            drawn = building.initial_state(self.prepared, replicate)
            initial = store.read_start(self.run, replicate)
            self._same_initial[replicate] = weights.fingerprint(drawn) == weights.fingerprint(initial)
        return self._same_initial[replicate]

    def _of(self, stored: StoredRound) -> Prepared | None:
        """Return what a network is evaluated with: a transfer has data of its own, which may not be found."""
        # By its folder, because a record may say anything.
        branch = branches.find(stored.branch)
        if not (branch and branch.other_data):
            return self.prepared
        overrides, wanted = stored.record["overrides"] or {}, stored.record["data_sha256"]
        key = json.dumps([overrides, wanted], sort_keys=True)
        if key not in self._others:
            try:
                self._others[key] = self._with_other_data(overrides, wanted)
            except LotteryError as error:
                self._note(f"{stored.branch} was not computed again: {str(error).rstrip('.')}.")
                self._others[key] = None
        return self._others[key]

    def _with_other_data(self, overrides: dict[str, Any], wanted: str) -> Prepared:
        """Prepare what a transfer is evaluated with; raise `LotteryError` if it has not the data of this digest."""
        # Data that the caller passed are those of the run, not those of the transfer.
        without_data = dataclasses.replace(self.ingredients, data=None)
        other = preparing.prepare(with_other_data(self.prepared.experiment, overrides), without_data)
        self.stack.callback(other.trainer.close)
        if other.data.fingerprint != wanted:
            raise LotteryError("the data that are found are not the branch's data")
        return other

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
