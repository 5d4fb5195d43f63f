"""Every entry of the dict of analyses keeps the same contract."""

import collections
import json
import shutil

import numpy as np
import pandas as pd
import pytest

from lottery import analysis, files, plots
from lottery.analysis import curves
from lottery.errors import LotteryError
from lottery.figures.record import Analysis
from lottery.report import page
from lottery.runs import store
from lottery.statistics import results
from tests.conftest import checksum

MORE = {"overlap": (2,)}  # what an analysis takes besides the run


@pytest.mark.parametrize("name", analysis.ANALYSES)
def test_an_analysis_gives_a_tidy_table_and_only_reads(name, small_run, tmp_path):
    path = tmp_path / small_run.path.name
    shutil.copytree(small_run.path, path)
    before = {one: checksum(one) for one in path.rglob("*") if one.is_file()}
    found = analysis.ANALYSES[name].table(path, *MORE.get(name, ()))
    assert isinstance(found, pd.DataFrame) and found.columns.is_unique
    assert {one: checksum(one) for one in path.rglob("*") if one.is_file()} == before
    if name in ("connectivity", "barrier", "instability"):
        assert found.empty  # nothing was measured
        return
    whose = ["one", "other"] if name == "overlap" else ["replicate"]
    assert len(found) and found[whose].notna().all(axis=None) and not found.duplicated().any()
    for column in ("density", "weight_density", "overlap", "chance", "sign_changes", "accuracy"):
        if column in found:
            assert found[column].dropna().between(0, 1).all()
    pd.testing.assert_frame_equal(found, analysis.ANALYSES[name].table(small_run.path, *MORE.get(name, ())))


@pytest.mark.parametrize("name", analysis.ANALYSES)
def test_what_is_no_run_is_refused(name, tmp_path):
    with pytest.raises(LotteryError, match=r"is not a run: it has no experiment\.toml"):
        analysis.ANALYSES[name].table(tmp_path, *MORE.get(name, ()))


@pytest.mark.parametrize("name", analysis.ANALYSES)
def test_a_run_without_a_round_gives_no_rows_or_a_sentence(name, small_run, tmp_path):
    path = store.run_path(tmp_path, small_run.experiment)
    path.mkdir()
    (path / "experiment.toml").write_bytes((small_run.path / "experiment.toml").read_bytes())
    try:
        found = analysis.ANALYSES[name].table(path, *MORE.get(name, ()))
    except LotteryError as error:
        assert str(error).endswith(".") and "\n" not in str(error)
    else:
        assert found.empty and len(found.columns) > 3


def test_densities_agree_between_analyses(small_run):
    """Four readers of the same masks."""
    layers = analysis.ANALYSES["layers"].table(small_run.path)
    kept = layers.groupby(["replicate", "branch", "round"])["kept"].sum()
    costs = analysis.ANALYSES["costs"].table(small_run.path).set_index(["replicate", "branch", "round"])["num_kept"]
    pd.testing.assert_series_equal(kept.sort_index(), costs.sort_index(), check_names=False)
    degrees = analysis.ANALYSES["degrees"].table(small_run.path)
    entries = degrees.assign(entries=degrees["degree"] * degrees["count"])
    by_side = entries.groupby(["replicate", "branch", "round", "side"])["entries"].sum().unstack("side")
    np.testing.assert_array_equal(by_side["in"], kept.sort_index())
    np.testing.assert_array_equal(by_side["out"], kept.sort_index())
    starts = analysis.ANALYSES["initial_weights"].table(small_run.path).groupby(["replicate", "round"])["count"].sum()
    np.testing.assert_array_equal(starts, kept.sort_index())
    first = layers[layers["weight"] == "dense/kernel"].set_index(["replicate", "round"])["kept"]
    read = analysis.ANALYSES["inputs"].table(small_run.path).groupby(["replicate", "round"])["kept"].sum()
    np.testing.assert_array_equal(read, first.sort_index())


# ---- an analysis of a user's own: all that adding one takes


def seconds(run):
    return results.table(run)[["replicate", "branch", "round", "density", "seconds"]]


