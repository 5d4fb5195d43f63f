"""Criteria: functions from weights to scores by weight, of the weights' shapes, of which the highest are kept."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery import masks
from lottery.errors import LotteryError
from lottery.masks import Masks, Weights
from lottery.pruning import gradients, ranking


@dataclass(frozen=True)
class ScoredModel:
    """A compiled Keras 3 or tf_keras model and a batch, for criteria that need the network.

    The model has the weights that training starts from, not masked or wrapped; a criterion leaves it unchanged.
    """

    model: Any
    x: Any  # inputs and labels of the batch, as the network takes them
    y: Any
    build: Callable[[], Any]  # builds the same architecture anew
    sample_weight: Any = None  # how much each example of the batch counts in the loss

    @property
    def batch(self) -> gradients.Batch:
        """The batch, with its weights."""
        return gradients.Batch(self.x, self.y, self.sample_weight)


@dataclass(frozen=True)
class CriterionInputs:
    """Everything a criterion can compute scores from: prunable weights by name, and what the round needs."""

    initial: Weights  # at step 0
    trained: Weights  # at the end of the round before
    # Of the round before; those of the dense network for criteria that need the network, and without iterations.
    kept: Masks
    rng: np.random.Generator  # a function of seed, replicate and round
    density: float  # that the round prunes to, in (0, 1]: of all prunable entries, or of all groups of them
    scope: str  # "layerwise" or "global": which weights will be ranked together
    network: ScoredModel | None = None  # for criteria that need it
    # Exact numbers to keep, of entries or of groups of them, by the weights that are ranked together.
    targets: Mapping[tuple[str, ...], int] | None = None


# A function of what a round knows: scores by weight, of the weights' shapes, of which the highest are kept.
ScoreFunction = Callable[[CriterionInputs], dict[str, np.ndarray]]


def magnitude(inputs: CriterionInputs) -> dict[str, np.ndarray]:
    """Absolute value of the trained weight, |w_f|: the criterion of Frankle & Carbin 2019.

    https://arxiv.org/abs/1803.03635, section 2; ``large_final`` in Zhou et al. 2019,
    https://arxiv.org/abs/1905.01067, section 2, which draws the criteria of initial and final weights.
    """
    return {name: np.abs(value) for name, value in inputs.trained.items()}


def small_final(inputs: CriterionInputs) -> dict[str, np.ndarray]:
    """The opposite of `magnitude`, -|w_f|: Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 2."""
    return {name: -np.abs(value) for name, value in inputs.trained.items()}


def large_init(inputs: CriterionInputs) -> dict[str, np.ndarray]:
    """Absolute value at step 0, |w_i|: Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 2."""
    return {name: np.abs(inputs.initial[name]) for name in inputs.trained}


def small_init(inputs: CriterionInputs) -> dict[str, np.ndarray]:
    """The opposite of `large_init`, -|w_i|: Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 2."""
    return {name: -np.abs(inputs.initial[name]) for name in inputs.trained}


def large_init_large_final(inputs: CriterionInputs) -> dict[str, np.ndarray]:
    """Large at start and end, min(a |w_f|, |w_i|): Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 2.

    As in the authors' code, a is such that |w_i| and |w_f| are cut at the same percentile: an entry is pruned if it is
    among the lowest so many of either. The score is therefore the lower of its two ranks, among the survivors that are
    ranked together.
    """
    return _lower_rank(inputs, 1)


def small_init_small_final(inputs: CriterionInputs) -> dict[str, np.ndarray]:
    """Small at start and end, -max(a |w_f|, |w_i|): Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 2.

    The opposite of `large_init_large_final`: the lower of the ranks of -|w_i| and -|w_f|.
    """
    return _lower_rank(inputs, -1)


def magnitude_increase(inputs: CriterionInputs) -> dict[str, np.ndarray]:
    """Growth in absolute value, |w_f| - |w_i|: Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 2."""
    return {
        # In double precision: in half precision different sizes have the same difference, and others overflow.
        name: np.abs(value, dtype=np.float64) - np.abs(inputs.initial[name], dtype=np.float64)
        for name, value in inputs.trained.items()
    }


def movement(inputs: CriterionInputs) -> dict[str, np.ndarray]:
    """Distance moved in training, |w_f - w_i|: Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 2."""
    return {
        name: np.abs(np.subtract(value, inputs.initial[name], dtype=np.float64))
        for name, value in inputs.trained.items()
    }


def random(inputs: CriterionInputs) -> dict[str, np.ndarray]:
    """Chance, uniform in [0, 1), drawn by name: Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 2."""
    # In the order of the names, so that the draws do not depend on the order in which a model lists its weights.
    drawn = {name: inputs.rng.random(np.shape(inputs.trained[name])) for name in sorted(inputs.trained)}
    return {name: drawn[name] for name in inputs.trained}


def snip(inputs: CriterionInputs) -> dict[str, np.ndarray]:
    """Immediate effect on the loss, |g * w|: SNIP, Lee et al. 2019, https://arxiv.org/abs/1810.02340, eq. 4 to 6.

    g is the gradient of the loss on one batch, w the weights that training starts from. (The paper divides by the sum,
    which changes no ranking.) The loss is that of the compiled model, regularisation included, in training mode. The
    network is dense: no masks are applied, so every round's masks are the one-shot masks of its density, and those of
    all rounds nested. The same model and batch give the same scores.

    Raises:
        LotteryError: There is no network, its loss cannot be evaluated, or a score is not finite.
    """
    network = _network(inputs, "snip")
    found = gradients.times_weights(network.model, network.batch, list(inputs.trained))
    return gradients.finite({name: np.abs(value) for name, value in found.items()}, "SNIP")


def grasp(inputs: CriterionInputs) -> dict[str, np.ndarray]:
    """Loss of gradient flow, w * (H g): GraSP, Wang et al. 2020, https://arxiv.org/abs/2002.07376, equation 8.

    g and H are gradient and Hessian, with respect to the prunable weights only, of the loss of `snip` without
    regularisation. As in the authors' program, the logits are divided by a temperature of 200: what goes into a softmax
    or sigmoid at the model's end, otherwise its outputs. The paper prunes the highest S = -w * (H g), so the scores are
    -S. The network is dense, as for `snip`.

    Raises:
        LotteryError: There is no network, its loss cannot be differentiated twice, or a score is not finite; or its
            outputs are probabilities of which the logits are not known.
    """
    network = _network(inputs, "grasp")
    with gradients.softened(network.model) as soften:
        found = gradients.times_weights(network.model, network.batch, list(inputs.trained), True, soften)
    return gradients.finite(found, "GraSP")


def synflow(inputs: CriterionInputs) -> dict[str, np.ndarray]:
    """Rank in 100 steps of pruning by synaptic flow, |w * dR/dw|: SynFlow, Tanaka et al. 2020.

    https://arxiv.org/abs/2006.05467, equation 3 and algorithm 1; see `gradients.synaptic_flow`. It needs no data. In a
    run, the 100 steps go from the dense network to the density of the round, whatever the round before has kept: its
    masks are the one-shot masks of that density, as those of `snip` and `grasp`, but those of two rounds need not be
    nested.

    Raises:
        LotteryError: There is no network, SynFlow cannot evaluate it, its logits are not known, or the scores are all
            zero or not finite.
    """
    network = _network(inputs, "synflow")
    if not 0 < inputs.density <= 1:
        raise LotteryError(f"density must be a fraction in (0, 1], not {inputs.density!r}.")
    kept = {name: mask for name, mask in inputs.kept.items() if name in inputs.trained}
    fractions: dict[tuple[str, ...], float] = {}
    for names, target in (inputs.targets or {}).items():
        survivors = masks.total_kept({name: kept[name] for name in names})
        fractions[names] = min(1.0, target / max(1, survivors))
    if not fractions:
        # Callers outside of a run give no counts. Where nothing is kept, no density can be met.
        present = masks.density(kept) or 1.0
        fractions = {names: min(1.0, inputs.density / present) for names, _ in ranking.groups(kept, inputs.scope)}
    ranks = gradients.synaptic_flow(network.model, network.build, network.x, kept, fractions)
    return {name: ranks[name] for name in inputs.trained}


@dataclass(frozen=True)
class Criterion:
    """A criterion: its scores, and what the rest of the package needs to know of it."""

    score: ScoreFunction
    # It looks at the network before training. Each round's masks are then made from the dense network, at once.
    needs_network: bool = False
    is_signed: bool = False  # its scores may be negative
    ranks_entries: bool = False  # in steps of its own, so that scores cannot be pooled in groups
    is_chance: bool = False  # its scores are draws, of which a group takes one
    # How often it has been defined anew. Rounds record it, so that masks of two definitions are not taken for one.
    definition: int = 1
    definition_at_once: int = 1  # the same, for prune.iterative = false, if that is the higher number
    definition_of_groups: int = 1  # the same, where the scores of a group become one
    # Raises `LotteryError` if a model and a batch of inputs are not what it can score.
    check_model: Callable[[Any, Any], None] = lambda model, inputs: None


_MAGNITUDE = Criterion(magnitude)

# By the name in ``prune.criterion``.
CRITERIA: dict[str, Criterion] = {
    # Two papers have named it, so it has two names.
    "magnitude": _MAGNITUDE,
    "large_final": _MAGNITUDE,
    "small_final": Criterion(small_final, is_signed=True),
    "large_init": Criterion(large_init),
    "small_init": Criterion(small_init, is_signed=True),
    # By equal percentiles; at once, by those of the dense network in each round; where groups are ranked, by those of
    # the entries that make their scores.
    "large_init_large_final": Criterion(
        large_init_large_final, definition=2, definition_at_once=3, definition_of_groups=4
    ),
    "small_init_small_final": Criterion(
        small_init_small_final, definition=2, definition_at_once=3, definition_of_groups=4
    ),
    "magnitude_increase": Criterion(magnitude_increase, is_signed=True),
    "movement": Criterion(movement),
    "random": Criterion(random, is_chance=True, definition_of_groups=2),  # a draw for each group
    "snip": Criterion(snip, needs_network=True, definition=2),  # a batch balanced by class
    "grasp": Criterion(
        grasp,
        needs_network=True,
        is_signed=True,
        definition=2,  # that batch, a temperature of 200
        check_model=gradients.check_ends,
    ),
    "synflow": Criterion(
        synflow,
        needs_network=True,
        ranks_entries=True,
        definition=2,  # from dense in each round
        check_model=gradients.check_inputs_and_ends,
    ),
}


def facts(name: str) -> Criterion:
    """Return the record of a criterion; of a function of the caller's, one without facts, whose scores are unknown."""
    # A stored run names a function only as "given", and is read without it.
    return CRITERIA.get(name) or Criterion(_of_the_caller)


