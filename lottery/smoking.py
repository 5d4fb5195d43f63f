"""Any experiment, shrunk to seconds: few steps, few rounds, and data made for it in the shape of its own."""

from typing import Any

import numpy as np

from lottery import config
from lottery.errors import LotteryError

NUM_STEPS, NUM_ROUNDS, NUM_REPLICATES, BATCH_SIZE = 4, 2, 2, 8
NUM_TRAIN, NUM_TEST, VALIDATION = 60, 10, 10
SHAPES = {"digits": (8, 8), "mnist": (28, 28), "fashion_mnist": (28, 28), "cifar10": (32, 32, 3)}
NUM_CLASSES = 10


def shrunk(experiment: config.Experiment) -> tuple[dict[str, Any], tuple[np.ndarray, ...]]:
    """An experiment that goes through everything the given one does, in seconds, and shows nothing about tickets.

    Args:
        experiment: Any experiment on a data set by name.

    Returns:
        Its tables, named ``...-smoke``, with steps, rounds, replicates and batches cut down and all that counts steps
        in proportion; and the four arrays to run it on.

    Raises:
        LotteryError: Nothing is known of the shape of its data.
    """
    if experiment.data.name not in SHAPES:
        known = ", ".join(SHAPES)
        raise LotteryError(f"--smoke makes data for {known}; received data.name = {experiment.data.name!r}.")
    tables = experiment.model_dump(mode="json")
    train, prune, run = tables["train"], tables["prune"], tables["run"]

    def scaled(step: int) -> int:
        return max(1, step * NUM_STEPS // train["num_steps"]) if step else 0

    tables["name"] += "-smoke"
    tables["data"] |= {"path": "", "validation": VALIDATION}
    tables["rewind"]["step"] = min(scaled(tables["rewind"]["step"]), NUM_STEPS - 1)
    train["drop_at"] = sorted({scaled(step) for step in train["drop_at"]})
    train |= {"warmup_steps": scaled(train["warmup_steps"]), "num_steps": NUM_STEPS, "eval_every": NUM_STEPS // 2}
    train["batch_size"] = min(train["batch_size"], BATCH_SIZE)
    prune["num_examples"] = min(prune["num_examples"], 2 * NUM_CLASSES)
    if prune["final_density"]:
        del prune["rate"]
    prune["num_rounds"] = min(prune["num_rounds"], NUM_ROUNDS)
    prune["densities"] = prune["densities"][:NUM_ROUNDS]
    run |= {"num_replicates": min(run["num_replicates"], NUM_REPLICATES), "control_rounds": []}
    return tables, _made(SHAPES[experiment.data.name])


def _made(shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Images of one pattern for each class, under noise."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (NUM_CLASSES, *shape))
    labels = np.arange(NUM_TRAIN + NUM_TEST) % NUM_CLASSES
    images = np.clip(patterns[labels] + rng.normal(0, 40, (len(labels), *shape)), 0, 255).astype(np.uint8)
    return images[:NUM_TRAIN], labels[:NUM_TRAIN], images[NUM_TRAIN:], labels[NUM_TRAIN:]
