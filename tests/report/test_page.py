"""The page about runs: what it says, that it fetches nothing, and what a browser makes of it."""

import base64
import io
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

from lottery import plots
from lottery.analysis import style
from lottery.errors import LotteryError
from lottery.report import checklist, figures, tables
from lottery.report.page import render, write
from lottery.runs import store

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
            self.rows[-1].append(data)


@pytest.fixture(scope="module")
def page(small_run, tmp_path_factory):
    """The page of a run, written in a process that shows that TensorFlow is not needed."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    code = (
        "import sys; from lottery import report; report.write(sys.argv[1:2], sys.argv[2]);"
        "assert not {'tensorflow', 'keras', 'tf_keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, small_run.path, path], check=True)
    return path.read_text()


@pytest.fixture
def undrawn(monkeypatch):
    """Figures as empty elements, for what is not about them."""
    monkeypatch.setattr(plots, "svg", lambda table, kind, **options: "<svg></svg>")


def outlined(text):
    outline = Outline()
    outline.feed(text)
    assert not outline.open
    return outline


def test_the_page_holds_everything_and_fetches_nothing(page):
    outline = outlined(page)
    assert outline.fetched == []
    assert "@import" not in page and not re.search(r"url\((?![#'\"]?#)", page)
    assert len(outline.ids) == len(set(outline.ids))
    assert {link[1:] for link in outline.links if link.startswith("#")} <= set(outline.ids)
    assert "<script" not in page
    assert page.count("<svg") == page.count("<figcaption>") >= 10


def test_the_verdict_comes_first_in_words(page, small_run):
    text = re.sub(r"<style>.*?</style>", "", page, flags=re.S)
    first = small_run.verdict()[0]
    assert 0 < text.index(first) < text.index("<table") < text.index("Checklist</h2>")


def test_the_rounds_are_those_of_the_table(page, small_run):
    """Recomputed by pandas in another way than `sections` does."""
    rows = outlined(page).rows
    tickets = small_run.table().query("branch == 'ticket'")
    dense = tickets[tickets["round"] == 0].set_index("replicate")["early_stop_test_accuracy"]
    for index, part in tickets.groupby("round"):
        cells = next(row for row in rows if row[:1] == [str(index)] and len(row) >= 10)
        accuracy = part.set_index("replicate")["early_stop_test_accuracy"]
        assert cells[1] == f"{part['density'].iloc[0]:.4f}"
        assert cells[2] == f"{int(part['num_kept'].iloc[0]):,}"
        assert f"{np.mean(accuracy):.4f} ± {np.std(accuracy, ddof=1):.4f}" in cells
        if index:
            assert f"{(accuracy - dense).mean():+.4f}" in [cell.replace("-0.0000", "+0.0000") for cell in cells]


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
    text = render(tables.gathered([path]))
    assert "&lt;script&gt;alert(1)" in text and "<script" not in text


def test_several_runs_side_by_side(small_run, tmp_path, undrawn):
    other = tmp_path / "other"
    shutil.copytree(small_run.path, other)
    shutil.rmtree(other / "replicate-2" / "round-03")
    text = render(tables.gathered([small_run.path, other, small_run.path]))
    outline = outlined(text)
    assert len(outline.ids) == len(set(outline.ids)) and outline.fetched == []
    assert text.count("Every value that was used") == 2  # a run that is named twice is there once
    assert "7 of 8 networks are trained" in text
    assert text.index("Side by side") < text.index("The same rounds")


def test_what_cannot_be_written_is_refused(small_run, tmp_path):
    with pytest.raises(LotteryError, match=r"allowed is a file that ends in \.html"):
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
    (one,) = tables.gathered([small_run.path])
    values = {name: getattr(one, name) for name in ("label", "path", "experiment", "environment", "rows", "tolerance")}
    return tables.Facts(**values | changes)


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
    assert states([made(small_run, rows=worse)])["Densities so low that accuracy clearly falls"]
    unknown = made(small_run, environment={**one.environment, "architecture": {"class": "Mine", "why": "code"}})
    assert not states([unknown])["The architecture, enough to build it again"]
    assert not states([one, unknown])["The architecture, enough to build it again"]  # each of them must have it


def test_the_dl_of_key_facts_is_the_runs(small_run):
    (one,) = tables.gathered([small_run.path])
    found = tables.key_facts(one)
    rows = small_run.table()
    dense = rows[(rows["round"] == 0) & (rows["branch"] == "ticket")]["early_stop_test_accuracy"]
    assert found["dense test accuracy"] == f"{sum(dense) / len(dense):.4f}"
    assert found["replicates"] == "2" and found["trained"] == f"{len(rows)} networks, {len(rows) * 110:,} steps"


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium with its driver, as Debian packages them."""
    driver, binary = shutil.which("chromedriver"), shutil.which("chromium")
    if not driver or not binary:
        pytest.skip("needs Debian's packages chromium and chromium-driver")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    quiet = ("background-networking", "component-update", "sync")
    for word in ("headless", "no-sandbox", "disable-gpu", "no-first-run", *(f"disable-{one}" for one in quiet)):
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield found
    found.quit()


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_it(browser, page, tmp_path, width, scheme):
    (tmp_path / "page.html").write_text(page)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get_log("performance")
    browser.get((tmp_path / "page.html").as_uri())
    assert browser.get_log("browser") == []
    events = [json.loads(one["message"])["message"] for one in browser.get_log("performance")]
    sent = [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]
    assert [url for url in sent if not url.startswith("data:")] == [(tmp_path / "page.html").as_uri()]
    measured = browser.execute_script(
        "const width = document.documentElement.scrollWidth, style = getComputedStyle(document.body);"
        "const outside = [...document.querySelectorAll('figure .wide')].filter("
        "  one => one.getBoundingClientRect().right > width || one.getBoundingClientRect().height < 100);"
        "return [width, outside.length, style.backgroundColor, document.querySelectorAll('figure svg').length]"
    )
    assert measured[0] <= width and measured[1] == 0 and measured[3] >= 10
    assert measured[2] == ("rgb(20, 23, 27)" if scheme == "dark" else "rgb(255, 255, 255)")


