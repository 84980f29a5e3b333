"""The report in a real browser: no errors, no sideways scrolling, an explorer that answers to mouse and keyboard."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.tests.experiments import miniature

from fastmax_lab.report.page.build import build

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
PHONE, DESK = 375, 1200
WITHOUT = "needs a chromium and its chromedriver, on Debian chromium-driver"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason=WITHOUT)]


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


def resize(browser: Any, width: int, *, dark: bool = False) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    still = {"name": "prefers-reduced-motion", "value": "reduce"}  # a page that still scrolls runs away from the mouse
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme, still]})


def test_no_errors(browser: Any) -> None:
    assert browser.get_log("browser") == []
    assert browser.title == browser.find_element("tag name", "h1").text


def test_a_phone_shows_the_page_without_sideways_scrolling(browser: Any) -> None:
    resize(browser, PHONE)
    for details in browser.find_elements("tag name", "details"):
        browser.execute_script("arguments[0].open = true", details)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= PHONE


def test_dark_and_light_differ(browser: Any) -> None:
    colours = []
    for dark in (False, True):
        resize(browser, 900, dark=dark)
        body = "return getComputedStyle(document.body)"
        colours.append([browser.execute_script(f"{body}.{name}") for name in ("color", "backgroundColor")])
    assert colours[0][0] != colours[1][0]
    assert colours[0][1] != colours[1][1]
    resize(browser, 900)


def test_only_tables_that_scroll_are_stops_of_the_keyboard(browser: Any) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    browser.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    both = (
        "return [...document.querySelectorAll('.table')].map((t) => [t.scrollWidth > t.clientWidth, t.tabIndex === 0])"
    )
    for width in (PHONE, DESK):
        resize(browser, width)
        WebDriverWait(browser, 30).until(lambda b: all(wide is stop for wide, stop in b.execute_script(both)))
        assert any(wide for wide, _ in browser.execute_script(both)) is (width == PHONE)
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
    import re

    import numpy as np
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.select import Select

    from fastmax_lab.measurements import read

    results = Path(page.removeprefix("file://")).parent.parent / "results"
    (found,) = [one for one in read(results / "maps.jsonl") if one.name == "shapes-fastmax2-seed0"]
    for name, choice in (("data", "shapes"), ("model", "fastmax2"), ("head", "2"), ("layer", "1")):
        Select(browser.find_element("id", f"ex-{name}")).select_by_visible_text(choice)
    Select(browser.find_element("id", "ex-sample")).select_by_index(1)
    tokens = found.values["tokens"]
    packed = base64.b64decode(found.values["maps"][0][1][1])
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


def test_text_is_read_by_the_keyboard_and_masked_keys_are_said_to_be(browser: Any) -> None:
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.select import Select

    resize(browser, 900)
    Select(browser.find_element("id", "ex-data")).select_by_visible_text("listops")
    letters = browser.find_elements("css selector", "#ex-sample-view [role=listbox] [role=option]")
    assert [letter.get_attribute("tabindex") for letter in letters].count("0") == 1, "one stop for all of them"
    query = browser.find_element("css selector", "#ex-sample-view [aria-selected=true]")
    query.send_keys(Keys.HOME)
    assert info(browser).startswith("Query 0 ")
    for expected in (1, 2):
        browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
        assert browser.switch_to.active_element == letters[expected]
        assert letters[expected].get_attribute("aria-selected") == "true"
        assert letters[expected].get_attribute("aria-label").startswith(f"{expected} “")
        assert info(browser).startswith(f"Query {expected} ")
    canvas = browser.find_element("id", "ex-map")
    canvas.send_keys(Keys.HOME, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert "→ key 2 " in info(browser)
    assert ": weight 0." in info(browser) or ": weight 1." in info(browser)
    canvas.send_keys(Keys.ARROW_RIGHT)
    assert "→ key 3 " in info(browser)
    assert ": masked, it comes after the query. This head" in info(browser)


def test_texts_of_numbers_are_sorted_as_numbers(browser: Any) -> None:
    cells = ["above 100", "–", "fastmax2", "1,226", "below 256", "553", "2.5e-07", "softmax"]
    made = """
        const table = document.querySelector('table[data-name="lra-speed-0"]');
        const rows = [...table.tBodies[0].rows], all = arguments[0];
        table.tBodies[0].replaceChildren(...all.map((text) => {
          const row = rows[0].cloneNode(true);
          row.cells[1].removeAttribute("data-value");
          row.cells[1].textContent = text;
          return row;
        }));
        const found = [0, 1].map(() => {
          table.querySelectorAll("th button")[1].click();
          return [...table.tBodies[0].rows].map((row) => row.cells[1].textContent);
        });
        table.tBodies[0].replaceChildren(...rows);
        return found;
    """
    numbers = ["2.5e-07", "above 100", "below 256", "553", "1,226"]
    up, down = browser.execute_script(made, cells)
    assert up == [*numbers, "fastmax2", "softmax", "–"]
    assert down == [*reversed(numbers), "softmax", "fastmax2", "–"]


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
