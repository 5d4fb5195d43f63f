"""A run on disk: plain files, each whole or absent; a round is complete once it has its ``round.json``."""

import contextlib
import csv
import difflib
import hashlib
import io
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from filelock import FileLock, Timeout

from lottery import config, files, weights
from lottery.errors import LotteryError, StorageError
from lottery.masks import Masks
from lottery.runs import records
from lottery.settings import MOST

FORMAT = 1  # of round.json
TICKET = "ticket"  # the branch of the main chain
SPLITS = ("train", "validation", "test")
MOST_METRICS = 100_000_000  # bytes of a curve
METRICS = ("step", "split", "loss", "accuracy")
CHANGES = ("step", "num_kept", "pruned", "grown")  # of a change of masks in training
EARLY_STOP, PREDICTIONS = "early_stop.safetensors", "predictions.safetensors"  # not in runs of earlier versions
BUDGET = "budget.safetensors"  # only where the early-stop step comes after the budget

Folder = str | os.PathLike[str]  # of a run, as text or a path, or a `lottery.Run`


class NetworkId(NamedTuple):
    """Which network of a run: a round of a replicate, both counted, or a branch from it."""

    replicate: int  # from 1
    round: int
    branch: str = TICKET

    def __str__(self) -> str:
        """Name the network in a sentence."""
        branch = "" if self.branch == TICKET else f", branch {self.branch}"
        return f"Replicate {self.replicate}, round {self.round}{branch}"


def replicates(run: Folder, experiment: config.Experiment) -> list[int]:
    """List the replicates of an experiment that have a folder: a stranger's experiment may want any number."""
    found = (path.name.removeprefix("replicate-") for path in Path(run).glob("replicate-*"))
    numbers = sorted(int(text) for text in found if re.fullmatch(r"[1-9]\d{0,8}", text))
    return [number for number in numbers if number <= experiment.run.num_replicates]


def branch_labels(folder: Path) -> list[str]:
    """List the complete branches from the round in a folder; raise `LotteryError` for a name that no branch has."""
    labels = [path.parent.name.removeprefix("branch-") for path in folder.glob("branch-*/round.json")]
    for label in labels:
        if label == TICKET or not re.fullmatch(records.LABEL, label):
            raise LotteryError(f"{str(folder / f'branch-{label}')!r} is not the name of a branch; remove the folder.")
    return labels


def inside(run: Folder, path: Path) -> Path:
    """Return a path below a run, or raise `LotteryError` if a symbolic link leads it out of the run's folder."""
    why = "leads nowhere"
    with contextlib.suppress(OSError, RuntimeError):  # links in a circle, before Python 3.13
        place = path.resolve()
        if not place.is_symlink():
            if place.is_relative_to(Path(run).resolve()):
                return path
            why = "leads out of the run's folder"
    raise LotteryError(f"{str(path)!r} {why} by a symbolic link; replace the link with what belongs there.")


def refuse_links(run: Path) -> None:
    """Raise `LotteryError` if a symbolic link below a run leads out of its folder: writing would follow it."""
    # Links to folders are listed among the folders, and not followed.
    for folder, folders, names in os.walk(run):
        for path in (Path(folder, name) for name in (*folders, *names)):
            if path.is_symlink():
                inside(run, path)


def run_path(out: str | Path, experiment: config.Experiment) -> Path:
    """Return the folder of a run: the experiment's name and the digest of its configuration, below `out`."""
    return Path(out) / f"{experiment.name}-{config.digest(experiment)}"


def round_path(run: Folder, replicate: int, index: int, branch: str = TICKET) -> Path:
    """Return the folder of a round, or of a branch from it."""
    # Two digits, so that listings by name are in order up to round 99.
    folder = Path(run) / f"replicate-{replicate}" / f"round-{index:02d}"
    return folder if branch == TICKET else folder / f"branch-{branch}"


def round_of(folder: str) -> int | None:
    """Read a round from the name of its folder; None for a name that no reader looks for, such as ``round-1``."""
    number = folder.removeprefix("round-")
    is_usual = re.fullmatch(r"\d{1,9}", number) and folder == round_path(Path(), 1, int(number)).name
    return int(number) if is_usual else None


def start_path(run: Folder, replicate: int, step: int = 0) -> Path:
    """Return the file of every variable at the rewind step of a replicate, at step 0 of the initial ones."""
    return Path(run) / f"replicate-{replicate}" / ("start.safetensors" if step else "initial.safetensors")


def state_path(run: Folder, replicate: int, step: int) -> Path:
    """Return the file of every variable of the dense network at a step that other runs of a sweep rewind to."""
    return Path(run) / f"replicate-{replicate}" / f"step-{step:05d}.safetensors"


