"""All layers on each other: a proxy's header, TLS, WebSocket; cut anywhere, damaged anywhere."""

import socket
import ssl
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from broker_adapter.proxy.protocol import header
from flowguard.broker.sockets.listening import Doorway, open_doorways
from flowguard.network_settings import NetworkSettings
from flowguard.node.connect.accept_state import LayerFault
from tests.support.authority import Authority

HOST = "127.0.0.1"
HELD_MAX_BYTES = 64 * 1024
REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def doorway(authority: Authority) -> Iterator[Doorway]:
    pair = authority.issue(HOST)
    listener = {"address": f"wss://{HOST}:0", "proxies": ["10.0.0.0/8"]}
    network = {"listeners": [listener], "cert": pair.cert, "key": pair.key}
    (opened,) = open_doorways(NetworkSettings.model_validate(network))
    yield opened
    opened.close()


class Peer:
    """A client, byte by byte, and the broker's end as the reactor has it."""

    def __init__(self, authority: Authority, doorway: Doorway) -> None:
        ours, self._theirs = socket.socketpair()  # This end is a proxy that may send anything.
        self._theirs.setblocking(False)
        self.faults: Counter[LayerFault] = Counter()
        doorway.report(self._count)
        layer = doorway.layer(ours)
        assert layer is not None
        self.stack: Any = layer
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = authority.client_context().wrap_bio(self._in, self._out, server_hostname=HOST)
        self._head = header(("192.0.2.7", 4_000), (HOST, 8_883))
        self.received = b""
        self.ended = False

    def _count(self, fault: LayerFault, stream: object, why: str) -> None:
        self.faults[fault] += 1

    def shake(self) -> bytes:
        """The next bytes of the header and of TLS; empty: it is done, or has failed."""
        try:
            self._tls.do_handshake()
        except ssl.SSLError:
            pass
        said, self._head = self._head + self._out.read(), b""
        return said

    def say(self, data: bytes) -> bytes:
        """Return data sent inside of TLS, as bytes on the wire."""
        try:
            self._tls.write(data)
        except ssl.SSLError:
            return b""  # They have not agreed.
        return self._out.read()

    def deliver(self, data: bytes) -> None:
        """The broker reads this as it is, and the client what it answers."""
        if not data or self.ended:
            return
        self._theirs.send(data)
        self._read()
        if not self.ended:
            self._read()  # If the data ended with a damaged frame, the payload came first.
        try:
            self._in.write(self._theirs.recv(1_000_000))
        except BlockingIOError:
            pass

    def leave(self) -> None:
        """Shut down the client's socket for writing."""
        self._theirs.shutdown(socket.SHUT_WR)
        while not self.ended:
            self._read()

    def _read(self) -> None:
        try:
            got = self.stack.recv(65_536, socket.MSG_DONTWAIT)
            self.received += got
            self.ended = not got
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True
        assert held(self.stack) <= HELD_MAX_BYTES

    def close(self) -> None:
        self.stack.close()
        self._theirs.close()


def held(stack: Any) -> int:
    """Bytes that WebSocket, TLS and the header keep."""
    tls = stack._sock
    of_tls = len(tls._pending) + tls._incoming.pending + tls._outgoing.pending
    of_websocket = len(stack._pending) + len(stack._request) + stack._reader.held_bytes
    return int(of_tls + of_websocket + len(tls._sock._header))


@contextmanager
def peer(authority: Authority, doorway: Doorway) -> Iterator[Peer]:
    made = Peer(authority, doorway)
    try:
        yield made
    finally:
        made.close()


def frames(message: bytes, frame_bytes: int) -> bytes:
    """A message in fragments, with a ping after each."""
    parts = [message[at : at + frame_bytes] for at in range(0, len(message), frame_bytes)] or [b""]
    data = b""
    for index, part in enumerate(parts):
        opcode = Opcode.CONT if index else Opcode.BINARY
        data += Frame(opcode, part, index == len(parts) - 1).serialize(mask=True)
        data += Frame(Opcode.PING, b"?").serialize(mask=True)
    return data


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    for start, end in zip([0, *places], [*places, len(data)], strict=True):
        yield data[start:end]


@given(
    cuts=st.lists(st.integers(0, 10_000), max_size=12),
    message=st.binary(max_size=3_000),
    frame_bytes=st.integers(20, 4_000),
)
@settings(max_examples=settings.default.max_examples)
def test_all_of_it_may_be_cut_anywhere(
    authority: Authority, doorway: Doorway, cuts: list[int], message: bytes, frame_bytes: int
) -> None:
    with peer(authority, doorway) as two:
        while said := two.shake():
            for piece in pieces(said, cuts):
                two.deliver(piece)
        for said in (two.say(REQUEST), two.say(frames(message, frame_bytes))):
            for piece in pieces(said, cuts):
                two.deliver(piece)
        assert two.stack.getpeername() == ("192.0.2.7", 4_000)
        assert two.received == message
        assert not two.faults


DAMAGE = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 10_000), st.integers(0, 7)),
    st.tuples(st.just("insert"), st.integers(0, 10_000), st.binary(min_size=1, max_size=300)),
    st.tuples(st.just("cut"), st.integers(0, 10_000), st.none()),
    st.tuples(st.just("repeat"), st.integers(0, 10_000), st.none()),
)


def damaged(data: bytes, damage: tuple[str, int, Any]) -> bytes:
    kind, place, what = damage
    if not data:
        return data
    place %= len(data)
    if kind == "flip":
        return data[:place] + bytes([data[place] ^ (1 << what)]) + data[place + 1 :]
    if kind == "insert":
        return data[:place] + what + data[place:]
    return data[:place] if kind == "cut" else data[: place + 1] + data[place:]


@given(step=st.integers(0, 4), inside=st.booleans(), damage=DAMAGE, message=st.binary(max_size=500))
@settings(max_examples=3 * settings.default.max_examples)
def test_whatever_is_damaged_has_one_reason_and_little_is_held(
    authority: Authority, doorway: Doorway, step: int, inside: bool, damage: Any, message: bytes
) -> None:
    """`step`: header and ClientHello, Finished, more of TLS, upgrade, frames. `inside`: of TLS."""
    with peer(authority, doorway) as two:
        for number in range(5):
            plain = {3: REQUEST, 4: frames(message, 100)}.get(number, b"")
            if number == step and inside:
                plain = damaged(plain, damage)
            said = two.say(plain) if plain else two.shake()
            if number == step and not inside:
                said = damaged(said, damage)
            two.deliver(said)
        was_open = two.stack.established and not two.ended
        if not (inside and step >= 3):  # Nothing but what was said comes out of TLS.
            assert message.startswith(two.received)
        two.leave()
        assert sum(two.faults.values()) == (0 if was_open else 1)
