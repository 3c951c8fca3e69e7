"""The page in a real browser; FLOWGUARD_SCREENSHOTS=DIR keeps what it looked like."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_analysis.tuner.page import TuningRecord, write_page
from tests.spark_analysis.report.test_browser import BEYOND, CUT, OUTSIDE, OVERLAPS, WIDTHS
from tests.spark_analysis.tuner.tried import Tried, candidate, grid, tuned
from tests.support.browser import Page, open_page

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def many() -> TuningRecord:
    """Two scenarios and two dozen candidates, some of which break the constraint."""
    effects = {
        candidate(window_max=str(window), queue_objective_s=f"{queue}"): 1.0
        + 0.02 * number
        - 0.3 * (window == 10)
        for number, (window, queue) in enumerate(
            (window, queue)
            for window in (10, 20, 50, 65_535)
            for queue in (0.0025, 0.005, 0.01, 0.05, 0.1, 0.2, 0.4)
        )
    }
    alone = {candidate(connect_patience_s=f"{value}"): 0.9 + value / 50 for value in (4, 6, 9.5)}
    words = {candidate(cluster_rule="max"): 1.01}
    tried = []
    for scenario in ("noisy_neighbour", "flash_crowd"):
        for one in grid({**effects, **alone, **words}, scenario=scenario):
            memory = 0.6 - 0.004 * sum(map(len, one.limits.values())) - 0.001 * one.seed
            if "0.4" in one.limits.values():
                memory = 0.05
            tried.append(Tried(one.seed, one.value, one.limits, scenario, memory=memory))
    return tuned(tried)


PAGES = {"recommended": many, "refused": lambda: tuned(grid({candidate(window_max="50"): 0.99}))}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_page(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.mark.parametrize(
    ("name", "width"), [("refused", min(WIDTHS)), *(("recommended", width) for width in WIDTHS)]
)
def test_it_can_be_read_at_every_width(page: Page, name: str, width: int, tmp_path: Path) -> None:
    path = tmp_path / "tuning.html"
    write_page(PAGES[name](), path)
    page.requests.clear()
    page.open(path, width)
    folder = os.environ.get("FLOWGUARD_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(Path(folder) / f"tuning-{name}-{width}.png")
    assert page.errors == []
    assert page.evaluate("document.querySelectorAll('.plot').length") >= 2
    assert page.evaluate(BEYOND) == []
    assert page.evaluate(OVERLAPS) == []
    assert page.evaluate(CUT) == []
    assert page.evaluate(OUTSIDE) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert [one for one in page.requests if not one.startswith("data:")] == [path.as_uri()]
