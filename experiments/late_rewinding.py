"""Draw what late rewinding changes: the tickets of runs that rewind to different steps, and the error barriers there.

On the left is the test accuracy of each run's tickets against density. On the right is the error barrier between two
networks that were trained from the same step on two orders of the data, against that step: of the dense network, and
of the pruned rounds that were measured. The runs differ in `rewind.step`, as those of a sweep do; the barriers are
measured by `lottery analyze connectivity RUN`.

Command:
    python experiments/late_rewinding.py runs/late-step-0-0145c16e runs/late-step-200-48258cab --out late.png
"""

from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import pandas as pd
import typer

from lottery import plots
from lottery.errors import LotteryError
from lottery.runs import store
from lottery.text_tables import Table


def main(
    runs: Annotated[list[Path], typer.Argument(help="Two or more runs with different rewind.step.")],
    out: Annotated[Path, typer.Option("--out", help="The figure: png, svg or pdf.")] = Path("late_rewinding.png"),
) -> None:
    """Draw the accuracy of tickets and the error barriers of runs with different rewind steps, side by side."""
    try:
        tickets, barriers = tickets_of(runs), barriers_of(runs)
    except LotteryError as error:
        raise SystemExit(str(error)) from None
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.2), layout="constrained")
    plots.accuracy(tickets, left)
    plots.instability(barriers, right, over="step")
    figure.savefig(out, dpi=110)
    typer.echo(f"Figure: {out}")


def tickets_of(runs: list[Path]) -> Table:
    """Gather the tickets of all runs, named by the step that each run rewinds to."""
    tables = {}
    for run in runs:
        step = store.read_experiment(run).rewind.step
        if step in tables:
            raise LotteryError(f"{run} rewinds to step {step}, as a run before it does; give runs that differ in it.")
        rows = plots.read(run, "accuracy")
        tables[step] = rows[rows["branch"] == store.TICKET].assign(branch=f"ticket from step {step}")
    return pd.concat([tables[step] for step in sorted(tables)], ignore_index=True)


def barriers_of(runs: list[Path]) -> Table:
    """Gather the measured barriers of all runs; those of a dense network that runs share count once."""
    barriers = pd.concat([plots.read(run, "instability") for run in runs], ignore_index=True)
    of_shared = (barriers["round"] == 0) & barriers.duplicated(["replicate", "round", "step", "split", "batch_norm"])
    return barriers[~of_shared]


if __name__ == "__main__":
    typer.run(main)
