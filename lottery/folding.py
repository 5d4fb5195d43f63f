"""Units that do nothing: constants are folded into the next bias, what nobody reads is dropped, the rest is built."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lottery import rebuilding
from lottery.chains import FLAT, START, Link
from lottery.errors import LotteryError

# Of the value: entries of one channel that differ by less are the same, but for rounding in a pooling.
_ROUNDING = 1e-6


class Weighted(NamedTuple):
    """A layer with a kernel, in a working copy that ends with zeros wherever nothing is needed.

    Attributes:
        position: Of its link in the chain.
        kernel: The kernel, of its full shape.
        bias: Its bias, in double precision; zeros if there is none.
        kept: By unit, whether it stays.
    """

    position: int
    kernel: np.ndarray
    bias: np.ndarray
    kept: np.ndarray

    def by_entry(self) -> np.ndarray:
        """The kernel as (positions in the window, entries at a position, units), a view."""
        return self.kernel.reshape(-1, *self.kernel.shape[-2:])


def read_weighted(position: int, link: Link) -> Weighted:
    """A working copy of a layer, in which every unit stays so far."""
    kernel, *bias = (np.array(value, order="C") for value in link.layer.get_weights())
    num_units = kernel.shape[-1]
    bias = bias[0].astype(np.float64) if bias else np.zeros(num_units)
    return Weighted(position, kernel, bias, np.ones(num_units, dtype=bool))


def fold_constants(links: Sequence[Link], one: Weighted, following: Weighted) -> None:
    """Move what the constant units of a layer add into the bias of the next one, and forget what they read."""
    between = links[one.position : following.position]
    if any(link.mixes for link in between):
        return
    value, varies = _constants(between, one)
    kernel = following.by_entry()
    value, constant = value.reshape(-1, kernel.shape[1]), ~varies.reshape(-1, kernel.shape[1]).any(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        constant &= np.isfinite(value.astype(kernel.dtype)).all(axis=0)
        uniform = np.abs(value - value[0]).max(axis=0) <= _ROUNDING * np.abs(value[0])
    exact = uniform & ((value[0] == 0) | (not _sees_padding(links[following.position])))
    folded = constant & exact
    following.bias[:] += value[0, folded] @ kernel[:, folded].astype(np.float64).sum(axis=0)
    kernel[:, folded] = 0
    # By unit, for a layer that was flattened has several entries of each. What it reads is of no consequence.
    one.kernel[..., constant.reshape(-1, one.bias.size).all(axis=0)] = 0


def drop_unread(links: Sequence[Link], one: Weighted, following: Weighted) -> None:
    """Drop the units of a layer that the next one does not read, and forget what they read themselves."""
    if any(link.mixes for link in links[one.position : following.position]):
        return
    read = (following.by_entry() != 0).any(axis=(0, 2)).reshape(-1, one.kept.size).any(axis=0)
    one.kernel[..., ~read] = 0
    read[0] |= not read.any()  # Keras needs one unit
    one.kept[:] = read


def pieces(links: Sequence[Link], layers: Sequence[Weighted]) -> list[tuple[Any, list[np.ndarray]]]:
    """New layers for what is left of a chain, with the values of their weights."""
    at, found = {one.position: one for one in layers}, []
    kept = np.ones(1, dtype=bool)  # of the inputs, all
    for position, link in enumerate(links):
        entries = np.resize(kept, link.before[-1]) if link.before else kept
        if position in at:
            found.append(_smaller(link, at[position], entries))
            kept = at[position].kept
        else:
            values = link.layer.get_weights()
            cut = kept.size > 1
            values = [value[..., entries] if cut and value.shape[-1] == entries.size else value for value in values]
            found.append((rebuilding.copy_of(link.layer), values))
    return found


def flat_pieces(
    links: Sequence[Link], layers: Sequence[Weighted], inputs: np.ndarray
) -> list[tuple[Any, list[np.ndarray]]]:
    """The same for a model that takes a flat choice of the entries.

    Args:
        links: A chain.
        layers: Its layers with kernels, in order.
        inputs: Flat positions of the entries.

    Raises:
        LotteryError: What comes before the first weights needs more than single entries.
    """
    first = layers[0].position
    if type(links[first].layer).__name__ != "Dense" or len(links[first].before) != 1:
        raise LotteryError(
            f"drop_inputs: received True, allowed is False, for the first layer with weights, "
            f"{links[first].layer.name!r}, takes examples of shape {links[first].before}, of which single entries "
            "cannot be left out; they are reported as unread."
        )
    found = []
    for link in links[:first]:
        if link.kind == FLAT or (link.kind == START and type(link.layer).__name__ == "Reshape"):
            continue
        settings = rebuilding.flat_settings(link, inputs)
        if settings is None:
            raise LotteryError(
                f"drop_inputs: received True, allowed is False, for the layer {link.layer.name!r} before the first "
                "weights needs more of an example than one entry at a time; unread entries are reported."
            )
        changes, values = settings
        found.append((rebuilding.copy_of(link.layer, **changes), values))
    chosen = np.zeros(links[first].before, dtype=bool)
    chosen[inputs] = True
    return [*found, _smaller(links[first], layers[0], chosen), *pieces(links, layers)[first + 1 :]]


def _constants(between: Sequence[Link], one: Weighted) -> tuple[np.ndarray, np.ndarray]:
    """What arrives at the next layer if this one gets nothing but its bias, and which entries may be something else."""
    first, *others = between
    value = rebuilding.activated(first, np.broadcast_to(one.bias, (1, *first.after)).copy())
    varies = np.broadcast_to((one.kernel != 0).reshape(-1, one.bias.size).any(axis=0), first.after)
    for link in others:
        value = rebuilding.at_inference(link, value)
        if type(link.layer).__name__ == "BatchNormalization" and link.layer.scale:
            varies = varies & (link.layer.get_weights()[0] != 0)
        if link.kind == FLAT:
            varies = varies.reshape(-1)
        elif link.before != link.after:
            varies = np.broadcast_to(varies.reshape(-1, link.before[-1]).any(axis=0), link.after)
    return np.asarray(value), varies


def _sees_padding(link: Link) -> bool:
    """Whether windows of a convolution may reach over the border, where there are zeros instead of the constant."""
    return getattr(link.layer, "padding", "valid") != "valid" and math.prod(link.layer.kernel_size) > 1


def _smaller(link: Link, one: Weighted, entries: np.ndarray) -> tuple[Any, list[np.ndarray]]:
    kernel = one.kernel[..., entries, :][..., one.kept]
    use_bias = bool(link.layer.use_bias or np.any(one.bias))
    size = "units" if type(link.layer).__name__ == "Dense" else "filters"
    layer = rebuilding.copy_of(link.layer, **{size: kernel.shape[-1], "use_bias": use_bias})
    return layer, [kernel, one.bias[one.kept].astype(kernel.dtype)] if use_bias else [kernel]
