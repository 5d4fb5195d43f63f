"""Measure the time of a training step, an evaluation, a round and a start, for `lottery` and for other libraries.

Measures LeNet-300-100 with batches of 60 and Adam at 1.2e-3 on MNIST, on one thread and on all threads. Without the
file it uses random images of the same shape, because the time does not depend on the values. It prints

- milliseconds per training step: `bare` (our compiled loop without masks), `lottery` (the same with masks of density
  0.2 held by `lottery.enforcement.constraint`), Keras' own `fit`, `fit` with a callback that multiplies the kernels by
  the masks after each batch, and `fit` of tf_keras on the wrappers of tensorflow_model_optimization (tfmot);
- the time that evaluating the validation split every 100 steps adds to training;
- the fixed cost of a round: prune, rewind, evaluate, write to disk (below the current folder);
- the time to start: imports, `lottery --help`, tracing and compiling.

`benchmark_enforcement.py` measures the cost of each mode of enforcement.

Command:
    python experiments/benchmark_training.py --data mnist.npz --json benchmark.json

Time: 3 to 4 minutes on two cores. Run it on an idle machine.

The contestants take turns in a rotating order, so that other programs affect all of them alike. Each number is a median
over the repetitions, with its range. If a range is wider than a fifth of its median, run the program again with more
`--repetitions`. A ratio is the median of the ratios within each repetition. A step of `fit` is timed between its
`on_train_begin` and `on_train_end`, as in a long training; each call also copies the arrays once, which is shown as
`whole call` and enters no ratio. "One thread" is the number of TensorFlow's threads; Python may run on another core.
"""

import contextlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from lottery import config, data, enforcement, masks, randomness, weights
from lottery.models import networks
from lottery.models.kerases import keras_of
from lottery.pipeline import environment
from lottery.pruning import criteria, plan, ranking, rewinding
from lottery.pruning.settings import Prune
from lottery.runs import store
from lottery.training import compiling
from lottery.training.engine_choice import Engine
from lottery.training.examples import example_batch, scaler
from lottery.training.loop import Loop
from lottery.training.records import Span
from lottery.training.settings import Train
from lottery.training.trainer import Trainer

DENSITY = 0.2
SEED = (0, 1, randomness.BATCHES)
WARM_UP = 200
TRAIN = Train()
EXPERIMENT = config.Experiment(prune=Prune(rate=0.2, rates={"dense_2/kernel": 0.1}))

Repetitions = Annotated[int, typer.Option("--repetitions", min=1, help="Turns per contestant.")]
Steps = Annotated[int, typer.Option("--steps", min=1, help="Training steps per turn.")]
Threads = Annotated[list[int] | None, typer.Option(min=1, help="Threads; can be repeated. Default: 1 and all cores.")]
DataFile = Annotated[
    Path | None,
    typer.Option("--data", help="MNIST as npz. Default: $LOTTERY_DATA/mnist.npz, or random images."),
]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write every measurement to this file.")]

# Seconds by name, one for each repetition.
Samples = dict[str, list[float]]
# From a number of steps to the seconds of these steps, and the seconds of the whole call.
Contestant = Callable[[int], tuple[float, float]]


def main(
    repetitions: Repetitions = 7,
    steps: Steps = 917,
    threads: Threads = None,
    data_file: DataFile = None,
    json_file: JsonFile = None,
) -> None:
    """Measure and print the times of a training step, an evaluation, a round and a start."""
    with sitting(repetitions, steps, threads, data_file, json_file) as (console, results):
        for count in results["threads"]:
            measured = in_fresh_process(measure_training, data_file, count, repetitions, steps)
            results["threads"][count] = measured
            _print_training(console, count, measured)
        results["start"] = start = measure_imports(3)
        for _ in range(2):
            for name, seconds in in_fresh_process(measure_start, data_file, results["cores"]).items():
                start.setdefault(name, []).extend(seconds)
        lines = [
            [name, f"{statistics.median(times):.2f}", value_range(times, "{:.2f}")] for name, times in start.items()
        ]
        print_table(console, "Start, in fresh processes", ["", "s", "min..max"], lines)


