"""The arguments and options that commands share, and how their values are read."""

import contextlib
import functools
import inspect
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lottery import interrupts
from lottery.cli import output
from lottery.errors import LotteryError, unknown

if TYPE_CHECKING:
    from lottery.executors import ray
    from lottery.pipeline import session
    from lottery.training import checkpoints


PLACES = PROCESSES, RAY = "processes", "ray"

RunPath = Annotated[Path, typer.Argument(help="The run's folder.", metavar="RUN")]
RunPaths = Annotated[list[Path], typer.Argument(help="A run's folder, or several.", metavar="RUN...")]
ExperimentSource = Annotated[
    str | None,
    typer.Argument(
        help="A TOML file, or a name from `lottery experiments ls`; by default mnist1d.", metavar="[EXPERIMENT]"
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Single values, such as train.num_steps=300.", metavar="[KEY=VALUE]..."),
]
Source = Annotated[Path, typer.Argument(help="A run's folder, or a ticket file.", metavar="RUN|FILE")]
ExperimentName = Annotated[str, typer.Argument(help="A name from `experiments ls`.", metavar="NAME")]
Out = Annotated[Path, typer.Option(help="The folder that holds runs.", metavar="FOLDER")]
Json = Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print the rows as CSV.")]
All = Annotated[bool, typer.Option("--all", help="Print every row, not a summary.")]
Replicate = Annotated[int | None, typer.Option(help="Only this replicate, from 1.", metavar="NUMBER")]
Round = Annotated[int | None, typer.Option(help="Only this round; 0 is dense.", metavar="NUMBER")]
Rounds = Annotated[
    str, typer.Option(help="Which rounds, such as 7,15; by default every pruned round.", metavar="NUMBERS")
]
Tolerance = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="What a winning or matching ticket may lose: accuracy, by default 0.002; or, where the model measures "
        "none, by what fraction its loss may be above that of dense, by default 0.02.",
        metavar="FRACTION",
        show_default=False,
    ),
]
Tensorboard = Annotated[bool, typer.Option(help="Write event files for TensorBoard in the run's folder.")]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="NUMBER",
        help="Number of networks to train at the same time; by default as many as the cores allow, if it pays off.",
    ),
]
On = Annotated[str | None, typer.Option(metavar="|".join(PLACES), help="Where to train; by default on this machine.")]
Address = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Address of the Ray cluster; by default a local one, started if needed."),
]
TaskCpus = Annotated[int | None, typer.Option(min=1, help="On Ray: processors for each network.", metavar="NUMBER")]
TaskGpus = Annotated[float | None, typer.Option(min=0, help="On Ray: GPUs for each network.", metavar="NUMBER")]
TaskMemory = Annotated[str | None, typer.Option(metavar="4GB", help="On Ray: memory for each network, such as 4GB.")]
ImportCode = Annotated[
    bool,
    typer.Option(
        "--import-code",
        help="Import the network that the file or the run names as package.module:function, which runs its code.",
    ),
]
CheckpointEvery = Annotated[
    str,
    typer.Option(metavar="60s|500steps", help="How often to save a network in training; 0s for never."),
]
# Of the commands that take one ticket.
OneRound = Annotated[
    str | None, typer.Option(help="Round of a run: a number, best or smallest_matching.", metavar="ROUND")
]
Density = Annotated[
    float | None, typer.Option(help="Instead of --round: the round of the nearest density.", metavar="FRACTION")
]
OneReplicate = Annotated[int, typer.Option(help="Replicate of a run, from 1.", metavar="NUMBER")]
At = Annotated[
    str,
    typer.Option(metavar="end|early_stop|budget", help="Which trained weights of a run to take."),
]
DataPath = Annotated[
    str, typer.Option(help="A file with the data of the ticket, if they are not found.", metavar="FILE")
]


def numbers(option: str, words: str) -> list[int]:
    """Read the numbers in the value of an option, such as 7,15."""
    try:
        return [int(word) for word in words.split(",") if word]
    except ValueError:
        raise LotteryError(f"{option} must be numbers, such as 7,15, not {words!r}.") from None


def assigned(option: str, words: Iterable[str]) -> dict[str, str]:
    """Read words of the form NAME=TEXT."""
    pairs = [word.partition("=") for word in words]
    for name, equals, text in pairs:
        if not (name and equals and text):
            raise LotteryError(f"{option} must be NAME=TEXT, such as random_mask='random mask', not {name!r}.")
    return {name: text for name, _, text in pairs}


def fractions(option: str, words: str) -> list[float]:
    """Read the fractions in the value of an option, such as 0.2,0.05."""
    try:
        return [float(word) for word in words.split(",") if word]
    except ValueError:
        raise LotteryError(f"{option} must be fractions, such as 0.2,0.05, not {words!r}.") from None


