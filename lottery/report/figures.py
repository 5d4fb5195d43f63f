"""The figures of a page about runs, each with what to see in it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lottery import plots
from lottery.analysis import connectivity, connectivity_files, curves, distances, inputs, layers, overlaps, survivors
from lottery.report.tables import Facts
from lottery.runs import results, store

FEW_ROUNDS = 6  # lines, or images, in one figure


MATRICES = 3  # rounds whose masks are compared


MOST_WEIGHTS = 8  # with figures of their own; of a deep network the first and the last, and some between


class Picture(NamedTuple):
    """A figure.

    Attributes:
        svg: What can stand in a page as it is.
        caption: What it shows, in a sentence or two.
    """

    svg: str
    caption: str


def pictures(one: Facts) -> tuple[dict[str, list[Picture]], dict[str, str]]:
    """The figures of a run.

    Args:
        one: What `lottery.report.tables.gathered` returns for it.

    Returns:
        Figures by what they are about: ``accuracy``, ``training``, ``layers``, ``inputs``, ``overlap``, ``paths``; and
        by the same names a sentence on what could not be drawn.
    """
    few = results.chosen(one.rows[one.rows["branch"] == store.TICKET]["round"], FEW_ROUNDS)
    missing, shown = {}, [store.TICKET, *one.controls][: len(plots.STYLES)]
    drawn = one.own[one.own["branch"].isin(shown)]
    if len(shown) <= len(one.controls):
        missing["accuracy"] = f"The figures have room for {len(shown)} of {len(one.controls) + 1} branches."
    steps, curve = one.experiment.train.num_steps, curves.table(one.path, few)
    found = {
        "accuracy": [
            _drawn("accuracy", drawn, "Test accuracy at the early-stop step against density."),
            _drawn("early_stop", drawn, "How soon the validation loss is lowest.", num_steps=steps),
        ],
        "training": [
            _drawn("learning_curves", curve, f"Validation {measure} while training, of some rounds.", measure=measure)
            for measure in ("accuracy", "loss")
            if curve[measure].notna().any()
        ],
        "layers": [
            _drawn("layers", one.layers, "Which weights the pruning takes from."),
            _drawn("distance", distances.table(one.path), "How far training moves the weights from where they start."),
        ],
    }
    entering, starts = layers.degrees(one.path, few), survivors.table(one.path, few)
    names = list(dict.fromkeys(starts["weight"]))
    for name in (names[place] for place in results.chosen(range(len(names)), MOST_WEIGHTS)):
        found["layers"] += [
            _drawn("initial_weights", starts, f"{name}: the start weights of the survivors.", weight=name),
            _drawn("degrees", entering, f"{name}: how many entries its units keep.", weight=name),
        ]
    looked = "What the ticket looks at: how many weights of the first layer read each input."
    found["inputs"] = [_drawn("inputs", inputs.table(one.path, few), looked)]
    found["overlap"] = []
    if one.rows["replicate"].nunique() > 1:
        some = results.chosen(range(1, plots.last_common_round(one.path) + 1), MATRICES)
        found["overlap"] = [_overlap([one.path], index) for index in some]
    else:
        missing["overlap"] = "The masks of one replicate have no others to be compared with."
    if one.paths.empty:
        missing["paths"] = "Linear mode connectivity was not measured; `lottery analyze connectivity` does."
    else:
        found["paths"] = _paths(one)
    return found, missing


def together(runs: Sequence[Facts]) -> list[Picture]:
    """Figures that show several runs at once: the accuracy of their tickets."""
    import pandas as pd

    some = runs[: len(plots.STYLES)]
    tickets = [one.rows[one.rows["branch"] == store.TICKET].assign(branch=one.label) for one in some]
    rows = pd.concat(tickets, ignore_index=True)
    said = "The tickets of all runs." if len(some) == len(runs) else f"The tickets of the first {len(some)} runs."
    return [_drawn("accuracy", rows, said, reference=False)]


def _paths(one: Facts) -> list[Picture]:
    """Paths between solutions, and their barriers over rounds and over steps."""
    barriers, shown = connectivity.barriers(one.paths), []
    for (kind,), points in one.paths.groupby(["batch_norm"]):
        said = "" if kind == connectivity_files.STORED else " BatchNorm statistics were computed anew at each point."
        few = results.chosen(points["round"], FEW_ROUNDS)
        caption = f"Error on the straight line between two networks of the same start and two orders of the data.{said}"
        shown.append(_drawn("barrier", points, caption, rounds=few))
        for over in ("density", "step"):
            mine = barriers[barriers["batch_norm"] == kind]
            if mine[over].nunique() > 1:
                shown.append(_drawn("instability", mine, f"Error barriers by {over}.{said}", over=over))
    return shown


def _overlap(paths: list[Path], index: int) -> Picture:
    said = f"Round {index}: intersection over union of the masks of two replicates, and what chance would give."
    return _drawn("overlap", overlaps.table(paths, index), said)


def _drawn(kind: str, table: Any, caption: str, **options: Any) -> Picture:
    return Picture(plots.svg(table, kind, **options), caption)
