"""Presets, the experiment files that come with the package, and the smoke test of any experiment."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from lottery import config, files
from lottery.datasets import DATASETS, Dataset
from lottery.errors import LotteryError, missing

# Sizes of a smoke test, at most.
NUM_STEPS, NUM_ROUNDS, NUM_REPLICATES, BATCH_SIZE = 4, 2, 2, 8
NUM_TRAIN, NUM_TEST, VALIDATION, NUM_CLASSES = 60, 10, 10, 10


def named(name: str) -> Path:
    """Find the file of a preset, or raise a `LotteryError` with the nearest name."""
    found = config.shipped()
    if name not in found:
        raise missing("There is no experiment", name, found)
    return found[name]


def listed() -> list[dict[str, Any]]:
    """Describe each preset, the default first: ``name``, ``data``, ``model``, and from the header of its file what it
    ``reproduces``, the ``paper``, and the ``figure`` or section of it.
    """
    rows = []
    for name, path in config.shipped().items():
        experiment, text = config.load(path), path.read_text("utf-8")
        found = re.search(r"^# (?:Reproduces|What it shows):\s*((?:.*\n)(?:#\s{6,}.*\n)*)", text, re.M)
        what = re.sub(r"\s*\n#\s*", " ", found[1]).strip() if found else ""
        header = re.sub(r"\s*\n#\s*", " ", text.partition("\n\n")[0])
        paper = re.search(r"([A-Z]\w+(?:,? (?:&|et al\.|[A-Z]\w+))* \d{4}),? https://arxiv", header)
        figure = re.match(r"(?:figures?|section) \d+(?:(?:,| and) \d+)*", what)
        sources = {"paper": paper[1] if paper else "", "figure": figure[0] if figure else ""}
        own = {"name": name, "data": experiment.data.name, "model": experiment.model.name, "reproduces": what}
        rows.append(own | sources)
    return rows


def copied(name: str, to: Path) -> Path:
    """Copy a preset to a new file or into a folder, and return the path of the copy."""
    source = named(name)
    target = to / source.name if to.is_dir() else to
    if target.exists():
        raise LotteryError(f"{str(target)!r} exists; remove it, or name another file.")
    files.write(target, source.read_bytes())
    return target


def smoke_test(experiment: config.Experiment) -> tuple[dict[str, Any], tuple[np.ndarray, ...]]:
    """Shrink an experiment to seconds. It goes through the same code, and shows nothing about tickets.

    Its tables, named ``...-smoke``, have fewer rounds and replicates, smaller batches, and all that counts steps in
    proportion. Beside them come made-up data of the same shape: four arrays, as `lottery.run` takes them.
    """
    dataset = DATASETS.get(experiment.data.name)
    if dataset is None or not dataset.shape:
        known = ", ".join(name for name, dataset in DATASETS.items() if dataset.shape)
        raise LotteryError(f"--smoke makes data for {known}, not for data.name = {experiment.data.name!r}.")
    tables = config.as_tables(experiment)
    train, prune, run = tables["train"], tables["prune"], tables["run"]

    def scaled(step: int) -> int:
        return max(1, step * NUM_STEPS // train["num_steps"]) if step else 0

    tables["name"] += "-smoke"
    # The made-up arrays are fewer than an experiment may ask for.
    tables["data"] |= {"path": "", "validation": VALIDATION, "num_examples": 0}
    tables["rewind"]["step"] = min(scaled(tables["rewind"]["step"]), NUM_STEPS - 1)
    last = 0
    drops = []
    for step in experiment.train.drop_at:  # as many as there were, where the steps allow it
        last = max(scaled(step), last + 1)
        drops.append(last)
    steps = {
        "drop_at": [step for step in drops if step < NUM_STEPS],
        "warmup_steps": scaled(experiment.train.warmup_steps),
    }
    # What is not set is not in the tables; see `config.as_tables`.
    train |= {key: value for key, value in steps.items() if key in train}
    train |= {"num_steps": NUM_STEPS, "eval_every": NUM_STEPS // 2}
    train["batch_size"] = min(train["batch_size"], BATCH_SIZE)
    prune["num_examples"] = min(prune["num_examples"], 2 * NUM_CLASSES)
    if prune["final_density"]:
        # It was worked out for the number of rounds that changes below.
        del prune["rate"]
    prune["num_rounds"] = min(prune["num_rounds"], NUM_ROUNDS)
    prune["densities"] = prune["densities"][:NUM_ROUNDS]
    run |= {"num_replicates": min(run["num_replicates"], NUM_REPLICATES), "control_rounds": config.ALL}
    return tables, _made_up(dataset)


def _made_up(dataset: Dataset) -> tuple[np.ndarray, ...]:
    """Make images of one pattern for each class, under noise."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (NUM_CLASSES, *dataset.shape))
    labels = np.arange(NUM_TRAIN + NUM_TEST) % NUM_CLASSES
    images = np.clip(patterns[labels] + rng.normal(0, 40, (len(labels), *dataset.shape)), 0, 255).astype(np.uint8)
    if not dataset.is_pixels:
        images = (images / 127.5 - 1).astype(np.float32)
    return images[:NUM_TRAIN], labels[:NUM_TRAIN], images[NUM_TRAIN:], labels[NUM_TRAIN:]
