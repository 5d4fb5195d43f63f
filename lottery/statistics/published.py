"""Numbers from papers and elsewhere, each with its source, and how well a run reproduces them.

They stand as ``[[claim]]`` tables in the experiment files that come with the package.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from lottery import config, formatting
from lottery.errors import LotteryError, first_wrong, unknown
from lottery.runs import store
from lottery.statistics import results
from lottery.statistics.claims import CANNOT_TELL, FAIL, MISSING, OPEN, PASS, READINGS, STEP, Claim
from lottery.text_tables import Table

READING = (
    f"{PASS}: the whole 95 % interval over replicates meets the bound in brackets, which is ours; {FAIL}: no part of "
    f"the interval meets it; {CANNOT_TELL}: only a part meets it; {OPEN}: the numbers are {MISSING}."
)


class Published(NamedTuple):
    """An experiment that comes with the package, and what its sources state."""

    experiment: config.Experiment
    claims: Sequence[Claim]


def files() -> dict[str, Path]:
    """Find the experiment files with claims, by the name of their experiment."""
    found = {}
    for path in config.shipped().values():
        # Not by `config.read`, which leaves the claims out.
        tables = config.parsed(path, path.read_bytes())
        if "claim" in tables:
            found[tables["name"]] = path
    return found


def read(path: Path) -> Published:
    """Read the claims of an experiment file, or raise a `LotteryError`."""
    try:
        claims = [Claim.model_validate(table) for table in config.parsed(path, path.read_bytes())["claim"]]
    except ValidationError as error:
        raise LotteryError(f"A [[claim]] of {str(path)!r} cannot be read: {first_wrong(error)}") from None
    return Published(config.load(path), claims)


def compare(run: store.Folder, against: str = "") -> tuple[list[dict[str, str]], list[str]]:
    """Compare a run, finished or not, with the claims of a file that comes with the package.

    The file is that of the preset `against`; by default, the file that has the name of the run's experiment.

    Returns the lines of `checked`, and sentences: the sources, where the run differs, what the paper leaves open.
    """
    experiment = store.read_experiment(run)
    known = files()
    if against:
        presets = {path.stem: path for path in known.values()}
        if against not in presets:
            raise unknown("--against", against, presets)
        path = presets[against]
    elif experiment.name in known:
        path = known[experiment.name]
    else:
        raise LotteryError(
            f"No published experiment has the name of this run, {experiment.name!r}. Say which to compare it with, by "
            f"--against NAME: {formatting.listed([path.stem for path in known.values()], 'or')}."
        )
    published = read(path)
    lines = checked(results.table(run), published.claims)
    sources = [f"[{number}] {kind}: {text}, {link}" for (kind, text, link), number in numbered(lines).items()]
    left_open = [f"The paper leaves open: {what}." for claim in published.claims for what in claim.leaves_open]
    return lines, [*sources, *differing(experiment, published), *left_open]


def checked(rows: Table, claims: Iterable[Claim]) -> list[dict[str, str]]:
    """Look for each number in the rows of `lottery.statistics.results.table`.

    A line has ``claim, source, stated, bound, measured, verdict, reference, link``. The verdict is
    "pass" where the whole 95 % interval over replicates meets the bound, "fail" where none of it does, "cannot tell"
    where a part does, and "open" where the run lacks rows. Of several rounds each must pass; a line fails if a round
    fails at 95 % for all of its rounds together. A mean early-stop step is only a lower bound where one of them is the
    last step; a verdict that this could turn is "cannot tell".
    """
    rows = rows.assign(censored=rows[STEP] >= rows["last_step"])
    lines = []
    for claim in claims:
        if claim.what == "settings":
            continue
        found = READINGS[claim.what](rows, claim)
        lines.append({
            "claim": claim.text, "source": claim.source, "stated": claim.stated, "bound": claim.bound,
            "measured": found.text, "verdict": found.verdict, "reference": claim.reference, "link": claim.link,
        })  # fmt: skip
    return lines


def numbered(lines: Iterable[Mapping[str, str]]) -> dict[tuple[str, str, str], int]:
    """Number the sources of lines from 1, in order: each a kind, a reference and a link."""
    found = dict.fromkeys((line["source"], line["reference"], line["link"]) for line in lines)
    return {source: number for number, source in enumerate(found, 1)}


def stated(published: Published) -> dict[str, tuple[str, Any]]:
    """Gather by key who states a setting, by the ``source`` of the claim, and its value there."""
    settings = _settings(published.experiment)
    found = {}
    for claim in published.claims:
        own = {key: settings[key] for key in claim.settings} | claim.others
        found |= {key: (claim.source, value) for key, value in own.items()}
    return found


def differing(experiment: config.Experiment, published: Published) -> list[str]:
    """Name each setting that is not that of the paper, or of the authors' code, in a sentence."""
    settings = _settings(experiment)
    found = []
    for key, (source, value) in stated(published).items():
        if settings[key] != value:
            found.append(f"Differs: {key} is {settings[key]!r} here, and {value!r} in the source ({source}).")
    if experiment.data.path:  # a file may hold another split, or other images
        found.append(f"The data were read from {experiment.data.path!r}.")
    return found


def _settings(experiment: config.Experiment) -> dict[str, Any]:
    """Give the values of all sections by key; a table within a section is a value."""
    tables = {name: table for name, table in experiment.model_dump().items() if isinstance(table, dict)}
    return {f"{section}.{name}": value for section, table in tables.items() for name, value in table.items()}
