"""Change one model or optimiser for a while, and leave it as it was: methods, constraints, what is trained."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lottery import weights
from lottery.enforcement.holding import Held, put

Method = Callable[..., Any]


@dataclass(frozen=True)
class _Replaced:
    """A method that the object itself had before, if any, and what has replaced it since, first to last."""

    own: Method | None
    layers: list[Callable[[Method], Method]] = field(default_factory=list)


_REPLACED: dict[tuple[int, str], _Replaced] = {}


# Frames of `fit` in which something is installed, with what takes it off.
_FITS: list[tuple[Any, Callable[[], None]]] = []


@contextlib.contextmanager
def replaced(owner: Any, name: str, make: Callable[[Method], Method]) -> Iterator[None]:
    """Within, a method of an object is what `make` makes of it.

    Several may replace the same method and may leave in any order, as callbacks do, which begin and end in the same.

    Args:
        owner: The object; others of its class are left alone.
        name: The method's name.
        make: From the method to what takes its place.
    """
    key = (id(owner), name)
    now = _REPLACED.setdefault(key, _Replaced(vars(owner).get(name)))

    def layer(method: Method) -> Method:  # one of its own, so that the same `make` can be in place twice
        return make(method)

    now.layers.append(layer)
    _rebuild(owner, name, now)
    try:
        yield
    finally:
        now.layers.remove(layer)
        _rebuild(owner, name, now)
        if not now.layers:
            del _REPLACED[key]


@contextlib.contextmanager
def undone(undo: Callable[[], Any]) -> Iterator[None]:
    """At the end, call what computes with TensorFlow; but not where all this was abandoned and is being collected.

    The collector may come in the midst of anything: what is computed then would become part of a graph that is just
    being traced, or wait for a lock of that graph for ever.
    """
    abandoned = False
    try:
        yield
    except GeneratorExit:
        abandoned = True
        raise
    finally:
        if not abandoned:
            undo()


def during(stack: contextlib.ExitStack, fit: Any, take_off: Callable[[], None]) -> None:
    """Have `sweep` call `take_off` once a frame has ended, unless `stack` is closed before."""
    entry = (fit, take_off)
    _FITS.append(entry)
    stack.callback(lambda: _FITS.remove(entry) if entry in _FITS else None)


def sweep() -> None:
    """Take off what a `fit` that broke off has left, in the rare case that nobody noticed when it did."""
    for fit, take_off in list(_FITS):
        if not is_running(fit):
            take_off()


def is_running(frame: Any) -> bool:
    """Whether some thread is still in a frame."""
    for current in sys._current_frames().values():
        while current is not None:
            if current is frame:
                return True
            current = current.f_back
    return False


@contextlib.contextmanager
def constrained(entries: Sequence[Held]) -> Iterator[None]:
    """Within, constraints hold entries, each after the one that its variable has already."""
    before = [one.variable.constraint for one in entries]
    for one, previous in zip(entries, before, strict=True):
        _set_constraint(one.variable, _hold(one, previous))
    try:
        yield
    finally:
        for one, previous in zip(entries, before, strict=True):
            _set_constraint(one.variable, previous)


@contextlib.contextmanager
def frozen(model: Any, entries: Sequence[Held]) -> Iterator[None]:
    """Within, whole weights are not differentiated; they stay among the model's trainable variables."""
    if not entries:
        yield
        return
    optimizer: Any = getattr(model, "optimizer", None)
    own = {id(one.variable) for one in entries}

    def without(apply: Method) -> Method:
        # Keras would warn of gradients that do not exist.
        def apply_rest(grads: Any, trainable_variables: Any = None, **arguments: Any) -> Any:
            variables = optimizer._trainable_variables if trainable_variables is None else trainable_variables
            pairs = [pair for pair in zip(grads, variables, strict=True) if id(pair[1]) not in own]
            result = apply([pair[0] for pair in pairs], [pair[1] for pair in pairs], **arguments)
            if optimizer.use_ema:  # Keras 3 may overwrite all weights with averages, and constrain those with gradients
                put(entries)
            return result

        return apply_rest

    def without_pairs(apply_gradients: Method) -> Method:  # of tf_keras
        def apply_rest(grads_and_vars: Any, *arguments: Any, **named: Any) -> Any:
            pairs = [pair for pair in grads_and_vars if id(pair[1]) not in own]
            return apply_gradients(pairs, *arguments, **named)

        return apply_rest

    with contextlib.ExitStack() as stack:
        if optimizer is not None:
            if hasattr(optimizer, "build"):
                optimizer.build(model.trainable_variables)  # made later, it would not know the frozen ones
            which = ("apply", without) if hasattr(optimizer, "apply") else ("apply_gradients", without_pairs)
            stack.enter_context(replaced(optimizer, *which))
        for inner in (inner for one in entries for inner in weights.components(one.variable)):
            # A tape asks this; there is no setter for it.
            stack.callback(setattr, inner, "_trainable", inner._trainable)
            inner._trainable = False
        yield


@contextlib.contextmanager
def computing_with(entries: Sequence[Held]) -> Iterator[None]:
    """Within, whoever reads a variable gets it with held values in place, and a gradient for kept entries only.

    A ``keras.StatelessScope`` would do the same for reading, and lose what layers write and the losses they add.
    """
    before = [one.variable._value for one in entries]
    for one, value in zip(entries, before, strict=True):
        one.variable._value = one.projected(value)
    try:
        yield
    finally:
        for one, value in zip(entries, before, strict=True):
            one.variable._value = value


def retrace(model: Any) -> None:
    """Let `fit`, `evaluate` and `predict` make their functions again: what was traced earlier, or within, differs."""
    for name in ("train_function", "test_function", "predict_function"):
        if getattr(model, name, None) is not None:
            setattr(model, name, None)


def _hold(one: Held, before: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    return lambda variable: one.projected(variable if before is None else before(variable))


def _set_constraint(variable: Any, value: Callable[[Any], Any] | None) -> None:
    import keras

    if not isinstance(variable, keras.Variable):
        # A tf.Variable, as in tf_keras: it is meant to be given a constraint only when it is made.
        for inner in weights.components(variable):
            inner._constraint = value
    elif value is None or isinstance(value, keras.constraints.Constraint):
        variable.constraint = value
    else:
        variable.constraint = _as_constraint(value)


def _as_constraint(function: Callable[[Any], Any]) -> Any:
    import keras

    class Constraint(keras.constraints.Constraint):
        """Keras asked for an instance of this class up to version 3.14; a function alone would do since."""

        def __call__(self, weight: Any) -> Any:
            return function(weight)

    return Constraint()


def _rebuild(owner: Any, name: str, now: _Replaced) -> None:
    # Past Keras' __setattr__, which keeps track of what is assigned.
    attributes = vars(owner)
    attributes.pop(name, None)
    if now.own is not None:
        attributes[name] = now.own
    method = getattr(owner, name)
    for layer in now.layers:
        method = layer(method)
    if now.layers:
        attributes[name] = method
