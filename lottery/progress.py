"""Events of a run while it trains, and how a person sees them: a display in a terminal, a line a round on a pipe."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lottery.formatting import duration


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
class Measured:
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


Event = Step | Measured | Done | Note
Report = Callable[[Event], None]
Key = tuple[Path, int, int, str]  # run, replicate, round, branch


def silent(event: Event) -> None:
    """Show nothing."""


def tallied(report: Report, spans: Mapping[Key, tuple[int, int]]) -> Report:
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
        report(event)

    return tally


def throttled(report: Report, apart: float = 0.1) -> Report:
    """Leave out each `Step` that comes less than `apart` seconds after the one before."""
    last = 0.0

    def throttle(event: Event) -> None:
        nonlocal last
        if isinstance(event, Step):
            now = time.monotonic()
            if now - last < apart:
                return
            last = now
        report(event)

    return throttle


@contextlib.contextmanager
def shown(console: Any = None) -> Iterator[Report]:
    """Show events: in a terminal a bar for each network in training and one for all; a line for each stored network.

    The bars vanish at the end of the context. `console` is a ``rich.console.Console``, by default for standard error,
    which leaves standard output to results.
    """
    from rich.console import Console

    class Lasting(Console):
        def on_broken_pipe(self) -> None:  # Rich would end the process
            self.quiet = True

    console = console or Lasting(stderr=True)
    begin: list[tuple[float, int]] = []

    def left(where: Step) -> str:
        now = time.monotonic()
        if not begin and where.step:  # compiling, which happens once, is part of the first steps
            begin.append((now, where.done))
        if not begin or where.done <= begin[0][1]:
            return ""
        return duration((now - begin[0][0]) / (where.done - begin[0][1]) * (where.total - where.done)) + " left"

    def print_line(event: Event) -> None:
        remaining = left(_where(event)) if isinstance(event, Step | Done) else ""
        line = _done(event, remaining) if isinstance(event, Done) else getattr(event, "text", "")
        if line:
            with contextlib.suppress(OSError):  # a full disk is no reason to end the training
                console.print(line, markup=False, highlight=False, soft_wrap=True)

    if not console.is_terminal:
        yield print_line
        return

    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=18), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=console, transient=True) as display:
        whole = display.add_task("starting TensorFlow", total=None, left="")
        bars: dict[Key, Any] = {}

        def show(event: Event) -> None:
            if isinstance(event, Step | Done):
                where = _where(event)
                key = _key(where)
                if key not in bars:
                    bars[key] = display.add_task("", left="")
                if isinstance(event, Done):
                    display.remove_task(bars.pop(key))
                else:
                    taken, length = where.step - where.first_step, where.num_steps - where.first_step
                    display.update(bars[key], description=_line(where), completed=taken, total=length)
                display.update(whole, description="in all", completed=where.done, total=where.total, left=left(where))
            if not isinstance(event, Step):
                print_line(event)

        yield show


def _where(event: Step | Done) -> Step:
    return event.where if isinstance(event, Done) else event


def _key(where: Step) -> Key:
    return where.run, where.replicate, where.round, where.branch


def _done(event: Done, left: str) -> str:
    where, record = event.where, event.record
    accuracy = record["early_stop_test_accuracy"]
    parts = [
        where.run.name if where.several else "",
        f"replicate {where.replicate}/{where.num_replicates}",
        f"round {where.round:>2}/{where.num_rounds}",
        "" if where.branch == "ticket" else where.branch,
        f"density {where.density:.4f}",
        f"early stop {record['early_stop_step']:>{len(str(where.num_steps))}}",
        "" if accuracy is None else f"test {accuracy:.4f}",
        f"{record['seconds']:.1f} s",
        left,
        f"nothing left of {', '.join(record['collapsed'])}" if record["collapsed"] else "",
    ]
    return "  ".join(part for part in parts if part)


def _line(where: Step) -> str:
    branch = "" if where.branch == "ticket" else f" · {where.branch}"
    run = f"{where.run.name} · " if where.several else ""
    return (
        f"{run}replicate {where.replicate}/{where.num_replicates} · round {where.round}/{where.num_rounds}{branch}"
        f" · density {where.density:.4f} · step {where.step}/{where.num_steps} · validation {where.val_accuracy:.4f}"
    )
