"""The algorithm: train, prune, rewind, and again."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from lottery import masks
from lottery.masks import Masks
from lottery.training import Trained

Weights = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Round:
    """A round that was trained: its number, what was kept while it trained, and what came out."""

    index: int
    kept: Masks
    trained: Trained


def find_ticket(
    prunable: Weights,
    train: Callable[[int, Masks, Weights], Trained],
    prune: Callable[[int, Weights, Masks], Masks],
    num_rounds: int,
    last: tuple[int, Masks, Weights] | None = None,
) -> Iterator[Round]:
    """Iterative magnitude pruning with rewinding, strategy 1 of Frankle & Carbin 2019, appendix B.

    Args:
        prunable: The weights that masks are for; only names and shapes matter.
        train: Trains round `index` under masks; the third argument are the trained weights of the round before.
        prune: From the round about to begin, trained weights and masks to the masks of that round.
        num_rounds: Rounds after the dense one.
        last: Number, masks and trained weights of a round to go on from.

    Yields:
        Each round once it is trained, from round 0 or the one after `last`.
    """
    index, kept, weights = last or (-1, masks.ones_like(prunable), {})
    while index < num_rounds:
        index += 1
        if index:
            kept = prune(index, weights, kept)
        trained = train(index, kept, weights)
        weights = trained.weights
        yield Round(index, kept, trained)
