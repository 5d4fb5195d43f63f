"""Experiments that start from a stored round: what each keeps of the ticket, and what it changes."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lottery import masks as masks_module
from lottery import randomness
from lottery.masks import Masks
from lottery.pruning import rewinding

State = dict[str, np.ndarray]


@dataclass(frozen=True)
class StoredTicket:
    """The round that a branch starts from.

    Attributes:
        kept: The ticket's masks.
        start: Every variable as the ticket's round began with it (see `rewinding.REWINDS`), not masked, by name.
        step: The rewind step.
        num_steps: The step at which training ends.
        rng: Random numbers of this branch from this round of this replicate, and of nothing else.
        fresh: Draws every variable anew, as for another replicate.
        drawn_early: Trains the dense network and draws this round's masks from it after each epoch; see `early_bird`.
    """

    kept: Masks
    start: Mapping[str, np.ndarray]
    step: int
    num_steps: int
    rng: np.random.Generator
    fresh: Callable[[], State]
    drawn_early: Callable[[], "BranchStart"]


@dataclass(frozen=True)
class BranchStart:
    """What a branch trains.

    Attributes:
        start: From which variables.
        kept: Under which masks.
        first_step, last_step: From which step to which; it is not trained at all if the two are the same.
        schedule_step: Where in its schedule the learning rate begins; where the ticket's does, if None.
    """

    start: Mapping[str, np.ndarray]
    kept: Masks
    first_step: int
    last_step: int
    schedule_step: int | None = None


BranchFunction = Callable[[StoredTicket], BranchStart]


@dataclass(frozen=True)
class Branch:
    """A branch that can be named.

    Attributes:
        function: Makes what is trained from the stored round.
        takes_away: What it takes away from the ticket: completes "so ... matters". Empty if that says nothing.
        is_control: Whether ``run.controls`` may name it.
        starts: Where its training starts: at step 0, at the rewind step as the ticket's, or where training ends.
        needs_model: Which parts of it cannot be made again from a run's files alone.
        other_data: Whether it is trained on another data set, so that its accuracies are not the ticket's.
    """

    function: BranchFunction
    takes_away: str = ""
    is_control: bool = True
    starts: Literal["initial", "rewind", "end"] = "rewind"
    needs_model: tuple[Literal["masks", "start weights"], ...] = ()
    other_data: bool = False


def random_reinit(origin: StoredTicket) -> BranchStart:
    """The ticket's masks on newly drawn initial weights, trained from step 0: does the initialisation matter?

    Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635, section 2.
    """
    return BranchStart(origin.fresh(), origin.kept, 0, origin.num_steps, schedule_step=0)


def random_mask(origin: StoredTicket) -> BranchStart:
    """The ticket's start weights under random masks that keep as many entries of each weight: do the masks matter?

    "Random pruning", layer by layer; Frankle et al. 2021, https://arxiv.org/abs/2009.08576, section 3.
    """
    kept = {name: _random(mask.shape, int(np.count_nonzero(mask)), origin.rng) for name, mask in origin.kept.items()}
    return BranchStart(origin.start, kept, origin.step, origin.num_steps)


def random_mask_global(origin: StoredTicket) -> BranchStart:
    """The ticket's start weights under random masks that keep as many entries in all, whichever weight they are of.

    Frankle et al. 2021, https://arxiv.org/abs/2009.08576; each weight is left with about the same density.
    """
    sizes = [mask.size for mask in origin.kept.values()]
    whole = _random((sum(sizes),), sum(masks_module.num_kept(origin.kept).values()), origin.rng)
    parts = np.split(whole, np.cumsum(sizes)[:-1])
    kept = {name: part.reshape(mask.shape) for (name, mask), part in zip(origin.kept.items(), parts, strict=True)}
    return BranchStart(origin.start, kept, origin.step, origin.num_steps)


def shuffled_mask(origin: StoredTicket) -> BranchStart:
    """The ticket's start weights under its masks, the entries of each weight's mask shuffled.

    The sanity check of Frankle et al. 2021, https://arxiv.org/abs/2009.08576, section 4, and Su et al. 2020,
    https://arxiv.org/abs/2009.11094: only the proportions of the layers are kept. Masks are distributed as those of
    `random_mask`, of which this is another draw; the papers report them by these two names.
    """
    kept = {name: origin.rng.permutation(mask.reshape(-1)).reshape(mask.shape) for name, mask in origin.kept.items()}
    return BranchStart(origin.start, kept, origin.step, origin.num_steps)


def reshuffled_init(origin: StoredTicket) -> BranchStart:
    """The ticket's masks, the start weights that survive shuffled among themselves, weight by weight.

    "Reshuffle" of Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 4.1: the distribution of the start
    weights is kept, and their places are not.
    """
    start = dict(origin.start)
    for name, mask in origin.kept.items():
        start[name] = start[name].copy()
        start[name][mask] = origin.rng.permutation(start[name][mask])
    return BranchStart(start, origin.kept, origin.step, origin.num_steps)


def signed_constant(origin: StoredTicket) -> BranchStart:
    """The ticket's masks and the signs of its start weights, all of one size: do only the signs matter?

    "Init sign, constant" of Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 4.1; see `rewinding.to_signs`.
    """
    return BranchStart(
        rewinding.to_signs(origin.start, origin.start, origin.kept), origin.kept, origin.step, origin.num_steps
    )


def untrained(origin: StoredTicket) -> BranchStart:
    """The ticket before any training: the accuracy of its masks alone.

    "Supermasks" of Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 5.
    """
    return BranchStart(origin.start, origin.kept, origin.step, origin.step)


def early_bird(origin: StoredTicket) -> BranchStart:
    """A mask that is drawn early: once the masks of five epochs of dense training hardly differ any more.

    After You et al. 2020, https://arxiv.org/abs/1909.11957, section 3, who draw masks of channels; here they are of
    weights. After each epoch the dense network is pruned to this round's counts, and once the last five masks differ
    pairwise in at most 0.1 of all entries, the last one is the ticket; it trains on from the weights of that epoch.
    Masks of density d cannot differ by more than 2 d: below 0.05 the fifth is always drawn.
    """
    return origin.drawn_early()


def transfer(origin: StoredTicket) -> BranchStart:
    """The ticket itself, trained on another data set.

    Morcos et al. 2019, https://arxiv.org/abs/1906.02773.
    """
    return BranchStart(origin.start, origin.kept, origin.step, origin.num_steps)


BRANCHES: dict[str, Branch] = {
    "random_reinit": Branch(random_reinit, "the initialisation", starts="initial", needs_model=("start weights",)),
    "random_mask": Branch(random_mask, "which weights are kept"),
    "random_mask_global": Branch(random_mask_global, "which weights are kept"),
    "shuffled_mask": Branch(shuffled_mask, "which weights are kept in each layer"),
    "reshuffled_init": Branch(reshuffled_init, "the initialisation"),
    "signed_constant": Branch(signed_constant, "the size of the initial weights"),
    "untrained": Branch(untrained, "training", starts="end"),
    "early_bird": Branch(early_bird, is_control=False, starts="initial", needs_model=("masks", "start weights")),
    "transfer": Branch(transfer, is_control=False, other_data=True),
}


def controls() -> list[str]:
    """List the branches that ``run.controls`` may name."""
    return [name for name, branch in BRANCHES.items() if branch.is_control]


def find(label: str) -> Branch | None:
    """Find the branch that is stored under a label, such as ``transfer-digits``; None for a function of the user's."""
    return BRANCHES.get(label.partition("-")[0])


def rng_for(seed: int, replicate: int, index: int, label: str) -> np.random.Generator:
    """The random numbers of a branch from a round of a replicate."""
    return randomness.generator(seed, replicate, randomness.BRANCH, index, zlib.crc32(label.encode()))


def _random(shape: tuple[int, ...], count: int, rng: np.random.Generator) -> np.ndarray:
    mask = np.zeros(int(np.prod(shape)), dtype=bool)
    mask[rng.choice(mask.size, size=count, replace=False)] = True
    return mask.reshape(shape)
