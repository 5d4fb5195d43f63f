import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lottery import cli
from lottery.cli import options
from lottery.errors import LotteryError, StorageError
from lottery.statistics import results

pytestmark = pytest.mark.usefixtures("traced_once")

QUICK = ("train.num_steps=20", "train.jit_compile=false")  # compiling takes longer than so few steps
ENVIRONMENT = {**os.environ, "COLUMNS": "100"}


def process(*words, cwd=None):
    """The command in a process of its own, as from a shell."""
    return subprocess.run(
        [sys.executable, "-m", "lottery", *map(str, words)],
        capture_output=True, text=True, cwd=cwd, env=ENVIRONMENT, timeout=1800,
    )  # fmt: skip


@pytest.fixture
def lottery(lottery_command):
    return lottery_command


def refused(done):
    """One sentence on standard error, status 2, nothing else."""
    assert done.returncode == 2, done
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("lottery: "), done.stderr
    return lines[0]


@pytest.mark.parametrize("words", [("experiments", "ls"), ("verify", "ticket.safetensors")])
def test_a_reader_that_is_gone_has_a_status_of_its_own(words, tmp_path):
    (tmp_path / "ticket.safetensors").write_bytes(b"no ticket")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as gone:
        command = [sys.executable, "-m", "lottery", *words]
        done = subprocess.run(command, stdout=gone, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=ENVIRONMENT)
    assert done.returncode == 141 and done.stderr == ""  # 1 means that verify or check found something wrong


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_signs_that_the_encoding_of_the_output_lacks_are_in_ascii(small_run, encoding):
    command = [sys.executable, "-m", "lottery", "show", str(small_run.path), "--long"]
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": encoding}
    done = subprocess.run(command, capture_output=True, encoding=encoding, env=environment)
    assert done.returncode == 0, done.stderr
    assert "in percentage points" in done.stdout and "ticket - dense" in done.stdout


def test_a_command_that_is_named_can_be_pasted(lottery, small_run, tmp_path):
    shutil.copytree(small_run.path, tmp_path / "my runs" / "one")
    done = lottery("show", tmp_path / "my runs" / "one")
    assert f"lottery show '{tmp_path}/my runs/one' --long explains" in " ".join(done.stdout.split())


def test_when_the_time_is_up_the_status_says_that_there_is_more(lottery, tmp_path):
    words = ("run", *QUICK, "prune.num_rounds=1", "run.num_replicates=1", "--out", tmp_path / "r")
    stopped = lottery(*words, "--max-hours", "1e-9", cwd=tmp_path)
    assert stopped.returncode == 75 and stopped.stdout == ""
    assert stopped.stderr.splitlines()[-1] == (
        "lottery: Stopped, as --max-hours is over. Everything is saved; run the same command to resume."
    )
    (folder,) = (tmp_path / "r").iterdir()
    resumed = lottery("run", folder, "--max-hours", "24", cwd=tmp_path)
    assert resumed.returncode == 0 and f"Figure: {folder}/accuracy.png" in resumed.stdout
    assert "takes no other values" in refused(lottery("run", folder, "train.num_steps=5", cwd=tmp_path))
    assert "goes on in its own folder" in refused(lottery("run", folder, "--out", tmp_path / "other", cwd=tmp_path))
    assert "Pass --json or --csv, not both." in refused(lottery("show", folder, "--json", "--csv", cwd=tmp_path))
    assert lottery("plan", folder, cwd=tmp_path).returncode == 0


