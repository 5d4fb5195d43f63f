"""A run on disk: its files, what is stored of each round, and whether it is all there and right."""

from lottery.runs import siblings, store, verification

__all__ = ["siblings", "store", "verification"]
