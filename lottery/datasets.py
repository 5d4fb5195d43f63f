"""Data sets that an experiment can name, and how their arrays come to this machine."""

import contextlib
import hashlib
import io
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lottery import files, randomness
from lottery.errors import LotteryError

KEYS = ("x_train", "y_train", "x_test", "y_test")
VALIDATION = ("x_validation", "y_validation")
MNIST1D_EXAMPLES = 5000  # for training, as many as the authors generate
# Of the arrays as generated, by ``data.num_examples``: the authors' number, and the default experiment's.
MNIST1D_SHA256 = {
    0: "1250badde0592a2c4b36d766adff905a0e56cda69ef181dbf853df833b2b1788",
    24_000: "470815812dd2c57ed3b37fcdf1205a60a1d70a9c41e279be8a67b2a1f59737d4",
}

Arrays = dict[str, np.ndarray]  # by the names in `KEYS`


@dataclass(frozen=True)
class Dataset:
    """A data set, and what is known of it before it is loaded."""

    load: Callable[[], Arrays]
    generate: Callable[[int], Arrays] | None = None  # makes as many training examples as it is asked for
    shape: tuple[int, ...] = ()  # of an example; empty if only the file tells
    is_pixels: bool = True  # stored as uint8; otherwise float32, about 0
    is_local: bool = False  # comes with the packages that are installed, and is never downloaded
    needs_path: bool = False  # is whatever ``data.path`` holds
    has_label_columns: bool = False  # the labels have shape (n, 1)
    # Of the usual arrays by ``data.num_examples``, where each machine generates its own.
    sha256: Mapping[int, str] = field(default_factory=dict)
    num_train: int = 0  # examples for training, where they are few; 0 if there are many, or only the file tells


