"""The sparse engine: the same training as the compiled loop, over the surviving weights of a dense network alone."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lottery import masks, randomness, weights
from lottery.data import Split, Splits
from lottery.masks import Masks
from lottery.models import optimizers
from lottery.sparse import kernels
from lottery.sparse.reading import Chain

Logs = Mapping[str, float]


class Engine:
    """A model in compressed form, an `engines.Engine` of `lottery.training`.

    `begin` reads the model's variables, after something has set them; `finish` writes them, before something reads
    them.

    Args:
        model: A compiled model, whose optimizer has its slots.
        chain: What `reading.read` found in it.
        data: The arrays to train on; labels are those of the model's outputs.
        batch_size: The number of examples of a step.
        longest: The most steps of one call.
    """

    def __init__(self, model: Any, chain: Chain, data: Splits, batch_size: int, longest: int) -> None:
        import tensorflow as tf

        self.model, self.chain, self.longest, self._batch_size = model, chain, longest, batch_size
        self._mean, self._scale = _scaling(data)
        self._splits = {
            part: self._examples(getattr(data, part), data.unit_norm) for part in ("train", "validation", "test")
        }
        self._labels = data.test.y
        self._optimizer = kernels.OPTIMIZERS[chain.optimizer]
        self._rates = _rates(model.optimizer)
        # The sums of loss and accuracy since the last evaluation; a variable, for checkpoints keep those.
        self._sums = tf.Variable(tf.zeros(2, tf.float64), trainable=False)
        self.own = {"sparse/sums": self._sums}
        self._following: Callable[[int], np.ndarray] | None = None

    def begin(self, kept: Masks, seed: tuple[int, ...] | None = None, step: int = 0) -> None:
        """Read the weights, the optimizer's slots and its count of steps from the model, under masks."""
        if seed is not None:
            num_examples = len(self._splits["train"].x)
            self._following = randomness.batches(num_examples, self._batch_size, seed, step)
        layers = self.chain.layers
        named = weights.variables(self.model)
        of_layers = [kept.get(layer.kernel, np.ones(named[layer.kernel].shape, bool)) for layer in layers]
        # By output unit, as the rows of `kernels.Layout`.
        entries = [np.nonzero(mask.T)[::-1] for mask in of_layers]
        self._network = self._compressed(entries, [mask.shape for mask in of_layers])
        # What of each variable is in the state: the kept entries of a kernel, and all of a bias.
        self._entries = [*entries, *(slice(None) for _ in of_layers)]
        self._shapes = [*(mask.shape for mask in of_layers), *(mask.shape[1:] for mask in of_layers)]
        sizes = [*(len(inputs) for inputs, _ in entries), *(mask.shape[1] for mask in of_layers)]
        self._ends, self._state = np.cumsum(sizes), []
        for variables in self._variables():
            parts = [
                np.zeros(size) if variable is None else variable.numpy()[entries]
                for variable, entries, size in zip(variables, self._entries, sizes, strict=True)
            ]
            self._state.append(np.concatenate(parts).astype(np.float32))
        self._step = int(self.model.optimizer.iterations.numpy())

    def finish(self) -> None:
        """Write the weights, the optimizer's slots and its count of steps into the model."""
        for variables, packed in zip(self._variables(), self._state, strict=True):
            for variable, value in zip(variables, self._dense(packed), strict=True):
                if variable is not None:
                    variable.assign(value)
        self.model.optimizer.iterations.assign(self._step)

    def state(self) -> dict[str, np.ndarray]:
        """Return every variable of the model by name, as `finish` would write it."""
        layers = self.chain.layers
        names = [*(layer.kernel for layer in layers), *(layer.bias for layer in layers)]
        found = dict(zip(names, self._dense(self._state[0]), strict=True))
        return {name: found[name] for name in weights.variables(self.model)}

    def evaluate(self, split: str) -> Logs:
        """Return loss and accuracy over every example of a split."""
        return self._evaluated(split)[0]

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
        positions = self._following(num_steps)
        counts = np.arange(self._step + 1, self._step + len(positions) + 1)
        own = self.model.optimizer
        rates = self._rates(counts - 1)
        decay = rates * np.float32(own.weight_decay or 0)
        columns = [decay, *self._optimizer.numbers(own, rates, counts.astype(np.float32))]
        numbers = np.column_stack([np.broadcast_to(np.float32(column), len(positions)) for column in columns])
        sums = self._sums.numpy() if before else np.zeros(2)
        kernels.train(self._network, self._splits["train"], positions, numbers, sums, tuple(self._state))
        self._sums.assign(sums)
        self._step += len(positions)
        return self._logs(*(sums / (before + len(positions))))

    def classes(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return label and class of each test example; None where the accuracy is not that of one class for each."""
        if self.chain.loss != "sparse_categorical_crossentropy":
            return None
        kind = np.min_scalar_type(self._network.first[-1] - self._network.first[-2] - 1)
        return self._labels.reshape(-1).astype(kind), self._evaluated("test")[1].astype(kind)

    def _evaluated(self, part: str) -> tuple[Logs, np.ndarray]:
        examples = self._splits[part]
        classes = np.zeros(len(examples.x), np.int64)
        return self._logs(*kernels.evaluate(self._network, examples, self._state[0], classes)), classes

    def _logs(self, loss: float, accuracy: float) -> Logs:
        return {"loss": loss, "accuracy": accuracy} if self.chain.has_accuracy else {"loss": loss}

    def _dense(self, packed: np.ndarray) -> list[np.ndarray]:
        values = [np.zeros(shape, np.float32) for shape in self._shapes]
        for value, entries, kept in zip(values, self._entries, np.split(packed, self._ends[:-1]), strict=True):
            value[entries] = kept
        return values

    def _variables(self) -> list[list[Any]]:
        """List the kernels and then the biases; then the optimizer's two slots of each. None stands for no variable."""
        named, optimizer, layers = weights.variables(self.model), self.model.optimizer, self.chain.layers
        own = [named[layer.kernel] for layer in layers]
        own += [None if layer.bias is None else named[layer.bias] for layer in layers]
        slots = [[optimizers.slot(optimizer, name, variable) for variable in own] for name in self._optimizer.slots]
        return [own, *slots]

    def _compressed(self, entries: list[Any], shapes: list[tuple[int, ...]]) -> kernels.Layout:
        layers = self.chain.layers
        reads = np.unique(entries[0][0])
        first = np.cumsum([0, len(reads), *(units for _, units in shapes)])
        sources = [np.searchsorted(reads, entries[0][0]), *(inputs for inputs, _ in entries[1:])]
        counts = [
            np.bincount(outputs, minlength=units) for (_, outputs), (_, units) in zip(entries, shapes, strict=True)
        ]
        return kernels.Layout(
            first=first,
            begin=np.cumsum(np.concatenate([[0], *counts])),
            sources=np.concatenate([own + start for own, start in zip(sources, first, strict=False)]).astype(np.int32),
            reads=reads,
            mean=self._mean[reads],
            scale=self._scale[reads],
            penalties=np.array([[layer.l1, layer.l2, layer.bias is not None] for layer in layers], np.float32),
            activations=np.array([[*kernels.ACTIVATIONS].index(layer.activation) for layer in layers]),
            loss=[*kernels.LOSSES].index(self.chain.loss),
            threshold=self.chain.threshold,
            update=[*kernels.OPTIMIZERS].index(self.chain.optimizer),
        )

    def _examples(self, split: Split, unit_norm: bool) -> kernels.Examples:
        x = split.x.reshape(len(split.x), -1)
        scale = np.ones(len(split.x), np.float32)
        # In parts: all pixels as floats would take four times the memory of the bytes.
        if x.dtype == np.uint8 and unit_norm:
            for start in range(0, len(x), 1000):
                part = (x[start : start + 1000].astype(np.float32) - self._mean) * self._scale
                norms = np.linalg.norm(part, axis=1)
                scale[start : start + 1000] = np.divide(1, norms, where=norms > 0, out=np.zeros_like(norms))
        x = x if x.dtype == np.uint8 else x.astype(np.float32, copy=False)
        targets = np.ascontiguousarray(split.y.reshape(len(x), -1), np.float32)
        if self.chain.loss == "sparse_categorical_crossentropy":
            targets = (targets == np.arange(self.model.output_shape[-1])).astype(np.float32)
        return kernels.Examples(np.ascontiguousarray(x), scale, targets)


def _scaling(data: Splits) -> tuple[np.ndarray, np.ndarray]:
    """Return what is taken off each feature of an example, and by what the rest is multiplied."""
    mean, deviation = (data.mean, data.standard_deviation) if data.train.x.dtype == np.uint8 else (0, 1)
    shape = data.train.x.shape[1:]
    means = np.broadcast_to(np.asarray(mean, np.float32), shape).ravel()
    deviations = np.broadcast_to(np.asarray(deviation, np.float32), shape).ravel()
    return means, np.float32(1) / deviations


def _rates(optimizer: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Make the function from counts of steps to the learning rates there."""
    import tensorflow as tf

    rate = optimizers.rate(optimizer)
    if hasattr(rate, "assign"):
        return lambda steps: np.full(len(steps), np.float32(rate.numpy()))
    of_steps = tf.function(lambda steps: tf.map_fn(lambda step: tf.cast(rate(step), tf.float32), steps, tf.float32))
    return lambda steps: of_steps(tf.constant(steps, optimizer.iterations.dtype)).numpy()
