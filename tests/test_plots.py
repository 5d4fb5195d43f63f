import itertools

import matplotlib
import matplotlib.backends.backend_agg
import matplotlib.figure
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lottery import plots
from lottery.errors import LotteryError
from lottery.figures import sheets, style
from lottery.pruning.branches import BRANCHES
from tests.statistics.test_results import made_up

matplotlib.use("Agg")


def axes():
    return matplotlib.figure.Figure().subplots()


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


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
    assert legend(ax) == ["dense", "ticket", "lowest to highest, n = 2"]


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
        ("a.png", "acuracy", [[0.9]], "Did you mean 'accuracy'"),
        ("a.pgn", "accuracy", [[0.9]], "Did you mean 'png'"),
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


def test_bars_can_be_intervals_and_the_legend_and_the_caption_say_which():
    accuracies = [[0.9, 0.95, 0.91], [0.92, 0.91, 0.93], [0.91, 0.92, 0.96]]
    ax = plots.accuracy(made_up(accuracies), axes(), interval="t")
    ends = [stats.ttest_1samp(column, 0).confidence_interval() for column in zip(*accuracies, strict=True)]
    np.testing.assert_allclose(bars(ax.containers[0]), [(one.low, one.high) for one in ends])
    assert legend(ax)[-1] == "95 % t interval, n = 3" and not ax.get_title()
    text = "Means of n = 3 replicates, bars and grey band: 95 % t interval for the mean."
    assert text in plots.caption(made_up(accuracies), interval="t")
    band = ax.patches[0].get_extents().transformed(ax.transData.inverted())
    np.testing.assert_allclose((band.y0, band.y1), (ends[0].low, ends[0].high))
    assert "grey band: lowest to highest." in plots.caption(made_up(accuracies))
    with pytest.raises(LotteryError, match="must be 'range' or 't'"):
        plots.accuracy(made_up(accuracies), axes(), interval="s")


def test_one_replicate_has_no_bars():
    for interval in style.INTERVALS:
        ax = plots.accuracy(made_up([[0.9, 0.8]]), axes(), interval=interval)
        assert not ax.containers[0].has_yerr and legend(ax) == ["dense", "ticket"]
        assert "One replicate (n = 1)." in plots.caption(made_up([[0.9, 0.8]]), interval=interval)


def test_a_round_of_one_replicate_has_a_range_of_no_length_and_no_interval():
    rows = made_up([[0.9, 0.8], [0.92, 0.81]])[:3]
    ends = bars(plots.accuracy(rows, axes(), interval="range").containers[0])
    assert np.isfinite(ends).all() and ends[1][0] == ends[1][1] == pytest.approx(0.8)
    drawn = plots.accuracy(rows, axes(), interval="t").containers[0][2][0].get_segments()
    assert [len(segment) for segment in drawn] == [2, 0]


def test_every_branch_is_drawn_in_a_style_of_its_own():
    labels = ["ticket", *(name for name in BRANCHES if name != "transfer")]
    chains = {label: [[0.9 - 0.005 * place, 0.8 - 0.005 * place]] * 2 for place, label in enumerate(labels)}
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
    assert set(legend(ax)) == {"dense", *labels, "lowest to highest, n = 2"}


@pytest.mark.parametrize("width", [4.5, 7.2, 14])
@pytest.mark.parametrize("num", [1, 3, 5, 10])
def test_the_legend_does_not_cover_what_is_drawn(num, width):
    labels = ["ticket", *BRANCHES][:num]
    chains = [[0.9, 0.93, 0.91, 0.9, 0.7 - 0.02 * place] for place in range(num)]
    rows = [made_up([chain, chain], label) for label, chain in zip(labels, chains, strict=True)]
    figure = plots.drawn(pd.concat(rows, ignore_index=True), full=True, width=width)
    figure.draw_without_rendering()
    (ax,) = figure.axes
    box = ax.get_legend().get_window_extent()
    assert not box.overlaps(ax.get_window_extent())
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 + 1 and box.y1 <= figure.bbox.y1 + 1
    inside = ax.get_window_extent()
    assert inside.width > 0.55 * figure.bbox.width


