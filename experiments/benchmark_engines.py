"""Measure the sparse engine against the compiled loop, and against `fit` of other libraries.

Measures LeNet-300-100 with batches of 60 and Adam at 1.2e-3 on MNIST, on one thread, under masks of a run. Without
`--run` it first makes a short run of `lenet_mnist.toml` in a temporary folder. Without the file of MNIST it uses random
images of the same shape. It prints

- milliseconds per training step and per evaluation of the validation split, at several densities: the compiled loop
  (`train.engine = "compiled"`), the sparse engine (`"sparse"`), and the ratio;
- how many times as fast as Keras' `fit` with a callback that multiplies by the masks, and as `fit` of tf_keras on the
  wrappers of tensorflow_model_optimization (tfmot), is a step of the sparse engine;
- the seconds that the first use of the sparse engine on a machine takes, and a later one in another process.

Other options measure something else instead. They can be combined:

- `--network`: steps of the network of a built-in experiment, as `resnet_20_cifar10`, with its batches, optimizer and
  augmentation, on random images of the shape of CIFAR-10. Its masks are of the initial weights, pruned by magnitude as
  the experiment prunes; or with `--run` those of a run of this network, with the weights that its rounds start from.
  GFLOP/s are the products and sums of the weights that are kept, divided by the time of the whole step;
  `limits_of_tiles.py` prints how many the processor reaches at best. With `--processor` it is the time of the
  processor, which other programs disturb less;
- `--whole`: the README's MNIST experiment, with both controls, as whole `lottery run` commands with
  `train.engine = "compiled"` and `"auto"` in turns: seconds of the commands, and of the sparsest ten rounds;
- `--original`: a network of five small dense layers (softsign, with a tanh output) on made-up data, in the same way:
  the density from which `"auto"` uses the sparse engine, and the seconds of each round;
- `--agreement`: five replicates of LeNet-300-100, dense and in four rounds, trained by each engine alone: the
  difference in test accuracy, with its 95 % interval.

With `--network`, `--whole` measures whole commands of that experiment, fifteen rounds of one replicate with two
controls: the compiled loop without and with oneDNN, and what `lottery` chooses (`"auto"`). `--agreement` trains five
replicates of that network, dense and in two rounds. `--data` is then a file of CIFAR-10.

Commands:
    python experiments/benchmark_engines.py --data mnist.npz --json engines.json
    python experiments/benchmark_engines.py --network resnet_20_cifar10 --repetitions 5 --steps 3
    python experiments/benchmark_engines.py --data mnist.npz --whole
    python experiments/benchmark_engines.py --data mnist.npz --original --agreement
    python experiments/benchmark_engines.py --data cifar10.npz --network conv_2_cifar10 --whole --network-steps 30

Time: 3 to 6 minutes each on two cores. Run it on an idle machine.

As in `benchmark_training.py`, the contestants take turns in a rotating order. Times are medians over the turns, with
their ranges; a ratio is the median of the ratios within each turn. With `--original`, the density at which the engines
are equally fast depends on the network, but `"auto"` uses one threshold for all, which was measured on LeNet-300-100.
"""

import contextlib
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from benchmark_training import (
    SEED,
    TRAIN,
    Contestant,
    DataFile,
    JsonFile,
    Repetitions,
    Samples,
    Steps,
    compiled,
    fitting,
    framed,
    in_fresh_process,
    load,
    looping,
    measure_steps,
    milliseconds,
    mnist_file,
    multiplication,
    print_goals,
    print_table,
    random_images,
    random_masks,
    ratio,
    standardised,
    tfmot_fitting,
    timer,
    value_range,
)
from rich.console import Console

import lottery
from lottery import config, data, enforcement, masks, weights
from lottery.analysis import costs
from lottery.models import multiply_adds, networks
from lottery.pipeline import environment, onednn, presets
from lottery.pruning import plan
from lottery.runs import store
from lottery.runs.stored import StoredRound, stored_rounds
from lottery.statistics import intervals
from lottery.training import compiling, schedules
from lottery.training.examples import example_batch
from lottery.training.trainer import Trainer

