"""Damage and forge run folders, and give each to the commands that read runs: each says the same, or one sentence.

    python -m tests.scripts.fuzz_runs --runs 5000 --seed 0

A *damaged* run has other bytes in one file: a command prints what it prints for the whole run, or refuses. (Without its
record, a network is one that is not stored yet, so that a run that lost a record prints what such a run prints.) A *forged*
run is signed again after the change, so that every checksum is right: a command prints anything, or refuses. None
raises, takes more than two seconds of processor beyond what it takes for the whole run, or 300 MB of memory.

The run in `corpus/run/` is what is changed; `--make-corpus` trains it anew. Each run is given to eight commands by
chance (`--commands`) that draw nothing, and every twentieth (`--sample`) to all commands; `--only KIND` makes one kind
of change, `--first` begins with a later run of the same seed. What breaks a promise is copied to `--keep`.
"""

import argparse
import collections
import contextlib
import io
import json
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import numpy as np
from safetensors.numpy import save as format_arrays

from lottery import cli, files
from lottery.errors import LotteryError
from tests.scripts import forging, fuzz_tickets
from tests.scripts.fuzz_tickets import ODD

CORPUS = Path(__file__).parent / "corpus" / "run"
SECONDS, MEGABYTES = 2.0, 300
TEXTS = ("", "x\x1b]0;PWNED\x07", "a\nb", "=1+1", "../..", "/etc/passwd", "a" * 5000, "\u202e", "\ud800", "<script>")
ODD_VALUES = (*ODD, *TEXTS, float("nan"), float("inf"), 10**9, 1e300, [[]] * 50, {"a": {"b": []}})

# Commands that read a run, which is put in for RUN, and write only to OUT.
COMMANDS = (
    "show RUN", "show RUN --csv", "show RUN --json --round 1", "show RUN --interval two_way", "ls --out PARENT --json",
    "verify RUN", "tickets ls RUN", "tickets ls RUN --csv", "analyze layers RUN --csv", "analyze costs RUN --json",
    "analyze curves RUN", "analyze degrees RUN", "analyze distance RUN --csv", "analyze overlap RUN", "check RUN",
    "compare RUN WHOLE", "compare WHOLE RUN --csv", "export RUN --round 1 --out OUT/t.safetensors",
    "export RUN --round best --replicate 2 --at early_stop --out OUT/t.safetensors",
    "plan --from RUN --difference 0.1 name=x prune.num_rounds=1",
)  # fmt: skip
DRAWING = (
    "plot RUN --out OUT/a.svg", "plot RUN --kind layers --out OUT/a.svg", "plot RUN --kind learning_curves --out OUT/a.svg",
    "plot RUN --kind inputs --out OUT/a.svg --caption", "report RUN --out OUT/a.html",
)  # fmt: skip


def network():
    """A network of 300 weights, so that its run is small."""
    import keras

    layers = [keras.layers.Flatten(), keras.layers.Dense(8, "relu"), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((4, 4)), *layers])


def images():
    """The data of that network: digits of 4 x 4 pixels."""
    from sklearn.datasets import load_digits

    pixels, y = load_digits(return_X_y=True)
    x = pixels.reshape(-1, 8, 8)[:, ::2, ::2].astype(np.float32) / 16
    return x[:300], y[:300], x[300:360], y[300:360]


def trained(out, **options):
    """Train the run that is changed; return its folder."""
    import lottery

    experiment = {
        "name": "corpus", "data": {"validation": 50}, "prune": {"num_rounds": 2}, "rewind": {"step": 10},
        "train": {"num_steps": 60, "eval_every": 20, "jit_compile": False, "learning_rate": 0.01},
        "run": {"num_replicates": 2, "controls": ["random_mask"], "num_threads": 1},
    }  # fmt: skip
    return lottery.run(experiment, model=network, data=images(), out=out, **options).path


def make_corpus():
    """Train the run of the corpus anew."""
    with tempfile.TemporaryDirectory() as out:
        run = trained(out, tensorboard=False)
        shutil.rmtree(CORPUS, ignore_errors=True)
        shutil.copytree(run, CORPUS, ignore=shutil.ignore_patterns(".lock", "*.png"))


def signed(run, path):
    """Sign a file that was changed, and what vouches for it."""
    if path.name == "experiment.toml":
        with contextlib.suppress(LotteryError):
            from lottery import config

            forging.sign(run / "environment.json", digest=config.digest(config.validated(config.read(path))))
    elif path.suffix == ".json":
        forging.sign(path)
    elif (path.parent / "round.json").exists():
        forging.sign_files(path.parent)


