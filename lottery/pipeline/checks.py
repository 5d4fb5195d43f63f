"""What keeps a run from training is refused, and what a person should know is said, before anything is written."""

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np

from lottery import config, formatting, weights
from lottery.data import Splits, Streams
from lottery.enforcement import tfmot
from lottery.enforcement.modes import ENFORCEMENTS, Mode
from lottery.errors import LotteryError
from lottery.masks import Masks, Weights
from lottery.models import networks
from lottery.models.kerases import is_keras, loss_of, tf
from lottery.pipeline import building
from lottery.pipeline.prepared import Ingredients, Prepared
from lottery.pruning import branches
from lottery.training import engine_choice, mirrored
from lottery.training.records import ACCURACIES

_BRIGHTEST = 255  # the largest value of a pixel of one byte
_DIM = 100  # no pixel of an unscaled data set is brighter than this only if all images are dark
FIXED_SCALING = ("Rescaling", "Normalization")  # layers that scale by numbers that are not trained
# Layers that bring their inputs to a common scale.
_SCALING = (*FIXED_SCALING, "BatchNormalization", "LayerNormalization", "Embedding")


def check_devices(experiment: config.Experiment) -> None:
    """Raise `LotteryError` if a network that is trained on several devices cannot be held as the experiment says."""
    name = experiment.run.enforcement
    mode = ENFORCEMENTS.get(name)  # a function of the caller's says nothing of devices
    if experiment.train.on_several_devices and mode is not None and not mode.on_several_devices:
        allowed = (f'"{known}"' for known, mode in ENFORCEMENTS.items() if mode.on_several_devices)
        raise LotteryError(
            f"run.enforcement must be {formatting.listed(allowed, 'or')} with train.devices = "
            f'"{experiment.train.devices}", not "{name}".'
        )


def check_model(experiment: config.Experiment, model: Any) -> None:
    """Raise `LotteryError` if a caller has built the model under a strategy, or with wrappers that prune it."""
    tfmot.refuse_wrapped(model)
    if not experiment.train.on_several_devices and mirrored.strategy_of(model) is not None:
        raise LotteryError(
            "The model is built under a tf.distribute strategy. Build the model without a strategy, and set "
            'train.devices = "mirrored".'
        )


def check_mode(mode: Mode, model: Any, dense: Masks, takes_values: bool) -> None:
    """Raise `LotteryError` if a mode of enforcement refuses a layer, or takes no held values where it must."""
    if mode.refuses_layers:  # as its context begins, so nothing is held in it for a moment
        with mode.hold(model, dense):
            pass
    if takes_values:
        try:
            inspect.signature(mode.hold).bind(None, {}, {})
        except TypeError:
            raise LotteryError(
                "run.enforcement: the function takes no held values, which prune.held_at needs; give it a third "
                "argument, as lottery.enforcement.constraint has."
            ) from None


def notes(prepared: Prepared, ingredients: Ingredients, inputs: Any) -> Iterator[str]:
    """Say of a run what surprises, limits or slows it down; `inputs` are a few examples, as the model takes them."""
    experiment, model, trainer = prepared.experiment, prepared.trainer.model, prepared.trainer
    has_own_model = ingredients.have_own_model(experiment)
    # A file may name any module; who reads the note sees which one was found.
    if has_own_model and ingredients.model is None:
        module = experiment.model.name.partition(":")[0]
        yield f"{experiment.model.name} is imported from {networks.module_file(module)}."
    yield from prepared.data.notes
    if isinstance(prepared.data, Streams):
        size, wanted = tf.nest.flatten(inputs)[0].shape[0], experiment.train.batch_size
        if wanted not in (size, config.Experiment().train.batch_size):
            yield f"train.batch_size = {wanted} has no effect: the tf.data.Dataset has batches of {size} examples."
    if ingredients.data is not None and isinstance(prepared.data, Splits) and prepared.data.train.x.dtype == np.uint8:
        how = f'data.pixels = "{experiment.data.pixels}"'
        yield f"The inputs are of type uint8, so they are scaled as pixels ({how}); floats stay as they are."
    measured = prepared.accuracy
    if measured not in (None, *ACCURACIES):
        yield f"The model's {measured!r} is taken for its accuracy, and called test accuracy in every table and figure."
    variables = weights.variables(model)
    for name, why in weights.unprunable(model).items():
        # Everybody expects vectors to stay: biases, statistics, seeds.
        if len(variables[name].shape) > 1 and why != "a bias":
            yield f"{name} is not pruned: {why}."
    if unrepeatable := trainer.loop.examined.unrepeatable:
        yield (
            f"The model draws random numbers by {', '.join(unrepeatable)}, which nothing can restore: "
            "stopped and resumed, the run will not give the same bits."
        )
    if not isinstance(trainer.network, engine_choice.Obstacle) and not engine_choice.is_compiled():
        yield "The sparse engine is compiled with the first sparse network, once on this machine: about 20 seconds."
    if strategy := mirrored.strategy_of(model):
        yield from _of_devices(strategy, is_keras(type(model).train_step))
    if has_own_model and not experiment.train.in_full_precision:
        yield from _of_precision(model(inputs, training=False))


