"""The compiled loop: Keras' own steps, many in one call of a compiled graph, and evaluations over every example."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lottery import masks, randomness, weights
from lottery.data import Splits, Streams
from lottery.errors import LotteryError
from lottery.masks import Masks
from lottery.models import graph, optimizers
from lottery.models.kerases import is_keras, tf, traced
from lottery.training import examining, examples, mirrored
from lottery.training.records import Classes, Logs
from lottery.training.settings import Train

LONGEST_CALL = 250  # steps of one call of the compiled steps
EVALUATION_BATCH = 1000

# From a number of steps, and how many steps before them the report is to include, to the arguments of `Loop.steps`.
Arguments = Callable[..., tuple[Any, ...]]


@dataclass(eq=False)
class Loop:
    """The compiled steps and evaluations of a model, whose variables are their state: an `engine_choice.Engine`."""

    model: Any
    steps: Any  # takes what `batches` returns, trains the model, returns its report
    batches: Callable[..., Arguments]  # from seed words and a first step
    evaluations: Mapping[str, Callable[[], Logs]]  # by split, the model's report over every example
    classes: Callable[[], Classes | None]  # of the test examples; see `classifier`
    examined: examining.Examined
    longest: int  # of one call of `steps`; a shorter call needs no other trace
    jit_compile: bool
    own: Mapping[str, Any] = field(default_factory=dict)  # variables for checkpoints that no trace knows
    _following: Arguments | None = field(default=None, init=False)  # of the network in training

    def begin(self, kept: Masks, seed: tuple[int, ...] | None = None, step: int = 0) -> None:
        """Begin with the model's variables as they are, at the batch that follows a step."""
        self._following = None if seed is None else self.batches(seed, step)

    def advance(self, num_steps: int, before: int = 0) -> Logs:
        """Take steps, and return the model's report over these and as many steps before."""
        assert self._following is not None, "begin was called without a seed"
        return self.steps(*self._following(num_steps, before))

    def evaluate(self, split: str) -> Logs:
        """Return the model's report over every example of a split."""
        return self.evaluations[split]()

    def change(self, before: Masks, kept: Masks) -> None:
        """Continue under other masks."""
        # At once, because most modes of enforcement act after an update, and the next one would use dropped entries.
        weights.assign(self.model, masks.apply(weights.read_state(self.model), kept))
        # An entry that grows must not go on with what the optimizer remembers of its earlier life.
        in_both = {name: mask & before[name] for name, mask in kept.items()}
        optimizers.clear_slots(self.model.optimizer, weights.variables(self.model), in_both)

    def finish(self) -> None:
        """Do nothing: the model's variables are those after the last step."""

    def state(self) -> dict[str, np.ndarray]:
        """Return every variable of the model by name."""
        return weights.read_state(self.model)


def compile_loop(
    model: Any, data: Splits | Streams, settings: Train, augment: Collection[str] = (), callbacks: Sequence[Any] = ()
) -> Loop:
    """Make the compiled training and evaluation of a model; arguments as for `trainer.Trainer`.

    Nothing is traced before the first step. Whatever enforces masks must be active by then: a constraint that is set
    later is not in the trace. The `on_train_batch_end` of `callbacks`, which are there by then, is part of each step.
    """
    if mirrored.strategy_of(model) is not None:
        mirrored.check(model, data, settings)
        mirrored.skip_together(model)
    examined = examining.examine(model, examples.example_batch(data, model))
    uses_xla = _uses_xla(model, settings, examined)
    longest = min(LONGEST_CALL, settings.eval_every, settings.num_steps)
    if isinstance(data, Splits):
        if augment:
            examples.check_images(data.train.x.shape[1:])
        train = _training(model, None, examined.train_logs, callbacks)
        steps, batches = _steps_over_arrays(train, data, settings.batch_size, longest, uses_xla, augment)
    elif augment:
        raise LotteryError(
            "data.augment works on arrays, not on a tf.data.Dataset. Augment the images in the data set."
        )
    else:
        # XLA cannot compile the iterator of a data set (TensorFlow 2.21), so there each step is compiled by itself.
        compiled = tf.function(model.train_step, jit_compile=True) if uses_xla else None
        train = _training(model, compiled, examined.train_logs, callbacks)
        steps, batches = _steps_over_stream(train, data.train)
    evaluations = evaluations_of(model, data, ("validation", "test"), examined.test_logs)
    classes = classifier(model, data, examined.test_logs)
    return Loop(model, steps, batches, evaluations, classes, examined, longest, uses_xla)


