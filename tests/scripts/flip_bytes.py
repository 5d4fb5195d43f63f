"""Change one byte of any file of a run, and see whether `lottery verify` finds it.

    python -m tests.scripts.flip_bytes --places 2000

The run is trained first: rounds, controls, a branch, siblings and paths of connectivity, a state of a sweep, a network in
mid-training, a figure, a report, and files of TensorBoard. Every kind of file has its turn, and so do the beginnings of
files, where headers are. For each kind, the table says how many changes were tried and not found, and why these may
pass; a change that passes for no such reason is printed, and makes the script fail.
"""

import argparse
import collections
import contextlib
import functools
import json
import os
import signal
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import numpy as np

import lottery
from lottery import files, interrupts, progress
from lottery.errors import LotteryError
from lottery.pipeline import connecting, interpolation, session
from lottery.pipeline.prepared import Ingredients
from lottery.runs import store
from lottery.training.checkpoints import CheckpointInterval
from tests.scripts import fuzz_runs


def made(folder):
    """A run with a file of every kind, in a folder."""
    run = fuzz_runs.trained(folder, on_event=progress.silent)
    data = fuzz_runs.images()
    lottery.branch(run, "untrained", [2], model=fuzz_runs.network, data=data, on_event=progress.silent)
    connecting.connect(
        run, [1], steps=[10, 20], line=interpolation.Line(3), ingredients=Ingredients(model=fuzz_runs.network, data=data),
        execution=session.Execution(on_event=progress.silent),
    )  # fmt: skip
    assert fuzz_runs.called(["plot", str(run), "--out", str(run / "accuracy.png")])[0] == 0
    assert fuzz_runs.called(["report", str(run)])[0] == 0
    state = store.read_start(run, 1, 10)  # as a sweep over rewind steps keeps it for other runs
    store.write_state(store.state_path(run, 1, 20), state)
    far = []

    def seen(event):
        if isinstance(event, progress.Step) and event.step >= 20:
            far.append(signal.SIGTERM)

    with contextlib.suppress(interrupts.Stopped):  # a branch in mid-training, which leaves its checkpoint
        lottery.branch(
            run, "random_reinit", [1], model=fuzz_runs.network, data=data, on_event=seen, tensorboard=False, replicate=1,
            checkpoint_every=CheckpointInterval(0, 10), should_stop=lambda: len(far) and far[0],
        )  # fmt: skip
    assert list(run.rglob("checkpoint*.safetensors"))
    return run


def kind_of(run, path):
    """The kind of a file: its name without numbers, and where it lies."""
    parts = path.relative_to(run).parts
    place = "tensorboard/" if parts[0] == "tensorboard" else "connectivity/" if parts[0] == "connectivity" else ""
    place += "branch/" if any(part.startswith("branch-") for part in parts) else ""
    name = "step-N.safetensors" if path.name.startswith("step-") else path.name
    return place + ("events" if "tfevents" in name else f"path{path.suffix}" if name.startswith("path") else name)


# What verify does not look at, and why.
UNSEEN = {
    "accuracy.png": "a figure; drawn again by `lottery plot`",
    "report.html": "a page; written again by `lottery report`",
    "tensorboard/events": "what TensorBoard shows; nothing reads it, and it may be deleted",
    "branch/checkpoint.safetensors": "the state of a network in training, compared with its own checksum by who goes on",
}


def same_meaning(path, before, after):
    """Why a change that is not found does no harm; empty if it may."""
    try:
        if path.suffix == ".json" and json.loads(before) == json.loads(after):
            return "other spaces, the same record"
        if path.suffix == ".toml" and _plain(tomllib.loads(before.decode())) == _plain(tomllib.loads(after.decode())):
            return "other spaces or digits, the same values"
        if path.suffix == ".safetensors":
            one, other = (files.parse_arrays(path, content) for content in (before, after))
            same = one.keys() == other.keys() and all(
                (value.dtype, value.shape, value.tobytes())
                == (other[name].dtype, other[name].shape, other[name].tobytes())
                for name, value in one.items()
            )
            return "other spaces in the header, the same arrays" if same else ""
    except (ValueError, LotteryError):
        pass
    return ""


def _plain(value):
    """Values of an experiment, of which 1 and 1.0 are the same."""
    return json.dumps(value, sort_keys=True, default=str).replace(".0,", ",").replace(".0}", "}")


def flip(num_places, seed, folder, say=print):
    """Change a byte in `num_places` places; how many were not found for no reason that is known."""
    rng = np.random.default_rng(seed)
    run = made(folder)
    verify = functools.partial(fuzz_runs.called, ["verify", str(run)])
    assert verify()[0] == 0, verify()
    kinds = collections.defaultdict(list)
    for path in sorted(path for path in run.rglob("*") if path.is_file() and path.stat().st_size):
        kinds[kind_of(run, path)].append(path)
    tried, found = collections.Counter(), collections.Counter()
    passed, wrong = collections.defaultdict(collections.Counter), 0
    for index in range(num_places):
        kind = list(kinds)[index % len(kinds)]
        path = kinds[kind][rng.integers(len(kinds[kind]))]
        before = path.read_bytes()
        at = int(rng.integers(min(len(before), 400) if rng.random() < 0.3 else len(before)))
        old = before[at]
        # Digits for digits and spaces for text, beside bits: what stays readable is hardest to find.
        others = [old ^ 1, old ^ 128, old ^ (1 << int(rng.integers(8))), int(rng.integers(256)), 32, 48, 49]
        new = next(one for one in rng.permutation(others) if one != old)
        after = before[:at] + bytes([new]) + before[at + 1 :]
        path.write_bytes(after)
        status, _, err, _ = verify()
        path.write_bytes(before)
        tried[kind] += 1
        if status in (1, 2):
            found[kind] += 1
            continue
        why = UNSEEN.get(kind, "") or same_meaning(path, before, after)
        passed[kind][why or "NOT KNOWN"] += 1
        if status != 0 or not why:
            wrong += 1
            around = before[max(0, at - 40) : at + 20]
            say(
                f"{path.relative_to(run)}, byte {at}, {bytes([old])!r} to {bytes([new])!r}: {status or 'not found'}; {around!r}"
            )
    say("| file | changed | found | not found, and why |")
    say("| --- | --- | --- | --- |")
    for kind in kinds:
        reasons = "; ".join(f"{count}: {why}" for why, count in passed[kind].items())
        say(f"| `{kind}` | {tried[kind]} | {found[kind]} | {reasons or 'none'} |")
    say(f"{sum(tried.values())} places, {sum(found.values())} found, {wrong} not found for no known reason")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    print(f"--seed {options.seed}")
    with tempfile.TemporaryDirectory() as scratch:
        missed = flip(options.places, options.seed, Path(scratch))
    print("Every change is found, or harmless." if not missed else f"{missed} changes are not found.")
    sys.exit(bool(missed))
