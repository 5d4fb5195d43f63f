"""The tables of a page that has several runs side by side."""

from collections.abc import Sequence
from typing import Any

from lottery import config, contests
from lottery.errors import LotteryError
from lottery.facts import Facts
from lottery.sections import Grid, difference, key_facts, number, plain


def side_by_side(runs: Sequence[Facts]) -> Grid:
    """The key facts of several runs, and in what their experiments differ, a column for each."""
    facts = [key_facts(one) for one in runs]
    names = list(dict.fromkeys(name for one in facts for name in one))
    rows = [[name, *(one.get(name, "") for one in facts)] for name in names]
    settings = [config.flat(one.experiment.model_dump(mode="json")) for one in runs]
    for key in dict.fromkeys(key for one in settings for key in one):
        values = [plain(one.get(key)) for one in settings]
        if len(set(values)) > 1 and key != "name":
            rows.append([key, *values])
    return Grid(["", *(one.label for one in runs)], rows, "Below the key facts: every setting in which they differ.")


def same_rounds(runs: Sequence[Facts]) -> list[Grid | str]:
    """The tickets of several runs round by round, those together that have pairs; or why they cannot be compared."""
    groups: dict[tuple[Any, ...], list[Facts]] = {}
    for one in runs:
        groups.setdefault((one.environment.get("data_sha256"), one.experiment.run.seed), []).append(one)
    found: list[Grid | str] = [_contest(group) for group in groups.values() if len(group) > 1]
    if len(groups) > 1:
        found.append("Runs on other data, or from another seed, have no pairs to be compared by.")
    return found


def _contest(runs: Sequence[Facts]) -> Grid | str:
    try:
        found = contests.contested({one.label: one.rows for one in runs})
    except LotteryError as error:
        return str(error)
    rows = []
    for line in found.to_dict("records"):
        less = {"mean": line["difference"], "low": line["difference_low"], "high": line["difference_high"]}
        empty = line["difference"] != line["difference"]
        where = [line["run"], str(line["round"]), f"{line['density']:.4f}", number(line["accuracy"])]
        rows.append([*where, *(["", ""] if empty else difference(less))])
    heads = ["run", "round", "density", "test accuracy", f"less {runs[0].label}", "95 % interval"]
    return Grid(heads, rows, "Paired by replicate; within a round the best first.")
