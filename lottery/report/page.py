"""One HTML page about runs, to be mailed: it fetches nothing, and writing it does not need TensorFlow."""

import base64
import hashlib
import itertools
import json
import time
from collections.abc import Sequence
from importlib.metadata import version
from os import PathLike
from pathlib import Path
from typing import Any

from lottery import config, files, formatting
from lottery.analysis import connectivity
from lottery.errors import LotteryError
from lottery.report import checklist, figures, reported, tables
from lottery.report.reported import ReportedRun
from lottery.statistics import results, sentences

_PARTS = {ending: Path(__file__).with_name(f"report.{ending}") for ending in ("html.jinja", "css", "js")}


def write(
    runs: Sequence[str | PathLike[str]], out: str | Path, tolerance: float | None = None, author: str = ""
) -> Path:
    """Write the page about runs, complete or not, side by side if there are several, and return its path.

    Args:
        runs: The runs' folders.
        out: The file, ending in ``.html``; it is written whole or not at all.
        tolerance: What a matching ticket may lose; see `lottery.api.Run.verdict`.
        author: Who made the runs; by default the page names nobody.

    Raises:
        LotteryError: A folder is no run or has no complete round, or the file cannot be written.
    """
    path = Path(out)
    if path.suffix not in (".html", ".htm"):
        raise LotteryError(f"--out must be a file that ends in .html, not {str(out)!r}.")
    files.write(path, render(reported.gathered([Path(run) for run in runs], tolerance), author).encode())
    return path


def render(runs: Sequence[ReportedRun], author: str = "") -> str:
    """Render the page with everything in it: styles, script, figures as SVG, the rows of each run as a link."""
    import jinja2

    # A run may come from a stranger, so all text is escaped unless the template marks it as safe.
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    # Without spaces: the counts of the first layer may be as many numbers as `figures.MOST`.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    parts = {ending: path.read_text(encoding="utf-8") for ending, path in _PARTS.items()}
    chapters = [_chapter(run, f"run-{place}", author) for place, run in enumerate(runs, 1)]
    together, side_by_side = [], None
    if len(runs) > 1:
        together = figures.together(runs)
        side_by_side = tables.side_by_side(runs)
    by_kind = [of_kind for chapter in chapters for of_kind in chapter["figures"].values()]
    return environment.from_string(parts["html.jinja"]).render(
        title=" · ".join(run.label for run in runs),
        style=parts["css"],
        script=parts["js"],
        # The policy of the page lets no other script run.
        script_sha256=base64.b64encode(hashlib.sha256(parts["js"].encode()).digest()).decode(),
        colors=figures.colors(itertools.chain(together, *by_kind)),
        chapters=chapters,
        side_by_side=side_by_side,
        same_rounds=tables.same_rounds(runs),  # none of one run
        together=together,
        checklist=checklist.checked(runs),
        version=version("lottery"),
        today=tables.day(time.time()),
    )


def _chapter(run: ReportedRun, anchor: str, author: str) -> dict[str, Any]:
    """Collect everything that the template shows of a run."""
    drawn, missing = figures.drawn(run)
    architecture = run.environment.get("architecture") or {}
    headline = sentences.headline(run.judgement)
    rows = base64.b64encode(run.rows.to_csv(index=False).encode()).decode()
    return {
        "run": run,
        "anchor": anchor,
        "about": tables.about(run),
        "byline": tables.byline(run, author),
        "headline": headline._replace(text=formatting.unbroken(headline.text)),
        "limits": sentences.limits(run.judgement),
        "warnings": results.collapsed(run.path),
        "size": tables.size(run),
        "tables": tables.of_run(run),
        "figures": drawn,
        "missing": missing,
        "first_layer": figures.frames(run),
        "connectivity": connectivity.sentences(run.table("instability")),
        "architecture": json.dumps(architecture, indent=1) if "keras" in architecture else "",
        "protocol": config.dump(run.experiment),
        "rows": f"data:text/csv;base64,{rows}",
    }
