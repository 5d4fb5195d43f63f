"""Questions to a stored run by name: the tables and figures of `lottery analyze`, `lottery plot` and the report."""

from lottery.analysis import (
    accuracy,
    classes,
    connectivity,
    costs,
    curves,
    distances,
    inputs,
    layers,
    overlaps,
    speed,
    survivors,
)
from lottery.figures.record import Analysis

# In the order of the report.
ANALYSES: dict[str, Analysis] = {
    "accuracy": accuracy.ACCURACY,
    "speed": speed.SPEED,
    "early_stop": accuracy.EARLY_STOP,
    "classes": classes.CLASSES,
    "curves": curves.CURVES,
    "learning_curves": curves.LEARNING_CURVES,
    "layers": layers.LAYERS,
    "distance": distances.DISTANCE,
    "initial_weights": survivors.INITIAL_WEIGHTS,
    "degrees": layers.DEGREES,
    "inputs": inputs.INPUTS,
    "overlap": overlaps.OVERLAP,
    "connectivity": connectivity.CONNECTIVITY,
    "barrier": connectivity.BARRIER,
    "instability": connectivity.INSTABILITY,
    "costs": costs.COSTS,
}
