"""Branches: experiments that start from a stored round, and keep or change parts of its ticket."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lottery import masks, randomness
from lottery.masks import Masks, Weights
from lottery.pruning import rewinding


@dataclass(frozen=True)
class StoredTicket:
    """The round that a branch starts from."""

    kept: Masks
    start: Weights  # every variable that the ticket's training started from, not masked; see `rewinding.REWINDS`
    step: int  # the rewind step
    num_steps: int  # the step at which training ends
    rng: np.random.Generator  # for this branch of this round and replicate alone
    fresh: Callable[[], Weights]  # draws every variable anew, as for another replicate
    drawn_early: Callable[[], "BranchStart"]  # trains the dense network and draws masks from it; see `early_bird`


@dataclass(frozen=True)
class BranchStart:
    """The network that a branch trains from the variables `start` under the masks `kept`."""

    start: Weights
    kept: Masks
    first_step: int
    last_step: int  # nothing is trained if it equals the first
    schedule_step: int | None = None  # where in its schedule the learning rate starts; None: where the ticket's does


# A function of a stored ticket: the network that the branch trains.
BranchFunction = Callable[[StoredTicket], BranchStart]


@dataclass(frozen=True)
class Branch:
    """A branch with a name, and what the verdict, the configuration and the verification need to know of it."""

    function: BranchFunction
    takes_away: str = ""  # part of the ticket; completes "so ... matters" in the verdict, or is empty to say nothing
    is_control: bool = True  # `run.controls` may name it
    starts: Literal["initial", "rewind", "end"] = "rewind"  # training, at: step 0, the rewind step, the last step
    needs_model: tuple[Literal["masks", "start weights"], ...] = ()  # cannot be made again from a run's files alone
    other_data: bool = False  # so its accuracies cannot be compared with the ticket's


def random_reinit(ticket: StoredTicket) -> BranchStart:
    """The ticket's masks on newly drawn initial weights, trained from step 0: does the initialisation matter?

    Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635, section 2.
    """
    return BranchStart(ticket.fresh(), ticket.kept, 0, ticket.num_steps, schedule_step=0)


def random_mask(ticket: StoredTicket) -> BranchStart:
    """The ticket's start weights under random masks that keep as many entries of each weight: do the masks matter?

    "Random pruning", layer by layer; Frankle et al. 2021, https://arxiv.org/abs/2009.08576, section 3.
    """
    kept = {name: _random(mask.shape, int(np.count_nonzero(mask)), ticket.rng) for name, mask in ticket.kept.items()}
    return BranchStart(ticket.start, kept, ticket.step, ticket.num_steps)


def random_mask_global(ticket: StoredTicket) -> BranchStart:
    """The ticket's start weights under random masks that keep as many entries in all, whichever weight they are of.

    Frankle et al. 2021, https://arxiv.org/abs/2009.08576; each weight is left with about the same density.
    """
    sizes = [mask.size for mask in ticket.kept.values()]
    whole = _random((sum(sizes),), sum(masks.num_kept(ticket.kept).values()), ticket.rng)
    parts = np.split(whole, np.cumsum(sizes)[:-1])
    kept = {name: part.reshape(mask.shape) for (name, mask), part in zip(ticket.kept.items(), parts, strict=True)}
    return BranchStart(ticket.start, kept, ticket.step, ticket.num_steps)


def shuffled_mask(ticket: StoredTicket) -> BranchStart:
    """The ticket's start weights under its masks, the entries of each weight's mask shuffled: another `random_mask`.

    The sanity check of Frankle et al. 2021, https://arxiv.org/abs/2009.08576, section 4, and Su et al. 2020,
    https://arxiv.org/abs/2009.11094: only the proportions of the layers are kept.
    """
    kept = {name: ticket.rng.permutation(mask.reshape(-1)).reshape(mask.shape) for name, mask in ticket.kept.items()}
    return BranchStart(ticket.start, kept, ticket.step, ticket.num_steps)


def reshuffled_init(ticket: StoredTicket) -> BranchStart:
    """The ticket's masks, the start weights that survive shuffled among themselves, weight by weight.

    "Reshuffle" of Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 4.1.
    """
    start = dict(ticket.start)
    for name, mask in ticket.kept.items():
        start[name] = start[name].copy()
        start[name][mask] = ticket.rng.permutation(start[name][mask])
    return BranchStart(start, ticket.kept, ticket.step, ticket.num_steps)


def signed_constant(ticket: StoredTicket) -> BranchStart:
    """The ticket's masks and the signs of its start weights, all of one size: do only the signs matter?

    "Init sign, constant" of Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 4.1; see `rewinding.to_signs`.
    """
    start = rewinding.to_signs(ticket.start, ticket.start, ticket.kept)
    return BranchStart(start, ticket.kept, ticket.step, ticket.num_steps)


def untrained(ticket: StoredTicket) -> BranchStart:
    """The ticket not trained: "supermasks" of Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 5."""
    return BranchStart(ticket.start, ticket.kept, ticket.step, ticket.step)


def early_bird(ticket: StoredTicket) -> BranchStart:
    """A mask from early training: drawn as soon as the masks of five epochs of dense training hardly differ.

    After You et al. 2020, https://arxiv.org/abs/1909.11957, section 3, who draw masks of channels; here they are of
    weights. After each epoch the dense network is pruned to this round's counts, and once the last five masks differ
    pairwise in at most 0.1 of all entries, the last one is the ticket; it trains on from the weights of that epoch.
    Masks of density d cannot differ by more than 2 d: below 0.05 the fifth is always drawn.
    """
    return ticket.drawn_early()


def transfer(ticket: StoredTicket) -> BranchStart:
    """The ticket itself, trained on another data set: Morcos et al. 2019, https://arxiv.org/abs/1906.02773."""
    return BranchStart(ticket.start, ticket.kept, ticket.step, ticket.num_steps)


# By the name in ``run.controls`` and `lottery branch`.
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