def notes_on_start(drawn: Weights, before: Weights, run: config.Run) -> list[str]:
    """Say which initial weights, from two seeds, are the same, as those of a pretrained model are.

    Raises `LotteryError` if all are, and a control of the run draws them anew.
    """
    for control in run.controls:
        if "start weights" in branches.BRANCHES[control].needs_model:
            building.check_drawn_anew(drawn, before, control)
    same = [name for name in before if np.array_equal(drawn[name], before[name])]
    if same and len(same) < len(before):
        return [
            f"The model is built with the same initial values of {', '.join(same)} each time; random_reinit leaves "
            "them as they are, and draws the others anew."
        ]
    if not same or run.num_replicates == 1:
        return []
    return [
        "The model is built with the same initial weights each time, so the replicates differ only in the order of "
        "the batches, and their spread says nothing about other initial weights."
    ]


def cautions(model: Any, loaded: Splits | Streams, inputs: Any) -> Iterator[str]:
    """Yield a sentence for each mistake in a caller's model or data that trains without an error.

    They are told before training, and again before the verdict; `inputs` are as for `notes`.
    """
    loss, name = loss_of(model)
    name = name.replace("_", "").lower()
    if "crossentropy" in name:
        takes_logits = hasattr(loss, "get_config") and bool(loss.get_config().get("from_logits"))
        yield from _of_the_head(model(inputs, training=False), takes_logits, "categorical" in name)
    scales = any(type(layer).__name__ in _SCALING for layer in model.layers[:3])
    if isinstance(loaded, Splits) and not scales:
        yield from _of_the_pixels(loaded.train.x)


def _of_devices(strategy: Any, has_keras_step: bool) -> Iterator[str]:
    num = strategy.num_replicas_in_sync
    if num == 1:
        yield "There is one device, so the network is trained on that one, and train.devices changes nothing else."
        return
    devices = ", ".join(device.rpartition("device:")[2] for device in strategy.extended.worker_devices)
    yield f"The network is mirrored on {num} devices: {devices}."
    if not has_keras_step:
        yield (
            "The model has a train_step of its own, which each device calls with its share of a batch; the gradients "
            f"are added up, so its loss must be divided by {num}, as Keras' own losses are."
        )


def _of_precision(outputs: Any) -> Iterator[str]:
    types = {output.dtype.name for output in tf.nest.flatten(outputs)}
    for name in sorted(types - {"float32", "float64"}):
        yield (
            f"The outputs of the model are of type {name}, which rounds what the loss is computed from; give its last "
            'layer dtype="float32".'
        )


def _of_the_head(outputs: Any, takes_logits: bool, is_of_classes: bool) -> Iterator[str]:
    if not hasattr(outputs, "shape"):  # a dict or a list is taken apart by the loss
        return
    values = np.asarray(outputs, np.float64)
    are_shares = bool(((values >= 0) & (values <= 1)).all())
    if not takes_logits and not are_shares:
        yield (
            "The model returns logits, but its loss takes probabilities, so it does not learn what it should. Compile "
            "the model with a loss that has from_logits=True."
        )
    # A sigmoid tells nothing: small logits may lie between 0 and 1 as well.
    if takes_logits and are_shares and is_of_classes and np.allclose(values.sum(-1), 1, atol=1e-3):
        yield (
            "The model returns probabilities, but its loss takes logits. Compile the model with a loss that has "
            "from_logits=False, or leave the softmax out."
        )


def _of_the_pixels(x: np.ndarray) -> Iterator[str]:
    if x.dtype == np.uint8 or not x.size:  # bytes are scaled by the toolkit
        return
    if x.min() >= 0 and _DIM < x.max() <= _BRIGHTEST:
        yield (
            f"The inputs go from {x.min():g} to {x.max():g}, as pixels do, and nothing scales them. Divide them by "
            "255, or begin the model with keras.layers.Rescaling(1 / 255)."
        )
