"""Measure the cost of a training step in each mode of enforcement, as a ratio to the unmasked step.

Measures LeNet-300-100 with batches of 60 and Adam at 1.2e-3, on one thread and on all threads:

- `bare`: our compiled loop without masks. `bare again` repeats it, and shows the precision of the measurement;
- `bare, tf_keras`: the same network built with tf_keras, which tfmot needs;
- each mode of `lottery.enforcement.ENFORCEMENTS` in the same loop, with masks of density 0.2 in boolean variables, and
  with callbacks as in `lottery.run`;
- `tfmot fit`: tensorflow_model_optimization in `fit` of tf_keras, with its own callback.

Command:
    python experiments/benchmark_enforcement.py --data mnist.npz --json enforcement.json

Time: 4 to 5 minutes on two cores. Run it on an idle machine.

As in `benchmark_training.py`, the contestants take turns in a rotating order, and times are medians with ranges. `to
bare` is the median of the ratios within each repetition, with the range of their middle half. `fastest` is the ratio of
the fastest turns, which is steadier when other programs interfere. The last two columns are the ratio to `bare,
tf_keras`, and the ratio of `tfmot fit` to the line. If `bare again` differs from 1 by more than 0.02, the program says
that the machine was too busy.
"""

import contextlib
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import typer
from benchmark_training import (
    SEED,
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

# The largest acceptable ratio to the unmasked step.
GOALS = {"constraint": 1.03, "gradient": 1.03, "reparameterization": 1.3, "tfmot": 1.7}
# The largest acceptable difference between two measurements of the same loop, as a ratio.
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
    """Measure seconds per step of each contestant with one number of threads, and which loops XLA compiles."""
    environment.use_threads(num_threads)
    splits, _ = load(data_file)
    trainers: dict[str, Trainer] = {}
    with contextlib.ExitStack() as stack:
        for name, library in UNMASKED.items():
            trainers[name] = Trainer(compiled(splits, library), splits, TRAIN)
        for name, mode in enforcement.ENFORCEMENTS.items():
            model = compiled(splits, "tf_keras" if mode.tf_keras_only else "keras")
            sparse = random_masks(weights.read(model))
            trainer = stack.enter_context(contextlib.closing(Trainer(model, splits, TRAIN, mode.hold)))
            trainers[name] = trainer
            trainer.hold()
            trainer.set_masks(sparse)
            trainer.loop.begin(sparse, SEED)
        contestants = {name: looping(trainer.loop) for name, trainer in trainers.items()}
        contestants["tfmot fit"] = tfmot_fitting(standardised(splits, steps))
        taken = measure_steps(contestants, repetitions, steps)["steps"]
        for name in enforcement.ENFORCEMENTS:
            _check_held(name, trainers[name])
    return {"steps": taken, "xla": {name: trainer.loop.jit_compile for name, trainer in trainers.items()}}


def _check_held(mode: str, trainer: Trainer) -> None:
    """Check that masks are held: a mode that is fast because it does not hold them would win."""
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
