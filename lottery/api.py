"""What a user calls: `run`, `load`, `sweep` and `branch`, and the `Run` that they return."""

from pathlib import Path

from lottery.pipeline.branching import branch
from lottery.pipeline.running import run
from lottery.pipeline.sweeping import sweep
from lottery.runs import store
from lottery.runs.results import Run

__all__ = ["Run", "branch", "load", "run", "sweep"]


def load(path: str | Path) -> Run:
    """Open a stored run.

    Args:
        path: The run's folder.

    Returns:
        The run.

    Raises:
        LotteryError: The folder is not a run, or its experiment was changed.
    """
    store.read_experiment(Path(path))
    return Run(Path(path))
