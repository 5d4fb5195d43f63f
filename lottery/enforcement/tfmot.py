"""A bridge to the pruning wrappers of tensorflow_model_optimization (tfmot): wrap, read masks, strip."""

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lottery import weights
from lottery.enforcement.entries import Held, held
from lottery.enforcement.patching import replaced, retrace, undone
from lottery.errors import LotteryError
from lottery.models import graph, outputs
from lottery.models.kerases import evaluating, keras_of, tf

_OTHERWISE = 'or use another mode of enforcement, such as "constraint"'

# A step that no training reaches. A schedule of tfmot that begins there never updates a mask, and a saved model with it
# never does either, wherever it is loaded; a schedule of ours would have to be known there.
_NEVER = 2**62

_TOLERANCE = 1e-5  # of outputs with and without wrappers, relative to the largest output


class Wrapped(NamedTuple):
    """A weight that a wrapper of tfmot prunes."""

    variable: Any
    mask: Any  # the variable that it is multiplied by, of the same shape and type: 1 keeps, 0 prunes
    wrapper: Any


def check_library(model: Any) -> None:
    """Raise `LotteryError` unless it is a tf_keras model."""
    if keras_of(model).__name__ != "tf_keras":
        raise LotteryError(
            f"The model {model.name!r} is a Keras 3 {type(model).__name__}, and tfmot wraps tf_keras models only; "
            f"build it with tf_keras, {_OTHERWISE}."
        )


def refuse_wrapped(model: Any) -> None:
    """Raise `LotteryError` if a model has wrappers, whose schedules would prune it beside an experiment's masks."""
    found = [wrapper.layer.name for wrapper in _wrappers(model)]
    if found:
        raise LotteryError(
            f"The layers {', '.join(found)} are wrapped by tfmot, whose wrappers prune by themselves; build the model "
            "without them, or strip it with tfmot.sparsity.keras.strip_pruning(model) before it is compiled."
        )


def _hosts(layers: Sequence[Any], entries: Sequence[Held]) -> tuple[dict[str, Any], dict[str, str]]:
    """Find by weight the first of `layers`, outer ones first, to wrap, or the reason why tfmot cannot prune it."""
    found, reasons = {}, {}
    pruned = {id(layer): _pruned(weights.inside(layer)) for layer in layers if layer.variables}
    for entry in entries:
        around = [layer for layer in layers if _has(layer.variables, entry)]
        known = [layer for layer in around if pruned[id(layer)] is not None]
        willing = [layer for layer in known if _has(pruned[id(layer)] or (), entry)]
        if willing:
            found[entry.name] = willing[0]
        elif known:
            names = [value.name.split(":")[0].rsplit("/", 1)[-1] for value in pruned[id(known[-1])] or ()]
            only = f"only {' and '.join(names)}" if names else "nothing"
            reasons[entry.name] = f"in a layer of type {type(weights.inside(known[-1])).__name__} it prunes {only}"
        elif around:
            reasons[entry.name] = f"it does not know the layer {type(around[-1]).__name__}"
        else:
            reasons[entry.name] = "it cannot take apart a subclassed model"
    return found, reasons


def _has(variables: Iterable[Any], entry: Held) -> bool:
    return any(variable is entry.variable for variable in variables)


def _leaves(model: Any, masked: bool = False) -> dict[Any, bool]:
    """Return the layers that can be replaced in a tf_keras model and in models inside it.

    True for a layer that passes masks of padded inputs on, as after ``Embedding(..., mask_zero=True)`` or if `masked`.
    """
    library = keras_of(model)
    found: dict[Any, bool] = {}
    # The layers of a subclassed model cannot be replaced; tf_keras 2.21 has no public name for a functional one.
    if not (isinstance(model, library.Sequential) or model._is_graph_network):
        return found
    for layer in model.layers:
        # What one place of a shared layer needs counts for all: there is a single layer to replace.
        if isinstance(layer, library.Model):
            inner = _leaves(layer, masked or graph.passes_masks(layer, "input_tensors"))
        else:
            inner = {layer: masked or graph.passes_masks(layer, "output_tensors")}
        for leaf, is_masked in inner.items():
            found[leaf] = is_masked or found.get(leaf, False)
    return found


