"""Everything that is made once for a run, and checked before anything is written: data, model, trainer."""

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from lottery import config, data, masks, randomness, weights
from lottery.data import Splits, Streams
from lottery.enforcement import ENFORCEMENTS, Enforcement, given, tfmot
from lottery.errors import LotteryError
from lottery.models import networks, optimizers
from lottery.models.kerases import evaluating, is_compiled, is_keras, keras_of
from lottery.pipeline import environment, identity
from lottery.pruning import branches, criteria, gradients, mask_actions, plan, schedules
from lottery.pruning.plan import Plan
from lottery.runs import store, verification
from lottery.settings import COMPILED, GIVEN
from lottery.sparse.reading import Chain, NoNumba
from lottery.statistics import two_way
from lottery.training import compiling, engines, mirrored, precision
from lottery.training.course import Arrays, accuracy_among
from lottery.training.loop import NUM_EXAMPLES, example_batch, scaler
from lottery.training.settings import Train
from lottery.training.trainer import Trainer

OF_RATES = ("rate", "rates", "final_density")  # keys of ``[prune]`` that a schedule as a function replaces


@dataclass(frozen=True)
class Ingredients:
    """Objects that a caller passes where an experiment has names; see `lottery.run` and `lottery.api.Options`."""

    model: Callable[[], Any] | None = None
    data: Any = None
    criterion: criteria.ScoreFunction | None = None
    schedule: schedules.Density | None = None
    enforcement: Enforcement | None = None
    import_code: bool = False  # import the module of a network that the experiment names as "package.module:function"

    def are_observed(self, experiment: config.Experiment) -> bool:
        """Check if what these objects compute, and not only the values of the experiment, makes a run what it is."""
        own = any(one is not None for one in (self.model, self.criterion, self.enforcement))
        return own or not networks.is_built_in(experiment.model.name)


@dataclass(frozen=True)
class Prepared:
    """Everything a run needs to train."""

    experiment: config.Experiment  # completed with what the caller's objects decide
    build: Callable[[], Any]  # builds the model, with initial weights drawn anew
    data: Splits | Streams
    trainer: Trainer
    plan: Plan
    criterion: criteria.ScoreFunction
    notes: tuple[str, ...]  # sentences that a person should read
    # Observes the caller's model and functions: ``reported``, numbers that are the same on other machines but for
    # rounding, and ``example``, the types and shapes that they were observed on; empty without objects of the caller's.
    observe: Callable[[], dict[str, Any]] = dict
    # By replicate, every variable at step 0, where it is drawn already.
    initial: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    learners: dict[str, Any] = field(default_factory=dict)  # by rule, the trainers of scores; see `learning`


def open_run(
    stack: contextlib.ExitStack,
    path: Path,
    experiment: config.Experiment,
    ingredients: Ingredients,
    num_threads: int = 0,
    prepared: Prepared | None = None,
    transfer: config.Experiment | None = None,
) -> tuple[Prepared, int, list[str]]:
    """Open a run until `stack` closes, or begin it; nothing is written before everything is seen to fit.

    Args:
        num_threads: The number of threads for a new run; 0 to choose.
        transfer: The experiment to prepare instead, with other data.

    Returns:
        Everything the run needs, its number of threads, and sentences that a person should read.
    """
    existed = path.exists()
    if existed:
        stack.enter_context(store.opened(path, experiment))
        verification.refuse_damaged(path, experiment)
    recorded = store.read_environment(path).get("num_threads", num_threads)
    num_threads = environment.begin_threads(experiment, recorded)
    prepared = prepared or prepare(transfer or experiment, ingredients)
    if transfer:
        return prepared, num_threads, []
    if not existed:
        stack.enter_context(store.opened(path, experiment))
    observed = {} if store.read_environment(path) else prepared.observe()
    notes = environment.record(path, experiment, prepared.trainer.model, prepared.data, num_threads, observed)
    notes += identity.agreed(path, experiment, prepared.experiment, prepared.observe)
    return replace(prepared, experiment=experiment), num_threads, [*prepared.notes, *notes]


