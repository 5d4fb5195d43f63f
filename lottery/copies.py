"""Where the copies of a run's networks lie that are trained from one step, and the paths between them."""

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lottery import config, files, order, store
from lottery.errors import LotteryError

ORDERS = (1, 2)  # of the data: that of the run, and another
PATH = ("alpha", "split", "loss", "error")
STORED, RECOMPUTED = "stored", "recomputed"  # what statistics of batches are at a point of a path

Row = tuple[float, str, float, float]


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
    return (seed, replicate, order.BATCHES) if number == 1 else (seed, replicate, order.COPIES, number, order.BATCHES)


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


def write_path(path: Path, rows: Sequence[Row]) -> None:
    """Store the points of a path, whole: rows of alpha, split, loss and error."""
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([PATH, *rows])
    files.write(path, table.getvalue().encode())


def read_path(path: Path) -> list[Row]:
    """The points that `write_path` has stored.

    Raises:
        LotteryError: The file is missing or damaged.
    """
    text = files.read(path).decode(errors="replace")
    try:
        lines = list(csv.reader(io.StringIO(text)))
        if tuple(lines[0]) != PATH:
            raise ValueError(f"its columns are {', '.join(lines[0])}")
        rows = [(float(alpha), split, float(loss), float(error)) for alpha, split, loss, error in lines[1:]]
        _check_alphas(rows)
    except (ValueError, IndexError, csv.Error) as error:
        raise LotteryError(f"{str(path)!r} is damaged ({error}); delete it to have it computed again.") from None
    return rows


def stored_paths(run: Path) -> Iterator[tuple[int, int, int, bool, Path]]:
    """Replicate, round, step, whether statistics are recomputed, and file of every path."""
    for path in sorted(folder(run).glob("replicate-*/round-*/path-step_*.csv")):
        step, _, kind = path.stem.removeprefix("path-step_").partition("-")
        numbers = (path.parts[-3].removeprefix("replicate-"), path.parts[-2].removeprefix("round-"), step)
        if kind in ("", RECOMPUTED) and all(number.isdecimal() for number in numbers):
            yield int(numbers[0]), int(numbers[1]), int(step), bool(kind), path


def _check_alphas(rows: Sequence[Row]) -> None:
    for split in {row[1] for row in rows} or {"test"}:
        alphas = [row[0] for row in rows if row[1] == split]
        if not np.array_equal(alphas, np.linspace(0, 1, max(2, len(alphas)))):
            raise ValueError(f"the points of the split {split!r} do not go evenly from 0 to 1")
    if not all(0 <= row[3] <= 1 for row in rows):
        raise ValueError("an error is not in [0, 1]")
