"""One HTML page about runs."""

from lottery.report.page import write

__all__ = ["write"]
