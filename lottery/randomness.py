"""Seeds and generators by purpose, and the order of batches: functions of the seed, so that a run can be resumed."""

import functools
from collections.abc import Callable

import numpy as np

# The purpose of a random number is part of its seed, so that no two purposes share a stream.
INITIALISATION, BATCHES, AUGMENTATION, SCORES, BRANCH, SIBLINGS, REWIND = 1, 2, 3, 4, 5, 6, 7


def seed_for(*words: int) -> int:
    """Make a seed of 31 bits from words such as (seed, replicate, purpose)."""
    return int(np.random.SeedSequence(words).generate_state(1)[0] >> 1)


def generator(*words: int) -> np.random.Generator:
    """Make a generator from words such as (seed, replicate, purpose)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


def batches(
    num_examples: int, batch_size: int, seed: tuple[int, ...], first_step: int = 0
) -> Callable[[int], np.ndarray]:
    """Iterate over the batches of a training run in pieces.

    Every epoch has a permutation of its own, and epochs follow one another without a gap: a batch may hold the end of
    an epoch and the beginning of the next, every batch is full, and every example is seen once an epoch.

    Returns:
        A function from a number of steps to the positions of their examples, of type int32 and shape (steps,
        batch_size); each call continues after the last, the first begins at `first_step`.
    """
    position = first_step * batch_size

    @functools.lru_cache(maxsize=1)
    def permutation(epoch: int) -> np.ndarray:
        return generator(*seed, epoch).permutation(num_examples).astype(np.int32)

    def following(num_steps: int) -> np.ndarray:
        nonlocal position
        start, end = position, position + num_steps * batch_size
        parts = []
        while position < end:
            epoch, offset = divmod(position, num_examples)
            part = permutation(epoch)[offset : offset + end - position]
            parts.append(part)
            position += part.size
        assert position == end, (start, position, end)
        return np.concatenate(parts).reshape(num_steps, batch_size)

    return following
