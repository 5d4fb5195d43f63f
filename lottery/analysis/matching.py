"""Match the hidden units of two networks, so that their masks can be compared."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lottery.errors import LotteryError
from lottery.masks import Weights
from lottery.models import graph
from lottery.runs import store

# Which unit of the other network comes to each place, by the name of the weight that makes the units: all but the last.
Permutations = dict[str, np.ndarray]

_BUILT_IN = ("lenet_", "conv_", "vgg_")
_MOST_PASSES = 100


def check_run(run: store.Folder, names: Mapping[str, Any]) -> None:
    """Raise `LotteryError` if the files of a run do not say that its network is a chain of layers with such weights."""
    architecture = store.read_environment(run).get("architecture") or {}
    if "name" in architecture:
        if not str(architecture["name"]).startswith(_BUILT_IN):
            raise _no_chain(f"{architecture['name']} of {str(run)!r} is not a chain")
        return
    described = architecture.get("keras")
    if not isinstance(described, dict):
        why = architecture.get("why", "its run did not write its architecture down")
        raise _no_chain(f"the files of {str(run)!r} do not tell if its network is a chain ({why})")
    if described.get("class_name") != "Sequential":
        raise _no_chain(
            f"the model of {str(run)!r} is {described.get('class_name')}, and only a Sequential model can be matched"
        )
    weighted = 0
    for layer in graph.described_layers(architecture):
        why = graph.obstacle(layer.name, layer.settings, has_units=weighted > 0)
        if why:
            name = layer.settings.get("name")
            raise _no_chain(f"the model of {str(run)!r} has the layer {name!r} ({layer.name}){why}")
        if graph.LAYERS[layer.name].effect == graph.WEIGHTED:
            weighted += 1
    if weighted != len(names):
        raise _no_chain(f"{str(run)!r} has masks for {len(names)} weights, its model has {weighted} such layers")


def matched(first: Weights, second: Weights, seed: int = 0) -> tuple[dict[str, np.ndarray], Permutations]:
    """Reorder the hidden units of the second network to agree most with those of the first.

    Weight matching of Ainsworth, Hayase & Srinivasa 2022, "Git Re-Basin", https://arxiv.org/abs/2209.04836,
    algorithm 1, on masks: the units of one hidden layer after another, in random order, are assigned so that the
    entries that both keep, into the units and out of them, are as many as possible while the other layers stay, until
    no layer gains. It starts twice, from the units as they are and from a pass from the first layer to the last over
    incoming entries alone, and takes the better end: not always the best, but what both keep never becomes fewer.

    Args:
        first, second: Masks of a chain, in the order of its layers: the last axis of each are its units, the axis
            before it its inputs, which are the units before, or (flattened, channels last) several places of each. Or
            masked weights, whose inner product is then as large as possible.
        seed: Of the random order.

    Returns:
        The second's masks or weights, reordered, and the permutations.

    Raises:
        LotteryError: The masks are not those of one chain.
    """
    shapes = [[(name, np.shape(value)) for name, value in arrays.items()] for arrays in (first, second)]
    if shapes[0] != shapes[1]:
        raise LotteryError(f"Only masks of the same network can be matched, not {list(first)} and {list(second)}.")
    mine, theirs = _blocks(first), _blocks(second)
    as_they_are = [np.arange(block.shape[-1]) for block in mine[:-1]]
    forward: list[np.ndarray] = []
    for layer in range(len(as_they_are)):
        forward.append(_assigned(_incoming(mine, theirs, forward, layer)))
    # Coordinate descent ends in different places: from the units as they are it never gets worse than they were, and
    # the forward pass finds a copy in another order at once.
    ends = [_improved(mine, theirs, start, seed) for start in (as_they_are, forward)]
    _, orders = max(ends, key=lambda end: end[0])
    permutations = dict(zip(first, orders, strict=False))  # all but the last
    return permuted(second, permutations), permutations


def permuted(arrays: Weights, permutations: Permutations) -> dict[str, np.ndarray]:
    """Reorder the hidden units in all weights or masks of a chain: the units of each, and the inputs of the next."""
    orders = list(permutations.values())
    reordered = [_ordered(block, orders, layer) for layer, block in enumerate(_blocks(arrays, None))]
    return {name: block.reshape(np.shape(arrays[name])) for name, block in zip(arrays, reordered, strict=True)}


def _blocks(arrays: Weights, kind: Any = np.float32) -> list[np.ndarray]:
    """Reshape each weight to (places, units before, units): places of the kernel, and of what was flattened before."""
    found: list[np.ndarray] = []
    units, before = 0, ""
    for name, value in arrays.items():
        shape = np.shape(value)
        if len(shape) < 2:
            raise _no_chain(f"{name} has the shape {shape}")
        if units and (shape[-2] % units or (len(shape) > 2 and shape[-2] != units)):
            raise _no_chain(f"{name} has {shape[-2]} inputs after the {units} units of {before}")
        # Products of floats are fast, and float32 counts exactly up to 2^24 entries.
        found.append(np.asarray(value, dtype=kind).reshape(-1, units or shape[-2], shape[-1]))
        units, before = shape[-1], name
    return found


def _ordered(block: np.ndarray, orders: list[np.ndarray], layer: int) -> np.ndarray:
    if layer > 0:
        block = block[:, orders[layer - 1]]
    return block[..., orders[layer]] if layer < len(orders) else block


def _incoming(mine: list[np.ndarray], theirs: list[np.ndarray], orders: list[np.ndarray], layer: int) -> np.ndarray:
    """Agreement of each unit of mine with each of theirs over incoming entries, of shape (mine, theirs)."""
    other = theirs[layer][:, orders[layer - 1]] if layer else theirs[layer]
    return np.tensordot(mine[layer], other, ((0, 1), (0, 1)))


def _outgoing(mine: list[np.ndarray], theirs: list[np.ndarray], orders: list[np.ndarray], layer: int) -> np.ndarray:
    """Agreement of each unit of mine with each of theirs over outgoing entries, of shape (mine, theirs)."""
    other = theirs[layer + 1][..., orders[layer + 1]] if layer + 1 < len(orders) else theirs[layer + 1]
    return np.tensordot(mine[layer + 1], other, ((0, 2), (0, 2)))


def _assigned(agreement: np.ndarray) -> np.ndarray:
    from scipy.optimize import linear_sum_assignment

    return linear_sum_assignment(agreement, maximize=True)[1]


def _improved(
    mine: list[np.ndarray], theirs: list[np.ndarray], start: list[np.ndarray], seed: int
) -> tuple[float, list[np.ndarray]]:
    """Improve permutations by coordinate descent; return the agreement of all layers, and the permutations."""
    orders = list(start)
    random = np.random.default_rng(seed)
    for _ in range(_MOST_PASSES):
        gained = False
        for layer in random.permutation(len(orders)):
            agreement = _incoming(mine, theirs, orders, layer) + _outgoing(mine, theirs, orders, layer)
            order = _assigned(agreement)
            now, before = _total(agreement, order), _total(agreement, orders[layer])
            # Rounding is not a gain: of masks these are whole numbers, of weights they are not.
            if now > before + 1e-6 * abs(before):
                orders[layer] = order
                gained = True
        if not gained:
            break
    reordered = (_ordered(block, orders, layer) for layer, block in enumerate(theirs))
    return sum(float(np.vdot(own, block)) for own, block in zip(mine, reordered, strict=True)), orders


def _total(agreement: np.ndarray, order: np.ndarray) -> float:
    return float(agreement[np.arange(len(order)), order].sum(dtype=np.float64))


def _no_chain(why: str) -> LotteryError:
    return LotteryError(f"Matching needs a chain of dense and convolutional layers; {why}.")
