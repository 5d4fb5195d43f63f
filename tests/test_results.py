import csv
import statistics

import matplotlib
import numpy as np
import pandas as pd
import pytest

from lottery import files, plots, results, store
from lottery.errors import LotteryError

matplotlib.use("Agg")


def made_up(accuracies):
    """A tidy table from accuracies by replicate and round."""
    rows = []
    for replicate, row in enumerate(accuracies, 1):
        for index, value in enumerate(row):
            record = dict.fromkeys(results.COLUMNS, 0.0) | {
                "replicate": replicate, "branch": "ticket", "round": index, "density": 0.8**index,
                "num_kept": round(1000 * 0.8**index), "early_stop_step": 100 * replicate,
                "early_stop_test_accuracy": value, "final_test_accuracy": value - 0.01,
            }  # fmt: skip
            rows.append(record)
    return pd.DataFrame(rows, columns=list(results.COLUMNS))


def test_the_table_is_what_the_files_say(small_run):
    rows = small_run.table()
    for _, row in rows.iterrows():
        folder = store.round_path(small_run.path, row["replicate"], row["round"])
        kept = files.read_masks(folder / "masks.safetensors")
        assert row["num_kept"] == sum(int(mask.sum()) for mask in kept.values())
        curve = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
        validation = {int(one["step"]): float(one["loss"]) for one in curve if one["split"] == "validation"}
        assert list(validation) == [0, 40, 80, 110]
        assert row["early_stop_step"] == min(validation, key=lambda step: (validation[step], step))
        assert row["final_val_loss"] == validation[110]
        tests = {int(one["step"]): float(one["accuracy"]) for one in curve if one["split"] == "test"}
        assert row["final_test_accuracy"] == tests[110]
        assert row["early_stop_test_accuracy"] == tests[row["early_stop_step"]]
        assert row["seconds"] > 0


def test_summary_equals_pythons_statistics():
    accuracies = [[0.9, 0.95, 0.91], [0.92, 0.91, 0.93], [0.97, 0.9, 0.99]]
    for index, row in results.summary(made_up(accuracies)).iterrows():
        column = [one[index] for one in accuracies]
        assert row["accuracy_mean"] == pytest.approx(statistics.mean(column))
        assert row["accuracy_std"] == pytest.approx(statistics.stdev(column))
        assert (row["accuracy_min"], row["accuracy_max"]) == (min(column), max(column))
        assert row["replicates"] == 3 and row["early_stop_step_mean"] == 200
        assert row["final_accuracy_mean"] == pytest.approx(statistics.mean(column) - 0.01)


@pytest.mark.parametrize(
    ("accuracies", "tolerance", "expected"),
    [
        ([[0.9, 0.9, 0.8]], 0.0, 1),
        ([[0.9, 0.91, 0.895, 0.8]], 0.01, 2),
        ([[0.9, 0.8, 0.9, 0.7]], 0.002, 2),  # what lies between need not match
        ([[0.9, 0.88], [0.8, 0.82]], 0.0, 1),  # paired by replicate, on the mean
        ([[0.9, 0.8]], 0.05, None),
        ([[0.9]], 1.0, None),
    ],
)
def test_smallest_matching(accuracies, tolerance, expected):
    found = results.smallest_matching(made_up(accuracies), tolerance)
    assert (found and found["round"]) == expected
    if found:
        differences = [row[expected] - row[0] for row in accuracies]
        assert found["difference"] == pytest.approx(np.mean(differences))
        assert found["density"] == pytest.approx(0.8**expected) and found["replicates"] == len(accuracies)


def test_every_point_drawn_is_the_tables():
    accuracies = [[0.9, 0.95, 0.91], [0.92, 0.91, 0.93]]
    ax = plots.accuracy(made_up(accuracies), matplotlib.figure.Figure().subplots())
    (container,) = ax.containers
    x, y = (np.asarray(values, float) for values in container.lines[0].get_data())
    np.testing.assert_allclose(x, [1, 0.8, 0.64])
    np.testing.assert_allclose(y, np.mean(accuracies, axis=0))
    bars = np.array([segment[:, 1] for segment in container.lines[2][0].get_segments()])
    np.testing.assert_allclose(bars, np.stack([np.min(accuracies, 0), np.max(accuracies, 0)], 1))
    assert ax.get_xscale() == "log" and ax.get_xlim()[0] > ax.get_xlim()[1]  # dense on the left
    dense = next(line for line in ax.lines if line.get_label() == "dense")
    np.testing.assert_allclose(dense.get_ydata(), 0.91)
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {"dense", "ticket"}


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_plots_are_saved(tmp_path, ending):
    path = plots.save(made_up([[0.9, 0.8]]), tmp_path / "new" / f"a.{ending}")
    assert path.stat().st_size > 4000
    head = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    assert path.read_bytes().startswith(head)


@pytest.mark.parametrize(
    ("path", "kind", "rows", "message"),
    [
        ("a.png", "acuracy", [[0.9]], "did you mean 'accuracy'"),
        ("a.pgn", "accuracy", [[0.9]], "did you mean 'png'"),
        ("a.png", "accuracy", [], "no round is complete"),
        ("file/a.png", "accuracy", [[0.9]], "cannot be written"),
    ],
)
def test_plots_that_cannot_be_made_are_refused(tmp_path, path, kind, rows, message):
    (tmp_path / "file").touch()
    with pytest.raises(LotteryError, match=message):
        plots.save(made_up(rows), tmp_path / path, kind)


def test_a_collapsed_weight_is_said(small_run, tmp_path):
    import shutil

    copy = tmp_path / "run"
    shutil.copytree(small_run.path, copy)
    assert results.collapsed(copy) == []
    folder = store.round_path(copy, 2, 3)
    record = store.read_record(folder) | {"collapsed": ["dense/kernel"]}
    files.write_json(folder / "round.json", record | {"record_sha256": store._digest_of(record)})
    assert results.collapsed(copy) == ["Replicate 2, round 3: nothing is left of dense/kernel."]
