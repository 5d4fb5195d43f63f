"""What the numbers of a run say: results, intervals, verdicts and comparisons. Nothing here imports TensorFlow."""

from lottery.statistics import (
    aggregates,
    barriers,
    comparison,
    intervals,
    metric,
    power,
    published,
    results,
    sentences,
    two_way,
    verdicts,
)

__all__ = [
    "aggregates", "barriers", "comparison", "intervals", "metric", "power", "published", "results", "sentences",
    "two_way", "verdicts",
]  # fmt: skip
