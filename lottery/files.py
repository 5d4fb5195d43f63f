"""Read and write files, each whole or absent: arrays, masks at one bit an entry, records."""

import contextlib
import errno
import gzip
import io
import json
import math
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from lottery.errors import LotteryError, StorageError, TicketError

MOST_RECORD = 8_000_000  # bytes of a JSON record: Python's objects take up to 30 times as many
MOST_NESTED = 200  # lists and records in each other; Python itself ends at about a thousand


def write(path: Path, content: bytes) -> None:
    """Write a file whole: a temporary file beside it, flushed to the disk, renamed into place.

    After an error (`StorageError` if the disk is full or the folder cannot be written) the old file is intact.
    """
    with readable_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Beside it, for a rename does not cross from one file system to another.
        temporary = path.with_name(f".{path.name}-{os.getpid()}")
        try:
            # A process that was killed may have left one, and numbers of processes come again.
            temporary.unlink(missing_ok=True)
            # Never through a symbolic link that somebody has put there.
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                # Before the rename, or the name could stand for an empty file after a crash of the machine.
                os.fsync(file.fileno())
            temporary.replace(path)
        # Ctrl-C is no `Exception`, and must not leave the file behind either.
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _flush(path.parent)  # only this puts the rename on the disk


def is_folder(path: Path) -> bool:
    """Return True for a folder, False for a file; raise `TicketError` for neither."""
    try:
        if path.exists():
            return path.is_dir()
        why = "nothing is there"
    except OSError as error:
        why = error.strerror or str(error)
    raise TicketError(f"{str(path)!r} is neither a run nor a ticket file: {why}.")


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading; raise a `LotteryError` for a device or a pipe, which may never end."""

    def without_waiting(name: str, flags: int) -> int:
        # Without this flag, to open a pipe is to wait for whoever may write to it.
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))

    try:
        file = open(path, "rb", opener=without_waiting)  # noqa: SIM115 (a Path has no opener)
    # A ValueError is for a path with a null character.
    except (OSError, ValueError) as error:
        raise LotteryError(f"{str(path)!r} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise LotteryError(f"{str(path)!r} cannot be read: it is not a regular file.")
        yield file


def read(path: Path, most: int | None = None) -> bytes:
    """Read a file of at most `most` bytes, by default half of the memory, or raise a `LotteryError` that names it."""
    most = _memory() // 2 if most is None else most
    with opened(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > most:
            raise LotteryError(
                f"{str(path)!r} cannot be read: it has {size:,} bytes, more than the {most:,} that it can need."
            )
        # No more than its size was when it was compared: the file may grow meanwhile.
        return _content(file, size, path)


def _content(file: BinaryIO, size: int, path: Path) -> bytes:
    try:
        return file.read(size)
    except (OSError, MemoryError) as error:
        raise LotteryError(f"{str(path)!r} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def _memory() -> int:
    """Return the bytes of memory of the machine, or 16 GB where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 16_000_000_000


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a record as JSON."""
    write(path, (json.dumps(values, indent=1) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a record, or raise a `LotteryError` that names the file."""
    content = read(path, MOST_RECORD)
    try:
        values = json.loads(content)
        check_nesting(values)
    except (ValueError, RecursionError) as error:
        raise LotteryError(f"{str(path)!r} is damaged ({error}).") from None
    if not isinstance(values, dict):
        raise LotteryError(f"{str(path)!r} is damaged: it holds no record.")
    return values


def check_nesting(value: Any) -> None:
    """Raise `ValueError` if lists and records of JSON nest deeper than `MOST_NESTED`."""
    # Level by level: a function that calls itself would end at Python's own limit.
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MOST_NESTED):
        parts = [part for outer in level for part in (outer.values() if isinstance(outer, dict) else outer)]
        level = [part for part in parts if isinstance(part, (dict, list))]
        if not level:
            return
    raise ValueError(f"its record nests more than {MOST_NESTED} deep")


