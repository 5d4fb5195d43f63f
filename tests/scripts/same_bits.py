"""Train the same experiments with two versions of the package, and compare every array and every curve, bit for bit.

    python -m tests.scripts.same_bits --keep before.json            # the checksums of this checkout
    python -m tests.scripts.same_bits --against before.json         # this checkout against them
    python -m tests.scripts.same_bits --package OTHER_CHECKOUT ...  # another checkout, with the packages installed here

The experiments go through what may change bits: each enforcement mode, each rewinding mode and each criterion, controls,
a convolutional network with dropout, BatchNorm, crops and flips, a user's compiled tf_keras model, a sweep, two
workers, branches and connectivity. Names of files belong to what is compared, the names of runs' folders do not: they
end in a digest of the experiment.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import safetensors.numpy

# How the names of compared files begin.
COMPARED = ("masks", "weights", "early_stop", "predictions", "initial", "start", "metrics", "state", "path")

DIGITS = """
name = "digits"
[data]
name = "digits"
validation = 300
[model]
name = "lenet_300_100"
[train]
num_steps = 400
eval_every = 50
learning_rate = 1.2e-3
[prune]
num_rounds = 6
rates = { "dense_2/kernel" = 0.1 }
[run]
num_replicates = 2
controls = ["random_reinit", "random_mask"]
control_rounds = [3, 6]
"""

SWEEP = """
experiment = "digits.toml"
name = "grid"
[run]
num_replicates = 1
controls = []
control_rounds = []
[train]
num_steps = 120
[sweep]
"prune.rate" = [0.2, 0.5]
"rewind.step" = [0, 40]
"""

NETWORK = """
def network():
    import keras
    layers = keras.layers
    return keras.Sequential([
        keras.Input((8, 8)), layers.Reshape((8, 8, 1)), layers.Conv2D(4, 3), layers.BatchNormalization(),
        layers.Activation("relu"), layers.Flatten(), layers.Dense(32, "relu"), layers.Dropout(0.3), layers.Dense(10),
    ])
"""

COMPILED = """
import numpy as np, tf_keras
import lottery

def build():
    model = tf_keras.Sequential([
        tf_keras.layers.Input((12,)), tf_keras.layers.Dense(24, "relu"), tf_keras.layers.BatchNormalization(),
        tf_keras.layers.Dense(3),
    ])
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf_keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    return model

rng = np.random.default_rng(0)
x = rng.normal(size=(900, 12)).astype("float32")
y = np.argmax(x[:, :3] + x[:, 3:6], axis=1)
settings = {
    "name": "mine", "data": {"validation": 100}, "train": {"num_steps": 120, "eval_every": 30},
    "prune": {"num_rounds": 3}, "rewind": {"step": 15}, "run": {"num_replicates": 2, "controls": ["random_mask"]},
}
for enforcement in ("constraint", "gradient", "callback", "tfmot"):
    settings["run"]["enforcement"] = enforcement
    settings["name"] = "mine-" + enforcement
    lottery.run(settings, model=build, data=(x[:700], y[:700], x[700:], y[700:]), out=OUT)
"""

CRITERIA = """
import lottery
for criterion in (
    "magnitude", "large_final", "small_final", "large_init", "small_init", "large_init_large_final",
    "small_init_small_final", "magnitude_increase", "movement", "random", "snip", "grasp", "synflow",
):
    lottery.run(
        "digits.toml",
        {"name": criterion, "train": {"num_steps": 60}, "prune": {"criterion": criterion, "num_rounds": 2},
         "run": {"num_replicates": 1, "controls": [], "control_rounds": []}},
        out=OUT,
    )
