"""An experiment as frozen, validated records: TOML in, overrides, digest out."""

import hashlib
import importlib.resources
import itertools
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from lottery.errors import LotteryError, unknown

# Keras' own optimisers by the names that `keras.optimizers.get` knows; a test compares.
OPTIMIZERS = (
    "adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "ftrl", "lion", "lamb", "muon", "nadam",
    "rmsprop", "sgd",
)  # fmt: skip
# What is there by name. The functions are in the modules of these names, which tests compare.
DATASETS = ("digits", "mnist", "fashion_mnist", "cifar10", "npz")
MODELS = ("lenet_300_100",)
CRITERIA = ("magnitude",)
GIVEN = "given"  # data.name and model.name where a caller passed the objects themselves
COMPILED = "compiled"  # train.optimizer where the caller's model came compiled


def _one_of(key: str, *allowed: str, given: bool = False, import_path: bool = False) -> AfterValidator:
    def check(name: str) -> str:
        if name in allowed or (name == GIVEN and given) or (import_path and ":" in name):
            return name
        raise unknown(key + (' (or "package.module:function")' if import_path else ""), name, allowed)

    return AfterValidator(check)


def _inside_unit_interval(value: float) -> float:
    if not 0 < value < 1:
        raise PydanticCustomError("fraction", "Input should be a number between 0 and 1, both excluded")
    return value


def _file_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
        raise PydanticCustomError(
            "name", "Input should be letters, digits, '.', '_' and '-', beginning with one of the first two"
        )
    return value