def read_npz(path: Path) -> Arrays:
    """Read the four arrays of a file, by the names that Keras uses; nothing is unpickled.

    Validation examples are added where the file has ``x_validation`` and ``y_validation``, before the test examples.
    """
    try:
        if not path.exists():
            raise LotteryError(f"There is no data file {str(path)!r}.")
        # Opened here, because np.load leaves a file open that it cannot read.
        with files.opened(path) as raw:
            file: Any = np.load(raw, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise LotteryError(
                    f"The data file {str(path)!r} holds one array, as np.save writes it. Write a file with the arrays "
                    f"{', '.join(KEYS)} with np.savez."
                )
            if missing := [key for key in KEYS if key not in file.files]:
                found = ", ".join(file.files) or "nothing"
                raise LotteryError(f"The data file {str(path)!r} lacks {', '.join(missing)}; it has {found}.")
            own = [key for key in VALIDATION if key in file.files]
            if len(own) == 1:
                raise LotteryError(
                    f"The data file {str(path)!r} has only {own[0]}. It must have both {' and '.join(VALIDATION)}, or "
                    "neither of the two."
                )
            return {key: file[key] for key in (*KEYS[:2], *own, *KEYS[2:])}
    except LotteryError:
        raise
    except Exception as error:  # a truncated file can fail in each of the libraries that read it
        raise LotteryError(f"The data file {str(path)!r} cannot be read ({_reason(error)}); is it complete?") from None


def digest(arrays: Sequence[np.ndarray]) -> str:
    """Return the SHA-256 of types, shapes and values."""
    found = hashlib.sha256()
    for array in arrays:
        # The same bytes may be other numbers, or the same numbers in another shape.
        found.update(f"{array.dtype.str}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def sha256(arrays: Mapping[str, np.ndarray]) -> str:
    """Return the digest of the four arrays of a data set."""
    return digest([arrays[key] for key in KEYS])


def _reason(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _digits() -> Arrays:
    """Load scikit-learn's 1,797 handwritten digits of 8 x 8 pixels; a fifth, always the same, is the test set."""
    from sklearn.datasets import load_digits

    images, labels = (np.asarray(part) for part in load_digits(return_X_y=True))
    x = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # 17 grey levels, stored as pixels
    order = np.random.default_rng(20_190_304).permutation(len(x))
    test, train = np.sort(order[:360]), np.sort(order[360:])
    return {"x_train": x[train], "y_train": labels[train], "x_test": x[test], "y_test": labels[test]}


def _mnist1d(num_examples: int = 0) -> Arrays:
    """Generate MNIST-1D, or read it from the cache: training and 12,000 test examples of 40 numbers, 10 classes.

    The data of Greydanus & Kobak 2024, https://arxiv.org/abs/2011.14439, by the authors' package. By default the
    training examples are the 5,000 that it makes by default. The test set has another seed, and enough examples to
    resolve a difference of 0.002 in accuracy. Inputs have mean 0 and standard deviation 1.
    """
    pinned = MNIST1D_SHA256.get(num_examples)
    num_examples = num_examples or MNIST1D_EXAMPLES
    if not pinned:
        if num_examples % 10:
            raise LotteryError(f"data.num_examples must be a multiple of 10 for mnist1d, not {num_examples}.")
        return _generate_mnist1d(num_examples)
    # Others may be able to write to the folder: without a home it is the one for temporary files.
    cache = _keras_home() / "datasets" / f"lottery-mnist1d-{num_examples}-{pinned[:8]}.npz"
    with contextlib.suppress(LotteryError):  # absent, unreadable or damaged
        arrays = read_npz(cache)
        if sha256(arrays) == pinned:
            return arrays
    arrays = _generate_mnist1d(num_examples)
    if sha256(arrays) == pinned:
        kept: dict[str, Any] = arrays
        content = io.BytesIO()
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


def _generate_mnist1d(num_examples: int) -> Arrays:
    # The package draws from the global generators of NumPy and Python, which are the caller's.
    with randomness.python_and_numpy_put_back():
        from mnist1d.data import get_dataset_args, make_dataset

        arrays = {}
        for part, num_samples, seed in ("train", num_examples, 42), ("test", 12_000, 43):
            settings: Any = get_dataset_args()
            settings.num_samples, settings.seed, settings.train_split = num_samples, seed, 1
            made: Any = make_dataset(settings)
            # Rounded to float32, versions of NumPy and SciPy that differ in the last place give the same arrays.
            arrays |= {f"x_{part}": made["x"].astype(np.float32), f"y_{part}": made["y"].astype(np.int32)}
    return arrays


def _from_keras(name: str) -> Arrays:
    import keras

    try:
        (x_train, y_train), (x_test, y_test) = getattr(keras.datasets, name).load_data()
    except Exception as error:  # Keras raises a bare Exception where there is no network
        raise LotteryError(
            f"{name} is not on this machine and could not be downloaded ({_reason(error)}); put {name}.npz, with "
            f"the arrays {', '.join(KEYS)}, into the folder that LOTTERY_DATA names, set data.path to it, or pass "
            "data= in Python."
        ) from None
    return dict(zip(KEYS, (x_train, y_train, x_test, y_test), strict=True))


def _from_no_file() -> Arrays:
    raise LotteryError('data.name = "npz" needs data.path, the file to read.')


# By the name in ``data.name``.
DATASETS: dict[str, Dataset] = {
    "mnist1d": Dataset(
        _mnist1d,
        _mnist1d,
        shape=(40,),
        is_pixels=False,
        is_local=True,
        sha256=MNIST1D_SHA256,
        num_train=MNIST1D_EXAMPLES,
    ),
    "digits": Dataset(_digits, shape=(8, 8), is_local=True, num_train=1437),
    "mnist": Dataset(partial(_from_keras, "mnist"), shape=(28, 28)),
    "fashion_mnist": Dataset(partial(_from_keras, "fashion_mnist"), shape=(28, 28)),
    "cifar10": Dataset(partial(_from_keras, "cifar10"), shape=(32, 32, 3), has_label_columns=True),
    "npz": Dataset(_from_no_file, needs_path=True),
}