"""

LENET = ("run", "digits.toml")
SHORT = ("train.num_steps=120", "prune.num_rounds=3", "run.num_replicates=1")
RUNS = {  # words of the command, or lines of Python
    "digits": LENET,
    "two workers": (*LENET, "--workers", "2"),
    "late": (*LENET, "rewind.step=100", "prune.num_rounds=3", "run.control_rounds=[2]"),
    "learning rate": (*LENET, *SHORT, "rewind.mode=learning_rate", "train.drop_at=[80]", "run.controls=['untrained']", "run.control_rounds=[3]"),
    "signs": (*LENET, *SHORT, "rewind.mode=sign", "run.controls=['shuffled_mask','reshuffled_init']", "run.control_rounds=[3]"),
    "fine-tuned": (*LENET, *SHORT, "rewind.mode=fine_tune", "run.controls=['untrained']", "run.control_rounds=[3]"),
    "convolutional": (
        *LENET, "model.name=network:network", "data.augment=['crop', 'flip']", "train.num_steps=200",
        "prune.rates={}", "prune.num_rounds=2", "run.control_rounds=[2]", "run.controls=['random_mask']",
        "rewind.step=30", "train.optimizer={name='sgd', momentum=0.9}", "train.learning_rate=0.02",
    ),
    "tfmot": (*LENET, *SHORT, "run.enforcement=tfmot", "run.control_rounds=[3]"),
    "gradient": (*LENET, *SHORT, "run.enforcement=gradient", "run.control_rounds=[3]"),
    "reparameterization": (*LENET, *SHORT, "run.enforcement=reparameterization", "run.control_rounds=[3]"),
    "callback": (*LENET, *SHORT, "run.enforcement=callback", "run.control_rounds=[3]"),
    "global": (*LENET, *SHORT, "prune.rates={}", "prune.scope=global", "run.controls=['random_mask_global']", "run.control_rounds=[3]"),
    "erk": (*LENET, *SHORT, "prune.rates={}", "prune.allocation=erk", "run.controls=[]", "run.control_rounds=[]", "prune.schedule=linear"),
    "compiled tf_keras": COMPILED,
    "criteria": CRITERIA,
    "sweep": ("sweep", "grid.toml"),
    "branches": ("branch", "{digits}", "untrained", "--rounds", "3"),
    "connectivity": ("analyze", "connectivity", "{late}", "--rounds", "0,2", "--replicate", "1"),
}  # fmt: skip
ADDED_TO = {"branches": "digits", "connectivity": "late"}  # these write into a run before them


def checksums(folder: Path) -> dict[str, str]:
    """The checksum of each compared file below a folder, by its path without the digest in the name of its run."""
    names = {run.name: run.name.rpartition("-")[0] for run in folder.iterdir()}
    if len(names) == 1:
        names = dict.fromkeys(names, "RUN")
    sums = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name.startswith(COMPARED) and path.suffix in (".safetensors", ".csv"):
            run, *rest = path.relative_to(folder).parts
            sums["/".join([names[run], *rest])] = hashlib.sha256(content(path)).hexdigest()
    return sums


def content(path: Path) -> bytes:
    """What is compared of a file: all but what is measured of a ticket within the budget, which not every version has."""
    if path.name == "metrics.csv":
        return b"".join(line for line in path.read_bytes().splitlines(keepends=True) if b",test," not in line)
    if path.name != "predictions.safetensors":
        return path.read_bytes()
    arrays = safetensors.numpy.load_file(path)
    return b"".join(arrays[name].tobytes() for name in ("label", "early_stop", "final"))


def trained(package: Path, names: list[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Train the experiments with a checkout's package, and say what each has written."""
    environment = {**os.environ, "PYTHONPATH": str(package), "LOTTERY_DATA": ""}
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        for file, text in {"digits.toml": DIGITS, "grid.toml": SWEEP, "network.py": NETWORK}.items():
            (here / file).write_text(text)
        for name in names:
            out = here / ADDED_TO.get(name, name).replace(" ", "-")
            what = RUNS[name]
            if isinstance(what, str):
                command = ["-c", f"import sys; sys.path.insert(0, '.'); OUT = {str(out)!r}\n{textwrap.dedent(what)}"]
            else:
                runs = {key: next((here / key).iterdir()) for key in set(ADDED_TO.values()) if f"{{{key}}}" in what}
                words = [word.format(**runs) if word in ("{digits}", "{late}") else word for word in what]
                command = ["-m", "lottery", *words, *([] if runs else ["--out", str(out)])]
            done = subprocess.run(
                [sys.executable, *command], cwd=here, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(f"{name}: status {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
            yield name, checksums(out)


def main() -> None:
    """Train, and compare or keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, default=Path(__file__).resolve().parents[2], help="a checkout")
    parser.add_argument("--keep", type=Path, help="a JSON file to write the checksums to")
    parser.add_argument("--against", type=Path, help="a JSON file of checksums to compare with")
    parser.add_argument(
        "--only", nargs="*", default=list(RUNS), choices=list(RUNS), metavar="NAME", help="some of them"
    )
    options = parser.parse_args()
    before = json.loads(options.against.read_text()) if options.against else None
    found, wrong = {}, 0
    for name, sums in trained(options.package.resolve(), options.only):
        found[name] = sums
        if before is None:
            print(f"{name}: {len(sums)} files", flush=True)
            continue
        differing = sorted(path for path in before[name] if sums.get(path) != before[name][path])
        wrong += len(differing)
        which = f", not {', '.join(differing[:3])}" if differing else ""
        kinds = sorted({Path(path).name for path in sums.keys() - before[name].keys()})
        new = f"; new are {', '.join(kinds)}" if kinds else ""
        equal = len(before[name]) - len(differing)
        print(f"{name}: {equal} of {len(before[name])} files equal{which}{new}", flush=True)
    if options.keep:
        options.keep.write_text(json.dumps(found, indent=1))
    if wrong:
        raise SystemExit(f"{wrong} files differ.")


if __name__ == "__main__":
    main()
