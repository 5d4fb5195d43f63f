"""Many steps of a model in one graph: repeated, over every example of a split, and to predict classes."""

import functools
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from lottery.data import Splits, Streams
from lottery.models.kerases import is_keras
from lottery.training import mirrored
from lottery.training.examples import fixed_batch, scaler
from lottery.training.records import Classes, Logs

EVALUATION_BATCH = 1000


def repeater(model: Any, names: tuple[str, ...]) -> Callable[..., Logs]:
    """Make a function that takes steps in the graph and returns the model's metrics, or the means of `names`.

    Its arguments are a step as a function of its number, the number of steps, and how many steps `before` this call the
    result includes; 0 starts anew.
    """
    import tensorflow as tf

    # Variables add up the steps' own reports, so that steps in one call or in several give the same bits.
    sums = {name: tf.Variable(tf.constant(0.0), trainable=False) for name in names}

    def start_anew() -> Any:
        model.reset_metrics()
        for total in sums.values():
            total.assign(0.0)
        return tf.constant(True)

    def repeat(step: Callable[[Any], Logs], num_steps: Any, before: Any) -> Logs:
        def body(index: Any) -> Any:
            logs = step(index)
            for name, total in sums.items():
                total.assign_add(tf.cast(logs[name], tf.float32))
            return index + 1

        # Python's numbers are known when this is traced, and need neither a choice nor a loop.
        if tf.is_tensor(before):
            tf.cond(tf.equal(before, 0), start_anew, lambda: tf.constant(False))
        else:
            start_anew()
        # One iteration at a time: each step reads the variables that the step before has written.
        if tf.is_tensor(num_steps) or num_steps > 1:
            tf.while_loop(lambda index: index < num_steps, body, [tf.constant(0)], parallel_iterations=1)
        elif num_steps:
            body(tf.constant(0))
        # Metrics of Keras 3.15 and tf_keras 2.21, with the loss, add up in variables over all steps since the reset.
        if not sums:
            return model.get_metrics_result()
        return {name: total / tf.cast(before + num_steps, tf.float32) for name, total in sums.items()}

    return repeat


def evaluations_of(
    model: Any, data: Splits | Streams, splits: Collection[str], own: tuple[str, ...]
) -> dict[str, Callable[[], Logs]]:
    """Make a function for each split, which may be ``"train"``: it returns what a model reports over every example.

    `own` names what the model's own ``test_step`` reports; it is empty if that reports metrics.
    """
    import tensorflow as tf

    chosen = {name: getattr(data, name) for name in splits}
    if isinstance(data, Streams):
        return {name: _of_stream(model, make, own) for name, make in chosen.items()}
    evaluate = _of_arrays(model, scaler(data), own)
    return {
        name: functools.partial(evaluate, tf.constant(split.x), tf.constant(split.y)) for name, split in chosen.items()
    }


def classifier(model: Any, data: Splits | Streams, own: tuple[str, ...]) -> Callable[[], Classes | None]:
    """Make a function that returns the class that a model predicts for each test example: its highest output.

    The function returns None where the accuracy is not that of one class for each example of an array: for a data set,
    labels that are not whole numbers from 0, outputs other than a row for each example, several devices, and a
    ``test_step`` of the model's own.
    """
    import tensorflow as tf

    has_own_step = own or not is_keras(type(model).test_step)
    if isinstance(data, Streams) or has_own_step or mirrored.strategy_of(model) is not None:
        return lambda: None
    x, y, scaled = data.test.x, data.test.y, scaler(data)
    if y.dtype.kind != "i" or y.size != len(y) or y.min() < 0:
        return lambda: None
    size = fixed_batch(model) or min(EVALUATION_BATCH, len(y))
    forward = tf.function(lambda inputs: model(scaled(inputs), training=False), autograph=False)

    def classes() -> Classes | None:
        predicted, num_classes = np.zeros(len(y), np.int64), 0
        for first in range(0, len(y), size):
            # The last batch may overlap the batch before: batches of a single size need a single trace.
            first = min(first, len(y) - size)
            outputs = forward(tf.constant(x[first : first + size]))
            if not tf.is_tensor(outputs) or outputs.ndim != 2 or outputs.shape[1] < 2:
                return None
            predicted[first : first + size] = tf.argmax(outputs, axis=1).numpy()
            num_classes = outputs.shape[1]
        kind = np.min_scalar_type(max(num_classes - 1, int(y.max())))
        return y.reshape(-1).astype(kind), predicted.astype(kind)

    return classes


def _of_arrays(model: Any, scaled: Callable[[Any], Any], own: tuple[str, ...]) -> Callable[[Any, Any], Logs]:
    """Make a function of examples and labels; splits of one size share a trace."""
    import tensorflow as tf

    fixed, num_devices, repeat = fixed_batch(model), mirrored.num_devices(model), repeater(model, own)

    @tf.function(autograph=False)
    def evaluate(x: Any, y: Any) -> Logs:
        num_examples = x.shape[0]
        size = fixed or min(EVALUATION_BATCH, num_examples)
        num_whole, rest = divmod(num_examples, size)
        if 0 < rest < num_devices:  # each device needs at least one example
            num_whole, rest = num_whole - 1, rest + size

        def test(index: Any) -> Logs:
            first = index * size
            # The graph does not know the length of a slice at a tensor, and a model may fix it.
            inputs, labels = (tf.ensure_shape(part[first : first + size], (size, *part.shape[1:])) for part in (x, y))
            return mirrored.run(model, model.test_step, (scaled(inputs), labels), own)

        logs = repeat(test, num_whole, 0)
        if not rest:
            return logs
        # The examples left over count as much as the others: metrics count examples, own reports are weighted by them.
        in_whole = num_whole * size
        last = mirrored.run(model, model.test_step, (scaled(x[in_whole:]), y[in_whole:]), own)
        if not own:
            return model.get_metrics_result()
        before = {name: logs[name] * in_whole if num_whole else 0.0 for name in own}
        return {name: (before[name] + tf.cast(last[name], tf.float32) * rest) / num_examples for name in own}

    return evaluate


def _of_stream(model: Any, make: Callable[[], Any], own: tuple[str, ...]) -> Callable[[], Logs]:
    """Make a function that evaluates a model on a data set."""
    import tensorflow as tf

    @tf.function(reduce_retracing=True, autograph=False)
    def test_step(batch: Any) -> Logs:
        return mirrored.run(model, model.test_step, batch, own)

    def evaluate() -> Logs:
        model.reset_metrics()
        dataset: Any = make()
        sums, num_examples = dict.fromkeys(own, 0.0), 0
        for batch in mirrored.batches(model, dataset):
            logs = test_step(batch)
            # Not by `len`: a ragged tensor has none.
            size = int(tf.nest.flatten(batch)[0].shape[0])
            num_examples += size
            for name in own:
                sums[name] += size * float(logs[name])
        if not own:
            return model.get_metrics_result()
        return {name: total / num_examples for name, total in sums.items()}

    return evaluate
