"""What networks cost: multiply-adds for one example, compression and the speed-up in theory, steps and seconds."""

import math
from collections.abc import Mapping
from pathlib import Path

from lottery.runs import store
from lottery.runs.verdicts import Table
from lottery.settings import GIVEN

COLUMNS = (
    "replicate", "branch", "round", "density", "num_kept", "compression", "multiply_adds", "speedup", "seconds",
    "steps",
)  # fmt: skip


def multiply_adds(kept: Mapping[str, int], per_entry: Mapping[str, int | None]) -> int | None:
    """Count the multiply-adds of the weights that are kept, for one example.

    Args:
        kept: How many entries of each weight are kept; see `lottery.masks.num_kept`.
        per_entry: Multiply-adds of one entry of each weight; see `lottery.models.multiply_adds.per_entry`.

    Returns:
        Their number, biases and normalisation not counted; None where those of a weight are not known.
    """
    known = {name: per_entry.get(name) for name in kept}
    return None if None in known.values() else sum(kept[name] * (known[name] or 0) for name in kept)


def table(run: Path) -> Table:
    """What each network of a run costs.

    Blalock et al. 2020, https://arxiv.org/abs/2003.03033, ask for both: how much smaller a network is (compression),
    and how many multiply-adds less it needs (the speed-up in theory, which no hardware fully gives).

    Args:
        run: The run's folder.

    Returns:
        A data frame with a row for each row of `lottery.runs.results.table`, in its order: ``replicate, branch, round,
        density, num_kept``; ``compression``, 1 / density; ``multiply_adds`` for one example of the run's own data, and
        ``speedup``, those of the dense network over these, both NaN where they are not known; ``seconds`` and ``steps``
        of training the network, which for `lottery.pruning.branches.early_bird` begin once it is drawn. Where nothing
        is left, compression and speed-up are infinite.

    Raises:
        LotteryError: It is not a run, or a record is damaged.
    """
    import pandas as pd

    rows, per_entry = [], _per_entry(run)
    dense: dict[int, int | None] = {}
    for stored in store.rounds(run):
        row, kept = stored.record, stored.record["kept"]
        needed = multiply_adds(kept, dict.fromkeys(kept, 1) if per_entry is None else per_entry)
        if row["replicate"] not in dense:  # its first row is that of round 0
            dense[row["replicate"]] = needed
        whole = dense[row["replicate"]]
        rows.append(
            {
                **{column: row[column] for column in COLUMNS if column in row},
                "compression": 1 / row["density"] if row["density"] else math.inf,
                "multiply_adds": math.nan if needed is None else needed,
                "speedup": math.nan if needed is None or whole is None else whole / needed if needed else math.inf,
                "steps": _steps(stored),
            }
        )
    floats = dict.fromkeys(("compression", "multiply_adds", "speedup", "seconds"), float)
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(floats)


def total(run: Path) -> dict[str, float | int | None]:
    """What a run has cost so far, branches included.

    Args:
        run: The run's folder.

    Returns:
        ``networks``; ``steps`` of training, ``seconds`` of them, evaluations included; ``examples`` seen while
        training, each as often as it was seen; None where the data were the caller's own and not pixels of a byte, for
        then it was not written down whether they came in batches of their own size.

    Raises:
        LotteryError: It is not a run, or a record is damaged.
    """
    rows, environment, experiment = table(run), store.read_environment(run), store.read_experiment(run)
    examples: int | None = 0
    for row, stored in zip(rows.to_dict("records"), store.rounds(run), strict=True):
        changed = stored.record.get("overrides", {}).get("train", {})  # by a transfer
        if experiment.data.name == GIVEN and environment.get("scaling") is None:
            examples = None
        if examples is not None:
            examples += row["steps"] * changed.get("batch_size", experiment.train.batch_size)
    return {
        "networks": len(rows),
        "steps": int(rows["steps"].sum()),
        "seconds": float(rows["seconds"].sum()),
        "examples": examples,
    }


def _per_entry(run: Path) -> Mapping[str, int | None] | None:
    """Multiply-adds of each entry, as recorded; of an older run, None where they are 1, else empty."""
    older = None if store.read_experiment(run).model.name == "lenet_300_100" else {}
    return store.read_environment(run).get("uses", older)


def _steps(stored: store.StoredRound) -> int:
    """From the first evaluation of a network to the last."""
    steps = [step for step, *_ in stored.metrics]
    return max(steps) - min(steps)
