"""What a run is made of: objects that a caller passes, what they decide, and everything that is made once to train.

What a caller's objects decide is written into the experiment, which so says all that makes a run what it is.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lottery import config
from lottery.data import Splits, Streams
from lottery.errors import LotteryError
from lottery.models import networks, optimizers
from lottery.models.kerases import evaluating, is_compiled, keras_of
from lottery.pruning import branches
from lottery.pruning.criteria import ScoreFunction
from lottery.pruning.plan import Plan
from lottery.pruning.schedules import Density
from lottery.settings import COMPILED, GIVEN
from lottery.training.records import accuracy_among
from lottery.training.settings import OF_COMPILING

if TYPE_CHECKING:
    from lottery.enforcement.modes import Enforcement
    from lottery.training.trainer import Trainer

# Keys of ``[prune]`` that a schedule as a function replaces.
OF_RATES = ("rate", "rates", "final_density")


@dataclass(frozen=True)
class Ingredients:
    """Objects that a caller passes where an experiment has names; see `lottery.run` and `lottery.api.Options`."""

    model: Callable[[], Any] | None = None
    data: Any = None
    criterion: ScoreFunction | None = None
    schedule: Density | None = None
    enforcement: "Enforcement | None" = None
    import_code: bool = False  # import the module of a network that the experiment names as "package.module:function"

    @property
    def are_passed(self) -> bool:
        """Return True if anything is passed that no file can hold."""
        passed = (self.model, self.data, self.criterion, self.schedule, self.enforcement)
        return any(each is not None for each in passed)

    def have_own_model(self, experiment: config.Experiment) -> bool:
        """Return True if the model is the caller's, passed or named, and not one that comes with the package."""
        return self.model is not None or not networks.is_built_in(experiment.model.name)

    def are_observed(self, experiment: config.Experiment) -> bool:
        """Return True if what these objects compute, and not only the experiment's values, makes a run what it is."""
        return self.have_own_model(experiment) or self.criterion is not None or self.enforcement is not None


@dataclass(frozen=True)
class Prepared:
    """Everything a run needs to train."""

    experiment: config.Experiment  # completed with what the caller's objects decide
    build: Callable[[], Any]  # builds the model, with initial weights drawn anew
    data: Splits | Streams
    trainer: "Trainer"
    plan: Plan
    criterion: ScoreFunction
    notes: tuple[str, ...] = ()  # sentences that a person should read before training
    cautions: tuple[str, ...] = ()  # those of them that stand before the verdict too; see `checks.cautions`
    # Observes the caller's model and functions: ``reported``, numbers that are the same on other machines but for
    # rounding, and ``example``, the types and shapes that they were observed on; empty without objects of the caller's.
    observe: Callable[[], dict[str, Any]] = dict
    # By replicate, every variable at step 0, where it is drawn already.
    initial: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    learner: list[Any] = field(default_factory=list)  # the trainer of scores, once it is made; see `mask_training`

    @property
    def accuracy(self) -> str | None:
        """The name of what the model reports as its accuracy; None if it measures none."""
        return accuracy_among(self.trainer.loop.examined.test_logs.names)

    def check_learns(self, branch: str) -> None:
        """Raise `LotteryError` if a branch learns masks, which it cannot learn for the model of this run."""
        known = branches.BRANCHES.get(branch)
        if known is None or not known.learns:
            return
        model, settings = self.trainer.model, self.experiment.train
        if keras_of(model).__name__ == "tf_keras":
            why = f"the model {model.name!r} is a tf_keras model"
            raise LotteryError(f"{branch} learns masks only of Keras 3 models, but {why}; leave out {branch}.")
        if settings.on_several_devices:
            raise LotteryError(
                f'{branch} learns masks only on one device, but train.devices is "{settings.devices}"; leave out '
                f"{branch}."
            )


