"""The style of figures: style sheets, colours, markers and lines, axes, files, and SVG for a page."""

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from xml.sax.saxutils import quoteattr

from lottery.errors import LotteryError, unknown
from lottery.figures.captions import INTERVALS
from lottery.figures.record import NothingToDraw
from lottery.statistics import intervals, results
from lottery.statistics.results import Table

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


class Sheet(NamedTuple):
    """A style sheet: where a figure is shown decides its size."""

    width: float  # inches
    narrowest: float  # inches in which labels and legends leave room
    dpi: int  # of a PNG
    settings: dict[Any, Any]  # of Matplotlib


_EVERY: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.fontsize": "small",
    "axes.titlesize": "medium",
}

SHEETS: dict[str, Sheet] = {
    "screen": Sheet(7.2, 4.5, 150, _EVERY),
    # As wide as the text of most papers, in letters that are as large as theirs in a footnote. Both fonts come with
    # Matplotlib, so that every machine draws the same.
    "paper": Sheet(5.5, 3, 300, _EVERY | {
        "font.family": ["STIXGeneral", "DejaVu Sans"], "font.size": 9, "axes.linewidth": 0.6, "lines.linewidth": 1.3,
        "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8,
        "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.minor.width": 0.4, "ytick.minor.width": 0.4,
    }),
    "slides": Sheet(10, 7, 150, _EVERY | {
        "font.size": 17, "axes.linewidth": 1.3, "lines.linewidth": 3, "xtick.major.width": 1.3,
        "ytick.major.width": 1.3, "xtick.major.size": 6, "ytick.major.size": 6,
    }),
}  # fmt: skip

# Of every file: fonts are embedded as TrueType, which publishers ask for; texts of an SVG stay text; images that are
# not merged stay small, with sharp pixels.
_FILES: dict[Any, Any] = {
    "pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "lottery",
    "image.composite_image": False,
}  # fmt: skip

NO_ROUND = "no round is complete yet"
MOST = 6  # rounds in one figure by default


def in_order(num: int) -> list[BranchStyle]:
    """Return styles for hundreds of items in an order, such as rounds: from dark violet to green, lighter in grey."""
    from matplotlib import colormaps

    # The end of the colour map is a yellow that is invisible on white.
    colors = [colormaps["viridis"](0.85 * place / max(num - 1, 1)) for place in range(num)]
    several = len(STYLES)
    return [(color, STYLES[at % several][1], STYLES[at % (several - 1)][2]) for at, color in enumerate(colors)]


def by_name(names: Sequence[str]) -> dict[str, BranchStyle]:
    """Return a style for each name: from `STYLES` if they are enough, otherwise from `in_order`."""
    styles = STYLES if len(names) <= len(STYLES) else in_order(len(names))
    return dict(zip(names, styles, strict=False))


