"""Shrink a masked network: remove the units that do nothing, and measure the gain."""

import functools
import itertools
import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery import weights
from lottery.errors import LotteryError
from lottery.models import outputs
from lottery.models.graph import ENTRYWISE, FLAT, IDLE, SPATIAL, WEIGHTED
from lottery.models.kerases import evaluating, keras_of, traced_call
from lottery.tickets import chain
from lottery.tickets.chain import Link

# Largest difference of an output allowed on random inputs, over the largest output, by the type of computation.
_TOLERANCE = {"float16": 0.05, "bfloat16": 0.2}
_ROUNDING = 1e-6  # entries of one channel that are this fraction apart are the same, but for rounding in a pooling

Piece = tuple[Any, list[np.ndarray]]  # a new layer, and the values of its weights


@dataclass(frozen=True)
class Compacted:
    """A smaller model that computes the same, and its sizes as pairs of before and after."""

    model: Any  # of the same library as the original, not compiled
    units: dict[str, tuple[int, int]]  # of each Dense and convolution, by the stable name of the layer
    num_parameters: tuple[int, int]  # as Keras counts them, moving statistics included
    multiply_adds: tuple[int, int]  # of Dense and convolutional kernels for one example
    input_shape: tuple[int, ...]  # of one example as the compacted model takes it
    unread: np.ndarray  # of the shape of one example of the original, True where no remaining weight reads the entry
    inputs: np.ndarray  # flat positions, in an example of the original, of the entries that the compacted model takes

    def select(self, x: Any) -> Any:
        """Convert examples for the original model into those for the compacted one: themselves, or a flat choice."""
        if tuple(x.shape[1:]) != self.unread.shape:
            raise LotteryError(
                f"The examples have shape {tuple(x.shape[1:])}, allowed is {self.unread.shape}, as the model before "
                "compaction takes them."
            )
        if self.input_shape == self.unread.shape and self.inputs.size == self.unread.size:
            return x
        return np.asarray(x).reshape(len(x), -1)[:, self.inputs]


def compact(model: Any, drop_inputs: bool = False) -> Compacted:
    """Remove every unit of a masked network that has no input or no output, without changing what it computes.

    Entries that are exactly zero count as absent. A unit without outgoing entries is removed. A unit is constant if it
    has no incoming entries, or if the scale of its BatchNorm is zero. Its value is computed once, through BatchNorm,
    activation and pooling, and moves into the bias of the next layer (which gets a bias if it has none); then the unit
    is removed. This repeats until no unit can be removed. The result is dense: zeros between remaining units are
    stored as zeros.

    Some units stay: nonzero constants in front of a convolution whose windows reach over padding, units whose
    activation does not act on each entry separately (softmax, or your own function), the units of the last layer, and
    one unit of a layer that would be empty. Outputs stay the same except for rounding; otherwise an error is raised.

    Args:
        model: A built Keras 3 or tf_keras model, a single chain of layers: Dense and convolutions, with BatchNorm,
            activations, pooling, padding, Flatten and Dropout, and with Reshape, Rescaling and Normalization before
            them. It is not changed. The result keeps initializers, regularizers and constraints, but no optimizer.
        drop_inputs: Drop the entries of an example that no weight reads. The model then takes flat examples from
            `Compacted.select`. Only for models whose first layer with weights is a Dense.
    """
    links = chain.take_apart(model)
    first = [*itertools.takewhile(lambda link: link.effect != WEIGHTED, links)]
    segments = _segments(links[len(first) :])
    # One pass each way is enough. On the way there, constants make constants; on the way back, an unread unit leaves
    # others unread, but makes nothing constant.
    for one, following in itertools.pairwise(segments):
        fold_constants(one, following)
    for one, following in reversed([*itertools.pairwise(segments)]):
        drop_unread(one, following)
    unread = _unread(keras_of(model), links, segments)
    inputs, shape = np.arange(unread.size), links[0].before
    if drop_inputs:
        inputs = np.flatnonzero(~unread) if not unread.all() else np.arange(1)  # Keras needs one
        shape = (inputs.size,)
        pieces = _flat_pieces(first, segments, inputs)
    else:
        pieces = [(_copy(link.layer), link.layer.get_weights()) for link in first]
        pieces += _pieces(segments, np.ones(1, dtype=bool))
    small = _assembled(model, shape, pieces)
    names = {id(variable): name.rpartition("/")[0] for name, variable in weights.variables(model).items()}
    compacted = Compacted(
        model=small,
        units={names[id(one.link.layer.weights[0])]: (one.kept.size, int(one.kept.sum())) for one in segments},
        num_parameters=(model.count_params(), small.count_params()),
        multiply_adds=(multiply_adds(links), multiply_adds(chain.take_apart(small))),
        input_shape=shape,
        unread=unread,
        inputs=inputs,
    )
    _check(model, compacted)
    return compacted


