"""Numbers, differences, intervals and durations as short texts, for the terminal and for the report."""

from typing import Any


def number(value: float | None, form: str = ".4f") -> str:
    """Format a number: empty for None and NaN, and with an exponent if it is too small for four decimals."""
    if value is None or value != value:
        return ""
    return f"{value:.1e}" if form == ".4f" and 0 < abs(value) < 5e-5 else f"{value:{form}}"


def signed(value: float) -> str:
    """Format a difference with its sign; zero is +0.0000."""
    return f"{round(value, 4) + 0.0:+.4f}"


def ends(low: float, high: float, form: str = "+.4f") -> str:
    """Format the ends of an interval."""
    return f"{low:{form}} to {high:{form}}" if abs(low) != float("inf") else "not known"


def duration(seconds: float) -> str:
    """Format a time in hours and minutes, in minutes and seconds, or in seconds."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"


def replicates(num: int) -> str:
    """Format a number of replicates."""
    return "1 replicate" if num == 1 else f"{num} replicates"


def plain(value: Any) -> str:
    """Format any value of a record."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return "; ".join(f"{key}: {plain(part)}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
