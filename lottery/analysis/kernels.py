"""The kernels of all layers as if they had the axes of a plain one: places, inputs, units."""

import math
import re
from collections.abc import Iterator, Mapping

import numpy as np

from lottery import formatting, weights
from lottery.models import graph
from lottery.models.graph import DescribedLayer
from lottery.runs import store


def of_run(run: store.Folder) -> dict[str, DescribedLayer]:
    """Return the layers of a run's network by the paths in the names of weights; empty where no configuration is."""
    architecture = store.read_environment(run).get("architecture") or {}
    return dict(_by_path(graph.described_layers(architecture), ""))


def arranged(name: str, mask: np.ndarray, layers: Mapping[str, DescribedLayer]) -> tuple[np.ndarray, int]:
    """Arrange the mask of a weight with the inputs of a group and the units of all groups on the last two axes.

    The kernel of a transposed convolution has them the other way round, that of a depthwise one the units of a channel
    alone, and those of attention and of an EinsumDense have several axes of either.

    Returns:
        The mask, and the number of groups. The units of a group stand together, and read the inputs of this group.
    """
    path, _, own = name.rpartition("/")
    layer = layers.get(path) or DescribedLayer("", {})
    around = layers.get(path.rpartition("/")[0])
    if around and graph.facts_of(around.name).multiplied == "projections" and mask.ndim > 2:
        # The last projection takes the heads and their sizes, which the others make.
        num_inputs = 2 if path.endswith("/attention_output") else 1
        return mask.reshape(math.prod(mask.shape[:num_inputs]), -1), 1
    if graph.facts_of(layer.name).multiplied == "equation" and own == "kernel":
        return _of_equation(mask, layer.settings.get("equation"))
    if mask.ndim < 3:
        return mask, 1
    if layer.name.endswith("Transpose"):
        return mask.swapaxes(-1, -2), 1
    if layer.name.startswith("Depthwise") or own == "depthwise_kernel":
        return mask.reshape(*mask.shape[:-2], 1, -1), mask.shape[-2]
    groups = layer.settings.get("groups")
    if type(groups) is not int or groups < 2 or mask.shape[-1] % groups:
        return mask, 1
    return mask, groups


def _of_equation(mask: np.ndarray, equation: object) -> tuple[np.ndarray, int]:
    """Arrange the kernel of an EinsumDense: axes that inputs and outputs have, too, tell its groups apart."""
    parts = re.fullmatch(r"([^,]+),([a-zA-Z]+)->(.+)", str(equation))
    if parts is None or len(parts[2]) != mask.ndim:
        return mask, 1
    taken, axes, made = parts.groups()
    inputs = [place for place, axis in enumerate(axes) if axis not in made]
    shared = [place for place, axis in enumerate(axes) if axis in made and axis in taken]
    units = [place for place, axis in enumerate(axes) if axis in made and axis not in taken]
    num_inputs = math.prod(mask.shape[place] for place in inputs)
    groups = math.prod(mask.shape[place] for place in shared)
    return mask.transpose(*inputs, *shared, *units).reshape(num_inputs, -1), groups


def _by_path(layers: list[DescribedLayer], prefix: str) -> Iterator[tuple[str, DescribedLayer]]:
    """Yield layers and those within them, named as `lottery.weights.variables` names them."""
    stems = [weights.plain_name(layer.name, str(layer.settings.get("name", ""))) for layer in layers]
    for layer, name in zip(layers, formatting.numbered(stems), strict=True):
        yield f"{prefix}{name}", layer
        yield from _by_path(graph.layers_within(layer.settings), f"{prefix}{name}/")