def measure_training(data_file: Path | None, num_threads: int, repetitions: int, steps: int) -> dict[str, Samples]:
    """Measure steps, whole calls, evaluations and rounds with one number of threads."""
    environment.use_threads(num_threads)
    splits, _ = load(data_file)
    model = compiled(splits)
    start = weights.read_state(model)
    sparse = random_masks(weights.read(model))
    bare = Trainer(compiled(splits), splits, TRAIN)
    with contextlib.closing(Trainer(model, splits, TRAIN, enforcement.constraint)) as ours:
        ours.hold()
        ours.set_masks(sparse)
        for trainer in bare, ours:
            trainer.loop.begin(sparse, SEED)
        images, alone, called = standardised(splits, steps), compiled(splits), compiled(splits)
        contestants = {
            "bare": looping(bare.loop),
            "lottery": looping(ours.loop),
            "keras fit": fitting(alone, images),
            "keras fit + callback": fitting(called, images, multiplication(called, sparse)),
            "tfmot fit": tfmot_fitting(images),
        }
        measured = measure_steps(contestants, repetitions, steps)
        measured["evaluation"] = measure_evaluation(ours.loop, repetitions)
        measured["round"] = measure_round(ours, start, repetitions)
    return measured


def measure_steps(contestants: Mapping[str, Contestant], repetitions: int, steps: int) -> dict[str, Samples]:
    """Measure seconds per step of contestants that take turns, for the `steps` alone and for whole `calls`."""
    for run in contestants.values():
        run(min(WARM_UP, steps))
    inside: Samples = {name: [] for name in contestants}
    calls: Samples = {name: [] for name in contestants}
    for repetition in range(repetitions):
        first = repetition % len(contestants)
        for name in [*contestants][first:] + [*contestants][:first]:
            seconds, whole = contestants[name](steps)
            inside[name].append(seconds / steps)
            calls[name].append(whole / steps)
    return {"steps": inside, "calls": calls}


def measure_evaluation(loop: Loop, repetitions: int) -> Samples:
    """Measure what evaluating every 100 steps adds to training.

    After each evaluation the weights are kept as the best so far, which is the highest cost.
    """
    batches = loop.batches(SEED)
    samples: Samples = {}
    timed = timer(samples)

    def train() -> None:
        float(loop.steps(*batches(TRAIN.eval_every))["loss"])

    def cycle() -> None:
        train()
        logs = loop.evaluations["validation"]()
        float(logs["loss"])
        float(logs["accuracy"])
        weights.read_state(loop.model)

    cycle()
    for _ in range(4 * repetitions):
        timed("steps alone", train)
        timed("steps, evaluation, best weights kept", cycle)
        timed("one evaluation of the validation split", lambda: float(loop.evaluations["validation"]()["loss"]))
        timed("keeping the best weights", lambda: weights.read_state(loop.model))
    return samples


def measure_round(trainer: Trainer, start: Mapping[str, np.ndarray], repetitions: int) -> Samples:
    """Measure the cost of a round apart from its steps, item by item, and `in one go` as in a run with a single step.

    Measures round 1, which ranks the most entries. `start` is every variable at step 0.
    """
    loop = trainer.loop
    dense = masks.ones_like({name: start[name] for name in trainer.masks})
    trained = weights.read_state(loop.model)
    # As many rows as the 50,000 steps of the paper leave, evaluated every 100.
    rows = [(step, split, 0.1, 0.9) for step in range(0, 50_001, 100) for split in ("train", "validation")]
    samples: Samples = {}
    timed = timer(samples)
    rng = randomness.generator(0)  # neither magnitude nor rewinding to weights draws anything

    def prune() -> tuple[masks.Masks, dict[str, Any]]:
        planned = plan.of_weights(EXPERIMENT.prune, dense)
        scores = criteria.CRITERIA["magnitude"].score(planned.criterion_inputs(1, start, trained, dense, rng))
        kept = planned.masks(1, scores, dense)
        return kept, {"thresholds": ranking.thresholds(scores, dense, kept)}

    def evaluate(split: str) -> float:
        return float(loop.evaluations[split]()["loss"])

    def in_parts(folder: Path) -> None:
        kept, record = timed("score, prune, thresholds", prune)
        timed("assign masks", lambda: trainer.set_masks(kept))
        begin = timed("rewind", lambda: rewinding.rewound("weights", start, trained, kept, rng))
        timed("assign weights", lambda: weights.assign(loop.model, begin))
        timed("reset optimiser", trainer.reset)
        timed("fingerprint", lambda: weights.fingerprint(weights.read_state(loop.model)))
        timed("evaluate validation", lambda: evaluate("validation"))
        timed("evaluate test (last)", lambda: evaluate("test"))
        timed("assign best, evaluate test (best)", lambda: (weights.assign(loop.model, begin), evaluate("test")))
        timed("read weights", lambda: weights.read_state(loop.model))
        timed("write round", lambda: store.write_round(folder, kept, trained, rows, record))

    def in_one_go(folder: Path) -> None:
        kept, record = prune()
        done = trainer.train(start, kept, SEED, Span(0, 1))
        store.write_round(folder, kept, done.weights, rows, record)

    # Below the current folder, as runs are: what a flush to the disk costs depends on the disk.
    with tempfile.TemporaryDirectory(prefix=".benchmark-", dir=Path.cwd()) as folder:
        for repetition in range(repetitions):
            in_parts(Path(folder, f"items-{repetition}"))
            timed("in one go", lambda path=Path(folder, f"whole-{repetition}"): in_one_go(path))
    return samples


