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
    "allocation", "allowlist", "architectures", "auditing", "augmenting", "branches", "branching", "callbacks",
    "chains", "checking", "claims", "compaction", "comparing", "compiling", "config", "contests", "criteria", "data",
    "datasets", "enforcement", "environment", "errors", "examples", "exporting", "files", "findings", "fingerprints",
    "fitting", "folding", "formats", "holding", "intervals", "jobs", "learning_rates", "loop", "masks", "models",
    "modes", "networks", "options", "order", "patching", "picking", "placing", "planning", "plots", "preparing",
    "progress", "pruning", "rebuilding", "records", "reopened", "replicates", "results", "rewinding", "rounds",
    "running", "saliency", "schedules", "scoring", "shipped", "showing", "smoking", "store", "synaptic", "tflite",
    "ticket_commands", "ticket_files", "tickets", "tracing", "training", "verdicts", "weights", "wrappable",
    "wrappers",
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
