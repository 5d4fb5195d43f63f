"""Where retraining starts: the weights that survivors are set back to."""

import hashlib
from collections.abc import Mapping

import numpy as np

from lottery import masks as masks_module
from lottery.masks import Masks


def rewound(start: Mapping[str, np.ndarray], masks: Masks) -> dict[str, np.ndarray]:
    """What a round starts from: survivors at their start weights, everything masked at zero.

    Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635: theta_0 times m.

    Args:
        start: Every variable at the rewind step, by name.
        masks: What is kept.

    Returns:
        Every variable, by name.
    """
    return masks_module.apply(start, masks)


def fingerprint(state: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names, shapes and bits: recorded of what the model really held when a round began."""
    digest = hashlib.sha256()
    for name in sorted(state):
        value = np.ascontiguousarray(state[name])
        digest.update(f"{name} {value.dtype.str} {value.shape}\n".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()
