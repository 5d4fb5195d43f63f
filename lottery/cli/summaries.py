"""What a run shows, in the terminal: its verdict, its tables, and what limits the verdict."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lottery import formatting
from lottery.cli import output
from lottery.cli.output import say


def show(run: Path, rows: Any, tolerance: float | None, round: int | None = None, long: bool = False) -> None:
    """Print a run's verdict in a line, and its tables, with a verdict for each round.

    The tables may be of one round alone; the verdict is of all. At length, they have all columns, each explained, and
    sentences on what limits the verdict.
    """
    from lottery.runs import store
    from lottery.statistics import results, sentences, tables, verdicts

    if rows.empty:
        say(f"No round of {run} is complete yet.")
        return
    judgement = verdicts.of_run(run, rows, tolerance)
    headline(judgement)
    points = results.summary(rows, judgement.rule.last_step)
    points = points if round is None else points[points["round"] == round]
    shown = [
        tables.rounds(judgement, points, short=not long) if (points["branch"] == store.TICKET).any() else None,
        tables.controls(judgement, _costs_beside_alternatives(run, points), round),
        tables.transfers(rows, points),
    ]
    for part in shown:
        if part:
            print()
            output.grid(part, has_rows=True, explained=long)
    print()
    say(*results.collapsed(run))
    if long:
        say(*sentences.limits(judgement))
    else:
        say(f"lottery show {run} --long explains the columns, and has more of them.")


def headline(judgement: Any) -> None:
    """Print the verdict on a run in a line, in its colour."""
    from lottery.statistics import sentences

    found = sentences.headline(judgement)
    text = formatting.wrapped(found.text, formatting.columns(sys.stdout))
    output.console().print(text, style=f"bold {output.COLOURS[found.tone]}")


def show_two_way(found: Any, tolerance: float, sentences: Sequence[str]) -> None:
    """Print ticket − dense with intervals over seeds and test examples, at both times, and what they show."""
    from lottery.statistics import tables, two_way

    key: Mapping[str, str] = {}
    for measure, when in two_way.WHEN.items():
        shown = tables.two_way(found, measure, tolerance)
        print(f"{when}:")
        output.table(shown.heads, shown.rows, shown.leave_out, has_rows=True, tones=shown.tones)
        print()
        key = shown.key
    say(*(f"{name}: {text}." for name, text in key.items()), *sentences)


def _costs_beside_alternatives(run: Path, points: Any) -> Any:
    """Read what each network takes, if a branch is an alternative to the ticket, with a budget of its own."""
    from lottery.analysis import costs
    from lottery.pruning import branches

    known = [branches.find(name) for name in set(points["branch"])]
    return costs.table(run) if any(branch and branch.kind == "alternative" for branch in known) else None
