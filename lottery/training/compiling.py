"""Compile a model for training: optimizer, loss, learning rates with warm-up and drops; and see what its steps do."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from lottery import randomness
from lottery.data import Splits
from lottery.errors import LotteryError, unknown
from lottery.models import optimizers
from lottery.models.kerases import evaluating, is_compiled, is_keras, keras_of, reason, traced_call
from lottery.settings import COMPILED
from lottery.training import mirrored
from lottery.training.settings import Train


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
        keras: The optimizer's module, ``keras`` or ``tf_keras``.
        learning_rate: A number, or a ``LearningRateSchedule`` of that module.
        first_step: An int64 ``tf.Variable``, or None for 0. Retraining from step k sets it to k: the rate resumes
            there, while a fresh optimizer counts from 0, as Adam's bias correction needs. A trace reads the new value.
            That of `step_variable` also holds two numbers of steps, and t counts as many of the first as the optimizer
            counts of the second.
    """
    is_number = isinstance(learning_rate, (int, float)) and not isinstance(learning_rate, bool)
    if not is_number and not isinstance(learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        raise LotteryError(
            f"learning_rate: received {learning_rate!r}, allowed is a number or a LearningRateSchedule of "
            f"{keras.__name__}."
        )
    if is_number and warmup_steps <= 1 and not drop_at:
        return learning_rate
    shape = {"warmup_steps": warmup_steps, "drop_at": list(drop_at), "drop_factor": drop_factor, "last_step": last_step}
    return _kind(keras)(learning_rate, first_step, **shape)


@cache
def _kind(keras: Any) -> Any:
    """Make the class: an optimizer takes only schedules that derive from its own library's."""
    schedules = keras.optimizers.schedules

    # Registered, so that a saved model can be loaded where such a schedule was made before; elsewhere `compile=False`.
    @keras.saving.register_keras_serializable(package="lottery", name="WarmupAndDrops")
    class WarmupAndDrops(schedules.LearningRateSchedule):
        def __init__(self, learning_rate: Any, first_step: Any, **shape: Any) -> None:
            super().__init__()
            self.learning_rate, self.shape = learning_rate, shape
            self.first_step = 0 if first_step is None else first_step

        def __call__(self, step: Any) -> Any:
            import tensorflow as tf

            own, warmup_steps, drop_at = self.learning_rate, self.shape["warmup_steps"], self.shape["drop_at"]
            at, place = tf.cast(tf.convert_to_tensor(step), tf.int64), tf.cast(self.first_step, tf.int64)
            at = at * place[1] // place[2] + place[0] if place.shape.rank else at + place
            if self.shape["last_step"] is not None:
                at = tf.minimum(at, tf.constant(self.shape["last_step"], tf.int64))
            rate: Any = own(at) if callable(own) else tf.constant(own, tf.float32)
            if warmup_steps > 1:
                rate *= tf.minimum(tf.cast(1, rate.dtype), tf.cast(at + 1, rate.dtype) / warmup_steps)
            if drop_at:
                # Powers from a table are rounded once.
                powers = [self.shape["drop_factor"] ** index for index in range(len(drop_at) + 1)]
                passed = tf.reduce_sum(tf.cast(at >= tf.constant(drop_at, tf.int64), tf.int32))
                rate *= tf.gather(tf.constant(powers, rate.dtype), passed)
            return rate

        def get_config(self) -> dict[str, Any]:
            rate = schedules.serialize(self.learning_rate) if callable(self.learning_rate) else self.learning_rate
            return {"learning_rate": rate, "first_step": int(np.ravel(self.first_step)[0]), **self.shape}

        @classmethod
        def from_config(cls, config: dict[str, Any]) -> Any:
            rate = config["learning_rate"]
            return cls(**config | {"learning_rate": schedules.deserialize(rate) if isinstance(rate, dict) else rate})

    return WarmupAndDrops


PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}  # operations that call Python, which XLA cannot compile

# Operations that keep their random state in the kernel, where nothing can reset it.
UNREPEATABLE = {
    "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal", "ParameterizedTruncatedNormal",
    "RandomGamma", "RandomPoissonV2", "RandomShuffle", "Multinomial",
}  # fmt: skip


