"""Every kind of figure: what is drawn against an independent computation, and a contract over all of them."""

import functools
import itertools
import re
import shutil
import zlib
from xml.etree import ElementTree

import matplotlib
import matplotlib.colors
import matplotlib.figure
import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import FillBetweenPolyCollection

from lottery import plots
from lottery.analysis import connectivity, distances, profiles
from lottery.errors import LotteryError
from lottery.figures import layout, sheets, style
from lottery.report.figures import panels
from lottery.runs import store
from tests.statistics.test_results import made_up

matplotlib.use("Agg")
WEIGHTS = ["dense/kernel", "dense_1/kernel"]
REPLICATES, ROUNDS = (1, 2, 3), range(8)
# What captions of figures that show no mean over replicates say of how many.
OWN_COUNTS = {"inputs": "Replicate 1 (n = 1).", "overlap": "the masks of n = 3 replicates"}


@pytest.fixture(scope="module")
def figures():
    """A figure of each kind, and its SVG."""
    drawn = {kind: plots.drawn(make(np.random.default_rng(12)), kind, title="a < b") for kind, make in TABLES.items()}
    return {kind: (figure, sheets.as_svg(figure, "of & for")) for kind, figure in drawn.items()}


def axes():
    return matplotlib.figure.Figure().subplots()


def tidy(columns, rows):
    return pd.DataFrame(list(rows), columns=columns.split())


def rows_table(rng):
    tables = [made_up(0.9 + 0.05 * rng.random((3, 8)), branch) for branch in ("ticket", "random_reinit")]
    table = pd.concat(tables, ignore_index=True)
    steps = rng.integers(1, 10, len(table)) * 100
    return table.assign(early_stop_step=steps, last_step=2000, final_train_loss=0.1)


def curves_table(rng, num=11):
    return tidy(
        "replicate branch round density step split loss accuracy",
        (
            (one, branch, index, 0.8**index, 100 * place, split, rng.random(), rng.random())
            for branch, one, index in itertools.product(("ticket", "random_mask"), REPLICATES, ROUNDS)
            for split, place in itertools.product(("train", "validation"), range(num))
        ),
    )


def layers_table(rng):
    found = tidy(
        "replicate branch round density weight size kept",
        (
            (one, "ticket", index, 0.5**index, weight, 1000, int(rng.integers(1, 1000)))
            for one, index, weight in itertools.product(REPLICATES, ROUNDS, WEIGHTS)
        ),
    )
    found.loc[(found["weight"] == WEIGHTS[1]) & (found["round"] == 7), "kept"] = 0
    found.loc[(found["weight"] == WEIGHTS[1]) & (found["round"] == 6) & (found["replicate"] == 2), "kept"] = 0
    return found.assign(weight_density=found["kept"] / 1000, collapsed=found["kept"] == 0)


def survivors_table(rng, low=200, num_bins=20):
    edges = np.linspace(-0.5, 0.7, num_bins + 1)
    return tidy(
        "replicate round density weight low high count",
        (
            (one, index, 0.8**index, weight, edges[place], edges[place + 1], int(rng.integers(low, 2 * low)))
            for one, index, weight in itertools.product(REPLICATES, ROUNDS, WEIGHTS)
            for place in range(num_bins)
        ),
    )


def inputs_table(rng, what="input", channels=1):
    return tidy(
        "replicate round density weight what row column channel kept of",
        (
            (one, index, 0.5**index, "dense/kernel", what, row, column, channel, int(rng.integers(0, 5)), 300)
            for one, index in itertools.product(REPLICATES, ROUNDS)
            for row, column, channel in itertools.product(range(4), range(6), range(channels))
        ),
    )


def overlaps_table(rng):
    return tidy(
        "one other round density_one density_other weight overlap chance matched_overlap matched_chance",
        (
            (str(one), str(other), 7, one / 10, other / 10, weight, *rng.random(4))
            for one, other in itertools.combinations(REPLICATES, 2)
            for weight in ("all", *WEIGHTS)
        ),
    )


def drawn_degrees(rng):
    """How many entries come into each of 50 units, by replicate, round and weight."""
    return {key: rng.binomial(40, 0.7 ** (key[1] + 1), 50) for key in itertools.product(REPLICATES, ROUNDS, WEIGHTS)}


def degrees_table(rng):
    return tidy(
        "replicate branch round density weight side degree count",
        (
            (one, "ticket", index, 0.7**index, weight, side, degree, count)
            for (one, index, weight), found in drawn_degrees(rng).items()
            for side in ("in", "out")
            for degree, count in zip(*np.unique(found, return_counts=True), strict=True)
        ),
    )


def distances_table(rng):
    measures = tuple(distances.DISTANCES)
    return tidy(
        f"replicate branch round density weight {' '.join(measures)}",
        (
            (one, "ticket", index, 0.8**index, weight, *rng.random(len(measures)))
            for one, index, weight in itertools.product(REPLICATES, ROUNDS, ("all", *WEIGHTS))
        ),
    )


def points_table(rng):
    return tidy(
        "replicate round step density batch_norm alpha split loss error",
        (
            (one, index, step, 0.8**index, "stored", alpha, split, 1.0, rng.random())
            for one, index, step in itertools.product(REPLICATES, (0, 7), (0, 500))
            for alpha, split in itertools.product(np.linspace(0, 1, 6), ("train", "test"))
        ),
    )


def classes_table(rng):
    return tidy(
        "replicate branch round density class num accuracy vs_dense",
        (
            (one, branch, index, 0.8**index, label, 100, 0.9, 0.1 * rng.normal() if index else 0.0)
            for one, index, label in itertools.product(REPLICATES, ROUNDS, range(4))
            for branch in ("ticket", "random_mask")
        ),
    )


TABLES = {
    "accuracy": rows_table,
    "speed": rows_table,
    "early_stop": rows_table,
    "classes": classes_table,
    "learning_curves": curves_table,
    "layers": layers_table,
    "initial_weights": survivors_table,
    "degrees": degrees_table,
    "inputs": inputs_table,
    "overlap": overlaps_table,
    "distance": distances_table,
    "barrier": points_table,
    "instability": lambda rng: connectivity.barriers(points_table(rng)),
}


def data(line):
    return tuple(np.asarray(values, float) for values in line.get_data())


@functools.cache
def plain(kind):
    """The axes that a figure of a kind is drawn into, what it returns, and its table. Tests only read them."""
    table, ax = TABLES[kind](np.random.default_rng(12)), axes()
    return ax, plots.kinds()[kind].figure(table, ax), table


def bands(ax):
    every = [*ax.collections, *(one for panel in ax.child_axes for one in panel.collections)]
    return [one for one in every if isinstance(one, FillBetweenPolyCollection)]


def ends(band):
    """Lower and upper end of a band at each x."""
    ys = {}
    for x, y in band.get_paths()[0].vertices:
        ys.setdefault(x, []).append(y)
    return np.array([(min(one), max(one)) for _, one in sorted(ys.items())])


def bars(container):
    return np.array([segment[:, 1] for segment in container.lines[2][0].get_segments()])


def lines(ax):
    return [line for line in ax.lines if not line.get_label().startswith("_") and len(line.get_xdata()) > 1]


# ---- what holds for every kind


def test_every_kind_has_a_table_here():
    assert TABLES.keys() == plots.kinds().keys()


@pytest.mark.parametrize("kind", TABLES)
def test_axes_go_in_and_out_with_labels_and_the_caption_says_of_what(kind):
    ax, returned, table = plain(kind)
    assert returned is ax and not ax.get_title()
    if kind == "inputs":
        assert not ax.axison and all("round" in text.get_text() for text in ax.texts)
    else:
        assert ax.get_xlabel() and ax.get_ylabel()
    caption = plots.caption(table, kind)
    assert OWN_COUNTS.get(kind, "Means of n = 3 replicates, b") in caption
    ends = "95 % t interval" if kind == "classes" else "lowest to highest"
    assert (ends in caption) == (kind not in OWN_COUNTS)
    assert caption[0].isupper() and caption.endswith(".")
    assert not re.search(r"  |\.\.|nan|-\d", caption)


