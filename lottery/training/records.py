"""What a training is asked for, and what it gives: plain records."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lottery.errors import LotteryError
from lottery.masks import Change, Masks

# Keras' names for plain accuracy; a model without any of these may report another metric whose name ends so.
ACCURACIES = ("accuracy", "acc", "sparse_categorical_accuracy", "categorical_accuracy", "binary_accuracy")

ACCURACY_ROUNDING = 1e-6  # Keras computes an accuracy in float32

Logs = Mapping[str, Any]  # the numbers that a model reports, by name
Classes = tuple[np.ndarray, np.ndarray]  # the label and the predicted class of each example, of an unsigned type
MetricsRow = tuple[int, str, float, float]  # step, split, loss, accuracy


@dataclass(frozen=True)
class Span:
    """The part of a training that a network goes through, and how its masks change on the way."""

    first_step: int = 0  # the step that the start weights belong to; the batches are those that follow it
    last_step: int | None = None  # ``train.num_steps`` if None; if it equals `first_step`, nothing is trained
    schedule_step: int | None = None  # where the learning rate's schedule begins; `first_step` if None
    changes: Mapping[int, Change] = field(default_factory=dict)  # by the step after which masks change
    budget: int | None = None  # the step up to which the network with the lowest validation loss is kept apart


@dataclass(frozen=True)
class Trained:
    """A trained network."""

    weights: dict[str, np.ndarray]  # every variable after the last step, by name
    early_stop: dict[str, np.ndarray]  # every variable at the early-stop step
    # Every variable at the lowest validation loss up to the budget, if the early-stop step comes after it.
    budget: dict[str, np.ndarray] | None
    # For each test example its ``label``, and the class predicted at the ``early_stop`` and the ``final`` step, and at
    # the ``budget``; None where the accuracy is not that of one class for each example of an array.
    predictions: dict[str, np.ndarray] | None
    kept: Masks  # the masks after the last step
    # By step; a training row is the mean since the row before, each batch as it was trained on.
    metrics: list[MetricsRow]
    # ``early_stop_step``, the first step of minimum validation loss; loss and accuracy of every split there and at
    # last; and the same of `budget`, as ``budget_step`` and so on
    summary: dict[str, float | int]
    start_sha256: str  # fingerprint of the model's variables when training began, read back from the model
    # ``engine`` that trained, ``engine_reason``, and for another than the compiled loop ``engine_difference``
    engine: dict[str, Any]
    # For each change of the masks: the step after which it was made, and how many entries are kept, pruned and grown.
    changes: list[tuple[int, int, int, int]]
    seconds: float  # evaluations included


def loss_and_accuracy(logs: Logs, what: str) -> tuple[float, float]:
    """Read loss and accuracy in a model's report; the accuracy is NaN if the model measures none.

    `what` names the loss in the `LotteryError` if it is not a finite number. An accuracy lies in [0, 1].
    """
    if "loss" not in logs:
        raise LotteryError(f"The model reports {', '.join(logs) or 'nothing'}, but no 'loss'; a loss is needed.")
    loss = float(logs["loss"])
    if not math.isfinite(loss):
        # Arrays are checked when they are passed, a stream is not.
        advice = "try a lower learning rate, and check that a tf.data.Dataset yields finite numbers"
        raise LotteryError(f"The {what} is {loss}; {advice}.")
    name = accuracy_among(logs)
    if name is None:
        return loss, math.nan
    accuracy = float(logs[name])
    # Not of NaN: a model may measure none in some batches.
    if accuracy < -ACCURACY_ROUNDING or accuracy > 1 + ACCURACY_ROUNDING:
        raise LotteryError(
            f"The model's {name!r} is {accuracy:g}, but an accuracy is a fraction from 0 to 1; report a fraction, or "
            "give this metric another name."
        )
    return loss, accuracy


def accuracy_among(names: Iterable[str]) -> str | None:
    """Find the name of the accuracy among those that a model reports; None if it measures none."""
    names = [name for name in names if name in ACCURACIES or name.endswith("accuracy")]
    # False is less than true, and of those alike `min` takes the first.
    return min(names, key=lambda name: name not in ACCURACIES, default=None)
