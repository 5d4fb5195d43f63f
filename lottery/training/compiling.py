"""Give a model its optimizer and its loss."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lottery.errors import LotteryError
from lottery.models import graph, optimizers
from lottery.models.kerases import evaluating, is_compiled, keras_of
from lottery.training import schedules
from lottery.training.examples import fitting
from lottery.training.settings import COMPILED, Train


def compile_model(model: Any, settings: Train, example: Any, schedule_step: Any = None) -> None:
    """Give a model its optimizer and loss, unless it comes compiled: then it keeps its own, and its metrics.

    The loss is a cross-entropy: for logits if the outputs come from a linear layer, for probabilities if those of the
    example, a few inputs, are not negative and sum to one, and else for logits. A learning rate with a schedule adds
    the variable `schedule_step` to the optimizer's count.
    """
    keras = keras_of(model)
    if is_compiled(model):
        if optimizers.delegates(model.optimizer):
            # Before it is built, a MultiOptimizer may not know its optimizers.
            model.optimizer.build(model.trainable_variables)
        last_step = settings.num_steps - 1
        for inner in optimizers.plain(model.optimizer):
            rate = optimizers.rate(inner)
            is_schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
            # A number is the same at every step, and stays; only a schedule must begin where it is told.
            if schedule_step is not None and is_schedule:
                inner.learning_rate = schedules.schedule(keras, rate, first_step=schedule_step, last_step=last_step)
        return
    if settings.optimizer == COMPILED:
        raise LotteryError('train.optimizer = "compiled" needs a compiled model; this model is not compiled.')
    with fitting(model):
        outputs = model(example, training=False)
    are_logits = not _are_probabilities(outputs, graph.ends_linear(model))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=are_logits)
    model.compile(optimizer=optimizer(keras, settings, schedule_step), loss=loss, metrics=["accuracy"])


def check_schedule(model: Any) -> None:
    """Raise `LotteryError` if a learning rate is a function that takes no step, and so begins anew in each network."""
    schedule = keras_of(model).optimizers.schedules.LearningRateSchedule
    for inner in optimizers.plain(model.optimizer):
        rate = optimizers.rate(inner)
        if callable(rate) and not isinstance(rate, schedule):
            raise LotteryError(
                "The learning rate of the model's optimizer is a function without arguments, which cannot begin at a "
                "later step; use a LearningRateSchedule."
            )


def _are_probabilities(outputs: Any, are_linear: bool) -> bool:
    """Check if outputs are probabilities; raise `LotteryError` if they are of no classes."""
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
    # Of two classes, the logits of a few similar inputs often lie between 0 and 1.
    are_shares = not are_linear and bool(((values >= 0) & (values <= 1)).all())
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
    with evaluating(f"train.optimizer {name!r} or its learning rate cannot be made"):
        rate = settings.learning_rate
        if isinstance(rate, dict):
            rate = schedules.from_table(keras, rate)
        shape = settings.model_dump(include={"warmup_steps", "drop_at", "drop_factor"})
        # Steps count from 0, so the last update has this one; a training that goes on after it keeps its rate.
        rate = schedules.schedule(keras, rate, first_step=schedule_step, last_step=settings.num_steps - 1, **shape)
        # By class: keras.optimizers.get does not know all of them (Keras 3.15).
        classes = {key.lower(): value for key, value in vars(keras.optimizers).items() if isinstance(value, type)}
        if name not in classes:
            raise LotteryError(f"train.optimizer: {keras.__name__} has no optimizer {name!r}.")
        return classes[name](learning_rate=rate, **table)