def measure_start(data_file: Path | None, num_threads: int) -> Samples:
    """Measure the time until the first steps are trained, in a process that has imported nothing yet."""
    samples: Samples = {}
    timed = timer(samples)

    def import_all() -> None:
        environment.use_threads(num_threads)
        import keras  # noqa: F401

    timed("import TensorFlow and Keras, in process", import_all)
    splits, _ = timed("read and split the data", lambda: load(data_file))
    model = timed("build and compile the model", lambda: compiled(splits))
    trainer = timed("make the trainer", lambda: Trainer(model, splits, TRAIN, enforcement.constraint))
    with contextlib.closing(trainer):
        trainer.hold()
        loop = trainer.loop
        loop.begin({}, SEED)
        run = looping(loop)
        timed(f"first call: trace, XLA, {TRAIN.eval_every} steps", lambda: run(TRAIN.eval_every))
        timed(f"second call: {TRAIN.eval_every} steps", lambda: run(TRAIN.eval_every))
        for split, evaluate in loop.evaluations.items():
            timed(f"first evaluation, {split}", lambda evaluate=evaluate: float(evaluate()["loss"]))
    return samples


def measure_imports(repetitions: int) -> Samples:
    """Time whole processes that only import, or only print their help."""
    commands = {
        "python -c pass": ["-c", "pass"],
        "python -c 'import lottery'": ["-c", "import lottery"],
        "lottery --help": ["-m", "lottery", "--help"],
        "python -c 'import tensorflow'": ["-c", "import tensorflow"],
    }
    samples: Samples = {}
    timed = timer(samples)
    for _ in range(repetitions):
        for name, words in commands.items():
            line = [sys.executable, *words]
            timed(name, lambda line=line: subprocess.run(line, check=True, capture_output=True))
    return samples


def looping(engine: Engine) -> Contestant:
    """Train in pieces of 100 steps, as between evaluations, and read the loss after each; the engine has begun."""

    def run(num_steps: int) -> tuple[float, float]:
        began = time.perf_counter()
        for first in range(0, num_steps, TRAIN.eval_every):
            float(engine.advance(min(TRAIN.eval_every, num_steps - first))["loss"])
        seconds = time.perf_counter() - began
        return seconds, seconds

    return run


