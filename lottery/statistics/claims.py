"""What a source states of an experiment: a ``[[claim]]`` table of its file."""

from typing import Any, Literal

from pydantic import Field

from lottery.runs import store
from lottery.settings import Section
from lottery.statistics.metric import ACCURACY

KINDS = ("paper", "authors' code", "third party", "our own bound")


class Claim(Section, strict=False):
    """What a source states of an experiment: its settings, or a number to look for in a run."""

    what: Literal["settings", "survivors", "accuracy", "difference", "best difference", "early stop"]
    source: Literal["paper", "authors' code", "third party", "our own bound"]
    reference: str
    link: str
    # Of settings: keys whose values are those of the file, values that are others, and what the source does not say.
    settings: tuple[str, ...] = ()
    others: dict[str, Any] = Field(default_factory=dict)
    leaves_open: tuple[str, ...] = ()
    # Of a number: its name, what is stated there, and where in a run it is looked for.
    text: str = ""
    stated: str = ""
    round: int | None = None
    rounds: tuple[int, int] = (0, 0)  # the first and the last, if it is about several
    densities: tuple[float, float] | None = None  # the smallest and the largest, in place of rounds
    at: Literal["early_stop", "end"] = "early_stop"
    of: str = store.TICKET  # of − than: a branch, or "dense"
    than: str = "dense"
    # What it must be. Of an early stop, that of `than` over that of the ticket.
    at_least: float = 0.0  # 0 asks for more than 0, by any amount
    value: float = 0.0
    within: float = 0.0
    layers: tuple[tuple[int, float], ...] = ()  # entries of each group that is ranked together, and its rate
    held: int = 0  # entries that are never pruned

    @property
    def bound(self) -> str:
        """What the run is asked for, which is ours."""
        if self.what == "survivors":
            return "exactly"
        if self.what == "accuracy":
            return f"± {self.within:g}"
        if not self.at_least:
            return "> 0"
        return f"≥ {self.at_least:.3g} times" if self.what == "early stop" else f"≥ {self.at_least:+g}"

    @property
    def numbers(self) -> list[int]:
        """The rounds that it is about."""
        first, last = self.rounds if self.round is None else (self.round, self.round)
        return list(range(first, last + 1))

    @property
    def column(self) -> str:
        """The accuracies that it is about."""
        return ACCURACY.final if self.at == "end" else ACCURACY.early_stop
