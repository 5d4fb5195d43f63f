"""Style sheets, which decide the size of a figure; its files, PNG, PDF, and SVG for a page; and captions for LaTeX."""

import hashlib
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import quoteattr

from lottery import files
from lottery.errors import LotteryError, printable_all, unknown


class Sheet(NamedTuple):
    """A style sheet: where a figure is shown decides its size."""

    width: float  # inches
    narrowest: float  # inches in which labels and legends leave room
    dpi: int  # of a PNG
    settings: dict[Any, Any]  # of Matplotlib
    suffix: str = "png"  # of a file whose name nobody chose
    is_titled: bool = True  # above the figure; a paper has a caption instead
    interval: str = ""  # of bars and bands, where nobody chose any; empty for the usual of the kind


_EVERY: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.fontsize": "small",
    "axes.titlesize": "medium",
    # Ticks near each other would be labelled by what they have beyond a common number.
    "axes.formatter.useoffset": False,
}

SHEETS: dict[str, Sheet] = {
    "screen": Sheet(7.2, 4.5, 150, _EVERY),
    # As wide as the text of most papers, in letters that are as large as theirs in a footnote. Both fonts come with
    # Matplotlib, so that every machine draws the same.
    "paper": Sheet(5.5, 3, 300, _EVERY | {
        "font.family": ["STIXGeneral", "DejaVu Sans"], "font.size": 9, "axes.linewidth": 0.6, "lines.linewidth": 1.3,
        "xtick.labelsize": 8, "ytick.labelsize": 8, "legend.fontsize": 8,
        "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.minor.width": 0.4, "ytick.minor.width": 0.4,
    }, suffix="pdf", is_titled=False, interval="t"),
    "slides": Sheet(10, 7, 150, _EVERY | {
        "font.size": 17, "axes.linewidth": 1.3, "lines.linewidth": 3, "xtick.major.width": 1.3,
        "ytick.major.width": 1.3, "xtick.major.size": 6, "ytick.major.size": 6,
    }),
}  # fmt: skip


def named(style: str) -> Sheet:
    """Return a style sheet by name."""
    if style not in SHEETS:
        raise unknown("style", style, SHEETS)
    return SHEETS[style]


# Of every file: fonts are embedded as TrueType, which publishers ask for; texts of an SVG stay text; images that are
# not merged stay small, with sharp pixels.
_FILES: dict[Any, Any] = {
    "pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "lottery",
    "image.composite_image": False,
}  # fmt: skip


def as_svg(figure: Any, label: str) -> str:
    """Convert a figure to SVG for an HTML page: small, the same bits each time, with ids that no other figure has.

    Returns:
        One ``<svg>`` element without XML declaration, metadata and external links, with text as text in the page's
        sans-serif font, and lengths in points to two decimals. A screen reader reads the label.
    """
    _, start, text = saved(figure, "svg").decode().partition("<svg")
    # Numbers of many places, and space between elements, would only make the page larger.
    text = re.sub(r'="([^"]*)"', lambda found: f'="{_rounded(found[1])}"', start + text)
    text = re.sub(r">\s+<", "><", text).strip()
    # Matplotlib turns every text, most of them by nothing.
    text = re.sub(r' transform="rotate\(-0 [^"]*"', "", text)
    # The page chooses the font, in place of Matplotlib's list of names.
    text = re.sub(r"(?:'[^'\"]*', )+sans-serif", "sans-serif", text)
    # Within HTML, references need no namespace.
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

        def _repr_png_(self) -> bytes:
            # Jupyter shows figures of pyplot by itself, and this is none.
            return saved(self, "png")

    figure = Saved(figsize=(width, width), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def saved(figure: Any, ending: str, dpi: int = SHEETS["screen"].dpi) -> bytes:
    """Return the content of a figure's file (png, svg, pdf), the same bits each time: without the date."""
    dated = {"svg": ("Date", "Creator", "Format", "Type"), "pdf": ("CreationDate",)}.get(ending, ())
    file = io.BytesIO()
    # A key that is None is left out, and not filled in by Matplotlib.
    figure.savefig(file, format=ending, dpi=dpi, metadata=dict.fromkeys(dated) or None)
    return file.getvalue()


_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "≥": r"$\geq$",
})  # fmt: skip


def latex(text: str) -> str:
    r"""Write a text as a LaTeX ``\caption{...}``."""
    escaped = text.translate(_LATEX).replace(r" \%", r"\,\%").replace("n = ", "$n$ = ")
    return rf"\caption{{{escaped}}}"


def write(path: str | Path, draw: Callable[[], Any], dpi: int = SHEETS["screen"].dpi) -> Path:
    """Write the figure that a function draws to a file, whose ending decides the format, and return its path.

    Raises:
        LotteryError: An unknown ending, before anything is drawn, or a file that cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    path = Path(path)
    ending = path.suffix.lstrip(".")
    if ending not in FigureCanvasAgg.get_supported_filetypes():
        raise unknown("The ending of a figure's file", ending, ("png", "svg", "pdf"))
    figure = draw()
    try:
        content = saved(figure, ending, dpi)
    # Some formats take a program, as pgf takes LaTeX.
    except (OSError, RuntimeError, ImportError) as error:
        why = printable_all(str(error).strip().partition("\n")[0])
        raise LotteryError(f"This machine cannot write {ending} ({why}). Use png, svg or pdf.") from None
    files.write(path, content)
    return path


def _rounded(attribute: str) -> str:
    # What looks like numbers there is the content of an image.
    if "base64" in attribute:
        return attribute
    short = re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), attribute)
    return " ".join(short.split())
