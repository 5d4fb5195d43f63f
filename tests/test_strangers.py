"""What a stranger's run folder or experiment file may not do on the machine of whoever opens it."""

import json
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

import lottery
from lottery import config, data, files
from lottery.errors import LotteryError
from lottery.models import networks
from lottery.runs import store, verification
from lottery.runs.stored import StoredRound
from tests.conftest import SMALL, quietly
from tests.scripts import forging, fuzz_runs

CODE = """
from pathlib import Path
Path(__file__).with_name("imported").touch()
def net():
    import keras
    layers = keras.layers
    return keras.Sequential([keras.Input((8, 8)), layers.Flatten(), layers.Dense(10)])
"""
TINY = SMALL | {
    "train": SMALL["train"] | {"num_steps": 4, "eval_every": 2},
    "prune": {"num_rounds": 1},
    "run": {"num_replicates": 1},
    "model": {"name": "stranger_package.deep.own:net"},
}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A file with a function `net` in packages below the current folder, that leaves a trace when it is imported."""
    folder = tmp_path / "stranger_package" / "deep"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text(CODE)
    (folder / "own.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield folder / "own.py"
    for name in [name for name in sys.modules if name.startswith("stranger_package")]:
        del sys.modules[name]


def traces(own):
    return [*own.parents[1].rglob("imported")]


def test_no_command_imports_code_that_a_file_names(own, small_run, tmp_path, lottery_command):
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(config.dump(config.load(TINY)))
    grid = tmp_path / "grid.toml"
    grid.write_text('experiment = "experiment.toml"\n[sweep]\n"prune.rate" = [0.1, 0.2]\n')
    run = forging.copied(small_run.path, tmp_path / "run", lambda tables: tables.update(model=TINY["model"]))
    for words in (
        ("run", experiment),
        ("run", experiment, "--smoke"),
        ("run", experiment, "train.num_steps=3"),
        ("plan", experiment),
        ("plan", "--from", run, "prune.num_rounds=1"),
        ("sweep", grid),
        ("branch", run, "untrained", "--rounds", "1"),
        ("branch", run, "random_reinit", "--rounds", "1"),
        ("analyze", "connectivity", run, "--rounds", "1"),
        ("verify", run, "--recompute"),
    ):
        done = lottery_command(*words, "--out", tmp_path / "runs") if words[0] in ("run", "sweep") else lottery_command(*words)  # fmt: skip
        if words[:2] == ("plan", "--from"):
            assert done.returncode == 0  # it needs no network
        else:
            told = " ".join(done.stderr.split())
            assert (done.returncode, done.stdout) == (2, ""), words
            assert "'stranger_package.deep.own:net'" in told and f"'{own}'" in told and "--import-code" in told, told
            assert told.count("lottery:") == 1
        assert not traces(own) and "stranger_package" not in sys.modules, words
    assert not (tmp_path / "runs").exists()


def test_python_imports_no_code_that_a_file_names_either(own, small_run, tmp_path):
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(config.dump(config.load(TINY)))
    run = forging.copied(small_run.path, tmp_path / "run", lambda tables: tables.update(model=TINY["model"]))
    for call in (
        lambda: lottery.run(experiment, out=tmp_path / "runs", on_event=quietly),
        lambda: lottery.run(str(experiment), {"train": {"num_steps": 3}}, out=tmp_path / "runs", on_event=quietly),
        lambda: lottery.sweep({"experiment": str(experiment), "sweep": {"prune.rate": [0.1]}}, on_event=quietly),
        lambda: lottery.branch(run, "untrained", on_event=quietly),
        lambda: lottery.load(run).verify(recompute=True),
    ):
        with pytest.raises(LotteryError, match=r"import_code=True"):
            call()
        assert not traces(own)


def test_code_is_imported_where_the_user_names_or_trusts_it(own, tmp_path, lottery_command):
    experiment, name = tmp_path / "experiment.toml", TINY["model"]["name"]
    experiment.write_text(config.dump(config.load(TINY | {"model": {}})))
    done = lottery_command("plan", experiment, f"model.name={name}")
    assert done.returncode == 0 and len(traces(own)) == 2
    experiment.write_text(config.dump(config.load(TINY)))
    assert lottery_command("plan", experiment, "--import-code").returncode == 0
    events = []
    run = lottery.run(TINY, out=tmp_path / "runs", on_event=events.append)  # the caller's own tables
    assert f"{name} is imported from {own}." in [getattr(event, "text", "") for event in events]
    with pytest.raises(LotteryError, match="import_code=True"):
        run.branch("untrained", on_event=quietly)
    run.branch("untrained", on_event=quietly, import_code=True)
    assert lottery.run(experiment, out=tmp_path / "runs", on_event=quietly, import_code=True).path == run.path
    assert len(run.table()) == 3 and run.verify(recompute=True, import_code=True) == []


def test_an_attribute_that_a_module_misses_while_it_is_imported_is_not_taken_for_the_function(tmp_path, monkeypatch):
    (tmp_path / "broken_while_imported.py").write_text("import json\n\njson.gone\n\n\ndef build(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LotteryError, match="cannot be imported: module 'json' has no attribute 'gone'"):
        networks.builder("broken_while_imported:build", import_code=True)


def test_the_file_of_a_module_is_found_without_importing(own):
    assert networks.module_file("stranger_package.deep.own") == own
    assert networks.module_file("lottery.config") and networks.module_file("sys") is None
    for name in ("stranger_package.deep.other", "no.such", "", ".", "a..b", "stranger_package.deep.own.more"):
        assert networks.module_file(name) is None, name
    assert not traces(own)


@pytest.fixture
def run(tmp_path):
    """A copy of a small run, as a stranger may have changed it."""
    return forging.copied(fuzz_runs.CORPUS, tmp_path / "home" / "run")


def refused(lottery_command, *words):
    """What a command says, in one sentence, that it refuses; a wrong network is status 1 of `verify`."""
    began = time.thread_time()
    done = lottery_command(*words)
    assert time.thread_time() - began < 2
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line]
    assert done.returncode in (1, 2), (words, done)
    return " ".join(lines)


READING = ("show",), ("verify",), ("analyze", "layers"), ("tickets", "ls"), ("plot",)


@pytest.mark.parametrize("name", ["/dev/zero", "../../../../../../etc/passwd", "/etc/hostname", "initial.safetensors"])
def test_a_record_names_only_the_files_of_a_round(name, run, lottery_command):
    path = run / "replicate-1/round-01/round.json"
    record = json.loads(path.read_text())
    forging.sign(path, sha256=record["sha256"] | {name: "0" * 64})
    for words in READING:
        assert "is damaged: its 'sha256" in refused(lottery_command, *words[:2], run)
    with pytest.raises(LotteryError, match="is damaged"):
        lottery.tickets.load(run, round=1)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "outside", "circle"])
@pytest.mark.parametrize("name", ["masks.safetensors", "weights.safetensors", "metrics.csv", "round.json"])
def test_only_regular_files_of_the_run_are_read(kind, name, run, tmp_path, lottery_command):
    path, outside = run / "replicate-1/round-01" / name, tmp_path / "outside"
    outside.write_bytes(path.read_bytes())
    path.unlink()
    make = {
        "pipe": os.mkfifo,
        "device": lambda path: path.symlink_to("/dev/zero"),
        "folder": os.mkdir,
        "outside": lambda path: path.symlink_to(outside),
        "circle": lambda path: path.symlink_to(path),
    }
    make[kind](path)
    told = refused(lottery_command, "verify", run)
    assert str(path) in told.replace(" ", "") or name in told
    stored = StoredRound(run, 1, 1)
    part = {"masks.safetensors": "masks", "weights.safetensors": "weights", "metrics.csv": "metrics"}.get(
        name, "record"
    )
    with pytest.raises(LotteryError, match=r"regular file|symbolic link|Is a directory"):
        getattr(stored, part)


def test_files_are_as_large_as_the_record_says(run, monkeypatch):
    path, size = run / "replicate-1/round-01/round.json", 2**40  # bytes, of which the disk holds none
    whole = path.read_bytes()
    for each in (path, path.with_name("masks.safetensors"), path.with_name("metrics.csv")):
        os.truncate(each, size)
    with pytest.raises(LotteryError, match=r"has 1,099,511,627,776 bytes, more than the 8,000,000"):
        _ = StoredRound(run, 1, 1).record
    path.write_bytes(whole)
    with pytest.raises(LotteryError, match=r"has 1,099,511,627,776 bytes, more than the 100,000,000"):
        _ = StoredRound(run, 1, 1).metrics
    with pytest.raises(LotteryError, match=r"has 1,099,511,627,776 bytes, more than the 30,026"):  # 208 bits, names
        _ = StoredRound(run, 1, 1).masks
    monkeypatch.setattr(files, "_memory", lambda: size)
    with pytest.raises(LotteryError, match=r"more than the 549,755,813,888"):  # half of the memory
        files.read(path.with_name("masks.safetensors"))


def test_files_that_do_not_belong_together_are_sentences(run, lottery_command):
    """Each is right by its checksum."""
    folder, network = run / "replicate-1/round-01", "replicate 1, round 1"
    kept = files.read_masks(folder / "masks.safetensors")
    trained = files.read_arrays(folder / "weights.safetensors")
    turned = {name: mask.T for name, mask in kept.items()}
    files.write(folder / "masks.safetensors", files.pack_masks(turned))
    forging.sign_files(folder)
    found = {name: wrong for name, wrong in verification.verify(run) if wrong}
    assert "has shape" in found[network][0]
    assert "Its masks are of other weights than the masks of its round." in found[f"{network}, branch random_mask"]
    turned_too = trained | {name: trained[name].T for name in kept}
    files.write(folder / "weights.safetensors", files.pack_arrays(turned_too))
    files.write(folder / "early_stop.safetensors", files.pack_arrays(turned_too))
    forging.sign_files(folder)
    assert dict(verification.verify(run))[network]
    shutil.rmtree(folder)
    shutil.copytree(fuzz_runs.CORPUS / "replicate-1/round-01", folder)
    files.write(folder / "weights.safetensors", files.pack_arrays(trained | {"more": np.zeros(2, np.float32)}))
    forging.sign_files(folder)
    with pytest.raises(LotteryError, match="it has 'more', which the initial weights do not have"):
        lottery.tickets.load(run, round=1)
    (folder / "metrics.csv").write_text("step,split,loss,accuracy\n")
    forging.sign_files(folder)
    assert "it has no evaluation" in refused(lottery_command, "analyze", "costs", run)
    shutil.copytree(fuzz_runs.CORPUS, run, dirs_exist_ok=True)
    (run / "environment.json").write_bytes((run / "replicate-1/round-00/round.json").read_bytes())
    assert "it is the record of a network" in refused(lottery_command, "analyze", "costs", run)


@pytest.mark.parametrize("place", [".lock", "replicate-3", "tensorboard", "replicate-2/round-01", "connectivity"])
def test_nothing_is_written_through_links_out_of_a_run(place, run, tmp_path, lottery_command):
    outside = tmp_path / "precious"
    outside.mkdir()
    for name in (".secret.key-1", "round.json", "checkpoint-mine.safetensors"):
        (outside / name).write_text("precious")
    target = outside if place != ".lock" else outside / "round.json"
    whole = run / place
    if whole.is_dir():
        files.shutil.rmtree(whole)
    else:
        whole.unlink(missing_ok=True)
    whole.symlink_to(target)
    for words in (("branch", run, "untrained", "--rounds", "1"), ("analyze", "connectivity", run), ("verify", run)):
        assert "symbolic link" in refused(lottery_command, *words)
    with pytest.raises(LotteryError, match="symbolic link"), store.opened(run, store.read_experiment(run)):
        pass
    assert {path.name: path.read_text() for path in outside.iterdir()} == dict.fromkeys(
        (".secret.key-1", "round.json", "checkpoint-mine.safetensors"), "precious"
    )


def test_links_that_stay_in_a_run_are_followed(run):
    path = run / "replicate-1/round-01/masks.safetensors"
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")
    store.refuse_links(run)
    assert StoredRound(run, 1, 1).masks.keys() == StoredRound(run, 1, 2).masks.keys()


def test_a_file_is_never_written_through_a_link(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / f".page.html-{os.getpid()}").symlink_to(precious)
    files.write(tmp_path / "page.html", b"new")
    assert precious.read_text() == "precious" and (tmp_path / "page.html").read_text() == "new"


@pytest.mark.parametrize(
    ("section", "key", "most"), [("run", "num_replicates", 10_000), ("prune", "num_rounds", 10_000)]
)
def test_huge_counts_are_refused_and_large_ones_cost_nothing(section, key, most, tmp_path, lottery_command):
    def change(number):
        return lambda tables: tables[section].update({key: number})

    huge = forging.copied(fuzz_runs.CORPUS, tmp_path / "huge", change(most + 1))
    for words in (*READING, ("report",)):
        assert f"not {most + 1}" in refused(lottery_command, *words, huge)
    large = forging.copied(fuzz_runs.CORPUS, tmp_path / "large", change(most))
    began = time.thread_time()
    done = lottery_command("ls", "--out", tmp_path, "--json")
    assert done.returncode == 0 and f"{section}.{key} must be" in done.stderr
    (row,) = json.loads(done.stdout)
    assert (row["run"], row["networks_stored"]) == (str(large), 10) and row["networks_wanted"] >= most
    assert lottery_command("show", large).returncode == 0
    assert time.thread_time() - began < 2


ESCAPE = "x\x1b]0;PWNED\x07\x1b[2J\x1b[31m\x9b31m\u202e=HYPERLINK(1)"


def test_no_text_of_a_run_reaches_a_terminal_or_a_page_raw(run, tmp_path, lottery_command):
    forging.sign(
        run / "environment.json", processor=ESCAPE, platform=ESCAPE, python=ESCAPE, commit=ESCAPE, versions={ESCAPE: ESCAPE}, not_pruned={"dense/bias": ESCAPE},
    )  # fmt: skip
    for path in run.rglob("round.json"):
        forging.sign(path, collapsed=[ESCAPE], control=ESCAPE)
    outputs = [("--out", tmp_path / name) for name in ("page.html", "figure.svg")]
    for words in (
        ("show", run), ("show", run, "--csv"), ("show", run, "--json"), ("verify", run), ("analyze", "layers", run, "--csv"),
        ("tickets", "ls", run), ("report", run, *outputs[0]), ("plot", run, *outputs[1]), ("ls", "--out", run.parent),
    ):  # fmt: skip
        done = lottery_command(*words)
        assert done.returncode in (0, 1) and "\x07" not in done.stdout + done.stderr, words
        assert not {"\x1b", "\x9b", "\u202e"} & set(done.stdout + done.stderr), words
    for _, path in outputs:
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(path.read_text())
    assert "PWNED" in outputs[0][1].read_text()  # it is there, and harmless


def test_names_that_no_run_has_are_refused(run, tmp_path, lottery_command):
    folder = run / "replicate-1/round-01/branch-odd"
    files.shutil.copytree(run / "replicate-1/round-01", folder)
    for label in (ESCAPE, "=HYPERLINK(1)", "a b", "a\nb", "x" * 201, "-x", "ticket"):
        forging.sign(folder / "round.json", branch=label)
        folder = folder.rename(folder.with_name(f"branch-{label}"))
        for words in (("show",), ("verify",), ("analyze", "layers"), ("plot",)):
            told = refused(lottery_command, *words, run)
            assert "is not the name of a branch" in told and "\x1b" not in told
    files.shutil.rmtree(folder)
    path = run / "replicate-1/round-01/masks.safetensors"
    kept = files.read_masks(path)
    files.write(path, files.pack_masks({f"{ESCAPE}{name}": mask for name, mask in kept.items()}))
    forging.sign_files(path.parent)
    with pytest.raises(LotteryError, match="it names a variable 'x"):
        _ = StoredRound(run, 1, 1).masks
    told = refused(lottery_command, "verify", run)
    assert "it names a variable" in told and "\x1b" not in told


@pytest.mark.parametrize("value", ["a\x1b[2Jb", "a\nb", "a\u202eb", "a\x00b"])
def test_an_experiment_has_no_text_that_a_terminal_obeys(value):
    for tables in (
        {"data": {"name": "npz", "path": value}}, {"model": {"name": f"own:{value}"}}, {"prune": {"rates": {value: 0.1}}},
        {"train": {"learning_rate": {"name": "CosineDecay", value: 1}}}, {value: {}},
    ):  # fmt: skip
        with pytest.raises(LotteryError) as caught:
            config.load(tables)
        assert value not in str(caught.value) and len(str(caught.value).splitlines()) == 1
    assert config.load({"data": {"name": "npz", "path": "Bild\u202f1 \xa0é.npz"}})


def test_a_record_of_the_wrong_types_is_one_sentence(run):
    path = run / "replicate-1/round-01/round.json"
    whole = json.loads(path.read_text())
    for key, values in {
        "density": ("x", 2.0, None, True, -1), "round": ("1", 1.0, True, 10**30), "kept": ([], {"a": -1}, {"a": 1.5}),
        "num_weights": (0, "x", 10**400), "collapsed": ("x", [1]), "sha256": ({}, {"masks.safetensors": "x"}, []),
        "early_stop_test_accuracy": ("x", [], True), "thresholds": ({"a": "x"}, 3), "seconds": (-1, 1e300, "x"),
        "early_stop_step": (None, 1.5, -1), "branch": ("", None, 5), "overrides": ([], 1), "start_sha256": ("x", 1),
    }.items():  # fmt: skip
        for value in values:
            forging.sign(path, **{key: value})
            with pytest.raises(LotteryError) as caught:
                store.read_record(path.parent)
            assert f"{str(path)!r} is damaged: its '{key}" in str(caught.value) or "no checksum" in str(caught.value)
            assert len(str(caught.value).splitlines()) == 1 and len(str(caught.value)) < 500
            forging.sign(path, **{key: whole.get(key, ...)})
    forging.sign(path, seconds=...)
    with pytest.raises(LotteryError, match="has no 'seconds': it is damaged, or an earlier version stored it"):
        _ = StoredRound(run, 1, 1).record["seconds"]
    for content in (b"[" * 100_000, b'{"a":' * 300 + b"0" + b"}" * 300, b"\xff", b"[]", b"1" * 5000):
        path.write_bytes(content)
        with pytest.raises(LotteryError, match="is damaged"):
            store.read_record(path.parent)


def test_an_experiment_file_of_any_bytes_is_one_sentence(tmp_path):
    path = tmp_path / "experiment.toml"
    for content in (b"a = " + b"[" * 10_000, b"a = " + b"9" * 5000, b"\xff", b"a = 1\na = 2", b"#" * 2_000_000):
        path.write_bytes(content)
        with pytest.raises(LotteryError, match=r"experiment\.toml") as caught:
            config.load(path)
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.long
def test_a_few_damaged_and_forged_runs():
    """In a process of its own, where no other test has set the number of threads, which `plan --from` takes from a run."""
    words = ["-m", "tests.scripts.fuzz_runs", "--runs", str(len(fuzz_runs.CHANGES)), "--seed", "5", "--commands", "2"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("ls", "--out", "a" * 300), ("show", "a" * 300), ("verify", "a" * 300), ("tickets", "show", "a" * 300),
        ("report", "a" * 300), ("run", "a" * 300), ("run", "data.name=npz", f"data.path={'a' * 300}.npz"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_name_that_is_too_long_is_one_sentence(words, tmp_path, lottery_command):
    done = lottery_command(*words, cwd=tmp_path)
    if words[0] == "ls" and done.returncode == 0:  # from Python 3.13 on, a folder of this name is just not there
        assert done.stderr.startswith("There are no runs in"), done
    else:
        assert done.returncode == 2 and done.stderr.startswith("lottery: "), done
    assert not done.stdout and "aaa" in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "replicate-1"])
def test_a_folder_that_may_not_be_entered_is_one_sentence(name, run, monkeypatch, lottery_command):
    """Root may enter every folder, so that the error is made here."""
    closed, stat = run / name, os.stat

    def denied(path, *given, **named):
        if isinstance(path, (str, os.PathLike)) and str(path).startswith(f"{closed}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *given, **named)

    monkeypatch.setattr(os, "stat", denied)
    for words in READING:
        done = lottery_command(*words, run)
        assert done.returncode == 2 and "Permission denied" in done.stderr, (words, done)
        assert done.stderr.startswith("lottery: ") and "Traceback" not in done.stderr


def test_a_figure_in_a_format_that_needs_a_program_is_one_sentence(run, tmp_path, monkeypatch, lottery_command):
    def missing(*_, **__):
        raise FileNotFoundError(2, "xelatex not found")

    monkeypatch.setattr("lottery.figures.sheets.saved", missing)
    done = lottery_command("plot", run, "--out", tmp_path / "x.pgf")
    told = " ".join(done.stderr.split())
    assert done.returncode == 2 and "This machine cannot write pgf" in told and "Use png, svg or pdf" in told


def test_one_array_is_no_data_file(tmp_path):
    with (tmp_path / "one.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(LotteryError, match="holds one array, as np.save writes it. Write .* x_train, y_train"):
        data.read_npz(tmp_path / "one.npz")
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(LotteryError, match="not a regular file"):
        data.read_npz(tmp_path / "pipe.npz")


@pytest.mark.parametrize("name", ["weights", "early_stop", "predictions"])
def test_a_file_of_a_run_with_a_hole_behind_it_is_refused_before_it_is_read(run, name):
    path = run / f"replicate-1/round-01/{name}.safetensors"
    size = path.stat().st_size
    os.truncate(path, 2**40)  # on disk it takes no more than before
    stored = StoredRound(run, 1, 1)
    with pytest.raises(LotteryError, match=rf"it has 1,099,511,627,776 bytes, and {size:,} by its header"):
        getattr(stored, name)
    assert any("by its header" in wrong for _, found in verification.verify(run) for wrong in found)


def test_a_ticket_with_a_hole_behind_it_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "ticket.safetensors"
    shutil.copy(fuzz_runs.CORPUS.parent / "tickets" / "built-in.safetensors", path)
    os.truncate(path, 2**40)
    with pytest.raises(lottery.tickets.TicketError, match="1,099,511,627,776 bytes"):
        lottery.tickets.load(path)


@pytest.mark.parametrize("dtype", [bool, np.int64, np.float64, np.complex64])
def test_trained_weights_of_another_type_than_at_first_are_refused(run, dtype):
    folder = run / "replicate-1/round-01"
    trained = files.read_arrays(folder / "weights.safetensors")
    name = next(iter(files.read_masks(folder / "masks.safetensors")))
    files.write(folder / "weights.safetensors", files.pack_arrays(trained | {name: trained[name].astype(dtype)}))
    forging.sign_files(folder)
    with pytest.raises(LotteryError, match=f"{name} has type .* but the initial weights have type F32"):
        lottery.tickets.load(run, round=1)
    found = dict(verification.verify(run))
    assert any("but the initial weights have type F32" in wrong for wrong in found["replicate 1, round 1"])
