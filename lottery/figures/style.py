"""The style of figures: colours, markers and lines, the rows and means that they show and in words, and axes."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lottery.errors import LotteryError, unknown
from lottery.figures.record import NothingToDraw
from lottery.statistics import intervals
from lottery.text_tables import Table

BranchStyle = tuple[Any, str, Any]  # colour, marker, line

# The ticket, then the other branches: Okabe and Ito's colours, which colour-blind people can distinguish, and two
# greys. Each has its own marker and line style, which distinguish it in black and white.
STYLES: tuple[BranchStyle, ...] = (
    ("#0072B2", "o", "-"), ("#D55E00", "s", "--"), ("#009E73", "^", "-."), ("#CC79A7", "D", ":"),
    ("#E69F00", "v", (0, (5, 1))), ("#56B4E9", "P", (0, (3, 1, 1, 1))), ("#000000", "X", (0, (1, 1))),
    ("#B8A800", "<", (0, (7, 2, 1, 2))), ("#7F7F7F", ">", (0, (3, 3))), ("#8C510A", "*", (0, (5, 1, 1, 1, 1, 1))),
    ("#542788", "p", (0, (10, 3))), ("#A6611A", "h", (0, (1, 3))), ("#1B7837", "H", (0, (8, 1, 1, 1))),
    ("#E7298A", "8", (0, (2, 2))), ("#4D4D4D", "d", (0, (6, 3))), ("#3690C0", "1", (0, (4, 1, 2, 1))),
    ("#B2182B", "2", (0, (1, 2))), ("#66A61E", "3", (0, (12, 2))), ("#807DBA", "4", (0, (5, 2, 1, 2, 1, 2))),
    ("#BF812D", "x", (0, (3, 1))), ("#41AB5D", "+", (0, (9, 1, 3, 1))),
)  # fmt: skip

DENSITY = "density (fraction of prunable weights kept)"
MOST = 6  # rounds in one figure by default
CUT = "Bars that end at the edge of the axes continue beyond it."
# The bars and bands of a figure, by the name of their interval.
INTERVALS = {"range": "lowest to highest", "t": "95 % t interval for the mean"}


def chosen(rounds: Iterable[int], most: int) -> list[int]:
    """Choose rounds for a figure: at most so many, evenly apart, the first and the last among them."""
    there = sorted(set(rounds))
    places = np.linspace(0, len(there) - 1, min(most, len(there))).round().astype(int)
    return [int(there[place]) for place in places]


def in_order(num: int) -> list[BranchStyle]:
    """Return styles for hundreds of items in an order, such as rounds: from dark violet to green, lighter in grey."""
    from matplotlib import colormaps

    # The end of the colour map is a yellow that is invisible on white.
    colors = [colormaps["viridis"](0.85 * place / max(num - 1, 1)) for place in range(num)]
    several = len(STYLES)
    # Two lengths without a common divisor, so that a marker comes back with another line.
    return [(color, STYLES[at % several][1], STYLES[at % (several - 1)][2]) for at, color in enumerate(colors)]


def by_name(names: Iterable[str]) -> dict[str, BranchStyle]:
    """Return a style for each name that occurs: from `STYLES` if they are enough, otherwise from `in_order`."""
    different = dict.fromkeys(names)
    styles = STYLES if len(different) <= len(STYLES) else in_order(len(different))
    return dict(zip(different, styles, strict=False))


def new_or(ax: Any) -> Any:
    """Return the axes, or pyplot's current axes if None. Nothing else uses pyplot."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.gca()


def check(table: Table, why: str = "no round is complete yet") -> None:
    """Raise `NothingToDraw`, with the reason, if a table has no rows."""
    if len(table) == 0:
        raise NothingToDraw(f"There is nothing to plot: {why}.")


def only(table: Table, column: str, value: Any) -> Table:
    """Return the rows in which a column has a value; raise `LotteryError` if there are none."""
    check(table)
    values = list(dict.fromkeys(table[column]))
    if value not in values:
        if all(isinstance(known, str) for known in values):
            raise unknown(f"The {column.replace('_', ' ')} to plot", value, values)
        raise LotteryError(f"The {column} to plot must be one of {sorted(map(int, values))}, not {value!r}.")
    return table[table[column] == value]


