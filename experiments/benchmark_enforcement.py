"""What a training step costs under each mode of enforcement, as a ratio to the unmasked step, in one sitting.

Measures LeNet-300-100 with batches of 60 and Adam at 1.2e-3, on one thread and on all of them:

- `bare`: our compiled loop, no mask; `bare again` is the same once more, and shows what the sitting cannot resolve;
- `bare, tf_keras`: the same network, built with tf_keras, which is what tfmot wraps;
- each mode of `lottery.enforcement.ENFORCEMENTS`, in the same loop, with masks of density 0.2 in boolean variables
  and callbacks as `lottery.run` sets them;
- `tfmot fit`: tensorflow_model_optimization under `fit` of tf_keras, with its own callback.

Command:
    python experiments/benchmark_enforcement.py --data mnist.npz --json enforcement.json

It takes 4 to 5 minutes on two cores. As in `benchmark_training.py`, the contestants take turns in an order that
rotates, and times are medians with ranges. `to bare` is the median of the ratios within each repetition, with the range
of their middle half; `fastest` is the ratio of the fastest turns, which is steadier where other programs interfere. The
last two columns are the ratio to `bare, tf_keras`, and that of `tfmot fit` to the line. Run it on a machine that does
nothing else: where `bare again` is further from 1 than 0.02, it says that it could not tell.
"""

import contextlib
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import typer
from benchmark_training import (
    TRAIN,
    DataFile,
    JsonFile,
    Repetitions,
    Steps,
    Threads,
    compiled,
    in_fresh_process,
    load,
    looping,
    measure_steps,
    milliseconds,
    print_goals,
    print_table,
    random_masks,
    ratio,
    sitting,
    standardised,
    tfmot_fitting,
)
from rich.console import Console

from lottery import enforcement, weights
from lottery.pipeline import environment
from lottery.training.trainer import Trainer

# At most so many times the unmasked step.
GOALS = {"constraint": 1.03, "gradient": 1.03, "reparameterization": 1.3, "tfmot": 1.7}
# How far the same loop may be from itself.
RESOLVED = 0.02
UNMASKED = {"bare": "keras", "bare again": "keras", "bare, tf_keras": "tf_keras"}


def main(
    repetitions: Repetitions = 31,
    steps: Steps = 300,
    threads: Threads = None,
    data_file: DataFile = None,
    json_file: JsonFile = None,
) -> None:
    """Measure and print what a training step costs under each mode of enforcement."""
    with sitting(repetitions, steps, threads, data_file, json_file) as (console, results):
        for count in results["threads"]:
            measured = in_fresh_process(measure_modes, data_file, count, repetitions, steps)
            results["threads"][count] = measured
            _print_modes(console, f"Threads: {count}", measured)


def measure_modes(data_file: Path | None, num_threads: int, repetitions: int, steps: int) -> dict[str, Any]:
    """Seconds a step by contestant, with one number of threads, and which loops are compiled by XLA."""
    environment.use_threads(num_threads)
    splits, _ = load(data_file)
    trainers: dict[str, Trainer] = {}
    with contextlib.ExitStack() as stack:
        for name, library in UNMASKED.items():
            trainers[name] = Trainer(compiled(splits, library), splits, TRAIN)
        for mode, enforced in enforcement.ENFORCEMENTS.items():
            model = compiled(splits, "tf_keras" if mode == "tfmot" else "keras")
            sparse = random_masks(weights.read(model))
            trainers[mode] = trainer = stack.enter_context(contextlib.closing(Trainer(model, splits, TRAIN, enforced)))
            trainer.hold()
            trainer.set_masks(sparse)
        contestants = {name: looping(trainer.loop) for name, trainer in trainers.items()}
        contestants["tfmot fit"] = tfmot_fitting(standardised(splits, steps))
        taken = measure_steps(contestants, repetitions, steps)["steps"]
        for mode in enforcement.ENFORCEMENTS:
            _check_held(mode, trainers[mode])
    return {"steps": taken, "xla": {name: trainer.loop.jit_compile for name, trainer in trainers.items()}}


def _check_held(mode: str, trainer: Trainer) -> None:
    """A mode that is fast because it does not hold the masks would be no news."""
    trained = weights.read(trainer.model)
    for name, mask in trainer.masks.items():
        kept = mask.numpy()
        if np.any(trained[name][~kept]) or not np.any(trained[name][kept]):
            raise AssertionError(f"{mode} did not hold the mask of {name!r}.")


def _print_modes(console: Console, heading: str, measured: Mapping[str, Any]) -> None:
    taken = measured["steps"]
    bare, bare_tf_keras, tfmot_fit = (taken[name] for name in ("bare", "bare, tf_keras", "tfmot fit"))
    lines = []
    for name, times in taken.items():
        to_bare = [one / other for one, other in zip(times, bare, strict=True)]
        lower, _, upper = statistics.quantiles(to_bare, n=4) if len(to_bare) > 1 else to_bare * 3
        ratios = [f"{ratio(times, bare):.3f}", f"{lower:.3f}..{upper:.3f}", f"{min(times) / min(bare):.3f}"]
        others = [f"{ratio(times, bare_tf_keras):.3f}", f"{ratio(tfmot_fit, times):.1f}"]
        xla = {True: "yes", False: "no"}.get(measured["xla"].get(name), "")
        lines.append([name, xla, *milliseconds(times), *ratios, *others])
    heads = ["", "XLA", "ms a step", "min..max", "to bare", "middle half", "fastest", "to tf_keras", "tfmot fit /"]
    print_table(console, f"{heading}; a training step", heads, lines)
    goals = [(f"{mode} / bare", ratio(taken[mode], bare), "{:.3f}", "at most", most) for mode, most in GOALS.items()]
    print_goals(console, heading, goals)
    if abs(ratio(taken["bare again"], bare) - 1) > RESOLVED:
        console.print(f"The machine was too busy: `bare again` is further from 1 than {RESOLVED}.\n", markup=False)


if __name__ == "__main__":
    typer.run(main)
