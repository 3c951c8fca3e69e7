"""The page in a real browser, while a storm runs; FLOWGUARD_SCREENSHOTS=DIR keeps pictures."""

import http.server
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.brokers import free_port
from flowguard.ops.web.page import page_response
from tests.flowguard.cli.http_port import http_address
from tests.interop.broker import Broker, running_broker, start
from tests.support.browser import Page, open_page
from tests.support.patience import HANG_S

pytestmark = [pytest.mark.browser, pytest.mark.slow]

OVERLAPS = """
(() => {
  const covers = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  const boxes = (one) => { // A text that goes over several lines has a box for each.
    const range = document.createRange();
    range.selectNodeContents(one);
    return [...(one.children.length ? one : range).getClientRects()]
      .filter((size) => size.width && size.height);
  };
  const found = [];
  for (const group of document.querySelectorAll("body *:not(svg, svg *, script, style, head *)")) {
    const parts = [...group.children].filter((one) => !one.matches(".unseen, .skip, script"))
      .map((one) => [one, boxes(one)]);
    parts.forEach(([one, sizes], index) => parts.slice(index + 1).forEach(([other, seconds]) => {
      if (sizes.some((size) => seconds.some((second) => covers(size, second))))
        found.push(`${group.id || group.tagName}: ${one.textContent} | ${other.textContent}`);
    }));
  }
  return found;
})()
"""
OUTSIDE = """
[...document.querySelectorAll("body *:not(svg *, .skip, .unseen)")].filter((one) => {
  const box = one.getBoundingClientRect();
  return box.width && (box.right > innerWidth + 1 || box.left < -1);
}).map((one) => one.tagName + ": " + one.textContent.slice(0, 40))
"""
CUT = """
[...document.querySelectorAll(".card p, .card dd, .card td, .card th, .meters span, h1, h2")]
  .filter((one) => one.scrollWidth > one.clientWidth + 1 && one.clientWidth
    && getComputedStyle(one).display !== "inline")
  .map((one) => one.tagName + ": " + one.textContent)
"""
CONTRASTS = """
[...document.querySelectorAll("body *:not(svg *, script, .skip, .unseen)")].filter((one) =>
  [...one.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim())
).map((one) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((part) => part / 255)
    .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  let under = one;
  while (rgb(getComputedStyle(under).backgroundColor)[3] < 255) under = under.parentElement;
  const pair = [getComputedStyle(one).color, getComputedStyle(under).backgroundColor];
  const [high, low] = pair.map(rgb).map(light).sort((a, b) => b - a);
  return [(high + 0.05) / (low + 0.05), one.textContent.trim().slice(0, 40)];
}).filter(([contrast]) => contrast < 4.5)
"""
FEW_AT_ONCE = {"FLOWGUARD_FLOW__CONNECT_BUFFER_MAX": "5", "FLOWGUARD_FLOW__WINDOW_MAX": "20"}


