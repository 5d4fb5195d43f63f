"""Questions to a stored run by name: the tables and figures of `lottery analyze`, `lottery plot` and the report."""

from lottery.analysis import (
    accuracy,
    connectivity,
    costs,
    curves,
    distances,
    inputs,
    landscapes,
    layers,
    overlaps,
    pictures,
    survivors,
)
from lottery.analysis.record import Analysis


def _barriers(run):
    return connectivity.barriers(connectivity.points(run))


# The order of the report.
ANALYSES: dict[str, Analysis] = {
    "accuracy": accuracy.ACCURACY,
    "early_stop": accuracy.EARLY_STOP,
    "curves": curves.CURVES,
    "learning_curves": curves.LEARNING_CURVES,
    "layers": layers.LAYERS,
    "distance": distances.DISTANCE,
    "initial_weights": survivors.INITIAL_WEIGHTS,
    "degrees": layers.DEGREES,
    "inputs": inputs.INPUTS,
    "overlap": Analysis(
        overlaps.table,
        pictures.overlap,
        "Masks of replicates, or of runs, against each other and against chance.",
        columns=("overlap", "chance"),
        size=pictures.size,
        chapter="Masks",
        views=pictures.views,
        missing="The masks of one replicate have no others to be compared with.",
    ),
    "connectivity": Analysis(
        _barriers,
        None,
        "Error barriers between two networks trained from the same weights in two orders of the data.",
        columns=("ends", "highest", "barrier"),
        keys=("batch_norm", "step", "split"),
    ),
    "barrier": Analysis(
        connectivity.points,
        landscapes.barrier,
        "Error on the straight line between two networks.",
        chapter="Connectivity",
        views=landscapes.barrier_views,
        missing="Linear mode connectivity was not measured; `lottery analyze connectivity` does.",
    ),
    "instability": Analysis(
        _barriers,
        landscapes.instability,
        "Error barriers against density.",
        chapter="Connectivity",
        views=landscapes.instability_views,
    ),
    "costs": costs.COSTS,
}
