"""Many steps of Keras' own in one graph, and what they report, added up so that bits do not depend on the cut."""

from collections.abc import Callable, Mapping
from typing import Any

Logs = Mapping[str, Any]


def sums(own: tuple[str, ...]) -> dict[str, Any]:
    """Where what a model's own steps report is added up, by its name."""
    import tensorflow as tf

    zero: Any = 0.0
    return {name: tf.Variable(zero, trainable=False) for name in own}


def repeat(model: Any, step: Callable[[Any], Logs], num: Any, sums: Mapping[str, Any], before: Any) -> Logs:
    """Take a step `num` times in the graph.

    What it adds up stays in variables, so that steps in one call or in several give the same bits.

    Args:
        model: The model.
        step: From the number of a step in this call to what it reports.
        num: How many.
        sums: Variables to add up what the steps themselves report; none where that is the model's metrics.
        before: How many steps before these count with them; where it is 0, counting begins anew.

    Returns:
        The model's metrics over all of them, as Keras reports them; or the mean of what the steps themselves report.
    """
    import tensorflow as tf

    def anew() -> Any:
        model.reset_metrics()
        for total in sums.values():
            total.assign(0.0)
        return tf.constant(True)

    def body(index: Any) -> Any:
        logs = step(index)
        for name, total in sums.items():
            total.assign_add(tf.cast(logs[name], tf.float32))
        return index + 1

    tf.cond(tf.equal(before, 0), anew, lambda: tf.constant(False))
    tf.while_loop(lambda index: index < num, body, [tf.constant(0)], parallel_iterations=1)
    if not sums:
        return model.get_metrics_result()
    return {name: total / tf.cast(before + num, tf.float32) for name, total in sums.items()}