@contextmanager
def storm(broker: Broker, *words: str) -> Iterator[None]:
    """Load on a broker as long as the block lasts."""
    process = start("storm", f"{broker.host}:{broker.port}", *words)
    try:
        yield
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The HTTP port of a broker in a storm, as HOST:PORT."""
    folder = tmp_path_factory.mktemp("broker")
    with running_broker(folder, environment=FEW_AT_ONCE) as broker:
        asked = http_address(broker)
        pairs = ("pairs", "--pairs", "20", "--rate", "5", "--seconds", "3600")
        crowd = ("connect", "--clients", "100", "--hold", "3600", "--retry", "fixed")
        with storm(broker, *pairs), storm(broker, *crowd):
            yield asked


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_page(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


def show(tab: Page, address: str, width: int, theme: str) -> None:
    """The page at a width and in a theme, when messages flow and talkers are known."""
    feature = {"name": "prefers-color-scheme", "value": theme}
    tab.call("Emulation.setEmulatedMedia", features=[feature])
    tab.requests.clear()
    tab.errors.clear()
    tab.visit(f"http://{address}/", width)
    tab.wait_for("document.querySelector('#talkers button')")
    tab.wait_for("document.querySelector('#received').textContent !== '0'")


@pytest.fixture(params=[(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")], ids=str)
def shown(tab: Page, address: str, request: pytest.FixtureRequest, tmp_path: Path) -> Page:
    width, theme = request.param
    show(tab, address, width, theme)
    tab.evaluate("explain(document.querySelector('#talkers button').textContent)")
    tab.wait_for("document.querySelector('#explained p')")
    tab.evaluate("document.querySelector('#pause').click()")  # The measured values stand still.
    picture(tab, f"page-{width}-{theme}", tmp_path)
    return tab


def picture(tab: Page, name: str, folder: Path) -> None:
    folder = Path(os.environ.get("FLOWGUARD_SCREENSHOTS", folder))
    folder.mkdir(parents=True, exist_ok=True)
    tab.screenshot(folder / f"{name}.png")


def test_it_is_readable_and_asks_nobody_else(shown: Page, address: str) -> None:
    assert shown.evaluate(OVERLAPS) == []
    assert shown.evaluate(OUTSIDE) == []
    assert shown.evaluate(CUT) == []
    assert shown.evaluate(CONTRASTS) == []
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
    sentence = shown.evaluate("document.querySelector('h1').textContent")
    assert re.match(r"(Calm|Busy|Overloaded): ", sentence)
    assert "is connected" in shown.evaluate("document.querySelector('#explained').textContent")
    asked = {url for url in shown.requests if not url.startswith("data:")}
    assert {url.removeprefix(f"http://{address}").split("/")[1] for url in asked} == {
        "", "events", "explain",
    }  # fmt: skip
    assert shown.errors == []


def test_it_is_fit_for_keyboards_and_screen_readers(tab: Page, address: str) -> None:
    show(tab, address, 390, "light")
    tab.evaluate("document.activeElement.blur()")

    def press(key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            tab.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Skip to the figures"
    press("Tab")
    assert tab.evaluate("document.activeElement.textContent") == "Pause"
    assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.call("Accessibility.enable")
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    seen = [node for node in nodes if not node.get("ignored")]
    roles = [node["role"]["value"] for node in seen]
    assert {"main", "banner", "contentinfo", "status", "textbox", "columnheader"} <= set(roles)
    unnamed = [
        node
        for node in seen
        if node["role"]["value"] in ("button", "textbox", "image", "region", "heading", "table")
        and not node.get("name", {}).get("value")
        and node["role"]["value"] != "table"
    ]
    assert unnamed == []
    assert roles.count("heading") == 1 + tab.evaluate(
        "document.querySelectorAll('section:not([hidden]) h2').length"
    )
    assert tab.evaluate("document.querySelector('#said').getAttribute('aria-live')") == "polite"


def test_lines_have_scales_and_the_value_at_the_pointer(tab: Page, address: str) -> None:
    show(tab, address, 390, "light")
    note = "document.querySelector('#s-received .scale').textContent"
    assert re.fullmatch(r"0 to [\d,.]+, peak [\d,.]+", tab.evaluate(note))
    tab.evaluate("document.querySelector('#s-received').scrollIntoView()")
    box = tab.evaluate(
        "(() => { const box = document.querySelector('#s-received svg').getBoundingClientRect();"
        " return [box.right - 2, box.top + 10]; })()"
    )
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
    tab.wait_for(f"/^\\d\\d:\\d\\d:\\d\\d: /.test({note})")
    tab.evaluate("document.querySelector('#hour').click()")
    assert tab.evaluate("document.querySelector('#hour').getAttribute('aria-pressed')") == "true"
    # The search for a client is the first of the figures.
    assert tab.evaluate("document.querySelector('#figures').firstElementChild.contains(client)")


@pytest.mark.parametrize("width", [1280, 390])
def test_limits_have_their_origin(tab: Page, address: str, width: int) -> None:
    show(tab, address, width, "light")
    tab.evaluate("document.querySelector('#limits-open summary').click()")
    tab.wait_for("document.querySelector('#limits tr')")
    text = (
        "[...document.querySelectorAll('#limits tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    rows = {row[0]: row[1:] for row in tab.evaluate(text)}
    assert rows["flow.window_max"] == ["20", "FLOWGUARD_FLOW__WINDOW_MAX"]
    assert rows["flow.connect_timeout_s"] == ["10", "default"]
    assert rows["node.sessions_max"][1] == "computed from the memory limit"
    assert tab.evaluate(OUTSIDE) == []


def test_what_others_call_themselves_is_text_and_no_markup(tab: Page, address: str) -> None:
    show(tab, address, 1280, "light")
    tab.evaluate("explain('<img src=x onerror=alert(1)>')")
    tab.wait_for("document.querySelector('#explained p')")
    assert tab.evaluate("document.querySelectorAll('img').length") == 0
    assert "<img" in tab.evaluate("document.querySelector('#explained').textContent")
    # Nor would a script run that got in: the policy lets one run only, by its digest.
    tab.evaluate(
        "(() => { const evil = document.createElement('script');"
        " evil.textContent = 'window.evil = 1'; document.body.append(evil); })()"
    )
    assert tab.evaluate("window.evil") is None


ATTACK = Path(__file__).with_name("attack.html").read_bytes()


class AttackPage(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(ATTACK)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def attacker() -> Iterator[int]:
    """The port of a server with the attack page."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), AttackPage) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "evil.localhost"])
