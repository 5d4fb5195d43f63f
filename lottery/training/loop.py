"""Keras' own steps, many in one graph, with what they report added up so that bits do not depend on the cut."""

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lottery import randomness, weights
from lottery.data import Split, Splits, Streams
from lottery.errors import LotteryError
from lottery.masks import Masks
from lottery.models import graph, optimizers
from lottery.models.kerases import is_keras
from lottery.training import augmentation, compiling, mirrored
from lottery.training.compiling import Examined
from lottery.training.settings import Train

Logs = Mapping[str, Any]
Classes = tuple[np.ndarray, np.ndarray]  # the label and the predicted class of each example, of an unsigned type

EVALUATION_BATCH = 1000
NUM_EXAMPLES = 8  # in the batch on which a model is examined, unless the model fixes the size of its batches

LONGEST_CALL = 250  # steps of one call of the compiled steps


@dataclass
class Loop:
    """The compiled loop, an `engines.Engine`: steps and evaluations of a model, whose variables are their state."""

    model: Any
    # Takes what `batches` returns, trains the model, returns its report.
    steps: Any
    # From seed words and a first step to a function. That takes a number of steps, and how many steps before them the
    # report is to include, and returns the arguments of `steps`.
    batches: Callable[..., Callable[..., tuple[Any, ...]]]
    evaluations: Mapping[str, Callable[[], Logs]]  # by split, the model's report over every example
    classes: Callable[[], Classes | None]  # of the test examples; see `classifier`
    examined: Examined
    longest: int  # the most steps that one call of `steps` may take; a shorter call needs no other trace
    jit_compile: bool
    own: Mapping[str, Any] = field(default_factory=dict)  # variables for checkpoints that no trace knows

    _following: Callable[..., tuple[Any, ...]] | None = None  # what `batches` has made for this training

    def begin(self, kept: Masks, seed: tuple[int, ...] | None = None, step: int = 0) -> None:
        """Begin with the model's variables as they are, at the batch that follows a step."""
        self._following = self.batches(seed, step) if seed is not None else None

    def advance(self, num_steps: int, before: int = 0) -> Logs:
        """Take steps, and return the model's report over these and as many steps before."""
        assert self._following is not None, "begin was called without a seed"
        return self.steps(*self._following(num_steps, before))

    def evaluate(self, split: str) -> Logs:
        """Return the model's report over every example of a split."""
        return self.evaluations[split]()

    def change(self, before: Masks, kept: Masks) -> None:
        """Continue under other masks."""
        optimizers.continue_under(self.model, before, kept)

    def finish(self) -> None:
        """Do nothing: the model's variables are those after the last step."""

    def state(self) -> dict[str, np.ndarray]:
        """Return every variable of the model by name."""
        return weights.read_state(self.model)


def compile_loop(
    model: Any,
    data: Splits | Streams,
    settings: Train,
    augment: Collection[str] = (),
    end_of_step: Callable[[Any, Logs], None] = lambda index, logs: None,
) -> Loop:
    """Make the compiled training and evaluation of a model; arguments as for `trainer.Trainer`.

    Nothing is traced before the first step. Whatever enforces masks must be active by then: a constraint that is set
    later is not in the trace. `end_of_step` is called in the graph after each step, with its number and its report.
    """
    import tensorflow as tf

    strategy = mirrored.strategy_of(model)
    if strategy is not None:
        _check_mirrored(model, data, settings)
        mirrored.skip_together(model)
    examined = compiling.examine(model, example_batch(data, model))
    if settings.jit_compile is True and examined.calls_python:
        raise LotteryError("train.jit_compile: a training step of this model calls Python, which XLA cannot compile.")
    gains = strategy is None and gains_from_xla(model) and not examined.calls_python
    jit = gains if settings.jit_compile == "auto" else bool(settings.jit_compile)
    longest = min(LONGEST_CALL, settings.eval_every, settings.num_steps)

    repeat = _repeater(model, examined.train_logs)
    # XLA cannot compile the iterator of a data set, so there each step is compiled by itself.
    compiled = tf.function(model.train_step, jit_compile=True) if jit and isinstance(data, Streams) else None

    def train(batch: Callable[[Any], Any], num_steps: Any, before: Any) -> Logs:
        def take(index: Any) -> Logs:
            def step(share: Any) -> Logs:
                logs = (compiled or model.train_step)(share)
                end_of_step(index, logs)
                return logs

            logs = mirrored.run(model, step, batch(index), examined.train_logs)
            mirrored.settle(model)
            return logs

        return repeat(take, num_steps, before)

    if isinstance(data, Splits):
        if augment:
            augmentation.check(data.train.x.shape[1:])
        steps, batches = _steps_over_arrays(train, data, settings.batch_size, longest, jit, augment)
    elif augment:
        raise LotteryError("data.augment: received a tf.data.Dataset, allowed are arrays; augment it in the data set.")
    else:
        steps, batches = _steps_over_stream(train, data.train)
    evaluations = evaluations_of(model, data, ("validation", "test"), examined)
    return Loop(model, steps, batches, evaluations, classifier(model, data, examined), examined, longest, jit)


