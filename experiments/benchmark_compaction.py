"""Measure what compaction makes of the tickets of a run: units, parameters, file size, multiply-adds and latency.

Takes the rounds of a run whose densities are nearest to the requested densities (replicate 1), builds each trained
network with its masked weights at zero, and compacts it with `lottery.tickets.compaction`, with and without dropping
the pixels that no weight reads. For each network it prints

- its size: units per layer, parameters, multiply-adds for one image, bytes of the saved `.keras` file, unread pixels,
  the largest difference of the outputs on all test images relative to the largest output, and the number of images
  that change their class;
- the latency of a compiled forward pass (`tf.function`, no XLA) for batches of 1 and 1,000 images, on the clock and in
  processor time. On one thread the two are nearly equal, but other programs do not affect processor time. Each network
  takes turns with the masked network; its factor is the ratio of the masked network's time to its own in the same turn.
  Times are medians over the turns. `empty` is a network with one weight that reads one pixel: the cost of a call, which
  no Keras network can undercut.

Command, after `lottery run experiments/lenet_mnist.toml`:
    python experiments/benchmark_compaction.py runs/lenet-mnist-... --data mnist.npz --json compaction.json

Time: about a minute on one core. Run it on an idle machine.
"""

import itertools
import json
import math
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from benchmark_training import print_table
from rich.console import Console

from lottery import config, data, masks, weights
from lottery.models import graph, networks, outputs
from lottery.pipeline import environment
from lottery.runs import store
from lottery.runs.stored import StoredRound
from lottery.tickets import chain, compaction, timing
from lottery.training import examples

BATCHES = (1, 1000)
DROPS_INPUTS = {"compacted": False, "inputs dropped": True}
CLOCKS = {"by the clock": time.perf_counter, "of the processor": time.process_time}

RunFolder = Annotated[Path, typer.Argument(help="A run's folder, such as runs/lenet-mnist-3f9c2a1b.")]
DataFile = Annotated[Path | None, typer.Option("--data", help="The run's data, if they are not found otherwise.")]
Densities = Annotated[str, typer.Option(help="Densities, separated by commas; the nearest round of each is used.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads of TensorFlow.")]
Turns = Annotated[int, typer.Option(min=1, help="Turns per network.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write every measurement to this file.")]


