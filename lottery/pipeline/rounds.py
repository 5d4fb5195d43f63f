"""The algorithm: train, prune, rewind, and train again."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lottery import files, randomness, weights
from lottery.errors import LotteryError
from lottery.masks import Masks, Weights
from lottery.pipeline import building, network_training
from lottery.pipeline.network_training import Training, Watch
from lottery.pruning import mask_actions, plan, rewinding
from lottery.pruning.plan import Source
from lottery.runs import store
from lottery.runs.store import NetworkId
from lottery.runs.stored import StoredRound
from lottery.training.records import Span, Trained


def train_chain(training: Training, replicate: int, last: int) -> None:
    """Train the rounds of a replicate that are not stored yet, up to round `last`.

    Iterative magnitude pruning with rewinding: strategy 1 of Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635,
    appendix B. Round 0 trains the dense network. Each later round prunes what the round before has trained, resets the
    survivors to their values at the rewind step, and trains them.
    """
    chain = Chain(training, replicate)
    plan = training.prepared.plan
    for number in chain.missing(last):
        if number == 0:
            dense = chain.train(0, chain.initial, plan.dense)
            chain.store(0, dense, dict.fromkeys(plan.dense))
            continue
        source = chain.source(number)
        scores = chain.scores(number, source)
        masks = plan.masks(number, scores, source.masks)
        trained = chain.train(number, chain.rewound(number, source, masks), masks)
        chain.store(number, trained, plan.thresholds(scores, source.masks, masks))


class Chain:
    """The rounds of a replicate, each made from rounds that are stored."""

    def __init__(self, training: Training, replicate: int) -> None:
        self.training, self.replicate = training, replicate
        self.experiment = training.experiment
        self.initial = network_training.initial_state(training, replicate)  # every variable at step 0
        # Steps of the dense network that this run, or others of a sweep, rewind to, and its states there.
        self._steps = sorted({self.experiment.rewind.step, *training.states} - {0})
        self._seen: dict[str, np.ndarray] = {}  # by step and name
        # The rounds of a run are compared with each other, so all are pruned by the same definition.
        run, prune = training.path, self.experiment.prune
        for number in store.replicates(run, self.experiment):
            if not store.is_stored(run, number, 1):
                continue
            record = store.read_record(store.round_path(run, number, 1))
            if not plan.is_current(prune, record):
                raise LotteryError(
                    f"The rounds of {str(run)!r} were pruned by an earlier definition of {prune.criterion}, so more "
                    "would not belong to them; start a run of another name."
                )

    def missing(self, last: int) -> range:
        """Return the rounds that are not stored yet, up to a last one."""
        # Up to the first gap: whatever comes after one was made from a round that is lost.
        return range(len(store.complete_rounds(self.training.path, self.replicate)), last + 1)

    def source(self, number: int) -> Source:
        """Return what a round scores and prunes: the round before, or the dense network."""
        # Read from disk, never handed on in memory, so that a run that resumes goes the same way.
        before = StoredRound(self.training.path, self.replicate, number - 1)
        dense = before if number == 1 else StoredRound(self.training.path, self.replicate, 0)
        return plan.source(self.experiment.prune, before, dense)

    def scores(self, number: int, source: Source) -> dict[str, np.ndarray]:
        """Score the weights that a round is about to prune."""
        prepared = self.training.prepared
        network = None
        if not plan.is_repeatable(self.experiment.prune):
            network = building.scoring_network(prepared, self.replicate)
            # Such criteria look at the network as it is before training, whatever the round before has trained.
            weights.assign(network.model, self._rewind_state())
        rng = randomness.generator(self.experiment.run.seed, self.replicate, randomness.SCORES, number)
        return prepared.criterion(
            prepared.plan.criterion_inputs(number, self.initial, source.scored, source.masks, rng, network)
        )

    def rewound(self, number: int, source: Source, masks: Masks) -> dict[str, np.ndarray]:
        """Return the variables that a round starts from under its masks, every masked entry at its held value."""
        experiment, start = self.experiment, self._rewind_state()
        at_initial = mask_actions.at_initial(
            experiment.prune.held_at, start, source.scored, source.masks, source.before
        )
        held_at = mask_actions.values(at_initial, start)
        rng = rewinding.rng_for(experiment.run.seed, self.replicate, number)
        return rewinding.rewound(experiment.rewind.mode, start, source.scored, masks, rng, held_at)

    def train(self, number: int, start: Weights, masks: Masks) -> Trained:
        """Train the network of a round; of the dense one, states on the way are kept for `store`."""

        def keeping(step: int) -> Callable[[dict[str, np.ndarray]], None]:
            return lambda state: self._seen.update({f"{step}/{name}": value for name, value in state.items()})

        # What is kept is a part of every checkpoint: a training that resumes does not see earlier steps again.
        watch = Watch({step: keeping(step) for step in self._steps}, self._seen)
        network = NetworkId(self.replicate, number)
        if not number:
            return network_training.train_network(self.training, network, start, masks, watch=watch)
        rewind, num_steps = self.experiment.rewind, self.experiment.train.num_steps
        schedule_step = rewinding.schedule_step(rewind.mode, rewind.step, num_steps, number)
        budget = None
        if rewinding.REWINDS[rewind.mode].trains_again:
            budget = store.read_record(store.round_path(self.training.path, self.replicate, 0))["early_stop_step"]
        span = Span(rewind.step, schedule_step=schedule_step, budget=budget)
        return network_training.train_network(self.training, network, start, masks, span)

    def store(self, number: int, trained: Trained, thresholds: Mapping[str, float | None]) -> None:
        """Store the network of a round; before the dense one, its states at the steps that runs rewind to."""
        network = NetworkId(self.replicate, number)
        reached = network_training.dense_loss_step(self.training, network, trained)
        details: dict[str, Any] = {"thresholds": thresholds, "dense_loss_step": reached}
        definition = plan.definition(self.experiment.prune)
        if number and definition > 1:
            # Without a first one, so that records of criteria that never changed stay as they were.
            details |= {"definition": definition}
        # Before the record, which makes the round complete: a run that is killed in between trains it again.
        for step in () if number else self._steps:
            state = {name: self._seen[f"{step}/{name}"] for name in self.initial}
            if step == self.experiment.rewind.step:
                details |= {"rewind_sha256": weights.fingerprint(state)}
                path = store.start_path(self.training.path, self.replicate, step)
                files.write(path, files.pack_arrays(state))
            else:  # its checksum is in no record
                store.write_state(store.state_path(self.training.path, self.replicate, step), state)
        network_training.store_network(self.training, network, trained, details)

    def _rewind_state(self) -> dict[str, np.ndarray]:
        return store.read_start(self.training.path, self.replicate, self.experiment.rewind.step)
