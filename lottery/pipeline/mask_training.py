"""The trainer of scores that masks are learned by: a compiled loop of its own, in which the weights stay fixed."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from lottery import randomness, weights
from lottery.enforcement.patching import seen_as
from lottery.errors import LotteryError
from lottery.masks import Weights
from lottery.models.kerases import is_compiled, keras_of, tf
from lottery.pipeline import building
from lottery.pipeline.prepared import Prepared
from lottery.pruning import supermasks
from lottery.training import compiling
from lottery.training.examples import example_batch
from lottery.training.trainer import Trainer

_ASSIGNED = "while this branch learns masks, it is a tensor; leave the branch out"


def learner(prepared: Prepared) -> Trainer:
    """Return the trainer of scores of a run, made and traced once: the scores are the values of the prunable variables.

    The model's other variables are not trained, but its statistics, of BatchNormalization, are updated.
    """
    if not prepared.learner:
        prepared.learner.append(_made(prepared))
    return prepared.learner[0]


def begin(
    trainer: Trainer, start: Weights, counts: Mapping[str, int], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Give a `learner` fixed weights and numbers of entries to keep; return every variable to train scores from."""
    trainer.inputs["counts"].assign(list(counts.values()))
    state = dict(start)
    for name in counts:
        trainer.inputs[f"fixed/{name}"].assign(start[name])
        state[name] = supermasks.first_scores(start[name].shape, rng).astype(start[name].dtype)
    return state


def _made(prepared: Prepared) -> Trainer:
    experiment = prepared.experiment
    num_steps = experiment.train.num_steps
    decay = {"name": "CosineDecay", "initial_learning_rate": supermasks.LEARNING_RATE, "decay_steps": num_steps}
    changed = {"optimizer": supermasks.OPTIMIZER, "learning_rate": decay, "warmup_steps": 0, "drop_at": ()}
    # The sparse engine trains weights alone, and the test curve is of the network under the masks, not of the scores.
    settings = experiment.train.model_copy(update={**changed, "test_curve": False, "engine": "compiled"})
    # As the run's own model; the weights that are drawn play no part.
    model = building.build_model(prepared.build, randomness.seed_for(experiment.run.seed, 0, randomness.SCORES))
    named = weights.variables(model)
    names = list(weights.prunable(model))
    for name, own in named.items():
        if name in names:
            # Of a score, a penalty or a norm would mean something else than of a weight.
            own.regularizer, own.constraint = None, None
        elif own.trainable:
            own.trainable = False
    _compile(model, settings, example_batch(prepared.data, model)[0])

    # What a step reads: the entries to keep of each weight, and by weight the fixed values.
    inputs = {"counts": tf.Variable(tf.zeros([len(names)], tf.int32), trainable=False)}
    for name in names:
        zeros = tf.zeros(named[name].shape, named[name].dtype)
        inputs[f"fixed/{name}"] = tf.Variable(zeros, trainable=False)

    def seen(place: int, scores: Any) -> Any:
        """Compute with a fixed weight, under the mask that its variable, the scores, gives."""
        scores = tf.convert_to_tensor(scores)
        factor = supermasks.factor(scores, inputs["counts"][place])
        return tf.convert_to_tensor(inputs[f"fixed/{names[place]}"]) * factor

    changes = [(name, named[name], partial(seen, place)) for place, name in enumerate(names)]
    # Not through Keras' __setattr__, which tracks every value.
    vars(model)["call"] = seen_as(changes, _ASSIGNED)(model.call)
    trainer = Trainer(model, prepared.data, settings, augment=experiment.data.augment, inputs=inputs)
    # A step that calls the model's layers by itself would train the scores as if they were weights.
    if not any(variable is inputs["counts"] for variable in trainer.loop.examined.variables):
        raise LotteryError(
            f"The train_step of the model {model.name!r} does not call the model itself, so no masks can be learned; "
            "call the model there, or leave the branch out."
        )
    return trainer


def _compile(model: Any, settings: Any, example: Any) -> None:
    """Compile a model with the optimizer of the scores; a model that comes compiled keeps its loss and metrics."""
    if not is_compiled(model):
        compiling.compile_model(model, settings, example)
        return
    made = compiling.optimizer(keras_of(model), settings)
    own = model.optimizer
    # The scale of the loss in half precision stays, around the new optimizer.
    scales = type(own).__name__ == "LossScaleOptimizer"
    model.optimizer = type(own)(made) if scales else made
