"""Kill a run at random moments, go on each time, and compare every bit with a run that was left alone.

    python -m tests.scripts.kill_and_resume --kills 300 --whole /tmp/whole

With `--whole`, several calls share the run that was left alone, which the first one makes.

The network has dropout and BatchNorm, its images are cropped and flipped, and it is checkpointed every few steps, so
that most kills leave a network in mid-round to be gone on with. Kinds of kills, in turn:

- tree: SIGKILL to every process of a run that trains one network at a time;
- trees: the same, where two workers train;
- worker: SIGKILL to one of two workers, which the run has to get over by itself;
- parent: SIGKILL to the process that has started the workers, which have to end by themselves;
- term: SIGTERM to that process: a sentence, and status 143;
- int: SIGINT to all of one that trains by itself, as by Ctrl-C: a sentence, and status 130;
- ray: SIGKILL to a Ray worker of a run with `--on ray`, where that exists (`--kinds ray`).

Before every second kill, on average, SIGSTOP stops a process of the run for up to three seconds, as a laptop that
sleeps: half of these go on before the kill, and half are hit while they stand still.

In the end every file must be that of the run that was left alone, but for what TensorBoard shows, and for the seconds
that a network took. `tests/executors/test_kills.py` runs a short version.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lottery.runs import store, verification

WORDS = [
    "name=kills", "model.name=tests.scripts.restless:network", "data.augment=['crop', 'flip']", "train.num_steps=600",
    "train.eval_every=40", "train.learning_rate=0.004", "prune.num_rounds=2", "prune.rates={}",
    "run.num_replicates=2", "run.controls=['random_mask']", "rewind.step=90",
]  # fmt: skip
# A dense network, whose engine changes between its rounds, and which dies in both.
ENGINES = [
    "model.name=lenet_300_100", "data.augment=[]", "train.batch_size=512", "train.num_steps=600", "train.eval_every=20",
    "train.learning_rate=0.001", "train.engine=auto", "prune.rate=0.5", "prune.num_rounds=3", "rewind.step=0",
]  # fmt: skip
# A network of convolutions with augmented images, whose engine changes as well.
IMAGES = [
    "data.name=digits", "data.validation=300", "model.name=resnet_8", "train.batch_size=64", "train.num_steps=400",
    "train.eval_every=20", "train.engine=auto", "prune.scope=global", "prune.rate=0.5", "prune.num_rounds=3",
    "rewind.step=0",
]  # fmt: skip
# Masks that change while a network trains, and masks that are learned.
ALTERNATIVES = ["run.controls=['rigl', 'supermask', 'gradual_long']", "run.control_rounds=[2]", "rewind.step=0"]
ROOT = Path(__file__).parents[2]
KINDS = ("tree", "worker", "worker", "trees", "int", "tree", "worker", "parent", "worker", "term")
# Of records: how long it took, the commit of a checkout that somebody may be working in, and the digest of all that.
LOOSE = (
    "seconds",
    "commit",
    "record_sha256",
    "networks",
)  # the last holds checksums of records, of a path between them
PATIENCE = 1800.0  # seconds after which something that should have come by itself has not


@dataclass
class Tally:
    """What was seen.

    Attributes:
        wrong: Sentences; none if all is well.
        kills: By kind.
        in_mid_round: Kills that hit a network of which there was a checkpoint, which was gone on from.
        stops: Processes that stood still for a while.
    """

    wrong: list[str] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    in_mid_round: int = 0
    stops: int = 0


@dataclass
class Run:
    """A run's process, and what it has written to both of its outputs."""

    process: subprocess.Popen
    out: Path
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text()

    def wait_for(self, happened: Callable[[], bool]) -> bool:
        """Whether something has happened before the process ended."""
        until = time.monotonic() + PATIENCE
        while not happened():
            if self.process.poll() is not None:
                return False
            if time.monotonic() > until:
                raise SystemExit(f"Nothing has happened for {PATIENCE:.0f} s: {self.said}")
            time.sleep(0.01)
        return True


def command(out: Path, *options: str) -> list[str]:
    """The words of the command `lottery` by which a run starts, and goes on."""
    return ["run", "digits", *WORDS, "--out", str(out), "--checkpoint-every", "40steps", *options]


