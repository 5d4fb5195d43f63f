"""Train the networks of an experiment under masks, one after the other, with one model and one or two engines."""

import contextlib
import copy
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lottery import masks, weights
from lottery.data import Splits, Streams
from lottery.errors import LotteryError
from lottery.masks import Change, Masks
from lottery.models import optimizers
from lottery.settings import ROUNDING
from lottery.sparse.reading import Obstacle
from lottery.training import compiling, engines, mirrored
from lottery.training.checkpoints import Checkpointer, TrainingState
from lottery.training.loop import PIECE_SECONDS, Classes, Loop, compile_loop
from lottery.training.settings import Train

# Keras' names for plain accuracy; a model without any of these may report another metric whose name ends so.
ACCURACIES = ("accuracy", "acc", "sparse_categorical_accuracy", "categorical_accuracy", "binary_accuracy")

Arrays = Mapping[str, np.ndarray]  # by the name of a variable
MetricsRow = tuple[int, str, float, float]  # step, split, loss, accuracy


@dataclass(frozen=True)
class Span:
    """The part of a training that a network goes through, and how its masks change on the way.

    A training that ends after ``train.num_steps`` goes through the learning rate's schedule more slowly, from its
    beginning to its end.
    """

    first_step: int = 0  # the step that the start weights belong to; the batches are those that follow it
    last_step: int | None = None  # ``train.num_steps`` if None; if it equals `first_step`, nothing is trained
    schedule_step: int | None = None  # where the learning rate's schedule begins; `first_step` if None
    changes: Mapping[int, Change] = field(default_factory=dict)  # by the step after which masks change


@dataclass(frozen=True)
class Trained:
    """A trained network."""

    weights: dict[str, np.ndarray]  # every variable after the last step, by name
    early_stop: dict[str, np.ndarray]  # every variable at the early-stop step
    # For each test example its ``label``, and the class predicted at the ``early_stop`` step and at the ``final`` one;
    # None where the accuracy is not that of one class for each example of an array.
    predictions: dict[str, np.ndarray] | None
    kept: Masks  # the masks after the last step
    # By step; a training row is the mean since the row before, each batch as it was trained on.
    metrics: list[MetricsRow]
    # ``early_stop_step``, the first step of minimum validation loss; loss and accuracy of every split there and at last
    summary: dict[str, float | int]
    start_sha256: str  # fingerprint of the model's variables when training began, read back from the model
    # ``engine`` that trained, ``engine_reason``, and for another than the compiled loop ``engine_difference``
    engine: dict[str, Any]
    # For each change of the masks: the step after which it was made, and how many entries are kept, pruned and grown.
    changes: list[tuple[int, int, int, int]]
    seconds: float  # evaluations included


