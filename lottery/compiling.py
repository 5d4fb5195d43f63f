"""Make a Keras model ready to be trained: its optimiser and loss, and what its own steps report."""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery import config, learning_rates, spreading
from lottery.data import Splits
from lottery.errors import LotteryError

# Operations that call back into Python, which XLA cannot compile.
PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
# Operations that keep their random state in the kernel, where nothing can reset it.
UNREPEATABLE = {
    "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal", "ParameterizedTruncatedNormal",
    "RandomGamma", "RandomPoissonV2", "RandomShuffle", "Multinomial",
}  # fmt: skip


@dataclass(frozen=True)
class Examined:
    """What a model's own steps report and draw.

    Attributes:
        train_logs, test_logs: Names of what ``train_step`` and ``test_step`` report by themselves; empty where it is
            the model's metrics, as Keras does it.
        unrepeatable: Operations that draw random numbers which a resumed run cannot repeat.
        calls_python: Whether a training step calls back into Python.
    """

    train_logs: tuple[str, ...]
    test_logs: tuple[str, ...]
    unrepeatable: tuple[str, ...]
    calls_python: bool


def keras_of(model: Any) -> Any:
    """The module that a model was made with: ``keras`` or ``tf_keras``.

    Raises:
        LotteryError: It is no Keras model, or Keras computes with something other than TensorFlow.
    """
    if any(cls.__module__.split(".")[0] == "tf_keras" for cls in type(model).__mro__):
        import tf_keras

        return tf_keras
    import keras

    if not isinstance(model, keras.Model):
        raise LotteryError(f"The model is a {type(model).__name__}, allowed is a Keras model.")
    if keras.backend.backend() != "tensorflow":
        raise LotteryError(f"Keras uses the backend {keras.backend.backend()!r}; set KERAS_BACKEND=tensorflow.")
    return keras


def is_compiled(model: Any) -> bool:
    """Whether a model came with an optimiser and a loss of its own."""
    return getattr(model, "optimizer", None) is not None


def compile_model(model: Any, settings: config.Train, example: Any, schedule_step: Any = None) -> None:
    """Give a model the optimiser and loss that it is to be trained with.

    A model that comes compiled keeps its own optimiser, loss and metrics. Another gets the experiment's optimiser,
    and the cross-entropy loss that its outputs call for: if they are probabilities on the example (not negative,
    summing to one) the one for probabilities, else the one for logits. The wrong one of the two trains badly and
    in silence.

    Args:
        model: A built model.
        settings: The ``[train]`` section of an experiment.
        example: A few inputs, as the network gets them.
        schedule_step: A variable that is added to the optimiser's steps where the learning rate follows a schedule.

    Raises:
        LotteryError: An argument of the optimiser or schedule is wrong, or the model does not fit the data.
    """
    keras = keras_of(model)
    if is_compiled(model):
        inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)  # of a LossScaleOptimizer
        own = getattr(inner, "_learning_rate", None)
        if schedule_step is not None and isinstance(own, keras.optimizers.schedules.LearningRateSchedule):
            inner._learning_rate = learning_rates.schedule(
                keras, own, first_step=schedule_step, last_step=settings.num_steps - 1
            )
        return
    if settings.optimizer == config.COMPILED:
        raise LotteryError('train.optimizer = "compiled" needs a model that comes compiled; this one does not.')
    with _fitting(model):
        outputs = model(example, training=False)
    if not hasattr(outputs, "shape"):
        raise LotteryError("The model has several outputs, for which no loss can be chosen; compile it.")
    outputs = np.asarray(outputs)
    probabilities = bool(((outputs >= 0) & (outputs <= 1)).all())
    if outputs.ndim != 2 or outputs.shape[1] < 2 or (probabilities and not np.allclose(outputs.sum(1), 1, atol=1e-3)):
        raise LotteryError(
            f"No loss can be chosen for outputs of shape {outputs.shape[1:]} between {outputs.min():.3g} and "
            f"{outputs.max():.3g}, which are neither logits nor probabilities of classes; compile the model with the "
            "loss and metrics that you want."
        )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=not probabilities)
    model.compile(optimizer=optimizer(keras, settings, schedule_step), loss=loss, metrics=["accuracy"])