ENGINES = ("compiled", "auto")
# By density, at most how many times as long as the compiled loop the sparse engine may take.
GOALS = {0.33: 1.25, 0.11: 0.5, 0.036: 0.25, 0.012: 0.18}
COMPARED = 0.036  # the density at which `fit` is compared, and evaluations
FITS = ("keras fit + callback", "tfmot fit")
SPARSEST = 10  # rounds
REPLICATES = 5  # of `--agreement`
MOST_ROUNDS = 40  # of pruning, to the masks of `--network`
# Training steps of a network where `--network-steps` is not set; "auto" leaves shorter trainings to the compiled loop.
MASKS, WHOLE, ORIGINAL, AGREEMENT, FEW = 500, 1000, 8000, 2000, 20
# Of `--agreement`: of LeNet-300-100, and of another network.
ROUNDS = (
    ["prune.num_rounds=4", "prune.rate=0.67", 'prune.rates={ "dense_2/kernel" = 0.42 }'],
    ["prune.num_rounds=2", "prune.rate=0.7", "prune.rates={}"],
)
# Whole commands of a network: more words, and the variable that decides about oneDNN; `lottery` sets it if it is not.
COMMANDS: dict[str, tuple[list[str], str | None]] = {
    "compiled, oneDNN off": (["train.engine=compiled"], "0"),
    "compiled, oneDNN on": (["train.engine=compiled"], "1"),
    "auto": ([], None),
}
UNITS = (256, 128, 64, 32)
SHAPES = [(784, 300), (300, 100), (100, 10)]

RunFolder = Annotated[
    Path | None,
    typer.Option("--run", help="A stored run of the network, which gives the masks."),
]
Densities = Annotated[
    str, typer.Option("--densities", help="Densities, separated by commas; the nearest round of each is used.")
]
Threads = Annotated[
    int, typer.Option("--threads", min=1, help="TensorFlow's threads; the sparse engine always uses one thread.")
]
Turns = Annotated[int, typer.Option("--turns", min=1, help="Turns of whole runs, per engine.")]
NetworkSteps = Annotated[
    int | None, typer.Option("--network-steps", min=1, help="Training steps of each network of the runs it makes.")
]
Network = Annotated[
    str, typer.Option("--network", help="Measure steps of the network of a built-in experiment.", metavar="EXPERIMENT")
]
Processor = Annotated[
    bool, typer.Option("--processor", help="With --network: the time of the processor, not of the clock.")
]
Whole = Annotated[bool, typer.Option("--whole", help="Measure whole runs of the README's MNIST experiment.")]
Original = Annotated[bool, typer.Option("--original", help="Measure whole runs of a small network with softsign.")]
Agreement = Annotated[bool, typer.Option("--agreement", help="Compare the accuracies that the engines reach.")]


def main(
    run: RunFolder = None,
    data_file: DataFile = None,
    densities: Densities = "0.33,0.11,0.036,0.012",
    repetitions: Repetitions = 7,
    steps: Steps = 917,
    threads: Threads = 1,
    network: Network = "",
    processor: Processor = False,
    whole: Whole = False,
    original: Original = False,
    agreement: Agreement = False,
    turns: Turns = 2,
    network_steps: NetworkSteps = None,
    json_file: JsonFile = None,
) -> None:
    """Measure and print the times of the sparse engine and of the compiled loop."""
    wanted = _densities(densities)
    if run and not network and [mask.shape for mask in StoredRound(run, 1, 0).masks.values()] != SHAPES:
        raise typer.BadParameter("--run needs a run of LeNet-300-100 on images of 28 by 28 pixels.")
    images = "MNIST" if mnist_file(data_file) else "random images in the shape of MNIST"
    if network:
        images = data_file.name if data_file and (whole or agreement) else "random images"
    about = f"{images}; threads per network: {threads}"
    with framed(about, json_file) as (console, results), tempfile.TemporaryDirectory() as folder:
        of_threads = [f"run.num_threads={threads}"]
        words = [*of_threads, *data_words(data_file, Path(folder))]
        if network and (whole or agreement):
            words = [*of_threads, *image_words(network, data_file, Path(folder))]
        if network and not (whole or agreement):
            settings = network, run, threads, wanted, repetitions, steps, processor
            results["network"] = found = in_fresh_process(measure_network, *settings)
            print_network(console, found, f"{network}; turns: {repetitions}, steps per turn: {steps}")
        if not (network or whole or original or agreement):
            run = run or short_run(words, min(wanted), network_steps or MASKS, Path(folder))
            settings = run, data_file, threads, wanted, repetitions, steps
            results["steps"] = measured = in_fresh_process(measure_engines, *settings)
            results["start"] = start = measure_start(data_file, threads, Path(folder))
            print_steps(console, measured, start, f"turns: {repetitions}, steps per turn: {steps}")
        if whole and network:
            results["whole"] = found = measure_experiment(network, words, turns, network_steps or FEW, Path(folder))
            print_experiment(console, found, f"{network}; turns: {turns}, steps per network: {network_steps or FEW}")
        elif whole:
            results["whole"] = found = measure_whole(words, turns, network_steps or WHOLE, Path(folder))
            print_whole(console, found, f"turns: {turns}, steps per network: {network_steps or WHOLE:,}")
        if original:
            results["original"] = found = measure_original(of_threads, turns, network_steps or ORIGINAL, Path(folder))
            print_original(console, found, f"turns: {turns}, steps per network: {network_steps or ORIGINAL:,}")
        if agreement:
            num_steps = network_steps or (FEW if network else AGREEMENT)
            shortened = schedule_words(network or "lenet_mnist", num_steps)
            line = [str(presets.named(network or "lenet_mnist")), *words, *ROUNDS[bool(network)], *shortened]
            results["agreement"] = found = measure_agreement(line, num_steps, Path(folder))
            print_agreement(console, found, f"{REPLICATES} replicates, steps per network: {num_steps:,}")