def of_rounds(table: Table, rounds: Iterable[int] | None, most: int = MOST, column: str = "round") -> Table:
    """Return the rows of some rounds, by default of at most `most`, evenly apart; raise `LotteryError` if any lacks."""
    wanted = chosen(table[column], most) if rounds is None else list(rounds)
    for index in wanted:
        only(table, column, index)
    found = table[table[column].isin(wanted)]
    check(found, f"no {column} is chosen")
    return found


def of_weight(table: Table, weight: str | None) -> tuple[Table, str]:
    """Return the rows of a weight, by default of the first, and its name."""
    check(table)
    weight = table["weight"].iloc[0] if weight is None else weight
    return only(table, "weight", weight), str(weight)


def each_weight(table: Table) -> list[dict[str, str]]:
    """List the `views` of an analysis: a figure for each of at most eight weights, with the first and the last."""
    names = list(dict.fromkeys(table["weight"]))
    return [{"weight": names[place]} for place in chosen(range(len(names)), 8)]


def spread(table: Table, by: Sequence[str], column: str, interval: str = "range") -> Table:
    """Average a column over replicates, grouped by columns of which the last is the x axis, and is sorted.

    Returns:
        A data frame with the columns of `by`, ``mean``, ``low`` and ``high`` (the ends of the bar by `INTERVALS`),
        ``replicates`` (the number of values that are not NaN), ``of`` (the number of values) and, if the table has
        them, the mean ``density``, and ``bound``, true if any is. Where ``finite`` is false, as of one value, the
        interval is infinite; it then has no length here, and no bar.
    """
    if interval not in INTERVALS:
        raise unknown("The interval of a plot", interval, INTERVALS)
    measures = {"mean": "mean", "low": "min", "high": "max", "replicates": "count", "of": "size"}
    columns = {name: (column, measure) for name, measure in measures.items()}
    if "density" in table and "density" not in by:
        columns["density"] = ("density", "mean")
    if "bound" in table:
        columns["bound"] = ("bound", "any")
    groups = table.groupby(list(by), as_index=False, sort=False)
    found = groups.agg(**columns)
    if interval == "t":
        lists = groups[column].agg(lambda values: values.dropna().tolist())[column]
        size = intervals.unit_of(table[column])
        found[["low", "high"]] = [
            intervals.mean_interval(values, unit=size)[1:] if values else (0.0, 0.0) for values in lists
        ]
    ends = found[["low", "high"]].astype(float)
    infinite = ends.abs() == float("inf")
    ends = ends.mask(infinite, found["mean"], axis=0)
    # The mean of equal values may be off by a unit in the last place.
    low, high = ends["low"].clip(upper=found["mean"]), ends["high"].clip(lower=found["mean"])
    found = found.assign(low=low, high=high, finite=~infinite.any(axis=1))
    return found.sort_values(by[-1], kind="stable", ignore_index=True)


def counted(points: Table) -> tuple[int, str]:
    """Return the most replicates of any mean of `spread`, and their number as text, such as ``"2 to 3"``.

    Means of no value do not count, unless there is nothing else.
    """
    known = points[points["replicates"] > 0]["replicates"]
    known = points["of"] if known.empty else known
    fewest, most = int(known.min()), int(known.max())
    return most, f"{most}" if fewest == most else f"{fewest} to {most}"


def replicates(points: Table, shape: str, interval: str = "range") -> str:
    """Say of how many replicates the means of `spread` are, and what their bars or bands are."""
    most, number = counted(points)
    if most == 1:
        return "One replicate (n = 1)."
    if not (points["replicates"] > 0).any():
        return f"{number} replicates."
    text = f"Means of n = {number} replicates, {shape}: {INTERVALS[interval]}."
    if points["finite"].all():
        return text
    return f"{text} Where no bar is drawn, the interval is infinite: there is one value, or two equal values."


def thick(width: float) -> float:
    """Return the width of a line in points, by the style sheet; `width` is that on the screen."""
    from matplotlib import rcParams

    # 1.5 points are the width of Matplotlib, and so that on the screen.
    return width * rcParams["lines.linewidth"] / 1.5


def letters(lines: float = 1) -> float:
    """Return the height of so many lines of text in inches, by the style sheet."""
    from matplotlib import rcParams

    return 1.35 * lines * rcParams["font.size"] / 72


