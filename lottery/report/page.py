"""One HTML page about runs, to be mailed: it fetches nothing, and writing it does not need TensorFlow."""

import base64
import hashlib
import json
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lottery import config, files
from lottery.analysis import connectivity
from lottery.errors import LotteryError
from lottery.report import checklist, figures, first_layer, tables
from lottery.report.tables import ReportedRun
from lottery.runs import store
from lottery.statistics import verdicts

_PARTS = {ending: Path(__file__).with_name(f"report.{ending}") for ending in ("html.jinja", "css", "js")}


def write(
    runs: Sequence[str | Path],
    out: str | Path,
    tolerance: float | None = None,
    author: str = "",
) -> Path:
    """Write the page about runs, complete or not, side by side if there are several, and return its path.

    Args:
        runs: The runs' folders.
        out: The file, ending in ``.html``; it is written whole or not at all.
        tolerance: What a matching ticket may lose; see `lottery.api.Run.verdict`.
        author: Who made the runs; the page names no author by default.

    Raises:
        LotteryError: A folder is no run or has no complete round, or the file cannot be written.
    """
    path = Path(out)
    if path.suffix not in (".html", ".htm"):
        raise LotteryError(f"--out: received {str(out)!r}, allowed is a file that ends in .html.")
    files.write(path, render(tables.gathered([Path(run) for run in runs], tolerance), author).encode())
    return path


def render(runs: Sequence[ReportedRun], author: str = "") -> str:
    """Render the page with everything in it: styles, script, figures as SVG, the rows of each run as a link."""
    import jinja2

    # A run may come from a stranger, so all text is escaped unless the template marks it as safe.
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    parts = {ending: path.read_text(encoding="utf-8") for ending, path in _PARTS.items()}
    several = len(runs) > 1
    chapters = [_chapter(one, f"run-{place}", author) for place, one in enumerate(runs, 1)]
    together = [figures.together(runs)] if several else []
    shown = [*together, *(figure for chapter in chapters for drawn in chapter["figures"].values() for figure in drawn)]
    return environment.from_string(parts["html.jinja"]).render(
        title=" · ".join(one.label for one in runs),
        style=parts["css"],
        script=parts["js"],
        script_sha256=base64.b64encode(hashlib.sha256(parts["js"].encode()).digest()).decode(),
        colors=figures.colors(shown),
        chapters=chapters,
        side_by_side=tables.side_by_side(runs) if several else None,
        same_rounds=tables.same_rounds(runs) if several else [],
        together=together,
        checklist=checklist.checked(runs),
        leaves_out=checklist.LEAVES_OUT,
        version=version("lottery"),
        today=tables.day(time.time()),
    )


def _chapter(one: ReportedRun, anchor: str, author: str) -> dict[str, Any]:
    """Collect everything that the template shows of a run."""
    drawn, missing = figures.drawn(one)
    architecture = one.environment.get("architecture") or {}
    stored, wanted = store.progress(one.path, one.experiment)
    rows = base64.b64encode(one.rows.to_csv(index=False).encode()).decode()
    return {
        "one": one,
        "anchor": anchor,
        "byline": tables.byline(one, author),
        "verdict": verdicts.sentences(one.rows, one.rule, (stored, wanted), one.judged),
        "tone": verdicts.headline(one.rows, one.rule, lines=one.judged).tone,
        "verdict_key": tables.verdict_key(one),
        "warnings": tables.collapsed(one),
        "key_facts": tables.key_facts(one),
        "tables": tables.of_run(one),
        "figures": drawn,
        "missing": missing,
        "first_layer": first_layer.frames(one),
        "connectivity": connectivity.sentences(one.table("instability")),
        "architecture": json.dumps(architecture, indent=1) if "keras" in architecture else "",
        "protocol": config.dump(one.experiment),
        "rows": f"data:text/csv;base64,{rows}",
    }
