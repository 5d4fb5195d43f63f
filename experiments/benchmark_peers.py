"""Measure a training step of `lottery` beside PyTorch's, and what oneDNN does for it.

The same network, batch, optimizer, augmentation, masks and threads in each of

- `compiled, oneDNN off` and `compiled, oneDNN on`: the compiled loop of `lottery`. TensorFlow reads the setting when it
  is imported, so each has a process of its own;
- `sparse`: `train.engine = "sparse"` at the densities of `--densities`, in the first of these processes. It always uses
  one thread;
- `PyTorch`: eager, channels_last, fused optimizers, arrays in memory, and each weight multiplied by its mask after each
  step, as most code on pruning does. That costs the same at every density, so it is measured at the lowest.

The images are random, of the shape that the experiment trains on: the time does not depend on the values. Masks are of
the initial weights, pruned by magnitude as the experiment prunes, or with `--run` those of a run's rounds. PyTorch's
SGD adds the weight decay to the gradients, Keras' SGD shrinks the weights; both cost the same.

Before anything is measured, the networks are compared: the number of parameters of each layer, and the outputs of 64
images with Keras' weights copied into PyTorch. The program prints the largest difference, and stops if it is more than
rounding.

With `--onednn` it measures the first two alone, which needs no PyTorch. PyTorch is not a dependency of `lottery`:

    pip install torch==2.13.0

Commands:
    python experiments/benchmark_peers.py --network resnet_20_cifar10 --densities 1,0.51,0.21,0.11,0.055
    python experiments/benchmark_peers.py --network conv_2_cifar10 --densities 1,0.51,0.17,0.05,0.02 --threads 1
    python experiments/benchmark_peers.py --network resnet_20_cifar10 --run runs/NAME --threads 1
    python experiments/benchmark_peers.py --onednn --json onednn.json

Time: four minutes for each network and number of threads on a machine that was busy with other programs, less on an
idle one.

Each way to train has a process of its own, which waits while others are measured. They take turns in a rotating order,
so that other programs affect all of them alike. Times are medians over the turns, with their ranges; a ratio is the
median of the ratios within each turn, with its range. The second table of each network has the time of the processor,
of all threads together: on a busy machine it says more than the clock, but it counts threads that wait for each other,
too.
"""

import contextlib
import functools
import importlib.util
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from benchmark_engines import RunFolder, masks_at, network_contestants, network_data, network_model
from benchmark_training import (
    Contestant,
    JsonFile,
    Repetitions,
    framed,
    in_fresh_process,
    measure_steps,
    milliseconds,
    print_table,
    silence,
    value_range,
)
from rich.console import Console

from lottery import config, masks, weights
from lottery.pipeline import environment, presets

TORCH = "torch==2.13.0"  # the version that the numbers in docs/speed.md are of
NETWORKS = (
    "lenet_mnist", "conv_2_cifar10", "conv_4_cifar10", "conv_6_cifar10", "vgg_19_cifar10", "resnet_20_cifar10",
)  # fmt: skip
OFF, ON, PYTORCH = "compiled, oneDNN off", "compiled, oneDNN on", "PyTorch"
COMPARED = 64  # images
# Relative to the largest output: two libraries add up in different orders, through twenty layers.
ROUNDING = 1e-4
TURN = 1.0  # seconds of the processor in a turn, if `--steps` is not set
PADDING = 4  # pixels, of a crop
THREADS = "BENCHMARK_THREADS"  # tells a process

Networks = Annotated[
    list[str] | None,
    typer.Option("--network", metavar="EXPERIMENT", help="A built-in experiment; can be repeated. Default: six."),
]
Densities = Annotated[str, typer.Option("--densities", help="Of the sparse engine, separated by commas.")]
Threads = Annotated[list[int] | None, typer.Option(min=1, help="Threads; can be repeated. Default: 1 and 2.")]
Steps = Annotated[int, typer.Option("--steps", min=0, help="Steps per turn. Default: as many as take a second.")]
OneDnn = Annotated[bool, typer.Option("--onednn", help="Measure the compiled loop with oneDNN off and on, alone.")]


