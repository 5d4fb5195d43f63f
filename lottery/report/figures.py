"""The figures of a page about runs: as SVG in its colours, with the numbers of their points; and one that moves."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from lottery import plots
from lottery.analysis import inputs
from lottery.figures import sheets, style
from lottery.figures.record import Analysis, NothingToDraw
from lottery.report.reported import ReportedRun
from lottery.statistics.metric import TICKET, metric_of, of_tickets

MOST = 150_000  # counts of the first layer on a page, of at most four characters each
_DOTS = 72  # units of an SVG to the inch
_WIDTH = 5.6  # inches: letters can be read in one column of a phone, and in two of a desktop
_NAMED = re.compile(r"var\(--c-([0-9a-f]{6})\)")
_ON_CELL = "#010101"  # black that stays black in the dark, on a coloured cell


class Figure(NamedTuple):
    """A figure for a page."""

    svg: str  # whose colours are those of `colors`
    caption: str
    panels: list[dict[str, Any]]  # of `panels`


def drawn(run: ReportedRun) -> tuple[dict[str, list[Figure]], dict[str, list[str]]]:
    """Draw every kind of figure of a run, by chapter; and collect sentences about those that cannot be drawn."""
    found: dict[str, list[Figure]] = {}
    missing: dict[str, list[str]] = {}
    branches = [TICKET, *run.judgement.controls]
    shown = branches[: len(style.STYLES)]
    if len(shown) < len(branches):
        missing["Accuracy"] = [f"The figures have room for {len(shown)} of {len(branches)} branches."]
    for kind, analysis in plots.kinds().items():
        try:
            own = _drawn(run, kind, analysis, shown)
        except NothingToDraw:
            own = []
        if not own and analysis.missing:
            missing.setdefault(analysis.chapter, []).append(analysis.missing)
        found.setdefault(analysis.chapter, []).extend(own)
    return found, missing


def together(runs: Sequence[ReportedRun]) -> list[Figure]:
    """Draw the tickets of several runs, those of each accuracy, and of the loss without one, in a figure of its own."""
    groups: dict[str, list[ReportedRun]] = {}
    for run in runs:
        accuracy, loss = run.environment.get("accuracy", "an accuracy"), run.environment.get("loss") or "no accuracy"
        groups.setdefault(loss if metric_of(run.rows).is_loss else accuracy, []).append(run)
    return [_side_by_side(group, measured, len(groups) == 1) for measured, group in groups.items()]


def _side_by_side(runs: Sequence[ReportedRun], measured: str, are_all: bool) -> Figure:
    """Draw the tickets of runs that measure the same."""
    import pandas as pd

    some = runs[: len(style.STYLES)]
    tickets = [of_tickets(run.rows).assign(branch=run.label) for run in some]
    which = "all runs"
    if not are_all:
        which = f"the runs that measure {measured}"
    if len(some) < len(runs):
        which = f"the first {len(some)} of {which}"
    rows = pd.concat(tickets, ignore_index=True)
    drawing = figure(rows, "accuracy", reference=False)
    return drawing._replace(caption=f"The tickets of {which}. {drawing.caption}")


def figure(table: Any, kind: str, **options: Any) -> Figure:
    """Draw the table of a kind of figure for a page; options and errors are those of `lottery.plots.drawn`."""
    drawing = plots.drawn(table, kind, width=_WIDTH, **options)
    for ax in drawing.axes:
        for text in ax.texts:
            if text.get_color() == "black" and any(_is_on_cell(text, image) for image in ax.images):
                text.set_color(_ON_CELL)
    for ground in (drawing, *drawing.axes):
        ground.patch.set_visible(False)  # the page's own shows
    with_cells = any(ax.images for ax in drawing.axes)
    which = [f"{name} {value}" for name, value in options.items() if type(value) in (str, int)]
    label = kind.replace("_", " ") + (f": {', '.join(which)}" if which else "")
    svg = _recolored(sheets.as_svg(drawing, label), with_cells)
    return Figure(svg, plots.caption(table, kind, **options), panels(drawing))


def frames(run: ReportedRun, most: int = MOST) -> dict[str, Any] | None:
    """Gather what the first layer reads in each round, for as many replicates and rounds as a page has room.

    Returns:
        ``weight``, ``what`` ("input" or "kernel"), ``of`` (entries at each place), ``shape`` (rows and columns of an
        image; the channels of an input are summed, those of a kernel side by side), ``channels``, and ``frames``: a
        dict for each replicate and round, with its ``density`` and ``counts`` row by row. None if one replicate in two
        rounds is too much.
    """
    num_places = run.table("inputs", rounds=(0,)).groupby("replicate").size().max()
    num_rounds = of_tickets(run.rows).groupby("replicate")["round"].max() + 1
    room = int(most // num_places)
    if room < 2:
        return None
    if num_rounds.sum() <= room:
        table = run.table("inputs", rounds=tuple(range(num_rounds.max())))
    else:
        # Of the first replicate, as many rounds as there is room for.
        table = run.table("inputs", rounds=tuple(style.chosen(range(num_rounds.iloc[0]), room)))
        table = table[table["replicate"] == num_rounds.index[0]]
    found = []
    shape: tuple[int, ...] = ()
    for (replicate, number, density), part in table.groupby(["replicate", "round", "density"]):
        image = inputs.image(part)
        shape = image.shape  # the same in all
        where = {"replicate": int(replicate), "round": int(number), "density": round(float(density), 4)}
        found.append(where | {"counts": image.ravel().tolist()})
    weight, what, of = table.iloc[0][["weight", "what", "of"]]
    channels = int(table["channel"].max()) + 1
    side_by_side = channels if what == inputs.KERNEL else 1
    of = int(of) * (channels // side_by_side)
    about = {"weight": weight, "what": what, "of": of, "shape": list(shape), "channels": side_by_side}
    return about | {"frames": found}


def panels(drawing: Any) -> list[dict[str, Any]]:
    """Read the points off a drawn Matplotlib figure, panel by panel.

    Returns:
        A dict for each axes that has a labelled line: ``box`` (left, top, right, bottom), the names ``x`` and ``y`` of
        the axes, ``title``, and ``lines``. Each line has a ``name``, a ``color``, and ``points``: the place in the
        SVG (across, down), the values on both axes and, if it has a bar or a band there, its two ends.
    """
    drawing.set_dpi(_DOTS)  # so that places in pixels are those in the SVG
    found = [_panel(panel, ax) for ax in drawing.axes for panel in (ax, *ax.child_axes)]
    return [panel for panel in found if panel["lines"]]


def colors(figures: Iterable[Figure]) -> dict[str, str]:
    """Return the CSS of each colour that figures use, by the name of its custom property, for light and for dark.

    Greys go from the page's ink to its paper; a colour keeps its hue, and is lighter in the dark.
    """
    used = sorted({name for figure in figures for name in _NAMED.findall(figure.svg)})
    return {f"--c-{name}": _css(name) for name in used}


def _drawn(run: ReportedRun, kind: str, analysis: Analysis, branches: Sequence[str]) -> list[Figure]:
    """Draw a figure for each view of an analysis."""
    table = run.table(kind)
    if "branch" in table:
        table = table[table["branch"].isin(branches)]
    views = analysis.views(table) if analysis.views else [{}]
    found = []
    for options in views:
        drawing = {name: value for name, value in options.items() if name in plots.options_of(kind)}
        # What the figure does not take, such as the round of an overlap, decides what is read.
        part = table if drawing == options else run.table(kind, **options)
        found.append(figure(part, kind, **drawing))
    return found


def _panel(ax: Any, around: Any) -> dict[str, Any]:
    """Read a panel; what it has no name for is named by the axes around it."""
    from matplotlib.colors import to_hex

    top = ax.figure.bbox.height
    box = ax.get_window_extent()
    lines = []
    for name, line, ends in _lines(ax):
        points = []
        places = line.get_transform().transform(line.get_xydata())
        for (across, up), (x, y) in zip(places, line.get_xydata(), strict=True):
            # A point on the edge may lie outside by rounding.
            if math.isfinite(across) and math.isfinite(up) and box.x0 - 1 <= across <= box.x1 + 1:
                down = top - min(max(up, box.y0), box.y1)  # a point outside is marked on the edge
                bar = [end for end in ends.get(x, ()) if math.isfinite(end)]
                points.append([round(across, 1), round(down, 1), *map(_short, (x, y, *bar))])
        if points:
            lines.append({"name": name, "color": to_hex(line.get_color())[1:], "points": points})
    return {
        "box": [round(side, 1) for side in (box.x0, top - box.y1, box.x1, top - box.y0)],
        "x": _plain(ax.get_xlabel() or around.get_xlabel()),
        "y": _plain(ax.get_ylabel() or around.get_ylabel()),
        "title": ax.get_title(),
        "lines": lines,
    }


def _lines(ax: Any) -> Iterator[tuple[str, Any, dict[float, tuple[float, float]]]]:
    """Yield the name of each line with data on both axes, the line, and the ends of its bars or its band by x."""
    from matplotlib.colors import to_rgb

    for container in ax.containers:
        line, _, bars = getattr(container, "lines", (None, (), ()))
        if line is not None:
            # Some points have no bar.
            segments = [segment for bar in bars for segment in bar.get_segments() if len(segment)]
            yield container.get_label(), line, {segment[0][0]: tuple(segment[:, 1]) for segment in segments}
    for line in ax.lines:
        # A line across the whole panel, as of dense, has places in data on one axis only.
        if line.get_label().startswith("_") or not all(line.get_transform().contains_branch_seperately(ax.transData)):
            continue
        # Matplotlib does not say which band belongs to a line, as in a figure of the user's own: it has the colour of
        # the line, and its ends are around the points. In steps, a band has two pairs of ends at each place.
        some = ax.collections if line.get_drawstyle() == "default" else ()
        color = to_rgb(line.get_color())
        bands = [_ends(band) for band in some if any(tuple(face[:3]) == color for face in band.get_facecolor())]
        points = line.get_xydata()
        around = (ends for ends in bands if all(x in ends and ends[x][0] <= y <= ends[x][1] for x, y in points))
        yield line.get_label(), line, next(around, {})


def _ends(band: Any) -> dict[float, tuple[float, float]]:
    """Read the low and the high end of a band by x."""
    ends: dict[float, tuple[float, float]] = {}
    for path in band.get_paths():
        for x, y in path.vertices:
            low, high = ends.get(x, (y, y))
            ends[x] = (min(low, y), max(high, y))
    return ends


def _is_on_cell(text: Any, image: Any) -> bool:
    """Return True if a text stands on a coloured cell of an image, not beside it or on an empty one."""
    import numpy as np

    x, y = text.get_transform().transform(text.get_position())
    if not image.get_window_extent().contains(x, y):
        return False
    value = image.get_cursor_data(SimpleNamespace(x=x, y=y))  # as below the mouse
    return value is not None and value is not np.ma.masked


def _recolored(svg: str, with_cells: bool) -> str:
    """Replace colours by names that a page gives one colour in the light and another in the dark.

    Texts on cells stay, which are white or `_ON_CELL`; in a figure with cells all colours but those of other texts and
    grey lines.
    """

    def named(element: re.Match[str]) -> str:
        is_text = element[0].startswith("<text")

        def name(found: re.Match[str]) -> str:
            what, color = found[1], found[2].lower()
            stays = with_cells and (what == "fill" or not _is_grey(color))
            if is_text:
                stays = color in ("ffffff", _ON_CELL[1:])
            return found[0] if stays else f"{what}: var(--c-{color})"

        return re.sub(r"\b(fill|stroke): #([0-9a-fA-F]{6})\b", name, element[0])

    # What Matplotlib sets for every line, the page sets once.
    return re.sub(r"<[a-z][^>]*>", named, re.sub(r"<defs><style.*?</style></defs>", "", svg))


def _is_grey(color: str) -> bool:
    parts = bytes.fromhex(color)
    return max(parts) - min(parts) < 8


def _css(color: str) -> str:
    if _is_grey(color):
        # White has three parts of 255.
        ink = round(100 * (1 - sum(bytes.fromhex(color)) / 765))
        return f"color-mix(in oklab, var(--ink) {ink}%, var(--paper))"
    return f"light-dark(#{color}, oklch(from #{color} calc(.46 + .46 * l) c h))"


def _short(value: float) -> float | int:
    value = float(f"{value:.5g}")
    return int(value) if value == int(value) else value


def _plain(label: str) -> str:
    """Return the label of an axis without its remarks in brackets."""
    return re.sub(r"\s*\([^)]*\)$", "", label.replace("\n", " "))
