"""Learning rates that change with the step: warm-up, drops, and retraining that goes on at a later step."""

from collections.abc import Sequence
from functools import cache
from typing import Any

from lottery.errors import LotteryError


def schedule(
    keras: Any,
    learning_rate: Any,
    warmup_steps: int = 0,
    drop_at: Sequence[int] = (),
    drop_factor: float = 0.1,
    first_step: Any = None,
    last_step: int | None = None,
) -> Any:
    """A learning rate with warm-up and drops, counted from a step that may be set later.

    At step t, counted from 0, where t is the optimiser's own count plus `first_step`, the rate is
    ``rate(t) * min(1, (t + 1) / warmup_steps) * drop_factor ** d(t)``, where d(t) is how many of `drop_at` are at most
    t. The first factor is the gradual warm-up of Goyal et al. 2017, https://arxiv.org/abs/1706.02677, section 2.2,
    which Frankle & Carbin 2019, https://arxiv.org/abs/1803.03635, need for VGG-19 and ResNet-18; it is reached at the
    last of the `warmup_steps`, and the first of them trains already.

    Args:
        keras: The module of the optimiser: ``keras`` or ``tf_keras``.
        learning_rate: A number, or a ``LearningRateSchedule`` of that module.
        warmup_steps: How many steps it rises over; with 0 or 1 there is no warm-up.
        drop_at: Steps from which on it is multiplied by the factor, once more at each.
        drop_factor: The factor.
        first_step: A ``tf.Variable``, an int64 scalar, or None, which is 0. Retraining from step k sets it to k: the
            rate goes on there, while the optimiser is a fresh one that counts from 0, as Adam's correction of its bias
            needs it. A graph that was traced reads the new value.
        last_step: The last step that training takes. Whatever comes after it has its rate.

    Returns:
        The number itself where it never changes, or else a ``LearningRateSchedule`` of the module.

    Raises:
        LotteryError: The learning rate is neither.
    """
    base = keras.optimizers.schedules.LearningRateSchedule
    is_number = isinstance(learning_rate, (int, float)) and not isinstance(learning_rate, bool)
    if not is_number and not isinstance(learning_rate, base):
        raise LotteryError(
            f"learning_rate: received {learning_rate!r}, allowed is a number or a LearningRateSchedule of "
            f"{keras.__name__}."
        )
    if is_number and warmup_steps <= 1 and not drop_at:
        return learning_rate
    return _kind(keras)(learning_rate, warmup_steps, drop_at, drop_factor, first_step, last_step)


@cache
def _kind(keras: Any) -> Any:
    """The class, as a subclass of one that belongs to the library: an optimiser takes no other."""
    schedules = keras.optimizers.schedules

    # Registered under a name, a saved model can be loaded again where such a schedule has been made before; anywhere
    # else with `compile=False`.
    @keras.saving.register_keras_serializable(package="lottery", name="WarmupAndDrops")
    class WarmupAndDrops(schedules.LearningRateSchedule):
        def __init__(
            self,
            learning_rate: Any,
            warmup_steps: int = 0,
            drop_at: Sequence[int] = (),
            drop_factor: float = 0.1,
            first_step: Any = None,
            last_step: int | None = None,
        ) -> None:
            super().__init__()
            self.learning_rate = learning_rate
            self.warmup_steps = warmup_steps
            self.drop_at = tuple(drop_at)
            self.drop_factor = drop_factor
            self.first_step = 0 if first_step is None else first_step
            self.last_step = last_step

        def __call__(self, step: Any) -> Any:
            import tensorflow as tf

            at = tf.cast(tf.convert_to_tensor(step), tf.int64) + tf.cast(self.first_step, tf.int64)
            if self.last_step is not None:
                at = tf.minimum(at, tf.constant(self.last_step, tf.int64))
            given: Any = self.learning_rate
            rate: Any = given(at) if callable(given) else tf.constant(given, tf.float32)
            if self.warmup_steps > 1:
                rate *= tf.minimum(tf.cast(1, rate.dtype), tf.cast(at + 1, rate.dtype) / self.warmup_steps)
            if self.drop_at:
                # Powers from a table, which are rounded once.
                powers = [self.drop_factor**index for index in range(len(self.drop_at) + 1)]
                passed = tf.reduce_sum(tf.cast(at >= tf.constant(self.drop_at, tf.int64), tf.int32))
                rate *= tf.gather(tf.constant(powers, rate.dtype), passed)
            return rate

        def get_config(self) -> dict[str, Any]:
            rate = self.learning_rate
            return {
                "learning_rate": schedules.serialize(rate) if callable(rate) else rate,
                "warmup_steps": self.warmup_steps,
                "drop_at": list(self.drop_at),
                "drop_factor": self.drop_factor,
                "first_step": int(self.first_step),
                "last_step": self.last_step,
            }

        @classmethod
        def from_config(cls, config: dict[str, Any]) -> Any:
            rate = config["learning_rate"]
            return cls(**config | {"learning_rate": schedules.deserialize(rate) if isinstance(rate, dict) else rate})

    return WarmupAndDrops
