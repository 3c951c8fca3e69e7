"""The broker under attack, in a process of its own, and clients.

The process is `flowguard serve` in a fork of one that has imported everything: a start takes 0.1 s
of processor time instead of 0.6 s, and the process has the same resident memory.
"""

import json
import os
import resource
import signal
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import trio

from flowguard.cli.descriptors import use_all_descriptors
from flowguard.codec.packets import Connack
from flowguard.types import MQTT_5
from tests.support.commands import run_in_fork
from tests.support.fork_server import CONTEXT
from tests.support.real import Wire, connect_packet

HOST = "127.0.0.1"
ANSWER_S = 240.0
"""Maximum time for a broker to end, or to answer a client that it serves, on any machine; after it
the client counts as forgotten."""
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MIB = 1024 * 1024


class Victim:
    """A running broker; what it logs is in `log`."""

    def __init__(self, process: BaseProcess, out: Path, log: Path) -> None:
        self._process = process
        self.out = out
        self.log = log
        self.address = (HOST, 0)
        self.http = ""
        self.wires: list[Wire] = []
        """All opened connections; they are closed at the end of the attack."""

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.exitcode is None

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
            while (code := self._process.exitcode) is None:  # noqa: ASYNC110
                await trio.sleep(0.02)
        return code

    def stop(self) -> None:
        """As a machine that is paused: it runs no more until `go_on`."""
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

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
    command = ("serve", "--listen", f"{scheme}://{HOST}:0")
    command += ("--data", str(folder / "data"), "--store", store)
    out, log = folder / "broker.out", folder / "broker.log"
    out.write_text("")
    log.touch()
    started = CONTEXT.Process(
        target=_serve, args=(command, os.environ | variables, [out, log], descriptors)
    )
    started.start()
    broker = Victim(started, out, log)
    try:
        yield broker
    finally:
        with suppress(ProcessLookupError):
            broker.go_on()
        started.kill()
        started.join()
        started.close()


def _serve(
    command: tuple[str, ...],
    environment: dict[str, str],
    files: list[Path],
    descriptors: int | None,
) -> None:
    if descriptors is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    run_in_fork(command, environment, files)


def _wait_until_it_listens(started: Victim) -> None:
    """Read the addresses from its first lines."""
    until_s = time.monotonic() + ANSWER_S
    while not (started.address[1] and started.http):
        assert time.monotonic() < until_s
        if not started.is_alive:
            raise Ended(started._process.exitcode or 0, started.logged)
        time.sleep(0.005)
        for line in started.out.read_text().splitlines(keepends=True):
            where = next((word for word in reversed(line.split()) if ":" in word), "")
            if not line.endswith("\n"):
                continue
            if "http" in line:
                started.http = f"http://{where.removeprefix('http://').rstrip('/')}"
            elif ":" in where:
                started.address = (HOST, int(where.rpartition(":")[2]))
