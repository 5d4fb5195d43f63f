"""The optimizers of a model: those inside another, and the moving averages of weights that training ends with."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from lottery import formatting
from lottery.models.kerases import is_keras, put_back

_AVERAGES = "_model_variables_moving_average"  # by position, as slots are; no public name (Keras 3.15, tf_keras 2.21)
# The weights themselves, and all variables of the optimizer in one list: the places in it are not those of the weights.
_OTHER_LISTS = ("_trainable_variables", "_variables")


def plain(optimizer: Any) -> list[Any]:
    """Return the optimizers that update weights: those in a LossScaleOptimizer or MultiOptimizer, or else itself."""
    if optimizer is None:
        return []
    inner = getattr(optimizer, "inner_optimizer", None)  # of a LossScaleOptimizer
    if inner is not None:
        return plain(inner)
    return list(optimizer.optimizers) if delegates(optimizer) else [optimizer]


def delegates(optimizer: Any) -> bool:
    """Check if an optimizer, or that in a LossScaleOptimizer, leaves each weight to another optimizer."""
    inner = getattr(optimizer, "inner_optimizer", None) or optimizer
    return any(cls.__name__ == "MultiOptimizer" and is_keras(cls) for cls in type(inner).__mro__)


def learning_rate(model: Any) -> float | dict[str, Any]:
    """Return the learning rate of a compiled model at step 0; of a MultiOptimizer, a table by the optimizers' classes.

    The classes are numbered from the second of a kind, as names of weights are.
    """
    if not delegates(model.optimizer):
        return _first_rate(model.optimizer)
    model.optimizer.build(model.trainable_variables)  # a function may choose the optimizers
    optimizers = plain(model.optimizer)
    names = formatting.numbered(type(optimizer).__name__ for optimizer in optimizers)
    return {"name": "MultiOptimizer", **dict(zip(names, map(_first_rate, optimizers), strict=True))}


def _first_rate(optimizer: Any) -> float:
    rate = optimizer.learning_rate
    return float(np.asarray(rate(0) if callable(rate) else rate))


def averages(model: Any) -> Iterator[tuple[Any, Any]]:
    """Iterate over the trained variables of a model with the slots that begin at their values, as averages of them."""
    for inner in plain(getattr(model, "optimizer", None)):
        for name, variable in itertools.product(_of_averages(inner), model.trainable_variables):
            average = slot(inner, name, variable)
            if average is not None:
                yield variable, average


def average(optimizer: Any, variable: Any) -> Any:
    """Return the moving average of a variable in an optimizer that updates weights; None if it has none."""
    return slot(optimizer, _AVERAGES, variable)


def all_averages(optimizer: Any) -> list[Any]:
    """List the slots of an optimizer that begin at the values of weights."""
    names = [(inner, name) for inner in plain(optimizer) for name in _of_averages(inner)]
    return [average for inner, name in names for average in getattr(inner, name, None) or []]


def _of_averages(optimizer: Any) -> list[str]:
    """Name the attributes that list slots which begin at the values of weights."""
    names = [_AVERAGES] if getattr(optimizer, "use_ema", False) else []
    if any(cls.__name__ == "ScheduleFreeAdamW" and is_keras(cls) for cls in type(optimizer).__mro__):
        # It takes its steps with this slot, and its first update puts the slot in the place of the weight (Keras 3.15).
        names.append("_momentums")
    return names


def rate(optimizer: Any) -> Any:
    """Return the learning rate of an optimizer that updates weights: a variable, or the schedule that computes it."""
    # `learning_rate` is the number of now, even if there is a schedule (Keras 3.15, tf_keras 2.21).
    return getattr(optimizer, "_learning_rate", None)


def leaves_out_of_decay(optimizer: Any) -> bool:
    """Check if an optimizer decays some weights and not others; see Keras' ``exclude_from_weight_decay``."""
    # What that was called with: Keras 3.15 and tf_keras 2.21 have no other way to ask.
    return any(getattr(optimizer, f"_exclude_from_weight_decay{suffix}", None) for suffix in ("", "_names", "_pattern"))


