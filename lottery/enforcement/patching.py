"""Change methods, constraints and trainable variables of one model or optimizer for a while, and restore them."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from lottery import weights
from lottery.errors import LotteryError
from lottery.models import optimizers
from lottery.models.kerases import tf

if TYPE_CHECKING:
    from lottery.enforcement.entries import Held

Method = Callable[..., Any]


class _Replaced(NamedTuple):
    """A method that the object itself had before, if any, and the layers around it now, first to last."""

    own: Method | None
    layers: list[Callable[[Method], Method]]


_REPLACED: dict[tuple[int, str], _Replaced] = {}


@contextlib.contextmanager
def replaced(owner: Any, name: str, make: Callable[[Method], Method]) -> Iterator[None]:
    """Replace a method of one object by `make(method)`, for a while; contexts may overlap and end in any order."""
    # By identity: a variable of Keras or TensorFlow may be an owner, and cannot be hashed.
    key = (id(owner), name)
    now = _REPLACED.setdefault(key, _Replaced(vars(owner).get(name), []))
    layer = partial(make)  # a new object, so that the same `make` can be used twice
    now.layers.append(layer)
    _rebuild(owner, name, now)
    try:
        yield
    finally:
        now.layers.remove(layer)
        _rebuild(owner, name, now)
        if not now.layers:
            del _REPLACED[key]


def hold(entries: Sequence["Held"]) -> None:
    """Set every masked entry to its held value."""
    for entry in entries:
        entry.hold()


def following(owner: Any, name: str, follow: Callable[[], None]) -> AbstractContextManager[None]:
    """Call a function after each call of an object's method, if it has the method."""

    def make(method: Method) -> Method:
        def call(*arguments: Any, **named: Any) -> Any:
            result = method(*arguments, **named)
            follow()
            return result

        return call

    return replaced(owner, name, make) if hasattr(owner, name) else contextlib.nullcontext()


def holding_averages(optimizer: Any, entries: Sequence["Held"]) -> AbstractContextManager[None]:
    """Set masked entries of an optimizer's moving averages to their held values after each update."""

    def hold_averages() -> None:
        for entry in entries:
            average = optimizers.average(optimizer, entry.variable)
            if average is not None:
                average.assign(entry.projected(average))

    # tf_keras 2.21 has no such method, and nothing that shows averages before the end of training.
    return following(optimizer, "apply", hold_averages)


@contextlib.contextmanager
def undone(undo: Callable[[], Any]) -> Iterator[None]:
    """Call a function that computes with TensorFlow at the end, but not if the context is abandoned and collected."""
    # Python may collect while a graph is traced: the call would become part of it, or wait for its lock for ever. When
    # Python ends, TensorFlow may be gone.
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: None if sys.is_finalizing() else undo())
        try:
            yield
        except GeneratorExit:
            stack.pop_all()
            raise


def constrained(entries: Sequence["Held"]) -> AbstractContextManager[None]:
    """Hold entries by constraints, each around the constraint that its variable has already."""
    return _constraints([(entry, obeying(entry)) for entry in entries])


def unconstrained(entries: Sequence["Held"]) -> AbstractContextManager[None]:
    """Take the constraints off variables that have some, for a while."""
    return _constraints([(entry, None) for entry in entries if entry.variable.constraint is not None])


def obeying(entry: "Held") -> Callable[[Any], Any]:
    """Make a function from a weight to values that obey both its mask and the constraint that its variable has now."""
    before = entry.variable.constraint
    if before is None:
        return entry.projected
    # A norm must count kept entries alone, so masked entries are put back before the constraint is applied; and after
    # it, for the constraint may move them.
    return lambda variable: entry.projected(before(entry.projected(variable)))