def checkpoint_path(folder: Path, stage: str = "") -> Path:
    """Return the file of a checkpoint in the folder of a round. It exists only while the round is trained."""
    return folder / f"checkpoint{'-' if stage else ''}{stage}.safetensors"


def clear_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a network, and its folder if that is empty then."""
    with files.readable_errors(folder):
        for path in folder.glob("checkpoint*.safetensors"):
            path.unlink(missing_ok=True)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def read_experiment(run: Folder) -> config.Experiment:
    """Read the experiment of a run; `LotteryError` if there is none, or it was changed after the run began."""
    run = Path(run)
    path = run / "experiment.toml"
    try:
        found = path.is_file()
    except OSError as error:
        raise LotteryError(f"{str(run)!r} cannot be read: {error.strerror or error}.") from None
    if not found:
        raise LotteryError(f"{str(run)!r} is not a run: it has no experiment.toml.{_nearest(run)}")
    experiment = _read_stored(path)
    recorded, digest = read_environment(run).get("digest"), config.digest(experiment)
    if recorded and recorded != digest:
        raise _edited(path, f": its digest is {digest} and was {recorded}")
    return experiment


def read_environment(run: Folder) -> dict[str, Any]:
    """Read the versions, processor and threads that a run began with; empty before anything is stored."""
    run = Path(run)
    path = run / "environment.json"
    if not path.exists():
        if next(run.glob("replicate-*/round-*/round.json"), None):
            raise LotteryError(f"{str(path)!r} is missing: it says how the stored rounds were computed.")
        return {}
    try:
        environment = files.read_json(inside(run, path))
        if environment.get("record_sha256") != _digest_of(environment):
            raise LotteryError(f"{str(path)!r} is damaged: its checksum is wrong.")
        return records.of_environment(environment, path)
    except LotteryError as error:
        raise LotteryError(f"{str(error).rstrip('.')}; restore it, or start a new run.") from None


def check_there(run: Path) -> None:
    """Raise `StorageError` if the folder of a run was removed or moved while work on it goes on."""
    if not (run / "experiment.toml").exists():
        raise StorageError(f"{str(run)!r} was removed or moved during the run, so nothing more is stored there.")


@contextlib.contextmanager
def opened(run: Path, experiment: config.Experiment) -> Iterator[None]:
    """Create or open a run for writing; other processes get a `LotteryError` until this one closes it, or ends."""
    with files.readable_errors(run):
        run.mkdir(parents=True, exist_ok=True)
        # Before anything is written, also the lock, which a link could lead elsewhere.
        refuse_links(run)
        try:
            # The kernel drops this lock when the process ends, killed or not.
            lock = FileLock(run / ".lock", timeout=0).acquire()
        except Timeout:
            raise LotteryError(f"Another process is working on {str(run)!r}; wait for it, or stop it first.") from None
    with lock:
        # Only under the lock: a temporary file may be that of another process that still writes it.
        _clear_leftovers(run)
        file = run / "experiment.toml"
        if not file.exists():
            files.write(file, config.dump(experiment).encode())
        elif (stored := _read_stored(file)) != experiment:
            raise _edited(file, f" ({'; '.join(config.differences(stored, experiment))})")
        yield
        _clear_leftovers(run)  # of workers that were killed and replaced


def _clear_leftovers(run: Path) -> None:
    # Killed processes leave half-written files, and checkpoints of networks that are complete.
    with files.readable_errors(run):
        for path in (*run.rglob(".*.*-*"), *run.rglob("checkpoint*.safetensors")):
            # A folder is of an export that was killed.
            is_leftover = path.name.startswith(".") or (path.parent / "round.json").exists()
            if is_leftover and not path.is_dir():
                path.unlink(missing_ok=True)


def write_round(
    folder: Path,
    masks: Masks,
    weights: Mapping[str, np.ndarray],
    metrics: Iterable[tuple[int, str, float, float]],
    record: Mapping[str, Any],
    others: Mapping[str, Mapping[str, np.ndarray] | None] | None = None,
) -> dict[str, Any]:
    """Store a round with every variable after training, over what an interrupted attempt left in its folder.

    Of the `others`, by the names `EARLY_STOP`, `BUDGET` and `PREDICTIONS`, those are stored that there are.
    ``round.json`` comes last: it is the record, with the checksum of each file, and is returned.
    """
    # All is packed before anything is written: what cannot be packed leaves nothing behind.
    contents = {
        "masks.safetensors": files.pack_masks(masks),
        "weights.safetensors": files.pack_arrays(weights),
        "metrics.csv": pack_rows([METRICS, *metrics]),
    }
    for name, arrays in (others or {}).items():
        if arrays is not None:
            contents[name] = files.pack_arrays(arrays)
    for name, content in contents.items():
        files.write(folder / name, content)
    # Of what was to be written, not read back: a file that was not written well fails its checksum later.
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    # JSON has no NaN, the accuracy of a model that measures none.
    known = {key: None if value != value else value for key, value in record.items()}
    # Last of all: a round counts as stored once it has its record.
    return write_record(folder / "round.json", {"format": FORMAT, **known, "sha256": sums})


def pack_rows(rows: Iterable[Iterable[Any]]) -> bytes:
    """Pack rows, the heads of the columns first, as the content of a CSV file."""
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(rows)
    return table.getvalue().encode()


def parse_rows(content: bytes, columns: Sequence[str], types: Sequence[Callable[[str], Any]]) -> list[Any]:
    """Parse the rows of a CSV file that `pack_rows` made; raise `ValueError` if they are not of these columns."""
    try:
        heads, *lines = csv.reader(io.StringIO(content.decode()))
    except csv.Error as error:
        raise ValueError(str(error)) from None
    if heads != list(columns):
        raise ValueError(f"its columns are {str(heads)[:80]}")
    # A line with fewer or more parts is a ValueError, too, because of `strict`.
    return [tuple(parse(text) for parse, text in zip(types, line, strict=True)) for line in lines]


def write_record(path: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Write a record as JSON with a checksum of itself, and return it as written."""
    # Through JSON and back, as it will be read: the checksum is of texts, in which tuples are lists.
    complete = json.loads(json.dumps(record))
    complete["record_sha256"] = _digest_of(complete)
    files.write_json(path, complete)
    return complete


