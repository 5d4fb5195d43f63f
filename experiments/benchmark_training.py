"""How long a training step, an evaluation, a round and a start take, ours and others', in one sitting.

Measures LeNet-300-100 with batches of 60 and Adam at 1.2e-3 on MNIST (random images of the same shape where the
file is not at hand: the time does not depend on the values), on one thread and on all of them:

- milliseconds a training step: `bare` (our compiled loop, no mask), `lottery` (the same with masks of density 0.2
  held by `lottery.enforcement.constraint`), Keras' own `fit`, `fit` with a callback that multiplies the kernels by
  the masks after each batch, and `fit` of tf_keras on the wrappers of tensorflow_model_optimization (tfmot);
- what evaluating the validation split every 100 steps adds to training;
- what a round costs whatever its length: prune, rewind, evaluate, write to disk (below the current folder);
- how long it takes to start: imports, `lottery --help`, tracing and compiling.

Command:
    python experiments/benchmark_training.py --data mnist.npz --json benchmark.json

It takes 3 to 4 minutes on two cores. Run it on a machine that does nothing else. The contestants take turns, in an
order that rotates, so that what else the machine does hits all of them alike. Each number is a median over the
repetitions with the range beside it; where a range is wider than a fifth of its median, run it again with more
`--repetitions`. A ratio is the median of the ratios within each repetition. A step of `fit` is timed between its
`on_train_begin` and `on_train_end`, as in a long training: copying the arrays, which each call does once, is shown
as `whole call` and enters no ratio. One thread is what TensorFlow computes with; Python may run beside it on another
core.
"""

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from lottery import (
    compiling,
    config,
    criteria,
    data,
    enforcement,
    environment,
    masks,
    models,
    order,
    pruning,
    rewinding,
    store,
    training,
    weights,
)
from lottery.loop import Loop, compile_loop, example_batch, reset, scaler

DENSITY = 0.2
EVAL_EVERY = 100
SEED = (0, 1, order.BATCHES)
WARM_UP = 200
PRUNE = config.Prune(rate=0.2, rates={"dense_2/kernel": 0.1})

Samples = dict[str, list[float]]
# From a number of steps to the seconds that these took, and the seconds of the whole call.
Contestant = Callable[[int], tuple[float, float]]