@dataclass(frozen=True)
class Examined:
    """Facts about a model's own steps."""

    # Names that ``train_step`` and ``test_step`` report; empty if they report the model's metrics, as Keras' own do.
    train_logs: tuple[str, ...]
    test_logs: tuple[str, ...]
    unrepeatable: tuple[str, ...]  # operations that draw random numbers which a resumed run cannot repeat
    calls_python: bool  # in a training step
    step: Any  # ``train_step`` on the example, traced; it may update one weight only
    variables: tuple[Any, ...]  # of that step, kept alive: Keras drops its global generator with each new seed


def compile_model(model: Any, settings: Train, example: Any, schedule_step: Any = None) -> None:
    """Give a model its optimizer and loss, unless it comes compiled: then it keeps its own, and its metrics.

    The loss is a cross-entropy: for probabilities if the outputs on the example, a few inputs, are not negative and sum
    to one, else for logits. A learning rate with a schedule adds the variable `schedule_step` to the optimizer's count.
    """
    keras = keras_of(model)
    if is_compiled(model):
        if optimizers.delegates(model.optimizer):
            model.optimizer.build(model.trainable_variables)  # before, it may not know the optimizers
        for one in optimizers.plain(model.optimizer):
            own = getattr(one, "_learning_rate", None)
            if schedule_step is not None and isinstance(own, keras.optimizers.schedules.LearningRateSchedule):
                one._learning_rate = schedule(keras, own, first_step=schedule_step, last_step=settings.num_steps - 1)
        return
    if settings.optimizer == COMPILED:
        raise LotteryError('train.optimizer = "compiled" needs a compiled model; this model is not compiled.')
    with _fitting(model):
        outputs = model(example, training=False)
    if not hasattr(outputs, "shape"):
        what = "several outputs" if len(outputs) > 1 else "a dict" if isinstance(outputs, Mapping) else "a list"
        raise LotteryError(
            f"The model returns {what}, so no loss can be chosen; compile the model with its losses and metrics"
            f"{', or have it return the output itself' if len(outputs) == 1 else ''}."
        )
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


def reads_integers(model: Any, inputs: np.ndarray) -> bool:
    """Check if a model takes its inputs, a few examples, as whole numbers, as an Embedding does: they are no pixels."""
    import tensorflow as tf

    with _fitting(model):
        called = traced_call(model, tf.TensorSpec(inputs.shape, tf.float32))
    waiting = [called.inputs[0]]
    while waiting:
        for operation in waiting.pop().consumers():
            if operation.type == "Cast" and operation.outputs[0].dtype.is_integer:
                return True
            if operation.type in ("Cast", "Identity"):
                waiting.append(operation.outputs[0])
    return False


def fixed_batch(model: Any) -> int | None:
    """Return the number of examples that each batch of a model must have; None if it takes others too.

    Many layers take any number, whatever the shape of the model's input says, so another number is tried.
    """
    import tensorflow as tf

    inputs = getattr(model, "inputs", None) or []
    if len(inputs) != 1 or not len(inputs[0].shape) or inputs[0].shape[0] is None:
        return None
    size, *shape = inputs[0].shape
    try:
        traced_call(model, tf.TensorSpec((size + 1, *shape), inputs[0].dtype))
    except Exception:  # a user's layers may raise anything
        return size
    return None


def check_batches(model: Any, data: Splits, batch_size: int, num_scored: int | None = None) -> None:
    """Raise `LotteryError` if the data cannot be cut into batches of the size that a model fixes.

    `num_scored` is the number of examples in the batch of a criterion that needs one.
    """
    if (size := fixed_batch(model)) is None:
        return
    if stateful := [layer.name for layer in model._flatten_layers() if getattr(layer, "stateful", False)]:
        raise LotteryError(
            f"The layer {stateful[0]!r} is stateful: it goes on from one batch to the next, but the examples of "
            "batches are drawn at random; build it with stateful=False."
        )
    for key, received in {"train.batch_size": batch_size, "prune.num_examples": num_scored}.items():
        if received not in (size, None):
            raise LotteryError(
                f"{key}: received {received}, but the model takes batches of {size} examples alone; set it to {size}, "
                "or build the model without a batch size."
            )
    for part, split in (("validation", data.validation), ("test", data.test)):
        if len(split) % size:
            raise LotteryError(
                f"The model takes batches of {size} examples alone, but there are {len(split)} {part} examples; "
                f"allowed is a multiple of {size}, or a model without a batch size."
            )


