"""Which engine trains a network: the compiled loop, or the sparse engine where few weights are left."""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from lottery import weights
from lottery.data import Splits, Streams
from lottery.errors import LotteryError
from lottery.masks import Masks, Weights
from lottery.models import multiply_adds
from lottery.models.kerases import num_threads, tf
from lottery.sparse import reading
from lottery.sparse.reading import Network, Obstacle
from lottery.training import mirrored
from lottery.training.records import Classes, Logs
from lottery.training.settings import Train


class Engine(Protocol):
    """The only door to optimizer steps: `loop.Loop`, or the sparse engine, whose cost falls with the density.

    Attributes:
        longest: The most steps that one call of `advance` may take.
        own: Variables, besides the model's and those of a step's trace, that a checkpoint must keep.
    """

    longest: int
    own: Mapping[str, Any]

    def begin(self, kept: Masks, seed: tuple[int, ...] | None = None, step: int = 0) -> None:
        """Take the model over as it is, under masks, at the batch after a step; without a seed, to evaluate it only."""

    def advance(self, num_steps: int, before: int = 0) -> Logs:
        """Take steps, and return loss and accuracy over these and as many steps before; 0 starts anew."""
        ...

    def evaluate(self, split: str) -> Logs:
        """Return loss and accuracy over every example of the split ``"validation"`` or ``"test"``."""
        ...

    def classes(self) -> Classes | None:
        """Return label and predicted class of each test example; None where the accuracy is not that of one class."""

    def change(self, before: Masks, kept: Masks) -> None:
        """Continue under other masks: entries that they add start at zero, with slots of the optimizer at zero."""

    def state(self) -> dict[str, np.ndarray]:
        """Return every variable of the model by name, as it would be after `finish`."""
        ...

    def finish(self) -> None:
        """Let the model's variables be those after the last step."""


class Limits(NamedTuple):
    """When the sparse engine trains a network, and how far it may be from the compiled loop."""

    # With at most this share of its multiply-adds, a network trains faster; docs/speed.md has the measurement. A count,
    # and never a timing, decides: the bits of a run must not depend on how busy a machine is.
    share: float
    # On one thread it may have so many more for each value that is normalised: batch normalisation is faster here, too.
    # On several threads, the compiled loop uses them all.
    of_normalised: int
    # Both engines take so many first steps, and weights may end so far apart, as a share of their way. A sum in another
    # order rounds differently, and an input within rounding of a relu's corner sends some weights another way. That
    # does not move the median of any variable.
    num_compared: int
    difference: float


OF_VECTORS = Limits(0.3, 0, 10, 0.01)
# A deep network of convolutions has millions of such corners, and each step multiplies what they do: ResNet-20's scales
# are 1.5 % of their way apart after a step, and 70 % after ten. With tanh in place of relu it is 0.004 %.
OF_IMAGES = Limits(0.6, 80, 1, 0.05)

# A training of fewer multiply-adds, forward and with all weights, ends within a second as it is.
LEAST_WORK = 2 * 10**9


def read(
    model: Any, data: Splits | Streams, settings: Train, augment: Collection[str], obstacle: str | None
) -> Network | Obstacle:
    """Return what the sparse engine trains, or why it does not, or would not gain; the model is not enforced yet.

    `obstacle` is what else keeps the model from it. If ``train.engine`` demands the engine, this is a `LotteryError`.
    """
    if settings.engine == "compiled":
        return Obstacle('train.engine is "compiled"')
    is_free = settings.engine == "auto"  # to leave the network to the compiled loop
    try:
        if obstacle:
            raise Obstacle(obstacle)
        if is_free and tf.config.list_physical_devices("GPU"):
            raise Obstacle("the compiled loop trains on a GPU")
        if mirrored.strategy_of(model) is not None:
            raise Obstacle("the model is mirrored on devices")
        if not isinstance(data, Splits):
            raise Obstacle("the data are a tf.data.Dataset")
        if augment and data.unit_norm:
            raise Obstacle("each augmented image is scaled by its own length")
        reading.calls(model)
        costs = multiply_adds.per_entry(model)
        work = sum(math.prod(value.shape) * (costs[name] or 0) for name, value in weights.prunable(model).items())
        work *= settings.batch_size * settings.num_steps
        if is_free and work < LEAST_WORK:
            raise Obstacle(f"a training of {work:,} multiply-adds is too short to gain: {LEAST_WORK:,} are needed")
        network = reading.read(model)
        _check_data(network, data, model.output_shape[-1])
        return network
    except Obstacle as why:
        if is_free:
            return why
        raise LotteryError(f'train.engine must be "auto" or "compiled", not "sparse": {why}.') from why


