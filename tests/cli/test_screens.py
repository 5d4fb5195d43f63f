"""What every command prints, in terminals of 60 and 80 columns and on a pipe: whole words, and lines that fit."""

import dataclasses
import io
import re
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest
import typer

from lottery import cli, tickets
from lottery.analysis import ANALYSES
from lottery.cli import output
from lottery.statistics import published

RULE = re.compile("[─━╸╺]+")
CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# The words of each command, in a folder with `runs/RUN`, `runs/OTHER`, `sweep.toml` and `ticket.safetensors`.
COMMANDS = {
    "run": "runs/RUN/experiment.toml",
    "plan": "runs/RUN/experiment.toml --std 0.003 --no-time",
    "sweep": "sweep.toml",
    "ls": "",
    "show": "runs/RUN",
    "plot": "runs/RUN --kind layers",
    "report": "runs/RUN",
    "verify": "runs/RUN",
    "branch": "runs/RUN random_mask --rounds 3",
    "compare": "runs/RUN runs/OTHER",
    "check": "runs/RUN",
    "export": "ticket.safetensors --out model.npz --format npz",
    "compact": "ticket.safetensors",
    "experiments ls": "",
    "experiments cp": "lenet_mnist",
    "tickets ls": "runs/RUN",
    "tickets show": "ticket.safetensors",
    "analyze curves": "runs/RUN",
    "analyze classes": "runs/RUN",
    "analyze layers": "runs/RUN",
    "analyze distance": "runs/RUN",
    "analyze degrees": "runs/RUN",
    "analyze overlap": "runs/RUN",
    "analyze connectivity": "runs/RUN --rounds 3",
    "analyze costs": "runs/RUN",
}
BARRIERS = pd.DataFrame(
    [
        {"replicate": replicate, "round": 3, "density": 0.516296, "step": 500, "split": split, "batch_norm": "stored"}
        | {"ends": 0.031, "highest": 0.7123 + replicate / 100, "barrier": 0.68 + replicate / 100, "at": 0.5}
        for replicate in (1, 2)
        for split in ("test", "train")
    ]
)
VERBATIM = {"experiments show"}  # prints a file as it is
MEASURES_TIME = {"compact"}  # its numbers differ from call to call


class Screen(io.StringIO):
    """A terminal, as far as a stream can be one."""

    def isatty(self):
        return True


def every_command():
    """The words of each command and the command itself, without groups."""
    waiting = [("", typer.main.get_command(cli.app))]
    while waiting:
        words, command = waiting.pop(0)
        context = type(command).context_class(command, info_name=words)
        if hasattr(command, "list_commands"):
            names = command.list_commands(context)
            waiting += [(f"{words} {name}".strip(), command.get_command(context, name)) for name in names]
        else:
            yield words


@pytest.fixture(scope="module")
def folder(small_run, tmp_path_factory):
    """A folder with two runs of short paths, one of which has a control, and a ticket file."""
    import lottery
    from tests.conftest import SMALL, quietly

    folder = tmp_path_factory.mktemp("screens")
    name = small_run.path.name
    shutil.copytree(small_run.path, folder / "runs" / name)
    quick = {"train": {"num_steps": 8, "eval_every": 4, "jit_compile": False}, "prune": {"rate": 0.5, "num_rounds": 2}}
    other = lottery.run(SMALL | {"name": "other"}, quick, out=folder / "runs", on_event=quietly)
    (folder / "sweep.toml").write_text("[sweep]\n'prune.rate' = [0.2, 0.5]\n")
    tickets.load(small_run.path, round=3).save(folder / "ticket.safetensors")
    return folder, name, other.path.name


