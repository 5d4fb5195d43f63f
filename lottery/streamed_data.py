"""Data sets that do not fit in memory: functions that make a ``tf.data.Dataset``, the same batches each time."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery.errors import LotteryError

PARTS = ("training", "validation", "test")
NUM_PEEKED = 4  # batches of a tf.data.Dataset in its fingerprint
PEEK_SEED = 20_190_304  # of a shuffle without a seed, while the fingerprint is taken

HOW_TO_PASS = (
    "Pass (train, validation, test), each a function without arguments that returns a tf.data.Dataset with the same "
    "batches each time, such as tf.data.Dataset.from_generator(lambda: (batches[i] for i in range(len(batches))), "
    "output_signature=(tf.TensorSpec((None, 28, 28)), tf.TensorSpec((None,), tf.int32)))."
)


@dataclass(frozen=True)
class Streams:
    """A data set that does not fit in memory: functions that make a new batched ``tf.data.Dataset`` at each call."""

    train: Callable[[], Any]
    validation: Callable[[], Any]
    test: Callable[[], Any]
    fingerprint: str  # of the first batches, since reading all of them would take as long as training
    notes: tuple[str, ...] = ()  # sentences that a person should read

    def num_examples(self, part: str) -> int:
        """Return 0 for any part: its examples cannot be counted without reading them all."""
        return 0


def is_stream(part: Any) -> bool:
    """Check if an object is a ``tf.data.Dataset``, or a function that may make one."""
    return hasattr(part, "element_spec") or (callable(part) and not is_sequence(part))


def is_sequence(part: Any) -> bool:
    """Check if an object gives batches in Python: a ``PyDataset``, a generator, the loader of another library."""
    known = isinstance(part, (str, list, tuple, Mapping)) or hasattr(part, "element_spec")
    is_array = hasattr(part, "__array__") or hasattr(part, "numpy")
    return not (known or is_array) and (hasattr(part, "__getitem__") or hasattr(part, "__iter__"))


def kind(part: Any) -> str:
    """Name the type of an object in a sentence."""
    names = [base.__name__ for base in type(part).__mro__]
    return "a PyDataset" if "PyDataset" in names else f"a {names[0]}"


def checked(parts: tuple[Any, ...]) -> Streams:
    """Make streams of three data sets or functions, or raise a `LotteryError` that says what to pass instead."""
    makers = [part if callable(part) and not hasattr(part, "element_spec") else _same(part) for part in parts]
    # Twice, because only a second reading shows what is drawn anew each time.
    first, again = (_digest_of_first_batches(PARTS, makers) for _ in range(2))
    if first != again:
        raise LotteryError(
            "A data set gives other batches each time it is made, which a resumed run cannot repeat. Build it inside "
            "the function, and draw random numbers by tf.random.stateless_* or in one thread."
        )
    # A resumed training repeats its draws from the global generators, but not those of the evaluations in between.
    for part, make in zip(PARTS[1:], makers[1:], strict=True):
        passes = {_digest_of_first_batches([part], [make], seeded=False) for _ in range(2)}
        if len(passes) > 1:
            raise LotteryError(
                f"The {part} data set gives other batches in each evaluation, which a resumed run cannot repeat. Leave "
                "out its shuffle(), or give a seed to whatever draws random numbers in it."
            )
    return Streams(*makers, fingerprint=first)


def _digest_of_first_batches(parts: Sequence[str], makers: Sequence[Callable[[], Any]], seeded: bool = True) -> str:
    import keras
    import tensorflow as tf

    digest = hashlib.sha256()
    for part, make in zip(parts, makers, strict=True):
        # For each part anew: a shuffle without a seed takes its own from this one, by order.
        if seeded:
            keras.utils.set_random_seed(PEEK_SEED)
        dataset: Any = make()
        if not hasattr(dataset, "element_spec"):
            raise LotteryError(f"A function of data must return a tf.data.Dataset, not {kind(dataset)}. {HOW_TO_PASS}")
        _check_batched(dataset.element_spec, part)
        cardinality = int(dataset.cardinality())
        if cardinality == tf.data.INFINITE_CARDINALITY and part != "training":
            raise LotteryError(f"The {part} data set never ends. Leave out its repeat().")
        digest.update(f"{dataset.element_spec} {cardinality}".encode())
        batches = [keras.tree.flatten(batch) for batch in dataset.take(NUM_PEEKED)]
        if not batches:
            raise LotteryError(f"The {part} data set is empty.")
        # A ragged or sparse tensor is several arrays.
        for array in map(np.asarray, tf.nest.flatten(batches, expand_composites=True)):
            # Strings of TensorFlow are objects to NumPy, whose bytes would be addresses in memory.
            content = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
            digest.update(f"{array.dtype.str}{array.shape}".encode() + content)
    return digest.hexdigest()[:16]


def _check_batched(spec: Any, part: str) -> None:
    """Raise `LotteryError` if the elements of a data set are not batches of inputs and labels."""
    import tensorflow as tf

    if isinstance(spec, Mapping):
        raise LotteryError(
            f"The {part} data set must give inputs and labels, not dicts of {', '.join(spec)}. Add "
            ".map(lambda batch: (batch['image'], batch['label'])) with the names of yours."
        )
    shapes = [tensor.shape for tensor in tf.nest.flatten(spec) if getattr(tensor, "shape", None) is not None]
    shapes = [shape for shape in shapes if shape.rank is not None]
    if all(shape.rank for shape in shapes):
        sizes = {shape[0] for shape in shapes}
        if len(sizes - {None}) <= 1:
            return
    raise LotteryError(
        f"data: the {part} data set is not batched, its elements are single examples; end it with .batch(60), or "
        "another size."
    )


def _same(dataset: Any) -> Callable[[], Any]:
    """Make a function that returns `dataset`; refuse a shuffle that counts the passes made in this process."""
    waiting = [dataset]
    while waiting:
        part = waiting.pop()
        # TensorFlow 2.21 tells in this private attribute alone how a data set was shuffled.
        if type(part).__name__.startswith("_Shuffle") and getattr(part, "_reshuffle_each_iteration", True) is not False:
            raise LotteryError(
                "data: this tf.data.Dataset shuffles anew in each pass, which a resumed run cannot repeat; pass a "
                "function that builds it (with a seed), or use shuffle(..., reshuffle_each_iteration=False)."
            )
        waiting.extend(part._inputs())
    return lambda: dataset
