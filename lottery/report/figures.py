"""The figures of a page about runs, each with a caption."""

import inspect
from collections.abc import Sequence
from typing import NamedTuple

from lottery import plots
from lottery.analysis import style
from lottery.analysis.record import Analysis, NothingToDraw
from lottery.report.tables import Facts
from lottery.runs import store


class Figure(NamedTuple):
    """A figure as SVG for a page, and a caption of a sentence or two."""

    svg: str
    caption: str


def drawn(one: Facts) -> tuple[dict[str, list[Figure]], dict[str, list[str]]]:
    """Draw every kind of figure of a run, by chapter; and collect sentences about those that cannot be drawn."""
    found: dict[str, list[Figure]] = {}
    missing: dict[str, list[str]] = {}
    shown = [store.TICKET, *one.controls][: len(style.STYLES)]
    if len(shown) <= len(one.controls):
        missing["Accuracy"] = [f"The figures have room for {len(shown)} of {len(one.controls) + 1} branches."]
    for kind, analysis in plots.kinds().items():
        try:
            own = _drawn(one, kind, analysis, shown)
        except NothingToDraw:
            own = []
        if not own and analysis.missing:
            missing.setdefault(analysis.chapter, []).append(analysis.missing)
        found.setdefault(analysis.chapter, []).extend(own)
    return found, missing


def together(runs: Sequence[Facts]) -> Figure:
    """Draw the accuracy of the tickets of several runs."""
    import pandas as pd

    some = runs[: len(style.STYLES)]
    tickets = [one.rows[one.rows["branch"] == store.TICKET].assign(branch=one.label) for one in some]
    which = "all runs" if len(some) == len(runs) else f"the first {len(some)} runs"
    rows = pd.concat(tickets, ignore_index=True)
    return Figure(plots.svg(rows, "accuracy", reference=False), f"The tickets of {which}.")


def _drawn(one: Facts, kind: str, analysis: Analysis, branches: Sequence[str]) -> list[Figure]:
    """Draw a figure for each view of an analysis."""
    table = one.table(kind)
    if "branch" in table:
        table = table[table["branch"].isin(branches)]
    views = analysis.views(table) if analysis.views else [{}]
    readable, found = inspect.signature(analysis.table).parameters, []
    for options in views:
        reading = {name: value for name, value in options.items() if name in readable}
        options = {name: value for name, value in options.items() if name in plots.options_of(kind)}
        part = one.table(kind, **reading) if reading.keys() - options.keys() else table
        found.append(Figure(plots.svg(part, kind, **options), plots.caption(part, kind, **options)))
    return found