def read_record(folder: Path) -> dict[str, Any]:
    """Read the record of a complete round; `LotteryError` if it is missing, damaged, or was changed."""
    path = folder / "round.json"
    values = files.read_json(path)
    # Before the checksum, which another version may compute in another way.
    if values.get("format") != FORMAT:
        why = f"has format {str(values.get('format'))[:80]}, and this version of lottery reads {FORMAT}"
        raise LotteryError(f"{str(path)!r} {why}; install the version that wrote it.")
    if values.get("record_sha256") != _digest_of(values):
        raise _damaged(path)
    record = records.of_round(values, path)
    replicate, index, branch = record["replicate"], record["round"], record.get("branch", TICKET)
    # A folder that was copied or renamed would pass for another network: its checksums are right.
    place = round_path(Path(), replicate, index, branch).parts
    if place != folder.parts[-len(place) :]:
        where = f"replicate {replicate}, round {index}, branch {branch}"
        raise LotteryError(f"{str(path)!r} belongs to {where}; remove its folder, or move it back.")
    return record


def read_metrics(folder: Path, content: bytes | None = None) -> list[tuple[int, str, float, float]]:
    """Parse step, split, loss and accuracy of every evaluation of a network, from its file or content read before."""
    path = folder / "metrics.csv"
    content = files.read(path, MOST_METRICS) if content is None else content
    try:
        rows = parse_rows(content, METRICS, (int, str, float, float))
        if wrong := {row[1] for row in rows} - set(SPLITS):
            raise ValueError(f"it has the split {min(wrong)[:80]!r}")
        if not rows:
            raise ValueError("it has no evaluation")
        if not all(0 <= row[0] <= MOST for row in rows):
            raise ValueError("it has a step that no training has")
        return rows
    except ValueError as error:
        raise LotteryError(f"{str(path)!r} is damaged ({error}).") from None


def read_start(run: Path, replicate: int, step: int = 0) -> dict[str, np.ndarray]:
    """Read every variable at the rewind step of a replicate, at step 0 the initial ones."""
    path = inside(run, start_path(run, replicate, step))
    return records.Record(files.read_arrays(path), path)


def write_state(path: Path, state: Mapping[str, np.ndarray]) -> None:
    """Write every variable at a step, with a checksum beside them, which no record has."""
    files.write(path, files.pack_arrays(state, {"sha256": weights.fingerprint(state)}))


def read_state(path: Path) -> dict[str, np.ndarray]:
    """Read what `write_state` has written, or raise `LotteryError` if it was changed since."""
    state = files.read_arrays(path)
    if files.layout(path).metadata.get("sha256") != weights.fingerprint(state):
        why = "is damaged, or an earlier version stored it: it does not have its checksum"
        raise LotteryError(f"{str(path)!r} {why}; delete it to have it made again.")
    return state


