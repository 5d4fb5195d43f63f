"""Build models under a dtype policy of Keras, and see what they compute with."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from lottery import weights
from lottery.errors import LotteryError

FULL = "float32"


def building(build: Callable[[], Any], policy: str) -> Callable[[], Any]:
    """A function that builds what another does under a policy, in Keras 3 and in tf_keras.

    Under ``"float32"``, the default, the function is given back: what it builds is what its builder says.

    Raises:
        LotteryError: When it is called: nothing of what it has built computes as the policy says.
    """
    if policy == FULL:
        return build

    @functools.wraps(build)
    def built() -> Any:
        with _everywhere(policy):
            model = build()
        if hasattr(model, "_flatten_layers") and policy not in policies(model):
            raise LotteryError(
                f'train.precision: received "{policy}", and the function that builds the model says otherwise: its '
                f"layers have the policies {', '.join(sorted(policies(model)))}; leave train.precision out."
            )
        return model

    return built


def policies(model: Any) -> set[str]:
    """The names of the policies that a model's layers with weights have."""
    layers = [weights.inside(layer) for layer in model._flatten_layers(include_self=False)]
    return {_policy(layer) for layer in layers if layer.weights}


@contextlib.contextmanager
def _everywhere(policy: str) -> Iterator[None]:
    import keras
    import tf_keras

    libraries = (keras.mixed_precision, tf_keras.mixed_precision)
    before = [library.global_policy() for library in libraries]
    for library in libraries:
        library.set_global_policy(policy)
    try:
        yield
    finally:
        for library, one in zip(libraries, before, strict=True):
            library.set_global_policy(one)


def _policy(layer: Any) -> str:
    return str(getattr(layer, "dtype_policy", None) and layer.dtype_policy.name)
