"""The report in a real browser; FLOWGUARD_SCREENSHOTS=DIR keeps what it looked like."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_analysis.analysis import Analysis
from spark_analysis.report.page import write_page
from tests.support.browser import Page, open_page

pytestmark = [pytest.mark.spark, pytest.mark.browser]
WIDTHS = (1280, 390)

OVERLAPS = """
(() => {
  // Of texts in one chart, and of what stands on the page itself: pairs that cover each other.
  const covers = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  const found = [];
  const compare = (elements, where) => {
    const boxes = elements
      .map((one) => [one.textContent.trim().slice(0, 40), one.getBoundingClientRect()])
      .filter(([text, box]) => text && box.width && box.height);
    boxes.forEach(([text, box], index) => boxes.slice(index + 1).forEach(([other, second]) => {
      if (covers(box, second)) found.push(`${where}: '${text}' and '${other}'`);
    }));
  };
  for (const plot of document.querySelectorAll(".plot"))
    compare([...plot.querySelectorAll("text")], plot.parentElement.textContent.slice(0, 40));
  for (const group of document.querySelectorAll("section, article, figure, header, .legend, tr"))
    compare([...group.children], group.tagName);
  return found;
})()
"""
OUTSIDE = """
[...document.querySelectorAll("main *")].filter((one) => {
  const box = one.getBoundingClientRect();
  return box.width && box.height && !one.closest("svg, thead")
    && (box.right > innerWidth + 1 || box.left < -1);
}).map((one) => one.tagName + ": " + one.textContent.slice(0, 40))
"""
CUT = """
[...document.querySelectorAll(".plot")].flatMap((plot) => {
  const frame = plot.getBoundingClientRect();
  return [...plot.querySelectorAll("text")].filter((one) => {
    const box = one.getBoundingClientRect();
    return box.width && (box.right > frame.right + 1 || box.left < frame.left - 1
      || box.bottom > frame.bottom + 8 || box.top < frame.top - 8);
  }).map((one) => one.textContent);
})
"""


BEYOND = """
[...document.querySelectorAll(".area")].flatMap((area) => {
  const frame = area.getBoundingClientRect();
  return [...area.querySelectorAll("path, rect, circle, line")].filter((one) => {
    const box = one.getBoundingClientRect();
    return box.right > frame.right + 8 || box.left < frame.left - 8
      || box.bottom > frame.bottom + 8 || box.top < frame.top - 8;
  }).map((one) => one.outerHTML.slice(0, 80));
})
"""


@pytest.fixture(scope="module")
def report(analysis: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_page(analysis, path)
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_page(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.fixture(scope="module", params=WIDTHS)
def shown(page: Page, report: Path, request: pytest.FixtureRequest) -> Page:
    """The report at a width, opened once for all tests."""
    page.requests.clear()
    page.open(report, request.param)
    folder = os.environ.get("FLOWGUARD_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(Path(folder) / f"report-{request.param}.png")
    return page


def test_nothing_covers_anything_else(shown: Page) -> None:
    assert shown.evaluate(OVERLAPS) == []


def test_nothing_reaches_beyond_the_window_so_that_nobody_scrolls_sideways(shown: Page) -> None:
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert shown.evaluate(OUTSIDE) == []


def test_no_text_of_a_chart_is_cut_off(shown: Page) -> None:
    assert shown.evaluate(CUT) == []


def test_every_chart_is_drawn_within_its_frame(shown: Page) -> None:
    assert shown.evaluate("document.querySelectorAll('figure .plot').length") > 20
    assert shown.evaluate(BEYOND) == []
    assert shown.errors == []


def test_nobody_else_is_asked_for_anything(shown: Page, report: Path) -> None:
    asked = [address for address in shown.requests if not address.startswith("data:")]
    assert asked == [report.as_uri()]


def test_it_can_be_printed(shown: Page, tmp_path: Path) -> None:
    shown.print(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF-")
