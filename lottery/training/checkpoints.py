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


@dataclass
class TrainingState:
    """The state of a training, besides the variables of its loop."""

    step: int
    due: int  # step of the next evaluation
    metrics: list[tuple[int, str, float, float]] = field(default_factory=list)
    best: dict[str, np.ndarray] = field(default_factory=dict)  # every variable at the lowest validation loss
    summary: dict[str, float | int] = field(default_factory=dict)  # step, loss and accuracy there
    lowest: float = float("inf")  # that loss
    validation: tuple[float, float] = (float("nan"), float("nan"))  # loss and accuracy of the last evaluation
    trained: tuple[float, float] = (float("nan"), float("nan"))  # the same over the steps since
    difference: float | None = None  # from the compiled loop, after the first steps
    kept: dict[str, np.ndarray] = field(default_factory=dict)  # the masks, once they have changed
    changes: list[tuple[int, int, int, int]] = field(default_factory=list)  # see `trainer.Trained.changes`
    seconds: float = 0.0


@dataclass(frozen=True)
class CheckpointInterval:
    """The most work that may be lost, in seconds or in steps, before a checkpoint is written; 0 for no limit."""

    seconds: float = 60.0
    steps: int = 0


@dataclass
class Checkpointer:
    """Write checkpoints of a training in a thread, while training waits only for copies; resume from the last."""

    file: Path  # a new checkpoint replaces the one before once it is whole
    every: CheckpointInterval = field(default_factory=CheckpointInterval)
    should_stop: interrupts.ShouldStop = interrupts.never  # after a request, one more is written and training ends
    note: Callable[[str], None] = lambda text: None  # receives a sentence about a checkpoint that cannot be used
    memory: dict[str, np.ndarray] = field(default_factory=dict)  # of the functions that watch the training

    def begin(self, model: Any, own: Mapping[str, Any], parts: Sequence[Any], state: TrainingState) -> TrainingState:
        """Return the state to train from: the checkpoint's if it is of this very training, or else `state`.

        The model is at its start weights; `own` are the other variables that a step touches, by name, whose types and
        shapes decide with `parts`, as JSON, which training it is.
        """
        if should_stop := self.should_stop():
            raise interrupts.Stopped(should_stop)
        described = [f"{name} {one.dtype.name} {tuple(one.shape)}" for name, one in own.items()]
        self._identity = hashlib.sha256(json.dumps([described, parts], sort_keys=True).encode()).hexdigest()
        self._model, self._own = model, own
        state = self._read() or state
        self._step, self._taken, self._before, self._lasted = state.step, time.monotonic(), time.monotonic(), 0.0
        self._writer, self._writing = ThreadPoolExecutor(1), None
        return state

    def keep(self, state: TrainingState, settle: Callable[[], None] = lambda: None) -> None:
        """Write a checkpoint if it is due, or if a stop was requested; then raise `Stopped`.

        Args:
            settle: Called before the variables are read.
        """
        now, every, should_stop = time.monotonic(), self.every, self.should_stop()
        # Before the next chance, a piece as long as the last may pass, and the writing itself takes time.
        whole = now + (now - self._before) + self._lasted
        self._before = now
        late = 0 < every.seconds <= whole - self._taken or 0 < every.steps <= state.step - self._step
        if late or should_stop:
            settle()
            self._write(state)
            self._step, self._taken, self._before = state.step, now, time.monotonic()
        if should_stop:
            self.close()
            raise interrupts.Stopped(should_stop)

    def close(self) -> None:
        """Wait until the last checkpoint is whole."""
        self._wait()
        self._writer.shutdown()

    def _wait(self) -> None:
        if self._writing:
            writing, self._writing = self._writing, None
            self._lasted = writing.result()

    def _write(self, state: TrainingState) -> None:
        variables = weights.read_state(self._model)
        apart = mirrored.differing(self._model, variables)
        device, loop = ({name: np.array(one.numpy()) for name, one in each.items()} for each in (apart, self._own))
        parts = {"model": variables, "device": device, "loop": loop, "best": state.best, "memory": self.memory}
        parts["kept"] = state.kept
        arrays = {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}
        known = {key: value for key, value in vars(state).items() if key not in ("best", "kept")}
        record = {"format": FORMAT, "identity": self._identity, "standing": known}
        arrays["record"] = np.frombuffer(json.dumps(record).encode(), np.uint8)
        self._wait()  # or two threads would write one file
        self._writing = self._writer.submit(_store, self.file, arrays)

    def _read(self) -> TrainingState | None:
        """Put everything back as it was at the checkpoint; change nothing if there is none that can be used."""
        if not self.file.exists():
            return None
        try:
            arrays, metadata = files.read_arrays(self.file), files.read_metadata(self.file)
            if metadata.get("sha256") != weights.fingerprint(arrays):
                raise LotteryError(f"{str(self.file)!r} is damaged: its checksum is wrong.")
            record = json.loads(arrays.pop("record").tobytes())
            if record["format"] != FORMAT or record["identity"] != self._identity:
                raise LotteryError(f"{str(self.file)!r} belongs to another training.")
        except LotteryError as error:
            self.note(f"{error} The network trains from its beginning.")
            return None
        names = "model", "device", "loop", "best", "memory", "kept"
        parts: dict[str, dict[str, np.ndarray]] = {name: {} for name in names}
        for key, value in arrays.items():
            part, _, name = key.partition("/")
            parts[part][name] = value
        weights.assign(self._model, parts["model"])
        for name, value in parts["device"].items():
            mirrored.component(self._model, name).assign(value)
        for name, one in self._own.items():
            one.assign(parts["loop"][name])
        self.memory.clear()
        self.memory |= parts["memory"]
        known = record["standing"]
        known |= {key: [tuple(row) for row in known[key]] for key in ("metrics", "changes")}
        known |= {key: tuple(known[key]) for key in ("validation", "trained")}
        return TrainingState(**known, best=parts["best"], kept=parts["kept"])


def _store(file: Path, arrays: Mapping[str, np.ndarray]) -> float:
    """Write a checkpoint and return how many seconds it took."""
    began = time.monotonic()
    files.write(file, files.pack_arrays(arrays, {"sha256": weights.fingerprint(arrays)}))
    return time.monotonic() - began