@pytest.mark.parametrize("kind", TABLES)
def test_a_pdf_for_a_paper_has_truetype_fonts_and_the_same_bytes_each_time(kind, rng, tmp_path):
    table, found = TABLES[kind](rng), []
    for name in ("one.pdf", "other.pdf"):
        found.append(plots.save(table, tmp_path / name, kind, "paper").read_bytes())
    streams = [zlib.decompressobj().decompress(one) for one in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", found[0], re.S)
               if one[:1] == b"\x78"]  # fmt: skip
    whole = found[0] + b"".join(streams)
    assert found[0] == found[1] and b"/Type3" not in whole and b"/FontFile2" in whole
    assert b"/STIXGeneral" in whole.replace(b"+", b"/") and b"DejaVu" not in whole
    width = float(re.findall(rb"/MediaBox \[ ?0 0 ([\d.]+)", whole)[0]) / 72
    assert width == pytest.approx(5.5)


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize(("style_name", "width"), [("paper", 3), ("slides", 7)])
def test_figures_fit_their_width(kind, style_name, width, rng):
    figure = plots.drawn(TABLES[kind](rng), kind, style_name, width, title="" if style_name == "paper" else "A title")
    figure.draw_without_rendering()
    assert figure.get_figwidth() == width and 0.3 < figure.get_figheight() / figure.get_figwidth() < 2.5
    for ax in figure.axes:
        found, whole = ax.get_tightbbox(), figure.bbox.padded(1.5)  # of everything that is drawn
        assert (found.min >= whole.min).all() and (found.max <= whole.max).all()
    labels = [text.get_window_extent() for text in figure.axes[0].texts] if kind == "inputs" else []
    labels += [panel.title.get_window_extent() for panel in figure.axes[0].child_axes if panel.get_title()]
    assert not any(one.overlaps(other) for one, other in itertools.combinations(labels, 2))


@pytest.mark.parametrize("kind", ["classes", "inputs"])
def test_no_round_is_refused(kind):
    for draw in (plots.drawn, plots.caption):
        with pytest.raises(LotteryError, match="There is nothing to plot: no "):
            draw(plain(kind)[2], kind, rounds=[])
    with pytest.raises(LotteryError, match="no pruned round"):
        plots.drawn(plain("classes")[2], "classes", rounds=[0])


@pytest.mark.parametrize("kind", TABLES)
def test_an_empty_table_and_an_unknown_option_are_refused(kind, rng):
    with pytest.raises(LotteryError, match="nothing to plot"):
        plots.drawn(TABLES[kind](rng).iloc[:0], kind)
    with pytest.raises(LotteryError, match=f"{kind} has no option 'intervall'"):
        plots.drawn(TABLES[kind](rng), kind, intervall="t")


@pytest.mark.parametrize("kind", sorted(TABLES.keys() - OWN_COUNTS.keys()))
def test_one_replicate_has_neither_bars_nor_bands(kind):
    _, several, table = plain(kind)
    ax = plots.kinds()[kind].figure(table[table["replicate"] == 1], axes())
    caption = plots.caption(table[table["replicate"] == 1], kind)
    assert "One replicate (n = 1)." in caption and "lowest to" not in caption
    assert not any("lowest" in text.get_text() for text in ax.get_legend().get_texts())
    assert not bands(ax) and not any(one.has_yerr for one in ax.containers)
    assert bands(several) or any(one.has_yerr for one in several.containers)
    ends = "95 % t interval, n = 3" if kind == "classes" else "lowest to highest, n = 3"
    assert [text.get_text() for text in several.get_legend().get_texts()].count(ends) == 1


@pytest.mark.parametrize("kind", sorted(TABLES.keys() - OWN_COUNTS.keys()))
def test_every_line_can_be_told_apart_in_grey(kind):
    ax, _, _ = plain(kind)
    handles, labels = ax.get_legend_handles_labels()
    looks = set()
    for handle in handles:
        line = handle.lines[0] if hasattr(handle, "lines") else handle
        looks.add((line.get_marker(), str(line._dash_pattern), line.get_markerfacecolor() == "white"))
    assert len(looks) == len(handles) == len(set(labels)) > 1


@pytest.mark.parametrize("kind", TABLES)
def test_svg_stands_alone(kind, figures):
    figure, text = figures[kind]
    root = ElementTree.fromstring(text)
    assert text.startswith("<svg ") and root.get("role") == "img" and root.get("aria-label") == "of & for"
    attributes = [(name, value) for one in root.iter() for name, value in one.attrib.items()]
    assert not any(re.search(r"\d\.\d{3}", value) for _, value in attributes if "base64" not in value)
    links = [value for name, value in attributes if name.endswith("href")]
    ids = [value for name, value in attributes if name == "id"]
    assert all(link.startswith(("#", "data:image/png")) for link in links)
    kinds = {one.tag.removeprefix("{http://www.w3.org/2000/svg}") for one in root.iter()}
    assert kinds <= {"svg", "g", "defs", "style", "path", "use", "text", "tspan", "image", "clipPath", "rect"}
    assert text.count("http") == 1  # the name of the language
    used = {link[1:] for link in links if link.startswith("#")} | set(re.findall(r"url\(#([^)]*)\)", text))
    assert used == set(ids) and len(ids) == len(set(ids))
    families = {found for _, value in attributes for found in re.findall(r"font-family: ([^;]*)|px ([^;]*)", value)}
    assert {one or other for one, other in families} == {"sans-serif"}
    assert "a < b" in {one.text for one in root.iter("{http://www.w3.org/2000/svg}text")}

    ax = figure.axes[0]
    assert (ax.get_legend() is None) == (kind in OWN_COUNTS) and ax.get_window_extent().width > 0.3 * figure.bbox.width


def test_no_two_figures_share_a_name(figures, rng):
    rng.random()
    texts = [*(text for _, text in figures.values()), plots.svg(inputs_table(rng), "inputs", title="a < b")]
    names = [name for text in texts for name in re.findall(r' id="([^"]*)"', text)]
    assert len(names) == len(set(names)) > len(texts)


def test_a_figure_is_the_same_each_time(rng):
    table = overlaps_table(rng)
    one, other = (plots.svg(table, "overlap", title="a") for _ in range(2))
    assert len(one) == len(other) and not any(mine != theirs for mine, theirs in zip(one, other, strict=True))


def test_kinds_are_read_from_a_run(small_run):
    for kind in TABLES:
        if kind in ("barrier", "instability"):
            with pytest.raises(LotteryError, match="no path between two networks"):
                plots.drawn(plots.read(small_run.path, kind), kind)
            continue
        table = plots.read(small_run.path, kind)
        for place in (small_run, str(small_run.path)):  # a `Run` is a path, too
            pd.testing.assert_frame_equal(plots.read(place, kind), table)
        ax = axes()
        assert plots.kinds()[kind].figure(table, ax) is ax and len(table)
    assert plots.last_common_round(small_run.path) == 3
    assert set(plots.read(small_run.path, "overlap")["round"]) == {3}
    assert set(plots.read(small_run.path, "overlap", round=1)["round"]) == {1}
    assert set(plots.read(small_run.path, "degrees", rounds=[0, 2])["round"]) == {0, 2}


