"""Compare tickets with other ways to a sparse network of the same density: tables and figures of docs/alternatives.md.

Trains LeNet-300-100 on MNIST-1D or MNIST, from the same initial weights, with the same batches in the same order and a
learning rate that falls to zero along a cosine:

- tickets of iterative magnitude pruning, rewound to step 0, rewound to a later step, and with learning-rate rewinding;
- masks made at once: one-shot magnitude pruning of the trained network, SNIP, GraSP and SynFlow before training;
- masks that change in one training, `gradual`, `set` and `rigl`, and random masks that stay;
- the same for as many steps as all trainings that led to the ticket, and a small dense network for as many;
- learned masks of weights that are never trained, `supermask`.

Each divides the entries among the layers in two ways, where it can: "layers", one rate for every layer; and "erk", by
Erdos-Renyi-kernel. SNIP, GraSP and SynFlow divide them by their scores ("global"), or by "erk".

One rule holds for all: a network is measured at the evaluated step of the lowest validation loss in the last quarter of
its training, in which no mask changes, and at its last step. Differences are method - ticket of "erk", paired by
replicate.

Commands:
    python experiments/alternatives.py mnist1d
    python experiments/alternatives.py mnist --data mnist.npz

Time: see docs/alternatives.md. The runs go to `runs/`; those that are complete are not repeated.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer

import lottery
from lottery import masks
from lottery.analysis import costs
from lottery.api import Run
from lottery.datasets import DATASETS
from lottery.errors import unknown
from lottery.formatting import ends, formatted, percent, short
from lottery.pruning import branches, dynamic, plan
from lottery.pruning.branches import BranchStart, StoredTicket
from lottery.runs.stored import StoredRound, stored_rounds
from lottery.statistics import intervals, significance
from lottery.text_tables import Table

RATE = 0.2
LAYERS, ERK, GLOBAL = "layers", "erk", "global"
Settings = dict[str, Any]

# Methods to compare with each other, under "erk".
PAIRS = (
    ("rigl", "static"), ("set", "static"), ("rigl", "set"), ("rigl, long", "static, long"),
    ("set, long", "static, long"), ("rigl, long", "set, long"), ("gradual, long", "rigl, long"),
    ("rigl, long", "small dense, long"), ("rigl, long", "learning-rate rewinding"),
)  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """What is compared: the data, the steps of one training, and the rounds of the ticket."""

    data: Settings
    num_steps: int
    rounds: tuple[int, ...]  # 10, 13 and 17 have densities of 0.107, 0.055 and 0.023

    @property
    def densities(self) -> list[float]:
        """The densities of the rounds."""
        return [(1 - RATE) ** index for index in self.rounds]


COMPARISONS = {
    "mnist1d": Comparison({"name": "mnist1d", "num_examples": 24_000, "validation": 1000}, 3000, (10, 13, 17)),
    "mnist": Comparison({"name": "mnist", "validation": 5000}, 1000, (10, 13)),
}


# Branches from masks with as many entries of each layer as the ticket, where those of the package divide them by
# Erdos-Renyi-kernel. Each takes its own training alone.
ITS_OWN = {"needs_ticket": False}


def static_layers(ticket: StoredTicket) -> BranchStart:
    """Random masks that stay."""
    return BranchStart(ticket.initial, branches.random_mask(ticket).kept, 0, ticket.num_steps, 0, details=ITS_OWN)


def set_layers(ticket: StoredTicket) -> BranchStart:
    """Masks of which weak entries are replaced at random."""
    kept = branches.random_mask(ticket).kept
    changes = dynamic.set_(masks.num_kept(kept), ticket.num_steps, int(ticket.rng.integers(2**63)))
    return BranchStart(ticket.initial, kept, 0, ticket.num_steps, 0, changes, ITS_OWN)


def rigl_layers(ticket: StoredTicket) -> BranchStart:
    """Masks of which weak entries are replaced by those with the largest gradients."""
    kept = branches.random_mask(ticket).kept
    changes = dynamic.rigl(masks.num_kept(kept), ticket.num_steps, ticket.gradients)
    details = {**ITS_OWN, "dense_gradients": len(changes)}
    return BranchStart(ticket.initial, kept, 0, ticket.num_steps, 0, changes, details)


def static_layers_long(ticket: StoredTicket) -> BranchStart:
    """As `static_layers`, for as many steps as all trainings that led to the ticket."""
    return static_layers(replace(ticket, num_steps=ticket.spent))


def set_layers_long(ticket: StoredTicket) -> BranchStart:
    """As `set_layers`, for as many steps as all trainings that led to the ticket."""
    return set_layers(replace(ticket, num_steps=ticket.spent))


def rigl_layers_long(ticket: StoredTicket) -> BranchStart:
    """As `rigl_layers`, for as many steps as all trainings that led to the ticket."""
    return rigl_layers(replace(ticket, num_steps=ticket.spent))


# By the allocation of the ticket that they start from, the branches and what the tables call them.
BRANCHES: dict[str, dict[Any, str]] = {
    LAYERS: {
        "gradual": "gradual", set_layers: "set", rigl_layers: "rigl", static_layers: "static",
        "gradual_long": "gradual, long", set_layers_long: "set, long", rigl_layers_long: "rigl, long",
        static_layers_long: "static, long", "supermask": "supermask",
    },
    ERK: {
        "gradual": "gradual", "set": "set", "rigl": "rigl", "random_mask_erk": "static",
        "gradual_long": "gradual, long", "set_long": "set, long", "rigl_long": "rigl, long",
        "static_long": "static, long", "supermask": "supermask",
    },
}  # fmt: skip


def training(num_steps: int) -> Settings:
    """Make the table ``[train]``."""
    falling = {"name": "CosineDecay", "initial_learning_rate": 1.2e-3, "decay_steps": num_steps}
    every = max(1, num_steps // 12)
    return {
        "num_steps": num_steps, "batch_size": 60, "learning_rate": falling, "eval_every": every, "test_curve": True
    }  # fmt: skip


def experiments(comparison: Comparison, num_replicates: int) -> Iterator[tuple[str, str, Settings]]:
    """List method, allocation and experiment of each run that prunes."""
    iterative = {"rate": RATE, "num_rounds": max(comparison.rounds)}
    at_once = {"densities": comparison.densities, "schedule": "explicit"}
    late = {"rewind": {"step": comparison.num_steps // 20}}
    sections: dict[str, Settings] = {
        "ticket": {"prune": iterative},
        "late rewinding": {"prune": iterative, **late},
        "learning-rate rewinding": {"prune": iterative, "rewind": {"mode": "learning_rate"}},
        "one-shot": {"prune": {**at_once, "iterative": False}},
    }
    allocations = {method: {LAYERS: {}, ERK: {"allocation": "erk"}} for method in sections}
    for method in ("SNIP", "GraSP", "SynFlow"):
        sections[method] = {"prune": {**at_once, "criterion": method.lower()}}
        allocations[method] = {GLOBAL: {"scope": "global"}, ERK: {"allocation": "erk"}}
    common = {
        "data": comparison.data,
        "model": {"name": "lenet_300_100"},
        "train": training(comparison.num_steps),
        "run": {"num_replicates": num_replicates},
    }
    for method, section in sections.items():
        for allocation, prune in allocations[method].items():
            name = f"alternatives-{comparison.data['name']}-{method}-{allocation}".lower().replace(" ", "-")
            yield method, allocation, {"name": name, **common, **section, "prune": {**section["prune"], **prune}}


def small_dense(
    ticket: StoredRound, shape: tuple[int, ...], num_steps: int, num_replicates: int
) -> tuple[Callable[[], Any], Settings]:
    """Make the model and the experiment of a dense LeNet that has at most as many weights as a ticket keeps."""
    wanted, shapes = ticket.record["num_kept"], {name: mask.shape for name, mask in ticket.masks.items()}
    num_inputs, num_classes = shapes["dense/kernel"][0], shapes["dense_2/kernel"][1]
    second = 1
    while 3 * (second + 1) * (num_inputs + second + 1) + (second + 1) * num_classes <= wanted:
        second += 1

    def lenet() -> Any:
        import keras

        return keras.Sequential([
            keras.Input(shape),
            keras.layers.Flatten(),
            keras.layers.Dense(3 * second, "relu", kernel_initializer="glorot_normal"),
            keras.layers.Dense(second, "relu", kernel_initializer="glorot_normal"),
            keras.layers.Dense(num_classes, kernel_initializer="glorot_normal"),
        ])  # fmt: skip

    train, run = training(num_steps), {"num_replicates": num_replicates, "controls": []}
    return lenet, {"train": train, "prune": {"num_rounds": 0}, "run": run}


def measured(run: Run, comparison: Comparison) -> Table:
    """Measure every network of a run: test accuracy at both steps, and what the network costs in all."""
    spent = costs.table(run.path).set_index(["replicate", "branch", "round"])
    rows = []
    for stored in stored_rounds(run.path):
        curves: dict[str, dict[int, tuple[float, float]]] = {"train": {}, "validation": {}, "test": {}}
        for step, split, loss, accuracy in stored.metrics:
            curves[split][step] = loss, accuracy
        last, first = max(curves["test"]), stored.record.get("first_step", 0)
        late = [step for step in curves["validation"] if step >= last - (last - first) / 4]
        best = min(late, key=lambda step, losses=curves["validation"]: losses[step])
        cost = spent.loc[stored.replicate, stored.branch, stored.round]
        rows.append({
            "replicate": stored.replicate, "branch": stored.branch, "round": stored.round,
            "density": stored.record["density"], "best": curves["test"][best][1], "end": curves["test"][last][1],
            "steps": cost["spent_steps"], "multiply_adds": cost["spent_multiply_adds"],
        })  # fmt: skip
    return pd.DataFrame(rows)


def networks(comparison: Comparison, num_replicates: int, out: Path, workers: int | None) -> Table:
    """Train everything; gather a row for each network to compare, and for the dense ones in round 0."""
    parts, tickets = [], {}
    options: Settings = {"workers": workers}
    for method, allocation, tables in experiments(comparison, num_replicates):
        run = lottery.run(tables, out=out, **options)
        names = {"ticket": method}
        if method == "ticket":
            tickets[allocation] = run
            for branch, called in BRANCHES[allocation].items():
                run.branch(branch, comparison.rounds, **options)
                names[branch if isinstance(branch, str) else branch.__name__] = called
        rows = measured(run, comparison)
        if run.experiment.prune.densities:  # its rounds are those to compare
            rows["round"] = rows["round"].map({0: 0, **dict(enumerate(comparison.rounds, 1))})
        rows["method"], rows["allocation"] = rows["branch"].map(names), allocation
        parts.append(rows[rows["round"].isin(comparison.rounds)])
        if (method, allocation) == ("ticket", ERK):
            parts.append(rows[rows["round"] == 0].assign(method="dense", allocation=""))
    for index in comparison.rounds:
        settings = tickets[ERK].experiment
        spent = plan.steps_to(settings.prune, index, 0, comparison.num_steps)
        for method, num_steps in {"small dense": comparison.num_steps, "small dense, long": spent}.items():
            ticket, shape = StoredRound(tickets[ERK].path, 1, index), DATASETS[comparison.data["name"]].shape
            model, tables = small_dense(ticket, shape, num_steps, num_replicates)
            name = f"alternatives-{comparison.data['name']}-{method}-{index}".replace(", ", "-").replace(" ", "-")
            run = lottery.run({"name": name, "data": comparison.data, **tables}, model=model, out=out, **options)
            dense = StoredRound(tickets[ERK].path, 1, 0).record
            rows = measured(run, comparison).assign(method=method, allocation="", round=index)
            rows["density"] = StoredRound(run.path, 1, 0).record["num_weights"] / dense["num_weights"]
            parts.append(rows)
    return pd.concat(parts, ignore_index=True)


def summary(found: Table) -> Table:
    """Average over replicates: a row for each method, allocation and density, with 95 % t intervals of differences."""
    lines = []
    for index, part in found.groupby("round", sort=True):
        ticket = part[(part["method"] == "ticket") & (part["allocation"] == ERK)]
        for (method, allocation), own in part.groupby(["method", "allocation"], sort=False):
            line = {"round": index, "method": method, "allocation": allocation, "replicates": len(own)}
            line |= own[["density", "best", "end", "steps", "multiply_adds"]].mean().to_dict()
            if index and (method, allocation) != ("ticket", ERK):
                line |= _difference(own, ticket, "best") | _difference(own, ticket, "end")
            lines.append(line)
    return _marked(pd.DataFrame(lines), found)


def pairs(found: Table) -> Table:
    """Compare the methods of `PAIRS` with each other: a row for each pair and density."""
    lines = []
    for index in [index for index in found["round"].unique() if index]:
        part = found[(found["round"] == index) & found["allocation"].isin((ERK, ""))]
        for method, other in PAIRS:
            own, beside = part[part["method"] == method], part[part["method"] == other]
            lines.append({"round": index, "pair": f"{method} − {other}", **_difference(own, beside, "best")})
    return _marked(pd.DataFrame(lines), found)


def _difference(own: Table, other: Table, rule: str) -> dict[str, float]:
    """The mean difference of two methods, paired by replicate, with its 95 % t interval and its p value."""
    values = (own.set_index("replicate")[rule] - other.set_index("replicate")[rule]).tolist()
    mean, low, high = intervals.mean_interval(values)
    one_sided = significance.p_value(abs(mean), abs(mean) - (high - low) / 2, len(values), 0.0)
    found = {"difference": mean, "low": low, "high": high, "p": 2 * one_sided}
    return {f"{rule}_{name}": value for name, value in found.items()}


def _marked(lines: Table, found: Table) -> Table:
    """Say in a column ``shown`` which differences hold for all that are printed at once, by Bonferroni's rule."""
    rounds = [index for index in found["round"].unique() if index]
    methods = found[found["round"] == rounds[0]].groupby(["method", "allocation"]).ngroups
    return lines.assign(shown=lines["best_p"] * len(rounds) * (methods - 1 + len(PAIRS)) <= 0.05)


