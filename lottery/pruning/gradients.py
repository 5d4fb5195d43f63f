"""Scores by gradients of a network: of its loss, for SNIP and GraSP, or of the flow through it, for SynFlow."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lottery import weights
from lottery.errors import LotteryError, missing
from lottery.masks import Masks, shapes
from lottery.models import graph
from lottery.models.kerases import evaluating, in_policy, is_keras, keras_of, tf, traced, traced_call, undisturbed
from lottery.pruning import ranking

Scores = dict[str, np.ndarray]

TEMPERATURE = 200.0  # of GraSP: pruner/GraSP.py of its authors, and the code released with Frankle et al. 2021
NUM_STEPS = 100  # of SynFlow


class Batch(NamedTuple):
    """Examples: inputs and labels, as a network takes them, and how much each counts in the loss, all alike if None."""

    x: Any
    y: Any
    sample_weight: Any = None


def loss_gradient(model: Any, names: Sequence[str]) -> Callable[[Batch], Scores]:
    """Make a function of a batch that computes the gradient of the loss that `criteria.snip` describes, by weight.

    It is traced once, and reads the model's present weights.
    """
    variables = weights.variables(model)
    chosen = [variables[name] for name in names]

    def differentiated(batch: Batch) -> list[Any]:
        return _differentiated(model, lambda: _loss(model, batch, training=True), chosen)

    compute: Any = tf.function(differentiated, autograph=False, reduce_retracing=True)

    def gradient(batch: Batch) -> Scores:
        batch = _as_tensors(batch)
        with _restored(model):
            # Keras makes variables at the first call, which must not be inside the graph.
            if compute.experimental_get_tracing_count() == 0:
                _loss(model, batch, training=False)
            found = compute(batch)
        return finite({name: np.array(value) for name, value in zip(names, found, strict=True)}, "The gradient")

    return gradient


def times_weights(
    model: Any, batch: Batch, names: Sequence[str], twice: bool = False, soften: Callable[[Any], Any] | None = None
) -> Scores:
    """Compute w * g or, if `twice`, w * (H g) of the training loss; by weight, in double precision.

    `soften`, a function of the model's outputs, makes it the loss of what it returns, without regularisation.
    """
    keras_of(model)
    variables = weights.variables(model)
    for name in names:
        if name not in variables:
            raise missing("The model has no weight", name, variables)
    chosen = [variables[name] for name in names]
    batch = _as_tensors(batch)

    def derivatives() -> list[Any]:
        with tf.GradientTape() as outer:
            gradients = _differentiated(model, lambda: _loss(model, batch, True, soften), chosen)
            # The gradient of g' g, the first g held constant, is exactly H g.
            squared = tf.add_n([tf.reduce_sum(tf.stop_gradient(value) * value) for value in gradients])
        return tensors(outer.gradient(squared, chosen), chosen) if twice else gradients

    with _restored(model):
        # Keras makes variables at the first call, which must not be inside the graph.
        _loss(model, batch, False, soften)
        # Not called as it is: TensorFlow would warn of repeated tracing.
        found = traced(derivatives)()
    return {
        name: value.numpy().astype(np.float64) * variables[name].numpy().astype(np.float64)
        for name, value in zip(names, found, strict=True)
    }


def are_probabilities(output: np.ndarray, precision: float) -> bool:
    """Check if each row of an output adds up to one, to a precision."""
    wide = output.ndim > 1 and output.shape[-1] > 1
    return wide and bool((output >= 0).all() and np.allclose(output.sum(-1), 1, rtol=0, atol=precision))


def tensors(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Turn gradients into tensors: those of embeddings too, and zeros if there is none."""
    return [
        tf.zeros(variable.shape, variable.dtype) if gradient is None else tf.convert_to_tensor(gradient)
        for gradient, variable in zip(gradients, variables, strict=True)
    ]


def finite(scores: Scores, what: str) -> Scores:
    """Return the scores; raise `LotteryError` if one of them is not a finite number."""
    for name, value in scores.items():
        if not np.isfinite(value).all():
            raise LotteryError(f"{what}: a score of {name!r} is {value[~np.isfinite(value)][0]}, not a finite number.")
    return scores


