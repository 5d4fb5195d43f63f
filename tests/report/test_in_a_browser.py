"""The page in headless Chromium: it fetches nothing, fits a phone, is dark in the dark, sorts, tells numbers, slides."""

import json
import re
import shutil

import numpy as np
import pytest

from lottery.report import reported
from lottery.runs.stored import StoredRound


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


@pytest.fixture
def opened(browser, page_path):
    """Open the page at a width, in a scheme, for a medium; return the browser."""

    def opened(width=1400, scheme="light", media="screen"):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}  # no test waits for a scroll
        listed = [{"name": name, "value": value} for name, value in features.items()]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": listed})
        browser.get(page_path.as_uri())
        until(browser, "return document.readyState === 'complete'")  # on a busy machine `get` has returned before
        return browser

    return opened


def until(browser, script, *arguments):
    """Wait until a script returns something true, and return it."""
    from selenium.webdriver.support.wait import WebDriverWait

    return WebDriverWait(browser, 60, 0.05).until(lambda _: browser.execute_script(script, *arguments))


def short(value):
    """Format a number as the page's script does."""
    return f"{float(f'{value:.4g}'):g}"


def keyed(browser, element, *keys):
    from selenium.webdriver.common.keys import Keys

    element.send_keys(*(getattr(Keys, key) for key in keys))


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_shows_it(browser, opened, page_path, width, scheme):
    browser.get_log("performance")
    opened(width, scheme)
    assert browser.get_log("browser") == []
    events = [json.loads(one["message"])["message"] for one in browser.get_log("performance")]
    sent = [one["params"]["request"]["url"] for one in events if one["method"] == "Network.requestWillBeSent"]
    assert [url for url in sent if not url.startswith("data:")] == [page_path.as_uri()]
    measured = browser.execute_script(
        "const width = document.documentElement.scrollWidth, style = getComputedStyle(document.body);"
        "const outside = [...document.querySelectorAll('figure .wide, .layer')].filter("
        "  one => one.getBoundingClientRect().right > width || one.getBoundingClientRect().height < 100);"
        "const line = document.querySelector('figure svg path[style*=c-0072b2]');"
        "const letters = document.querySelector('figure svg text');"
        "return [width, outside.length, document.querySelectorAll('figure svg').length, style.backgroundColor,"
        "  getComputedStyle(letters).fill, getComputedStyle(line).stroke]"
    )
    assert measured[0] <= width and measured[1] == 0 and measured[2] >= 10
    dark = scheme == "dark"
    assert measured[3:5] == (
        ["rgb(20, 23, 27)", "rgb(230, 233, 237)"] if dark else ["rgb(255, 255, 255)", "rgb(27, 31, 36)"]
    )
    assert measured[5].startswith("oklch(") if dark else measured[5] == "rgb(0, 114, 178)"


def test_on_a_phone_long_names_are_broken(opened):
    width = opened(390).execute_script(
        "for (const place of document.querySelectorAll('h1, nav a')) place.textContent = 'a_long_name_'.repeat(5);"
        "return document.documentElement.scrollWidth"
    )
    assert width <= 390


def test_on_a_phone_accuracy_and_verdict_come_before_compression(opened):
    heads = opened(390).execute_script(
        "return [...document.querySelector('table.sorts').tHead.rows[0].cells].map("
        "  cell => [cell.innerText.trim(), cell.getBoundingClientRect().right])"
    )
    seen = {" ".join(name.split()): right <= 390 for name, right in heads}
    assert seen["test accuracy"] and seen["verdict"] and not seen["compression"]


def test_colours_can_be_chosen(opened):
    browser = opened(scheme="light")
    ground = "return getComputedStyle(document.body).backgroundColor"
    keyed(browser, browser.find_element("id", "theme-auto"), "ARROW_RIGHT", "ARROW_RIGHT")
    assert until(browser, "return document.querySelector('#theme-dark').checked")
    assert browser.execute_script(ground) == "rgb(20, 23, 27)"
    keyed(browser, browser.find_element("id", "theme-dark"), "ARROW_LEFT")
    assert until(browser, "return document.querySelector('#theme-light').checked")
    assert browser.execute_script(ground) == "rgb(255, 255, 255)"


