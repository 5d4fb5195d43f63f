"""Events of a run while it trains, and how a person sees them: a display in a terminal, a line a round on a pipe."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lottery import formatting


@dataclass(frozen=True)
class Step:
    """How far a network in training is; `done` and `total` are steps of all networks of this call, see `tallied`."""

    run: Path
    replicate: int
    num_replicates: int
    round: int
    num_rounds: int
    branch: str
    density: float
    step: int
    first_step: int  # that its training starts from
    num_steps: int  # that it ends at
    val_accuracy: float  # at the last evaluation
    done: int = 0
    total: int = 0
    several: bool = False  # True if the networks belong to more than one run


@dataclass(frozen=True)
class Evaluated:
    """An evaluation of a network in training."""

    run: Path
    replicate: int
    round: int
    branch: str
    row: tuple[int, str, float, float]  # step, split, loss and accuracy, as in metrics.csv
    first: bool  # of those after training starts or resumes, which repeat the ones from before


@dataclass(frozen=True)
class Done:
    """A network is stored; `record` is its round.json."""

    where: Step
    record: dict[str, Any]


@dataclass(frozen=True)
class Note:
    """A sentence for the person who watches."""

    text: str


Event = Step | Evaluated | Done | Note
OnEvent = Callable[[Event], None]
Key = tuple[Path, int, int, str]  # run, replicate, round, branch

BAR = 18  # characters of a bar
APART = 0.1  # seconds between two drawings of the bars
LEAST = 60  # characters of a line beside the name of a run
ENOUGH = 2.0  # seconds of training before an estimate of the time that is left


def silent(event: Event) -> None:
    """Show nothing."""


def tallied(on_event: OnEvent, spans: Mapping[Key, tuple[int, int]]) -> OnEvent:
    """Fill in `Step.done` and `Step.total` from first and last steps, however many networks train at the same time."""
    taken = dict.fromkeys(spans, 0)
    total, several = sum(last - first for first, last in spans.values()), len({key[0] for key in spans}) > 1

    def tally(event: Event) -> None:
        if isinstance(event, Step | Done):
            where = _where(event)
            first, last = spans.get(_key(where), (0, 0))
            steps = last if isinstance(event, Done) else max(first, min(where.step, last))
            taken[_key(where)] = steps - first
            where = dataclasses.replace(where, done=sum(taken.values()), total=total, several=several)
            event = dataclasses.replace(event, where=where) if isinstance(event, Done) else where
        on_event(event)

    return tally


def throttled(on_event: OnEvent, apart: float = 0.1) -> OnEvent:
    """Leave out each `Step` that comes less than `apart` seconds after the one before."""
    last = 0.0

    def throttle(event: Event) -> None:
        nonlocal last
        if isinstance(event, Step):
            now = time.monotonic()
            if now - last < apart:
                return
            last = now
        on_event(event)

    return throttle


@contextlib.contextmanager
def shown(console: Any = None) -> Iterator[OnEvent]:
    """Show events: in a terminal a bar for each network in training and one for all; a line for each stored network.

    By default they go to standard error, which leaves standard output to results. Lines fit the width of a terminal:
    they leave out what is least important; on a pipe they are whole.
    """
    from rich.console import Console

    class Lasting(Console):
        def on_broken_pipe(self) -> None:  # Rich would end the process
            self.quiet = True

    console = console or Lasting(stderr=True)
    lines = _Lines()

    def print_line(event: Event) -> None:
        width = formatting.columns(console.file)
        line = lines.of(event, width) if isinstance(event, Done) else getattr(event, "text", "")
        if line:
            if not isinstance(event, Done):
                line = formatting.wrapped(line, width)
            with contextlib.suppress(OSError):  # a full disk is no reason to end the training
                console.print(line, markup=False, highlight=False, soft_wrap=True)

    if not console.is_terminal or console.is_dumb_terminal:
        yield print_line
        return

    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    text = TextColumn("{task.description}", table_column=Column(no_wrap=True))
    # Nothing else may draw: a thread that refreshes the bars while a line is printed moves the cursor too far up, onto
    # the line before.
    with Progress(text, BarColumn(bar_width=BAR), console=console, transient=True, auto_refresh=False) as display:
        whole = display.add_task("starting TensorFlow", total=None)
        bars: dict[Key, Any] = {}
        pace, drawn, lock = Pace(), 0.0, threading.Lock()

        def show(event: Event) -> None:
            nonlocal drawn
            with lock:
                if isinstance(event, Step | Done):
                    where = _where(event)
                    key, room = _key(where), (formatting.columns(console.file) or 80) - BAR - 2
                    if key not in bars:
                        bars[key] = display.add_task("")
                    if isinstance(event, Done):
                        display.remove_task(bars.pop(key))
                    else:
                        taken, length = where.step - where.first_step, where.num_steps - where.first_step
                        display.update(bars[key], description=_line(where, room), completed=taken, total=length)
                    left = pace.left(where, time.monotonic())
                    remaining = "" if left is None else f" · {formatting.duration(left)} left"
                    display.update(whole, description=f"in all{remaining}", completed=where.done, total=where.total)
                now = time.monotonic()
                if not isinstance(event, Step) or now - drawn >= APART:
                    display.refresh()
                    drawn = now
                if not isinstance(event, Step):
                    print_line(event)

        yield show


class Pace:
    """An estimate of the time that is left, from the steps that were taken of late."""

    def __init__(self) -> None:
        self._first: dict[Key, int] = {}  # the step at which each network was first seen
        self._seen: list[tuple[float, int]] = []  # times, and steps of all networks until then

    def left(self, where: Step, now: float) -> float | None:
        """Estimate the seconds that are left; None as long as too little was seen."""
        first = self._first.setdefault(_key(where), where.step)
        # The first steps after a start or a resume wait for the compiler, so time is counted from when they are done.
        if not self._seen and where.step <= first:
            return None
        self._seen.append((now, where.done))
        begun = self._seen[0][0]
        # The later half of the time: what was slow at the beginning does not count for long.
        half = begun + (now - begun) / 2
        while len(self._seen) > 2 and self._seen[2][0] <= half:
            del self._seen[1]
        then, before = self._seen[1] if self._seen[1:] and self._seen[1][0] <= half else self._seen[0]
        if now - begun < ENOUGH or where.done <= before:
            return None
        return (now - then) / (where.done - before) * (where.total - where.done)


class _Lines:
    """Lines of stored networks: what does not fit the terminal once is left out of all later lines too."""

    LEAVE_OUT = ("seconds", "early stop", "density", "test")

    def __init__(self) -> None:
        self._absent: list[str] = []

    def of(self, event: Done, width: int | None) -> str:
        where, record = event.where, event.record
        accuracy = record["early_stop_test_accuracy"]
        test = f"{accuracy:.4f}" if accuracy is not None else f"loss {record['early_stop_test_loss']:#.4g}"
        parts = {
            "replicate": f"replicate {where.replicate}/{where.num_replicates}",
            "round": f"round {where.round:>{len(str(where.num_rounds))}}/{where.num_rounds}",
            "branch": "" if where.branch == "ticket" else where.branch,
            "density": f"density {where.density:.4f}",
            "early stop": f"early stop {record['early_stop_step']:>{len(f'{where.num_steps:,}')},}",
            "test": f"test {test}",
            "seconds": formatting.duration(record["seconds"]),
            "collapsed": f"nothing left of {', '.join(record['collapsed'])}" if record["collapsed"] else "",
        }
        waiting = [name for name in self.LEAVE_OUT if name not in self._absent]
        # The name of one of several runs stays whole, on a line of its own where the rest would not fit beside it.
        run = where.run.name if where.several else ""
        apart = bool(run and width is not None and len(run) + 2 + LEAST > width)
        begin = "  " if apart else f"{run}  " if run else ""
        while True:
            line = begin + "  ".join(part for name, part in parts.items() if part and name not in self._absent)
            if width is None or len(line) <= width or not waiting:
                return f"{run}\n{line}" if apart else line
            self._absent.append(waiting.pop(0))


def _where(event: Step | Done) -> Step:
    return event.where if isinstance(event, Done) else event


def _key(where: Step) -> Key:
    return where.run, where.replicate, where.round, where.branch


def _line(where: Step, room: int) -> str:
    """Describe a network in training, in the room that is left of its bar."""
    parts = [
        where.run.name if where.several else "",
        f"replicate {where.replicate}/{where.num_replicates}",
        f"round {where.round}/{where.num_rounds}",
        "" if where.branch == "ticket" else where.branch,
        f"step {where.step:,}/{where.num_steps:,}",
        f"validation {where.val_accuracy:.4f}" if where.val_accuracy == where.val_accuracy else "",
        f"density {where.density:.4f}",
    ]
    shown = [part for part in parts if part]
    if where.several and len(shown[0]) + 3 + LEAST > room:
        del shown[0]
    while len(shown) > 1 and len(" · ".join(shown)) > room:
        shown.pop()
    return " · ".join(shown)
