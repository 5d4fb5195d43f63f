"""Which start weights survive: their distribution, round by round."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from lottery.errors import LotteryError
from lottery.runs import store
from lottery.runs.results import Table

COLUMNS = ("replicate", "round", "density", "weight", "low", "high", "count")


def table(run: Path, rounds: Iterable[int] | None = None, num_bins: int = 80) -> Table:
    """Histograms of the start weights of the entries that survive.

    Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635, show them in their appendix: the start weights of a winning
    ticket are not distributed as they were drawn.

    Args:
        run: The run's folder.
        rounds: Which rounds of the main chain; all if None.
        num_bins: How many bins a weight has.

    Returns:
        A data frame with the columns `COLUMNS`, a row for each bin: ``count`` survivors of ``weight`` started from
        ``low`` to ``high``, the last bin's own high end included. Bins are of one width, from the lowest to the highest
        start of any survivor in those rounds, the same for all rounds and replicates of a weight. A survivor's start is
        what the round began from, before training: the initial value, or what it was rewound to. Values that are not
        finite are in no bin.

    Raises:
        LotteryError: As `lottery.runs.store.StoredRound` and `rounds`, or there is no bin.
    """
    import pandas as pd

    if num_bins < 1:
        raise LotteryError(f"num_bins: received {num_bins!r}, allowed is a whole number from 1.")
    chosen = None if rounds is None else list(rounds)
    ends: dict[str, tuple[float, float]] = {}
    for _, name, values in _starts(run, chosen):
        low, high = ends.get(name, (np.inf, -np.inf))
        ends[name] = (float(values.min(initial=low)), float(values.max(initial=high)))
    parts = []
    for stored, name, values in _starts(run, chosen):
        low, high = ends[name] if ends[name][0] <= ends[name][1] else (0.0, 0.0)  # nothing of it survives anywhere
        counts, edges = np.histogram(values, num_bins, (low, high))
        known = dict(zip(COLUMNS, (stored.replicate, stored.index, stored.record["density"], name), strict=False))
        parts.append(pd.DataFrame({**known, "low": edges[:-1], "high": edges[1:], "count": counts}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(COLUMNS))


def _starts(run: Path, rounds: Iterable[int] | None) -> Iterator[tuple[store.StoredRound, str, np.ndarray]]:
    """The finite start values of the survivors of each weight; read twice rather than held all at once."""
    for stored in store.rounds(run, rounds, branches=False):
        for name, mask in stored.masks.items():
            values = stored.masked_start[name][mask].astype(np.float64)
            yield stored, name, values[np.isfinite(values)]
