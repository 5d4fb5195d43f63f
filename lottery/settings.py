"""The base of every pydantic model, that of an experiment's sections, and the types of their values."""

from collections.abc import Callable, Collection
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from lottery import interrupts
from lottery.errors import unknown

GIVEN = "given"  # the name of everything that a caller passed as an object
COMPILED = "compiled"  # train.optimizer of a model that came compiled


class _Uninterrupted(type(BaseModel)):
    """Build a class while signals are held: pydantic swallows what their handlers raise, and builds a wrong class."""

    def __new__(cls, *arguments: Any, **options: Any) -> Any:
        with interrupts.held():
            return super().__new__(cls, *arguments, **options)


class Schema(BaseModel, metaclass=_Uninterrupted):
    """A pydantic model."""


class Section(Schema):
    """A frozen table of an experiment: unknown keys, wrong types, infinities and NaN are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def one_of(
    key: str,
    allowed: Collection[str] | Callable[[], Collection[str]],
    also: Callable[[str], bool] = lambda name: False,
    hint: str = "",
) -> AfterValidator:
    """Make a check, for ``typing.Annotated``, that a value is one of some names, or that `also` accepts it.

    A dict of names, or a function that returns them, is read each time, so a method added to it counts. Errors name the
    value by `key`, such as ``"prune.criterion"``, followed by `hint`.
    """

    def check(name: str) -> str:
        # Now, and not when the class is made: a registry may have grown since.
        names = allowed() if callable(allowed) else allowed
        if name in names or also(name):
            return name
        raise unknown(key + hint, name, names)

    return AfterValidator(check)


def is_given(name: str) -> bool:
    """Return True if a name stands for an object that a caller passed."""
    return name == GIVEN


def _inside_unit_interval(value: float) -> float:
    if not 0 < value < 1:
        raise PydanticCustomError("fraction", "Input should be a number between 0 and 1, both excluded")
    return value


Rate = Annotated[float, AfterValidator(_inside_unit_interval)]
RateOrZero = Annotated[float, Field(ge=0, lt=1)]
# Bounds, for an experiment may be a stranger's: no list that a command makes of them fills the memory.
MOST_REPLICATES = MOST_ROUNDS = 10_000
MOST = 10**12  # of all other counts
Positive = Annotated[int, Field(ge=1, le=MOST)]
Natural = Annotated[int, Field(ge=0, le=MOST)]
