"""The arguments and options that commands share, and how their values are read."""

import contextlib
import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from lottery import formatting, interrupts
from lottery.cli import output
from lottery.errors import LotteryError, unknown

if TYPE_CHECKING:
    from lottery.executors import ray
    from lottery.pipeline import session
    from lottery.training import checkpoints

TRY_AGAIN = 75  # by the list of exit statuses in sysexits.h
RAY = "ray"
PLACES = ("processes", RAY)

RunPath = Annotated[Path, Argument(help="The run's folder.", metavar="RUN")]
RunPaths = Annotated[list[Path], Argument(help="A run's folder, or several.", metavar="RUN...")]
Source = Annotated[Path, Argument(help="A run's folder, or a ticket file.", metavar="RUN|FILE")]
Out = Annotated[Path, Option(help="The folder that holds runs.", metavar="FOLDER")]
Replicate = Annotated[int | None, Option(help="Only this replicate, from 1.")]
Round = Annotated[int | None, Option(help="Only this round; 0 is dense.")]
Tolerance = Annotated[
    float | None,
    Option(
        min=0,
        max=1,
        help="How much accuracy a winning or matching ticket may lose, by default 0.002. If the model measures no "
        "accuracy: the fraction by which the ticket's loss may exceed the loss of dense, by default 0.02.",
        metavar="FRACTION",
        show_default=False,
    ),
]
ImportCode = Annotated[
    bool,
    Option("--import-code", help="Import a network that is named as package.module:function, which runs its code."),
]
CheckpointEvery = Annotated[
    str, Option(metavar="60s|500steps", help="How often to save a network in training; 0s for never.")
]
Workers = Annotated[
    int | None,
    Option(min=1, help="Networks to train at the same time; by default as many as the cores allow, if it pays off."),
]
MaxHours = Annotated[
    float | None, Option(metavar="HOURS", help="Stop after this time, with exit status 75; the same command resumes.")
]


@dataclass(frozen=True)
class Changed:
    """An experiment, by its file or its name, and single values in place of its own."""

    experiment: Annotated[
        str | None,
        Argument(
            help="A TOML file, a name from `lottery experiments ls`, or a run's folder; by default mnist1d.",
            metavar="[EXPERIMENT]",
        ),
    ] = None
    overrides: Annotated[
        list[str] | None, Argument(help="Single values, such as train.num_steps=300.", metavar="[KEY=VALUE]...")
    ] = None

    def read(self) -> tuple[Path | None, dict[str, Any]]:
        """Find the experiment's file, None by default, and read overrides; the first may stand in its place."""
        from lottery import config

        experiment = self.experiment
        words = self.overrides or []
        # The name of a file may have an equals sign, too.
        if experiment is not None and "=" in experiment and not Path(experiment).exists():
            words = [experiment, *words]
            experiment = None
        return Path(experiment) if experiment else None, config.parse_overrides(words)


@dataclass(frozen=True)
class Training:
    """How networks are trained."""

    workers: Workers = None
    on: Annotated[str | None, Option(metavar="|".join(PLACES), help="Where to train; by default here.")] = None
    address: Annotated[
        str | None,
        Option(metavar="HOST:PORT", help="Address of the Ray cluster; by default a local cluster, started if needed."),
    ] = None
    task_cpus: Annotated[int | None, Option(min=1, help="On Ray: processors for each network.")] = None
    task_gpus: Annotated[float | None, Option(min=0, help="On Ray: GPUs for each network.")] = None
    task_memory: Annotated[str | None, Option(metavar="4GB", help="On Ray: memory for each network.")] = None
    checkpoint_every: CheckpointEvery = "60s"
    max_hours: MaxHours = None
    tensorboard: Annotated[bool, Option(help="Write event files for TensorBoard in the run's folder.")] = True
    import_code: ImportCode = False

    @contextlib.contextmanager
    def execution(self) -> Iterator["session.Execution"]:
        """Give the execution, which signals stop; see `stoppable`."""
        from lottery.pipeline import session

        workers = self.workers_or_ray()
        often = every(self.checkpoint_every)
        with stoppable() as should_stop:
            yield session.Execution(
                workers, often, tensorboard=self.tensorboard, should_stop=should_stop, max_hours=self.max_hours
            )

    def workers_or_ray(self) -> "int | ray.Ray | None":
        """Return the number of worker processes, or the Ray cluster, that the options ask for."""
        if self.on not in (None, *PLACES):
            raise unknown("--on", self.on, PLACES)
        if self.on != RAY:
            for name in ("address", "task_cpus", "task_gpus", "task_memory"):
                if getattr(self, name) is not None:
                    option = f"--{name.replace('_', '-')}"
                    raise LotteryError(f"{option} needs --on ray. Add --on ray, or leave out {option}.")
            return self.workers
        if self.workers is not None:
            raise LotteryError(
                "--workers cannot be used with --on ray: there, the cluster decides how many networks train at once."
            )
        # Ray reports a node that died in a hundred lines on standard output; our own message takes one.
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
        from lottery.executors import ray

        memory = num_bytes("--task-memory", self.task_memory) if self.task_memory else 0
        return ray.Ray(self.address or "", self.task_cpus or 0, self.task_gpus or 0.0, memory)


