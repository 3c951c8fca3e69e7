"""The first page of several workers: rows, sums, and workers that are down."""

import re

from flowguard.ops.web.workers_page import workers_page
from tests.flowguard.cli.test_top_workers import status


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
