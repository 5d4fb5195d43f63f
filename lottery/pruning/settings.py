"""The ``[prune]`` and ``[rewind]`` sections of an experiment."""

import itertools
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from lottery.errors import LotteryError
from lottery.pruning import granularity
from lottery.pruning.allocation import ALLOCATIONS
from lottery.pruning.criteria import CRITERIA, facts
from lottery.pruning.granularity import GRANULARITIES, NORMS, Granularity
from lottery.pruning.mask_actions import MASK_ACTIONS
from lottery.pruning.ranking import GLOBAL, SCOPES
from lottery.pruning.rewinding import REWINDS
from lottery.pruning.schedules import SCHEDULES, explicit
from lottery.settings import GIVEN, MOST_ROUNDS, Natural, Positive, Rate, RateOrZero, Section, is_given, one_of


def implied_rounds(values: Mapping[str, Any]) -> int | None:
    """Return the number of rounds that densities, or n of m, imply in a table ``[prune]``; None without them."""
    densities, n_of_m = values.get("densities"), values.get("n_of_m")
    if densities and isinstance(densities, list | tuple):
        return len(densities)
    if isinstance(n_of_m, list | tuple) and len(n_of_m) == 2 and all(type(number) is int for number in n_of_m):
        return max(0, n_of_m[1] - n_of_m[0])
    return None


class Prune(Section):
    """The ``[prune]`` section: criterion, amounts and rounds."""

    criterion: Annotated[str, one_of("prune.criterion", CRITERIA, also=is_given)] = "magnitude"
    scope: Annotated[str, one_of("prune.scope", SCOPES)] = "layerwise"
    allocation: Annotated[str, one_of("prune.allocation", ALLOCATIONS)] = "rates"
    schedule: Annotated[str, one_of("prune.schedule", SCHEDULES, also=is_given)] = "geometric"
    iterative: bool = True
    rate: Rate = 0.2
    num_rounds: Annotated[int, Field(ge=0, le=MOST_ROUNDS)] = 20
    final_density: RateOrZero = 0.0
    rates: dict[str, RateOrZero] = Field(default={})
    # Not strict, since TOML has lists, and no tuples.
    densities: tuple[Rate, ...] = Field(default=(), strict=False)
    granularity: Annotated[str, one_of("prune.granularity", GRANULARITIES)] = Granularity.name
    norm: Annotated[str, one_of("prune.norm", NORMS)] = Granularity.norm
    block: tuple[Positive, ...] = Field(default=(), strict=False)
    n_of_m: tuple[Positive, ...] = Field(default=(), strict=False)
    num_examples: Positive = 100
    held_at: Annotated[str, one_of("prune.held_at", MASK_ACTIONS)] = "zero"
    fingerprint: str = ""

    @model_validator(mode="before")
    @classmethod
    def _rounds_and_rate_that_others_imply(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        final = values.get("final_density")
        if (implied := implied_rounds(values)) is not None:
            # A number that is written stays, and is compared with the implied one below.
            values = {"num_rounds": implied, **values}
        num_rounds = values.get("num_rounds", 20)
        # Nothing is validated yet: any other value gets a sentence of its own later.
        if type(final) is not float or not 0 < final < 1 or type(num_rounds) is not int or num_rounds < 1:
            return values
        # Written down for those who read an experiment; the schedule goes by the final density itself.
        rate = 1 - final ** (1 / num_rounds)
        if values.get("rate", rate) != rate:
            raise LotteryError(
                f"Set prune.rate or prune.final_density, not both. They are {values['rate']} and {final}."
            )
        return {**values, "rate": rate}

    @model_validator(mode="after")
    def _densities_are_for_explicit(self) -> "Prune":
        # A schedule that the caller passed as a function is stored as its densities.
        takes_densities = self.schedule == GIVEN or SCHEDULES[self.schedule] is explicit
        if self.schedule == GIVEN and not self.densities:
            raise LotteryError(
                'prune.schedule = "given" stands for a function passed to lottery.run(..., schedule=...); pass it '
                "again, in Python."
            )
        if takes_densities != bool(self.densities):
            raise LotteryError('prune.densities and prune.schedule = "explicit" go together: set both or neither.')
        if self.densities and len(self.densities) != self.num_rounds:
            raise LotteryError(
                f"prune.densities has {len(self.densities)} entries and prune.num_rounds is {self.num_rounds}; "
                "leave prune.num_rounds out."
            )
        if self.final_density and (self.densities or not self.num_rounds):
            raise LotteryError("prune.final_density replaces prune.densities, and needs at least one round.")
        given = self._given("rate", "rates")
        if self.densities and given:
            raise LotteryError(f"prune.densities says how much to prune: leave out prune.{given[0]}.")
        if any(after >= before for before, after in itertools.pairwise(self.densities)):
            raise LotteryError(f"prune.densities must fall from round to round, not {list(self.densities)}.")
        if ALLOCATIONS[self.allocation] and (self.rates or self.scope == GLOBAL):
            raise LotteryError(
                f'prune.allocation = "{self.allocation}" says what each layer keeps: leave out prune.rates and '
                'prune.scope = "global".'
            )
        return self

    @model_validator(mode="after")
    def _granularity_fits(self) -> "Prune":
        granularity.check(self.grouping)
        kind = self.grouping.kind
        what = f'prune.granularity = "{self.granularity}"'
        if self.norm == "l2" and facts(self.criterion).is_signed:
            raise LotteryError(
                f'prune.norm = "l2" squares scores, and scores of {self.criterion} have signs: use prune.norm = "l1".'
            )
        if self.granularity != Granularity.name and facts(self.criterion).ranks_entries:
            raise LotteryError(
                f"{what} needs scores, and {self.criterion} ranks single entries in steps of its own; use another "
                "criterion."
            )
        if kind.of_convolutions is not None and self.allocation == "erk":
            raise LotteryError(f'prune.allocation = "erk" divides entries between kernels; leave it out with {what}.')
        if kind.takes == "n_of_m":
            wrong = self._given("scope", "allocation", "schedule", "densities", "final_density", "rate")
            if any(self.rates.values()):
                wrong.append("rates")
            if wrong:
                raise LotteryError(
                    f"prune.n_of_m says what each weight keeps: leave out prune.{wrong[0]}. (A rate of 0.0 in "
                    "prune.rates keeps a weight whole.)"
                )
        return self

    def _given(self, *keys: str) -> list[str]:
        """List the keys with another value than the default: a stored experiment has every key."""
        return [key for key in keys if getattr(self, key) != type(self).model_fields[key].default]

    @property
    def grouping(self) -> Granularity:
        """What is kept or pruned as one."""
        return Granularity(self.granularity, self.norm, self.block, self.n_of_m)


class Rewind(Section):
    """Where retraining starts."""

    step: Natural = 0
    mode: Annotated[str, one_of("rewind.mode", REWINDS)] = "weights"
