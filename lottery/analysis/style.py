"""How figures look: colours, markers and lines, axes, legends, what is said of replicates. No TensorFlow."""

import hashlib
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any
from xml.sax.saxutils import quoteattr

from lottery.analysis.record import NothingToDraw
from lottery.errors import LotteryError, unknown
from lottery.runs import intervals, results
from lottery.runs.results import Table

Style = tuple[Any, str, Any]  # colour, marker, line


# The ticket, then the other branches: Okabe and Ito's colours, which the colour-blind can tell apart, and two greys; a
# marker and a line style each, so that they can be told apart in print as well.
STYLES: tuple[Style, ...] = (
    ("#0072B2", "o", "-"), ("#D55E00", "s", "--"), ("#009E73", "^", "-."), ("#CC79A7", "D", ":"),
    ("#E69F00", "v", (0, (5, 1))), ("#56B4E9", "P", (0, (3, 1, 1, 1))), ("#000000", "X", (0, (1, 1))),
    ("#B8A800", "<", (0, (7, 2, 1, 2))), ("#7F7F7F", ">", (0, (3, 3))), ("#8C510A", "*", (0, (5, 1, 1, 1, 1, 1))),
    ("#542788", "p", (0, (10, 3))), ("#A6611A", "h", (0, (1, 3))),
)  # fmt: skip


# What bars and bands can be, and how the title calls them.
INTERVALS = {"range": "lowest to highest", "t": "95 % t interval for the mean"}


DENSITY = "density (fraction of prunable weights kept)"


NO_ROUND = "no round is complete yet"


MOST = 6  # rounds in one figure, unless they are named


def in_order(num: int) -> list[Style]:
    """Styles for things that have an order, such as rounds: from dark violet to green, ever lighter in grey.

    Args:
        num: How many.

    Returns:
        Colour, marker and line of each; marker and line together differ up to 132.
    """
    from matplotlib import colormaps

    # Not up to its end, which is a yellow that cannot be seen on white.
    places = [0.85 * place / max(num - 1, 1) for place in range(num)]
    several = len(STYLES)
    return [
        (colormaps["viridis"](place), STYLES[index % several][1], STYLES[index % (several - 1)][2])
        for index, place in enumerate(places)
    ]


def by_name(names: Sequence[str]) -> dict[str, Style]:
    """A style for each of some names, in order: `STYLES` while they last, otherwise `in_order`."""
    styles = STYLES if len(names) <= len(STYLES) else in_order(len(names))
    return dict(zip(names, styles, strict=False))


