"""Kill a run with SIGKILL at random moments, go on each time, and compare every bit with a run that was left alone.

    python tests/kill_and_resume.py --kills 20

Each kill hits the whole process group of a real `python -m lottery run`, at a moment drawn evenly from the part of
its life in which something can go wrong: from its first write to its end. `tests/test_kills.py` runs a short version.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORDS = [
    "train.num_steps=400", "train.eval_every=40", "prune.num_rounds=4", "run.num_replicates=2", "rewind.step=90",
    "run.controls=['random_reinit', 'random_mask']",
]  # fmt: skip
KINDS = (
    "masks.safetensors", "weights.safetensors", "metrics.csv", "initial.safetensors", "start.safetensors",
    "experiment.toml",
)  # fmt: skip


def start(out: Path) -> subprocess.Popen:
    """Start the run in a process group of its own."""
    command = [sys.executable, "-m", "lottery", "run", *WORDS, "--out", str(out)]
    return subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def bits(out: Path) -> dict[str, bytes]:
    """The bytes of every file that must not depend on what happened on the way."""
    return {str(path.relative_to(out)): path.read_bytes() for path in sorted(out.rglob("*")) if path.name in KINDS}


def finish(process: subprocess.Popen) -> float:
    """Wait for a run; its seconds from the first write on, 0 if there was nothing left to write."""
    began = None
    with process:
        for line in process.stdout or ():
            if began is None and "networks of each" in line:
                began = time.monotonic()
    if process.returncode != 0:
        raise SystemExit(f"The run ended with status {process.returncode}.")
    return time.monotonic() - began if began else 0.0


def kill_and_resume(num_kills: int, seed: int, folder: Path, say=print) -> int:
    """Kill and go on until `num_kills` kills were made; how many files differed in the end, summed over runs."""
    chance = random.Random(seed)
    lasting = finish(start(folder / "whole"))
    expected = bits(folder / "whole")
    say(f"A run that is left alone: {len(expected)} files, {lasting:.1f} s of training.")
    kills = differing = runs = 0
    while kills < num_kills:
        out, runs = folder / f"killed-{runs}", runs + 1
        while kills < num_kills:
            with start(out) as process:
                for line in process.stdout or ():
                    if "networks of each" in line:
                        break
                delay = chance.uniform(0, lasting * 0.6)
                try:
                    process.wait(delay)
                    break  # it came to its end first
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
            kills += 1
            stored = len(list(out.rglob("round.json")))
            say(f"kill {kills}: {delay:.2f} s after the first write, {stored} rounds stored")
        finish(start(out))
        found = bits(out)
        wrong = [name for name in {*expected, *found} if expected.get(name) != found.get(name)]
        left = [path for path in out.rglob(".*") if path.name != ".lock"]
        differing += len(wrong) + len(left)
        say(f"run {runs}: {len(found)} files, {len(wrong)} differ, {len(left)} half-written left {sorted(wrong)[:3]}")
    return differing


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"--seed {options.seed}")
    with tempfile.TemporaryDirectory() as scratch:
        differing = kill_and_resume(options.kills, options.seed, Path(scratch))
    print(
        f"{options.kills} kills: "
        + ("every file equal, bit for bit." if not differing else f"{differing} files differ.")
    )
    sys.exit(bool(differing))