def evaluations_of(
    model: Any, data: Splits | Streams, splits: Collection[str], examined: Examined
) -> dict[str, Callable[[], Logs]]:
    """Make a function for each split, which may be ``"train"``: it returns what a model reports over every example."""
    import tensorflow as tf

    if isinstance(data, Streams):
        return {split: _evaluation_of_stream(model, getattr(data, split), examined.test_logs) for split in splits}
    evaluate = _evaluation_of_arrays(model, scaler(data), examined.test_logs)
    parts: dict[str, Split] = {split: getattr(data, split) for split in splits}
    return {
        split: functools.partial(evaluate, tf.constant(part.x), tf.constant(part.y)) for split, part in parts.items()
    }


def classifier(model: Any, data: Splits | Streams, examined: Examined) -> Callable[[], Classes | None]:
    """Make a function that returns the class that a model predicts for each test example: its highest output.

    The function returns None where a model's accuracy is not that of one class for each example of an array: for a
    ``tf.data.Dataset``, for labels that are not whole numbers from 0, for outputs other than a row for each example, on
    several devices, and for a model with a ``test_step`` of its own.
    """
    import tensorflow as tf

    own = examined.test_logs or not is_keras(type(model).test_step)
    if isinstance(data, Streams) or own or mirrored.strategy_of(model) is not None:
        return lambda: None
    x, y, scaled = data.test.x, data.test.y, scaler(data)
    if y.dtype.kind != "i" or y.size != len(y) or y.min() < 0:
        return lambda: None
    size = compiling.fixed_batch(model) or min(EVALUATION_BATCH, len(y))
    forward = tf.function(lambda inputs: model(scaled(inputs), training=False), autograph=False)

    def classes() -> Classes | None:
        predicted, num_classes = np.zeros(len(y), np.int64), 0
        for first in range(0, len(y), size):
            first = min(first, len(y) - size)  # the last batch may overlap: batches of one size need one trace
            outputs = forward(tf.constant(x[first : first + size]))
            if not tf.is_tensor(outputs) or outputs.ndim != 2 or outputs.shape[1] < 2:
                return None
            predicted[first : first + size] = tf.argmax(outputs, axis=1).numpy()
            num_classes = outputs.shape[1]
        kind = np.min_scalar_type(max(num_classes - 1, int(y.max())))
        return y.reshape(-1).astype(kind), predicted.astype(kind)

    return classes


def example_batch(data: Splits | Streams, model: Any = None) -> tuple[Any, Any]:
    """Return a few inputs, as the network gets them, and their labels."""
    import tensorflow as tf

    if isinstance(data, Splits):
        num = compiling.fixed_batch(model) or NUM_EXAMPLES
        return scaler(data)(data.train.x[:num]), tf.convert_to_tensor(data.train.y[:num])
    return next(iter(data.train()))


