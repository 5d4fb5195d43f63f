"""The inputs that the first layer still reads: kept entries at each pixel, or at each place of the first kernel."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from lottery.analysis import kernels
from lottery.figures import layout, style
from lottery.figures.record import Analysis
from lottery.models import graph
from lottery.runs import store
from lottery.runs.stored import stored_rounds
from lottery.text_tables import Table, frame

COLUMNS = ("replicate", "round", "density", "weight", "what", "row", "column", "channel", "kept", "of")
INPUT, KERNEL = "input", "kernel"
# The effects of layers that leave the entries of an example in their order, up to the first weights.
_IN_ORDER = (graph.START, graph.FLAT, graph.ENTRYWISE, graph.IDLE)


def table(run: store.Folder, rounds: Iterable[int] | None = None) -> Table:
    """Count the kept entries of the first prunable weight at each input, in the main chain.

    Returns:
        A data frame with the columns `COLUMNS`. For a dense layer, ``what`` is ``"input"`` and each row is an input:
        ``kept`` of its ``of`` entries, one for each unit, are kept, and ``row, column, channel`` is its place in the
        image that the network flattens (channels last), or (0, its number, 0) if that is unknown or no image. For a
        convolution, ``what`` is ``"kernel"`` and each row is a place of the kernel and a channel of the example. A
        kernel with one spatial axis is one row; the first two of three axes are merged into rows.
    """
    shape = image_shape(store.read_environment(run).get("architecture") or {})
    known = kernels.of_run(run)
    rows = []
    for stored in stored_rounds(run, rounds, branches=False):
        name, mask = next(iter(stored.masks.items()))
        replicate, _, index, density = stored.labels
        mask, groups = kernels.arranged(name, mask, known)
        what, kept, of = counted(mask, shape, groups)
        rows += [(replicate, index, density, name, what, *place, num, of) for place, num in np.ndenumerate(kept)]
    return frame(rows, COLUMNS)


def counted(mask: np.ndarray, shape: tuple[int, ...] = (), groups: int = 1) -> tuple[str, np.ndarray, int]:
    """Count the kept entries of a first weight, as of `kernels.arranged`, by the place that they read in an example.

    Returns:
        `INPUT` or `KERNEL`; an array of counts by (row, column, channel); and the number of entries at each place.
    """
    if mask.ndim < 2:
        return INPUT, mask.reshape(1, -1, 1).astype(int), 1
    of = mask.shape[-1] // groups
    by_group = mask.reshape(*mask.shape[:-1], groups, of).sum(axis=-1)
    kept = by_group.swapaxes(-1, -2).reshape(*mask.shape[:-2], -1)
    if mask.ndim > 2:
        return KERNEL, kept.reshape(-1, *kept.shape[-2:]), of
    image = (*shape, 1) if len(shape) == 2 else shape
    if len(image) == 3 and int(np.prod(image)) == kept.size:
        return INPUT, kept.reshape(image), of
    return INPUT, kept.reshape(1, -1, 1), of


def image_shape(architecture: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of an example whose entries the first weights read in order; empty if it is unknown."""
    if "name" in architecture:
        return _whole(architecture.get("input_shape"))
    shapes: list[tuple[int, ...]] = []
    for layer in graph.described_layers(architecture):
        settings = layer.settings
        # The first layer with weights to prune reads what came so far.
        if ("units" in settings or "filters" in settings) and settings.get("trainable", True):
            break
        if layer.name not in graph.LAYERS or graph.LAYERS[layer.name].effect not in _IN_ORDER:
            return ()
        if layer.name == "InputLayer":
            # Keras 3 and tf_keras have different names for it.
            whole = settings.get("batch_shape") or settings.get("batch_input_shape")
            shapes.append(_whole(whole[1:] if isinstance(whole, (list, tuple)) else None))
    return shapes[0] if len(shapes) == 1 else ()


def _whole(shape: Any) -> tuple[int, ...]:
    """Return a shape without open dimensions; any other as empty."""
    sizes = tuple(shape) if isinstance(shape, (list, tuple)) else ()
    return sizes if all(type(size) is int and size > 0 for size in sizes) else ()


