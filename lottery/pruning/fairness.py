"""Which branches can be compared fairly with a run's tickets, and what a comparison shows."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lottery.errors import LotteryError
from lottery.pruning import mask_actions, rewinding
from lottery.pruning.branches import BRANCHES, Branch, find
from lottery.pruning.criteria import facts
from lottery.pruning.rewinding import Start

if TYPE_CHECKING:
    from lottery.pruning.settings import Prune, Rewind


@dataclass(frozen=True)
class Comparison:
    """What a branch is beside a ticket that starts from one kind of weights; see `rewinding.start_of`."""

    starts_from: str
    past: str  # for how long its start weights have been trained
    takes_away: str  # part of the ticket; completes "so ... matters" in the verdict, or is empty to say nothing
    refused: str  # why the two cannot be compared fairly, so that nothing is claimed of the ticket; or empty


def beside(branch: Branch, start: Start, step: int | str = "k", held_at: str = "zero") -> Comparison:
    """Compare a branch with a ticket that starts from one kind of weights, and holds masked entries at `held_at`."""

    def text(of: str | Mapping[Start, str]) -> str:
        chosen = of if isinstance(of, str) else of.get(start, "")
        return chosen.format(step=f"{step:,}" if isinstance(step, int) else step)

    refused = text(branch.refused)
    # Of two reasons the first is said: one sentence is enough to choose another branch.
    if not refused and not mask_actions.is_zero(held_at):
        refused = branch.refused_held
    takes_away = "" if refused else text(branch.takes_away)
    return Comparison(text(branch.starts_from), branch.past, takes_away, refused)


def comparison(label: str, mode: str = "weights", step: int = 0, held_at: str = "zero") -> Comparison | None:
    """Return what a stored branch shows beside the tickets of a rewinding mode; None for a function of the user's."""
    known = find(label)
    return known and beside(known, rewinding.start_of(mode, step), step, held_at)


def check_fair(name: str, prune: "Prune", rewind: "Rewind", subject: str = "") -> None:
    """Raise `LotteryError` if a branch has no fair comparison with a run's tickets; `subject`, or its name, begins."""
    branch = BRANCHES[name]
    start = rewinding.start_of(rewind.mode, rewind.step)
    if branch.trains_on and facts(prune.criterion).needs_network:
        key, value = "prune.criterion", prune.criterion
        why = "its masks are made before any training, so no trained weights were pruned"
    elif branch.of_entries and prune.granularity != "weight":
        key, value = "prune.granularity", prune.granularity
        why = "it draws entries one by one, without the structure of the ticket's masks; use random_mask"
    elif why := beside(branch, start, rewind.step).refused:
        key, value = "rewind.mode", rewind.mode
    else:
        key, value = "prune.held_at", prune.held_at
        why = beside(branch, start, rewind.step, prune.held_at).refused
    if why:
        raise LotteryError(f'{subject or name} cannot be compared fairly under {key} = "{value}": {why}.')


def check_rounds(name: str, rounds: Collection[int]) -> None:
    """Raise `LotteryError` if a branch trains survivors on, and round 0, which has none, is among the rounds."""
    if BRANCHES[name].trains_on and 0 in rounds:
        raise LotteryError(
            f"{name} continues the training of a pruned network, and round 0 prunes nothing: leave out round 0."
        )


def fair(mode: str, step: int = 0, held_at: str = "zero") -> list[str]:
    """List the branches that can be compared fairly with the tickets of a rewinding mode."""
    start = rewinding.start_of(mode, step)
    return [name for name, branch in BRANCHES.items() if not beside(branch, start, step, held_at).refused]


def refusals() -> list[tuple[str, str]]:
    """List the settings with the branches that have no fair comparison there, as lines of a help text."""
    allowed = {f"rewind.mode={mode}": fair(mode) for mode in rewinding.REWINDS}
    allowed |= {f"prune.held_at={name}": fair("weights", held_at=name) for name in mask_actions.MASK_ACTIONS}
    allowed["prune.granularity other than weight"] = [name for name in BRANCHES if not BRANCHES[name].of_entries]
    refused = {way: [name for name in BRANCHES if name not in names] for way, names in allowed.items()}
    return [(way, ", ".join(names)) for way, names in refused.items() if names]
