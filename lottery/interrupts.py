"""Requests to stop: Ctrl-C, SIGTERM, a limit of time, or a function of the caller."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

ShouldStop = Callable[[], int]  # returns the signal to stop by, or 0

SIGNALS = (signal.SIGINT, signal.SIGTERM)
TIME_IS_UP = 14  # SIGALRM, by which systems with such a signal end what has run for long enough


# A KeyboardInterrupt, because `except Exception`, as around functions of the user's, lets it through.
class Stopped(KeyboardInterrupt):
    """Training stopped on request by `signal`; everything trained is stored, and the same call continues from there."""

    def __init__(self, number: int):
        why = "when its time was up" if number == TIME_IS_UP else f"by {signal.Signals(number).name}"
        super().__init__(f"stopped {why}; the same call continues from there")
        self.signal = number


def never() -> int:
    """Never ask to stop."""
    return 0


def within(hours: float, should_stop: ShouldStop) -> ShouldStop:
    """Request to stop from `hours` after this call, or as soon as `should_stop` does."""
    deadline = time.monotonic() + 3600 * hours

    def is_over() -> int:
        return should_stop() or (TIME_IS_UP if time.monotonic() >= deadline else 0)

    return is_over


@contextlib.contextmanager
def listening(notify: Callable[[int], None] | None = None, at_once: bool = False) -> Iterator[ShouldStop]:
    """Take the first SIGINT or SIGTERM as a request to stop when it suits.

    The context gives a function that returns the first signal, or 0 before; `notify` is called with that signal. With
    `at_once`, the second ends the process, with status 128 + its number; else it means what it means outside. Python
    runs handlers in its main thread alone, between two calls of TensorFlow: a signal is noticed after the piece of
    training that it came in, about half a second. In any other thread signals keep their meaning.
    """
    if threading.current_thread() is not threading.main_thread():
        yield never
        return
    first = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if not first:
            first = number
            # The output may be closed; or it is being written to, and Python refuses a second write within the first.
            with contextlib.suppress(OSError, RuntimeError):
                if notify:
                    notify(number)
        elif at_once:
            if sys.stderr.isatty():
                os.write(2, b"\x1b[?25h\n")  # a display may have hidden the cursor
            # Not by an exception, which would first wait for a checkpoint to be written.
            os._exit(128 + number)
        else:
            restore()
            signal.raise_signal(number)

    # Signals that were ignored before, as in the background of a script, stay ignored.
    restore = _taken_over(handle, unless=signal.SIG_IGN)
    _RESTORE.append(restore)
    try:
        yield lambda: first
    finally:
        _RESTORE.remove(restore)
        restore()


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Hold SIGINT and SIGTERM until the end of the context, where the first takes effect."""
    if threading.current_thread() is not threading.main_thread():  # it handles no signal
        yield
        return
    received: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        received.append(number)

    restore = _taken_over(remember)
    try:
        yield
    finally:
        restore()
        if received:
            # One is enough: more of them would mean to end at once, before anybody has heard of the first.
            signal.raise_signal(received[0])


def _taken_over(handle: Callable[[int, FrameType | None], None], unless: Any = None) -> Callable[[], None]:
    """Take SIGINT and SIGTERM over from any handler but `unless`; return a function that puts the handlers back."""
    # None stands for a handler that was not set from Python, and could not be put back.
    taken = [number for number in SIGNALS if signal.getsignal(number) not in (unless, None)]
    before = {number: signal.signal(number, handle) for number in taken}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return restore


_RESTORE: list[Callable[[], None]] = []  # what puts the handlers before each open `listening` back, outer ones first

# A mask of signals is of a thread, and several may fork.
_FORKING = threading.local()


def _before_fork() -> None:
    # A signal that reaches the child before the child has its own handlers would run those of the parent.
    _FORKING.unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _in_parent() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _FORKING.unblocked)


def _in_child() -> None:
    # Inner ones first: each puts back what it has found.
    for restore in reversed(_RESTORE):
        restore()
    _in_parent()


if hasattr(os, "register_at_fork"):  # signals mean in a child what they did before
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
