"""A file or folder that another library writes, whole or absent; and its size."""

import contextlib
import gzip
import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

from lottery import files
from lottery.errors import LotteryError


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
    with files.readable_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    try:
        yield new
        with files.readable_errors(path):
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