def check_complete(path: Path, experiment: config.Experiment) -> None:
    """Raise `LotteryError` if a complete run is damaged, or the file of its data has changed."""
    verification.refuse_damaged(path, experiment)
    if experiment.data.path and Path(experiment.data.path).exists():
        environment.check_data(path, data.load(experiment.data).fingerprint)


def prepare(experiment: config.Experiment, ingredients: Ingredients = Ingredients(), replicate: int = 1) -> Prepared:
    """Load the data, build and compile the model, and check that everything fits together.

    A model of the caller's own is built twice: for the trainer, and with the initial weights of the replicate that is
    trained first, which shows that the function builds new layers each time. A function as criterion is called on three
    more, and a model that is mirrored on devices is observed on one more.
    """
    allowed = [name for name, mode in ENFORCEMENTS.items() if mode.on_several_devices]
    if experiment.train.devices != "one" and experiment.run.enforcement not in (*allowed, GIVEN):
        raise LotteryError(
            f'run.enforcement: received "{experiment.run.enforcement}", allowed with train.devices = '
            f'"{experiment.train.devices}" are {", ".join(allowed)}.'
        )
    with mirrored.scope(mirrored.strategy_for(experiment.train.devices)):
        prepared = _prepared(with_functions(experiment, ingredients), ingredients)
    for name in experiment.run.controls:
        check_learns(prepared, name)
    if ingredients.are_observed(experiment):
        with randomness.put_back():
            prepared = _identified(prepared, ingredients)
    if ingredients.model is None and networks.is_built_in(experiment.model.name):
        return prepared
    drawn = build_model(prepared.build, _initial_seed(experiment, replicate))
    if {id(one) for one in drawn.variables} & {id(one) for one in prepared.trainer.model.variables}:
        raise LotteryError("model: the function uses the same model or layers twice; it must build new ones each time.")
    prepared.initial[replicate] = weights.read_state(drawn)
    other = weights.read(prepared.trainer.model)
    for name in experiment.run.controls:
        if "start weights" in branches.BRANCHES[name].needs_model:
            check_drawn_anew(prepared.initial[replicate], other, name)
    notes = _notes_on_start(prepared.initial[replicate], other, experiment.run.num_replicates)
    return replace(prepared, notes=(*prepared.notes, *notes))


def with_functions(experiment: config.Experiment, ingredients: Ingredients) -> config.Experiment:
    """Write into an experiment which functions the caller passes, and the densities of a schedule."""
    tables = experiment.model_dump(exclude_unset=True)  # what a caller has set is not what has a default
    for section, key in ("prune", "criterion"), ("run", "enforcement"):
        if getattr(ingredients, key) is not None:
            tables[section] = tables.get(section, {}) | {key: GIVEN}
        elif getattr(getattr(experiment, section), key) == GIVEN:
            raise LotteryError(
                f'{section}.{key} = "given" stands for a function passed to lottery.run(..., {key}=...); pass it '
                "again, in Python."
            )
    if ingredients.schedule is not None and experiment.prune.num_rounds:
        with evaluating("schedule: the function cannot give the densities"):
            densities = [float(ingredients.schedule(index)) for index in range(1, experiment.prune.num_rounds + 1)]
        own = {key: value for key, value in tables.get("prune", {}).items() if key not in OF_RATES}
        tables["prune"] = own | {"schedule": GIVEN, "densities": densities, "num_rounds": len(densities)}
    return config.validated(tables)