def with_functions(experiment: config.Experiment, ingredients: Ingredients) -> config.Experiment:
    """Write down which functions the caller passes, and the densities of a schedule."""
    for section, key in ("prune", "criterion"), ("run", "enforcement"):
        if getattr(ingredients, key) is not None:
            experiment = config.with_values(experiment, section, {key: GIVEN})
        # No file holds a function, so a stored experiment can only say that there was one.
        elif getattr(getattr(experiment, section), key) == GIVEN:
            raise LotteryError(
                f'{section}.{key} = "given" stands for a function passed to lottery.run(..., {key}=...); pass it '
                "again, in Python."
            )
    if ingredients.schedule is None or not experiment.prune.num_rounds:
        return experiment
    with evaluating("schedule: the function cannot give the densities"):
        densities = [float(ingredients.schedule(number)) for number in range(1, experiment.prune.num_rounds + 1)]
    # A run that resumes has them already, and must stay what it is, to the digest.
    if experiment.prune.schedule == GIVEN and [*experiment.prune.densities] == densities:
        return experiment
    # Only what a caller has set, so that defaults can still be told from it.
    tables = experiment.model_dump(exclude_unset=True)
    prune = {key: value for key, value in tables.get("prune", {}).items() if key not in OF_RATES}
    prune |= {"schedule": GIVEN, "densities": densities, "num_rounds": len(densities)}
    # A function may return anything, so its densities have to fall, as those of a file. All other values that are
    # written into an experiment are ours, or are checked where they come from, and are not validated again.
    return config.validated(tables | {"prune": prune})


def with_model(experiment: config.Experiment, model: Any, is_passed: bool) -> config.Experiment:
    """Write down the caller's model, and that it comes compiled: then the experiment's optimizer is not used."""
    if is_passed:
        experiment = config.with_values(experiment, "model", {"name": GIVEN})
    if not is_compiled(model):
        return experiment
    settings = experiment.train
    own = OF_COMPILING & settings.model_fields_set
    # The values that are set would have no effect, and a record would have them all the same.
    if own and settings.optimizer != COMPILED:
        raise LotteryError(
            f"The model is compiled already: leave out train.{' and train.'.join(sorted(own))}, and choose the "
            "optimizer and its learning rate where you compile the model."
        )
    learning_rate = optimizers.learning_rate(model)
    rates = learning_rate if isinstance(learning_rate, dict) else {"": learning_rate}  # of a MultiOptimizer, by name
    for key, rate in rates.items():
        if key != "name" and not 0 <= rate < math.inf:
            raise LotteryError(
                f"The learning rate that the model is compiled with must be a finite number from 0, not {rate}."
            )
    return config.with_values(experiment, "train", {"optimizer": COMPILED, "learning_rate": learning_rate})


def without_functions(experiment: config.Experiment) -> config.Experiment:
    """Put names in place of functions that play no part in an evaluation, which takes place on one device."""
    experiment = config.with_values(experiment, "train", {"devices": "one"})
    if experiment.run.enforcement == GIVEN:
        experiment = config.with_values(experiment, "run", {"enforcement": "constraint", "fingerprint": ""})
    if experiment.prune.criterion == GIVEN:
        experiment = config.with_values(experiment, "prune", {"criterion": "magnitude", "fingerprint": ""})
    return experiment


def with_other_data(
    experiment: config.Experiment, overrides: Mapping[str, Any], passed: Any = None
) -> config.Experiment:
    """Make the experiment of a transfer: that of the run, with the other data and what `overrides` changes.

    Data that are `passed` are used whole, whatever the run takes of its own.
    """
    tables = experiment.model_dump(mode="json")
    if "data" in overrides:
        tables["data"] |= {"path": "", "fingerprint": ""}
    if passed is not None:
        tables["data"] |= {"name": GIVEN, "num_examples": 0}
        # Three parts or six arrays bring validation examples, beside which a number of the run's would contradict.
        if isinstance(passed, tuple | list) and len(passed) in (3, 6):
            del tables["data"]["validation"]
    return config.validated(config.merged(tables, overrides))


def with_data(experiment: config.Experiment, data: Splits | Streams) -> config.Experiment:
    """Write down the data that the caller passes."""
    values: dict[str, Any] = {"name": GIVEN, "fingerprint": data.fingerprint}
    if isinstance(data, Splits):
        values["validation"] = len(data.validation)
    return config.with_values(experiment, "data", values)
