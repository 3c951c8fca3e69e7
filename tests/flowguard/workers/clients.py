"""Clients of a broker with several workers, over each kind of listener."""

import json
import os
import signal
import socket
import ssl
import struct
import time
import urllib.request
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPResponse
from pathlib import Path
from select import select
from typing import Any, Protocol

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from flowguard.broker.layers.proxied import PROXY, SIGNATURE
from flowguard.cluster.members import Members
from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Connack, Connect, Packet
from flowguard.types import MQTT_5
from tests.flowguard.cli.http_port import ANNOUNCEMENT as HTTP
from tests.interop.broker import ANNOUNCEMENT, PATIENCE_S, Broker, address_in, running_broker

WORKERS = 2
CLIENT_ADDRESS = "203.0.113.7"
"""The address of each client behind a proxy."""


class Stream(Protocol):
    def sendall(self, data: bytes) -> None: ...

    def recv(self, size_bytes: int) -> bytes: ...

    def close(self) -> None: ...


class WebSocketStream:
    """WebSocket on a stream, without a thread of its own."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._protocol = ClientProtocol(
            parse_uri("ws://127.0.0.1/mqtt"), subprotocols=[Subprotocol("mqtt")]
        )
        self._received: deque[bytes] = deque()
        self._protocol.send_request(self._protocol.connect())
        self._send()
        while self._protocol.state is State.CONNECTING:
            self._receive()
            assert self._protocol.handshake_exc is None

    def sendall(self, data: bytes) -> None:
        self._protocol.send_binary(data)
        self._send()

    def recv(self, size_bytes: int) -> bytes:
        while not self._received:
            if self._protocol.state is State.CLOSED:
                return b""
            self._receive()
        return self._received.popleft()

    def _send(self) -> None:
        self._stream.sendall(b"".join(self._protocol.data_to_send()))

    def _receive(self) -> None:
        data = self._stream.recv(65_536)
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        for event in self._protocol.events_received():
            if isinstance(event, Frame) and event.opcode is Opcode.BINARY:
                self._received.append(bytes(event.data))

    def close(self) -> None:
        self._stream.close()


class Client:
    """Packets on a stream; the first one is CONNECT."""

    def __init__(self, stream: Stream, client_id: str, *more: Packet, **options: Any) -> None:
        self._stream = stream
        self._decoder = PacketDecoder(1_000_000, MQTT_5, "client")
        self.send(Connect(client_id, MQTT_5, **options), *more)

    def send(self, *packets: Packet) -> None:
        self._stream.sendall(b"".join(encode(packet, MQTT_5) for packet in packets))

    def read(self) -> Packet | None:
        """Return the next packet, or None if the broker has closed."""
        while (packet := self._decoder.next()) is None:
            data = self._stream.recv(65_536)
            if not data:
                return None
            self._decoder.feed(data)
        return packet

    def accepted(self) -> Connack:
        connack = self.read()
        assert isinstance(connack, Connack)
        assert connack.reason_code == 0
        return connack

    def close(self) -> None:
        self._stream.close()


def tcp(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, PATIENCE_S)


def unix(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(PATIENCE_S)
    sock.connect(str(path))
    return sock


def tls(address: tuple[str, int], context: ssl.SSLContext) -> ssl.SSLSocket:
    return context.wrap_socket(tcp(address), server_hostname=address[0])


def proxied(address: tuple[str, int]) -> socket.socket:
    sock = tcp(address)
    places = socket.inet_aton(CLIENT_ADDRESS) + socket.inet_aton(address[0])
    body = places + struct.pack(">HH", 40_000, address[1])
    sock.sendall(SIGNATURE + bytes((PROXY, 0x11)) + struct.pack(">H", len(body)) + body)
    return sock


@dataclass
class Machine:
    """A broker with several workers."""

    broker: Broker
    addresses: list[tuple[str, int]]
    """Host and port of each listener that has a port."""
    http: str

    def open(self, path: str) -> HTTPResponse:
        answer = urllib.request.urlopen(f"http://{self.http}{path}", timeout=PATIENCE_S)
        assert isinstance(answer, HTTPResponse)
        return answer

    def text(self, path: str) -> str:
        with self.open(path) as answer:
            return str(answer.read().decode())

    def get(self, path: str) -> Any:
        return json.loads(self.text(path))

    def connected(self) -> list[int | None]:
        """Return the number of clients of each worker, None for one that is down."""
        workers = self.get("/status")["workers"]
        return [None if each is None else each["clients"]["connected"] for each in workers]

    def pid(self, index: int) -> int:
        return self.pids()[f"worker-{index}"]

    def pids(self) -> dict[str, int]:
        """Return the process id of the last start of each worker."""
        found = {}
        for line in self.broker.log.read_text().splitlines():
            if "worker ready" in line:
                fields = dict(part.split("=", 1) for part in line.split() if "=" in part)
                found[fields["name"]] = int(fields["pid"])
        return found

    def descriptors_count(self) -> int:
        """Return the number of open descriptors of all workers."""
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in self.pids().values())


@contextmanager
def machine(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None, **options: Any
) -> Iterator[Machine]:
    workers = () if "--workers" in arguments else ("--workers", str(WORKERS))
    arguments = (*workers, "--http", "127.0.0.1:0", *arguments)
    # A busy machine may take long to start a worker that a test has stopped.
    environment = {"FLOWGUARD_NODE__WORKER_TIMEOUT_S": str(PATIENCE_S), **(environment or {})}
    with running_broker(folder, *arguments, environment=environment, **options) as broker:
        addresses = [(broker.host, broker.port)]
        assert broker.process.stdout is not None
        while (line := broker.process.stdout.readline()).startswith(ANNOUNCEMENT):
            if "unix:" not in line:
                addresses.append(address_in(line))
        assert line.startswith(HTTP), line + broker.log.read_text()
        if workers:
            for index in range(WORKERS):  # The log is written later than the addresses.
                broker.wait_for_log(f"name=worker-{index} ")
        yield Machine(broker, addresses, line.removeprefix(HTTP).removesuffix("/\n"))


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Let a process not run until the block ends.

    SIGSTOP takes effect when the threads run next: until then another signal can still end them.
    """
    os.kill(pid, signal.SIGSTOP)
    try:
        while any(state_of(thread) != "T" for thread in Path(f"/proc/{pid}/task").iterdir()):
            time.sleep(0.001)
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def state_of(thread: Path) -> str:
    """Return the letter of a thread's state, which follows the name of its program."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


def wait_until_ended(pids: Iterable[int]) -> None:
    """Wait until all threads of these processes have ended, and so their sockets are closed."""
    for pid in pids:
        with suppress(ProcessLookupError):
            process = os.pidfd_open(pid)
            try:
                assert select([process], [], [], PATIENCE_S)[0]
            finally:
                os.close(process)


def owner(client_id: str) -> int:
    """Return the index of the worker that owns the session of a client."""
    members = Members("worker-0", 1, [f"worker-{each}" for each in range(WORKERS)])
    return int(members.owner_of(client_id).removeprefix("worker-"))


def names(index: int, count: int, prefix: str = "client") -> list[str]:
    """Return client ids whose sessions a worker owns."""
    every = (f"{prefix}-{number}" for number in range(10_000))
    owned = (name for name in every if owner(name) == index)
    return [next(owned) for _ in range(count)]
