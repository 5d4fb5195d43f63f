"""The command plan: what an experiment would train, and how many replicates its verdicts need."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lottery.cli import options, output
from lottery.errors import LotteryError


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
    import_code: options.ImportCode = False,
    as_json: options.Json = False,
    as_csv: options.Csv = False,
) -> None:
    """Show what an experiment would train, and how many replicates its verdicts need. Nothing is trained.

    Examples: lottery plan run.num_replicates=10; lottery plan lenet_mnist --difference 0.005 --std 0.003;
    lottery plan --from runs/NAME
    """
    from lottery import config
    from lottery.formatting import number
    from lottery.pipeline import environment, preview
    from lottery.runs import store
    from lottery.statistics import results, verdicts
    from lottery.statistics.metric import ACCURACY, metric_of

    if std is not None and pilot is not None:
        raise LotteryError("--std and --from: received both, allowed is one of them.")
    if not 0 < power < 1:
        raise LotteryError(f"--power: received {power:g}, allowed is between 0 and 1.")
    source: Any
    source, overriding = options.experiment_of(experiment, overrides)
    if source is None and pilot is not None:
        source = store.read_experiment(pilot).model_dump(mode="json")
    planned = config.load(source, overriding)
    environment.num_threads()  # imports TensorFlow without its start-up messages
    compared_by = ACCURACY if pilot is None else metric_of(results.table(pilot))
    rule = verdicts.rule_for(planned, tolerance, compared_by)
    rows = preview.rounds(planned, pilot, import_code or config.names_network(overriding))
    num_entries, asked = int(rows["num_kept"].iloc[0]), std is not None or pilot is not None
    if asked:
        if difference is None and pilot is None:
            difference = 0.0
        rows = preview.needed(rows, planned, rule, power, difference=difference, std=std, pilot=pilot)
    if as_json or as_csv:
        output.rows(rows, as_json, as_csv)
        return
    shown = {"density": rows["density"].map("{:.4f}".format)}
    for key in ("replicates", "for_all_rounds") if asked else ():
        shown[key] = rows[key].map("{:,.0f}".format, na_action="ignore").astype(object).fillna("")
    for key in ("difference", "std") if asked else ():
        shown[key] = rows[key].map(lambda value, signs="+.4f" if key == "difference" else ".4f": number(value, signs))
    output.rows(rows.astype(object).assign(**shown))
    output.say(*preview.sentences(planned, num_entries))
    if asked:
        true = "the run's difference" if difference is None else "the difference"
        output.say(
            f"Replicates: of a new run, to show with a power of {100 * power:g} % that a round is matching if {true} "
            "is true; empty where more than 1,000 would not. For all rounds: to show it for all "
            f"{planned.prune.num_rounds} rounds at once, whatever the others show.",
            "Fix the number before, in run.num_replicates, and take a seed that no earlier run has (run.seed).",
        )
        if compared_by.is_loss:
            output.say("Difference and std: of the test loss, as fractions of the loss of dense.")
    else:
        output.say("--std NUMBER or --from RUN also says how many replicates the verdicts need.")
