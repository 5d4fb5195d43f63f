"""A model from a seed: with initial weights, for a criterion, or for the gradients of its loss."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lottery import config, masks, randomness, weights
from lottery.data import Splits, Streams
from lottery.enforcement.modes import ENFORCEMENTS
from lottery.errors import LotteryError
from lottery.masks import Weights
from lottery.models import networks, precision
from lottery.models.kerases import keras_of
from lottery.pipeline.prepared import Ingredients, Prepared
from lottery.pruning import criteria, gradients
from lottery.settings import GIVEN
from lottery.training import compiling
from lottery.training.examples import example_batch, scaler


def builder(experiment: config.Experiment, data: Splits | Streams, ingredients: Ingredients) -> Callable[[], Any]:
    """Return the function that builds a run's model: the caller's, or that of a network's name and the data's shape."""
    build = ingredients.model or _of_name(experiment, data, ingredients.import_code)
    if experiment.train.in_full_precision:
        return build
    return precision.in_precision(build, experiment.train.precision)


def _of_name(experiment: config.Experiment, data: Splits | Streams, import_code: bool) -> Callable[[], Any]:
    name = experiment.model.name
    if name == GIVEN:
        raise LotteryError(
            'model.name = "given" stands for a function passed to lottery.run(..., model=...); pass it again, in '
            "Python."
        )
    if not networks.is_built_in(name):
        return networks.builder(name, import_code=import_code)
    if isinstance(data, Streams):
        raise LotteryError(
            f"model: a tf.data.Dataset does not state its number of classes, so {name!r} cannot be built; pass model=."
        )
    mode = ENFORCEMENTS.get(experiment.run.enforcement)
    # tfmot wraps layers of tf_keras alone.
    library = "tf_keras" if mode is not None and mode.tf_keras_only else "keras"
    return networks.builder(name, data.train.x.shape[1:], _num_classes(data.train.y), library)


def _num_classes(labels: np.ndarray) -> int:
    is_one_for_each = labels.dtype.kind == "i" and labels.size == len(labels)
    highest = int(labels.max()) if is_one_for_each else 0
    # Labels that are not classes, as values to predict, would otherwise become a layer of that many units.
    if not 0 < highest < max(len(labels), 1000) or labels.min() < 0:
        raise LotteryError(
            "The labels must be one class for each example, counted from 0. The training labels go from "
            f"{labels.min()} to {labels.max()} in {len(labels)} examples."
        )
    return highest + 1


def initial_seed(experiment: config.Experiment, replicate: int) -> int:
    """Return the seed of a replicate's initial weights."""
    return randomness.seed_for(experiment.run.seed, replicate, randomness.INITIALISATION)


def words_of_batches(experiment: config.Experiment, replicate: int) -> tuple[int, int, int]:
    """Return the seed words of the order of a replicate's batches."""
    return experiment.run.seed, replicate, randomness.BATCHES


def build_model(build: Callable[[], Any], seed: int) -> Any:
    """Build a model with initial weights from a seed; raise `LotteryError` if that fails or it is no Keras model."""
    if hasattr(build, "trainable_variables") and not isinstance(build, type):
        raise LotteryError("model must be a function that builds a new model each time it is called, not a model.")
    if not callable(build):
        raise LotteryError(
            f"model must be a function without arguments that builds a Keras model, not {type(build).__name__}. "
            'A network by name belongs in the experiment: {"model": {"name": "lenet_300_100"}}.'
        )
    import keras

    called = getattr(build, "__name__", "the model's function")
    # tf_keras draws initial weights from a generator of its own. It takes long to import, and few models need it; a
    # function that is the first to import it has drawn unseeded, and is called again.
    is_seeded, model = False, None
    while not is_seeded:
        keras.utils.set_random_seed(seed)
        tf_keras: Any = sys.modules.get("tf_keras")
        if tf_keras is not None:
            tf_keras.utils.set_random_seed(seed)
        try:
            with _generators(tf_keras):
                model = build()
        except LotteryError:
            raise
        except Exception as error:  # a user's function may raise anything
            raise LotteryError(f"{called}() could not build the model: {type(error).__name__}: {error}") from error
        is_seeded = tf_keras is not None or "tf_keras" not in sys.modules
    keras_of(model)
    for name, variable in weights.variables(model).items():
        if "bfloat16" in str(variable.dtype):
            raise LotteryError(f"{name} is of type bfloat16, which NumPy cannot hold; use mixed_bfloat16 or float32.")
    return model


@contextlib.contextmanager
def _generators(tf_keras: Any) -> Iterator[None]:
    """Let random layers of tf_keras keep their state in variables, which a checkpoint restores.

    By default they draw by operations whose state nothing can read.
    """
    if tf_keras is None or (random := tf_keras.backend.experimental).is_tf_random_generator_enabled():
        yield
        return
    random.enable_tf_random_generator()
    try:
        yield
    finally:
        random.disable_tf_random_generator()


