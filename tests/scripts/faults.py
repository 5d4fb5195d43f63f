"""Inject faults into real runs, and say what happened, what was lost and what a person reads.

    python -m tests.scripts.faults > table.md

Every row is asserted: finished networks are as they were, `lottery verify` holds or names what is damaged, and the run
then ends with the bits of a run that was left alone. Disks that are full or cannot be written, and the kernel's killer
of processes that take too much memory, are real where this machine lets us have them (mount namespaces, cgroups).
`tests/executors/test_faults.py` runs those rows that take no process of their own.
"""

import argparse
import builtins
import contextlib
import errno
import functools
import io
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import lottery
from lottery import config, data, interrupts, progress
from lottery.errors import LotteryError, StorageError
from lottery.pipeline import connecting, interpolation, preparing, session, tensorboard
from lottery.runs import store, verification
from lottery.training import checkpoints
from tests.scripts import fuzz_runs
from tests.scripts.kill_and_resume import PATIENCE, ROOT, WORDS, bits, family, left_running, started, workers
from tests.scripts.kill_and_resume import checkpoints as checkpoints_of

NOTHING, MID_ROUND = "nothing", "what the network in training had done since its last checkpoint"
COMMAND = (
    "masks.safetensors", "weights.safetensors", "early_stop.safetensors", "predictions.safetensors", "metrics.csv",
    "round.json",
)  # fmt: skip


class Row(NamedTuple):
    """A fault, what it did and cost, and the sentence that was read."""

    fault: str
    happened: str
    lost: str
    read: str


class World:
    """A run that was left alone, and what it takes to make others like it in this process."""

    def __init__(self, scratch: Path, num_replicates: int = 2):
        self.scratch, self.count = scratch, itertools.count()
        self.data = scratch / "data.npz"
        scratch.mkdir(parents=True, exist_ok=True)
        np.savez(self.data, **data.DATASETS["digits"].load())
        tables = {
            "name": "faults", "data": {"name": "digits", "path": str(self.data), "validation": 137},
            "model": {"name": "lenet_300_100"},
            "train": {"num_steps": 20, "eval_every": 5, "batch_size": 32, "jit_compile": False},
            "prune": {"num_rounds": 2}, "rewind": {"step": 5},
            "run": {"num_replicates": num_replicates, "controls": ["random_mask"], "control_rounds": [2]},
        }  # fmt: skip
        self.settings = config.load(tables)
        self.whole, _ = self.go(self.folder())
        self.expected = bits(self.whole)
        partial, far = self.folder(), []

        def seen(event: progress.Event) -> None:
            if isinstance(event, progress.Step) and (event.round, event.step) == (1, 10):
                far.append(signal.SIGTERM)

        with contextlib.suppress(interrupts.Stopped):
            self.go(partial, on_event=seen, should_stop=lambda: len(far) and far[0])
        self.partial = store.run_path(partial, self.settings)
        assert checkpoints_of(self.partial) and store.is_stored(self.partial, 1, 0)

    def folder(self) -> Path:
        return self.scratch / str(next(self.count))

    def go(self, out: Path, **options: Any) -> tuple[Path, list[str]]:
        """Run, or go on; the run's folder, and the notes that were read."""
        notes: list[str] = []

        def told(event: progress.Event) -> None:
            if isinstance(event, progress.Note):
                notes.append(event.text)

        options = {
            "tensorboard": False,
            "checkpoint_every": checkpoints.CheckpointInterval(0, 5),
            "on_event": told,
        } | options
        return lottery.run(self.settings.model_dump(), out=out, **options).path, notes

    def copy(self, run: Path) -> Path:
        copied = self.folder() / run.name
        shutil.copytree(run, copied)
        return copied

    def refused(self, run: Path, **options: Any) -> str:
        """What is said of a run that cannot go on."""
        try:
            self.go(run.parent, **options)
        except LotteryError as error:
            return self.plain(str(error))
        raise AssertionError(f"{run} was not refused")

    def check_end(self, run: Path, **options: Any) -> list[str]:
        """Go on, and hold what comes of it against the run that was left alone; the notes that were read."""
        again, notes = self.go(run.parent, **options)
        assert again == run and wrong(run) == []
        same(self.expected, bits(run))
        return notes

    def plain(self, said: str) -> str:
        """A sentence without the folders of this machine."""
        said = re.sub(rf"{re.escape(str(self.scratch))}/[^/' ]+/(faults-[0-9a-f]+)?", "RUN/", said)
        return said.replace("RUN/'", "RUN'").replace(str(self.scratch), "…").replace("RUN//", "RUN/")


def same(expected: dict[str, object], found: dict[str, object]) -> None:
    different = [name for name in sorted({*expected, *found}) if expected.get(name) != found.get(name)]
    assert not different, different


