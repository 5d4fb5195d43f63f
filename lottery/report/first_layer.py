"""What the first layer reads in each round, for the slider of a page."""

from typing import Any

import numpy as np

from lottery.analysis import inputs
from lottery.figures import style
from lottery.report.reported import ReportedRun
from lottery.runs import store
from lottery.runs.stored import stored_rounds

MOST = 150_000  # counts on a page, of at most four characters each


def frames(run: ReportedRun, most: int = MOST) -> dict[str, Any] | None:
    """Gather the counts of `lottery.analysis.inputs` as images, for as many replicates and rounds as a page has room.

    Returns:
        ``weight``, ``what`` ("input" or "kernel"), ``of`` (entries at each place), ``shape`` (rows and columns of an
        image; the channels of an input are summed, those of a kernel side by side), ``channels``, and ``frames``: a
        dict for each replicate and round, with its ``density`` and ``counts`` row by row. None if one replicate in two
        rounds is too much.
    """
    first = next(stored_rounds(run.path, [0], branches=False))
    num_places = inputs.counted(next(iter(first.masks.values())))[1].size
    lengths = run.rows[run.rows["branch"] == store.TICKET].groupby("replicate")["round"].max() + 1
    if (room := most // num_places) < 2:
        return None
    everything = int(lengths.sum()) <= room
    rounds = range(int(lengths.max())) if everything else style.chosen(range(int(lengths.iloc[0])), room)
    table = run.table("inputs", rounds=tuple(rounds))
    if not everything:
        table = table[table["replicate"] == lengths.index[0]]
    what, channels = table["what"].iloc[0], int(table["channel"].max()) + 1
    sizes = [int(table[axis].max()) + 1 for axis in ("row", "column", "channel")]
    found = []
    for (replicate, index, density), part in table.groupby(["replicate", "round", "density"]):
        kept = np.zeros(sizes, int)
        kept[part["row"], part["column"], part["channel"]] = part["kept"]
        image = np.concatenate(np.moveaxis(kept, 2, 0), axis=1) if what == inputs.KERNEL else kept.sum(axis=2)
        where = {"replicate": int(replicate), "round": int(index), "density": round(float(density), 4)}
        found.append(where | {"counts": image.ravel().tolist()})
    side_by_side = channels if what == inputs.KERNEL else 1
    return {
        "weight": table["weight"].iloc[0],
        "what": what,
        "of": int(table["of"].iloc[0]) * (channels // side_by_side),
        "shape": [sizes[0], sizes[1] * side_by_side],
        "channels": side_by_side,
        "frames": found,
    }
