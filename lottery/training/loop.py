"""Many steps of Keras' own in one graph, and what they report, added up so that bits do not depend on the cut."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery import randomness, weights
from lottery.data import Split, Splits, Streams
from lottery.errors import LotteryError
from lottery.training import augmentation, compiling, mirrored
from lottery.training.compiling import Examined
from lottery.training.settings import Train

Logs = Mapping[str, Any]


def running_sums(own: tuple[str, ...]) -> dict[str, Any]:
    """Where what a model's own steps report is added up, by its name."""
    import tensorflow as tf

    zero: Any = 0.0
    return {name: tf.Variable(zero, trainable=False) for name in own}


def repeat(model: Any, step: Callable[[Any], Logs], num: Any, sums: Mapping[str, Any], before: Any) -> Logs:
    """Take a step `num` times in the graph.

    What it adds up stays in variables, so that steps in one call or in several give the same bits.

    Args:
        model: The model.
        step: From the number of a step in this call to what it reports.
        num: How many.
        sums: Variables to add up what the steps themselves report; none where that is the model's metrics.
        before: How many steps before these count with them; where it is 0, counting begins anew.

    Returns:
        The model's metrics over all of them, as Keras reports them; or the mean of what the steps themselves report.
    """
    import tensorflow as tf

    def anew() -> Any:
        model.reset_metrics()
        for total in sums.values():
            total.assign(0.0)
        return tf.constant(True)

    def body(index: Any) -> Any:
        logs = step(index)
        for name, total in sums.items():
            total.assign_add(tf.cast(logs[name], tf.float32))
        return index + 1

    tf.cond(tf.equal(before, 0), anew, lambda: tf.constant(False))
    tf.while_loop(lambda index: index < num, body, [tf.constant(0)], parallel_iterations=1)
    if not sums:
        return model.get_metrics_result()
    return {name: total / tf.cast(before + num, tf.float32) for name, total in sums.items()}


EVALUATION_BATCH = 1000


def evaluation(model: Any, data: Splits | Streams, split: str, examined: Examined) -> Callable[[], Logs]:
    """A function that returns what a model reports over every example of a split, ``"train"`` among them."""
    if isinstance(data, Splits):
        return _evaluation_of_arrays(model, getattr(data, split), scaler(data), examined.test_logs)
    return _evaluation_of_stream(model, getattr(data, split), examined.test_logs)


def example_batch(data: Splits | Streams) -> tuple[Any, Any]:
    """A few inputs, as the network gets them, and their labels."""
    import tensorflow as tf

    if isinstance(data, Splits):
        return scaler(data)(data.train.x[:8]), tf.convert_to_tensor(data.train.y[:8])
    return next(iter(data.train()))


def scaler(data: Splits) -> Callable[[Any], Any]:
    """A function from examples as they are stored to the network's input, for arrays and in a graph."""
    import tensorflow as tf

    if data.train.x.dtype != np.uint8:
        return tf.convert_to_tensor
    mean, deviation = tf.constant(data.mean), tf.constant(data.standard_deviation)
    return lambda x: (tf.cast(x, tf.float32) - mean) / deviation


def _evaluation_of_arrays(
    model: Any, split: Split, scaled: Callable[[Any], Any], own: tuple[str, ...]
) -> Callable[[], Logs]:
    import tensorflow as tf

    x, y = tf.constant(split.x), tf.constant(split.y)
    size = min(EVALUATION_BATCH, len(split))
    whole, rest = divmod(len(split), size)
    if 0 < rest < mirrored.num_devices(model):  # each device takes one example at least
        whole, rest = whole - 1, rest + size
    totals = running_sums(own)

    @tf.function(autograph=False)
    def evaluate() -> Logs:
        def test(index: Any) -> Logs:
            first = index * size
            batch_x = tf.ensure_shape(x[first : first + size], (size, *split.x.shape[1:]))
            batch_y = tf.ensure_shape(y[first : first + size], (size, *split.y.shape[1:]))
            return mirrored.run(model, model.test_step, (scaled(batch_x), batch_y), own)

        logs = repeat(model, test, tf.constant(whole), totals, tf.constant(0))
        if not rest:
            return logs
        # What is left over counts as much as the rest: metrics count examples, and own logs are weighted by them.
        last = mirrored.run(model, model.test_step, (scaled(x[whole * size :]), y[whole * size :]), own)
        if not own:
            return model.get_metrics_result()
        before = whole and {name: logs[name] * (whole * size) for name in own}
        return {
            name: ((before[name] if before else 0.0) + tf.cast(last[name], tf.float32) * rest) / len(split)
            for name in own
        }

    return evaluate


