"""What a model reports over every example of a split, computed in the graph."""

from collections.abc import Callable
from typing import Any

import numpy as np

from lottery import repeating, spreading
from lottery.compiling import Examined
from lottery.data import Split, Splits, Streams
from lottery.repeating import Logs

EVALUATION_BATCH = 1000


def evaluation(model: Any, data: Splits | Streams, split: str, examined: Examined) -> Callable[[], Logs]:
    """A function that returns what a model reports over every example of a split, ``"train"`` among them."""
    if isinstance(data, Splits):
        return _evaluation_of_arrays(model, getattr(data, split), scaler(data), examined.test_logs)
    return _evaluation_of_stream(model, getattr(data, split), examined.test_logs)


def example_batch(data: Splits | Streams) -> tuple[Any, Any]:
    """A few inputs, as the network gets them, and their labels."""
    import tensorflow as tf

    if isinstance(data, Splits):
        return scaler(data)(data.train.x[:8]), tf.convert_to_tensor(data.train.y[:8])
    return next(iter(data.train()))


def scaler(data: Splits) -> Callable[[Any], Any]:
    """A function from examples as they are stored to the network's input, for arrays and in a graph."""
    import tensorflow as tf

    if data.train.x.dtype != np.uint8:
        return tf.convert_to_tensor
    mean, deviation = tf.constant(data.mean), tf.constant(data.deviation)
    return lambda x: (tf.cast(x, tf.float32) - mean) / deviation


def _evaluation_of_arrays(
    model: Any, split: Split, scaled: Callable[[Any], Any], own: tuple[str, ...]
) -> Callable[[], Logs]:
    import tensorflow as tf

    x, y = tf.constant(split.x), tf.constant(split.y)
    size = min(EVALUATION_BATCH, len(split))
    whole, rest = divmod(len(split), size)
    if 0 < rest < spreading.num_devices(model):  # each device takes one example at least
        whole, rest = whole - 1, rest + size
    totals = repeating.sums(own)

    @tf.function(autograph=False)
    def evaluate() -> Logs:
        def test(index: Any) -> Logs:
            first = index * size
            batch_x = tf.ensure_shape(x[first : first + size], (size, *split.x.shape[1:]))
            batch_y = tf.ensure_shape(y[first : first + size], (size, *split.y.shape[1:]))
            return spreading.run(model, model.test_step, (scaled(batch_x), batch_y), own)

        logs = repeating.repeat(model, test, tf.constant(whole), totals, tf.constant(0))
        if not rest:
            return logs
        # What is left over counts as much as the rest: metrics count examples, and own logs are weighted by them.
        last = spreading.run(model, model.test_step, (scaled(x[whole * size :]), y[whole * size :]), own)
        if not own:
            return model.get_metrics_result()
        before = whole and {name: logs[name] * (whole * size) for name in own}
        return {
            name: ((before[name] if before else 0.0) + tf.cast(last[name], tf.float32) * rest) / len(split)
            for name in own
        }

    return evaluate


def _evaluation_of_stream(model: Any, make: Callable[[], Any], own: tuple[str, ...]) -> Callable[[], Logs]:
    import tensorflow as tf

    @tf.function(reduce_retracing=True, autograph=False)
    def test_step(batch: Any) -> Logs:
        return spreading.run(model, model.test_step, batch, own)

    def evaluate() -> Logs:
        model.reset_metrics()
        dataset: Any = make()
        sums, examples = dict.fromkeys(own, 0.0), 0
        for batch in spreading.batches(model, dataset):
            logs, size = test_step(batch), len(tf.nest.flatten(batch)[0])
            sums, examples = {name: sums[name] + size * float(logs[name]) for name in own}, examples + size
        return {name: total / examples for name, total in sums.items()} if own else model.get_metrics_result()

    return evaluate
