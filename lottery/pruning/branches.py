"""Branches: experiments that start from a stored round, and keep or change parts of its ticket."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from lottery import masks, randomness
from lottery.masks import Change, Masks, Weights
from lottery.pruning import allocation, dynamic, mask_actions, rewinding, supermasks
from lottery.pruning.rewinding import Start


@dataclass(frozen=True)
class StoredTicket:
    """The round that a branch starts from."""

    kept: Masks
    start: Weights  # every variable that the ticket's training started from, not masked; see `rewinding.REWINDS`
    step: int  # the rewind step
    num_steps: int  # the step at which training ends
    rng: np.random.Generator  # for this branch of this round and replicate alone
    # Draws every variable anew, as for another replicate; the signs of those where rounds start from signs.
    fresh: Callable[[], Weights]
    initial: Weights = field(default_factory=dict)  # every variable at step 0
    spent: int = 0  # steps of all trainings that led to the ticket, with its own
    gradients: dynamic.Gradients = dynamic.no_gradients
    # Learns masks while the weights stay fixed; see `supermask`.
    learned: Callable[[], "BranchStart"] = supermasks.no_learning
    # True where an entry, if masked, is held at its initial value; empty for zero. See `mask_actions.at_initial`.
    at_initial: Masks = field(default_factory=dict)
    held_at: Weights = field(default_factory=dict)  # the value of every entry, if masked; empty for zero
    # Draws masks at random that prune as many whole groups of each weight; None where entries are pruned one by one.
    shuffled: Callable[[np.random.Generator], Masks] | None = None
    trained: Callable[[], Weights] = dict  # reads every variable at the end of the training whose weights were pruned


@dataclass(frozen=True)
class BranchStart:
    """The network that a branch trains from the variables `start` under the masks `kept`."""

    start: Weights
    kept: Masks
    first_step: int
    last_step: int  # nothing is trained if it equals the first
    schedule_step: int | None = None  # where in its schedule the learning rate starts; None: where the ticket's does
    changes: Mapping[int, Change] = field(default_factory=dict)  # by the step after which the masks change
    # Entries to add to the network's record. Of a function of the user's, two tell what the network costs:
    # "dense_gradients", how many gradients of all entries its changes take, by default 0; and "needs_ticket", whether
    # it takes the trainings that led to the ticket, by default True.
    details: Mapping[str, Any] = field(default_factory=dict)
    held_at: Weights | None = None  # values of masked entries, arrays by weight; None: by the ticket's own `held_at`

    def held_in(self, ticket: StoredTicket) -> Weights:
        """Return the values to hold masked entries at, of a branch from a ticket; empty for zero."""
        return ticket.held_at if self.held_at is None else self.held_at


# A function of a stored ticket: the network that the branch trains.
BranchFunction = Callable[[StoredTicket], BranchStart]


@dataclass(frozen=True)
class Branch:
    """A branch with a name, and what the verdict, the configuration and the verification need to know of it.

    Where a text depends on what the ticket starts from, it is a table with a text for each `rewinding.Start`. In it
    ``{step}`` stands for the rewind step.
    """

    function: BranchFunction
    takes_away: str | Mapping[Start, str] = ""  # see `fairness.Comparison`
    # A control takes something away from the ticket, and is meant to do worse; an alternative is another way to a
    # network of its density. `run.controls` may name both.
    kind: Literal["control", "alternative", "other"] = "control"
    learns: bool = False  # masks, by training scores
    starts: Literal["initial", "rewind", "end"] = "rewind"  # training, at: step 0, the rewind step, the last step
    trains_on: bool = False  # from weights at the end of a training, which are not set back
    # Its masks or its start take the trainings that led to the ticket; else it needs at most counts of the ticket.
    needs_ticket: bool = True
    needs_gradients: bool = False  # of masked entries, for each change of its masks
    is_long: bool = False  # it trains for as many steps as all trainings that led to the ticket
    needs_model: tuple[Literal["masks", "start weights"], ...] = ()  # cannot be made again from a run's files alone
    other_data: bool = False  # so its accuracies cannot be compared with the ticket's
    starts_from: str | Mapping[Start, str] = "the ticket's start weights"
    past: str = "as the ticket's"
    refused: Mapping[Start, str] = field(default_factory=dict)  # a start that is missing is fair
    refused_held: str = ""  # why it is refused beside tickets whose masked entries are not all held at zero; or empty
    of_entries: bool = False  # prunes entries one by one, whatever the ticket's granularity, so it lacks its structure


def random_reinit(ticket: StoredTicket) -> BranchStart:
    """The ticket's masks on newly drawn initial weights, trained from step 0: does the initialisation matter?

    Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635, section 2. It trains for all steps, as the dense network
    does. Beside a ticket that is rewound to step k it lacks the k dense steps, so the two together are what it shows.
    """
    start = ticket.fresh()
    held_at = mask_actions.values(ticket.at_initial, start)
    return BranchStart(start, ticket.kept, 0, ticket.num_steps, schedule_step=0, held_at=held_at)


def random_mask(ticket: StoredTicket) -> BranchStart:
    """The ticket's start weights under random masks that keep as many entries of each weight: do the masks matter?

    "Random pruning", layer by layer; Frankle et al. 2021, https://arxiv.org/abs/2009.08576, section 3. Where units,
    channels or blocks are pruned, as many of them, whole, at random; of n in m, n at random.
    """
    if ticket.shuffled:
        return BranchStart(ticket.start, ticket.shuffled(ticket.rng), ticket.step, ticket.num_steps)
    kept = {name: _drawn(mask.shape, int(np.count_nonzero(mask)), ticket.rng) for name, mask in ticket.kept.items()}
    return BranchStart(ticket.start, kept, ticket.step, ticket.num_steps)


def random_mask_global(ticket: StoredTicket) -> BranchStart:
    """The ticket's start weights under random masks that keep as many entries in all, whichever weight they are of.

    Frankle et al. 2021, https://arxiv.org/abs/2009.08576; each weight is left with about the same density.
    """
    sizes = [mask.size for mask in ticket.kept.values()]
    whole = _drawn((sum(sizes),), masks.total_kept(ticket.kept), ticket.rng)
    parts = np.split(whole, np.cumsum(sizes)[:-1])
    kept = {name: part.reshape(mask.shape) for (name, mask), part in zip(ticket.kept.items(), parts, strict=True)}
    return BranchStart(ticket.start, kept, ticket.step, ticket.num_steps)


def shuffled_mask(ticket: StoredTicket) -> BranchStart:
    """The ticket's start weights under its masks, the entries of each weight's mask shuffled: another `random_mask`.

    The sanity check of Frankle et al. 2021, https://arxiv.org/abs/2009.08576, section 4, and Su et al. 2020,
    https://arxiv.org/abs/2009.11094: only the proportions of the layers are kept. Groups are shuffled whole.
    """
    if ticket.shuffled:
        return BranchStart(ticket.start, ticket.shuffled(ticket.rng), ticket.step, ticket.num_steps)
    kept = {name: ticket.rng.permutation(mask.reshape(-1)).reshape(mask.shape) for name, mask in ticket.kept.items()}
    return BranchStart(ticket.start, kept, ticket.step, ticket.num_steps)


def reshuffled_init(ticket: StoredTicket) -> BranchStart:
    """The ticket's masks, the start weights that survive shuffled among themselves, weight by weight.

    "Reshuffle" of Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 4.1, under the masks of the ticket; see
    `rewinding.to_shuffled`. The paper finds masks anew from that start in every round, as the rewinding mode
    ``reshuffled`` does.
    """
    start = rewinding.to_shuffled(ticket.start, ticket.start, ticket.kept, ticket.rng)
    return BranchStart(start, ticket.kept, ticket.step, ticket.num_steps)


def signed_constant(ticket: StoredTicket) -> BranchStart:
    """The ticket's masks and the signs of its start weights, all of one size: do only the signs matter?

    "Init sign, constant" of Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 4.1, under the masks of the
    ticket; see `rewinding.to_signs`. The paper finds masks anew from that start in every round, as the rewinding mode
    ``sign`` does.
    """
    start = rewinding.to_signs(ticket.start, ticket.start, ticket.kept, ticket.rng)
    held_at = mask_actions.values(ticket.at_initial, start)
    return BranchStart(start, ticket.kept, ticket.step, ticket.num_steps, held_at=held_at)


def untrained(ticket: StoredTicket) -> BranchStart:
    """The ticket not trained: "supermasks" of Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 5."""
    return BranchStart(ticket.start, ticket.kept, ticket.step, ticket.step)


def untrained_rescaled(ticket: StoredTicket) -> BranchStart:
    """The ticket not trained, each weight multiplied by the number of its entries over the number that is kept.

    "Dynamic weight rescaling" of Zhou et al. 2019, https://arxiv.org/abs/1905.01067, section 5: what a unit receives
    stays about as large as in the dense network, though most of its inputs are zero. It changes the loss. The accuracy
    of relu layers with biases at zero stays, because they pass a factor on.
    """
    start = dict(ticket.start)
    for name, num in masks.num_kept(ticket.kept).items():
        if num:
            start[name] = (start[name] * (start[name].size / num)).astype(start[name].dtype)
    return BranchStart(start, ticket.kept, ticket.step, ticket.step)


def supermask(ticket: StoredTicket) -> BranchStart:
    """A mask that is learned by edge-popup while the weights stay fixed, with as many entries of each weight.

    Ramanujan et al. 2020, https://arxiv.org/abs/1911.13299, section 3. Each entry has a score s. The network computes
    with w * h(|s|), where h is 1 for as many entries of each weight as the ticket keeps, those of the largest |s|, and
    0 for the others, as in the authors' code. The gradient goes straight through h: for the loss L, and the entry
    v = w * h(|s|) that the network computes with, dL/ds = sign(s) * w * dL/dv. The fixed weights w are
    `supermasks.fixed_weights` of the initial weights; biases, scales and shifts stay at their initial values. The
    scores begin uniform, as the authors' do, and are trained for all steps by Adam with a rate of 0.0012 that falls to
    zero along a cosine, whatever optimizer the run has. (The authors use SGD with momentum for a hundred epochs.) Then
    nothing more is trained.
    """
    return ticket.learned()


def transfer(ticket: StoredTicket) -> BranchStart:
    """The ticket itself, trained on another data set: Morcos et al. 2019, https://arxiv.org/abs/1906.02773."""
    return BranchStart(ticket.start, ticket.kept, ticket.step, ticket.num_steps)