class Trainer:
    """A model with its data, its masks and its compiled loop, for all rounds, branches and replicates.

    Masks are variables, so one trace serves every mask. They are enforced from the first call that needs it (`hold`)
    until `close`. The attribute ``masks`` has a boolean variable for each prunable weight, True where an entry is kept.
    Masked entries are held at zero, unless `hold_at_start` is called.

    Args:
        model: A compiled Keras 3 or tf_keras model; its own ``train_step`` and ``test_step`` run.
        data: Arrays stay in memory as they are, and become floats batch by batch.
        enforce: One of ``lottery.enforcement.ENFORCEMENTS``, or a function like them. None holds nothing.
        schedule_step: The variable that the model was compiled with, if any; see `compiling.compile_model`.
        augment: Augmentation of training images: ``"crop"``, ``"flip"``.
        obstacle: What keeps the model from the sparse engine, besides what can be read from the model and the data.
        inputs: Variables by name that a step reads besides the model's, and that the caller assigns before it trains a
            network.
    """

    def __init__(
        self,
        model: Any,
        data: Splits | Streams,
        settings: Train,
        enforce: Callable[..., contextlib.AbstractContextManager[list[Any]]] | None = None,
        schedule_step: Any = None,
        augment: Collection[str] = (),
        obstacle: str | None = None,
        inputs: Mapping[str, Any] | None = None,
    ) -> None:
        import tensorflow as tf

        self.model, self.settings, self._data, self._inputs = model, settings, data, inputs or {}
        self.masks: dict[str, Any] = {
            name: tf.Variable(tf.constant(mask), trainable=False, dtype=tf.bool)
            for name, mask in masks.ones_like(weights.read(model)).items()
        }
        self.held: dict[str, Any] = {}  # variables like ``masks``, of the values to hold masked entries at if not zero
        self.loop: Loop = compile_loop(model, data, settings, augment, self._end_of_step)
        # What the sparse engine trains, or why it cannot; and that engine, from the first network that it trains on.
        self.chain = engines.read(model, data, settings, augment, obstacle)
        self._sparse: Any = None
        self.seconds_per_step: float | None = None  # in the last call of the compiled steps
        self._schedule_step = compiling.step_variable() if schedule_step is None else schedule_step
        self._enforce, self._held, self._is_held = enforce, contextlib.ExitStack(), False
        self._callbacks: list[Any] = []
        self._first_values: list[tuple[Any, np.ndarray]] = []

    def hold_at_start(self) -> None:
        """Hold masked entries at the values that they start with, in place of zero; call it before anything is held."""
        import tensorflow as tf

        self.held = {
            name: tf.Variable(tf.zeros_like(value), trainable=False) for name, value in weights.read(self.model).items()
        }

    def hold(self) -> None:
        """Enforce the masks from now on, until `close`."""
        if self._enforce is not None and not self._is_held:
            parts = (self.masks, self.held) if self.held else (self.masks,)
            self._callbacks = self._held.enter_context(self._enforce(self.model, *parts))
            self._is_held = True

    def close(self) -> None:
        """Stop enforcing the masks."""
        self._held.close()
        self._is_held = False

    def set_masks(self, kept: Masks, state: Arrays | None = None) -> None:
        """Assign the masks, and the held values from a state; a weight that `kept` does not name is not pruned."""
        for name, variable in self.masks.items():
            variable.assign(kept[name] if name in kept else np.ones(variable.shape, bool))
        for name, variable in self.held.items():
            if state is not None:
                variable.assign(state[name])

    def reset(self) -> None:
        """Put everything that a step touches, besides the model's variables and the masks, back to its first value.

        The trace knows what that is: slots and iterations of all optimizers, metrics, and random generators, whoever
        owns them. Each device draws its own random numbers.
        """
        for variable, value in self._touched():
            variable.assign(value)
        mirrored.draw_apart(self.model)

    def engine(self, kept: Masks, name: str | None = None) -> tuple[Any, str, str]:
        """Return the engine for a network with these masks, its name and the reason; `name` decides if it is given."""
        chosen, reason = engines.choose(self.chain, self.settings, self.model, kept)
        name = name or chosen
        if name == "compiled" or isinstance(self.chain, Obstacle):
            return self.loop, "compiled", reason
        if self._sparse is None:
            self._touched()  # tracing makes the optimizer's slots
            self._sparse = engines.sparse(self.model, self.chain, self._data, self.settings, self.loop.longest)
        return self._sparse, name, reason

    def evaluated(self, state: Arrays, kept: Masks, split: str, engine: str | None = None) -> tuple[float, float]:
        """Compute loss and accuracy of a state of the model over every example of a split."""
        return _finite(self._at(state, kept, engine).evaluations[split](), f"{split} loss")

    def classes(self, state: Arrays, kept: Masks, engine: str | None = None) -> Classes | None:
        """Predict the class of each test example; see `loop.classifier`."""
        return self._at(state, kept, engine).classes()

    def _at(self, state: Arrays, kept: Masks, engine: str | None) -> Any:
        """Put the model into a state, and return the engine that continues from there."""
        self.hold()
        self.set_masks(kept, state)
        weights.assign(self.model, state)
        chosen = self.engine(kept, engine)[0]
        chosen.take(kept)
        return chosen

    def redrawn(self, draw: Callable[[str, np.ndarray], np.ndarray]) -> "Trainer":
        """Make a trainer of the same model whose `reset` sets what `draw` makes of each variable's name and value."""
        self.hold()
        other = copy.copy(self)
        other._first_values = [(variable, draw(variable.name, value)) for variable, value in self._touched()]
        return other

    def train(
        self,
        start: Arrays,
        kept: Masks,
        seed: tuple[int, ...],
        span: Span = Span(),
        watch: Mapping[int, Callable[[dict[str, np.ndarray]], None]] | None = None,
        report: Callable[[int, float, MetricsRow | None], None] = lambda step, accuracy, row: None,
        checkpointer: Checkpointer | None = None,
    ) -> Trained:
        """Train a network under masks, with a fresh optimizer; masked entries start at zero, whatever `start` holds.

        After `hold_at_start` they start, and stay, at the values of `start`.

        With moving averages (``use_ema=True``) training ends with them, as Keras' ``fit`` does. An evaluation on the
        way is of the averages too, since a training that stopped there would end with them.

        A network whose masks change is the network under the last masks: the early-stop step is found among the steps
        from the last change on. Entries that a change adds start at zero, with slots of the optimizer at zero.

        Args:
            seed: Words that decide the order of the batches.
            watch: Functions by step, each called with every variable after that step. A training that resumes from a
                checkpoint does not repeat earlier calls, so their results belong in `Checkpointer.memory` or on disk.
            report: Called several times a second with the step and the last validation accuracy, and with each new row
                of `Trained.metrics`. A training that resumes reports earlier rows again.

        Raises:
            LotteryError: The loss or a weight is not a finite number any more, a masked entry is not held, or a change
                keeps another number of entries than it says.
            Stopped: A stop was requested, and the checkpoint is written.
        """
        began, watch = time.perf_counter(), watch or {}
        first, settings = span.first_step, self.settings
        last = settings.num_steps if span.last_step is None else span.last_step
        settings = settings.model_copy(update={"num_steps": last})
        schedule_step = first if span.schedule_step is None else span.schedule_step
        pace = (self.settings.num_steps, last) if last > self.settings.num_steps else (1, 1)
        settled = max(span.changes, default=first)
        self.hold()
        self.set_masks(kept, start)
        held_at = start if self.held else None

        def begin() -> None:
            weights.assign(self.model, masks.apply(start, kept, held_at))
            self.reset()
            optimizers.restart_averages(self.model)
            self._schedule_step.assign([schedule_step, *pace])

        begin()
        # The sparse engine holds what is kept when it begins.
        loop, *chosen = (self.loop, "compiled", "its masks change in training") if span.changes else self.engine(kept)
        start_sha256 = weights.fingerprint(weights.read_state(self.model))
        now = TrainingState(first, first)
        if checkpointer:
            # Names must not count the models that a process has built.
            touched = enumerate(self._touched())
            own = {f"{place:04d}/{re.sub(r'_[0-9]+', '', one.name)}": one for place, (one, _) in touched}
            known = settings.model_dump(mode="json", exclude={"engine"})  # which its own variables tell
            parts = [start_sha256, weights.fingerprint(kept), known, seed, first, schedule_step, sorted(watch)]
            parts += [[step, one.num_kept] for step, one in sorted(span.changes.items())]
            if self._inputs:
                parts.append(weights.fingerprint({name: one.numpy() for name, one in self._inputs.items()}))
            now = checkpointer.begin(self.model, {**own, **loop.own}, parts, now)
            for row in now.metrics:
                report(row[0], now.validation[1], row)
            if now.kept:
                kept = {name: now.kept[name] for name in kept}  # a file has an order of its own
                self.set_masks(kept)
        if now.step == first < last and loop is not self.loop:
            now.difference = self._difference(loop, begin, kept, seed, span)
        began -= now.seconds
        loop.take(kept)
        batches = loop.batches(seed, now.step)

        def add(*row: Any) -> None:
            now.metrics.append(row)
            report(now.step, now.validation[1], row)

        def evaluate(split: str, step: int) -> tuple[float, float]:
            measured = _finite(loop.evaluations[split](), f"{split} loss at step {step}")
            add(step, split, *measured)
            return measured

        with contextlib.closing(checkpointer) if checkpointer else contextlib.nullcontext():
            while True:
                if now.step == now.due:
                    if now.step > first:
                        add(now.step, "train", *now.trained)
                    with optimizers.finalized(self.model):
                        now.validation = evaluate("validation", now.step)
                        if settings.test_curve:
                            evaluate("test", now.step)
                        if now.validation[0] < now.lowest and now.step >= settled:
                            now.lowest, now.best = now.validation[0], loop.state()
                            now.summary = {"early_stop_step": now.step, **_named("early_stop_val", now.validation)}
                    report(now.step, now.validation[1], None)
                    if now.step == last:
                        break
                    now.due = min(now.step - now.step % settings.eval_every + settings.eval_every, last)
                # The bits do not depend on where steps are cut into calls: each lasts about `PIECE_SECONDS`.
                most = int(PIECE_SECONDS / self.seconds_per_step) if self.seconds_per_step else 1
                until = min([now.due, *(step for step in (*watch, *span.changes) if step > now.step)])
                num_steps = min(loop.longest, until - now.step, max(1, most))
                before = now.step - max(first, (now.due - 1) // settings.eval_every * settings.eval_every)
                called = time.perf_counter()
                what = f"training loss between steps {now.step} and {now.step + num_steps}"
                now.trained = _finite(loop.steps(*batches(num_steps, before)), what)
                taken = (time.perf_counter() - called) / num_steps
                self.seconds_per_step = taken if self.seconds_per_step else PIECE_SECONDS  # the first call compiles
                now.step += num_steps
                if now.step in watch:
                    watch[now.step](loop.state())
                if now.step in span.changes:
                    before, kept = kept, self._changed(span.changes[now.step], kept, now.step)
                    now.kept, num_kept = kept, sum(masks.num_kept(kept).values())
                    grown = num_kept - sum(masks.num_kept(masks.intersection(before, kept)).values())
                    pruned = sum(masks.num_kept(before).values()) + grown - num_kept
                    now.changes.append((now.step, num_kept, pruned, grown))
                report(now.step, now.validation[1], None)
                now.seconds = time.perf_counter() - began
                if checkpointer:
                    checkpointer.keep(now, loop.settle)

        summary, stopped_at = now.summary, int(now.summary["early_stop_step"])
        loop.settle()
        optimizers.finalize(self.model)
        final = weights.read_state(self.model)
        for name in masks.leaks(final, kept, held_at) | masks.leaks(now.best, kept, held_at):
            raise LotteryError(
                f"{name} has masked entries that are not {'held' if self.held else 'zero'}: the model's train_step "
                "changes it without the optimizer, whose constraints hold the masks."
            )
        # Whether the loss shows a NaN depends on the processor: the relu of some makes it a zero.
        for name, variable in weights.variables(self.model).items():
            if weights.is_trained(self.model, variable) and not np.isfinite(final[name]).all():
                raise LotteryError(f"{name} has values that are not finite after training; try a lower learning rate.")
        test = {step: (loss, accuracy) for step, split, loss, accuracy in now.metrics if split == "test"}
        if last not in test:
            test[last] = evaluate("test", last)
        if stopped_at not in test:
            weights.assign(self.model, now.best)
            loop.take(kept)
            test[stopped_at] = evaluate("test", stopped_at)
        summary |= _named("early_stop_test", test[stopped_at]) | _named("final_train", now.trained)
        summary |= _named("final_val", now.validation) | _named("final_test", test[last])
        # After everything that is evaluated, so that no metric depends on it.
        predictions = self._predictions({"early_stop": now.best, "final": final}, kept, summary)
        rows = sorted(now.metrics, key=lambda row: row[0])
        engine: dict[str, Any] = dict(zip(("engine", "engine_reason"), chosen, strict=True))
        engine |= {} if now.difference is None else {"engine_difference": now.difference}
        seconds = time.perf_counter() - began
        return Trained(final, now.best, predictions, kept, rows, summary, start_sha256, engine, now.changes, seconds)

    def _changed(self, change: Change, kept: Masks, step: int) -> Masks:
        """Change the masks of the model while the compiled loop trains it, and return them."""
        state = self.loop.state()
        changed = change.function(kept, state)
        masks.check(changed, state)
        if (counts := masks.num_kept(changed)) != change.num_kept:
            raise LotteryError(f"The masks after step {step} keep {counts}, not {dict(change.num_kept)}.")
        self.set_masks(changed)
        weights.assign(self.model, masks.apply(state, changed))
        named = weights.variables(self.model)
        for name, mask in changed.items():
            for slot in optimizers.slots(self.model.optimizer, named[name]):
                slot.assign(np.where(mask & kept[name], slot.numpy(), np.zeros((), slot.numpy().dtype)))
        return changed

    def _difference(
        self, engine: Any, begin: Callable[[], None], kept: Masks, seed: tuple[int, ...], span: Span
    ) -> float:
        """Take the first steps of a network with the compiled loop and with another engine, and compare the weights.

        Returns:
            The largest difference of a weight; the model is at its start again.

        Raises:
            LotteryError: The difference is more than rounding.
        """
        last = self.settings.num_steps if span.last_step is None else span.last_step
        num_steps = min(engines.NUM_COMPARED, self.loop.longest, last - span.first_step)
        states = []
        for one, steps in (self.loop, 0), (self.loop, num_steps), (engine, num_steps):
            begin()
            one.take(kept)
            if steps:
                logs = one.steps(*one.batches(seed, span.first_step)(steps))
                _finite(logs, f"training loss of the first {steps} steps")
            states.append(one.state())
        begin()
        return engines.difference(*states)

    def _predictions(
        self, states: Mapping[str, Arrays], kept: Masks, summary: Mapping[str, float | int]
    ) -> dict[str, np.ndarray] | None:
        """Predict the class of each test example in two states; None if that does not give their accuracies."""
        predictions: dict[str, np.ndarray] = {}
        for name, state in states.items():
            if (classes := self.classes(state, kept)) is None:
                return None
            predictions["label"], predictions[name] = classes
            if not abs(np.mean(classes[0] == classes[1]) - summary[f"{name}_test_accuracy"]) <= ROUNDING:
                return None
        return predictions

    def _end_of_step(self, index: Any, logs: Any) -> None:
        """Call the callbacks that enforcement needs, in the graph."""
        for one in self._callbacks:
            one.on_train_batch_end(index, logs)

    def _touched(self) -> list[tuple[Any, np.ndarray]]:
        """The variables that a step touches besides the model's, the masks and the inputs, with their first values."""
        if not self._first_values:
            self.hold()
            own = [*self.model.variables, *self.masks.values(), *self.held.values(), *self._inputs.values()]
            known = {id(inner) for one in own for inner in weights.components(one)}
            traced = self.loop.steps.get_concrete_function(*self.loop.batches((0,))(1)).graph
            # A graph lists its variables in an order of chance, its captures in the order of the trace.
            place = {id(tensor): number for number, (tensor, _) in enumerate(traced.captures)}
            found = sorted(traced.variables, key=lambda one: place[id(one.handle)])
            self._first_values = [(one, np.array(one.numpy())) for one in found if id(one) not in known]
        return self._first_values


def _finite(logs: Mapping[str, Any], what: str) -> tuple[float, float]:
    """Get loss and accuracy from a model's report; the accuracy is NaN if the model measures none."""
    if "loss" not in logs:
        raise LotteryError(f"The model reports {', '.join(logs) or 'nothing'}, but no 'loss'; a loss is needed.")
    loss = float(logs["loss"])
    if not math.isfinite(loss):
        raise LotteryError(f"The {what} is {loss}; try a lower learning rate.")
    name = accuracy_among(logs)
    return loss, float(logs[name]) if name else math.nan


def accuracy_among(names: Iterable[str]) -> str | None:
    """Find the name of the accuracy among those that a model reports; None if it measures none."""
    named = [name for name in names if name in ACCURACIES] or [name for name in names if name.endswith("accuracy")]
    return named[0] if named else None


def _named(prefix: str, values: tuple[float, float]) -> dict[str, float | int]:
    return {f"{prefix}_loss": values[0], f"{prefix}_accuracy": values[1]}