def slot(optimizer: Any, name: str, variable: Any) -> Any:
    """Return the slot of a variable in an optimizer's attribute, a list by position; None without either."""
    by_position = getattr(optimizer, name, None)
    if variable is None or not by_position:
        return None
    place = _place(optimizer, variable)
    return None if place is None else by_position[place]


def _place(optimizer: Any, variable: Any) -> int | None:
    """Return the place of a variable in an optimizer's lists of slots; None if it has no slots there."""
    # No public way leads from a variable to its slots. The places are those of Keras 3.15, or of tf_keras 2.21; a
    # variable's key is an id in the first and a `_unique_id` in the second. Legacy optimizers of tf_keras have neither.
    places = getattr(optimizer, "_trainable_variables_indices", None) or getattr(optimizer, "_index_dict", None)
    return places.get(optimizer._var_key(variable)) if places else None


def slots(optimizer: Any, variable: Any) -> Iterator[Any]:
    """Iterate over an optimizer's slots of a variable's shape, so not over statistics of its rows and columns."""
    for inner in plain(optimizer):
        for name in getattr(inner, "get_slot_names", list)():  # a legacy optimizer of tf_keras
            with contextlib.suppress(KeyError):  # not made yet
                yield inner.get_slot(variable, name)
        place = _place(inner, variable)
        if place is None:
            continue
        for name, value in list(vars(inner).items()):
            # Keras keeps slots in lists by position, one for each variable that it was built with.
            if isinstance(value, list) and name not in _OTHER_LISTS and place < len(value):
                found = value[place]
                if hasattr(found, "assign") and found is not variable and tuple(found.shape) == tuple(variable.shape):
                    yield found


def clear_slots(optimizer: Any, variables: Mapping[str, Any], stays: Mapping[str, np.ndarray]) -> None:
    """Put an optimizer's slots of variables back to where they begin, but for the entries that stay, which are True."""
    begins = accumulators(optimizer)
    for name, mask in stays.items():
        for slot in slots(optimizer, variables[name]):
            value = slot.numpy()
            slot.assign(np.where(mask, value, np.asarray(begins.get(id(slot), 0), value.dtype)))


def accumulators(optimizer: Any) -> dict[int, float]:
    """Map the slots that begin at another number than zero, of Adagrad and Ftrl, to that number, by identity."""
    # From zero, Adagrad's first step is as long for each gradient, and Ftrl's is NaN where there is none.
    return {
        id(accumulator): inner.initial_accumulator_value
        for inner in plain(optimizer)
        if hasattr(inner, "initial_accumulator_value")
        for accumulator in getattr(inner, "_accumulators", None) or []
    }


def finalizes(model: Any) -> bool:
    """Check if ``fit`` ends by giving a model other weights than its last step: an optimizer's moving averages."""
    for optimizer in [model.optimizer, *plain(model.optimizer)]:
        # Keras' own method does nothing without averages.
        method = getattr(type(optimizer), "finalize_variable_values", None)
        if getattr(optimizer, "use_ema", False) or (method is not None and not is_keras(method)):
            return True
    return False


def finalize(model: Any) -> None:
    """Give a compiled model the weights that ``fit`` would end with here, and enforcement holds masks in them too."""
    if finalizes(model) and hasattr(model.optimizer, "finalize_variable_values"):
        # Keras 3.15 pairs these with its averages by place, so they must be all that it was built with.
        model.optimizer.finalize_variable_values(model.trainable_variables)


@contextlib.contextmanager
def finalized(model: Any) -> Iterator[None]:
    """Within, a compiled model has the weights that ``fit`` would end with here; training goes on from its own."""
    with put_back(model.trainable_variables if finalizes(model) else []):
        finalize(model)
        yield
