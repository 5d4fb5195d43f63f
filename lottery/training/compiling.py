"""Compile a model for training: its optimizer and its loss."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lottery.errors import LotteryError
from lottery.models import optimizers
from lottery.models.kerases import is_compiled, keras_of, reason
from lottery.settings import COMPILED
from lottery.training import schedules
from lottery.training.examples import fitting
from lottery.training.settings import Train


def compile_model(model: Any, settings: Train, example: Any, schedule_step: Any = None) -> None:
    """Give a model its optimizer and loss, unless it comes compiled: then it keeps its own, and its metrics.

    The loss is a cross-entropy: for probabilities if the outputs on the example, a few inputs, are not negative and sum
    to one, else for logits. A learning rate with a schedule adds the variable `schedule_step` to the optimizer's count.
    """
    keras = keras_of(model)
    if is_compiled(model):
        _count_from(schedule_step, model, keras, settings.num_steps)
        return
    if settings.optimizer == COMPILED:
        raise LotteryError('train.optimizer = "compiled" needs a compiled model; this model is not compiled.')
    with fitting(model):
        outputs = model(example, training=False)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=not _are_probabilities(outputs))
    model.compile(optimizer=optimizer(keras, settings, schedule_step), loss=loss, metrics=["accuracy"])


def _count_from(schedule_step: Any, model: Any, keras: Any, num_steps: int) -> None:
    """Let the learning rates of a compiled model begin at the step in a variable, if there is one."""
    if optimizers.delegates(model.optimizer):
        model.optimizer.build(model.trainable_variables)  # before, it may not know the optimizers
    for inner in optimizers.plain(model.optimizer):
        rate = optimizers.rate(inner)
        if schedule_step is not None and schedules.is_schedule(keras, rate):
            inner.learning_rate = schedules.schedule(keras, rate, first_step=schedule_step, last_step=num_steps - 1)


def _are_probabilities(outputs: Any) -> bool:
    """Check if outputs are probabilities; raise `LotteryError` if no cross-entropy of classes can be of them."""
    if not hasattr(outputs, "shape"):
        received, otherwise = "several outputs", ""
        if len(outputs) == 1:
            received = "a dict" if isinstance(outputs, Mapping) else "a list"
            otherwise = ", or have it return the output itself"
        raise LotteryError(
            f"The model returns {received}, so no loss can be chosen; compile the model with its losses and metrics"
            f"{otherwise}."
        )
    values = np.asarray(outputs)
    are_shares = bool(((values >= 0) & (values <= 1)).all())
    if values.ndim != 2 or values.shape[1] < 2 or (are_shares and not np.allclose(values.sum(1), 1, atol=1e-3)):
        raise LotteryError(
            f"No loss can be chosen for outputs of shape {values.shape[1:]} between {values.min():.3g} and "
            f"{values.max():.3g}, which are neither logits nor probabilities of classes; compile the model with the "
            "loss and metrics that you want."
        )
    return are_shares


def optimizer(keras: Any, settings: Train, schedule_step: Any = None) -> Any:
    """Make the Keras optimizer of an experiment, or raise `LotteryError` if Keras refuses an argument."""
    table = {"name": settings.optimizer} if isinstance(settings.optimizer, str) else dict(settings.optimizer)
    name = table.pop("name")
    try:
        rate = settings.learning_rate
        if isinstance(rate, dict):
            rate = schedules.from_table(keras, rate)
        rate = schedules.schedule(
            keras,
            rate,
            warmup_steps=settings.warmup_steps,
            drop_at=settings.drop_at,
            drop_factor=settings.drop_factor,
            first_step=schedule_step,
            last_step=settings.num_steps - 1,
        )
        # By class: keras.optimizers.get does not know all of them.
        classes = {key.lower(): value for key, value in vars(keras.optimizers).items() if isinstance(value, type)}
        return classes[name](learning_rate=rate, **table)
    except LotteryError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise LotteryError(f"train.optimizer {name!r} or its learning rate cannot be made: {reason(error)}") from None
