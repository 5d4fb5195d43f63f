"""A density for the whole network to densities by weight, and these to whole numbers of entries."""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from lottery.errors import LotteryError

Shapes = Mapping[str, tuple[int, ...]]


Allocation = Callable[[Shapes, float], dict[str, float]]


def uniform(shapes: Shapes, density: float) -> dict[str, float]:
    """The same density for every weight.

    Args:
        shapes: Shapes by weight.
        density: Of all weights together, in [0, 1].

    Returns:
        Densities by weight.

    Raises:
        LotteryError: The density is not in [0, 1].
    """
    _check(density)
    return dict.fromkeys(shapes, float(density))


def erk(shapes: Shapes, density: float) -> dict[str, float]:
    """Erdos-Renyi-kernel: what is kept of a weight is proportional to the sum of its dimensions.

    With n entries in a kernel of dimensions d_1, ..., d_k, its density is min(1, c (d_1 + ... + d_k) / n), where c is
    the one number that meets the density of the whole. For matrices that is the random graph of Mocanu et al. 2018,
    https://arxiv.org/abs/1707.04780, equation 1; with the height and width of a convolution's kernel among the
    dimensions it is that of Evci et al. 2020, https://arxiv.org/abs/1911.11134, section 3.

    Args:
        shapes: Shapes by weight.
        density: Of all weights together, in [0, 1].

    Returns:
        Densities by weight, which times the sizes add up to `density` times the size of all.

    Raises:
        LotteryError: The density is not in [0, 1].
    """
    _check(density)
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    sums = {name: sum(shape) or 1 for name, shape in shapes.items()}
    found: dict[str, float] = {}
    budget = density * sum(sizes.values())
    while rest := [name for name in shapes if name not in found]:
        factor = budget / sum(sums[name] for name in rest)
        full = [name for name in rest if factor * sums[name] > sizes[name]]
        if not full:
            found |= {name: factor * sums[name] / (sizes[name] or 1) for name in rest}
            break
        # What they cannot take is for the others, which may fill up in their turn.
        found |= dict.fromkeys(full, 1.0)
        budget -= sum(sizes[name] for name in full)
    return {name: found[name] for name in shapes}


ALLOCATIONS: dict[str, Allocation] = {"uniform": uniform, "erk": erk}


def counts(
    densities: Mapping[str, float], sizes: Mapping[str, int], total: int, most: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Whole numbers of entries that add up to a total, by the largest remainder.

    Each weight keeps its density times its size, rounded down, and of what is missing to the total one more goes to
    the weights of the largest fractions that were cut off; of equal ones to the earlier. Where a weight may keep no
    more, the next in that order has its share. (By itself the largest remainder can give a weight more entries of a
    smaller total, which over rounds would bring pruned ones back.)

    Args:
        densities: By weight, in [0, 1]; taken as the decimal numbers that they are written as.
        sizes: Number of entries by weight.
        total: What the densities come to, rounded to a whole number, up or down.
        most: The highest number by weight, such as what the round before kept; the sizes if it is not given.

    Returns:
        Numbers of entries by weight, of sum `total`.

    Raises:
        LotteryError: The total is not what the densities come to, or more than may be kept.
    """
    most = sizes if most is None else most
    quotas = {name: Fraction(repr(float(densities[name]))) * size for name, size in sizes.items()}
    meant = sum(quotas.values())
    if not abs(total - meant) < 1 or total > sum(most[name] for name in sizes):
        raise LotteryError(
            f"total: received {total}, allowed is {float(meant):g} rounded to a whole number, and no more than may be "
            "kept."
        )
    kept = {name: min(int(quota), most[name]) for name, quota in quotas.items()}
    in_turn = sorted(quotas, key=lambda name: kept[name] - quotas[name])
    missing = total - sum(kept.values())
    while missing:
        for name in in_turn:
            more = min(1, missing, most[name] - kept[name])
            kept[name] += more
            missing -= more
    return kept


def _check(density: float) -> None:
    if not 0 <= density <= 1:
        raise LotteryError(f"density: received {density!r}, allowed is a number in [0, 1].")
