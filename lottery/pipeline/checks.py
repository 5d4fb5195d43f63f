"""Checks that model, data, masks and devices fit together, before anything is written or trained."""

import inspect
from typing import Any

from lottery import config, masks, weights
from lottery.data import Splits, Streams
from lottery.enforcement import ENFORCEMENTS, Enforcement, Mode
from lottery.errors import LotteryError
from lottery.models.kerases import keras_of
from lottery.pipeline.prepared import Prepared
from lottery.pruning import branches, criteria
from lottery.settings import GIVEN
from lottery.training import examples, mirrored


def check_devices(experiment: config.Experiment) -> None:
    """Raise `LotteryError` if a network that is trained on several devices cannot be held as the experiment says."""
    devices, name = experiment.train.devices, experiment.run.enforcement
    allowed = [known for known, mode in ENFORCEMENTS.items() if mode.on_several_devices]
    if devices != "one" and name not in (*allowed, GIVEN):
        names = ", ".join(map(repr, allowed))
        raise LotteryError(f'run.enforcement: received "{name}", allowed with train.devices = "{devices}" are {names}.')


def check_strategy(experiment: config.Experiment, model: Any) -> None:
    """Raise `LotteryError` if a caller has built the model under a strategy, for which the experiment has a value."""
    if experiment.train.devices == "one" and mirrored.strategy_of(model) is not None:
        why = "The model is made under a strategy of its own"
        raise LotteryError(f'{why}; leave it out, and set train.devices = "mirrored".')


def check_batches(experiment: config.Experiment, model: Any, data: Splits | Streams) -> None:
    """Raise `LotteryError` if arrays cannot be cut into the batches that a model takes."""
    if not isinstance(data, Splits):
        return
    needs_network = criteria.facts(experiment.prune.criterion).needs_network
    num_scored = experiment.prune.num_examples if needs_network else None
    examples.check_batches(model, data, experiment.train.batch_size, num_scored)


def check_layers(mode: Mode, model: Any) -> None:
    """Raise `LotteryError` if a mode of enforcement refuses a layer of the model, by holding nothing for a moment."""
    if mode.refuses_layers:
        with mode.hold(model, masks.ones_like(weights.read(model))):
            pass


def check_held_at(enforce: Enforcement) -> None:
    """Raise `LotteryError` if a function of the caller's takes no held values."""
    try:
        inspect.signature(enforce).bind(None, {}, {})
    except TypeError:
        raise LotteryError(
            "run.enforcement: the function takes no held values, which prune.held_at needs; give it a third argument, "
            "as lottery.enforcement.constraint has."
        ) from None


def check_learns(prepared: Prepared, branch: str) -> None:
    """Raise `LotteryError` if a branch learns masks, which it cannot learn for the model of a run."""
    known = branches.BRANCHES.get(branch)
    if known is None or not known.learns:
        return
    model, devices = prepared.trainer.model, prepared.experiment.train.devices
    if keras_of(model).__name__ == "tf_keras":
        why = f"the model {model.name!r} is a tf_keras model"
        raise LotteryError(f"{branch} learns masks of Keras 3 models alone, and {why}; leave it out.")
    if devices != "one":
        raise LotteryError(f'{branch} learns masks on one device, and train.devices is "{devices}"; leave it out.')
