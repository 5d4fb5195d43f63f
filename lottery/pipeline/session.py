"""An execution: how networks are trained, who watches, and what is closed when it ends."""

import contextlib
import dataclasses
import numbers
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lottery import config, interrupts, progress, randomness
from lottery.errors import LotteryError
from lottery.executors import ray
from lottery.pipeline import tensorboard
from lottery.training.checkpoints import CheckpointInterval


@dataclass(frozen=True)
class Execution:
    """How networks are trained; see `lottery.api.ExecutionOptions`. None of it changes bits."""

    workers: int | ray.Ray | None = 1
    checkpoint_every: CheckpointInterval | None = None
    on_event: progress.OnEvent | None = None
    tensorboard: bool = True
    should_stop: interrupts.ShouldStop | None = None
    max_hours: float | None = None

    @contextlib.contextmanager
    def started(self) -> Iterator["Session"]:
        """Check the workers, show progress and heed signals where the caller does not, and put global seeds back."""
        if isinstance(self.workers, ray.Ray):
            self.workers.check()
        # By type, for to `isinstance` True is a whole number.
        elif self.workers is not None and (type(self.workers) is not int or self.workers < 1):
            raise LotteryError(f"workers must be a whole number from 1, None or a Ray, not {self.workers!r}.")
        every = self.checkpoint_every
        if every is not None and not isinstance(every, CheckpointInterval):
            raise LotteryError(
                "checkpoint_every must be a lottery.training.checkpoints.CheckpointInterval, such as "
                f"CheckpointInterval(seconds=30), not {every!r}."
            )
        if self.max_hours is not None and not (isinstance(self.max_hours, numbers.Real) and self.max_hours > 0):
            raise LotteryError(f"max_hours must be a number above 0, not {self.max_hours!r}.")
        with contextlib.ExitStack() as stack:
            # Models draw from generators of the whole process, in which the caller may draw, too.
            stack.enter_context(randomness.put_back())
            on_event = self.on_event or stack.enter_context(progress.shown())
            should_stop = self.should_stop or stack.enter_context(interrupts.listening())
            if self.max_hours is not None:
                should_stop = interrupts.within(self.max_hours, should_stop)
            yield Session(self, on_event, should_stop, stack, every or CheckpointInterval())


@dataclass(frozen=True)
class Session:
    """An execution that has begun."""

    execution: Execution
    on_event: progress.OnEvent
    should_stop: interrupts.ShouldStop
    stack: contextlib.ExitStack  # closed when the execution ends
    every: CheckpointInterval

    def note(self, *sentences: str) -> None:
        """Report sentences for the person who watches."""
        for sentence in sentences:
            self.on_event(progress.Note(sentence))

    def writing(self, experiments: Mapping[Path, config.Experiment]) -> "Session":
        """Also write for TensorBoard, each event into its run, if that is wanted."""
        if not self.execution.tensorboard:
            return self
        observers: dict[Any, progress.OnEvent] = {
            run: self.stack.enter_context(tensorboard.observing(run, experiment, self.on_event))
            for run, experiment in experiments.items()
        }

        def observe(event: progress.Event) -> None:
            place = event.where if isinstance(event, progress.Done) else event
            run = getattr(place, "run", None)  # notes are of no run
            observers.get(run, self.on_event)(event)

        return dataclasses.replace(self, on_event=observe)