def _densities(text: str) -> list[float]:
    try:
        wanted = [float(each) for each in text.split(",")]
    except ValueError:
        wanted = [0.0]
    if not all(0 < each <= 1 for each in wanted):
        raise typer.BadParameter(f"--densities: received {text!r}, allowed are numbers above 0 between commas.")
    return wanted


# --- Steps and evaluations under the masks of a run.


def measure_engines(
    run: Path, data_file: Path | None, threads: int, densities: Iterable[float], repetitions: int, steps: int
) -> dict[str, Any]:
    """Measure steps and evaluations of both engines, and of `fit`, in a process of its own."""
    environment.use_threads(threads)
    splits, _ = load(data_file)
    rounds = [StoredRound(run, 1, index) for index in store.complete_rounds(run, 1)]
    found = {f"{density:g}": _nearest(rounds, density) for density in densities}
    with contextlib.ExitStack() as stack:

        def trainer(stored: StoredRound) -> Trainer:
            made = stack.enter_context(
                contextlib.closing(Trainer(compiled(splits), splits, TRAIN, enforcement.constraint))
            )
            made.hold()
            made.set_masks(stored.masks)
            weights.assign(made.model, masks.apply(stored.start, stored.masks))
            return made

        engines = {}
        for name, stored in found.items():
            engines[name], *_ = trainer(stored).engine(stored.masks, "sparse")
            engines[name].begin(stored.masks, SEED)
        engines["compiled"] = trainer(next(iter(found.values()))).loop  # its time does not depend on the masks
        engines["compiled"].begin({}, SEED)
        contestants = {name: looping(engine) for name, engine in engines.items()}
        if compared := found.get(f"{COMPARED:g}"):
            images, called = standardised(splits, steps), compiled(splits)
            fits = (
                fitting(called, images, multiplication(called, compared.masks)),
                tfmot_fitting(images, compared.record["density"]),
            )
            contestants |= zip(FITS, fits, strict=True)
        taken = measure_steps(contestants, repetitions, steps)
        evaluations: Samples = {}
        timed = timer(evaluations)
        for engine in engines.values():  # which compiles
            engine.evaluate("validation")
        for _ in range(4 * repetitions):
            for name, engine in engines.items():
                timed(name, lambda engine=engine: float(engine.evaluate("validation")["loss"]))
    return {
        "density": {name: stored.record["density"] for name, stored in found.items()},
        "round": {name: stored.round for name, stored in found.items()},
        "images": len(splits.validation), **taken, "evaluations": evaluations,
    }  # fmt: skip


def measure_network(
    name: str, run: Path | None, threads: int, densities: Iterable[float], repetitions: int, steps: int, processor: bool
) -> dict[str, Any]:
    """Measure steps of both engines on a network of the field, in a process of its own."""
    environment.use_threads(threads)
    with contextlib.ExitStack() as stack:
        contestants, operations = network_contestants(stack, name, (None, *densities), run)
        if processor:
            contestants = {name: on_processor(contestant) for name, contestant in contestants.items()}
        return {**measure_steps(contestants, repetitions, steps), "operations": operations}


