"""One training run: full length, evaluated along the way, the weights of the best validation loss kept beside."""

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery import masks, weights
from lottery.errors import LotteryError
from lottery.masks import Masks
from lottery.training import checkpoints
from lottery.training.checkpoints import Checkpointer, TrainingState
from lottery.training.loop import PIECE_SECONDS, Loop, reset
from lottery.training.settings import Train

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
    settings: Train,
    seed: tuple[int, ...],
    report: Callable[[int, float], None] = lambda step, accuracy: None,
    first_step: int = 0,
    schedule_step: int | None = None,
    watch: Mapping[int, Callable[[dict[str, np.ndarray]], None]] | None = None,
    measured: Callable[[Row], None] = lambda row: None,
    keeper: Checkpointer | None = None,
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
        measured: Called with each row of `Trained.metrics` as soon as it is known; where training goes on from a
            checkpoint, with those before it again.
        keeper: Keeps a checkpoint, and says where to go on. What `watch` has taken at steps before it is not called
            for again, so what that needs is in the keeper's memory, or already stored.

    Returns:
        What was trained.

    Raises:
        LotteryError: The loss is no longer a finite number, or a masked entry is no longer zero.
        Stopped: Somebody has asked to stop, and the keeper has a checkpoint.
    """
    began, watch = time.perf_counter(), watch or {}
    for name, mask in kept.items():
        loop.masks[name].assign(mask)
    weights.assign(loop.model, masks.apply(start, kept))
    reset(loop)
    schedule_step = first_step if schedule_step is None else schedule_step
    loop.schedule_step.assign(schedule_step)
    start_sha256 = weights.fingerprint(weights.read_state(loop.model))
    now = TrainingState(first_step, first_step)
    if keeper:
        parts = [start_sha256, weights.fingerprint(kept), settings.model_dump(mode="json"), seed]
        now = keeper.begin(loop, checkpoints.identity(loop, [*parts, first_step, schedule_step, sorted(watch)]), now)
        for row in now.metrics:
            measured(row)
    began -= now.seconds
    batches = loop.batches(seed, now.step)

    def add(*row: Any) -> None:
        now.metrics.append(row)
        measured(row)

    def evaluate(split: str, at: int) -> tuple[float, float]:
        loss, accuracy = _finite(loop.evaluations[split](), f"{split} loss at step {at}")
        add(at, split, loss, accuracy)
        return loss, accuracy

    with contextlib.closing(keeper) if keeper else contextlib.nullcontext():
        while True:
            if now.step == now.due:
                if now.step > first_step:
                    add(now.step, "train", *now.trained)
                now.validation = evaluate("validation", now.step)
                if settings.test_curve:
                    evaluate("test", now.step)
                if now.validation[0] < now.lowest:
                    now.lowest, now.best = now.validation[0], weights.read_state(loop.model)
                    now.summary = {"early_stop_step": now.step, **_named("early_stop_val", now.validation)}
                report(now.step, now.validation[1])
                if now.step == settings.num_steps:
                    break
                now.due = min(now.step - now.step % settings.eval_every + settings.eval_every, settings.num_steps)
            _advance(loop, batches, now, first_step, min([now.due, *(at for at in watch if at > now.step)]), settings)
            if now.step in watch:
                watch[now.step](weights.read_state(loop.model))
            report(now.step, now.validation[1])
            now.seconds = time.perf_counter() - began
            if keeper:
                keeper.keep(now)

    step, summary = now.step, now.summary
    final = _held(weights.read_state(loop.model), kept)
    known = {at: (loss, accuracy) for at, split, loss, accuracy in now.metrics if split == "test"}
    test = known.get(step) or evaluate("test", step)
    stopped_at = int(summary["early_stop_step"])
    if stopped_at == step:
        best_test = test
    elif stopped_at in known:
        best_test = known[stopped_at]
    else:
        weights.assign(loop.model, _held(now.best, kept))
        best_test = evaluate("test", stopped_at)
    summary |= _named("early_stop_test", best_test)
    summary |= _named("final_train", now.trained) | _named("final_val", now.validation) | _named("final_test", test)
    rows = sorted(now.metrics, key=lambda row: row[0])
    return Trained(final, rows, summary, start_sha256, time.perf_counter() - began)


def _advance(
    loop: Loop,
    batches: Callable[..., tuple[Any, ...]],
    now: TrainingState,
    first_step: int,
    until: int,
    settings: Train,
) -> None:
    """Train for about `PIECE_SECONDS`, and not farther than to a step; the bits do not depend on how far."""
    num_steps = min(loop.longest, until - now.step, max(1, int(PIECE_SECONDS / loop.pace[0])) if loop.pace else 1)
    before = now.step - max(first_step, (now.due - 1) // settings.eval_every * settings.eval_every)
    began = time.perf_counter()
    logs = loop.steps(*batches(num_steps, before))
    now.trained = _finite(logs, f"training loss between steps {now.step} and {now.step + num_steps}")
    # The first call compiles, so it tells nothing.
    loop.pace[:] = [(time.perf_counter() - began) / num_steps if loop.pace else PIECE_SECONDS]
    now.step += num_steps


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
