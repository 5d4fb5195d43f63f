"""Linear mode connectivity on disk: siblings, trained from one state, the paths between them, and their checks."""

import hashlib
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lottery import config, files, randomness, weights
from lottery.errors import LotteryError
from lottery.runs import store
from lottery.runs.stored import StoredRound

ORDERS = (1, 2)  # of the data: the run's own, and another
FORMAT = 1  # of the record of a path
PATH = ("alpha", "split", "loss", "error")
STORED, RECOMPUTED = "stored", "recomputed"  # BatchNormalization statistics along a path: interpolated, or measured

PathPoint = tuple[float, str, float, float]  # alpha, split, loss, error
# Yields a sentence for everything that is wrong with what was measured of a network.
Evaluated = Callable[[StoredRound], Iterator[str]]


@dataclass(frozen=True)
class Siblings:
    """Two networks trained from one step of a dense network, under a round's masks, with two orders of the data."""

    run: Path
    experiment: config.Experiment
    replicate: int
    round: int
    step: int  # of the dense network

    @property
    def pruned(self) -> StoredRound:
        """The stored round whose masks they have."""
        return StoredRound(self.run, self.replicate, self.round)

    @property
    def state_file(self) -> Path:
        """The file of every variable of the dense network at the step."""
        # The run itself keeps these two; those of all other steps are in the folder of connectivity.
        if self.step in (0, self.experiment.rewind.step):
            return store.start_path(self.run, self.replicate, self.step)
        return store.state_path(folder(self.run), self.replicate, self.step)

    def state(self) -> dict[str, np.ndarray]:
        """Read every variable of the dense network at the step; raise `LotteryError` if the file was changed."""
        is_start = self.step in (0, self.experiment.rewind.step)
        # Records of the run have the checksums of its start weights.
        return files.read_arrays(self.state_file) if is_start else store.read_state(self.state_file)

    def branch(self, order: int) -> str:
        """Name the branch that a sibling is stored under."""
        return f"step_{self.step}_order_{order}"

    def network(self, order: int) -> StoredRound:
        """Give a sibling: of order 1 the run's own round, if that was trained from this step."""
        if order == 1 and self.step == (self.experiment.rewind.step if self.round else 0):
            return self.pruned
        return StoredRound(folder(self.run), self.replicate, self.round, self.branch(order))

    def path_file(self, recomputed: bool = False) -> Path:
        """Give the file of the points between the two."""
        suffix = f"-{RECOMPUTED}" if recomputed else ""
        return store.round_path(folder(self.run), self.replicate, self.round) / f"path-step_{self.step}{suffix}.csv"

    def missing(self) -> list[int]:
        """List the orders whose sibling is not stored."""
        return [order for order in ORDERS if not (self.network(order).folder / "round.json").exists()]

    def digests(self) -> list[str]:
        """Read the ``record_sha256`` of both, which the record of a path holds."""
        return [self.network(order).record["record_sha256"] for order in ORDERS]

    def start(self, order: int, state: Mapping[str, Any]) -> dict[str, Any]:
        """Give every variable that a sibling starts from, not masked yet, from those of the dense network.

        For the second order the states of random layers are drawn anew, so that dropout leaves out other units.
        """
        if order == 1:
            return dict(state)
        generators = filter(weights.is_generator, state)
        return {**state, **{name: self.redrawn(order, name, state[name]) for name in generators}}

    def redrawn(self, order: int, name: str, value: Any) -> np.ndarray:
        """Draw another state of a generator of random numbers for an order of the data, always the same one."""
        before = np.ascontiguousarray(value)
        # Without their purpose, which is the order of batches.
        words = seed_words(self.experiment, self.replicate, order)[:-1]
        # A checksum, not hash(), which is another in each process.
        own = zlib.crc32(name.encode() + before.tobytes())
        source = randomness.generator(*words, randomness.INITIALISATION, own)
        return source.integers(2**31, size=before.shape).astype(before.dtype)

    def misfit(self, digests: Sequence[str]) -> str:
        """Say in a sentence why a path between networks of such digests is not between these; nothing if it is."""
        if self.round not in store.complete_rounds(self.run, self.replicate):
            return "Its round is not stored, or one before it is not."
        kept = self.pruned.record["sha256"]["masks.safetensors"]
        missing = self.missing()
        for order, digest in zip(ORDERS, digests, strict=True):
            which = f"The network from step {self.step} with order {order}"
            # Only of a stored network can the record be read.
            if order in missing:
                return f"{which} is not stored."
            record = self.network(order).record
            if record["sha256"]["masks.safetensors"] != kept:
                return f"{which} has other masks than the round."
            if record["record_sha256"] != digest:
                return f"{which} is another than when the path was measured."
        return ""