def on_processor(contestant: Contestant) -> Contestant:
    """Make a contestant that measures the time of the processor, of all threads together."""

    def run(num_steps: int) -> tuple[float, float]:
        began = time.process_time()
        contestant(num_steps)
        seconds = time.process_time() - began
        return seconds, seconds

    return run


def network_contestants(
    stack: contextlib.ExitStack, name: str, densities: Iterable[float | None], run: Path | None = None
) -> tuple[dict[str, Contestant], dict[str, int]]:
    """Make contestants of an experiment's network: the sparse engine at each density, the compiled loop for None.

    Masks are those of the nearest round, and a contestant of the sparse engine is called by their density. With them
    comes how many products and sums each takes in a step.
    """
    experiment = config.load(presets.named(name))
    rounds = [StoredRound(run, 1, index) for index in store.complete_rounds(run, 1)] if run else []
    splits = network_data(experiment)
    settings = experiment.train.model_copy(update={"engine": "sparse"})
    contestants, operations = {}, {}
    for density in densities:
        model, step = network_model(experiment), schedules.step_variable()
        compiling.compile_model(model, settings, example_batch(splits)[0], step)
        made = Trainer(model, splits, settings, enforcement.constraint, step, experiment.data.augment)
        stack.enter_context(contextlib.closing(made)).hold()
        kept, start = masks_at(experiment, weights.read(model), density or 1), weights.read_state(model)
        if rounds and density:
            stored = _nearest(rounds, density)
            kept, start = stored.masks, stored.start
        label = "compiled" if density is None else f"{masks.density(kept):.3g}"
        made.set_masks(kept)
        weights.assign(model, masks.apply(start, kept))
        engine = made.loop if density is None else made.engine(kept, "sparse")[0]
        engine.begin(kept, SEED)
        contestants[label] = looping(engine)
        operations[label] = step_operations(model, kept, settings.batch_size)
    return contestants, operations


def step_operations(model: Any, kept: masks.Masks, batch_size: int) -> int:
    """Count the products and sums of a step for the weights that are kept.

    Each weight takes part in the outputs, in its own gradient and, but for the first layer, in gradients of inputs.
    """
    counts, uses = masks.num_kept(kept), multiply_adds.per_entry(model)
    passes = dict.fromkeys(counts, 3) | {next(iter(counts)): 2}
    return 2 * batch_size * sum(passes[name] * count * (uses[name] or 0) for name, count in counts.items())


def network_model(experiment: config.Experiment) -> Any:
    """Build the network of an experiment from the same initial weights every time."""
    import keras

    keras.utils.set_random_seed(0)
    return networks.named(experiment.model.name)(image_shape(experiment), 10)


def network_data(experiment: config.Experiment) -> data.Splits:
    """Draw random images of the shape that an experiment trains on, with labels."""
    generator = np.random.default_rng(0)
    x = generator.integers(0, 256, (2000, *image_shape(experiment)), np.uint8)
    y = generator.integers(0, 10, 2000)
    return data.split({"x_train": x, "y_train": y, "x_test": x[:500], "y_test": y[:500]}, data.Data(validation=200))


def image_shape(experiment: config.Experiment) -> tuple[int, ...]:
    """Return the shape of an image of MNIST or of CIFAR-10, whichever an experiment trains on."""
    return (28, 28) if experiment.data.name == "mnist" else (32, 32, 3)


def masks_at(experiment: config.Experiment, arrays: masks.Weights, density: float) -> masks.Masks:
    """Prune initial weights by magnitude as an experiment prunes, up to the round whose density is nearest."""
    planned = plan.of_weights(experiment.prune.model_copy(update={"num_rounds": MOST_ROUNDS}), arrays)
    scores = {name: np.abs(value) for name, value in arrays.items()}
    kept = before = masks.ones_like(arrays)
    for number in range(1, MOST_ROUNDS + 1):
        if masks.density(kept) <= density:
            break
        before, kept = kept, planned.masks(number, scores, kept)
    return min(before, kept, key=lambda each: abs(math.log(masks.density(each) / density)))


