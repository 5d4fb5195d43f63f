"""What a person sees while a run goes on: a display in a terminal, a line a round on a pipe."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Step:
    """Where a run is: in which network, at which of its steps, and how many steps of the whole are done."""

    replicate: int
    num_replicates: int
    round: int
    num_rounds: int
    branch: str
    density: float
    step: int
    num_steps: int
    val_accuracy: float
    done: int
    total: int


@dataclass(frozen=True)
class Measured:
    """A network in training was evaluated.

    Attributes:
        replicate, round, branch: Which network it is.
        row: Step, split, loss and accuracy, as `lottery.training.Trained` has them.
        first: Whether its training has just begun, anew if it was begun before.
    """

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


Event = Step | Measured | Done | Note
Report = Callable[[Event], None]


@contextlib.contextmanager
def shown(console: Any = None) -> Iterator[Report]:
    """Show a run.

    Args:
        console: A ``rich.console.Console``; standard error if None, so that standard output is left to results.

    Yields:
        A function that takes what happens. Leaving the context removes the moving part of the display.
    """
    from rich.console import Console

    console = console or Console(stderr=True)
    begin: list[tuple[float, int]] = []

    def left(where: Step) -> str:
        now = time.monotonic()
        if not begin and where.step:  # the first steps carry the compiling, which comes once
            begin.append((now, where.done))
        if not begin or where.done <= begin[0][1]:
            return ""
        return _duration((now - begin[0][0]) / (where.done - begin[0][1]) * (where.total - where.done))

    if not console.is_terminal:
        yield lambda event: _print_line(console, event, left)
        return

    from rich.progress import BarColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=18), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=console, transient=True) as display:
        task = display.add_task("starting TensorFlow", total=None, left="")

        def report(event: Event) -> None:
            if isinstance(event, Step):
                remaining, branch = left(event), "" if event.branch == "ticket" else f" · {event.branch}"
                display.update(
                    task,
                    description=(
                        f"replicate {event.replicate}/{event.num_replicates} · round {event.round}/{event.num_rounds}"
                        f"{branch} · density {event.density:.4f} · step {event.step}/{event.num_steps}"
                        f" · validation {event.val_accuracy:.4f}"
                    ),
                    completed=event.done,
                    total=event.total,
                    left=f"{remaining} left" if remaining else "",
                )
            else:
                _print_line(console, event, left)

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
            f"replicate {where.replicate}/{where.num_replicates}  round {where.round:>2}/{where.num_rounds}  "
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


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
