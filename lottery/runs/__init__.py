"""A run on disk, and what its numbers say. Nothing here imports TensorFlow."""

from lottery.runs import comparison, intervals, published, results, store, verdicts, verification

__all__ = ["comparison", "intervals", "published", "results", "store", "verdicts", "verification"]