def random_mask_erk(ticket: StoredTicket) -> BranchStart:
    """The ticket's start weights under random masks that keep as many entries in all, divided by Erdos-Renyi-kernel.

    See `allocation.erk`; Liu et al. 2022, https://arxiv.org/abs/2202.02643, find such masks hard to beat.
    """
    return BranchStart(ticket.start, _random_by_erk(ticket), ticket.step, ticket.num_steps)


def static_long(ticket: StoredTicket) -> BranchStart:
    """Random masks that stay, divided by Erdos-Renyi-kernel, for as many steps as all trainings that led to the ticket.

    "Static" of Evci et al. 2020, https://arxiv.org/abs/1911.11134: beside `set_long` and `rigl_long` it shows what the
    changes of masks are worth. It trains from step 0.
    """
    return BranchStart(ticket.initial, _random_by_erk(ticket), 0, ticket.spent, 0)


def gradual(ticket: StoredTicket) -> BranchStart:
    """Pruning in one training: magnitude pruning along a cubic ramp, to as many entries of each weight as the ticket.

    Zhu & Gupta 2017, https://arxiv.org/abs/1710.01878; see `dynamic.gradual`. It trains from step 0, for as many steps
    as the dense network.
    """
    sizes = {name: mask.size for name, mask in ticket.kept.items()}
    changes = dynamic.gradual(sizes, masks.num_kept(ticket.kept), ticket.num_steps)
    return BranchStart(ticket.initial, masks.ones_like(ticket.kept), 0, ticket.num_steps, 0, changes)


