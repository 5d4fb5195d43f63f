"""What the caller's own model, enforcement and criterion compute, as digests, observed before the run begins.

A digest of what is observed is part of the experiment, and so decides the name of the run's folder. It is exact: it
knows the operations and constants of a training step and of an evaluation, the variables and their initial values.
Other versions of TensorFlow or Keras may build the same model from other operations. There a few numbers that the first
steps report are compared instead, up to rounding, and a sentence says so; see `opening.located`.
"""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from lottery import config, masks, randomness, weights
from lottery.enforcement.modes import Enforcement, mask_variables
from lottery.errors import LotteryError
from lottery.models import fingerprint
from lottery.models.kerases import evaluating, tf
from lottery.pipeline import building
from lottery.pipeline.prepared import Ingredients, Prepared
from lottery.training import compiling, examining, mirrored, schedules
from lottery.training.examining import Examined
from lottery.training.examples import example_batch
from lottery.training.loop import gains_on_cpu


# Models are built and criteria called, which set and draw from the global generators.
@randomness.put_back()
def identified(prepared: Prepared, ingredients: Ingredients) -> Prepared:
    """Complete an experiment with digests of what the caller's model and functions compute."""
    experiment, model = prepared.experiment, prepared.trainer.model
    example = example_batch(prepared.data, model)
    examined = prepared.trainer.loop.examined
    # Its steps have parts for each device, so another model, without a strategy, is observed.
    if mirrored.strategy_of(model) is not None:
        model = building.build_model(prepared.build, building.initial_seed(experiment, 0))
        compiling.compile_model(model, experiment.train, example[0], schedules.step_variable())
        examined = examining.examine(model, example)
    digests: dict[str, str] = {}
    opaque = False
    numbers: list[float] = []
    if ingredients.have_own_model(experiment):
        digests["model"], opaque = of_model(model, examined, example)
    if ingredients.enforcement is not None:
        digests["run"] = of_enforcement(model, ingredients.enforcement, example)
    if ingredients.criterion is not None:
        digests["prune"], numbers = of_criterion(prepared)
    for section, digest in digests.items():
        experiment = config.with_values(experiment, section, {"fingerprint": digest})
    # It takes steps, which only a new run and one that started elsewhere need.
    observe = functools.cache(functools.partial(observed, examined, example, opaque, numbers))
    return replace(prepared, experiment=experiment, observe=observe)


def of_model(model: Any, examined: Examined, example: Any) -> tuple[str, bool]:
    """Compute the digest of a compiled model: variables, initial weights, a training step, an evaluation and the end.

    It is also returned if a step has parts that its graph does not show: calls of Python, and tables.
    """
    steps = [examined.step, *examining.traced_evaluation(model, example)]
    # What a graph does not show counts by what the first steps report.
    opaque = any(fingerprint.is_opaque(step) for step in steps)
    digest = fingerprint.of_parts(
        fingerprint.of_variables(model),
        weights.fingerprint(weights.read_state(model)),
        gains_on_cpu(model),  # decides between compilers, which round differently
        [fingerprint.of_step(model, step) for step in steps],
        [value.hex() for value in examining.observe(examined, example)] if opaque else [],
    )
    return digest, opaque


def of_enforcement(model: Any, enforce: Enforcement, example: Any) -> str:
    """Compute the digest of an enforcement: a training step of the model under it."""
    kept = mask_variables(masks.ones_like(weights.read(model)))
    step = examining.traced_under(model, example, kept, enforce)
    return fingerprint.of_parts(fingerprint.of_step(model, step, kept))


def of_criterion(prepared: Prepared) -> tuple[str, list[float]]:
    """Compute the digest of a criterion, and a number for each weight: its scores before the first and the last round.

    Raises `LotteryError` if the scores do not fit the weights or are not finite, or differ when computed again.
    """
    last = prepared.experiment.prune.num_rounds
    if not last:
        return "", []
    # The first and the last round: a function may do otherwise with the masks of later rounds.
    first = _scores(prepared, 1)
    if weights.fingerprint(first) != weights.fingerprint(_scores(prepared, 1)):
        raise LotteryError(
            "prune.criterion: the function gives other scores each time it is called, so a run could not be repeated; "
            "draw random numbers from inputs.rng."
        )
    found = [first, _scores(prepared, last)] if last > 1 else [first]
    numbers = [float(np.mean(np.abs(value), dtype=np.float64)) for by_weight in found for value in by_weight.values()]
    return fingerprint.of_parts([weights.fingerprint(by_weight) for by_weight in found]), numbers


def _scores(prepared: Prepared, number: int) -> dict[str, np.ndarray]:
    """Score the weights of a network at step 0, moved by random numbers as training would move them."""
    planned = prepared.plan
    # This sets the seeds of all generators, from which a function may draw.
    network = building.scoring_network(prepared, 0)
    rng = randomness.generator(prepared.experiment.run.seed, 0, randomness.SCORES, number)
    initial = weights.read(network.model)
    trained = {
        name: (value + 0.1 * rng.standard_normal(value.shape)).astype(value.dtype) for name, value in initial.items()
    }
    kept = planned.dense
    if number > 1:
        drawn = {name: rng.random(value.shape) for name, value in initial.items()}
        kept = planned.masks(number - 1, drawn, kept)
    inputs = planned.criterion_inputs(number, initial, masks.apply(trained, kept), kept, rng, network)
    # Before the run begins: to find out in the last round, after hours, would be late.
    with evaluating("prune.criterion: the function cannot score the weights"):
        found = prepared.criterion(inputs)
        _check_scores(found, kept)
        planned.masks(number, found, kept)
    return {name: np.where(mask, found[name], 0) for name, mask in kept.items()}


def _check_scores(found: Any, kept: masks.Masks) -> None:
    """Raise `LotteryError` if what a criterion returns is not an array of numbers for each weight."""
    if not isinstance(found, Mapping):
        raise LotteryError(f"prune.criterion must return a dict of scores by weight, not {type(found).__name__}.")
    for name, mask in kept.items():
        if name not in found:
            returned = ", ".join(map(str, found)) or "nothing"
            raise LotteryError(f"prune.criterion: the function returned no scores of {name!r}, but of: {returned}.")
        scores = np.asarray(found[name])
        wrong = f"prune.criterion: the function returned scores of {name!r} "
        if scores.shape != mask.shape:
            raise LotteryError(f"{wrong}with shape {scores.shape}, where the weight has shape {mask.shape}.")
        if scores.dtype.kind not in "biuf":
            raise LotteryError(f"{wrong}of type {scores.dtype}, not numbers.")
        if np.isnan(scores[mask]).any():
            raise LotteryError(f"{wrong}that are not numbers (NaN), so they cannot be ranked.")


def observed(examined: Examined, example: Any, opaque: bool, numbers: list[float]) -> dict[str, Any]:
    """Collect what ``environment.json`` records of a model and of what `of_model` and `of_criterion` return."""
    return {
        "reported": [*examining.observe(examined, example), *numbers],
        "example": [[part.dtype.name, list(part.shape)] for part in tf.nest.flatten(example)],
        "opaque": opaque,
        "num_gpus": len(tf.config.list_physical_devices("GPU")),
    }
