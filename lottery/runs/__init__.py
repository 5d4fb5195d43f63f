"""A run on disk, and what its numbers say. Nothing here imports TensorFlow."""

from lottery.runs import (
    aggregates,
    comparison,
    intervals,
    published,
    results,
    store,
    two_way,
    verdicts,
    verification,
)

__all__ = [
    "aggregates",
    "comparison",
    "intervals",
    "published",
    "results",
    "store",
    "two_way",
    "verdicts",
    "verification",
]