def gradual_long(ticket: StoredTicket) -> BranchStart:
    """As `gradual`, for as many steps as all trainings that led to the ticket, with its own."""
    return gradual(replace(ticket, num_steps=ticket.spent))


def set(ticket: StoredTicket) -> BranchStart:
    """Sparse evolutionary training: from random masks, weak entries are replaced by others, at random.

    Mocanu et al. 2018, https://arxiv.org/abs/1707.04780; see `dynamic.set_`. It keeps as many entries as the ticket,
    divided among the weights by Erdos-Renyi-kernel (`allocation.erk`), and trains from step 0, for as many steps as the
    dense network.
    """
    kept = _random_by_erk(ticket)
    # A seed, of which each change makes a generator: the state of a single one would have to be in every checkpoint.
    changes = dynamic.set_(masks.num_kept(kept), ticket.num_steps, int(ticket.rng.integers(2**63)))
    return BranchStart(ticket.initial, kept, 0, ticket.num_steps, 0, changes)


def set_long(ticket: StoredTicket) -> BranchStart:
    """As `set`, for as many steps as all trainings that led to the ticket, with its own."""
    # The branch above, which hides Python's own.
    return set(replace(ticket, num_steps=ticket.spent))


def rigl(ticket: StoredTicket) -> BranchStart:
    """Rigging the lottery: from random masks, weak entries are replaced by those with the largest gradients.

    Evci et al. 2020, https://arxiv.org/abs/1911.11134; see `dynamic.rigl`. It keeps as many entries as the ticket,
    divided among the weights by Erdos-Renyi-kernel (`allocation.erk`), and trains from step 0, for as many steps as the
    dense network.
    """
    kept = _random_by_erk(ticket)
    changes = dynamic.rigl(masks.num_kept(kept), ticket.num_steps, ticket.gradients)
    return BranchStart(ticket.initial, kept, 0, ticket.num_steps, 0, changes)


