"""A table of texts, which a terminal, a notebook and a page show alike."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from lottery import formatting
from lottery.errors import printable

GOOD, OPEN, BAD = "good", "open", "bad"  # tones of a text

# Of the tones, to be read on white and on black.
COLOURS = {GOOD: "#2e9e4f", OPEN: "#b8860b", BAD: "#d9534f"}


class Grid(NamedTuple):
    """A table of texts. The first column names the row."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    key: Mapping[str, str] = {}  # heads and texts of cells, explained
    notes: Sequence[str] = ()  # sentences to show below it
    leave_out: Sequence[str] = ()  # heads of the columns to leave out where there is no room, the least important first
    tones: Mapping[str, str] = {}  # of cells, by their text

    @property
    def numeric(self) -> list[bool]:
        """Whether each column has numbers, which stand to the right."""
        return [formatting.are_numbers(row[place] for row in self.rows) for place in range(len(self.heads))]


def of_lines(lines: Sequence[Mapping[str, str]], **parts: Any) -> Grid:
    """Make a table of lines with the same heads, without the columns that are empty in all of them.

    Args:
        lines: One or more, each with a text for each head.
        parts: Other fields of `Grid`.
    """
    heads = [head for head in lines[0] if any(line[head] for line in lines)]
    return Grid(heads, [[line[head] for head in heads] for line in lines], **parts)


def html(grid: Grid) -> str:
    """Write a table, its key and its notes as HTML for a notebook, in the colours of its tones."""
    sides = ["right" if numeric else "left" for numeric in grid.numeric]
    rows = [_row("th", grid.heads, sides, {})]
    rows += [_row("td", row, sides, grid.tones) for row in grid.rows]
    below = [f"{name}: {text}." for name, text in grid.key.items()] + list(grid.notes)
    notes = "<br>".join(map(escape, below))
    return f"<table>{''.join(rows)}</table>" + (f"<small>{notes}</small>" if notes else "")


def _row(kind: str, texts: Sequence[str], sides: Sequence[str], tones: Mapping[str, str]) -> str:
    """Write a row of cells of a kind, ``th`` or ``td``."""
    cells = []
    for text, side in zip(texts, sides, strict=True):
        style = f"text-align: {side}; padding: 2px 8px"
        if text in tones:
            style += f"; color: {COLOURS[tones[text]]}"
        cells.append(f'<{kind} style="{style}">{escape(printable(text))}</{kind}>')
    return f"<tr>{''.join(cells)}</tr>"
