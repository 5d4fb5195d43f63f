"""Data sets by name or from the caller, split into training, validation and test; how their pixels are scaled."""

import itertools
import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from lottery import datasets, streamed_data
from lottery.datasets import DATASETS, KEYS, read_npz
from lottery.errors import LotteryError
from lottery.settings import GIVEN, Natural, Positive, Section, is_given, one_of
from lottery.streamed_data import Streams

PARTS = ("train", "validation", "test")

# The split does not depend on an experiment's seed, so that replicates train on the same examples.
SPLIT_SEED = 20_190_304


class Scaling(NamedTuple):
    """(x - mean) / standard_deviation, then, if `unit_norm`, over the Euclidean length of each example."""

    mean: np.ndarray  # a number, or one for each channel, as the standard deviation
    standard_deviation: np.ndarray
    unit_norm: bool = False  # each example then has the length 1, if it is not zero everywhere


UNSCALED = Scaling(np.zeros((), np.float32), np.ones((), np.float32))


def _standardize(x: np.ndarray) -> Scaling:
    """Give each channel mean 0 and variance 1 over `x`."""
    # Colours, perhaps with transparency: a longer last axis is not a channel of pixels.
    channels = x.shape[-1] if x.ndim == 4 and x.shape[-1] <= 4 else 1
    counts = np.zeros((channels, 256), np.int64)
    # In parts, for `bincount` first makes numbers of eight bytes of them.
    for some in np.array_split(x, 1 + x.size // 2**20):
        for channel, values in enumerate(some.reshape(-1, channels).T):
            counts[channel] += np.bincount(values, minlength=256)
    fractions = counts / counts.sum(axis=1, keepdims=True)
    levels = np.arange(256)
    mean = fractions @ levels
    deviation = np.sqrt(np.sum(fractions * (levels - mean[:, None]) ** 2, axis=1))
    # A channel that is the same everywhere becomes 0, and not NaN.
    return Scaling(mean.astype(np.float32), np.where(deviation > 0, deviation, 1).astype(np.float32))


def _unit(x: np.ndarray) -> Scaling:
    """Scale pixels to numbers from 0 to 1."""
    return Scaling(np.zeros((), np.float32), np.full((), 255, np.float32))


def _unit_norm(x: np.ndarray) -> Scaling:
    """Scale each image to Euclidean length 1, as the code of Frankle & Carbin 2019 does with MNIST.

    See ``datasets/dataset_mnist.py`` in https://github.com/google-research/lottery-ticket-hypothesis.
    """
    return UNSCALED._replace(unit_norm=True)


# By the name in ``data.pixels``, the usual first: functions from the images of the training split to a `Scaling`.
PIXELS: dict[str, Callable[[np.ndarray], Scaling]] = {
    "standardize": _standardize,
    "unit": _unit,
    "unit_norm": _unit_norm,
}
USUAL = next(iter(PIXELS))
USUAL_NAME = "mnist"
USUAL_VALIDATION = 5000  # examples, where no number is set


def _num_train(name: Any, path: Any, num_examples: Any) -> Any:
    """Return how many examples there are for training and validation; 0 if the settings of the data do not tell."""
    # A file, as arrays that are passed, may have validation examples of its own.
    if path or str(name) not in DATASETS:
        return 0
    return num_examples or DATASETS[name].num_train


def _too_many(validation: int, num_train: int, where: str) -> str:
    if num_train < 2:
        return f"Training and validation need at least 2 examples of {where}, not {num_train}."
    return (
        f"data.validation must be less than the {num_train} examples of {where}, not {validation}. Set it, such as "
        f"data.validation = {_tenth(num_train)}."
    )


def _tenth(num_train: int) -> int:
    """Return how many examples are for validation, where no number is set and the usual number is too large."""
    return max(1, num_train // 10)


class Data(Section):
    """The ``[data]`` section of an experiment."""

    name: Annotated[str, one_of("data.name", DATASETS, also=is_given)] = USUAL_NAME
    path: str = ""
    num_examples: Natural = 0  # for training and validation; 0 for all
    validation: Positive = USUAL_VALIDATION
    pixels: Annotated[str, one_of("data.pixels", PIXELS)] = USUAL
    # Not strict, since TOML has lists, and no tuples.
    augment: tuple[Literal["crop", "flip"], ...] = Field(default=(), strict=False)
    fingerprint: str = ""

    @model_validator(mode="before")
    @classmethod
    def _validation_fits(cls, values: Any) -> Any:
        """Split a tenth of the training examples off, where they are known to be too few for the usual number."""
        if not isinstance(values, dict) or "validation" in values:
            return values
        num_train = _num_train(values.get("name", USUAL_NAME), values.get("path"), values.get("num_examples"))
        # Nothing is validated yet: any other value gets a sentence of its own later.
        if type(num_train) is not int or not 0 < num_train <= USUAL_VALIDATION:
            return values
        return {**values, "validation": _tenth(num_train)}

    @model_validator(mode="after")
    def _settings_fit(self) -> "Data":
        num_train = _num_train(self.name, self.path, self.num_examples)
        if 0 < num_train <= self.validation:
            raise LotteryError(_too_many(self.validation, num_train, self.name))
        if self.name in DATASETS and DATASETS[self.name].needs_path and not self.path:
            raise LotteryError(f'data.name = "{self.name}" needs data.path, the file to read.')
        return self


@dataclass(frozen=True)
class Split:
    """Inputs and labels; the first axis of both is the example."""

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Splits:
    """A data set in memory; images of type uint8 stay uint8."""

    train: Split
    validation: Split
    test: Split
    mean: np.ndarray  # this and the next two are of the training part, see `Scaling`
    standard_deviation: np.ndarray
    unit_norm: bool
    fingerprint: str  # of every example and of the split
    notes: tuple[str, ...] = ()  # sentences that a person should read

    def num_examples(self, part: str) -> int:
        """Count the examples of a part, by its name in `PARTS`."""
        return len(getattr(self, part))

    def scaled(self, x: np.ndarray) -> np.ndarray:
        """Scale stored examples to the network's input."""
        if x.dtype != np.uint8:
            return x
        values = (x.astype(np.float32) - self.mean) / self.standard_deviation
        if not self.unit_norm:
            return values
        lengths = np.linalg.norm(values.reshape(len(x), -1), axis=1).reshape(-1, *[1] * (x.ndim - 1))
        return values / np.where(lengths > 0, lengths, 1)


def load(settings: Data) -> Splits:
    """Load the data set that an experiment names, with `settings.validation` examples split off the training part.

    The places are, in this order: ``data.path``, or if it is not there, the file of that name in ``$LOTTERY_DATA``;
    ``$LOTTERY_DATA/<name>.npz``; Keras' cache; a download by ``keras.datasets``. MNIST-1D is generated once, and then
    lies in Keras' cache. The digits come with scikit-learn.
    """
    if settings.name == GIVEN:
        raise LotteryError(
            'data.name = "given" stands for arrays that were passed to lottery.run(..., data=...); pass them again, in '
            "Python."
        )
    dataset = DATASETS[settings.name]
    path, notes = file_of(settings)
    if path:
        arrays = read_npz(path)
    elif settings.num_examples and dataset.generate:
        arrays = dataset.generate(settings.num_examples)
    else:
        arrays = dataset.load()
    if dataset.has_label_columns:
        arrays |= {key: labels.reshape(-1) for key, labels in arrays.items() if key.startswith("y")}
    splits = split(arrays, settings, where=settings.name)
    if "x_validation" in arrays:
        notes.append(f"The file has {len(splits.validation):,} validation examples; data.validation is not used.")
    usual = dataset.sha256.get(settings.num_examples)
    if usual and not path and datasets.sha256(arrays) != usual:
        notes.append(
            f"{settings.name} as generated here differs from the usual data in rounding or version, so results may "
            "differ."
        )
    return replace(splits, notes=(*splits.notes, *notes))


def file_of(settings: Data) -> tuple[Path | None, list[str]]:
    """Return the file of a data set, None for one that needs none, and sentences that a person should read."""
    name = f"{settings.name}.npz"
    if settings.path:
        named = Path(settings.path)
        if named.exists():
            return named, []
        name = named.name
    folder = os.environ.get("LOTTERY_DATA")
    if folder and Path(folder, name).exists():
        local = Path(folder, name)
        note = f"There is no {settings.path!r}, so the data are read from {str(local)!r}."
        return local, [note] if settings.path else []
    if settings.path:
        raise LotteryError(
            f"There is no data file {settings.path!r}. Put it there, or set LOTTERY_DATA to the folder that holds it."
        )
    return None, []


def split(arrays: Mapping[str, Any], settings: Data, where: str = "data") -> Splits:
    """Check arrays by the names in `KEYS`, and split the validation examples off; errors name them by `where`.

    With ``x_validation`` and ``y_validation`` among the arrays, those are the validation examples.
    """
    found = {part: _part(arrays, part, where) for part in PARTS if f"x_{part}" in arrays}
    _check_alike(found, where)
    train = _fewer(found["train"], settings.num_examples, where)
    validation = found.get("validation")
    if validation is None:
        train, validation = _split_off(train, settings.validation, where)
    parts = train, validation, found["test"]
    notes = ()
    if settings.pixels != USUAL and train.x.dtype != np.uint8:
        notes = (f"data.pixels = {settings.pixels!r} has no effect: the inputs are {train.x.dtype}, not uint8 pixels.",)
    scaling = PIXELS[settings.pixels](train.x) if train.x.dtype == np.uint8 else UNSCALED
    fingerprint = datasets.digest([array for part in parts for array in (part.x, part.y)])[:16]
    return Splits(*parts, *scaling, fingerprint, notes)


def _fewer(train: Split, num: int, where: str) -> Split:
    """Choose some of the training examples, the same for every seed; all of them for 0."""
    if num > len(train):
        raise LotteryError(
            f"data.num_examples must be at most the {len(train)} examples of x_train in {where}, not {num}."
        )
    if num in (0, len(train)):
        return train
    chosen = np.sort(np.random.default_rng(SPLIT_SEED).permutation(len(train))[:num])
    return Split(train.x[chosen], train.y[chosen])


def _split_off(train: Split, num: int, where: str) -> tuple[Split, Split]:
    """Split validation examples off the training part."""
    if num >= len(train):
        raise LotteryError(_too_many(num, len(train), f"x_train in {where}"))
    order = np.random.default_rng(SPLIT_SEED).permutation(len(train))
    chosen, rest = np.sort(order[:num]), np.sort(order[num:])
    return Split(train.x[rest], train.y[rest]), Split(train.x[chosen], train.y[chosen])


def as_integers(splits: Splits, why: str) -> Splits:
    """Leave inputs of type uint8 as the whole numbers that they are, instead of scaling them as pixels, and say why."""
    parts = {name: getattr(splits, name) for name in PARTS}
    whole = {name: Split(part.x.astype(np.int32), part.y) for name, part in parts.items()}
    note = f"The inputs are of type uint8, but {why}, so they are not scaled as pixels."
    return replace(splits, **whole, **UNSCALED._asdict(), notes=(*splits.notes, note))


def given(data: Any, settings: Data) -> Splits | Streams:
    """Make a data set of arrays or ``tf.data.Dataset`` that a caller passes.

    Args:
        data: For `Splits`: ``(x_train, y_train, x_test, y_test)``, or with validation examples ``(x_train, y_train,
            x_validation, y_validation, x_test, y_test)``; or the same in pairs, as ``keras.datasets`` returns them. For
            `Streams`: ``(train, validation, test)``, each a batched ``tf.data.Dataset`` of inputs and labels, and
            sample weights if there are any, or a function without arguments that returns one.
        settings: The ``[data]`` section of the experiment.
    """
    parts: tuple[Any, ...] = tuple(data) if isinstance(data, (tuple, list)) else ()
    if len(parts) in (2, 3) and all(isinstance(part, (tuple, list)) and len(part) == 2 for part in parts):
        parts = tuple(itertools.chain(*parts))
    if len(parts) == 3 and all(streamed_data.is_stream(part) for part in parts):
        if settings.num_examples:
            raise LotteryError("data.num_examples: a tf.data.Dataset has its own size; shorten it with take().")
        ignored = [key for key in ("validation", "pixels") if getattr(settings, key) != getattr(Data(), key)]
        notes = tuple(f"data.{key} has no effect: a tf.data.Dataset is used as it is." for key in ignored)
        return replace(streamed_data.checked(parts), notes=notes)
    if wrong := _no_arrays(data, parts):
        raise LotteryError(f"data must be {wrong}")
    if len(parts) == 6:
        keys = [f"{kind}_{part}" for part in PARTS for kind in ("x", "y")]
        splits = split(dict(zip(keys, parts, strict=True)), settings)
        num = len(splits.validation)
        if "validation" in settings.model_fields_set and settings.validation != num:
            raise LotteryError(
                f"data.validation is {settings.validation}, but {num} validation examples are passed. Leave "
                "data.validation out."
            )
        return splits
    # The value alone does not tell if somebody has asked for it.
    if "validation" not in settings.model_fields_set:
        # The default number is for MNIST. It stays where there is no length, as of a tf.Variable or a single number.
        length = operator.length_hint(parts[0], 10 * settings.validation)
        num = min(settings.validation, _tenth(settings.num_examples or length))
        settings = settings.model_copy(update={"validation": num})
    return split(dict(zip(KEYS, parts, strict=True)), settings)


def _no_arrays(data: Any, parts: tuple[Any, ...]) -> str:
    """Say what data must be, if its parts are not those of arrays; empty if they are."""
    arrays = "(x_train, y_train, x_test, y_test)"
    streams = "(train, validation, test), each a batched tf.data.Dataset"
    if isinstance(data, str | os.PathLike):
        return (
            f"{arrays} or {streams}, not {str(data)!r}. A data set by name or in a file belongs in the experiment: "
            '{"data": {"name": "npz", "path": "my.npz"}}.'
        )
    everything = [data, *parts] if parts else [data]
    if lazy := next((part for part in everything if streamed_data.is_sequence(part)), None):
        return f"arrays or tf.data.Dataset, not {streamed_data.kind(lazy)}. {streamed_data.HOW_TO_PASS}"
    if any(isinstance(part, (tuple, list)) and len(part) == 3 for part in parts) and len(parts) in (2, 3):
        return (
            "two arrays for each part, not three. Sample weights go into a tf.data.Dataset: pass (train, validation, "
            "test), each as tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(60)."
        )
    num = f"{len(parts)} parts" if parts else ""
    if any(streamed_data.is_stream(part) for part in everything):
        return f"{streams}, not {num or 'one tf.data.Dataset'}."
    if len(parts) in (4, 6):
        return ""
    return f"{arrays} or {streams}, not {num or type(data).__name__}."


def _part(arrays: Mapping[str, Any], part: str, where: str) -> Split:
    """Check the inputs and labels of a part."""
    x, y = (_checked(arrays[key], key, where) for key in (f"x_{part}", f"y_{part}"))
    if len(x) != len(y):
        inputs = arrays[f"x_{part}"]
        if isinstance(inputs, (list, tuple)) and all(np.shape(array)[:1] == (len(y),) for array in inputs):
            raise LotteryError(_several(where, f"x_{part}", f"a list of {len(inputs)} arrays"))
        raise LotteryError(f"{where}: x_{part} has {len(x)} examples and y_{part} has {len(y)}.")
    if not len(x):
        raise LotteryError(f"{where}: x_{part} is empty.")
    return Split(x, y)


def _check_alike(found: Mapping[str, Split], where: str) -> None:
    """Raise `LotteryError` unless the inputs of all parts have the shape and type of the training part."""
    train = found["train"].x
    for part, other in found.items():
        if train.shape[1:] != other.x.shape[1:]:
            raise LotteryError(
                f"{where}: examples of x_train have shape {train.shape[1:]}, but examples of x_{part} have shape "
                f"{other.x.shape[1:]}; make them the same."
            )
        if train.dtype != other.x.dtype:
            raise LotteryError(
                f"{where}: x_train has type {train.dtype} and x_{part} {other.x.dtype}; make them the same."
            )


def _several(where: str, key: str, what: str) -> str:
    return (
        f"{where}: {key} is {what}, no single array; pass several inputs or outputs as (train, validation, test), each "
        "a batched data set such as tf.data.Dataset.from_tensor_slices((x, y)).batch(60), where x or y is a dict or a "
        "tuple of arrays."
    )


def _checked(value: Any, key: str, where: str) -> np.ndarray:
    if isinstance(value, Mapping):
        raise LotteryError(_several(where, key, f"a dict of {', '.join(map(str, value))}"))
    try:
        array = np.asarray(value)
    except ValueError:
        raise LotteryError(_several(where, key, "a list of arrays of several shapes")) from None
    # T is the kind of NumPy 2's own strings.
    if array.dtype.kind in "OSUT":
        raise LotteryError(
            f"{where}: {key} must hold numbers, not {array.dtype}. Turn strings into whole numbers (as "
            "keras.layers.TextVectorization does), or pass strings and ragged tensors as (train, validation, test), "
            "each a batched data set such as tf.data.Dataset.from_tensor_slices((x, y)).batch(60)."
        )
    if array.dtype.kind not in "biuf":
        raise LotteryError(f"{where}: {key} must hold numbers, not {array.dtype}.")
    if array.dtype.kind == "f" and array.dtype.itemsize > 4:
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
            array = array.astype(np.float32)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise LotteryError(f"{where}: {key} holds NaN, infinite values, or numbers that are too large for float32.")
    if array.ndim == 0:
        raise LotteryError(f"{where}: {key} has shape (); its first axis must be the example.")
    if array.ndim == 1 and key.startswith("x"):
        raise LotteryError(
            f"{where}: {key} has one number for each example and no axis of features. Pass {key}[:, None]."
        )
    if key.startswith("y") and array.dtype.kind in "biu":
        for label in (array.min(), array.max()) if array.size else ():
            if not -(2**31) <= int(label) < 2**31:
                raise LotteryError(f"{where}: a label of {key} must be from {-(2**31)} to {2**31 - 1}, not {label}.")
        array = array.astype(np.int32)  # accepted by all losses of TensorFlow
    return array