def rigl_long(ticket: StoredTicket) -> BranchStart:
    """As `rigl`, for as many steps as all trainings that led to the ticket, with its own."""
    return rigl(replace(ticket, num_steps=ticket.spent))


def learning_rate_rewinding(ticket: StoredTicket) -> BranchStart:
    """The ticket's masks on trained weights, with the learning rate of the ticket: are survivors better not set back?

    Learning-rate rewinding of Renda, Frankle & Carbin 2020, https://arxiv.org/abs/2003.02389, section 2, of one round:
    survivors continue from the end of the training whose weights were pruned, and the masks are the ticket's. The
    rewinding mode ``learning_rate`` finds masks anew in every round of such trainings.
    """
    return BranchStart(ticket.trained(), ticket.kept, ticket.step, ticket.num_steps, schedule_step=ticket.step)


def fine_tuning(ticket: StoredTicket) -> BranchStart:
    """As `learning_rate_rewinding`, with the learning rate at which training ended, which stays: fine-tuning."""
    return BranchStart(ticket.trained(), ticket.kept, ticket.step, ticket.num_steps, schedule_step=ticket.num_steps)


_DEAD = (
    "most entries that a random mask keeps are zero in the trained weights that the ticket starts from; prune at "
    'random in a run of its own (prune.criterion = "random") and use lottery compare'
)
_UNDONE = (
    "the ticket starts from weights that were trained in every round before it, and this network lacks that training; "
    'use a run of rewind.mode = "weights"'
)
_TRAINING: Mapping[Start, str] = {
    "initial": "training",
    "late": "training after step {step}",
    "signs": "training",
    "shuffled": "training",
    "trained": "training after pruning",
}
_WHICH_SIGN = "which weight starts with which sign"


def _random(function: BranchFunction, takes_away: str = "which weights are kept", of_entries: bool = False) -> Branch:
    """A control under random masks, which is unfair beside tickets that start from trained weights."""
    return Branch(function, takes_away, needs_ticket=False, refused={"trained": _DEAD}, of_entries=of_entries)


def _alternative(function: BranchFunction, **facts: Any) -> Branch:
    """An alternative to tickets, which trains the dense network's initial weights; `facts` says where it differs."""
    usual: dict[str, Any] = {
        "needs_model": ("masks",),
        "starts_from": "the dense network's initial weights",
        "refused_held": "it prunes to zero, and here masked entries are held at other values",
    }
    return Branch(
        function, kind="alternative", starts="initial", needs_ticket=False, past="not at all", **(usual | facts)
    )


def _retraining(function: BranchFunction) -> Branch:
    """An alternative that trains survivors on, under the ticket's masks."""
    return Branch(
        function,
        kind="alternative",
        trains_on=True,
        starts_from="the weights at the end of the training that was pruned",
        past="in all trainings before",
        refused={"trained": 'the ticket itself is trained on; use a run of rewind.mode = "weights"'},
    )


