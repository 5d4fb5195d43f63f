"""The arrays of data sets by name: from a file, from scikit-learn, from Keras' cache or its download."""

from collections.abc import Callable
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from lottery.errors import LotteryError

KEYS = ("x_train", "y_train", "x_test", "y_test")


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The four arrays of a file with the keys that Keras uses.

    Raises:
        LotteryError: The file is missing, truncated, or lacks an array. Nothing in it is ever unpickled.
    """
    try:
        # Opened here, for np.load leaves a file open that it cannot read.
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            missing = [key for key in KEYS if key not in file.files]
            if missing:
                raise LotteryError(
                    f"The data file {str(path)!r} lacks {', '.join(missing)}; it has "
                    f"{', '.join(file.files) or 'nothing'}."
                )
            return {key: file[key] for key in KEYS}
    except LotteryError:
        raise
    except FileNotFoundError:
        raise LotteryError(f"There is no data file {str(path)!r}.") from None
    # A truncated file fails in as many ways as there are layers that read it.
    except (OSError, ValueError, EOFError, BadZipFile, KeyError, AttributeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise LotteryError(f"The data file {str(path)!r} cannot be read ({reason}); is it complete?") from None
    except Exception as error:  # zlib.error, and whatever a decompressor thinks of next
        raise LotteryError(f"The data file {str(path)!r} is damaged ({error}).") from None


def _digits() -> dict[str, np.ndarray]:
    """1,797 real handwritten digits of 8 x 8 pixels, which scikit-learn ships; a fifth, drawn once, is the test set."""
    from sklearn.datasets import load_digits

    images, labels = (np.asarray(part) for part in load_digits(return_X_y=True))
    x = np.round(images.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # 17 grey levels, stored as pixels
    order = np.random.default_rng(20_190_304).permutation(len(x))
    test, train = np.sort(order[:360]), np.sort(order[360:])
    return {"x_train": x[train], "y_train": labels[train], "x_test": x[test], "y_test": labels[test]}


def _from_keras(name: str) -> Callable[[], dict[str, np.ndarray]]:
    def fetch() -> dict[str, np.ndarray]:
        import keras

        try:
            (x_train, y_train), (x_test, y_test) = getattr(keras.datasets, name).load_data()
        except Exception as error:  # Keras raises a bare Exception where there is no network
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise LotteryError(
                f"{name} is not on this machine and could not be downloaded ({reason}); put {name}.npz, with the "
                f"arrays {', '.join(KEYS)}, into the folder that LOTTERY_DATA names, or set data.path to it."
            ) from None
        return dict(zip(KEYS, (x_train, y_train, x_test, y_test), strict=True))

    return fetch


DATASETS: dict[str, Callable[[], dict[str, np.ndarray]]] = {
    "digits": _digits,
    "mnist": _from_keras("mnist"),
    "fashion_mnist": _from_keras("fashion_mnist"),
    "cifar10": _from_keras("cifar10"),
}
