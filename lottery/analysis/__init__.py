"""What can be asked of a stored run, by name: the tidy tables behind the plots, the page and `lottery analyze`."""

from collections.abc import Callable
from pathlib import Path

from lottery.analysis import connectivity, costs, curves, distances, inputs, layers, overlaps, survivors
from lottery.runs.verdicts import Table

# From a run's folder to a data frame; further arguments are each function's own.
Analysis = Callable[..., Table]


def barriers(run: Path) -> Table:
    """Error barriers between the solutions that `lottery.pipeline.connecting.connect` has trained and measured.

    Args:
        run: The run's folder.

    Returns:
        What `lottery.analysis.connectivity.barriers` gives of its points; empty where nothing was measured.
    """
    return connectivity.barriers(connectivity.points(run))


ANALYSES: dict[str, Analysis] = {
    "curves": curves.table,
    "layers": layers.table,
    "degrees": layers.degrees,
    "survivors": survivors.table,
    "inputs": inputs.table,
    "distance": distances.table,
    "costs": costs.table,
    "overlap": overlaps.table,
    "connectivity": barriers,
}
