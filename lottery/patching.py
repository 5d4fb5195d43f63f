"""Change one model or optimiser for a while, and leave it as it was: methods, constraints, what is trained."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from lottery.holding import Held

Method = Callable[..., Any]


@dataclass(frozen=True)
class _Replaced:
    """A method that the object itself had before, if any, and what has replaced it since, first to last."""

    own: Method | None
    layers: list[Callable[[Method], Method]] = field(default_factory=list)


_REPLACED: dict[tuple[int, str], _Replaced] = {}


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
def frozen(model: Any, variables: Sequence[Any]) -> Iterator[None]:
    """Within, whole variables are not differentiated."""
    import keras

    if not variables:
        yield
        return
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and hasattr(optimizer, "build"):
        optimizer.build(model.trainable_variables)  # made later, it would not know the frozen ones
    # Keras asks its own variable, and a tape the tf.Variable in it, which has no setter for this.
    targets = [_inner(one) for one in variables]
    targets += [
        one._value for one in variables if isinstance(one, keras.Variable) and hasattr(one._value, "_trainable")
    ]
    before = [one._trainable for one in targets]
    own = {id(one) for one in variables}

    def without(apply_gradients: Method) -> Method:
        def apply(grads_and_vars: Any, *arguments: Any, **named: Any) -> Any:
            pairs = [pair for pair in grads_and_vars if id(pair[1]) not in own]
            return apply_gradients(pairs, *arguments, **named)

        return apply

    with contextlib.ExitStack() as stack:
        if optimizer is not None and not hasattr(optimizer, "apply"):
            # tf_keras goes on to list them among its trainable variables, and warns of gradients that do not exist.
            stack.enter_context(replaced(optimizer, "apply_gradients", without))
        for one, trainable in zip(targets, before, strict=True):
            stack.callback(setattr, one, "_trainable", trainable)
            one._trainable = False
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
        _inner(variable)._constraint = value
    elif value is None or isinstance(value, keras.constraints.Constraint):
        variable.constraint = value
    else:
        variable.constraint = _as_constraint(value)


def _inner(variable: Any) -> Any:
    """The variable that one of tf_keras wraps for mixed precision, or itself."""
    return getattr(variable, "_variable", variable)


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
