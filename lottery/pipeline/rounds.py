"""The algorithm: train, prune, rewind, and train again."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from lottery import files, randomness, weights
from lottery.errors import LotteryError
from lottery.masks import Masks
from lottery.pipeline import building, network_training
from lottery.pipeline.network_training import Training, Watch
from lottery.pruning import criteria, mask_actions, plan, rewinding
from lottery.pruning.plan import Source
from lottery.runs import store
from lottery.runs.store import NetworkId
from lottery.runs.stored import StoredRound
from lottery.training.records import Arrays, Span, Trained


def train_chain(training: Training, replicate: int, last: int) -> None:
    """Train the rounds of a replicate that are not stored yet, up to round `last`.

    Iterative magnitude pruning with rewinding: strategy 1 of Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635,
    appendix B. Round 0 trains the dense network. Each later round prunes what the round before has trained, resets the
    survivors to their values at the rewind step, and trains them.
    """
    chain, plan = Chain(training, replicate), training.prepared.plan
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
    """The rounds of a replicate, each made from rounds that are stored.

    Attributes:
        initial: Every variable at step 0.
    """

    def __init__(self, training: Training, replicate: int) -> None:
        self.training, self.replicate = training, replicate
        self.experiment = training.experiment
        self.initial = network_training.initial_state(training, replicate)
        self._check_definition()
        self._seen: dict[str, np.ndarray] = {}  # states of the dense network on its way, by step and name

    def missing(self, last: int) -> range:
        """List the rounds that are not stored yet."""
        return range(len(store.complete_rounds(self.training.path, self.replicate)), last + 1)

    def source(self, number: int) -> Source:
        """Return what a round scores and prunes: the round before, or the dense network."""
        before = StoredRound(self.training.path, self.replicate, number - 1)
        dense = before if number == 1 else StoredRound(self.training.path, self.replicate, 0)
        return plan.source(self.experiment.prune, before, dense)

    def scores(self, number: int, source: Source) -> dict[str, np.ndarray]:
        """Score the weights that a round is about to prune."""
        network = None
        if not plan.is_repeatable(self.experiment.prune):
            network = building.scoring_network(self.training.prepared, self.replicate)
            weights.assign(network.model, self._state_at_rewind_step())
        rng = randomness.generator(self.experiment.run.seed, self.replicate, randomness.SCORES, number)
        inputs = self.training.prepared.plan.criterion_inputs(
            number, self.initial, source.scored, source.masks, rng, network
        )
        return self.training.prepared.criterion(inputs)

    def rewound(self, number: int, source: Source, masks: Masks) -> dict[str, np.ndarray]:
        """Return the variables that a round starts from under its masks, every masked entry at its held value."""
        mode, held_at = self.experiment.rewind.mode, self.experiment.prune.held_at
        start = self._state_at_rewind_step()
        at_initial = mask_actions.at_initial(held_at, start, source.scored, source.masks, source.before)
        rng = rewinding.rng_for(self.experiment.run.seed, self.replicate, number)
        held = mask_actions.values(at_initial, start)
        return rewinding.rewound(mode, start, source.before, masks, rng, held)

    def train(self, number: int, start: Arrays, masks: Masks) -> Trained:
        """Train the network of a round; of the dense one, states on the way are kept for `store`."""
        span, watch = Span(), None
        if number:
            schedule_step = network_training.schedule_step(self.experiment, number)
            span = Span(self.experiment.rewind.step, None, schedule_step)
        else:
            watch = Watch({step: functools.partial(self._keep, step) for step in self._steps()}, self._seen)
        network = NetworkId(self.replicate, number)
        return network_training.train_network(self.training, network, start, masks, span, watch)

    def store(self, number: int, trained: Trained, thresholds: Mapping[str, float | None]) -> None:
        """Store the network of a round; before the dense one, its states at the steps that runs rewind to."""
        details: dict[str, Any] = {"thresholds": thresholds}
        definition = criteria.facts(self.experiment.prune.criterion).definition
        if not number:
            details |= self._store_states()
        elif definition > 1:
            details |= {"definition": definition}
        network_training.store_network(self.training, NetworkId(self.replicate, number), trained, details)

    def _state_at_rewind_step(self) -> dict[str, np.ndarray]:
        """Read every variable at the rewind step."""
        step = self.experiment.rewind.step
        return files.read_arrays(store.start_path(self.training.path, self.replicate, step))

    def _steps(self) -> list[int]:
        """List the steps of the dense network that this run, or others of a sweep, rewind to."""
        return sorted({self.experiment.rewind.step, *self.training.states} - {0})

    def _keep(self, step: int, state: dict[str, np.ndarray]) -> None:
        self._seen.update({f"{step}/{name}": value for name, value in state.items()})

    def _store_states(self) -> dict[str, str]:
        """Store the states that were kept, and return what the record says of the one to rewind to."""
        details = {}
        for step in self._steps():
            state = {name: self._seen[f"{step}/{name}"] for name in self.initial}
            sha256 = weights.fingerprint(state)
            if step == self.experiment.rewind.step:
                details = {"rewind_sha256": sha256}
                path = store.start_path(self.training.path, self.replicate, step)
                files.write(path, files.pack_arrays(state))
            else:  # its checksum is in no record
                path = store.state_path(self.training.path, self.replicate, step)
                files.write(path, files.pack_arrays(state, {"sha256": sha256}))
        return details

    def _check_definition(self) -> None:
        """Refuse to add rounds to those that were pruned by an earlier definition of the criterion."""
        run, criterion = self.training.path, self.experiment.prune.criterion
        for replicate in range(1, self.experiment.run.num_replicates + 1):
            if not store.is_stored(run, replicate, 1):
                continue
            record = store.read_record(store.round_path(run, replicate, 1))
            if not criteria.is_current(criterion, record):
                raise LotteryError(
                    f"The rounds of {str(run)!r} were pruned by an earlier definition of {criterion}, so more would "
                    "not belong to them; start a run of another name."
                )
