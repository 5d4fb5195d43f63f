"""Data sets by name or from the caller, split into training, validation and test."""

import contextlib
import hashlib
import io
import itertools
import os
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from lottery import files
from lottery.errors import LotteryError
from lottery.settings import GIVEN, Positive, Section, is_given, one_of

KEYS = ("x_train", "y_train", "x_test", "y_test")
MNIST1D_SHA256 = "1250badde0592a2c4b36d766adff905a0e56cda69ef181dbf853df833b2b1788"  # of the arrays as generated


def read_npz(path: Path, keys: tuple[str, ...] = KEYS) -> dict[str, np.ndarray]:
    """Read the arrays of a file, by default the four that Keras uses; nothing is unpickled."""
    try:
        if not path.exists():
            raise LotteryError(f"There is no data file {str(path)!r}.")
        # Opened here, because np.load leaves a file open that it cannot read.
        with files.opened(path) as raw, _loaded(raw) as file:
            if isinstance(file, np.ndarray):
                raise LotteryError(
                    f"The data file {str(path)!r} holds one array, as np.save writes it; np.savez writes several, "
                    f"allowed are {', '.join(keys)}."
                )
            if missing := [key for key in keys if key not in file.files]:
                found = ", ".join(file.files) or "nothing"
                raise LotteryError(f"The data file {str(path)!r} lacks {', '.join(missing)}; it has {found}.")
            return {key: file[key] for key in keys}
    except LotteryError:
        raise
    except Exception as error:  # a truncated file can fail in each of the libraries that read it
        raise LotteryError(f"The data file {str(path)!r} cannot be read ({_reason(error)}); is it complete?") from None


def _loaded(raw: BinaryIO) -> contextlib.AbstractContextManager[Any]:
    """Open what NumPy has written: the arrays by name, or a single one, which needs no closing."""
    found = np.load(raw, allow_pickle=False)
    return contextlib.nullcontext(found) if isinstance(found, np.ndarray) else found


def _digits() -> dict[str, np.ndarray]:
    """Load scikit-learn's 1,797 handwritten digits of 8 x 8 pixels; a fifth, always the same, is the test set."""
    from sklearn.datasets import load_digits

    images, labels = (np.asarray(part) for part in load_digits(return_X_y=True))
    x = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # 17 grey levels, stored as pixels
    order = np.random.default_rng(20_190_304).permutation(len(x))
    test, train = np.sort(order[:360]), np.sort(order[360:])
    return {"x_train": x[train], "y_train": labels[train], "x_test": x[test], "y_test": labels[test]}


def _mnist1d() -> dict[str, np.ndarray]:
    """Generate MNIST-1D, or read it from the cache: 5,000 training and 12,000 test examples of 40 numbers, 10 classes.

    The data of Greydanus & Kobak 2024, https://arxiv.org/abs/2011.14439, by the authors' package. The training examples
    are the 5,000 that it makes by default. The test set has another seed, and enough examples to resolve a difference
    of 0.002 in accuracy. Inputs have mean 0 and standard deviation 1.
    """
    cache = _keras_home() / "datasets" / f"lottery-mnist1d-{MNIST1D_SHA256[:8]}.npz"
    with contextlib.suppress(LotteryError):  # absent, unreadable or damaged
        arrays = read_npz(cache, (*KEYS, "sha256"))
        if str(arrays.pop("sha256")) == _sha256(arrays):
            return arrays
    arrays, content = _generate_mnist1d(), io.BytesIO()
    kept: dict[str, Any] = arrays | {"sha256": np.array(_sha256(arrays))}
    np.savez(content, **kept)
    with contextlib.suppress(LotteryError):  # a run need not fail because its data cannot be kept
        files.write(cache, content.getvalue())
    return arrays


def _keras_home() -> Path:
    """Return the folder that Keras keeps data sets below, without importing Keras."""
    try:
        return Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser()
    except RuntimeError:  # a container's user may have no home
        return Path(tempfile.gettempdir(), ".keras")


def _generate_mnist1d() -> dict[str, np.ndarray]:
    # The package draws from the global generators of NumPy and Python, which are the caller's.
    of_numpy, of_python = np.random.get_state(), random.getstate()
    try:
        from mnist1d.data import get_dataset_args, make_dataset

        arrays = {}
        for part, num_samples, seed in ("train", 5000, 42), ("test", 12_000, 43):
            settings: Any = get_dataset_args()
            settings.num_samples, settings.seed, settings.train_split = num_samples, seed, 1
            made: Any = make_dataset(settings)
            # Rounded to float32, versions of NumPy and SciPy that differ in the last place give the same arrays.
            arrays |= {f"x_{part}": made["x"].astype(np.float32), f"y_{part}": made["y"].astype(np.int32)}
        return arrays
    finally:
        np.random.set_state(of_numpy)
        random.setstate(of_python)


