"""The sparse engine: the same training as the compiled loop, over the surviving weights of a network alone."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from lottery import masks, randomness, weights
from lottery.data import Split, Splits
from lottery.masks import Masks
from lottery.models import optimizers
from lottery.sparse import kernels
from lottery.sparse.packing import Packer, Packing
from lottery.sparse.reading import Network, Normalisation

Logs = Mapping[str, float]
# From a number of steps to row, column and flip of each example of each: int32, (steps, examples, 3), or (steps, 0, 3).
Crops = Callable[[int], np.ndarray]


class Engine:
    """A model in compressed form, an `engine_choice.Engine` of `lottery.training`.

    `begin` reads the model's variables, after something has set them; `finish` writes them, before something reads
    them.

    Args:
        model: A compiled model, whose optimizer has its slots.
        network: What `reading.read` found in it.
        data: The arrays to train on; labels are those of the model's outputs.
        batch_size: The number of examples of a step.
        longest: The most steps of one call.
        crops: Makes, from seed words and a first step, the function that draws how training images are augmented; None
            if they are not.
        margin: The rows and columns of zeros around an image that is cropped.
    """

    def __init__(
        self,
        model: Any,
        network: Network,
        data: Splits,
        batch_size: int,
        longest: int,
        crops: Callable[[tuple[int, ...], int], Crops] | None = None,
        margin: int = 0,
    ) -> None:
        import tensorflow as tf

        self.model, self.network, self.longest, self._batch_size = model, network, longest, batch_size
        self._crops, self._packer = crops or _no_crops, Packer(network, batch_size)
        self._splits = {
            part: self._examples(getattr(data, part), data, margin) for part in ("train", "validation", "test")
        }
        self._labels = data.test.y
        self._optimizer = kernels.OPTIMIZERS[network.optimizer]
        self._rates = _rates(model.optimizer)
        # The sums of loss and accuracy since the last evaluation; a variable, for checkpoints keep those.
        self._sums = tf.Variable(tf.zeros(2, tf.float64), trainable=False)
        self.own = {"sparse/sums": self._sums}
        self._following: Callable[[int], np.ndarray] | None = None
        self._drawn: Crops = _no_crops((), 0)
        self._predicted: np.ndarray | None = None  # the class of each test example, until the weights change
        # What does not depend on masks is made once: it is large, and the pages of new memory are slow to touch.
        self._values = [_aligned(self._packer.size) for _ in range(2)]

    def begin(self, kept: Masks, seed: tuple[int, ...] | None = None, step: int = 0) -> None:
        """Read the weights, the optimizer's slots and its count of steps from the model, under masks."""
        self._predicted = None
        # Without a seed, a network is only evaluated, or its masks change within a training, whose batches go on.
        if seed is not None:
            num_examples = len(self._splits["train"].x)
            self._following = randomness.batches(num_examples, self._batch_size, seed, step)
            self._drawn = self._crops(seed, step)
        named, linear = weights.variables(self.model), self.network.linear
        normalised = [operation for operation in self.network.operations if isinstance(operation, Normalisation)]
        self._shapes = {name: tuple(variable.shape) for name, variable in named.items()}
        # The parameters, by variable: the entries of kernels that are left, then everything else that is trained.
        entries = {layer.kernel: np.flatnonzero(kept.get(layer.kernel, np.ones(layer.shape, bool))) for layer in linear}
        others = [layer.bias for layer in linear]
        others += [name for layer in normalised for name in (layer.gamma, layer.beta)]
        entries |= self._whole(others)
        # Masks decide where each weight lies and what reads it, so this is made anew for each network.
        self._layout = Packing(self._packer, entries).layout()
        # For each row of the state, the entries that it has, and of which variables; None stands for no variable.
        means = self._whole(layer.mean for layer in normalised)
        variances = self._whole(layer.variance for layer in normalised)
        self._rows = [(row, [named[name] for name in row]) for row in (entries, means, variances)]
        for slot in self._optimizer.slots:
            slots = [optimizers.slot(self.model.optimizer, slot, named[name]) for name in entries]
            self._rows.append((entries, slots))
        self._state = kernels.State(*(_packed(*row) for row in self._rows))
        self._memory = self._new_memory()
        self._step = int(self.model.optimizer.iterations.numpy())

    def finish(self) -> None:
        """Write the weights, the optimizer's slots and its count of steps into the model."""
        for row, (_, variables) in enumerate(self._rows):
            for variable, value in zip(variables, self._unpacked(row).values(), strict=True):
                if variable is not None:
                    variable.assign(value)
        self.model.optimizer.iterations.assign(self._step)

    def state(self) -> dict[str, np.ndarray]:
        """Return every variable of the model by name, as `finish` would write it."""
        found = self._unpacked(0) | self._unpacked(1) | self._unpacked(2)  # others are slots
        return {name: found[name] for name in weights.variables(self.model)}

    def evaluate(self, split: str) -> Logs:
        """Return loss and accuracy over every example of a split."""
        logs, classes = self._evaluated(split)
        if split == "test":
            self._predicted = classes
        return logs

    def change(self, before: Masks, kept: Masks) -> None:
        """Continue under other masks: write the model, change it there, and read it again."""
        self.finish()
        weights.assign(self.model, masks.apply(weights.read_state(self.model), kept))
        in_both = {name: mask & before[name] for name, mask in kept.items()}
        optimizers.clear_slots(self.model.optimizer, weights.variables(self.model), in_both)
        self.begin(kept)

    def advance(self, num_steps: int, before: int = 0) -> Logs:
        """Take steps; return loss and accuracy over these and as many steps before."""
        assert self._following is not None, "begin was called without a seed"
        self._predicted = None
        positions = self._following(num_steps)
        counts = np.arange(self._step + 1, self._step + len(positions) + 1)
        own = self.model.optimizer
        rates = self._rates(counts - 1)
        decay = rates * np.float32(own.weight_decay or 0)
        columns = [decay, *self._optimizer.numbers(own, rates, counts.astype(np.float32))]
        numbers = np.column_stack([np.broadcast_to(np.float32(column), len(positions)) for column in columns])
        # The kernels continue these sums. Adding up sums of parts would round otherwise after a training was resumed.
        sums = self._sums.numpy() if before else np.zeros(2)
        batches = kernels.Batches(positions, self._drawn(len(positions)), numbers)
        self._compute("train", batches, sums, np.zeros(0, np.int64))
        self._sums.assign(sums)
        self._step += len(positions)
        return self._logs(*(sums / (before + len(positions))))

    def classes(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return label and class of each test example; None where the accuracy is not that of one class for each."""
        if self.network.loss != "sparse_categorical_crossentropy":
            return None
        # The smallest type that holds every class: each network stores one of these for each test example.
        kind = np.min_scalar_type(self.model.output_shape[-1] - 1)
        if self._predicted is None:
            self._predicted = self._evaluated("test")[1]
        return self._labels.reshape(-1).astype(kind), self._predicted.astype(kind)

    def _evaluated(self, part: str) -> tuple[Logs, np.ndarray]:
        num, num_lanes = len(self._splits[part].x), self._packer.num_blocks * kernels.WIDTH
        # The last batch is filled up with -1, and lanes without an example count for nothing.
        positions = np.full((-(-num // num_lanes), num_lanes), -1, np.int32)
        positions.reshape(-1)[:num] = np.arange(num)
        # Without rows of the optimizer's numbers, no step is taken.
        batches = kernels.Batches(positions, _no_crops((), 0)(len(positions)), np.empty((0, 1), np.float32))
        sums, classes = np.zeros(2), np.zeros(num, np.int64)
        penalty = self._compute(part, batches, sums, classes)
        loss, right = sums
        return self._logs(loss / num + penalty, right / num), classes

    def _compute(self, part: str, batches: kernels.Batches, sums: np.ndarray, classes: np.ndarray) -> float:
        return kernels.compute(self._layout, self._memory, self._state, self._splits[part], batches, sums, classes)

    def _logs(self, loss: float, accuracy: float) -> Logs:
        logs = {"loss": float(loss)}
        if self.network.has_accuracy:
            logs["accuracy"] = float(accuracy)
        return logs

    def _whole(self, names: Iterable[str | None]) -> dict[str, np.ndarray]:
        """Return all entries of variables, where there are any."""
        return {name: np.arange(np.prod(self._shapes[name], dtype=int)) for name in names if name is not None}

    def _unpacked(self, row: int) -> dict[str, np.ndarray]:
        """Return whole arrays for a row of the state, by variable; entries that are masked are zero."""
        found, first = {}, 0
        for name, left in self._rows[row][0].items():
            value = np.zeros(np.prod(self._shapes[name], dtype=int), np.float32)
            value[left] = self._state[row][first : first + len(left)]
            found[name], first = value.reshape(self._shapes[name]), first + len(left)
        return found

    def _new_memory(self) -> kernels.Memory:
        layout, (a, d) = self._layout, self._values
        num_targets = self._splits["train"].targets.shape[1]
        return kernels.Memory(
            a=a,
            d=d,
            values=np.zeros(len(layout.offsets), np.float32),
            cells=_aligned(layout.num_cells),
            channels=np.zeros((layout.num_channels, kernels.NUM_SUMS)),
            lanes=_aligned(2 * kernels.WIDTH),
            targets=np.zeros((self._packer.num_blocks, num_targets, kernels.WIDTH), np.float32),
            gradients=np.zeros_like(self._state.parameters),
        )

    def _examples(self, split: Split, data: Splits, margin: int) -> kernels.Examples:
        shape, x = data.train.x.shape[1:], split.x.reshape(len(split.x), -1)
        height, width, channels = (*shape, 1, 1, 1)[:3]  # of a vector each entry is a row
        # Bytes stay bytes, a quarter of the memory, and are standardised as they are read.
        mean, deviation = (data.mean, data.standard_deviation) if x.dtype == np.uint8 else (0, 1)
        mean = np.full(shape, mean, np.float32).ravel()
        factor = np.float32(1) / np.full(shape, deviation, np.float32).ravel()
        scale = np.ones(len(split.x), np.float32)
        # In parts: all pixels as floats would take four times the memory of the bytes.
        if x.dtype == np.uint8 and data.unit_norm:
            for start in range(0, len(x), 1000):
                part = (x[start : start + 1000].astype(np.float32) - mean) * factor
                norms = np.linalg.norm(part, axis=1)
                scale[start : start + 1000] = np.divide(1, norms, where=norms > 0, out=np.zeros_like(norms))
        x = x if x.dtype == np.uint8 else x.astype(np.float32, copy=False)
        targets = np.ascontiguousarray(split.y.reshape(len(x), -1), np.float32)
        if self.network.loss == "sparse_categorical_crossentropy":
            targets = (targets == np.arange(self.model.output_shape[-1])).astype(np.float32)
        x = np.ascontiguousarray(x)
        return kernels.Examples(x, mean, factor, scale, targets, margin, height, width, channels)


def _packed(entries: Mapping[str, np.ndarray], variables: Iterable[Any]) -> np.ndarray:
    """Put the entries that are left of variables into a row; zeros, where there is no variable."""
    parts = [
        np.zeros(len(left)) if variable is None else variable.numpy().reshape(-1)[left]
        for variable, left in zip(variables, entries.values(), strict=True)
    ]
    return np.concatenate([np.zeros(0), *parts]).astype(np.float32)


def _no_crops(seed: tuple[int, ...], step: int) -> Crops:
    return lambda num_steps: np.empty((num_steps, 0, 3), np.int32)


def _aligned(size: int) -> np.ndarray:
    """Make zeros that begin where a line of the cache begins: a vector across two lines takes twice as long to read."""
    line = 64 // 4
    found = np.zeros(size + line, np.float32)
    first = -(found.ctypes.data // 4) % line
    return found[first : first + size]


def _rates(optimizer: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Make the function from counts of steps to the learning rates there."""
    import tensorflow as tf

    rate = optimizers.rate(optimizer)
    if hasattr(rate, "assign"):
        return lambda steps: np.full(len(steps), np.float32(rate.numpy()))

    # By TensorFlow, as in the compiled loop: NumPy rounds powers and cosines otherwise.
    @tf.function(autograph=False)
    def of_steps(steps: Any) -> Any:
        return tf.map_fn(lambda step: tf.cast(rate(step), tf.float32), steps, tf.float32)

    return lambda steps: of_steps(tf.constant(steps, optimizer.iterations.dtype)).numpy()