def main(
    repetitions: Annotated[int, typer.Option(min=1, help="Turns that each contestant takes.")] = 7,
    steps: Annotated[int, typer.Option(min=1, help="Training steps in a turn.")] = 917,
    threads: Annotated[
        list[int] | None, typer.Option(min=1, help="Threads; repeat the option. [default: 1 and all cores]")
    ] = None,
    data_file: Annotated[
        Path | None,
        typer.Option("--data", help="MNIST as npz; without it $LOTTERY_DATA/mnist.npz, or else random images."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every single measurement there.")] = None,
    worker: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure and print: a training step, an evaluation, a round, a start."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    if worker is not None:
        assert json_file is not None and threads is not None
        measured = (
            measure_start(data_file, threads[0])
            if worker == "start"
            else measure_training(data_file, threads[0], repetitions, steps)
        )
        json_file.write_text(json.dumps(measured), encoding="utf-8")
        return

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # On a pipe nothing is to be wrapped.
    console = Console(highlight=False) if sys.stdout.isatty() else Console(highlight=False, width=110)
    began = time.perf_counter()
    console.print(
        f"LeNet-300-100, batch 60, Adam 1.2e-3, {_load(data_file)[1]}; {cores} cores; "
        f"{repetitions} repetitions of {steps} steps."
    )
    results: dict[str, Any] = {"cores": cores, "repetitions": repetitions, "steps": steps, "threads": {}}
    for count in threads or sorted({1, cores}):
        results["threads"][count] = measured = _in_fresh_process("training", data_file, count, repetitions, steps)
        _print_training(console, count, measured)
    results["start"] = start = measure_imports(3)
    for _ in range(2):
        for name, seconds in _in_fresh_process("start", data_file, cores, repetitions, steps).items():
            start.setdefault(name, []).extend(seconds)
    _print_start(console, start)
    console.print(f"Measured in {time.perf_counter() - began:.0f} s.")
    if json_file is not None:
        json_file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def measure_training(data_file: Path | None, num_threads: int, repetitions: int, steps: int) -> dict[str, Samples]:
    """Everything that is measured with one number of threads, which TensorFlow fixes for the life of a process.

    Args:
        data_file: MNIST as npz, or None.
        num_threads: Threads that TensorFlow computes with.
        repetitions: Turns of each contestant.
        steps: Training steps in a turn.

    Returns:
        By section (`steps`, `calls`, `evaluation`, `round`), seconds by name, one for each repetition.
    """
    environment.use_threads(num_threads)
    splits, _ = _load(data_file)
    settings = config.Train(eval_every=EVAL_EVERY)
    model = _compiled(splits, settings)
    start = weights.read_state(model)
    held = enforcement.mask_variables(masks.ones_like(weights.read(model)))
    sparse = _random_masks(weights.read(model))
    bare = compile_loop(_compiled(splits, settings), splits, settings, {})
    with enforcement.constraint(model, held):
        ours = compile_loop(model, splits, settings, held)
        for name, mask in sparse.items():
            held[name].assign(mask)
        contestants = {
            "bare": _looping(bare),
            "lottery": _looping(ours),
            **_fitting(splits, settings, sparse, steps),
        }
        measured = measure_steps(contestants, repetitions, steps)
        measured["evaluation"] = measure_evaluation(ours, repetitions)
        measured["round"] = measure_round(ours, held, start, repetitions)
    return measured


def measure_steps(contestants: Mapping[str, Contestant], repetitions: int, steps: int) -> dict[str, Samples]:
    """Let contestants take turns.

    Args:
        contestants: By name, a function that trains for a number of steps and returns the seconds that they took,
            and those of the whole call.
        repetitions: Turns of each.
        steps: Training steps in a turn.

    Returns:
        Seconds a step by contestant, of the `steps` alone and of whole `calls`.
    """
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
    """What evaluating every 100 steps adds to training.

    Args:
        loop: The loop.
        repetitions: How often each is measured.

    Returns:
        Seconds of 100 steps, alone and with an evaluation of the validation split after them of which the weights are
        kept as the best so far, which is the most that it can cost; and of the parts.
    """
    batches = loop.batches(SEED)
    samples: Samples = {}

    def cycle(evaluate: bool) -> None:
        float(loop.steps(*batches(EVAL_EVERY))["loss"])
        if evaluate:
            logs = loop.evaluations["validation"]()
            float(logs["loss"]), float(logs["accuracy"])
            weights.read_state(loop.model)

    cycle(True)
    for _ in range(4 * repetitions):
        for name, function in {
            "steps alone": lambda: cycle(False),
            "steps, evaluation, best weights kept": lambda: cycle(True),
            "one evaluation of the validation split": lambda: float(loop.evaluations["validation"]()["loss"]),
            "keeping the best weights": lambda: weights.read_state(loop.model),
        }.items():
            samples.setdefault(name, []).append(_seconds(function))
    return samples


def measure_round(loop: Loop, held: Mapping[str, Any], start: Mapping[str, np.ndarray], repetitions: int) -> Samples:
    """What a round costs apart from its steps: round 1, where the most entries are ranked.

    Args:
        loop: A loop whose masked entries are held by `held`.
        held: Mask variables by weight.
        start: Every variable at step 0.
        repetitions: How often the round is gone through.

    Returns:
        Seconds by item, and `in one go` for the same as a run does it, with a training run of one step.
    """
    dense = masks.ones_like({name: start[name] for name in held})
    initial = {name: start[name] for name in held}
    trained = weights.read_state(loop.model)
    # As many rows as the 50,000 steps of the paper leave, evaluated every 100.
    rows = [(step, split, 0.1, 0.9) for step in range(0, 50_001, EVAL_EVERY) for split in ("train", "validation")]
    one_step = config.Train(num_steps=1, eval_every=EVAL_EVERY)
    samples: Samples = {}

    @contextlib.contextmanager
    def item(name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        samples.setdefault(name, []).append(time.perf_counter() - began)

    def prune() -> tuple[masks.Masks, dict[str, Any]]:
        scores = criteria.CRITERIA["magnitude"](initial, {name: trained[name] for name in held})
        kept = pruning.round_masks(PRUNE, 1, scores, dense)
        return kept, {"thresholds": pruning.thresholds(scores, dense, kept)}

    def assign_masks(kept: masks.Masks) -> None:
        for name, mask in kept.items():
            held[name].assign(mask)

    # Below the current folder, as runs are: what a flush to the disk costs depends on the disk.
    with tempfile.TemporaryDirectory(prefix=".benchmark-", dir=Path.cwd()) as folder:
        for repetition in range(repetitions):
            with item("score, prune, thresholds"):
                kept, record = prune()
            with item("assign masks"):
                assign_masks(kept)
            with item("rewind"):
                begin = rewinding.rewound(start, kept)
            with item("assign weights"):
                weights.assign(loop.model, begin)
            with item("reset optimiser"):
                reset(loop)
            with item("fingerprint"):
                rewinding.fingerprint(weights.read_state(loop.model))
            with item("evaluate validation"):
                float(loop.evaluations["validation"]()["loss"])
            with item("evaluate test (last)"):
                float(loop.evaluations["test"]()["loss"])
            with item("assign best, evaluate test (best)"):
                weights.assign(loop.model, begin)
                float(loop.evaluations["test"]()["loss"])
            with item("read weights"):
                weights.read_state(loop.model)
            with item("write round"):
                store.write_round(Path(folder, f"items-{repetition}"), kept, trained, rows, record)
            with item("in one go"):
                kept, record = prune()
                done = training.train(loop, start, kept, one_step, SEED)
                store.write_round(Path(folder, f"whole-{repetition}"), kept, done.weights, rows, record)
    return samples


def measure_start(data_file: Path | None, num_threads: int) -> Samples:
    """What it takes, in a process that has imported nothing yet, until the first steps are trained.

    Args:
        data_file: MNIST as npz, or None.
        num_threads: Threads that TensorFlow computes with.

    Returns:
        Seconds by item.
    """
    samples: Samples = {}

    def timed(name: str, function: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        value = function()
        samples[name] = [time.perf_counter() - began]
        return value

    def import_all() -> None:
        environment.use_threads(num_threads)
        import keras  # noqa: F401

    timed("import TensorFlow and Keras, in process", import_all)
    splits, _ = timed("read and split the data", lambda: _load(data_file))
    settings = config.Train()
    model = timed("build and compile the model", lambda: _compiled(splits, settings))
    held = enforcement.mask_variables(masks.ones_like(weights.read(model)))
    with enforcement.constraint(model, held):
        loop = timed("compile_loop", lambda: compile_loop(model, splits, settings, held))
        batches = loop.batches(SEED)
        call = lambda: float(loop.steps(*batches(EVAL_EVERY))["loss"])  # noqa: E731
        timed(f"first call: trace, XLA, {EVAL_EVERY} steps", call)
        timed(f"second call: {EVAL_EVERY} steps", call)
        for split, evaluate in loop.evaluations.items():
            timed(f"first evaluation, {split}", lambda evaluate=evaluate: float(evaluate()["loss"]))
    return samples


def measure_imports(repetitions: int) -> Samples:
    """Seconds that whole processes take which only import, or only print their help."""
    commands = {
        "python -c pass": ["-c", "pass"],
        "python -c 'import lottery'": ["-c", "import lottery"],
        "lottery --help": ["-m", "lottery", "--help"],
        "python -c 'import tensorflow'": ["-c", "import tensorflow"],
    }

    def run(words: list[str]) -> None:
        subprocess.run([sys.executable, *words], check=True, capture_output=True)

    samples: Samples = {name: [] for name in commands}
    for _ in range(repetitions):
        for name, words in commands.items():
            samples[name].append(_seconds(lambda words=words: run(words)))
    return samples


def _looping(loop: Loop) -> Contestant:
    """Train in the pieces that evaluating every `EVAL_EVERY` steps makes, the loss looked at after each."""
    batches = loop.batches(SEED)

    def run(num_steps: int) -> tuple[float, float]:
        began = time.perf_counter()
        for first in range(0, num_steps, EVAL_EVERY):
            float(loop.steps(*batches(min(EVAL_EVERY, num_steps - first)))["loss"])
        seconds = time.perf_counter() - began
        return seconds, seconds

    return run


def _fitting(splits: data.Splits, settings: config.Train, kept: masks.Masks, steps: int) -> dict[str, Contestant]:
    """The contestants that train by `fit`, on the images that `steps` steps see once, as standardised floats."""
    import keras
    import tf_keras
    from tensorflow_model_optimization.sparsity import keras as tfmot

    size = settings.batch_size
    positions = np.arange(max(steps, WARM_UP) * size) % len(splits.train)
    x, y = np.asarray(scaler(splits)(splits.train.x[positions])), splits.train.y[positions]

    def fit(library: Any, model: Any, *callbacks: Any) -> Contestant:
        watch = _stopwatch(library)

        def run(num_steps: int) -> tuple[float, float]:
            several = slice(num_steps * size)
            began = time.perf_counter()
            model.fit(x[several], y[several], batch_size=size, verbose=0, callbacks=[*callbacks, watch])
            return watch.seconds, time.perf_counter() - began

        return run

    wrapped = tfmot.prune_low_magnitude(
        models.lenet_300_100(keras=tf_keras), tfmot.ConstantSparsity(1 - DENSITY, begin_step=0)
    )
    wrapped.compile(
        optimizer=compiling.optimizer(tf_keras, settings),
        loss=tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return {
        "keras fit": fit(keras, _compiled(splits, settings)),
        "keras fit + callback": fit(keras, _compiled(splits, settings), _multiplication(kept)),
        "tfmot fit": fit(tf_keras, wrapped, tfmot.UpdatePruningStep()),
    }


def _stopwatch(library: Any) -> Any:
    class Stopwatch(library.callbacks.Callback):
        """The seconds that `fit` trained for."""

        seconds = 0.0

        def on_train_begin(self, logs: Any = None) -> None:
            self.began = time.perf_counter()

        def on_train_end(self, logs: Any = None) -> None:
            self.seconds = time.perf_counter() - self.began

    return Stopwatch()


def _multiplication(kept: masks.Masks) -> Any:
    """What people write: after each batch, every kernel times its mask."""
    import keras
    import tensorflow as tf

    factors = {name: tf.constant(mask, tf.float32) for name, mask in kept.items()}

    class MultiplyByMasks(keras.callbacks.Callback):
        """Sets masked entries to zero at the end of each batch."""

        def on_train_begin(self, logs: Any = None) -> None:
            kernels = weights.prunable(self.model)
            self.pairs = [(kernels[name], factor) for name, factor in factors.items()]

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            for kernel, factor in self.pairs:
                kernel.assign(kernel * factor)

    return MultiplyByMasks()


def _compiled(splits: data.Splits, settings: config.Train) -> Any:
    import keras

    keras.utils.set_random_seed(0)
    model = models.lenet_300_100()
    compiling.compile_model(model, settings, example_batch(splits)[0])
    return model


def _random_masks(arrays: Mapping[str, np.ndarray]) -> masks.Masks:
    generator = np.random.default_rng(0)
    return {name: generator.random(value.shape) < DENSITY for name, value in arrays.items()}


def _load(data_file: Path | None) -> tuple[data.Splits, str]:
    """The data, and what they are."""
    folder = os.environ.get("LOTTERY_DATA", "")
    if data_file is not None or (folder and Path(folder, "mnist.npz").exists()):
        return data.load(config.Data(name="mnist", path=str(data_file or ""))), "MNIST"
    generator = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 60_000), ("test", 10_000)):
        arrays[f"x_{part}"] = generator.integers(0, 256, (count, 28, 28), np.uint8)
        arrays[f"y_{part}"] = generator.integers(0, 10, count)
    return data.split(arrays, config.Data()), "random images in the shape of MNIST"


def _in_fresh_process(worker: str, data_file: Path | None, num_threads: int, repetitions: int, steps: int) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        words = ["--worker", worker, "--threads", num_threads, "--repetitions", repetitions, "--steps", steps]
        words += ["--json", answer, *(["--data", data_file] if data_file else [])]
        # Kept back unless it fails: TensorFlow and tfmot have much to say that no log level silences.
        done = subprocess.run([sys.executable, __file__, *map(str, words)], capture_output=True, text=True)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            raise typer.Exit(1)
        return json.loads(answer.read_text(encoding="utf-8"))


def _print_training(console: Console, num_threads: int, measured: Mapping[str, Samples]) -> None:
    taken, evaluation, parts = measured["steps"], measured["evaluation"], measured["round"]
    heading = f"{num_threads} thread{'s' if num_threads > 1 else ''}"
    lines = []
    for name, times in taken.items():
        ratio, whole_call = _ratio(times, taken["bare"]), _milliseconds(measured["calls"][name])[0]
        lines.append([name, *_milliseconds(times), f"{ratio:.2f}", whole_call])
    heads = ["", "ms a step", "min..max", "ratio to bare", "whole call"]
    _print_table(console, f"{heading}: a training step", heads, lines)

    lines = [[name, *_milliseconds(times)] for name, times in evaluation.items()]
    _print_table(console, f"{heading}: {EVAL_EVERY} steps and an evaluation", ["", "ms", "min..max"], lines)

    items = {name: times for name, times in parts.items() if name != "in one go"}
    total = [sum(values) for values in zip(*items.values(), strict=True)]
    lines = [[name, *_milliseconds(times)] for name, times in items.items()]
    lines += [["total of these", *_milliseconds(total)]]
    lines += [["in one go, with train() of 1 step", *_milliseconds(parts["in one go"])]]
    _print_table(console, f"{heading}: a round, apart from its steps", ["", "ms", "min..max"], lines)

    calls = measured["calls"]
    callback, tfmot, whole_callback, whole_tfmot = (
        _ratio(times[name], times["lottery"])
        for times in (taken, calls)
        for name in ("keras fit + callback", "tfmot fit")
    )
    evaluated = _ratio(evaluation["steps, evaluation, best weights kept"], evaluation["steps alone"]) - 1
    ours, seconds = _ratio(taken["lottery"], taken["bare"]), statistics.median(total)
    goals = [
        ("lottery / bare", f"{ours:.2f}", "at most 1.10", ours <= 1.10),
        ("keras fit + callback / lottery, whole calls", f"{whole_callback:.1f}", "at least 4", whole_callback >= 4),
        ("tfmot fit / lottery, whole calls", f"{whole_tfmot:.1f}", "at least 4", whole_tfmot >= 4),
        ("keras fit + callback / lottery, steps alone", f"{callback:.1f}", "at least 4", callback >= 4),
        ("tfmot fit / lottery, steps alone", f"{tfmot:.1f}", "at least 4", tfmot >= 4),
        (f"evaluating every {EVAL_EVERY} steps adds", f"{evaluated:.0%}", "at most 35%", evaluated <= 0.35),
        ("a round, apart from its steps", f"{seconds:.2f} s", "at most 0.5 s", seconds <= 0.5),
    ]
    lines = [[what, value, goal, "met" if met else "MISSED"] for what, value, goal, met in goals]
    _print_table(console, f"{heading}: goals", ["", "measured", "goal", ""], lines)


def _print_start(console: Console, start: Samples) -> None:
    lines = [[name, f"{statistics.median(times):.2f}", _range(times, "{:.2f}")] for name, times in start.items()]
    _print_table(console, "Start, in fresh processes", ["", "s", "min..max"], lines)


def _print_table(console: Console, title: str, heads: list[str], lines: list[list[str]]) -> None:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, head in enumerate(heads):
        table.add_column(head, justify="right" if index else "left", no_wrap=True)
    for line in lines:
        table.add_row(*line)
    console.print(table, markup=False)
    console.print()


def _milliseconds(seconds: list[float]) -> list[str]:
    """Median and range of measurements, in milliseconds."""
    values = [1000 * value for value in seconds]
    digits = "{:.3f}" if statistics.median(values) < 10 else "{:.1f}"
    return [digits.format(statistics.median(values)), _range(values, digits)]


def _range(values: list[float], digits: str) -> str:
    return f"{digits.format(min(values))}..{digits.format(max(values))}"


def _ratio(times: list[float], others: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(times, others, strict=True))


def _seconds(function: Callable[[], Any]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