@contextlib.contextmanager
def started(out: Path, *options: str) -> Iterator[Run]:
    """Start a run, in a process group of its own; whatever is left of it in the end is killed."""
    log, words = out.with_suffix(".log"), command(out, *options)
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "lottery", *words], start_new_session=True, stdout=file, stderr=subprocess.STDOUT,
            cwd=ROOT, env={**os.environ, "LOTTERY_DATA": ""},
            # A shell lets its background jobs ignore Ctrl-C, and the command keeps to that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
    try:
        yield Run(process, out, log)
    finally:
        _kill_group(process)
        process.wait()


def family(pid: int) -> dict[int, str]:
    """The command of a process and of every one that it has started, by id; those that have ended are left out."""
    listed = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(None, 3) for line in listed.splitlines()]
    alive = {int(own): (int(parent), args) for own, parent, state, args in rows if not state.startswith("Z")}
    found: dict[int, str] = {}
    todo = [pid]
    while todo:
        one = todo.pop()
        if one in alive:
            found[one] = alive[one][1]
            todo += [child for child, (parent, _) in alive.items() if parent == one]
    return found


def workers(run: Run) -> list[int]:
    """The processes that train for a run."""
    return sorted(
        pid
        for pid, command in family(run.process.pid).items()
        # Ray's own agents are none of ours: with them their node goes, and the process that is connected to it.
        if "loky.backend.popen_loky" in command or command.startswith(("ray::train", "ray::_QueueActor"))
    )


def bits(out: Path) -> dict[str, object]:
    """Every file, but for what may depend on what happened on the way."""
    found: dict[str, object] = {}
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        name = str(path.relative_to(out))
        if path.suffix == ".json":
            found[name] = {key: value for key, value in json.loads(path.read_text()).items() if key not in LOOSE}
        elif path.name != ".lock" and "tensorboard" not in Path(name).parts:
            found[name] = path.read_bytes()
    return found


def checkpoints(out: Path) -> list[Path]:
    """The checkpoints of networks that are not complete."""
    return [path for path in out.rglob("checkpoint*.safetensors") if not (path.parent / "round.json").exists()]


def progress(out: Path) -> set[tuple[Path, int]]:
    """Another value as soon as a checkpoint or a network was stored."""
    found = set()
    for path in [*out.rglob("checkpoint*.safetensors"), *out.rglob("round.json")]:
        with contextlib.suppress(FileNotFoundError):
            found.add((path, path.stat().st_mtime_ns))
    return found


def in_a_process(out: Path, *options: str) -> tuple[int, str]:
    """Run, or go on, to the end; return the status, and what was written to both outputs."""
    with started(out, *options) as run:
        return run.process.wait(PATIENCE), run.said


def left_alone(folder: Path, words: Sequence[str] = (), say=print, to_the_end=in_a_process) -> dict[str, object]:
    """Run once without a kill, or go on with such a run of an earlier call; return every file's bits."""
    folder.mkdir(parents=True, exist_ok=True)
    status, said = to_the_end(folder / "whole", *words)
    if status:
        raise SystemExit(f"The run ended with status {status}: {said}")
    expected = bits(folder / "whole")
    say(f"A run that is left alone: {len(expected)} files.")
    return expected


def kill_and_resume(
    num_kills: int, seed: int, folder: Path, kinds: Sequence[str] = KINDS, say=print, words: Sequence[str] = (),
    whole: dict[str, object] | None = None, to_the_end=in_a_process,
) -> Tally:  # fmt: skip
    """Kill and resume until `num_kills` kills were made.

    Args:
        num_kills: How many.
        seed: Of the moments.
        folder: For all runs.
        kinds: In turn.
        say: Takes a sentence for each kill.
        words: Further settings of the experiment.
        whole: What `left_alone` returned for them, if it is known.
        to_the_end: Takes a run from the last kill to its end, as `in_a_process` does.
    """
    chance, tally, in_turn = random.Random(seed), Tally(), itertools.cycle(kinds)
    began = time.monotonic()
    expected = whole or left_alone(folder, words, say, to_the_end)
    kind = next(in_turn)
    for number in itertools.count(1):
        if number > 10 * num_kills:
            raise SystemExit(f"{number - 1} runs came to their end, and only {tally.kills} kills were made.")
        out = folder / f"killed-{number}"
        while sum(tally.kills.values()) < num_kills:
            with started(out, *words, *_options(kind)) as run:
                while sum(tally.kills.values()) < num_kills and _killed(run, kind, chance, tally, say):
                    kind, before = next(in_turn), kind
                    if run.process.poll() is not None or _options(kind) != _options(before):
                        break
                ended = run.process.poll() == 0  # it came to its end first
                if ended:
                    break
        status, said = (0, "") if ended else to_the_end(out, *words, *_options("tree"))
        tally.wrong += _wrong(out, status, said, expected, say)
        if sum(tally.kills.values()) >= num_kills:
            break
    mid, seconds = tally.in_mid_round, time.monotonic() - began
    say(
        f"{dict(tally.kills)}, in {number} runs and {seconds:.0f} s; {mid} hit a network that had a checkpoint; "
        f"{tally.stops} processes were stopped before."
    )
    return tally


