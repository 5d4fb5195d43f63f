"""Make layers of a chain anew: smaller, in double precision, or as nothing but the paths that their weights are."""

import functools
import itertools
import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lottery import weights
from lottery.errors import LotteryError
from lottery.models import outputs
from lottery.models.library import ENTRYWISE, FLAT, IDLE, SPATIAL, START, WEIGHTED, evaluating, keras_of
from lottery.tickets import chain
from lottery.tickets.chain import Link, library


def assemble(model: Any, shape: tuple[int, ...], layers: Sequence[tuple[Any, Sequence[np.ndarray]]]) -> Any:
    """A new model of the same library, kind and name, out of new layers.

    Args:
        model: The model that it is made from.
        shape: Shape of one example.
        layers: New layers, in order, with the values of their weights.

    Returns:
        The model, not compiled.

    Raises:
        LotteryError: Keras cannot build it.
    """
    keras = keras_of(model)
    given = model.inputs[0]
    with evaluating(f"Keras cannot build the model {model.name!r} anew from its layers"):
        inputs = keras.Input(shape, dtype=getattr(given.dtype, "name", given.dtype), name=given._keras_history[0].name)
        if isinstance(model, keras.Sequential):
            new = keras.Sequential([inputs, *(layer for layer, _ in layers)], name=model.name)
        else:
            x = inputs
            for layer, _ in layers:
                x = layer(x)
            new = keras.Model(inputs, x, name=model.name)
        for layer, values in layers:
            _set(layer, values)
    return new


def copy_of(layer: Any, **changes: Any) -> Any:
    """A new layer like another, with some of its settings changed; without its weights, and with its activation."""
    with warnings.catch_warnings():
        # The activation is handed on as it is, and never loaded from what Keras writes down of it.
        warnings.filterwarnings("ignore", "The object being serialized includes a `lambda`", UserWarning)
        config = dict(layer.get_config())
    config.pop("batch_input_shape", None)  # tf_keras' first layer may bring the shape of the input
    if "activation" in config:
        config["activation"] = "linear"
    with evaluating(f"Keras cannot make the layer {layer.name!r} anew from its settings"):
        new = type(layer).from_config(config | changes)
    if "activation" in config and "activation" not in changes:
        new.activation = layer.activation
    return new


def at_inference(link: Link, x: Any) -> Any:
    """What a layer without a kernel makes of double-precision values, in double precision where Keras can."""
    import tensorflow as tf

    if link.kind == IDLE:
        return x
    # TensorFlow has these for a CPU in single precision only.
    dtype = "float32" if type(link.layer).__name__.endswith("Pooling3D") else "float64"
    copy = copy_of(link.layer, dtype=dtype)
    copy.build((1, *link.before))
    _set(copy, link.layer.get_weights())
    return tf.cast(copy(tf.cast(x, dtype), training=False), "float64")


def activated(link: Link, x: Any) -> Any:
    """What the activation within a layer makes of values; `x` itself where there is none."""
    import tensorflow as tf

    activation = getattr(link.layer, "activation", None)
    return x if activation is None else tf.cast(activation(tf.constant(x, "float64")), "float64")


def unreached(links: Sequence[Link]) -> np.ndarray:
    """The entries of an example from which no path of weights leads to an output.

    It is a derivative: that of the sum of all outputs of a network of the same layers, in which every weight that is
    not zero is one, every pooling is a mean, and nothing else is left. All terms are positive, so nothing cancels.

    Args:
        links: A chain.

    Returns:
        A boolean array of the shape of one example, True where no weight reads the entry.
    """
    import tensorflow as tf

    start = tf.ones((1, *links[0].before), "float64")
    with tf.GradientTape() as tape:
        tape.watch(start)
        x = start
        for link in links:
            x = _structure(link, x)
        total = tf.reduce_sum(x)
    reached = tape.gradient(total, start)
    return np.asarray(reached)[0] == 0