def test_a_run_from_nothing_and_again(lottery, tmp_path):
    words = ("run", *QUICK, "prune.num_rounds=2", "run.num_replicates=2", "--out", tmp_path / "r")
    done = lottery(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("replicate ")]
    assert len(lines) == 10  # a line a network on a pipe: three rounds and two controls
    assert "replicate 2/2  round 2/2  density 49.5 %" in lines[-3]
    assert "replicate 2/2  round 2/2  random_mask  density 49.5 %" in lines[-1]
    assert "\x1b" not in done.stdout + done.stderr
    figure = Path(re.search(r"Figure: (.*)", done.stdout)[1])
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert re.search(r"2 +49\.5 % +\d+\.\d\d % ", done.stdout)
    said = done.stdout.splitlines()
    assert "2 replicates are too few to decide" in said[0] and said[0] == said[-1]
    again = lottery(*words, cwd=tmp_path)
    assert again.stdout == done.stdout and "is complete" in again.stderr
    assert not [line for line in again.stderr.splitlines() if line.startswith("replicate ")]  # nothing is trained again
    assert "2" in lottery("ls", "--out", tmp_path / "r").stdout


def test_controls_and_branches_from_the_command_line(lottery, tmp_path):
    words = (*QUICK, "prune.num_rounds=2", "run.num_replicates=2", "run.controls=['random_mask']")
    done = lottery("run", *words, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stderr.splitlines() if "random_mask" in line]) == 2
    assert re.search(r"random_mask +2 +49\.5 % +2 ", done.stdout) and "too few to decide" in done.stdout
    (path,) = tmp_path.iterdir()
    branched = lottery("branch", path, "random_reinit", "--rounds", "1", "--replicate", 2)
    assert branched.returncode == 0, branched.stderr
    rows = json.loads(lottery("show", path, "--json").stdout)
    assert {(row["branch"], row["replicate"], row["round"]) for row in rows if row["branch"] != "ticket"} == {
        ("random_mask", 1, 2),
        ("random_mask", 2, 2),
        ("random_reinit", 2, 1),
    }
    verified = lottery("verify", path).stdout
    assert "8 of 8 networks and 1 more are stored; every checksum" in verified
    assert "The start weights of random_reinit were not made again" in verified
    assert "not 'random'" in refused(lottery("branch", path, "random"))
    assert "start it again for 'set'" in refused(lottery("branch", path, "random_mask", "set"))
    assert "--rounds must be numbers, such as 7,15, not 'one'" in refused(
        lottery("branch", path, "random_mask", "--rounds", "one")
    )
    assert "needs another data set" in refused(lottery("branch", path, "transfer"))
    assert "ticket does not fit" in refused(
        lottery(
            "branch", path, "transfer", "data.name=npz", f"data.path={other_images(tmp_path)}", "data.validation=10"
        )
    )
    assert "name" in refused(lottery("check", path))


def other_images(folder):
    file = folder / "other.npz"
    x, y = np.random.default_rng(0).integers(0, 256, (200, 9, 9), np.uint8), np.arange(200) % 10
    np.savez(file, x_train=x, y_train=y, x_test=x, y_test=y)
    return file


def test_commas_alone_do_not_mean_all_rounds():
    assert options.numbers("--rounds", "") == [] and options.numbers("--rounds", "7,15") == [7, 15]
    with pytest.raises(LotteryError, match="--rounds must be numbers, such as 7,15, not ','"):
        options.numbers("--rounds", ",")


def test_the_csv_of_a_folder_without_runs_has_its_columns(lottery, tmp_path):
    assert lottery("ls", "--out", tmp_path, "--csv").stdout.splitlines()[0].startswith("run,data,model,replicates,")