def image(table: Table) -> np.ndarray:
    """Return kept entries at each place, (rows, columns): the channels of a kernel side by side, otherwise summed."""
    kept = np.zeros([int(table[axis].max()) + 1 for axis in ("row", "column", "channel")], int)
    kept[table["row"], table["column"], table["channel"]] = table["kept"]
    is_kernel = table["what"].iloc[0] == KERNEL
    return np.concatenate(np.moveaxis(kept, 2, 0), axis=1) if is_kernel else kept.sum(axis=2)


_UNREAD = "white"  # paler than all of the scale, also in grey
_GAP = 0.08  # between images, as a part of their width
_THICKNESS = 0.12  # of the colour bar, in inches
_ZERO = 0.04  # width of the box for inputs that nothing reads, as a part of the colour bar


class _Images:
    """The images of a figure, by round."""

    def __init__(self, table: Table, replicate: int | None, rounds: Iterable[int] | None) -> None:
        style.check(table)
        # The first may have no round yet, where replicates are trained beside each other.
        self.replicate = int(table["replicate"].min()) if replicate is None else replicate
        self.table = style.of_rounds(style.only(table, "replicate", self.replicate), rounds)
        self.by_round = {index: image(part) for index, part in self.table.groupby("round")}
        self.rows, self.columns = next(iter(self.by_round.values())).shape
        self.channels = int(self.table["channel"].max()) + 1
        self.is_kernel = self.table["what"].iloc[0] == KERNEL
        self.place = "place of the kernel" if self.is_kernel else "input"
        # Such as a row of inputs that are not an image; it is drawn taller.
        self.is_strip = self.rows * 8 < self.columns
        # Inches between the images and the colour bar; the inputs of a strip are numbered there.
        self.gap_above_bar = 0.13 + (style.letters(2.6) if self.is_strip else 0)

    def arranged(self, width: float) -> tuple[int, int, float, float]:
        """Return the numbers of images across and down, the height of each and of the line above it, in places."""
        line = style.letters(1.5) / width * self.columns
        if self.is_strip:
            return 1, len(self.by_round), self.columns / 25, line
        across, down = layout.grid(len(self.by_round), width)
        return across, down, self.rows, line * across