def standardised(splits: data.Splits, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Make the data for `fit`: the images that a turn sees once, as floats, and their labels."""
    positions = np.arange(max(steps, WARM_UP) * TRAIN.batch_size) % len(splits.train)
    return np.asarray(scaler(splits)(splits.train.x[positions])), splits.train.y[positions]


def fitting(model: Any, images: tuple[np.ndarray, np.ndarray], *callbacks: Any) -> Contestant:
    """Train with `fit` of the model's own Keras."""

    class Stopwatch(keras_of(model).callbacks.Callback):
        """Measure the seconds for which `fit` trains."""

        def on_train_begin(self, logs: Any = None) -> None:
            self.began = time.perf_counter()

        def on_train_end(self, logs: Any = None) -> None:
            self.seconds = time.perf_counter() - self.began

    (x, y), size, watch = images, TRAIN.batch_size, Stopwatch()

    def run(num_steps: int) -> tuple[float, float]:
        count, began = num_steps * size, time.perf_counter()
        model.fit(x[:count], y[:count], batch_size=size, verbose=0, callbacks=[*callbacks, watch])
        return watch.seconds, time.perf_counter() - began

    return run


def multiplication(model: Any, kept: masks.Masks) -> Any:
    """Make the common callback that multiplies every kernel by its mask after each batch."""
    import keras
    import tensorflow as tf

    pairs = [(kernel, tf.constant(kept[name], tf.float32)) for name, kernel in weights.prunable(model).items()]

    def multiply(batch: int, logs: Any = None) -> None:
        for kernel, factor in pairs:
            kernel.assign(kernel * factor)

    return keras.callbacks.LambdaCallback(on_train_batch_end=multiply)


def tfmot_fitting(images: tuple[np.ndarray, np.ndarray], density: float = DENSITY) -> Contestant:
    """Train with `fit` of tf_keras on tfmot's wrappers, which prune to a density, as in tfmot's guide."""
    import tf_keras
    from tensorflow_model_optimization.sparsity import keras as tfmot  # type: ignore[reportMissingImports]

    schedule = tfmot.ConstantSparsity(1 - density, begin_step=0)
    wrapped = tfmot.prune_low_magnitude(networks.lenet_300_100(keras=tf_keras), schedule)
    compiling.compile_model(wrapped, TRAIN, images[0][:8])
    return fitting(wrapped, images, tfmot.UpdatePruningStep())


def compiled(splits: data.Splits, library: str = "keras") -> Any:
    """Build and compile LeNet-300-100 from the same initial weights every time."""
    import keras

    keras.utils.set_random_seed(0)
    model = networks.builder("lenet_300_100", (28, 28), 10, library)()
    compiling.compile_model(model, TRAIN, example_batch(splits)[0])
    return model


def random_masks(arrays: Mapping[str, np.ndarray]) -> masks.Masks:
    """Draw random masks of density 0.2, entry by entry."""
    generator = np.random.default_rng(0)
    return {name: generator.random(value.shape) < DENSITY for name, value in arrays.items()}


def load(data_file: Path | None) -> tuple[data.Splits, str]:
    """Load the data, with their name."""
    if found := mnist_file(data_file):
        return data.load(data.Data(name="mnist", path=str(found))), "MNIST"
    return data.split(random_images(), data.Data()), "random images in the shape of MNIST"


def mnist_file(data_file: Path | None) -> Path | None:
    """Return the file of MNIST: the given one, or that in $LOTTERY_DATA; None if there is none."""
    folder = os.environ.get("LOTTERY_DATA", "")
    if data_file is None and folder and Path(folder, "mnist.npz").exists():
        return Path(folder, "mnist.npz")
    return data_file


def random_images(
    num_train: int = 60_000, num_test: int = 10_000, shape: tuple[int, ...] = (28, 28)
) -> dict[str, np.ndarray]:
    """Draw images and labels, of the shape of MNIST unless another is given."""
    generator = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", num_train), ("test", num_test)):
        arrays[f"x_{part}"] = generator.integers(0, 256, (count, *shape), np.uint8)
        arrays[f"y_{part}"] = generator.integers(0, 10, count)
    return arrays


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a new process, because a process cannot change TensorFlow's number of threads."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), silence) as process:
        return process.submit(function, *arguments).result()


@contextlib.contextmanager
def sitting(
    repetitions: int, steps: int, threads: list[int] | None, data_file: Path | None, json_file: Path | None
) -> Iterator[tuple[Console, dict[str, Any]]]:
    """Frame a benchmark of steps of LeNet-300-100.

    Yields:
        The console, and a dict for the results; its item `threads` has a dict for each number of threads.
    """
    settings = f"LeNet-300-100, batch 60, Adam 1.2e-3, {load(data_file)[1]}; {repetitions} repetitions of {steps} steps"
    with framed(settings, json_file) as (console, results):
        counts = dict.fromkeys(threads or sorted({1, results["cores"]}))
        results |= {"repetitions": repetitions, "steps": steps, "threads": counts}
        yield console, results


@contextlib.contextmanager
def framed(settings: str, json_file: Path | None) -> Iterator[tuple[Console, dict[str, Any]]]:
    """Frame a benchmark: print its settings and its duration, and write the measurements as JSON.

    Yields:
        The console, and a dict for the results, which has the number of `cores`.
    """
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # Do not wrap lines on a pipe.
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=120)
    began = time.perf_counter()
    console.print(f"{settings}; {cores} cores.\n")
    results = {"cores": cores}
    yield console, results
    console.print(f"Measured in {time.perf_counter() - began:.0f} s.")
    if json_file is not None:
        json_file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def print_table(console: Console, title: str, heads: list[str], lines: list[list[str]]) -> None:
    """Print a table whose columns are numbers, except the first."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, head in enumerate(heads):
        table.add_column(head, justify="right" if index else "left", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    console.print(table, markup=False)
    console.print()


def print_goals(console: Console, heading: str, goals: list[tuple[str, float, str, str, float]]) -> None:
    """Print which goals are met. A goal is a name, a value, its format, "at most" or "at least", and the bound."""
    lines = []
    for what, value, digits, word, bound in goals:
        met = value <= bound if word == "at most" else value >= bound
        lines.append([what, digits.format(value), f"{word} {digits.format(bound)}", "met" if met else "MISSED"])
    print_table(console, f"{heading}; goals", ["", "measured", "goal", ""], lines)


def milliseconds(seconds: Sequence[float]) -> list[str]:
    """Format the median and range of measurements, in milliseconds."""
    values = [1000 * value for value in seconds]
    digits = "{:.3f}" if statistics.median(values) < 10 else "{:.1f}"
    return [digits.format(statistics.median(values)), value_range(values, digits)]


def ratio(times: list[float], others: list[float]) -> float:
    """Compute the median of the ratios within each repetition."""
    return statistics.median(one / other for one, other in zip(times, others, strict=True))


def timer(samples: Samples) -> Callable[[str, Callable[[], Any]], Any]:
    """Make a function that calls another, and adds its duration in seconds to samples under a name."""

    def timed(name: str, function: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        value = function()
        samples.setdefault(name, []).append(time.perf_counter() - began)
        return value

    return timed


def value_range(values: list[float], digits: str) -> str:
    """Format the lowest and the highest of some values."""
    return f"{digits.format(min(values))}..{digits.format(max(values))}"


def _print_training(console: Console, num_threads: int, measured: Mapping[str, Samples]) -> None:
    taken, calls, evaluation, parts = (measured[name] for name in ("steps", "calls", "evaluation", "round"))
    heading = f"Threads: {num_threads}"
    lines = [
        [name, *milliseconds(times), f"{ratio(times, taken['bare']):.2f}", milliseconds(calls[name])[0]]
        for name, times in taken.items()
    ]
    heads = ["", "ms a step", "min..max", "ratio to bare", "whole call"]
    print_table(console, f"{heading}; a training step", heads, lines)

    lines = [[name, *milliseconds(times)] for name, times in evaluation.items()]
    print_table(console, f"{heading}; {TRAIN.eval_every} steps and an evaluation", ["", "ms", "min..max"], lines)

    items = {name: times for name, times in parts.items() if name != "in one go"}
    total = [sum(values) for values in zip(*items.values(), strict=True)]
    items |= {"total of these": total, "in one go, with train() of 1 step": parts["in one go"]}
    lines = [[name, *milliseconds(times)] for name, times in items.items()]
    print_table(console, f"{heading}; a round, apart from its steps", ["", "ms", "min..max"], lines)

    evaluated = ratio(evaluation["steps, evaluation, best weights kept"], evaluation["steps alone"]) - 1
    goals = [("lottery / bare", ratio(taken["lottery"], taken["bare"]), "{:.2f}", "at most", 1.1)]
    for what, times in (("whole calls", calls), ("steps alone", taken)):
        for name in ("keras fit + callback", "tfmot fit"):
            value = ratio(times[name], times["lottery"])
            goals.append((f"{name} / lottery, {what}", value, "{:.1f}", "at least", 4))
    goals += [
        (f"evaluating every {TRAIN.eval_every} steps adds", evaluated, "{:.0%}", "at most", 0.35),
        ("a round, apart from its steps", statistics.median(total), "{:.2f} s", "at most", 0.5),
    ]
    print_goals(console, heading, goals)


def silence() -> None:
    """Send what a process prints nowhere."""
    # TensorFlow and tfmot print much that no log level silences; exceptions still reach the parent.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


if __name__ == "__main__":
    typer.run(main)