@pytest.fixture
def printed(folder, monkeypatch):
    """What a command prints in a terminal of a width, or on a pipe: standard output and error, lines of texts."""
    place, name, other = folder
    monkeypatch.chdir(place)
    files = published.files()
    monkeypatch.setattr(published, "files", lambda: files | {"small": files["lenet-mnist"]})
    # What trains or draws is tested elsewhere; here it is what is printed afterwards.
    monkeypatch.setattr("lottery.report.page.write", lambda runs, out, *_: out)
    monkeypatch.setattr("lottery.pipeline.branching.branch", lambda *_, **options: None)
    monkeypatch.setattr("lottery.pipeline.sweeping.sweep", lambda *_, **options: [Path("runs", other)] * 2)
    monkeypatch.setattr("lottery.pipeline.connecting.connect", lambda *_, **options: None)
    measured = dataclasses.replace(ANALYSES["connectivity"], table=lambda run: BARRIERS)
    monkeypatch.setitem(ANALYSES, "connectivity", measured)
    monkeypatch.setattr("lottery.pipeline.environment.use_threads", lambda wanted: wanted)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def call(words, width, status=(0,)):
        words = words.replace("RUN", name).replace("OTHER", other).split()
        streams = [Screen(), Screen()] if width else [io.StringIO(), io.StringIO()]
        with monkeypatch.context() as patched:
            patched.setattr(sys, "argv", ["lottery", *words])
            patched.setattr(sys, "stdout", streams[0])
            patched.setattr(sys, "stderr", streams[1])
            patched.setenv("COLUMNS", str(width or 80))
            for file in place.glob("lenet_mnist.toml"):
                file.unlink()
            code = 0
            try:
                cli.main()
            except SystemExit as ended:
                code = ended.code or 0
        assert code in status, streams[1].getvalue()
        return [stream.getvalue() for stream in streams]

    return call


def lines_of(text):
    """Lines as they are seen, those that a bar was drawn over among them."""
    return re.split("[\n\r]", CODES.sub("", text))


def fits(text, width):
    """No line is wider than the terminal, unless it is one name that cannot be shorter."""
    return [line for line in lines_of(text) if len(line.rstrip()) > width and len(line.split()) > 1]


def words_of(text, alike=False):
    """The words of a text, without rules and bars; numbers that differ from call to call are made alike."""
    text = RULE.sub(" ", CODES.sub("", text))
    return set((re.sub(r"\d+", "0", text) if alike else text).split())


def test_every_command_is_here():
    assert set(every_command()) - VERBATIM == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_words_stay_whole_and_lines_fit(printed, command):
    words, status = f"{command} {COMMANDS[command]}", (0, 1) if command == "check" else (0,)
    screens = {width: printed(words, width, status) for width in (60, 80)}  # what is to be trained is trained here
    piped = printed(words, None, status)
    for width, (out, err) in screens.items():
        assert fits(out, width) == [] and fits(err, width) == []
        assert "Traceback" not in err and "-0.0000" not in out
        table, *absent = re.split("(?=Columns left out:)", CODES.sub("", out))
        known = words_of(piped[0], command in MEASURES_TIME)
        assert words_of(table, command in MEASURES_TIME) <= known
        for text in absent:
            assert "a wider terminal" in " ".join(text.split())
    assert not CODES.search(piped[0] + piped[1])
    assert "Columns left out" not in piped[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_and_shows_no_types_of_python(printed, command):
    out, _ = printed(f"{command} --help", 60)
    assert fits(out, 60) == []
    assert words_of(out) <= words_of(printed(f"{command} --help", 200)[0])
    assert not re.search(r"<\w|list\[|\bstr\b|\bint\b|\bNone\b", out)


def test_names_of_runs_and_weights_stay_whole(printed, folder):
    for width in (40, 60):
        assert f"runs/{folder[1]}" in printed("ls", width)[0].split()
        assert {"dense/kernel", "dense_1/kernel", "dense_2/kernel"} <= words_of(
            printed("analyze layers runs/RUN", width)[0]
        )


def test_a_narrow_sweep_shows_its_results_rather_than_its_runs(printed):
    assert "Columns left out: run;" in printed("sweep sweep.toml", 50)[0]


def test_columns_are_left_out_in_the_order_that_help_states(printed):
    stated = re.search(r"in this order: ([\w, %±]+)\.", " ".join(printed("show --help", 80)[0].split()))[1].split(", ")
    absent = {}
    for width in (30, 60, 70, 80, 100, 180):
        out = " ".join(printed("show --long runs/RUN", width)[0].split())
        found = re.search("Columns left out: ([^;]*);", out)
        absent[width] = found[1].split(", ") if found else []
        assert "verdict" in out and "density" in out
    assert absent[180] == [] and len(absent[60]) > len(absent[80]) > len(absent[100]) >= 2
    for width in (70, 80, 100):
        there = [head for head in stated if head in absent[30]]  # the run has no controls, and as many replicates
        assert set(absent[width]) == set(there[: len(absent[width])])
    assert set(absent[30]) >= set(stated) - {"beats controls", "n"}


def test_at_60_columns_the_difference_its_interval_and_the_verdict_are_left(printed):
    heads = " ".join(printed("show runs/RUN", 60)[0].split())
    for head in ("density", "verdict", "vs dense"):
        assert all(word in heads for word in head.split())
    assert "95 %" in heads and "±" not in heads and "Columns left out" not in heads


def test_the_verdict_comes_first_and_in_colour(printed, monkeypatch):
    words = "show runs/RUN --tolerance"
    out, _ = printed(f"{words} 0.9", 80)
    assert out.startswith("\x1b[1;32mWinning tickets down to 51.6 % of the weights: ")
    assert out.count("\x1b[32mwinning") == 3
    assert out.index("Winning tickets") < out.index("density") < out.index("--long explains the columns")
    long, _ = printed(f"{words} 0.9 --long", 80)
    assert out.splitlines()[0] == long.splitlines()[0] and "judges each round by itself" in " ".join(long.split())
    out, _ = printed(f"{words} 0.002", 80)
    assert out.startswith("\x1b[1;33mNo winning ticket is shown: 2 replicates are too few")
    assert re.search(r"\x1b\[33m\?", out)
    assert "?: 2 replicates are too few to decide" in " ".join(printed(f"{words} 0.002 --long", 80)[0].split())
    monkeypatch.setenv("NO_COLOR", "1")
    out, _ = printed(f"{words} 0.9", 80)
    assert not re.search(r"\x1b\[[\d;]*3\d", out)
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in printed(f"{words} 0.9", 80)[0]
    assert fits(printed(f"{words} 0.9", 60)[0], 60) == []


def test_the_verdict_is_of_all_rounds_where_the_table_is_of_one(printed):
    whole, one = (printed(f"show runs/RUN --tolerance 0.9{more}", None)[0] for more in ("", " --round 2"))
    assert whole.splitlines()[0] == one.splitlines()[0] and one.startswith("Winning tickets down to 51.6 %")
    assert len(re.findall(r"^ +[0-3] +[\d.]+ %", whole, re.M)) == 4
    assert re.findall(r"^ +([0-3]) +[\d.]+ %", one, re.M) == ["2"]


def test_replicates_with_densities_of_their_own_are_averaged(capsys):
    """As where whole units are pruned, of which a layer may keep more in a replicate than in another."""
    rows = [
        (1, 0.5, "a/kernel", 0.25),
        (1, 0.5, "b/kernel", 3.0),
        (1, 0.25, "a/kernel", 0.5),
        (1, 0.25, "b/kernel", 4.0),
    ]
    frame = pd.DataFrame(rows, columns=["round", "density", "weight", "norm"])
    output.means(frame, ["round", "density", "weight"], ["norm"], count="replicates")
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "kernel" in line]
    assert lines == [["1", "37.5", "%", "a/kernel", "2", "0.3750"], ["1", "37.5", "%", "b/kernel", "2", "3.5000"]]