def test_the_command_draws_for_papers_and_prints_a_caption_alone(small_run, tmp_path, lottery_command):
    run = tmp_path / small_run.path.name
    shutil.copytree(small_run.path, run)
    plain = lottery_command("plot", run, "--style", "paper")
    assert plain.stdout == f"{run / 'accuracy.pdf'}\n" and not plain.stderr
    out = tmp_path / "a.svg"
    done = lottery_command("plot", run, "--kind", "overlap", "--round", 2, "--out", out, "--caption", "--width", 6)
    assert done.stdout == plots.latex_caption(plots.read(run, "overlap", round=2), "overlap") + "\n"
    assert "at round 2, all weights" in done.stdout and done.stderr == f"{out}\n"
    assert 'width="432pt"' in out.read_text() and f">Overlap of masks ({small_run.experiment.name})<" in out.read_text()
    lottery_command("plot", run, "--style", "paper", "--out", out)
    assert f"({small_run.experiment.name})<" not in out.read_text()
    lottery_command("plot", run, "--style", "slides", "--title", "Ours & theirs", "--out", out)
    assert "Ours &amp; theirs" in out.read_text()
    for wrong, message in ((("--style", "poster"), "'paper' or 'slides'"), (("--width", 1), "4.5 to 40 inches")):
        refused = lottery_command("plot", run, *wrong)
        assert refused.returncode == 2 and message in refused.stderr


def test_the_last_common_round_is_of_the_replicates_that_have_begun(small_run, tmp_path):
    for name in ("experiment.toml", "environment.json"):
        (tmp_path / name).write_bytes((small_run.path / name).read_bytes())
    with pytest.raises(LotteryError, match="No round of .* is complete yet"):
        plots.last_common_round(tmp_path)
    for replicate, num in ((2, 3), (1, 2)):
        for index in range(num):
            folder = store.round_path(tmp_path, replicate, index)
            folder.mkdir(parents=True)
            (folder / "round.json").touch()
        assert plots.last_common_round(tmp_path) == num - 1


@pytest.mark.parametrize("kind", ["layers", "initial_weights", "degrees", "overlap"])
def test_long_names_are_broken_and_leave_the_axes_room(kind, rng):
    long = "a_name_that_goes_on_and_on_" * 2
    names = {WEIGHTS[0]: f"{long}1/kernel", **{str(one): f"{long}run:{one}" for one in REPLICATES}}
    figure = plots.drawn(TABLES[kind](rng).replace(names), kind, width=6, title=f"Names ({long})")
    figure.draw_without_rendering()
    for drawn in (figure.axes[0].get_tightbbox(), figure._suptitle.get_window_extent()):
        assert (drawn.min >= -1.5).all() and (drawn.max <= figure.bbox.max + 1.5).all()
    assert figure.axes[0].get_window_extent().width > 0.4 * figure.bbox.width


# ---- what each draws


def test_early_stop_steps_and_what_is_a_lower_bound(rng):
    rows = rows_table(rng)
    rows.loc[(rows["round"] == 3) & (rows["replicate"] == 2) & (rows["branch"] == "ticket"), "early_stop_step"] = 1000
    rows.loc[rows["round"] == 7, "final_train_loss"] = np.nan  # not trained
    free = plots.early_stop(rows, axes())
    assert not any("lower bound" in text.get_text() for text in free.get_legend().get_texts())
    rows["last_step"] = 1000
    ax = plots.early_stop(rows, axes())
    for container, branch in zip(ax.containers, ("ticket", "random_reinit"), strict=False):
        steps = rows[rows["branch"] == branch].pivot(index="round", columns="replicate", values="early_stop_step")
        x, y = data(container.lines[0])
        np.testing.assert_allclose(x, 0.8 ** np.arange(7))
        np.testing.assert_allclose(y, steps.to_numpy()[:7].mean(axis=1))
        np.testing.assert_allclose(bars(container), np.stack([steps.min(axis=1), steps.max(axis=1)], 1)[:7])
    (bound,) = (line for line in ax.lines if line.get_label() == "_open")
    np.testing.assert_allclose(data(bound), [[0.8**3], [data(ax.containers[0].lines[0])[1][3]]])
    assert any("lower bound" in text.get_text() for text in ax.get_legend().get_texts())


@pytest.mark.parametrize("kind", ["early_stop", "speed", "barrier", "instability"])
def test_marks_at_zero_are_whole(kind, rng):
    nothing = {"early_stop_step": 0, "last_step": 0, "dense_loss_step": 0.0, "error": 0.0, "barrier": 0.0}
    table = TABLES[kind](rng)
    table = table.assign(**{column: value for column, value in nothing.items() if column in table})
    if kind == "speed":
        table.loc[table["round"] == 0, "dense_loss_step"] = 100.0
    ax = plots.kinds()[kind].figure(table, axes())
    low, high = (ax.child_axes or [ax])[0].get_ylim()
    assert -0.1 * high < low < 0 and high > 0.02


def test_marks_at_the_highest_error_are_whole(rng):
    points = points_table(rng).query("step == 0 and round == 0").assign(error=0.1)
    assert plots.barrier(points, axes()).child_axes[0].get_ylim()[1] > 0.104


def test_the_mark_before_the_first_step_is_whole_and_steps_are_whole_numbers(rng):
    curves = curves_table(rng)
    assert plots.learning_curves(curves, axes()).get_xlim()[0] < 0
    ax = plots.learning_curves(curves.query("step == 0"), axes())
    assert [tick for tick in ax.get_xticks() if abs(tick) < 1] == [0]


def test_a_dense_network_alone_has_one_whole_round_and_degree(rng):
    ax = plots.layers(layers_table(rng).query("round == 0"), axes())
    assert [tick for tick in ax.get_xticks() if abs(tick) < 1] == [0]
    ax = plots.degrees(degrees_table(rng).query("degree == 30"), axes())
    assert [tick for tick in ax.get_xticks() if 29 < tick < 31] == [30]


def test_numbers_near_each_other_have_plain_ticks(rng):
    curves = curves_table(rng)
    figure = plots.drawn(curves.assign(loss=0.6931 + 1e-6 * curves["loss"]), "learning_curves", measure="loss")
    figure.draw_without_rendering()
    assert figure.axes[0].yaxis.get_offset_text().get_text() == ""


def test_a_control_that_falls_does_not_flatten_the_ticket():
    ticket, fallen = [[0.97, 0.98, 0.96]] * 2, [[0.95, 0.6, 0.1]] * 2
    rows = pd.concat([made_up(ticket), made_up(fallen, "random_mask")], ignore_index=True)
    ax = plots.accuracy(rows, axes())
    low, high = ax.get_ylim()
    assert low > 0.93 and high < 1 and (0.98 - 0.96) / (high - low) > 0.4
    assert [one.get_label() for one in ax.containers] == ["ticket", "random_mask\n(falls to 0.1)"]
    np.testing.assert_allclose(data(ax.containers[1].lines[0])[1], fallen[0])  # nothing is left out
    marks = [line for line in ax.lines if line.get_label() == "_below" and len(line.get_xdata())]
    assert len(marks) == 1
    np.testing.assert_allclose(marks[0].get_xdata(), [0.8, 0.64])
    whole = plots.accuracy(rows, axes(), full=True)
    assert whole.get_ylim()[0] < 0.1 and [one.get_label() for one in whole.containers] == ["ticket", "random_mask"]


def test_runs_side_by_side_have_no_dense_line():
    rows = pd.concat([made_up([[0.9, 0.2]], "a"), made_up([[0.5, 0.4]], "b")], ignore_index=True)
    ax = plots.accuracy(rows, axes(), reference=False)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"] and ax.get_ylim()[0] < 0.2


def test_a_model_without_an_accuracy_can_be_drawn():
    unknown = made_up([[float("nan")] * 3] * 2).assign(early_stop_test_loss=float("nan"))
    ax = plots.accuracy(unknown, axes())
    assert [text.get_text() for text in ax.texts] == ["no accuracy is measured"]


