"""The criterion SynFlow: the flow through a network's absolute weights, which needs no data."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lottery import weights
from lottery.errors import LotteryError
from lottery.masks import Masks
from lottery.models import graph
from lottery.models.kerases import evaluating, keras_of, traced_call
from lottery.pruning import gradients, ranking
from lottery.pruning.gradients import Scores

NUM_STEPS = 100


def synaptic_flow(
    model: Any,
    build: Callable[[], Any],
    x: Any,
    kept: Masks,
    density: float,
    scope: str,
    targets: Mapping[tuple[str, ...], int] | None = None,
) -> Scores:
    """Rank entries in the order in which SynFlow prunes them, with algorithm 1 of the paper; see `criteria.synflow`.

    R is the sum of the network's outputs for an input of ones, in inference mode, with the absolute values of all
    trained variables, and without a softmax or sigmoid at its end. Of n survivors that are ranked together, step k of
    K = 100 leaves round(n f^(k/K)), where f is the target density over the present one. Of `x` only shapes and types
    matter, and `targets` take the place of density and scope.

    Returns:
        Ranks as floats, by weight, of the masks' shapes, counted from 1 in each group in the order of pruning, and of
        scores within a step (the earlier position first if equal). Survivors come last; entries masked before are 0.
    """
    if not 0 < density <= 1:
        raise LotteryError(f"density must be a fraction in (0, 1], not {density!r}.")
    flow = flow_through(model, build, x, list(kept))
    groups = list(targets) if targets else [names for names, _ in ranking.groups(kept, scope)]
    # By group: the positions that are still kept, the rank of each position that is not, and how many there were.
    alive = [np.flatnonzero(_joined(kept, names)) for names in groups]
    ranks = [np.zeros(sum(kept[name].size for name in names)) for names in groups]
    sizes = [positions.size for positions in alive]
    present = sum(sizes) / max(1, sum(rank.size for rank in ranks))
    fractions = [min(1.0, density / present) if present else 1.0] * len(groups)
    if targets:
        fractions = [min(1.0, targets[names] / (size or 1)) for names, size in zip(groups, sizes, strict=True)]
    now, ranked, scores = kept, {}, flow(kept)
    if present == 1 and not any(value.any() for value in scores.values()):
        raise LotteryError("SynFlow: every score is zero, because nothing flows to the network's outputs.")
    for step in range(1, NUM_STEPS + 1):
        for index, names in enumerate(groups):
            values = _joined(scores, names)[alive[index]]
            count = values.size - round(sizes[index] * fractions[index] ** (step / NUM_STEPS))
            lowest = _lowest_first(values, values.size if step == NUM_STEPS else count)
            ranks[index][alive[index][lowest]] = sizes[index] - values.size + 1 + np.arange(lowest.size)
            alive[index] = np.delete(alive[index], lowest[:count])
        for names, rank in zip(groups, ranks, strict=True):
            parts = np.split(rank, np.cumsum([kept[name].size for name in names])[:-1])
            ranked |= {name: part.reshape(kept[name].shape) for name, part in zip(names, parts, strict=True)}
        before, now = now, {name: mask & (ranked[name] == 0) for name, mask in kept.items()}
        if step < NUM_STEPS and any(np.any(before[name] != now[name]) for name in now):
            scores = flow(now)
    return ranked


def _lowest_first(values: np.ndarray, count: int) -> np.ndarray:
    """Return the positions of the `count` lowest values, lowest first, the earlier first if equal."""
    chosen = np.flatnonzero(ranking.lowest(values, count))
    return chosen[np.argsort(values[chosen], kind="stable")]


def _joined(arrays: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    return np.concatenate([np.ravel(arrays[name]) for name in names])


def flow_through(model: Any, build: Callable[[], Any], x: Any, names: Sequence[str]) -> Callable[[Masks], Scores]:
    """Make a function from masks to SynFlow's scores |w * dR/dw| of the named weights; the model is read only once."""
    # In double precision, since R grows with the product of all widths.
    with (
        _in_float64(keras_of(model)),
        evaluating(f"SynFlow evaluates the model {model.name!r} in double precision, in which it cannot be"),
    ):
        copy = build()
        absolute = _absolute(model, copy)
        weights.assign(copy, absolute)
        for layer in graph.last_layers(copy):
            if graph.is_squashing(layer):  # the sum of such outputs has no useful gradient
                layer.activation = lambda value: value
        evaluate, inputs = _traced_flow(copy, x, names)
        _refuse_lookups(model, inputs)

    def scores(masks: Masks) -> Scores:
        masked = {name: absolute[name] * masks[name] for name in names}
        weights.assign(copy, masked)
        outputs, total, derivatives = evaluate()
        if not np.isfinite(total.numpy()):
            raise LotteryError(
                f"SynFlow cannot score the model {model.name!r}: the sum of its outputs is {float(total)}, which "
                "double precision cannot hold. Use smaller initial weights or normalisation."
            )
        if any(gradients.are_probabilities(output.numpy(), 1e-9) for output in outputs):
            raise LotteryError(
                f"SynFlow: the outputs of the model {model.name!r} are probabilities, whose sum is always 1; make the "
                "model return logits."
            )
        with np.errstate(over="ignore", invalid="ignore"):  # reported by `finite`
            found = {name: np.abs(masked[name] * value.numpy()) for name, value in zip(names, derivatives, strict=True)}
        return gradients.finite(found, "SynFlow")

    return scores


