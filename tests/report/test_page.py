"""The page about runs: what it says, its size, and that it fetches nothing. `test_in_a_browser` looks at it."""

import base64
import dataclasses
import hashlib
import io
import re
import shutil
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lottery import config, formatting, plots
from lottery.analysis import ANALYSES, inputs
from lottery.errors import LotteryError
from lottery.figures import style
from lottery.figures.record import Analysis
from lottery.report import checklist, figures, reported, tables
from lottery.report.page import render, write
from lottery.runs import store
from lottery.runs.stored import StoredRound
from lottery.settings import COMPILED, GIVEN
from lottery.statistics import verdicts

VOID = {"meta", "link", "br", "img", "hr", "input", "path", "use"}


class Outline(HTMLParser):
    """Elements in order, whether they are closed in order, and what the page would fetch."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.fetched, self.links, self.rows = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids += [values["id"]] if "id" in values else []
        for name in ("src", "href", "xlink:href", "data", "action", "poster"):
            value = values.get(name, "")
            if tag == "a" and name == "href":
                self.links.append(value)
            elif value and not value.startswith(("#", "data:")):
                self.fetched.append((tag, value))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if "tr" in self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


@pytest.fixture
def undrawn(monkeypatch):
    """Figures as empty elements, for what is not about them."""
    monkeypatch.setattr(figures, "figure", lambda table, kind, **options: figures.Figure("<svg></svg>", "", []))


def outlined(text):
    outline = Outline()
    outline.feed(text)
    assert not outline.open
    return outline


@pytest.fixture(scope="module")
def page(page_path):
    return page_path.read_text()


def test_the_page_holds_everything_and_fetches_nothing(page):
    outline = outlined(page)
    assert outline.fetched == []
    assert "@import" not in page and not re.search(r"url\((?![#'\"]?#)", page)
    assert len(outline.ids) == len(set(outline.ids))
    assert {link[1:] for link in outline.links if link.startswith("#")} <= set(outline.ids)
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.S)
    assert page.count("<script") == 1 and "</script>\n</body>" in page
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'" in page
    assert page.count("<svg") == page.count("<figcaption>") >= 10


def test_figures_have_the_colours_of_the_page(page):
    """Every colour has a name that the page defines for the light and for the dark; no figure has a white ground."""
    drawn = re.findall(r"<svg.*?</svg>", page, flags=re.S)
    used = {name for svg in drawn for name in re.findall(r"var\((--c-[0-9a-f]{6})\)", svg)}
    assert len(used) > 5 and all(len(re.findall(rf"{name}: ", page)) == 2 for name in used)
    with_cells = [svg for svg in drawn if "<image" in svg]
    for svg in set(drawn) - set(with_cells):
        assert not re.search("(fill|stroke): #", svg)
    assert all(not re.search(r"<text[^>]*#(?!ffffff|010101)[0-9a-f]{6}", svg) for svg in with_cells)
    assert "color-mix" in figures.colors([figures.Figure("var(--c-595959)", "", [])])["--c-595959"]


def test_the_verdict_comes_first_in_words(page, small_run):
    text = re.sub(r"<style>.*?</style>", "", page, flags=re.S)
    first, *others = small_run.verdict()
    first = formatting.unbroken(first)
    assert 0 < text.index(first) < text.index("<table") < text.index(others[0]) < text.index("Checklist</h2>")
    assert text.index('<dt class="open">?</dt>') < text.index("<table")  # explained beside the table


def test_the_rounds_are_those_of_the_table(page, small_run):
    """Recomputed by pandas in another way than `tables` does."""
    rows = outlined(page).rows
    heads = next(row for row in rows if "test accuracy" in row)
    assert heads[:5] == ["round", "density", "test accuracy", "verdict", "vs dense"]
    tickets = small_run.table().query("branch == 'ticket'")
    dense = tickets[tickets["round"] == 0].set_index("replicate")["early_stop_test_accuracy"]
    for index, part in tickets.groupby("round"):
        cells = next(row for row in rows if row[:1] == [str(index)] and len(row) == len(heads))
        shown = dict(zip(heads, cells, strict=True))
        accuracy = part.set_index("replicate")["early_stop_test_accuracy"]
        assert shown["density"] == formatting.percent(part["density"].iloc[0])
        assert shown["kept"] == f"{int(part['num_kept'].iloc[0]):,}"
        assert shown["test accuracy"] == f"{100 * np.mean(accuracy):.2f} %"
        assert shown["±"] == f"{100 * np.std(accuracy, ddof=1):.2f}"
        if index:
            assert shown["vs dense"] == formatting.formatted(100 * (accuracy - dense).mean(), "+.2f")
            low, mean, high = (float(shown[head].replace("−", "-")) for head in ("95 % from", "vs dense", "95 % to"))
            assert low <= mean <= high


def test_a_cell_holds_one_number(page):
    """Of differences and bars each end has its own column, so that columns can be read down and sorted."""
    for row in outlined(page).rows:
        for cell in row:
            assert not re.search(r"\d (±|to) [−+]?\d|\d \(", cell) or "replicates" in cell, cell


def test_the_rows_can_be_saved_from_the_page(page, small_run):
    (link,) = re.findall(r'href="data:text/csv;base64,([^"]*)"', page)
    saved = pd.read_csv(io.BytesIO(base64.b64decode(link)))
    pd.testing.assert_frame_equal(saved, small_run.table(), check_dtype=False)


def test_what_a_run_says_cannot_write_into_the_page(small_run, tmp_path, undrawn):
    """A stranger's run: a file of it holds what a browser would run."""
    path = tmp_path / "run"
    shutil.copytree(small_run.path, path)
    environment = store.read_environment(path)
    store.write_record(path / "environment.json", environment | {"processor": "<script>alert(1)</script>"})
    text = render(reported.gathered([path]))
    assert "&lt;script&gt;alert(1)" in text and text.count("<script") == 1


