"""The broker under attack, in a process of its own as `flowguard serve` starts it, and clients."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import trio

from flowguard.cli.descriptors import use_all_descriptors
from flowguard.codec.packets import Connack
from flowguard.types import MQTT_5
from tests.support.real import Wire, connect_packet

HOST = "127.0.0.1"
ANSWER_S = 240.0
"""Maximum time for a broker to end, or to answer a client that it serves, on any machine; after it
the client counts as forgotten."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MIB = 1024 * 1024


class Victim:
    """A running broker; what it logs is in `log`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self.log = log
        self.address = (HOST, 0)
        self.http = ""
        self.wires: list[Wire] = []
        """All opened connections; they are closed at the end of the attack."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def logged(self) -> str:
        return self.log.read_text(errors="replace")

    def resident_bytes(self) -> int:
        """Return the resident memory of the broker."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE_BYTES

    async def end(self) -> int:
        """Ask it to drain; its exit code."""
        self._process.terminate()
        return await self.ended()

    async def ended(self) -> int:
        """Wait until the process ends by itself, and return its exit code."""
        with trio.fail_after(ANSWER_S):
            while (code := self._process.poll()) is None:  # noqa: ASYNC110
                await trio.sleep(0.02)
        return code

    def stop(self) -> None:
        """As a machine that is paused: it runs no more until `go_on`."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def get(self, path: str, timeout_s: float = ANSWER_S) -> tuple[int, str]:
        """Status code and body of an HTTP GET; blocks."""
        try:
            with urllib.request.urlopen(self.http + path, timeout=timeout_s) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def status(self) -> dict[str, Any]:
        """Return the broker's status; blocks."""
        found: dict[str, Any] = json.loads(self.get("/status")[1])
        return found

    async def open(self, version: int = MQTT_5) -> Wire:
        """A connection that has said nothing yet."""
        wire = Wire(await trio.open_tcp_stream(*self.address), version)
        self.wires.append(wire)
        return wire

    async def connect(self, client_id: str, version: int = MQTT_5, **options: Any) -> Wire:
        """A client that has been accepted, or `Refused`."""
        wire = await self.open(version)
        await wire.send(connect_packet(client_id, version, **options))
        connack = await wire.expect(Connack)
        if connack.reason_code:
            raise Refused(connack.reason_code)
        return wire


class Ended(Exception):
    """A broker has ended by itself, with this exit code."""

    def __init__(self, code: int, log: str) -> None:
        super().__init__(f"exit {code}: {log.strip().splitlines()[-1:]}")
        self.code = code
        self.log = log


class Refused(Exception):
    """A CONNACK with an error, which is the argument."""


@asynccontextmanager
async def victim(
    folder: Path,
    settings: dict[str, dict[str, Any]] | None = None,
    *,
    descriptors: int | None = None,
    store: str = "memory",
    scheme: str = "mqtt",
    environ: Mapping[str, str] | None = None,
) -> AsyncIterator[Victim]:
    """Yield a broker that is killed at the end, in any state; `descriptors` is its limit.

    Raises Ended if it does not start. This process may have as many descriptors as the system
    allows, because attackers need one each.
    """
    use_all_descriptors()
    with process(folder, settings or {}, descriptors, store, scheme, environ) as started:
        try:
            await trio.to_thread.run_sync(_wait_until_it_listens, started)
            yield started
        finally:
            for wire in started.wires:
                wire.stream.socket.close()


@contextmanager
def process(
    folder: Path,
    settings: dict[str, dict[str, Any]],
    descriptors: int | None,
    store: str,
    scheme: str = "mqtt",
    environ: Mapping[str, str] | None = None,
) -> Iterator[Victim]:
    """The process, which may end before it listens."""
    variables = {
        f"FLOWGUARD_{section}__{key}".upper(): json.dumps(value).strip('"')
        for section, values in settings.items()
        for key, value in values.items()
    }
    variables |= environ or {}
    command = [sys.executable, "-m", "flowguard", "serve", "--listen", f"{scheme}://{HOST}:0"]
    command += ["--data", str(folder / "data"), "--store", store]
    if descriptors is not None:
        command = ["prlimit", f"--nofile={descriptors}:{descriptors}", *command]
    log = folder / "broker.log"
    with (
        log.open("ab") as stderr,
        subprocess.Popen(
            command, env=os.environ | variables, stdout=subprocess.PIPE, stderr=stderr
        ) as started,
    ):
        try:
            yield Victim(started, log)
        finally:
            with suppress(ProcessLookupError):
                started.send_signal(signal.SIGCONT)
                started.kill()


def _wait_until_it_listens(started: Victim) -> None:
    """Read the addresses from its first lines."""
    stdout = started._process.stdout
    assert stdout is not None
    while not (started.address[1] and started.http):
        line = stdout.readline().decode()
        if not line:
            raise Ended(started._process.wait(ANSWER_S), started.logged)
        where = next((word for word in reversed(line.split()) if ":" in word), "")
        if "http" in line:
            started.http = f"http://{where.removeprefix('http://')}"
        elif ":" in where:
            started.address = (HOST, int(where.rpartition(":")[2]))