def new_or(ax: Any) -> Any:
    """The axes, or pyplot's current ones if None: the only place that touches pyplot."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.gca()


def check(table: Table, why: str = NO_ROUND) -> None:
    """Raise `NothingToDraw`, with the reason, if a table has no rows."""
    if len(table) == 0:
        raise NothingToDraw(f"There is nothing to plot: {why}.")


def only(table: Table, column: str, value: Any) -> Table:
    """The rows in which a column has a value.

    Raises:
        LotteryError: No row has it.
    """
    there = list(dict.fromkeys(table[column]))
    if value not in there:
        if all(isinstance(one, str) for one in there):
            raise unknown(f"The {column.replace('_', ' ')} to plot", value, there)
        raise LotteryError(f"The {column} to plot: received {value!r}, the table has {sorted(map(int, there))}.")
    return table[table[column] == value]


def of_rounds(table: Table, rounds: Iterable[int] | None, most: int = MOST, column: str = "round") -> Table:
    """The rows of some rounds: those asked for, or at most so many, evenly, the first and the last among them.

    Raises:
        LotteryError: A round that was asked for is not in the table.
    """
    wanted = results.chosen(table[column], most) if rounds is None else list(rounds)
    for index in wanted:
        only(table, column, index)
    return table[table[column].isin(wanted)]


def of_weight(table: Table, weight: str | None) -> tuple[Table, str]:
    """The rows of a weight, by default the first, and its name."""
    check(table)
    weight = table["weight"].iloc[0] if weight is None else weight
    return only(table, "weight", weight), str(weight)


def some_weights(table: Table, most: int = 8) -> list[str]:
    """At most so many of the weights of a table: the first and the last, and some between."""
    names = list(dict.fromkeys(table["weight"]))
    return [names[place] for place in results.chosen(range(len(names)), most)]


def spread(table: Table, by: Sequence[str], column: str, interval: str = "range") -> Table:
    """Mean over replicates and the ends of its bar.

    Args:
        table: A tidy table.
        by: The columns that stay; the last is what runs along the x axis, and is sorted.
        column: What is averaged.
        interval: A key of `INTERVALS`.

    Returns:
        A data frame with the columns of `by`, ``mean``, ``low``, ``high``, ``replicates`` (how many values are not
        NaN), ``of`` (how many there are) and, if the table has one, the mean ``density``. An interval that is infinite,
        as one value's is, has no length here.

    Raises:
        LotteryError: The interval is unknown.
    """
    if interval not in INTERVALS:
        raise unknown("The interval of a plot", interval, INTERVALS)
    measures = {"mean": "mean", "low": "min", "high": "max", "replicates": "count", "of": "size"}
    what = {name: (column, measure) for name, measure in measures.items()}
    if "density" in table and "density" not in by:
        what["density"] = ("density", "mean")
    groups = table.groupby(list(by), as_index=False, sort=False)
    found = groups.agg(**what)
    if interval == "t":
        lists = groups[column].agg(lambda values: values.dropna().tolist())[column]
        every = [intervals.mean_interval(values) if values else (0.0, 0.0, 0.0) for values in lists]
        found = found.assign(low=[one[1] for one in every], high=[one[2] for one in every])
    ends = found[["low", "high"]].astype(float)
    ends = ends.where(ends.abs() < float("inf"), found["mean"], axis=0)
    # The mean of equal values may be off by a unit in the last place.
    low, high = ends["low"].clip(upper=found["mean"]), ends["high"].clip(lower=found["mean"])
    return found.assign(low=low, high=high).sort_values(by[-1], kind="stable", ignore_index=True)


def said(points: Table, what: str, interval: str = "range") -> str:
    """What a title says of replicates: how many the mean is of where there is one, and what its bars or band are."""
    known = points[points["replicates"] > 0]["replicates"]
    if known.empty:
        return "one replicate" if points["of"].max() == 1 else f"{points['of'].max()} replicates"
    fewest, most = int(known.min()), int(known.max())
    if most == 1:
        return "one replicate"
    return f"mean of {most if fewest == most else f'{fewest} to {most}'} replicates, {what}: {INTERVALS[interval]}"


def aside(ax: Any, place: int, num: int, num_x: int) -> Any:
    """A shift for the lines of such a place among several, lest equal points hide one another: the first stays.

    It is at most 3 points (1/72 inch) from one to the next; with `num_x` places on the x axis, each stays nearest its.
    """
    from matplotlib.transforms import ScaledTranslation

    step = min(3.0, 150 / num_x / num) * (1 if place % 2 else -1)
    return ScaledTranslation(step * ((place + 1) // 2) / 72, 0, ax.figure.dpi_scale_trans)


def bars(ax: Any, x: Any, part: Table, style: Style, label: str, first: bool = False, **options: Any) -> Any:
    """Means with their bars (see `spread`), the first of several a little stronger."""
    color, marker, line = style
    return ax.errorbar(
        x, part["mean"],
        yerr=[part["mean"] - part["low"], part["high"] - part["mean"]] if part["replicates"].max() > 1 else None,
        color=color, marker=marker, markersize=4 if first else 3.5, linestyle=line, linewidth=1.6 if first else 0.9,
        elinewidth=0.9 if first else 0.6, capsize=2, label=label, zorder=3 if first else 2, **options,
    )  # fmt: skip


def band(ax: Any, x: Any, part: Table, style: Style, label: str, **options: Any) -> None:
    """A line of means with a band between the ends of `spread`; a few markers, evenly apart to the eye."""
    color, marker, line = style
    options = {"linestyle": line, "linewidth": 1.2, "markersize": 4, "markevery": 0.12} | options
    step = {"steps-post": "post"}.get(options.get("drawstyle", ""))
    ax.plot(x, part["mean"], color=color, marker=marker, label=label, **options)
    if part["replicates"].max() > 1:
        ax.fill_between(x, part["low"], part["high"], color=color, alpha=0.15, linewidth=0, step=step)


def by_round(points: Table) -> list[tuple[int, Table, Style]]:
    """Each round of a table, in order, with its rows and a style."""
    there = sorted(set(points["round"]))
    rounds = zip(there, in_order(len(there)), strict=True)
    return [(int(index), points[points["round"] == index].reset_index(drop=True), style) for index, style in rounds]


def view(ax: Any, points: Table, full: bool = False) -> float:
    """Give accuracies of the first branch of a spread, with its bars, two fifths of the height or more, unless full.

    Returns:
        The accuracy at the bottom.
    """
    ax.ticklabel_format(axis="y", useOffset=False)
    known = points[points["mean"].notna()]
    main = known if full else known[known["branch"] == points["branch"].iloc[0]]
    main = known if main.empty else main
    # A bar may reach beyond what an accuracy can be, and no accuracy may be known.
    low, high = (max(main["low"].min(), 0), min(known["high"].max(), 1)) if len(known) else (0, 1)
    deepest = low - 1.5 * (high - low)
    ends = known[["low", "mean"]].clip(lower=0).to_numpy()
    low = min(low, ends[ends >= deepest].min(initial=low))
    # A fiftieth at least, lest a difference of a few examples look like one that matters.
    middle, half = (low + high) / 2, max(high - low, 0.02) / 2
    middle = min(max(middle, half), 1 - half)
    ax.set_ylim(middle - 1.1 * half, middle + 1.1 * half)
    return middle - 1.1 * half


def density_axis(ax: Any, densities: Any) -> None:
    """A logarithmic x axis with the dense network on the left, as the papers draw it."""
    ax.set_xscale("log")
    ax.set_xlim(densities.max() * 1.15, densities.min() / 1.15)
    log_ticks(ax.xaxis)
    ax.set_xlabel(DENSITY)


def log_ticks(axis: Any) -> None:
    """Ticks of a logarithmic axis between its limits, three or more: at 1, 2 and 5, or finer where that is too few."""
    from matplotlib.ticker import LogLocator

    low, high = sorted(axis.get_view_interval())
    for subs in ((1, 2, 5), range(1, 10), [one / 2 for one in range(2, 20)], [one / 10 for one in range(10, 100)]):
        locator = LogLocator(subs=subs)
        if sum(low <= place <= high for place in locator.tick_values(low, high)) > 2:
            break
    axis.set_major_locator(locator)
    plain(axis)


def plain(axis: Any) -> None:
    """Ticks as plain numbers: 0.05, not a power of ten."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def finish(ax: Any, title: str) -> Any:
    """A small title, a faint grid, and a legend beside the axes, where it cannot lie on a curve or on a bar."""
    ax.set_title(title, fontsize=9)
    ax.grid(alpha=0.25, linewidth=0.6)
    _, labels = ax.get_legend_handles_labels()
    columns = 1 + "\n".join(labels).count("\n") // 25
    ax.legend(frameon=False, fontsize=8, ncols=columns, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0)
    return ax