def _options(kind: str) -> list[str]:
    if kind == "ray":
        return ["--on", "ray"]
    return ["--workers", "1" if kind in ("tree", "int") else "2"]


def _killed(run: Run, kind: str, chance: random.Random, tally: Tally, say) -> bool:
    """Wait for a moment and kill; False if the run came to its end first."""
    before = progress(run.out)
    if not run.wait_for(lambda: "networks of " in run.said):
        return False
    # One in five hits what comes before the first step: the workers, the compiling. The others come some checkpoints
    # or networks later, and not some seconds later: how many of these a run takes depends on the machine.
    at_first = chance.random() < 0.2
    writes = 0 if at_first else chance.randint(1, 8)
    for _ in range(writes):
        if not run.wait_for(lambda before=before: progress(run.out) != before):
            return False
        before = progress(run.out)
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.process.wait(chance.uniform(0, 2 if at_first else 0.05))
    if kind in ("worker", "ray") and not run.wait_for(lambda: bool(workers(run))):
        return False
    if run.process.poll() is not None:
        return False
    relatives, mid, over = family(run.process.pid), checkpoints(run.out), _is_complete(run.out)
    with _standing_still(run, chance) as stopped:
        tally.stops += stopped
        if run.process.poll() is not None:
            return False
        _STRIKE[kind](run, chance)
    tally.kills[kind] += 1
    tally.in_mid_round += bool(mid)
    wrong = []
    if kind in ("worker", "ray"):
        if not run.wait_for(lambda: "it starts again from its last checkpoint" in run.said) and run.process.returncode:
            wrong.append(f"it ended with status {run.process.returncode}")
    else:
        run.process.wait(PATIENCE)
        wrong += left_running(relatives) + ([] if over else _farewell(run, kind))
    wrong += [f"it said {word!r}" for word in ("Traceback", "from its beginning", "damaged") if word in run.said]
    tally.wrong += [f"{kind}: {sentence}: {run.said[-2000:]}" for sentence in wrong]
    stored = len(list(run.out.rglob("round.json")))
    moment = f"after {writes} writes" if writes else "before the first step"
    moment += ", after SIGSTOP" if stopped else ""
    ending = "; ".join(wrong) or ("goes on by itself" if kind in ("worker", "ray") else "nothing is left running")
    number = sum(tally.kills.values())
    say(f"kill {number}: {kind}, {moment}: {stored} networks stored, {len(mid)} in mid-round; {ending}.")
    return True


@contextlib.contextmanager
def _standing_still(run: Run, chance: random.Random) -> Iterator[bool]:
    """Stop a process of the run every second time, on average; let it go on before the kill, or only after it."""
    family_of = [run.process.pid, *workers(run)]
    if chance.random() < 0.5:
        yield False
        return
    victim, seconds, before = chance.choice(family_of), chance.uniform(0.1, 3), chance.random() < 0.5
    _signalled(victim, signal.SIGSTOP)
    try:
        time.sleep(seconds)
        if before:
            _signalled(victim, signal.SIGCONT)
            time.sleep(chance.uniform(0, 0.5))
        yield True
    finally:
        _signalled(victim, signal.SIGCONT)