def _from_keras(name: str) -> Callable[[], dict[str, np.ndarray]]:
    def fetch() -> dict[str, np.ndarray]:
        import keras

        try:
            (x_train, y_train), (x_test, y_test) = getattr(keras.datasets, name).load_data()
        except Exception as error:  # Keras raises a bare Exception where there is no network
            raise LotteryError(
                f"{name} is not on this machine and could not be downloaded ({_reason(error)}); put {name}.npz, with "
                f"the arrays {', '.join(KEYS)}, into the folder that LOTTERY_DATA names, or set data.path to it."
            ) from None
        return dict(zip(KEYS, (x_train, y_train, x_test, y_test), strict=True))

    return fetch


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _from_no_file() -> dict[str, np.ndarray]:
    raise LotteryError('data.name = "npz" needs data.path, the file to read.')


WITHOUT_DOWNLOAD = ("mnist1d", "digits")  # of `DATASETS`, those that come with the packages installed

# By the name in ``data.name``: functions that return the four arrays of `KEYS`.
DATASETS: dict[str, Callable[[], dict[str, np.ndarray]]] = {
    "mnist1d": _mnist1d,
    "digits": _digits,
    "mnist": _from_keras("mnist"),
    "fashion_mnist": _from_keras("fashion_mnist"),
    "cifar10": _from_keras("cifar10"),
    "npz": _from_no_file,
}


class Scaling(NamedTuple):
    """How pixels of a byte become inputs: (x - mean) / standard_deviation, then, if `unit_norm`, over its length."""

    mean: np.ndarray  # a number, or one for each channel, as the standard deviation
    standard_deviation: np.ndarray
    unit_norm: bool  # each example then has the Euclidean length 1, if it is not zero everywhere


