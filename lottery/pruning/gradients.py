"""Criteria that need gradients of a network's loss."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lottery import weights
from lottery.errors import LotteryError, unknown
from lottery.models.library import evaluating, keras_of

Scores = dict[str, np.ndarray]


def connection_sensitivity(model: Any, x: Any, y: Any, names: Sequence[str]) -> Scores:
    """Compute SNIP's |g * w|, Lee et al. 2019, https://arxiv.org/abs/1810.02340, equations 4 to 6, not normalised.

    The loss is that of the compiled model, regularisation included, in training mode: normalisation uses the
    statistics of the batch (at initialisation the moving ones mean nothing), and dropout draws. Its random numbers
    depend on the model's own random state or, where layers keep theirs in the kernel, are always the same, so the same
    model and batch give the same scores. Weights, statistics, metrics and random states are restored afterwards.
    Scores are in double precision; a loss that cannot be evaluated, or does not depend on the weights, is refused.
    """
    gradients, held = _derivatives(model, x, y, names, twice=False), weights.read_state(model)
    return finite({name: np.abs(gradients[name] * held[name].astype(np.float64)) for name in names}, "SNIP")


def gradient_flow(model: Any, x: Any, y: Any, names: Sequence[str]) -> Scores:
    """Compute GraSP's -S = w * (H g), Wang et al. 2020, https://arxiv.org/abs/2002.07376, equation 8.

    Gradient and Hessian are those of the loss of `connection_sensitivity`, with respect to the named weights only. The
    product H g is exact: the gradient of g' g, the first g held constant.
    """
    products, held = _derivatives(model, x, y, names, twice=True), weights.read_state(model)
    return finite({name: products[name] * held[name].astype(np.float64) for name in names}, "GraSP")


def tensors(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Turn gradients into tensors: those of embeddings too, and zeros if there is none."""
    import tensorflow as tf

    return [
        tf.zeros(variable.shape, variable.dtype) if gradient is None else tf.convert_to_tensor(gradient)
        for gradient, variable in zip(gradients, variables, strict=True)
    ]


def finite(scores: Scores, what: str) -> Scores:
    """Return the scores; raise `LotteryError` if one of them is not a finite number."""
    for name, value in scores.items():
        if not np.isfinite(value).all():
            raise LotteryError(f"{what}: a score of {name!r} is {value[~np.isfinite(value)][0]}, not a finite number.")
    return scores


def _derivatives(model: Any, x: Any, y: Any, names: Sequence[str], twice: bool) -> Scores:
    """Compute the gradient g of the training loss or, if `twice`, H g; by weight, in double precision."""
    import tensorflow as tf

    keras_of(model)
    variables = weights.variables(model)
    for name in names:
        if name not in variables:
            raise unknown("The model has no weight of this name", name, variables)
    chosen = [variables[name] for name in names]
    x, y = tf.nest.map_structure(tf.convert_to_tensor, (x, y))

    def loss(training: bool) -> Any:
        return model.compute_loss(x=x, y=y, y_pred=model(x, training=training), sample_weight=None)

    def derivatives() -> list[Any]:
        tf.random.set_seed(0)  # of this graph only: layers of tf_keras draw from the kernel's state
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                total = loss(training=True)
            gradients = inner.gradient(total, chosen)
            if all(gradient is None for gradient in gradients):
                raise LotteryError(
                    f"The loss of the model {model.name!r} does not depend on its prunable weights; compile it with a "
                    "loss that does."
                )
            gradients = tensors(gradients, chosen)
            squared = tf.add_n([tf.reduce_sum(tf.stop_gradient(value) * value) for value in gradients])
        return tensors(outer.gradient(squared, chosen), chosen) if twice else gradients

    with (
        _restored(model),
        evaluating(f"The model {model.name!r} has no loss that can be evaluated and differentiated"),
    ):
        loss(training=False)  # Keras makes variables at the first call, which must not be inside the graph
        # Calling the function itself, TensorFlow would warn of repeated tracing.
        found = tf.function(derivatives, autograph=False).get_concrete_function()()
    return {name: value.numpy().astype(np.float64) for name, value in zip(names, found, strict=True)}


@contextlib.contextmanager
def _restored(model: Any) -> Iterator[None]:
    """Restore the variables, metrics and random states of a model on the way out."""
    held = weights.read_state(model)
    metrics = [(one, np.array(one.numpy())) for metric in model.metrics for one in metric.variables]
    # Layers of tf_keras may keep a counter or a generator that is not among their variables.
    random = [layer._random_generator for layer in model._flatten_layers() if hasattr(layer, "_random_generator")]
    seeds = [(one, one._seed) for one in random if hasattr(one, "_seed")]
    states = [(one._generator, one._generator.state.numpy()) for one in random if getattr(one, "_generator", None)]
    try:
        yield
    finally:
        weights.assign(model, held)
        known = {id(one) for one, _ in metrics}
        for metric in model.metrics:
            if any(id(one) not in known for one in metric.variables):
                metric.reset_state()
        for one, value in metrics:
            one.assign(value)
        for one, seed in seeds:
            one._seed = seed
        for one, state in states:
            one.state.assign(state)
