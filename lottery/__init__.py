"""Find, study and hand out winning tickets: iterative magnitude pruning for TensorFlow and Keras.

Only `run` lives here; everything else is in modules that are imported when they are first used, so that
``import lottery`` costs next to nothing and reading a run never imports TensorFlow.
"""

import importlib
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

__version__ = _version("lottery")
__all__ = ["__version__", "run"]

if TYPE_CHECKING:
    from lottery.running import run

_MODULES = (
    "allocation", "architectures", "auditing", "augmenting", "branches", "branching", "callbacks", "checking",
    "claims", "comparing", "compiling", "config", "contests", "criteria", "data", "datasets", "enforcement",
    "environment", "errors", "files", "findings", "fingerprints", "fitting", "holding", "intervals", "jobs",
    "learning_rates", "loop", "masks", "models", "modes", "networks", "order", "patching", "picking", "planning",
    "plots", "preparing", "progress", "pruning", "records", "replicates", "results", "rewinding", "rounds", "running",
    "saliency", "schedules", "scoring", "shipped", "showing", "smoking", "store", "synaptic", "ticket_files",
    "tickets", "training", "verdicts", "weights", "wrappable", "wrappers",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "run":
        from lottery.running import run

        return run
    if name in _MODULES:
        return importlib.import_module(f"lottery.{name}")
    raise AttributeError(f"module 'lottery' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