def test_on_paper_all_is_light_and_open(opened):
    browser = opened(scheme="dark", media="print")
    assert browser.execute_script(
        "return [getComputedStyle(document.body).backgroundColor,"
        "  getComputedStyle(document.querySelector('nav')).display,"
        "  document.querySelector('details:not([open]) pre').getBoundingClientRect().height > 50]"
    ) == ["rgb(255, 255, 255)", "none", True]


def number(text):
    return float(text.removesuffix(" %").replace("−", "-"))


def test_tables_sort(opened):
    browser = opened()
    column = "return [...document.querySelector('table.sorts').tBodies[0].rows].map(row => row.cells[arguments[0]].innerText)"
    button = browser.find_elements("css selector", "table.sorts thead button")
    head = "return document.querySelectorAll('table.sorts th')[arguments[0]].getAttribute('aria-sort')"
    density = 1
    before = browser.execute_script(column, density)
    assert len(before) == 4 and before != sorted(before, key=number)
    button[density].click()
    assert browser.execute_script(column, density) == sorted(before, key=number)
    assert browser.execute_script(head, density) == "ascending"
    keyed(browser, button[density], "ENTER")
    assert browser.execute_script(column, density) == sorted(before, key=number, reverse=True)
    assert browser.execute_script(head, density) == "descending"
    button[0].click()
    button[density].click()
    assert browser.execute_script(head, 0) is None
    keyed(browser, button[density], "SPACE", "SPACE")
    assert browser.execute_script(column, density) == before and browser.execute_script(head, density) is None
    kept = browser.execute_script("return [...document.querySelectorAll('table.sorts th')].findIndex(head => "
                                  "head.innerText.replace(/\\s/g, ' ') === 'kept')")  # fmt: skip
    button[kept].click()  # with thousands separators
    assert browser.execute_script(column, 0) == ["3", "2", "1", "0"]
    difference = 4
    for _ in range(2):  # the dense network has no difference from itself, and comes last in both directions
        button[difference].click()
        assert browser.execute_script(column, difference)[-1] == ""
    assert browser.execute_script(head, kept) is None


def test_numbers_with_a_letter_are_sorted_as_numbers(opened):
    texts = ["2.08G", "532M", "41.5k", "1,234", "≥ 40", "0.35 %", "−0.12"]
    values = "return arguments[0].map(text => valueOf({textContent: text}))"
    assert opened().execute_script(values, texts) == [2.08e9, 532e6, 41.5e3, 1234, 40, 0.35, -0.12]


def test_figures_tell_their_numbers(opened, small_run):
    browser = opened()
    (one,) = reported.gathered([small_run.path])
    expected = one.summary[(one.summary["branch"] == "ticket") & (one.summary["round"] == 2)].iloc[0]
    told = short(expected["accuracy_mean"])
    plot = browser.find_element("css selector", ".plot[data-panels]")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", plot)
    until(browser, "return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")
    x, y = browser.execute_script(
        "const svg = arguments[0].querySelector('svg');"
        "const line = JSON.parse(arguments[0].dataset.panels)[0].lines.find(line => line.name === 'ticket');"
        "const at = new DOMPoint(...line.points[2].slice(0, 2)).matrixTransform(svg.getScreenCTM()); return [at.x, at.y]",
        plot,
    )
    tip = "const tip = document.querySelector('#tip'); return tip.hidden ? '' : tip.innerText"
    assert browser.execute_script(tip) == ""
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x + 2, "y": y + 1})
    text = until(browser, tip)
    assert text.startswith("ticket") and f"density: {expected['density']:.4g}" in text and told in text
    assert re.search(r"from 0\.\d+ to 0\.\d+|from 0\.\d+ to 1", text)
    box = browser.execute_script("return document.querySelector('.dot').getBoundingClientRect()")
    assert abs(box["x"] + box["width"] / 2 - x) < 2 and abs(box["y"] + box["height"] / 2 - y) < 2
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": 5, "y": 5})
    until(browser, "return document.querySelector('#tip').hidden")
    # The same by keys: the first point of the first line, then along it.
    keyed(browser, plot, "ARROW_RIGHT")
    assert "density: 1\n" in until(browser, tip) + "\n"
    keyed(browser, plot, "ARROW_RIGHT", "ARROW_RIGHT")
    assert told in until(browser, tip)
    keyed(browser, plot, "ESCAPE")
    assert browser.execute_script(tip) == ""


