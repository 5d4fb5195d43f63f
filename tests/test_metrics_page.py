"""docs/metrics.md and docs/files.md describe exactly what there is: each column, key and file, and no other."""

import ast
import inspect
import re
import textwrap
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lottery import files, plots
from lottery.analysis import (
    ANALYSES,
    classes,
    connectivity,
    costs,
    curves,
    distances,
    inputs,
    layers,
    overlaps,
    survivors,
)
from lottery.pipeline import branch_training, branching, network_training, rounds, sibling_training
from lottery.pruning import branches
from lottery.runs import records, siblings, store
from lottery.runs.stored import StoredRound
from lottery.statistics import aggregates, comparison, results, two_way, verdicts
from lottery.training import course

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {name: (DOCS / name).read_text() for name in ("metrics.md", "files.md")}


def documented(section, head="column", page="metrics.md"):
    """The names in the first column of the table with this head, in the section whose heading ends with a name."""
    (text,) = re.findall(rf"^## [^\n]*\b{re.escape(section)}\n(.*?)(?=^## |\Z)", PAGES[page], re.M | re.S)
    (table,) = re.findall(rf"^\| {head} \|.*\n\| ---.*\n((?:\|.*\n)+)", text, re.M)
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()]
    assert len({len(row) for row in rows}) == 1 and all(row[1] for row in rows), "a row lacks its definition"
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row[0])]


FRAMES = {
    "results.table": lambda run, rows: rows,
    "results.summary": lambda run, rows: results.summary(rows),
    "verdicts.differences": lambda run, rows: verdicts.differences(rows),
    "verdicts.judged": lambda run, rows: verdicts.judged(rows),
    "curves.table": lambda run, rows: curves.table(run),
    "layers.table": lambda run, rows: layers.table(run),
    "layers.degrees": lambda run, rows: layers.degrees(run, [3]),
    "classes.table": lambda run, rows: classes.table(run),
    "survivors.table": lambda run, rows: survivors.table(run, [3]),
    "inputs.table": lambda run, rows: inputs.table(run, [3]),
    "overlaps.table": lambda run, rows: overlaps.table(run, 3),
    "distances.table": lambda run, rows: distances.table(run),
    "costs.table": lambda run, rows: costs.table(run),
    "aggregates.scores": lambda run, rows: _scores(rows),
    "aggregates.summary": lambda run, rows: aggregates.summary(_scores(rows)),
    "aggregates.profile": lambda run, rows: aggregates.profile(_scores(rows)),
    "two_way.table": lambda run, rows: two_way.table(run),
    "comparison.compared": lambda run, rows: comparison.compared({"one": rows, "other": rows}),
}


def _scores(rows):
    return aggregates.gathered({("", task): rows for task in ("one", "other")})


@pytest.mark.parametrize("section", FRAMES)
def test_columns_of_a_frame_are_those_of_the_page(small_run, section):
    frame = FRAMES[section](small_run.path, small_run.table())
    assert documented(section) == list(frame.columns)
    assert len(frame)


def test_columns_of_points_and_barriers_are_those_of_the_page(small_run, tmp_path):
    """On a path of three points, for a run has none until they are measured."""
    run = tmp_path / "run"
    for file in ("experiment.toml", "environment.json", "replicate-1/round-00/round.json"):
        files.write(run / file, (small_run.path / file).read_bytes())
    rows = [(alpha, "test", 0.1, error) for alpha, error in ((0.0, 0.2), (0.5, 0.9), (1.0, 0.4))]
    pair = siblings.Siblings(run, small_run.experiment, 1, 0, 0)
    dense, path = StoredRound(small_run.path, 1, 0), pair.path_file()
    record = {**dense.record, "branch": pair.branch(2)}
    store.write_round(pair.network(2).folder, dense.masks, {}, [], record)
    siblings.write_path(path, rows, pair.digests())
    assert set(documented("path-step_500.json", "key", "files.md")) == set(siblings.read_path(path)[0])
    points = connectivity.points(run)
    barriers = connectivity.barriers(points)
    assert documented("connectivity.points") == list(points.columns)
    assert documented("connectivity.barriers") == list(barriers.columns)
    assert barriers["barrier"].tolist() == pytest.approx([0.9 - 0.3])


def test_keys_of_a_total_are_those_of_the_page(small_run):
    assert documented("costs.total", "key") == list(costs.total(small_run.path))