def multiply_adds(links: Sequence[Link]) -> int:
    """Count the multiply-adds of a chain for one example; unlike `lottery.models`, of frozen layers too."""
    weighted = [link for link in links if link.effect == WEIGHTED]
    return sum(math.prod(link.after[:-1]) * math.prod(link.layer.weights[0].shape) for link in weighted)


@dataclass
class Segment:
    """A layer with a kernel, which ends with zeros wherever nothing is needed, and those before the next such layer."""

    link: Link
    following: list[Link]
    kernel: np.ndarray  # a working copy, of the full shape
    bias: np.ndarray  # in double precision; zeros if the layer has none
    kept: np.ndarray  # by unit, True if it stays

    @property
    def mixes(self) -> bool:
        """True if units may depend on each other before they reach the next segment."""
        return any(link.mixes for link in (self.link, *self.following))

    def by_entry(self) -> np.ndarray:
        """View the kernel as (positions in the window, entries at a position, units)."""
        return self.kernel.reshape(-1, *self.kernel.shape[-2:])


def _segments(links: Sequence[Link]) -> list[Segment]:
    found: list[Segment] = []
    for link in links:
        if link.effect != WEIGHTED:
            found[-1].following.append(link)
            continue
        kernel, *bias = (np.array(value, order="C") for value in link.layer.get_weights())
        num_units = kernel.shape[-1]
        bias = bias[0].astype(np.float64) if bias else np.zeros(num_units)
        found.append(Segment(link, [], kernel, bias, np.ones(num_units, dtype=bool)))
    return found


