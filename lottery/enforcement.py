"""Hold masked entries while training: everything that a user of it needs, in one place.

`ENFORCEMENTS` are the modes, context managers for any loop; `EnforceMasks` is each of them as a callback of ``fit``;
`mask_gradients` and `project` are for loops written by hand; `audit` and `AuditMasks` see whether anybody's loop holds
what it should.
"""

from typing import TYPE_CHECKING, Any

from lottery.holding import HeldAt, mask_gradients, project
from lottery.modes import (
    ENFORCEMENTS,
    Enforcement,
    callback,
    constraint,
    gradient,
    mask_variables,
    reparameterization,
    tfmot,
)

if TYPE_CHECKING:
    from lottery.auditing import Audit, AuditMasks, audit
    from lottery.callbacks import EnforceMasks

__all__ = [
    "ENFORCEMENTS", "Audit", "AuditMasks", "EnforceMasks", "Enforcement", "HeldAt", "audit", "callback", "constraint",
    "gradient", "mask_gradients", "mask_variables", "project", "reparameterization", "tfmot",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # Keras' callbacks are classes, so what derives from them imports TensorFlow; the rest waits until a model comes.
    if name in ("Audit", "AuditMasks", "audit"):
        from lottery import auditing

        return getattr(auditing, name)
    if name == "EnforceMasks":
        from lottery.callbacks import EnforceMasks

        return EnforceMasks
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