def scaler(data: Splits) -> Callable[[Any], Any]:
    """Make a function from stored examples to the network's input, for arrays and in a graph."""
    import tensorflow as tf

    if data.train.x.dtype != np.uint8:
        return tf.convert_to_tensor
    mean, deviation = tf.constant(data.mean), tf.constant(data.standard_deviation)

    def standardized(x: Any) -> Any:
        return (tf.cast(x, tf.float32) - mean) / deviation

    def of_unit_norm(x: Any) -> Any:
        values = standardized(x)
        # An image that is zero everywhere stays so.
        return tf.math.divide_no_nan(values, tf.norm(values, axis=list(range(1, values.shape.rank)), keepdims=True))

    return of_unit_norm if data.unit_norm else standardized


def gains_from_xla(model: Any) -> bool:
    """Return True if XLA makes a model's training faster: on an accelerator, or for dense layers on a CPU."""
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("TPU"):
        return True
    return gains_on_cpu(model)


def gains_on_cpu(model: Any) -> bool:
    """Return True if all layers of a model train faster with XLA on a CPU."""
    return all(graph.gains_from_xla(weights.inside(layer)) for layer in model._flatten_layers())


def _repeater(model: Any, names: tuple[str, ...]) -> Callable[..., Logs]:
    """Make a function that takes steps in the graph and returns the model's metrics, or the means of `names`.

    Variables add up the steps' own reports, so that steps in one call or in several give the same bits. The result
    includes as many steps `before` this call; 0 starts anew.
    """
    import tensorflow as tf

    sums = {name: tf.Variable(tf.constant(0.0), trainable=False) for name in names}

    def anew() -> Any:
        model.reset_metrics()
        for total in sums.values():
            total.assign(0.0)
        return tf.constant(True)

    def repeat(step: Callable[[Any], Logs], num: Any, before: Any) -> Logs:
        def body(index: Any) -> Any:
            logs = step(index)
            for name, total in sums.items():
                total.assign_add(tf.cast(logs[name], tf.float32))
            return index + 1

        # Python's numbers are known when this is traced, and need neither a choice nor a loop.
        if tf.is_tensor(before):
            tf.cond(tf.equal(before, 0), anew, lambda: tf.constant(False))
        else:
            anew()
        if tf.is_tensor(num) or num > 1:
            tf.while_loop(lambda index: index < num, body, [tf.constant(0)], parallel_iterations=1)
        elif num:
            body(tf.constant(0))
        if not sums:
            return model.get_metrics_result()
        return {name: total / tf.cast(before + num, tf.float32) for name, total in sums.items()}

    return repeat


def _steps_over_arrays(
    train: Callable[..., Logs], data: Splits, batch_size: int, longest: int, jit: bool, augment: Collection[str]
) -> tuple[Any, Callable[..., Any]]:
    import tensorflow as tf

    scaled, split = scaler(data), data.train
    x, y = tf.constant(split.x), tf.constant(split.y)

    @tf.function(jit_compile=jit, autograph=False)
    def steps(positions: Any, num_steps: Any, before: Any, key: Any) -> Logs:
        def batch(index: Any) -> Any:
            examples = tf.gather(positions, index)
            images = tf.gather(x, examples)
            if augment:
                drawn = key + tf.stack([0, index])
                images = augmentation.augmented(images, drawn, "crop" in augment, "flip" in augment)
            return scaled(images), tf.gather(y, examples)

        return train(batch, num_steps, before)

    def batches(seed: tuple[int, ...], first_step: int = 0) -> Callable[..., tuple[Any, ...]]:
        following = randomness.batches(len(split), batch_size, seed, first_step)
        step, word = first_step, randomness.seed_for(*seed[:-1], randomness.AUGMENTATION, 1)

        def arguments(num_steps: int, before: int = 0) -> tuple[Any, ...]:
            nonlocal step
            # One shape, one trace: a shorter piece is filled up with positions that no step reads.
            positions = np.zeros((longest, batch_size), np.int32)
            positions[:num_steps] = following(num_steps)
            key = tf.constant([word, step])
            step += num_steps
            return tf.constant(positions), tf.constant(num_steps), tf.constant(before), key

        return arguments

    return steps, batches


