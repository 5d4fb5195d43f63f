"""Whether the modes of enforcement find the same tickets: one run under each, and how far their masks agree.

Runs the experiment `digits` (LeNet-300-100 on scikit-learn's digits, from the same initial weights, the same
batches in the same order) once under each mode, and prints for chosen rounds the number of weights that are kept, the
test accuracy, and the overlap of the masks with those of the `constraint` run: intersection over union, 1 where they
are the same. What two random masks of these densities would have is beside it.

Command:
    python experiments/compare_enforcement.py

It takes about three minutes on two cores. Overrides such as `prune.num_rounds=6` may follow. Runs land in `runs/`, and
are not run again.
"""

import sys

import numpy as np
from rich.console import Console
from rich.table import Table

import lottery
from lottery import config, files
from lottery.pipeline import presets
from lottery.runs import store

ROUNDS = (0, 1, 5, 10, 15, 18)


def overlap(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """Intersection over union of two masks, over all weights."""
    common = sum(int(np.count_nonzero(one[name] & other[name])) for name in one)
    either = sum(int(np.count_nonzero(one[name] | other[name])) for name in one)
    return common / either


def by_chance(mask: dict[str, np.ndarray]) -> float:
    """The overlap that random masks with as many entries in each weight would have, on average."""
    kept = {name: np.count_nonzero(value) for name, value in mask.items()}
    common = sum(kept[name] ** 2 / mask[name].size for name in mask)
    return float(common / (2 * sum(kept.values()) - common))


def main(words: list[str]) -> None:
    """Run, compare, print."""
    runs = {}
    for mode in lottery.enforcement.ENFORCEMENTS:
        overrides = config.parse_overrides(["run.num_replicates=1", *words, f"run.enforcement={mode}"])
        runs[mode] = lottery.run(presets.named("digits"), overrides)
    tables = {mode: run.table() for mode, run in runs.items()}
    last = int(tables["constraint"]["round"].max())
    table = Table("mode", "round", "kept", "test accuracy", "overlap with constraint", "of random masks")
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