def test_a_page_of_another_origin_can_change_and_read_nothing(
    tab: Page, address: str, attacker: int, name: str
) -> None:
    """From another port of the same name, from another name, and from one that is not ours."""
    tab.visit(f"http://{name}:{attacker}/", 1280)
    assert tab.evaluate(f"attack('http://{address}')") == []
    port = address.rpartition(":")[2]
    assert tab.evaluate(f"attack('http://evil.localhost:{port}')") == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_broker_without_answers_is_shown_as_such_until_it_is_back(
    tab: Page, tmp_path: Path, how: signal.Signals
) -> None:
    is_killed = how == signal.SIGKILL
    port = free_port()
    words = ("--http", f"127.0.0.1:{port}")
    exit_code = -signal.SIGKILL if is_killed else 0
    with running_broker(tmp_path / "1", *words, exit_code=exit_code) as broker:
        tab.visit(f"http://127.0.0.1:{port}/", 390)
        tab.wait_for("document.querySelector('h1').textContent.startsWith('Calm: ')")
        broker.process.send_signal(how)
        tab.wait_for("/^No answer since \\d\\d:/.test(document.querySelector('h1').textContent)")
        assert tab.evaluate("document.title") == "no answer · flowguard"
        if is_killed:
            broker.process.wait(HANG_S)
        else:
            broker.process.send_signal(signal.SIGCONT)
            tab.wait_for("document.querySelector('h1').textContent.startsWith('Calm: ')")
            tab.wait_for("document.querySelector('#feed').textContent === 'live'")
    if is_killed:
        with running_broker(tmp_path / "2", *words):
            tab.wait_for("document.querySelector('h1').textContent.startsWith('Calm: ')")


def test_a_link_to_a_client_is_followed_on_an_open_page(tab: Page, address: str) -> None:
    tab.visit(f"http://{address}/", 1280)
    tab.evaluate("location.hash = 'client=no%2Fbody'")
    tab.wait_for("document.body.textContent.includes('no session of no/body')")


def test_the_page_stands_alone() -> None:
    body = page_response().body.decode()
    links = set(re.findall(r"https?://[^\s'\"]+", body))
    assert links == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\(|<script src|innerHTML|eval\(", body)
