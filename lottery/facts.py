"""What a page about a run is made of, read from its files once."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lottery import config, connectivity, contests, costs, layers, results, store, verdicts
from lottery.errors import LotteryError
from lottery.verdicts import Table


@dataclass(frozen=True)
class Facts:
    """A run, and its tables as far as they are asked for.

    Attributes:
        label: What it is called beside other runs.
        path: Its folder.
        experiment: Its experiment.
        environment: What it was begun with; see `lottery.environment.record`.
        rows: What `lottery.results.table` returns.
        tolerance: Accuracy that a matching ticket may lose, in [0, 1].
    """

    label: str
    path: Path
    experiment: config.Experiment
    environment: dict[str, Any]
    rows: Table
    tolerance: float

    @cached_property
    def summary(self) -> Table:
        """What `lottery.results.summary` returns."""
        return results.summary(self.rows, self.experiment.train.num_steps)

    @cached_property
    def judged(self) -> Table:
        """What `lottery.verdicts.judged` returns."""
        return verdicts.judged(self.rows, self.tolerance, self.word)

    @cached_property
    def costs(self) -> Table:
        """What `lottery.costs.table` returns."""
        return costs.table(self.path)

    @cached_property
    def layers(self) -> Table:
        """What `lottery.layers.table` returns."""
        return layers.table(self.path)

    @cached_property
    def paths(self) -> Table:
        """What `lottery.connectivity.points` returns; empty where connectivity was not measured."""
        return connectivity.points(self.path)

    @property
    def word(self) -> str:
        """What a ticket of the run can be, as `lottery.verdicts.goal` says."""
        return verdicts.goal(self.experiment)

    @property
    def controls(self) -> list[str]:
        """The branches that are compared with the ticket, in the order of the table."""
        return verdicts.controls(self.rows)

    @cached_property
    def own(self) -> Table:
        """The rows whose accuracies are on the run's own data: all but those of transfers."""
        return self.rows[~verdicts.transferred(self.rows)]


def gathered(runs: list[Path], tolerance: float = verdicts.TOLERANCE) -> list[Facts]:
    """Read runs.

    Args:
        runs: Their folders.
        tolerance: Accuracy that a matching ticket may lose, in [0, 1].

    Returns:
        The facts of each, in order, one that is named twice only once.

    Raises:
        LotteryError: One is no run, or has no complete round.
    """
    facts = []
    for label, path in contests.labelled(runs).items():
        rows = results.table(path)
        if rows.empty:
            raise LotteryError(f"There is nothing to report: no round of {str(path)!r} is complete yet.")
        experiment, environment = store.read_experiment(path), store.read_environment(path)
        facts.append(Facts(label, path, experiment, environment, rows, tolerance))
    return facts