def test_show_plot_verify_and_ls_agree_and_never_import_tensorflow(lottery, small_run, tmp_path):
    path = small_run.path
    rows = json.loads(lottery("show", path, "--json").stdout)
    assert list(rows[0]) == list(results.COLUMNS) and len(rows) == 8
    table = small_run.table()
    for row, (_, expected) in zip(rows, table.iterrows(), strict=True):
        # JSON has no NaN, as of a loss that is never reached.
        assert row == pytest.approx(expected.astype(object).where(expected.notna(), None).to_dict())
    as_csv = list(csv.DictReader(io.StringIO(lottery("show", path, "--csv", "--replicate", 2, "--round", 1).stdout)))
    assert [(row["replicate"], row["round"]) for row in as_csv] == [("2", "1")]
    assert re.search(r"3 +51\.6 %", lottery("show", path).stdout)
    listed = json.loads(lottery("ls", "--out", path.parent, "--json").stdout)
    assert [row["networks_stored"] for row in listed if row["run"] == str(path)] == [8]
    assert lottery("plot", path, "--out", tmp_path / "a.svg").stdout.strip() == str(tmp_path / "a.svg")
    assert "8 of 8 networks are stored; every checksum and every invariant holds" in lottery("verify", path).stdout
    code = (
        "import sys; from lottery import cli\n"
        f"for words in (['show', {str(path)!r}], ['ls', '--out', {str(path.parent)!r}], ['verify', {str(path)!r}],"
        f" ['plot', {str(path)!r}, '--out', {str(tmp_path / 'b.png')!r}]):\n"
        "    cli.app(words, standalone_mode=False)\n"
        "assert 'tensorflow' not in sys.modules and 'keras' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_near_names_of_runs_and_experiments_are_named(lottery, small_run, tmp_path):
    near = small_run.path.parent / f"{small_run.path.name[:-1]}z"
    assert f"Did you mean {str(small_run.path)!r}?" in refused(lottery("show", near))
    assert "`lottery ls` lists the runs" in refused(lottery("show", tmp_path / "nix"))
    assert "Did you mean the experiment 'mnist1d'?" in refused(lottery("run", "minst1d", "--out", tmp_path))


def test_importing_costs_next_to_nothing():
    code = "import sys, lottery; assert not {'tensorflow', 'keras', 'pandas', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    code = (
        "import sys; sys.argv = ['lottery', '--help']\nfrom lottery import cli\n"
        "try:\n    cli.main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "assert not {'tensorflow', 'keras', 'pandas', 'matplotlib', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert all(command in done.stdout for command in ("run", "ls", "show", "plot", "verify"))


def test_keras_uses_tensorflow_whatever_the_users_other_programs_use(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setattr(sys, "argv", ["lottery", "--version"])
    with pytest.raises(SystemExit):
        cli.main()
    assert os.environ["KERAS_BACKEND"] == "tensorflow"


def test_every_command_and_option_says_what_it_is(lottery):
    for command in ("run", "ls", "show", "plot", "verify"):
        done = lottery(command, "--help")
        assert done.returncode == 0
        for option in re.findall(r"^ +(--[a-z-]+)( .*)?$", done.stdout, re.M):
            assert option[1].strip(), (command, option)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "train.num_step=3"), "Did you mean 'num_steps'"),
        (("run", "nowhere.toml"), "no experiment file 'nowhere.toml'"),
        (("run", "prune.rate=1.5"), "prune.rate must be a number between 0 and 1"),
        (("run", "data.name=mnits"), "Did you mean 'mnist'"),
        (("run", "data.path=none.npz"), "no data file 'none.npz'"),
        (("run", "prune.num_rounds=99"), "must be at most"),
        (("run", "train.batch_size=99999"), "train.batch_size must be at most"),
        (("show", "nowhere"), "'nowhere' is not a run"),
        (("plot", "nowhere"), "'nowhere' is not a run"),
        (("verify", "nowhere"), "'nowhere' is neither a run nor a ticket file"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(lottery, tmp_path, words, message):
    assert message in refused(lottery(*words, cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_from_a_shell_it_is_one_sentence_and_status_2_too(tmp_path):
    for words, message in (
        (("run", "data.path=none.npz"), "no data file 'none.npz'"),
        (("show", "nowhere"), "'nowhere' is not a run"),
    ):
        assert message in refused(process(*words, cwd=tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_bad_choices_of_a_run_are_refused(lottery, small_run):
    assert "--round 9 is not stored. The run has rounds 0 to 3." in refused(
        lottery("show", small_run.path, "--round", 9)
    )
    assert "--replicate 3 is not stored" in refused(lottery("plot", small_run.path, "--replicate", 3))
    both = lottery("plot", small_run.path, "--kind", "inputs", "--rounds", "0,1", "--round", 2)
    assert "Use --round or --rounds, not both" in refused(both)
    alone = lottery("plot", small_run.path, "--kind", "speed", "--round", 1)
    assert "speed is beside the dense network, round 0, which is left out" in refused(alone)
    for option in ("--round", "--rounds"):
        done = lottery("plot", small_run.path, "--kind", "classes", option, 9)
        assert "Round 9 is not stored" in refused(done) and "It has the rounds 0 to 3" in done.stderr
    assert "Did you mean 'accuracy'" in refused(lottery("plot", small_run.path, "--kind", "acuracy"))
    assert lottery("show", small_run.path, "--tolerance", "2").returncode == 2
    assert lottery("shwo").returncode == 2


def test_a_run_without_a_round_is_shown_as_such(lottery, small_run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(small_run.path, copy, ignore=shutil.ignore_patterns("replicate-*"))
    assert "No round" in lottery("show", copy).stdout
    for words in (("--round", 2), ("--round", 2, "--json"), ("--replicate", 2, "--csv")):
        assert f"{words[0]} 2 is not stored. The run has nothing yet." in refused(lottery("show", copy, *words))
    assert "0 of 8 networks are stored" in lottery("verify", copy).stdout
    assert "no round is complete yet" in refused(lottery("plot", copy))
    for words in (("analyze", "overlap", small_run.path), ("plot", "--kind", "inputs")):
        assert f"No round of {str(copy)!r} is complete yet." in refused(lottery(*words, copy))
    assert f"No round of {str(copy)!r} is complete yet." in refused(lottery("analyze", "connectivity", copy))
    assert f"No pruned round of {str(copy)!r} is complete yet." in refused(lottery("branch", copy, "untrained"))


def test_verify_exits_with_1_and_names_the_file(lottery, small_run, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(small_run.path, copy)
    file = copy / "replicate-1" / "round-01" / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    done = lottery("verify", copy)
    assert done.returncode == 1 and "round-01/weights.safetensors" in done.stdout


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("mount") is None, reason="mounts small file systems, so needs root"
)
@pytest.mark.parametrize("options", ["size=600k", "ro"])
def test_a_full_disk_and_a_read_only_one(lottery, tmp_path, options):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("may not mount here")
    try:
        words = ("run", *QUICK, "prune.num_rounds=2", "run.num_replicates=1", "--out", disk / "runs")
        done = lottery(*words)
        assert done.returncode == 2 and "Traceback" not in done.stderr
        last = done.stderr.strip().splitlines()[-1]
        assert "cannot be written" in last and ("disk is full" in last) == (options != "ro")
        if options == "ro":
            return
        (run,) = (disk / "runs").iterdir()
        assert not [path for path in run.rglob(".*") if path.name != ".lock"]  # half a file is no file
        stored = {path: path.read_bytes() for path in run.rglob("round.json")}
        assert stored, "the disk was meant to hold a round or two"
        subprocess.run(["mount", "-o", "remount,size=60m", str(disk)], check=True)
        assert lottery(*words).returncode == 0
        assert all(path.read_bytes() == content for path, content in stored.items())
        assert lottery("verify", run).returncode == 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_figure_that_cannot_be_written_is_said_and_no_error(lottery, tmp_path, monkeypatch):
    """As of a complete run in a folder that may only be read."""
    words = ("run", "--smoke", "run.num_replicates=1", "prune.num_rounds=1", "--out", tmp_path)
    lottery(*words)

    def refuse(*arguments, **named):
        raise StorageError("'accuracy.png' cannot be written: Permission denied.")

    monkeypatch.setattr("lottery.plots.save", refuse)
    done = lottery(*words)
    assert done.returncode == 0
    assert "The figure was not drawn: 'accuracy.png' cannot be written: Permission denied." in done.stdout
