"""The compiled loop: many steps of Keras' own ``train_step`` in one call, batches gathered in the graph."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery import augmenting, compiling, config, order, repeating, spreading, weights
from lottery.compiling import Examined
from lottery.data import Split, Splits, Streams
from lottery.errors import LotteryError
from lottery.evaluating import evaluation, example_batch, scaler
from lottery.repeating import Logs

# Steps in one call of the loop, at most, and about how long a call may last: between calls progress is shown, NaN is
# noticed, checkpoints are written, and a run can be stopped.
LONGEST_PIECE, PIECE_SECONDS = 250, 0.5
# Layers that were seen to train faster with XLA on a CPU. With it a convolution takes 150 times as long, and dropout,
# whose random numbers it draws slowly, ten times.
GAINS_FROM_XLA = {
    "Sequential", "Functional", "InputLayer", "Flatten", "Reshape", "Dense", "Activation", "ReLU", "Softmax",
    "BatchNormalization",
}  # fmt: skip


@dataclass(frozen=True)
class Loop:
    """A model with its data, compiled once for all rounds and replicates.

    Attributes:
        model: The Keras model that all of them train, one after the other.
        masks: By prunable weight, the boolean variable that says what is held at zero.
        steps: The only door to an optimiser step: takes what `batches` gives, trains the model, returns its report.
        schedule_step: A variable, added to the optimiser's steps where the learning rate follows a schedule.
        batches: From seed words and a first step to a function from a number of steps, and how many steps before them
            the report is to count too, to the arguments of `steps`.
        evaluations: By split, a function that returns what the model reports over every example.
        examined: What the model's own steps report and draw.
        state: Every other variable that a step touches, with its first value; see `reset`.
        longest: How many steps one call of `steps` may take; a shorter call costs no other trace.
        pace: Seconds that a step took lately; empty before the first call.
        jit_compile: Whether the steps are compiled by XLA.
        callbacks: What is told of the end of each step, in the graph: what a mode of enforcement yields for ``fit``.
            Empty at first, and read when the steps are traced.
    """

    model: Any
    masks: Mapping[str, Any]
    schedule_step: Any
    steps: Any
    batches: Callable[..., Callable[[int], tuple[Any, ...]]]
    evaluations: Mapping[str, Callable[[], Logs]]
    examined: Examined
    state: list[tuple[Any, np.ndarray]]
    longest: int
    pace: list[float]
    jit_compile: bool
    callbacks: list[Any]


def compile_loop(
    model: Any,
    data: Splits | Streams,
    settings: config.Train,
    masks: Mapping[str, Any],
    schedule_step: Any = None,
    augment: Collection[str] = (),
) -> Loop:
    """Make the compiled training and evaluation of a model.

    Nothing is traced before the first step. What holds the masks must be in place by then, callbacks among it: a
    constraint that is set later is not in the trace.

    Args:
        model: A compiled Keras 3 or tf_keras model; its own ``train_step`` and ``test_step`` are what is run.
        data: What it trains on. Arrays stay in memory as they are, and become floats batch by batch.
        settings: The ``[train]`` section of an experiment.
        masks: Boolean variables by prunable weight, as `enforcement.mask_variables` makes them.
        schedule_step: The variable that the model was compiled with, if any; see `compiling.compile_model`.
        augment: What is done to images while training: ``"crop"``, ``"flip"``.

    Returns:
        The loop.

    Raises:
        LotteryError: The model does not fit the data.
    """
    strategy = spreading.strategy_of(model)
    if strategy is not None:
        _check_spread(model, data, settings)
        spreading.skip_together(model)
    examined = compiling.examine(model, example_batch(data))
    if settings.jit_compile is True and examined.calls_python:
        raise LotteryError("train.jit_compile: a training step of this model calls Python, which XLA cannot compile.")
    auto = settings.jit_compile == "auto"
    gains = strategy is None and gains_from_xla(model) and not examined.calls_python
    jit = gains if auto else bool(settings.jit_compile)
    longest = min(LONGEST_PIECE, settings.eval_every, settings.num_steps)
    callbacks: list[Any] = []
    if augment and not isinstance(data, Splits):
        raise LotteryError("data.augment: received a tf.data.Dataset, allowed are arrays; augment it in the data set.")
    if isinstance(data, Splits):
        if augment:
            augmenting.check(data.train.x.shape[1:])
        steps, batches = _steps_over_arrays(
            model, data.train, scaler(data), settings.batch_size, longest, jit, examined, callbacks, augment
        )
    else:
        steps, batches = _steps_over_stream(model, data.train, jit, examined, callbacks)
    evaluations = {split: evaluation(model, data, split, examined) for split in ("validation", "test")}
    schedule_step = compiling.step_variable() if schedule_step is None else schedule_step
    return Loop(model, masks, schedule_step, steps, batches, evaluations, examined, [], longest, [], jit, callbacks)


def reset(loop: Loop) -> None:
    """Put everything that a step touches, besides the model's variables and the masks, back to its first value.

    That is what the trace says: slots of all optimisers, iterations, metrics, and generators of random numbers,
    whoever owns them. On several devices, each has those of its own, and draws random numbers of its own.
    """
    if not loop.state:
        given = [*loop.model.variables, *loop.masks.values()]
        known = {id(inner) for one in given for inner in spreading.components(one)}
        traced = loop.steps.get_concrete_function(*loop.batches((0,))(1)).graph
        # A graph tells its variables in an order of chance, what it captures in the order in which it was traced.
        place = {id(tensor): number for number, (tensor, _) in enumerate(traced.captures)}
        found = sorted(traced.variables, key=lambda one: place[id(one.handle)])
        loop.state.extend((one, np.array(one.numpy())) for one in found if id(one) not in known)
    for variable, value in loop.state:
        variable.assign(value)
    spreading.draw_apart(loop.model)


def gains_from_xla(model: Any) -> bool:
    """Whether XLA is known to make a model's training faster: on an accelerator, or for dense layers on a CPU."""
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("TPU"):
        return True
    return all(type(weights.inside(layer)).__name__ in GAINS_FROM_XLA for layer in model._flatten_layers())


