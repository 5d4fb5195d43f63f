"""The sparse engine: the same training as the compiled loop, over the surviving weights of a dense network alone."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lottery import randomness, weights
from lottery.data import Split, Splits
from lottery.masks import Masks
from lottery.sparse import functions, kernels
from lottery.sparse.reading import Chain
from lottery.training.settings import Train

Logs = Mapping[str, float]


class Engine:
    """A model in compressed form, which takes steps and evaluates; it stands where `training.loop.Loop` stands.

    `take` reads the model's variables, after something has set them; `settle` writes them, before something reads them.

    Args:
        model: A compiled model.
        chain: What `reading.read` found in it.
        data: The arrays to train on.
        settings: The number of examples of a step.
    """

    jit_compile = False

    def __init__(self, model: Any, chain: Chain, data: Splits, settings: Train) -> None:
        import tensorflow as tf

        self.model, self.chain, self._batch_size = model, chain, settings.batch_size
        self._splits = {part: _examples(getattr(data, part), data, chain) for part in ("train", "validation", "test")}
        self._labels, self._scaling = data.test.y, _scaling(data)
        filled = [layer.activation for layer in chain.layers]
        filled += ["linear"] * (kernels.MOST_LAYERS - len(filled))
        activations = [functions.ACTIVATIONS[name] for name in filled]
        self._functions = kernels.Functions(
            tuple(functions.compiled(one.value, functions.OF_VALUE) for one in activations),
            tuple(functions.compiled(one.slope, functions.OF_SLOPE) for one in activations),
            functions.compiled(functions.LOSSES[chain.loss], functions.OF_LOSS),
        )
        self._optimizer = functions.OPTIMIZERS[chain.optimizer]
        self._update = functions.compiled(self._optimizer.update, functions.OF_UPDATE)
        self._rates = _rates(model.optimizer)
        # The sums of loss and accuracy since the last evaluation; a variable, for checkpoints keep those.
        self.sums = tf.Variable(np.zeros(2), trainable=False)
        self.evaluations: Mapping[str, Callable[[], Logs]] = {
            part: lambda part=part: self._evaluated(part)[0] for part in ("validation", "test")
        }

    def take(self, kept: Masks) -> None:
        """Read the weights, the optimizer's slots and its count of steps from the model, under masks."""
        named = weights.variables(self.model)
        shapes = [tuple(named[layer.kernel].shape) for layer in self.chain.layers]
        masks = [
            kept.get(layer.kernel, np.ones(shape, bool)) for layer, shape in zip(self.chain.layers, shapes, strict=True)
        ]
        # By output unit, as the rows of `kernels.Network`.
        self._kept = [np.nonzero(mask.T)[::-1] for mask in masks]
        self._network = _network(self.chain, shapes, self._kept, *self._scaling)
        self._state = tuple(self._packed(variables) for variables in self._variables())
        self._step = int(self.model.optimizer.iterations.numpy())

    def settle(self) -> None:
        """Write the weights, the optimizer's slots and its count of steps into the model."""
        for variables, packed in zip(self._variables(), self._state, strict=True):
            ends = np.cumsum([len(inputs) for inputs, _ in self._kept])
            units = np.split(packed[ends[-1] :], self._network.first[2:-1] - self._network.first[1])
            for (kernel, bias), kept, values, own in zip(
                variables, self._kept, np.split(packed[: ends[-1]], ends[:-1]), units, strict=True
            ):
                if kernel is not None:
                    dense = np.zeros(kernel.shape, np.float32)
                    dense[kept] = values
                    kernel.assign(dense)
                if bias is not None:
                    bias.assign(own)
        self.model.optimizer.iterations.assign(self._step)

    def batches(self, seed: tuple[int, ...], first_step: int = 0) -> Callable[..., tuple[Any, ...]]:
        """Make the function from a number of steps to the arguments of `steps`; see `training.loop.Loop`."""
        following = randomness.batches(len(self._splits["train"].x), self._batch_size, seed, first_step)
        return lambda num_steps, before=0: (following(num_steps), before)

    def steps(self, positions: np.ndarray, before: int) -> Logs:
        """Take a step for each row of positions; return loss and accuracy over these and as many steps before."""
        num_steps = len(positions)
        counts = np.arange(self._step + 1, self._step + num_steps + 1)
        rates = self._rates(counts - 1)
        columns = self._optimizer.numbers(self.model.optimizer, rates, counts.astype(np.float32))
        numbers = np.column_stack([np.broadcast_to(np.float32(column), num_steps) for column in columns])
        found = kernels.train(
            self._network, self._functions, self._update, self._splits["train"], positions, numbers, self._state
        )
        sums = np.array(found) + (self.sums.numpy() if before else 0)
        self.sums.assign(sums)
        self._step += num_steps
        return self._logs(*(sums / (before + num_steps)))

    def classes(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return label and class of each test example; None where the accuracy is not that of one class for each."""
        if self.chain.loss != "sparse_categorical_crossentropy":
            return None
        classes = self._evaluated("test")[1]
        num_classes = self._network.first[-1] - self._network.first[-2]
        kind = np.min_scalar_type(max(int(num_classes) - 1, int(self._labels.max())))
        return self._labels.reshape(-1).astype(kind), classes.astype(kind)

    def _evaluated(self, part: str) -> tuple[Logs, np.ndarray]:
        examples = self._splits[part]
        classes = np.zeros(len(examples.x), np.int64)
        found = kernels.evaluate(self._network, self._functions, examples, self._state[0], classes)
        return self._logs(*found), classes

    def _logs(self, loss: float, accuracy: float) -> Logs:
        return {"loss": loss} | ({"accuracy": accuracy} if self.chain.has_accuracy else {})

    def _variables(self) -> list[list[tuple[Any, Any]]]:
        """List kernel and bias of each layer; then the optimizer's two slots of them. None stands for no variable."""
        named, optimizer = weights.variables(self.model), self.model.optimizer
        own = [(named[layer.kernel], named[layer.bias] if layer.bias else None) for layer in self.chain.layers]
        places = getattr(optimizer, "_trainable_variables_indices", None) or optimizer._index_dict

        def slot(name: str, variable: Any) -> Any:
            slots = getattr(optimizer, name, None) if name and variable is not None else None
            return slots[places[optimizer._var_key(variable)]] if slots else None

        return [
            own,
            *([(slot(name, kernel), slot(name, bias)) for kernel, bias in own] for name in self._optimizer.slots),
        ]

    def _packed(self, variables: list[tuple[Any, Any]]) -> np.ndarray:
        """Put the entries that are kept into a row, and then a number for each unit."""
        units = np.diff(self._network.first[1:])
        parts = [
            np.zeros(len(kept[0])) if kernel is None else np.array(kernel.numpy())[kept]
            for (kernel, _), kept in zip(variables, self._kept, strict=True)
        ]
        parts += [
            np.zeros(num) if bias is None else np.array(bias.numpy())
            for (_, bias), num in zip(variables, units, strict=True)
        ]
        return np.concatenate(parts).astype(np.float32)


def _scaling(data: Splits) -> tuple[np.ndarray, np.ndarray]:
    """Return what is taken off each feature of an example, and by what the rest is divided."""
    shape = data.train.x.shape[1:]
    if data.train.x.dtype != np.uint8:
        return np.zeros(int(np.prod(shape)), np.float32), np.ones(int(np.prod(shape)), np.float32)
    each = (np.broadcast_to(np.asarray(one, np.float32), shape) for one in (data.mean, data.standard_deviation))
    mean, deviation = (np.ascontiguousarray(one).reshape(-1) for one in each)
    return mean, deviation


def _examples(split: Split, data: Splits, chain: Chain) -> kernels.Examples:
    x = np.ascontiguousarray(split.x).reshape(len(split.x), -1)
    norms = np.ones(len(x), np.float32)
    if x.dtype == np.uint8 and data.unit_norm:
        for start in range(0, len(x), 1000):
            scaled = (x[start : start + 1000].astype(np.float32) - _scaling(data)[0]) / _scaling(data)[1]
            norms[start : start + 1000] = np.linalg.norm(scaled, axis=1)
        norms[norms == 0] = np.inf  # an image that is zero everywhere stays so
    targets = np.ascontiguousarray(split.y, np.float32).reshape(len(x), -1)
    return kernels.Examples(x if x.dtype == np.uint8 else x.astype(np.float32, copy=False), norms, targets)


def _network(
    chain: Chain, shapes: list[tuple[int, ...]], kept: list[Any], mean: np.ndarray, deviation: np.ndarray
) -> kernels.Network:
    reads = np.unique(kept[0][0])
    first = np.cumsum([0, len(reads), *(units for _, units in shapes)])
    sources = [np.searchsorted(reads, kept[0][0]), *(inputs for inputs, _ in kept[1:])]
    sources = np.concatenate([place + start for place, start in zip(sources, first, strict=False)])
    counts = [np.bincount(outputs, minlength=units) for (_, outputs), (_, units) in zip(kept, shapes, strict=True)]
    return kernels.Network(
        first=first,
        begin=np.concatenate([[0], np.cumsum(np.concatenate(counts))]),
        sources=sources.astype(np.int32),
        reads=reads,
        mean=mean[reads],
        deviation=deviation[reads],
        penalties=np.array([[layer.l1, layer.l2, layer.bias is not None] for layer in chain.layers], np.float32),
        threshold=np.float32(chain.threshold),
    )


def _rates(optimizer: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Make the function from counts of steps to the learning rates there."""
    import tensorflow as tf

    own = optimizer._learning_rate
    if not callable(own) or hasattr(own, "assign"):
        return lambda steps: np.full(len(steps), np.float32(own.numpy()))
    each = tf.function(lambda steps: tf.map_fn(lambda step: tf.cast(own(step), tf.float32), steps, tf.float32))
    return lambda steps: each(tf.constant(steps, optimizer.iterations.dtype)).numpy()