def pack_arrays(arrays: Mapping[str, np.ndarray], metadata: dict[str, str] | None = None) -> bytes:
    """Pack arrays, and text by name, as safetensors. The order of two or more texts varies between calls.

    Raises `LotteryError` for a name that does not print, so that `read_arrays` would refuse the file.
    """
    if odd := next((name for name in arrays if not name.isprintable()), None):
        raise LotteryError(
            f"The name of a variable must have printable characters only, not {odd[:80]!r}. Rename its layer."
        )
    # Not ascontiguousarray, which turns a single number into an array.
    return safetensors.save({name: np.asarray(value, order="C") for name, value in arrays.items()}, metadata=metadata)


class Layout(NamedTuple):
    """What the header of a file of arrays says."""

    size: int  # bytes of the file
    arrays: dict[str, tuple[str, tuple[int, ...]]]  # type and shape by name
    metadata: dict[str, str]  # text by name


def layout(path: Path) -> Layout:
    """Read the header of a file of arrays, and nothing else, or raise a `LotteryError` that names the file."""
    with opened(path) as file:
        return _layout(path, file)


def _layout(path: Path, file: BinaryIO) -> Layout:
    # By the format of safetensors: eight bytes, the least significant first, with the length of the header.
    length = int.from_bytes(file.read(8), "little")
    # The file claims its length, and Python would ask for as much memory.
    if length > MOST_RECORD:
        raise LotteryError(f"{str(path)!r} is damaged: its header has {length:,} bytes.")
    try:
        header = json.loads(file.read(length))
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        arrays = {name: (str(entry["dtype"]), tuple(entry["shape"])) for name, entry in entries.items()}
        end = max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise LotteryError(f"{str(path)!r} is damaged: its header cannot be read ({type(error).__name__}).") from None
    return Layout(8 + length + end, arrays, header.get("__metadata__") or {})


