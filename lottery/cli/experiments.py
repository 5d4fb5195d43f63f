"""The commands about experiments: which come with the package, and what one would train."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from lottery.cli import options, output
from lottery.cli.commands import App
from lottery.errors import LotteryError
from lottery.formatting import number
from lottery.text_tables import Table, frame

if TYPE_CHECKING:
    from lottery import config

app = App(help="Experiments that come with the package.")

Name = Annotated[str, Argument(help="A name from `experiments ls`.", metavar="NAME")]


@app.command("ls", short_help="List the experiments.")
def ls(as_data: output.AsData) -> None:
    """List the experiments, the default first: paper and figure that each reproduces, data, and network."""
    from lottery.pipeline import presets

    rows = presets.listed()
    if as_data:
        output.rows(rows, as_data)
        return
    output.rows(frame(rows, ["name", "paper", "figure", "data", "model"]))
    output.say(
        f"`lottery run` trains {rows[0]['name']}, `lottery run NAME` another. `lottery experiments show NAME` prints "
        "what it reproduces, how long it takes and the numbers to expect."
    )


@app.command("show", short_help="Print an experiment.")
def show(name: Name) -> None:
    """Print an experiment, with what it reproduces, how long it takes and the numbers to expect."""
    from lottery.pipeline import presets

    print(presets.named(name).read_text(encoding="utf-8"), end="")


@app.command("cp", short_help="Copy an experiment, to change it.")
def cp(
    name: Name, to: Annotated[Path | None, Argument(help="File or folder; by default here.", metavar="[TO]")] = None
) -> None:
    """Copy an experiment, to change it."""
    from lottery.pipeline import presets

    print(presets.copied(name, to or Path()))


@dataclass(frozen=True)
class Power:
    """What the verdicts are to show, and how surely."""

    difference: Annotated[
        float | None,
        Option(
            help="The true ticket − dense to plan for; by default 0 or, with --from, that run's mean in each round."
        ),
    ] = None
    std: Annotated[float | None, Option(min=0, help="Standard deviation of ticket − dense between replicates.")] = None
    pilot: Annotated[
        Path | None, Option("--from", metavar="RUN", help="Instead of --std: a run to estimate it from.")
    ] = None
    power: Annotated[float, Option(metavar="FRACTION", help="The probability of showing the difference.")] = 0.8
    tolerance: options.Tolerance = None

    def check(self) -> None:
        """Raise `LotteryError` if options do not go together."""
        if self.std is not None and self.pilot is not None:
            raise LotteryError("Use --std or --from, not both.")
        if self.difference is not None and self.std is None and self.pilot is None:
            raise LotteryError("--difference needs --std NUMBER or --from RUN, which say how much replicates differ.")
        if self.difference is not None and not math.isfinite(self.difference):
            raise LotteryError(f"--difference must be a finite number, not {self.difference}.")
        if not 0 < self.power < 1:
            raise LotteryError(f"--power must be between 0 and 1, not {self.power:g}.")

    def needed(self, rows: Table, planned: "config.Experiment") -> tuple[Table, list[str]]:
        """Add to the rows of a plan how many replicates it takes, if that can be told, and explain the columns."""
        from lottery.statistics import pilot, results, verdicts
        from lottery.statistics.metric import ACCURACY, metric_of

        if self.std is None and self.pilot is None:
            return rows, ["--std NUMBER or --from RUN also says how many replicates the verdicts need."]
        if not planned.prune.num_rounds:
            return rows, ["No round prunes (prune.num_rounds is 0), so there is no verdict that needs replicates."]
        metric = ACCURACY if self.pilot is None else metric_of(results.table(self.pilot))
        rule = verdicts.rule_for(planned, self.tolerance, metric)
        difference = self.difference
        if difference is None and self.pilot is None:
            difference = 0.0
        near = "" if self.pilot is None else ", or the run of --from has fewer than two replicates near this density"
        rows = pilot.needed(rows, planned, rule, self.power, difference=difference, std=self.std, pilot=self.pilot)
        unit = "loss, in per cent of the loss of dense" if metric.is_loss else "accuracy, in percentage points"
        return rows, [
            "Replicates: the number of replicates with which a new run shows that a round is matching, with a power of "
            f"{100 * self.power:g} %, if the difference in the table is the true difference. Empty: 1,000 replicates "
            f"are not enough{near}. For all rounds: the number that is enough in a test of all "
            f"{planned.prune.num_rounds} rounds at once, whatever the other rounds show.",
            "Set run.num_replicates before the new run starts, and run.seed to a seed that no earlier run has used.",
            f"Difference and std: mean and standard deviation of ticket − dense for the test {unit}.",
        ]


def plan(
    changed: options.Changed,
    power: Power,
    no_time: Annotated[bool, Option("--no-time", help="Do not measure the time: start no training.")] = False,
    import_code: options.ImportCode = False,
    *,
    as_data: output.AsData,
) -> None:
    """Show what an experiment would train, how long that takes here, and how many replicates its verdicts need.

    For the time, the dense network is trained for some seconds, and thrown away.

    Examples: lottery plan run.num_replicates=10; lottery plan lenet_mnist --difference 0.005 --std 0.003;
    lottery plan --from runs/NAME
    """
    from lottery import config
    from lottery.pipeline import environment, preview
    from lottery.runs import store

    power.check()
    source: Any
    source, overriding = changed.read()
    if source is None and power.pilot is not None:
        source = store.read_experiment(power.pilot).model_dump(mode="json")
    planned = config.load(source, overriding)
    # Before anything is computed: TensorFlow reads the setting of oneDNN once, and keeps its number of threads.
    environment.begin(planned, {}, [planned.model.name])
    imports = import_code or config.names_network(overriding)
    rows = preview.rounds(planned, power.pilot, imports)
    notes = preview.sentences(planned, int(rows["num_kept"].iloc[0]))
    rows, explained = power.needed(rows, planned)
    if as_data:
        output.rows(rows, as_data)
        return
    output.rows(_as_texts(rows))
    output.say(*notes, *explained)
    if not no_time:
        output.say(_time(planned, imports))


def _time(planned: "config.Experiment", imports: bool) -> str:
    from rich.console import Console

    from lottery.pipeline import rehearsal

    with Console(stderr=True).status("Measuring how long a step takes"):
        # Without the data there is no time, but the rest of the plan is right.
        try:
            return rehearsal.sentence(planned, imports)
        except LotteryError as error:
            return f"How long it takes is not known: {error}"


def _as_texts(rows: Table) -> Table:
    """Format the numbers of a plan; a number that is not known is an empty cell."""
    forms: dict[str, Callable[[float], str]] = {
        "replicates": lambda value: number(value, ",.0f"),
        "for_all_rounds": lambda value: number(value, ",.0f"),
        "difference": lambda value: number(100 * value, "+.2f"),
        "std": lambda value: number(100 * value, ".2f"),
    }
    return rows.assign(**{key: rows[key].map(form) for key, form in forms.items() if key in rows})
