"""Attackers by the thousand, on blocking sockets in a thread, and a polite client among them."""

import socket
import time
from contextlib import suppress

from flowguard.codec.decoder import PacketDecoder
from flowguard.codec.encoder import encode
from flowguard.codec.packets import Packet, Pingreq, Pingresp, Puback, Subscribe
from flowguard.types import MQTT_311, Publish, SubscriptionOptions
from tests.attacks.attack import Finding
from tests.attacks.victim import ANSWER_S, MIB, Victim
from tests.support.real import connect_packet

KIB = 1024
RECEIVE_BYTES = 16 * KIB
"""Receive buffer of an attacker in the kernel: the rest stays with the broker."""
BATCH = 50
"""Connections of an attack between two packets of the polite client."""
IDLE_ROUNDS = 20
"""Number of rounds without a send after which the broker counts as not reading any more."""
PACKET_BYTES_MAX = 2 * MIB
ACCEPTED = b"\x20\x02\0\0"
"""CONNACK of MQTT 3.1.1."""


def said(packet: Packet) -> bytes:
    return encode(packet, MQTT_311)


def subscribe(filter: str, qos: int) -> bytes:
    return said(Subscribe(1, ((filter, SubscriptionOptions(qos)),)))


def publish(topic: str, payload: bytes, packet_id: int = 0, *, retain: bool = False) -> bytes:
    """Return a PUBLISH, of QoS 1 if there is a packet identifier."""
    return said(Publish(topic, payload, int(packet_id > 0), retain, packet_id=packet_id))


class Attackers:
    """All sockets of an attack; each waits `ANSWER_S` for the broker at most."""

    def __init__(self, victim: Victim) -> None:
        self._victim = victim
        self.sockets: set[socket.socket] = set()
        self.polite = Polite(self)

    def open(self) -> socket.socket:
        """A connection that has said nothing."""
        sock = socket.socket()
        sock.settimeout(ANSWER_S)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        sock.connect(self._victim.address)
        self.sockets.add(sock)
        return sock

    def client(self, client_id: str, *, clean: bool = True) -> socket.socket | None:
        """Return a client after its CONNACK, or None if the broker has rejected it."""
        sock = self.open()
        with suppress(OSError):
            sock.sendall(said(connect_packet(client_id, MQTT_311, durable=not clean)))
            if read_exactly(sock, len(ACCEPTED)) == ACCEPTED:
                return sock
        self.close(sock)
        return None

    def clients(self, count: int, name: str, *, clean: bool = True) -> list[socket.socket]:
        """Those of `count` that were let in."""
        found = []
        for number in range(count):
            if number % BATCH == 0:
                self.polite.exchange()
            sock = self.client(f"{name}-{number}", clean=clean)
            if sock is not None:
                found.append(sock)
        return found

    def subscribers(self, filters: list[str], qos: int) -> list[socket.socket]:
        """Clean clients, one for each filter, which then read nothing by themselves."""
        clients = self.clients(len(filters), f"subscriber-{qos}")
        for sock, filter in zip(clients, filters, strict=False):  # Some may have been refused.
            sock.sendall(subscribe(filter, qos))
            read_exactly(sock, 5)
        return clients

    def send_by_turns(self, sockets: list[socket.socket], data: bytes) -> None:
        """All of `data` on each of them, a chunk at a time, as fast as the broker reads."""
        view = memoryview(data)
        left = {sock: 0 for sock in sockets}
        deadline_s = time.monotonic() + ANSWER_S
        idle = 0
        while left and idle < IDLE_ROUNDS and time.monotonic() < deadline_s:
            moved = False
            for number, (sock, at) in enumerate(list(left.items())):
                sent = send_some(sock, view[at : at + 64 * KIB])
                moved |= sent > 0
                left[sock] = at + sent
                if left[sock] >= len(data):
                    del left[sock]
                if number % BATCH == 0:
                    self.polite.exchange()
            self.polite.exchange()
            idle = 0 if moved else idle + 1
            if not moved:
                time.sleep(0.02)

    def close(self, sock: socket.socket) -> None:
        sock.close()
        self.sockets.discard(sock)

    def leave(self) -> None:
        """All but the polite client."""
        for sock in self.sockets - {self.polite.sock}:
            self.close(sock)

    def let_in_after_s(self) -> float:
        """How long it takes until a newcomer is let in. Raises TimeoutError."""
        began_s = time.monotonic()
        while self.client("newcomer") is None:
            if time.monotonic() - began_s > ANSWER_S:
                raise TimeoutError("newcomers are locked out")
            time.sleep(0.1)
        return time.monotonic() - began_s


class Polite:
    """A client that publishes to itself at QoS 1, one message at a time, and acknowledges.

    A quarter of its packets is large enough to come in parts.
    """

    def __init__(self, attackers: Attackers) -> None:
        self._attackers = attackers
        self._decoder = PacketDecoder(PACKET_BYTES_MAX, MQTT_311, role="client")
        self.sock: socket.socket | None = None
        self.acknowledged = 0
        self.delivered = 0
        """Number of these messages that were delivered."""

    def exchange(self) -> None:
        """Publish one message and wait for its PUBACK. Raises OSError if the broker closes."""
        if self.sock is None:
            self.sock = self._attackers.client("polite")
            assert self.sock is not None, "the polite client is refused"
            self.sock.sendall(subscribe("polite", 1))
        payload = bytes(20 * KIB if self.acknowledged % 4 == 0 else 100)
        self.sock.sendall(publish("polite", payload, 1))
        while self._read(self.sock) is not Puback:
            pass
        self.acknowledged += 1

    def end(self) -> Finding:
        """Wait for all deliveries in flight: they come before the answer to the last packet."""
        self.exchange()
        assert self.sock is not None
        self.sock.sendall(said(Pingreq()))
        while self._read(self.sock) is not Pingresp:
            pass
        shown = f"polite {self.delivered} of {self.acknowledged} delivered"
        return Finding(self.delivered == self.acknowledged, shown)

    def _read(self, sock: socket.socket) -> type[Packet]:
        """The next packet's kind; what was delivered is acknowledged."""
        while (found := self._decoder.next()) is None:
            data = sock.recv(64 * KIB)
            if not data:
                raise ConnectionError("the polite client has lost its connection")
            self._decoder.feed(data)
        if isinstance(found, Publish):
            self.delivered += 1
            sock.sendall(said(Puback(found.packet_id)))
        return type(found)


def read_exactly(sock: socket.socket, size_bytes: int) -> bytes:
    """Return `size_bytes` bytes, or fewer at the end of the stream."""
    data = b""
    while len(data) < size_bytes:
        more = sock.recv(size_bytes - len(data))
        if not more:
            return data
        data += more
    return data


def send_some(sock: socket.socket, data: bytes | memoryview) -> int:
    """Return how many bytes the kernel and the broker take without waiting; the broker may
    close."""
    sent = 0
    sock.setblocking(False)
    with suppress(OSError):
        while sent < len(data):
            sent += sock.send(data[sent:])
    return sent
