"""Everything that is made once for a run, and checked, before anything is written: data, model, compiled loop."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lottery import config, data, enforcement, masks, randomness, weights
from lottery.data import Splits, Streams
from lottery.errors import LotteryError
from lottery.models import fingerprint, networks
from lottery.models.library import is_compiled, is_keras, keras_of
from lottery.pruning import branches, criteria, plan
from lottery.settings import COMPILED, GIVEN
from lottery.training import compiling, mirrored, precision
from lottery.training.loop import Loop, compile_loop, example_batch, scaler
from lottery.training.settings import Train


@dataclass(frozen=True)
class Prepared:
    """What a run needs.

    Attributes:
        experiment: The experiment, with what the caller's model and data decide filled in.
        build: Builds the model afresh, with initial weights by chance.
        data: What it is trained on.
        loop: The compiled loop, with the one model that all replicates train.
        criterion: What scores weights.
        notes: What a person should know, in sentences.
    """

    experiment: config.Experiment
    build: Callable[[], Any]
    data: Splits | Streams
    loop: Loop
    criterion: criteria.Criterion
    notes: tuple[str, ...]


def prepare(
    experiment: config.Experiment,
    model: Callable[[], Any] | None = None,
    given: Any = None,
    criterion: criteria.Criterion | None = None,
) -> Prepared:
    """Load the data, build and compile the model, and check that they and the experiment fit together.

    Args:
        experiment: The experiment.
        model: A function that builds the model, instead of the one that the experiment names.
        given: Data, instead of those that the experiment names; see `data.given`.
        criterion: A function, instead of the criterion that the experiment names.

    Returns:
        Everything that is needed to train.

    Raises:
        LotteryError: They do not fit.
    """
    _check_strategy(experiment)
    with mirrored.scope(mirrored.strategy_for(experiment.run.strategy)):
        return _prepared(experiment, model, given, criterion)


def _prepared(
    experiment: config.Experiment,
    model: Callable[[], Any] | None,
    given: Any,
    criterion: criteria.Criterion | None,
) -> Prepared:
    loaded = data.load(experiment.data) if given is None else data.given(given, experiment.data)
    own_model = model is not None or not networks.is_built_in(experiment.model.name)
    build = precision.building(model or _builder(experiment, loaded), experiment.train.precision)
    built = build_model(build, randomness.seed_for(experiment.run.seed, 0, randomness.INITIALISATION))
    if own_model:
        other = build_model(build, 0)
        twice = {id(variable) for one in (built, other) for variable in one.variables}
        if len(twice) < 2 * len(built.variables):
            raise LotteryError(
                "model: the function uses the same model or layers twice; it must build new ones each time."
            )
        for name in experiment.run.controls:
            if "start weights" in branches.BRANCHES[name].needs_model:
                check_drawn_anew(weights.read(built), weights.read(other), name)
        built = build_model(build, randomness.seed_for(experiment.run.seed, 0, randomness.INITIALISATION))
    tables = experiment.model_dump()
    if given is not None:
        tables["data"] |= {"name": GIVEN, "fingerprint": loaded.fingerprint}
        tables["data"]["validation"] = (
            len(loaded.validation) if isinstance(loaded, Splits) else experiment.data.validation
        )
    if own_model:
        tables["model"]["fingerprint"] = fingerprint.of_model(built)
        tables["model"]["name"] = GIVEN if model is not None else experiment.model.name
        tables["train"] |= _compiled_with(built, experiment.train)
    if criterion is not None:
        tables["prune"] |= {"criterion": GIVEN, "fingerprint": fingerprint.of_function(criterion)}
    elif experiment.prune.criterion == GIVEN:
        raise LotteryError(
            'prune.criterion = "given" stands for a function passed to lottery.run(..., criterion=...); pass it again, '
            "in Python."
        )
    experiment = config.Experiment.model_validate(tables)
    criterion = criterion or criteria.CRITERIA[experiment.prune.criterion]

    strategy = mirrored.strategy_of(built)
    if strategy is not None and experiment.run.strategy == "none":
        raise LotteryError(
            'The model is made under a strategy of its own; leave it out, and set run.strategy = "mirrored".'
        )
    inputs, schedule_step = example_batch(loaded)[0], compiling.step_variable()
    compiling.compile_model(built, experiment.train, inputs, schedule_step)
    if isinstance(loaded, Splits):
        compiling.check_data(built, loaded, experiment.train.batch_size, inputs)
    prunable = weights.read(built)
    plan.check_rounds(experiment.prune, {name: value.shape for name, value in prunable.items()})
    held = enforcement.mask_variables(masks.ones_like(prunable))
    loop = compile_loop(built, loaded, experiment.train, held, schedule_step, experiment.data.augment)
    # That vectors stay (biases, statistics, seeds) is what everybody expects; a tensor that stays is worth a line.
    shapes = {name: variable.shape for name, variable in weights.variables(built).items()}
    skipped = {
        name: why for name, why in weights.unprunable(built).items() if len(shapes[name]) > 1 and why != "a bias"
    }
    notes = [f"{name} is not pruned: {why}." for name, why in skipped.items()]
    if loop.examined.unrepeatable:
        notes.append(
            f"The model draws random numbers by {', '.join(loop.examined.unrepeatable)}, which nothing can restore: "
            "stopped and resumed, the run will not give the same bits."
        )
    if strategy is not None:
        notes += _notes_on_devices(built, strategy)
    if experiment.train.precision != precision.FULL and own_model:
        notes += _notes_on_outputs(built, inputs)
    return Prepared(experiment, build, loaded, loop, criterion, tuple(notes))


def build_model(build: Callable[[], Any], seed: int) -> Any:
    """Build a model with initial weights from a seed.

    Raises:
        LotteryError: The function cannot build one, or it is not a Keras model that is built.
    """
    import keras

    if hasattr(build, "trainable_variables"):
        raise LotteryError(
            "model: received a model, allowed is a function that builds a new one each time it is called."
        )

    def seeded(library: Any) -> Any:
        library.utils.set_random_seed(seed)
        try:
            return build()
        except LotteryError:
            raise
        except Exception as error:  # a user's function may raise anything
            name = getattr(build, "__name__", "the model's function")
            raise LotteryError(f"{name}() could not build the model: {type(error).__name__}: {error}") from error

    model = seeded(keras)
    library = keras_of(model)
    if library is not keras:  # tf_keras draws initial weights from a generator of its own
        model = seeded(library)
    for name, variable in weights.variables(model).items():
        if "bfloat16" in str(variable.dtype):
            raise LotteryError(f"{name} is of type bfloat16, which NumPy cannot hold; use mixed_bfloat16 or float32.")
    return model


def check_drawn_anew(drawn: Mapping[str, np.ndarray], before: Mapping[str, np.ndarray], branch: str) -> None:
    """Raise `LotteryError` if two sets of initial weights, from two seeds, are the same."""
    if all(np.array_equal(drawn[name], before[name]) for name in before):
        raise LotteryError(
            f"The model is built with the same initial weights each time, so {branch} would be the ticket itself; "
            "leave it out."
        )


def scoring_network(prepared: Prepared, replicate: int) -> criteria.Network:
    """A network that nothing holds, and a batch, for criteria that look at gradients.

    The batch is the first `prune.num_examples` examples of the training part in an order of the replicate's own.
    """
    experiment = prepared.experiment
    with precision.left_aside():  # gradients in half precision would be zero where they are small
        model = build_model(
            prepared.build, randomness.seed_for(experiment.run.seed, replicate, randomness.INITIALISATION)
        )
    compiling.compile_model(model, experiment.train, example_batch(prepared.data)[0])
    wanted = experiment.prune.num_examples
    if isinstance(prepared.data, Splits):
        wanted = min(wanted, len(prepared.data.train))
        words = (experiment.run.seed, replicate, randomness.SCORES)
        (positions,) = randomness.batches(len(prepared.data.train), wanted, words)(1)
        x, y = prepared.data.train.x[positions], prepared.data.train.y[positions]
        return criteria.Network(model, scaler(prepared.data)(x), y, prepared.build)
    import keras

    keras.utils.set_random_seed(randomness.seed_for(experiment.run.seed, replicate, randomness.SCORES))
    x, y, *_ = next(iter(prepared.data.train().unbatch().batch(wanted)))  # weights of examples are left aside
    return criteria.Network(model, x, y, prepared.build)


def ends_of_epochs(prepared: Prepared) -> list[int]:
    """The steps after which every example was seen once more."""
    settings = prepared.experiment.train
    if not isinstance(prepared.data, Splits):
        raise LotteryError("early_bird needs data of a known length, as arrays; a tf.data.Dataset has none.")
    size = len(prepared.data.train)
    ends = [
        -(-size * epoch // settings.batch_size)
        for epoch in range(1, settings.num_steps * settings.batch_size // size + 1)
    ]
    return [step for step in ends if step <= settings.num_steps]


def _check_strategy(experiment: config.Experiment) -> None:
    mode = experiment.run.enforcement
    if experiment.run.strategy != "none" and mode in ("reparameterization", "tfmot"):
        raise LotteryError(
            f'run.enforcement: received "{mode}", allowed with run.strategy = "{experiment.run.strategy}" are '
            '"constraint", "gradient" and "callback".'
        )


def _notes_on_devices(model: Any, strategy: Any) -> list[str]:
    num = strategy.num_replicas_in_sync
    if num == 1:
        return ["There is one device, so the network is trained on that one, and run.strategy changes nothing else."]
    devices = ", ".join(one.rpartition("device:")[2] for one in strategy.extended.worker_devices)
    notes = [f"The network is mirrored on {num} devices: {devices}."]
    if not is_keras(type(model).train_step):
        notes.append(
            "The model has a train_step of its own, which each device calls with its share of a batch; the gradients "
            f"are added up, so its loss must be divided by {num}, as Keras' own losses are."
        )
    return notes


def _notes_on_outputs(model: Any, inputs: Any) -> list[str]:
    import tensorflow as tf

    halves = {one.dtype.name for one in tf.nest.flatten(model(inputs, training=False))} - {"float32", "float64"}
    return [
        f"The outputs of the model are of type {one}, which rounds what the loss is computed from; give its last "
        'layer dtype="float32".'
        for one in sorted(halves)
    ]


def _compiled_with(model: Any, settings: Train) -> Mapping[str, Any]:
    """What the record says of a model that came compiled: the experiment's optimiser is not used."""
    if not is_compiled(model):
        return {}
    own = {"optimizer", "learning_rate", "warmup_steps", "drop_at"} & settings.model_fields_set
    if own and settings.optimizer != COMPILED:
        raise LotteryError(
            f"The model comes compiled, so train.{' and train.'.join(sorted(own))} cannot be set; leave it out, or "
            "compile the model with what you want."
        )
    rate = model.optimizer.learning_rate
    rate = np.asarray(rate(0) if callable(rate) else rate)
    return {"optimizer": COMPILED, "learning_rate": float(rate)}


def _builder(experiment: config.Experiment, loaded: Splits | Streams) -> Callable[[], Any]:
    name = experiment.model.name
    if name == GIVEN:
        raise LotteryError(
            'model.name = "given" stands for a function passed to lottery.run(..., model=...); pass it again, in '
            "Python."
        )
    if not networks.is_built_in(name):
        return networks.builder(name, (), 0)
    # tfmot holds masks in tf_keras models only.
    library = "tf_keras" if experiment.run.enforcement == "tfmot" else "keras"
    if isinstance(loaded, Streams):
        raise LotteryError(
            f"model: data sets say nothing of the number of classes, so {name!r} cannot be built; pass model=."
        )
    labels = loaded.train.y
    highest = int(labels.max()) if labels.dtype.kind == "i" and labels.ndim == 1 else 0
    if not 0 < highest < max(len(labels), 1000) or labels.min() < 0:
        raise LotteryError(
            f"The training labels go from {labels.min()} to {labels.max()} in {len(labels)} examples; allowed is one "
            "class for each example, counted from 0."
        )
    return networks.builder(name, loaded.train.x.shape[1:], highest + 1, library)
