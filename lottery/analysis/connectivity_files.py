"""Where the copies of a run's networks lie that are trained from one step, and the paths between them."""

import csv
import hashlib
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lottery import config, files, randomness, weights
from lottery.errors import LotteryError
from lottery.runs import store

ORDERS = (1, 2)  # of the data: that of the run, and another


FORMAT = 1  # of a path's record


PATH = ("alpha", "split", "loss", "error")


STORED, RECOMPUTED = "stored", "recomputed"  # what statistics of batches are at a point of a path


Row = tuple[float, str, float, float]


Place = tuple[int, int, int]  # replicate, round, step


def folder(run: Path) -> Path:
    """Where everything lies that is stored of a run's connectivity."""
    return run / "connectivity"


def label(step: int, number: int) -> str:
    """The branch that a network is stored under: from which step it was trained, with which order of the data."""
    return f"step_{step}_order_{number}"


def words(experiment: config.Experiment, replicate: int, number: int) -> tuple[int, ...]:
    """The words that decide an order of the data: of order 1 those of the run itself.

    The last word is the purpose, as it is for every training run: augmentation draws by the words before it.
    """
    seed = experiment.run.seed
    return (
        (seed, replicate, randomness.BATCHES)
        if number == 1
        else (seed, replicate, randomness.COPIES, number, randomness.BATCHES)
    )


def begun(experiment: config.Experiment, replicate: int, number: int, state: Mapping[str, Any]) -> dict[str, Any]:
    """What a copy starts from, not masked yet: the dense network of its step, with chance of its own.

    With the second order of the data the states of random layers are drawn anew, so that dropout leaves out other units
    than it does in the first copy.
    """
    if number == 1:
        return dict(state)
    return {
        name: redrawn(experiment, replicate, number, name, value) if is_generator(name) else value
        for name, value in state.items()
    }


def redrawn(experiment: config.Experiment, replicate: int, number: int, name: str, value: Any) -> np.ndarray:
    """Another state of a generator of random numbers, for an order of the data: always the same one."""
    before = np.ascontiguousarray(value)
    own = zlib.crc32(name.encode() + before.tobytes())
    source = randomness.generator(*words(experiment, replicate, number)[:-1], randomness.INITIALISATION, own)
    return source.integers(2**31, size=before.shape).astype(before.dtype)


def is_generator(name: str) -> bool:
    """Whether a variable of this name is the state of a random layer or of a ``tf.random.Generator``."""
    return weights.is_random_state(name) or name.rsplit("/", 1)[-1].startswith("StateVar")


def state_path(run: Path, experiment: config.Experiment, replicate: int, step: int) -> Path:
    """Where every variable of a replicate's dense network at a step is stored."""
    if step in (0, experiment.rewind.step):
        return store.start_path(run, replicate, step)
    return folder(run) / f"replicate-{replicate}" / f"step-{step:05d}.safetensors"


def path_file(run: Path, replicate: int, index: int, step: int, recomputed: bool) -> Path:
    """Where the points between the two networks of a round and step are stored."""
    suffix = f"-{RECOMPUTED}" if recomputed else ""
    return store.round_path(folder(run), replicate, index) / f"path-step_{step}{suffix}.csv"


def network_path(run: Path, experiment: config.Experiment, replicate: int, index: int, step: int, number: int) -> Path:
    """The folder of one of the two networks: of order 1 the run's own round, where that is trained from this step."""
    own = step == (experiment.rewind.step if index else 0)
    if number == 1 and own:
        return store.round_path(run, replicate, index)
    return store.round_path(folder(run), replicate, index, label(step, number))


def networks_from(run: Path, replicate: int, step: int) -> list[Path]:
    """The folders of all copies of a replicate that are stored and were trained from a step."""
    labels = [label(step, number) for number in ORDERS]
    found = [folder(run).glob(f"replicate-{replicate}/round-*/branch-{one}/round.json") for one in labels]
    return sorted(path.parent for paths in found for path in paths)


def record_file(path: Path) -> Path:
    """Where the record of a path is stored, which comes last."""
    return path.with_suffix(".json")


def write_path(path: Path, rows: Sequence[Row], networks: Sequence[str]) -> None:
    """Store the points of a path, its record last.

    Args:
        path: What `path_file` gives.
        rows: Alpha, split, loss and error of each point.
        networks: The ``record_sha256`` of the two networks at its ends.
    """
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([PATH, *rows])
    content = table.getvalue().encode()
    record_file(path).unlink(missing_ok=True)  # a path that is measured again is not complete until the end
    files.write(path, content)
    record = {**_known(path, rows), "networks": list(networks), "sha256": hashlib.sha256(content).hexdigest()}
    files.write_json(record_file(path), record)


