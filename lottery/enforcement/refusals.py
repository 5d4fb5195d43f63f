"""What a mode of enforcement cannot hold: each function raises `LotteryError`, and says what to use instead."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lottery import weights
from lottery.enforcement.entries import Held, check_kind
from lottery.errors import LotteryError
from lottery.models.kerases import is_keras


def spectral(model: Any, masks: Mapping[str, Any]) -> None:
    """Refuse a layer that assigns a masked weight while it computes."""
    check_kind(masks)
    named = weights.variables(model)
    masked_ids = {id(named[name]) for name in masks if name in named}
    for layer in weights.all_layers(model):
        is_spectral = any(cls.__name__ == "SpectralNormalization" and is_keras(cls) for cls in type(layer).__mro__)
        if is_spectral and masked_ids & {id(variable) for variable in layer.variables}:
            raise LotteryError(
                f"The layer {layer.name!r} is a SpectralNormalization, which assigns its weight while it computes. In "
                'the mode "reparameterization" the weight is then a tensor, which cannot be assigned; use another '
                'mode, such as "constraint".'
            )


def moved(model: Any, entries: list[Held]) -> None:
    """Refuse masked entries that have moved, in training that the mode had no part in."""
    for entry in entries:
        # Masks and values in variables may have been assigned since the last update.
        if hasattr(entry.mask, "assign") or hasattr(entry.value, "assign"):
            continue
        value, masked_entries = entry.variable.numpy(), ~np.asarray(entry.mask)
        if np.any(value[masked_entries] != np.asarray(entry.projected(value))[masked_entries]):
            raise LotteryError(
                f"{entry.name!r} has masked entries that changed while they were held: by code that assigns the weight "
                "without the optimizer, or by a function that was traced before, such as the fit of a model that "
                f"contains {model.name!r}. Hold the masks in the model that is trained, and check it with AuditMasks."
            )


def traced(model: Any) -> None:
    """Refuse a layer with a ``tf.function``, which would keep the tensors of its first trace."""
    for layer in weights.all_layers(model):
        for cls in type(layer).__mro__:
            found = [name for name, value in vars(cls).items() if hasattr(value, "get_concrete_function")]
            if found:
                raise LotteryError(
                    f"The layer {layer.name!r} has a tf.function, {found[0]!r}, which keeps what it has traced, and "
                    'reparameterization has another tensor in each trace; use another mode, such as "constraint".'
                )


def embeddings(model: Any, entries: list[Held]) -> None:
    """Refuse an embedding under an optimizer that takes no constraint where a gradient has single rows."""
    # An optimizer of tf_keras.optimizers.legacy, by the name of a method that no other has (tf_keras 2.21).
    if not hasattr(getattr(model, "optimizer", None), "get_slot_names"):
        return
    tables = {id(getattr(layer, "embeddings", None)) for layer in weights.all_layers(model)}
    for entry in entries:
        if id(entry.variable) in tables:
            raise LotteryError(
                f"{entry.name!r} is an embedding, whose masks an optimizer of tf_keras.optimizers.legacy cannot hold; "
                'use an optimizer of tf_keras.optimizers, or the mode "callback".'
            )


def several_steps(model: Any) -> None:
    """Refuse a model that takes several steps in a call, between which no callback acts."""
    # tf_keras 2.21 has a variable without a public name, before compiling None; Keras 3.15 has a number.
    in_variable: Any = getattr(model, "_steps_per_execution", None)
    num_steps = getattr(model, "steps_per_execution", None) if in_variable is None else in_variable.numpy()
    if getattr(model, "autotune_steps_per_execution", False):
        num_steps = "'auto'"  # it begins with 1, and grows
    if num_steps not in (None, 1):
        raise LotteryError(
            f"The model is compiled with steps_per_execution={num_steps}, and a callback cannot act between these "
            'steps; compile the model with 1, or use another mode, such as "constraint".'
        )
