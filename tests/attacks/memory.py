"""Attacks on memory: everything that a peer can make a broker keep, many times over.

Each starts a broker process of its own with `flow.memory_max_bytes`, and judges four things: its
resident memory stays within 1.1 times the limit; what was offered would have been more than the
limit (the control: else nothing was shown); a polite client is served all the time; and once the
attackers have gone, newcomers are let in.
"""

import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.packets import Packet, Pingresp, Puback
from flowguard.types import MQTT_311, Publish

MIB = 1024 * 1024
KIB = 1024
LIMIT_BYTES = 150 * MIB
TOLERANCE = 1.1
PATIENCE_S = 60.0
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
BATCH = 50
"""Connections of an attack between two looks at the broker."""


def text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()


def packet(first: int, body: bytes, declared_bytes: int | None = None) -> bytes:
    """A control packet; `declared_bytes`: the remaining length it claims to have."""
    left = len(body) if declared_bytes is None else declared_bytes
    length = bytearray()
    while True:
        left, digit = divmod(left, 128)
        length.append(digit | (0x80 if left else 0))
        if not left:
            return bytes((first,)) + bytes(length) + body


def connect(client_id: str, *, will: bytes = b"", clean: bool = True) -> bytes:
    flags = (0x02 if clean else 0) | (0x04 if will else 0)
    body = text("MQTT") + bytes((4, flags)) + b"\0\0" + text(client_id)
    if will:
        body += text("will") + len(will).to_bytes(2, "big") + will
    return packet(0x10, body)


def publish(topic: str, payload: bytes, packet_id: int = 0, *, retain: bool = False) -> bytes:
    identifier = packet_id.to_bytes(2, "big") if packet_id else b""
    first = 0x30 | (0x02 if packet_id else 0) | (0x01 if retain else 0)
    return packet(first, text(topic) + identifier + payload)


def subscribe(filter: str, qos: int) -> bytes:
    return packet(0x82, b"\0\1" + text(filter) + bytes((qos,)))


PING = b"\xc0\x00"


@dataclass(slots=True)
class Target:
    """A broker process under attack."""

    process: subprocess.Popen[str]
    port: int
    limit_bytes: int
    peak_bytes: int = 0
    offered_bytes: int = 0
    """What it would have to keep if it kept all."""
    sockets: list[socket.socket] = field(default_factory=list)
    polite: socket.socket | None = None
    served: int = 0
    """PUBLISH of the polite client that were acknowledged."""
    delivered: int = 0
    """Of them, what came back to it."""
    _decoder: PacketDecoder = field(
        default_factory=lambda: PacketDecoder(MIB, MQTT_311, role="client")
    )

    def look(self) -> int:
        """Resident memory now."""
        statm = Path(f"/proc/{self.process.pid}/statm").read_text()
        resident_bytes = int(statm.split()[1]) * PAGE_BYTES
        self.peak_bytes = max(self.peak_bytes, resident_bytes)
        return resident_bytes

    def open(self) -> socket.socket:
        """A connection that has said nothing; its buffers in the kernel are small."""
        sock = socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)
        self.sockets.append(sock)
        return sock

    def client(self, client_id: str, *, clean: bool = True) -> socket.socket | None:
        """A client after its CONNACK; None: the broker has refused it."""
        sock = self.open()
        with suppress(OSError):
            sock.sendall(connect(client_id, clean=clean))
            if read_exactly(sock, 4) == b"\x20\x02\0\0":
                return sock
        sock.close()
        self.sockets.remove(sock)
        return None

    def serve_polite(self) -> None:
        """The polite client publishes to itself, reads and acknowledges: it has to be answered.

        A quarter of its packets is large enough to come in parts.
        """
        if self.polite is None:
            self.polite = self.client("polite")
            assert self.polite is not None
            self.polite.sendall(subscribe("polite", 1))
        self.polite.settimeout(PATIENCE_S)
        payload = bytes(20 * KIB if self.served % 4 == 0 else 100)
        self.polite.sendall(publish("polite", payload, 1))
        while self._read_polite(self.polite) != Puback:
            pass
        self.served += 1
        self.look()

    def end_polite(self) -> None:
        """What is still on its way to it arrives before the answer to its last packet."""
        assert self.polite is not None
        self.polite.sendall(PING)
        while self._read_polite(self.polite) != Pingresp:
            pass

    def _read_polite(self, sock: socket.socket) -> type[Packet]:
        """The next packet's kind; what was delivered is acknowledged."""
        while (found := self._decoder.next()) is None:
            data = sock.recv(64 * KIB)
            assert data, "the polite client has lost its connection"
            self._decoder.feed(data)
        if isinstance(found, Publish):
            self.delivered += 1
            sock.sendall(b"\x40\x02" + found.packet_id.to_bytes(2, "big"))
        return type(found)

    def leave(self) -> None:
        for sock in self.sockets:
            if sock is not self.polite:
                sock.close()
        self.sockets = [] if self.polite is None else [self.polite]

    def close(self) -> None:
        for sock in self.sockets:
            sock.close()
        self.sockets = []


