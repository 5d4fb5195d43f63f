"""Loss and accuracy while training: every evaluation of every network of a run."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from lottery import files, layers, store
from lottery.errors import LotteryError
from lottery.results import Table

COLUMNS = ("replicate", "branch", "round", "density", *store.METRICS)


def table(run: Path, rounds: Iterable[int] | None = None) -> Table:
    """One row for each evaluation of each trained network of a run, branches included.

    Args:
        run: The run's folder.
        rounds: Which rounds; all if None.

    Returns:
        A data frame with the columns `COLUMNS`, in the order of `lottery.layers.networks`, and within a network as
        they were measured. ``split`` is ``"train"``, ``"validation"`` or ``"test"``; a row of the training split is the
        mean over the steps since the one before it. Losses are in nats, densities and accuracies in [0, 1]; an
        accuracy that the model does not measure is NaN.

    Raises:
        LotteryError: As `lottery.layers.networks`, or a file is damaged.
    """
    import pandas as pd

    rows = []
    for *network, folder in layers.networks(run, rounds):
        path = folder / "metrics.csv"
        content = files.read(path)
        try:
            columns, *lines = csv.reader(io.StringIO(content.decode()))
            if tuple(columns) != store.METRICS:
                raise ValueError(f"its columns are {columns}")
            rows += [
                (*network, int(step), split, float(loss), float(accuracy)) for step, split, loss, accuracy in lines
            ]
        except (ValueError, csv.Error) as error:
            raise LotteryError(f"{str(path)!r} is damaged ({error}).") from None
    return pd.DataFrame(rows, columns=list(COLUMNS))
