"""What tickets are compared by: test accuracy, or the test loss where the model measures no accuracy.

Beside it, the choice of rows that all comparisons begin with: of the tickets, the dense network, and the controls.
"""

import math
from dataclasses import dataclass
from typing import Any

from lottery.formatting import formatted, number, points
from lottery.pruning import branches
from lottery.runs.store import TICKET


def of_tickets(rows: Any) -> Any:
    """Return the rows of the main chain in a table that has a column ``branch``, the dense networks among them."""
    return rows[rows["branch"] == TICKET]


def of_dense(rows: Any) -> Any:
    """Return the rows of the dense networks, round 0 of the main chain."""
    return rows[(rows["branch"] == TICKET) & (rows["round"] == 0)]


def transferred(rows: Any) -> Any:
    """Mark the rows of transfers, whose accuracies are on other data and whose training may have another length."""
    known = {label: branches.find(label) for label in set(rows["branch"])}
    return rows["branch"].isin([label for label, branch in known.items() if branch and branch.other_data])


def has_alternative(rows: Any) -> bool:
    """Check if a branch is an alternative to the ticket, which has a cost of its own."""
    return any(branch and branch.kind == "alternative" for branch in map(branches.find, set(rows["branch"])))


def controls(rows: Any) -> list[str]:
    """List the branches that can be compared with the ticket, in order: all but transfers."""
    return [branch for branch in dict.fromkeys(rows[~transferred(rows)]["branch"]) if branch != TICKET]


@dataclass(frozen=True)
class Metric:
    """A quantity that says how good a network is, in the columns of `lottery.statistics.results.table`.

    A verdict is on gains: how much better a ticket is than another network. Of accuracies the gain is ticket − other,
    in [0, 1]. Of losses it is other − ticket, as a fraction of the mean loss of the dense networks, because a loss has
    no unit that is the same for all models.
    """

    what: str  # "accuracy" or "loss"
    tolerance: float  # the gain that a matching ticket may lack, by default
    is_loss: bool  # lower is better
    name: str  # the head of a column
    # The columns with the values at the early-stop step, within the dense network's budget, and at the end of training.
    early_stop: str
    budget: str
    final: str

    def value(self, value: float) -> str:
        """Format a value: an accuracy in per cent; empty for NaN."""
        if math.isnan(value):
            return ""
        if not self.is_loss:
            return f"{100 * value:.2f} %"
        # The # keeps zeros at the end, so that all losses have as many digits, and leaves a bare point.
        return formatted(value, ",.0f" if 1e4 <= abs(value) < 1e7 else "#.4g").removesuffix(".")

    def deviation(self, value: float) -> str:
        """Format a standard deviation of values, of accuracies in percentage points; empty for NaN."""
        return number(value, "#.2g") if self.is_loss else number(100 * value, ".2f")

    def change(self, difference: float) -> str:
        """Format a difference of two values with its sign, of accuracies in percentage points; empty for NaN."""
        return number(difference, "+#.3g") if self.is_loss else number(100 * difference, "+.2f")

    def difference(self, gain: float) -> str:
        """Format a gain as ticket − other, with its sign; empty for NaN.

        Gains of accuracy are in percentage points, and those of losses in per cent of the dense loss.
        """
        if self.is_loss:
            return "" if math.isnan(gain) else _percent(-gain)
        return number(100 * gain, "+.2f")

    @property
    def unit(self) -> str:
        """What follows a `difference` in a sentence; nothing for losses, whose difference has its per cent sign."""
        return "" if self.is_loss else " points"

    def interval(self, low: Any, high: Any) -> tuple[Any, Any]:
        """Order the ends of an interval of gains, or their names, as those of ticket − other."""
        return (high, low) if self.is_loss else (low, high)

    def in_words(self, *gains: float) -> list[str]:
        """Format gains for a sentence: in percentage points of accuracy, or in per cent of the dense loss."""
        return [_percent(-gain) for gain in gains] if self.is_loss else points(*gains)

    def bound(self, tolerance: float) -> str:
        """Format the bound beyond which the whole interval of ticket − dense of a matching ticket lies."""
        if not tolerance:
            return "0"
        return f"+{100 * tolerance:g} %" if self.is_loss else f"−{100 * tolerance:g} points"


ACCURACY = Metric(
    # The tolerance is that of Frankle et al. 2020, https://arxiv.org/abs/1912.05671.
    "accuracy", 0.002, False, "test accuracy",
    early_stop="early_stop_test_accuracy", budget="budget_test_accuracy", final="final_test_accuracy",
)  # fmt: skip
LOSS = Metric(
    "loss", 0.02, True, "test loss",
    early_stop="early_stop_test_loss", budget="budget_test_loss", final="final_test_loss",
)  # fmt: skip


def metric_of(rows: Any) -> Metric:
    """Choose the metric of a table of `lottery.statistics.results.table`: the loss if no network has an accuracy."""
    has_loss = LOSS.early_stop in rows and rows[LOSS.early_stop].notna().any()
    return LOSS if has_loss and rows[ACCURACY.early_stop].isna().all() else ACCURACY


def too_fine(tolerance: float | None, num: int) -> list[str]:
    """Warn if a tolerance of accuracy is finer than one test example of so many; 0 for an unknown number."""
    tolerance = ACCURACY.tolerance if tolerance is None else tolerance
    if not num or not 0 < tolerance < 1 / num:
        return []
    return [
        f"The tolerance of {tolerance:g} is finer than one test example (1 of {num:,}): a difference that small cannot "
        "be seen. Use more test examples or a larger tolerance."
    ]


def scored(rows: Any, metric: Metric) -> Any:
    """Replace losses by scores of which higher is better, in units of the mean loss of the dense networks.

    Differences of scores are gains.
    """
    if not metric.is_loss:
        return rows
    columns = [metric.early_stop, metric.budget, metric.final]
    size = of_dense(rows)[columns].mean().abs()
    # A loss of 0 has no parts: NaN, for which `sentences` has a reason, and not an infinite gain.
    scores = -rows[columns] / size.where(size != 0)
    return rows.assign(**scores)


def _percent(fraction: float) -> str:
    value = 100 * fraction
    return f"{formatted(value, '+.2f' if abs(value) < 100 else '+,.0f')} %"
