"""Masks: plain dicts from a weight's name to a boolean array, True where the entry is kept."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from lottery.errors import LotteryError, missing

Masks = dict[str, np.ndarray]  # boolean arrays by the name of a weight, True where the entry is kept
Weights = Mapping[str, np.ndarray]  # arrays by the name of a weight, or of any variable
Scores = Mapping[str, np.ndarray]  # numbers by the name of a weight, of its shape; the highest are kept
Shapes = Mapping[str, tuple[int, ...]]  # by the name of a weight


@dataclass(frozen=True)
class Change:
    """A change of the masks while a network trains."""

    function: Callable[[Masks, Weights], Masks]  # of the masks and of every variable after a step: the masks from there
    num_kept: Mapping[str, int]  # the entries that it keeps of each weight


def ones_like(weights: Weights) -> Masks:
    """Make masks of the weights' shapes that keep everything."""
    return {name: np.ones(np.shape(value), dtype=bool) for name, value in weights.items()}


def shapes(arrays: Weights) -> dict[str, tuple[int, ...]]:
    """Return the shape of each array, or of each variable of a model."""
    return {name: tuple(array.shape) for name, array in arrays.items()}


def num_kept(masks: Masks) -> dict[str, int]:
    """Count the kept entries of each weight."""
    return {name: int(np.count_nonzero(mask)) for name, mask in masks.items()}


def total_kept(masks: Masks) -> int:
    """Count the kept entries of all weights."""
    return sum(num_kept(masks).values())


def density(masks: Masks) -> float:
    """Return the fraction of all entries that are kept, in [0, 1]."""
    return total_kept(masks) / _num_entries(masks)


def density_by_weight(masks: Masks) -> dict[str, float]:
    """Return the fraction of each weight's entries that are kept, in [0, 1]."""
    return {name: density({name: mask}) for name, mask in masks.items()}


def _num_entries(masks: Masks) -> int:
    """Count the entries of all weights, kept or not; raise `LotteryError` if there is none."""
    count = sum(mask.size for mask in masks.values())
    if not count:
        raise LotteryError("The masks have no entry, so there is no fraction that is kept.")
    return count


def apply(weights: Weights, masks: Masks, held_at: Weights | None = None) -> dict[str, np.ndarray]:
    """Set every masked entry to its held value.

    Args:
        weights: Arrays by name; those without a mask are returned unchanged.
        masks: Masks by name, each of its weight's shape.
        held_at: The values of masked entries, arrays of the weights' shapes by name; zero if missing.

    Returns:
        New arrays, each masked entry exactly at its held value (positive zero), even if it was infinite or NaN.

    Raises:
        LotteryError: A mask does not fit.
    """
    check(masks, weights)
    applied = dict(weights)
    for name, mask in masks.items():
        own = applied[name]
        held = (held_at or {}).get(name, np.zeros((), own.dtype))
        # A choice, not a product, which would make NaN of infinity, and negative zero of a negative weight.
        applied[name] = np.where(mask, own, held).astype(own.dtype, copy=False)
    return applied


def intersection(first: Masks, second: Masks) -> Masks:
    """Make the masks of the entries that both keep. Both must name the same weights."""
    if first.keys() != second.keys():
        raise LotteryError(f"The masks name different weights: {sorted(first)} and {sorted(second)}.")
    return {name: first[name] & second[name] for name in first}


def distance(first: Masks, second: Masks) -> float:
    """Return the fraction of all entries that only one of two masks keeps, in [0, 1]."""
    unequal = total_kept(first) + total_kept(second) - 2 * total_kept(intersection(first, second))
    return unequal / _num_entries(first)


def is_nested(inner: Masks, outer: Masks) -> bool:
    """Return True if `outer` keeps every entry that `inner` keeps."""
    return inner.keys() == outer.keys() and not any(np.any(inner[name] & ~outer[name]) for name in inner)


def leaks(weights: Weights, masks: Masks, held_at: Weights | None = None) -> dict[str, int]:
    """Count the masked entries that are not at their held values, by weight; weights without any are left out.

    Args:
        weights, masks: Arrays by name. NaN is not a held value.
        held_at: The values of masked entries, as for `apply`; zero if missing.
    """
    check(masks, weights)
    counts = {}
    for name, mask in masks.items():
        own = weights[name]
        # In the type of the weight, as `apply` puts it there: 0.1 in single precision is another number than in double.
        held = np.asarray((held_at or {}).get(name, 0)).astype(own.dtype)
        counts[name] = int(np.count_nonzero((own != held) & ~mask))
    return {name: count for name, count in counts.items() if count}


def check(masks: Masks, weights: Weights) -> None:
    """Raise `LotteryError` unless every mask is boolean and has the shape of the weight it names."""
    for name, mask in masks.items():
        if name not in weights:
            raise missing("A mask names a weight that does not exist:", name, weights)
        # What a masked array leaves out may be meant as kept or as pruned. Sparse arrays, too, have a type and a shape.
        is_array = hasattr(mask, "__array__") and not isinstance(mask, np.ma.MaskedArray)
        kind = type(mask).__name__
        found = getattr(mask, "dtype", kind) if is_array else kind
        if found != np.bool_:
            hint = " Use mask.astype(bool)." if is_array else ""
            raise LotteryError(f"The mask of {name!r} must be a boolean array of NumPy, not {found}.{hint}")
        expected = tuple(weights[name].shape)
        if tuple(mask.shape) != expected:
            raise LotteryError(f"The mask of {name!r} has shape {tuple(mask.shape)}, the weight has {expected}.")