def aside(ax: Any, place: int, num: int, num_x: int) -> Any:
    """Shift all lines but the first a little to the side, by place, so that equal points do not hide each other."""
    from matplotlib.transforms import ScaledTranslation

    # Neighbours are at most 3 points (1/72 inch) apart, and closer the more places the x axis has.
    step = min(3.0, 150 / num_x / num) * (1 if place % 2 else -1)
    return ScaledTranslation(step * ((place + 1) // 2) / 72, 0, ax.figure.dpi_scale_trans)


def bars(ax: Any, x: Any, part: Table, look: BranchStyle, label: str, first: bool = False, **options: Any) -> Any:
    """Draw means with the bars of `spread`, the first of several lines a little stronger."""
    color, marker, line = look
    size, wide, thin, above = (4, 1.6, 0.9, 3) if first else (3.5, 0.9, 0.6, 2)
    ends = None
    if part["replicates"].max() > 1:
        # Without a bar, as one without length would look most certain.
        # In arrays: some versions of Matplotlib warn of a series of a single value.
        ends = [(part["mean"] - part[end]).abs().where(part["finite"]).to_numpy() for end in ("low", "high")]
    return ax.errorbar(
        x, part["mean"], yerr=ends, color=color, marker=marker, markersize=thick(size), linestyle=line,
        linewidth=thick(wide), elinewidth=thick(thin), capsize=thick(2), label=legible(label), zorder=above, **options,
    )  # fmt: skip


def legible(name: str) -> str:
    """Return a label that a legend shows: Matplotlib leaves out those that begin with an underscore."""
    return f" {name}" if name.startswith("_") else name


def renamed(names: Iterable[str], labels: Mapping[str, str] | None) -> dict[str, str]:
    """Return what a legend calls each branch, by name; raise `LotteryError` if a label is for another name."""
    known = list(names)
    for name in labels or {}:
        if name not in known:
            raise unknown("The branch to label", name, known)
    return {name: (labels or {}).get(name, name) for name in known}


def bounds(ax: Any, points: Table, looks: Mapping[str, BranchStyle], labels: Mapping[str, str] | None) -> None:
    """Draw the means of each branch against density with bars; those that are lower bounds have an open marker.

    These have ``bound`` in a column. `labels` rename branches in the legend, which explains the marker.
    """
    called = renamed(looks, labels)
    for place, (branch, look) in enumerate(looks.items()):
        part = points[points["branch"] == branch]
        shifted = ax.transData + aside(ax, place, len(looks), points["round"].nunique())
        bars(ax, part["density"], part, look, called[branch], first=place == 0, transform=shifted)
        bound = part[part["bound"]]
        if len(bound):
            ax.plot(
                bound["density"], bound["mean"], color=look[0], marker=look[1], markersize=thick(5), linestyle="none",
                markerfacecolor="white", zorder=4 if place else 5, label="_open", transform=shifted,
            )  # fmt: skip
    if points["bound"].any():
        ax.errorbar([], [], color="black", marker="o", markerfacecolor="white", linestyle="none", label="lower bound")
    density_axis(ax, points["density"])


def caption_of_bounds(points: Table, what: str, why: str, shape: str, interval: str) -> str:
    """Write the text beside a figure of `bounds`: what it shows, and why a marker may be open."""
    sentences = [what, replicates(points, shape, interval)]
    if points["bound"].any():
        sentences.append(f"Open markers are lower bounds: {why}.")
    if points["low"].min() < 0:
        sentences.append(CUT)
    return " ".join(sentences)


def reference(ax: Any, y: float, label: str = "dense", line: str = "--") -> Any:
    """Draw a thin grey line across the axes at what others are compared with, and return it."""
    return ax.axhline(y, color="0.35", linewidth=thick(1), linestyle=line, label=label, zorder=1)


def band(ax: Any, x: Any, part: Table, look: BranchStyle, label: str, **options: Any) -> None:
    """Draw a line of means with a band between the ends of `spread`, and a few markers evenly apart."""
    color, marker, line = look
    every = max(1, len(part) // 8)  # points for each marker
    options = {"linestyle": line, "linewidth": thick(1.2), "markersize": thick(4), "markevery": every} | options
    step = {"steps-post": "post"}.get(options.get("drawstyle", ""))
    ax.plot(x, part["mean"], color=color, marker=marker, label=label, **options)
    if part["replicates"].max() > 1:
        ax.fill_between(x, part["low"], part["high"], color=color, alpha=0.15, linewidth=0, step=step)


def by_round(points: Table) -> Iterator[tuple[str, Table, BranchStyle]]:
    """Yield a label, the rows and a style of each round of a table, in order."""
    indices = sorted(set(points["round"]))
    for index, look in zip(indices, in_order(len(indices)), strict=True):
        line = points[points["round"] == index].reset_index(drop=True)
        yield f"round {index}, density {line['density'].mean():.3g}", line, look


def view(points: Table, full: bool = False, is_loss: bool = False) -> tuple[float, float]:
    """Return limits that give the first branch, with its bars, at least two fifths of the height, unless `full`.

    Accuracies may leave it at the bottom; losses, of which lower is better, at the top.
    """
    known = points[points["mean"].notna()]
    main = known if full else known[known["branch"] == points["branch"].iloc[0]]
    main = known if main.empty else main
    # Two fifths of the height for the first branch leave one and a half times its own for what is worse.
    low, high = 0.0, 1.0
    if is_loss and len(known):
        low, high = known["low"].min(), main["high"].max()
        ends = known[["high", "mean"]].to_numpy()
        high = ends[ends <= high + 1.5 * (high - low)].max(initial=high)
    elif len(known):
        # The bar of an accuracy may reach beyond [0, 1].
        low, high = max(main["low"].min(), 0), min(known["high"].max(), 1)
        ends = known[["low", "mean"]].clip(lower=0).to_numpy()
        low = ends[ends >= low - 1.5 * (high - low)].min(initial=low)
    # At least a fiftieth, of the losses or of 1, so that a difference of little looks small.
    least = max(abs(high) / 50, 1e-30) if is_loss else 0.02
    middle, half = (low + high) / 2, max(high - low, least) / 2
    if not is_loss:
        middle = min(max(middle, half), 1 - half)
    return middle - 1.1 * half, middle + 1.1 * half


def density_axis(ax: Any, densities: Any) -> None:
    """Make a logarithmic x axis with the dense network on the left, as in the papers."""
    ax.set_xscale("log")
    # Limits from high to low turn the axis round.
    ax.set_xlim(densities.max() * 1.15, densities.min() / 1.15)
    log_ticks(ax.xaxis)
    ax.set_xlabel(DENSITY)


def cost_axis(ax: Any, costs: Any, label: str) -> None:
    """Make a logarithmic x axis of what was spent, the least on the left."""
    from matplotlib.ticker import EngFormatter

    ax.set_xscale("log")
    ax.set_xlim(costs.min() / 1.3, costs.max() * 1.3)
    log_ticks(ax.xaxis)
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.set_xlabel(label)


def log_ticks(axis: Any) -> None:
    """Set at least three ticks between the limits of a logarithmic axis, whose labels have room."""
    from matplotlib.ticker import LogLocator

    axis.set_major_locator(LogLocator(subs=log_places(*sorted(axis.get_view_interval()))))
    plain(axis)


def log_places(low: float, high: float) -> list[float]:
    """Return where a logarithmic axis has ticks between 1 and 10: at 1, 2 and 5, farther apart, or closer."""
    every = range(1, 10)
    halves = [num / 2 for num in range(2, 20)]
    tenths = [num / 10 for num in range(10, 100)]
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    # From few ticks to many, so that an axis has no more than it needs.
    for least, places in (5, [1]), (6, [1, 3]), (3, [1, 2, 5]), (3, [1, 2, 3, 5, 7]), (3, every), (3, halves):
        if sum(low <= place * 10.0**power <= high for place in places for power in powers) >= least:
            return list(places)
    return tenths


def from_zero(ax: Any, high: float, low: float = 0) -> None:
    """Make a y axis from 0, or from what is below, to the highest end, with room for whole marks at both."""
    ax.set_ylim(min(0, low) - 0.03 * high, 1.06 * high)


def whole_ticks(axis: Any) -> None:
    """Set ticks at whole numbers only, also where there is one of them."""
    axis.get_major_locator().set_params(integer=True, min_n_ticks=1)


def plain(axis: Any) -> None:
    """Label ticks with plain numbers such as 0.05, not with powers of ten."""
    axis.set_major_formatter("{x:g}")
    # Without this, a short logarithmic axis labels its minor ticks, too.
    axis.set_minor_formatter("")


def contrasting(color: Any) -> str:
    """Return black or white, the one that is readable on a colour (red, green, blue in [0, 1])."""
    # The weights are those of luma in ITU-R BT.601.
    red, green, blue = color[:3]
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
