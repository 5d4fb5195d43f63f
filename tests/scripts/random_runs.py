"""Random runs of random models: each finishes, or is refused before anything is written; killed and resumed, it is equal.

    python -m tests.scripts.random_runs --runs 200 --seed 0

A run is made of a random small model, of Keras 3 or tf_keras, and of random settings, which may not go together. It is
trained to the end, and once more with a death at a random event; the same call then goes on. Every file of both must be
equal. What is wrong is printed with its number, which `--first` begins with.
"""

import argparse
import collections
import contextlib
import tempfile
import traceback
from pathlib import Path

import numpy as np

import lottery
from lottery.enforcement import ENFORCEMENTS
from lottery.errors import LotteryError
from lottery.pruning import branches, criteria, granularity, mask_actions, ranking, rewinding
from lottery.training.checkpoints import CheckpointInterval
from tests.conftest import contents


class Died(BaseException):
    """Ends a run at an event, as a kill would."""


def model_of(rng, has_images):
    """Draw a model; return the function that builds it, and what it is in words."""
    library = str(rng.choice(["keras", "tf_keras"]))
    units = [int(rng.integers(3, 12)) for _ in range(rng.integers(1, 3))]
    activation = str(rng.choice(["relu", "tanh", "elu"]))
    has_norm, has_dropout = rng.random(2) < 0.25
    convolutions = [int(rng.integers(2, 5)) for _ in range(rng.integers(0, 3))] if has_images else []

    def build():
        import importlib

        layers = importlib.import_module(library).layers
        stack = [layers.InputLayer((6, 6, 1) if has_images else (12,))]
        for width in convolutions:
            stack.append(layers.Conv2D(width, 3, padding="same", activation=activation))
        if has_images:
            stack.append(layers.Flatten())
        for width in units:
            stack.append(layers.Dense(width, activation))
            if has_norm:
                stack.append(layers.BatchNormalization())
            if has_dropout:
                stack.append(layers.Dropout(0.2))
        return importlib.import_module(library).Sequential([*stack, layers.Dense(3)])

    extras = [name for name, there in (("BatchNorm", has_norm), ("Dropout", has_dropout)) if there]
    return build, " ".join([library, str(convolutions), str(units), activation, *extras])


def settings_of(rng):
    """Draw an experiment; its values are valid one by one, and may not go together."""

    def any_of(names, usual, chance=0.4):
        return str(rng.choice(list(names))) if rng.random() < chance else usual

    num_steps = int(rng.integers(8, 40))
    prune = {
        "num_rounds": int(rng.integers(1, 4)),
        "rate": float(rng.choice([0.2, 0.5, 0.8])),
        "criterion": any_of(criteria.CRITERIA, "magnitude", 0.3),
        "scope": any_of(ranking.SCOPES, "layerwise", 0.3),
        "allocation": any_of(["rates", "uniform", "erk"], "rates", 0.3),
        "granularity": any_of(granularity.GRANULARITIES, "weight", 0.25),
        "held_at": any_of(mask_actions.MASK_ACTIONS, "zero", 0.25),
        "iterative": bool(rng.random() < 0.8),
    }
    if prune["granularity"] == "block":
        prune["block"] = [2, 1]
    if prune["granularity"] == "n_of_m":
        prune = {"granularity": "n_of_m", "n_of_m": [2, 4]}
    chosen = rng.choice(branches.controls(), size=rng.integers(0, 4), replace=False)
    return {
        "name": "random",
        "data": {"validation": 40},
        "train": {
            "num_steps": num_steps, "batch_size": int(rng.integers(5, 30)), "eval_every": int(rng.integers(3, 15)),
            "optimizer": any_of(["sgd", "adam", "adamw", "rmsprop"], "adam"), "jit_compile": False,
            "engine": any_of(["auto", "compiled", "sparse"], "auto", 0.6),
        },
        "prune": prune,
        "rewind": {"mode": any_of(rewinding.REWINDS, "weights", 0.3), "step": int(rng.choice([0, 0, 3]))},
        "run": {
            "num_replicates": 1, "controls": [str(name) for name in chosen],
            "enforcement": any_of(ENFORCEMENTS, "constraint", 0.3),
        },
    }  # fmt: skip


def data_of(rng, has_images):
    """Draw 160 examples of three classes that can be learnt."""
    x = rng.normal(size=(160, 36 if has_images else 12)).astype(np.float32)
    y = np.argmax(x @ rng.normal(size=(x.shape[1], 3)), axis=1)
    x = x.reshape(-1, 6, 6, 1) if has_images else x
    return x[:120], y[:120], x[120:], y[120:]


def outcome(number, seed, folder):
    """Carry out a run; return "finished", "refused: ..." or "WRONG: ...", and what it was."""
    rng = np.random.default_rng([seed, number])
    has_images = rng.random() < 0.4
    (model, words), settings, data = model_of(rng, has_images), settings_of(rng), data_of(rng, has_images)
    events, place = [], rng.random()
    every = CheckpointInterval(seconds=0, steps=int(rng.integers(1, 12)))

    def run(out, on_event):
        return lottery.run(
            settings, model=model, data=data, out=out, on_event=on_event, checkpoint_every=every, tensorboard=False
        )

    about = f"{words}; {settings}"
    try:
        whole = run(Path(folder, "whole"), events.append)
    except LotteryError as error:
        left = [path for path in Path(folder, "whole").rglob("*") if path.is_file()]
        if left:
            return f"WRONG: refused after {len(left)} files were written: {error}", about
        return f"refused: {error}", about
    left = int(place * len(events))

    def dying(event):
        nonlocal left
        left -= 1
        if left < 0:
            raise Died

    with contextlib.suppress(Died):
        run(Path(folder, "killed"), dying)
    resumed = run(Path(folder, "killed"), lambda event: None)
    one, other = contents(whole.path), contents(resumed.path)
    if one != other:
        names = sorted(name for name in {*one, *other} if one.get(name) != other.get(name))
        return f"WRONG: other bytes in {', '.join(names)}", about
    if wrong := resumed.verify():
        return f"WRONG: {wrong[0]}", about
    return "finished", about


def main():
    """Carry out the runs, and print what is wrong and how many ended how."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    tally = collections.Counter()
    for number in range(options.first, options.first + options.runs):
        with tempfile.TemporaryDirectory() as folder:
            try:
                found, about = outcome(number, options.seed, folder)
            except Exception:
                found, about = f"WRONG: {traceback.format_exc()}", ""
        tally[found.partition(":")[0]] += 1
        if found.startswith("WRONG"):
            print(f"{number}: {found}\n  {about}", flush=True)
        if number % 20 == 19:
            print(f"{number + 1}: {dict(tally)}", flush=True)
    print(dict(tally))
    raise SystemExit(bool(tally["WRONG"]))


if __name__ == "__main__":
    main()