# By the name in ``run.controls`` and `lottery branch`.
BRANCHES: dict[str, Branch] = {
    "random_reinit": Branch(
        random_reinit,
        {
            "initial": "the initialisation",
            "late": "the initialisation with its first {step} steps",
            "signs": _WHICH_SIGN,
            "shuffled": "the initialisation",
        },
        starts="initial",
        needs_model=("start weights",),
        starts_from={
            "initial": "newly drawn weights",
            "late": "newly drawn weights",
            "signs": "the signs of newly drawn weights, all of one size",
            "shuffled": "newly drawn weights",
        },
        past="not at all",
        refused={"trained": _UNDONE},
    ),
    "random_mask": _random(random_mask),
    "random_mask_global": _random(random_mask_global, of_entries=True),
    "shuffled_mask": _random(shuffled_mask, "which weights are kept in each layer"),
    "reshuffled_init": Branch(
        reshuffled_init,
        {
            "initial": "which weight has which initial value",
            "late": "which weight has which value at step {step}",
            "signs": _WHICH_SIGN,
            "shuffled": "which weight starts with which value",
        },
        starts_from="the ticket's start weights, those that survive shuffled within each layer",
        past="as the ticket's, in other places",
        refused={"trained": _UNDONE},
    ),
    "signed_constant": Branch(
        signed_constant,
        {
            "initial": "the size of the initial weights",
            "late": "the size of the weights at step {step}",
            "shuffled": "the size of the start weights",
        },
        starts_from="the signs of the ticket's start weights, all of one size",
        past="as the ticket's, of which the signs are left",
        refused={"signs": "the ticket itself starts from signs of one size", "trained": _UNDONE},
    ),
    "untrained": Branch(untrained, _TRAINING, starts="end"),
    "untrained_rescaled": Branch(
        untrained_rescaled,
        _TRAINING,
        starts="end",
        starts_from="the ticket's start weights, each layer's multiplied by its entries over those that are kept",
        refused_held="its factor makes up for entries at zero, and here masked entries are held at other values",
    ),
    "random_mask_erk": _random(random_mask_erk, of_entries=True),
    "gradual": _alternative(gradual),
    "gradual_long": _alternative(gradual_long, is_long=True),
    "set": _alternative(set),
    "set_long": _alternative(set_long, is_long=True),
    "rigl": _alternative(rigl, needs_gradients=True),
    "rigl_long": _alternative(rigl_long, needs_gradients=True, is_long=True),
    # Its masks are drawn at random, and stay, so that a run's files are enough to draw them again.
    "static_long": _alternative(static_long, is_long=True, needs_model=()),
    "supermask": _alternative(
        supermask,
        learns=True,  # it trains scores from step 0, and nothing after them
        starts_from="the signs of the dense network's initial weights, all of one size in a layer, which stay",
    ),
    "learning_rate_rewinding": _retraining(learning_rate_rewinding),
    "fine_tuning": _retraining(fine_tuning),
    "transfer": Branch(transfer, kind="other", other_data=True),
}


def controls() -> list[str]:
    """List the branches that ``run.controls`` may name."""
    return [name for name, branch in BRANCHES.items() if branch.kind != "other"]


def find(label: str) -> Branch | None:
    """Find the branch that is stored under a label, such as ``transfer-digits``; None for a function of the user's."""
    return BRANCHES.get(label.partition("-")[0])


def trains_on(label: str, mode: str) -> bool:
    """Return True if a network, in a run with a rewinding mode, begins with weights at the end of a training."""
    known = find(label)
    return not rewinding.REWINDS[mode].trains_again or (known is not None and known.trains_on)


def kept_steps(start: BranchStart) -> dict[str, int]:
    """Sum up, over the steps of a training whose masks change, the entries that are kept of each weight."""
    changes = {start.first_step: masks.num_kept(start.kept)}
    changes |= {step: change.num_kept for step, change in sorted(start.changes.items())}
    ends = [*changes, start.last_step][1:]
    total = dict.fromkeys(start.kept, 0)
    for (step, counts), end in zip(changes.items(), ends, strict=True):
        total = {name: count + (end - step) * counts[name] for name, count in total.items()}
    return total


def rng_for(seed: int, replicate: int, index: int, label: str) -> np.random.Generator:
    """The random numbers of a branch from a round of a replicate."""
    return randomness.generator(*words_for(seed, replicate, index, label))


def words_for(seed: int, replicate: int, index: int, label: str) -> tuple[int, ...]:
    """The seed words of a branch from a round of a replicate."""
    # By a checksum of the label, and not Python's hash, which is another in each process.
    return seed, replicate, randomness.BRANCH, index, zlib.crc32(label.encode())


def _random_by_erk(ticket: StoredTicket) -> Masks:
    shapes = masks.shapes(ticket.kept)
    densities = allocation.erk(shapes, masks.density(ticket.kept))
    sizes = {name: mask.size for name, mask in ticket.kept.items()}
    # By the number itself, which the density, as a float, may miss.
    counts = allocation.counts(densities, sizes, masks.total_kept(ticket.kept))
    return {name: _drawn(shape, counts[name], ticket.rng) for name, shape in shapes.items()}


def _drawn(shape: tuple[int, ...], count: int, rng: np.random.Generator) -> np.ndarray:
    mask = np.zeros(int(np.prod(shape)), dtype=bool)
    mask[rng.choice(mask.size, size=count, replace=False)] = True
    return mask.reshape(shape)
