"""A run is prepared: data are loaded, a model is built, compiled and checked, before anything is written."""

import contextlib
import functools
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lottery import config, data, randomness, weights
from lottery.data import Splits, Streams
from lottery.enforcement import ENFORCEMENTS, Mode, given, tfmot
from lottery.pipeline import building, checks, completion, environment, identity, notes
from lottery.pipeline.prepared import NOTHING_PASSED, Ingredients, Prepared
from lottery.pruning import branches, criteria, mask_actions, plan
from lottery.runs import store, verification
from lottery.training import compiling, examples, mirrored, schedules
from lottery.training.examples import NUM_EXAMPLES, example_batch
from lottery.training.trainer import Trainer


class Opened(NamedTuple):
    """A run that is open for writing."""

    prepared: Prepared
    num_threads: int
    notes: list[str]  # sentences that a person should read


def open_run(
    stack: contextlib.ExitStack,
    path: Path,
    experiment: config.Experiment,
    ingredients: Ingredients,
    num_threads: int = 0,
    prepared: Prepared | None = None,
    transfer: config.Experiment | None = None,
) -> Opened:
    """Open a run until `stack` closes, or begin it; nothing is written before everything is seen to fit.

    Args:
        num_threads: The number of threads for a new run; 0 to choose.
        transfer: The experiment to prepare instead, with other data.
    """
    existed = path.exists()
    if existed:
        stack.enter_context(store.opened(path, experiment))
        verification.refuse_damaged(path, experiment)
    recorded = store.read_environment(path).get("num_threads", num_threads)
    num_threads = environment.begin_threads(experiment, recorded)
    prepared = prepared or prepare(transfer or experiment, ingredients)
    if transfer:
        return Opened(prepared, num_threads, [])
    if not existed:
        stack.enter_context(store.opened(path, experiment))
    observed = {} if store.read_environment(path) else prepared.observe()
    said = environment.record(path, experiment, prepared.trainer.model, prepared.data, num_threads, observed)
    said += identity.agreed(path, experiment, prepared.experiment, prepared.observe)
    return Opened(replace(prepared, experiment=experiment), num_threads, [*prepared.notes, *said])


def check_complete(path: Path, experiment: config.Experiment) -> None:
    """Raise `LotteryError` if a complete run is damaged, or the file of its data has changed."""
    verification.refuse_damaged(path, experiment)
    if experiment.data.path and Path(experiment.data.path).exists():
        environment.check_data(path, data.load(experiment.data).fingerprint)


def prepare(experiment: config.Experiment, ingredients: Ingredients = NOTHING_PASSED, replicate: int = 1) -> Prepared:
    """Load the data, build and compile the model, and check that everything fits together.

    A model of the caller's own is built twice: for the trainer, and with the initial weights of the replicate that is
    trained first, which shows that the function builds new layers each time. A function as criterion is called on three
    more, and a model that is mirrored on devices is observed on one more.
    """
    checks.check_devices(experiment)
    with mirrored.scope(mirrored.strategy_for(experiment.train.devices)):
        prepared = _with_trainer(completion.with_functions(experiment, ingredients), ingredients)
    for control in experiment.run.controls:
        checks.check_learns(prepared, control)
    if ingredients.are_observed(experiment):
        with randomness.put_back():
            prepared = _with_fingerprints(prepared, ingredients)
    if ingredients.have_own_model(experiment):
        prepared = _with_start(prepared, replicate)
    return prepared


def _with_trainer(experiment: config.Experiment, ingredients: Ingredients) -> Prepared:
    """Make data, model, plan and trainer, and complete the experiment with what the data and the model decide."""
    loaded = _data(experiment, ingredients)
    build = building.builder(experiment, loaded, ingredients)
    model = building.build_model(build, building.initial_seed(experiment, 0))
    tfmot.refuse_wrapped(model)
    has_own_model = ingredients.have_own_model(experiment)
    if has_own_model:
        loaded = _as_the_model_reads(loaded, model)
        experiment = completion.with_model(experiment, model, ingredients)
    if ingredients.data is not None:
        experiment = completion.with_data(experiment, loaded)
    checks.check_strategy(experiment, model)
    schedule_step = _compiled(experiment, model, loaded)
    planned = plan.of_weights(experiment.prune, weights.read(model), plan.units_of(experiment.prune, model))
    planned.check()
    criterion = criteria.facts(experiment.prune.criterion)
    if has_own_model:
        criterion.check_model(model, example_batch(loaded, model)[0])
    mode = given(ingredients.enforcement) if ingredients.enforcement else ENFORCEMENTS[experiment.run.enforcement]
    trainer = _trainer(experiment, model, loaded, mode, schedule_step)
    score = ingredients.criterion or criterion.score
    prepared = Prepared(experiment, build, loaded, trainer, planned, score, ())
    return replace(prepared, notes=tuple(notes.of(prepared, ingredients)))


