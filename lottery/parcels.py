"""The files of a run that a network needs or makes, on their way between the run's folder and a node far from it."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lottery import files, store

Contents = dict[str, bytes | None]  # by the path below the run's folder; None where a file is no more
CHECKPOINTS = "checkpoint*.safetensors"


def needed(run: Path, network: tuple[int, int, str]) -> list[str]:
    """Which files of a run a network is trained from, of those that are there, by their paths below its folder.

    Args:
        run: The run's folder.
        network: Replicate, round and branch.

    Raises:
        LotteryError: It is not a run, or was edited.
    """
    replicate, index, branch = network
    experiment = store.read_experiment(run)
    rounds = [store.round_path(run, replicate, before) for before in range(index + 1)]
    parts = [index - 1] if branch == store.TICKET else [index, index - 1]
    if not experiment.prune.iterative:
        parts.append(0)
    wanted = [run / "experiment.toml", run / "environment.json"]
    wanted += [store.start_path(run, replicate, step) for step in (0, experiment.rewind.step)]
    # A round counts as stored if its record is there, and one is gone on with after the last that is.
    wanted += [folder / "round.json" for folder in rounds[: index + (branch != store.TICKET)]]
    wanted += [
        rounds[part] / name
        for part in parts
        if part >= 0 and (part < index or branch != store.TICKET)
        for name in ("masks.safetensors", "weights.safetensors")
    ]
    wanted += sorted(store.round_path(run, *network).glob(CHECKPOINTS))
    return list(dict.fromkeys(path.relative_to(run).as_posix() for path in wanted if path.exists()))


def pack(folder: Path, names: Iterable[str]) -> Contents:
    """Files of a folder, as `unpack` takes them."""
    return {name: files.read(folder / name) for name in names}


def unpack(folder: Path, contents: Mapping[str, bytes | None]) -> None:
    """Write files below a folder, and remove those that are no more; what says that a round is complete comes last.

    Raises:
        StorageError: They cannot be written.
    """
    for name, content in sorted(contents.items(), key=lambda one: _comes_last(one[0])):
        if content is not None:
            files.write(folder / name, content)
            continue
        with files.readable_errors(folder / name):
            (folder / name).unlink(missing_ok=True)


@dataclass
class Mirror:
    """What has changed in a folder since it was looked at last."""

    folder: Path
    known: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def changes(self, pattern: str = "*") -> Contents:
        """Files that are new, or others than before, or no more.

        Args:
            pattern: Only those that are called so.
        """
        now: dict[str, tuple[int, ...]] = {}
        contents: Contents = {}
        for path in sorted(self.folder.rglob(pattern)):
            if path.name.startswith(".") or not path.is_file():
                continue
            name = path.relative_to(self.folder).as_posix()
            with contextlib.suppress(FileNotFoundError):  # it was removed at this very moment
                about = path.stat()
                now[name] = (about.st_mtime_ns, about.st_size, about.st_ino)
                if self.known.get(name) != now[name]:
                    contents[name] = path.read_bytes()
        gone = [name for name in self.known if name not in now and Path(name).match(pattern)]
        self.known = {name: stamp for name, stamp in self.known.items() if name not in gone} | now
        contents |= dict.fromkeys(gone)
        return dict(sorted(contents.items(), key=lambda one: _comes_last(one[0])))


def _comes_last(name: str) -> bool:
    return name.endswith("round.json")
