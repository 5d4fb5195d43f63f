"""The sections of an experiment: their base, the types of their values, and what is wrong with a setting, in words."""

from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from lottery import interrupts
from lottery.errors import LotteryError, missing, unknown

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

# Settings with values of several types, of which pydantic names one.
_UNIONS = {
    "train.jit_compile": "true, false or 'auto'",
    "run.control_rounds": "'all' or a list of rounds, such as [2, 4]",
    "train.optimizer": "the name of an optimizer, or a table such as {'name': 'sgd', 'momentum': 0.9}",
}
# Settings whose values may be tables.
_TABLES = ("train.optimizer", "train.learning_rate", "prune.rates")
# In a union pydantic adds the member's type to the place of an error; no key has such a name.
_MEMBERS = ("constrained-float", "bool", "dict[str,any]", "str")


def wrong_setting(error: ValidationError, schema: type[Section]) -> LotteryError:
    """Say in one sentence what is wrong first with the tables of a schema that has sections."""
    first = error.errors()[0]
    value, key = first["input"], ".".join(map(str, first["loc"][:2]))
    if key in _TABLES and isinstance(value, str) and value.startswith("{"):
        # A shell takes the quotes out of prune.rates={"dense/kernel"=0.1}, and what is left is not a table.
        return LotteryError(f"{key} must be a table, not {value!r}. In a shell, write '{key}={{...}}' with its quotes.")
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, LotteryError):
        return inner
    # pydantic tells an error for each type that a value may have, and the first is of one of them.
    if key in _UNIONS:
        return LotteryError(f"{key} must be {_UNIONS[key]}, not {value!r}.")
    place = [str(part) for part in first["loc"] if part not in _MEMBERS]
    if first["type"] == "extra_forbidden":
        return _unknown_key(place, schema)
    key = ".".join(place)
    if first["type"] == "tuple_type":
        # A shell takes the quotes out of run.controls=["random_mask"], and what is left is not a list.
        hint = " In a shell, put quotes around the whole." if isinstance(value, str) else ""
        return LotteryError(f"{key} must be a list, such as [1, 2] or ['a', 'b'], not {value!r}.{hint}")
    allowed = first["msg"].removeprefix("Input should be ").replace("dictionary or instance of", "table like")
    return LotteryError(f"{key} must be {allowed}, not {value!r}.")


def _unknown_key(place: Sequence[str], schema: type[Section]) -> LotteryError:
    """Name the key that an unknown key may mean: the same key of another section, or a similar key of its own."""
    *sections, key = place
    known: Any = schema
    for section in sections:
        known = known.model_fields[section].annotation
    where = f" in [{'.'.join(sections)}]" if sections else ""
    for name, field in schema.model_fields.items():
        if key in getattr(field.annotation, "model_fields", ()):
            return LotteryError(f"Unknown key {key!r}{where}. Did you mean '{name}.{key}'?")
    return missing("Unknown key", key, known.model_fields, where)
