"""What a caller's objects decide is written into the experiment, which so says all that makes a run what it is.

The experiment was validated when it was loaded. The values written here are ours, or are checked where they come from,
so that its table is not validated again; the densities of a schedule are the exception.
"""

import math
from collections.abc import Iterator
from typing import Any

from lottery import config
from lottery.data import Splits, Streams
from lottery.errors import LotteryError
from lottery.models import optimizers
from lottery.models.kerases import evaluating, is_compiled
from lottery.pipeline.prepared import Ingredients
from lottery.settings import COMPILED, GIVEN
from lottery.training.settings import Train

# Keys of ``[prune]`` that a schedule as a function replaces.
OF_RATES = ("rate", "rates", "final_density")


def with_functions(experiment: config.Experiment, ingredients: Ingredients) -> config.Experiment:
    """Write down which functions the caller passes, and the densities of a schedule."""
    for section, key in ("prune", "criterion"), ("run", "enforcement"):
        if getattr(ingredients, key) is not None:
            experiment = config.with_values(experiment, section, {key: GIVEN})
        elif getattr(getattr(experiment, section), key) == GIVEN:
            raise LotteryError(
                f'{section}.{key} = "given" stands for a function passed to lottery.run(..., {key}=...); pass it '
                "again, in Python."
            )
    if ingredients.schedule is None or not experiment.prune.num_rounds:
        return experiment
    with evaluating("schedule: the function cannot give the densities"):
        densities = [float(ingredients.schedule(number)) for number in range(1, experiment.prune.num_rounds + 1)]
    if experiment.prune.schedule == GIVEN and [*experiment.prune.densities] == densities:  # they are written already
        return experiment
    tables = experiment.model_dump(exclude_unset=True)  # what a caller has set is not what has a default
    prune = {key: value for key, value in tables.get("prune", {}).items() if key not in OF_RATES}
    prune |= {"schedule": GIVEN, "densities": densities, "num_rounds": len(densities)}
    # A function may return anything, so its densities have to fall, as those of a file.
    return config.validated(tables | {"prune": prune})


def with_data(experiment: config.Experiment, data: Splits | Streams) -> config.Experiment:
    """Write down the data that the caller passes."""
    values: dict[str, Any] = {"name": GIVEN, "fingerprint": data.fingerprint}
    if isinstance(data, Splits):
        values["validation"] = len(data.validation)
    return config.with_values(experiment, "data", values)


def with_model(experiment: config.Experiment, model: Any, ingredients: Ingredients) -> config.Experiment:
    """Write down the caller's model, and that it comes compiled: then the experiment's optimizer is not used."""
    if ingredients.model is not None:
        experiment = config.with_values(experiment, "model", {"name": GIVEN})
    if not is_compiled(model):
        return experiment
    _check_sets_no_optimizer(experiment.train)
    learning_rate = optimizers.learning_rate(model)
    for rate in _rates(learning_rate):
        if not 0 <= rate < math.inf:
            raise LotteryError(
                f"train.learning_rate: the model is compiled with {rate}, allowed is a number from 0, and finite."
            )
    return config.with_values(experiment, "train", {"optimizer": COMPILED, "learning_rate": learning_rate})


def _check_sets_no_optimizer(settings: Train) -> None:
    own = {"optimizer", "learning_rate", "warmup_steps", "drop_at"} & settings.model_fields_set
    if own and settings.optimizer != COMPILED:
        raise LotteryError(
            f"The model is compiled already, so train.{' and train.'.join(sorted(own))} cannot be set; leave it out, "
            "or set it where you compile the model."
        )


def _rates(learning_rate: float | dict[str, Any]) -> Iterator[float]:
    """Iterate over the numbers of a learning rate; that of a MultiOptimizer is a table of several."""
    if not isinstance(learning_rate, dict):
        yield learning_rate
        return
    yield from (rate for name, rate in learning_rate.items() if name != "name")