def folder(run: Path) -> Path:
    """Give the folder of everything that is stored of a run's connectivity."""
    return store.inside(run, run / "connectivity")


def seed_words(experiment: config.Experiment, replicate: int, order: int) -> tuple[int, ...]:
    """Give the words that decide an order of the data; those of order 1 are the run's own."""
    # The last word is the purpose, as in every training: augmentation draws by the words before it.
    own = () if order == 1 else (randomness.SIBLINGS, order)
    return (experiment.run.seed, replicate, *own, randomness.BATCHES)


def networks_from(run: Path, replicate: int, step: int) -> list[Path]:
    """List the folders of all stored siblings of a replicate that were trained from a step."""
    found = folder(run).glob(f"replicate-{replicate}/round-*/branch-step_{step}_order_*/round.json")
    return sorted(path.parent for path in found)


def record_file(path: Path) -> Path:
    """Give the file of a path's record, which is written last."""
    return path.with_suffix(".json")


def write_path(path: Path, rows: Sequence[PathPoint], digests: Sequence[str]) -> None:
    """Store the points of a path between networks of such digests in a file, and its record beside it, last."""
    content = store.pack_rows([PATH, *rows])
    with files.readable_errors(path):
        # A path that is measured again is not complete until the end.
        record_file(path).unlink(missing_ok=True)
    files.write(path, content)
    record = {**_summary(path, rows), "networks": list(digests), "sha256": hashlib.sha256(content).hexdigest()}
    files.write_json(record_file(path), record)


def read_path(path: Path) -> tuple[dict[str, Any], list[PathPoint]]:
    """Read the record and the points of a path; raise `LotteryError` if a file is missing, damaged or was changed."""
    run = path.parents[2]  # the folder of connectivity, out of which no link may lead
    content = files.read(store.inside(run, path), store.MOST_METRICS)
    try:
        record = files.read_json(store.inside(run, record_file(path)))
        rows = store.parse_rows(content, PATH, (float, str, float, float))
        for split in {row[1] for row in rows} or {"test"}:
            alphas = [row[0] for row in rows if row[1] == split]
            # Exactly: they were made by the same call, and the file has every digit of them.
            if not np.array_equal(alphas, np.linspace(0, 1, max(2, len(alphas)))):
                raise ValueError(f"the points of the split {split!r} do not go evenly from 0 to 1")
        if not all(0 <= row[3] <= 1 for row in rows):
            raise ValueError("an error is not in [0, 1]")
        if record.get("sha256") != hashlib.sha256(content).hexdigest():
            raise ValueError("it does not have the checksum that was recorded")
        if wrong := [key for key, value in _summary(path, rows).items() if record.get(key) != value]:
            raise ValueError(f"its record has another {wrong[0]}")
        if not isinstance(record.get("networks"), list) or len(record["networks"]) != len(ORDERS):
            raise ValueError("its record does not name its networks")
    except ValueError as error:  # a `LotteryError` too
        raise LotteryError(f"{str(path)!r} is damaged ({error}); delete it to have it computed again.") from None
    return record, rows


def stored_paths(run: Path, experiment: config.Experiment) -> Iterator[tuple[Siblings, bool]]:
    """List every complete path of a run: its siblings, and True if its statistics are recomputed."""
    for path in sorted(folder(run).glob("replicate-*/round-*/path-step_*.csv")):
        # The glob takes other names too, and a path without its record is written only in part.
        usual = re.search(rf"/replicate-(\d+)/round-(\d+)/path-step_(\d+)(-{RECOMPUTED})?\.csv$", path.as_posix())
        if usual and record_file(path).exists():
            *numbers, kind = usual.groups()
            yield Siblings(run, experiment, *map(int, numbers)), bool(kind)


def _summary(path: Path, rows: Sequence[PathPoint]) -> dict[str, Any]:
    # What its name and points decide of a path's record.
    return {
        "format": FORMAT,
        "num_points": len({row[0] for row in rows}),
        "batch_norm": RECOMPUTED if path.stem.endswith(f"-{RECOMPUTED}") else STORED,
        "splits": sorted({row[1] for row in rows}),
    }