def _absolute(model: Any, copy: Any) -> dict[str, np.ndarray]:
    """Read the variables of a model in double precision, of trained variables their absolute values."""
    variables, state = weights.variables(copy), weights.read_state(model)
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    if shapes != {name: value.shape for name, value in state.items()}:
        raise LotteryError(
            f"The function that builds the model {model.name!r} built another architecture the second time."
        )
    floating = {name: value.astype(np.float64) for name, value in state.items() if "float" in str(value.dtype)}
    trained = [name for name in floating if weights.is_trained(copy, variables[name])]
    return floating | {name: np.abs(floating[name]) for name in trained}


def _traced_flow(copy: Any, x: Any, names: Sequence[str]) -> tuple[Any, list[Any]]:
    """Trace outputs, their sum R and its gradients for inputs of ones; return the function and its inputs' tensors."""
    import tensorflow as tf

    ones, traced = tf.nest.map_structure(_ones, x), []
    variables = weights.variables(copy)
    chosen = [variables[name] for name in names]

    def flow() -> tuple[Any, Any, Any]:
        traced[:] = [tf.identity(value) for value in tf.nest.flatten(ones)]
        inputs = tf.nest.pack_sequence_as(ones, traced)
        with tf.GradientTape() as tape:
            outputs = [tf.cast(output, tf.float64) for output in tf.nest.flatten(copy(inputs, training=False))]
            total = tf.add_n([tf.reduce_sum(output) for output in outputs])
        return outputs, total, gradients.tensors(tape.gradient(total, chosen), chosen)

    copy(ones, training=False)  # Keras makes variables at the first call, which must not be inside the graph
    return tf.function(flow, autograph=False).get_concrete_function(), traced


def check_inputs(model: Any, x: Any) -> None:
    """Raise `LotteryError` if a model looks its inputs up, of which `x` is an example; `synaptic_flow` does too."""
    import tensorflow as tf

    specs = tf.nest.map_structure(lambda value: tf.TensorSpec(value.shape, value.dtype), x)
    with evaluating(f"The model {model.name!r} cannot be called on its inputs"):
        called = traced_call(model, specs)
    _refuse_lookups(model, called.inputs[: len(tf.nest.flatten(x))])


def _refuse_lookups(model: Any, tensors: Sequence[Any]) -> None:
    # Of the table of an Embedding only the entry of token 1 would have a score.
    if any(_is_looked_up(tensor) for tensor in tensors):
        raise LotteryError(
            f"SynFlow: the model {model.name!r} looks its input up by whole numbers, as an Embedding does, so an input "
            "of ones is the second entry of a table, and all other entries would score zero; use another criterion, "
            'such as "magnitude" or "snip".'
        )


# Operations of a graph that move the numbers of an input, and those that look at its shape alone.
_MOVING = {
    "Cast", "ConcatV2", "ExpandDims", "Identity", "Pack", "Reshape", "Slice", "Split", "SplitV", "Squeeze",
    "StridedSlice", "Transpose", "Unpack",
}  # fmt: skip
_OF_SHAPES = {"Rank", "Shape", "Size"}


def _is_looked_up(tensor: Any) -> bool:
    """Check if a graph takes a tensor for positions, in a table for instance, rather than for numbers."""
    waiting, seen = [tensor], set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        for operation in value.consumers():
            numbers = [output for output in operation.outputs if not output.dtype.is_bool]
            kinds = {"float" if output.dtype.is_floating else "whole" for output in numbers}
            if operation.type in _MOVING or (value.dtype.is_integer and kinds == {"whole"}):
                waiting += operation.outputs if operation.type not in _OF_SHAPES else []
            elif value.dtype.is_integer and "float" in kinds:
                return True
    return False


@contextlib.contextmanager
def _in_float64(keras: Any) -> Iterator[None]:
    """Build layers in double precision, unless they name a precision of their own."""
    floatx, policy = keras.backend.floatx(), keras.mixed_precision.global_policy()
    try:
        keras.backend.set_floatx("float64")
        keras.mixed_precision.set_global_policy("float64")
        yield
    finally:
        keras.backend.set_floatx(floatx)
        keras.mixed_precision.set_global_policy(policy)


def _ones(value: Any) -> np.ndarray:
    value = np.asarray(value)
    return np.ones((1, *value.shape[1:]), value.dtype if value.dtype.kind in "iub" else np.float64)