def flat_settings(link: Link, inputs: np.ndarray) -> tuple[dict[str, Any], list[np.ndarray]] | None:
    """What a layer that acts on each entry needs in order to act on a flat choice of entries.

    Args:
        link: A link before the first weights.
        inputs: Flat positions of the entries in the shape that the layer takes now.

    Returns:
        The settings that change and the weights, or None if the layer needs more than the entry itself.
    """
    layer, name = link.layer, type(link.layer).__name__

    def chosen(value: Any) -> np.ndarray:
        return np.broadcast_to(np.asarray(value), (1, *link.before)).reshape(-1)[inputs]

    if name == "Normalization":
        return {"axis": -1, "mean": chosen(layer.mean).tolist(), "variance": chosen(layer.variance).tolist()}, []
    if link.kind not in (ENTRYWISE, IDLE) or link.mixes or name.startswith("SpatialDropout"):
        return None
    changes: dict[str, Any] = {}
    if name == "Rescaling":
        ends = {"scale": layer.scale, "offset": layer.offset}
        changes = {key: chosen(value).tolist() for key, value in ends.items() if np.ndim(value)}
    if name == "BatchNormalization":
        changes = {"axis": -1}
    if name == "PReLU":
        changes = {"shared_axes": None}
    return changes, [chosen(value) for value in layer.get_weights()]


def _structure(link: Link, x: Any) -> Any:
    import tensorflow as tf

    layer, name = link.layer, type(link.layer).__name__
    if link.kind == WEIGHTED:
        copy = copy_of(layer, dtype="float64", activation="linear", use_bias=False)
        copy.build((1, *link.before))
        copy.set_weights([(layer.get_weights()[0] != 0).astype(np.float64)])
        x = copy(x)
    elif link.kind == SPATIAL and "Max" in name:
        mean = getattr(library(layer).layers, name.replace("Max", "Average"))
        settings = {key: value for key, value in layer.get_config().items() if key != "batch_input_shape"}
        dtype = "float32" if name.endswith("3D") else "float64"
        x = tf.cast(mean.from_config(settings | {"dtype": dtype})(tf.cast(x, dtype)), "float64")
    elif link.kind in (SPATIAL, FLAT):
        x = at_inference(link, x)
    elif link.kind == START and name == "Reshape":
        x = tf.reshape(x, (1, *link.after))
    return tf.ones_like(x) * tf.reduce_sum(x) if link.mixes else x


def _set(layer: Any, values: Sequence[np.ndarray]) -> None:
    if values:
        layer.set_weights(list(values))
    if hasattr(layer, "finalize_state"):  # what Normalization computes from them
        layer.finalize_state()


# Of the value: entries of one channel that differ by less are the same, but for rounding in a pooling.
_ROUNDING = 1e-6


class Weighted(NamedTuple):
    """A layer with a kernel, in a working copy that ends with zeros wherever nothing is needed.

    Attributes:
        position: Of its link in the chain.
        kernel: The kernel, of its full shape.
        bias: Its bias, in double precision; zeros if there is none.
        kept: By unit, whether it stays.
    """

    position: int
    kernel: np.ndarray
    bias: np.ndarray
    kept: np.ndarray

    def by_entry(self) -> np.ndarray:
        """The kernel as (positions in the window, entries at a position, units), a view."""
        return self.kernel.reshape(-1, *self.kernel.shape[-2:])


def read_weighted(position: int, link: Link) -> Weighted:
    """A working copy of a layer, in which every unit stays so far."""
    kernel, *bias = (np.array(value, order="C") for value in link.layer.get_weights())
    num_units = kernel.shape[-1]
    bias = bias[0].astype(np.float64) if bias else np.zeros(num_units)
    return Weighted(position, kernel, bias, np.ones(num_units, dtype=bool))