def _uses_xla(model: Any, settings: Train, examined: examining.Examined) -> bool:
    if settings.jit_compile == "auto":
        has_accelerator = bool(tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("TPU"))
        # XLA compiles for one device.
        is_alone = mirrored.strategy_of(model) is None
        return is_alone and not examined.calls_python and (has_accelerator or gains_on_cpu(model))
    if settings.jit_compile and examined.calls_python:
        raise LotteryError("train.jit_compile: a training step of this model calls Python, which XLA cannot compile.")
    return settings.jit_compile


def gains_on_cpu(model: Any) -> bool:
    """Return True if all layers of a model train faster with XLA on a CPU."""
    names = {type(weights.inside(layer)).__name__ for layer in weights.all_layers(model)}
    return all(graph.facts_of(name).gains_from_xla for name in names - {"Sequential", "Functional"})


def _repeater(model: Any, reported: examining.Reported) -> Callable[..., Logs]:
    """Make a function that takes steps in the graph and returns the model's metrics, and the means of own reports.

    Its arguments are a step as a function of its number, the number of steps, and how many steps `before` this call the
    result includes; 0 starts anew.
    """
    # Variables add up the steps' own reports, so that steps in one call or in several give the same bits.
    sums = {name: tf.Variable(tf.constant(0.0), trainable=False) for name in reported.own}

    def start_anew() -> Any:
        model.reset_metrics()
        for total in sums.values():
            total.assign(0.0)
        # A `tf.cond` demands something alike of both branches.
        return tf.constant(True)

    def repeat(step: Callable[[Any], Logs], num_steps: Any, before: Any) -> Logs:
        def body(index: Any) -> Any:
            logs = step(index)
            for name, total in sums.items():
                total.assign_add(tf.cast(logs[name], tf.float32))
            return index + 1

        # Python's numbers are known when this is traced, and need neither a choice nor a loop.
        if tf.is_tensor(before):
            tf.cond(tf.equal(before, 0), start_anew, lambda: tf.constant(False))
        else:
            start_anew()
        # One iteration at a time: each step reads the variables that the step before has written.
        if tf.is_tensor(num_steps) or num_steps > 1:
            tf.while_loop(lambda index: index < num_steps, body, [tf.constant(0)], parallel_iterations=1)
        elif num_steps:
            body(tf.constant(0))
        # Metrics of Keras 3.15 and tf_keras 2.21, with the loss, add up in variables over all steps since the reset.
        means = {name: total / tf.cast(before + num_steps, tf.float32) for name, total in sums.items()}
        return reported.results(model, means)

    return repeat


def _training(model: Any, compiled: Any, reported: examining.Reported, callbacks: Sequence[Any]) -> Callable[..., Logs]:
    """Make the graph's function that takes steps: of a batch by its number, how many, and how many before them."""
    repeat = _repeater(model, reported)

    def take_step(index: Any, batch: Any) -> Logs:
        def on_share(share: Any) -> Logs:
            # If it is not compiled already, it is looked up here: what enforces masks may have replaced it since.
            logs = examining.flat((compiled or model.train_step)(share))
            for callback in callbacks:
                callback.on_train_batch_end(index, logs)
            return logs

        logs = mirrored.run(model, on_share, batch, reported.own)
        if mirrored.strategy_of(model) is not None:
            mirrored.average_statistics(model)
        return logs

    def train(batch: Callable[[Any], Any], num_steps: Any, before: Any) -> Logs:
        return repeat(lambda index: take_step(index, batch(index)), num_steps, before)

    return train