def shown(lines: Table) -> Iterator[str]:
    """Make the table in Markdown: a row for each method and allocation, a column for each density."""
    rounds = [index for index in lines["round"].unique() if index]
    densities = [lines[(lines["round"] == index) & (lines["method"] == "ticket")]["density"].mean() for index in rounds]
    yield f"| method | allocation | {' | '.join(map(percent, densities))} | steps | multiply-adds |"
    yield f"| {' | '.join(['---'] * (4 + len(rounds)))} |"
    for (method, allocation), own in lines.groupby(["method", "allocation"], sort=False):
        by_round = {line["round"]: line for line in own.to_dict("records")}
        cells = (
            [_cell(by_round[index]) for index in rounds] if method != "dense" else [_cell(by_round[0])] * len(rounds)
        )
        steps, counts = own["steps"], own["multiply_adds"]
        spent = f"{steps.min():,.0f}" + (f" to {steps.max():,.0f}" if steps.max() > steps.min() else "")
        cost = " to ".join(dict.fromkeys([short(counts.iloc[0]), short(counts.iloc[-1])]))
        yield f"| {method} | {allocation} | {' | '.join(cells)} | {spent} | {cost} |"
    yield ""
    apart = 100 * (lines["best"] - lines["end"]).abs().max()
    yield f"At its last step no method is further than {apart:.1f} points away."


