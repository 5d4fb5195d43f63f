"""Weights to scores: which survivors to keep. Each criterion names its reference."""

from collections.abc import Callable, Mapping

import numpy as np

Weights = Mapping[str, np.ndarray]
Criterion = Callable[[Weights, Weights], dict[str, np.ndarray]]


def magnitude(initial: Weights, trained: Weights) -> dict[str, np.ndarray]:
    """Absolute value of the trained weight, |w_f|: the criterion of Frankle & Carbin 2019.

    ``large_final`` in Zhou et al. 2019, https://arxiv.org/abs/1905.01067, equation of figure 3.

    Args:
        initial: Weights at the start of training. Not used.
        trained: Weights at its end.

    Returns:
        Scores by weight; the higher are kept.
    """
    return {name: np.abs(value) for name, value in trained.items()}


CRITERIA: dict[str, Criterion] = {"magnitude": magnitude}