def contrasting(color: Any) -> str:
    """Black or white, whichever can be read on a colour (red, green, blue in [0, 1])."""
    red, green, blue = color[:3]
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def as_svg(figure: Any, label: str) -> str:
    """A figure as SVG to be put into an HTML page: small, the same bits each time, and its ids like no other figure's.

    Args:
        figure: A Matplotlib figure.
        label: What a screen reader says of it.

    Returns:
        One ``<svg>`` element: no XML declaration, no metadata, no link to anywhere, text as text in the page's
        sans-serif font, lengths in points to two places.
    """
    text = saved(figure, "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(
        r'="([^"]*)"', lambda found: f'="{_rounded(found[1])}"' if "base64" not in found[1] else found[0], text
    )
    text = re.sub(r">\s+<", "><", text).strip()
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r"(?:'[^'\"]*', )+sans-serif", "sans-serif", text)
    text = text.replace("xlink:href", "href").replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    names = dict.fromkeys(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    # Matplotlib gives the same names in every figure; equal figures alone may share theirs.
    salt = "f" + hashlib.sha256((label + text).encode()).hexdigest()[:8]
    ids = {name: f"{salt}-{place}" for place, name in enumerate(names)}
    text = re.sub(r' id="([^"]*)"', lambda found: f' id="{ids[found[1]]}"' if found[1] in ids else "", text)
    text = re.sub(r'(href="#|url\(#)([^")]+)', lambda found: found[1] + ids[found[2]], text)
    return text.replace("<svg ", f'<svg role="img" aria-label={quoteattr(label)} ', 1)


def saved(figure: Any, ending: str) -> bytes:
    """A figure as a file of a kind (png, svg, pdf), the same bits each time: without the date."""
    from matplotlib import rc_context

    nothing = {"svg": ("Date", "Creator", "Format", "Type"), "pdf": ("CreationDate",)}.get(ending, ())
    picture = io.BytesIO()
    # Images stay of their own size, each, so that they are small and their pixels sharp.
    settings: Any = {"svg.hashsalt": "lottery", "svg.fonttype": "none", "image.composite_image": False}
    with rc_context(settings):
        figure.savefig(picture, format=ending, dpi=150, metadata=dict.fromkeys(nothing) or None)
    return picture.getvalue()


def _rounded(attribute: str) -> str:
    short = re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), attribute)
    return " ".join(short.split())
