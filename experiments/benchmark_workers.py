"""Measure how much faster many networks train when several train at the same time.

Runs ten replicates of LeNet-300-100 on MNIST, dense and one pruned round each, from the beginning with

- one worker, which trains each network on the threads that the experiment gives it (one thread, with ten replicates on
  a machine with fewer cores);
- several workers with the same threads per network; the program checks that the bits are the same;
- one worker that uses all cores for each network (`run.num_threads`), the usual way without workers.

They take turns, each in a fresh process and an empty folder. The program prints the ratios of throughput, as medians
over the turns: for the whole command, from its start to its end, and for training alone, from the first step to the
last stored network.

Command:
    LOTTERY_DATA=folder/with/mnist.npz/in/it python experiments/benchmark_workers.py

Time: about ten minutes on two cores. Run it on an idle machine.
"""

import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from benchmark_training import print_table
from rich.console import Console

CHILD = """
import json, sys, time
began = time.perf_counter()
import lottery
from lottery import progress
first = []
def report(event):
    if isinstance(event, progress.Step) and event.step and not first:
        first.append(time.perf_counter())
tables, out, workers = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
run = lottery.run("experiments/lenet_mnist.toml", tables, out=out, workers=workers, on_event=report, tensorboard=False)
ended = time.perf_counter()
print(json.dumps({"whole": ended - began, "training": ended - first[0], "run": str(run.path)}))
"""

Workers = Annotated[int, typer.Option(min=2, help="Number of workers.")]
Replicates = Annotated[int, typer.Option(min=1, help="Replicates.")]
Steps = Annotated[int, typer.Option(min=200, help="Steps per network.")]
Turns = Annotated[int, typer.Option(min=1, help="Turns per contestant.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write every measurement to this file.")]


def main(
    workers: Workers = 2, replicates: Replicates = 10, steps: Steps = 5000, turns: Turns = 3, json_file: JsonFile = None
) -> None:
    """Measure and print."""
    import loky

    cores = loky.cpu_count()
    contestants = {"one worker": (1, 0), f"{workers} workers": (workers, 0), "one worker on all cores": (1, cores)}
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in contestants}
    console = Console()
    for turn in range(turns):
        for name, (num, threads) in contestants.items():
            taken[name].append(_measured(num, threads, replicates, steps))
            print(f"turn {turn + 1}, {name}: {taken[name][-1]['whole']:.1f} s", file=sys.stderr)
    digests = {one["digest"] for name in list(contestants)[:2] for one in taken[name]}
    if len(digests) != 1:
        raise AssertionError("Workers have given other bits.")
    lines = []
    for name, times in taken.items():
        line = [name]
        for what in ("whole", "training"):
            ratios = [one[what] / other[what] for one, other in zip(taken["one worker"], times, strict=True)]
            line += [f"{statistics.median(one[what] for one in times):.1f}", f"{statistics.median(ratios):.2f}"]
        lines.append(line)
    print_table(
        console,
        f"{replicates} replicates, 2 x {steps} steps each, {cores} cores",
        ["", "s in all", "throughput", "s of training", "throughput"],
        lines,
    )
    if json_file:
        json_file.write_text(json.dumps({"cores": cores, "replicates": replicates, "steps": steps, "taken": taken}))


def _measured(workers: int, threads: int, replicates: int, steps: int) -> dict[str, Any]:
    tables = {
        "train": {"num_steps": steps}, "prune": {"num_rounds": 1},
        "run": {"num_replicates": replicates, "controls": [], "control_rounds": [], "num_threads": threads},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as out:
        began = time.perf_counter()
        words = [sys.executable, "-c", CHILD, json.dumps(tables), out, str(workers)]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        weights = sorted(Path(found.pop("run")).rglob("weights.safetensors"))
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in weights)).hexdigest()
        return {**found, "whole": time.perf_counter() - began, "digest": digest}


if __name__ == "__main__":
    typer.run(main)
