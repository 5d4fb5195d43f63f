"""Measure what compaction gains: differences of outputs, and the time of a call."""

import functools
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery.errors import LotteryError
from lottery.models import outputs
from lottery.models.kerases import evaluating, tf, traced_call
from lottery.tickets import chain, compaction
from lottery.tickets.compaction import Compacted

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
    compacted = compaction.compact(model, drop_inputs)
    if inputs is None:
        inputs = compaction.random_examples(model, _MANY)
    inputs = outputs.as_taken(inputs, model.inputs[0])
    difference = compaction.difference(model, compacted, inputs)
    taken = compacted.select(inputs)
    models = {"before": model, "after": compacted.model}
    seconds = {}
    for num in sorted({1, min(len(inputs), _MANY)}):
        times = latency(models, {"before": inputs[:num], "after": taken[:num]}, num_turns, clock)
        seconds[num] = times["before"], times["after"]
    return Benchmark(compacted, difference, seconds)


def latency(
    models: Mapping[str, Any], example: Any, num_turns: int = 25, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Time a forward pass, compiled by ``tf.function`` without XLA, on the threads that TensorFlow has.

    The models take turns of some milliseconds; copying the example to the device is not timed.

    Args:
        models: Built models of one input, by name.
        example: Inputs for one call; or inputs by name, if the models take different inputs.
        num_turns: Turns per model. The result is the median over turns of the seconds per call, by name.
        clock: Returns seconds; ``time.process_time`` measures processor time, which other programs do not affect.
    """
    if not models or not isinstance(models, Mapping):
        raise LotteryError("models must be a dict of one model or more, by name.")
    by_name = example if isinstance(example, Mapping) else dict.fromkeys(models, example)
    if missing := [name for name in models if name not in by_name]:
        raise LotteryError(f"There are no inputs for {missing[0]!r} among those by name: {', '.join(by_name)}.")
    if num_turns < 1:
        raise LotteryError(f"num_turns must be 1 or more, not {num_turns}.")
    calls: dict[str, Any] = {}
    for name, model in models.items():
        with evaluating(f"The model {name!r} cannot be timed on the example"):
            inputs: Any = tf.convert_to_tensor(np.asarray(by_name[name], chain.input_type(model)))
            # The model is not an argument of the call, not even by default: each call would look through it.
            calls[name] = functools.partial(traced_call(model, inputs), inputs)
    first = {name: _seconds(call, 3, clock) for name, call in calls.items()}
    # A turn of one short call would measure the clock.
    num_calls = {name: max(1, round(_LEAST_SECONDS / max(seconds, 1e-6))) for name, seconds in first.items()}
    names = list(models)
    measured: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(num_turns):
        # In an order that rotates, so that other programs of the machine slow all models alike.
        begin = turn % len(names)
        for name in names[begin:] + names[:begin]:
            measured[name].append(_seconds(calls[name], num_calls[name], clock))
    return {name: statistics.median(seconds) for name, seconds in measured.items()}


def _seconds(call: Callable[[], Any], num_calls: int, clock: Callable[[], float]) -> float:
    """Time one call, until the last output is there; after one call that is not timed."""
    call()
    start = clock()
    for _ in range(num_calls - 1):
        call()
    # Calls may return before they are done; reading the last output waits for it.
    np.asarray(call())
    return (clock() - start) / num_calls
