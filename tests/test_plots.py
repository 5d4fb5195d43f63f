import itertools

import matplotlib
import matplotlib.backends.backend_agg
import matplotlib.figure
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lottery import plots
from lottery.analysis import style
from lottery.errors import LotteryError
from lottery.pruning.branches import BRANCHES
from tests.runs.test_results import made_up

matplotlib.use("Agg")


def axes():
    return matplotlib.figure.Figure().subplots()


def test_every_point_drawn_is_the_tables():
    accuracies = [[0.9, 0.95, 0.91], [0.92, 0.91, 0.93]]
    ax = plots.accuracy(made_up(accuracies), axes())
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
    assert b"CreationDate" not in path.read_bytes() and b"dc:date" not in path.read_bytes()


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


def bars(container):
    return np.array([segment[:, 1] for segment in container.lines[2][0].get_segments()])


def test_bars_can_be_intervals_and_the_title_says_which():
    accuracies = [[0.9, 0.95, 0.91], [0.92, 0.91, 0.93], [0.91, 0.92, 0.96]]
    ax = plots.accuracy(made_up(accuracies), axes(), interval="t")
    ends = [stats.ttest_1samp(column, 0).confidence_interval() for column in zip(*accuracies, strict=True)]
    np.testing.assert_allclose(bars(ax.containers[0]), [(one.low, one.high) for one in ends])
    assert "t interval" in ax.get_title()
    band = ax.patches[0].get_extents().transformed(ax.transData.inverted())
    np.testing.assert_allclose((band.y0, band.y1), (ends[0].low, ends[0].high))
    assert "lowest to highest" in plots.accuracy(made_up(accuracies), axes()).get_title()
    with pytest.raises(LotteryError, match="allowed is 'range', 't'"):
        plots.accuracy(made_up(accuracies), axes(), interval="s")


def test_one_replicate_has_no_bars():
    for interval in style.INTERVALS:
        ax = plots.accuracy(made_up([[0.9, 0.8]]), axes(), interval=interval)
        assert not ax.containers[0].has_yerr and ax.get_title() == "one replicate"


def test_a_round_of_one_replicate_has_a_bar_of_no_length():
    rows = made_up([[0.9, 0.8], [0.92, 0.81]])[:3]
    for interval in style.INTERVALS:
        ends = bars(plots.accuracy(rows, axes(), interval=interval).containers[0])
        assert np.isfinite(ends).all() and ends[1][0] == ends[1][1] == pytest.approx(0.8)


def test_every_branch_is_drawn_in_a_style_of_its_own():
    labels = ["ticket", *list(BRANCHES)[:-1], "transfer-mnist"]
    chains = {label: [[0.9 - 0.01 * place, 0.8 - 0.01 * place]] * 2 for place, label in enumerate(labels)}
    rows = pd.concat([made_up(chain, label) for label, chain in chains.items()], ignore_index=True)
    ax = plots.accuracy(rows, axes())
    assert [container.get_label() for container in ax.containers] == labels
    lines = [container.lines[0] for container in ax.containers]
    for line, label in zip(lines, labels, strict=True):
        np.testing.assert_allclose(np.asarray(line.get_ydata(), float), chains[label][0])
    drawn = [(line.get_color(), line.get_marker(), str(line._dash_pattern)) for line in lines]
    for one, other in itertools.combinations(drawn, 2):
        assert all(mine != theirs for mine, theirs in zip(one, other, strict=True))
    assert all(lines[0].get_linewidth() > line.get_linewidth() for line in lines[1:])
    assert {text.get_text() for text in ax.get_legend().get_texts()} == {"dense", *labels}


@pytest.mark.parametrize("num", [1, 3, 5, 10])
def test_the_legend_does_not_cover_a_point(num):
    labels = ["ticket", *BRANCHES][:num]
    chains = [[0.9, 0.93, 0.91, 0.9, 0.7 - 0.02 * place] for place in range(num)]
    rows = pd.concat([made_up([chain], label) for label, chain in zip(labels, chains, strict=True)], ignore_index=True)
    figure = matplotlib.figure.Figure(figsize=(8.4, 4.2), layout="constrained")
    matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
    ax = plots.accuracy(rows, figure.subplots())
    figure.canvas.draw()
    box = ax.get_legend().get_window_extent()
    points = np.concatenate([ax.transData.transform(np.asarray(c.lines[0].get_xydata(), float)) for c in ax.containers])
    assert not any(box.contains(*point) for point in points)
    if num > 3:
        assert box.x0 >= ax.get_window_extent().x1  # beside the axes, where no bar can be either


def test_styles_differ_and_are_enough():
    assert all(len(set(column)) == len(style.STYLES) for column in zip(*style.STYLES, strict=True))
    assert len(style.STYLES) >= len(BRANCHES) + 1
    many = pd.concat([made_up([[0.9]], f"transfer-{place}") for place in range(len(style.STYLES) + 1)])
    with pytest.raises(LotteryError, match=f"at most {len(style.STYLES)} branches, received {len(style.STYLES) + 1}"):
        plots.accuracy(many, axes())


def test_several_figures_fit_beside_each_other():
    """Nothing that is drawn reaches out of its axes but labels and the legend, so layouts can make room for it."""
    rows = pd.concat([made_up([[0.9, 0.8]]), made_up([[0.9, 0.1]], "random_mask")], ignore_index=True)
    figure = matplotlib.figure.Figure(figsize=(7, 7), layout="constrained")
    matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2)
    plots.accuracy(rows, upper)
    plots.early_stop(rows, lower)
    figure.canvas.draw()
    assert upper.bbox.height > 150 and lower.bbox.height > 150