def check_data(model: Any, data: Splits, batch_size: int, example: Any) -> None:
    """Check that labels are classes of the model and that a batch is no larger than the data.

    TensorFlow would make NaN of a label that is no class, or nothing at all.

    Args:
        model: A compiled model.
        data: What it is to be trained on.
        batch_size: Examples in a batch.
        example: A few inputs, as the network gets them.

    Raises:
        LotteryError: They do not fit.
    """
    if batch_size > len(data.train):
        raise LotteryError(
            f"train.batch_size: received {batch_size}, allowed is at most the {len(data.train)} examples that are left "
            "for training."
        )
    loss = model.loss[0] if isinstance(model.loss, (list, tuple)) and len(model.loss) == 1 else model.loss
    loss = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    if loss not in ("sparse_categorical_crossentropy", "SparseCategoricalCrossentropy"):
        return
    with _fitting(model):
        *positions, num_classes = model(example, training=False).shape[1:]
    for part, split in (("training", data.train), ("validation", data.validation), ("test", data.test)):
        if split.y.dtype.kind != "i" or split.y.shape[1:] not in (tuple(positions), (*positions, 1)):
            raise LotteryError(
                f"The {part} labels have type {split.y.dtype} and shape {split.y.shape[1:]} for an example, allowed is "
                f"one whole number, the class, for each output of shape {tuple(positions)}."
            )
        lowest, highest = int(split.y.min()), int(split.y.max())
        if highest >= num_classes or (lowest < 0 and getattr(model.loss, "ignore_class", None) != lowest):
            raise LotteryError(
                f"The {part} labels go {f'up to {highest}' if lowest >= 0 else f'down to {lowest}'}, allowed are 0 to "
                f"{num_classes - 1}: the model has {num_classes} outputs."
            )


def examine(model: Any, example: tuple[Any, Any]) -> Examined:
    """Trace a model's own steps without taking one, and see what they report and what they draw.

    Afterwards its metrics and slots exist. Made later, while the loop is traced, they would be missing from resets.

    Args:
        model: A compiled model.
        example: A few inputs, as the network gets them, and their labels.

    Returns:
        What was seen.

    Raises:
        LotteryError: The model does not fit the data.
    """
    import tensorflow as tf

    def train(batch: Any) -> Any:
        return spreading.on_each(model, model.train_step, batch)

    with _fitting(model), spreading.scope(spreading.strategy_of(model)):
        test_logs = spreading.on_each(model, model.test_step, example)
        model.optimizer.build(model.trainable_variables)
        traced = tf.function(train, autograph=False).get_concrete_function(example)
        metrics = set(model.get_metrics_result())
    graph = traced.graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return Examined(
        train_logs=_own_logs(traced.structured_outputs, metrics, "train_step"),
        test_logs=_own_logs(test_logs, metrics, "test_step"),
        unrepeatable=tuple(sorted({node.op for node in nodes} & UNREPEATABLE)),
        calls_python=not PYTHON.isdisjoint(node.op for node in nodes),
    )


def step_variable() -> Any:
    """A step of training as a variable, which a trace reads anew each time."""
    import tensorflow as tf

    first: Any = 0
    return tf.Variable(first, dtype=tf.int64, trainable=False)


def optimizer(keras: Any, settings: config.Train, schedule_step: Any = None) -> Any:
    """The Keras optimiser of an experiment.

    Raises:
        LotteryError: Keras refuses an argument.
    """
    table = {"name": settings.optimizer} if isinstance(settings.optimizer, str) else dict(settings.optimizer)
    name = table.pop("name")
    try:
        rate = settings.learning_rate
        if isinstance(rate, dict):
            arguments = dict(rate)
            rate = getattr(keras.optimizers.schedules, arguments.pop("name"))(**arguments)
        rate = learning_rates.schedule(
            keras,
            rate,
            settings.warmup_steps,
            settings.drop_at,
            settings.drop_factor,
            schedule_step,
            settings.num_steps - 1,
        )
        # By class, for keras.optimizers.get does not know all of them.
        classes = {key.lower(): value for key, value in vars(keras.optimizers).items() if isinstance(value, type)}
        return classes[name](learning_rate=rate, **table)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise LotteryError(f"train.optimizer {name!r} or its learning rate cannot be made: {reason(error)}") from None


@contextlib.contextmanager
def evaluating(what: str) -> Iterator[None]:
    """What a model raises, as one sentence that begins with `what`."""
    try:
        yield
    except LotteryError:
        raise
    except Exception as error:  # a user's layers, loss and metrics may raise anything
        raise LotteryError(f"{what}: {reason(error)}") from error


def _fitting(model: Any) -> contextlib.AbstractContextManager[None]:
    return evaluating(f"The model {model.name!r} cannot be trained on the data")


def reason(error: Exception) -> str:
    """What an exception says, in one line: Keras puts the place first and the reason after it."""
    lines = [re.sub(r"\x1b\[\d+m", "", line).strip() for line in str(error).splitlines()]
    around = ("Exception encountered", "in user code", "File ", "Graph execution error", "Detected at node", "[[")
    lines = [line for line in lines if line and not line.startswith(around)]
    if not lines:
        return type(error).__name__
    return lines[-1] if "Graph execution error" in str(error) else lines[0]  # the graph's trace comes first, too


def _own_logs(logs: Any, metrics: set[str], step: str) -> tuple[str, ...]:
    if not isinstance(logs, dict):
        raise LotteryError(f"The model's {step} returns {type(logs).__name__}, allowed is a dict of what it reports.")
    return () if set(logs) == metrics else tuple(logs)
