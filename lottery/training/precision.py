"""Build models under a dtype policy of Keras."""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

from lottery import weights
from lottery.errors import LotteryError

FULL = "float32"
_ASIDE: contextvars.ContextVar[bool] = contextvars.ContextVar("aside", default=False)


def building(build: Callable[[], Any], policy: str) -> Callable[[], Any]:
    """Make a function that builds the same model under a policy, in Keras 3 and in tf_keras.

    For ``"float32"`` this is the function itself. The new one raises `LotteryError` if no layer gets the policy.
    """
    if policy == FULL or hasattr(build, "trainable_variables"):  # a model, which `build_model` refuses
        return build

    @functools.wraps(build)
    def built() -> Any:
        import keras
        import tf_keras

        libraries = keras.mixed_precision, tf_keras.mixed_precision
        before = [library.global_policy() for library in libraries]
        # SynFlow computes in double precision, whatever the policy.
        if _ASIDE.get() or "float64" in {global_policy.name for global_policy in before}:
            return build()
        try:
            for library in libraries:
                library.set_global_policy(policy)
            model = build()
        finally:
            for library, global_policy in zip(libraries, before, strict=True):
                library.set_global_policy(global_policy)
        if hasattr(model, "layers") and policy not in policies(model):
            raise LotteryError(
                f'train.precision: received "{policy}", but the function that builds the model sets others: its '
                f"layers have the policies {', '.join(sorted(policies(model)))}; leave train.precision out."
            )
        return model

    return built


@contextlib.contextmanager
def left_aside() -> Iterator[None]:
    """Build without the policy inside this context: small numbers are zero in half precision."""
    token = _ASIDE.set(True)
    try:
        yield
    finally:
        _ASIDE.reset(token)


def policies(model: Any) -> set[str]:
    """Return the names of the policies of a model's layers with weights."""
    found = set()
    for layer in weights.all_layers(model):
        policy = getattr(weights.inside(layer), "dtype_policy", None)
        if layer is not model and weights.inside(layer).weights:
            found.add("None" if policy is None else policy.name)
    return found
