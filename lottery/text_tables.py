"""A table of texts, which a terminal, a notebook and a page show alike; and the data frames that they are made of."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from lottery import formatting
from lottery.errors import printable

# A pandas data frame, which is slow to import and which type checkers take apart wrongly.
Table = Any


def frame(rows: Iterable[Any], columns: Sequence[str]) -> Table:
    """Make a data frame of rows, or an empty one with these columns."""
    import pandas as pd

    return pd.DataFrame(rows, columns=list(columns))


GOOD, OPEN, BAD = "good", "open", "bad"  # tones of a text

# Of the tones, to be read on white and on black.
COLOURS = {GOOD: "#2e9e4f", OPEN: "#b8860b", BAD: "#d9534f"}


class TextTable(NamedTuple):
    """A table of texts. The first column names the row."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    key: Mapping[str, str] = {}  # heads and texts of cells, explained
    notes: Sequence[str] = ()  # sentences to show below it
    leave_out: Sequence[str] = ()  # heads of the columns to leave out where there is no room, the least important first
    tones: Mapping[str, str] = {}  # of cells, by their text

    def explained(self, absent: Collection[str] = ()) -> list[tuple[str, str]]:
        """List what the key says of the heads and the words that are there, without the columns with these heads."""
        places = [place for place, head in enumerate(self.heads) if head not in absent]
        seen = {self.heads[place] for place in places}
        seen |= {row[place] for row in self.rows for place in places}
        return [(name, text) for name, text in self.key.items() if name in seen]

    @property
    def numeric(self) -> list[bool]:
        """Whether each column has numbers, which stand to the right."""
        return [formatting.are_numbers(row[place] for row in self.rows) for place in range(len(self.heads))]


def of_rows(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, tuple[str, Callable[[Any], str]]], **parts: Any
) -> TextTable:
    """Make a table of rows of values, without columns that are empty in all of them, and what explains these.

    Args:
        rows: One or more.
        columns: By head, the key of the values, and what formats one. What is not known (None, NaN, an infinite end of
            an interval) is empty.
        parts: Other fields of `TextTable`.
    """
    lines = [[_text(row[key], format) for key, format in columns.values()] for row in rows]
    places = [place for place in range(len(columns)) if any(line[place] for line in lines)]
    heads = list(columns)
    made = TextTable([heads[place] for place in places], [[line[place] for place in places] for line in lines], **parts)
    return made._replace(key=dict(made.explained()))


def _text(value: Any, format: Callable[[Any], str]) -> str:
    is_known = value is not None and not (isinstance(value, float) and not math.isfinite(value))
    return format(value) if is_known else ""


def html(table: TextTable) -> str:
    """Write a table, its key and its notes as HTML for a notebook, in the colours of its tones."""
    sides = ["right" if numeric else "left" for numeric in table.numeric]
    rows = [_row("th", table.heads, sides, {})]
    rows += [_row("td", row, sides, table.tones) for row in table.rows]
    below = [f"{name}: {text}." for name, text in table.explained()] + list(table.notes)
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
