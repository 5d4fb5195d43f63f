"""The variables that a network has, found without the memory that a stranger may have written into its layers."""

import contextlib
import math
import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from lottery import weights

# Calls that a trace may take. A layer takes 15,000 to 65,000; an endless loop takes all in some ten seconds.
_CALLS, _CALLS_BY_VARIABLE, _MOST_CALLS = 20_000_000, 100_000, 60_000_000
_SPARE = 100_000  # entries of variables that no layer of the network has, for Keras makes some layers twice


class Stopped(BaseException):
    """Raised in the midst of Keras, where much catches every Exception."""


def traced(
    library: str, make: Callable[[], Any], expected: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """The shapes of the variables of a model, in a bounded number of calls and without memory for other variables.

    Args:
        library: ``"keras"`` or ``"tf_keras"``, which makes it.
        make: Makes the model.
        expected: The variables that it should have, by name.

    Returns:
        The shape of each variable of `weights.portable`, by name.

    Raises:
        Exception, Stopped: Whatever Keras raises; or it takes too long, or makes more than it should.
    """
    found: list[dict[str, tuple[int, ...]]] = []
    errors: list[BaseException] = []
    left = min(_CALLS + _CALLS_BY_VARIABLE * len(expected), _MOST_CALLS)
    num_entries = sum(map(math.prod, expected.values()))

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal left
        left -= 1
        # Where Keras begins something, and not in the midst of TensorFlow, which may hold a lock.
        if left < 0 and event == "call" and "keras" in frame.f_code.co_filename:
            raise Stopped("it takes too long, for its graph has a loop, or one of its numbers is too large.")

    def trace() -> None:
        scope = _without_values if library == "keras" else _with_few_values
        try:
            with warnings.catch_warnings(action="ignore"), scope(2 * num_entries + _SPARE):
                sys.setprofile(count)  # of this thread
                model = make()
                found.append({name: tuple(value.shape) for name, value in weights.portable(model).items()})
                sys.setprofile(None)
        except (Exception, Stopped) as error:
            errors.append(error)
        finally:
            sys.setprofile(None)

    # Keras remembers by thread which variables have no value yet, and would give them one the next time.
    thread = threading.Thread(target=trace)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


@contextlib.contextmanager
def _without_values(most: int) -> Any:
    """Within, variables of Keras 3 get no values, and nothing is computed; at the end they must be few enough."""
    import keras
    import tensorflow as tf
    from keras.src.backend.common import global_state

    with tf.Graph().as_default(), keras.StatelessScope(initialize_variables=False):
        yield
        made = global_state.get_global_attribute("uninitialized_variables") or ()
        # A layer may lie beside the network, where the model does not know of its variables.
        if sum(math.prod(value.shape) for value in made) > most:
            raise Stopped("it makes more variables than its network has.")


@contextlib.contextmanager
def _with_few_values(most: int) -> Any:
    """Within, the variables of tf_keras that this thread makes must be few enough, each before it takes memory.

    In a graph they would take none at all. But there tf_keras exchanges the bases of its classes, and every model that
    the process has could no longer be called or trained.
    """
    import tensorflow as tf

    def create(creator: Callable[..., Any], **arguments: Any) -> Any:
        nonlocal most
        shape = arguments.get("shape")
        most -= math.prod(shape) if shape is not None else 0
        if most < 0:
            raise Stopped("it makes more variables than its network has.")
        return creator(**arguments)

    with tf.variable_creator_scope(create):
        yield
