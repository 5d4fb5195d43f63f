"""Print tables and sentences to a terminal, in its width and colours, or to a pipe, as they are."""

import contextlib
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from lottery import formatting
from lottery.errors import printable

if TYPE_CHECKING:
    from lottery.grids import Grid

# Heads of columns that are not the name in rows and CSV with spaces; one name for one quantity in all tables.
HEADS = {
    "num_kept": "kept", "difference_by_mean": "vs dense", "speedup": "theoretical speed-up",
    "multiply_adds": "multiply-adds", "batch_norm": "BatchNorm", "spent_steps": "steps in all",
    "spent_multiply_adds": "multiply-adds in all", "choice": "also called", "parameter_compression":
    "with all parameters",
}  # fmt: skip

# Columns that are never left out, and columns of prose, which may take several lines, with their least width.
KEPT = {
    "name", "run", "branch", "weight", "file", "format", "what", "round", "claim", "verdict", "test accuracy",
    "test loss", "source", "ticket − branch",
}  # fmt: skip
PROSE = {"reproduces": 12, "claim": 12, "source": 8, "stated (bound)": 9, "measured": 9}

COLOURS = {"good": "green", "open": "yellow", "bad": "red"}
GAP = 2  # between two columns


def say(*sentences: object, file: Any = None) -> None:
    """Print sentences, each on lines of its own that fit the terminal."""
    file = file or sys.stdout
    for sentence in sentences:
        print(formatting.wrapped(str(sentence), formatting.columns(file)), file=file)


@contextlib.contextmanager
def counting() -> Iterator[Callable[[int, int, str], None]]:
    """Show how much of some work is done, and its next part: a bar in a terminal, and on a pipe how much there is."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield lambda done, total, name: None if done else say(f"Computing {total:,} networks again.", file=sys.stderr)
        return
    text = TextColumn("{task.description}", table_column=Column(no_wrap=True))
    parts = (text, BarColumn(bar_width=18), MofNCompleteColumn(), TimeRemainingColumn())
    # What is printed meanwhile must not end up on standard error, unless both are the same terminal.
    with Progress(*parts, console=console, transient=True, redirect_stdout=sys.stdout.isatty()) as display:
        bar = display.add_task("starting TensorFlow", total=None)
        yield lambda done, total, name: display.update(bar, completed=done, total=total, description=name)


@contextlib.contextmanager
def status(text: str) -> Iterator[None]:
    """Show in a terminal what is being done, as long as it takes."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield
        return
    with console.status(text):
        yield


def head(column: str) -> str:
    """Return the head of a column of rows in a table."""
    return HEADS.get(column, column.replace("_", " "))


def rows(frame: Any, as_json: bool = False, as_csv: bool = False, leave_out: Sequence[str] = ()) -> None:
    """Print a data frame, or a list of rows, as JSON, as CSV, or as a table.

    A narrow terminal leaves out the columns of `leave_out` first, in this order.
    """
    import pandas as pd

    frame = pd.DataFrame(frame)
    if as_json:
        print(frame.to_json(orient="records", indent=1, double_precision=15))
    elif as_csv:
        print(frame.to_csv(index=False), end="")
    else:
        cells = [formatting.column(frame[name].tolist(), name) for name in frame]
        lines = [list(line) for line in zip(*cells, strict=True)]
        table(list(map(head, frame.columns)), lines, list(map(head, leave_out)), has_rows=True)


def means(
    frame: Any, keys: Sequence[str], columns: Sequence[str], count: str = "", leave_out: Sequence[str] = ()
) -> None:
    """Print the means of columns over rows with the same keys; `count` is the head of a column that counts them.

    A column without any value, such as the accuracy of a model that measures none, is left out. A narrow terminal
    leaves out the columns of `leave_out` first, in this order.
    """
    columns = [column for column in columns if frame[column].notna().any()]
    groups = list(frame.groupby(list(keys), sort=False, dropna=False))
    cells = [formatting.column([values[place] for values, _ in groups], key) for place, key in enumerate(keys)]
    cells += [[str(len(part)) for _, part in groups]] if count else []
    cells += [formatting.column([float(part[column].mean()) for _, part in groups], column) for column in columns]
    heads = [*keys, *([count] if count else []), *columns]
    first = [count, *map(head, leave_out), "density"]
    table(list(map(head, heads)), [list(line) for line in zip(*cells, strict=True)], first, has_rows=True)