def _as_tensors(batch: Batch) -> Batch:
    return tf.nest.map_structure(lambda value: None if value is None else tf.convert_to_tensor(value), batch)


def _loss(model: Any, batch: Batch, training: bool, soften: Callable[[Any], Any] | None = None) -> Any:
    # In training, normalisation uses the statistics of the batch: at initialisation the moving ones mean nothing.
    outputs = model(batch.x, training=training)
    if soften is None:
        return model.compute_loss(**batch._asdict(), y_pred=outputs)
    total = model.compute_loss(**batch._asdict(), y_pred=soften(outputs))
    # Regularisation has no part in the loss of GraSP's authors, and would outweigh the rest of it.
    if model.losses and is_keras(type(model).compute_loss):  # which has added them
        total -= tf.cast(tf.add_n([tf.reduce_sum(loss) for loss in model.losses]), total.dtype)
    return total


def _differentiated(model: Any, loss: Callable[[], Any], variables: Sequence[Any]) -> list[Any]:
    """Differentiate a loss in a graph of its own, or raise if it does not depend on the variables."""
    # Of this graph only. Layers of tf_keras draw for dropout from the kernel's state, and so always the same numbers;
    # those of Keras 3 have a state of their own, which `_restored` puts back.
    tf.random.set_seed(0)
    with tf.GradientTape() as tape:
        total = loss()
    gradients = tape.gradient(total, variables)
    if all(gradient is None for gradient in gradients):
        raise LotteryError(
            f"The loss of the model {model.name!r} does not depend on its prunable weights; compile it with a "
            "loss that does."
        )
    return tensors(gradients, variables)


@contextlib.contextmanager
def softened(model: Any) -> Iterator[Callable[[Any], Any]]:
    """Divide what goes into a softmax or sigmoid at a model's end by `TEMPERATURE`.

    The function that is yielded divides the outputs that do not come from one.
    """
    ends = _ends(model)
    activations = [(layer, layer.activation) for layer, is_squashing in dict(ends).items() if is_squashing]
    divided = [is_squashing for _, is_squashing in ends]

    def soften(outputs: Any) -> Any:
        flat = tf.nest.flatten(outputs)
        done = divided if len(divided) == len(flat) else [bool(activations)] * len(flat)
        found = []
        for output, is_done in zip(flat, done, strict=True):
            if not is_done:
                # Values are known outside of a graph: at the call that makes Keras' variables.
                if not tf.executing_eagerly():
                    _refuse_squashed(model, output)
                elif are_probabilities(output.numpy(), 1e-5):
                    raise LotteryError(
                        f"GraSP: the outputs of the model {model.name!r} are probabilities, and a temperature divides "
                        "logits; make the model return logits."
                    )
                output = output / tf.cast(TEMPERATURE, output.dtype)
            found.append(output)
        return tf.nest.pack_sequence_as(outputs, found)

    with contextlib.ExitStack() as stack:
        for layer, activation in activations:
            stack.callback(setattr, layer, "activation", activation)
            # The argument keeps the activation of this turn: a loop's variable is read when the layer is called.
            layer.activation = lambda value, own=activation: own(value / TEMPERATURE)
        yield soften


@contextlib.contextmanager
def _restored(model: Any) -> Iterator[None]:
    """Evaluate the loss of a model, and restore its variables, metrics and random states on the way out."""
    refused = f"The model {model.name!r} has no loss that can be evaluated and differentiated"
    with undisturbed(model), evaluating(refused):
        yield