def _check_data(network: Network, data: Splits, num_outputs: int) -> None:
    """Raise `Obstacle` if the sparse engine cannot train a network on these arrays."""
    of_classes = network.loss == "sparse_categorical_crossentropy"
    num_targets = 1 if of_classes else num_outputs
    for split in (data.train, data.validation, data.test):
        x, y = split.x, split.y.reshape(len(split.y), -1)
        if x.dtype not in (np.uint8, np.float32, np.float64) or y.dtype.kind not in "biuf":
            raise Obstacle(f"the examples are of type {x.dtype}, their targets of type {y.dtype}")
        if y.shape[1] != num_targets:
            raise Obstacle(f"an example has {y.shape[1]} targets, and the network {num_outputs} outputs")
        if of_classes and y.dtype.kind == "f" and (y != np.floor(y)).any():
            raise Obstacle("some labels are not whole numbers")
        if of_classes and (y.min() < 0 or y.max() >= num_outputs):
            raise Obstacle(f"labels go from {y.min()} to {y.max()}, and the network has {num_outputs} outputs")


def choose(network: Network | Obstacle, settings: Train, kept: Masks) -> tuple[str, str]:
    """Choose the engine for a network with these masks; return its name and the reason."""
    if isinstance(network, Obstacle):
        return "compiled", str(network)
    if settings.engine == "sparse":
        return "sparse", 'train.engine is "sparse"'
    left = total = 0
    for layer in network.linear:
        size = math.prod(layer.shape)
        total += size * layer.positions
        left += (int(kept[layer.kernel].sum()) if layer.kernel in kept else size) * layer.positions
    share, of_normalised, *_ = limits(network)
    if num_threads() == 1:
        share += of_normalised * network.num_normalised / total
    share = min(share, 0.99)  # whether a dense network gains depends on the processor
    counted = f"{left:,} of {total:,} multiply-adds are left"
    if left / total <= share:
        return "sparse", f"{counted}, not more than {share:.0%}"
    return "compiled", f"{counted}, more than {share:.0%}"


def limits(network: Network) -> Limits:
    """Return the limits of a network, by whether it has convolutions."""
    return OF_IMAGES if network.of_images else OF_VECTORS


def difference(
    start: Weights,
    expected: Weights,
    received: Weights,
    num_steps: int,
    largest_share: float,
    left_out: Collection[str] = (),
) -> float:
    """Compute the largest difference of a weight, where the compiled loop and the sparse engine end.

    Those `left_out` go any way, and need not agree. Raises `LotteryError` if the training diverges, or the median
    difference of a variable, as a share of its median way from the start, is more than rounding.
    """
    largest = 0.0
    for name, value in expected.items():
        if not np.isfinite(value).all():
            raise LotteryError("The weights are not finite after the first steps; try a lower learning rate.")
        apart = abs(np.float64(value) - received[name])
        way = abs(np.float64(value) - start[name])
        # Masked entries stay where they are, and would pull the medians to 0.
        moved = (apart > 0) | (way > 0)
        if name in left_out or not moved.any():
            continue
        median, of_way = np.median(apart[moved]), np.median(way[moved])
        if not median <= largest_share * of_way:  # of NaN, too
            raise LotteryError(
                f"The sparse engine does not agree with the compiled loop: after {num_steps} steps, the weights of "
                f"{name} have moved by {of_way:.2g} and differ by {median:.2g} (medians). Please report this model, "
                'and train it with train.engine = "compiled".'
            )
        largest = max(largest, float(apart.max()))
    return largest


def is_compiled() -> bool:
    """Check if numba keeps the compiled sparse engine on this machine, perhaps of an earlier version of it."""
    from lottery.sparse import kernels

    compute: Any = kernels.compute
    # Between the function's name and the ending numba writes its first line and the version of Python.
    return any(Path(compute.stats.cache_path).glob("kernels.compute-*.nbi"))
