"""Make a pruned network really smaller: remove the units that do nothing, and compute what is left densely."""

import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery import chains, comparing, compiling, folding, rebuilding, weights
from lottery.chains import WEIGHTED, Link
from lottery.errors import LotteryError
from lottery.folding import Weighted

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
    links = chains.take_apart(model)
    layers = [folding.read_weighted(position, link) for position, link in enumerate(links) if link.kind == WEIGHTED]
    # One pass each way is enough. On the way there, constants make constants; on the way back, what is not read leaves
    # others unread, but makes nothing constant.
    for one, following in itertools.pairwise(layers):
        folding.fold_constants(links, one, following)
    for one, following in reversed([*itertools.pairwise(layers)]):
        folding.drop_unread(links, one, following)
    small = rebuilding.assemble(model, links[0].before, folding.pieces(links, layers))
    unread = rebuilding.unreached(chains.take_apart(small))
    inputs = np.arange(unread.size)
    if drop_inputs:
        inputs = np.flatnonzero(~unread)
        inputs = inputs if inputs.size else np.arange(1)  # Keras needs one
        small = rebuilding.assemble(model, (inputs.size,), folding.flat_pieces(links, layers, inputs))
    after = chains.take_apart(small)
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
        with compiling.evaluating(f"The model {name!r} cannot be timed on the example"):
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
    with compiling.evaluating(f"The model {model.name!r} fails on the inputs"):
        before = comparing.evaluate(model, inputs, training=False)
        after = comparing.evaluate(compacted.model, taken, training=False)
    return comparing.between(before, after, of=f"the model {model.name!r}")


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