def _prepared(experiment: config.Experiment, ingredients: Ingredients) -> Prepared:
    model, passed = ingredients.model, ingredients.data
    loaded = data.load(experiment.data) if passed is None else data.given(passed, experiment.data)
    own_model = model is not None or not networks.is_built_in(experiment.model.name)
    build = precision.building(
        model or _builder(experiment, loaded, ingredients.import_code), experiment.train.precision
    )
    built = build_model(build, _initial_seed(experiment, 0))
    tfmot.refuse_wrapped(built)
    if own_model and isinstance(loaded, Splits) and loaded.train.x.dtype == np.uint8:
        probe = loaded.train.x[: compiling.fixed_batch(built) or NUM_EXAMPLES]
        loaded = data.as_integers(loaded) if compiling.reads_integers(built, probe) else loaded
    tables = experiment.model_dump()
    if passed is not None:
        validation = len(loaded.validation) if isinstance(loaded, Splits) else experiment.data.validation
        tables["data"] |= {"name": GIVEN, "fingerprint": loaded.fingerprint, "validation": validation}
    if own_model:
        tables["model"]["name"] = GIVEN if model is not None else experiment.model.name
        tables["train"] |= _compiled_with(built, experiment.train)
    experiment = config.validated(tables)

    strategy = mirrored.strategy_of(built)
    if strategy is not None and experiment.train.devices == "one":
        why = "The model is made under a strategy of its own"
        raise LotteryError(f'{why}; leave it out, and set train.devices = "mirrored".')
    if isinstance(loaded, Splits):
        scored = experiment.prune.num_examples if criteria.facts(experiment.prune.criterion).needs_network else None
        compiling.check_batches(built, loaded, experiment.train.batch_size, scored)
    inputs, schedule_step = example_batch(loaded, built)[0], compiling.step_variable()
    compiling.compile_model(built, experiment.train, inputs, schedule_step)
    if isinstance(loaded, Splits):
        compiling.check_data(built, loaded, experiment.train.batch_size, inputs)
    planned = plan.of_weights(experiment.prune, weights.read(built), plan.units_of(experiment.prune, built))
    planned.check()
    if own_model:
        criteria.facts(experiment.prune.criterion).check_model(built, inputs)
    mode = given(ingredients.enforcement) if ingredients.enforcement else ENFORCEMENTS[experiment.run.enforcement]
    if mode.refuses_layers:
        with mode.hold(built, masks.ones_like(weights.read(built))):
            pass
    at_zero = mask_actions.is_zero(experiment.prune.held_at)
    obstacle = None if mode.on_sparse_engine else f'run.enforcement is "{experiment.run.enforcement}"'
    obstacle = obstacle or (None if at_zero else f'prune.held_at is "{experiment.prune.held_at}"')
    trainer = Trainer(built, loaded, experiment.train, mode.hold, schedule_step, experiment.data.augment, obstacle)
    if not at_zero:
        _check_held_at(mode.hold)
        trainer.hold_at_start()
    # Everybody expects vectors to stay (biases, statistics, seeds); a tensor that stays is worth a line.
    skipped, variables = weights.unprunable(built).items(), weights.variables(built)
    unexpected = [(name, why) for name, why in skipped if len(variables[name].shape) > 1 and why != "a bias"]
    notes = [*getattr(loaded, "notes", ()), *(f"{name} is not pruned: {why}." for name, why in unexpected)]
    if own_model and model is None:
        module = experiment.model.name.partition(":")[0]
        notes.insert(0, f"{experiment.model.name} is imported from {networks.module_file(module)}.")
    if unrepeatable := trainer.loop.examined.unrepeatable:
        notes.append(
            f"The model draws random numbers by {', '.join(unrepeatable)}, which nothing can restore: "
            "stopped and resumed, the run will not give the same bits."
        )
    if isinstance(trainer.chain, Chain) and not engines.is_compiled():
        notes.append(
            "The sparse engine is compiled with the first sparse network: for some ten seconds, once on this machine."
        )
    if isinstance(trainer.chain, NoNumba):
        notes.append(
            f"Sparse networks train no faster than dense ones, because {trainer.chain}; pip install 'lottery[sparse]' "
            "adds the sparse engine."
        )
    if strategy is not None:
        notes += _notes_on_devices(built, strategy)
    if experiment.train.precision != precision.FULL and own_model:
        notes += _notes_on_outputs(built, inputs)
    criterion = ingredients.criterion or criteria.facts(experiment.prune.criterion).score
    return Prepared(experiment, build, loaded, trainer, planned, criterion, tuple(notes))


