"""The report in a real browser: no errors, no sideways scrolling, an explorer that answers to mouse and keyboard."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastmax.report.page.build import build
from tests.reproduce import miniature

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="needs a chromium and its chromedriver, on Debian chromium-driver"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("browser")
    items = [
        one for one in miniature.items() if one.experiment in ("maps", "exactness", "lra-speed") and one.name[0] != "t"
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(miniature, "items", lambda: items)
        results = miniature.measured(folder, patch)
    return build(results, folder / "report").page.as_uri()


@pytest.fixture(scope="module")
def browser(page: str) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    driver.set_page_load_timeout(600)
    driver.get(page)
    yield driver
    driver.quit()


def resize(browser: Any, width: int, *, dark: bool = False, media: str = "") -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [scheme]})


def test_no_errors(browser: Any) -> None:
    assert browser.get_log("browser") == []
    assert browser.title == "fastmax: the paper reproduced"


@pytest.mark.parametrize("width", [320, 375, 1200])
def test_no_sideways_scrolling(browser: Any, width: int) -> None:
    resize(browser, width)
    for details in browser.find_elements("tag name", "details"):
        browser.execute_script("arguments[0].open = true", details)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_dark_and_light_differ_and_print_shows_no_controls(browser: Any) -> None:
    colours = []
    for dark in (False, True):
        resize(browser, 900, dark=dark)
        body = "return getComputedStyle(document.body)"
        colours.append([browser.execute_script(f"{body}.{name}") for name in ("color", "backgroundColor")])
    assert colours[0][0] != colours[1][0]
    assert colours[0][1] != colours[1][1]
    resize(browser, 900, media="print")
    assert not browser.find_element("css selector", ".controls").is_displayed()
    resize(browser, 900)


def info(browser: Any) -> str:
    return str(browser.find_element("id", "ex-info").text)


def test_the_explorer_answers_to_the_keyboard(browser: Any) -> None:
    from selenium.webdriver.common.keys import Keys

    resize(browser, 900)
    canvas = browser.find_element("id", "ex-map")
    canvas.send_keys(Keys.HOME)
    assert "→ key 0" in info(browser)
    before = info(browser)
    canvas.send_keys(Keys.ARROW_RIGHT)
    assert "→ key 1" in info(browser)
    canvas.send_keys(Keys.ARROW_LEFT)
    assert info(browser) == before
    query = before.split(" ")[1]
    canvas.send_keys(Keys.ARROW_DOWN)
    assert info(browser).startswith(f"Query {int(query) + 1} ")


def test_the_explorer_answers_to_the_mouse(browser: Any) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    resize(browser, 900)
    canvas = browser.find_element("id", "ex-map")
    # where the mouse will find it: else the page scrolls while the pointer is on its way
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", canvas)
    box = canvas.size
    middle = info(browser)
    ActionChains(browser).move_to_element_with_offset(canvas, -box["width"] // 2 + 2, -box["height"] // 2 + 2).perform()
    assert info(browser) != middle
    assert info(browser).startswith("Query 0 ")
    assert "→ key 0" in info(browser)


def test_the_explorer_shows_the_weights_of_the_json(browser: Any, page: str) -> None:
    """The first row of the map that is chosen, read back through the keyboard, is what the file holds."""
    import base64
    import json
    import re

    import numpy as np
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.select import Select

    results = Path(page.removeprefix("file://")).parent.parent / "results"
    document = json.loads((results / "maps" / "shapes-fastmax2-seed0.json").read_text())
    for name, choice in (("data", "shapes"), ("model", "fastmax2"), ("head", "2"), ("layer", "1")):
        Select(browser.find_element("id", f"ex-{name}")).select_by_visible_text(choice)
    Select(browser.find_element("id", "ex-sample")).select_by_index(1)
    tokens = document["result"]["tokens"]
    packed = base64.b64decode(document["result"]["maps"][0][1][1])
    weights = np.frombuffer(packed, "<u2").reshape(tokens, tokens) / 65535
    canvas = browser.find_element("id", "ex-map")
    canvas.send_keys(*[Keys.ARROW_UP] * tokens, Keys.HOME)
    for key in range(4):
        shown = re.search(r"Query 0 .* → key (\d+) .*: weight ([0-9.]+)\. This", info(browser))
        assert shown is not None, info(browser)
        assert int(shown[1]) == key
        assert float(shown[2]) == pytest.approx(weights[0, key], abs=5e-5)
        canvas.send_keys(Keys.ARROW_RIGHT)
    assert "patch row" in info(browser)


def test_tables_are_sorted_by_a_click(browser: Any) -> None:
    table = browser.find_element("css selector", 'table[data-name="exactness-negative"]')
    browser.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    button = table.find_elements("css selector", "th button")[3]

    def column() -> list[float]:
        cells = "return [...arguments[0].tBodies[0].rows].map((row) => Number(row.cells[3].dataset.value))"
        return [float(x) for x in browser.execute_script(cells, table)]

    before = column()
    browser.execute_script("arguments[0].click()", button)
    assert column() == sorted(before)
    browser.execute_script("arguments[0].click()", button)
    assert column() == sorted(before, reverse=True)
    assert browser.get_log("browser") == []
