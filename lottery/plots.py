"""Figures of a stored run: every kind as a function by its name, such as `accuracy`, and as a file or as SVG.

The functions draw the table of `read` on Matplotlib axes `ax`, or on pyplot's current axes, and return the axes. They
raise `LotteryError` if the table is empty or lacks the value of an option. `caption` has the text beside a figure.
"""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from lottery.analysis import ANALYSES
from lottery.errors import LotteryError, missing, unknown
from lottery.figures import layout, sheets
from lottery.figures import style as styles
from lottery.figures.record import Analysis, NothingToDraw
from lottery.runs import store
from lottery.text_tables import Table


def kinds() -> dict[str, Analysis]:
    """Return the kinds of figures by name: the analyses that have a figure."""
    return {name: analysis for name, analysis in ANALYSES.items() if analysis.figure}


def __getattr__(name: str) -> Callable[..., Any]:
    # Read each time, so that an analysis that somebody adds has a function here.
    if name in kinds():
        return _figure(name)
    raise AttributeError(f"module 'lottery.plots' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *kinds()])


def read(run: store.Folder, kind: str, **options: Any) -> Table:
    """Read the table of a kind of figure, which `drawn`, `save` and `svg` draw, from a run's folder.

    Options are ``rounds``, by default at most six, evenly apart; or for an overlap ``round``, by default the last round
    of all replicates, and ``matched``. Those that the kind's table does not know are ignored.

    Raises:
        LotteryError: An unknown kind, or it is not a run, or it lacks what the kind needs.
    """
    # Refuses an unknown kind.
    _figure(kind)
    table = ANALYSES[kind].table
    known = inspect.signature(table).parameters
    options = {name: value for name, value in options.items() if name in known and value is not None}
    if "rounds" in known and "rounds" not in options:
        options["rounds"] = styles.chosen(range(max(_last_rounds(run)) + 1), styles.MOST)
    if "round" in known and "round" not in options:
        options["round"] = last_common_round(run)
    return table(run, **options)


def drawn(
    source: Table,
    kind: str = "accuracy",
    style: str = "screen",
    width: float | None = None,
    title: str = "",
    axis: str = "fraction",
    **options: Any,
) -> Any:
    """Draw a Matplotlib figure outside pyplot: no window, no state, and no backend to choose.

    Args:
        source: The table of the kind; see `read`.
        kind: A key of `kinds`.
        style: ``"screen"``, ``"paper"`` or ``"slides"``: the sizes of letters and lines, and of the whole.
        width: In inches; by default 7.2 on the screen, 5.5 in a paper, 10 on slides.
        title: Above the figure.
        axis: ``"fraction"`` or ``"percent"``: how densities and accuracies are labelled.
        options: Those of the kind's function. The default interval is that of the style: in a paper, ``"t"``.

    Raises:
        LotteryError: An unknown kind, style or option, another width, an empty table, or an error of the function.
    """
    figure, sheet = _figure(kind), sheets.named(style)
    width = sheet.width if width is None else width
    if not sheet.narrowest <= width <= _WIDEST:
        allowed = f"{sheet.narrowest:g} to {_WIDEST} inches with the style {style!r}"
        raise LotteryError(f"width must be {allowed}, not {width:g}.")
    if axis not in AXES:
        raise unknown("axis", axis, AXES)
    options = _completed(kind, style, options)

    def draw(ax: Any) -> None:
        ax = figure(source, ax, **options)
        if axis == "percent" and not layout.in_per_cent(ax):
            raise LotteryError(f"The kind {kind!r} has no axis of densities or accuracies to label in per cent.")

    own = ANALYSES[kind].height
    return layout.drawn(sheet, width, draw, own and functools.partial(own, source, width, **options), title)


def caption(source: Table, kind: str = "accuracy", style: str = "screen", **options: Any) -> str:
    """Write the text beside a figure: what it shows, of how many replicates, and what bars or bands are.

    See `drawn` for arguments and errors. It draws nothing.
    """
    options = _completed(kind, style, options)
    text = ANALYSES[kind].caption or ANALYSES[kind].help
    return text if isinstance(text, str) else text(source, **options)


def latex_caption(source: Table, kind: str = "accuracy", style: str = "screen", **options: Any) -> str:
    r"""Write the text of `caption` as a LaTeX ``\caption{...}``."""
    return sheets.latex(caption(source, kind, style, **options))


def svg(source: Table, kind: str = "accuracy", title: str = "", **options: Any) -> str:
    """Draw a figure as one ``<svg>`` element for an HTML page; see `drawn` for arguments and errors."""
    figure = drawn(source, kind, title=title, **options)
    return sheets.as_svg(figure, ": ".join(filter(None, (title, kind.replace("_", " ")))))


def save(source: Table, path: str | Path, kind: str = "accuracy", style: str = "screen", **options: Any) -> Path:
    """Draw a figure to a file, whose ending decides the format (png, svg, pdf), and return its path.

    A PDF has its fonts embedded as TrueType. See `drawn` for the other arguments and errors; an unknown ending, or a
    file that cannot be written, is an error.
    """
    return sheets.write(path, lambda: drawn(source, kind, style, **options), sheets.named(style).dpi)


def options_of(kind: str) -> tuple[str, ...]:
    """List the names of the options of a kind's function, after its table and axes."""
    options: list[str] = []
    for name, option in list(inspect.signature(_figure(kind)).parameters.items())[2:]:
        # Options that several functions share are one keyword argument, of the type of a dict that names them.
        grouped = get_args(option.annotation)[0] if option.kind is option.VAR_KEYWORD else None
        options.extend(grouped.__annotations__ if grouped else [name])
    return tuple(options)


def last_common_round(run: store.Folder) -> int:
    """Return the last round that all replicates with a complete round have; raise `LotteryError` if there is none."""
    return min(_last_rounds(run))


_WIDEST = 40  # inches
AXES = ("fraction", "percent")  # what the axes of densities and accuracies are labelled in


def _completed(kind: str, style: str, options: dict[str, Any]) -> dict[str, Any]:
    """Add the interval of the style sheet to the options of a kind that has one; refuse options that it lacks."""
    known, usual = options_of(kind), sheets.named(style).interval
    for option in options:
        if option not in known:
            raise missing(f"{kind} has no option", option, known)
    return {"interval": usual} | options if usual and "interval" in known else options


def _figure(kind: str) -> Callable[..., Any]:
    """Return the function of a kind."""
    figure = ANALYSES[kind].figure if kind in ANALYSES else None
    if figure is None:
        raise unknown("kind", kind, kinds())
    return figure


def _last_rounds(run: store.Folder) -> list[int]:
    """List the last complete round of each replicate that has any."""
    complete = [store.complete_rounds(run, number) for number in store.replicates(run, store.read_experiment(run))]
    lasts = [rounds[-1] for rounds in complete if rounds]
    if not lasts:
        raise NothingToDraw(f"No round of {str(run)!r} is complete yet.")
    return lasts