def main(
    network: Networks = None,
    run: RunFolder = None,
    densities: Densities = "1,0.33,0.11,0.055",
    threads: Threads = None,
    repetitions: Repetitions = 7,
    steps: Steps = 0,
    onednn: OneDnn = False,
    json_file: JsonFile = None,
) -> None:
    """Measure and print the times of a training step, with oneDNN off and on, sparse, and in PyTorch."""
    wanted = [] if onednn else [float(each) for each in densities.split(",")]
    if not onednn and importlib.util.find_spec("torch") is None:
        print(f"This program compares with PyTorch, which is not installed: pip install {TORCH}", file=sys.stderr)
        raise typer.Exit(2)
    names = network or NETWORKS
    if run and len(names) > 1:
        raise typer.BadParameter("--run gives the masks of one network, so name it with --network.")
    with framed(f"Repetitions: {repetitions}; {_versions()}", json_file) as (console, results):
        if wanted:
            results["compared"] = {name: compared(console, name) for name in names}
        for count in threads or (1, 2):
            with contenders(count, with_torch=bool(wanted)) as made:
                for name in names:
                    measured = measure(made, name, run, wanted, repetitions, steps)
                    results.setdefault("networks", {}).setdefault(name, {})[count] = measured
                    _print(console, f"{name}; threads: {count}; steps per turn: {measured['num_steps']}", measured)


def _versions() -> str:
    from importlib import metadata

    found = ("tensorflow", "keras", "torch")
    return ", ".join(f"{name} {metadata.version(name)}" for name in found if importlib.util.find_spec(name))


# --- Turns, in processes that stay.

# Makes contestants in a process, from the name of an experiment and densities.
Make = Callable[[str, Sequence[Any]], Mapping[str, Contestant]]


@dataclass
class Contender:
    """A process that trains in one way, with one number of threads."""

    process: ProcessPoolExecutor
    onednn: bool
    threads: int

    def contestants(self, make: Make, name: str, densities: Sequence[Any]) -> dict[str, Contestant]:
        """Make contestants there, in place of those of another network, and return what lets them take a turn."""
        arguments = make, self.onednn, self.threads, name, densities
        return {each: functools.partial(self._turn, each) for each in self.process.submit(_begin, *arguments).result()}

    def _turn(self, name: str, num_steps: int) -> tuple[float, float]:
        return self.process.submit(_take, name, num_steps).result()


@contextlib.contextmanager
def contenders(threads: int, with_torch: bool) -> Iterator[dict[str, Contender]]:
    """Start a process for each way to train, which imports its libraries once for all networks."""
    settings = {OFF: False, ON: True} | ({PYTORCH: False} if with_torch else {})
    with contextlib.ExitStack() as stack:
        yield {
            name: Contender(
                stack.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), silence)), on, threads
            )
            for name, on in settings.items()
        }


def measure(
    made: Mapping[str, Contender],
    name: str,
    run: Path | None,
    densities: Sequence[float],
    repetitions: int,
    steps: int,
) -> dict[str, Any]:
    """Measure seconds per step of all contestants of a network, in turns, by the clock and of the processor."""
    engines = [None, *densities]  # None is the compiled loop
    off = made[OFF].contestants(functools.partial(network_alone, run=run), name, engines)
    contestants = {OFF: off.pop("compiled"), ON: made[ON].contestants(network_alone, name, [None])["compiled"]}
    contestants |= {f"sparse {density}": turn for density, turn in off.items()}
    if densities:
        contestants |= made[PYTORCH].contestants(torch_alone, name, [min(densities)])
    num_steps = steps or _steps_in_a_turn(contestants[OFF])
    taken = measure_steps(contestants, repetitions, num_steps)
    return {"num_steps": num_steps, "seconds": taken["steps"], "processor": taken["calls"]}


def _steps_in_a_turn(contestant: Contestant) -> int:
    few = 2
    contestant(few)  # traces and compiles
    return max(few, round(TURN * few / contestant(few)[1]))


_HERE: dict[str, Contestant] = {}  # the contestants of this process
_OPEN = contextlib.ExitStack()  # their trainers


def _begin(make: Make, onednn: bool, threads: int, name: str, densities: Sequence[Any]) -> list[str]:
    os.environ["TF_ENABLE_ONEDNN_OPTS"] = str(int(onednn))  # before TensorFlow is imported
    os.environ[THREADS] = str(threads)
    _OPEN.close()
    _HERE.clear()
    _HERE.update(make(name, densities))
    return [*_HERE]