def test_keys_of_a_record_are_those_of_the_page(small_run):
    for row in small_run.table().itertuples():
        record = store.read_record(store.round_path(small_run.path, row.replicate, row.round))
        assert set(record) == set(documented("round.json", "key"))
    assert len(documented("round.json", "key")) == len(set(documented("round.json", "key")))


def test_keys_of_some_records_are_those_of_the_page(monkeypatch):
    """What is written of a branch, of a transfer, of a late rewinding, of a sibling and of a network that the sparse
    engine trains, beside what every record has."""
    written = {}

    def store_network(training, network, trained, details):
        written.update(details)

    kept = {"kernel": np.ones(3, bool)}
    origin = branches.StoredTicket(kept, {"kernel": np.ones(3)}, 5, 9, np.random.default_rng(0), dict, lambda: None)
    monkeypatch.setattr(branch_training, "_stored_ticket", lambda *_: origin)
    monkeypatch.setattr(branch_training, "_check_start", lambda *_: None)
    monkeypatch.setattr(network_training, "train_network", lambda *_, **__: SimpleNamespace(changes=[]))
    monkeypatch.setattr(network_training, "store_network", store_network)
    monkeypatch.setattr(network_training, "dense_loss_step", lambda *_: 7)
    settings = SimpleNamespace(rewind=SimpleNamespace(step=5, mode="weights"), train=SimpleNamespace(num_steps=9))
    training = SimpleNamespace(experiment=settings)
    branch_training.train_branch(training, store.NetworkId(1, 2, "untrained"), branches.untrained)
    of_branches = set(written) - set(documented("round.json", "key"))
    assert of_branches == {"control", "first_step", "last_step"}

    literals = {
        "transfer": keys_written(branching.branch, "details"),
        "learned masks": keys_written(branch_training._learned, "details") - {"seconds"},
        "siblings": keys_written(sibling_training.train_sibling, "about"),
        "changes": keys_written(branch_training.train_branch, "about") - of_branches - {"dense_loss_step"},
        "rewinding": keys_written(rounds.Chain, "details") - {"thresholds", "dense_loss_step"},
        "another machine": {"elsewhere"},
        "budget": {key for key in records._Round.model_fields if key.startswith("budget")},
        "engine": keys_written(course.Course.finish, "engine") - set(documented("round.json", "key")),
    }
    assert all(literals.values())
    assert set(documented("round.json", "key of some")) == of_branches.union(*literals.values())


def keys_written(function, name):
    """The keys of the dicts that a function's source gives to a name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    keys = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(name in ast.unparse(target).split(", ") for target in targets):
            keys |= {one.value for dict_ in ast.walk(node.value) if isinstance(dict_, ast.Dict) for one in dict_.keys}
    return keys


def test_keys_of_the_environment_are_those_of_the_page(small_run):
    """Some keys are there in some runs only; other tests read them."""
    sometimes = ("observed", "units", "accuracy", "loss", "cautions")
    keys = [key for key in documented("environment.json", "key", "files.md") if key not in sometimes]
    assert keys == list(store.read_environment(small_run.path))


def test_files_of_a_run_are_those_of_the_page(small_run):
    """Each file that is there is in the tree, with numbers and names of branches left out; what has no place is none."""
    (tree,) = re.findall(r"^```text\n(runs/.*?)^```", PAGES["files.md"], re.M | re.S)
    listed, folders = set(), []
    for line in tree.splitlines()[1:]:
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        folders[depth - 1 :] = [name.rstrip("/")]
        listed.add(plain("/".join(folders)))
    for path in small_run.path.rglob("*"):
        assert plain(str(path.relative_to(small_run.path))) in listed, path
    assert plain("replicate-2/round-11/branch-untrained/round.json") in listed


def plain(path):
    return re.sub(r"branch-[a-z]\w*", "branch-B", re.sub(r"\d+", "0", path))


def test_every_kind_of_figure_and_every_analysis_is_on_the_page():
    text = (DOCS / "seeing.md").read_text()
    (table,) = re.findall(r"^\| kind \|.*\n\| ---.*\n((?:\|.*\n)+)", text, re.M)
    assert re.findall(r"^\| `(\w+)`", table, re.M) == list(plots.kinds())
    named = {name for name, one in ANALYSES.items() if one.columns}
    assert set(re.findall(r"^lottery analyze (\w+)", text, re.M)) == named
