"""The text beside a figure, plain or for LaTeX: replicates, the meaning of bars and bands, and numbers."""

from collections.abc import Iterable
from typing import Any

from lottery.statistics.results import Table

# The bars and bands of a figure, by the name of their interval.
INTERVALS = {"range": "lowest to highest", "t": "95 % t interval for the mean"}

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "≥": r"$\geq$", }  # fmt: skip


def counted(points: Table) -> tuple[int, str]:
    """Return the most replicates of any mean of `style.spread`, and their number as text, such as ``"2 to 3"``.

    Means of no value do not count, unless there is nothing else.
    """
    known = points[points["replicates"] > 0]["replicates"]
    known = points["of"] if known.empty else known
    fewest, most = int(known.min()), int(known.max())
    return most, f"{most}" if fewest == most else f"{fewest} to {most}"


def replicates(points: Table, shape: str, interval: str = "range") -> str:
    """Say of how many replicates the means of `style.spread` are, and what their bars or bands are."""
    most, number = counted(points)
    if most == 1:
        return "One replicate (n = 1)."
    if not (points["replicates"] > 0).any():
        return f"{number} replicates."
    return f"Means of n = {number} replicates, {shape}: {INTERVALS[interval]}."


def value(row: Any, form: str = ".4f") -> str:
    """Write a row of `style.spread` as its mean and, of several replicates, the ends of its bar, if they differ."""
    mean, low, high = (_plain(row[name], form) for name in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})" if row["replicates"] > 1 and not mean == low == high else mean


def listed(items: Iterable[str]) -> list[str]:
    """Join items, which may contain commas, to a sentence; return it alone, or nothing if there are none."""
    text = "; ".join(items)
    return [f"{text[0].upper()}{text[1:]}."] if text else []


def latex(text: str) -> str:
    r"""Write a text as a LaTeX ``\caption{...}``."""
    escaped = "".join(_LATEX.get(letter, letter) for letter in text)
    return "\\caption{" + escaped.replace(r" \%", r"\,\%").replace("n = ", "$n$ = ") + "}"


def _plain(number: float, form: str) -> str:
    text = format(number, form)
    return text.lstrip("-") if float(text.replace(",", "")) == 0 else text.replace("-", "−")