def test_transfers_are_measured_on_other_data_and_not_drawn_beside_the_runs_own():
    rows = pd.concat([made_up([[0.9, 0.8]]), made_up([[0.3, 0.2]], "transfer-digits")], ignore_index=True)
    for draw in (plots.accuracy, plots.early_stop):
        rows["last_step"] = 1000
        assert not any("transfer" in text for text in legend(draw(rows, axes())))


def test_styles_differ_and_are_enough():
    assert all(len(set(column)) == len(style.STYLES) for column in zip(*style.STYLES, strict=True))
    assert len(style.STYLES) >= len(BRANCHES) + 1
    many = pd.concat([made_up([[0.9]], f"own_{place}") for place in range(len(style.STYLES) + 1)])
    with pytest.raises(LotteryError, match=f"at most {len(style.STYLES)} branches, not {len(style.STYLES) + 1}"):
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


# ---- for papers and slides


def test_styles_set_letters_lines_and_width():
    rows = pd.concat([made_up([[0.9, 0.8]]), made_up([[0.9, 0.7]], "random_mask")], ignore_index=True)
    sizes = {name: sheet.width for name, sheet in sheets.SHEETS.items()}
    assert sizes == {"screen": 7.2, "paper": 5.5, "slides": 10}
    letters = {}
    for name, width in sizes.items():
        figure = plots.drawn(rows, style=name)
        ax = figure.axes[0]
        assert figure.get_figwidth() == width and figure._suptitle is None
        figure.draw_without_rendering()  # ticks that are made later have the style as well
        assert ax.xaxis.label.get_fontname() == ("STIXGeneral" if name == "paper" else "DejaVu Sans")
        assert {tick.get_fontname() for tick in ax.get_xticklabels()} == {ax.xaxis.label.get_fontname()}
        letters[name] = ax.xaxis.label.get_fontsize(), ax.containers[0].lines[0].get_linewidth()
    assert letters["paper"] < letters["screen"] < letters["slides"]
    titled = plots.drawn(rows, style="paper", width=3.25, title="Mine")
    assert titled.get_figwidth() == 3.25 and titled.get_suptitle() == "Mine"
    assert matplotlib.rcParams["font.size"] == 10  # nothing is left behind


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"style": "papr"}, "style must be 'screen', 'paper' or 'slides', not 'papr'. Did you mean 'paper'"),
        ({"width": 2}, "width must be 4.5 to 40 inches with the style 'screen', not 2"),
        ({"width": float("nan"), "style": "paper"}, "width must be 3 to 40.* not nan"),
    ],
)
def test_styles_and_widths_that_do_not_exist_are_refused(options, message):
    with pytest.raises(LotteryError, match=message):
        plots.drawn(made_up([[0.9]]), **options)


def test_a_paper_has_t_intervals_and_the_screen_the_range():
    rows = made_up([[0.9, 0.8], [0.7, 0.81]])

    def ends(**options):
        (bars,) = [bar for bar in plots.drawn(rows, **options).axes[0].containers if bar.get_label() == "ticket"]
        return np.ptp(np.concatenate(bars[2][0].get_segments())[:, 1].reshape(-1, 2), axis=1).max()

    assert ends() == pytest.approx(0.2)
    assert ends(interval="t") == ends(style="paper") > 0.2
    assert ends(style="paper", interval="range") == pytest.approx(0.2)
    assert "95 % t interval" in plots.caption(rows, style="paper") and "lowest to highest" in plots.caption(rows)
    with pytest.raises(LotteryError, match="must be 'range' or 't', not 'std'"):
        plots.drawn(rows, interval="std")


@pytest.mark.parametrize("kind", ["accuracy", "early_stop", "speed"])
def test_labels_rename_branches_in_the_legend_alone(kind, small_run):
    rows = plots.read(small_run.path, kind)
    ax = plots.drawn(rows, kind, labels={"ticket": "winning tickets"}).axes[0]
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert "winning tickets" in texts and "ticket" not in texts
    with pytest.raises(LotteryError, match="The branch to label must be 'ticket', not 'tikcet'"):
        plots.drawn(rows, kind, labels={"tikcet": "x"})