def read_exactly(sock: socket.socket, size_bytes: int) -> bytes:
    """So many bytes, or fewer at the end of the stream."""
    data = b""
    while len(data) < size_bytes:
        more = sock.recv(size_bytes - len(data))
        if not more:
            return data
        data += more
    return data


def send_some(sock: socket.socket, data: bytes | memoryview) -> int:
    """What the kernel and the broker take without waiting; the broker may have had enough."""
    sent = 0
    sock.setblocking(False)
    with suppress(OSError):
        while sent < len(data):
            sent += sock.send(data[sent:])
    return sent


def send_by_turns(target: Target, sockets: list[socket.socket], data: bytes) -> None:
    """All of `data` on each of them, a chunk at a time, as fast as the broker reads."""
    target.offered_bytes += len(sockets) * len(data)
    view = memoryview(data)
    left = {sock: 0 for sock in sockets}
    deadline_s = time.monotonic() + PATIENCE_S
    idle = 0
    while left and idle < 20 and time.monotonic() < deadline_s:
        moved = False
        for number, (sock, at) in enumerate(list(left.items())):
            sent = send_some(sock, view[at : at + 64 * KIB])
            moved |= sent > 0
            left[sock] = at + sent
            if left[sock] >= len(data):
                del left[sock]
            if number % BATCH == 0:
                target.serve_polite()
        target.serve_polite()
        idle = 0 if moved else idle + 1
        if not moved:
            time.sleep(0.02)


# --- what is attacked ---------------------------------------------------------------------------


def half_publishes(target: Target, count: int, size_bytes: int) -> None:
    """Clients that have sent so much of a packet of 1 MB, and send no more."""
    half = packet(0x30, text("half") + bytes(size_bytes), declared_bytes=1_000_000)
    clients = []
    for number in range(count):
        if number % BATCH == 0:
            target.serve_polite()
        sock = target.client(f"half-{number}")
        if sock is not None:
            clients.append(sock)
    assert clients
    send_by_turns(target, clients, half)
    target.offered_bytes = count * size_bytes


def half_connects(target: Target, count: int, size_bytes: int) -> None:
    """CONNECTs of which the last byte never comes."""
    half = connect("c", will=bytes(size_bytes))[:-1]
    strangers = []
    for number in range(count):
        if number % BATCH == 0:
            target.serve_polite()
        with suppress(OSError):
            strangers.append(target.open())
    send_by_turns(target, strangers, half)
    target.offered_bytes = count * size_bytes


def whole_connects(target: Target, count: int, size_bytes: int) -> None:
    """CONNECTs with large wills, and packets behind them, that all want their answer at once."""
    for number in range(count):
        if number % BATCH == 0:
            target.serve_polite()
        data = connect(f"c{number}", will=bytes(size_bytes)) + publish("t", bytes(size_bytes))
        with suppress(OSError):
            send_some(target.open(), data)
        target.offered_bytes += len(data)


