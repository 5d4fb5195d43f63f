"""The record of an analysis: its table, its figure, and everything that commands and pages need to show them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lottery.errors import LotteryError
from lottery.runs.results import Table

WIDE = (7.2, 4.2)  # inches, with the legend beside the axes


class NothingToDraw(LotteryError):
    """A run has nothing of what a figure shows."""


@dataclass(frozen=True)
class Analysis:
    """A question to a stored run, answered by a tidy table and a figure.

    `lottery.analysis.ANALYSES` holds the records by name. `lottery analyze` has a command for each record with
    `columns`; `lottery plot`, `lottery.plots` and the report have a figure for each record with `figure`.

    Attributes:
        table: Make a tidy data frame from a run's folder; raise `LotteryError` if it is not a run, a file is damaged,
            or a round is not stored. For a figure, a parameter ``rounds`` receives as many rounds as a figure has room
            for, and a parameter ``round`` the last one that all replicates have.
        figure: ``figure(table, ax, **options)`` draws the table on Matplotlib axes and returns them; it raises
            `LotteryError` if the table is empty or lacks the value of an option.
        help: One sentence for ``--help``.
        columns: Columns of the table whose means over replicates `lottery analyze` prints.
        keys: Columns that tell rows apart, besides branch, round, density and weight.
        printed: Turn the table into the one that `lottery analyze` prints means of, if it is another.
        size: Width and height of the figure in inches, from the table.
        chapter: The part of the report that shows the figure.
        caption: One sentence for the report: what to see in the figure; `help` if empty.
        views: From the table, options and a caption for each figure in the report, if there are several.
        missing: One sentence for the report of a run that has nothing to draw.
    """

    table: Callable[..., Table]
    figure: Callable[..., Any] | None
    help: str
    columns: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    printed: Callable[[Table], Table] | None = None
    size: Callable[[Table], tuple[float, float]] = lambda table: WIDE
    chapter: str = "More"
    caption: str = ""
    views: Callable[[Table], Iterable[tuple[Mapping[str, Any], str]]] | None = None
    missing: str = ""
