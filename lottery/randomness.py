"""Seeds and generators by purpose, and the order of batches: functions of the seed, so that a run can be resumed."""

import contextlib
import functools
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

# The purpose of a random number is part of its seed, so that no two purposes share a stream.
# With other numbers a stored run would draw other weights and batches, and could not go on.
INITIALISATION, BATCHES, AUGMENTATION, SCORES, BRANCH, SIBLINGS, REWIND, NOISE = 1, 2, 3, 4, 5, 6, 7, 8

# Names of modules in `sys.modules` that hold global generators; and what Keras 3.15 calls its seed and its generator.
_TENSORFLOW, _KERAS = "tensorflow.python.eager.context", "keras.src.backend.common.global_state"
_TF_KERAS = "tf_keras.src.backend"
_OF_KERAS = ("global_random_seed", "global_seed_generator")


def seed_for(*words: int) -> int:
    """Make a seed of 31 bits from words such as (seed, replicate, purpose)."""
    # TensorFlow's int32, as in keys of its stateless generators, have 31 bits without their sign.
    return int(np.random.SeedSequence(words).generate_state(1)[0] >> 1)


def generator(*words: int) -> np.random.Generator:
    """Make a generator from words such as (seed, replicate, purpose)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))


@contextlib.contextmanager
def put_back() -> Iterator[None]:
    """Put the global generators of Python, NumPy, TensorFlow and both Kerases back as they were when this ends.

    Models draw their initial weights from these, so a run sets their seeds. Its caller may draw from them too.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(_restoring_tensorflow())
        stack.enter_context(python_and_numpy_put_back())
        yield


@contextlib.contextmanager
def python_and_numpy_put_back() -> Iterator[None]:
    """Put the global generators of Python and NumPy back as they were when this ends."""
    with contextlib.ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        yield


def _restoring_tensorflow() -> Callable[[], None]:
    """Remember what ``set_random_seed`` of Keras and of tf_keras will change, and return a function that restores it.

    A library that is imported later gets no seed. Private names are read: neither Keras 3.15, tf_keras 2.21 nor
    TensorFlow 2.21 have a function that returns the state of their generators.
    """
    context, keras, tf_keras = _libraries()
    # This and the generator are missing before TensorFlow's first operation.
    seed = getattr(context, "_seed", None)
    generator_of_context = getattr(context, "_rng", None)
    drawn = generator_of_context.getstate() if generator_of_context else None
    of_keras = {name: keras.get_global_attribute(name) if keras else None for name in _OF_KERAS}
    of_tf_keras = getattr(tf_keras._SEED_GENERATOR, "generator", None) if tf_keras else None

    def restore() -> None:
        context, keras, tf_keras = _libraries()  # some may have been imported since
        if context:
            context._set_global_seed(seed)
            # After the seed, which makes a new generator (TensorFlow 2.21).
            if drawn:
                context._rng.setstate(drawn)
        if keras:
            for name, value in of_keras.items():
                keras.set_global_attribute(name, value)
        if tf_keras:
            tf_keras._SEED_GENERATOR.generator = of_tf_keras

    return restore


def _libraries() -> tuple[Any, Any, Any]:
    """Return TensorFlow's context and the modules of both Kerases that hold generators; None if not imported."""
    tensorflow: Any = sys.modules.get(_TENSORFLOW)
    return tensorflow and tensorflow.context(), sys.modules.get(_KERAS), sys.modules.get(_TF_KERAS)


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

    # One epoch at a time, since a permutation is as long as the data.
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
