"""One network on several devices: a copy on each, and a share of every batch for each copy."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from lottery import randomness, weights
from lottery.errors import LotteryError
from lottery.weights import components

Logs = Mapping[str, Any]


def strategy_for(name: str) -> Any:
    """The strategy of a word of ``run.strategy``: None for ``"none"``.

    ``"mirrored"`` is ``tf.distribute.MirroredStrategy`` over every GPU that TensorFlow sees, or, where there is none,
    over its logical CPU devices, of which there is one unless somebody has configured more.
    """
    if name == "none":
        return None
    import tensorflow as tf

    gpus = tf.config.list_logical_devices("GPU")
    devices = [device.name for device in gpus or tf.config.list_logical_devices("CPU")]
    # NCCL is for GPUs; elsewhere TensorFlow would say in a warning that it does this.
    reduction = None if gpus else tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction)


def strategy_of(model: Any) -> Any:
    """The mirrored strategy that a model was made under, or None."""
    import tensorflow as tf

    strategy = model.distribute_strategy
    return strategy if isinstance(strategy, tf.distribute.MirroredStrategy) else None


def scope(strategy: Any) -> contextlib.AbstractContextManager[Any]:
    """Where variables are made that each device of a strategy has; nothing where there is no strategy."""
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def num_devices(model: Any) -> int:
    """How many devices train a model; each has its copy, a replica in TensorFlow's words."""
    strategy = strategy_of(model)
    return 1 if strategy is None else strategy.num_replicas_in_sync


def check_batches(model: Any, batch_size: int | None, key: str = "train.batch_size") -> None:
    """Check that the devices get equal shares of each batch, without which their gradients would not count alike.

    Args:
        model: The model.
        batch_size: Examples in a batch; None where it is not known.
        key: What to call it.

    Raises:
        LotteryError: They do not.
    """
    num = num_devices(model)
    if batch_size is None or batch_size % num:
        received = "batches of no known size" if batch_size is None else str(batch_size)
        raise LotteryError(
            f"{key}: received {received}, allowed is a multiple of {num}, the number of devices that "
            'run.strategy = "mirrored" trains on.'
        )


def run(model: Any, step: Callable[[Any], Logs], batch: Any, names: tuple[str, ...] = ()) -> Logs:
    """Take a step of a model on a batch, each device on its share.

    Where a strategy spreads the model, what Keras' metrics have counted is in their variables, which add up over the
    devices when they are read here; of what the step reports itself, the mean over the examples is given back.

    Args:
        model: The model.
        step: From a batch to what the step reports, such as the model's own ``train_step``.
        batch: Tensors whose first axis is examples, one or more for each device. The shares differ by at most one.
        names: What is wanted of the report.

    Returns:
        The report.
    """
    strategy = strategy_of(model)
    if strategy is None:
        return step(batch)
    import tensorflow as tf

    num, size = strategy.num_replicas_in_sync, _size(tf.nest.flatten(batch)[0])

    def on_one_device() -> Logs:
        place = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))
        first, end = place * size // num, (place + 1) * size // num
        logs = step(tf.nest.map_structure(lambda one: one[first:end], batch))
        part = tf.cast((end - first) / size, tf.float32)
        return {name: tf.cast(logs[name], tf.float32) * part for name in names}

    logs = strategy.run(on_one_device)
    return {name: tf.add_n(strategy.experimental_local_results(value)) for name, value in logs.items()}


def on_each(model: Any, step: Callable[[Any], Logs], batch: Any) -> Any:
    """Take a step of a model, each device on the whole batch, and give back what it reports, device by device."""
    strategy = strategy_of(model)
    if strategy is None:
        return step(batch)
    import tensorflow as tf

    logger = tf.get_logger()
    before = logger.level
    logger.setLevel("ERROR")  # outside a graph it says that this is slow, which is no matter for one step
    try:
        return strategy.run(step, args=(batch,))
    finally:
        logger.setLevel(before)


def batches(model: Any, dataset: Iterable[Any]) -> Iterator[Any]:
    """The batches of a data set; one with fewer examples than devices goes to the one before it."""
    import tensorflow as tf

    num, waiting = num_devices(model), None
    for batch in dataset:
        if waiting is not None and tf.nest.flatten(batch)[0].shape[0] < num:
            batch = tf.nest.map_structure(lambda *parts: tf.concat(parts, 0), waiting, batch)
        elif waiting is not None:
            yield waiting
        waiting = batch
    if waiting is not None:
        yield waiting


def settle(model: Any) -> None:
    """Give every device the mean of what each has measured for itself, such as moving statistics.

    They are averages over batches, so the mean of those of the shares is that of the whole batches, but for a variance,
    which each device takes around the mean of its own share. Counts, which add up over devices, stay.
    """
    import tensorflow as tf

    for variable in _measured(model):
        parts = components(variable)
        mean = tf.add_n([one.read_value() for one in parts]) / len(parts)
        for one in parts:
            one.assign(mean)


def skip_together(model: Any) -> None:
    """Let all devices skip a step if the gradients of one are not finite, in half precision.

    Keras 3 asks its first device alone, before gradients are added up, so what overflows on another would become NaN on
    all. tf_keras asks afterwards.

    Args:
        model: A compiled model that a strategy spreads.
    """
    import tensorflow as tf

    check = getattr(model.optimizer, "check_finite", None)  # of a LossScaleOptimizer
    if check is None:
        return

    def on_all(gradients: Any) -> Any:
        wrong = tf.cast(tf.logical_not(check(gradients)), tf.float32)
        return tf.equal(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, wrong), 0.0)

    # Past Keras' __setattr__, which keeps track of what is assigned.
    vars(model.optimizer)["check_finite"] = on_all


def draw_apart(model: Any) -> None:
    """Let each device draw random numbers of its own: Keras 3 gives the same state to all, and so the same dropout."""
    for name, variable in weights.variables(model).items():
        if weights.is_random_state(name):
            for place, one in enumerate(components(variable)[1:], 1):
                value = np.array(one.numpy())
                value.flat[0] = randomness.seed_for(*(abs(int(word)) for word in value.flat), place)
                one.assign(value)


def differing(model: Any, state: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The plain variables that hold something else than a state says, because each device has its own; by name.

    Args:
        model: The model.
        state: What is read of it, by name.
    """
    found = {}
    for name, variable in weights.variables(model).items():
        parts = components(variable)
        if len(parts) > 1:
            found |= {
                f"{place}/{name}": one
                for place, one in enumerate(parts)
                if np.array(one.numpy()).tobytes() != state[name].tobytes()
            }
    return found


def component(model: Any, name: str) -> Any:
    """The plain variable of a name that `differing` gives."""
    place, _, own = name.partition("/")
    return components(weights.variables(model)[own])[int(place)]


def _size(tensor: Any) -> Any:
    import tensorflow as tf

    return tf.shape(tensor)[0] if tensor.shape[0] is None else tensor.shape[0]


def _measured(model: Any) -> list[Any]:
    """What each device changes by itself: floating variables that no optimiser trains and that do not add up."""
    import tensorflow as tf

    trained = {id(one) for one in model.trainable_variables}
    adding = tf.VariableAggregation.SUM
    return [
        one
        for one in model.variables
        if id(one) not in trained
        and len(components(one)) > 1
        and components(one)[0].dtype.is_floating
        and getattr(getattr(one, "_value", one), "aggregation", None) != adding
    ]
