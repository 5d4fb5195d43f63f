"""Numbers, differences, intervals and durations as short texts, and lines that fit a terminal."""

import itertools
import math
import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from numbers import Real
from typing import Any


def number(value: float | None, form: str = ".4f") -> str:
    """Format a number: empty for None and NaN, and with an exponent if it is too small for four decimals."""
    if value is None or value != value:
        return ""
    # Differences that are 0 may leave some 1e-17 in their mean.
    is_small = form == ".4f" and 1e-15 < abs(value) < 5e-5
    return formatted(value, ".1e" if is_small else form)


def percent(fraction: float) -> str:
    """Format a fraction in per cent, such as 9.1 % or 0.35 %."""
    value = 100 * fraction
    # Two digits of what is below 1 %, however small.
    places = 1 if value >= 1 or value <= 0 else 1 - math.floor(math.log10(value))
    return f"{value:.{places}f}".removesuffix(".0") + " %"


# Columns of tables, by their names, that are formatted in a way of their own.
_COARSE = {
    "compression", "parameter_compression", "speedup", "dead_inputs", "dead_units", "dead", "least", "mean", "most",
    "seconds",
}  # fmt: skip
_FORMS: dict[str, Callable[[float], str]] = {
    **dict.fromkeys(("density", "weight_density", "test accuracy"), percent),
    **dict.fromkeys(("accuracy", "highest_accuracy", "last_accuracy"), lambda value: f"{100 * value:.2f} %"),
    "vs_dense": lambda value: number(100 * value, "+.2f"),
}


def column(values: Iterable[Any], name: str = "") -> list[str]:
    """Format the values of a column alike: whole numbers if all are, with thousands separators; texts as they are.

    The columns that `name` tells apart have a form of their own: densities and accuracies are in per cent, their
    differences from dense in points, and ratios and means of counts have one place.
    """
    values = list(values)
    if name in _FORMS and not any(isinstance(value, str) for value in values):
        return ["" if value != value else _FORMS[name](value) for value in values]
    if name in _COARSE:
        texts = [number(value, ",.1f") for value in values]
        are_whole = all(text.endswith(".0") for text in texts if text)
        return [text.removesuffix(".0") if are_whole else text for text in texts]
    numbers = [float(value) for value in values if isinstance(value, Real) and value == value]
    form = ".4f"
    if all(value.is_integer() for value in numbers):
        form = ",.0f"
    elif max(map(abs, numbers)) >= 100:
        form = ",.1f"

    def text(value: Any) -> str:
        # To Python a bool is a number.
        if isinstance(value, Real) and not isinstance(value, bool):
            return number(float(value), form)
        return "" if value is None else str(value)

    return [text(value) for value in values]


def are_numbers(cells: Iterable[str]) -> bool:
    """Return True if the texts of a column are numbers, which stand to the right, or empty."""
    return all(cell[:1] in "0123456789+−≥" for cell in cells)


def ends(low: float, high: float, form: str = "+.4f") -> str:
    """Format the ends of an interval."""
    return f"{formatted(low, form)} to {formatted(high, form)}" if math.isfinite(low) else "not known"


def points(*differences: float) -> list[str]:
    """Format differences of accuracies in percentage points, with a sign, all with as many places.

    Where one place would hide the sign of a difference, there are two.
    """
    hides_sign = any(0 < abs(value) < 0.0005 for value in differences)
    places = 1 if max(abs(value) for value in differences) >= 0.01 and not hides_sign else 2
    return [formatted(100 * value, f"+.{places}f") for value in differences]


def short(value: float) -> str:
    """Format a large number with three digits: 2.08G for 2,081,894,400; empty for NaN."""
    if value != value:
        return ""
    value = float(f"{value:.3g}")  # before the power is chosen: 999,600 is 1M
    power = min(max(int(math.log10(value)) // 3, 0), 6) if value >= 1 else 0
    return f"{value / 1000**power:.3g}{' kMGTPE'[power].strip()}"


def duration(seconds: float) -> str:
    """Format a time in hours and minutes, in minutes and seconds, or in seconds."""
    # From here on, one place would read 10.0 s.
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


def counted(num: int, noun: str, most: int = 0) -> str:
    """Count things, such as 1 network or 1,200 networks; or write the fewest and the most: 3 to 5 replicates."""
    if most > num:
        return f"{num:,} to {most:,} {noun}s"
    return f"{num:,} {noun}" if num == 1 else f"{num:,} {noun}s"


def listed(words: Iterable[Any], conjunction: str = "and") -> str:
    """List words in a sentence: a, b and c."""
    *most, last = map(str, words)
    return f"{', '.join(most)} {conjunction} {last}" if most else last


def ranges(numbers: Iterable[int], noun: str = "") -> str:
    """List whole numbers in a few words, such as 1 to 3, 5, or after a noun: rounds 1 to 3, 5."""
    ordered = sorted(numbers)
    # Among successive numbers, number and place are always as far apart.
    groups = itertools.groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0])
    parts = [[num for _, num in group] for _, group in groups]
    text = ", ".join(f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts)
    if not noun:
        return text
    return f"{noun}s {text}" if len(ordered) > 1 else f"{noun} {text}"


def numbered(names: Iterable[str]) -> list[str]:
    """Number names from the second of each kind, such as dense, dense_1."""
    counts: Counter[str] = Counter()
    found = []
    for name in names:
        found.append(f"{name}_{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return found


def plain(value: Any) -> str:
    """Format any value of a record."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return "; ".join(f"{key}: {plain(part)}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def columns(stream: Any) -> int | None:
    """Return the width of the terminal that a stream writes to; None for a pipe or a file, where nothing is cut."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def unbroken(text: str) -> str:
    """Put a no-break space between each number and its unit."""
    return re.sub(r"(?<=\d) (?=(?:%|s|ms|min|h|MB|points)(?:\W|$))", "\N{NO-BREAK SPACE}", text)


def wrapped(text: str, width: int | None) -> str:
    """Break a text into lines of a width, between words only: never in a number with its unit, or in a path."""
    if width is None:
        return text
    lines = (
        textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        for line in unbroken(text).split("\n")
    )
    # textwrap breaks lines at plain spaces alone.
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def formatted(value: float, form: str) -> str:
    """Format a number by Python's format specification, with a minus sign for the hyphen, and without minus zero."""
    text = f"{value:{form}}"
    if not text.startswith("-"):
        return text
    if re.search("[1-9]|inf", text):
        return "−" + text[1:]
    return formatted(0.0, form)
