"""The page as a reader meets it, in Chromium: drawn without errors or network, and it reacts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from paploss.report import write_report
from tests.report.fixtures import HOSTILE, make_search, write_data, write_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
PHONE = {"width": 390, "height": 844}
SCREEN = {"width": 1280, "height": 900}


class Opened(NamedTuple):
    """A page, and what it should not have done."""

    page: Any
    errors: list[str]
    requests: list[str]

    def check(self) -> None:
        assert not self.errors
        assert all(url.startswith(("file:", "data:", "blob:")) for url in self.requests)
        assert len([url for url in self.requests if url.startswith("file:")]) == 1


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        # CI runs as root in a container, where Chromium's own sandbox cannot.
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a search."""
    return write_report([make_search(tmp_path_factory.mktemp("browser") / "search")])


@pytest.fixture(scope="module")
def hostile(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """Of trainings with a hostile class and a hostile loss."""
    folder = tmp_path_factory.mktemp("hostile")
    data = write_data(folder / "data")
    runs = [
        write_run(folder / f"run-{place}", data, loss=loss, ap=ap)
        for place, (loss, ap) in enumerate(
            (("focal+l1", 0.41), (HOSTILE, 0.32), ("focal+giou", 0.5))
        )
    ]
    return visit(browser, write_report(runs, folder / "report.html"))


def visit(browser: Any, path: Path, **options: Any) -> Opened:
    page = browser.new_context(**({"viewport": SCREEN} | options)).new_page()
    page.set_default_timeout(120_000)
    errors: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: (errors.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready=true]")
    return Opened(page, errors, requests)


@pytest.fixture(scope="module")
def opened(browser: Any, report: Path) -> Opened:
    return visit(browser, report)


def test_every_figure_is_drawn_without_errors_or_network(opened: Opened, report: Path) -> None:
    assert report.stat().st_size < 5_000_000
    page = opened.page
    plots = page.locator(".plot").count()
    assert plots > 15
    assert page.locator(".plot svg.main-svg").count() >= plots
    empty = page.evaluate(
        """[...document.querySelectorAll('.panel')].filter(panel =>
            !panel.querySelector('.scatterlayer path, .barlayer path'))
            .map(panel => panel.innerText)"""
    )
    assert empty == []
    opened.check()


def test_the_slider_goes_through_the_rounds(opened: Opened) -> None:
    page = opened.page
    figure = page.locator("[data-figure='functions-search-detector']")
    slider, output = figure.locator("input[type=range]"), figure.locator("output")
    read = "plot => Array.from(plot.data[0].y)"
    answer = figure.locator(".plot").first.evaluate(read)
    slider.focus()
    page.keyboard.press("Home")
    assert output.inner_text().startswith("Round 1 of 4")
    start = figure.locator(".plot").first.evaluate(read)
    assert start == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    page.keyboard.press("ArrowRight")
    assert output.inner_text().startswith("Round 2 of 4")
    page.keyboard.press("End")
    assert figure.locator(".plot").first.evaluate(read) == answer
    opened.check()


def test_tables_sort_by_keyboard(hostile: Opened) -> None:
    page = hostile.page

    def rows() -> list[str]:
        cells = page.locator("#losses tbody tr th").all_inner_texts()
        return [cell.strip() for cell in cells]

    head = page.locator("#losses thead th", has_text="AP").first
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    assert rows()[:3] == ["focal+giou", "focal+l1", HOSTILE]
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert rows()[-3:] == [HOSTILE, "focal+l1", "focal+giou"]
    hostile.check()


def test_the_legend_hides_and_shows(hostile: Opened) -> None:
    figure = hostile.page.locator("[data-figure=training]")
    button = figure.locator(".legend button", has_text=HOSTILE)
    visible = "plot => plot.data.map(trace => trace.visible !== false)"
    plot = figure.locator(".plot").first
    before = plot.evaluate(visible)
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert plot.evaluate(visible).count(False) == 1
    button.click()
    assert plot.evaluate(visible) == before
    hostile.check()


def test_names_are_shown_as_they_are(hostile: Opened) -> None:
    page = hostile.page
    labels = page.locator("[data-figure=evaluation] .ytick").all_text_contents()
    assert HOSTILE in labels
    assert page.locator("#gallery title").first.text_content() == f"{HOSTILE} (object)"
    assert page.locator("main script").count() == 0


def test_the_theme_follows_the_system_and_the_button(
    browser: Any, report: Path, tmp_path: Path
) -> None:
    opened = visit(browser, report, color_scheme="dark")
    page = opened.page
    background = "() => getComputedStyle(document.body).backgroundColor"
    ink = "() => document.querySelector('.plot .xtick text').style.fill"
    dark, dark_ink = page.evaluate(background), page.evaluate(ink)
    page.screenshot(path=tmp_path / "dark.png", full_page=True)
    page.locator("#theme").click()
    assert page.evaluate(background) != dark
    assert page.evaluate(ink) != dark_ink
    page.screenshot(path=tmp_path / "light.png", full_page=True)
    assert page.pdf(path=tmp_path / "printed.pdf")[:4] == b"%PDF"
    opened.check()


def test_a_phone_shows_all_of_it(browser: Any, report: Path, tmp_path: Path) -> None:
    opened = visit(browser, report, viewport=PHONE, is_mobile=True, has_touch=True)
    page = opened.page
    widths = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert widths[0] <= widths[1], "the page itself does not scroll sideways"
    page.screenshot(path=tmp_path / "phone.png", full_page=True)
    opened.check()


def test_a_page_without_anything_is_still_a_page(browser: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    opened = visit(browser, write_report([run]))
    assert "Nothing to show yet" in opened.page.locator("h1").inner_text()
    assert "is this a run directory?" in opened.page.locator(".note").inner_text()
    opened.check()
