"""The base of an experiment's sections, and the types of their values."""

from collections.abc import Callable, Collection
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from lottery.errors import unknown

GIVEN = "given"  # data.name, model.name and prune.criterion where a caller passed the objects themselves
COMPILED = "compiled"  # train.optimizer where the caller's model came compiled


class Section(BaseModel):
    """A frozen table of an experiment: unknown keys, wrong types, infinities and NaN are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def one_of(
    key: str,
    allowed: Collection[str] | Callable[[], Collection[str]],
    also: Callable[[str], bool] = lambda name: False,
    hint: str = "",
) -> AfterValidator:
    """A check that a value is one of some names.

    Args:
        key: What errors call the value, such as ``"prune.criterion"``.
        allowed: The names, or a function that returns them. A dict of methods is read each time, so a method that is
            added to it is a name too.
        also: Says of any other value whether it is allowed.
        hint: Follows the key in errors.

    Returns:
        The check, for ``typing.Annotated``.
    """

    def check(name: str) -> str:
        names = allowed() if callable(allowed) else allowed
        if name in names or also(name):
            return name
        raise unknown(key + hint, name, names)

    return AfterValidator(check)


def is_given(name: str) -> bool:
    """Whether a name stands for what a caller passed."""
    return name == GIVEN


def _inside_unit_interval(value: float) -> float:
    if not 0 < value < 1:
        raise PydanticCustomError("fraction", "Input should be a number between 0 and 1, both excluded")
    return value


Rate = Annotated[float, AfterValidator(_inside_unit_interval)]
RateOrZero = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