def _steps_over_arrays(
    model: Any,
    split: Split,
    scaled: Callable[[Any], Any],
    batch_size: int,
    longest: int,
    jit: bool,
    examined: Examined,
    callbacks: list[Any],
    augment: Collection[str],
) -> tuple[Any, Callable[..., Any]]:
    import tensorflow as tf

    x, y = tf.constant(split.x), tf.constant(split.y)

    sums = repeating.sums(examined.train_logs)

    @tf.function(jit_compile=jit, autograph=False)
    def steps(positions: Any, num_steps: Any, before: Any, key: Any) -> Logs:
        def train(index: Any) -> Logs:
            batch = tf.gather(positions, index)
            images = tf.gather(x, batch)
            if augment:
                drawn = key + tf.stack([0, index])
                images = augmenting.augmented(images, drawn, "crop" in augment, "flip" in augment)
            return _taken(model, model.train_step, (scaled(images), tf.gather(y, batch)), index, examined, callbacks)

        return repeating.repeat(model, train, num_steps, sums, before)

    def batches(seed: tuple[int, ...], first_step: int = 0) -> Callable[..., tuple[Any, ...]]:
        following = order.batches(len(split), batch_size, seed, first_step)
        step, word = first_step, order.seed_for(*seed[:-1], order.AUGMENTATION, 1)

        def arguments(num_steps: int, before: int = 0) -> tuple[Any, ...]:
            nonlocal step
            # One shape, one trace: a shorter piece is filled up with positions that no step reads.
            positions = np.zeros((longest, batch_size), np.int32)
            positions[:num_steps] = following(num_steps)
            key = tf.constant([word, step])
            step += num_steps
            return tf.constant(positions), tf.constant(num_steps), tf.constant(before), key

        return arguments

    return steps, batches


def _steps_over_stream(
    model: Any, make: Callable[[], Any], jit: bool, examined: Examined, callbacks: list[Any]
) -> tuple[Any, Callable[..., Any]]:
    import keras
    import tensorflow as tf

    train_step = tf.function(model.train_step, jit_compile=True) if jit else model.train_step
    sums = repeating.sums(examined.train_logs)

    @tf.function(autograph=False)
    def steps(batches: Any, num_steps: Any, before: Any) -> Logs:
        def train(index: Any) -> Logs:
            return _taken(model, train_step, next(batches), index, examined, callbacks)

        return repeating.repeat(model, train, num_steps, sums, before)

    def batches(seed: tuple[int, ...], first_step: int = 0) -> Callable[..., tuple[Any, ...]]:
        # A shuffle without a seed of its own takes TensorFlow's.
        keras.utils.set_random_seed(order.seed_for(*seed))
        iterator = iter(make().repeat().skip(first_step))
        return lambda num_steps, before=0: (iterator, tf.constant(num_steps), tf.constant(before))

    return steps, batches


def _taken(
    model: Any, train_step: Callable[[Any], Logs], batch: Any, index: Any, examined: Examined, callbacks: list[Any]
) -> Logs:
    """Take a step, tell of its end, and give back what it reports."""

    def step(share: Any) -> Logs:
        logs = train_step(share)
        for one in callbacks:
            one.on_train_batch_end(index, logs)
        return logs

    logs = spreading.run(model, step, batch, examined.train_logs)
    spreading.settle(model)
    return logs


def _check_spread(model: Any, data: Splits | Streams, settings: config.Train) -> None:
    if settings.jit_compile is True:
        raise LotteryError(
            'train.jit_compile: received true, allowed with run.strategy = "mirrored" is false or "auto": XLA compiles '
            "for one device."
        )
    if isinstance(data, Splits):
        spreading.check_batches(model, settings.batch_size)
        return
    import tensorflow as tf

    dataset: Any = data.train()
    for one in tf.nest.flatten(dataset.element_spec):
        spreading.check_batches(model, one.shape[0], "data (batched with drop_remainder=True)")
