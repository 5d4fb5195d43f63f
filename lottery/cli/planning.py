"""The command plan: what an experiment would train, and how many replicates its verdicts need."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lottery.cli import options, output
from lottery.errors import LotteryError
from lottery.grids import Table

if TYPE_CHECKING:
    from lottery import config


def plan(
    experiment: options.ExperimentSource = None,
    overrides: options.Overrides = None,
    difference: Annotated[
        float | None,
        typer.Option(
            metavar="NUMBER",
            help="The true ticket − dense to be found; by default 0, or the means of the run of --from.",
        ),
    ] = None,
    std: Annotated[
        float | None,
        typer.Option(min=0, metavar="NUMBER", help="Standard deviation of ticket − dense between replicates."),
    ] = None,
    pilot: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN", help="Instead of --std: a run that estimates it, and is not used again."),
    ] = None,
    power: Annotated[
        float, typer.Option(metavar="FRACTION", help="The probability with which the difference is to be shown.")
    ] = 0.8,
    tolerance: options.Tolerance = None,
    no_time: Annotated[
        bool, typer.Option("--no-time", help="Do not measure how long it takes: start no training at all.")
    ] = False,
    import_code: options.ImportCode = False,
    as_json: options.Json = False,
    as_csv: options.Csv = False,
) -> None:
    """Show what an experiment would train, how long that takes here, and how many replicates its verdicts need.

    For the time, the dense network is trained for some seconds, and thrown away.

    Examples: lottery plan run.num_replicates=10; lottery plan lenet_mnist --difference 0.005 --std 0.003;
    lottery plan --from runs/NAME
    """
    # Over fifty lines, since its options take thirty.
    from lottery import config
    from lottery.pipeline import environment, onednn, preview
    from lottery.runs import store
    from lottery.statistics import pilot as pilots
    from lottery.statistics import results, verdicts
    from lottery.statistics.metric import ACCURACY, metric_of

    if std is not None and pilot is not None:
        raise LotteryError("Use --std or --from, not both.")
    if not 0 < power < 1:
        raise LotteryError(f"--power must be between 0 and 1, not {power:g}.")
    source: Any
    source, overriding = options.experiment_of(experiment, overrides)
    if source is None and pilot is not None:
        source = store.read_experiment(pilot).model_dump(mode="json")
    planned = config.load(source, overriding)
    onednn.begin({}, [planned.model.name])
    environment.num_threads()  # imports TensorFlow without its start-up messages
    rule = verdicts.rule_for(planned, tolerance, ACCURACY if pilot is None else metric_of(results.table(pilot)))
    imports = import_code or config.names_network(overriding)
    rows = preview.rounds(planned, pilot, imports)
    notes = preview.sentences(planned, int(rows["num_kept"].iloc[0]))
    if std is None and pilot is None:
        notes.append("--std NUMBER or --from RUN also says how many replicates the verdicts need.")
    else:
        wanted = 0.0 if difference is None and pilot is None else difference
        rows = pilots.needed(rows, planned, rule, power, difference=wanted, std=std, pilot=pilot)
        notes += _legend(power, wanted is None, planned.prune.num_rounds, rule.metric.is_loss)
    if as_json or as_csv:
        output.rows(rows, as_json, as_csv)
        return
    output.rows(_as_texts(rows))
    output.say(*notes)
    if not no_time:
        _say_time(planned, imports)


def _say_time(planned: "config.Experiment", imports: bool) -> None:
    from lottery.pipeline import rehearsal

    with output.status("Measuring how long a step takes"):
        try:
            found = rehearsal.sentence(planned, imports)
        except LotteryError as error:
            found = f"How long it takes is not known: {error}"
    output.say(found)


def _legend(power: float, of_the_run: bool, num_rounds: int, is_loss: bool) -> list[str]:
    """Explain the columns of needed replicates; `of_the_run` says that the pilot gives the difference."""
    true = "the run's difference" if of_the_run else "the difference"
    sentences = [
        f"Replicates: of a new run, to show with a power of {100 * power:g} % that a round is matching if {true} "
        "is true; empty where more than 1,000 would not. For all rounds: to show it for all "
        f"{num_rounds} rounds at once, whatever the others show.",
        "Fix the number before, in run.num_replicates, and take a seed that no earlier run has (run.seed).",
    ]
    unit = "loss, in per cent of the loss of dense" if is_loss else "accuracy, in percentage points"
    sentences.append(f"Difference and std: of the test {unit}.")
    return sentences


def _as_texts(rows: Table) -> Table:
    """Format the numbers of a plan; a number that is not known is an empty cell."""
    from lottery.formatting import number, percent

    shown = {"density": rows["density"].map(percent)}
    for key in rows.columns.intersection(["replicates", "for_all_rounds"]):
        shown[key] = rows[key].map("{:,.0f}".format, na_action="ignore").astype(object).fillna("")
    if "difference" in rows:
        shown["difference"] = rows["difference"].map(lambda value: number(100 * value, "+.2f"))
        shown["std"] = rows["std"].map(lambda value: number(100 * value, ".2f"))
    return rows.astype(object).assign(**shown)
