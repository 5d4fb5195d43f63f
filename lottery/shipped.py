"""The experiment files that ship with the package."""

import re
from pathlib import Path
from typing import Any

from lottery import config, files
from lottery.errors import LotteryError, unknown


def paths() -> dict[str, Path]:
    """Every experiment file by its name, which is the file's without its ending."""
    package = Path(__file__).parent
    # In a checkout they lie beside the package, in a wheel within it.
    folder = next((one for one in (package / "experiments", package.parent / "experiments") if one.is_dir()), package)
    return {path.stem: path for path in sorted([*package.glob("*.toml"), *folder.glob("*.toml")])}


def named(name: str) -> Path:
    """The file of an experiment, or a `LotteryError` with the nearest name."""
    found = paths()
    if name not in found:
        raise unknown("experiment", name, found)
    return found[name]


def find(source: str) -> Path:
    """What a person means by an experiment: a file, or else one that ships with the package."""
    if Path(source).is_file() or source not in paths():
        return Path(source)
    return named(source)


def listed() -> list[dict[str, Any]]:
    """A row for each: ``name``, ``data``, ``model``, ``reproduces`` from the header."""
    rows = []
    for name, path in paths().items():
        experiment = config.load(path)
        found = re.search(
            r"^# (?:Reproduces|What it shows):\s*((?:.*\n)(?:#\s{6,}.*\n)*)", path.read_text("utf-8"), re.M
        )
        what = re.sub(r"\s*\n#\s*", " ", found[1]).strip() if found else ""
        rows.append({"name": name, "data": experiment.data.name, "model": experiment.model.name, "reproduces": what})
    return rows


def copied(name: str, to: Path) -> Path:
    """Copy an experiment file to a file or into a folder; where it lies now.

    Raises:
        LotteryError: There is no such experiment, or the file exists.
    """
    source = named(name)
    target = to / source.name if to.is_dir() else to
    if target.exists():
        raise LotteryError(f"{str(target)!r} exists; remove it, or name another file.")
    files.write(target, source.read_bytes())
    return target