def test_several_runs_side_by_side(small_run, tmp_path, undrawn):
    other = tmp_path / "other"
    shutil.copytree(small_run.path, other)
    shutil.rmtree(other / "replicate-2" / "round-03")
    text = render(reported.gathered([small_run.path, other, small_run.path]))
    outline = outlined(text)
    assert len(outline.ids) == len(set(outline.ids)) and outline.fetched == []
    assert text.count("Every value that was used") == 2  # a run that is named twice is there once
    assert "With 7 of 8 networks trained so far" in text
    assert text.index("Side by side") < text.index("At the same densities")


def test_runs_without_an_accuracy_have_a_figure_of_their_own(small_run):
    one = made(small_run)
    accuracies = [column for column in one.rows if column.endswith("accuracy")]
    other = made(small_run, label="regression", rows=one.rows.assign(**dict.fromkeys(accuracies, np.nan)))
    first, second = figures.together([one, other])
    assert first.caption.startswith("The tickets of the runs that measure an accuracy. Test accuracy")
    assert second.caption.startswith("The tickets of the runs that measure no accuracy. Test loss")
    named = [[line["name"] for panel in drawing.panels for line in panel["lines"]] for drawing in (first, second)]
    assert named == [[one.label], ["regression"]]
    (both,) = figures.together([one, one])
    assert both.caption.startswith("The tickets of all runs. ")


def test_runs_of_other_accuracies_are_neither_compared_nor_drawn_together(small_run):
    run = made(small_run)
    other = made(small_run, label="other", environment={**run.environment, "accuracy": "top_2_accuracy"})
    first, second = figures.together([run, other])
    assert first.caption.startswith("The tickets of the runs that measure an accuracy. ")
    assert second.caption.startswith("The tickets of the runs that measure top_2_accuracy. Test accuracy")
    sentence = "Runs with other data, another seed or another metric have no pairs to compare."
    assert tables.same_rounds([run, other]) == [sentence]
    assert sentence not in tables.same_rounds([run, made(small_run, label="other")])
    assert sentence not in tables.same_rounds([run, made(small_run, label="other", environment={
        **run.environment, "accuracy": "accuracy"})])  # fmt: skip
    losses = [dataclasses.replace(run, environment={**run.environment, "loss": loss}) for loss in ("huber", "mse")]
    assert tables.same_rounds(losses) == [sentence]
    rows = run.rows.assign(**{column: np.nan for column in run.rows if column.endswith("accuracy")})
    first, second = figures.together([dataclasses.replace(run, rows=rows) for run in losses])
    assert first.caption.startswith("The tickets of the runs that measure huber. Test loss")