def test_a_model_without_an_accuracy_is_drawn_by_its_loss():
    losses = [("ticket", [0.2, 0.19, 0.22]), ("random_mask", [0.3, 0.31, 40.0])]
    rows = pd.concat([made_up([[float("nan")] * 3] * 2, branch) for branch, _ in losses], ignore_index=True)
    rows["early_stop_test_loss"] = [value for _, values in losses for value in values * 2]
    ax = plots.accuracy(rows, axes())
    assert ax.get_ylabel() == "test loss at the early-stop step" and not ax.texts
    assert ax.get_ylim()[1] < 1 and ax.get_ylim()[0] < 0.19  # what is far too high leaves the axes at the top
    (outside,) = [line for line in ax.lines if line.get_label() == "_above"]
    assert outside.get_marker() == "^" and outside.get_ydata().tolist() == [1, 1, 1]
    named = [text.get_text() for text in ax.get_legend().get_texts()]
    assert "random_mask\n(rises to 40)" in named
    caption = plots.caption(rows)
    assert caption.startswith("Test loss at the early-stop step")
    assert "Triangles at the top edge stand for points above it." in caption
    assert plots.accuracy(rows, axes(), full=True).get_ylim()[1] > 40


def test_learning_curves_are_means_in_a_band(rng):
    curves = curves_table(rng)
    ax = plots.learning_curves(curves, axes(), measure="loss", split="train", rounds=[2, 5], branch="random_mask")
    part = curves[(curves["branch"] == "random_mask") & (curves["split"] == "train")]
    for line, band, index in zip(lines(ax), bands(ax), (2, 5), strict=True):
        loss = part[part["round"] == index]["loss"].to_numpy().reshape(3, 11)
        np.testing.assert_allclose(data(line), [np.arange(11) * 100, loss.mean(0)])
        np.testing.assert_allclose(ends(band), np.stack([loss.min(0), loss.max(0)], 1))
        assert line.get_label() == f"round {index}, density {0.8**index:.3g}"
    assert ax.get_ylabel() == "train loss"
    caption = plots.caption(
        curves, "learning_curves", measure="loss", split="train", rounds=[2, 5], branch="random_mask"
    )
    assert caption.startswith("Train loss while training, of random_mask.")
    for wrong in ({"measure": "los"}, {"split": "trian"}, {"branch": "tickets"}):
        with pytest.raises(LotteryError, match="Did you mean"):
            plots.learning_curves(curves, axes(), **wrong)
    with pytest.raises(LotteryError, match=r"must be one of \[0, 1, 2.*not 9"):
        plots.learning_curves(curves, axes(), rounds=[9])


def test_many_evaluations_are_averaged_and_the_caption_says_so(rng):
    curves = curves_table(rng, num=102)
    ax = plots.learning_curves(curves, axes(), rounds=[4], most=34)
    part = curves[(curves["branch"] == "ticket") & (curves["split"] == "validation") & (curves["round"] == 4)]
    values = part["accuracy"].to_numpy().reshape(3, 102).mean(0)
    (line,) = lines(ax)
    cut = [values[:1], *np.array_split(values[1:100], 33), values[100:]]
    np.testing.assert_allclose(line.get_ydata(), [one.mean() for one in cut])
    assert line.get_xdata()[0] == 0 and line.get_xdata()[1] == 200
    caption = plots.caption(curves, "learning_curves", rounds=[4], most=34)
    assert "Each point after step 0 is the mean of up to 3 evaluations." in caption
    # The training loss is not measured at step 0: its first point is a mean like the others.
    steps = curves.assign(step=curves["step"] + 100)
    (line,) = lines(plots.learning_curves(steps, axes(), rounds=[4], most=34))
    np.testing.assert_allclose(line.get_ydata(), values.reshape(34, 3).mean(1))


def test_the_start_of_training_may_leave_the_axes():
    steps = np.arange(0, 2001, 50)
    accuracy = np.where(steps < 100, 0.1, 0.9 + steps / 100_000)
    curves = pd.DataFrame(
        {"replicate": 1, "branch": "ticket", "round": 0, "density": 1.0, "step": steps, "split": "validation",
         "loss": 1.0, "accuracy": accuracy}
    )  # fmt: skip
    ax = plots.learning_curves(curves, axes())
    assert ax.get_ylim()[0] > 0.89 and "The first 5 %" in plots.caption(curves, "learning_curves")
    whole = plots.learning_curves(curves, axes(), full=True)
    assert whole.get_ylim()[0] <= 0.1 and "5 %" not in plots.caption(curves, "learning_curves", full=True)


def test_layers_and_what_collapsed(rng):
    table = layers_table(rng)
    ax = plots.layers(table, axes())
    for container, weight in zip(ax.containers, WEIGHTS, strict=False):
        found = table[table["weight"] == weight].pivot(index="round", columns="replicate", values="weight_density")
        found = found[found.mean(axis=1) > 0]
        np.testing.assert_allclose(data(container.lines[0]), [found.index.to_numpy(), found.to_numpy().mean(axis=1)])
        assert len(container.lines[0].get_xdata()) == (8 if weight == WEIGHTS[0] else 7)
    crosses = [line for line in ax.lines if line.get_label() == "_collapsed" and len(line.get_xdata())]
    np.testing.assert_allclose(data(crosses[0])[0], [6, 7])  # all of round 7, one replicate of round 6
    assert len(crosses) == 1 and min(ax.get_ylim()) < crosses[0].get_ydata()[0] < 0.5**7
    network = next(line for line in ax.lines if line.get_label() == "the network")
    np.testing.assert_allclose(data(network)[1], 0.5 ** np.arange(8))
    assert ax.get_yscale() == "log" and "nothing is left" in ax.get_legend_handles_labels()[1]
    alive = plots.layers(table[~table["collapsed"]], axes())
    assert "nothing is left" not in alive.get_legend_handles_labels()[1]


def test_deep_networks_have_a_style_for_each_weight():
    looks = {look[1:] for look in style.in_order(132)}
    assert len(looks) == 132
    greys = [np.dot(matplotlib.colors.to_rgb(color), (0.299, 0.587, 0.114)) for color, _, _ in style.in_order(30)]
    assert all(one < other for one, other in itertools.pairwise(greys)) and greys[-1] < 0.8
    assert style.by_name([str(one) for one in range(20)]).keys() == {str(one) for one in range(20)}


def test_start_weights_are_probability_densities(rng):
    table = survivors_table(rng)
    ax = plots.initial_weights(table, axes(), rounds=[0, 7])
    for line, band, index in zip(lines(ax), bands(ax), (0, 7), strict=True):
        counts = table[(table["weight"] == WEIGHTS[0]) & (table["round"] == index)]["count"].to_numpy().reshape(3, 20)
        found = counts / counts.sum(1, keepdims=True) / 0.06
        x, y = data(line)
        np.testing.assert_allclose(x, np.linspace(-0.5, 0.7, 21), atol=1e-12)
        np.testing.assert_allclose(y, [*found.mean(0), found.mean(0)[-1]])
        assert np.sum(y[:-1] * np.diff(x)) == pytest.approx(1) and line.get_drawstyle() == "steps-post"
        assert band.get_paths()[0].vertices[:, 1].max() == pytest.approx(found.max())
    other = lines(plots.initial_weights(table, axes(), weight=WEIGHTS[1], rounds=[0]))[0]
    assert not np.allclose(other.get_ydata(), lines(ax)[0].get_ydata())
    with pytest.raises(LotteryError, match="weight to plot must be .*not 'dense_2/kernel'"):
        plots.initial_weights(table, axes(), weight="dense_2/kernel")


def test_bins_of_few_weights_are_run_together_and_still_sum_to_one(rng):
    table = survivors_table(rng, low=2, num_bins=80)
    table = table[table["weight"] == WEIGHTS[0]]
    (line,) = lines(plots.initial_weights(table, axes(), rounds=[5]))
    counts = table[table["round"] == 5]["count"].to_numpy().reshape(3, 20, 4).sum(2)
    found = (counts / counts.sum(1, keepdims=True) / (1.2 / 20)).mean(0)
    np.testing.assert_allclose(line.get_ydata()[:-1], found)


