"""The runs that a page is about, each with its tables, which are read once."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lottery import config, plots
from lottery.analysis import costs
from lottery.errors import LotteryError
from lottery.runs import store
from lottery.statistics import comparison, results, verdicts
from lottery.statistics.metric import of_tickets
from lottery.statistics.verdicts import Judgement
from lottery.text_tables import Table


@dataclass(frozen=True)
class ReportedRun:
    """A run, and its tables, each made when it is first needed."""

    label: str  # its name beside other runs
    path: Path
    experiment: config.Experiment
    environment: dict[str, Any]  # the content of environment.json
    rows: Table  # of `lottery.statistics.results.table`
    tolerance: float | None  # the gain that a matching ticket may lack; None for that of the metric
    _read: dict[tuple[Any, ...], Table] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def judgement(self) -> Judgement:
        """The verdicts on its tickets."""
        return verdicts.of_run(self.path, self.rows, self.tolerance)

    @cached_property
    def summary(self) -> Table:
        """The table of `lottery.statistics.results.summary`."""
        return results.summary(self.rows)

    @cached_property
    def costs(self) -> Table:
        """The table of `lottery.analysis.costs.table`."""
        return costs.table(self.path)

    def table(self, kind: str, **options: Any) -> Table:
        """Return the table of a kind of figure, read once; see `lottery.plots.read`."""
        # All values must be hashable, so that several rounds come as a tuple.
        key = (kind, *options.items())
        if key not in self._read:
            self._read[key] = plots.read(self.path, kind, **options)
        return self._read[key]

    @property
    def pruned(self) -> Table:
        """The rows of its tickets, without those of the dense networks."""
        return of_tickets(self.rows[self.rows["round"] > 0])


def gathered(paths: list[Path], tolerance: float | None = None) -> list[ReportedRun]:
    """Read each run once, in order; raise `LotteryError` if a folder is no run, or has no complete round."""
    runs = []
    for label, path in comparison.labelled(paths).items():
        rows = results.table(path)
        if rows.empty:
            raise LotteryError(f"There is nothing to report: no round of {str(path)!r} is complete yet.")
        experiment, environment = store.read_experiment(path), store.read_environment(path)
        runs.append(ReportedRun(label, path, experiment, environment, rows, tolerance))
    return runs