def test_a_transfer_is_not_compared_with_the_ticket(small_run, undrawn):
    rows = made(small_run).rows
    pruned = rows[rows["round"] > 0]
    other = pruned.assign(branch="transfer-npz", early_stop_test_accuracy=0.25)
    one = made(small_run, rows=pd.concat([rows, other, pruned.assign(branch="random_mask")], ignore_index=True))
    assert {line[0] for line in tables.controls(one).rows} == {"random_mask"}
    assert [(line[0], line[4]) for line in tables.transfers(one).rows] == [("transfer-npz", "0.2500")] * 3
    assert set(one.own["branch"]) == {"ticket", "random_mask"}
    assert tables.transfers(made(small_run)) is None and tables.controls(made(small_run)) is None


def test_what_stands_beside_each_other_is_of_the_same_replicates(small_run):
    """A control that one replicate lacks: accuracies and their difference are of the other."""
    rows = made(small_run).rows
    control = rows[(rows["round"] == 2) & (rows["replicate"] == 2)].assign(branch="random_mask")
    control = control.assign(early_stop_test_accuracy=0.5)
    (line,) = tables.controls(made(small_run, rows=pd.concat([rows, control], ignore_index=True))).rows
    ticket = rows[(rows["round"] == 2) & (rows["replicate"] == 2)]["early_stop_test_accuracy"].iloc[0]
    assert line[3:7] == ["1", "0.5000", f"{ticket:.4f}", f"{ticket - 0.5:+.4f}"] and line[7] == "not known"
    fewer = made(small_run, rows=rows[(rows["replicate"] == 1) | (rows["round"] < 2)])
    rounds = tables.of_run(fewer)["rounds"]
    counts = [row[rounds.heads.index("n")] for row in rounds.rows]
    assert counts == ["2", "2", "1", "1"]
    assert not states([fewer])["Several runs from separate initialisations and seeds"]
    assert not states([fewer])["A mean, and error bars with their meaning"]


def test_more_branches_than_styles_are_said_to_be_left_out(small_run, undrawn):
    one = made(small_run)
    pruned = one.rows[one.rows["round"] > 0]
    many = pd.concat([one.rows, *(pruned.assign(branch=f"mine_{place}") for place in range(20))], ignore_index=True)
    _, missing = figures.drawn(made(small_run, rows=many))
    assert missing["Accuracy"] == [f"The figures have room for {len(style.STYLES)} of 21 branches."]


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
    assert not item.done and item.how.startswith("short: not two replicates")
    both = made(small_run, label="other", rows=one.rows[one.rows["round"] < 3])
    assert checklist.checked([one, both])[4].how.startswith(f"{one.label}: 3 densities below 1")