@pytest.mark.parametrize(("what", "channels"), [("input", 1), ("input", 3), ("kernel", 1), ("kernel", 3)])
def test_inputs_are_images_of_counts(what, channels, rng):
    table = inputs_table(rng, what, channels)
    table.loc[(table["row"] == 1) & (table["column"] == 2), "kept"] = 0
    ax = plots.inputs(table, axes(), replicate=2, rounds=[0, 7])
    assert len(ax.images) == 2 and len({image.norm.vmax for image in ax.images}) == 1
    for image, index in zip(ax.images, (0, 7), strict=True):
        kept = table[(table["replicate"] == 2) & (table["round"] == index)]["kept"].to_numpy().reshape(4, 6, channels)
        expected = kept.sum(2) if what == "input" else np.hstack([kept[..., channel] for channel in range(channels)])
        shown = image.get_array()
        np.testing.assert_array_equal(shown.filled(0), expected)
        np.testing.assert_array_equal(np.ma.getmaskarray(shown), expected == 0)
        left, right, bottom, top = image.get_extent()
        assert (right - left, bottom - top) == pytest.approx(expected.shape[::-1])  # square, and the first row above
    unread, scale = ax.images[0].cmap.get_bad(), ax.images[0].cmap(np.linspace(0, 1, 256))
    greys = scale[:, :3] @ np.array([0.299, 0.587, 0.114])
    assert tuple(unread[:3]) == (1, 1, 1) and greys.max() < 0.8 and (np.diff(greys) <= 0).all()  # the more, the darker
    (bar,) = ax.child_axes
    assert [text.get_text() for text in bar.texts] == ["0"]  # below the box for none, at the left of the bar
    assert not any(patch.get_clip_on() for patch in ax.patches)  # frames are whole at the edges
    assert [text.get_text() for text in ax.texts] == ["round 0, density 1", "round 7, density 0.00781"]
    caption = plots.caption(table, "inputs", replicate=2, rounds=[0, 7])
    place = ("places" if what == "kernel" else "inputs")[:-1]
    assert f"Kept entries of dense/kernel at each {place}" in caption and "Replicate 2 (n = 1)." in caption
    assert ("summed" in caption, "side by side" in caption) == (
        channels == 3 and what == "input",
        channels == 3 and what == "kernel",
    )
    with pytest.raises(LotteryError, match=r"replicate to plot must be one of \[1, 2, 3\], not 4"):
        plots.inputs(table, axes(), replicate=4)


def test_inputs_that_are_no_image_are_strips_that_can_be_seen(rng):
    table = inputs_table(rng)
    table = table.assign(column=table["row"] * 6 + table["column"], row=0)
    figure = plots.drawn(table, "inputs")
    figure.draw_without_rendering()
    (ax, *_), num = figure.axes, 24
    assert len(ax.images) == 6
    boxes = [image.get_window_extent() for image in ax.images]
    above = [text.get_window_extent() for text in ax.texts]
    for image, box, text, index in zip(ax.images, boxes, above, (0, 1, 3, 4, 6, 7), strict=True):
        kept = table[(table["replicate"] == 1) & (table["round"] == index)]["kept"].to_numpy()
        np.testing.assert_array_equal(image.get_array().filled(0), kept.reshape(1, num))
        assert box.height > 8 and text.y0 >= box.y1
    assert all(text.y1 < box.y0 for text, box in zip(above[1:], boxes[:-1], strict=True))


@pytest.mark.parametrize(
    ("matched", "value", "chance"), [(False, "overlap", "chance"), (True, "matched_overlap", "matched_chance")]
)
def test_overlaps_say_what_chance_would_give(matched, value, chance, rng):
    table = overlaps_table(rng)
    ax = plots.overlap(table, axes(), weight=WEIGHTS[1], matched=matched)
    cells, part = ax.images[0].get_array(), table[table["weight"] == WEIGHTS[1]]
    said = {text.get_position(): text.get_text() for text in ax.texts}
    for _, row in part.iterrows():
        one, other = int(row["one"]) - 1, int(row["other"]) - 1
        assert cells[one, other] == cells[other, one] == row[value] - row[chance]
        assert said[one, other] == said[other, one] == f"{row[value]:.3f}\n({row[chance]:.3f})"
    assert [said[place, place] for place in range(3)] == [f"density\n{one / 10}" for one in REPLICATES]
    assert np.ma.getmaskarray(cells).diagonal().all() and len(said) == 9
    largest = max(0.01, np.nanmax(np.abs(part[value] - part[chance])))
    assert ax.images[0].get_clim() == pytest.approx((-largest, largest))
    low, none, high = ax.images[0].cmap(ax.images[0].norm([-0.5 * largest, 0, 0.5 * largest]))
    assert low[0] > low[2] and high[2] > high[0] and min(none[:3]) > 0.9  # red, white, blue
    caption = plots.caption(table, "overlap", weight=WEIGHTS[1], matched=matched)
    assert WEIGHTS[1] in caption and ("after matching" in caption) == matched
    with pytest.raises(LotteryError, match="matched=True"):
        plots.overlap(table.assign(matched_overlap=np.nan), axes(), matched=True)
    assert style.contrasting((1, 1, 0.2)) == "black" and style.contrasting((0, 0, 0.4)) == "white"


def test_degrees_are_cumulative_fractions(rng):
    table, state = degrees_table(rng), np.random.default_rng(12)
    units = drawn_degrees(state)  # the same numbers, as the fixture begins with the same seed
    ax = plots.degrees(table, axes(), rounds=[0, 5])
    for line, index in zip(lines(ax), (0, 5), strict=True):
        x, y = data(line)
        for degree in range(int(x[-1]) + 1):
            expected = np.mean([np.mean(units[one, index, WEIGHTS[0]] <= degree) for one in REPLICATES])
            assert y[np.searchsorted(x, degree, side="right") - 1] == pytest.approx(expected)
    assert "(dense/kernel)" in ax.get_xlabel()
    assert "inputs" in plots.degrees(table, axes(), side="out").get_ylabel()
    with pytest.raises(LotteryError, match="side to plot must be .*not 'up'"):
        plots.degrees(table, axes(), side="up")


@pytest.mark.parametrize("measure", distances.DISTANCES)
def test_distances(measure, rng):
    table = distances_table(rng)
    ax = plots.distance(table, axes(), measure)
    for container, weight in zip(ax.containers, ("all", *WEIGHTS), strict=True):
        found = table[table["weight"] == weight][measure].to_numpy().reshape(3, 8)
        np.testing.assert_allclose(data(container.lines[0]), [0.8 ** np.arange(8), found.mean(0)])
        np.testing.assert_allclose(bars(container), np.stack([found.min(0), found.max(0)], 1))
    with pytest.raises(LotteryError, match="Did you mean 'cosine'"):
        plots.distance(table, axes(), "cosin")


@pytest.mark.parametrize("branch", ["fine_tuning", "learning_rate_rewinding"])
def test_a_branch_that_trains_on_has_no_speed(rng, branch):
    """How soon it has the loss of dense is not known, and so no lower bound."""
    rows = rows_table(rng)
    other = rows[(rows["branch"] == "ticket") & (rows["round"] > 0)].assign(branch=branch, dense_loss_step=np.nan)
    drawn = [plots.speed(table, axes()) for table in (pd.concat([rows, other]), rows)]
    first, second = ([text.get_text() for text in ax.get_legend().get_texts()] for ax in drawn)
    assert first == second


def test_a_branch_looks_alike_in_all_figures_beside_a_transfer(rng):
    rows = rows_table(rng)
    transfer = rows[rows["branch"] == "ticket"].assign(branch="transfer-digits")
    colors = set()
    for figure in (plots.accuracy, plots.early_stop, plots.speed):
        handles, labels = figure(pd.concat([transfer, rows]), axes()).get_legend_handles_labels()
        colors.add(dict(zip(labels, handles, strict=True))["random_reinit"].lines[0].get_color())
    assert len(colors) == 1


