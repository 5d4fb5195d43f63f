"""Loss and accuracy while training: every evaluation of every network of a run."""

from collections.abc import Iterable
from pathlib import Path

from lottery.runs import store
from lottery.runs.results import Table

COLUMNS = ("replicate", "branch", "round", "density", *store.METRICS)


def table(run: Path, rounds: Iterable[int] | None = None) -> Table:
    """One row for each evaluation of each trained network of a run, branches included.

    Args:
        run: The run's folder.
        rounds: Which rounds; all if None.

    Returns:
        A data frame with the columns `COLUMNS`, in the order of `lottery.runs.store.rounds`, and within a network
        as they were measured. ``split`` is ``"train"``, ``"validation"`` or ``"test"``; a row of the training split is
        the mean over the steps since the one before it. Losses are as the model reports them (a cross-entropy is in
        nats), densities and accuracies in [0, 1]; an accuracy that the model does not measure is NaN.

    Raises:
        LotteryError: As `lottery.runs.store.rounds`, or a file is damaged.
    """
    import pandas as pd

    rows = [(*stored.labels, *row) for stored in store.rounds(run, rounds) for row in stored.metrics]
    return pd.DataFrame(rows, columns=list(COLUMNS))
