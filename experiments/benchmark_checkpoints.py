"""Measure the cost of checkpoints: the share of training time that they take at the default of one per minute.

Trains networks of the built-in experiments for a few steps, each with its own optimizer, on made-up images, and writes
checkpoints one after the other. For each network it measures

- how long training waits while variables, slots and the best weights are copied;
- how long it takes, in parallel to training, until the file is complete: hashed, written, flushed and renamed;
- the processor time, which training lacks when all cores are busy, and its share of a minute.

It also trains LeNet-300-100 in turns with one checkpoint per second and with none, and compares the times. Any other
cost of checkpoints would show there, sixty times as large as with the default.

Command:
    python experiments/benchmark_checkpoints.py

Time: about three minutes on two cores. Run it on an idle machine.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from benchmark_training import print_table
from rich.console import Console

from lottery import config, weights
from lottery.pipeline import environment, preparing, presets
from lottery.pipeline.prepared import Ingredients, Prepared
from lottery.training import checkpoints

NETWORKS = {
    "LeNet-300-100, Adam": "lenet_mnist",
    "Conv-6, Adam": "conv_6_cifar10",
    "ResNet-20, SGD": "resnet_20_cifar10",
    "VGG-19, SGD": "vgg_19_cifar10",
}
MINUTE = 60.0

Writes = Annotated[int, typer.Option(min=1, help="Number of times each checkpoint is written.")]
Turns = Annotated[int, typer.Option(min=1, help="Turns with one checkpoint per second, and turns without.")]
Seconds = Annotated[float, typer.Option(min=1, help="Approximate seconds per turn.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write every measurement to this file.")]


def main(writes: Writes = 9, turns: Turns = 7, seconds: Seconds = 10, json_file: JsonFile = None) -> None:
    """Measure and print."""
    environment.use_threads(1)
    console, lines, found = Console(), [], {}
    for name, experiment in NETWORKS.items():
        (waits, whole, processor), size = timed_writing(_prepared(experiment, writes + 1))
        found[name] = {"waits": waits, "whole": whole, "processor": processor, "bytes": size}
        numbers = [f"{1e3 * each:.0f}" for each in (waits, whole, processor)]
        lines.append([name, f"{size / 1e6:.1f}", *numbers, f"{100 * processor / MINUTE:.2f}"])
    heads = ["", "MB", "waits ms", "whole ms", "CPU ms", "CPU % of 60 s"]
    print_table(console, "One checkpoint", heads, lines)
    ratios = _training(turns, seconds)
    found["each second, to none"] = ratios
    lower, middle, upper = statistics.quantiles(ratios, n=4)
    rows = [["a checkpoint each second, to none", f"{middle:.4f}", f"{lower:.4f}..{upper:.4f}"]]
    rows += [["one a minute, from that", f"{1 + (middle - 1) / MINUTE:.5f}", ""]]
    print_table(console, "Seconds a step, LeNet-300-100", ["", "ratio", "middle half"], rows)
    if json_file:
        json_file.write_text(json.dumps(found))


def _prepared(name: str, num_steps: int) -> Prepared:
    tables, data = presets.smoke_test(config.load(presets.named(name)))
    tables["train"] |= {"num_steps": num_steps, "batch_size": 60, "eval_every": num_steps, "drop_at": []}
    tables["train"]["warmup_steps"] = 0
    rng = np.random.default_rng(0)
    shape = data[0].shape[1:]
    x, y = rng.integers(0, 256, (5000, *shape)).astype(np.uint8), rng.integers(0, 10, 5000)
    return preparing.prepare(config.load(tables), Ingredients(data=(x, y, x[:1000], y[:1000])))


def _train(prepared: Prepared, checkpointer: checkpoints.Checkpointer) -> float:
    """Time a training, in seconds."""
    start = weights.read_state(prepared.trainer.model)
    began = time.perf_counter()
    prepared.trainer.train(start, {}, (0, 1, 2), checkpointer=checkpointer)
    return time.perf_counter() - began


def timed_writing(prepared: Prepared) -> tuple[tuple[float, ...], int]:
    """Write a checkpoint after each step: medians of the seconds that training waits for one, until it is
    whole, and of the processor; and its size."""
    prepared.trainer.seconds_per_step = 1e9  # one step in each piece, so that there is a checkpoint after each
    with tempfile.TemporaryDirectory() as folder:
        file, taken = Path(folder) / "checkpoint.safetensors", []
        checkpointer = checkpoints.Checkpointer(file, checkpoints.CheckpointInterval(0, 1))
        write = checkpointer._write

        def timed(state: checkpoints.TrainingState) -> None:
            began, worked = time.perf_counter(), time.process_time()
            write(state)
            waits = time.perf_counter() - began
            checkpointer._wait()
            taken.append((waits, time.perf_counter() - began, time.process_time() - worked))

        checkpointer._write = timed  # type: ignore[method-assign]
        _train(prepared, checkpointer)
        return tuple(statistics.median(times) for times in zip(*taken, strict=True)), file.stat().st_size


def _training(turns: int, seconds: float) -> list[float]:
    """By turn, the time of a training with a checkpoint each second over that of one without."""
    prepared = _prepared("lenet_mnist", 2000)
    with tempfile.TemporaryDirectory() as folder:

        def taken(every: checkpoints.CheckpointInterval, prepared: Prepared) -> float:
            file = Path(folder) / "checkpoint.safetensors"
            file.unlink(missing_ok=True)
            return _train(prepared, checkpoints.Checkpointer(file, every))

        none = checkpoints.CheckpointInterval(0)
        taken(none, prepared)
        steps = int(2000 * seconds / taken(none, prepared))
        prepared = _prepared("lenet_mnist", steps)
        taken(none, prepared)
        ratios = []
        for _ in range(turns):
            with_them, without = taken(checkpoints.CheckpointInterval(1.0), prepared), taken(none, prepared)
            ratios.append(with_them / without)
        return ratios


if __name__ == "__main__":
    typer.run(main)