@pytest.mark.parametrize(("num", "fewest", "most"), [(20, 20, 20), (100, 5, 20)])
def test_classes_have_as_many_ticks_as_have_room(rng, num, fewest, most):
    table = pd.concat([classes_table(rng).query("`class` == 0").assign(**{"class": label}) for label in range(num)])
    ticks = [tick for tick in plots.classes(table, axes()).get_xticks() if 0 <= tick < num]
    assert fewest <= len(ticks) <= most and all(tick == int(tick) for tick in ticks)


@pytest.mark.parametrize(("over", "missing"), [("density", "step 500, train"), ("step", "round 7, train")])
def test_the_legend_of_barriers_has_no_line_that_was_not_measured(rng, over, missing):
    """As with --test-only for some rounds or steps."""
    barriers = connectivity.barriers(points_table(rng).query("split == 'test' or round == step == 0"))
    texts = [text.get_text() for text in plots.instability(barriers, axes(), over).get_legend().get_texts()]
    assert missing not in texts and missing.replace("train", "test") in texts
    assert sum(text.endswith(", train") for text in texts) == 1


@pytest.mark.parametrize("kind", ["accuracy", "early_stop", "speed"])
def test_a_branch_whose_name_begins_with_an_underscore_is_in_the_legend(rng, kind):
    """As of a private function of the user's."""
    rows = rows_table(rng).replace({"branch": {"random_reinit": "_own"}})
    legend = plots.kinds()[kind].figure(rows, axes()).get_legend()
    assert " _own" in [text.get_text().partition("\n")[0] for text in legend.get_texts()]


def test_bars_of_layers_end_within_the_axes(rng):
    table = layers_table(rng).query("weight == @WEIGHTS[0]").assign(density=1.0)
    assert plots.layers(table, axes()).get_ylim()[0] < table["weight_density"].min()


def test_inputs_are_those_of_the_first_replicate_that_is_there(rng):
    table = inputs_table(rng).query("replicate > 1")
    assert plots.caption(table, "inputs").endswith("Replicate 2 (n = 1).")
    assert len(plots.drawn(table, "inputs").axes[0].images) == 6
    with pytest.raises(LotteryError, match=r"must be one of \[2, 3\], not 1"):
        plots.caption(table, "inputs", replicate=1)


@pytest.mark.parametrize("steps", [[0], [0, 500], [100, 5000], [0, 10, 100, 5000]])
def test_steps_fill_their_axis(rng, steps):
    points = pd.concat([points_table(rng).query("step == 0").assign(step=step) for step in steps])
    ax = plots.drawn(connectivity.barriers(points), "instability", over="step").axes[0]
    ax.figure.draw_without_rendering()
    places = ax.transAxes.inverted().transform(ax.transData.transform([(step, 0) for step in steps]))[:, 0]
    assert ax.get_xticks().tolist() == steps and places.min() > 0 and places.max() < 1
    assert len(steps) == 1 or (places.min() < 0.25 and places.max() > 0.75)


@pytest.mark.parametrize("kind", ["accuracy", "early_stop", "speed"])
def test_a_caption_names_bars_that_leave_the_axes(kind, rng):
    rows = rows_table(rng).query("replicate < 3 and round < 3 and branch == 'ticket'")
    rows = rows.assign(dense_loss_step=[100, 1000, 10] * 2, early_stop_step=[100, 1000, 10] * 2)
    rows.loc[rows["replicate"] == 2, ["early_stop_step", "dense_loss_step"]] += 50
    rows["test_accuracy"] = [0.5, 0.4, 0.3, 0.9, 0.8, 0.7]
    assert style.CUT in plots.caption(rows, kind, interval="t")
    assert style.CUT not in plots.caption(rows, kind, interval="range")


def test_marks_of_classes_that_only_lose_are_whole(rng):
    ax = plots.classes(classes_table(rng).assign(vs_dense=-0.1), axes())
    assert ax.get_ylim() == pytest.approx((-0.105, 0.005))


def test_a_round_that_keeps_none_of_a_weight_has_no_line_and_the_caption_says_so(rng):
    table = survivors_table(rng)
    assert "without a line" not in plots.caption(table, "initial_weights")
    table.loc[table["round"] == 7, "count"] = 0
    assert plots.caption(table, "initial_weights").endswith("A round without a line keeps none of them.")


def test_the_legend_of_a_profile_does_not_cover_it():
    lines = tidy(
        "at method threshold fraction low high", [(0.5, f"method_{num}", 0.1, 0.5, 0.4, 0.6) for num in range(9)]
    )
    figure = layout.drawn(sheets.SHEETS["screen"], 5, functools.partial(profiles.figure, lines))
    figure.draw_without_rendering()
    ax = figure.axes[0]
    assert not ax.get_legend().get_window_extent().overlaps(ax.get_window_extent())


def test_classes_that_nothing_changed_are_drawn_without_a_warning(rng, recwarn):
    plots.drawn(classes_table(rng).assign(vs_dense=0.0), "classes")
    assert not [warning for warning in recwarn if "identical" in str(warning.message)]


def test_paths_and_their_barriers(rng):
    points = points_table(rng)
    ax = plots.barrier(points, axes())
    assert [panel.get_title() for panel in ax.child_axes] == [
        f"{split}, round {index}, density {density}"
        for split, (index, density) in itertools.product(("test", "train"), ((0, 1), (7, 0.21)))
    ]
    assert len({panel.get_ylim() for panel in ax.child_axes}) == 1
    places = itertools.product(("test", "train"), (0, 7))
    for panel, (split, index) in zip(ax.child_axes, places, strict=True):
        for line, band, step in zip(panel.lines, bands(panel), (0, 500), strict=True):
            part = points[(points["round"] == index) & (points["step"] == step) & (points["split"] == split)]
            errors = part["error"].to_numpy().reshape(3, 6)
            np.testing.assert_allclose(data(line), [np.linspace(0, 1, 6), errors.mean(0)])
            np.testing.assert_allclose(ends(band), np.stack([errors.min(0), errors.max(0)], 1))
            assert line.get_label() == f"step {step}"
    assert ax.get_legend_handles_labels()[1] == ["step 0", "step 500"]
    for wrong in ({"split": "validation"}, {"batch_norm": "recomputed"}, {"rounds": [3]}, {"steps": [3]}):
        with pytest.raises(LotteryError, match="to plot must be"):
            plots.barrier(points, axes(), **wrong)


def test_a_round_whose_training_split_is_left_out_has_one_panel(rng):
    points = points_table(rng).query("split == 'test' or round == 0")
    titles = [panel.get_title() for panel in plots.barrier(points, axes()).child_axes]
    assert titles == ["test, round 0, density 1", "test, round 7, density 0.21", "train, round 0, density 1"]


@pytest.mark.parametrize("num", [1, 2, 3])
def test_panels_of_both_splits_have_room(rng, num):
    points = pd.concat([points_table(rng).query("round == 7").assign(round=index) for index in range(num)])
    figure = plots.drawn(points, "barrier")
    figure.draw_without_rendering()
    frame = figure.axes[0].child_axes[0].get_window_extent()
    assert frame.height > 0.5 * frame.width


def test_replicates_with_other_points_are_drawn_at_all_of_them(rng):
    points = points_table(rng).query("split == 'test' and round == 7 and step == 500")
    one, rest = points[points["replicate"] == 1], points[points["replicate"] > 1]
    more = one.iloc[[0] * 11].assign(alpha=np.linspace(0, 1, 11), error=rng.random(11))
    table = pd.concat([rest, more], ignore_index=True).sample(frac=1, random_state=1)
    ax = plots.barrier(table, axes())
    (panel,) = ax.child_axes
    (path,) = panel.lines
    values = [more["error"].to_numpy()]
    for replicate in (2, 3):
        own = rest[rest["replicate"] == replicate]["error"].to_numpy()
        halves = np.empty(11)
        halves[::2], halves[1::2] = own, (own[1:] + own[:-1]) / 2
        values.append(halves)
    np.testing.assert_allclose(data(path), [np.linspace(0, 1, 11), np.mean(values, axis=0)])
    np.testing.assert_allclose(ends(bands(panel)[0]), np.stack([np.min(values, 0), np.max(values, 0)], 1))
    assert "n = 3 replicates" in plots.caption(table, "barrier")