def print_network(console: Console, measured: Mapping[str, Any], about: str) -> None:
    """Print the milliseconds of a step, the speed of its products and sums, and the ratios."""
    times = measured["steps"]

    def speed(name: str) -> str:
        return f"{measured['operations'][name] / statistics.median(times[name]) / 1e9:.0f}"

    lines = [["compiled", "", *milliseconds(times["compiled"]), speed("compiled"), "", ""]]
    for name in times:
        if name == "compiled":
            continue
        ratios = [one / other for one, other in zip(times[name], times["compiled"], strict=True)]
        values = [f"{statistics.median(ratios):.2f}", value_range(ratios, "{:.2f}")]
        lines.append(["sparse", name, *milliseconds(times[name]), speed(name), *values])
    heads = ["engine", "density", "ms", "min..max", "GFLOP/s", "to compiled", "min..max"]
    print_table(console, about, heads, lines)


def measure_start(data_file: Path | None, threads: int, folder: Path) -> list[dict[str, float]]:
    """Measure the first use of the sparse engine, which compiles it, and another one in a new process."""
    return [in_fresh_process(_start, data_file, threads, folder / "numba") for _ in range(2)]


def _start(data_file: Path | None, threads: int, cache: Path) -> dict[str, float]:
    os.environ["NUMBA_CACHE_DIR"] = str(cache)
    environment.use_threads(threads)
    splits, _ = load(data_file)
    model = compiled(splits)
    began = time.perf_counter()
    from lottery.sparse import kernels  # noqa: F401

    imported = time.perf_counter()
    with contextlib.closing(Trainer(model, splits, TRAIN, enforcement.constraint)) as trainer:
        kept = random_masks(weights.read(model))
        engine, *_ = trainer.engine(kept, "sparse")
        engine.begin(kept, SEED)
        ready = time.perf_counter()
        engine.advance(1)
        engine.evaluate("validation")
    return {"import": imported - began, "first step and evaluation": time.perf_counter() - ready}


def _nearest(rounds: list[StoredRound], density: float) -> StoredRound:
    return min(rounds, key=lambda stored: abs(math.log(stored.record["density"] / density)))


def print_steps(console: Console, measured: Mapping[str, Any], start: list[dict[str, float]], about: str) -> None:
    """Print steps, evaluations, the comparison with `fit`, and which goals are met."""
    taken, evaluations, density = measured["steps"], measured["evaluations"], measured["density"]
    goals = []
    for what, times, num in (("a step", taken, None), ("an evaluation", evaluations, measured["images"])):
        lines = [["compiled", "", *milliseconds(times["compiled"]), "", ""]]
        for name, at in density.items():
            ratios = [one / other for one, other in zip(times[name], times["compiled"], strict=True)]
            values = [f"{statistics.median(ratios):.2f}", value_range(ratios, "{:.2f}")]
            lines.append(["sparse", f"{at:.4f}", *milliseconds(times[name]), *values])
        title = f"{what.capitalize()}: {f'{num:,} images' if num else about}"
        print_table(console, title, ["engine", "density", "ms", "min..max", "to compiled", "min..max"], lines)
    for name in density:
        if (bound := GOALS.get(float(name))) is not None:
            value = ratio(taken[name], taken["compiled"])
            goals.append((f"a step at {name}, to compiled", value, "{:.2f}", "at most", bound))
    if (name := f"{COMPARED:g}") in density:
        lines = []
        for fit in FITS:
            ratios = [one / other for one, other in zip(taken[fit], taken[name], strict=True)]
            values = [f"{statistics.median(ratios):.1f}", value_range(ratios, "{:.1f}")]
            lines.append([fit, *milliseconds(taken[fit]), *values])
            goals.append((f"{fit} / sparse at {name}", ratio(taken[fit], taken[name]), "{:.1f}", "at least", 15))
        heads = ["", "ms", "min..max", f"to sparse at {name}", "min..max"]
        print_table(console, "A step of `fit`", heads, lines)
        value = ratio(evaluations[name], evaluations["compiled"])
        goals.append((f"an evaluation at {name}, to compiled", value, "{:.2f}", "at most", 0.25))
    first, later = start
    lines = [[what, f"{first[what]:.2f}", f"{later[what]:.2f}"] for what in first]
    print_table(console, "Seconds to start the sparse engine", ["", "first use", "later"], lines)
    if goals:
        print_goals(console, "LeNet-300-100", goals)