def synaptic_flow(
    model: Any, build: Callable[[], Any], x: Any, kept: Masks, fractions: Mapping[tuple[str, ...], float]
) -> Scores:
    """Rank entries in the order in which SynFlow prunes them, with algorithm 1 of the paper; see `criteria.synflow`.

    R is the sum of the network's outputs for an input of ones, in inference mode, with the absolute values of all
    trained variables, and without a softmax or sigmoid at its end. Of n survivors that are ranked together, step k of
    K = 100 leaves round(n f^(k/K)), where f is the fraction of their group. Of `x` only shapes and types matter.

    Returns:
        Ranks as floats, by weight, of the masks' shapes, counted from 1 in each group in the order of pruning, and of
        scores within a step (the earlier position first if equal). Survivors come last; entries masked before are 0.
    """
    flow = flow_through(model, build, x, list(kept))
    scores = flow(kept)
    if all(mask.all() for mask in kept.values()) and not any(value.any() for value in scores.values()):
        raise LotteryError(
            "SynFlow: every score is zero, because nothing flows to the network's outputs; use another criterion, or "
            "initial weights that are not zero."
        )
    # By group: the positions that are still kept, how many there were, and the rank of each position that is not.
    alive = {names: np.flatnonzero(_joined(kept, names)) for names in fractions}
    sizes = {names: positions.size for names, positions in alive.items()}
    ranks = {names: np.zeros(sum(kept[name].size for name in names)) for names in fractions}
    ranked: Scores = {}  # views of `ranks`, which follow them
    for names, rank in ranks.items():
        parts = np.split(rank, np.cumsum([kept[name].size for name in names])[:-1])
        ranked |= {name: part.reshape(kept[name].shape) for name, part in zip(names, parts, strict=True)}
    now = kept
    for step in range(1, NUM_STEPS + 1):
        for names, fraction in fractions.items():
            values = _joined(scores, names)[alive[names]]
            count = values.size - round(sizes[names] * fraction ** (step / NUM_STEPS))
            # The last step ranks the survivors too.
            lowest = _lowest_first(values, values.size if step == NUM_STEPS else count)
            ranks[names][alive[names][lowest]] = sizes[names] - values.size + 1 + np.arange(lowest.size)
            alive[names] = np.delete(alive[names], lowest[:count])
        left = {name: mask & (ranked[name] == 0) for name, mask in kept.items()}
        # A step that prunes nothing, as most of a small group, changes no flow.
        if step < NUM_STEPS and any(np.any(left[name] != now[name]) for name in kept):
            scores = flow(left)
        now = left
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
        evaluating(f"SynFlow cannot evaluate the model {model.name!r} in double precision, which it needs"),
    ):
        # A copy, because layers take their precision when they are built.
        copy = build()
        absolute = _absolute(model, copy)
        weights.assign(copy, absolute)
        for layer, is_squashing in _ends(copy):
            if is_squashing:
                # The sum of such outputs has no useful gradient.
                layer.activation = lambda value: value
        evaluate, inputs = _traced_flow(copy, x, names)
        _refuse_lookups(model, inputs)
        for output in evaluate.structured_outputs[0]:
            _refuse_squashed(model, output)

    def scores(masks: Masks) -> Scores:
        masked = {name: absolute[name] * masks[name] for name in names}
        weights.assign(copy, masked)
        outputs, total, derivatives = evaluate()
        if not np.isfinite(total.numpy()):
            raise LotteryError(
                f"SynFlow cannot score the model {model.name!r}: the sum of its outputs is {float(total)}, which "
                "double precision cannot hold. Use smaller initial weights or normalisation."
            )
        if any(are_probabilities(output.numpy(), 1e-9) for output in outputs):
            raise LotteryError(
                f"SynFlow: the outputs of the model {model.name!r} are probabilities, whose sum is always 1; make the "
                "model return logits."
            )
        with np.errstate(over="ignore", invalid="ignore"):  # reported by `finite`
            found = {name: np.abs(masked[name] * value.numpy()) for name, value in zip(names, derivatives, strict=True)}
        return finite(found, "SynFlow")

    return scores


def _absolute(model: Any, copy: Any) -> dict[str, np.ndarray]:
    """Read the variables of a model in double precision, of trained variables their absolute values."""
    variables = weights.variables(copy)
    state = weights.read_state(model)
    if shapes(variables) != shapes(state):
        raise LotteryError(
            f"The function that builds the model {model.name!r} built another architecture the second time; it must "
            "build the same each time."
        )
    floating = {name: value.astype(np.float64) for name, value in state.items() if "float" in str(value.dtype)}
    trained = [name for name in floating if weights.is_trained(copy, variables[name])]
    return floating | {name: np.abs(floating[name]) for name in trained}