def _take(name: str, num_steps: int) -> tuple[float, float]:
    """Take steps; return their seconds by the clock, and those of the processor."""
    began = time.process_time()
    seconds, _ = _HERE[name](num_steps)
    return seconds, time.process_time() - began


def network_alone(name: str, densities: Sequence[float | None], run: Path | None = None) -> Mapping[str, Contestant]:
    """Make contestants of `lottery` in a process of their own."""
    environment.use_threads(int(os.environ[THREADS]))
    contestants, _ = network_contestants(_OPEN, name, densities, run)
    return contestants


def _print(console: Console, about: str, measured: Mapping[str, Any]) -> None:
    """Print times and ratios, by the clock and of the processor; "vs" is how many times as fast."""
    for what, taken in (("by the clock", measured["seconds"]), ("of the processor", measured["processor"])):
        others = {"oneDNN off": taken[OFF]} | ({PYTORCH: taken[PYTORCH]} if PYTORCH in taken else {})
        lines = []
        for name, times in taken.items():
            first = ["sparse", name.removeprefix("sparse ")] if name.startswith("sparse ") else [name, ""]
            lines.append(
                [*first, *milliseconds(times), *(each for other in others.values() for each in _ratios(other, times))]
            )
        heads = [word for other in others for word in (f"vs {other}", "min..max")]
        print_table(console, f"{about}; {what}", ["", "density", "ms", "min..max", *heads], lines)


def _ratios(others: Sequence[float], times: Sequence[float]) -> list[str]:
    ratios = [other / one for one, other in zip(times, others, strict=True)]
    return [f"{statistics.median(ratios):.2f}", value_range(ratios, "{:.2f}")]


# --- The same network in both libraries.


def compared(console: Console, name: str) -> dict[str, Any]:
    """Compare the network of an experiment in Keras and in PyTorch, print how far apart they are, and return it."""
    arrays, x, outputs = in_fresh_process(keras_network, name)
    counts, ours = in_fresh_process(torch_outputs, name, arrays, x)
    expected = {layer: sum(each.size for each in values.values()) for layer, values in _by_layer(arrays).items()}
    difference = float(np.abs(outputs - ours).max())
    largest = float(np.abs(outputs).max())
    console.print(
        f"{name}: {sum(expected.values()):,} parameters in {len(expected)} layers; outputs of {COMPARED} images differ "
        f"by at most {difference:.1e}, of at most {largest:.1f}.\n"
    )
    if counts != expected or not difference <= ROUNDING * largest:
        console.print("PyTorch's network is another one.")
        raise typer.Exit(1)
    return {"parameters": expected, "largest_difference": difference, "largest_output": largest}


def keras_network(name: str) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return Keras' weights of an experiment's network, a few standardised images, and its outputs of them."""
    experiment = config.load(presets.named(name))
    splits, model = network_data(experiment), network_model(experiment)
    x = (np.float32(splits.train.x[:COMPARED]) - splits.mean) / splits.standard_deviation
    return weights.read_state(model), np.asarray(x, np.float32), np.asarray(model(x, training=False))


def _by_layer(arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Group arrays by their layer, without the random states that Keras keeps beside weights."""
    layers: dict[str, dict[str, np.ndarray]] = {}
    for name, value in arrays.items():
        layer, _, part = name.partition("/")
        if part in PARTS:
            layers.setdefault(layer, {})[PARTS[part]] = value
    return layers


# What PyTorch calls the arrays of a layer.
PARTS = {
    "kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias",
    "moving_mean": "running_mean", "moving_variance": "running_var",
}  # fmt: skip


def torch_outputs(name: str, arrays: Mapping[str, np.ndarray], x: np.ndarray) -> tuple[dict[str, int], np.ndarray]:
    """Return the parameters of each layer of PyTorch's network, and its outputs with Keras' weights."""
    import torch  # pyright: ignore[reportMissingImports]

    model = torch_network(config.load(presets.named(name)).model.name, arrays)
    counts = {}
    for layer, module in model.layers.items():
        values = [*module.parameters(), *(each for each in module.buffers() if each.dim())]  # not the count of batches
        counts[layer] = sum(each.numel() for each in values)
    model.eval()
    with torch.no_grad():
        return counts, model(_channels_first(torch.from_numpy(x))).numpy()