def new_or(ax: Any) -> Any:
    """Return the axes, or pyplot's current axes if None. Nothing else uses pyplot."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.gca()


def check(table: Table, why: str = NO_ROUND) -> None:
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
        raise LotteryError(f"The {column} to plot: received {value!r}, the table has {sorted(map(int, values))}.")
    return table[table[column] == value]


def of_rounds(table: Table, rounds: Iterable[int] | None, most: int = MOST, column: str = "round") -> Table:
    """Return the rows of some rounds, by default of at most `most`, evenly apart; raise `LotteryError` if any lacks."""
    wanted = results.chosen(table[column], most) if rounds is None else list(rounds)
    for index in wanted:
        only(table, column, index)
    return table[table[column].isin(wanted)]


def of_weight(table: Table, weight: str | None) -> tuple[Table, str]:
    """Return the rows of a weight, by default of the first, and its name."""
    check(table)
    weight = table["weight"].iloc[0] if weight is None else weight
    return only(table, "weight", weight), str(weight)


def each_weight(table: Table, most: int = 8) -> list[dict[str, str]]:
    """List the `views` of an analysis: a figure for each of at most `most` weights, with the first and the last."""
    names = list(dict.fromkeys(table["weight"]))
    some = [names[place] for place in results.chosen(range(len(names)), most)]
    return [{"weight": name} for name in some]


def spread(table: Table, by: Sequence[str], column: str, interval: str = "range") -> Table:
    """Average a column over replicates, grouped by columns of which the last is the x axis, and is sorted.

    Returns:
        A data frame with the columns of `by`, ``mean``, ``low`` and ``high`` (the ends of the bar by `INTERVALS`),
        ``replicates`` (the number of values that are not NaN), ``of`` (the number of values) and, if the table has it,
        the mean ``density``. An infinite interval, as of a single value, has no length here.
    """
    if interval not in INTERVALS:
        raise unknown("The interval of a plot", interval, INTERVALS)
    measures = {"mean": "mean", "low": "min", "high": "max", "replicates": "count", "of": "size"}
    columns = {name: (column, measure) for name, measure in measures.items()}
    if "density" in table and "density" not in by:
        columns["density"] = ("density", "mean")
    groups = table.groupby(list(by), as_index=False, sort=False)
    found = groups.agg(**columns)
    if interval == "t":
        lists = groups[column].agg(lambda values: values.dropna().tolist())[column]
        found[["low", "high"]] = [intervals.mean_interval(values)[1:] if values else (0.0, 0.0) for values in lists]
    ends = found[["low", "high"]].astype(float)
    ends = ends.where(ends.abs() < float("inf"), found["mean"], axis=0)
    # The mean of equal values may be off by a unit in the last place.
    low, high = ends["low"].clip(upper=found["mean"]), ends["high"].clip(lower=found["mean"])
    return found.assign(low=low, high=high).sort_values(by[-1], kind="stable", ignore_index=True)


def thick(width: float) -> float:
    """Return the width of a line in points, by the style sheet; `width` is that on the screen."""
    from matplotlib import rcParams

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
    return ax.errorbar(
        x, part["mean"],
        yerr=[part["mean"] - part["low"], part["high"] - part["mean"]] if part["replicates"].max() > 1 else None,
        color=color, marker=marker, markersize=thick(4 if first else 3.5), linestyle=line,
        linewidth=thick(1.6 if first else 0.9), elinewidth=thick(0.9 if first else 0.6), capsize=thick(2), label=label,
        zorder=3 if first else 2, **options,
    )  # fmt: skip


def band(ax: Any, x: Any, part: Table, look: BranchStyle, label: str, **options: Any) -> None:
    """Draw a line of means with a band between the ends of `spread`, and a few markers evenly apart."""
    color, marker, line = look
    options = {"linestyle": line, "linewidth": thick(1.2), "markersize": thick(4), "markevery": 0.12} | options
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
    if is_loss:
        return _view_of_losses(points, full)
    known = points[points["mean"].notna()]
    main = known if full else known[known["branch"] == points["branch"].iloc[0]]
    main = known if main.empty else main
    # A bar may reach beyond [0, 1], and all accuracies may be unknown.
    low, high = (max(main["low"].min(), 0), min(known["high"].max(), 1)) if len(known) else (0, 1)
    deepest = low - 1.5 * (high - low)
    ends = known[["low", "mean"]].clip(lower=0).to_numpy()
    low = min(low, ends[ends >= deepest].min(initial=low))
    # At least a fiftieth, so that a difference of a few examples looks small.
    middle, half = (low + high) / 2, max(high - low, 0.02) / 2
    middle = min(max(middle, half), 1 - half)
    return middle - 1.1 * half, middle + 1.1 * half


def _view_of_losses(points: Table, full: bool) -> tuple[float, float]:
    known = points[points["mean"].notna()]
    main = known if full else known[known["branch"] == points["branch"].iloc[0]]
    main = known if main.empty else main
    low, high = (known["low"].min(), main["high"].max()) if len(known) else (0, 1)
    ends = known[["high", "mean"]].to_numpy()
    high = max(high, ends[ends <= high + 1.5 * (high - low)].max(initial=high))
    # At least a fiftieth of the losses, so that a difference of little looks small.
    middle, half = (low + high) / 2, max(high - low, abs(high) / 50, 1e-30) / 2
    return middle - 1.1 * half, middle + 1.1 * half


def density_axis(ax: Any, densities: Any) -> None:
    """Make a logarithmic x axis with the dense network on the left, as in the papers."""
    ax.set_xscale("log")
    ax.set_xlim(densities.max() * 1.15, densities.min() / 1.15)
    log_ticks(ax.xaxis)
    ax.set_xlabel("density (fraction of prunable weights kept)")


def cost_axis(ax: Any, costs: Any, label: str) -> None:
    """Make a logarithmic x axis of what was spent, the least on the left."""
    from matplotlib.ticker import EngFormatter

    ax.set_xscale("log")
    ax.set_xlim(costs.min() / 1.3, costs.max() * 1.3)
    log_ticks(ax.xaxis)
    ax.xaxis.set_major_formatter(EngFormatter(sep=""))
    ax.set_xlabel(label)


def log_ticks(axis: Any) -> None:
    """Set at least three ticks between the limits of a logarithmic axis: at 1, 2 and 5, or closer."""
    from matplotlib.ticker import LogLocator

    low, high = sorted(axis.get_view_interval())
    for subs in ((1, 2, 5), range(1, 10), [num / 2 for num in range(2, 20)], [num / 10 for num in range(10, 100)]):
        locator = LogLocator(subs=subs)
        if sum(low <= place <= high for place in locator.tick_values(low, high)) > 2:
            break
    axis.set_major_locator(locator)
    plain(axis)


def plain(axis: Any) -> None:
    """Label ticks with plain numbers such as 0.05, not with powers of ten."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def contrasting(color: Any) -> str:
    """Return black or white, the one that is readable on a colour (red, green, blue in [0, 1])."""
    red, green, blue = color[:3]
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def as_svg(figure: Any, label: str) -> str:
    """Convert a figure to SVG for an HTML page: small, the same bits each time, with ids that no other figure has.

    Returns:
        One ``<svg>`` element without XML declaration, metadata and external links, with text as text in the page's
        sans-serif font, and lengths in points to two decimals. A screen reader reads the label.
    """
    _, start, text = saved(figure, "svg").decode().partition("<svg")
    text = re.sub(r'="([^"]*)"', lambda found: f'="{_rounded(found[1])}"', start + text)
    text = re.sub(r">\s+<", "><", text).strip()
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    text = re.sub(r"(?:'[^'\"]*', )+sans-serif", "sans-serif", text)
    text = text.replace("xlink:href", "href").replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    names = dict.fromkeys(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    # Matplotlib's ids depend on a part of a figure only, so they are made to depend on all of it.
    salt = "f" + hashlib.sha256((label + text).encode()).hexdigest()[:8]
    ids = {name: f"{salt}-{place}" for place, name in enumerate(names)}
    text = re.sub(r' id="([^"]*)"', lambda found: f' id="{ids[found[1]]}"' if found[1] in ids else "", text)
    text = re.sub(r'(href="#|url\(#)([^")]+)', lambda found: found[1] + ids[found[2]], text)
    return text.replace("<svg ", f'<svg role="img" aria-label={quoteattr(label)} ', 1)


def new_figure(width: float) -> Any:
    """Make an empty figure outside pyplot, whose files have TrueType fonts however they are saved."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    class Saved(Figure):
        def savefig(self, *args: Any, **options: Any) -> None:
            with rc_context(_FILES):
                super().savefig(*args, **options)

    figure = Saved(figsize=(width, width), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def saved(figure: Any, ending: str, dpi: int = SHEETS["screen"].dpi) -> bytes:
    """Return the content of a figure's file (png, svg, pdf), the same bits each time: without the date."""
    dated = {"svg": ("Date", "Creator", "Format", "Type"), "pdf": ("CreationDate",)}.get(ending, ())
    file = io.BytesIO()
    figure.savefig(file, format=ending, dpi=dpi, metadata=dict.fromkeys(dated) or None)
    return file.getvalue()


def _rounded(attribute: str) -> str:
    if "base64" in attribute:
        return attribute
    short = re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), attribute)
    return " ".join(short.split())
