"""See what a compiled model's own steps report and draw, before anything is trained."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery import randomness
from lottery.errors import LotteryError
from lottery.models import optimizers
from lottery.models.kerases import evaluating, is_keras
from lottery.training import mirrored
from lottery.training.examples import fitting

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


def examine(model: Any, example: tuple[Any, Any]) -> Examined:
    """See what a compiled model's own steps report and draw, without taking one for training.

    This also creates its metrics and slots. Created later, while the loop is traced, they would not be reset.
    """
    import tensorflow as tf

    with fitting(model), mirrored.scope(mirrored.strategy_of(model)):
        test_logs = mirrored.on_each(model, model.test_step, example)
        model.optimizer.build(model.trainable_variables)
        train = tf.function(lambda batch: mirrored.on_each(model, model.train_step, batch), autograph=False)
        with _updating_one_weight(model):
            traced = train.get_concrete_function(example)
        metrics = set(model.get_metrics_result())
    graph = traced.graph.as_graph_def()
    operations = {node.op for node in graph.node}
    for function in graph.library.function:
        operations |= {node.op for node in function.node_def}
    return Examined(
        train_logs=_own_logs(traced.structured_outputs, metrics, "train_step"),
        test_logs=_own_logs(test_logs, metrics, "test_step"),
        unrepeatable=tuple(sorted(operations & UNREPEATABLE)),
        calls_python=not PYTHON.isdisjoint(operations),
        step=traced,
        variables=tuple(traced.graph.variables),
    )


def traced_test_step(model: Any, example: tuple[Any, Any]) -> Any:
    """Trace a compiled model's ``test_step`` on an example."""
    import tensorflow as tf

    with fitting(model):
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

    with fitting(model), enforce(model, masks) as callbacks:

        def step(batch: Any) -> Any:
            logs = model.train_step(batch)
            for callback in callbacks:
                callback.on_train_batch_end(tf.constant(0), logs)
            return logs

        return tf.function(step, autograph=False).get_concrete_function(example)


def observe(examined: Examined, example: tuple[Any, Any], num_steps: int = 8) -> list[float]:
    """Take a few of the examined steps on the example, and return what they report; then put every variable back."""
    import keras

    before = [np.array(variable.numpy()) for variable in examined.variables]
    reported = []
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
    is_own = not (is_keras(type(model).train_step) and is_keras(type(optimizer)))
    if is_own or "apply_gradients" in vars(optimizer) or not _updates_alike(model):
        yield
        return
    apply = optimizer.apply_gradients

    def apply_one(grads_and_vars: Any, *arguments: Any, **named: Any) -> Any:
        pairs = list(grads_and_vars)
        with_gradient = [pair for pair in pairs if pair[0] is not None]
        return apply(with_gradient[:1] or pairs, *arguments, **named)

    # Past the __setattr__ of Keras 3.15 and tf_keras 2.21, which keeps track of what is assigned.
    vars(optimizer)["apply_gradients"] = apply_one
    try:
        yield
    finally:
        del vars(optimizer)["apply_gradients"]


def _updates_alike(model: Any) -> bool:
    """Check that an optimizer of Keras' own treats all weights of a model in the same way."""
    if optimizers.delegates(model.optimizer):
        return False
    (inner,) = optimizers.plain(model.optimizer)
    is_constrained = any(getattr(variable, "constraint", None) is not None for variable in model.trainable_variables)
    return not (is_constrained or optimizers.leaves_out_of_decay(inner) or type(inner).__name__ == "Muon")


def _own_logs(logs: Any, metrics: set[str], step: str) -> tuple[str, ...]:
    if not isinstance(logs, dict):
        raise LotteryError(f"The model's {step} returns {type(logs).__name__}, allowed is a dict of what it reports.")
    return () if set(logs) == metrics else tuple(logs)