def read_path(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """The record and the points that `write_path` has stored.

    Raises:
        LotteryError: A file is missing or damaged, or was changed.
    """
    content = files.read(path)
    try:
        record = files.read_json(record_file(path))
        lines = list(csv.reader(io.StringIO(content.decode())))
        if tuple(lines[0]) != PATH:
            raise ValueError(f"its columns are {', '.join(lines[0])}")
        rows = [(float(alpha), split, float(loss), float(error)) for alpha, split, loss, error in lines[1:]]
        _check_alphas(rows)
        if record.get("sha256") != hashlib.sha256(content).hexdigest():
            raise ValueError("it does not have the checksum that was recorded")
        if wrong := [key for key, value in _known(path, rows).items() if record.get(key) != value]:
            raise ValueError(f"its record tells another {wrong[0]}")
        if not isinstance(record.get("networks"), list) or len(record["networks"]) != len(ORDERS):
            raise ValueError("its record does not tell its networks")
    except (LotteryError, ValueError, IndexError, csv.Error) as error:
        raise LotteryError(f"{str(path)!r} is damaged ({error}); delete it to have it computed again.") from None
    return record, rows


def stored_paths(run: Path) -> Iterator[tuple[Place, bool, Path]]:
    """Replicate, round and step of every path that is complete, whether statistics are recomputed, and its file."""
    for path in sorted(folder(run).glob("replicate-*/round-*/path-step_*.csv")):
        step, _, kind = path.stem.removeprefix("path-step_").partition("-")
        numbers = (path.parts[-3].removeprefix("replicate-"), path.parts[-2].removeprefix("round-"), step)
        usual = kind in ("", RECOMPUTED) and all(number.isdecimal() for number in numbers)
        if usual and record_file(path).exists():
            yield (int(numbers[0]), int(numbers[1]), int(step)), bool(kind), path


def network_digests(run: Path, experiment: config.Experiment, place: Place) -> list[str]:
    """The ``record_sha256`` of the two networks, as `write_path` takes them."""
    folders = (network_path(run, experiment, *place, number) for number in ORDERS)
    return [store.read_record(one)["record_sha256"] for one in folders]


def misfit(run: Path, experiment: config.Experiment, place: Place, networks: Sequence[str]) -> str:
    """Why a path is not the one between the two networks that are stored, in a sentence; empty where it is.

    Args:
        run: The run's folder.
        experiment: Its experiment.
        place: Replicate, round and step.
        networks: What the path's record says of its networks.

    Raises:
        LotteryError: The record of the round or of a network is damaged.
    """
    replicate, index, step = place
    if index not in store.complete_rounds(run, replicate):
        return "Its round is not stored, or one before it is not."
    kept = store.read_record(store.round_path(run, replicate, index))["sha256"]["masks.safetensors"]
    for number, digest in zip(ORDERS, networks, strict=True):
        network = network_path(run, experiment, *place, number)
        if not (network / "round.json").exists():
            return f"The network from step {step} with order {number} is not stored."
        record = store.read_record(network)
        if record["sha256"]["masks.safetensors"] != kept:
            return f"The network from step {step} with order {number} has other masks than the round."
        if record["record_sha256"] != digest:
            return f"The network from step {step} with order {number} is another than when the path was measured."
    return ""


def _known(path: Path, rows: Sequence[Row]) -> dict[str, Any]:
    """What a record says of a path, and its name and points say too."""
    return {
        "format": FORMAT,
        "num_points": len({row[0] for row in rows}),
        "batch_norm": RECOMPUTED if path.stem.endswith(f"-{RECOMPUTED}") else STORED,
        "splits": sorted({row[1] for row in rows}),
    }


def _check_alphas(rows: Sequence[Row]) -> None:
    for split in {row[1] for row in rows} or {"test"}:
        alphas = [row[0] for row in rows if row[1] == split]
        if not np.array_equal(alphas, np.linspace(0, 1, max(2, len(alphas)))):
            raise ValueError(f"the points of the split {split!r} do not go evenly from 0 to 1")
    if not all(0 <= row[3] <= 1 for row in rows):
        raise ValueError("an error is not in [0, 1]")
