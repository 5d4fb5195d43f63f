"""How far training moves the survivors from where they started."""

from pathlib import Path

import numpy as np

from lottery.runs import store
from lottery.runs.results import Table

COLUMNS = (
    "replicate", "branch", "round", "density", "weight", "start_norm", "distance", "relative_distance", "cosine",
    "sign_changes",
)  # fmt: skip


ALL = "all"  # the row of all weights together


def moved(start: np.ndarray, trained: np.ndarray) -> tuple[float, float, float, float, float]:
    """How far values have moved, as vectors.

    Args:
        start: Values before training, of any shape.
        trained: The same values after it.

    Returns:
        The Euclidean norm of `start`; the Euclidean distance of the two; that distance divided by the norm; the cosine
        of the angle between them; and, of the values that do not start at zero, the fraction that end with another sign
        (an exact zero has a sign of its own). The last three are NaN where they are not defined.
    """
    start, trained = start.astype(np.float64).ravel(), trained.astype(np.float64).ravel()
    norm, end, distance = (float(np.linalg.norm(value)) for value in (start, trained, trained - start))
    signed = start != 0
    changed = np.sign(start[signed]) != np.sign(trained[signed])
    return (
        norm,
        distance,
        distance / norm if norm else np.nan,
        float(start @ trained) / (norm * end) if norm and end else np.nan,
        float(changed.mean()) if changed.size else np.nan,
    )


def table(run: Path) -> Table:
    """How far each weight's survivors have moved in each round, and all together.

    Args:
        run: The run's folder.

    Returns:
        A data frame with the columns `COLUMNS`, a row for each weight and before them one named ``"all"``: what `moved`
        returns of the entries that are kept. The start is that of the round itself, the initial or rewound values;
        with learning-rate rewinding and fine-tuning, where the round before ended. The main chain only, so ``branch``
        is ``"ticket"``: what branches start from is not stored.

    Raises:
        LotteryError: It is not a run, or a file is damaged.
    """
    import pandas as pd

    rows = []
    for stored in store.rounds(run, branches=False):
        start, trained = stored.masked_start, stored.weights
        pairs = {name: (start[name][mask], trained[name][mask]) for name, mask in stored.masks.items()}
        together = [np.concatenate(parts) for parts in zip(*pairs.values(), strict=True)]
        for name, (before, after) in {ALL: together, **pairs}.items():
            rows.append((*stored.labels, name, *moved(before, after)))
    return pd.DataFrame(rows, columns=list(COLUMNS))
