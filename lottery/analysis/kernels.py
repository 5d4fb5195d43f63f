"""The kernels of convolutions as if all had the axes of a plain one: places, inputs, units."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lottery import weights
from lottery.models.graph import DescribedLayer
from lottery.runs import store


def of_run(run: Path) -> dict[str, DescribedLayer]:
    """Return the layers of a run's network by the paths in the names of weights; empty where no configuration is."""
    whole = (store.read_environment(run).get("architecture") or {}).get("keras") or {}
    return dict(_by_path(whole.get("config") or {}, ""))


def arranged(name: str, mask: np.ndarray, layers: Mapping[str, DescribedLayer]) -> tuple[np.ndarray, int]:
    """Arrange the mask of a weight with its inputs and its units on the last two axes.

    The kernel of a transposed convolution has them the other way round, and that of a grouped one has the inputs of a
    group alone: here a unit keeps no entry of the inputs that only other groups read.

    Returns:
        The mask, and the number of groups.
    """
    layer = layers.get(name.rpartition("/")[0])
    if layer is None or mask.ndim < 3:
        return mask, 1
    if layer.name.endswith("Transpose"):
        return mask.swapaxes(-1, -2), 1
    groups = layer.settings.get("groups")
    if type(groups) is not int or groups < 2 or mask.shape[-1] % groups:
        return mask, 1
    parts = np.split(mask, groups, axis=-1)
    found = np.zeros((*mask.shape[:-2], groups * mask.shape[-2], mask.shape[-1]), bool)
    inputs, units = parts[0].shape[-2:]
    for place, part in enumerate(parts):
        found[..., place * inputs : (place + 1) * inputs, place * units : (place + 1) * units] = part
    return found, groups


def _by_path(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, DescribedLayer]]:
    """Yield the layers within a layer, and those within these, named as `lottery.weights.variables` names them."""
    taken: Counter[str] = Counter()
    inner = config.get("layer")  # of a wrapper
    for described in config.get("layers") or ([inner] if inner else []):
        kind, own = described.get("class_name", ""), described.get("config") or {}
        stem = weights.plain_name(kind, own.get("name", ""))
        path = f"{prefix}{stem}_{taken[stem]}" if taken[stem] else f"{prefix}{stem}"
        taken[stem] += 1
        yield path, DescribedLayer(kind, own)
        yield from _by_path(own, f"{path}/")