# What is done to a run: from (random numbers, its folder) to the file that was changed.


def any_file(rng, run, *endings):
    found = sorted(path for path in run.rglob("*") if path.is_file() and (not endings or path.suffix in endings))
    return found[rng.integers(len(found))]


def damage(rng, run):
    """Other bytes in a file, none of it signed."""
    path = any_file(rng, run)
    kinds = ("flip_bits", "set_bytes", "insert_bytes", "delete_bytes", "truncate", "extend", "swap_chunks")
    change = getattr(fuzz_tickets, kinds[rng.integers(len(kinds))])
    path.write_bytes(change(rng, path.read_bytes()))
    return path


def lose_file(rng, run):
    path = any_file(rng, run)
    path.unlink()
    return path


def swap_files(rng, run):
    path = any_file(rng, run)
    path.write_bytes(any_file(rng, run, path.suffix).read_bytes())
    return path


def forge_bytes(rng, run):
    path = damage(rng, run)
    with contextlib.suppress(ValueError, OSError, AttributeError):
        signed(run, path)
    return path


def edit_record(rng, run):
    path = any_file(rng, run, ".json")
    record = json.loads(path.read_text())
    places = fuzz_tickets._places(record)
    for _ in range(rng.integers(1, 3)):
        holder, key = places[rng.integers(len(places))]
        kind = rng.integers(4)
        if kind == 0 and isinstance(holder, dict):
            holder.pop(key, None)
        elif kind == 1 and isinstance(holder, dict):
            holder[str(ODD_VALUES[rng.integers(len(ODD_VALUES))])[:300]] = holder.pop(key, None)
        else:
            holder[key] = ODD_VALUES[rng.integers(len(ODD_VALUES))]
    path.write_text(json.dumps(record))
    signed(run, path)
    return path


def edit_experiment(rng, run):
    path = run / "experiment.toml"
    lines = path.read_text().splitlines()
    at = rng.integers(len(lines))
    values = ("0", "-1", "1", "2", "3", "1000000000", "9" * 30, "1e300", "nan", "inf", '""', '"\\u001b[2J"', "[]", "{}",
              "true", '"given"', '"os:system"', "[1, 2]", '["random_mask"]', "0.5", '"magnitude"', "1979-05-27")  # fmt: skip
    key, equals, _ = lines[at].partition(" = ")
    lines[at] = f"{key} = {values[rng.integers(len(values))]}" if equals else ""
    path.write_text("\n".join(lines))
    signed(run, path)
    return path


