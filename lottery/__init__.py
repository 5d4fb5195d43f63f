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
    "allocation", "allowlist", "analysis", "analyze_commands", "architectures", "auditing", "augmenting", "branches",
    "branching", "callbacks", "chains", "checking", "checklist", "checkpoints", "claims", "clustering", "compaction",
    "comparing", "comparisons", "compiling", "config", "connecting", "connectivity", "contests", "copies", "costs",
    "criteria", "curves", "data", "datasets", "distances", "enforcement", "environment", "errors", "evaluating",
    "examples", "experiment_commands", "exporting", "facts", "files", "findings", "fingerprints", "fitting",
    "folding", "formats", "gallery", "holding", "inputs", "interpolation", "intervals", "jobs", "landscapes",
    "launching", "layers", "learning_rates", "loop", "masks", "matching", "measuring", "models", "modes", "networks",
    "nodes", "options", "order", "overlaps", "page_commands", "parcels", "patching", "picking", "pictures", "placing",
    "planning", "plots", "positions", "precision", "preparing", "processes", "progress", "pruning", "rebuilding",
    "records", "reopened", "repeating", "replicates", "report", "results", "rewinding", "rounds", "running",
    "saliency", "schedules", "scoring", "sections", "sending", "sharing", "shipped", "showing", "smoking",
    "spreading", "stopping", "store", "styles", "summaries", "survivors", "sweeping", "synaptic", "tflite",
    "ticket_commands", "ticket_files", "ticket_tables", "tickets", "tracing", "train_commands", "training",
    "verdicts", "weights", "working", "wrappable", "wrappers",
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
