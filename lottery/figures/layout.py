"""The layout of figures: where the legend is, panels, and room for labels."""

import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lottery.figures import style
from lottery.figures.sheets import Sheet, new_figure
from lottery.formatting import formatted
from lottery.text_tables import Table


def drawn(
    sheet: Sheet, width: float, draw: Callable[[Any], Any], height: Callable[[], float] | None = None, title: str = ""
) -> Any:
    """Make a figure outside pyplot in a style sheet, so many inches wide, and draw on its axes.

    What is drawn and its height are functions, as letters are measured in the sheet.
    """
    from matplotlib import rc_context

    with rc_context(sheet.settings):
        figure = new_figure(width)
        # By default, labels have room.
        inches = height() if height else max(0.6 * width, style.letters(15))
        if title:
            above = figure.suptitle(title, fontsize="large")
            _break(above, 0.98 * figure.bbox.width)
            inches += style.letters(1.6) * len(above.get_text().split("\n"))
        figure.set_size_inches(width, inches)
        draw(figure.subplots())
        fit(figure)
    return figure


def finish(
    ax: Any,
    points: Table,
    shape: str = "bars",
    interval: str = "range",
    named: Mapping[str, Any] | None = None,
    above: float | None = None,
) -> Any:
    """Add a faint grid, and the legend beside or above the axes.

    Args:
        ax: The axes.
        points: The means of `spread`, of which a last entry explains the bars or bands and counts the replicates.
        shape: ``"bars"``, ``"band"``, or words that have both.
        interval: A key of `style.INTERVALS`.
        named: What the legend shows in place of the lines of a label.
        above: Inches above the axes where the legend is, in any case; for axes that are full of panels.
    """
    ax.grid(alpha=0.25, linewidth=style.thick(0.6))
    handles, labels = ax.get_legend_handles_labels()
    handles = [(named or {}).get(label, handle) for handle, label in zip(handles, labels, strict=True)]
    if points["replicates"].max() > 1:
        kind = style.INTERVALS[interval].removesuffix(" for the mean")
        handles.append(glyph(shape))
        labels.append(f"{kind}, n = {style.counted(points)[1]}")
    place_legend(ax, handles, labels, above)
    return ax


def grid(num: int, width: float) -> tuple[int, int]:
    """Return the numbers of panels beside and above each other in so many inches, with room for a title on each."""
    most = max(2, int((width - style.letters(3)) / style.letters(8)))
    wanted = 2 if num == 4 else min(num, 3)  # four panels are two rows of two
    across = min(most, wanted)
    return across, math.ceil(num / across)


def panels(ax: Any, num: int) -> list[Any]:
    """Put panels with the same axes, and room for a title above each, into the place of axes."""
    across, down = grid(num, ax.figure.get_figwidth())
    ax.set(frame_on=False, xticks=[], yticks=[])
    size = ax.get_window_extent()
    # Between panels, and above each, as parts of the axes.
    gap = 0.1 * ax.figure.dpi / size.width
    above = style.letters(1.6) * ax.figure.dpi / size.height
    width = (1 + gap) / across - gap
    height = (1 + above) / down - above
    made: list[Any] = []
    for place in range(num):
        row, column = divmod(place, across)
        left = column * (width + gap)
        bottom = 1 - height - row * (height + above)
        same = {"sharex": made[0], "sharey": made[0]} if made else {}
        # Within the given axes, which may be some of several, and need not be of a grid.
        made.append(ax.inset_axes((left, bottom, width, height), **same))
        made[-1].locator_params(axis="y", nbins=5)
        made[-1].tick_params(labelleft=column == 0, labelbottom=place + across >= num, labelsize="small")
    return made


def label_panels(ax: Any, made: Sequence[Any], x: str, y: str) -> None:
    """Label the axes that panels share."""
    # The axes around the panels do not know how much room the ticks of the panels take.
    ax.figure.draw_without_rendering()
    left, bottom = ax.get_window_extent().min
    wide = max(left - label.get_window_extent().x0 for label in made[0].get_yticklabels())
    high = max(bottom - label.get_window_extent().y0 for label in made[-1].get_xticklabels())
    points = 72 / ax.figure.dpi
    ax.set_xlabel(x, labelpad=high * points + 3)
    ax.set_ylabel(y, labelpad=wide * points + 3)


def glyph(shape: str) -> Any:
    """Return what a legend shows of bars or bands that are not those of a single line."""
    from matplotlib.collections import LineCollection
    from matplotlib.container import ErrorbarContainer
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    band = Patch(facecolor="0.5", alpha=0.25, linewidth=0)
    if shape == "band":
        return band
    bar = LineCollection([], colors="0.35", linewidths=style.thick(0.9))
    caps = tuple(Line2D([], [], color="0.35", marker="|", markersize=2 * style.thick(2)) for _ in range(2))
    # A legend draws what a container has, which needs no line.
    bars = ErrorbarContainer((None, caps, (bar,)), has_yerr=True)  # type: ignore[arg-type]
    return bars if shape == "bars" else (band, bars)