def test_stored_statistics_are_drawn_unless_others_are_asked_for(rng):
    points = points_table(rng)
    both = pd.concat([points.assign(batch_norm="recomputed", error=0.5), points], ignore_index=True)
    heights = {"barrier": both, "instability": connectivity.barriers(both)}
    assert heights["instability"]["batch_norm"].iloc[0] == "recomputed"
    for kind, table in heights.items():
        draw = plots.kinds()[kind].figure
        stored, other = draw(table, axes()), draw(table, axes(), batch_norm="recomputed")
        first, second = (
            one.child_axes[0].lines[0] if kind == "barrier" else one.containers[0].lines[0] for one in (stored, other)
        )
        assert not np.isin(data(first)[1], (0, 0.5)).any() and np.isin(data(second)[1], (0, 0.5)).all()
        only = table[table["batch_norm"] == "recomputed"]
        texts = [plots.caption(table, kind), plots.caption(table, kind, batch_norm="recomputed")]
        texts.append(plots.caption(only, kind))
        assert ["BatchNorm statistics were recomputed" in text for text in texts] == [False, True, True]


def test_rounds_that_are_named_are_all_drawn(rng):
    points = pd.concat([points_table(rng).query("round == 7").assign(round=index) for index in range(8)])
    panels = [plots.barrier(points, axes(), **options).child_axes for options in ({}, {"rounds": range(8)})]
    assert [len(some) for some in panels] == [6, 16]  # three rounds of each split, and all eight
    figure = plots.drawn(points, "barrier", split="test", rounds=range(8))
    figure.draw_without_rendering()
    frames = [panel.get_window_extent() for panel in figure.axes[0].child_axes]
    assert len({round(frame.height) for frame in frames}) == 1 and frames[0].height > 0.5 * frames[0].width
    assert len({round(frame.x0) for frame in frames}) == 3 and len({round(frame.y0) for frame in frames}) == 3


@pytest.mark.parametrize(("over", "line", "label"), [("density", "step", "step 500"), ("step", "round", "round 7")])
def test_instability_against_density_and_step(over, line, label, rng):
    barriers = connectivity.barriers(points_table(rng))
    ax = plots.instability(barriers, axes(), over)
    container = next(one for one in ax.containers if one.get_label() == f"{label}, test")
    value = int(label.split()[1])
    part = barriers[(barriers[line] == value) & (barriers["split"] == "test")].sort_values([over, "replicate"])
    found = part["barrier"].to_numpy().reshape(2, 3)
    x, y = data(container.lines[0])
    order = np.argsort(x)
    np.testing.assert_allclose(x[order], sorted(set(part[over])))
    np.testing.assert_allclose(y[order], found.mean(1))
    np.testing.assert_allclose(bars(container)[order], np.stack([found.min(1), found.max(1)], 1))
    stable = next(one for one in ax.lines if one.get_label() == "stable under 2 %")
    np.testing.assert_allclose(stable.get_ydata(), 0.02)
    with pytest.raises(LotteryError, match="must be 'density' or 'step'"):
        plots.instability(barriers, axes(), "round")


def test_spread_equals_numpy(rng):
    values = rng.random((3, 4))
    table = made_up(values)
    found = style.spread(table.sample(frac=1, random_state=1), ("branch", "round"), "early_stop_test_accuracy", "t")
    half = 4.302652729911275 * values.std(0, ddof=1) / np.sqrt(3)  # of Student's t with two degrees of freedom
    np.testing.assert_allclose(found["low"], values.mean(0) - half)
    np.testing.assert_allclose(found["high"], values.mean(0) + half)
    np.testing.assert_allclose(found["density"], 0.8 ** np.arange(4))
    assert list(found["replicates"]) == [3] * 4
    fewer = style.spread(table[:-1], ("branch", "round"), "early_stop_test_accuracy")
    assert style.replicates(fewer, "bars") == "Means of n = 2 to 3 replicates, bars: lowest to highest."


# ---- odd runs


@pytest.mark.parametrize("kind", ["accuracy", "classes"])
def test_an_infinite_interval_has_no_bar_and_the_caption_says_so(kind):
    table = made_up([[0.5, 0.5, 0.6], [0.5, 0.6, 0.6]])  # the first and the last mean are of two equal values
    columns = {"class": 0, "num": 1, "accuracy": 0.5, "vs_dense": table["early_stop_test_accuracy"] - 0.5}
    if kind == "classes":
        table = table.assign(**columns).query("round > 0")
    ax = plots.kinds()[kind].figure(table, axes(), interval="t")
    drawn = [len(bar) for container in ax.containers for bar in container.lines[2][0].get_segments()]
    assert drawn == ([0, 2, 0] if kind == "accuracy" else [2, 0])
    assert {len(point) for line in panels(ax.figure)[0]["lines"] for point in line["points"]} == {
        4,
        6,
    }  # places and values, and ends
    said = "Where no bar is drawn, the interval is infinite"
    assert said in plots.caption(table, kind, interval="t")
    assert said not in plots.caption(table, kind, interval="range")


def test_the_caption_of_classes_names_bars_that_leave_the_axes(rng):
    said = "Bars that end at the edge of the axes continue beyond it"
    table = classes_table(rng).query("replicate < 3")
    assert said not in plots.caption(table, "classes")
    assert said in plots.caption(table.assign(vs_dense=table["replicate"] % 2), "classes")


def test_without_an_accuracy_the_loss_is_drawn_and_replicates_are_counted(rng):
    curves = curves_table(rng).assign(accuracy=np.nan)
    ax = plots.learning_curves(curves, axes(), rounds=[2])
    loss = curves.query("branch == 'ticket' and split == 'validation' and round == 2")["loss"].to_numpy()
    np.testing.assert_allclose(lines(ax)[0].get_ydata(), loss.reshape(3, 11).mean(0))
    caption = plots.caption(curves, "learning_curves", rounds=[2])
    assert ax.get_ylabel() == "validation loss" and caption.startswith("Validation loss while training")
    assert "No accuracy is measured. Means of n = 3 replicates" in caption
    unmeasured = made_up([[np.nan] * 3] * 2).assign(early_stop_test_loss=np.nan)
    assert plots.caption(unmeasured).endswith("that is kept. 2 replicates.")
    assert plots.accuracy(unmeasured, axes()).get_ylim() == pytest.approx((-0.05, 1.05))


def test_a_point_without_a_value_is_not_a_mean_of_no_replicates(rng):
    table = distances_table(rng)
    table.loc[(table["round"] == 7) & (table["weight"] == WEIGHTS[0]), "relative_distance"] = np.nan
    assert "Means of n = 3 replicates" in plots.caption(table, "distance")


@pytest.mark.parametrize("low", [0.97, 0.8, 0.5, 0.2, 0.05, 1e-4])
def test_a_logarithmic_axis_has_ticks_that_can_be_read(low):
    ax = axes()
    style.density_axis(ax, pd.Series([1.0, low]))
    right, left = ax.get_xlim()[1], ax.get_xlim()[0]
    shown = [place for place in ax.xaxis.get_majorticklocs() if right <= place <= left]
    said = ax.xaxis.get_major_formatter().format_ticks(shown)
    assert 3 <= len(shown) <= 16 and len(set(said)) == len(said)
    np.testing.assert_allclose([float(one) for one in said], shown)
    rows = [(1, "ticket", index, density, "a/kernel", density, False) for index, density in enumerate((1.0, low))]
    table = tidy("replicate branch round density weight weight_density collapsed", rows)
    ax = plots.layers(table, axes())
    low_end, high_end = ax.get_ylim()
    assert sum(low_end <= place <= high_end for place in ax.yaxis.get_majorticklocs()) >= 3