def _data(experiment: config.Experiment, ingredients: Ingredients) -> Splits | Streams:
    if ingredients.data is None:
        return data.load(experiment.data)
    return data.given(ingredients.data, experiment.data)


def _as_the_model_reads(loaded: Splits | Streams, model: Any) -> Splits | Streams:
    """Take images of whole numbers for what they are to a model that looks them up, as an Embedding does."""
    if not isinstance(loaded, Splits) or loaded.train.x.dtype != np.uint8:
        return loaded
    probe = loaded.train.x[: examples.fixed_batch(model) or NUM_EXAMPLES]
    return data.as_integers(loaded) if examples.reads_integers(model, probe) else loaded


def _compiled(experiment: config.Experiment, model: Any, loaded: Splits | Streams) -> Any:
    """Compile a model, and return the variable that sets where its learning rate's schedule begins."""
    inputs, schedule_step = example_batch(loaded, model)[0], schedules.step_variable()
    compiling.compile_model(model, experiment.train, inputs, schedule_step)
    if isinstance(loaded, Splits):
        needs_network = criteria.facts(experiment.prune.criterion).needs_network
        num_scored = experiment.prune.num_examples if needs_network else None
        examples.check_data(model, loaded, experiment.train.batch_size, inputs, num_scored)
    return schedule_step


def _trainer(
    experiment: config.Experiment, model: Any, loaded: Splits | Streams, mode: Mode, schedule_step: Any
) -> Trainer:
    held_at = experiment.prune.held_at
    checks.check_layers(mode, model)
    obstacle = None  # to the sparse engine
    if not mode.on_sparse_engine:
        obstacle = f'run.enforcement is "{experiment.run.enforcement}"'
    elif not mask_actions.is_zero(held_at):
        obstacle = f'prune.held_at is "{held_at}"'
    trainer = Trainer(model, loaded, experiment.train, mode.hold, schedule_step, experiment.data.augment, obstacle)
    if not mask_actions.is_zero(held_at):
        checks.check_held_at(mode.hold)
        trainer.hold_at_start()
    return trainer


def _with_fingerprints(prepared: Prepared, ingredients: Ingredients) -> Prepared:
    """Complete an experiment with digests of what the caller's model and functions compute; see `identity`."""
    experiment, model = prepared.experiment, prepared.trainer.model
    example, examined = example_batch(prepared.data, model), prepared.trainer.loop.examined
    if mirrored.strategy_of(model) is not None:  # its steps have parts for each device
        model = building.build_model(prepared.build, building.initial_seed(experiment, 0))
        compiling.compile_model(model, experiment.train, example[0], schedules.step_variable())
        examined = compiling.examine(model, example)
    digests, opaque, numbers = {}, False, []
    if ingredients.have_own_model(experiment):
        digests["model"], opaque = identity.of_model(model, examined, example)
    if ingredients.enforcement is not None:
        digests["run"] = identity.of_enforcement(model, ingredients.enforcement, example)
    if ingredients.criterion is not None:
        network = functools.partial(building.scoring_network, prepared, 0)
        digests["prune"], numbers = identity.of_criterion(experiment, ingredients.criterion, network)
    for section, digest in digests.items():
        experiment = config.with_values(experiment, section, {"fingerprint": digest})
    observe = functools.cache(functools.partial(identity.observed, examined, example, opaque, numbers))
    return replace(prepared, experiment=experiment, observe=observe)


def _with_start(prepared: Prepared, replicate: int) -> Prepared:
    """Draw the initial weights of the first replicate, and see what the caller's function draws anew."""
    run, before = prepared.experiment.run, weights.read(prepared.trainer.model)
    drawn = building.drawn_twice(prepared, replicate)
    for control in run.controls:
        if "start weights" in branches.BRANCHES[control].needs_model:
            building.check_drawn_anew(drawn, before, control)
    said = notes.on_start(drawn, before, run.num_replicates)
    return replace(prepared, notes=(*prepared.notes, *said))