def main(
    run: RunFolder,
    data_file: DataFile = None,
    densities: Densities = "0.05,0.02,0.01,0.005",
    threads: Threads = 1,
    turns: Turns = 51,
    json_file: JsonFile = None,
) -> None:
    """Compact the tickets of a run, measure and print."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    environment.use_threads(threads)
    experiment = store.read_experiment(run)
    settings = experiment.data.model_copy(update={"path": str(data_file)} if data_file else {})
    splits = data.load(settings)
    images = np.asarray(examples.scaler(splits)(splits.test.x))
    console = Console(highlight=False, width=130)
    console.print(f"{run.name}, {experiment.model.name}, {len(images)} test images, {threads} thread(s).\n")
    rounds = [StoredRound(run, 1, index) for index in store.complete_rounds(run, 1)]
    found = []
    for wanted in map(float, densities.split(",")):
        nearest = min(rounds, key=lambda stored: abs(math.log(stored.record["density"] / wanted)))
        model = ticket(nearest, experiment, splits)
        found.append({"density": nearest.record["density"], "round": nearest.round, **measure(model, images, turns)})
    print_sizes(console, found)
    for clock, batch in itertools.product(CLOCKS, BATCHES):
        print_latency(console, found, clock, batch)
    if json_file is not None:
        json_file.write_text(json.dumps({"run": run.name, "threads": threads, "tickets": found}, indent=1) + "\n")


def ticket(stored: StoredRound, experiment: config.Experiment, splits: data.Splits) -> Any:
    """Build the trained network of a round; its masked weights must be zero."""
    if leaks := masks.leaks(stored.weights, stored.masks):
        raise AssertionError(f"Masked entries of {', '.join(leaks)} are not zero in {stored.folder}.")
    num_classes = int(splits.train.y.max()) + 1
    model = networks.builder(experiment.model.name, splits.train.x.shape[1:], num_classes)()
    weights.assign(model, stored.weights)
    return model


def measure(model: Any, images: np.ndarray, turns: int) -> dict[str, Any]:
    """Measure sizes, differences, and seconds a call, of the compacted networks and of the masked one beside each."""
    sizes, unread, before = {"masked": size(model)}, 0, classes(model, images)
    seconds = {clock: {batch: {} for batch in BATCHES} for clock in CLOCKS}
    for name, drop in DROPS_INPUTS.items():
        found = {how: timing.benchmark(model, images, drop, turns, clock) for how, clock in CLOCKS.items()}
        for how, benchmark in found.items():
            for batch, pair in zip(BATCHES, benchmark.seconds.values(), strict=True):
                seconds[how][batch][name] = pair
        first, *_ = found.values()
        small, unread = first.compacted, int(first.compacted.unread.sum())
        other = int(np.count_nonzero(classes(small.model, small.select(images)) != before))
        sizes[name] = size(small.model) | {"difference": first.difference, "other class": other}
    pair = {"masked": model, "empty": empty()}
    for (how, clock), batch in itertools.product(CLOCKS.items(), BATCHES):
        taken = {"masked": images[:batch], "empty": np.zeros((batch, 1), np.float32)}
        times = timing.latency(pair, taken, turns, clock)
        seconds[how][batch]["empty"] = times["masked"], times["empty"]
    return {"unread": unread, "sizes": sizes, "seconds": seconds}


def size(model: Any) -> dict[str, Any]:
    """Count the parts of a network."""
    links = chain.take_apart(model)
    return {
        "inputs": int(np.prod(links[0].before)),
        "units": [link.after[-1] for link in links if link.effect == graph.WEIGHTED],
        "parameters": model.count_params(),
        "multiply-adds": compaction.multiply_adds(links),
        "bytes": file_size(model),
    }


def classes(model: Any, inputs: np.ndarray) -> np.ndarray:
    """Predict the class of each input."""
    return outputs.evaluate(model, inputs, training=False)[0].argmax(1)


def empty() -> Any:
    """Build a network of one weight."""
    import keras

    return keras.Sequential([keras.layers.InputLayer((1,)), keras.layers.Dense(1, use_bias=False)])


def file_size(model: Any) -> int:
    """Count the bytes of a model as Keras saves it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.keras")
        model.save(path)
        return path.stat().st_size


def print_sizes(console: Console, found: list[dict[str, Any]]) -> None:
    """Print the sizes of each ticket."""
    lines = []
    for one in found:
        for name, size in one["sizes"].items():
            first = name == "masked"
            lines.append(
                [
                    f"{one['density']:.4f}" if first else "",
                    str(one["round"]) if first else "",
                    name,
                    "-".join(map(str, [size["inputs"], *size["units"]])),
                    f"{size['parameters']:,}",
                    f"{size['multiply-adds']:,}",
                    f"{size['bytes'] / 1000:.1f}",
                    str(one["unread"]) if first else "",
                    "" if first else f"{size['difference']:.1e}",
                    "" if first else str(size["other class"]),
                ]
            )
    heads = ["density", "round", "network", "inputs and units", "parameters", "multiply-adds", "file kB", "unread"]
    print_table(console, "Sizes", [*heads, "difference", "other class"], lines)


def print_latency(console: Console, found: list[dict[str, Any]], clock: str, batch: int) -> None:
    """Print milliseconds a call, and how many times faster than the masked network."""
    lines = []
    for one in found:
        seconds = one["seconds"][clock][batch]
        masked = statistics.median(before for before, _ in seconds.values())
        times = [f"{1000 * value:.3f}" for value in (masked, *(after for _, after in seconds.values()))]
        ratios = [f"{before / after:.2f}" for before, after in seconds.values()]
        lines.append([f"{one['density']:.4f}", *times, *ratios])
    names = [*DROPS_INPUTS, "empty"]
    heads = ["density", "masked, ms", *(f"{name}, ms" for name in names), *(f"{name}, x" for name in names)]
    print_table(console, f"Batch of {batch}: ms a call {clock}, and how many times faster than masked", heads, lines)


if __name__ == "__main__":
    typer.run(main)