def _difference(layer: Any, masked: bool) -> str | None:
    """Describe a change that a wrapper would make to a layer of `_leaves` besides pruning; None without one."""
    # A wrapper calls the layer's `call` directly, without the work that Keras does around it.
    if masked:
        return "its wrapper would drop the masks that Keras passes on for padded inputs"
    if layer.compute_dtype != layer.variable_dtype:
        return f"its wrapper would round the weights to {layer.compute_dtype} at every step"
    if getattr(layer, "activity_regularizer", None) is not None:
        return "its wrapper cannot train with an activity regulariser"
    if getattr(layer, "stateful", False):
        return "its wrapper would hide its states from reset_states"
    return None


def _refuse(reasons: Mapping[str, str]) -> None:
    """Raise `LotteryError` if there are weights that tfmot cannot hold."""
    if reasons:
        each = ", ".join(f"{name!r} ({reason})" for name, reason in reasons.items())
        raise LotteryError(f"tfmot cannot hold the masks of {each}; leave them out, {_OTHERWISE}.")


def _with_layers(model: Any, new: dict[int, Any]) -> Any:
    """Make a tf_keras model, not compiled, of the same layers but for those that `new` replaces, by their identity."""
    library = keras_of(model)

    def layer_of(layer: Any) -> Any:
        if isinstance(layer, library.Model) and any(id(inner) in new for inner in weights.all_layers(layer)):
            new.setdefault(id(layer), _with_layers(layer, new))  # once, since it may be shared
        return new.get(id(layer), layer)

    with evaluating(f"Keras cannot build the model {model.name!r} anew from its layers, as tfmot needs it"):
        copy = library.models.clone_model(model, clone_function=layer_of)
    if type(copy) is not type(model):
        raise LotteryError(
            f"When Keras copies the model {model.name!r}, it makes a plain {type(copy).__name__} and drops the methods "
            f"of {type(model).__name__}. Use a Sequential or functional model, or the mode of enforcement "
            '"tfmot", which does not copy the model.'
        )
    return copy


def _pruned(layer: Any) -> Sequence[Any] | None:
    """Return the variables that a wrapper around a layer would prune; None if tfmot refuses the layer."""
    # tfmot 0.8 has no public name for the layers that it knows.
    from tensorflow_model_optimization.python.core.sparsity.keras import prune_registry

    if hasattr(layer, "get_prunable_weights"):
        return layer.get_prunable_weights()
    if not prune_registry.PruneRegistry.supports(layer):
        return None
    try:
        return prune_registry.PruneRegistry.make_prunable(layer).get_prunable_weights()
    finally:
        del layer.get_prunable_weights  # leave the layer as it was


def find(model: Any) -> dict[str, Wrapped]:
    """Find the weights that wrappers of tfmot prune, by their names in the model without wrappers, in its order."""
    pruned: dict[int, Wrapped] = {}
    for wrapper in _wrappers(model):
        for variable, mask, _ in wrapper.pruning_vars:
            if id(variable) in pruned:
                raise LotteryError(
                    f"The model {model.name!r} has two wrappers of tfmot for the same weight, {variable.name!r}, each "
                    "with a mask of its own; strip the model with tfmot, and use lottery.enforcement.tfmot.wrap."
                )
            pruned[id(variable)] = Wrapped(variable, mask, wrapper)
    named = weights.variables(model)
    return {name: pruned[id(variable)] for name, variable in named.items() if id(variable) in pruned}


def read_masks(model: Any) -> dict[str, np.ndarray]:
    """Read the boolean masks of a model with wrappers of tfmot, by weight, True where the entry is kept.

    Every wrapped weight has a mask, pruned or not. The weights may disagree: tfmot leaves pruned entries one update
    away from zero until the next forward pass.
    """
    return {name: wrapped.mask.numpy() != 0 for name, wrapped in _found(model).items()}


