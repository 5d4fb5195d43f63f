"""The order of the batches: a pure function of (seed, replicate, epoch), so that a run can stop and go on anywhere."""

from collections.abc import Callable

import numpy as np

# What a random number is for is part of its seed: no two purposes ever share a stream.
INITIALISATION, BATCHES, AUGMENTATION, SCORES, BRANCH, SIBLINGS = 1, 2, 3, 4, 5, 6


def seed_for(*words: int) -> int:
    """A seed of 31 bits from words such as (seed, replicate, purpose)."""
    return int(np.random.SeedSequence(words).generate_state(1)[0] >> 1)


def generator(*words: int) -> np.random.Generator:
    """A source of random numbers from words such as (seed, replicate, purpose)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


def batches(
    num_examples: int, batch_size: int, seed: tuple[int, ...], first_step: int = 0
) -> Callable[[int], np.ndarray]:
    """The batches of a training run, piece by piece.

    Every epoch is a permutation of its own, and the epochs follow one another without a gap: a batch may hold the
    end of one and the beginning of the next, every batch is full, and every example is seen once an epoch.

    Args:
        num_examples: Examples in the training split.
        batch_size: Examples in a batch.
        seed: Words that decide the order.
        first_step: The step that the first batch is for.

    Returns:
        A function from a number of steps to the positions of their examples, of type int32 and shape (steps,
        batch_size); each call goes on where the last one ended.
    """
    permutations: dict[int, np.ndarray] = {}
    position = first_step * batch_size

    def permutation(epoch: int) -> np.ndarray:
        if epoch not in permutations:
            for old in [other for other in permutations if other < epoch - 1]:
                del permutations[old]
            permutations[epoch] = generator(*seed, epoch).permutation(num_examples).astype(np.int32)
        return permutations[epoch]

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
