"""Where a network in training stands, on disk, so that it goes on from there bit for bit."""

import dataclasses
import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lottery import files, stopping, weights
from lottery.errors import LotteryError
from lottery.training import mirrored
from lottery.training.loop import Loop

FORMAT = 1


@dataclass
class TrainingState:
    """Where a training run stands, besides the variables of its loop.

    Attributes:
        step: Steps that are taken.
        due: The step of the next evaluation.
        metrics: The rows until now.
        best: Every variable at the lowest validation loss; empty before the first evaluation.
        summary: What is known of that step.
        lowest: That loss.
        validation: Loss and accuracy of the last evaluation.
        trained: Loss and accuracy over the steps since.
        seconds: How long it took until now.
    """

    step: int
    due: int
    metrics: list[tuple[int, str, float, float]] = field(default_factory=list)
    best: dict[str, np.ndarray] = field(default_factory=dict)
    summary: dict[str, float | int] = field(default_factory=dict)
    lowest: float = float("inf")
    validation: tuple[float, float] = (float("nan"), float("nan"))
    trained: tuple[float, float] = (float("nan"), float("nan"))
    seconds: float = 0.0


@dataclass(frozen=True)
class Every:
    """How often a checkpoint is written: at most so many seconds, or steps, of work are at risk; 0 for no limit."""

    seconds: float = 60.0
    steps: int = 0


@dataclass
class Checkpointer:
    """Keeps the checkpoint of one training run.

    What is stored is copied while training waits, and written beside it.

    Attributes:
        file: Where it is; each takes the place of the one before once it is whole.
        every: How often one is written.
        asked: Whether somebody has asked to stop; then one is written, and the training ends.
        note: Told, in a sentence, of a checkpoint that cannot be used.
        memory: Arrays that belong to what watches the training: they are stored with it, and put back.
    """

    file: Path
    every: Every = dataclasses.field(default_factory=Every)
    asked: stopping.Asked = stopping.never
    note: Callable[[str], None] = lambda text: None
    memory: dict[str, np.ndarray] = field(default_factory=dict)

    def begin(self, loop: Loop, identity: str, standing: TrainingState) -> TrainingState:
        """Where to go on: at the checkpoint, if there is one of this very training, or where it begins.

        Args:
            loop: The compiled loop, whose variables are set.
            identity: What `identity` gives for this training.
            standing: Where it begins.

        Raises:
            Stopped: Somebody has asked to stop.
        """
        self._loop, self._identity = loop, identity
        _stop(self.asked())
        standing = self._read() or standing
        self._step, self._taken, self._before, self._lasted = standing.step, time.monotonic(), time.monotonic(), 0.0
        self._writer, self._writing = ThreadPoolExecutor(1), None
        return standing

    def keep(self, standing: TrainingState) -> None:
        """Write a checkpoint if one is due.

        Raises:
            Stopped: Somebody has asked to stop; a checkpoint is written.
            LotteryError: It, or the one before, cannot be written.
        """
        now, every, asked = time.monotonic(), self.every, self.asked()
        # Until the next one is whole, a piece may pass that takes as long as the last, and the writing itself.
        whole = now + (now - self._before) + self._lasted
        self._before = now
        late = 0 < every.seconds <= whole - self._taken or 0 < every.steps <= standing.step - self._step
        if late or asked:
            self._write(standing)
            self._step, self._taken, self._before = standing.step, now, time.monotonic()
        if asked:
            self.close()
        _stop(asked)

    def close(self) -> None:
        """Wait until what is being written is whole."""
        self._written()
        self._writer.shutdown()

    def _written(self) -> None:
        if self._writing:
            writing, self._writing = self._writing, None
            self._lasted = writing.result()

    def _write(self, standing: TrainingState) -> None:
        state = weights.read_state(self._loop.model)
        arrays = {f"model/{name}": value for name, value in state.items()}
        own = mirrored.differing(self._loop.model, state)
        arrays |= {f"device/{name}": np.array(one.numpy()) for name, one in own.items()}
        arrays |= {f"loop/{name}": np.array(one.numpy()) for name, one in _named(self._loop).items()}
        arrays |= {f"best/{name}": value for name, value in standing.best.items()}
        arrays |= {f"memory/{name}": value for name, value in self.memory.items()}
        known = {key: value for key, value in vars(standing).items() if key != "best"}
        record = {"format": FORMAT, "identity": self._identity, "standing": known}
        arrays["record"] = np.frombuffer(json.dumps(record).encode(), np.uint8)
        self._written()  # the one before; two at a time would be written to one file
        self._writing = self._writer.submit(_store, self.file, arrays)

    def _read(self) -> TrainingState | None:
        """Put everything back as it was at the checkpoint; nothing is changed where there is none that can be used."""
        if not self.file.exists():
            return None
        try:
            arrays, metadata = files.read_arrays(self.file), files.read_metadata(self.file)
            if metadata.get("sha256") != weights.fingerprint(arrays):
                raise LotteryError(f"{str(self.file)!r} is damaged: it does not have the checksum that it holds.")
            record = json.loads(arrays.pop("record").tobytes())
            if record["format"] != FORMAT or record["identity"] != self._identity:
                raise LotteryError(f"{str(self.file)!r} is of another training.")
        except LotteryError as error:
            self.note(f"{error} This network is trained from its beginning.")
            return None
        model, loop, best, memory = (_below(part, arrays) for part in ("model", "loop", "best", "memory"))
        weights.assign(self._loop.model, model)
        for name, value in _below("device", arrays).items():
            mirrored.component(self._loop.model, name).assign(value)
        for name, one in _named(self._loop).items():
            one.assign(loop[name])
        self.memory.clear()
        self.memory |= memory
        known = record["standing"]
        known["metrics"] = [tuple(row) for row in known["metrics"]]
        known |= {key: tuple(known[key]) for key in ("validation", "trained")}
        return TrainingState(**known, best=best)


def _store(file: Path, arrays: Mapping[str, np.ndarray]) -> float:
    """Write a checkpoint, and say how long it took."""
    began = time.monotonic()
    files.write(file, files.pack_arrays(arrays, {"sha256": weights.fingerprint(arrays)}))
    return time.monotonic() - began


def _stop(number: int) -> None:
    if number:
        raise stopping.Stopped(number)


def identity(loop: Loop, parts: Sequence[Any]) -> str:
    """A digest of everything that decides what a training run does.

    Args:
        loop: The compiled loop, whose other variables count by name, type and shape.
        parts: What else decides it, as JSON knows it.
    """
    own = [f"{name} {one.dtype.name} {tuple(one.shape)}" for name, one in _named(loop).items()]
    return hashlib.sha256(json.dumps([own, parts], sort_keys=True).encode()).hexdigest()


def _named(loop: Loop) -> dict[str, Any]:
    """What a step touches besides the model, by names that do not count the models that a process has built."""
    return {f"{place:04d}/{re.sub(r'_[0-9]+', '', one.name)}": one for place, (one, _) in enumerate(loop.state)}


def _below(part: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix(f"{part}/"): value for name, value in arrays.items() if name.startswith(f"{part}/")}
