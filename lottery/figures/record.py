"""The record of an analysis: its table, its figure, and everything that commands and pages need to show them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lottery.errors import LotteryError
from lottery.text_tables import Table


class NothingToDraw(LotteryError):
    """A run has nothing of what a figure shows."""


@dataclass(frozen=True)
class Analysis:
    """A question to a stored run, answered by a tidy table and a figure.

    `lottery.analysis.ANALYSES` holds the records by name. `lottery analyze` has a command for each record with
    `columns`; `lottery plot`, `lottery.plots` and the report have a figure for each record with `figure`.

    ``table(run, **options)`` makes a tidy data frame from a run's folder; it raises `LotteryError` if it is not a run,
    a file is damaged, or a round is not stored. For a figure, a parameter ``rounds`` receives as many rounds as a
    figure has room for (by default all are read), and a parameter ``round`` the last one that all replicates have.
    ``figure(table, ax, **options)`` draws the table on Matplotlib axes, or on pyplot's current axes if None, and
    returns them; it raises `LotteryError` if the table is empty or lacks the value of an option. If ``caption`` is a
    function, ``caption(table, **options)`` writes the text beside that figure.
    """

    table: Callable[..., Table]
    figure: Callable[..., Any] | None
    help: str  # a sentence for --help
    title: str = ""  # of the figure, in a few words
    columns: tuple[str, ...] = ()  # whose means over replicates `lottery analyze` prints
    leave_out: tuple[str, ...] = ()  # of these, where a terminal is narrow, the least important first
    keys: tuple[str, ...] = ()  # columns that tell rows apart, besides branch, round, density and weight
    printed: Callable[[Table], Table] | None = None  # makes the table to print means of, if it is another
    height: Callable[..., float] | None = None  # of a figure so wide, in inches, of table, width and options
    chapter: str = "More"  # of the report
    caption: str | Callable[..., str] = ""  # the text beside the figure, or makes it as `figure` draws; or `help`
    views: Callable[[Table], Iterable[Mapping[str, Any]]] | None = None  # the options of each figure of the report
    missing: str = ""  # a sentence for the report of a run that has nothing to draw
