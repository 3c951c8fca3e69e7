"""The page of a proxy in a real browser."""

from pathlib import Path

import pytest

from tests.broker_adapter.watch.running import running_proxy, until
from tests.flowguard.ops.test_page import OUTSIDE
from tests.interop.broker import running_broker
from tests.support.browser import open_page
from tests.support.caller import Caller

pytestmark = [pytest.mark.browser, pytest.mark.slow]
HIDDEN = """
[...document.querySelectorAll("section.card")].filter((one) => one.offsetParent === null)
  .map((one) => one.getAttribute("aria-labelledby"))
"""


@pytest.mark.parametrize("width", [1280, 390])
def test_page_shows_the_brokers_behind_and_hides_what_a_proxy_lacks(
    tmp_path: Path, width: int
) -> None:
    with (
        running_broker(tmp_path) as broker,
        running_proxy(tmp_path, (broker.host, broker.port)) as proxy,
        Caller(proxy, client_id="me") as me,
        open_page(tmp_path / "chromium") as tab,
    ):
        me.read()
        tab.visit(f"{proxy.url}/#client=me", width)
        tab.wait_for("document.documentElement.dataset.drawn === '1'")
        assert sorted(tab.evaluate(HIDDEN)) == ["h-store"]
        behind = tab.evaluate("document.querySelector('#upstreams').textContent")
        assert behind.startswith(f"{broker.host}:{broker.port}answers1")
        until(lambda: "me is connected" in tab.evaluate("explained.textContent"))
        assert tab.evaluate(OUTSIDE) == []
        assert tab.errors == []