def check_data(model: Any, data: Splits, batch_size: int, example: Any) -> None:
    """Raise `LotteryError` if a batch is larger than the data, or a label is no class of the model."""
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
        outputs = model(example, training=False)
    if not hasattr(outputs, "shape"):  # a dict or a list, which the loss takes apart
        return
    *positions, num_classes = outputs.shape[1:]
    for part, split in (("training", data.train), ("validation", data.validation), ("test", data.test)):
        if split.y.dtype.kind != "i" or split.y.shape[1:] not in (tuple(positions), (*positions, 1)):
            raise LotteryError(
                f"The {part} labels have type {split.y.dtype} and shape {split.y.shape[1:]} for an example, allowed is "
                f"one whole number, the class, for each output of shape {tuple(positions)}."
            )
        # TensorFlow would turn a label that is no class into NaN, or into nothing at all.
        lowest, highest = int(split.y.min()), int(split.y.max())
        if highest >= num_classes or (lowest < 0 and getattr(model.loss, "ignore_class", None) != lowest):
            raise LotteryError(
                f"The {part} labels go {f'up to {highest}' if lowest >= 0 else f'down to {lowest}'}, allowed are 0 to "
                f"{num_classes - 1}: the model has {num_classes} outputs."
            )


def examine(model: Any, example: tuple[Any, Any]) -> Examined:
    """See what a compiled model's own steps report and draw, without taking one for training.

    This also creates its metrics and slots. Created later, while the loop is traced, they would not be reset.
    """
    import tensorflow as tf

    with _fitting(model), mirrored.scope(mirrored.strategy_of(model)):
        test_logs = mirrored.on_each(model, model.test_step, example)
        model.optimizer.build(model.trainable_variables)
        train = tf.function(lambda batch: mirrored.on_each(model, model.train_step, batch), autograph=False)
        with _updating_one_weight(model):
            traced = train.get_concrete_function(example)
        metrics = set(model.get_metrics_result())
    graph = traced.graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return Examined(
        train_logs=_own_logs(traced.structured_outputs, metrics, "train_step"),
        test_logs=_own_logs(test_logs, metrics, "test_step"),
        unrepeatable=tuple(sorted({node.op for node in nodes} & UNREPEATABLE)),
        calls_python=not PYTHON.isdisjoint(node.op for node in nodes),
        step=traced,
        variables=tuple(traced.graph.variables),
    )


def traced_test_step(model: Any, example: tuple[Any, Any]) -> Any:
    """Trace a compiled model's ``test_step`` on an example."""
    import tensorflow as tf

    with _fitting(model):
        return tf.function(model.test_step, autograph=False).get_concrete_function(example)


def traced_end(model: Any) -> Any:
    """Trace what gives a compiled model the weights that training ends with; see `optimizers.finalize`."""
    import tensorflow as tf

    with evaluating("The optimizer's finalize_variable_values cannot be traced"):
        return tf.function(lambda: optimizers.finalize(model), autograph=False).get_concrete_function()


def traced_under(
    model: Any, example: tuple[Any, Any], masks: Any, enforce: Callable[..., contextlib.AbstractContextManager[Any]]
) -> Any:
    """Trace a compiled model's ``train_step`` on an example while an enforcement holds masks."""
    import tensorflow as tf

    with _fitting(model), enforce(model, masks) as callbacks:

        def step(batch: Any) -> Any:
            logs = model.train_step(batch)
            for one in callbacks:
                one.on_train_batch_end(tf.constant(0), logs)
            return logs

        return tf.function(step, autograph=False).get_concrete_function(example)


def observe(examined: Examined, example: tuple[Any, Any], num_steps: int = 8) -> list[float]:
    """Take a few of the examined steps on the example, and return what they report; then put every variable back."""
    import keras

    before, reported = [np.array(one.numpy()) for one in examined.variables], []
    with randomness.put_back():
        keras.utils.set_random_seed(0)  # a step may call Python, and draw there
        try:
            for _ in range(num_steps):
                logs = examined.step(example)
                values = [np.mean(np.asarray(logs[name], np.float64)) for name in logs]
                # JSON has no infinity and no NaN.
                reported += [float(value) if np.isfinite(value) else -1.0 for value in values]
        finally:
            for variable, value in zip(examined.variables, before, strict=True):
                variable.assign(value)
    return reported


