"""Being asked to stop: by Ctrl-C, by SIGTERM, or by who has started this process."""

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

Asked = Callable[[], int]  # the signal that somebody has asked to stop with, 0 as long as nobody has


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """Training has stopped because somebody asked; what was trained is stored, and the same call goes on from there.

    Attributes:
        signal: Which signal it was.
    """

    def __init__(self, number: int):
        super().__init__(f"stopped by {signal.Signals(number).name}; the same call goes on from there")
        self.signal = number


def never() -> int:
    """Nobody asks."""
    return 0


@contextlib.contextmanager
def asked(told: Callable[[int], None] | None = None, at_once: bool = False) -> Iterator[Asked]:
    """Take SIGINT and SIGTERM as a question, to be answered when it suits; the second one is not.

    Signals reach the main thread of Python alone: in any other, what they do is left as it is.

    Args:
        told: Called with the number of the first signal, from a thread of its own and at once, even while TensorFlow
            computes.
        at_once: Whether the second signal ends the process, as soon as it comes; otherwise it raises what it would
            raise without us.

    Yields:
        A function that says which signal has come; 0 as long as none has.
    """
    if threading.current_thread() is not threading.main_thread():
        yield never
        return
    first = 0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if first and not at_once:
            restore()
            signal.raise_signal(number)
        first = first or number

    # Python's own handlers wait until what TensorFlow computes has ended; bytes are written to a socket at once.
    here, there = socket.socketpair()
    there.setblocking(False)
    # What was ignored before, as in the background of a script, stays so.
    taken = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in taken}
    descriptor = signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)

    def restore() -> None:
        signal.set_wakeup_fd(descriptor)
        for number, handler in before.items():
            signal.signal(number, handler)

    def forget() -> None:
        restore()
        here.close()
        there.close()

    _FORGET.append(forget)
    watching = threading.Thread(target=_watch, args=(here, told, at_once), daemon=True)
    watching.start()
    try:
        yield lambda: first
    finally:
        _FORGET.remove(forget)
        restore()
        there.close()  # the thread reads the end, and ends
        watching.join()
        here.close()


def _forget_all() -> None:
    """In a child that was forked: signals do there what they did before, and nobody here hears of them."""
    while _FORGET:
        _FORGET.pop()()


_FORGET: list[Callable[[], None]] = []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def _watch(here: socket.socket, told: Callable[[int], None] | None, at_once: bool) -> None:
    num = 0
    while content := here.recv(1):
        if content[0] not in SIGNALS:  # somebody else's
            continue
        num += 1
        if num == 1 and told:
            with contextlib.suppress(OSError):  # nobody may read what it says
                told(content[0])
        if num > 1 and at_once:
            if sys.stderr.isatty():
                os.write(2, b"\x1b[?25h\n")  # a display may have hidden the cursor
            os._exit(128 + content[0])
