"""Rewinding: the values that the weights have when a round starts to train."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lottery import masks, randomness
from lottery.masks import Masks, Weights

# From every variable at the rewind step, every variable at the end of the round before, the masks of the round, and a
# generator for this round of this replicate alone, to every variable, by name, not masked yet.
Rewind = Callable[[Weights, Weights, Masks, np.random.Generator], dict[str, np.ndarray]]


def to_start(start: Weights, trained: Weights, kept: Masks, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Rewind every variable to the rewind step: weight rewinding.

    At step 0 Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635, theta_0 times m; later, Frankle et al. 2020,
    https://arxiv.org/abs/1912.05671, theta_k times m.
    """
    return dict(start)


def to_trained(start: Weights, trained: Weights, kept: Masks, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Rewind no weight: survivors continue from the end of the network that was pruned.

    Learning-rate rewinding and fine-tuning of Renda, Frankle & Carbin 2020, https://arxiv.org/abs/2003.02389, which
    differ in the learning rate alone.
    """
    return dict(trained)


def to_signs(start: Weights, trained: Weights, kept: Masks, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Set every prunable weight to its sign at the rewind step times a constant, and rewind everything else.

    "Init sign, constant" of Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 4.1: the constant is the
    standard deviation of the weight's start values, over all of its entries.
    """
    return {
        # In double precision, and over pruned entries, too: one constant for all rounds.
        name: (np.sign(value) * value.std(dtype=np.float64)).astype(value.dtype) if name in kept else value
        for name, value in start.items()
    }


def to_shuffled(start: Weights, trained: Weights, kept: Masks, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Shuffle the values that survivors had at the rewind step, weight by weight, and rewind everything else.

    "Reshuffle" of Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 4.1.
    """
    shuffled = dict(start)
    for name, mask in kept.items():
        shuffled[name] = start[name].copy()
        shuffled[name][mask] = rng.permutation(start[name][mask])
    return shuffled


# What a ticket starts from: weights at step 0, weights at a later step, the signs of either, either with survivors
# shuffled, or trained weights.
Start = Literal["initial", "late", "signs", "shuffled", "trained"]


@dataclass(frozen=True)
class RewindMode:
    """A way to rewind, and what others need to know of it."""

    set_back: Rewind  # makes the values that a round starts from
    start: Start | None = None  # what these are; None for the weights at the rewind step
    has_initial_values: bool = True  # an entry has one value at the rewind step, which it starts or has started from
    keeps_rate: bool = False  # the learning rate stays where training ended, and does not go back to the rewind step

    @property
    def trains_again(self) -> bool:
        """True if survivors are set back and trained again, so that their steps count as the dense network's do."""
        return self.start != "trained"


# By the name in ``rewind.mode``.
REWINDS: dict[str, RewindMode] = {
    "weights": RewindMode(to_start),
    "learning_rate": RewindMode(to_trained, "trained"),
    "fine_tune": RewindMode(to_trained, "trained", keeps_rate=True),
    "sign": RewindMode(to_signs, "signs", has_initial_values=False),
    "reshuffled": RewindMode(to_shuffled, "shuffled", has_initial_values=False),
}


def start_of(mode: str, step: int = 0) -> Start:
    """Return what pruned rounds start from in a rewinding mode, with a rewind step."""
    return REWINDS[mode].start or ("late" if step else "initial")


def schedule_step(mode: str, step: int, num_steps: int, number: int) -> int:
    """Return the step of its schedule at which the learning rate begins in a round."""
    if not number:
        return 0
    # At its last step a schedule has its last rate, and stays there.
    return num_steps if REWINDS[mode].keeps_rate else step


def rng_for(seed: int, replicate: int, index: int) -> np.random.Generator:
    """The random numbers of the rewinding before a round of a replicate."""
    return randomness.generator(seed, replicate, randomness.REWIND, index)


def rewound(
    mode: str, start: Weights, trained: Weights, kept: Masks, rng: np.random.Generator, held_at: Weights | None = None
) -> dict[str, np.ndarray]:
    """Make the variables that a round starts from, every masked entry at its held value, or at zero without any."""
    return masks.apply(REWINDS[mode].set_back(start, trained, kept, rng), kept, held_at)
