"""A headless Chromium, driven by its debugging protocol over two pipes."""

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def require_chromium() -> str:
    """Return the program. Skips the test without one, but not in continuous integration."""
    for name in PROGRAMS:
        program = shutil.which(name)
        if program is not None:
            return program
    reason = "no Chromium here (apt-get install chromium): nobody looks at the report"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@dataclass
class Page:
    """One tab."""

    to_browser: int
    from_browser: Iterator[dict[str, Any]]
    session: str | None = None
    requests: list[str] = field(default_factory=list)
    """Addresses that the page asked for."""
    errors: list[str] = field(default_factory=list)
    """Errors in its scripts, and messages in its console."""
    _number: int = 0

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command; events that come meanwhile are noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        for answer in self.from_browser:
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)
        raise AssertionError("the browser has ended")

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(event["params"]["exceptionDetails"])[:500])
        elif event.get("method") == "Log.entryAdded":
            self.errors.append(json.dumps(event["params"]["entry"])[:500])

    def open(self, path: Path, width: int) -> None:
        """Show a file at a width, and wait until its figures are drawn."""
        self.visit(path.resolve().as_uri(), width)

    def visit(self, address: str, width: int) -> None:
        """Show a page at a width, and wait until its figures are drawn."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call("Page.navigate", url=address)
        self.wait_for(
            "document.readyState === 'complete'"
            " && document.documentElement.hasAttribute('data-drawn')"
        )

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true."""
        self.evaluate(
            f"new Promise((done) => {{ const look = () => ({condition}) ? done(true)"
            " : setTimeout(look, 50); look(); })"
        )

    def evaluate(self, script: str) -> Any:
        """The value of an expression; waits if it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(picture["data"]))

    def print(self, path: Path) -> None:
        """The page as PDF."""
        path.write_bytes(base64.b64decode(self.call("Page.printToPDF")["data"]))


def _messages(pipe: int) -> Iterator[dict[str, Any]]:
    waiting = b""
    while chunk := os.read(pipe, 2**20):
        *complete, waiting = (waiting + chunk).split(b"\0")
        yield from map(json.loads, complete)


@contextmanager
def open_page(profile: Path, *words: str) -> Iterator[Page]:
    """A browser with one empty page; `words`: more of its command."""
    command = [
        require_chromium(),
        *("--headless=new", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *("--disable-dev-shm-usage", f"--user-data-dir={profile}", "--remote-debugging-pipe"),
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
        *words,
    ]
    their_in, our_out = os.pipe()
    our_in, their_out = os.pipe()
    # The browser reads commands from 3 and writes answers to 4.
    shell = f'exec "$@" 3<&{their_in} 4>&{their_out}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "browser", *command],
        pass_fds=(their_in, their_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(their_in)
    os.close(their_out)
    try:
        page = Page(our_out, _messages(our_in))
        target = page.call("Target.createTarget", url="about:blank")["targetId"]
        attached = page.call("Target.attachToTarget", targetId=target, flatten=True)
        page.session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        yield page
    finally:
        os.close(our_out)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(our_in)