def fold_constants(links: Sequence[Link], one: Weighted, following: Weighted) -> None:
    """Move what the constant units of a layer add into the bias of the next one, and forget what they read."""
    between = links[one.position : following.position]
    if any(link.mixes for link in between):
        return
    value, varies = _constants(between, one)
    kernel = following.by_entry()
    value, constant = value.reshape(-1, kernel.shape[1]), ~varies.reshape(-1, kernel.shape[1]).any(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        constant &= np.isfinite(value.astype(kernel.dtype)).all(axis=0)
        uniform = np.abs(value - value[0]).max(axis=0) <= _ROUNDING * np.abs(value[0])
    exact = uniform & ((value[0] == 0) | (not _sees_padding(links[following.position])))
    folded = constant & exact
    following.bias[:] += value[0, folded] @ kernel[:, folded].astype(np.float64).sum(axis=0)
    kernel[:, folded] = 0
    # By unit, for a layer that was flattened has several entries of each. What it reads is of no consequence.
    one.kernel[..., constant.reshape(-1, one.bias.size).all(axis=0)] = 0


def drop_unread(links: Sequence[Link], one: Weighted, following: Weighted) -> None:
    """Drop the units of a layer that the next one does not read, and forget what they read themselves."""
    if any(link.mixes for link in links[one.position : following.position]):
        return
    read = (following.by_entry() != 0).any(axis=(0, 2)).reshape(-1, one.kept.size).any(axis=0)
    one.kernel[..., ~read] = 0
    read[0] |= not read.any()  # Keras needs one unit
    one.kept[:] = read


def pieces(links: Sequence[Link], layers: Sequence[Weighted]) -> list[tuple[Any, list[np.ndarray]]]:
    """New layers for what is left of a chain, with the values of their weights."""
    at, found = {one.position: one for one in layers}, []
    kept = np.ones(1, dtype=bool)  # of the inputs, all
    for position, link in enumerate(links):
        entries = np.resize(kept, link.before[-1]) if link.before else kept
        if position in at:
            found.append(_smaller(link, at[position], entries))
            kept = at[position].kept
        else:
            values = link.layer.get_weights()
            cut = kept.size > 1
            values = [value[..., entries] if cut and value.shape[-1] == entries.size else value for value in values]
            found.append((copy_of(link.layer), values))
    return found


def flat_pieces(
    links: Sequence[Link], layers: Sequence[Weighted], inputs: np.ndarray
) -> list[tuple[Any, list[np.ndarray]]]:
    """The same for a model that takes a flat choice of the entries.

    Args:
        links: A chain.
        layers: Its layers with kernels, in order.
        inputs: Flat positions of the entries.

    Raises:
        LotteryError: What comes before the first weights needs more than single entries.
    """
    first = layers[0].position
    if type(links[first].layer).__name__ != "Dense" or len(links[first].before) != 1:
        raise LotteryError(
            f"drop_inputs: received True, allowed is False, for the first layer with weights, "
            f"{links[first].layer.name!r}, takes examples of shape {links[first].before}, of which single entries "
            "cannot be left out; they are reported as unread."
        )
    found = []
    for link in links[:first]:
        if link.kind == FLAT or (link.kind == START and type(link.layer).__name__ == "Reshape"):
            continue
        settings = flat_settings(link, inputs)
        if settings is None:
            raise LotteryError(
                f"drop_inputs: received True, allowed is False, for the layer {link.layer.name!r} before the first "
                "weights needs more of an example than one entry at a time; unread entries are reported."
            )
        changes, values = settings
        found.append((copy_of(link.layer, **changes), values))
    chosen = np.zeros(links[first].before, dtype=bool)
    chosen[inputs] = True
    return [*found, _smaller(links[first], layers[0], chosen), *pieces(links, layers)[first + 1 :]]


def _constants(between: Sequence[Link], one: Weighted) -> tuple[np.ndarray, np.ndarray]:
    """What arrives at the next layer if this one gets nothing but its bias, and which entries may be something else."""
    first, *others = between
    value = activated(first, np.broadcast_to(one.bias, (1, *first.after)).copy())
    varies = np.broadcast_to((one.kernel != 0).reshape(-1, one.bias.size).any(axis=0), first.after)
    for link in others:
        value = at_inference(link, value)
        if type(link.layer).__name__ == "BatchNormalization" and link.layer.scale:
            varies = varies & (link.layer.get_weights()[0] != 0)
        if link.kind == FLAT:
            varies = varies.reshape(-1)
        elif link.before != link.after:
            varies = np.broadcast_to(varies.reshape(-1, link.before[-1]).any(axis=0), link.after)
    return np.asarray(value), varies


def _sees_padding(link: Link) -> bool:
    """Whether windows of a convolution may reach over the border, where there are zeros instead of the constant."""
    return getattr(link.layer, "padding", "valid") != "valid" and math.prod(link.layer.kernel_size) > 1


def _smaller(link: Link, one: Weighted, entries: np.ndarray) -> tuple[Any, list[np.ndarray]]:
    kernel = one.kernel[..., entries, :][..., one.kept]
    use_bias = bool(link.layer.use_bias or np.any(one.bias))
    size = "units" if type(link.layer).__name__ == "Dense" else "filters"
    layer = copy_of(link.layer, **{size: kernel.shape[-1], "use_bias": use_bias})
    return layer, [kernel, one.bias[one.kept].astype(kernel.dtype)] if use_bias else [kernel]


# Of the largest output, on random inputs, before a compacted model is handed out; by what it computes with.
_TOLERANCE = {"float16": 0.05, "bfloat16": 0.2}


_LEAST_SECONDS = 0.005  # of calls, in a turn


_MANY = 1000  # examples in a call, beside one alone


@dataclass(frozen=True)
class Compacted:
    """A smaller model that computes the same, and what has become smaller; pairs are before and after.

    Attributes:
        model: The compacted model, of the same library as the one it was made from, not compiled.
        units: Units of each Dense and convolution, by the stable name of the layer.
        num_parameters: Numbers that Keras counts in the model, moving statistics included.
        multiply_adds: Multiplications of Dense and convolutional kernels for one example.
        input_shape: Shape of one example as the compacted model takes it.
        unread: Of the shape of one example of the original, True where no weight that is left reads the entry.
        inputs: Flat positions, in an example of the original, of the entries that the compacted model takes.
    """

    model: Any
    units: dict[str, tuple[int, int]]
    num_parameters: tuple[int, int]
    multiply_adds: tuple[int, int]
    input_shape: tuple[int, ...]
    unread: np.ndarray
    inputs: np.ndarray

    def select(self, x: Any) -> Any:
        """Examples for the original model as the compacted one takes them: as they are, or flat without the unread.

        Args:
            x: An array or tensor of examples, the first dimension counting them.

        Returns:
            `x` itself if the compacted model takes all entries in their shape; else an array of two dimensions.

        Raises:
            LotteryError: The examples have another shape than the original model takes.
        """
        if tuple(x.shape[1:]) != self.unread.shape:
            raise LotteryError(
                f"The examples have shape {tuple(x.shape[1:])}, allowed is {self.unread.shape}, as the model before "
                "compaction takes them."
            )
        if self.input_shape == self.unread.shape and self.inputs.size == self.unread.size:
            return x
        return np.asarray(x).reshape(len(x), -1)[:, self.inputs]


@dataclass(frozen=True)
class Measured:
    """A compacted model, and how it compares with the one that it was made from.

    Attributes:
        compacted: What `compact` returned.
        difference: The largest difference of an output, over the largest output.
        seconds: By the number of examples in a call: how long it takes, before and after.
    """

    compacted: Compacted
    difference: float
    seconds: dict[int, tuple[float, float]]


def compact(model: Any, drop_inputs: bool = False) -> Compacted:
    """Remove every unit of a masked network that has no input or no output, without changing what it computes.

    The weights decide: an entry that is exactly zero is an absent weight. A unit whose outgoing weights are all absent
    is removed. A unit that is constant, for its incoming weights are all absent or the scale of its BatchNorm is zero,
    is computed once, through BatchNorm, activation and pooling; what it adds to the next layer goes into that layer's
    bias (which is switched on if the layer has none), and the unit is removed. Both go on until nothing more can go.
    What remains is dense: weights that are zero between units that stay are stored as zeros.

    A constant stays where removing it would not be exact: a constant other than zero, in front of a convolution whose
    windows reach over padding. So do units whose activation is not of each entry by itself (softmax, or a function of
    the user's own), the units of the last layer, and one unit where nothing would be left of a layer. Outputs are the
    same at inference, but for rounding. Training goes other ways, if only because there is less to train.

    Args:
        model: A built Keras 3 or tf_keras model that is one chain of layers: Dense and convolutions, with BatchNorm,
            activations, pooling, padding, Flatten and Dropout, and with Reshape, Rescaling and Normalization before
            them. It is not changed. Initialisers, regularisers and constraints go along; an optimiser does not.
        drop_inputs: Whether the compacted model takes only the entries of an example that some weight reads, flat, as
            `Compacted.select` makes them. Only where the first layer with weights is a Dense.

    Returns:
        The compacted model and what has become smaller.

    Raises:
        LotteryError: The model is no chain of layers that are known here, its inputs cannot be dropped, or on random
            inputs it gives no finite outputs, or others than the compacted model.
    """
    links = chain.take_apart(model)
    layers = [read_weighted(position, link) for position, link in enumerate(links) if link.kind == WEIGHTED]
    # One pass each way is enough. On the way there, constants make constants; on the way back, what is not read leaves
    # others unread, but makes nothing constant.
    for one, following in itertools.pairwise(layers):
        fold_constants(links, one, following)
    for one, following in reversed([*itertools.pairwise(layers)]):
        drop_unread(links, one, following)
    small = assemble(model, links[0].before, pieces(links, layers))
    unread = unreached(chain.take_apart(small))
    inputs = np.arange(unread.size)
    if drop_inputs:
        inputs = np.flatnonzero(~unread)
        inputs = inputs if inputs.size else np.arange(1)  # Keras needs one
        small = assemble(model, (inputs.size,), flat_pieces(links, layers, inputs))
    after = chain.take_apart(small)
    compacted = Compacted(
        model=small,
        units=_units(model, links, layers),
        num_parameters=(model.count_params(), small.count_params()),
        multiply_adds=(multiply_adds(links), multiply_adds(after)),
        input_shape=after[0].before,
        unread=unread,
        inputs=inputs,
    )
    _check(model, compacted)
    return compacted


def measured(
    model: Any,
    inputs: Any = None,
    drop_inputs: bool = False,
    num_turns: int = 25,
    clock: Callable[[], float] = time.perf_counter,
) -> Measured:
    """Compact a model, and see how far its outputs are from what they were, and how much less time it takes.

    Args:
        model: As `compact` takes it.
        inputs: Examples as the model takes them, all of which are compared; times are those for one of them and for
            all, at most 1000. By default 1000 random ones.
        drop_inputs: As for `compact`.
        num_turns, clock: As for `latency`.

    Returns:
        The compacted model, the difference and the times.

    Raises:
        LotteryError: As `compact`; or the model does not take the inputs, or gives no finite outputs on them.
    """
    compacted = compact(model, drop_inputs)
    inputs = _random(model, _MANY) if inputs is None else np.asarray(inputs)
    difference, taken = _difference(model, compacted, inputs), compacted.select(inputs)
    models, seconds = {"before": model, "after": compacted.model}, {}
    for num in sorted({1, min(len(inputs), _MANY)}):
        times = latency(models, {"before": inputs[:num], "after": taken[:num]}, num_turns, clock)
        seconds[num] = times["before"], times["after"]
    return Measured(compacted, difference, seconds)


def multiply_adds(links: Sequence[Link]) -> int:
    """Multiplications of the kernels of a chain for one example, each at every position that it is applied to."""
    weighted = [link for link in links if link.kind == WEIGHTED]
    return sum(math.prod(link.after[:-1]) * math.prod(link.layer.weights[0].shape) for link in weighted)


def latency(
    models: Mapping[str, Any], example: Any, num_turns: int = 25, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """How long a forward pass takes, compiled by ``tf.function`` without XLA, on the threads that TensorFlow has.

    The models take turns, in an order that rotates, so that what else the machine does hits all of them alike. A turn
    is as many calls as take some milliseconds; copying the example to the device is not among them.

    Args:
        models: Built models of one input, by name.
        example: Inputs, all of which go through in one call; or, where models take different ones, inputs by name.
        num_turns: Turns that each model takes.
        clock: What tells the seconds. ``time.process_time`` tells those that processors have worked, all threads
            together, which on one thread is nearly the same, and still is where other programs interfere.

    Returns:
        Seconds a call by name, the median over the turns.

    Raises:
        LotteryError: There is no model, or one that has no inputs by its name, or does not take them.
    """
    import tensorflow as tf

    if not models:
        raise LotteryError("models: received none, allowed is one or more by name.")
    by_name = example if isinstance(example, Mapping) else dict.fromkeys(models, example)
    if missing := [name for name in models if name not in by_name]:
        raise LotteryError(f"There are no inputs for {missing[0]!r} among those by name: {', '.join(by_name)}.")
    if num_turns < 1:
        raise LotteryError(f"num_turns: received {num_turns}, allowed is 1 or more.")
    calls: dict[str, Any] = {}
    for name, model in models.items():
        inputs: Any = tf.convert_to_tensor(np.asarray(by_name[name], _dtype(model)))
        with evaluating(f"The model {name!r} cannot be timed on the example"):
            calls[name] = _compiled(model, inputs)
    first = {name: _seconds(call, 3, clock) for name, call in calls.items()}
    num_calls = {name: max(1, round(_LEAST_SECONDS / max(seconds, 1e-6))) for name, seconds in first.items()}
    names, turns = list(models), {name: [] for name in models}
    for turn in range(num_turns):
        begin = turn % len(names)
        for name in names[begin:] + names[:begin]:
            turns[name].append(_seconds(calls[name], num_calls[name], clock))
    return {name: statistics.median(times) for name, times in turns.items()}


def _units(model: Any, links: Sequence[Link], layers: Sequence[Weighted]) -> dict[str, tuple[int, int]]:
    names = {id(variable): name for name, variable in weights.variables(model).items()}
    found = {}
    for one in layers:
        name = names[id(links[one.position].layer.weights[0])].rpartition("/")[0]
        found[name] = (one.kept.size, int(one.kept.sum()))
    return found


def _check(model: Any, compacted: Compacted) -> None:
    """Compare on random inputs: nobody should find out later that a layer of theirs was not what it seemed."""
    apart = _difference(model, compacted, _random(model, 4))
    allowed = max(_TOLERANCE.get(layer.compute_dtype, 1e-3) for layer in model.layers)
    if apart > allowed:
        raise LotteryError(
            f"The compacted model gives other outputs than {model.name!r}, {apart:.2g} of the largest away on random "
            f"inputs, allowed is {allowed:g}; use the masked model, and please report its layers."
        )


def _difference(model: Any, compacted: Compacted, inputs: np.ndarray) -> float:
    taken = compacted.select(inputs)
    with evaluating(f"The model {model.name!r} fails on the inputs"):
        before = outputs.evaluate(model, inputs, training=False)
        after = outputs.evaluate(compacted.model, taken, training=False)
    return outputs.between(before, after, of=f"the model {model.name!r}")


def _random(model: Any, num: int) -> np.ndarray:
    """Random examples of a chain, which takes any numbers, the same each time."""
    x, dtype = np.random.default_rng(0).normal(size=(num, *model.inputs[0].shape[1:])), _dtype(model)
    return x.astype(dtype) if "float" in dtype else (np.abs(64 * x) % 127).astype(dtype)


def _dtype(model: Any) -> str:
    return str(getattr(model.inputs[0].dtype, "name", model.inputs[0].dtype))


def _compiled(model: Any, inputs: Any) -> Callable[[], Any]:
    """A forward pass, traced. The model is no argument, not even a default one: each call would look through it."""
    import tensorflow as tf

    traced = tf.function(lambda x: model(x, training=False), autograph=False).get_concrete_function(inputs)
    return functools.partial(traced, inputs)


def _seconds(call: Callable[[], Any], num_calls: int, clock: Callable[[], float]) -> float:
    """Of one call, the last output having arrived; after one call that is not measured."""
    call()
    began = clock()
    for _ in range(num_calls):
        outputs = call()
    np.asarray(outputs)
    return (clock() - began) / num_calls
