"""A run is prepared: data are loaded, a model is built, compiled and checked, before anything is written."""

from dataclasses import replace
from typing import Any

import numpy as np

from lottery import config, data, weights
from lottery.data import Splits, Streams
from lottery.enforcement.modes import ENFORCEMENTS, given
from lottery.pipeline import building, checks, fingerprinting
from lottery.pipeline.prepared import Ingredients, Prepared, with_data, with_functions, with_model
from lottery.pruning import criteria, mask_actions, plan
from lottery.training import compiling, examples, mirrored, schedules
from lottery.training.trainer import Trainer


def prepare(experiment: config.Experiment, ingredients: Ingredients = Ingredients(), replicate: int = 1) -> Prepared:
    """Load the data, build and compile the model, and check that everything fits together.

    A model of the caller's own is built twice: for the trainer, and with the initial weights of the replicate that is
    trained first, which shows that the function builds new layers each time. A function as criterion is called on three
    more, and a model that is mirrored on devices is observed on one more.
    """
    checks.check_devices(experiment)
    # What a step reads has a part on each device only if it is made in the scope: the model, its slots and the masks.
    with mirrored.scope(mirrored.strategy_for(experiment.train.devices)):
        prepared = _with_trainer(with_functions(experiment, ingredients), ingredients)
    for control in experiment.run.controls:
        prepared.check_learns(control)
    if ingredients.are_observed(experiment):
        prepared = fingerprinting.identified(prepared, ingredients)
    if not ingredients.have_own_model(experiment):
        return prepared
    # The trainer's model is of replicate 0, which is never trained, so that the weights of two seeds are compared.
    before = weights.read(prepared.trainer.model)
    said = checks.notes_on_start(building.initial_state(prepared, replicate), before, experiment.run)
    return replace(prepared, notes=(*prepared.notes, *said))


def _with_trainer(experiment: config.Experiment, ingredients: Ingredients) -> Prepared:
    """Make data, model, plan and trainer, and complete the experiment with what the data and the model decide."""
    loaded = data.load(experiment.data) if ingredients.data is None else data.given(ingredients.data, experiment.data)
    build = building.builder(experiment, loaded, ingredients)
    model = building.build_model(build, building.initial_seed(experiment, 0))
    checks.check_model(experiment, model)
    criterion = criteria.facts(experiment.prune.criterion)
    if ingredients.have_own_model(experiment):
        loaded = _as_the_model_reads(loaded, experiment.data, model)
        experiment = with_model(experiment, model, ingredients.model is not None)
    if ingredients.data is not None:
        experiment = with_data(experiment, loaded)
    # It is compiled before the data are checked: its loss says what labels it takes.
    inputs, schedule_step = examples.example_batch(loaded, model)[0], schedules.step_variable()
    compiling.compile_model(model, experiment.train, inputs, schedule_step)
    if experiment.needs_schedule:
        compiling.check_schedule(model)
    if isinstance(loaded, Splits):
        num_scored = experiment.prune.num_examples if criterion.needs_network else None
        examples.check_data(model, loaded, experiment.train.batch_size, inputs, num_scored)
    planned = plan.of_weights(experiment.prune, weights.read(model), plan.units_of(experiment.prune, model))
    planned.check()
    if ingredients.have_own_model(experiment):
        # Networks of the package are known to fit, and this takes a trace.
        criterion.check_model(model, inputs)
    trainer = _trainer(experiment, model, loaded, ingredients, planned, schedule_step)
    prepared = Prepared(experiment, build, loaded, trainer, planned, ingredients.criterion or criterion.score)
    found = tuple(checks.cautions(model, loaded, inputs))
    return replace(prepared, cautions=found, notes=(*checks.notes(prepared, ingredients, inputs), *found))


def _as_the_model_reads(loaded: Splits | Streams, settings: data.Data, model: Any) -> Splits | Streams:
    """Leave images of whole numbers as they are to a model that looks them up, as an Embedding does, or scales them."""
    if not isinstance(loaded, Splits) or loaded.train.x.dtype != np.uint8:
        return loaded
    probe = loaded.train.x[: examples.fixed_batch(model) or examples.NUM_EXAMPLES]
    if examples.reads_integers(model, probe):
        return data.as_integers(loaded, "the model takes whole numbers")
    scaling = [layer.name for layer in weights.all_layers(model) if type(layer).__name__ in checks.FIXED_SCALING]
    if scaling and settings.pixels == data.USUAL:
        return data.as_integers(loaded, f"the model scales them itself, by the layer {scaling[0]!r}")
    return loaded


def _trainer(
    experiment: config.Experiment,
    model: Any,
    loaded: Splits | Streams,
    ingredients: Ingredients,
    planned: plan.Plan,
    schedule_step: Any,
) -> Trainer:
    mode = given(ingredients.enforcement) if ingredients.enforcement else ENFORCEMENTS[experiment.run.enforcement]
    held_at = experiment.prune.held_at
    holds_values = not mask_actions.is_zero(held_at)
    checks.check_mode(mode, model, planned.dense, holds_values)
    obstacle = None  # to the sparse engine
    if not mode.on_sparse_engine:
        obstacle = f'run.enforcement is "{experiment.run.enforcement}"'
    elif holds_values:
        obstacle = f'prune.held_at is "{held_at}"'
    trainer = Trainer(model, loaded, experiment.train, mode.hold, schedule_step, experiment.data.augment, obstacle)
    if holds_values:  # before the first trace, which knows the variables
        trainer.hold_at_start()
    return trainer
