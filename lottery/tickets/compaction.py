"""Shrink a masked network: remove the units that do nothing."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lottery import weights
from lottery.errors import LotteryError
from lottery.models import graph, outputs
from lottery.models.graph import FLAT, SPATIAL, WEIGHTED
from lottery.models.kerases import evaluating, keras_of, tf
from lottery.tickets import chain
from lottery.tickets.chain import Link, Segment

# Largest difference of an output allowed on random inputs, over the largest output, by the type of computation.
_TOLERANCE = {"float16": 0.05, "bfloat16": 0.2}
# Entries of one channel that are this fraction apart are the same, but for rounding in a pooling.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Compacted:
    """A smaller model that computes the same, and its sizes as pairs of before and after."""

    model: Any  # of the same library as the original, not compiled
    units: dict[str, tuple[int, int]]  # of each Dense and convolution, by the stable name of the layer
    num_parameters: tuple[int, int]  # as Keras counts them, moving statistics included
    multiply_adds: tuple[int, int]  # of Dense and convolutional kernels for one example
    input_shape: tuple[int, ...]  # of one example as the compacted model takes it
    # Of the shape of one example of the original, True where no remaining weight reads the entry.
    unread: np.ndarray = field(repr=False)
    # Flat positions, in an example of the original, of the entries that the compacted model takes.
    inputs: np.ndarray = field(repr=False)

    def select(self, x: Any) -> Any:
        """Convert examples for the original model into those for the compacted one: themselves, or a flat choice."""
        shape = tuple(x.shape[1:])
        if shape != self.unread.shape:
            raise LotteryError(f"The examples must have shape {self.unread.shape}, as before compaction, not {shape}.")
        if self.input_shape == self.unread.shape:  # a flat choice of all entries is in their order
            return x
        return np.asarray(x).reshape(len(x), -1)[:, self.inputs]


def compact(model: Any, drop_inputs: bool = False) -> Compacted:
    """Remove every unit of a masked network that has no input or no output, without changing what it computes.

    Entries that are exactly zero count as absent. A unit without outgoing entries is removed. A unit is constant if it
    has no incoming entries, or if the scale of its BatchNorm is zero. Its value is computed once, through BatchNorm,
    activation and pooling, and moves into the bias of the next layer (which gets a bias if it has none); then the unit
    is removed. This repeats until no unit can be removed. The result is dense: zeros between remaining units are
    stored as zeros.

    Some units stay: nonzero constants in front of a convolution whose windows reach over padding, units whose
    activation does not act on each entry separately (softmax, or your own function), the units of the last layer, and
    one unit of a layer that would be empty. Outputs stay the same except for rounding; otherwise an error is raised.

    Args:
        model: A built Keras 3 or tf_keras model, a single chain of layers: Dense and convolutions, with BatchNorm,
            activations, pooling, padding, Flatten and Dropout, and with Reshape, Rescaling and Normalization before
            them. It is not changed. The result keeps initializers, regularizers and constraints, but no optimizer.
        drop_inputs: Drop the entries of an example that no weight reads. The model then takes flat examples from
            `Compacted.select`. Only for models whose first layer with weights is a Dense.
    """
    links = chain.take_apart(model)
    first, segments = chain.segments(links)
    pairs = list(itertools.pairwise(segments))
    # One pass each way is enough. On the way there, constants make constants; on the way back, an unread unit leaves
    # others unread, but makes nothing constant.
    for segment, following in pairs:
        fold_constants(segment, following)
    for segment, following in reversed(pairs):
        drop_unread(segment, following)
    unread = _unread(keras_of(model), links, segments)
    inputs, shape = np.arange(unread.size), links[0].before
    if drop_inputs:
        inputs = np.arange(1) if unread.all() else np.flatnonzero(~unread)  # Keras needs an input
        shape = (inputs.size,)
        pieces = chain.flat_pieces(first, segments, inputs)
    else:
        pieces = chain.pieces(first, segments)
    small = chain.assembled(model, shape, pieces)
    names = {id(variable): name.rpartition("/")[0] for name, variable in weights.variables(model).items()}
    compacted = Compacted(
        model=small,
        units={names[id(part.link.layer.weights[0])]: (part.kept.size, int(part.kept.sum())) for part in segments},
        num_parameters=(model.count_params(), small.count_params()),
        multiply_adds=(multiply_adds(links), multiply_adds(chain.take_apart(small))),
        input_shape=shape,
        unread=unread,
        inputs=inputs,
    )
    _check(model, compacted)
    return compacted


def multiply_adds(links: Sequence[Link]) -> int:
    """Count the multiply-adds of a chain for one example; unlike `lottery.models`, of frozen layers too."""
    weighted = [link for link in links if link.effect == WEIGHTED]
    return sum(math.prod(link.after[:-1]) * math.prod(link.layer.weights[0].shape) for link in weighted)


def fold_constants(segment: Segment, following: Segment) -> None:
    """Move what the constant units of a segment add into the bias of the next one, and clear what they read."""
    if segment.mixes:
        return
    value, varies = _arriving(segment)
    kernel = following.by_entry()
    num_entries = kernel.shape[1]
    value = value.reshape(-1, num_entries)
    constant = ~varies.reshape(-1, num_entries).any(axis=0)
    # A constant beyond the type of the kernel stays: it cannot be moved into a bias.
    with np.errstate(over="ignore", invalid="ignore"):
        constant &= np.isfinite(value.astype(kernel.dtype)).all(axis=0)
        uniform = np.abs(value - value[0]).max(axis=0) <= _ROUNDING * np.abs(value[0])
    folded = constant & uniform & ((value[0] == 0) | (not _sees_padding(following.link.layer)))
    following.bias[:] += value[0, folded] @ kernel[:, folded].astype(np.float64).sum(axis=0)
    kernel[:, folded] = 0
    # By unit, because a unit has several entries after Flatten. A constant does not depend on what it reads.
    segment.kernel[..., constant.reshape(-1, segment.bias.size).all(axis=0)] = 0


def drop_unread(segment: Segment, following: Segment) -> None:
    """Drop the units of a segment that the next one does not read, and clear what they read themselves."""
    if segment.mixes:
        return
    entries_read = (following.by_entry() != 0).any(axis=(0, 2))
    read = entries_read.reshape(-1, segment.kept.size).any(axis=0)
    segment.kernel[..., ~read] = 0
    read[0] |= not read.any()  # Keras needs one unit
    segment.kept[:] = read


def _arriving(segment: Segment) -> tuple[np.ndarray, np.ndarray]:
    """Return what arrives at the next segment if this one adds only its bias, and which entries may differ from it."""
    made = segment.link
    value = np.broadcast_to(segment.bias, (1, *made.after)).copy()
    activation = getattr(made.layer, "activation", None)
    if activation is not None:
        value = tf.cast(activation(tf.constant(value)), "float64")
    varies = np.broadcast_to((segment.kernel != 0).reshape(-1, segment.bias.size).any(axis=0), made.after)
    for link in segment.following:
        value = chain.at_inference(link, value)
        if graph.class_name(link.layer) == "BatchNormalization" and link.layer.scale:
            varies = varies & (link.layer.get_weights()[0] != 0)
        if link.effect == FLAT:
            varies = varies.reshape(-1)
        elif link.before != link.after:
            varies = np.broadcast_to(varies.reshape(-1, link.before[-1]).any(axis=0), link.after)
    return np.asarray(value), varies


def _sees_padding(layer: Any) -> bool:
    """Check if windows of a convolution may reach over the border, where there are zeros instead of the constant."""
    return getattr(layer, "padding", "valid") != "valid" and math.prod(layer.kernel_size) > 1


def _unread(keras: Any, links: Sequence[Link], segments: Sequence[Segment]) -> np.ndarray:
    """Return True for each entry of an example from which no path of weights leads to an output."""
    # It is a derivative: of the sum of all outputs of a network of the same layers, in which every weight that is not
    # zero is one, every pooling is a mean, and nothing else is left. All terms are positive, so nothing cancels.
    kernels = {id(segment.link.layer): segment.kernel for segment in segments}
    start = tf.ones((1, *links[0].before), "float64")
    with tf.GradientTape() as tape:
        tape.watch(start)
        x = start
        for link in links:
            layer, name = link.layer, graph.class_name(link.layer)
            if link.effect == WEIGHTED:
                paths = chain.copy(layer, dtype="float64", activation="linear", use_bias=False)
                paths.build((1, *link.before))
                paths.set_weights([(kernels[id(layer)] != 0).astype(np.float64)])
                x = paths(x)
            elif link.effect == SPATIAL and "Max" in name:
                mean = chain.copy(layer, getattr(keras.layers, name.replace("Max", "Average")))
                x = chain.at_inference(link._replace(layer=mean), x)
            elif link.effect in (SPATIAL, FLAT):
                x = chain.at_inference(link, x)
            elif name == "Reshape":
                x = tf.reshape(x, (1, *link.after))
            if link.mixes:
                x = tf.ones_like(x) * tf.reduce_sum(x)
        total = tf.reduce_sum(x)
    return np.asarray(tape.gradient(total, start))[0] == 0


def _check(model: Any, compacted: Compacted) -> None:
    """Compare on random inputs, in case a layer behaves in another way than expected."""
    apart = difference(model, compacted, random_examples(model, 4))
    allowed = max(_TOLERANCE.get(layer.compute_dtype, 1e-3) for layer in model.layers)
    if apart > allowed:
        raise LotteryError(
            f"The compacted model does not compute what {model.name!r} computes: outputs on random inputs differ by "
            f"{apart:.2g} of the largest, more than {allowed:g}. Use the masked model, and please report its layers."
        )


def difference(model: Any, compacted: Compacted, inputs: np.ndarray) -> float:
    """Compute the largest difference of an output on inputs of the original model, over its largest output."""
    taken = compacted.select(inputs)
    with evaluating(f"The model {model.name!r} fails on the inputs"):
        before = outputs.evaluate(model, inputs, outputs.batch_size(model), training=False)
        after = outputs.evaluate(compacted.model, taken, training=False)
    return outputs.between(before, after, of=f"the model {model.name!r}")


def random_examples(model: Any, num: int) -> np.ndarray:
    """Make random examples for a chain, which takes any numbers, the same each time."""
    dtype = chain.input_type(model)
    x = np.random.default_rng(0).normal(size=(num, *model.inputs[0].shape[1:]))
    # Below 127, for any type of whole numbers holds that.
    return x.astype(dtype) if "float" in dtype else (np.abs(64 * x) % 127).astype(dtype)
