"""See what a compiled model's own steps report and draw, by tracing them on an example before training."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lottery import randomness
from lottery.errors import LotteryError
from lottery.models import optimizers
from lottery.models.kerases import evaluating, is_keras, operations, put_back, tf, traced
from lottery.training import mirrored
from lottery.training.examples import fitting

PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}  # operations that call Python, which XLA cannot compile

# Operations that keep their random state in the kernel, where nothing can reset it (TensorFlow 2.21).
UNREPEATABLE = {
    "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal", "ParameterizedTruncatedNormal",
    "RandomGamma", "RandomPoissonV2", "RandomShuffle", "Multinomial",
}  # fmt: skip

NUM_OBSERVED = 8  # steps


class Reported(NamedTuple):
    """Names that a step reports."""

    names: tuple[str, ...]  # in its order: of several accuracies the first counts
    of_metrics: Mapping[str, str]  # of results of metrics, which add up batches; by each, the name of the metric

    @property
    def own(self) -> tuple[str, ...]:
        """The names of numbers that the step has computed for its batch."""
        return tuple(name for name in self.names if name not in self.of_metrics)

    def results(self, model: Any, means: Mapping[str, Any]) -> dict[str, Any]:
        """Return the results of the metrics, over all batches since they were reset, with the means of own numbers."""
        # Keras 3.15 has no results of compiled metrics that no step updates.
        found = model.get_metrics_result() if self.of_metrics else {}
        values = {**means, **{name: found[metric] for name, metric in self.of_metrics.items()}}
        return {name: values[name] for name in self.names}


@dataclass(frozen=True)
class Examined:
    """Facts about a model's own steps."""

    train_logs: Reported
    test_logs: Reported
    unrepeatable: tuple[str, ...]  # operations that draw random numbers which a resumed run cannot repeat
    calls_python: bool  # in a training step
    step: Any  # ``train_step`` on the example, traced; it may update one weight only
    variables: tuple[Any, ...]  # of that step, kept alive: Keras drops its global generator with each new seed


def examine(model: Any, example: tuple[Any, Any]) -> Examined:
    """See what a compiled model's own steps report and draw, by tracing them on an example."""
    with fitting(model), mirrored.scope(mirrored.strategy_of(model)):
        # Both create variables, metrics and slots. Created later, while the loop is traced, they would not be reset.
        model.reset_metrics()
        evaluate = functools.partial(mirrored.on_each, model, model.test_step, example)
        test_logs = _reported(model, "test_step", evaluate(), evaluate)
        _check_evaluation(model)
        _build_optimizer(model)
        with _updating_one_weight(model):
            step = traced(lambda batch: mirrored.on_each(model, model.train_step, batch), example)
        take = functools.partial(step, example)
        train_logs = _reported(model, "train_step", step.structured_outputs, take, step.graph.variables)
    used = operations(step)
    return Examined(
        train_logs=train_logs,
        test_logs=test_logs,
        unrepeatable=tuple(sorted(used & UNREPEATABLE)),
        calls_python=not PYTHON.isdisjoint(used),
        step=step,
        variables=tuple(step.graph.variables),
    )


def _build_optimizer(model: Any) -> None:
    """Make the variables of a model's optimizer, or raise `LotteryError` if it cannot be trained with."""
    if not hasattr(model.optimizer, "build"):
        raise LotteryError("Optimizers of tf_keras.optimizers.legacy are not supported; use tf_keras.optimizers.")
    model.optimizer.build(model.trainable_variables)
    for inner in optimizers.plain(model.optimizer):
        if hasattr(inner, "_u_product_counter"):  # tf_keras 2.21
            raise LotteryError(
                "tf_keras' Nadam counts its steps when it is traced, and not when it trains, so its results depend on "
                "how often that happens; use another optimizer, or a Keras 3 model."
            )


def _check_evaluation(model: Any) -> None:
    """Raise `LotteryError` if an evaluation by Keras' own step, which has just been done, has reached no metric."""
    # By this method: a variable of tf_keras 2.21 that is mirrored is not an array to NumPy.
    values = [variable.numpy() for metric in model.metrics for variable in metric.variables]
    if is_keras(type(model).test_step) and values and not any(np.any(value) for value in values):
        raise LotteryError(
            "The model's metrics property leaves out the metrics that Keras' own test_step updates, so an evaluation "
            "reports 0 for each; give the model a test_step of its own."
        )


def traced_evaluation(model: Any, example: tuple[Any, Any]) -> list[Any]:
    """Trace ``test_step`` on an example, and what gives a model other weights at the end, if anything does."""
    with fitting(model):
        steps = [traced(model.test_step, example)]
    if optimizers.finalizes(model):
        with evaluating("The optimizer's finalize_variable_values cannot be traced"):
            steps.append(traced(lambda: optimizers.finalize(model)))
    return steps


def traced_under(
    model: Any, example: tuple[Any, Any], masks: Any, enforce: Callable[..., contextlib.AbstractContextManager[Any]]
) -> Any:
    """Trace a compiled model's ``train_step`` on an example while an enforcement holds masks."""
    with fitting(model), enforce(model, masks) as callbacks:

        def step(batch: Any) -> Any:
            logs = model.train_step(batch)
            for callback in callbacks:
                callback.on_train_batch_end(tf.constant(0), logs)
            return logs

        return traced(step, example)


