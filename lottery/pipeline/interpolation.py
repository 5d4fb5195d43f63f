"""Networks on the straight line between two networks, and the error barrier between them: for any Keras model."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery import interrupts, randomness, weights
from lottery.data import Splits, Streams
from lottery.errors import LotteryError
from lottery.masks import Weights
from lottery.models.kerases import is_compiled, put_back, tf
from lottery.runs.siblings import PathPoint
from lottery.statistics.barriers import error_barrier
from lottery.training import mirrored
from lottery.training.examples import scaler
from lottery.training.records import Logs, accuracy_among

# BatchNormalization statistics are recomputed from at most this number of examples, in batches of this size.
STATISTICS_EXAMPLES, STATISTICS_BATCH = 10_000, 1000


@dataclass(frozen=True)
class Line:
    """How to walk the straight line between two networks.

    Args:
        num_points: Networks to evaluate on the line, evenly apart, its ends included.
        recompute: Measure BatchNormalization statistics again at each point, in place of interpolating them.
        test_only: Leave the training split out, which is usually the larger.
    """

    num_points: int = 30
    recompute: bool = False
    test_only: bool = False

    def __post_init__(self) -> None:
        """Refuse a line without a point between its ends."""
        if not isinstance(self.num_points, (int, np.integer)) or self.num_points < 3:
            raise LotteryError(
                f"num_points must be a whole number of 3 or more, which counts the two ends, not {self.num_points}."
            )

    @property
    def alphas(self) -> np.ndarray:
        """The places of the points, from 0 to 1."""
        return np.linspace(0, 1, self.num_points)


def between(first: Weights, second: Weights, alpha: float) -> dict[str, np.ndarray]:
    """Compute the network ``(1 - alpha) first + alpha second``, for alpha in [0, 1].

    It is computed in float64 and rounded to the type of each variable once. The ends are the networks themselves, bit
    by bit, and an entry in which they agree is the same everywhere between. Variables that are not floating, such as
    counters and the states of random layers, are those of the first network, except at alpha 1.
    """
    if not 0 <= alpha <= 1:
        raise LotteryError(f"alpha must be 0 to 1, not {alpha}.")
    wrong = sorted(set(first) ^ set(second))
    wrong = wrong or [name for name in first if np.shape(first[name]) != np.shape(second[name])]
    if wrong:
        raise LotteryError(f"The two networks must have the same variables and shapes; see {wrong[0]!r}.")
    found = {name: np.array(value) for name, value in (second if alpha == 1 else first).items()}
    for name, value in found.items():
        if 0 < alpha < 1 and "float" in value.dtype.name:
            here, there = value.astype(np.float64), np.asarray(second[name], np.float64)
            # Where both are the same infinity, what is not chosen is NaN.
            with np.errstate(invalid="ignore"):
                mixed = np.where(here == there, here, (1 - alpha) * here + alpha * there)
            found[name] = mixed.astype(value.dtype)
    return found


def path(
    model: Any,
    first: Weights,
    second: Weights,
    evaluations: Mapping[str, Callable[[], Logs]],
    alphas: Iterable[float],
    recompute: Callable[[], None] | None = None,
    should_stop: interrupts.ShouldStop = interrupts.never,
) -> list[PathPoint]:
    """Evaluate the networks at some points between two networks of a model, which keeps the weights of the last point.

    The result is rows of alpha, split, loss and error, which is 1 - accuracy. A loss may be infinite or NaN. Raises
    `interrupts.Stopped` before a point where `should_stop` returns a signal.
    """
    rows = []
    for alpha in alphas:
        if signal := should_stop():
            raise interrupts.Stopped(signal)
        weights.assign(model, between(first, second, alpha))
        if recompute is not None:
            recompute()
        for split, evaluate in evaluations.items():
            logs = evaluate()
            name = accuracy_among(logs)
            if name is None:
                reported = ", ".join(logs) or "nothing"
                raise LotteryError(f"The model reports {reported}, but no accuracy, so no error can be measured.")
            rows.append((float(alpha), split, float(logs.get("loss", math.nan)), 1 - float(logs[name])))
    return rows


def barrier(
    model: Any, first: Any, second: Any, data: Any, num_points: int = 30, statistics: Any = None
) -> dict[str, Any]:
    """Measure the error barrier between any two networks, with the same start or not.

    Frankle et al. 2020, https://arxiv.org/abs/1912.05671: the highest error on the straight line between them, at 30
    points, − the mean of its ends; below 2 % they call a pair stable.

    Args:
        model: A Keras 3 or tf_keras model compiled with an accuracy. Its variables are restored afterwards.
        first, second: The two networks: models, or every variable by name as `lottery.weights.read_state` gives them.
        data: The data to measure on: ``(x, y)`` or ``(x, y, sample_weight)``, or a batched ``tf.data.Dataset``.
        num_points: Points on the line, its ends included, evenly apart.
        statistics: Inputs of the training data, as arrays, to recompute the statistics of BatchNormalization layers
            from at every point; see `recomputed`. By default statistics are interpolated like weights.

    Returns:
        ``ends`` (mean error of the two), ``highest``, ``alpha_highest``, ``barrier``, ``stable`` as in
        `lottery.statistics.barriers.error_barrier`, errors in [0, 1]; and ``points``, tuples of alpha, loss and error.

    Raises:
        LotteryError: The two do not fit the model, or it reports no accuracy; or the data have another number of parts.
    """
    alphas = Line(num_points).alphas
    if not is_compiled(model):
        raise LotteryError("The model is not compiled, so it measures no error; compile it with metrics=['accuracy'].")
    if not isinstance(first, Mapping):
        first = weights.read_state(first)
    if not isinstance(second, Mapping):
        second = weights.read_state(second)
    options: dict[str, Any] = {"x": data}
    if isinstance(data, tuple | list):
        if len(data) not in (2, 3):
            raise LotteryError(
                f"data must be (x, y) or (x, y, sample_weight), or a batched tf.data.Dataset, not {len(data)} parts."
            )
        # A data set has batches of its own, beside which Keras refuses a size.
        options = {**dict(zip(("x", "y", "sample_weight"), data, strict=False)), "batch_size": STATISTICS_BATCH}
    recompute = None
    if statistics is not None:
        recompute = recomputed(model, lambda: (statistics[at] for at in _drawn(len(statistics))))
    with put_back(weights.variables(model).values()):
        evaluate = {"test": lambda: model.evaluate(verbose=0, return_dict=True, **options)}
        rows = path(model, first, second, evaluate, alphas, recompute)
    points = [(alpha, loss, error) for alpha, _, loss, error in rows]
    return {**error_barrier([row[0] for row in points], [row[2] for row in points]), "points": points}


def recomputed(model: Any, batches: Callable[[], Iterable[Any]]) -> Callable[[], None] | None:
    """Make a function that measures the statistics of BatchNormalization layers for the weights that a model has.

    The mean of two networks' statistics is not the statistics of their mean, and an error barrier may be nothing but
    that: Jordan et al. 2023, https://arxiv.org/abs/2211.08403. The model computes each batch of inputs as in training
    (with dropout), and its layers keep the mean of the batches' statistics. None if no layer is trained and has them.
    """
    layers = with_statistics(model)
    if not layers:
        return None
    moving = [variable for layer in layers for variable in (layer.moving_mean, layer.moving_variance)]

    @tf.function(autograph=False)
    def forward(inputs: Any) -> None:
        mirrored.on_each(model, lambda share: model(share, training=True), inputs)

    def measure() -> None:
        # In double precision, and by hand: a momentum would weigh later batches more.
        momenta, measured = [layer.momentum for layer in layers], []
        try:
            for layer in layers:
                # Then the moving statistics are those of the last batch. It is read when the graph is traced.
                layer.momentum = 0.0
            for inputs in batches():
                forward(inputs)
                measured.append([np.array(variable.numpy(), np.float64) for variable in moving])
        finally:
            for layer, momentum in zip(layers, momenta, strict=True):
                layer.momentum = momentum
        for variable, values in zip(moving, zip(*measured, strict=True), strict=True):
            variable.assign((sum(values, np.zeros(())) / len(values)).astype(variable.numpy().dtype))

    return measure


def training_batches(data: Splits | Streams) -> Callable[[], Iterator[Any]]:
    """Make the function that `recomputed` takes: inputs of the training data in batches of 1,000, at most 10,000.

    All batches have one size: a rest is left out, and fewer than 1,000 are one batch. Arrays are sampled at random, the
    same each time, and not augmented; of a data set the first examples are taken.
    """
    if isinstance(data, Splits):
        scaled = scaler(data)
        drawn = _drawn(len(data.train))
        return lambda: (scaled(data.train.x[at]) for at in drawn)

    def batches() -> Iterator[Any]:
        import keras

        keras.utils.set_random_seed(0)  # a shuffle without a seed of its own takes TensorFlow's
        most = STATISTICS_EXAMPLES // STATISTICS_BATCH
        whole = data.train().map(lambda x, *_: x).unbatch().batch(STATISTICS_BATCH).take(most)
        for place, inputs in enumerate(whole):
            # Several inputs are a dict or a tuple, whose length is not a number of examples.
            is_whole = len(keras.tree.flatten(inputs)[0]) == STATISTICS_BATCH
            if place == 0 or is_whole:
                yield inputs

    return batches


def with_statistics(model: Any) -> list[Any]:
    """List the layers whose statistics `recomputed` measures: they are trained, as BatchNormalization may be."""
    needed = {"momentum", "moving_mean", "moving_variance"}
    return [layer for layer in weights.all_layers(model) if layer.trainable and needed <= {*dir(layer)}]


def _drawn(num_examples: int) -> Sequence[np.ndarray]:
    """Draw batches of examples, the same each time."""
    size = min(STATISTICS_BATCH, num_examples)
    drawn = randomness.generator(0).permutation(num_examples)[:STATISTICS_EXAMPLES]
    # In the mean of the batches' statistics each example of a smaller batch would count more, so there is none.
    return np.split(drawn[: len(drawn) // size * size], len(drawn) // size)
