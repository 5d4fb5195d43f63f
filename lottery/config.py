"""Experiments: read from TOML, override, check as a whole, write back, digest."""

import difflib
import hashlib
import itertools
import json
import re
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tomli_w
from pydantic import AfterValidator, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from lottery.data import Data
from lottery.enforcement.modes import ENFORCEMENTS
from lottery.errors import LotteryError
from lottery.models.settings import Model
from lottery.pruning import branches, criteria, fairness, mask_actions, rewinding
from lottery.pruning.granularity import UNITS
from lottery.pruning.settings import Prune, Rewind, implied_rounds
from lottery.settings import MOST_REPLICATES, Natural, Section, is_given, one_of, wrong_setting
from lottery.training.settings import OF_COMPILING, Train

ALL = "all"  # rounds get controls
MOST_BYTES = 1_000_000  # of an experiment file
MOST_THREADS = 10_000
# The largest integer of TOML, and of NumPy, in which TensorBoard's settings are written.
MOST_SEED = 2**63 - 1


def _file_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value):
        raise PydanticCustomError(
            "name", "Input should be letters, digits, '.', '_' and '-', and start with a letter or a digit"
        )
    return value


class Run(Section):
    """Replicates, seed, controls, and how masks are enforced."""

    num_replicates: Annotated[int, Field(ge=1, le=MOST_REPLICATES)] = 5
    seed: Annotated[int, Field(ge=0, le=2**127)] = 0  # `load` takes up to `MOST_SEED`; earlier runs may have more
    # Not strict, here and below, since TOML has lists, and no tuples.
    controls: tuple[Annotated[str, one_of("run.controls", branches.controls)], ...] = Field(default=(), strict=False)
    control_rounds: Literal["all"] | Annotated[tuple[Natural, ...], Field(strict=False)] = ALL
    enforcement: Annotated[str, one_of("run.enforcement", ENFORCEMENTS, also=is_given)] = "constraint"
    num_threads: Annotated[int, Field(ge=0, le=MOST_THREADS)] = 0
    fingerprint: str = ""

    @model_validator(mode="before")
    @classmethod
    def _no_round_has_no_controls(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("control_rounds") in ([], ()):
            return {**values, "controls": [], "control_rounds": ALL}
        return values


class Experiment(Section):
    """Everything that decides the result of a run."""

    name: Annotated[str, AfterValidator(_file_name)] = "experiment"
    # Sections are frozen, so all experiments can share the same defaults.
    data: Data = Data()
    model: Model = Model()
    train: Train = Train()
    prune: Prune = Prune()
    rewind: Rewind = Rewind()
    run: Run = Run()

    @model_validator(mode="after")
    def _sections_fit(self) -> "Experiment":
        step, num_steps = self.rewind.step, self.train.num_steps
        if step >= num_steps:
            raise LotteryError(f"rewind.step must be less than train.num_steps, {num_steps}, not {step}.")
        chosen = () if self.run.control_rounds == ALL else self.run.control_rounds
        num_rounds = self.prune.num_rounds
        late = [number for number in chosen if number > num_rounds]
        if late:
            raise LotteryError(f"run.control_rounds must be at most prune.num_rounds, {num_rounds}, not {late[0]}.")
        scored_untrained = criteria.facts(self.prune.criterion).needs_network
        # A function of the caller's is none of them, and may hold any value.
        enforcement = ENFORCEMENTS.get(self.run.enforcement)
        zero_only = enforcement is not None and enforcement.zero_only
        mask_actions.check(self.prune.held_at, self.rewind.mode, scored_untrained, zero_only)
        return self

    @property
    def needs_schedule(self) -> bool:
        """True if some network begins its learning rate at a later step than 0, or goes through it more slowly."""
        controls = [branches.BRANCHES[name] for name in self.run.controls]
        if self.rewind.step or rewinding.REWINDS[self.rewind.mode].keeps_rate:
            return True
        return any(control.is_long or control.trains_on for control in controls)


def load(
    source: str | Path | Mapping[str, Any] | None = None, overrides: Mapping[str, Any] | None = None
) -> Experiment:
    """Read an experiment, check every key and value, and fill in every default.

    Args:
        source: A TOML file, the name of an experiment that ships with the package, the tables themselves, or None for
            ``mnist1d``.
        overrides: Tables that replace single values, such as ``{"train": {"num_steps": 300}}``.

    Raises:
        LotteryError: The file cannot be read, or a key or value is wrong.
    """
    if source is None:
        tables = read(Path(__file__).with_name("mnist1d.toml"))
        if names_network(overrides) or flat(overrides or {}).get("prune.granularity") in UNITS:
            # They are for the output layer of its own model, whose units always stay.
            del tables["prune"]["rates"]
    else:
        tables = source if isinstance(source, Mapping) else read(Path(source))
    if "sweep" in tables:
        raise LotteryError("The table [sweep] makes several experiments. Use `lottery sweep`, in Python lottery.sweep.")
    experiment = validated(merged(plain(tables), plain(overrides or {})))
    # Asked here alone: what a run was stored with can always be read.
    if experiment.run.seed > MOST_SEED:
        raise LotteryError(f"run.seed must be less than or equal to {MOST_SEED}, not {experiment.run.seed}.")
    _check_fair(experiment)
    return experiment


def validated(tables: Mapping[str, Any]) -> Experiment:
    """Check the tables of an experiment, and fill in every default, or raise a `LotteryError`.

    Unlike `load`, this accepts what runs of earlier versions may have: unfair controls, and larger seeds.
    """
    if (text := _unprintable(tables)) is not None:
        raise LotteryError(f"The experiment must have printable characters only, not the text {text[:80]!r}.")
    try:
        return Experiment.model_validate(tables)
    except ValidationError as error:
        raise wrong_setting(error, Experiment) from None


def with_values(experiment: Experiment, section: str, values: Mapping[str, Any]) -> Experiment:
    """Copy an experiment with values in a section that are known to be right, and so are not validated."""
    changed = getattr(experiment, section).model_copy(update=dict(values))
    # pydantic's copies are not validated, and keep what was set by the user apart from defaults.
    return experiment.model_copy(update={section: changed})


def names_network(*passed: Any) -> bool:
    """Return True if the tables that a caller passed name the network themselves; a path leads to a file's tables."""
    tables = [flat(each) for each in passed if isinstance(each, Mapping)]
    return any({"model.name", "sweep.model.name"} & set(each) for each in tables)


def parse_overrides(words: Sequence[str]) -> dict[str, Any]:
    """Parse words such as ``train.num_steps=300``; a value that is not TOML is a string."""
    tables: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not all(key.strip().split(".")):
            raise LotteryError(f"An override must be section.key=value, such as train.num_steps=300, not {word!r}.")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        # Deeper keys stay one word, such as "rates.dense/kernel", for `merged` to put into that key's table.
        section, dot, rest = key.strip().partition(".")
        table = tables.setdefault(section, {}) if dot else tables
        if not isinstance(table, dict):
            raise LotteryError(
                f"Overrides contradict each other: {section!r} is set to a value, and {word!r} sets a key in it."
            )
        table[rest or section] = value
    return tables


def dump(experiment: Experiment) -> str:
    """Write an experiment as TOML with every default; `load` reads the same experiment."""
    return tomli_w.dumps(experiment.model_dump(mode="json"))


def as_tables(experiment: Experiment) -> dict[str, Any]:
    """Return every value of an experiment as tables; how to compile the model only where the experiment says it."""
    tables = experiment.model_dump(mode="json")
    for key in OF_COMPILING - experiment.train.model_fields_set:
        # A default that is written down would be taken for a wish, which a compiled model cannot fulfil.
        del tables["train"][key]
    return tables


def digest(experiment: Experiment) -> str:
    """Compute eight hexadecimal digits that change with any value."""
    # Without defaults, so that a new key does not change the digests of older experiments.
    canonical = json.dumps(experiment.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def differences(now: Experiment, before: Experiment) -> list[str]:
    """List the keys in which two experiments differ, as ``train.num_steps is 300 and was 500``."""
    new, old = (flat(experiment.model_dump(mode="json")) for experiment in (now, before))
    keys = sorted({*new, *old})
    return [f"{key} is {new.get(key)!r} and was {old.get(key)!r}" for key in keys if new.get(key) != old.get(key)]


def flat(tables: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested tables to keys such as ``train.num_steps``."""
    found = {}
    for key, value in tables.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def read(path: Path) -> dict[str, Any]:
    """Read the tables of a TOML file, given or shipped, or of a run's folder; raise a `LotteryError` that names it.

    What sources state of the experiment, in its tables ``[[claim]]``, is left out: see `lottery.statistics.published`.
    """
    found = path / "experiment.toml" if path.is_dir() else path
    path = found if found.exists() else shipped().get(str(path), found)
    try:
        with path.open("rb") as file:  # a pipe, too
            # One byte more than is allowed tells that a file is too long, whatever its size.
            tables = parsed(path, file.read(MOST_BYTES + 1))
    except FileNotFoundError:
        near = difflib.get_close_matches(str(path), shipped(), n=1)
        hint = f" Did you mean the experiment {near[0]!r}?" if near else ""
        raise LotteryError(f"There is no experiment file {str(path)!r}.{hint}") from None
    except OSError as error:
        raise LotteryError(f"The experiment file {str(path)!r} cannot be read: {error.strerror or error}.") from None
    tables.pop("claim", None)
    if asks_for_no_rounds(tables):
        raise LotteryError(
            f"The experiment file {str(path)!r} has run.controls, but run.control_rounds is empty. Set "
            "run.control_rounds to 'all' or to a list of rounds, or leave out both keys."
        )
    return tables


def asks_for_no_rounds(tables: Mapping[str, Any]) -> bool:
    """Check if a file has controls and an empty list of rounds, by which an earlier version meant all rounds."""
    run = tables.get("run")
    return isinstance(run, Mapping) and bool(run.get("controls")) and run.get("control_rounds") == []


def shipped() -> dict[str, Path]:
    """Find every experiment file that comes with the package, by its name without the ending; the default is first."""
    package = Path(__file__).parent
    # In a wheel they lie within the package, in a checkout beside it.
    folder = next((each for each in (package, package.parent) if (each / "experiments").is_dir()), package)
    found = [*sorted(package.glob("*.toml")), *sorted(folder.glob("experiments/*.toml"))]
    return {path.stem: path for path in found}


def parsed(path: Path, content: bytes) -> dict[str, Any]:
    """Parse the content of an experiment file, or raise a `LotteryError` that names it."""
    if len(content) > MOST_BYTES:
        raise LotteryError(f"The experiment file {str(path)!r} has more than {MOST_BYTES:,} bytes.")
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise LotteryError(f"The experiment file {str(path)!r} cannot be read: {error}.") from None
    # Python refuses to read a number of thousands of digits, and lists in lists in lists.
    except (ValueError, RecursionError) as error:
        raise LotteryError(f"The experiment file {str(path)!r} is not valid TOML: {error}.") from None


def merged(tables: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Override tables: sections are merged key by key, and a value that is a table is replaced as a whole."""
    found = dict(tables)
    for section, values in overrides.items():
        if not isinstance(values, Mapping):
            found[section] = values
            continue
        before = found.get(section)
        before = before if isinstance(before, Mapping) else {}
        gone = _voided(section, before, values)
        inner = {key: value for key, value in before.items() if key not in gone}
        for key, value in values.items():
            # A key that is not text is refused later, with all other unknown keys.
            head, dot, tail = str(key).partition(".")
            if not dot:
                inner[head] = value
                continue
            table = inner.get(head, {})
            if not isinstance(table, Mapping):
                why = f"{section}.{head} is {table!r}, which has no key {tail!r}"
                raise LotteryError(f"{why}. Set the whole value, as '{section}.{head}={{...}}'.")
            inner[head] = {**table, tail: value}
        found[section] = inner
    _drop_later_controls(found, overrides)
    return found


def _voided(section: str, before: Mapping[str, Any], values: Mapping[str, Any]) -> set[str]:
    """Return the keys of a section whose values, from before, mean nothing beside those that override others."""
    gone: set[str] = set()
    if section == "data" and {"name", "path"} & set(values):
        gone = {"num_examples", "fingerprint"}  # of the data that are replaced
        name = before.get("name", Data().name)
        if values.get("name", name) != name:
            gone.add("path")
    if section == "prune":
        if {"densities", "n_of_m"} & set(values):  # they replace the other keys of rounds and rates
            gone |= {"num_rounds", "rates", "rate"}
        if {"final_density", "num_rounds"} & set(values) and {**before, **values}.get("final_density"):
            gone.add("rate")  # it follows from the two
    return gone


def _drop_later_controls(tables: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Keep the file's control rounds that are left, or the last round, if an override leaves fewer rounds."""
    prune, run = (overrides.get(section) for section in ("prune", "run"))
    chosen = isinstance(run, Mapping) and "control_rounds" in run
    if chosen or not isinstance(prune, Mapping) or not isinstance(tables.get("run"), Mapping):
        return
    rounds, last = tables["run"].get("control_rounds"), prune.get("num_rounds", implied_rounds(prune))
    if type(last) is not int or not isinstance(rounds, (list, tuple)) or not rounds:
        return
    # Nothing is validated yet: of what is not a whole number, the error comes later.
    if all(type(number) is int for number in rounds):
        left = [number for number in rounds if number <= last] or [last]
        tables["run"] = {**tables["run"], "control_rounds": left if last else ALL}


def _unprintable(value: Any) -> str | None:
    """Find a text, of keys too, that a terminal could take for a command; a space of any width is none."""
    if isinstance(value, str):
        spaces = "".join(" " if unicodedata.category(char) == "Zs" else char for char in value)
        return None if spaces.isprintable() else value
    parts: Any = ()
    if isinstance(value, Mapping):
        parts = itertools.chain(value, value.values())
    elif isinstance(value, list | tuple):
        parts = value
    return next((found for found in map(_unprintable, parts) if found is not None), None)


def plain(value: Any) -> Any:
    """Make Python's own numbers and lists of those of NumPy, which a caller in Python may have computed."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def _check_fair(experiment: Experiment) -> None:
    """Refuse controls, and a criterion, that have no meaning where tickets start."""
    rewind, prune = experiment.rewind, experiment.prune
    controls, rounds = experiment.run.controls, experiment.run.control_rounds
    rounds = () if rounds == ALL else rounds
    # A network that is listed twice would be counted twice, and in a sweep be a copy of itself.
    for key, values in ("controls", controls), ("control_rounds", rounds):
        for value in values:
            if values.count(value) > 1:
                raise LotteryError(f"run.{key} has {value!r} twice; leave one out.")
    for name in controls:
        subject = f"run.controls: leave out {name}, which"
        fairness.check_fair(name, prune, rewind, subject)
        fairness.check_rounds(name, rounds)
    if criteria.facts(prune.criterion).needs_network and rewinding.REWINDS[rewind.mode].start is not None:
        raise LotteryError(
            f'rewind.mode must be "weights" with prune.criterion = "{prune.criterion}", not "{rewind.mode}": this '
            "criterion scores the weights before any training."
        )
