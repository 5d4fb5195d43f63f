"""Hold masked entries of any Keras model while it trains, in any loop.

`ENFORCEMENTS` has the modes, context managers for any loop; `EnforceMasks` makes a callback of ``fit`` of each;
`mask_gradients` and `project` are for loops written by hand; `audit` and `AuditMasks` check what a loop holds.
"""

from typing import TYPE_CHECKING, Any

from lottery.enforcement.entries import HeldAt, mask_gradients, project
from lottery.enforcement.modes import (
    ENFORCEMENTS,
    Enforcement,
    Mode,
    callback,
    constraint,
    given,
    gradient,
    mask_variables,
    pruning_wrappers,
    reparameterization,
)

if TYPE_CHECKING:
    from lottery.enforcement.auditing import Audit, AuditMasks, audit
    from lottery.enforcement.callbacks import EnforceMasks

__all__ = [
    "ENFORCEMENTS", "Audit", "AuditMasks", "EnforceMasks", "Enforcement", "HeldAt", "Mode", "audit", "callback",
    "constraint", "given", "gradient", "mask_gradients", "mask_variables", "project", "pruning_wrappers",
    "reparameterization",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # Callbacks derive from a class of Keras, so importing them imports TensorFlow; the rest waits for a model.
    if name in ("Audit", "AuditMasks", "EnforceMasks", "audit"):
        from lottery.enforcement import auditing, callbacks

        return getattr(callbacks if name == "EnforceMasks" else auditing, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
