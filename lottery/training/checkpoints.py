"""The state of a training on disk, from which it resumes bit for bit."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lottery import files, interrupts, weights
from lottery.errors import LotteryError
from lottery.training import mirrored

FORMAT = 1
PARTS = ("model", "device", "loop", "best", "budget", "memory", "kept")  # of a checkpoint, each of arrays by name


@dataclass
class TrainingState:
    """The state of a training, besides the variables of its loop."""

    step: int
    due: int  # step of the next evaluation
    metrics: list[tuple[int, str, float, float]] = field(default_factory=list)
    best: dict[str, np.ndarray] = field(default_factory=dict)  # every variable at the lowest validation loss
    summary: dict[str, float | int] = field(default_factory=dict)  # step, loss and accuracy there
    lowest: float = float("inf")  # that loss
    budget: dict[str, np.ndarray] = field(default_factory=dict)  # see `records.Trained.budget`
    budget_summary: dict[str, float | int] = field(default_factory=dict)  # step, loss and accuracy there
    validation: tuple[float, float] = (float("nan"), float("nan"))  # loss and accuracy of the last evaluation
    trained: tuple[float, float] = (float("nan"), float("nan"))  # the same over the steps since
    difference: float | None = None  # from the compiled loop, after the first steps
    kept: dict[str, np.ndarray] = field(default_factory=dict)  # the masks, once they have changed
    changes: list[tuple[int, int, int, int]] = field(default_factory=list)  # see `records.Trained.changes`
    seconds: float = 0.0


@dataclass(frozen=True)
class CheckpointInterval:
    """The most work that may be lost, in seconds or in steps, before a checkpoint is written; 0 for no limit."""

    seconds: float = 60.0
    steps: int = 0


@dataclass
class Checkpointer:
    """Write checkpoints of a training in a thread, while training waits only for copies; resume from the last."""

    file: Path  # a new checkpoint replaces the last once it is whole
    every: CheckpointInterval = field(default_factory=CheckpointInterval)
    should_stop: interrupts.ShouldStop = interrupts.never  # after a request, a last checkpoint is written
    note: Callable[[str], None] = lambda text: None  # receives a sentence about a checkpoint that cannot be used
    memory: dict[str, np.ndarray] = field(default_factory=dict)  # of the functions that watch the training

    def begin(
        self, variables: Mapping[str, Any], own: Mapping[str, Any], parts: Sequence[Any], state: TrainingState
    ) -> TrainingState:
        """Return the state to train from: the checkpoint's if it is of this very training, or else `state`.

        Args:
            variables: Those of the model by name, at their start values; those of a checkpoint are assigned.
            own: The other variables that a step touches.
            parts: JSON that decides, with types and shapes of `own`, which training it is.
        """
        stop_signal = self.should_stop()
        if stop_signal:
            raise interrupts.Stopped(stop_signal)
        # Not their values, which a checkpoint brings along.
        described = [f"{name} {variable.dtype.name} {tuple(variable.shape)}" for name, variable in own.items()]
        self._identity = hashlib.sha256(json.dumps([described, parts], sort_keys=True).encode()).hexdigest()
        self._variables, self._own = variables, own
        state = self._read() or state
        self._step = state.step  # of the last checkpoint
        self._taken = self._before = time.monotonic()  # when that was, and when `keep` was last called
        self._seconds_to_write = 0.0
        self._writer, self._writing = ThreadPoolExecutor(1), None
        return state

    @property
    def due(self) -> int | None:
        """The step after which a checkpoint is due at the latest; None if time alone counts."""
        return self._step + self.every.steps if self.every.steps > 0 else None

    def keep(self, state: TrainingState, before_reading: Callable[[], None] = lambda: None) -> None:
        """Write a checkpoint if it is due, or if a stop was requested; then raise `Stopped`.

        `before_reading` is called before the variables are read.
        """
        every, stop_signal = self.every, self.should_stop()
        now = time.monotonic()  # no other clock: a machine's date may be set while it trains
        # Before the next chance, a call of the steps as long as the last may pass, and the writing itself takes time.
        next_chance = now + (now - self._before) + self._seconds_to_write
        self._before = now
        is_late = 0 < every.seconds <= next_chance - self._taken
        if is_late or state.step == self.due or stop_signal:
            before_reading()
            self._write(state)
            self._step, self._taken, self._before = state.step, now, time.monotonic()
        if stop_signal:
            self.close()
            raise interrupts.Stopped(stop_signal)

    def close(self) -> None:
        """Wait until the last checkpoint is whole."""
        self._wait()
        self._writer.shutdown()

    def _wait(self) -> None:
        if self._writing:
            writing, self._writing = self._writing, None
            self._seconds_to_write = writing.result()

    def _write(self, state: TrainingState) -> None:
        # The copies are made here, in between two steps; only the file is written in the thread.
        values = weights.arrays(self._variables)
        parts = {
            "model": values,
            "device": weights.arrays(mirrored.differing(self._variables, values)),
            "loop": weights.arrays(self._own),
            "best": state.best,
            "budget": state.budget,
            "memory": self.memory,
            "kept": state.kept,
        }
        arrays = {f"{part}/{name}": value for part, found in parts.items() for name, value in found.items()}
        numbers = {key: value for key, value in vars(state).items() if key not in PARTS}
        record = {"format": FORMAT, "identity": self._identity, "standing": numbers}
        # One of the arrays, so that the checksum covers it.
        arrays["record"] = np.frombuffer(json.dumps(record).encode(), np.uint8)
        # It raises what the last writing raised; and copies that wait in a queue would fill the memory.
        self._wait()
        self._writing = self._writer.submit(_store, self.file, arrays)

    def _read(self) -> TrainingState | None:
        """Put everything back as it was at the checkpoint; change nothing if there is none that can be used."""
        if not self.file.exists():
            return None
        try:
            arrays, metadata = files.read_arrays(self.file), files.layout(self.file).metadata
            if metadata.get("sha256") != weights.fingerprint(arrays):
                raise LotteryError(f"{str(self.file)!r} is damaged: its checksum is wrong.")
            record = json.loads(arrays.pop("record").tobytes())
            if record["format"] != FORMAT or record["identity"] != self._identity:
                raise LotteryError(f"{str(self.file)!r} belongs to another training.")
        except LotteryError as error:
            self.note(f"{error} The network trains from its beginning.")
            return None
        parts: dict[str, dict[str, np.ndarray]] = {name: {} for name in PARTS}
        for key, value in arrays.items():
            part, _, name = key.partition("/")
            parts[part][name] = value
        for part, variables in {"model": self._variables, "loop": self._own}.items():
            for name, variable in variables.items():
                variable.assign(parts[part][name])
        # After the model, whose values go to all devices: these are the few that differ from device to device.
        for place_and_name, value in parts["device"].items():
            place, _, name = place_and_name.partition("/")
            weights.components(self._variables[name])[int(place)].assign(value)
        # In place: the functions that watch the training hold this very dict.
        self.memory.clear()
        self.memory |= parts["memory"]
        numbers = record["standing"]
        # JSON has no tuples.
        for key in ("metrics", "changes"):
            numbers[key] = [tuple(row) for row in numbers[key]]
        for key in ("validation", "trained"):
            numbers[key] = tuple(numbers[key])
        return TrainingState(**numbers, best=parts["best"], budget=parts["budget"], kept=parts["kept"])


def _store(file: Path, arrays: Mapping[str, np.ndarray]) -> float:
    """Write a checkpoint and return how many seconds it took."""
    began = time.monotonic()
    files.write(file, files.pack_arrays(arrays, {"sha256": weights.fingerprint(arrays)}))
    return time.monotonic() - began