def wrap(model: Any, masks: Mapping[str, Any]) -> Any:
    """Wrap the layers of a model that have masks with tfmot's wrappers, which hold the masks and never recompute them.

    The layers are shared, as in tfmot itself: the new model, which is not compiled and needs no ``UpdatePruningStep``,
    trains the variables of `model`, whose masked entries are set to zero at once. After each update tfmot leaves them
    one step away from zero until the next forward pass; `strip` makes them exactly zero, and so does
    ``enforcement.pruning_wrappers`` around the training.

    Existing wrappers get these masks, keep their own for weights that `masks` does not name, and stop updating. If
    they hold everything, `model` itself is returned, compiled or not.

    Args:
        model: A built tf_keras model, Sequential or functional, also with models inside.
        masks: Boolean arrays by weight, True where the entry is kept.

    Raises:
        LotteryError: tfmot cannot hold a mask that prunes anything (masks that keep everything are left out then),
            or a mask or the model does not fit. No weight has been changed then.
    """
    check_library(model)
    entries, found = held(model, masks), find(model)
    masked = _leaves(model)
    layers, reasons = _hosts(list(masked), [entry for entry in entries if entry.name not in found])
    for name, layer in layers.items():
        why = _difference(layer, masked[layer])
        if why:
            reasons[name] = why
    _refuse({name: why for name, why in reasons.items() if not np.all(masks[name])})
    chosen = {id(layer): layer for name, layer in layers.items() if name not in reasons}
    if chosen:
        model = _with_layers(model, {key: _wrapper(layer) for key, layer in chosen.items()})
    silence(model)
    # Again, for new wrappers have mask variables of their own.
    found = find(model)
    kept = {id(entry.variable): entry.mask for entry in entries}
    for wrapped in found.values():
        if id(wrapped.variable) in kept:
            _assign(wrapped.mask, kept[id(wrapped.variable)])
    _apply(found)
    return model


@contextlib.contextmanager
def wrapped_in_place(model: Any, masks: Mapping[str, Any]) -> Iterator[None]:
    """Have wrappers of tfmot with these masks act on a model for a while, which stays the same object and compiled.

    Wrappers that it has already get the masks, and stop updating; other layers with masks, wherever they are in the
    model, multiply by them before each call as a wrapper would. Afterwards everything is restored, masks, schedules and
    counts of steps included. Weights do not change before the first forward pass, and nothing does after an error.
    """
    check_library(model)
    entries, found = held(model, masks), find(model)
    layers, reasons = _hosts(weights.all_layers(model), [entry for entry in entries if entry.name not in found])
    # A mask in a variable may prune after its next assignment, whatever it keeps at first.
    _refuse({name: why for name, why in reasons.items() if hasattr(masks[name], "assign") or not np.all(masks[name])})
    with contextlib.ExitStack() as stack:
        stack.enter_context(undone(partial(restore, model, silence(model))))
        for layer in dict.fromkeys(layers.values()):
            stack.enter_context(_acting_on(layer, entries))
        for name, wrapped in found.items():
            if name in masks:
                stack.enter_context(undone(partial(wrapped.mask.assign, wrapped.mask.numpy())))
                _assign(wrapped.mask, masks[name])
                following = partial(_preceded, [(wrapped.mask, masks[name])], None)
                stack.enter_context(replaced(wrapped.wrapper, "call", following))
        yield


@contextlib.contextmanager
def _acting_on(layer: Any, entries: Sequence[Held]) -> Iterator[None]:
    """Have a layer multiply by the masks of its weights before each call, as a wrapper around it would."""
    had_method = "get_prunable_weights" in vars(layer)
    wrapper = _wrapper(layer)
    try:
        # Makes the variables of its masks; the layer is built already, so no shape is needed.
        wrapper.build(None)
        # If tf_keras 2.21 casts variables to half precision, tfmot 0.8 would assign rounded values.
        wrapper.pruning_obj._pruning_vars = [tuple(map(weights.unwrapped, triple)) for triple in wrapper.pruning_vars]
        pruned = {id(variable): mask for variable, mask, _ in wrapper.pruning_vars}
        own = [(pruned[id(entry.variable)], entry.mask) for entry in entries if id(entry.variable) in pruned]
        for mask, value in own:
            _assign(mask, value)
        with replaced(layer, "call", partial(_preceded, own, wrapper.pruning_obj.weight_mask_op)):
            yield
    finally:
        if not had_method and "get_prunable_weights" in vars(layer):  # tfmot has added it
            del layer.get_prunable_weights


def silence(model: Any) -> list[tuple[Any, Any, int]]:
    """Stop wrappers from recomputing masks and needing ``UpdatePruningStep``; return what `restore` needs of each."""
    before = [(wrapper, wrapper.pruning_schedule, int(wrapper.pruning_step.numpy())) for wrapper in _wrappers(model)]
    for wrapper, _, step in before:
        _set_schedule(wrapper, _never())
        # A wrapper refuses to train from step -1, and one for m of n entries ignores schedules and updates at step 1.
        wrapper.pruning_step.assign(max(step, 1))
    retrace(model)
    return before


