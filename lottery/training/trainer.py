"""Train the networks of an experiment under masks, one after the other, with one model and one or two engines."""

import contextlib
import functools
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from lottery import masks, randomness, weights
from lottery.data import Splits, Streams
from lottery.masks import Masks, Weights
from lottery.models.kerases import tf
from lottery.training import engine_choice, examples, mirrored
from lottery.training.checkpoints import Checkpointer
from lottery.training.course import Course, OnStep, Watch
from lottery.training.engine_choice import Engine
from lottery.training.loop import Loop, compile_loop
from lottery.training.records import Span, Trained
from lottery.training.settings import Train


class Trainer:
    """A model with its data, its masks and its compiled loop, for all rounds, branches and replicates.

    The attribute ``masks`` has a boolean variable for each prunable weight, True where an entry is kept. Masks are
    enforced from the first call that needs it (`hold`) until `close`. Masked entries are held at zero, unless
    `hold_at_start` is called.

    Args:
        model: A compiled Keras 3 or tf_keras model; its own ``train_step`` and ``test_step`` run.
        data: Arrays stay in memory as they are, and become floats batch by batch.
        enforce: A context manager function, such as `lottery.enforcement.constraint`. None holds nothing.
        schedule_step: The variable that the model was compiled with, if any: where in its schedule the learning rate
            begins, and how much more slowly it goes through it.
        augment: Augmentation of training images: ``"crop"``, ``"flip"``.
        obstacle: What keeps the model from the sparse engine, besides what can be read from the model and the data.
        inputs: Variables by name that a step reads besides the model's, and that the caller assigns before a training.
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
        self.model, self.settings = model, settings
        self.inputs = inputs or {}
        # Variables, not constants, so that one trace serves every mask.
        self.masks = _variables(masks.ones_like(weights.read(model)))
        self.held: dict[str, Any] = {}  # variables like ``masks``, of the values to hold masked entries at if not zero
        self._callbacks: list[Any] = []  # of enforcement; the trace calls those that are here by then
        self.loop: Loop = compile_loop(model, data, settings, augment, self._callbacks)
        # What the sparse engine trains, or why it cannot; and that engine, from the first network that it trains on.
        self.network = engine_choice.read(model, data, settings, augment, obstacle)
        self.data, self._augment = data, augment
        self._sparse: Any = None
        self.seconds_per_step: float | None = None  # in the last call of the compiled steps
        self.schedule_step = schedule_step
        self._enforce, self._is_held = enforce, False
        self._held = contextlib.ExitStack()
        self._first_values: list[tuple[Any, np.ndarray]] = []

    def hold_at_start(self) -> None:
        """Hold masked entries at the values that they start with, in place of zero; call it before anything is held."""
        self.held = _variables({name: np.zeros_like(value) for name, value in weights.read(self.model).items()})

    def hold(self) -> None:
        """Enforce the masks from now on, until `close`."""
        if self._enforce is not None and not self._is_held:
            parts = (self.masks, self.held) if self.held else (self.masks,)
            # In place: the loop was given this very list, and its trace calls what stands in it by then.
            self._callbacks[:] = self._held.enter_context(self._enforce(self.model, *parts))
            self._is_held = True

    def close(self) -> None:
        """Stop enforcing the masks."""
        self._held.close()
        self._is_held = False

    def set_masks(self, kept: Masks, state: Weights | None = None) -> None:
        """Assign the masks, and the held values from a state; a weight that `kept` does not name is not pruned."""
        for name, variable in self.masks.items():
            variable.assign(kept[name] if name in kept else np.ones(variable.shape, bool))
        for name, variable in self.held.items():
            if state is not None:
                variable.assign(state[name])

    def reset(self) -> None:
        """Put everything that a step touches, besides the model's variables and the masks, back to its first value."""
        for variable, value in self.touched():
            variable.assign(value)
        if mirrored.strategy_of(self.model) is not None:
            mirrored.draw_apart(self.model)

    def draw_noise(self, seed: tuple[int, ...]) -> None:
        """Set generators of random numbers that the model does not hold, by the seed words of a training's batches.

        Layers of tf_keras have such generators. Without this, all replicates would have the same dropout.
        """
        generators = [variable for variable, _ in self.touched() if weights.is_generator(variable.name)]
        for place, variable in enumerate(generators):
            # The last word is the purpose, that of batches.
            source = randomness.generator(*seed[:-1], randomness.NOISE, place)
            state = source.integers(2**31, size=tuple(variable.shape))
            variable.assign(state.astype(variable.dtype.as_numpy_dtype))

    def engine(self, kept: Masks, name: str | None = None) -> tuple[Engine, str, str]:
        """Return the engine for a network with these masks, its name and the reason; `name` decides if it is given."""
        chosen, reason = engine_choice.choose(self.network, self.settings, kept)
        name = name or chosen
        if name == "compiled" or isinstance(self.network, engine_choice.Obstacle):
            return self.loop, "compiled", reason
        if self._sparse is None:
            # Only where it is needed: numba takes seconds to compile it, once on a machine.
            from lottery.sparse import engine as sparse

            # Tracing makes the slots of the optimizer, which the engine reads.
            self.touched()
            data: Any = self.data  # arrays, or there was no chain
            crops = (
                functools.partial(examples.crops, self._augment, self.settings.batch_size) if self._augment else None
            )
            margin = examples.PADDING if "crop" in self._augment else 0
            self._sparse = sparse.Engine(
                self.model, self.network, data, self.settings.batch_size, self.loop.longest, crops, margin
            )
        return self._sparse, name, reason

    def at(self, state: Weights, kept: Masks, engine: str | None = None) -> Engine:
        """Put the model into a state under masks, and return the engine that evaluates it; see `engine`."""
        self.hold()
        self.set_masks(kept, state)
        weights.assign(self.model, state)
        chosen = self.engine(kept, engine)[0]
        chosen.begin(kept)
        return chosen

    def train(
        self,
        start: Weights,
        kept: Masks,
        seed: tuple[int, ...],
        span: Span = Span(),
        watch: Watch | None = None,
        on_step: OnStep = lambda step, accuracy, row: None,
        checkpointer: Checkpointer | None = None,
    ) -> Trained:
        """Train a network under masks, with a fresh optimizer; masked entries start at zero, whatever `start` holds.

        After `hold_at_start` they start, and stay, at the values of `start`. With moving averages (``use_ema=True``)
        training ends with them, as Keras' ``fit`` does. The early-stop step is found from the last change of masks on.

        Args:
            seed: Words that decide the order of the batches, and noise such as dropout.
            watch: Functions by step, each called with every variable after that step. A training that resumes does not
                repeat earlier calls, so their results belong in `Checkpointer.memory` or on disk.
            on_step: Called several times a second, and with each new row of `Trained.metrics`; when a training resumes,
                with earlier rows again.

        Raises:
            LotteryError: The loss or a weight is not a finite number any more, a masked entry is not held, or a change
                keeps another number of entries than it says.
            Stopped: A stop was requested, and the checkpoint is written.
        """
        return Course(self, start, kept, seed, span, watch or {}, on_step, checkpointer).run()

    def touched(self) -> list[tuple[Any, np.ndarray]]:
        """Return what a step touches besides the model, the masks and the inputs: variables with their first values.

        The trace knows them: slots and iterations of all optimizers, metrics and random generators, whoever owns them.
        """
        if not self._first_values:
            # What enforces the masks must be in the trace, and so must its variables.
            self.hold()
            own = [*self.model.variables, *self.masks.values(), *self.held.values(), *self.inputs.values()]
            known = {id(inner) for variable in own for inner in weights.components(variable)}
            # With any seed, for nothing is run.
            traced = self.loop.steps.get_concrete_function(*self.loop.batches((0,))(1)).graph
            # TensorFlow 2.21 lists variables of a graph in an order of chance, captures in the order of the trace.
            place = {id(tensor): number for number, (tensor, _) in enumerate(traced.captures)}
            found = sorted(traced.variables, key=lambda variable: place[id(variable.handle)])
            self._first_values = [
                (variable, np.array(variable.numpy())) for variable in found if id(variable) not in known
            ]
        return self._first_values


def _variables(values: Weights) -> dict[str, Any]:
    return {name: tf.Variable(tf.constant(value), trainable=False) for name, value in values.items()}
