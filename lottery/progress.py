"""Events of a run while it trains, and how a person sees them: a display in a terminal, lines on a pipe."""

import contextlib
import dataclasses
import math
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
APART = 0.1  # seconds between two drawings of the bars, or two reports of how far a network is
LEAST = 60  # characters of a line beside the name of a run
LEFT = 5  # characters of the time that is left, up to an hour
WINDOW = 1800.0  # seconds, at most, whose speed tells the time that is left
LONG = 1000  # characters of a line on a pipe, at most
QUIET = 600.0  # seconds after which a pipe hears how far training is


def silent(event: Event) -> None:
    """Show nothing."""


def tallied(on_event: OnEvent, spans: Mapping[Key, tuple[int, int]]) -> OnEvent:
    """Fill in `Step.done` and `Step.total` from first and last steps, however many networks train at the same time."""
    taken = dict.fromkeys(spans, 0)
    total = sum(last - first for first, last in spans.values())
    several = len({key[0] for key in spans}) > 1

    def tally(event: Event) -> None:
        if isinstance(event, Step | Done):
            where = _where(event)
            first, last = spans.get(_key(where), (0, 0))
            # Spans are estimates: a branch of the caller's own may train other steps.
            steps = last if isinstance(event, Done) else max(first, min(where.step, last))
            taken[_key(where)] = steps - first
            where = dataclasses.replace(where, done=sum(taken.values()), total=total, several=several)
            event = dataclasses.replace(event, where=where) if isinstance(event, Done) else where
        on_event(event)

    return tally


def throttled(on_event: OnEvent) -> OnEvent:
    """Leave out each `Step` that comes less than `APART` seconds after the last that was reported."""
    last = 0.0

    def throttle(event: Event) -> None:
        nonlocal last
        if isinstance(event, Step):
            now = time.monotonic()
            if now - last < APART:
                return
            last = now
        on_event(event)

    return throttle