def selected(rows: Any, replicate: int | None, round: int | None) -> Any:
    """Select the rows of one replicate, one round, or both; it is an error if there are none."""
    for column, wanted in (("replicate", replicate), ("round", round)):
        if wanted is not None:
            if column not in rows:
                raise LotteryError(f"--{column} cannot be used here: each row is of several replicates.")
            if wanted not in set(rows[column]):
                stored = sorted(set(rows[column])) or "none yet"
                raise LotteryError(f"--{column} {wanted} is not stored. The run has {stored}.")
            rows = rows[rows[column] == wanted]
    return rows


@dataclass(frozen=True)
class Training:
    """How networks are trained: what the options say that `trains` adds to a command."""

    workers: "int | ray.Ray | None"
    checkpoint_every: "checkpoints.CheckpointInterval"
    tensorboard: bool
    import_code: bool

    @contextlib.contextmanager
    def execution(self) -> Iterator["session.Execution"]:
        """Give the execution, which signals stop; see `stoppable`."""
        from lottery.pipeline import session

        with stoppable() as should_stop:
            yield session.Execution(
                self.workers, self.checkpoint_every, tensorboard=self.tensorboard, should_stop=should_stop
            )


def _training(
    workers: Workers = None,
    on: On = None,
    address: Address = None,
    task_cpus: TaskCpus = None,
    task_gpus: TaskGpus = None,
    task_memory: TaskMemory = None,
    checkpoint_every: CheckpointEvery = "60s",
    tensorboard: Tensorboard = True,
    import_code: ImportCode = False,
) -> Training:
    workers_or_ray = workers_on(on, workers, address, task_cpus, task_gpus, task_memory)
    return Training(workers_or_ray, every(checkpoint_every), tensorboard, import_code)


def trains(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `Training` to a command, whose argument `training` they become."""
    own, shared = inspect.signature(command).parameters, inspect.signature(_training).parameters
    parameters = [*(own[name] for name in own if name != "training"), *shared.values()]

    @functools.wraps(command)
    def trained(**given: Any) -> None:
        how = {name: given.pop(name) for name in shared}
        command(**given, training=_training(**how))

    trained.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] (typer reads it)
    trained.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return trained


def experiment_of(experiment: str | None, overrides: list[str] | None) -> tuple[Path | None, dict[str, Any]]:
    """Find an experiment's file, None by default, and read overrides, the first of which may stand in its place."""
    from lottery import config
    from lottery.pipeline import presets

    words = list(overrides or [])
    if experiment is not None and "=" in experiment and not Path(experiment).exists():
        words, experiment = [experiment, *words], None
    return presets.find(experiment) if experiment else None, config.parse_overrides(words)


def workers_on(
    on: str | None, workers: int | None, address: str | None, cpus: int | None, gpus: float | None, memory: str | None
) -> "int | ray.Ray | None":
    """Return the number of worker processes, or the Ray cluster, that the options ask for."""
    if on not in (None, *PLACES):
        raise unknown("--on", on, PLACES)
    if on != RAY:
        of_ray = {"--address": address, "--task-cpus": cpus, "--task-gpus": gpus, "--task-memory": memory}
        for option, value in of_ray.items():
            if value is not None:
                raise LotteryError(f"{option} goes with --on ray alone.")
        return workers
    if workers is not None:
        raise LotteryError("--workers is for processes of this machine; on Ray the cluster decides how many there are.")
    # Ray reports a node that died in a hundred lines on standard output; our own message takes one.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    from lottery.executors import ray

    return ray.Ray(address or "", cpus or 0, gpus or 0.0, num_bytes("--task-memory", memory or "0"))


def num_bytes(option: str, words: str) -> int:
    """Read a number of bytes, such as 4GB, from the value of an option."""
    matched = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", words.strip().lower())
    if not matched:
        raise LotteryError(f"{option} must be a number of bytes, such as 4GB, not {words!r}.")
    number, unit, binary = matched.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(unit or " "))


def every(words: str) -> "checkpoints.CheckpointInterval":
    """Read how often to write a checkpoint, such as 60s or 500steps."""
    from lottery.training import checkpoints

    matched = re.fullmatch(r"(\d+(?:\.\d+)?)\s*s|(\d+)\s*steps?", words.strip())
    if not matched:
        raise LotteryError(f"--checkpoint-every must be seconds or steps, such as 60s or 500steps, not {words!r}.")
    seconds, steps = matched.groups()
    return checkpoints.CheckpointInterval(float(seconds)) if seconds else checkpoints.CheckpointInterval(0, int(steps))


@contextlib.contextmanager
def stoppable() -> Iterator[interrupts.ShouldStop]:
    """Turn Ctrl+C and SIGTERM into a clean stop, with a sentence and exit status 130 or 143."""

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
        say("lottery: Stopped. Everything is saved; run the same command to resume.")
        number = error.signal if isinstance(error, interrupts.Stopped) else signal.SIGINT
        raise typer.Exit(128 + number) from None