def initial_state(prepared: Prepared, replicate: int) -> dict[str, np.ndarray]:
    """Draw every variable of a replicate at step 0."""
    if replicate not in prepared.initial:
        model = build_model(prepared.build, initial_seed(prepared.experiment, replicate))
        # A shared variable would be trained with the trainer's, and be no initial weight any more.
        known = {id(variable) for variable in prepared.trainer.model.variables}
        if any(id(variable) in known for variable in model.variables):
            raise LotteryError(
                "model: the function uses the same model or layers twice; it must build new layers each time."
            )
        if masks.shapes(weights.prunable(model)) != masks.shapes(prepared.plan.dense):
            raise LotteryError("model: the function must build the same weights each time.")
        prepared.initial[replicate] = weights.read_state(model)
    return prepared.initial[replicate]


def check_drawn_anew(drawn: Weights, before: Weights, branch: str) -> None:
    """Raise `LotteryError` if two sets of initial weights, from two seeds, are the same."""
    if all(np.array_equal(drawn[name], before[name]) for name in before):
        raise LotteryError(
            f"The model is built with the same initial weights each time, so {branch} would be the ticket itself; "
            "leave it out."
        )


def scoring_network(prepared: Prepared, replicate: int) -> criteria.ScoredModel:
    """Make a network without enforcement, and a batch of the replicate's, for criteria that need the network.

    The batch has as many examples of one label as of another, as far as there are so many; of a stream, it is the
    beginning.
    """
    experiment, data = prepared.experiment, prepared.data
    words = (experiment.run.seed, replicate, randomness.SCORES)
    model = _without_masks(prepared, replicate)
    num = experiment.prune.num_examples
    if isinstance(data, Splits):
        # The words name no round, so that all rounds of a replicate look at the same batch.
        (in_order,) = randomness.batches(len(data.train), len(data.train), words)(1)
        batch = _at(data, balanced(np.asarray(data.train.y)[in_order], in_order, num))
    else:
        stream = data.train
        batch = _first_of(lambda: stream().unbatch().batch(num), randomness.seed_for(*words))
    return criteria.ScoredModel(model, batch.x, batch.y, prepared.build, batch.sample_weight)


def balanced(labels: np.ndarray, positions: np.ndarray, num: int) -> np.ndarray:
    """Choose positions in turns: the first of each label, then the second of each, until there are `num`."""
    if labels.ndim > 2:  # a label for each pixel, say: no classes of examples
        return positions[:num]
    import pandas as pd

    rows = labels.reshape(len(labels), -1)
    _, classes = np.unique(rows, axis=0, return_inverse=True)
    # Flat, because versions of NumPy 2 give the inverse other shapes.
    by_example = pd.Series(classes.reshape(-1))
    # The turn of an example is its place among those of its class.
    turns = by_example.groupby(by_example).cumcount().to_numpy()
    # Stable, so that within a turn the order that was drawn decides.
    return positions[np.argsort(turns, kind="stable")[:num]]


def dense_gradients(prepared: Prepared) -> Callable[[int, int, Weights], dict[str, np.ndarray]]:
    """Make a function from a replicate, a step and every variable there to gradients of the loss by prunable weight.

    They are of the batch that follows the step, as it is stored, and of masked entries too: the network is built
    without enforcement. Of a stream, the batch is the first with a seed from the step.
    """
    experiment, data = prepared.experiment, prepared.data
    # Of any replicate: its weights are assigned before each use.
    model = _without_masks(prepared, 0)
    compute = gradients.loss_gradient(model, list(prepared.trainer.masks))

    def gradients_at(replicate: int, step: int, state: Weights) -> dict[str, np.ndarray]:
        words = words_of_batches(experiment, replicate)
        if isinstance(data, Splits):
            (positions,) = randomness.batches(len(data.train), experiment.train.batch_size, words, step)(1)
            batch = _at(data, positions)
        else:
            batch = _first_of(data.train, randomness.seed_for(*words, step))
        weights.assign(model, state)
        return compute(batch)

    return gradients_at


def _without_masks(prepared: Prepared, replicate: int) -> Any:
    # In half precision small gradients would be zero.
    settings = prepared.experiment.train
    build = prepared.build if settings.in_full_precision else precision.in_full_precision(prepared.build)
    model = build_model(build, initial_seed(prepared.experiment, replicate))
    compiling.compile_model(model, settings, example_batch(prepared.data, model)[0])
    return model


def _at(data: Splits, positions: np.ndarray) -> gradients.Batch:
    return gradients.Batch(scaler(data)(data.train.x[positions]), data.train.y[positions])


def _first_of(dataset: Callable[[], Any], seed: int) -> gradients.Batch:
    """Return a data set's first batch, drawn with a seed."""
    import keras

    keras.utils.set_random_seed(seed)
    return gradients.Batch(*next(iter(dataset())))
