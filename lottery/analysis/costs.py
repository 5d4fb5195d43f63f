"""The cost of networks: multiply-adds for one example, compression, theoretical speed-up, steps, seconds and engine."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lottery.analysis.record import Analysis, frame
from lottery.pruning import held
from lottery.runs import store
from lottery.runs.verdicts import Table
from lottery.settings import GIVEN

COLUMNS = (
    "replicate", "branch", "round", "density", "num_kept", "compression", "parameter_compression", "multiply_adds",
    "speedup", "seconds", "steps", "engine",
)  # fmt: skip


def multiply_adds(kept: Mapping[str, int], per_entry: Mapping[str, int | None]) -> int | None:
    """Count the multiply-adds for one example, without biases and normalisation; None if those of a weight are unknown.

    The arguments are from `lottery.masks.num_kept` and `lottery.models.multiply_adds.per_entry`.
    """
    known = {name: per_entry.get(name) for name in kept}
    return None if None in known.values() else sum(kept[name] * (known[name] or 0) for name in kept)


def table(run: Path) -> Table:
    """Compute the cost of each network of a run.

    Blalock et al. 2020, https://arxiv.org/abs/2003.03033, ask for compression and for the theoretical speed-up from
    multiply-adds, which no hardware fully reaches.

    Returns:
        A data frame with the columns `COLUMNS`, a row for each row of `lottery.runs.results.table`, in its order:
        ``compression`` is 1 / density, of the prunable weights alone (an entry that is masked, but held at another
        value than zero, counts here and below as if it were kept); ``parameter_compression`` counts all trainable
        parameters, with biases and normalisation; ``multiply_adds`` for one example of the run's own data, and
        ``speedup``, the dense network's divided by these, both NaN if unknown; ``seconds`` and ``steps`` of training,
        for `lottery.pruning.branches.early_bird` without the steps that draw the ticket; ``engine``, "compiled" or
        "sparse", that trained it. Infinite if nothing is left.
    """
    environment = store.read_environment(run)
    rows, per_entry = [], environment.get("uses", {})
    at_zero = held.is_zero(store.read_experiment(run).prune.held_at)
    dense: int | None = None
    others: int | None = None  # trainable parameters that cannot be pruned
    for stored in store.rounds(run):
        record, used = stored.record, stored.record["kept"]
        if not at_zero:  # an entry that is held at another value has to be stored and multiplied like a kept entry
            used = {name: int(np.count_nonzero(stored.masks[name] | (stored.weights[name] != 0))) for name in used}
        needed, num_used = multiply_adds(used, per_entry), sum(used.values())
        if (stored.branch, stored.index) == (store.TICKET, 0):  # the first round of each replicate
            dense = needed
            others = _others(stored, environment.get("not_pruned", {})) if others is None else others
        left, whole = num_used + (others or 0), record["num_weights"] + (others or 0)
        steps = [step for step, *_ in stored.metrics]
        computed = {
            "compression": record["num_weights"] / num_used if num_used else math.inf,
            "parameter_compression": math.nan if others is None else whole / left if left else math.inf,
            "multiply_adds": math.nan if needed is None else needed,
            "speedup": math.nan if needed is None or dense is None else dense / needed if needed else math.inf,
            "steps": max(steps) - min(steps),
            "engine": stored.engine,
        }
        rows.append({column: record[column] for column in COLUMNS if column in record} | computed)
    floats = dict.fromkeys(("compression", "parameter_compression", "multiply_adds", "speedup", "seconds"), float)
    return frame(rows, COLUMNS).astype(floats)


def _others(dense: store.StoredRound, reasons: Mapping[str, str]) -> int:
    """Count the trainable parameters of a network that are not prunable."""
    trained = (name for name, why in reasons.items() if why not in ("not trainable", "not floating point"))
    return sum(dense.weights[name].size for name in trained)


def total(run: Path) -> dict[str, float | int | None]:
    """Compute the cost of a run so far: ``networks``, ``steps``, ``seconds`` with evaluations, and ``examples`` seen.

    Branches are included, and each example is counted as often as it was seen. ``examples`` is None for the caller's
    own data other than pixels of a byte, whose batches may have had another size.
    """
    rows, experiment = table(run), store.read_experiment(run)
    known = experiment.data.name != GIVEN or store.read_environment(run).get("scaling") is not None
    overrides = [stored.record.get("overrides", {}).get("train", {}) for stored in store.rounds(run)]  # of transfers
    sizes = [changed.get("batch_size", experiment.train.batch_size) for changed in overrides]
    return {
        "networks": len(rows),
        "steps": int(rows["steps"].sum()),
        "seconds": float(rows["seconds"].sum()),
        "examples": int((rows["steps"] * sizes).sum()) if known else None,
    }


COSTS = Analysis(
    table,
    None,
    "Compression, multiply-adds, theoretical speed-up, steps, seconds and engine of each network.",
    columns=("num_kept", "compression", "parameter_compression", "multiply_adds", "speedup", "steps", "seconds"),
    keys=("engine",),
)
