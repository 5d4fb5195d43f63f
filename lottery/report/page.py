"""One HTML page about runs that can be mailed: nothing on it is fetched, and nothing of it needs TensorFlow."""

import base64
import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from lottery import config, files
from lottery.analysis import connectivity
from lottery.errors import LotteryError
from lottery.report import checklist, figures, tables
from lottery.report.tables import Facts
from lottery.runs import store, verdicts

TEMPLATE = Path(__file__).with_name("report.html.jinja")


class Chapter(NamedTuple):
    """What the page says of one run."""

    one: Facts
    anchor: str
    verdict: list[str]
    collapsed: list[str]
    key_facts: dict[str, str]
    tables: dict[str, tables.Grid | None]
    figures: dict[str, list[figures.Figure]]
    missing: dict[str, list[str]]
    connectivity: list[str]
    progress: str
    architecture: str
    protocol: str
    rows: str


def write(runs: Sequence[str | Path], out: str | Path, tolerance: float = verdicts.TOLERANCE) -> Path:
    """Write the page about one run, or about several side by side.

    Args:
        runs: The runs' folders; they need not be complete.
        out: The file, ending in ``.html``; it is written whole or not at all.
        tolerance: Accuracy that a matching ticket may lose, in [0, 1].

    Returns:
        The path of the page.

    Raises:
        LotteryError: One is no run or has no complete round, or the file cannot be written.
    """
    path = Path(out)
    if path.suffix not in (".html", ".htm"):
        raise LotteryError(f"--out: received {str(out)!r}, allowed is a file that ends in .html.")
    files.write(path, render(tables.gathered([Path(run) for run in runs], tolerance)).encode())
    return path


def render(runs: Sequence[Facts]) -> str:
    """The page as text.

    Args:
        runs: What `lottery.report.tables.gathered` returns.

    Returns:
        HTML with everything in it: styles, figures as SVG, the rows of each run as a link to save them.
    """
    import jinja2

    # What a run's files hold is text of a stranger's, so everything is escaped that is not marked.
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    several = len(runs) > 1
    return template.render(
        title=" · ".join(one.label for one in runs),
        chapters=[_chapter(one, f"run-{place}") for place, one in enumerate(runs, 1)],
        side_by_side=tables.side_by_side(runs) if several else None,
        same_rounds=tables.same_rounds(runs) if several else [],
        together=[figures.together(runs)] if several else [],
        checklist=checklist.checked(runs),
        leaves_out=checklist.LEAVES_OUT,
        version=version("lottery"),
    )


def _chapter(one: Facts, anchor: str) -> Chapter:
    drawn, missing = figures.drawn(one)
    architecture = one.environment.get("architecture") or {}
    stored, wanted = store.progress(one.path, one.experiment)
    return Chapter(
        one,
        anchor,
        verdicts.sentences(one.rows, one.tolerance, one.word),
        tables.collapsed(one),
        tables.key_facts(one),
        {
            "rounds": tables.by_round(one),
            "controls": tables.controls(one),
            "transfers": tables.transfers(one),
            "weights": tables.by_weight(one),
            "barriers": tables.barriers(one),
            "published": tables.published(one),
            "costs": tables.costs_by_branch(one),
            "environment": tables.environment(one),
        },
        drawn,
        missing,
        connectivity.sentences(connectivity.barriers(one.paths)) if len(one.paths) else [],
        "" if stored == wanted else f"{stored} of {wanted} networks are trained; the rest of this page is about these.",
        json.dumps(architecture, indent=1) if "keras" in architecture else "",
        config.dump(one.experiment),
        f"data:text/csv;base64,{base64.b64encode(one.rows.to_csv(index=False).encode()).decode()}",
    )