# --- Whole runs, as commands.


def measure_whole(words: list[str], turns: int, num_steps: int, folder: Path) -> list[dict[str, Any]]:
    """Measure whole commands of the README's MNIST experiment, one replicate with both controls."""
    words = [str(presets.named("lenet_mnist")), *words, "run.num_replicates=1", f"train.num_steps={num_steps}"]
    return _in_turns(words, turns, folder / "whole")


def measure_original(words: list[str], turns: int, num_steps: int, folder: Path) -> list[dict[str, Any]]:
    """Measure whole commands that find tickets of `original_network` on made-up data."""
    generator = np.random.default_rng(5)
    x = generator.normal(size=(8000, 8)).astype(np.float32)
    y = (x @ generator.normal(size=8) > 0).astype(np.float32)
    np.savez(folder / "made.npz", x_train=x[:6000], y_train=y[:6000], x_test=x[6000:], y_test=y[6000:])
    file = folder / "original.toml"
    file.write_text(
        'name = "original"\n'
        f'data = {{ name = "npz", path = "{folder / "made.npz"}", validation = 1000 }}\n'
        'model = { name = "benchmark_engines:original_network" }\n'
        f"train = {{ num_steps = {num_steps}, batch_size = 32 }}\n"
        "prune = { rate = 0.2, num_rounds = 20 }\n"
        "run = { num_replicates = 1, seed = 3 }\n",  # some seeds begin with all outputs below 0, and never learn
        encoding="utf-8",
    )
    return _in_turns([str(file), *words, "--import-code"], turns, folder / "original")


def original_network() -> Any:
    """Build a network of five small dense layers with softsign, and tanh at the end."""
    import keras

    layers = [keras.layers.Dense(units, "softsign", bias_initializer="ones") for units in UNITS]
    model = keras.Sequential([keras.layers.InputLayer((8,)), *layers, keras.layers.Dense(1, "tanh")])
    model.compile(keras.optimizers.Adam(0.001), "binary_crossentropy", metrics=["accuracy"])
    return model


def _in_turns(words: list[str], turns: int, folder: Path) -> list[dict[str, Any]]:
    """Run a command with each engine in turns; return, for each turn, what is known of each engine's run."""
    found = []
    shortest = ["train.engine=sparse", "train.num_steps=1", "prune.num_rounds=1", "run.controls=[]"]
    timed_command([*words, *shortest], folder / "first")  # on a new machine, it compiles the engine
    for turn in range(turns):
        both = {}
        for engine in ENGINES if turn % 2 == 0 else ENGINES[::-1]:
            seconds, path = timed_command([*words, f"train.engine={engine}"], folder / f"{turn}-{engine}")
            print(f"Turn {turn + 1} of {turns}, {engine}: {seconds:.1f} s", file=sys.stderr)
            table = costs.table(path)[["branch", "round", "density", "seconds", "engine"]]
            both[engine] = {"command": seconds, "networks": table.to_dict("records")}
        found.append(both)
    return found


def measure_experiment(network: str, words: list[str], turns: int, num_steps: int, folder: Path) -> list[Any]:
    """Measure whole commands of an experiment's network in turns; return the seconds of each, and its engines."""
    rounds = ["prune.num_rounds=15", "run.num_replicates=1", 'run.controls=["random_reinit", "random_mask"]']
    shortened = [*schedule_words(network, num_steps), f"train.num_steps={num_steps}", f"train.eval_every={num_steps}"]
    line = [str(presets.named(network)), *words, *rounds, *shortened]
    timed_command([*line, "train.engine=sparse", "prune.num_rounds=0"], folder / "first")  # compiles the engine
    found = []
    for turn in range(turns):
        seconds = {}
        names = [*COMMANDS]
        for name in names[turn % 3 :] + names[: turn % 3]:
            more, setting = COMMANDS[name]
            variables = {onednn.VARIABLE: setting} if setting else {}
            taken, path = timed_command([*line, *more], folder / f"{turn}-{name}", variables)
            print(f"Turn {turn + 1} of {turns}, {name}: {taken:.0f} s", file=sys.stderr)
            seconds[name] = {"command": taken, "engines": dict(Counter(costs.table(path)["engine"]))}
        found.append(seconds)
    return found