def _steps_over_arrays(
    train: Callable[..., Logs], data: Splits, batch_size: int, longest: int, uses_xla: bool, augment: Collection[str]
) -> tuple[Any, Callable[..., Arguments]]:
    """Make `Loop.steps` and `Loop.batches` for arrays, which stay in memory as they are."""
    scaled, split = examples.scaler(data), data.train
    # Made outside of the trace, they are captured by the graph and not copied into it.
    x, y = tf.constant(split.x), tf.constant(split.y)

    # Keras 3.15 does not convert steps by AutoGraph either.
    @tf.function(jit_compile=uses_xla, autograph=False)
    def steps(positions: Any, num_steps: Any, before: Any, key: Any) -> Logs:
        def batch(index: Any) -> Any:
            chosen = tf.gather(positions, index)
            images = tf.gather(x, chosen)
            if augment:
                # The second half of the key is the step, so that no draw depends on where steps are cut into calls.
                key_of_step = key + tf.stack([0, index])
                images = examples.augmented(images, key_of_step, "crop" in augment, "flip" in augment)
            return scaled(images), tf.gather(y, chosen)

        return train(batch, num_steps, before)

    def batches(seed: tuple[int, ...], first_step: int = 0) -> Arguments:
        following = randomness.batches(len(split), batch_size, seed, first_step)
        word, step = examples.augmentation_word(seed), first_step

        def arguments(num_steps: int, before: int = 0) -> tuple[Any, ...]:
            nonlocal step
            # One shape, one trace: a shorter call is filled up with positions that no step reads.
            positions = np.zeros((longest, batch_size), np.int32)
            positions[:num_steps] = following(num_steps)
            key = tf.constant([word, step])
            step += num_steps
            return tf.constant(positions), tf.constant(num_steps), tf.constant(before), key

        return arguments

    return steps, batches


def _steps_over_stream(train: Callable[..., Logs], make: Callable[[], Any]) -> tuple[Any, Callable[..., Arguments]]:
    import keras

    @tf.function(autograph=False)
    def steps(batches: Any, num_steps: Any, before: Any) -> Logs:
        return train(lambda index: next(batches), num_steps, before)

    def batches(seed: tuple[int, ...], first_step: int = 0) -> Arguments:
        # A shuffle that has no seed uses TensorFlow's.
        keras.utils.set_random_seed(randomness.seed_for(*seed))
        # A training that goes on from a checkpoint passes over the batches that it has had.
        iterator = iter(make().repeat().skip(first_step))
        return lambda num_steps, before=0: (iterator, tf.constant(num_steps), tf.constant(before))

    return steps, batches


def evaluations_of(
    model: Any, data: Splits | Streams, splits: Collection[str], reported: examining.Reported
) -> dict[str, Callable[[], Logs]]:
    """Make a function for each split, which may be ``"train"``: it returns what a model reports over every example."""
    chosen = {name: getattr(data, name) for name in splits}
    if isinstance(data, Streams):
        return {name: _over_stream(model, make, reported) for name, make in chosen.items()}
    evaluate = _over_arrays(model, examples.scaler(data), reported)
    return {
        name: functools.partial(evaluate, tf.constant(split.x), tf.constant(split.y)) for name, split in chosen.items()
    }


