"""Print tables and sentences to a terminal, in its width and colours, or to a pipe, as they are."""

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from typer import Option

from lottery import formatting
from lottery.errors import LotteryError, printable
from lottery.text_tables import BAD, GOOD, OPEN, TextTable

# Heads of columns that are not the name in rows and CSV with spaces; one name for one quantity in all tables.
HEADS = {
    "num_kept": "kept", "difference_by_mean": "vs dense", "speedup": "theoretical speed-up",
    "multiply_adds": "multiply-adds", "batch_norm": "BatchNorm", "spent_steps": "steps in all",
    "spent_multiply_adds": "multiply-adds in all", "choice": "also called",
    "parameter_compression": "with all parameters",
}  # fmt: skip

# Columns that are never left out, and columns of prose, which may take several lines, with their least width.
KEPT = {
    "name", "run", "branch", "weight", "file", "format", "what", "round", "claim", "verdict", "test accuracy",
    "test loss", "source", "ticket − branch",
}  # fmt: skip
PROSE = {"reproduces": 12, "claim": 12, "source": 8, "stated (bound)": 9, "measured": 9}

COLOURS = {GOOD: "green", OPEN: "yellow", BAD: "red"}
GAP = 2  # between two columns


@dataclass(frozen=True)
class AsData:
    """The options to print rows for a program, in place of a table for a person."""

    as_json: Annotated[bool, Option("--json", help="Print the rows as JSON.")] = False
    as_csv: Annotated[bool, Option("--csv", help="Print the rows as CSV.")] = False

    def __post_init__(self) -> None:
        if self.as_json and self.as_csv:
            raise LotteryError("Pass --json or --csv, not both.")

    def __bool__(self) -> bool:
        return self.as_json or self.as_csv


def say(*sentences: object, file: Any = None) -> None:
    """Print sentences, each on lines of its own that fit the terminal."""
    file = file or sys.stdout
    for sentence in sentences:
        print(formatting.wrapped(str(sentence), formatting.columns(file)), file=file)


def head(column: str) -> str:
    """Return the head of a column of rows in a table."""
    return HEADS.get(column, column.replace("_", " "))


def rows(frame: Any, as_data: AsData | None = None, leave_out: Sequence[str] = ()) -> None:
    """Print a data frame, or a list of rows, as JSON, as CSV, or as a table.

    A narrow terminal leaves out the columns of `leave_out` first, in this order.
    """
    import pandas as pd

    frame = pd.DataFrame(frame)
    if as_data and as_data.as_json:
        # pandas writes ten digits by default, and takes no more than fifteen.
        print(frame.to_json(orient="records", indent=1, double_precision=15))
    elif as_data:
        print(frame.to_csv(index=False), end="")
    else:
        cells = [formatting.column(frame[name].tolist(), name) for name in frame]
        lines = [list(line) for line in zip(*cells, strict=True)]
        table(TextTable([head(name) for name in frame], lines, leave_out=[head(name) for name in leave_out]))


def means(
    frame: Any, keys: Sequence[str], columns: Sequence[str], count: str = "", leave_out: Sequence[str] = ()
) -> None:
    """Print the means of columns over rows with the same keys; `count` is the head of a column that counts them.

    A mean is left empty where a row lacks the value, such as the distance of a weight of which nothing is left. A
    column without any value, such as the accuracy of a model that measures none, is left out. A narrow terminal leaves
    out the columns of `leave_out` first, in this order.
    """
    if "density" in keys:
        # Where whole units are pruned, the replicates of a round have densities of their own.
        others = [key for key in keys if key != "density"]
        density = frame.groupby(others, dropna=False)["density"].transform("mean")
        frame = frame.assign(density=density)
    groups = frame.groupby(list(keys), sort=False, dropna=False)
    values = groups[[column for column in columns if frame[column].notna().any()]]
    # A mean over some of the rows would pass for a mean over all that are counted.
    found = values.mean().where(values.count().eq(groups.size(), axis=0))
    if count:
        found.insert(0, count, groups.size())
    rows(found.reset_index(), leave_out=[count, *leave_out, "density"])