def _standardize(x: np.ndarray) -> Scaling:
    """Give each channel mean 0 and variance 1 over `x`."""
    channels = x.shape[-1] if x.ndim == 4 and x.shape[-1] <= 4 else 1
    counts = np.zeros((channels, 256), np.int64)
    for some in np.array_split(x, 1 + x.size // 2**20):  # float64 would take eight times the memory
        for channel, values in enumerate(some.reshape(-1, channels).T):
            counts[channel] += np.bincount(values, minlength=256)
    fractions, levels = counts / counts.sum(axis=1, keepdims=True), np.arange(256)
    mean = fractions @ levels
    deviation = np.sqrt(np.sum(fractions * (levels - mean[:, None]) ** 2, axis=1))
    return Scaling(mean.astype(np.float32), np.where(deviation > 0, deviation, 1).astype(np.float32), unit_norm=False)


def _unit(x: np.ndarray) -> Scaling:
    """Scale pixels to numbers from 0 to 1."""
    return Scaling(np.zeros((), np.float32), np.full((), 255, np.float32), unit_norm=False)


def _unit_norm(x: np.ndarray) -> Scaling:
    """Scale each image to Euclidean length 1, as the code of Frankle & Carbin 2019 does with MNIST.

    See ``datasets/dataset_mnist.py`` in https://github.com/google-research/lottery-ticket-hypothesis.
    """
    return Scaling(np.zeros((), np.float32), np.ones((), np.float32), unit_norm=True)


# By the name in ``data.pixels``: functions from the images of the training split to a `Scaling`.
PIXELS: dict[str, Callable[[np.ndarray], Scaling]] = {
    "standardize": _standardize,
    "unit": _unit,
    "unit_norm": _unit_norm,
}


class Data(Section):
    """The ``[data]`` section of an experiment."""

    name: Annotated[str, one_of("data.name", DATASETS, also=is_given)] = "mnist"
    path: str = ""
    validation: Positive = 5000
    pixels: Annotated[str, one_of("data.pixels", PIXELS)] = "standardize"
    augment: tuple[Literal["crop", "flip"], ...] = Field(default=(), strict=False)
    fingerprint: str = ""

    @model_validator(mode="after")
    def _npz_has_a_path(self) -> "Data":
        if self.name == "npz" and not self.path:
            _from_no_file()
        return self


# The split does not depend on an experiment's seed, so that replicates train on the same examples.
SPLIT_SEED = 20_190_304
NUM_PEEKED = 4  # batches of a tf.data.Dataset in its fingerprint


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
    mean: np.ndarray  # this and the next two are of the training part, as `Scaling` explains
    standard_deviation: np.ndarray
    unit_norm: bool
    fingerprint: str  # of every example and of the split
    notes: tuple[str, ...] = ()  # sentences that a person should read

    def scaled(self, x: np.ndarray) -> np.ndarray:
        """Scale stored examples to the network's input."""
        if x.dtype != np.uint8:
            return x
        values = (x.astype(np.float32) - self.mean) / self.standard_deviation
        if not self.unit_norm:
            return values
        lengths = np.linalg.norm(values.reshape(len(x), -1), axis=1).reshape(-1, *[1] * (x.ndim - 1))
        return values / np.where(lengths > 0, lengths, 1)


@dataclass(frozen=True)
class Streams:
    """A data set that does not fit in memory: functions that make a new batched ``tf.data.Dataset`` at each call."""

    train: Callable[[], Any]
    validation: Callable[[], Any]
    test: Callable[[], Any]
    fingerprint: str  # of the first batches, since reading all of them would take as long as training


def load(settings: Data) -> Splits:
    """Load the data set that an experiment names, with `settings.validation` examples split off the training part.

    The places are, in this order: ``data.path``; ``$LOTTERY_DATA/<name>.npz``; Keras' cache; a download by
    ``keras.datasets``. MNIST-1D is generated once, and then lies in Keras' cache. The digits come with scikit-learn.
    """
    if settings.name == GIVEN:
        raise LotteryError(
            'data.name = "given" stands for arrays that were passed to lottery.run(..., data=...); pass them again, in '
            "Python."
        )
    folder, path = os.environ.get("LOTTERY_DATA"), settings.path
    if not path and folder and (local := Path(folder, f"{settings.name}.npz")).exists():
        path = local
    arrays = read_npz(Path(path)) if path else DATASETS[settings.name]()
    if settings.name == "cifar10":  # its labels come as a column
        arrays = {key: value.reshape(-1) if key.startswith("y") else value for key, value in arrays.items()}
    splits = split(arrays, settings, where=settings.name)
    if settings.name == "mnist1d" and _sha256(arrays) != MNIST1D_SHA256:
        note = "MNIST-1D as generated here differs from the usual data in rounding or version, so results may differ."
        return replace(splits, notes=(*splits.notes, note))
    return splits


def split(arrays: Mapping[str, Any], settings: Data, where: str = "data") -> Splits:
    """Check arrays by the names in `KEYS`, and split the validation examples off; errors name them by `where`.

    With ``x_validation`` and ``y_validation`` among the arrays, those are the validation examples.
    """
    own = "x_validation" in arrays
    found = {part: _part(arrays, part, where) for part in ("train", *["validation"] * own, "test")}
    train, num = found["train"], settings.validation
    for part, other in found.items():
        if train.x.shape[1:] != other.x.shape[1:]:
            raise LotteryError(
                f"{where}: an example of x_train has shape {train.x.shape[1:]} and one of x_{part} {other.x.shape[1:]}."
            )
        if train.x.dtype != other.x.dtype:
            raise LotteryError(
                f"{where}: x_train has type {train.x.dtype} and x_{part} {other.x.dtype}; make them the same."
            )
    if own and "validation" in settings.model_fields_set and num != len(found["validation"]):
        raise LotteryError(
            f"data.validation: received {num}, but {len(found['validation'])} validation examples are passed; leave it "
            "out."
        )
    if not own:
        if num >= len(train):
            raise LotteryError(
                f"data.validation: received {num}, allowed is less than the {len(train)} examples of x_train in "
                f"{where}."
            )
        order = np.random.default_rng(SPLIT_SEED).permutation(len(train))
        chosen, rest = np.sort(order[:num]), np.sort(order[num:])
        found["validation"] = Split(train.x[chosen], train.y[chosen])
        train = Split(train.x[rest], train.y[rest])
    parts, notes = (train, found["validation"], found["test"]), ()
    if settings.pixels != "standardize" and train.x.dtype != np.uint8:
        notes = (f"data.pixels = {settings.pixels!r} has no effect: the inputs are {train.x.dtype}, not uint8 pixels.",)
    return Splits(*parts, *_scaling(train.x, settings.pixels), _fingerprint(parts), notes)


def as_integers(splits: Splits) -> Splits:
    """Leave inputs of type uint8 as the whole numbers that they are, instead of scaling them as pixels."""
    parts = {name: getattr(splits, name) for name in ("train", "validation", "test")}
    whole = {name: Split(part.x.astype(np.int32), part.y) for name, part in parts.items()}
    mean, deviation, unit_norm = _scaling(whole["train"].x, "standardize")
    note = "The inputs are of type uint8, but the model takes whole numbers, so they are not scaled as pixels."
    unscaled = {"mean": mean, "standard_deviation": deviation, "unit_norm": unit_norm}
    return replace(splits, **whole, **unscaled, notes=(*splits.notes, note))


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
    if len(parts) in (2, 3) and all(isinstance(one, (tuple, list)) and len(one) == 2 for one in parts):
        parts = tuple(itertools.chain(*parts))
    if len(parts) == 3 and all(_is_stream(part) for part in parts):
        return _streams(parts)
    if wrong := _no_arrays(data, parts):
        raise LotteryError(f"data: {wrong}")
    if len(parts) == 6:
        return split(dict(zip((*KEYS[:2], "x_validation", "y_validation", *KEYS[2:]), parts, strict=True)), settings)
    if "validation" not in settings.model_fields_set and hasattr(parts[0], "__len__"):
        tenth = max(1, len(parts[0]) // 10)  # the default number is for MNIST
        settings = settings.model_copy(update={"validation": min(settings.validation, tenth)})
    return split(dict(zip(KEYS, parts, strict=True)), settings)


def _is_stream(part: Any) -> bool:
    return hasattr(part, "element_spec") or (callable(part) and not _is_sequence(part))


def _is_sequence(part: Any) -> bool:
    """Check if an object gives batches in Python: a ``PyDataset``, a generator, the loader of another library."""
    known = isinstance(part, (str, list, tuple, Mapping)) or hasattr(part, "element_spec")
    is_array = hasattr(part, "__array__") or hasattr(part, "numpy")
    return not (known or is_array) and (hasattr(part, "__getitem__") or hasattr(part, "__iter__"))


def _no_arrays(data: Any, parts: tuple[Any, ...]) -> str:
    """Say why the parts of a data set are not those of arrays, and what to pass instead; empty if they are."""
    allowed = "(x_train, y_train, x_test, y_test), or (train, validation, test) as tf.data.Dataset"
    if isinstance(data, str | os.PathLike):
        return (
            f"received {str(data)!r}, allowed is {allowed}; a data set by name or in a file belongs in the experiment: "
            '{"data": {"name": "npz", "path": "my.npz"}}.'
        )
    everything = [data, *parts] if parts else [data]
    if lazy := next((part for part in everything if _is_sequence(part)), None):
        return f"received {_kind(lazy)}; {AS_STREAM}"
    if any(isinstance(part, (tuple, list)) and len(part) == 3 for part in parts) and len(parts) in (2, 3):
        return (
            "received three arrays for a part; sample weights go into a tf.data.Dataset of (x, y, weights): pass "
            "(train, validation, test), each as tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(60)."
        )
    if any(_is_stream(part) for part in everything):
        num = f"{len(parts)} parts" if parts else "one tf.data.Dataset"
        return f"received {num}, allowed are three: (train, validation, test), each a tf.data.Dataset, batched."
    if len(parts) in (4, 6):
        return ""
    return f"received {f'{len(parts)} parts' if parts else type(data).__name__}, allowed is {allowed}."


def _kind(part: Any) -> str:
    names = [one.__name__ for one in type(part).__mro__]
    name = "PyDataset" if "PyDataset" in names else names[0]
    return f"a {name}"


AS_STREAM = (
    "pass (train, validation, test), each a function without arguments that returns a tf.data.Dataset with the same "
    "batches each time, such as tf.data.Dataset.from_generator(lambda: (batches[i] for i in range(len(batches))), "
    "output_signature=(tf.TensorSpec((None, 28, 28)), tf.TensorSpec((None,), tf.int32)))."
)


def _part(arrays: Mapping[str, Any], part: str, where: str) -> Split:
    """Check the inputs and labels of a part."""
    x, y = (_checked(arrays[key], key, where) for key in (f"x_{part}", f"y_{part}"))
    if len(x) != len(y):
        inputs = arrays[f"x_{part}"]
        if isinstance(inputs, (list, tuple)) and all(np.shape(one)[:1] == (len(y),) for one in inputs):
            raise LotteryError(_several(where, f"x_{part}", f"a list of {len(inputs)} arrays"))
        raise LotteryError(f"{where}: x_{part} has {len(x)} examples and y_{part} has {len(y)}.")
    if not len(x):
        raise LotteryError(f"{where}: x_{part} is empty.")
    return Split(x, y)


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
    if array.dtype.kind in "OSUT":
        raise LotteryError(
            f"{where}: {key} has type {array.dtype}, allowed are numbers; turn strings into whole numbers (as "
            "keras.layers.TextVectorization does), or pass strings and ragged tensors as (train, validation, test), "
            "each a batched data set such as tf.data.Dataset.from_tensor_slices((x, y)).batch(60)."
        )
    if array.dtype.kind not in "biuf":
        raise LotteryError(f"{where}: {key} has type {array.dtype}, allowed are numbers.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise LotteryError(f"{where}: {key} holds NaN or infinite values.")
    if array.ndim < (2 if key.startswith("x") else 1):
        raise LotteryError(f"{where}: {key} has shape {array.shape}; its first axis must be the example.")
    if key.startswith("y") and array.dtype.kind in "biu":
        if array.size and int(array.max()) >= 2**31:
            raise LotteryError(f"{where}: {key} holds the label {array.max()}, allowed is at most {2**31 - 1}.")
        array = array.astype(np.int32)  # accepted by all losses of TensorFlow
    return array.astype(np.float32) if array.dtype == np.float64 else array


def _scaling(x: np.ndarray, pixels: str) -> Scaling:
    if x.dtype != np.uint8:
        return Scaling(np.zeros((), np.float32), np.ones((), np.float32), unit_norm=False)
    return PIXELS[pixels](x)


def _fingerprint(parts: tuple[Split, ...]) -> str:
    return _digest([array for part in parts for array in (part.x, part.y)])[:16]


def _sha256(arrays: Mapping[str, np.ndarray]) -> str:
    return _digest([arrays[key] for key in KEYS])


def _digest(arrays: Sequence[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _streams(parts: tuple[Any, ...]) -> Streams:
    makers = [part if callable(part) and not hasattr(part, "element_spec") else _same(part) for part in parts]
    first, again = (_digest_of_first_batches(makers) for _ in range(2))
    if first != again:
        raise LotteryError(
            "data: a data set gives other batches each time it is made, which a resumed run cannot repeat; build it "
            "inside the function, and draw random numbers by tf.random.stateless_* or in one thread."
        )
    return Streams(*makers, fingerprint=first)


def _digest_of_first_batches(makers: list[Callable[[], Any]]) -> str:
    import keras
    import tensorflow as tf

    digest = hashlib.sha256()
    for part, make in zip(("training", "validation", "test"), makers, strict=True):
        keras.utils.set_random_seed(SPLIT_SEED)  # used by a shuffle without a seed
        dataset: Any = make()
        if not hasattr(dataset, "element_spec"):
            raise LotteryError(f"data: a function returned {_kind(dataset)}; {AS_STREAM}")
        _check_batched(dataset.element_spec, part)
        cardinality = int(dataset.cardinality())
        if cardinality == -1 and part != "training":
            raise LotteryError(f"data: the {part} data set never ends; leave out its repeat().")
        digest.update(f"{dataset.element_spec} {cardinality}".encode())
        batches = [keras.tree.flatten(batch) for batch in dataset.take(NUM_PEEKED)]
        if not batches:
            raise LotteryError(f"data: the {part} data set is empty.")
        # A ragged or sparse tensor is several arrays.
        for array in map(np.asarray, tf.nest.flatten(batches, expand_composites=True)):
            content = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()  # strings are objects
            digest.update(f"{array.dtype.str}{array.shape}".encode() + content)
    return digest.hexdigest()[:16]


def _check_batched(spec: Any, part: str) -> None:
    """Raise `LotteryError` if the elements of a data set are not batches of inputs and labels."""
    import tensorflow as tf

    if isinstance(spec, Mapping):
        raise LotteryError(
            f"data: the {part} data set gives dicts of {', '.join(spec)}, allowed are inputs and labels; add "
            ".map(lambda batch: (batch['image'], batch['label'])) with its names."
        )
    shapes = [one.shape for one in tf.nest.flatten(spec) if getattr(one, "shape", None) is not None]
    sizes = {None if shape.rank == 0 else shape[0] for shape in shapes if shape.rank is not None}
    scalars = any(shape.rank == 0 for shape in shapes)
    if scalars or len(sizes - {None}) > 1:
        raise LotteryError(
            f"data: the {part} data set is not batched, its elements are single examples; end it with .batch(60), or "
            "another size."
        )


def _same(dataset: Any) -> Callable[[], Any]:
    """Make a function that returns `dataset`; refuse a shuffle that counts the passes made in this process."""
    waiting = [dataset]
    while waiting:
        part = waiting.pop()
        if type(part).__name__.startswith("_Shuffle") and getattr(part, "_reshuffle_each_iteration", True) is not False:
            raise LotteryError(
                "data: this tf.data.Dataset shuffles anew in each pass, which a resumed run cannot repeat; pass a "
                "function that builds it (with a seed), or use shuffle(..., reshuffle_each_iteration=False)."
            )
        waiting.extend(part._inputs())
    return lambda: dataset