def _over_arrays(model: Any, scaled: Callable[[Any], Any], reported: examining.Reported) -> Callable[[Any, Any], Logs]:
    """Make a function of examples and labels; splits of one size share a trace."""
    fixed, num_devices, repeat = examples.fixed_batch(model), mirrored.num_devices(model), _repeater(model, reported)
    test_step = _test_step(model, reported)

    @tf.function(autograph=False)
    def evaluate(x: Any, y: Any) -> Logs:
        num_examples = x.shape[0]
        size = fixed or min(EVALUATION_BATCH, num_examples)
        num_whole, rest = divmod(num_examples, size)
        if 0 < rest < num_devices:  # each device needs at least one example
            num_whole, rest = num_whole - 1, rest + size

        def test(index: Any) -> Logs:
            first = index * size
            # The graph does not know the length of a slice at a tensor, and a model may fix it.
            inputs, labels = (tf.ensure_shape(part[first : first + size], (size, *part.shape[1:])) for part in (x, y))
            return test_step((scaled(inputs), labels))

        logs = repeat(test, num_whole, 0)
        if not rest:
            return logs
        # The examples left over count as much as the others: metrics count examples, own reports are weighted by them.
        in_whole = num_whole * size
        last = test_step((scaled(x[in_whole:]), y[in_whole:]))
        means = {}
        for name in reported.own:
            before = logs[name] * in_whole if num_whole else 0.0
            means[name] = (before + tf.cast(last[name], tf.float32) * rest) / num_examples
        return reported.results(model, means)

    return evaluate


def _test_step(model: Any, reported: examining.Reported) -> Callable[[Any], Logs]:
    """Make the graph's function that evaluates a batch, on all devices, and returns what the model reports of it."""

    def on_share(share: Any) -> Logs:
        return examining.flat(model.test_step(share))

    return lambda batch: mirrored.run(model, on_share, batch, reported.own)


def _over_stream(model: Any, make: Callable[[], Any], reported: examining.Reported) -> Callable[[], Logs]:
    # The last batch is often smaller than the others; by this, a second trace takes batches of any size.
    test_step = tf.function(_test_step(model, reported), reduce_retracing=True, autograph=False)

    def evaluate() -> Logs:
        model.reset_metrics()
        sums, num_examples = dict.fromkeys(reported.own, 0.0), 0
        for batch in mirrored.batches(model, make()):
            logs = test_step(batch)
            # Not by `len`: a ragged tensor has none.
            size = int(tf.nest.flatten(batch)[0].shape[0])
            num_examples += size
            for name in reported.own:
                sums[name] += size * float(logs[name])
        return reported.results(model, {name: total / num_examples for name, total in sums.items()})

    return evaluate


def classifier(model: Any, data: Splits | Streams, reported: examining.Reported) -> Callable[[], Classes | None]:
    """Make a function that returns the class that a model predicts for each test example: its highest output.

    The function returns None where the accuracy is not that of one class for each example of an array: for a data set,
    labels that are not whole numbers from 0, outputs other than a row for each example, several devices, and a
    ``test_step`` of the model's own.
    """
    has_own_step = reported.own or not is_keras(type(model).test_step)
    if isinstance(data, Streams) or has_own_step or mirrored.strategy_of(model) is not None:
        return lambda: None
    x, y, scaled = data.test.x, data.test.y, examples.scaler(data)
    if y.dtype.kind != "i" or y.size != len(y) or y.min() < 0:
        return lambda: None
    size = examples.fixed_batch(model) or min(EVALUATION_BATCH, len(y))

    @functools.cache  # made when it is needed: masks are enforced by then
    def forward() -> Any:
        # A trace, since TensorFlow warns of functions that many models of a process call as seldom as this.
        return traced(lambda inputs: model(scaled(inputs), training=False), tf.constant(x[:size]))

    def classes() -> Classes | None:
        predicted, num_classes = np.zeros(len(y), np.int64), 0
        for first in range(0, len(y), size):
            # The last batch may overlap the batch before: batches of a single size need a single trace.
            first = min(first, len(y) - size)
            outputs = forward()(tf.constant(x[first : first + size]))
            if not tf.is_tensor(outputs) or outputs.ndim != 2 or outputs.shape[1] < 2:
                return None
            predicted[first : first + size] = tf.argmax(outputs, axis=1).numpy()
            num_classes = outputs.shape[1]
        # Predictions are stored with every network, so in the smallest type that has room for all classes.
        kind = np.min_scalar_type(max(num_classes - 1, int(y.max())))
        return y.reshape(-1).astype(kind), predicted.astype(kind)

    return classes