def numbers(option: str, words: str, kind: type = int, example: str = "numbers, such as 7,15") -> list[Any]:
    """Read the numbers in the value of an option, such as 7,15; none where it is not given."""
    try:
        found = [kind(word) for word in words.split(",") if word]
    except ValueError:
        found = []
    # Commas alone would pass for an option that is not given, which means all.
    if words and not found:
        raise LotteryError(f"{option} must be {example}, not {words!r}.")
    return found


def selected(rows: Any, replicate: int | None, round: int | None) -> Any:
    """Select the rows of one replicate, one round, or both; it is an error if there are none."""
    for column, wanted in (("replicate", replicate), ("round", round)):
        if wanted is None:
            continue
        if column not in rows:
            raise LotteryError(f"--{column} cannot be used here: each row is of several replicates.")
        stored = {int(number) for number in rows[column]}
        if wanted not in stored:
            there = formatting.ranges(stored, column) if stored else "nothing yet"
            raise LotteryError(f"--{column} {wanted} is not stored. The run has {there}.")
        rows = rows[rows[column] == wanted]
    return rows


def num_bytes(option: str, words: str) -> int:
    """Read a number of bytes, such as 4GB, from the value of an option."""
    # Whoever writes a bare 4 may mean gigabytes, so it is refused.
    matched = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt])(i?)b?", words.strip().lower())
    if not matched:
        raise LotteryError(f"{option} must be a number of bytes with its unit, such as 4GB or 500MB, not {words!r}.")
    number, unit, binary = matched.groups()
    return int(float(number) * (1024 if binary else 1000) ** (1 + "kmgt".index(unit)))


def every(words: str) -> "checkpoints.CheckpointInterval":
    """Read how often to write a checkpoint, such as 60s or 500steps."""
    from lottery.training import checkpoints

    # Seconds may be a fraction; a bare number could mean either, so it is refused.
    matched = re.fullmatch(r"(\d+(?:\.\d+)?)\s*s|(\d+)\s*steps?", words.strip())
    if not matched:
        raise LotteryError(f"--checkpoint-every must be seconds or steps, such as 60s or 500steps, not {words!r}.")
    seconds, steps = matched.groups()
    return checkpoints.CheckpointInterval(float(seconds)) if seconds else checkpoints.CheckpointInterval(0, int(steps))


@contextlib.contextmanager
def stoppable() -> Iterator[interrupts.ShouldStop]:
    """Turn Ctrl+C, SIGTERM and the end of --max-hours into a sentence, with exit status 130, 143 or `TRY_AGAIN`."""

    def say(sentence: str) -> None:
        with contextlib.suppress(OSError):  # the reader may be gone
            output.say(sentence, file=sys.stderr)
            sys.stderr.flush()

    def announce(number: int) -> None:
        begin = "\n" if sys.stderr.isatty() else ""  # after the ^C that the terminal shows
        say(f"{begin}lottery: Stopping after this step. Press Ctrl-C again to stop at once.")

    try:
        with interrupts.listening(announce, at_once=True) as should_stop:
            yield should_stop
    except KeyboardInterrupt as error:
        number = error.signal if isinstance(error, interrupts.Stopped) else signal.SIGINT
        why = "Stopped, as --max-hours is over" if number == interrupts.TIME_IS_UP else "Stopped"
        say(f"lottery: {why}. Everything is saved; run the same command to resume.")
        raise typer.Exit(TRY_AGAIN if number == interrupts.TIME_IS_UP else 128 + number) from None