def raw(run: Path) -> dict[str, object]:
    """The bytes of every file."""
    files_of = (path for path in run.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(run)): path.read_bytes() for path in files_of}


def wrong(run: Path) -> list[str]:
    """What `lottery verify` says."""
    try:
        return [f"{name}: {sentence}" for name, sentences in verification.verify(run) for sentence in sentences]
    except LotteryError as error:
        return [str(error)]


def check_intact(run: Path, expected: dict[str, object], half: bool = False) -> int:
    """How many networks are stored; each is that of the run that was left alone.

    Nothing half-written is there, or, with `half`, under temporary names alone.
    """
    found = bits(run) if run.exists() else {}
    stored = [name.removesuffix("round.json") for name in found if name.endswith("/round.json")]
    found = {name: content for name, content in found.items() if not half or not Path(name).name.startswith(".")}
    for folder in stored:
        for name in COMMAND:
            assert found[folder + name] == expected[folder + name], folder + name
    assert not [name for name in found if Path(name).name.startswith(".")], sorted(found)
    return len(stored)


# Disks


class Failing:
    """A disk that fails a call that writes below a folder, then works again; with `lasting`, fails from there on.

    Each attempt (`mounted`) fails at the first call that has not failed yet, so that attempts, one after the other, fail
    at every call of a run: a folder made, a file opened, half written, flushed, renamed, removed. A file that is
    written several times in an attempt counts each time.
    """

    def __init__(self, folder: Path, number: int, lasting: bool = False):
        self.folder, self.number, self.lasting = str(folder.resolve()), number, lasting
        self.failed: set[tuple[str, str, int]] = set()
        self.begins = ""  # only a file whose name has this in it is the first to fail
        self.hit: tuple[str, str, int] | None = None  # of the attempt
        self.times: Counter[tuple[str, str]] = Counter()

    def check(self, kind: str, path: object) -> None:
        """Raise if it is the turn of this call."""
        place = _placed(path)
        if not place.startswith(self.folder + "/"):
            return
        # Temporary files have the process' number in their names, TensorBoard's the time.
        name = re.sub(r"-\d+$|(?<=tfevents\.)\d+$", "", place[len(self.folder) :])
        self.times[kind, name] += 1
        call = (kind, name, self.times[kind, name])
        if self.hit is None and call not in self.failed and self.begins in name:
            self.hit = call
            self.failed.add(call)
        elif not (self.hit and self.lasting):
            return
        raise OSError(self.number, os.strerror(self.number), place)

    @contextlib.contextmanager
    def mounted(self) -> Iterator[None]:
        """Within, the disk fails."""
        self.hit, self.times = None, Counter()
        opening, descriptor = io.open, os.open

        def opened(path: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
            if not set(mode) & set("wax+"):
                return opening(path, mode, *arguments, **named)
            self.check("open", path)
            return _Half(opening(path, mode, *arguments, **named), lambda: self.check("write", path))

        def handle(path: Any, flags: int, *arguments: Any, **named: Any) -> int:
            # By a file without a name filelock tries what a folder can do; where that fails, it tries another way.
            is_nameless = flags & os.O_TMPFILE == os.O_TMPFILE
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and not is_nameless:
                self.check("open", path)
            return descriptor(path, flags, *arguments, **named)

        def before(kind: str, there: bool | None) -> Callable[..., Any]:
            function = getattr(os, kind)

            def called(path: Any, *arguments: Any, **named: Any) -> Any:
                # What is there already is not made, and what is not there is not removed: the kernel says so first.
                if there is None or os.path.lexists(path) is there:
                    self.check(kind, path)
                return function(path, *arguments, **named)

            return called

        kinds = {"mkdir": False, "unlink": True, "rmdir": True, "fsync": None, "replace": None, "rename": None}
        with contextlib.ExitStack() as stack:
            for kind, there in kinds.items():
                stack.enter_context(mock.patch.object(os, kind, before(kind, there)))
            stack.enter_context(mock.patch.object(os, "open", handle))
            for module in (io, builtins):
                stack.enter_context(mock.patch.object(module, "open", opened))
            yield


def _placed(path: object) -> str:
    """The absolute path of a file by name or by number; empty if it has none."""
    try:
        place = Path(f"/proc/self/fd/{path}").readlink() if isinstance(path, int) else Path(os.fsdecode(path))  # type: ignore[arg-type]
    except (OSError, TypeError):
        return ""
    return str(place.parent.resolve() / place.name)


class _Half:
    """An open file of which half is written when a check fails."""

    def __init__(self, file: Any, check: Callable[[], None]):
        self.file, self.check = file, check

    def __enter__(self) -> "_Half":
        return self

    def __exit__(self, *error: Any) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, content: Any) -> int:
        try:
            self.check()
        except OSError:
            self.file.write(content[: len(content) // 2])
            self.file.flush()
            raise
        return self.file.write(content)


def stored(run: Path) -> set[str]:
    """The networks that are stored."""
    return {str(path.relative_to(run)) for path in run.rglob("round.json")}


@contextlib.contextmanager
def _prepared_once() -> Iterator[None]:
    """Within, data are read and a model is built for a run's first attempt alone, which takes most of its time."""
    prepare, known = preparing.prepare, {}

    def prepared(experiment: config.Experiment, *arguments: Any) -> Any:
        key = config.digest(experiment)
        if key not in known:
            known[key] = prepare(experiment, *arguments)
        return known[key]

    with mock.patch.object(preparing, "prepare", prepared):
        yield


def _attempts(failing: Failing, run: Path, work: Callable[[], Any], expected: dict[str, object]) -> set[str]:
    """Do some work again and again until nothing new fails; the sentences that were read."""
    said: set[str] = set()
    while True:
        before = stored(run)
        try:
            with failing.mounted():
                work()
            if failing.hit is None:
                return said
            raise AssertionError(f"{failing.hit} failed, and nobody was told")
        except StorageError as error:
            assert len(str(error).splitlines()) == 1 and "cannot be written" in str(error), error
            said.add(re.sub(r"^'.*' cannot", "'…' cannot", re.sub(r"\d[\d.]* MB", "… MB", str(error))))
        assert before <= stored(run), (failing.hit, before - stored(run))
        check_intact(run, expected, half=failing.lasting)
        assert not (run / "environment.json").exists() or wrong(run) == [], failing.hit


def failing_writes(world: World, errors: Sequence[int] = (errno.ENOSPC, errno.EIO, errno.EACCES)) -> list[Row]:
    """Every write of a run, of a branch and of a path between siblings fails once, one after the other."""
    rows = []
    jobs: dict[str, Callable[[Path], Any]] = {
        "run": lambda run: world.go(run.parent),
        "branch": lambda run: lottery.branch(run, "untrained", [1], on_event=progress.silent, tensorboard=False),
        "connectivity": lambda run: connecting.connect(
            run, [1], line=interpolation.Line(3),
            execution=session.Execution(on_event=progress.silent, checkpoint_every=checkpoints.CheckpointInterval(0, 5)),
        ),
    }  # fmt: skip
    whole = world.copy(world.whole)
    for job in jobs.values():
        job(whole)
    expected = bits(whole)
    for number, lasting in itertools.product(errors, (False, True)):
        run = store.run_path(world.folder(), world.settings)
        failing = Failing(run.parent, number, lasting)
        said: set[str] = set()
        with _prepared_once():
            for job in jobs.values():
                said |= _attempts(failing, run, functools.partial(job, run), expected)
        same(expected, bits(run))
        written = {name for kind, name, _ in failing.failed if kind == "replace"}
        # Renamed from temporary names, which begin with a dot.
        for name in expected:
            path = run / name
            assert str(path.with_name(f".{path.name}"))[len(failing.folder) :] in written, name
        kinds = Counter(kind for kind, *_ in failing.failed)
        how = "and everything after it, until the attempt ends" if lasting else "which works again at once"
        rows.append(
            Row(
                f"{os.strerror(number)}: at each of {len(failing.failed)} writing calls in turn ({_listed(kinds)}), {how}",
                "stops, status 2; the same command goes on to the same bits",
                "nothing but what a checkpoint holds not yet",
                " / ".join(sorted(said)),
            )
        )
    return rows


def failing_displays(world: World, errors: Sequence[int] = (errno.ENOSPC, errno.EIO, errno.EACCES)) -> list[Row]:
    """Every write for TensorBoard fails, and the run goes on; every write of a figure, a page and a ticket."""
    rows = []
    for number in errors:
        run = world.copy(world.whole)
        failing, notes, told = Failing(run.parent, number), 0, ""
        while True:
            shutil.rmtree(run / "tensorboard", ignore_errors=True)
            events: list[progress.Event] = []
            with failing.mounted(), tensorboard.observing(run, world.settings, events.append):
                pass  # as of a complete run
            if failing.hit is None:
                break
            (note,) = events
            assert isinstance(note, progress.Note) and "Nothing more is written for TensorBoard" in note.text, (
                failing.hit
            )
            told, notes = world.plain(note.text), notes + 1
        shutil.rmtree(run / "tensorboard")
        same(world.expected, bits(run))
        rows.append(
            Row(
                f"{os.strerror(number)}: at each of {notes} writes for TensorBoard",
                "the run goes on",
                NOTHING,
                told,
            )
        )
        out = world.folder()
        out.mkdir()
        commands = (
            "plot RUN --out OUT/a.png",
            "report RUN --out OUT/a.html",
            "export RUN --round 1 --out OUT/t.safetensors",
        )
        for command in commands:
            words = command.replace("RUN", str(run)).replace("OUT", str(out)).split()
            failing = Failing(out, number)
            while True:
                with failing.mounted():
                    status, _, err, _ = fuzz_runs.called(words)
                if failing.hit is None:
                    break
                said = err.strip().removeprefix("lottery: ").replace(str(world.scratch), "…")
                one = err.count("lottery: ") == 1 and "cannot be" in " ".join(err.split())
                assert status == 2 and one, (failing.hit, status, err)
                assert not [path for path in out.rglob("*") if path.name.startswith(".")], failing.hit
            assert status == 0, err
            fault = f"{os.strerror(number)}: at each of {len(failing.failed)} writing calls of `lottery {words[0]}`"
            rows.append(Row(fault, "stops, status 2", NOTHING, said))
    return rows


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


def full_for_good(world: World) -> list[Row]:
    """A disk that is full from some write on, and TensorBoard's files."""
    run = store.run_path(world.folder(), world.settings)
    notes: list[str] = []
    failing = Failing(run.parent, errno.ENOSPC, lasting=True)
    failing.begins = "round-01/.weights.safetensors"
    with failing.mounted():
        try:
            world.go(run.parent, tensorboard=True, on_event=lambda event: notes.append(getattr(event, "text", "")))
        except StorageError as error:
            said = str(error)
    check_intact(run, world.expected, half=True)
    assert not [note for note in notes if "The others continue" in note]
    world.check_end(run)
    return [
        Row("the same, and the disk stays full", "one attempt, not one for each network", NOTHING, world.plain(said))
    ]


# Damaged files

PLACES = {
    "masks": "replicate-1/round-01/masks.safetensors", "weights": "replicate-1/round-01/weights.safetensors",
    "early-stop weights": "replicate-1/round-01/early_stop.safetensors",
    "predictions": "replicate-2/round-01/predictions.safetensors",
    "metrics": "replicate-1/round-01/metrics.csv", "record": "replicate-1/round-01/round.json",
    "masks of a branch": "replicate-2/round-02/branch-random_mask/masks.safetensors",
    "initial weights": "replicate-1/initial.safetensors", "start weights": "replicate-2/start.safetensors",
    "environment": "environment.json", "experiment": "experiment.toml",
}  # fmt: skip
DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "truncated": lambda content, chance: content[: chance.randrange(len(content) // 2)],
    "a bit flipped": lambda content, chance: _flipped(content, chance.randrange(len(content) // 2, len(content) - 8)),
}


def _flipped(content: bytes, place: int) -> bytes:
    # The lowest bit of a digit or a letter leaves text text, which is the worse case.
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def damaged(world: World, places: Sequence[str] = tuple(PLACES), seeds: int = 2) -> list[Row]:
    rows = []
    for what, (damage, harm) in itertools.product(places, DAMAGES.items()):
        for seed in range(seeds):
            run = world.copy(world.whole)
            path = run / PLACES[what]
            before = path.read_bytes()
            path.write_bytes(harm(before, random.Random(seed)))
            if what == "experiment" and _same_experiment(path, world):  # a space or a digit beyond a float's precision
                continue
            held = raw(run)
            (verified, *_) = wrong(run) or [""]
            assert verified, f"verify says nothing of {what}, {damage}, seed {seed}"
            said = world.refused(run)
            assert path.name in said, said
            same(held, raw(run))  # nothing was touched
            happened = _mended(run, path, before, said)
            world.check_end(run)
        rows.append(Row(f"{what}: {damage}", f"refused; {happened}; `lottery verify` says it too", *_cost(what), said))
    return rows


def _same_experiment(path: Path, world: World) -> bool:
    with contextlib.suppress(LotteryError):
        return config.load(path) == world.settings
    return False


def _mended(run: Path, path: Path, before: bytes, said: str) -> str:
    """Do what the sentence says."""
    advice = re.search(r"; delete '([^']+)'( and the rounds after it)?", said)
    if not advice:
        assert "restore it" in said or path.name == "experiment.toml", said
        path.write_bytes(before)
        return "restored by hand, it goes on"
    folder = run / advice[1].removeprefix("RUN/")
    after = sorted(folder.parent.glob("round-*")) if advice[2] and folder.name.startswith("round-") else [folder]
    for one in after:
        if one.name >= folder.name:
            shutil.rmtree(one)
    return f"with {advice[1].removeprefix('RUN/')} deleted, as it says, what is missing is trained again"


def _cost(what: str) -> list[str]:
    return ["that file" if what in ("environment", "experiment") else "what is deleted; the same bits come back"]


def damaged_checkpoint(world: World) -> list[Row]:
    rows = []
    for damage, harm in DAMAGES.items():
        run = world.copy(world.partial)
        (path,) = checkpoints_of(run)
        path.write_bytes(harm(path.read_bytes(), random.Random(3)))
        assert wrong(run) == []
        (said,) = [note for note in world.check_end(run) if "from its beginning" in note]
        rows.append(
            Row(f"checkpoint: {damage}", "goes on by itself", "that network, from its beginning", world.plain(said))
        )
    return rows


def removed(world: World) -> list[Row]:
    rows = []
    places = {
        "the last round": "replicate-1/round-02", "a round in the middle": "replicate-1/round-01",
        "the first round": "replicate-1/round-00", "a branch": "replicate-2/round-02/branch-random_mask",
        "a replicate": "replicate-2",
    }  # fmt: skip
    for what, place in places.items():
        run = world.copy(world.whole)
        shutil.rmtree(run / place)
        check_intact(run, world.expected)
        said = [world.plain(one) for one in wrong(run)]
        assert bool(said) == (what in ("a round in the middle", "the first round")), said
        world.check_end(run)
        rows.append(
            Row(f"{what} removed", "trained again; the others stay as they are", "that", said[0] if said else "")
        )
    run = world.copy(world.whole)
    shutil.rmtree(run / places["the first round"])
    flipped = run / "replicate-1/round-02/weights.safetensors"
    flipped.write_bytes(_flipped(flipped.read_bytes(), 90000))
    said = world.refused(run)
    assert "round-02/weights" in said
    _mended(run, flipped, b"", said)
    world.check_end(run)
    return [
        *rows,
        Row("the first round removed, and the last damaged", "refused, as if nothing were missing", "that", said),
    ]


def data_changed(world: World) -> list[Row]:
    rows = []
    content = world.data.read_bytes()
    arrays = dict(np.load(world.data))
    for stage, run in (
        ("between two parts of a run", world.copy(world.partial)),
        ("after it", world.copy(world.whole)),
    ):
        arrays["x_train"] = arrays["x_train"].copy()
        arrays["x_train"][3] += 1
        np.savez(world.data, **arrays)
        before = bits(run)
        said = world.refused(run)
        same(before, bits(run))
        world.data.write_bytes(content)
        world.check_end(run)
        rows.append(Row(f"data file changed {stage}", "refused; restored, it goes on", NOTHING, said))
    run = world.copy(world.partial)
    world.data.unlink()
    said = world.refused(run)
    world.data.write_bytes(content)
    world.check_end(run)
    return [*rows, Row("data file removed", "refused; restored, it goes on", NOTHING, said)]


def clocks(world: World) -> list[Row]:
    real, jumps = time.time, random.Random(1)
    run = store.run_path(world.folder(), world.settings)
    with mock.patch.object(time, "time", lambda: real() + jumps.uniform(-7200, 7200)):
        world.check_end(run, tensorboard=True)
    rows = [
        Row(
            "clock jumps by up to two hours, both ways, each time it is read",
            "nothing; only TensorBoard's times are off",
            NOTHING,
            "",
        )
    ]
    run = world.copy(world.partial)
    for path in run.rglob("*"):
        os.utime(path, (real() + 86400 * 365,) * 2)
    world.check_end(run, tensorboard=True)
    return [*rows, Row("files a year in the future", "nothing", NOTHING, "")]


def locks(world: World) -> list[Row]:
    rows = []
    for what, content in (("left by a killed process", b""), ("that holds garbage", b"\x00\xff4711\n" * 1000)):
        run = world.copy(world.partial)
        (run / ".lock").write_bytes(content)
        world.check_end(run)
        rows.append(Row(f"a lock file {what}", "goes on: the lock is the kernel's, not the file", NOTHING, ""))
    return rows


def folder_deleted(world: World) -> list[Row]:
    run, seen = store.run_path(world.folder(), world.settings), itertools.count()

    def deleting(event: progress.Event) -> None:
        if isinstance(event, progress.Step) and next(seen) == 25:
            shutil.rmtree(run)

    said = world.refused(run, on_event=deleting, tensorboard=True)
    assert "removed or moved" in said and not run.exists(), sorted(run.rglob("*"))
    world.check_end(run)
    return [
        Row(
            "the run's folder deleted while it runs",
            "stops within a second, status 2; nothing is made in its place",
            "the run",
            said,
        )
    ]


def memory_error(world: World) -> list[Row]:
    run = world.copy(world.partial)
    from lottery.training.trainer import Trainer

    with mock.patch.object(Trainer, "train", mock.Mock(side_effect=MemoryError("cannot allocate 3 GiB"))):
        said = world.refused(run)
    assert "not enough memory" in said
    world.check_end(run)
    return [Row("Python cannot allocate memory", "stops, status 2", MID_ROUND, said)]


# What needs processes of its own


def read_only(world: World) -> list[Row]:
    rows = []
    for what, run in (("in mid-run", world.copy(world.partial)), ("complete", world.copy(world.whole))):
        (run / ".environment.json-1").write_text("half")  # what a killed process left, which cannot be removed
        with _mounted(run.parent, "--bind", str(run.parent)):
            subprocess.run(["mount", "-o", "remount,ro,bind", str(run.parent)], check=True)
            if what == "complete":
                _, notes = world.go(run.parent, tensorboard=True)
                said = next(note for note in notes if "TensorBoard" in note)
            else:
                said = world.refused(run)
            assert wrong(run) == []
        (run / ".environment.json-1").unlink()
        world.check_end(run)
        ending = "is shown; nothing is written" if what == "complete" else "refused; once it can be written, it goes on"
        rows.append(Row(f"read-only folder, {what}", ending, NOTHING, world.plain(said)))
    return rows


@contextlib.contextmanager
def _mounted(place: Path, *options: str) -> Iterator[None]:
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", *options, str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def _command(
    world: World, out: Path, *more: str, before: Sequence[str] = (), **options: Any
) -> subprocess.CompletedProcess:
    """The command itself, on the experiment of this world."""
    file = world.scratch / "faults.toml"
    file.write_text(config.dump(world.settings))
    words = [
        *before,
        sys.executable,
        "-m",
        "lottery",
        "run",
        str(file),
        "--out",
        str(out),
        "--checkpoint-every",
        "5steps",
    ]
    options = {"capture_output": True, "text": True, "timeout": PATIENCE} | options
    return subprocess.run([*words, *more], cwd=ROOT, **options)


def _sentence(done: subprocess.CompletedProcess, status: int = 2) -> str:
    """The one that a command ended with."""
    assert done.returncode == status and "Traceback" not in done.stderr, (done.returncode, done.stderr)
    return done.stderr.strip().splitlines()[-1].removeprefix("lottery: ")


def full_for_real(world: World) -> list[Row]:
    rows = []
    for num in ("1", "2"):
        out, size, tries = world.folder(), 600, 0
        with _mounted(out, "-t", "tmpfs", "-o", f"size={size}k", "tmpfs"):
            run = store.run_path(out, world.settings)
            while True:
                done = _command(world, out, "--workers", num, "--no-tensorboard")
                if not done.returncode:
                    break
                said, tries, size = _sentence(done), tries + 1, size + 2500
                check_intact(run, world.expected)
                assert not (run / "environment.json").exists() or wrong(run) == []
                subprocess.run(["mount", "-o", f"remount,size={size}k", str(out)], check=True)
            assert tries >= 2, tries
            (run / "accuracy.png").unlink()  # runs in this process draw none
            world.check_end(run)
        fault = f"a real disk of 0.6 MB that is full {tries} times, workers: {num}"
        rows.append(Row(fault, "stops, status 2; goes on when the disk has grown", NOTHING, world.plain(said)))
    out = world.folder()
    done = _command(world, out, before=["bash", "-c", 'ulimit -f 100; exec "$@"', "bash"])
    rows.append(
        Row("files may not grow beyond 100 kB (`ulimit -f`)", "stops, status 2", NOTHING, world.plain(_sentence(done)))
    )
    world.check_end(store.run_path(out, world.settings))
    return rows


def outputs(world: World) -> list[Row]:
    rows = []
    for what, shell in (
        ("standard output closed", '"$@" >&-'), ("standard error closed", '"$@" 2>&-'),
        ("nobody reads standard error any more", '"$@" 2> >(head -n 1 >/dev/null)'),
        ("standard error on a full disk", '"$@" 2>/dev/full'), ("standard output on a full disk", '"$@" >/dev/full'),
    ):  # fmt: skip
        out = world.folder()
        done = _command(world, out, before=["bash", "-c", shell, "bash"])
        run = store.run_path(out, world.settings)
        assert store.is_complete(run, world.settings)
        said = _sentence(done) if done.returncode else ""
        assert bool(said) == (what == "standard output on a full disk"), said
        for path in run.glob("accuracy.png"):
            path.unlink()
        world.check_end(run)
        rows.append(
            Row(
                what,
                "the run comes to its end" + (", status 2" if said else ""),
                "the table" if said else NOTHING,
                said,
            )
        )
    return rows


@contextlib.contextmanager
def _long(world: World, *options: str) -> Iterator[Any]:
    """A run of `kill_and_resume` that has stored its first network."""
    with started(world.folder(), *options) as run:
        assert run.wait_for(lambda: any(run.out.rglob("round.json"))), run.said
        yield run


def _ends_well(world: World, out: Path) -> None:
    """Go on with a run of `kill_and_resume`, which ends with the bits of one that was left alone."""
    if not hasattr(world, "long"):
        with started(world.folder(), "--workers", "1") as run:
            run.process.wait(PATIENCE)
        world.long = bits(run.out)  # type: ignore[attr-defined]
    with started(out, "--workers", "1") as run:
        run.process.wait(PATIENCE)
    assert run.process.returncode == 0, run.said
    same(world.long, bits(out))  # type: ignore[attr-defined]


def two_at_once(world: World) -> list[Row]:
    rows = []
    with _long(world, "--workers", "1") as run:
        (path,) = (one.parent for one in run.out.glob("*/experiment.toml"))
        lots = [sys.executable, "-m", "lottery"]
        said = {}
        others = {
            "run": ["run", *WORDS, "--out", str(run.out)],
            "branch": ["branch", str(path), "untrained", "--rounds", "0", "--replicate", "1"],
            "analyze connectivity": ["analyze", "connectivity", str(path), "--rounds", "0", "--replicate", "1"],
        }
        os.killpg(run.process.pid, signal.SIGSTOP)  # so that it is not over before the others have begun
        pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
        should_stop = {name: subprocess.Popen([*lots, *words], **pipes) for name, words in others.items()}
        for name, process in should_stop.items():
            _, text = process.communicate(timeout=PATIENCE)
            said[name] = process.returncode, text
        alone = run.process.poll() is None
        os.killpg(run.process.pid, signal.SIGCONT)
        run.process.wait(PATIENCE)
        assert run.process.returncode == 0, run.said
    for name, (status, text) in said.items():
        sentence = text.strip().splitlines()[-1].removeprefix("lottery: ")
        assert alone and status == 2 and "Another process is working" in sentence, (name, status, text)
        sentence = sentence.replace(str(path), "RUN")
        rows.append(
            Row(
                f"`lottery {name}` beside a `lottery run` of the same run",
                "refused, status 2; the first goes on",
                NOTHING,
                sentence,
            )
        )
    _ends_well(world, run.out)
    return rows


def _note(run: Any, words: str) -> str:
    return next(line for line in run.said.splitlines() if words in line)


def workers_lost(world: World) -> list[Row]:
    rows = []
    with _long(world, "--workers", "2") as run:
        victim = workers(run)[0]
        os.kill(victim, signal.SIGSTOP)
        time.sleep(5)
        assert run.process.poll() is None
        os.kill(victim, signal.SIGKILL)
        run.process.wait(PATIENCE)
        assert run.process.returncode == 0, run.said
        said = _note(run, "starts again")
    _ends_well(world, run.out)
    rows.append(
        Row(
            "a worker that hangs",
            "its network waits as long as it hangs, the other worker goes on; killed by hand, the network is begun again",
            MID_ROUND,
            said,
        )
    )
    rows.append(
        Row("a worker killed (SIGKILL)", "both are started anew and go on from their checkpoints", MID_ROUND, said)
    )
    with _long(world, "--workers", "2") as run, _hunted(run):
        run.process.wait(PATIENCE)
        assert run.process.returncode == 2 and "Traceback" not in run.said, run.said
        ending, less = (
            run.said.strip().splitlines()[-1].removeprefix("lottery: "),
            _note(run, "one network trains at a time"),
        )
    check = [path.parent for path in run.out.glob("*/experiment.toml")]
    assert wrong(check[0]) == [] and "times without any progress" in ending
    _ends_well(world, run.out)
    rows.append(
        Row(
            "workers that are killed again and again",
            "one network at a time after the second time; after the third without progress the network has failed: status 2",
            NOTHING,
            f"{less} Then: {ending}",
        )
    )
    return rows


@contextlib.contextmanager
def _hunted(run: Any, strike: Callable[[int], None] = lambda pid: os.kill(pid, signal.SIGKILL)) -> Iterator[None]:
    """Strike every worker of a run as soon as it is there."""
    over = threading.Event()

    def hunt() -> None:
        struck: set[int] = set()
        while not over.wait(0.3):
            for pid in set(workers(run)) - struck:
                struck.add(pid)
                with contextlib.suppress(ProcessLookupError, OSError):
                    strike(pid)

    thread = threading.Thread(target=hunt)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def out_of_memory(world: World) -> list[Row]:
    """The kernel's own killer, by a cgroup that has no memory for workers, where one may be made."""
    rows = []
    group = Path("/sys/fs/cgroup/memory/lottery-faults")
    with contextlib.suppress(OSError):
        group.mkdir()
    if (group / "memory.limit_in_bytes").exists():
        try:
            (group / "memory.limit_in_bytes").write_text("2M")
            with _long(world, "--workers", "2") as run:
                os.kill(workers(run)[0], signal.SIGKILL)  # those that follow have all their memory to take
                with _hunted(run, lambda pid: (group / "cgroup.procs").write_text(str(pid)) and None):
                    run.process.wait(PATIENCE)
                assert run.process.returncode == 2 and "Traceback" not in run.said, run.said
                ending = run.said.strip().splitlines()[-1].removeprefix("lottery: ")
                assert "times without any progress" in ending and "killed, perhaps for lack of memory" in run.said
            oom = re.search(r"oom_kill (\d+)", (group / "memory.oom_control").read_text())
            _ends_well(world, run.out)
            killed = f" ({oom[1]} processes)" if oom else ""
            fault = f"the kernel kills every worker for lack of memory{killed}: a cgroup without any"
            rows.append(Row(fault, "as when they are killed again and again: status 2", NOTHING, ending))
        finally:
            time.sleep(0.5)
            group.rmdir()
    return rows


def no_address_space(world: World) -> list[Row]:
    for megabytes in range(2200, 1000, -200):
        out = world.folder()
        limited = ["bash", "-c", f'ulimit -v {megabytes}000; exec "$@"', "bash"]
        done = _command(world, out, "--workers", "1", before=limited)
        if done.returncode:
            break
    run = store.run_path(out, world.settings)
    stored = check_intact(run, world.expected)
    assert done.returncode and (not (run / "environment.json").exists() or wrong(run) == [])
    world.check_end(run)
    fault = f"no address space left (`ulimit -v`), one process, {stored} networks stored"
    happened = f"the process ends, status {done.returncode}; with memory, the same command goes on"
    return [Row(fault, happened, MID_ROUND, "what TensorFlow itself says")]


def deleted_with_workers(world: World) -> list[Row]:
    with _long(world, "--workers", "2") as run:
        (path,) = (one.parent for one in run.out.glob("*/experiment.toml"))
        relatives = family(run.process.pid)
        aside = run.out / "aside"
        path.rename(aside)
        run.process.wait(PATIENCE)
        assert run.process.returncode == 2 and "Traceback" not in run.said, run.said
        said = run.said.strip().splitlines()[-1].removeprefix("lottery: ").replace(str(path), "RUN")
        assert not path.exists(), sorted(path.rglob("*"))
        assert not left_running(relatives)
    aside.rename(path)
    _ends_well(world, run.out)
    return [
        Row(
            "the run's folder moved while two workers train", "stops, status 2; moved back, it goes on", MID_ROUND, said
        )
    ]


def interrupted_twice(world: World) -> list[Row]:
    rows = []
    for num in ("1", "2"):
        with _long(world, "--workers", num) as run:
            relatives = family(run.process.pid)
            os.killpg(run.process.pid, signal.SIGINT)
            run.wait_for(lambda: "Press Ctrl-C again to stop at once." in run.said)
            with contextlib.suppress(ProcessLookupError):  # it may already have stopped by the first
                os.killpg(run.process.pid, signal.SIGINT)
            run.process.wait(PATIENCE)
            assert run.process.returncode == 130 and "Traceback" not in run.said, run.said
            assert not left_running(relatives)
        said = _note(run, "once more").removeprefix("lottery: ")
        _ends_well(world, run.out)
        rows.append(
            Row(
                f"Ctrl-C twice, workers: {num}",
                "ends at once, status 130; nothing is left running",
                MID_ROUND,
                said,
            )
        )
    return rows


QUICK = (
    failing_writes, failing_displays, full_for_good, damaged, damaged_checkpoint, removed, data_changed, clocks, locks,
    folder_deleted, memory_error,
)  # fmt: skip
REAL = (
    read_only, full_for_real, outputs, two_at_once, workers_lost, out_of_memory, no_address_space, deleted_with_workers,
    interrupted_twice,
)  # fmt: skip


def can_mount() -> bool:
    """Whether this process may mount what it wants, without anybody else seeing it."""
    return subprocess.run(["unshare", "-rm", "true"], capture_output=True, check=False).returncode == 0


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = ["| fault | what happens | what is lost | what you read |", "| --- | --- | --- | --- |"]
    for row in rows:
        fault, happened, lost, read = (cell.replace("|", "\\|").replace("\n", " ") or "nothing" for cell in row)
        lines.append(f"| {fault} | {happened} | {lost} | {read} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="Names of functions of this module, such as removed,locks.")
    options = parser.parse_args()
    if "LOTTERY_FAULTS" not in os.environ and can_mount():
        os.environ["LOTTERY_FAULTS"] = "a mount namespace of our own"
        os.execvp("unshare", ["unshare", "-rm", sys.executable, "-m", "tests.scripts.faults", *sys.argv[1:]])
    os.environ["LOTTERY_DATA"] = ""
    chosen = [one for one in (*QUICK, *REAL) if not options.only or one.__name__ in options.only.split(",")]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        world = World(Path(scratch))
        for one in chosen:
            if one in (read_only, full_for_real) and "LOTTERY_FAULTS" not in os.environ:
                print(f"{one.__name__}: left out, for nothing can be mounted here", file=sys.stderr)
                continue
            began = time.monotonic()
            rows += one(world)
            print(f"{one.__name__}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print(table(rows))