def schedule_words(network: str, num_steps: int) -> list[str]:
    """Return the values that shorten the schedule of an experiment's learning rate as its training is shortened."""
    train = config.load(presets.named(network)).train
    share = num_steps / train.num_steps
    drops = [max(1, round(step * share)) for step in train.drop_at]
    words = [f"train.drop_at={drops}"] if drops else []
    return [*words, f"train.warmup_steps={round(train.warmup_steps * share)}"] if train.warmup_steps else words


def image_words(network: str, data_file: Path | None, folder: Path) -> list[str]:
    """Return the values that make a command use a file of images, or random ones in the shape of the network's."""
    if data_file:
        return [f"data.path={data_file.absolute()}", "data.validation=1000"]
    shape = image_shape(config.load(presets.named(network)))
    np.savez(folder / "random.npz", allow_pickle=False, **random_images(10_000, 1000, shape))
    return ["data.name=npz", f"data.path={folder / 'random.npz'}", "data.validation=1000"]


def print_experiment(console: Console, found: list[Any], about: str) -> None:
    """Print the seconds of whole commands, and how many times as fast `"auto"` is."""
    times = {name: [turn[name]["command"] for turn in found] for name in COMMANDS}
    lines = []
    for name, seconds in times.items():
        ratios = [one / other for one, other in zip(seconds, times["auto"], strict=True)]
        engines = ", ".join(f"{num} {engine}" for engine, num in found[0][name]["engines"].items())
        lines.append(
            [name, engines, f"{statistics.median(seconds):.0f}", f"{statistics.median(ratios):.2f}",
             value_range(ratios, "{:.2f}")]
        )  # fmt: skip
    print_table(console, about, ["command", "networks", "seconds", "auto is .. times as fast", "min..max"], lines)


def timed_command(words: list[str], out: Path, more: Mapping[str, str] | None = None) -> tuple[float, Path]:
    """Run `lottery run` in a new process, perhaps with more variables; return its seconds and the folder of its run."""
    line = [sys.executable, "-m", "lottery", "run", *words, "--workers=1", f"--out={out}"]
    variables = os.environ | dict(more or {}) | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    began = time.perf_counter()
    # Its progress is worth seeing; its results are not.
    done = subprocess.run(line, env=variables, stdout=subprocess.DEVNULL, stderr=None if sys.stderr.isatty() else -1)
    seconds = time.perf_counter() - began
    if done.returncode:
        print((done.stderr or b"").decode(), file=sys.stderr)
        raise typer.Exit(done.returncode)
    return seconds, next(path.parent for path in out.glob("*/experiment.toml"))


def short_run(words: list[str], density: float, num_steps: int, folder: Path) -> Path:
    """Make a run of LeNet-300-100 for its masks, down to a density."""
    num_rounds = math.ceil(math.log(density) / math.log(0.8))
    print(f"Make a run for its masks: {num_rounds} rounds of {num_steps:,} steps", file=sys.stderr)
    preset = str(presets.named("lenet_mnist"))
    less = ["run.num_replicates=1", "run.controls=[]", f"prune.num_rounds={num_rounds}", f"train.num_steps={num_steps}"]
    return timed_command([preset, *words, *less, "--no-tensorboard"], folder / "masks")[1]


def data_words(data_file: Path | None, folder: Path) -> list[str]:
    """Return the values that make a command use MNIST, or random images."""
    if found := mnist_file(data_file):
        return [f"data.path={found.absolute()}"]
    np.savez(folder / "random.npz", allow_pickle=False, **random_images(10_000, 1000))
    return ["data.name=npz", f"data.path={folder / 'random.npz'}"]


