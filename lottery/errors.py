"""The exceptions that are meant to be read by a person, and text that is safe to show to one."""

import difflib
from collections.abc import Iterable


class LotteryError(ValueError):
    """What was received, what is allowed, and what to do, in one sentence.

    The command line prints the sentence and exits with status 2; anything else that escapes is a bug of ours.
    """


class TicketError(LotteryError):
    """A ticket cannot be loaded, built or applied; of a file, that nothing of it was used."""


class StorageError(LotteryError):
    """Something cannot be written; everything that was stored before is intact."""


def printable(text: object) -> str:
    """Text that a stranger may have written, without what a terminal would take for a command."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in str(text))


def unknown(what: str, received: object, allowed: Iterable[str]) -> LotteryError:
    """An error for a name that does not exist, with the nearest one that does.

    Args:
        what: What was being named, such as ``"data.name"``.
        received: What was given.
        allowed: Every name that would have been accepted.

    Returns:
        The error, to be raised by the caller.
    """
    allowed = list(allowed)
    near = difflib.get_close_matches(str(received), allowed, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    choices = ", ".join(repr(name) for name in allowed) or "nothing"
    return LotteryError(f"{what}: received {received!r}, allowed is {choices}{hint}")
