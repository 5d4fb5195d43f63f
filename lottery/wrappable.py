"""Which layers pruning wrappers of tensorflow_model_optimization (tfmot) can take the place of, and why not others."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lottery import compiling, weights
from lottery.errors import LotteryError
from lottery.holding import Held

_OTHERWISE = 'or use another mode of enforcement, such as "constraint"'


def check_library(model: Any) -> None:
    """Raise `LotteryError` unless it is a tf_keras model: of Keras 3, tfmot only says that it cannot prune it."""
    if compiling.keras_of(model).__name__ != "tf_keras":
        raise LotteryError(
            f"The model {model.name!r} is a Keras 3 {type(model).__name__}, and tfmot wraps tf_keras models only; "
            f"build it with tf_keras, {_OTHERWISE}."
        )


def hosts(layers: Sequence[Any], entries: Sequence[Held]) -> tuple[dict[str, Any], dict[str, str]]:
    """Which layer a wrapper has to wrap for each weight.

    Args:
        layers: Layers that may be wrapped, outer ones before those inside them.
        entries: The weights.

    Returns:
        The layer for each weight that tfmot prunes, by the weight's name; and for each other weight the reason.
    """
    found, reasons = {}, {}
    pruned = {id(layer): _pruned(weights.inside(layer)) for layer in layers if layer.variables}
    for one in entries:
        around = [layer for layer in layers if _holds(layer.variables, one)]
        known = [layer for layer in around if pruned[id(layer)] is not None]
        taken = [layer for layer in known if _holds(pruned[id(layer)] or (), one)]
        if taken:
            found[one.name] = taken[0]
        elif known:
            names = [value.name.split(":")[0].rsplit("/", 1)[-1] for value in pruned[id(known[-1])] or ()]
            only = f"only {' and '.join(names)}" if names else "nothing"
            reasons[one.name] = f"of a {type(weights.inside(known[-1])).__name__} it prunes {only}"
        elif around:
            reasons[one.name] = f"it does not know the layer {type(around[-1]).__name__}"
        else:
            reasons[one.name] = "it cannot take apart a subclassed model"
    return found, reasons


def leaves(model: Any) -> dict[Any, bool]:
    """The layers of a model and of those inside it that can be replaced, each with whether it has masks of Keras.

    Args:
        model: A tf_keras model.

    Returns:
        By layer, whether Keras passes masks of inputs on from it, such as those of ``Embedding(..., mask_zero=True)``.
    """
    found: dict[Any, bool] = {}
    for layer, masked in _walk(model, False):
        found[layer] = masked or found.get(layer, False)
    return found


def difference(layer: Any, masked: bool) -> str | None:
    """What a wrapper around a layer would change besides its pruned weights, if anything.

    A wrapper calls the layer's ``call``, past what Keras does around it.

    Args:
        layer: A tf_keras layer.
        masked: Whether Keras passes masks of inputs on from it.
    """
    if masked:
        return "its wrapper would drop the masks that Keras passes on for padded inputs"
    if layer.compute_dtype != layer.variable_dtype:
        return f"its wrapper would round the weights to {layer.compute_dtype} at every step"
    if getattr(layer, "activity_regularizer", None) is not None:
        return "its wrapper cannot train with an activity regulariser"
    if getattr(layer, "stateful", False):
        return "its wrapper would hide its states from reset_states"
    return None


def refuse(reasons: Mapping[str, str]) -> None:
    """Raise `LotteryError` with the weights that tfmot cannot hold, if there are any."""
    if reasons:
        each = ", ".join(f"{name!r} ({reason})" for name, reason in reasons.items())
        raise LotteryError(f"tfmot cannot hold the masks of {each}; leave them out, {_OTHERWISE}.")


def with_layers(model: Any, new: dict[int, Any]) -> Any:
    """A model over the same layers but for some, which are replaced.

    Args:
        model: A Sequential or functional tf_keras model.
        new: By identity of a layer, wherever it is in the model or in those inside it, what takes its place.

    Returns:
        The new model, not compiled; `model` is left as it is.

    Raises:
        LotteryError: Keras cannot build it.
    """
    import tf_keras

    def layer_of(layer: Any) -> Any:
        if isinstance(layer, tf_keras.Model) and any(id(inner) in new for inner in layer._flatten_layers()):
            new.setdefault(id(layer), with_layers(layer, new))  # once, for it may be shared
        return new.get(id(layer), layer)

    try:
        copy = tf_keras.models.clone_model(model, clone_function=layer_of)
    except LotteryError:
        raise
    except Exception as error:  # a user's layers may raise anything
        raise LotteryError(
            f"Keras cannot build the model {model.name!r} anew from its layers, as tfmot needs it: "
            f"{compiling.reason(error)}"
        ) from error
    if type(copy) is not type(model):
        raise LotteryError(
            f"Keras makes a plain {type(copy).__name__} of the {type(model).__name__} {model.name!r}, without its own "
            'methods; use a Sequential or functional model, or the mode of enforcement "tfmot", which copies nothing.'
        )
    return copy


def _pruned(layer: Any) -> Sequence[Any] | None:
    """The variables that a wrapper around a layer would prune; None where tfmot refuses it."""
    from tensorflow_model_optimization.python.core.sparsity.keras import prune_registry

    if hasattr(layer, "get_prunable_weights"):
        return layer.get_prunable_weights()
    if not prune_registry.PruneRegistry.supports(layer):
        return None
    try:
        return prune_registry.PruneRegistry.make_prunable(layer).get_prunable_weights()
    finally:
        del layer.get_prunable_weights  # asking must leave no trace


def _holds(variables: Sequence[Any], one: Held) -> bool:
    return any(value is one.variable for value in variables)


def _walk(model: Any, masked: bool) -> Iterator[tuple[Any, bool]]:
    import tf_keras

    if not (isinstance(model, tf_keras.Sequential) or model._is_graph_network):
        return
    for layer in model.layers:
        if isinstance(layer, tf_keras.Model):
            yield from _walk(layer, masked or any(_has_mask(node.input_tensors) for node in layer._inbound_nodes))
        else:
            yield layer, masked or any(_has_mask(node.output_tensors) for node in layer._inbound_nodes)


def _has_mask(tensors: Any) -> bool:
    import tensorflow as tf

    return any(getattr(tensor, "_keras_mask", None) is not None for tensor in tf.nest.flatten(tensors))
