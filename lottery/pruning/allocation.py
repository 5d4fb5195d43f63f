"""Allocations: how a density of the whole network is divided among its weights, in whole numbers of entries."""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from lottery.errors import LotteryError
from lottery.masks import Shapes

# How many groups of entries each weight has, where these are pruned whole; None counts entries.
Sizes = Mapping[str, int] | None
# A function of the weights' shapes, a density over all of them, and their sizes: a density for each weight.
Allocation = Callable[[Shapes, float, Sizes], dict[str, float]]


def uniform(shapes: Shapes, density: float, sizes: Sizes = None) -> dict[str, float]:
    """Give every weight the density of all weights together, which must be in [0, 1]."""
    _check(density)
    return dict.fromkeys(shapes, float(density))


def erk(shapes: Shapes, density: float, sizes: Sizes = None) -> dict[str, float]:
    """Keep of each weight a number of entries proportional to the sum of its dimensions (Erdos-Renyi-kernel).

    A kernel of n entries and dimensions d_1, ..., d_k has the density min(1, c (d_1 + ... + d_k) / n), where c is the
    number that meets the density of the whole, in [0, 1]. For matrices that is the random graph of Mocanu et al. 2018,
    https://arxiv.org/abs/1707.04780, equation 1; for convolutions Evci et al. 2020, https://arxiv.org/abs/1911.11134,
    section 3. With `sizes`, n is the number of groups that a kernel has, and so many groups are kept.
    """
    _check(density)
    sizes = sizes or {name: math.prod(shape) for name, shape in shapes.items()}
    # A weight of a single number has no dimensions, and is divided by their sum.
    sums = {name: sum(shape) or 1 for name, shape in shapes.items()}
    found: dict[str, float] = {}
    budget = density * sum(sizes.values())
    while rest := [name for name in shapes if name not in found]:
        factor = budget / sum(sums[name] for name in rest)
        full = [name for name in rest if factor * sums[name] > sizes[name]]
        if not full:
            found |= {name: factor * sums[name] / (sizes[name] or 1) for name in rest}
            break
        # The others share the entries for which a full weight has no room, and may fill up in their turn.
        found |= dict.fromkeys(full, 1.0)
        budget -= sum(sizes[name] for name in full)
    return {name: found[name] for name in shapes}


# With None, each group of weights that are ranked together follows the schedule, or its own rate, by itself.
ALLOCATIONS: dict[str, Allocation | None] = {"rates": None, "uniform": uniform, "erk": erk}


def counts(
    densities: Mapping[str, float], sizes: Mapping[str, int], total: int, most: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Turn densities into whole numbers of entries of sum `total`, by the largest remainder.

    Each weight keeps its density, as the decimal number that is written, times its size, rounded down. The entries
    still missing go to the weights with the largest fractions cut off, the earlier first if equal. A weight that has
    reached `most` (its size by default) passes its share on to the next.

    Raises:
        LotteryError: The total is not the sum of densities times sizes, rounded up or down, or exceeds the limits.
    """
    most = most or sizes
    quotas = {name: Fraction(repr(float(densities[name]))) * size for name, size in sizes.items()}
    # In fractions: a sum of floats may lie on the other side of a whole number.
    meant = sum(quotas.values())
    if not abs(total - meant) < 1 or total > sum(most[name] for name in sizes):
        raise LotteryError(
            f"total must be {float(meant):g}, rounded to a whole number, and no more than may be kept, not {total}."
        )
    # Without `most`, the largest remainder can give a weight more entries of a smaller total, which over rounds would
    # bring pruned entries back.
    kept = {name: min(int(quota), most[name]) for name, quota in quotas.items()}
    in_turn = sorted(quotas, key=lambda name: kept[name] - quotas[name])
    missing = total - sum(kept.values())
    # More than one pass only where `most` has cut something off.
    while missing:
        for name in in_turn:
            more = min(1, missing, most[name] - kept[name])
            kept[name] += more
            missing -= more
    return kept


def _check(density: float) -> None:
    if not 0 <= density <= 1:
        raise LotteryError(f"density must be a number in [0, 1], not {density!r}.")
