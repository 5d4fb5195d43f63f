"""Files that are whole or absent, and what they hold: arrays, masks at one bit an entry, records."""

import contextlib
import errno
import gzip
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from lottery.errors import LotteryError, StorageError, TicketError
from lottery.masks import Masks


def write(path: Path, content: bytes) -> None:
    """Write a file whole: a temporary file beside it, flushed to the disk, renamed into place.

    Raises:
        LotteryError: The disk is full or the folder cannot be written. The file is as it was before.
    """
    with readable_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}-{os.getpid()}")
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the rename itself is on the disk only now
        finally:
            os.close(folder)


def is_folder(path: Path) -> bool:
    """Whether a folder or a file is at a path; a `TicketError` where there is neither."""
    try:
        if path.exists():
            return path.is_dir()
        why = "nothing is there"
    except OSError as error:
        why = error.strerror or str(error)
    raise TicketError(f"{str(path)!r} is not a run, nor a ticket file: {why}.")


def read(path: Path) -> bytes:
    """The bytes of a file, or a `LotteryError` that names it."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise LotteryError(f"{str(path)!r} cannot be read: {error.strerror or error}.") from None


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a record as JSON."""
    write(path, (json.dumps(values, indent=1) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a record, or raise a `LotteryError` that names the file."""
    content = read(path)
    try:
        values = json.loads(content)
    except ValueError as error:
        raise LotteryError(f"{str(path)!r} is damaged ({error}).") from None
    if not isinstance(values, dict):
        raise LotteryError(f"{str(path)!r} is damaged: it holds no record.")
    return values


def pack_arrays(arrays: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None) -> bytes:
    """Arrays as safetensors, with text beside them; more than one entry of text comes in an order of chance."""
    # Not ascontiguousarray, which makes a single number an array of one.
    return safetensors.save({name: np.asarray(value, order="C") for name, value in arrays.items()}, metadata=metadata)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read arrays that `pack_arrays` made.

    Raises:
        LotteryError: The file is missing or damaged.
    """
    return parse_arrays(path, read(path))


def parse_arrays(path: Path, content: bytes) -> dict[str, np.ndarray]:
    """Arrays from the content of a file that `read_arrays` reads; errors name its path."""
    try:
        return safetensors.load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise LotteryError(f"{str(path)!r} is damaged ({error}).") from None


def read_metadata(path: Path) -> dict[str, str]:
    """The text beside the arrays of a file that `pack_arrays` made.

    Raises:
        LotteryError: The file is missing or damaged.
    """
    content = read(path)
    try:
        return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__", {})
    except (ValueError, AttributeError) as error:
        raise LotteryError(f"{str(path)!r} is damaged ({error}).") from None


def pack_masks(masks: Masks) -> bytes:
    """Masks as safetensors at one bit an entry, in row-major order, the first entry in the highest bit.

    The metadata's ``shapes`` is a JSON object from names, in the order of the weights, to shapes. It is one entry, for
    safetensors writes several in an order of chance, and the same masks must be the same bytes.
    """
    shapes = json.dumps({name: mask.shape for name, mask in masks.items()})
    return safetensors.save({name: np.packbits(mask) for name, mask in masks.items()}, metadata={"shapes": shapes})


def read_masks(path: Path) -> Masks:
    """Read masks that `pack_masks` made.

    Raises:
        LotteryError: The file is missing or damaged.
    """
    return parse_masks(path, read(path))


def parse_masks(path: Path, content: bytes) -> Masks:
    """Masks from the content of a file that `read_masks` reads; errors name its path."""
    packed = parse_arrays(path, content)
    try:
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        masks = {}
        for name, shape in json.loads(header["__metadata__"]["shapes"]).items():
            size = int(np.prod(shape, dtype=np.int64))
            if packed[name].size != -(-size // 8):
                raise ValueError(f"{name} has {packed[name].size} bytes for {size} entries")
            masks[name] = np.unpackbits(packed[name], count=size).astype(bool).reshape(shape)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise LotteryError(f"{str(path)!r} does not hold masks ({error}).") from None
    return masks


def temporary_folder() -> Path:
    """Where files are put that nobody is to keep.

    Raises:
        StorageError: There is no such folder that can be written, as on a full disk.
    """
    with readable_errors(Path(os.environ.get("TMPDIR", "/tmp"))):
        return Path(tempfile.gettempdir())


@contextlib.contextmanager
def readable_errors(path: Path) -> Iterator[None]:
    """Turn a failure to write below `path` into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(_existing(path)).free
            why = f"the disk is full ({free / 1e6:.1f} MB free)"
        else:
            why = error.strerror or str(error)
        raise StorageError(f"{str(path)!r} cannot be written: {why}; everything stored before is intact.") from None


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write a file or folder to, which takes the place of another at the end.

    Args:
        path: Where it is to be; its folder is made. A file that is there is replaced, of folders only a SavedModel.

    Yields:
        A path of the same name in a temporary folder beside it.

    Raises:
        LotteryError: There is another folder, the disk is full or the folder cannot be written. What was there is as
            it was before, as it is after any error within.
    """
    if path.is_dir() and not (path / "saved_model.pb").is_file():
        raise LotteryError(f"{str(path)!r} is a folder; name another path, or remove it.")
    # A folder, because libraries look at the name and leave files of their own beside.
    folder = path.with_name(f".{path.name}-{os.getpid()}")
    new = folder / path.name
    with readable_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    try:
        yield new
        with readable_errors(path):
            for one in (new, *new.rglob("*")):
                _flush(one)
            if path.is_dir():  # which no other folder can replace
                path.replace(folder / "before")
            new.replace(path)
            _flush(path.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sizes(path: Path) -> tuple[int, int]:
    """Bytes raw and after gzip at level 9, which nothing but the contents decide.

    Args:
        path: A file or a folder.

    Returns:
        The size of the file and of the gzipped file; of a folder, those of its files and of a gzipped tar file of them.
    """
    if path.is_file():
        content = path.read_bytes()
        return len(content), len(gzip.compress(content, 9, mtime=0))
    packed, found = io.BytesIO(), sorted(one for one in path.rglob("*") if one.is_file())
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for one in found:
            entry = tarfile.TarInfo(one.relative_to(path).as_posix())  # without owner and time
            entry.size = one.stat().st_size
            with one.open("rb") as file:
                tar.addfile(entry, file)
    return sum(one.stat().st_size for one in found), len(gzip.compress(packed.getvalue(), 9, mtime=0))


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
