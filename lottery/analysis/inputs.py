"""What the first layer still reads: kept entries at each pixel, or at each place of the first kernel."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lottery.runs import store
from lottery.runs.results import Table

COLUMNS = ("replicate", "round", "density", "weight", "what", "row", "column", "channel", "kept", "of")


INPUT, KERNEL = "input", "kernel"


# Layers that leave the entries of an example in their order, up to the first weights.
_IN_ORDER = (
    "InputLayer", "Flatten", "Reshape", "Rescaling", "Normalization", "Dropout", "GaussianNoise", "Activation",
    "BatchNormalization",
)  # fmt: skip


def table(run: Path, rounds: Iterable[int] | None = None) -> Table:
    """How many entries of the first prunable weight are kept at each input, in the main chain.

    Args:
        run: The run's folder.
        rounds: Which rounds; all if None.

    Returns:
        A data frame with the columns `COLUMNS`. Where the first weight is a dense layer's, ``what`` is ``"input"`` and
        a row is an input: ``kept`` of its ``of`` entries, one to each unit, are kept, and ``row, column, channel`` is
        its place in the image that the network flattens (channels last); where that is not known, or is no image, the
        row and the channel are 0 and the column counts. Where it is a convolution's, ``what`` is ``"kernel"`` and a row
        is a place of the kernel and a channel of the example, with an entry to each unit; a kernel of one spatial axis
        is one row, of one of three the first two are run together into rows.

    Raises:
        LotteryError: As `lottery.runs.store.rounds`, or a file is damaged.
    """
    import pandas as pd

    shape = image_shape(store.read_environment(run).get("architecture") or {})
    parts = []
    for stored in store.rounds(run, rounds, branches=False):
        name, mask = next(iter(stored.masks.items()))
        replicate, _, index, density = stored.labels
        what, kept, of = counted(mask, shape)
        row, column, channel = (axis.ravel() for axis in np.indices(kept.shape))
        known = dict(zip(COLUMNS, (replicate, index, density, name, what), strict=False))
        place = {"row": row, "column": column, "channel": channel}
        parts.append(pd.DataFrame({**known, **place, "kept": kept.ravel(), "of": of}))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(COLUMNS))


def counted(mask: np.ndarray, shape: tuple[int, ...] = ()) -> tuple[str, np.ndarray, int]:
    """Kept entries of a first weight by where they read.

    Args:
        mask: Boolean, of the weight's shape: units on the last axis, inputs on the one before it.
        shape: Of one example, (height, width) or (height, width, channels); anything else is no image.

    Returns:
        `INPUT` or `KERNEL`; how many entries are kept, an array of (row, column, channel); and out of how many each.
    """
    if mask.ndim < 2:
        return INPUT, mask.reshape(1, -1, 1).astype(int), 1
    kept, of = mask.sum(axis=-1), mask.shape[-1]
    if mask.ndim > 2:
        width = mask.shape[-3]
        return KERNEL, kept.reshape(-1, width, mask.shape[-2]), of
    image = (*shape, 1) if len(shape) == 2 else shape
    if len(image) == 3 and int(np.prod(image)) == kept.size:
        return INPUT, kept.reshape(image), of
    return INPUT, kept.reshape(1, -1, 1), of


def image_shape(architecture: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of one example whose entries the first weights read in their order; empty where that is not known.

    Args:
        architecture: What ``environment.json`` says of the network: a built-in one's name and shape, or Keras' own
            configuration.
    """
    if "name" in architecture:
        return _whole(architecture.get("input_shape"))
    described = (architecture.get("keras") or {}).get("config") or {}
    shapes: list[tuple[int, ...]] = []
    for layer in described.get("layers") or []:
        settings = layer.get("config") or {}
        if ("units" in settings or "filters" in settings) and settings.get("trainable", True):
            break
        if layer.get("class_name") not in _IN_ORDER:
            return ()
        if layer["class_name"] == "InputLayer":
            # Keras 3 and tf_keras have a name each for it.
            whole = settings.get("batch_shape") or settings.get("batch_input_shape") or [None]
            shapes.append(_whole(whole[1:]))
    return shapes[0] if len(shapes) == 1 else ()


def _whole(shape: Any) -> tuple[int, ...]:
    """A shape without open dimensions; empty for any other."""
    sizes = tuple(shape or ())
    return sizes if all(type(size) is int and size > 0 for size in sizes) else ()
