"""The text beside a figure, plain or for LaTeX: of how many replicates it is, and what bars and bands mean."""

from lottery.grids import Table

# The bars and bands of a figure, by the name of their interval.
INTERVALS = {"range": "lowest to highest", "t": "95 % t interval for the mean"}

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "≥": r"$\geq$", }  # fmt: skip


def counted(points: Table) -> tuple[int, str]:
    """Return the most replicates of any mean of `style.spread`, and their number as text, such as ``"2 to 3"``.

    Means of no value do not count, unless there is nothing else.
    """
    known = points[points["replicates"] > 0]["replicates"]
    known = points["of"] if known.empty else known
    fewest, most = int(known.min()), int(known.max())
    return most, f"{most}" if fewest == most else f"{fewest} to {most}"


def replicates(points: Table, shape: str, interval: str = "range") -> str:
    """Say of how many replicates the means of `style.spread` are, and what their bars or bands are."""
    most, number = counted(points)
    if most == 1:
        return "One replicate (n = 1)."
    if not (points["replicates"] > 0).any():
        return f"{number} replicates."
    return f"Means of n = {number} replicates, {shape}: {INTERVALS[interval]}."


def latex(text: str) -> str:
    r"""Write a text as a LaTeX ``\caption{...}``."""
    escaped = "".join(_LATEX.get(letter, letter) for letter in text)
    return "\\caption{" + escaped.replace(r" \%", r"\,\%").replace("n = ", "$n$ = ") + "}"
