"""The course of one training: begin, advance, evaluate, change, finish; over any `engine_choice.Engine`."""

import contextlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery import masks, weights
from lottery.errors import LotteryError
from lottery.masks import Masks, Weights
from lottery.models import optimizers
from lottery.training import engine_choice
from lottery.training.checkpoints import Checkpointer, TrainingState
from lottery.training.engine_choice import Engine
from lottery.training.records import ACCURACY_ROUNDING, Classes, MetricsRow, Span, Trained, loss_and_accuracy

# About how long a call of an engine lasts. Between calls progress is shown, NaN is noticed, checkpoints are written,
# and a run can be stopped. The bits do not depend on where steps are cut into calls.
CALL_SECONDS = 0.5

# Receives the step, the last validation accuracy, and a new row of metrics or None.
OnStep = Callable[[int, float, MetricsRow | None], None]
# By step, functions that are called with every variable after it.
Watch = Mapping[int, Callable[[dict[str, np.ndarray]], None]]


@dataclass
class Course:
    """The training of one network; the arguments are those of `trainer.Trainer.train`."""

    trainer: Any  # a `trainer.Trainer`, which imports this file
    start: Weights
    kept: Masks
    seed: tuple[int, ...]
    span: Span
    watch: Watch
    on_step: OnStep
    checkpointer: Checkpointer | None

    def __post_init__(self) -> None:
        span, settings = self.span, self.trainer.settings
        self.model, self.first = self.trainer.model, span.first_step
        self.last = settings.num_steps if span.last_step is None else span.last_step
        self.schedule_step = self.first if span.schedule_step is None else span.schedule_step
        self.settled = max(span.changes, default=self.first)  # the early-stop step is found from here on
        self.held_at = self.start if self.trainer.held else None
        self.state = TrainingState(self.first, self.first)
        self.began = time.perf_counter()

    def run(self) -> Trained:
        """Train the network, or go on from its checkpoint."""
        self.begin()
        with contextlib.closing(self.checkpointer) if self.checkpointer else contextlib.nullcontext():
            while True:
                if self.state.step == self.state.due:
                    self.evaluate()
                if self.state.step == self.last:
                    break
                self.advance()
                self.change()
                self.keep()
        return self.finish()

    def begin(self) -> None:
        """Put the model at its start, choose the engine, and read the checkpoint if there is one."""
        # Before the first trace, which must know what enforces the masks.
        self.trainer.hold()
        self.trainer.set_masks(self.kept, self.start)
        self._put_at_start()
        # Read back from the model, so that it is of what training starts from, masked and in the variables' own types.
        self.start_sha256 = weights.fingerprint(weights.read_state(self.model))
        # Nothing has shown yet that the sparse engine gains where masks change: it packs its arrays anew each time.
        if self.span.changes:
            self.engine: Engine = self.trainer.loop
            self.chosen = ("compiled", "its masks change in training")
        else:
            self.engine, *self.chosen = self.trainer.engine(self.kept)
        if self.checkpointer:
            self._read_checkpoint(self.checkpointer)
        # Before the engine begins: to compare, both take their first steps with the model's variables.
        if self.state.step == self.first < self.last and self.engine is not self.trainer.loop:
            self.state.difference = self._difference()
        # So that the time before the checkpoint counts, too.
        self.began -= self.state.seconds
        self.engine.begin(self.kept, self.seed, self.state.step)
        if self.state.step == self.first:  # a checkpoint has later steps alone
            self.change()

    def advance(self) -> None:
        """Take steps for about `CALL_SECONDS`, up to an evaluation, watched step, change of masks or checkpoint."""
        state, trainer = self.state, self.trainer
        # A training row is the mean over all steps since the last evaluation, in however many calls they are taken.
        every = trainer.settings.eval_every
        evaluated = (state.due - 1) // every * every
        before = state.step - max(self.first, evaluated)
        stops = [step for step in (*self.watch, *self.span.changes) if step > state.step]
        until = min([state.due, *stops])
        if self.checkpointer and self.checkpointer.due is not None:
            until = min(until, self.checkpointer.due)
        most = int(CALL_SECONDS / trainer.seconds_per_step) if trainer.seconds_per_step else 1
        num_steps = min(self.engine.longest, until - state.step, max(1, most))
        called = time.perf_counter()
        what = f"training loss between steps {state.step} and {state.step + num_steps}"
        state.trained = loss_and_accuracy(self.engine.advance(num_steps, before), what)
        taken = (time.perf_counter() - called) / num_steps
        # The first call compiles, which says nothing about the next.
        trainer.seconds_per_step = taken if trainer.seconds_per_step else CALL_SECONDS
        state.step += num_steps
        if state.step in self.watch:
            self.watch[state.step](self.engine.state())

    def evaluate(self) -> None:
        """Check the masks, measure the validation split, remember the best network so far, and say what is due next."""
        state = self.state
        if state.step > self.first:
            self._add(state.step, "train", state.trained)
        # Of the averages, if the optimizer has any: a training that stopped here would end with them.
        with optimizers.finalized(self.model):
            if self.engine is self.trainer.loop:  # the sparse engine has no masked entries
                self._check_held(weights.read(self.model))
            state.validation = self._measured("validation", state.step)
            if self.trainer.settings.test_curve:
                self._measured("test", state.step)
            # Of equal losses, the first step counts.
            if state.validation[0] < state.lowest and state.step >= self.settled:
                self._keep_for_budget()
                state.lowest, state.best = state.validation[0], self.engine.state()
                state.summary = {"early_stop_step": state.step, **_named("early_stop_val", state.validation)}
        self.on_step(state.step, state.validation[1], None)
        every = self.trainer.settings.eval_every
        state.due = min((state.step // every + 1) * every, self.last)

    def change(self) -> None:
        """Change the masks, if they change after this step; after the first, before any training."""
        state, change = self.state, self.span.changes.get(self.state.step)
        if change is None:
            return
        before, arrays = self.kept, self.engine.state()
        changed = change.function(before, arrays)
        masks.check(changed, arrays)
        counts = masks.num_kept(changed)
        if counts != change.num_kept:
            raise LotteryError(f"The masks after step {state.step} keep {counts}, not {dict(change.num_kept)}.")
        self.trainer.set_masks(changed)
        self.engine.change(before, changed)
        self.kept = state.kept = changed
        num_kept, num_both = masks.total_kept(changed), masks.total_kept(masks.intersection(before, changed))
        state.changes.append((state.step, num_kept, masks.total_kept(before) - num_both, num_kept - num_both))

    def keep(self) -> None:
        """Report the step, and write a checkpoint if it is due."""
        self.on_step(self.state.step, self.state.validation[1], None)
        self.state.seconds = time.perf_counter() - self.began
        if self.checkpointer:
            self.checkpointer.keep(self.state, self.engine.finish)

    def finish(self) -> Trained:
        """Check the trained network, measure it on the test set, and collect everything that is stored."""
        state = self.state
        self.engine.finish()
        optimizers.finalize(self.model)
        final = weights.read_state(self.model)
        for stored in final, state.best:
            self._check_held(stored)
        self._check_finite(final)
        steps = {"early_stop": int(state.summary["early_stop_step"]), "final": self.last}
        states = {self.last: final, steps["early_stop"]: state.best}
        if state.budget:
            steps["budget"] = int(state.budget_summary["budget_step"])
            states[steps["budget"]] = state.budget
        test, classes = self._tested(states)
        summary = state.summary | _named("early_stop_test", test[steps["early_stop"]])
        summary |= _named("final_train", state.trained) | _named("final_val", state.validation)
        summary |= _named("final_test", test[self.last])
        if state.budget:
            summary |= state.budget_summary | _named("budget_test", test[steps["budget"]])
        predictions = _predictions({name: classes[step] for name, step in steps.items()}, summary)
        engine: dict[str, Any] = {"engine": self.chosen[0], "engine_reason": self.chosen[1]}
        if state.difference is not None:
            engine |= {"engine_difference": state.difference}
        return Trained(
            weights=final,
            early_stop=state.best,
            budget=state.budget or None,
            predictions=predictions,
            kept=self.kept,
            # Test rows of earlier steps were measured last. The sort is stable, so rows of one step keep their order.
            metrics=sorted(state.metrics, key=lambda row: row[0]),
            summary=summary,
            start_sha256=self.start_sha256,
            engine=engine,
            changes=state.changes,
            seconds=time.perf_counter() - self.began,
        )

    def _put_at_start(self) -> None:
        """Assign the start weights under the masks, and a fresh optimizer."""
        weights.assign(self.model, masks.apply(self.start, self.kept, self.held_at))
        self.trainer.reset()
        self.trainer.draw_noise(self.seed)
        # After the reset, which has given these slots the values of the first network. A new optimizer's begin here.
        for variable, average in optimizers.averages(self.model):
            average.assign(variable)
        if self.trainer.schedule_step is not None:
            # A longer training goes through the schedule more slowly, from its beginning to its end.
            usual = self.trainer.settings.num_steps
            pace = (usual, self.last) if self.last > usual else (1, 1)
            self.trainer.schedule_step.assign([self.schedule_step, *pace])

    def _read_checkpoint(self, checkpointer: Checkpointer) -> None:
        """Go on from the checkpoint of this very training, if there is one."""
        # Keras numbers the variables of all models of a process (3.15); another process may have built more.
        own = {
            f"{place:04d}/{re.sub(r'_[0-9]+', '', variable.name)}": variable
            for place, (variable, _) in enumerate(self.trainer.touched())
        }
        # With the step at which this very training ends, for a branch may train for longer than the rounds.
        settings = self.trainer.settings.model_copy(update={"num_steps": self.last})
        # What decides the bits of this training, besides the variables.
        parts: list[Any] = [
            self.trainer.data.fingerprint,
            self.start_sha256,
            weights.fingerprint(self.kept),
            settings.model_dump(mode="json", exclude={"engine"}),  # which its own variables tell
            self.seed,
            self.first,
            self.schedule_step,
            sorted(self.watch),
            self.span.budget,
            *([step, change.num_kept] for step, change in sorted(self.span.changes.items())),
        ]
        if self.trainer.inputs:
            parts.append(weights.fingerprint(weights.arrays(self.trainer.inputs)))
        self.state = checkpointer.begin(weights.variables(self.model), {**own, **self.engine.own}, parts, self.state)
        for row in self.state.metrics:
            self.on_step(row[0], self.state.validation[1], row)
        if self.state.kept:
            # In the order of the weights: a file has an order of its own.
            self.kept = {name: self.state.kept[name] for name in self.kept}
            self.trainer.set_masks(self.kept)

    def _difference(self) -> float:
        """Take the first steps with the compiled loop and with the engine, and compare the weights.

        The model is at its start again; for what is returned and raised, see `engine_choice.difference`.
        """
        compiled = self.trainer.loop
        network = self.trainer.network
        limits, left_out = engine_choice.limits(network), network.biases_without_effect
        num_steps = min(limits.num_compared, compiled.longest, self.last - self.first)
        states = []
        # Without a step, the state is that of the start, masked and rounded as the variables are.
        for engine, steps in (compiled, 0), (compiled, num_steps), (self.engine, num_steps):
            self._put_at_start()
            engine.begin(self.kept, self.seed, self.first)
            if steps:
                loss_and_accuracy(engine.advance(steps), f"training loss of the first {steps} steps")
            states.append(engine.state())
        self._put_at_start()
        start, expected, received = states
        return engine_choice.difference(start, expected, received, num_steps, limits.difference, left_out)

    def _keep_for_budget(self) -> None:
        """Keep the best network up to the budget, if the first better network comes after it, and takes its place."""
        state, budget = self.state, self.span.budget
        if budget is None or not state.best:
            return
        if int(state.summary["early_stop_step"]) <= budget < state.step:
            state.budget = state.best
            state.budget_summary = {key.replace("early_stop", "budget"): value for key, value in state.summary.items()}

    def _add(self, step: int, split: str, measured: tuple[float, float]) -> None:
        row = (step, split, *measured)
        self.state.metrics.append(row)
        self.on_step(self.state.step, self.state.validation[1], row)

    def _measured(self, split: str, step: int) -> tuple[float, float]:
        measured = loss_and_accuracy(self.engine.evaluate(split), f"{split} loss at step {step}")
        self._add(step, split, measured)
        return measured

    def _check_held(self, variables: Weights) -> None:
        for name in masks.leaks(variables, self.kept, self.held_at):
            what = "held" if self.trainer.held else "zero"
            raise LotteryError(
                f"{name} has masked entries that are not {what} after step {self.state.step}: the model's train_step "
                "changes it without the optimizer, whose constraints hold the masks."
            )

    def _check_finite(self, final: Weights) -> None:
        # Whether the loss shows a NaN depends on the processor: the relu of some makes it a zero.
        for name, variable in weights.variables(self.model).items():
            if weights.is_trained(self.model, variable) and not np.isfinite(final[name]).all():
                raise LotteryError(f"{name} has values that are not finite after training; try a lower learning rate.")

    def _tested(
        self, states: Mapping[int, Weights]
    ) -> tuple[dict[int, tuple[float, float]], dict[int, Classes | None]]:
        """Measure states of the network on the test set, and predict the class of each example; both by step.

        The last step, where the model is, comes first: others leave the model at other weights. Each of these assigns
        every variable, so that no metric depends on what a prediction changes.
        """
        measured = {step: (loss, accuracy) for step, split, loss, accuracy in self.state.metrics if split == "test"}
        classes = {}
        for step, variables in states.items():
            if step != self.last:
                weights.assign(self.model, variables)
                self.engine.begin(self.kept)
            if step not in measured:
                measured[step] = self._measured("test", step)
            classes[step] = self.engine.classes()
        return measured, classes


def _predictions(
    classes: Mapping[str, Classes | None], summary: Mapping[str, float | int]
) -> dict[str, np.ndarray] | None:
    """Collect the predicted classes of each state with the labels; None if they do not give its accuracy."""
    predictions: dict[str, np.ndarray] = {}
    for name, found in classes.items():
        if found is None:
            return None
        predictions["label"], predictions[name] = found
        # What a model calls accuracy may be another metric, such as that of the five highest outputs.
        accuracy = np.mean(found[0] == found[1])
        if not abs(accuracy - summary[f"{name}_test_accuracy"]) <= ACCURACY_ROUNDING:  # of NaN, too
            return None
    return predictions


def _named(prefix: str, values: tuple[float, float]) -> dict[str, float | int]:
    return {f"{prefix}_loss": values[0], f"{prefix}_accuracy": values[1]}