def test_a_slider_goes_through_the_rounds(opened, small_run):
    from selenium.webdriver.support.select import Select

    browser = opened()
    layer = browser.find_element("class name", "layer")
    slider = layer.find_element("tag name", "input")
    image = "return Array.from(arguments[0].querySelector('canvas').getContext('2d').getImageData(0, 0, 8, 8).data)"

    def read(replicate, index):
        kept = StoredRound(small_run.path, replicate, index).masks["dense/kernel"].sum(axis=1)
        return f"{np.count_nonzero(kept)} of 64 inputs are read, each by {short(kept.mean())} of 300 weights"

    said = "return arguments[0].querySelector('output').innerText"
    assert layer.is_displayed() and slider.get_attribute("max") == "3"
    text = browser.execute_script(said, layer)
    assert text.startswith("Round 3,") and read(1, 3) in text
    last = browser.execute_script(image, layer)
    keyed(browser, slider, "ARROW_LEFT")
    text = browser.execute_script(said, layer)
    assert text.startswith("Round 2,") and read(1, 2) in text
    assert browser.execute_script(image, layer) != last
    Select(layer.find_element("tag name", "select")).select_by_visible_text("replicate 2")
    keyed(browser, slider, "END")
    assert read(2, 3) in browser.execute_script(said, layer)
    canvas = layer.find_element("tag name", "canvas")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", canvas)
    until(browser, "return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")
    box = browser.execute_script("return arguments[0].getBoundingClientRect()", canvas)
    place = {"x": box["x"] + 2.5 / 8 * box["width"], "y": box["y"] + 5.5 / 8 * box["height"]}
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": "mouseMoved", **place})
    kept = StoredRound(small_run.path, 2, 3).masks["dense/kernel"].sum(axis=1).reshape(8, 8)
    text = until(browser, "return !document.querySelector('#tip').hidden && document.querySelector('#tip').innerText")
    assert text == f"row 5, column 2\n{kept[5, 2]} of 300 weights kept"


def test_the_policy_forbids_every_request_and_every_other_script(opened):
    browser = opened()
    blocked = browser.execute_async_script(
        "const done = arguments[0], found = [];"
        "document.addEventListener('securitypolicyviolation', event => {"
        "  found.push(event.effectiveDirective); if (found.length === 3) done(found.sort()); });"
        "new Image().src = 'http://127.0.0.1:9/';"
        "fetch('http://127.0.0.1:9/').catch(() => {});"
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = true'}));"
    )
    assert blocked == ["connect-src", "img-src", "script-src-elem"]
    assert browser.execute_script("return window.ran") is None
    browser.get_log("browser")


def test_without_its_script_the_page_is_complete(browser, opened):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        opened(scheme="dark")
        assert len(browser.find_elements("css selector", "figure svg")) >= 10
        assert browser.find_elements("css selector", "thead button") == []
        assert not browser.find_element("class name", "layer").is_displayed()
        browser.find_element("id", "theme-light").click()
        assert browser.find_element("tag name", "body").value_of_css_property("background-color") in (
            "rgb(255, 255, 255)", "rgba(255, 255, 255, 1)"
        )  # fmt: skip
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