def fold_constants(one: Segment, following: Segment) -> None:
    """Move what the constant units of a segment add into the bias of the next one, and clear what they read."""
    if one.mixes:
        return
    value, varies = _arriving(one)
    kernel = following.by_entry()
    value, constant = value.reshape(-1, kernel.shape[1]), ~varies.reshape(-1, kernel.shape[1]).any(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        constant &= np.isfinite(value.astype(kernel.dtype)).all(axis=0)
        uniform = np.abs(value - value[0]).max(axis=0) <= _ROUNDING * np.abs(value[0])
    folded = constant & uniform & ((value[0] == 0) | (not _sees_padding(following.link.layer)))
    following.bias[:] += value[0, folded] @ kernel[:, folded].astype(np.float64).sum(axis=0)
    kernel[:, folded] = 0
    # By unit, because a unit has several entries after Flatten. A constant does not depend on what it reads.
    one.kernel[..., constant.reshape(-1, one.bias.size).all(axis=0)] = 0


def drop_unread(one: Segment, following: Segment) -> None:
    """Drop the units of a segment that the next one does not read, and clear what they read themselves."""
    if one.mixes:
        return
    read = (following.by_entry() != 0).any(axis=(0, 2)).reshape(-1, one.kept.size).any(axis=0)
    one.kernel[..., ~read] = 0
    read[0] |= not read.any()  # Keras needs one unit
    one.kept[:] = read


def _arriving(one: Segment) -> tuple[np.ndarray, np.ndarray]:
    """Return what arrives at the next segment if this one adds only its bias, and which entries may differ from it."""
    import tensorflow as tf

    value = np.broadcast_to(one.bias, (1, *one.link.after)).copy()
    if (activation := getattr(one.link.layer, "activation", None)) is not None:
        value = tf.cast(activation(tf.constant(value)), "float64")
    varies = np.broadcast_to((one.kernel != 0).reshape(-1, one.bias.size).any(axis=0), one.link.after)
    for link in one.following:
        value = _at_inference(link, value)
        if type(link.layer).__name__ == "BatchNormalization" and link.layer.scale:
            varies = varies & (link.layer.get_weights()[0] != 0)
        if link.effect == FLAT:
            varies = varies.reshape(-1)
        elif link.before != link.after:
            varies = np.broadcast_to(varies.reshape(-1, link.before[-1]).any(axis=0), link.after)
    return np.asarray(value), varies


def _sees_padding(layer: Any) -> bool:
    """Check if windows of a convolution may reach over the border, where there are zeros instead of the constant."""
    return getattr(layer, "padding", "valid") != "valid" and math.prod(layer.kernel_size) > 1


def _unread(keras: Any, links: Sequence[Link], segments: Sequence[Segment]) -> np.ndarray:
    """Return True for each entry of an example from which no path of weights leads to an output."""
    import tensorflow as tf

    # It is a derivative: of the sum of all outputs of a network of the same layers, in which every weight that is not
    # zero is one, every pooling is a mean, and nothing else is left. All terms are positive, so nothing cancels.
    kernels = {id(one.link.layer): one.kernel for one in segments}
    start = tf.ones((1, *links[0].before), "float64")
    with tf.GradientTape() as tape:
        tape.watch(start)
        x = start
        for link in links:
            layer, name = link.layer, type(link.layer).__name__
            if link.effect == WEIGHTED:
                paths = _copy(layer, dtype="float64", activation="linear", use_bias=False)
                paths.build((1, *link.before))
                paths.set_weights([(kernels[id(layer)] != 0).astype(np.float64)])
                x = paths(x)
            elif link.effect == SPATIAL and "Max" in name:
                mean = _copy(layer, getattr(keras.layers, name.replace("Max", "Average")))
                x = _at_inference(link._replace(layer=mean), x)
            elif link.effect in (SPATIAL, FLAT):
                x = _at_inference(link, x)
            elif name == "Reshape":
                x = tf.reshape(x, (1, *link.after))
            if link.mixes:
                x = tf.ones_like(x) * tf.reduce_sum(x)
        total = tf.reduce_sum(x)
    return np.asarray(tape.gradient(total, start))[0] == 0


def _pieces(segments: Sequence[Segment], kept: np.ndarray) -> list[Piece]:
    """Make smaller layers for segments; `kept` repeats over the entries that the first segment reads."""
    found: list[Piece] = []
    for one in segments:
        layer = one.link.layer
        kernel = one.kernel[..., np.resize(kept, one.link.before[-1]), :][..., one.kept]
        use_bias = bool(layer.use_bias or np.any(one.bias))
        size = "units" if type(layer).__name__ == "Dense" else "filters"
        layer = _copy(layer, **{size: kernel.shape[-1], "use_bias": use_bias})
        found.append((layer, [kernel, one.bias[one.kept].astype(kernel.dtype)] if use_bias else [kernel]))
        kept = one.kept
        for link in one.following:
            entries = np.resize(kept, link.before[-1])
            values = link.layer.get_weights()
            values = [value[..., entries] if value.shape[-1] == entries.size else value for value in values]
            found.append((_copy(link.layer), values))
    return found


def _flat_pieces(first: Sequence[Link], segments: Sequence[Segment], inputs: np.ndarray) -> list[Piece]:
    """Make new layers for a model that takes a flat choice of the entries, or raise if single entries do not do."""
    start = segments[0].link
    if type(start.layer).__name__ != "Dense" or len(start.before) != 1:
        raise LotteryError(
            f"drop_inputs: received True, allowed is False, for the first layer with weights, {start.layer.name!r}, "
            f"takes examples of shape {start.before}, of which single entries cannot be left out; they are reported as "
            "unread."
        )
    found = [_flat(link, inputs) for link in first if link.effect != FLAT and type(link.layer).__name__ != "Reshape"]
    chosen = np.zeros(start.before, dtype=bool)
    chosen[inputs] = True
    return [*found, *_pieces(segments, chosen)]


def _flat(link: Link, inputs: np.ndarray) -> Piece:
    """Make a layer in front of the first weights act on a flat choice of entries."""
    layer, name = link.layer, type(link.layer).__name__

    def chosen(value: Any) -> np.ndarray:
        return np.broadcast_to(np.asarray(value), (1, *link.before)).reshape(-1)[inputs]

    if name == "Normalization":
        return _copy(layer, axis=-1, mean=chosen(layer.mean).tolist(), variance=chosen(layer.variance).tolist()), []
    if link.effect not in (ENTRYWISE, IDLE) or link.mixes or name.startswith("SpatialDropout"):
        raise LotteryError(
            f"drop_inputs: received True, allowed is False, for the layer {layer.name!r} before the first weights "
            "needs more of an example than one entry at a time; unread entries are reported."
        )
    changes: dict[str, Any] = {"BatchNormalization": {"axis": -1}, "PReLU": {"shared_axes": None}}.get(name, {})
    if name == "Rescaling":
        ends = {"scale": layer.scale, "offset": layer.offset}
        changes = {key: chosen(value).tolist() for key, value in ends.items() if np.ndim(value)}
    return _copy(layer, **changes), [chosen(value) for value in layer.get_weights()]


def _assembled(model: Any, shape: tuple[int, ...], pieces: Sequence[Piece]) -> Any:
    """Build a new model of the same library, kind and name as another, out of new layers."""
    keras = keras_of(model)
    spec = model.inputs[0]
    with evaluating(f"Keras cannot build the model {model.name!r} anew from its layers"):
        inputs = keras.Input(shape, dtype=_dtype(model), name=spec._keras_history[0].name)
        layers = [layer for layer, _ in pieces]
        if isinstance(model, keras.Sequential):
            new = keras.Sequential([inputs, *layers], name=model.name)
        else:
            new = keras.Model(inputs, functools.reduce(lambda x, layer: layer(x), layers, inputs), name=model.name)
        for layer, values in pieces:
            _set(layer, values)
    return new


def _copy(layer: Any, kind: Any = None, **changes: Any) -> Any:
    """Make a new layer, of the same class or of `kind`, with another's settings and activation, not its weights."""
    with warnings.catch_warnings():
        # The activation is taken over as it is, and never loaded from its configuration.
        warnings.filterwarnings("ignore", "The object being serialized includes a `lambda`", UserWarning)
        config = dict(layer.get_config())
    config.pop("batch_input_shape", None)  # tf_keras' first layer may have the shape of the input
    if "activation" in config:
        config["activation"] = "linear"
    with evaluating(f"Keras cannot make the layer {layer.name!r} anew from its settings"):
        new = (kind or type(layer)).from_config(config | changes)
    if "activation" in config and "activation" not in changes:
        new.activation = layer.activation
    return new


def _at_inference(link: Link, x: Any) -> Any:
    """Compute a layer without a kernel on double-precision values, in double precision where Keras can."""
    import tensorflow as tf

    if link.effect == IDLE:
        return x
    # TensorFlow has these for a CPU in single precision only.
    dtype = "float32" if type(link.layer).__name__.endswith("Pooling3D") else "float64"
    copy = _copy(link.layer, dtype=dtype)
    copy.build((1, *link.before))
    _set(copy, link.layer.get_weights())
    return tf.cast(copy(tf.cast(x, dtype), training=False), "float64")


def _set(layer: Any, values: Sequence[np.ndarray]) -> None:
    if values:
        layer.set_weights(list(values))
    if hasattr(layer, "finalize_state"):  # Normalization computes constants from its weights
        layer.finalize_state()


def _check(model: Any, compacted: Compacted) -> None:
    """Compare on random inputs, in case a layer behaves in another way than expected."""
    apart = _difference(model, compacted, _random(model, 4))
    allowed = max(_TOLERANCE.get(layer.compute_dtype, 1e-3) for layer in model.layers)
    if apart > allowed:
        raise LotteryError(
            f"The outputs of the compacted model differ from those of {model.name!r} by {apart:.2g} of the largest on "
            f"random inputs, allowed is {allowed:g}; use the masked model, and please report its layers."
        )


def _difference(model: Any, compacted: Compacted, inputs: np.ndarray) -> float:
    taken = compacted.select(inputs)
    with evaluating(f"The model {model.name!r} fails on the inputs"):
        before = outputs.evaluate(model, inputs, outputs.batch_size(model), training=False)
        after = outputs.evaluate(compacted.model, taken, training=False)
    return outputs.between(before, after, of=f"the model {model.name!r}")


def _random(model: Any, num: int) -> np.ndarray:
    """Random examples of a chain, which takes any numbers, the same each time."""
    x, dtype = np.random.default_rng(0).normal(size=(num, *model.inputs[0].shape[1:])), _dtype(model)
    return x.astype(dtype) if "float" in dtype else (np.abs(64 * x) % 127).astype(dtype)


def _dtype(model: Any) -> str:
    return str(getattr(model.inputs[0].dtype, "name", model.inputs[0].dtype))


_LEAST_SECONDS = 0.005  # of the calls in a turn
_MANY = 1000  # examples in a call, beside a call of one


@dataclass(frozen=True)
class Benchmark:
    """A compacted model beside its original."""

    compacted: Compacted
    difference: float  # the largest of an output, over the largest output
    seconds: dict[int, tuple[float, float]]  # of a call, before and after, by the number of examples in it


def benchmark(
    model: Any,
    inputs: Any = None,
    drop_inputs: bool = False,
    num_turns: int = 25,
    clock: Callable[[], float] = time.perf_counter,
) -> Benchmark:
    """Compact a model, compare outputs on all `inputs`, and time both models on one of them and on at most 1000."""
    compacted = compact(model, drop_inputs)
    inputs = _random(model, _MANY) if inputs is None else np.asarray(inputs)
    difference, taken = _difference(model, compacted, inputs), compacted.select(inputs)
    models, seconds = {"before": model, "after": compacted.model}, {}
    for num in sorted({1, min(len(inputs), _MANY)}):
        times = latency(models, {"before": inputs[:num], "after": taken[:num]}, num_turns, clock)
        seconds[num] = times["before"], times["after"]
    return Benchmark(compacted, difference, seconds)


def latency(
    models: Mapping[str, Any], example: Any, num_turns: int = 25, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Time a forward pass, compiled by ``tf.function`` without XLA, on the threads that TensorFlow has.

    The models take turns, in an order that rotates, so that other programs of the machine slow all of them alike. A
    turn is as many calls as take some milliseconds; copying the example to the device is not timed.

    Args:
        models: Built models of one input, by name.
        example: Inputs for one call; or inputs by name, if the models take different inputs.
        num_turns: Turns per model. The result is the median over turns of the seconds per call, by name.
        clock: Returns seconds; ``time.process_time`` measures processor time, which other programs do not affect.
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


def _compiled(model: Any, inputs: Any) -> Callable[[], Any]:
    """Trace a forward pass. The model is no argument, not even a default one: each call would look through it."""
    traced = traced_call(model, inputs)
    return functools.partial(traced, inputs)


def _seconds(call: Callable[[], Any], num_calls: int, clock: Callable[[], float]) -> float:
    """Time one call, until the last output is there; after one call that is not timed."""
    call()
    start = clock()
    for _ in range(num_calls - 1):
        call()
    np.asarray(call())
    return (clock() - start) / num_calls
