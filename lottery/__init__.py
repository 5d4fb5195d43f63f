"""Find, study and hand out winning tickets: iterative magnitude pruning for TensorFlow and Keras.

`run` and `load` give a run, `sweep` trains a grid of experiments, `branch` adds controls, `prune` makes masks of a
model without an experiment; everything else is in the rooms and modules below. All are imported when they are first
used, so ``import lottery`` costs next to nothing, and reading a run never imports TensorFlow.
"""

import importlib
import os
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lottery import (
        analysis,
        data,
        enforcement,
        figures,
        masks,
        models,
        plots,
        pruning,
        report,
        runs,
        statistics,
        tickets,
        weights,
    )  # fmt: skip
    from lottery.api import branch, load, run, sweep
    from lottery.pruning import prune

# TensorFlow logs a dozen lines when it starts, unless this is set before it is imported; then it logs a few.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

__version__ = _version("lottery")
__all__ = [
    "__version__", "analysis", "branch", "data", "enforcement", "figures", "load", "masks", "models", "plots",
    "prune", "pruning", "report", "run", "runs", "statistics", "sweep", "tickets", "weights",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in ("run", "load", "sweep", "branch"):
        return getattr(importlib.import_module("lottery.api"), name)
    if name == "prune":
        return importlib.import_module("lottery.pruning").prune
    if name in __all__:
        return importlib.import_module(f"lottery.{name}")
    raise AttributeError(f"module 'lottery' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