def edit_arrays(rng, run):
    path = any_file(rng, run, ".safetensors")
    arrays = {name: np.asarray(value, order="C") for name, value in files.read_arrays(path).items()}
    metadata = files.layout(path).metadata
    name = list(arrays)[rng.integers(len(arrays))]
    value = arrays[name]
    kind = rng.integers(9)
    if kind == 0:
        del arrays[name]
    elif kind == 1:
        arrays[(*TEXTS, "other", "dense/kernel")[rng.integers(len(TEXTS) + 2)].replace("\ud800", "y")] = arrays.pop(
            name
        )
    elif kind == 2:
        arrays[name] = value.astype((np.float16, np.float64, np.int32, np.uint8, bool)[rng.integers(5)])
    elif kind == 3:
        arrays[name] = np.ascontiguousarray(value[..., None])
    elif kind == 4:
        arrays[name] = value.reshape(-1)[: max(1, value.size // 2)]
    elif kind == 5:
        arrays[name] = np.full_like(value, np.array((0, 1, 255, 7)[rng.integers(4)]).astype(value.dtype))
    elif kind == 6 and value.dtype.kind == "f":
        arrays[name] = np.full_like(value, (np.nan, np.inf, 1e38, -np.inf)[rng.integers(4)])
    elif kind == 7:
        arrays[name] = np.zeros(0, value.dtype)
    else:
        arrays["more"] = np.zeros(3, np.float32)
    if "shapes" in metadata:
        shapes = json.loads(metadata["shapes"])
        if rng.integers(2):
            odd = ([0], [-1, -1], [1] * 40, [2**40] * 8, "x", None, [True], [1.5], [10**30])
            shapes[next(iter(shapes))] = odd[rng.integers(len(odd))]
        metadata["shapes"] = json.dumps(shapes)
    path.write_bytes(format_arrays(arrays, metadata))
    signed(run, path)
    return path


def edit_masks(rng, run):
    path = any_file(rng, run)
    path = path if path.name == "masks.safetensors" else sorted(run.rglob("masks.safetensors"))[rng.integers(6)]
    kept = files.read_masks(path)
    name = list(kept)[rng.integers(len(kept))]
    change = (
        np.zeros_like,
        np.ones_like,
        np.logical_not,
        np.transpose,
        lambda mask: mask[:1],
        lambda mask: mask.ravel(),
    )
    kept[name] = change[rng.integers(len(change))](kept[name])
    path.write_bytes(files.pack_masks(kept))
    record = {"kept": {key: int(mask.sum()) for key, mask in kept.items()}}
    total = sum(mask.size for mask in kept.values())
    record |= {"num_kept": sum(record["kept"].values()), "num_weights": total}
    forging.sign_files(path.parent, **record, density=record["num_kept"] / total)
    return path


def edit_table(rng, run):
    path = any_file(rng, run, ".csv")
    rows = [line.split(",") for line in path.read_text().splitlines()]
    cells = ("", "nan", "inf", "-1", "1e400", "x", "9" * 30, "9" * 5000, "test", "train", "\x1b[2J", '"', "0", "1")
    for _ in range(rng.integers(1, 4)):
        row = rows[rng.integers(len(rows))]
        row[rng.integers(len(row))] = cells[rng.integers(len(cells))]
    if rng.integers(4) == 0:
        del rows[1:]
    path.write_text("\n".join(map(",".join, rows)) + "\n")
    signed(run, path)
    return path


def odd_file(rng, run):
    """A pipe, a device, a folder, a hole of a terabyte, or a link, in place of a file."""
    path = any_file(rng, run)
    content = path.read_bytes()
    path.unlink()
    (
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
        path.mkdir,
        lambda: path.symlink_to("/etc/passwd"),
        lambda: path.symlink_to(path),
        lambda: (path.write_bytes(content), os.truncate(path, 2**40)),
    )[rng.integers(6)]()
    return path


def odd_folder(rng, run):
    """A folder of another name, twice, or a link."""
    folders = sorted(path for path in run.rglob("*") if path.is_dir())
    path = folders[rng.integers(len(folders))]
    names = ("round-1", "round-007", "round-99", "replicate-0", "replicate-9", "replicate-x", "branch-", "branch-a b",
             "branch-\x1b[2J", "branch-ticket", "round-00", "branch-transfer-x", f"branch-{'a' * 200}")  # fmt: skip
    to = path.with_name(names[rng.integers(len(names))])
    kind = rng.integers(3)
    if to.exists():
        shutil.rmtree(path)
    elif kind == 0:
        path.rename(to)
    elif kind == 1:
        shutil.copytree(path, to)
    else:
        path.rename(run.parent / "elsewhere")
        path.symlink_to(run.parent / "elsewhere")
    if to.is_dir() and rng.integers(2):  # as if it belonged there
        place = dict(zip(("replicate", "round", "branch"), (1, 1, "x"), strict=True))
        for found in to.rglob("round.json"):
            for part in found.relative_to(run).parts:
                key, _, value = part.partition("-")
                place |= {key: int(value) if value.isdecimal() and key != "branch" else value} if key in place else {}
            forging.sign(found, **(place if "branch-" in str(found) else place | {"branch": "ticket"}))
    return to


CHANGES = (
    damage, damage, damage, lose_file, swap_files, forge_bytes, edit_record, edit_record, edit_record, edit_experiment,
    edit_arrays, edit_arrays, edit_masks, edit_table, odd_file, odd_folder,
)  # fmt: skip
UNSIGNED = {damage, lose_file, swap_files, odd_file}


def called(words):
    """Call a command in this process: its status, or the error that it raised; its output; its seconds."""
    out, err, began = io.StringIO(), io.StringIO(), time.process_time()
    before, sys.argv = sys.argv, ["lottery", *words]
    status = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cli.main()
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)
        own = next((f"{one.filename.rpartition('/lottery/')[2]}:{one.lineno}" for one in reversed(where) if "/lottery/" in one.filename), "")  # fmt: skip
        status = f"raised {type(error).__name__} at {own}: {str(error)[:200]!r}"
    finally:
        sys.argv = before
    return status, out.getvalue(), err.getvalue(), time.process_time() - began


def filled(command, folder):
    values = {"RUN": folder / "runs" / "run", "PARENT": folder / "runs", "OUT": folder / "out", "WHOLE": CORPUS}
    return [next((word.replace(key, str(to)) for key, to in values.items() if key in word), word) for word in command.split()]  # fmt: skip


def judged(command, folder, whole, is_signed):
    """What is wrong with what a command does with a run; empty if nothing is."""
    status, out, err, seconds = called(filled(command, folder))
    if isinstance(status, str):
        return status
    if status not in (0, 1, 2):
        return f"status {status}"
    if seconds > whole[command][1] + SECONDS:
        return f"took {seconds:.1f} s"
    if {"\x1b", "\x07", "\u202e"} & set(out + err):
        return "printed a control character"
    if status == 2 and (out.count("lottery:") + err.count("lottery: ") < 1 or len(err) > 6000):
        return f"status 2 without one sentence: {err[:200]!r}"
    if status == 0 and not is_signed and out != whole[command][0] and "ls" not in command.split()[:2]:
        return "another output, though nothing was signed"
    return ""


def _not_to_be_copied(folder, names):
    """Pipes, for which a copy would wait, and holes of a terabyte, which it would fill."""
    paths = {name: Path(folder, name) for name in names}
    odd = (name for name, path in paths.items() if not path.is_symlink() and not path.is_dir())
    return [name for name in odd if not paths[name].is_file() or paths[name].stat().st_size > 10**8]


def fuzz(num_runs, seed, say=print, commands=8, sample=20, keep=None, only="", first=0):
    """Change `num_runs` runs, each in its own way, and give each to some commands; how many broke a promise.

    Args:
        num_runs: How many.
        seed: Of all chance, beside the number of the run.
        say: Called with each line of the report.
        commands: How many commands by chance a run is given to, of those that draw nothing.
        sample: One in so many runs is given to all commands.
        keep: Folder for copies of the runs that broke a promise.
        only: The one kind of change, by its function's name.
        first: The number of the first run.
    """
    wrong, counts = 0, collections.Counter()
    changes = [one for one in CHANGES if only in ("", one.__name__)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run = folder / "runs" / "run"
        (folder / "out").mkdir()
        shutil.copytree(CORPUS, run)
        whole = {}
        for command in COMMANDS + DRAWING:
            called(filled(command, folder))  # the first call imports
            status, out, err, seconds = called(filled(command, folder))
            assert status in (0, 1) or command.startswith("check"), (command, status, err)
            whole[command] = out, seconds
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for index in range(first, first + num_runs):
            rng = np.random.default_rng([seed, index])
            shutil.rmtree(folder / "runs")
            shutil.copytree(CORPUS, run)
            change = changes[index % len(changes)]
            try:
                changed = change(rng, run)
            except (LotteryError, ValueError, IndexError, OSError, KeyError):
                counts["not changed"] += 1
                continue
            is_lost = changed.name == "round.json" and not changed.exists()
            # Without predictions, a table lacks only the warning that a tolerance is too fine.
            is_loose = changed.name in (".lock", "predictions.safetensors")
            is_signed = change not in UNSIGNED or is_loose or is_lost
            # The changes take turns too, so that which run is in the sample must not depend on its number alone.
            is_chosen = index // len(changes) % sample == index % len(changes) % sample
            chosen = COMMANDS + DRAWING if is_chosen else rng.choice(COMMANDS, commands, replace=False)
            for command in map(str, chosen):
                why = judged(command, folder, whole, is_signed)
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                if peak - most > MEGABYTES * 1024:
                    why = why or f"took {(peak - most) / 1024:.0f} MB"
                most = max(most, peak)
                counts["wrong" if why else "right"] += 1
                if why:
                    wrong += 1
                    say(f"{change.__name__}, run {index}, {changed.relative_to(run.parent)}, lottery {command}: {why}")
                    if keep and not (keep / f"{seed}-{index}").exists():
                        shutil.copytree(run, keep / f"{seed}-{index}", symlinks=True, ignore=_not_to_be_copied)
                counts["given to all commands"] += is_chosen and command == chosen[0]
    say(f"{num_runs} runs: {dict(counts)}")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="how many runs to change")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--commands", type=int, default=8, help="how many commands to give each run to, by chance")
    parser.add_argument("--sample", type=int, default=20, help="one in so many runs is given to all commands")
    parser.add_argument(
        "--only", default="", help="one kind of change", choices=["", *(one.__name__ for one in CHANGES)]
    )
    parser.add_argument("--keep", type=Path, help="copy runs that break a promise to this folder")
    parser.add_argument("--make-corpus", action="store_true", help="train the run anew, and nothing else")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.make_corpus:
        make_corpus()
        sys.exit()
    print(f"--seed {options.seed}")
    broken = fuzz(
        options.runs, options.seed, commands=min(options.commands, len(COMMANDS)), sample=options.sample,
        keep=options.keep, only=options.only, first=options.first,
    )  # fmt: skip
    print("No promise broken." if not broken else f"{broken} promises broken.")
    sys.exit(bool(broken))
