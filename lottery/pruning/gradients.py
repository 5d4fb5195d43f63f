"""Criteria that need gradients of a network's loss."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from lottery import weights
from lottery.errors import LotteryError, missing
from lottery.models import graph
from lottery.models.kerases import evaluating, is_keras, keras_of

Scores = dict[str, np.ndarray]

TEMPERATURE = 200.0  # of GraSP: pruner/GraSP.py of its authors, and the code released with Frankle et al. 2021


def connection_sensitivity(model: Any, x: Any, y: Any, names: Sequence[str]) -> Scores:
    """Compute SNIP's |g * w|, Lee et al. 2019, https://arxiv.org/abs/1810.02340, equations 4 to 6, not normalised.

    The loss is that of the compiled model, regularisation included, in training mode. The same model and batch give the
    same scores, in double precision, and the model is restored afterwards.
    """
    gradients, held = _derivatives(model, x, y, names, twice=False), weights.read_state(model)
    return finite({name: np.abs(gradients[name] * held[name].astype(np.float64)) for name in names}, "SNIP")


def gradient_flow(model: Any, x: Any, y: Any, names: Sequence[str], temperature: float = TEMPERATURE) -> Scores:
    """Compute GraSP's -S = w * (H g), Wang et al. 2020, https://arxiv.org/abs/2002.07376, equation 8.

    Gradient and Hessian are those of the loss of `connection_sensitivity`, with respect to the named weights only,
    without regularisation, and with the logits divided by a temperature: what goes into a softmax or sigmoid at the
    model's end, otherwise its outputs. Probabilities that come from anywhere else are refused.
    """
    with _softened(model, temperature) as soften:
        products, held = _derivatives(model, x, y, names, twice=True, soften=soften), weights.read_state(model)
    return finite({name: products[name] * held[name].astype(np.float64) for name in names}, "GraSP")


def loss_gradient(model: Any, names: Sequence[str]) -> Callable[[Any, Any], Scores]:
    """Make a function of a batch that computes the gradient g of the loss of `connection_sensitivity`, by weight.

    It is traced once, and reads the model's present weights.
    """
    import tensorflow as tf

    variables = weights.variables(model)
    chosen = [variables[name] for name in names]

    def differentiated(x: Any, y: Any) -> list[Any]:
        return _differentiated(model, lambda: _loss(model, x, y, training=True), chosen)

    compute: Any = tf.function(differentiated, autograph=False, reduce_retracing=True)

    def gradient(x: Any, y: Any) -> Scores:
        x, y = tf.nest.map_structure(tf.convert_to_tensor, (x, y))
        with (
            _restored(model),
            evaluating(f"The model {model.name!r} has no loss that can be evaluated and differentiated"),
        ):
            if compute.experimental_get_tracing_count() == 0:
                _loss(model, x, y, training=False)
            found = compute(x, y)
        return finite({name: np.array(value) for name, value in zip(names, found, strict=True)}, "The gradient")

    return gradient


def are_probabilities(output: np.ndarray, precision: float) -> bool:
    """Check if each row of an output adds up to one, to a precision."""
    wide = output.ndim > 1 and output.shape[-1] > 1
    return wide and bool((output >= 0).all() and np.allclose(output.sum(-1), 1, rtol=0, atol=precision))


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


def _derivatives(
    model: Any,
    x: Any,
    y: Any,
    names: Sequence[str],
    twice: bool,
    soften: Callable[[Any], Any] | None = None,
) -> Scores:
    """Compute the gradient g of the training loss or, if `twice`, H g; by weight, in double precision.

    `soften`, a function of the model's outputs, makes it the loss of what it returns, without regularisation.
    """
    import tensorflow as tf

    keras_of(model)
    variables = weights.variables(model)
    for name in names:
        if name not in variables:
            raise missing("The model has no weight", name, variables)
    chosen = [variables[name] for name in names]
    x, y = tf.nest.map_structure(tf.convert_to_tensor, (x, y))

    def derivatives() -> list[Any]:
        with tf.GradientTape() as outer:
            gradients = _differentiated(model, lambda: _loss(model, x, y, True, soften), chosen)
            # The gradient of g' g, the first g held constant, is exactly H g.
            squared = tf.add_n([tf.reduce_sum(tf.stop_gradient(value) * value) for value in gradients])
        return tensors(outer.gradient(squared, chosen), chosen) if twice else gradients

    with (
        _restored(model),
        evaluating(f"The model {model.name!r} has no loss that can be evaluated and differentiated"),
    ):
        # Keras makes variables at the first call, which must not be inside the graph.
        _loss(model, x, y, False, soften)
        # Calling the function itself, TensorFlow would warn of repeated tracing.
        found = tf.function(derivatives, autograph=False).get_concrete_function()()
    return {name: value.numpy().astype(np.float64) for name, value in zip(names, found, strict=True)}


def _loss(model: Any, x: Any, y: Any, training: bool, soften: Callable[[Any], Any] | None = None) -> Any:
    import tensorflow as tf

    # In training, normalisation uses the statistics of the batch: at initialisation the moving ones mean nothing.
    outputs = model(x, training=training)
    if soften is None:
        return model.compute_loss(x=x, y=y, y_pred=outputs, sample_weight=None)
    total = model.compute_loss(x=x, y=y, y_pred=soften(outputs), sample_weight=None)
    # Regularisation has no part in the loss of GraSP's authors, and would outweigh the rest of it.
    if model.losses and is_keras(type(model).compute_loss):  # which has added them
        total -= tf.cast(tf.add_n([tf.reduce_sum(loss) for loss in model.losses]), total.dtype)
    return total


def _differentiated(model: Any, loss: Callable[[], Any], variables: Sequence[Any]) -> list[Any]:
    """Differentiate a loss in a graph of its own, or raise if it does not depend on the variables."""
    import tensorflow as tf

    # Of this graph only. Layers of tf_keras draw for dropout from the kernel's state, and so always the same numbers;
    # those of Keras 3 have a state of their own, which `_restored` puts back.
    tf.random.set_seed(0)
    with tf.GradientTape() as tape:
        total = loss()
    gradients = tape.gradient(total, variables)
    if all(gradient is None for gradient in gradients):
        raise LotteryError(
            f"The loss of the model {model.name!r} does not depend on its prunable weights; compile it with a "
            "loss that does."
        )
    return tensors(gradients, variables)


@contextlib.contextmanager
def _softened(model: Any, temperature: float) -> Iterator[Callable[[Any], Any]]:
    """Divide what goes into a softmax or sigmoid at a model's end; the function yielded divides the other outputs."""
    import tensorflow as tf

    layers = list(graph.last_layers(model))
    activations = [(layer, layer.activation) for layer in dict.fromkeys(layers) if graph.is_squashing(layer)]
    divided = [graph.is_squashing(layer) for layer in layers]

    def soften(outputs: Any) -> Any:
        flat = tf.nest.flatten(outputs)
        done = divided if len(divided) == len(flat) else [bool(activations)] * len(flat)
        found = []
        for output, is_done in zip(flat, done, strict=True):
            if not is_done and tf.executing_eagerly() and are_probabilities(output.numpy(), 1e-5):
                raise LotteryError(
                    f"GraSP: the outputs of the model {model.name!r} are probabilities, and a temperature divides "
                    "logits; make the model return logits."
                )
            found.append(output if is_done else output / tf.cast(temperature, output.dtype))
        return tf.nest.pack_sequence_as(outputs, found)

    try:
        for layer, activation in activations:
            layer.activation = lambda value, own=activation: own(value / temperature)
        yield soften
    finally:
        for layer, activation in activations:
            layer.activation = activation


@contextlib.contextmanager
def _restored(model: Any) -> Iterator[None]:
    """Restore the variables, metrics and random states of a model on the way out."""
    held = weights.read_state(model)
    metrics = [(variable, np.array(variable.numpy())) for metric in model.metrics for variable in metric.variables]
    # Layers of tf_keras may keep a counter or a generator that is not among their variables.
    random = [layer._random_generator for layer in weights.all_layers(model) if hasattr(layer, "_random_generator")]
    seeds = [(generator, generator._seed) for generator in random if hasattr(generator, "_seed")]
    inner = [generator._generator for generator in random if getattr(generator, "_generator", None)]
    states = [(generator, generator.state.numpy()) for generator in inner]
    try:
        yield
    finally:
        weights.assign(model, held)
        known = {id(variable) for variable, _ in metrics}
        for metric in model.metrics:
            if any(id(variable) not in known for variable in metric.variables):
                metric.reset_state()
        for variable, value in metrics:
            variable.assign(value)
        for generator, seed in seeds:
            generator._seed = seed
        for generator, state in states:
            generator.state.assign(state)