def test_barriers_are_means_over_replicates_whatever_their_densities():
    """Where whole units are pruned, each replicate has a density of its own."""
    shared = {"round": 1, "step": 0, "batch_norm": "stored", "split": "test", "ends": 0.1, "highest": 0.2}
    lines = pd.DataFrame([shared | {"density": density, "barrier": density / 10} for density in (0.25, 0.75)])
    shown = tables.barriers(SimpleNamespace(table=lambda kind: lines))
    assert [line[:6] for line in shown.rows] == [["1", "50 %", "0", "test", "stored", "2"]]
    assert shown.rows[0][6:] == ["10.00", "20.00", "5.00", "not stable"]


def test_facts_that_only_one_of_several_runs_has_are_listed(small_run):
    """As those of a classification beside a regression."""
    one, other = made(small_run), made(small_run)
    other = dataclasses.replace(other, label="regression")
    facts = tables.key_facts(one)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            tables,
            "key_facts",
            lambda run: facts if run is one else {"dense test loss": "0.5", **dict(list(facts.items())[1:])},
        )
        rows = {row[0]: row[1:] for row in tables.side_by_side([one, other]).rows}
    assert rows["dense test accuracy"] == [facts["dense test accuracy"], ""]
    assert rows["dense test loss"] == ["", "0.5"]