def _identified(prepared: Prepared, ingredients: Ingredients) -> Prepared:
    """Complete an experiment with digests of what the caller's model and functions compute; see `identity`."""
    experiment, example = prepared.experiment, example_batch(prepared.data, prepared.trainer.model)
    model, examined, opaque, numbers = prepared.trainer.model, prepared.trainer.loop.examined, False, []
    tables = experiment.model_dump()
    if mirrored.strategy_of(model) is not None:  # its steps have parts for each device
        model = build_model(prepared.build, _initial_seed(experiment, 0))
        compiling.compile_model(model, experiment.train, example[0], compiling.step_variable())
        examined = compiling.examine(model, example)
    if ingredients.model is not None or not networks.is_built_in(experiment.model.name):
        tables["model"]["fingerprint"], opaque = identity.of_model(model, examined, example)
    if ingredients.enforcement is not None:
        tables["run"]["fingerprint"] = identity.of_enforcement(model, ingredients.enforcement, example)
    if ingredients.criterion is not None:
        network = functools.partial(scoring_network, prepared, 0)
        tables["prune"]["fingerprint"], numbers = identity.of_criterion(experiment, ingredients.criterion, network)

    observe = functools.cache(functools.partial(identity.observed, examined, example, opaque, numbers))
    return replace(prepared, experiment=config.validated(tables), observe=observe)


def _check_held_at(enforce: Enforcement) -> None:
    """Raise `LotteryError` if a function of the caller's takes no held values."""
    try:
        inspect.signature(enforce).bind(None, {}, {})
    except TypeError:
        raise LotteryError(
            "run.enforcement: the function takes no held values, which prune.held_at needs; give it a third argument, "
            "as lottery.enforcement.constraint has."
        ) from None


def too_fine(prepared: Prepared, tolerance: float | None) -> list[str]:
    """Warn if a tolerance of accuracy is finer than one test example. Of a stream the number of examples is unknown."""
    model, test_logs = prepared.trainer.model, prepared.trainer.loop.examined.test_logs
    measured = accuracy_among(test_logs or tuple(model.get_metrics_result()))
    num = len(prepared.data.test) if measured and isinstance(prepared.data, Splits) else 0
    return two_way.too_fine(tolerance, num)


def build_model(build: Callable[[], Any], seed: int) -> Any:
    """Build a model with initial weights from a seed; raise `LotteryError` if that fails or it is no Keras model."""
    import keras

    if hasattr(build, "trainable_variables"):
        raise LotteryError(
            "model: received a model, allowed is a function that builds a new one each time it is called."
        )
    if not callable(build):
        raise LotteryError(
            f"model: received {type(build).__name__}, allowed is a function without arguments that builds a Keras "
            'model; a network by name belongs in the experiment: {"model": {"name": "lenet_300_100"}}.'
        )
    keras.utils.set_random_seed(seed)
    is_seeded = "tf_keras" in sys.modules  # it takes long to import, and few models need it
    if is_seeded:
        import tf_keras

        tf_keras.utils.set_random_seed(seed)  # it draws initial weights from a generator of its own
    try:
        model = build()
        if not is_seeded and "tf_keras" in sys.modules:  # this function was the first to import it
            return build_model(build, seed)
    except LotteryError:
        raise
    except Exception as error:  # a user's function may raise anything
        name = getattr(build, "__name__", "the model's function")
        raise LotteryError(f"{name}() could not build the model: {type(error).__name__}: {error}") from error
    keras_of(model)
    for name, variable in weights.variables(model).items():
        if "bfloat16" in str(variable.dtype):
            raise LotteryError(f"{name} is of type bfloat16, which NumPy cannot hold; use mixed_bfloat16 or float32.")
    return model