def wrong(run: Path, evaluated: Evaluated | None = None) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each stored sibling and path of a run, and sentences about everything that is wrong with it.

    For siblings see `wrong_network`; a path may be damaged, its networks others than when it was measured, or the
    errors at its ends not theirs. In a name ", network " comes before a sibling's step, and ", path " before a path's.
    `evaluated` yields a sentence for everything that is wrong with what was measured of a sibling.
    """
    experiment = store.read_experiment(run)
    for path in sorted(folder(run).glob("replicate-*/step-*.safetensors")):
        yield f"connectivity, {path.parent.name.replace('-', ' ')}, {path.stem.replace('-', ' ')}", wrong_state(path)
    for path in sorted(folder(run).glob("replicate-*/round-*/branch-*/round.json")):
        yield _checked(path.parent, "network", wrong_network(run, experiment, path.parent, evaluated))
    for pair, recomputed in stored_paths(run, experiment):
        yield _checked(pair.path_file(recomputed), "path", _wrong_path(pair, recomputed))


def collected(sentences: Iterator[str]) -> tuple[list[str], bool]:
    """Collect what is wrong with a network, and return False beside it if a file of it cannot be read."""
    found: list[str] = []
    try:
        found.extend(sentences)
    except (LotteryError, KeyError) as error:
        return [*found, str(error)], False
    return found, True


def wrong_state(path: Path) -> list[str]:
    """List what is wrong with a state of a dense network, which a sweep or the siblings start from."""
    try:
        store.read_state(path)
    except LotteryError as error:
        return [str(error)]
    return []


def wrong_network(
    run: Path, experiment: config.Experiment, path: Path, evaluated: Evaluated | None = None
) -> Iterator[str]:
    """Yield a sentence for everything that is wrong with the sibling in a folder of a run.

    These are masks that are not the round's, masked weights that are not held, and training that did not start from the
    weights of its step under the masks. Raises `LotteryError` if a file is missing, or does not have its checksum.
    """
    store.check_files(path)
    record = store.read_record(path)
    replicate, index, step, order = (record[key] for key in ("replicate", "round", "first_step", "order"))
    pair = Siblings(run, experiment, replicate, index, step)
    if record["branch"] != pair.branch(order) or order not in ORDERS:
        yield f"It was trained from step {step} with order {order} of the data."
    if record["last_step"] != experiment.train.num_steps:
        yield f"It was trained up to step {record['last_step']}, not {experiment.train.num_steps}."
    stored = StoredRound(folder(run), replicate, index, record["branch"])
    kept, ticket = stored.masks, pair.pruned.masks
    if kept.keys() != ticket.keys() or any(not np.array_equal(kept[name], ticket[name]) for name in ticket):
        yield "Its masks differ from the round's masks."
    held_at = pair.pruned.held_at
    yield from stored.wrong_held(held_at)
    state = pair.state()
    if weights.fingerprint(state) != record["step_sha256"]:
        yield f"The stored weights of step {step} are not those that it started from."
    if not stored.began_with(pair.start(order, state), held_at):
        yield f"Training did not start from the weights of step {step} under the masks."
    if evaluated:
        yield from evaluated(stored)


def _checked(path: Path, what: str, sentences: Iterator[str]) -> tuple[str, list[str]]:
    # The name is of a sibling or a path: the folders and the file say which.
    replicate, index = (part.replace("-", " ") for part in path.parts[-3:-1])
    own = path.stem.removeprefix("branch-").removeprefix("path-").replace("_", " ").replace("-", ", ")
    return f"connectivity, {replicate}, {index.replace(' 0', ' ')}, {what} {own}", collected(sentences)[0]


def _wrong_path(pair: Siblings, recomputed: bool) -> Iterator[str]:
    record, rows = read_path(pair.path_file(recomputed))
    if why := pair.misfit(record["networks"]):
        yield why
    elif "test" not in record["splits"]:
        yield "It has no points of the split 'test'."
    elif not recomputed:  # other statistics give the networks at the ends other errors
        tested = {row[0]: row[3] for row in rows if row[1] == "test"}
        for alpha, order in zip((0.0, 1.0), ORDERS, strict=True):
            error = 1 - pair.network(order).measured("final", "test")[1]
            # Keras computes an accuracy in float32. The negation counts NaN as wrong.
            if not abs(tested[alpha] - error) <= 1e-6:
                yield f"At alpha {alpha:g} the test error is {tested[alpha]}, and the error of the network is {error}."