@contextlib.contextmanager
def _updating_one_weight(model: Any) -> Iterator[None]:
    """Have Keras' own training step update one weight, for a while, if each weight would be updated alike.

    The loop traces the step once more, and most of a trace is the updates. Those of Keras' own optimizers are the same
    for each weight, but for constraints, for weights without decay, and for optimizers that choose by weight.
    """
    optimizer = model.optimizer
    own_steps = not (is_keras(type(model).train_step) and is_keras(type(optimizer)))
    if own_steps or "apply_gradients" in vars(optimizer) or not _updates_alike(model):
        yield
        return
    apply = optimizer.apply_gradients

    def apply_one(grads_and_vars: Any, *arguments: Any, **named: Any) -> Any:
        pairs = list(grads_and_vars)
        return apply([pair for pair in pairs if pair[0] is not None][:1] or pairs, *arguments, **named)

    vars(optimizer)["apply_gradients"] = apply_one  # past Keras' __setattr__, which keeps track of what is assigned
    try:
        yield
    finally:
        del vars(optimizer)["apply_gradients"]


def _updates_alike(model: Any) -> bool:
    """Check that an optimizer of Keras' own treats all weights of a model in the same way."""
    if optimizers.delegates(model.optimizer):
        return False
    (inner,) = optimizers.plain(model.optimizer)
    chosen = [getattr(inner, f"_exclude_from_weight_decay{suffix}", None) for suffix in ("", "_pattern")]
    constrained = any(getattr(one, "constraint", None) is not None for one in model.trainable_variables)
    return not (constrained or any(chosen) or type(inner).__name__ == "Muon")


def step_variable() -> Any:
    """Make a variable for where a learning rate's schedule begins, and its pace; see `schedule`.

    A trace reads it anew each time.
    """
    import tensorflow as tf

    return tf.Variable(tf.constant([0, 1, 1], tf.int64), trainable=False)


def optimizer(keras: Any, settings: Train, schedule_step: Any = None) -> Any:
    """Make the Keras optimizer of an experiment, or raise `LotteryError` if Keras refuses an argument."""
    table = {"name": settings.optimizer} if isinstance(settings.optimizer, str) else dict(settings.optimizer)
    name = table.pop("name")
    try:
        rate = settings.learning_rate
        if isinstance(rate, dict):
            arguments = dict(rate)
            kind, known = arguments.pop("name"), _schedules(keras)
            if kind not in known:
                raise unknown("train.learning_rate", kind, known)
            rate = known[kind](**arguments)
        shape = (settings.warmup_steps, settings.drop_at, settings.drop_factor)
        rate = schedule(keras, rate, *shape, schedule_step, settings.num_steps - 1)
        # By class: keras.optimizers.get does not know all of them.
        classes = {key.lower(): value for key, value in vars(keras.optimizers).items() if isinstance(value, type)}
        return classes[name](learning_rate=rate, **table)
    except LotteryError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise LotteryError(f"train.optimizer {name!r} or its learning rate cannot be made: {reason(error)}") from None


def _schedules(keras: Any) -> dict[str, Any]:
    """Return the classes of learning rate schedules by name: the module also has functions, which import by name."""
    base = keras.optimizers.schedules.LearningRateSchedule
    known = {name: value for name, value in vars(keras.optimizers.schedules).items() if isinstance(value, type)}
    return {name: value for name, value in known.items() if issubclass(value, base) and value is not base}


def _fitting(model: Any) -> contextlib.AbstractContextManager[None]:
    return evaluating(f"The model {model.name!r} cannot be trained on the data")


def _own_logs(logs: Any, metrics: set[str], step: str) -> tuple[str, ...]:
    if not isinstance(logs, dict):
        raise LotteryError(f"The model's {step} returns {type(logs).__name__}, allowed is a dict of what it reports.")
    return () if set(logs) == metrics else tuple(logs)
