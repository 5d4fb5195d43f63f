"""Build a model in a precision: under a policy of Keras 3 and of tf_keras."""

import functools
from collections.abc import Callable
from typing import Any

from lottery import weights
from lottery.errors import LotteryError
from lottery.models.kerases import in_policy


def in_precision(build: Callable[[], Any], policy: str) -> Callable[[], Any]:
    """Make a function that builds the same model under a policy of Keras 3 and of tf_keras; see `in_full_precision`.

    The new function raises `LotteryError` if no layer gets the policy.
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


def in_full_precision(build: Any) -> Callable[[], Any]:
    """Return the function that `in_precision` was given, in whose models small numbers are not yet zero."""
    # `functools.wraps` keeps the function that it has wrapped.
    return build.__wrapped__


def policies(model: Any) -> set[str]:
    """Return the names of the policies of a model's layers with weights."""
    layers = [weights.inside(layer) for layer in weights.all_layers(model) if layer is not model]
    found = [getattr(layer, "dtype_policy", None) for layer in layers if layer.weights]
    return {"None" if policy is None else policy.name for policy in found}
