"""Errors with readable messages, and text that is safe to print."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


class LotteryError(ValueError):
    """An error with a message of one sentence: the received value, the allowed values, and what to do.

    The command line prints the sentence and exits with status 2; any other exception is a bug of ours.
    """


class TicketError(LotteryError):
    """A ticket cannot be loaded, built or applied; nothing of its file has been used."""


class StorageError(LotteryError):
    """A file cannot be written; everything stored before is intact."""


def printable(text: object) -> str:
    """Replace the characters of a text that a terminal could take for a command."""
    text = str(text)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)


def printable_all(value: Any) -> Any:
    """Make every text in nested lists and dicts `printable`, the keys too, and in one line."""
    if isinstance(value, str):
        return printable(value).replace("\n", "?")
    if isinstance(value, dict):
        return {printable_all(key): printable_all(part) for key, part in value.items()}
    return [printable_all(part) for part in value] if isinstance(value, list) else value


def first_wrong(error: Any) -> str:
    """Say in a sentence of bounded length what the first mistake of a pydantic ``ValidationError`` is."""
    first = error.errors(include_url=False, include_input=False)[0]
    # A stranger's keys may be of any length.
    return printable_all(f"its {'.'.join(map(str, first['loc']))[:80]!r} is wrong: {first['msg'][:200]}.")


def unknown(what: str, received: object, allowed: Iterable[str]) -> LotteryError:
    """Make an error for a value that is none of some names, with the nearest name; the caller raises it."""
    names = list(allowed)
    *most, last = map(repr, names or ["nothing"])
    choices = f"{', '.join(most)} or {last}" if most else last
    return LotteryError(f"{what} must be {choices}, not {received!r}.{_nearest(received, names)}")


def missing(what: str, received: object, known: Iterable[str], where: str = "") -> LotteryError:
    """Make an error for a name that does not exist, such as ``"Unknown key"``, with the nearest that does, or all."""
    names = list(known)
    verb = "is" if len(names) == 1 else "are"
    others = _nearest(received, names) or f" There {verb} {', '.join(map(repr, names)) or 'none'}."
    return LotteryError(f"{what} {received!r}{where}.{others}")


def _nearest(received: object, names: Sequence[str]) -> str:
    # To a name of one letter, every short word is near.
    near = difflib.get_close_matches(str(received), [name for name in names if len(name) > 1], n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""
