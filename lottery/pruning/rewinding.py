"""Where retraining starts: the weights that survivors are set to, and the place in the learning rate's schedule."""

from collections.abc import Callable, Mapping

import numpy as np

from lottery import masks
from lottery.masks import Masks

State = Mapping[str, np.ndarray]


Rewind = Callable[[State, State, Masks], dict[str, np.ndarray]]


def to_start(start: State, trained: State, kept: Masks) -> dict[str, np.ndarray]:
    """Weight rewinding: every variable as it was at the rewind step.

    At step 0 Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635, theta_0 times m; later, Frankle et al. 2020,
    https://arxiv.org/abs/1912.05671, theta_k times m.

    Args:
        start: Every variable at the rewind step, by name.
        trained: Every variable at the end of the round before, by name.
        kept: What is kept; names the prunable weights.

    Returns:
        Every variable, by name, not masked yet.
    """
    return dict(start)


def to_trained(start: State, trained: State, kept: Masks) -> dict[str, np.ndarray]:
    """No weight is rewound: survivors go on from where the round before ended.

    Learning-rate rewinding and fine-tuning of Renda, Frankle & Carbin 2020, https://arxiv.org/abs/2003.02389, which
    differ in the learning rate; see `schedule_step`.
    """
    return dict(trained)


def to_signs(start: State, trained: State, kept: Masks) -> dict[str, np.ndarray]:
    """Every prunable weight at its sign in the start weights times one constant, everything else at the start.

    "Init sign, constant" of Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 4.1: the constant is the
    standard deviation of the weight's start values, over all of its entries.
    """
    return {
        name: (np.sign(value) * value.std(dtype=np.float64)).astype(value.dtype) if name in kept else value
        for name, value in start.items()
    }


REWINDS: dict[str, Rewind] = {
    "weights": to_start,
    "learning_rate": to_trained,
    "none": to_trained,
    "sign": to_signs,
}


def rewound(mode: str, start: State, trained: State, kept: Masks) -> dict[str, np.ndarray]:
    """What a round starts from, everything masked at zero.

    Args:
        mode: A key of `REWINDS`.
        start: Every variable at the rewind step, by name.
        trained: Every variable at the end of the round before, by name.
        kept: What is kept.

    Returns:
        Every variable, by name.
    """
    return masks.apply(REWINDS[mode](start, trained, kept), kept)
