"""The compiled loop: Keras' own steps, many in one call of a compiled graph."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lottery import masks, randomness, weights
from lottery.data import Splits, Streams
from lottery.errors import LotteryError
from lottery.masks import Masks
from lottery.models import graph, optimizers
from lottery.training import compiling, evaluation, examples, mirrored
from lottery.training.records import Classes, Logs
from lottery.training.settings import Train

LONGEST_CALL = 250  # steps of one call of the compiled steps

# From a number of steps, and how many steps before them the report is to include, to the arguments of `Loop.steps`.
Arguments = Callable[..., tuple[Any, ...]]


@dataclass(eq=False)
class Loop:
    """The compiled steps and evaluations of a model, whose variables are their state: an `engines.Engine`."""

    model: Any
    steps: Any  # takes what `batches` returns, trains the model, returns its report
    batches: Callable[..., Arguments]  # from seed words and a first step
    evaluations: Mapping[str, Callable[[], Logs]]  # by split, the model's report over every example
    classes: Callable[[], Classes | None]  # of the test examples; see `evaluation.classifier`
    examined: compiling.Examined
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
        weights.assign(self.model, masks.apply(weights.read_state(self.model), kept))
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
    import tensorflow as tf

    strategy = mirrored.strategy_of(model)
    if strategy is not None:
        mirrored.check(model, data, settings)
        mirrored.skip_together(model)
    examined = compiling.examine(model, examples.example_batch(data, model))
    if settings.jit_compile is True and examined.calls_python:
        raise LotteryError("train.jit_compile: a training step of this model calls Python, which XLA cannot compile.")
    uses_xla = bool(settings.jit_compile)
    if settings.jit_compile == "auto":
        has_accelerator = bool(tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("TPU"))
        gains = has_accelerator or gains_on_cpu(model)
        uses_xla = gains and strategy is None and not examined.calls_python
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
    evaluations = evaluation.evaluations_of(model, data, ("validation", "test"), examined.test_logs)
    classes = evaluation.classifier(model, data, examined.test_logs)
    return Loop(model, steps, batches, evaluations, classes, examined, longest, uses_xla)


def gains_on_cpu(model: Any) -> bool:
    """Return True if all layers of a model train faster with XLA on a CPU."""
    return all(graph.gains_from_xla(weights.inside(layer)) for layer in weights.all_layers(model))


def _training(model: Any, compiled: Any, own: tuple[str, ...], callbacks: Sequence[Any]) -> Callable[..., Logs]:
    """Make the graph's function that takes steps: of a batch by its number, how many, and how many before them."""
    repeat = evaluation.repeater(model, own)

    def take_step(index: Any, batch: Any) -> Logs:
        def on_share(share: Any) -> Logs:
            # If it is not compiled already, it is looked up here: what enforces masks may have replaced it since.
            logs = (compiled or model.train_step)(share)
            for callback in callbacks:
                callback.on_train_batch_end(index, logs)
            return logs

        logs = mirrored.run(model, on_share, batch, own)
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
    import tensorflow as tf

    scaled, split = examples.scaler(data), data.train
    x, y = tf.constant(split.x), tf.constant(split.y)

    @tf.function(jit_compile=uses_xla, autograph=False)
    def steps(positions: Any, num_steps: Any, before: Any, key: Any) -> Logs:
        def batch(index: Any) -> Any:
            chosen = tf.gather(positions, index)
            images = tf.gather(x, chosen)
            if augment:
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
    """Make `Loop.steps` and `Loop.batches` for a data set."""
    import keras
    import tensorflow as tf

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
