"""Every entry of the dict of analyses keeps the same contract."""

import shutil

import numpy as np
import pandas as pd
import pytest

from lottery import analysis
from lottery.errors import LotteryError
from lottery.runs import store
from tests.conftest import checksum

MORE = {"overlap": (2,)}  # what an analysis takes besides the run


@pytest.mark.parametrize("name", analysis.ANALYSES)
def test_an_analysis_gives_a_tidy_table_and_only_reads(name, small_run, tmp_path):
    path = tmp_path / "run"
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
