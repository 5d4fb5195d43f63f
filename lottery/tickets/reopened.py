"""An exported file that was opened again, and a check that masked entries are held in it."""

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from lottery import masks as masks_module
from lottery.errors import LotteryError
from lottery.masks import Masks, Weights

# Of the largest value: the error of a converter's own arithmetic where it folds a scale into a weight.
_ROUNDING = 1e-5
# A tensor is known by how its values follow a weight's, so there must be some that no scale explains by itself.
_ENOUGH = 3


class Stored(NamedTuple):
    """An array in a file, as real numbers."""

    values: np.ndarray  # exactly zero where a stored integer is the zero point
    step: Any = 0.0  # between neighbouring values that were rounded to integers; broadcasts to the values


class Opened(NamedTuple):
    """An exported file that was opened again."""

    outputs: Callable[[Any], Any]  # from inputs, as the model takes them, to outputs in the model's structure
    tensors: Mapping[str, Stored]  # the arrays in the file
    named: bool  # by the stable names of `lottery.weights`, or by names that a library chose


def are_held(opened: Opened, weights: Weights, masks: Masks, held_at: Weights) -> bool:
    """Check that the masked entries of a ticket are zero, or at `held_at`, in an opened file; raise if one is not.

    Without stable names, a weight is found by its kept values: some tensor must hold them, in any order of dimensions
    and each output channel times a number of its own (converters transpose, merge dimensions, fold a normalisation into
    the layer before it, and round to integers). Return False if a weight with masked entries cannot be found, because
    a converter took it apart, for example. Of a weight that is held at other values all entries count as kept.
    """
    seen = True
    for name, mask in masks.items():
        if mask.all():
            continue
        if not opened.named:
            kept = np.ones_like(mask) if name in held_at else mask
            leaks = _leaks(opened, weights[name], kept)
        elif name in opened.tensors and opened.tensors[name].values.shape == mask.shape:
            leaks = masks_module.leaks({name: opened.tensors[name].values}, {name: mask}, held_at).get(name, 0)
        else:
            raise LotteryError(f"The weight {name!r} is not in the exported file, so nothing was written.")
        if leaks:
            what = "at their held values" if name in held_at else "zero"
            raise LotteryError(
                f"{leaks} masked entries of {name!r} are not {what} in the exported file, so nothing was written; "
                "export another form."
            )
        seen &= leaks is not None
    return seen


def _leaks(opened: Opened, weight: np.ndarray, mask: np.ndarray) -> int | None:
    """Count masked entries that are not zero, in the tensor that fits the weight best; None if no tensor does."""
    found = None
    for values, step in opened.tensors.values():
        step = np.broadcast_to(step, values.shape)
        for arrange in _arrangements(values.shape, weight.shape):
            here = arrange(values)
            leaks = int(np.count_nonzero(here[~mask]))
            if (found is None or leaks < found) and _carries(here, arrange(step), weight, mask):
                found = leaks
                if not found:
                    return 0
    return found


def _arrangements(shape: tuple[int, ...], wanted: tuple[int, ...]) -> Iterator[Callable[[np.ndarray], np.ndarray]]:
    """Yield the ways in which a tensor of one shape may be a weight of another."""

    def without_ones(*sizes: int) -> tuple[int, ...]:
        return tuple(size for size in sizes if size != 1)

    short = without_ones(*shape)
    merged = [without_ones(*wanted)]
    if len(wanted) > 2:
        merged.append(without_ones(*wanted[:-2], math.prod(wanted[-2:])))
        merged.append(without_ones(wanted[0], math.prod(wanted[1:])))
        merged.append(without_ones(math.prod(wanted[:-1]), wanted[-1]))
    for sizes in dict.fromkeys(merged):
        if sorted(sizes) != sorted(short):
            continue
        for order in permutations(range(len(short))):
            if tuple(short[axis] for axis in order) == sizes:
                yield lambda array, order=order: np.squeeze(array).transpose(order).reshape(wanted)


def _carries(values: np.ndarray, step: np.ndarray, weight: np.ndarray, mask: np.ndarray) -> bool:
    """Check if values follow a weight's where it is kept, but for a scale of each output channel."""
    there, kept, rounded = (array[mask].astype(np.float64) for array in (values, weight, step))
    # Zeros follow any weight, at a scale of zero.
    if np.count_nonzero(there) < max(1, np.count_nonzero(kept) / 2):
        return False
    if np.array_equal(there, kept):
        return True
    # The output channels are the last dimension; of a depthwise kernel, the last two.
    for num_axes in (1, 2)[: max(1, weight.ndim - 1)]:
        sizes = weight.shape[weight.ndim - num_axes :]
        channel = np.broadcast_to(np.arange(math.prod(sizes)).reshape(sizes), weight.shape)[mask]
        if kept.size - np.unique(channel).size < _ENOUGH:
            continue
        squares = np.bincount(channel, kept * kept)
        scales = np.divide(np.bincount(channel, kept * there), squares, where=squares > 0, out=np.zeros_like(squares))
        if (np.abs(there - scales[channel] * kept) <= rounded + _ROUNDING * np.abs(there).max()).all():
            return True
    return False