def read_packed(path: Path, check: Callable[[Layout], None] = lambda found: None) -> bytes:
    """Read a file of arrays as bytes, after a check of its header: a file may have a hole of any size behind it.

    Raises `LotteryError` if the size of the file is not as its header says; or what `check` raises.
    """
    with opened(path) as file:
        found = _layout(path, file)
        check(found)
        size = os.fstat(file.fileno()).st_size
        if size != found.size:
            raise LotteryError(f"{str(path)!r} is damaged: it has {size:,} bytes, and {found.size:,} by its header.")
        file.seek(0)
        return _content(file, size, path)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a file, or raise a `LotteryError` that names it."""
    return parse_arrays(path, read_packed(path))


def parse_arrays(path: Path, content: bytes) -> dict[str, np.ndarray]:
    """Parse the content of a file of arrays; the path is for errors."""
    try:
        arrays = safetensors.load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise LotteryError(f"{str(path)!r} is damaged ({error}).") from None
    for name in arrays:
        if not name.isprintable():
            raise LotteryError(f"{str(path)!r} is damaged: it names a variable {name[:80]!r}.")
    return arrays


def pack_masks(masks: dict[str, np.ndarray]) -> bytes:
    """Pack masks as safetensors at one bit an entry, in row-major order, the first entry in the highest bit.

    The metadata's ``shapes`` is a JSON object from names, in the order of the weights, to shapes. One entry, for the
    order of several varies, and the same masks must be the same bytes.
    """
    shapes = json.dumps({name: mask.shape for name, mask in masks.items()})
    return safetensors.save({name: np.packbits(mask) for name, mask in masks.items()}, metadata={"shapes": shapes})


def read_masks(path: Path) -> dict[str, np.ndarray]:
    """Read the masks of a file, or raise a `LotteryError` that names it."""
    return parse_masks(path, read(path))


def most_of_masks(num_entries: int, num_weights: int) -> int:
    """Return how many bytes the masks of weights with so many entries take at most in a file."""
    return num_entries // 8 + 10_000 * (num_weights + 1)


def parse_masks(path: Path, content: bytes) -> dict[str, np.ndarray]:
    """Parse the content of a file that `pack_masks` made; the path is for errors."""
    packed = parse_arrays(path, content)
    masks = {}
    try:
        # The library reads this header of a file only, and the file was read once already.
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        for name, shape in json.loads(header["__metadata__"]["shapes"]).items():
            # NumPy 1 has no more than 32 axes; True would pass as a length of 1.
            if not all(type(length) is int and 0 < length < 2**40 for length in shape) or len(shape) > 32:
                raise ValueError(f"{name} has the shape {str(shape)[:80]}")
            size = math.prod(shape)
            if packed[name].size != -(-size // 8):
                raise ValueError(f"{name} has {packed[name].size} bytes for {size} entries")
            masks[name] = np.unpackbits(packed[name], count=size).astype(bool).reshape(shape)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise LotteryError(f"{str(path)!r} does not hold masks ({error}).") from None
    if not masks:
        raise LotteryError(f"{str(path)!r} does not hold masks.")
    return masks


def others_may_write(folder: Path) -> bool:
    """Check if a user other than this one owns a folder, or may write to it."""
    if os.name != "posix":  # other systems have other rights
        return False
    status = folder.stat()
    # User 0, the administrator, may write everywhere in any case.
    is_own = status.st_uid in (os.getuid(), 0)
    return not is_own or bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def temporary_folder() -> Path:
    """Return the folder for temporary files, or raise `StorageError` if none can be written."""
    with readable_errors(Path(os.environ.get("TMPDIR", "/tmp"))):
        return Path(tempfile.gettempdir())


@contextlib.contextmanager
def readable_errors(path: Path) -> Iterator[None]:
    """Turn a failure to write below `path` into a `StorageError` of one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            # The path itself may not exist, and only of what exists a system knows the disk.
            existing = next(place for place in (path, *path.parents) if place.exists())
            why = f"the disk is full ({shutil.disk_usage(existing).free / 1e6:.1f} MB free)"
        else:
            why = error.strerror or str(error)
        raise StorageError(f"{str(path)!r} cannot be written: {why}; everything stored before is intact.") from None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path of the same name to write a file or folder to, and move that into place at the end.

    An existing file or SavedModel is replaced, but intact after any error; another folder is refused.
    """
    if path.is_dir() and not (path / "saved_model.pb").is_file():
        raise LotteryError(f"{str(path)!r} is a folder; name another path, or remove it.")
    with readable_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # A folder, because libraries look at the name and leave other files beside it.
        temporary = tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent, ignore_cleanup_errors=True)
    with temporary as folder:
        new = Path(folder, path.name)
        yield new
        with readable_errors(path):
            # Each by itself: to flush a folder writes the names in it, not the content of its files.
            for written in (new, *new.rglob("*")):
                _flush(written)
            before = Path(folder, "before")
            if path.is_dir():  # a rename replaces files only
                path.replace(before)
            # What was there must not go with the temporary folder where the second rename fails.
            try:
                new.replace(path)
            finally:
                if before.exists() and not path.exists():
                    before.replace(path)
            _flush(path.parent)


def sizes(path: Path) -> tuple[int, int]:
    """Count the bytes of a file, raw and after gzip at level 9; of a folder, of its files and of a gzipped tar."""
    if path.is_file():
        content = path.read_bytes()
        return len(content), len(gzip.compress(content, 9, mtime=0))
    packed = io.BytesIO()
    found = sorted(file for file in path.rglob("*") if file.is_file())
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for file in found:
            # Without owner and time, so that the same files have the same size.
            entry = tarfile.TarInfo(file.relative_to(path).as_posix())
            entry.size = file.stat().st_size
            with file.open("rb") as opened:
                tar.addfile(entry, opened)
    return sum(file.stat().st_size for file in found), len(gzip.compress(packed.getvalue(), 9, mtime=0))


def _flush(path: Path) -> None:
    # A folder can be opened for reading only, and that is enough to flush it.
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def redirected(descriptor: int, to: int | None = None) -> Iterator[None]:
    """Within, send what the process writes to a descriptor, also from below Python, to another, by default nowhere."""
    try:
        # It fails where the process was started with this descriptor closed.
        saved = os.dup(descriptor)
    except OSError:
        saved = None
    # What is opened may get the number of the descriptor itself, if that was closed.
    target = os.open(os.devnull, os.O_WRONLY) if to is None else to
    if target != descriptor:
        os.dup2(target, descriptor)
        if to is None:
            os.close(target)
    try:
        yield
    finally:
        if saved is None:
            os.close(descriptor)
        else:
            os.dup2(saved, descriptor)
            os.close(saved)