def floods(target: Target, count: int, size_bytes: int) -> None:
    """Clients that fill their sockets with packets, and wait for no answer."""
    chunk = b"".join(publish("flood", bytes(200), number) for number in range(1, 257))
    chunk *= max(1, size_bytes // len(chunk))
    clients = []
    for number in range(count):
        if number % BATCH == 0:
            target.serve_polite()
        sock = target.client(f"flood-{number}", clean=False)
        if sock is not None:
            clients.append(sock)
    send_by_turns(target, clients, chunk)
    target.offered_bytes = count * len(chunk)


def unacknowledged(target: Target, count: int, size_bytes: int) -> None:
    """Subscribers that read everything and acknowledge nothing."""
    subscribers = []
    for number in range(count):
        sock = target.client(f"silent-{number}")
        if sock is not None:
            sock.sendall(subscribe("silent", 1))
            read_exactly(sock, 5)
            sock.setblocking(False)
            subscribers.append(sock)
    publisher = target.client("publisher")
    assert publisher is not None
    for number in range(600):
        publisher.sendall(publish("silent", bytes(size_bytes), number + 1))
        read_exactly(publisher, 4)
        target.offered_bytes += len(subscribers) * (size_bytes + 800)
        for sock in subscribers:
            with suppress(OSError):
                sock.recv(MIB)
        if number % 10 == 0:
            target.serve_polite()


def dead_readers(target: Target, count: int, size_bytes: int) -> None:
    """Subscribers that never read, at QoS 0, and publishers that go on."""
    for number in range(count):
        sock = target.client(f"dead-{number}")
        if sock is not None:
            sock.sendall(subscribe("dead", number % 2))
            read_exactly(sock, 5)
    publisher = target.client("publisher")
    assert publisher is not None
    for number in range(4 * LIMIT_BYTES // size_bytes // count + 100):
        publisher.sendall(publish("dead", bytes(size_bytes), number % 60_000 + 1))
        read_exactly(publisher, 4)
        target.offered_bytes += count * size_bytes
        if number % 10 == 0:
            target.serve_polite()


def unread_answers(target: Target, count: int, size_bytes: int) -> None:
    """Clients that ask without end and read no answer."""
    clients = []
    for number in range(count):
        sock = target.client(f"asks-{number}")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * KIB)
            clients.append(sock)
    send_by_turns(target, clients, PING * (size_bytes // 2))
    target.offered_bytes *= 20  # An answer of two bytes is an object.


def retained(target: Target, count: int, size_bytes: int) -> None:
    """One client that has everything retained."""
    publisher = target.client("keeper")
    assert publisher is not None
    for number in range(count):
        publisher.sendall(publish(f"kept/{number}", bytes(size_bytes), 1, retain=True))
        read_exactly(publisher, 4)
        target.offered_bytes += size_bytes + 800
        if number % 500 == 0:
            target.serve_polite()


def offline(target: Target, count: int, size_bytes: int) -> None:
    """Sessions that are kept, each with its subscription, and messages for all of them."""
    for number in range(count):
        sock = target.client(f"offline-{number}", clean=False)
        if sock is not None:
            sock.sendall(subscribe("offline/#", 1))
            read_exactly(sock, 5)
            sock.close()
            target.sockets.remove(sock)
        if number % BATCH == 0:
            target.serve_polite()
    publisher = target.client("publisher")
    assert publisher is not None
    for number in range(200):
        publisher.sendall(publish("offline/t", bytes(size_bytes), number + 1))
        read_exactly(publisher, 4)
        target.offered_bytes += count * size_bytes
        target.serve_polite()


@dataclass(frozen=True, slots=True)
class Attack:
    """How many, and how large."""

    run: Callable[[Target, int, int], None]
    count: int
    size_bytes: int


def shrunk(attack: Attack, share: float) -> Attack:
    """With so many of its clients."""
    return Attack(attack.run, max(1, round(share * attack.count)), attack.size_bytes)


ATTACKS = {
    "half packets of 60 KB": Attack(half_publishes, 5_000, 60_000),
    "half packets of 900 KB": Attack(half_publishes, 1_000, 900_000),
    "half CONNECTs": Attack(half_connects, 6_000, 60_000),
    "whole CONNECTs": Attack(whole_connects, 6_000, 60_000),
    "floods": Attack(floods, 5_000, 64_000),
    "unacknowledged messages": Attack(unacknowledged, 100, 2_000),
    "dead readers": Attack(dead_readers, 200, 20_000),
    "answers that nobody reads": Attack(unread_answers, 500, 100_000),
    "retained messages": Attack(retained, 100_000, 2_000),
    "sessions that are kept": Attack(offline, 4_000, 2_000),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an attack has shown."""

    peak_bytes: int
    limit_bytes: int
    offered_bytes: int
    served: int
    delivered: int
    resident_bytes: int
    """Once all attackers had gone."""
    let_in_s: float
    """Until a newcomer was let in then."""

    @property
    def is_good(self) -> bool:
        within = self.peak_bytes <= TOLERANCE * self.limit_bytes
        kept = self.delivered == self.served > 0
        return within and kept and self.offered_bytes > self.limit_bytes

    def __str__(self) -> str:
        return (
            f"peak {self.peak_bytes / MIB:.0f} of {self.limit_bytes / MIB:.0f} MiB "
            f"({self.peak_bytes / self.limit_bytes:.2f}), offered {self.offered_bytes / MIB:.0f}, "
            f"polite {self.served} acknowledged, {self.delivered} delivered, "
            f"afterwards {self.resident_bytes / MIB:.0f} MiB, "
            f"newcomer after {self.let_in_s:.1f} s"
        )


@contextmanager
def broker(folder: Path, limit_bytes: int, *options: str) -> Iterator[Target]:
    """A broker process with this limit."""
    config = folder / "flowguard.toml"
    config.write_text(f"[flow]\nmemory_max_bytes = {limit_bytes}\n")
    command = [sys.executable, "-m", "flowguard", "serve", "--listen", "127.0.0.1:0"]
    with (
        (folder / "broker.log").open("w") as log,
        subprocess.Popen(
            [*command, "--config", str(config), "--http", "none", *options],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (folder / "broker.log").read_text()
            target = Target(process, int(line.rpartition(":")[2]), limit_bytes)
            try:
                yield target
            finally:
                target.close()
            assert process.poll() is None, "the broker has ended"
        finally:
            process.terminate()
            process.wait(30)


def judge(attack: Attack, *, limit_bytes: int = LIMIT_BYTES, store: str = "memory") -> Verdict:
    """Run one attack, and look what it has done."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with (
        tempfile.TemporaryDirectory() as folder,
        broker(Path(folder), limit_bytes, "--store", store) as target,
    ):
        attack.run(target, attack.count, attack.size_bytes)
        target.serve_polite()
        target.end_polite()
        target.leave()
        gone_s = time.monotonic()
        while target.client("newcomer") is None:
            assert time.monotonic() - gone_s < PATIENCE_S, "newcomers are locked out"
            time.sleep(0.1)
        let_in_s = time.monotonic() - gone_s
        return Verdict(
            target.peak_bytes,
            limit_bytes,
            target.offered_bytes,
            target.served,
            target.delivered,
            target.look(),
            let_in_s,
        )
