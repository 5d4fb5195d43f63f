"""Estimate what iterative pruning of ResNet-50 on ImageNet takes on a cluster: time, disk, network, bottleneck.

Nothing is trained. The program measures, on one core, what it can measure without an accelerator: how many photographs
per second it decodes, crops and resizes (JPEGs of 500 x 375 pixels made of noise and gradients of light, of about
110 kB, as in ImageNet), how long masks of 25 million weights take, how long training waits for a checkpoint, and the
size of the files. It measures processor time where other programs would interfere. The rest is arithmetic with numbers
that you pass: images per second that one GPU trains, the number of GPUs, the number of networks.

Command:
    python experiments/cost_of_imagenet.py --gpus 8

Time: about two minutes. Run it on an idle machine.
"""

import statistics
import time
from typing import Annotated, Any

import numpy as np
import typer
from benchmark_checkpoints import timed_writing
from benchmark_training import print_table
from rich.console import Console

from lottery import config, files, masks, weights
from lottery.pipeline import environment, preparing
from lottery.pipeline.prepared import Ingredients
from lottery.pruning import plan

IMAGES, VALIDATION, JPEG_BYTES, QUALITY = 1_281_167, 50_000, 110e3, 88
HOUR, DAY = 3600.0, 86400.0

Gpus = Annotated[int, typer.Option("--gpus", min=1, help="GPUs of the cluster.")]
Cores = Annotated[int, typer.Option(min=1, help="Cores per GPU.")]
Rate = Annotated[float, typer.Option(min=1, help="Images per second that one GPU trains.")]
Epochs = Annotated[int, typer.Option(min=1, help="Epochs of each network.")]
Rounds = Annotated[int, typer.Option(min=1, help="Pruned rounds.")]
Replicates = Annotated[int, typer.Option(min=1, help="Replicates.")]
Controls = Annotated[int, typer.Option(min=0, help="Controls of each pruned round.")]


def main(
    gpus: Gpus = 8,
    cores: Cores = 8,
    rate: Rate = 2500.0,
    epochs: Epochs = 90,
    rounds: Rounds = 15,
    replicates: Replicates = 3,
    controls: Controls = 2,
) -> None:
    """Measure, compute and print."""
    environment.use_threads(1)
    console = Console()
    decoded, measured = _decoded_a_second(), _costs_of_a_network()
    rows = [
        ["photographs decoded, cropped and resized, a second and core", f"{decoded:.0f}"],
        ["prunable weights, millions", f"{measured['weights'] / 1e6:.1f}"],
        ["a network's weights at the early-stop step and at the end, and masks, MB", f"{measured['stored'] / 1e6:.0f}"],
        ["a checkpoint, MB", f"{measured['checkpoint'] / 1e6:.0f}"],
        ["training waits for a checkpoint, s", f"{measured['waits']:.2f}"],
        ["a checkpoint until it is complete, s", f"{measured['whole']:.2f}"],
        ["processor time of a checkpoint, s", f"{measured['processor']:.2f}"],
        ["masks of a round, layerwise and global, s", f"{measured['layerwise']:.2f}, {measured['global']:.2f}"],
    ]
    print_table(console, "Measured on one core", ["", ""], rows)

    networks = replicates * (rounds + 1 + rounds * controls)
    fed = min(rate, cores * decoded)
    each = epochs * IMAGES / fed
    chain, shared = (rounds + 1) * each, networks * each / gpus
    whole = max(chain, shared)
    rows = [
        ["networks", f"{networks}"],
        ["images per second fed to a GPU, of those that it could train", f"{fed:.0f} of {rate:.0f}"],
        ["cores that one GPU needs", f"{rate / decoded:.0f}"],
        ["one network, hours", f"{each / HOUR:.1f}"],
        ["the rounds of one replicate, one after the other, days", f"{chain / DAY:.1f}"],
        ["all networks on all GPUs, days", f"{shared / DAY:.1f}"],
        ["everything, days", f"{whole / DAY:.1f}"],
        ["largest useful number of GPUs", f"{-(-networks // (rounds + 1))}"],
        ["read from the disk or network with the data, MB per second", f"{gpus * fed * JPEG_BYTES / 1e6:.0f}"],
        [
            "checkpoints written, one per minute and GPU, MB per second",
            f"{gpus * measured['checkpoint'] / 60e6:.0f}",
        ],
        ["the data, GB", f"{(IMAGES + VALIDATION) * JPEG_BYTES / 1e9:.0f}"],
        ["the run's folder at the end, GB", f"{networks * measured['stored'] / 1e9:.1f}"],
    ]
    print_table(console, f"Computed for {gpus} GPUs with {cores} cores each", ["", ""], rows)


def _decoded_a_second(num: int = 60) -> float:
    import tensorflow as tf

    rng = np.random.default_rng(0)
    ramp = np.linspace(0, 200, 500)[None, :, None] * np.linspace(0.3, 1, 375)[:, None, None]
    photographs = []
    for _ in range(num):
        noise = rng.integers(0, 85, (375, 500, 3))
        photographs.append(tf.io.encode_jpeg((ramp + noise).clip(0, 255).astype(np.uint8), quality=QUALITY))

    @tf.function
    def prepared(content: Any) -> Any:
        window = tf.constant([30, 40, 300, 400])
        image = tf.image.decode_and_crop_jpeg(content, window, channels=3)
        return tf.image.resize(tf.cast(image, tf.float32), (224, 224))

    prepared(photographs[0])
    sizes = [len(one.numpy()) for one in photographs]
    if not 0.8 * JPEG_BYTES < statistics.mean(sizes) < 1.2 * JPEG_BYTES:
        raise AssertionError(f"The photographs have {statistics.mean(sizes):.0f} bytes.")
    taken = []
    for content in photographs:
        began = time.process_time()
        prepared(content).numpy()
        taken.append(time.process_time() - began)
    return 1 / statistics.median(taken)


def _resnet_50() -> Any:
    import keras

    return keras.applications.ResNet50(
        weights=None,  # type: ignore[arg-type]
        input_shape=(32, 32, 3),
        classes=1000,
        include_top=True,
    )


def _costs_of_a_network() -> dict[str, float]:
    """Measure sizes and times of the stored files. They do not depend on the size of the images."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (64, 32, 32, 3)).astype(np.uint8), np.arange(64) % 10
    tables = {
        "data": {"validation": 8},
        "prune": {"num_rounds": 1},
        "train": {"num_steps": 6, "batch_size": 2, "eval_every": 6, "learning_rate": 0.0},
    }
    tables["train"]["optimizer"] = {"name": "sgd", "momentum": 0.9}
    prepared = preparing.prepare(config.load(tables), Ingredients(_resnet_50, (x, y, x[:8], y[:8])))
    loop, ((waits, whole, processor), size) = prepared.trainer.loop, timed_writing(prepared)
    trained = weights.read(loop.model)
    kept = masks.ones_like(trained)
    found: dict[str, float] = {"weights": sum(value.size for value in trained.values()), "checkpoint": size}
    state = weights.read_state(loop.model)
    found["stored"] = 2 * len(files.pack_arrays(state)) + len(files.pack_masks(kept))
    for scope in ("layerwise", "global"):
        prune = config.load({"prune": {"scope": scope, "num_rounds": 1}}).prune
        began = time.process_time()
        plan.of_weights(prune, trained).masks(1, {name: np.abs(value) for name, value in trained.items()}, kept)
        found[scope] = time.process_time() - began
    return {**found, "waits": waits, "whole": whole, "processor": processor}


if __name__ == "__main__":
    typer.run(main)
