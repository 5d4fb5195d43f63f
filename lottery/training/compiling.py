"""Make a model ready for training: build it in a precision, compile it, and see what its own steps report and draw."""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lottery import randomness, weights
from lottery.errors import LotteryError
from lottery.models import graph, optimizers
from lottery.models.kerases import (
    evaluating,
    in_policy,
    is_compiled,
    is_keras,
    keras_of,
    operations,
    put_back,
    tf,
    traced,
)
from lottery.training import mirrored, schedules
from lottery.training.examples import fitting
from lottery.training.settings import COMPILED, Train

PYTHON = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}  # operations that call Python, which XLA cannot compile

# Operations that keep their random state in the kernel, where nothing can reset it (TensorFlow 2.21).
UNREPEATABLE = {
    "RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal", "ParameterizedTruncatedNormal",
    "RandomGamma", "RandomPoissonV2", "RandomShuffle", "Multinomial",
}  # fmt: skip

NUM_OBSERVED = 8  # steps


def in_precision(build: Callable[[], Any], policy: str) -> Callable[[], Any]:
    """Make a function that builds the same model under a policy of Keras 3 and of tf_keras; see `in_full_precision`.

    The new one raises `LotteryError` if no layer gets the policy.
    """
    if hasattr(build, "trainable_variables"):  # a model, which `build_model` refuses
        return build

    @functools.wraps(build)
    def built() -> Any:
        import keras
        import tf_keras

        if "float64" in {library.mixed_precision.global_policy().name for library in (keras, tf_keras)}:
            return build()  # SynFlow computes in double precision, whatever the policy
        with in_policy(keras, policy), in_policy(tf_keras, policy):
            model = build()
        if hasattr(model, "layers") and policy not in policies(model):
            raise LotteryError(
                f'train.precision is "{policy}", but the function that builds the model sets others: its layers '
                f"have the policies {', '.join(sorted(policies(model)))}. Leave train.precision out."
            )
        return model

    return built


def in_full_precision(build: Callable[[], Any], settings: Train) -> Callable[[], Any]:
    """Return the function that `in_precision` was given, in which small numbers are not yet zero."""
    wrapped: Any = build
    # `functools.wraps` keeps the function that it has wrapped.
    return build if settings.in_full_precision else wrapped.__wrapped__


def policies(model: Any) -> set[str]:
    """Return the names of the policies of a model's layers with weights."""
    layers = [weights.inside(layer) for layer in weights.all_layers(model) if layer is not model]
    found = [getattr(layer, "dtype_policy", None) for layer in layers if layer.weights]
    return {"None" if policy is None else policy.name for policy in found}


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
    with fitting(model.name):
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


class Reported(NamedTuple):
    """Names that a step reports."""

    names: tuple[str, ...]  # in its order: of several accuracies the first counts
    of_metrics: Mapping[str, str]  # of results of metrics, which add up batches; by each, the name of the metric

    @property
    def own(self) -> tuple[str, ...]:
        """Those of numbers that the step has computed for its batch."""
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
    with fitting(model.name), mirrored.scope(mirrored.strategy_of(model)):
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
    # By this method: a variable of tf_keras 2.21 that is mirrored is no array to NumPy.
    values = [variable.numpy() for metric in model.metrics for variable in metric.variables]
    if is_keras(type(model).test_step) and values and not any(np.any(value) for value in values):
        raise LotteryError(
            "The model's metrics property leaves out the metrics that Keras' own test_step updates, so an evaluation "
            "reports 0 for each; give the model a test_step of its own."
        )


def traced_evaluation(model: Any, example: tuple[Any, Any]) -> list[Any]:
    """Trace ``test_step`` on an example, and what gives a model other weights at the end, if anything does."""
    with fitting(model.name):
        steps = [traced(model.test_step, example)]
    if optimizers.finalizes(model):
        with evaluating("The optimizer's finalize_variable_values cannot be traced"):
            steps.append(traced(lambda: optimizers.finalize(model)))
    return steps


def traced_under(
    model: Any, example: tuple[Any, Any], masks: Any, enforce: Callable[..., contextlib.AbstractContextManager[Any]]
) -> Any:
    """Trace a compiled model's ``train_step`` on an example while an enforcement holds masks."""
    with fitting(model.name), enforce(model, masks) as callbacks:

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


def _is_told_by_names(model: Any, step: str) -> bool:
    """Check if names are enough to tell that a step reports the model's metrics."""
    if all(is_keras(getattr(type(model), name)) for name in (step, "compute_metrics")):
        return True
    # Each device reports of its share, while metrics add up over devices, so their values differ.
    return mirrored.strategy_of(model) is not None


def _reported(model: Any, step: str, logs: Any, take: Callable[[], Any], touched: Iterable[Any] = ()) -> Reported:
    """Tell what a step has reported of the model's metrics and what of its own.

    `take` takes it once more, and changes the variables `touched`, which are put back.
    """
    if not isinstance(logs, dict):
        raise LotteryError(f"The model's {step} must return a dict of what it reports, not {type(logs).__name__}.")
    logs = _numbers(logs)
    if _is_told_by_names(model, step):
        if set(logs) == set(_numbers(model.get_metrics_result())):
            return Reported(tuple(logs), {name: name for name in logs})
        return Reported(tuple(logs), {})
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