def test_axes_in_per_cent(small_run):
    rows = made_up([[0.9, 0.8], [0.7, 0.8]])
    usual, ax = (plots.drawn(rows, axis=axis).axes[0] for axis in plots.AXES)
    assert (
        ax.get_xlabel() == "prunable weights kept (%)" and ax.get_ylabel() == "test accuracy (%) at the early-stop step"
    )
    assert ax.get_ylim() == usual.get_ylim()
    assert ax.xaxis.get_major_formatter()(0.2) == "20" and ax.yaxis.get_major_formatter()(0.955) == "95.5"
    fallen = pd.concat([made_up([[0.99, 0.98]]), made_up([[0.99, 0.5]], "random_mask")], ignore_index=True)
    legends = [legend(plots.drawn(fallen, axis=axis).axes[0]) for axis in plots.AXES]
    assert "random_mask\n(falls to 0.5)" in legends[0] and "random_mask\n(falls to 50 %)" in legends[1]
    classes = plots.read(small_run.path, "classes").assign(density=lambda table: 0.512 * 1e-4 ** (table["round"] - 1))
    ax = plots.drawn(classes, "classes", axis="percent").axes[0]
    assert ax.get_ylabel() == "test accuracy, ticket − dense (points)"
    assert [ax.yaxis.get_major_formatter()(value) for value in (-0.25, -0.0)] == ["−25", "0"]
    assert legend(ax)[1:4] == ["density 51.2 %", "density 0.00512 %", "density 5.12e-07 %"]
    ax = plots.drawn(plots.read(small_run.path, "layers"), "layers", axis="percent").axes[0]
    assert ax.get_ylabel() == "each weight kept (%)" and ax.yaxis.get_major_formatter()(0.5) == "50"
    with pytest.raises(LotteryError, match="'overlap' has no axis of densities or accuracies"):
        plots.drawn(plots.read(small_run.path, "overlap"), "overlap", axis="percent")
    with pytest.raises(LotteryError, match="axis must be 'fraction' or 'percent', not 'per cent'"):
        plots.drawn(rows, axis="per cent")


def test_a_figure_saved_by_its_user_has_truetype_fonts(tmp_path):
    figure = plots.drawn(made_up([[0.9, 0.8]]), style="paper")
    for ending in ("pdf", "ps"):
        figure.savefig(tmp_path / f"a.{ending}")
    assert b"/Type3" not in (tmp_path / "a.pdf").read_bytes() and b"/FontFile2" in (tmp_path / "a.pdf").read_bytes()
    assert b"/FontType 42" in (tmp_path / "a.ps").read_bytes()


def test_labels_that_are_too_long_are_broken():
    table = made_up([[0.9, 0.8]])
    ax = plots.drawn(table, style="slides", width=7).axes[0]
    assert ax.get_ylabel() == "test accuracy at\nthe early-stop step"
    assert plots.drawn(table, style="slides").axes[0].get_ylabel() == "test accuracy at the early-stop step"


def test_captions_for_latex():
    table = pd.concat([made_up([[0.9, 0.95], [0.8, 0.85]]), made_up([[0.9, 0.1]] * 2, "random_mask")])
    text = plots.latex_caption(table)
    assert text.startswith(r"\caption{Test accuracy") and text.endswith("}") and text.count("{") == text.count("}") == 1
    assert "Means of $n$ = 2 replicates, bars and grey band: lowest to highest." in text
    assert "Triangles" in text and "Triangles" not in plots.caption(table, full=True)
    special = sheets.latex("a_b & 5 % of {x} \\ −1 ≥ 2 #1 ~ ^")
    assert special == (
        r"\caption{a\_b \& 5\,\% of \{x\} \textbackslash{} $-$1 $\geq$ 2 \#1 \textasciitilde{} \textasciicircum{}}"
    )
