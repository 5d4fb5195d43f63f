"""What a ticket forgets: test accuracy by class, from the stored predictions."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from lottery.figures import layout, style
from lottery.figures.record import Analysis, NothingToDraw
from lottery.runs import store
from lottery.runs.stored import StoredRound, stored_rounds
from lottery.text_tables import Table, frame

COLUMNS = ("replicate", "branch", "round", "density", "class", "num", "accuracy", "vs_dense")


def table(run: store.Folder, rounds: Iterable[int] | None = None) -> Table:
    """Measure the test accuracy of each class at the early-stop step.

    Hooker et al. 2019, https://arxiv.org/abs/1911.05248, found that pruning costs some classes more than others, also
    where the accuracy over all classes hardly changes.

    Returns:
        A data frame with the columns `COLUMNS`, a row for each network of the run's own data and class: ``num`` test
        examples have this class as their label, ``accuracy`` is the share of them that is predicted right, and
        ``vs_dense`` is this accuracy minus that of the dense network of the replicate. Networks without predictions, as
        of a regression, have no rows.
    """
    wanted = None if rounds is None else set(rounds)
    dense: dict[int, dict[int, float]] = {}
    rows = []
    # The dense network is read in any case: others are compared with it.
    for stored in stored_rounds(run, None if wanted is None else {0, *wanted}):
        is_dense = stored.branch == store.TICKET and not stored.round
        is_wanted = wanted is None or stored.round in wanted
        is_transfer = "data_sha256" in stored.record  # to other classes
        if is_transfer or not (is_dense or is_wanted) or not stored.has(store.PREDICTIONS):
            continue
        found = _by_class(stored)
        if is_dense:
            dense[stored.replicate] = {label: accuracy for label, _, accuracy in found}
        if is_wanted:
            known = dense.get(stored.replicate, {})
            rows += [(*stored.labels, *part, part[-1] - known.get(part[0], np.nan)) for part in found]
    return frame(rows, COLUMNS)


def _by_class(stored: StoredRound) -> list[tuple[int, int, float]]:
    """List each class with the number of its test examples and its accuracy."""
    labels = stored.predictions["label"]
    right = stored.predictions["early_stop"] == labels
    return [
        (int(label), int(np.sum(labels == label)), float(np.mean(right[labels == label])))
        for label in np.unique(labels)
    ]


def figure(found: Table, ax: Any = None, rounds: Iterable[int] | None = None, interval: str = "t") -> Any:
    """Draw ticket − dense of each class, for at most four pruned rounds, evenly apart, with intervals."""
    points = _points(found, rounds, interval)
    ax = style.new_or(ax)
    style.reference(ax, 0)
    numbers = sorted(set(points["round"]))
    looks = style.in_order(len(numbers))
    for place, (number, (color, marker, _)) in enumerate(zip(numbers, looks, strict=True)):
        part = points[points["round"] == number]
        # Beside each other: several rounds share a class.
        x = part["class"] + 0.7 * ((place + 0.5) / len(numbers) - 0.5)
        # No line: classes have no order.
        style.bars(ax, x, part, (color, marker, "none"), f"density {part['density'].iloc[0]:.3g}")
    low, high = min(0, points["low"].min()), max(0, points["high"].max())
    # An interval may go on where no difference of accuracies can be. Equal limits are none.
    if np.isfinite([low, high]).all() and (low or high):
        room = 0.05 * (high - low)
        ax.set_ylim(max(low - room, -_EDGE), min(high + room, _EDGE))
    ax.set(xlabel="class", ylabel="test accuracy, ticket − dense")
    classes = sorted(set(points["class"]))
    if len(classes) <= _MOST_TICKS:
        ax.set_xticks(classes)
    else:
        style.whole_ticks(ax.xaxis)
    return layout.finish(ax, points, "bars", interval)


def _caption(found: Table, rounds: Iterable[int] | None = None, interval: str = "t") -> str:
    points = _points(found, rounds, interval)
    sentences = [
        "Test accuracy of each class at the early-stop step, ticket − dense.",
        style.replicates(points, "bars", interval),
    ]
    if points["low"].min() < -_EDGE or points["high"].max() > _EDGE:
        sentences.append(
            "Bars that end at the edge of the axes continue beyond it, although no difference is below −1 or above 1."
        )
    return " ".join(sentences)


_EDGE = 1.05  # of the axes, beyond all differences of two accuracies
_MOST_TICKS = 20  # the labels of more would lie on each other


def _points(found: Table, rounds: Iterable[int] | None, interval: str) -> Table:
    """Average the differences by round and class."""
    tickets = found[(found["branch"] == store.TICKET) & (found["round"] > 0) & found["vs_dense"].notna()]
    if rounds is not None:
        rounds = [number for number in rounds if number]  # round 0 is dense itself
    if tickets.empty or rounds == []:
        raise NothingToDraw("There is nothing to plot: no pruned round has predictions to compare with dense.")
    chosen = style.of_rounds(tickets, rounds, most=4)
    return style.spread(chosen, ("round", "class"), "vs_dense", interval)


CLASSES = Analysis(
    table,
    figure,
    "Test accuracy of each class, ticket − dense: what a ticket forgets.",
    columns=("num", "accuracy", "vs_dense"),
    keys=("class",),
    chapter="Accuracy",
    caption=_caption,
    missing="No pruned network of the run has predictions of classes.",
    title="What tickets forget",
)
