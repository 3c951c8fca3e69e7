"""Starting a server, knowing that it is ready, ending it. Every one binds 127.0.0.1 only."""

import random
import re
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from . import machine

HOST = "127.0.0.1"
START_LIMIT_S = 900.0  # only a hang takes longer: a server that ends is noticed at once
STOP_LIMIT_S = 10.0
QUIET_PORTS = range(15_000, 32_000)
LISTENING = re.compile(
    rf"^listening on {re.escape(HOST)}:(\d+)(?: (?:mqtt|ws)s?)?\s*$", re.MULTILINE
)
TLS, WS, USERS = "tls", "ws", "users"
"""Words in a scenario's key: what its clients speak below MQTT, and that they say passwords."""
CERT, KEY = "cert.pem", "key.pem"
CERTIFICATE = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
    f"-subj /CN={HOST} -keyout {KEY} -out {CERT}"
)
# 3.1.1, clean session, keep-alive 60 s, client id "ready"; and the CONNACK that must answer it.
CONNECT = b"\x10\x11\x00\x04MQTT\x04\x02\x00\x3c\x00\x05ready"
CONNACK = b"\x20\x02\x00\x00"
DISCONNECT = b"\xe0\x00"


class BrokerFailed(Exception):
    """A server did not start, or ended by itself; the message holds the end of its log."""


@dataclass(frozen=True)
class Running:
    """A server that has answered a CONNECT."""

    pid: int
    port: int
    log: Path
    """What it writes to stdout and stderr, until it ends."""
    options: Mapping[str, float] = field(default_factory=dict)
    """More options of the generator."""


class Broker(ABC):
    """One kind of server. Each sample gets a fresh process."""

    name: str
    reports_port = False  # True: given port 0, it prints `listening on HOST:PORT`
    remark = ""  # how its settings differ from its defaults, for the page

    @abstractmethod
    def prepare(self) -> str:
        """Installs or builds what is missing; returns the version. Raises `Unavailable`."""

    @abstractmethod
    def command(self, port: int, folder: Path, scenario: str) -> list[str]:
        """The command that serves on `port` and keeps its files in `folder`."""

    @contextmanager
    def beside(self, command: list[str]) -> Iterator[None]:
        """A process that this server needs beside it, where it needs one."""
        yield

    @contextmanager
    def running(self, core: int | None, scenario: str) -> Iterator[Running]:
        """A fresh server on its core, ready to answer, ended by its pid on the way out."""
        with TemporaryDirectory(prefix="flowguard-bench-") as name:
            folder = Path(name)
            folder.chmod(0o755)  # a server that drops its privileges must still find its files
            log = folder / "log"
            port = 0 if self.reports_port else free_port()
            words = scenario.split("-")
            if TLS in words:
                subprocess.run(CERTIFICATE.split(), cwd=folder, check=True, capture_output=True)
                (folder / KEY).chmod(0o644)  # for the same server
            command = self.command(port, folder, scenario)
            with log.open("wb") as output, machine.pinned(core):
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder
                )
            try:
                is_plain = not {TLS, WS, USERS} & set(words)
                ready = answers_connect if is_plain else accepts
                found = wait_until_ready(process, log, port, ready=ready)
                running = Running(process.pid, found, log)
                try:
                    yield running
                finally:  # whatever else went wrong, a dead server is the reason
                    if process.poll() is not None:
                        status = f"status {process.returncode}"
                        raise BrokerFailed(f"ended by itself, {status}: {tail(log)}")
            finally:
                end(process)


def answers_connect(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=10) as client:
            client.sendall(CONNECT)
            answer = client.recv(4, socket.MSG_WAITALL)
            client.sendall(DISCONNECT)
    except OSError:
        return False
    return answer == CONNACK


def accepts(port: int) -> bool:
    """Whether somebody listens there, whatever they speak."""
    try:
        socket.create_connection((HOST, port), timeout=10).close()
    except OSError:
        return False
    return True


def wait_until_ready(
    process: subprocess.Popen[bytes],
    log: Path,
    port: int,
    ready: Callable[[int], bool] = answers_connect,
) -> int:
    """Waits until the port is `ready` and returns it; a port of 0 is looked up in the log."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BrokerFailed(f"did not start, status {process.returncode}: {tail(log)}")
        if not port and (line := LISTENING.search(log.read_text(errors="replace"))):
            port = int(line[1])
        if port and ready(port):
            return port
        time.sleep(0.05)
    raise BrokerFailed(f"not ready after {START_LIMIT_S:.0f} s: {tail(log)}")


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL if that does not help in time."""
    process.terminate()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """One of `free_ports`."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Ports on 127.0.0.1 that nobody has, and that the system gives nobody by itself: who binds one
    some time later would otherwise find it taken by a connection made meanwhile."""
    found: list[int] = []
    for port in random.SystemRandom().sample(QUIET_PORTS, len(QUIET_PORTS)):
        with socket.socket() as sock, suppress(OSError):
            sock.bind((HOST, port))
            found.append(port)
        if len(found) == count:
            return found
    raise BrokerFailed(f"fewer than {count} ports are free")


def free_block(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    while True:
        port = free_port()
        if are_free(range(port, port + count)):
            return port


def are_free(ports: Iterable[int]) -> bool:
    with ExitStack() as opened, suppress(OSError):
        for port in ports:
            opened.enter_context(socket.socket()).bind((HOST, port))
        return True
    return False


def tail(log: Path, characters: int = 200) -> str:
    """The last line of a log, without the folders of this machine: it goes into a public table."""
    lines = log.read_text(errors="replace").strip().splitlines() or ["no output"]
    return re.sub(r"/(?:[\w.@+-]+/)+", "", lines[-1].strip())[:characters]
