"""What a paper found, looked for in the rows of a run."""

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

from lottery import store, verdicts
from lottery.verdicts import Table

# What was measured, and whether that is what was found; None where the rows do not have what it takes to say.
Measured = tuple[str, bool | None]
# From the rows of `lottery.results.table`.
Finding = Callable[[Table], Measured]
MISSING = "not in this run"
_LAST_PLACE = 1e-9
_FIFTH = 0.79  # what a round of a fifth leaves is more than this


def ladder(pruned: Iterable[tuple[int, float]], num_rounds: int, held: int = 0) -> list[int]:
    """How many weights are left after each round: every group loses its rate of its survivors, rounded half to even.

    Args:
        pruned: Size and rate of each group that is ranked together.
        num_rounds: Rounds after the dense one.
        held: Prunable weights that are never pruned.
    """
    left, totals = list(pruned), []
    for _ in range(num_rounds + 1):
        totals.append(sum(size for size, _ in left) + held)
        left = [(size - round(Fraction(str(rate)) * size), rate) for size, rate in left]
    return totals


def kept(num_rounds: int, *allowed: Sequence[int]) -> Finding:
    """Whether the survivors of every round are those of a ladder.

    Args:
        num_rounds: Rounds after the dense one that a run needs for a verdict; what it has beyond them counts as well.
        allowed: Survivors of rounds 0, 1, ..., once for each way in which the paper can be read.
    """

    def measure(rows: Table) -> Measured:
        counts = rows[rows["branch"] == store.TICKET].groupby("round")["num_kept"].unique()
        seen = {index: sorted(map(int, values)) for index, values in counts.items() if index < len(allowed[0])}
        fit = [one for one in allowed if all(values == [one[index]] for index, values in seen.items())]
        if not fit:
            wrong = next(index for index, values in seen.items() if values != [allowed[0][index]])
            return f"round {wrong}: {', '.join(map(str, seen[wrong]))}, not {allowed[0][wrong]}", False
        absent = [index for index in range(num_rounds + 1) if index not in seen]
        if absent:
            return _missing(store.TICKET, absent), None
        return f"{fit[0][0]} to {fit[0][max(seen)]}, all equal", True

    return measure


def accuracy(index: int, value: float, tolerance: float) -> Finding:
    """Whether the tickets' mean test accuracy in a round is near a number."""

    def measure(rows: Table) -> Measured:
        mean = rows[(rows["branch"] == store.TICKET) & (rows["round"] == index)][verdicts.MEASURE].mean()
        if mean != mean:
            return _missing(store.TICKET, [index]), None
        return f"{mean:.4f}", bool(abs(mean - value) <= tolerance + _LAST_PLACE)

    return measure


def better(least: float, *rounds: int, than: str = "dense") -> Finding:
    """Whether the mean of ticket less dense, or ticket less control, is at least so much in each of the rounds."""

    def measure(rows: Table) -> Measured:
        if than != "dense" and than not in set(rows["branch"]):
            return _missing(than, rounds), None
        found = verdicts.differences(rows, against=than).set_index("round")["mean"]
        return _at_least(found[found.index.isin(rounds)], least, [one for one in rounds if one not in found], than)

    return measure


def better_between(low: float, high: float, least: float) -> Finding:
    """Whether the mean of ticket less dense is at least so much at all densities between two.

    It passes only once a run has come so far that one more round, of a fifth, would be below the lower one.
    """

    def measure(rows: Table) -> Measured:
        found = verdicts.differences(rows).set_index("round")
        inside = found[found["density"].between(low, high)]["mean"]
        ended = len(inside) and (found["density"] < low / _FIFTH).any()
        return _at_least(inside, least, [] if ended else [f"at density {low:g}"], "dense")

    return measure


def _at_least(found: Any, least: float, absent: Sequence[Any], than: str) -> Measured:
    failed = bool((found < least - _LAST_PLACE).any())
    if absent and not failed:
        return _missing(than if than != "dense" else store.TICKET, absent), None
    where = f" at the least (round {found.idxmin()})" if len(found) > 1 else ""
    return f"{found.min():+.4f}{where}", not failed


def sooner(index: int, least: float, than: str = "dense") -> Finding:
    """Whether the mean early-stop step of dense, or of a control, is at least so many times that of the ticket."""

    def measure(rows: Table) -> Measured:
        both = _steps(rows, index, than)
        if both.empty:
            return _missing(store.TICKET if than == "dense" else than, [index]), None
        other, ticket = both.mean()
        times = other / max(ticket, 1)
        return f"{times:.2f} times ({ticket:.0f} and {other:.0f})", bool(times >= least)

    return measure


def sooner_in_each(index: int) -> Finding:
    """Whether the early-stop step of every replicate's ticket is before that of its dense network."""

    def measure(rows: Table) -> Measured:
        both = _steps(rows, index, "dense")
        if both.empty:
            return _missing(store.TICKET, [index]), None
        num = int((both["ticket"] < both["other"]).sum())
        return f"in {num} of {len(both)}", num == len(both)

    return measure


def sooner_between(low: float, high: float) -> Finding:
    """Whether the mean early-stop step of tickets is before that of dense at all densities between two.

    It passes as late as `better_between` does.
    """

    def measure(rows: Table) -> Measured:
        tickets = rows[rows["branch"] == store.TICKET].groupby("round")[["density", "early_stop_step"]].mean()
        inside = tickets[tickets["density"].between(low, high) & (tickets.index > 0)]["early_stop_step"]
        if inside.empty or 0 not in tickets.index:
            return _missing(store.TICKET, [f"at density {low:g}"]), None
        dense = float(tickets["early_stop_step"][0])
        failed = bool(inside.max() >= dense)
        if not failed and not (tickets["density"] < low / _FIFTH).any():
            return _missing(store.TICKET, [f"at density {low:g}"]), None
        return f"{inside.max():.0f} at the latest, and {dense:.0f}", not failed

    return measure


def _steps(rows: Table, index: int, than: str) -> Table:
    """Early-stop steps by replicate, in the columns ``other`` and ``ticket``, where both are there."""
    import pandas as pd

    def of(branch: str, at: int) -> Any:
        return rows[(rows["branch"] == branch) & (rows["round"] == at)].set_index("replicate")["early_stop_step"]

    other = of(store.TICKET, 0) if than == "dense" else of(than, index)
    return pd.DataFrame({"other": other, "ticket": of(store.TICKET, index)}).dropna()


def _missing(branch: str, rounds: Sequence[Any]) -> str:
    through = len(rounds) > 2 and list(rounds) == list(range(rounds[0], rounds[-1] + 1))
    listed = f"{rounds[0]} to {rounds[-1]}" if through else ", ".join(map(str, rounds))
    return f"{MISSING}: {branch}, {listed if isinstance(rounds[0], str) else f'round {listed}'}"
