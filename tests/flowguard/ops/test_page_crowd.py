"""The page of a broker with 50,000 sessions: search, explanation, and the end of a connection."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowguard.config import StoreSettings
from flowguard.records import PutSession
from flowguard.stores.rocks import RocksStore
from flowguard.types import Properties
from tests.flowguard.cli.http_port import http_address
from tests.flowguard.ops import test_page
from tests.flowguard.ops.test_page import CONTRASTS, CUT, OUTSIDE, OVERLAPS, picture
from tests.interop.broker import Broker, running_broker
from tests.support.browser import Page
from tests.support.caller import Caller

pytestmark = [pytest.mark.browser, pytest.mark.slow]
tab = test_page.tab
SESSIONS = 50_000
KEPT = Properties(session_expiry_interval=1_000)
BUTTONS = "[...document.querySelectorAll('#clients-found button')]"
NAMES = f"{BUTTONS}.map((one) => one.textContent)"


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, str]]:
    """A broker with stored sessions, and its HTTP port."""
    folder = tmp_path_factory.mktemp("crowd")
    store = RocksStore(folder / "data", StoreSettings(), wall_s=time.time, random_node=lambda: 7)
    for first in range(0, SESSIONS, 1_000):
        numbers = range(first, first + 1_000)
        store.commit([PutSession(f"device-{number:05d}", 0xFFFF_FFFF, None) for number in numbers])
    store.close()
    with running_broker(folder) as broker:
        yield broker, http_address(broker)


def search(tab: Page, address: str, text: str, width: int = 1280, theme: str = "light") -> None:
    feature = {"name": "prefers-color-scheme", "value": theme}
    tab.call("Emulation.setEmulatedMedia", features=[feature])
    tab.call("Page.navigate", url="about:blank")  # The page before may ask for a client that left.
    tab.errors.clear()
    tab.visit(f"http://{address}/", width)
    tab.evaluate(f"client.value = '{text}'; document.querySelector('#find button').click()")
    tab.wait_for("/found$|^The first/.test(looked.textContent)")


@pytest.mark.parametrize(
    ("width", "theme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
)
def test_client_is_found_among_many(
    tab: Page, crowded: tuple[Broker, str], width: int, theme: str, tmp_path: Path
) -> None:
    broker, address = crowded
    with Caller(broker, client_id="device-49123", clean_start=False, properties=KEPT) as caller:
        caller.read()
        search(tab, address, "ICE-4912", width, theme)
        tab.wait_for("document.querySelector('#sessions').textContent.includes('50,000')")
        assert sorted(tab.evaluate(NAMES)) == [f"device-4912{digit}" for digit in range(10)]
        tab.evaluate(f"{BUTTONS}.find((one) => one.textContent === 'device-49123').click()")
        tab.wait_for("document.querySelector('#explained p')")
        picture(tab, f"crowd-{width}-{theme}", tmp_path)
        assert "is connected" in tab.evaluate("explained.textContent")
        assert tab.evaluate(OVERLAPS) == []
        assert tab.evaluate(OUTSIDE) == []
        assert tab.evaluate(CUT) == []
        assert tab.evaluate(CONTRASTS) == []
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        # Without scrolling, the explanation is in sight.
        assert tab.evaluate("explained.getBoundingClientRect().top < innerHeight / 2")
        assert tab.errors == []


def test_search_ends_when_enough_are_found(tab: Page, crowded: tuple[Broker, str]) -> None:
    search(tab, crowded[1], "device")
    assert len(tab.evaluate(NAMES)) == 50
    assert tab.evaluate("looked.textContent").startswith("The first 50.")
    search(tab, crowded[1], "nothing like this")
    assert tab.evaluate("looked.textContent") == "0 found"


def test_client_is_disconnected_after_a_question(tab: Page, crowded: tuple[Broker, str]) -> None:
    broker, address = crowded
    with Caller(broker, client_id="device-00007", clean_start=False, properties=KEPT) as caller:
        caller.read()
        search(tab, address, "device-00007")  # The only one is explained.
        tab.wait_for("!kick.hidden && !acts.hidden")
        tab.evaluate("kick.click()")
        assert "device-00007" in tab.evaluate("question.textContent")
        tab.evaluate("document.querySelector('#sure button').click()")
        tab.wait_for("!sure.open")
        assert tab.evaluate("kicked.textContent") == ""
        assert "is connected" in tab.evaluate("explained.textContent")
        tab.evaluate("kick.click()")
        tab.evaluate("document.querySelector('#do-kick').click()")
        tab.wait_for("kicked.textContent === 'device-00007 was disconnected.'")
        while caller.read() is not None:
            pass
    assert "clients/kick" in broker.log.read_text()
    tab.wait_for("explained.textContent.includes('is not connected')")
    assert tab.errors == []


def test_page_of_one_worker_finds_and_disconnects_clients_of_all(tab: Page, tmp_path: Path) -> None:
    names = [f"car-{number}" for number in range(8)]
    with running_broker(tmp_path, "--workers", "2") as broker:
        address = http_address(broker)
        callers = [Caller(broker, client_id=name) for name in names]
        for caller in callers:
            caller.read()
        for worker in range(2):
            search(tab, f"{address}/workers/{worker}", "car-")
            assert sorted(tab.evaluate(NAMES)) == names[worker:]
            name = names[worker]
            tab.evaluate(f"{BUTTONS}.find((one) => one.textContent === '{name}').click()")
            tab.wait_for("!kick.hidden && !acts.hidden")
            tab.evaluate("kick.click(); document.querySelector('#do-kick').click()")
            tab.wait_for(f"kicked.textContent === '{name} was disconnected.'")
            while callers[worker].read() is not None:
                pass
        tab.call("Page.navigate", url=f"http://{address}/")
        tab.wait_for("document.querySelector('table')")
        assert tab.errors == []
        for caller in callers:
            caller.close()


def test_help_explains_each_metric(tab: Page, crowded: tuple[Broker, str]) -> None:
    tab.errors.clear()
    tab.call("Page.navigate", url=f"http://{crowded[1]}/help")
    tab.wait_for("document.querySelector('main.help table')")
    rows = tab.evaluate("[...document.querySelectorAll('tr')].map((row) => row.innerText)")
    assert any(row.startswith("flowguard_window_packets\t") for row in rows)
    assert tab.evaluate(CONTRASTS) == []
    assert tab.errors == []
