"""A proxy as a process of its own, in front of a broker, and its HTTP port."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.flowguard.cli.http_port import http_address
from tests.interop.broker import (
    ANNOUNCEMENT,
    PATIENCE_S,
    Broker,
    address_in,
    environment_with,
)
from tests.support.forks import Fork

POLL_S = 0.05


@dataclass
class Proxy(Broker):
    """A running proxy; for clients it is a broker."""

    url: str = ""

    def get(self, path: str) -> tuple[int, str]:
        """Return the status and the text of an answer."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.get("/status")[1]))


@contextmanager
def running_proxy(
    folder: Path,
    upstream: tuple[str, int],
    *arguments: str,
    environment: dict[str, str] | None = None,
    exit_code: int = 0,
) -> Iterator[Proxy]:
    """A proxy on free ports; it must end with this exit code, and without a traceback."""
    log = folder / "proxy.txt"
    place = f"{upstream[0]}:{upstream[1]}"
    listen = () if "--listen" in arguments else ("--listen", "127.0.0.1:0")
    words = ("proxy", "--upstream", place, *listen, *arguments)
    with log.open("w") as stderr:
        process = Fork(words, environment_with(environment), stderr)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(ANNOUNCEMENT), line + log.read_text()
        proxy = Proxy(process, *address_in(line), log)
        proxy.url = f"http://{http_address(proxy)}"
        yield proxy
        if process.poll() is None:
            proxy.terminate()
        assert process.returncode == exit_code, log.read_text()
        assert "Traceback" not in log.read_text(), log.read_text()
    finally:
        process.kill()
        process.communicate()


def until(condition: Callable[[], object]) -> None:
    """Look again until something is true."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it never came"
        time.sleep(POLL_S)