def restore(model: Any, before: Sequence[tuple[Any, Any, int]]) -> None:
    """Restore the schedules and counts of steps that `silence` returned."""
    for wrapper, schedule, step in before:
        _set_schedule(wrapper, schedule)
        wrapper.pruning_step.assign(step)
    retrace(model)


def strip(model: Any, example: Any = None) -> Any:
    """Take the wrappers of tfmot out of a model, with every masked entry exactly zero.

    The layers are shared: masked entries are set to zero in `model` too. Then the outputs of both must agree, to 1e-5
    of the largest (on a CPU they have been the same bits). They differ if a wrapper changes what the network computes,
    as after ``Embedding(..., mask_zero=True)``, and in a model that draws random numbers at inference.

    Args:
        model: A model with wrappers of tfmot, from `wrap` or not. The result is not compiled.
        example: Inputs to compare on, as the model takes them; random inputs by default, if they can be made.

    Raises:
        LotteryError: The wrappers cannot be taken out, or outputs differ without them; or an example is needed.
    """
    found = _found(model)
    plain = _with_layers(model, {id(wrapper): wrapper.layer for wrapper in _wrappers(model)})
    left = [wrapper.layer.name for wrapper in _wrappers(plain)]
    if left:
        raise LotteryError(
            f"The wrappers of {', '.join(left)} lie inside a subclassed model or layer, which tfmot cannot take apart; "
            "use read_masks, and lottery.weights.assign on a model built without wrappers."
        )
    # Without wrappers, nothing sets these entries to zero at the next forward pass.
    _apply(found)
    apart = outputs.largest_difference(model, plain, example)
    if apart > _TOLERANCE:
        raise LotteryError(
            f"tfmot changes what the model {model.name!r} computes: without its wrappers, the outputs differ by "
            f"{apart:.2g} of the largest output, more than {_TOLERANCE:g}. Use another mode of enforcement."
        )
    return plain


def _found(model: Any) -> dict[str, Wrapped]:
    found = find(model)
    if not found:
        raise LotteryError(
            f"The model {model.name!r} has no weights under pruning wrappers of tfmot; pass a model made by "
            "lottery.enforcement.tfmot.wrap or tfmot's prune_low_magnitude."
        )
    return found


def _wrappers(model: Any) -> list[Any]:
    layers = [layer for layer in weights.all_layers(model) if weights.inside(layer) is not layer]
    return [layer for layer in layers if hasattr(layer, "pruning_vars")]


def _never() -> Any:
    import tensorflow_model_optimization as tfmot

    return tfmot.sparsity.keras.ConstantSparsity(0.0, begin_step=_NEVER)


def _wrapper(layer: Any) -> Any:
    import tensorflow_model_optimization as tfmot

    return tfmot.sparsity.keras.prune_low_magnitude(layer, _never())


def _set_schedule(wrapper: Any, schedule: Any) -> None:
    wrapper.pruning_schedule = schedule
    # While it trains, tfmot 0.8 asks this copy.
    wrapper.pruning_obj._pruning_schedule = schedule


def _apply(found: Mapping[str, Wrapped]) -> None:
    for wrapped in found.values():
        value = wrapped.variable.numpy()
        # A choice, not a product as in tfmot, which would make a negative weight negative zero.
        wrapped.variable.assign(np.where(wrapped.mask.numpy() != 0, value, np.zeros((), value.dtype)))


def _assign(variable: Any, mask: Any) -> None:
    variable.assign(tf.cast(mask, variable.dtype))


def _preceded(masks: Sequence[tuple[Any, Any]], then: Callable[[], Any] | None, call: Callable[..., Any]) -> Any:
    """Make a layer's ``call`` that first copies mask variables to the wrappers' masks, and then applies them."""
    following = [(variable, mask) for variable, mask in masks if hasattr(mask, "assign")]

    def call_masked(*arguments: Any, **named: Any) -> Any:
        for variable, mask in following:
            _assign(variable, mask)
        if then is not None:
            then()
        return call(*arguments, **named)

    # Keras passes ``training`` and masks only to a call that names them; it reads the names from the signature.
    call_masked.__signature__ = inspect.signature(call)
    return call_masked
