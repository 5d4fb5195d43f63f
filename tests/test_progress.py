"""What a person sees while a run trains: every line, whole, in any width, with a time left that can be believed."""

import dataclasses
import io
import re
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from lottery import progress

WHERE = progress.Step(Path("runs/mine-1a2b3c4d"), 2, 3, 7, 12, "random_mask_global", 0.2097, 700, 0, 2000, 0.61)
RECORD = {"collapsed": [], "early_stop_step": 1700, "early_stop_test_accuracy": 0.6123, "seconds": 3.21}


class Screen(io.StringIO):
    """A terminal, as far as a stream can be one; it knows which threads write to it."""

    def __init__(self):
        super().__init__()
        self.threads = set()

    def isatty(self):
        return True

    def write(self, text):
        self.threads.add(threading.get_ident())
        return super().write(text)

    def lines(self):
        """What a person would see in the end: moves of the cursor and erased lines are carried out."""
        lines, row, column = [""], 0, 0
        for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\n|\r|[^\x1b\n\r]+", self.getvalue()):
            if part == "\n":
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            elif part == "\r":
                column = 0
            elif part.startswith("\x1b["):
                num = int(re.sub(r"\D", "", part) or 1)
                if part.endswith("A"):
                    row = max(0, row - num)
                elif part.endswith("K"):
                    lines[row] = ""
            else:
                lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
                column += len(part)
        return lines


@pytest.fixture
def shown(monkeypatch):
    """Report events to a terminal of a width, and return its screen."""

    def show(events, width=120, term="xterm"):
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", term)
        screen = Screen()
        console = Console(file=screen, force_terminal=True, width=width, height=25, color_system=None)
        with progress.shown(console) as report:
            for event in events:
                report(event)
        return screen

    return show


def networks(num):
    """Events of three replicates side by side."""
    for index in range(num):
        where = [dataclasses.replace(WHERE, replicate=one, round=index, num_rounds=num) for one in (1, 2, 3)]
        yield from where
        time.sleep(0.12)  # a thread that drew by the clock would draw now
        for one in where:
            yield progress.Done(one, RECORD)


def test_no_line_is_lost_among_the_bars(shown):
    screen = shown(networks(4))
    found = [re.search(r"replicate (\d)/3  round (\d)/4", line) for line in screen.lines()]
    there = [(int(match[2]), int(match[1])) for match in found if match]
    assert there == [(index, replicate) for index in range(4) for replicate in (1, 2, 3)]
    # Two threads that draw move the cursor by what the other has not drawn yet.
    assert screen.threads == {threading.get_ident()}


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (
            120,
            "replicate 2/3  round  7/12  random_mask_global  density 21 %  early stop 1,700  test 61.23 %  3.2 s",
        ),
        (90, "replicate 2/3  round  7/12  random_mask_global  density 21 %  test 61.23 %"),
        (60, "replicate 2/3  round  7/12  random_mask_global  test 61.23 %"),
    ],
)
def test_lines_of_stored_networks_fit_and_have_no_time_left(shown, width, expected):
    where = dataclasses.replace(WHERE, done=10_000, total=90_000)
    for term in ("xterm", "dumb"):
        seen = shown([where, dataclasses.replace(where, step=1700), progress.Done(where, RECORD)], width, term).lines()
        assert [line for line in seen if line.startswith("replicate")] == [expected]
        assert not any("in all" in line for line in seen)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_name_of_one_of_several_runs_stays_whole(shown, width):
    run = Path("runs/grid-prune.rate-0.2-prune.criterion-magnitude-5566ec6b")
    where = dataclasses.replace(WHERE, run=run, several=True)
    screen = shown([where, progress.Done(where, RECORD)], width)
    seen = [line for line in screen.lines() if line]
    assert seen[0].split()[0] == run.name and len(seen) == (1 if width == 120 else 2)
    assert "replicate 2/3  round  7/12  random_mask_global" in seen[-1] and max(map(len, seen)) <= width
    drawn = re.split(r"\n|\r", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()))
    assert max(map(len, drawn)) <= width and any("replicate 2/3 · round 7/12" in line for line in drawn)


def test_what_is_left_out_once_stays_out(shown):
    short = dataclasses.replace(WHERE, branch="ticket")
    seen = shown([progress.Done(one, RECORD) for one in (short, WHERE, short)], width=85).lines()
    lines = [line for line in seen if line.startswith("replicate")]
    assert "early stop" in lines[0] and lines[0].endswith("3.2 s")
    assert lines[2] == "replicate 2/3  round  7/12  density 21 %  test 61.23 %"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_bars_fit_and_end_between_words(shown, width):
    screen = shown([WHERE, progress.Note("runs/mine-1a2b3c4d: replicates: 3, networks of each: 19; " * 3)], width)
    drawn = re.split(r"\n|\r", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()))
    assert max(len(line) for line in drawn) <= width
    bars = [line for line in drawn if line.startswith("replicate 2/3 · ")]
    assert bars and all(re.match(r"replicate 2/3 · round 7/12 ", line) for line in bars)
    whole = {"--:--", "replicate 2/3", "round 7/12", "random_mask_global", "step 700/2,000", "validation 61.00 %"}
    for line in bars:
        assert set(re.split(r" · | [━╸╺ ]+(?!%)", line.strip())) <= {*whole, "density 21 %", ""}
    assert "runs/mine-1a2b3c4d:" in " ".join(screen.lines()).split()


def test_on_a_pipe_lines_are_whole():
    printed = io.StringIO()
    with progress.shown(Console(file=printed, width=40)) as report:
        report(WHERE)
        report(progress.Note("A sentence that is longer than the forty columns of the console."))
        report(progress.Done(WHERE, {**RECORD, "collapsed": ["dense/kernel"]}))
    note, line = printed.getvalue().splitlines()
    assert note.endswith("the console.") and line.endswith("test 61.23 %  3.2 s  nothing left of dense/kernel")


def test_the_time_left_is_rich_s_own(shown):
    """It counts all networks, and begins after the first steps, which wait for the compiler."""
    where = dataclasses.replace(WHERE, first_step=0, num_steps=2000)

    def steps():
        for number in range(8):
            yield dataclasses.replace(where, step=20 * number, done=20 * number, total=100_000)
            time.sleep(0.1)

    text = shown(steps()).getvalue()
    assert "--:--" in text and re.search(r"in all [^\n]*\d+:\d\d", text)


def test_a_pipe_is_told_the_time_left(monkeypatch):
    """By the speed of all networks together, and at least every ten minutes."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    printed = io.StringIO()
    with progress.shown(Console(file=printed, get_time=lambda: now)) as report:
        for number in range(601):
            place = dataclasses.replace(WHERE, replicate=1 + number % 2, step=number, done=number, total=10_600)
            report(place)
            now += 2
        report(progress.Done(place, RECORD))
        report(progress.Done(dataclasses.replace(place, done=10_590), RECORD))
    lines = printed.getvalue().splitlines()
    # 600 steps in 1200 seconds: 2 seconds each.
    assert [line for line in lines if "step" in line and "early stop" not in line] == [
        "replicate 1/3 · round 7/12 · random_mask_global · step 300/2,000 · validation 61.00 % · density 21 % · "
        "5 h 43 min left",
        "replicate 1/3 · round 7/12 · random_mask_global · step 600/2,000 · validation 61.00 % · density 21 % · "
        "5 h 33 min left",
    ]
    assert lines[-2].endswith("test 61.23 %  3.2 s  5 h 33 min left") and lines[-1].endswith("3.2 s")