# 0.9 and 0.8 have no room beside 1, nor has 0.8 beside 0.7, on an axis that goes far beyond them.
@pytest.mark.parametrize("ends", [(0.21, 1.15), (0.107, 0.81)])
def test_a_logarithmic_axis_has_no_more_ticks_than_it_needs(ends):
    assert style.log_places(*ends) == [1, 2, 3, 5, 7]


@pytest.mark.parametrize("low", [0.02, 0.003, 0.0008])
def test_labels_of_low_densities_do_not_lie_on_each_other(low):
    rows = made_up([[0.9, 0.8]])
    ax = plots.drawn(rows.assign(density=rows["round"].map({0: 1, 1: low})), width=5.6).axes[0]
    ax.figure.draw_without_rendering()
    boxes = sorted((label.get_window_extent() for label in ax.get_xticklabels()), key=lambda box: box.x0)
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))


@pytest.mark.parametrize("most", [300, 4000])
def test_labels_of_many_entries_do_not_lie_on_each_other(most):
    rows = [(1, "ticket", 0, 1.0, "dense/kernel", "in", degree, 5) for degree in (0, 1, most)]
    table = tidy("replicate branch round density weight side degree count", rows)
    ax = plots.drawn(table, "degrees", width=5.6).axes[0]
    ax.figure.draw_without_rendering()
    boxes = sorted((label.get_window_extent() for label in ax.get_xticklabels()), key=lambda box: box.x0)
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))


def test_a_long_legend_is_drawn_without_a_warning(rng, recwarn):
    layer = layers_table(rng).query("weight == @WEIGHTS[0] and replicate == 1 and round < 2")
    layers = pd.concat([layer.assign(weight=f"dense_{num}/kernel") for num in range(12)])
    figure = plots.drawn(layers, "layers", "paper", 3)
    assert not [warning for warning in recwarn if "collapsed to zero" in str(warning.message)]
    assert figure.axes[0].get_window_extent().height > figure.dpi


def test_equal_accuracies_have_a_plain_axis_and_marks_side_by_side():
    table = pd.concat([made_up([[1.0, 1.0]] * 2, one) for one in ("ticket", "random_mask", "random_reinit")])
    ax = plots.accuracy(table, axes())
    low, high = ax.get_ylim()
    assert 0.97 < low < 0.98 and 1 < high < 1.002
    ax.figure.draw_without_rendering()
    assert ax.yaxis.get_major_formatter().get_offset() == "" and "1.0000" in ax.get_yticklabels()[-2].get_text()
    places = [one.lines[0].get_transform().transform((1.0, 1.0))[0] for one in ax.containers]
    assert places[0] == ax.transData.transform((1.0, 1.0))[0]  # the ticket's is where it is
    apart = np.diff(sorted(places)) * 72 / ax.figure.dpi
    assert apart == pytest.approx([3, 3])


@pytest.mark.parametrize(("fallen", "shown"), [(0.945, True), (0.93, False)])
def test_a_branch_that_is_a_little_below_is_shown(fallen, shown):
    table = pd.concat([made_up([[0.956, 0.964]]), made_up([[0.956, fallen]], "random_mask")])
    ax = plots.accuracy(table, axes())
    low, high = ax.get_ylim()
    assert (low < fallen, "falls" in ax.containers[1].get_label()) == (shown, not shown)
    assert 0.008 / (high - low) > 0.35  # the ticket's part, margins and the least height of 0.02 included


@pytest.mark.parametrize(
    ("counts", "scale"), [((150, 200, 300), "linear"), ((10, 20, 300), "log"), ((7, 7, 7), "linear")]
)
def test_colours_of_inputs_are_for_the_counts_that_there_are(counts, scale):
    rows = [(1, 0, 1.0, "dense/kernel", "input", 0, place, 0, kept, 300) for place, kept in enumerate((0, *counts))]
    ax = plots.inputs(tidy("replicate round density weight what row column channel kept of", rows), axes())
    (bar,) = ax.child_axes
    ends = (min(counts), max(counts)) if len(set(counts)) > 1 else (6, 7)
    assert ax.images[0].get_clim() == ends and bar.get_xlim() == pytest.approx(ends)
    assert bar.get_xlabel() == "kept entries of each input" + " (log)" * (scale == "log") and bar.get_xscale() == scale
    ax.figure.draw_without_rendering()
    label, place = bar.xaxis.label.get_window_extent(), bar.get_window_extent()
    # The box for none is beside the bar itself.
    assert label.width < place.width and 1.04 * place.width == pytest.approx(ax.get_window_extent().width)


@pytest.mark.parametrize("panels", [1, 3])
@pytest.mark.parametrize(("rows", "columns", "channels"), [(3, 3, 1), (3, 3, 3), (8, 8, 1)])
def test_inputs_fill_their_figure(panels, rows, columns, channels):
    every = itertools.product(range(panels), range(rows), range(columns), range(channels))
    table = tidy(
        "replicate round density weight what row column channel kept of",
        ((1, index, 1.0, "conv2d/kernel", "kernel", *place, 9, 9) for index, *place in every),
    )
    figure = plots.drawn(table, "inputs", title="a run")
    figure.draw_without_rendering()
    (ax,) = figure.axes
    title, above, image = (one.get_window_extent() for one in (figure._suptitle, ax.texts[0], ax.images[0]))
    assert title.y0 >= above.y1 - 1 and above.y0 >= image.y1 - 1 and title.y0 - above.y1 < 0.4 * figure.dpi
    label = ax.child_axes[0].xaxis.label.get_window_extent()
    assert 0 <= label.y0 < 0.7 * figure.dpi and label.x0 >= 0 and label.x1 <= figure.bbox.width


@pytest.mark.parametrize("width", [5.6, 7.2])
def test_long_names_and_titles_are_broken_where_the_figure_ends(width, rng):
    name = "a_long_name_that_somebody_chose_for_a_layer_of_their_network/kernel"
    figure = plots.drawn(degrees_table(rng).assign(weight=name), "degrees", width=width, title="about a run " * 20)
    figure.draw_without_rendering()
    (ax,) = figure.axes
    for text in (ax.xaxis.label, ax.yaxis.label, figure._suptitle):
        box = text.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1 and 0 <= box.y0 < box.y1 <= figure.bbox.y1
    assert (
        ax.get_xlabel().replace("\n", "").endswith(f"({name})")
        and figure._suptitle.get_window_extent().y0 >= ax.bbox.y1
    )


@pytest.mark.parametrize(
    ("found", "scale", "low"), [((90, 100, 120), "linear", 81), ((0, 90, 120), "linear", 0), ((3, 40), "symlog", 2.7)]
)
def test_the_axis_of_degrees_is_for_the_degrees_that_there_are(found, scale, low):
    rows = [(1, "ticket", 0, 1.0, "dense/kernel", "in", degree, 5) for degree in found]
    ax = plots.degrees(tidy("replicate branch round density weight side degree count", rows), axes())
    assert ax.get_xscale() == scale and ax.get_xlim() == pytest.approx((low, 1.1 * max(found)))
    ticks = [place for place in ax.xaxis.get_majorticklocs() if low <= place <= max(found)]
    assert len(ticks) >= 3 and all(place == round(place) for place in ticks)


@pytest.mark.parametrize(
    ("rounds", "most", "expected"),
    [(range(21), 6, [0, 4, 8, 12, 16, 20]), ([3, 1, 1], 6, [1, 3]), ([], 6, []), (range(5), 2, [0, 4])],
)
def test_chosen_rounds_are_evenly_apart(rounds, most, expected):
    assert style.chosen(rounds, most) == expected
