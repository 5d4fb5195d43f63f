"""Measure what removing whole units and channels gives: sizes and latency of tickets before and after compaction.

Runs three experiments at the size of a smoke test (four steps, made-up images), which prune units or channels to three
fractions: LeNet-300-100 on images of 28 x 28 pixels by units, Conv-2 and VGG-11 on images of 32 x 32 pixels and three
colours by channels. Sizes and latency do not depend on how well a network is trained. For each ticket it prints

- the fraction of units or channels that each layer keeps, and the density of its prunable weights;
- units, parameters and multiply-adds for one image of the masked and of the compacted network;
- the latency of a compiled forward pass (`tf.function`, no XLA) of both, for 1 and for 32 images, on the clock. The two
  networks take turns; times are medians over the turns, the factor is the ratio of the medians;
- the largest difference of their outputs on 32 images, relative to the largest output.

Command:
    python experiments/benchmark_granularity.py --json granularity.json

Time: about five minutes on one core. Run it on an idle machine.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from benchmark_training import print_table
from rich.console import Console

import lottery
from lottery import config, weights
from lottery.models import networks
from lottery.pipeline import environment, presets
from lottery.runs.stored import StoredRound
from lottery.tickets import timing

FRACTIONS = [0.5, 0.25, 0.125]
BATCH = 32
# Preset, model, granularity, name in the table.
CASES = {
    "LeNet-300-100, units": ("lenet_mnist", "lenet_300_100", "unit"),
    "Conv-2, channels": ("conv_2_cifar10", "conv_2", "channel"),
    "VGG-11, channels": ("vgg_19_cifar10", "vgg_11", "channel"),
}

Turns = Annotated[int, typer.Option("--turns", min=1, help="Turns per network.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write every measurement to this file.")]


def main(turns: Turns = 25, json_file: JsonFile = None) -> None:
    """Prune, compact, measure and print."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    environment.use_threads(1)
    console, found = Console(highlight=False, width=200), []
    with tempfile.TemporaryDirectory() as out:
        for name, case in CASES.items():
            for one in tickets(Path(out), *case):
                found.append({"network": name, **measure(*one, turns)})
                console.print(f"{name}, {found[-1]['kept']:g} of them: measured.")
    print_sizes(console, found)
    if json_file is not None:
        json_file.write_text(json.dumps({"threads": 1, "tickets": found}, indent=1) + "\n")


def tickets(out: Path, preset: str, model: str, granularity: str) -> list[tuple[float, Any, Any, np.ndarray]]:
    """Run an experiment; list the kept fraction, the record, the network and images of each of its tickets."""
    experiment = config.load(presets.named(preset), {"model": {"name": model}, "prune": {"rates": {}}})
    tables, data = presets.smoke_test(experiment)
    tables["prune"] = {"granularity": granularity, "schedule": "explicit", "densities": FRACTIONS}
    tables["rewind"]["step"] = 0
    tables["run"] = {"num_replicates": 1, "num_threads": 1}
    run = lottery.run(tables, data=data, out=out, on_event=lambda event: None)
    images = np.random.default_rng(0).normal(size=(BATCH, *data[0].shape[1:])).astype(np.float32)
    found = []
    for index, kept in enumerate(FRACTIONS, 1):
        stored = StoredRound(run.path, 1, index)
        network = networks.builder(model, data[0].shape[1:], 10)()
        weights.assign(network, stored.weights)
        found.append((kept, stored.record, network, images))
    return found


def measure(kept: float, record: Any, network: Any, images: np.ndarray, turns: int) -> dict[str, Any]:
    """Compact a ticket, and collect sizes and seconds as pairs of before and after."""
    found = timing.benchmark(network, images, num_turns=turns)
    compacted = found.compacted
    return {
        "kept": kept,
        "density": record["density"],
        "units": list(compacted.units.values()),
        "parameters": compacted.num_parameters,
        "multiply-adds": compacted.multiply_adds,
        "seconds": found.seconds,
        "difference": found.difference,
    }


def print_sizes(console: Console, found: list[dict[str, Any]]) -> None:
    """Print a row for each ticket."""
    lines = []
    for one in found:
        before, after = ("-".join(str(pair[side]) for pair in one["units"]) for side in (0, 1))
        row = [one["network"], f"{one['kept']:g}", f"{one['density']:.4f}", f"{before}\n{after}"]
        for key in ("parameters", "multiply-adds"):
            row.append("\n".join(f"{value:,}" for value in one[key]))
        for masked, small in one["seconds"].values():
            row += [f"{1000 * masked:.3f}\n{1000 * small:.3f}", f"{masked / small:.2f}"]
        lines.append([*row, f"{one['difference']:.1e}"])
    heads = ["network", "kept", "density", "units: masked, compacted", "parameters", "multiply-adds"]
    heads += ["1 image, ms", "times as fast", f"{BATCH} images, ms", "times as fast", "difference"]
    print_table(console, "Tickets of whole units and channels, masked and compacted, on one thread", heads, lines)


if __name__ == "__main__":
    typer.run(main)
