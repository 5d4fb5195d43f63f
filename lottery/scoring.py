"""What a criterion sees of a round: the same when the round is trained and when it is checked."""

from collections.abc import Mapping

import numpy as np

from lottery import config, criteria, order, planning
from lottery.masks import Masks

State = Mapping[str, np.ndarray]


def evidence(
    settings: config.Prune,
    seed: int,
    replicate: int,
    index: int,
    initial: State,
    trained: State,
    kept: Masks,
    network: criteria.Network | None = None,
) -> criteria.Evidence:
    """What the masks of round `index` are decided on.

    Args:
        settings: The ``[prune]`` section of an experiment.
        seed: The experiment's seed.
        replicate: Which replicate, from 1.
        index: The round about to begin.
        initial: Every variable at step 0, by name.
        trained: Every variable at the end of the round before, by name.
        kept: The masks of the round before.
        network: For criteria that look at gradients.

    Returns:
        The evidence, of the prunable weights alone.
    """
    ladder = planning.planned(settings, {name: mask.shape for name, mask in kept.items()}, index)
    return criteria.Evidence(
        initial={name: initial[name] for name in kept},
        trained={name: trained[name] for name in kept},
        kept=kept,
        rng=order.generator(seed, replicate, order.SCORES, index),
        density=sum(counts[index] for counts in ladder.values()) / sum(mask.size for mask in kept.values()),
        scope=settings.scope,
        network=network,
        targets={names: counts[index] for names, counts in ladder.items()},
    )


def is_repeatable(settings: config.Prune) -> bool:
    """Whether scores can be computed again from stored weights alone, without a model and data."""
    return settings.criterion not in (*criteria.NEEDS_NETWORK, config.GIVEN)
