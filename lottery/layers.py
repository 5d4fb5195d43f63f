"""What masks leave of each weight: density, units and inputs that are dead, and how many entries each has kept."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lottery import files, results, store
from lottery.errors import LotteryError
from lottery.results import Table

COLUMNS = (
    "replicate", "branch", "round", "density", "weight", "size", "kept", "weight_density", "inputs", "units",
    "dead_inputs", "dead_units", "collapsed",
)  # fmt: skip
DEGREES = ("replicate", "branch", "round", "density", "weight", "side", "degree", "count")


class Network(NamedTuple):
    """A complete network of a run.

    Attributes:
        replicate: From 1.
        branch: ``"ticket"`` for the main chain.
        round: From 0.
        density: Fraction of all prunable entries that are kept, in [0, 1].
        folder: Where its files lie.
    """

    replicate: int
    branch: str
    round: int
    density: float
    folder: Path


def networks(run: Path, rounds: Iterable[int] | None = None, branches: bool = True) -> Iterator[Network]:
    """The complete networks of a run: by replicate, the main chain first, then each branch by round.

    Args:
        run: The run's folder.
        rounds: Which rounds; all that are stored if None.
        branches: Whether those of branches too.

    Raises:
        LotteryError: It is not a run, a record is damaged, or no replicate has one of the rounds.
    """
    rows = results.table(run)
    rows = rows if branches else rows[rows["branch"] == store.TICKET]
    if rounds is not None:
        wanted, stored = set(rounds), sorted({int(index) for index in rows["round"]})
        for index in sorted(wanted - set(stored)):
            there = f"are 0 to {stored[-1]}" if stored else "is none yet"
            raise LotteryError(f"round: received {index!r}, stored in {str(run)!r} {there}.")
        rows = rows[rows["round"].isin(wanted)]
    for replicate, branch, index, density in rows[["replicate", "branch", "round", "density"]].itertuples(
        index=False, name=None
    ):
        yield Network(replicate, branch, index, density, store.round_path(Path(run), replicate, index, branch))


def degrees_of(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many entries are kept into each unit of a weight, and out of each of its inputs.

    The last axis of a weight are its units, the one before it its inputs, as in the kernels of Keras' Dense and
    convolutions; the axes before those, the places of a convolution's kernel, are summed over. A weight of one axis has
    units only. (In a depthwise kernel the last axis is the multiplier, in a transposed convolution it is the input:
    there units and inputs mean those axes.)

    Args:
        mask: Boolean, of the weight's shape.

    Returns:
        Two arrays of whole numbers: a degree for each unit, and one for each input.
    """
    if mask.ndim < 2:
        return mask.reshape(-1).astype(int), np.zeros(0, int)
    by_pair = mask.reshape(-1, *mask.shape[-2:]).sum(axis=0)
    return by_pair.sum(axis=0), by_pair.sum(axis=1)


def dead_units(mask: np.ndarray) -> np.ndarray:
    """Which units of a weight nothing comes into: they give the same, by their bias alone, whatever the example.

    Args:
        mask: Boolean, of the weight's shape; see `degrees_of` for which axis are units.

    Returns:
        A boolean for each unit.
    """
    return degrees_of(mask)[0] == 0


def dead_inputs(mask: np.ndarray) -> np.ndarray:
    """Which inputs of a weight nothing leaves: what they say is not read.

    Args:
        mask: Boolean, of the weight's shape; see `degrees_of` for which axis are inputs.

    Returns:
        A boolean for each input.
    """
    return degrees_of(mask)[1] == 0


def table(run: Path) -> Table:
    """One row for each weight of each trained network of a run, branches included.

    Args:
        run: The run's folder.

    Returns:
        A data frame with the columns `COLUMNS`, in the order of `networks` and of the layers: ``density`` is that of
        the network and ``weight_density`` that of the weight, both in [0, 1]; ``inputs`` and ``units`` are how many
        there are by the rule of `degrees_of`; ``collapsed`` is whether nothing at all is kept of the weight.

    Raises:
        LotteryError: It is not a run, or a file is damaged.
    """
    import pandas as pd

    rows = []
    for replicate, branch, index, density, folder in networks(run):
        for name, mask in files.read_masks(folder / "masks.safetensors").items():
            coming, leaving = degrees_of(mask)
            kept = int(coming.sum())
            sides = (leaving.size, coming.size, int(dead_inputs(mask).sum()), int(dead_units(mask).sum()))
            rows.append((replicate, branch, index, density, name, mask.size, kept, kept / mask.size, *sides, kept == 0))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def degrees(run: Path, rounds: Iterable[int] | None = None) -> Table:
    """How many units and inputs have how many kept entries, in each weight, branches included.

    Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635, show them in their appendix for LeNet's winning tickets.

    Args:
        run: The run's folder.
        rounds: Which rounds; all if None.

    Returns:
        A data frame with the columns `DEGREES`: ``count`` units (``side`` is ``"in"``) or inputs (``"out"``) have
        ``degree`` kept entries; the degrees that occur, in ascending order.

    Raises:
        LotteryError: As `networks`, or a file is damaged.
    """
    import pandas as pd

    rows = []
    for *network, folder in networks(run, rounds):
        for name, mask in files.read_masks(folder / "masks.safetensors").items():
            for side, found in zip(("in", "out"), degrees_of(mask), strict=True):
                values, counts = np.unique(found, return_counts=True)
                pairs = zip(values.tolist(), counts.tolist(), strict=True)
                rows += [(*network, name, side, degree, count) for degree, count in pairs]
    return pd.DataFrame(rows, columns=list(DEGREES))