def print_whole(console: Console, found: list[dict[str, Any]], about: str) -> None:
    """Print the seconds of commands and of their sparsest rounds, and which goals are met."""
    last = max(row["round"] for row in found[0]["auto"]["networks"])
    parts = {
        "whole command": lambda one: one["command"],
        "all networks": lambda one: sum(row["seconds"] for row in one["networks"]),
        f"rounds {last - SPARSEST + 1} to {last}": lambda one: sum(
            row["seconds"] for row in one["networks"] if row["round"] > last - SPARSEST
        ),
    }
    lines, goals = [], []
    for (what, seconds), bound in zip(parts.items(), (1.8, None, 3), strict=True):
        times = {engine: [seconds(both[engine]) for both in found] for engine in ENGINES}
        medians = [f"{statistics.median(each):.1f}" for each in times.values()]
        ratios = [one / other for one, other in zip(*times.values(), strict=True)]
        lines.append([what, *medians, f"{statistics.median(ratios):.2f}", value_range(ratios, "{:.2f}")])
        if bound:
            goals.append((f"{what}, compiled / auto", statistics.median(ratios), "{:.2f}", "at least", bound))
    title = f"lenet_mnist, one replicate; {about}"
    print_table(console, title, ["seconds", *ENGINES, "times as fast", "min..max"], lines)
    print_goals(console, "Whole commands", goals)


def print_original(console: Console, found: list[dict[str, Any]], about: str) -> None:
    """Print the seconds of each round, and the density from which the sparse engine trains."""
    lines = []
    for index, row in enumerate(found[0]["auto"]["networks"]):
        times = {engine: [both[engine]["networks"][index]["seconds"] for both in found] for engine in ENGINES}
        medians = [f"{statistics.median(each):.2f}" for each in times.values()]
        lines.append(
            [str(row["round"]), f"{row['density']:.4f}", row["engine"], *medians, f"{ratio(*times.values()):.2f}"]
        )
    commands = {engine: [both[engine]["command"] for both in found] for engine in ENGINES}
    medians = [f"{statistics.median(each):.1f}" for each in commands.values()]
    lines.append(["command", "", "", *medians, f"{ratio(*commands.values()):.2f}"])
    title = f"{'-'.join(map(str, (8, *UNITS, 1)))} units; {about}"
    print_table(console, title, ["round", "density", "engine", "compiled, s", "auto, s", "times as fast"], lines)
    changed = [row["density"] for row in found[0]["auto"]["networks"] if row["engine"] == "sparse"]
    if changed:
        console.print(f"auto uses the sparse engine from density {max(changed):.4f} on.\n")
    else:
        console.print("auto never uses the sparse engine.\n")


# --- Agreement.


def measure_agreement(words: list[str], num_steps: int, folder: Path) -> dict[str, Any]:
    """Train five replicates of an experiment with each engine alone; return the accuracies by engine."""
    less = ["run.controls=[]", f"run.num_replicates={REPLICATES}", f"train.num_steps={num_steps}"]
    found: dict[str, Any] = {}
    for engine in ("compiled", "sparse"):
        line = [*words, *less, f"train.engine={engine}"]
        seconds, path = timed_command(line, folder / f"agreement-{engine}")
        print(f"{engine}: {seconds:.1f} s", file=sys.stderr)
        columns = ["replicate", "round", "density", "early_stop_test_accuracy"]
        found[engine] = lottery.load(path).table()[columns].to_dict("records")
    found["engine_difference"] = max(stored.record["engine_difference"] for stored in stored_rounds(path))
    return found


def print_agreement(console: Console, found: Mapping[str, Any], about: str) -> None:
    """Print the paired differences in test accuracy, with intervals, at each density and over all."""
    by_density: dict[float, list[tuple[float, float]]] = {}
    for one, other in zip(found["compiled"], found["sparse"], strict=True):
        pair = one["early_stop_test_accuracy"], other["early_stop_test_accuracy"]
        by_density.setdefault(one["density"], []).append(pair)
    pairs = {f"{density:.4f}": np.array(values) for density, values in by_density.items()}
    pairs["mean"] = np.mean([*pairs.values()], axis=0)
    lines = []
    for name, values in pairs.items():
        mean, low, high = intervals.mean_interval(list(values[:, 1] - values[:, 0]))
        accuracies = [f"{100 * each:.2f}" for each in values.mean(0)]
        interval = f"{100 * low:+.2f}..{100 * high:+.2f}"
        lines.append([name, *accuracies, f"{100 * mean:+.2f}", interval, "yes" if low <= 0 <= high else "no"])
    heads = ["density", "compiled", "sparse", "sparse − compiled", "95 % interval", "has 0"]
    print_table(console, f"Test accuracy, %; {about}", heads, lines)
    console.print(f"Largest difference of a weight after the first steps: {found['engine_difference']:.1e}\n")


if __name__ == "__main__":
    typer.run(main)
