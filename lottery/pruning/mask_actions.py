"""What masked entries are held at: zero, or their initial value, that at the rewind step.

Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 4.2, "mask-0 actions".
"""

from collections.abc import Callable

import numpy as np

from lottery import masks
from lottery.errors import LotteryError
from lottery.masks import Masks, Weights
from lottery.pruning import rewinding

# From the initial values of a weight and its values after the training that decides which entries to prune: True where
# an entry that is pruned now is held at its initial value, False where it is held at zero.
MaskAction = Callable[[np.ndarray, np.ndarray], np.ndarray]


def zero(initial: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """Hold every masked entry at zero: pruning."""
    return np.zeros(np.shape(initial), bool)


def initial_value(initial: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """Hold every masked entry at its initial value: it is frozen, not pruned."""
    return np.ones(np.shape(initial), bool)


def toward_zero(initial: np.ndarray, trained: np.ndarray) -> np.ndarray:
    """Hold an entry at zero if training moved it toward zero, |w_f| < |w_i|, and at its initial value if not."""
    return ~(np.abs(trained) < np.abs(initial))


# By the name in ``prune.held_at``.
MASK_ACTIONS: dict[str, MaskAction] = {"zero": zero, "initial": initial_value, "toward_zero": toward_zero}


def is_zero(name: str) -> bool:
    """Return True if every masked entry is held at zero."""
    return MASK_ACTIONS[name] is zero


def at_initial(name: str, initial: Weights, trained: Weights, kept: Masks, before: Weights) -> Masks:
    """Decide where a round holds entries at their initial values, if it masks them; the other entries are at zero.

    Args:
        name: A key of `MASK_ACTIONS`. If it holds all entries at zero, nothing is returned.
        initial: The values at the rewind step.
        trained: The values that decide which entries the round prunes.
        kept: The masks that the round prunes further. What they mask stays as it was decided when it was pruned.
        before: The weights at the end of the round before, which show what was decided then.
    """
    if is_zero(name):
        return {}
    for found in (initial, trained, before):
        masks.check(kept, found)
    return {
        # What was decided before is stored nowhere; but a masked entry still has the value that it was held at.
        weight: np.where(mask, MASK_ACTIONS[name](initial[weight], trained[weight]), before[weight] == initial[weight])
        for weight, mask in kept.items()
    }


def values(at_initial: Masks, initial: Weights) -> dict[str, np.ndarray]:
    """Return the values to hold masked entries at, by weight: the initial value or zero."""
    return {name: np.where(where, initial[name], initial[name].dtype.type(0)) for name, where in at_initial.items()}


def sentence(name: str) -> str:
    """Say what density does not mean in a run; empty where masked entries are zero."""
    if is_zero(name):
        return ""
    where = "their initial values" if MASK_ACTIONS[name] is initial_value else "zero or at their initial values"
    return (
        f'Masked weights are held at {where} (prune.held_at = "{name}"): density is the share of weights that train, '
        "not of those that are not zero."
    )


def check(name: str, mode: str, is_scored_untrained: bool, zero_only: bool) -> None:
    """Raise `LotteryError` if masked entries cannot be held so in an experiment."""
    if is_zero(name):
        return
    if not rewinding.REWINDS[mode].has_initial_values:
        raise LotteryError(
            f'prune.held_at must be "zero" with rewind.mode = "{mode}", not "{name}": a round starts from values that '
            "no entry had at the rewind step."
        )
    if is_scored_untrained and MASK_ACTIONS[name] is toward_zero:
        raise LotteryError(
            f'prune.held_at must be "zero" or "initial" with this prune.criterion, not "{name}": it prunes before any '
            "training, which could move an entry toward zero."
        )
    if zero_only:
        raise LotteryError(
            f'prune.held_at must be "zero" with this run.enforcement, not "{name}": it can hold no other value.'
        )
