"""Many steps in one graph, with what they report added up so that bits do not depend on the cut."""

from collections.abc import Callable
from typing import Any

from lottery.training.records import Logs


def repeater(model: Any, names: tuple[str, ...]) -> Callable[..., Logs]:
    """Make a function that takes steps in the graph and returns the model's metrics, or the means of `names`.

    Variables add up the steps' own reports, so that steps in one call or in several give the same bits. The function's
    arguments are a step as a function of its number, the number of steps, and how many steps `before` this call the
    result includes; 0 starts anew.
    """
    import tensorflow as tf

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
        if tf.is_tensor(num_steps) or num_steps > 1:
            tf.while_loop(lambda index: index < num_steps, body, [tf.constant(0)], parallel_iterations=1)
        elif num_steps:
            body(tf.constant(0))
        if not sums:
            return model.get_metrics_result()
        return {name: total / tf.cast(before + num_steps, tf.float32) for name, total in sums.items()}

    return repeat