Rate = Annotated[float, AfterValidator(_inside_unit_interval)]
Positive = Annotated[int, Field(ge=1)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Data(_Section):
    """What is trained on."""

    name: Annotated[str, _one_of("data.name", *DATASETS, given=True)] = "mnist"
    path: str = ""
    validation: Positive = 5000
    pixels: Literal["standardize", "unit"] = "standardize"
    fingerprint: str = ""

    @model_validator(mode="after")
    def _npz_has_a_path(self) -> "Data":
        if self.name == "npz" and not self.path:
            raise LotteryError('data.name = "npz" needs data.path, the file to read.')
        return self


class Model(_Section):
    """The network: a built-in name, or "package.module:function"."""

    name: Annotated[str, _one_of("model.name", *MODELS, given=True, import_path=True)] = "lenet_300_100"
    fingerprint: str = ""


class Train(_Section):
    """One training run."""

    num_steps: Positive = 50_000
    batch_size: Positive = 60
    optimizer: str | dict[str, Any] = "adam"
    learning_rate: Annotated[float, Field(ge=0)] | dict[str, Any] = 1.2e-3
    eval_every: Positive = 100
    test_curve: bool = False
    jit_compile: bool | Literal["auto"] = "auto"

    @field_validator("optimizer")
    @classmethod
    def _known(cls, optimizer: str | dict[str, Any]) -> str | dict[str, Any]:
        table = optimizer if isinstance(optimizer, dict) else {"name": optimizer}
        wrong = [f"{key} is {value!r}" for key, value in table.items() if type(value) not in (str, int, float, bool)]
        if wrong:
            raise LotteryError(f"train.optimizer: {wrong[0]}, allowed are numbers, strings, true and false.")
        if table.get("name") not in (*OPTIMIZERS, COMPILED):
            raise unknown("train.optimizer", table.get("name", ""), OPTIMIZERS)
        return optimizer

    @field_validator("learning_rate")
    @classmethod
    def _named(cls, rate: float | dict[str, Any]) -> float | dict[str, Any]:
        if isinstance(rate, dict) and not isinstance(rate.get("name"), str):
            example = '{ name = "CosineDecay", initial_learning_rate = 0.1, decay_steps = 1000 }'
            what = "a table needs the name of a class in keras.optimizers.schedules"
            raise LotteryError(f"train.learning_rate: {what}, as {example}.")
        return rate


class Prune(_Section):
    """What is pruned, how much, and in how many rounds."""

    criterion: Annotated[str, _one_of("prune.criterion", *CRITERIA)] = "magnitude"
    scope: Literal["layerwise", "global"] = "layerwise"
    schedule: Literal["geometric", "linear", "one_shot", "explicit"] = "geometric"
    rate: Rate = 0.2
    num_rounds: Annotated[int, Field(ge=0)] = 20
    rates: dict[str, Rate] = {}
    densities: tuple[Rate, ...] = Field(default=(), strict=False)

    @model_validator(mode="before")
    @classmethod
    def _as_many_rounds_as_densities(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("schedule") == "explicit" and "num_rounds" not in values:
            return {**values, "num_rounds": len(values.get("densities", ()))}
        return values

    @model_validator(mode="after")
    def _densities_are_for_explicit(self) -> "Prune":
        if (self.schedule == "explicit") != bool(self.densities):
            raise LotteryError('prune.densities and prune.schedule = "explicit" go together: give both or neither.')
        if self.densities and len(self.densities) != self.num_rounds:
            raise LotteryError(
                f"prune.densities has {len(self.densities)} entries and prune.num_rounds is {self.num_rounds}; "
                "leave prune.num_rounds out."
            )
        if self.densities and self.rates:
            raise LotteryError('prune.rates says by how much to prune, so it cannot be used with "explicit" densities.')
        if any(after >= before for before, after in itertools.pairwise(self.densities)):
            raise LotteryError(f"prune.densities must fall from round to round, received {list(self.densities)}.")
        return self


class Rewind(_Section):
    """Where retraining starts."""

    step: Literal[0] = 0
    mode: Literal["weights"] = "weights"


class Run(_Section):
    """How often, from which seed, and how masks are enforced."""

    num_replicates: Positive = 5
    seed: Annotated[int, Field(ge=0)] = 0
    enforcement: Literal["constraint", "gradient", "reparameterization", "callback", "tfmot"] = "constraint"
    num_threads: Annotated[int, Field(ge=0)] = 0


class Experiment(_Section):
    """Everything that decides the result of a run."""

    name: Annotated[str, AfterValidator(_file_name)] = "experiment"
    data: Data = Data()
    model: Model = Model()
    train: Train = Train()
    prune: Prune = Prune()
    rewind: Rewind = Rewind()
    run: Run = Run()


def load(
    source: str | Path | Mapping[str, Any] | None = None, overrides: Mapping[str, Any] | None = None
) -> Experiment:
    """Read an experiment and check every key and value of it.

    Args:
        source: A TOML file, the tables themselves, or None for the experiment that ships with the package.
        overrides: Tables that replace single values, such as ``{"train": {"num_steps": 300}}``.

    Returns:
        The experiment, with every default filled in.

    Raises:
        LotteryError: The file cannot be read, or a key or value is wrong: what was received, what is allowed,
            and the nearest valid name.
    """
    if source is None:
        text = importlib.resources.files("lottery").joinpath("digits.toml").read_text(encoding="utf-8")
        tables = tomllib.loads(text)
        if "name" in (overrides or {}).get("model", {}):
            del tables["prune"]["rates"]  # they are for the weights of the model that ships with it
    elif isinstance(source, Mapping):
        tables = dict(source)
    else:
        tables = _read(Path(source))
    try:
        return Experiment.model_validate(_merged(tables, overrides or {}))
    except ValidationError as error:
        raise _sentence(error) from None


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Tables from words such as ``train.num_steps=300``.

    The value is read as TOML, and as a string where that fails.
    """
    tables: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not all(key.strip().split(".")):
            raise LotteryError(f"An override is section.key=value, such as train.num_steps=300; received {word!r}.")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        # What is below a section's key stays with it, as "rates.dense/kernel", to be merged into that key's table.
        section, dot, rest = key.strip().partition(".")
        table = tables.setdefault(section, {}) if dot else tables
        if not isinstance(table, dict):
            raise LotteryError(
                f"Overrides contradict each other: {section!r} is given a value and, by {word!r}, a key."
            )
        table[rest or section] = value
    return tables


def dump(experiment: Experiment) -> str:
    """The experiment as TOML, every default written out; `load` gives the same experiment back."""
    return tomli_w.dumps(experiment.model_dump(mode="json"))


def digest(experiment: Experiment) -> str:
    """Eight hexadecimal digits that differ as soon as any value differs."""
    canonical = json.dumps(experiment.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise LotteryError(f"There is no experiment file {str(path)!r}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LotteryError(f"The experiment file {str(path)!r} cannot be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise LotteryError(f"The experiment file {str(path)!r} is not valid TOML: {error}.") from None


def _merged(tables: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Tables with overrides: sections are merged key by key, and a value that is a table is replaced as a whole."""
    merged = dict(tables)
    for section, values in overrides.items():
        if not isinstance(values, Mapping):
            merged[section] = values
            continue
        inner = dict(merged[section]) if isinstance(merged.get(section), Mapping) else {}
        if section == "prune" and "densities" in values:  # they say by themselves how many rounds, and how much
            inner = {key: value for key, value in inner.items() if key not in ("num_rounds", "rates", "rate")}
        for key, value in values.items():
            head, dot, tail = key.partition(".")
            if dot and not isinstance(inner.get(head, {}), Mapping):
                raise LotteryError(
                    f"Overrides contradict each other: {section}.{head} has a value and the key {tail!r}."
                )
            inner[head] = {**inner.get(head, {}), tail: value} if dot else value
        merged[section] = inner
    return merged


def _sentence(error: ValidationError) -> LotteryError:
    """The first thing that is wrong, in our words."""
    first = error.errors()[0]
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, LotteryError):
        return inner
    # Pydantic ends the place of an error in a union with the member's type, which no key is called.
    place = [str(part) for part in first["loc"] if part not in ("constrained-float", "bool", "dict[str,any]", "str")]
    key = ".".join(place)
    if first["type"] == "extra_forbidden":
        section: Any = Experiment
        for part in place[:-1]:
            section = section.model_fields[part].annotation
        what = "A key of the experiment" if len(place) == 1 else f"A key of [{'.'.join(place[:-1])}]"
        return unknown(f"{what} that does not exist", place[-1], section.model_fields)
    if first["type"] == "literal_error":
        return LotteryError(f"{key}: received {first['input']!r}, allowed is {first.get('ctx', {})['expected']}.")
    if key == "train.jit_compile":
        return LotteryError(f"{key}: received {first['input']!r}, allowed is true, false or 'auto'.")
    allowed = first["msg"].removeprefix("Input should be ").replace("dictionary or instance of", "table like")
    return LotteryError(f"{key}: received {first['input']!r}, allowed is {allowed}.")
