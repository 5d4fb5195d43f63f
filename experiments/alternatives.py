"""Compare tickets with other ways to a sparse network of the same density: the table of docs/alternatives.md.

Trains LeNet-300-100 on MNIST or MNIST-1D, from the same initial weights and with the same batches in the same order:

- tickets of iterative magnitude pruning, rewound to step 0, rewound to a later step, and with learning-rate rewinding;
- masks made at once: one-shot magnitude pruning of the trained network, SNIP, GraSP and SynFlow before training;
- masks that change in one training, `gradual`, `set` and `rigl`, and the same for as many steps as the ticket took;
- learned masks of weights that are never trained, `supermask`;
- random masks, with the proportions of the ticket's layers and with those of Erdos-Renyi-kernel.

For three densities it prints the test accuracy at the early-stop step, method − ticket, paired by replicate, both with
95 % t intervals over replicates, and the training steps and multiply-adds that a network takes in all.

Command:
    python experiments/alternatives.py mnist1d
    python experiments/alternatives.py mnist --data mnist.npz

Time: see docs/alternatives.md. The runs go to `runs/`; those that are complete are not repeated.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

import lottery
from lottery.analysis import costs
from lottery.api import Run
from lottery.cli import output
from lottery.errors import unknown
from lottery.formatting import ends, formatted, short
from lottery.grids import Grid
from lottery.statistics import intervals

RATE, ROUNDS = 0.2, (10, 13, 17)  # densities of 0.107, 0.055 and 0.023
DATA: dict[str, dict[str, Any]] = {
    "mnist": {"name": "mnist", "validation": 5000},
    "mnist1d": {"name": "mnist1d", "validation": 1000},
}
BRANCHES = (
    "gradual", "set", "rigl", "gradual_long", "set_long", "rigl_long", "supermask",
    "random_mask", "random_mask_erk",
)  # fmt: skip


Tables = dict[str, Any]


def experiments(data: Tables, steps: int, replicates: int, rounds: Sequence[int]) -> dict[str, Tables]:
    """Make the experiment of each run, by the name of its method."""
    iterative = {"rate": RATE, "num_rounds": max(rounds)}
    at_once = {"densities": [(1 - RATE) ** index for index in rounds], "schedule": "explicit"}
    sections: dict[str, Tables] = {
        "ticket": {"prune": iterative},
        "late rewinding": {"prune": iterative, "rewind": {"step": max(1, steps // 20)}},
        "learning-rate rewinding": {"prune": iterative, "rewind": {"mode": "learning_rate"}},
        "one-shot": {"prune": {**at_once, "iterative": False}},
    }
    for method in ("SNIP", "GraSP", "SynFlow"):
        sections[method] = {"prune": {**at_once, "criterion": method.lower(), "scope": "global"}}
    train = {"num_steps": steps, "batch_size": 60, "learning_rate": 1.2e-3, "eval_every": max(1, steps // 20)}
    common = {"data": data, "model": {"name": "lenet_300_100"}, "train": train, "run": {"num_replicates": replicates}}
    name = f"alternatives-{data['name']}"
    return {
        method: {"name": f"{name}-{method.lower().replace(' ', '-')}", **common, **own}
        for method, own in sections.items()
    }


def networks(runs: Mapping[str, Run], rounds: Sequence[int]) -> pd.DataFrame:
    """Gather accuracy and cost of the networks of each method in the rounds to compare, and of the dense ones."""
    parts = []
    for method, run in runs.items():
        spent = costs.table(run.path)[["replicate", "branch", "round", "spent_steps", "spent_multiply_adds"]]
        rows = run.table().merge(spent).rename(columns={"early_stop_test_accuracy": "accuracy"})
        if run.experiment.prune.densities:  # its rounds are those to compare
            rows["round"] = rows["round"].map({0: 0, **dict(enumerate(rounds, 1))})
        rows["method"] = rows["branch"].where(rows["branch"] != "ticket", method)
        rows.loc[rows["round"] == 0, "method"] = "dense"
        parts.append(rows[rows["round"].isin(rounds if parts else [0, *rounds])])
    return pd.concat(parts, ignore_index=True)


def summary(found: pd.DataFrame) -> pd.DataFrame:
    """Average over replicates: a row for each method at each density, with 95 % t intervals."""
    lines = []
    for index, part in found.groupby("round", sort=True):
        values = part.pivot(index="replicate", columns="method", values="accuracy")
        for method in dict.fromkeys(part["method"]):
            own, names = part[part["method"] == method], ("accuracy", "low", "high")
            line = {"round": index, "density": own["density"].mean(), "method": method, "replicates": len(own)}
            line |= dict(zip(names, intervals.mean_interval(own["accuracy"].tolist()), strict=True))
            if index and method != "ticket":
                pairs = (values[method] - values["ticket"]).tolist()
                names = "difference", "difference_low", "difference_high"
                line |= dict(zip(names, intervals.mean_interval(pairs), strict=True))
            line |= {name: own[name].mean() for name in ("spent_steps", "spent_multiply_adds")}
            lines.append(line)
    return pd.DataFrame(lines)


def shown(lines: pd.DataFrame) -> Grid:
    """Make the table to print."""
    rows = []
    for line in lines.to_dict("records"):
        difference = ["", ""]
        if line["difference"] == line["difference"]:
            between = ends(line["difference_low"], line["difference_high"])
            difference = [formatted(line["difference"], "+.4f"), between]
        own = [f"{line['density']:.4f}", line["method"], f"{line['accuracy']:.4f}"]
        own += [ends(line["low"], line["high"], ".4f"), *difference]
        rows.append([*own, f"{line['spent_steps']:,.0f}", short(line["spent_multiply_adds"])])
    heads = [
        "density",
        "method",
        "test accuracy",
        "95 % interval",
        "− ticket",
        "its interval",
        "steps",
        "multiply-adds",
    ]
    num = int(lines["replicates"].to_numpy().min())
    notes = [
        f"Test accuracy at the early-stop step, over {num} replicates; − ticket: method − ticket, paired by replicate.",
        "Steps and multiply-adds: of all trainings that a network takes.",
    ]
    return Grid(heads, rows, notes=notes, leave_out=["95 % interval"])


def main(
    data: Annotated[str, typer.Argument(help="mnist or mnist1d.")],
    file: Annotated[Path | None, typer.Option("--data", help="A file of MNIST to read in place of a download.")] = None,
    steps: Annotated[int, typer.Option(help="Training steps of a network.")] = 2000,
    replicates: Annotated[int, typer.Option(help="Replicates of each method.")] = 5,
    workers: Annotated[int, typer.Option(help="Networks that are trained at the same time.")] = 1,
    out: Annotated[Path, typer.Option(help="The folder of the runs, and of the table as CSV.")] = Path("runs"),
) -> None:
    """Run, compare, print."""
    if data not in DATA:
        raise unknown("The data", data, DATA)
    source = DATA[data] | ({"path": str(file)} if file else {})
    runs = {
        method: lottery.run(tables, out=out, workers=workers)
        for method, tables in experiments(source, steps, replicates, ROUNDS).items()
    }
    for name in BRANCHES:
        runs["ticket"].branch(name, ROUNDS, workers=workers)
    lines = summary(networks(runs, ROUNDS))
    lines.to_csv(out / f"alternatives-{data}.csv", index=False)
    output.grid(shown(lines), has_rows=True)


if __name__ == "__main__":
    typer.run(main)
