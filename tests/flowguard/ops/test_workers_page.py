"""The first page of several workers: rows, sums, and workers that are down."""

import re
import urllib.request
from pathlib import Path

import pytest

from flowguard.ops.web.workers_page import workers_page
from tests.flowguard.cli.test_top_workers import status
from tests.flowguard.workers.test_cluster import two_nodes
from tests.interop.broker import PATIENCE_S
from tests.support.browser import open_page, require_chromium
from tests.support.redis_server import ALWAYS, redis_server


def test_page_has_a_row_for_each_worker_and_the_sums() -> None:
    statuses = [status(10.0, 1_000, 3), None, status(10.0, 300, 4)]
    page = workers_page(
        "2 of 3 workers serve", [("w-0", ""), ("w-1", "down"), ("w-2", "")], statuses
    )
    body = page.body.decode()
    assert "<h1>2 of 3 workers serve</h1>" in body
    assert '<a href="workers/2/">w-2</a>' in body
    rows = [re.findall(r">([^<>]+)</t[dh]>|>([^<>]+)</a>", row) for row in body.split("<tr>")[2:]]
    cells = [[one or other for one, other in row] for row in rows]
    assert [row[:6] for row in cells] == [
        ["w-0", "3", "0", "1,000", "0", "100"],
        ["w-1", "down"],
        ["w-2", "4", "0", "300", "0", "30"],
        ["all", "7", "0", "1,300", "0", "130"],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_of_a_cluster_has_nodes_and_shards_and_is_fit_for_a_phone(
    tmp_path: Path, theme: str
) -> None:
    require_chromium()
    with (
        redis_server(tmp_path / "redis", ALWAYS) as redis,
        two_nodes(tmp_path, redis) as (first, second),
        open_page(tmp_path / "chromium") as tab,
    ):
        feature = {"name": "prefers-color-scheme", "value": theme}
        tab.call("Emulation.setEmulatedMedia", features=[feature])
        size = {"width": 390, "height": 900, "deviceScaleFactor": 1, "mobile": True}
        tab.call("Emulation.setDeviceMetricsOverride", **size)
        tab.call("Page.navigate", url=f"http://{first.http}/")
        tab.wait_for("document.readyState === 'complete' && document.querySelector('h2')")
        rows = tab.evaluate(
            "[...document.querySelectorAll('tr')].map((row) => row.innerText.split('\\t'))"
        )
        shards = [row for row in rows if row[0].startswith("worker-") and len(row) == 8]
        assert len(shards) == 2  # With clients, window and pressure, wherever they run.
        assert [row[1] for row in rows if row[0].startswith("127.0.0.1")] == ["alive", "alive"]
        assert [row[:2] for row in rows if row[0] in "01"] == [["0", "serves"], ["1", "serves"]]
        links = tab.evaluate("[...document.links].map((link) => link.href)")
        assert f"http://{second.http}/" in links
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        shade = tab.evaluate(
            "getComputedStyle(document.documentElement).colorScheme.includes('dark')"
            " && matchMedia('(prefers-color-scheme: dark)').matches"
        )
        assert shade is (theme == "dark")
        tab.screenshot(tmp_path / f"cluster-{theme}.png")
        for link in links:
            with urllib.request.urlopen(link, timeout=PATIENCE_S) as answer:
                assert answer.status == 200
        assert tab.errors == []