@contextlib.contextmanager
def _constraints(new: Sequence[tuple["Held", Callable[[Any], Any] | None]]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for entry, value in new:
            stack.callback(_set_constraint, entry.variable, entry.variable.constraint)
            _set_constraint(entry.variable, value)
        yield


def applying(
    optimizer: Any, change: Callable[[Sequence[Any], Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]]
) -> AbstractContextManager[None]:
    """Have an optimizer apply `change(gradients, variables)` in place of gradients and variables."""

    def of_keras_3(apply: Method) -> Method:
        def changed(grads: Any, trainable_variables: Any = None, **arguments: Any) -> Any:
            if trainable_variables is None:  # Keras 3.15 then takes those that the optimizer was built with
                trainable_variables = optimizer._trainable_variables
            return apply(*change(list(grads), list(trainable_variables)), **arguments)

        return changed

    def of_tf_keras(apply_gradients: Method) -> Method:
        def changed(grads_and_vars: Any, *arguments: Any, **named: Any) -> Any:
            gradients, variables = zip(*grads_and_vars, strict=True)
            return apply_gradients(list(zip(*change(gradients, variables), strict=True)), *arguments, **named)

        return changed

    # In Keras 3.15 `apply_gradients` calls `apply`, so this one method is enough; tf_keras 2.21 does not have it.
    if hasattr(optimizer, "apply"):
        return replaced(optimizer, "apply", of_keras_3)
    return replaced(optimizer, "apply_gradients", of_tf_keras)


@contextlib.contextmanager
def frozen(model: Any, entries: Sequence["Held"]) -> Iterator[None]:
    """Do not differentiate whole weights; they stay among the model's trainable variables."""
    if not entries:
        yield
        return
    optimizer: Any = getattr(model, "optimizer", None)
    own = {id(entry.variable) for entry in entries}

    def without(gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        # Keras would warn of gradients that do not exist.
        rest = [place for place, variable in enumerate(variables) if id(variable) not in own]
        return [gradients[place] for place in rest], [variables[place] for place in rest]

    def untracked(track: Method) -> Method:
        def tracking(variable: Any, **named: Any) -> None:
            if id(variable) not in own:
                track(variable, **named)

        return tracking

    with contextlib.ExitStack() as stack:
        if optimizer is not None:
            if hasattr(optimizer, "build"):
                # Built later, it would not know the frozen weights.
                optimizer.build(model.trainable_variables)
            updating = optimizers.plain(optimizer)
            if any(getattr(inner, "use_ema", False) for inner in updating):
                # Keras 3 may overwrite all weights with averages.
                stack.enter_context(following(optimizer, "apply", partial(hold, entries)))
            # A MultiOptimizer refuses fewer gradients than it has variables; the optimizers in it do not.
            for inner in updating if optimizers.delegates(optimizer) else [optimizer]:
                stack.enter_context(applying(inner, without))
        for layer in weights.all_layers(model):
            if hasattr(layer, "_update_trackables"):
                # It looks through lists of weights now and then, and would keep these as states (tf_keras 2.21).
                stack.enter_context(replaced(layer, "_track_variable", untracked))
        for entry in entries:
            for part in weights.components(entry.variable):
                # A gradient tape of TensorFlow 2.21 reads this attribute; `trainable` has no setter.
                stack.callback(setattr, part, "_trainable", part._trainable)
                part._trainable = False
        yield


@contextlib.contextmanager
def computing_with(entries: Sequence["Held"]) -> Iterator[None]:
    """Let everything that reads a variable see held values, with a gradient for kept entries only; also a decorator."""
    # A decorator: each call must enter `seen_as` anew, for a tensor of one graph is of no use in another.
    how = 'in the mode "reparameterization" it is then a tensor; use another mode, such as "constraint"'
    with seen_as([(entry.name, entry.variable, partial(_differentiable, entry)) for entry in entries], how):
        yield


@contextlib.contextmanager
def seen_as(changes: Sequence[tuple[str, Any, Method]], how: str) -> Iterator[None]:
    """Let everything that reads a variable of Keras 3 see a tensor that is computed from it; also a decorator.

    Args:
        changes: Names, variables, and functions from a variable's value to the tensor.
        how: Why a layer must not assign such a variable, for the error.
    """
    # Whatever reads a variable of Keras 3.15 reads its `_value`. A keras.StatelessScope would do the same for reading,
    # and lose the updates and losses of layers.
    before = [variable._value for _, variable, _ in changes]
    with contextlib.ExitStack() as stack:
        for (name, variable, compute), value in zip(changes, before, strict=True):
            stack.callback(setattr, variable, "_value", value)
            stack.enter_context(replaced(variable, "assign", partial(_refused, name, how)))
            variable._value = compute(value)
        yield


def _differentiable(entry: "Held", value: Any) -> Any:
    """Return held values of a variable, whose gradient has the form of the variable's own, masked."""
    # TensorFlow's own gradient of a choice is dense, while the gradient of an Embedding has the rows that it looked up,
    # and optimizers with momentum leave the other rows alone. A function with its own gradient reads no variables.
    held = tf.convert_to_tensor(entry.value) if hasattr(entry.value, "assign") else entry.value
    entry = replace(entry, mask=tf.convert_to_tensor(entry.mask), value=held)

    @tf.custom_gradient
    def compute(own: Any) -> Any:
        return entry.projected(own), entry.masked_gradient

    return compute(tf.convert_to_tensor(value))


def _refused(name: str, how: str, assign: Method) -> Method:
    def refuse(*arguments: Any, **named: Any) -> Any:
        raise LotteryError(f"{name!r} cannot be assigned while the network computes: {how}.")

    return refuse


def clear_slots(optimizer: Any, entries: Sequence["Held"]) -> None:
    """Put an optimizer's slots of masked entries back to where they begin, moving averages to the held values."""
    averages = {id(average) for average in optimizers.all_averages(optimizer)}
    begins = optimizers.accumulators(optimizer)
    for entry in entries:
        for slot in optimizers.slots(optimizer, entry.variable):
            value = tf.convert_to_tensor(slot)
            # Averages begin at the weights, the accumulators of Adagrad and Ftrl at a number, all other slots at zero.
            if id(slot) in averages:
                slot.assign(entry.projected(value))
            else:
                slot.assign(tf.where(entry.mask, value, tf.cast(begins.get(id(slot), 0), value.dtype)))


def retrace(model: Any) -> None:
    """Let `fit`, `evaluate` and `predict` make their functions again."""
    # Keras keeps these functions, with the constraints, methods and values of the time at which they were traced.
    for name in ("train_function", "test_function", "predict_function"):
        if getattr(model, name, None) is not None:
            setattr(model, name, None)


def _set_constraint(variable: Any, value: Callable[[Any], Any] | None) -> None:
    if sys.is_finalizing():  # Python ends, and has abandoned a context
        return
    import keras

    if not isinstance(variable, keras.Variable):
        # A tf.Variable of TensorFlow 2.21, as in tf_keras, has no setter for its constraint.
        for inner in weights.components(variable):
            inner._constraint = value
    elif value is None or isinstance(value, keras.constraints.Constraint):
        variable.constraint = value
    else:

        class Constraint(keras.constraints.Constraint):
            """Keras needs an instance of this class up to version 3.14, and takes a function since."""

            def __call__(self, weight: Any) -> Any:
                return value(weight)

        variable.constraint = Constraint()


def _rebuild(owner: Any, name: str, now: _Replaced) -> None:
    # Not through the __setattr__ of Keras 3.15 and tf_keras 2.21, which tracks every value.
    attributes = vars(owner)
    attributes.pop(name, None)
    if now.own is not None:
        attributes[name] = now.own
    method = getattr(owner, name)
    for layer in now.layers:
        method = layer(method)
    if now.layers:
        attributes[name] = method