def table(shown: TextTable, has_rows: bool = True, explained: bool = True) -> None:
    """Print a table with words to the left and numbers to the right, and explain it.

    Where the terminal is too narrow, columns are left out and named below: those of its `leave_out` in this order, and
    then from the right all but `KEPT`. `has_rows` says that the command also prints rows as JSON and CSV, with all
    columns. If `explained`, the key of what is there and the notes follow.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    lines = [[printable(cell) for cell in line] for line in shown.rows]
    widths = _fitted(shown, lines, formatting.columns(sys.stdout))
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, GAP - 1, 0, 0))
    for place, width in widths.items():
        head = shown.heads[place]
        # Prose may begin with a digit.
        numbers = head not in PROSE and formatting.are_numbers(line[place] for line in lines)
        folded = textwrap.wrap(head, width, break_long_words=False, break_on_hyphens=False)
        table.add_column("\n".join(folded), justify="right" if numbers else "left", width=width, overflow="fold")
    for line in lines:
        cells = []
        for place, width in widths.items():
            text = formatting.wrapped(line[place], width) if shown.heads[place] in PROSE else line[place]
            cells.append(Text(text, COLOURS.get(shown.tones.get(line[place], ""), "")))
        table.add_row(*cells)
    console().print(table)
    absent = [head for place, head in enumerate(shown.heads) if place not in widths]
    if absent:
        others = ", --json and --csv have" if has_rows else " has"
        say(f"Columns left out: {', '.join(absent)}; a wider terminal{others} them.")
    if explained:
        say(*(f"{name}: {text}." for name, text in shown.explained(absent)), *shown.notes)


def _fitted(shown: TextTable, lines: Sequence[Sequence[str]], width: int | None) -> dict[int, int]:
    """Choose the columns of a table that fit a terminal, and their widths, by place."""
    from rich.cells import cell_len

    def longest(texts: Sequence[str]) -> int:
        return max(map(cell_len, texts), default=0)

    widths, least = {}, {}
    for place, head in enumerate(shown.heads):
        cells = [line[place] for line in lines]
        word = longest(head.split())
        widths[place] = least[place] = max(longest(cells), word, min(cell_len(head), 6))
        if head in PROSE:
            least[place] = max(longest(" ".join(cells).split()), word, PROSE[head])
            widths[place] = max(widths[place], least[place])
    if width is None:
        return widths

    def excess(of: dict[int, int]) -> int:
        return sum(of.values()) + GAP * (len(of) - 1) - width

    leave_out = [shown.heads.index(head) for head in shown.leave_out if head in shown.heads]
    # The first column says what a line is about, so it stays.
    leave_out += [place for place in reversed(range(1, len(shown.heads))) if shown.heads[place] not in KEPT]
    for place in leave_out:
        if excess(least) <= 0:
            break
        for gone in {place, _other_end(shown.heads, place)} & set(least):
            del least[gone], widths[gone]
    while excess(widths) > 0 and widths != least:  # prose shares what is left
        widest = max((place for place in widths if widths[place] > least[place]), key=lambda place: widths[place])
        widths[widest] -= 1
    return widths


_ENDS = {"from": "to", "to": "from"}  # the last words of the heads of an interval, each with the other


def _other_end(heads: Sequence[str], place: int) -> int:
    """Return the place of the column with the other end of an interval; the same place if there is none."""
    name, _, end = heads[place].rpartition(" ")
    other = f"{name} {_ENDS.get(end, '')}"
    return heads.index(other) if other in heads else place


def console() -> Any:
    """Make a console that prints lines as they are, with colours where there are any."""
    from rich.console import Console

    # Widths are chosen here: Rich would break numbers.
    return Console(width=10_000, height=100, highlight=False, markup=False, emoji=False)