def check_files(folder: Path) -> None:
    """Raise `LotteryError` unless the record of a round and every file that it names have their checksums."""
    for name, expected in read_record(folder)["sha256"].items():
        read_checked(folder / name, expected)


def read_checked(
    path: Path, expected: str, most: int | None = None, check: Callable[[files.Layout], None] = lambda found: None
) -> bytes:
    """Read a file of a round, or raise `LotteryError` if it does not have the checksum that the record expects.

    The header of a file of arrays is checked first, by `check` too, unless `most` bounds what the file may have.
    """
    packed = path.suffix == ".safetensors" and most is None
    content = files.read_packed(path, check) if packed else files.read(path, most)
    if hashlib.sha256(content).hexdigest() != expected:
        raise _damaged(path)
    return content


def complete_rounds(run: Folder, replicate: int) -> list[int]:
    """List the complete rounds of a replicate, from round 0 to the first gap."""
    # What lies behind a gap was pruned from a network that is gone.
    return list(itertools.takewhile(lambda index: is_stored(run, replicate, index), itertools.count()))


def wanted(experiment: config.Experiment) -> list[tuple[int, str]]:
    """List round and branch of every network that an experiment trains per replicate, in the order of training."""
    rounds = range(experiment.prune.num_rounds + 1)
    chosen = rounds[1:] if experiment.run.control_rounds == config.ALL else experiment.run.control_rounds
    controls = [(index, label) for index in chosen for label in experiment.run.controls]
    return [*((index, TICKET) for index in rounds), *controls]


def is_stored(run: Folder, replicate: int, index: int, branch: str = TICKET) -> bool:
    """Return True if a round, or a branch from it, is complete."""
    return (round_path(run, replicate, index, branch) / "round.json").exists()


def progress(run: Path, experiment: config.Experiment) -> tuple[int, int]:
    """Count the networks of an experiment that are stored, and all of them."""
    places = set(wanted(experiment))
    stored = sum(len(places & _stored(run / f"replicate-{number}")) for number in replicates(run, experiment))
    return stored, experiment.run.num_replicates * len(places)


def _stored(folder: Path) -> set[tuple[int, str]]:
    # Listed from the files, not looked up: a stranger's experiment may want far more networks than are there.
    places = set()
    for path in (*folder.glob("round-*/round.json"), *folder.glob("round-*/branch-*/round.json")):
        found, *branch = path.relative_to(folder).parts[:-1]
        index = round_of(found)
        if index is not None:
            places.add((index, branch[0].removeprefix("branch-") if branch else TICKET))
    return places


def is_complete(run: Path, experiment: config.Experiment) -> bool:
    """Return True if every network of an experiment is stored."""
    stored, all_networks = progress(run, experiment)
    return stored == all_networks


def runs(out: str | Path) -> list[Path]:
    """List the runs below a folder, by name."""
    return sorted(path.parent for path in Path(out).glob("*/experiment.toml"))


def _nearest(run: Path) -> str:
    """Name the run of the same folder whose name is most like one that is not there; empty without any."""
    names = {path.name: path for path in runs(run.parent)}
    near = difflib.get_close_matches(run.name, names, n=1)
    return f" Did you mean {str(names[near[0]])!r}?" if near else " The command `lottery ls` lists the runs."


def _read_stored(path: Path) -> config.Experiment:
    try:
        tables = config.parsed(path, files.read(inside(path.parent, path), config.MOST_BYTES))
        # By an empty list an earlier version meant all rounds.
        if config.asks_for_no_rounds(tables):
            tables["run"]["control_rounds"] = config.ALL
        return config.validated(tables)
    except LotteryError as error:
        why = f"is damaged, or was edited ({str(error).rstrip('.')}); restore it, or start a new run."
        raise LotteryError(f"{str(path)!r} {why}") from None


def _edited(path: Path, how: str) -> LotteryError:
    why = f"was edited after the run started{how}; restore it, or start a new run from a copy."
    return LotteryError(f"{str(path)!r} {why}")


def _digest_of(record: Mapping[str, Any]) -> str:
    # Sorted below, because JSON does not promise an order of keys.
    rest = {key: value for key, value in record.items() if key != "record_sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def how_to_train_again(folder: Path) -> str:
    """Say what to delete so that a damaged network is trained again; nothing is pruned from a branch."""
    what = "to train it again" if folder.name.startswith("branch-") else "and the rounds after it to train them again"
    return f"delete {str(folder)!r} {what}"


def _damaged(path: Path) -> LotteryError:
    why = "is damaged: its checksum differs from the record"
    return LotteryError(f"{str(path)!r} {why}; {how_to_train_again(path.parent)}.")