def observe(examined: Examined, example: tuple[Any, Any]) -> list[float]:
    """Take a few of the examined steps on the example, and return what they report; then put every variable back."""
    import keras

    reported = []
    with put_back(examined.variables), randomness.put_back():
        keras.utils.set_random_seed(0)  # a step may call Python, and draw there
        for _ in range(NUM_OBSERVED):
            logs = flat(examined.step(example))
            values = [np.mean(np.asarray(logs[name], np.float64)) for name in logs]
            # JSON has no infinity and no NaN.
            reported += [float(value) if np.isfinite(value) else -1.0 for value in values]
    return reported


@contextlib.contextmanager
def _updating_one_weight(model: Any) -> Iterator[None]:
    """Have Keras' own training step update one weight, for a while, if each weight would be updated alike."""
    # The loop traces the step once more, and most of a trace is the updates. Those of Keras' own optimizers are the
    # same for each weight, but for constraints, for weights without decay, and for optimizers that choose by weight.
    optimizer = model.optimizer
    updates_alike = (
        is_keras(type(model).train_step)
        and is_keras(type(optimizer))
        and "apply_gradients" not in vars(optimizer)
        and not optimizers.delegates(optimizer)
        and all(getattr(variable, "constraint", None) is None for variable in model.trainable_variables)
        and not any(optimizers.leaves_out_of_decay(inner) for inner in optimizers.plain(optimizer))
        and not any(type(inner).__name__ == "Muon" for inner in optimizers.plain(optimizer))
    )
    if not updates_alike:
        yield
        return
    apply = optimizer.apply_gradients

    def apply_first(grads_and_vars: Any, *arguments: Any, **named: Any) -> Any:
        pairs = list(grads_and_vars)
        # Keras 3.15 and tf_keras 2.21 refuse gradients that are all None, and that of the first weight may be.
        with_gradient = [pair for pair in pairs if pair[0] is not None]
        return apply(with_gradient[:1] or pairs, *arguments, **named)

    # Past the __setattr__ of Keras 3.15 and tf_keras 2.21, which keeps track of what is assigned.
    vars(optimizer)["apply_gradients"] = apply_first
    try:
        yield
    finally:
        del vars(optimizer)["apply_gradients"]


def flat(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Take dicts within a report apart, as ``fit`` does: Keras' CompileMetrics reports one."""
    found: dict[str, Any] = {}
    for name, value in logs.items():
        found |= flat(value) if isinstance(value, Mapping) else {name: value}
    return found


def _numbers(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the single numbers of a report: a list of numbers, as of each class, is no loss and no accuracy."""
    found = flat(logs)
    shapes = {name: tf.TensorShape(getattr(value, "shape", ())) for name, value in found.items()}
    return {name: value for name, value in found.items() if shapes[name].rank in (0, None)}


def _reported(model: Any, step: str, logs: Any, take: Callable[[], Any], touched: Iterable[Any] = ()) -> Reported:
    """Tell what a step has reported of the model's metrics and what of its own.

    `take` takes it once more, and changes the variables `touched`, which are put back.
    """
    if not isinstance(logs, dict):
        raise LotteryError(f"The model's {step} must return a dict of what it reports, not {type(logs).__name__}.")
    logs = _numbers(logs)
    is_of_keras = all(is_keras(getattr(type(model), name)) for name in (step, "compute_metrics"))
    # By names alone. Each device reports of its share, while metrics add up over devices, so their values differ.
    if is_of_keras or mirrored.strategy_of(model) is not None:
        are_metrics = set(logs) == set(_numbers(model.get_metrics_result()))
        return Reported(tuple(logs), {name: name for name in logs if are_metrics})
    logs, results = _at_odd_values(model, take, touched)
    of_metrics = {}
    for name, value in logs.items():
        # A graph may round otherwise than the same operations one by one.
        same = [key for key in results if np.allclose(value, results[key], rtol=1e-6, atol=0, equal_nan=True)]
        keys = [key for key in same if key == name] or [key for key in same if key not in logs]
        if keys:
            of_metrics[name] = keys[0]
    reported = Reported(tuple(logs), of_metrics)
    reported.results(model, logs)  # refuses here what it would refuse in the loop
    return reported


def _at_odd_values(
    model: Any, take: Callable[[], Any], touched: Iterable[Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take a step while metrics begin at odd values, and return what it reports and what the metrics result in."""
    # A name alone tells nothing: a step may report a loss of its own beside a metric "loss" that it never updates. Nor
    # does a value after the first batch, of which another metric may make the same.
    metrics = [metric for metric in model.metrics if metric.variables]  # those that are built
    own = [variable for metric in metrics for variable in metric.variables]
    rng = np.random.default_rng(0)
    with put_back([*own, *touched]), randomness.put_back():
        for variable in own:
            if tf.as_dtype(variable.dtype).is_floating:
                value = np.asarray(variable)
                variable.assign(value + rng.uniform(1, 2, value.shape).astype(value.dtype))
        return _numbers(take()), _numbers({metric.name: metric.result() for metric in metrics})