def grid(shown: "Grid", has_rows: bool = False, explained: bool = True) -> None:
    """Print a table, and explain what there is room for: its key and its notes."""
    absent = table(shown.heads, shown.rows, shown.leave_out, has_rows, shown.tones)
    if explained:
        say(*(f"{name}: {text}." for name, text in shown.explained(absent)), *shown.notes)


def table(
    heads: Sequence[str],
    lines: Sequence[Sequence[str]],
    leave_out: Sequence[str] = (),
    has_rows: bool = False,
    tones: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Print a table with words to the left and numbers to the right, and return the heads that are left out.

    Where the terminal is too narrow, columns are left out and named below: those of `leave_out` in this order, and then
    from the right all but `KEPT`. `has_rows` says that the command also prints rows as JSON and CSV, with all columns.
    `tones` colour cells by their text.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    lines = [[printable(cell) for cell in line] for line in lines]
    widths = fitted(heads, lines, formatting.columns(sys.stdout), leave_out)
    printed = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, GAP - 1, 0, 0))
    for place, width in widths.items():
        numbers = heads[place] not in PROSE and formatting.are_numbers(line[place] for line in lines)
        printed.add_column(
            _folded(heads[place], width), justify="right" if numbers else "left", width=width, overflow="fold"
        )
    for line in lines:
        line = [
            formatting.wrapped(cell, widths.get(place)) if heads[place] in PROSE else cell
            for place, cell in enumerate(line)
        ]
        printed.add_row(*(Text(line[place], COLOURS.get(tones.get(line[place], ""), "")) for place in widths))
    console().print(printed)
    if absent := [head for place, head in enumerate(heads) if place not in widths]:
        others = ", --json and --csv have" if has_rows else " has"
        say(f"Columns left out: {', '.join(absent)}; a wider terminal{others} them.")
    return absent


def fitted(
    heads: Sequence[str], lines: Sequence[Sequence[str]], width: int | None, leave_out: Sequence[str] = ()
) -> dict[int, int]:
    """Choose the columns of a table that fit a terminal, and their widths, by place."""
    from rich.cells import cell_len

    def longest(texts: Sequence[str]) -> int:
        return max(map(cell_len, texts), default=0)

    cells = [[line[place] for line in lines] for place in range(len(heads))]
    widths, least = {}, {}
    for place, head in enumerate(heads):
        word = longest(head.split())
        widths[place] = least[place] = max(longest(cells[place]), word, min(cell_len(head), 6))
        if head in PROSE:
            least[place] = max(longest([part for cell in cells[place] for part in cell.split()]), word, PROSE[head])
            widths[place] = max(widths[place], least[place])
    if width is None:
        return widths

    def excess(of: dict[int, int]) -> int:
        return sum(of.values()) + GAP * (len(of) - 1) - width

    from_the_right = [place for place in reversed(range(1, len(heads))) if heads[place] not in KEPT]
    for place in [heads.index(head) for head in leave_out if head in heads] + from_the_right:
        if excess(least) <= 0:
            break
        if place in least:
            del least[place], widths[place]
    while excess(widths) > 0 and widths != least:  # prose shares what is left
        widest = max((place for place in widths if widths[place] > least[place]), key=lambda place: widths[place])
        widths[widest] -= 1
    return widths


def _folded(head: str, width: int) -> str:
    return "\n".join(textwrap.wrap(head, width, break_long_words=False, break_on_hyphens=False))


def console() -> Any:
    """Make a console that prints lines as they are, with colours where there are any."""
    from rich.console import Console

    # Widths are chosen here: Rich would break numbers.
    return Console(width=10_000, height=100, highlight=False, markup=False, emoji=False)
