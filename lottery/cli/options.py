"""The arguments and options that commands share, and how their values are read."""

import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from lottery import interrupts
from lottery.cli import output
from lottery.errors import LotteryError, unknown

if TYPE_CHECKING:
    from lottery.executors import ray
    from lottery.training import checkpoints


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
On = Annotated[str | None, typer.Option(metavar="processes|ray", help="Where to train; by default on this machine.")]
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
    typer.Option(metavar="end|early_stop", help="Which trained weights of a run to take."),
]
DataPath = Annotated[
    str, typer.Option(help="A file with the data of the ticket, if they are not found.", metavar="FILE")
]


class Command(TyperCommand):
    """A command whose help shows what to type, without the types of Python."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """List the words of the usage line."""
        return ["[OPTIONS]", *(one.metavar for one in self._arguments())]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options."""
        shown = [one for one in self.get_params(ctx) if one.param_type_name == "option"]
        options = [record for one in shown if (record := one.get_help_record(ctx))]
        records = {
            "Arguments": [(one.metavar, (one.get_help_record(ctx) or ("", ""))[1]) for one in self._arguments()],
            "Options": [(re.sub(r"<(\w+)[^>]*>", _placeholder, words), text) for words, text in options],
        }
        for title, lines in records.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)

    def _arguments(self) -> list[Any]:
        parameters: list[Any] = list(self.params)
        return [one for one in parameters if one.param_type_name == "argument"]


def _placeholder(found: re.Match[str]) -> str:
    """Return what to type for an option of a Python type."""
    return {"path": "FILE", "int": "NUMBER", "float": "NUMBER"}.get(found[1].lower(), "TEXT")


class App(typer.Typer):
    """An application of such commands, without Rich's boxes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **options
        )

    def command(self, name: str | None = None, *, cls: Any = Command, **options: Any) -> Any:
        """Add a command."""
        return super().command(name, cls=cls, **options)


def naming(read: Callable[[], Iterable[str]]) -> type[Command]:
    """Return a kind of command that puts names in place of ``{names}`` in its help texts, which are read only then."""

    class Naming(Command):
        def get_help(self, ctx: Any) -> str:
            parameters: list[Any] = list(self.params)
            for parameter in parameters:
                if "{names}" in (parameter.help or ""):
                    parameter.help = parameter.help.replace("{names}", ", ".join(read()))
            return super().get_help(ctx)

    return Naming


def listing(title: str, read: Callable[[], Iterable[tuple[str, str]]], kind: type[Command] = Command) -> type[Command]:
    """Return a kind of command that lists names and what they are below its options, and reads them only then."""

    class Listing(kind):
        def format_epilog(self, ctx: Any, formatter: Any) -> None:
            with formatter.section(title):
                formatter.write_dl(list(read()))

    return Listing


def numbers(option: str, words: str) -> list[int]:
    """Read the numbers in the value of an option, such as 7,15."""
    try:
        return [int(word) for word in words.split(",") if word]
    except ValueError:
        raise LotteryError(f"{option}: received {words!r}, allowed are numbers such as 7,15.") from None


def fractions(option: str, words: str) -> list[float]:
    """Read the fractions in the value of an option, such as 0.2,0.05."""
    try:
        return [float(word) for word in words.split(",") if word]
    except ValueError:
        raise LotteryError(f"{option}: received {words!r}, allowed are fractions such as 0.2,0.05.") from None


def selected(rows: Any, replicate: int | None, round: int | None) -> Any:
    """Select the rows of one replicate, one round, or both; it is an error if there are none."""
    for column, wanted in (("replicate", replicate), ("round", round)):
        if wanted is not None:
            if column not in rows:
                raise LotteryError(f"--{column} cannot be used here: each row is of several replicates.")
            if wanted not in set(rows[column]):
                stored = sorted(set(rows[column])) or "none yet"
                raise LotteryError(f"--{column}: received {wanted}, stored are {stored}.")
            rows = rows[rows[column] == wanted]
    return rows


def workers_on(
    on: str | None, workers: int | None, address: str | None, cpus: int | None, gpus: float | None, memory: str | None
) -> "int | ray.Ray | None":
    """Return the number of worker processes, or the Ray cluster, that the options ask for."""
    if on in (None, "processes"):
        of_ray = {"--address": address, "--task-cpus": cpus, "--task-gpus": gpus, "--task-memory": memory}
        for option, value in of_ray.items():
            if value is not None:
                raise LotteryError(f"{option} goes with --on ray alone.")
        return workers
    if on != "ray":
        raise unknown("--on", on, ("processes", "ray"))
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
        raise LotteryError(f"{option}: received {words!r}, allowed are bytes such as 4GB.")
    number, unit, binary = matched.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(unit or " "))


def every(words: str) -> "checkpoints.CheckpointInterval":
    """Read how often to write a checkpoint, such as 60s or 500steps."""
    from lottery.training import checkpoints

    matched = re.fullmatch(r"(\d+(?:\.\d+)?)\s*s|(\d+)\s*steps?", words.strip())
    if not matched:
        raise LotteryError(f"--checkpoint-every: received {words!r}, allowed are seconds or steps, as 60s or 500steps.")
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
        say(f"{begin}lottery: stopping after this step; once more stops at once.")

    try:
        with interrupts.listening(announce, at_once=True) as should_stop:
            yield should_stop
    except KeyboardInterrupt as error:
        say("lottery: stopped; what was trained is kept, and the same command goes on.")
        number = error.signal if isinstance(error, interrupts.Stopped) else signal.SIGINT
        raise typer.Exit(128 + number) from None