def _channels_first(x: Any) -> Any:
    """View images as PyTorch counts their axes; in memory, the channels stay last."""
    return x.permute(0, 3, 1, 2) if x.dim() == 4 else x


def torch_network(name: str, arrays: Mapping[str, np.ndarray]) -> Any:
    """Build a network of the package in PyTorch, channels_last, with Keras' weights; layers have Keras' names."""
    import torch  # pyright: ignore[reportMissingImports]

    layers = {layer: _torch_layer(layer, values) for layer, values in _by_layer(arrays).items()}
    kind, _, size = name.partition("_")
    forward = {"lenet": _lenet, "conv": _conv, "vgg": _vgg, "resnet": _resnet}[kind]

    class Network(torch.nn.Module):
        """The layers by name, and how they are connected."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleDict(layers)

        def forward(self, x: Any) -> Any:
            return forward(self.layers, size, x)

    return Network().to(memory_format=torch.channels_last)


def _torch_layer(name: str, values: Mapping[str, np.ndarray]) -> Any:
    """Make a layer from Keras' arrays: the shape of the kernel and the name say which, and its stride."""
    import torch  # pyright: ignore[reportMissingImports]

    kernel = values["weight"]
    if "running_mean" in values:
        layer = torch.nn.BatchNorm2d(len(kernel), eps=1e-5, momentum=0.1)
    elif kernel.ndim == 2:
        layer, kernel = torch.nn.Linear(*kernel.shape), kernel.T
    else:
        height, _, channels, filters = kernel.shape
        stride = 2 if name.startswith("shortcut") else 1
        layer = torch.nn.Conv2d(channels, filters, height, stride, padding=height // 2, bias="bias" in values)
        kernel = kernel.transpose(3, 2, 0, 1)
    state = {part: torch.from_numpy(np.array(value)) for part, value in {**values, "weight": kernel}.items()}
    missing, unexpected = layer.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"num_batches_tracked"}, (missing, unexpected)
    return layer


def _numbered(kind: str) -> Iterator[str]:
    """Count the names that Keras gives to layers of a kind: ``conv2d``, ``conv2d_1`` and so on."""
    number = 0
    while True:
        yield f"{kind}_{number}" if number else kind
        number += 1


def _flat(x: Any) -> Any:
    """Flatten, in Keras' order: channels vary fastest, as they do in memory."""
    return (x.permute(0, 2, 3, 1) if x.dim() == 4 else x).flatten(1)


def _lenet(layers: Any, size: str, x: Any) -> Any:
    return _dense(layers, x.flatten(1))


def _dense(layers: Any, x: Any) -> Any:
    """Three dense layers, the last without an activation."""
    for name in ("dense", "dense_1"):
        x = layers[name](x).relu()
    return layers["dense_2"](x)


