"""Learning rates that change from step to step: Keras' own schedules, and warm-up and drops around any of them."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from lottery.errors import unknown
from lottery.models.kerases import tf


def schedule(
    keras: Any,
    learning_rate: Any,
    warmup_steps: int = 0,
    drop_at: Sequence[int] = (),
    drop_factor: float = 0.1,
    first_step: Any = None,
    last_step: int | None = None,
) -> Any:
    """Make a learning rate with warm-up and drops, counted from a step that may be set later.

    At step t, the optimizer's own count from 0 plus `first_step`, the rate is
    ``rate(t) * min(1, (t + 1) / warmup_steps) * drop_factor ** d(t)``, where d(t) is the number of `drop_at` that are
    at most t; after `last_step` it stays. The first factor is the gradual warm-up of Goyal et al. 2017,
    https://arxiv.org/abs/1706.02677, section 2.2, which Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635, need
    for VGG-19 and ResNet-18; 0 steps of warm-up are none. A number that never changes is returned as it is.

    Args:
        keras: The module of the optimizer.
        learning_rate: A number, or a ``LearningRateSchedule`` of that module.
        first_step: None for 0, or an int64 ``tf.Variable``, which a trace reads anew: retraining from step k sets it to
            k. The rate resumes there, while a fresh optimizer counts from 0, as Adam's bias correction needs. That of
            `step_variable` also holds two numbers of steps: t counts the first while the optimizer counts the second.
    """
    # The factor of a single step of warm-up is 1.
    if isinstance(learning_rate, (int, float)) and warmup_steps <= 1 and not drop_at:
        return learning_rate
    shape = {"warmup_steps": warmup_steps, "drop_at": list(drop_at), "drop_factor": drop_factor, "last_step": last_step}
    return _class_of(keras)(learning_rate, first_step, **shape)


def step_variable() -> Any:
    """Make a variable for where a learning rate's schedule begins, and its pace; see `schedule`."""
    return tf.Variable(tf.constant([0, 1, 1], tf.int64), trainable=False)


def from_table(keras: Any, table: Mapping[str, Any]) -> Any:
    """Make a schedule of a library from a table with the name of its class and its arguments."""
    # By class: the module's functions import whatever a table names (Keras 3.15).
    base = keras.optimizers.schedules.LearningRateSchedule
    classes = [value for value in vars(keras.optimizers.schedules).values() if isinstance(value, type)]
    known = {value.__name__: value for value in classes if issubclass(value, base) and value is not base}
    name = table["name"]
    if name not in known:
        raise unknown("train.learning_rate", name, known)
    return known[name](**{key: value for key, value in table.items() if key != "name"})


# One class for each library: a second of the same name would take its place in Keras' registry.
@cache
def _class_of(keras: Any) -> Any:
    # An optimizer takes only schedules of its own library (Keras 3.15, tf_keras 2.21).
    schedules = keras.optimizers.schedules

    # Registered, so that a saved model can be loaded where such a schedule was made before; elsewhere `compile=False`.
    @keras.saving.register_keras_serializable(package="lottery", name="WarmupAndDrops")
    class WarmupAndDrops(schedules.LearningRateSchedule):
        def __init__(self, learning_rate: Any, first_step: Any, **shape: Any) -> None:
            super().__init__()
            self.learning_rate = learning_rate
            self.first_step = 0 if first_step is None else first_step
            self.shape = shape

        def __call__(self, step: Any) -> Any:
            at = self._place(tf.cast(tf.convert_to_tensor(step), tf.int64))
            if callable(self.learning_rate):
                rate: Any = self.learning_rate(at)
            else:
                rate = tf.constant(self.learning_rate, tf.float32)
            warmup_steps, drop_at = self.shape["warmup_steps"], self.shape["drop_at"]
            if warmup_steps > 1:
                rate *= tf.minimum(tf.cast(1, rate.dtype), tf.cast(at + 1, rate.dtype) / warmup_steps)
            if drop_at:
                # Powers from a table are rounded once.
                powers = [self.shape["drop_factor"] ** num_drops for num_drops in range(len(drop_at) + 1)]
                passed = tf.reduce_sum(tf.cast(at >= tf.constant(drop_at, tf.int64), tf.int32))
                rate *= tf.gather(tf.constant(powers, rate.dtype), passed)
            return rate

        def _place(self, count: Any) -> Any:
            first_step, last_step = tf.cast(self.first_step, tf.int64), self.shape["last_step"]
            if first_step.shape.rank:  # of `step_variable`
                # First the product, because a quotient of whole numbers is rounded down.
                count = count * first_step[1] // first_step[2]
                first_step = first_step[0]
            at = count + first_step
            return at if last_step is None else tf.minimum(at, tf.constant(last_step, tf.int64))

        def get_config(self) -> dict[str, Any]:
            rate = schedules.serialize(self.learning_rate) if callable(self.learning_rate) else self.learning_rate
            # A configuration holds numbers, and no variable: the step that it has now, and not the pace.
            return {"learning_rate": rate, "first_step": int(np.ravel(self.first_step)[0]), **self.shape}

        @classmethod
        def from_config(cls, config: dict[str, Any]) -> Any:
            rate = config["learning_rate"]
            return cls(**config | {"learning_rate": schedules.deserialize(rate) if isinstance(rate, dict) else rate})

    return WarmupAndDrops
