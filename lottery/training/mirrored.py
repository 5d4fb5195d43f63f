"""Train a network on several devices with a distribution strategy: each device takes a share of every batch."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from lottery import randomness, weights
from lottery.data import Splits, Streams
from lottery.errors import LotteryError
from lottery.models.kerases import tf
from lottery.training.records import Logs
from lottery.training.settings import Train


def strategy_for(name: str) -> Any:
    """Make the strategy that ``train.devices`` names: None, or a MirroredStrategy over every GPU.

    Without GPUs it spans the logical CPU devices, of which there is one unless more are configured.
    """
    if name == "one":
        return None
    gpus = tf.config.list_logical_devices("GPU")
    devices = [device.name for device in gpus or tf.config.list_logical_devices("CPU")]
    # NCCL is for GPUs; elsewhere TensorFlow would choose this too, with a warning.
    reduction = None if gpus else tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction)


def strategy_of(model: Any) -> Any:
    """Return the mirrored strategy that a model was made under, or None."""
    # Outside of a strategy's scope a model of Keras 3.15 or tf_keras 2.21 has TensorFlow's default strategy.
    strategy = model.distribute_strategy
    return strategy if isinstance(strategy, tf.distribute.MirroredStrategy) else None


def scope(strategy: Any) -> contextlib.AbstractContextManager[Any]:
    """Return the scope in which a strategy makes variables for each device; it does nothing without a strategy."""
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def num_devices(model: Any) -> int:
    """Count the devices that train a model."""
    strategy = strategy_of(model)
    return 1 if strategy is None else strategy.num_replicas_in_sync


def check(model: Any, data: Splits | Streams, settings: Train) -> None:
    """Raise `LotteryError` unless devices get equal shares of each batch, so that their gradients count alike."""
    if settings.jit_compile is True:
        raise LotteryError(
            'train.jit_compile must be false or "auto" with train.devices = "mirrored", not true: XLA compiles for '
            "one device."
        )
    key, sizes = "train.batch_size", [settings.batch_size]
    if isinstance(data, Streams):
        key = "The size of the data's batches (with drop_remainder=True)"
        sizes = [part.shape[0] for part in tf.nest.flatten(data.train().element_spec)]
    num = num_devices(model)
    for size in sizes:
        if size is None or size % num:
            raise LotteryError(
                f'{key} must be a multiple of {num}, the number of devices that train.devices = "mirrored" trains on, '
                f"not {'unknown' if size is None else size}."
            )


def run(model: Any, step: Callable[[Any], Logs], batch: Any, names: tuple[str, ...] = ()) -> Logs:
    """Take a step of a model on a batch, each device on its share, and return the report.

    A batch has at least one example for each device; the shares differ by at most one. Keras' metrics add up over
    devices when they are read. Of the entries `names` of the step's own report this is the mean over the examples.
    """
    strategy = strategy_of(model)
    if strategy is None:
        return step(batch)
    num = strategy.num_replicas_in_sync
    first_part = tf.nest.flatten(batch)[0]
    size = tf.shape(first_part)[0] if first_part.shape[0] is None else first_part.shape[0]

    def on_one_device() -> Logs:
        # A number while this is traced, once for each device: a share's size is known where the batch's is.
        place = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))
        first, end = place * size // num, (place + 1) * size // num
        logs = step(tf.nest.map_structure(lambda part: part[first:end], batch))
        share = tf.cast((end - first) / size, tf.float32)
        return {name: tf.cast(logs[name], tf.float32) * share for name in names}

    logs = strategy.run(on_one_device)
    return {name: tf.add_n(strategy.experimental_local_results(value)) for name, value in logs.items()}


def on_each(model: Any, step: Callable[[Any], Logs], batch: Any) -> Any:
    """Take a step of a model, each device on the whole batch, and return the reports of all devices."""
    strategy = strategy_of(model)
    if strategy is None:
        return step(batch)
    logger = tf.get_logger()
    before = logger.level
    # Outside a graph TensorFlow 2.21 warns that this is slow; for one step it does not matter.
    logger.setLevel("ERROR")
    try:
        return strategy.run(step, args=(batch,))
    finally:
        logger.setLevel(before)


def batches(model: Any, dataset: Iterable[Any]) -> Iterator[Any]:
    """List the batches of a data set; a rest with fewer examples than devices is added to the batch before it."""
    # A device without an example has nothing to take a mean of.
    num = num_devices(model)
    waiting = None
    for batch in dataset:
        if waiting is not None and tf.nest.flatten(batch)[0].shape[0] < num:
            batch = tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), waiting, batch)
        elif waiting is not None:
            yield waiting
        waiting = batch
    if waiting is not None:
        yield waiting


def average_statistics(model: Any) -> None:
    """Give every device the mean of the moving statistics that each has measured."""
    # The mean over shares is that over whole batches, except for a variance, which each device takes around the mean of
    # its share. Counts, which add up over devices, stay.
    trained = {id(variable) for variable in model.trainable_variables}
    for variable in model.variables:
        parts = weights.components(variable)
        adds_up = getattr(weights.unwrapped(variable), "aggregation", None) == tf.VariableAggregation.SUM
        if len(parts) > 1 and parts[0].dtype.is_floating and id(variable) not in trained and not adds_up:
            mean = tf.add_n([part.read_value() for part in parts]) / len(parts)
            for part in parts:
                part.assign(mean)


def skip_together(model: Any) -> None:
    """Let all devices skip a step if gradients are not finite on any of them, in half precision."""
    check_own = getattr(model.optimizer, "check_finite", None)  # of a LossScaleOptimizer
    if check_own is None:
        return

    # Keras 3.15 checks its first device alone, before gradients are added up: others might overflow, into NaN on all.
    def check_all(gradients: Any) -> Any:
        wrong = tf.cast(tf.logical_not(check_own(gradients)), tf.float32)
        return tf.equal(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, wrong), 0.0)

    # Past the __setattr__ of Keras 3.15, which keeps track of what is assigned.
    vars(model.optimizer)["check_finite"] = check_all


def draw_apart(model: Any) -> None:
    """Let each device draw its own random numbers."""
    # Keras 3.15 gives all devices the same state, and so the same dropout.
    states = [variable for name, variable in weights.variables(model).items() if weights.is_random_state(name)]
    for variable in states:
        for place, part in enumerate(weights.components(variable)[1:], 1):
            value = np.array(part.numpy())
            value.flat[0] = randomness.seed_for(*(abs(int(word)) for word in value.flat), place)
            part.assign(value)


def differing(variables: Mapping[str, Any], values: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the plain variables of devices that differ from the values of a model's variables, by place and name."""
    found = {}
    for name, variable in variables.items():
        parts = weights.components(variable)
        if len(parts) > 1:  # the values were read from a single part
            # By their bytes, because NaN is not equal to itself.
            apart = [place for place, part in enumerate(parts) if part.numpy().tobytes() != values[name].tobytes()]
            found |= {f"{place}/{name}": parts[place] for place in apart}
    return found
