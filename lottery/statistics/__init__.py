"""What the numbers of a run say: results, intervals, verdicts and comparisons. Nothing here imports TensorFlow."""

from lottery.statistics import aggregates, comparison, intervals, metric, published, results, two_way, verdicts

__all__ = ["aggregates", "comparison", "intervals", "metric", "published", "results", "two_way", "verdicts"]
