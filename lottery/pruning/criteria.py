"""Criteria: functions from weights to scores, of which the highest are kept."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery.errors import LotteryError
from lottery.masks import Masks, Weights


@dataclass(frozen=True)
class Network:
    """A network and a batch, for the criteria in `NEEDS_NETWORK`.

    Attributes:
        model: A compiled Keras 3 or tf_keras model with the weights that training starts from, none of them masked or
            wrapped. A criterion leaves it unchanged.
        x, y: A batch of inputs and labels, as the network takes them.
        build: Builds the same architecture anew.
    """

    model: Any
    x: Any
    y: Any
    build: Callable[[], Any]


@dataclass(frozen=True)
class CriterionInputs:
    """Everything a criterion can compute scores from.

    Attributes:
        initial: The prunable weights at step 0, by name.
        trained: The prunable weights at the end of the round before, by name.
        kept: The masks of the round before, by name.
        rng: Random numbers, a function of seed, replicate and round.
        density: The density that the round prunes to, over all prunable weights, in (0, 1].
        scope: ``"layerwise"`` or ``"global"``: which weights will be ranked together.
        network: The network, for the criteria in `NEEDS_NETWORK`.
        targets: The exact number of entries to keep of each group of weights that are ranked together.
    """

    initial: Weights
    trained: Weights
    kept: Masks
    rng: np.random.Generator
    density: float
    scope: str
    network: Network | None = None
    targets: Mapping[tuple[str, ...], int] | None = None


Criterion = Callable[[CriterionInputs], dict[str, np.ndarray]]


def magnitude(inputs: CriterionInputs) -> dict[str, np.ndarray]:
    """Absolute value of the trained weight, |w_f|: the criterion of Frankle & Carbin 2019.

    https://arxiv.org/abs/1803.03635, section 2; ``large_final`` in Zhou et al. 2019,
    https://arxiv.org/abs/1905.01067, section 2, which draws the criteria of initial and final weights.

    Returns:
        Scores by weight, of the weights' shapes; the highest are kept.
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
    """Large before and after training, min(a |w_f|, |w_i|) with a = 1.

    Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 2.
    """
    return {name: np.minimum(np.abs(value), np.abs(inputs.initial[name])) for name, value in inputs.trained.items()}


def small_init_small_final(inputs: CriterionInputs) -> dict[str, np.ndarray]:
    """Small before and after training, -max(a |w_f|, |w_i|) with a = 1.

    Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 2.
    """
    return {name: -np.maximum(np.abs(value), np.abs(inputs.initial[name])) for name, value in inputs.trained.items()}


def magnitude_increase(inputs: CriterionInputs) -> dict[str, np.ndarray]:
    """Growth of the absolute value in training, |w_f| - |w_i|.

    Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 2.
    """
    return {
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
    """Chance, uniform in [0, 1), drawn for the weights in the order of their names.

    Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 2.
    """
    drawn = {name: inputs.rng.random(np.shape(inputs.trained[name])) for name in sorted(inputs.trained)}
    return {name: drawn[name] for name in inputs.trained}


def snip(inputs: CriterionInputs) -> dict[str, np.ndarray]:
    """Immediate effect on the loss, |g * w|: SNIP, Lee et al. 2019, https://arxiv.org/abs/1810.02340, eq. 4 to 6.

    g is the gradient of the loss on one batch, w the weights that training starts from; see
    `gradients.connection_sensitivity`. (The paper divides by the sum, which changes no ranking.) The network is the
    dense one: masks of earlier rounds are not applied, so every round's masks are the one-shot masks of its density,
    and the masks of all rounds are nested.

    Raises:
        LotteryError: There is no network, its loss cannot be evaluated, or a score is not finite.
    """
    from lottery.pruning import gradients

    network = _network(inputs, "snip")
    return gradients.connection_sensitivity(network.model, network.x, network.y, list(inputs.trained))


def grasp(inputs: CriterionInputs) -> dict[str, np.ndarray]:
    """Loss of gradient flow, w * (H g): GraSP, Wang et al. 2020, https://arxiv.org/abs/2002.07376, equation 8.

    g and H are gradient and Hessian of the loss on one batch; see `gradients.gradient_flow`. The paper prunes the
    highest S = -w * (H g), so the scores are -S. Its formula has no temperature for the logits, and none is used here
    (the authors' program divides by 200). The network is the dense one, as for `snip`.

    Raises:
        LotteryError: There is no network, its loss cannot be differentiated twice, or a score is not finite.
    """
    from lottery.pruning import gradients

    network = _network(inputs, "grasp")
    return gradients.gradient_flow(network.model, network.x, network.y, list(inputs.trained))


def synflow(inputs: CriterionInputs) -> dict[str, np.ndarray]:
    """Rank in 100 steps of pruning by synaptic flow, |w * dR/dw|: SynFlow, Tanaka et al. 2020.

    https://arxiv.org/abs/2006.05467, equation 3 and algorithm 1; see `synflow.synaptic_flow`. It needs no data. The
    steps go from the masks of the round before to the density of this one.

    Raises:
        LotteryError: There is no network, it cannot be evaluated in double precision, a score is not finite, or the
            density is not in (0, 1].
    """
    from lottery.pruning.synflow import synaptic_flow

    network = _network(inputs, "synflow")
    kept = {name: inputs.kept[name] for name in inputs.kept if name in inputs.trained}
    ranks = synaptic_flow(
        network.model, network.build, network.x, kept, inputs.density, inputs.scope, targets=inputs.targets
    )
    return {name: ranks[name] for name in inputs.trained}


CRITERIA: dict[str, Criterion] = {
    "magnitude": magnitude,
    "large_final": magnitude,
    "small_final": small_final,
    "large_init": large_init,
    "small_init": small_init,
    "large_init_large_final": large_init_large_final,
    "small_init_small_final": small_init_small_final,
    "magnitude_increase": magnitude_increase,
    "movement": movement,
    "random": random,
    "snip": snip,
    "grasp": grasp,
    "synflow": synflow,
}


NEEDS_NETWORK = frozenset({"snip", "grasp", "synflow"})


def _network(inputs: CriterionInputs, criterion: str) -> Network:
    if inputs.network is None:
        raise LotteryError(
            f"The criterion {criterion!r} needs the network: received CriterionInputs.network=None, allowed is a "
            "Network."
        )
    return inputs.network
