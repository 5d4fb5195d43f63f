"""The libraries below: the one of a model, ``keras`` or ``tf_keras``, and TensorFlow, imported when first used."""

import contextlib
import importlib
import os
import re
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from lottery.errors import LotteryError

LIBRARIES = ("keras", "tf_keras")

if TYPE_CHECKING:
    import tensorflow as tf
else:

    class _Later:
        """TensorFlow, imported when it is first used: that takes seconds, and a stored run does not need it."""

        def __getattr__(self, attribute: str) -> Any:
            return getattr(importlib.import_module("tensorflow"), attribute)

    tf = _Later()


def num_threads() -> int:
    """Return TensorFlow's number of threads."""
    # By itself TensorFlow takes all cores that the process may run on, whatever a container's limit.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return tf.config.threading.get_intra_op_parallelism_threads() or cores


def is_keras(thing: Any, libraries: Collection[str] = LIBRARIES) -> bool:
    """Check if a class or a function is part of Keras 3 or tf_keras itself."""
    return (getattr(thing, "__module__", None) or "").partition(".")[0] in libraries


def keras_of(model: Any) -> Any:
    """Return the module that a model was made with, ``keras`` or ``tf_keras``, or raise if it is no Keras model."""
    # By the names of modules: tf_keras takes long to import, and a Keras 3 model does not need it.
    if any(is_keras(cls, ["tf_keras"]) for cls in type(model).__mro__):
        return importlib.import_module("tf_keras")
    import keras

    if not isinstance(model, keras.Model):
        raise LotteryError(f"The model must be a Keras model, not {type(model).__name__}.")
    if keras.backend.backend() != "tensorflow":
        raise LotteryError(f"Keras uses the backend {keras.backend.backend()!r}; set KERAS_BACKEND=tensorflow.")
    return keras


def is_compiled(model: Any) -> bool:
    """Check if a model has an optimizer and a loss of its own."""
    return getattr(model, "optimizer", None) is not None


def loss_of(model: Any) -> tuple[Any, str]:
    """Return the loss that a model is compiled with, without the list that it may stand in alone, and its name."""
    loss = model.loss
    if isinstance(loss, list | tuple) and len(loss) == 1:
        loss = loss[0]
    return loss, loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)


@contextlib.contextmanager
def evaluating(what: str) -> Iterator[None]:
    """Raise any error of the code within as a `LotteryError` of one sentence that begins with `what`."""
    try:
        yield
    except LotteryError:
        raise
    except Exception as error:  # a user's layers, loss and metrics may raise anything
        raise LotteryError(f"{what}: {reason(error)}") from error


@contextlib.contextmanager
def put_back(touched: Iterable[Any]) -> Iterator[None]:
    """Give variables at the end of the context the values that they had at its beginning."""
    with contextlib.ExitStack() as stack:
        for variable in touched:
            # A copy, since numpy() may return the memory that the next step writes to.
            stack.callback(variable.assign, np.array(variable.numpy()))
        yield


@contextlib.contextmanager
def undisturbed(model: Any) -> Iterator[None]:
    """Put the variables, metrics and random states of a model back as they were when this ends."""
    of_metrics = [variable for metric in model.metrics for variable in metric.variables]
    known = {id(variable) for variable in of_metrics}
    # Layers of tf_keras 2.21 may keep a counter or a generator that is not among their variables.
    random = [layer._random_generator for layer in model._flatten_layers() if hasattr(layer, "_random_generator")]
    seeds = [(generator, generator._seed) for generator in random if hasattr(generator, "_seed")]
    states = [generator._generator.state for generator in random if getattr(generator, "_generator", None)]

    def reset_new_metrics() -> None:
        # A metric that is built meanwhile has no values to put back.
        for metric in model.metrics:
            if any(id(variable) not in known for variable in metric.variables):
                metric.reset_state()

    with contextlib.ExitStack() as stack:
        for generator, seed in seeds:
            stack.callback(setattr, generator, "_seed", seed)
        stack.enter_context(put_back([*model.variables, *of_metrics, *states]))
        stack.callback(reset_new_metrics)
        yield


def traced(function: Any, *inputs: Any) -> Any:
    """Trace a function on inputs or their ``tf.TensorSpec``, and return the ``ConcreteFunction``."""
    return tf.function(function, autograph=False).get_concrete_function(*inputs)


def traced_call(model: Any, inputs: Any) -> Any:
    """Trace the call of a model at inference; see `traced`."""
    return traced(lambda x: model(x, training=False), inputs)


def operations(step: Any) -> set[str]:
    """Name the operations of a `traced` function, and of the functions in it."""
    definition = step.graph.as_graph_def()
    # The library is flat: functions that only other functions call are in it, too.
    bodies = [definition.node, *(function.node_def for function in definition.library.function)]
    return {node.op for body in bodies for node in body}


def reason(error: Exception) -> str:
    """Return the message of an exception in one line: Keras puts the place first and the reason after it."""
    lines = [re.sub(r"\x1b\[\d+m", "", line).strip() for line in str(error).splitlines()]
    around = ("Exception encountered", "in user code", "File ", "Graph execution error", "Detected at node", "[[")
    lines = [line for line in lines if line and not line.startswith(around)]
    if not lines:
        return type(error).__name__
    # Before what went wrong in a graph, the graph's own trace comes, too.
    line = lines[-1] if "Graph execution error" in str(error) else lines[0]
    # TensorFlow writes its own names of functions and operations around it.
    return re.sub(r"^\{\{.*?\}\} | \[Op:\w+\].*$", "", line)


@contextlib.contextmanager
def in_policy(keras: Any, name: str) -> Iterator[None]:
    """Let a library build layers under a dtype policy, unless they name one of their own."""
    with contextlib.ExitStack() as stack:
        stack.callback(keras.mixed_precision.set_global_policy, keras.mixed_precision.global_policy())
        keras.mixed_precision.set_global_policy(name)
        yield
