"""What masks leave of each weight: density, units and inputs that are dead, and how many entries each has kept."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from lottery.runs import store
from lottery.runs.results import Table

COLUMNS = (
    "replicate", "branch", "round", "density", "weight", "size", "kept", "weight_density", "inputs", "units",
    "dead_inputs", "dead_units", "collapsed",
)  # fmt: skip


DEGREES = ("replicate", "branch", "round", "density", "weight", "side", "degree", "count")


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


def table(run: Path) -> Table:
    """One row for each weight of each trained network of a run, branches included.

    Args:
        run: The run's folder.

    Returns:
        A data frame with the columns `COLUMNS`, in the order of `lottery.runs.store.rounds` and of the layers:
        ``density`` is that of the network and ``weight_density`` that of the weight, both in [0, 1]; ``inputs`` and
        ``units`` are how many there are by the rule of `degrees_of`, the dead ones those of degree 0 (a dead unit
        gives the same, by its bias alone, whatever the example; a dead input is not read); ``collapsed`` is whether
        nothing at all is kept of the weight.

    Raises:
        LotteryError: It is not a run, or a file is damaged.
    """
    import pandas as pd

    rows = []
    for stored in store.rounds(run):
        for name, mask in stored.masks.items():
            coming, leaving = degrees_of(mask)
            kept = int(coming.sum())
            sides = (leaving.size, coming.size, int((leaving == 0).sum()), int((coming == 0).sum()))
            rows.append((*stored.labels, name, mask.size, kept, kept / mask.size, *sides, kept == 0))
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
        LotteryError: As `lottery.runs.store.rounds`, or a file is damaged.
    """
    import pandas as pd

    rows = []
    for stored in store.rounds(run, rounds):
        for name, mask in stored.masks.items():
            for side, found in zip(("in", "out"), degrees_of(mask), strict=True):
                values, counts = np.unique(found, return_counts=True)
                pairs = zip(values.tolist(), counts.tolist(), strict=True)
                rows += [(*stored.labels, name, side, degree, count) for degree, count in pairs]
    return pd.DataFrame(rows, columns=list(DEGREES))


def summed(degrees: Table) -> Table:
    """The degrees of each weight and side of each network in one row.

    Args:
        degrees: What `degrees` returns, or some of its rows.

    Returns:
        A data frame with ``replicate, branch, round, density, weight, side``; ``num`` units or inputs, ``dead`` of them
        without an entry; and the ``least``, ``mean`` and ``most`` entries that one has.
    """
    keys = ["replicate", "branch", "round", "density", "weight", "side"]
    rows = degrees.assign(
        entries=degrees["degree"] * degrees["count"], dead=degrees["count"].where(degrees["degree"] == 0, 0)
    )
    found = rows.groupby(keys, sort=False, as_index=False).agg(
        num=("count", "sum"), dead=("dead", "sum"), entries=("entries", "sum"), least=("degree", "min"),
        most=("degree", "max"),
    )  # fmt: skip
    return found.assign(mean=found["entries"] / found["num"])[[*keys, "num", "dead", "least", "mean", "most"]]
