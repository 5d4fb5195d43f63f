"""What a person sees while a run goes on: a display in a terminal, a line a round on a pipe."""

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
    """Where a network is that is trained, and how far that is in all.

    Attributes:
        run: The run's folder.
        replicate, num_replicates, round, num_rounds, branch, density: Which network it is.
        step: Steps that are taken.
        first_step, num_steps: From which step it is trained, and until which.
        val_accuracy: At the last evaluation.
        done, total: Steps of everything that is to be trained; see `tallied`.
        several: Whether networks of more than one run are trained.
    """

    run: Path
    replicate: int
    num_replicates: int
    round: int
    num_rounds: int
    branch: str
    density: float
    step: int
    first_step: int
    num_steps: int
    val_accuracy: float
    done: int = 0
    total: int = 0
    several: bool = False


@dataclass(frozen=True)
class Measured:
    """A network in training was evaluated.

    Attributes:
        run, replicate, round, branch: Which network it is.
        row: Step, split, loss and accuracy, as `lottery.training.trainer.Trained` has them.
        first: Whether its training has just begun, anew if it was begun before.
    """

    run: Path
    replicate: int
    round: int
    branch: str
    row: tuple[int, str, float, float]
    first: bool


@dataclass(frozen=True)
class Done:
    """A round is stored."""

    where: Step
    record: dict[str, Any]


@dataclass(frozen=True)
class Note:
    """Something worth knowing, in a sentence."""

    text: str


Key = tuple[Path, int, int, str]  # run, replicate, round, branch


Event = Step | Measured | Done | Note


Report = Callable[[Event], None]


def tallied(report: Report, spans: Mapping[Key, tuple[int, int]]) -> Report:
    """Say with each step how far everything is, whichever networks are trained at the same time.

    Args:
        report: Told everything.
        spans: From which step to which each network is trained.

    Returns:
        A function that takes what happens, and fills in `Step.done` and `Step.total`.
    """
    taken = dict.fromkeys(spans, 0)
    total, several = sum(last - first for first, last in spans.values()), len({key[0] for key in spans}) > 1

    def told(event: Event) -> None:
        where = event.where if isinstance(event, Done) else event
        if isinstance(where, Step):
            key = where.run, where.replicate, where.round, where.branch
            first, last = spans.get(key, (0, 0))
            taken[key] = last - first if isinstance(event, Done) else max(0, min(where.step - first, last - first))
            where = dataclasses.replace(where, done=sum(taken.values()), total=total, several=several)
            event = dataclasses.replace(event, where=where) if isinstance(event, Done) else where
        report(event)

    return told


def throttled(report: Report, apart: float = 0.1) -> Report:
    """Leave out what only says how far a network is, if that was said a moment ago.

    Args:
        report: Told the rest.
        apart: Seconds between two such events.
    """
    said = 0.0

    def told(event: Event) -> None:
        nonlocal said
        if isinstance(event, Step):
            now = time.monotonic()
            if now - said < apart:
                return
            said = now
        report(event)

    return told


@contextlib.contextmanager
def shown(console: Any = None) -> Iterator[Report]:
    """Show what is trained.

    Args:
        console: A ``rich.console.Console``; standard error if None, so that standard output is left to results.

    Yields:
        A function that takes what happens. Leaving the context removes the moving part of the display: a line for each
        network that is trained at the moment, and one for everything.
    """
    from rich.console import Console

    class Lasting(Console):
        def on_broken_pipe(self) -> None:  # Rich would end the process
            self.quiet = True

    console = console or Lasting(stderr=True)
    begin: list[tuple[float, int]] = []

    def left(where: Step) -> str:
        now = time.monotonic()
        if not begin and where.step:  # the first steps carry the compiling, which comes once
            begin.append((now, where.done))
        if not begin or where.done <= begin[0][1]:
            return ""
        return duration((now - begin[0][0]) / (where.done - begin[0][1]) * (where.total - where.done))

    def print_line(event: Event) -> None:
        with contextlib.suppress(OSError):  # where it is written is full: no reason to end the training
            _print_line(console, event, left)

    if not console.is_terminal:
        yield print_line
        return

    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=18), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=console, transient=True) as display:
        whole = display.add_task("starting TensorFlow", total=None, left="")
        lines: dict[Key, Any] = {}

        def report(event: Event) -> None:
            where = event.where if isinstance(event, Done) else event
            if isinstance(where, Step):
                key, remaining = (where.run, where.replicate, where.round, where.branch), left(where)
                if isinstance(event, Done):
                    if key in lines:
                        display.remove_task(lines.pop(key))
                else:
                    if key not in lines:
                        lines[key] = display.add_task("", left="")
                    length = where.num_steps - where.first_step
                    display.update(
                        lines[key], description=_line(where), completed=where.step - where.first_step, total=length
                    )
                display.update(
                    whole,
                    description="in all",
                    completed=where.done,
                    total=where.total,
                    left=f"{remaining} left" if remaining else "",
                )
            if not isinstance(event, Step):
                print_line(event)

        yield report


def silent(event: Event) -> None:
    """Show nothing."""


def _print_line(console: Any, event: Event, left: Callable[[Step], str]) -> None:
    if isinstance(event, Note):
        console.print(event.text, markup=False, highlight=False, soft_wrap=True)
    elif isinstance(event, Done):
        where, record = event.where, event.record
        collapsed = f"  nothing left of {', '.join(record['collapsed'])}" if record["collapsed"] else ""
        remaining, accuracy = left(where), record["early_stop_test_accuracy"]
        console.print(
            (f"{where.run.name}  " if where.several else "")
            + f"replicate {where.replicate}/{where.num_replicates}  round {where.round:>2}/{where.num_rounds}  "
            + ("" if where.branch == "ticket" else f"{where.branch}  ")
            + f"density {where.density:.4f}  early stop {record['early_stop_step']:>{len(str(where.num_steps))}}  "
            + ("" if accuracy is None else f"test {accuracy:.4f}  ")
            + f"{record['seconds']:.1f} s"
            + (f"  {remaining} left" if remaining else "")
            + collapsed,
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
    elif isinstance(event, Step):
        left(event)


def _line(where: Step) -> str:
    branch = "" if where.branch == "ticket" else f" · {where.branch}"
    run = f"{where.run.name} · " if where.several else ""
    return (
        f"{run}replicate {where.replicate}/{where.num_replicates} · round {where.round}/{where.num_rounds}{branch}"
        f" · density {where.density:.4f} · step {where.step}/{where.num_steps} · validation {where.val_accuracy:.4f}"
    )