def test_what_cannot_be_written_is_refused(small_run, tmp_path):
    with pytest.raises(LotteryError, match=r"must be a file that ends in \.html"):
        write([small_run.path], tmp_path / "page.pdf")
    with pytest.raises(LotteryError, match="is not a run"):
        write([tmp_path], tmp_path / "page.html")
    path = store.run_path(tmp_path, small_run.experiment)
    path.mkdir()
    (path / "experiment.toml").write_bytes((small_run.path / "experiment.toml").read_bytes())
    with pytest.raises(LotteryError, match="no round of .* is complete yet"):
        write([path], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def made(small_run, **changes):
    """The facts of the run with other rows, branches or settings."""
    (one,) = reported.gathered([small_run.path])
    values = {name: getattr(one, name) for name in ("label", "path", "experiment", "environment", "rows", "tolerance")}
    return reported.ReportedRun(**values | changes)


def lines_of(run, name):
    """The lines of a table, each a dict of its cells by head."""
    grid = tables.of_run(run)[name]
    return [dict(zip(grid.heads, row, strict=True)) for row in grid.rows]


def states(runs):
    return {item.text: item.done for item in checklist.checked(runs)}


def test_the_checklist_sees_what_is_there_and_what_is_not(small_run):
    one = made(small_run)
    before = states([one])
    assert before["Several runs from separate initialisations and seeds"]
    assert not before["Five operating points or more"]  # three
    assert not before["Random pruning with the same densities in each layer"]
    assert before["Magnitude pruning, layerwise"] and not before["Magnitude pruning, global"]
    single = made(small_run, rows=one.rows[one.rows["replicate"] == 1])
    assert not states([single])["Several runs from separate initialisations and seeds"]
    assert not states([single])["A mean, and error bars with their meaning"]
    randoms = one.rows[one.rows["round"] > 0].assign(branch="random_mask")
    controlled = made(small_run, rows=pd.concat([one.rows, randoms], ignore_index=True))
    assert states([controlled])["Random pruning with the same densities in each layer"]
    assert states([one, controlled])["Random pruning with the same densities in each layer"]  # one of them is enough
    prune = one.experiment.prune.model_copy(update={"scope": "global"})
    wide = made(small_run, experiment=one.experiment.model_copy(update={"prune": prune}))
    assert states([wide])["Magnitude pruning, global"] and not states([wide])["Magnitude pruning, layerwise"]
    assert all(states([one, wide])[text] for text in before if text.startswith("Magnitude"))
    worse = one.rows.assign(early_stop_test_accuracy=one.rows["early_stop_test_accuracy"] - 0.02 * one.rows["round"])
    fallen = next(item for item in checklist.checked([made(small_run, rows=worse)]) if "clearly falls" in item.text)
    assert fallen.done and re.fullmatch(r"−\d+\.\d\d points at the smallest density", fallen.how)
    unknown = made(small_run, environment={**one.environment, "architecture": {"class": "Mine", "why": "code"}})
    assert not states([unknown])["The architecture, enough to build it again"]
    assert not states([one, unknown])["The architecture, enough to build it again"]  # each of them must have it


@pytest.mark.parametrize(
    ("section", "key", "value", "named"),
    [
        ("train", "optimizer", COMPILED, "what the model was compiled with (optimizer, loss, metrics)"),
        ("prune", "criterion", GIVEN, "the criterion"),
        ("run", "enforcement", GIVEN, "the enforcement"),
    ],
)
def test_the_checklist_asks_for_what_no_file_holds(small_run, section, key, value, named):
    one = made(small_run)
    assert checklist.checked([one])[0].done
    passed = made(small_run, experiment=config.with_values(one.experiment, section, {key: value}))
    item = checklist.checked([passed])[0]
    assert not item.done and item.how.startswith(f"no file holds {named}: describe it")


def test_the_checklist_asks_for_branches_of_ones_own(small_run):
    one = made(small_run)
    own = one.rows[one.rows["round"] > 0].assign(branch="mine")
    item = checklist.checked([made(small_run, rows=pd.concat([one.rows, own], ignore_index=True))])[0]
    assert not item.done and item.how.startswith("no file holds the branch mine: ")


def test_the_dl_of_key_facts_is_the_runs(small_run):
    (one,) = reported.gathered([small_run.path])
    found = tables.key_facts(one)
    rows = small_run.table()
    dense = rows[(rows["round"] == 0) & (rows["branch"] == "ticket")]["early_stop_test_accuracy"]
    assert found["dense test accuracy"] == f"{100 * sum(dense) / len(dense):.2f} %"
    assert found["replicates"] == "2" and found["networks trained"] == str(len(rows))
    assert found["steps trained"] == f"{len(rows) * 110:,}"


@pytest.fixture
def long_run(small_run, tmp_path):
    """A run of 20 rounds, 5 replicates and a control, made from the files of another."""
    changes = {"prune": {"num_rounds": 20}, "run": {"num_replicates": 5, "controls": ["random_mask"]}}
    experiment = config.validated(config.merged(small_run.experiment.model_dump(mode="json"), changes))
    path = tmp_path / "long"
    path.mkdir()
    (path / "experiment.toml").write_text(config.dump(experiment))
    environment = store.read_environment(small_run.path) | {"digest": config.digest(experiment)}
    store.write_record(path / "environment.json", environment)
    for replicate in range(1, 6):
        origin = small_run.path / f"replicate-{2 - replicate % 2}"
        for index in range(21):
            for branch in (store.TICKET, "random_mask")[: 1 + bool(index)]:
                folder = store.round_path(path, replicate, index, branch)
                shutil.copytree(origin / f"round-{min(index, 3):02d}", folder, dirs_exist_ok=True)
                record = store.files.read_json(folder / "round.json")
                record |= {"replicate": replicate, "round": index, "density": 0.8**index}
                record |= {} if branch == store.TICKET else {"branch": branch}
                store.write_record(folder / "round.json", record)
        shutil.copy(origin / "initial.safetensors", path / f"replicate-{replicate}")
    return path


def test_a_long_page_stays_small(long_run, tmp_path):
    size = write([long_run], tmp_path / "page.html").stat().st_size
    assert 300_000 < size < 3_000_000
    found = figures.frames(*reported.gathered([long_run]))
    assert len(found["frames"]) == 5 * 21


def test_the_first_layer_is_that_of_the_masks(small_run, monkeypatch):
    (one,) = reported.gathered([small_run.path])
    found = figures.frames(one)
    assert (found["what"], found["of"], found["shape"], found["channels"]) == (inputs.INPUT, 300, [8, 8], 1)
    assert [(frame["replicate"], frame["round"]) for frame in found["frames"]] == [
        (replicate, index) for replicate in (1, 2) for index in range(4)
    ]
    for frame in found["frames"]:
        masks = StoredRound(small_run.path, frame["replicate"], frame["round"]).masks
        assert frame["counts"] == next(iter(masks.values())).sum(axis=1).tolist()
    fewer = figures.frames(one, most=3 * 64)["frames"]  # one replicate, rounds evenly apart
    assert [(frame["replicate"], frame["round"]) for frame in fewer] == [(1, 0), (1, 2), (1, 3)]
    assert figures.frames(one, most=100) is None


def test_a_kernel_has_its_channels_side_by_side(small_run, monkeypatch):
    one = made(small_run)
    places = [(row, column, channel) for row in range(3) for column in range(3) for channel in range(2)]
    kept = {place: number for number, place in enumerate(places)}
    rows = [(1, index, 1.0, "conv/kernel", "kernel", *place, kept[place], 20) for index in (0, 1) for place in places]
    monkeypatch.setattr(
        reported.ReportedRun, "table", lambda self, kind, **_: pd.DataFrame(rows, columns=inputs.COLUMNS)
    )
    found = figures.frames(one)
    assert (found["shape"], found["channels"], found["of"]) == ([3, 6], 2, 20)
    assert found["frames"][0]["counts"][:6] == [kept[0, 0, 0], kept[0, 1, 0], kept[0, 2, 0], *(
        kept[0, column, 1] for column in range(3)
    )]  # fmt: skip


def test_points_of_a_figure_are_those_of_its_table(small_run):
    one = made(small_run)
    (panel,) = figures.figure(one.table("accuracy"), "accuracy").panels
    (ticket,) = [line for line in panel["lines"] if line["name"] == "ticket"]
    assert (panel["x"], panel["y"]) == ("density", "test accuracy at the early-stop step")
    expected = one.summary[one.summary["branch"] == "ticket"]
    columns = ["density", "accuracy_mean", "accuracy_min", "accuracy_max"]
    for point, line in zip(ticket["points"], expected[columns].itertuples(index=False), strict=True):
        assert point[2:] == pytest.approx(line, rel=1e-4)
    left, top, right, bottom = panel["box"]
    assert all(left <= across <= right and top <= down <= bottom for across, down, *_ in ticket["points"])
    curves = figures.figure(one.table("learning_curves"), "learning_curves", measure="loss").panels[0]["lines"]
    nothing = one.table("accuracy").assign(early_stop_test_accuracy=np.nan, early_stop_test_loss=np.nan)
    assert figures.figure(nothing, "accuracy").panels == []
    for line in curves:  # a band, with its ends
        assert len(line["points"]) > 2
        assert all(low <= mean + 1e-4 and mean <= high + 1e-4 for *_, mean, low, high in line["points"])


def test_each_panel_has_its_points_and_each_line_its_own_band():
    """A panel for each split and round."""
    rows = [
        (replicate, index, 0, 0.8**index, "stored", alpha, split, 0.1, error + 0.01 * replicate + 0.1 * index)
        for replicate in (1, 2) for index in (0, 1) for split, error in (("test", 0.2), ("train", 0.1))
        for alpha in (0.0, 0.5, 1.0)
    ]  # fmt: skip
    columns = ["replicate", "round", "step", "density", "batch_norm", "alpha", "split", "loss", "error"]
    panels = figures.figure(pd.DataFrame(rows, columns=columns), "barrier").panels
    assert [panel["title"] for panel in panels] == [
        f"{split}, round {index}, density {0.8**index:g}" for split in ("test", "train") for index in (0, 1)
    ]
    for panel, (error, index) in zip(panels, [(0.2, 0), (0.2, 1), (0.1, 0), (0.1, 1)], strict=True):
        assert panel["x"].startswith("place on the line") and panel["y"] == "error"
        found = {line["name"]: [point[2:] for point in line["points"]] for line in panel["lines"]}
        ends = [error + 0.1 * index + place for place in (0.015, 0.01, 0.02)]  # mean, lowest, highest
        assert found == {"step 0": [[alpha, *map(pytest.approx, ends)] for alpha in (0, 0.5, 1)]}


@pytest.mark.parametrize("without", ["accuracy", "pruned rounds", "other replicates"])
def test_a_page_about_what_there_is(small_run, undrawn, without):
    """A model that measures no accuracy, a run that has just begun, and a single replicate."""
    rows = made(small_run).rows
    rows = {
        "accuracy": rows.assign(**{column: np.nan for column in rows if column.endswith("accuracy")}),
        "pruned rounds": rows[rows["round"] == 0],
        "other replicates": rows[rows["replicate"] == 1],
    }[without]
    one = made(small_run, rows=rows)
    outline = outlined(render([one]))
    heads = next(row for row in outline.rows if "density" in row)
    assert ("test accuracy" in heads) == (without != "accuracy")
    assert ("test loss" in heads) == (without == "accuracy")
    assert ("verdict" in heads) == (without != "pruned rounds")
    assert ("?" in tables.of_run(one)["rounds"].key) == (without != "pruned rounds")
    assert not any(cell in ("nan", "inf", "+inf", "-inf") for row in outline.rows for cell in row)


def test_the_page_names_date_version_and_author(small_run, undrawn):
    (one,) = reported.gathered([small_run.path])
    text = render([one], author="Ada <Lovelace>")
    versions = store.read_environment(small_run.path)["versions"]
    assert "by Ada &lt;Lovelace&gt; · files dated 20" in text and f"trained with lottery {versions['lottery']}" in text
    assert "· by " not in render([one])


def test_the_page_says_what_was_passed_in_words(small_run):
    one = made(small_run)
    assert tables.about(one) == "lenet_300_100 on digits · magnitude pruning"
    experiment = one.experiment
    for section, key in ("model", "name"), ("data", "name"), ("prune", "criterion"):
        experiment = config.with_values(experiment, section, {key: GIVEN})
    passed = tables.about(made(small_run, experiment=experiment))
    assert passed == "a network passed in Python on data passed in Python · pruning by a criterion passed in Python"


def test_a_transfer_is_not_compared_with_the_ticket(small_run, undrawn):
    rows = made(small_run).rows
    pruned = rows[rows["round"] > 0]
    other = pruned.assign(branch="transfer-npz", early_stop_test_accuracy=0.25)
    one = made(small_run, rows=pd.concat([rows, other, pruned.assign(branch="random_mask")], ignore_index=True))
    assert {line["branch"] for line in lines_of(one, "controls")} == {"random_mask"}
    assert [(line["branch"], line["test accuracy"]) for line in lines_of(one, "transfers")] == [
        ("transfer-npz", "25.00 %")
    ] * 3
    shown = tables.of_run(one)["transfers"]
    assert "vs dense there" not in shown.heads
    assert shown.notes == [
        "transfer-npz has no dense network on its data; run the same `lottery branch` command again to train it."
    ]
    rows = small_run.table()
    both = pd.concat([rows, rows[rows["branch"] == "ticket"].assign(branch="transfer-npz")])
    compared = lines_of(made(small_run, rows=both), "transfers")
    own = {line["round"]: line["mean"] for line in verdicts.differences(rows).to_dict("records")}
    assert [line["vs dense there"] for line in compared] == [
        "",
        *(formatting.formatted(100 * own[index], "+.2f") for index in (1, 2, 3)),
    ]
    assert {"ticket", *one.judgement.controls} == {"ticket", "random_mask"}
    without = tables.of_run(made(small_run))
    assert without["transfers"] is None and without["controls"] is None


def test_what_stands_beside_each_other_is_of_the_same_replicates(small_run):
    """A control that one replicate lacks: accuracies and their difference are of the other."""
    rows = made(small_run).rows
    control = rows[(rows["round"] == 2) & (rows["replicate"] == 2)].assign(branch="random_mask")
    control = control.assign(early_stop_test_accuracy=0.5)
    (line,) = lines_of(made(small_run, rows=pd.concat([rows, control], ignore_index=True)), "controls")
    ticket = rows[(rows["round"] == 2) & (rows["replicate"] == 2)]["early_stop_test_accuracy"].iloc[0]
    shown = [line[head] for head in ("n", "its test accuracy", "ticket's test accuracy", "ticket − branch")]
    assert (
        shown == ["1", "50.00 %", f"{100 * ticket:.2f} %", formatting.formatted(100 * (ticket - 0.5), "+.2f")]
        and "95 % from" not in line
    )
    fewer = made(small_run, rows=rows[(rows["replicate"] == 1) | (rows["round"] < 2)])
    assert [line["n"] for line in lines_of(fewer, "rounds")] == ["2", "2", "1", "1"]
    assert not states([fewer])["Several runs from separate initialisations and seeds"]
    assert not states([fewer])["A mean, and error bars with their meaning"]


def test_more_branches_than_styles_are_said_to_be_left_out(small_run, undrawn):
    one = made(small_run)
    pruned = one.rows[one.rows["round"] > 0]
    many = pd.concat([one.rows, *(pruned.assign(branch=f"mine_{place}") for place in range(30))], ignore_index=True)
    _, missing = figures.drawn(made(small_run, rows=many))
    assert missing["Accuracy"] == [f"The figures have room for {len(style.STYLES)} of 31 branches."]


def test_what_is_missing_of_a_dense_network_alone_is_true_of_it(small_run, tmp_path, monkeypatch):
    """It has predictions of classes, and several replicates."""
    path = tmp_path / "dense"
    shutil.copytree(small_run.path, path)
    for folder in path.glob("replicate-*/round-0[1-9]*"):
        shutil.rmtree(folder)
    kinds = {kind: plots.kinds()[kind] for kind in ("classes", "overlap")}
    monkeypatch.setattr(plots, "kinds", lambda: kinds)
    _, missing = figures.drawn(*reported.gathered([path]))
    assert missing["Accuracy"] == ["No pruned network of the run has predictions of classes."]
    assert missing["Masks"] == ["There are no masks of two replicates at a pruned round to compare."]


@pytest.mark.parametrize("chapter", ["Accuracy", "Training", "Layers", "Masks", "Connectivity", "More"])
def test_an_analysis_that_has_nothing_to_draw_says_so_in_every_chapter(small_run, monkeypatch, chapter):
    monkeypatch.setattr(figures, "drawn", lambda run: ({}, {chapter: ["Nothing of mine is here."]}))
    assert '<p class="soft">Nothing of mine is here.</p>' in render([made(small_run)])


def test_replicates_that_start_alike_are_no_separate_initialisations(small_run, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(small_run.path, path)
    first, second = (store.start_path(path, number) for number in (1, 2))
    second.write_bytes(first.read_bytes())
    assert not states([made(small_run, path=path)])["Several runs from separate initialisations and seeds"]


def test_items_of_several_runs_name_the_run_they_are_about(small_run):
    one = made(small_run)
    fewer = made(small_run, label="short", rows=one.rows[one.rows["replicate"] == 1])
    items = {item.text: item for item in checklist.checked([one, fewer])}
    item = items["Several runs from separate initialisations and seeds"]
    assert not item.done
    assert item.how == "short: a round has fewer than two replicates: run it again to train the others"
    both = made(small_run, label="other", rows=one.rows[one.rows["round"] < 3])
    assert checklist.checked([one, both])[4].how.startswith(f"{one.label}: 3 densities below 1")


def test_a_figure_of_the_users_own_keeps_black_on_its_cells_and_the_ends_of_its_bands(monkeypatch):
    def cells(table, ax):
        ax.imshow([[0.0, 1.0], [1.0, np.nan]])
        for x, y, text in ((0, 0, "full"), (1, 1, "empty"), (0, -0.7, "above")):
            ax.text(x, y, text, color="black")
        return ax

    def band(table, ax):
        ax.plot([0, 1], [1, 2], color="C1", label="mine")
        ax.fill_between([0, 1], [0, 1], [2, 3], color="C1", alpha=0.2)
        return ax

    rows = pd.DataFrame({"a": [1]})
    for name, draw in (("cells", cells), ("band", band)):
        monkeypatch.setitem(ANALYSES, name, Analysis(lambda run: rows, draw, "My own."))
    drawn = figures.figure(rows, "cells").svg
    stays = {text: "#010101" in style for style, text in re.findall(r"<text([^>]*)>(full|empty|above)<", drawn)}
    assert stays == {"full": True, "empty": False, "above": False}
    (panel,) = figures.figure(rows, "band").panels
    assert [point[3:] for point in panel["lines"][0]["points"]] == [[1, 0, 2], [2, 1, 3]]