def _signalled(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _kill_worker(run: Run, chance: random.Random) -> None:
    run.wait_for(lambda: bool(workers(run)))  # one may be starting in the place of another
    with contextlib.suppress(ProcessLookupError, IndexError):
        os.kill(chance.choice(workers(run)), signal.SIGKILL)


_STRIKE: dict[str, Callable[[Run, random.Random], None]] = {
    "tree": lambda run, chance: _kill_group(run.process),
    "trees": lambda run, chance: _kill_group(run.process),
    "worker": _kill_worker,
    "ray": _kill_worker,
    "parent": lambda run, chance: run.process.kill(),
    "term": lambda run, chance: run.process.terminate(),
    "int": lambda run, chance: _kill_group(run.process, signal.SIGINT),
}


def _kill_group(process: subprocess.Popen, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _is_complete(out: Path) -> bool:
    """Whether nothing but the table and the figure is left to do."""
    (path,) = (path.parent for path in out.glob("*/experiment.toml"))
    return store.is_complete(path, store.read_experiment(path))


def left_running(relatives: dict[int, str]) -> list[str]:
    """Wait for the processes of a run that has ended; return a sentence for each that does not end."""
    until = time.monotonic() + PATIENCE
    while left := {pid: command for pid, command in relatives.items() if family(pid).get(pid) == command}:
        if time.monotonic() > until:
            return [f"process {pid} is left: {command}" for pid, command in left.items()]
        time.sleep(0.05)
    return []


def _farewell(run: Run, kind: str) -> list[str]:
    """What is wrong with how a run ended that was asked to stop."""
    status = {"term": 143, "int": 130}.get(kind)
    if status is None or run.process.returncode == 0:  # it had just trained the last network
        return []
    wrong = [] if run.process.returncode == status else [f"it ended with status {run.process.returncode}"]
    said = "Stopped. Everything is saved; run the same command to resume." in run.said
    return wrong + ([] if said else ["it did not say that it has stopped"])


def _wrong(out: Path, status: int, said: str, expected: dict[str, object], say) -> list[str]:
    """What is wrong with a run that has come to its end."""
    found = bits(out)
    wrong = [f"{name} differs" for name in sorted({*expected, *found}) if expected.get(name) != found.get(name)]
    if status:
        wrong.append(f"it ended with status {status}: {said[-2000:]}")
    (path,) = (path.parent for path in out.glob("*/experiment.toml"))
    for name, sentences in verification.verify(path):
        wrong += [f"verify: {name}: {sentence}" for sentence in sentences]
    say(f"{out.name}: {len(found)} files; {'; '.join(wrong) or 'all as in the run that was left alone'}.")
    return wrong


def has_ray() -> bool:
    """Whether runs can be trained by Ray."""
    said = subprocess.run([sys.executable, "-m", "lottery", "run", "--help"], capture_output=True, text=True, cwd=ROOT)
    return "--on" in said.stdout


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--kinds", default=",".join(KINDS), help="Which, in turn.")
    parser.add_argument("--whole", type=Path, help="Folder that keeps the run that is left alone, for further calls.")
    parser.add_argument("--engines", action="store_true", help="Train a network whose engine changes between rounds.")
    parser.add_argument("--images", action="store_true", help="The same, with convolutions.")
    parser.add_argument("--alternatives", action="store_true", help="Train branches whose masks change.")
    options = parser.parse_args()
    print(f"--seed {options.seed}")
    if "ray" in options.kinds and not has_ray():
        sys.exit("There is no `lottery run --on ray`.")

    def say(text):
        print(text, flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        chosen = {"engines": ENGINES, "images": IMAGES, "alternatives": ALTERNATIVES}
        words = next((words for name, words in chosen.items() if getattr(options, name)), ())
        whole = left_alone(options.whole or Path(scratch), words, say)
        engines = Counter(record["engine"] for name, record in whole.items() if name.endswith("round.json"))
        say(f"Networks by engine: {dict(engines)}.")
        if (options.engines or options.images) and len(engines) < 2:
            sys.exit("The engine does not change.")
        kinds = options.kinds.split(",")
        done = kill_and_resume(options.kills, options.seed, Path(scratch), kinds, say, words, whole)
    print("\n".join(done.wrong))
    print(f"{options.kills} kills: " + ("every file equal, bit for bit." if not done.wrong else "see above."))
    sys.exit(bool(done.wrong))