def draw_seconds(table, ax=None, marker="o"):
    ax.plot(table["density"], table["seconds"], marker)
    ax.set_title("seconds by density")
    return ax


SECONDS = Analysis(
    seconds,
    draw_seconds,
    "Seconds of training by density.",
    columns=("seconds",),
    caption="Sparse networks take as long.",
)


def test_a_new_analysis_is_one_record_and_its_entry(small_run, tmp_path, monkeypatch, lottery_command):
    monkeypatch.setitem(analysis.ANALYSES, "seconds", SECONDS)
    run = small_run.path
    assert "seconds" in lottery_command("analyze", "--help").stdout
    assert "Seconds of training by density." in lottery_command("analyze", "seconds", "--help").stdout
    lines = [line.split() for line in lottery_command("analyze", "seconds", run).stdout.splitlines()]
    assert lines[0] == ["branch", "round", "density", "replicates", "seconds"] and len(lines) == 6
    mean = seconds(run).query("round == 2")["seconds"].mean()
    assert lines[4][:2] == ["ticket", "2"] and float(lines[4][5]) == pytest.approx(mean, abs=0.051)
    rows = json.loads(lottery_command("analyze", "seconds", run, "--json").stdout)
    assert [row["seconds"] for row in rows] == seconds(run)["seconds"].tolist()
    kinds = lottery_command("plot", "--help").stdout
    assert "seconds" in kinds and "Seconds of training by density." in kinds
    out = tmp_path / "seconds.svg"
    assert lottery_command("plot", run, "--kind", "seconds", "--out", out).stdout.strip() == str(out)
    assert "seconds by density" in out.read_text()
    refused = lottery_command("plot", run, "--kind", "second")
    assert refused.returncode == 2 and "'seconds'" in refused.stderr and "Did you mean 'seconds'" in refused.stderr
    assert plots.seconds is draw_seconds and "seconds" in dir(plots)
    whole = dict(analysis.ANALYSES)
    for kind in ("early_stop", "curves", "learning_curves", "distance", "degrees", "overlap"):  # drawn by other tests
        del analysis.ANALYSES[kind]
    try:
        text = page.write([run], tmp_path / "page.html").read_text()
    finally:  # in their order, which other tests see
        analysis.ANALYSES.clear()
        analysis.ANALYSES.update(whole)
    assert "Sparse networks take as long." in text and "seconds by density" in text


@pytest.mark.parametrize("kind", plots.kinds())
def test_a_figure_opens_each_file_of_a_round_once(kind, small_run, tmp_path, monkeypatch, lottery_command):
    opened, read = collections.Counter(), files.read
    monkeypatch.setattr(files, "read", lambda path, *most: opened.update([path]) or read(path, *most))
    done = lottery_command("plot", small_run.path, "--kind", kind, "--out", tmp_path / "a.svg")
    if kind in ("barrier", "instability"):
        assert "no path between two networks" in done.stderr
    else:
        assert done.returncode == 0 and (tmp_path / "a.svg").exists()
        of_rounds = {path: num for path, num in opened.items() if path.parent.name.startswith("round-")}
        assert of_rounds and max(of_rounds.values()) == 1, opened


def test_the_summary_of_curves_leaves_out_the_step_before_training_alone():
    columns = ("replicate", "branch", "round", "density", "step", "split", "loss", "accuracy")
    rows = [(1, "ticket", 0, 1.0, step, split, loss, 1 - loss) for step, split, loss in [
        (0, "validation", 0.01), (10, "validation", 0.3), (20, "validation", 0.4),
        (10, "train", 0.2), (20, "train", 0.5), (10, "test", 0.25), (20, "test", 0.6),
    ]]  # fmt: skip
    found = curves.summed(pd.DataFrame(rows, columns=columns)).set_index("split")
    # The test split is first measured at the early-stop step, and the training split after some steps.
    assert found["lowest_loss"].to_dict() == {"validation": 0.3, "train": 0.2, "test": 0.25}
    assert found["at_step"].tolist() == [10, 10, 10] and found.loc["test", "last_loss"] == 0.6
