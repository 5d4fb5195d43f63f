"""The identity of a run: what the caller's model and functions compute, observed before the run begins.

A digest of what is observed is part of the experiment, and so decides the name of the run's folder. It is exact: it
knows the operations and constants of a training step and of an evaluation, the variables and their initial values.
Other versions of TensorFlow or Keras may build the same model from other operations. There a few numbers that the first
steps report are compared instead, up to rounding, and a sentence says so.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lottery import config, masks, randomness, weights
from lottery.enforcement import Enforcement
from lottery.errors import LotteryError
from lottery.models import fingerprint
from lottery.models.kerases import evaluating
from lottery.pipeline import environment
from lottery.pruning import criteria, plan
from lottery.runs import store
from lottery.training import compiling
from lottery.training.compiling import Examined
from lottery.training.loop import gains_on_cpu

# Relative, of what the first steps report on another machine or with other versions; and in half precision.
ROUNDING, ROUNDING_IN_HALF = 1e-5, 1e-2

_DIGESTS = {"model": {"fingerprint"}, "prune": {"fingerprint"}, "run": {"fingerprint"}}


def of_model(model: Any, examined: Examined, example: Any) -> tuple[str, bool]:
    """Compute the digest of a compiled model: variables, initial weights, a training step, an evaluation and the end.

    Parts of a step that its graph does not show, calls of Python and tables, count by what the first steps report.

    Returns:
        The digest, and True if it depends on such parts.
    """
    steps = [examined.step, *compiling.traced_evaluation(model, example)]
    opaque = any(fingerprint.is_opaque(step) for step in steps)
    digest = fingerprint.of_parts(
        fingerprint.of_variables(model),
        weights.fingerprint(weights.read_state(model)),
        gains_on_cpu(model),  # decides between compilers, which round differently
        [fingerprint.of_step(model, step) for step in steps],
        [value.hex() for value in compiling.observe(examined, example)] if opaque else [],
    )
    return digest, opaque


def of_enforcement(model: Any, enforce: Enforcement, example: Any) -> str:
    """Compute the digest of an enforcement: a training step of the model under it."""
    import tensorflow as tf

    ones = masks.ones_like(weights.read(model))
    kept = {name: tf.Variable(tf.constant(mask), trainable=False) for name, mask in ones.items()}
    step = compiling.traced_under(model, example, kept, enforce)
    return fingerprint.of_parts(fingerprint.of_step(model, step, kept))


def of_criterion(
    experiment: config.Experiment, criterion: criteria.ScoreFunction, network: Callable[[], criteria.ScoredModel]
) -> tuple[str, list[float]]:
    """Compute the digest of a criterion, and a number for each weight: its scores before the first and the last round.

    The weights are those of a network at step 0, moved by random numbers as training would move them.

    Args:
        network: Makes the network and the batch that the criterion may look at, and sets the seeds of all generators.

    Raises:
        LotteryError: The scores do not fit the weights or are not finite, or differ when computed again.
    """
    settings, seed = experiment.prune, experiment.run.seed
    if not settings.num_rounds:
        return "", []

    def scores(number: int) -> dict[str, np.ndarray]:
        made = network()
        rng = randomness.generator(seed, 0, randomness.SCORES, number)
        initial = weights.read(made.model)
        planned = plan.of_weights(settings, initial, plan.units_of(settings, made.model))
        trained = {
            name: (value + 0.1 * rng.standard_normal(value.shape)).astype(value.dtype)
            for name, value in initial.items()
        }
        kept = masks.ones_like(initial)
        if number > 1:
            drawn = {name: rng.random(value.shape) for name, value in initial.items()}
            kept = planned.masks(number - 1, drawn, kept)
        inputs = planned.criterion_inputs(number, initial, masks.apply(trained, kept), kept, rng, made)
        with evaluating("prune.criterion: the function cannot score the weights"):
            found = criterion(inputs)
            _check_scores(found, kept)
            planned.masks(number, found, kept)
        return {name: np.where(mask, found[name], 0) for name, mask in kept.items()}  # of survivors alone

    first = scores(1)
    if fingerprint.of_scores(first) != fingerprint.of_scores(scores(1)):
        raise LotteryError(
            "prune.criterion: the function gives other scores each time it is called, so a run could not be repeated; "
            "draw random numbers from inputs.rng."
        )
    found = [first, *([scores(settings.num_rounds)] if settings.num_rounds > 1 else [])]
    numbers = [float(np.mean(np.abs(value), dtype=np.float64)) for by_weight in found for value in by_weight.values()]
    return fingerprint.of_parts([fingerprint.of_scores(by_weight) for by_weight in found]), numbers


def _check_scores(found: Any, kept: masks.Masks) -> None:
    """Raise `LotteryError` if what a criterion returns is not an array of numbers for each weight."""
    if not isinstance(found, Mapping):
        raise LotteryError(
            f"prune.criterion: the function returned {type(found).__name__}, allowed is a dict of scores by weight."
        )
    for name, mask in kept.items():
        if name not in found:
            returned = ", ".join(map(str, found)) or "nothing"
            raise LotteryError(f"prune.criterion: the function returned no scores of {name!r}, but of: {returned}.")
        scores = np.asarray(found[name])
        wrong = f"prune.criterion: the function returned scores of {name!r} "
        if scores.shape != mask.shape:
            raise LotteryError(f"{wrong}with shape {scores.shape}, allowed is {mask.shape}, that of the weight.")
        if scores.dtype.kind not in "biuf":
            raise LotteryError(f"{wrong}of type {scores.dtype}, allowed are numbers.")
        if np.isnan(scores[mask]).any():
            raise LotteryError(f"{wrong}that are not numbers (NaN), so they cannot be ranked.")


def located(
    out: str | Path, experiment: config.Experiment, observe: Callable[[], dict[str, Any]]
) -> tuple[Path, config.Experiment, list[str]]:
    """Find the run of an experiment with the caller's objects; with other versions it may have another digest.

    Returns:
        The run's folder, which may not exist yet; its experiment; and sentences that a person should read.
    """
    path, notes = store.run_path(out, experiment), []
    if path.exists():
        return path, experiment, []
    for other in store.runs(out):
        try:
            like, recorded = store.read_experiment(other), store.read_environment(other)
        except LotteryError:  # a damaged run is another matter
            continue
        if not recorded or like.model_dump(exclude=_DIGESTS) != experiment.model_dump(exclude=_DIGESTS):
            continue
        if not _is_observed(recorded):
            notes.append(
                f"{other} has the same settings, but an earlier version of lottery stored it, which did not observe "
                "what models compute; this is a new run."
            )
        elif elsewhere := _elsewhere(recorded, observe()):
            if _agree(experiment, recorded, observe()):
                return other, like, [_compared(other, experiment, elsewhere)]
            notes.append(
                f"{other} has the same settings, but started with {elsewhere}, and what its model and functions "
                "compute differs here; this is a new run."
            )
    return path, experiment, notes


def agreed(
    run: Path, experiment: config.Experiment, now: config.Experiment, observe: Callable[[], dict[str, Any]]
) -> list[str]:
    """Compare the objects that a caller passes again with those of a stored run.

    Args:
        run: The run's folder.
        experiment: The stored experiment.
        now: The same, completed with what the caller's objects are now.
        observe: Observes the caller's model; see `Prepared`.

    Returns:
        Sentences that a person should read.

    Raises:
        LotteryError: The model or a function is another.
    """
    if config.digest(now) == config.digest(experiment):
        return []
    recorded = store.read_environment(run)
    if now.model_dump(exclude=_DIGESTS) == experiment.model_dump(exclude=_DIGESTS):
        if not _is_observed(recorded):
            return [
                "An earlier version of lottery stored this run, and did not observe what its model and functions "
                "compute, so they cannot be compared."
            ]
        if elsewhere := _elsewhere(recorded, observe()):
            if _agree(experiment, recorded, observe()):
                return [_compared(run, experiment, elsewhere)]
            raise LotteryError(
                f"The model or a function differs from that of {str(run)!r}, or {elsewhere} makes it so."
            )
    raise LotteryError(f"The model or a function differs from that of {str(run)!r}.")


def incomparable(run: Path, observe: Callable[[], dict[str, Any]]) -> str:
    """Say why a model cannot be compared with that of a run on other data; empty if it can."""
    recorded = store.read_environment(run)
    if not _is_observed(recorded):
        return "an earlier version of lottery stored the run, and did not observe what its model computes"
    if recorded["observed"]["example"] != observe()["example"]:
        return "the other data have examples of another type or shape"
    elsewhere = _elsewhere(recorded, observe())
    return elsewhere and f"it started with {elsewhere}"


def observed(examined: Examined, example: Any, opaque: bool, numbers: list[float]) -> dict[str, Any]:
    """Collect what ``environment.json`` records of a model and functions, as values that JSON holds.

    Args:
        opaque: As from `of_model`.
        numbers: As from `of_criterion`.
    """
    import tensorflow as tf

    return {
        "reported": [*compiling.observe(examined, example), *numbers],
        "example": [[part.dtype.name, list(part.shape)] for part in tf.nest.flatten(example)],
        "opaque": opaque,
        "num_gpus": len(tf.config.list_physical_devices("GPU")),
    }


def _is_observed(recorded: dict[str, Any]) -> bool:
    """Check if a record, which a stranger may have written, has what `observed` returns."""
    found = recorded.get("observed")
    if not isinstance(found, dict) or not {"reported", "example", "opaque", "num_gpus"} <= set(found):
        return False
    numbers = found["reported"]
    return isinstance(numbers, list) and all(type(value) in (int, float) for value in numbers)


def _elsewhere(recorded: dict[str, Any], now: dict[str, Any]) -> str:
    """Name what may make other operations or bits of the same model here; empty if nothing does."""
    words = environment.differences(recorded)
    if recorded["observed"]["num_gpus"] != now["num_gpus"]:
        words.append("another number of GPUs")
    if recorded["observed"]["opaque"] and recorded["num_threads"] != environment.num_threads():
        words.append("another number of threads")
    return " and ".join(words)


def _agree(experiment: config.Experiment, recorded: dict[str, Any], now: dict[str, Any]) -> bool:
    before, after = recorded["observed"]["reported"], now["reported"]
    return len(before) == len(after) and np.allclose(before, after, rtol=_rounding(experiment), atol=1e-7)


def _rounding(experiment: config.Experiment) -> float:
    return ROUNDING if experiment.train.in_full_precision else ROUNDING_IN_HALF


def _compared(run: Path, experiment: config.Experiment, elsewhere: str) -> str:
    return (
        f"{run} started with {elsewhere}, so what its model and functions compute was compared by the numbers of the "
        f"first steps, to {100 * _rounding(experiment):g} %."
    )