def figure(table: Table, ax: Any = None, replicate: int | None = None, rounds: Iterable[int] | None = None) -> Any:
    """Draw the number of entries of the first weight kept at each input, or at each place of the kernel.

    An image for each round, by default of at most six, evenly apart; all on one scale from the fewest to the most,
    logarithmic if the most are over five times the fewest: the more, the darker. Inputs that no unit reads are white.
    Channels of an image are summed, those of a kernel are side by side. The default is the first replicate.
    """
    from matplotlib.patches import Rectangle

    images = _Images(table, replicate, rounds)
    columns = images.columns
    gap = _GAP * columns
    ax = style.new_or(ax)
    across, down, tall, line = images.arranged(ax.figure.get_figwidth())
    colors, scale = _colors(images)
    shown = None
    for place, (index, pixels) in enumerate(images.by_round.items()):
        left, top = place % across * (columns + gap), place // across * (tall + line)
        shown = ax.imshow(
            np.ma.masked_equal(pixels, 0), cmap=colors, norm=scale, interpolation="none",
            extent=(left, left + columns, top + tall, top),
        )  # fmt: skip
        # Unclipped, or half of the lines at the edges of the axes would be missing.
        edge = {"edgecolor": "0.4", "linewidth": style.thick(0.6)}
        ax.add_patch(Rectangle((left, top), columns, tall, fill=False, clip_on=False, **edge))
        if images.is_kernel:
            for cut in range(columns // images.channels, columns, columns // images.channels):
                ax.plot([left + cut] * 2, [top, top + tall], color="0.4", linewidth=style.thick(0.6))
        density = images.table[images.table["round"] == index]["density"].iloc[0]
        ax.text(left, top - 0.15 * line, f"round {index}, density {density:.3g}", fontsize="small", va="bottom")
    ax.set_xlim(0, across * (columns + gap) - gap)
    # The axis points down, as rows of pixels do, and begins a line of text above the first images.
    ax.set_ylim(down * (tall + line) - line, -line)
    if images.is_strip:
        ax.set(aspect="auto", frame_on=False, yticks=[], xlabel=f"{images.place}, from 0")
        ax.tick_params(labelsize="small")
        ax.xaxis.label.set_fontsize("small")
        _center_ticks(ax.xaxis, columns)
    else:
        ax.set_axis_off()
    _add_bar(ax, shown, images)
    return ax


def _colors(images: _Images) -> tuple[Any, Any]:
    """Return a colour map and a scale that goes from the fewest to the most kept entries."""
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, LogNorm, Normalize

    # Without its last tenth, which in grey is nearly as pale as inputs that no unit reads.
    colors = ListedColormap(colormaps["viridis"](np.linspace(0.85, 0, 256))).with_extremes(bad=_UNREAD, under=_UNREAD)
    counts = np.concatenate([pixels[pixels > 0] for pixels in images.by_round.values()])
    low, high = (counts.min(), counts.max()) if counts.size else (1, 1)
    # A scale needs two ends, also where all counts are equal.
    return colors, LogNorm(low, high) if high > 5 * low else Normalize(min(low, high - 1), high)


def _center_ticks(axis: Any, num: int) -> None:
    """Put ticks at the centres of columns that lie one unit apart, at round numbers of them."""
    from matplotlib.ticker import MaxNLocator

    numbers = [int(place) for place in MaxNLocator(8, integer=True).tick_values(0, num - 1) if 0 <= place < num]
    axis.set_ticks([place + 0.5 for place in numbers], labels=[str(place) for place in numbers])


def _add_bar(ax: Any, shown: Any, images: _Images) -> None:
    """Add the colour bar: as wide as the images, at places below them in inches, independent of the height."""
    from matplotlib.colors import LogNorm
    from matplotlib.transforms import ScaledTranslation, blended_transform_factory

    unread = any((pixels == 0).any() for pixels in images.by_round.values())
    is_log = isinstance(shown.norm, LogNorm)
    inches = ax.figure.dpi_scale_trans + ScaledTranslation(0, 0, ax.transAxes)
    where = blended_transform_factory(ax.transAxes, inches)
    below = ax.inset_axes((0, -images.gap_above_bar - _THICKNESS, 1, _THICKNESS), transform=where)
    ends = {"extend": "min" if unread else "neither", "extendrect": True, "extendfrac": _ZERO}
    bar = ax.figure.colorbar(shown, cax=below, orientation="horizontal", **ends)
    bar.set_label(f"kept entries of each {images.place}{' (log)' if is_log else ''}", fontsize="small")
    bar.ax.tick_params(labelsize="small")
    if is_log:
        style.log_ticks(bar.ax.xaxis)
    else:
        style.whole_ticks(bar.ax.xaxis)
    if unread:
        # Below the box for inputs that nothing reads, in line with the numbers at the ticks.
        tick = bar.ax.xaxis.majorTicks[0]
        bar.ax.annotate(
            "0", (-_ZERO / 2, 0), (0, -tick.get_pad() - tick._size), xycoords="axes fraction",
            textcoords="offset points", ha="center", va="top", fontsize="small",
        )  # fmt: skip


def _caption(table: Table, replicate: int | None = None, rounds: Iterable[int] | None = None) -> str:
    images = _Images(table, replicate, rounds)
    weight = images.table["weight"].iloc[0]
    text = f"Kept entries of {weight} at each {images.place}: the more, the darker; white: none."
    if images.channels > 1:
        text += f" Channels are {'side by side' if images.is_kernel else 'summed'}."
    return f"{text} Replicate {images.replicate} (n = 1)."


def _height(table: Table, width: float, replicate: int | None = None, rounds: Iterable[int] | None = None) -> float:
    images = _Images(table, replicate, rounds)
    across, down, tall, line = images.arranged(width)
    ratio = down * (tall + line) / ((across + _GAP * (across - 1)) * images.columns)
    return min(ratio, 0.8 * down) * (width - 0.1) + images.gap_above_bar + _THICKNESS + style.letters(2.6) + 0.1


INPUTS = Analysis(
    table,
    figure,
    "Kept entries of the first layer at each input, for some rounds.",
    height=_height,
    chapter="Masks",
    caption=_caption,
    title="Which inputs are read",
)