def _conv(layers: Any, size: str, x: Any) -> Any:
    from torch.nn import functional  # pyright: ignore[reportMissingImports]

    names = _numbered("conv2d")
    for _ in range(int(size) // 2):
        for _ in range(2):
            x = functional.relu(layers[next(names)](x), inplace=True)
        x = functional.max_pool2d(x, 2)
    return _dense(layers, _flat(x))


def _vgg(layers: Any, size: str, x: Any) -> Any:
    from torch.nn import functional  # pyright: ignore[reportMissingImports]

    from lottery.models import networks

    names, norms = _numbered("conv2d"), _numbered("batch_normalization")
    for index, num in enumerate(networks.VGG_CONVOLUTIONS[int(size)]):
        if index:
            x = functional.max_pool2d(x, 2)
        for _ in range(num):
            x = functional.relu(layers[next(norms)](layers[next(names)](x)), inplace=True)
    return layers["dense"](x.mean((2, 3)))


def _resnet(layers: Any, size: str, x: Any) -> Any:
    from torch.nn import functional  # pyright: ignore[reportMissingImports]

    names, norms = _numbered("conv2d"), _numbered("batch_normalization")

    def convolution(x: Any, stride: int = 1) -> Any:
        layer = layers[next(names)]
        layer.stride = (stride, stride)
        return layers[next(norms)](layer(x))

    x = functional.relu(convolution(x), inplace=True)
    for stage in range(3):
        for block in range((int(size) - 2) // 6):
            shortcut, stride = x, 1
            if stage and not block:
                shortcut = layers[f"shortcut_{stage}_normalization"](layers[f"shortcut_{stage}"](x))
                stride = 2
            x = functional.relu(convolution(x, stride), inplace=True)
            x = functional.relu(convolution(x) + shortcut, inplace=True)
    return layers["dense"](x.mean((2, 3)))


# --- A step of PyTorch.


def torch_alone(name: str, densities: Sequence[float]) -> Mapping[str, Contestant]:
    """Make the contestant that trains in PyTorch, with masks multiplied after each step."""
    import torch  # pyright: ignore[reportMissingImports]

    (density,) = densities
    torch.set_num_threads(int(os.environ[THREADS]))
    torch.manual_seed(0)
    experiment = config.load(presets.named(name))
    arrays, kept = in_fresh_process(_arrays_and_masks, name, density)
    model = torch_network(experiment.model.name, arrays)
    optimizer = _optimizer(experiment, model.parameters())
    pairs = [(_parameter(model, each), _as_torch(mask)) for each, mask in kept.items()]
    batches = _batches(experiment)

    def run(num_steps: int) -> tuple[float, float]:
        began, total = time.perf_counter(), torch.zeros(())
        for _ in range(num_steps):
            x, y = next(batches)
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for weight, mask in pairs:
                    weight.mul_(mask)
            total += loss.detach()
        float(total)
        seconds = time.perf_counter() - began
        return seconds, seconds

    return {PYTORCH: run}


def _arrays_and_masks(name: str, density: float) -> tuple[dict[str, np.ndarray], masks.Masks]:
    experiment = config.load(presets.named(name))
    model = network_model(experiment)
    return weights.read_state(model), masks_at(experiment, weights.read(model), density)


def _optimizer(experiment: config.Experiment, parameters: Any) -> Any:
    import torch  # pyright: ignore[reportMissingImports]

    settings: Any = experiment.train.optimizer
    settings = {"name": settings} if isinstance(settings, str) else dict(settings)
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[settings.pop("name")]
    return kind(parameters, lr=experiment.train.learning_rate, fused=True, **settings)


def _parameter(model: Any, name: str) -> Any:
    layer, _, part = name.partition("/")
    return getattr(model.layers[layer], PARTS[part])


def _as_torch(mask: np.ndarray) -> Any:
    """A mask of floats in PyTorch's order of axes, and in the order in memory of the weight that it multiplies."""
    import torch  # pyright: ignore[reportMissingImports]

    axes = mask.T if mask.ndim == 2 else mask.transpose(3, 2, 0, 1)
    found = torch.from_numpy(np.array(axes, np.float32))
    return found.to(memory_format=torch.channels_last) if mask.ndim == 4 else found


def _batches(experiment: config.Experiment) -> Iterator[tuple[Any, Any]]:
    """Yield standardised batches in random order, cropped and flipped at random if the experiment does that."""
    import torch  # pyright: ignore[reportMissingImports]

    splits, size = network_data(experiment), experiment.train.batch_size
    images, labels = torch.from_numpy(splits.train.x), torch.from_numpy(np.int64(splits.train.y))
    mean, deviation = (torch.tensor(each, dtype=torch.float32) for each in (splits.mean, splits.standard_deviation))
    augmented = "crop" in experiment.data.augment
    if augmented:
        images = torch.nn.functional.pad(images, (0, 0, PADDING, PADDING, PADDING, PADDING))
    while True:
        for positions in torch.randperm(len(labels)).split(size):
            if len(positions) < size:
                break
            x = _cropped(images, positions) if augmented else images[positions]
            yield _channels_first((x.float() - mean) / deviation), labels[positions]


def _cropped(images: Any, positions: Any) -> Any:
    """Gather images, each cropped at random to its size before padding, and flipped with a probability of one half."""
    import torch  # pyright: ignore[reportMissingImports]

    num, height, width = len(positions), *(length - 2 * PADDING for length in images.shape[1:3])
    rows, columns = (torch.arange(length) + torch.randint(2 * PADDING + 1, (num, 1)) for length in (height, width))
    columns = torch.where(torch.rand(num, 1) < 0.5, columns.flip(1), columns)
    return images[positions[:, None, None], rows[:, :, None], columns[:, None, :]]


if __name__ == "__main__":
    typer.run(main)
