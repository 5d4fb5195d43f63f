"""Measure what limits the sparse engine's passes over weights: the first cache, the second, or memory.

A pass goes through tiles: eight vectors of outputs stay in registers while a list of weights is gone through, each of
which reads eight vectors. This program times that loop alone, for lists of several lengths, over inputs that fit into
the first cache, into the second, and into neither, and prints GFLOP/s (a product and its sum are two operations). Each
weight reads from a place at random. The highest number is what the engine can reach on this processor.

Command:
    python experiments/limits_of_tiles.py

Time: half a minute on one core, most of it numba's compiler.
"""

import statistics
import time
from typing import Annotated, Any

import numpy as np
import typer
from benchmark_training import print_table
from numba import njit
from rich.console import Console

from lottery.sparse import kernels

LENGTHS = (8, 32, 128, 512)  # of lists of weights
PLACES = {"first cache, 16 kB": 16, "second cache, 256 kB": 256, "memory, 64 MB": 64 * 1024}  # kB of inputs
OPERATIONS = 2 * 10**9  # of each measurement
FORM = kernels.FORMS.index((kernels.TILE, 1, 1))  # eight neighbours in a row


def main(repetitions: Annotated[int, typer.Option(min=1, help="Times that each is measured.")] = 5) -> None:
    """Measure and print GFLOP/s by length of list and size of inputs."""
    lines = []
    for where, kilobytes in PLACES.items():
        speeds = [statistics.median(_speed(length, kilobytes) for _ in range(repetitions)) for length in LENGTHS]
        lines.append([where, *(f"{speed:.0f}" for speed in speeds)])
    title = f"GFLOP/s of one core, {kernels.WIDTH} lanes, by the number of weights of an output"
    print_table(Console(), title, ["inputs in", *map(str, LENGTHS)], lines)


def _speed(length: int, kilobytes: int) -> float:
    """Time tiles whose weights read from places at random in inputs of a size; return GFLOP/s."""
    generator = np.random.default_rng(0)
    size, tile = kilobytes * 256, kernels.TILE * kernels.WIDTH
    values, inputs = np.full(length, 1e-3, np.float32), np.zeros(size, np.float32)
    outputs = np.zeros(tile, np.float32)
    places = generator.integers(0, (size - tile) // kernels.WIDTH, (64, length)) * kernels.WIDTH
    offsets = places.astype(np.int32)
    num = max(1, OPERATIONS // (2 * tile * length * len(offsets)))
    _run(values, offsets, inputs, outputs, 1)
    began = time.perf_counter()
    _run(values, offsets, inputs, outputs, num)
    return 2 * tile * length * len(offsets) * num / (time.perf_counter() - began) / 1e9


@njit(error_model="numpy")
def _run(values: Any, offsets: Any, inputs: Any, outputs: Any, num: int) -> None:
    for _ in range(num):
        for row in range(offsets.shape[0]):
            kernels._tile_of_outputs(
                values, offsets[row], 0, values.size, FORM, inputs, 0, 0, outputs, 0, 0, kernels.WIDTH,
                np.float32(0), False, kernels.UNCLIPPED, outputs, 0,
            )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