def place_legend(ax: Any, handles: Sequence[Any], labels: Sequence[str], above: float | None = None) -> None:
    """Put the legend beside the axes, or above them where it is wide; a constrained layout makes room for it."""
    from matplotlib.transforms import ScaledTranslation

    if not labels:
        return
    figure = ax.figure
    figure.draw_without_rendering()  # so that places are known
    # Dashes show in long enough handles.
    looks = {"frameon": False, "handlelength": 2.5, "borderaxespad": 0}
    # Wherever it is, it is as large; the best place, which is the default, would be searched for among all points.
    legend = ax.legend(handles, labels, loc="upper left", **looks)
    texts = legend.get_texts()
    lines = legend.get_window_extent().width - max(text.get_window_extent().width for text in texts)
    # A label wider than the figure would leave the axes no width.
    for text in texts:
        _break(text, figure.bbox.x1 - ax.get_window_extent().x0 - lines)
    labels = [text.get_text() for text in texts]
    box = legend.get_window_extent()
    # Beside the axes it may have more columns, if it is too high for one, as long as the axes keep most of the width.
    columns = math.ceil(box.height / (0.95 * figure.bbox.height))
    if above is None and columns * box.width < 0.38 * figure.bbox.width:
        ax.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1), ncols=columns, **looks)
        return
    columns = max(1, min(len(labels), int(ax.get_window_extent().width // box.width)))
    higher = ax.transAxes + ScaledTranslation(0, above or 0.05, figure.dpi_scale_trans)
    ax.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1), bbox_transform=higher, ncols=columns, **looks)


def in_per_cent(ax: Any) -> bool:
    """Label the axes of densities and accuracies in per cent, those of differences in points; False without either."""
    found = False
    for axis in (ax.xaxis, ax.yaxis):
        text = axis.get_label().get_text()
        if text.startswith(_DENSITY) or "accuracy" in text:
            if "ticket − dense" in text:
                text = f"{text} (points)"
            else:
                # Such as "density (fraction of prunable weights kept)".
                text = text.replace("accuracy", "accuracy (%)").removeprefix(_DENSITY).replace("kept)", "kept (%)")
            axis.set_label_text(text)
            for panel in (ax, *ax.child_axes):
                own = panel.xaxis if axis is ax.xaxis else panel.yaxis
                # Six digits: 100 times 0.07 is 7.000000000000001.
                own.set_major_formatter(lambda value, _: formatted(100 * value, ".6g"))
            found = True
    legend = ax.get_legend()
    if found and legend is not None:
        for text in legend.get_texts():
            text.set_text(_FRACTION.sub(lambda value: f"{100 * float(value[0]):.3g} %", text.get_text()))
    return found


_DENSITY = "density (fraction of "
_FRACTION = re.compile(r"(?:(?<=falls to )|(?<=density ))[\d.]+(?:e-\d+)?")  # in a legend


def fit(figure: Any) -> None:
    """Make room for a legend above the axes, and break labels that are longer than the figure has room for.

    What is drawn later, such as a file, finds ticks in the style sheet of now.
    """
    # The legend takes its room from the axes, so the figure grows by as much, before they are too low to be drawn.
    ax = figure.axes[0]
    legend, frame = ax.get_legend(), ax.get_window_extent()
    if legend is not None and (box := legend.get_window_extent()).y0 >= frame.y1:
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + box.height / figure.dpi)
    figure.draw_without_rendering()
    for ax in figure.axes:
        for label in (ax.xaxis.label, ax.yaxis.label):
            # It stays where its middle is.
            box, end = label.get_window_extent(), figure.bbox.x1
            middle = (box.x0 + box.x1) / 2
            if label.get_rotation():
                middle, end = (box.y0 + box.y1) / 2, figure.bbox.y1
            _break(label, 2 * min(middle, end - middle))


def _break(text: Any, room: float) -> None:
    """Break a Matplotlib text that is longer than so many pixels into lines of about the same length."""
    box, content = text.get_window_extent(), text.get_text()
    length = box.height if text.get_rotation() else box.width
    if length <= room:
        return
    # A little fewer letters than fit on average, as some are wider.
    most = max(1, int(0.95 * max(map(len, content.split("\n"))) * room / length))
    num_lines = len(textwrap.wrap(content, most))
    width = next(width for width in range(1, most + 1) if len(textwrap.wrap(content, width)) <= num_lines)
    text.set_text(textwrap.fill(content, width))