def _traced_flow(copy: Any, x: Any, names: Sequence[str]) -> tuple[Any, list[Any]]:
    """Trace outputs, their sum R and its gradients for inputs of ones; return the function and its inputs' tensors."""
    ones = tf.nest.map_structure(_ones, x)
    given: list[Any] = []
    variables = weights.variables(copy)
    chosen = [variables[name] for name in names]

    def flow() -> tuple[Any, Any, Any]:
        given[:] = [tf.identity(value) for value in tf.nest.flatten(ones)]
        inputs = tf.nest.pack_sequence_as(ones, given)
        with tf.GradientTape() as tape:
            outputs = [tf.cast(output, tf.float64) for output in tf.nest.flatten(copy(inputs, training=False))]
            total = tf.add_n([tf.reduce_sum(output) for output in outputs])
        return outputs, total, tensors(tape.gradient(total, chosen), chosen)

    copy(ones, training=False)  # Keras makes variables at the first call, which must not be inside the graph
    return traced(flow), given


def check_ends(model: Any, x: Any) -> Any:
    """Raise `LotteryError` if the logits of a model are not known; return its call, traced on inputs like `x`."""
    specs = tf.nest.map_structure(lambda value: tf.TensorSpec(value.shape, value.dtype), x)
    with evaluating(f"The model {model.name!r} cannot be called on its inputs"):
        called = traced_call(model, specs)
    if not any(is_squashing for _, is_squashing in _ends(model)):
        for output in called.outputs:
            _refuse_squashed(model, output)
    return called


def check_inputs_and_ends(model: Any, x: Any) -> None:
    """Raise `LotteryError` if a model looks its inputs up, or its logits are not known; `synaptic_flow` does too."""
    _refuse_lookups(model, check_ends(model, x).inputs[: len(tf.nest.flatten(x))])


def _ends(model: Any) -> list[tuple[Any, bool]]:
    """List the last layers of a model, True for each that ends in a softmax or sigmoid."""
    found = [(layer, graph.is_squashing(layer)) for layer in graph.last_layers(model)]
    for layer, is_squashing in found:
        if is_squashing and hasattr(layer, "return_sequences"):
            raise LotteryError(
                f"The logits of the model {model.name!r} are not known: its last layer, {layer.name!r}, is recurrent, "
                "with a sigmoid or softmax in each step; end the model in a Dense layer."
            )
    return found


def _refuse_squashed(model: Any, output: Any) -> None:
    """Raise `LotteryError` if an output in a graph comes from a softmax or sigmoid, whatever code has called it."""
    operation = output.op
    if operation.type in _MOVING:
        for value in operation.inputs:
            _refuse_squashed(model, value)
    if operation.type in ("LogSoftmax", "Sigmoid", "Softmax"):
        raise LotteryError(
            f"The logits of the model {model.name!r} are not known: it ends in a sigmoid or softmax that is not the "
            "activation of its last layer; make it return logits, or end it in an Activation layer."
        )


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
    waiting = [tensor]
    seen = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        for operation in value.consumers():
            if operation.type in _OF_SHAPES:
                continue
            numbers = [output for output in operation.outputs if not output.dtype.is_bool]
            has_floats = any(output.dtype.is_floating for output in numbers)
            if operation.type in _MOVING:
                waiting += operation.outputs
            elif value.dtype.is_integer and has_floats:
                return True
            elif value.dtype.is_integer and numbers:
                waiting += operation.outputs
    return False


@contextlib.contextmanager
def _in_float64(keras: Any) -> Iterator[None]:
    """Build layers in double precision, unless they name a precision of their own."""
    # A policy that nobody has set follows `floatx` (tf_keras 2.21), so it is read before that changes.
    with in_policy(keras, "float64"), contextlib.ExitStack() as stack:
        stack.callback(keras.backend.set_floatx, keras.backend.floatx())
        keras.backend.set_floatx("float64")
        yield


def _ones(value: Any) -> np.ndarray:
    value = np.asarray(value)
    return np.ones((1, *value.shape[1:]), value.dtype if value.dtype.kind in "iub" else np.float64)
