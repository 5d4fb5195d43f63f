"""Sentences that a person should read before a run trains."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from lottery import weights
from lottery.data import Splits
from lottery.models import networks
from lottery.models.kerases import is_keras
from lottery.pipeline.prepared import Ingredients, Prepared
from lottery.sparse.reading import Chain, NoNumba
from lottery.statistics import two_way
from lottery.training import engines, mirrored
from lottery.training.examples import example_batch
from lottery.training.records import Arrays, accuracy_among


def of(prepared: Prepared, ingredients: Ingredients) -> Iterator[str]:
    """Say of a prepared run what surprises, limits or slows it down."""
    experiment, model = prepared.experiment, prepared.trainer.model
    has_own_model = ingredients.have_own_model(experiment)
    if has_own_model and ingredients.model is None:
        module = experiment.model.name.partition(":")[0]
        yield f"{experiment.model.name} is imported from {networks.module_file(module)}."
    yield from getattr(prepared.data, "notes", ())
    yield from _on_weights(model)
    if unrepeatable := prepared.trainer.loop.examined.unrepeatable:
        yield (
            f"The model draws random numbers by {', '.join(unrepeatable)}, which nothing can restore: "
            "stopped and resumed, the run will not give the same bits."
        )
    yield from _on_engine(prepared.trainer.chain)
    yield from _on_devices(model)
    if has_own_model and not experiment.train.in_full_precision:
        yield from _on_outputs(model, example_batch(prepared.data, model)[0])


def on_start(drawn: Arrays, before: Arrays, num_replicates: int) -> list[str]:
    """Say which initial weights, from two seeds, are the same, as those of a pretrained model are."""
    same = [name for name in before if np.array_equal(drawn[name], before[name])]
    if not same:
        return []
    if len(same) < len(before):
        return [
            f"The model is built with the same initial values of {', '.join(same)} each time; random_reinit leaves "
            "them as they are, and draws the others anew."
        ]
    if num_replicates == 1:
        return []
    return [
        "The model is built with the same initial weights each time, so the replicates differ only in the order of "
        "the batches, and their spread says nothing about other initial weights."
    ]


def too_fine(prepared: Prepared, tolerance: float | None) -> list[str]:
    """Warn if a tolerance of accuracy is finer than one test example. Of a stream the number of examples is unknown."""
    model, test_logs = prepared.trainer.model, prepared.trainer.loop.examined.test_logs
    measured = accuracy_among(test_logs or tuple(model.get_metrics_result()))
    num = len(prepared.data.test) if measured and isinstance(prepared.data, Splits) else 0
    return two_way.too_fine(tolerance, num)


def _on_weights(model: Any) -> Iterator[str]:
    """Say which tensors are not pruned. Everybody expects vectors to stay: biases, statistics, seeds."""
    variables = weights.variables(model)
    for name, why in weights.unprunable(model).items():
        if len(variables[name].shape) > 1 and why != "a bias":
            yield f"{name} is not pruned: {why}."


def _on_engine(chain: Any) -> Iterator[str]:
    if isinstance(chain, Chain) and not engines.is_compiled():
        yield "The sparse engine is compiled with the first sparse network: for some ten seconds, once on this machine."
    if isinstance(chain, NoNumba):
        yield (
            f"Sparse networks train no faster than dense ones, because {chain}; pip install 'lottery[sparse]' adds the "
            "sparse engine."
        )


def _on_devices(model: Any) -> Iterator[str]:
    strategy = mirrored.strategy_of(model)
    if strategy is None:
        return
    num = strategy.num_replicas_in_sync
    if num == 1:
        yield "There is one device, so the network is trained on that one, and train.devices changes nothing else."
        return
    devices = ", ".join(device.rpartition("device:")[2] for device in strategy.extended.worker_devices)
    yield f"The network is mirrored on {num} devices: {devices}."
    if not is_keras(type(model).train_step):
        yield (
            "The model has a train_step of its own, which each device calls with its share of a batch; the gradients "
            f"are added up, so its loss must be divided by {num}, as Keras' own losses are."
        )


def _on_outputs(model: Any, inputs: Any) -> Iterator[str]:
    import tensorflow as tf

    types = {output.dtype.name for output in tf.nest.flatten(model(inputs, training=False))}
    for name in sorted(types - {"float32", "float64"}):
        yield (
            f"The outputs of the model are of type {name}, which rounds what the loss is computed from; give its last "
            'layer dtype="float32".'
        )