def _evaluation_of_stream(model: Any, make: Callable[[], Any], own: tuple[str, ...]) -> Callable[[], Logs]:
    import tensorflow as tf

    @tf.function(reduce_retracing=True, autograph=False)
    def test_step(batch: Any) -> Logs:
        return mirrored.run(model, model.test_step, batch, own)

    def evaluate() -> Logs:
        model.reset_metrics()
        dataset: Any = make()
        sums, examples = dict.fromkeys(own, 0.0), 0
        for batch in mirrored.batches(model, dataset):
            logs, size = test_step(batch), len(tf.nest.flatten(batch)[0])
            sums, examples = {name: sums[name] + size * float(logs[name]) for name in own}, examples + size
        return {name: total / examples for name, total in sums.items()} if own else model.get_metrics_result()

    return evaluate


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
    settings: Train,
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
    strategy = mirrored.strategy_of(model)
    if strategy is not None:
        _check_spread(model, data, settings)
        mirrored.skip_together(model)
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
            augmentation.check(data.train.x.shape[1:])
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
        known = {id(inner) for one in given for inner in weights.components(one)}
        traced = loop.steps.get_concrete_function(*loop.batches((0,))(1)).graph
        # A graph tells its variables in an order of chance, what it captures in the order in which it was traced.
        place = {id(tensor): number for number, (tensor, _) in enumerate(traced.captures)}
        found = sorted(traced.variables, key=lambda one: place[id(one.handle)])
        loop.state.extend((one, np.array(one.numpy())) for one in found if id(one) not in known)
    for variable, value in loop.state:
        variable.assign(value)
    mirrored.draw_apart(loop.model)


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

    sums = running_sums(examined.train_logs)

    @tf.function(jit_compile=jit, autograph=False)
    def steps(positions: Any, num_steps: Any, before: Any, key: Any) -> Logs:
        def train(index: Any) -> Logs:
            batch = tf.gather(positions, index)
            images = tf.gather(x, batch)
            if augment:
                drawn = key + tf.stack([0, index])
                images = augmentation.augmented(images, drawn, "crop" in augment, "flip" in augment)
            return _taken(model, model.train_step, (scaled(images), tf.gather(y, batch)), index, examined, callbacks)

        return repeat(model, train, num_steps, sums, before)

    def batches(seed: tuple[int, ...], first_step: int = 0) -> Callable[..., tuple[Any, ...]]:
        following = randomness.batches(len(split), batch_size, seed, first_step)
        step, word = first_step, randomness.seed_for(*seed[:-1], randomness.AUGMENTATION, 1)

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
    sums = running_sums(examined.train_logs)

    @tf.function(autograph=False)
    def steps(batches: Any, num_steps: Any, before: Any) -> Logs:
        def train(index: Any) -> Logs:
            return _taken(model, train_step, next(batches), index, examined, callbacks)

        return repeat(model, train, num_steps, sums, before)

    def batches(seed: tuple[int, ...], first_step: int = 0) -> Callable[..., tuple[Any, ...]]:
        # A shuffle without a seed of its own takes TensorFlow's.
        keras.utils.set_random_seed(randomness.seed_for(*seed))
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

    logs = mirrored.run(model, step, batch, examined.train_logs)
    mirrored.settle(model)
    return logs


def _check_spread(model: Any, data: Splits | Streams, settings: Train) -> None:
    if settings.jit_compile is True:
        raise LotteryError(
            'train.jit_compile: received true, allowed with run.strategy = "mirrored" is false or "auto": XLA compiles '
            "for one device."
        )
    if isinstance(data, Splits):
        mirrored.check_batches(model, settings.batch_size)
        return
    import tensorflow as tf

    dataset: Any = data.train()
    for one in tf.nest.flatten(dataset.element_spec):
        mirrored.check_batches(model, one.shape[0], "data (batched with drop_remainder=True)")