def _steps_over_stream(train: Callable[..., Logs], make: Callable[[], Any]) -> tuple[Any, Callable[..., Any]]:
    import keras
    import tensorflow as tf

    @tf.function(autograph=False)
    def steps(batches: Any, num_steps: Any, before: Any) -> Logs:
        return train(lambda index: next(batches), num_steps, before)

    def batches(seed: tuple[int, ...], first_step: int = 0) -> Callable[..., tuple[Any, ...]]:
        # A shuffle that has no seed uses TensorFlow's.
        keras.utils.set_random_seed(randomness.seed_for(*seed))
        iterator = iter(make().repeat().skip(first_step))
        return lambda num_steps, before=0: (iterator, tf.constant(num_steps), tf.constant(before))

    return steps, batches


def _evaluation_of_arrays(model: Any, scaled: Callable[[Any], Any], own: tuple[str, ...]) -> Callable[[Any, Any], Logs]:
    """Make a function of examples and labels. Splits of one size share a trace."""
    import tensorflow as tf

    fixed, devices, repeat = compiling.fixed_batch(model), mirrored.num_devices(model), _repeater(model, own)

    @tf.function(autograph=False)
    def evaluate(x: Any, y: Any) -> Logs:
        num_examples = x.shape[0]
        size = fixed or min(EVALUATION_BATCH, num_examples)
        whole, rest = divmod(num_examples, size)
        if 0 < rest < devices:  # each device needs at least one example
            whole, rest = whole - 1, rest + size

        def test(index: Any) -> Logs:
            first = index * size
            batch = [tf.ensure_shape(each[first : first + size], (size, *each.shape[1:])) for each in (x, y)]
            return mirrored.run(model, model.test_step, (scaled(batch[0]), batch[1]), own)

        logs = repeat(test, whole, 0)
        if not rest:
            return logs
        # The examples left over count as much as the others: metrics count examples, own reports are weighted by them.
        last = mirrored.run(model, model.test_step, (scaled(x[whole * size :]), y[whole * size :]), own)
        if not own:
            return model.get_metrics_result()
        before = {name: logs[name] * (whole * size) if whole else 0.0 for name in own}
        return {name: (before[name] + tf.cast(last[name], tf.float32) * rest) / num_examples for name in own}

    return evaluate


def _evaluation_of_stream(model: Any, make: Callable[[], Any], own: tuple[str, ...]) -> Callable[[], Logs]:
    import tensorflow as tf

    @tf.function(reduce_retracing=True, autograph=False)
    def test_step(batch: Any) -> Logs:
        return mirrored.run(model, model.test_step, batch, own)

    def evaluate() -> Logs:
        model.reset_metrics()
        dataset: Any = make()
        sums, examples = dict.fromkeys(own, 0.0), 0
        for batch in mirrored.batches(model, dataset):
            logs, size = test_step(batch), int(tf.nest.flatten(batch)[0].shape[0])  # a ragged tensor has no length
            sums, examples = {name: sums[name] + size * float(logs[name]) for name in own}, examples + size
        return {name: total / examples for name, total in sums.items()} if own else model.get_metrics_result()

    return evaluate


def _check_mirrored(model: Any, data: Splits | Streams, settings: Train) -> None:
    if settings.jit_compile is True:
        raise LotteryError(
            'train.jit_compile: received true, allowed with train.devices = "mirrored" is false or "auto": XLA '
            "compiles for one device."
        )
    if isinstance(data, Splits):
        mirrored.check_batches(model, settings.batch_size)
        return
    import tensorflow as tf

    dataset: Any = data.train()
    for one in tf.nest.flatten(dataset.element_spec):
        mirrored.check_batches(model, one.shape[0], "data (batched with drop_remainder=True)")
