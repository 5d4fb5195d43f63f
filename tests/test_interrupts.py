"""Requests to stop: what the first and the second signal do, in children, pipes and the background."""

import ast
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from lottery import interrupts
from lottery.errors import LotteryError
from lottery.executors import processes

BEGIN = """
import contextlib, os, signal, sys, time
from lottery import interrupts
PATIENCE = 1800
def ready():
    os.write(1, b"ready\\n")  # a signal that comes within `print` cannot print
def told(number):
    print("told", number, flush=True)
"""


PATIENCE = 1800  # seconds; nothing here takes more than a moment, however busy the machine is


def script(code, *, begin=BEGIN, ignoring=False):
    """Start a process that runs some lines, and prints "ready" when signals may come."""
    words = [sys.executable, "-c", begin + textwrap.dedent(code)]
    ignore = (lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if ignoring else None
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, preexec_fn=ignore)
    assert process.stdout.readline() == "ready\n"
    return process


WAITING = """
with interrupts.listening(told, at_once=True) as asked:
    ready()
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        sum(range(10000))
"""


@pytest.mark.parametrize("number", interrupts.SIGNALS)
def test_the_first_is_told_and_the_second_ends_the_process(number):
    with script(WAITING) as process:
        process.send_signal(number)
        assert process.stdout.readline() == f"told {int(number)}\n"
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(PATIENCE) == 128 + number and process.stdout.read() == ""


def test_what_was_ignored_stays_so():
    with script(WAITING, ignoring=True) as process:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)  # the first that counts
        assert process.stdout.readline() == f"told {int(signal.SIGTERM)}\n"
        process.kill()


def test_signals_of_a_child_that_was_forked_are_its_own():
    code = """
    import multiprocessing
    context = multiprocessing.get_context("fork")
    with interrupts.listening(told, at_once=True) as asked:
        children = [context.Process(target=time.sleep, args=(PATIENCE,)) for _ in range(2)]
        for child in children:
            child.start()
        ready()
        for child in children:
            child.terminate()
            child.join(PATIENCE)
        print(asked(), [child.exitcode for child in children], flush=True)
        left = context.Process(target=time.sleep, args=(PATIENCE,), daemon=True)
        left.start()
    print("left", flush=True)  # while a child lives on
    left.kill()
    """
    with script(code) as process:
        assert process.stdout.read() == f"0 [{-signal.SIGTERM}, {-signal.SIGTERM}]\nleft\n"
        assert process.wait(PATIENCE) == 0


def test_a_signal_that_comes_while_a_child_is_forked_waits_for_the_handlers_of_the_child():
    code = """
    import os, signal, sys, time
    os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))  # before `lottery` restores any
    from lottery import interrupts
    os.write(1, b"ready\\n")
    with interrupts.listening(lambda number: print("told", number, flush=True)) as asked:
        child = os.fork()
        if child == 0:
            time.sleep(1800)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), asked(), flush=True)
    """
    with script(code, begin="") as process:
        assert process.stdout.read() == f"{-signal.SIGTERM} 0\n"


def test_handlers_are_put_back_and_the_second_raises_what_it_would_have():
    before = [signal.getsignal(number) for number in interrupts.SIGNALS]
    with interrupts.listening() as asked:
        assert asked() == 0
        os.kill(os.getpid(), signal.SIGINT)
        assert asked() == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(600)  # the signal interrupts it
    assert [signal.getsignal(number) for number in interrupts.SIGNALS] == before


def test_a_handler_that_python_did_not_set_stays(monkeypatch):
    handlers = []
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", lambda number, handler: handlers.append(handler))
    with interrupts.listening() as first, interrupts.held():
        assert not first() and not handlers


def test_a_worker_that_was_stopped_stays_so_and_takes_a_signal_once(monkeypatch):
    sent = []
    connection = type("Connection", (), {"send": lambda self, what: sent.append(what)})()
    worker = processes._Worker(connection, b"")
    monkeypatch.setattr(processes, "_WORKER", [worker])

    def train(task):
        if number := worker.should_stop():
            raise interrupts.Stopped(number)

    worker.train = train
    assert processes._train("a network") is True and sent == ["a network"]
    worker.signal = int(signal.SIGTERM)
    assert processes._train("a network") is False
    assert processes._train("a network") is True
    worker.cancelled = True
    assert processes._train("a network") is processes._train("another") is False

    def fails(task):
        raise type("Mine", (Exception,), {"__init__": lambda self, one, other: None})(1, 2)

    worker.train = fails
    with pytest.raises(LotteryError, match="Mine"):  # a kind that can be sent
        processes._train("a network")


BUILDING = """
import collections, random
from typing import Annotated
from pydantic import BaseModel, Field, ValidationError
from lottery.settings import Schema

def built(base):
    own = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    return type(base)("Built", (base,), {"__annotations__": {f"f{i}": own for i in range(20)}, "__module__": __name__})

signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.unraisablehook = lambda hooked: None
base = {"Schema": Schema, "BaseModel": BaseModel}[sys.argv[1]]
interrupts.SIGNALS = (*interrupts.SIGNALS, signal.SIGALRM)
chance, counts = random.Random(0), collections.Counter()
for _ in range(1500):
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.003))
        made = built(base)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        counts["interrupted"] += 1
        continue
    finally:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            pass
    try:
        made(**{f"f{i}": "0" * 64 for i in range(20)})
        counts["whole"] += 1
    except ValidationError:
        counts["wrong"] += 1
print(dict(counts))
"""


def test_no_signal_makes_pydantic_build_a_wrong_class():
    """Pydantic swallows an interrupt in about one of twenty-five classes; a plain `BaseModel` shows it here."""
    words = [sys.executable, "-c", BEGIN + BUILDING, "Schema"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    counts = ast.literal_eval(printed)
    assert counts.keys() == {"whole", "interrupted"}, counts


HOLDING = """
try:
    with interrupts.held():
        ready()
        end = time.monotonic() + PATIENCE
        while not os.path.exists(sys.argv[1]) and time.monotonic() < end:
            pass
        print("held", flush=True)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_signal_that_is_held_takes_effect_at_the_end(tmp_path):
    words = [sys.executable, "-c", BEGIN + HOLDING, str(tmp_path / "end")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        (tmp_path / "end").touch()
        assert process.stdout.read() == "held\ninterrupted\n"
