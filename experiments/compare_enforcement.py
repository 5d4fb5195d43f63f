"""Compare the tickets that the modes of enforcement find: one run in each mode, and the overlap of their masks.

Runs the default experiment once in each mode, from the same initial weights and with the same batches in the same
order. For some rounds it prints the number of kept weights, the test accuracy, the overlap of the masks with those of
the `constraint` run (intersection over union; 1 means equal), and the overlap of two random masks of these densities.

Command:
    python experiments/compare_enforcement.py

Time: about three minutes on two cores. You can add overrides such as `prune.num_rounds=6`. The runs go to `runs/`; runs
that are complete are not repeated.
"""

import sys

import numpy as np
from rich.console import Console
from rich.table import Table

import lottery
from lottery import config, files
from lottery.runs import store

ROUNDS = (0, 1, 5, 10, 15, 17)


def overlap(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """Compute the intersection over union of two masks, over all weights."""
    common = sum(int(np.count_nonzero(one[name] & other[name])) for name in one)
    either = sum(int(np.count_nonzero(one[name] | other[name])) for name in one)
    return common / either


def by_chance(mask: dict[str, np.ndarray]) -> float:
    """Compute the average overlap of random masks with as many entries in each weight."""
    kept = {name: np.count_nonzero(value) for name, value in mask.items()}
    common = sum(kept[name] ** 2 / mask[name].size for name in mask)
    return float(common / (2 * sum(kept.values()) - common))


def main(words: list[str]) -> None:
    """Run, compare, print."""
    runs = {}
    for mode in lottery.enforcement.ENFORCEMENTS:
        overrides = config.parse_overrides(["run.num_replicates=1", *words, f"run.enforcement={mode}"])
        runs[mode] = lottery.run(None, overrides)
    tables = {mode: run.table() for mode, run in runs.items()}
    last = int(tables["constraint"]["round"].max())
    table = Table("mode", "round", "kept", "test accuracy", "overlap with constraint", "overlap by chance")
    for mode, run in runs.items():
        for index in [index for index in ROUNDS if index <= last]:
            one, reference = (
                files.read_masks(store.round_path(which.path, 1, index) / "masks.safetensors")
                for which in (run, runs["constraint"])
            )
            row = tables[mode].query(f"replicate == 1 and round == {index}").iloc[0]
            accuracy = f"{row['final_test_accuracy']:.4f}"
            cells = [
                str(index),
                str(row["num_kept"]),
                accuracy,
                f"{overlap(one, reference):.4f}",
                f"{by_chance(one):.4f}",
            ]
            table.add_row(mode, *cells)
    Console().print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