def initial_state(prepared: Prepared, replicate: int) -> dict[str, np.ndarray]:
    """Draw every variable of a replicate at step 0."""
    if replicate not in prepared.initial:
        model = build_model(prepared.build, _initial_seed(prepared.experiment, replicate))
        prepared.initial[replicate] = weights.read_state(model)
    return prepared.initial[replicate]


def check_learns(prepared: Prepared, branch: str) -> None:
    """Raise `LotteryError` if a branch learns masks, which it cannot learn for the model of a run."""
    if branch not in branches.BRANCHES or not branches.BRANCHES[branch].learns:
        return
    model, devices = prepared.trainer.model, prepared.experiment.train.devices
    if keras_of(model).__name__ == "tf_keras":
        why = f"the model {model.name!r} is a tf_keras model"
        raise LotteryError(f"{branch} learns masks of Keras 3 models alone, and {why}; leave it out.")
    if devices != "one":
        raise LotteryError(f'{branch} learns masks on one device, and train.devices is "{devices}"; leave it out.')


def check_drawn_anew(drawn: Arrays, before: Arrays, branch: str) -> None:
    """Raise `LotteryError` if two sets of initial weights, from two seeds, are the same."""
    if all(np.array_equal(drawn[name], before[name]) for name in before):
        raise LotteryError(
            f"The model is built with the same initial weights each time, so {branch} would be the ticket itself; "
            "leave it out."
        )


def _notes_on_start(drawn: Arrays, before: Arrays, num_replicates: int) -> list[str]:
    """Say which initial weights, from two seeds, are the same, as those of a pretrained model are."""
    same = [name for name in before if np.array_equal(drawn[name], before[name])]
    if len(same) == len(before):
        return [
            "The model is built with the same initial weights each time, so the replicates differ only in the order of "
            "the batches, and their spread says nothing about other initial weights."
        ][: num_replicates - 1]
    if not same:
        return []
    return [
        f"The model is built with the same initial values of {', '.join(same)} each time; random_reinit leaves them as "
        "they are, and draws the others anew."
    ]


def scoring_network(prepared: Prepared, replicate: int) -> criteria.ScoredModel:
    """Make a network without enforcement, and a batch of the replicate's, for criteria that need the network.

    The batch has as many examples of one label as of another, as far as there are so many; of a stream, it is the
    beginning.
    """
    experiment, data = prepared.experiment, prepared.data
    words = (experiment.run.seed, replicate, randomness.SCORES)
    with precision.left_aside():  # gradients in half precision would be zero where they are small
        model = build_model(prepared.build, _initial_seed(experiment, replicate))
    compiling.compile_model(model, experiment.train, example_batch(data, model)[0])
    if isinstance(data, Splits):
        wanted = min(experiment.prune.num_examples, len(data.train))
        (in_order,) = randomness.batches(len(data.train), len(data.train), words)(1)
        positions = _balanced(np.asarray(data.train.y)[in_order], in_order, wanted)
        x, y = scaler(data)(data.train.x[positions]), data.train.y[positions]
    else:
        import keras

        keras.utils.set_random_seed(randomness.seed_for(*words))
        # Leaves out weights of examples.
        x, y, *_ = next(iter(data.train().unbatch().batch(experiment.prune.num_examples)))
    return criteria.ScoredModel(model, x, y, prepared.build)