@contextlib.contextmanager
def shown(console: Any = None) -> Iterator[OnEvent]:
    """Show events: in a terminal a bar for each network in training and one for all; a line for each stored network.

    On a pipe, lines say how much time is left, and one comes every ten minutes where no network is stored. By default
    they go to standard error, which leaves standard output to results. Lines fit the width of a terminal: they leave
    out what is least important; on a pipe they are whole.
    """
    from rich.console import Console

    class Lasting(Console):
        def on_broken_pipe(self) -> None:  # Rich would end the process
            self.quiet = True

    console = console or Lasting(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield _Lines(console, _TimeLeft(console)).show
        return

    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    text = TextColumn("{task.description}", table_column=Column(no_wrap=True))
    columns = (text, BarColumn(bar_width=BAR), TimeRemainingColumn(compact=True))
    # Nothing else may draw: a thread that refreshes the bars while a line is printed moves the cursor too far up, onto
    # the line before.
    with Progress(
        *columns, console=console, transient=True, auto_refresh=False, speed_estimate_period=WINDOW
    ) as display:
        yield _Bars(display, _Lines(console)).show


class _Bars:
    """The bars of networks in training, and above them the lines of what is done."""

    def __init__(self, display: Any, lines: "_Lines"):
        self._display, self._lines = display, lines
        self._whole = display.add_task("starting TensorFlow", total=None)
        self._bars: dict[Key, Any] = {}
        self._drawn = 0.0  # when
        self._lock = threading.Lock()

    def show(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, Step | Done):
                where = _where(event)
                self._display.update(self._whole, description="in all", completed=where.done, total=where.total)
            if isinstance(event, Step):
                self._update(event)
            elif isinstance(event, Done) and _key(event.where) in self._bars:
                self._display.remove_task(self._bars.pop(_key(event.where)))
            now = time.monotonic()
            if not isinstance(event, Step) or now - self._drawn >= APART:
                self._display.refresh()
                self._drawn = now
            self._lines.show(event)

    def _update(self, where: Step) -> None:
        room = (formatting.columns(self._display.console.file) or 80) - BAR - LEFT - 4
        if _key(where) not in self._bars:
            self._bars[_key(where)] = self._display.add_task("")
        taken = where.step - where.first_step
        length = where.num_steps - where.first_step
        self._display.update(self._bars[_key(where)], description=_line(where, room), completed=taken, total=length)


class _TimeLeft:
    """The time that all networks will take, by the speed of those in training."""

    APART = 2.0  # seconds between two measurements, of which Rich keeps a thousand

    def __init__(self, console: Any) -> None:
        from rich.progress import Progress

        # Nothing is drawn: only Rich's estimate of the time is used.
        self._measured = Progress(console=console, disable=True, speed_estimate_period=WINDOW)
        self._task = self._measured.add_task("", total=None)
        self._last = -math.inf

    def measure(self, event: Step | Done) -> None:
        """Note how far training is."""
        now = time.monotonic()
        if isinstance(event, Done) or now - self._last >= self.APART:
            where = _where(event)
            self._measured.update(self._task, completed=where.done, total=where.total)
            self._last = now

    def __str__(self) -> str:
        """Say what is left, if it is known and at least a minute."""
        minutes = round((self._measured.tasks[0].time_remaining or 0) / 60)
        return f"{formatting.duration(60 * minutes).removesuffix(' 00 s')} left" if minutes else ""


class _Lines:
    """Lines of stored networks: what does not fit the terminal once is left out of all later lines too."""

    LEAVE_OUT = ("left", "seconds", "early stop", "density", "test")

    def __init__(self, console: Any, time_left: _TimeLeft | None = None):
        self._console = console
        self._time_left = time_left  # where no bar shows it
        self._absent: list[str] = []
        self._shown = time.monotonic()

    def show(self, event: Event) -> None:
        width = formatting.columns(self._console.file)
        if self._time_left is not None and not isinstance(event, Note | Evaluated):
            self._time_left.measure(event)
        if isinstance(event, Done):
            line = self._fitted(event, width)
        elif isinstance(event, Note):
            line = formatting.wrapped(event.text, width)
        elif isinstance(event, Step) and self._time_left is not None and time.monotonic() - self._shown >= QUIET:
            line = " · ".join(part for part in (_line(event, width or LONG), str(self._time_left)) if part)
        else:
            return
        self._shown = time.monotonic()
        with contextlib.suppress(OSError):  # a full disk is not a reason to end the training
            # Not wrapped by Rich, which takes a pipe for 80 columns.
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _fitted(self, event: Done, width: int | None) -> str:
        parts, begin, above = _parts(event), "", ""
        if self._time_left is not None:
            parts["left"] = str(self._time_left)
        if event.where.several:
            # The run's name stays whole, on a line of its own where the rest would not fit beside it.
            run = event.where.run.name
            begin = f"{run}  "
            if width is not None and len(begin) + LEAST > width:
                begin, above = "  ", f"{run}\n"
        while True:
            line = begin + "  ".join(part for name, part in parts.items() if part and name not in self._absent)
            left = [name for name in self.LEAVE_OUT if name not in self._absent]
            if width is None or len(line) <= width or not left:
                return above + line
            # For all later lines, too, so that columns stay below each other.
            self._absent.append(left[0])


def _parts(event: Done) -> dict[str, str]:
    """Describe a stored network in parts, some of which may be empty."""
    where, record = event.where, event.record
    accuracy = record["early_stop_test_accuracy"]
    test = f"loss {record['early_stop_test_loss']:#.4g}" if accuracy is None else f"{100 * accuracy:.2f} %"
    collapsed = ", ".join(record["collapsed"])
    return {
        "replicate": f"replicate {where.replicate}/{where.num_replicates}",
        "round": f"round {where.round:>{len(str(where.num_rounds))}}/{where.num_rounds}",
        "branch": _branch(where),
        "density": f"density {formatting.percent(where.density)}",
        "early stop": f"early stop {record['early_stop_step']:>{len(f'{where.num_steps:,}')},}",
        "test": f"test {test}",
        "seconds": formatting.duration(record["seconds"]),
        "collapsed": f"nothing left of {collapsed}" if collapsed else "",
    }


def _where(event: Step | Done) -> Step:
    return event.where if isinstance(event, Done) else event


def _branch(where: Step) -> str:
    return "" if where.branch == "ticket" else where.branch


def _key(where: Step) -> Key:
    return where.run, where.replicate, where.round, where.branch


def _line(where: Step, room: int) -> str:
    """Describe a network in training, in the room that is left of its bar."""
    validation = ""
    if not math.isnan(where.val_accuracy):  # as it is of a model that measures none
        validation = f"validation {100 * where.val_accuracy:.2f} %"
    parts = [
        where.run.name if where.several else "",
        f"replicate {where.replicate}/{where.num_replicates}",
        f"round {where.round}/{where.num_rounds}",
        _branch(where),
        f"step {where.step:,}/{where.num_steps:,}",
        validation,
        f"density {formatting.percent(where.density)}",
    ]
    shown = [part for part in parts if part]
    if where.several and len(shown[0]) + 3 + LEAST > room:
        del shown[0]
    while len(shown) > 1 and len(" · ".join(shown)) > room:
        shown.pop()
    return " · ".join(shown)