def _cell(line: dict[str, Any]) -> str:
    """Format an accuracy, with the interval of its difference to the ticket, and a star if the difference is shown."""
    accuracy = f"{100 * line['best']:.1f}"
    if line["best_difference"] != line["best_difference"]:
        return accuracy
    return f"{accuracy} {_interval(line)}"


def _interval(line: dict[str, Any]) -> str:
    between = ends(100 * line["best_low"], 100 * line["best_high"], "+.1f")
    return f"({between}){'*' if line['shown'] else ''}"


def shown_pairs(lines: Table) -> Iterator[str]:
    """Make a table in Markdown: a row for each pair of methods, a column for each density."""
    rounds = list(lines["round"].unique())
    yield f"| under {ERK} | {' | '.join(percent((1 - RATE) ** index) for index in rounds)} |"
    yield f"| {' | '.join(['---'] * (1 + len(rounds)))} |"
    for pair, own in lines.groupby("pair", sort=False):
        values = [(formatted(100 * line["best_difference"], "+.1f"), line) for line in own.to_dict("records")]
        yield f"| {pair} | {' | '.join(f'{value} {_interval(line)}' for value, line in values)} |"


def draw(lines: Table, file: Path) -> None:
    """Draw accuracy against the cost of training, a panel for each density."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from lottery.figures import sheets, style

    colors = {method: look[0] for method, look in style.by_name(_families(lines)).items()}
    markers = {LAYERS: "o", ERK: "s", GLOBAL: "D", "": "X"}
    rounds = [index for index in lines["round"].unique() if index]
    dense = lines[lines["method"] == "dense"].iloc[0]
    with rc_context(sheets.SHEETS["screen"].settings):
        figure = Figure(figsize=(10, 4.8), dpi=150, layout="constrained")
        for ax, index in zip(figure.subplots(1, len(rounds), sharey=True), rounds, strict=True):
            part = lines[lines["round"] == index]
            ax.axhline(100 * dense["end"], color="0.35", linestyle="--", linewidth=1)
            longest = part["steps"].max()
            for line in part.to_dict("records"):
                family, is_long = line["method"].removesuffix(", long"), line["steps"] > longest / 2
                errors = None
                if line["end_difference"] == line["end_difference"]:
                    errors = [[100 * (line["end_difference"] - line["end_low"])]] * 2
                ax.errorbar(
                    line["multiply_adds"], 100 * line["end"], errors, color=colors[family], capsize=2, linewidth=0.8,
                    marker=markers[line["allocation"]], markersize=7 if family == "ticket" else 5,
                    markerfacecolor=colors[family] if is_long else "white", zorder=4 if family == "ticket" else 3,
                )  # fmt: skip
            density = part[part["method"] == "ticket"]["density"].mean()
            ax.set(xscale="log", title=f"{100 * density:.1f} % of the weights")
            ax.grid(alpha=0.25)
        figure.suptitle("Ways to a sparse network: accuracy against the cost of training")
        figure.supxlabel("multiply-adds of all trainings", fontsize="medium")
        figure.supylabel("test accuracy at the end (%)", fontsize="medium")
        entries = [Line2D([], [], color=color, marker="o", linestyle="") for color in colors.values()]
        labels = list(colors)
        called = {
            LAYERS: "one rate for every layer",
            ERK: "Erdős-Rényi-kernel",
            GLOBAL: "by global scores",
            "": "dense",
        }
        for allocation, marker in markers.items():
            entries.append(Line2D([], [], color="0.3", marker=marker, linestyle="", markerfacecolor="white"))
            labels.append(called[allocation])
        entries.append(Line2D([], [], color="0.3", marker="o", linestyle=""))
        labels.append("filled: steps of the ticket")
        entries.append(Line2D([], [], color="0.35", linestyle="--"))
        labels.append("dense network")
        figure.legend(entries, labels, loc="outside right upper", frameon=False)
        figure.savefig(file)


def _families(lines: Table) -> list[str]:
    """List the methods, long and short ones as one, without the dense network."""
    methods = (method.removesuffix(", long") for method in lines["method"] if method != "dense")
    return list(dict.fromkeys(methods))


def main(
    data: Annotated[str, typer.Argument(help="mnist or mnist1d.")],
    file: Annotated[Path | None, typer.Option("--data", help="A file of MNIST to read in place of a download.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Training steps of a network; by default those of the page.")
    ] = None,
    replicates: Annotated[int, typer.Option(help="Replicates of each method.")] = 5,
    workers: Annotated[int | None, typer.Option(help="Networks to train at the same time.")] = None,
    out: Annotated[Path, typer.Option(help="The folder of the runs, a CSV and the figure.")] = Path("runs"),
) -> None:
    """Run, compare, print and draw."""
    if data not in COMPARISONS:
        raise unknown("The data", data, COMPARISONS)
    comparison = COMPARISONS[data]
    if file:
        comparison = replace(comparison, data={**comparison.data, "path": str(file)})
    if steps:
        comparison = replace(comparison, num_steps=steps)
    found = networks(comparison, replicates, out, workers)
    found.to_csv(out / f"alternatives-{data}.csv", index=False)
    lines = summary(found)
    draw(lines, out / f"alternatives-{data}.png")
    print("\n".join([*shown(lines), "", *shown_pairs(pairs(found))]))


if __name__ == "__main__":
    typer.run(main)
