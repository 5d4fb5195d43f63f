"""One training run: full length, evaluated along the way, the weights of the best validation loss kept beside."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery import config, masks, rewinding, weights
from lottery.errors import LotteryError
from lottery.loop import Loop, reset
from lottery.masks import Masks

# What Keras calls plain accuracy; of other metrics whose names end so, the first.
ACCURACIES = ("accuracy", "acc", "sparse_categorical_accuracy", "categorical_accuracy", "binary_accuracy")
Row = tuple[int, str, float, float]
State = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Trained:
    """What a training run leaves.

    Attributes:
        weights: Every variable after the last step, by name.
        metrics: Rows of step, split, loss, accuracy, by step. A row of the training split is the mean over the steps
            since the row before it, measured on each batch as it was trained on.
        summary: ``early_stop_step``, the step of minimum validation loss (of equals the first), and loss and
            accuracy of every split there and at the end.
        start_sha256: Fingerprint of what the model held when training began, read back from it.
        seconds: How long it took, evaluations included.
    """

    weights: dict[str, np.ndarray]
    metrics: list[Row]
    summary: dict[str, float | int]
    start_sha256: str
    seconds: float


def train(
    loop: Loop,
    start: State,
    kept: Masks,
    settings: config.Train,
    seed: tuple[int, ...],
    report: Callable[[int, float], None] = lambda step, accuracy: None,
    first_step: int = 0,
    schedule_step: int | None = None,
    watch: Mapping[int, Callable[[dict[str, np.ndarray]], None]] | None = None,
    measured: Callable[[Row], None] = lambda row: None,
) -> Trained:
    """Train from given weights under masks, with a fresh optimiser.

    Args:
        loop: The compiled loop.
        start: Every variable to start from, by name; masked entries start at zero.
        kept: The masks.
        settings: The ``[train]`` section of an experiment.
        seed: Words that decide the order of the batches.
        report: Called several times a second with the step and the last validation accuracy.
        first_step: The step that `start` is of. Training goes on from there to `settings.num_steps`, with the batches
            that it would have had; where the two are equal, the network is evaluated and not trained.
        schedule_step: Where in its schedule the learning rate begins; at `first_step` if None.
        watch: Functions by step, each called with every variable once that step is taken.
        measured: Called with each row of `Trained.metrics` as soon as it is known.

    Returns:
        What was trained.

    Raises:
        LotteryError: The loss is no longer a finite number, or a masked entry is no longer zero.
    """
    began = time.perf_counter()
    for name, mask in kept.items():
        loop.masks[name].assign(mask)
    weights.assign(loop.model, masks.apply(start, kept))
    reset(loop)
    loop.schedule_step.assign(first_step if schedule_step is None else schedule_step)
    start_sha256 = rewinding.fingerprint(weights.read_state(loop.model))
    batches = loop.batches(seed, first_step)
    metrics: list[Row] = []
    best: dict[str, np.ndarray] = {}
    summary: dict[str, float | int] = {}
    lowest, step, trained = math.inf, first_step, (math.nan, math.nan)

    def add(*row: Any) -> None:
        metrics.append(row)
        measured(row)

    def evaluate(split: str, at: int) -> tuple[float, float]:
        loss, accuracy = _finite(loop.evaluations[split](), f"{split} loss at step {at}")
        add(at, split, loss, accuracy)
        return loss, accuracy

    while True:
        validation = evaluate("validation", step)
        if settings.test_curve:
            evaluate("test", step)
        if validation[0] < lowest:
            lowest, best = validation[0], weights.read_state(loop.model)
            summary |= {"early_stop_step": step, **_named("early_stop_val", validation)}
        report(step, validation[1])
        if step == settings.num_steps:
            break
        until = min(step - step % settings.eval_every + settings.eval_every, settings.num_steps)
        trained = _advance(
            loop, batches, step, until, watch or {}, lambda step, seen=validation[1]: report(step, seen)
        )  # fmt: skip
        step = until
        add(step, "train", *trained)

    final = _held(weights.read_state(loop.model), kept)
    known = {at: (loss, accuracy) for at, split, loss, accuracy in metrics if split == "test"}
    test = known.get(step) or evaluate("test", step)
    stopped_at = int(summary["early_stop_step"])
    if stopped_at == step:
        best_test = test
    elif stopped_at in known:
        best_test = known[stopped_at]
    else:
        weights.assign(loop.model, _held(best, kept))
        best_test = evaluate("test", stopped_at)
    summary |= _named("early_stop_test", best_test)
    summary |= _named("final_train", trained) | _named("final_val", validation) | _named("final_test", test)
    return Trained(final, sorted(metrics, key=lambda row: row[0]), summary, start_sha256, time.perf_counter() - began)


def _advance(
    loop: Loop,
    batches: Callable[[int], tuple[Any, ...]],
    first: int,
    until: int,
    watch: Mapping[int, Callable[[dict[str, np.ndarray]], None]],
    report: Callable[[int], None],
) -> tuple[float, float]:
    """Train from one step until another; mean loss and accuracy on the way."""
    step, sums = first, np.zeros(2)
    while step < until:
        stop = min([until, *(at for at in watch if at > step)])
        num_steps = min(loop.longest, stop - step)
        logs = loop.steps(*batches(num_steps))
        sums += num_steps * np.array(_finite(logs, f"training loss between steps {step} and {step + num_steps}"))
        step += num_steps
        if step in watch:
            watch[step](weights.read_state(loop.model))
        report(step)
    loss, accuracy = sums / (until - first)
    return float(loss), float(accuracy)


def _finite(logs: Mapping[str, Any], what: str) -> tuple[float, float]:
    """Loss and accuracy from what a model reports; an accuracy that it does not measure is NaN."""
    if "loss" not in logs:
        raise LotteryError(f"The model reports {', '.join(logs) or 'nothing'}, and no 'loss', which is needed.")
    loss = float(logs["loss"])
    if not math.isfinite(loss):
        raise LotteryError(f"The {what} is {loss}; try a lower learning rate.")
    named = [name for name in logs if name in ACCURACIES] or [name for name in logs if name.endswith("accuracy")]
    return loss, float(logs[named[0]]) if named else math.nan


def _held(state: dict[str, np.ndarray], kept: Masks) -> dict[str, np.ndarray]:
    """The state itself, once it is seen that every masked entry is zero."""
    for name, mask in kept.items():
        if np.any(state[name][~mask]):
            raise LotteryError(
                f"{name} has masked entries that are not zero: the model's train_step changes it without its "
                "optimiser, whose constraints hold the masks."
            )
    return state


def _named(prefix: str, values: tuple[float, float]) -> dict[str, float | int]:
    return {f"{prefix}_loss": values[0], f"{prefix}_accuracy": values[1]}