def test_a_value_that_a_replicate_lacks_is_not_left_out_of_a_mean_without_a_word(capsys):
    frame = pd.DataFrame({"round": [1, 1, 2, 2], "cosine": [0.5, 0.7, 0.9, None]})
    output.means(frame, ["round"], ["cosine"], count="replicates")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[2:4]]
    assert lines == [["1", "2", "0.6000"], ["2", "2"]]


def test_the_criteria_and_other_names_that_exist_are_in_the_help_of_run(printed, monkeypatch):
    from lottery.enforcement import ENFORCEMENTS
    from lottery.pruning import branches, criteria, schedules

    monkeypatch.setitem(criteria.CRITERIA, "newest_criterion", criteria.CRITERIA["random"])
    monkeypatch.setitem(schedules.SCHEDULES, "newest_schedule", schedules.SCHEDULES["linear"])
    monkeypatch.setitem(ENFORCEMENTS, "newest_enforcement", ENFORCEMENTS["constraint"])
    monkeypatch.setitem(branches.BRANCHES, "newest_control", branches.BRANCHES["random_mask"])
    text = printed("run --help", 80)[0]
    listed = dict(re.findall(r"^  ([a-z]+\.[a-z]+) +((?:.|\n {10,})+)$", text, re.M))
    for key, names in (
        ("prune.criterion", criteria.CRITERIA), ("prune.schedule", schedules.SCHEDULES),
        ("run.enforcement", ENFORCEMENTS), ("run.controls", branches.controls()),
    ):  # fmt: skip
        assert re.split(r",\s+", listed[key].strip()) == list(names)
        assert any(name.startswith("newest_") for name in names)


def test_errors_fit_too(printed):
    _, err = printed("show runs/nowhere-at-all-1a2b3c4d", 60, status=(2,))
    assert fits(err, 60) == [] and "'runs/nowhere-at-all-1a2b3c4d'" in err.split()