def dense_gradients(prepared: Prepared) -> Callable[[int, int, Arrays], dict[str, np.ndarray]]:
    """Make a function from a replicate, a step and every variable there to gradients of the loss by prunable weight.

    They are of the batch that follows the step, as it is stored, and of masked entries too: the network is built
    without enforcement. Of a stream, the batch is the first with a seed from the step.
    """
    experiment, data = prepared.experiment, prepared.data
    with precision.left_aside():
        model = build_model(prepared.build, _initial_seed(experiment, 0))
    compiling.compile_model(model, experiment.train, example_batch(data, model)[0])
    compute, scaled = gradients.loss_gradient(model, list(prepared.trainer.masks)), None
    if isinstance(data, Splits):
        scaled = scaler(data)

    def of(replicate: int, step: int, state: Arrays) -> dict[str, np.ndarray]:
        words = (experiment.run.seed, replicate, randomness.BATCHES)
        if isinstance(data, Splits):
            assert scaled is not None
            (positions,) = randomness.batches(len(data.train), experiment.train.batch_size, words, step)(1)
            x, y = scaled(data.train.x[positions]), data.train.y[positions]
        else:
            import keras

            keras.utils.set_random_seed(randomness.seed_for(*words, step))
            x, y, *_ = next(iter(data.train()))  # leaves out weights of examples
        weights.assign(model, state)
        return compute(x, y)

    return of


def _balanced(labels: np.ndarray, positions: np.ndarray, num: int) -> np.ndarray:
    """Choose positions in turns: the first of each label, then the second of each, until there are `num`."""
    if labels.ndim > 2:  # a label for each pixel, say: no classes of examples
        return positions[:num]
    rows = labels.reshape(len(labels), -1)
    _, classes = np.unique(rows, axis=0, return_inverse=True)
    by_class = np.argsort(classes.reshape(-1), kind="stable")
    counts = np.bincount(classes.reshape(-1))
    turns = np.empty(len(labels), dtype=np.int64)
    turns[by_class] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return positions[np.argsort(turns, kind="stable")[:num]]


def _notes_on_devices(model: Any, strategy: Any) -> list[str]:
    num = strategy.num_replicas_in_sync
    if num == 1:
        return ["There is one device, so the network is trained on that one, and train.devices changes nothing else."]
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
    """Return the ``[train]`` values of a model that comes compiled: the experiment's optimizer is not used."""
    if not is_compiled(model):
        return {}
    own = {"optimizer", "learning_rate", "warmup_steps", "drop_at"} & settings.model_fields_set
    if own and settings.optimizer != COMPILED:
        raise LotteryError(
            f"The model is compiled already, so train.{' and train.'.join(sorted(own))} cannot be set; leave it out, "
            "or set it where you compile the model."
        )
    return {"optimizer": COMPILED, "learning_rate": optimizers.learning_rate(model)}


def _builder(experiment: config.Experiment, loaded: Splits | Streams, import_code: bool) -> Callable[[], Any]:
    name = experiment.model.name
    if name == GIVEN:
        raise LotteryError(
            'model.name = "given" stands for a function passed to lottery.run(..., model=...); pass it again, in '
            "Python."
        )
    if not networks.is_built_in(name):
        return networks.builder(name, import_code=import_code)
    mode = ENFORCEMENTS.get(experiment.run.enforcement)
    library = "tf_keras" if mode is not None and mode.tf_keras_only else "keras"
    if isinstance(loaded, Streams):
        raise LotteryError(
            f"model: a tf.data.Dataset does not state its number of classes, so {name!r} cannot be built; pass model=."
        )
    labels = loaded.train.y
    highest = int(labels.max()) if labels.dtype.kind == "i" and labels.ndim == 1 else 0
    if not 0 < highest < max(len(labels), 1000) or labels.min() < 0:
        raise LotteryError(
            f"The training labels go from {labels.min()} to {labels.max()} in {len(labels)} examples; allowed is one "
            "class for each example, counted from 0."
        )
    return networks.builder(name, loaded.train.x.shape[1:], highest + 1, library)


def _initial_seed(experiment: config.Experiment, replicate: int) -> int:
    return randomness.seed_for(experiment.run.seed, replicate, randomness.INITIALISATION)