def _of_the_caller(inputs: CriterionInputs) -> dict[str, np.ndarray]:
    raise LotteryError("The criterion of this run is a function that was passed to lottery.run; pass it again.")


def _lower_rank(inputs: CriterionInputs, sign: int) -> dict[str, np.ndarray]:
    """Rank survivors, from 1, by `sign` times |w_i| and by `sign` times |w_f|, and return the lower rank of each."""
    from scipy.stats import rankdata

    names = list(inputs.trained)
    scores = {name: np.zeros(np.shape(inputs.trained[name])) for name in names}
    for group in inputs.targets or [group for group, _ in ranking.groups(names, inputs.scope)]:
        ranks = []
        for values in (inputs.initial, inputs.trained):
            survivors = [np.asarray(values[name])[inputs.kept[name]] for name in group]
            # Of equals the earlier is lower. NaN stays NaN, which ranking refuses.
            ranks.append(rankdata(sign * np.abs(np.concatenate(survivors)), "ordinal", nan_policy="omit"))
        ends = np.cumsum([np.count_nonzero(inputs.kept[name]) for name in group])[:-1]
        for name, part in zip(group, np.split(np.minimum(*ranks), ends), strict=True):
            scores[name][inputs.kept[name]] = part
    return scores


def _network(inputs: CriterionInputs, criterion: str) -> ScoredModel:
    if inputs.network is None:
        raise LotteryError(f"{criterion!r} needs the network. Pass a ScoredModel as CriterionInputs.network.")
    return inputs.network
